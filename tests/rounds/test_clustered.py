"""The round of clustered methods, with rules and clients made up for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry, trees
from fedjax_alg.base import num_params
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate, Store, Trained
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation, sample_and_run
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange, attacks
from fedjax_alg.exchange.aggregation import Median
from fedjax_alg.exchange.weights import ExampleWeights, UniformWeights
from fedjax_alg.rounds.clustered import Extra, Messages, Rule, compose_clustered
from tests import problems
from tests.algorithms import bridge

pytestmark = pytest.mark.program

KEY = jax.random.key(2)
K, IDS = 3, [1, 4, 6, 10, 12]  # the last is a padding slot


def by_parity(**options):
  """Even ids in group 0, odd ones in group 1, nobody in group 2."""
  return Rule(
    K,
    lambda params, spec, key: (trees.repeat(params, K), ()),
    lambda models, shared, client_row, member, shard, key: (client_row % 2, member),
    client_rows=lambda memory, ids: ids,
    **options,
  )


def up_by_size():
  """Training that adds n_i to every parameter."""

  def train(received, shard, *_):
    size = shard.size.astype(jnp.float32)
    return Trained(jax.tree.map(lambda leaf: leaf + size, received.start), size)

  return ClientUpdate(train, LocalWork(local_steps=1))


def play(problem, rule, client=None, **links):
  algorithm = compose_clustered(
    problem.model,
    client or up_by_size(),
    rule,
    map_clients=clients.ClientMap(),
    exchange=Exchange(**links),
  )
  return algorithm, *jax.device_get(
    bridge.one_round(problem, algorithm, IDS, KEY, bridge.init(problem, algorithm, KEY))
  )


def shifts(start, state):
  """How far each group's model has gone, the same in all entries."""
  steps = jax.tree.map(lambda a, b: a - b, state.models, start.models)
  rows = np.concatenate(
    [np.asarray(leaf).reshape(K, -1) for leaf in jax.tree.leaves(steps)], 1
  )
  np.testing.assert_allclose(rows, rows[:, :1].repeat(rows.shape[1], 1), atol=1e-4)
  return rows[:, 0]


@pytest.mark.parametrize(
  "weights, whole_divisor", [(ExampleWeights(), True), (UniformWeights(), False)]
)
def test_groups_move_by_their_own_mean(problem, weights, whole_divisor):
  """And the group without participants stays where it is."""
  algorithm, start, state, aux = play(
    problem, by_parity(whole_divisor=whole_divisor), weights=weights.build()
  )
  size = {i: problems.SIZES[i] for i in IDS[:4]}
  weight = size if weights == ExampleWeights() else dict.fromkeys(size, 1)
  expected = []
  for group in ([4, 6, 10], [1], []):
    divisor = sum(weight[i] for i in (size if whole_divisor else group))
    expected.append(sum(weight[i] * size[i] for i in group) / max(divisor, 1))
  np.testing.assert_allclose(shifts(start, state), expected, rtol=1e-4)
  problems.assert_equal(trees.index(state.models, 2), trees.index(start.models, 2))
  np.testing.assert_array_equal(aux.server["participants"], [3, 1, 0])
  np.testing.assert_array_equal(aux.server["members"], [3, 1, 0])
  np.testing.assert_array_equal(state.member[[1, 4, 0]], [1, 0, -1])
  deployed = jax.jit(algorithm.client_params)(
    state, np.int32(7), layout.shard_of(problem.data, 7), KEY
  )
  problems.assert_equal(deployed, trees.index(state.models, 1))


