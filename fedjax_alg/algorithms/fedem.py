"""FedEM: every client mixes the predictions of K shared components.

Reference: Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning
under a Mixture of Distributions", NeurIPS 2021, the client-server algorithm
FedEM, and the authors' code. Client t draws its examples from a mixture of K
distributions (M in the paper), with weights pi_t of its own and a model theta_m
of each component that all clients share.

Readings: the authors' code averages over all clients, where those that did not
take part count with the components that they received, so that the components
move by the participants' part of all examples only. Here the mean is over the
participants, as in all methods of this library.

Deviations: a client that has not taken part has one EM step from equal weights
when it deploys a mixture; the code goes on from evaluation to evaluation.
Responsibilities are computed anew for every mini-batch, from the components
received: they are the same numbers, and nothing of the size of a client's data
is kept. The ledger counts them once, as the paper computes them.
"""

from collections.abc import Callable
import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import averaging, local_rate, weights
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
from fedjax_alg.central import steps
from fedjax_alg.client import mixture, objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import (
  ClientOptimizer,
  Descent,
  descent,
  local_optimizer,
)
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import ExampleWeights, Plain
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds import clustered
from fedjax_alg.rounds.two_halves import ComposedState

_SOURCE = "Marfoq et al., FedEM"


class FedEMHParams(ClientOptimizer, LocalWork):
  """Hyper-parameters of FedEM."""

  #: the option with the number of models that must start apart
  APART: ClassVar[str] = "num_components"

  num_components: int = hyper(
    3,
    "K, number of components that all clients share",
    minimum=1,
    source="Marfoq et al.'s M; value of their experiments",
  )
  client_lr: float = local_rate(0.1, _SOURCE, "eta")
  client_weights: Plain = weights(
    ExampleWeights(), _SOURCE, "the means of the components"
  )


class ClientMixtures(NamedTuple):
  """Per-client state: the weights of the components."""

  weights: Array  #: [C, K] float32, pi_t
  met: Array  #: [C] bool, whether the client has taken part


def _responsibilities(
  model: Model, every: Array, y: Array, weights: Array
) -> tuple[Array, Array]:
  """q [K, B] by the components' outputs [K, B, ...], and their losses [K, B]."""
  losses = jax.vmap(model.loss, (0, None))(every, y)
  return jax.nn.softmax(mixture.log_weights(weights)[:, None] - losses, axis=0), losses


def mean_responsibilities(
  model: Model, components: Params, weights: Array, shard: Shard
) -> Array:
  """The weights pi after one EM step on a client's data, [K].

  Args:
    model: the model of a component.
    components: leaves [K, ...].
    weights: [K], pi before it, which stays where the client has no examples.
    shard: the client's training data.
  """
  if weights.shape[0] == 1:
    return weights

  def add(x, y, mask):
    every = mixture.outputs(model, components, x, mask)
    q, _ = _responsibilities(model, every, y, weights)
    return jnp.where(mask, q, jnp.zeros_like(q)).sum(1)

  sums: Array = objective.sum_blocks(shard, add)
  size = shard.size.astype(jnp.float32)
  return jnp.where(size > 0, sums / jnp.maximum(size, 1.0), weights)


def _expected(model: Model, received: Params, weights: Array) -> Model:
  """The model of K components with the M-step's objective.

  It is sum_m q_m(x, y) loss(theta_m; x, y), where q is of the components that
  the client has received. Its outputs are those of both.
  """
  alone = weights.shape[0] == 1

  def observe(params, x, mask, key):
    now = mixture.outputs(model, params, x, mask, key)
    return (now, now if alone else mixture.outputs(model, received, x, mask)), None

  def loss(outputs, y):
    now, before = outputs
    if alone:
      return model.loss(now[0], y)
    q, _ = _responsibilities(model, before, y, weights)
    return (q * jax.vmap(model.loss, (0, None))(now, y)).sum(0)

  return model._replace(observe=observe, loss=loss, roles=None)


def _each(steps: Descent) -> Descent:
  """The steps of each component by itself."""
  return Descent(jax.vmap(steps.init), jax.vmap(steps.step), jax.vmap(steps.result))


def _update(model: Model, hparams: FedEMHParams) -> ClientUpdate:
  k, optimizer = hparams.num_components, local_optimizer(hparams)

  def init(params, spec):
    clients = spec.num_clients
    return ClientMixtures(
      jnp.full((clients, k), 1.0 / k, jnp.float32), jnp.zeros(clients, bool)
    )

  def train(received, shard, row, key):
    params, loss, *_ = descend(
      _expected(model, received.start, row.weights),
      received.start,
      shard,
      hparams,
      key,
      _each(descent(hparams.client_lr, optimizer, received.round)),
    )
    new = mean_responsibilities(model, received.start, row.weights, shard)
    return Trained(params, loss, kept=ClientMixtures(new, row.met | (shard.size > 0)))

  return ClientUpdate(
    train,
    hparams,
    init=init,
    gradients_per_step=k,
    evaluations=k if k > 1 else 0,
    takes_parts=True,
    one_model="its one model is that of all components",
    no_personal_because="mixes components of which all parameters are shared",
    store=Store.whole(),
  )


def _init(
  init: Callable[..., ComposedState],
  model: Model,
  k: int,
  params: Params,
  spec: FedSpec,
  key: Key,
) -> ComposedState:
  start = "independent" if k > 1 else "shared"
  return init(clustered.initial_models(model, params, key, k, start), spec, key)


@builder
def fedem(
  model: Model,
  hparams: FedEMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedEM: every client mixes the predictions of K shared components.

  Participant t takes an EM step: the responsibilities of its examples
    q(i, m) ~ pi_tm exp(-loss(theta_m; x_i, y_i)),
  new weights pi_tm <- mean_i q(i, m), and local steps of every component,
    theta_m <- theta_m - client_lr mean_(i in B) q(i, m) grad loss(theta_m; i).
  The server takes the mean of every component by n_t. The components start as K
  random models. With one component, FedEM is FedAvg.

  Returns:
    Its ``client_params`` are those of ``client.mixture.mixture``: the components
    and pi_t, and of a client that has not taken part pi after one EM step from
    equal weights. Its ``membership`` is the component of the largest weight.

  Raises:
    OptionError: nothing says how predictions of the task are mixed.
  """
  k = hparams.num_components
  mixture.mixture(model, k)
  algorithm = averaging(
    model._replace(init=lambda key: trees.repeat(model.init(key), k)),
    _update(model, hparams),
    hparams,
    map_clients,
    steps.average(1.0),
    exchange=exchange,
  )

  def components(state: ComposedState) -> Params:
    return trees.index(state.models, 0)

  def client_params(state, client_id, shard, key):
    table = state.own_memory
    row = trees.rows(table, client_id)
    met = row.met & (client_id < trees.num_rows(table.met))
    new = mean_responsibilities(
      model,
      components(state),
      jnp.full(k, 1.0 / k, jnp.float32),
      shard._replace(size=jnp.where(met, 0, shard.size)),
    )
    return {
      "components": components(state),
      "weights": jnp.where(met, row.weights, new),
    }

  def membership(state):
    table = jax.tree.map(jnp.asarray, state.own_memory)
    rows = trees.rows(table, jnp.arange(trees.num_rows(table.met), dtype=jnp.int32))
    return jnp.where(rows.met, jnp.argmax(rows.weights, 1).astype(jnp.int32), -1)

  return algorithm._replace(
    init=functools.partial(_init, algorithm.init, model, k),
    client_params=client_params,
    global_params=components,
    membership=membership,
    client_model=lambda model: mixture.mixture(model, k),
  )
