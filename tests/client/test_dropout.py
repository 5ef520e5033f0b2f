"""A model's random numbers reach local training, and nothing else."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.base import Model
from fedjax_alg.client import minibatches, objective, zeroth_order
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.svrg import svrg
from fedjax_alg.data import layout
from tests import problems
from tests.algorithms import bridge

pytestmark = pytest.mark.program

KEY = jax.random.key(5)
KEEP = 0.5
#: Of a client of 90 examples, two blocks of a full pass.
CLIENT = 1


@jax.jit
def mask(x, key):
  is_kept = jax.random.bernoulli(key, KEEP, x.shape)
  return is_kept.astype(jnp.float32) / KEEP


def with_dropout(model):
  """Entries of x are dropped in training."""
  return model._replace(
    train_apply=lambda params, x, key: model.apply(params, x * mask(x, key))
  )


def number_of(key):
  """A number that tells keys apart; a sum of 90 of them is exact."""
  return jax.random.randint(key, (), 1, 2**17).astype(jnp.float32)


#: Its loss is 0 in evaluation and the number of the key in training, whatever
#: the parameters.
NOISE = Model(
  lambda key: {"w": jnp.ones(3)},
  lambda params, x: 0 * x[:, :1] * params["w"].sum(),
  lambda logits, y: logits[:, 0],
  0.0,
  None,
  train_apply=lambda params, x, key: 0 * x[:, :1] * params["w"].sum() + number_of(key),
)


batch_value_and_grad = jax.jit(objective.batch_value_and_grad, static_argnums=0)


def test_a_mini_batch_with_a_key_is_the_one_with_entries_dropped(problem):
  model = with_dropout(problem.model)
  params = problems.some_params(model)
  x, y = problem.clients[CLIENT]
  rows = np.arange(90) < 60
  for key in (KEY, jax.random.key(6)):
    actual = batch_value_and_grad(model, params, x, y, rows, key)
    problems.assert_close(
      actual,
      batch_value_and_grad(
        problem.model, params, x * np.asarray(mask(x, key)), y, rows
      ),
    )
  problems.assert_equal(
    batch_value_and_grad(model, params, x, y, rows),
    batch_value_and_grad(problem.model, params, x, y, rows),
  )


def test_every_block_of_a_full_pass_has_its_own_key(problem):
  shard = layout.shard_of(problem.data, CLIENT)
  carry, first = jax.random.split(KEY)
  second = jax.random.split(carry)[1]
  expected = (64 * number_of(first) + 26 * number_of(second)) / 90
  params = jax.jit(NOISE.init)(KEY)

  @jax.jit
  def losses(*inputs):
    return (
      objective.full_value_and_grad(NOISE, *inputs)[0],
      objective.full_loss(NOISE, *inputs),
    )

  np.testing.assert_allclose(losses(params, shard, KEY), [expected] * 2, rtol=1e-5)
  assert losses(params, shard) == (0, 0)


@pytest.mark.parametrize("batch_size", [0, 5])
def test_every_mini_batch_has_its_own_key(problem, batch_size):
  """In every step, in every chunk of steps, and of every client's round."""
  shard = layout.shard_of(problem.data, CLIENT)
  steps = minibatches.CHUNK_STEPS + 3 if batch_size else 3
  work = LocalWork(local_steps=steps, batch_size=batch_size)
  params = jax.jit(NOISE.init)(KEY)

  def step(first, second, carry):
    seen, number = carry
    losses = [gradient(params)[0][0] for gradient in (first, second, first)]
    return seen.at[number].set(jnp.stack(losses)), number + 1

  def losses(key):
    (seen, _), _ = minibatches.fold_steps(
      NOISE,
      shard,
      work,
      key,
      step,
      (jnp.zeros((steps, 3)), jnp.int32(0)),
      batches_per_step=2,
    )
    return seen

  seen = np.stack(jax.jit(jax.vmap(losses))(jax.random.split(KEY, 2)))
  np.testing.assert_array_equal(seen[..., 0], seen[..., 2])
  assert len(np.unique(seen[..., :2])) == 2 * 2 * steps


@pytest.mark.parametrize("batch_size", [0, 5])
def test_the_gradients_of_an_svrg_step_meet_the_same_dropout(problem, batch_size):
  """So the difference at one and the same model is nothing at all."""
  model = with_dropout(problem.model)
  start = problems.some_params(model)
  shard = layout.shard_of(problem.data, CLIENT)
  nothing = jax.tree.map(jnp.zeros_like, start)
  work = LocalWork(local_steps=4, batch_size=batch_size)
  other_params = problems.some_params(model, 1)

  @jax.jit
  def play(w):
    return [
      svrg(*inputs, nothing, shard, work, lr, KEY)[0]
      for inputs, lr in (
        ((model, w, w), 1.0),
        ((model, w, other_params), 0.1),
        ((problem.model, w, other_params), 0.1),
      )
    ]

  same, dropped, undropped = play(start)
  problems.assert_close(same, start)
  assert problems.differ(dropped, undropped)  # but there is some


