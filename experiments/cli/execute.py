"""Plays a run that the command line asks for, and writes its results."""

from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import pathlib
import shutil
import sys
import time
from typing import Any, NamedTuple
import weakref

import jax
import numpy as np

from fedjax_alg import files, split
from fedjax_alg.data.federation import Federation, from_options
from fedjax_alg.data.options import DataOptions, field_values
from fedjax_alg.engine import checkpoint, loop, processes, samplers
from fedjax_alg.hparams import reads
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records import tables
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs import result as result_lib
from fedjax_alg.runs.api import Callback
from fedjax_alg.runs.pace import Pace, Pause
from fedjax_alg.runs.prepare import cautions, prepare, Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.progress import ProgressBar
from fedjax_alg.runs.stopping import ALL_ROUNDS
from fedjax_alg.runs.tensorboard import TensorBoard
from ..reports import plots
from . import config as config_lib
from . import flags, lock, signals
from . import folder as folder_lib
from .config import Config
from .guard import RunError

#: Without --checkpoint_every_s the states are saved after every evaluation. If
#: saving takes longer than ``_SLOW_SAVE`` seconds, as with large tables of all
#: clients' models, the next save waits until ``_SAVE_SPARING`` times that
#: duration has passed.
_SLOW_SAVE, _SAVE_SPARING = 0.1, 20.0

#: Seconds that a call of the compiled rounds may take, so that a signal does
#: not wait for long.
_CALL_S = 5.0


@functools.lru_cache(maxsize=1)
def federation_of(options: DataOptions) -> Federation:
  """The federation of a run; it is kept in case the next run needs it too."""
  return from_options(options)


def prepared_run(config: Config, **more: Any) -> Prepared:
  """Prepares a run so that it can be compiled.

  Args:
    config: the run, from ``config.parse``.
    **more: further arguments of ``prepare.prepare``.
  """
  return prepare(config.method, federation_of(config.data), config.run, **more)


def finished(folder: pathlib.Path, config: Config) -> bool:
  """Whether ``folder`` holds this run with all its rounds, or ended early.

  All its files must be there and whole, see ``records.folder.whole``. If they
  are, the lock of a process that was killed is removed.
  """
  try:
    summary = files.read_json(folder / "summary.json")
    played, asked = summary["cost"]["rounds"], config.run.rounds
    found = summary["identity"] == config.identity() and (
        played == asked or (summary.get("stopped", ALL_ROUNDS) != ALL_ROUNDS
                            and played < asked)) and (
                                run_files.whole(folder, summary))
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return False
  if found:
    lock.tidy(folder)
  return found


def read_summary(folder: pathlib.Path) -> dict[str, Any]:
  """summary.json of a finished run."""
  return files.read_json(folder / "summary.json")


def execute(
    config: Config, programs: Programs | None = None) -> dict[str, Any]:
  """Plays a run and writes its results.

  Args:
    config: the run, from ``config.parse``.
    programs: its programs; by default they are compiled now.

  Returns:
    summary.json as a dictionary, which is empty with --dry_run.

  Raises:
    OptionError, RunError: one line for the user.
  """
  refuse_several(config, joined=processes.joined())
  signals.check()
  signals.wait_at_most(config.output.grace_s)
  with contextlib.ExitStack() as held:
    start = processes.agree(lambda: _start(config, held))
    config = dataclasses.replace(config, first_devices=start.first_devices)
    if start.finished:
      assert start.folder is not None
      return read_summary(start.folder) if processes.lead() else {}
    compiled = _compiled(config, programs, start)
    if start.folder is None:
      if processes.lead():
        print_plan(config, compiled)
      return {}
    summary = _train(config, compiled, start.folder, start.resuming)
  signals.keep(signals.NOTHING)
  return summary


class _Start(NamedTuple):
  """What is found in the folder of a run before it starts."""

  folder: pathlib.Path | None  #: None with --dry_run
  resuming: bool
  finished: bool
  first_devices: int | None  #: see ``Config``


