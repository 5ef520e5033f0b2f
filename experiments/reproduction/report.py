"""Tables that compare a paper's numbers with ours."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import csv
import fnmatch
import math
import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedjax_alg import files, metrics
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables as records

from ..cli import config as config_lib
from ..cli.config import Layer
from ..drawing import plots
from ..reports import rule
from . import chosen, pages, partitions, suite, verdicts

PAPERS = pathlib.Path(__file__).parent

_KEYS = ("artifact", "panel", "method", "metric", "value")


class Claim(NamedTuple):
  """A number that a paper states; shares are in percent."""

  artifact: str
  panel: str
  method: str
  metric: str
  value: float
  unit: str
  note: str
  round: int | None  #: the round of the number; None: the whole run
  printed: str = ""  #: the number as the paper has it
  #: why no run can test it, one of ``rule.UNTESTABLE``; of another protocol with
  #: what differs in brackets
  untestable: str = ""
  repeats: int = 1  #: the number of runs of which it is the mean
  #: the accuracy, at most 1, to which its rounds are counted; None: no rounds
  target: float | None = None
  #: the number of rounds in which the target is not reached; None: it is
  not_in: int | None = None


class NumberAnswer(NamedTuple):
  """Our number beside a paper's."""

  ours: str  #: in words
  verdict: str  #: one of ``rule.VERDICTS``
  reason: str
  draw95: float = math.nan  #: these are as in ``answers.PaperAnswer``
  values: tuple[tuple[float, ...], ...] = ()
  rounding: str = ""
  mean: float = math.nan
  ci95: float = math.nan


def answer_number(
  parts: rule.Parts,
  claim: Claim,
  choices: Iterable[chosen.Choice] = (),
  exact: bool = False,
  data: str = "",
  has_one_partition: bool = False,
  replicas: int = 1,
) -> NumberAnswer:
  """Judges our number beside a paper's.

  Args:
    parts: the numbers of the seeds of each partition, see ``rule.place_values``.
    claim: the paper's number; inf: never.
    choices: how the settings were chosen.
    exact: whether the number does not vary from run to run.
    data: the data set, of which the tie depends.
    has_one_partition: see ``rule.place_values``.
    replicas: see ``rule.mark_rounding``.
  """
  placement = rule.place_values(
    parts,
    claim.value,
    claim.unit,
    exact,
    data,
    claim.repeats,
    has_one_partition,
    math.inf if claim.not_in is None else claim.not_in,
  )
  arrays = [np.atleast_1d(np.asarray(part, float)) for part in parts]
  numbers = np.concatenate(arrays)
  if np.ndim(parts[0]) == 0:
    arrays = [numbers]
  never, claims_never = bool(np.isinf(numbers).any()), math.isinf(claim.value)
  verdict = rule.NOT_TESTABLE
  reason = claim.untestable or chosen.why_incomparable(list(choices))
  if not reason:
    gap = None if never or claims_never else abs(placement.mean - claim.value)
    verdict, reason = rule.verdict(
      placement, gap, claim.metric, claim.unit, claims_never
    )
  return NumberAnswer(
    rule.summarize_rounds(numbers) if never else placement.ours,
    verdict,
    reason,
    placement.draw95,
    () if exact else tuple(tuple(map(float, part)) for part in arrays),
    rule.mark_rounding(arrays, replicas, rule.tie_of(claim.value, claim.unit, data)),
    placement.mean,
    placement.ci95,
  )


class PaperComparison(NamedTuple):
  """A run beside the paper's number; shares are in percent."""

  outcome: suite.Outcome
  metric: str
  parts: tuple[np.ndarray, ...]  #: the numbers of the seeds of each partition
  claim: Claim | None = None  #: the paper's number; None: it has none

  @property
  def cell(self) -> suite.Cell:
    """The run's cell."""
    return self.outcome.cell

  @property
  def prediction(self) -> rule.Prediction:
    """Our mean and its intervals, see ``rule.predict``."""
    return rule.predict(self.parts, self.claim.repeats if self.claim else 1)

  @property
  def verdict(self) -> str:
    """The verdict with its reason, see ``rule.words``; no number, no verdict."""
    if self.claim is None:
      return rule.NO_NUMBER
    answer = answer_number(
      self.parts,
      self.claim,
      self.cell.choices,
      data=self.cell.data,
      has_one_partition=self.outcome.has_one_partition,
      replicas=self.cell.replicas,
    )
    return rule.words(answer.verdict, answer.reason, answer.rounding)


