"""Fitting the layers of a model one after the other, with its options.

``steps_of`` makes the steps of a method in closed form (``ClosedFormStep``): one
for each layer, solved from the sums of that layer (analytic, (1), (5),
(11)-(13)).
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Float, Num
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import Array, Key, Layer, Model, Params, Shard
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.least_squares import codes, few_rows, solve
from fedjax_alg.least_squares import moments as moments_lib
from fedjax_alg.least_squares import private as private_moments
from fedjax_alg.least_squares.closed_form import (
  AdditiveStatistics,
  ClosedFormStep,
  StepContext,
)
from fedjax_alg.least_squares.private import NoisedMoments, definite
from fedjax_alg.part import Part

PRECISIONS = ("float64", "float32")


class FixedBatch(Part):
  """B stays unchanged."""

  WORD = EXAMPLE = "none"
  most: ClassVar[int | None] = None


class AdaptiveBatch(Part):
  """B grows on slow clients, up to a largest one."""

  WORD, EXAMPLE = "up_to", "up_to:256"

  most: int = hyper(
    512,
    "B_max, the largest batch that fits into a client's memory",
    minimum=1,
    source="(7); value not stated",
  )


class LayerFits(HParams):
  """The options of fitting layers, for all methods in closed form."""

  ridge: str = hyper(
    "1",
    "gamma of every layer's least squares, added once by the server: "
    "one number, or one for each layer, separated by commas",
    source="(1)",
    numbers=",",
  )
  ridge_unit: str = hyper(
    "absolute",
    "unit of `ridge`: absolute, or relative to the mean of the Gram matrix's diagonal",
    choices=("absolute", "relative"),
  )
  bias: str = hyper(
    "ones",
    "none = no bias; ones = a column of ones, with the penalty of the weights; "
    "centred = fitted to centered data, without penalty",
    choices=solve.BIASES,
  )
  code: codes.CODES = hyper(
    codes.PositionCode(),
    "targets of the hidden layers, if the model has any",
    source="T = Y Q, (1)",
  )
  normalize: bool = hyper(
    False,
    "divide the outputs of hidden layers, if the model has any, by their standard "
    "deviation",
  )
  precision: str = hyper(
    "float64",
    "precision of the products, the sums and the clients' "
    "personal solutions; the server always solves in double precision "
    "(float64)",
    choices=PRECISIONS,
  )
  batch_size: int = hyper(
    32,
    "B, initial batch size on a client's simulated machine; it does not "
    "change the weights",
    minimum=1,
    source="(6)",
  )
  adaptive_batch: FixedBatch | AdaptiveBatch = hyper(
    AdaptiveBatch(), "how B grows on slow clients", source="(7)"
  )

  def unread_with(self, model: Model) -> Mapping[str, str]:
    """Names the options of hidden layers if there are none; see ``HParams``."""
    if len(model.layers or ()) != 1:
      return {}
    return dict.fromkeys(("code", "normalize"), "the model has no hidden layers")


def per_layer(
  name: str, text: str, num_layers: int, zero: bool, or_none: bool = False
) -> tuple[float, ...]:
  """Parses an option that has one number for all layers or one for each.

  Args:
    name: name of the option.
    text: numbers separated by commas.
    num_layers: number of layers of the model.
    zero: if true, 0 is allowed and infinity is not; if false, the reverse.
    or_none: whether the option may also be "none", which the caller reads.

  Returns:
    One number for each layer.

  Raises:
    OptionError: ``text`` does not hold numbers, a number is out of range, or
      there are too few or too many of them.
  """
  label = f"`{name}`={text}"
  try:
    values = tuple(float(word) for word in text.split(","))
  except ValueError:
    end = ", or none" if or_none else ""
    raise OptionError(f"{label}: must be numbers separated by commas{end}") from None
  if zero and not all(0 <= value < math.inf for value in values):
    raise OptionError(f"{label}: must be at least 0")
  if not zero and not all(value > 0 for value in values):
    raise OptionError(f"{label}: must be more than 0, or inf")
  if len(values) not in (1, num_layers):
    raise OptionError(
      f"{label}: {len(values)} numbers for {num_layers} layers "
      "(allowed: one, or one for each)"
    )
  return values * (num_layers // len(values))


def layers_of(model: Model, name: str) -> tuple[Layer, ...]:
  """Returns the layers of a model.

  Args:
    model: the model.
    name: name of the algorithm, for the message.

  Returns:
    The layers with weights.

  Raises:
    OptionError: the model has other layers than dense ones and convolutions,
      or least squares does not fit its task.
  """
  task = tasks.of(model)
  if task.fitted is None:
    raise OptionError(
      f"`algorithm`={name}: least squares fits classes, labels and numbers "
      f"of examples, not the task {task.name}"
    )
  if model.layers is not None and len(model.layers) > 1 and (not task.has_classes):
    raise OptionError(
      f"`algorithm`={name}: fits hidden layers to codes of classes, the task "
      f"{task.name} has none (allowed: one layer, `model`=softmax)"
    )
  if model.layers and any(layer.residual for layer in model.layers):
    raise OptionError(
      f"`algorithm`={name}: fits layers one after the other, the model has residual "
      "blocks (use `algorithm`=deepafl)"
    )
  if model.layers is None:
    raise OptionError(
      f"`algorithm`={name}: least squares fits dense layers and convolutions "
      "with padding only, the model has others"
    )
  return model.layers


@dataclasses.dataclass(frozen=True)
class FitPlan:
  """Plan for fitting each layer of one model."""

  layers: tuple[Layer, ...]
  options: LayerFits
  gammas: tuple[float, ...]  #: ridge of each layer
  #: (ridge [], number of clients in the round []) -> ridge of the summed
  #: equations
  total_ridge: Callable[[Array, Array], Array]
  #: lambda of (12) for each layer, infinity for a layer that all clients of a
  #: group share; empty without personal layers
  personal_ridge: tuple[float, ...]
  #: how the sums of the layers are made private; None: not at all
  private: NoisedMoments | None = None
  task: tasks.Task = tasks.CLASSIFICATION  #: what the last layer is fitted to
  #: whether a layer without a ridge has the solution of least norm if its Gram
  #: matrix is singular; if not, it has none
  least_norm: bool = False
  log_odds: bool = False  #: whether the outputs are log odds (``solve.log_odds``)

  @property
  def last(self) -> int:
    """Index of the output layer."""
    return len(self.layers) - 1

  @property
  def product(self) -> jnp.dtype:
    """The dtype in which clients compute products and sums."""
    return jnp.dtype(self.options.precision)

  @property
  def double_products(self) -> bool:
    """Whether clients compute products and sums in double precision."""
    return self.options.precision == "float64"

  @property
  def num_rounds(self) -> int:
    """The number of rounds: one per layer, and one per personal layer."""
    return len(self.layers) + len(self.personal_ridge)

  def keeps_group_layer(self, l: int) -> bool:
    """Whether layer l of a client equals that of the client's group."""
    return self.has_random_filters(l) or math.isinf(self.personal_ridge[l])

  def has_random_filters(self, l: int) -> bool:
    """Whether layer l has random filters instead of fitted weights."""
    return isinstance(self.options.code, codes.RandomFilters) and l < self.last

  def is_high_passed(self, l: int) -> bool:
    """Whether the code of layer l is high-passed over space."""
    return l < self.options.code.high_passed and self.layers[l].positions > 1

  def columns(self, l: int, num_classes: int) -> int:
    """r, the number of right-hand sides in the equations of layer l."""
    shared = (
      self.layers[l].positions == 1
      or isinstance(self.options.code, codes.ClassCode)
      or l == self.last
    )
    if shared and not self.has_random_filters(l):
      return num_classes
    return self.layers[l].width


