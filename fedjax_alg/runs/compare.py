"""Compares finished runs: estimates over seeds, costs to targets, paired tests.

``compare`` draws and writes nothing. ``experiments.compare`` makes its tables,
pictures and pages from what ``compare`` returns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import html
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import files, metrics, registry
from fedjax_alg.data.client_names import join_names
from fedjax_alg.data.federation import pair_hash
from fedjax_alg.data.options import DataOptions
from fedjax_alg.errors import (
  OptionError,
  a_type,
  as_unicode,
  check_one_of,
  did_you_mean,
  is_one_of,
  reason,
)
from fedjax_alg.hparams import field_values
from fedjax_alg.metrics import names
from fedjax_alg.metrics.intervals import Estimate, estimate_mean, format_estimate
from fedjax_alg.part import as_list, read_parts
from fedjax_alg.records import scores as scores_lib
from fedjax_alg.records import tables
from fedjax_alg.runs import texts
from fedjax_alg.runs.checks import check_reachable
from fedjax_alg.runs.options import (
  EvaluationOptions,
  MachineOptions,
  RunOptions,
)
from fedjax_alg.runs.pooled import PooledResult
from fedjax_alg.runs.result import RunResult
from fedjax_alg.runs.stopping import ALL_ROUNDS

#: The numbers that may stand for a seed's curve; see ``records.scores``.
SCORES = ("final", "last_10", "best")

#: Costs of a run, which are running totals in rounds.csv.
COSTS = ("round", *tables.TOTALS)

#: Options that change what clients hold without changing the hashes of the
#: data and of the partition.
_LATER = ("newcomers_at", "shift", "concepts")

#: Options that make no other method: where, how long and how it is measured.
_NEUTRAL = (
  "data_dir",
  "seed",
  *(
    field.name
    for kind in (EvaluationOptions, MachineOptions)
    for field in dataclasses.fields(kind)
  ),
)

#: A longer automatic label does not fit into a legend.
_LONGEST = 30


class Line(NamedTuple):
  """One run of a comparison."""

  label: str
  result: RunResult
  scores: dict[str, Estimate]  #: a name of ``SCORES`` -> estimate
  costs: dict[str, Estimate]  #: a name of ``COSTS`` -> that of the whole run
  #: target -> for each seed the costs when it first reached the target, None
  #: if it never did
  reached: dict[float, tuple[dict[str, float] | None, ...]]

  def cost_to(self, target: float, cost: str) -> Estimate | None:
    """Estimates the cost to a target, over seeds that reach it; None if none does.

    Args:
      target: one of the targets of the comparison.
      cost: one of ``COSTS``.

    Raises:
      OptionError: another target or cost.
    """
    if not is_one_of(target, self.reached):
      targets = ", ".join(map(str, self.reached)) or "none"
      raise OptionError(f"`target`={target}: not of this comparison ({targets})")
    check_one_of(f"`cost`={cost}", cost, COSTS)
    costs = [at[cost] for at in self.reached[target] if at is not None]
    return estimate_mean(costs) if costs else None


class PairedRuns(NamedTuple):
  """A run against the baseline, seed by seed."""

  label: str
  #: score of the run minus that of the baseline, by the baseline's seeds
  difference: Estimate
  t: float  #: statistic of the paired t test; NaN where there is no test
  p: float  #: two-sided p value
  holm: float  #: p value with Holm's correction for all runs with a test
  #: what is to be known of the pair: other participants, an early end
  notes: tuple[str, ...] = ()
  baseline: str = ""  #: label of the run that it is compared with


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
  """A comparison of runs: their metrics, differences and costs.

  Attributes:
    metric: the metric to compare.
    protocol: its protocol.
    score: which number of a curve the pairs compare, a name of ``SCORES``.
    targets: values of the metric.
    baseline: label of the run that the others are compared with.
    lines: the runs.
    pairs: the other runs against the baseline, then those on other data
      against the baseline of these (``PairedRuns.baseline``).
    unpaired: label -> the reason why a run is not paired by seed with any other, or
      is itself the baseline of runs on other data.
  """

  metric: str
  protocol: str
  score: str
  targets: tuple[float, ...]
  baseline: str
  lines: tuple[Line, ...]
  pairs: tuple[PairedRuns, ...]
  unpaired: dict[str, str]

  @property
  def baselines(self) -> tuple[str, ...]:
    """``baseline``, and the baselines of runs that cannot be compared with it."""
    return tuple(
      dict.fromkeys([self.baseline, *(pair.baseline for pair in self.pairs)])
    )

  @property
  def results(self) -> dict[str, RunResult]:
    """label -> run."""
    return {line.label: line.result for line in self.lines}

  def table(
    self, metrics: Sequence[str] | None = None
  ) -> dict[str, dict[str, Estimate]]:
    """Estimates several metrics of every run, with the score of the comparison.

    Args:
      metrics: METRIC of the comparison's protocol, or PROTOCOL:METRIC; None means
        the metric of the comparison.

    Returns:
      run -> metric, with the name that you gave -> estimate.

    Raises:
      OptionError: a run does not have the metric or the protocol.
    """
    return {
      label: {
        text: estimate_mean(
          scores_lib.score(self.score, curve, result.rounds, metric)
          for curve in result.metrics[protocol][metric]
        )
        for text, (protocol, metric) in self._columns(metrics).items()
      }
      for label, result in self.results.items()
    }

  def _columns(self, metrics: Sequence[str] | None) -> dict[str, tuple[str, str]]:
    """What ``table`` is asked for -> its protocol and its metric."""
    if metrics is None:
      metrics = (self.metric,)
    metrics = as_list("metrics", metrics, str)
    if not metrics:
      raise OptionError("`metrics`: empty, give at least one")
    out = {}
    for text in metrics:
      name, colon, metric = text.rpartition(":")
      protocol = name if colon else self.protocol
      _metric(self.results, metric)
      _protocol(self.results, protocol)
      out[text] = protocol, metric
    return out

  def to_latex(self, metrics: Sequence[str] | None = None) -> str:
    """Makes a table of runs and metrics for LaTeX, with rules of booktabs.

    The best mean of each metric is bold. Shares are in percent.

    Args:
      metrics: see ``table``.

    Raises:
      OptionError: see ``table``.
    """
    table = self.table(metrics)
    metric_of = {head: metric for head, (_, metric) in self._columns(metrics).items()}
    best = {
      head: max(
        (names.sign(metric) * of[head].mean for of in table.values()),
        key=lambda mean: (not np.isnan(mean), mean),
      )
      for head, metric in metric_of.items()
    }
    rows = [
      [
        label,
        *(
          texts.latex_estimate(
            of[head], metric, names.sign(metric) * of[head].mean == best[head]
          )
          for head, metric in metric_of.items()
        ),
      ]
      for label, of in table.items()
    ]
    units = [
      head.replace("_", " ") + ", %" * names.metric(metric).share
      for head, metric in metric_of.items()
    ]
    return texts.latex_table(["run", *units], rows)

  def plot(self, axis: Any = None, x_axis: str = "rounds") -> Any:
    """Draws the curves of all runs, means over seeds with 95 % bands.

    A run of one seed has no band. The band of a single evaluation is a bar. A method
    has the same color in every picture; other labels get colors in the order of the
    comparison.

    Args:
      axis: axes of matplotlib; None makes a new figure.
      x_axis: "rounds", or what the runs have cost until then, a mean over the seeds:
        "bytes" that all participants and the server have sent, "bytes_up" only to the
        server, "floats", "example_gradients", "seconds" on this machine without
        compiling, or "simulated_s".

    Returns:
      The axes.

    Raises:
      OptionError: another ``x_axis``.
    """
    from fedjax_alg.runs import pictures  # few who import the library draw

    check_one_of(f"`x_axis`={x_axis}", x_axis, tuple(pictures.X_AXES))
    column, _ = pictures.X_AXES[x_axis]
    axis = pictures.new_axis(axis)
    curves = {}
    for label, result in self.results.items():
      values = result.metrics[self.protocol][self.metric]
      x = result.costs(column).mean(0)[-values.shape[1] :]
      pooled = isinstance(result, PooledResult)
      curves[label] = pictures.Curve(x, values, pooled)
    longest = pictures.LONG_LABEL
    pictures.draw_curves(axis, curves, self.metric, x_axis, longest=longest)
    pictures.decorate(axis, self.metric, f"protocol {self.protocol}")
    return axis

  def save(
    self, path: str | os.PathLike, metrics: Sequence[str] | None = None
  ) -> pathlib.Path:
    """Writes a picture or a table, and replaces a file of this name.

    Args:
      path: the suffix decides what is written: the curves for .png, .pdf and .svg,
        ``to_latex`` for .tex, and ``to_frame`` for .csv.
      metrics: for .tex, see ``table``.

    Returns:
      The path.

    Raises:
      OptionError: another suffix, ``metrics`` for another one than .tex, or a path
        that cannot be written; see ``table``.
    """
    place = files.output_path(path, "path")
    suffix = place.suffix.lower()
    check_one_of(f"`path`={path}: its suffix", suffix, (*_PICTURES, ".tex", ".csv"))
    if metrics is not None and suffix != ".tex":
      raise OptionError(f"`metrics`: only read for .tex, not for {suffix}")
    if suffix not in _PICTURES:
      content = (
        self.to_latex(metrics)
        if suffix == ".tex"
        else self.to_frame().to_csv(index=False, na_rep="nan", lineterminator="\r\n")
      )
      with _write_errors(path), files.replacing(place) as partial:
        partial.write_text(content, "utf-8", newline="")
      return place
    figure = self.plot().figure
    with _write_errors(path), files.replacing(place) as partial:
      figure.savefig(partial, dpi=150, format=suffix[1:])
    return place

  def to_frame(self) -> Any:
    """Returns a ``pandas.DataFrame`` with a row for each run.

    Its columns are "run" and "seeds"; each name of ``SCORES`` and ``COSTS``, a mean,
    and with "_ci95" its half-width; for a target such as 0.8 "reached_0.8", the number
    of seeds that reach it, and the costs until then, "round_to_0.8" and the others of
    ``COSTS``; and "difference", "difference_ci95", "p", "p_holm" and "baseline".
    """
    import pandas as pd  # half a second

    pairs = {pair.label: pair for pair in self.pairs}
    out = []
    for line in self.lines:
      row: dict[str, Any] = {"run": line.label, "seeds": len(line.result.seeds)}
      for group in (line.scores, line.costs):
        for name, value in group.items():
          row |= {name: value.mean, f"{name}_ci95": value.ci95}
      for target in self.targets:
        row[f"reached_{target:g}"] = sum(at is not None for at in line.reached[target])
        for name in COSTS:
          cost = line.cost_to(target, name)
          row[f"{name}_to_{target:g}"] = np.nan if cost is None else cost.mean
      pair = pairs.get(line.label)
      row |= {
        "difference": pair.difference.mean if pair else np.nan,
        "difference_ci95": pair.difference.ci95 if pair else np.nan,
        "p": pair.p if pair else np.nan,
        "p_holm": pair.holm if pair else np.nan,
        "baseline": pair.baseline if pair else "",
      }
      out.append(row)
    return pd.DataFrame(out)

  def __repr__(self) -> str:
    return (
      f"<Comparison of {len(self.lines)} run(s) in {len(self.pairs)} pair(s): "
      f"{self.score} {self.metric} of protocol {self.protocol}>"
    )

  def __str__(self) -> str:
    """A line for each pair: the difference with its 95 % interval, and Holm's p."""
    scale, unit = (100, " points") if metrics.metric(self.metric).share else (1, "")
    lines = [
      f"{pair.label} - {pair.baseline}: "
      f"{format_estimate(pair.difference, None, scale, '+')}{unit} "
      f"of {self.metric}, p = {pair.holm:.2g}"
      for pair in self.pairs
    ]
    return "\n".join(lines) or repr(self)

  def _repr_html_(self) -> str:
    """A table of the runs, for notebooks."""
    share = metrics.metric(self.metric).share
    scale = 100 if share else 1
    pairs = {pair.label: pair for pair in self.pairs}
    unit = ", %" * share
    rows = [
      ["run", "seeds", f"{self.score} {self.metric}{unit}", "difference", "p (Holm)"]
    ]
    for line in self.lines:
      pair = pairs.get(line.label)
      rows.append(
        [
          line.label,
          str(len(line.result.seeds)),
          format_estimate(line.scores[self.score], None, scale),
          f"{format_estimate(pair.difference, None, scale, '+')} to {pair.baseline}"
          if pair
          else "",
          f"{pair.holm:.2g}" if pair and not np.isnan(pair.holm) else "",
        ]
      )
    cells = [
      "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
      for row in rows
    ]
    return f"<table>{''.join(cells)}</table>"


