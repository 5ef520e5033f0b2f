"""Judges claims about finished runs: numbers and margins, each with a verdict.

  python -m experiments.judge claims.csv out/fedavg Ours=out/third \\
      [--out=out/judge]

To check which claims your runs confirm, write a line for each claim into
claims.csv, with these columns:

  method    name of a run, or "A - B" for the gain of A over B, paired by seed
  protocol  evaluation protocol, such as global or local
  metric    a column of metrics.csv, such as accuracy; or the cost of reaching a
            value of it, such as round_to_accuracy_90% or
            total_bytes_to_accuracy_90% (round, total_floats, total_bytes,
            simulated_s)
  value     the number, shares in percent (78.7 or 78.7%; a share of at most one
            percent needs a percent sign, 0.5%); a bound is ">50" or "<50", for
            a margin ">0", for rounds that are not enough ">100"
  rule      which value of the curve counts: final, last_10 (mean of the last
            ten rounds) or best; empty for a cost

You can add other columns, which are shown unchanged. The file must be text in
UTF-8 with commas. Give the runs as folders, with names as in the command compare
(NAME=FOLDER, otherwise the method).

You get one of five verdicts for each claim, with the reason:

  reached     at most 0.3 points off (5 % if the number is no share), or inside
              the interval; in both cases the interval is narrower than a point
  better      off by more than that and by more than the interval
  worse       the same in the other direction
  undecided   everything else

The fifth is "not testable", without a run. On CIFAR-10 and FEMNIST the limit is
0.5 points instead of 0.3. A bound such as ">50" is reached, or worse, if the
interval excludes the value. If no seed reaches a value, a claim about the rounds
until then is worse, and undecided if the run is too short for the claim. The 95 %
intervals are over the seeds, so one seed decides nothing.
You find the verdicts in judge.md and judge.csv in the folder --out.
"""

import collections
from collections.abc import Mapping, Sequence
import csv
import io
import math
import re
import sys
from typing import NamedTuple

from absl.flags import FlagValues
import numpy as np

import fedjax_alg as fa
from fedjax_alg import errors, files, metrics
from fedjax_alg.files import expand_path
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.runs import texts
from fedjax_alg.runs.compare import COSTS, SCORES, Line

from . import compare
from .cli.command import Command, as_module, explain_write_errors, string
from .cli.config import UsageError
from .reports import markdown, rule

_COLUMNS = ("method", "protocol", "metric", "value", "rule")
#: Recognizer of the table of this command.
_IS_JUDGED = files.table_with(*_COLUMNS, "ours", "verdict")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SPENT = re.compile(rf"({'|'.join(COSTS)})_to_(\w+?)_({_NUMBER})(%?)")
_VALUE = re.compile(rf"([<>]?)\s*({_NUMBER})\s*(%?)")
#: Between the names of two runs.
_MINUS = " - "


#: The answer where a run has the metric, and no number at the evaluations that count.
_NO_NUMBER = "-", rule.words(rule.NOT_TESTABLE, "no number there")


class _JudgedClaim(NamedTuple):
  """A claim with its answer."""

  claim: Mapping[str, str]
  ours: str
  words: str  #: the verdict


class _Spent(NamedTuple):
  """A metric of a claim about what is spent to reach a value of another one."""

  cost: str  #: one of ``COSTS``
  metric: str
  target: float  #: in the unit of metrics.csv


def _number_of(text: str, percent: str, metric: str, margin: bool = False) -> float:
  """A number of a metric in the unit of the tables.

  Args:
    text: its digits.
    percent: "%" if its unit is stated, else "".
    metric: the metric.
    margin: whether it is a difference of two values.

  Raises:
    ValueError: what is wrong, without the number.
  """
  number = float(text)
  if not math.isfinite(number):
    raise ValueError("must be finite")
  if not metrics.metric(metric).share:
    if percent:
      raise ValueError(f"{metric} is not a share, must be given without %")
    return number
  least = -100.0 if margin else 0.0
  if not least <= number <= 100:
    raise ValueError(f"{metric} is a share, must lie in [{least:g}, 100] %")
  if 0 < number <= 1 and not percent and not margin:
    raise ValueError(
      f"shares are in percent, must be {100 * number:g}, or "
      f"{number:g}% if so little is meant"
    )
  return number


