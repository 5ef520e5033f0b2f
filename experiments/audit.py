"""Measures a lower bound of the epsilon of a private run.

  python -m experiments.audit --algorithm=fedavg --dataset=digits \\
      --num_clients=20 --partition=iid --participation=1 --rounds=1 \\
      --private=fixed

To check that the noise of a private run hides a client as well as epsilon
promises, give the flags of the run. The command trains it --canaries times with
a client that sends as long an update as it can in a fixed direction. It trains
it as often with that client silent. The lower bound follows from how well you can tell
the released models of both kinds apart. You see it next to the accounted
epsilon. If the lower bound is larger, the clip, the noise or the accounting is
broken, and the exit status is 1. With --scores=FILE.csv you also get the score
of every run.
"""

from collections.abc import Sequence
import sys

from absl.flags import FlagValues

import fedjax_alg as fa
from fedjax_alg import files, optional

from .cli import config as config_lib
from .cli import execute
from .cli.command import Command, explain_write_errors, integer, number, string
from .cli.config import RunError


def _describe(audit: "fa.Audit") -> str:
  """The lines of an audit that refutes nothing."""
  number = len(audit.scores_in)
  return (
    f"accounted epsilon: {audit.epsilon:.3f} (delta {audit.delta:g})\n"
    f"lower bound: {audit.lower_bound:.3f} (from {number} runs with a canary and "
    f"{number} without; too large with a chance of {audit.error:g})"
  )


def _table(audit: "fa.Audit") -> str:
  """The file of the scores."""
  rows = [
    f"{name},{score!r}"
    for name, scores in (("in", audit.scores_in), ("out", audit.scores_out))
    for score in scores.tolist()
  ]
  return "\n".join(["canary,score", *rows, ""])


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Executes the audit.

  Raises:
    RunError: the lower bound is above the accounted epsilon.
  """
  del argv
  place = f"--scores={values.scores}"
  path = None
  if values.scores is not None:
    path = files.output_path(values.scores, "scores")
    files.check_outputs(place, {path: files.table_with("canary", "score")})
  config = config_lib.parse_config(words)
  execute.refuse_dry_run(config, "an audit")
  lines = [execute.CompilingLine()] if config.output.progress else []
  extra = optional.load_extra("audit", "audit")
  audit = extra.audit_plan(config, values.canaries, values.error, lines)
  if path:
    with explain_write_errors(place), files.replacing(path) as partial:
      partial.write_text(_table(audit))
  print(_describe(audit))
  if audit.refutes:
    raise RunError(
      f"epsilon={audit.epsilon:.3f}: the audit refutes it, epsilon is at least "
      f"{audit.lower_bound:.3f}"
    )


main = Command(
  "audit",
  __doc__,
  (
    integer("canaries", 200, "runs with the canary, and as many without", 2),
    number("error", 0.05, "chance that the lower bound is too large"),
    string("scores", None, "csv file for the score of every run"),
  ),
  _run,
  below="You can also use all flags of experiments.run.",
  passes_on=True,
)

if __name__ == "__main__":
  sys.exit(main())
