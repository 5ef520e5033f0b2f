"""A client map over rows that are on the host, and what it needs window by window.

A window is some slots of a map with their rows on the devices. A function that maps
clients is traced up to its first map over such rows, which is computed for one window
after the other. Then it is traced again with the results, up to the next map, until
it is through. All traces are of the same function, so nothing is written twice, and
every window of a map is the same program (``runs.windowed``).

The sums of ``MapClients.total`` go from window to window, those of each device
separately: every number is added to the same sum, in the same order, as in one program
that has all rows.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np

from fedjax_alg import split, trees
from fedjax_alg.base import Array, MapClients, Shard
from fedjax_alg.data import layout, store
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.errors import FAILURES, RowsOnHostError
from fedjax_alg.typing import PyTree

#: The most slots of a window.
MOST_SLOTS = 2**16


class Ranges(NamedTuple):
  """Where the rows of slots are."""

  offset: Any  #: [S] int32
  size: Any  #: [S] int32
  test_offset: Any  #: [S] int32, zeros without tests
  test_size: Any  #: [S] int32


class Window(NamedTuple):
  """Some slots of a map, with the rows that they read."""

  slots: Any  #: [L] int32, their places among all slots of the map
  places: Ranges  #: [L], where their rows are in the arrays; size 0 in an empty slot
  #: in the places of ``Reads.shards`` and ``Reads.tests`` arrays of some rows; the
  #: clients' own are in blocks where those on the host are
  shards: list[Any]
  tests: list[Any]


@dataclasses.dataclass(frozen=True)
class KeepingMap(ClientMap):
  """A client map of a start, whose states hold the rows of some clients."""

  ids: Any = None  #: [T] int32, see ``split.HeldRows``

  def keep(self, table: object) -> Any:
    """See ``base.MapClients.keep``."""
    return jax.tree.map(
      lambda leaf: (
        leaf
        if split.is_held(leaf)
        else split.HeldRows(leaf.at[self.ids].get(mode="clip"), self.ids, leaf.shape[0])
      ),
      table,
      is_leaf=split.is_held,
    )


class Pending(Exception):
  """The first map without a result."""

  def __init__(self, result: Any):
    """Takes the result for one window; without a window ``PendingMap``."""
    super().__init__()
    self.result = result


class Reads(NamedTuple):
  """The rows on the host that a map reads."""

  shards: list[HostRows]  #: the clients' own; none if it reads none of them
  tests: list[HostRows]
  is_total: bool = False  #: whether its results are added up (``MapClients.total``)
  in_blocks: bool = False  #: whether the slots' shards are in blocks of processes


class PendingMap(NamedTuple):
  """A map that waits for its results."""

  places: Ranges
  #: the sums before its first window, in bits; () if it has none
  total: Any = ()
  #: [S] int32, the client of each slot, if its states are read; else ()
  clients: Any = ()


@dataclasses.dataclass
class WindowMap(MapClients):
  """A client map (``base.MapClients``) that is given its results."""

  inner: ClientMap  #: maps the slots of a window
  #: of the first maps over rows on the host: [S, ...], or the sums of the devices
  results: Sequence[Any]
  #: of the next map; None: the map tells what it reads; "shapes": all maps are traced
  #: over a few rows of zeros
  window: Window | str | None
  total_so_far: Any = ()  #: the sums of the windows before this one
  tables: Sequence[split.HeldRows] = ()  #: the window's rows of the tables on the host
  reads: list[Reads] = dataclasses.field(default_factory=list)  #: of the next map
  number: int = 0  #: of maps so far
  #: where the function is traced that the results are for
  _trace: Any = dataclasses.field(default_factory=core.get_opaque_trace_state)

  def __call__(self, fn: Any, shared: Any, shards: Shard, *args: Any) -> Any:
    """See ``base.MapClients``."""
    if not store.is_on_host(shards.x):
      return self.inner(fn, shared, shards, *args)

    def of_window(window, *args):
      return self.inner(fn, shared, _client_shards(shards, window), *args)

    return self._next(of_window, shards, None, args, Reads(_host_rows(shards), []))

  def with_tests(
    self, fn: Any, shared: Any, shards: Shard, tests: Shard, *args: Any
  ) -> Any:
    """See ``base.MapClients.with_tests``."""
    if not store.is_on_host(tests.x):  # of newcomers, of whom tables have no row
      return self.inner.with_tests(fn, _with_zeros(shared), shards, tests, *args)

    def of_window(window, *args):
      at = window.places
      test = _filled(tests, window.tests, at.test_offset, at.test_size)
      rows = _client_shards(shards, window)
      return self.inner.with_tests(fn, self._with_tables(shared), rows, test, *args)

    needed = _needs_rows(fn, _with_zeros(shared), shards, tests, args)
    # By agreement the first argument of a map that reads tables is the client.
    clients = args[0] if any(map(split.is_absent, _nodes(shared))) else ()
    reads = Reads(_host_rows(shards) if needed else [], _host_rows(tests))
    return self._next(of_window, shards, tests, args, reads, clients=clients)

  def _with_tables(self, shared: Any) -> Any:
    """What all clients get, with the window's rows of tables."""
    return jax.tree.map(
      lambda leaf: self.tables[leaf.number] if split.is_absent(leaf) else leaf,
      shared,
      is_leaf=split.is_absent,
    )

  def _next(
    self,
    of_window: Callable[..., Any],
    shards: Shard,
    tests: Shard | None,
    args: Any,
    reads: Reads,
    zero: Callable[[], Any] = lambda: (),
    clients: Any = (),
  ) -> Any:
    """The result of the next map.

    Raises:
      Pending: there is none yet.
      RowsOnHostError: the map is inside of a loop or a condition of the function.
    """
    if core.get_opaque_trace_state() != self._trace:
      raise RowsOnHostError("`data_on`: clients are mapped inside of a loop")
    self.number += 1
    if self.window == "shapes":
      return of_window(_window_of_zeros(shards.size.shape[0], reads), *args)
    if self.number <= len(self.results):
      return self.results[self.number - 1]
    self.reads.append(reads._replace(in_blocks=shards.blocks is not None))
    if not isinstance(self.window, Window):
      zeros = jnp.zeros_like(shards.size)
      at_tests = (zeros, zeros) if tests is None else (tests.offset, tests.size)
      places = Ranges(shards.offset, shards.size, *at_tests)
      raise Pending(PendingMap(places, zero(), clients))
    raise Pending(of_window(self.window, *trees.index(args, self.window.slots)))

  def total(
    self,
    fn: Callable[..., Any],
    zero: Callable[[], Any],
    shared: PyTree,
    shards: Shard,
    *args: PyTree,
    psum: Callable[[Any, str], Any] = jax.lax.psum,
  ) -> Any:
    """See ``base.MapClients.total``."""
    if not store.is_on_host(shards.x):
      return self.inner.total(fn, zero, shared, shards, *args, psum=psum)
    dtypes = jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(zero))
    devices = self.inner.devices
    reads = Reads(_host_rows(shards), [], is_total=True)

    def of_window(window, *args):
      before = _from_bits(self.total_so_far, dtypes)
      rows = _client_shards(shards, window)
      return _to_bits(self.inner.add_to(before, fn, shared, rows, *args))

    def of_zeros(window, *args):
      rows = _client_shards(shards, window)
      return self.inner.total(fn, zero, shared, rows, *args, psum=psum)

    if self.window == "shapes":
      return self._next(of_zeros, shards, None, args, reads)
    sums = self._next(
      of_window, shards, None, args, reads, lambda: _to_bits(zero(), devices)
    )
    return self.inner.sum_devices(_from_bits(sums, dtypes), psum)

  def update(self, *args: Any) -> Any:
    """Other maps read no rows on the host (``base.MapClients.update``)."""
    return self.inner.update(*args)

  def keep(self, table: Any) -> Any:
    """See ``base.MapClients.keep``."""
    return self.inner.keep(table)


