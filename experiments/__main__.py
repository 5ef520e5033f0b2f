"""All commands under one name: ``fedjax-alg run ...``.

  fedjax-alg COMMAND [flags]
  python -m experiments COMMAND [flags]

You find the command COMMAND in the module of that name in this folder.
"""

from collections.abc import Sequence
import importlib
import pathlib
import sys
import types

from fedjax_alg.errors import did_you_mean

from .cli import config as config_lib
from .cli import help as help_lib
from .cli import program
from .cli.config import UsageError
from .cli.guard import run_guarded


def _commands() -> dict[str, str]:
  """Returns the name of every command -> the first line of its docstring."""
  summaries = {}
  for path in sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py")):
    text = path.read_text("utf-8")
    summaries[path.stem] = text.split('"""', 2)[1].split("\n", 1)[0]
  return summaries


def _usage() -> str:
  """The text of --help."""
  lines = [
    line
    for name, summary in _commands().items()
    for line in help_lib.definition_lines(name, summary)
  ]
  return "\n".join(
    [
      f"usage: {program.name()} COMMAND [flags]",
      "",
      *lines,
      "",
      "Example:",
      "  fedjax-alg run --algorithm=fedavg \\",
      "      --dataset=digits --partition=classes --num_clients=60 \\",
      "      --cohort_size=10 --rounds=60 --num_seeds=3",
      "",
      f"{program.name('COMMAND')} --help lists the flags of a command.",
      "The figures of papers are commands of the repository, which are",
      "not installed.",
    ]
  )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first word names; returns the exit status."""
  words = list(sys.argv[1:] if argv is None else argv)
  modules: list[types.ModuleType] = []

  def find(words: Sequence[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
      raise config_lib.HelpRequested(_usage())
    names = _commands()
    if words[0] not in names:
      raise UsageError(
        f"COMMAND={words[0]}: must be one of {', '.join(names)}"
        f"{did_you_mean(words[0], names)}"
      )
    modules.append(importlib.import_module(f".{words[0]}", __package__))

  status = run_guarded(find, words)
  return modules[0].main(words[1:]) if modules else status


if __name__ == "__main__":
  sys.exit(main())
