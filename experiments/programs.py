"""The compiled programs of a run: start, rounds, evaluation."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp

from experiments import config as config_lib
from experiments import results, setting as setting_lib
from fedjax_alg import metrics
from fedjax_alg.engine import evaluate, loop, sharding


class Programs:
  """The compiled programs of a run, and how long compiling took."""

  def __init__(self, config: config_lib.Config, setting: setting_lib.Setting):
    began = time.monotonic()
    self.config, self.setting = config, setting
    s = setting
    start = functools.partial(
        loop.initial_states, s.algorithm, s.model, s.spec,
        map_seeds=s.map_seeds)
    self._init = jax.jit(start, out_shardings=sharding.replicated(s.mesh)
                         ).lower(s.data.train, s.keys).compile()
    shapes = jax.eval_shape(start, s.data.train, s.keys)
    self.protocols = evaluate.supported_protocols(
        s.algorithm, config.eval_protocols)
    if not self.protocols:
      raise config_lib.UsageError(
          f"--eval_protocols={','.join(config.eval_protocols)}: "
          f"{config.algorithm} has no global model, only local can be given")
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
    self.shapes = shapes
    self.compile_s = time.monotonic() - began

  @property
  def server(self) -> dict[str, Any]:
    """Shapes of ``RoundAux.server`` in the log of ``play``."""
    return self._log.aux.server

  def initial(self) -> Any:
    """States before the first round."""
    return self._init(self.setting.data.train, self.setting.keys)

  def place(self, states: Any) -> Any:
    """States read from a file, laid out as the program left them."""
    return jax.tree.map(
        lambda leaf, shape: jax.device_put(leaf, shape.sharding), states,
        self.shapes)

  def play(self, states: Any, start: int, count: int) -> Any:
    """(states, RunLog) after ``count`` rounds from round ``start`` on."""
    s = self.setting
    return self._run(states, s.data.train, s.keys, jnp.int32(start),
                     jnp.int32(count))

  def count(self, states: Any) -> dict[str, metrics.Counts]:
    """protocol -> counts, leaves [N seeds, ...], on the host."""
    s = self.setting
    counts = jax.device_get(self._evaluate(s.data, states, s.keys))
    return {protocol: counts[protocol] for protocol in self.protocols}

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
      "protocols": list(programs.protocols),
      "data_mb": round(data_mb, 1), "state_mb": round(state_mb, 2),
      "program_mb": round(programs.memory_mb(), 1),
      "process_peak_mb": results.peak_memory_mb(),
      "compile_s": round(programs.compile_s, 1)}
  for name, value in facts.items():
    print(f"{name:18} {value}")
  for name, leaf in zip(loop.leaf_names(programs.shapes),
                        jax.tree.leaves(programs.shapes)):
    print(f"{'state ' + name:34} {leaf.dtype}{list(leaf.shape)}")
