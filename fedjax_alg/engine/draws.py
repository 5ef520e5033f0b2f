"""Random keys and words that NumPy draws, so that no program hashes them.

A start draws every leaf of a model with a key of its own. XLA compiles a hash
for every key that is derived and for every leaf that is drawn, which is most of
the program and takes as long as the rounds. Threefry is integer arithmetic, so
NumPy gives the same words. What is computed with them, as the numbers of a
normal distribution, stays in the program.

``HostDraws`` parts the code of one row (a seed of a setting) by its jaxpr: what
depends on nothing but the row's keys and is known here is drawn on the host,
all else is the program. A table that is filled with one value, or with a row
for each client, is filled after the rows are mapped, not in every row.

The hash is that of Salmon et al., Parallel random numbers: as easy as 1, 2, 3
(SC 2011), as ``jax.random`` applies it to keys and shapes
(``jax_threefry_partitionable``).
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array
from fedjax_alg.typing import PyTree

#: Random words of all rows that are drawn on the host, at most: half a second.
#: A larger model draws its own in the program, by keys of the host.
MOST_WORDS = 2**24

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
#: Words that are hashed at once, few enough for a core's cache.
_BLOCK = 2**14
_IMPL = "threefry2x32"


@np.errstate(over="ignore")  # sums are modulo 2^32
def _hash(
  key: tuple[np.ndarray, np.ndarray], x0: np.ndarray, x1: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Threefry-2x32 with 20 rounds, of uint32 arrays that broadcast."""
  keys = (*key, key[0] ^ key[1] ^ _PARITY)
  x0, x1 = x0 + keys[0], x1 + keys[1]
  for i in range(5):
    for rotation in _ROTATIONS[i % 2]:
      x0 = x0 + x1
      x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
      x1 = x1 ^ x0
    x0 = x0 + keys[(i + 1) % 3]
    x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
  return x0, x1


