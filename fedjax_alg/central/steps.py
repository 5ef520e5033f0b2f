"""Server steps: what the server does besides averaging, and when.

A server step is an optax transformation and the point of the round at which it
acts:

- ``aggregate``: its gradient is minus the clients' mean update (Reddi et al.,
  "Adaptive Federated Optimization", ICLR 2021);
- ``after``: the mean update is applied, then the same cohort measures the
  anchor gradient at the new model, and the server takes its step with this
  gradient (diversified, Procedure 4);
- ``before``: the cohort measures the anchor gradient first, the server takes
  its step with this gradient, and local training starts from the moved model
  (conjugate, Algorithm 1).

The transformation may take these extra arguments of ``update``:

- ``key``: a key for random numbers of the server, another one for every round
  and model;
- ``round``: [] int32, number of rounds completed before this one;
- ``grad``: the gradient with which a chain of transformations started;
- ``value_fn`` and ``line_fn``: f_v, with ``needs_validation``
  (``central.validation``).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import Array
from fedjax_alg.central.adaptive import adaptive
from fedjax_alg.central.adaptivity import fedopt
from fedjax_alg.central.conjugate_gradient import conjugate_gradient
from fedjax_alg.central.line_search import backtracking
from fedjax_alg.typing import PyTree

#: When a server step is taken: along the aggregate of the updates, or along
#: the anchor gradient before or after the local work.
WHEN = ("aggregate", "before", "after")


class ServerStep(NamedTuple):
  """An optax transformation and its place in the round."""

  transform: optax.GradientTransformationExtraArgs
  when: str  #: one of ``WHEN``
  #: factor of the clients' mean update where ``transform`` does not apply it
  #: ("before" and "after")
  aggregate_lr: float = 1.0
  #: whether ``transform`` needs f_v as ``value_fn`` (central.validation)
  needs_validation: bool = False
  #: (state of ``transform``) -> scalars to log about the last step
  report: Callable[[PyTree], dict[str, Array]] = lambda state: {}
  #: (state of ``transform``) -> number of passes over the validation data in
  #: the last step
  evaluations: Callable[[PyTree], Array] = lambda state: jnp.zeros(())


def _step(
  transform: optax.GradientTransformation, when: str, **options: Any
) -> ServerStep:
  return ServerStep(optax.with_extra_args_support(transform), when, **options)


def average(learning_rate: float = 1.0) -> ServerStep:
  """w <- w + learning_rate * mean update (FedAvg)."""
  return _step(optax.sgd(learning_rate), "aggregate")


def sgd(learning_rate: float = 1.0, momentum: float = 0.9) -> ServerStep:
  """SGD with momentum on the mean update (FedAvgM, Hsu et al. 2019)."""
  return _step(optax.sgd(learning_rate, momentum), "aggregate")


def adam(
  learning_rate: float = 0.01,
  beta1: float = 0.9,
  beta2: float = 0.999,
  eps: float = 1e-8,
) -> ServerStep:
  """Adam on the mean update (optax's, with bias correction)."""
  init, update = optax.adam(learning_rate, beta1, beta2, eps)

  def update_without_nan_tangents(*args):
    updates, state = update(*args)
    return jax.tree.map(trees.zero_nan_tangent, updates), state

  return _step(
    optax.GradientTransformation(init, update_without_nan_tangents), "aggregate"
  )


def fedopt_step(*args: Any, **kwargs: Any) -> ServerStep:
  """FedAdagrad, FedYogi or FedAdam; the arguments are ``fedopt``'s."""
  return _step(fedopt(*args, **kwargs), "aggregate")


def adaptive_step(*args: Any, **kwargs: Any) -> ServerStep:
  """The diversified paper's acceleration; the arguments are ``adaptive``'s."""
  return _step(adaptive(*args, **kwargs), "after")


def conjugate(
  learning_rate: float = 0.02, beta: str = "fr", aggregate_lr: float = 1.0
) -> ServerStep:
  """CFSVRG's server: w_hat = w + eta d with a constant eta."""
  return _step(
    optax.chain(conjugate_gradient(beta), optax.scale(learning_rate)),
    "before",
    aggregate_lr=aggregate_lr,
    report=lambda state: {"beta": state[0].beta},
  )


def conjugate_line_search(
  beta: str = "fr", aggregate_lr: float = 1.0, **search: Any
) -> ServerStep:
  """CLSFSVRG's server: eta by back-tracking on the validation loss.

  Args:
    beta: rule of ``conjugate_gradient``.
    aggregate_lr: alpha_g of (22).
    **search: arguments of ``backtracking``.
  """

  def report(state):
    conjugate_state, search_state = state
    return {
      "beta": conjugate_state.beta,
      "eta": search_state.step,
      "line_search_tries": search_state.tries,
      "validation_loss_before": search_state.value,
      "validation_loss_after": search_state.new_value,
    }

  return _step(
    optax.chain(conjugate_gradient(beta), backtracking(**search)),
    "before",
    aggregate_lr=aggregate_lr,
    needs_validation=True,
    report=report,
    evaluations=lambda state: 1.0 + state[1].tries.astype(jnp.float32),
  )
