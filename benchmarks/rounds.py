"""The rounds of a run, compiled for all devices, to be timed one by one."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp

from benchmarks import timing
from fedjax_alg import base, data, models
from fedjax_alg.engine import clients, loop, sharding
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation
from fedjax_alg.runs import methods


class Rounds:
  """Some rounds of one algorithm, and the states after those run so far."""

  def __init__(
    self,
    fed: data.Federation,
    algorithm: str,
    overrides: dict[str, Any],
    cohort: int,
    seed: int,
    rounds: int,
    model: str,
    l2: float = 0.0,
  ):
    """Compiles them.

    Args:
      fed: the clients.
      algorithm: its name.
      overrides: hyper-parameters that are not the defaults.
      cohort: participants of a round.
      seed: of the run.
      rounds: how many are run at once.
      model: its text, such as mlp:128.
      l2: coefficient of its L2 term.
    """
    mesh = sharding.clients_mesh()
    shape = cast("tuple[int, ...]", fed.example_shape)
    self.model = models.as_model(model, shape, fed.num_classes, l2=l2)
    method = methods.with_keywords(methods.method_of(algorithm), overrides)
    self.hparams, self._count = method.hparams, jnp.int32(rounds)
    self.mesh = mesh
    self.mode = clients.default_mode(
      sharding.platform(mesh),
      self.model.flops,
      cohort,
      getattr(self.hparams, "batch_size", 1),
    )
    self.map_clients = clients.ClientMap(self.mode, mesh=mesh)
    build = method.builder(self.model, self.map_clients)
    self.train, *self._more = sharding.replicate(
      (
        fed.data.train,
        jax.tree.map(lambda key: key[None], run_keys(seed)),
        method.numbers([method], 1),
      ),
      mesh,
    )
    spec = base.FedSpec(fed.num_clients, cohort, fed.num_classes, shape)
    self.state = sharding.replicate(
      jax.jit(functools.partial(loop.initial_states, build, self.model, spec))(
        self.train, *self._more
      ),
      mesh,
    )
    self._program, self.compile_s = timing.compile_program(
      loop.make_run_rounds(build, Participation(cohort), rounds, mesh=mesh),
      self.state,
      self.train,
      *self._more,
      jnp.int32(0),
      self._count,
    )

  def time_rounds(self, start: int) -> float:
    """Runs the rounds from ``start`` on; returns the seconds."""
    (self.state, _), seconds = timing.time_call(
      self._program, self.state, self.train, *self._more, jnp.int32(start), self._count
    )
    return seconds
