"""Makes models from modules of flax.nnx."""

from collections.abc import Callable
import inspect
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt, roles, statistics
from fedjax_alg.models.functions import from_functions
from fedjax_alg.typing import DTypes, PyTree, Shapes


def from_nnx(
  module: nnx.Module | Callable[[nnx.Rngs], nnx.Module],
  input_shape: Shapes,
  *,
  l2: float = 0.0,
  loss: Callable[[Array, Array], Array] | None = None,
  task: str | tasks.Task | None = None,
  input_dtype: DTypes = jnp.float32,
) -> Model:
  """Makes a ``Model`` from a flax.nnx module.

  The ``nnx.Param`` of the module become a nested dictionary of arrays. Its
  ``nnx.BatchStat`` are state (``models.roles``): ``init`` and ``apply`` are
  those of the parameters alone, at the first statistics, and a run says who
  keeps them (`model_state`). In the
  steps of local training the module is in training mode (``module.train()``)
  and its random streams start from a new key in every step. Everywhere else it
  is in evaluation mode. The arguments ``deterministic``, ``train`` and
  ``training`` of its ``__call__`` are set accordingly. An argument ``rngs`` is
  an ``nnx.Rngs`` in training and None in evaluation.

  Args:
    module: a function that makes a module from an ``nnx.Rngs``, for instance
      ``lambda rngs: nnx.Linear(784, 10, rngs=rngs)``; ``init`` then draws new
      parameters for every key. Or a module; ``init`` then always returns the
      parameters of this module, for all seeds and for all K models of a
      method that draws several. The module maps [B, *input_shape] to logits
      [B, L], or to the outputs of another task, and is not modified.
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
    OptionError: the module keeps other variables than these; a layer with
      state cannot leave rows out (``statistics._check_layer``); a parameter is
      not float32; or the module does not fit the examples.
  """
  template, init, name = _module_and_init(module)
  split, params = _split(template, name)
  call = type(template).__call__
  evaluation, training = adapt.mode_arguments(call)
  takes_rngs = "rngs" in inspect.signature(call).parameters
  has_mode = any(
    hasattr(part, "deterministic") for _, part in nnx.iter_modules(template)
  )
  layers = statistics.nnx_layers(template, name)

  def run(params, x, key, reading):
    new = split.merge(params, jax.random.key(0) if key is None else key)
    mode: dict[str, object] = dict(evaluation if key is None else training)
    if key is None:
      new.eval()
    else:
      new.train()
    if takes_rngs:
      # A key that differs from those of the module's random streams.
      mode["rngs"] = (
        None if key is None else nnx.Rngs(jax.random.fold_in(key, len(split.tags)))
      )
    with statistics.nnx_reading(new, layers, reading):
      return new(x, **mode), new

  def apply(params: Params, x: Array) -> Array:
    result: Array = run(params, x, None, statistics.Reading())[0]
    return result

  def train_apply(params: Params, x: Array, key: Key) -> Array:
    result: Array = run(params, x, key, statistics.Reading(of_batch=True))[0]
    return result

  def observe(params, x, mask, key, fixed):
    # Variables that are NumPy arrays could not be changed.
    logits, new = run(
      jax.tree.map(jnp.asarray, params), x, key, statistics.Reading(mask, True, fixed)
    )
    return logits, nnx.to_pure_dict(nnx.state(new, _VALUES))

  random = split.tags or training or takes_rngs or has_mode or layers
  model = from_functions(
    init,
    apply,
    input_shape,
    l2=l2,
    loss=loss,
    task=task,
    input_dtype=input_dtype,
    train_apply=train_apply if random else None,
  )._replace(
    caution=_caution(params, name),
    kinds={
      "/".join(map(str, path)): type(leaf).__name__
      for path, leaf in nnx.to_flat_state(params)
    },
  )
  if not layers:
    return model
  names = {leaf: leaf for layer_names in layers.values() for leaf in layer_names}
  return roles.with_state(model, statistics.Stateful(names, observe))


