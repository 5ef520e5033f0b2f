"""Continues a sequence of tokens with a model of the next token."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array, Key, Model, Params, initial_shapes
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.models.roles import leaf_paths
from fedjax_alg.part import of_type
from fedjax_alg.tasks.tokens import PADDING


def generate(
  model: Model,
  params: Params,
  prompt: Any,
  length: int,
  *,
  window: int,
  temperature: float = 0.0,
  top_k: int | None = None,
  seed: int = 0,
) -> np.ndarray:
  """Continues a prompt, one token after the other.

  The model reads the last ``window`` tokens. Padding is never generated.

  Args:
    model: a model of the task "tokens": [B, T] ids -> [B, T, V] logits of the next
      token at each place.
    params: its parameters.
    prompt: [t] integer ids of at least one token.
    length: the number of tokens to add.
    window: T, the length of the sequences that the model was trained on.
    temperature: divisor of the logits before a token is drawn; 0 takes the most
      probable token (greedy).
    top_k: draw from the k most probable tokens only; None: from all. Not with
      ``temperature`` 0.
    seed: of the draws; not read with ``temperature`` 0.

  Returns:
    [t + length] int32, the prompt and its continuation.

  Raises:
    OptionError: an argument of another type or out of range, ``top_k`` that would not
      be read, parameters of another model or of several, or a model without logits at
      each place.

  Examples:
    >>> import jax
    >>> import fedjax_alg as fa
    >>> from fedjax_alg import models
    >>> ids = np.tile(np.arange(1, 5), 64)
    >>> x, y = ids[:-1].reshape(-1, 15), ids[1:].reshape(-1, 15)
    >>> clients = np.arange(len(x)) % 4
    >>> fed = fa.federate(fa.from_arrays(x, y, clients, task="tokens"))
    >>> small = fa.Transformer(d_model=16, heads=2, blocks=1)
    >>> result = fa.run("fedavg", fed, model=small, rounds=20, client_lr=0.3,
    ...                 participation=1.0, eval_every=20, evaluate="global")
    >>> params = jax.tree.map(lambda leaf: leaf[0], result.global_params())
    >>> generate(result.prepared.model, params, [1, 2], 4, window=15).tolist()
    [1, 2, 3, 4, 1, 2]
  """
  ids = np.asarray(prompt)
  if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
    raise OptionError(
      f"`prompt`: {ids.dtype}{list(ids.shape)}, must be a sequence of at least one id"
    )
  for name, value, least in (
    ("length", length, 0),
    ("window", window, 1),
    ("top_k", 1 if top_k is None else top_k, 1),
    ("seed", seed, 0),
  ):
    if of_type(name, value, int) < least:
      raise OptionError(f"`{name}`={value}: must be at least {least}")
  if not 0 <= of_type("temperature", temperature, float) < np.inf:
    raise OptionError(f"`temperature`={temperature}: must be at least 0")
  if top_k is not None and not temperature:
    raise OptionError(
      f"`top_k`={top_k}: not read with `temperature`=0, which takes the most probable "
      "token"
    )
  if not isinstance(model, Model):
    raise OptionError(f"`model`: {a_type(model)}, must be a Model")
  _check_params(model, params)
  logits = jax.eval_shape(
    model.apply, params, jax.ShapeDtypeStruct((1, window), jnp.int32)
  )
  if logits.ndim != 3:
    raise OptionError(
      f"`model`: gives {list(logits.shape)} for [1, {window}] ids, must give the "
      "logits of the next token at each place (task=tokens)"
    )
  tokens = logits.shape[-1]
  if ids.min() < 0 or ids.max() >= tokens:
    raise OptionError(
      f"`prompt`: has id {ids.max() if ids.max() >= tokens else ids.min()}, the "
      f"model has 0 to {tokens - 1}"
    )
  # The window begins with the oldest token; behind the last one is padding.
  recent = ids[-window:]
  start = np.full(window, PADDING, np.int32)
  start[: len(recent)] = recent
  new = _continue(
    model.apply,
    length,
    None if top_k is None else min(top_k, tokens - 1),
    params,
    jnp.asarray(start),
    jnp.int32(len(recent)),
    jnp.float32(temperature),
    jax.random.key(seed),
  )
  return np.concatenate([ids.astype(np.int32), np.asarray(new, np.int32)])


def _check_params(model: Model, params: Params) -> None:
  """Refuses parameters that are not those of one model.

  Raises:
    OptionError: they have other shapes, for example those of several models.
  """
  full = model if model.roles is None else model.roles.whole
  needed = _shapes(initial_shapes(full.init))
  shapes = _shapes(params)
  if model.roles is not None:  # a frozen leaf is the model's own
    needed = {path: shape for path, shape in needed.items() if path in shapes}
  if shapes and shapes == needed:
    return
  first = next(iter(shapes.values()), ())[:1]
  if first and shapes == {path: first + shape for path, shape in needed.items()}:
    raise OptionError(
      f"`params`: those of {first[0]} models (their first axis), give one: "
      "jax.tree.map(lambda leaf: leaf[0], params)"
    )
  raise OptionError("`params`: not those of `model`, whose arrays have other shapes")


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
  return dict(zip(leaf_paths(params), map(np.shape, jax.tree.leaves(params))))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _continue(
  apply: Any,
  length: int,
  top_k: int | None,
  params: Params,
  window: Array,
  count: Array,
  temperature: Array,
  key: Key,
) -> Array:
  """The next tokens, [length] int32."""

  def step(carry: Any, key: Key) -> Any:
    window, count = carry
    logits = apply(params, window[None])[0, count - 1].astype(jnp.float32)
    logits = logits.at[PADDING].set(-jnp.inf)
    if top_k is not None:
      least = jax.lax.top_k(logits, top_k)[0][-1]
      logits = jnp.where(logits >= least, logits, -jnp.inf)
    scale = jnp.where(temperature > 0, temperature, 1.0)
    drawn = jax.random.categorical(key, logits / scale)
    token = jnp.where(temperature > 0, drawn, jnp.argmax(logits)).astype(jnp.int32)
    size = window.shape[0]
    full = count == size
    window = jnp.where(full, jnp.roll(window, -1), window)
    count = jnp.where(full, size, count + 1)
    return (window.at[count - 1].set(token), count), token

  tokens: Array
  _, tokens = jax.lax.scan(step, (window, count), jax.random.split(key, length))
  return tokens
