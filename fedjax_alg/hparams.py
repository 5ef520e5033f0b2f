"""Hyper-parameters: frozen dataclasses whose fields document themselves.

The same field gives the flag's type, default, help, source and range on the
command line, and the check in the library.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import jax

from fedjax_alg.errors import did_you_mean, OptionError

#: Of a number of things: more than one.
MANY = range(2, 2 ** 31)


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
  """
  return dataclasses.field(default=default, metadata=dict(
      help=help, source=source, minimum=minimum, above=above, maximum=maximum,
      below=below, choices=choices, when=when))


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


def validate(hparams: Any) -> None:
  """Checks every ``hyper`` field against its range.

  Raises:
    ValueError: one line that names the field, its value and what is allowed.
  """
  for field in dataclasses.fields(hparams):
    value, meta = getattr(hparams, field.name), field.metadata
    if value is None or isinstance(value, jax.core.Tracer):
      continue
    if isinstance(value, float) and not math.isfinite(value):
      raise OptionError(f"`{field.name}`={value}: must be finite")
    bad = (
        (meta.get("minimum") is not None and value < meta["minimum"])
        or (meta.get("above") is not None and value <= meta["above"])
        or (meta.get("maximum") is not None and value > meta["maximum"])
        or (meta.get("below") is not None and value >= meta["below"])
        or (meta.get("choices") and value not in meta["choices"]))
    if bad:
      raise OptionError(f"`{field.name}`={value}: must be {allowed(field)}")


def traced_names(hparams: Any) -> tuple[str, ...]:
  return tuple(f.name for f in dataclasses.fields(hparams) if isinstance(f.default, float))


def with_values(hparams: Any, values: Any) -> Any:
  return dataclasses.replace(hparams, **values)


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
