"""Hyper-parameters: frozen dataclasses whose fields document themselves.

The same field gives the flag's type, default, help, source and range on the
command line, and the check in the library.

A run may pass numbers that do not decide shapes or structure as arguments of
its compiled program, so that the settings of a grid share one program: inside
the program such a field holds a JAX tracer (float32 for a float, int32 for an
int). ``traced_names`` says which fields these are. Code that reads a traced
field must not ask for its value in Python; where a zero leaves a term out,
``is_zero`` tells a constant zero from everything else.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import types
import typing
from typing import Any, TypeVar

import jax
import numpy as np

from fedjax_alg.errors import did_you_mean, OptionError

#: Of a number of things: more than one.
MANY = range(2, 2 ** 31)

HParams = TypeVar("HParams")


def hyper(
    default: Any,
    help: str,  # pylint: disable=redefined-builtin
    *,
    source: str = "",
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
    when: tuple[str, Sequence[Any]] | None = None,
    traced: bool | None = None,
    zero_is_off: bool = False,
) -> Any:
  """A dataclass field that carries its documentation and its range.

  Args:
    default: its type is the hyper-parameter's type.
    help: one line, units included.
    source: equation or algorithm line of the paper, empty where ours.
    minimum: least value allowed.
    above: every value must be greater than this.
    maximum: greatest value allowed.
    below: every value must be less than this.
    choices: the strings allowed.
    when: (other field, its values, or ``MANY``): read only then, where the
      dataclass has that field.
    traced: whether a run may pass the value as an argument of its compiled
      program; None: floats are, ints, bools and strings are not. False for a
      float that decides structure or is read on the host; True for an int
      that decides neither shapes nor structure.
    zero_is_off: a zero switches part of the method off, which is then left
      out of the program: ``traced_names`` does not name a field that is zero,
      so that it costs nothing. (A traced zero gives the same numbers.)
  """
  if traced is None:
    traced = isinstance(default, float)
  return dataclasses.field(default=default, metadata=dict(
      help=help, source=source, minimum=minimum, above=above, maximum=maximum,
      below=below, choices=choices, when=when, traced=traced,
      zero_is_off=zero_is_off))


def allowed(field: dataclasses.Field) -> str:
  """The range of a ``hyper`` field in words, empty where any value goes."""
  meta, parts = field.metadata, []
  for key, word in (("minimum", "at least"), ("above", "more than"),
                    ("maximum", "at most"), ("below", "less than")):
    if meta.get(key) is not None:
      parts.append(f"{word} {meta[key]:g}")
  if meta.get("choices"):
    parts.append("one of " + ", ".join(meta["choices"]))
  return " and ".join(parts)


def reads(hparams: Any, name: str) -> bool:
  """Whether a setting of ``hparams`` reads the field ``name``."""
  fields = {field.name: field for field in dataclasses.fields(hparams)}
  when = fields[name].metadata.get("when")
  if when is None or when[0] not in fields:
    return True
  other, values = when
  return getattr(hparams, other) in values and reads(hparams, other)


def condition(when: tuple[str, Sequence[Any]]) -> str:
  """``when`` of a field in words: "`server`=adam|adaptive"."""
  other, values = when
  if values is MANY:
    return f"`{other}`=2 or more"
  if values == (True,):
    return f"`{other}`"
  return f"`{other}`=" + "|".join(map(str, values))


def is_zero(value: Any) -> bool:
  """Whether ``value`` is known to be zero; a tracer never is."""
  return not isinstance(value, jax.core.Tracer) and value == 0


def traced_names(hparams: Any) -> tuple[str, ...]:
  """The fields that a run may pass as arguments of its compiled program.

  Settings that agree in these names and in the values of all other fields can
  share one program.

  Args:
    hparams: a dataclass of ``hyper`` fields, or an instance of one. An
      instance leaves out the fields whose zero switches something off and
      which are zero.
  """
  instance = not isinstance(hparams, type)

  def is_off(field: dataclasses.Field) -> bool:
    return (instance and field.metadata["zero_is_off"]
            and is_zero(getattr(hparams, field.name)))

  return tuple(field.name for field in dataclasses.fields(hparams)
               if field.metadata["traced"] and not is_off(field))


def with_values(hparams: HParams, values: Mapping[str, Any]) -> HParams:
  """``hparams`` with other values, tracers among them; nothing is checked."""
  changes: Any = dict(values)
  return dataclasses.replace(hparams, **changes)  # type: ignore[type-var]


def resolved(hparams: HParams) -> HParams:
  """``hparams`` with the values that a run really takes.

  A dataclass whose defaults depend on other fields has a method ``resolved``
  that fills them in; all others are returned as they are. Resolve before
  ``traced_names`` and ``with_values``: a tracer cannot be told from a value
  that asks for the default. The given instance is left as it is.
  """
  fill_in = getattr(hparams, "resolved", None)
  return fill_in() if fill_in else hparams


def validate(hparams: Any) -> None:
  """Checks every ``hyper`` field against its range.

  Tracers are left alone: their values are not known. Check them before they
  are traced.

  Raises:
    ValueError: one line that names the field, its value and what is allowed.
  """
  for field in dataclasses.fields(hparams):
    value, meta = getattr(hparams, field.name), field.metadata
    if value is None or isinstance(value, (tuple, jax.core.Tracer)):
      continue  # not given, checked by its own rule, not known
    if not isinstance(value, str) and not np.isfinite(value):
      raise OptionError(f"`{field.name}`={value}: must be finite")
    bad = (
        (meta.get("minimum") is not None and value < meta["minimum"])
        or (meta.get("above") is not None and value <= meta["above"])
        or (meta.get("maximum") is not None and value > meta["maximum"])
        or (meta.get("below") is not None and value >= meta["below"])
        or (meta.get("choices") and value not in meta["choices"]))
    if bad:
      raise OptionError(f"`{field.name}`={value}: must be {allowed(field)}")


def plain(value: Any) -> Any:
  """A value that can be hashed and written as JSON.

  Lists and arrays become tuples, scalars of NumPy and JAX become Python's.
  Tracers and everything else are returned as they are.
  """
  if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
    return tuple(map(plain, value))
  if isinstance(value, (np.generic, np.ndarray, jax.Array)) and (
      not isinstance(value, jax.core.Tracer)):
    return plain(np.asarray(value).tolist())
  return value


_WORDS = {int: "a whole number", float: "a number", bool: "True or False",
          str: "a string"}


def of_type(name: str, value: Any, kind: Any) -> Any:
  """``value`` as the type of a field; a whole number also makes a float.

  Args:
    name: of the field, for the message.
    value: what a caller gave; None and tracers are returned as they are.
    kind: the annotation: int, float, bool, str, a tuple of these or one of
      them or None. What has another one is not checked.

  Raises:
    OptionError: it is of another type.
  """
  if value is None or isinstance(value, jax.core.Tracer):
    return value
  if isinstance(kind, types.UnionType):  # X | None
    kind = next(part for part in typing.get_args(kind)
                if part is not types.NoneType)
  value = plain(value)
  if typing.get_origin(kind) is tuple:
    items = typing.get_args(kind)
    if not isinstance(value, tuple):
      raise OptionError(f"`{name}`={value!r}: must be a list")
    if items[-1] is Ellipsis:
      items = items[:1] * len(value)
    if len(items) != len(value):
      raise OptionError(f"`{name}`={value!r}: must have {len(items)} entries")
    return tuple(of_type(name, *each) for each in zip(value, items))
  if kind is float and type(value) is int:
    return float(value)
  if kind in _WORDS and type(value) is not kind:
    raise OptionError(f"`{name}`={value!r}: must be {_WORDS[kind]}")
  return value


def typed(options: HParams) -> HParams:
  """``options`` with every value of its field's type (``of_type``).

  Raises:
    OptionError: a value of another type.
  """
  hints = typing.get_type_hints(type(options))
  found = {name: of_type(name, getattr(options, name), kind)
           for name, kind in hints.items()}
  return with_values(options, found)


def check_options(options: Any) -> None:
  """Checks every ``hyper`` field of options that is given (not None).

  Raises:
    OptionError: one line that names the field, its value and what is allowed.
  """
  for field in dataclasses.fields(options):
    value, choices = getattr(options, field.name), field.metadata["choices"]
    if choices and value is not None and value not in choices:
      raise OptionError(
          f"`{field.name}`={value}: unknown"
          f"{did_you_mean(str(value), choices)} (one of "
          f"{', '.join(map(str, choices))})")
  validate(options)
