"""Answers of our runs to every number and sentence of a paper.

A figure command writes its answers to <name>.answers.csv; ``publish`` collects
them, and ``claims_page`` puts them beside the rows of the claims files.
"""

from collections.abc import Iterable, Mapping, Sequence
import csv
import io
import math
import pathlib
import re
from typing import NamedTuple

import numpy as np

from fedjax_alg import files

from ..reports import rule
from . import chosen, pages, partitions, report, suite, verdicts

#: metric of the claims file -> its measure, in the claim's unit, or two: the
#: measure of a method less that of another one.
Measures = Mapping[str, verdicts.Measure | tuple[verdicts.Measure, str]]


class PaperAnswer(NamedTuple):
  """One number or sentence of a paper beside ours."""

  figure: str  #: the figure or table of ours that answers
  artifact: str  #: the paper's, as the claims file names it
  panel: str
  #: with its protocol, if that is not ``suite.TUNED``; of a sentence "" or
  #: ``verdicts.PAPERS_OWN``
  method: str
  metric: str  #: "" for a sentence
  claim: str  #: the paper's number, or the sentence
  ours: str
  verdict: str  #: one of ``rule.VERDICTS``
  reason: str  #: why, beside it; "": nothing to say
  settings: str  #: how the settings were chosen; "": there are none
  rounds: str = ""  #: the rounds that were run; "": not known, or a sentence
  draw95: str = ""  #: half the width of the interval of one draw, ``rule.predict``
  #: the numbers of the runs, seeds parted by spaces, partitions by semicolons
  values: str = ""
  #: ``rule.CHAOTIC``, or "" where the runs do not depend on rounding, or nothing
  #: is known of that
  rounding: str = ""

  @property
  def of(self) -> tuple[str, str]:
    """The method and the protocol of a number."""
    protocols = "|".join((suite.STATED, suite.PRINTED, suite.ONE_RATE))
    match = re.fullmatch(rf"(.*) \(({protocols})\)", self.method)
    return (match[1], match[2]) if match else (self.method, suite.TUNED)

  @property
  def tuning(self) -> str:
    """The way in which the settings were chosen, see ``chosen.tuning``."""
    protocol = self.method if not self.metric else self.of[1]
    return chosen.tuning(self.settings) if protocol in ("", suite.TUNED) else protocol

  @property
  def words(self) -> str:
    """The verdict with its reason; see ``rule.words``."""
    return rule.words(self.verdict, self.reason, self.rounding)


class NumberAnswer(NamedTuple):
  """Our number beside a paper's."""

  ours: str  #: in words
  verdict: str  #: one of ``rule.VERDICTS``
  reason: str
  draw95: str = ""  #: see ``PaperAnswer``
  values: str = ""  #: see ``PaperAnswer``
  rounding: str = ""  #: see ``PaperAnswer``


def answer_number(
  parts: rule.Parts,
  claim: report.Claim,
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
    parts, claim.value, claim.unit, exact, data, claim.repeats, has_one_partition
  )
  nested: rule.Parts = parts if np.ndim(parts[0]) else [np.asarray(parts)]
  numbers = np.concatenate([np.atleast_1d(np.asarray(part, float)) for part in parts])
  columns = (
    "" if math.isnan(placement.draw95) else f"{placement.draw95:.4g}",
    "" if exact else rule.list_values(nested),
    rule.mark_rounding(nested, replicas, rule.tie_of(claim.value, claim.unit, data)),
  )
  why = claim.untestable or chosen.why_incomparable(list(choices))
  if why:
    return NumberAnswer(placement.ours, rule.NOT_TESTABLE, why, *columns)
  never = bool(np.isinf(numbers).any()) or math.isinf(claim.value)
  means = [np.mean(np.asarray(part, float)) for part in nested]
  gap = None if never else abs(float(np.mean(means)) - claim.value)
  word, reason = rule.verdict(
    placement, gap, claim.metric, claim.unit, math.isinf(claim.value)
  )
  return NumberAnswer(placement.ours, word, reason, *columns)


def of_claim(
  figure: str, claim: report.Claim, answer: NumberAnswer, rounds: str = ""
) -> PaperAnswer:
  """The answer to a published number by a table without runs."""
  return PaperAnswer(
    figure,
    claim.artifact,
    claim.panel,
    claim.method,
    claim.metric,
    claim.printed,
    answer.ours,
    answer.verdict,
    answer.reason,
    "",
    rounds,
    answer.draw95,
    answer.values,
    answer.rounding,
  )


def of_accuracies(
  figure: str, claim: report.Claim | None, values: np.ndarray, rounds: int
) -> tuple[str, list[PaperAnswer]]:
  """Formats accuracies beside the published one.

  Args:
    figure: name of the table.
    claim: the published number; None: there is none.
    values: [seeds], in percent.
    rounds: number of rounds of the runs.

  Returns:
    The cell of a table, with the published number in parentheses, and the answer
    to the claim if there is one.
  """
  if claim is None:
    return rule.place_values(values, np.nan, "%").ours, []
  answer = answer_number(values, claim, has_one_partition=True)
  return (
    f"{answer.ours} ({claim.printed})",
    [of_claim(figure, claim, answer, str(rounds))],
  )


