"""Compressors against NumPy, real messages, and what the theory promises."""

import functools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import base, registry, trees
from fedjax_alg.central.steps import average
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.engine import clients
from fedjax_alg.exchange import compression, exchange_of
from fedjax_alg.exchange.compression import QSGD, Compression, RandomK, TopK
from fedjax_alg.part import convert_types
from fedjax_alg.rounds.two_halves import compose
from tests import problems
from tests.algorithms import bridge
from tests.each import each

pytestmark = pytest.mark.program

KEY = jax.random.key(7)
RNG = np.random.default_rng(0)
#: 607 entries, two buckets of qsgd; the bias is no matrix.
TREE = {
  "kernel": jnp.asarray(RNG.normal(size=(30, 4, 5)), jnp.float32),
  "bias": jnp.asarray(RNG.normal(size=7), jnp.float32),
}
FLAT = np.concatenate([TREE["bias"], np.ravel(TREE["kernel"])])
SEVERAL = ["topk:0.1", "randk:0.1", "sign", "powersgd:2"]


def make(text, feedback=False):
  if not feedback and not text.startswith("qsgd"):
    text = f"{text}{',' if ':' in text else ':'}feedback=false"
  compressor, _ = convert_types(Compression(compress_up=text)).compressors()
  assert compressor is not None
  return compressor


@functools.cache
def sender(text, feedback=False):
  compressor = make(text, feedback)
  return compressor, problems.quick_jit(compressor.send)


def compress(text, tree=TREE):
  compressor, send = sender(text)
  return compressor, send(tree, compressor.init(tree), KEY)[0]


def flat(tree):
  """In the order of the leaves, the bias first."""
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_the_largest_entries_are_sent():
  _, decoded = compress("topk:0.1")
  order = np.argsort(-np.abs(FLAT))[:61]
  expected = np.zeros_like(FLAT)
  expected[order] = FLAT[order]
  np.testing.assert_array_equal(flat(decoded), expected)
  np.testing.assert_array_equal(flat(compress("topk:1")[1]), FLAT)


def test_random_entries_are_sent():
  _, decoded = compress("randk:0.1")
  mask = flat(decoded) != 0
  assert mask.sum() == 61
  np.testing.assert_allclose(
    flat(decoded)[mask], FLAT[mask] * np.float32(607 / 61), rtol=1e-6
  )
  with_memory = make("randk:0.1", feedback=True)
  decoded, memory = jax.jit(with_memory.send)(TREE, with_memory.init(TREE), KEY)
  np.testing.assert_array_equal(flat(decoded)[mask], FLAT[mask])
  np.testing.assert_array_equal(flat(memory.error), np.where(mask, 0, FLAT))


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_entries_are_rounded_to_the_level_below_or_above(bits):
  _, decoded = compress(f"qsgd:{bits}")
  levels = 2 ** (bits - 1) - 1
  for part in (slice(0, 512), slice(512, None)):
    step = np.abs(FLAT[part]).max() / levels
    codes = flat(decoded)[part] / step
    np.testing.assert_allclose(codes, np.round(codes), atol=levels * 1e-6)
    assert np.abs(codes).max() <= levels + 1e-3
    assert (np.abs(flat(decoded)[part] - FLAT[part]) <= 1.001 * step).all()


def test_signs_have_the_scale_of_their_leaf():
  bias = jnp.array([0.0, -3.0, 0.0, 1.0, 0.0, 0.0, 0.0])
  _, decoded = compress("sign", TREE | {"bias": bias})
  np.testing.assert_allclose(
    decoded["bias"], np.array([4, -4, 4, 4, 4, 4, 4]) / 7, rtol=1e-6
  )
  kernel = np.asarray(TREE["kernel"])
  np.testing.assert_allclose(
    decoded["kernel"], np.sign(kernel) * np.abs(kernel).mean(), rtol=1e-5
  )