def _parse_spent(metric: str) -> _Spent | None:
  """Parses a claim's metric of what is spent; None for one of metrics.csv.

  Raises:
    UsageError: its value is none of its metric's.
  """
  match = _SPENT.fullmatch(metric)
  if match is None or not metrics.is_known(match[2]):
    return None
  try:
    target = _number_of(match[3], match[4], match[2])
  except ValueError as error:
    raise UsageError(f"metric={metric}: {error}") from None
  return _Spent(match[1], match[2], target / metrics.factor(match[2]))


def _bound(claim: Mapping[str, str]) -> tuple[str, float]:
  """The sign (">", "<" or "") and the number of a claim's value.

  Raises:
    UsageError: it is no such value.
  """
  where = f"value={claim['value']}"
  match = _VALUE.fullmatch(claim["value"])
  if match is None:
    raise UsageError(f"{where}: must be a number, >number or <number")
  try:
    if _parse_spent(claim["metric"]) is None:
      return match[1], _number_of(
        match[2], match[3], claim["metric"], _MINUS in claim["method"]
      )
    number = float(match[2])
    if match[3] or not 0 < number < math.inf:
      raise ValueError("a cost must be a number above 0")
  except ValueError as error:
    raise UsageError(f"{where}: {error}") from None
  return match[1], number


def _check(claim: Mapping[str, str]) -> None:
  """Checks a claim.

  Raises:
    UsageError: one line with the column and what is wrong there.
  """
  names, spent = claim["method"].split(_MINUS, 1), _parse_spent(claim["metric"])
  if not all(name.strip() for name in names) or names[1:] == names[:1]:
    raise UsageError(
      f"method={claim['method']}: must be the name of a run, or "
      "those of two runs, A - B"
    )
  if spent is None and not metrics.is_known(claim["metric"]):
    raise UsageError(
      f"metric={claim['metric']}: must be one of "
      f"{', '.join(metrics.METRICS)}, or {'|'.join(COSTS)}_to_METRIC_90%"
    )
  _bound(claim)
  if spent is None:
    if claim["rule"] not in SCORES:
      raise UsageError(f"rule={claim['rule']}: must be one of {', '.join(SCORES)}")
  elif claim["rule"]:
    raise UsageError(
      f"rule={claim['rule']}: must be empty, {claim['metric']} has one value"
    )
  elif len(names) > 1:
    raise UsageError(
      f"method={claim['method']}: a margin of what is "
      "spent cannot be judged; claim the two numbers"
    )


def _header(word: str, names: Sequence[str]) -> None:
  """Checks the columns of a file of claims."""
  missing = [name for name in _COLUMNS if name not in names]
  if missing:
    hint = "; they are separated by commas" if ";" in "".join(names) else ""
    raise UsageError(
      f"{word}: lacks the column {missing[0]} (must have "
      f"{', '.join(_COLUMNS)}, and a line for each claim{hint})"
    )
  for name in names:
    if names.count(name) > 1:
      raise UsageError(f"{word}: has the column {name} twice")


def _read_claims(word: str) -> list[dict[str, str]]:
  """Reads a file of claims.

  Raises:
    UsageError: one line with the file, and the line and what is wrong there.
  """
  try:
    reader = csv.reader(
      io.StringIO(files.read_text(expand_path(word)), newline=""), strict=True
    )
    lines = [(reader.line_num, cells) for cells in reader if cells]
  except (OSError, csv.Error) as error:
    raise UsageError(f"{word}: no file of claims ({errors.reason(error)})") from error
  head = [name.strip() for name in lines[0][1]] if lines else []
  _header(word, head)
  if not lines[1:]:
    raise UsageError(f"{word}: no claim, must have a line for each")
  rows = []
  for number, cells in lines[1:]:
    where = f"{word}, line {number}"
    if len(cells) != len(head):
      raise UsageError(
        f"{where}: has {len(cells)} cells, must have {len(head)}, as the first line"
      )
    rows.append(dict(zip(head, map(str.strip, cells), strict=True)))
    try:
      _check(rows[-1])
    except UsageError as error:
      raise UsageError(f"{where}: {error.text}") from None
  return rows


