"""How the compiler is asked to make the rounds of a run."""

import functools

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
