"""Runs a plan in a folder, so that it can go on after an interruption.

The folder is that of a run (``RunResult.save``), with a checkpoint of the last
evaluation and the tables up to it while the run is being run.
"""

from collections.abc import Callable, Iterable, Sequence
import json
import pathlib
from typing import Any

from fedjax_alg import files
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import checkpoint, processes
from fedjax_alg.errors import OptionError
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs import queue
from fedjax_alg.runs.plan import Plan, warn
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.result import (
  RunFolderError,
  RunResult,
  load_run,
  machine,
  make_facts,
)
from fedjax_alg.runs.sinks import Sink
from fedjax_alg.runs.stopping import ALL_ROUNDS

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

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

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
      run, or files of something else.
    RunError: another process runs what is in the folder.
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
  if path.exists() and not path.is_dir():
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
    raise RunFolderError(
      f"{path}: holds files of something else (no config.json of a run)"
    )
  if contents and not resume:
    raise RunFolderError(
      f"{path}: holds a run (resume=True goes on with it, or give another folder)"
    )
  prepared = plan.prepare()
  if contents:
    _check_same(path, prepared)
    if (path / "summary.json").is_file():
      finished = load_run(path, **own)
      done = int(finished.rounds[-1])
      early = finished.records.stopped != ALL_ROUNDS
      if early or done >= (prepared.options.rounds or 0):
        return finished
  warn(prepared, set())
  functions, sinks = queue.split_callbacks(callbacks)
  programs = Programs(prepared, queue.notice_of(sinks))
  (records,), memory = play_lib.new_records(programs, [path]), queue.KeepResults()
  states, done = _restore(path, programs, records) if contents else (None, 0)
  queue.run_queue(
    programs,
    [_Checkpoints(path), memory, *sinks],
    records=[records],
    states=states,
    done=done,
    callbacks=functions,
  )
  (result,) = memory.results
  assert result is not None
  result.save(path)
  return result


def _check_same(path: pathlib.Path, prepared: Prepared) -> None:
  """Refuses to go on with another run, other data, or on another machine.

  Raises:
    RunFolderError: the first thing that differs.
  """
  saved = run_files.read_facts(path, "config.json")
  if saved.get("identity") is not None:
    raise RunFolderError(f"{path}: the command line started it, and can resume it")
  facts = json.loads(json.dumps(make_facts(prepared)))
  for entry in _SAME:
    new, old = facts[entry], saved.get(entry)
    if entry in ("hparams", "data", "run") and isinstance(old, dict):
      for name in new:
        if name not in _MAY_DIFFER and new[name] != old.get(name):
          raise RunFolderError(f"{path}: has {name}={old.get(name)}, not {new[name]}")
    elif new != old:
      raise RunFolderError(f"{path}: has {entry}={old}, not {new}")
  _check_data(path, prepared.federation)
  here = json.loads(json.dumps(machine(prepared)))
  for name, value in here.items():
    if saved["machine"].get(name) != value:
      raise RunFolderError(
        f"{path}: was run with {name}={saved['machine'].get(name)}, here it is "
        f"{value}, so the last bits may differ"
      )


def _check_data(path: pathlib.Path, federation: Federation) -> None:
  saved = files.read_json(path / "partition.json")
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
  except checkpoint.CheckpointError as error:
    raise RunFolderError(str(error)) from error
  records.read(facts["round"], 0.0, facts.get("tables"))
  return programs.place(states), facts["round"]
