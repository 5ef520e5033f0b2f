"""The folder of a command's run: what is kept, refused, and whole after every fault.

What the store does by itself is in tests/runs/test_store.py. The runs share one
compiled program, and pictures are drawn by a stand-in.
"""

import builtins
import functools
import io
import json
import os
import pathlib
import shutil
import sys

import numpy as np
import pytest

from experiments import run
from experiments.cli import config, execute, writer
from experiments.cli.config import Config
from fedjax_alg import files
from fedjax_alg.engine import checkpoint
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock

WORDS = (
  "--algorithm=fedavg",
  "--dataset=digits",
  "--partition=classes",
  "--num_clients=20",
  "--cohort_size=4",
  "--eval_every=1",
  "--rounds=2",
  "--eval_protocols=global",
  "--noprogress",
)


#: (identity, rounds) -> what is prepared once.
_PREPARED = {}


@functools.cache
def _parse(words, parse=config.parse_config):
  """A command line is parsed once; one that is refused, each time."""
  return parse(words)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):

  def draw(paths, *args):
    for path in paths if isinstance(paths, list) else [paths]:
      with files.replacing(path) as partial:
        partial.write_bytes(b"picture")

  real = Config.prepare

  def prepare(config):
    key = config.identity, config.run.rounds
    if key not in _PREPARED:
      _PREPARED[key] = real(config)
    return _PREPARED[key]

  monkeypatch.setattr(writer.plots, "run_curves", draw)
  monkeypatch.setattr(writer.plots, "histogram", draw)
  monkeypatch.setattr(Config, "prepare", prepare)
  monkeypatch.setattr(run.config_lib, "parse_config", lambda argv: _parse(tuple(argv)))
  monkeypatch.setattr(writer, "_PARTITION_PLOTS", {})


def play(folder, *words):
  return run.main([*WORDS, f"--out_dir={folder}", *words])


@pytest.fixture(name="run_folder", scope="module")
def _run_folder(tmp_path_factory):
  return tmp_path_factory.mktemp("runs") / "kept"


@pytest.fixture(name="reference")
def _reference(run_folder):
  """A finished run, which tests only read."""
  assert run_folder.exists() or play(run_folder) == 0
  return run_folder


@pytest.fixture(name="folder")
def _folder(reference, tmp_path):
  """A copy of it."""
  shutil.copytree(reference, tmp_path / "run")
  return tmp_path / "run"


def content(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file()
  }


def refusal(capsys, folder, *words, status=2):
  """The line that a command ends with, which changes nothing."""
  before = content(folder) if folder.is_dir() else None
  capsys.readouterr()
  assert play(folder, *words) == status
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1 and lines[0].startswith("error: "), lines
  assert before is None or content(folder) == before
  return lines[0].removeprefix("error: ")


def same_results(folder, reference):
  """Whether a folder has the files and the bits of the uninterrupted run."""

  def shape(place):
    return {name for name in content(place) if "notes" not in name}

  hashes = [
    files.read_json(place / "summary.json")["hashes"]["final_state"]
    for place in (folder, reference)
  ]
  return (
    shape(folder) == shape(reference)
    and hashes[0] == hashes[1]
    and all(
      (folder / name).read_bytes() == (reference / name).read_bytes()
      for name in ("metrics.csv", "rounds.csv")
    )
  )


def edit(path, change):
  facts = files.read_json(path)
  change(facts)
  path.write_text(json.dumps(run_files.seal(facts)), encoding="utf-8")


# --overwrite


def test_an_error_leaves_the_old_run(folder, capsys, monkeypatch):
  message = refusal(capsys, folder, "--overwrite", "--num_clients=5000")
  assert "--num_clients=5000" in message

  def fails(prepared, notice):
    raise MemoryError("too large")

  monkeypatch.setattr(execute, "Programs", fails)
  assert "memory" in refusal(capsys, folder, "--overwrite", status=1)


