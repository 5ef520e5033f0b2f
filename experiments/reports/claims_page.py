"""Every number and sentence of the papers, what our runs say of it, and why.

The rows of papers/<paper>/claims.csv are joined with the answers of the runs
(``answers``). What no run can answer, or in other words, stands in
papers/<paper>/judged.csv, whose rows are patterns (``fnmatch``) of those of
claims.csv; an empty pattern matches everything:

- ``kind``: ``setting`` (a setting of the paper, which is no claim),
  ``sentences`` (``text`` has the beginnings of the sentences that answer it,
  separated by " & ", and before a "|" the figures that they are of), or a
  verdict (``text`` says why).
- ``tried``: what was tried, where a row is not met.

Of several patterns that match the first with a kind counts, and the first with
something tried.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import collections
import csv
import fnmatch
from typing import NamedTuple

from . import report, rule
from .answers import Answer
from .styles import STATED

#: Verdicts in the order of the table of counts.
VERDICTS = ("holds", rule.SAME, rule.ABOVE, rule.BELOW, "does not hold",
            rule.UNDECIDED, rule.NOT_COMPARABLE, rule.NOT_RUN, "lost")
_MEANING = (
    "`same`, `above` and `below` place our number beside the paper's, `holds` "
    "and `does not hold` judge a sentence; `undecided`: the interval is too "
    "wide for the claim, or one run alone was played; `not comparable`: "
    "settings were chosen on test data, the paper's data or machines are not "
    "at hand; `lost`: the paper's number is missing from its text. `same` is "
    "at most 0.3 points apart (5 % for numbers that are no shares), with an "
    "interval of at most 0.5 points (8 %) to either side. A row is met if it "
    "agrees (`same` or `holds`), or if the number is better than printed and "
    "of the paper's own method. A baseline that is better than printed is not "
    "met, nor is a method that gets where it never gets in the paper.")

#: The worst of several sentences decides a row.
_WORST = ("does not hold", rule.NOT_RUN, rule.NOT_COMPARABLE, rule.UNDECIDED,
          "holds")
_KEYS = ("artifact", "panel", "method", "metric", "value")


class Row(NamedTuple):
  """A row of a claims file with its answer."""

  claim: Mapping[str, str]
  ours: str
  verdict: str  #: one of ``VERDICTS``
  settings: str
  met: bool
  tried: str
  stated: str = ""  #: ours and the verdict with the stated settings, if others


def _judged(paper: str) -> list[dict[str, str]]:
  path = report.PAPERS / paper / "judged.csv"
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def _matching(
    patterns: Iterable[dict[str, str]], row: Mapping[str, str], column: str
) -> dict[str, str]:
  """The first pattern that matches a row and has something in a column."""
  return next((p for p in patterns if p[column] and all(
      fnmatch.fnmatchcase(row[key], p[key] or "*") for key in _KEYS)), {})


def _sentences(text: str, found: Sequence[Answer]) -> tuple[str, str]:
  """(what was measured, the verdict) of the sentences that begin so."""
  parts, words = [], []
  for word in text.split(" & "):
    artifact, _, start = word.rpartition("|")
    own: dict[tuple[str, str], Answer] = {}
    for a in found:
      if not a.metric and a.claim.startswith(start) and fnmatch.fnmatchcase(
          a.artifact, artifact or "*"):
        key = a.artifact, a.claim
        own[key] = min(own.get(key, a), a, key=_order)
    words += [a.verdict for a in own.values()] or [rule.NOT_RUN]
    parts += [a.ours for a in own.values()] or [
        f"\"{start}\" was not judged"]
  return " / ".join(parts), min(words, key=_WORST.index)


def _order(answer: Answer) -> tuple[bool, bool]:
  """Of several answers to one claim the least by this counts.

  A figure of ours that goes further than the paper's, such as Table 3 on nine
  partitions, counts before the paper's.
  """
  return (answer.verdict in (rule.NOT_COMPARABLE, rule.NOT_RUN),
          answer.figure.lower() == answer.artifact.lower())


def _lower_is_better(metric: str) -> bool:
  return metric.startswith(("rounds_to", "discrepancy", "loss", "central_"))


def _answers(
    row: Mapping[str, str], found: Sequence[Answer]) -> list[Answer]:
  """The answers to a plain number, those by the stated settings too."""
  return [a for a in found if a.metric == row["metric"] and (
      a.artifact, a.panel, a.claim) == (
          row["artifact"], row["panel"], row["value"])
          and a.method.removesuffix(STATED) == row["method"]]


def _number(
    row: Mapping[str, str], found: Sequence[Answer], own: tuple[str, ...]
) -> tuple[str, str, str, bool]:
  """(ours, verdict, settings, met) of a plain number.

  Where the settings of the first choice were chosen on test data the stated
  ones decide.
  """
  answers = _answers(row, found)
  if not answers:
    return "-", rule.NOT_RUN, "", False
  one = min(answers, key=_order)
  better = rule.BELOW if _lower_is_better(row["metric"]) else rule.ABOVE
  # Where the paper says that a method never gets there, sooner is not better.
  met = one.verdict == rule.SAME or (
      one.verdict == better and row["method"].startswith(own)
      and not row["value"].startswith(">"))
  said = one.ours + (STATED if one.method.endswith(STATED) else "")
  return said, one.verdict, one.settings, met


def _by_stated(row: Mapping[str, str], found: Sequence[Answer]) -> str:
  """Ours and the verdict with the stated settings, where there are others."""
  return next((f"{a.ours}, {a.verdict}" for a in _answers(row, found)
               if a.method.endswith(STATED)), "")


def rows(
    paper: str, own: tuple[str, ...], found: Sequence[Answer]) -> list[Row]:
  """Every row of a claims file that is no setting, with its answer.

  Args:
    paper: the paper.
    own: beginnings of the names of its own methods.
    found: the answers of our runs.
  """
  patterns, out = _judged(paper), []
  for row in report.read_claims(paper):
    tried = _matching(patterns, row, "tried").get("tried", "")
    kind = _matching(patterns, row, "kind")
    settings = ""
    if kind.get("kind") == "setting":
      continue
    if kind.get("kind") == "sentences":
      ours, verdict = _sentences(kind["text"], found)
      met = verdict == "holds"
    elif kind:
      ours, verdict, met = kind["text"], kind["kind"], False
    else:
      ours, verdict, settings, met = _number(row, found, own)
    out.append(Row(row, ours, verdict, settings, met, tried,
                   _by_stated(row, found)))
  return out


def _counts(papers: Mapping[str, Sequence[Row]]) -> str:
  """The table of counts by verdict and paper."""
  counted = {name: collections.Counter(r.verdict for r in found)
             for name, found in papers.items()}
  rows = []
  for verdict in VERDICTS:
    numbers = [own[verdict] for own in counted.values()]
    rows.append([verdict, *numbers, sum(numbers)])
  for name, chosen in (
      ("met", lambda r: r.met),
      ("of these better than printed", lambda r: r.met and not _agrees(r)),
      ("decided", _decided), ("all rows", lambda r: True)):
    numbers = [sum(map(chosen, found)) for found in papers.values()]
    rows.append([f"**{name}**", *numbers, sum(numbers)])
  return report.table(["verdict", *papers, "all"], rows)


def _decided(row: Row) -> bool:
  """Whether a run has decided a row."""
  return row.verdict in ("holds", "does not hold", rule.SAME, rule.ABOVE,
                         rule.BELOW)


def _agrees(row: Row) -> bool:
  """Whether ours is the paper's number, or its sentence holds."""
  return row.verdict in ("holds", rule.SAME)