def _holds(sign: str, place: str) -> str:
  """Whether a bound holds, by the place of our number beside it."""
  if place not in (rule.ABOVE, rule.BELOW):
    return rule.UNDECIDED
  return rule.REACHED if (place == rule.ABOVE) == (sign == ">") else rule.WORSE


def _margin(
  claim: Mapping[str, str], runs: Mapping[str, fa.RunResult]
) -> tuple[str, str]:
  """(ours, the verdict) of a claim about "A - B"."""
  name, baseline = claim["method"].split(_MINUS, 1)
  compared = fa.compare(
    {baseline: runs[baseline], name: runs[name]},
    metric=claim["metric"],
    protocol=claim["protocol"],
    score=claim["rule"],
    targets=(),
  )
  if compared.unpaired:
    return "-", rule.words(rule.NOT_TESTABLE, compared.unpaired[name])
  factor = metrics.factor(claim["metric"])
  gain = compared.pairs[0].difference
  ours = metrics.format_estimate(gain, 2, factor, "+")
  if math.isnan(gain.mean):
    return _NO_NUMBER
  sign, number = _bound(claim)
  gap, ci95 = factor * gain.mean - number, factor * gain.ci95
  if sign:
    return ours, _holds(sign, rule.place_gap(gap, ci95))
  unit = "pp" if factor == 100 else ""
  placement = rule.place_values(
    [factor * value for value in gain.values],
    number,
    unit,
    data=_data_of(runs[name]),
  )
  return ours, rule.words(*rule.verdict(placement, abs(gap), claim["metric"], unit))


def _data_of(result: fa.RunResult) -> str:
  """The data set of a run; "" of data that have no name."""
  data = result.facts.get("data")
  return str(data.get("dataset", "")) if isinstance(data, Mapping) else ""


def _line(
  result: fa.RunResult,
  claim: Mapping[str, str],
  metric: str,
  targets: Sequence[float] = (),
) -> Line:
  """A run alone, with the protocol of a claim."""
  (line,) = fa.compare(
    {claim["method"]: result},
    metric=metric,
    targets=targets,
    protocol=claim["protocol"],
  ).lines
  return line


def _answer(
  claim: Mapping[str, str],
  values: Sequence[float],
  metric: str,
  unit: str,
  data: str = "",
) -> tuple[str, str]:
  """(ours, the verdict) of numbers, one per seed; inf: never in the run."""
  if np.isnan(values).any():
    return _NO_NUMBER
  sign, number = _bound(claim)
  placement = rule.place_values(values, number, unit, data=data)
  never = bool(np.isinf(values).any())
  gap = None if never else metrics.estimate_mean(np.subtract(values, number))
  if not sign:
    return placement.ours, rule.words(
      *rule.verdict(placement, None if gap is None else abs(gap.mean), metric, unit)
    )
  # Without a gap the verdict is whether all seeds, or none, never get there.
  return placement.ours, _holds(
    sign, placement.place if gap is None else rule.place_gap(gap.mean, gap.ci95)
  )


def _number(claim: Mapping[str, str], result: fa.RunResult) -> tuple[str, str]:
  """(ours, the verdict) of a claim about one run."""
  spent = _parse_spent(claim["metric"])
  if spent is None:
    metric, factor = claim["metric"], metrics.factor(claim["metric"])
    scores = _line(result, claim, metric).scores[claim["rule"]].values
    return _answer(
      claim,
      [factor * value for value in scores],
      metric,
      "%" if factor == 100 else "",
      _data_of(result),
    )
  line = _line(result, claim, spent.metric, [spent.target])
  of_seeds = [
    math.inf if at is None else at[spent.cost] for at in line.reached[spent.target]
  ]
  ours, verdict = _answer(
    claim,
    of_seeds,
    f"rounds_to_{spent.metric}",
    "rounds" if spent.cost == "round" else "",
  )
  number, totals = _bound(claim)[1], line.costs[spent.cost].values
  short = [
    total
    for value, total in zip(of_seeds, totals, strict=True)
    if math.isinf(value) and total < number
  ]
  if short:  # what is never reached in the run may be reached in time
    verdict = f"{rule.UNDECIDED}: {min(short):g} of {number:g}"
    verdict += " rounds" * (spent.cost == "round")
  return ours, verdict