def test_overwrite_keeps_the_files_of_the_user(folder, reference):
  (folder / "notes.txt").write_text("mine")
  (folder / "checkpoint" / "notes").write_text("mine")
  (folder / "groups.csv").write_text("of another algorithm")
  (folder / "clients.csv.partial").write_text("of a killed run")
  assert play(folder, "--overwrite") == 0
  assert (folder / "notes.txt").read_text() == "mine"
  assert (folder / "checkpoint" / "notes").read_text() == "mine"
  assert same_results(folder, reference)


@pytest.mark.parametrize(
  "text,why",
  [
    ('{"name": "my-package"}', "not a run's"),
    ("[" * 100_000, "config.json is damaged"),
    (None, "no config.json"),
  ],
)
def test_a_folder_of_something_else(tmp_path, capsys, text, why):
  """Neither gone on with nor replaced."""
  (tmp_path / "thesis.tex").write_text("mine")
  if text is not None:
    (tmp_path / "config.json").write_text(text)
  for words in ((), ("--overwrite",)):
    line = refusal(capsys, tmp_path, *words)
    assert line.startswith(f"--out_dir={tmp_path}: ") and why in line


# Links


@pytest.mark.parametrize(
  "name",
  [
    "flags.txt.partial",
    "metrics.csv.partial",
    "summary.json.partial",
    "config.json.partial",
    "partition.png",
    "curves.png",
    "metrics.csv",
    "checkpoint/round_00000002.ckpt.partial",
    "final.msgpack",
    "summary.json",
  ],
)
def test_nothing_is_written_through_a_link(folder, tmp_path, reference, name):
  target = tmp_path / "other"
  target.write_text("mine")
  for path in (folder / name, folder / "summary.json"):
    path.unlink(missing_ok=True)
  (folder / name).symlink_to(target)
  words = ("--overwrite",) if name == "metrics.csv" else ()
  if name.startswith("checkpoint"):
    (folder / "checkpoint" / "round_00000002.ckpt").unlink()
  assert play(folder, *words) == 0
  assert target.read_text() == "mine"
  assert not any(path.is_symlink() for path in folder.rglob("*"))
  assert same_results(folder, reference)


def test_folders_that_are_links_are_refused(folder, reference, tmp_path, capsys):
  for name in ("checkpoint", "tensorboard", "tensorboard/seed_1"):
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(reference / "checkpoint")
    for words in ((), ("--overwrite",)):
      line = refusal(capsys, folder, *words)
      assert line.startswith(f"--out_dir={folder}: {name} is a link")
    (folder / name).unlink()
  (tmp_path / "other").write_text("mine")
  (folder / "run.lock").symlink_to(tmp_path / "other")
  assert "run.lock" in refusal(capsys, folder, status=1)
  assert (tmp_path / "other").read_text() == "mine"
  (folder / "run.lock").unlink()
  (tmp_path / "link").symlink_to(folder)  # the folder itself may be one
  assert play(tmp_path / "link", "--overwrite") == 0
  assert same_results(folder, reference) and (tmp_path / "link").is_symlink()


# States of a folder


def test_what_a_kill_has_left_of_a_checkpoint_is_removed_as_it_goes_on(folder):
  """Of a round that is not saved again: nothing else would remove it."""
  (newest,) = checkpoint.checkpoint_paths(folder / "checkpoint")[:1]
  partial = newest.with_name("round_00000001.ckpt.partial")
  partial.write_bytes(newest.read_bytes()[:100])
  foreign = newest.with_name("round_00000009.ckpt.partial")
  foreign.write_text("mine")
  assert play(folder, "--rounds=3") == 0
  assert not partial.exists() and foreign.read_text() == "mine"


@pytest.mark.parametrize("make", [lambda path: path.write_text("my notes"), os.mkfifo])
def test_a_lock_is_not_put_in_the_place_of_something_else(tmp_path, capsys, make):
  """It would be emptied, and removed in the end."""
  make(tmp_path / "run.lock")
  for words in ((), ("--overwrite",)):
    assert "run.lock is " in refusal(capsys, tmp_path, *words, status=1)
  assert (tmp_path / "run.lock").exists()


