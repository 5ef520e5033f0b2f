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

from collections.abc import Callable, Iterable
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
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import HParams, hyper, is_zero, refuse_without_effect
from fedjax_alg.named_optimizers import NamedOptimizer, make_optimizer
from fedjax_alg.part import Part
from fedjax_alg.typing import Numeric, PyTree


class StepRule(Part):
  """What the local steps make of their gradients."""

  #: whether weight decay is added to the step, and not to the gradient
  DECAYS_STEP: ClassVar[bool] = False
  #: whether it makes the step itself, learning rate and sign included
  WHOLE_STEP: ClassVar[bool] = False

  def transform(self, learning_rate: Numeric) -> optax.GradientTransformation | None:
    """Makes the transformation from gradients to d; None: d is the gradient.

    Args:
      learning_rate: `client_lr`, which only a rule that makes whole steps reads.
    """
    raise NotImplementedError


class SGD(StepRule):
  """Stochastic gradient descent."""

  WORD, EXAMPLE = "sgd", "sgd"

  def transform(self, learning_rate: Numeric) -> optax.GradientTransformation | None:
    """Does not change the gradient."""
    return None


class Momentum(StepRule):
  """Sums of the gradients, in which older ones count less."""

  WORD, EXAMPLE = "momentum", "momentum:0.9"
  NESTEROV: ClassVar[bool] = False

  momentum: float = hyper(
    0.9, "momentum of the local steps", minimum=0.0, below=1.0, neutral=0.0
  )

  def transform(self, learning_rate: Numeric) -> optax.GradientTransformation | None:
    """Makes ``optax.trace``; None without momentum."""
    if is_zero(self.momentum):
      return None
    return optax.trace(self.momentum, self.NESTEROV)


class Nesterov(Momentum):
  """Momentum that looks one step ahead (Nesterov)."""

  WORD, EXAMPLE = "nesterov", "nesterov:0.9"
  NESTEROV: ClassVar[bool] = True


def _decay(default: float, of: str) -> Any:
  """The field of a decay of moments."""
  return hyper(
    default, f"decay of the {of} moment of the local gradients", minimum=0.0, below=1.0
  )


def _eps(where: str) -> Any:
  """The field of a small number."""
  return hyper(1e-8, f"small number against division by zero, added {where}", above=0.0)


_TO_ROOT = "to the root of the second moment"


class Adam(StepRule):
  """Adam (Kingma, Ba, ICLR 2015)."""

  WORD, EXAMPLE = "adam", "adam:0.9,0.99"

  beta1: float = _decay(0.9, "first")
  beta2: float = _decay(0.999, "second")
  eps: float = _eps(_TO_ROOT)

  def transform(self, learning_rate: Numeric) -> optax.GradientTransformation | None:
    """Makes ``optax.scale_by_adam``."""
    return optax.scale_by_adam(self.beta1, self.beta2, self.eps)


class AdamW(Adam):
  """Adam with weight decay of the step (Loshchilov, Hutter, ICLR 2019)."""

  WORD, EXAMPLE = "adamw", "adamw"
  DECAYS_STEP: ClassVar[bool] = True


class RMSProp(StepRule):
  """Gradients divided by the root of their second moment."""

  WORD, EXAMPLE = "rmsprop", "rmsprop:0.99"

  beta2: float = _decay(0.999, "second")
  eps: float = _eps(_TO_ROOT)

  def transform(self, learning_rate: Numeric) -> optax.GradientTransformation | None:
    """Makes ``optax.scale_by_rms``."""
    return optax.scale_by_rms(self.beta2, self.eps, eps_in_sqrt=False)


class Adagrad(StepRule):
  """Gradients divided by the root of the sum of their squares."""

  WORD, EXAMPLE = "adagrad", "adagrad"

  eps: float = _eps("to this sum")

  def transform(self, learning_rate: Numeric) -> optax.GradientTransformation | None:
    """Makes ``optax.scale_by_rss``."""
    return optax.scale_by_rss(0.0, self.eps)


class Optax(NamedOptimizer, StepRule):
  """Any optimizer of optax, its other arguments at their defaults."""

  WHOLE_STEP: ClassVar[bool] = True

  def transform(self, learning_rate: Numeric) -> optax.GradientTransformation | None:
    """Makes the optimizer with `client_lr`."""
    return make_optimizer("client_optimizer", str(self), learning_rate)


class ConstantRate(Part):
  """The learning rate does not change."""

  WORD, EXAMPLE = "constant", "constant"


class Schedule(Part):
  """A factor of `client_lr` that changes over periods T."""

  _: dataclasses.KW_ONLY
  over: str = hyper(
    "rounds",
    "what t counts: the rounds completed, or the local steps that the client has "
    "taken in this round",
    choices=("rounds", "steps"),
  )

  def factor(self, t: Array) -> Array:
    """Computes the factor.

    Args:
      t: [] float32, the rounds or steps that have passed, divided by T.
    """
    raise NotImplementedError


def _period(default: Any, minimum: int) -> Any:
  """The field T."""
  return hyper(default, "T, in rounds or steps", minimum=minimum, traced=True)


