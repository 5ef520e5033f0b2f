"""Conditions under which an option is read.

``only("server", "adam", "yogi")`` holds where `server` is one of the two, and
``but("server", "adam")`` where it is not. ``&`` and ``|`` combine conditions:
``only("num_models", MANY) & (only("server", "adam") | only("half", "mime"))``.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
from typing import Any

import jax


def is_zero(value: object) -> bool:
  """Whether ``value`` is a constant zero; False for every tracer."""
  return not isinstance(value, jax.core.Tracer) and value == 0


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers, in the place of a list of values."""

  words: str
  holds: Callable[[Any], bool]
  example: object  #: a value for which it holds


#: The values of a count that are larger than one.
MANY = Range("of 2 or more", lambda value: value >= 2, 2)
#: Numbers that do not switch a part of a method off.
POSITIVE = Range("more than 0", lambda value: not is_zero(value), 1)
ZERO = Range("0", is_zero, 0)


class Condition:
  """A condition on other options. ``str`` words it, options in backticks."""

  def __and__(self, other: "Condition") -> "Condition":
    return Compound("and", (self, other))

  def __or__(self, other: "Condition") -> "Condition":
    return Compound("or", (self, other))

  @property
  def clauses(self) -> "tuple[Clause, ...]":
    """The clauses it is made of."""
    raise NotImplementedError

  @property
  def names(self) -> tuple[str, ...]:
    """The options that it reads."""
    return tuple(dict.fromkeys(clause.name for clause in self.clauses))

  def about(self, names: Collection[str]) -> "Condition | None":
    """Reduces the condition to its part about these options; None: none."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Clause(Condition):
  """The condition that an option has one of several values, or none of them."""

  name: str
  values: tuple[object, ...]  #: the values, or one ``Range``
  words: str = ""  #: how messages say it, if it is about no option
  none: bool = False  #: whether it has none of them

  @property
  def clauses(self) -> "tuple[Clause, ...]":
    return (self,)

  def holds(self, value: object) -> bool:
    """Whether it holds for a value of the option."""
    value = getattr(value, "WORD", value)  # a part counts by its word
    return self.none != any(
      entry.holds(value) if isinstance(entry, Range) else value == entry
      for entry in self.values
    )

  def about(self, names: Collection[str]) -> Condition | None:
    return self if self.words or self.name in names else None

  def __str__(self) -> str:
    if self.words:
      return self.words
    first = self.values[0]
    if first is True:
      return f"`{self.name}`"
    if isinstance(first, Range):
      return f"`{self.name}` {first.words}"
    values = "|".join(map(str, self.values))
    return (
      f"`{self.name}` other than {values}" if self.none else (f"`{self.name}`={values}")
    )


@dataclasses.dataclass(frozen=True)
class Compound(Condition):
  """The condition that all of some conditions hold, or one of them."""

  word: str  #: "and" or "or"
  parts: tuple[Condition, ...]

  @property
  def clauses(self) -> tuple[Clause, ...]:
    return tuple(clause for part in self.parts for clause in part.clauses)

  def about(self, names: Collection[str]) -> Condition | None:
    statements = [part.about(names) for part in self.parts]
    # An "or" needs all of its parts: an unknown one may hold.
    if self.word == "or" and None in statements:
      return None
    remaining = tuple(part for part in statements if part)
    return (
      Compound(self.word, remaining)
      if len(remaining) > 1
      else (remaining[0] if remaining else None)
    )

  def __str__(self) -> str:
    return f" {self.word} ".join(
      f"({part})"
      if isinstance(part, Compound) and part.word != self.word
      else str(part)
      for part in self.parts
    )


def only(name: str, *values: object, words: str = "") -> Condition:
  """The condition that an option has one of some values.

  Args:
    name: the option, or something else that is known of a run.
    *values: its values; MANY, POSITIVE and ZERO stand for all such numbers.
    words: how messages say it; by default by the option and its values.
  """
  return Clause(name, values, words)


def but(name: str, *values: object) -> Condition:
  """The condition that an option has none of some values."""
  return Clause(name, values, none=True)


def why_not(
  name: str, conditions: Mapping[str, Condition | None], values: Mapping[str, object]
) -> str:
  """Explains why an option is not read; empty if it is.

  Args:
    name: the option.
    conditions: every option -> when it is read; None: always.
    values: every option -> its value. A clause about an option that is not
      among them, or is None, holds: nothing is known of it.

  Returns:
    "not read with `server`=sgd (only with `server`=adam)".
  """
  when = conditions.get(name)
  return _why(when, conditions, values) if when else ""


def _why(
  when: Condition,
  conditions: Mapping[str, Condition | None],
  values: Mapping[str, object],
) -> str:
  """Explains why a condition does not hold: its smallest part that fails."""
  if isinstance(when, Compound):
    reasons = [_why(part, conditions, values) for part in when.parts]
    if when.word == "and":
      return next(filter(None, reasons), "")
    return _not_read(when, values) if all(reasons) else ""
  assert isinstance(when, Clause)
  value = value_of(values, when.name)
  if value is None:
    return ""
  if not when.holds(value):
    return _not_read(when, values)
  return why_not(when.name, conditions, values)


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


def _not_read(when: Condition, values: Mapping[str, object]) -> str:
  now = dict.fromkeys(
    f"`{clause.name}`={value}"
    for clause in when.clauses
    if not clause.words
    and (value := value_of(values, clause.name)) is not None
    and not clause.holds(value)
  )
  text = f" with {' and '.join(now)}" if now else ""
  return f"not read{text} (only with {when})"
