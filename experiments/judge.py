"""Judges claims about finished runs: numbers and margins, each with a verdict.

  python -m experiments.judge claims.csv out/fedavg Ours=out/third \\
      [--out=out/judge]

claims.csv has a line for each claim, with the columns

  method    name of a run, or "A - B" for what A gains over B, seed by seed
  protocol  evaluation protocol, such as global or local
  metric    of metrics.csv, such as accuracy; or what is spent to reach a value
            of it, such as round_to_accuracy_90% or total_bytes_to_accuracy_90%
            (round, total_floats, total_bytes, simulated_s)
  value     the number, shares in percent; ">100" for rounds that are not
            enough; of a margin also ">0" or "<0"
  rule      which value of the curve counts: final, last_10 (mean of the last
            ten rounds) or best; of what is spent nothing

and as many others as you like, which are shown. Runs are folders, named as by
the command compare (NAME=FOLDER, else the method).

A number is reached within 0.3 points (5 % of numbers that are no shares) and
with an interval of at most a point; it is exceeded or missed ("short") if the
gap is larger than that and than the interval; else it is open. A margin such as
">0" holds, or fails, if the interval excludes the value. Intervals: 95 %, over
the seeds. --out gets judge.md and judge.csv.
"""

from collections.abc import Mapping, Sequence
import collections
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
from fedjax_alg.files import expanded
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.runs.compare import COSTS, SCORES
from . import compare
from .cli.config import UsageError
from .cli.command import as_module, Command, string, written
from .reports import answers, report, rule

_COLUMNS = ("method", "protocol", "metric", "value", "rule")
#: What tells the table of this command.
_IS_JUDGED = files.table_with(*_COLUMNS, "ours", "verdict")
_SPENT = re.compile(rf"({'|'.join(COSTS)})_to_(\w+?)_([\d.]+)%?")
_VALUE = re.compile(r"([<>]?)\s*(-?[\d.]+(?:e-?\d+)?)")


class Judged(NamedTuple):
  """A claim with its answer."""

  claim: Mapping[str, str]
  ours: str
  words: str  #: the verdict


def read_claims(word: str) -> list[dict[str, str]]:
  """Reads a file of claims.

  Raises:
    UsageError: one line with the file, and the line and what is wrong there.
  """
  path = expanded(word)
  try:
    rows = list(csv.DictReader(io.StringIO(files.read_text(path))))
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise UsageError(
        f"{word}: no file of claims ({errors.reason(error)})") from error
  lacking = [name for name in _COLUMNS if not rows or name not in rows[0]]
  if lacking:
    raise UsageError(f"{word}: lacks the column {lacking[0]} (must have "
                     f"{', '.join(_COLUMNS)}, and a line for each claim)")
  for number, row in enumerate(rows, 2):
    where = f"{word}, line {number}: "
    spent = _SPENT.fullmatch(row["metric"] or "")
    metric = spent[2] if spent else row["metric"]
    if not metrics.is_known(metric):
      raise UsageError(
          f"{where}metric={row['metric']}: must be one of "
          f"{', '.join(metrics.METRICS)}, or {'|'.join(COSTS)}_to_METRIC_90%")
    if not _VALUE.fullmatch(row["value"] or ""):
      raise UsageError(
          f"{where}value={row['value']}: must be a number, >number or <number")
    if not spent and row["rule"] not in SCORES:
      raise UsageError(
          f"{where}rule={row['rule']}: must be one of {', '.join(SCORES)}")
    if spent and " - " in row["method"]:
      raise UsageError(f"{where}method={row['method']}: a margin of what is "
                       "spent cannot be judged; claim the two numbers")
  return rows


def _margin(claim: Mapping[str, str], runs: Mapping[str, fa.RunResult]
            ) -> tuple[str, str]:
  """(ours, the verdict) of a claim about "A - B"."""
  one, other = claim["method"].split(" - ", 1)
  found = fa.compare(
      {other: runs[other], one: runs[one]}, metric=claim["metric"],
      protocol=claim["protocol"], score=claim["rule"], targets=())
  if found.unpaired:
    return "-", f"{rule.NOT_COMPARABLE}: {found.unpaired[one]}"
  factor = metrics.factor(claim["metric"])
  estimate = found.pairs[0].difference
  ours = summary_lib.shown(estimate._asdict(), 2, factor, "+")
  sign, number = _VALUE.fullmatch(claim["value"]).groups()  # type: ignore
  gap = factor * estimate.mean - float(number)
  if not sign:
    verdict = rule.place(
        gap, factor * estimate.ci95, rule.tie_of(float(number), "pp"))
    return ours, rule.words(verdict, abs(gap), claim["metric"], "pp", True)
  place = rule.place(gap, factor * estimate.ci95)
  if place not in (rule.ABOVE, rule.BELOW):
    return ours, "too close to call"
  return ours, "holds" if (place == rule.ABOVE) == (sign == ">") else "fails"