def layer_key(seed: Array, l: int) -> Key:
  """Makes the key of layer l, which is the same at every client."""
  return jax.random.fold_in(jax.random.wrap_key_data(seed), l)


def code_of(
  plan: FitPlan, seed: Array, l: int, counts: Float[Array, " L"], dtype: jnp.dtype
) -> Float[Array, "L p width"]:
  """Makes Q of layer l for a group of clients.

  Args:
    plan: how the layers are fitted.
    seed: seed of the codes.
    l: index of the layer.
    counts: [L] examples of the group by class.
    dtype: dtype of the result.

  Returns:
    [L, positions or 1, width].
  """
  num_classes = counts.shape[0]
  if l == plan.last:
    return codes.identity(num_classes, dtype)
  layer, kind = plan.layers[l], plan.options.code
  word = "class" if layer.positions == 1 else kind.WORD
  code = codes.draw_code(layer_key(seed, l), layer, num_classes, word, dtype)
  return codes.centred(code, counts) if kind.centred else code


def empty_fit(plan: FitPlan, l: int, num_classes: int, dtype: jnp.dtype) -> solve.Fit:
  """Makes a placeholder for the fit of layer l."""
  layer = plan.layers[l]
  d = layer.fan_in + (plan.options.bias == "ones" and not plan.has_random_filters(l))
  return solve.Fit(
    jnp.zeros((d, plan.columns(l, num_classes)), dtype),
    jnp.ones(layer.width, dtype),
  )


