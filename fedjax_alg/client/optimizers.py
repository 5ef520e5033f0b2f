"""The optimizer of local training: any optax transformation, with a schedule.

A step is v <- v - client_lr f(t) d, where d is what the optimizer makes of the
step's gradient and f is the schedule of the learning rate. Every round starts
with a fresh state of the optimizer, so clients keep nothing and send no more
than with plain SGD.

The gradient passes these parts in this order, and a part that is switched off
is not in the program: the method's own correction (FedProx's pull, SCAFFOLD's
control variates), clipping, weight decay (with adamw after the next part), the
optimizer.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Int
import optax
import optax.contrib

from fedjax_alg import trees
from fedjax_alg.base import Array, Params
from fedjax_alg.conditions import is_zero, only
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper
from fedjax_alg.named_optimizers import PREFIX, make_optimizer
from fedjax_alg.typing import Numeric, PyTree

OPTIMIZERS = (
  "sgd",
  "momentum",
  "nesterov",
  "adam",
  "adamw",
  "rmsprop",
  "adagrad",
  f"{PREFIX}NAME",
)
SCHEDULES = ("constant", "cosine", "exponential", "step", "inverse_sqrt")

#: Local methods of the grid that take an optimizer.
_UPDATES = only("client_update", "sgd", "prox", "scaffold", "sam", "lesam")
_VARYING = only("client_lr_schedule", *SCHEDULES[1:])


@dataclasses.dataclass(frozen=True)
class ClientOptimizer:
  """Hyper-parameters of the clients' optimizer."""

  GROUP: ClassVar[str] = "optimizer"

  client_optimizer: str = hyper(
    "sgd",
    "optimizer of the local steps; its state starts anew in every round; optax:NAME "
    "is any of optax (optax:lion), with its other arguments at their defaults",
    choices=OPTIMIZERS,
    when=_UPDATES,
  )
  client_momentum: float = hyper(
    0.9,
    "momentum of the local steps",
    minimum=0.0,
    below=1.0,
    neutral=0.0,
    when=only("client_optimizer", "momentum", "nesterov"),
  )
  client_beta1: float = hyper(
    0.9,
    "decay of the first moment of the local gradients",
    minimum=0.0,
    below=1.0,
    when=only("client_optimizer", "adam", "adamw"),
  )
  client_beta2: float = hyper(
    0.999,
    "decay of the second moment of the local gradients",
    minimum=0.0,
    below=1.0,
    when=only("client_optimizer", "adam", "adamw", "rmsprop"),
  )
  client_eps: float = hyper(
    1e-8,
    "small number against division by zero; it is added to the root of "
    "the second moment of the local gradients, with adagrad inside the root",
    above=0.0,
    when=only("client_optimizer", "adam", "adamw", "rmsprop", "adagrad"),
  )
  client_weight_decay: float = hyper(
    0.0,
    "factor of the weights that is added to every local gradient, with "
    "adamw to the step instead; 0: none",
    minimum=0.0,
    neutral=0.0,
    when=_UPDATES,
  )
  client_clip: float = hyper(
    0.0,
    "largest norm of a local gradient, over all parameters; a longer "
    "one is shortened to it; 0: no limit",
    minimum=0.0,
    neutral=0.0,
    when=_UPDATES,
  )
  client_lr_schedule: str = hyper(
    "constant",
    "factor of `client_lr` after t rounds, with T = "
    "`client_lr_period`: cosine = (1 + cos(pi t/T)) / 2 and 0 after T, "
    "exponential = `client_lr_decay`^(t/T), step = `client_lr_decay`^"
    "floor(t/T), inverse_sqrt = 1 / sqrt(1 + t/T)",
    choices=SCHEDULES,
    when=_UPDATES,
  )
  client_lr_over: str = hyper(
    "rounds",
    "what t of `client_lr_schedule` counts: the rounds completed, "
    "or the local steps that the client has taken in this round",
    choices=("rounds", "steps"),
    when=_VARYING,
  )
  client_lr_period: int = hyper(
    1,
    "T of `client_lr_schedule`, in rounds or steps; cosine needs it",
    minimum=1,
    traced=True,
    when=_VARYING,
  )
  client_lr_decay: float = hyper(
    0.99,
    "factor of the learning rate in every T rounds or steps",
    above=0.0,
    maximum=1.0,
    when=only("client_lr_schedule", "exponential", "step"),
  )