def _number(claim: Mapping[str, str], result: fa.RunResult) -> tuple[str, str]:
  """(ours, the verdict) of a claim about one run."""
  sign, text = _VALUE.fullmatch(claim["value"]).groups()  # type: ignore
  value = math.inf if sign == ">" else float(text)
  spent = _SPENT.fullmatch(claim["metric"])
  if spent:
    cost, metric, target = spent[1], spent[2], float(spent[3])
    target /= metrics.factor(metric)
    line, = fa.compare({"run": result}, metric=metric, targets=(target,),
                       protocol=claim["protocol"]).lines
    values = [math.inf if at is None else at[cost]
              for at in line.reached[target]]
    name, unit = f"rounds_to_{metric}", "rounds" if cost == "round" else ""
  else:
    line, = fa.compare({"run": result}, metric=claim["metric"], targets=(),
                       protocol=claim["protocol"]).lines
    factor = metrics.factor(claim["metric"])
    values = [factor * v for v in line.scores[claim["rule"]].values]
    name, unit = claim["metric"], "%" if factor == 100 else ""
  ours, verdict = answers.number(values, report.Claim(
      "", "", claim["method"], name, value, unit, "", None, claim["value"]))
  gap = abs(float(np.mean(values)) - value)
  return ours, rule.words(verdict, gap if math.isfinite(gap) else None, name,
                          unit, True, never=math.isinf(value))


def judge(claims: Sequence[Mapping[str, str]],
          runs: Mapping[str, fa.RunResult]) -> list[Judged]:
  """Judges claims; one about a run that is not given is not run.

  Raises:
    OptionError: a run does not have a claim's protocol or metric.
  """
  found = []
  for claim in claims:
    names = claim["method"].split(" - ", 1)
    missing = [name for name in names if name not in runs]
    if missing:
      answer = "-", f"{rule.NOT_RUN}: {', '.join(missing)}"
    elif len(names) == 2:
      answer = _margin(claim, runs)
    else:
      answer = _number(claim, runs[names[0]])
    found.append(Judged(claim, *answer))
  return found


def markdown(found: Sequence[Judged], command_line: str) -> str:
  """The claims with their verdicts, and how many there are of each."""
  counts = collections.Counter(
      re.split(" by |: ", one.words)[0] for one in found)
  head = [name for name in found[0].claim if name is not None]
  return report.join("Claims, judged", [
      report.table(["verdict", "claims"], counts.items()),
      report.table([*head, "ours", "verdict"], (
          [*(one.claim[name] or "-" for name in head), one.ours, one.words]
          for one in found)),
      "Intervals: 95 %, over the seeds. A number is reached within 0.3 points "
      "(5 % of numbers that are no shares) and with an interval of at most a "
      "point; a single seed decides nothing.", f"Made by `{command_line}`."])


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Judges the claims and writes the tables."""
  if len(words) < 2:
    raise UsageError("give a file of claims and the folders of runs, e.g. "
                     "claims.csv out/a out/b")
  folder = files.output_path(values.out, "out")
  files.check_outputs(f"`out`={values.out}", {
      folder / "judge.csv": _IS_JUDGED,
      folder / "judge.md": files.beside("judge.csv", _IS_JUDGED)})
  claims = read_claims(words[0])
  runs = compare.read(words[1:])
  found = judge(claims, runs)
  if all(one.words.startswith(rule.NOT_RUN) for one in found):
    raise UsageError(
        f"{words[0]}: no claim is about these runs ({', '.join(runs)})")
  text = markdown(found, as_module("judge", argv).replace("`", "'"))
  with written(f"--out={values.out}"):
    folder.mkdir(parents=True, exist_ok=True)
    with files.replacing(folder / "judge.csv") as partial, open(
        partial, "w", newline="", encoding="utf-8") as file:
      writer = csv.writer(file, lineterminator="\n")
      writer.writerow([*found[0].claim, "ours", "verdict"])
      writer.writerows(
          [*one.claim.values(), one.ours, one.words] for one in found)
    summary_lib.write_text(folder / "judge.md", text)
  print(text)
  print(f"wrote {folder / 'judge.md'}\nwrote {folder / 'judge.csv'}")


main = Command(
    __doc__,
    (string("out", "out/judge", "folder of judge.md and judge.csv"),), _run)

if __name__ == "__main__":
  sys.exit(main())