def test_factors_are_a_step_of_the_power_method():
  compressor, send = sender("powersgd:2")
  memory = compressor.init(TREE)
  right = np.asarray(memory[1], np.float64)
  for _ in range(2):
    decoded, memory = send(TREE, memory, KEY)
    matrix = np.asarray(TREE["kernel"], np.float64).reshape(120, 5)
    basis, _ = np.linalg.qr(matrix @ right)
    right = matrix.T @ basis
    np.testing.assert_allclose(
      np.asarray(decoded["kernel"]).reshape(120, 5), basis @ right.T, atol=1e-4
    )
  np.testing.assert_array_equal(decoded["bias"], TREE["bias"])
  for _ in range(20):  # the factor is kept: it goes to the best one
    decoded, memory = send(TREE, memory, KEY)
  values = np.linalg.svd(matrix, compute_uv=False)
  np.testing.assert_allclose(
    np.linalg.norm(flat(decoded) - FLAT), np.linalg.norm(values[2:]), rtol=0.05
  )


@pytest.mark.parametrize("text", ["randk:0.1", "qsgd:2", "qsgd:4"])
def test_the_mean_is_what_was_to_be_sent(text):
  """Over 4,000 keys, within five standard errors."""
  compressor = make(text)
  assert compressor.unbiased
  keys = jax.random.split(KEY, 4000)
  decoded = jax.jit(jax.vmap(lambda key: compressor.send(TREE, (), key)[0]))(keys)
  decoded = np.concatenate(
    [
      np.asarray(leaf, np.float64).reshape(4000, -1)
      for leaf in jax.tree.leaves(decoded)
    ],
    axis=1,
  )
  if text.startswith("randk"):
    variance = (607 / 61 - 1) * FLAT.astype(np.float64) ** 2
  else:
    largest = [np.abs(FLAT[:512]).max(), np.abs(FLAT[512:]).max()]
    step = np.repeat(largest, 512)[:607] / (2 ** (int(text[-1]) - 1) - 1)
    part = np.abs(FLAT) / step % 1
    variance = step**2 * part * (1 - part)
  error = np.abs(decoded.mean(0) - FLAT)
  assert (error < 5 * (variance / 4000) ** 0.5 + 1e-6).all()
  np.testing.assert_allclose(
    ((decoded - FLAT) ** 2).sum(1).mean(), variance.sum(), rtol=0.02
  )


@hypothesis.given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=35, max_size=35))
def test_a_contraction(entries):
  """||C(u) - u||^2 <= (1 - d) ||u||^2, with the d of each compressor."""
  u = np.array(entries, np.float32)
  tree = {"bias": u[:5], "kernel": u[5:].reshape(6, 5)}
  size = (u.astype(np.float64) ** 2).sum()
  means = sum(
    np.abs(part.astype(np.float64)).sum() ** 2 / len(part) for part in (u[:5], u[5:])
  )
  bounds = {"topk:0.1": (1 - 4 / 35) * size, "sign": size - means, "powersgd:2": size}
  for text, bound in bounds.items():
    _, decoded = compress(text, tree)
    error = ((flat(decoded).astype(np.float64) - u) ** 2).sum()
    assert error <= bound + 1e-4 * size + 1e-12, text
  assert np.linalg.matrix_rank(decoded["kernel"], tol=1e-3 * size**0.5) <= 2


@pytest.mark.parametrize("text", SEVERAL)
def test_what_was_sent_and_what_is_kept_are_all_there_was(text):
  compressor, send = sender(text, True)
  memory, total, total_update = compressor.init(TREE), 0.0, 0.0
  for number in range(5):
    u = jax.tree.map(
      lambda leaf: np.asarray(leaf) * np.float32(1.0 - 0.3 * number), TREE
    )
    decoded, memory = send(u, memory, jax.random.fold_in(KEY, number))
    total, total_update = total + flat(decoded), total_update + flat(u)
    np.testing.assert_allclose(
      total + flat(memory.error), total_update, atol=2e-5 * np.abs(total_update).max()
    )
  assert np.abs(flat(memory.error)).max() > 0.1


# A round.


def moves_by(client, number):
  """The update of a client in a round, without any data."""
  return jnp.sin(np.arange(52, dtype=np.float32) * (client + 2.0) + 3.0 * number)


def probe():
  """A client's half whose updates are known."""

  def train(received, *_):
    update = moves_by(
      received.client_id.astype(jnp.float32), received.round.astype(jnp.float32)
    )
    _, unravel = jax.flatten_util.ravel_pytree(received.start)
    return Trained(trees.add(received.start, unravel(update)), jnp.zeros(()))

  return ClientUpdate(train, LocalWork(local_steps=1))


