"""Layers with state: which rows they see, who moves, what is refused."""

import functools

import chex
from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.client import objective
from fedjax_alg.errors import OptionError
from fedjax_alg.models import augment, precision, roles, start
from fedjax_alg.records import parameters
from tests import problems


class Block(nn.Module):
  @nn.compact
  def __call__(self, x, train):
    # Statistics over examples and rows.
    return nn.relu(nn.BatchNorm(not train, momentum=0.5)(nn.Dense(3)(x)))


class Linen(nn.Module):
  """A module of its own, then another norm."""

  @nn.compact
  def __call__(self, x, train):
    x = Block(name="body")(x, train).mean(1)
    # The argument is given with the call, as some modules have it.
    x = nn.BatchNorm(momentum=0.5)(nn.Dense(4)(x), use_running_average=not train)
    return nn.Dense(2)(x)


class Nnx(nnx.Module):
  """A list of dense layers with norms between them."""

  def __init__(self, rngs):
    self.dense = nnx.List([nnx.Linear(16, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])
    self.norms = nnx.List([nnx.BatchNorm(4, momentum=0.5, rngs=rngs)])

  def __call__(self, x):
    return self.dense[1](self.norms[0](self.dense[0](x.reshape(-1, 16))))


X = np.random.default_rng(0).normal(size=(7, 4, 4)).astype(np.float32)
Y = np.arange(7, dtype=np.int32) % 2
COUNTS = jnp.asarray(np.arange(7) < 5)


def first_state(model, key):
  """The statistics before the first step."""
  return jax.jit(lambda key: model.roles.start(key).state)(key)


@pytest.mark.program
@pytest.mark.parametrize("module", [Linen(), Nnx])
def test_rows_that_fill_a_batch_up_leave_no_trace(module):
  model = roles.split(models.as_model(module, (4, 4), 2), ())
  params, key = jax.jit(model.init)(jax.random.key(1)), jax.random.key(2)
  state = first_state(model, key)
  moving = model.roles.together(model, with_state=True)

  @problems.quick_jit
  def of(x, y, mask):
    logits, new = moving.observe(((params, None), state), x, mask, key)
    loss, (grad, after) = objective.batch_value_and_moves(
      moving, ((params, None), state), x, y, mask, key
    )
    return logits[:5], (new, after), loss, grad

  unpadded = of(X[:5], Y[:5], COUNTS[:5])
  padded = X.copy()
  padded[5:] = np.nan
  logits, new, loss, _ = of(padded, Y, COUNTS)
  problems.assert_close((logits, new, loss), unpadded[:3], rtol=1e-5, atol=1e-6)
  problems.assert_close(*new, rtol=1e-6, atol=1e-6)
  for a, b in zip(*map(jax.tree.leaves, (new[0], state)), strict=True):
    assert (np.asarray(a) != np.asarray(b)).all()
  padded[5:] = 1e3
  filled = of(padded, Y, COUNTS)
  problems.assert_close(filled, unpadded, rtol=1e-4, atol=1e-5)


@pytest.mark.program
@pytest.mark.parametrize("module", [Linen(), Nnx])
def test_evaluation_has_running_statistics_or_those_of_the_rows(module):
  model = models.as_model(module, (4, 4), 2)
  params, key = jax.jit(model.init)(jax.random.key(1)), jax.random.key(2)
  of_rows = roles.split(model, (), model_state="batch")
  assert not of_rows.roles.has_state

  @problems.quick_jit
  def all_of(params):
    return (
      model.apply(params, X),
      objective.logits(model, params, X, mask=COUNTS),
      model.train_apply(params, X, key),
      objective.logits(of_rows, params, X, mask=COUNTS)[:5],
      of_rows.apply(params, X[:5]),
    )

  running, evaluated, trained, masked, unpadded = all_of(params)
  problems.assert_equal(evaluated, running)
  assert problems.differ(trained, running)
  problems.assert_close(masked, unpadded, rtol=1e-5, atol=1e-6)
  assert problems.differ(unpadded, running[:5])


class Scaled(nn.BatchNorm):
  """Has an argument of its own, and another name for the input."""

  @nn.compact
  def __call__(  # type: ignore[override]
    self, inputs, by=1.0, mask=None, use_running_average=None
  ):
    return by * super().__call__(inputs, use_running_average, mask=mask)


class NnxScaled(nnx.BatchNorm):
  """As ``Scaled``."""

  def __call__(  # type: ignore[override]
    self, inputs, by=1.0, mask=None, use_running_average=None
  ):
    return by * super().__call__(inputs, use_running_average, mask=mask)


class LinenCalls(nn.Module):
  """Calls its layers in all ways."""

  @nn.compact
  def __call__(self, x, train):
    x = Scaled(name="first")(x.reshape(-1, 16), 2.0, use_running_average=not train)
    x = Scaled(name="second")(inputs=x, by=3.0, use_running_average=not train)
    return nn.BatchNorm(name="third")(x, not train)[:, :2]


class NnxCalls(nnx.Module):
  """As ``LinenCalls``."""

  def __init__(self, rngs):
    self.norms = nnx.List([kind(16, rngs=rngs) for kind in (NnxScaled, NnxScaled)])
    self.last = nnx.BatchNorm(16, rngs=rngs)

  def __call__(self, x):
    x = self.norms[1](inputs=self.norms[0](x.reshape(-1, 16), 2.0), by=3.0)
    return self.last(x, None)[:, :2]


@pytest.mark.program
@pytest.mark.parametrize("module", [LinenCalls(), NnxCalls])
def test_arguments_of_a_layer_reach_it(module):
  """Positional ones but the first were dropped, and the input had to be x."""
  model = models.as_model(module, (4, 4), 2)

  @problems.quick_jit
  def outputs(key):
    params = model.init(key)
    return model.apply(params, X), model.train_apply(params, X, key)

  running, of_batch = outputs(jax.random.key(0))
  # The first statistics are 0 and 1.
  np.testing.assert_allclose(running, 6 * X.reshape(7, 16)[:, :2], rtol=1e-4)
  np.testing.assert_allclose(np.mean(of_batch, 0), 0, atol=1e-5)


class Dropped(nn.Module):
  """With dropout behind the norm."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.BatchNorm(not train)(x.reshape(x.shape[0], -1))
    return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(x))


@pytest.mark.program
def test_dropout_is_that_of_the_step_and_none_in_evaluation():
  """With the statistics of the batch it is evaluation all the same."""
  model = models.as_model(Dropped(), (4, 4), 2)
  state, params = (
    first_state(model, jax.random.key(0)),
    jax.jit(model.init)(jax.random.key(1)),
  )
  moving = model.roles.together(model, with_state=True)
  observe = jax.jit(lambda key: moving.observe(((params, None), state), X, None, key))
  (first, a), (same, _), (different, b) = (
    observe(jax.random.key(k)) for k in (2, 2, 3)
  )
  problems.assert_equal(first, same)
  assert problems.differ(first, different)
  problems.assert_equal(a, b)
  of_rows = roles.split(model, (), model_state="batch")
  problems.assert_equal(
    *jax.jit(lambda: (of_rows.apply(params, X), objective.logits(of_rows, params, X)))()
  )


@pytest.mark.program
def test_statistics_of_frozen_layers_are_frozen():
  """Nobody keeps them, and in training no row depends on the others."""
  model = models.as_model(Linen(), (4, 4), 2)
  body_frozen = roles.split(model, ["frozen:body"])
  assert body_frozen.roles.floats() == {
    "shared": 34,
    "personal": 0,
    "frozen": 21 + 6,
    "state": 8,
  }
  assert body_frozen.roles.has_state
  both = roles.split(model, ["frozen:body", "frozen:BatchNorm_0"])
  assert not both.roles.has_state
  params, key = jax.jit(both.init)(jax.random.key(1)), jax.random.key(2)
  problems.assert_close(
    *jax.jit(
      lambda: (
        objective.logits(both, params, X[:3], key),
        objective.logits(both, params, X, key)[:3],
      )
    )(),
    rtol=1e-5,
    atol=1e-6,
  )


class Counting(nn.Module):
  """Keeps state, and cannot leave rows out."""

  @nn.compact
  def __call__(self, x):
    mean = self.variable("averages", "mean", jnp.zeros, (16,))
    x = x.reshape(-1, 16)
    if self.is_mutable_collection("averages"):
      mean.value = x.mean(0)
    return nn.Dense(2)(x - mean.value[None])


class Transposed(nn.Module):
  @nn.compact
  def __call__(self, x, train):
    x = nn.BatchNorm(not train, axis=0)(x.reshape(-1, 16).T)
    return nn.Dense(2)(x.T)


@pytest.mark.parametrize(
  "module, message",
  [
    (Counting(), "keeps state in Counting itself, whose __call__ must take"),
    (Transposed(), "its first axis must be theirs"),
  ],
)
def test_what_cannot_leave_rows_out_is_one_line(module, message):
  with pytest.raises(OptionError, match=message):
    model = models.as_model(module, (4, 4), 2)
    objective.logits(
      model, jax.jit(model.init)(jax.random.key(0)), X, jax.random.key(1), COUNTS
    )


@pytest.mark.program
def test_options_of_training_reach_the_layers_with_state():
  """bfloat16 and augmentation change what they see, not what they keep."""
  model = models.as_model(Linen(), (4, 4), 2)
  key, change = jax.random.key(2), jax.random.key(3)
  modified = roles.split(
    augment.with_augmentations(precision.in_bfloat16(model), ["flip"], (4, 4)), ()
  )
  plain = roles.split(model, ())
  params, state = jax.jit(plain.init)(key), first_state(plain, key)
  # A number that bfloat16 does not have.
  state = jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(1 / 512), state)

  @functools.partial(problems.quick_jit, static_argnums=0)
  def observe(model, x, key):
    model = {"modified": modified, "plain": plain}[model]
    together = model.roles.together(model, with_state=True)
    return together.observe(((params, None), state), x, COUNTS, key)

  seen = augment.AUGMENTATIONS["flip"](
    X, jax.random.split(jax.random.fold_in(change, 0xA06), 1)[0]
  )
  for x, key in ((X, None), (seen, change)):
    (logits, new), (exact, expected) = (
      observe(which, inputs, key) for which, inputs in (("modified", X), ("plain", x))
    )
    np.testing.assert_allclose(logits, exact, atol=0.05)
    assert logits.dtype == jnp.float32 and problems.differ(logits, exact)
    for leaf, exact in zip(*map(jax.tree.leaves, (new, expected))):
      assert leaf.dtype == jnp.float32
      np.testing.assert_allclose(leaf, exact, atol=0.02)


@pytest.mark.program
def test_a_model_with_state_starts_from_what_is_given():
  """The statistics, too, where they are given."""
  model = models.as_model(Linen(), (4, 4), 2)
  values = jax.tree.map(
    lambda leaf: np.asarray(leaf) + np.float32(1),
    jax.jit(model.roles.whole.init)(jax.random.key(5)),
  )
  arrays = parameters.flatten(values)
  for left_out in ("", "batch_stats"):
    matched = start.match_arrays(
      model,
      {
        name: array
        for name, array in arrays.items()
        if not left_out or not name.startswith(left_out)
      },
      (),
      "`init`",
    )
    restored = roles.split(start.bind_leaves(model, matched), ())
    statistics, initial = (
      first_state(of, jax.random.key(1))["batch_stats"] for of in (restored, model)
    )
    chex.assert_trees_all_equal(
      jax.jit(restored.init)(jax.random.key(1))["params"], values["params"]
    )
    chex.assert_trees_all_equal(
      statistics, initial if left_out else values["batch_stats"]
    )
