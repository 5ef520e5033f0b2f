"""Texts of users in every format, and tables of numbers in LaTeX.

A name may have any character. Whoever writes it into a file or a picture takes
the function of the format here.
"""

from collections.abc import Iterable, Sequence
import html
import re

from fedjax_alg import metrics
from fedjax_alg.errors import one_line
from fedjax_alg.metrics.intervals import Estimate, Number, number_of

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
  "|": r"\textbar{}",
  "`": r"\textasciigrave{}",
  # At the begin of a row they would be arguments of what ends the one before.
  "[": "{[}",
  "*": "{*}",
  # Powers of ten in the heads of columns.
  "\u00b3": "$^{3}$",
  "\u2076": "$^{6}$",
  "\u2079": "$^{9}$",
}
#: Of two such signs one behind the other LaTeX makes one: dashes, quotes.
_JOINED = re.compile("(?<=[-',!?])(?=[-',])")
#: Signs that mean something in Markdown, an underscore only beside a word.
_MARKDOWN = re.compile(r"[\\|<&*`\[~$#]|(?<![^\W_])_|_(?![^\W_])")
#: A longer label leaves no room for what is drawn.
_LONGEST = 100


def latex_text(text: str) -> str:
  """Text in which every character stands for itself in LaTeX, in one line."""
  return "{}".join(
    "".join(_LATEX.get(sign, sign) for sign in part)
    for part in _JOINED.split(one_line(text))
  )


def markdown_text(text: str) -> str:
  """Text in which every character stands for itself in Markdown, in one line.

  It may be a heading or a cell of a table, too.
  """
  return _MARKDOWN.sub(r"\\\g<0>", one_line(text))


def markdown_code(text: str) -> str:
  """Text as a piece of code in Markdown, in one line; not for a cell of a table."""
  words = one_line(text)
  fence = "`" * (1 + max(map(len, re.findall("`+", words)), default=0))
  space = " " * (len(fence) > 1)
  return f"{fence}{space}{words}{space}{fence}"


def html_text(text: str) -> str:
  """Text in which every character stands for itself in HTML, in one line."""
  return html.escape(one_line(text))


def picture_text(text: str, longest: int = _LONGEST) -> str:
  """Text in which every character stands for itself in Matplotlib, in one line.

  Of one with more than ``longest`` characters the middle is left out.
  """
  words = one_line(text)
  if len(words) > longest:
    words = f"{words[: longest * 2 // 3]}...{words[-(longest // 4) :]}"
  # A legend leaves out what begins with an underscore.
  return ("\u200b" * words.startswith("_") + words).replace("$", r"\$")


def latex_cell(cell: str | Number, is_best: bool = False) -> str:
  """A cell of a table in LaTeX: plain text, or a number with its signs.

  Args:
    cell: the cell.
    is_best: whether the mean of a number is bold.
  """
  if isinstance(cell, str):
    return latex_text(cell)
  has_sign = cell.sign or (cell.mean is not None and cell.mean < 0)
  mean_as = "${}$" if has_sign else "{}"
  return cell.write(r" $\pm$ ", rf"\textbf{{{{{mean_as}}}}}" if is_best else mean_as)


def latex_estimate(estimate: Estimate, metric: str, is_best: bool = False) -> str:
  """Mean and interval in the unit of a table, for LaTeX.

  Args:
    estimate: the numbers.
    metric: its metric, which decides unit and decimals.
    is_best: whether the mean is bold.
  """
  number = number_of(estimate, metrics.digits(metric), metrics.factor(metric))
  return latex_cell(number, is_best)


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