def gives_log_odds(
  outputs: str, task: tasks.Task, private: NoisedMoments | None = None
) -> bool:
  """Whether the outputs of a head are log odds, by the option `outputs`.

  Args:
    outputs: the option (``closed_form.HeadOutputs``).
    task: the task of the model.
    private: how the sums are made private, if they are.

  Raises:
    OptionError: log odds of a task without classes, or of noised sums.
  """
  if outputs == "auto":
    return task.name == tasks.BINARY.name and not private
  if outputs == "log_odds" and not task.has_classes:
    raise OptionError(
      f"`outputs`=log_odds: are those of classes, the task {task.name} has none"
    )
  if outputs == "log_odds" and private:
    raise OptionError(
      "`outputs`=log_odds: not with `private`, a noised covariance may have no inverse"
    )
  return outputs == "log_odds"


def put_weights(
  layer: Layer,
  params: Params,
  kernel: Float[Array, "d width"],
  bias: Float[Array, " width"],
) -> Params:
  """Sets the weights of a layer, in the dtype of its old weights."""
  dtype = layer.get(params)[0].dtype
  return layer.put(params, kernel.astype(dtype), bias.astype(dtype))


def fit_layer(
  plan: FitPlan,
  l: int,
  clients: Num[Array, ""],
  seed: Array,
  counts: Float[Array, " L"],
  moments: moments_lib.Moments,
) -> tuple[solve.Fit, Float[Array, "d width"], Float[Array, " width"]]:
  """Fits layer l to the sums of a group, (5) and (11).

  Args:
    plan: how the layers are fitted.
    l: index of the layer.
    clients: [] number of clients in the round.
    seed: seed of the codes.
    counts: [L], examples of the group by class.
    moments: sums of the group.

  Returns:
    The fit, W [d, width] and b [width].
  """
  layer, dtype, bias = plan.layers[l], moments.gram.dtype, plan.options.bias
  is_random = plan.has_random_filters(l)
  if is_random:  # no targets: only the Gram matrix of the equations is read
    bias = "centred" if bias == "centred" else "none"
    code = jnp.zeros((counts.shape[0], layer.positions, layer.width), dtype)
  else:
    code = code_of(plan, seed, l, counts.astype(dtype), dtype)
  equations = solve.problem(moments, layer, code, bias, plan.is_high_passed(l))
  if plan.private:
    equations = equations._replace(gram=definite(plan.private, equations.gram))
  gamma = plan.total_ridge(
    solve.absolute(
      plan.gammas[l], equations.gram, plan.options.ridge_unit == "relative"
    ),
    clients.astype(dtype),
  )
  if is_random:
    equations = equations._replace(mix=None, target=jnp.zeros(layer.width, dtype))
    draw = jax.random.normal(
      layer_key(seed, l), (layer.fan_in, layer.width), jnp.float32
    )
    basis = solve.random_filters(equations.gram, gamma, draw.astype(dtype))
  elif plan.least_norm and plan.gammas[l] == 0.0:
    basis = solve.least_norm(equations.gram, equations.cross)
  else:
    basis = solve.solve(equations.gram, equations.cross, gamma)
  fit = solve.Fit(basis, jnp.ones(layer.width, dtype))
  kernel, offset = solve.fitted_weights(fit, equations, moments, layer, bias)
  if plan.log_odds and l == plan.last:
    features = solve.features_fitted(equations.gram, gamma)
    return fit, *solve.log_odds(kernel, moments, layer, features)
  if plan.options.normalize and l < plan.last:
    scale = solve.output_std(kernel, moments, layer)
    return fit._replace(scale=scale), kernel / scale[None], offset / scale
  return fit, kernel, offset


def fit_personal_layer(
  plan: FitPlan,
  l: int,
  seed: Array,
  counts: Float[Array, " L"],
  meta: solve.Fit,
  moments: moments_lib.Moments,
) -> tuple[Float[Array, "d width"], Float[Array, " width"]]:
  """Fits layer l to the sums of one client, (13).

  Args:
    plan: how the layers are fitted.
    l: index of the layer.
    seed: seed of the codes.
    counts: [L], examples of the group by class.
    meta: fit of this layer for the group.
    moments: sums of the client.

  Returns:
    W [d, width] and b [width].
  """
  layer, dtype, bias = plan.layers[l], moments.gram.dtype, plan.options.bias
  code = code_of(plan, seed, l, counts.astype(dtype), dtype)
  equations = solve.problem(moments, layer, code, bias, plan.is_high_passed(l))
  basis = solve.solve(
    equations.gram,
    equations.cross,
    jnp.asarray(plan.personal_ridge[l], dtype),
    meta.basis.astype(dtype),
  )
  fit = solve.Fit(basis, meta.scale.astype(dtype))
  return solve.fitted_weights(fit, equations, moments, layer, bias)