#: Suffixes of pictures.
_PICTURES = (".png", ".pdf", ".svg")


@contextlib.contextmanager
def _write_errors(path: object) -> Iterator[None]:
  """Says in one line that a file cannot be written."""
  try:
    yield
  except OSError as error:
    raise OptionError(f"`path`={path}: cannot be written ({reason(error)})") from error


def compare(
  results: Mapping[str, RunResult] | Sequence[RunResult],
  *,
  metric: str | None = None,
  protocol: str | None = None,
  score: str = "final",
  baseline: str | None = None,
  targets: Sequence[float] | None = None,
) -> Comparison:
  """Compares finished runs.

  You get the curves, tables and costs of all runs. Runs with the same data, partition
  and seeds (in any order) are paired with the baseline by seed: mean and 95 %
  interval of the differences, a paired t test, and Holm's correction for the number
  of tests. Runs of equal partitions, one seed each, are paired by partition, whatever
  their seeds. There are no rank tests, because they have no power with few seeds: the
  smallest p value of Wilcoxon's test is 2 / 2^n, for example 0.25 with three seeds
  and 0.06 with five.

  Runs that cannot be compared with the baseline are compared among themselves. Their
  baseline is the first of them with the baseline's method, or else the first. For
  example, runs of two methods on three data sets give three tests. ``unpaired`` has
  the reasons why other runs are not compared with the first one.

  Args:
    results: label -> run, from ``run`` or ``load_run``. Without labels, the options
      that differ name the runs.
    metric: a metric of all runs; by default the main one of their task
      (accuracy).
    protocol: an evaluation protocol of all runs; by default "global" if all
      runs have it, else the first one that all have.
    score: which number of a curve the pairs compare: "final" = the last value,
      "last_10" = the mean of the evaluations in the last ten rounds, "best" = the
      best value, which is optimistic on test data.
    baseline: label of the run that the others are compared with; by default
      the first. Its method is the baseline on other data, too.
    targets: values of the metric, for the cost of reaching them; by default the
      targets that all runs have, or none for a metric that is no share (the loss).

  Returns:
    The comparison.

  Raises:
    OptionError: an argument that cannot be used, or a run without the metric
      or the protocol.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=5)
    >>> runs = {rate: fa.run("fedavg", fed, rounds=1, cohort_size=2, client_lr=rate,
    ...                      seeds=3, evaluate=("global",)) for rate in (0.1, 0.3)}
    >>> [pair] = compare(runs).pairs
    >>> pair.label, len(pair.difference.values)  # one of each seed
    ('0.3', 3)
  """
  if isinstance(results, Mapping):
    results = by_label(results)
  elif isinstance(results, Iterable):
    results = list(results)
  else:
    results = [results]
  for run in results.values() if isinstance(results, dict) else results:
    if not isinstance(run, RunResult):
      several = (
        "; runs on several partitions are one run of federate(..., `partitions`=N)"
        if isinstance(run, Iterable) and not isinstance(run, (str, bytes, Mapping))
        else ""
      )
      raise OptionError(
        f"`results`: {a_type(run)}, must be runs from run or load_run{several}"
      )
  if not results:
    raise OptionError("`results`: no runs")
  if not isinstance(results, dict):
    results = dict(zip(labels(results), results, strict=True))
  metric = _metric(results, metric)
  check_one_of(f"`score`={score}", score, SCORES)
  protocol = _protocol(results, protocol)
  for label, result in results.items():
    if not np.isfinite(result.metrics[protocol][metric]).any():
      raise OptionError(f"`metric`={metric}: {label} has none of protocol {protocol}")
  baseline = next(iter(results)) if baseline is None else baseline
  if not is_one_of(baseline, results):
    raise OptionError(
      f"`baseline`={baseline}: no such run (one of {', '.join(results)})"
    )
  target_values = _targets(results, metric, targets)
  lines = tuple(
    _line(label, result, protocol, metric, target_values)
    for label, result in results.items()
  )
  pairs, unpaired = _pairs(lines, baseline, score)
  return Comparison(
    metric, protocol, score, target_values, baseline, lines, pairs, unpaired
  )


