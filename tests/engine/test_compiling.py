"""How rounds are compiled."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.engine import compiling
from tests import compilers

pytestmark = pytest.mark.program


def test_local_steps_do_not_copy_the_weights():
  """Without the options the two layers after the first are copied."""

  def loss(layers):
    x = jnp.ones((2, 8))
    for layer in layers:
      x = jnp.tanh(x @ layer)
    return x.sum()

  def step(_, layers):
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, jax.grad(loss)(layers))

  lowered = jax.jit(
    lambda layers, steps: jax.lax.fori_loop(0, steps, step, layers)
  ).lower([jnp.eye(8)] * 3, jnp.int32(5))

  def copies(options):
    text = lowered.compile(options).as_text()
    return len(re.findall(r"f32\[8,8\]\S* copy\(", text))

  if compiling.options("cpu") is None:
    pytest.skip("this XLA does not have the option")
  # The three that remain are of the arguments, before the loop.
  assert copies(compiling.options("cpu")) == 3
  assert copies(None) == 5


@pytest.mark.parametrize("reads_rows", [False, True])
def test_a_start_has_the_same_bits_whatever_its_compiler_spends(
  monkeypatch, reads_rows
):
  """Parameters drawn by older versions stay what they are."""
  monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
  assert compiling.start_options("cpu") is None  # a level of the user's stays
  monkeypatch.delenv("XLA_FLAGS")
  options = compiling.start_options("cpu", reads_rows)
  if options is None:
    pytest.skip("this XLA does not have the option")
  draw = jax.nn.initializers.he_normal()
  lowered = jax.jit(
    lambda keys: jax.lax.map(
      lambda key: (draw(key, (65, 20)), jax.random.split(key, 3)), keys
    )
  ).lower(jax.random.split(jax.random.key(0), 2))
  programs = [
    lowered.compile(flags) for flags in (compilers.USUAL, compilers.USUAL | options)
  ]
  keys = jax.random.split(jax.random.key(0), 2)
  (draws, splits), (cheap, cheap_splits) = (program(keys) for program in programs)
  np.testing.assert_array_equal(draws, cheap)
  assert (jax.random.key_data(splits) == jax.random.key_data(cheap_splits)).all()


@pytest.mark.parametrize("options", [compiling.options, compiling.start_options])
def test_other_devices_have_their_own_compiler(options):
  assert options("tpu") is None and options("gpu") is None


@pytest.mark.parametrize(
  "platform, env, lines",
  [("cpu", None, True), ("tpu", None, False), ("tpu", "10", True)],
)
def test_programs_for_a_tpu_hold_no_lines_of_python(platform, env, lines, monkeypatch):
  limit = "jax_traceback_in_locations_limit"
  monkeypatch.delenv(limit.upper(), raising=False)
  if env:
    monkeypatch.setenv(limit.upper(), env)
  before = getattr(jax.config, limit)
  jax.config.update(limit, 10)  # JAX's default, which the tests do not keep

  @jax.jit
  def program(x):
    with jax.named_scope("a_name"):
      return x + 1

  try:
    compiling.leave_frames_out(platform)
    text = program.lower(jnp.ones(3)).as_text(debug_info=True)
  finally:
    jax.config.update(limit, before)
  assert ("test_compiling.py" in text) == lines
  assert "a_name" in text
