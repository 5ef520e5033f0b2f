"""Which files of a folder are a run's, and which of them are whole."""

import json
import pathlib
import re

import pytest

from fedjax_alg import files
from fedjax_alg.errors import OptionError
from fedjax_alg.records import folder as run_files

pytestmark = pytest.mark.fast

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "run_folder.md"


def test_the_list_is_that_of_the_page():
  table = PAGE.read_text("utf-8").split("| file | what |")[1].split("\n\n")[0]
  documented = {
    name
    for line in table.strip().splitlines()
    for name in re.findall(r"`([^`]+)`", line.split("|")[1])
  }
  assert documented == {*run_files.FILES, "run.lock", "checkpoint/", "tensorboard/"}


#: Files of the user.
OTHERS = (
  "notes.txt",
  "curves.png.txt",
  "checkpoint/round_best.ckpt",
  "checkpoint/round_1.rows_mine",
  "tensorboard/seed_0/notes",
  "tensorboard/seed_0/events.out.tfevents.1712345678.host.7.0",
  "tensorboard/other/events.out",
  "metrics/metrics.csv",
)


@pytest.fixture(name="folder")
def _folder(tmp_path):
  """A folder with every file of a run, and files of the user beside them."""
  folder = tmp_path / "run"
  for name in (
    *run_files.FILES,
    "metrics.csv.partial",
    "checkpoint/round_00000002.ckpt",
    "checkpoint/round_00000004.ckpt.partial",
    "checkpoint/round_00000004.rows_0_of_2",
    "checkpoint/round_00000004.rows_1_of_2.partial",
    f"tensorboard/seed_0/events.out.tfevents.{12:020}.host",
    *OTHERS,
  ):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}", encoding="utf-8")
  return folder


def test_files_of_others_stay(folder):
  run_files.remove(folder)
  assert {
    str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
  } == {"config.json", *OTHERS}


def test_without_files_of_others_no_folder_is_left(tmp_path):
  (tmp_path / "checkpoint").mkdir()
  (tmp_path / "tensorboard" / "seed_0").mkdir(parents=True)
  run_files.remove(tmp_path)
  assert not list(tmp_path.iterdir())
  run_files.remove(tmp_path)


@pytest.mark.parametrize(
  "text,ours",
  [
    ('{"identity": null, "algorithm": "fedavg", "hparams": {}}', True),
    ('{"name": "my-package", "scripts": {}}', False),
    ("[1]", False),
    ("[" * 100_000, False),
    ("", False),
  ],
)
def test_whose_config_it_is(tmp_path, text, ours):
  (tmp_path / "config.json").write_text(text, encoding="utf-8")
  assert run_files.is_run(tmp_path) == ours


@pytest.fixture(name="sealed")
def _sealed(folder):
  """The same; config.json has its hash, as a run writes it."""
  config = folder / "config.json"
  config.write_text(json.dumps(run_files.seal({"identity": "0"})), encoding="utf-8")
  return folder


#: Entries that every summary.json has.
ENTRIES = dict.fromkeys(("final", "best", "cost", "timing", "hashes"), {})


def test_whole(sealed):
  summary = run_files.with_hashes(sealed, ENTRIES)
  assert set(summary["files"]) == set(run_files.FILES) - {
    "summary.json",
    "config.json",
    "flags.txt",
    "end.txt",
    "partition.png",
    "curves.png",
    "curves.pdf",
  }
  assert run_files.is_complete(sealed, summary, (run_files.FLAGS, *run_files.PICTURES))
  (sealed / "clients.csv").write_text("{} ", encoding="utf-8")
  assert not run_files.is_complete(sealed, summary)
  summary["files"]["clients.csv"] = files.sha256(sealed / "clients.csv")
  assert run_files.is_complete(sealed, summary)
  assert not run_files.is_complete(sealed, summary | {"cost": 3})
  for entry in (*ENTRIES, "files"):
    lacking = {name: value for name, value in summary.items() if name != entry}
    with pytest.raises((KeyError, ValueError), match=entry):
      run_files.is_complete(sealed, lacking)


def test_files_of_a_command_are_wanted_where_it_asks_for_them(sealed):
  summary = run_files.with_hashes(sealed, ENTRIES)
  for name in (run_files.FLAGS, *run_files.PICTURES):
    (sealed / name).write_bytes(b"")
    assert not run_files.is_complete(sealed, summary, (name,))
    (sealed / name).unlink()
    with pytest.raises(FileNotFoundError):
      run_files.is_complete(sealed, summary, (name,))
  assert run_files.is_complete(sealed, summary)


@pytest.mark.parametrize(
  "name", ["config.json", "partition.json", "partition.npz", "final.msgpack"]
)
def test_files_that_every_run_has_are_wanted_by_all(sealed, name):
  """Also where summary.json does not list them."""
  summary = run_files.with_hashes(sealed, ENTRIES)
  summary["files"].pop(name, None)
  (sealed / name).unlink()
  with pytest.raises(FileNotFoundError):
    run_files.is_complete(sealed, summary)


def test_a_config_that_was_edited_is_not_whole(sealed):
  """Neither one with its hash taken out, nor one with a hash of its own."""
  config = sealed / "config.json"
  summary = run_files.with_hashes(sealed, ENTRIES)
  for facts in ({"identity": "0"}, {"identity": "1", "sha256": "0"}):
    config.write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(OptionError, match="config.json is not as the run wrote it"):
      run_files.is_complete(sealed, summary)
  config.write_text(json.dumps(run_files.seal({"identity": "1"})), encoding="utf-8")
  assert not run_files.is_complete(sealed, summary)


def test_why_a_run_ended_is_a_line_that_goes(tmp_path):
  assert run_files.read_end(tmp_path) == ""
  run_files.write_end(tmp_path, "diverged in round 3")
  assert (tmp_path / "end.txt").read_text("utf-8") == "diverged in round 3\n"
  assert run_files.read_end(tmp_path) == "diverged in round 3"
  run_files.write_end(tmp_path, "")
  assert run_files.read_end(tmp_path) == "" and not list(tmp_path.iterdir())
  run_files.write_end(tmp_path, "")
  run_files.write_end(tmp_path / "gone", "its folder was removed")
  assert not (tmp_path / "gone").exists()
  (tmp_path / "end.txt").write_bytes(b"\xff")
  assert run_files.read_end(tmp_path) == ""


def test_every_file_that_is_listed_is_there_as_it_was(folder):
  """And none that is not: class names that were added would be believed."""
  (folder / "encoding.json").unlink()
  summary = run_files.with_hashes(folder, {})
  assert not run_files.damage(folder, summary)
  for name in (*summary["files"], "config.json"):
    before = (folder / name).read_bytes()
    (folder / name).write_bytes(b'{"changed": 1}')
    assert run_files.damage(folder, summary).startswith(f"{name} is not as the run")
    (folder / name).write_bytes(before)
  for name in summary["files"]:
    (folder / name).rename(folder / "away")
    assert run_files.damage(folder, summary).startswith(f"{name} is missing")
    (folder / "away").rename(folder / name)
  (folder / "config.json").write_text("{ }", "utf-8")  # the same in another layout
  assert not run_files.damage(folder, summary)
  (folder / "encoding.json").write_text("{}", "utf-8")
  assert run_files.damage(folder, summary).startswith(
    "encoding.json is not of this run"
  )
  for lists in ({}, {"files": None}, {"files": []}):
    with pytest.raises(ValueError):
      run_files.damage(folder, {"config": summary["config"], **lists})
  assert run_files.damage(folder, {}).startswith("config.json is not as the run")