def _start(config: Config, held: contextlib.ExitStack) -> _Start:
  """Takes the folder of a run, which ``held`` gives back, and looks into it."""
  if config.output.dry_run:
    return _Start(None, False, False, None)
  folder, resuming = held.enter_context(folder_lib.taken(config))
  devices = None
  if resuming:
    devices = folder_lib.first_devices(folder, config)
    config = dataclasses.replace(config, first_devices=devices)
    check_same(folder, config)
    if finished(folder, config):
      print(f"{folder}: finished, nothing to do", file=sys.stderr)
      return _Start(folder, True, True, devices)
    check_tables(folder, config)
  elif config.output.resume:
    # No error: a batch job that is started again gives the same command.
    print(f"no run in {folder} yet: starting at round 0", file=sys.stderr)
  return _Start(folder, resuming, False, devices)


def refuse_several(config: Config, joined: bool = False) -> None:
  """Refuses flags of several processes where a command does not join them.

  Raises:
    UsageError: the flags ask for several processes.
  """
  if config.processes.several and not joined:
    raise config_lib.UsageError(
        "--distributed: plays a single run in several processes, not the runs "
        "of a sweep or figure (python -m experiments.run has it)")


def _compiled(
    config: Config, programs: Programs | None, start: _Start) -> Programs:
  prepared = programs.prepared if programs else prepared_run(config)
  folder = start.folder
  if folder is not None and start.resuming:
    processes.agree(lambda: check_machine(folder, config, prepared))
  if processes.lead():
    warn(prepared, set())
  return programs or Programs(prepared)


def warn(prepared: Prepared, said: set[str]) -> None:
  """Prints what a run should be warned of, see ``prepare.cautions``.

  Args:
    prepared: the run.
    said: the warnings that were printed already; the new ones are added.
  """
  for text in cautions(prepared, said):
    print(f"warning: {flags.as_flags(text)}", file=sys.stderr)


def check_same(folder: pathlib.Path, config: Config) -> None:
  """Refuses to resume a run that was started with other flags.

  Raises:
    UsageError: the flags differ, or config.json is damaged.
  """
  try:
    saved = files.read_json(folder / "config.json")
    identity, old = saved["identity"], saved["flags"] | saved["hparams"]
  except (OSError, ValueError, KeyError, TypeError):
    raise config_lib.UsageError(
        f"--out_dir={folder}: config.json is damaged, cannot resume") from None
  if identity == config.identity():
    # The draw became an option when that of many clients changed.
    clients = saved.get("plan", {}).get("clients", 0)
    if "draw" not in old and not config.data.newcomers_at and (
        config.run.sampler(clients) is samplers.by_bijection):
      raise config_lib.UsageError(
          f"--resume: the run in {folder} is of an earlier version, which drew "
          f"cohorts of more than {samplers.FEW_CLIENTS:,} clients in another "
          "way; start anew in another folder")
    return
  held = saved.get("sources", {})
  for flag, source in config.sources.items():
    if flag in held and held[flag]["sha256"] != source.sha256:
      raise config_lib.UsageError(
          f"--{flag}: {source.file} has changed since the run in {folder} was "
          "started; restore it or start anew in another folder")
  new = json.loads(json.dumps(config.values | config.hparams, default=str))
  later = {name: field.default for name, field in config.fields.items()
           if field.metadata.get("later")}
  old = json.loads(json.dumps(later)) | old
  changed = [k for k in new
             if k not in flags.NEUTRAL and new[k] != old.get(k)]
  if not changed:
    raise config_lib.UsageError(
        f"--resume: the run in {folder} was started with flags or files that "
        "its config.json does not name (another version, or edited); start "
        "anew in another folder")
  name = changed[0]
  raise config_lib.UsageError(
      f"--{name}={new.get(name)}: the run in {folder} has "
      f"{old.get(name)}; resume with its flags "
      f"({folder_lib.resume_words(folder)}) or start anew in another folder")


def check_rounds(folder: pathlib.Path, config: Config, done: int) -> None:
  """Refuses to resume a run that has played more rounds than are asked for.

  Raises:
    UsageError: it has.
  """
  rounds = config.run.rounds
  assert rounds is not None
  if done > rounds:
    raise config_lib.UsageError(
        f"--rounds={rounds}: the run in {folder} has {done} already; start "
        "anew in another folder")


