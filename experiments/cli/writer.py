"""Writes the folders of runs while they are computed, as a sink."""

from collections.abc import Collection, Mapping, Sequence
import pathlib
import shutil
import time
from typing import Any
import weakref

import jax

from fedjax_alg import files
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import checkpoint, processes
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import result as result_lib
from fedjax_alg.runs.pace import Pace, Pause
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.sinks import Sink
from fedjax_alg.typing import PyTree

from ..drawing import plots
from . import resume, signals
from .config import Config
from .folder import LockedRun
from .guard import RunError

#: Without --checkpoint_every_s the states are saved after every evaluation. If
#: saving takes longer than ``_SLOW_SAVE`` seconds, as with large tables of all
#: clients' models, the next save waits until ``_SAVE_SPARING`` times that
#: duration has passed.
_SLOW_SAVE, _SAVE_SPARING = 0.1, 20.0

#: Seconds that a call of the compiled rounds may take, so that a signal does
#: not wait for long.
_CALL_S = 5.0

#: federation -> where its partition.png was drawn last.
_PARTITION_PLOTS: weakref.WeakKeyDictionary[Federation, pathlib.Path] = (
  weakref.WeakKeyDictionary()
)


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


class RunWriter:
  """The folder of one run, or of one setting of a sweep."""

  def __init__(
    self,
    folder: pathlib.Path,
    config: Config,
    programs: Programs,
    records: Records,
    index: int = 0,
    pictures: bool = True,
  ):
    """Makes the writer, which writes nothing yet.

    Args:
      folder: the folder of the run.
      config: the configuration of this run alone, also in a sweep.
      programs: the programs that execute the run.
      records: the tables of the run.
      index: the index of the run among the settings of ``programs``.
      pictures: whether it draws the run, too.
    """
    self._pictures = pictures
    self.folder, self.config, self.records = folder, config, records
    self._programs, self._index = programs, index
    prepared = programs.prepared
    self._facts = result_lib.make_facts(prepared, index) | {
      "identity": config.identity(),
      "flags": config.values,
      "hparams": config.hparams,
      "compile_s": programs.compile_s,
    }
    if config.first_devices is not None:
      self._facts["first_devices"] = config.first_devices
    self.checkpoint_round = 0  #: the round of the last checkpoint

  def start(self) -> None:
    """Writes the files that describe the run, and its tables so far.

    What an earlier run left is removed, unless its states are gone on from.
    """
    if not processes.lead():
      self.records.folder = None
    processes.agree(self._write_start)

  def _write_start(self) -> None:
    federation = self._programs.prepared.federation
    self.folder.mkdir(parents=True, exist_ok=True)
    if self.checkpoint_round:
      checkpoint.tidy(self.folder / run_files.CHECKPOINTS)
      self._note_machine()
      # The tables are about to have more rows than it knows of.
      (self.folder / "summary.json").unlink(missing_ok=True)
    else:
      run_files.remove(self.folder)
    # First: it tells that the folder is a run, should the process be killed.
    summary_lib.write_sealed(self.folder / "config.json", self._facts)
    summary_lib.write_text(
      self.folder / "flags.txt", "\n".join(self.config.flag_lines()) + "\n"
    )
    summary_lib.write_partition(self.folder, federation)
    if self._pictures:
      _draw_partition(self.folder / "partition.png", federation)
    self.records.write()
    # An existing folder shows that no checkpoint was deleted.
    (self.folder / run_files.CHECKPOINTS).mkdir(exist_ok=True)

  def _note_machine(self) -> None:
    """Keeps in config.json where the rounds so far were run."""
    current, record = self._facts["machine"], resume.machines(self.folder)
    on = record.get("resumed_on", [])
    last = on[-1] if on else record.get("machine", {})
    if any(last.get(name) != value for name, value in current.items()):
      on = [*on, {"round": self.checkpoint_round, **current}]
    self._facts["machine"] = record.get("machine")
    if on:
      self._facts["resumed_on"] = on

  def states_of(self, states: PyTree) -> PyTree:
    """The part of a program's states that belongs to this run."""
    prepared = self._programs.prepared
    if len(prepared.settings) == 1:
      return states
    rows = result_lib.rows_of(prepared, self._index)
    return jax.tree.map(lambda leaf: leaf[rows], states)

  def save(self, states: object, done: int) -> None:
    """Saves a checkpoint.

    Args:
      states: the states of the program.
      done: rounds run to reach them.
    """
    checkpoint.save(
      self.folder / run_files.CHECKPOINTS,
      self.states_of(states),
      done,
      processes.agree(self._sync_tables),
    )
    self.checkpoint_round = done

  def _sync_tables(self) -> dict[str, Any]:
    """Syncs the tables to disk; returns what a checkpoint records of them."""
    facts: dict[str, Any] = {"identity": self.config.identity()}
    if self.records.unfinished_s:  # a checkpoint between two evaluations
      facts["unfinished_s"] = self.records.unfinished_s
    self.records.sync()
    return facts | {"tables": self.records.marks()}

  def finish(self, last: Step) -> dict[str, Any]:
    """Writes the results after the last round; returns the summary.

    Args:
      last: the step at which the run ended.
    """
    states = self.states_of(last.states)
    final_state = _common_hash(states)
    final = result_lib.make_final(
      result_lib.Live(self._programs.prepared, states, self._index), last
    )
    return processes.agree(lambda: self._write_results(final, final_state))

  def _write_results(
    self, final: Mapping[str, object], final_state: str
  ) -> dict[str, Any]:
    prepared = self._programs.prepared
    result_lib.write_final(self.folder, final, prepared.seeds)
    if self._pictures:
      plots.run_curves(
        [self.folder / "curves.png", self.folder / "curves.pdf"],
        self.records.rows,
        f"{prepared.method.entry.label}, {prepared.federation.name}, "
        f"{prepared.spec.cohort_size} of {prepared.spec.num_clients} clients",
      )
    summary = result_lib.make_summary(self.records, prepared, final_state, self._facts)
    if "resumed_on" in self._facts:
      summary["resumed_on"] = self._facts["resumed_on"]
    # Last: it tells that all files are whole.
    return result_lib.write_summary(self.folder, summary)


