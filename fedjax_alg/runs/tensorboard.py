"""Event files for TensorBoard, as a callback of a run.

The package tensorboard writes them, without TensorFlow; it is the extra
``fedjax_alg[tensorboard]``. Every seed is a run of its own in TensorBoard.
"""

from collections.abc import Sequence
import os
import pathlib
import socket
import time
from typing import Any

import numpy as np

from fedjax_alg.errors import OptionError, reason
from fedjax_alg.files import output_path
from fedjax_alg.records import folder as run_files
from fedjax_alg.records.tables import Records
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.sinks import Sink


def require() -> None:
  """Checks that the package tensorboard is installed.

  Raises:
    OptionError: it is not.
  """
  try:
    import tensorboard.summary.writer.record_writer  # noqa: F401
  except ImportError:
    raise OptionError(
      "`tensorboard`: the package tensorboard is missing (pip install "
      "tensorboard, or fedjax_alg[tensorboard])"
    ) from None


class TensorBoard(Sink):
  """A callback that writes all metrics of every evaluation and seed.

  A point is ``<protocol>/<metric>`` over communication rounds, as in
  metrics.csv; a metric without a number (NaN) has no point. The points of seed
  0 are in ``<folder>/seed_0``, and in a sweep in ``<folder>/<setting>/seed_0``.

  If a run goes on after an interruption, or starts again in the same folder,
  the points from its first round on replace the older ones: TensorBoard reads
  them as a restart. So a folder with event files of another program is refused.
  """

  def __init__(self, folder: str | os.PathLike):
    """Checks that TensorBoard is installed, and makes the folder.

    Args:
      folder: where to write; made if it does not exist.

    Raises:
      OptionError: the package tensorboard is missing, or the folder cannot be
        made.
    """
    require()
    self._folder = output_path(folder, "folder")
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise OptionError(
        f"`folder`={folder}: cannot be made ({reason(error)})"
      ) from error
    self._settings: list[str] = [""]
    self._files: dict[int, pathlib.Path] = {}  # row -> its event file

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    """Names the folder of each setting; "" is ``folder`` itself.

    Raises:
      OptionError: another program writes to one of them, or it cannot be made.
    """
    self._settings, self._files = list(names), {}
    for name in names:
      for seed in programs.prepared.seeds:
        self._make(self._folder / name / f"seed_{seed}")

  def _make(self, folder: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a seed, which nobody else writes to."""
    try:
      folder.mkdir(parents=True, exist_ok=True)
      others = [
        path.name
        for path in folder.glob("*tfevents*")
        if not run_files.EVENT_FILE.fullmatch(path.name)
      ]
    except OSError as error:
      raise OptionError(
        f"`folder`={self._folder}: cannot be made ({reason(error)})"
      ) from error
    if others:
      raise OptionError(
        f"`folder`={self._folder}: {folder.name} has event files of another "
        f"program ({min(others)}), whose points would be replaced; give "
        "another folder"
      )
    return folder

  def __call__(self, step: Step) -> None:
    """Writes an evaluation.

    Args:
      step: the state of the run at this evaluation.
    """
    for setting in step.recorded:
      for row in range(len(step.seeds)):
        self._write(setting * len(step.seeds) + row, step)
    if step.last:
      self._files = {}

  def _write(self, row: int, step: Step) -> None:
    # Imported here, because the package is optional.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary

    now, number = time.time(), len(step.seeds)
    events: list[Any] = []
    if row not in self._files:
      folder = self._make(
        self._folder
        / self._settings[row // number]
        / f"seed_{step.seeds[row % number]}"
      )
      # TensorBoard reads the files of a folder in the order of their names.
      self._files[row] = folder / (
        f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}"
      )
      events.append(Event(wall_time=now, file_version="brain.Event:2"))
      events.append(
        Event(
          wall_time=now,
          step=step.round - step.count + 1,
          session_log=SessionLog(status=SessionLog.START),
        )
      )
    values = [
      Summary.Value(tag=f"{protocol}/{metric}", simple_value=of[row])
      for protocol, metrics in step.metrics.items()
      for metric, of in metrics.items()
      if np.ndim(of) == 1 and np.isfinite(of[row])
    ]
    events.append(Event(wall_time=now, step=step.round, summary=Summary(value=values)))
    self._append(self._files[row], events)

  @staticmethod
  def _append(path: pathlib.Path, events: Sequence[Any]) -> None:
    """Appends to a file that is closed again, so nothing is lost or open."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    with open(path, "ab") as file:
      writer = RecordWriter(file)
      for event in events:
        writer.write(event.SerializeToString())


def tensorboard(folder: str | os.PathLike) -> TensorBoard:
  """Makes a writer of event files for the argument ``callbacks`` of ``run``.

  You need the package tensorboard (``pip install fedjax_alg[tensorboard]``). To see
  the curves, run ``tensorboard --logdir=FOLDER``.

  Args:
    folder: where to write; made if it does not exist.

  Returns:
    The callback.

  Raises:
    OptionError: the package tensorboard is missing, or the folder cannot be made.
  """
  return TensorBoard(folder)
