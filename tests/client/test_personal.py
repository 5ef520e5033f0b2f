"""Personal parameters against NumPy, and against what they must reduce to."""

import functools
import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models, registry, trees
from fedjax_alg.base import FedSpec
from fedjax_alg.client import objective
from fedjax_alg.data import layout
from fedjax_alg.engine import loop
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.models import roles
from fedjax_alg.records import folder as run_files
from tests import problems
from tests.client import federations
from tests.client.federations import CLASSES, ROUNDS, SIZES, federation, mean

pytestmark = [pytest.mark.program, pytest.mark.usefixtures("share_programs")]

WIDTH = 5
HEAD = {"personal": "last"}


def play(algorithm, fed, *run, **options):
  """A run of a perceptron, if of no other model."""
  if "model" not in options:
    options = dict(model=f"mlp:{WIDTH}", **options)
  return federations.play(algorithm, fed, *run, **{"l2": 0.01, **options})


# The oracle: a perceptron of one hidden layer, its parameters the shared pair
# (V, a) and the personal pair (W, b).


def gradients(shared, head, x, y, l2=0.01):
  """Gradients of the mean cross entropy plus (l2/2) ||w||^2, float64."""
  (V, a), (W, b) = shared, head
  before = x @ V + a
  hidden = np.maximum(before, 0)
  p = federations.residual(hidden @ W + b, y)
  back = (p @ W.T) * (before > 0)
  return (
    (x.T @ back + l2 * V, back.sum(0) + l2 * a),
    (hidden.T @ p + l2 * W, p.sum(0) + l2 * b),
  )


def gradient_step(pair, rate, slope):
  return tuple(w - rate * g for w, g in zip(pair, slope))


def fit_head(shared, head, x, y):
  """The head after two steps of its own."""
  for _ in range(2):
    head = gradient_step(head, 0.3, gradients(shared, head, x, y)[1])
  return head


def sgd(shared, head, x, y, when, steps=2, rate=0.3):
  """A participant's round: (shared, personal) parameters."""
  if when == "first":
    head = fit_head(shared, head, x, y)
  for _ in range(steps):
    of_shared, of_head = gradients(shared, head, x, y)
    shared = gradient_step(shared, rate, of_shared)
    if when == "together":
      head = gradient_step(head, rate, of_head)
  return shared, head


def fsvrg(start, head, x, y, anchor, steps=2, alpha=2.0):
  """Variance-reduced steps of the shared parameters, plain ones of the head."""
  shared, rate = start, alpha / len(y)
  for _ in range(steps):
    at_shared, of_head = gradients(shared, head, x, y)
    at_start, _ = gradients(start, head, x, y)
    shared = tuple(
      w - rate * (g - r + c) for w, g, r, c in zip(shared, at_shared, at_start, anchor)
    )
    head = gradient_step(head, rate, of_head)
  return shared, head


def start(fed):
  """The initial parameters of a run of seed 0, as pairs of float64."""
  model = models.MLP((WIDTH,)).build((4,), CLASSES)
  layers = jax.tree.map(
    lambda leaf: np.asarray(leaf, np.float64), jax.jit(model.init)(run_keys(0).model)
  )["params"]
  return tuple(
    (layers[name]["kernel"], layers[name]["bias"]) for name in ("Dense_0", "Dense_1")
  )


def check(name, play_client, heads_after=None, *run, last_is_shared=False, **options):
  """A run is the loop over its clients: (shared, head, x, y) -> both, trained.

  Args:
    name: the algorithm.
    play_client: a participant's round; with anchor gradients as the last
      argument.
    heads_after: (shared, head, x, y) -> the head that is deployed, if another.
    *run: ``fa.run`` for a whole run.
    last_is_shared: whether the last layer is shared and the one before it personal.
    **options: of the run.
  """
  fed, clients = federation()
  result = play(name, fed, *run, **options)
  order = slice(None, None, -1 if last_is_shared else 1)
  shared, head = start(fed)[order]
  heads = [head] * len(clients)
  for _ in range(ROUNDS):
    anchor = mean(
      [
        gradients((shared, head)[order][0], (shared, head)[order][1], x, y)[order][0]
        for head, (x, y) in zip(heads, clients)
      ],
      clients,
    )
    of = [
      play_client(shared, head, x, y, anchor) for head, (x, y) in zip(heads, clients)
    ]
    shared, heads = mean([pair for pair, _ in of], clients), [head for _, head in of]
  if heads_after is not None:
    heads = [heads_after(shared, head, x, y) for head, (x, y) in zip(heads, clients)]
  for i, head in enumerate(heads):
    params = result.client_params(i)["params"]
    for name, pair in zip(("Dense_0", "Dense_1"), (shared, head)[order]):
      np.testing.assert_allclose(params[name]["kernel"], pair[0], atol=2e-6)
      np.testing.assert_allclose(params[name]["bias"], pair[1], atol=2e-6)


