"""Counts of features over all clients, and A_r."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.central import feature_statistics as features
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle


@jax.jit
def gather(data):
  return features.gather_statistics(layout.everyone(data).shards, clients.ClientMap())


@pytest.fixture(scope="module", name="statistics")
def fixture_statistics(problem):
  return gather(problem.data)


scale = jax.jit(features.scale_aggregate, static_argnums=(0, 1))


def test_statistics_are_those_of_all_clients(problem, statistics):
  counts, total = oracle.total_counts(problem.clients)
  np.testing.assert_allclose(statistics.share, counts[:-1] / total, rtol=1e-6)
  holders = sum((x != 0).any(0).astype(int) for x, _ in problem.clients)
  np.testing.assert_array_equal(statistics.holders, holders)
  assert holders[10] == 1 and holders[11] == 0
  assert statistics.clients == 12


def test_a_client_of_one_example_counts_and_one_of_none_does_not(problem):
  sizes = np.array(problem.data.size)
  sizes[:2] = 1, 0
  statistics = gather(problem.data._replace(size=jnp.asarray(sizes)))
  rows = [(x[:n], y[:n]) for (x, y), n in zip(problem.clients, sizes) if n]
  counts, total = oracle.total_counts(rows)
  assert statistics.clients == 11
  np.testing.assert_allclose(statistics.share, counts[:-1] / total, rtol=1e-6)


#: Rounds run before each client comes.
JOINS = np.repeat([0, 2, 5], [4, 5, 3]).astype(np.int32)


@pytest.mark.program
@pytest.mark.parametrize("name", ["fsvrg", "ga_fsvrg"])  # of either round
def test_statistics_are_those_of_who_is_there(problem, name):
  """With newcomers, before every round: also A = C / omega is the oracle's."""
  data = problem.data._replace(joins=jnp.asarray(JOINS))
  algorithm = bridge.build(problem, name)
  key = jax.random.key(0)
  state = problems.quick_jit(
    lambda params: algorithm.setup(
      bridge.init(problem, algorithm, key, params), layout.present(data, 0), key
    )
  )(problems.some_params(problem.model))
  round_ = problems.quick_jit(algorithm.round)
  for number in range(6):
    cohort = bridge.draw_cohort(data, 4, jax.random.key(number), number)
    state, _ = round_(state, cohort, key)
    present = problem.clients[: (JOINS <= number).sum()]
    counts, total = oracle.total_counts(present)
    np.testing.assert_allclose(state.memory.share, counts[:-1] / total, rtol=1e-6)
    update = problems.some_params(problem.model)
    for mode in ("all", "paper"):
      scaling = oracle.aggregate_scaling(present, range(3), mode)
      mine = bridge.to_oracle(
        scale(problem.model, mode, state.memory, np.float32(3), update)
      )
      np.testing.assert_allclose(
        mine, scaling[:, None] * bridge.to_oracle(update), rtol=1e-5
      )


def test_before_any_report_every_feature_is_everywhere(problem):
  none = features.no_statistics(problem.spec)
  np.testing.assert_array_equal(none.share, np.ones(12))
  np.testing.assert_array_equal(none.holders, np.full(12, 12))


def test_a_model_without_features_takes_a_scalar(image_problem, statistics):
  """|S| / C; with other modes it is not scaled (algorithms/test_fsvrg.py)."""
  update = problems.some_params(image_problem.model)
  scaled = scale(image_problem.model, "paper", statistics, np.float32(3), update)
  problems.assert_close(
    jax.tree.map(np.asarray, scaled),
    jax.tree.map(lambda v: np.float32(0.25) * np.asarray(v), update),
  )
