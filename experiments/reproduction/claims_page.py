"""Every number and sentence of the papers, and what our runs say of it.

The rows of reproduction/<paper>/claims.csv are joined with the answers of the runs
(``answers``). What no run can answer, or in other words, stands in
reproduction/<paper>/judged.csv, whose rows are patterns (``fnmatch``) of those of
claims.csv; an empty pattern matches everything:

- ``kind``: ``setting`` (a setting of the paper, which is no claim),
  ``sentences`` (``text`` has the beginnings of the sentences that answer it,
  separated by " & ", and before a "|" the figures that they are of), or a
  verdict (``text`` says why).
- ``cause``: of a sentence that does not hold, why: ``baseline`` (other methods
  are stronger here), ``method`` (the paper's own falls short), ``range`` (more
  than the paper says), ``trend`` (it goes another way) or ``close`` (the
  difference is of the size of its interval).
- ``tried``: what was tried, where a row is not met.

Of several patterns that match the first with an entry in a column counts.

Two questions are kept apart: does a method reach its number, and does its
margin hold. Numbers that are one measurement are one row: micro averages of
single labels are the accuracy, and several figures may show the same runs.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import fnmatch
import re
from typing import NamedTuple

from ..reports import markdown, rule
from . import chosen, report, suite, verdicts
from .answers import PaperAnswer

_MEANING = (
  "Two questions, never one: *does a method reach its number*, and *does its "
  "margin over others hold*. Each with how the settings were found: `tuned` "
  "(every method's by a search on validation data, equal budgets), `stated` "
  "(the paper's own numbers), `one rate` (the paper's learning rate for all "
  "methods), `tuned in part` (some settings, or those of some methods that "
  "are compared, have usual values instead). Features of the data that "
  "validation chose are those of the stated settings, too. `no run`: not "
  "run, or our copy of the paper has lost the number. `reaches`: at most 0.3 "
  "points apart (5 % for numbers that are no shares), with an interval of at "
  "most half a point (8 %) to either side; `exceeds`, `short`: further, and "
  "by more than the interval; `open`: the interval is too wide for either, "
  "or one run alone was made; `gets there`: the paper's method does not get "
  "there within its rounds and ours does, which is no number that is "
  "reached; `as printed`: neither does. What is "
  "one measurement is one row: micro recall, micro precision and micro F1 of "
  "single labels are the accuracy, and figures that show the same runs are "
  "counted once; the numbers that the paper prints besides stand in "
  "brackets. Macro precision and macro F1 are other numbers of the same runs "
  "and rows of their own, though they move with the accuracy. Of a sentence "
  "about several panels the least and the greatest difference is shown, of "
  "the part that decides; all are in `<paper>.answers.csv`."
)

#: The words of sentences, in the order in which the worst of several counts.
FAILS = "does not hold"
_WORST = (FAILS, rule.NOT_RUN, rule.NOT_COMPARABLE, rule.UNDECIDED, "holds")
_CAUSES = {
  "baseline": "fails: baseline stronger",
  "method": "fails: method short",
  "range": "exceeds the range",
  "trend": "fails: other trend",
  "close": "too close to call",
  "": "fails",
}
_KEYS = ("artifact", "panel", "method", "metric", "value")

#: Metrics that are the accuracy where every example has one label.
_ACCURACY = ("accuracy", "micro_recall", "micro_precision", "micro_f1")


class _Row(NamedTuple):
  """A measurement, or a sentence, with its answer."""

  claim: Mapping[str, str]
  kind: str  #: own, other (numbers of methods), sentence
  ours: str
  verdict: str  #: of ``rule``, or holds, does not hold, lost
  words: str  #: the verdict in words
  tried: str
  #: ours and the words by the paper's settings, or at its one rate, where these
  #: are not the first
  stated: str = ""
  printed: tuple[str, ...] = ()  #: other numbers that the paper prints for it
  tuning: str = ""  #: how the settings of ``ours`` were found; "": no run

  @property
  def where(self) -> str:
    return " ".join(filter(None, (self.claim["artifact"], self.claim["panel"])))


def _matching(
  patterns: Iterable[dict[str, str]], row: Mapping[str, str], column: str
) -> dict[str, str]:
  """The first pattern that matches a row and has something in a column."""
  return next(
    (
      p
      for p in patterns
      if p[column]
      and all(fnmatch.fnmatchcase(row[key], p[key] or "*") for key in _KEYS)
    ),
    {},
  )


#: The difference that was measured, in one of the parts of a finding.
_GAP = re.compile(r"(?:^| )([+-]\d+(?:\.\d+)?)")


def _finding(ours: str) -> str:
  """The least and the greatest of several panels' differences, as words."""
  parts = ours.split("; ")
  gaps = [_GAP.search(part) for part in parts]
  if len(parts) < 3 or not all(gaps):
    return ours
  ordered = [
    part for _, part in sorted(zip((float(gap[1]) for gap in gaps if gap), parts))
  ]
  return f"{ordered[0]} to {ordered[-1]}"