def read_claims(paper: str, name: str = "claims") -> list[dict[str, str]]:
  """All rows of reproduction/<paper>/<name>.csv, as text; [] of a study.

  Numbers that a setting or a metric of the claims has in words are columns of
  their own, where a paper has any: ``round``, ``target`` (percent), ``not_in``,
  ``repeats``, ``models``, ``participation`` (percent), ``clients``.
  """
  path = PAPERS / paper / f"{name}.csv"
  if not path.is_file():
    return []
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def match_pattern(
  patterns: Iterable[dict[str, str]], row: Mapping[str, str], column: str
) -> dict[str, str]:
  """The first row of judged.csv that matches a claim and has an entry in a column.

  Args:
    patterns: the rows of judged.csv (``claims_page``).
    row: a row of claims.csv.
    column: the column of judged.csv.

  Returns:
    The row; {} if none matches.
  """
  return next(
    (
      p
      for p in patterns
      if p[column]
      and all(fnmatch.fnmatchcase(row[key], p[key] or "*") for key in _KEYS)
    ),
    {},
  )


def same_patterns(
  patterns: Iterable[dict[str, str]], pattern: Mapping[str, str]
) -> list[dict[str, str]]:
  """The rows of judged.csv with the pattern and the kind of one of them."""
  keys = (*_KEYS, "kind")
  return [p for p in patterns if all(p[key] == pattern[key] for key in keys)]


def load_claims(paper: str, artifact: str) -> list[Claim]:
  """The plain numbers that a paper states for one figure or table.

  Rounds that are not enough, with a number in the column ``not_in``, are infinitely
  many.
  """
  claims, patterns = [], read_claims(paper, "judged")
  for row in read_claims(paper):
    if row["artifact"].lower() != artifact.lower():
      continue
    try:
      value = np.inf if row.get("not_in") else float(row["value"])
    except ValueError:
      continue  # an ordering, or a number lost in extraction
    unit = row["unit"]
    if unit == "fraction":
      value, unit = 100.0 * value, "%"
    pattern = match_pattern(patterns, row, "kind")
    untestable = kind if (kind := pattern.get("kind")) in rule.UNTESTABLE else ""
    if untestable == rule.OTHER_PROTOCOL:
      untestable += f" ({pattern['text']})"
    claims.append(
      Claim(
        row["artifact"],
        row["panel"],
        row["method"],
        row["metric"],
        value,
        unit,
        row["note"],
        int(row["round"]) if row.get("round") else None,
        row["value"],
        untestable,
        int(row.get("repeats") or 1),
        float(row["target"]) / 100 if row.get("target") else None,
        int(row["not_in"]) if row.get("not_in") else None,
      )
    )
  return claims


def paper_numbers(
  paper: str, artifact: str, metric: str = ""
) -> dict[tuple[str, str], float]:
  """(panel, method) -> the number of a metric, or of any, in a figure."""
  return {
    (c.panel, c.method): c.value
    for c in load_claims(paper, artifact)
    if metric in ("", c.metric)
  }


