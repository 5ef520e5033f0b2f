"""Checks the output folder of a run, and keeps other processes out of it."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import shlex
import shutil

from fedjax_alg.files import expanded
from . import lock
from .config import Config, UsageError

#: Files that may be there before a run is: it has just been started, or was
#: killed then.
_BEFORE = (lock.NAME, "config.json.partial")


def resume_words(folder: pathlib.Path) -> str:
  """The flags that go on with the run in a folder."""
  return shlex.join([f"--flagfile={folder / 'flags.txt'}",
                     f"--out_dir={folder}", "--resume"])


@contextlib.contextmanager
def taken(config: Config) -> Iterator[tuple[pathlib.Path, bool]]:
  """Holds the output folder, so that no other process plays the run in it.

  Nothing is written but the lock; with --overwrite the run in the folder is
  deleted.

  Args:
    config: the run.

  Yields:
    The folder, and whether the run in it is to be resumed.

  Raises:
    UsageError: the folder holds something else, or cannot be written.
    HeldError: another process plays the run.
  """
  folder = expanded(config.out_dir)
  if folder.exists() and not folder.is_dir():
    raise UsageError(f"--out_dir={folder}: is a file")
  parent = folder
  while not parent.exists():
    parent = parent.parent
  if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
    raise UsageError(f"--out_dir={folder}: cannot be written")
  with lock.held(folder):
    yield folder, _prepare(config, folder)


def _prepare(config: Config, folder: pathlib.Path) -> bool:
  """Whether the run in a folder that is held is to be resumed."""
  held = [path for path in folder.iterdir() if path.name not in _BEFORE]
  if held and not (config.output.resume or config.output.overwrite):
    raise UsageError(f"--out_dir={folder}: not empty (give --resume to go on, "
                     "--overwrite to start anew, or another folder)")
  known = (folder / "config.json").is_file()
  if held and config.output.overwrite:
    if not known:
      raise UsageError(f"--out_dir={folder}: holds files of something else "
                       "(no config.json); --overwrite removes only runs")
    # The file that tells it is a run comes last.
    for path in sorted(held, key=lambda path: path.name == "config.json"):
      if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
      else:
        path.unlink()
    known = False
  if config.output.resume and held and not known:
    raise UsageError(f"--out_dir={folder}: holds no run to resume "
                     "(no config.json)")
  return config.output.resume and known


def first_devices(folder: pathlib.Path, config: Config) -> int | None:
  """--host_devices of the run in a folder, where it may be another one's.

  The flag is of a process, so a run that goes on in another number of processes
  may give another number of cores.

  Args:
    folder: the folder of a run.
    config: the run that is to be resumed.

  Returns:
    The number with which the run was started; None if one process started it,
    and one is to go on.
  """
  try:
    saved = json.loads((folder / "config.json").read_text("utf-8"))
    several = saved["plan"].get("processes", 1) > 1 or (
        "first_devices" in saved)
    devices = int(saved["flags"]["host_devices"])
  except (OSError, ValueError, KeyError, TypeError):
    return None
  return devices if several or config.processes.several else None