def _nodes(tree: Any) -> list[Any]:
  """The leaves of a tree, an ``Absent`` being one."""
  return jax.tree.leaves(tree, is_leaf=split.is_absent)


def _with_zeros(shared: Any) -> Any:
  """A tree with a row of zeros in the place of each table on the host."""

  def zeros(leaf):
    if not split.is_absent(leaf):
      return leaf
    block = jnp.zeros((1, *leaf.shape[1:]), leaf.dtype)
    return split.HeldRows(block, jnp.zeros(1, jnp.int32), leaf.shape[0])

  return jax.tree.map(zeros, shared, is_leaf=split.is_absent)


def _to_bits(sums: Any, devices: int = 0) -> Any:
  """Sums as leaves that stay what they are while float64 is not enabled.

  Args:
    sums: a tree.
    devices: the number of copies, [devices, ...]; 0: none is made.
  """
  with jax.enable_x64(True):
    if devices:
      sums = trees.repeat(sums, devices)
    return jax.tree.map(
      lambda leaf: (
        jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        if leaf.dtype == jnp.float64
        else leaf
      ),
      sums,
    )


def _from_bits(bits: Any, dtypes: Any) -> Any:
  """The inverse of ``_to_bits``."""
  with jax.enable_x64(True):
    return jax.tree.map(
      lambda dtype, leaf: (
        jax.lax.bitcast_convert_type(leaf, dtype) if dtype == jnp.float64 else leaf
      ),
      dtypes,
      bits,
    )