class CosineDecay(Schedule):
  """(1 + cos(pi t/T)) / 2, and 0 after T."""

  WORD, EXAMPLE = "cosine", "cosine:100"

  period: int = _period(dataclasses.MISSING, 2)

  def factor(self, t: Array) -> Array:
    """Computes the factor (``Schedule.factor``)."""
    return 0.5 * (1.0 + jnp.cos(math.pi * jnp.minimum(t, 1.0)))


class ExponentialDecay(Schedule):
  """DECAY^(t/T)."""

  WORD, EXAMPLE = "exponential", "exponential:0.99"

  decay: float = hyper(
    0.99, "factor of the learning rate in every T", above=0.0, maximum=1.0
  )
  period: int = _period(1, 1)

  def factor(self, t: Array) -> Array:
    """Computes the factor (``Schedule.factor``)."""
    return jnp.asarray(self.decay, jnp.float32) ** t


class StepDecay(ExponentialDecay):
  """DECAY^floor(t/T)."""

  WORD, EXAMPLE = "step", "step:0.1,50"

  def factor(self, t: Array) -> Array:
    """Computes the factor (``Schedule.factor``)."""
    return super().factor(jnp.floor(t))


class InverseSqrtDecay(Schedule):
  """1 / sqrt(1 + t/T)."""

  WORD, EXAMPLE = "inverse_sqrt", "inverse_sqrt:10"

  period: int = _period(1, 1)

  def factor(self, t: Array) -> Array:
    """Computes the factor (``Schedule.factor``)."""
    return 1.0 / jnp.sqrt(1.0 + t)


class ClientOptimizer(HParams):
  """Hyper-parameters of the clients' optimizer."""

  GROUP: ClassVar[str] = "optimizer"

  client_optimizer: (
    SGD | Momentum | Nesterov | Adam | AdamW | RMSProp | Adagrad | Optax
  ) = hyper(
    SGD(),
    "optimizer of the local steps; its state starts anew in every round",
  )
  client_weight_decay: float = hyper(
    0.0,
    "factor of the weights that is added to every local gradient, with "
    "adamw to the step instead; 0: none",
    minimum=0.0,
    neutral=0.0,
  )
  client_clip: float = hyper(
    0.0,
    "largest norm of a local gradient, over all parameters; a longer "
    "one is shortened to it; 0: no limit",
    minimum=0.0,
    neutral=0.0,
  )
  client_lr_schedule: (
    ConstantRate | CosineDecay | ExponentialDecay | StepDecay | InverseSqrtDecay
  ) = hyper(
    ConstantRate(),
    "factor of `client_lr` after t rounds or local steps",
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


def refuse_options(options: HParams, why: str, further: Iterable[str] = ()) -> None:
  """Refuses options of the optimizer that would not be read.

  Args:
    options: an instance of ``ClientOptimizer``.
    why: the rest of the message.
    further: other fields of ``options`` that would not be read.

  Raises:
    OptionError: an option differs from its default.
  """
  refuse_without_effect(options, [*ClientOptimizer.__dataclass_fields__, *further], why)


def local_optimizer(
  options: ClientOptimizer,
  own_transform: optax.GradientTransformation | None = None,
) -> LocalOptimizer | None:
  """Makes the optimizer of the local steps.

  Args:
    options: the hyper-parameters.
    own_transform: the caller's, which makes the steps: any optimizer of optax,
      its learning rate included. With it, ``options`` and the `client_lr` of the
      method must have their defaults.

  Returns:
    The optimizer; None for plain SGD with a constant learning rate.

  Raises:
    OptionError: options do not fit together, or are given with it.
  """
  if own_transform is not None:
    rate = ["client_lr"] if hasattr(options, "client_lr") else []
    refuse_options(options, "not read with an optimizer of one's own", rate)
    return LocalOptimizer(own_transform, whole_step=True)
  rule, schedule = options.client_optimizer, options.client_lr_schedule
  transform = _transform(options)
  varies = isinstance(schedule, Schedule)
  if rule.WHOLE_STEP and varies:
    raise OptionError(
      f"`client_lr_schedule`={schedule}: `client_optimizer`={rule} makes whole steps "
      "(allowed: constant)"
    )
  if transform is None and not varies:
    return None
  return LocalOptimizer(
    transform,
    _factor(schedule) if varies else None,
    isinstance(schedule, Schedule) and schedule.over == "steps",
    rule.WHOLE_STEP,
  )


def _transform(options: ClientOptimizer) -> optax.GradientTransformation | None:
  rule, parts = options.client_optimizer, []
  if not is_zero(options.client_clip):
    parts.append(optax.clip_by_global_norm(options.client_clip))
  made = rule.transform(getattr(options, "client_lr", 1.0))
  steps = [] if made is None else [made]
  if not is_zero(options.client_weight_decay):
    decay = optax.add_decayed_weights(options.client_weight_decay)
    steps = [*steps, decay] if rule.DECAYS_STEP else [decay, *steps]
  parts += steps
  return optax.chain(*parts) if parts else None


def _factor(schedule: Any) -> Callable[[Array], Array]:
  """The factor f; optax's schedules cannot take their numbers traced."""

  def factor(count: Array) -> Array:
    period = jnp.asarray(schedule.period, jnp.float32)
    result: Array = schedule.factor(count.astype(jnp.float32) / period)
    return result

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