def _sentences(text: str, answers: Sequence[PaperAnswer]) -> tuple[str, str, str]:
  """(what was measured, the verdict, the tuning) of the sentences.

  They are those that begin so.

  Of several the first that decides the verdict is shown.
  """
  candidates = []
  for word in text.split(" & "):
    artifact, _, start = word.rpartition("|")
    best: dict[tuple[str, str], PaperAnswer] = {}
    for a in answers:
      if (
        not a.metric
        and a.claim.startswith(start)
        and fnmatch.fnmatchcase(a.artifact, artifact or "*")
      ):
        key = a.artifact, a.claim
        best[key] = min(best.get(key, a), a, key=_order)
    candidates += [
      (a.verdict, a.claim.split(" (")[0], a.ours, a.tuning) for a in best.values()
    ] or [(rule.NOT_RUN, start, "was not judged", "")]
  verdict, claim, ours, tuning = min(
    candidates, key=lambda candidate: _WORST.index(candidate[0])
  )
  prefix = f"{claim.lstrip('. ')}: " if len(candidates) > 1 else ""
  return prefix + _finding(ours), verdict, tuning


def _order(answer: PaperAnswer) -> tuple[bool, bool, bool]:
  """Returns the sort key of an answer; of several to a claim the least counts.

  A figure of ours that goes further than the paper's, such as Table 3 on nine
  partitions, counts before the paper's.
  """
  return (
    answer.of[1] != suite.TUNED,
    answer.verdict in (rule.NOT_COMPARABLE, rule.NOT_RUN),
    answer.figure.lower() == answer.artifact.lower(),
  )


def _words(row: Mapping[str, str], answer: PaperAnswer, is_own: bool) -> str:
  """The verdict on a number in words."""
  factor = 100.0 if row["unit"] == "fraction" else 1.0
  return answer.words(
    factor * float(row["value"].lstrip(">")),
    row["unit"],
    is_own,
    never=row["value"].startswith(">"),
  )


def _number(
  row: Mapping[str, str], answers: Sequence[PaperAnswer], is_own: bool
) -> tuple[str, str, str, str, str]:
  """(ours, verdict, words, by the stated settings, tuning) of a number."""
  matches = sorted(
    (
      a
      for a in answers
      if (a.metric, a.artifact, a.panel, a.claim, a.of[0])
      == (row["metric"], row["artifact"], row["panel"], row["value"], row["method"])
    ),
    key=_order,
  )
  if not matches:
    return "-", rule.NOT_RUN, rule.NOT_RUN, "", ""
  first = matches[0]
  stated = next(
    (
      f"{a.ours}: {_words(row, a, is_own)}"
      for a in matches[1:]
      if a.of[1] != suite.TUNED
    ),
    "",
  )
  return (first.ours, first.verdict, _words(row, first, is_own), stated, first.tuning)


def _measurement(
  row: Mapping[str, str], same_runs: Mapping[str, str], balanced: Sequence[str]
) -> tuple[str, ...]:
  """Identifies what a number measures; two numbers may measure the same."""
  metric = row["metric"].removeprefix("test_")
  if metric in _ACCURACY or (metric == "macro_recall" and row["artifact"] in balanced):
    metric = "accuracy"
  return (
    same_runs.get(row["artifact"], row["artifact"]),
    row["panel"],
    row["method"],
    metric,
    str(report.round_of(row["setting"])),
  )


