"""The compiled programs of a run: start, rounds, evaluation."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import metrics
from fedjax_alg.base import RoundAux
from fedjax_alg.engine import evaluate, loop, sharding
from fedjax_alg.runs.prepare import Prepared


def _start(prepared: Prepared) -> Any:
  """(data, keys, numbers) -> the states before round 1."""
  return functools.partial(
      loop.initial_states, prepared.build, prepared.model, prepared.spec,
      map_seeds=prepared.map_seeds)


def state_shapes(prepared: Prepared) -> Any:
  """Shapes and dtypes of a run's states, leaves [rows, ...]."""
  return jax.eval_shape(_start(prepared), prepared.placed.data.train,
                        prepared.keys, prepared.numbers)


class Programs:
  """The compiled programs of a run, and how long compiling took.

  Their rows are those of ``Prepared``: settings times seeds.
  """

  def __init__(self, prepared: Prepared):
    began = time.monotonic()
    self.prepared = p = prepared
    data, mesh = p.placed.data, p.mesh
    self._init = jax.jit(
        _start(p), out_shardings=sharding.replicated(mesh)).lower(
            data.train, p.keys, p.numbers).compile()
    # Placed like the real states, so that the program takes them as they are.
    self.shapes = shapes = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=where),
        state_shapes(p), self._init.output_shardings)
    assert p.options.rounds is not None
    self.rounds: int = p.options.rounds  #: of the whole run
    # First: a caller's own measure may fail, before minutes of compiling.
    evaluation = jax.jit(self._evaluate_all).lower(
        data, shapes, p.keys, p.numbers)
    run = loop.make_run_rounds(
        p.build, p.spec.cohort_size,
        min(p.options.eval_every, self.rounds), p.map_seeds, mesh)
    zero = jnp.int32(0)
    lowered = run.lower(shapes, data.train, p.keys, p.numbers, zero, zero)
    self._log = lowered.out_info[1]
    self._run = lowered.compile()
    self._evaluate = evaluation.compile()
    algorithm = p.algorithm
    self._membership = None
    if algorithm.membership is not None:
      self._membership = jax.jit(jax.vmap(algorithm.membership)).lower(
          shapes).compile()
    #: K, groups of clients; None where clients have no groups
    self.num_groups: int | None = None
    if algorithm.membership is not None:
      self.num_groups = p.spec.num_clients
      if algorithm.global_params is not None:
        models = jax.eval_shape(jax.vmap(algorithm.global_params), shapes)
        self.num_groups = jax.tree.leaves(models)[0].shape[1]
    self.compile_s = time.monotonic() - began

  def _evaluate_all(self, data, states, keys, numbers):
    p = self.prepared

    def one(state, key, values):
      algorithm = p.build(values)
      counts = evaluate.make_evaluate(
          algorithm, p.model, p.protocols, p.map_clients)(data, state, key)
      if not p.measures:
        return counts, {}
      return counts, evaluate.make_measures(
          algorithm, p.model, p.measures, p.map_clients)(data, state)

    return loop.over_seeds(one, p.map_seeds)(
        states, keys.evaluation, numbers)

  @property
  def server(self) -> dict[str, Any]:
    """Shapes of ``RoundAux.server`` in the log of ``play``."""
    return self._log.aux.server

  @property
  def empty_aux(self) -> RoundAux:
    """What no round reports, leaves [rows, 0, ...]."""
    return jax.tree.map(
        lambda leaf: np.zeros((leaf.shape[0], 0, *leaf.shape[2:]), leaf.dtype),
        self._log.aux)

  def initial(self) -> Any:
    """States before the first round."""
    p = self.prepared
    p.placed.move(0)
    return self._init(p.placed.data.train, p.keys, p.numbers)

  def place(self, states: Any) -> Any:
    """States read from a file, laid out as the program left them."""
    return jax.tree.map(
        lambda leaf, shape: jax.device_put(leaf, shape.sharding), states,
        self.shapes)

  @property
  def label_histogram(self) -> np.ndarray:
    """[C, L] training examples of the last ``play``."""
    return self.prepared.placed.label_histogram

  def rounds_to_evaluation(self, done: int) -> int:
    """Rounds to play after ``done`` rounds, up to the next evaluation.

    Evaluations stand at multiples of ``eval_every``, also after a resume,
    before every change of the data and at the end.
    """
    every, left = self.prepared.options.eval_every, self.rounds - done
    event = self.prepared.placed.rounds_left(done)
    return min(every - done % every, left, left if event is None else event)

  def play(self, states: Any, start: int, count: int) -> Any:
    """(states, RunLog) after ``count`` rounds from round ``start`` on.

    Where the clients' data change they train on the data of round ``start``,
    and the next evaluation reads the same. ``states`` is donated.
    """
    p = self.prepared
    p.placed.move(start)
    return self._run(states, p.placed.data.train, p.keys, p.numbers,
                     jnp.int32(start), jnp.int32(count))

  def evaluate(
      self, states: Any
  ) -> tuple[dict[str, metrics.Counts], dict[str, dict[str, np.ndarray]]]:
    """Counts by protocol and sums by measure, leaves [rows, ...], on the host.
    """
    p = self.prepared
    counts, sums = jax.device_get(self._evaluate(
        p.placed.data, states, p.keys, p.numbers))
    return {protocol: counts[protocol] for protocol in p.protocols}, sums

  def membership(self, states: Any) -> np.ndarray | None:
    """[rows, C] group of each client, -1 for none; None without groups."""
    if self._membership is None:
      return None
    return jax.device_get(self._membership(states))

  def memory_mb(self) -> float:
    """What the largest program needs beside this process, by its compiler."""
    sizes = []
    for program in (self._init, self._run, self._evaluate):
      stats = program.memory_analysis()
      if stats is not None:
        sizes.append(stats.temp_size_in_bytes + stats.output_size_in_bytes
                     + stats.argument_size_in_bytes)
    return max(sizes, default=0) / 2 ** 20