def check_tables(folder: pathlib.Path, config: Config) -> None:
  """Refuses to resume a run whose tables are not those of a checkpoint.

  Raises:
    OptionError: they are not, or there is no checkpoint where one was.
  """
  checkpoints = folder / run_files.CHECKPOINTS
  for facts in checkpoint.headers(checkpoints):  # the newest that is whole
    tables.check(folder, config.seeds, facts["round"], facts.get("tables"),
                 config.run.eval_every)
    return
  if checkpoint.paths(checkpoints):
    return  # damaged: ``restore`` says so
  rows = tables.last_round(folder)
  if not rows:
    return
  if not checkpoints.is_dir() or (folder / "summary.json").exists():
    raise config_lib.UsageError(
        f"--resume: {checkpoints} is gone, but the tables have {rows} rounds; "
        "restore it, or start anew with --overwrite or in another folder")
  print(f"{folder}: no checkpoint yet, starting again at round 0 (the tables "
        f"have {rows})", file=sys.stderr)


#: An entry of "machine" in config.json -> how messages name it.
_MACHINE = {"devices": "devices", "processes": "processes",
            "kind": "kind of device", "map_clients": "--map_clients",
            "map_seeds": "--map_seeds", "draw": "draw of clients",
            "jax": "JAX", "jaxlib": "jaxlib"}


def _machines(folder: pathlib.Path) -> dict[str, Any]:
  """"machine" and "resumed_on" of config.json, if they are there."""
  facts = files.read_json(folder / "config.json")
  machine, later = facts.get("machine"), facts.get("resumed_on")
  known: dict[str, Any] = {}
  if isinstance(machine, dict):
    known["machine"] = machine
  if isinstance(later, list) and later and (
      all(isinstance(entry, dict) for entry in later)):
    known["resumed_on"] = later
  return known


def check_machine(
    folder: pathlib.Path, config: Config, prepared: Prepared) -> None:
  """Refuses to resume a run where its bits may differ, unless that is allowed.

  Raises:
    UsageError: the devices, the client map, the draw or JAX differ.
  """
  if not checkpoint.paths(folder / run_files.CHECKPOINTS):
    return  # it starts again, here
  known = _machines(folder)
  last = known.get("resumed_on", [known.get("machine")])[-1]
  if last is None:
    print(f"note: config.json of {folder} does not say on which devices it was "
          "started (an earlier version); other devices give other bits",
          file=sys.stderr)
    return
  here = result_lib.machine(prepared)
  differ = [f"{said} {last[name]}, here {here[name]}"
            for name, said in _MACHINE.items()
            if name in last and last[name] != here[name]]
  if differ and not config.output.allow_other_devices:
    raise config_lib.UsageError(
        f"--resume: the run in {folder} was played with {'; '.join(differ)}, "
        "so its last bits may differ; --allow_other_devices goes on anyway")


def restore(
    folder: pathlib.Path, config: Config, shapes: Any, records: Records
) -> tuple[Any, int]:
  """Loads the last complete checkpoint, and reads ``records`` up to its round.

  Args:
    folder: the folder of the run.
    config: the run.
    shapes: the shapes of its states.
    records: the empty tables to fill.

  Returns:
    The states as NumPy arrays, or None without a checkpoint, and the number of
    rounds that were played to reach them.

  Raises:
    RunError, UsageError: one line for the user.
  """
  if not checkpoint.paths(folder / run_files.CHECKPOINTS):
    return None, 0
  try:
    states, facts, warnings = checkpoint.load_latest(
        folder / run_files.CHECKPOINTS, shapes)
  except checkpoint.CheckpointError as error:
    raise RunError(str(error)) from error
  for line in warnings:
    print(line, file=sys.stderr)
  if facts.get("identity") != config.identity():
    raise RunError(f"the checkpoint in {folder} is of other flags than its "
                   "config.json")
  check_rounds(folder, config, facts["round"])
  records.read(facts["round"], facts.get("unfinished_s", 0.0),
               facts.get("tables"), config.run.eval_every)
  return states, facts["round"]


#: federation -> where its partition.png was drawn last.
_DRAWN: weakref.WeakKeyDictionary[Federation, pathlib.Path] = (
    weakref.WeakKeyDictionary())


def _draw_partition(path: pathlib.Path, federation: Federation) -> None:
  """Draws who holds which classes, once for all runs of a federation."""
  known = _DRAWN.get(federation)
  if known is not None and known != path and known.is_file():
    with files.replacing(path) as partial:
      shutil.copyfile(known, partial)
    return
  plots.histogram(
      path, federation.label_histogram,
      f"{federation.name}, {federation.partition.name}: "
      f"{federation.num_clients} clients", federation.client_names)
  _DRAWN[federation] = path


