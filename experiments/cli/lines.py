"""Lines of text at the terminal's width: paragraphs, commands, lists of names."""

from collections.abc import Sequence
import re
import shutil
import textwrap

from . import program as program_lib

#: Column at which the explanation of a flag begins.
_INDENT = 26

#: A shorter clause before a ":" is a label, such as ``K/N: run only ...``; and a
#: clause of fewer letters says nothing without the next, such as ``alpha_l; ...``.
_LABEL, _SHORTEST = 30, 16

#: Stands for a space at which a line must not be broken.
_FIXED = "\N{NO-BREAK SPACE}"


class _Wrapper(textwrap.TextWrapper):
  """Breaks lines at spaces, and after a | between values (a|b|c)."""

  wordsep_simple_re = re.compile(r"([\t\n ]+)|(?<=\w\|)(?=\w)")


def width() -> int:
  """The length of a line: as wide as the terminal, from 60 to 100; 80 without one."""
  return max(60, min(shutil.get_terminal_size().columns, 100))


def wrap_text(words: str, indent: str = "") -> list[str]:
  """Breaks a text into lines of the terminal's width."""
  lines = _Wrapper(
    width(),
    initial_indent=indent,
    subsequent_indent=indent,
    break_on_hyphens=False,
    break_long_words=False,
  ).wrap(program_lib.as_typed(words, space=_FIXED))
  return [line.replace(_FIXED, " ") for line in lines]


def definition(
  name: str, about: str, most: int | None = None, indent: int = _INDENT
) -> list[str]:
  """Writes a name and, in the next column, its explanation.

  Args:
    name: the name.
    about: the explanation.
    most: the most lines of the explanation, which is cut with " ..."; None: all.
    indent: the column of the explanation.
  """
  lines = wrap_text(about, " " * indent)
  if most is not None and len(lines) > most:
    lines = lines[:most]
    while len(lines[-1]) > width() - len(" ..."):
      lines[-1] = lines[-1].rpartition(" ")[0]
    lines[-1] = lines[-1].rstrip(" ,;:(") + " ..."
  head = f"  {name}"
  if lines and len(head) < indent - 1:
    return [head.ljust(indent) + lines[0].lstrip(), *lines[1:]]
  return [head, *lines]


def first_clause(text: str) -> str:
  """Shortens an explanation to what is before its first ";" or ":"."""
  clauses = re.split(r"(?<=[;:]) ", text)
  while len(clauses) > 1 and len(clauses[0]) < (
    _LABEL if clauses[0].endswith(":") else _SHORTEST
  ):
    clauses[:2] = [" ".join(clauses[:2])]
  return clauses[0].rstrip(";:")


def command_lines(words: Sequence[str]) -> list[str]:
  """Writes a command as a shell takes it, in several lines if it is long."""
  lines = ["  " + words[0]]
  for word in words[1:]:
    if len(lines[-1]) + 1 + len(word) > width() - len(" \\"):
      lines[-1] += " \\"
      lines.append(" " * 6 + word)
    else:
      lines[-1] += " " + word
  return lines


def paragraphs(text: str) -> str:
  """Fills the paragraphs of a text to the terminal's width.

  Args:
    text: paragraphs with empty lines between them. An indented one may be a list of
      names, each with its explanation after two spaces or more. Others that are
      indented are commands.

  Returns:
    The text, with the commands in it as the user would type them.
  """
  parts = text.strip("\n").split("\n\n")
  return "\n\n".join("\n".join(_paragraph(part)) for part in parts)


def _paragraph(part: str) -> list[str]:
  texts = part.splitlines()
  if not any(line.startswith(" ") for line in texts):
    return wrap_text(" ".join(part.split()))
  entries: list[tuple[str, list[str]]] = []
  for line in texts:
    entry = re.match(r"  (\S+) {2,}(\S.*)$", line)
    if entry:
      entries.append((entry[1], [entry[2]]))
    elif entries and line.startswith(" " * 6):
      entries[-1][1].append(line.strip())
    else:
      return _commands(part)
  return [line for name, words in entries for line in definition(name, " ".join(words))]


def _commands(part: str) -> list[str]:
  """The lines of commands, broken for the name of the program as it was started."""
  commands = re.sub(r" *\\\n *", " ", program_lib.as_typed(part, space=_FIXED))
  return [
    line.replace(_FIXED, " ")
    for command in commands.splitlines()
    for line in command_lines([word for word in command.split(" ") if word])
  ]


def split_sections(text: str) -> dict[str, str]:
  """Title -> text of the sections; "" has what is before the first.

  Args:
    text: paragraphs. A title is a line of its own with dashes under it.
  """
  pieces = re.split(r"^(\S.*)\n-{3,}\n", text, flags=re.M)
  return {"": pieces[0].strip("\n")} | {
    title: body.strip("\n") for title, body in zip(pieces[1::2], pieces[2::2])
  }
