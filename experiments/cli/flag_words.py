"""The words of a command line, before they are parsed, and the text of help."""

from collections.abc import Container, Iterable, Sequence

from absl import flags as absl_flags


def name_of(word: str) -> str:
  """The name of the flag in a word: rounds of ``--rounds=3``."""
  return word.lstrip("-").partition("=")[0]


def parted(
    argv: Sequence[str], names: Container[str]) -> tuple[list[str], list[str]]:
  """The words of the flags of these names, and the other words."""
  own = [word for word in argv if name_of(word) in names
         or name_of(word).removeprefix("no") in names]
  return own, [word for word in argv if word not in own]


def help_lines(
    values: absl_flags.FlagValues, names: Iterable[str]) -> list[str]:
  """A line of --help for each flag."""
  lines = []
  for name in names:
    flag = values[name]
    default = ",".join(flag.value) if isinstance(flag.value, list) else (
        str(flag.value).lower() if flag.boolean else flag.value)
    tail = "" if default is None else f" (default {default})"
    text = flag.help.split("\n")[0].rstrip(";")  # absl adds a line
    lines.append(f"  --{name}: {text}{tail}")
  return lines
