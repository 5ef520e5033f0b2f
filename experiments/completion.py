"""Prints a script with which your shell completes commands at TAB.

  python -m experiments.completion bash

TAB then completes commands, flags, methods and presets, and the values of flags with
their fields, such as topk:share=. Where a value may be a file, it completes files.
The script has the flags of this version, so write it again after an update. It
completes fedjax-alg, and not ./launch.sh.

For bash, with the package bash-completion:

  fedjax-alg completion bash > ~/.local/share/bash-completion/completions/fedjax-alg

For bash without it, write the script to any file, and source it in ~/.bashrc.

For zsh, into a folder of fpath (before compinit in ~/.zshrc):

  fedjax-alg completion zsh > ~/.zfunc/_fedjax-alg

For fish, without any other step:

  fedjax-alg completion fish > ~/.config/fish/completions/fedjax-alg.fish
"""

from collections.abc import Sequence
import importlib
import sys

from absl.flags import FlagValues

from fedjax_alg.errors import check_one_of

from . import __main__ as commands_lib
from .cli import completion
from .cli import config as config_lib
from .cli.command import Command
from .cli.config import UsageError


def all_forms() -> list[Command]:
  """All commands; of one with several forms each."""
  forms: list[Command] = []
  for name in commands_lib.commands():
    module = importlib.import_module(f".{name}", __package__)
    forms += (
      module.command_forms() if hasattr(module, "command_forms") else [module.main]
    )
  return forms


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Prints the script."""
  del values, argv
  if not words:
    raise UsageError(f"no shell: give one of {', '.join(completion.SCRIPTS)}")
  check_one_of(f"SHELL={words[0]}", words[0], completion.SCRIPTS)
  config_lib.refuse_words(words[1:])
  script = completion.SCRIPTS[words[0]]
  print(script(commands_lib.commands(), all_forms()), end="")


main = Command("completion", __doc__, (), _run, positions=tuple(completion.SCRIPTS))

if __name__ == "__main__":
  sys.exit(main())