def _hash_counts(keys: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """The hashes of 0, 1, ..., count - 1 under keys [B, 2], two words [B, count]."""
  words = np.empty((2, len(keys), count), np.uint32)
  together = max(_BLOCK // max(count, 1), 1)
  for row in range(0, len(keys), together):
    rows = slice(row, row + together)
    key = keys[rows, :1], keys[rows, 1:]
    for first in range(0, count, _BLOCK):
      index = np.arange(first, min(first + _BLOCK, count), dtype=np.uint64)
      low = index.astype(np.uint32)
      high = (index >> np.uint64(32)).astype(np.uint32)
      part = slice(first, first + _BLOCK)
      words[0, rows, part], words[1, rows, part] = _hash(key, high, low)
  return words[0], words[1]


def fold_in(keys: np.ndarray, data: np.ndarray) -> np.ndarray:
  """Derives keys as ``jax.random.fold_in`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    data: [...] uint32, or another shape that broadcasts with the keys.

  Returns:
    [..., 2] uint32.
  """
  low = np.asarray(data).astype(np.uint32)
  out = _hash((keys[..., 0], keys[..., 1]), np.zeros_like(low), low)
  return np.stack(np.broadcast_arrays(*out), axis=-1)


def split_keys(keys: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """Derives keys as ``jax.random.split`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    shape: how many keys each becomes.

  Returns:
    [..., *shape, 2] uint32.
  """
  words = _hash_counts(keys.reshape(-1, 2), math.prod(shape))
  return np.stack(words, -1).reshape(*keys.shape[:-1], *shape, 2)


def bits(keys: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """Draws random words as ``jax.random.bits`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    shape: of the words of each key.

  Returns:
    [..., *shape] uint32.
  """
  first, second = _hash_counts(keys.reshape(-1, 2), math.prod(shape))
  words: np.ndarray = (first ^ second).reshape(*keys.shape[:-1], *shape)
  return words


@functools.cache
def _key_dtype() -> Any:
  """The dtype of a threefry key."""
  return jax.eval_shape(lambda: jax.random.key(0, impl=_IMPL)).dtype


def is_default() -> bool:
  """Whether ``jax.random.key`` and its draws are those of this module."""
  return bool(
    getattr(jax.config, "jax_default_prng_impl") == _IMPL
    and getattr(jax.config, "jax_threefry_partitionable")
  )


def _is_key(aval: Any) -> bool:
  return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _tail(eqn: Any) -> tuple[int, ...]:
  """The axes of words behind those that an equation of keys has."""
  return (2,) if _is_key(eqn.invars[0].aval) else ()


def _slice(eqn: Any, x: np.ndarray) -> np.ndarray:
  p = eqn.params
  strides = p["strides"] or (1,) * len(p["start_indices"])
  result: np.ndarray = x[
    tuple(map(slice, p["start_indices"], p["limit_indices"], strides))
  ]
  return result


def _squeeze(eqn: Any, x: np.ndarray) -> np.ndarray:
  return x.reshape(*eqn.outvars[0].aval.shape, *_tail(eqn))


def _broadcast(eqn: Any, x: np.ndarray) -> np.ndarray:
  shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
  expanded = [1] * len(shape)
  for axis, dim in enumerate(dims):
    expanded[dim] = x.shape[axis]
  tail = _tail(eqn)
  return np.broadcast_to(x.reshape(*expanded, *tail), (*shape, *tail))


@np.errstate(over="ignore")
def draw_integers(keys: np.ndarray, low: int, high: int) -> np.ndarray:
  """Draws whole numbers as ``jax.random.randint`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.
    low: the least number.
    high: the first number that is too large.

  Returns:
    [...] int32.
  """
  words = bits(split_keys(keys, (2,)), ())
  span, half = np.uint32(high - low), np.uint32(2**16)
  factor = (half % span) * (half % span) % span
  offset = ((words[..., 0] % span) * factor + words[..., 1] % span) % span
  result: np.ndarray = offset.astype(np.int32) + np.int32(low)
  return result


def draw_uniform(keys: np.ndarray) -> np.ndarray:
  """Draws numbers of [0, 1) as ``jax.random.uniform`` does.

  Args:
    keys: [..., 2] uint32, the words of threefry keys.

  Returns:
    [...] float32.
  """
  # 23 bits behind the point of a number of [1, 2).
  mantissa = bits(keys, ()) >> np.uint32(9) | np.float32(1.0).view(np.uint32)
  result: np.ndarray = mantissa.view(np.float32) - np.float32(1.0)
  return result


def _unstack(eqn: Any, x: np.ndarray) -> list[np.ndarray]:
  return list(np.moveaxis(x, eqn.params["axis"], 0))


#: Primitive -> what NumPy does in its place, (equation, *inputs) -> output, or a
#: list of several. A key is its words, [..., 2].
_ON_HOST: dict[str, Callable[..., np.ndarray | list[np.ndarray]]] = {
  "random_split": lambda eqn, key: split_keys(key, eqn.params["shape"]),
  "random_fold_in": lambda _, key, data: fold_in(key, data),
  "random_bits": lambda eqn, key: bits(key, eqn.params["shape"]),
  "slice": _slice,
  "squeeze": _squeeze,
  "reshape": _squeeze,
  "broadcast_in_dim": _broadcast,
  "unstack": _unstack,
}


def _on_host(eqn: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
  """The outputs of an equation."""
  out = _ON_HOST[eqn.primitive.name](eqn, *inputs)
  return out if isinstance(out, list) else [out]


def _is_on_host(eqn: Any, words: bool) -> bool:
  """Whether NumPy computes the equation, if it knows its inputs.

  Args:
    eqn: the equation.
    words: whether it draws words, and not keys alone.
  """
  name, params = eqn.primitive.name, eqn.params
  if name not in _ON_HOST or any(
    _is_key(var.aval) and var.aval.dtype != _key_dtype()
    for var in (*eqn.invars, *eqn.outvars)
  ):
    return False
  if name == "reshape":
    return params.get("dimensions") is None
  if name == "random_bits":
    return words and bool(params["bit_width"] == 32)
  if name == "random_fold_in":
    return bool(eqn.invars[1].aval.dtype == np.uint32)
  return len(eqn.invars) == 1 or name == "random_fold_in"


class _Slot(NamedTuple):
  """A value of the host, by its place in the order of the code."""

  place: int


#: Stands for a value of the program while the code is only looked at.
_INSIDE = object()

#: What an equation gives, (equation, inputs) -> outputs.
_Step = Callable[[Any, Sequence[Any]], Sequence[Any]]


def _walk(
  jaxpr: jex_core.Jaxpr,
  inputs: Sequence[Any],
  host: _Step,
  device: _Step,
  words: bool,
) -> dict[Any, Any]:
  """Runs code; ``jax.jit`` inside it is part of it where keys enter it.

  Args:
    jaxpr: the code.
    inputs: a ``_Slot`` for what the host has, anything else otherwise.
    host: for equations that NumPy knows and whose inputs the host has.
    device: for all others.
    words: see ``_is_on_host``.

  Returns:
    variable -> its value.
  """
  values: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))

  for eqn in jaxpr.eqns:
    read = [_read(values, atom) for atom in eqn.invars]
    slots = [isinstance(value, _Slot) for value in read]
    inner = eqn.params.get("jaxpr") if eqn.primitive.name in ("jit", "pjit") else None
    if inner is not None and any(slots) and not inner.consts:
      result = _walk(inner.jaxpr, read, host, device, words)
      out = [_read(result, atom) for atom in inner.jaxpr.outvars]
    elif (
      any(slots)
      and _is_on_host(eqn, words)
      and all(
        slot or isinstance(atom, jex_core.Literal)
        for slot, atom in zip(slots, eqn.invars)
      )
    ):
      out = list(host(eqn, read))
    else:
      out = list(device(eqn, read))
    values.update(zip(eqn.outvars, out, strict=True))
  return values


def _aval(atom: Any) -> Any:
  return atom.aval


def _read(values: dict[Any, Any], atom: Any) -> Any:
  if isinstance(atom, jex_core.Literal):
    return np.asarray(atom.val, _aval(atom).dtype)
  return values[atom]


def _fills(eqn: Any) -> bool:
  """Whether an equation fills an array with a smaller one."""
  return (
    eqn.primitive.name == "broadcast_in_dim"
    and len(eqn.invars) == 1
    and eqn.params.get("sharding") is None
    and eqn.outvars[0].aval.size > eqn.invars[0].aval.size
  )


class HostDraws:
  """Code of one row that is parted into draws of the host and a program."""

  def __init__(
    self, fn: Callable[..., PyTree], row_keys: PyTree, numbers: PyTree, data: PyTree
  ):
    """Parts the code, which is traced.

    Args:
      fn: (keys, numbers, data) -> pytree of one row.
      row_keys: a pytree of keys [N], one for each row.
      numbers: a pytree of arrays [N, ...].
      data: a pytree of arrays that all rows share.
    """
    one_row = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
      (row_keys, numbers),
    )
    code, out = jax.make_jaxpr(fn, return_shape=True)(*one_row, data)
    self._out = jax.tree.structure(out)
    self._consts = bool(code.consts)
    # A model's forward pass, by which flax finds its shapes, is computed by none.
    self._jaxpr, _ = partial_eval.dce_jaxpr(
      code.jaxpr, [True] * len(code.jaxpr.outvars), instantiate=True
    )
    self._rows = jax.tree.leaves(row_keys)[0].shape[0]
    self._num_keys = len(jax.tree.leaves(row_keys))
    self._host_words = True
    if not self._consts and self._look() > MOST_WORDS:
      self._host_words = False
      self._look()

  def _look(self) -> int:
    """Finds which values of the host the program reads; counts the words."""
    jaxpr = self._jaxpr
    self._avals: list[Any] = [var.aval for var in jaxpr.invars[: self._num_keys]]
    reads: set[int] = set()
    words = 0

    def host(eqn, values):
      nonlocal words
      del values
      if eqn.primitive.name == "random_bits":
        words += self._rows * eqn.outvars[0].aval.size
      first = len(self._avals)
      self._avals.extend(var.aval for var in eqn.outvars)
      return [*map(_Slot, range(first, len(self._avals)))]

    def device(eqn, values):
      reads.update(value.place for value in values if isinstance(value, _Slot))
      return [_INSIDE] * len(eqn.outvars)

    values = _walk(
      jaxpr,
      self._inputs([_INSIDE] * len(jaxpr.invars)),
      host,
      device,
      self._host_words,
    )
    out = [_read(values, atom) for atom in jaxpr.outvars]
    reads.update(value.place for value in out if isinstance(value, _Slot))
    self._reads = sorted(reads)
    return words

  @property
  def can_draw(self) -> bool:
    """Whether the host knows what the keys draw, if they draw anything.

    Code with arrays of its own, such as the cuts between processes, is left whole.
    """
    return (
      bool(getattr(jax.config, "jax_threefry_partitionable"))
      and not self._consts
      and bool(self._reads)
      and all(aval.dtype == _key_dtype() for aval in self._avals[: self._num_keys])
      and not has_double(self._jaxpr)
    )

  def _inputs(self, inputs: Sequence[Any]) -> list[Any]:
    return [*map(_Slot, range(self._num_keys)), *inputs[self._num_keys :]]

  def shapes(self, where: Any) -> list[jax.ShapeDtypeStruct]:
    """The shapes of ``draw``.

    Args:
      where: their sharding.
    """
    return [
      jax.ShapeDtypeStruct(
        (self._rows, *aval.shape, *((2,) if _is_key(aval) else ())),
        np.uint32,
        sharding=where,
      )
      for aval in (self._avals[i] for i in self._reads)
    ]

  def draw(self, row_keys: PyTree) -> list[np.ndarray]:
    """Draws all that the program reads, leaves [N, ...] uint32."""
    keys = [
      np.asarray(jax.random.key_data(leaf)).reshape(self._rows, 2)
      for leaf in jax.tree.leaves(row_keys)
    ]
    rows = [self._draw_row([words[row] for words in keys]) for row in range(self._rows)]
    return [np.stack([row[i] for row in rows]) for i in range(len(self._reads))]

  def _draw_row(self, keys: Sequence[np.ndarray]) -> list[np.ndarray]:
    known: list[np.ndarray] = list(keys)

    def host(eqn, values):
      first = len(known)
      known.extend(
        _on_host(eqn, [known[v.place] if isinstance(v, _Slot) else v for v in values])
      )
      return [*map(_Slot, range(first, len(known)))]

    jaxpr = self._jaxpr
    _walk(
      jaxpr,
      self._inputs([_INSIDE] * len(jaxpr.invars)),
      host,
      lambda eqn, _: [_INSIDE] * len(eqn.outvars),
      self._host_words,
    )
    return [known[i] for i in self._reads]

  def compute(
    self,
    over_rows: Callable[[Callable[..., Any]], Callable[..., Any]],
    drawn: Sequence[Array],
    numbers: PyTree,
    data: PyTree,
  ) -> PyTree:
    """Computes what ``fn`` gives for every row, inside of a program.

    Args:
      over_rows: maps a function over the leading axis of its arguments.
      drawn: what ``draw`` has drawn.
      numbers: a pytree of arrays [N, ...].
      data: a pytree of arrays that all rows share.

    Returns:
      The pytree of ``fn``, leaves [N, ...].
    """
    outputs = self._jaxpr.outvars
    fillers = {eqn.outvars[0]: eqn for eqn in self._jaxpr.eqns if _fills(eqn)}
    fills = [
      None if isinstance(atom, jex_core.Literal) else fillers.get(atom)
      for atom in outputs
    ]
    sources = [
      atom if fill is None else fill.invars[0] for atom, fill in zip(outputs, fills)
    ]
    mapped = iter(
      over_rows(
        lambda drawn, numbers: self._compute_row(
          drawn,
          numbers,
          data,
          [atom for atom in sources if not isinstance(atom, jex_core.Literal)],
        )
      )(list(drawn), numbers)
    )
    out = []
    for source, fill in zip(sources, fills):
      if isinstance(source, jex_core.Literal):
        leaf = jnp.full((self._rows,), source.val, _aval(source).dtype)
      else:
        leaf = next(mapped)
      if fill is not None:
        axes = fill.params["broadcast_dimensions"]
        leaf = jax.lax.broadcast_in_dim(
          leaf, (self._rows, *fill.params["shape"]), (0, *(axis + 1 for axis in axes))
        )
      out.append(leaf)
    return jax.tree.unflatten(self._out, out)

  def _compute_row(
    self, drawn: Sequence[Array], numbers: PyTree, data: PyTree, out: Sequence[Any]
  ) -> list[Any]:
    slots = dict(zip(self._reads, drawn, strict=True))
    count = self._num_keys

    def value(of: Any) -> Any:
      if not isinstance(of, _Slot):
        return of
      leaf = slots[of.place]
      if _is_key(self._avals[of.place]):
        return jax.random.wrap_key_data(leaf, impl=_IMPL)
      return leaf

    def host(eqn, values):
      nonlocal count
      del values
      first, count = count, count + len(eqn.outvars)
      return [*map(_Slot, range(first, count))]

    def device(eqn, values):
      return _evaluate(self._jaxpr, eqn, [value(v) for v in values])

    inputs = self._inputs([None] * self._num_keys + jax.tree.leaves((numbers, data)))
    values = _walk(self._jaxpr, inputs, host, device, self._host_words)
    return [value(_read(values, atom)) for atom in out]


def _evaluate(jaxpr: jex_core.Jaxpr, eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
  """Computes one equation."""
  variables: dict[Any, Any] = {
    atom: value
    for atom, value in zip(eqn.invars, values)
    if not isinstance(atom, jex_core.Literal)
  }
  part = jaxpr.replace(
    constvars=[],
    invars=list(variables),
    outvars=eqn.outvars,
    eqns=[eqn],
    effects=eqn.effects,
    debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None),
  )
  result: Sequence[Any] = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(part, ()))(
    *variables.values()
  )
  return result


def has_double(jaxpr: jex_core.Jaxpr) -> bool:
  """Whether code, or code that it calls, computes in float64."""
  for eqn in jaxpr.eqns:
    avals: list[Any] = [var.aval for var in eqn.outvars]
    if any(aval.dtype == jnp.float64 for aval in avals):
      return True
    called = [
      getattr(leaf, "jaxpr", leaf)
      for leaf in jax.tree.leaves(
        list(eqn.params.values()),
        is_leaf=lambda leaf: isinstance(leaf, jex_core.ClosedJaxpr),
      )
    ]
    if any(has_double(part) for part in called if isinstance(part, jex_core.Jaxpr)):
      return True
  return False
