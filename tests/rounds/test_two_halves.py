"""The round of two halves: what is measured where, means, groups, warm-up."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_alg import grouping, registry, trees
from fedjax_alg.algorithms import diversified
from fedjax_alg.central.steps import ServerStep, average
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.engine import clients, keys, samplers
from fedjax_alg.engine.round import Participation, sample_and_run
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange, ExchangeOptions, aggregation, attacks, links
from fedjax_alg.exchange.aggregation import Median
from fedjax_alg.exchange.weights import UniformWeights
from fedjax_alg.rounds.k_models import ModelGrouping
from fedjax_alg.rounds.two_halves import compose
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle

pytestmark = pytest.mark.program

KEY = jax.random.key(5)
RATE = 0.5
ONE_STEP = LocalWork(local_steps=1, batch_size=0)


def up_by_one(tree):
  return jax.tree.map(lambda leaf: leaf + 1.0, tree)


def probe():
  """Adds 1 to its model and sends what it was given; the memory keeps it."""
  return ClientUpdate(
    lambda received, *_: Trained(
      up_by_one(received.start), jnp.zeros(()), tuple(received[:3])
    ),
    ONE_STEP,
    init=lambda params, spec: (params,) * 3,
    merge=lambda memory, cohort, uploads, anchors: trees.index(uploads, 0),
    needs_anchor=True,
  )


def server(when):
  return ServerStep(optax.with_extra_args_support(optax.sgd(RATE)), when)


def by_model(**options):
  return diversified.by_model(diversified.KModelsHParams(**options))


def by_gradient(problem, step, mean="gradients", **options):
  return diversified.by_gradient(
    problem.model,
    diversified.KModelsHParams(**options),
    step,
    clients.ClientMap(),
    mean,
  )


def build(problem, client, step, grouping=None, **links):
  return compose(
    problem.model,
    client,
    step,
    map_clients=clients.ClientMap(),
    exchange=Exchange(**links),
    grouping=grouping,
  )


def play(problem, client, step, ids, rounds=1, start=None, **options):
  """``play_rounds`` of the algorithm that is ``build`` of the options."""
  return play_rounds(
    problem, build(problem, client, step, **options), ids, rounds, start=start
  )


def play_rounds(problem, algorithm, ids, rounds, idle=(), start=None):
  """States from the start on, and the last log; nobody is there in ``idle``.

  ``start`` makes another first state of the first. All is in NumPy.
  """
  state, aux = jax.device_get(bridge.init(problem, algorithm, KEY)), None
  states = [start(state) if start else state]
  for number in range(rounds):
    if number in idle:
      state = algorithm.idle(states[-1], bridge.cohort_of(problem, ids))
      states.append(jax.device_get(state))
      continue
    _, state, aux = jax.device_get(
      bridge.one_round(
        problem, algorithm, ids, jax.random.fold_in(KEY, number), states[-1]
      )
    )
    states.append(state)
  return states, aux


def gradient(problem, params, ids):
  """Of the cohort's objective, weighted by examples."""
  return bridge.to_library(
    oracle.anchor_gradient(bridge.to_oracle(params), problem.clients, ids, problems.L2)
  )


def shift_model(models, k, shift):
  """Model ``k`` with a number added to every parameter."""
  return jax.tree.map(lambda leaf: leaf[k] + np.float32(shift), models)


@pytest.mark.parametrize("when", ["before", "aggregate", "after"])
def test_the_order_of_the_exchanges(problem, when):
  ids = [1, 4, 7]
  (before, after), aux = play(problem, probe(), server(when), ids)
  w, actual = (trees.index(s.models, 0) for s in (before, after))
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
    expected = trees.add_scaled(expected, -RATE, gradient(problem, expected, ids))
  problems.assert_close(actual, expected)
  assert aux.cost.exchanges == 2 + (when == "after")


