"""Which files of a folder are a run's, and which of them are whole."""

import json
import pathlib
import re

import pytest

from fedjax_alg import files
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


def test_whole(folder):
  summary = dict.fromkeys(("final", "best", "cost", "timing", "hashes"), {})
  summary["files"] = run_files.hashes(folder)
  assert set(summary["files"]) == set(run_files.FILES) - {
    "summary.json",
    "config.json",
    "flags.txt",
    "partition.png",
    "curves.png",
    "curves.pdf",
  }
  assert run_files.is_complete(folder, summary)
  (folder / "clients.csv").write_text("{} ", encoding="utf-8")
  assert not run_files.is_complete(folder, summary)
  summary["files"]["clients.csv"] = files.sha256(folder / "clients.csv")
  assert run_files.is_complete(folder, summary)
  (folder / "curves.pdf").unlink()
  assert run_files.is_complete(folder, summary, pictures=False)
  with pytest.raises(FileNotFoundError):
    run_files.is_complete(folder, summary)
  with pytest.raises(KeyError):
    run_files.is_complete(folder, json.loads('{"final": {}}'))


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
  assert not run_files.damage(folder, {})  # of an earlier version


def test_whole_of_an_earlier_version(folder):
  """It has no hashes, and may have fewer files."""
  summary = dict.fromkeys(("final", "best", "cost", "timing", "hashes"), {})
  (folder / "curves.pdf").unlink()
  assert run_files.is_complete(folder, summary)
  (folder / "groups.csv").unlink()
  assert run_files.is_complete(folder, summary)
  with pytest.raises(FileNotFoundError):
    run_files.is_complete(folder, summary | {"groups": {}})
