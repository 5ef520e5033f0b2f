"""Options of the compiler for the programs of a run."""

import functools
import os

import jax

# A layer's weights are read for the gradient of the layer before and replaced
# by the step. XLA's CPU compiler copies them for that in every local step,
# unless it is to look at regions of the program.
_ROUNDS: dict[str, bool | int] = {"xla_cpu_copy_insertion_use_region_analysis": True}

# Nearly all code of a start is hashes of random keys, one for each layer, which
# LLVM spends three times as long on at its highest level as at its first. They
# are computed once. A level of the user's own (XLA_FLAGS) stays.
_START: dict[str, bool | int] = {"xla_backend_optimization_level": 1}

# XLA's older way to fuse loops compiles faster. Draws have the same bits; sums over
# examples, as in the training before FedGroup's first round, are rounded otherwise.
_DRAWS = _START | {"xla_cpu_use_fusion_emitters": False}

# The same, and LLVM without optimizations.
_QUICK = _DRAWS | {"xla_backend_optimization_level": 0}


@functools.cache
def _is_known(option: str, value: bool | int) -> bool:
  """Whether this XLA knows the option."""
  try:
    jax.jit(lambda: 0, compiler_options={option: value})()
  except Exception:  # pylint: disable=broad-except
    return False
  return True


def _options(
  platform: str, flags: dict[str, bool | int]
) -> dict[str, bool | int] | None:
  if platform != "cpu" or not all(
    _is_known(option, value) for option, value in flags.items()
  ):
    return None
  return flags


def options(platform: str) -> dict[str, bool | int] | None:
  """Gives the options of ``lowered.compile`` for rounds; None where unknown.

  They change which buffers a program copies, not what it computes.

  Args:
    platform: the kind of the devices (``sharding.platform``).
  """
  return _options(platform, _ROUNDS)


def start_options(
  platform: str, reads_rows: bool = True
) -> dict[str, bool | int] | None:
  """Gives the options of ``lowered.compile`` for initial states, see above.

  They change how long the compiler takes, not what the program computes.

  Args:
    platform: the kind of the devices (``sharding.platform``).
    reads_rows: whether the program computes with clients' examples.
  """
  flags = _START if reads_rows else _DRAWS
  if any(flag in os.environ.get("XLA_FLAGS", "") for flag in flags):
    return None
  return _options(platform, flags)


def quick_options(platform: str) -> dict[str, bool | int] | None:
  """Gives the options for programs that compile in a third of the time.

  Their results are those of other programs to rounding. None where unknown.

  Args:
    platform: the kind of the devices (``sharding.platform``).
  """
  return _options(platform, _QUICK)


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