#: The variables of a module that become leaves of a model's tree.
_VALUES = (nnx.Param, nnx.BatchStat)


def _module_and_init(
  module: nnx.Module | Callable[[nnx.Rngs], nnx.Module],
) -> tuple[nnx.Module, Callable[[Key], Params], str]:
  """The module (a factory's with shapes for arrays), its ``init`` and name."""
  if isinstance(module, nnx.Module):
    # NumPy arrays, because JAX arrays would be bound to a device.
    values = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(module, _VALUES)))
    return (
      module,
      lambda key: jax.tree.map(jnp.asarray, values),
      type(module).__name__,
    )
  name = getattr(module, "__name__", type(module).__name__)
  return (
    _abstract(module, name),
    lambda key: nnx.to_pure_dict(nnx.state(module(nnx.Rngs(key)), _VALUES)),
    name,
  )


class _Split(NamedTuple):
  """A module without its numbers."""

  graph: nnx.GraphDef
  shapes: PyTree  #: of the values and of the state of the random streams
  tags: list[str]  #: the names of the random streams

  def merge(self, params: Params, key: Key) -> Any:
    """Makes the module with parameters; random streams start from the key."""
    state, streams = jax.tree.map(lambda leaf: leaf, self.shapes)
    nnx.replace_by_pure_dict(state, params)
    streams = jax.tree.map(
      lambda leaf: (
        jnp.broadcast_to(key, leaf.shape)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype)
      ),
      streams,
    )
    new = nnx.merge(self.graph, state, streams)
    keys: dict[str, Any] = {
      tag: jax.random.fold_in(key, i) for i, tag in enumerate(self.tags)
    }
    nnx.reseed(new, policy="match_shape", **keys)
    return new


def _split(module: nnx.Module, name: str) -> tuple[_Split, nnx.State]:
  """Takes the parameters and the statistics out of a module.

  Raises:
    OptionError: the module keeps other state, or a parameter is not float32.
  """
  graph, params, *others = nnx.split(module, _VALUES, ...)
  (other_state,) = others
  streams = nnx.to_flat_state(other_state)
  for path, leaf in streams:
    if not isinstance(leaf, nnx.RngState):
      raise OptionError(
        f"`model`: {name} keeps state ({type(leaf).__name__} "
        f"{'.'.join(map(str, path))}); only nnx.Param, nnx.BatchStat and "
        "random streams are supported"
      )
  adapt.check_params(nnx.to_pure_dict(params), name)
  shapes = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, other_state)
  )
  tags = sorted({leaf.tag for _, leaf in streams})
  return _Split(graph, shapes, tags), params


def _caution(params: nnx.State, name: str) -> str:
  """Warns of adapters, which do not stay the only ones that are trained."""
  adapters = [
    ".".join(map(str, path))
    for path, leaf in nnx.to_flat_state(params)
    if isinstance(leaf, nnx.LoRAParam)
  ]
  if not adapters:
    return ""
  return (
    f"`model`: {name} has LoRA adapters ({', '.join(adapters[:2])}"
    f"{', ...' if len(adapters) > 2 else ''}), and all its parameters "
    "are trained and sent, those beside the adapters too (`roles`=lora "
    "freezes these)"
  )


def _abstract(factory: Callable[[nnx.Rngs], nnx.Module], name: str) -> nnx.Module:
  """Makes the factory's module with shapes instead of arrays.

  Raises:
    OptionError: the factory fails or does not make a module.
  """

  def make() -> nnx.Module:
    module = factory(nnx.Rngs(0))
    if not isinstance(module, nnx.Module):
      raise OptionError(
        f"`model`: {name}(rngs) makes no flax.nnx module ({type(module).__name__})"
      )
    return module

  with adapt.user_code(f"{name}(rngs)"):
    return nnx.eval_shape(make)
