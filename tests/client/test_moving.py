"""Running statistics of models against NumPy, and against each other.

The oracle is a network x -> V -> BatchNorm -> W with the gradient through the
statistics of the batch, written out in NumPy.
"""

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models, registry
from fedjax_alg.base import ClientData, FedSpec
from fedjax_alg.client import minibatches, objective
from fedjax_alg.data import layout
from fedjax_alg.engine import checkpoint, loop
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.keys import client_keys, run_keys
from fedjax_alg.models import roles
from fedjax_alg.rounds.local_training import mean_statistics
from fedjax_alg.runs.plan import from_keywords
from fedjax_alg.runs.prepare import cautions
from fedjax_alg.runs.programs import Programs
from tests import problems
from tests.client import federations
from tests.client.federations import CLASSES, ROUNDS, SIZES, mean

pytestmark = pytest.mark.program
WIDTH, RATE = 5, 0.3
DECAY, EPSILON = 0.8, 1e-5


class Normed(nn.Module):
  """The network as flax.linen has it."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.Dense(WIDTH, use_bias=False, name="first")(x)
    x = nn.BatchNorm(not train, momentum=DECAY, epsilon=EPSILON, name="bn")(x)
    return nn.Dense(CLASSES, use_bias=False, name="last")(x)


class NnxNormed(nnx.Module):
  """The network as flax.nnx has it."""

  def __init__(self, rngs):
    self.first = nnx.Linear(4, WIDTH, use_bias=False, rngs=rngs)
    self.bn = nnx.BatchNorm(WIDTH, momentum=DECAY, epsilon=EPSILON, rngs=rngs)
    self.last = nnx.Linear(WIDTH, CLASSES, use_bias=False, rngs=rngs)

  def __call__(self, x):
    return self.last(self.bn(self.first(x)))


def flat(tree):
  """Parameters and statistics of a client's model, for the oracle."""
  layers, moving = tree["params"], tree["batch_stats"]["bn"]
  return [
    np.asarray(leaf, np.float64)
    for leaf in (
      layers["first"]["kernel"],
      layers["bn"]["scale"],
      layers["bn"]["bias"],
      layers["last"]["kernel"],
    )
  ], [np.asarray(moving[name], np.float64) for name in ("mean", "var")]


def federation(sizes=SIZES, shift=0.5):
  """Clients with features of unlike means."""
  return federations.federation(sizes, shift)


def play(algorithm, fed, *run, **options):
  options = {"model": Normed(), "l2": 0.0, **options}
  return federations.play(algorithm, fed, *run, **options)


_init = jax.jit(Normed().init, static_argnums=2)


# The oracle.


def forward(w, x, moving=None):
  """Logits, the statistics, and what the gradient needs."""
  V, gamma, beta, W = w
  h = x @ V
  mean, var = moving or (h.mean(0), h.var(0))
  norm = (h - mean) / np.sqrt(var + EPSILON)
  return (gamma * norm + beta) @ W, (mean, var), norm


def slope(w, x, y, moving=None):
  """Gradient of the mean cross entropy, through the batch's statistics."""
  V, gamma, beta, W = w
  logits, (_, var), norm = forward(w, x, moving)
  p = federations.residual(logits, y)
  back = p @ W.T
  of_norm = back * gamma
  if moving is None:
    of_norm = of_norm - of_norm.mean(0) - norm * (of_norm * norm).mean(0)
  of_h = of_norm / np.sqrt(var + EPSILON)
  return [x.T @ of_h, (back * norm).sum(0), back.sum(0), (gamma * norm + beta).T @ p]


def moving_average(moving, seen):
  return [DECAY * old + (1 - DECAY) * new for old, new in zip(moving, seen)]


def local_sgd(w, moving, batches):
  """A participant's steps: its model and its statistics."""
  for x, y in batches:
    seen = forward(w, x)[1]
    w = [a - RATE * g for a, g in zip(w, slope(w, x, y))]
    moving = moving_average(moving, seen)
  return w, moving


def first(key=None):
  """The first parameters of a run of seed 0, and the first statistics."""
  key = run_keys(0).model if key is None else key
  return flat(_init(key, np.zeros((1, 4), np.float32), False))


