"""The parameters of the best evaluated round of a run, seed by seed."""

from collections.abc import Sequence
from typing import Any, NamedTuple
import warnings

import jax
import numpy as np

from fedjax_alg import metrics, tasks
from fedjax_alg.base import Params
from fedjax_alg.engine import evaluate
from fedjax_alg.errors import OptionError, check_one_of
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import host_tables
from fedjax_alg.runs.plan import Plan
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.sinks import Sink


class BestRound(NamedTuple):
  """The best evaluated round of each of N seeds."""

  protocol: str  #: by which rounds were compared
  metric: str
  rounds: np.ndarray  #: [N] int, the first of the best rounds
  values: np.ndarray  #: [N] float64
  #: the K global models after these rounds, leaves [N, K, ...], as of
  #: ``RunResult.global_params``
  params: Params


class KeepBest(Sink):
  """Copies the global models of the best round of a run."""

  def __init__(self, choice: Any, plan: Plan):
    """Makes the sink.

    Args:
      choice: True for ``validation``, a protocol, or PROTOCOL:METRIC.
      plan: the run.

    Raises:
      OptionError: the protocol is not evaluated, or it has no such metric.
    """
    text = "validation" if choice is True else choice
    if not isinstance(text, str):
      raise OptionError(f"`keep_best`={choice!r}: must be PROTOCOL or PROTOCOL:METRIC")
    self._label = f"`keep_best`={text}"
    self.protocol, _, self.metric = text.partition(":")
    self._check(plan.run.eval_protocols, plan.task)
    if not evaluate.is_honest(self.protocol):
      warnings.warn(
        f"the best round is chosen by {self.protocol}, on test data: its value is "
        "optimistic (hold clients out with validation_clients and choose by "
        "validation)",
        stacklevel=4,
      )
    self._best: dict[int, tuple[float, int, Params]] = {}

  def _check(self, protocols: Sequence[str], task: tasks.Task | None) -> None:
    """Checks that the protocol is evaluated, and the metric, if the task is known."""
    check_one_of(
      f"{self._label}: {self.protocol} is not evaluated", self.protocol, protocols
    )
    if task is not None:
      self.metric = self.metric or task.main
      check_one_of(
        f"{self._label}: {self.metric} is no metric", self.metric, task.metrics.columns
      )

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    """Checks that the method has the models and the protocol (``Sink.start``)."""
    p = programs.prepared
    self._global_params = p.algorithm.global_params
    if self._global_params is None:
      raise OptionError(f"{self._label}: {p.method.name} has no global model")
    self._check(p.protocols, tasks.of(p.model))

  def __call__(self, step: Step) -> None:
    sign, values = metrics.sign(self.metric), step.metrics[self.protocol][self.metric]
    better = [
      row
      for row, value in enumerate(values.tolist())
      if (best := self._best.get(row)) is None
      or np.isnan(best[0])
      or sign * value > sign * best[0]
    ]
    if not better:
      return
    assert self._global_params is not None
    models = jax.vmap(self._global_params)(host_tables.absent(step.states))
    for row in better:
      params = jax.device_get(jax.tree.map(lambda leaf, row=row: leaf[row], models))
      self._best[row] = float(values[row]), step.round, params

  def best(self) -> BestRound:
    """The best round of every seed."""
    values, rounds, params = zip(*(self._best[row] for row in sorted(self._best)))
    return BestRound(
      self.protocol,
      self.metric,
      np.array(rounds),
      np.array(values),
      jax.tree.map(lambda *leaves: np.stack(leaves), *params),
    )