COHORTS = ([1, 4, 7], [4, 2, 12], [7, 4, 1], [1, 12, 12])


@pytest.mark.parametrize("mode", ["lanes", "mesh"])
def test_every_client_has_an_error_of_its_own(problem, mesh, mode):
  """Rounds of top-k with feedback as a loop over clients in NumPy."""
  map_clients = clients.ClientMap(
    "sequential" if mode == "mesh" else mode, mesh=mesh if mode == "mesh" else None
  )
  algorithm = compose(
    problem.model,
    probe(),
    average(),
    map_clients=map_clients,
    exchange=exchange_of(Compression(compress_up="topk:0.1")),
  )
  state = bridge.init(problem, algorithm, KEY)
  round_ = problems.quick_jit(algorithm.round)
  w, errors = flat(state.models).astype(np.float64), np.zeros((12, 52))
  for number, ids in enumerate(COHORTS):
    state, aux = round_(state, bridge.cohort_of(problem, ids), KEY)
    present = [i for i in ids if i < 12]
    mean = np.zeros(52)
    for i in present:
      u = np.asarray(moves_by(float(i), float(number))) + errors[i]
      largest = np.argsort(-np.abs(u))[:6]
      errors[i] = u
      errors[i][largest] = 0
      mean += problems.SIZES[i] * (u - errors[i])
    w += mean / sum(problems.SIZES[i] for i in present)
    np.testing.assert_allclose(flat(problems.row(state.models, 0)), w, atol=1e-5)
    table = state.memory.extra.error
    np.testing.assert_allclose(
      np.concatenate(
        [np.asarray(leaf).reshape(12, -1) for leaf in jax.tree.leaves(table)], axis=1
      ),
      errors,
      atol=1e-5,
    )
    # 6 floats, and 6 places of 6 bits.
    assert (aux.cost.up, aux.cost.bytes_up) == (8, 29)
    assert (aux.cost.down, aux.cost.bytes_down) == (52, None)


def test_a_client_without_examples_keeps_what_it_has_not_sent(problem):
  """Its examples may come back (``shift``), and with them what it owes."""
  algorithm = compose(
    problem.model,
    probe(),
    average(),
    map_clients=clients.ClientMap(),
    exchange=exchange_of(Compression(compress_up="topk:0.1")),
  )
  round_, ids = problems.quick_jit(algorithm.round), [0, 1, 2, 3]
  state = bridge.init(problem, algorithm, KEY)
  state, _ = round_(state, bridge.cohort_of(problem, ids), KEY)
  owed = problems.row(state.memory.extra, 2)
  assert any(np.any(leaf) for leaf in jax.tree.leaves(owed))
  size = jnp.asarray(problem.data.size).at[2].set(0)
  without = problem._replace(data=problem.data._replace(size=size))
  state, _ = round_(state, bridge.cohort_of(without, ids), KEY)
  problems.assert_equal(problems.row(state.memory.extra, 2), owed)


@pytest.mark.parametrize(
  "name, settings", [("scaffold", {}), ("fednova", {}), ("ifca", dict(num_groups=2))]
)
def test_all_entries_are_the_update_itself(problem, name, settings):
  """Methods with a table, with rows, with groups: as if nothing were there."""
  results = []
  for text in ("none", "topk:1"):
    options = dict(local_steps=2, compress_up=text, **settings)
    states, (_, aux) = bridge.history(
      problem,
      name,
      [[3, 12, 1, 0, 9]] * 2,
      bridge.KEYS[:2],
      problems.some_params(problem.model),
      **options,
    )
    algorithm = bridge.build(problem, name, **options)
    results.append((algorithm.global_params(states[-1]), aux.server))
  problems.assert_close(*results, rtol=1e-4, atol=1e-5)
  preference = 4 if name == "ifca" else 0
  variates = 4 * 52 if name == "scaffold" else 0
  assert aux.cost.bytes_up == 4 * 52 + 7 + preference + variates


