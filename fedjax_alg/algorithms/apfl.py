"""APFL: each client mixes a personal model with the global one.

Reference: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning",
arXiv:2003.13461, Algorithm 1, and the authors' code (FedTorch).

Client k keeps a personal model v_k and a weight alpha_k, and uses the mixture
alpha_k v_k + (1 - alpha_k) w. A participant takes FedAvg's local steps for its
copy w_k of the global model, and on the same mini-batches steps for v_k by the
gradient of the mixture's loss with respect to v_k:

  w_k <- w_k - client_lr g(w_k; B)
  v_k <- v_k - client_lr alpha_k g(alpha_k v_k + (1 - alpha_k) w_k; B)

The server has FedAvg's mean of the w_k. With `adaptive_weight` alpha_k takes a
step of its own, by the gradient at the same mixture, at the first mini-batch of
a round, as in the authors' code, and stays in [0, 1]:

  alpha_k <- alpha_k - client_lr <v_k - w_k, g(mixture; B)>

``client_params`` is the mixture with the current global model; for a client
that has not taken part yet, a newcomer among them, the global model.

Deviations: the paper leaves open where v_k starts. Here it starts at the global
model that the client receives when it first takes part; `personal_start`=
initial is the initial model for all clients. The authors' code adds 0.02 alpha
to the gradient of alpha and mixes the two models' gradients, which the paper
does not have. It moves w_k before it mixes; the paper mixes first.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import averaging, server_rate, weights
from fedjax_alg.base import (
  Algorithm,
  Array,
  FedSpec,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  builder,
)
from fedjax_alg.client import minibatches
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate, Received, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import ComposedState

_SOURCE = "Deng et al., Algorithm 1"


class APFLHParams(LocalWork):
  """Hyper-parameters of APFL."""

  client_lr: float = hyper(
    0.1,
    "eta, learning rate of the local steps of both models",
    above=0.0,
    source=_SOURCE,
  )
  server_lr: float = server_rate(_SOURCE)
  personal_weight: float = hyper(
    0.5,
    "alpha, weight of a client's personal model in its mixture with the "
    "global one; the first one with `adaptive_weight`",
    minimum=0.0,
    maximum=1.0,
    source="alpha_i, Deng et al.; value of the authors' code",
  )
  adaptive_weight: bool = hyper(
    False,
    "whether each client learns its alpha, by one gradient step in every round",
    source="Deng et al.; once a round as in the authors' code",
  )
  personal_start: str = hyper(
    "received",
    "where a personal model starts: received = at the global "
    "model that the client receives when it first takes part, initial = at "
    "the initial model",
    choices=("received", "initial"),
    source=_SOURCE,
  )
  client_weights: Plain = weights(UniformWeights(), _SOURCE)


class Mixtures(NamedTuple):
  """Per-client state: the personal models and their mixing weights."""

  models: Params  #: [C, ...], v_k
  weight: Array  #: [C] float32, alpha_k
  met: Array  #: [C] bool, whether the client has taken part


def _mixture(weight: Array, personal: Params, shared: Params) -> Params:
  return jax.tree.map(lambda v, w: weight * v + (1.0 - weight) * w, personal, shared)


def _update(model: Model, hparams: APFLHParams) -> ClientUpdate[Mixtures, Mixtures]:
  rate = hparams.client_lr

  def init(params: Params, spec: FedSpec) -> Mixtures:
    clients = spec.num_clients
    return Mixtures(
      trees.repeat(params, clients),
      jnp.full(clients, hparams.personal_weight, jnp.float32),
      jnp.zeros(clients, bool),
    )

  def step(gradient, carry):
    params, personal, weight, first, _ = carry
    (loss, global_slope), (_, mixed_slope) = gradient(
      params, _mixture(weight, personal, params)
    )
    after = weight
    if hparams.adaptive_weight:
      slope = trees.dot(trees.subtract(personal, params), mixed_slope)
      after = jnp.where(first, jnp.clip(weight - rate * slope, 0.0, 1.0), weight)
    return (
      trees.add_scaled(params, -rate, global_slope),
      trees.add_scaled(personal, -rate * weight, mixed_slope),
      after,
      jnp.bool_(False),
      loss,
    )

  def train(
    received: Received, shard: Shard, row: Mixtures, key: Key
  ) -> Trained[Mixtures]:
    previous, weight, met = row
    start = previous
    if hparams.personal_start == "received":
      # A client without data has not taken part: it keeps what it has.
      start = trees.where(met | (shard.size == 0), previous, received.start)
    (params, personal, weight, _, loss), _ = minibatches.fold_steps(
      model,
      shard,
      hparams,
      key,
      step,
      (received.start, start, weight, jnp.bool_(True), jnp.zeros(())),
    )
    return Trained(
      params, loss, kept=Mixtures(personal, weight, met | (shard.size > 0))
    )

  return ClientUpdate(
    train,
    hparams,
    init=init,
    gradients_per_step=2,
    takes_parts=True,
    one_model="a client's personal model is mixed with one global model",
    no_personal_because="keeps a personal model of all parameters",
    store=Store.whole(),
  )


@builder
def apfl(
  model: Model,
  hparams: APFLHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """APFL: each client mixes a personal model with the global one.

  Participant k takes FedAvg's local steps for its copy w_k of the global model,
  and on the same mini-batches steps for its personal model,
    v_k <- v_k - client_lr alpha_k g(alpha_k v_k + (1 - alpha_k) w_k; B),
  and keeps v_k and alpha_k, which it learns with `adaptive_weight`.

  Returns:
    Its ``client_params`` is alpha_k v_k + (1 - alpha_k) w, and for a client
    that has not taken part yet the global model w.
  """
  algorithm = averaging(
    model, _update(model, hparams), hparams, map_clients, exchange=exchange
  )

  def client_params(state, client_id, shard, key):
    table, shared = state.own_memory, trees.index(state.models, 0)
    personal, weight, met = trees.rows(table, client_id)
    met = met & (client_id < trees.num_rows(table.met))
    return trees.where(met, _mixture(weight, personal, shared), shared)

  return algorithm._replace(client_params=client_params)