def claim_rows(
  paper: str,
  own_names: tuple[str, ...],
  answers: Sequence[PaperAnswer],
  same_runs: Mapping[str, str] | None = None,
  balanced: Sequence[str] = (),
) -> list[_Row]:
  """The measurements and sentences of a paper with their answers.

  Args:
    paper: the paper.
    own_names: beginnings of the names of its own methods.
    answers: the answers of our runs.
    same_runs: figure -> the figure whose runs it shows.
    balanced: figures on a test set with equally many examples of each class,
      where the macro recall is the accuracy.
  """
  patterns = report.read_claims(paper, "judged")
  out: dict[tuple[str, ...], _Row] = {}
  key: tuple[str, ...]
  for number, row in enumerate(report.read_claims(paper)):
    tried = _matching(patterns, row, "tried").get("tried", "")
    kind = _matching(patterns, row, "kind")
    if kind.get("kind") == "setting":
      continue
    mine = row["method"].startswith(own_names)
    role, stated, key = "own" if mine else "other", "", (str(number),)
    tuning = ""
    if kind.get("kind") == "sentences":
      role = "sentence"
      ours, verdict, tuning = _sentences(
        kind["text"], [a for a in answers if not a.method]
      )
      cause = _matching(patterns, row, "cause").get("cause", "")
      words = {FAILS: _CAUSES[cause], rule.UNDECIDED: "too close to call"}.get(
        verdict, verdict
      )
      its, by, _ = _sentences(
        kind["text"], [a for a in answers if a.method == verdicts.PAPERS_OWN]
      )
      stated = "" if by == rule.NOT_RUN else f"{its}: {by}"
    elif kind:
      ours, verdict, words = kind["text"], kind["kind"], kind["kind"]
    else:
      key = _measurement(row, same_runs or {}, balanced)
      ours, verdict, words, stated, tuning = _number(row, answers, mine)
    if key in out:
      out[key] = out[key]._replace(
        printed=(*out[key].printed, f"{_value(row)} ({row['artifact']})")
      )
    else:
      out[key] = _Row(row, role, ours, verdict, words, tried, stated, tuning=tuning)
  return list(out.values())


_UNKNOWN = (rule.NOT_COMPARABLE, rule.NOT_RUN)
_REACHED = ("reaches", "exceeds", "sooner", "cheaper", "lower", "faster", "as printed")
_ELSE = ("gets there", "open", "lost", *_UNKNOWN)
_NO_RUN = "no run"

#: The columns of ``_head`` after the first.
_COLUMNS = (
  "numbers: reach or exceed",
  "gets there, the paper's does not",
  "short",
  "open",
  "not comparable, not run, lost",
  "sentences: hold",
  "too close to call",
  "fail",
  "fail as a baseline is stronger",
)


def _standing(words: str) -> str:
  """Reduces a verdict in words on a number to reached, short, or why neither."""
  return (
    "reached" if words.startswith(_REACHED) else words if (words in _ELSE) else "short"
  )


def _head(papers: Mapping[str, Sequence[_Row]]) -> str:
  """The table: numbers of every paper's own methods, and its sentences."""
  lines = []
  for name, paper_rows in papers.items():
    for tuning, words in _by_tuning(paper_rows).items():
      own_counts, sentence_counts = (
        collections.Counter(map(_standing, words["own"])),
        collections.Counter(words["sentence"]),
      )
      lines.append(
        [
          f"{name}, {tuning}",
          own_counts["reached"],
          own_counts["gets there"],
          own_counts["short"],
          own_counts["open"],
          sum(own_counts[word] for word in (*_UNKNOWN, "lost")),
          sentence_counts["holds"] + sentence_counts[_CAUSES["range"]],
          sentence_counts["too close to call"] + sentence_counts[rule.UNDECIDED],
          sum(
            number
            for text, number in sentence_counts.items()
            if text.startswith(("fails", FAILS))
          ),
          # The causes are unknown for the paper's own settings.
          "-" if sentence_counts[FAILS] else sentence_counts[_CAUSES["baseline"]],
        ]
      )
  return markdown.table(["paper, settings", *_COLUMNS], lines)