@pytest.mark.filterwarnings("always:.*starts again at round 0")
@pytest.mark.parametrize("words", [(), ("--overwrite",)])
@pytest.mark.parametrize(
  "present",
  [
    (),
    ("run.lock",),
    ("config.json.partial",),
    ("config.json",),
    ("config.json", "flags.txt.partial"),
    ("config.json", "flags.txt", "partition.json", "partition.npz"),
    ("config.json", "metrics.csv"),
    ("config.json", "metrics.csv", "rounds.csv", "timing.csv", "checkpoint"),
  ],
)
def test_every_state_before_the_first_checkpoint(
  reference, tmp_path, capsys, present, words
):
  (tmp_path / "run").mkdir()
  for name in present:
    if name == "checkpoint":
      (tmp_path / "run" / name).mkdir()
    elif (reference / name).is_file():
      shutil.copy(reference / name, tmp_path / "run")
    else:
      (tmp_path / "run" / name).write_text(
        "{" if ".json" in name else "47"
      )  # which are cut off
  assert play(tmp_path / "run", *words) == 0
  assert same_results(tmp_path / "run", reference)
  message = capsys.readouterr().err
  assert ("starts again at round 0" in message) == (
    not words and "config.json" in present
  )


@pytest.mark.filterwarnings("always:.*starts again at round 0")
@pytest.mark.parametrize(
  "name, says", [("x_train", "data"), ("client_train", "partition"), ("", "")]
)
def test_other_data_are_not_gone_on_with(tmp_path, capsys, name, says):
  """A file that was written again has the path that the flags name."""
  rng = np.random.default_rng(0)
  arrays = {
    "x_train": rng.normal(size=(40, 3)).astype(np.float32),
    "y_train": np.arange(40) % 2,
    "client_train": np.arange(40) % 8,
    "x_test": rng.normal(size=(16, 3)).astype(np.float32),
    "y_test": np.arange(16) % 2,
    "client_test": np.arange(16) % 8,
  }
  path, folder = tmp_path / "mine.npz", tmp_path / "run"
  words = (
    f"--dataset=npz:{path}",
    "--partition=natural",
    "--features=standardize",
    "--num_clients=8",
  )
  np.savez(path, **arrays)
  assert play(folder, *words) == 0
  fed = _PREPARED[
    _parse((*WORDS, f"--out_dir={folder}", *words)).identity, 2
  ].federation
  with np.load(folder / "scaler.npz") as stored:
    for key in ("mean", "factor"):
      np.testing.assert_array_equal(stored[key], getattr(fed.scaler, key))
  if name:
    arrays[name] = np.roll(arrays[name], 1, axis=0)
  np.savez(path, **arrays)
  _PREPARED.clear()
  if not says:
    assert play(folder, *words, "--rounds=3") == 0
    return
  line = refusal(capsys, folder, *words, "--rounds=3")
  assert line.startswith(f"--out_dir={folder}: its {says} changed")
  shutil.rmtree(folder / "checkpoint")
  (folder / "checkpoint").mkdir()
  for path in (folder / "summary.json", *folder.glob("*.csv")):
    path.unlink()
  assert play(folder, *words, "--rounds=3") == 0  # it starts again, with these


@pytest.mark.parametrize(
  "name",
  sorted(
    set(run_files.FILES)
    - {
      "groups.csv",
      "clients.csv",
      "assignment.csv",
      "clients.npz",
      "concepts.cp",
      "scaler.npz",
      "encoding.json",
      "metrics.csv",
      "rounds.csv",
      "timing.csv",
      "config.json",
      "end.txt",
    }
  ),
)
def test_a_file_that_is_missing_is_made_again(folder, reference, name, capsys):
  (folder / name).unlink()
  assert play(folder) == 0
  assert "nothing to do" not in capsys.readouterr().err
  assert same_results(folder, reference)
  assert play(folder) == 0
  assert "finished, nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize(
  "change",
  [
    lambda facts: facts.pop("final"),
    lambda facts: facts.pop("timing"),
    lambda facts: facts.update(identity="0"),
    lambda facts: facts.update(cost=3),
  ],
)
def test_a_damaged_summary_is_made_again(folder, reference, change):
  edit(folder / "summary.json", change)
  assert play(folder) == 0
  assert same_results(folder, reference)
  assert "final" in files.read_json(folder / "summary.json")


