"""The weights of the participants in a mean over the cohort."""

from collections.abc import Callable

import jax.numpy as jnp

from fedjax_alg.base import Array, Cohort
from fedjax_alg.conditions import but, only, ZERO
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.aggregation import UNWEIGHTED

#: examples: n_i / n^r; uniform: 1 / |S|.
WEIGHTS = ("examples", "uniform")

#: When the aggregate of a round reads the participants' weights.
READ = only("private", "none") & (
    but("aggregator", *UNWEIGHTED)
    | only("attack", "scaled") & only("attack_scale", ZERO))


def participation(weights: str) -> Callable[[Cohort], Array]:
  """Makes the function that weighs the participants in every mean.

  Args:
    weights: "examples" (weight n_i) or "uniform" (weight 1). Padding slots
      have weight 0.

  Returns:
    cohort -> weights [S] float32.

  Raises:
    OptionError: ``weights`` is neither of them.
  """
  if weights not in WEIGHTS:
    raise OptionError(f"`client_weights`={weights}: must be one of "
                      f"{', '.join(WEIGHTS)}")
  if weights == "examples":
    return lambda cohort: cohort.weight
  return lambda cohort: cohort.present.astype(jnp.float32)
