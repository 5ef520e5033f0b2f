"""Late and lost clients: shares by counting, deadlines by the clock."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_alg import registry
from fedjax_alg.engine import clients, clock, late, samplers
from fedjax_alg.engine.keys import LATE, client_keys, run_keys, server_key
from fedjax_alg.engine.late import Late
from fedjax_alg.engine.round import Participation, sample_and_run, sample_cohort
from tests import problems

DRAWS, ABSENT = 4000, 3


def draw_arrivals(problem, options):
  """Arrivals of DRAWS rounds of all 12 clients but one."""

  def draw(key):
    cohort = sample_cohort(problem.data, 12, jax.random.key(0))
    cohort = cohort._replace(weight=cohort.weight.at[ABSENT].set(0))
    return late.draw_late(options, cohort, client_keys(key, cohort.ids))

  keys = jax.random.split(jax.random.key(5), DRAWS)
  return jax.device_get(jax.jit(jax.vmap(draw))(keys))


def test_everybody_is_lost_as_often_and_alone(problem):
  arrived = draw_arrivals(problem, Late(dropout=0.3)).arrived
  assert not arrived[:, ABSENT].any()
  counts = np.delete(arrived, ABSENT, 1)
  assert stats.binomtest(int((~counts).sum()), counts.size, 0.3).pvalue > 1e-4
  for client in counts.T:
    assert stats.binomtest(int(client.sum()), DRAWS, 0.7).pvalue > 1e-4
  number = np.bincount(counts.sum(1), minlength=12)
  expected = DRAWS * stats.binom.pmf(np.arange(12), 11, 0.7)
  some = expected > 5
  assert (
    stats.chisquare(
      np.append(number[some], number[~some].sum()),
      np.append(expected[some], expected[~some].sum()),
    ).pvalue
    > 1e-4
  )


def test_stragglers_are_not_compared_with_each_other(problem):
  """With S^2 comparisons a round of 20,000 participants takes a second more."""
  slots = 1000

  def draw(keys):
    cohort = sample_cohort(problem.data, 12, jax.random.key(0))
    cohort = cohort._replace(weight=jnp.ones(slots), ids=jnp.arange(slots))
    return late.draw_late(Late(stragglers=0.5), cohort, keys)

  keys = jax.random.split(jax.random.key(5), slots)
  assert f"[{slots},{slots}]" not in str(jax.make_jaxpr(draw)(keys))


@pytest.mark.parametrize("share, number", [(0.5, 6), (0.9, 10), (1.0, 11)])
def test_so_many_are_stragglers(problem, share, number):
  """Of 11 half are 5.5, to even; the part that they do is uniform."""
  arrivals = draw_arrivals(problem, Late(stragglers=share, most=0.8, keep=True))
  np.testing.assert_array_equal(
    arrivals.arrived, np.tile(np.arange(12) != ABSENT, (DRAWS, 1))
  )
  behind = arrivals.part < 1
  np.testing.assert_array_equal(behind.sum(1), number)
  assert stats.chisquare(np.delete(behind.sum(0), ABSENT)).pvalue > 1e-4
  parts = arrivals.part[behind]
  assert 0 < parts.min() and parts.max() <= np.float32(0.8)
  assert stats.kstest(parts[::10], stats.uniform(0, 0.8).cdf).pvalue > 1e-4
  # Dropped, the same ones are lost.
  lost = draw_arrivals(problem, Late(stragglers=share, most=0.8))
  np.testing.assert_array_equal(lost.arrived, arrivals.arrived & ~behind)
  assert lost.part is None


@pytest.fixture(scope="module", name="data")
def fixture_data(problem):
  return problem.data._replace(
    devices=clock.make_devices(3, 12, cores=(1, 8), core_gflops=1e-6, batch_ms=1e-3)
  )


def player(problem, data, name, **settings):
  """The state before a round, and (late, ids) -> state and report after it.

  The round is round 2 of a run of 8 clients, or of ``ids`` if they are given.
  Numbers of ``late`` are arguments of one program.
  """
  algorithm = registry.build(
    name,
    problem.model,
    map_clients=clients.ClientMap(),
    batch_size=5,
    **dict(dict(local_steps=0, local_epochs=4), **settings),
  )
  state = jax.jit(
    lambda keys: algorithm.init(
      problem.model.init(keys.model), problem.spec, keys.start
    )
  )(KEYS)

  @problems.quick_jit
  def play(numbers, ids):
    return sample_and_run(
      algorithm,
      data,
      Participation(
        8,
        samplers.uniform if ids is None else lambda *_: ids,
        None if numbers is None else Late(**numbers),
      ),
      KEYS,
      jnp.int32(2),
      state,
    )[:2]

  return jax.device_get(state), lambda ids=None, **numbers: jax.device_get(
    play(numbers or None, ids)
  )


KEYS = run_keys(1)


def draw_ids(data):
  """The 8 clients of the round."""
  return np.asarray(
    jax.jit(lambda key: samplers.uniform(data, 8, jax.random.fold_in(key, 2)))(
      KEYS.cohort
    )
  )


def seconds(problem, data):
  """What each client takes for 4 epochs of FedAvg, in NumPy."""
  sizes = np.asarray(problems.SIZES)
  steps = 4 * -(-sizes // 5)
  nbytes = 2 * 4 * (problems.FEATURES + 1) * problems.CLASSES
  return (
    3 * problem.model.flops * 4 * sizes / np.asarray(data.devices.flops_per_s)
    + 1e-6 * steps
    + nbytes / np.asarray(data.devices.bytes_per_s)
  )


@pytest.mark.program
def test_a_deadline_by_the_clock(problem, data):
  """The round is that of those in time; it ends at the deadline."""
  before, play = player(problem, data, "fedavg")
  ids = draw_ids(data)
  took = seconds(problem, data)
  deadline = float(np.sort(took[ids])[4] * 1.001)
  in_time = took[ids] <= deadline
  state, aux = play(deadline_s=deadline)
  plain, report = play(ids=np.where(in_time, ids, 12).astype(np.int32))
  problems.assert_close(state, plain, rtol=1e-6)
  assert (aux.server["cohort_present"], aux.server[late.LOST]) == (5, 3)
  assert aux.cost == report.cost
  np.testing.assert_allclose(sum(aux.times[1:]), deadline, rtol=1e-6)
  np.testing.assert_allclose(sum(report.times[1:]), took[ids][in_time].max(), rtol=1e-5)
  # In time nothing changes.
  plain, report = play(ids=ids)
  state, aux = play(deadline_s=1e6)
  problems.assert_close(state, plain, rtol=1e-6)
  np.testing.assert_allclose(aux.times, report.times, rtol=1e-6)
  assert aux.server[late.LOST] == 0
  # Too late: they have received the model and sent nothing; the server waits.
  state, aux = play(deadline_s=1e-7)
  problems.assert_equal(state, before._replace(round=np.int32(1)))
  assert (aux.server["cohort_present"], aux.server[late.LOST]) == (0, 8)
  assert (aux.cost.down, aux.cost.up) == (report.cost.down, 0)
  assert aux.times[:3] == (0, 0, 0)
  np.testing.assert_allclose(aux.times.idle, 1e-7)


@pytest.mark.program
def test_who_is_lost_keeps_its_state(problem, data):
  """SCAFFOLD's variates of those who do not arrive, and its round."""
  before, play = player(problem, data, "scaffold")

  @jax.jit
  def draw(keys):
    cohort = sample_cohort(data, 8, jax.random.fold_in(keys.cohort, 2))
    client = client_keys(server_key(jax.random.fold_in(keys.work, 2), LATE), cohort.ids)
    return late.draw_late(Late(dropout=0.4), cohort, client).arrived, cohort.ids

  arrived, ids = jax.device_get(draw(KEYS))
  assert 0 < arrived.sum() < 8
  state, aux = play(dropout=np.float32(0.4))
  plain, _ = play(ids=np.where(arrived, ids, 12).astype(np.int32))
  problems.assert_close(state, plain, rtol=1e-6)
  assert aux.server[late.LOST] == 8 - arrived.sum()
  table, old = (
    list(map(np.asarray, jax.tree.leaves(state.memory.clients)))
    for state in (state, before)
  )
  changed = {
    int(i)
    for new, before in zip(table, old)
    for i in np.flatnonzero(
      (new != before).any((1, 2)) if new.ndim == 3 else (new != before).any(1)
    )
  }
  assert changed == set(ids[arrived].tolist())


