"""Checks a method of your own against every promise of the contract.

  python -m experiments.check path/to/my_method.py:ENTRY [--verbose]

runs the method on a small convex problem, in less than a minute on CPU cores, and
prints a sentence for each clause that does not hold: the clause, the fields, and
often what to do. ENTRY is a registry.Entry, whose `ledger` states what a round
costs (docs/add_an_algorithm.md, sections 4 and 6); or a builder or an Algorithm.
The exit status is 1 if a clause does not hold.
"""

from collections.abc import Sequence
import os
import sys

from absl.flags import FlagValues
import jax

from fedjax_alg import own
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
  from fedjax_alg.runs import contract  # it needs JAX's devices

  total, holds = len(contract.cases()), 0
  for finding in contract.check(name):
    holds += not finding.sentence
    if finding.sentence:
      print(finding.sentence)
    elif values.verbose:
      print(f"{finding.case}: holds")
  if holds < total:
    raise RunError(f"{name} keeps {holds} of {total} promises")
  print(f"{name} keeps {holds} of {total} promises")


main = Command(
  __doc__, (boolean("verbose", False, "also print the clauses that hold"),), _run
)

if __name__ == "__main__":
  sys.exit(main())