def _common_hash(states: object) -> str:
  """The hash of the final states, of which all processes have the same bits.

  They compute the server's part each on its own, and other machines may round
  otherwise.

  Raises:
    RunError: they have not.
  """
  local_hash = checkpoint.state_hash(states)
  if local_hash != processes.agree(lambda: local_hash):
    raise RunError(
      "this process has another final state than process 0; start "
      "all processes on machines of one kind"
    )
  return local_hash


class Folders(Sink):
  """Writes the folder of each setting, saves in time, stops on a signal.

  Attributes:
    summaries: summary.json of each setting; None until it is finished.
  """

  def __init__(self, runs: Sequence[LockedRun], pictures: bool = True):
    """Makes the sink of the settings of a program.

    Args:
      runs: the settings, with their folders.
      pictures: whether each is drawn, too.
    """
    self._runs, self._pictures = runs, pictures
    self.summaries: list[dict[str, Any] | None] = [None] * len(runs)
    folder = runs[0].folder
    self._what = (
      str(folder) if len(runs) == 1 else (f"{len(runs)} settings in {folder.parent}")
    )

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    self._num_seeds = len(programs.prepared.seeds)
    #: those that have not ended
    self._writers = {
      index: RunWriter(run.folder, run.config, programs, table, index, self._pictures)
      for index, (run, table) in enumerate(zip(self._runs, records))
    }
    for writer in self._writers.values():
      writer.checkpoint_round = done
      writer.start()
    output = self._runs[0].config.output
    self._every_s = output.checkpoint_every_s
    self._next = time.monotonic() + self._every_s
    limits = [_CALL_S, output.checkpoint_every_s, output.grace_s / 2]
    # The clocks of several processes do not agree.
    self.pace = (
      None
      if processes.count() > 1
      else Pace(min(limit for limit in limits if limit), self._due, self._pause)
    )
    self._note()
    signals.stop_if_signaled()

  @property
  def checkpoint_round(self) -> int:
    """The last round that was saved."""
    return max(
      (writer.checkpoint_round for writer in self._writers.values()), default=0
    )

  def _due(self) -> bool:
    return signals.pending() or bool(self._every_s) and time.monotonic() >= self._next

  def _pause(self, pause: Pause) -> None:
    self._save(pause.states, pause.round, self._alive(pause.diverged))
    signals.stop_if_signaled()

  def _alive(self, diverged: Collection[int]) -> list[int]:
    """The settings without a row that diverged."""
    gone = {row // self._num_seeds for row in diverged}
    return [index for index in self._writers if index not in gone]

  def __call__(self, step: Step) -> None:
    """Saves at an evaluation if it is time."""
    due = signals.any_process(signals.pending() or time.monotonic() >= self._next)
    self._save(
      step.states,
      step.round,
      [
        index
        for index in self._alive(step.diverged)
        if due or step.last or index in step.stopped
      ],
    )

  def finish(self, setting: int, step: Step) -> None:
    self.summaries[setting] = self._writers.pop(setting).finish(step)

  def stop(self, step: Step) -> None:
    """Stops after an evaluation that is not the last one, if a signal asks.

    Raises:
      Stopped: a signal does.
    """
    if not step.last and signals.any_process(signals.pending()):
      signals.stop()

  def _save(self, states: object, done: int, indices: Sequence[int]) -> None:
    if not indices:
      return
    began = time.monotonic()
    with signals.delay_signals():
      for index in indices:
        self._writers[index].save(states, done)
    self._note()
    now = time.monotonic()
    if self._every_s:
      self._next = now + self._every_s
    elif now - began > _SLOW_SAVE:
      self._next = now + _SAVE_SPARING * (now - began)

  def _note(self) -> None:
    rounds = self._runs[0].config.run.rounds
    signals.note_progress(
      f"{self._what}: saved at round {self.checkpoint_round} of {rounds}"
      if self.checkpoint_round
      else f"{self._what}: nothing saved yet"
    )
