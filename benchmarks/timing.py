"""Timing with a barrier, comparisons in turn, and memory."""

from collections.abc import Callable, Sequence
import resource
import statistics
import sys
import time
from typing import Any, NamedTuple

import jax

from experiments.reports import timing as calls

timed = calls.timed


class Spread(NamedTuple):
  """Least, middle and greatest of several measurements."""

  least: float
  median: float
  greatest: float

  def text(self, digits: int = 2) -> str:
    """The three numbers for a table."""
    return "  ".join(f"{value:9.{digits}f}" for value in self)


def spread(values: Sequence[float]) -> Spread:
  """The spread of at least one measurement."""
  return Spread(min(values), statistics.median(values), max(values))


def compiled(fn: Callable[..., Any], *args: Any) -> tuple[Any, float]:
  """Compiles ``fn`` (jitted or not) for these arguments, without running it.

  Returns:
    The compiled program, and the seconds it took.
  """
  jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
  began = time.perf_counter()
  program = jitted.lower(*args).compile()
  return program, time.perf_counter() - began


def steady(
    fn: Callable[..., Any], *args: Any, repeats: int
) -> tuple[Any, Spread, float]:
  """Compiles ``fn``, runs it once to warm up, then times it.

  Args:
    fn: donates none of its arguments.
    *args: its arguments.
    repeats: number of timed calls.

  Returns:
    What the last call returned, the seconds of a call, those of compiling.
  """
  program, compile_seconds = compiled(fn, *args)
  out, seconds = calls.repeated(program, *args, repeats=repeats)
  return out, spread(seconds), compile_seconds


def in_turn(
    measures: dict[str, Callable[[int], float]], repeats: int
) -> dict[str, list[float]]:
  """Measures A B A B ..., so that what disturbs the machine disturbs all.

  Args:
    measures: name -> function of the number of the repeat (from 0).
    repeats: how often each is called.

  Returns:
    name -> its ``repeats`` measurements; entries of one index are a pair.
  """
  results: dict[str, list[float]] = {name: [] for name in measures}
  for repeat in range(repeats):
    for name, measure in measures.items():
      results[name].append(measure(repeat))
  return results


def peak_megabytes() -> float:
  """The most memory this process has held, MB (10^6 bytes)."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
