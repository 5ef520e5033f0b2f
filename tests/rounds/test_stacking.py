"""What a round keeps of its participants, and what it only adds up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import base, models, registry, trees
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.rounds import stacking
from fedjax_alg.rounds.two_halves import compose
from tests import problems

pytestmark = pytest.mark.program

KEY = jax.random.key(3)


def test_the_rule_counts_bytes_of_all_participants():
  quarter = stacking.STACKED_BYTES // 16
  shapes = {"w": jax.ShapeDtypeStruct((quarter - 1,), jnp.float32),
            "b": jax.ShapeDtypeStruct((1,), jnp.float32)}
  assert stacking.fits(4, shapes)
  assert not stacking.fits(5, shapes)


def test_the_spread_by_sums_is_that_of_the_vectors():
  rng = np.random.default_rng(0)
  vectors, move = rng.normal(size=(5, 30)), rng.normal(size=30)
  weights = np.array([1.0, 0.0, 4.0, 2.0, 3.0])
  expected = np.sqrt((weights * ((vectors - move) ** 2).sum(1)).sum() / 10)
  mean = weights @ vectors / 10
  squares = np.where(weights > 0, (vectors ** 2).sum(1), np.nan)
  found = stacking.spread(*(
      jnp.asarray(a, jnp.float32) for a in (weights, squares, mean, move)))
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  same = jnp.asarray(mean, jnp.float32)
  assert stacking.spread(  # negative by rounding
      jnp.ones(1), jnp.vdot(same, same)[None] * (1 - 1e-6), same, same) == 0


@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize("aggregator", ["mean", "median"])
def test_a_round_of_sums_is_the_round(problem, monkeypatch, weights,
                                      aggregator):
  """The model too is that round's; the median still needs every update."""
  algorithm = compose(
      problem.model, sgd_update(
          problem.model, LocalWork(local_steps=3, batch_size=4), 0.3),
      steps.average(0.7), weights=weights, aggregator=aggregator,
      map_clients=clients.make_map_clients())
  params = problems.some_params(problem.model)
  state = algorithm.init(params, problem.spec, KEY)
  cohort = layout.take_cohort(
      problem.data, jnp.array([3, 12, 1, 0, 9, 5, 12], jnp.int32))
  kept, aux = problems.quick_jit(algorithm.round)(state, cohort, KEY)
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  summed, other = problems.quick_jit(
      lambda *args: algorithm.round(*args))(state, cohort, KEY)
  problems.assert_close(summed, kept)
  problems.assert_close(other.client, aux.client)
  problems.assert_equal(other.cost, aux.cost)
  name = "discrepancy" if aggregator == "median" else "discrepancy_rms"
  assert set(aux.server) == {"train_loss", "discrepancy"}
  assert set(other.server) == {"train_loss", name}
  if aggregator == "mean":
    w = cohort.weight if weights == "examples" else cohort.present
    moved = trees.subtract(
        trees.index(kept.models, 0), trees.index(state.models, 0))
    squared, total = 0.0, float(w.sum())
    for slot in np.flatnonzero(cohort.present):
      alone = layout.take_cohort(problem.data, cohort.ids[slot][None])
      after, _ = problems.quick_jit(algorithm.round)(state, alone, KEY)
      update = trees.scale(1 / 0.7, trees.subtract(
          trees.index(after.models, 0), trees.index(state.models, 0)))
      squared += float(w[slot]) / total * float(
          trees.squared_norm(trees.subtract(update, moved)))
    np.testing.assert_allclose(
        other.server["discrepancy_rms"], squared ** 0.5, rtol=1e-3)


@pytest.mark.parametrize("name", ["fedavg", "fsvrg"])
def test_the_memory_of_a_round_does_not_grow_with_the_cohort(
    problem, monkeypatch, name):
  """A vector of each of 56 more participants would be 56 sizes more."""
  model = models.make_model("mlp", problem.spec.input_shape, 4, hidden=(512,))
  size = base.BYTES_PER_FLOAT * base.num_params(model.init(KEY))

  def temporaries(slots):
    algorithm = registry.build(
        name, model, map_clients=clients.make_map_clients(), local_steps=2)
    state = jax.eval_shape(
        lambda: algorithm.init(model.init(KEY), problem.spec, KEY))
    cohort = layout.take_cohort(problem.data, jnp.zeros(slots, jnp.int32))
    program = problems.quick_jit(algorithm.round).lower(state, cohort, KEY)
    return program.compile().memory_analysis().temp_size_in_bytes

  assert temporaries(64) - temporaries(8) > 50 * size
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  assert temporaries(64) - temporaries(8) < size