def fedavg(clients, mode, rounds=ROUNDS, personal=()):
  """The clients' models; the parameters in ``personal`` are each client's."""
  w, moving = first()
  every, states = [w] * len(clients), [moving] * len(clients)
  for _ in range(rounds):
    trained = [
      local_sgd(w, moving, [pair] * 2)
      for w, moving, pair in zip(every, states, clients)
    ]
    shared = mean([w for w, _ in trained], clients)
    every = [
      [w[i] if i in personal else leaf for i, leaf in enumerate(shared)]
      for w, _ in trained
    ]
    states = [moving for _, moving in trained]
    if mode == "global":
      states = [mean(states, clients)] * len(clients)
  return every, states


def loss(w, x, y, moving=None):
  logits = forward(w, x, moving)[0]
  return (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean()


def check(actual, w, moving, atol=3e-6):
  actual_w, actual_moving = flat(actual)
  for a, b in zip([*actual_w, *actual_moving], [*w, *moving], strict=True):
    np.testing.assert_allclose(a, b, atol=atol)


def as_linen(tree):
  """The tree of ``NnxNormed`` as that of ``Normed``."""
  bn = tree["bn"]
  return {
    "params": {
      "first": tree["first"],
      "last": tree["last"],
      "bn": {name: bn[name] for name in ("scale", "bias")},
    },
    "batch_stats": {"bn": {name: bn[name] for name in ("mean", "var")}},
  }


PARAMETERS = 4 * WIDTH + 2 * WIDTH + WIDTH * CLASSES


@pytest.mark.program
def test_the_servers_statistics_are_those_of_numpy():
  fed, clients = federation()
  result = play("fedavg", fed, fa.run, evaluate=("global", "local"))
  models, states = fedavg(clients, "global")
  for i in range(len(clients)):
    check(result.client_params(i), models[i], states[i])
  check(problems.row(result.global_params(), 0), models[0], states[0])
  # Evaluation has the running statistics.
  x, y = (np.concatenate(part) for part in zip(*clients))
  for protocol in ("global", "local"):
    np.testing.assert_allclose(
      result.metrics[protocol]["loss"][0, -1],
      loss(models[0], x, y, states[0]),
      rtol=1e-5,
    )
  for way in ("floats_down", "floats_up"):
    assert result.history[way][0, -1] == PARAMETERS + 2 * WIDTH


def test_the_clients_own_statistics_are_those_of_numpy():
  """FedBN, of a flax.nnx module that is given with its values."""
  fed, clients = federation()
  w, _ = first()
  module = NnxNormed(nnx.Rngs(0))
  for leaf, value in zip(
    (module.first.kernel, module.bn.scale, module.bn.bias, module.last.kernel), w
  ):
    leaf[...] = jnp.asarray(value, jnp.float32)
  result = play("fedbn", fed, model=module)
  for i, (w, moving) in enumerate(zip(*fedavg(clients, "local", personal=(1, 2)))):
    check(as_linen(result.client_params(i)), w, moving)
  assert result.aux.cost.up[0, -1] == PARAMETERS - 2 * WIDTH
  with pytest.raises(fa.OptionError, match="no global model, as some of it"):
    play("fedavg", fed, model_state="local", evaluate="global")


def batches_of(fed, client, size):
  """The rows of a client's mini-batches in the first round of seed 0."""
  key = client_keys(
    jax.random.fold_in(run_keys(0).work, 0), jnp.array([client], jnp.int32)
  )[0]
  bits, shard = (
    minibatches.shuffle_bits(key),
    layout.shard_of(jax.tree.map(jnp.asarray, fed.data.train), client),
  )
  for step in range(-(-int(shard.size) // size)):
    rows, mask = _batch_rows(shard, bits, np.int32(step), size)
    yield np.asarray(rows)[np.asarray(mask)]


_batch_rows = jax.jit(minibatches.batch_rows, static_argnums=3)


def test_statistics_of_the_batch_are_those_of_a_loop():
  """Short last mini-batches; none are kept, in evaluation neither."""
  fed, clients = federation()
  result = play(
    "fedavg",
    fed,
    fa.run,
    model_state="batch",
    rounds=1,
    eval_every=1,
    batch_size=4,
    local_steps=0,
    local_epochs=1,
  )
  x, y = fed.data.train.x, fed.data.train.y
  w, moving = first()
  trained = [
    local_sgd(w, moving, [(x[rows], y[rows]) for rows in batches_of(fed, i, 4)])[0]
    for i in range(len(clients))
  ]
  w = mean(trained, clients)
  deployed = result.client_params(1)
  assert not jax.tree.leaves(deployed["batch_stats"])
  for a, b in zip(jax.tree.leaves(deployed), [w[2], w[1], w[0], w[3]]):
    np.testing.assert_allclose(a, b, atol=3e-6)
  losses = [loss(w, *pair) for pair in clients]
  np.testing.assert_allclose(
    result.metrics["local"]["loss"][0, -1], np.average(losses, weights=SIZES), rtol=1e-5
  )
  assert result.history["floats_up"][0, -1] == PARAMETERS


def test_variance_reduced_steps_move_the_statistics_of_the_moving_model():
  """Anchors have the running ones, both gradients of a step the batch's.

  Clients in lanes, seeds at once.
  """
  fed, clients = federation()
  result = play(
    "fsvrg",
    fed,
    deploys=False,
    client_lr=2.0,
    seeds=2,
    map_clients="lanes",
    map_seeds="vmap",
  )
  for seed in range(2):
    w, moving = first(run_keys(seed).model)
    for _ in range(ROUNDS):
      anchor = mean([slope(w, x, y, moving) for x, y in clients], clients)
      w, moving = (
        mean(part, clients)
        for part in zip(
          *(variance_reduced(w, moving, anchor, x, y) for x, y in clients)
        )
      )
    check(
      problems.row(result.global_params(seed), 0),
      w,
      moving,
      atol=1e-5,
    )


def variance_reduced(start, moving, anchor, x, y, alpha=2.0):
  """Two steps of FSVRG with full batches: parameters and statistics."""
  w = start
  for _ in range(2):
    moving = moving_average(moving, forward(w, x)[1])
    w = [
      a - alpha / len(y) * (at_w - at_start + g)
      for a, at_w, at_start, g in zip(w, slope(w, x, y), slope(start, x, y), anchor)
    ]
  return w, moving


def test_newcomers_find_statistics_of_their_own():
  """With steps of `personal`; without any they have the first ones."""
  fed, clients = federation()
  result = play(
    "fedavg",
    fed,
    model_state="local",
    cohort_size=1,
    rounds=1,
    eval_every=1,
    personal="together:steps=3",
    map_clients="vmap",
  )
  moves = 0
  for i, (x, _) in enumerate(clients):
    w, moving = flat(result.client_params(i))
    state = first()[1]
    for _ in range(3):
      state = moving_average(state, forward(w, x)[1])
    moves += np.allclose(moving, state, atol=3e-6)
  assert moves == 2  # the third has taken part


def test_every_group_has_statistics_of_its_own():
  """FL+HC, whose groups train apart: each is FedAvg of its members."""
  fed, clients = federation((8, 8, 8, 8), shift=4.0)
  result = play(
    "flhc", fed, deploys=False, max_groups=2, cluster_after=0, evaluate="global"
  )
  models = result.global_params()
  for k in range(2):
    members = np.flatnonzero(result.membership[0] == k)
    assert len(members)
    expected, states = fedavg([clients[i] for i in members], "global")
    check(problems.row(models, k), expected[0], states[0], atol=1e-4)


@pytest.mark.parametrize(
  ("state", "leaves"), [("global", ()), ("local", ()), ("global", ("personal:last",))]
)
def test_drift_is_measured_with_what_clients_deploy(state, leaves):
  """FedDrift asks all clients; without it they answer with what nobody has trained."""
  data = federation()[0].data.train
  model = roles.split(
    models.as_model(Normed(), (4,), CLASSES, l2=0.0), leaves, model_state=state
  )
  algorithm = registry.build(
    "feddrift",
    model,
    map_clients=ClientMap(),
    max_groups=2,
    step_rounds=2,
    variant="eager:9,loss",
    local_steps=2,
    batch_size=0,
    client_lr=RATE,
  )
  spec, key = FedSpec(3, 3, CLASSES, (4,), sum(SIZES)), jax.random.key(1)
  deployed, everyone = roles.deployed(model), layout.everyone(data)
  everyone = everyone._replace(everyone=everyone.shards)

  @problems.quick_jit
  def play():
    now = loop.initial_state(lambda _: algorithm, model, spec, run_keys(0), {}, data)
    for _ in range(2):
      now, _ = algorithm.round(now, everyone, key)
    losses = []
    for i in range(3):
      shard = layout.shard_of(data, i)
      params = algorithm.client_params(now, jnp.int32(i), shard, key)
      losses.append(objective.full_loss(deployed, params, shard))
    new, aux = algorithm.round(now, everyone, key)
    return new.memory.least, jnp.stack(losses), aux.cost

  least, losses, cost = play()
  np.testing.assert_allclose(least, losses, rtol=1e-5)
  # The model for the answer, and that for the training, with what belongs to it.
  size = model.roles.floats()["shared"] + 2 * WIDTH * (state == "global")
  assert cost[0] == 2 * size


def test_means_of_statistics():
  """By examples; of a group without participants it stays."""
  after = np.float32([[1.0], [4.0], [7.0], [np.nan]])
  data = ClientData(
    np.zeros((9, 1), np.float32),
    np.zeros(9, np.int32),
    np.int32([0, 1, 3, 9]),
    np.int32([1, 2, 6, 0]),
  )
  before = np.float32([[8.0], [9.0], [10.0]])
  mean, means = jax.jit(
    lambda before, data, groups: (
      mean_statistics(before[0], after, layout.everyone(data)),
      mean_statistics(before, after, layout.everyone(data), groups),
    )
  )(before, data, np.int32([2, 0, 2, 1]))
  np.testing.assert_allclose(mean, [(1 + 8 + 42) / 9], rtol=1e-6)
  np.testing.assert_allclose(np.ravel(means), [4, 9, 43 / 7], rtol=1e-6)


def test_a_run_goes_on_to_the_bit(tmp_path):
  """With a personal layer and statistics of the clients."""
  fed, _ = federation()
  plan = from_keywords(
    "fedavg",
    fed,
    model=Normed(),
    rounds=3,
    cohort_size=2,
    batch_size=4,
    roles={"personal": "last"},
    model_state="local",
    evaluate="local",
  )
  programs = Programs(plan.prepare())
  straight, _ = programs.run_rounds(programs.initial(), 0, 3)
  half, _ = programs.run_rounds(programs.initial(), 0, 2)
  checkpoint.save(tmp_path, half, 2, {})
  read, _, _ = checkpoint.load_latest(tmp_path, programs.shapes)
  resumed, _ = programs.run_rounds(programs.place(read), 2, 1)
  assert checkpoint.state_hash(resumed) == checkpoint.state_hash(straight)


def test_a_choice_that_no_layer_reads_is_warned_of():
  fed, _ = federation()
  prepared = from_keywords(
    "fedavg", fed, model_state="local", cohort_size=2, rounds=1
  ).prepare()
  assert cautions(prepared, set()) == [
    "`model_state`=local: not read, the model has no running statistics"
  ]


@pytest.mark.parametrize(
  "algorithm, options, message",
  [
    ("fedavg", dict(private="fixed"), "are sent without noise"),
    ("fedbuff", {}, "models that they hold differ"),
    ("ifca", dict(averaging="gradient"), "takes no local steps"),
    ("central", {}, "keeps no running statistics"),
  ],
)
def test_what_cannot_be_is_one_line(algorithm, options, message):
  fed, _ = federation()
  with pytest.raises(fa.OptionError, match=message) as caught:
    fa.run(
      algorithm,
      fed,
      model=Normed(),
      **({} if algorithm == "central" else dict(cohort_size=2)),
      **options,
    )
  assert "\n" not in str(caught.value) and "batch" in str(caught.value)
