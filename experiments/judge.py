"""Judges claims about finished runs, each with a verdict.

  python -m experiments.judge claims.csv out/fedavg_digits Ours=out/mine

To check which claims your runs confirm, write a line for each claim into a file,
such as claims.csv (--help=columns):

  method,protocol,metric,value,rule
  Ours,global,accuracy,>50,final
  Ours - FedAvg,global,accuracy,>0,final

Give the runs as folders, with names as in the command compare (NAME=FOLDER,
otherwise the method). You get a verdict for each claim, with the reason:

  reached     at most 0.3 points off our mean (5 % if the number is no share), whose
              interval is narrower than a point; or inside the interval of one run,
              if that is narrower than a point
  better      off by more than that and by more than the interval of one run
  worse       the same in the other direction
  undecided   everything else

The fifth verdict is "not testable", without a run. A claim is about one run. The
interval of one run is therefore the 95 % prediction interval of a further seed, which
is wider than the interval of the mean. You find the verdicts in judge.md and judge.csv
in the folder --out, and in judge.md half the width of this interval ("draw").

Columns of the file of claims
-----------------------------
The file must be text in UTF-8 with commas. You can add other columns, which are
shown unchanged.

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

Verdicts in special cases
-------------------------
On CIFAR-10 and FEMNIST the limit is 0.5 points instead of 0.3. A bound such as
">50" is reached, or worse, if the interval of the mean excludes the value. If no
seed reaches a value, a claim about the rounds until then is worse, and undecided if
the run is too short for the claim. If any seed never reaches it, ">100" is reached
if every seed needs more than 100 rounds. The 95 % intervals are over the seeds, so
one seed decides nothing.
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


class _Answer(NamedTuple):
  """What the runs say of a claim."""

  ours: str
  verdict: str  #: one of ``rule.VERDICTS``
  reason: str = ""
  draw95: float = math.nan  #: half the width of the interval that decided, if of a draw

  @property
  def words(self) -> str:
    """The verdict with its reason."""
    return rule.words(self.verdict, self.reason)

  @property
  def ours_and_draw(self) -> str:
    """Ours with the interval of one run."""
    has_draw = not math.isnan(self.draw95)
    return self.ours + f" (draw {self.draw95:.3g})" * has_draw


#: The answer where a run has the metric, and no number at the evaluations that count.
_NO_NUMBER = _Answer("-", rule.NOT_TESTABLE, "no number there")


class _Spent(NamedTuple):
  """A metric of a claim about what is spent to reach a value of another one."""

  cost: str  #: one of ``COSTS``
  metric: str
  target: float  #: in the unit of metrics.csv


class _Claim(NamedTuple):
  """A line of a file of claims."""

  cells: Mapping[str, str]  #: column -> its text
  run: str  #: name of the run
  baseline: str  #: name of the run that it gains on; "": the claim is of one run
  protocol: str
  metric: str
  spent: _Spent | None  #: what ``metric`` says of the cost of a value
  sign: str  #: of a bound, ">" or "<"; "": a number
  value: float
  rule: str  #: one of ``SCORES``; "" of a cost

  @property
  def names(self) -> list[str]:
    """The runs that it needs."""
    return list(filter(None, (self.run, self.baseline)))


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


def _parse_value(
  cells: Mapping[str, str], spent: _Spent | None, margin: bool
) -> tuple[str, float]:
  """Parses the value of a claim: its sign (">", "<" or "") and its number.

  Raises:
    UsageError: it is no such value.
  """
  where = f"value={cells['value']}"
  match = _VALUE.fullmatch(cells["value"])
  if match is None:
    raise UsageError(f"{where}: must be a number, >number or <number")
  try:
    if spent is None:
      return match[1], _number_of(match[2], match[3], cells["metric"], margin)
    number = float(match[2])
    if match[3] or not 0 < number < math.inf:
      raise ValueError("a cost must be a number above 0")
  except ValueError as error:
    raise UsageError(f"{where}: {error}") from None
  return match[1], number


def _parse_claim(cells: Mapping[str, str]) -> _Claim:
  """Parses a line: column -> text.

  Raises:
    UsageError: one line with the column and what is wrong there.
  """
  (run, minus, baseline), spent = (
    cells["method"].partition(_MINUS),
    _parse_spent(cells["metric"]),
  )
  if not run.strip() or (minus and not baseline.strip()) or run == baseline:
    raise UsageError(
      f"method={cells['method']}: must be the name of a run, or "
      "those of two runs, A - B"
    )
  if spent is None and not metrics.is_known(cells["metric"]):
    raise UsageError(
      f"metric={cells['metric']}: must be one of "
      f"{', '.join(metrics.METRICS)}, or {'|'.join(COSTS)}_to_METRIC_90%"
    )
  sign, value = _parse_value(cells, spent, bool(minus))
  if spent is None:
    if cells["rule"] not in SCORES:
      raise UsageError(f"rule={cells['rule']}: must be one of {', '.join(SCORES)}")
  elif cells["rule"]:
    raise UsageError(
      f"rule={cells['rule']}: must be empty, {cells['metric']} has one value"
    )
  elif minus:
    raise UsageError(
      f"method={cells['method']}: a margin of what is "
      "spent cannot be judged; claim the two numbers"
    )
  return _Claim(
    cells,
    run,
    baseline,
    cells["protocol"],
    cells["metric"],
    spent,
    sign,
    value,
    cells["rule"],
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


def _read_claims(word: str) -> list[_Claim]:
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
    try:
      rows.append(_parse_claim(dict(zip(head, map(str.strip, cells), strict=True))))
    except UsageError as error:
      raise UsageError(f"{where}: {error.text}") from None
  return rows


def _holds(sign: str, place: str) -> str:
  """Whether a bound holds, by the place of our number beside it."""
  if place not in (rule.ABOVE, rule.BELOW):
    return rule.UNDECIDED
  return rule.REACHED if (place == rule.ABOVE) == (sign == ">") else rule.WORSE


def _margin(claim: _Claim, runs: Mapping[str, fa.RunResult]) -> _Answer:
  """The answer to a claim about "A - B"."""
  name, baseline = claim.run, claim.baseline
  compared = fa.compare(
    {baseline: runs[baseline], name: runs[name]},
    metric=claim.metric,
    protocol=claim.protocol,
    score=claim.rule,
    targets=(),
  )
  if compared.unpaired:
    return _Answer("-", rule.NOT_TESTABLE, compared.unpaired[name])
  factor = metrics.factor(claim.metric)
  gain = compared.pairs[0].difference
  ours = metrics.format_estimate(gain, 2, factor, "+")
  if math.isnan(gain.mean):
    return _NO_NUMBER
  gap, ci95 = factor * gain.mean - claim.value, factor * gain.ci95
  if claim.sign:
    return _Answer(ours, _holds(claim.sign, rule.place_gap(gap, ci95)))
  unit = "pp" if factor == 100 else ""
  placement = rule.place_values(
    [factor * value for value in gain.values],
    claim.value,
    unit,
    data=rule.name_data(runs[name].facts["data"].get("dataset")),
  )
  verdict = rule.verdict(placement, abs(gap), claim.metric, unit)
  return _Answer(ours, *verdict, placement.draw95)


def _line(
  result: fa.RunResult, claim: _Claim, metric: str, targets: Sequence[float] = ()
) -> Line:
  """A run alone, with the protocol of a claim."""
  (line,) = fa.compare(
    {claim.run: result}, metric=metric, targets=targets, protocol=claim.protocol
  ).lines
  return line


def _answer(
  claim: _Claim, values: Sequence[float], metric: str, unit: str, data: str = ""
) -> _Answer:
  """The answer of numbers, one per seed; inf: never in the run."""
  if np.isnan(values).any():
    return _NO_NUMBER
  placement = rule.place_values(values, claim.value, unit, data=data)
  never = bool(np.isinf(values).any())
  gap = None if never else metrics.estimate_mean(np.subtract(values, claim.value))
  if not claim.sign:
    return _Answer(
      placement.ours,
      *rule.verdict(placement, None if gap is None else abs(gap.mean), metric, unit),
      placement.draw95,
    )
  if gap is not None:
    place = rule.place_gap(gap.mean, gap.ci95)
  else:  # what is never reached has no mean, so every seed counts
    is_above = len(values) > 1 and bool((np.array(values) > claim.value).all())
    place = rule.ABOVE if is_above else rule.UNDECIDED
  return _Answer(placement.ours, _holds(claim.sign, place))


def _number(claim: _Claim, result: fa.RunResult) -> _Answer:
  """The answer to a claim about one run."""
  spent = claim.spent
  if spent is None:
    factor = metrics.factor(claim.metric)
    scores = _line(result, claim, claim.metric).scores[claim.rule].values
    return _answer(
      claim,
      [factor * value for value in scores],
      claim.metric,
      "%" if factor == 100 else "",
      rule.name_data(result.facts["data"].get("dataset")),
    )
  line = _line(result, claim, spent.metric, [spent.target])
  of_seeds = [
    math.inf if at is None else at[spent.cost] for at in line.reached[spent.target]
  ]
  answer = _answer(
    claim,
    of_seeds,
    f"rounds_to_{spent.metric}",
    "rounds" if spent.cost == "round" else "",
  )
  totals = line.costs[spent.cost].values
  short = [
    total
    for value, total in zip(of_seeds, totals, strict=True)
    if math.isinf(value) and total < claim.value
  ]
  if short:  # what is never reached in the run may be reached in time
    why = f"{min(short):g} of {claim.value:g}" + " rounds" * (spent.cost == "round")
    return answer._replace(verdict=rule.UNDECIDED, reason=why)
  return answer


def _judge_claim(claim: _Claim, runs: Mapping[str, fa.RunResult]) -> _Answer:
  """Judges a claim; one about a run that is not given is not run.

  Raises:
    UsageError: a run does not have its protocol or metric.
  """
  missing = [name for name in claim.names if name not in runs]
  if missing:
    return _Answer("-", rule.NOT_TESTABLE, f"{rule.NOT_RUN}, {', '.join(missing)}")
  try:
    return _margin(claim, runs) if claim.baseline else _number(claim, runs[claim.run])
  except errors.OptionError as error:
    raise UsageError(f"{claim.cells['method']}: {error}") from None


def _judged_page(
  claims: Sequence[_Claim], answers: Sequence[_Answer], command_line: str
) -> str:
  """The claims with their verdicts, and how many there are of each."""
  counts = collections.Counter(answer.verdict for answer in answers)
  return markdown.page(
    "Claims, judged",
    [
      markdown.table(["verdict", "claims"], counts.items()),
      markdown.table(
        [*map(texts.markdown_text, claims[0].cells), "ours", "verdict"],
        (
          [
            texts.markdown_text(cell or "-")
            for cell in (*claim.cells.values(), answer.ours_and_draw, answer.words)
          ]
          for claim, answer in zip(claims, answers)
        ),
      ),
      "Intervals: 95 %, of the mean over the seeds; draw: half the width of the "
      "interval of one further run. A number is reached within 0.3 points (0.5 on "
      "CIFAR-10 and FEMNIST, 5 % of numbers that are no shares) of a mean whose "
      "interval is narrower than a point, or inside the interval of one run, if that "
      "is so narrow; a single seed decides nothing.",
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
  if not any({*runs}.issuperset(claim.names) for claim in claims):
    raise UsageError(f"{words[0]}: no claim is about these runs ({', '.join(runs)})")
  answers = [_judge_claim(claim, runs) for claim in claims]
  text = _judged_page(claims, answers, as_module("judge", argv))
  with explain_write_errors(f"--out={values.out}"):
    folder.mkdir(parents=True, exist_ok=True)
    with (
      files.replacing(folder / "judge.csv") as partial,
      open(partial, "w", newline="", encoding="utf-8") as file,
    ):
      writer = csv.writer(file)
      writer.writerow([*claims[0].cells, "ours", "verdict"])
      writer.writerows(
        [*claim.cells.values(), answer.ours, answer.words]
        for claim, answer in zip(claims, answers)
      )
    summary_lib.write_text(folder / "judge.md", text)
  print(text)
  print(f"wrote {folder / 'judge.md'}\nwrote {folder / 'judge.csv'}")


main = Command(
  "judge",
  __doc__,
  (string("out", "out/judge", "folder of judge.md and judge.csv"),),
  _run,
)

if __name__ == "__main__":
  sys.exit(main())
