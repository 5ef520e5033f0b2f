"""Parts of a configuration, and values as people write them.

A choice among alternatives that have options of their own is a *part*: a frozen
dataclass of ``hyper`` fields with the one method that its place asks for. What a
part does not read cannot be written down, since it has no field for it. In Python
a part is an object, ``TopK(0.05)``, and everywhere else its text ``topk:0.05``:
on command lines, in presets, tables and config.json.

The grammar of a text is

  word[:value[,value ...][,field=value ...][,flag ...]]

Values without a name are those of the fields in order, except for booleans: these
are true by their name alone. If the first field is a list, all values without a name
are its entries, ``mlp:128,64``; no other field of a part can be one. A field that is
not given has its default, and ``str`` of a part leaves out all that are at their
default. If the only field is a choice itself, or a text with a place, it is all that
follows the colon, such as ``mime:adam:0.9`` or the name of a file. A word with a colon,
such as FILE.py:NAME, stands for all texts of this form that begin with no other word;
other fields of such a part follow, ``my_kinds.py:shift,3``. If a choice has another
such word, too, FILE.py:NAME stands for files of Python and the other for the rest.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import types
import typing
from typing import Any, ClassVar, TypeVar

import jax

from fedjax_alg.errors import OptionError, a_type, did_you_mean, with_names
from fedjax_alg.hparams import OWN_CODE, HParams, plain, validate, with_values

_HParams = TypeVar("_HParams", bound=HParams)


#: The annotations of a dataclass; resolving them takes milliseconds.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)

_WORDS = {
  int: "a whole number",
  float: "a number",
  bool: "True or False",
  str: "a string",
}


class Part(HParams):
  """One alternative of a choice.

  The first line of a subclass's documentation is its help. Values are converted to
  the types of the fields, and checked when it is made.

  Examples:
    >>> from fedjax_alg.hparams import hyper
    >>> class Dice(Part):
    ...   WORD, EXAMPLE = "dice", "dice:20"
    ...   sides: int = hyper(6, "number of sides", minimum=2)
    ...   fair: bool = hyper(True, "whether all sides are as likely")
    >>> str(Dice(20, fair=False)), str(Dice())
    ('dice:20,fair=false', 'dice')
    >>> read_part("toss", "dice:8", Dice)
    Dice(sides=8, fair=True)
    >>> Dice(1)
    Traceback (most recent call last):
    fedjax_alg.errors.OptionError: dice: sides=1: must be at least 2

  Raises:
    OptionError: a value has another type, is out of range, or is not read with the
      other values; the message has the part, the field, the value and what is allowed.
  """

  WORD: ClassVar[str]  #: the word of its text
  EXAMPLE: ClassVar[str]  #: a text of it, for the help
  #: names without a colon that a word with a colon stands for, too; with any of them
  #: it stands for all other texts
  BARE: ClassVar[tuple[str, ...]] = ()

  def __post_init__(self) -> None:
    hints = _hints(type(self))
    try:
      for field in dataclasses.fields(self):
        value = of_field(field, getattr(self, field.name), hints[field.name])
        object.__setattr__(self, field.name, value)  # frozen for all others
      validate(self)
    except OptionError as error:
      raise OptionError(f"{self.WORD}: {with_names(error.text)}") from None

  def __str__(self) -> str:
    only = only_field(type(self))
    if only:
      field, value = type(self).__dataclass_fields__[only], getattr(self, only)
      if ":" in self.WORD:
        return str(value)
      return self.WORD if _is_default(field, value) else f"{self.WORD}:{value}"
    words, in_order = [], True
    for field in _fields(type(self)):
      value = getattr(self, field.name)
      in_order = in_order and not field.kw_only
      if _is_default(field, value):
        in_order = in_order and isinstance(value, bool)
      elif value is True:
        words.append(field.name)
      elif isinstance(value, tuple):
        words += map(_value_text, value) if value else [f"{field.name}="]
      elif in_order and not isinstance(value, bool) and "=" not in str(value):
        words.append(_value_text(value))
      else:
        in_order = in_order and isinstance(value, bool)
        words.append(f"{field.name}={_value_text(value)}")
    text = ",".join(words)
    if ":" in self.WORD:
      return text
    return f"{self.WORD}:{text}" if text else self.WORD


def _fields(kind: type[Part]) -> list[dataclasses.Field]:
  """The fields of a part as its text has them: those with a place come first."""
  return sorted(dataclasses.fields(kind), key=lambda field: bool(field.kw_only))


def only_field(kind: type[Part]) -> str:
  """The name of the only field of a part, if it is a text or a choice; else ""."""
  fields = dataclasses.fields(kind)
  if len(fields) != 1 or fields[0].kw_only:
    return ""
  hint = _hints(kind)[fields[0].name]
  return fields[0].name if hint is str or parts_of(hint) else ""


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
  """Whether a number is the default; one that is traced is not."""
  return not isinstance(value, jax.core.Tracer) and value == field.default


def _value_text(value: object) -> str:
  """A value of a part, from which the same value is read again."""
  if value is None or isinstance(value, bool):
    return str(value).lower()
  return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def constants(value: object, name: str, traced: Collection[str]) -> Any:
  """What is left of an option without the numbers that a program takes as inputs.

  Args:
    value: its value.
    name: its name.
    traced: names of the inputs (``hparams.traced_names``).
  """
  if not isinstance(value, Part):
    return value
  return type(value), tuple(
    constants(getattr(value, field.name), f"{name}.{field.name}", traced)
    for field in dataclasses.fields(value)
    if f"{name}.{field.name}" not in traced
  )


def parts_of(kind: object) -> tuple[type[Part], ...]:
  """The alternatives of a choice: the parts in an annotation; () of any other."""
  kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
  return tuple(
    part for part in kinds if isinstance(part, type) and issubclass(part, Part)
  )


def type_of_field(field: dataclasses.Field) -> Any:
  """The type of a hyper-parameter: its choice of parts, or its default's."""
  return field.type if parts_of(field.type) else type(field.default)