class LocalOptimizer(NamedTuple):
  """A client's optimizer, as ``local_optimizer`` makes it of the options."""

  #: from the gradient to d, which is subtracted; None: d is the gradient
  transform: optax.GradientTransformation | None
  #: t [] int32 -> f(t) [] float32; None: constant
  schedule: Callable[[Array], Array] | None = None
  over_steps: bool = False  #: whether t counts local steps, not rounds
  #: whether ``transform`` makes the step itself, learning rate and sign
  #: included, as the optimizers of optax do
  whole_step: bool = False


#: A transformation of optax makes the steps itself, learning rate included;
#: None is plain SGD.
Optimizer: TypeAlias = LocalOptimizer | optax.GradientTransformation | None


def refuse_options(options: object, why: str) -> None:
  """Refuses options of the optimizer that would not be read.

  Args:
    options: an instance of ``ClientOptimizer``.
    why: the rest of the message.

  Raises:
    OptionError: an option differs from its default.
  """
  for field in dataclasses.fields(ClientOptimizer):
    value = getattr(options, field.name)
    if isinstance(value, jax.core.Tracer) or value != field.default:
      raise OptionError(f"`{field.name}`={value}: {why}")


def local_optimizer(
  options: ClientOptimizer,
  own_transform: optax.GradientTransformation | None = None,
) -> LocalOptimizer | None:
  """Makes the optimizer of the local steps.

  Args:
    options: the hyper-parameters.
    own_transform: the caller's, which makes the steps: any optimizer of optax,
      its learning rate included. Neither ``options`` nor the
      learning rate of the method are read with it.

  Returns:
    The optimizer; None for plain SGD with a constant learning rate.

  Raises:
    OptionError: options do not fit together, or are given with it.
  """
  if own_transform is not None:
    refuse_options(options, "not read with an optimizer of one's own")
    return LocalOptimizer(own_transform, whole_step=True)
  transform, schedule = _transform(options), _schedule(options)
  if options.client_optimizer.startswith(PREFIX):
    if schedule is not None:
      raise OptionError(
        f"`client_lr_schedule`={options.client_lr_schedule}: `client_optimizer`="
        f"{options.client_optimizer} makes whole steps (allowed: constant)"
      )
    return LocalOptimizer(transform, whole_step=True)
  if transform is None and schedule is None:
    return None
  return LocalOptimizer(transform, schedule, options.client_lr_over == "steps")


def _transform(options: ClientOptimizer) -> optax.GradientTransformation | None:
  kind, parts = options.client_optimizer, []
  if not is_zero(options.client_clip):
    parts.append(optax.clip_by_global_norm(options.client_clip))
  decay = []
  if not is_zero(options.client_weight_decay):
    decay = [optax.add_decayed_weights(options.client_weight_decay)]
  if kind != "adamw":
    parts += decay
  if kind in ("momentum", "nesterov"):
    if not is_zero(options.client_momentum):
      parts.append(optax.trace(options.client_momentum, kind == "nesterov"))
  elif kind in ("adam", "adamw"):
    parts.append(
      optax.scale_by_adam(
        options.client_beta1, options.client_beta2, options.client_eps
      )
    )
  elif kind == "rmsprop":
    parts.append(
      optax.scale_by_rms(options.client_beta2, options.client_eps, eps_in_sqrt=False)
    )
  elif kind == "adagrad":
    parts.append(optax.scale_by_rss(0.0, options.client_eps))
  if kind == "adamw":
    parts += decay
  if kind.startswith(PREFIX):
    learning_rate = getattr(options, "client_lr")
    parts.append(make_optimizer("client_optimizer", kind, learning_rate))
  return optax.chain(*parts) if parts else None


