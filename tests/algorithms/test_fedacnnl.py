"""FedACnnL and pFedACnnL against the NumPy oracle, and what must hold."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models, registry
from fedjax_alg.algorithms import fedacnnl
from fedjax_alg.base import ClientData, FedSpec
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, clock, loop
from fedjax_alg.least_squares import codes, few_rows, moments
from fedjax_alg.models.layers import Conv, Dense, MaxPool
from fedjax_alg.runs import methods
from tests import problems
from tests.algorithms import bridge
from tests.each import each
from tests.reference import analytic as oracle

CLASSES = 4
#: One client has more rows than a block, one a single example.
SIZES = (30, 140, 1, 22, 45, 17)
#: Clients of either kind hold two classes only.
KIND = np.array([0, 1, 0, 1, 1, 0])
#: name -> words of the stack, shape of an example. A hidden layer wider than
#: there are classes, one narrower, and no image that is a square.
STACKS = {
  "mlp": (("dense7", "dense3"), (9,)),
  "cnn": (("conv3-5", "avg2", "conv2-3", "max2", "dense6"), (8, 6)),
  "small": (("conv3-5", "avg2", "dense3"), (8, 6)),
  "shallow": (("dense6",), (9,)),
}
RECIPE = dict(
  bias="centred",
  code="position:1,centred",
  normalize=True,
  ridge_unit="relative",
)
CASES = [
  ("mlp", dict(bias="ones", ridge="0.5,2,0.1", code="position:centred")),
  ("cnn", dict(bias="none", code="position:1", ridge="0.5,2,1,0.1")),
  (
    "small",
    dict(
      bias="ones",
      code="class:centred",
      normalize=True,
      ridge="0.01",
      ridge_unit="relative",
    ),
  ),
  ("small", dict(bias="centred", code="random_filters", normalize=True)),
]
KEY = jax.random.key(7)


@functools.cache
def problem(name):
  """A stack with the clients of ``SIZES``; classes differ in their mean."""
  words, shape = STACKS[name]
  rng = np.random.default_rng(3)
  centres = rng.normal(size=(CLASSES, *shape))
  arrays = []
  for size, kind in zip(SIZES, KIND):
    y = rng.integers(2, size=size) + 2 * kind
    x = centres[y] + rng.normal(size=(size, *shape))
    arrays.append((x.astype(np.float32), y.astype(np.int32)))
  model = models.Stack(words).build(shape, CLASSES)
  return problems.Problem(
    model,
    problems.client_data(arrays),
    arrays,
    FedSpec(len(arrays), len(arrays), CLASSES, shape),
  )


def start_of(model, dtype=np.float32):
  """Parameters that the first rounds leave behind the layer they fit."""
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(dtype),
    jax.eval_shape(model.init, jax.random.key(0)),
  )


def play(federation, name, number, **settings):
  """``bridge.history`` of ``number`` rounds of all clients."""
  everyone = list(range(federation.spec.num_clients))
  return bridge.history(
    federation,
    name,
    [everyone] * number,
    [KEY] * number,
    start_of(federation.model),
    **settings,
  )


@functools.cache
def run_stack(stack, name="fedacnnl", number=0, **settings):
  """(states, log) of a run, by default a round for every layer; kept."""
  number = number or len(problem(stack).model.layers)
  return play(problem(stack), name, number, **settings)


def images(x):
  """An axis of one channel where there is none: [n, H, W, 1] or [n, d]."""
  return x[..., None] if x.ndim == 3 else x


def oracle_clients(federation):
  return [(images(x), y) for x, y in federation.clients]


def own_code(seed, model, l, kind):
  """Q of hidden layer l as every client draws it, [L, width] or [L, P, width]."""
  layer = model.layers[l]
  kind = "class" if layer.positions == 1 else kind
  code = np.asarray(_draw(layer.positions, layer.width, kind)(seed, l), np.float64)
  return code[:, 0] if code.shape[1] == 1 else code


@functools.cache
def _draw(positions, width, kind):
  """(seed, l) -> the code of a hidden layer of these sizes."""
  layer = types.SimpleNamespace(positions=positions, width=width)
  return problems.quick_jit(
    lambda seed, l: codes.draw_code(
      jax.random.fold_in(jax.random.wrap_key_data(seed), l),
      layer,
      CLASSES,
      kind,
      jnp.float32,
    )
  )


def oracle_layers(stack, seed, name="fedacnnl", **settings):
  """The stack as the oracle's list, with the codes of ``seed``."""
  h = methods.with_keywords(methods.method_of(name), settings).hparams
  model = problem(stack).model
  gammas = [float(word) for word in h.ridge.split(",")]
  words = (*models.parse_layers(STACKS[stack][0]), Dense(CLASSES))
  result, l = [], 0
  for word in words:
    if not isinstance(word, (Dense, Conv)):
      kind = "max" if isinstance(word, MaxPool) else "avg"
      result.append({"kind": kind, "size": word.size})
      continue
    layer = dict(
      ridge=gammas[l % len(gammas)], bias=h.bias, relative=h.ridge_unit == "relative"
    )
    if isinstance(word, Conv):
      layer.update(kind="conv", kernel=word.kernel)
    else:
      result.append({"kind": "flatten"})
      layer.update(kind="dense")
    if l < len(model.layers) - 1:
      layer["normalize"] = h.normalize
      if isinstance(h.code, codes.RandomFilters):
        key = jax.random.fold_in(jax.random.wrap_key_data(seed), l)
        shape = model.layers[l].fan_in, model.layers[l].width
        layer["filters"] = np.asarray(jax.random.normal(key, shape))
      else:
        layer.update(
          code=own_code(seed, model, l, h.code.WORD),
          centre=h.code.centred,
          laplacian=l < h.code.high_passed and isinstance(word, Conv),
        )
    result.append(layer)
    l += 1
  return result


