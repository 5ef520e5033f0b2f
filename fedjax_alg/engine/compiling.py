"""How the compiler is asked to make the programs of a run."""

import functools
import os

import jax

# A layer's weights are read for the gradient of the layer before and replaced
# by the step. XLA's CPU compiler copies them for that in every local step,
# unless it is to look at regions of the program.
_IN_PLACE = {"xla_cpu_copy_insertion_use_region_analysis": True}


@functools.cache
def options(platform: str) -> dict[str, bool] | None:
  """Options of ``lowered.compile`` for rounds; None where unknown.

  They change which buffers a program copies, not what it computes.

  Args:
    platform: the kind of the devices (``sharding.platform``).
  """
  if platform != "cpu":
    return None
  try:
    jax.jit(lambda: 0, compiler_options=_IN_PLACE)()
  except Exception:  # pylint: disable=broad-except  # an XLA without the option
    return None
  return _IN_PLACE


def leave_frames_out(platform: str) -> None:
  """Keeps the lines of Python code out of programs for a TPU.

  libtpu 0.0.42 copies and compares the stacks of these lines when it counts the
  turns of a loop, in some compilations for more than a minute of CPU time.
  The names of operations stay. ``JAX_TRACEBACK_IN_LOCATIONS_LIMIT`` decides
  where it is set.

  Args:
    platform: the kind of the devices (``sharding.platform``).
  """
  limit = "jax_traceback_in_locations_limit"
  if platform == "tpu" and limit.upper() not in os.environ:
    jax.config.update(limit, 0)
