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
from fedjax_alg.engine import clients, loop, sharding
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation
from fedjax_alg.exchange import Exchange, aggregation, stacking
from fedjax_alg.exchange.weights import ExampleWeights, UniformWeights
from fedjax_alg.rounds.two_halves import compose
from tests import problems
from tests.algorithms import bridge

pytestmark = pytest.mark.program

KEY = jax.random.key(3)


def test_the_rule_counts_bytes_of_all_participants():
  quarter = stacking.STACKED_BYTES // 16
  shapes = {
    "w": jax.ShapeDtypeStruct((quarter - 1,), jnp.float32),
    "b": jax.ShapeDtypeStruct((1,), jnp.float32),
  }
  assert stacking.fits(4, shapes)
  assert not stacking.fits(5, shapes)


@pytest.mark.parametrize("whole_divisor", [False, True])
def test_the_spread_by_sums_is_that_of_the_vectors(whole_divisor):
  rng = np.random.default_rng(0)
  vectors, moves = rng.normal(size=(6, 30)), rng.normal(size=(3, 30))
  weights = np.array([1.0, 0.0, 4.0, 2.0, 3.0, 5.0])
  groups = np.array([0, 1, 1, 0, 1, 0])  # nobody is in group 2
  gaps = ((vectors - moves[groups]) ** 2).sum(1)
  expected = np.sqrt((weights * gaps).sum() / weights.sum())
  of_group = np.array([weights[groups == k].sum() for k in range(3)])
  divisors = np.full(3, weights.sum()) if whole_divisor else of_group
  means = np.stack(
    [(weights * (groups == k)) @ vectors / max(divisors[k], 1e-30) for k in range(3)]
  )
  squares = np.where(weights > 0, (vectors**2).sum(1), np.nan)
  actual = jax.jit(stacking.group_spread)(
    *map(np.float32, (weights, squares, moves, means, divisors, of_group))
  )
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_spread_that_rounding_makes_negative_is_zero():
  unit, same = np.ones(1, np.float32), np.full((1, 4), 0.1, np.float32)
  square = np.float32([np.vdot(same, same) * (1 - 1e-6)])
  inputs = unit, square, same, same, unit, unit
  assert float(jax.jit(stacking.group_spread)(*inputs)) == 0


def both(algorithm, monkeypatch, *inputs):
  """(state, report) of a round that keeps all, and of one that adds up."""
  stacked = problems.quick_jit(algorithm.round)(*inputs)
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  summed = problems.quick_jit(lambda *args: algorithm.round(*args))(*inputs)
  problems.assert_close(summed[0], stacked[0])
  problems.assert_close(summed[1].client, stacked[1].client)
  problems.assert_equal(summed[1].cost, stacked[1].cost)
  return stacked, summed


COHORT = [3, 12, 1, 0, 9, 5, 12]


@pytest.mark.parametrize(
  "weights, kind",
  [(ExampleWeights, aggregation.WeightedMean), (UniformWeights, aggregation.Median)],
)
def test_a_round_of_sums_is_the_round(problem, monkeypatch, weights, kind):
  """The model too is that round's; the median still needs every update."""
  algorithm = compose(
    problem.model,
    sgd_update(problem.model, LocalWork(local_steps=3, batch_size=4), 0.3),
    steps.average(0.7),
    exchange=Exchange(weights().build(), kind().build()),
    map_clients=clients.ClientMap(),
  )
  state = bridge.init(problem, algorithm, KEY)
  cohort = bridge.cohort_of(problem, COHORT)
  (end, aux), (_, summed_aux) = both(algorithm, monkeypatch, state, cohort, KEY)
  name = "discrepancy" if kind is aggregation.Median else "discrepancy_rms"
  assert set(aux.server) == {"train_loss", "discrepancy"}
  assert set(summed_aux.server) == {"train_loss", name}
  if kind is aggregation.WeightedMean:
    w = np.asarray(cohort.weight)
    end, state = jax.device_get((end, state))
    change = jax.tree.map(np.subtract, end.models, state.models)
    squared, total = 0.0, float(w.sum())
    round_ = problems.quick_jit(algorithm.round)
    for slot in np.flatnonzero(cohort.present):
      solo_cohort = np.where(np.arange(7) == slot, COHORT, 12)
      after, _ = round_(state, bridge.cohort_of(problem, solo_cohort), KEY)
      gaps = jax.tree.map(
        lambda new, old, mean: (np.asarray(new) - old) / 0.7 - mean,
        after.models,
        state.models,
        change,
      )
      squares = sum((gap**2).sum() for gap in jax.tree.leaves(gaps))
      squared += float(w[slot]) / total * squares
    np.testing.assert_allclose(
      summed_aux.server["discrepancy_rms"], squared**0.5, rtol=1e-3
    )


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_forged_updates_are_kept(problem, monkeypatch, name):
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  cohort = bridge.cohort_of(problem, range(4))
  for settings, keeps_updates in (
    (dict(attack="label_flip"), False),
    (dict(attack="sign_flip"), True),
    (dict(aggregator="norm_bound"), True),
  ):
    algorithm = bridge.build(problem, name, local_steps=1, **settings)
    _, aux = jax.eval_shape(
      lambda params, algorithm=algorithm: algorithm.round(
        bridge.init(problem, algorithm, params=params), cohort, KEY
      ),
      problems.some_params(problem.model),
    )
    assert ("discrepancy" in aux.server) == keeps_updates


