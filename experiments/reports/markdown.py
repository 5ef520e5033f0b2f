"""Tables and pages of Markdown."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedjax_alg import metrics


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
  """A Markdown table."""
  return "\n".join(
    f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)
  )


def page(title: str, parts: Sequence[str]) -> str:
  """A page of a heading and parts; empty parts are left out."""
  texts = [part.strip() for part in parts if part.strip()]
  return "\n\n".join([f"# {title}", *texts]) + "\n"


def collapse(title: str, text: str) -> str:
  """Markdown that a reader unfolds."""
  return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def format_number(value: float | None, form: str = "g") -> str:
  """A number; "-" for None."""
  return "-" if value is None else f"{value:{form}}"


def format_values(values: object, digits: int = 2, factor: float = 1.0) -> str:
  """Mean +- 95 % interval over seeds; a single seed has no interval."""
  return metrics.format_estimate(
    metrics.estimate_mean(np.asarray(values, float)), digits, factor
  )