def _by_tuning(paper_rows: Sequence[_Row]) -> dict[str, dict[str, list[str]]]:
  """Sorts verdicts in words: choice of the settings -> kind of row -> verdicts."""
  order = (
    chosen.TUNED,
    chosen.IN_PART,
    chosen.STATED,
    suite.ONE_RATE,
    chosen.UNTUNED,
    _NO_RUN,
  )
  words: dict[str, dict[str, list[str]]] = {}
  for row in paper_rows:
    if row.kind == "other":
      continue
    pairs = [(row.tuning or _NO_RUN, row.words)]
    if row.stated:
      pairs.append((suite.STATED, row.stated.rpartition(": ")[2]))
    for tuning, text in pairs:
      words.setdefault(tuning, {"own": [], "sentence": []})[row.kind].append(text)
  return {
    tuning: words[tuning]
    for tuning in sorted(
      words, key=lambda tuning: order.index(tuning) if tuning in order else -1
    )
  }


def _claim_text(claim: Mapping[str, str]) -> str:
  """A claim in words; fractions in percent, as ours are."""
  if claim["value"] == "missing":
    return claim["note"]
  metric = claim["metric"].removeprefix("test_").replace("_", " ")
  unit = {"fraction": "%", "relation": ""}.get(claim["unit"], claim["unit"])
  metric = metric.removeprefix("order")
  return f"{metric} {_value(claim)} {unit}".replace("|", "/").strip()


def _value(claim: Mapping[str, str]) -> str:
  """A number as ours are written: fractions in percent."""
  if claim["unit"] == "fraction":
    return f"{100 * float(claim['value']):g}"
  return claim["value"]


def _table(
  paper_rows: Iterable[_Row],
  notes: dict[str, int],
  stated: str = "by the paper's settings",
) -> str:
  """Rows of numbers or sentences; what was tried stands below all tables."""
  paper_rows, rows = list(paper_rows), []
  heads, columns = report.with_tunings([row.tuning for row in paper_rows])
  extra_heads = [stated] * any(row.stated for row in paper_rows)
  for row, column in zip(paper_rows, columns):
    tried = row.tried and (f" [{notes.setdefault(row.tried, len(notes) + 1)}]")
    also = row.printed and f" (also {', '.join(row.printed)})" or ""
    rows.append(
      [
        row.where,
        row.claim["method"] or "-",
        _claim_text(row.claim) + also,
        row.ours,
        *column,
        row.words + tried,
        *[row.stated or "-"] * len(extra_heads),
      ]
    )
  return (
    rows
    and markdown.table(
      ["where", "method", "the paper", *heads, "verdict", *extra_heads], rows
    )
    or ""
  )


def _of_paper(name: str, paper_rows: Sequence[_Row], notes: dict[str, int]) -> str:
  """The section of a paper."""
  known_rows = [row for row in paper_rows if row.verdict not in (*_UNKNOWN, "lost")]
  own_rows, sentence_rows, others = (
    [row for row in known_rows if row.kind == kind]
    for kind in ("own", "sentence", "other")
  )
  parts = [f"## {name}", _table(own_rows, notes), _table(sentence_rows, notes)]
  if others:
    parts.append(
      markdown.collapse(
        f"Other methods, and what is no method: {len(others)} numbers",
        _table(others, notes, "at the paper's one rate"),
      )
    )
  groups: dict[tuple[str, str, str], int] = collections.Counter(
    (row.claim["artifact"], row.verdict, row.ours)
    for row in paper_rows
    if row not in known_rows
  )
  if groups:
    parts.append(
      markdown.collapse(
        f"Not comparable, not run or lost: {sum(groups.values())}",
        markdown.table(
          ["where", "numbers and sentences", "why"],
          (
            [where, number, f"{verdict}: {why}" if why != "-" else verdict]
            for (where, verdict, why), number in groups.items()
          ),
        ),
      )
    )
  return "\n\n".join(filter(None, parts))


def claims_text(papers: Mapping[str, Sequence[_Row]]) -> str:
  """The Markdown page."""
  notes: dict[str, int] = {}
  sections = [_of_paper(*item, notes) for item in papers.items()]
  tried = "\n".join(f"{number}. {text}" for text, number in notes.items())
  return markdown.page(
    "Claims of the papers",
    [
      _head(papers),
      _MEANING,
      *sections,
      *([f"## What was tried\n\n{tried}"] if notes else []),
    ],
  )