def marks(
  paper: str, artifact: str, outcomes: suite.Outcomes, metric: str
) -> dict[str, list[plots.Mark]]:
  """The numbers of a paper that lie on the curves of a figure.

  Args:
    paper: name of the paper.
    artifact: the figure or table.
    outcomes: the runs that are drawn.
    metric: the metric that is drawn.

  Returns:
    Heading of a panel -> its numbers: accuracies, at their round if one is
    stated, and the rounds to an accuracy.
  """
  claims = load_claims(paper, artifact)
  panel_marks: dict[str, list[plots.Mark]] = {}
  for panel_outcomes in suite.by_panel(outcomes):
    label = {o.cell.method: o.cell.label for o in panel_outcomes}
    # If a value is stated twice, the later number has more digits.
    numbers = {
      (c.method, where[1]): where[0]
      for c in claims
      if c.panel == panel_outcomes[0].cell.panel
      and c.method in label
      and (where := _place(c, metric)) is not None
    }
    panel_marks[panel_outcomes[0].cell.heading] = [
      plots.Mark(label[name], value, number)
      for (name, number), value in numbers.items()
    ]
  return panel_marks


def _place(claim: Claim, metric: str) -> tuple[float, float | None] | None:
  """(height, round) of a claim in a figure of a metric; None: it has none."""
  metric_name = claim.metric.removeprefix("test_")
  if claim.unit == "%" and metric_name in (metric, f"{metric}_max", f"{metric}_end"):
    return claim.value / 100.0, claim.round
  if claim.target and metric == "accuracy" and np.isfinite(claim.value):
    return claim.target, claim.value
  return None


def compare_with_paper(
  outcomes: suite.Outcomes, claims: Sequence[Claim], protocol: str, metric: str
) -> list[PaperComparison]:
  """Compares each outcome with the claim about its panel and method.

  Ours is the mean over the evaluations of the last ten rounds, which
  involves no choice on test data; with K models it is the mean of the K.
  """
  claim_of = {
    (c.panel, c.method, c.metric.removeprefix("test_")): c
    for c in reversed(claims)
    if c.round is None
  }
  rows = []
  for outcome in outcomes:
    name = outcome.cell.metric or metric
    parts = partitions.measure_parts(verdicts.late(name, protocol), outcome)
    claim = claim_of.get((outcome.cell.panel, outcome.cell.method, name))
    rows.append(PaperComparison(outcome, name, tuple(parts), claim))
  return rows


def figure_numbers(
  rows: Sequence[PaperComparison], own_names: tuple[str, ...] = ()
) -> list[pages.Block]:
  """The paper's numbers and ours, a column for each panel.

  Args:
    rows: the numbers.
    own_names: beginnings of the names of the paper's own methods, which come
      first; all others are collapsed. (): nothing is.
  """
  methods = list(dict.fromkeys(row.cell.label for row in rows))
  mine = [m for m in methods if m.startswith(own_names)] if own_names else methods
  others = [m for m in methods if m not in mine]
  blocks: list[pages.Block] = []
  if rows:
    percent = "" if rows[0].metric == "loss" else ", in percent"
    blocks.append(
      f"{rows[0].metric.replace('_', ' ')}, mean of the last ten rounds{percent}."
    )
  if mine:
    blocks.append(_table_of(rows, mine))
  if others:
    table = _table_of(rows, others)
    blocks.append(pages.Others(others, table) if mine else table)
  return blocks


def _table_of(rows: Sequence[PaperComparison], methods: Sequence[str]) -> pages.Table:
  """The numbers of some methods: the paper's, then ours by every protocol."""
  cells: list[tuple[str, str, str]] = []
  for method in methods:
    for row in rows:
      panel = row.cell.place
      if row.cell.label == method:
        if row.claim is not None:
          cells.append((panel, f"{method}, the paper", f"{row.claim.value:.1f}"))
        cells.append((panel, f"{method}, {row.cell.tuning}", _cell(row)))
  return panel_table(cells)


def _cell(row: PaperComparison) -> str:
  """Ours, and the verdict on the paper's number."""
  digits, (mean, ci95, _) = metrics.digits(row.metric), row.prediction
  text = f"{mean:.{digits}f}" + ("" if np.isnan(ci95) else f" +- {ci95:.{digits}f}")
  if row.claim is None:
    return text
  return f"{text}, {row.verdict}"


#: Columns of numbers of a curve that ``numbers_csv`` writes -> the score in them.
_ENDS = {"best": "best", "final": "final", "mean_last_10": "last_10"}