def weights_of(model, params):
  """Per layer (W [d, width], b), float64."""
  return [
    tuple(np.asarray(part, np.float64) for part in layer.get(params))
    for layer in model.layers
  ]


def errors(actual, expected):
  """Per layer and part |difference| / |expected|, Euclidean norms; W, b."""
  return [
    np.linalg.norm(mine - theirs) / max(np.linalg.norm(theirs), 1e-30)
    for a, b in zip(actual, expected, strict=True)
    for mine, theirs in zip(a, b[:2], strict=True)
  ]


def assert_same(actual, expected, rtol=1e-5):
  assert max(errors(actual, expected), default=0) < rtol, errors(actual, expected)


# Against the oracle.


@pytest.mark.parametrize("stack, settings", CASES)
def test_a_run_is_the_oracle(stack, settings):
  federation = problem(stack)
  states, _ = run_stack(stack, **settings)
  expected = oracle.fedacnnl(
    oracle_clients(federation),
    oracle_layers(stack, states[0].code_seed, **settings),
    CLASSES,
  )
  start = weights_of(federation.model, start_of(federation.model))
  # A layer a round, the later ones as they were.
  for l, state in enumerate(states):
    actual = weights_of(federation.model, bridge.model_of(state))
    assert_same(actual[:l], expected[:l])
    problems.assert_equal(actual[l:], start[l:])
    assert int(state.round) == l
  x = np.concatenate([x for x, _ in federation.clients])
  np.testing.assert_allclose(
    problems.quick_jit(federation.model.apply)(bridge.model_of(states[-1]), x),
    oracle.forward(
      oracle_layers(stack, states[0].code_seed, **settings), expected, images(x)
    ),
    rtol=1e-4,
    atol=1e-5,
  )


# Groups and personal layers.


GROUPED: dict[str, dict] = {
  "mlp": dict(bias="ones", normalize=True, code="position:centred", personal_ridge="2"),
  "small": dict(RECIPE, ridge="0.01,1,0.03", personal_ridge="5"),
  # Nothing is personal of random filters.
  "shallow": dict(
    code="random_filters",
    bias="centred",
    clustering="kmeans:norm=l2",
    personal_ridge="0.5",
  ),
}


def run_grouped(stack):
  """A run of ``GROUPED`` with a round for every layer, two for personal ones."""
  return run_stack(
    stack, "pfedacnnl", 2 * len(problem(stack).model.layers), **GROUPED[stack]
  )


@functools.cache
def deploy_program(stack, **settings):
  return bridge.deployer(problem(stack), "pfedacnnl", **settings)


def deploy(stack, state, i, holder=None, make=deploy_program, **settings):
  """What client i deploys whose data are those of ``holder``, or its own."""
  return make(stack, **{**GROUPED[stack], **settings})(state, i, KEY, holder)[0]


