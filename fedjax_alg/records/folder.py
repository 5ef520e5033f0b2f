"""The files of a run's folder: which there are, and which are whole.

Whatever else is in the folder belongs to the user and is never touched.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import hashlib
import json
import os
import pathlib
import re
from typing import Any

from fedjax_alg import files
from fedjax_alg.errors import OptionError, RunFolderError, reason
from fedjax_alg.records import former, lock
from fedjax_alg.typing import Facts

_CONFIG = "config.json"
#: The entry of summary.json that is the hash of config.json, in any layout.
CONFIG_HASH = "config"
#: The tables that grow while a run is run.
TABLES = ("metrics.csv", "rounds.csv", "timing.csv", "groups.csv")
#: Files of every finished run, beside tables.
_ALWAYS = (_CONFIG, "partition.json", "partition.npz", "final.msgpack")
#: Why a run ended without results, in a line; it goes when the run continues.
_END = "end.txt"
#: Files that a command adds.
FLAGS, CURVES = "flags.txt", ("curves.png", "curves.pdf")
PICTURES = ("partition.png", *CURVES)
#: Every file that a run writes beside those in the two folders below.
FILES = (
  "summary.json",
  *TABLES,
  *_ALWAYS,
  _END,
  FLAGS,
  *PICTURES,
  "clients.csv",
  "assignment.csv",
  "clients.npz",
  "scaler.npz",
  "encoding.json",
  "concepts.cp",
)
#: Files that may be there before a run is: it has just been started, or was
#: killed then.
BEFORE = (lock.NAME, _CONFIG + ".partial")
#: Files whose hashes are in summary.json.
_HASHED = (
  *TABLES,
  "clients.csv",
  "assignment.csv",
  "clients.npz",
  "final.msgpack",
  "partition.json",
  "partition.npz",
  "scaler.npz",
  "encoding.json",
  "concepts.cp",
)
CHECKPOINTS, EVENTS = "checkpoint", "tensorboard"

_PARTIAL = ".partial"
#: A checkpoint, or the rows of tables, which one of several processes may hold.
_CHECKPOINT = re.compile(r"round_\d+\.(ckpt|rows_\d+_of_\d+)(\.partial)?|clients\.rows")
#: Those of other programs have the seconds, in ten digits.
EVENT_FILE = re.compile(r"events\.out\.tfevents\.\d{20}\..*")
_SEED = re.compile(r"seed_\d+")


def find_link(folder: pathlib.Path) -> pathlib.Path | None:
  """Finds a folder in the folder of a run that is a link to another place.

  Args:
    folder: the folder of the run, which may itself be a link.

  Returns:
    The link, through which nothing may be written; None if there is none.
  """
  events = folder / EVENTS
  inside = (
    []
    if events.is_symlink() or not events.is_dir()
    else [path for path in sorted(events.iterdir()) if _SEED.fullmatch(path.name)]
  )
  return next(
    (path for path in (folder / CHECKPOINTS, events, *inside) if path.is_symlink()),
    None,
  )


def _sha256(facts: Mapping[str, object]) -> str:
  return hashlib.sha256(
    json.dumps(
      {name: value for name, value in facts.items() if name != "sha256"}, sort_keys=True
    ).encode()
  ).hexdigest()


def seal(facts: Mapping[str, object]) -> dict[str, object]:
  """The content of config.json or summary.json with its own hash.

  Args:
    facts: values that JSON has, with texts as keys.

  Returns:
    The same and "sha256", of all other entries in any order and layout.
  """
  return dict(facts, sha256=_sha256(json.loads(json.dumps(facts))))


def _unseal(path: pathlib.Path, facts: Mapping[str, object]) -> dict[str, object]:
  """The content of config.json or summary.json, compared with its hash.

  Args:
    path: the file, for the message.
    facts: its content.

  Returns:
    The content without the hash.

  Raises:
    OptionError: it is not as the run wrote it.
  """
  if facts.get("sha256") != _sha256(facts):
    raise OptionError(
      f"{path.parent}: {path.name} is not as the run wrote it "
      "(its hash in it is another); restore it"
    )
  return {name: value for name, value in facts.items() if name != "sha256"}


def read_facts(folder: pathlib.Path, name: str) -> dict[str, Any]:
  """Reads config.json, with options in today's words, or summary.json.

  Raises:
    OSError: it cannot be read.
    ValueError: it holds no dictionary.
    OptionError: it is not as the run wrote it.
  """
  facts = _unseal(folder / name, files.read_json(folder / name))
  return former.in_parts(facts) if name == _CONFIG else facts


def is_run(folder: pathlib.Path) -> bool:
  """Whether config.json is that of a run, and not of another program."""
  try:
    facts = files.read_json(folder / _CONFIG)
  except (OSError, ValueError):
    return False
  return {"identity", "algorithm", "hparams"} <= facts.keys()


def _inside(folder: pathlib.Path, name: re.Pattern) -> Iterator[pathlib.Path]:
  if folder.is_dir() and not folder.is_symlink():
    yield from (path for path in folder.iterdir() if name.fullmatch(path.name))


def remove(folder: pathlib.Path) -> None:
  """Removes the files that a run has written, but for config.json.

  That one tells that the folder is a run's, should the process be killed; the
  next run replaces it.

  Args:
    folder: the folder of the run.
  """
  names = [name for name in FILES if name != _CONFIG]
  paths = [folder / name for name in (*names, *(name + _PARTIAL for name in FILES))]
  inside = [folder / CHECKPOINTS]
  paths += _inside(folder / CHECKPOINTS, _CHECKPOINT)
  for seed in _inside(folder / EVENTS, _SEED):
    paths += _inside(seed, EVENT_FILE)
    inside.append(seed)
  for path in paths:
    if path.is_symlink() or path.is_file():
      path.unlink()
  for path in (*inside, folder / EVENTS):
    with contextlib.suppress(OSError):  # there is none, or it has other files
      path.rmdir()


def write_end(folder: pathlib.Path, why: str) -> None:
  """Writes why a run ended without results; "" removes what was written."""
  if not why:
    (folder / _END).unlink(missing_ok=True)
  elif folder.is_dir():
    with files.replacing(folder / _END) as partial:
      partial.write_text(f"{why}\n", "utf-8")


def read_end(folder: pathlib.Path) -> str:
  """Reads why a run ended without results; "" if it did not say."""
  try:
    return files.read_text(folder / _END).strip()
  except (OSError, OptionError):
    return ""


def hashes(folder: pathlib.Path) -> dict[str, str]:
  """The sha256 of the files with numbers of a run that has been written."""
  return {
    name: files.sha256(folder / name) for name in _HASHED if (folder / name).is_file()
  }


def with_hashes(folder: pathlib.Path, summary: Mapping[str, object]) -> dict[str, Any]:
  """The content of summary.json with the hashes of the other files.

  Args:
    folder: the folder of a run, with all files but summary.json.
    summary: the rest of its content.
  """
  facts = files.read_json(folder / _CONFIG)
  return {**summary, CONFIG_HASH: _sha256(facts), "files": hashes(folder)}


def damage(
  folder: pathlib.Path, summary: Mapping[str, object], names: Iterable[str] = _HASHED
) -> str:
  """Says which file of a finished run is not as the run wrote it.

  Args:
    folder: the folder of the run.
    summary: its summary.json.
    names: the files to look at.

  Returns:
    A line that names the first file that has changed, that is missing though it
    is listed, or that is there though it is not; "" if there is none.

  Raises:
    OSError: a file cannot be read.
    ValueError: config.json is no JSON, or ``summary`` does not list the files.
  """
  if summary.get(CONFIG_HASH) != _sha256(files.read_json(folder / _CONFIG)):
    return (
      f"{_CONFIG} is not as the run wrote it (its hash in summary.json is another); "
      "restore it"
    )
  listed = summary.get("files")
  if not isinstance(listed, dict):
    raise ValueError("files")
  for name in names:
    is_there = os.path.lexists(folder / name)
    if name not in listed:
      if is_there:
        return f"{name} is not of this run (summary.json does not list it); remove it"
    elif not is_there:
      return f"{name} is missing, which summary.json lists; restore it"
    elif files.sha256(folder / name) != listed[name]:
      return (
        f"{name} is not as the run wrote it (its hash in summary.json is another); "
        "restore it"
      )
  return ""


def read_finished(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads config.json and summary.json of a finished run, and checks all files.

  Whoever reads a finished run begins here, so that no file is believed that the
  run has not written.

  Args:
    folder: the folder of the run.

  Returns:
    The contents of both.

  Raises:
    RunFolderError: there is no finished run, or a file is damaged or missing.
  """
  facts, summary = (read_sealed(folder, name) for name in (_CONFIG, "summary.json"))
  try:
    why = damage(folder, summary)
  except OSError as error:
    why = reason(error)
  except ValueError:
    why = "damaged, cannot be read"
  if why:
    raise RunFolderError(f"{folder}: {why}")
  return facts, summary


