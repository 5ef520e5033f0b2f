"""Runs a plan in a folder, so that it can go on after an interruption.

The folder is that of a run (``RunResult.save``), with a checkpoint of the last
evaluation and the tables up to it while the run is being run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import json
import os
import pathlib
from typing import Any

from fedjax_alg import files
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import checkpoint, processes
from fedjax_alg.errors import OptionError, RunFolderError, reason
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import identity, queue
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs.plan import Plan, warn
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.result import (
  RunResult,
  load_run,
  machine,
  make_facts,
)
from fedjax_alg.runs.sinks import Sink
from fedjax_alg.runs.stopping import ALL_ROUNDS
from fedjax_alg.typing import Facts

#: Entries of config.json that a run has to share with the one it goes on with.
_SAME = (
  "algorithm",
  "model",
  "seeds",
  "protocols",
  "sources",
  "hparams",
  "data",
  "run",
)
#: Options that a run may have changed when it goes on.
_MAY_DIFFER = ("rounds", "targets")


class _Checkpoints(Sink):
  """Writes the tables, and a checkpoint of every evaluation."""

  def __init__(self, folder: pathlib.Path, objects: Mapping[str, str]):
    self._folder, self._objects = folder, objects

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    (self._records,) = records
    prepared = programs.prepared
    if not done:
      run_files.remove(self._folder)
    (self._folder / "summary.json").unlink(missing_ok=True)
    facts = make_facts(prepared) | {"compile_s": programs.compile_s}
    # First: it tells that the folder is a run, should the process be killed.
    facts = identity.with_objects(facts, self._objects)
    summary_lib.write_sealed(self._folder / "config.json", facts)
    summary_lib.write_partition(self._folder, prepared.federation)
    self._records.write()

  def __call__(self, step: Step) -> None:
    self._records.sync()
    header = {"identity": None, "tables": self._records.marks()}
    checkpoint.save(
      self._folder / run_files.CHECKPOINTS, step.states, step.round, header
    )


def run_in_folder(
  plan: Plan,
  folder: object,
  *,
  resume: bool = False,
  callbacks: Iterable[Callable[[Step], object]] = (),
  own: Any = None,
) -> RunResult:
  """Runs a plan in a folder; see ``api.run``.

  Args:
    plan: the run.
    folder: its folder.
    resume: whether to go on with the run in the folder if there is one.
    callbacks: functions and sinks, called from the first new evaluation on.
    own: keywords of ``load_run``, the caller's own parts.

  Returns:
    The result; of a finished run the one in the folder.

  Raises:
    RunFolderError: the folder holds a run and ``resume`` is false, or another
      run, or files of something else, or it cannot be written.
    HeldError: another process runs what is in the folder.
    OptionError: the plan cannot be run in a folder.
  """
  path = files.output_path(folder, "out_dir")  # type: ignore[arg-type]
  if processes.count() > 1:
    raise OptionError(
      "`out_dir`: runs of several processes go on by the command line alone "
      "(fedjax-alg run --resume)"
    )
  if plan.measures:
    raise OptionError(
      f"`evaluate`={next(iter(plan.measures))}: the sums of a function are in no "
      "table, so a run with `out_dir` could not go on with them"
    )
  if os.path.exists(path) and not os.path.isdir(path):
    raise RunFolderError(f"{path}: is a file")
  with lock.hold(path):
    return _run_in_held(plan, path, resume, callbacks, own or {})


def _run_in_held(
  plan: Plan,
  path: pathlib.Path,
  resume: bool,
  callbacks: Iterable[Callable[[Step], object]],
  own: dict[str, Any],
) -> RunResult:
  contents = [entry for entry in path.iterdir() if entry.name != lock.NAME]
  if contents and not run_files.is_run(path):
    why = "no config.json of a run"
    if (path / "config.json").is_file():
      why = "config.json is damaged, or not a run's"
    raise RunFolderError(f"{path}: holds files of something else ({why})")
  if contents and not resume:
    raise RunFolderError(
      f"{path}: holds a run (resume=True goes on with it, or give another folder)"
    )
  prepared = plan.prepare()
  objects = identity.hash_objects(prepared)
  if contents:
    _check_same(path, prepared, objects)
    if (path / "summary.json").is_file():
      finished = load_run(path, **own)
      done = int(finished.rounds[-1])
      _check_rounds(path, done, prepared)
      early = finished.records.stopped != ALL_ROUNDS
      if early or done == prepared.options.rounds:
        return finished
  warn(prepared, set())
  functions, sinks = queue.split_callbacks(callbacks)
  programs = Programs(prepared, queue.notice_of(sinks))
  (records,), memory = play_lib.new_records(programs, [path]), queue.KeepResults()
  states, done = _restore(path, programs, records) if contents else (None, 0)
  queue.run_queue(
    programs,
    [_Checkpoints(path, objects), memory, *sinks],
    records=[records],
    states=states,
    done=done,
    callbacks=functions,
  )
  (result,) = memory.results
  assert result is not None
  result.save(path)
  return result


def _check_same(
  path: pathlib.Path, prepared: Prepared, objects: Mapping[str, str]
) -> None:
  """Refuses to go on with another run, other data, or on another machine.

  Args:
    path: the folder of the run.
    prepared: the run that is asked for.
    objects: the hashes of its objects (``identity.hash_objects``).

  Raises:
    RunFolderError: the first thing that differs, or is damaged.
  """
  saved = run_files.read_sealed(path, "config.json")
  if saved.get("identity") is not None or "flags" in saved:
    raise RunFolderError(
      f"{path}: the command line began this run, and goes on with it: fedjax-alg run "
      f"{run_files.resume_flags(path)} (load_run reads it when it is finished)"
    )
  facts = json.loads(json.dumps(make_facts(prepared)))
  for entry in _SAME:
    new, old = facts[entry], saved.get(entry)
    if isinstance(old, dict):
      names = (*new, *old) if entry == "sources" else new
      for name in names:
        if name not in _MAY_DIFFER and new.get(name) != old.get(name):
          raise RunFolderError(_describe(path, entry, name, old, new))
    elif new != old and not (entry == "model" and None in (new, old)):
      raise RunFolderError(f"{path}: has {entry}={old}, not {new}")
  change = identity.find_other(saved, objects)
  if change:
    raise RunFolderError(
      f"{path}: {change} than the one that this run was begun with; give that one, or "
      "another folder"
    )
  here = json.loads(json.dumps(machine(prepared)))
  before = saved.get("machine")
  for name, value in here.items():
    old = before.get(name) if isinstance(before, dict) else None
    if old != value:
      raise RunFolderError(
        f"{path}: was run with {name}={old}, here it is {value}, so the last bits "
        "may differ"
      )
  if saved["plan"].get("frozen_sha256") != facts["plan"].get("frozen_sha256"):
    raise RunFolderError(f"{path}: model has other frozen parameters than this run")
  header = next(checkpoint.headers(path / run_files.CHECKPOINTS), None)
  if header is not None:
    _check_rounds(path, header["round"], prepared)
  if header is not None or (path / "summary.json").is_file():
    _check_data(path, prepared.federation)


def _describe(path: pathlib.Path, entry: str, name: str, old: Facts, new: Facts) -> str:
  """Says in which part of an entry of config.json two runs differ."""
  if entry == "sources":
    file = (new.get(name) or old[name])["file"] or "what it is"
    return f"{path}: {name}: {file} has changed since this run was begun"
  return f"{path}: has {name}={old.get(name)}, not {new.get(name)}"


def _check_rounds(path: pathlib.Path, done: int, prepared: Prepared) -> None:
  """Refuses fewer rounds than have been run.

  Raises:
    RunFolderError: they are fewer.
  """
  rounds = prepared.options.rounds
  assert rounds is not None
  if done > rounds:
    raise RunFolderError(
      f"{path}: has run {done} rounds, more than rounds={rounds}; give at least "
      f"rounds={done}, or another folder"
    )


def _check_data(path: pathlib.Path, federation: Federation) -> None:
  """Refuses other data than those that a run was begun with.

  Raises:
    RunFolderError: they are others, or it is not known any more.
  """
  try:
    saved = files.read_json(path / "partition.json")
  except (OSError, ValueError) as error:
    raise RunFolderError(
      f"{path}: partition.json, which says on what data it was begun, is missing or "
      f"damaged ({reason(error)}); restore it, or start over in another folder"
    ) from error
  for key, name in (("data_hash", "data"), ("hash", "partition")):
    if saved.get(key) != federation.hashes[name]:
      raise RunFolderError(f"{path}: its {name} changed after it was started")


def _restore(
  path: pathlib.Path, programs: Programs, records: Records
) -> tuple[Any, int]:
  """Loads the last whole checkpoint; fills the tables up to its round."""
  folder = path / run_files.CHECKPOINTS
  if not checkpoint.checkpoint_paths(folder):
    return None, 0
  try:
    states, facts, _ = checkpoint.load_latest(folder, programs.shapes)
    records.read(facts["round"], 0.0, facts.get("tables"))
  except (checkpoint.CheckpointError, OptionError) as error:
    raise RunFolderError(str(error)) from error
  return programs.place(states), facts["round"]