# Tables


@pytest.mark.parametrize("name", ["metrics", "rounds", "timing"])
def test_other_tables_are_refused_before_compiling(folder, capsys, monkeypatch, name):
  """All kinds of edits are in tests/records/test_tables.py."""
  monkeypatch.setattr(Config, "prepare", None)
  path = folder / f"{name}.csv"
  lines = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b"".join(lines[:-1]))
  line = refusal(capsys, folder)
  assert line.startswith(f"{path}: edited or cut") and "--overwrite" in line
  path.unlink()
  assert f"{path}: is missing" in refusal(capsys, folder)


def test_a_checkpoint_folder_that_was_deleted(folder, capsys):
  shutil.rmtree(folder / "checkpoint")
  assert play(folder) == 0  # it is finished all the same
  picture = (folder / "curves.png").read_bytes()
  (folder / "curves.png").unlink()
  assert "is gone" in refusal(capsys, folder)  # the rounds are not run again for it
  (folder / "curves.png").write_bytes(picture)
  (folder / "summary.json").unlink()
  line = refusal(capsys, folder)
  assert line.startswith(f"{folder}/checkpoint: is gone") and "--overwrite" in line
  (folder / "checkpoint").mkdir()
  (folder / "summary.json").write_text("{}")
  assert "is gone" in refusal(capsys, folder)


def test_no_summary_while_a_run_goes_on(folder, monkeypatch):
  """Its tables soon have more rounds."""

  def fails(*args):
    raise KeyboardInterrupt

  monkeypatch.setattr(checkpoint, "save", fails)
  assert play(folder, "--rounds=3") == 130
  assert not (folder / "summary.json").exists()


def test_a_config_that_was_edited_is_refused_before_compiling(
  folder, reference, capsys, monkeypatch
):
  """Its flags are not those of the run; --overwrite does not need them."""
  config = folder / "config.json"
  text = config.read_text("utf-8")
  assert '"client_lr": 0.1' in text
  config.write_text(text.replace('"client_lr": 0.1', '"client_lr": 0.7'))
  for gone in ("nothing", "summary.json"):  # finished, and not
    (folder / gone).unlink(missing_ok=True)
    with monkeypatch.context() as nothing_runs:
      nothing_runs.setattr(Config, "prepare", None)
      assert f"{folder}: config.json is not as the run" in refusal(capsys, folder)
  assert play(folder, "--overwrite") == 0
  assert same_results(folder, reference)


# Devices


def test_other_devices(tmp_path, all_devices, monkeypatch, capsys):
  """Two devices, then those of here, then two others, and here again."""
  del all_devices
  monkeypatch.setattr(sys.modules[__name__], "_PREPARED", {})
  folder, reference = tmp_path / "run", tmp_path / "whole"
  assert play(reference) == 0
  shutil.copytree(reference, folder)
  machine = files.read_json(folder / "config.json")["machine"]
  assert machine["devices"] == 4 and machine["map_clients"] == "sequential"
  assert machine["draw"] == "permutation, version 1"
  (folder / "summary.json").unlink()
  config = folder / "config.json"
  edit(config, lambda facts: facts["machine"].update(devices=2, jax="0.1"))
  line = refusal(capsys, folder)
  assert line.startswith(f"--out_dir={folder}: ") and "--allow_other_devices" in line
  assert "devices 2, here 4" in line and f"jax 0.1, here {machine['jax']}" in line
  assert play(folder, "--allow_other_devices") == 0
  assert same_results(folder, reference)
  for name in ("config.json", "summary.json"):
    assert files.read_json(folder / name)["resumed_on"] == [{"round": 2, **machine}]
  assert files.read_json(config)["machine"]["devices"] == 2
  assert play(folder, "--rounds=3") == 0  # on these devices again
  assert len(files.read_json(folder / "summary.json")["resumed_on"]) == 1
  assert play(folder, "--overwrite") == 0
  assert files.read_json(config)["machine"] == machine
  assert "resumed_on" not in files.read_json(folder / "summary.json")