def _metric(results: Mapping[str, RunResult], choice: str | None) -> str:
  """The metric that is compared, which all runs must have."""
  metric = choice
  if metric is None:
    metric = next(iter(results.values())).records.metrics.main
  if isinstance(metric, Iterable) and not isinstance(metric, str):
    raise OptionError(
      f"`metric`={metric!r}: {a_type(metric)}, must be the name of one metric; "
      "table([...]) and to_latex([...]) of a comparison have several"
    )
  for label, result in results.items():
    of = result.records.metrics
    if not is_one_of(metric, of.columns):
      raise OptionError(
        f"`metric`={metric}: unknown in {label}, whose task is {of.task}"
        f"{did_you_mean(metric, of.columns)} (one of "
        f"{', '.join(of.columns)})"
      )
  return metric


def _protocol(results: Mapping[str, RunResult], protocol: str | None) -> str:
  for label, result in results.items():
    if protocol is not None and not is_one_of(protocol, result.protocols):
      raise OptionError(
        f"`protocol`={protocol}: {label} was not evaluated by it "
        f"(it has {', '.join(result.protocols)})"
      )
  if protocol is not None:
    return protocol
  common = [
    name
    for name in next(iter(results.values())).protocols
    if all(name in result.protocols for result in results.values())
  ]
  if not common:
    raise OptionError(
      "`protocol`: the runs have none in common ("
      + "; ".join(
        f"{label}: {', '.join(result.protocols)}" for label, result in results.items()
      )
      + ")"
    )
  return "global" if "global" in common else common[0]


