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
from jax.sharding import Mesh
import numpy as np

from fedjax_alg import memory
from fedjax_alg.base import Algorithm, Shard
from fedjax_alg.data import layout, process_rows, store
from fedjax_alg.data.federation import EvaluationData, Federation
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.data.location import Location
from fedjax_alg.engine import loop, sharding, windows
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.keys import RunKeys
from fedjax_alg.engine.round import Participation
from fedjax_alg.engine.windows import Ranges, Window, WindowMap
from fedjax_alg.errors import FAILURES, OptionError, RowsOnHostError
from fedjax_alg.runs import host_tables
from fedjax_alg.runs.host_tables import HostTables
from fedjax_alg.runs.placed import PlacedData, check_processes, place_rows
from fedjax_alg.typing import PyTree

#: Rounds whose participants are drawn at once, at most.
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
  ids: np.ndarray  #: [n] int32, the participants in increasing order
  #: the fields of ``ClientData`` that change: x, y and offset
  fields: dict[str, Any]


class WindowedData(PlacedData):
  """A federation of which the devices have the rows of the next participants.

  ``data`` is for the programs of rounds, and ``evaluated`` for evaluations, in which
  all rows are on the host.
  """

  tables: HostTables | None = None  #: what clients keep; None: the devices have it
  _places: int | None = None  #: B, the rows of a window, without padding

  def __init__(
    self,
    federation: Federation,
    *args: Any,
    location: Location,
    rounds: Rounds | None,
    **kwargs: Any,
  ):
    """Places all but the rows, and the rows of the first window.

    Args:
      federation: the clients with their data.
      *args: see ``PlacedData``.
      location: where the rows are.
      rounds: the rounds of the run; None: all clients take part in each of them, and
        the rounds are computed in windows of clients (``WindowedFunction``).
      **kwargs: see ``PlacedData``.
    """
    self.location = location
    self._window: _Window | None = None
    self._next: futures.Future[_Window] | None = None
    self._pool: futures.ThreadPoolExecutor | None = None
    self._cohorts: dict[int, list[np.ndarray]] = {}
    self._rounds = rounds
    self.blocks = _Blocks(federation.rows)
    #: the rows that stay on the host, in the order of ``_without_rows``. They are
    #: constants of programs, and the same at each step of a schedule.
    self._constants: list[HostRows] = []
    #: rounds whose participants are drawn at once, of one step
    self._ahead = _AHEAD if rounds is None else max(1, min(_AHEAD, rounds.number))
    if federation.schedule is not None:
      self._ahead = min(self._ahead, federation.schedule.every)
      federation = _with_lazy_rows(federation)
    self._now = federation.data  #: at the present step, on the host
    super().__init__(federation, *args, **kwargs)
    train = federation.data.train
    self._budget = self.window_nbytes // max(1, layout.row_nbytes(train.x, train.y))
    self._places = self._plan_rows()
    self.move(0)

  def _share(self) -> EvaluationData:
    """The data without rows on the devices; see ``PlacedData``."""
    check_processes(self._federation, self._mesh)
    data = self._federation.data
    server = layout.server_rows(data.train)
    self._server: Any = server
    self._first_of_server = 0
    if server is not None:  # its rows are always on the devices, alone
      first, count = int(server.offset), int(server.size)
      place = np.array([first]), np.array([count])
      x, y = _gather((server.x, server.y), *place, count + layout.PADDING_ROWS)
      ends: Any = np.zeros((), np.int32), np.asarray(count, np.int32)
      self._server, self._first_of_server = Shard(x, y, *ends), first
    return self._without_rows(data)

  def _without_rows(self, data: EvaluationData) -> EvaluationData:
    """The data of a step without rows on the devices."""
    rows_here, first = self._federation.rows, self._first_of_server
    known, cached = iter(list(self._constants)), dict[int, HostRows]()
    changes = self._federation.schedule is not None

    def without_rows(part: Any, blocks: int = 0) -> Any:
      def on_host(rows: Any) -> Any:
        source = rows.source if isinstance(rows, HostRows) else rows
        constant = next(known, None)
        if constant is None:
          constant = HostRows(source, blocks)
          if not changes:  # equal arrays are one constant, and programs are the same
            return cached.setdefault(id(rows), constant)
          self._constants.append(constant)
        constant.source = source
        return constant

      x, y = store.map_rows((part.x, part.y), on_host)
      return part._replace(x=x, y=y)

    validation, held_out = data.validation, data.held_out
    train: Any = data.train._replace(validation=self._server)
    if rows_here is None:
      train = without_rows(train)
    else:
      offset = rows_here.place_in_blocks(train.offset)
      train = without_rows(train, rows_here.processes)
      train = train._replace(offset=offset, blocks=())
    host = data._replace(
      train=train,
      test=without_rows(data.test),
      whole_test=without_rows(data.whole_test),
      validation=validation and validation._replace(offset=validation.offset - first),
      held_out=held_out and held_out._replace(offset=held_out.offset - first),
    )
    shared: EvaluationData = sharding.replicate(host, self._mesh)
    return shared

  def _change(self, now: EvaluationData) -> None:
    """See ``PlacedData._change``; no row is read."""
    self._forget_window()
    self._now, self._cohorts = now, {}
    self.__dict__.pop("_owners", None)
    self.data = self._of_run(self._without_rows(now))

  def _of_run(self, data: EvaluationData) -> EvaluationData:
    self.evaluated = super()._of_run(data)
    train = self.evaluated.train
    if self._rounds is None:
      return self.evaluated
    train = train._replace(host=(train.x, train.y))
    return self.evaluated._replace(train=train)

  @property
  def facts(self) -> dict[str, Any]:
    """What was chosen, for config.json; see ``PlacedData.facts``."""
    return {**super().facts, "window_rows": self._places}

  def hold_tables(self, tables: HostTables, places: int) -> None:
    """Keeps what clients keep on the host, too.

    Args:
      tables: the tables.
      places: how many clients a window has at most.
    """
    self.tables, self.most_clients = tables, places
    self._forget_window()

  def _forget_window(self) -> None:
    """Has the next round read its rows anew."""
    if self._next is not None:
      self._next.result()
    self._window = self._next = None

  def participants(self, done: int, count: int) -> np.ndarray:
    """[n] int32, the participants of some rounds in increasing order.

    Args:
      done: rounds run before them.
      count: how many.
    """
    ids = [
      self._draw(number // self._ahead * self._ahead)[number % self._ahead]
      for number in range(done, done + count)
    ]
    return np.unique(np.concatenate(ids)).astype(np.int32)

  @property
  def most_participants(self) -> int:
    """The most participants of a round, of all seeds."""
    assert self._rounds is not None
    rounds = self._rounds
    slots: int = rounds.participation.cohort_size * rounds.keys.cohort.shape[0]
    return min(slots, len(self._federation.data.train.size))

  @property
  def all_take_part(self) -> bool:
    """Whether all clients take part in each round, in windows of clients."""
    return self._rounds is None

  def keeps_tables(self, algorithm: Algorithm) -> bool:
    """Whether what clients keep is outside of programs, too."""
    return not (
      self.all_take_part
      # A group of a client may be read from the rows of all of them.
      or algorithm.membership is not None
      or sharding.spans_processes(self._mesh)  # each has what its own clients keep
    )

  @property
  def window_nbytes(self) -> int:
    """The memory of a window; the next one is read while programs have another."""
    return max(1, int(self.location.window_mb * 2**20) // 2)

  @property
  def step(self) -> int:
    """The present step of the schedule; -1 if there is none."""
    return self._step

  def _plan_rows(self) -> int:
    """Decides the number of rows of a window of rounds, B."""
    schedule, rounds = self._federation.schedule, self._rounds
    size = np.asarray(self._now.train.size, np.int64)
    if rounds is None:
      total = self._most_rows(np.arange(len(size)))
      return int(min(total, max(self._budget, size.max(initial=0))))
    if schedule is None:
      return self._plan_step(0, rounds.number, size)
    every, most = schedule.every, 0
    for first in reversed(range(0, rounds.number, every)):
      size = schedule.at(schedule.step_of(first)).rows.train_size.astype(np.int64)
      last = min(first + every, rounds.number)
      most = max(most, self._plan_step(first, last, size))
    return most

  def _plan_step(self, first: int, last: int, size: np.ndarray) -> int:
    """The rows of a window of some rounds in which clients have the same rows.

    Args:
      first: rounds before them.
      last: rounds with them.
      size: [C] int64, the rows of the clients.
    """
    slots, total = self.most_participants, int(size.sum())
    if self.blocks.are_several:  # the rows stay in them
      total = self._most_rows(np.arange(len(size)))
    if slots >= len(size):
      return total
    largest = np.partition(size, -slots)[-slots:].sum()
    if largest > max(self._budget, 1):
      super().move(first)
      largest = max(
        self._most_rows(ids)
        for number in range(first // self._ahead * self._ahead, last, self._ahead)
        for ids in self._draw(number)
      )
    return int(min(total, max(self._budget, largest)))

  @functools.cached_property
  def _owners(self) -> np.ndarray:
    """[C] int, the process that reads the rows of each client."""
    return self.blocks.owners(self.blocks.places(np.asarray(self._now.train.offset)))

  def _rows_of_blocks(self, ids: np.ndarray) -> np.ndarray:
    """[Q] int, the rows of some clients in each block."""
    size = np.asarray(self._now.train.size, np.int64)
    return np.bincount(
      self._owners[ids], size[ids], minlength=self.blocks.number
    ).astype(np.int64)

  def _most_rows(self, ids: np.ndarray) -> int:
    """The rows of some clients in the block that has the most."""
    return int(self._rows_of_blocks(ids).max())

  def _rows_on_devices(self, ids: np.ndarray, places: int) -> dict[str, Any]:
    """Reads the rows of some clients.

    Args:
      ids: [n] int, the clients in increasing order.
      places: rows of a block, without padding.

    Returns:
      The fields of ``ClientData`` that change: x, y and offset, on the devices. A
      client without rows here is behind the end, where nothing is read or written.
    """
    train, data = self._now.train, self.evaluated.train
    begin = self.blocks.places(np.asarray(train.offset))
    size = np.asarray(train.size)
    height = places + layout.PADDING_ROWS
    offset = np.full(len(size), self.blocks.number * height, np.int32)
    read = self.blocks.read((data.x, data.y), begin[ids], size[ids], height)
    offset[ids] = read.offset
    x, y = place_rows(read.rows, self._mesh, self.blocks.are_several)
    return {"x": x, "y": y, "offset": sharding.replicate(offset, self._mesh)}

  def _draw(self, first: int) -> list[np.ndarray]:
    """The participants of some rounds of the step, of all seeds.

    Args:
      first: rounds before them, a multiple of their number.

    Raises:
      OptionError: they depend on more than seed and round.
    """
    assert self._rounds is not None
    if first not in self._cohorts:
      while len(self._cohorts) > 2:
        self._cohorts.pop(next(iter(self._cohorts)))
      numbers = jnp.arange(first, first + self._ahead, dtype=jnp.int32)
      train, keys = self.evaluated.train, self._rounds.keys.cohort
      with refusing(self.location.label, "its sampler reads the rows of all clients"):
        ids = np.asarray(self._sample(train, keys, numbers))
      clients = train.size.shape[0]
      self._cohorts[first] = [
        np.unique(of_round[of_round < clients]) for of_round in ids
      ]
    return self._cohorts[first]

  @functools.cached_property
  def _sample(self) -> Callable[..., jax.Array]:
    """The jitted (data, keys [N], numbers [r]) -> ids [r, N, S]."""
    assert self._rounds is not None
    participation = self._rounds.participation

    @functools.partial(jax.jit, out_shardings=sharding.replicated(self._mesh))
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
    if self._rounds is None:
      return None
    self.move(done)
    assert self._window is not None
    return self._window.last - done

  def move(self, done: int) -> None:
    """See ``PlacedData.move``."""
    super().move(done)
    if self._rounds is not None and self._places is not None:
      self._use_window(max(done, 0))

  def read_ahead(self) -> None:
    """Starts to read the next window; see ``PlacedData.read_ahead``."""
    window, rounds, schedule = self._window, self._rounds, self._federation.schedule
    if rounds is None:
      return
    assert window is not None
    is_last = window.last >= rounds.number or (
      schedule is not None and schedule.step_of(window.last) != self._step
    )
    if self._next is None and not is_last:
      self._draw(window.last // self._ahead * self._ahead)
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
    assert self._rounds is not None and self._places is not None
    begin = first // self._ahead * self._ahead
    rounds = self._draw(begin)[
      first - begin : first - begin + self._rounds_of_step(first)
    ]
    inside = np.zeros(len(self._owners), bool)
    rows, clients, last = np.zeros(self.blocks.number, np.int64), 0, first
    for ids in rounds:
      new = ids[~inside[ids]]
      added = self._rows_of_blocks(new)
      is_full = (rows + added).max() > self._places
      is_full |= clients + len(new) > self.most_clients
      if is_full and last > first:
        break
      rows, clients, last, inside[new] = (
        rows + added,
        clients + len(new),
        last + 1,
        True,
      )
    ids = np.flatnonzero(inside)
    fields = self._rows_on_devices(ids, self._places)
    return _Window(first, last, ids.astype(np.int32), fields)

  def _rounds_of_step(self, first: int) -> int:
    """The rounds from one on whose rows a window may have."""
    assert self._rounds is not None
    before_change = self.rounds_left(first)
    left = max(1, self._rounds.number - first)
    return left if before_change is None else min(left, before_change)

  def train_with(self, clients: np.ndarray) -> Any:
    """See ``PlacedData.train_with``."""
    train = self._now.train
    ids = np.unique(clients)
    places = self._most_rows(ids)
    memory.refuse(
      f"{self.location.label}: the rows of {len(ids):,} clients on each device",
      (places + layout.PADDING_ROWS) * layout.row_nbytes(train.x, train.y),
      "allowed: fewer clients",
      sharding.memory_limit,
    )
    return self.data.train._replace(**self._rows_on_devices(ids, places))

  def state_of(self, states: PyTree, seed: int, client: int) -> Any:
    """See ``PlacedData.state_of``."""
    if self.tables is None:
      return super().state_of(states, seed, client)
    of_seed = jax.tree.map(lambda leaf: leaf[seed : seed + 1], states)
    states = self.tables.hold(of_seed, np.array([client], np.int32), 1)
    return super().state_of(states, 0, client)

  def train_without_rows(self) -> Any:
    """See ``PlacedData.train_without_rows``."""
    data = self.evaluated.train
    fields = self._rows_on_devices(np.zeros(0, np.int64), layout.PADDING_ROWS)
    zeros = sharding.replicate(np.zeros(len(data.size), np.int32), self._mesh)
    return data._replace(**fields | {"offset": zeros})


def _with_lazy_rows(federation: Federation) -> Federation:
  """The clients with examples that are not copied when a step puts them in order."""

  def lazy(part: Any) -> Any:
    x = store.map_rows(
      part.x, lambda rows: rows if isinstance(rows, HostRows) else HostRows(rows)
    )
    return part._replace(x=x)

  data = federation.data
  data = data._replace(train=lazy(data.train), test=lazy(data.test))
  return dataclasses.replace(federation, data=data)


class _Read(NamedTuple):
  """Rows that were read."""

  rows: Any  #: the tree of those in the block of this process
  offset: np.ndarray  #: [s] int32, where the shards are in the blocks of all


@dataclasses.dataclass(frozen=True)
class _Blocks:
  """Where the training rows are: a block in each of several processes, or one."""

  split: process_rows.Rows | None  #: None: this process has all rows

  @property
  def number(self) -> int:
    """Q, the number of blocks."""
    return 1 if self.split is None else self.split.processes

  @property
  def are_several(self) -> bool:
    """Whether other processes have some rows."""
    return self.split is not None

  def places(self, offset: np.ndarray) -> np.ndarray:
    """Places in the blocks of rows in the order of the clients, [s] int."""
    return offset if self.split is None else self.split.place_in_blocks(offset)

  def owners(self, places: np.ndarray) -> np.ndarray:
    """[s] int, the process of each of some places."""
    if self.split is None:
      return np.zeros(len(places), np.int64)
    return np.asarray(places, np.int64) // self.split.places

  def read(self, tree: Any, begin: Any, size: Any, height: int) -> _Read:
    """Reads the shards of this process.

    Args:
      tree: arrays of rows on the host; without any, nothing is read.
      begin: [s] int, the places of all shards.
      size: [s] int.
      height: rows of a block of the result, with padding, which are zero.
    """
    size, owner = np.asarray(size, np.int64), self.owners(begin)
    offset = np.zeros(len(size), np.int64)
    for number in range(self.number):
      mine = owner == number
      offset[mine] = number * height + np.cumsum(size[mine]) - size[mine]
    if self.split is not None:
      is_ours = owner == self.split.process
      begin, size = (
        begin[is_ours] - self.split.process * self.split.places,
        size[is_ours],
      )
    return _Read(_gather(tree, begin, size, height), offset.astype(np.int32))


def _gather(tree: Any, offset: Any, size: Any, places: int) -> Any:
  """The rows of shards in new arrays of ``places`` rows; the others are zero."""

  def gather(rows: Any) -> np.ndarray:
    rows = rows if isinstance(rows, HostRows) else HostRows(rows)
    gathered = layout.aligned_zeros((places, *rows.row_shape), rows.dtype)
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
    if not is_of_rows(error):
      raise
    raise OptionError(f"{label}: {why} (allowed: device)") from None


def is_of_rows(error: BaseException | None) -> bool:
  """Whether JAX has met an array without values; some of its errors say only how."""
  while error is not None:
    if isinstance(error, RowsOnHostError):
      return True
    if "HostRows" in str(error) or "__jax_array__" in str(error):
      return True
    error = error.__cause__ or error.__context__
  return False


class WindowedFunction:
  """A function of a run that maps clients with rows on the host, in windows of clients.

  Its results are those of one program that reads all rows: what is added up over
  clients is added up in the same order.
  """

  def __init__(
    self,
    fn: Callable[..., Any],
    inner: ClientMap,
    data: WindowedData,
    map_seeds: str,
    options: Any = None,
    has_fixed_maps: bool = True,
  ):
    """Takes what is computed.

    Args:
      fn: (client map, data, *inputs) -> a tree; of one row.
      inner: the client map.
      data: the data.
      map_seeds: how rows are mapped (``loop.over_seeds``).
      options: of the compiler.
      has_fixed_maps: whether each call reads the same rows.
    """
    self._fn, self._inner, self._data = fn, inner, data
    self._map_seeds, self._options = map_seeds, options
    self._has_fixed_maps = has_fixed_maps
    #: row -> its maps; None: those that all rows share
    self._maps: dict[int | None, _Maps] = {None: _Maps()}
    self._step = data.step  #: of these maps
    self._reads: dict[int, windows.Reads] = {}  #: of each map that was traced

  def __call__(self, *inputs: PyTree) -> Any:
    """Computes the function.

    Args:
      *inputs: leaves [rows, ...].

    Returns:
      The trees of all rows.
    """
    if not self._has_fixed_maps or self._step != self._data.step:
      self._maps, self._step = {None: _Maps()}, self._data.step
    tables, states = self._data.tables, inputs[0]
    if tables is not None:
      inputs = host_tables.absent(states), *inputs[1:]
    if None in self._maps:
      try:
        return self._run(self._maps[None], inputs, states)
      except _DifferentRowsError:  # such as those of clients that each seed draws
        del self._maps[None]
    rows = len(jax.tree.leaves(inputs)[0])
    parts = [
      self._run(
        self._maps.setdefault(row, _Maps()),
        *jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], (inputs, states)),
      )
      for row in range(rows)
    ]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

  def eval_shape(self, *inputs: PyTree) -> Any:
    """The shapes of the results, computed without reading rows.

    Args:
      *inputs: see ``__call__``.

    Raises:
      RowsOnHostError: it reads rows elsewhere than in maps that follow each other.
    """
    shapes = functools.partial(self._trace, "shapes")
    return jax.eval_shape(shapes, self._data.evaluated, inputs, [])

  def _run(self, maps: "_Maps", inputs: Any, states: Any) -> Any:
    """Computes rows with the same maps; ``states`` are states with tables."""
    results = list[Any]()
    while not maps.are_all or len(results) < len(maps.entries):
      if len(results) == len(maps.entries):
        self._find_map(maps, inputs, results)
        continue
      pending = maps.entries[len(results)]
      results.append(self._run_map(*pending, inputs, results, states))
    return self._program(self._data.evaluated, inputs, results)

  def _trace(
    self,
    window: Any,
    data: Any,
    inputs: Any,
    results: Any,
    total: Any = (),
    tables: Any = (),
  ) -> Any:
    """All rows, up to the first map without a result."""

    def of_row(inputs, results, total, tables):
      mapping = WindowMap(self._inner, results, window, total, tables)
      try:
        return self._fn(mapping, data, *inputs)
      except windows.Pending as pending:
        self._reads[len(results)] = mapping.reads[-1]
        return pending.result

    return loop.over_seeds(of_row, self._map_seeds)(inputs, results, total, tables)

  @functools.cached_property
  def _program(self) -> Any:
    """The jitted (data, inputs, results[, total, tables, window]) -> a tree.

    It is traced for the results of each number of maps, without and with a window.
    """

    def run(data, inputs, results, total=(), tables=(), window=None):
      result = self._trace(window, data, inputs, results, total, tables)
      if jax.tree.leaves(total):
        return result  # each device has its sums
      # The host of every process reads what all of them have computed.
      return sharding.replicate_traced(result, self._data._mesh)

    return jax.jit(run, donate_argnames="total", compiler_options=self._options)

  def _find_map(self, maps: "_Maps", inputs: Any, results: Any) -> None:
    """Finds the next map, or that there is none.

    Raises:
      _DifferentRowsError: each row reads rows of other clients.
    """
    arguments = (self._data.evaluated, inputs, results)
    if not isinstance(jax.eval_shape(self._program, *arguments), windows.PendingMap):
      maps.are_all = True
      return
    reads, pending = self._reads[len(results)], self._program(*arguments)
    places, clients = jax.device_get((pending.places, pending.clients))
    if any((leaf != leaf[:1]).any() for leaf in jax.tree.leaves((places, clients))):
      raise _DifferentRowsError
    places, clients = jax.tree.map(lambda leaf: leaf[0], (places, clients))
    maps.entries.append((reads, windows.PendingMap(places, pending.total, clients)))

  def _run_map(
    self,
    reads: windows.Reads,
    pending: windows.PendingMap,
    inputs: Any,
    results: Any,
    states: Any,
  ) -> Any:
    """The results of a map, [rows, S, ...] on the host, or its sums on the devices."""
    gathered = self._cut(reads, pending)
    rows = [max(part.rows[i] for part in gathered) for i in range(2)]
    arguments = self._data.evaluated, inputs, results
    outputs, running = list[PyTree](), list[tuple[PyTree, int]]()
    total = jax.tree.map(jnp.copy, pending.total)  # its memory is donated
    for part in gathered:
      window = part.window(rows, self._data._mesh)
      # The window before this one is computed while this one is read.
      if reads.is_total:
        total = self._program(*arguments, jax.block_until_ready(total), (), window)
        continue
      tables = self._hold(pending, part, states)
      outputs += [_first(*before) for before in running]
      output = self._program(*arguments, (), tables, window)
      running = [(output, int((part.slots < part.total).sum()))]
    if reads.is_total:
      return total
    outputs += [_first(*before) for before in running]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *outputs)

  def _hold(self, pending: windows.PendingMap, part: "_Gathered", states: Any) -> Any:
    """The rows of tables that a window reads."""
    tables = self._data.tables
    if tables is None or isinstance(pending.clients, tuple):
      return ()
    ids = np.unique(pending.clients[part.slots[part.slots < part.total]])
    return tables.tables(states, ids, len(part.slots))

  def _cut(
    self, reads: windows.Reads, pending: windows.PendingMap
  ) -> "list[_Gathered]":
    """Cuts the slots of a map into windows."""
    places, tables, most = pending.places, self._data.tables, windows.MOST_SLOTS
    total, devices = len(places.size), self._inner.devices
    order = np.arange(total)[None]
    least = min(total, devices + 1)
    cut = places
    if reads.is_total:  # of each device some slots, in the order of its sums
      owner = self._data.blocks.owners(places.offset) if reads.in_blocks else None
      order = self._inner.order_of_total(places.size, owner)
      size = np.append(places.size, 0)[order].sum(0)
      none = np.zeros_like(size)
      cut, least = Ranges(np.arange(len(size)), size, none, none), 2
    budget = self._data.window_nbytes
    of_clients, of_tests = (
      budget // max(1, sum(rows.row_nbytes for rows in arrays)) if arrays else 2**62
      for arrays in reads[:2]
    )
    if tables is not None and not isinstance(pending.clients, tuple):
      most = max(1, budget // max(1, tables.row_nbytes))
    cuts = windows.make_windows(cut, (of_clients, of_tests), most)
    # A loop over one slot would be no loop, with other bits perhaps.
    width = max(least, *(last - first for first, last in cuts))
    gathered = []
    for first, last in cuts:
      slots = np.pad(
        order[:, first:last],
        ((0, 0), (0, width - (last - first))),
        constant_values=total,
      )
      gathered.append(_Gathered.of(reads, places, slots.reshape(-1), self._data.blocks))
    return gathered


class _DifferentRowsError(Exception):
  """The rows of a program do not read the rows of the same clients."""


@dataclasses.dataclass
class _Maps:
  """The maps of a function so far."""

  #: what each reads, and where that is
  entries: list[tuple[windows.Reads, windows.PendingMap]] = dataclasses.field(
    default_factory=list
  )
  are_all: bool = False


def _first(output: PyTree, number: int) -> PyTree:
  """The results of the slots that are not empty, on the host."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[:, :number], output)


@dataclasses.dataclass(frozen=True)
class _Gathered:
  """Which rows a window of a map has; none has been read yet."""

  slots: np.ndarray  #: [L] in [0, S]; S is an empty one
  total: int  #: S, all slots of the map
  reads: windows.Reads
  #: of the clients' own rows and of the tests: the distinct shards, and the place of
  #: each slot's among them
  distinct: Sequence[tuple[np.ndarray, np.ndarray]]
  #: where the clients' own rows are, and where the tests are
  blocks: tuple[_Blocks, _Blocks]

  @classmethod
  def of(
    cls, reads: windows.Reads, places: Ranges, slots: np.ndarray, blocks: _Blocks
  ) -> "_Gathered":
    """Those of some slots [L]."""
    distinct = []
    for offset, size in (places[:2], places[2:]):
      pairs = np.stack([offset, size], 1).astype(np.int64)
      pairs = np.concatenate([pairs, np.zeros((1, 2), np.int64)])[slots]
      unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
      distinct.append((unique, inverse.reshape(-1)))
    one_block = _Blocks(None)
    of_shards = blocks if reads.in_blocks else one_block
    return cls(slots, len(places.size), reads, distinct, (of_shards, one_block))

  @property
  def rows(self) -> list[int]:
    """The number of rows of a block: the clients' own, and of the tests."""
    return [
      int(np.bincount(blocks.owners(unique[:, 0]), unique[:, 1]).max()) if arrays else 0
      for arrays, (unique, _), blocks in zip(self.reads[:2], self.distinct, self.blocks)
    ]

  def window(self, most: Sequence[int], mesh: Mesh | None) -> Window:
    """Reads the rows.

    Args:
      most: how many a block has in all windows, at most.
      mesh: the devices.
    """
    places, arrays = [], []
    for (unique, inverse), of_host, number, blocks in zip(
      self.distinct, self.reads[:2], most, self.blocks
    ):
      begin, size = unique.T
      height = number + layout.PADDING_ROWS if of_host else 1
      # Where nothing is read, a place only says which process it is in.
      read = blocks.read(of_host, begin, size if of_host else 0 * size, height)
      places += [read.offset[inverse], size[inverse].astype(np.int32)]
      arrays.append(place_rows(read.rows, mesh, blocks.are_several))
    numbers = np.minimum(self.slots, self.total - 1).astype(np.int32)
    numbers, ranges = sharding.replicate((numbers, Ranges(*places)), mesh)
    return Window(numbers, ranges, *arrays)