def test_unbiased_compressors_serve_anchor_gradients(problem):
  """16 bits are nearly all; the ledger has the update and the gradient."""
  models, costs = {}, {}
  for text in ("none", "qsgd:16", "topk:0.1"):
    algorithm = bridge.build(
      problem, "fsvrg", local_steps=2, client_lr=1.0, compress_up=text
    )
    _, state, aux = bridge.one_round(problem, algorithm, [3, 1, 9])
    models[text], costs[text] = problems.row(state.models, 0), jax.device_get(aux.cost)
  problems.assert_close(models["qsgd:16"], models["none"], atol=1e-4)
  assert problems.differ(models["qsgd:16"], models["none"])
  assert costs["qsgd:16"].up == 2 * (2 * 52 + 4) // 4
  assert costs["topk:0.1"].bytes_up == 4 * 52 + 29  # the gradient is whole


def test_bytes_of_the_warm_up_and_of_groups(problem):
  """One of the two is whole floats; without it the round cannot be traced."""
  _, log = bridge.history(
    problem,
    "ma_fsvrg",
    [[3, 1, 9]] * 2,
    bridge.KEYS[:2],
    problems.some_params(problem.model),
    local_steps=2,
    client_lr=1.0,
    num_models=3,
    threshold=1,
    accelerate=False,
    compress_up="qsgd:2",
  )
  message = 2 * 52 // 8 + 4
  # Updates, gradients of each model, a preference.
  for gradients, aux in zip((1, 3), log, strict=True):
    assert aux.cost.bytes_up == (1 + gradients) * message + 4


# Options.


@pytest.mark.parametrize(
  "text, pattern",
  [
    ("topk:0", "share=0.0: must be more than 0 and at most 1"),
    ("qsgd:4,feedback=false", "feedback.*bits"),
    ("sign:2", "its fields are feedback"),
  ],
)
def test_what_names_no_compressor(text, pattern):
  with pytest.raises(ValueError, match=f"compress_down={text}: .*{pattern}"):
    convert_types(Compression(compress_down=text))


def test_who_keeps_what_is_not_sent():
  kept = {
    text: compression.keeps(make(text, True), TREE)
    for text in ("topk:0.1", "qsgd:8", "sign")
  }
  assert kept == {"topk:0.1": True, "qsgd:8": False, "sign": True}
  up, down = Compression(QSGD(8), RandomK(0.5, feedback=False)).compressors()
  assert up.unbiased and down.unbiased and down.name == "randk:0.5,feedback=false"
  assert TopK(0.1) == convert_types(Compression("topk:0.1")).compress_up


@each(
  "name, settings, pattern",
  [
    ("composed", dict(client_update="dyn"), "h is the mean of all"),
    (
      "composed",
      dict(client_update="svrg", grouping="gradient:2"),
      "send gradients, not updates",
    ),
    ("ga_fsvrg", {}, "send gradients, not updates"),
    ("losac", dict(variant="table"), "allowed: qsgd, or feedback=false"),
    ("fedzo", dict(uplink="seeds"), "has a message of its own"),
    ("feddyn", {}, "does not read it .h is the mean of all"),
    ("afl", {}, "does not read it .it sends sums over its data, not updates"),
    ("baffle", {}, "does not read it .it sends loss differences"),
    ("central", {}, "does not read it .nothing is sent"),
  ],
)
def test_what_cannot_be_compressed(problem, name, settings, pattern):
  bridge.assert_refused(
    problem, name, f".*compress_up.*{pattern}", compress_up="topk:0.1", **settings
  )


def test_groups_do_not_follow_each_other(problem):
  bridge.assert_refused(
    problem, "ifca", "compress_down=sign: clients receive", compress_down="sign"
  )


@pytest.mark.parametrize(
  "name",
  [
    name
    for name, entry in registry.ALGORITHMS.items()
    if "compress_up" in entry.fields and name != "ga_fsvrg"
  ],
)
def test_compression_reaches_every_method(problem, name):
  algorithm = bridge.build(problem, name, compress_up="qsgd:4")
  method = bridge.method_of(algorithm)
  size = base.num_params(method.params)  # of all that is sent, K components for one
  assert size % 52 == 0
  assert method.client.upload_bytes(0) == size // 2 + base.BYTES_PER_FLOAT
