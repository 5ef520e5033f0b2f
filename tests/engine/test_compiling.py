"""How rounds are compiled."""

import re

import jax
import jax.numpy as jnp
import pytest

from fedjax_alg.engine import compiling

pytestmark = pytest.mark.program


def test_local_steps_do_not_copy_the_weights():
  """Without the options the two layers after the first are copied."""

  def loss(layers):
    x = jnp.ones((2, 8))
    for layer in layers:
      x = jnp.tanh(x @ layer)
    return x.sum()

  def step(_, layers):
    return jax.tree.map(
        lambda w, g: w - 0.1 * g, layers, jax.grad(loss)(layers))

  lowered = jax.jit(
      lambda layers, steps: jax.lax.fori_loop(0, steps, step, layers)).lower(
          [jnp.eye(8)] * 3, jnp.int32(5))

  def copies(options):
    text = lowered.compile(options).as_text()
    return len(re.findall(r"f32\[8,8\]\S* copy\(", text))

  if compiling.options("cpu") is None:
    pytest.skip("this XLA does not have the option")
  # The three that remain are of the arguments, before the loop.
  assert copies(compiling.options("cpu")) == 3
  assert copies(None) == 5


def test_other_devices_have_their_own_compiler():
  assert compiling.options("tpu") is None and compiling.options("gpu") is None
