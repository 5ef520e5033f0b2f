"""Asynchronous rounds against a heap of events and NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms.asynchronous import PolynomialFactor
from fedjax_alg.central import steps
from fedjax_alg.client import minibatches
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.engine import clients, clock
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange, ExchangeOptions, attacks, exchange_of
from fedjax_alg.exchange.weights import UniformWeights
from fedjax_alg.rounds import buffered
from tests import problems
from tests.each import each
from tests.reference import public_code
from tests.reference.event_heap import Server, trajectory

MAP = clients.ClientMap()
WORK = minibatches.LocalWork(local_steps=2, batch_size=5)
ROUNDS, SLOTS, PLACES = 8, 4, 6
PARTS = [0.2, 0.3, 0.4, 0.5]


@pytest.fixture(scope="module", name="data")
def fixture_data(problem):
  """Machines of which the fastest has eight times the speed of the slowest."""
  return problem.data._replace(
    devices=clock.make_devices(3, 12, cores=(1, 8), core_gflops=1e-6, batch_ms=1e-3)
  )


def halfway(received, *_):
  """A local method that is known without any data: halfway to its client."""
  return Trained(
    jax.tree.map(
      lambda leaf: 0.5 * leaf + received.client_id.astype(jnp.float32), received.start
    ),
    jnp.float32(1),
  )


def compose(problem, one_by_one=False, **links):
  return buffered.compose_buffered(
    problem.model,
    ClientUpdate(halfway, WORK),
    steps.average(0.7),
    map_clients=MAP,
    staleness=PolynomialFactor().factors,
    concurrency=PLACES,
    one_by_one=one_by_one,
    exchange=Exchange(**links),
  )


def play(algorithm, problem, data):
  """The last state; models, reports, waiting clients of the rounds of a run."""
  keys, (method,) = run_keys(4), algorithm.init.args
  spec = problem.spec._replace(cohort_size=SLOTS)
  state = jax.jit(
    lambda keys: algorithm.init(problem.model.init(keys.model), spec, keys.start)
  )(keys)

  def one_round(number, state):
    cohort = sample_cohort(data, SLOTS, jax.random.fold_in(keys.cohort, number), number)
    key = jax.random.fold_in(keys.work, number)
    waiting = buffered.waiting_clients(method, state, cohort, key)
    new, aux = algorithm.round(state, cohort, key)
    return new, (new.models, aux, waiting)

  step = problems.quick_jit(one_round)
  logs = []
  for number in range(ROUNDS):
    state, log = step(np.int32(number), state)
    logs.append(log)
  return state, jax.device_get(jax.tree.map(lambda *x: np.stack(x), *logs))


def bias(models):
  """One number of a model, which all entries follow alike but for their start.

  It is that of the bias of class 0, which starts at 0.
  """
  return jax.tree.leaves(models)[0][:, 0, 0]


def queues(waiting):
  """For the heap: who may start in each round, with their seconds."""
  return [
    {int(i): float(s) for i, s in zip(ids, seconds) if i < 12}
    for ids, seconds in zip(waiting.client, waiting.seconds)
  ]


ATTACK = attacks.SignFlip(0.5).build()


@pytest.fixture(scope="module", name="history")
def fixture_history(problem, data):
  """FedBuff with hostile clients, in which all count by their examples."""
  return play(compose(problem, attack=ATTACK), problem, data)[1]


@pytest.mark.program
def test_fedbuff_is_its_event_heap(history):
  """Hostile clients turn their own change round, whatever model it is of."""
  models, aux, waiting = history
  hostile = np.asarray(ATTACK.hostile(12))
  expected, ages = trajectory(
    Server(PLACES),
    [(queue, SLOTS) for queue in queues(waiting)],
    0.0,
    lambda client, model: (
      model + (-1 if hostile[client] else 1) * (client - 0.5 * model)
    ),
    lambda age: 0.7 / (1 + age) ** 0.5,
    problems.SIZES.__getitem__,
  )
  np.testing.assert_allclose(bias(models), expected, rtol=1e-5)
  np.testing.assert_allclose(aux.server["staleness"], np.mean(ages, 1), rtol=1e-6)
  np.testing.assert_array_equal(aux.server["most_staleness"], np.max(ages, 1))
  assert np.max(ages) > 1 and 0 < hostile.sum() < 12


@pytest.mark.program
@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_the_server_is_that_of_flsim(problem, data, name):
  """Of its own reductions it is WEIGHTED_SUM, with a rate of 0.7 over the buffer."""
  algorithm = compose(problem, name == "fedasync", weights=UniformWeights().build())
  models, _, waiting = play(algorithm, problem, data)[1]
  size = 1 if name == "fedasync" else SLOTS
  server = public_code.BufferedServer(0.0, 0.7 / size, size, 0.5, is_average=False)
  other = public_code.BufferedServer(0.0, 0.7, size, 0.5, is_average=True)
  events, started, expected, averaged = Server(PLACES), [0.0], [], []
  for queue in queues(waiting):
    arrivals = events.run(queue, SLOTS)[0] if size > 1 else arrive(events, queue)
    for client, version, *_ in arrivals:
      start = started[version]
      final = start + (client - 0.5 * start)
      if name == "fedasync":
        server.mix(final, version)
      else:
        server.end_training(start - final, version)
        other.end_training(start - final, version)
      if server.number == len(started):
        started.append(server.model)
    expected.append(server.model)
    averaged.append(other.model)
  np.testing.assert_allclose(bias(models), expected, rtol=1e-5)
  if name == "fedbuff":
    assert np.abs(np.array(averaged) - expected).max() > 0.01


def arrive(events, queue):
  """The arrivals of a round in which the server moves after each of them."""
  for _ in range(SLOTS):
    ((client, version, place),), _ = events.run(queue, 1)
    # Whoever has started is out of the queue for the rest of the round.
    for gone in (client, *(started for started, _ in events.running.values())):
      queue.pop(gone, None)
    yield client, version, place


@pytest.mark.program
def test_the_seconds_are_those_of_the_clock(problem, data, history):
  """Of who waits, and of the rounds: their sum is the heap's time."""
  _, aux, waiting = history
  speed, link = (
    np.asarray(data.devices.flops_per_s),
    np.asarray(data.devices.bytes_per_s),
  )
  nbytes = 2 * 4 * (problems.FEATURES + 1) * problems.CLASSES
  for ids, seconds in zip(waiting.client, waiting.seconds):
    client_ids = ids[ids < 12]
    read = np.asarray(
      [
        sum(min(5, n - 5 * (k % -(-n // 5))) for k in range(2))
        for n in np.asarray(problems.SIZES)[client_ids]
      ]
    )
    np.testing.assert_allclose(
      seconds[ids < 12],
      3 * problem.model.flops * read / speed[client_ids]
      + 2e-6
      + nbytes / link[client_ids],
      rtol=1e-5,
    )
  server = Server(PLACES)
  lasted = [server.run(queue, SLOTS)[1] for queue in queues(waiting)]
  times = aux.times
  np.testing.assert_allclose(
    times.computation + times.communication + times.idle, lasted, rtol=1e-4
  )


@pytest.mark.program
def test_fedasync_is_one_client_after_the_other(problem, data):
  """w <- (1 - alpha s) w + alpha s v, and one model a client."""
  algorithm = compose(problem, one_by_one=True)
  state, (models, aux, waiting) = play(algorithm, problem, data)
  assert state.version == ROUNDS * SLOTS
  # Where nobody takes part the round counts, or resumed runs would draw it again.
  assert algorithm.idle(state, None).round == ROUNDS + 1
  server, expected, ages, versions = Server(PLACES), [], [], [0.0]
  lasted = []
  for queue in queues(waiting):
    for _ in range(SLOTS):
      ((client, version, _),), seconds = server.run(queue, 1)
      lasted.append(seconds)
      # Whoever has started is out of the queue for the rest of the round.
      for started, _ in server.running.values():
        queue.pop(started, None)
      queue.pop(client, None)
      ages.append(server.version - 1 - version)
      alpha = 0.7 / (1 + ages[-1]) ** 0.5
      versions.append(
        (1 - alpha) * versions[-1] + alpha * (0.5 * versions[version] + client)
      )
    expected.append(versions[-1])
  np.testing.assert_allclose(bias(models), expected, rtol=1e-5)
  np.testing.assert_allclose(
    aux.server["staleness"], np.reshape(ages, (ROUNDS, -1)).mean(1), rtol=1e-6
  )
  times = aux.times
  np.testing.assert_allclose(
    times.computation + times.communication + times.idle,
    np.reshape(lasted, (ROUNDS, -1)).sum(1),
    rtol=1e-4,
  )


@each(
  "client, server, options, message",
  [
    ("svrg", "average", {}, "measure at one model"),
    ("scaffold", "average", {}, "keeps a state between rounds"),
    ("mime_lite:momentum", "average", {}, "keeps a state between rounds"),
    ("sgd", "adaptive", {}, "server: its step needs gradients"),
    ("sgd", "extrapolated", {}, "server: its step compares updates of one model"),
    ("fedcm", "average", {}, "keeps a state between rounds"),
    ("sgd", "average", dict(compress_up="topk:0.1"), "keep nothing"),
    ("sgd", "average", dict(compress_down="sign"), "keep nothing"),
    ("sgd", "average", dict(private="fixed"), "no draw that the accountant"),
  ],
)
def test_what_needs_one_model_is_refused(problem, client, server, options, message):
  hparams, _ = registry.get("composed").parts(client_update=client, server=server)
  with pytest.raises(OptionError, match=message):
    buffered.compose_buffered(
      problem.model,
      hparams.client_update.build(problem.model, hparams, None),
      hparams.server.build(1.0),
      map_clients=MAP,
      staleness=jnp.ones_like,
      exchange=exchange_of(ExchangeOptions(**options)),
    )


def test_the_model_behind_a_lookahead_is_deployed(problem):
  """Clients start ahead of it, here by 0.8 of the last move."""
  algorithm = buffered.compose_buffered(
    problem.model,
    ClientUpdate(halfway, WORK),
    steps.lookahead(0.8),
    map_clients=MAP,
    staleness=jnp.ones_like,
  )
  state = algorithm.init(
    problems.some_params(problem.model), problem.spec, jax.random.key(0)
  )
  moved = jax.tree.map(jnp.ones_like, state.server)
  models = algorithm.global_params(state._replace(server=moved))
  # The trace of optax's SGD is minus the move.
  problems.assert_close(models, jax.tree.map(lambda leaf: leaf + 0.8, state.models))


@pytest.mark.program
def test_stragglers_of_a_buffer_do_a_part(problem, data):
  """The part travels with the client until it finishes."""
  algorithm = buffered.compose_buffered(
    problem.model,
    sgd_update(problem.model, WORK, 0.1),
    steps.average(),
    map_clients=MAP,
    staleness=jnp.ones_like,
    concurrency=PLACES,
  )
  spec, init = problem.spec._replace(cohort_size=SLOTS), algorithm.init
  assert isinstance(init, functools.partial)
  (method,) = init.args

  def first_round(keys):
    state = init(problem.model.init(keys[0]), spec, None)
    cohort = sample_cohort(data, SLOTS, keys[1])._replace(part=jnp.array(PARTS))
    waiting = buffered.waiting_clients(method, state, cohort, keys[2])
    return cohort, waiting, *algorithm.round(state, cohort, keys[2])

  cohort, waiting, state, aux = jax.device_get(
    problems.quick_jit(first_round)([jax.random.key(seed) for seed in range(3)])
  )
  occupied = state.running.client < 12
  part = dict(zip(cohort.ids.tolist(), np.float32(PARTS), strict=True))
  for ids, parts in (
    (waiting.client[:SLOTS], waiting.part[:SLOTS]),
    (state.running.client[occupied], state.running.part[occupied]),
  ):
    np.testing.assert_array_equal(parts, [part.get(i, 1.0) for i in ids.tolist()])
    assert (parts < 1).any()
  assert set(np.asarray(aux.work.batches)) <= {1.0, 2.0}
  assert 1.0 in np.asarray(aux.work.batches)
  assert any(leaf.any() for leaf in jax.tree.leaves(state.models))