def _targets(
  results: Mapping[str, RunResult], metric: str, targets: Sequence[float] | None
) -> tuple[float, ...]:
  if targets is None:
    every = [result.facts["run"].get("targets", ()) for result in results.values()]
    return (
      ()
      if not metrics.metric(metric).share
      else tuple(
        target
        for target in every[0]
        if all(target in run_targets for run_targets in every)
      )
    )
  targets = as_list("targets", targets, float)
  check_reachable(targets, metrics.metric(metric).share)
  return tuple(dict.fromkeys(float(target) for target in targets))


def _line(
  label: str, result: RunResult, protocol: str, metric: str, targets: Sequence[float]
) -> Line:
  curves = result.metrics[protocol][metric]
  scores = {
    name: estimate_mean(
      scores_lib.score(name, curve, result.rounds, metric) for curve in curves
    )
    for name in SCORES
  }
  costs = {name: result.costs(name) for name in COSTS}
  reached = {}
  for target in targets:
    firsts = tables.first_reaching(curves, result.rounds, metric, target)
    reached[target] = tuple(
      None
      if np.isinf(first)
      else {
        name: float(of[seed, np.searchsorted(result.rounds, first)])
        for name, of in costs.items()
      }
      for seed, first in enumerate(firsts)
    )
  return Line(
    label,
    result,
    scores,
    {name: estimate_mean(of[:, -1]) for name, of in costs.items()},
    reached,
  )


