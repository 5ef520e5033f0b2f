"""Timing with a barrier, alternating measurements, and peak memory."""

from collections.abc import Callable, Mapping, Sequence
import resource
import statistics
import sys
import time
from typing import Any, NamedTuple

import jax

from experiments.reproduction import timing as calls

time_call = calls.time_call


class Spread(NamedTuple):
  """Minimum, median and maximum of several measurements."""

  least: float
  median: float
  greatest: float

  def text(self, digits: int = 2) -> str:
    """Formats the three numbers for a table."""
    return "  ".join(f"{value:9.{digits}f}" for value in self)


def spread(values: Sequence[float]) -> Spread:
  """Computes the spread of one or more measurements."""
  return Spread(min(values), statistics.median(values), max(values))


def compile_program(fn: Callable[..., object], *args: object) -> tuple[Any, float]:
  """Compiles a function for these arguments without running it.

  Args:
    fn: the function, jitted or not.
    *args: its arguments.

  Returns:
    The compiled program and the compile time in seconds.
  """
  jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
  began = time.perf_counter()
  program = jitted.lower(*args).compile()
  return program, time.perf_counter() - began


def steady(
  fn: Callable[..., object], *args: object, repeats: int
) -> tuple[Any, Spread, float]:
  """Compiles a function, runs it once to warm up, and then times it.

  Args:
    fn: the function; it must not donate its arguments.
    *args: its arguments.
    repeats: number of timed calls.

  Returns:
    The result of the last call, the seconds per call, and the compile time in
    seconds.
  """
  program, compile_seconds = compile_program(fn, *args)
  out, seconds = calls.time_repeats(program, *args, repeats=repeats)
  return out, spread(seconds), compile_seconds


def row(name: str, seconds: Spread, compile_seconds: float) -> None:
  """Prints a line of a table in milliseconds."""
  in_ms = Spread(*(1e3 * value for value in seconds))
  print(f"{name:28}{in_ms.text()}  {compile_seconds:9.1f}", flush=True)


def cpu_seconds(program: Any, *args: object) -> float:
  """CPU seconds of a call, for a shared machine."""
  began = time.process_time()
  jax.block_until_ready(program(*args))
  return time.process_time() - began


def in_turn(
  measures: Mapping[str, Callable[[int], float]], repeats: int
) -> dict[str, list[float]]:
  """Alternates measurements (A B A B ...), so that disturbances affect all.

  Args:
    measures: name -> function of the index of the repetition (from 0).
    repeats: number of calls of each function.

  Returns:
    name -> measurements; entries with the same index were taken together.
  """
  results: dict[str, list[float]] = {name: [] for name in measures}
  for repeat in range(repeats):
    for name, measure in measures.items():
      results[name].append(measure(repeat))
  return results


def peak_megabytes() -> float:
  """The peak memory of this process in MB (10^6 bytes)."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak * (1 if sys.platform == "darwin" else 1024) / 1e6
