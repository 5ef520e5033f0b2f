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
  (``central.validation``);
- ``mean_square``: [] float32, the mean of the clients' squared updates, with
  ``needs_mean_square``.

The parts that `server` chooses from build them: the general ones stand at the
end, the others with their methods.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from fedjax_alg import trees
from fedjax_alg.base import Array, Params
from fedjax_alg.central.adaptive import adaptive
from fedjax_alg.central.adaptivity import fedopt
from fedjax_alg.central.conjugate_gradient import conjugate_gradient
from fedjax_alg.central.line_search import backtracking
from fedjax_alg.hparams import field_like, hyper, is_zero
from fedjax_alg.named_optimizers import (
  PREFIX,
  RATE_FREE,
  NamedOptimizer,
  make_optimizer,
)
from fedjax_alg.part import Part
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
  #: whether ``transform`` needs the mean of ||update_i||^2 as ``mean_square``
  needs_mean_square: bool = False
  #: (state of ``transform``, model) -> the model that is evaluated and deployed
  #: in the place of the one that clients train from; None: the same
  deployed: Callable[[PyTree, Params], Params] | None = None


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


class ExtrapolationState(NamedTuple):
  """What the step of ``extrapolated`` keeps."""

  rate: Array  #: [] float32, the last server learning rate
  last: Params  #: the model before the last step; () if it is not kept


class ExtrapolatedMomentumState(NamedTuple):
  """What the step of ``extrapolated`` keeps with momentum."""

  rate: Array  #: [] float32, the last server learning rate
  last: Params  #: the model before the last step; () if it is not kept
  trace: Params  #: minus the momentum v
  mean_square: Array  #: [] float32, q


def extrapolated(
  epsilon: float = 1e-3, averages_iterates: bool = True, momentum: float = 0.0
) -> ServerStep:
  """Moves as far as the updates disagree (FedExP, Jhunjhunwala et al. 2023).

  The model moves by eta_g times the mean update, with
    eta_g = max(1, mean_i ||update_i||^2 / (2 (||mean update||^2 + epsilon))).
  With momentum beta it moves by eta_g v without the bound 1, as in the authors' code:
    v <- mean update + beta v,    q <- mean_i ||update_i||^2 + beta / 2 q,
    eta_g = q / (2 (||v||^2 + epsilon)).

  Args:
    epsilon: keeps eta_g finite where the updates cancel.
    averages_iterates: whether the mean of the last two models is deployed, as
      in the paper's experiments.
    momentum: beta; 0: none.
  """
  has_momentum = not is_zero(momentum)

  def init(params):
    last = params if averages_iterates else ()
    if has_momentum:
      zeros = jax.tree.map(jnp.zeros_like, params)
      return ExtrapolatedMomentumState(jnp.ones(()), last, zeros, jnp.zeros(()))
    return ExtrapolationState(jnp.ones(()), last)

  def update(gradient, state, params=None, *, mean_square, **extra):
    del extra
    if has_momentum:
      gradient = trees.add_scaled(gradient, momentum, state.trace)
      mean_square = mean_square + 0.5 * momentum * state.mean_square
    squared_norm = optax.tree.norm(gradient, squared=True)
    rate = 0.5 * mean_square / (squared_norm + epsilon)
    if not has_momentum:
      rate = jnp.maximum(1.0, rate)
    move = trees.scale(-rate, gradient)
    new_state = ExtrapolationState(rate, params if averages_iterates else ())
    if has_momentum:
      return move, ExtrapolatedMomentumState(*new_state, gradient, mean_square)
    return move, new_state

  return _step(
    optax.GradientTransformationExtraArgs(init, update),
    "aggregate",
    needs_mean_square=True,
    report=lambda state: {"eta_g": state.rate},
    deployed=_mean_with_last if averages_iterates else None,
  )


def _mean_with_last(state: Any, params: Params) -> Params:
  """The mean of the last two models, as clients have received them."""
  return trees.scale(0.5, trees.add(state.last, params))


def lookahead(momentum: float = 0.85) -> ServerStep:
  """Sends the model moved ahead by the momentum (FedACG, Kim et al. 2024).

  With the server's momentum m, clients train from z = w + momentum m, and
    m <- momentum m + mean update,    w <- z + mean update = w + m.
  The state of a run holds z, which takes steps of Nesterov's SGD; w is deployed.

  Args:
    momentum: lambda.
  """
  return _step(
    optax.sgd(1.0, momentum, nesterov=True),
    "aggregate",
    deployed=lambda state, params: trees.add_scaled(params, momentum, state[0].trace),
  )


