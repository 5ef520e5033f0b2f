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
from .cli import lines, program
from .cli.config import UsageError
from .cli.guard import run_guarded

_EXAMPLE = """
  fedjax-alg run --algorithm=fedavg --dataset=digits --partition=classes \\
      --num_clients=60 --cohort_size=10 --rounds=60 --num_seeds=3
"""

#: Titles of the help -> the commands below them; others come at the end.
_GROUPS = {
  "Run": ("demo", "prepare", "run", "sweep", "tune", "status"),
  "Look at finished runs": ("compare", "judge", "card", "advise", "contributions"),
  "Go on from a run": ("forget", "audit", "export"),
  "Tools": ("check", "completion"),
}

#: The column of the summaries.
_SUMMARIES = 17


def commands() -> dict[str, str]:
  """Returns the name of every command -> the first line of its docstring."""
  return {
    name: text.split('"""', 2)[1].split("\n", 1)[0] for name, text in _texts().items()
  }


def _texts() -> dict[str, str]:
  """The name of every command -> its module."""
  folder = pathlib.Path(__file__).parent
  return {
    path.stem: path.read_text("utf-8") for path in sorted(folder.glob("[a-z]*.py"))
  }


def _usage() -> str:
  """The text of --help."""
  summaries = commands()
  for_papers = [
    name for name, text in _texts().items() if "\nfrom .reproduction" in text
  ]
  listed = {name for names in _GROUPS.values() for name in names}
  others = [name for name in summaries if name not in (*listed, *for_papers)]
  texts = [f"usage: {program.name()} COMMAND [flags]"]
  for title, names in {**_GROUPS, "Others": others}.items():
    rows = [
      line
      for name in names
      if name in summaries
      for line in lines.definition(name, summaries[name], indent=_SUMMARIES)
    ]
    texts += ["", f"{title}:", *rows] if rows else []
  if for_papers:
    texts += ["", "Figures of papers, in the repository:"]
    texts += lines.wrap_text(", ".join(for_papers), "  ")
  texts += ["", "Example:", *lines.paragraphs(_EXAMPLE).splitlines(), ""]
  return "\n".join(
    [*texts, f"{program.name('COMMAND')} --help shows what a command is for."]
  )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first word names; returns the exit status."""
  words = list(sys.argv[1:] if argv is None else argv)
  modules: list[types.ModuleType] = []

  def find(words: Sequence[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
      raise config_lib.HelpRequested(_usage())
    names = commands()
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