def forms(kind: object) -> list[str]:
  """How the alternatives of a choice are written, such as ``topk:SHARE``.

  Args:
    kind: the annotation of the choice.
  """
  return [text for part in parts_of(kind) for text in (*part.BARE, _form(part))]


def _form(kind: type[Part]) -> str:
  if ":" in kind.WORD:
    return kind.WORD
  needed = [
    field.name.upper()
    for field in dataclasses.fields(kind)
    if field.default is dataclasses.MISSING
  ]
  return ":".join([kind.WORD, ",".join(needed)] if needed else [kind.WORD])


def describe_parts(kind: object) -> Iterator[tuple[str, str, list[dataclasses.Field]]]:
  """Describes the alternatives of a choice, for its help.

  Args:
    kind: the annotation of the choice.

  Yields:
    Of each part how it is written, what it is with an example, if there is more to
    write, and its fields.
  """
  for part in parts_of(kind):
    form, about = _form(part), (part.__doc__ or "").partition("\n")[0].replace("``", "")
    example = "" if part.EXAMPLE == form else f" Example: {part.EXAMPLE}"
    yield form, about + example, _fields(part)


def put_into_parts(
  values: Mapping[str, object],
  options: Mapping[str, object],
  fields: Mapping[str, dataclasses.Field],
) -> dict[str, Any]:
  """Puts the values of fields of parts, OPTION.FIELD, into the parts.

  Args:
    values: name -> value; OPTION.FIELD -> a value or its word.
    options: name -> value of the options that ``values`` do not have.
    fields: name -> field of all options.

  Returns:
    The same without names of the form OPTION.FIELD.

  Raises:
    OptionError: an option is no part with this field, or a value is wrong.
  """
  folded: dict[str, Any] = {k: v for k, v in values.items() if "." not in k}
  changes: dict[str, dict[str, Any]] = {}
  for name, value in values.items():
    option, dot, field = name.partition(".")
    if not dot:
      continue
    part = folded.get(option, options.get(option))
    if isinstance(part, str) and option in fields:
      part = of_type(option, part, fields[option].type)
    names = [f.name for f in _fields(type(part))] if isinstance(part, Part) else []
    if field not in names:
      has = f"its fields are {', '.join(names)}" if names else "it has none"
      raise OptionError(
        f"`{option}`={part}: has no field {field}{did_you_mean(field, names)} ({has})"
      )
    if isinstance(value, str):
      value = _read_value(name, value, _hints(type(part))[field])
    folded[option] = part
    changes.setdefault(option, {})[field] = value
  for option, fields_of_part in changes.items():
    try:
      folded[option] = with_values(folded[option], fields_of_part)
    except OptionError as error:
      raise OptionError(f"`{option}`: {error.text}") from None
  return folded