def test_groups_are_clients_of_like_labels():
  states, log = run_grouped("mlp")
  np.testing.assert_array_equal(states[0].member, np.full(len(SIZES), -1))
  for state, aux in zip(states[1:], log):
    member = np.asarray(state.member)
    assert set(zip(member.tolist(), KIND.tolist())) in (
      {(0, 0), (1, 1)},
      {(0, 1), (1, 0)},
    )
    np.testing.assert_array_equal(aux.client["group"], member)
  federation = problem("mlp")
  for group in (0, 1):
    labels = np.concatenate(
      [
        y
        for (_, y), group_of_client in zip(federation.clients, member)
        if group_of_client == group
      ]
    )
    np.testing.assert_array_equal(
      states[0].counts[group], np.bincount(labels, minlength=CLASSES)
    )


@pytest.mark.parametrize("stack", list(GROUPED))
def test_centres_are_means_of_encoded_label_vectors(stack):
  """(8), (9): the code of the layer with the fewest units or channels."""
  federation, (states, _) = problem(stack), run_grouped(stack)
  widths = [layer.width for layer in federation.model.layers[:-1]]
  code = own_code(
    states[0].code_seed, federation.model, int(np.argmin(widths)), "class"
  )
  vectors = oracle.encoded_label_vectors(federation.clients, code, CLASSES)
  if GROUPED[stack].get("clustering") == "kmeans:norm=l2":
    shares = oracle.encoded_label_vectors(federation.clients, None, CLASSES)
    vectors = vectors / np.linalg.norm(shares, axis=1, keepdims=True)
  member = np.asarray(states[-1].member)
  np.testing.assert_allclose(
    states[0].centres,
    [vectors[member == group].mean(0) for group in (0, 1)],
    rtol=1e-5,
    atol=1e-6,
  )


@pytest.mark.parametrize(
  "stack, rows", [*((stack, False) for stack in GROUPED), ("mlp", True)]
)
def test_groups_and_personal_layers_are_the_oracle(stack, rows, monkeypatch):
  """(10)-(13), after every round of the personal layers.

  Once more with dense layers by the rows of clients of up to 32 examples.
  """
  make, sizes, fit = deploy_program, set(), few_rows.fit_by_rows
  if rows:
    monkeypatch.setattr(
      few_rows, "fit_by_rows", lambda *words: sizes.add(words[-2]) or fit(*words)
    )
    monkeypatch.setattr(
      few_rows,
      "row_limits",
      lambda layer, ridge: (4, 16, 32) if layer.positions == 1 else (),
    )
    monkeypatch.setattr(few_rows, "_FEWEST", 4)  # rows of a block
    make = functools.cache(deploy_program.__wrapped__)
  federation, (states, _) = problem(stack), run_grouped(stack)
  member, number = np.asarray(states[-1].member), len(federation.model.layers)
  settings = GROUPED[stack]
  meta, personal = oracle.pfedacnnl(
    oracle_clients(federation),
    member,
    oracle_layers(stack, states[0].code_seed, "pfedacnnl", **settings),
    float(settings["personal_ridge"]),
    CLASSES,
  )
  for group in (0, 1):
    assert_same(
      weights_of(federation.model, bridge.model_of(states[-1], group)), meta[group]
    )
  for state in states[number + 1 :]:
    problems.assert_equal(state.models, states[number].models)
  for i in (0, 1, 2):  # of both groups; one example
    for l in range(number + 1):
      params = deploy(stack, states[number + l], i, make=make)
      assert_same(
        weights_of(federation.model, params), [*personal[i][:l], *meta[member[i]][l:]]
      )
  if jax.default_backend() == "cpu":
    assert sizes == ({4, 16, 32} if rows else set())


def test_a_group_without_participants_keeps_its_model():
  federation, settings = problem("shallow"), dict(bias="ones", clustering="kmeans:2")
  ids = np.flatnonzero(KIND == 0).tolist()
  states, _ = bridge.history(
    federation,
    "pfedacnnl",
    [ids] * 2,
    [KEY] * 2,
    start_of(federation.model),
    **settings,
  )
  member = np.asarray(states[-1].member)
  np.testing.assert_array_equal(member == -1, KIND == 1)
  group = member[0]
  weights, other_weights = (
    weights_of(federation.model, bridge.model_of(states[-1], number))
    for number in (group, 1 - group)
  )
  expected = oracle.fedacnnl(
    [federation.clients[i] for i in ids],
    oracle_layers("shallow", states[0].code_seed, "pfedacnnl", **settings),
    CLASSES,
  )
  assert_same(weights, expected)
  problems.assert_equal(
    other_weights, weights_of(federation.model, start_of(federation.model))
  )


