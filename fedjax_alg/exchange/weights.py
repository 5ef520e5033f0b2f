"""The weights of the participants in a mean over the cohort.

They are the numbers of examples, or all equal, or they follow from the
participants' losses f_i(w) at the model that they receive, so that the model
becomes fairer to those whom it serves badly.

Deviations: q-FedAvg's participants are drawn with the probability n_i / n and
count alike; here they are drawn as the run says and weighted by n_i. The
agnostic mean is over the participants, whose lambda are scaled to the sum 1. These
scaled lambda ascend and are projected, and the sum that the participants had is kept.
If a projection over all clients were done, clients that do not take part would lose
their lambda to those that do, and soon whole cohorts would have none.
"""

from collections.abc import Callable
import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from fedjax_alg.base import Array, Cohort
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part
from fedjax_alg.typing import Numeric, PyTree

#: Part of the help of options that take weights by losses, too.
BY_LOSS = (
  "qffl:Q (for example qffl:1) = n_i f_i^Q, f_i being the participant's "
  "loss (q-FFL), agnostic or agnostic:RATE = a weight for each client, which "
  "moves up by RATE f_i in every round (agnostic FL; RATE is 0.1)"
)
#: The sources of these.
FAIR = "Li et al., ICLR 2020 (qffl); Mohri et al., ICML 2019 (agnostic)"

#: A loss is taken to be at least this.
_LEAST = 1e-10


class ByLoss(NamedTuple):
  """Weights that follow from the participants' losses."""

  #: (what the server keeps, cohort, losses [S]) -> (weights [S], what it keeps)
  weigh: Callable[[PyTree, Cohort, Array], tuple[Array, PyTree]]
  name: str  #: for messages
  #: C -> what the server keeps before round 1, [C]; None: nothing
  keeps: Callable[[int], Array] | None = None
  #: (weights [S], losses [S], ||u_i||^2 [S], learning rate [] or [S]) -> factor
  #: of the mean update; None: 1
  shorten: Callable[[Array, Array, Array, PyTree], Array] | None = None


def _q_ffl(q: Numeric) -> ByLoss:
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

  return ByLoss(weigh, "qffl", shorten=shorten)


def on_simplex(vector: Array) -> Array:
  """The nearest vector of numbers >= 0 with the sum 1 (Duchi et al., 2008)."""
  falling = -jnp.sort(-vector)
  count = jnp.arange(1, vector.size + 1, dtype=vector.dtype)
  shift = (jnp.cumsum(falling) - 1.0) / count
  last = (falling > shift).sum() - 1
  return jnp.maximum(vector - shift[last], 0.0)


def _agnostic(rate: Numeric) -> ByLoss:
  """The weights of agnostic federated learning."""

  def weigh(memory, cohort, losses):
    def of_all(values):  # [S] -> [C]
      return (
        jnp.zeros_like(memory)
        .at[cohort.ids]
        .add(jnp.where(cohort.present, values, 0.0), mode="drop")
      )

    is_present = of_all(jnp.ones_like(losses)) > 0
    share = jnp.where(is_present, memory, 0.0).sum()
    share = jnp.where(is_present.all(), 1.0, share)  # exactly
    scaled = jnp.where(share > 0, memory / jnp.maximum(share, _LEAST), 1.0)
    ascended = jnp.where(is_present, scaled + of_all(rate * losses), -jnp.inf)
    weights = scaled.at[cohort.ids].get(mode="clip")
    return (
      jnp.where(cohort.present, weights, 0.0),
      jnp.where(is_present, share * on_simplex(ascended), memory),
    )

  return ByLoss(
    weigh, "agnostic", lambda clients: jnp.full(clients, 1.0 / clients, jnp.float32)
  )


def _by_examples(cohort: Cohort) -> Array:
  """The weights n_i, [S] float32."""
  return cohort.weight


def _equally(cohort: Cohort) -> Array:
  """Equal weights, [S] float32; 0 for padding slots."""
  return cohort.present.astype(jnp.float32)


class ExampleWeights(Part):
  """A participant counts by its number of examples, n_i / n^r."""

  WORD, EXAMPLE = "examples", "examples"

  def build(self) -> Callable[[Cohort], Array]:
    """Makes cohort -> weights [S] float32; padding slots have weight 0."""
    return _by_examples


class UniformWeights(Part):
  """All participants count alike."""

  WORD, EXAMPLE = "uniform", "uniform"

  def build(self) -> Callable[[Cohort], Array]:
    """Makes cohort -> weights [S] float32; padding slots have weight 0."""
    return _equally


class QFFLWeights(Part):
  """n_i f_i^q, with the participant's loss f_i at the model (q-FFL).

  The mean is divided by 1 + (q / rate) <||u_i||^2 / f_i>, <> being the mean with
  these weights, u_i a participant's update and rate the learning rate of its local
  steps: q-FedAvg (Li et al., "Fair Resource Allocation in Federated Learning", ICLR
  2020, Algorithm 2, L = 1 / rate). With q = 0 it is FedAvg; with q > 0 steps are
  shorter, so it takes more rounds.
  """

  WORD, EXAMPLE = "qffl", "qffl:1"

  q: float = hyper(
    dataclasses.MISSING,
    "how much more those with a large loss count; 0 is FedAvg",
    minimum=0.0,
    source="Li et al., ICLR 2020, Algorithm 2",
    traced=True,
  )

  def build(self) -> ByLoss:
    """Makes the rule by which weights follow from losses."""
    return _q_ffl(self.q)


class AgnosticWeights(Part):
  """A weight for each client, which moves up by rate f_i in a round (agnostic FL).

  The server keeps lambda_i for each client, 1 / C at first. After every round the
  participants, whose lambda have the sum s, get lambda <- s P(lambda / s + rate f), P
  being the projection onto the simplex (Mohri et al., ICML 2019, Algorithm 1, where
  all take part). Participants without weight (s = 0) count alike. With rate = 0 it is
  `uniform`.
  """

  WORD, EXAMPLE = "agnostic", "agnostic:0.3"

  rate: float = hyper(
    0.1,
    "how far a weight moves for a loss of 1; 0 is uniform",
    minimum=0.0,
    source="Mohri et al., ICML 2019, Algorithm 1",
  )

  def build(self) -> ByLoss:
    """Makes the rule by which weights follow from losses."""
    return _agnostic(self.rate)


#: Weights that do not follow from losses.
Plain = ExampleWeights | UniformWeights
#: The weights of a run.
Choice = ExampleWeights | UniformWeights | QFFLWeights | AgnosticWeights
