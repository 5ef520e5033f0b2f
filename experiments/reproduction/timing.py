"""The wall time of calls that return before their arrays are computed."""

from collections.abc import Callable
import time
from typing import Any

import jax


def time_call(fn: Callable[..., object], *args: object) -> tuple[Any, float]:
  """Calls ``fn`` and waits until all its arrays are computed.

  Returns:
    What ``fn`` returned, and the seconds that it took.
  """
  began = time.perf_counter()
  out = jax.block_until_ready(fn(*args))
  return out, time.perf_counter() - began


def time_repeats(
  fn: Callable[..., object], *args: object, repeats: int
) -> tuple[Any, list[float]]:
  """Calls ``fn`` once to warm up, then times ``repeats`` calls.

  Returns:
    What the last call returned, and the seconds of each timed call.
  """
  out, _ = time_call(fn, *args)
  seconds = []
  for _ in range(repeats):
    out, elapsed = time_call(fn, *args)
    seconds.append(elapsed)
  return out, seconds
