"""The table and the picture of a sweep, and its best setting."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import metrics, registry
from fedjax_alg.engine import evaluate
from fedjax_alg.errors import OptionError
from fedjax_alg.records import scores as scores_lib
from fedjax_alg.records import tables
from fedjax_alg.runs import styles, texts
from fedjax_alg.runs.sweep import common_names

from ..cli.config import Config, RunError
from ..drawing import plots
from . import markdown


class Setting(NamedTuple):
  """One setting of a sweep and its curves."""

  values: dict[str, str]  #: name -> value, as it was written
  folder: pathlib.Path
  seeds: tuple[int, ...] = ()
  rounds: np.ndarray = np.empty(0, int)  #: [E], the evaluated rounds
  #: protocol -> metric -> [N, E']; none if it diverged
  curves: Mapping[str, Mapping[str, np.ndarray]] = {}
  note: str = ""  #: why there are no curves


#: The most methods, or data sets, that a title names.
_MOST_NAMED = 3


def title_of(configs: Sequence[Config]) -> str:
  """The methods and the data sets of some runs; the number of many of them."""
  methods, data = (
    list(dict.fromkeys(names))
    for names in (
      (config.method.entry.label for config in configs),
      (config.data.dataset.label for config in configs if config.data.dataset),
    )
  )
  return " on ".join(
    ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} {words}"
    for names, words in ((methods, "methods"), (data, "data sets"))
  )


def read_setting(values: Mapping[str, str], folder: pathlib.Path, note: str) -> Setting:
  """Reads a setting from its folder; a setting with a note has no curves."""
  if note:
    return Setting(dict(values), folder, note=note)
  rows = tables.read_rows(folder / "metrics.csv")
  return Setting(
    dict(values),
    folder,
    tuple(dict.fromkeys(row["seed"] for row in rows)),
    np.unique([row["round"] for row in rows]),
    tables.curves(rows),
  )


def _common_protocols(settings: Sequence[Setting]) -> list[str]:
  """The protocols of every setting that did not diverge."""
  return common_names([setting.curves for setting in settings if setting.curves])


class SweepTable(NamedTuple):
  """The settings of a sweep, and what chooses the best of them."""

  settings: Sequence[Setting]
  by: str  #: the protocol that chooses
  metric: str
  score: str  #: which evaluations count, a name of ``LAST_ROUNDS``

  @classmethod
  def of_settings(
    cls, settings: Sequence[Setting], by: str | None, metric: str | None, score: str
  ) -> "SweepTable":
    """Makes it; by default validation chooses, or held_out, else the first protocol.

    Raises:
      OptionError: ``by``, or every protocol, was not evaluated in some setting.
      RunError: every setting diverged.
    """
    curves = next((setting.curves for setting in settings if setting.curves), None)
    if curves is None:
      raise RunError("every setting of the sweep diverged, smaller values may not")
    protocols = _common_protocols(settings)
    if not protocols or by not in (None, *protocols):
      raise OptionError(
        f"`by`={by}: not evaluated in every setting (one of "
        f"{', '.join(protocols) or 'none'})"
      )
    return cls(
      settings,
      by
      or next((p for p in ("validation", "held_out") if p in protocols), protocols[0]),
      metric or tables.main_metric(curves[protocols[0]]),
      score,
    )

  def scores(self, setting: Setting, protocol: str = "") -> np.ndarray:
    """The score of each seed of a setting, [seeds]; NaN if it diverged."""
    if not setting.curves:
      return np.array([np.nan])
    return np.array(
      [
        scores_lib.score(self.score, curve, setting.rounds, self.metric)
        for curve in setting.curves[protocol or self.by][self.metric]
      ]
    )

  def best(self) -> Setting:
    """The best setting; of equal ones the first.

    Raises:
      OptionError: the protocol does not have this metric.
    """
    sign = metrics.sign(self.metric)
    means = np.array([sign * self.scores(setting).mean() for setting in self.settings])
    if np.isnan(means).all():
      raise OptionError(f"`metric`={self.metric}: {self.by} has none")
    return self.settings[int(np.nanargmax(means))]

  def table(self) -> str:
    """A Markdown table of the scores of every setting, the best in bold.

    It has the protocols that all settings were evaluated by.
    """
    first = next(setting for setting in self.settings if setting.curves)
    protocols = [
      self.by,
      *(p for p in _common_protocols(self.settings) if p != self.by),
    ]
    factor, winner = metrics.factor(self.metric), self.best()
    lines = []
    for setting in self.settings:
      lines.append(
        [
          *map(texts.markdown_text, setting.values.values()),
          *(
            setting.note
            or markdown.format_values(
              self.scores(setting, p), metrics.digits(self.metric), factor
            )
            for p in protocols
          ),
        ]
      )
      if setting is winner:
        lines[-1] = [f"**{cell}**" for cell in lines[-1]]
    score_text = {
      "final": "at the last evaluation",
      "last_10": "mean of the evaluations in the last ten rounds",
      "all": "mean of all evaluations",
    }[self.score]
    seeds = len(first.seeds)
    return markdown.table(
      [*winner.values, *(f"{p} {self.metric.replace('_', ' ')}" for p in protocols)],
      lines,
    ) + (
      f"\n\nMean{' +- 95 % interval' if seeds > 1 else ''} over {seeds} "
      f"seed(s){', percent' if factor == 100 else ''}, {score_text}. The "
      f"best setting (bold) is chosen by `{self.by}`"
      + (
        "."
        if evaluate.is_honest(self.by)
        else ", which is test data: its number is optimistic."
      )
    )

  def rows(self) -> list[dict[str, Any]]:
    """The rows of sweep.csv: setting, seed, protocol (all of a setting) and score."""
    return [
      {**setting.values, "seed": seed, "protocol": protocol, self.metric: float(value)}
      for setting in self.settings
      for protocol in setting.curves
      for seed, value in zip(setting.seeds, self.scores(setting, protocol))
    ]


def _numbers(values: Sequence[str]) -> np.ndarray | None:
  """The places of swept values; None where they have no good axis."""
  try:
    numbers = np.array([float(value) for value in values])
  except ValueError:
    return None
  # Zero has no place on a logarithmic axis, and 0.001, 0.01, 1 are one spot on
  # a linear one.
  some = np.abs(numbers[numbers != 0])
  wide = some.size and some.max() >= 10 * some.min()
  return None if wide and (numbers <= 0).any() else numbers


#: The flag whose values are methods.
_METHOD = "algorithm"


def _value_text(flag: str, value: str) -> str:
  """A value as pictures show it: of a method its label."""
  if flag == _METHOD and value in registry.ALGORITHMS:
    return registry.get(value).label
  return value


def label_setting(values: Mapping[str, str], between: str = " ") -> str:
  """Names a setting by its method, if that is swept, and its other values.

  Args:
    values: flag -> value, as it was written.
    between: what stands between the two.
  """
  ordered = sorted(values.items(), key=lambda entry: entry[0] != _METHOD)
  return ", ".join(
    _value_text(flag, value) if flag == _METHOD else f"{flag}{between}{value}"
    for flag, value in ordered
  )


def draw_sweep(path: pathlib.Path, sweep: SweepTable, title: str) -> None:
  """Draws the metric over the values of the first swept name that is not algorithm.

  There is a line for each combination of values of the other names, a little
  beside the others, which may have the same values. Those of a method have its color.
  If nothing but the algorithm is swept, each method has a point. Bars show the 95 %
  interval over the seeds, and a ring marks the best setting.
  """
  winner, metric = sweep.best(), sweep.metric
  name = next((flag for flag in winner.values if flag != _METHOD), _METHOD)
  ticks = list(dict.fromkeys(s.values[name] for s in sweep.settings))
  numbers = _numbers(ticks)
  at = dict(zip(ticks, range(len(ticks)) if numbers is None else numbers))
  places = np.array(list(at.values()), float)
  log = numbers is not None and places.min() > 0 and (places.max() >= 10 * places.min())
  span = places.max() / places.min() if log else np.ptp(places)
  lines: dict[str, list[Setting]] = {}
  for setting in sweep.settings:
    others = {k: v for k, v in setting.values.items() if k != name or k == _METHOD}
    lines.setdefault(label_setting(others), []).append(setting)
  factor, style_of = metrics.factor(metric), styles.line_styles(lines)
  with plots.sheet([path], [""], title, size=(5.5, 3.8)) as (axis,):
    for i, (label, settings) in enumerate(lines.items()):
      aside = 0.0 if name == _METHOD else i - (len(lines) - 1) / 2
      shift = aside * min(0.015, 0.08 / len(lines))
      positions = {
        tick: float(place * span**shift if log else place + span * shift)
        for tick, place in at.items()
      }
      plots.draw_means(
        axis,
        "" if name == _METHOD else label,
        [
          (positions[s.values[name]], factor * sweep.scores(s))
          for s in settings
          if s.curves
        ],
        style_of[label],
        0.0 if factor == 100 or metrics.is_cost(metric) else -np.inf,
        100.0 if factor == 100 else np.inf,
      )
      if winner in settings:
        axis.plot(
          positions[winner.values[name]],
          factor * sweep.scores(winner).mean(),
          "o",
          markersize=13,
          markerfacecolor="none",
          color="black",
        )
    if log:
      axis.set_xscale("log")
    words = [_value_text(name, tick) for tick in ticks]
    axis.set_xticks(
      [at[tick] for tick in ticks],
      list(map(texts.picture_text, words)),
      rotation=90 if len("".join(words)) > 40 else 0,
    )
    axis.minorticks_off()
    axis.margins(x=0.08)
    axis.set(xlabel=name, ylabel=f"{sweep.by} {metric.replace('_', ' ')}")
    if factor == 100:
      low, high = axis.get_ylim()
      axis.set_ylim(max(low, -1.0), min(high, 101.0))  # room for a cap
      axis.set_ylabel(f"{axis.get_ylabel()} (percent)")
