"""Answers of our runs to every number and sentence of a paper.

A figure command writes its answers to <name>.answers.csv; ``publish`` collects
them, and ``claims_page`` puts them beside the rows of the claims files.
"""

from collections.abc import Iterable, Mapping, Sequence
import csv
import io
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import files

from ..reports import markdown, rule
from . import chosen, partitions, report, suite, verdicts

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

  @property
  def of(self) -> tuple[str, str]:
    """The method and the protocol of a number."""
    match = re.fullmatch(rf"(.*) \(({suite.STATED}|{suite.ONE_RATE})\)", self.method)
    return (match[1], match[2]) if match else (self.method, suite.TUNED)

  @property
  def tuning(self) -> str:
    """The way in which the settings were chosen, see ``chosen.tuning``."""
    protocol = self.method if not self.metric else self.of[1]
    return chosen.tuning(self.settings) if protocol in ("", suite.TUNED) else protocol

  @property
  def words(self) -> str:
    """The verdict with its reason; see ``rule.words``."""
    return rule.words(self.verdict, self.reason)


def answer_number(
  run_values: object,
  claim: report.Claim,
  choices: Iterable[chosen.Choice] = (),
  exact: bool = False,
  parts: suite.Outcomes = (),
  data: str = "",
) -> tuple[str, str, str]:
  """Our number beside a paper's: (ours in words, the verdict, its reason).

  Args:
    run_values: one number per run; inf: never within the rounds run.
    claim: the paper's number; inf: never.
    choices: how the settings were chosen.
    exact: whether the number does not vary from run to run.
    parts: the partitions of a pooled run, over which the interval is taken.
    data: the data set, of which the tie depends.
  """
  values, choices = np.asarray(run_values, float), list(choices)
  never = bool(np.isinf(values).any())
  if not never:
    values = partitions.means(values, parts)
  ours, place = rule.place_values(values, claim.value, claim.unit, exact, data)
  why = claim.untestable or chosen.why_incomparable(choices)
  if why:
    return ours, rule.NOT_TESTABLE, why
  gap = None if never or np.isinf(claim.value) else abs(values.mean() - claim.value)
  return ours, *rule.verdict(
    place, ours, gap, claim.metric, claim.unit, bool(np.isinf(claim.value))
  )


def of_claim(
  figure: str,
  claim: report.Claim,
  ours: str,
  verdict: str,
  reason: str = "",
  rounds: str = "",
) -> PaperAnswer:
  """The answer to a published number by a table without runs."""
  return PaperAnswer(
    figure,
    claim.artifact,
    claim.panel,
    claim.method,
    claim.metric,
    claim.printed,
    ours,
    verdict,
    reason,
    "",
    rounds,
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
    return rule.place_values(values, np.nan, "%")[0], []
  ours, verdict, reason = answer_number(values, claim)
  answer = of_claim(figure, claim, ours, verdict, reason, str(rounds))
  return f"{ours} ({claim.printed})", [answer]


def _apply_measure(
  measure: verdicts.Measure | tuple[verdicts.Measure, str],
  outcome: suite.Outcome,
  outcomes: suite.Outcomes,
) -> Any:
  if not isinstance(measure, tuple):
    return measure(outcome)
  base_measure, less = measure
  return base_measure(outcome) - base_measure(
    verdicts.pick(outcomes, outcome.cell.panel, less)
  )


def answer_numbers(
  paper: str, name: str, outcomes: suite.Outcomes, measures: Measures
) -> list[PaperAnswer]:
  """The answers to the plain numbers that a paper states for a figure."""
  answers = []
  for claim in report.load_claims(paper, name):
    if claim.metric not in measures and claim.round is None:
      continue
    for o in outcomes:
      if (o.cell.panel, o.cell.label) != (claim.panel, claim.method):
        continue
      try:
        values = _apply_measure(
          verdicts.mean_over(claim.round, claim.round)
          if claim.round is not None
          else measures[claim.metric],
          o,
          outcomes,
        )
      except verdicts.NotRun as error:
        ours, verdict, reason = str(error), rule.NOT_TESTABLE, rule.NOT_RUN
      else:
        ours, verdict, reason = answer_number(
          values, claim, o.cell.choices, parts=o.parts, data=o.cell.data
        )
      answers.append(
        PaperAnswer(
          name,
          claim.artifact,
          claim.panel,
          o.cell.name,
          claim.metric,
          claim.printed,
          ours,
          verdict,
          reason,
          o.settings,
          str(o.summary.get("cost", {}).get("rounds", "")),
        )
      )
  return answers


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


#: The heading of the section of ``sentences_section``.
SENTENCES = "What is said in words"


def sentences_section(figure_answers: Iterable[PaperAnswer]) -> str:
  """The Markdown section of what a paper says in words; "" without sentences.

  Numbers among the answers are passed over.
  """
  by_text: dict[str, dict[str, PaperAnswer]] = {}
  for answer in figure_answers:
    if not answer.metric:
      by_text.setdefault(answer.claim, {})[answer.method] = answer
  if not by_text:
    return ""
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
  text = f"## {SENTENCES}\n\n" + markdown.table(heads, rows)
  return text


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
  """The content of a file of answers; no column of rounds if none are known."""
  rows = list(answers)
  fields = PaperAnswer._fields[: None if any(row.rounds for row in rows) else -1]
  buffer = io.StringIO()
  writer = csv.writer(buffer, lineterminator="\n")
  writer.writerow(fields)
  writer.writerows(row[: len(fields)] for row in rows)
  return buffer.getvalue()


def read_answers(path: pathlib.Path) -> list[PaperAnswer]:
  """Reads a file of answers; [] without a file."""
  if not path.is_file():
    return []
  with open(path, newline="", encoding="utf-8") as file:
    return [PaperAnswer(**row) for row in csv.DictReader(file)]