def test_q_ffl_divides_by_the_rate_of_the_round(problem):
  """In round 3 of a schedule: without it by the rate of round 1, or by many."""
  make = functools.partial(
    registry.build,
    "fedavg",
    problem.model,
    map_clients=clients.ClientMap(),
    local_steps=2,
    batch_size=0,
    client_weights="qffl:1",
  )
  third = lambda state: state._replace(round=np.int32(2))
  problems.assert_close(
    *(
      play_rounds(problem, make(**options), range(4), 1, start=third)[0][1].models
      for options in (
        dict(client_lr=2.0, client_lr_schedule="step:0.5,1"),
        dict(client_lr=0.5),
      )
    )
  )
  with pytest.raises(OptionError, match="^client_lr_schedule=.*over=rounds"):
    make(client_lr_schedule="cosine:4,over=steps")


def test_an_empty_group_keeps_its_model(problem):
  """Whatever the grouping makes of it."""

  def regroup(models, trained, anchors, cohort, stage, scale):
    del anchors, stage, scale
    slots = cohort.ids.shape[0]
    target = jax.tree.map(
      lambda all, new: jnp.stack([new.mean(0), jnp.full_like(all[1], jnp.nan)]),
      models,
      trained,
    )
    return target, grouping.Groups(
      jnp.zeros(slots, jnp.int32), jnp.zeros((2, 1)), jnp.array([slots, 0], jnp.int32)
    )

  states, aux = play(
    problem,
    sgd_update(problem.model, ONE_STEP, 0.1),
    average(),
    [1, 4],
    grouping=ModelGrouping(2, 0, regroup),
  )
  first, second = (trees.index(states[1].models, k) for k in (0, 1))
  problems.assert_close(second, trees.index(states[0].models, 1))
  assert problems.differ(first, second)
  np.testing.assert_array_equal(aux.server["group_size"], [2, 0])


def test_the_warm_up_is_one_model_in_copies(problem):
  """Until round T the copies stay equal, and are what K = 1 trains."""
  ids, client = list(range(8)), sgd_update(problem.model, ONE_STEP, 0.3)

  algorithms = {
    num_models: build(
      problem, client, server("after"), by_model(num_models=num_models, threshold=2)
    )
    for num_models in (1, 3)
  }
  (several, aux), (single, _) = (
    play_rounds(problem, algorithms[num_models], ids, 3) for num_models in (3, 1)
  )
  for state, single_state in zip(several[:3], single):
    for k in range(3):
      problems.assert_equal(
        trees.index((state.models, state.server), k),
        trees.index((state.models, state.server), 0),
      )
    problems.assert_close(
      trees.index(state.models, 0), trees.index(single_state.models, 0)
    )
  assert problems.differ(
    trees.index(several[3].models, 0), trees.index(several[3].models, 1)
  )
  assert aux.cost.down == 2 * 3 * 52  # three models there, three again
  # Nobody was there in round T + 1: the next one splits the copies.
  later = play_rounds(problem, algorithms[3], ids, 4, idle=(2,))[0]
  problems.assert_equal(later[3], several[2]._replace(round=np.int32(3)))
  problems.assert_equal(later[4], several[3]._replace(round=np.int32(4)))


def spread_models(state):
  """The state with three different models, nobody prefers the last."""
  first = trees.index(state.models, 0)
  rolled = jax.tree.map(lambda leaf: np.roll(leaf, 1, 0), first)
  far = jax.tree.map(lambda leaf: np.float32(90) * (leaf + np.sin(9 * leaf)), rolled)
  return state._replace(
    models=jax.tree.map(lambda *leaves: np.stack(leaves), first, rolled, far)
  )


def test_an_anchor_may_be_of_those_alone_who_prefer_the_model(problem):
  ids, anchors_by_option = list(range(5)), {}
  client = probe()._replace(
    merge=lambda memory, cohort, uploads, anchors: (anchors,) * 3
  )
  for anchors in ("all", "preferring"):
    (before, state), aux = play(
      problem,
      client,
      average(),
      ids,
      start=spread_models,
      grouping=by_model(num_models=3, threshold=0, anchors=anchors),
    )
    anchors_by_option[anchors] = state.memory[0]
  preference = np.asarray(aux.client["preference"])
  assert set(preference) == {0, 1}
  for k in range(3):
    model = trees.index(before.models, k)
    problems.assert_close(
      trees.index(anchors_by_option["all"], k), gradient(problem, model, ids)
    )
    anchor = trees.index(anchors_by_option["preferring"], k)
    if k < 2:
      problems.assert_close(
        anchor, gradient(problem, model, np.flatnonzero(preference == k).tolist())
      )
    else:
      assert not any(leaf.any() for leaf in jax.tree.leaves(anchor))