def from_optax(name: str, learning_rate: float) -> ServerStep:
  """Takes the steps of an optimizer of optax on the mean update.

  Args:
    name: such as optax:lion (``named_optimizers``).
    learning_rate: its learning rate.

  Raises:
    OptionError: there is no such optimizer.
  """
  optimizer = make_optimizer("server", name, learning_rate)
  is_average = "schedule_free" in name
  return _step(
    optimizer,
    "aggregate",
    deployed=optax.contrib.schedule_free_eval_params if is_average else None,
  )


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


class ServerRule(Part):
  """What the server does with the participants' mean update."""

  @property
  def usual_rate(self) -> float | None:
    """The default of `server_lr`; None: it takes no learning rate."""
    return 1.0

  def build(self, server_lr: float) -> ServerStep:
    """Makes the server step.

    Args:
      server_lr: its learning rate; a rule without one ignores it.
    """
    raise NotImplementedError


class AverageServer(ServerRule):
  """The mean update itself, as in FedAvg."""

  WORD, EXAMPLE = "average", "average"

  def build(self, server_lr: float) -> ServerStep:
    """Makes ``average``."""
    return average(server_lr)


class SGDServer(ServerRule):
  """SGD with momentum, as in FedAvgM."""

  WORD, EXAMPLE = "sgd", "sgd:0.9"

  momentum: float = hyper(0.9, "momentum of the server", minimum=0.0, below=1.0)

  def build(self, server_lr: float) -> ServerStep:
    """Makes ``sgd``."""
    return sgd(server_lr, self.momentum)


def _moment(default: float, of: str) -> Any:
  return hyper(
    default, f"decay of the {of} moment of the mean update", minimum=0.0, below=1.0
  )


class AdamServer(ServerRule):
  """Adam of optax, with bias correction."""

  WORD, EXAMPLE = "adam", "adam:0.9,0.99"

  beta1: float = _moment(0.9, "first")
  beta2: float = _moment(0.999, "second")
  eps: float = hyper(1e-8, "added to the root of the second moment", above=0.0)

  @property
  def usual_rate(self) -> float:
    return 0.01

  def build(self, server_lr: float) -> ServerStep:
    """Makes ``adam``."""
    return adam(server_lr, self.beta1, self.beta2, self.eps)


class YogiServer(ServerRule):
  """Yogi, as in FedYogi."""

  WORD, EXAMPLE = "yogi", "yogi:tau=0.01"

  beta1: float = field_like(AdamServer, "beta1")
  beta2: float = field_like(AdamServer, "beta2", default=0.99)
  tau: float = hyper(
    1e-3,
    "degree of adaptivity: it is added to the root of the second moment, which starts "
    "at tau^2",
    above=0.0,
    source="Reddi et al. Algorithm 2",
  )

  @property
  def usual_rate(self) -> float:
    return 0.01

  def build(self, server_lr: float) -> ServerStep:
    """Makes FedYogi's ``fedopt_step``."""
    return fedopt_step("yogi", server_lr, self.beta1, self.beta2, self.tau)


class AdagradServer(ServerRule):
  """Adagrad, as in FedAdagrad."""

  WORD, EXAMPLE = "adagrad", "adagrad:tau=0.01"

  beta1: float = field_like(AdamServer, "beta1", default=0.0)
  tau: float = field_like(YogiServer, "tau")

  @property
  def usual_rate(self) -> float:
    return 0.1

  def build(self, server_lr: float) -> ServerStep:
    """Makes FedAdagrad's ``fedopt_step``."""
    return fedopt_step("adagrad", server_lr, self.beta1, 0.0, self.tau)


class LookaheadServer(ServerRule):
  """Clients train from the model moved ahead by the momentum, as in FedACG."""

  WORD, EXAMPLE = "lookahead", "lookahead:0.9"

  momentum: float = hyper(
    0.85,
    "momentum of the server, and how far it moves the model along it",
    minimum=0.0,
    below=1.0,
  )

  @property
  def usual_rate(self) -> None:
    return None

  def build(self, server_lr: float) -> ServerStep:
    """Makes ``lookahead``."""
    return lookahead(self.momentum)


class OptaxServer(NamedOptimizer, ServerRule):
  """Any optimizer of optax, its other arguments at their defaults."""

  @property
  def usual_rate(self) -> float:
    return 1.0 if self.name in RATE_FREE else 0.01

  def build(self, server_lr: float) -> ServerStep:
    """Makes ``from_optax``."""
    return from_optax(f"{PREFIX}{self.name}", server_lr)
