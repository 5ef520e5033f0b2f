"""Methods on several data sets: ranks, Friedman's test, critical differences.

Numbers of different data sets cannot be averaged, but ranks can (Demsar,
"Statistical comparisons of classifiers over multiple data sets", JMLR 2006).
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.runs import texts
from fedjax_alg.runs.compare import Comparison, Estimate, by_label, compare
from fedjax_alg.runs.pooled import PooledResult
from fedjax_alg.runs.result import RunResult


@dataclasses.dataclass(frozen=True)
class Ranking:
  """k methods on n data sets.

  Attributes:
    comparisons: data set -> the comparison of its runs.
    methods: the k methods.
    scores: [n, k] means over the seeds.
    ranks: [n, k], 1 for the best, equal scores have the mean of their ranks.
    friedman: statistic and p value of Friedman's test (chi squared with k - 1
      degrees of freedom); NaN with less than three methods, and if
      all ranks are equal.
    critical_difference: two mean ranks differ (Nemenyi's test, at level 0.05) from
      this difference on.
  """

  comparisons: Mapping[str, Comparison]
  methods: tuple[str, ...]
  scores: np.ndarray
  ranks: np.ndarray
  friedman: tuple[float, float]
  critical_difference: float

  @property
  def mean_ranks(self) -> dict[str, float]:
    """method -> its mean rank over the data sets."""
    return dict(zip(self.methods, self.ranks.mean(0).tolist()))

  def to_frame(self) -> Any:
    """Returns a ``pandas.DataFrame`` with a row for each method.

    Its columns are "method"; for each data set its name, a mean, and with "_ci95" its
    half-width; and "mean_rank".
    """
    import pandas as pd  # half a second

    out = []
    for place, method in enumerate(self.methods):
      row: dict[str, Any] = {"method": method}
      for name, comparison in self.comparisons.items():
        estimate = _estimate(comparison, method)
        row |= {name: estimate.mean, f"{name}_ci95": estimate.ci95}
      out.append(row | {"mean_rank": float(self.ranks[:, place].mean())})
    return pd.DataFrame(out)

  def to_latex(self) -> str:
    """Makes a table of methods and data sets for LaTeX, with rules of booktabs.

    The best mean of a data set is bold. Both tests are below the table.
    """
    first = next(iter(self.comparisons.values()))
    best = self.ranks.min(1)
    rows = [
      [
        method,
        *(
          texts.latex_estimate(
            _estimate(comparison, method),
            comparison.metric,
            self.ranks[row, place] == best[row],
          )
          for row, comparison in enumerate(self.comparisons.values())
        ),
        f"{self.ranks[:, place].mean():.2f}",
      ]
      for place, method in enumerate(self.methods)
    ]
    statistic, p = self.friedman
    words = first.metric.replace("_", " ")
    test = (
      ""
      if np.isnan(p)
      else f"Friedman's test: $\\chi^2$ = {statistic:.2f}, p = {p:.2g}. "
    )
    unit = ", \\%" if metrics.metric(first.metric).share else ""
    return texts.latex_table(
      ["method", *self.comparisons, "mean rank"],
      rows,
      f"{texts.latex_text(words)}{unit}, $\\pm$ half-width of the 95 \\% interval. "
      f"{test}Critical difference of mean ranks (Nemenyi, 0.05): "
      f"{self.critical_difference:.2f}.",
    )

  def plot(self, axis: Any = None) -> Any:
    """Draws the critical-difference diagram.

    Bars join methods with mean ranks that do not differ.

    Args:
      axis: axes of matplotlib; None makes a new figure.

    Returns:
      The axes.
    """
    from fedjax_alg.runs import pictures  # few who import the library draw

    number = len(self.methods)
    axis = pictures.new_axis(axis, (7.2, 1.6 + 0.32 * ((number + 1) // 2)))
    pictures.draw_critical_differences(axis, self.mean_ranks, self.critical_difference)
    return axis


def _estimate(comparison: Comparison, method: str) -> Estimate:
  (line,) = (line for line in comparison.lines if line.label == method)
  return line.scores[comparison.score]


def rank(
  results: Mapping[str, Mapping[str, RunResult]],
  *,
  metric: str | None = None,
  protocol: str | None = None,
  score: str = "final",
) -> Ranking:
  """Compares the ranks of methods over several data sets.

  Args:
    results: data set -> method -> run; all data sets have the same methods.
    metric: see ``compare``.
    protocol: see ``compare``.
    score: see ``compare``.

  Returns:
    The ranking.

  Raises:
    OptionError: less than two data sets or methods, a data set without one of the
      methods or with the data of another, data sets with different main metrics, a
      run without a number (NaN), or see ``compare``.

  Examples:
    >>> import fedjax_alg as fa
    >>> feds = {name: fa.federate(name, num_clients=5) for name in ("digits", "sine2")}
    >>> runs = {name: {lr: fa.run("fedavg", fed, rounds=1, cohort_size=2,
    ...                           evaluate="global", client_lr=float(lr))
    ...                for lr in ("0.001", "1.0")} for name, fed in feds.items()}
    >>> rank(runs).mean_ranks
    {'0.001': 2.0, '1.0': 1.0}
  """
  if not isinstance(results, Mapping) or not all(
    isinstance(runs, Mapping) for runs in results.values()
  ):
    raise OptionError(
      f"`results`: {a_type(results)}, must be a dictionary, data set -> method -> run"
    )
  results = {name: by_label(runs) for name, runs in by_label(results).items()}
  methods = tuple(next(iter(results.values()), {}))
  if len(results) < 2 or len(methods) < 2:
    raise OptionError(
      f"`results`: {len(methods)} methods on {len(results)} data sets, ranks need at "
      "least two of both"
    )
  for name, runs in results.items():
    for method in {*methods, *runs}:
      if method not in runs or method not in methods:
        other = next(iter(results))
        where, there = (name, other) if method not in runs else (other, name)
        raise OptionError(f"`results`: {where} has no run of {method}, {there} has one")
  comparisons = {
    name: compare(
      {method: runs[method] for method in methods},
      metric=metric,
      protocol=protocol,
      score=score,
    )
    for name, runs in results.items()
  }
  _check_data(comparisons)
  _check_numbers(comparisons)
  scores = np.array(
    [
      [_estimate(comparison, method).mean for method in methods]
      for comparison in comparisons.values()
    ]
  )
  of = {comparison.metric for comparison in comparisons.values()}
  if len(of) > 1:
    raise OptionError(f"`metric`: the data sets have different ones ({', '.join(of)})")
  ranks = rank_rows(metrics.sign(next(iter(of))) * scores)
  return Ranking(
    comparisons, methods, scores, ranks, friedman(ranks), nemenyi(*ranks.shape)
  )


def _data_of(result: RunResult) -> set[str]:
  """The hashes of the data of a run, one or more if it is on several partitions."""
  parts = result.results if isinstance(result, PooledResult) else (result,)
  return {part.summary()["hashes"]["data"] for part in parts}


def _check_data(comparisons: Mapping[str, Comparison]) -> None:
  """Refuses runs of one data set on other data, and data that are there twice."""
  seen: dict[str, str] = {}
  for name, comparison in comparisons.items():
    first, *others = comparison.lines
    hashes = _data_of(first.result)
    for line in others:
      if hashes.isdisjoint(data := _data_of(line.result)):
        raise OptionError(
          f"`results`: {name}: {line.label} and {first.label} have other data"
        )
      hashes |= data
    for digest in hashes:
      if (earlier := seen.setdefault(digest, name)) != name:
        raise OptionError(f"`results`: {name} and {earlier} are the same data")


def _check_numbers(comparisons: Mapping[str, Comparison]) -> None:
  """Refuses runs without a number, which has no place among others."""
  for name, comparison in comparisons.items():
    for line in comparison.lines:
      if np.isnan(line.scores[comparison.score].mean):
        raise OptionError(
          f"`results`: {name}: {line.label} has no {comparison.metric} of protocol "
          f"{comparison.protocol} (NaN) for `score`={comparison.score}, so no rank"
        )


def rank_rows(scores: np.ndarray) -> np.ndarray:
  """Ranks the numbers of each row, 1 for the largest; ties get their mean.

  Args:
    scores: [n, k], none of them NaN.

  Returns:
    [n, k] float64.

  Examples:
    >>> rank_rows(np.array([[0.5, 0.7, 0.7]])).tolist()
    [[3.0, 1.5, 1.5]]
  """
  above = (scores[:, None, :] > scores[:, :, None]).sum(2)
  equal = (scores[:, None, :] == scores[:, :, None]).sum(2)
  result: np.ndarray = above + (equal + 1) / 2
  return result


def friedman(ranks: np.ndarray) -> tuple[float, float]:
  """Computes Friedman's statistic of ranks [n, k], with ties, and its p value.

  Both are NaN with less than three methods, or if all ranks are ties.
  """
  n, k = ranks.shape
  spread = np.square(ranks - (k + 1) / 2).sum()
  if k < 3 or not spread:
    return np.nan, np.nan
  from scipy import special

  of_means = np.square(ranks.sum(0) - n * (k + 1) / 2).sum()
  statistic = (k - 1) * of_means / spread
  return float(statistic), float(special.chdtrc(k - 1, statistic))


def nemenyi(sets: int, methods: int) -> float:
  """Computes the critical difference of mean ranks at level 0.05.

  q_0.05 sqrt(k (k + 1) / (6 n)), where q is the studentized range with infinitely
  many degrees of freedom, divided by the root of 2 (Demsar 2006, (6)).

  Args:
    sets: n.
    methods: k.
  """
  from scipy import stats

  quantile = stats.studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
  return float(quantile * np.sqrt(methods * (methods + 1) / (6 * sets)))
