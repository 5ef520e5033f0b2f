"""FedDyn: a linear term for each client makes local optima global ones.

Reference: Acar et al., "Federated Learning Based on Dynamic Regularization",
ICLR 2021, arXiv:2111.04263, Algorithm 1. Client k keeps G_k, an estimate of its
gradient, and the server keeps h, the mean of all G_k. All start at zero.

A participant minimizes f_k(v) - <G_k, v> + (alpha/2) ||v - w||^2 by SGD from w.
Then
  G_k <- G_k - alpha (v_k - w),    h <- h - (alpha/m) sum_k (v_k - w),
  w <- mean_k v_k - h / alpha.
Clients that do not take part keep their G_k; m counts them too.

What is kept here is D_k = -G_k / alpha, the sum of the updates of client k, and
their mean -h / alpha. No division by alpha is then needed. Since D_k is no
update of this round, a client sends and receives as much as with FedAvg.

As alpha tends to 0, local training tends to FedAvg's, but h / alpha does not
vanish: with all clients in every round the server's step tends to Nesterov's
with momentum 1. The first round goes 1 + |P|/m times as far as FedProx with
mu = alpha.

Deviations: the paper's means are uniform. With `client_weights`=examples n_k
stands for the weight of client k everywhere, and then the objective is that of
FedAvg, sum_k n_k f_k. The paper's m is the number of clients that are present
and have examples. A newcomer's D_k is zero, so the mean is scaled down to that
over more clients when clients join. Where the clients' data change in size
(`shift`), the mean keeps the old weights. No other aggregator can take the
place of the mean of the v_k, because the server moves h by the same mean; and
hostile clients (`attack`) may train on false labels, but not send false v_k.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import LocalMethod, averaging, local_rate
from fedjax_alg.base import Algorithm, Array, Cohort, MapClients, Model, Params, builder
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import descent
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, MeanRow, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier, carry
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.rounds.two_halves import ComposedState


class DynOptions(HParams):
  """Options of FedDyn's dynamic regularizer."""

  alpha: float = hyper(
    0.1,
    "alpha, weight of the dynamic regularizer; with a smaller one clients move "
    "further in a round",
    above=0.0,
    source="Acar et al. (1)",
  )


class FedDynHParams(DynOptions, LocalWork):
  """Hyper-parameters of FedDyn."""

  client_lr: float = local_rate(0.1, "Acar et al., section 4")
  client_weights: Plain = hyper(
    UniformWeights(),
    "weights of the clients in the objective: uniform = all equal "
    "(the paper), examples = n_k / n",
    source="Acar et al., Algorithm 1",
  )


class Drift(NamedTuple):
  """The sums of the clients' updates, which stand for G_k and h."""

  mean: Params  #: -h / alpha, the mean of all D_k
  clients: Params  #: [C, ...], D_k = -G_k / alpha


def total_weight(
  weigh: Callable[[Cohort], Array], cohort: Cohort, mask: Array | None = None
) -> Array:
  """The weight of all clients that are there, or of those in ``mask``, [].

  Args:
    weigh: the weights of a cohort's clients, from their numbers of examples.
    cohort: the participants, with ``everyone``.
    mask: [C] bool.
  """
  everyone = _everyone(cohort)
  if mask is not None:
    everyone = everyone._replace(weight=jnp.where(mask, everyone.weight, 0.0))
  return jnp.maximum(weigh(everyone).sum(), 1.0)


def _everyone(cohort: Cohort) -> Cohort:
  """All clients in the place of the participants."""
  assert cohort.everyone is not None
  return cohort._replace(weight=cohort.everyone.size.astype(jnp.float32))


def dyn_update(
  model: Model,
  work: LocalWork,
  client_lr: float,
  alpha: float,
  weights: Plain,
  carrier: Carrier | None = None,
) -> ClientUpdate:
  """The client's part of FedDyn, and the server's h.

  Args:
    model: the model and its objective.
    work: number of steps and batch size.
    client_lr: learning rate of the local steps.
    alpha: weight of the dynamic regularizer.
    weights: weights of the clients in the objective.
    carrier: how messages travel (``MapClients.carrier``).
  """
  weigh = weights.build()
  total = functools.partial(total_weight, weigh)

  def init(params, spec):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Drift(zeros, trees.repeat(zeros, spec.num_clients))

  def refresh(memory, params, cohort, map_clients):
    share = total(cohort, ~cohort.newcomers) / total(cohort)
    return memory._replace(mean=trees.scale(share, memory.mean))

  def move(memory, share, change):
    return memory._replace(mean=trees.add(trees.scale(share, memory.mean), change))

  def train(received, shard, drift, key):

    def correct(gradient, params, start):
      return trees.add_scaled(
        gradient, alpha, trees.add(drift, trees.subtract(params, start))
      )

    params, loss, _, leaves = descend(
      model, received.start, shard, work, key, descent(client_lr), correct
    )
    params = carry(carrier, params)  # once: its change moves h, too
    update = trees.subtract(params, received.start)
    return Trained(params, loss, update, kept=update, leaves=leaves)

  def scale(memory, cohort, update):
    # mean_k v_k - h / alpha, with the h after this round.
    share = weigh(cohort).sum() / total(cohort)
    return trees.add_scaled(memory.mean, 1.0 + share, update)

  def merge(memory, cohort, change, anchors):
    return memory._replace(mean=trees.add(memory.mean, change))

  return ClientUpdate(
    train,
    work,
    init=init,
    refresh=refresh,
    learning_rate=lambda shard: client_lr,
    store=Store.of("clients"),
    upload_weights=lambda memory, cohort: weigh(cohort) / total(cohort),
    merge=merge,
    mean_row=MeanRow(lambda cohort: weigh(_everyone(cohort)), move),
    scale=scale,
    takes_parts=True,
    one_model="a client's linear term belongs to one model",
    mean_only="which moves h as well",
    no_compression_because="h is the mean of all the clients' linear terms",
  )


class DynUpdate(DynOptions, LocalMethod):
  """FedDyn's: a dynamic regularizer, and the server's share of it."""

  WORD, EXAMPLE = "dyn", "dyn:0.1"
  PLAIN_WEIGHTS = True

  @property
  def weighs(self) -> bool:
    return True

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return dyn_update(
      model,
      options,
      options.client_lr,
      self.alpha,
      options.client_weights,
      carrier,
    )


@builder
def feddyn(
  model: Model,
  hparams: FedDynHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedDyn: a linear term for each client makes local optima global ones.

  A participant takes steps from the global model, v = w,
    v <- v - client_lr (g_k(v; B) - G_k + alpha (v - w)),
  and updates its linear term, G_k <- G_k - alpha (v_k - w). The server moves
    h <- h - (alpha/m) sum_k (v_k - w),    w <- mean_k v_k - h / alpha.
  """
  client = dyn_update(
    model,
    hparams,
    hparams.client_lr,
    hparams.alpha,
    hparams.client_weights,
    map_clients.carrier,
  )
  return averaging(
    model,
    client,
    hparams,
    map_clients,
    steps.average(),
    exchange=exchange,
  )