def holm(p_values: Sequence[float]) -> list[float]:
  """Corrects p values of several tests by Holm's step-down method.

  Args:
    p_values: one per test; NaN for no test, which is not counted.

  Returns:
    The corrected p values; a test at level a rejects where they are at most a.
  """
  p = np.asarray(p_values, float)
  out = np.full(p.shape, np.nan)
  tested = np.flatnonzero(~np.isnan(p))
  order = tested[np.argsort(p[tested], kind="stable")]
  factors = np.arange(len(order), 0, -1)
  out[order] = np.minimum(np.maximum.accumulate(factors * p[order]), 1.0)
  result: list[float] = out.tolist()
  return result


def paired_t(differences: Sequence[float]) -> tuple[float, float]:
  """The statistic and the two-sided p value of the paired t test.

  Both are NaN where there is no test: with less than two differences, one that
  is NaN, or differences that are all equal.
  """
  array = np.asarray(differences, float)
  if len(array) < 2 or not np.isfinite(array).all():
    return np.nan, np.nan
  if np.ptp(array) <= 1e-12 * np.abs(array).max():  # equal but for rounding
    return np.nan, np.nan
  from scipy import special  # scipy.stats takes a second to import

  statistic = array.mean() / np.sqrt(array.var(ddof=1) / len(array))
  return float(statistic), float(2 * special.stdtr(len(array) - 1, -abs(statistic)))


