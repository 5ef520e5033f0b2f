"""Says how far runs are: done, running, missing or failed.

  python -m experiments.status out/rates

Give the --out_dir of a run, a sweep or figures. You get a line for every run that
is not done: the rounds that are saved, the process that runs it, why it has no
results, and the time left. Runs that a sweep or a figure asked for and nobody has
begun are missing. Nothing is run, and no folder is locked.

The exit status is 0 if all runs are done, and 1 otherwise, for scripts.
"""

from collections.abc import Sequence
import json
import sys

from absl.flags import FlagValues

from fedjax_alg.files import expand_path
from fedjax_alg.runs import status
from fedjax_alg.runs.progress import format_seconds

from .cli import config as config_lib
from .cli.command import Command, boolean, string
from .cli.config import UsageError
from .cli.guard import RunError

FLAGS = (
  string(
    "of", "", "only the runs of this figure or sweep, by its name in planned.json"
  ),
  boolean("json", False, "print a JSON list with an entry for every run"),
)


def describe_status(run: status.RunStatus) -> str:
  """Writes the state of one run in a line."""
  parts = [f"{run.folder}: {run.state}"]
  if run.rounds is not None:
    parts.append(f"round {run.round} of {run.rounds}")
  parts += filter(None, (run.where, run.why))
  if run.seconds_left is not None:
    parts.append(f"about {format_seconds(run.seconds_left)} left")
  return ", ".join(parts)


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Prints the states."""
  del argv
  if not words:
    raise UsageError("no folder: give that of a run, sweep or figure, e.g. out/first")
  config_lib.refuse_words(words[1:])
  root = expand_path(words[0])
  runs = status.read_status(root, values.of)
  open_runs = [run for run in runs if run.state != status.DONE]
  counts = ", ".join(f"{n} {name}" for name, n in status.count_states(runs).items())
  if values.json:
    print(json.dumps([run.facts() for run in runs], indent=1))
  else:
    for run in open_runs:
      print(describe_status(run))
    seconds = sum(run.seconds_left or 0 for run in open_runs)
    one_by_one = f"; about {format_seconds(seconds)} left, one by one" * bool(seconds)
    print(f"{counts} of {len(runs)} runs{one_by_one}")
  if open_runs:
    raise RunError(f"{root}: {len(open_runs)} of {len(runs)} runs are not done")


main = Command("status", __doc__, FLAGS, _run)

if __name__ == "__main__":
  sys.exit(main())