@pytest.mark.program
@pytest.mark.parametrize(
  ("name", "when"),
  [("fedper", "together"), ("fedrep", "first"), ("fedbabu", "evaluation")],
)
def test_personal_layers_are_those_of_numpy(name, when):
  check(
    name,
    lambda *args: sgd(*args[:4], when=when),
    fit_head if when == "evaluation" else None,
    *[fa.run] * (name == "fedrep"),  # as below
  )


def test_the_complement_shares_the_last_layer_alone():
  """LG-FedAvg is FedPer with the roles of both layers exchanged."""
  check(
    "lg_fedavg",
    lambda shared, head, x, y, anchor: sgd(head, shared, x, y, "together")[::-1],
    last_is_shared=True,
  )


def test_variance_is_reduced_in_the_shared_part():
  check("fsvrg", fsvrg, client_lr=2.0, roles=HEAD)


def test_of_one_client_a_personal_layer_is_a_shared_one():
  """Both move with the same gradient and rate, and nobody else has a say."""
  fed, _ = federation((20,))
  without_roles, with_roles = (
    play("scaffold", fed, batch_size=4, local_steps=5, **options).client_params(0)
    for options in ({}, dict(roles=HEAD))
  )
  problems.assert_close(without_roles, with_roles)


def test_clients_keep_their_heads_and_newcomers_fit_theirs():
  fed, _ = federation((6, 9, 14, 8))
  options = dict(cohort_size=2, rounds=1, eval_every=1)
  without = play("fedper", fed, **options)
  with_fit = play("fedper", fed, personal="together:steps=3", **options)
  head = start(fed)[1][0]
  asleep = [
    i
    for i in range(4)
    if np.allclose(
      without.client_params(i)["params"]["Dense_1"]["kernel"], head, atol=1e-6
    )
  ]
  assert len(asleep) == 2  # who has not taken part deploys the initial head
  for i in range(4):
    same = np.array_equal(
      with_fit.client_params(i)["params"]["Dense_1"]["kernel"],
      without.client_params(i)["params"]["Dense_1"]["kernel"],
    )
    assert same == (i not in asleep)


@pytest.mark.parametrize(
  "name, training, vectors",
  [
    ("fedavg", roles.PersonalTogether, 1),
    ("scaffold", roles.PersonalTogether, 2),
    ("fedavg", roles.PersonalFirst, 1),
  ],
)
def test_a_head_is_never_sent_and_its_own_steps_are_counted(name, training, vectors):
  model = roles.split(
    models.MLP((WIDTH,)).build((4,), CLASSES),
    ["personal:last"],
    training(steps=3),
  )
  algorithm = registry.build(
    name, model, map_clients=ClientMap(), local_steps=2, batch_size=0
  )
  key = jax.random.key(0)

  @problems.quick_jit
  def cost(data):  # all else is dead code
    state = algorithm.init(model.init(key), FedSpec(3, 3, CLASSES, (4,)), key)
    return algorithm.round(state, layout.everyone(data), key)[1].cost

  num_floats = vectors * (4 * WIDTH + WIDTH)
  steps = 2 + (3 if training is roles.PersonalFirst else 0)
  assert [int(n) for n in cost(federation()[0].data.train)[:4]] == [
    num_floats,
    num_floats,
    1,
    steps * sum(SIZES),
  ]


class Bench:
  """An algorithm whose clients have private heads, round by round."""

  def __init__(self, name, training=roles.PersonalTogether(), **options):
    self.data = federation()[0].data.train
    self.model = roles.split(
      models.MLP((WIDTH,)).build((4,), CLASSES, l2=0.01), ["personal:last"], training
    )
    work = dict(local_steps=4, batch_size=0, client_lr=0.5)
    self.algorithm = registry.build(
      name, self.model, map_clients=ClientMap(), **work | options
    )
    self.round = problems.quick_jit(self.algorithm.round)
    spec = FedSpec(3, 3, CLASSES, (4,), sum(SIZES))
    self.start = problems.quick_jit(
      lambda: loop.initial_state(
        lambda numbers: self.algorithm, self.model, spec, run_keys(5), {}, self.data
      )
    )()

  def play(self, state, *ids):
    """The state after a round of these clients."""
    slots = jnp.int32([*ids, *[3] * (3 - len(ids))])
    return self.round(state, layout.take_cohort(self.data, slots), jax.random.key(2))[0]

  def gradient(self, params, head, client):
    """Of a client with this head, by the shared parameters."""
    shard = layout.shard_of(self.data, client)._replace(personal=head)
    return objective.full_value_and_grad(self.model, params, shard)[1]


def heads_of(state):
  """[C, ...], the private layers in a state."""
  if hasattr(state, "clients"):
    return state.clients[0].leaves
  return state.memory.extra.leaves


