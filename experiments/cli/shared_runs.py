"""Makes runs in folders that are named after them; reads those that are finished.

The folder of a run is ``<root>/runs/<algorithm>-<identity>``. The identity is a
hash of everything that decides the numbers of the run, so commands that need the
same run share it. An interrupted run continues from its last checkpoint.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any, NamedTuple

from fedjax_alg.records.frames import Frames, read_frames
from fedjax_alg.runs import store

from . import execute, sweeps
from .config import Config


class FinishedRun(NamedTuple):
  """A finished run.

  With K global models a protocol such as ``global`` is the mean of the K, which
  can be compared with a single model. ``global_best`` is the best of the K on
  the data of the protocol, ``global_chosen`` the best on validation data.
  """

  folder: pathlib.Path
  frames: Frames
  summary: dict[str, Any]


def assign_folders(
  configs: Sequence[Config], root: pathlib.Path, names: Sequence[str]
) -> tuple[list[Config], list[str]]:
  """The different runs in their folders, and a name of each.

  A run that was begun is gone on with.

  Args:
    configs: the runs, some of which may be the same.
    root: folder of the results.
    names: a name of each for messages; of equal runs the last one counts.
  """
  by_folder = {
    store.folder_of(root, config): (config, name)
    for config, name in zip(configs, names, strict=True)
  }
  return (
    [
      config.with_output(out_dir=str(folder))
      for folder, (config, _) in by_folder.items()
    ],
    [name for _, name in by_folder.values()],
  )


def make_runs(
  configs: Sequence[Config],
  root: pathlib.Path,
  names: Sequence[str],
  pictures: bool = True,
) -> list[FinishedRun]:
  """Makes runs, or reads those that are finished.

  Args:
    configs: the runs.
    root: folder of the results.
    names: a name of each for messages.
    pictures: whether those that are made are drawn, too.

  Returns:
    The run of each configuration.

  Raises:
    RunError: another process makes a run of them.
  """
  in_folders, run_names = assign_folders(configs, root, names)
  sweeps.run_configs(in_folders, names=run_names, pictures=pictures)
  return [_read_finished(store.folder_of(root, config)) for config in configs]


def _read_finished(folder: pathlib.Path) -> FinishedRun:
  """Reads a finished run."""
  summary = execute.read_summary(folder)
  return FinishedRun(folder, name_protocols(read_frames(folder)), summary)


def name_protocols(frames: Frames) -> Frames:
  """Renames the protocols of K models, see ``FinishedRun``."""
  several = {
    name.removesuffix("_mean") for name in frames.protocols if name.endswith("_mean")
  }
  if not several:
    return frames
  renamed = frames.rename_protocols(
    {name: f"{name}_best" for name in several}
    | {f"{name}_mean": name for name in several}
  )
  # The protocol that is shown comes first.
  order = renamed.metrics["protocol"].str.endswith("_best").argsort(kind="stable")
  return dataclasses.replace(renamed, metrics=renamed.metrics.iloc[order])
