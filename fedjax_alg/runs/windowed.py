"""Rounds and evaluations of clients with rows that the devices do not hold.

A program gets a window: arrays of a fixed number of rows, with those that it reads.
Who takes part is a function of the seed and the round, so the next windows are known,
and a thread reads the rows of the next one while rounds run.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
import contextlib
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Shard
from fedjax_alg.data import layout, store
from fedjax_alg.data.federation import EvaluationData, Federation
from fedjax_alg.data.host_rows import HostRows, RowsOnHostError
from fedjax_alg.engine import loop, sharding, windows
from fedjax_alg.engine.keys import RunKeys
from fedjax_alg.engine.round import Participation
from fedjax_alg.engine.windows import Ranges, Window, WindowMap
from fedjax_alg.errors import FAILURES, OptionError
from fedjax_alg.runs.placed import PlacedData
from fedjax_alg.typing import PyTree

#: Rounds whose participants are drawn at once.
_AHEAD = 256


class Rounds(NamedTuple):
  """Which rounds a run has, and who takes part."""

  number: int
  participation: Participation
  keys: RunKeys  #: of each seed, once


class _Window(NamedTuple):
  """The rows of the participants in some rounds, on the devices."""

  first: int  #: the first round, from 0
  last: int  #: the round behind the last
  #: the fields of ``ClientData`` that change: x, y and offset
  fields: dict[str, Any]


class WindowedData(PlacedData):
  """A federation of which the devices have the rows of the next participants.

  ``data`` is for the programs of rounds, and ``evaluated`` for evaluations, in which
  all rows are on the host.
  """

  def __init__(self, federation: Federation, *args: Any, rounds: Rounds, **kwargs: Any):
    """Places all but the rows, and the rows of the first window.

    Args:
      federation: the clients with their data.
      *args: see ``PlacedData``.
      rounds: the rounds of the run.
      **kwargs: see ``PlacedData``.
    """
    self._location: Any = federation.options.data_on
    self._window: _Window | None = None
    self._next: futures.Future[_Window] | None = None
    self._pool: futures.ThreadPoolExecutor | None = None
    self._cohorts: dict[int, list[np.ndarray]] = {}
    self._rounds = rounds
    super().__init__(federation, *args, **kwargs)

  def _share(self) -> EvaluationData:
    """The data without rows on the devices; see ``PlacedData``."""
    data, cached = self._federation.data, dict[int, HostRows]()

    def on_host(rows: Any) -> Any:
      # Equal arrays are one constant, so that programs are the same.
      if isinstance(rows, HostRows):
        return rows
      return cached.setdefault(id(rows), HostRows(rows))

    def without_rows(part: Any) -> Any:
      x, y = store.map_rows((part.x, part.y), on_host)
      return part._replace(x=x, y=y)

    server = layout.server_rows(data.train)
    first, validation, held_out = 0, data.validation, data.held_out
    if server is not None:  # its rows are always on the devices, alone
      first, count = int(server.offset), int(server.size)
      place = np.array([first]), np.array([count])
      x, y = _gather((server.x, server.y), *place, count + layout.PADDING_ROWS)
      ends: Any = np.zeros((), np.int32), np.asarray(count, np.int32)
      server = Shard(x, y, *ends)
    train = data.train._replace(validation=server)
    host = data._replace(
      train=without_rows(train),
      test=without_rows(data.test),
      whole_test=without_rows(data.whole_test),
      validation=validation and validation._replace(offset=validation.offset - first),
      held_out=held_out and held_out._replace(offset=held_out.offset - first),
    )
    shared: EvaluationData = sharding.replicate(host, self._mesh)
    return shared

  def _of_run(self, data: EvaluationData) -> EvaluationData:
    self.evaluated = super()._of_run(data)
    self._plan_rows()
    train = self.evaluated.train
    train = train._replace(host=(train.x, train.y))
    return self.evaluated._replace(train=train)

  @property
  def facts(self) -> dict[str, Any]:
    """What was chosen, for config.json; see ``PlacedData.facts``."""
    return {"data_on": str(self._location), "window_rows": self._places}

  @property
  def window_nbytes(self) -> int:
    """The memory of a window; the next one is read while programs have another."""
    return max(1, int(self._location.window_mb * 2**20) // 2)

  def _plan_rows(self) -> None:
    """Decides the number of rows of a window of rounds, B."""
    size = np.asarray(self._federation.data.train.size, np.int64)
    rounds, total = self._rounds, int(size.sum())
    train = self._federation.data.train
    row_nbytes = layout.row_nbytes(train.x, train.y)
    self._budget = self.window_nbytes // max(1, row_nbytes)
    slots = rounds.participation.cohort_size * rounds.keys.cohort.shape[0]
    largest = np.sort(size)[-slots:].sum() if slots < len(size) else total
    if largest > max(self._budget, 1):
      largest = max(
        int(size[ids].sum())
        for first in range(0, rounds.number, _AHEAD)
        for ids in self._draw(first)
      )
    #: B, without padding
    self._places = int(min(total, max(self._budget, largest)))

  def _draw(self, first: int) -> list[np.ndarray]:
    """The participants of ``_AHEAD`` rounds from a multiple of it on, of all seeds.

    Raises:
      OptionError: they depend on more than seed and round.
    """
    if first not in self._cohorts:
      while len(self._cohorts) > 2:
        self._cohorts.pop(next(iter(self._cohorts)))
      numbers = jnp.arange(first, first + _AHEAD, dtype=jnp.int32)
      train, keys = self.evaluated.train, self._rounds.keys.cohort
      with refusing(self._location.label, "its sampler reads the rows of all clients"):
        ids = np.asarray(self._sample(train, keys, numbers))
      clients = train.size.shape[0]
      self._cohorts[first] = [
        np.unique(of_round[of_round < clients]) for of_round in ids
      ]
    return self._cohorts[first]

  @functools.cached_property
  def _sample(self) -> Callable[..., jax.Array]:
    """The jitted (data, keys [N], numbers [r]) -> ids [r, N, S]."""
    participation = self._rounds.participation

    @jax.jit
    def sample(data: Any, keys: Any, numbers: Any) -> Any:
      def of_seed(key: Any, number: Any) -> Any:
        return participation.sampler(
          data, participation.cohort_size, jax.random.fold_in(key, number), number
        )

      return jax.lax.map(
        lambda number: jax.lax.map(lambda key: of_seed(key, number), keys), numbers
      )

    return sample

  def rounds_at_hand(self, done: int) -> int | None:
    """See ``PlacedData.rounds_at_hand``."""
    self._use_window(done)
    assert self._window is not None
    return self._window.last - done

  def move(self, done: int) -> None:
    """See ``PlacedData.move``."""
    self._use_window(max(done, 0))

  def read_ahead(self) -> None:
    """Starts to read the next window; see ``PlacedData.read_ahead``."""
    window = self._window
    assert window is not None
    if self._next is None and window.last < self._rounds.number:
      self._draw(window.last // _AHEAD * _AHEAD)
      self._pool = self._pool or futures.ThreadPoolExecutor(1)
      self._next = self._pool.submit(self._read, window.last)

  def _use_window(self, done: int) -> None:
    """Has ``data`` hold the rows of the round after ``done`` rounds."""
    window = self._window
    if window is not None and window.first <= done < window.last:
      return
    # What is read ahead is used even if it is not what was expected.
    following = None if self._next is None else self._next.result()
    self._next = None
    if following is None or not following.first <= done < following.last:
      del window, following
      self._window = None
      following = self._read(done)
    self._window = following
    self.data = self.data._replace(train=self.data.train._replace(**following.fields))

  def _read(self, first: int) -> _Window:
    """Reads the rows of the participants of the rounds from one on."""
    train = self._federation.data.train
    size = np.asarray(train.size)
    begin = first // _AHEAD * _AHEAD
    rounds = self._draw(begin)[first - begin :]
    inside, rows, last = np.zeros(len(size), bool), 0, first
    for ids in rounds[: max(1, self._rounds.number - first)]:
      new = ids[~inside[ids]]
      added = int(size[new].sum())
      if rows + added > self._places and last > first:
        break
      rows, last, inside[new] = rows + added, last + 1, True
    ids = np.flatnonzero(inside)
    places = self._places + layout.PADDING_ROWS
    # A client without rows here is behind the end, where nothing is read or written.
    offset = np.full(len(size), places, np.int32)
    offset[ids] = np.cumsum(size[ids]) - size[ids]
    data = self.evaluated.train
    x, y = _gather((data.x, data.y), np.asarray(train.offset)[ids], size[ids], places)
    fields = sharding.replicate({"x": x, "y": y, "offset": offset}, self._mesh)
    return _Window(first, last, fields)

  def train_with(self, client: int) -> Any:
    """See ``PlacedData.train_with``."""
    train, data = self._federation.data.train, self.evaluated.train
    size = np.asarray(train.size)[client : client + 1]
    offset = np.asarray(train.offset)[client : client + 1]
    x, y = _gather((data.x, data.y), offset, size, int(size[0]) + layout.PADDING_ROWS)
    zeros = np.zeros(len(train.size), np.int32)
    fields = sharding.replicate({"x": x, "y": y, "offset": zeros}, self._mesh)
    return self.data.train._replace(**fields)


def _gather(tree: Any, offset: Any, size: Any, places: int) -> Any:
  """The rows of shards in new arrays of ``places`` rows; the others are zero."""

  def gather(rows: Any) -> np.ndarray:
    rows = rows if isinstance(rows, HostRows) else HostRows(rows)
    gathered = layout.aligned_zeros((places, *rows.shape[1:]), rows.dtype)
    rows.read_into(gathered, offset, size)
    return gathered

  return store.map_rows(tree, gather)


@contextlib.contextmanager
def refusing(label: str, why: str) -> Any:
  """Says in one line that a traced function reads rows that are not there.

  Args:
    label: the option with its value.
    why: the reason.

  Raises:
    OptionError: it does.
  """
  try:
    yield
  except FAILURES as error:
    if not _is_of_rows(error):
      raise
    raise OptionError(f"{label}: {why} (allowed: device)") from None


def _is_of_rows(error: BaseException | None) -> bool:
  """Whether JAX has met an array without values; some of its errors say only how."""
  while error is not None:
    if isinstance(error, RowsOnHostError):
      return True
    if "HostRows" in str(error) or "__jax_array__" in str(error):
      return True
    error = error.__cause__ or error.__context__
  return False


class WindowedEvaluation:
  """The evaluation of a run with rows on the host, in windows of clients.

  The sums of the clients are those of one program that reads all rows, and they are
  added up in the same order.
  """

  def __init__(self, evaluate: Callable[..., Any], data: WindowedData, map_seeds: str):
    """Takes what is evaluated.

    Args:
      evaluate: (client map, data, state, key, numbers) -> a tree; of one row.
      data: the data.
      map_seeds: how rows are mapped (``loop.over_seeds``).
    """
    self._evaluate, self._data, self._map_seeds = evaluate, data, map_seeds
    #: of each map: which rows it reads, and where they are
    self._maps: list[tuple[windows.Reads, Ranges]] = []
    self._has_all_maps = False
    self._inner: Any = None
    self._reads: list[windows.Reads] = []  #: of the map that was traced last

  def __call__(
    self, inner: Any, states: PyTree, keys: PyTree, numbers: PyTree
  ) -> PyTree:
    """Evaluates states.

    Args:
      inner: the client map.
      states: leaves [rows, ...].
      keys: [rows].
      numbers: the traced hyper-parameters of the rows.

    Returns:
      The trees of all rows.
    """
    inputs, results = (states, keys, numbers), list[Any]()
    self._inner = inner
    while not self._has_all_maps or len(results) < len(self._maps):
      if len(results) == len(self._maps):
        self._find_map(inputs, results)
        continue
      results.append(self._run_map(len(results), inputs, results))
    return self._program(self._data.evaluated, *inputs, results)

  @functools.cached_property
  def _program(self) -> Any:
    """The jitted (data, states, keys, numbers, results[, window]) -> a tree.

    It is traced for the results of each number of maps, without and with a window.
    """

    def run(data, states, keys, numbers, results, window=None):
      def of_row(state, key, values, results):
        mapping = WindowMap(self._inner, results, window)
        try:
          return self._evaluate(mapping, data, state, key, values)
        except windows.Pending as pending:
          self._reads.append(mapping.reads[-1])
          return pending.result

      return loop.over_seeds(of_row, self._map_seeds)(states, keys, numbers, results)

    return jax.jit(run)

  def _find_map(self, inputs: Any, results: Any) -> None:
    """Finds the next map, or that there is none."""
    self._reads.clear()
    arguments = (self._data.evaluated, *inputs, results)
    jax.eval_shape(self._program, *arguments)
    if not self._reads:
      self._has_all_maps = True
      return
    places = Ranges(*(np.asarray(leaf)[0] for leaf in self._program(*arguments)))
    self._maps.append((self._reads[0], places))

  def _run_map(self, number: int, inputs: Any, results: Any) -> Any:
    """The results of a map, [rows, S, ...] on the host."""
    reads, places = self._maps[number]
    budget = self._data.window_nbytes
    of_clients, tests = (
      budget // max(1, sum(rows.row_nbytes for rows in arrays)) if arrays else 2**62
      for arrays in reads
    )
    most = of_clients, tests
    cuts = windows.make_windows(places, most)
    slots = max(last - first for first, last in cuts)
    gathered = [_Gathered.of(reads, places, first, last) for first, last in cuts]
    rows = [max(part.rows[i] for part in gathered) for i in range(2)]
    outputs, running = list[PyTree](), list[tuple[PyTree, int]]()
    for part in gathered:
      window = sharding.replicate(part.window(slots, rows), self._data._mesh)
      # The window before this one is computed while this one is read.
      outputs += [_first(*before) for before in running]
      output = self._program(self._data.evaluated, *inputs, results, window)
      running = [(output, part.last - part.first)]
    outputs += [_first(*before) for before in running]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *outputs)


def _first(output: PyTree, number: int) -> PyTree:
  """The results of the slots that are not empty, on the host."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[:, :number], output)