def _numbers_of(
  measure: verdicts.Measure | tuple[verdicts.Measure, str],
  outcome: suite.Outcome,
  outcomes: suite.Outcomes,
) -> list[np.ndarray]:
  """Measures a run: the numbers of the seeds of each partition."""
  if not isinstance(measure, tuple):
    return partitions.measure_parts(measure, outcome)
  base_measure, less = measure
  baseline = verdicts.pick(outcomes, outcome.cell.panel, less)
  return [
    ours - theirs
    for ours, theirs in zip(
      partitions.measure_parts(base_measure, outcome),
      partitions.measure_parts(base_measure, baseline),
      strict=True,
    )
  ]


def answer_numbers(
  paper: str, name: str, outcomes: suite.Outcomes, measures: Measures
) -> list[PaperAnswer]:
  """The answers to the plain numbers that a paper states for a figure."""
  paper_answers = []
  for claim in report.load_claims(paper, name):
    if claim.metric not in measures and claim.round is None:
      continue
    for o in outcomes:
      if (o.cell.panel, o.cell.label) != (claim.panel, claim.method):
        continue
      try:
        parts = _numbers_of(
          verdicts.mean_over(claim.round, claim.round)
          if claim.round is not None
          else measures[claim.metric],
          o,
          outcomes,
        )
      except verdicts.NotRun as error:
        answer = NumberAnswer(str(error), rule.NOT_TESTABLE, rule.NOT_RUN)
      else:
        answer = answer_number(
          parts,
          claim,
          o.cell.choices,
          data=o.cell.data,
          has_one_partition=o.has_one_partition,
          replicas=o.cell.replicas,
        )
      rounds = str(o.summary.get("cost", {}).get("rounds", ""))
      paper_answers.append(
        of_claim(name, claim, answer, rounds)._replace(
          method=o.cell.name, settings=o.settings
        )
      )
  return paper_answers


def answer_sentences(
  name: str, claims: Sequence[verdicts.Statement], outcomes: suite.Outcomes
) -> list[PaperAnswer]:
  """The answers to the sentences of a paper about a figure."""
  answers = []
  for protocol, runs in verdicts.by_protocol(outcomes).items():
    # With the paper's settings there may be the paper's method alone.
    one_method = protocol != suite.TUNED and len({o.cell.label for o in runs}) == 1
    for claim in claims:
      measured, verdict, reason = verdicts.judge_statement(claim, runs)
      if one_method and reason == rule.NOT_RUN:
        continue
      answers.append(
        PaperAnswer(
          name,
          claim.artifact,
          "",
          "" if protocol == suite.TUNED else protocol,
          "",
          claim.text,
          measured,
          verdict,
          reason,
          verdicts.tuning_of_statement(claim, runs) if protocol == suite.TUNED else "",
        )
      )
  return answers


def sentences_table(figure_answers: Iterable[PaperAnswer]) -> pages.Table | None:
  """What a paper says in words, beside what we measured; None without sentences.

  Numbers among the answers are passed over.
  """
  by_text: dict[str, dict[str, PaperAnswer]] = {}
  for answer in figure_answers:
    if not answer.metric:
      by_text.setdefault(answer.claim, {})[answer.method] = answer
  if not by_text:
    return None
  protocols = list(dict.fromkeys(key for texts in by_text.values() for key in texts))
  head, columns = report.with_tunings(
    [texts[""].tuning if "" in texts else "" for texts in by_text.values()]
  )
  rows = []
  for (text, texts), column in zip(by_text.items(), columns):
    rows.append([text])
    for protocol in protocols:
      its = texts.get(protocol)
      rows[-1] += [
        rule.shorten(its.ours) if its else "-",
        *(column if not protocol else ()),
        its.words if its else "-",
      ]
  heads = ["what is said"]
  for protocol in protocols:
    heads += [*([protocol] if protocol else head), "verdict"]
  return pages.Table(heads, rows)


def without_untestable(
  paper: str, page_answers: Iterable[PaperAnswer]
) -> list[PaperAnswer]:
  """The answers, whose numbers have no other verdict if nothing can test the claim.

  So a claim that is judged after its runs (judged.csv) needs none of them again.
  """
  reasons = {
    (claim.artifact, claim.panel, claim.method, claim.metric): claim.untestable
    for artifact in {row["artifact"] for row in report.read_claims(paper)}
    for claim in report.load_claims(paper, artifact)
  }
  return [
    answer._replace(verdict=rule.NOT_TESTABLE, reason=reason)
    if answer.metric
    and (answer.verdict, answer.reason) != (rule.NOT_TESTABLE, rule.NOT_RUN)
    and (
      reason := reasons.get(
        (answer.artifact, answer.panel, answer.of[0], answer.metric), ""
      )
    )
    else answer
    for answer in page_answers
  ]


#: Recognizer of a file of answers.
IS_TABLE = files.table_with(*PaperAnswer._fields[:4])


def answers_csv(answers: Iterable[PaperAnswer]) -> str:
  """The content of a file of answers."""
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator="\n")
  writer.writerow(PaperAnswer._fields)
  writer.writerows(answers)
  return buffer.getvalue()


def read_answers(path: pathlib.Path) -> list[PaperAnswer]:
  """Reads a file of answers; [] without a file."""
  if not path.is_file():
    return []
  with open(path, newline="", encoding="utf-8") as file:
    return [PaperAnswer(**row) for row in csv.DictReader(file)]
