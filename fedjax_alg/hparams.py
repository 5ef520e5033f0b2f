"""Hyper-parameters: frozen dataclasses whose fields document themselves.

The command line takes the type, default, help, source and range of a flag
from the same field that the library checks.

A run may pass numbers that do not decide shapes or structure as inputs of its
compiled program, so that the settings of a grid share one program. Inside the
program such a field holds a JAX tracer (float32 for a float, int32 for an
int). ``traced_names`` lists these fields. Code that reads a traced field must
not branch in Python on its value. If a zero leaves a term out, ``is_zero``
distinguishes a constant zero from all other values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import inspect
import operator
import typing
from typing import Any, TypeVar, cast

import jax
import numpy as np

from fedjax_alg.errors import OptionError, check_known

#: The largest seed: JAX makes its keys from 32 bits.
MAX_SEED = 2**32 - 1

#: The largest whole number that a field without a ``maximum`` takes. Programs
#: count in int32, and sums of a few such numbers must not overflow.
MAX_COUNT = 10**9


@typing.dataclass_transform(frozen_default=True)
class HParams:
  """Hyper-parameters of a method, or options of a run or of data.

  A subclass becomes a frozen dataclass by itself, as a module of Flax does; keywords
  of ``dataclasses.dataclass`` may follow its bases. Its fields are made by ``hyper``.

  Examples:
    >>> class MyHParams(HParams):
    ...   client_lr: float = hyper(0.1, "client learning rate", above=0.0)
    >>> MyHParams(client_lr=0.3)
    MyHParams(client_lr=0.3)
  """

  __dataclass_fields__: typing.ClassVar[dict[str, dataclasses.Field]]
  #: an option with which less is stored between rounds, for an error; "" if none is
  SMALLER_STATE: typing.ClassVar[str] = ""

  def check_data(self, data: Any) -> None:
    """Refuses data of a run that do not fit the options.

    Args:
      data: options of the data, filled (``DataOptions.filled``).

    Raises:
      OptionError: they do not.
    """

  def unread_with(self, model: Any) -> Mapping[str, str]:
    """Names the options that are not read with a model, and says why.

    Args:
      model: the model, a ``base.Model``.
    """
    return {}

  def __init_subclass__(cls, **keywords: bool) -> None:
    super().__init_subclass__()
    # All but ``__init__`` is inherited; Python would generate six functions for each of
    # some 300 classes, a tenth of the package's import.
    own = inspect.get_annotations(cls).values()
    has_fields = any(typing.get_origin(kind) is not typing.ClassVar for kind in own)
    if has_fields or len(cls.__bases__) > 1 or cls.__bases__ == (HParams,):
      dataclasses.dataclass(eq=False, repr=False, **keywords)(cls)

  def __setattr__(self, name: str, value: object) -> None:
    if name in vars(self) or name not in type(self).__dataclass_fields__:
      raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    super().__setattr__(name, value)

  def __delattr__(self, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

  def __eq__(self, other: object) -> bool:
    if type(self) is not type(other):
      return NotImplemented
    return list(_values(self)) == list(_values(other))

  def __hash__(self) -> int:
    return hash(tuple(_values(self)))

  def __repr__(self) -> str:
    names = [field.name for field in dataclasses.fields(self)]
    words = [f"{name}={value!r}" for name, value in zip(names, _values(self))]
    return f"{type(self).__qualname__}({', '.join(words)})"


_HParams = TypeVar("_HParams", bound=HParams)


def _values(options: HParams) -> Iterator[Any]:
  """The values of the fields, in the order of the class."""
  return (getattr(options, field.name) for field in dataclasses.fields(options))


def nested_options(options: object, prefix: str = "") -> Iterator[tuple[str, HParams]]:
  """Yields options and the parts among their values, with the prefix of their names.

  Args:
    options: a dataclass of options; of a class that is not ours, its parts alone.
    prefix: of its names, such as ``client_update.``.
  """
  if isinstance(options, HParams):
    yield prefix, options
  for field in dataclasses.fields(cast(Any, options)):
    value = getattr(options, field.name)
    if isinstance(value, HParams):
      yield from nested_options(value, f"{prefix}{field.name}.")


def is_zero(value: object) -> bool:
  """Whether ``value`` is a constant zero; False for every tracer."""
  return not isinstance(value, jax.core.Tracer) and value == 0


def value_of(values: Mapping[str, Any], name: str) -> Any:
  """The value of an option, or of a field of a part that is one; None: not known.

  Args:
    values: every option -> its value.
    name: the name of an option, or OPTION.FIELD.
  """
  option, *fields = name.split(".")
  value = values.get(option)
  for field in fields:
    value = getattr(value, field, None)
  return value


#: Class attribute of a dataclass of options that many methods share -> the name
#: of its group, for example ``LocalWork.GROUP = "local"``.
GROUPS = {
  "local": "Local work",
  "optimizer": "Local optimizer",
  "robustness": "Robustness",
  "compression": "Compression",
  "privacy": "Privacy",
}


def fields_by_group(*kinds: type[Any]) -> dict[str, list[dataclasses.Field]]:
  """Sorts the options of a method into its own and shared ones.

  Args:
    *kinds: the dataclasses of the method's hyper-parameters and of its exchange.

  Returns:
    Group -> fields. The first group, ``""``, holds the method's own; the others
    are those of ``GROUPS`` that the method has, in that order.
  """
  fields: dict[str, list[dataclasses.Field]] = {group: [] for group in ("", *GROUPS)}
  for kind in kinds:
    group_of: dict[str, str] = {}
    for part in reversed(kind.__mro__):
      group = vars(part).get("GROUP")
      if group:
        group_of |= {
          name: group for name in inspect.get_annotations(part) if name not in group_of
        }
    for field in dataclasses.fields(kind):
      fields[group_of.get(field.name, "")].append(field)
  return {group: members for group, members in fields.items() if members}


def ordered_values(*parts: object) -> dict[str, Any]:
  """Makes name -> value of a method's options, its own first.

  Args:
    *parts: its hyper-parameters and the options of its exchange.
  """
  values = field_values(*parts)
  groups = fields_by_group(*map(type, parts))
  return {
    field.name: values[field.name] for group in groups.values() for field in group
  }


def field_values(*parts: Any) -> dict[str, Any]:
  """Makes name -> value of the fields of dataclasses, which are not copied."""
  return {
    field.name: getattr(part, field.name)
    for part in parts
    for field in dataclasses.fields(part)
  }


#: A choice that stands for all code of the user's own.
OWN_CODE = "FILE.py:NAME"


def hyper(
  default: object,
  help: str,  # pylint: disable=redefined-builtin
  *,
  source: str = "",
  minimum: float | None = None,
  above: float | None = None,
  maximum: float | None = None,
  below: float | None = None,
  choices: tuple[str, ...] | None = None,
  traced: bool | None = None,
  neutral: float | None = None,
  numbers: str = "",
  distinct: bool = False,
) -> Any:
  """Makes a dataclass field that carries its documentation and its range.

  Args:
    default: the default value; its type is the type of the hyper-parameter. A
      list becomes a tuple.
    help: one line of help, including the unit.
    source: equation or algorithm line of the paper; empty if the
      hyper-parameter is not from a paper.
    minimum: the smallest allowed value.
    above: an exclusive lower bound.
    maximum: the largest allowed value. Whole numbers without a maximum are at
      most ``MAX_COUNT``.
    below: an exclusive upper bound.
    choices: the allowed strings; ``optax:NAME`` allows all that begin so, and
      ``FILE.py:NAME`` all names of code of the user's own (``own.is_own``).
    traced: whether a run may pass the value as an input of its compiled
      program. By default floats are traced; ints, bools and strings are not.
      Give False for a float that decides structure or is read on the host,
      and True for an int that decides neither shapes nor structure.
    neutral: the value with which part of the method has no effect (0 of a
      term, 1 of a factor). ``traced_names`` leaves a field of this value out,
      so that the part is not in the program and costs nothing.
    numbers: of a text made of numbers, what stands between them; such a field
      also takes one number or a list of them (``of_field``).
    distinct: whether the entries of a list must differ.

  Examples:
    >>> class MyHParams(HParams):
    ...   client_lr: float = hyper(0.1, "client learning rate", above=0.0)
    >>> validate(MyHParams(client_lr=-1.0))
    Traceback (most recent call last):
    fedjax_alg.errors.OptionError: client_lr=-1.0: must be more than 0
  """
  default = plain(default)
  if isinstance(default, (dict, set)):
    raise OptionError(
      f"a default is {default!r}, must be a number, a bool, a "
      "string, None or a list of these"
    )
  if traced is None:
    traced = isinstance(default, float)
  return dataclasses.field(
    default=default,
    metadata=dict(
      help=help,
      source=source,
      minimum=minimum,
      above=above,
      maximum=maximum,
      below=below,
      choices=choices,
      traced=traced,
      neutral=neutral,
      numbers=numbers,
      distinct=distinct,
    ),
  )


def field_like(options: HParams | type[HParams], name: str, **changes: object) -> Any:
  """The field ``name`` of other options, with its default or metadata changed."""
  field = options.__dataclass_fields__[name]
  default = changes.pop("default", field.default)
  return dataclasses.field(default=default, metadata={**field.metadata, **changes})


#: Limits of a field: their words, and which values are beyond them.
_LIMITS = (
  ("minimum", "at least", operator.lt),
  ("above", "more than", operator.le),
  ("maximum", "at most", operator.gt),
  ("below", "less than", operator.ge),
)


def _number(value: float) -> str:
  return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def describe_range(field: dataclasses.Field) -> str:
  """Describes the range of a ``hyper`` field in words.

  Args:
    field: the field.

  Returns:
    The range; empty if every value is allowed.
  """
  meta, parts = field.metadata, []
  for key, word, _ in _LIMITS:
    if meta.get(key) is not None:
      parts.append(f"{word} {_number(meta[key])}")
  if meta.get("choices"):
    parts.append("one of " + ", ".join(meta["choices"]))
  return " and ".join(parts)


def at_limit(field: dataclasses.Field, value: float) -> bool:
  """Tells whether no number beyond a value, on one side, is allowed.

  Args:
    field: a ``hyper`` field.
    value: one of its values.
  """
  return value in (field.metadata.get("minimum"), field.metadata.get("maximum"))


def traced_names(options: object) -> tuple[str, ...]:
  """Lists the fields that a run may pass as inputs of its compiled program.

  Settings can share one program if these names and the values of all other
  fields are equal.

  Args:
    options: a dataclass of ``hyper`` fields, an instance of one, or a tuple of
      either. For an instance, fields that have their ``neutral`` value are left out.

  Returns:
    The names of the fields; of fields of a part OPTION.FIELD.
  """
  parts = options if isinstance(options, tuple) else (options,)

  def is_off(part: object, field: dataclasses.Field) -> bool:
    neutral = field.metadata.get("neutral")
    return (
      not isinstance(part, type)
      and neutral is not None
      and is_zero(getattr(part, field.name) - neutral)
    )

  def names(part: Any, prefix: str = "") -> Iterator[str]:
    for field in dataclasses.fields(part):
      value = None if isinstance(part, type) else getattr(part, field.name)
      if dataclasses.is_dataclass(value):
        yield from names(value, f"{prefix}{field.name}.")
      elif field.metadata.get("traced") and not is_off(part, field):
        yield prefix + field.name

  return tuple(name for part in parts for name in names(part))


def with_values(hparams: _HParams, values: Mapping[str, object]) -> _HParams:
  """Replaces values without checking them.

  Args:
    hparams: an instance of a dataclass.
    values: name -> new value, which may be a tracer; OPTION.FIELD is a field of a
      part that is an option.

  Returns:
    A new instance.
  """
  changes: dict[str, Any] = {}
  for name, value in values.items():
    option, _, field = name.partition(".")
    if field:
      part = changes.get(option, getattr(hparams, option))
      value = with_values(part, {field: value})
    changes[option] = value
  return dataclasses.replace(hparams, **changes)


def fill_defaults(hparams: _HParams) -> _HParams:
  """Fills in the defaults that depend on other fields.

  A dataclass with such defaults has a method ``resolved``. All other
  dataclasses are returned unchanged. Call this before ``traced_names`` and
  ``with_values``, because the value of a tracer cannot be compared with the
  value that stands for the default.

  Args:
    hparams: an instance of a dataclass; it is not modified.

  Returns:
    An instance with the values that a run uses.
  """
  fill_in = getattr(hparams, "resolved", None)
  resolved: _HParams = fill_in() if fill_in else hparams
  return resolved


def refuse_without_effect(
  options: HParams, names: Iterable[str], why: str, word: str = ""
) -> None:
  """Refuses fields that were given although nothing would read them.

  Args:
    options: an instance of a dataclass.
    names: the fields.
    why: the rest of the message.
    word: the word of the part, if it is one.

  Raises:
    OptionError: a field differs from its default; tracers have been checked before.
  """
  for name in names:
    value = getattr(options, name)
    default = options.__dataclass_fields__[name].default
    if not isinstance(value, jax.core.Tracer) and value != default:
      place = f"{word}: {name}" if word else f"`{name}`"
      raise OptionError(f"{place}={value}: {why}")


def validate(hparams: HParams) -> None:
  """Checks every ``hyper`` field against its range.

  Tracers are not checked, because their values are not known. Check values
  before they are traced.

  Args:
    hparams: an instance of a dataclass of ``hyper`` fields.

  Raises:
    OptionError: the message names the field, its value and the allowed range.
  """
  for field in dataclasses.fields(hparams):
    check_value(field, getattr(hparams, field.name))


def check_value(field: dataclasses.Field, value: Any) -> None:
  """Checks a value against the range of a ``hyper`` field.

  Args:
    field: the field.
    value: the value; tracers are not checked.

  Raises:
    OptionError: the message names the field, its value and the allowed range.
  """
  meta = field.metadata
  if meta.get("maximum") is None:
    check_count(field.name, value)
  if isinstance(value, tuple):
    check_entries(field.name, value, bool(meta.get("distinct")))
  if value is None or isinstance(value, (tuple, jax.core.Tracer)):
    return  # None: not given; tuple: its range elsewhere; tracer: not known
  if dataclasses.is_dataclass(value):
    return  # a part, which has checked itself
  if not isinstance(value, (str, int)) and not np.isfinite(value):
    raise OptionError(f"`{field.name}`={value}: must be finite")
  if not _is_choice(value, meta.get("choices")) or any(
    meta.get(key) is not None and beyond(value, meta[key]) for key, _, beyond in _LIMITS
  ):
    raise OptionError(f"`{field.name}`={value}: must be {describe_range(field)}")


def check_entries(name: str, values: Sequence[Any], distinct: bool) -> None:
  """Refuses a list with a number that is not finite, or with an entry twice.

  Args:
    name: the option, for messages.
    values: its entries.
    distinct: whether they must differ.

  Raises:
    OptionError: the message has the option and the entry.
  """
  before = set()
  for value in values:
    if isinstance(value, float) and not np.isfinite(value):
      raise OptionError(f"`{name}`: has {value}, must be finite")
    if distinct and value in before:
      raise OptionError(f"`{name}`: has {value} twice, must have it once")
    before.add(value)


def _is_choice(value: object, choices: tuple[str, ...] | None) -> bool:
  """Whether a value is allowed; see ``hyper`` for choices with a NAME."""
  return (
    not choices
    or value in choices
    or (OWN_CODE in choices and ":" in str(value))
    or any(
      choice.endswith(":NAME") and str(value).startswith(choice.removesuffix("NAME"))
      for choice in choices
    )
  )


def check_count(name: str, value: object) -> None:
  """Checks that whole numbers are small enough to be counted with.

  Args:
    name: name of the field, for the message.
    value: a value or a tuple of values; only whole numbers are checked.

  Raises:
    OptionError: a number is larger than ``MAX_COUNT``.
  """
  if isinstance(value, tuple):
    for item in value:
      check_count(name, item)
  elif type(value) is int and abs(value) > MAX_COUNT:
    raise OptionError(f"`{name}`={value}: must be at most {MAX_COUNT:,}")


def plain(value: object) -> Any:
  """Converts a value so that it can be hashed and written as JSON.

  Args:
    value: any value.

  Returns:
    A tuple for a list or an array, a Python number for a scalar of NumPy or
    JAX. Tracers and all other values are returned unchanged.
  """
  if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
    return tuple(map(plain, value))
  if isinstance(value, (np.generic, np.ndarray, jax.Array)) and (
    not isinstance(value, jax.core.Tracer)
  ):
    return plain(np.asarray(value).tolist())
  return value


def as_index(name: str, value: Any, count: int, note: str = "") -> int:
  """Converts an index to an int.

  Args:
    name: name of the argument, for the message.
    value: the index that a caller gave.
    count: number of things that have one, from 0.
    note: what they are, for the message.

  Raises:
    OptionError: no whole number in [0, count).
  """
  try:
    index = operator.index(value)
  except TypeError:
    index = -1
  if not 0 <= index < count:
    raise OptionError(
      f"`{name}`={value!r}: must be a whole number in [0, {count}){note}"
    )
  return index


def check_options(options: HParams) -> None:
  """Checks every ``hyper`` field that is not None.

  Args:
    options: an instance of a dataclass of ``hyper`` fields.

  Raises:
    OptionError: the message names the field, its value and the allowed range.
  """
  for field in dataclasses.fields(options):
    value, choices = getattr(options, field.name), field.metadata["choices"]
    if value is not None and not _is_choice(value, choices):
      assert choices
      check_known(field.name, value, choices)
  validate(options)
