"""Fed3R, FedNCM, FedCOF, the dual stream, DeepAFL and SAFLe: oracles, identities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import kernel_approximation, linear_model

import fedjax_alg as fa
from fedjax_alg import models, registry
from fedjax_alg.base import NEVER, FedSpec
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.engine.evaluate import count_shard
from fedjax_alg.errors import OptionError
from fedjax_alg.least_squares import class_means, closed_form
from fedjax_alg.models import feature_map, residual
from fedjax_alg.runs import methods
from tests import problems
from tests.each import each
from tests.extras.unlearning import test_revision
from tests.reference import analytic_family as oracle

FEATURES, CLASSES, SLOTS = 5, 3, 6
SIZES = (3, 40, 7, 12, 1, 27)
MODEL = models.Softmax().build((FEATURES,), CLASSES)
#: As many clients, and four; the others hold nothing.
PARTITIONS = (SIZES, SIZES[::-1], (50, 0, 20, 0, 19, 1))
#: Features that are not centred, in classes that depend on all of them.
rng = np.random.default_rng(2)
X = (rng.normal(size=(sum(SIZES), FEATURES)) + 0.3).astype(np.float32)
Y = np.argmax(X @ rng.normal(size=(FEATURES, CLASSES)) + X[:, :1] ** 2, 1)
ORDER = rng.permutation(sum(SIZES))


def dealt(sizes, order=ORDER):
  """[(x, y)] of clients of these sizes."""
  ends = np.cumsum(sizes)[:-1]
  return list(zip(np.split(X[order], ends), np.split(Y[order].astype(np.int32), ends)))


def holders(parts):
  """The clients of the oracle: float64, those with examples alone."""
  return [(x.astype(float), y) for x, y in parts if len(y)]


@functools.cache
def program(name, model=MODEL, classes=CLASSES, **settings):
  """(parts, rounds) -> (algorithm, state, last cost); rounds compiled once."""
  algorithm = registry.build(name, model, map_clients=clients.ClientMap(), **settings)
  spec = FedSpec(SLOTS, SLOTS, classes, (FEATURES,))

  @problems.quick_jit
  def start(data):
    everyone, key = layout.everyone(data), jax.random.key(0)
    return algorithm.setup(algorithm.init(model.init(key), spec, key), everyone, key)

  @problems.quick_jit
  def round_(state, data):
    return algorithm.round(state, layout.everyone(data), jax.random.key(0))

  def run(parts, rounds=1):
    data = problems.client_data(parts)
    state = start(data)
    for _ in range(rounds):
      state, aux = round_(state, data)
    return algorithm, state, aux.cost, data

  return run


def head(state):
  """(W [d, L], b [L]) of a softmax model."""
  inner = state.models["params"]
  return np.asarray(inner["kernel"][0]).T, np.asarray(inner["bias"][0])


def fitted(name, parts, **settings):
  return head(program(name, **settings)(parts)[1])


def assert_close(actual, expected, atol=2e-6):
  np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=atol)


SAME = {
  "fed3r": (
    dict(ridge="0.5"),
    lambda parts: oracle.fed3r(parts, CLASSES, 0.5, lambda x: x),
  ),
  "fedncm": (
    {},
    lambda parts: (
      oracle.unit_rows(oracle.fedncm(parts, CLASSES)).T,
      np.zeros(CLASSES),
    ),
  ),
  "safle": (
    dict(ridge="0.5"),
    lambda parts: oracle.fed3r(parts, CLASSES, 0.5, lambda x: x, "none", False),
  ),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("sizes", PARTITIONS)
def test_it_is_the_papers_formula_in_every_partition(name, sizes):
  settings, expected = SAME[name]
  actual = fitted(name, dealt(sizes), **settings)
  for part, other in zip(actual, expected(holders(dealt(SIZES))), strict=True):
    assert_close(part, other)


# Fed3R.


def test_without_features_ridge_and_norm_fed3r_is_afl_to_the_bit():
  plain = dict(ridge="0.0", normalize=False, bias="none")
  for actual, expected in zip(
    fitted("fed3r", dealt(SIZES), **plain), fitted("afl", dealt(SIZES))
  ):
    np.testing.assert_array_equal(actual, expected)


def test_on_random_features_it_is_scikit_learns_ridge_of_all_the_data():
  sampler = kernel_approximation.RBFSampler(
    gamma=0.2, n_components=30, random_state=0
  ).fit(X)
  phi = feature_map.random_features(sampler.random_weights_, sampler.random_offset_)
  model = feature_map.on_features(models.Softmax().build((30,), CLASSES), phi)
  run = program("fed3r", model, ridge="0.5", normalize=False, bias="none")
  _, state, cost, _ = run(dealt(SIZES))
  params = jax.tree.map(lambda leaf: leaf[0], state.models)
  z = sampler.transform(X)
  ridge = linear_model.Ridge(0.5, fit_intercept=False, solver="cholesky")
  ridge.fit(z, np.eye(CLASSES)[Y])
  np.testing.assert_allclose(
    model.apply(params, X), ridge.predict(z), rtol=0, atol=1e-6
  )
  # The seed of the features is known: the head down, its sums up.
  assert [int(count) for count in cost[:2]] == [90, 465 + 90 + 30 + 3]


# FedNCM and FedCOF.


def test_fedncm_predicts_the_nearest_mean():
  weights, bias = fitted("fedncm", dealt(SIZES), distance="euclidean")
  means = np.stack([X[Y == c].mean(0) for c in range(CLASSES)])
  distances = ((X[:, None] - means[None]) ** 2).sum(-1)
  np.testing.assert_array_equal((X @ weights + bias).argmax(1), distances.argmin(1))


@pytest.mark.parametrize("sizes", PARTITIONS)
def test_fedcof_is_the_papers_formula(sizes):
  """It reads the partition: the clients' means are its only source of spread."""
  weights, bias = fitted("fedcof", dealt(sizes), shrinkage=0.1)
  assert_close(weights, oracle.fedcof(holders(dealt(sizes)), CLASSES, 0.1), 1e-5)
  np.testing.assert_array_equal(bias, np.zeros(CLASSES))


