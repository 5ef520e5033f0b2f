"""Checks the output folder of a run."""

import json
import os
import pathlib
import shlex
import shutil

from fedjax_alg.files import expanded
from .config import Config, UsageError


def resume_words(folder: pathlib.Path) -> str:
  """The flags that go on with the run in a folder."""
  return shlex.join([f"--flagfile={folder / 'flags.txt'}",
                     f"--out_dir={folder}", "--resume"])


def prepare_folder(config: Config) -> tuple[pathlib.Path, bool]:
  """The output folder, and whether the run in it is to be resumed.

  The function writes nothing, but with --overwrite it deletes the run in the
  folder.

  Raises:
    UsageError: the folder holds something else, or cannot be written.
  """
  folder = expanded(config.out_dir)
  if folder.exists() and not folder.is_dir():
    raise UsageError(f"--out_dir={folder}: is a file")
  filled = folder.is_dir() and any(folder.iterdir())
  if filled and not (config.output.resume or config.output.overwrite):
    raise UsageError(f"--out_dir={folder}: not empty (give --resume to go on, "
                     "--overwrite to start anew, or another folder)")
  parent = folder
  while not parent.exists():
    parent = parent.parent
  if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
    raise UsageError(f"--out_dir={folder}: cannot be written")
  known = (folder / "config.json").is_file()
  if filled and config.output.overwrite:
    if not known:
      raise UsageError(f"--out_dir={folder}: holds files of something else "
                       "(no config.json); --overwrite removes only runs")
    shutil.rmtree(folder)
    known = False
  if config.output.resume and filled and not known:
    raise UsageError(f"--out_dir={folder}: holds no run to resume "
                     "(no config.json)")
  return folder, config.output.resume and known


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