def numbers_csv(path: pathlib.Path, rows: Sequence[PaperComparison]) -> None:
  """Writes every number of a figure, how its settings were chosen, its flags.

  Args:
    path: the file.
    rows: the paper's number and ours of each run, as ``compare_with_paper`` makes them.
      Accuracies, and other metrics of a share, are there in percent for every
      protocol: best, last, mean of the last ten.
  """
  ends = {
    (which, protocol, metric): None
    for row in rows
    for which in _ENDS
    for protocol in row.outcome.frames.protocols
    for metric in row.outcome.frames.names
    if metric in _OF_NUMBERS
  }
  with (
    files.replacing(path) as partial,
    open(partial, "w", newline="", encoding="utf-8") as file,
  ):
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
      [
        "panel",
        "title",
        "method",
        "protocol",
        "metric",
        "paper",
        "ours",
        "ci95",
        "draw95",
        "values",
        "verdict",
        "rounds",
        *(f"{which}_{protocol}_{metric}" for which, protocol, metric in ends),
        chosen.COLUMN,
        "flags",
      ]
    )
    for row in rows:
      cell, summary, (mean, *widths) = row.cell, row.outcome.summary, row.prediction
      writer.writerow(
        [
          cell.panel,
          cell.panel_title,
          cell.label,
          cell.tuning,
          row.metric,
          "" if row.claim is None else row.claim.value,
          f"{mean:.6g}",
          *("" if np.isnan(width) else f"{width:.6g}" for width in widths),
          rule.list_values(row.parts),
          row.verdict,
          summary["cost"]["rounds"],
          *(
            _mean(row.outcome.frames.estimate(_ENDS[which], protocol, metric), metric)
            for which, protocol, metric in ends
          ),
          row.outcome.settings,
          format_flags(row.outcome),
        ]
      )


_OF_NUMBERS = ("accuracy", "client_accuracy", "worst_decile", "loss")


def _mean(estimate: metrics.Estimate | None, metric: str) -> str:
  """The mean of a metric; "" where there is none."""
  if estimate is None or np.isnan(estimate.mean):
    return ""
  return f"{metrics.factor(metric) * estimate.mean:.6g}"


