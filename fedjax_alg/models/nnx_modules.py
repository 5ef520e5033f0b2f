"""Modules of flax.nnx."""

from collections.abc import Callable
import inspect
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt
from fedjax_alg.models.models import cross_entropy


def from_nnx(
    module: nnx.Module | Callable[[nnx.Rngs], nnx.Module],
    input_shape: tuple[int, ...],
    *,
    l2: float = 0.0,
    loss: Callable[[Array, Array], Array] = cross_entropy,
    input_dtype: Any = jnp.float32,
) -> Model:
  """Makes a ``Model`` of a flax.nnx module without state.

  Its ``nnx.Param`` become a nested dictionary of arrays. It is in training mode
  (``module.train()``) in the steps of local training, where its random streams
  start from a new key in every step, and in evaluation mode everywhere else.
  Arguments ``deterministic``, ``train`` or ``training`` of its ``__call__`` are
  set likewise; an argument ``rngs`` gets an ``nnx.Rngs`` in training, None in
  evaluation.

  Args:
    module: makes a module of an ``nnx.Rngs``, ``lambda rngs: nnx.Linear(784,
      10, rngs=rngs)`` for one: ``init`` draws new parameters for every key. Or
      a module, whose parameters every ``init`` then starts from: those of all
      seeds, and of all K models of a method that draws several. It maps
      [B, *input_shape] to logits [B, L], and is not changed.
    input_shape: shape of one example.
    l2: coefficient of (l2/2) ||w||^2.
    loss: (logits [B, L], y [B]) -> [B].
    input_dtype: dtype of the examples.

  Raises:
    OptionError: the module keeps state besides its parameters (``BatchNorm``),
      which no algorithm here would average; parameters other than float32; or
      it does not fit the examples.
  """
  if isinstance(module, nnx.Module):
    made: Any = module
    name = type(module).__name__
    # NumPy: an array on a device would be bound to it.
    values = jax.tree.map(
        np.asarray, nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def init(key: Key) -> Params:
      del key
      return jax.tree.map(jnp.asarray, values)
  else:
    factory = module
    name = getattr(factory, "__name__", type(factory).__name__)
    made = _abstract(factory, name)

    def init(key: Key) -> Params:
      return nnx.to_pure_dict(nnx.state(factory(nnx.Rngs(key)), nnx.Param))

  graph, params, *others = nnx.split(made, nnx.Param, ...)
  (rest,) = others
  for path, leaf in nnx.to_flat_state(rest):
    if not isinstance(leaf, nnx.RngState):
      raise OptionError(
          f"`model`: {name} keeps state ({type(leaf).__name__} "
          f"{'.'.join(map(str, path))}); only modules whose variables are "
          "parameters are supported")
  adapt.check_params(nnx.to_pure_dict(params), name)
  tags = sorted({leaf.tag for _, leaf in nnx.to_flat_state(rest)})
  shapes = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, rest))
  call = type(made).__call__
  evaluation, training = adapt.mode_arguments(call)
  takes_rngs = "rngs" in inspect.signature(call).parameters
  has_mode = any(hasattr(part, "deterministic")
                 for _, part in nnx.iter_modules(made))

  def merged(params: Params, key: Key) -> Any:
    """The module with these parameters; its streams start from the key."""
    state, streams = jax.tree.map(lambda leaf: leaf, shapes)
    nnx.replace_by_pure_dict(state, params)
    streams = jax.tree.map(
        lambda leaf: jnp.broadcast_to(key, leaf.shape)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype), streams)
    new = nnx.merge(graph, state, streams)
    keys: dict[str, Any] = {
        tag: jax.random.fold_in(key, i) for i, tag in enumerate(tags)}
    nnx.reseed(new, policy="match_shape", **keys)
    return new

  def apply(params: Params, x: Array) -> Array:
    new = merged(params, jax.random.key(0))
    new.eval()
    return new(x, **evaluation, **({"rngs": None} if takes_rngs else {}))

  def train_apply(params: Params, x: Array, key: Key) -> Array:
    new = merged(params, key)
    new.train()
    # Beside those of the module's own streams.
    rngs = {"rngs": nnx.Rngs(jax.random.fold_in(key, len(tags)))}
    return new(x, **training, **(rngs if takes_rngs else {}))

  random = tags or training or takes_rngs or has_mode
  model = Model(init, apply, loss, float(l2), None,
                train_apply=train_apply if random else None)
  return adapt.checked(model, input_shape, input_dtype)


def _abstract(factory: Callable[[nnx.Rngs], nnx.Module], name: str) -> Any:
  """The factory's module, shapes in place of arrays.

  Raises:
    OptionError: it makes none.
  """

  def make() -> nnx.Module:
    made = factory(nnx.Rngs(0))
    if not isinstance(made, nnx.Module):
      raise OptionError(f"`model`: {name}(rngs) makes no flax.nnx module "
                        f"({type(made).__name__})")
    return made

  try:
    return nnx.eval_shape(make)
  except OptionError:
    raise
  except Exception as error:  # whatever the user's code raises
    raise OptionError(f"`model`: {name}(rngs) fails "
                      f"({adapt.first_line(error)})") from error