def steps_of(plan: FitPlan) -> tuple[ClosedFormStep, ...]:
  """Makes the steps of a method that fits one layer in each round."""
  return tuple(_step_of(plan, l) for l in range(len(plan.layers)))


def _step_of(plan: FitPlan, l: int) -> ClosedFormStep:
  """The round in which layer l is fitted."""
  layer, options = plan.layers[l], plan.options
  is_random = plan.has_random_filters(l)
  of_classes = l == plan.last and plan.task.has_classes

  def floats_sent(num_classes):
    up = moments_lib.floats_sent(layer, num_classes, 0 if is_random else layer.width)
    # Without classes, the number of examples is not the sum of the counts.
    return up if plan.task.has_classes else up + 1

  def floats_down(num_classes):
    # If the positions of a layer share a code, the server sends the solution
    # for the labels Y instead of the layer, as that is smaller.
    has_bias = options.bias != "none" or (plan.log_odds and l == plan.last)
    down = (layer.fan_in + has_bias) * min(plan.columns(l, num_classes), layer.width)
    return down + (layer.width if options.normalize and l < plan.last else 0)

  def solve_flops(num_classes):
    d, sides = layer.fan_in, plan.columns(l, num_classes)
    flops = d**3 / 3 + (1.0 if is_random else 2.0) * d * d * sides
    if plan.log_odds and l == plan.last:
      flops += d**3 / 3 + 2.0 * d * d * sides
    return flops

  def solve_layer(total, context):
    fit, kernel, offset = fit_layer(
      plan, l, context.clients, context.seed, context.counts, total
    )
    return put_weights(layer, context.params, kernel, offset), fit

  statistics = AdditiveStatistics(
    zero=lambda num_classes: moments_lib.zero_moments(
      layer, num_classes, plan.product, plan.task
    ),
    add=lambda sums, params, shard: moments_lib.add_shard(
      sums, layer, params, shard, plan.product, task=plan.task
    ),
    number=lambda sums: sums.number,
    floats_sent=floats_sent,
    flops=moments_lib.flops(layer)
    + sum(2.0 * done.positions * done.fan_in * done.width for done in plan.layers[:l]),
    clear=moments_lib.clear_classes,
    send=moments_lib.carry_sums,
    # Noised counts do not tell whether there are any.
    counts=(lambda sums: sums.counts) if of_classes and not plan.private else None,
  )
  if plan.private is not None:
    statistics = dataclasses.replace(
      statistics,
      clip=functools.partial(private_moments.clip_moments, plan.private),
      noise=functools.partial(private_moments.noise, plan.private),
    )
  is_personal = bool(plan.personal_ridge) and not plan.keeps_group_layer(l)
  return ClosedFormStep(
    statistics,
    solve_layer,
    functools.partial(empty_fit, plan, l),
    floats_down,
    solve_flops,
    functools.partial(_personal_layer, plan, l) if is_personal else None,
    solve_flops,
    layer if of_classes else None,
  )


def _personal_layer(
  plan: FitPlan, l: int, params: Params, shard: Shard, context: StepContext
) -> Params:
  """``params`` with the client's personal layer l, by (13)."""
  layer = plan.layers[l]
  group_fit: solve.Fit = context.fit  # type: ignore[assignment]
  dtype = np.promote_types(plan.product, group_fit.basis.dtype)

  def by_sums(context, params, shard):
    moments = moments_lib.add_shard(
      moments_lib.zero_moments(layer, context.counts.shape[0], dtype, plan.task),
      layer,
      params,
      shard,
      plan.product,
      task=plan.task,
    )
    return fit_personal_layer(
      plan, l, context.seed, context.counts, context.fit, moments
    )

  def by_rows(size, context, params, shard):
    meta = jax.tree.map(lambda leaf: leaf.astype(dtype), context.fit)
    code = code_of(plan, context.seed, l, context.counts.astype(dtype), dtype)
    return few_rows.fit_by_rows(
      layer,
      params,
      shard,
      code,
      meta,
      plan.personal_ridge[l],
      plan.options.bias,
      size,
      plan.task,
    )

  sizes: tuple[int, ...] = ()
  # Accelerators map clients by vmap, which would compute every way.
  if jax.default_backend() == "cpu":
    sizes = few_rows.row_limits(layer, plan.personal_ridge[l])
  ways: list[Callable[..., Any]] = [
    *(functools.partial(by_rows, size) for size in sizes),
    by_sums,
  ]
  # A client takes the smallest size that holds its examples.
  solution = jax.lax.switch(
    (shard.size > jnp.asarray(sizes, jnp.int32)).sum(dtype=jnp.int32),
    ways,
    context,
    params,
    shard,
  )
  return put_weights(layer, params, *solution)
