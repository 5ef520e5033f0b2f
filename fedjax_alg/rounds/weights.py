"""How much each participant weighs in a mean over the cohort."""

from collections.abc import Callable

import jax.numpy as jnp

from fedjax_alg.base import Array, Cohort
from fedjax_alg.errors import OptionError

#: examples: n_i / n^r; uniform: 1 / |S|.
WEIGHTS = ("examples", "uniform")


def participation(weights: str) -> Callable[[Cohort], Array]:
  """The participants' weights in every mean: cohort -> [S] float32.

  Args:
    weights: "examples" (n_i) or "uniform" (1); both 0 on padding slots.

  Raises:
    ValueError: neither.
  """
  if weights not in WEIGHTS:
    raise OptionError(f"`client_weights`={weights}: must be one of "
                      f"{', '.join(WEIGHTS)}")
  if weights == "examples":
    return lambda cohort: cohort.weight
  return lambda cohort: cohort.present.astype(jnp.float32)
