"""The compiled programs of a run: start, rounds, evaluation."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.cli import config as config_lib
from experiments import drift, setting as setting_lib
from fedjax_alg.records import summary as results
from fedjax_alg import metrics
from fedjax_alg.engine import evaluate, loop, sharding


class Programs:
  """The compiled programs of a run, and how long compiling took."""

  def __init__(self, config: config_lib.Config, setting: setting_lib.Setting):
    began = time.monotonic()
    self.config, self.setting = config, setting
    s = setting
    self._drift = drift.Drift(config, setting)
    start = functools.partial(
        loop.initial_states, s.algorithm, s.model, s.spec,
        map_seeds=s.map_seeds)
    self._init = jax.jit(start, out_shardings=sharding.replicated(s.mesh)
                         ).lower(s.data.train, s.keys).compile()
    shapes = jax.eval_shape(start, s.data.train, s.keys)
    self.protocols = evaluate.supported_protocols(
        s.algorithm, config.eval_protocols)
    if not self.protocols:
      lacks = "no global model, only local (and newcomers) can be given"
      if s.algorithm.global_params is not None:
        lacks = {"assigned": "no groups of clients",
                 "copy": "no copy of the global model at each client"}[
                     config.eval_protocols[0]]
      raise config_lib.UsageError(
          f"--eval_protocols={','.join(config.eval_protocols)}: "
          f"{config.algorithm} has {lacks}")
    one = evaluate.make_evaluate(
        s.algorithm, s.model, self.protocols, s.map_clients)

    def evaluate_all(data, states, keys):
      return loop.over_seeds(
          lambda state, key: one(data, state, key), s.map_seeds)(
              states, keys.evaluation)

    every = min(config.eval_every, config.rounds)
    run = loop.make_run_rounds(
        s.algorithm, s.spec.cohort_size, every, s.map_seeds, s.mesh)
    zero = jnp.int32(0)
    # Placed like the real states, so that the program takes them as they are.
    shapes = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=where),
        shapes, self._init.output_shardings)
    lowered = run.lower(shapes, s.data.train, s.keys, zero, zero)
    self._log = lowered.out_info[1]
    self._run = lowered.compile()
    self._evaluate = jax.jit(evaluate_all).lower(
        s.data, shapes, s.keys).compile()
    self._membership = None
    if s.algorithm.membership is not None:
      self._membership = jax.jit(jax.vmap(s.algorithm.membership)).lower(
          shapes).compile()
    self.shapes = shapes
    self.compile_s = time.monotonic() - began

  @property
  def server(self) -> dict[str, Any]:
    """Shapes of ``RoundAux.server`` in the log of ``play``."""
    return self._log.aux.server

  def initial(self) -> Any:
    """States before the first round."""
    self._drift.move(0)
    return self._init(self._drift.data.train, self.setting.keys)

  def place(self, states: Any) -> Any:
    """States read from a file, laid out as the program left them."""
    return jax.tree.map(
        lambda leaf, shape: jax.device_put(leaf, shape.sharding), states,
        self.shapes)

  @property
  def label_histogram(self) -> np.ndarray:
    """[C, L] training examples of the last ``play``."""
    return self._drift.label_histogram

  def stretch(self, done: int) -> int:
    """Rounds to play after ``done`` rounds, up to the next evaluation.

    Evaluations stand at multiples of --eval_every, also after a resume, before
    every change of the data and at the end.
    """
    config = self.config
    return min(config.eval_every - done % config.eval_every,
               self._drift.rounds_left(done), config.rounds - done)

  def play(self, states: Any, start: int, count: int) -> Any:
    """(states, RunLog) after ``count`` rounds from round ``start`` on.

    With --shift they train on the data of round ``start``, and what is
    counted next is counted on the same.
    """
    self._drift.move(start)
    s = self.setting
    return self._run(states, self._drift.data.train, s.keys, jnp.int32(start),
                     jnp.int32(count))

  def count(self, states: Any) -> dict[str, metrics.Counts]:
    """protocol -> counts, leaves [N seeds, ...], on the host."""
    s = self.setting
    counts = jax.device_get(
        self._evaluate(self._drift.data, states, s.keys))
    return {protocol: counts[protocol] for protocol in self.protocols}

  @property
  def num_groups(self) -> int | None:
    """K, groups of clients; None where clients have no groups."""
    s = self.setting
    if self._membership is None:
      return None
    if s.algorithm.global_params is None:
      return s.spec.num_clients
    models = jax.eval_shape(jax.vmap(s.algorithm.global_params), self.shapes)
    return jax.tree.leaves(models)[0].shape[1]

  def membership(self, states: Any) -> np.ndarray:
    """[N seeds, C] group of each client, -1 for none."""
    assert self._membership is not None
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


def print_plan(
    config: config_lib.Config, setting: setting_lib.Setting,
    programs: Programs) -> None:
  """What --dry_run shows."""
  data_mb = sum(leaf.nbytes for leaf in jax.tree.leaves(setting.data)) / 2**20
  state_mb = sum(leaf.size * leaf.dtype.itemsize
                 for leaf in jax.tree.leaves(programs.shapes)) / 2 ** 20
  facts = {
      "algorithm": config.algorithm, **config.hparams, "dataset":
      config.dataset, "partition": setting.partition.name, **setting.plan,
      "rounds": config.rounds, "seeds": config.seeds,
      "evaluations": -(-config.rounds // config.eval_every),
      "protocols": list(programs.protocols), "shift": config.shift,
      "data_mb": round(data_mb, 1), "state_mb": round(state_mb, 2),
      "program_mb": round(programs.memory_mb(), 1),
      "process_peak_mb": results.peak_memory_mb(),
      "compile_s": round(programs.compile_s, 1)}
  for name, value in facts.items():
    print(f"{name:18} {value}")
  for name, leaf in zip(loop.leaf_names(programs.shapes),
                        jax.tree.leaves(programs.shapes)):
    print(f"{'state ' + name:34} {leaf.dtype}{list(leaf.shape)}")
