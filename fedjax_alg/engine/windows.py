"""A client map over rows that are on the host, and what it needs window by window.

A window is some slots of a map with their rows on the devices. A function that maps
clients is traced up to its first map over such rows, which is computed for one window
after the other. Then it is traced again with the results, up to the next map, until
it is through. All traces are of the same function, so nothing is written twice, and
every window of a map is the same program (``runs.windowed``).
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import trees
from fedjax_alg.base import Array, MapClients, Shard
from fedjax_alg.data import layout, store
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.errors import FAILURES
from fedjax_alg.typing import PyTree

#: The most slots of a window.
_MOST_SLOTS = 2**16


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
  #: in the places of ``Reads.shards`` and ``Reads.tests`` arrays of some rows
  shards: list[Any]
  tests: list[Any]


class Pending(Exception):
  """The first map without a result."""

  def __init__(self, result: Any):
    """Takes the result for one window; without a window the ``Ranges``."""
    super().__init__()
    self.result = result


class Reads(NamedTuple):
  """The rows on the host that a map reads."""

  shards: list[HostRows]  #: the clients' own; none if it reads none of them
  tests: list[HostRows]


@dataclasses.dataclass
class WindowMap(MapClients):
  """A client map (``base.MapClients``) that is given its results."""

  inner: MapClients  #: maps the slots of a window
  results: Sequence[Any]  #: of the first maps over rows on the host, [S, ...]
  window: Window | None  #: of the next map; None: it tells its ``Ranges``
  reads: list[Reads] = dataclasses.field(default_factory=list)  #: of the next map
  number: int = 0  #: of maps so far

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
    if not store.is_on_host(tests.x):
      return self.inner.with_tests(fn, shared, shards, tests, *args)

    def of_window(window, *args):
      at = window.places
      test = _filled(tests, window.tests, at.test_offset, at.test_size)
      rows = _client_shards(shards, window)
      return self.inner.with_tests(fn, shared, rows, test, *args)

    needed = _needs_rows(fn, shared, shards, tests, args)
    reads = Reads(_host_rows(shards) if needed else [], _host_rows(tests))
    return self._next(of_window, shards, tests, args, reads)

  def _next(
    self,
    of_window: Callable[..., Any],
    shards: Shard,
    tests: Shard | None,
    args: Any,
    reads: Reads,
  ) -> Any:
    """The result of the next map.

    Raises:
      Pending: there is none yet.
    """
    self.number += 1
    if self.number <= len(self.results):
      return self.results[self.number - 1]
    self.reads.append(reads)
    if self.window is None:
      zeros = jnp.zeros_like(shards.size)
      at_tests = (zeros, zeros) if tests is None else (tests.offset, tests.size)
      raise Pending(Ranges(shards.offset, shards.size, *at_tests))
    raise Pending(of_window(self.window, *trees.index(args, self.window.slots)))

  def update(self, *args: Any) -> Any:
    """Other maps read no rows on the host (``base.MapClients.update``)."""
    return self.inner.update(*args)

  def total(self, *args: Any, **kwargs: Any) -> Any:
    """See ``update``."""
    return self.inner.total(*args, **kwargs)


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
  return _filled(shards, window.shards, window.places.offset, window.places.size)


def _needs_rows(
  fn: Callable[..., Any], shared: PyTree, shards: Shard, tests: Shard, args: PyTree
) -> bool:
  """Whether code of a client reads the client's own rows, not the tests alone."""

  def run(shared, offset, size, args):
    x, y = store.map_rows(
      (tests.x, tests.y),
      lambda rows: jnp.zeros((2 * layout.PADDING_ROWS, *rows.shape[1:]), rows.dtype),
    )
    of_client = Shard(shards.x, shards.y, offset, size)
    return fn(shared, of_client, Shard(x, y, offset, size), *args)

  slot = trees.index((shards.offset, shards.size, args), 0)
  try:
    jax.eval_shape(run, shared, *slot)
  except FAILURES:  # whatever meets an array without values
    return True
  return False


def make_windows(places: Ranges, most: tuple[int, int]) -> list[tuple[int, int]]:
  """Cuts the slots of a map into windows of few rows.

  Args:
    places: the slots, in NumPy.
    most: rows of the clients' own, and of tests, that a window has at most; one
      slot has as many as it needs.

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
    last = min(max(last, first + 1), first + _MOST_SLOTS, total)
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
