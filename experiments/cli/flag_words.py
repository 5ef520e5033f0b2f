"""The words of a command line, before they are parsed."""

from collections.abc import Container, Sequence


def name_of(word: str) -> str:
  """The name of the flag in a word: rounds of ``--rounds=3``."""
  return word.lstrip("-").partition("=")[0]


def split_words(
  argv: Sequence[str], names: Container[str]
) -> tuple[list[str], list[str]]:
  """The words of the flags of these names, and the other words."""
  matching = [
    word
    for word in argv
    if name_of(word) in names or name_of(word).removeprefix("no") in names
  ]
  return matching, [word for word in argv if word not in matching]
