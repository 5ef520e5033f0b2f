"""Claims of a paper without a number ("A is above B"), judged by our runs.

A claim is a sentence of a paper with a function that checks it on the outcomes
of a figure. The runs of a figure share their seeds and their partition, so
methods are compared seed by seed. Consider a claim that a difference is
positive. It holds if the mean difference is ``above`` 0 by the rule of
``rule.place_gap``, it does not hold if it is ``below`` 0, and it is undecided
otherwise.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import contextlib
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import metrics

from ..reports import rule
from ..reports.rule import TIE
from . import chosen, partitions, suite

#: outcome -> one number per seed.
Measure = Callable[[suite.Outcome], np.ndarray]


class NotRun(Exception):
  """A method, panel or round that the claim needs was not run."""


class Measurement(NamedTuple):
  """One thing that was measured: its numbers, and words made of them."""

  words: str
  #: the panel, and what else tells it from other measurements
  place: tuple[str, ...] = ()
  of: str = ""  #: what the words are of, such as a pair of methods
  mean: float = math.nan  #: the one number that the words say; NaN: there is none
  ci95: float = math.nan  #: half the width of its 95 % interval; NaN: it has none
  unit: str = ""  #: of the number; "": points, or none
  #: the numbers of the runs of each method, where the words sum up these; inf: never
  values: tuple[tuple[float, ...], ...] = ()

  @property
  def is_bare(self) -> bool:
    """Whether the words are a number without a unit, and not said of what."""
    return not (self.place or self.of or self.unit or math.isnan(self.mean))

  def text(self, before: tuple[str, ...] = ()) -> str:
    """The words with what they are of, and where.

    Args:
      before: a place that has been said; what is the same at its beginning is not
        said again.
    """
    place = self.place
    while place and before and place[0] == before[0]:
      place, before = place[1:], before[1:]
    return ": ".join((*place, f"{self.of} {self.words}" if self.of else self.words))


#: What was measured for a claim, in the order of the panels.
Measurements = tuple[Measurement, ...]


def in_words(measurements: Measurements) -> str:
  """Everything that was measured.

  Examples:
    >>> percent = {"FedAvg": 89.4, "FedZO": 99.0}
    >>> in_words(
    ...   tuple(Measurement(f"{v:g} %", ("a", name)) for name, v in percent.items())
    ... )
    'a: FedAvg: 89.4 %; FedZO: 99 %'
  """
  places = ((), *(measurement.place for measurement in measurements))
  return "; ".join(
    measurement.text(place) for measurement, place in zip(measurements, places)
  )


def ends_in_words(measurements: Measurements) -> str:
  """The least and the greatest of three numbers or more; else everything."""
  if len(measurements) < 3 or any(
    math.isnan(measurement.mean) for measurement in measurements
  ):
    return in_words(measurements)
  ordered = sorted(
    measurements, key=lambda measurement: (measurement.mean, measurement.text())
  )
  return f"{ordered[0].text()} to {ordered[-1].text()}"


class Verdict(NamedTuple):
  """The result of checking a claim."""

  holds: bool | None  #: None: undecided
  measurements: Measurements

  @property
  def measured(self) -> str:
    """What was measured, in words."""
    return in_words(self.measurements)

  def with_words(self, words: str) -> "Verdict":
    """The same with the one measurement in other words."""
    (measurement,) = self.measurements
    return self._replace(measurements=(measurement._replace(words=words),))


class Statement(NamedTuple):
  """A sentence of a paper and its check."""

  paper: str
  artifact: str
  text: str
  check: Callable[[suite.Outcomes], Verdict]
  untestable: str = ""  #: why no run can test it, of ``rule.UNTESTABLE``
  #: a check that holds where ours is better than a claimed range; None: no range
  beyond: Callable[[suite.Outcomes], Verdict] | None = None


class _Seen(list[suite.Outcome]):
  """Outcomes that notes which of them a check picks."""

  def __init__(self, outcomes: Iterable[suite.Outcome]):
    super().__init__(outcomes)
    self.used: list[suite.Outcome] = []


def _note(outcomes: Iterable[suite.Outcome], used: Iterable[suite.Outcome]) -> None:
  if isinstance(outcomes, _Seen):
    outcomes.used += used


class Judgment(NamedTuple):
  """What our runs say of a claim."""

  measurements: Measurements
  verdict: str  #: one of ``rule.VERDICTS``
  reason: str = ""  #: beside it; "": nothing to say
  note: str = ""  #: what is said of all measurements, in brackets; "": nothing

  @property
  def measured(self) -> str:
    """What was measured, in words, with the note."""
    return " ".join(filter(None, (in_words(self.measurements), self.note)))


def judge_statement(claim: Statement, outcomes: suite.Outcomes) -> Judgment:
  """Checks a claim.

  Methods of which some alone have settings chosen on test data cannot be
  compared; a claim that does not hold in spite of that does not hold. Panels
  with other data than the paper's are measured, and decide nothing.
  """
  seen = _Seen(outcomes)
  try:
    holds, measurements = claim.check(seen)
  except NotRun as error:
    return Judgment((Measurement(str(error)),), rule.NOT_TESTABLE, rule.NOT_RUN)
  word = {True: rule.REACHED, False: rule.WORSE, None: rule.UNDECIDED}
  used, notes = seen.used or list(outcomes), []
  foreign = {o.cell.panel for o in used if chosen.other_data(o.cell.choices)}
  comparable = [o for o in outcomes if o.cell.panel not in foreign]
  if foreign:
    notes.append(f"(other data, not testable: {', '.join(sorted(foreign))})")
    try:
      if not comparable:  # what is said of every panel holds of none
        raise NotRun("the paper's data")
      holds, _ = claim.check(comparable)
    except NotRun:
      return Judgment(measurements, rule.NOT_TESTABLE, "other data", *notes)
    used = [o for o in used if o.cell.panel not in foreign]
  verdict, reason = word[holds], ""
  if holds is not False and _unequal(used):
    notes.append(f"(else: {word[holds]})")
    verdict, reason = rule.NOT_TESTABLE, "unequal settings"
  elif claim.untestable:
    verdict, reason = rule.NOT_TESTABLE, claim.untestable
  elif holds is False and claim.beyond and claim.beyond(comparable).holds:
    verdict, reason = rule.BETTER, "beyond the range"
  return Judgment(measurements, verdict, reason, " ".join(notes))


def tuning_of_statement(claim: Statement, outcomes: suite.Outcomes) -> str:
  """Returns how the settings of the runs that decide a claim were found.

  See ``chosen.tuning_of_several``; "" if there are none.
  """
  seen = _Seen(outcomes)
  with contextlib.suppress(NotRun):
    claim.check(seen)
  return chosen.tuning_of_several(o.cell.tuning for o in seen.used or list(outcomes))


def _unequal(outcomes: Iterable[suite.Outcome]) -> bool:
  """Whether some methods of a panel cannot be compared with the others.

  The rows of stated settings are not compared with other methods.
  """
  return any(
    len(
      {
        chosen.incomparable(o.cell.choices)
        for o in panel_outcomes
        if o.cell.protocol == suite.TUNED
      }
    )
    > 1
    for panel_outcomes in suite.by_panel(outcomes)
  )


#: The runs with the paper's settings of its own methods and its rate for all.
PAPERS_OWN = "by the paper's settings"


def by_protocol(outcomes: suite.Outcomes) -> dict[str, list[suite.Outcome]]:
  """The runs, and those with the paper's settings besides where there are any.

  What is claimed of a method is asked of either. Runs with equations as printed
  only answer numbers: no other method is run like them.
  """
  by_settings: dict[str, list[suite.Outcome]] = {suite.TUNED: [], PAPERS_OWN: []}
  for outcome in outcomes:
    if outcome.cell.protocol != suite.PRINTED:
      by_settings[
        suite.TUNED if outcome.cell.protocol == suite.TUNED else PAPERS_OWN
      ].append(outcome)
  return {words: runs for words, runs in by_settings.items() if runs} or {
    suite.TUNED: []
  }


# What is measured.


def _score(name: str, metric: str, protocol: str = "global") -> Measure:
  """Measures the number that stands for a curve; shares are in percent."""
  return lambda outcome: (
    metrics.factor(metric) * outcome.frames.scores(name, protocol, metric)
  )


#: The mean over the last ten rounds.
late = functools.partial(_score, "last_10")
#: The best evaluated round, which is chosen on test data.
best = functools.partial(_score, "best")
#: The last round.
end = functools.partial(_score, "final")


def of_rounds(
  column: str, reduce: Callable[..., object] = np.mean, last: float = math.inf
) -> Measure:
  """Measures ``reduce(values, axis=1)`` of a column of rounds.csv.

  Args:
    column: the column.
    reduce: NumPy reduction of values [seeds, rounds].
    last: leave out rounds after this one.
  """

  def measure(outcome):
    return reduce(outcome.frames.of_rounds(column, last=last), axis=1)

  return partitions.per_partition(measure)


def _curve(outcome, metric, protocol, first, last):
  """A metric in the rounds first..last, [seeds, evaluations].

  Shares are in percent.
  """
  needs_rounds([outcome], first if math.isinf(last) else last)
  curves = outcome.frames.curves(protocol, metric, first, last)
  return metrics.factor(metric) * curves


def mean_over(
  first: int, last: float, metric: str = "accuracy", protocol: str = "global"
) -> Measure:
  """Measures the mean over the rounds first..last.

  The mean over early rounds shows how fast a method is.
  """
  return partitions.per_partition(
    lambda outcome: _curve(outcome, metric, protocol, first, last).mean(1)
  )


def peak(
  first: int, last: float, metric: str = "accuracy", protocol: str = "global"
) -> Measure:
  """Measures the highest value of each run in the rounds first..last."""
  return lambda outcome: _curve(outcome, metric, protocol, first, last).max(1)


def wobble(
  metric: str = "accuracy", rounds: int = 30, protocol: str = "global"
) -> Measure:
  """Measures the standard deviation over the last ``rounds`` rounds.

  The measure raises NotRun if the first ten rounds would be among these.
  """

  def measure(outcome):
    end = outcome.frames.evaluated[-1]
    needs_rounds([outcome], rounds + 10)
    return _curve(outcome, metric, protocol, end - rounds + 1, end).std(1)

  return partitions.per_partition(measure)


def rounds_until(target: float) -> Measure:
  """Measures the first evaluated round whose accuracy is at least ``target``.

  It is inf for a seed that never reaches the target.
  """

  def measure(outcome):
    return outcome.frames.reached("global", "accuracy", target)

  return measure


# How outcomes are found, and how verdicts are combined.


def pick(outcomes: Iterable[suite.Outcome], panel: str, label: str) -> suite.Outcome:
  """The run of a method in a panel.

  Raises:
    NotRun: there is none.
  """
  for outcome in outcomes:
    if outcome.cell.panel == panel and outcome.cell.label == label:
      _note(outcomes, [outcome])
      return outcome
  raise NotRun(f"{label} is not there in panel {panel}")


def difference_of(
  outcomes: Iterable[suite.Outcome], panel: str, a: str, b: str, measure: Measure
) -> np.ndarray:
  """A method's measure less another's in a panel, run by run."""
  return measure(pick(outcomes, panel, a)) - measure(pick(outcomes, panel, b))


def others(
  outcomes: Iterable[suite.Outcome],
  panel: str,
  labels: Sequence[str],
  among: Sequence[str] | None = None,
) -> list[suite.Outcome]:
  """The other methods of a panel.

  Args:
    outcomes: the runs of a figure.
    panel: letter of the panel.
    labels: the methods to leave out.
    among: take only these; None: all.

  Raises:
    NotRun: there are no other methods.
  """
  candidates = [
    o for o in outcomes if o.cell.panel == panel and o.cell.label not in labels
  ]
  if not candidates:
    raise NotRun(f"no other method in panel {panel}")
  selection = [o for o in candidates if among is None or o.cell.label in among]
  if not selection:
    raise NotRun(f"none of {', '.join(among or ())} in panel {panel}")
  _note(outcomes, selection)
  return selection


def panels_of(outcomes: Iterable[suite.Outcome]) -> list[str]:
  """The panels that were run."""
  return sorted({o.cell.panel for o in outcomes})


def needs_rounds(outcomes: Iterable[suite.Outcome], rounds: int) -> None:
  """Raises NotRun where a run is shorter than the rounds of a claim."""
  least = min(o.frames.evaluated[-1] for o in outcomes)
  if least < rounds:
    raise NotRun(f"{least} of {rounds} rounds")


def _difference(
  spread: metrics.Estimate, digits: int = 2, unit: str = ""
) -> tuple[Measurement]:
  """A difference over the runs, as a measurement."""
  words = metrics.format_estimate(spread, digits, sign="+") + unit
  return (Measurement(words, mean=spread.mean, ci95=spread.ci95, unit=unit.strip()),)


def _gap(a, b, exact):
  """The spread of a - b over the runs, and the half-width of its interval."""
  spread = metrics.estimate_mean(
    np.atleast_1d(np.asarray(a, float) - np.asarray(b, float))
  )
  return spread, 0.0 if exact else spread.ci95


def above(
  a: object, b: object, unit: str = "", digits: int = 2, exact: bool = False
) -> Verdict:
  """Whether a > b, run by run.

  Args:
    a: [runs] or a number.
    b: [runs] or a number.
    unit: unit to show after the difference.
    digits: number of decimals of the difference.
    exact: whether the difference does not vary from run to run.
  """
  spread, ci95 = _gap(a, b, exact)
  holds = {rule.ABOVE: True, rule.UNDECIDED: None}.get(
    rule.place_gap(spread.mean, ci95), False
  )
  return Verdict(holds, _difference(spread, digits, unit))


def exceeds(gap: object, claimed: float) -> Verdict:
  """Whether a difference is above a number of ours; the difference is shown.

  Args:
    gap: [runs].
    claimed: the number.
  """
  return Verdict(above(gap, claimed).holds, above(gap, 0.0).measurements)


def margin(gap: object, claimed: float, unit: str = "", digits: int = 2) -> Verdict:
  """Whether a printed margin holds, by the registered rule; the difference is shown.

  It holds if the interval of the difference lies above 0, and contains the printed
  margin or exceeds it. It does not hold if the interval lies below either.

  Args:
    gap: [runs].
    claimed: the printed margin.
    unit: unit to show after the difference.
    digits: number of its decimals.
  """
  spread, ci95 = _gap(gap, 0.0, False)
  low, high = spread.mean - ci95, spread.mean + ci95
  holds = None
  if low > 0 and high >= claimed:
    holds = True
  elif high < max(claimed, 0.0):
    holds = False
  return Verdict(holds, _difference(spread, digits, unit))


def same(a: object, b: object, tie: float = TIE, exact: bool = False) -> Verdict:
  """Whether the interval of a - b lies within ``tie`` to either side of 0."""
  spread, ci95 = _gap(a, b, exact)
  gap = abs(spread.mean)
  holds = None
  if gap + ci95 <= tie:
    holds = True
  elif gap > max(tie, ci95) and not np.isnan(ci95):
    holds = False
  return Verdict(holds, _difference(spread))


def not_below(a: object, b: object) -> Verdict:
  """Whether nothing is lost from b to a, in points.

  However small a loss is, it is one where the interval excludes 0. Without a
  loss the interval must be narrow enough to show one.
  """
  spread, ci95 = _gap(a, b, False)
  if rule.place_gap(spread.mean, ci95) == rule.BELOW:
    holds: bool | None = False
  else:
    holds = None if rule.place_gap(spread.mean, ci95, TIE) == rule.UNDECIDED else True
  return Verdict(holds, _difference(spread))


def lies_within(values: object, low: float, high: float) -> Verdict:
  """Whether a number is between two others, with its whole interval."""
  above_low, below_high = above(values, low), above(high, values)
  return every([("", above_low), ("", below_high)])._replace(
    measurements=above(values, 0.0).measurements
  )


def votes(holds: Any, *measurements: Measurement) -> Verdict:
  """Verdict on a claim that either holds or not in each run.

  It is undecided if the claim holds in some runs only, or if there is one run.
  """
  holds = np.atleast_1d(holds)
  agreement = None
  if len(holds) > 1 and len(set(holds.tolist())) == 1:
    agreement = bool(holds[0])
  return Verdict(agreement, measurements)


def every(named_verdicts: Iterable[tuple[str, Verdict]]) -> Verdict:
  """Verdict on a claim of several parts (name, verdict).

  The claim holds if all parts hold, and does not hold if one part does not. The
  name stands before the places of the measurements; "": they stay as they are.
  """
  parts = list(named_verdicts)
  states = [v.holds for _, v in parts]
  holds = False if False in states else None if None in states else True
  return Verdict(
    holds,
    tuple(
      measurement._replace(place=(name, *measurement.place)) if name else measurement
      for name, verdict in parts
      for measurement in verdict.measurements
    ),
  )


# Claims that several papers make.


def in_panels(
  fn: Callable[..., Verdict], panels: Collection[str] | None = None
) -> Callable[..., Verdict]:
  """A check that ``fn(outcomes, panel)`` holds in every panel that was run."""

  def check(outcomes):
    letters = [p for p in panels_of(outcomes) if panels is None or p in panels]
    if not letters:
      raise NotRun(f"panel {', '.join(panels or '')} is not there")
    return every((p, fn(outcomes, p)) for p in letters)

  return check


def higher(
  a: str,
  b: str,
  measure: Measure,
  panels: Sequence[str] | None = None,
  digits: int = 2,
  exact: bool = False,
) -> Callable[..., Verdict]:
  """In every panel, method a's measure is above method b's; see ``above``."""
  return in_panels(
    lambda outcomes, p: above(
      difference_of(outcomes, p, a, b, measure), 0.0, digits=digits, exact=exact
    ),
    panels,
  )


def higher_than_all(
  labels: Sequence[str],
  measure: Measure,
  panels: Sequence[str] | None = None,
  sign: int = 1,
  among: Sequence[str] | None = None,
  digits: int = 2,
) -> Callable[..., Verdict]:
  """In every panel, each of ``labels`` is above every other method.

  The pair of methods that decides is shown.

  Args:
    labels: the methods that are claimed to be above.
    measure: what is compared.
    panels: check only these panels; None: all.
    sign: 1 for above, -1 for below.
    among: compare only with these other methods; None: with all.
    digits: number of decimals of the difference.
  """

  def check(outcomes, panel):
    pairs = []
    for a in labels:
      for rival in others(outcomes, panel, labels, among):
        gap = measure(pick(outcomes, panel, a)) - measure(rival)
        holds = above(sign * gap, 0.0).holds
        # A pair that contradicts decides, else one that is undecided; of equal
        # ones the closest. With a wide interval that need not be the closest of all.
        rank = (False, None, True).index(holds)
        pairs.append((rank, sign * gap.mean(), holds, f"{a} - {rival.cell.label}", gap))
    _, _, holds, names, gap = min(pairs, key=lambda pair: pair[:2])
    (measurement,) = above(gap, 0.0, digits=digits).measurements
    return Verdict(holds, (measurement._replace(of=names),))

  return in_panels(check, panels)


def change(
  outcomes: Iterable[suite.Outcome], label: str, measure: Measure
) -> np.ndarray:
  """Computes the growth of a method's measure from the first panel to the last.

  Raises:
    NotRun: there is only one, or one lacks the method.
  """
  first, last = (measure(pick(outcomes, panel, label)) for panel in ends(outcomes))
  return last - first


def grows(
  label: str, measure: Measure, sign: int = 1, digits: int = 2
) -> Callable[..., Verdict]:
  """From the first panel to the last one, a method's measure grows.

  Args:
    label: the method.
    measure: what grows.
    sign: 1 for growing, -1 for falling.
    digits: number of decimals of the difference.
  """

  def check(outcomes):
    grown = change(outcomes, label, measure)
    (measurement,) = above(grown, 0.0, digits=digits).measurements
    return Verdict(
      above(sign * grown, 0.0).holds,
      (measurement._replace(of=f"{label} {' to '.join(ends(outcomes))}"),),
    )

  return check


def ends(outcomes: Iterable[suite.Outcome]) -> tuple[str, str]:
  """The first and the last panel.

  Raises:
    NotRun: there is only one.
  """
  panels = panels_of(outcomes)
  if len(panels) < 2:
    raise NotRun("a single panel")
  return panels[0], panels[-1]


def both(*checks: Callable[..., Verdict]) -> Callable[..., Verdict]:
  """Makes a check that holds if all of the given checks hold."""
  return lambda outcomes: every(("", check(outcomes)) for check in checks)


def for_paper(
  paper: str,
  artifact: str,
  checks: Mapping[str, Callable[..., Verdict] | tuple[Callable[..., Verdict], str]],
) -> tuple[Statement, ...]:
  """Makes the statements of one figure or table.

  Args:
    paper: the paper.
    artifact: the figure or table.
    checks: text -> check, or a check with ``Statement.untestable``.
  """
  return tuple(
    Statement(paper, artifact, text, *(check if isinstance(check, tuple) else (check,)))
    for text, check in checks.items()
  )
