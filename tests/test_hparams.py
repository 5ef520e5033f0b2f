"""Ranges, conditions and messages of hyper-parameters."""

import dataclasses
import math

from hypothesis import given, strategies as st
import pytest

from fedjax_alg import hparams
from fedjax_alg.conditions import MANY, only
from fedjax_alg.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Sample:
  steps: int = hparams.hyper(3, "steps", minimum=1, maximum=10)
  rate: float = hparams.hyper(0.1, "rate", above=0.0, below=1.0)
  rule: str = hparams.hyper("a", "rule", choices=("a", "b"))
  free: float = hparams.hyper(0.0, "free")


def fields(dataclass):
  return {field.name: field for field in dataclasses.fields(dataclass)}


@pytest.mark.parametrize("values, message", [
    (dict(steps=0), "`steps`=0: must be at least 1 and at most 10"),
    (dict(rate=math.nan), "`rate`=nan: must be finite"),
    (dict(free=-math.inf), "`free`=-inf: must be finite"),
])
def test_what_is_out_of_range_is_said_in_one_line(values, message):
  with pytest.raises(OptionError) as error:
    hparams.validate(Sample(**values))
  assert error.value.text == message


_BOUND = st.none() | st.integers(-5, 5).map(float)


@given(minimum=_BOUND, above=_BOUND, maximum=_BOUND, below=_BOUND,
       value=st.integers(-12, 12).map(lambda twice: twice / 2))
def test_validate_accepts_exactly_the_stated_range(
    minimum, above, maximum, below, value):
  """Also of a bound of 0 and of two bounds on one side."""
  bounds = dict(minimum=minimum, above=above, maximum=maximum, below=below)
  made = dataclasses.make_dataclass(
      "Made", [("x", float, hparams.hyper(0.0, "x", **bounds))], frozen=True)
  inside = (
      -math.inf if minimum is None else minimum) <= value <= (
          math.inf if maximum is None else maximum)
  inside &= (-math.inf if above is None else above) < value < (
      math.inf if below is None else below)
  words = hparams.allowed(fields(made)["x"])
  for bound, word in zip(
      (minimum, above, maximum, below),
      ("at least", "more than", "at most", "less than"), strict=True):
    assert (word in words) == (bound is not None)
    assert bound is None or f"{word} {bound:g}" in words
  if inside:
    hparams.validate(made(value))
  else:
    with pytest.raises(OptionError) as error:
      hparams.validate(made(value))
    assert error.value.text == f"`x`={value}: must be {words}"


@given(choices=st.lists(st.text("abc", min_size=1), min_size=1, unique=True),
       value=st.text("abc"))
def test_validate_accepts_exactly_the_choices(choices, value):
  made = dataclasses.make_dataclass("Made", [(
      "x", str, hparams.hyper(choices[0], "x", choices=tuple(choices)))])
  assert hparams.allowed(fields(made)["x"]) == "one of " + ", ".join(choices)
  if value in choices:
    hparams.validate(made(value))
  else:
    with pytest.raises(OptionError, match=f"^x={value}: must be one of "):
      hparams.validate(made(value))


@dataclasses.dataclass(frozen=True)
class Chained:
  """``beta`` is read with a server that is read with several models only."""

  num_models: int = hparams.hyper(1, "K")
  server: str = hparams.hyper(
      "none", "server", when=only("num_models", MANY))
  beta: float = hparams.hyper(
      0.9, "beta", when=only("server", "adam", "adaptive"))
  trace: bool = hparams.hyper(False, "trace")
  depth: int = hparams.hyper(1, "depth", when=only("trace", True))
  elsewhere: int = hparams.hyper(1, "x", when=only("not_a_field_here", 3))


@pytest.mark.parametrize("settings, read", [
    (dict(), {"num_models", "trace", "elsewhere"}),
    (dict(num_models=2), {"num_models", "server", "trace", "elsewhere"}),
    (dict(num_models=2, server="adaptive"),
     {"num_models", "server", "beta", "trace", "elsewhere"}),
    # One condition holds, the one above it does not.
    (dict(server="adam"), {"num_models", "trace", "elsewhere"}),
    (dict(trace=True), {"num_models", "trace", "depth", "elsewhere"}),
])
def test_what_a_setting_reads(settings, read):
  made = Chained(**settings)
  assert {name for name in fields(made) if hparams.reads(made, name)} == read
