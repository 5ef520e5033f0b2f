"""The flags of the commands as data, of which help and completion are made.

An ``Option`` says about a flag what its typed option says: help, default, range,
source, and when it is read. ``run_groups`` has those of a run, by group.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import re
import types
import typing
from typing import Any, NamedTuple

from absl import flags as absl_flags

from fedjax_alg import hparams, registry
from fedjax_alg.part import Part, describe_parts, parts_of
from fedjax_alg.runs.methods import Method

from . import flags

#: The group of the hyper-parameters that are a method's own.
METHOD = "method"

_KINDS: dict[type, str] = {
  int: "a whole number",
  float: "a number",
  bool: "true or false",
  tuple: "a list, with commas",
}

#: Beginning of a value in a list such as "one of rotate:DEGREES, or your own".
_WORD = re.compile(r"[a-z0-9][a-z0-9_+*.]*(?:-[a-z0-9]+)*(?::(?=[A-Z])|(?=$))")


class Option(NamedTuple):
  """What help and completion say about a flag."""

  name: str
  about: str
  default: str = ""  #: as a command line has it; "" for none
  kind: str = ""  #: what its values are, in words; "" for text
  range: str = ""  #: the values that are allowed, in words
  source: str = ""
  #: values that it may have, and beginnings of values, such as topk:
  words: tuple[str, ...] = ()
  parts: tuple[type[Part], ...] = ()  #: alternatives, of a choice of parts
  is_switch: bool = False
  is_list: bool = False
  is_hyper: bool = False  #: whether methods, and not all runs, read it
  traced: bool = False  #: whether its values share one program

  is_needed: bool = False  #: of a field of a part: whether it has no default

  @property
  def has_files(self) -> bool:
    """Whether its value may name a file or folder."""
    if any(":" in part.WORD for part in self.parts):  # such as FILE.py:NAME
      return True
    if self.kind and not self.is_list:
      return False
    return not self.words or bool(re.search(r"\bfile|FILE|path/", self.about))


def listed_words(text: str) -> tuple[str, ...]:
  """The values that a text lists.

  Args:
    text: help such as "the data set, one of digits, mnist, tfds:NAME: all of TFDS".

  Returns:
    The values, and beginnings such as ``tfds:``; without those in words.
  """
  match = re.search(r"\b(?:one|some) of (.+?)(?:[:;.] | \(|$)", text)
  entries = match[1].split(", ") if match else []
  matches = (_WORD.match(entry) for entry in entries)
  words = tuple(dict.fromkeys(word[0] for word in matches if word))
  return words if len(words) > 1 else ()


def field_option(
  field: dataclasses.Field,
  kind: type,
  part_fields: Iterable[str] = (),
  *,
  is_hyper: bool = False,
) -> Option:
  """What the field of a typed option says.

  Args:
    field: a ``hyper`` field.
    kind: the type of its values: int, float, bool, str or tuple.
    part_fields: of the field of a part all fields of it, which are no flags.
    is_hyper: whether it is a hyper-parameter.
  """
  meta = field.metadata
  about = meta.get("help", "")
  for name in part_fields:
    about = about.replace(f"`{name}`", name)
  about = flags.as_flags(about)
  parts = parts_of(field.type)
  choices = meta.get("choices")
  return Option(
    field.name,
    about,
    flags.default_text(field),
    _KINDS.get(kind, ""),
    "" if choices and "one of" in about else hparams.describe_range(field),
    meta.get("source", ""),
    _words(field),
    parts,
    kind is bool,
    kind is tuple,
    is_hyper,
    bool(meta.get("traced")),
    field.default is dataclasses.MISSING,
  )


def _words(field: dataclasses.Field) -> tuple[str, ...]:
  """The values that a typed option may have, and beginnings of values."""
  parts, choices = parts_of(field.type), field.metadata.get("choices")
  if parts:
    return tuple(
      word
      for part in parts
      for word in (*part.BARE, part.WORD.removesuffix("NAME"))
      if ":" not in part.WORD or part.BARE
    )
  if choices:
    return tuple(c.removesuffix("NAME") for c in choices if c != hparams.OWN_CODE)
  return listed_words(field.metadata.get("help", ""))


def flag_option(flag: absl_flags.Flag) -> Option:
  """What a flag of absl says, of a command that has it besides those of runs."""
  text = str(flag.help).split("\n")[0].rstrip(";")  # absl adds a line
  values = tuple(getattr(flag.parser, "enum_values", None) or ())
  if values:
    text = text.partition(">: ")[2]
  default = flag.value
  if isinstance(default, list):
    default = ",".join(default)
  kind = {"int": int, "float": float, "bool": bool}.get(flag.flag_type(), str)
  is_list = isinstance(flag.parser, absl_flags.ListParser)
  return Option(
    flag.name,
    text,
    str(default).lower() if flag.boolean else str(default or ""),
    _KINDS[tuple] if is_list else _KINDS.get(kind, ""),
    f"one of {', '.join(values)}" if len(values) > 1 else _bounds(flag.parser),
    words=values,
    is_switch=bool(flag.boolean),
    is_list=is_list,
  )


def _bounds(parser: Any) -> str:
  """The range of a number of absl."""
  bounds = (
    ("at least", getattr(parser, "lower_bound", None)),
    ("at most", getattr(parser, "upper_bound", None)),
  )
  return " and ".join(
    f"{words} {bound:,}" for words, bound in bounds if bound is not None
  )


def flag_options(values: absl_flags.FlagValues) -> list[Option]:
  """What the flags of a command say, in their order."""
  return [flag_option(values[name]) for name in values]


def hyper_groups(method: Method | None) -> dict[str, list[dataclasses.Field]]:
  """Group -> fields of the hyper-parameters.

  Args:
    method: the method; None: those of all methods, each as the first one has it.
  """
  if method is not None:
    fields = hparams.fields_by_group(method.entry.hparams, method.entry.exchange)
    if method.source is not None:
      as_flags = {field.name for field in flags.own_fields(method)}
      fields = {
        group: [field for field in members if field.name in as_flags]
        for group, members in fields.items()
      }
    return {group or METHOD: members for group, members in fields.items() if members}
  first: dict[str, tuple[str, dataclasses.Field]] = {}
  for entry in registry.ALGORITHMS.values():
    for group, members in hparams.fields_by_group(
      entry.hparams, entry.exchange
    ).items():
      for field in members:
        first.setdefault(field.name, (group or METHOD, field))
  return {
    group: members
    for group in (METHOD, *hparams.GROUPS)
    if (members := [field for group_of, field in first.values() if group_of == group])
  }


def run_groups(method: Method | None = None) -> dict[str, list[Option]]:
  """Group -> the flags of a run, those of the method first.

  Args:
    method: the method; None: the hyper-parameters of all methods.
  """
  hyper = hyper_groups(method)
  groups = {
    group: [
      field_option(field, type(field.default), is_hyper=True) for field in members
    ]
    for group, members in hyper.items()
  }
  if method is None:
    words, alternatives = _words_of_all(), _parts_of_all()
    groups = {
      group: [
        option._replace(
          words=words[option.name], parts=alternatives.get(option.name, ())
        )
        for option in members
      ]
      for group, members in groups.items()
    }
  for title, classes in flags.GROUPS.items():
    groups[title.lower()] = [
      field_option(flag.field, flag.kind)
      for options in classes
      for flag in flags.flags_of_options(options)
    ]
  return groups


def _words_of_all() -> dict[str, tuple[str, ...]]:
  """Hyper-parameter -> the values that it may have with one method or another."""
  words: dict[str, dict[str, None]] = {}
  for entry in registry.ALGORITHMS.values():
    for name, field in entry.fields.items():
      words.setdefault(name, {}).update(dict.fromkeys(_words(field)))
  return {name: tuple(of_all) for name, of_all in words.items()}


def _parts_of_all() -> dict[str, tuple[type[Part], ...]]:
  """Hyper-parameter -> its alternatives, each as the first method has it."""
  alternatives: dict[str, dict[str, type[Part]]] = {}
  for entry in registry.ALGORITHMS.values():
    for name, field in entry.fields.items():
      for part in parts_of(field.type):
        alternatives.setdefault(name, {}).setdefault(part.WORD, part)
  return {name: tuple(of_all.values()) for name, of_all in alternatives.items()}


def part_options(part: type[Part]) -> list[Option]:
  """What the fields of a part say, in the order of its text."""
  ((_, _, fields),) = describe_parts(part)
  names = [field.name for field in fields]
  return [field_option(field, _kind(field), names) for field in fields]


def _kind(field: dataclasses.Field) -> type:
  """The type of a field's values, without None."""
  hint: Any = field.type
  if isinstance(hint, types.UnionType):
    hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
  kind: type = typing.get_origin(hint) or hint
  return kind


def part_words(groups: Mapping[str, list[Option]]) -> dict[str, list[str]]:
  """Word of a part -> the options that have a part of this word."""
  matches: dict[str, list[str]] = {}
  for options in groups.values():
    for option in options:
      for part in option.parts:
        matches.setdefault(part.WORD, []).append(option.name)
  return matches