def read_parts(
  values: Mapping[str, object], fields: Mapping[str, dataclasses.Field]
) -> dict[str, Any]:
  """Makes parts of the texts among values of options; all others stay as they are.

  Args:
    values: name -> value.
    fields: name -> field of the options that may be choices.

  Raises:
    OptionError: see ``read_part``.
  """
  return {
    name: of_type(name, value, fields[name].type)
    if name in fields and parts_of(fields[name].type)
    else value
    for name, value in values.items()
  }


def write_parts(values: Mapping[str, object]) -> dict[str, Any]:
  """Replaces the parts among values of options by their texts."""
  return {
    name: str(value) if isinstance(value, Part) else value
    for name, value in values.items()
  }


def read_part(name: str, text: str, kind: object) -> Part:
  """Makes the part of a text.

  Args:
    name: the option, for messages.
    text: what a user wrote, in the grammar of this module.
    kind: the annotation of the choice.

  Raises:
    OptionError: it names none of them, or a value is missing, unknown, of another
      type or out of range.
  """
  label = f"`{name}`={text}"
  word, colon, rest = text.partition(":")
  kinds = {part.WORD: part for part in parts_of(kind)}
  is_code = names_code(text, kind)
  form = next((word for word in kinds if ":" in word and word != OWN_CODE), "")
  form = OWN_CODE if is_code else form
  bare = kinds[form].BARE if form else ()
  has_form = bool(form and (colon or bare)) and word not in kinds
  if is_code or has_form:
    try:
      only = only_field(kinds[form])
      fields = {only: text} if only else _read_fields(kinds[form], words_of(text))
      return kinds[form](**dict(fields))
    except OptionError as error:
      hint = did_you_mean(word, kinds)
      if bare:
        hint = f"{did_you_mean(text, forms(kind))} (one of {', '.join(forms(kind))})"
      message = error.text
      if message.startswith(f"{form}: "):  # of a field, not of the text
        message = f"{label}: {message.removeprefix(f'{form}: ')}"
      raise type(error)(message + hint) from None
  if word not in kinds:
    raise OptionError(
      f"{label}: unknown{did_you_mean(word, kinds)} (one of {', '.join(forms(kind))})"
    )
  part = kinds[word]
  try:
    only = only_field(part) if rest else ""
    values = {only: rest} if only else dict(_read_fields(part, words_of(rest)))
    missing = [
      field.name
      for field in dataclasses.fields(part)
      if field.default is dataclasses.MISSING and field.name not in values
    ]
    if missing:
      raise OptionError(f"{missing[0]} is missing, must be {_form(part)}")
    return part(**values)
  except OptionError as error:
    raise OptionError(f"{label}: {error.text.removeprefix(f'{word}: ')}") from None


def names_code(text: str, kind: object) -> bool:
  """Whether the text of a choice is the name of code of the user's own.

  Args:
    text: what a user wrote.
    kind: the annotation of the choice.
  """
  words = {part.WORD for part in parts_of(kind)}
  other_form = any(":" in word for word in words - {OWN_CODE})
  text = text.partition(",")[0]  # before the fields of a part that has others
  place, _, name = text.rpartition(":")
  return (
    OWN_CODE in words
    and text.partition(":")[0] not in words
    and (
      place.endswith(".py")
      or text.endswith(".py")
      or (
        bool(place)
        and not other_form  # which MODULE:NAME may be, too
        and all(part.isidentifier() for part in name.split("."))
      )
    )
  )


