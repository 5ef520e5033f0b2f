"""The one table of the page: every published number that a finished run answers.

``sources.csv`` beside it says where each number of ``claims.csv`` was read: the
repository with commit and file, or the paper with its table; the number as it is
printed there, its deviation, and whether the place was opened.
"""

from collections.abc import Mapping, Sequence

from ...reports import rule
from .. import pages, report, suite
from ..answers import PaperAnswer

#: The folder of its claims and sources.
NAME = "trust"

#: Metric of the claims -> its words.
_WORDS = {
  "test_accuracy_max": "best test accuracy",
  "test_accuracy_end": "last test accuracy",
  "personal_accuracy_max": "best accuracy of the personal models",
  "global_accuracy_max": "best accuracy of the global model",
  "average_accuracy": "mean of the clients' accuracies",
  "shirt_accuracy": "accuracy of the client with shirts",
  "loss_10": "loss",
  "loss_195": "loss",
}
#: Tables without panels.
_TABLES = ("afl", "afl_cifar10", "fedexp", "fair", "client_privacy")
#: Columns that name a number, in claims, sources and answers.
_KEY = ("artifact", "panel", "method", "metric")


def _words(claim: Mapping[str, str]) -> str:
  """What a row of the claims measures."""
  if claim["target"]:
    return f"rounds to {claim['target']} %"
  if claim["clients"]:
    return f"{claim['clients']} clients, sum of abs(W - W_joint)"
  return _WORDS.get(claim["metric"], claim["metric"])


#: Table -> the digits of its numbers, which are printed with more.
DIGITS = {"afl": 2, "fedexp": 7}


def format_small(number: float, table: str) -> str:
  """Formats a number of a table of ``DIGITS``, "4.8e-14"."""
  return f"{number:.{DIGITS[table] - 1}e}"


def format_published(table: str, printed: str, deviation: str = "") -> str:
  """Formats a published number, "98.89 +- 0.07".

  Args:
    table: the table, as the claims file names it.
    printed: the number.
    deviation: its deviation; "": none.
  """
  short = format_small(float(printed), table) if table in DIGITS else printed
  return f"{short} +- {deviation}" if deviation else short


def published_deviations() -> dict[tuple[str, ...], str]:
  """The deviation of each published number, by artifact, panel, method, metric."""
  return {
    tuple(row[name] for name in _KEY): row["deviation"]
    for row in report.read_claims(NAME, "sources")
  }


def quoted_numbers() -> set[tuple[str, ...]]:
  """The published numbers, by the same, whose place was not opened."""
  return {
    tuple(row[name] for name in _KEY)
    for row in report.read_claims(NAME, "sources")
    if row["read"] == "no"
  }


def table_of_finished(page_answers: Sequence[PaperAnswer]) -> list[pages.Block]:
  """The table, and the tables of which runs are missing.

  Args:
    page_answers: the answers of all figures and tables.

  Returns:
    One row for each published number with a finished run, in the order of the
    claims. A number without such a run has no row; its table is named below.
  """
  answer_of: dict[tuple[str, ...], PaperAnswer] = {
    (answer.artifact, answer.panel, answer.method, answer.metric): answer
    for answer in page_answers
    if answer.metric
    and answer.protocol == suite.TUNED
    and answer.reason != rule.NOT_RUN
  }
  of_number, quoted = published_deviations(), quoted_numbers()
  rows, missing = [], dict[str, int]()
  for claim in report.read_claims(NAME):
    key = tuple(claim[name] for name in _KEY)
    name = claim["artifact"]
    answer = answer_of.get(key)
    if answer is None:
      missing[name] = missing.get(name, 0) + 1
      continue
    panels = f" --panels={claim['panel']}" * (name not in _TABLES)
    rows.append(
      [
        f"{claim['setting']}: {claim['method']}, {_words(claim)}",
        format_published(name, claim["value"], of_number[key])
        + " (quoted)" * (key in quoted),
        answer.ours,
        answer.rounds or "-",
        answer.words,
        f"`--table={name}{panels}`",
      ]
    )
  heads = ["cell", "published +- sd", "ours +- CI", "rounds", "verdict", "replayed by"]
  blocks: list[pages.Block] = [pages.Table(heads, rows)] if rows else []
  if missing:
    words = ", ".join(f"`{name}` ({number})" for name, number in missing.items())
    blocks.append(
      f"Cells of these tables have no run of all rounds, and no row here: {words}. "
      "Numbers in parentheses count the cells. Shorter runs, if any, are below."
    )
  return blocks