def _said(claim: Mapping[str, str]) -> str:
  """A claim in words; fractions in percent, as ours are."""
  if claim["value"] == "missing":
    return claim["note"]
  value, unit = claim["value"], claim["unit"]
  if unit == "fraction":
    value, unit = f"{100 * float(value):g}", "%"
  return f"{claim['metric']} {value} {unit}".replace("|", "/").strip()


def _table(
    title: str, found: Iterable[Row], last: str, of_row: Callable[[Row], str]
) -> str:
  """The rows as a section, with a last column of their own."""
  return f"## {title}\n\n" + report.table(
      ["where", "method", "claim", "ours", "verdict", "settings chosen by",
       last],
      ([c["artifact"] + (f" {c['panel']}" if c["panel"] else ""), c["method"],
        _said(c), r.ours, r.verdict, r.settings or "-", of_row(r) or "-"]
       for r in found for c in [r.claim]))


def page(papers: Mapping[str, Sequence[Row]]) -> str:
  """The Markdown page: counts, every row that is not met, and those met."""
  parts = [_MEANING, _counts(papers)]
  for name, found in papers.items():
    parts += [
        _table(f"{name}: not met", (r for r in found if not r.met),
               "what was tried", lambda r: r.tried),
        _table(f"{name}: met", (r for r in found if r.met),
               "with the stated settings", lambda r: r.stated)]
  return report.join("Claims of the papers", parts)
