"""All commands under one name: ``fedjax-alg run ...``.

  fedjax-alg COMMAND [flags]
  python -m experiments COMMAND [flags]

The command COMMAND is the module of that name beside this one.
"""

from collections.abc import Sequence
import importlib
import pathlib
import sys


def commands() -> dict[str, str]:
  """Returns the name of every command -> the first line of its docstring."""
  found = {}
  for path in sorted(pathlib.Path(__file__).parent.glob("[a-z]*.py")):
    text = path.read_text("utf-8")
    found[path.stem] = text.split('"""', 2)[1].split("\n", 1)[0]
  return found


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that the first word names; returns the exit status."""
  words = list(sys.argv[1:] if argv is None else argv)
  known = commands()
  if not words or words[0] in ("-h", "--help", "help"):
    print("usage: fedjax-alg COMMAND [flags]\n")
    for name, summary in known.items():
      print(f"  {name:12} {summary}")
    print("\nfedjax-alg COMMAND --help lists the flags of a command.")
    return 0
  if words[0] not in known:
    print(f"error: COMMAND={words[0]}: must be one of {', '.join(known)}",
          file=sys.stderr)
    return 2
  module = importlib.import_module(f".{words[0]}", __package__)
  return module.main(words[1:])


if __name__ == "__main__":
  sys.exit(main())