def test_a_newcomer_joins_those_with_labels_like_its_own():
  states, _ = run_grouped("mlp")
  for i in (0, 1, 4, 5):
    for state in (states[3], states[-1]):
      problems.assert_equal(
        deploy("mlp", state, len(SIZES), i), deploy("mlp", state, i)
      )
  # Whatever its number says: client 0's with the data of client 1.
  problems.assert_equal(deploy("mlp", states[-1], 0, 1), deploy("mlp", states[-1], 1))
  assert problems.differ(deploy("mlp", states[3], 0), deploy("mlp", states[3], 1))


def test_a_strong_pull_keeps_the_layer_of_the_group():
  """A pull for each layer: only the second becomes the client's own."""
  federation, (states, _) = problem("mlp"), run_grouped("mlp")
  last, layers = (
    states[-1],
    oracle_layers("mlp", states[0].code_seed, "pfedacnnl", **GROUPED["mlp"]),
  )
  for i in (0, 1):
    group = np.asarray(last.member) == last.member[i]
    meta = oracle.fedacnnl(
      [federation.clients[k] for k in np.flatnonzero(group)], layers, CLASSES
    )
    x, y = federation.clients[i]
    expected = oracle.personal_layer(
      oracle.statistics(oracle.forward(layers, meta[:1], x), y, CLASSES),
      meta[1],
      3.0,
      bias="ones",
    )
    actual = weights_of(
      federation.model, deploy("mlp", last, i, personal_ridge="1e12,3,1e12")
    )
    assert_same(actual, [meta[0], expected, meta[2]])
    assert max(errors([expected], meta[1:2])) > 1e-2
    # An infinite one: not fitted at all.
    partly_fitted = weights_of(
      federation.model, deploy("mlp", last, i, personal_ridge="inf,3,inf")
    )
    assert_same(partly_fitted, [meta[0], expected, meta[2]])
    group_model = bridge.model_of(last, last.member[i])
    for l in (0, 2):
      problems.assert_equal(
        partly_fitted[l], weights_of(federation.model, group_model)[l]
      )


# The weight-invariant property (section 3.2).


#: clients of the largest partition
MANY = 100


def partitions(name):
  """The same examples held by 1, 10 and 100 clients, and in another order.

  All with 100 clients, those too many without examples: one program.
  """
  federation = problem(name)
  number = sum(SIZES)
  rng = np.random.default_rng(0)
  x, y = (np.concatenate(parts) for parts in zip(*federation.clients))
  ends = {
    1: [number],
    10: np.sort(rng.choice(np.arange(1, number), 9, replace=False)).tolist() + [number],
    100: np.sort(rng.integers(number + 1, size=99)).tolist() + [number],
  }
  orders = {10: np.arange(number), 100: rng.permutation(number), 1: np.arange(number)}
  for count, stops in ends.items():
    stops = np.array(stops + [number] * (MANY - count))
    starts = np.concatenate([[0], stops[:-1]])
    data = problems.client_data([(x[orders[count]], y[orders[count]])])
    ids = rng.permutation(MANY) if count == 10 else np.arange(MANY)
    yield (
      data._replace(
        offset=jnp.asarray(starts, jnp.int32),
        size=jnp.asarray(stops - starts, jnp.int32),
      ),
      ids,
    )


def weights_by(parts, dtype="float32", mesh=None, **settings):
  """(W, b) of every layer of the recipe for each of these partitions."""
  federation = problem("small")
  algorithm = registry.build(
    "fedacnnl",
    federation.model,
    map_clients=clients.ClientMap(mesh=mesh),
    ridge="0.01",
    **RECIPE,
    **settings,
  )
  spec = federation.spec._replace(num_clients=MANY, cohort_size=MANY)
  start = start_of(federation.model, dtype)

  @problems.quick_jit
  def begin(data: ClientData):
    return algorithm.setup(algorithm.init(start, spec, KEY), layout.everyone(data), KEY)

  round_ = problems.quick_jit(algorithm.round)

  def run(data, ids):
    data = data._replace(x=jnp.asarray(data.x, dtype))
    state = begin(data)
    cohort = layout.take_cohort(data, jnp.asarray(ids, jnp.int32))
    for _ in federation.model.layers:
      state, _ = round_(state, cohort, KEY)
    assert jax.tree.leaves(state.models)[0].dtype == dtype
    return weights_of(federation.model, bridge.model_of(state))

  return [run(*part) for part in parts]