def covariance_of(sums, counts):
  """FedCOF's of clients' sums [.., M, d] of one class and numbers [.., M]."""
  with jax.enable_x64(True):

    def of_clients(sums, counts):
      spread = jax.vmap(class_means.spread_of)(
        class_means.Means(sums[:, None], counts[:, None])
      )
      return class_means.covariances(jax.tree.map(lambda leaf: leaf.sum(0), spread))[0]

    return np.asarray(jax.vmap(of_clients)(jnp.asarray(sums), jnp.asarray(counts)))


def test_the_covariance_is_unbiased():
  """Over 200 deals alike its mean is within its error; a wrong divisor is far off."""
  x = np.random.default_rng(5).normal(size=(60, 2)) @ [[2.0, 0.0], [1.0, 0.5]]
  sizes, generator = (2, 5, 8, 10, 15, 20), np.random.default_rng(6)
  ends = np.cumsum(sizes)[:-1]
  sums = np.stack(
    [
      [part.sum(0) for part in np.split(x[generator.permutation(60)], ends)]
      for _ in range(200)
    ]
  )
  estimates = covariance_of(sums, np.tile(np.array(sizes, float), (200, 1)))
  error = estimates.std(0) / np.sqrt(200)
  truth = np.cov(x.T)
  assert (np.abs(estimates.mean(0) - truth) < error).all()
  assert (error < 0.06 * np.sqrt(np.outer(*[np.diag(truth)] * 2))).all()


def test_clients_of_one_example_send_the_covariance_itself():
  x = X[:20].astype(float)
  estimate = covariance_of(x[None], np.ones((1, 20)))[0]
  np.testing.assert_allclose(estimate, np.cov(x.T), rtol=1e-9)


@pytest.mark.parametrize(
  "name, settings, down",
  [("fedncm", {}, 15), ("fedncm", dict(distance="euclidean"), 18), ("fedcof", {}, 15)],
)
def test_means_and_numbers_are_sent(name, settings, down):
  cost = program(name, **settings)(dealt(SIZES))[2]
  assert [int(count) for count in cost[:3]] == [down, 15 + 3, 1]


# The dual stream.

DUAL = dict(client_ridge=0.2, remove_ridge=False)


def deployed(run, parts, client):
  """What a client deploys after the round."""
  algorithm, state, _, data = run(parts)
  shard = layout.everyone(data).shards
  shard = shard._replace(offset=shard.offset[client], size=shard.size[client])
  return algorithm.client_params(state, jnp.int32(client), shard, jax.random.key(0))


