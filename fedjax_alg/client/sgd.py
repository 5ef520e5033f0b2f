"""Local stochastic gradient descent.

The gradient may be corrected, and the steps may be those of another optimizer
(``client.optimizers``).
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_alg import trees
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import minibatches
from fedjax_alg.client.optimizers import Descent, Optimizer, descent
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.hparams import is_zero
from fedjax_alg.models.roles import ClientLeaves
from fedjax_alg.typing import Numeric

#: (gradient, params, start params) -> corrected gradient
Correction = Callable[[Params, Params, Params], Params]


#: (gradient of a mini-batch, params) -> (loss, gradient)
Measure = Callable[[minibatches.Gradient, Params], tuple[Array, Params]]


def at_params(gradient: minibatches.Gradient, params: Params) -> tuple[Array, Params]:
  """Measures the loss and the gradient of a mini-batch at the client's model."""
  (result,) = gradient(params)
  return result


def proximal(mu: Numeric) -> Correction:
  """Adds mu (v - w): the gradient of FedProx's (mu/2) ||v - w||^2."""

  def correct(gradient: Params, params: Params, start: Params) -> Params:
    if is_zero(mu):
      return gradient
    return trees.add_scaled(gradient, mu, trees.subtract(params, start))

  return correct


def sgd(
  model: Model,
  start: Params,
  shard: Shard,
  work: minibatches.LocalWork,
  learning_rate: Numeric,
  key: Key,
  correct: Correction | None = None,
  optimizer: Optimizer = None,
  rounds: Int[Array, ""] | int = 0,
) -> tuple[Params, Float[Array, ""]]:
  """v <- v - learning_rate * correct(g(v; B)) for the client's local steps.

  With an optimizer, a step goes along what it makes of the corrected gradient,
  and the learning rate is multiplied by its schedule.

  Args:
    model: the model.
    start: w, the parameters received.
    shard: the client's training data.
    work: number of steps and batch size.
    learning_rate: learning rate of every step.
    key: consumed.
    correct: corrects the gradient of every step; None: no correction.
    optimizer: the optimizer, whose state starts afresh. A transformation of
      optax makes the steps itself, and learning_rate is not read. None: plain
      SGD.
    rounds: [] int32, rounds completed, for the optimizer's schedule.

  Returns:
    The trained parameters, and the loss of the last mini-batch, [] float32,
    which is 0 for a client that takes no step.
  """
  params, loss, *_ = descend(
    model, start, shard, work, key, descent(learning_rate, optimizer, rounds), correct
  )
  return params, loss


def descend(
  model: Model,
  start: Params,
  shard: Shard,
  work: minibatches.LocalWork,
  key: Key,
  steps: Descent,
  correct: Correction | None = None,
  measure: Measure = at_params,
) -> tuple[Params, Float[Array, ""], Any, ClientLeaves]:
  """Trains as ``sgd`` does, by other steps.

  Args:
    model: see ``sgd``.
    start: see ``sgd``.
    shard: see ``sgd``.
    work: see ``sgd``.
    key: see ``sgd``.
    steps: the steps (``optimizers.descent``).
    correct: see ``sgd``.
    measure: where the loss and the gradient of a step are measured.

  Returns:
    What ``sgd`` returns, the last state of the steps, and the leaves that have
    moved with them (``minibatches.fold_steps``).
  """

  def step(
    gradient: minibatches.Gradient, carry: tuple[Params, Array, object]
  ) -> tuple[Params, Array, Any]:
    params, _, opt_state = carry
    loss, grad = measure(gradient, params)
    if correct is not None:
      grad = correct(grad, params, start)
    params, opt_state = steps.step(grad, params, opt_state)
    return params, loss, opt_state

  carry: tuple[Params, Array, Any] = (start, jnp.zeros(()), steps.init(start))
  (params, loss, opt_state), leaves = minibatches.fold_steps(
    model, shard, work, key, step, carry
  )
  return steps.result(params, opt_state), loss, opt_state, leaves


def sgd_update(
  model: Model,
  work: minibatches.LocalWork,
  learning_rate: Numeric,
  mu: Numeric = 0.0,
  optimizer: Optimizer = None,
  measure: Measure = at_params,
) -> ClientUpdate:
  """Local training by SGD or another optimizer.

  Args:
    model: the model and its objective.
    work: number of steps and batch size.
    learning_rate: learning rate of the local steps.
    mu: weight of FedProx's proximal term, which joins the objective if it is
      not 0.
    optimizer: the optimizer (``optimizers.local_optimizer``), or a
      transformation of optax that makes the steps itself, so that the
      learning rate is not read; None: plain SGD.
    measure: where the loss and the gradient of a step are measured.

  Returns:
    The client's half of a method.
  """
  correct = None if is_zero(mu) else proximal(mu)
  plain = descent(learning_rate) if optimizer is None else None

  def train(received, shard, client_row, key):
    steps = plain or descent(learning_rate, optimizer, received.round)
    params, loss, _, leaves = descend(
      model, received.start, shard, work, key, steps, correct, measure
    )
    return Trained(params, loss, leaves=leaves)

  return ClientUpdate(
    train, work, takes_parts=True, learning_rate=lambda shard: learning_rate
  )