@pytest.fixture(name="plain", scope="module")
def fixture_plain():
  """The recipe's weights of the stack in float32, from one client."""
  return weights_by(partitions("small"))


def largest_error(all_weights):
  return max(max(errors(weights, all_weights[0])) for weights in all_weights[1:])


def test_no_partition_changes_the_weights(plain):
  assert largest_error(plain) < 1e-5


def test_devices_and_small_blocks_change_no_weight(plain, mesh, monkeypatch):
  monkeypatch.setattr(moments, "block_rows", lambda layer: 7)
  weights = weights_by(list(partitions("small"))[1:], mesh=mesh)
  assert largest_error([plain[0], *weights]) < 1e-5


def test_in_double_precision_no_partition_changes_the_weights(plain):
  with jax.enable_x64(True):
    weights = weights_by(partitions("small"), "float64")
  assert largest_error(weights) < 1e-10
  assert_same(plain[0], weights[0])


def test_in_single_precision_partitions_change_little(plain):
  weights = weights_by(partitions("small"), precision="float32")
  assert 1e-6 < largest_error(weights) < 3e-4
  assert_same(weights[0], plain[0], 3e-4)


def test_nothing_fits_a_singular_gram_matrix():
  """Feature 11 is held by nobody."""
  federation = problems.softmax_problem()
  states, _ = bridge.history(
    federation,
    "fedacnnl",
    [list(range(12))],
    [KEY],
    start_of(federation.model),
    ridge="0",
    bias="none",
  )
  assert np.isnan(states[1].models["params"]["kernel"]).all()
  flags = {name: bool(fine) for name, fine in loop.all_finite(states[1]).items()}
  assert not flags["fits/0/basis"] and flags["centres"]
  for name in ("fedacnnl", "pfedacnnl"):
    assert "`ridge` more than 0" in registry.get(name).nonfinite


# Costs and time.


def test_costs_by_hand():
  """The stack of two convolutions, codes by position, no bias."""
  federation = problem("cnn")
  _, log = run_stack("cnn", **CASES[1][1])
  first, second = 48 * 9, 12 * 20  # positions x weights of a kernel
  # X'X, X'T or class sums, column sums, class counts.
  up = [
    45 + 9 * 5 + 9 + 4,
    210 + 20 * 3 + 20 + 4,
    21 + 6 * 4 + 6 + 4,
    21 + 6 * 4 + 6 + 4,
  ]
  down = [9 * 5, 20 * 3, 6 * 4, 6 * 4]
  forward = np.cumsum([0, 2 * first * 5, 2 * second * 3, 2 * 6 * 6])
  gram = [2 * first * 9, 2 * second * 20, 2 * 36, 2 * 36]
  server = [d**3 / 3 + 2 * d * d * r for d, r in ((9, 5), (20, 3), (6, 4), (6, 4))]
  for l, aux in enumerate(log):
    cost = aux.cost
    assert (int(cost.up), int(cost.down)) == (up[l], down[l])
    assert (int(cost.exchanges), int(cost.example_gradients)) == (1, 0)
    np.testing.assert_allclose(cost.central_flops, server[l], rtol=1e-6)
    np.testing.assert_allclose(
      aux.work.flops, (forward[l] + gram[l]) * np.array(SIZES), rtol=1e-6
    )
    np.testing.assert_array_equal(aux.work.batches, np.ceil(np.array(SIZES) / 32))
  assert federation.model.flops > forward[-1]