def refined(client, parts, **settings):
  run = program("afl_dual", **DUAL, **settings)
  params = deployed(run, parts, client)
  algorithm, *_ = run(parts)
  return params, algorithm.client_model(MODEL).apply(params, X)


@pytest.mark.parametrize("client", (1, 4))
@pytest.mark.parametrize("width", (0, 8))
def test_a_client_refines_what_the_primary_stream_leaves(client, width):
  omega = np.random.default_rng(4).standard_normal((FEATURES, width))
  phi = (lambda x: oracle.relu(x, omega)) if width else lambda x: x
  w, _, predict = oracle.dual_stream(
    holders(dealt(SIZES)), CLASSES, SLOTS * 0.2, 0.7, 0.5, phi
  )
  params, outputs = refined(
    client,
    dealt(SIZES),
    refinement_ridge="0.7",
    refinement_weight=0.5,
    refinement_features=width,
    refinement_seed=4,
  )
  assert_close(params["primary"]["params"]["kernel"].T, w)
  assert_close(outputs, predict(X.astype(float), client))


def test_an_infinite_mu_is_afl_to_the_bit():
  params, outputs = refined(1, dealt(SIZES), refinement_ridge="inf")
  np.testing.assert_array_equal(
    params["primary"]["params"]["kernel"].T, fitted("afl", dealt(SIZES), **DUAL)[0]
  )
  np.testing.assert_array_equal(outputs, MODEL.apply(params["primary"], X))


def test_others_may_be_dealt_anew():
  """The model of client 1 is the same whoever holds the other examples."""
  first = dealt(SIZES)
  others = np.setdiff1d(np.arange(90), np.arange(3, 43))
  shuffled = np.random.default_rng(9).permutation(others)
  order = np.concatenate([shuffled[:3], np.arange(3, 43), shuffled[3:]])
  second = dealt(SIZES, ORDER[order])
  np.testing.assert_array_equal(first[1][0], second[1][0])
  assert_close(refined(1, first)[1], refined(1, second)[1])
  # The number of the others counts where their ridge stays; here all are there.
  assert np.abs(refined(1, first)[1] - refined(3, first)[1]).max() > 0.05


# DeepAFL.

BLOCKS = models.Residual(blocks=2, features=7).build((FEATURES,), CLASSES)


@pytest.mark.parametrize("sizes", PARTITIONS)
def test_blocks_and_heads_are_the_papers_formulas(sizes):
  run = program("deepafl", BLOCKS, ridge="0.5", block_ridge=0.3)
  _, state, _, _ = run(dealt(sizes), rounds=5)
  blocks = [
    lambda phi, t=t: np.asarray(residual.hidden(t, jnp.asarray(phi, jnp.float32), 7))
    for t in range(2)
  ]
  expected = oracle.deepafl(holders(dealt(SIZES)), CLASSES, blocks, 0.5, 0.3)
  params = state.models["params"]
  for name, value in (("Delta_0", expected[1]), ("Delta_1", expected[3])):
    assert_close(params[name][0], value, 1e-5)
  assert_close(params["head"]["kernel"][0], expected[4], 1e-5)


def test_the_first_round_and_no_block_are_least_squares():
  blocks = program("deepafl", BLOCKS, ridge="0.5")(dealt(SIZES))[1].models["params"]
  weights, _ = fitted("deepafl", dealt(SIZES), ridge="0.5")
  np.testing.assert_array_equal(blocks["head"]["kernel"][0], weights)
  ridge = dict(client_ridge=0.5 / SLOTS, remove_ridge=False)
  assert_close(weights, fitted("afl", dealt(SIZES), **ridge)[0])
  np.testing.assert_array_equal(
    fitted("deepafl", dealt(SIZES), ridge="0.0")[0], fitted("afl", dealt(SIZES))[0]
  )