class Net(nn.Module):
  """A perceptron with or without dropout, with the same parameters."""

  rate: float | None = None

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.relu(nn.Dense(6)(x.reshape(x.shape[0], -1)))
    if self.rate is not None:
      x = nn.Dropout(self.rate, deterministic=not train)(x)
    return nn.Dense(3)(x)


class PlainNet(Net):
  """Its __call__ has no mode."""

  def __call__(self, x):  # type: ignore[override]
    return super().__call__(x)


def test_a_rate_of_0_is_no_dropout_to_the_bit(image_problem):

  def play(module):
    model = models.from_flax(module, (6, 6))
    return bridge.play(
      image_problem._replace(model=model),
      "fedavg",
      [0, 1, 3],
      KEY,
      jax.jit(model.init)(KEY),
      local_steps=3,
      batch_size=4,
      client_lr=0.1,
    )[0]

  plain = play(PlainNet())
  problems.assert_equal(play(Net(rate=0.0)), plain)
  assert problems.differ(play(Net(rate=0.5)), plain)


@pytest.mark.parametrize(
  "name, settings",
  [
    ("fedavg", {}),
    ("losac", {}),
    ("per_fedavg", dict(hessian="exact")),
    ("pfedme", {}),
    ("ifca", dict(averaging="gradient")),
    ("fedzo", dict(directions=4)),
    ("baffle", dict(directions=4)),
  ],
)
def test_methods_train_with_dropout(problem, name, settings):
  """The key of the round decides; without dropout it would not."""
  problem = problem._replace(model=with_dropout(problem.model))
  if name not in ("baffle", "ifca"):
    settings = dict(settings, local_steps=2)
  algorithm = bridge.build(problem, name, batch_size=0, **settings)

  def play(key):
    state = algorithm.setup(
      bridge.init(problem, algorithm), layout.everyone(problem.data), KEY
    )
    return algorithm.round(state, bridge.cohort_of(problem, [0, 1, 4]), key)[1].client[
      "loss"
    ]

  loss = problems.quick_jit(play)
  losses = np.stack([loss(key) for key in jax.random.split(KEY, 2)])
  assert np.isfinite(losses).all() and (losses[0] != losses[1]).all()


@pytest.mark.parametrize(
  "name, settings",
  [
    ("fedzo", dict(local_steps=2, batch_size=0)),
    ("pfedzo", dict(local_steps=2, batch_size=4)),
    ("baffle", dict(protocol="shared", batch_size=4)),
    ("baffle", dict(protocol="per_client", scheme="central", batch_size=0)),
  ],
)
def test_the_losses_of_an_estimate_meet_the_same_dropout(problem, name, settings):
  """What differs between them is the step alone, which changes nothing here."""
  problem, start = problem._replace(model=NOISE), jax.jit(NOISE.init)(KEY)
  algorithm = bridge.build(problem, name, directions=4, **settings)
  # 64 examples: their mean is exact too.
  _, state, aux = bridge.one_round(
    problem, algorithm, [8], KEY, bridge.init(problem, algorithm, KEY, start)
  )
  problems.assert_equal(
    problems.row(algorithm.global_params(state), 0), jax.tree.map(np.asarray, start)
  )
  assert (np.asarray(aux.client["loss"]) != 0).all()


def test_an_estimates_dropout_is_not_its_directions(problem):
  x, y = problem.clients[CLIENT]
  rows = jnp.ones(90, bool)
  loss = zeroth_order.batch_loss(NOISE, jax.jit(NOISE.init)(KEY), x, y, rows, KEY)
  np.testing.assert_allclose(loss, number_of(KEY), rtol=1e-5)
  assert zeroth_order.batch_loss(NOISE, jax.jit(NOISE.init)(KEY), x, y, rows) == 0


def test_a_table_of_delayed_gradients_is_refused(problem):
  bridge.assert_refused(
    problem._replace(model=with_dropout(problem.model)),
    "losac",
    "variant=table: .* dropout",
    variant="table",
  )


def test_parts_of_a_mini_batch_have_dropout_of_their_own():
  """With one key, a part would drop the same entries as the one before."""
  parts = minibatches.in_microbatches(minibatches.EXACT, 4)
  rows = jnp.ones((8, 3)), jnp.zeros(8, jnp.int32), jnp.ones(8, bool)
  loss, _ = parts.batch(NOISE, NOISE.init(KEY), *rows, KEY)
  numbers = [number_of(jax.random.fold_in(KEY, part)) for part in (0, 1)]
  np.testing.assert_allclose(loss, np.mean(numbers), rtol=1e-6)
