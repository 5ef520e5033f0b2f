"""Every number and sentence of the papers, and what our runs say of it.

The rows of reproduction/<paper>/claims.csv are joined with the answers of the runs
(``answers``). What no run can answer, or in other words, stands in
reproduction/<paper>/judged.csv, whose rows are patterns (``fnmatch``) of those of
claims.csv; an empty pattern matches everything:

- ``kind``: ``setting`` (a setting of the paper, which is no claim),
  ``sentences`` (``text`` is the beginning of a sentence that answers it, and
  ``of_artifact`` a pattern of the figures that it is of; a row for each sentence),
  ``same as`` (the paper repeats a number, whose place is in the columns ``of_``),
  or the reason for which it cannot be tested (``text`` says more of it).
- ``cause``: the reason of a sentence's verdict, see ``_CAUSES``.
- ``tried``: what was tried, where a row is not met.

Of several patterns that match the first with an entry in a column counts.

Two questions are kept apart: does a method reach its number, and does its
margin hold. Numbers that are one measurement are one row: micro averages of
single labels are the accuracy, and several figures may show the same runs.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import fnmatch
import math
from typing import Any, NamedTuple

from ..reports import rule
from . import chosen, pages, report, suite, verdicts
from .answers import PaperAnswer

#: The words of sentences, in the order in which the worst of several counts.
_WORST = (
  rule.WORSE,
  rule.NOT_TESTABLE,
  rule.UNDECIDED,
  rule.BETTER,
  rule.REACHED,
)
#: cause -> reason of a sentence that is worse
_CAUSES = {
  "baseline": "baseline stronger",
  "method": "method short",
  "trend": "other trend",
  "close": "small difference",
}

#: Metrics that are the accuracy where every example has one label.
_ACCURACY = ("accuracy", "micro_recall", "micro_precision", "micro_f1")


class _Answer(NamedTuple):
  """What our runs say of a claim, by one way to find their settings."""

  ours: str
  verdict: str  #: one of ``rule.VERDICTS``
  reason: str = ""
  tuning: str = ""  #: how the settings were found; "": no run
  rounding: str = ""  #: see ``answers.PaperAnswer``
  is_bare: bool = False  #: whether ``ours`` is a number without words and unit

  @property
  def words(self) -> str:
    """The verdict with its reason."""
    return rule.words(self.verdict, self.reason, self.rounding)

  @property
  def is_run(self) -> bool:
    """Whether there is a run that answers."""
    return (self.verdict, self.reason) != (rule.NOT_TESTABLE, rule.NOT_RUN)


_NONE = _Answer("-", rule.NOT_TESTABLE, rule.NOT_RUN)


class _Row(NamedTuple):
  """A measurement, or a sentence, with its answer."""

  claim: Mapping[str, str]
  kind: str  #: own, other (numbers of methods), sentence
  answer: _Answer
  tried: str
  #: by the paper's settings, or at its one rate, where these are not the first
  stated: _Answer | None = None
  literal: _Answer | None = None  #: with every equation as it is printed
  printed: tuple[str, ...] = ()  #: other numbers that the paper prints for it

  @property
  def where(self) -> str:
    return " ".join(filter(None, (self.claim["artifact"], self.claim["panel"])))

  @property
  def is_measured(self) -> bool:
    """Whether there is something to show: a verdict, or a number of ours."""
    return self.answer.verdict != rule.NOT_TESTABLE or (
      self.answer.tuning != "" and self.answer.reason in _SHOWN
    )


def _of_sentence(answer: PaperAnswer, prefix: str = "") -> _Answer:
  """The answer to a sentence; of several numbers the least and the greatest."""
  words = verdicts.ends_in_words(answer.measurements)
  return _Answer(
    prefix + " ".join(filter(None, (words, answer.note))),
    answer.verdict,
    answer.reason,
    answer.tuning,
    is_bare=not prefix and [f.is_bare for f in answer.measurements] == [True],
  )


def _sentences(
  patterns: Sequence[Mapping[str, str]], answers: Sequence[PaperAnswer]
) -> _Answer:
  """The answer to the sentences of some rows of judged.csv.

  Of several the first that decides the verdict is shown.
  """
  candidates: list[tuple[str, PaperAnswer | None]] = []
  for pattern in patterns:
    best: dict[tuple[str, str], PaperAnswer] = {}
    for a in answers:
      if (
        not a.metric
        and a.claim.startswith(pattern["text"])
        and fnmatch.fnmatchcase(a.artifact, pattern["of_artifact"] or "*")
      ):
        key = a.artifact, a.claim
        best[key] = min(best.get(key, a), a, key=sort_key)
    candidates += [(pattern["text"], a) for a in best.values() or [None]]
  text, answer = min(
    candidates,
    key=lambda candidate: _WORST.index(
      candidate[1].verdict if candidate[1] else rule.NOT_TESTABLE
    ),
  )
  prefix = f"{text.lstrip('. ')}: " if len(candidates) > 1 else ""
  if answer is None:
    return _NONE._replace(ours=f"{prefix}was not judged")
  return _of_sentence(answer, prefix)


def sort_key(answer: PaperAnswer) -> tuple[bool, bool, bool]:
  """Returns the sort key of an answer; of several to a claim the least counts.

  A figure of ours that goes further than the paper's, such as Table 3 on nine
  partitions, counts before the paper's.
  """
  return (
    answer.protocol != suite.TUNED,
    answer.verdict == rule.NOT_TESTABLE,
    answer.figure.lower() == answer.artifact.lower(),
  )


def _of_number(answer: PaperAnswer) -> _Answer:
  """The answer to a number, with half the width of the interval of one draw."""
  has_draw = not math.isnan(answer.draw95)
  return _Answer(
    answer.ours + (f" (draw {answer.draw95:.2f})" if has_draw else ""),
    answer.verdict,
    answer.reason,
    answer.tuning,
    answer.rounding,
    is_bare=not math.isnan(answer.mean),
  )


def _number(
  row: Mapping[str, str], answers: Sequence[PaperAnswer]
) -> tuple[_Answer, _Answer | None, _Answer | None]:
  """The answer to a number, and those by the stated settings and as printed."""
  matches = sorted(
    (
      a
      for a in answers
      if (a.metric, a.artifact, a.panel, a.claim, a.method)
      == (row["metric"], row["artifact"], row["panel"], row["value"], row["method"])
    ),
    key=sort_key,
  )
  if not matches:
    return _NONE, None, None
  protocols = [a.protocol for a in matches]
  rows = [_of_number(a) for a in matches]
  papers_own = (suite.STATED, suite.ONE_RATE)

  def of(*names: str) -> _Answer | None:
    return next(
      (row for row, name in zip(rows[1:], protocols[1:]) if name in names), None
    )

  return rows[0], of(*papers_own), of(suite.PRINTED)


def _measurement(
  row: Mapping[str, str], same_runs: Mapping[str, str], balanced: Sequence[str]
) -> tuple[str, ...]:
  """Identifies what a number measures; two numbers may measure the same.

  The row may be one that only names the place of a number.
  """
  metric = row["metric"].removeprefix("test_")
  if metric in _ACCURACY or (metric == "macro_recall" and row["artifact"] in balanced):
    metric = "accuracy"
  return (
    same_runs.get(row["artifact"], row["artifact"]),
    row["panel"],
    row["method"],
    metric,
    row.get("round", ""),
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
  by_protocol = {
    protocol: [a for a in answers if a.protocol == protocol]
    for protocol in (suite.TUNED, verdicts.PAPERS_OWN)
  }
  out: dict[tuple[str, ...], _Row] = {}
  key: tuple[str, ...]
  for number, row in enumerate(report.read_claims(paper)):
    tried = report.match_pattern(patterns, row, "tried").get("tried", "")
    kind = report.match_pattern(patterns, row, "kind")
    if kind.get("kind") == "setting":
      continue
    role = "own" if row["method"].startswith(own_names) else "other"
    key = (str(number),)
    if kind.get("kind") == "sentences":
      role = "sentence"
      sentences = report.same_patterns(patterns, kind)
      answer = _sentences(sentences, by_protocol[suite.TUNED])
      cause = report.match_pattern(patterns, row, "cause").get("cause", "")
      if cause and answer.verdict == rule.WORSE:
        answer = answer._replace(reason=_CAUSES[cause])
      stated: _Answer | None = _sentences(sentences, by_protocol[verdicts.PAPERS_OWN])
      if stated is not None and not stated.is_run:
        stated = None
      literal = None
      key = ("sentence", *(p["of_artifact"] + p["text"] for p in sentences))
    elif kind.get("kind") == _SAME_AS:
      place = {name: kind[f"of_{name}"] for name in _PLACE}
      key = _measurement(place, same_runs or {}, balanced)
      if key not in out:
        raise ValueError(f"{paper}: {place} is no number above {row}")
    else:
      answer, stated, literal = _number(row, answers)
      if not kind:
        key = _measurement(row, same_runs or {}, balanced)
      else:
        why: dict[str, Any] = {"verdict": rule.NOT_TESTABLE, "reason": kind["kind"]}
        if kind["kind"] in (rule.IMPOSSIBLE, rule.DISAGREE):
          key = _measurement(row, same_runs or {}, balanced)
        if answer is _NONE:
          answer = answer._replace(ours=kind["text"])
        answer = answer._replace(**why)
        stated = stated and stated._replace(**why)
        literal = literal and literal._replace(**why)
    if key in out:
      text = _claim_text(row) if role == "sentence" else _value(row)
      out[key] = out[key]._replace(
        printed=(*out[key].printed, f"{text} ({row['artifact']})")
      )
    else:
      out[key] = _Row(row, role, answer, tried, stated, literal)
  return list(out.values())


#: Reasons of rows that are shown with the numbers of ours.
_SHOWN = rule.UNTESTABLE
_NO_RUN = "no run"
#: The kind of a number that the paper repeats elsewhere.
_SAME_AS = "same as"
#: What tells the place of a number in a paper.
_PLACE = ("artifact", "panel", "method", "metric")

#: The columns of ``_head``, and what is counted in each.
_NUMBERS = (
  rule.REACHED,
  rule.BETTER,
  rule.OTHER_THAN_PRINTED,
  rule.WORSE,
  rule.UNDECIDED,
  rule.IMPOSSIBLE,
  rule.DISAGREE,
  rule.NEEDS_VALUE,
  rule.HARDWARE,
  rule.NOT_TESTABLE,
)


def standing(answer: _Answer) -> str:
  """Reduces the verdict on a number to a column of ``_head``."""
  return answer.reason if answer.reason in _NUMBERS else answer.verdict


def _head(papers: Mapping[str, Sequence[_Row]]) -> pages.Table:
  """The table: numbers of every paper's own methods, and its sentences."""
  lines = []
  for name, paper_rows in papers.items():
    for tuning, by_kind in by_tuning(paper_rows).items():
      counts = collections.Counter(map(standing, by_kind["own"]))
      sentences = collections.Counter(answer.verdict for answer in by_kind["sentence"])
      lines.append(
        [
          f"{name}, {tuning}",
          *(counts[word] for word in _NUMBERS),
          sentences[rule.REACHED] + sentences[rule.BETTER],
          *(
            sentences[word] for word in (rule.WORSE, rule.UNDECIDED, rule.NOT_TESTABLE)
          ),
        ]
      )
  return pages.Table(
    [
      "paper, settings",
      f"numbers: {_NUMBERS[0]}",
      *_NUMBERS[1:-1],
      "not testable, other reasons",
      "sentences: reached, better",
      rule.WORSE,
      rule.UNDECIDED,
      rule.NOT_TESTABLE,
    ],
    lines,
  )


