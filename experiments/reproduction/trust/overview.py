"""The one table of the page: every published number that a finished run answers.

``sources.csv`` beside it says where each number of ``claims.csv`` was read: the
repository with commit and file, or the paper with its table; the number as it is
printed there, its deviation, and whether the place was opened.
"""

from collections.abc import Sequence
import re

from ...reports import rule
from .. import pages, report
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
  r"rounds_to_(\d+)%": r"rounds to \1 %",
  r"deviation_(\d+)": r"\1 clients, sum of abs(W - W_joint)",
  r"loss_(\d+)": "loss",
}
#: Tables without panels.
_TABLES = ("afl", "fedexp", "fair", "client_privacy")
#: Columns that name a number, in claims, sources and answers.
_KEY = ("artifact", "panel", "method", "metric")


def _words(metric: str) -> str:
  for pattern, words in _WORDS.items():
    if match := re.fullmatch(pattern, metric):
      return match.expand(words)
  return metric


def format_published(printed: str, deviation: str = "", beside: str = "") -> str:
  """Formats a published number, "98.89 +- 0.07".

  Args:
    printed: the number.
    deviation: its deviation; "": none.
    beside: our number, "4.8e-14". A long published one has as many digits.
  """
  digits = len(re.sub(r"\D", "", beside.partition("e")[0])) or 3
  short = printed if len(printed) < 8 else f"{float(printed):.{digits - 1}e}"
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
    if answer.metric and answer.reason != rule.NOT_RUN
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
        f"{claim['setting']}: {claim['method']}, {_words(claim['metric'])}",
        format_published(claim["value"], of_number[key], answer.ours)
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
