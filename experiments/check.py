"""Checks your method against every promise of the contract.

  python -m experiments.check my_method.py:ENTRY --verbose

Before you trust a number of your method, run this check. It takes less than a
minute on CPU cores, because it runs the method on a small convex problem. For each
clause that does not hold you get a sentence with the clause, the fields, and often
a remedy. The exit status is then 1. ENTRY is a registry.Entry, in which
`ledger` states the cost of a round (docs/add_an_algorithm.md, sections 4 and 6).
You can also give a builder or an Algorithm.
"""

from collections.abc import Sequence
import os
import sys

from absl.flags import FlagValues
import jax

from fedjax_alg import own, testing
from fedjax_alg.engine import sharding

from .cli.command import Command, boolean
from .cli.config import RunError, UsageError

#: Devices of the problem, so that client maps over several devices are tested.
_DEVICES = 4


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Tests the clauses and prints those that do not hold."""
  del argv
  if len(words) != 1:
    raise UsageError(f"give one method: {own.FORMS}")
  (name,) = words
  own.refuse_nameless(name, "algorithm")
  if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")
  sharding.start(_DEVICES)

  total, holds = len(testing.cases()), 0
  for finding in testing.check(name):
    holds += not finding.sentence
    if finding.sentence:
      print(finding.sentence)
    elif values.verbose:
      print(f"{finding.case}: holds")
  if holds < total:
    raise RunError(f"{name} keeps {holds} of {total} promises")
  print(f"{name} keeps {holds} of {total} promises")


main = Command(
  "check",
  __doc__,
  (boolean("verbose", False, "also print the clauses that hold"),),
  _run,
)

if __name__ == "__main__":
  sys.exit(main())
