"""The files that docs/write_pages.py writes.

A part of a page is between ``<!-- NAME: by docs/write_pages.py -->`` and
``<!-- end -->``. The tables of ``fa.advise`` are written as a whole.
"""

import pathlib
import re

import choosing
import evidence

from fedjax_alg import registry
from fedjax_alg.runs import advise

DOCS = pathlib.Path(__file__).resolve().parents[1]
_BEGIN, _END = "<!-- {}: by docs/write_pages.py -->", "<!-- end -->"


def fill(text: str, parts: dict[str, str]) -> str:
  """Puts the parts into a page.

  Args:
    text: the page.
    parts: name -> Markdown.

  Raises:
    ValueError: the page lacks the lines of a part, or has one that is none of them.
  """
  pattern = re.compile(
    _BEGIN.format(r"(\w+)") + r"\n(?:.*?\n)??" + re.escape(_END), re.S
  )
  names = pattern.findall(text)
  if sorted(names) != sorted(parts):
    raise ValueError(f"has the parts {sorted(names)}, must have {sorted(parts)}")

  def part(match: re.Match[str]) -> str:
    body = parts[match[1]]
    return "\n".join(
      [_BEGIN.format(match[1]), *([f"\n{body}\n"] if body else []), _END]
    )

  return pattern.sub(part, text)


def files() -> dict[pathlib.Path, str]:
  """File -> its text as it must be."""
  pages: dict[pathlib.Path, dict[str, str]] = {
    DOCS / "evidence.md": {
      "counts": evidence.counts_line(),
      "evidence": evidence.evidence_table(),
    },
    DOCS / "choosing.md": {
      "kinds": choosing.kinds_table(),
      "board": choosing.board_table(),
      "acceleration": choosing.acceleration_table(),
      "late": choosing.late_table(),
      "family": choosing.one_round_table(),
    },
    DOCS / "methods.md": {"needs": choosing.needs_table()},
  }
  for row in evidence.read_rows():
    source = evidence.source_line(row)
    pages[DOCS / "methods" / f"{row.method}.md"] = {
      **({"source": source} if source else {}),
      "studies": choosing.method_part(row.method),
    }
  assert {row.method for row in evidence.read_rows()} <= set(registry.ALGORITHMS)
  return {
    **{path: fill(path.read_text("utf-8"), parts) for path, parts in pages.items()},
    advise.PANELS: choosing.panels_csv(),
    advise.GAINS: choosing.gains_csv(),
  }