def test_a_round_without_participants_reports_the_members_that_stay(problem):
  """Not none, nor those of what the rule would have done."""
  algorithm = compose_clustered(
    problem.model,
    up_by_size(),
    by_parity(
      before=lambda state, cohort, key: state._replace(
        member=jnp.zeros_like(state.member)
      )
    ),
    map_clients=clients.ClientMap(),
  )
  member = np.arange(12, dtype=np.int32) % K
  start = bridge.init(problem, algorithm, KEY)._replace(member=member)

  def nobody(data, cohort_size, key, number):
    return jnp.full(cohort_size, data.size.shape[0])

  state, aux, _ = jax.jit(
    lambda state: sample_and_run(
      algorithm, problem.data, Participation(3, nobody), run_keys(0), 0, state
    )
  )(start)
  np.testing.assert_array_equal(state.member, member)
  np.testing.assert_array_equal(aux.server["members"], np.bincount(member))
  np.testing.assert_array_equal(aux.server["participants"], np.zeros(K))
  assert np.isnan(aux.server["train_loss"])


def test_the_medians_of_groups_with_a_liar(problem):
  """Updates -45, 20 and 15 in group 0, and 90 in group 1."""
  liar = attacks.Attack(
    "sign_flip",
    lambda num_clients: jnp.arange(num_clients) == 4,
    forge=attacks.SignFlip().forge,
  )
  _, start, state, aux = play(
    problem,
    by_parity(whole_divisor=True),
    weights=UniformWeights().build(),
    aggregator=Median().build(),
    attack=liar,
  )
  shares = np.array([3, 1, 0]) / 4
  np.testing.assert_allclose(
    shifts(start, state), shares * np.array([15.0, 90.0, 0.0]), rtol=1e-4
  )
  size = num_params(jax.eval_shape(problem.model.init, KEY))
  assert aux.cost.central_flops == K * size * 5 * 3  # of five slots


def test_updates_go_where_the_server_puts_the_clients(problem):
  """``regroup`` comes after the training and before the means."""

  def all_to_the_last(state, cohort, drifts):
    del drifts
    return state._replace(member=state.member.at[cohort.ids].set(2, mode="drop"))

  def remember(state, cohort, result):
    del cohort
    return state._replace(memory=result)

  _, start, state, aux = play(
    problem,
    by_parity(regroup=all_to_the_last, finish=remember),
    weights=UniformWeights().build(),
  )
  np.testing.assert_allclose(
    shifts(start, state),
    [0, 0, np.mean([problems.SIZES[i] for i in IDS[:4]])],
    rtol=1e-4,
  )
  np.testing.assert_array_equal(aux.client["group"][:4], 2)
  problems.assert_equal(state.memory.before, start.models)
  np.testing.assert_array_equal(state.memory.groups[:4], 2)
  np.testing.assert_array_equal(state.memory.notes, -1)  # as they came


WORK = dict(local_steps=5, batch_size=6, client_lr=0.2)


@pytest.fixture(scope="module", name="fedavg")
def fixture_fedavg(problem):
  return bridge.rounds(problem, "fedavg", **WORK)[1]


@pytest.mark.parametrize(
  "name, settings",
  [
    ("ifca", dict(num_groups=1, group_init="shared")),
    ("fesem", dict(num_groups=1, group_init="shared")),
    ("flhc", dict(max_groups=1, cluster_after=1)),
    ("pacfl", dict(max_groups=1)),
    ("feddrift", dict(max_groups=1)),
    ("cfl", dict(max_groups=1, split_after=0, thresholds="fixed:1000,0")),
    ("fedgroup", dict(num_groups=1, centers="kmeans:2", pretrain_steps=0)),
  ],
)
def test_one_group_is_fedavg(problem, fedavg, name, settings):
  _, rounds = bridge.rounds(problem, name, **WORK, **settings)
  for mine, reference in zip(rounds, fedavg, strict=True):
    problems.assert_close(
      mine.state.models, reference.state.models, rtol=1e-6, atol=1e-6
    )


def test_a_local_method_of_one_group_has_none_by_shares(problem):
  """FedSoft's participants are in all groups: whose variates would they move?"""
  hparams, _ = registry.get("composed").parts(client_update="scaffold")
  client = hparams.resolved().client_update.build(problem.model, hparams, None)
  with pytest.raises(OptionError, match="client_update:.*upload_weights"):
    compose_clustered(
      problem.model,
      client,
      by_parity(memberships=lambda notes: notes),
      map_clients=clients.ClientMap(),
    )


