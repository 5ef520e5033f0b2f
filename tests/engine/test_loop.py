"""The compiled run: seeds, logs, names."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.base import Algorithm, RoundAux, no_setup, round_cost
from fedjax_alg.engine import clients, loop
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation
from tests import problems

pytestmark = pytest.mark.program


class Inner(NamedTuple):
  w: dict
  count: jax.Array


def test_leaves_are_named_as_they_are_reached():
  state = Inner(
    {"params": {"kernel": jnp.zeros(2), "bias": [jnp.zeros(1)]}}, jnp.int32(0)
  )
  assert loop.leaf_names(state) == ["w/bias/0", "w/kernel", "count"]
  assert set(loop.all_finite(state)) == {"w/bias/0", "w/kernel"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(bad):
  finite = loop.all_finite({"a": jnp.array([1.0, bad]), "b": jnp.zeros(3)})
  assert {name: bool(v) for name, v in finite.items()} == {"a": False, "b": True}


@pytest.mark.parametrize("client, number", [(1, 2), (11, 4)])
def test_a_large_table_is_checked_where_a_round_writes_it(
  problem, monkeypatch, client, number
):
  """Else a run goes on with NaN, or its error names another round.

  Client 1 takes part. Entries of others are checked after the last of the five rounds.
  """
  monkeypatch.setattr(loop, "_FEW", 0)

  def round_(state, cohort, key):
    del cohort, key
    table, count = state
    table = table.at[client].add(jnp.where(count == 2, jnp.nan, 1.0))
    return (table, count + 1), RoundAux({}, {}, round_cost(0, 0, 0, 0))

  algorithm = Algorithm(lambda *_: (), no_setup, round_, lambda *_: None, None)
  first_four = Participation(4, lambda data, size, key, number: jnp.arange(size))
  keys = jax.tree.map(lambda leaf: leaf[None], run_keys(0))
  _, log = loop.make_run_rounds(loop.constant_build(algorithm), first_four, 6)(
    (jnp.zeros((1, 12, 3)), jnp.zeros(1, jnp.int32)),
    problem.data,
    keys,
    {},
    jnp.int32(0),
    jnp.int32(5),
  )
  (flags,) = log.finite.values()
  np.testing.assert_array_equal(flags[0], np.arange(6) < number)


def test_numbers_move_by_one_unit_in_the_last_place():
  """A larger move would call results chaotic that are not; none, the reverse."""
  rng = np.random.default_rng(0)
  numbers = (rng.normal(size=1000) * 10.0 ** rng.integers(-30, 30, 1000)).astype("f4")
  numbers[:3] = 0, np.inf, np.finfo("f4").max
  states = {"w": jnp.array(numbers), "count": jnp.arange(3)}
  moved = jax.device_get(loop.perturb_rounding(states, 5))
  np.testing.assert_array_equal(moved["count"], np.arange(3))
  with np.errstate(over="ignore"):
    up, down = (np.nextafter(numbers, np.float32(end)) for end in (np.inf, -np.inf))
  assert moved["w"][0] == 0 and moved["w"][1] == np.inf
  assert moved["w"][2] in (numbers[2], down[2])
  is_up, is_down = moved["w"][3:] == up[3:], moved["w"][3:] == down[3:]
  assert (is_up | is_down).all() and 400 < is_up.sum() < 600


@pytest.fixture(scope="module", name="run")
def fixture_run(problem):
  """(seeds, count, ...) -> states and log of FedAvg."""
  algorithm = registry.build(
    "fedavg",
    problem.model,
    map_clients=clients.ClientMap(),
    local_steps=2,
    batch_size=3,
  )
  build = loop.constant_build(algorithm)
  programs = {
    m: loop.make_run_rounds(build, Participation(4), 6, m) for m in loop.MAP_SEEDS
  }

  @functools.partial(jax.jit, static_argnums=1)
  def begin(keys, map_seeds):
    return loop.initial_states(
      build, problem.model, problem.spec, problem.data, keys, {}, map_seeds
    )

  def run(seeds, count, map_seeds="sequential"):
    keys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(run_keys, seeds))
    states = begin(keys, map_seeds)
    return jax.device_get(
      programs[map_seeds](states, problem.data, keys, {}, np.int32(0), np.int32(count))
    )

  return run


def test_seeds_may_be_vectorised(run):
  problems.assert_close(run((0, 1, 2), 4, "vmap"), run((0, 1, 2), 4))


def test_the_log_has_the_rounds_played_and_zeros(run):
  _, log = run((0, 1, 2), 4)
  loss = np.asarray(log.aux.server["train_loss"])
  assert loss.shape == (3, 6)
  assert (loss[:, :4] > 0).all() and not loss[:, 4:].any()
  np.testing.assert_array_equal(np.asarray(log.aux.cost.down), [[52] * 4 + [0] * 2] * 3)
  assert log.aux.client["loss"].shape == (3, 6, 4)
  for flags in log.finite.values():
    assert flags[:, :4].all() and not flags[:, 4:].any()


def test_no_rounds_change_nothing(run, problem):
  states, log = run((0, 1, 2), 0)
  initial = jax.device_get(jax.jit(problem.model.init)(run_keys(0).model))
  problems.assert_equal(jax.tree.map(lambda leaf: leaf[0, 0], states.models), initial)
  assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(log))


def test_the_state_is_donated(problem):
  algorithm = registry.build(
    "local", problem.model, map_clients=clients.ClientMap(), local_steps=1, batch_size=0
  )
  keys = jax.tree.map(lambda leaf: leaf[None], run_keys(0))
  build = loop.constant_build(algorithm)
  states = jax.jit(
    lambda keys: loop.initial_states(
      build, problem.model, problem.spec, problem.data, keys, {}
    )
  )(keys)
  loop.make_run_rounds(build, Participation(4), 2)(
    states, problem.data, keys, {}, jnp.int32(0), jnp.int32(1)
  )
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(states))
  assert not problem.data.x.is_deleted()


def test_an_unknown_seed_map_is_named():
  with pytest.raises(ValueError, match="map_seeds=pmap: must be one of"):
    loop.over_seeds(lambda: None, "pmap")