def _no_run(names: Sequence[str]) -> str:
  """The reason for which a claim about other runs cannot be tested."""
  return f"{rule.NOT_RUN}, {', '.join(names)}"


def _judge_claims(
  claims: Sequence[Mapping[str, str]], runs: Mapping[str, fa.RunResult]
) -> list[_JudgedClaim]:
  """Judges claims; one about a run that is not given is not run.

  Raises:
    UsageError: a run does not have a claim's protocol or metric.
  """
  answers = []
  for claim in claims:
    names = claim["method"].split(_MINUS, 1)
    missing = [name for name in names if name not in runs]
    try:
      if missing:
        answer = "-", rule.words(rule.NOT_TESTABLE, _no_run(missing))
      elif len(names) == 2:
        answer = _margin(claim, runs)
      else:
        answer = _number(claim, runs[names[0]])
    except errors.OptionError as error:
      raise UsageError(f"{claim['method']}: {error}") from None
    answers.append(_JudgedClaim(claim, *answer))
  return answers


def _judged_page(answers: Sequence[_JudgedClaim], command_line: str) -> str:
  """The claims with their verdicts, and how many there are of each."""
  counts = collections.Counter(
    re.split(" by |: ", answer.words)[0] for answer in answers
  )
  return markdown.page(
    "Claims, judged",
    [
      markdown.table(["verdict", "claims"], counts.items()),
      markdown.table(
        [*map(texts.markdown_text, answers[0].claim), "ours", "verdict"],
        (
          [
            texts.markdown_text(cell or "-")
            for cell in (*answer.claim.values(), answer.ours, answer.words)
          ]
          for answer in answers
        ),
      ),
      "Intervals: 95 %, over the seeds. A number is reached within 0.3 points "
      "(0.5 on CIFAR-10 and FEMNIST, 5 % of numbers that are no shares), or "
      "inside the interval, if the interval is narrower than a point; a single "
      "seed decides nothing.",
      f"Made by {texts.markdown_code(command_line)}.",
    ],
  )


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Judges the claims and writes the tables."""
  if len(words) < 2:
    raise UsageError(
      "give a file of claims and the folders of runs, e.g. claims.csv out/a out/b"
    )
  folder = files.output_path(values.out, "out")
  files.check_outputs(
    f"`out`={values.out}",
    {
      folder / "judge.csv": _IS_JUDGED,
      folder / "judge.md": files.with_sibling("judge.csv", _IS_JUDGED),
    },
  )
  runs = compare.read_runs(words[1:])  # which makes the metrics of own tasks known
  claims = _read_claims(words[0])
  answers = _judge_claims(claims, runs)
  if all(f": {rule.NOT_RUN}" in answer.words for answer in answers):
    raise UsageError(f"{words[0]}: no claim is about these runs ({', '.join(runs)})")
  text = _judged_page(answers, as_module("judge", argv))
  with explain_write_errors(f"--out={values.out}"):
    folder.mkdir(parents=True, exist_ok=True)
    with (
      files.replacing(folder / "judge.csv") as partial,
      open(partial, "w", newline="", encoding="utf-8") as file,
    ):
      writer = csv.writer(file)
      writer.writerow([*answers[0].claim, "ours", "verdict"])
      writer.writerows(
        [*answer.claim.values(), answer.ours, answer.words] for answer in answers
      )
    summary_lib.write_text(folder / "judge.md", text)
  print(text)
  print(f"wrote {folder / 'judge.md'}\nwrote {folder / 'judge.csv'}")


main = Command(
  __doc__, (string("out", "out/judge", "folder of judge.md and judge.csv"),), _run
)

if __name__ == "__main__":
  sys.exit(main())
