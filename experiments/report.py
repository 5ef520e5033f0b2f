"""Paper-versus-ours tables, from the numbers the papers state."""

from collections.abc import Sequence
import csv
import pathlib
from typing import Any, NamedTuple

from experiments import results, suite

CLAIMS = pathlib.Path(__file__).parent / "claims"

#: Differences up to this many points are ties: the papers say "approximately"
#: and readings of one formula differ by as much.
TIE = 0.3


class Claim(NamedTuple):
  """A number a paper states, in percent where it is a share."""

  artifact: str
  panel: str
  method: str
  metric: str
  value: float
  unit: str
  note: str


class Comparison(NamedTuple):
  """One row of a table, in the claim's unit."""

  panel: str
  title: str
  method: str
  metric: str
  paper: float | None
  ours: float
  ci95: float
  best: float

  @property
  def verdict(self) -> str:
    """same, above or below, by more than a tie and the interval."""
    if self.paper is None:
      return "no number in the paper"
    gap = self.ours - self.paper
    if abs(gap) <= max(TIE, self.ci95):
      return "same"
    return "above" if gap > 0 else "below"


def read_claims(paper: str) -> list[dict[str, str]]:
  """All rows of claims/<paper>.csv, as text."""
  with open(CLAIMS / f"{paper}.csv", newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def load_claims(paper: str, artifact: str) -> list[Claim]:
  """The plain numbers of one figure or table; shares become percent."""
  claims = []
  for row in read_claims(paper):
    if row["artifact"].lower() != artifact.lower():
      continue
    try:
      value = float(row["value"])
    except ValueError:
      continue  # an ordering, or a number lost in extraction
    unit = row["unit"]
    if unit == "fraction":
      value, unit = 100.0 * value, "%"
    claims.append(Claim(
        row["artifact"], row["panel"], row["method"], row["metric"], value,
        unit, row["note"]))
  return claims


def compare(
    outcomes: Sequence[suite.Outcome], claims: Sequence[Claim], protocol: str,
    metric: str) -> list[Comparison]:
  """Each outcome beside the claim of its panel and method, in percent.

  Ours is the mean over the evaluations of the last ten rounds, which no
  choice on test data enters; ``best`` is the best evaluated round.
  """
  rows = []
  for outcome in outcomes:
    cell, summary = outcome.cell, outcome.summary
    method = cell.label.split(" (")[0]
    found = [c.value for c in claims if c.panel == cell.panel and (
        c.method == method) and c.metric.removeprefix("test_") == metric]
    late = summary["mean_last_10"][protocol][metric]
    rows.append(Comparison(
        cell.panel, cell.panel_title, cell.label, metric,
        found[0] if found else None, 100 * late["mean"], 100 * late["ci95"],
        100 * summary["best"][protocol][metric]["mean"]))
  return rows


def markdown(title: str, rows: Sequence[Comparison], notes: str) -> str:
  """The table paper | ours mean +- CI | difference | verdict."""
  lines = [f"# {title}", "", "| panel | method | metric | paper | ours (mean "
           "of the last 10 rounds +- 95 % CI) | best round | difference | "
           "verdict |", "|---|---|---|---|---|---|---|---|"]
  for r in rows:
    paper = "-" if r.paper is None else f"{r.paper:.1f}"
    gap = "-" if r.paper is None else f"{r.ours - r.paper:+.2f}"
    lines.append(
        f"| {r.panel}: {r.title} | {r.method} | {r.metric} | {paper} | "
        f"{r.ours:.2f} +- {r.ci95:.2f} | {r.best:.2f} | {gap} | {r.verdict} |")
  return "\n".join([*lines, "", notes.strip(), ""])


def points_csv(
    path: pathlib.Path, outcomes: Sequence[suite.Outcome], protocol: str,
    metric: str) -> None:
  """The points of a figure's curves."""
  with open(path, "w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["panel", "panel_title", "method", "round", "seed",
                     metric, *results.COST])
    for outcome in outcomes:
      cell = outcome.cell
      for row in outcome.rows:
        if row["protocol"] == protocol:
          writer.writerow([
              cell.panel, cell.panel_title, cell.label, row["round"],
              row["seed"], row[metric], *(row[c] for c in results.COST)])


def provenance(outcomes: Sequence[suite.Outcome], flags: Any) -> str:
  """What a table was made with, as Markdown."""
  summary = outcomes[-1].summary
  versions = ", ".join(f"{k} {v}" for k, v in summary["versions"].items())
  return (f"Made by `{flags}`; {versions}; {summary['device']}. A difference "
          f"of at most {TIE} points, or within the interval, counts as the "
          "same.")