def test_groups_by_gradient_may_average_trained_models(problem):
  ids = list(range(5))
  (before, after), aux = play(
    problem,
    sgd_update(problem.model, ONE_STEP, 0.3),
    server("before"),
    ids,
    start=spread_models,
    grouping=by_gradient(problem, 1.0, "models", num_models=3, threshold=0),
  )
  starts = [
    trees.add_scaled(
      trees.index(before.models, k),
      -RATE,
      gradient(problem, trees.index(before.models, k), ids),
    )
    for k in range(3)
  ]
  trained = []
  for i in ids:
    start = starts[int(aux.client["preference"][i])]
    trained.append(trees.add_scaled(start, -0.3, gradient(problem, start, [i])))
  groups = np.asarray(aux.client["assignment"])
  assert len(set(groups)) > 1
  for k in range(3):
    members = [trained[i] for i in np.flatnonzero(groups == k)]
    problems.assert_close(
      trees.index(after.models, k),
      jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *members)
      if members
      else starts[k],
      rtol=1e-4,
      atol=1e-5,
    )
  assert aux.cost.up == (1 + 1 + 3) * 52 + 1  # model, gradient, anchors


@pytest.mark.parametrize(
  "settings, pattern",
  [
    (dict(anchors="preferring", aggregator="median"), "anchors=preferring: "),
    (dict(anchors="preferring", attack="scaled"), "anchors=preferring: "),
    (dict(group_mean="models", attack="scaled"), "attack=scaled: forges one"),
  ],
)
def test_readings_that_need_what_clients_send_as_it_is(problem, settings, pattern):
  bridge.assert_refused(problem, "ga_fsvrg", pattern, **settings)


def test_clients_join_in_a_round_without_participants(problem):
  """What the server keeps stays the mean over those who are there."""
  joins = np.where(np.arange(12) < 7, 0, 2).astype(np.int32)
  data = problem.data._replace(joins=jnp.asarray(joins))
  algorithm = bridge.build(problem, "scaffold", local_steps=2, batch_size=6)

  def nobody_when_they_join(data, cohort_size, key, number):
    return jnp.where(number == 2, 12, samplers.uniform(data, cohort_size, key, number))

  round_ = problems.quick_jit(
    lambda number, state: sample_and_run(
      algorithm,
      data,
      Participation(4, nobody_when_they_join),
      keys.run_keys(0),
      number,
      state,
    )[0]
  )
  state = jax.device_get(bridge.init(problem, algorithm, KEY))
  for number in range(4):
    before, state = state, jax.device_get(round_(np.int32(number), state))
    assert state.round == number + 1
    mean, rows = state.memory
    present = np.flatnonzero(joins <= number)
    problems.assert_close(
      mean, jax.tree.map(lambda leaf: leaf[present].mean(0), rows), rtol=1e-4, atol=1e-6
    )
    if number == 2:
      problems.assert_equal(state.models, before.models)
      assert problems.differ(mean, before.memory[0])


def slow_mean():
  """The mean as any aggregator would be written."""
  return aggregation.Aggregator(
    lambda updates, weights, cohort, key: trees.slot_mean(weights, updates)
  )


