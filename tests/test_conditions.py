"""Conditions of options: what holds, and how a refusal reads."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_alg import conditions
from fedjax_alg.conditions import MANY, only, POSITIVE

BOTH = only("models", MANY) & (only("server", "adam") | only("half", "mime"))
CONDITIONS = {
    "models": None, "server": None, "half": only("server", "adam", "sgd"),
    "x": BOTH, "y": only("half", "mime"), "z": only("rate", POSITIVE)}


@pytest.mark.parametrize("values, name, why", [
    (dict(models=2, server="adam", half="sgd"), "x", ""),
    (dict(models=2, server="sgd", half="mime"), "x", ""),
    (dict(models=1, server="adam", half="mime"), "x",
     "not read with `models`=1 (only with `models` of 2 or more)"),
    (dict(models=2, server="sgd", half="sgd"), "x",
     "not read with `server`=sgd and `half`=sgd (only with `server`=adam or "
     "`half`=mime)"),
    # What it depends on is not read itself.
    (dict(models=2, server="none", half="mime"), "y",
     "not read with `server`=none (only with `server`=adam|sgd)"),
    (dict(models=2, server="none", half="mime"), "models", ""),
    # Nothing is known of an option that is not there.
    (dict(models=2), "x", ""), (dict(half=None), "y", ""),
    (dict(rate=0.0), "z", "not read with `rate`=0.0 (only with `rate` more "
     "than 0)"),
    (dict(rate=1e-30), "z", ""), (dict(rate=0), "z",
     "not read with `rate`=0 (only with `rate` more than 0)"),
])
def test_why_an_option_is_not_read(values, name, why):
  assert conditions.why_not(name, CONDITIONS, values) == why


def test_a_traced_number_may_be_anything():
  jax.jit(lambda rate: jnp.float32(
      conditions.why_not("z", CONDITIONS, {"rate": rate}) == ""))(0.0)


def test_in_words():
  assert str(BOTH) == (
      "`models` of 2 or more and (`server`=adam or `half`=mime)")
  assert str(only("trace", True)) == "`trace`"
  assert BOTH.names == ("models", "server", "half")
  assert str(BOTH.about({"models"})) == "`models` of 2 or more"
  # One of the alternatives is unknown, and may hold.
  assert BOTH.about({"server"}) is None
  assert str(BOTH.about({"server", "half"})) == "`server`=adam or `half`=mime"
  model = only("scales", True, words="a model with features")
  assert str((model & only("x", 1)).about(())) == "a model with features"