@pytest.mark.parametrize("name", ["fsvrg", "scaffold"])
def test_the_memory_of_a_round_does_not_grow_with_the_cohort(
  problem, monkeypatch, name
):
  """Kept, what 56 more of them send would be 56 sizes, as SCAFFOLD's are seen to be.

  SCAFFOLD's table, of 12 sizes, is not copied either.
  """
  model = models.MLP((512,)).build(problem.spec.input_shape, 4)
  size = base.BYTES_PER_FLOAT * base.num_params(jax.eval_shape(model.init, KEY))

  def temporaries(slots):
    algorithm = registry.build(
      name, model, map_clients=clients.ClientMap(), local_steps=2
    )
    state = jax.eval_shape(lambda: algorithm.init(model.init(KEY), problem.spec, KEY))
    cohort = jax.eval_shape(
      layout.take_cohort, problem.data, jax.ShapeDtypeStruct((slots,), jnp.int32)
    )
    program = problems.quick_jit(algorithm.round, donate_argnums=0).lower(
      state, cohort, KEY
    )
    return program.compile().memory_analysis().temp_size_in_bytes

  stacked = temporaries(64) if name == "scaffold" else None
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  summed = temporaries(64)
  assert summed - temporaries(8) < size
  if stacked is not None:
    assert stacked - summed > 50 * size and summed < 12 * size


@pytest.mark.parametrize(
  "name, several, settings",
  [
    ("scaffold", True, {}),
    ("losac", False, {"variant": "table"}),
    pytest.param("ditto", True, {}, marks=pytest.mark.slow),
    pytest.param("losac", False, {}, marks=pytest.mark.slow),
    pytest.param("feddyn", False, {}, marks=pytest.mark.slow),
  ],
)
def test_what_clients_keep_and_send_besides_is_the_same_in_sums(
  problem, mesh, monkeypatch, name, several, settings
):
  algorithm = registry.build(
    name,
    problem.model,
    local_steps=2,
    **settings,
    map_clients=clients.ClientMap(mesh=mesh if several else None),
  )
  cohort = bridge.cohort_of(problem, COHORT)

  @problems.quick_jit
  def begin(params, everyone):
    state = algorithm.setup(bridge.init(problem, algorithm, KEY, params), everyone, KEY)
    return state._replace(
      memory=jax.tree.map(
        lambda leaf: leaf + 0.1 if leaf.dtype == jnp.float32 else leaf, state.memory
      )
    )

  state = begin(
    problems.some_params(problem.model), bridge.cohort_of(problem, range(12))
  )
  _, (_, summed_aux) = both(algorithm, monkeypatch, state, cohort, KEY)
  assert "discrepancy_rms" in summed_aux.server


def test_sums_have_the_same_bits_in_one_go_in_two_and_in_company(
  problem, mesh, monkeypatch
):
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  build = loop.constant_build(
    registry.build(
      "scaffold", problem.model, local_steps=2, map_clients=clients.ClientMap(mesh=mesh)
    )
  )

  run = loop.make_run_rounds(build, Participation(7), 3, mesh=mesh)

  def play(seeds, *counts):
    keys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(run_keys, seeds))
    states = problems.quick_jit(
      lambda data, keys: loop.initial_states(
        build, problem.model, problem.spec, data, keys, {}
      )
    )(problem.data, keys)
    data, keys, states = sharding.replicate((problem.data, keys, states), mesh)
    start = 0
    for count in counts:
      states, _ = run(states, data, keys, {}, jnp.int32(start), jnp.int32(count))
      start += count
    return jax.device_get(states)

  expected = play([5], 3)
  problems.assert_equal(play([5], 1, 2), expected)
  problems.assert_equal(trees.index(play([4, 5], 3), 1), trees.index(expected, 0))


@pytest.mark.parametrize(
  "name, settings",
  [("ifca", {"num_groups": 2}), ("ifca", {"num_groups": 3, "averaging": "gradient"})],
)
def test_a_clustered_round_of_sums_is_the_round(problem, monkeypatch, name, settings):
  algorithm = bridge.build(
    problem, name, local_steps=2, client_weights="uniform", **settings
  )
  state = bridge.init(problem, algorithm, KEY)
  state = state._replace(
    models=jax.tree.map(
      lambda leaf: (
        np.asarray(leaf)
        * np.linspace(1, 2, len(leaf), dtype=np.float32).reshape(
          (-1,) + (1,) * (leaf.ndim - 1)
        )
      ),
      state.models,
    )
  )
  cohort = bridge.cohort_of(problem, COHORT)
  (_, aux), (_, summed_aux) = both(algorithm, monkeypatch, state, cohort, KEY)
  assert len(set(np.asarray(aux.client["group"])[np.asarray(cohort.present)])) > 1
  rms, mean = summed_aux.server.pop("discrepancy_rms"), aux.server.pop("discrepancy")
  assert mean < rms < 2 * mean  # the oracle of the formula is above
  problems.assert_close(summed_aux.server, aux.server)
