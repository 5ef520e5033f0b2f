"""The state of runs in folders, read without running or locking anything."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import pathlib
import statistics
from typing import Any

from fedjax_alg import files
from fedjax_alg.engine import checkpoint
from fedjax_alg.errors import OptionError, RunFolderError, reason
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock, tables
from fedjax_alg.runs.stopping import is_over

#: States of a run, from the one that needs nothing to those that need somebody.
DONE, RUNNING, INTERRUPTED, MISSING, DIVERGED, FAILED = STATES = (
  "done",
  "running",
  "interrupted",
  "missing",
  "diverged",
  "failed",
)

#: In the folder of many runs: what was asked for -> folder of a run -> its rounds.
PLANNED = "planned.json"


@dataclasses.dataclass(frozen=True)
class RunStatus:
  """The state of one run."""

  folder: pathlib.Path
  state: str  #: one of ``STATES``
  round: int = 0  #: rounds that are saved
  rounds: int | None = None  #: rounds in all; None: not known
  where: str = ""  #: the process that runs it
  why: str = ""  #: why it has no results
  seconds_left: float | None = None  #: None: not known

  def facts(self) -> dict[str, Any]:
    """Returns the fields as JSON has them."""
    return {**dataclasses.asdict(self), "folder": str(self.folder)}


def note_planned(
  root: pathlib.Path, name: str, rounds: Mapping[pathlib.Path, int | None]
) -> None:
  """Notes which runs belong together, so that missing ones and rounds can be told.

  Args:
    root: the folder that all are in.
    name: what was asked for; an earlier note of this name is replaced.
    rounds: the folder of each of its runs -> the rounds that it is to have.
  """
  paths = {of.relative_to(root).as_posix(): number for of, number in rounds.items()}
  planned = _planned(root)
  if planned.get(name) != paths:
    root.mkdir(parents=True, exist_ok=True)
    with files.replacing(root / PLANNED) as partial:
      partial.write_text(json.dumps(planned | {name: paths}, indent=1) + "\n", "utf-8")


def _planned(root: pathlib.Path) -> dict[str, dict[str, int | None]]:
  """What ``note_planned`` has noted; of a damaged file nothing.

  Notes of former versions have the folders only, in a list.
  """
  try:
    facts = files.read_json(root / PLANNED)
  except (OSError, ValueError):
    return {}
  notes = {
    name: dict.fromkeys(path for path in paths if isinstance(path, str))
    if isinstance(paths, list)
    else paths
    for name, paths in facts.items()
  }
  return {
    name: {
      path: rounds if isinstance(rounds, int) else None
      for path, rounds in of_name.items()
    }
    for name, of_name in notes.items()
    if isinstance(of_name, dict)
  }


def _find(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """The folders of runs at ``root``, in it, and in those folders."""
  if run_files.is_run(root):
    yield root
  for depth in ("*", "*/*"):
    for path in sorted(root.glob(f"{depth}/config.json")):
      if run_files.is_run(path.parent):
        yield path.parent


def read_status(root: pathlib.Path, name: str = "") -> list[RunStatus]:
  """Reads the states of all runs in a folder.

  Args:
    root: the folder of a run, of a sweep, or of figures.
    name: what was asked for (``note_planned``), for its runs alone; "": all.

  Returns:
    The state of each, sorted by their folders.

  Raises:
    RunFolderError: there is no run, and none was asked for; or nothing of the name
      was.
  """
  planned = _planned(root)
  if name and name not in planned:
    hint = f", only {', '.join(planned)}" if planned else ""
    raise RunFolderError(f"{root}: no runs of {name} were asked for{hint}")
  needed: dict[pathlib.Path, int] = {} if name else dict.fromkeys(_find(root), 0)
  for of_name in [planned[name]] if name else planned.values():
    for path, rounds in of_name.items():
      needed[root / path] = max(rounds or 0, needed.get(root / path, 0))
  if not needed:
    raise RunFolderError(f"{root}: holds no run")
  states = [_status_of(folder, needed[folder]) for folder in sorted(needed)]
  if all(state.state != MISSING for state in states):
    return states
  # Runs that have begun tell how long those take that have not.
  durations = [
    state.rounds * seconds
    for state in states
    if state.rounds and (seconds := _seconds_a_round(state.folder))
  ]
  mean = statistics.fmean(durations) if durations else None
  return [
    dataclasses.replace(state, seconds_left=mean) if state.state == MISSING else state
    for state in states
  ]


def _status_of(folder: pathlib.Path, needed: int) -> RunStatus:
  """The state of one run, of which at least ``needed`` rounds are asked for."""
  where = lock.living_holder(folder)
  if not run_files.is_run(folder):
    if where:
      return RunStatus(folder, RUNNING, where=where)
    if (folder / "config.json").exists():
      return RunStatus(folder, FAILED, why="config.json is damaged, or not a run's")
    return RunStatus(folder, MISSING)
  rounds: int | None = None
  done = checkpoint.newest_round(folder / run_files.CHECKPOINTS) or 0
  try:
    config = run_files.read_sealed(folder, "config.json")
    rounds = max(needed, int(config["run"]["rounds"]))
    if not where and (folder / "summary.json").exists():
      _, summary = run_files.read_finished(folder)
      if is_over(summary, config, rounds):
        return RunStatus(folder, DONE, int(summary["cost"]["rounds"]), rounds)
  except (RunFolderError, LookupError, TypeError, ValueError) as error:
    return RunStatus(folder, FAILED, done, rounds, where, reason(error))
  why = "" if where else run_files.read_end(folder)
  if why:
    state = DIVERGED if why.startswith(DIVERGED) else FAILED
    return RunStatus(folder, state, done, rounds, why=why)
  seconds = _seconds_a_round(folder)
  seconds_left = None if seconds is None else (rounds - done) * seconds
  state = RUNNING if where else INTERRUPTED
  return RunStatus(folder, state, done, rounds, where, seconds_left=seconds_left)


def _seconds_a_round(folder: pathlib.Path) -> float | None:
  """Seconds of a round of all seeds, by timing.csv; None: no round is timed."""
  try:
    seeds = len(run_files.read_sealed(folder, "config.json")["seeds"])
    last = tables.read_rows(folder / "timing.csv", tables.TIMING)[-1]
    return float(seeds * last["seconds"] / last["round"])
  except (OptionError, RunFolderError, LookupError, TypeError, ZeroDivisionError):
    return None


def count_states(states: Sequence[RunStatus]) -> Mapping[str, int]:
  """Returns how many runs are in each state, of those that occur."""
  counts = {name: sum(of.state == name for of in states) for name in STATES}
  return {name: number for name, number in counts.items() if number}
