"""The command that writes clients to a folder."""

import io
import json
import re
from typing import Any

import numpy as np
import pytest

from experiments import prepare
from fedjax_alg import data
from fedjax_alg.data import leaf
from fedjax_alg.data.arrays import from_arrays
from tests import tfds_records

_CODE = """
import numpy as np

def clients():
  for name in ("anna", "bert"):
    yield name, np.ones((3, 2), np.float32), np.arange(3)

def broken():
  yield "anna", np.ones((3, 2), np.float32), np.arange(3)
  raise KeyError("a row")

number = 3

class Rows:
  def __len__(self):
    return 6

  def __getitem__(self, place):
    return np.full(2, place, np.float32), "no" if place % 3 else "yes", "ba"[place % 2]

def items():
  return (Rows()[place] for place in range(6))

from fedjax_alg import data

made = data.StreamedRows(Rows(), x=0, y=1, client=2)
"""


@pytest.fixture
def code(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(_CODE)
  return path


def test_clients_of_a_function(tmp_path, code, capsys):
  folder = tmp_path / "clients"
  assert prepare.main([f"--clients={folder}", f"{code}:clients"]) == 0
  output = capsys.readouterr()
  assert f"--dataset=clients:{folder}" in output.out
  assert "2 clients" in output.err
  assert list(data.open_clients(folder, check=True).client_names) == ["anna", "bert"]


def test_clients_of_files(tmp_path):
  x, y = np.random.default_rng(0).random((12, 3)), np.arange(12) % 2
  ids = np.array(["b", "a", "c"] * 4)
  arrays = dict(x_train=x, y_train=y, client_train=ids)
  arrays |= dict(x_test=x[:6], y_test=y[:6], client_test=ids[:6])
  np.savez(tmp_path / "mine.npz", **arrays)
  users = ["u", "v"]
  of_user = {user: dict(x=x[:5].tolist(), y=y[:5].tolist()) for user in users}
  text = json.dumps(dict(users=users, num_samples=[5, 5], user_data=of_user))
  (tmp_path / "leaf.json").write_text(text)
  for name, clients, tests in (("npz:mine.npz", 3, 6), ("leaf:leaf.json", 2, 2)):
    word, file = name.split(":")
    folder = tmp_path / word
    words = [f"--clients={folder}", f"{word}:{tmp_path / file}"]
    assert prepare.main(words) == 0
    examples = data.open_clients(folder)
    assert (len(examples.client_names), len(examples.x_test)) == (clients, tests)
  first = data.open_clients(tmp_path / "npz")
  np.testing.assert_array_equal(first.x_train[:4], x[ids == "a"].astype(np.float32))


def test_rows_in_any_order(tmp_path, code, capsys):
  (tmp_path / "rows.csv").write_text(
    "ward,age,ill\n" + "".join(f"{'ba'[n % 2]},{n},{n % 3}\n" for n in range(6))
  )
  csv = [f"csv:{tmp_path / 'rows.csv'}", "--client=ward", "--y=ill"]
  items = ["--x=0", "--y=1", "--client=2"]
  for number, (words, classes) in enumerate(
    (
      (csv, None),
      ([f"{code}:Rows", *items], ("no", "yes")),
      ([f"{code}:items", *items, "--classes=yes,no"], ("yes", "no")),
    )
  ):
    if number == 0:
      pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
    folder = tmp_path / str(number)
    assert prepare.main([f"--clients={folder}", *words]) == 0
    examples = data.open_clients(folder, check=True)
    assert list(examples.client_names) == ["a", "b"]
    np.testing.assert_array_equal(examples.x_train[:][:, 0], [1, 3, 5, 0, 2, 4])
    assert (examples.encoding and examples.encoding.classes) == classes
  assert "writing 6 of 6 rows, 2 clients" in capsys.readouterr().err


def prepare_visits(folder):
  """Data sets of TFDS with a feature for the client, whose rows lie together or not.

  Rows follow each other in the order of the hashes of their keys, as TFDS shuffles.
  """
  tfds: Any = pytest.importorskip(
    "tensorflow_datasets", reason="the package is missing"
  )
  features = tfds.features.FeaturesDict(
    {
      "x": tfds.features.Image(shape=(4, 4, 1)),
      "age": tfds.features.Scalar(np.int32),
      "y": tfds.features.ClassLabel(names=["no", "yes", "never"]),
      "client": tfds.features.Text(),
    }
  )

  class Visits(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    order = range(40)

    def _info(self):
      options = dict(disable_shuffling=True, features=features)
      return tfds.core.DatasetInfo(builder=self, **options)

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples(), "test": self._generate_examples()}

    def _generate_examples(self):
      for row in self.order:
        image = io.BytesIO(tfds_records.png(np.full((4, 4), row, np.uint8)))
        yield row, dict(x=image, age=row, y=row % 2, client=f"c{row % 3}")

  class Sorted(Visits):
    order = sorted(range(40), key=lambda row: row % 3)

  for builder in (Visits, Sorted):
    builder(data_dir=str(folder), file_format="array_record").download_and_prepare()


def test_rows_of_tfds_become_clients(tmp_path, monkeypatch, capsys):
  prepare_visits(tmp_path)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  columns = ["--x=x", "--y=y", "--client=client"]
  order = np.array(sorted(range(40), key=lambda row: row % 3))
  for name in ("visits", "sorted"):
    words = [f"--clients={tmp_path / f'{name}_clients'}", f"tfds:{name}"]
    test = [f"--test=tfds:{name}[test]"] if name == "sorted" else []
    assert prepare.main([*words, *columns, *test]) == 0
    examples = data.open_clients(tmp_path / f"{name}_clients", check=True)
    assert list(examples.client_names) == ["c0", "c1", "c2"]
    # A name of a class without examples counts as well.
    assert examples.encoding.classes == ("no", "yes", "never")
    x, y, clients = examples.x_train[:], examples.y_train, examples.client_train
    assert x.dtype == np.uint8 and x.shape == (40, 4, 4, 1)
    np.testing.assert_array_equal(x[:, 0, 0, 0], order)
    np.testing.assert_array_equal(y, order % 2)
    np.testing.assert_array_equal(clients, order % 3)
    assert len(examples.x_test) == (40 if test else 0)
  assert "writing 40 of 40 rows, 3 clients" in capsys.readouterr().err
  for source, column, why in (
    ("tfds:visits[dev]", "client", r"no dev \(it has train, test\)"),
    ("tfds:visits", "ward", "'ward'"),
    ("tfds:absent", "client", "absent"),
  ):
    words = [f"--clients={tmp_path / 'none'}", source, *columns[:2]]
    assert prepare.main([*words, f"--client={column}"]) != 0
    lines = capsys.readouterr().err.splitlines()
    assert re.search(why, lines[-1]) and "Traceback" not in "".join(lines)


def write_leaf(folder, split, number, **content):
  (folder / split).mkdir(parents=True, exist_ok=True)
  (folder / split / f"{number}.json").write_text(json.dumps(content))


def test_leaf_is_read_some_files_at_a_time(tmp_path):
  rng = np.random.default_rng(0)

  def write(split, number, users):
    of_user = {
      user: dict(x=rng.random((size, 3)).tolist(), y=rng.integers(0, 4, size).tolist())
      for user, size in users.items()
    }
    write_leaf(tmp_path / "leaf", split, number, users=list(users), user_data=of_user)

  write("train", 0, dict(d=4, a=5))
  write("train", 1, dict(c=3, b=0))
  write("test", 0, dict(b=2, e=3, d=1))
  write("test", 1, dict(a=2))
  expected = leaf.load_leaf(tmp_path / "leaf")
  source = f"leaf:{tmp_path / 'leaf'}"
  assert prepare.main([f"--clients={tmp_path / 'clients'}", source]) == 0
  found = data.open_clients(tmp_path / "clients", check=True)
  assert list(found.client_names) == list(expected.client_names)
  for name in ("x_train", "y_train", "client_train"):
    np.testing.assert_array_equal(getattr(found, name)[:], getattr(expected, name))
  order = np.argsort(expected.client_test, kind="stable")
  np.testing.assert_array_equal(found.x_test[:], expected.x_test[order])
  np.testing.assert_array_equal(found.client_test, expected.client_test[order])


def test_texts_of_leaf_keep_their_numbers_of_characters(tmp_path):
  lines = dict(x=["abcde", "bcdef"], y=["f", "g"])
  for split in ("train", "test"):
    write_leaf(tmp_path / "leaf", split, 0, users=["u"], user_data=dict(u=lines))
  expected = leaf.load_leaf(tmp_path / "leaf")
  source = f"leaf:{tmp_path / 'leaf'}"
  assert prepare.main([f"--clients={tmp_path / 'clients'}", source]) == 0
  found = data.open_clients(tmp_path / "clients")
  assert found.num_classes == expected.num_classes > found.y_train.max() + 1
  assert found.num_tokens == expected.num_tokens > found.x_train[:].max() + 1


@pytest.mark.parametrize("fault", ["twice", "kinds"])
def test_users_that_a_folder_of_clients_would_lose(tmp_path, capsys, fault):
  """Rows of the first of two files were dropped, and kinds were."""
  rows = dict(users=["u"], user_data=dict(u=dict(x=[[1.0], [2.0]], y=[0, 1])))
  write_leaf(tmp_path, "train", 0, **rows)
  for number in range(1 + (fault == "twice")):
    write_leaf(tmp_path, "test", number, **rows)
  if fault == "kinds":
    write_leaf(tmp_path, "train", 0, **rows, kind_ids=[3])
  assert prepare.main([f"--clients={tmp_path / 'new'}", f"leaf:{tmp_path}"]) != 0
  why = {"twice": "1.json: user 'u' appears twice", "kinds": "has kinds of clients"}
  assert why[fault] in capsys.readouterr().err.splitlines()[-1]


def test_names_of_classes_are_kept(tmp_path, monkeypatch):
  examples = from_arrays(np.ones((6, 2)), ["no", "yes"] * 3, ["a", "b", "a"] * 2)
  monkeypatch.setattr(prepare.federation, "load_examples", lambda options: examples)
  assert prepare.main([f"--clients={tmp_path / 'clients'}", "digits"]) == 0
  found = data.open_clients(tmp_path / "clients")
  assert found.encoding.classes == examples.encoding.classes


@pytest.mark.parametrize(
  ("names", "why"),
  [
    ([], "give one source"),
    (["npz:a.npz", "npz:b.npz"], "give one source"),
    (["CODE"], "a file needs the name"),
    (["CODE:none"], "has no none"),
    (["CODE:number"], "must give clients"),
    (["CODE:broken"], "raises KeyError"),
    (["npz:missing.npz"], "missing.npz"),
    (["digits"], "has no clients"),
    (["digits", "--y=label"], "--y: digits has its clients"),
    (["csv:missing.csv", "--y=ill", "--client=ward"], "no missing.csv"),
    (["CODE:Rows", "--y=1", "--client=9", "--x=0"], "its items have no 9"),
    (["CODE:made", "--y=2"], "--y: "),
    (["CODE:clients", "--data_dir=here"], "--data_dir=here: "),
    (["csv:a.csv", "--y=ill", "--data_dir=here"], "--data_dir=here: "),
    (["digits", "--data_dir=here"], "data_dir=here"),
  ],
)
def test_a_wrong_source_is_one_line(tmp_path, code, capsys, names, why):
  names = [name.replace("CODE", str(code)) for name in names]
  assert prepare.main([f"--clients={tmp_path / 'new'}", *names]) != 0
  lines = capsys.readouterr().err.strip().splitlines()
  assert why in lines[-1] and "Traceback" not in "".join(lines)


@pytest.mark.parametrize(
  "flag",
  ["--client=a", "--y=a", "--x=a", "--test=a", "--classes=a", "--channels_first"],
)
def test_flags_of_rows_need_clients(refused, flag):
  """They were dropped, and a data set was downloaded."""
  assert flag.partition("=")[0] in refused(prepare, ["mnist", flag])
