"""The round of two halves: what is measured where, means, groups, warm-up."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_alg import grouping, trees
from fedjax_alg.algorithms import diversified
from fedjax_alg.central.steps import average, ServerStep
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.rounds.phases import ModelGrouping
from fedjax_alg.rounds.two_halves import compose
from tests import problems

pytestmark = pytest.mark.program

KEY = jax.random.key(5)
RATE = 0.5
ONE_STEP = LocalWork(local_steps=1, batch_size=0)


def up_by_one(tree):
  return jax.tree.map(lambda leaf: leaf + 1.0, tree)


def probe():
  """Adds 1 to its model and sends what it was given; the memory keeps it."""

  def train(received, shard, client_row, key):
    del shard, client_row, key
    return Trained(up_by_one(received.start), jnp.zeros(()), tuple(
        received[:3]))

  return ClientUpdate(
      train, ONE_STEP, init=lambda params, spec: (params,) * 3,
      merge=lambda memory, cohort, uploads, anchors: trees.index(uploads, 0),
      needs_anchor=True)


def server(when, aggregate_lr=1.0):
  return ServerStep(
      optax.with_extra_args_support(optax.sgd(RATE)), when, aggregate_lr)


def play(problem, client, step, ids, rounds=1, **settings):
  """States from the start on, and the last log."""
  algorithm = compose(problem.model, client, step,
                      map_clients=clients.make_map_clients(), **settings)
  cohort = layout.take_cohort(problem.data, jnp.array(ids, jnp.int32))
  states = [algorithm.init(
      problems.some_params(problem.model), problem.spec, KEY)]
  aux = None
  for number in range(rounds):
    state, aux = problems.quick_jit(algorithm.round)(
        states[-1], cohort, jax.random.fold_in(KEY, number))
    states.append(state)
  return states, aux


def gradient(problem, params, ids):
  """Of the cohort's objective, weighted by examples."""
  cohort = layout.take_cohort(problem.data, jnp.array(ids, jnp.int32))
  each = [objective.full_value_and_grad(
      problem.model, params, layout.shard_of(problem.data, i))[1] for i in ids]
  return trees.slot_mean(cohort.weight, jax.tree.map(
      lambda *leaves: jnp.stack(leaves), *each))


@pytest.mark.parametrize("when", ["before", "aggregate", "after"])
def test_the_order_of_the_exchanges(problem, when):
  ids = [1, 4, 7]
  (before, after), aux = play(problem, probe(), server(when), ids)
  w, moved = (trees.index(s.models, 0) for s in (before, after))
  start, reference, anchor = after.memory
  measured = gradient(problem, w, ids)
  problems.assert_close(reference, w)
  problems.assert_close(anchor, measured)
  expected = trees.add_scaled(w, -RATE, measured) if when == "before" else w
  problems.assert_close(start, expected)
  if when == "aggregate":
    expected = jax.tree.map(lambda leaf: leaf + RATE, expected)
  else:
    expected = up_by_one(expected)
  if when == "after":
    expected = trees.add_scaled(
        expected, -RATE, gradient(problem, expected, ids))
  problems.assert_close(moved, expected)
  assert aux.cost.exchanges == 2 + (when == "after")


def test_the_mean_update_is_scaled_beside_an_acceleration(problem):
  (before, after), _ = play(
      problem, sgd_update(problem.model, ONE_STEP, 0.1),
      server("before", aggregate_lr=0.25), [2])
  w = trees.index(before.models, 0)
  shard = layout.shard_of(problem.data, 2)

  def step(params, rate):
    return trees.add_scaled(params, -rate, objective.full_value_and_grad(
        problem.model, params, shard)[1])

  start = step(w, RATE)
  problems.assert_close(trees.index(after.models, 0), step(start, 0.1 * 0.25))


def test_an_empty_group_keeps_its_model(problem):
  """Whatever the grouping makes of it."""

  def regroup(models, trained, anchors, cohort, splitting, scale):
    del anchors, splitting, scale
    slots = cohort.ids.shape[0]
    target = jax.tree.map(
        lambda all, new: jnp.stack([new.mean(0), jnp.full_like(all[1],
                                                               jnp.nan)]),
        models, trained)
    return target, grouping.Groups(
        jnp.zeros(slots, jnp.int32), jnp.zeros((2, 1)),
        jnp.array([slots, 0], jnp.int32))

  states, aux = play(
      problem, sgd_update(problem.model, ONE_STEP, 0.1), average(), [1, 4],
      grouping=ModelGrouping(2, 0, regroup))
  first, second = (trees.index(states[1].models, k) for k in (0, 1))
  problems.assert_close(second, trees.index(states[0].models, 1))
  assert problems.differ(first, second)
  np.testing.assert_array_equal(aux.server["group_size"], [2, 0])


def test_the_warm_up_is_one_model_in_copies(problem):
  """Until round T the copies stay equal, and are what K = 1 trains."""
  ids, client = list(range(8)), sgd_update(problem.model, ONE_STEP, 0.3)

  def run(num_models):
    return play(
        problem, client, server("after"), ids, rounds=3,
        grouping=diversified.by_model(diversified.KModels(
            num_models=num_models, threshold=2)))

  (several, aux), (single, _) = run(3), run(1)
  for state, one in zip(several[:3], single):
    for k in range(3):
      problems.assert_equal(
          trees.index((state.models, state.server), k),
          trees.index((state.models, state.server), 0))
    problems.assert_close(
        trees.index(state.models, 0), trees.index(one.models, 0))
  assert problems.differ(trees.index(several[3].models, 0),
                         trees.index(several[3].models, 1))
  assert aux.cost.down == 2 * 3 * 52  # three models there, three again


def test_halves_that_do_not_fit(problem):
  client = sgd_update(problem.model, ONE_STEP, 0.1)._replace(
      one_model="for a reason")
  groups = diversified.by_model(diversified.KModels(num_models=2))
  with pytest.raises(ValueError, match="one global model .for a reason"):
    play(problem, client, average(), [1], rounds=0, grouping=groups)
  with pytest.raises(ValueError, match="examples, uniform"):
    play(problem, client, average(), [1], rounds=0, weights="equal")