def deployment_section(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: accuracy of the deployed models on the clients' test splits.

  Lines at one rate are left out.

  With Per-FedAvg a client deploys the global model after its adaptation step,
  while the table above shows the model before that step.
  """
  cells = []
  names = [
    name
    for name in ("local", "preferred")
    if any(name in o.frames.protocols for o in outcomes)
  ]
  for o in outcomes:
    if o.cell.protocol != suite.ONE_RATE and {*names} & {*o.frames.protocols}:
      cells.append(
        (
          o.cell.heading,
          o.cell.name,
          " / ".join(
            metrics.format_estimate(
              o.frames.estimate("last_10", name, "accuracy"), factor=100
            )
            for name in names
          ),
        )
      )
  if not cells:
    return []
  return [
    pages.Heading("On the clients' own data"),
    f"Accuracy, mean of the last ten rounds ({' / '.join(names)}): `local` tests the "
    "model that a client deploys on its test split (PFedAvg: after one adaptation "
    "step on its training data; MA, GA: the model it prefers). `preferred` tests its "
    "preferred global model on its mixture of classes.",
    panel_table(cells),
  ]


def panel_table(cells: Iterable[tuple[str, str, str]]) -> pages.Table:
  """A table of (panel, line, text); the panels are its columns.

  They are its rows where they are more than the lines.
  """
  texts = {(panel, line): text for panel, line, text in cells}
  panels = list(dict.fromkeys(panel for panel, _ in texts))
  lines = list(dict.fromkeys(line for _, line in texts))
  head, *rows = [
    ["", *panels],
    *([line, *(texts.get((panel, line), "-") for panel in panels)] for line in lines),
  ]
  if len(panels) > len(lines):
    head, *rows = map(list, zip(head, *rows))
  return pages.Table(head, rows)


def with_tunings(tunings: Sequence[str]) -> tuple[list[str], list[tuple[str, ...]]]:
  """Makes the heads of our numbers, and of how their settings were found.

  Args:
    tunings: of each row of a table, see ``chosen.tuning``; "": there are none.

  Returns:
    The heads, and what each row has below the second one. Where all rows have
    the same there is one head, that word.
  """
  kinds = list(dict.fromkeys(filter(None, tunings)))
  if len(kinds) < 2:
    return kinds or ["ours"], [() for _ in tunings]
  return ["ours", "settings"], [(word or "-",) for word in tunings]


#: Content of a column of a table, from a run.
Column = Callable[[suite.Outcome], object]


def of_runs(
  outcomes: Iterable[suite.Outcome], columns: Mapping[str, Column], panel: str = "panel"
) -> pages.Table:
  """A table of a row for each run: panel, method and columns."""
  return pages.Table(
    [panel, "method", *columns],
    [
      [o.cell.panel_title, o.cell.name, *(cell(o) for cell in columns.values())]
      for o in outcomes
    ],
  )


def points_csv(
  path: pathlib.Path, outcomes: suite.Outcomes, protocol: str, metric: str
) -> None:
  """Writes the points of a figure's curves, with their costs and times.

  Of pooled runs the seeds of a partition have the same numbers as those of the
  others.
  """
  names = dict.fromkeys([metric, *(o.cell.metric for o in outcomes if o.cell.metric)])
  costs = ["round", "seed", *records.ROUND_COST, *records.TOTALS, "seconds"]
  head = ["panel", "panel_title", "method", "partition", "round", "seed"]
  columns = [*head, *names, *costs[2:]]
  parts = [
    o.frames.points(protocol, costs).assign(
      panel=o.cell.panel, panel_title=o.cell.panel_title, method=o.cell.name
    )
    for o in outcomes
  ]
  points = pd.concat(parts) if parts else pd.DataFrame()
  with files.replacing(path) as partial:
    points.reindex(columns=columns).to_csv(partial, index=False)


def local_provenance(command_line: str, notes: str = "") -> pages.Provenance:
  """How a table without runs was made."""
  versions = {name: number[:12] for name, number in results.versions().items()}
  return pages.Provenance(command_line, versions, results.device(), notes)


def _without_folders(layer: Layer) -> Layer:
  """Settings as tables show them: a path of data has only the name of its file."""
  if isinstance(layer, str):
    return layer
  return {
    flag: _without_folder(str(value)) if flag == "dataset" else value
    for flag, value in layer.items()
    if flag != "data_dir"
  }


def _without_folder(dataset: str) -> str:
  """The text of a data set with only the name of its file or folder."""
  word, colon, path = dataset.partition(":")
  return dataset if word == "tfds" else word + colon + pathlib.Path(path).name


def made_of(
  outcomes: suite.Outcomes, command_line: str, notes: str, flags: bool = True
) -> pages.Provenance:
  """How a figure was made: command, versions, devices and flags.

  Args:
    outcomes: the runs.
    command_line: the command that made the figure.
    notes: further sentences.
    flags: whether the flags of the first panel are shown.
  """
  if not outcomes:
    return local_provenance(command_line, notes)

  def all_of(values):
    return " and ".join(dict.fromkeys(values))

  return pages.Provenance(
    command_line,
    {
      name: all_of(o.summary["versions"].get(name, "unknown")[:12] for o in outcomes)
      for name in outcomes[0].summary["versions"]
    },
    all_of(o.summary["device"] for o in outcomes),
    f"{partitions.describe_intervals(outcomes)} {notes}".strip(),
    [
      [o.cell.name, o.settings, format_flags(o)]
      for o in outcomes
      if flags and o.cell.panel == outcomes[0].cell.panel
    ],
  )


def format_flags(outcome: suite.Outcome) -> str:
  """The flags of a run, as tables show them."""
  return " ".join(
    config_lib.layer_words(map(_without_folders, outcome.cell.config.layers))
  )
