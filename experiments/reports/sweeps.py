"""The table and the picture of a sweep, and its best setting."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

from matplotlib import pyplot as plt
import numpy as np

from fedjax_alg import metrics
from fedjax_alg.engine import evaluate
from fedjax_alg.errors import OptionError
from fedjax_alg.records import scores as scores_lib
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records import tables
from . import plots, styles


class Setting(NamedTuple):
  """One setting of a sweep and its rows."""

  values: dict[str, str]  #: name -> value, as it was written
  folder: pathlib.Path
  rows: list[tables.Row]  #: rows of metrics.csv; none if it diverged
  note: str = ""  #: why there are no rows


def read_setting(
    values: Mapping[str, str], folder: pathlib.Path, note: str) -> Setting:
  """Reads a setting from its folder; a setting with a note has no rows."""
  rows = [] if note else tables.read_rows(folder / "metrics.csv")
  return Setting(dict(values), folder, rows, note)


def scores(
    setting: Setting, protocol: str, metric: str, score: str) -> np.ndarray:
  """The score of each seed of a setting, [seeds]; NaN if it diverged."""
  if not setting.rows:
    return np.array([np.nan])
  rounds = sorted({row["round"] for row in setting.rows})
  return np.array([
      scores_lib.score(score, curve, rounds, metric)
      for curve in summary_lib.by_seed(setting.rows, protocol, metric)])


def chosen_protocol(settings: Sequence[Setting], asked: str | None) -> str:
  """The protocol by which the best setting is chosen.

  It is ``asked`` if that is given, else "validation" if that was evaluated,
  else the first protocol.

  Raises:
    OptionError: ``asked`` was not evaluated, or every setting diverged.
  """
  rows = next((setting.rows for setting in settings if setting.rows), None)
  if rows is None:
    raise OptionError("every setting of the sweep diverged")
  there = summary_lib.protocols(rows)
  if asked is not None and asked not in there:
    raise OptionError(f"`by`={asked}: not evaluated (one of "
                      f"{', '.join(there)})")
  return asked or ("validation" if "validation" in there else there[0])


def best(
    settings: Sequence[Setting], protocol: str, metric: str, score: str) -> int:
  """The index of the best setting; of equal ones that of the first.

  Raises:
    OptionError: the protocol does not have this metric.
  """
  sign = metrics.sign(metric)
  means = np.array([sign * scores(setting, protocol, metric, score).mean()
                    for setting in settings])
  if np.isnan(means).all():
    raise OptionError(f"`metric`={metric}: {protocol} has none")
  return int(np.nanargmax(means))


def _shown(values: np.ndarray, metric: str) -> str:
  return summary_lib.shown(summary_lib.spread(values), metrics.digits(metric),
                           metrics.factor(metric))


def table(
    settings: Sequence[Setting], by: str, metric: str, score: str) -> str:
  """A Markdown table of the scores of every setting, the best one in bold."""
  rows = next(setting.rows for setting in settings if setting.rows)
  names = list(settings[0].values)
  there = [by, *(p for p in summary_lib.protocols(rows) if p != by)]
  unit = ", percent" if metrics.metric(metric).share else ""
  head = [*names, *(f"{p} {metric.replace('_', ' ')}" for p in there)]
  lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
  winner = best(settings, by, metric, score)
  for index, setting in enumerate(settings):
    cells = list(setting.values.values())
    cells += [setting.note or _shown(
        scores(setting, p, metric, score), metric) for p in there]
    if index == winner:
      cells = [f"**{cell}**" for cell in cells]
    lines.append("| " + " | ".join(cells) + " |")
  what = {"final": "at the last evaluation",
          "last_10": "mean of the evaluations in the last ten rounds",
          "all": "mean of all evaluations"}[score]
  seeds = len({row["seed"] for row in rows})
  lines += ["", f"Mean{' +- 95 % interval' if seeds > 1 else ''} over {seeds} "
            f"seed(s){unit}, {what}. The best setting (bold) is chosen by "
            f"`{by}`" + (
                "." if evaluate.is_honest(by) else
                ", which is test data: its number is optimistic.")]
  return "\n".join(lines)


def rows_of(settings: Sequence[Setting], metric: str, score: str) -> list[
    dict[str, Any]]:
  """The rows of sweep.csv: setting, seed, protocol and score."""
  out = []
  for setting in settings:
    for protocol in summary_lib.protocols(setting.rows):
      seeds = dict.fromkeys(row["seed"] for row in setting.rows)
      for seed, value in zip(seeds, scores(setting, protocol, metric, score)):
        out.append({**setting.values, "seed": seed, "protocol": protocol,
                    metric: float(value)})
  return out


def _numbers(values: Sequence[str]) -> np.ndarray | None:
  """The places of swept values; None where they have no good axis."""
  try:
    found = np.array([float(value) for value in values])
  except ValueError:
    return None
  # Zero has no place on a logarithmic axis, and 0.001, 0.01, 1 are one spot on
  # a linear one.
  some = np.abs(found[found != 0])
  wide = some.size and some.max() >= 10 * some.min()
  return None if wide and (found <= 0).any() else found


def draw(
    path: pathlib.Path, settings: Sequence[Setting], by: str, metric: str,
    score: str, title: str) -> None:
  """Draws the metric over the values of the first swept name.

  There is a line for each combination of values of the other names, a little
  beside the others, which may have the same values. Bars show the 95 % interval
  over the seeds, and a ring marks the best setting.
  """
  names = list(settings[0].values)
  ticks = list(dict.fromkeys(s.values[names[0]] for s in settings))
  numbers = _numbers(ticks)
  at = dict(zip(ticks, range(len(ticks)) if numbers is None else numbers))
  places = np.array(list(at.values()), float)
  log = numbers is not None and places.min() > 0 and (
      places.max() >= 10 * places.min())
  span = places.max() / places.min() if log else np.ptp(places)
  lines: dict[str, list[Setting]] = {}
  for setting in settings:
    label = ", ".join(f"{name} {setting.values[name]}" for name in names[1:])
    lines.setdefault(label, []).append(setting)
  figure, axis = plt.subplots(figsize=(5.5, 3.8))
  factor = metrics.factor(metric)
  drawn = styles.of(lines)
  winner = settings[best(settings, by, metric, score)]
  for i, (label, own) in enumerate(lines.items()):
    shift = (i - (len(lines) - 1) / 2) * min(0.015, 0.08 / len(lines))
    here = {tick: float(place * span ** shift if log else place + span * shift)
            for tick, place in at.items()}
    points = [(here[s.values[names[0]]],
               *metrics.confidence_95(list(
                   factor * scores(s, by, metric, score))))
              for s in own if s.rows]
    x, mean, ci95 = np.array(points).reshape(-1, 3).T
    # No interval reaches where no share can lie. A single seed has none, so no
    # bar either.
    ends = np.array([ci95, ci95] if factor == 1 else [
        np.minimum(ci95, mean), np.minimum(ci95, np.maximum(100 - mean, 0))])
    axis.errorbar(x, mean, None if np.isnan(ci95).all() else ends,
                  markersize=5, capsize=3, label=label or None,
                  **drawn[label].matplotlib())
    if winner in own:
      axis.plot(here[winner.values[names[0]]],
                factor * scores(winner, by, metric, score).mean(), "o",
                markersize=13, markerfacecolor="none", color="black")
  if log:
    axis.set_xscale("log")
  axis.set_xticks([at[tick] for tick in ticks], ticks,
                  rotation=90 if len("".join(ticks)) > 40 else 0)
  axis.minorticks_off()
  axis.margins(x=0.08)
  if factor == 100:
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, -1.0), min(high, 101.0))  # room for a cap
  axis.set_xlabel(names[0])
  axis.set_ylabel(f"{by} {metric.replace('_', ' ')}"
                  + (" (percent)" if factor == 100 else ""))
  axis.grid(alpha=0.3)
  if len(lines) > 1:
    plots.legend(figure)
  axis.set_title(title, fontsize=10)
  plots.save(figure, path)
