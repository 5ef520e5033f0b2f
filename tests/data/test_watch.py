"""Exercises with a smart watch."""

import importlib.util
import os

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import files
from fedjax_alg.data import watch

PEOPLE, NAMES = (3, 8), ["PEN", "ABD", "ROW"]
IS_THERE = importlib.util.find_spec("seglearn") is not None
of_package = pytest.mark.skipif(not IS_THERE, reason="seglearn is missing")


def write_package(folder, content=None):
  """A package with series of two people, or with another content of its file.

  A point is the number of its series and its place in it, so that all points differ.
  """
  rows = [(p, e, s) for p in PEOPLE for e in range(len(NAMES)) for s in (0.0, 1.0)]
  series = {
    "X": [
      np.stack([np.full(200 + n, n), *[np.arange(200.0 + n)] * 5], 1)
      for n in range(len(rows))
    ],
    "y": np.array([e for _, e, _ in rows]),
    "subject": np.array([p for p, _, _ in rows]),
    "side": np.array([s for *_, s in rows]),
    "y_labels": NAMES,
  }
  place = folder / "watch_of_a_test"
  (place / "data").mkdir(parents=True)
  (place / "__init__.py").write_text("raise SystemExit")
  path = place / "data" / "watch_dataset.npy"
  np.save(path, np.array(series if content is None else content, object))
  return path


@pytest.fixture(name="package")
def fixture_package(tmp_path, monkeypatch):
  """The package of a test, in the place of seglearn."""
  path = write_package(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(watch, "_PACKAGE", "watch_of_a_test")
  monkeypatch.setattr(watch, "_SHA256", files.sha256(path))
  return path


def points_of(x):
  """(series, place in it) of each point of windows."""
  return set(map(tuple, x[:, :, :2].reshape(-1, 2).tolist()))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("seed", range(5))
def test_no_series_for_testing_is_in_training(seed):
  """Else windows of one set of repetitions would be on both sides."""
  examples = watch.load_watch(20, 5, seed=seed)
  train, test = (
    {n for n, _ in points_of(x)} for x in (examples.x_train, examples.x_test)
  )
  assert not train & test and len(train) == len(test) == 6
  for n in range(0, 12, 2):  # the two arms of an exercise of a person
    assert len(train & {n, n + 1}) == len(test & {n, n + 1}) == 1


@pytest.mark.usefixtures("package")
def test_no_point_is_in_windows_for_both():
  examples = watch.load_watch(20, 5, "part")
  train, test = map(points_of, (examples.x_train, examples.x_test))
  assert not train & test
  assert {n for n, _ in train} == {n for n, _ in test} == set(range(12))
  # Windows do not reach over what was cut out of the middle.
  for x in (examples.x_train, examples.x_test):
    assert (np.diff(x[:, :, 1], axis=1) == 1).all()


@pytest.mark.usefixtures("package")
def test_people_are_the_clients_and_exercises_the_classes():
  federation = fa.federate(fa.Watch(20, 10), partition_seed=4)
  assert federation.client_names.tolist() == ["3", "8"]
  assert federation.encoding.classes == tuple(sorted(NAMES))
  assert federation.example_shape == (20, 6) and federation.num_classes == 3
  for place, name in enumerate(("3", "8")):
    for x, y in (federation.client(name), federation.client_test(name)):
      numbers = x[:, 0, 0].astype(int)  # of series, six of each person
      assert set(numbers // 6) == {place}
      classes = [federation.encoding.classes.index(NAMES[n % 6 // 2]) for n in numbers]
      np.testing.assert_array_equal(y, classes)
  other = fa.federate(fa.Watch(20, 10), partition_seed=5)
  assert other.hashes["data"] != federation.hashes["data"]


def test_a_package_that_is_missing_or_another_is_refused(
  tmp_path, monkeypatch, package
):
  with open(package, "r+b") as file:
    file.truncate(1000)
  with pytest.raises(fa.DataError, match=r"^dataset=watch: .*sha256.*pip install"):
    fa.federate("watch")
  monkeypatch.setattr(watch, "_PACKAGE", "none_of_a_test")
  with pytest.raises(fa.DataError, match=r"^dataset=watch: .*fedjax_alg\[watch\]"):
    fa.federate("watch:step=10")


@pytest.mark.usefixtures("package")
def test_windows_longer_than_the_series_are_refused():
  with pytest.raises(fa.DataError, match="^dataset=watch: length=300"):
    fa.federate("watch:300")
  with pytest.raises(fa.OptionError, match="^dataset=watch:test=leg"):
    fa.federate("watch:test=leg")


class Hostile:
  """A pickle that makes a folder when it is loaded."""

  def __init__(self, path):
    self.path = str(path)

  def __reduce__(self):
    return os.mkdir, (self.path,)


def test_a_hostile_pickle_runs_nothing(tmp_path):
  """Also if somebody changes the checksum with the file."""
  path = write_package(tmp_path, {"X": Hostile(tmp_path / "made")})
  with pytest.raises(fa.DataError, match="^dataset=watch: .*mkdir"):
    watch.read_series(path)
  assert not (tmp_path / "made").exists()


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
  path = write_package(tmp_path)
  content = path.read_bytes()
  for size in (0, 5, 100, 130, 1000, len(content) - 1):
    path.write_bytes(content[:size])
    with pytest.raises(fa.DataError, match="^dataset=watch: .*damaged") as error:
      watch.read_series(path)
    assert "\n" not in str(error.value)
  np.save(path, np.array({"X": []}, object))
  with pytest.raises(fa.DataError, match="^dataset=watch: .*damaged"):
    watch.read_series(path)
  with pytest.raises(fa.DataError, match="^dataset=watch: cannot be read"):
    watch.read_series(tmp_path / "none")


@of_package
def test_the_package_has_140_series_of_ten_people():
  (path,) = files.find_in_package(watch._PACKAGE, {watch._FILE: watch._SHA256}, "", "")
  series = watch.read_series(path)
  assert len(series["X"]) == 140 and {x.shape[1] for x in series["X"]} == {6}
  cells = list(zip(*(series[name].tolist() for name in ("subject", "y", "side"))))
  assert sorted(cells) == [
    (p, e, s) for p in range(1, 11) for e in range(7) for s in (0.0, 1.0)
  ]


@of_package
@pytest.mark.program
def test_people_learn_from_each_other():
  """The floor is far above chance (0.14), the ceiling below windows on both sides.

  With windows of one series on both sides a nearest neighbor would be nearly right.
  """
  federation = fa.federate("watch:step=100", features="standardize")
  options = dict(
    model="mlp:32", rounds=30, participation=1.0, client_lr=0.1, evaluate="local"
  )
  together, alone = (
    fa.run(name, federation, local_steps=20, batch_size=10, eval_every=30, **options)
    for name in ("fedavg", "local")
  )
  accuracy, of_each = (
    run.estimate("accuracy", protocol="local")[0] for run in (together, alone)
  )
  assert 0.55 < accuracy < 0.9
  assert of_each < accuracy - 0.2
