"""Hyper-parameters: which are traced, and checks that leave tracers alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import hparams
from fedjax_alg.algorithms.composed import ComposedHParams
from fedjax_alg.conditions import only


@dataclasses.dataclass(frozen=True)
class Sample:
  steps: int = hparams.hyper(3, "steps", minimum=1)
  start: int = hparams.hyper(3, "round", minimum=1, traced=True)
  rate: float = hparams.hyper(0.1, "rate", above=0.0, below=1.0)
  pull: float = hparams.hyper(0.1, "pull", minimum=0.0, neutral=0.0)
  bound: float = hparams.hyper(0.1, "bound", traced=False)
  free: float = hparams.hyper(0.0, "free")
  rule: str = hparams.hyper("a", "rule", choices=("a", "b"))
  gain: float = hparams.hyper(1.0, "gain", when=only("rule", "b"))
  on: bool = hparams.hyper(True, "on")


def test_which_are_traced():
  """Floats unless said otherwise, read, and not a zero that switches off."""
  assert hparams.traced_names(Sample) == hparams.traced_names(
      Sample(rule="b")) == ("start", "rate", "pull", "free", "gain")
  assert hparams.traced_names(Sample()) == ("start", "rate", "pull", "free")
  assert hparams.traced_names(Sample(pull=0.0, free=0.0)) == (
      "start", "rate", "free")


@jax.jit
def nothing_is_known_of(value):
  made = hparams.with_values(Sample(), dict(rate=value, pull=value))
  hparams.validate(made)
  assert hparams.traced_names(made) == ("start", "rate", "pull", "free")
  assert not hparams.is_zero(made.pull)
  return made.rate + made.pull


def test_tracers_are_not_looked_at():
  """Neither is in its range."""
  assert nothing_is_known_of(jnp.float32(-1.0)) == -2.0
  with pytest.raises(ValueError, match="start=0: must be at least 1"):
    jax.eval_shape(lambda value: hparams.validate(
        Sample(start=0, rate=value)), jnp.float32(0.5))


@pytest.mark.parametrize("number", [
    float, np.float32, np.float64, np.asarray, jnp.float32])
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
  given = Sample()
  assert hparams.with_values(given, dict(rate=5.0)) == Sample(rate=5.0)
  assert given == Sample()


@pytest.mark.parametrize("given, client_lr, server_lr", [
    ({}, 0.1, 1.0),
    (dict(client_update="svrg", server="adam"), 12.0, 0.01),
    (dict(client_update="svrg", client_lr=0.5, server="adaptive"), 0.5, 0.02),
    (dict(server="conjugate_gradient", server_lr=0.3), 0.1, 0.3),
    (dict(server="cg_line_search"), 0.1, 0.0),  # it reads none
])
def test_resolved_rates_of_a_cell_of_the_grid(given, client_lr, server_lr):
  made = ComposedHParams(**given)
  before = dataclasses.asdict(made)
  found = hparams.resolved(made)
  assert dataclasses.asdict(made) == before
  assert dataclasses.asdict(found) == before | dict(
      client_lr=client_lr, server_lr=server_lr)
  assert hparams.resolved(found) == found
  assert hparams.resolved(Sample()) == Sample()