@pytest.mark.program
@pytest.mark.parametrize(
  "name, settings",
  [("feddrift", dict(max_groups=2)), ("fedavg", dict(compress_down="qsgd:4"))],
)
def test_the_messages_of_a_round_are_billed_once(problem, data, name, settings):
  """Those to all clients were billed again for the lost, and changes not at all."""
  _, play = player(problem, data, name, **settings)
  nobody, some = (play(dropout=np.float32(share))[1] for share in (1.0, 0.4))
  ids, everybody = draw_ids(data), play(dropout=np.float32(0.0))[1]
  arrived = 8 - some.server[late.LOST]
  assert 0 < arrived < len(ids) and nobody.server[late.LOST] == 8
  for field in ("down", "bytes_down"):
    sent = [getattr(aux.cost, field) for aux in (everybody, some, nobody)]
    if sent[0] is not None:
      assert sent[0] == sent[1] > 0 and sent[2] > 0
      # What is sent to all is undone in a round without participants.
      assert (sent[2] < sent[0]) == (name == "feddrift")
  assert nobody.cost.up == 0


@pytest.mark.program
def test_a_part_is_so_many_epochs(problem, data):
  """Everybody does one of 4 epochs: the round of one epoch, and its cost."""
  algorithm = registry.build(
    "fednova",
    problem.model,
    map_clients=clients.ClientMap(),
    local_epochs=4,
    batch_size=5,
  )
  before, play = player(problem, data, "fednova", local_epochs=1)
  plain, report = play(ids=draw_ids(data))
  options = Late(stragglers=1.0, most=1e-6, keep=True)  # rounded up
  state, aux, _ = jax.device_get(
    problems.quick_jit(
      lambda state: sample_and_run(
        algorithm, data, Participation(8, late=options), KEYS, jnp.int32(2), state
      )
    )(before)
  )
  problems.assert_close(state.models, plain.models, rtol=1e-6, atol=1e-7)
  assert aux.cost == report.cost
  problems.assert_equal(aux.work, report.work)
