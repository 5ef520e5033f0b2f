"""Layers that keep statistics of the batches they see, such as BatchNorm.

A model with such layers has *state* beside its parameters: the variables of a
linen module in other collections than ``params``, and the ``BatchStat`` of an
nnx module. ``models.roles`` says who keeps them.

The rows of a batch that only fill it up must not enter a statistic. A layer
that keeps state is therefore called as flax's ``BatchNorm`` is, with the
arguments ``mask`` (the rows that count) and ``use_running_average``, whatever
its module says: linen modules by an interceptor of methods, nnx modules by a
subclass that their layers have while the model is computed.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import contextvars
import functools
import inspect
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Key, Params
from fedjax_alg.errors import OptionError

#: Arguments that the ``__call__`` of a layer with state has to take.
ARGUMENTS = ("mask", "use_running_average")
#: Names of leaves of a model's tree, as ``models.roles.leaf_paths`` has them.
Names = frozenset[str]


class Stateful(NamedTuple):
  """The statistics of a model."""

  #: the leaf of a statistic -> its name without the collection
  names: Mapping[str, str]
  #: (params, x [B, ...], mask [B] bool or None, key or None, fixed) -> (logits
  #: [B, L], params with new statistics): the layers take the statistics of the
  #: rows in ``mask`` (None: all), but for those that have leaves in ``fixed``.
  #: As in training with a key, else as in evaluation
  observe: Callable[
    [Params, Array, Array | None, Key | None, Names], tuple[Array, Params]
  ]


class Reading(NamedTuple):
  """Mode in which the layers with state are called."""

  mask: Array | None = None  #: [B] bool, the rows that count; None: all
  of_batch: bool = False  #: whether they take the statistics of the batch
  fixed: Names = frozenset()  #: leaves of those that never do


def _check_layer(kind: type, name: str, where: str) -> None:
  """Refuses a layer with state that cannot leave rows out.

  Args:
    kind: the class of the layer.
    name: name of the model, for the message.
    where: place of the layer in it.

  Raises:
    OptionError: its ``__call__`` lacks one of ``ARGUMENTS``.
  """
  takes = inspect.signature(kind.__call__).parameters
  if not set(ARGUMENTS) <= set(takes):
    raise OptionError(
      f"`model`: {name} keeps state in {kind.__name__} {where}, whose "
      "__call__ must take mask and use_running_average as that of BatchNorm "
      "does, so that rows that fill a batch up leave no trace"
    )


def _arguments(
  call: Callable[..., Any],
  args: tuple[Any, ...],
  kwargs: Mapping[str, Any],
  mask: Array | None,
  running: bool,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
  """The arguments of a call of a layer, two of them as a ``Reading`` has them."""
  bound = inspect.signature(call).bind(*args, **kwargs)
  arguments = bound.arguments
  arguments["use_running_average"] = running
  if mask is not None and not running:
    x = (*bound.args, *bound.kwargs.values())[0]
    if x.shape[0] != mask.shape[0]:
      raise OptionError(
        f"`model`: a layer with state gets {list(x.shape)} for "
        f"{mask.shape[0]} examples, its first axis must be theirs"
      )
    rows = mask.reshape((-1,) + (1,) * (x.ndim - 1))
    call_mask = arguments.get("mask")
    arguments["mask"] = rows if call_mask is None else jnp.logical_and(rows, call_mask)
  return bound.args, bound.kwargs


# flax.linen


def linen_layers(
  run: Callable[[], object], leaves: Mapping[str, tuple[str, ...]], name: str
) -> dict[tuple[str, ...], Names]:
  """Finds the layers of a linen module that keep state.

  Args:
    run: traces the module.
    leaves: name of a leaf of its state -> its path below the collection.
    name: name of the module, for messages.

  Returns:
    The path of a layer -> its leaves.

  Raises:
    OptionError: see ``_check_layer``.
  """
  kinds: dict[tuple[str, ...], type] = {}

  def note(next_fun, args, kwargs, context):
    kinds.setdefault(context.module.path, type(context.module))
    return next_fun(*args, **kwargs)

  with nn.intercept_methods(note):
    jax.eval_shape(run)
  layers: dict[tuple[str, ...], set[str]] = {}
  for leaf, path in leaves.items():
    layer = max((path[:i] for i in range(len(path)) if path[:i] in kinds), key=len)
    _check_layer(kinds[layer], name, "/".join(layer) or "itself")
    layers.setdefault(layer, set()).add(leaf)
  return {layer: frozenset(names) for layer, names in layers.items()}


@contextlib.contextmanager
def linen_reading(
  layers: Mapping[tuple[str, ...], Names], reading: Reading
) -> Iterator[None]:
  """Makes a linen module call its layers with state as ``reading`` says."""

  def call(next_fun, args, kwargs, context):
    layer = context.module
    state_names = layers.get(layer.path)
    if state_names is None or context.method_name != "__call__":
      return next_fun(*args, **kwargs)
    running = not reading.of_batch or bool(state_names & reading.fixed)
    # Of this very method: a layer may call that of its superclass.
    method = context.orig_method
    args, kwargs = _arguments(method, args, kwargs, reading.mask, running)
    # A linen layer refuses an argument that is one of its fields, too.
    previous = getattr(layer, "use_running_average", None)
    object.__setattr__(layer, "use_running_average", None)
    try:
      return next_fun(*args, **kwargs)
    finally:
      object.__setattr__(layer, "use_running_average", previous)

  with nn.intercept_methods(call):
    yield


# flax.nnx

# The mask of the rows for the calls within ``nnx_reading``. A layer cannot hold it:
# nnx takes an array among its attributes for a part of the model.
_rows: contextvars.ContextVar[Array | None] = contextvars.ContextVar(
  "rows", default=None
)


def nnx_layers(module: Any, name: str) -> dict[tuple[Any, ...], Names]:
  """Finds the layers of an nnx module that keep state.

  Returns:
    The path of a layer -> its leaves.

  Raises:
    OptionError: see ``_check_layer``.
  """
  from flax import nnx

  layers: dict[tuple[Any, ...], Names] = {}
  for path, layer in nnx.iter_modules(module):
    state_keys = [
      key for key, value in vars(layer).items() if isinstance(value, nnx.BatchStat)
    ]
    if state_keys:
      _check_layer(type(layer), name, "/".join(map(str, path)) or "itself")
      layers[path] = frozenset("/".join(map(str, (*path, key))) for key in state_keys)
  return layers


@functools.cache
def _reading_class(kind: type) -> type:
  """A layer with state whose calls follow ``nnx_reading``."""

  def call(self, *args, **kwargs):
    method = functools.partial(kind.__call__, self)
    running = self.use_running_average
    args, kwargs = _arguments(method, args, kwargs, _rows.get(), running)
    return method(*args, **kwargs)

  return type(kind)(kind.__name__, (kind,), {"__call__": call})


@contextlib.contextmanager
def nnx_reading(
  module: Any, layers: Mapping[tuple[Any, ...], Names], reading: Reading
) -> Iterator[None]:
  """Makes an nnx module call its layers with state as ``reading`` says.

  Args:
    module: the module, which is changed: made for this computation alone.
    layers: see ``nnx_layers``.
    reading: how they are called.
  """
  from flax import nnx

  layer: Any
  for path, layer in list(nnx.iter_modules(module)):
    if path in layers:
      layer.use_running_average = not reading.of_batch or bool(
        layers[path] & reading.fixed
      )
      # Python looks `__call__` up in the class, and nnx has no interceptor as
      # linen has; the module is made for this computation alone.
      kind: Any = type(layer)
      object.__setattr__(layer, "__class__", _reading_class(kind))
  token = _rows.set(reading.mask)
  try:
    yield
  finally:
    _rows.reset(token)