def _why_not_paired(first: RunResult, second: RunResult) -> str:
  """Explains why two runs cannot be compared seed by seed; "" if they can be."""
  hashes, others = _hashes(first), _hashes(second)
  if list(map(pair_hash, hashes)) != list(map(pair_hash, others)):
    if not {of.get("data") for of in hashes} & {of.get("data") for of in others}:
      return "the data differ"
    if len(hashes) != len(others):
      return f"the number of partitions differs ({len(hashes)}, not {len(others)})"
    return "the partition differs"
  for name in _LATER:
    # As text: a run from a folder has lists where one in memory has tuples.
    mine, its = (_as_text(run.facts["data"].get(name)) for run in (first, second))
    if mine != its:
      return f"--{name} differs ({mine}, not {its})"
  if not _by_partition(first, second) and sorted(first.seeds) != sorted(second.seeds):
    return f"the seeds differ ({_as_text(first.seeds)}, not {_as_text(second.seeds)})"
  return ""


def _by_partition(first: RunResult, second: RunResult) -> bool:
  """Whether two runs have a seed for each partition, and are paired by these."""
  return isinstance(first, PooledResult) and isinstance(second, PooledResult)


def _hashes(result: RunResult) -> list[dict[str, str]]:
  """The hashes of each partition of a run."""
  parts = result.results if isinstance(result, PooledResult) else [result]
  return [part.summary()["hashes"] for part in parts]


def _participants(result: RunResult) -> dict[str, str]:
  """Collects, as text, what decides who takes part in a round."""
  run, plan = result.facts["run"], result.facts["plan"]
  # The plan knows the sampler that was a function, and S of a share.
  sampling = plan.get("sampling", run.get("sampling", RunOptions.sampling))
  values = {"sampling": sampling, "cohort_size": plan["cohort_size"]}
  return {name: _as_text(value) for name, value in values.items()}


def _trains_alone(line: Line) -> bool:
  """Whether a client's model stands still in rounds without the client."""
  plan = line.result.facts["plan"]
  takes_turns = plan["cohort_size"] < plan.get("clients", 0)
  return takes_turns and line.costs["total_floats"].mean == 0


