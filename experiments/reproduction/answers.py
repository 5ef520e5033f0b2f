"""Answers of our runs to every number and sentence of a paper.

A figure command writes its answers to <name>.answers.csv; ``publish`` collects
them, and ``claims_page`` puts them beside the rows of the claims files.
"""

from collections.abc import Iterable, Mapping, Sequence
import csv
import io
import json
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import files

from ..cli.config import UsageError
from ..reports import rule
from . import pages, partitions, report, suite, verdicts

#: metric of the claims file -> its measure, in the claim's unit, or two: the
#: measure of a method less that of another one.
Measures = Mapping[str, verdicts.Measure | tuple[verdicts.Measure, str]]


class PaperAnswer(NamedTuple):
  """One number or sentence of a paper beside ours."""

  figure: str  #: the figure or table of ours that answers
  artifact: str  #: the paper's, as the claims file names it
  panel: str
  method: str  #: "" for a sentence
  metric: str  #: "" for a sentence
  claim: str  #: the paper's number, or the sentence
  ours: str  #: in words, which are made of the numbers in other columns
  verdict: str  #: one of ``rule.VERDICTS``
  reason: str  #: why, beside it; "": nothing to say
  settings: str  #: how a number's settings were chosen; "": there are none
  rounds: str = ""  #: the rounds that were run; "": not known, or a sentence
  #: half the width of the interval of one draw, ``rule.predict``; NaN: none
  draw95: float = math.nan
  #: the numbers of the runs, of each partition those of its seeds; inf: never
  values: tuple[tuple[float, ...], ...] = ()
  #: ``rule.CHAOTIC``, or "" where the runs do not depend on rounding, or nothing
  #: is known of that
  rounding: str = ""
  protocol: str = suite.TUNED  #: see ``suite``; of a sentence ``verdicts.by_protocol``
  tuning: str = ""  #: how the settings were found, see ``chosen.tuning``; "": no run
  mean: float = math.nan  #: our number; NaN: none, or some runs never get there
  ci95: float = math.nan  #: half the width of its 95 % interval; NaN: none
  measurements: verdicts.Measurements = ()  #: what was measured for a sentence
  note: str = ""  #: what is said of all measurements, in brackets; "": nothing

  @property
  def words(self) -> str:
    """The verdict with its reason; see ``rule.words``."""
    return rule.words(self.verdict, self.reason, self.rounding)


def of_claim(
  figure: str, claim: report.Claim, answer: report.NumberAnswer, rounds: str = ""
) -> PaperAnswer:
  """The answer to a published number by a table without runs."""
  return PaperAnswer(
    figure,
    claim.artifact,
    claim.panel,
    claim.method,
    claim.metric,
    claim.printed,
    settings="",
    rounds=rounds,
    **answer._asdict(),
  )


def of_accuracies(
  figure: str, claim: report.Claim | None, parts: rule.Parts, rounds: int
) -> tuple[str, list[PaperAnswer]]:
  """Formats accuracies beside the published one.

  Args:
    figure: name of the table.
    claim: the published number; None: there is none.
    parts: in percent, [seeds] of one partition, or a list with [seeds] of each.
    rounds: number of rounds of the runs.

  Returns:
    The cell of a table, with the published number in parentheses, and the answer
    to the claim if there is one.
  """
  if claim is None:
    return rule.place_values(parts, np.nan, "%").ours, []
  answer = report.answer_number(parts, claim, has_one_partition=np.ndim(parts[0]) == 0)
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


