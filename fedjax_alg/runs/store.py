"""Runs in folders: one folder for each, and one way to begin, go on and finish.

``fa.run(..., out_dir=)``, ``fa.sweep(..., out_dir=)`` and all commands store their
runs here. To ask for a run again is to go on with it: a finished one is read, an
interrupted one continues from its last checkpoint, to the same bits. config.json
says what the run is. It is compared with what is asked for before anything is
loaded (``hold_run``), and the data, the machine and the caller's own objects as soon as
they are known (``check_prepared``).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import functools
import json
import os
import pathlib
import re
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_alg import files
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import checkpoint, processes, row_file, sharding
from fedjax_alg.errors import OptionError, RunError, RunFolderError, reason
from fedjax_alg.part import Part, of_type
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock, tables
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import identity, queue
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs import result as result_lib
from fedjax_alg.runs.methods import MethodConfig
from fedjax_alg.runs.plan import Plan, by_program, federation_of, warn, warn_caller
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.result import RunResult
from fedjax_alg.runs.sinks import Sink
from fedjax_alg.runs.stopping import is_over
from fedjax_alg.typing import Facts, PyTree

_ADVICE = "give what the run has, another folder, or `overwrite` to start over"

#: The states are saved after every evaluation. If saving takes longer than
#: ``_SLOW_SAVE`` seconds, as with large tables of all clients' models, the next save
#: waits until ``_SAVE_SPARING`` times that duration has passed.
_SLOW_SAVE, _SAVE_SPARING = 0.1, 20.0


class HeldRun(NamedTuple):
  """A run whose folder this process holds."""

  plan: Plan
  folder: pathlib.Path
  begun: bool  #: whether the folder has it already


def folder_of(root: pathlib.Path, plan: Plan) -> pathlib.Path:
  """Names the folder of a run in a store whose runs are found by what they are.

  Args:
    root: the folder of the store.
    plan: the run.

  Returns:
    ROOT/runs/ALGORITHM-HASH, the hash of all that decides the run's numbers.
  """
  return root / "runs" / f"{plan.method.name}-{plan.identity[:12]}"


def folder_name(text: str) -> str:
  """Names the folder of a setting or method; different texts give different names.

  Args:
    text: one line.

  Returns:
    The text with %2F for a slash. A text that has %2F or %25 gets %25 for their %, so
    that no other text has its name.
  """
  return re.sub("%(?=2F|25)", "%25", text).replace("/", "%2F")


@contextlib.contextmanager
def hold_run(
  plan: Plan, folder: pathlib.Path, *, overwrite: bool = False
) -> Iterator[HeldRun]:
  """Holds the folder of a run, so that no other process runs it.

  Nothing is written but the lock. With ``overwrite`` the run in the folder stays
  until the new one starts. All processes must call this.

  Args:
    plan: the run.
    folder: its folder, which need not exist.
    overwrite: whether the run in the folder is to be replaced.

  Yields:
    The run, and whether it was begun there.

  Raises:
    RunFolderError: the folder holds another run or something else, or cannot be
      written; the line names the first option that differs.
    HeldError: another process runs it.
  """
  with contextlib.ExitStack() as stack:
    begun = processes.agree(lambda: _take(stack, plan, folder, overwrite))
    yield HeldRun(plan, folder, begun)


def _take(
  stack: contextlib.ExitStack, plan: Plan, folder: pathlib.Path, overwrite: bool
) -> bool:
  """Takes the lock of a folder; returns whether the run was begun in it."""
  if folder.exists() and not folder.is_dir():
    raise RunFolderError(f"`out_dir`={folder}: is a file")
  link = run_files.find_link(folder)
  if link is not None:
    raise RunFolderError(
      f"`out_dir`={folder}: {link.relative_to(folder)} is a link to another "
      "place, through which nothing is written or removed; remove it"
    )
  parent = folder
  while not parent.exists():
    parent = parent.parent
  if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
    raise RunFolderError(f"`out_dir`={folder}: cannot be written")
  stack.enter_context(lock.hold(folder))
  if not any(path.name not in run_files.BEFORE for path in folder.iterdir()):
    return False
  if not run_files.is_run(folder):
    why = "no config.json of a run"
    if (folder / "config.json").is_file():
      why = "config.json is damaged, or not a run's"
    raise RunFolderError(f"`out_dir`={folder}: holds files of something else ({why})")
  if overwrite:
    return False
  check_begun(plan, folder)
  return True


def check_begun(plan: Plan, folder: pathlib.Path) -> None:
  """Refuses to go on with what is in a folder, unless it is the run.

  Args:
    plan: the run.
    folder: a folder that holds a run.

  Raises:
    RunFolderError: it is another run, has run more rounds, or its files are damaged.
  """
  saved = run_files.read_sealed(folder, "config.json")
  if saved["identity"] is None:
    raise RunFolderError(f"`out_dir`={folder}: clients have left this run; it is over")
  change = identity.find_change(saved, plan.facts())
  if change:
    raise RunFolderError(f"`out_dir`={folder}: {change}; {_ADVICE}")
  checkpoints = folder / run_files.CHECKPOINTS
  done, rounds = checkpoint.newest_round(checkpoints) or 0, plan.run.rounds
  assert rounds is not None
  if done > rounds:
    raise RunFolderError(
      f"`rounds`={rounds}: the run in {folder} has {done} already; give at least "
      f"`rounds`={done}, another folder, or `overwrite` to start over"
    )
  try:
    _check_tables(folder, checkpoints, plan.seeds)
  except OptionError as error:
    if not is_finished(plan, folder):  # which needs no checkpoint
      raise RunFolderError(error.text) from error


def _check_tables(
  folder: pathlib.Path, checkpoints: pathlib.Path, seeds: Sequence[int]
) -> None:
  """Checks that the tables are those of the newest checkpoint.

  Raises:
    OptionError: they are not, or there is no checkpoint where one was.
  """
  header = next(checkpoint.headers(checkpoints), None)  # the newest that is whole
  if header is not None:
    tables.check_tables(folder, seeds, header["round"], header["tables"])
  elif not checkpoint.checkpoint_paths(checkpoints):  # else ``restore_states`` says so
    rows = tables.last_round(folder)
    if rows and (not checkpoints.is_dir() or (folder / "summary.json").exists()):
      raise OptionError(
        f"{checkpoints}: is gone, but the tables have {rows} rounds; restore it, or "
        "give another folder or `overwrite`"
      )


def is_finished(plan: Plan, folder: pathlib.Path, further: Sequence[str] = ()) -> bool:
  """Whether a folder holds a run with all its rounds, or one that ended early.

  See ``stopping.is_over``. All its files must be there and whole, see
  ``folder.is_complete``. If they are, the lock of a process that was killed is removed.

  Args:
    plan: the run.
    folder: the folder.
    further: files that a command adds, which must be there, too.
  """
  try:
    summary = run_files.read_facts(folder, "summary.json")
    config = run_files.read_facts(folder, "config.json")
    complete = (
      summary["identity"] == plan.identity
      # A plan that is made of options alone has no object of a caller's own.
      and not (plan.federation is None and identity.OBJECTS in config)
      and plan.run.rounds is not None
      and is_over(summary, config, plan.run.rounds)
      and run_files.is_complete(folder, summary, further)
    )
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return False
  if complete:
    lock.remove_stale_lock(folder)
  return complete


def has_ended(run: HeldRun, further: Sequence[str] = ()) -> bool:
  """Whether a run that is held needs nothing; all processes must call this.

  Args:
    run: the run.
    further: see ``is_finished``.
  """
  return run.begun and processes.agree(
    lambda: is_finished(run.plan, run.folder, further)
  )


def check_prepared(
  run: HeldRun, prepared: Prepared, setting: int = 0, *, other_devices: bool = False
) -> None:
  """Refuses to go on where a run would not give the bits that it would have given.

  Args:
    run: the run.
    prepared: what is to be run.
    setting: index of the run among its settings.
    other_devices: whether it may go on on another machine.

  Raises:
    RunFolderError: the data, the machine, an object of the caller's or the frozen
      parameters are others than those that it was begun with.
  """
  if run.begun:
    hashes = identity.hash_objects(prepared, setting)
    processes.agree(
      lambda: _check_prepared(run.folder, prepared, hashes, other_devices)
    )


def _check_prepared(
  folder: pathlib.Path,
  prepared: Prepared,
  hashes: Mapping[str, str],
  other_devices: bool,
) -> None:
  saved = run_files.read_sealed(folder, "config.json")
  change = identity.find_other(saved, hashes)
  if change:
    raise RunFolderError(
      f"`out_dir`={folder}: {change} than the one that this run was begun with; "
      f"{_ADVICE}"
    )
  frozen = prepared.plan.get("frozen_sha256")
  if saved["plan"].get("frozen_sha256") != frozen:
    raise RunFolderError(
      f"`out_dir`={folder}: has other frozen parameters than the model now; {_ADVICE}"
    )
  checkpoints = checkpoint.checkpoint_paths(folder / run_files.CHECKPOINTS)
  if not checkpoints and not (folder / "summary.json").is_file():
    return  # it starts again, with these data and here
  check_data(folder, prepared.federation)
  last = saved.get("resumed_on", [saved["machine"]])[-1]
  machine = json.loads(json.dumps(result_lib.machine(prepared)))
  differ = [
    f"{name} {last.get(name)}, here {machine.get(name)}"
    for name in _differences(last, machine)
  ]
  if differ and not other_devices:
    raise RunFolderError(
      f"`out_dir`={folder}: was run with {'; '.join(differ)}, so the last bits may "
      "differ; `allow_other_devices` goes on anyway"
    )


def _differences(last: Facts, machine: Facts) -> list[str]:
  """The names of what differs between two machines (``result.machine``).

  Args:
    last: the first one, with the round up to which it was used if it was not the first.
    machine: the other one.
  """
  return [
    name
    for name in {**machine, **last}
    if name != "round" and last.get(name) != machine.get(name)
  ]


def check_finished(plan: Plan, folders: Sequence[pathlib.Path]) -> None:
  """Loads the data of finished runs, and refuses others than they were run on.

  The options name a data set or its file, so they do not tell that its content has
  changed. All processes must call this.

  Args:
    plan: a run.
    folders: folders of finished runs with the same options of the data.

  Raises:
    RunFolderError: see ``check_data``.
    OptionError, DataError: the data cannot be loaded.
  """
  sharding.start(plan.run.host_devices)  # features may be computed
  federation = plan.federation or federation_of(plan.data)
  for folder in folders:
    processes.agree(functools.partial(check_data, folder, federation))


def check_data(folder: pathlib.Path, federation: Federation) -> None:
  """Refuses other data than those that a run was begun with.

  Args:
    folder: the folder of the run.
    federation: the data now.

  Raises:
    RunFolderError: they are others, or it is not known any more.
  """
  try:
    saved = files.read_json(folder / "partition.json")
    hashes = {"data": saved["data_hash"], "partition": saved["hash"]}
  except (OSError, ValueError, LookupError) as error:
    try:  # of a finished run the summary says it, too
      hashes = run_files.read_facts(folder, "summary.json")["hashes"]
    except (OSError, ValueError, LookupError):
      raise RunFolderError(
        f"`out_dir`={folder}: partition.json, which says on what data the run was "
        f"begun, is missing or damaged ({reason(error)}); restore it, or give another "
        "folder"
      ) from error
  for name in ("data", "partition"):
    if hashes[name] != federation.hashes[name]:
      raise RunFolderError(
        f"`out_dir`={folder}: its {name} changed after it was begun; restore the "
        "files, or give another folder"
      )


def check_same_data(folders: Sequence[pathlib.Path]) -> None:
  """Refuses finished runs with the same options of the data, but other data.

  Args:
    folders: their folders.

  Raises:
    RunFolderError: two were run on different data; or a summary is damaged.
  """
  seen: dict[str, tuple[str, pathlib.Path]] = {}  # name -> hash of the first
  for folder in folders:
    hashes = run_files.read_sealed(folder, "summary.json")["hashes"]
    for name in ("data", "partition"):
      digest, first = seen.setdefault(name, (hashes[name], folder))
      if hashes[name] != digest:
        raise RunFolderError(
          f"`out_dir`={folder}: its {name} differs from what {first} was run on, "
          "though the options are the same; give another folder, or `overwrite` to "
          "start both over"
        )


def by_round(runs: Sequence[HeldRun]) -> list[list[HeldRun]]:
  """Splits settings of one program by the round that they go on from.

  They differ where parts of a sweep were stopped, where one has diverged, or where
  the newest checkpoint of one is damaged.

  Args:
    runs: the settings.
  """
  if len(runs) == 1:  # its checkpoint is read once
    return [list(runs)]
  rounds: dict[int | None, list[HeldRun]] = {}
  for run in runs:
    checkpoints, done = run.folder / run_files.CHECKPOINTS, None
    if run.begun:
      whole = next(checkpoint.headers(checkpoints), None)
      done = whole["round"] if whole else checkpoint.newest_round(checkpoints)
    rounds.setdefault(done, []).append(run)
  return list(rounds.values())


def restore_states(
  runs: Sequence[HeldRun], programs: Programs
) -> tuple[list[Records], Any, int]:
  """Finds where the settings of a program go on from.

  Args:
    runs: the settings.
    programs: their programs.

  Returns:
    The tables of each setting; the states of all, if all have a whole checkpoint
    of the same round, else None; and that round, else 0.

  Raises:
    RunFolderError: a checkpoint or a table is damaged.
  """
  folders = [run.folder for run in runs]
  programs.keep_tables_in([folder / run_files.CHECKPOINTS for folder in folders])
  records = play_lib.new_records(programs, folders)
  if not all(run.begun for run in runs):
    return records, None, 0
  shapes = programs.shapes
  if len(runs) > 1:
    num = len(programs.prepared.seeds)
    shapes = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct((num, *leaf.shape[1:]), leaf.dtype), shapes
    )
  states, rounds = zip(
    *(_restore(run, shapes, table) for run, table in zip(runs, records))
  )
  if rounds[0] != processes.agree(lambda: rounds[0]):
    raise RunError(
      f"{folders[0]}: this process does not find the checkpoint of process 0; all "
      "must see one folder"
    )
  if len(set(rounds)) > 1 or any(of is None for of in states):
    again = " of one round of all settings" if len(runs) > 1 else ""
    warn_caller(
      [f"{folders[0]}: starts again at round 0, there is no whole checkpoint{again}"]
    )
    return play_lib.new_records(programs, folders), None, 0
  all_states = states[0] if len(runs) == 1 else jax.tree.map(_join, *states)
  on_devices, done = programs.place(all_states), rounds[0]
  if programs.rounds_to_evaluation(done - 1) > 1:
    # It was the last round when fewer were asked for. In one go it has no evaluation.
    for run, table, of_run in zip(runs, records, states):
      if done in table.evaluated:
        table.drop_evaluation()
        # First, so that a process that is killed here leaves tables with more rows.
        checkpoint.save(
          run.folder / run_files.CHECKPOINTS,
          on_devices if len(runs) == 1 else of_run,
          done,
          processes.agree(functools.partial(_mark, run.plan.identity, table)),
        )
  return records, on_devices, done


def _mark(run_identity: str, records: Records) -> dict[str, Any]:
  """What a checkpoint records of a run and its tables."""
  header: dict[str, Any] = {"identity": run_identity}
  if records.unfinished_s:  # a checkpoint between two evaluations
    header["unfinished_s"] = records.unfinished_s
  return header | {"tables": records.marks()}


def _join(*leaves: Any) -> Any:
  """A leaf of the states of several settings, in a file for each, or an array."""
  if all(map(row_file.is_row_table, leaves)):
    return row_file.join_seeds(leaves)
  return np.concatenate(leaves)


def _restore(run: HeldRun, shapes: object, records: Records) -> tuple[Any, int]:
  """Loads the last whole checkpoint, and reads ``records`` up to its round.

  Args:
    run: the run.
    shapes: the shapes of its states.
    records: the empty tables to fill.

  Returns:
    The states as NumPy arrays, or None without a checkpoint, and the number of
    rounds that were run to reach them.
  """
  checkpoints = run.folder / run_files.CHECKPOINTS
  try:
    if not checkpoint.checkpoint_paths(checkpoints):
      _check_tables(run.folder, checkpoints, run.plan.seeds)
      return None, 0
    states, header, damaged = checkpoint.load_latest(checkpoints, shapes)
    if header["identity"] != run.plan.identity:
      raise RunFolderError(
        f"{checkpoints}: is of another run than config.json beside it; restore it"
      )
    records.read(header["round"], header["tables"], header.get("unfinished_s", 0.0))
  except (checkpoint.CheckpointError, OptionError) as error:
    raise RunFolderError(str(error)) from error
  warn_caller(damaged)
  return states, header["round"]


class FolderWriter:
  """Writes the folder of one run, or of one setting of a program.

  A command adds files of its own (``add_at_start``, ``add_at_end``).
  """

  def __init__(self, run: HeldRun, programs: Programs, records: Records, index: int):
    """Makes the writer, which writes nothing yet.

    Args:
      run: the run.
      programs: the programs that compute it.
      records: its tables.
      index: its index among the settings of ``programs``.
    """
    self.run, self.records, self.programs = run, records, programs
    self._index, prepared = index, programs.prepared
    facts = result_lib.make_facts(prepared, index) | {"compile_s": programs.compile_s}
    self._facts = identity.with_objects(facts, identity.hash_objects(prepared, index))
    self.checkpoint_round = 0  #: the round of the last checkpoint

  def add_at_start(self) -> None:
    """Writes files of a command, after config.json."""

  def add_at_end(self) -> None:
    """Writes files of a command, before summary.json."""

  def start(self, done: int) -> None:
    """Writes the files that describe the run, and its tables so far.

    What an earlier run left is removed, unless its states are gone on from.

    Args:
      done: the rounds that were run before.
    """
    self.checkpoint_round = done
    if not processes.lead():
      self.records.folder = None
    processes.agree(self._write_start)

  def _write_start(self) -> None:
    folder = self.run.folder
    folder.mkdir(parents=True, exist_ok=True)
    if self.checkpoint_round:
      checkpoint.tidy(folder / run_files.CHECKPOINTS)
      saved = run_files.read_facts(folder, "config.json")
      self._note_machine(saved)
      self._remove_outdated(saved)
      # The tables are about to have more rows than it knows of.
      (folder / "summary.json").unlink(missing_ok=True)
    else:
      run_files.remove(folder)
    # First: it tells that the folder is a run, should the process be killed.
    summary_lib.write_sealed(folder / "config.json", self._facts)
    summary_lib.write_partition(folder, self.programs.prepared.federation)
    run_files.write_end(folder, "")
    self.add_at_start()
    self.records.write()
    # An existing folder shows that no checkpoint was deleted.
    (folder / run_files.CHECKPOINTS).mkdir(exist_ok=True)

  def _remove_outdated(self, saved: Facts) -> None:
    """Removes what a command has added to the run as it was; commands add it anew.

    Args:
      saved: config.json so far.
    """
    options = json.loads(json.dumps([self._facts["run"], self._facts["data"]]))
    changed = options != [saved["run"], saved["data"]]  # more rounds, for example
    for name in (*run_files.CURVES, *[run_files.FLAGS] * changed):
      (self.run.folder / name).unlink(missing_ok=True)

  def _note_machine(self, saved: Facts) -> None:
    """Keeps in config.json where the rounds so far were run."""
    on, current = saved.get("resumed_on", []), self._facts["machine"]
    last = on[-1] if on else saved["machine"]
    if _differences(last, current):
      on = [*on, {"round": self.checkpoint_round, **current}]
    self._facts["machine"] = saved["machine"]
    if on:
      self._facts["resumed_on"] = on

  def _states_of(self, states: PyTree) -> PyTree:
    """The part of a program's states that belongs to this run."""
    prepared = self.programs.prepared
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
      self.run.folder / run_files.CHECKPOINTS,
      self._states_of(states),
      done,
      processes.agree(self._sync_tables),
    )
    self.checkpoint_round = done

  def _sync_tables(self) -> dict[str, Any]:
    """Syncs the tables to disk; returns what a checkpoint records of them."""
    self.records.sync()
    return _mark(self._facts["identity"], self.records)

  def finish(self, last: Step) -> dict[str, Any]:
    """Writes the results after the last round; returns the summary.

    Args:
      last: the step at which the run ended.
    """
    states = self._states_of(last.states)
    final_state = _common_hash(states)
    live = result_lib.Live(self.programs.prepared, states, self._index)
    final = result_lib.make_final(live, last)
    return processes.agree(lambda: self._write_results(final, final_state))

  def _write_results(self, final: Facts, final_state: str) -> dict[str, Any]:
    prepared = self.programs.prepared
    result_lib.write_final(self.run.folder, final, prepared.seeds)
    self.add_at_end()
    summary = result_lib.make_summary(self.records, prepared, final_state, self._facts)
    if "resumed_on" in self._facts:
      summary["resumed_on"] = self._facts["resumed_on"]
    # Last: it tells that all files are whole.
    return result_lib.write_summary(self.run.folder, summary)


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
  """Writes the folder of each setting of a program.

  Attributes:
    summaries: summary.json of each setting; None until it is finished.
  """

  def __init__(self, runs: Sequence[HeldRun], every_s: float = 0.0):
    """Makes the sink of the settings of a program.

    Args:
      runs: the settings.
      every_s: seconds between two checkpoints; 0 saves at every evaluation, and
        less often where saving is slow.
    """
    self._runs, self._every_s = runs, every_s
    self.summaries: list[dict[str, Any] | None] = [None] * len(runs)
    self._writers: dict[int, FolderWriter] = {}  #: those that have not ended

  def make_writer(
    self, run: HeldRun, programs: Programs, records: Records, index: int
  ) -> FolderWriter:
    """Makes the writer of a setting; see ``FolderWriter``."""
    return FolderWriter(run, programs, records, index)

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    self._num_seeds = len(programs.prepared.seeds)
    self._writers = {
      index: self.make_writer(run, programs, table, index)
      for index, (run, table) in enumerate(zip(self._runs, records))
    }
    for writer in self._writers.values():
      writer.start(done)
    self._next = time.monotonic() + self._every_s

  @property
  def checkpoint_round(self) -> int:
    """The last round that was saved."""
    return max(
      (writer.checkpoint_round for writer in self._writers.values()), default=0
    )

  def is_due(self) -> bool:
    """Whether it is time to save, by the clock of this process."""
    return time.monotonic() >= self._next

  def alive(self, diverged: Collection[int]) -> list[int]:
    """The settings without a row that diverged."""
    gone = {row // self._num_seeds for row in diverged}
    return [index for index in self._writers if index not in gone]

  def __call__(self, step: Step) -> None:
    """Saves at an evaluation if it is time."""
    due = processes.anyone(self.is_due())
    self.save(
      step.states,
      step.round,
      [
        index
        for index in self.alive(step.diverged)
        if due or step.last or index in step.stopped
      ],
    )
    if step.last and processes.lead():
      for index in self._writers.keys() - set(self.alive(step.diverged)):
        at = queue.divergence(step, index, self._writers[index].programs.prepared)
        assert at is not None
        run_files.write_end(self._runs[index].folder, f"diverged in round {at.round}")

  def fail(self, error: BaseException) -> None:
    if not isinstance(error, Exception) or not processes.lead():
      return  # the user or a scheduler stops it
    diverged = "diverged, " * isinstance(error, play_lib.NonFiniteError)
    for index in self._writers:
      if run_files.is_run(self._runs[index].folder):  # else it has not begun
        with contextlib.suppress(OSError):  # the first error is the one to see
          run_files.write_end(self._runs[index].folder, f"{diverged}{reason(error)}")

  def finish(self, setting: int, step: Step) -> None:
    self.summaries[setting] = self._writers.pop(setting).finish(step)

  def save(self, states: object, done: int, indices: Sequence[int]) -> None:
    """Saves a checkpoint of some settings.

    Args:
      states: the states of the program.
      done: rounds run to reach them.
      indices: the settings.
    """
    if not indices:
      return
    began = time.monotonic()
    for index in indices:
      self._writers[index].save(states, done)
    now = time.monotonic()
    if self._every_s:
      self._next = now + self._every_s
    elif now - began > _SLOW_SAVE:
      self._next = now + _SAVE_SPARING * (now - began)


def check_arguments(
  out_dir: object, overwrite: object, allow_other_devices: object
) -> None:
  """Checks the arguments of a run that belong to its folder.

  Args:
    out_dir: the folder; None: there is none.
    overwrite: an argument of ``run``.
    allow_other_devices: likewise.

  Raises:
    OptionError: one is no bool, or is true without a folder.
  """
  for name, value in (
    ("overwrite", overwrite),
    ("allow_other_devices", allow_other_devices),
  ):
    if of_type(name, value, bool) and out_dir is None:
      raise OptionError(f"`{name}`=True: needs `out_dir`, the folder of the run")


def own_parts(
  algorithm: object, federation: Federation, options: Mapping[str, object]
) -> dict[str, Any]:
  """Collects what a run in a folder cannot name, for ``load_run`` to read it again.

  Args:
    algorithm: an argument of ``run``.
    federation: likewise.
    options: the other arguments, of which `model` and `init` may have no name.
  """
  parts = {"algorithm": algorithm, **{k: options.get(k) for k in ("model", "init")}}
  return {"federation": federation} | {
    name: part
    for name, part in parts.items()
    if not isinstance(part, (str, os.PathLike, MethodConfig, Part))
  }


def run_stored(
  plans: Sequence[Plan],
  folders: Sequence[pathlib.Path],
  *,
  callbacks: Iterable[Callable[[Step], object]] = (),
  overwrite: bool = False,
  other_devices: bool = False,
  stop: bool = True,
  parts: Mapping[str, Any] | None = None,
) -> tuple[list[RunResult | None], int]:
  """Runs plans of one federation in folders, in as few programs as possible.

  Args:
    plans: the plans.
    folders: the folder of each.
    callbacks: sinks, or functions that are called with every ``Step`` from the first
      new evaluation on.
    overwrite: whether runs in the folders are replaced.
    other_devices: whether runs may go on on another machine.
    stop: whether a non-finite state ends the run; see ``play.run_steps``.
    parts: the caller's own parts, keywords of ``load_run``.

  Returns:
    The result of each plan, None for one that diverged, of a finished run the one in
    its folder; and the number of programs.

  Raises:
    RunFolderError, HeldError: see ``hold_run`` and ``check_prepared``.
    OptionError, DataError: a plan that does not fit its data, or cannot go on.
    NonFiniteError: a state became NaN or infinite and ``stop`` is true.
  """
  for plan in plans:
    if plan.measures:
      raise OptionError(
        f"`evaluate`={next(iter(plan.measures))}: the sums of a function are in no "
        "table, so a run with `out_dir` could not go on with them"
      )
  results: dict[pathlib.Path, RunResult | None] = {}
  functions, sinks = queue.split_callbacks(callbacks)
  warned, groups = set[str](), by_program(plans)
  for indices in groups:
    group = [plans[i] for i in indices]
    with contextlib.ExitStack() as stack:
      held = [
        stack.enter_context(hold_run(plans[i], folders[i], overwrite=overwrite))
        for i in indices
      ]
      prepared = group[0].prepare([plan.method.values() for plan in group])
      waiting = []
      for setting, run in enumerate(held):
        ended = has_ended(run)
        # A finished run is read, wherever it was run.
        check_prepared(run, prepared, setting, other_devices=other_devices or ended)
        if ended:
          results[run.folder] = result_lib.load_run(run.folder, **(parts or {}))
        else:
          waiting.append(run)
      for runs in by_round(waiting):
        if len(runs) < len(group):
          prepared = runs[0].plan.prepare([run.plan.method.values() for run in runs])
        warn(prepared, warned)
        programs = Programs(prepared, queue.notice_of(sinks))
        records, states, done = restore_states(runs, programs)
        memory = queue.KeepResults()
        queue.run_queue(
          programs,
          [Folders(runs), memory, *sinks],
          records=records,
          names=[run.folder.name for run in runs],
          states=states,
          done=done,
          stop=stop,
          callbacks=functions,
        )
        results |= zip([run.folder for run in runs], memory.results)
  return [results[folder] for folder in folders], len(groups)