def test_a_local_method_that_keeps_a_row_is_served(problem):
  """Each participant's row is its own, whichever group it is in."""

  def train(received, shard, client_row, _):
    num_rows = shard.size.astype(jnp.float32)
    return Trained(
      jax.tree.map(lambda leaf: leaf + client_row, received.start),
      num_rows,
      kept=num_rows,
    )

  half = ClientUpdate(
    train,
    LocalWork(local_steps=1),
    init=lambda params, spec: (
      jnp.float32(10) * jnp.arange(spec.num_clients, dtype=jnp.float32)
    ),
    store=Store(lambda memory: memory, lambda memory, table: table),
  )
  _, start, state, _ = play(
    problem, by_parity(), half, weights=UniformWeights().build()
  )
  np.testing.assert_allclose(
    shifts(start, state), [10 * (4 + 6 + 10) / 3, 10, 0], rtol=1e-4
  )
  sizes = [problems.SIZES[i] if i in IDS else 0 for i in range(12)]
  np.testing.assert_allclose(state.clients - start.clients, sizes)


def test_what_a_local_method_costs_beside(problem):
  """Without it the ledger forgets what else a local method sends."""
  _, start, _, plain = play(problem, by_parity())
  _, _, _, aux = play(
    problem,
    by_parity(),
    up_by_size()._replace(
      extra_down=1,
      extra_up=lambda size: 12,
      full_passes=2,
      server_flops=lambda slots, size: 7.0,
    ),
  )
  size = num_params(start.models) // K
  assert (aux.cost.down, aux.cost.up) == (2 * size, size + 3)
  rows = sum(problems.SIZES[i] for i in IDS[:4])
  assert aux.cost.example_gradients == plain.cost.example_gradients + 2 * rows
  assert aux.cost.central_flops == 7


@pytest.mark.parametrize(
  "number, floats, participants",
  [
    (4800, 477_030, 4800),
    (4800, 477_030, 480),
    (7, 11, 3),
    (0, 5, 2),
    (46_000, 9, 46_341),
  ],
)
def test_floats_of_many_messages_are_counted_beyond_int32(number, floats, participants):
  """IFCA's 4,800 clients receive 2.3e9 floats together."""
  share = Messages(jnp.int32(number), floats).shared_by(jnp.int32(participants))
  assert share == number * floats // participants and share.dtype == jnp.int32


def test_what_a_rule_costs_beside(problem):
  """One model down and one up; the rule's own is shared out."""
  rule = by_parity(
    extra=lambda before, after, cohort, notes: Extra(
      down=Messages(1, 41),
      up=Messages(2, 4),
      exchanges=2,
      example_gradients=70,
      flops=9.0,
      own_gradients=jnp.where(cohort.present, 5, 0),
      own_batches=jnp.where(cohort.present, 3, 0),
      evaluations=2,
    )
  )
  _, start, _, plain = play(problem, by_parity())
  _, _, _, aux = play(problem, rule)
  size = num_params(start.models) // K
  assert (aux.cost.down, aux.cost.up) == (size + 10, size + 2)
  assert (plain.cost.down, plain.cost.up) == (size, size)
  assert aux.cost.exchanges == 3 and plain.cost.exchanges == 1
  assert aux.cost.example_gradients == plain.cost.example_gradients + 70
  assert aux.cost.central_flops == 9
  flops = problem.model.flops
  sizes = np.array([*(problems.SIZES[i] for i in IDS[:4]), 0])
  np.testing.assert_allclose(
    aux.work.flops - plain.work.flops,
    flops * (2 * sizes + np.where(sizes > 0, 15, 0)),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    aux.work.batches - plain.work.batches,
    np.where(sizes > 0, 3 + 2 * -(-sizes // 10), 0),
  )