@dataclasses.dataclass(frozen=True)
class _Gathered:
  """Which rows a window of a map has; none has been read yet."""

  first: int
  last: int
  reads: windows.Reads
  #: of the clients' own rows and of the tests: the distinct shards, and the place of
  #: each slot's among them
  distinct: Sequence[tuple[np.ndarray, np.ndarray]]

  @classmethod
  def of(
    cls, reads: windows.Reads, places: Ranges, first: int, last: int
  ) -> "_Gathered":
    """Those of the slots from ``first`` to before ``last``."""
    distinct = []
    for offset, size in (places[:2], places[2:]):
      pairs = np.stack([offset[first:last], size[first:last]], 1).astype(np.int64)
      unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
      distinct.append((unique, inverse.reshape(-1)))
    return cls(first, last, reads, distinct)

  @property
  def rows(self) -> list[int]:
    """The number of rows: the clients' own, and of the tests."""
    return [
      int(unique[:, 1].sum()) if arrays else 0
      for arrays, (unique, _) in zip(self.reads, self.distinct)
    ]

  def window(self, slots: int, most: Sequence[int]) -> Window:
    """Reads the rows.

    Args:
      slots: L.
      most: how many there are in all windows, at most.
    """
    numbers = np.full(slots, self.first, np.int32)
    numbers[: self.last - self.first] = np.arange(self.first, self.last)
    places, arrays = [], []
    for (unique, inverse), of_host, number in zip(self.distinct, self.reads, most):
      begin = np.cumsum(unique[:, 1]) - unique[:, 1]
      offset, size = (np.zeros(slots, np.int32) for _ in range(2))
      offset[: len(inverse)], size[: len(inverse)] = begin[inverse], unique[inverse, 1]
      places += [offset, size]
      arrays.append(
        [
          _gather(rows, unique[:, 0], unique[:, 1], number + layout.PADDING_ROWS)
          for rows in of_host
        ]
      )
    return Window(numbers, Ranges(*places), *arrays)


def check_supported(
  federation: Federation, method_name: str, all_clients: bool, processes: int
) -> None:
  """Refuses what needs all rows at once.

  Args:
    federation: the clients, with rows on the host.
    method_name: name of the method.
    all_clients: whether all clients take part in each of its rounds.
    processes: the number of processes.

  Raises:
    OptionError: the run needs them.
  """
  options = federation.options
  why = ""
  if all_clients:
    why = f"{method_name} uses all data in every round"
  elif federation.schedule is not None:
    assert options.change is not None
    why = (
      f"the rows of all clients are dealt anew during the run ({options.change.label})"
    )
  elif processes > 1:
    why = "every process holds the rows of its clients (several processes)"
  if why:
    raise OptionError(f"{options.data_on.label}: {why} (allowed: device)")