def by_tuning(
  paper_rows: Sequence[_Row],
) -> dict[str, dict[str, list[_Answer]]]:
  """Sorts answers: choice of the settings -> kind of row -> answers."""
  order = (
    chosen.TUNED,
    chosen.IN_PART,
    chosen.STATED,
    suite.PRINTED,
    suite.ONE_RATE,
    chosen.UNTUNED,
    _NO_RUN,
  )
  out: dict[str, dict[str, list[_Answer]]] = {}
  for row in paper_rows:
    if row.kind == "other":
      continue
    pairs = [(row.answer.tuning or _NO_RUN, row.answer)]
    if row.stated:
      pairs.append((suite.STATED, row.stated))
    if row.literal:
      pairs.append((suite.PRINTED, row.literal))
    for tuning, answer in pairs:
      out.setdefault(tuning, {"own": [], "sentence": []})[row.kind].append(answer)
  return {
    tuning: out[tuning]
    for tuning in sorted(
      out, key=lambda tuning: order.index(tuning) if tuning in order else -1
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
) -> pages.Table:
  """Rows of numbers or sentences; what was tried stands below all tables."""
  paper_rows, rows = list(paper_rows), []
  heads, columns = report.with_tunings([row.answer.tuning for row in paper_rows])
  extra_heads = [stated] * any(row.stated for row in paper_rows)
  literal_heads = [suite.PRINTED] * any(row.literal for row in paper_rows)
  for row, column in zip(paper_rows, columns):
    tried = row.tried and (f" [{notes.setdefault(row.tried, len(notes) + 1)}]")
    also = row.printed and f" (also {', '.join(row.printed)})" or ""
    rows.append(
      [
        row.where,
        row.claim["method"] or "-",
        _claim_text(row.claim) + also,
        row.answer.ours,
        *column,
        row.answer.words + tried,
        *[f"{row.stated.ours}, {row.stated.words}" if row.stated else "-"]
        * len(extra_heads),
        *[f"{row.literal.ours}, {row.literal.words}" if row.literal else "-"]
        * len(literal_heads),
      ]
    )
  head = ["where", "method", "the paper", *heads, "verdict"]
  return pages.Table([*head, *extra_heads, *literal_heads], rows)


def _of_paper(paper_rows: Sequence[_Row], notes: dict[str, int]) -> dict[str, Any]:
  """The tables of a paper's section."""
  known_rows = [row for row in paper_rows if row.is_measured]
  own_rows, sentence_rows, others = (
    [row for row in known_rows if row.kind == kind]
    for kind in ("own", "sentence", "other")
  )
  # A number on other data says nothing without its method and unit.
  groups: dict[tuple[str, str, str], int] = collections.Counter(
    (
      row.claim["artifact"],
      row.answer.reason,
      "-" if row.answer.is_bare else row.answer.ours,
    )
    for row in paper_rows
    if not row.is_measured
  )
  return {
    "own": _table(own_rows, notes),
    "sentences": _table(sentence_rows, notes),
    "others": _table(others, notes, "at the paper's one rate"),
    "untestable": pages.Table(
      ["where", "numbers and sentences", "why"],
      [
        [where, number, f"{reason}: {ours}" if ours != "-" else reason]
        for (where, reason, ours), number in groups.items()
      ],
    ),
    "num_untestable": sum(groups.values()),
  }


def claims_text(papers: Mapping[str, Sequence[_Row]]) -> str:
  """The Markdown page."""
  notes: dict[str, int] = {}
  return pages.render(
    "claims",
    head=_head(papers),
    papers={name: _of_paper(rows, notes) for name, rows in papers.items()},
    tried=notes,
  )
