"""Per-FedAvg: a model that one gradient step adapts to any client.

Reference: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with
Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach", NeurIPS 2020,
Algorithm 1. The objective is the mean of f_k(w - alpha grad f_k(w)).

A local step draws mini-batches D, D', D'':
  w~ = w - alpha g(w; D);   u = g(w~; D')
  fo:    w <- w - beta u
  hf:    w <- w - beta (u - alpha h), h = (g(w + d u; D'') - g(w - d u; D''))/2d
  exact: w <- w - beta (u - alpha h), h = Hessian(w; D'') u, computed by
         forward-over-reverse differentiation

Another optimizer of the local steps takes what stands after beta; the step of
size alpha stays one of SGD.

The global model is evaluated without adaptation. ``client_params`` is the
global model after one step of size alpha on a mini-batch of the client's
*training* data. (Some public code adapts on test batches, which leaks them.)

Deviations: d is relative to the norms, d = delta (1 + ||w||) / ||u||. With
an absolute d the difference would vanish in float32 when u is small. D, D', D'' are
the next batches of a shuffled pass, so they have no example in common within it. With
`batch_size` 0, or at least as large as the client's data, they are the same. An epoch
is as many steps as FedAvg's, each of which reads two (fo) or three batches.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import averaging, local_rate, server_rate, weights
from fedjax_alg.base import Algorithm, Key, MapClients, Model, Params, Shard, builder
from fedjax_alg.client import minibatches
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, descent, local_optimizer
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds.two_halves import ComposedState


class FirstOrder(Part):
  """The second-order term is left out."""

  WORD = EXAMPLE = "fo"


class HessianFree(Part):
  """The second-order term is a difference of two gradients."""

  WORD, EXAMPLE = "hf", "hf:0.001"
  delta: float = hyper(
    1e-3,
    "distance from w of the two points of the difference, relative to 1 + ||w||",
    above=0.0,
    source="section 4",
  )

  def times(self, gradient: Any, params: Params, u: Params) -> Params:
    """The product of the Hessian with ``u``, up to an error of delta squared.

    Args:
      gradient: points -> (loss, gradient) of each, on one mini-batch.
      params: w.
      u: the vector.
    """
    norm = trees.root(trees.squared_norm(u))
    delta = (
      self.delta
      * (1.0 + trees.root(trees.squared_norm(params)))
      / jnp.maximum(norm, 1e-30)
    )
    (_, ahead), (_, behind) = gradient(
      trees.add_scaled(params, delta, u), trees.add_scaled(params, -delta, u)
    )
    return trees.scale(0.5 / delta, trees.subtract(ahead, behind))


class ExactHessian(Part):
  """The second-order term is the product of the Hessian and a vector."""

  WORD = EXAMPLE = "exact"

  def times(self, gradient: Any, params: Params, u: Params) -> Params:
    """The product of the Hessian with ``u``.

    Args:
      gradient: points -> (loss, gradient) of each, on one mini-batch.
      params: w.
      u: the vector.
    """
    product: Params = jax.jvp(lambda p: gradient(p)[0][1], (params,), (u,))[1]
    return product


class PerFedAvgHParams(ClientOptimizer, LocalWork):
  """Hyper-parameters of Per-FedAvg."""

  adapt_lr: float = hyper(
    0.01,
    "alpha, learning rate of the adaptation step; 0: no adaptation, so "
    "that the method is FedAvg",
    minimum=0.0,
    source="Algorithm 1, line 7",
  )
  client_lr: float = local_rate(0.1, "Algorithm 1, line 8", "beta")
  server_lr: float = server_rate()
  hessian: FirstOrder | HessianFree | ExactHessian = hyper(
    FirstOrder(),
    "how the second-order term is computed: fo = it is left out (first "
    "order), hf = by a difference of two gradients (Hessian-free), exact = "
    "as the product of the Hessian and a vector",
    source="section 4",
  )
  client_weights: Plain = weights(UniformWeights(), "Algorithm 1, line 10")


def _adapt(
  model: Model, params: Params, shard: Shard, work: LocalWork, adapt_lr: float, key: Key
) -> Params:
  """Takes one SGD step on a mini-batch of the client's training data.

  Returns:
    The adapted parameters; they are ``params`` for a client without data.
  """
  once = work.with_steps(1)

  def step(gradient, params):
    ((_, grad),) = gradient(params)
    return trees.add_scaled(params, -adapt_lr, grad)

  return minibatches.fold_steps(model, shard, once, key, step, params)[0]


def _update(model: Model, hparams: PerFedAvgHParams) -> ClientUpdate:
  alpha, hessian = hparams.adapt_lr, hparams.hessian
  batches = 2 if isinstance(hessian, FirstOrder) else 3
  optimizer = local_optimizer(hparams)

  def step(descend, *args):
    first, second, *third, (params, _, opt_state) = args
    ((_, inner),) = first(params)
    adapted = trees.add_scaled(params, -alpha, inner)
    ((loss, u),) = second(adapted)
    direction = u
    if not isinstance(hessian, FirstOrder):
      direction = trees.add_scaled(u, -alpha, hessian.times(third[0], params, u))
    params, opt_state = descend(direction, params, opt_state)
    return params, loss, opt_state

  def train(received, shard, client_row, key):
    start = received.start
    local_steps = descent(hparams.client_lr, optimizer, received.round)
    (params, loss, opt_state), _ = minibatches.fold_steps(
      model,
      shard,
      hparams,
      key,
      functools.partial(step, local_steps.step),
      (start, jnp.zeros(()), local_steps.init(start)),
      batches_per_step=batches,
    )
    # A product with the Hessian counts as two gradients on D''.
    cost = jnp.array([1, 1, 2], jnp.int32)
    read = hparams.examples_by_batch(shard.size, batches) @ cost[:batches]
    return Trained(local_steps.result(params, opt_state), loss, (), read)

  return ClientUpdate(
    train, hparams, no_personal_because="adapts all parameters to a client"
  )


@builder
def per_fedavg(
  model: Model,
  hparams: PerFedAvgHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """Per-FedAvg: a model that one gradient step adapts to a client.

  A participant starts at the global model, w_i = w. A local step with
  mini-batches D, D', D'' is
    u = g(w_i - adapt_lr g(w_i; D); D'),
    w_i <- w_i - client_lr (u - adapt_lr H(w_i; D'') u),
  where `hessian` says how the product with the Hessian H is computed ("fo"
  leaves it out). The server moves w <- w + server_lr mean_i (w_i - w).

  Returns:
    Its ``client_params`` is the global model after one step with learning rate
    adapt_lr on a mini-batch of the client's training data.
  """
  algorithm = averaging(
    model, _update(model, hparams), hparams, map_clients, exchange=exchange
  )

  def client_params(state, client_id, shard, key):
    return _adapt(
      model, trees.index(state.models, 0), shard, hparams, hparams.adapt_lr, key
    )

  return algorithm._replace(client_params=client_params)
