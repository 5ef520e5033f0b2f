"""What commands add to the folders of the store: flags, pictures, signals."""

from collections.abc import Sequence
import pathlib
import shutil
import time
import weakref

from fedjax_alg import files
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import processes
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records import tables
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import store
from fedjax_alg.runs.pace import Pace, Pause
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.store import HeldRun

from ..drawing import plots
from . import signals
from .config import Config

#: Seconds that a call of the compiled rounds may take, so that a signal does
#: not wait for long.
_CALL_S = 5.0

#: federation -> where its partition.png was drawn last.
_PARTITION_PLOTS: weakref.WeakKeyDictionary[Federation, pathlib.Path] = (
  weakref.WeakKeyDictionary()
)


def added_files(pictures: bool = True) -> tuple[str, ...]:
  """The files that a command adds to a run.

  Args:
    pictures: whether it draws the run.
  """
  return (run_files.FLAGS, *(run_files.PICTURES if pictures else ()))


def _draw_partition(path: pathlib.Path, federation: Federation) -> None:
  """Draws who holds which classes, once for all runs of a federation."""
  existing = _PARTITION_PLOTS.get(federation)
  if existing is not None and existing != path and existing.is_file():
    with files.replacing(path) as partial:
      shutil.copyfile(existing, partial)
    return
  plots.histogram(
    path,
    federation.label_histogram,
    f"{federation.name}, {federation.partition.name}: {federation.num_clients} clients",
    federation.client_names,
    federation.kinds,
  )
  _PARTITION_PLOTS[federation] = path


class _Writer(store.FolderWriter):
  """Writes flags.txt, too, and draws the run."""

  def __init__(
    self,
    run: HeldRun,
    programs: Programs,
    records: Records,
    index: int,
    pictures: bool,
  ):
    super().__init__(run, programs, records, index)
    self._pictures = pictures

  def add_at_start(self) -> None:
    config, folder = self.run.plan, self.run.folder
    assert isinstance(config, Config)
    lines = "\n".join(config.flag_lines()) + "\n"
    summary_lib.write_text(folder / run_files.FLAGS, lines)
    if self._pictures:
      _draw_partition(folder / "partition.png", self.programs.prepared.federation)

  def add_at_end(self) -> None:
    if not self._pictures:
      return
    prepared = self.programs.prepared
    plots.run_curves(
      [self.run.folder / f"curves.{kind}" for kind in ("png", "pdf")],
      tables.curves(self.records.rows),
      self.records.evaluated,
      f"{prepared.method.entry.label}, {prepared.federation.name}, "
      f"{prepared.spec.cohort_size} of {prepared.spec.num_clients} clients",
    )


class CommandFolders(store.Folders):
  """Writes the folders of a command's settings; saves and stops on a signal."""

  def __init__(self, runs: Sequence[HeldRun], pictures: bool = True):
    """Makes the sink of the settings of a program.

    Args:
      runs: the settings, with their folders; their plans are configurations.
      pictures: whether each is drawn, too.
    """
    config = runs[0].plan
    assert isinstance(config, Config)
    super().__init__(runs, config.output.checkpoint_every_s)
    self._output, self._rounds, self._pictures = (
      config.output,
      config.run.rounds,
      pictures,
    )
    folder = runs[0].folder
    self._what = (
      str(folder) if len(runs) == 1 else (f"{len(runs)} settings in {folder.parent}")
    )

  def make_writer(
    self, run: HeldRun, programs: Programs, records: Records, index: int
  ) -> store.FolderWriter:
    return _Writer(run, programs, records, index, self._pictures)

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    super().start(programs, records, names, done)
    limits = [_CALL_S, self._every_s, self._output.grace_s / 2]
    # The clocks of several processes do not agree.
    self.pace = (
      None
      if processes.count() > 1
      else Pace(min(limit for limit in limits if limit), self._is_due_now, self._pause)
    )
    self._note()
    signals.stop_if_signaled()

  def fail(self, error: BaseException) -> None:
    if not isinstance(error, signals.Stopped):
      super().fail(error)

  def is_due(self) -> bool:
    return signals.pending() or super().is_due()

  def _is_due_now(self) -> bool:
    """Whether it is time to save between two evaluations."""
    return signals.pending() or bool(self._every_s) and time.monotonic() >= self._next

  def _pause(self, pause: Pause) -> None:
    self.save(pause.states, pause.round, self.alive(pause.diverged))
    signals.stop_if_signaled()

  def stop(self, step: Step) -> None:
    """Stops after an evaluation that is not the last one, if a signal asks.

    Raises:
      Stopped: a signal does.
    """
    if not step.last and signals.any_process(signals.pending()):
      signals.stop()

  def save(self, states: object, done: int, indices: Sequence[int]) -> None:
    with signals.delay_signals():
      super().save(states, done, indices)
    if indices:
      self._note()

  def _note(self) -> None:
    signals.note_progress(
      f"{self._what}: saved at round {self.checkpoint_round} of {self._rounds}"
      if self.checkpoint_round
      else f"{self._what}: nothing saved yet"
    )
