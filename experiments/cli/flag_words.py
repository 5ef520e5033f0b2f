"""The words of a command line, before they are parsed."""

from collections.abc import Container, Iterable, Mapping, Sequence


def name_of(word: str) -> str:
  """The name of the flag in a word: rounds of ``--rounds=3``."""
  return word.lstrip("-").partition("=")[0]


def read_values(words: Iterable[str]) -> dict[str, str]:
  """Parses words --NAME=VALUE: name -> value, of a name the last one."""
  return {name_of(word): word.partition("=")[2] for word in words if "=" in word}


def drop_flags(words: Iterable[str], *names: str) -> tuple[str, ...]:
  """The words but for the flags of these names."""
  return tuple(word for word in words if name_of(word) not in names)


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


def setting_flags(setting: Mapping[str, object]) -> list[str]:
  """The flags of a setting."""
  return [
    f"--{flag}={value if isinstance(value, str) else f'{value:g}'}"
    for flag, value in setting.items()
  ]