def _window_of_zeros(slots: int, reads: Reads) -> Window:
  """A window of all slots, in which rows are there and zero."""
  zeros = jnp.zeros(slots, jnp.int32)
  return Window(
    zeros,
    Ranges(zeros, zeros, zeros, zeros),
    *(
      [_zeros(rows, 2 * layout.PADDING_ROWS) for rows in of_map] for of_map in reads[:2]
    ),
  )


def _host_rows(shards: Shard) -> list[HostRows]:
  """The arrays of x and y, in an order in which ``_filled`` finds them."""
  rows: list[HostRows] = []
  store.map_rows((shards.x, shards.y), rows.append)
  return rows


def _filled(shards: Shard, arrays: list[Any], offset: Array, size: Array) -> Shard:
  """Shards with arrays of rows in the places of those on the host, if there are any."""
  in_order = iter(arrays)
  x, y = (
    store.map_rows((shards.x, shards.y), lambda _: next(in_order))
    if arrays
    else (shards.x, shards.y)
  )
  return Shard(x, y, offset, size)


def _client_shards(shards: Shard, window: Window) -> Shard:
  """The clients' own shards; if no rows are read, of zeros in blocks."""
  arrays = window.shards
  if shards.blocks is not None and not arrays:  # the offset still names the process
    arrays = [_zeros(rows, 1) for rows in _host_rows(shards)]
  filled = _filled(shards, arrays, window.places.offset, window.places.size)
  return filled._replace(blocks=shards.blocks)


def _zeros(rows: HostRows, height: int) -> Array:
  """Rows of zeros in the place of those on the host, [height, ...] or in blocks."""
  blocks = rows.shape[: rows.ndim - len(rows.row_shape) - 1]
  return jnp.zeros((*blocks, height, *rows.row_shape), rows.dtype)


def _needs_rows(
  fn: Callable[..., Any], shared: PyTree, shards: Shard, tests: Shard, args: PyTree
) -> bool:
  """Whether code of a client reads the client's own rows, not the tests alone."""

  def run(shared, offset, size, args):
    x, y = store.map_rows(
      (tests.x, tests.y),
      lambda rows: _zeros(rows, 2 * layout.PADDING_ROWS),
    )
    of_client = Shard(shards.x, shards.y, offset, size)
    return fn(shared, of_client, Shard(x, y, offset, size), *args)

  slot = trees.index((shards.offset, shards.size, args), 0)
  try:
    jax.eval_shape(run, shared, *slot)
  except FAILURES:  # whatever meets an array without values
    return True
  return False


def make_windows(
  places: Ranges, most: tuple[int, int], most_slots: int = MOST_SLOTS
) -> list[tuple[int, int]]:
  """Cuts the slots of a map into windows of few rows.

  Args:
    places: the slots, in NumPy.
    most: rows of the clients' own, and of tests, that a window has at most; one
      slot has as many as it needs.
    most_slots: slots that a window has at most.

  Returns:
    The first slot of each window and the first behind it.
  """
  total = len(places.size)
  ends = [np.cumsum(_new_rows(*rows)) for rows in (places[:2], places[2:])]
  windows, first = [], 0
  while first < total:
    last = min(
      int(np.searchsorted(end, (end[first - 1] if first else 0) + rows, side="right"))
      for end, rows in zip(ends, most)
    )
    last = min(max(last, first + 1), first + most_slots, total)
    windows.append((first, last))
    first = last
  return windows


def _new_rows(offset: np.ndarray, size: np.ndarray) -> np.ndarray:
  """The rows of each slot that it does not share with one before it, [S] int64."""
  pairs = np.stack([offset, size], 1)
  _, first = np.unique(pairs, axis=0, return_index=True)
  new = np.zeros(len(size), np.int64)
  new[first] = size[first]
  return new