def test_what_rounds_of_deepafl_send():
  f, d = 7, FEATURES
  heads = [d * CLASSES, d * (d + 1) // 2 + d * CLASSES + d + CLASSES]
  block = [f * d, f * (f + 1) // 2 + f * CLASSES + 1]
  for rounds, expected in ((1, heads), (2, block), (3, heads), (5, heads), (6, [0, 0])):
    cost = program("deepafl", BLOCKS, ridge="0.5")(dealt(SIZES), rounds)[2]
    assert [int(count) for count in cost[:2]] == expected


# Forgetting.

FORGOTTEN = {
  **SAME,
  "fedcof": (
    {},
    lambda parts: (oracle.fedcof(parts, CLASSES, 0.1), np.zeros(CLASSES)),
  ),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_forgotten_client_has_never_been_there(name):
  """What a method adds up of a client is what it subtracts."""
  settings, expected = FORGOTTEN[name]
  parts = dealt(SIZES)
  algorithm, state, _, data = program(name, store_sums=True, **settings)(parts)
  everyone, client = layout.everyone(data), np.array([1])
  shards = everyone.shards
  leaving = everyone._replace(
    ids=everyone.ids[client],
    weight=everyone.weight[client],
    shards=shards._replace(offset=shards.offset[client], size=shards.size[client]),
  )
  state = problems.quick_jit(lambda state: algorithm.revise(state, leaving, 0, -1))(
    state
  )
  others = holders([parts[0], *parts[2:]])
  for actual, other in zip(head(state), expected(others), strict=True):
    assert_close(actual, other, 1e-5)


#: What a method needs to have a solution, of all whose clients can be forgotten.
SOLVABLE = {
  "afl": dict(client_ridge=0.25, remove_ridge=False),
  "afl_dual": dict(client_ridge=0.25, remove_ridge=False),
  "pfedacnnl": dict(clustering="none", personal_ridge="none"),
}
WITH_SUMS = [
  name
  for name, entry in registry.ALGORITHMS.items()
  if hasattr(entry.hparams, "store_sums")
]
#: The maps of examples before a head, as small as they can be.
MAPS = (
  feature_map.NoFeatureMap(),
  feature_map.FourierFeatures(6),
  feature_map.ReLUFeatures(6),
  feature_map.BucketFeatures((0.0, 1.0), group_size=2),
)


def _on_map(kind):
  """The softmax model of what a feature map makes of the examples."""
  phi = kind.draw((FEATURES,), np.dtype(np.float32))
  if phi is None:
    return MODEL
  return feature_map.on_features(models.Softmax().build((phi.width,), CLASSES), phi)


def _rare_class(leaving):
  """Clients of whom these alone hold class 2; (data, data without their rows)."""
  x, y = X.copy(), np.where(Y == 2, 0, Y).astype(np.int32)
  owner = np.repeat(np.arange(SLOTS), SIZES)
  rare = np.flatnonzero(np.isin(owner, leaving) & (np.arange(len(y)) % 2 == 0))
  y[rare] = 2
  # Of so different sizes that float64 rounds their sums.
  x[rare[::2], 0] *= np.float32(1e4)
  x[rare[1::2], 0] *= np.float32(1e-6)
  ends = np.cumsum(SIZES)[:-1]
  parts = list(zip(np.split(x, ends), np.split(y, ends)))
  data = problems.client_data(parts)._replace(joins=np.zeros(SLOTS, np.int32))
  is_out = np.isin(np.arange(SLOTS), leaving)
  without = data._replace(
    size=np.where(is_out, 0, data.size).astype(np.int32),
    joins=np.where(is_out, NEVER, 0).astype(np.int32),
  )
  return data, without


@pytest.mark.parametrize("name", WITH_SUMS)
def test_who_alone_holds_a_class_takes_it_along(name):
  """As in a run that never had them, also one after the other.

  Rounding leaves a remainder of what they have sent. Scaled up to the norm 1, it
  would be a weight of a class that nobody has.
  """
  leaving = [1, 3, 5]
  data, without = _rare_class(leaving)
  settings = SOLVABLE.get(name, {}) | {"store_sums": True}
  algorithm = registry.build(name, MODEL, map_clients=clients.ClientMap(), **settings)
  spec = FedSpec(SLOTS, SLOTS, CLASSES, (FEATURES,))

  @problems.quick_jit
  def run(data):
    everyone, key = layout.everyone(data), jax.random.key(0)
    state = algorithm.init(MODEL.init(key), spec, key)
    return algorithm.round(algorithm.setup(state, everyone, key), everyone, key)[0]

  @problems.quick_jit
  def forget(state, data, ids):
    return algorithm.revise(state, layout.take_cohort(data, ids), 0, -1)

  never, state = run(without), run(data)
  for client in leaving:
    state = forget(state, data, np.array([client], np.int32))
  bits = lambda state: np.asarray(state.sums[0].clients).tolist()
  assert bits(state) == bits(never)
  for part in ("models", "counts"):
    problems.assert_close(getattr(state, part), getattr(never, part), 1e-5)
  weights, bias = head(state)
  scores = X @ weights + bias
  np.testing.assert_array_equal(weights[:, 2], 0)
  if name == "fedncm":  # not even where all other scores are negative
    assert (scores[:, :2].max(1) < 0).any()
    assert (scores.argmax(1) < 2).all()


@pytest.mark.parametrize("kind", MAPS, ids=str)
@pytest.mark.parametrize("name", WITH_SUMS)
def test_forgetting_and_evaluating_trace_with_every_feature_map(name, kind):
  """Closed form is traced with float64 around it, the evaluation after it without."""
  data, _ = _rare_class([1])
  model = _on_map(kind)
  settings = SOLVABLE.get(name, {}) | {"store_sums": True}
  algorithm = registry.build(name, model, map_clients=clients.ClientMap(), **settings)
  spec = FedSpec(SLOTS, SLOTS, CLASSES, (FEATURES,))

  def run(data):
    everyone, key = layout.everyone(data), jax.random.key(0)
    state = algorithm.init(model.init(key), spec, key)
    return algorithm.round(algorithm.setup(state, everyone, key), everyone, key)[0]

  def forget(state, data, ids):
    return algorithm.revise(state, layout.take_cohort(data, ids), 0, -1)

  state = jax.eval_shape(run, data)
  revised = jax.eval_shape(forget, state, data, np.array([1], np.int32))
  assert jax.tree.map(lambda leaf: leaf.dtype, revised) == jax.tree.map(
    lambda leaf: leaf.dtype, state
  )

  def evaluate(state, data):
    params = jax.tree.map(lambda leaf: leaf[0], state.models)
    return count_shard(model, params, layout.shard_of(data, 0))[0]

  counts = jax.eval_shape(evaluate, revised, data)
  assert {leaf.dtype for leaf in counts.values()} == {np.dtype(np.float32)}


def test_blocks_are_fitted_again_without_a_forgotten_client():
  """Every step reads the blocks before it alone, those after it are there already."""
  options = dict(model="residual:blocks=1,features=4", store_sums=True)
  everyone, others = (
    fa.run("deepafl", test_revision.federation(clients), evaluate="global", **options)
    for clients in (test_revision.NAMES, (1, 2, 3, 5, 6))
  )
  result = fa.forget(everyone, 4, refit=True)
  test_revision.assert_same(result, others)


# Classes that nobody has, or has any more.

#: Rows 100 times as far from 0 as those that the models are fitted to.
FAR = 100 * np.random.default_rng(8).normal(size=(500, FEATURES)).astype(np.float32)
WIDER = models.Softmax().build((FEATURES,), CLASSES + 2)
WIDER_BLOCKS = models.Residual(blocks=1, features=7).build((FEATURES,), CLASSES + 2)
KEEP_RIDGE = dict(client_ridge=0.2, remove_ridge=False)
PULL = dict(personal_ridge="5", clustering="kmeans:2")


@pytest.mark.parametrize(
  "name, model, settings, rounds",
  [
    ("afl", WIDER, {}, 1),
    ("afl", WIDER, dict(bias="centred", outputs="log_odds"), 1),
    ("afl_dual", WIDER, KEEP_RIDGE, 1),
    ("fed3r", WIDER, {}, 1),
    ("fedncm", WIDER, {}, 1),
    ("fedncm", WIDER, dict(distance="euclidean"), 1),
    ("fedcof", WIDER, {}, 1),
    ("deepafl", WIDER_BLOCKS, dict(ridge="0.5"), 3),
    ("pfedacnnl", WIDER, PULL, 2),
  ],
)
def test_a_class_that_nobody_has_is_never_predicted(name, model, settings, rounds):
  """Its scores are 0, the largest ones where those of all others are negative."""
  run = program(name, model, CLASSES + 2, **settings)
  algorithm, state, _, data = run(dealt(SIZES), rounds)
  params = jax.tree.map(lambda leaf: leaf[0], state.models)
  outputs = [model.apply(params, FAR)]
  shards = layout.everyone(data).shards
  deploy = problems.quick_jit(
    lambda i: algorithm.client_params(
      state, i, shards.at(shards.offset[i], shards.size[i]), jax.random.key(0)
    )
  )
  deployed_model = algorithm.client_model(model)
  outputs += [deployed_model.apply(deploy(jnp.int32(i)), FAR) for i in (1, 3)]
  for scores in outputs:
    assert np.isfinite(scores).all()
    counts = np.bincount(np.argmax(scores, 1), minlength=CLASSES + 2)
    assert not counts[CLASSES:].any() and (counts[:CLASSES] > 0).all()
    # A score of 0 would be the largest of all somewhere.
    if name in ("afl", "fedncm") and not settings:
      assert (np.max(scores[:, :CLASSES], 1) < 0).any()


@pytest.mark.parametrize("name", ["afl", "fed3r", "fedncm", "fedcof"])
def test_a_class_whose_only_holder_leaves_is_that_of_nobody(name):
  """The same bias as if it had never been there, to the bit."""
  only = np.flatnonzero(Y == CLASSES - 1)
  others = np.flatnonzero(Y < CLASSES - 1)
  mine = (X[only], Y[only].astype(np.int32))
  parts = [(X[rows], Y[rows].astype(np.int32)) for rows in np.array_split(others, 5)]
  settings = KEEP_RIDGE if name == "afl" else {}
  run = program(name, store_sums=True, **settings)
  algorithm, state, _, data = run([mine, *parts])
  everyone, client = layout.everyone(data), np.array([0])
  shards = everyone.shards
  leaving = everyone._replace(
    ids=everyone.ids[client],
    weight=everyone.weight[client],
    shards=shards.at(shards.offset[client], shards.size[client]),
  )
  assert (np.argmax(FAR @ head(state)[0] + head(state)[1], 1) == CLASSES - 1).any()
  state = problems.quick_jit(lambda state: algorithm.revise(state, leaving, 0, -1))(
    state
  )
  nobody = (X[:0], Y[:0].astype(np.int32))
  never = run([nobody, *parts])[1]
  for actual, expected in zip(head(state), head(never), strict=True):
    assert_close(actual, expected, 1e-5)
  weights, bias = head(state)
  assert not weights[:, -1].any() and bias[-1] == closed_form.ABSENT
  assert (np.argmax(FAR @ weights + bias, 1) < CLASSES - 1).all()


# Log odds.


@pytest.mark.parametrize(
  "name, settings, ridge",
  [
    ("afl", dict(client_ridge=0.5 / SLOTS, remove_ridge=False, bias="centred"), 0.5),
    ("fed3r", dict(ridge="0.5", bias="centred"), 0.5),
    ("fedacnnl", dict(ridge="0.5", bias="centred"), 0.5),
    ("afl", dict(bias="centred"), 0.0),
  ],
)
def test_log_odds_follow_from_the_sums_in_every_partition(name, settings, ridge):
  """Discriminant analysis of ridge scores, by NumPy; their norm changes nothing."""
  expected = oracle.log_odds(X.astype(float), Y, CLASSES, ridge)
  # Clients without examples bring no ridge of theirs.
  for sizes in PARTITIONS[:2] if "client_ridge" in settings else PARTITIONS:
    weights, bias = fitted(name, dealt(sizes), outputs="log_odds", **settings)
    assert_close(special.softmax(X @ weights + bias, 1), expected, 1e-5)


def test_log_odds_are_of_the_last_head_of_deepafl():
  """Blocks are fitted to what the scores leave of the targets."""
  settings = dict(ridge="0.5", block_ridge=0.3)
  scores, odds = (
    program("deepafl", BLOCKS, outputs=outputs, **settings)(dealt(SIZES), 5)[1].models
    for outputs in ("scores", "log_odds")
  )
  for block in ("Delta_0", "Delta_1"):
    np.testing.assert_array_equal(odds["params"][block], scores["params"][block])
  probabilities = special.softmax(
    BLOCKS.apply(jax.tree.map(lambda leaf: leaf[0], odds), X), 1
  )
  assert -np.log(probabilities[np.arange(len(Y)), Y]).mean() < 0.4  # of scores 0.8


# Heads of other tasks.

PAIR = models.Softmax().build((FEATURES,), 2, task="binary")


@pytest.mark.parametrize("name", ["fedncm", "fedcof"])
def test_two_classes_are_classes(name):
  """The task binary has one class for each example, too."""
  parts = [(x, np.minimum(y, 1)) for x, y in dealt(SIZES)]
  plain = models.Softmax().build((FEATURES,), 2)
  of_pair, of_classes = (
    head(program(name, model, 2)(parts)[1]) for model in (PAIR, plain)
  )
  problems.assert_equal(of_pair, of_classes)


@pytest.fixture(scope="module")
def signs():
  """(x, numbers [n, 3]) of which the signs are labels."""
  x = np.random.default_rng(4).normal(size=(200, FEATURES)).astype(np.float32) + 0.5
  noise = np.random.default_rng(5).normal(size=(200, 3))
  return x, (x @ np.diag([1.0, 2, 3, 0, 0])[:, :3] + noise - 1).astype(np.float32)


@pytest.mark.parametrize("task", ("multi_label", "regression"))
@pytest.mark.parametrize(
  "name, settings",
  [
    ("afl", dict(client_ridge=0.25, remove_ridge=False)),
    ("fed3r", dict(ridge="1", normalize=False)),
    ("fedacnnl", dict(ridge="1")),
    ("afl_dual", dict(client_ridge=0.25, remove_ridge=False)),
  ],
)
def test_heads_of_labels_and_numbers_are_scikit_learns(name, settings, task, signs):
  """Fitted to 0 and 1, nearly every label would be predicted: 0 is no half way."""
  x, y = signs
  if task == "multi_label":
    y = (y > 0).astype(np.int32)
    expected = linear_model.RidgeClassifier(1.0).fit(x, y).predict(x)
  else:
    expected = linear_model.Ridge(1.0).fit(x, y).predict(x)
  examples = fa.from_arrays(x, y, x_test=x, y_test=y, task=task)
  fed = fa.federate(examples, partition="iid", num_clients=4)
  result = fa.run(name, fed, bias="centred", evaluate="global", **settings)
  np.testing.assert_allclose(result.predict(x), expected, rtol=0, atol=1e-5)


# Refusals.

DEEP = models.MLP((4,)).build((FEATURES,), CLASSES)
NUMBERS = models.Softmax().build((FEATURES,), 2, task="regression")
LABELS = models.Softmax().build((FEATURES,), 2, task="multi_label")
DEEP_LABELS = models.MLP((4,)).build((FEATURES,), 2, task="multi_label")


@each(
  "name, model, settings, message",
  [
    *(
      (name, DEEP, {}, f"algorithm={name}: fits one layer on features, .* has 2")
      for name in ("fed3r", "fedncm", "fedcof", "safle", "afl_dual")
    ),
    ("deepafl", DEEP, {}, "algorithm=deepafl: fits residual blocks and a head"),
    ("fedacnnl", BLOCKS, {}, "algorithm=fedacnnl: .* residual blocks .*deepafl"),
    ("fedncm", NUMBERS, {}, "algorithm=fedncm: reads one class for each example"),
    ("fedcof", LABELS, {}, "algorithm=fedcof: reads one class for each example"),
    ("fed3r", LABELS, {}, "normalize: divides the weights of a class"),
    ("fedacnnl", DEEP_LABELS, {}, "algorithm=fedacnnl: fits hidden layers to codes"),
    ("pfedacnnl", LABELS, {}, "clustering: groups clients by their classes, the task"),
    ("fed3r", MODEL, dict(ridge="-1"), "ridge=-1: must be at least 0"),
    ("afl", NUMBERS, dict(outputs="log_odds"), "outputs=log_odds: are those of clas"),
    (
      "safle",
      MODEL,
      dict(outputs="log_odds", private="moments"),
      "outputs=log_odds: not with private",
    ),
    ("deepafl", BLOCKS, dict(block_ridge=0.0), "block_ridge=0.0: must be more than 0"),
  ],
)
def test_refused_in_one_line(name, model, settings, message):
  with pytest.raises(OptionError, match=f"^{message}"):
    registry.build(name, model, map_clients=clients.ClientMap(), **settings)


def test_residual_blocks_are_checked_before_the_data_are_read():
  """As the command line does; a perceptron in their place would be refused."""
  method = methods.method_of("deepafl")
  methods.check_builds(method, 3, residual=True)
  with pytest.raises(OptionError, match="fits residual blocks and a head"):
    methods.check_builds(method, 3)
