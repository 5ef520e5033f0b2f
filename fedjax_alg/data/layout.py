"""The layout of clients' data: back to back, without padding in between."""

from collections.abc import Sequence
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fedjax_alg import memory
from fedjax_alg.base import Array, ClientData, Cohort, Shard
from fedjax_alg.data import store
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.data.npy_rows import OrderedRows
from fedjax_alg.data.store import Coded
from fedjax_alg.typing import PyTree

#: Number of zero rows after the last client. A block of up to this many rows
#: that starts inside a client then never extends past the end of the array.
#: (XLA would shift such a slice back to rows of other clients.)
PADDING_ROWS = 512

#: Alignment in bytes of memory that XLA's CPU client can use without a copy.
ALIGNMENT = 64

#: Most rows, and values, that are copied at a time: temporaries stay small.
_CHUNK, _CHUNK_VALUES = 4096, 2**22


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
  """Makes zeros at an address that a JAX CPU device can use without a copy.

  Args:
    shape: shape of the array.
    dtype: dtype of the array.

  Returns:
    A NumPy array.
  """
  count = math.prod(shape) * np.dtype(dtype).itemsize
  buffer = np.zeros(count + ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % ALIGNMENT
  result: np.ndarray = buffer[start : start + count].view(dtype).reshape(shape)
  return result


def num_places(rows: int) -> int:
  """Computes the length of an array for some rows, with the zero rows behind them.

  These are PADDING_ROWS, and at most a sixteenth more: partitions of the same data that
  differ by a few rows have arrays of one shape, and so one program.

  Args:
    rows: M, the rows of clients and of the server.

  Returns:
    A number that grows in steps.

  Examples:
    >>> num_places(1590) == num_places(1591) == 2176
    True
  """
  rows += PADDING_ROWS
  step = 1 << (rows.bit_length() - 5)
  return -(-rows // step) * step


def client_data(
  x: PyTree,
  y: PyTree,
  order: np.ndarray,
  offset: np.ndarray,
  size: np.ndarray,
  validation: np.ndarray | None = None,
  joins: np.ndarray | None = None,
  keep_bytes: bool = True,
  places: int = 0,
) -> ClientData:
  """Arranges the rows in the order of the clients.

  After the clients' rows follow the server's validation rows and then at least
  PADDING_ROWS zero rows.

  Args:
    x: [n, ...] examples, a tree of arrays. Signed integers (token ids) become
      int32; all others are converted to float32. A tuple or list of trees is
      treated as their concatenation, without making it; all or none of the
      arrays in one place are ``Coded``.
    y: [n, ...] targets, a tree of arrays, or a tuple or list of trees. All
      whole numbers become int32.
    order: [M] int, the row of x at each place.
    offset: [C] int, first place of each client.
    size: [C] int, number of rows of each client.
    validation: [V] int, rows of x that the server holds; None if it holds
      none.
    joins: [C] int, rounds run before a client joins; None if all clients
      take part from the start.
    keep_bytes: whether ``Coded`` examples stay bytes; if not, they become
      float32 or int32.
    places: the number of rows of x and y in the result; 0: ``num_places(M + V)``.

  Returns:
    NumPy arrays. Rows in files stay there, as ``HostRows`` in this order.
  """
  server: np.ndarray | None = None
  examples, targets = (
    tuple(tree) if isinstance(tree, (tuple, list)) else (tree,) for tree in (x, y)
  )
  total = sum(len(store.arrays(part)[0]) for part in examples)
  for parts in (examples, targets):
    for arrays in zip(*map(store.arrays, parts)):
      chex.assert_equal(
        sum(map(len, arrays)),
        total,
        custom_message="x and y: as many rows in every array",
      )
  clients = (offset, size) if joins is None else (offset, size, joins)
  chex.assert_shape(
    clients,
    (len(size),),
    custom_message="offset, size and joins: one entry for each client",
  )
  if validation is not None:
    server = np.array([len(order), len(validation)], np.int32)
    order = np.concatenate([order, validation])
  places = places or num_places(len(order))
  # The fields hold NumPy arrays until a run places them on its devices.
  fields: tuple[Any, ...] = (
    *(
      store.map_arrays(
        lambda *parts: _arrange(parts, order, places, keep_bytes, int_kinds), *trees
      )
      for trees, int_kinds in zip((examples, targets), _INTEGERS)
    ),
    np.asarray(offset, np.int32),
    np.asarray(size, np.int32),
    server,
    None if joins is None else np.asarray(joins, np.int32),
  )
  return ClientData(*fields)


def _arrange(
  parts: Sequence[Any],
  order: np.ndarray,
  places: int,
  keep_bytes: bool,
  int_kinds: str,
) -> Any:
  """The rows of one array of examples or targets; see ``client_data``.

  Dtypes of a kind in ``int_kinds`` become int32.
  """
  dtype = _dtype_of(parts[0], keep_bytes, int_kinds)
  if any(map(store.is_in_files, parts)):
    return store.map_rows(
      parts[0],
      lambda _: HostRows(
        OrderedRows(
          [getattr(part, "codes", part) for part in parts], order, places, dtype
        )
      ),
    )
  coded = next((part for part in parts if isinstance(part, Coded)), None)
  if coded is not None and keep_bytes:
    parts = tuple(part.codes for part in parts)
  rows = aligned_zeros((places, *parts[0].shape[1:]), dtype)
  pages = list(map(memory.Pages, parts))
  step = min(_CHUNK, max(1, _CHUNK_VALUES // max(1, math.prod(rows.shape[1:]))))
  for begin in range(0, len(order), step):
    chunk = order[begin : begin + step]
    target = rows[begin : begin + len(chunk)]
    if len(parts) == 1:
      target[...] = parts[0][chunk]
      pages[0].read(len(chunk))
      continue
    first = 0
    for part in parts:
      inside = (chunk >= first) & (chunk < first + len(part))
      target[inside] = part[chunk[inside] - first]
      first += len(part)
    for of_part in pages:
      of_part.read(len(chunk))
  return Coded(rows, coded.values) if coded is not None and keep_bytes else rows


#: The dtypes that become int32: of examples, and of targets.
_INTEGERS = ("i", "iub")


def _dtype_of(part: Any, keep_bytes: bool, int_kinds: str) -> type[np.generic]:
  """The dtype of the rows of an array."""
  if keep_bytes and isinstance(part, Coded):
    return np.uint8
  return np.int32 if part.dtype.kind in int_kinds else np.float32


def row_nbytes(x: PyTree, y: PyTree, keep_bytes: bool = True) -> int:
  """The memory that a row takes in what ``client_data`` makes.

  Args:
    x: see ``client_data``.
    y: see ``client_data``.
    keep_bytes: see ``client_data``.
  """
  return sum(
    math.prod(array.shape[1:])
    * np.dtype(_dtype_of(array, keep_bytes, int_kinds)).itemsize
    for tree, int_kinds in zip((x, y), _INTEGERS)
    for array in store.arrays(tree)
  )


def num_example_rows(rows: ClientData | Shard) -> int:
  """The number of rows of the arrays; of one block where they are in blocks."""
  first = store.arrays(rows.y)[0]
  result: int = first.shape[0]
  return result


def shard_of(data: ClientData, client: Array | int) -> Shard:
  """Makes the shard of one client.

  Args:
    data: all clients.
    client: [] int32 in [0, C).

  Returns:
    The shard.
  """
  data = jax.tree.map(jnp.asarray, data)
  return Shard(
    data.x, data.y, data.offset[client], data.size[client], blocks=data.blocks
  )


def server_rows(data: ClientData) -> Shard | None:
  """Makes the shard of the server's validation rows; None if it has none."""
  place = data.validation
  if place is None or isinstance(place, Shard):
    return place
  return Shard(data.x, data.y, place[0], place[1])


def everyone(data: ClientData) -> Cohort:
  """Makes one cohort of all C clients, in the order of their ids."""
  ids = jnp.arange(data.size.shape[0], dtype=jnp.int32)
  return take_cohort(data, ids)


def present(data: ClientData, number: Array | int) -> Cohort:
  """Makes one cohort of all clients that have joined after some rounds.

  Args:
    data: all clients.
    number: rounds run so far.

  Returns:
    A cohort of C slots; clients that have not joined are padding slots.
  """
  ids = jnp.arange(data.size.shape[0], dtype=jnp.int32)
  if data.joins is not None:
    ids = jnp.where(jnp.asarray(data.joins) <= number, ids, data.size.shape[0])
  if data.host is not None:
    data = data._replace(x=data.host[0], y=data.host[1])
  return take_cohort(data, ids, number)


def take_cohort(
  data: ClientData, ids: Array, number: Array | int | None = None
) -> Cohort:
  """Makes a cohort of the given clients without copying examples.

  Args:
    data: all clients.
    ids: [S] int32 in [0, C]; C marks a padding slot, which gets offset 0,
      size 0 and weight 0.
    number: rounds run so far; None if all clients have joined.

  Returns:
    The cohort. The weights are the numbers of examples. The cohort has the
    server's validation rows and the simulated machines if ``data`` has them.
  """
  data = jax.tree.map(jnp.asarray, data)  # NumPy arrays before placement
  num_clients = data.size.shape[0]
  padding = ids >= num_clients
  clients = jnp.where(padding, 0, ids)
  offset = jnp.where(padding, 0, data.offset[clients])
  size = jnp.where(padding, 0, data.size[clients])
  sizes, newcomers = data.size, None
  if data.joins is not None and number is not None:
    sizes = jnp.where(data.joins <= number, sizes, 0)
    newcomers = (data.joins == number) & (data.joins > 0)
  x, y = data.host or (data.x, data.y)
  everybody = Shard(
    x,
    y,
    data.offset,
    sizes,
    blocks=data.blocks,
    kind=data.kinds,
  )
  return Cohort(
    ids,
    Shard(data.x, data.y, offset, size, blocks=data.blocks),
    size.astype(jnp.float32),
    server_rows(data),
    everybody,
    newcomers,
    data.devices,
  )
