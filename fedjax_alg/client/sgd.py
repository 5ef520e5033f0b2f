"""Local stochastic gradient descent, with an optional gradient correction."""

from collections.abc import Callable

import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import minibatches
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.hparams import is_zero

#: (gradient, params, start params) -> corrected gradient
Correction = Callable[[Params, Params, Params], Params]


def proximal(mu: float) -> Correction:
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
    learning_rate: float,
    key: Key,
    correct: Correction | None = None,
) -> tuple[Params, Array]:
  """v <- v - learning_rate * correct(g(v; B)) for the client's local steps.

  Args:
    model: the model.
    start: w, the parameters received.
    shard: the client's training data.
    work: number of steps and batch size.
    learning_rate: learning rate of every step.
    key: consumed.
    correct: corrects the gradient of every step; None: no correction.

  Returns:
    The trained parameters, and the loss of the last mini-batch, [] float32,
    which is 0 for a client that takes no step.
  """

  def step(gradient: minibatches.Gradient, carry: tuple[Params, Array]):
    params, _ = carry
    ((loss, grad),) = gradient(params)
    if correct is not None:
      grad = correct(grad, params, start)
    return trees.add_scaled(params, -learning_rate, grad), loss

  return minibatches.fold_steps(
      model, shard, work, key, step, (start, jnp.zeros(())))


def sgd_update(
    model: Model, work: minibatches.LocalWork, client_lr: float,
    mu: float = 0.0) -> ClientUpdate:
  """Local SGD; with mu > 0 it is on FedProx's objective."""
  correct = None if is_zero(mu) else proximal(mu)

  def train(received, shard, client_row, key):
    del client_row
    return Trained(*sgd(
        model, received.start, shard, work, client_lr, key, correct))

  return ClientUpdate(train, work)
