"""Local methods in groups: each is what it is in a federation of its members."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry, trees
from fedjax_alg.algorithms import conjugate
from fedjax_alg.algorithms.halves import CLIENT_UPDATES, SERVERS
from fedjax_alg.base import num_params
from fedjax_alg.client import grouped
from fedjax_alg.engine import clients
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.part import parts_of
from fedjax_alg.rounds.clustered import Rule, ServerMemory, compose_clustered
from fedjax_alg.rounds.two_halves import compose
from tests import problems
from tests.algorithms import bridge

pytestmark = pytest.mark.program

C, K = 12, 3
#: All take part in round 1, so that nobody joins a group later.
COHORTS = [list(range(C)), [0, 1, 4, 7, 9], [2, 5, 8]]
KEYS = [jax.random.key(seed) for seed in range(3)]


#: Its search may go down to steps of one rounding, which no two programs share.
LONGER = (conjugate.LineSearchServer,)


def by_parity(**options):
  """Even ids in group 0, odd ones in group 1, padding slots in group 2."""
  return Rule(
    K,
    lambda params, spec, key: (trees.repeat(params, K), ()),
    lambda models, shared, client_row, member, shard, key: (
      jnp.where(client_row < C, client_row % 2, 2),
      (),
    ),
    client_rows=lambda memory, ids: ids,
    **options,
  )


def padded(problem, ids):
  return bridge.cohort_of(problem, [*ids, *[C] * (C - len(ids))])


def halves_of(problem, text, server):
  hparams, _ = registry.get("composed").parts(
    client_update=text, server=server, local_steps=3, batch_size=4
  )
  hparams = hparams.resolved()
  client = hparams.client_update.build(problem.model, hparams, None)
  weights = hparams.client_weights.build()
  return client, hparams.server.build(hparams.server_rate), weights


def rounds_of(problem, algorithm, cohorts):
  """The state after the rounds, one program for all, and the report of the first."""
  state = bridge.init(problem, algorithm)
  everyone = padded(problem, range(C))
  state = jax.jit(algorithm.setup)(state, everyone, KEYS[0])
  run = problems.quick_jit(algorithm.round)
  reports = []
  for cohort, key in zip(cohorts, KEYS):
    state, aux = run(state, cohort, key)
    reports.append(aux)
  return jax.device_get((state, reports[0]))


def of_parity(problem, ids, parity, first, is_set_up):
  """The cohort of one group, as if the others were no clients."""
  cohort = padded(problem, [i if i % 2 == parity else C for i in ids])
  if is_set_up:  # the server has the reports of all clients from the start
    return cohort
  mine = np.arange(C) % 2 == parity
  everyone = cohort.everyone
  size = np.where(mine, everyone.size, 0)
  return cohort._replace(
    everyone=everyone._replace(size=jnp.asarray(size)), newcomers=mine & first
  )


@pytest.mark.parametrize(
  "text, server",
  [
    *((part.EXAMPLE, "average") for part in parts_of(CLIENT_UPDATES)),
    ("mime", "average"),
    *(("sgd", part.EXAMPLE) for part in parts_of(SERVERS)[1:] if part not in LONGER),
    ("sgd", "cg_line_search:max_tries=9"),
    ("svrg", "conjugate_gradient"),
    ("scaffold", "adaptive"),
  ],
)
def test_a_group_is_a_federation_of_its_members(text, server):
  """With the memory of all groups in one, variates and momenta of two would mix."""
  problem = problems.softmax_problem()
  client, step, weights = halves_of(problem, text, server)
  options = dict(map_clients=clients.ClientMap(), exchange=Exchange(weights))
  if text.startswith("losac"):
    with pytest.raises(OptionError, match="client_update"):
      compose_clustered(problem.model, client, by_parity(), step, **options)
    return
  state, report = rounds_of(
    problem,
    compose_clustered(problem.model, client, by_parity(), step, **options),
    [padded(problem, ids) for ids in COHORTS],
  )
  start = problems.some_params(problem.model)
  example_gradients = 0
  alone = compose(problem.model, client, step, **options)
  for parity in (0, 1):
    own, own_report = rounds_of(
      problem,
      alone,
      [
        of_parity(problem, ids, parity, i == 0, client.needs("setup"))
        for i, ids in enumerate(COHORTS)
      ],
    )
    for name in ("down", "bytes_down", "bytes_up", "exchanges"):
      assert getattr(report.cost, name) == getattr(own_report.cost, name), name
    # Who may come from another group brings its row, which the mean needs.
    row = num_params(start) if client.mean_row else 0
    assert report.cost.up == own_report.cost.up + row
    example_gradients += own_report.cost.example_gradients
    local, table = grouped.split_memory(client, own.memory)
    problems.assert_close(
      trees.index(state.models, parity), trees.index(own.models, 0), 2e-5
    )
    memory = ServerMemory(trees.index(own.server, 0), local)
    problems.assert_close(trees.index(state.server, parity), memory, 2e-5)
    for name in step.report(memory.step):
      problems.assert_close(report.server[name][parity], own_report.server[name], 2e-5)
    mine = np.arange(C) % 2 == parity
    rows, own_rows = jax.tree.map(lambda leaf: leaf[mine], (state.clients, table))
    problems.assert_close(rows, own_rows, 2e-5)
    moved = trees.subtract(trees.index(state.models, parity), start)
    assert trees.squared_norm(moved) > 1e-4
  assert report.cost.example_gradients == example_gradients > 0
  problems.assert_equal(trees.index(state.models, 2), start)  # nobody is in it


def test_clients_that_join_a_round_without_participants_are_counted():
  """Else the statistics of all features would be without them for good."""
  problem = problems.softmax_problem()
  client, step, weights = halves_of(problem, "svrg", "average")
  options = dict(map_clients=clients.ClientMap(), exchange=Exchange(weights))
  everyone = padded(problem, range(C))
  is_new = np.arange(C) >= 8
  size = jnp.where(is_new, 0, everyone.shards.size)
  first = everyone._replace(
    shards=everyone.shards._replace(size=size), weight=size.astype(jnp.float32)
  )
  joining = padded(problem, [])._replace(newcomers=jnp.asarray(is_new))

  def memory_of(algorithm, local):
    state = algorithm.setup(bridge.init(problem, algorithm), first, KEYS[0])
    return local(state), local(algorithm.idle(state, joining))

  before, after = memory_of(
    compose_clustered(problem.model, client, by_parity(), step, **options),
    lambda state: trees.index(state.server.local, 0),
  )
  _, expected = memory_of(
    compose(problem.model, client, step, **options),
    lambda state: grouped.split_memory(client, state.memory)[0],
  )
  problems.assert_close(after, expected, 1e-6)
  assert problems.differ(after, before)


@pytest.mark.parametrize("text", ["scaffold", "scaffold_m", "muon", "dyn"])
def test_a_group_keeps_the_mean_of_its_members_rows_when_they_change(text):
  """Else its models would go on along a bias: c, and what its members subtract."""
  problem = problems.softmax_problem()
  client, step, weights = halves_of(problem, text, "average")
  rounds = [list(range(C)), [0, 1, 4, 7, 9], [2, 5, 8, 0], [1, 3, 4, 11]]

  def assign(models, shared, client_row, member, shard, key):
    # Every second time that a client takes part, it is in another group.
    group = jnp.where(member < 0, client_row % 2, (member + client_row) % K)
    return jnp.where(client_row < C, group, 2), ()

  algorithm = compose_clustered(
    problem.model,
    client,
    by_parity()._replace(assign=assign),
    step,
    map_clients=clients.ClientMap(),
    exchange=Exchange(weights),
  )
  state, run = bridge.init(problem, algorithm), problems.quick_jit(algorithm.round)
  sizes = client.mean_row.weigh(padded(problem, range(C)))
  changed = 0
  for ids, key in zip(rounds, [*KEYS, jax.random.key(3)], strict=True):
    before = state.member
    state, _ = run(state, padded(problem, ids), key)
    changed += int((np.asarray(before)[ids] != np.asarray(state.member)[ids]).sum())
    for group in range(K):
      share = jnp.where(state.member == group, sizes, 0)
      rows = jax.tree.map(
        lambda leaf: jnp.tensordot(share / jnp.maximum(share.sum(), 1), leaf, 1),
        state.clients,
      )
      kept, rows = map(jax.tree.leaves, (trees.index(state.server.local, group), rows))
      problems.assert_close(kept[: len(rows)], rows, rtol=0, atol=1e-5)
  assert changed > C + 4
