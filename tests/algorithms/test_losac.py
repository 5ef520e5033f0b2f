"""LoSAC against the oracle, and what its estimate always is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.algorithms import losac
from fedjax_alg.algorithms.losac import ClientGradients, GradientTable
from fedjax_alg.base import Shard
from fedjax_alg.engine.round import sample_cohort
from tests import problems
from tests.algorithms import bridge
from tests.reference import baselines
from tests.reference import diversified as oracle

#: Sizes 3 to 90: with batches of 6 some clients hold fewer than 5, some more.
WORK = dict(local_steps=5, batch_size=6, client_lr=0.2)
TABLE = dict(variant="table", **WORK)

_fixed_batch = jax.jit(losac.fixed_batch, static_argnums=3)
_picks = jax.jit(losac.picks, static_argnums=1)


def partition_of(problem, batch_size):
  """client id -> rows of each of its fixed batches."""
  result = {}
  for i, (_, y) in enumerate(problem.clients):
    shard = Shard(problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(len(y)))
    result[i] = []
    for j in range(-(-len(y) // batch_size)):
      rows, mask = _fixed_batch(shard, jnp.int32(i), jnp.int32(j), batch_size)
      result[i].append(np.asarray(rows)[np.asarray(mask)])
  return result


def picks_of(partition, ids, key, steps):
  """client id -> the batch of each step; fewer batches come round again."""
  result = {}
  for i in ids:
    count = len(partition[i])
    order = np.asarray(_picks(jax.random.fold_in(key, i), steps, jnp.int32(count)))
    result[i] = [int(order[k % count]) for k in range(steps)]
  return result


def check_rounds(problem, h, rounds):
  """Rounds of either variant, with newcomers or without, are the oracle's."""
  partition = partition_of(problem, h.batch_size or 1)
  by_table, full = h.variant == GradientTable(), h.variant == ClientGradients("full")
  w, table = bridge.start(problem), {}
  for r in rounds:
    for i in range(len(table), r.num_joined):  # who has just come
      table[i] = (
        [np.zeros_like(w) for _ in partition[i]]
        if by_table
        else full * oracle.gradient(w, *problem.clients[i], l2=problems.L2)
      )
    present, variant = problem.clients[: r.num_joined], "T" if by_table else "C"
    picks = picks_of(partition, r.ids, r.key, h.local_steps)
    estimate = baselines.losac_estimate(table, present, variant, partition)
    reference = baselines.losac_round(
      w,
      estimate,
      table,
      present,
      r.ids,
      r.batches,
      h.client_lr,
      h.server_lr,
      problems.L2,
      variant,
      partition,
      picks,
    )
    bridge.assert_step_close(w, bridge.model_of(r.state), reference.model, 3e-4)
    memory = r.state.memory
    for mine, theirs in (
      (memory.estimate, reference.G),
      (
        memory.estimate,
        baselines.losac_estimate(reference.table, present, variant, partition),
      ),
    ):
      bridge.assert_vectors_close(bridge.to_oracle(mine), theirs, 2e-5)
    for i, expected in reference.table.items():
      first, rows = (
        (int(memory.first_row[i]), expected) if by_table else (i, [expected])
      )
      for j, row in enumerate(rows):
        bridge.assert_vectors_close(bridge.entry(memory.table, first + j), row, 2e-5)
    if by_table:  # exactly what the steps read, short batches as they are
      assert int(r.aux.cost.example_gradients) == sum(
        len(partition[i][j]) for i in r.ids for j in picks[i]
      )
    w, table = reference.model, reference.table


@pytest.mark.parametrize(
  "settings", [dict(variant="client", server_lr=0.8, **WORK), TABLE]
)
def test_rounds_are_the_oracles(problem, settings):
  """Also with slots that nobody fills; the estimate is the table's mean."""
  check_rounds(problem, *bridge.rounds(problem, "losac", slots=8, **settings))


@pytest.mark.parametrize(
  "settings",
  [
    dict(
      variant="client:full",
      local_steps=0,
      local_epochs=2,
      batch_size=10,
      client_lr=0.1,
    ),
    dict(TABLE, server_lr=0.6, batch_size=20),
  ],
)
def test_with_newcomers_the_estimate_is_of_who_is_there(problem, settings):
  check_rounds(problem, *bridge.with_newcomers(problem, "losac", **settings))


def test_gradients_of_the_table_are_of_parts_of_a_batch(problem):
  """`microbatch_size` was ignored: a batch took the memory of all its rows."""
  seen = set()

  def apply(params, x):
    seen.add(x.shape[0])
    return problem.model.apply(params, x)

  spied = problem._replace(model=problem.model._replace(apply=apply))
  algorithm = bridge.build(spied, "losac", **TABLE, microbatch_size=4)
  jax.eval_shape(
    lambda state: algorithm.round(
      state, sample_cohort(problem.data, 8, jax.random.key(0)), jax.random.key(1)
    ),
    bridge.init(problem, algorithm, jax.random.key(2)),
  )
  assert seen == {4}


def test_fixed_batches_are_a_partition(problem):
  for i, batches in partition_of(problem, 6).items():
    size = len(problem.clients[i][1])
    assert sorted(np.concatenate(batches).tolist()) == list(range(size))
    assert [len(rows) for rows in batches[:-1]] == [6] * (len(batches) - 1)


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_picks_visit_as_many_batches_as_there_are(count):
  visited = np.asarray(_picks(bridge.KEYS[0], 5, jnp.int32(count)))
  assert visited.shape == (5,)
  assert len(set(visited.tolist())) == min(count, 5)
  assert (0 <= visited).all() and (visited < count).all()


@pytest.mark.parametrize("flag", ["local_steps", "batch_size"])
@pytest.mark.parametrize(
  "name, settings",
  [("losac", dict(variant="table")), ("composed", dict(client_update="losac:table"))],
)
def test_a_table_of_no_fixed_size_is_refused(problem, flag, name, settings):
  bridge.assert_refused(
    problem,
    name,
    f"{flag}=0: variant=table needs at least 1$",
    **{**WORK, flag: 0},
    **settings,
  )
