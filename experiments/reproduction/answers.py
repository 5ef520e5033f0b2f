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

from ..reports import rule
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
  verdict: str
  settings: str  #: how the settings were chosen; "": there are none

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

  def words(self, value: float, unit: str, is_own: bool, never: bool = False) -> str:
    """The verdict on a number in words; see ``rule.words``."""
    try:
      gap = abs(float(self.ours.split(" ")[0]) - value)
    except ValueError:  # it is not run, or never gets there
      gap = None
    return rule.words(self.verdict, gap, self.metric, unit, is_own, never)


def answer_number(
  run_values: object,
  claim: report.Claim,
  choices: Iterable[chosen.Choice] = (),
  exact: bool = False,
  parts: suite.Outcomes = (),
) -> tuple[str, str]:
  """Our number beside a paper's: (ours in words, the verdict).

  Args:
    run_values: one number per run; inf: never within the rounds run.
    claim: the paper's number; inf: never.
    choices: how the settings were chosen.
    exact: whether the number does not vary from run to run.
    parts: the partitions of a pooled run, over which the interval is taken.
  """
  values = np.asarray(run_values, float)
  if not np.isinf(values).any():
    values = partitions.means(values, parts)
  ours, verdict = rule.place_values(values, claim.value, claim.unit, exact)
  return ours, rule.NOT_COMPARABLE if chosen.incomparable(choices) else verdict


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
        ours, verdict = str(error), rule.NOT_RUN
      else:
        ours, verdict = answer_number(values, claim, o.cell.choices, parts=o.parts)
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
          o.settings,
        )
      )
  return answers


def answer_sentences(
  name: str, claims: Sequence[verdicts.Statement], outcomes: suite.Outcomes
) -> list[PaperAnswer]:
  """The answers to the sentences of a paper about a figure."""
  answers = []
  for protocol, runs in verdicts.by_protocol(outcomes).items():
    for claim in claims:
      measured, verdict = verdicts.judge_statement(claim, runs)
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
          verdicts.tuning_of_statement(claim, runs) if protocol == suite.TUNED else "",
        )
      )
  return answers


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