def test_delayed_gradients_are_those_of_the_clients_heads():
  """Before round 1 and of who joins; without it they are those of seed 0's head."""
  bench = Bench("losac", variant="client:full")
  w = trees.index(bench.start.models, 0)

  def check(state, clients):
    for i in clients:
      problems.assert_close(
        problems.row(state.own_memory.table, i),
        bench.gradient(w, problems.row(heads_of(state), i), i),
      )

  check(bench.start, range(3))
  extended = bench.start.memory
  heads = trees.scale(-2.0, extended.extra.leaves)
  state = bench.start._replace(
    memory=extended._replace(extra=extended.extra._replace(leaves=heads))
  )
  cohort = layout.take_cohort(bench.data, jnp.int32([0, 3, 3]))
  joining = cohort._replace(newcomers=jnp.array([False, True, True]))
  check(bench.round(state, joining, jax.random.key(2))[0], (1, 2))


def test_all_clients_are_clustered_by_steps_with_their_heads():
  """FL+HC: without it every client takes the steps with the head of seed 0."""
  bench = Bench("flhc", local_steps=1, cluster_after=1, max_groups=2)
  before = bench.play(bench.start, 0, 1, 2)
  w = trees.index(before.models, 0)
  steps = [bench.gradient(w, problems.row(heads_of(before), i), i) for i in range(3)]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps)
  updates = -0.5 * np.asarray(trees.to_matrix(stacked)[0])
  after = bench.play(before, 0, 1, 2)
  for k in range(2):
    mean_update = updates[np.asarray(after.member) == k].mean(0)
    np.testing.assert_allclose(after.memory.directions[k], mean_update, atol=1e-6)


@pytest.mark.parametrize(
  ("name", "options"),
  [
    ("fedgroup", dict(num_groups=2, centers="kmeans:10", pretrain_steps=1)),
    ("ifca", dict(num_groups=2, group_init="kmeans++", local_steps=1)),
  ],
)
def test_groups_before_round_1_come_from_steps_with_the_heads_of_the_run(name, options):
  """Without it clients take these steps with the head of seed 0."""
  bench = Bench(name, **options)
  w, heads = bench.model.init(run_keys(5).model), heads_of(bench.start)
  steps = [bench.gradient(w, problems.row(heads, i), i) for i in range(3)]
  updates = -0.5 * np.asarray(
    trees.to_matrix(jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps))[0]
  )
  start = np.asarray(trees.to_matrix(jax.tree.map(lambda leaf: leaf[None], w))[0])
  moves = np.asarray(trees.to_matrix(bench.start.models)[0]) - start
  member = np.asarray(bench.start.member)
  for k in range(2):  # a mean over the members of a group, or the step of one client
    sets = [member == k] if name == "fedgroup" else np.eye(3, dtype=bool)
    gaps = [np.abs(moves[k] - updates[members].mean(0)).max() for members in sets]
    assert min(gaps) < 1e-6


@pytest.mark.parametrize(
  ("name", "options"),
  [
    ("composed", {}),
    ("composed", dict(grouping="model:2,threshold=3")),
    ("ifca", dict(num_groups=1, group_init="shared")),
  ],
)
def test_the_gradient_after_training_is_that_of_the_new_head(name, options):
  """One participant, as the server knows it; without it that of the old head."""
  bench = Bench(name, server="adaptive:0.9,0.999", server_lr=1e-6, **options)
  state = bench.play(bench.start, 1)
  server = state.server.step if name == "ifca" else state.server
  expected = bench.gradient(
    trees.index(state.models, 0), problems.row(heads_of(state), 1), 1
  )
  problems.assert_close(trees.index(server, 0).m, trees.scale(0.1, expected), rtol=1e-4)


def test_gradients_that_are_grouped_are_those_of_the_new_heads():
  """GA in its warm-up, which is a step along the gradient of the trained model."""
  options = dict(client_update="mime", server="average")
  bench = Bench("composed", **options)
  trained = trees.index(bench.play(bench.start, 1).models, 0)
  by_gradient = Bench("composed", grouping="gradient:2,threshold=3", **options)
  state = by_gradient.play(by_gradient.start, 1)
  move = trees.subtract(*(trees.index(s.models, 0) for s in (by_gradient.start, state)))
  expected = bench.gradient(trained, problems.row(heads_of(state), 1), 1)
  length = (trees.squared_norm(move) / trees.squared_norm(expected)) ** 0.5
  problems.assert_close(move, trees.scale(length, expected), rtol=1e-4)