class RunWriter:
  """The folder of one run, or of one setting of a sweep."""

  def __init__(
      self, folder: pathlib.Path, config: Config, programs: Programs,
      records: Records, index: int = 0):
    """Makes the writer, which writes nothing yet.

    Args:
      folder: the folder of the run.
      config: the configuration of this run alone, also in a sweep.
      programs: the programs that play the run.
      records: the tables of the run.
      index: the index of the run among the settings of ``programs``.
    """
    self.folder, self.config, self.records = folder, config, records
    self._programs, self._index = programs, index
    prepared = programs.prepared
    self.num_seeds = len(prepared.seeds)
    self._facts = result_lib.make_facts(prepared, index) | {
        "identity": config.identity(), "flags": config.values,
        "hparams": config.hparams, "compile_s": programs.compile_s}
    if config.first_devices is not None:
      self._facts["first_devices"] = config.first_devices
    self.saved = 0  #: the round of the last checkpoint

  def start(self) -> None:
    """Writes the files that describe the run, and its tables so far.

    What an earlier run left is removed, unless its states are gone on from.
    """
    if not processes.lead():
      self.records.folder = None
      return
    federation = self._programs.prepared.federation
    self.folder.mkdir(parents=True, exist_ok=True)
    if self.saved:
      self._note_machine()
      # The tables are about to have more rows than it knows of.
      (self.folder / "summary.json").unlink(missing_ok=True)
    else:
      run_files.remove(self.folder)
    # First: it tells that the folder is a run, should the process be killed.
    summary_lib.write_json(self.folder / "config.json", self._facts)
    summary_lib.write_text(
        self.folder / "flags.txt", "\n".join(self.config.flag_lines()) + "\n")
    summary_lib.write_partition(self.folder, federation)
    _draw_partition(self.folder / "partition.png", federation)
    self.records.write()
    # That it is there says that no checkpoint was deleted.
    (self.folder / run_files.CHECKPOINTS).mkdir(exist_ok=True)

  def _note_machine(self) -> None:
    """Keeps in config.json where the rounds so far were played."""
    here, known = self._facts["machine"], _machines(self.folder)
    on = known.get("resumed_on", [])
    last = on[-1] if on else known.get("machine", {})
    if any(last.get(name) != value for name, value in here.items()):
      on = [*on, {"round": self.saved, **here}]
    self._facts["machine"] = known.get("machine")
    if on:
      self._facts["resumed_on"] = on

  def states_of(self, states: Any) -> Any:
    """The part of a program's states that belongs to this run."""
    prepared = self._programs.prepared
    if len(prepared.settings) == 1:
      return states
    num = len(prepared.seeds)
    return jax.tree.map(
        lambda leaf: leaf[self._index * num:(self._index + 1) * num], states)

  def save(self, states: Any, done: int) -> None:
    """Saves a checkpoint.

    Args:
      states: the states of the program.
      done: rounds played to reach them.
    """
    facts: dict[str, Any] = {}
    if processes.lead():
      facts["identity"] = self.config.identity()
      if self.records.unfinished_s:  # a checkpoint between two evaluations
        facts["unfinished_s"] = self.records.unfinished_s
      self.records.sync()
      facts["tables"] = self.records.marks()
    checkpoint.save(self.folder / run_files.CHECKPOINTS,
                    self.states_of(states), done, facts)
    self.saved = done

  def finish(self, last: play_lib.Step) -> dict[str, Any]:
    """Writes the results after the last round; returns the summary.

    Args:
      last: the step at which the run ended.
    """
    prepared = self._programs.prepared
    states = processes.on_host(self.states_of(last.states))
    final_state = _agreed_hash(states)
    if not processes.lead():
      return {}
    live = result_lib.Live(prepared, states, self._index)
    result_lib.write_final(
        self.folder, result_lib.make_final(live, last), prepared.seeds,
        prepared.federation.client_names)
    plots.run_curves(
        [self.folder / "curves.png", self.folder / "curves.pdf"],
        self.records.rows,
        f"{prepared.method.entry.label}, {prepared.federation.name}, "
        f"{prepared.spec.cohort_size} of {prepared.spec.num_clients} clients")
    summary = result_lib.make_summary(
        self.records, prepared, final_state, self._facts)
    if "resumed_on" in self._facts:
      summary["resumed_on"] = self._facts["resumed_on"]
    # Last: it tells that all files are whole.
    return result_lib.write_summary(self.folder, summary)


