"""Hyper-parameters: ranges, messages, and which are traced."""

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import hparams, registry
from fedjax_alg.client.optimizers import ClientOptimizer, Momentum
from fedjax_alg.errors import OptionError


class Sample(hparams.HParams):
  steps: int = hparams.hyper(3, "steps", minimum=1, maximum=10)
  start: int = hparams.hyper(3, "round", minimum=1, traced=True)
  rate: float = hparams.hyper(0.1, "rate", above=0.0, below=1.0)
  pull: float = hparams.hyper(0.1, "pull", minimum=0.0, neutral=0.0)
  bound: float = hparams.hyper(0.1, "bound", traced=False)
  free: float = hparams.hyper(0.0, "free")
  rule: str = hparams.hyper("a", "rule", choices=("a", "b"))
  on: bool = hparams.hyper(True, "on")


def fields(dataclass):
  return {field.name: field for field in dataclasses.fields(dataclass)}


_BOUND = st.none() | st.integers(-5, 5).map(float)


@given(
  minimum=_BOUND,
  above=_BOUND,
  maximum=_BOUND,
  below=_BOUND,
  value=st.integers(-12, 12).map(lambda twice: twice / 2),
)
def test_validate_accepts_exactly_the_stated_range(
  minimum, above, maximum, below, value
):
  """Also of a bound of 0 and of two bounds on one side."""
  bounds = dict(minimum=minimum, above=above, maximum=maximum, below=below)
  kind = dataclasses.make_dataclass(
    "Made", [("x", float, hparams.hyper(0.0, "x", **bounds))], frozen=True
  )
  inside = (
    (-math.inf if minimum is None else minimum)
    <= value
    <= (math.inf if maximum is None else maximum)
  )
  inside &= (
    (-math.inf if above is None else above)
    < value
    < (math.inf if below is None else below)
  )
  words = hparams.describe_range(fields(kind)["x"])
  for bound, word in zip(
    (minimum, above, maximum, below),
    ("at least", "more than", "at most", "less than"),
    strict=True,
  ):
    assert (word in words) == (bound is not None)
    assert bound is None or f"{word} {bound:g}" in words
  if inside:
    hparams.validate(kind(value))
  else:
    with pytest.raises(OptionError) as error:
      hparams.validate(kind(value))
    assert error.value.text == f"`x`={value}: must be {words}"


@given(
  choices=st.lists(st.text("abc", min_size=1), min_size=1, unique=True),
  value=st.text("abc"),
)
def test_validate_accepts_exactly_the_choices(choices, value):
  kind = dataclasses.make_dataclass(
    "Made", [("x", str, hparams.hyper(choices[0], "x", choices=tuple(choices)))]
  )
  assert hparams.describe_range(fields(kind)["x"]) == "one of " + ", ".join(choices)
  if value in choices:
    hparams.validate(kind(value))
  else:
    with pytest.raises(OptionError, match=f"^x={value}: must be one of "):
      hparams.validate(kind(value))


def test_which_are_traced():
  """Floats unless said otherwise, and not a zero that switches off."""
  assert (
    hparams.traced_names(Sample)
    == hparams.traced_names(Sample())
    == ("start", "rate", "pull", "free")
  )
  assert hparams.traced_names(Sample(pull=0.0, free=0.0)) == ("start", "rate", "free")


@jax.jit
def nothing_is_known_of(value):
  sample = hparams.with_values(Sample(), dict(rate=value, pull=value))
  hparams.validate(sample)
  assert hparams.traced_names(sample) == ("start", "rate", "pull", "free")
  assert not hparams.is_zero(sample.pull)
  return sample.rate + sample.pull


def test_tracers_are_not_looked_at():
  """Neither is in its range."""
  assert nothing_is_known_of(jnp.float32(-1.0)) == -2.0
  with pytest.raises(ValueError, match="start=0: must be at least 1"):
    jax.eval_shape(
      lambda value: hparams.validate(Sample(start=0, rate=value)), jnp.float32(0.5)
    )


@pytest.mark.parametrize(
  "number", [float, np.float32, np.float64, np.asarray, jnp.float32]
)
def test_numbers_of_every_kind_are_checked(number):
  hparams.validate(Sample(rate=number(0.5)))
  for bad in (1.0, 0.0, -1.0):
    with pytest.raises(ValueError, match=f"rate={bad}: must be more than 0"):
      hparams.validate(Sample(rate=number(bad)))
  for bad in (np.nan, np.inf):
    with pytest.raises(ValueError, match=f"free={bad}: must be finite"):
      hparams.validate(Sample(free=number(bad)))
  assert hparams.is_zero(number(0.0)) and not hparams.is_zero(number(0.1))


def test_with_values_checks_nothing_and_keeps_the_given():
  sample = Sample()
  assert hparams.with_values(sample, dict(rate=5.0)) == Sample(rate=5.0)
  assert sample == Sample()


@pytest.mark.parametrize(
  "settings, client_lr, server_lr",
  [
    ({}, 0.1, 1.0),
    (dict(client_update="svrg", server="adam"), 12.0, 0.01),
    (dict(client_update="svrg", client_lr=0.5, server="adaptive"), 0.5, 0.02),
    (dict(server="conjugate_gradient", server_lr=0.3), 0.1, 0.3),
    (dict(server="cg_line_search"), 0.1, 0.0),  # it reads none
  ],
)
def test_resolved_rates_of_a_cell_of_the_grid(settings, client_lr, server_lr):
  cell, _ = registry.get("composed").parts(**settings)
  before = dataclasses.asdict(cell)
  resolved = hparams.fill_defaults(cell)
  assert dataclasses.asdict(cell) == before
  assert dataclasses.asdict(resolved) == before | dict(
    client_lr=client_lr, server_lr=server_lr
  )
  assert hparams.fill_defaults(resolved) == resolved
  assert hparams.fill_defaults(Sample()) == Sample()


def test_what_was_given_in_vain_is_refused():
  """Without it a sweep could compare runs that are the same."""
  sample = Sample(pull=0.5)
  hparams.refuse_without_effect(sample, ["rate", "steps"], "no effect")
  with pytest.raises(OptionError, match="^pull=0.5: no effect$"):
    hparams.refuse_without_effect(sample, ["rate", "pull"], "no effect")
  # A tracer has been checked before.
  jax.jit(
    lambda pull: hparams.refuse_without_effect(
      hparams.with_values(sample, {"pull": pull}), ["pull"], "no effect"
    )
  )(0.3)
  # A part with a tracer is refused by its name, without an error of JAX's.
  with pytest.raises(OptionError, match="^client_optimizer=momentum.*: no effect"):
    jax.jit(
      lambda momentum: hparams.refuse_without_effect(
        ClientOptimizer(client_optimizer=Momentum(momentum)),
        ["client_optimizer"],
        "no effect",
      )
    )(0.3)


class _Lists(hparams.HParams):
  rates: tuple[float, ...] = hparams.hyper((0.1, 0.1), "rates")
  names: tuple[str, ...] = hparams.hyper(("a",), "names", distinct=True)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_of_a_list_are_finite(number):
  """A threshold of NaN is below no number, and every bit was 0."""
  with pytest.raises(OptionError, match=f"^rates: has {number}, must be finite"):
    hparams.validate(_Lists(rates=(0.5, number)))
  hparams.validate(_Lists(rates=(0.5, 0.5)))


def test_entries_that_must_differ():
  """An entry given twice counted twice."""
  with pytest.raises(OptionError, match="^names: has b twice"):
    hparams.validate(_Lists(names=("b", "a", "b")))
