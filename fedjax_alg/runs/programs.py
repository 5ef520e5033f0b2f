"""The compiled programs of a run: initial states, rounds and evaluation.

XLA compiles without Python's lock, so the programs of a run, and those of
several runs (``compile_together``), are compiled in threads while others are
still traced. The threads decide no bit of a program.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import functools
import hashlib
import pathlib
import threading
import time
from typing import Any, NamedTuple, cast

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval
import jax.numpy as jnp
from jax.sharding import Mesh, Sharding
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import MapClients, RoundAux
from fedjax_alg.engine import (
  compiling,
  evaluate,
  fingerprint,
  loop,
  processes,
  row_file,
  sharding,
)
from fedjax_alg.engine import stored as stored_lib
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.round import sample_and_run
from fedjax_alg.engine.windows import KeepingMap
from fedjax_alg.errors import FAILURES, no_exit
from fedjax_alg.exchange import correlated
from fedjax_alg.models import roles, start
from fedjax_alg.records import accounting
from fedjax_alg.runs.host_tables import HostTables
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.windowed import (
  WindowedData,
  WindowedFunction,
  is_of_rows,
  refusing,
)
from fedjax_alg.typing import PyTree


def _start(prepared: Prepared) -> Any:
  """The program of the states before round 1, (data, keys, numbers) -> states."""
  p = prepared

  def initial_states(data: Any, keys: Any, numbers: Any) -> PyTree:
    return loop.initial_states(
      p.build, p.model, p.spec, data, keys, numbers, p.map_seeds
    )

  return jax.jit(initial_states, inline=True)


def _start_in_windows(prepared: Prepared, start: Any) -> WindowedFunction | None:
  """The start (keys, numbers) -> states in windows; None: it reads no rows.

  Args:
    prepared: the run.
    start: its program, see ``_start``.
  """
  p = prepared
  if not isinstance(p.device_data, WindowedData):
    return None
  try:
    start.eval_shape(*_start_arguments(p))
    return None
  except FAILURES as error:
    if not is_of_rows(error):
      raise

  def initial_state(mapping: Any, data: Any, keys: Any, numbers: Any) -> Any:
    build = p.method.builder(p.model, mapping)
    return loop.initial_state(build, p.model, p.spec, keys, numbers, data.train)

  return _windowed(p, initial_state, compiling.start_options)


def _windowed(
  p: Prepared, fn: Callable[..., Any], options: Any, has_fixed_maps: bool = True
) -> WindowedFunction:
  """A function of one row in windows; see ``WindowedFunction``."""
  assert isinstance(p.device_data, WindowedData)
  return WindowedFunction(
    fn,
    cast(ClientMap, p.map_clients),
    p.device_data,
    p.map_seeds,
    options(sharding.platform(p.mesh)),
    has_fixed_maps,
  )


#: Rounds for whose participants a window has rows of tables, if these are few. All of
#: them are moved before and after each call.
_ROUNDS_OF_TABLES = 4


class _Start(NamedTuple):
  """The states before round 1."""

  #: the jitted (data, keys, numbers[, clients [T]]) -> states in a program
  program: Any
  in_windows: WindowedFunction | None  #: see ``_start_in_windows``
  tables: HostTables | None  #: what clients keep on the host
  shapes: PyTree  #: of the states in a program, see ``_shapes``
  clients: int = 0  #: T, those of which ``program`` makes rows


def _find_start(prepared: Prepared) -> _Start:
  """Finds how a run starts, and keeps what its clients keep where their rows are."""
  p = prepared
  program = _start(p)
  in_windows = _start_in_windows(p, program)
  if in_windows is not None:
    with _refusing(p, "its start asks all clients within a loop or a sum"):
      states = in_windows.eval_shape(p.keys, p.numbers)
    return _Start(program, in_windows, None, _shapes(p, states))
  data = p.device_data
  if not isinstance(data, WindowedData) or not data.keeps_tables(p.algorithm):
    shapes = _shapes(p, program.eval_shape(*_start_arguments(p)))
    return _Start(program, None, None, shapes)

  @jax.jit
  def start_of_clients(data: Any, keys: Any, numbers: Any, ids: Any) -> PyTree:
    inner = cast(ClientMap, p.map_clients)
    mapping = KeepingMap(inner.mode, inner.lanes, inner.mesh, ids=ids)
    build = p.method.builder(p.model, mapping)
    return loop.initial_states(build, p.model, p.spec, data, keys, numbers, p.map_seeds)

  def find_tables(places: int) -> HostTables:
    ids = jax.ShapeDtypeStruct((places,), np.int32)
    states = start_of_clients.eval_shape(*_start_arguments(p), ids)
    return HostTables(_shapes(p, states), p.mesh, not data.location.IS_FILES)

  tables = find_tables(1)
  if not tables.row_nbytes:
    return _Start(program, None, None, tables.form)
  slots = data.most_participants
  fitting = min(data.window_nbytes // tables.row_nbytes, _ROUNDS_OF_TABLES * slots)
  places = min(p.spec.num_clients, max(slots, fitting))
  tables = find_tables(places)
  data.hold_tables(tables, places)
  clients = min(p.spec.num_clients, max(1, data.window_nbytes // tables.row_nbytes))
  return _Start(start_of_clients, None, tables, tables.form, clients)


class _RoundsInWindows:
  """Rounds in which all clients take part, each in windows of clients."""

  def __init__(self, prepared: Prepared):
    self._prepared = prepared
    #: step, see ``_round`` -> its function
    self._functions: dict[int | None, WindowedFunction] = {}

  def _round(self, step: int | None) -> WindowedFunction:
    """(states, keys, numbers, round) -> states and ``RunLog`` of one round.

    Args:
      step: of a method in closed form the round, which decides its code, or the
        number of its steps in all later rounds; else None.
    """
    p = self._prepared

    def run(
      mapping: Any, data: Any, state: Any, keys: Any, numbers: Any, number: Any
    ) -> Any:
      build = loop.with_frozen(p.method.builder(p.model, mapping), data.train)
      if step is not None:
        state = state._replace(round=step)
      state, aux, _ = sample_and_run(
        build(numbers), data.train, p.participation, keys, number, state
      )
      if step is not None:
        state = state._replace(round=number + 1)
      return state, loop.RunLog(aux, loop.all_finite(state))

    return _windowed(p, run, compiling.options, has_fixed_maps=False)

  def _call(self, number: int) -> tuple[WindowedFunction, Any]:
    """The function of a round, and its last input."""
    p = self._prepared
    rounds, step = p.method.entry.rounds, None
    if rounds is not None:  # those after the last step have one program
      step = min(number, rounds(p.method.hparams, len(p.model.layers or ())))
    if step not in self._functions:
      self._functions[step] = self._round(step)
    return self._functions[step], np.full(p.rows, number, np.int32)

  def eval_shape(self, shapes: PyTree) -> Any:
    """The shapes of the log of a call."""
    p = self._prepared
    round_, number = self._call(0)
    with _refusing(p, "a round asks all clients within a loop or a sum"):
      log = round_.eval_shape(shapes, p.keys, p.numbers, number)[1]
    most = _rounds_of_call(p)
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        (leaf.shape[0], most, *leaf.shape[1:]), leaf.dtype
      ),
      log,
    )

  def __call__(
    self, states: PyTree, data: Any, keys: Any, numbers: Any, start: Any, count: Any
  ) -> Any:
    """See ``loop.make_run_rounds``; the log has ``count`` rounds."""
    del data
    logs = []
    for done in range(int(start), int(start) + int(count)):
      round_, number = self._call(done)
      states, log = round_(states, keys, numbers, number)
      logs.append(jax.device_get(log))
    return states, jax.tree.map(lambda *leaves: np.stack(leaves, 1), *logs)


def _refusing(p: Prepared, why: str) -> contextlib.AbstractContextManager[None]:
  """Refuses a method that reads rows which stay on the host."""
  if not isinstance(p.device_data, WindowedData):
    return contextlib.nullcontext()
  label = p.device_data.location.label
  return refusing(label, f"{p.method.entry.label}: {why}")


def _start_arguments(prepared: Prepared) -> tuple[PyTree, ...]:
  return prepared.device_data.data.train, prepared.keys, prepared.numbers


def state_shapes(prepared: Prepared) -> PyTree:
  """Finds the shapes and dtypes of a run's states without computing them.

  Args:
    prepared: the run.

  Returns:
    A pytree of ``jax.ShapeDtypeStruct`` with leaves [rows, ...]; one that stays on
    the host has no sharding.
  """
  return _outside(_find_start(prepared))


def _outside(start: _Start) -> PyTree:
  """The shapes of states outside of programs."""
  return start.shapes if start.tables is None else start.tables.shapes


def _shapes(prepared: Prepared, states: PyTree) -> PyTree:
  """The shapes of states with the sharding of the real ones.

  The programs accept these without moving them. Their sharding is that of the
  keys, but for tables that are shared out over processes.
  """
  return jax.tree.map(
    lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
    states,
    sharding.of_states(states, prepared.mesh, prepared.keys.model.sharding),
  )


def _places(shapes: PyTree) -> PyTree:
  return jax.tree.map(lambda leaf: leaf.sharding, shapes)


def place_on_devices(prepared: Prepared, states: PyTree, shapes: PyTree) -> PyTree:
  """Places states that were read from a file on the devices, but for tables in files.

  Args:
    prepared: the run.
    states: leaves [rows, ...] on the host, see ``checkpoint.load_latest``.
    shapes: their shapes, from ``state_shapes``.
  """
  data = prepared.device_data
  if not isinstance(data, WindowedData) or data.tables is None:
    return sharding.place_states(states, _places(shapes))
  states = jax.tree.map(
    lambda shape, leaf: (
      leaf if shape.sharding is None else sharding.place_states(leaf, shape.sharding)
    ),
    shapes,
    states,
  )
  return data.tables.of_checkpoint(states)


#: Seconds of compiling after which it is said what is compiled.
PATIENCE_S = 2.0

#: Is called with a line of text, in another thread.
Notice = Callable[[str], object]


@contextlib.contextmanager
def announce_if_long(text: str, notice: Notice | None) -> Iterator[None]:
  """Says what is compiled if it takes longer than a moment.

  Args:
    text: the line.
    notice: what takes it; None: nothing is said.
  """
  if notice is None:
    yield
    return
  timer = threading.Timer(PATIENCE_S, notice, (text,))
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


def list_runs(runs: Sequence[Prepared]) -> str:
  """Names the methods and models of some runs: "FedAvg (cnn), SCAFFOLD (cnn)"."""
  names = [
    f"{p.method.entry.label} ({p.model_name})" if p.model_name else p.method.entry.label
    for p in runs
  ]
  return ", ".join(dict.fromkeys(names))


def _of_runs(runs: Sequence[Prepared]) -> str:
  return f"compiling the start, the rounds and the evaluation of {list_runs(runs)}"


#: Python traces one program at a time anyhow. In turn, not in turns, the first
#: run's programs are with the compiler while those of the next are traced.
_TRACING = threading.Lock()

#: A lock for every program that is the same in several runs, and for every key.
_SHARED: dict[bytes | str, threading.Lock] = collections.defaultdict(threading.Lock)

#: Key -> the programs of a run of this process, the last ones last. Partitions of the
#: same data have the same.
_RECENT: collections.OrderedDict[str, stored_lib.Stored] = collections.OrderedDict()
_MOST_RECENT = 8


class _Compiler:
  """Compiles the programs of a run.

  Attributes:
    files: name of a program -> its file, if they are stored.
  """

  def __init__(self, mesh: Mesh | None, stores: bool):
    self.files: dict[str, Any] = {}
    self._mesh, self._stores = mesh, stores

  def compile(
    self, name: str, lowered: jax.stages.Lowered, options: Any = None
  ) -> jax.stages.Compiled:
    """Compiles a program that another run may be compiling at this moment.

    Methods with the same state have the same start and evaluation. The second
    run waits, and finds the program in a file.
    """
    text = hashlib.sha256(lowered.as_text().encode()).digest()
    with _SHARED[text]:
      if not self._stores:
        return lowered.compile(options)
      compiled, self.files[name] = stored_lib.compile_program(
        lowered, options, self._mesh
      )
      return compiled


def compile_together(
  runs: Sequence[Prepared], notice: Notice | None = None
) -> list["Programs"]:
  """Compiles the programs of several runs at the same time.

  Args:
    runs: the runs, a few: their data are on the devices all together.
    notice: see ``Programs``.

  Returns:
    The programs of each run. Their ``compile_s`` is longer than alone.
  """
  with (
    announce_if_long(_of_runs(runs), notice),
    ThreadPoolExecutor(sharding.available_cores()) as pool,
  ):
    return list(pool.map(Programs, runs))


def evaluate_all(
  p: Prepared, data: Any, states: PyTree, keys: Any, numbers: Any
) -> Any:
  """Evaluates states by the protocols and measures of a run; can be jitted.

  Args:
    p: the run.
    data: ``p.device_data.data``.
    states: leaves [rows, ...].
    keys: ``RunKeys`` of the rows.
    numbers: the traced hyper-parameters of the rows.

  Returns:
    protocol -> counts, and measure -> sums, leaves [rows, ...].
  """

  evaluate_one = functools.partial(_evaluate_one, p, p.map_clients, data)
  return loop.over_seeds(evaluate_one, p.map_seeds)(states, keys, numbers)


def _evaluate_one(
  p: Prepared, map_clients: MapClients, data: Any, state: Any, keys: Any, values: Any
) -> Any:
  """``evaluate_all`` of one row."""
  algorithm = loop.with_frozen(p.build, data.train)(values)
  model = roles.bind_frozen(p.model, data.train.frozen)
  first = None  # of what clients keep
  if "held_out" in p.protocols and algorithm.start_personal is not None:
    first = start.bind_leaves(p.model, data.train.start).roles.start(keys.model)
  counts = evaluate.make_evaluate(algorithm, model, p.protocols, map_clients, first)(
    data, state, keys.evaluation
  )
  if not p.measures:
    return counts, {}
  return counts, evaluate.make_measures(algorithm, model, p.measures, map_clients)(
    data, state, keys.evaluation
  )


def make_evaluation(p: Prepared) -> Callable[..., Any]:
  """Makes (states, keys, numbers) -> what ``evaluate_all`` returns.

  Args:
    p: the run. It is compiled at the first call.
  """
  if isinstance(p.device_data, WindowedData):
    return _windowed(p, functools.partial(_evaluate_one, p), lambda _: None)
  program = jax.jit(functools.partial(evaluate_all, p))
  return lambda *inputs: program(p.device_data.data, *inputs)


def _membership(build: loop.Build, state: Any, numbers: Any) -> Any:
  """The groups of the clients by the state of one row."""
  algorithm = build(numbers)
  assert algorithm.membership is not None
  return algorithm.membership(state)


#: The programs of a run; what runs in windows of clients has none here.
_NAMES = ("start", "rounds", "evaluation")


class _Reads(NamedTuple):
  """What a program of a function takes of its arguments: the leaves that it reads."""

  indices: tuple[int, ...]  #: where these are among all leaves
  form: Any  #: the tree of the results

  def call(self, program: Any, *arguments: Any) -> Any:
    """Calls the program with the arguments of the function."""
    leaves = jax.tree.leaves(arguments)
    return jax.tree.unflatten(
      self.form, program(*(leaves[index] for index in self.indices))
    )


class _Facts(NamedTuple):
  """What tracing says of the programs; shapes without places."""

  states: PyTree
  log: Any
  num_groups: int | None
  reads: dict[str, _Reads]  #: of those made by ``_trace_leaves``


def _trace_leaves(
  function: Any, arguments: tuple[Any, ...], shardings: Any
) -> tuple[jax.stages.Traced, _Reads, list[Any]]:
  """Traces a function as a program of the leaves that it reads.

  So methods share a program if it reads the same of their states.

  Args:
    function: can be jitted.
    arguments: arrays or shapes.
    shardings: those of the results, or one of all; None: JAX chooses them.

  Returns:
    The program, how it is called, and the leaves that it reads.
  """
  traced = jax.jit(function).trace(*arguments)
  form: Any = jax.tree.structure(traced.out_info)
  closed = traced.jaxpr
  program, reads = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals))
  indices = tuple(np.flatnonzero(reads).tolist())
  all_leaves = jax.tree.leaves(arguments)
  leaves = [all_leaves[index] for index in indices]
  compute: Any = jaxpr_as_fun(ClosedJaxpr(program, closed.consts))

  def of_leaves(*leaves: Any) -> Any:
    return compute(*leaves)

  of_leaves.__name__ = getattr(function, "func", function).__name__
  if shardings is not None and not isinstance(shardings, Sharding):
    shardings = form.flatten_up_to(shardings)
  jitted = jax.jit(of_leaves, keep_unused=True, out_shardings=shardings)
  return jitted.trace(*leaves), _Reads(indices, form), leaves


def _plain_shapes(tree: PyTree) -> PyTree:
  return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _rounds_of_call(prepared: Prepared) -> int:
  """The most rounds between two evaluations."""
  assert prepared.options.rounds is not None
  return min(prepared.options.eval_every, prepared.options.rounds)


def _key(prepared: Prepared) -> str | None:
  """The key of the programs; None: no other run can have them.

  It holds all that ``Programs._compile_anew`` reads. The compiler's options follow
  from the library, the version of JAX and the environment.
  """
  p, method = prepared, prepared.method
  if not stored_lib.has_keys() or sharding.is_described(p.mesh):
    return None
  if isinstance(p.device_data, WindowedData):
    return None
  constants = method.structure() if p.numbers else method.options
  arguments = p.device_data.data, p.keys, p.numbers
  try:
    return fingerprint.hash_values(
      fingerprint.hash_library(),
      fingerprint.hash_machine(),
      (method.entry, constants, method.traced_names),
      *(p.model, p.map_clients, p.spec, p.participation, _rounds_of_call(p)),
      *(p.map_seeds, p.mesh, p.protocols, p.measures),
      correlated.package_version() if accounting.is_private(method.parts) else "",
      fingerprint.Shapes(arguments),
    )
  except fingerprint.NoFingerprintError:
    return None


class Programs:
  """The compiled programs of a run, and the time that compiling took.

  Arrays have one row for each pair of a setting and a seed, in the order of
  ``Prepared``.
  """

  @no_exit()
  def __init__(self, prepared: Prepared, notice: Notice | None = None):
    """Compiles the programs.

    Args:
      prepared: the run.
      notice: is told what is compiled if that takes longer than ``PATIENCE_S``.
    """
    began = time.monotonic()
    self.prepared = prepared
    with announce_if_long(_of_runs([prepared]), notice):
      self._compile()
    self.compile_s = time.monotonic() - began

  def _compile(self) -> None:
    p = self.prepared
    assert p.options.rounds is not None
    self.rounds: int = p.options.rounds  #: rounds of the whole run
    self._start: _Start | None = None
    self._rounds_in_windows = None
    if isinstance(p.device_data, WindowedData) and p.device_data.all_take_part:
      self._rounds_in_windows = _RoundsInWindows(p)
    stored = self._find()
    facts: _Facts = stored.facts
    self.shapes = (
      _shapes(p, facts.states) if self._start is None else _outside(self._start)
    )
    self._log = facts.log
    #: K, the number of groups; None if the algorithm does not group clients
    self.num_groups: int | None = facts.num_groups
    self._programs = stored.programs
    self._init, self._run, self._evaluate = (self._callable(facts, n) for n in _NAMES)
    if self._evaluate is None:
      self._evaluate_in_windows = make_evaluation(p)
    self._membership = stored.programs.get("membership")
    processes.meet("compiled")

  def _callable(self, facts: _Facts, name: str) -> Any:
    """A program that takes what its function does; None if there is none."""
    program, reads = self._programs.get(name), facts.reads.get(name)
    return program if reads is None else functools.partial(reads.call, program)

  def _find(self) -> stored_lib.Stored:
    """The programs, of an earlier run if one has had the same."""
    key, mesh = _key(self.prepared), self.prepared.mesh
    if key is None:
      return self._compile_anew(_Compiler(mesh, False))
    with _SHARED[key]:
      stored = _RECENT.pop(key, None) or stored_lib.load_programs(key, mesh)
      if stored is None:
        compiler = _Compiler(mesh, stored_lib.can_store(mesh))
        stored = self._compile_anew(compiler)
        stored_lib.save_programs(key, compiler.files, stored.facts)
      _RECENT[key] = stored
    while len(_RECENT) > _MOST_RECENT:
      _RECENT.popitem(last=False)
    return stored

  def _compile_anew(self, compiler: _Compiler) -> stored_lib.Stored:
    p = self.prepared
    data, mesh = p.device_data.data, p.mesh
    platform = sharding.platform(mesh)
    compiling.leave_frames_out(platform)
    # Traced once, for the shapes and for its program.
    start = self._start = _find_start(p)
    shapes = start.shapes
    # The host of every process reads what all of them have computed.
    everywhere = sharding.replicated(mesh) if sharding.spans_processes(mesh) else None
    compiled: dict[str, Any] = {}
    reads: dict[str, _Reads] = {}
    with ThreadPoolExecutor() as pool:

      def submit(name: str, lowered: Any, options: Any = None) -> None:
        compiled[name] = pool.submit(compiler.compile, name, lowered, options)

      with _TRACING:
        # First: a caller's own measure may fail, before minutes of compiling.
        if not isinstance(p.device_data, WindowedData):
          evaluation, reads["evaluation"], _ = _trace_leaves(
            functools.partial(evaluate_all, p),
            (data, shapes, p.keys, p.numbers),
            everywhere,
          )
          submit("evaluation", evaluation.lower())
        if self._rounds_in_windows is None:
          lowered = self._lower_rounds(shapes)
          log = lowered.out_info[1]
          submit("rounds", lowered, compiling.options(platform))
        else:
          log = self._rounds_in_windows.eval_shape(shapes)
        if start.in_windows is None:
          arguments = _start_arguments(p)
          if start.tables is not None:
            arguments += (np.zeros(start.clients, np.int32),)
          first, reads["start"], leaves = _trace_leaves(
            start.program, arguments, _places(shapes)
          )
          rows = set(map(id, jax.tree.leaves((data.train.x, data.train.y))))
          reads_rows = bool(rows & set(map(id, leaves)))
          submit("start", first.lower(), compiling.start_options(platform, reads_rows))
    programs = {name: program.result() for name, program in compiled.items()}
    algorithm, num_groups = p.algorithm, None
    if algorithm.membership is not None:
      membership = jax.jit(
        jax.vmap(functools.partial(_membership, p.build)),
        keep_unused=True,
        out_shardings=everywhere,
      )
      programs["membership"] = compiler.compile(
        "membership", membership.lower(shapes, p.numbers)
      )
      num_groups = p.spec.num_clients
      if algorithm.global_params is not None:
        models = jax.eval_shape(jax.vmap(algorithm.global_params), shapes)
        num_groups = jax.tree.leaves(models)[0].shape[1]
    facts = _Facts(_plain_shapes(shapes), _plain_shapes(log), num_groups, reads)
    return stored_lib.Stored(programs, facts)

  def _lower_rounds(self, shapes: PyTree) -> jax.stages.Lowered:
    """The program of rounds (``loop.make_run_rounds``)."""
    p, zero = self.prepared, jnp.int32(0)
    run = loop.make_run_rounds(
      p.build,
      p.participation,
      _rounds_of_call(p),
      p.map_seeds,
      p.mesh,
      _places(shapes),
    )
    why = "a round reads rows of clients that do not take part in it"
    with _refusing(p, why):
      lowered: jax.stages.Lowered = run.lower(
        shapes, p.device_data.data.train, p.keys, p.numbers, zero, zero
      )
    return lowered

  @property
  def server(self) -> dict[str, Any]:
    """Shapes and dtypes of ``RoundAux.server`` in the log of ``run_rounds``."""
    result: dict[str, Any] = self._log.aux.server
    return result

  @property
  def empty_aux(self) -> RoundAux:
    """The ``RoundAux`` of zero rounds, leaves [rows, 0, ...]."""
    result: RoundAux = jax.tree.map(
      lambda leaf: np.zeros((leaf.shape[0], 0, *leaf.shape[2:]), leaf.dtype),
      self._log.aux,
    )
    return result

  def initial(self) -> PyTree:
    """Computes the states before the first round."""
    p = self.prepared
    p.device_data.move(0)
    start, arguments = self._start, _start_arguments(p)
    if start is not None and start.in_windows is not None:
      states = start.in_windows(p.keys, p.numbers)
      return jax.device_put(states, _places(self.shapes))
    if start is not None and start.tables is not None:
      return start.tables.make(lambda ids: self._init(*arguments, ids), start.clients)
    return self._init(*arguments)

  def place(self, states: PyTree) -> Any:
    """States of a checkpoint to go on with; see ``place_on_devices``."""
    states = place_on_devices(self.prepared, states, self.shapes)
    return row_file.copy_versions(states, is_live=True)

  def keep_tables_in(self, folders: Sequence[pathlib.Path]) -> None:
    """Has the tables of clients beside the checkpoints, see ``HostTables``.

    Args:
      folders: the folder of the checkpoints of each setting.
    """
    if self._start is not None and self._start.tables is not None:
      self._start.tables.folders = folders

  def perturb_rounding(self, states: PyTree, seed: int) -> Any:
    """See ``loop.perturb_rounding``; tables are read as a whole."""
    if self._start is None or self._start.tables is None:
      return loop.perturb_rounding(states, seed)
    arrays = jax.tree.map(
      lambda leaf: np.asarray(leaf) if row_file.is_row_table(leaf) else leaf, states
    )
    return self._start.tables.replace(states, loop.perturb_rounding(arrays, seed))

  @property
  def label_histogram(self) -> np.ndarray:
    """[C, L] training examples by class in the rounds of the last ``run_rounds``."""
    return self.prepared.device_data.label_histogram

  def rounds_to_evaluation(self, done: int) -> int:
    """Counts the rounds from the current one to the next evaluation.

    The run is evaluated at the multiples of ``eval_every`` (a resumed run as
    well), before every change of the data and after the last round.

    Args:
      done: rounds run so far.

    Returns:
      The number of rounds to run.
    """
    every, remaining = self.prepared.options.eval_every, self.rounds - done
    event = self.prepared.device_data.rounds_left(done)
    return min(every - done % every, remaining, remaining if event is None else event)

  def rounds_of_call(self, done: int, count: int) -> int:
    """How many of the next rounds one call of ``run_rounds`` can run.

    Args:
      done: rounds run so far.
      count: rounds to run.
    """
    at_hand = self.prepared.device_data.rounds_at_hand(done)
    return count if at_hand is None else min(count, at_hand)

  def run_rounds(self, states: PyTree, start: int, count: int) -> Any:
    """Runs rounds without an evaluation in between.

    If the clients' data change during the run, all these rounds and the next
    evaluation read the data of round ``start``.

    Args:
      states: leaves [rows, ...]. Their memory is donated, so they cannot be
        used afterwards.
      start: rounds run before.
      count: rounds to run.

    Returns:
      The new states and the ``RunLog`` of the rounds.
    """
    p = self.prepared
    data = p.device_data
    data.move(start)
    run, inputs = self._rounds_in_windows or self._run, states
    tables = None if self._start is None else self._start.tables
    if tables is not None:
      assert isinstance(data, WindowedData)
      ids = data.participants(start, count)
      inputs = tables.hold(states, ids, data.most_clients)
    new, log = run(
      inputs,
      data.data.train,
      p.keys,
      p.numbers,
      jnp.int32(start),
      jnp.int32(count),
    )
    data.read_ahead()  # while the rounds run
    return (new if tables is None else tables.write(states, new, ids)), log

  def evaluate(
    self, states: PyTree
  ) -> tuple[dict[str, tasks.Counts], dict[str, dict[str, np.ndarray]]]:
    """Evaluates all protocols and the caller's own measures.

    Args:
      states: leaves [rows, ...].

    Returns:
      The counts of each protocol and the sums of each measure, leaves
      [rows, ...] on the host.
    """
    p = self.prepared
    if self._evaluate is None:
      counts, sums = self._evaluate_in_windows(states, p.keys, p.numbers)
    else:
      counts, sums = self._evaluate(p.device_data.data, states, p.keys, p.numbers)
    counts = tasks.counts_on_host(tasks.of(p.model), counts)
    return {protocol: counts[protocol] for protocol in p.protocols}, jax.device_get(
      sums
    )

  def membership(self, states: PyTree) -> np.ndarray | None:
    """Reads the group of each client.

    Args:
      states: leaves [rows, ...].

    Returns:
      [rows, C] int32, -1 for a client without a group; None if the algorithm
      does not group clients.
    """
    if self._membership is None:
      return None
    result: np.ndarray | None = jax.device_get(
      self._membership(states, self.prepared.numbers)
    )
    return result

  @property
  def executables(self) -> dict[str, Any]:
    """The compiled programs ``start``, ``rounds`` and ``evaluation``.

    Those that read rows on the host in windows of clients are not among them.
    """
    return {name: self._programs[name] for name in _NAMES if name in self._programs}

  def memory_mb(self) -> float:
    """The memory in MB of the largest program, as its compiler reports it."""
    sizes = []
    for program in self.executables.values():
      stats = program.memory_analysis()
      if stats is not None:
        sizes.append(
          stats.temp_size_in_bytes
          + stats.output_size_in_bytes
          + stats.argument_size_in_bytes
        )
    return max(sizes, default=0) / 2**20