def read_sealed(folder: pathlib.Path, name: str) -> dict[str, Any]:
  """Reads config.json or summary.json of a run, as ``read_facts``.

  Raises:
    RunFolderError: there is none, or it is damaged.
  """
  try:
    return read_facts(folder, name)
  except OptionError as error:
    raise RunFolderError(str(error)) from None
  except FileNotFoundError:
    raise RunFolderError(f"{folder}: holds no finished run (no {name})") from None
  except (OSError, ValueError, RecursionError) as error:
    raise RunFolderError(f"{folder / name}: damaged, cannot be read") from error


def is_complete(
  folder: pathlib.Path, summary: Facts, further: Sequence[str] = ()
) -> bool:
  """Whether every file of a finished run is there and has not changed.

  Checkpoints may be missing: only a run that goes on needs them.

  Args:
    folder: the folder of the run.
    summary: its summary.json.
    further: files that a command adds, which must be there, too.

  Raises:
    OSError: a file cannot be read.
    ValueError: config.json is damaged, or not as the run wrote it.
    KeyError, TypeError, AttributeError: summary.json lacks an entry.
  """
  read_facts(folder, _CONFIG)
  if not all(
    isinstance(summary[name], dict)
    for name in ("final", "best", "cost", "timing", "hashes")
  ):
    return False
  return all(os.path.getsize(folder / name) for name in (*_ALWAYS, *further)) and (
    not damage(folder, summary)
  )
