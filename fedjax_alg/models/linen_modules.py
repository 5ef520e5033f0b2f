"""Models from flax.linen modules, and softmax regression as one."""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import TypeVar

import flax
from flax import linen as nn
import jax
import jax.numpy as jnp

from fedjax_alg import tasks
from fedjax_alg.base import Array, Key, Layer, Model, Params
from fedjax_alg.errors import OptionError, describe_error
from fedjax_alg.models import adapt, residual, roles, statistics
from fedjax_alg.models import layers as layers_lib
from fedjax_alg.models.functions import from_functions
from fedjax_alg.models.layers import StackModule
from fedjax_alg.typing import DTypes, Shapes


class SoftmaxModule(nn.Module):
  """Multinomial logistic regression (MCLR), initialized with zeros.

  The kernel is stored as [L, D], one row per class. On a CPU a step of ten
  examples then takes half the time that it takes with [D, L], because both
  products read contiguous rows. With 784 features and 10 classes the model has
  7,850 parameters.
  """

  num_classes: int

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, ...] -> logits [B, L]."""
    x = x.reshape(x.shape[0], -1)
    kernel = self.param("kernel", nn.initializers.zeros, (self.num_classes, x.shape[1]))
    bias = self.param("bias", nn.initializers.zeros, (self.num_classes,))
    # Computing [L, B] and transposing makes a step 10 % faster on a CPU. The
    # barrier keeps the compiler from merging the transpose into the product.
    logits = jax.lax.dot_general(kernel, x, (((1,), (1,)), ((), ())))
    result: Array = jax.lax.optimization_barrier(logits).T + bias[None]
    return result


def _softmax_view(num_classes: int, input_shape: Sequence[int]) -> Layer:
  """The single layer of ``SoftmaxModule``; W is the transposed kernel."""
  features = math.prod(input_shape)

  def inputs(params: Params, x: Array) -> Array:
    return x.reshape(x.shape[0], features)

  def get(params: Params) -> tuple[Array, Array]:
    return params["params"]["kernel"].T, params["params"]["bias"]

  def put(params: Params, weights: Array, bias: Array) -> Params:
    return {"params": {"kernel": weights.T, "bias": bias}}

  return Layer(
    "softmax",
    (features,),
    (1, 1),
    features,
    num_classes,
    inputs,
    layers_lib.one_row,
    get,
    put,
  )


def _scale_softmax(tree: Params, scale: Array) -> Params:
  """Scales column j of the kernel; leaves the bias unchanged."""
  inner = tree["params"]
  return {"params": {"kernel": inner["kernel"] * scale[None], "bias": inner["bias"]}}


def from_flax(
  module: nn.Module,
  input_shape: Shapes,
  *,
  l2: float = 0.0,
  loss: Callable[[Array, Array], Array] | None = None,
  task: str | tasks.Task | None = None,
  input_dtype: DTypes = jnp.float32,
) -> Model:
  """Makes a ``Model`` from a flax.linen module.

  What the module keeps beside its parameters, such as ``batch_stats``, is state
  (``models.roles``): ``init`` and ``apply`` are those of the parameters alone,
  at the first statistics, and a run says who keeps them (`model_state`).

  Only a ``SoftmaxModule`` or a ``StackModule`` whose convolutions have padding can be
  fitted layer by layer with least squares. If the ``__call__`` of a module has
  an argument ``deterministic``, ``train`` or ``training``, the module is in
  training mode in the steps of local training, with a new key for ``dropout``
  in every step. Everywhere else it is in evaluation mode, without random
  numbers.

  Args:
    module: maps [B, *input_shape] to logits [B, L], or to the outputs of
      another task.
    input_shape: shape of one example, or a dictionary of the shapes of its
      arrays.
    l2: coefficient of (l2/2) ||w||^2.
    loss: (logits [B, L], y [B]) -> loss of each example [B]; None: that of the
      task.
    task: what is predicted, see ``tasks.resolve_task``; None: what the data say, or
      one class for each example.
    input_dtype: dtype of the examples, or a dictionary of dtypes.

  Returns:
    The model.

  Raises:
    OptionError: a layer with state cannot leave rows out
      (``statistics._check_layer``); the module draws random numbers in
      evaluation, or others than for ``dropout`` in training; a parameter is not
      float32; or the module does not fit the examples.
  """
  layers: tuple[Layer, ...] | None = None
  if isinstance(input_shape, Mapping):
    pass  # the layers listed below read one array
  elif isinstance(module, SoftmaxModule):
    layers = (_softmax_view(module.num_classes, input_shape),)
  elif isinstance(module, residual.ResidualModule):
    layers = residual.residual_views(module, input_shape)
  elif isinstance(module, StackModule) and not any(
    isinstance(layer, layers_lib.ValidConv) for layer in module.layers
  ):
    layers = layers_lib.layer_views(module.layers, module.num_classes, input_shape)
  name = type(module).__name__
  evaluation, training = adapt.mode_arguments(type(module).__call__)
  example = adapt.example(input_shape, input_dtype, 1)

  def init(key: Key) -> Params:
    return module.init(key, jax.tree.map(jnp.zeros_like, example), **evaluation)

  variables = adapt.params_shapes(
    init, f"{name} on examples of shape {adapt.describe_example(example)}"
  )
  layers_with_state = _with_state(variables, init, name)
  with_statistics = functools.partial(statistics.linen_reading, layers_with_state)

  def apply(params: Params, x: Array) -> Array:
    return _without(
      name, _IN_EVALUATION, lambda: jnp.asarray(module.apply(params, x, **evaluation))
    )

  def apply_with_statistics(params: Params, x: Array) -> Array:
    with with_statistics(statistics.Reading()):
      return apply(params, x)

  def train_apply(params: Params, x: Array, key: Key) -> Array:
    if layers_with_state:
      result: Array = observe(params, x, None, key, frozenset())[0]
      return result
    return _without(
      name,
      _IN_TRAINING,
      lambda: jnp.asarray(module.apply(params, x, **training, rngs={"dropout": key})),
    )

  def observe(params, x, mask, key, fixed):
    mode, where = (
      (evaluation, _IN_EVALUATION) if key is None else (training, _IN_TRAINING)
    )
    rngs = None if key is None else {"dropout": key}
    with with_statistics(statistics.Reading(mask, True, fixed)):
      outputs, new = _without(
        name,
        where,
        lambda: module.apply(
          params,
          x,
          **mode,
          rngs=rngs,
          mutable=[kind for kind in params if kind != "params"],
        ),
      )
    return jnp.asarray(outputs), {**params, **new}

  softmax = isinstance(module, SoftmaxModule)
  model = from_functions(
    init,
    apply_with_statistics if layers_with_state else apply,
    input_shape,
    l2=l2,
    loss=loss,
    task=task,
    input_dtype=input_dtype,
    linear=softmax,
    train_apply=train_apply if training or layers_with_state else None,
    scale_features=_scale_softmax if softmax else None,
  )._replace(layers=layers)
  if not layers_with_state:
    return model
  return roles.with_state(
    model,
    statistics.Stateful(
      {
        leaf: leaf.partition("/")[2]
        for names in layers_with_state.values()
        for leaf in names
      },
      observe,
    ),
  )


_IN_EVALUATION = (
  "in evaluation (`train`=False or `deterministic`=True as an "
  "argument of __call__ must switch it off)"
)
_IN_TRAINING = "in training, only dropout has a key"


def _with_state(
  variables: Params, init: Callable[[Key], Params], name: str
) -> dict[tuple[str, ...], statistics.Names]:
  """The layers of a linen module that keep state, path -> leaves.

  Args:
    variables: shapes of all that the module has.
    init: makes them.
    name: name of the module.
  """
  if set(variables) == {"params"}:
    return {}
  names = [
    leaf
    for leaf in roles.leaf_paths(
      {kind: tree for kind, tree in variables.items() if kind != "params"}
    )
  ]
  return statistics.linen_layers(
    lambda: init(jax.random.key(0)),
    {leaf: tuple(leaf.split("/")[1:]) for leaf in names},
    name,
  )


_Result = TypeVar("_Result")


def _without(name: str, where: str, run: Callable[[], _Result]) -> _Result:
  """Runs a module and reports random numbers for which it has no key.

  Raises:
    OptionError: the module draws such numbers.
  """
  try:
    return run()
  except flax.errors.InvalidRngError as error:
    raise OptionError(
      f"`model`: {name} draws random numbers {where}: {describe_error(error)}"
    ) from error