def test_late_clients_take_larger_batches_and_no_weight_changes():
  """(7), from the times of the simulated clock."""
  federation = problem("shallow")
  settings = dict(bias="ones", normalize=True)
  devices = clock.make_devices(
    0, len(SIZES), core_gflops=1e-5, bandwidth_gbps=(1e-5, 1e-4), batch_ms=30.0
  )
  timed = federation._replace(data=federation.data._replace(devices=devices))
  states, log = play(
    timed,
    "pfedacnnl",
    4,
    clustering="none",
    batch_size=8,
    adaptive_batch="up_to:25",
    **settings,
  )
  batch, first = np.full(len(SIZES), 8), None
  for before, after, aux in zip(states, states[1:], log):
    np.testing.assert_array_equal(before.batch, batch)
    np.testing.assert_allclose(aux.server["batch_size"], batch.mean(), rtol=1e-6)
    np.testing.assert_array_equal(aux.work.batches, np.ceil(np.array(SIZES) / batch))
    arrival = oracle.arrivals(
      aux.work.flops,
      aux.work.batches,
      aux.cost.down,
      aux.cost.up,
      np.asarray(devices.flops_per_s),
      float(devices.batch_s),
      np.asarray(devices.bytes_per_s),
    )
    first = arrival if first is None else first
    np.testing.assert_allclose(after.fastest, first.min(), rtol=1e-5)
    grown = oracle.adaptive_batch_size(batch, arrival, first, 25)
    if before is states[0]:
      assert (grown >= batch).all() and 8 == grown[np.argmin(first)] < (
        grown[np.argmax(first)]
      ) <= 25
    batch = grown
  np.testing.assert_array_equal(states[-1].batch, batch)

  fixed, fixed_log = play(
    timed,
    "pfedacnnl",
    4,
    clustering="none",
    personal_ridge="none",
    batch_size=8,
    adaptive_batch="none",
    **settings,
  )
  for state, fixed_state in zip(states, fixed, strict=True):
    problems.assert_equal(
      (state.models, state.fits), (fixed_state.models, fixed_state.fits)
    )
    np.testing.assert_array_equal(fixed_state.batch, np.full(len(SIZES), 8))
  assert (log[1].work.batches <= fixed_log[1].work.batches).all()
  assert (log[1].work.batches < fixed_log[1].work.batches).any()
  # Without personal layers clients have nothing to do after the last round.
  for aux in fixed_log[2:]:
    np.testing.assert_array_equal(aux.work, np.zeros((2, len(SIZES))))


# What users get wrong.


@each(
  "option, value, pattern",
  [
    ("ridge", "1,x", "must be numbers separated by commas"),
    ("ridge", "", "must be numbers separated by commas"),
    ("ridge", "1,-1,0", "must be at least 0"),
    ("ridge", "nan", "must be at least 0"),
    ("ridge", "inf", "must be at least 0"),
    ("ridge", "1,2", "2 numbers for 3 layers .allowed: one, or one for each"),
    ("personal_ridge", "1,x,1", "must be numbers"),
    ("personal_ridge", "1,0,1", "must be more than 0, or inf"),
    ("personal_ridge", "nan", "must be more than 0"),
    ("personal_ridge", "1,2", "2 numbers for 3 layers"),
  ],
)
def test_numbers_for_layers_that_cannot_be(option, value, pattern):
  for refused in (
    lambda: bridge.build(problem("mlp"), "pfedacnnl", **{option: value}),
    lambda: fedacnnl.num_rounds(fedacnnl.PFedACnnLHParams(**{option: value}), 3),
  ):
    with pytest.raises(ValueError, match=f"{option}={value}: {pattern}") as error:
      refused()
    assert "\n" not in str(error.value)


def test_rounds_are_layers_and_personal_layers():
  assert fedacnnl.num_rounds(fedacnnl.FedACnnLHParams(), 3) == 3
  assert fedacnnl.num_rounds(fedacnnl.PFedACnnLHParams(), 3) == 6
  assert fedacnnl.num_rounds(fedacnnl.PFedACnnLHParams(personal_ridge="none"), 3) == 3


def test_more_groups_than_clients():
  federation = problem("mlp")
  algorithm = bridge.build(
    federation, "pfedacnnl", clustering=f"kmeans:{len(SIZES) + 1}"
  )
  with pytest.raises(ValueError, match="num_groups=7: more than the 6"):
    algorithm.init(start_of(federation.model), federation.spec, KEY)


@pytest.mark.parametrize("name", ["fedacnnl", "pfedacnnl", "afl"])
def test_models_that_have_no_such_layers(name):
  model = problem("mlp").model._replace(layers=None)
  bridge.assert_refused(
    problem("mlp")._replace(model=model), name, f"algorithm={name}: .*others"
  )
