"""Checks the output folder of a run, and keeps other processes out of it."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
from typing import NamedTuple

from fedjax_alg.files import expand_path, read_json
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock

from .config import Config, UsageError

#: Files that may be there before a run is: it has just been started, or was
#: killed then.
_BEFORE = (lock.NAME, "config.json.partial")


class LockedRun(NamedTuple):
  """A run whose folder this process holds."""

  config: Config
  folder: pathlib.Path
  resuming: bool


@contextlib.contextmanager
def take_folder(config: Config) -> Iterator[tuple[pathlib.Path, bool]]:
  """Holds the output folder, so that no other process executes the run in it.

  Nothing is written but the lock. With --overwrite the run in the folder stays
  until the new one is ready (``RunWriter.start``).

  Args:
    config: the run.

  Yields:
    The folder, and whether the run in it is to be resumed.

  Raises:
    UsageError: the folder holds something else, or cannot be written.
    HeldError: another process executes the run.
  """
  folder = expand_path(config.out_dir)
  if folder.exists() and not folder.is_dir():
    raise UsageError(f"--out_dir={folder}: is a file")
  link = run_files.find_link(folder)
  if link is not None:
    raise UsageError(
      f"--out_dir={folder}: {link.relative_to(folder)} is a link to another "
      "place, through which nothing is written or removed; remove it"
    )
  parent = folder
  while not parent.exists():
    parent = parent.parent
  if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
    raise UsageError(f"--out_dir={folder}: cannot be written")
  with lock.hold(folder):
    yield folder, _prepare(config, folder)


def _prepare(config: Config, folder: pathlib.Path) -> bool:
  """Whether the run in a folder that is held is to be resumed."""
  contents = [path for path in folder.iterdir() if path.name not in _BEFORE]
  if contents and not (config.output.resume or config.output.overwrite):
    raise UsageError(
      f"--out_dir={folder}: not empty (give --resume to go on, "
      "--overwrite to start over, or another folder)"
    )
  has_config = (folder / "config.json").is_file()
  if contents and config.output.overwrite and not run_files.is_run(folder):
    why = "config.json is not a run's" if has_config else "no config.json"
    raise UsageError(
      f"--out_dir={folder}: holds files of something else "
      f"({why}); --overwrite replaces only runs"
    )
  if config.output.resume and contents and not has_config:
    raise UsageError(f"--out_dir={folder}: holds no run to resume (no config.json)")
  return config.output.resume and has_config


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
    saved = read_json(folder / "config.json")
    several = saved["plan"].get("processes", 1) > 1 or ("first_devices" in saved)
    devices = int(saved["flags"]["host_devices"])
  except (OSError, ValueError, KeyError, TypeError):
    return None
  return devices if several or config.processes.several else None