def _is_too_short(
  claim: report.Claim, parts: Sequence[np.ndarray], outcome: suite.Outcome
) -> bool:
  """Whether a run ends before the rounds of a claim, and does not get there."""
  needed = claim.not_in or (claim.value if claim.unit == "rounds" else 0)
  rounds = min(
    part.summary.get("cost", {}).get("rounds", math.inf)
    for part in outcome.parts or (outcome,)
  )
  return rounds < needed and bool(np.isinf(np.concatenate(parts)).any())


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
        answer = report.NumberAnswer(str(error), rule.NOT_TESTABLE, rule.NOT_RUN)
      else:
        answer = report.answer_number(
          parts,
          claim,
          o.cell.choices,
          data=o.cell.data,
          has_one_partition=o.has_one_partition,
          replicas=o.cell.replicas,
        )
        if answer.verdict != rule.NOT_TESTABLE and _is_too_short(claim, parts, o):
          answer = answer._replace(verdict=rule.NOT_TESTABLE, reason=rule.NOT_RUN)
      rounds = str(o.summary.get("cost", {}).get("rounds", ""))
      paper_answers.append(
        of_claim(name, claim, answer, rounds)._replace(
          settings=o.settings, protocol=o.cell.protocol, tuning=o.cell.tuning
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
      judgment = verdicts.judge_statement(claim, runs)
      if one_method and judgment.reason == rule.NOT_RUN:
        continue
      answers.append(
        PaperAnswer(
          name,
          claim.artifact,
          "",
          "",
          "",
          claim.text,
          judgment.measured,
          judgment.verdict,
          judgment.reason,
          "",
          protocol=protocol,
          tuning=protocol
          if protocol != suite.TUNED
          else verdicts.tuning_of_statement(claim, runs),
          measurements=judgment.measurements,
          note=judgment.note,
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
      by_text.setdefault(answer.claim, {})[answer.protocol] = answer
  if not by_text:
    return None
  protocols = list(dict.fromkeys(key for texts in by_text.values() for key in texts))
  head, columns = report.with_tunings(
    [
      texts[suite.TUNED].tuning if suite.TUNED in texts else ""
      for texts in by_text.values()
    ]
  )
  rows = []
  for (text, texts), column in zip(by_text.items(), columns):
    rows.append([text])
    for protocol in protocols:
      its = texts.get(protocol)
      rows[-1] += [
        its.ours if its else "-",
        *(column if protocol == suite.TUNED else ()),
        its.words if its else "-",
      ]
  heads = ["what is said"]
  for protocol in protocols:
    heads += [*(head if protocol == suite.TUNED else [protocol]), "verdict"]
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
        (answer.artifact, answer.panel, answer.method, answer.metric), ""
      )
    )
    else answer
    for answer in page_answers
  ]


#: Recognizer of a file of answers.
IS_TABLE = files.table_with(*PaperAnswer._fields[:4])


#: The columns of numbers.
_NUMBERS = ("draw95", "mean", "ci95")


def _number_text(number: float) -> str:
  """A number as a file of answers has it; "" of NaN."""
  return "" if math.isnan(number) else f"{number:.6g}"


def _json_number(number: float) -> float | None:
  """The same, six digits, as JSON has it; None of NaN and inf."""
  return float(f"{number:.6g}") if math.isfinite(number) else None


def _measurements_text(measurements: verdicts.Measurements) -> str:
  """Measurements as JSON; "" of none. What a measurement does not have is left out."""
  objects = []
  for measurement in measurements:
    fields = measurement._asdict()
    fields |= {name: _json_number(fields[name]) for name in ("mean", "ci95")}
    fields["values"] = [[*map(_json_number, numbers)] for numbers in measurement.values]
    objects.append({n: value for n, value in fields.items() if value or value == 0})
  return json.dumps(objects) if objects else ""


def _parse_measurements(text: str) -> verdicts.Measurements:
  """Reads what ``_measurements_text`` has written."""
  measurements = []
  for fields in json.loads(text or "[]"):
    fields["place"] = tuple(fields.get("place", ()))
    fields["values"] = tuple(
      tuple(math.inf if number is None else number for number in numbers)
      for numbers in fields.get("values", ())
    )
    measurements.append(verdicts.Measurement(**fields))
  return tuple(measurements)


def answers_csv(answers: Iterable[PaperAnswer]) -> str:
  """The content of a file of answers.

  In ``values`` a space stands between seeds and a semicolon between partitions;
  ``measurements`` are JSON, with null for never.
  """
  buffer = io.StringIO()
  writer = csv.DictWriter(buffer, PaperAnswer._fields, lineterminator="\n")
  writer.writeheader()
  writer.writerows(
    answer._asdict()
    | {name: _number_text(getattr(answer, name)) for name in _NUMBERS}
    | {
      "values": rule.list_values(answer.values),
      "measurements": _measurements_text(answer.measurements),
    }
    for answer in answers
  )
  return buffer.getvalue()


def read_answers(path: pathlib.Path) -> list[PaperAnswer]:
  """Reads a file of answers; [] without a file.

  Raises:
    UsageError: the file has other columns.
  """
  if not path.is_file():
    return []
  with open(path, newline="", encoding="utf-8") as file:
    reader = csv.DictReader(file)
    rows: list[dict[str, Any]] = list(reader)
  if tuple(reader.fieldnames or ()) != PaperAnswer._fields:
    raise UsageError(
      f"{path}: not the answers of a figure command; run the figure again"
    )
  for row in rows:
    row |= {name: float(row[name] or math.nan) for name in _NUMBERS}
    row["values"] = tuple(map(tuple, rule.parse_values(row["values"])))
    row["measurements"] = _parse_measurements(row["measurements"])
  return [PaperAnswer(**row) for row in rows]