@pytest.mark.parametrize("training", [roles.PersonalTogether, roles.PersonalFirst])
def test_heads_move_at_the_rate_of_the_round(training):
  """In round 3 of a schedule: without it they would move at the rate of round 1."""
  falling, constant = (
    Bench("fedavg", training(), **options)
    for options in (
      dict(client_lr=0.5, client_lr_schedule="step:0.1,1"),
      dict(client_lr=0.005),
    )
  )
  start = falling.start._replace(round=jnp.int32(2))
  problems.assert_close(
    *(heads_of(bench.play(start, 0, 1, 2)) for bench in (falling, constant))
  )


def test_a_rate_that_changes_from_step_to_step_is_no_rate_of_a_head():
  over_steps = dict(client_lr_schedule="cosine:4,over=steps")
  with pytest.raises(fa.OptionError, match="^client_lr_schedule=.*a rate above 0"):
    play("fedper", federation()[0], **over_steps)
  Bench("fedavg", roles.PersonalTogether(rate=0.1), **over_steps)


def test_frozen_parameters_stay_and_are_those_of_a_closure(tmp_path):
  fed, _ = federation()
  result = play("fedavg", fed, fa.run, roles={"frozen": "Dense_0"})
  full_model = models.MLP((WIDTH,)).build((4,), CLASSES)
  values = jax.jit(full_model.init)(jax.random.key(0))["params"]["Dense_0"]

  def apply(head, x):
    return full_model.apply({"params": {"Dense_0": values, "Dense_1": head}}, x)

  head_model = models.from_functions(
    lambda key: full_model.init(key)["params"]["Dense_1"], apply
  )
  closed = play("fedavg", fed, model=head_model)
  params = result.client_params(0)["params"]
  np.testing.assert_array_equal(params["Dense_0"]["kernel"], values["kernel"])
  problems.assert_close(params["Dense_1"], closed.client_params(0))

  # They are in no checkpoint, so the record says which they were.
  facts = result.save(tmp_path / "run") / "config.json"
  config = json.loads(facts.read_text())
  assert config["plan"]["roles"]["frozen"] == 25
  digest = hashlib.sha256(
    b"".join(
      np.asarray(values[name], np.float32).tobytes() for name in ("bias", "kernel")
    )
  )
  assert config["plan"]["frozen_sha256"] == digest.hexdigest()
  # Asking for it again reads it.
  again = functools.partial(
    play, "fedavg", fed, fa.run, roles={"frozen": "Dense_0"}, out_dir=tmp_path / "run"
  )
  assert again().state_hash() == result.state_hash()
  config["plan"]["frozen_sha256"] = "of others"
  config = run_files.seal(config)
  facts.write_text(json.dumps(config))
  about = facts.with_name("summary.json")
  summary = json.loads(about.read_text()) | {"config": config["sha256"]}
  about.write_text(json.dumps(run_files.seal(summary)))
  with pytest.raises(fa.RunFolderError, match="other frozen parameters"):
    fa.load_run(tmp_path / "run", federation=fed).client_params(0)
  with pytest.raises(fa.RunFolderError, match="out_dir=.*other frozen parameters"):
    again()


def test_interrupted_runs_resume_with_personal_parameters(tmp_path):
  """The rows are part of a run's folder."""
  fed, _ = federation()
  result = play("fedrep", fed, fa.run)
  result.save(tmp_path / "run")
  loaded = fa.load_run(tmp_path / "run", federation=fed)
  assert loaded.state_hash() == result.state_hash()
  problems.assert_equal(result.client_params(1), loaded.client_params(1))


@pytest.mark.parametrize(
  "options",
  [
    dict(personal="first"),
    dict(personal="together:steps=3", roles="frozen:last"),
    dict(personal="together:0.1", model_state="local"),
  ],
)
def test_without_personal_parameters_their_training_is_refused(options):
  """Without it a run would have what it does not do in its name."""
  with pytest.raises(fa.OptionError, match="^personal=.*no parameter is personal"):
    play("fedavg", federation()[0], **options)


def test_held_out_clients_start_from_the_head_of_the_run():
  """That of another seed is foreign to the body, which was trained with this one."""
  federation = fa.federate(
    "digits", partition="iid", num_clients=6, seed=1, validation_clients=2
  )
  result = fa.run(
    "fedper",
    federation,
    model="mlp:8",
    cohort_size=1,
    rounds=1,
    seeds=[3],
    evaluate="held_out",
  )
  train, (offset, size) = federation.data.train, federation.data.held_out
  rows = np.concatenate(
    [np.arange(o + n - n // 5, o + n) for o, n in zip(offset, size, strict=True)]
  )
  right = [
    (result.predict(train.x[rows], client=i) == train.y[rows]).mean() for i in range(4)
  ]
  # Three of the four clients have not taken part: they have the first head.
  assert np.median(right) == sorted(right)[1]
  np.testing.assert_allclose(
    result.metrics["held_out"]["accuracy"][0, -1], np.median(right), atol=1e-6
  )
