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
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import MapClients, RoundAux
from fedjax_alg.engine import compiling, evaluate, loop, processes, sharding
from fedjax_alg.errors import no_exit
from fedjax_alg.models import roles
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.windowed import WindowedData, WindowedEvaluation, refusing
from fedjax_alg.typing import PyTree


def _start(prepared: Prepared) -> loop.Start:
  """Makes the program of the states before round 1."""
  with _refusing(prepared, "its start reads the rows of all clients"):
    return loop.Start(
      prepared.build,
      prepared.model,
      prepared.spec,
      prepared.device_data.data.train,
      prepared.keys,
      prepared.numbers,
      prepared.map_seeds,
    )


def _refusing(p: Prepared, why: str) -> contextlib.AbstractContextManager[None]:
  """Refuses a method that reads rows which stay on the host."""
  if not isinstance(p.device_data, WindowedData):
    return contextlib.nullcontext()
  label = p.federation.options.data_on.label
  return refusing(label, f"{p.method.entry.label}: {why}")


def _start_shapes(prepared: Prepared, start: loop.Start) -> tuple[PyTree, ...]:
  return prepared.device_data.data.train, start.drawn_shapes(), prepared.numbers


def state_shapes(prepared: Prepared) -> PyTree:
  """Finds the shapes and dtypes of a run's states without computing them.

  Args:
    prepared: the run.

  Returns:
    A pytree of ``jax.ShapeDtypeStruct`` with leaves [rows, ...].
  """
  return _shapes(prepared, _start(prepared))


def _shapes(prepared: Prepared, start: loop.Start) -> PyTree:
  """The shapes of what ``_start`` gives.

  They carry the sharding of the real states, so that the programs accept these
  without moving them. It is that of the keys, but for tables that are shared
  out over processes.
  """
  shapes = start.program.eval_shape(*_start_shapes(prepared, start))
  return jax.tree.map(
    lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
    shapes,
    sharding.of_states(shapes, prepared.mesh, prepared.keys.model.sharding),
  )


def _places(shapes: PyTree) -> PyTree:
  return jax.tree.map(lambda leaf: leaf.sharding, shapes)


def place_on_devices(states: PyTree, shapes: PyTree) -> PyTree:
  """Places states that were read from a file on the devices.

  Args:
    states: leaves [rows, ...] on the host, see ``checkpoint.load_latest``.
    shapes: their shapes, from ``state_shapes``.
  """
  return sharding.place_states(states, _places(shapes))


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

#: A lock for every program that is the same in several runs.
_SHARED: dict[bytes, threading.Lock] = collections.defaultdict(threading.Lock)


def _compile_once(
  lowered: jax.stages.Lowered, options: Any = None
) -> jax.stages.Compiled:
  """Compiles a program that another run may be compiling at this moment.

  Methods with the same state have the same start and evaluation. The second
  run waits, and finds the program in JAX's cache.
  """
  text = hashlib.sha256(lowered.as_text().encode()).digest()
  with _SHARED[text]:
    return lowered.compile(options)


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
  return loop.over_seeds(evaluate_one, p.map_seeds)(states, keys.evaluation, numbers)


def _evaluate_one(
  p: Prepared, map_clients: MapClients, data: Any, state: Any, key: Any, values: Any
) -> Any:
  """``evaluate_all`` of one row."""
  algorithm = loop.with_frozen(p.build, data.train)(values)
  model = roles.bind_frozen(p.model, data.train.frozen)
  counts = evaluate.make_evaluate(algorithm, model, p.protocols, map_clients)(
    data, state, key
  )
  if not p.measures:
    return counts, {}
  return counts, evaluate.make_measures(algorithm, model, p.measures, map_clients)(
    data, state, key
  )


def make_evaluation(p: Prepared) -> Callable[..., Any]:
  """Makes (states, keys, numbers) -> what ``evaluate_all`` returns.

  Args:
    p: the run. It is compiled at the first call.
  """
  if isinstance(p.device_data, WindowedData):
    windowed = WindowedEvaluation(
      functools.partial(_evaluate_one, p), p.device_data, p.map_seeds
    )
    return lambda states, keys, numbers: windowed(
      p.map_clients, states, keys.evaluation, numbers
    )
  program = jax.jit(functools.partial(evaluate_all, p))
  return lambda *inputs: program(p.device_data.data, *inputs)


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
    data, mesh = p.device_data.data, p.mesh
    platform = sharding.platform(mesh)
    compiling.leave_frames_out(platform)
    self._start = start = _start(p)  # traced once, for the shapes and for its program
    self.shapes = shapes = _shapes(p, start)
    where = _places(shapes)
    assert p.options.rounds is not None
    self.rounds: int = p.options.rounds  #: rounds of the whole run
    # The host of every process reads what all of them have computed.
    replicate: dict[str, Any] = {}
    if sharding.spans_processes(mesh):
      replicate["out_shardings"] = sharding.replicated(mesh)
    with ThreadPoolExecutor() as pool:
      with _TRACING:
        # First: a caller's own measure may fail, before minutes of compiling.
        evaluation = None
        if not isinstance(p.device_data, WindowedData):
          evaluation = pool.submit(
            _compile_once,
            jax.jit(functools.partial(evaluate_all, p), **replicate).lower(
              data, shapes, p.keys, p.numbers
            ),
          )
        run = loop.make_run_rounds(
          p.build,
          p.participation,
          min(p.options.eval_every, self.rounds),
          p.map_seeds,
          mesh,
          where,
        )
        zero = jnp.int32(0)
        with _refusing(p, "a round reads rows of clients that do not take part in it"):
          lowered = run.lower(shapes, data.train, p.keys, p.numbers, zero, zero)
        self._log = lowered.out_info[1]
        rounds = pool.submit(lowered.compile, compiling.options(platform))
        start_states = jax.jit(start.program, out_shardings=where).lower(
          *_start_shapes(p, start)
        )
      self._init = _compile_once(start_states, compiling.start_options(platform))
      self._run = rounds.result()
      self._evaluate = None if evaluation is None else evaluation.result()
    if self._evaluate is None:
      self._evaluate_in_windows = make_evaluation(p)
    algorithm = p.algorithm
    self._membership = None
    if algorithm.membership is not None:
      self._membership = (
        jax.jit(jax.vmap(algorithm.membership), **replicate).lower(shapes).compile()
      )
    #: K, the number of groups; None if the algorithm does not group clients
    self.num_groups: int | None = None
    if algorithm.membership is not None:
      self.num_groups = p.spec.num_clients
      if algorithm.global_params is not None:
        models = jax.eval_shape(jax.vmap(algorithm.global_params), shapes)
        self.num_groups = jax.tree.leaves(models)[0].shape[1]
    processes.meet("compiled")

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
    return self._init(p.device_data.data.train, self._start.drawn(), p.numbers)

  def place(self, states: PyTree) -> Any:
    """See ``place_on_devices``."""
    return place_on_devices(states, self.shapes)

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
    p.device_data.move(start)
    result = self._run(
      states,
      p.device_data.data.train,
      p.keys,
      p.numbers,
      jnp.int32(start),
      jnp.int32(count),
    )
    p.device_data.read_ahead()  # while the rounds run
    return result

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
    result: np.ndarray | None = jax.device_get(self._membership(states))
    return result

  @property
  def executables(self) -> dict[str, Any]:
    """The compiled programs ``start``, ``rounds`` and ``evaluation``.

    There is no ``evaluation`` of rows on the host, which is compiled in parts.
    """
    programs = {"start": self._init, "rounds": self._run, "evaluation": self._evaluate}
    return {name: program for name, program in programs.items() if program is not None}

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