def _read_fields(
  kind: type[Part], words: Sequence[str]
) -> Iterator[tuple[str, object]]:
  """The fields that the words of a part give, with their values."""
  hints = _hints(kind)
  fields = _fields(kind)
  names = [field.name for field in fields]
  in_order = iter(
    [f.name for f in fields if not f.kw_only and _bare(hints[f.name]) is not bool]
  )
  listed = next((f.name for f in fields[:1] if _is_list(hints[f.name])), "")
  entries: list[str] = []
  names_before = set()
  for word in words:
    name, equals, value = word.partition("=")
    if not equals:
      flag = word in names and _bare(hints[word]) is bool
      if listed and not flag:
        names_before.add(listed)
        entries.append(word)
        continue
      name = word if flag else next(in_order, "")
      value = "true" if flag else word
    if name not in names:
      meant = did_you_mean(name or word, names)
      has = f"its fields are {', '.join(names)}" if names else "it has no fields"
      raise OptionError(f"{word!r} is not of {kind.WORD}{meant} ({has})")
    if name in names_before:
      raise OptionError(f"{name} is there twice")
    names_before.add(name)
    if name == listed:
      entries += words_of(value)
      continue
    yield name, _read_value(name, value, hints[name])
  if listed in names_before:
    yield listed, of_type(listed, ",".join(entries), hints[listed])


def _is_list(kind: object) -> bool:
  """Whether a field of this type is a list."""
  return typing.get_origin(_bare(kind)) is tuple


def _bare(kind: object) -> Any:
  """The type of a field without None."""
  if not isinstance(kind, types.UnionType):
    return kind
  return next(part for part in typing.get_args(kind) if part is not types.NoneType)


def _read_value(name: str, word: str, kind: object) -> object:
  """Reads a word of a part as the type of its field; others fail in ``of_type``."""
  if word == "none" and kind is not _bare(kind):
    return None
  bare = _bare(kind)
  if bare is bool:
    return {"true": True, "false": False}.get(word, word)
  try:
    return bare(word) if bare in (int, float) else word
  except ValueError:
    raise OptionError(f"{name}={word}: must be {_WORDS[bare]}") from None


def of_type(name: str, value: object, kind: object) -> Any:
  """Converts a value to the type of a field.

  Args:
    name: name of the field, for the message.
    value: the value that a caller gave; tracers are returned unchanged.
    kind: the annotation of the field: int, float, bool, str, a tuple of
      these, or one of these or None; or a choice of parts. Other
      annotations are not checked.

  Returns:
    The value; a whole number is converted to float if ``kind`` is float, and a
    text to a tuple or a part, if ``kind`` is one, as the command line does
    (``of_words``, ``read_part``).

  Raises:
    OptionError: the value has another type.
  """
  if isinstance(value, jax.core.Tracer):
    return value
  parts = parts_of(kind)
  if value is None and types.NoneType in typing.get_args(kind):
    return None
  if parts:
    return _as_part(name, value, kind, parts)
  kind = _bare(kind)
  original, value = value, plain(value)
  if typing.get_origin(kind) is tuple:
    items = typing.get_args(kind)
    if isinstance(value, str):
      return of_words(name, words_of(value), items)
    if not isinstance(value, tuple):
      raise OptionError(f"`{name}`={value!r}: must be {_list_form(items)}")
    if items[-1] is Ellipsis:
      items = items[:1] * len(value)
    if len(items) != len(value):
      raise OptionError(f"`{name}`={original!r}: must have {len(items)} entries")
    if typing.get_origin(items[0] if items else None) is tuple and not all(
      isinstance(item, tuple) for item in value
    ):
      raise OptionError(f"`{name}`={original!r}: must be {_list_form(items)}")
    return tuple(of_type(name, *entry) for entry in zip(value, items))
  if kind is float and type(value) is int:
    return float(value)
  if kind in _WORDS and type(value) is not kind:
    raise OptionError(f"`{name}`={original!r}: must be {_WORDS[kind]}")
  return value


