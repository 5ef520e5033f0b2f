"""Event files, read back by TensorBoard's own reader."""

import sys
import types

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.runs import store
from tests.fuzzing import NAMES

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing import event_accumulator  # noqa: E402

PROGRAMS = types.SimpleNamespace(prepared=types.SimpleNamespace(seeds=(4, 7)))


def step(number, values, count=2, recorded=(0,), last=False):
  """What the callback reads of a Step, with a row for each value."""
  values = np.asarray(values, float)
  return types.SimpleNamespace(
    round=number,
    count=count,
    seeds=(4, 7),
    recorded=recorded,
    last=last,
    metrics={
      "global": {"accuracy": values, "loss": 10 * values},
      "mine": {"sums": np.zeros((2, 3))},
    },
  )


def read(folder):
  """tag -> [(step, value)]."""
  events = event_accumulator.EventAccumulator(str(folder))
  events.Reload()
  return {
    tag: [(event.step, event.value) for event in events.Scalars(tag)]
    for tag in events.Tags()["scalars"]
  }


def test_a_point_for_each_evaluation_and_seed(tmp_path):
  board = fa.tensorboard(tmp_path)
  board(step(2, [0.25, np.nan]))
  board(step(4, [0.5, 0.75], last=True))
  assert sorted(path.name for path in tmp_path.iterdir()) == ["seed_4", "seed_7"]
  assert read(tmp_path / "seed_4") == {
    "global/accuracy": [(2, 0.25), (4, 0.5)],
    "global/loss": [(2, 2.5), (4, 5.0)],
  }
  assert read(tmp_path / "seed_7")["global/accuracy"] == [(4, 0.75)]


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path):
  """Before the training, and not at its first evaluation."""
  (tmp_path / "file").write_text("x")
  with pytest.raises(fa.OptionError, match="^folder=.*file/in: cannot be made"):
    fa.tensorboard(tmp_path / "file" / "in")


@pytest.mark.parametrize(
  "make, pattern",
  [
    (lambda seed: seed.write_text("mine"), "cannot be made"),
    (
      lambda seed: (
        seed.mkdir(),
        (seed / "events.out.tfevents.1712345678.a.1.0").write_text("mine"),
      ),
      "seed_7 has event files of another program",
    ),
  ],
)
def test_the_points_of_another_program_are_not_replaced(tmp_path, make, pattern):
  """They are found before the training; our own are replaced."""
  board = fa.tensorboard(tmp_path)
  for _ in range(2):
    board.start(PROGRAMS, (), [""], 0)
    board(step(2, [1.0, 1.0], last=True))
  folder = tmp_path / "setting" / "seed_7"
  folder.parent.mkdir()
  make(folder)
  with pytest.raises(fa.OptionError, match=pattern):
    board.start(PROGRAMS, (), ["setting"], 0)
  with pytest.raises(fa.OptionError, match="^folder=: empty"):
    fa.tensorboard("")


def test_a_run_that_goes_on_replaces_what_follows(tmp_path):
  """Interrupted after round 6 with a checkpoint of round 4."""
  board = fa.tensorboard(tmp_path)
  for number in (2, 4, 6):
    board(step(number, [number / 8, 0.0]))
  resumed = fa.tensorboard(tmp_path)
  for number in (6, 8):
    resumed(step(number, [number / 16, 0.0]))
  assert read(tmp_path / "seed_4")["global/accuracy"] == [
    (2, 0.25),
    (4, 0.5),
    (6, 0.375),
    (8, 0.5),
  ]
  fa.tensorboard(tmp_path)(step(2, [1.0, 1.0]))  # from the start
  assert read(tmp_path / "seed_4")["global/accuracy"] == [(2, 1.0)]


def test_settings_have_folders_and_end_on_their_own(tmp_path):
  board = fa.tensorboard(tmp_path)
  board.start(PROGRAMS, (), ["lr=1", "lr=2"], 0)
  board(step(2, [0.25, 0.5, 0.75, 1.0], recorded=(0, 1)))
  board(step(4, [0.0, 0.0, 0.5, 0.25], recorded=(1,), last=True))
  assert read(tmp_path / "lr=1" / "seed_7")["global/accuracy"] == [(2, 0.5)]
  assert read(tmp_path / "lr=2" / "seed_7")["global/accuracy"] == [(2, 1.0), (4, 0.25)]


def test_without_the_package_one_line_says_what_to_install(monkeypatch, tmp_path):
  for name in list(sys.modules):
    if name.partition(".")[0] == "tensorboard":
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, "tensorboard", None)
  with pytest.raises(fa.OptionError, match="pip install tensorboard"):
    fa.tensorboard(tmp_path)


def test_the_folders_of_settings_stay_inside(tmp_path):
  """The values of a setting may have any characters that a value may have."""
  names = [
    store.folder_name(f"hidden={name}")
    for name in NAMES
    if "\0" not in name and len(name) < 200 and name.isprintable()
  ]
  writer = fa.tensorboard(tmp_path)
  writer.start(PROGRAMS, [], names, 0)
  folders = {path.parent for path in tmp_path.rglob("seed_4")}
  assert folders == {tmp_path / name for name in names}
