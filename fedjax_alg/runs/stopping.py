"""Ends a run early: at a value (``stop_at``) or at a standstill (``patience``).

A rule is decided for each seed by that seed's own evaluations, in whatever
company it runs, and it is decided once: a seed that reached the value and fell
back has still reached it. The run ends when its last seed has been decided.
The rules read nothing but the table of metrics, so an interrupted run that is
resumed ends in the same round.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_alg.engine import evaluate
from fedjax_alg.errors import OptionError, did_you_mean
from fedjax_alg.metrics import names
from fedjax_alg.records.tables import Row
from fedjax_alg.records.tables import curves as curves_of
from fedjax_alg.tasks import Task
from fedjax_alg.typing import Facts

#: Value of ``stopped`` for a run that ran all its rounds.
ALL_ROUNDS = "rounds"
#: Value of ``stopped`` for a run that a callback has ended.
BY_CALLBACK = "callback"


class StopRule(NamedTuple):
  """A rule as it was given."""

  name: str  #: "stop_at" or "patience"
  protocol: str
  metric: str
  number: float  #: the value to reach, or the number of evaluations
  text: str  #: PROTOCOL:METRIC:NUMBER

  @property
  def label(self) -> str:
    """The rule as error messages show it."""
    return f"`{self.name}`={self.text}"


def is_over(summary: Facts, config: Facts, rounds: int) -> bool:
  """Whether a run with results has all rounds that are asked for, or ended early.

  One that a callback has ended goes on if more rounds are asked for than before. A rule
  decides the same for any number of rounds, except after a last round that was
  evaluated for being the last.

  Args:
    summary: summary.json of the run.
    config: its config.json.
    rounds: the rounds that are asked for.
  """
  done, before = summary["cost"]["rounds"], config["run"]["rounds"]
  stopped = summary.get("stopped", ALL_ROUNDS)
  if done >= rounds or stopped == ALL_ROUNDS:
    return bool(done == rounds)
  off_schedule = done == before and done % config["run"]["eval_every"]
  return not (rounds > before and (stopped == BY_CALLBACK or off_schedule))


def parse_rule(name: str, text: str) -> StopRule:
  """Reads a rule, and checks all that can be checked without a run.

  Args:
    name: "stop_at" or "patience".
    text: PROTOCOL:METRIC:VALUE, or PROTOCOL:METRIC:EVALUATIONS.

  Returns:
    The rule.

  Raises:
    OptionError: the text is not of this form, or a part of it is unknown or
      out of range.
  """
  flag, last = f"`{name}`={text}", ("VALUE" if name == "stop_at" else "EVALUATIONS")
  parts = text.split(":")
  if len(parts) != 3:
    raise OptionError(f"{flag}: must be PROTOCOL:METRIC:{last}")
  protocol, metric, word = parts
  protocols = (
    *evaluate.PROTOCOLS,
    *(f"{p}_mean" for p in evaluate.PER_MODEL),
    "kinds_worst",
  )
  for kind, value, allowed, is_one in (
    ("protocol", protocol, protocols, protocol in protocols),
    ("metric", metric, names.metric_names(), names.is_known(metric)),
  ):
    if not is_one:
      raise OptionError(
        f"{flag}: unknown {kind} {value}"
        f"{did_you_mean(value, allowed)} (one of "
        f"{', '.join(allowed)})"
      )
  if names.is_of_clients(metric) and protocol not in evaluate.PER_CLIENT:
    raise OptionError(
      f"{flag}: {protocol} has no {metric} (only {', '.join(evaluate.PER_CLIENT)} have)"
    )
  try:
    number = float(word)
  except ValueError:
    number = np.nan
  if name == "patience":
    if not (number >= 1 and number.is_integer()):
      raise OptionError(f"{flag}: EVALUATIONS must be a whole number, at least 1")
  else:
    _check_value(flag, metric, number, "VALUE ")
  return StopRule(name, protocol, metric, number, text)


def _check_value(label: str, metric: str, number: float, prefix: str = "") -> None:
  """Checks that a metric can have a value.

  Args:
    label: the option and its value, as the message shows them.
    metric: the metric.
    number: the value.
    prefix: what the message calls it.

  Raises:
    OptionError: it cannot.
  """
  meant = names.metric(metric)
  if meant.share and not 0 < number <= 1:
    raise OptionError(f"{label}: {prefix}must lie in (0, 1], {metric} is a share")
  if not np.isfinite(number) or not meant.higher and number <= 0:
    raise OptionError(
      f"{label}: {prefix}must be a number" + ("" if meant.higher else " above 0")
    )


def rules(stop_at: str | None, patience: str | None) -> list[StopRule]:
  """Reads the rules of a run; see ``parse_rule``.

  Args:
    stop_at: option of this name; None for no such rule.
    patience: option of this name; None for no such rule.

  Returns:
    At most two rules.
  """
  return [
    parse_rule(name, text)
    for name, text in (("stop_at", stop_at), ("patience", patience))
    if text is not None
  ]


def check_evaluated(
  stopping_rules: Sequence[StopRule],
  protocols: Sequence[str],
  num_models: int | None = None,
  task: Task | None = None,
) -> None:
  """Checks that the protocols and the metrics of the rules are evaluated.

  Args:
    stopping_rules: the rules.
    protocols: the protocols that are evaluated.
    num_models: K, the number of global models; None if it is not known yet.
    task: the task; None if it is not known yet.

  Raises:
    OptionError: a protocol or a metric is not evaluated, or there is one model
      only and so no mean over models.
  """
  for rule in stopping_rules:
    if task is not None and rule.metric not in task.metrics.columns:
      raise OptionError(
        f"{rule.label}: the task {task.name} has no {rule.metric} (one of "
        f"{', '.join(task.metrics.columns)})"
      )
    if rule.protocol.removesuffix("_mean").removesuffix("_worst") not in protocols:
      has = f"`eval_protocols`={','.join(protocols)}"
      advice = (
        f"; give `validation_clients`=N and {has},validation"
        if rule.protocol == "validation"
        else ""
      )
      raise OptionError(
        f"{rule.label}: {rule.protocol} is not evaluated ({has}){advice}"
      )
    if rule.protocol.endswith("_mean") and num_models == 1:
      raise OptionError(
        f"{rule.label}: there is one global model, so no mean over several "
        f"(use {rule.protocol.removesuffix('_mean')})"
      )


def caution_test_data(stopping_rules: Sequence[StopRule]) -> str:
  """Describes what is wrong with stopping by test data.

  Args:
    stopping_rules: the rules.

  Returns:
    A warning for a rule that reads test data; otherwise an empty text.
  """
  for rule in stopping_rules:
    if not evaluate.is_honest(rule.protocol):
      return (
        f"{rule.label}: {rule.protocol} reads test data, so the numbers "
        "of the round in which the run ends are optimistic (hold clients "
        "out with `validation_clients` and stop by validation)"
      )
  return ""


class Stopping:
  """Decides after every evaluation whether a run of N seeds has ended."""

  def __init__(self, stopping_rules: Sequence[StopRule], rows: Sequence[Row] = ()):
    """Makes the decision for the evaluations so far.

    Args:
      stopping_rules: the rules.
      rows: rows of metrics.csv of the rounds that were run before.
    """
    self._rules = list(stopping_rules)
    self._best: dict[StopRule, np.ndarray] = {}  # [N], NaN: nothing counted yet
    self._since: dict[StopRule, np.ndarray] = {}  # [N] evaluations since the best
    self._met: dict[StopRule, np.ndarray] = {}  # [N] bool
    #: "stop_at ..." or "patience ..."; None while the run goes on
    self.reason: str | None = None
    measured = curves_of(rows)
    curves = {
      rule: measured[rule.protocol][rule.metric] for rule in stopping_rules if measured
    }
    for at in range(min((of.shape[1] for of in curves.values()), default=0)):
      self.add({rule: of[:, at] for rule, of in curves.items()})

  def add_evaluation(self, table: Mapping[str, Mapping[str, np.ndarray]]) -> str | None:
    """Takes an evaluation into account.

    Args:
      table: protocol -> metric -> [N].

    Returns:
      ``reason``.
    """
    return self.add({rule: table[rule.protocol][rule.metric] for rule in self._rules})

  def add(self, values: Mapping[StopRule, np.ndarray]) -> str | None:
    """Takes the value [N] of each rule into account; returns ``reason``."""
    for rule, value in values.items():
      sign = names.sign(rule.metric)
      now = sign * np.asarray(value, np.float64)
      best = self._best.setdefault(rule, np.full(now.shape, np.nan))
      since = self._since.setdefault(rule, np.zeros(now.shape, int))
      met = self._met.setdefault(rule, np.zeros(now.shape, bool))
      if rule.name == "stop_at":
        met |= now >= sign * rule.number  # false for NaN
      else:
        better = ~np.isnan(now) & ~(now <= best)
        # Evaluations in which nobody has been counted yet are no standstill.
        since[:] = np.where(better | np.isnan(best), 0, since + 1)
        best[better] = now[better]
        met |= since >= rule.number
      if met.all() and self.reason is None:
        self.reason = f"{rule.name} {rule.text}"
    return self.reason