def _notes(line: Line, base: Line) -> tuple[str, ...]:
  """Lists the differences of a pair that is compared by seed all the same."""
  mine, its = _participants(line.result), _participants(base.result)
  differ = [name for name in mine if mine[name] != its[name]]
  out = []
  if differ:
    out.append(f"participants are drawn differently ({', '.join(differ)})")
  for side, other in ((line, base), (base, line)):
    without = side.result.facts["data"].get("without")
    if without and without != other.result.facts["data"].get("without"):
      out.append(f"{side.label} is without the clients {join_names(without)}")
  silent = [side for side in (line, base) if _trains_alone(side)]
  if len(silent) == 1:
    (side,) = silent
    rounds, plan = int(side.result.rounds[-1]), side.result.facts["plan"]
    out.append(
      f"{side.label} sends nothing, so a client's model is only trained in the rounds "
      f"in which the client takes part, about "
      f"{rounds * plan['cohort_size'] / plan['clients']:.3g} of {rounds}"
    )
  out += [
    f"{side.label} ended early by {side.result.stopped}"
    for side in (line, base)
    if side.result.stopped != ALL_ROUNDS
  ]
  return tuple(out)


def _pair(line: Line, base: Line, score: str) -> PairedRuns:
  """A run against a baseline; ``holm`` is not known yet."""
  ours, its = (np.array(side.scores[score].values) for side in (line, base))
  if not _by_partition(line.result, base.result):
    values = dict(zip(line.result.seeds, ours))
    ours = np.array([values[seed] for seed in base.result.seeds])
  difference = estimate_mean(ours - its)
  if len(ours) > 1 and np.ptp(ours - its) <= 1e-12 * np.abs(ours).max():
    # Equal but for rounding.
    difference = Estimate(difference.mean, 0.0, (difference.mean,) * len(its))
  return PairedRuns(
    line.label,
    difference,
    *paired_t(difference.values),
    np.nan,
    _notes(line, base),
    base.label,
  )


def _comparable(lines: Sequence[Line], base: Line) -> list[tuple[Line, list[Line]]]:
  """Baselines, ``base`` first, and the runs to be compared with each."""
  groups, remaining, first = [], list(lines), base
  while remaining:
    members = [
      line
      for line in remaining
      if line is first or not _why_not_paired(line.result, first.result)
    ]
    if first is not base:
      first = next(
        (
          line
          for line in members
          if line.result.facts["algorithm"] == base.result.facts["algorithm"]
        ),
        first,
      )
    groups.append((first, [line for line in members if line is not first]))
    remaining = [
      line for line in remaining if line is not first and (line not in groups[-1][1])
    ]
    first = remaining[0] if remaining else base
  return groups


def _pairs(
  lines: Sequence[Line], baseline: str, score: str
) -> tuple[tuple[PairedRuns, ...], dict[str, str]]:
  (base,) = (line for line in lines if line.label == baseline)
  groups = _comparable(lines, base)
  pairs = [_pair(line, first, score) for first, lines_of in groups for line in lines_of]
  unpaired = {
    first.label: _why_not_paired(first.result, base.result) for first, _ in groups[1:]
  }
  corrected = holm([pair.p for pair in pairs])
  return tuple(pair._replace(holm=p) for pair, p in zip(pairs, corrected)), unpaired


def _options_of(result: RunResult) -> dict[str, Any]:
  """name -> value of every option of a run, the algorithm first."""
  facts = result.facts
  return {
    "algorithm": facts["algorithm"],
    **facts["hparams"],
    **facts["run"],
    "model": facts["model"],
    **facts["data"],
  }


def _as_text(value: object) -> str:
  if isinstance(value, (list, tuple)):
    return ",".join(map(_as_text, value))
  return f"{value:g}" if isinstance(value, float) else str(value)


def option_table(results: Sequence[RunResult]) -> dict[str, list[str]]:
  """name -> its value in every run as text, "" for a run without the option."""
  per_run = [_options_of(result) for result in results]
  names = dict.fromkeys(name for options in per_run for name in options)
  return {
    name: [_as_text(options[name]) if name in options else "" for options in per_run]
    for name in names
  }


