"""The parameters of the best evaluated round of a run, seed by seed."""

from typing import Any, NamedTuple
import warnings

import jax
import numpy as np

from fedjax_alg import metrics
from fedjax_alg.base import Params
from fedjax_alg.engine import evaluate
from fedjax_alg.errors import OptionError, check_one_of
from fedjax_alg.runs import host_tables
from fedjax_alg.runs.plan import Plan
from fedjax_alg.runs.play import Step


class BestRound(NamedTuple):
  """The best evaluated round of each of N seeds."""

  protocol: str  #: by which rounds were compared
  metric: str
  rounds: np.ndarray  #: [N] int, the first of the best rounds
  values: np.ndarray  #: [N] float64
  #: the K global models after these rounds, leaves [N, K, ...], as of
  #: ``RunResult.global_params``
  params: Params


class KeepBest:
  """A callback that copies what a run has to keep of its best round."""

  def __init__(self, choice: Any, plan: Plan):
    """Makes the callback.

    Args:
      choice: True for ``validation``, a protocol, or PROTOCOL:METRIC.
      plan: the run.

    Raises:
      OptionError: the protocol is not evaluated, or it has no such metric.
    """
    text = "validation" if choice is True else choice
    if not isinstance(text, str):
      raise OptionError(f"`keep_best`={choice!r}: must be PROTOCOL or PROTOCOL:METRIC")
    self.protocol, _, self.metric = text.partition(":")
    check_one_of(
      f"`keep_best`={text}: {self.protocol} is not evaluated",
      self.protocol,
      plan.run.eval_protocols,
    )
    if plan.task is not None:
      columns = plan.task.metrics.columns
      self.metric = self.metric or plan.task.main
      check_one_of(
        f"`keep_best`={text}: {self.metric} is no metric", self.metric, columns
      )
    if not evaluate.is_honest(self.protocol):
      warnings.warn(
        f"the best round is chosen by {self.protocol}, on test data: its value is "
        "optimistic (hold clients out with validation_clients and choose by "
        "validation)",
        stacklevel=4,
      )
    self._best: dict[int, tuple[float, int, Any]] = {}

  def __call__(self, step: Step) -> None:
    of_protocol = step.metrics[self.protocol]
    self.metric = self.metric or next(iter(of_protocol))
    sign = metrics.sign(self.metric)
    states = host_tables.absent(step.states)
    for row, value in enumerate(of_protocol[self.metric].tolist()):
      best = self._best.get(row)
      if best is None or np.isnan(best[0]) or sign * value > sign * best[0]:
        state = jax.device_get(jax.tree.map(lambda leaf, row=row: leaf[row], states))
        self._best[row] = value, step.round, state

  def best(self, algorithm: Any) -> BestRound:
    """The best round of every seed.

    Args:
      algorithm: the algorithm of the run.

    Raises:
      OptionError: it has no global model.
    """
    if algorithm.global_params is None:
      raise OptionError("`keep_best`: the method has no global model")
    values, rounds, states = zip(*(self._best[row] for row in sorted(self._best)))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    params = jax.device_get(jax.vmap(algorithm.global_params)(stacked))
    return BestRound(
      self.protocol, self.metric, np.array(rounds), np.array(values), params
    )
