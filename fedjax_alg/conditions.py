"""Conditions under which an option is read.

``only("server", "adam", "yogi")`` holds where `server` is one of the two.
``&`` and ``|`` combine conditions: ``only("num_models", MANY) &
(only("server", "adam") | only("client_update", "mime"))``.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
from typing import Any

import jax


def is_zero(value: Any) -> bool:
  """Whether ``value`` is a constant zero; False for every tracer."""
  return not isinstance(value, jax.core.Tracer) and value == 0


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers, in the place of a list of values."""

  words: str
  holds: Callable[[Any], bool]
  example: Any  #: a value for which it holds


#: The values of a count that are larger than one.
MANY = Range("of 2 or more", lambda value: value >= 2, 2)
#: Numbers that do not switch a part of a method off.
POSITIVE = Range("more than 0", lambda value: not is_zero(value), 1)


@dataclasses.dataclass(frozen=True)
class Clause:
  """That an option has one of several values."""

  name: str
  values: tuple[Any, ...]  #: the values, or one ``Range``

  def holds(self, value: Any) -> bool:
    """Whether it holds for a value of the option."""
    return any(one.holds(value) if isinstance(one, Range) else value == one
               for one in self.values)

  @property
  def example(self) -> Any:
    """A value for which it holds."""
    first = self.values[0]
    return first.example if isinstance(first, Range) else first

  def __str__(self) -> str:
    first = self.values[0]
    if first is True:
      return f"`{self.name}`"
    if isinstance(first, Range):
      return f"`{self.name}` {first.words}"
    return f"`{self.name}`=" + "|".join(map(str, self.values))


@dataclasses.dataclass(frozen=True)
class Only:
  """That every alternative has a clause that holds."""

  every: tuple[tuple[Clause, ...], ...]

  def __and__(self, other: "Only") -> "Only":
    return Only(self.every + other.every)

  def __or__(self, other: "Only") -> "Only":
    return Only(tuple(
        one + more for one in self.every for more in other.every))

  def about(self, names: Collection[str]) -> "Only | None":
    """What it says of these options alone; None: nothing."""
    every = tuple(any_of for any_of in self.every
                  if all(clause.name in names for clause in any_of))
    return Only(every) if every else None

  @property
  def names(self) -> tuple[str, ...]:
    """The options that it reads."""
    return tuple(dict.fromkeys(
        clause.name for any_of in self.every for clause in any_of))

  def __str__(self) -> str:
    texts = [" or ".join(map(str, any_of)) for any_of in self.every]
    return " and ".join(
        f"({text})" if len(texts) > 1 and len(any_of) > 1 else text
        for text, any_of in zip(texts, self.every))


def only(name: str, *values: Any) -> Only:
  """The condition that an option has one of some values.

  Args:
    name: the option.
    *values: its values; MANY and POSITIVE stand for all such numbers.
  """
  return Only(((Clause(name, values),),))


def why_not(
    name: str, conditions: Mapping[str, Only | None], values: Mapping[str, Any]
) -> str:
  """Why an option is not read; empty if it is.

  Args:
    name: the option.
    conditions: every option -> when it is read; None: always.
    values: every option -> its value. A clause about an option that is not
      among them, or is None, is left out: nothing is known of it.

  Returns:
    "not read with `server`=sgd (only with `server`=adam)".
  """
  when = conditions.get(name)
  for any_of in when.every if when else ():
    reasons = [_why_clause(clause, conditions, values) for clause in any_of]
    if all(reasons):
      deeper = [reason for reason in reasons if reason.startswith("not read")]
      if deeper and len(any_of) == 1:
        return deeper[0]
      return (f"not read with {' and '.join(_shown(any_of, values))} (only "
              f"with {Only((any_of,))})")
  return ""


def _why_clause(
    clause: Clause, conditions: Mapping[str, Only | None],
    values: Mapping[str, Any]) -> str:
  value = values.get(clause.name)
  if value is None:
    return ""
  if not clause.holds(value):
    return f"`{clause.name}`={value}"
  return why_not(clause.name, conditions, values)


def _shown(any_of: tuple[Clause, ...], values: Mapping[str, Any]) -> list[str]:
  """What the options of some clauses are."""
  return list(dict.fromkeys(
      f"`{clause.name}`={values[clause.name]}" for clause in any_of))
