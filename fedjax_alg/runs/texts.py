"""Tables of numbers as text: LaTeX with rules of booktabs, and CSV."""

from collections.abc import Iterable, Sequence
import csv
import io
from typing import Any

import numpy as np

from fedjax_alg import metrics

_LATEX = {
  "\\": r"\textbackslash{}",
  "&": r"\&",
  "%": r"\%",
  "$": r"\$",
  "#": r"\#",
  "_": r"\_",
  "{": r"\{",
  "}": r"\}",
  "~": r"\textasciitilde{}",
  "^": r"\textasciicircum{}",
  "<": r"\textless{}",
  ">": r"\textgreater{}",
}


def latex_text(text: str) -> str:
  """Text in which every character stands for itself in LaTeX."""
  words = "".join(_LATEX.get(sign, sign) for sign in text)
  return words.replace("--", "-{}-")  # two signs, not a dash


def latex_estimate(estimate: Any, metric: str, is_best: bool = False) -> str:
  """Mean and interval in the unit of a table, for LaTeX.

  Args:
    estimate: ``compare.Estimate``.
    metric: its metric, which decides unit and decimals.
    is_best: whether it is bold.
  """
  factor, digits = metrics.factor(metric), metrics.digits(metric)
  if not np.isfinite(estimate.mean):
    return "-"
  mean = f"{factor * estimate.mean:.{digits}f}"
  mean = rf"\textbf{{{mean}}}" if is_best else mean
  if not np.isfinite(estimate.ci95):
    return mean
  return rf"{mean} $\pm$ {factor * estimate.ci95:.{digits}f}"


def latex_table(
  head: Sequence[str], rows: Iterable[Sequence[str]], note: str = ""
) -> str:
  """A ``tabular`` with rules of booktabs; the note stands below it.

  Args:
    head: the heads of the columns, as plain text.
    rows: the cells; the first of each row is plain text, the others are LaTeX.
    note: LaTeX.
  """
  lines = [
    rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
    r"  \toprule",
    "  " + " & ".join(map(latex_text, head)) + r" \\",
    r"  \midrule",
    *(
      "  " + " & ".join([latex_text(first), *others]) + r" \\"
      for first, *others in rows
    ),
    r"  \bottomrule",
    r"\end{tabular}",
  ]
  if note:
    lines.append(rf"\par\smallskip{{\footnotesize {note}\par}}")
  return "\n".join(lines) + "\n"


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
  """Flat dictionaries with the same keys as CSV."""
  text = io.StringIO(newline="")
  writer = csv.DictWriter(text, list(rows[0]))
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()
