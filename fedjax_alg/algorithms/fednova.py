"""FedNova: updates normalized by what the client's local steps add up to.

Reference: Wang et al., "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020, arXiv:2007.07481, sections
3 and 4.

After tau_i local steps the model of participant i has moved by -eta G_i a_i,
where the columns of G_i are its mini-batch gradients. FedAvg weighs clients by
p_i ||a_i||_1, and so prefers those that take more steps. FedNova averages the
normalized directions d_i = G_i a_i / ||a_i||_1:

  w <- w - tau_eff sum_i p_i eta d_i

The vector a_i depends on the local solver. It is all ones for SGD. With
momentum rho its entries are (1 - rho^(tau - k)) / (1 - rho), and with the
proximal term mu they are (1 - eta mu)^(tau - 1 - k), k = 0 ... tau - 1. For
both at once ``normaliser`` runs the recursion behind these formulas. The
authors' code adds the terms of the two formulas up in that case, which is not
what its steps do.

Here each client's update is multiplied by tau_eff / ||a_i||_1 before the mean.
In the formula the mean is over updates divided by ||a_i||_1, and tau_eff
multiplies it afterwards. Both are the same but for rounding, and the clients
return models: a model moved by a small part, update / ||a_i||_1, would lose the
last digits of the move.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import (
  LocalMethod,
  averaging,
  local_rate,
  product_caution,
  weights,
)
from fedjax_alg.base import Algorithm, Array, MapClients, Model, Params, builder
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import Descent, descent
from fedjax_alg.client.sgd import Correction, descend, proximal
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import ExampleWeights, Plain
from fedjax_alg.hparams import hyper, is_zero
from fedjax_alg.rounds.two_halves import ComposedState


class FedNovaHParams(LocalWork):
  """Hyper-parameters of FedNova."""

  client_lr: float = local_rate(0.1, "Wang et al. (2)", "eta")
  server_lr: float = hyper(1.0, "factor of the normalized mean update", above=0.0)
  mu: float = hyper(
    0.0,
    "weight of the proximal term (mu/2)||v - w||^2 of the local steps; "
    "keep `client_lr` x `mu` below 1",
    minimum=0.0,
    neutral=0.0,
    source="Wang et al., section 3",
  )
  client_momentum: float = hyper(
    0.0,
    "rho, momentum of the local steps; its buffer is zero at the start of a round",
    minimum=0.0,
    below=1.0,
    neutral=0.0,
    source="Wang et al., section 3",
  )
  tau_eff: str = hyper(
    "normaliser",
    "tau_eff, the length of the server's step: normaliser = "
    "sum_i p_i ||a_i||_1 (FedAvg's), steps = sum_i p_i tau_i (the authors' "
    "code with `mu`); they differ with `mu` or `client_momentum` only",
    choices=("normaliser", "steps"),
    source="Wang et al., section 4",
  )
  client_weights: Plain = weights(
    ExampleWeights(), "Wang et al. (1)", "every mean, p_i"
  )


def normaliser(num_steps: Array, momentum: float = 0.0, shrink: float = 0.0) -> Array:
  """||a_i||_1, the sum of the weights with which gradients add up.

  Args:
    num_steps: [] int32, tau_i.
    momentum: rho.
    shrink: eta mu, below 1.

  Returns:
    [] float32; 0 for a client that takes no step.
  """
  if is_zero(momentum) and is_zero(shrink):
    return num_steps.astype(jnp.float32)

  def step(k, carry):
    buffer, total = carry  # sums of the weights in the buffer and in v - w
    buffer = 1.0 + momentum * buffer
    return buffer, (1.0 - shrink) * total + buffer

  zero = jnp.zeros(())
  norm: Array
  _, norm = jax.lax.fori_loop(jnp.int32(0), num_steps, step, (zero, zero))
  return norm


def _heavy_ball(client_lr: float, momentum: float, mu: float, start: Params) -> Descent:
  """m <- momentum m + g(v; B),  v <- v - client_lr (m + mu (v - start)).

  The pull to ``start`` does not enter m, as it would if it were a correction
  of the gradient.
  """
  pull = proximal(mu)

  def step(gradient, params, buffer):
    buffer = trees.add_scaled(gradient, momentum, buffer)
    return trees.add_scaled(params, -client_lr, pull(buffer, params, start)), buffer

  return Descent(lambda params: jax.tree.map(jnp.zeros_like, params), step)


def nova_update(
  model: Model,
  work: LocalWork,
  client_lr: float,
  weights: Plain,
  mu: float = 0.0,
  momentum: float = 0.0,
  tau_eff: str = "normaliser",
) -> ClientUpdate:
  """Local SGD whose update is multiplied by tau_eff / ||a_i||_1.

  Nothing is sent for it: n_i tells the server tau_i.
  """
  weigh = weights.build()
  shrink: Any = 0.0 if is_zero(mu) else client_lr * mu

  def factors(memory, cohort, keys):
    num_steps = jax.vmap(work.num_steps)(cohort.shards.size, cohort.part)
    norms = jax.vmap(lambda tau: normaliser(tau, momentum, shrink))(num_steps)
    length = norms if tau_eff == "normaliser" else num_steps.astype(jnp.float32)
    return trees.slot_mean(weigh(cohort), length) / jnp.where(num_steps > 0, norms, 1.0)

  plain, pull = descent(client_lr), proximal(mu)

  def train(received, shard, factor, key):
    start = received.start
    correct: Correction | None
    if is_zero(momentum):
      steps, correct = plain, pull
    else:
      steps, correct = _heavy_ball(client_lr, momentum, mu, start), None
    params, loss, _, leaves = descend(model, start, shard, work, key, steps, correct)
    return Trained(
      trees.add_scaled(start, factor, trees.subtract(params, start)),
      loss,
      leaves=leaves,
    )

  return ClientUpdate(
    train,
    work,
    client_rows=factors,
    takes_parts=True,
    learning_rate=lambda shard: client_lr,
  )


class NovaUpdate(LocalMethod):
  """FedNova's: updates that the number of steps normalizes."""

  WORD, EXAMPLE = "nova", "nova"
  PLAIN_WEIGHTS = True

  @property
  def weighs(self) -> bool:
    return True

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return nova_update(model, options, options.client_lr, options.client_weights)


@builder
def fednova(
  model: Model,
  hparams: FedNovaHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedNova: FedAvg in which a client's number of steps is no weight.

  Participant i takes tau_i steps from the global model, v = w,
    m <- client_momentum m + g_i(v; B),  v <- v - client_lr (m + mu (v - w)),
  in which its gradients add up with the weights a_i. The server moves
    w <- w + server_lr tau_eff sum_i p_i (v_i - w) / ||a_i||_1.
  If all participants take equally many steps, FedNova is FedAvg.
  """
  client = nova_update(
    model,
    hparams,
    hparams.client_lr,
    hparams.client_weights,
    hparams.mu,
    hparams.client_momentum,
    hparams.tau_eff,
  )
  return averaging(
    model, client, hparams, map_clients, exchange=exchange, reads_weights=True
  )


def caution_signs(hparams: FedNovaHParams, num_params: int) -> str:
  """A warning if the weights a_i of the gradients change sign, else ""."""
  return product_caution(hparams, "mu", "client_lr", 1.0, "gradients cancel each other")