# Folders that cannot be used


def test_unusable_folders_are_refused_before_compiling(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(Config, "prepare", None)
  file = tmp_path / "file"
  file.write_text("mine")
  assert refusal(capsys, file) == f"--out_dir={file}: is a file"
  assert "cannot be written" in refusal(capsys, file / "run")
  proc = pathlib.Path("/proc/run")
  assert "/proc/run" in refusal(capsys, proc, status=2 if os.getuid() else 1)
  monkeypatch.setattr(os, "access", lambda *args: False)
  assert "cannot be written" in refusal(capsys, tmp_path / "run")


def test_a_folder_of_events_that_another_program_writes(folder, capsys):
  """It is found before the files of the run are touched."""
  (folder / "tensorboard" / "seed_0").mkdir(parents=True)
  (folder / "tensorboard" / "seed_0" / "events.out.tfevents.1712345678.a").touch()
  before = content(folder)
  assert play(folder, "--tensorboard", "--rounds=3") == 2
  *_, line = capsys.readouterr().err.splitlines()
  assert line.startswith("error: ") and "seed_0" in line
  assert content(folder) == before


# A fault at every file operation


class Faults:
  """Counts the file operations in a folder; one fails, or all from one on."""

  def __init__(self, folder, monkeypatch):
    self._folder, self.count, self._failing = str(folder), 0, None
    for module, name in (
      (os, "replace"),
      (os, "unlink"),
      (os, "mkdir"),
      (os, "open"),
      (os, "rmdir"),
      (os, "fsync"),
      (builtins, "open"),
      (io, "open"),
    ):
      monkeypatch.setattr(
        module,
        name,
        self._wrap(
          getattr(module, name),
          module is not os,
          1 if name == "replace" else None if name == "fsync" else 0,
        ),
      )

  def arm(self, failing):
    """From now on the operations of these numbers fail; None: none counts."""
    self.count, self._failing = 0, failing

  def _wrap(self, real, with_mode, where):

    def operation(*args, **kwargs):
      mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
      inside = where is None or (
        not isinstance(args[where], int)
        and os.fspath(args[where]).startswith(self._folder)
        and not (with_mode and mode in ("r", "rb"))
      )
      if inside and self._failing is not None:
        self.count += 1
        if self.count in self._failing:
          raise OSError(5, "Input/output error")
      return real(*args, **kwargs)

    return operation


@pytest.mark.filterwarnings("always:.*starts again at round 0")
@pytest.mark.parametrize("killed", [False, True])
def test_a_fault_at_every_file_operation(
  tmp_path, reference, monkeypatch, capsys, killed
):
  """The run is gone on with, to the bits of one without faults.

  Every second operation is the last before the process is killed, the others
  fail alone.
  """
  folder = tmp_path / "run"
  faults = Faults(folder, monkeypatch)
  faults.arm(())
  assert play(folder) == 0
  total = faults.count
  assert total > 50
  stopped = 0
  for number in range(1 + killed, total + 1, 2):
    shutil.rmtree(folder)
    faults.arm(range(number, 10**9) if killed else (number,))
    status = play(folder)
    message = capsys.readouterr().err
    assert status in (0, 1, 2) and "not foreseen" not in message, message
    stopped += status != 0
    faults.arm(None)
    lock.release_all()
    if not status and killed:
      assert number > total - 5  # the lock is released at the end
    folder.mkdir(exist_ok=True)
    assert play(folder) == 0, (number, capsys.readouterr().err)
    assert same_results(folder, reference), number
  assert stopped > 0.4 * total