def _agreed_hash(states: Any) -> str:
  """The hash of the final states, of which all processes have the same bits.

  They compute the server's part each on its own, and other machines may round
  otherwise.

  Raises:
    RunError: they have not.
  """
  own = checkpoint.state_hash(states)
  if own != processes.agree(lambda: own):
    raise RunError("this process has another final state than process 0; start "
                   "all processes on machines of one kind")
  return own


class Saver:
  """Saves the runs of a program in time, and stops them where a signal asks."""

  def __init__(
      self, writers: Mapping[int, RunWriter], output: flags.OutputOptions,
      what: str):
    """Makes the saver.

    Args:
      writers: index of a setting -> its writer; the caller takes out those that
        have ended.
      output: says how often to save.
      what: the runs in words, for the line that says what was saved.
    """
    self._writers, self._every_s = writers, output.checkpoint_every_s
    self._what = what
    num = next(iter(writers.values())).num_seeds
    self._next = time.monotonic() + self._every_s
    limits = [_CALL_S, output.checkpoint_every_s, output.grace_s / 2]
    #: how ``play`` shares rounds out to calls; None with several processes,
    #: whose clocks do not agree
    self.pace = None if processes.count() > 1 else Pace(
        min(limit for limit in limits if limit), self._due,
        lambda pause: self._pause(pause, {
            row // num for row in pause.diverged}))
    self._note()
    signals.check()

  def _due(self) -> bool:
    return signals.pending() or bool(
        self._every_s) and time.monotonic() >= self._next

  def _pause(self, pause: Pause, diverged: Collection[int]) -> None:
    self._save(pause.states, pause.round, [
        index for index in self._writers if index not in diverged])
    signals.check()

  def save(self, step: play_lib.Step, diverged: Collection[int] = ()) -> None:
    """Saves at an evaluation if it is time.

    Args:
      step: the evaluation.
      diverged: settings that are not saved.
    """
    due = signals.agreed(
        signals.pending() or time.monotonic() >= self._next)
    self._save(step.states, step.round, [
        index for index in self._writers if index not in diverged
        and (due or step.last or index in step.stopped)])

  def stop(self, step: play_lib.Step) -> None:
    """Stops after an evaluation that is not the last one, if a signal asks.

    Raises:
      Stopped: a signal does.
    """
    if not step.last and signals.agreed(signals.pending()):
      signals.stop()

  def _save(self, states: Any, done: int, indices: Sequence[int]) -> None:
    if not indices:
      return
    began = time.monotonic()
    with signals.saving():
      for index in indices:
        self._writers[index].save(states, done)
    self._note()
    now = time.monotonic()
    if self._every_s:
      self._next = now + self._every_s
    elif now - began > _SLOW_SAVE:
      self._next = now + _SAVE_SPARING * (now - began)

  def _note(self) -> None:
    saved = max((writer.saved for writer in self._writers.values()), default=0)
    rounds = next(iter(self._writers.values())).config.run.rounds
    signals.keep(f"{self._what}: saved at round {saved} of {rounds}" if saved
                 else f"{self._what}: nothing saved yet")


def callbacks(
    config: Config, folders: Sequence[pathlib.Path]) -> list[Callback]:
  """What the flags ask to be called at every evaluation, beside the bar.

  Args:
    config: one of the settings, which share these flags.
    folders: the folder of each setting of a program.
  """
  if not config.output.tensorboard or not processes.lead():
    return []
  board = TensorBoard("")
  board.begin([str(folder / "tensorboard") for folder in folders])
  return [board]


def _train(
    config: Config, programs: Programs, folder: pathlib.Path, resuming: bool
) -> dict[str, Any]:
  """Plays the run from evaluation to evaluation; returns its summary."""
  (records,) = play_lib.new_records(programs, [folder])
  writer = RunWriter(folder, config, programs, records)
  states, done = None, 0
  if resuming:
    states, done = restore(folder, config, programs.shapes, records)
    if done != processes.agree(lambda: done):
      raise RunError(
          f"{folder}: this process does not find the checkpoint of process 0; "
          "all must see one folder")
    states = None if states is None else programs.place(states)
    writer.saved = done
  writer.start()
  bar = ProgressBar(config.method.entry.label, done,
                    config.output.progress and processes.lead())
  bar.compiled(programs.compile_s)
  last, more = None, callbacks(config, [folder])
  saver = Saver({0: writer}, config.output, str(folder))
  with contextlib.closing(bar):
    for last in _played(programs, writer, states, done, saver.pace):
      for callback in more:
        callback(last)
      saver.save(last)
      bar(last)
      saver.stop(last)
  if last is None:  # all rounds were played before; only the summary is missing
    last = play_lib.evaluated(programs, states, done)
  return writer.finish(last)


def _played(
    programs: Programs, writer: RunWriter, states: Any, done: int,
    pace: Pace | None) -> Iterator[play_lib.Step]:
  """The steps of a run; the error of a diverged run names its checkpoint."""
  try:
    yield from play_lib.play(
        programs, [writer.records], states, done, pace=pace)
  except play_lib.NonFiniteError as error:
    kept = f"round {writer.saved}" if writer.saved else "none yet"
    raise RunError(
        f"{flags.as_flags(error.text)}; last good checkpoint: {kept}, in "
        f"{writer.config.out_dir}") from error


def print_plan(config: Config, programs: Programs) -> None:
  """Prints what --dry_run shows."""
  prepared = programs.prepared
  data_mb = sum(leaf.nbytes for leaf in jax.tree.leaves(
      prepared.placed.data)) / 2**20
  state_mb = split.nbytes(programs.shapes) / 2 ** 20
  hparams = config.method.resolved().hparams
  facts = {
      "algorithm": config.algorithm,
      **{name: value for name, value in field_values(hparams).items()
         if reads(hparams, name)},
      "dataset": config.data.dataset,
      "partition": prepared.federation.partition.name,
      **prepared.plan, "rounds": programs.rounds, "seeds": config.seeds,
      "evaluations": -(-programs.rounds // config.run.eval_every),
      "protocols": list(prepared.protocols), "shift": config.data.shift,
      "data_mb": round(data_mb, 1), "state_mb": round(state_mb, 2),
      "program_mb": round(programs.memory_mb(), 1),
      "process_peak_mb": summary_lib.peak_memory_mb(),
      "compile_s": round(programs.compile_s, 1)}
  privacy = prepared.privacy()
  if privacy is not None:
    facts["privacy"] = privacy.facts(programs.rounds)
  for name, value in facts.items():
    print(f"{name:18} {value}")
  for name, leaf in zip(loop.leaf_names(programs.shapes),
                        jax.tree.leaves(programs.shapes)):
    print(f"{'state ' + name:34} {leaf.dtype}{list(leaf.shape)}")


def _number(value: float | None) -> str:
  """A number with four decimals; None, which stands for NaN in JSON, is nan."""
  return f"{np.nan if value is None else value:.4f}"


def print_summary(config: Config, summary: dict[str, Any]) -> None:
  """Prints the results in a few lines."""
  if summary.get("stopped", ALL_ROUNDS) != ALL_ROUNDS:
    print(f"ended after round {summary['cost']['rounds']} of "
          f"{config.run.rounds} by --{summary['stopped'].replace(' ', '=')}")
  for protocol, values in summary["final"].items():
    accuracy = values["accuracy"]
    seeds = len(accuracy["values"])
    over = f"95 % CI, {seeds} seeds" if seeds > 1 else "1 seed"
    print(f"{protocol:12} accuracy {summary_lib.shown(accuracy, 4)} ({over}), "
          f"macro F1 {_number(values['macro_f1']['mean'])}")
  if "groups" in summary:
    found = summary["groups"]
    sizes = "; ".join(" ".join(map(str, own)) for own in found["sizes"])
    print(f"{'groups':12} sizes {sizes}; {found['empty_groups']['mean']:g} "
          f"empty, purity {_number(found['purity']['mean'])}, adjusted Rand "
          f"index {_number(found['ari']['mean'])} (against clients with the "
          "same classes)")
  timing = summary["timing"]
  print(f"{timing['steady_s_per_round'] * 1e3:.1f} ms per round and seed, "
        f"compiled in {timing['compile_s']:.1f} s, peak memory "
        f"{summary['peak_memory_mb']:.0f} MB")
  print(f"results in {config.out_dir}")