def _as_part(
  name: str, value: object, kind: object, parts: tuple[type[Part], ...]
) -> Part:
  """Converts a value to a part of a choice."""
  if isinstance(value, parts):
    return value
  if isinstance(value, str):
    return read_part(name, value, kind)
  raise OptionError(
    f"`{name}`={value}: {a_type(value)}, must be one of {', '.join(forms(kind))}"
  )


def as_list(name: str, value: object, item: type) -> tuple[Any, ...]:
  """Converts an argument that is a list (``of_type``), or any other iterable.

  Args:
    name: name of the argument, for the message.
    value: what a caller gave; a text has its words between commas.
    item: the type of an entry: int, float or str.

  Raises:
    OptionError: it is no list, or has an entry of another type.
  """
  if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
    value = list(value)
  entries: tuple[Any, ...] = of_type(name, value, tuple[item, ...])  # type: ignore
  return entries


def of_field(field: dataclasses.Field, value: object, kind: object) -> Any:
  """Converts a value to the type of a field (``of_type``).

  Args:
    field: the field. Numbers become its text, if it is a text of numbers
      (``hyper``).
    value: the value that a caller gave.
    kind: the type of the field.

  Raises:
    OptionError: the value has another type.
  """
  between, listed = field.metadata.get("numbers"), plain(value)
  listed = listed if isinstance(listed, tuple) else (listed,)
  if between and listed and all(type(item) in (int, float) for item in listed):
    value = between.join(map(repr, listed))
  return of_type(field.name, value, kind)


def _list_form(items: tuple[type, ...]) -> str:
  """Describes how a list with entries of these types may be written."""
  first = items[0]
  if typing.get_origin(first) is tuple:
    return 'a list of pairs, such as [(1, 2)] or "1:2"'
  a, b = {str: ("a", "b"), float: (0.1, 0.2)}.get(first, (1, 2))
  return f'a list, such as {[a, b]} or "{a},{b}"'


def words_of(text: str) -> list[str]:
  """Splits the text of a list, as the command line takes it, at its commas."""
  return [word.strip() for word in text.split(",")] if text else []


def of_words(
  name: str, words: Sequence[str], items: tuple[type, ...]
) -> tuple[Any, ...]:
  """Converts the words of a list to the types of its entries.

  Args:
    name: name of the field, for the message.
    words: the words, in order; those of pairs are A:B.
    items: types of the entries, as ``typing.get_args`` gives them of a tuple.

  Raises:
    OptionError: a word is not of its type, or there are too many or too few.
  """
  label, item = f"`{name}`={','.join(words)}", items[0]
  if item is str:
    return tuple(words)
  if typing.get_origin(item) is tuple:  # pairs ROUND:COUNT
    try:
      pairs = tuple(tuple(map(int, word.split(":"))) for word in words)
    except ValueError:
      pairs = ()
    if not pairs or any(len(pair) != 2 for pair in pairs):
      raise OptionError(f"{label}: must be ROUND:COUNT[,ROUND:COUNT...], whole numbers")
    return pairs
  try:
    numbers = tuple(map(item, words))
  except ValueError:
    numbers = None
  if items[-1] is Ellipsis:
    if numbers is None:
      raise OptionError(f"{label}: must be a list of numbers")
    return numbers
  if numbers is None or len(numbers) != len(items):
    kind = "whole numbers" if item is int else "numbers"
    raise OptionError(f"{label}: must be LEAST,MOST, two {kind}")
  return numbers


def convert_types(options: _HParams) -> _HParams:
  """Converts every value to the type of its field (``of_type``).

  Args:
    options: an instance of a dataclass.

  Returns:
    A new instance.

  Raises:
    OptionError: a value has another type.
  """
  hints = _hints(type(options))
  values = {
    field.name: of_field(field, getattr(options, field.name), hints[field.name])
    for field in dataclasses.fields(options)
  }
  return with_values(options, values)