def _schedule(options: ClientOptimizer) -> Callable[[Array], Array] | None:
  """The factor f; optax's schedules cannot take their numbers traced."""
  kind, decay = options.client_lr_schedule, options.client_lr_decay
  period = options.client_lr_period
  if kind == "constant":
    return None
  if kind == "cosine" and not isinstance(period, jax.core.Tracer) and period < 2:
    raise OptionError(
      f"`client_lr_period`={period}: with `client_lr_schedule`=cosine, after "
      f"so many {options.client_lr_over} the learning rate is 0; must be at "
      "least 2"
    )

  def factor(count: Array) -> Array:
    t = count.astype(jnp.float32) / jnp.asarray(period, jnp.float32)
    if kind == "cosine":
      return 0.5 * (1.0 + jnp.cos(math.pi * jnp.minimum(t, 1.0)))
    if kind == "inverse_sqrt":
      return 1.0 / jnp.sqrt(1.0 + t)
    return jnp.asarray(decay, jnp.float32) ** (jnp.floor(t) if kind == "step" else t)

  return factor


class Descent(NamedTuple):
  """Init and step functions by which a client moves its model in one round."""

  #: params -> state of the optimizer during the round
  init: Callable[[Params], PyTree]
  #: (gradient, params, kept) -> (new params, kept)
  step: Callable[[Params, Params, Any], tuple[Params, Any]]
  #: (params, kept) -> the model that the client sends after its last step
  result: Callable[[Params, Any], Params] = lambda params, kept: params


def _average(params: Params, state: PyTree) -> Params:
  """The average that schedule-free steps stand for; the parameters of others.

  Their gradients are taken at parameters that are not the average (Defazio et
  al., "The Road Less Scheduled", NeurIPS 2024, (2) to (4)).
  """

  def is_free(node: object) -> bool:
    return isinstance(node, optax.contrib.ScheduleFreeState)

  for node in jax.tree.leaves(state, is_leaf=is_free):
    if is_free(node):
      # Without a step the formula would only round the parameters.
      average = optax.contrib.schedule_free_eval_params(node, params)
      return trees.where(node.step_count > 1, average, params)
  return params


def descent(
  learning_rate: Numeric, optimizer: Optimizer = None, rounds: Int[Array, ""] | int = 0
) -> Descent:
  """The steps of a client in one round.

  Args:
    learning_rate: the learning rate, before the schedule.
    optimizer: the optimizer; None: plain SGD with a constant learning rate.
    rounds: [] int32, rounds completed, for the schedule.

  Returns:
    The steps; plain SGD keeps nothing.
  """
  if optimizer is None:
    return Descent(
      lambda params: (),
      lambda gradient, params, carry: (
        trees.add_scaled(params, -learning_rate, gradient),
        carry,
      ),
    )
  if isinstance(optimizer, optax.GradientTransformation):
    optimizer = LocalOptimizer(optimizer, whole_step=True)
  transform, schedule, over_steps, whole_step = optimizer
  counts = schedule is not None and over_steps
  if schedule is not None and not over_steps:
    learning_rate = learning_rate * schedule(jnp.asarray(rounds, jnp.int32))

  def init(params):
    state = () if transform is None else trees.drop_weak_types(transform.init(params))
    return state, jnp.int32(0) if counts else ()

  def step(gradient, params, carry):
    state, num_steps = carry
    if transform is not None:
      with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        gradient, state = transform.update(gradient, state, params)
      gradient = jax.tree.map(trees.zero_nan_tangent, gradient)
    if whole_step:
      return optax.apply_updates(params, gradient), (state, num_steps)
    factor: Numeric = 1.0
    if schedule is not None and counts:
      factor, num_steps = schedule(num_steps), num_steps + 1
    return (
      trees.add_scaled(params, -(learning_rate * factor), gradient),
      (state, num_steps),
    )

  return Descent(init, step, lambda params, carry: _average(params, carry[0]))


def with_sum(steps: Descent) -> Descent:
  """The same steps, which keep (what they keep, the sum of the gradients)."""

  def init(params):
    return steps.init(params), jax.tree.map(jnp.zeros_like, params)

  def step(gradient, params, carry):
    carry, total = carry
    params, carry = steps.step(gradient, params, carry)
    return params, (carry, trees.add(total, gradient))

  return Descent(init, step, lambda params, carry: steps.result(params, carry[0]))