def test_the_mean_of_a_group_is_that_of_its_changes(problem):
  """In a round with one model and in one with three, of GA.

  Three participants lie in the plane onto which the three means are projected.
  """
  grouped = by_gradient(problem, 0.2, num_models=3, threshold=1)
  client = sgd_update(problem.model, ONE_STEP, 0.3)._replace(
    needs_anchor=True,
    scale=lambda memory, cohort, update: trees.scale(
      2.0 / cohort.present.sum().astype(jnp.float32), update
    ),
  )
  (default, aux), (mean_state, mean_aux) = (
    play(
      problem,
      client,
      average(),
      [1, 4, 7],
      rounds=2,
      grouping=grouped,
      aggregator=aggregator,
    )
    for aggregator in (aggregation.WeightedMean().build(), slow_mean())
  )
  problems.assert_close(mean_state, default, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(aux.client["assignment"], mean_aux.client["assignment"])


def add_id():
  """Adds the client's id to its model, and sends id and round."""

  def train(received, *_):
    params = jax.tree.map(
      lambda leaf: leaf + received.client_id.astype(jnp.float32), received.start
    )
    return Trained(params, jnp.zeros(()), (received.client_id, received.round))

  return ClientUpdate(
    train,
    ONE_STEP,
    init=lambda params, spec: (jnp.zeros(6, jnp.int32), jnp.zeros(6, jnp.int32)),
    merge=lambda memory, cohort, uploads, anchors: uploads,
  )


def by_half(models, trained, anchors, cohort, stage, scale):
  """Clients below 6, and the others; their means are not read."""
  del anchors, stage, scale, trained
  groups = (cohort.ids >= 6).astype(jnp.int32)
  return jax.tree.map(lambda leaf: leaf * jnp.nan, models), grouping.Groups(
    groups, jnp.zeros((2, 1)), jnp.array([4, 2], jnp.int32)
  )


def test_the_median_of_every_group(problem):
  """Of 0, 1, 2, 5 and of 7, 10, in every coordinate; ids and rounds arrive."""
  ids = [0, 1, 2, 5, 7, 10]
  states, _ = play(
    problem,
    add_id(),
    average(),
    ids,
    rounds=2,
    grouping=ModelGrouping(2, 0, by_half),
    aggregator=Median().build(),
  )
  for k, median in ((0, 1.5), (1, 8.5)):
    problems.assert_close(
      trees.index(states[1].models, k), shift_model(states[0].models, k, median)
    )
  for number, state in enumerate(states[1:]):
    np.testing.assert_array_equal(state.memory, [ids, [number] * 6])
  (start, end), _ = play(problem, add_id(), average(), ids, aggregator=Median().build())
  problems.assert_close(end.models, shift_model(start.models, slice(None), 3.5))


def test_an_aggregator_may_remember_its_last_result(problem):
  """Clipping to 1 around 0, then around the mean of 0, 1, 1, 1, 1, 1.

  In two groups around the mean of 0, 1, 1, 1 and of 1, 1.
  """
  ids = [0, 1, 2, 5, 7, 10]
  clipping = aggregation.CenteredClipping(52**0.5).build()
  first = np.clip(ids, -1, 1)
  for grouping_, groups in (
    (None, [slice(None)]),
    (ModelGrouping(2, 0, by_half), [slice(4), slice(4, 6)]),
  ):
    states, _ = play(
      problem,
      add_id(),
      average(),
      ids,
      rounds=2,
      weights=UniformWeights().build(),
      grouping=grouping_,
      aggregator=clipping,
    )
    for k, of_group in enumerate(groups):
      before = first[of_group].mean()
      second = np.clip(np.array(ids)[of_group] - before, -1, 1).mean()
      for state, move in ((states[1], before), (states[2], 2 * before + second)):
        problems.assert_close(
          trees.index(state.models, k), shift_model(states[0].models, k, move)
        )
  (_, after), _ = play(
    problem, probe(), server("after"), [1, 4, 7], aggregator=clipping
  )
  assert after.aggregates.keys() == {"updates", "first_gradients", "last_gradients"}
  problems.assert_close(
    trees.index(after.aggregates["first_gradients"], 0), after.memory[2]
  )


def hostile(*ids, **options):
  """These clients send the negative of what they should."""
  return attacks.Attack(
    "sign_flip",
    lambda num_clients: jnp.isin(jnp.arange(num_clients), jnp.array(ids)),
    **(options or dict(forge=attacks.SignFlip().forge)),
  )


def test_the_server_receives_what_is_forged(problem):
  """Updates 0, 1, 2, 5, -7, -10 of one model, and in the groups of two."""
  ids, attack = [0, 1, 2, 5, 7, 10], hostile(7, 10)
  (start, end), _ = play(
    problem, add_id(), average(), ids, attack=attack, weights=UniformWeights().build()
  )
  problems.assert_close(end.models, shift_model(start.models, slice(None), -1.5))
  np.testing.assert_array_equal(end.memory[0], ids)  # is not forged
  (start, end), _ = play(
    problem,
    add_id(),
    average(),
    ids,
    attack=attack,
    aggregator=Median().build(),
    grouping=ModelGrouping(2, 0, by_half),
  )
  for k, median in ((0, 1.5), (1, -8.5)):
    problems.assert_close(
      trees.index(end.models, k), shift_model(start.models, k, median)
    )


def test_anchor_gradients_are_forged_too(problem):
  """That of 4 has the other sign, and counts by its examples."""
  ids = [1, 4, 7]
  (before, after), _ = play(problem, probe(), server("after"), ids, attack=hostile(4))
  w = trees.index(before.models, 0)
  of_four = gradient(problem, w, [4])
  share = problems.SIZES[4] / sum(problems.SIZES[i] for i in ids)
  problems.assert_close(
    after.memory[2],
    trees.add_scaled(gradient(problem, w, ids), -2.0 * share, of_four),
    rtol=1e-4,
  )


def test_the_gradients_of_ga_are_forged_as_they_are(problem):
  """One model: it moves along the gradients at the trained models."""
  step, ids = 0.2, [1, 4, 7]
  grouped = by_gradient(problem, step, num_models=1)
  client = sgd_update(problem.model, ONE_STEP, 0.3)._replace(needs_anchor=True)
  (before, after), _ = play(
    problem, client, average(), ids, grouping=grouped, attack=hostile(4)
  )
  w, move = trees.index(before.models, 0), None
  for i, sign in ((1, 1.0), (4, -1.0), (7, 1.0)):
    trained = trees.add_scaled(w, -0.3, gradient(problem, w, [i]))
    term = trees.scale(-step * sign / 3, gradient(problem, trained, [i]))
    move = term if move is None else trees.add(move, term)
  problems.assert_close(
    trees.index(after.models, 0), trees.add(w, move), rtol=1e-4, atol=1e-5
  )


def test_flipped_labels_are_other_data(problem, mesh):
  """In lanes on several devices, the rounds of one on flipped data."""
  flipped, liars = (
    np.array(problem.data.y),
    np.array(jax.jit(lambda: attacks.hostile_clients(12, 0.4, 1))()),
  )
  assert liars[::2].any()
  for client in np.flatnonzero(liars):
    first = int(problem.data.offset[client])
    rows = slice(first, first + problems.SIZES[client])
    flipped[rows] = problems.CLASSES - 1 - flipped[rows]
  ends = []
  for y, map_clients, settings in (
    (flipped, clients.ClientMap(), {}),
    (
      problem.data.y,
      clients.ClientMap("lanes", mesh=mesh),
      dict(attack="label_flip:0.4,seed=1"),
    ),
  ):
    algorithm = registry.build(
      "ifca",
      problem.model,
      map_clients=map_clients,
      local_steps=3,
      batch_size=5,
      **settings,
    )
    poisoned = problem._replace(data=problem.data._replace(y=jnp.asarray(y)))
    ends.append(
      jax.device_get(bridge.one_round(poisoned, algorithm, range(0, 12, 2), KEY)[1:])
    )
  problems.assert_close(*ends, rtol=1e-4, atol=1e-5)


def noisy():
  """Moves a model by a number drawn with the server's key, plus the round."""

  def update(updates, state, params=None, *, key, round, **extra):
    del params, extra
    noise = jax.random.uniform(key) + round.astype(jnp.float32)
    moves = jax.tree.map(lambda leaf: jnp.full_like(leaf, noise), updates)
    return moves, state

  return optax.GradientTransformationExtraArgs(
    lambda params: optax.EmptyState(), update
  )


def test_the_server_draws_from_a_key_of_its_own(problem):
  """Anew for each round and model, and from no key of a client."""
  states, _ = play(
    problem,
    add_id(),
    ServerStep(noisy(), "aggregate"),
    [0, 1, 2, 5, 7, 10],
    rounds=2,
    grouping=ModelGrouping(2, 0, by_half),
  )
  kernels = [np.asarray(jax.tree.leaves(s.models)[0]) for s in states]
  noises = set()
  for number in range(2):
    of_round = jax.random.fold_in(KEY, number)
    model_keys = keys.client_keys(
      keys.server_key(of_round, keys.SERVER_STEP), jnp.arange(2)
    )
    change = kernels[number + 1] - kernels[number]
    for k in range(2):
      value = jax.random.uniform(model_keys[k]) + number
      np.testing.assert_allclose(change[k], np.full_like(change[k], value), rtol=1e-5)
      noises.add(float(value))
  assert len(noises) == 4
  purposes = (
    keys.SERVER_STEP,
    keys.UPDATES,
    keys.FIRST_GRADIENTS,
    keys.LAST_GRADIENTS,
    keys.FORGERIES,
    keys.BROADCAST,
    keys.MESSAGES,
  )
  words = {
    tuple(np.asarray(jax.random.key_data(key)))
    for key in [
      *keys.client_keys(KEY, jnp.arange(13)),
      *(keys.server_key(KEY, purpose) for purpose in purposes),
    ]
  }
  assert len(words) == 13 + len(purposes)


def test_what_is_sent_is_counted_in_bytes(problem):
  """Of 52 parameters: signs up, half of them down again, two bytes more up."""
  client = sgd_update(problem.model, ONE_STEP, 0.1)._replace(
    upload_bytes=lambda size: size / 8,  # type: ignore[return-value]
    extra_down=0.5,
  )
  median = Median().build()._replace(extra_up=lambda size: 2)
  _, aux = play(problem, client, average(), [1, 4], aggregator=median)
  assert (aux.cost.down, aux.cost.bytes_down) == (78, None)
  assert (aux.cost.up, aux.cost.bytes_up) == (3, 9)  # 7 and 2 bytes
  assert links.count_bytes(5, 1.1) == 22  # not a byte for a rounding error
  assert aux.cost.central_flops == 52 * 2 * 1


def test_halves_that_do_not_fit(problem):
  client = sgd_update(problem.model, ONE_STEP, 0.1)._replace(one_model="for a reason")
  groups = by_model(num_models=2)
  with pytest.raises(ValueError, match="one global model .for a reason"):
    play(problem, client, average(), [1], rounds=0, grouping=groups)
  records = client._replace(one_model="", record=lambda memory, *_: memory)
  with pytest.raises(ValueError, match="^num_models=2: the local method records"):
    play(problem, records, average(), [1], rounds=0, grouping=groups)
  needs_mean = client._replace(one_model="", mean_only="for a reason")
  for aggregator, name in ((Median().build(), "median"), (slow_mean(), "your own")):
    with pytest.raises(
      ValueError, match=f"^aggregator={name}: .* needs the mean .for a reason.$"
    ):
      play(problem, needs_mean, average(), [1], rounds=0, aggregator=aggregator)
  with pytest.raises(ValueError, match="^attack=sign_flip: .* cannot be forged"):
    play(problem, needs_mean, average(), [1], rounds=0, attack=hostile(1))
  play(
    problem, needs_mean, average(), [1], rounds=0, attack=hostile(1, flips_labels=True)
  )
  with pytest.raises(ValueError, match="aggregator=modal: unknown"):
    links.exchange_of(ExchangeOptions(aggregator="modal"))
  with pytest.raises(ValueError, match="^client_weights=equal: must be a function"):
    play(problem, client, average(), [1], rounds=0, weights="equal")
