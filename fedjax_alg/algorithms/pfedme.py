"""pFedMe and pFedZO: personal models pulled to a copy of the global model.

Reference: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau
Envelopes", NeurIPS 2020, Algorithm 1. The objective of client k is
min_theta f_k(theta) + (lam/2) ||theta - w||^2.

A participant starts at w_k = theta = w. For each of its R mini-batches B_r it
does
  K times:  theta <- theta - personal_lr (g(theta; B_r) + lam (theta - w_k))
  once:     w_k <- w_k - client_lr lam (w_k - theta)
theta is not reset from one mini-batch to the next. The server moves
  w <- (1 - beta) w + beta mean_k w_k, beta = server_lr

Clients keep nothing between rounds: w_k and theta both start from w. Therefore
``client_params`` is theta, and ``client_copy`` is w_k, after a round of local
training from the current global model on the client's training data. The
authors' code evaluates w_k under the name of the personal model.

Deviations: participants are drawn before the local training and not after it.
Mini-batches are shuffled. The authors' code adds 0.001 theta to the gradient,
which is not in the paper and is left out.

pFedZO: Chen et al., "Gradient free personalized federated learning", ICPP 2024.
Only its abstract is public, so this is a reconstruction: pFedMe in which g is
FedZO's estimate, while the gradient of the penalty is exact. The variant
pFedZO-Heur is left out, because no public text describes it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms import fedzo
from fedjax_alg.algorithms.common import (
  averaging,
  product_caution,
  server_rate,
  weights,
)
from fedjax_alg.base import (
  Algorithm,
  Array,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  builder,
)
from fedjax_alg.client import minibatches, zeroth_order
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import ComposedState

_SOURCE = "Dinh et al., Algorithm 1"


class PFedMeHParams(LocalWork):
  """Hyper-parameters of pFedMe."""

  local_steps: int = hyper(
    20,
    "R, mini-batches per round; 0: count by `local_epochs`",
    minimum=0,
    source=_SOURCE,
  )
  batch_size: int = hyper(
    20,
    "examples per mini-batch; 0: all the client's examples",
    minimum=0,
    source="Dinh et al., section 5",
  )
  inner_steps: int = hyper(
    5,
    "K, steps of the personal model per mini-batch",
    minimum=1,
    source="Dinh et al., section 5",
  )
  lam: float = hyper(
    15.0,
    "lambda, strength of the pull of the personal model to the "
    "client's copy of the global model; keep `personal_lr` x `lam` below 2",
    minimum=0.0,
    source="Dinh et al. (2)",
  )
  personal_lr: float = hyper(
    0.1, "learning rate of the personal model theta", above=0.0, source=_SOURCE
  )
  client_lr: float = hyper(
    0.005,
    "eta; after each mini-batch the client's copy w_k of the global "
    "model moves the fraction eta x `lam` of the way to the personal model",
    above=0.0,
    source=_SOURCE,
  )
  server_lr: float = server_rate(_SOURCE, "beta")
  client_weights: Plain = weights(
    UniformWeights(), f"{_SOURCE}; the authors' code has n_i / n^r"
  )


class PFedZOHParams(fedzo.SphereDirections, PFedMeHParams):
  """Hyper-parameters of pFedZO."""


class TwoModels(NamedTuple):
  """The two models of a client after local training."""

  personal: Params  #: theta
  copy: Params  #: w_k
  loss: Array  #: [] float32, loss of theta before the last step


def _train(
  model: Model, hparams: Any, start: Params, shard: Shard, key: Key
) -> TwoModels:
  """Trains theta and w_k; a client without data returns ``start`` twice."""
  rows, draws = jax.random.split(key)
  estimated = isinstance(hparams, PFedZOHParams)
  differentiate = minibatches.EXACT
  if estimated:
    differentiate = zeroth_order.differentiate(
      directions=hparams.directions, smoothing=hparams.smoothing
    )
  reach = hparams.client_lr * hparams.lam

  def step(gradient, carry):
    pair, number = carry

    def inner(k, carry):
      theta, _ = carry
      at = (
        (theta, jax.random.fold_in(draws, number * hparams.inner_steps + k))
        if estimated
        else theta
      )
      ((loss, grad),) = gradient(at)
      grad = trees.add_scaled(grad, hparams.lam, trees.subtract(theta, pair.copy))
      return trees.add_scaled(theta, -hparams.personal_lr, grad), loss

    theta, loss = jax.lax.fori_loop(
      jnp.int32(0), jnp.int32(hparams.inner_steps), inner, (pair.personal, pair.loss)
    )
    # In this form client_lr * lam = 1 gives theta itself, bit for bit.
    copy = trees.add_scaled(trees.scale(1.0 - reach, pair.copy), reach, theta)
    return TwoModels(theta, copy, loss), number + 1

  pair: TwoModels
  (pair, _), _ = minibatches.fold_steps(
    model,
    shard,
    hparams,
    rows,
    step,
    (TwoModels(start, start, jnp.zeros(())), jnp.int32(0)),
    differentiate=differentiate,
  )
  return pair


def _build(
  model: Model, hparams: Any, map_clients: MapClients, exchange: Exchange, **ledger: Any
) -> Algorithm[ComposedState]:

  def train(received, shard, client_row, key):
    pair = _train(model, hparams, received.start, shard, key)
    return Trained(pair.copy, pair.loss)

  def train_pair(state, shard, key):
    return _train(model, hparams, trees.index(state.models, 0), shard, key)

  algorithm = averaging(
    model,
    ClientUpdate(
      train,
      hparams,
      **ledger,
      no_personal_because="has a personal model of all parameters",
    ),
    hparams,
    map_clients,
    exchange=exchange,
  )
  return algorithm._replace(
    client_params=lambda state, _, shard, key: train_pair(state, shard, key).personal,
    client_copy=lambda state, _, shard, key: train_pair(state, shard, key).copy,
  )


@builder
def pfedme(
  model: Model,
  hparams: PFedMeHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """pFedMe: personal models theta, pulled to a copy of the global model.

  A participant starts at w_k = theta = w. For each of R mini-batches B it does
    K times:  theta <- theta - personal_lr (g(theta; B) + lam (theta - w_k)),
    once:     w_k <- w_k - client_lr lam (w_k - theta).
  The server moves w <- w + server_lr mean_k (w_k - w).

  Returns:
    Its ``client_params`` is theta, and its ``client_copy`` w_k, after local
    training from the global model.
  """
  return _build(
    model,
    hparams,
    map_clients,
    gradients_per_step=hparams.inner_steps,
    exchange=exchange,
  )


@builder
def pfedzo(
  model: Model,
  hparams: PFedZOHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """pFedZO, reconstructed: pFedMe with gradients estimated from losses.

  The method is that of ``pfedme`` with FedZO's estimate in place of g
  (``fedzo.fedzo``). The gradient of the pull, lam (theta - w_k), is exact.

  Returns:
    Its ``client_params`` is theta, and its ``client_copy`` w_k, after local
    training from the global model.
  """
  passes_per_example = hparams.inner_steps * zeroth_order.passes(hparams.directions)
  return _build(
    model,
    hparams,
    map_clients,
    forward_passes=lambda size: hparams.examples_read(size) * passes_per_example,
    exchange=exchange,
  )


def caution_inner_steps(hparams: PFedMeHParams, num_params: int) -> str:
  """A warning if the inner steps diverge on any data, else ""."""
  return product_caution(hparams, "personal_lr", "lam", 2.0, "the inner steps diverge")


def caution_zo(hparams: PFedZOHParams, num_params: int) -> str:
  """The warning of ``caution_inner_steps`` or ``caution_directions``, else ""."""
  return caution_inner_steps(hparams, num_params) or fedzo.caution_directions(
    hparams, num_params
  )
