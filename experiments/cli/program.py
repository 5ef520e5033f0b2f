"""The words with which a user started the program, for help and messages."""

import os
import pathlib
import re
import sys

#: The package of the commands, ``experiments`` or ``fedjax_alg.experiments``.
_PACKAGE = __name__.rsplit(".", 2)[0]

_COMMANDS = pathlib.Path(__file__).parents[1]


def name(command: str = "") -> str:
  """The words that start a command as this program was started.

  Args:
    command: the command, for example ``run``; empty: all commands together.

  Returns:
    For example ``fedjax-alg run``, ``python -m experiments.run`` or, where
    ``launch.sh`` says so in FEDJAX_ALG_PROGRAM, ``./launch.sh run``.
  """
  started = pathlib.Path(sys.argv[0])
  if "FEDJAX_ALG_PROGRAM" in os.environ:
    words = os.environ["FEDJAX_ALG_PROGRAM"]
  elif started.stem == "fedjax-alg":
    words = "fedjax-alg"
  elif started.parts[-2:] == ("experiments", "__main__.py") or not command:
    words = f"python -m {_PACKAGE}"
  else:
    return f"python -m {_PACKAGE}.{command}"
  return f"{words} {command}".rstrip()


def as_typed(text: str, space: str = " ") -> str:
  """Writes the commands in a text as the user would type them.

  ``python -m experiments.NAME``, ``experiments.NAME`` and ``fedjax-alg NAME``
  become ``name(NAME)``.

  Args:
    text: the text.
    space: what stands for the spaces of a command, so that it stays in one line.
  """

  def replace_command(match: re.Match[str]) -> str:
    command = match["module"] or match["word"]
    if not (_COMMANDS / f"{command}.py").is_file():
      return match[0]
    return name(command).replace(" ", space)

  return re.sub(
    r"(?<![\w./])(?:(?:python -m )?experiments\.(?P<module>[a-z]+)"
    r"|fedjax-alg (?P<word>[a-z]+))(?![\w/])",
    replace_command,
    text,
  )
