"""The weights of the participants in a mean over the cohort.

They are the numbers of examples, or all equal, or they follow from the
participants' losses f_i(w) at the model that they receive, so that the model
becomes fairer to those whom it serves badly:

  qffl:Q          n_i f_i(w)^Q, and the mean is divided by
                  1 + (Q / rate) <||u_i||^2 / f_i(w)>, <> being the mean with
                  these weights, u_i a participant's update and rate the
                  learning rate of its local steps: q-FedAvg (Li et al., "Fair
                  Resource Allocation in Federated Learning", ICLR 2020,
                  Algorithm 2, L = 1 / rate). With Q = 0 it is FedAvg; with
                  Q > 0 steps are shorter, so it takes more rounds.
  agnostic:RATE   lambda_i, kept by the server for each client, 1 / C at first;
                  after every round lambda <- P(lambda + RATE f(w)), f being 0
                  for those who did not take part and P the projection onto the
                  simplex: agnostic federated learning (Mohri et al., ICML 2019,
                  Algorithm 1). With RATE = 0 it is `uniform`.

Deviations: q-FedAvg's participants are drawn with the probability n_i / n and
count alike; here they are drawn as the run says and weighted by n_i. The
agnostic mean is over the participants, whose lambda are scaled to the sum 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from fedjax_alg.base import Array, Cohort
from fedjax_alg.conditions import ZERO, but, only
from fedjax_alg.errors import OptionError, check_one_of
from fedjax_alg.exchange.aggregation import UNWEIGHTED
from fedjax_alg.typing import PyTree

#: examples: n_i / n^r; uniform: 1 / |S|.
WEIGHTS = ("examples", "uniform")
#: Part of the help of options that take weights by losses, too.
BY_LOSS = (
  "qffl:Q (for example qffl:1) = n_i f_i^Q, f_i being the participant's "
  "loss (q-FFL), agnostic or agnostic:RATE = a weight for each client, which "
  "moves up by RATE f_i in every round (agnostic FL; RATE is 0.1)"
)
#: The sources of these.
FAIR = "Li et al., ICLR 2020 (qffl); Mohri et al., ICML 2019 (agnostic)"

#: When the aggregate of a round reads the participants' weights.
READ = only("private", "none") & (
  but("aggregator", *UNWEIGHTED) | only("attack", "scaled") & only("attack.scale", ZERO)
)

#: A loss is taken to be at least this.
_LEAST = 1e-10


class ByLoss(NamedTuple):
  """Weights that follow from the participants' losses."""

  #: (what the server keeps, cohort, losses [S]) -> (weights [S], what it keeps)
  weigh: Callable[[PyTree, Cohort, Array], tuple[Array, PyTree]]
  #: C -> what the server keeps before round 1, [C]; None: nothing
  keeps: Callable[[int], Array] | None = None
  #: (weights [S], losses [S], ||u_i||^2 [S], learning rate [] or [S]) -> factor
  #: of the mean update; None: 1
  shorten: Callable[[Array, Array, Array, PyTree], Array] | None = None


def _q_ffl(q: float) -> ByLoss:
  """The weights of q-FFL, and the step length of q-FedAvg."""

  def weigh(memory, cohort, losses):
    losses = jnp.where(cohort.present, jnp.maximum(losses, _LEAST), _LEAST)
    return cohort.weight * (losses / losses.max()) ** q, memory

  def shorten(weights, losses, squares, rate):
    curvature = weights * (q / rate) * squares / jnp.maximum(losses, _LEAST)
    total = weights.sum()
    return total / jnp.maximum(
      total + jnp.where(weights > 0, curvature, 0.0).sum(), _LEAST
    )

  return ByLoss(weigh, shorten=shorten)


def on_simplex(vector: Array) -> Array:
  """The nearest vector of numbers >= 0 with the sum 1 (Duchi et al., 2008)."""
  falling = -jnp.sort(-vector)
  count = jnp.arange(1, vector.size + 1, dtype=vector.dtype)
  shift = (jnp.cumsum(falling) - 1.0) / count
  last = (falling > shift).sum() - 1
  return jnp.maximum(vector - shift[last], 0.0)


def _agnostic(rate: float) -> ByLoss:
  """The weights of agnostic federated learning."""

  def weigh(memory, cohort, losses):
    weights = memory.at[cohort.ids].get(mode="clip")
    ascended = memory.at[cohort.ids].add(rate * losses, mode="drop")
    return jnp.where(cohort.present, weights, 0.0), on_simplex(ascended)

  return ByLoss(weigh, lambda clients: jnp.full(clients, 1.0 / clients, jnp.float32))


#: Name -> (what makes the weights, the number behind the name that it takes).
_RULES: dict[str, tuple[Callable[[float], ByLoss], str]] = {
  "qffl": (_q_ffl, ""),
  "agnostic": (_agnostic, "0.1"),
}


def by_loss(weights: str | Callable[[Cohort], Array]) -> ByLoss | None:
  """The weights by losses that a name stands for; None: one of ``WEIGHTS``.

  Raises:
    OptionError: it is neither.
  """
  if callable(weights) or weights in WEIGHTS:
    return None
  name, _, number = weights.partition(":")
  make, default = _RULES.get(name, (None, ""))
  try:
    value = float(number or default)
  except ValueError:
    value = -1.0
  if make is None or not 0 <= value < float("inf"):
    raise OptionError(
      f"`client_weights`={weights}: must be one of {', '.join(WEIGHTS)}, "
      "qffl:Q with Q of at least 0, agnostic or agnostic:RATE with RATE of "
      "at least 0"
    )
  return make(value)


def _by_examples(cohort: Cohort) -> Array:
  """The weights n_i, [S] float32."""
  return cohort.weight


def _equally(cohort: Cohort) -> Array:
  """Equal weights, [S] float32; 0 for padding slots."""
  return cohort.present.astype(jnp.float32)


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
  check_one_of(f"`client_weights`={weights}", weights, WEIGHTS)
  return _by_examples if weights == "examples" else _equally