def differing_options(results: Sequence[RunResult]) -> dict[str, list[str]]:
  """Lists the options that a run reads and that are not the same in all runs.

  Args:
    results: the runs.

  Returns:
    name -> its value in every run as text, "" for a run that does not read it: the
    algorithm, options that not all methods have, those that all have, and then
    those of the model, of the data and of the run.
  """
  parts = [_read_parts(result) for result in results]
  hparams = [options for options, *_ in parts]
  names = dict.fromkeys(name for options in hparams for name in options)
  per_run = [
    {
      "algorithm": str(result.facts["algorithm"]),
      **{name: value for options in run_parts for name, value in options.items()},
    }
    for result, run_parts in zip(results, parts)
  ]
  ordered = dict.fromkeys(
    [
      "algorithm",
      *sorted(names, key=lambda name: all(name in options for options in hparams)),
      *(name for run_parts in parts for options in run_parts for name in options),
    ]
  )
  table = {name: [options.get(name, "") for options in per_run] for name in ordered}
  return {name: values for name, values in table.items() if len(set(values)) > 1}


def _read_parts(result: RunResult) -> list[dict[str, str]]:
  """name -> value as text of the options that a run reads and that are set.

  Those of the method, the model, the data and the run.
  """
  facts = result.facts
  out = []
  entry = registry.ALGORITHMS.get(facts["algorithm"])
  for kinds, entries in (
    ((entry.hparams, entry.exchange) if entry else (), facts["hparams"]),
    ((), {"model": facts["model"]}),
    ((DataOptions,), facts["data"]),
    ((RunOptions,), facts["run"]),
  ):
    parts = tuple(_make_options(kind, entries) for kind in kinds)
    known = field_values(*parts)
    out.append(
      {
        name: _as_text(value)
        for name, value in (dict(entries) | known).items()
        if value is not None
      }
    )
  return out


def _make_options(kind: Any, entries: Mapping[str, Any]) -> Any:
  """The options of a dataclass that a run has written.

  A run from before an option came has its default.
  """
  fields = kind.__dataclass_fields__
  values = {name: value for name, value in entries.items() if name in fields}
  return kind(**read_parts(values, fields))


def _read_options(result: RunResult) -> dict[str, str]:
  """name -> value as text of the options that decide the numbers of a run."""
  hparams, model, data, run = _read_parts(result)
  # The order of labels.
  every = hparams | run | model | data
  return {name: value for name, value in every.items() if name not in _NEUTRAL}


def labels(
  results: Sequence[RunResult], names: Sequence[str] | None = None
) -> list[str]:
  """Names runs by their method and, where needed, by what else differs.

  Only options that a run reads are named. Where that would be long, the runs
  of the method have their own names; runs that nothing tells apart are
  numbered.

  Args:
    results: the runs.
    names: a short name of each run, for example of its folder.

  Returns:
    The labels.
  """

  def method(result: RunResult) -> str:
    name = result.facts["algorithm"]
    is_registered = name in registry.ALGORITHMS
    return registry.get(name).label if is_registered else str(name)

  methods = [method(result) for result in results]
  out = list(methods)
  for name in dict.fromkeys(methods):
    indices = [i for i, candidate in enumerate(methods) if candidate == name]
    if len(indices) == 1:
      continue
    per_run = [_read_options(results[i]) for i in indices]
    differ = [
      option
      for option in dict.fromkeys(o for options in per_run for o in options)
      if len({options.get(option) for options in per_run}) > 1
    ]
    full = [
      " ".join(
        [
          name,
          *(f"{option}={options[option]}" for option in differ if option in options),
        ]
      )
      for options in per_run
    ]
    short = max(map(len, full)) <= _LONGEST and (
      names is None or len(set(full)) == len(full)
    )
    for i, label in zip(indices, full):
      if short:
        out[i] = label
      elif names is not None:
        out[i] = names[i]
  return unique(out)


def unique(names: Sequence[str]) -> list[str]:
  """The names, with a number behind those that occur more than once."""
  out = []
  used = set(names)
  for name in names:
    label, number = name, 0
    while names.count(name) > 1 and label in used:
      number += 1
      label = f"{name} ({number})"
    used.add(label)
    out.append(label)
  return out


def by_label(results: Mapping[Any, Any]) -> dict[str, Any]:
  """The same values by labels that are different texts, which can be written."""
  labels_of = unique([as_unicode(str(key)) for key in results])
  return dict(zip(labels_of, results.values(), strict=True))
