"""The four aggregations of adapters, against NumPy written from their papers."""

from flax import linen
import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.base import Cohort, Shard, round_cost
from fedjax_alg.extras.lora import adapters as lora
from fedjax_alg.extras.lora import merging
from tests.each import each

RANK, RATE, STEPS, ROUNDS = 2, 0.5, 3, 3
FACTOR = 3.0 / RANK


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs, one_device):
  """Equal programs are compiled once, for one device."""
  del share_programs, one_device


@pytest.fixture(scope="module", name="rows")
def fixture_rows():
  """Three clients of 4, 8 and 12 examples of 5 features in 4 classes."""
  rng = np.random.default_rng(0)
  clients = np.repeat([0, 1, 2], [4, 8, 12])
  x = rng.normal(size=(24, 5)).astype(np.float32)
  return x, (np.arange(24) % 4).astype(np.int32), clients


@pytest.fixture(scope="module", name="federation")
def fixture_federation(rows):
  x, y, clients = rows
  test = dict(x_test=x, y_test=y, test_client_ids=clients)
  return fa.federate(fa.from_arrays(*rows, num_classes=4, **test), partition="natural")


def run(federation, aggregation, algorithm="fedavg", **options):
  """A run of a layer [5, 4] whose weights and adapters all start away from 0."""
  rng = np.random.default_rng(1)
  start = {"kernel": rng.normal(size=(5, 4)), "bias": rng.normal(size=4)}
  init = {name: leaf.astype(np.float32) for name, leaf in start.items()}
  defaults = dict(
    model=linen.Dense(4),
    init=init,
    lora=f"{aggregation}:{RANK},alpha={FACTOR * RANK}",
    roles="lora",
    rounds=ROUNDS,
    participation=1.0,
    local_steps=STEPS,
    batch_size=0,
    client_lr=RATE,
    l2=0.0,
    eval_every=ROUNDS,
    evaluate="global",
  )
  return fa.run(algorithm, federation, **defaults | options)


def deployed(result):
  """The layer's matrix and A, as client 0 deploys them."""
  layer = result.client_params(0)["params"]
  return layer["kernel"] + FACTOR * layer["lora_a"] @ layer["lora_b"], layer


def train(x, y, w, bias, a, b, moves_a):
  """A client's steps: dL/dA = s G B', dL/dB = s A' G with G = dL/dW."""
  for _ in range(STEPS):
    z = x @ (w + FACTOR * a @ b) + bias
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    g = x.T @ (p - np.eye(4)[y]) / len(x)
    a, b = a - moves_a * RATE * FACTOR * g @ b.T, b - RATE * FACTOR * a.T @ g
  return a, b


def oracle(rows, aggregation, w, bias, a, rounds=ROUNDS):
  """W + s A B after some rounds, A [5, 2] being what each draw gives."""
  x, y, clients = rows
  first, b, shares = a, np.zeros((RANK, 4)), np.bincount(clients) / len(clients)
  for _ in range(rounds):
    sent = [
      train(x[clients == i], y[clients == i], w, bias, a, b, aggregation != "ffa")
      for i in range(3)
    ]
    mean_a = sum(p * a_i for p, (a_i, _) in zip(shares, sent))
    mean_b = sum(p * b_i for p, (_, b_i) in zip(shares, sent))
    products = sum(p * a_i @ b_i for p, (a_i, b_i) in zip(shares, sent))
    exact = w + FACTOR * products
    if aggregation == "flora":
      w, a, b = exact, first, np.zeros_like(b)
    else:
      a, b = mean_a, mean_b
    if aggregation == "fedex":
      w = exact - FACTOR * a @ b
      np.testing.assert_allclose(w + FACTOR * a @ b, exact)
  return w + FACTOR * a @ b


@pytest.mark.program
@pytest.mark.parametrize("aggregation", ["fedit", "ffa", "fedex", "flora"])
def test_rounds_are_those_of_the_papers(rows, federation, aggregation, monkeypatch):
  """Three rounds of three clients of different sizes, in float64."""
  a = np.random.default_rng(2).normal(size=(5, RANK)).astype(np.float32)
  monkeypatch.setattr(lora, "_draw", lambda *_: jax.numpy.asarray(a))
  result = run(federation, aggregation)
  matrix, layer = deployed(result)
  rng = np.random.default_rng(1)
  w, bias = rng.normal(size=(5, 4)), rng.normal(size=4)
  expected = oracle(rows, aggregation, w, bias, a.astype(float))
  np.testing.assert_allclose(matrix, expected, rtol=2e-5, atol=2e-6)
  np.testing.assert_array_equal(layer["bias"], bias.astype(np.float32))
  if aggregation in ("fedit", "ffa"):
    np.testing.assert_array_equal(layer["kernel"], w.astype(np.float32))
  # A and B are 18 floats, and a change of the layer is at most its 20.
  up, first, later = {
    "fedit": (18, 18, 18),
    "ffa": (8, 8, 8),
    "fedex": (18, 18, 18 + 20),
    "flora": (18, 0, 20),
  }[aggregation]
  history = result.history
  assert history["floats_up"][0].tolist() == [up] * ROUNDS
  assert history["floats_down"][0].tolist() == [first, later, later]


@pytest.mark.program
def test_participants_of_flora_draw_adapters_of_their_own(federation):
  """Else a round could move the layer within r dimensions only (of 4 classes: 3)."""
  matrix, _ = deployed(run(federation, "flora"))
  start = np.random.default_rng(1).normal(size=(5, 4))
  assert np.linalg.matrix_rank(matrix - start, tol=1e-4) == 3 > RANK


def merged(aggregation, kernel, a, b, shares):
  layers = ({"kernel": kernel}, {"lora_a": a, "lora_b": b})
  tree, sent = (dict.fromkeys(("kernel", *lora.ADAPTERS)) | part for part in layers)
  shares = jax.numpy.asarray(shares, jax.numpy.float32)
  return lora.merge(lora.Merging(aggregation, FACTOR), tree, sent, shares)["kernel"]


@pytest.mark.program
def test_one_participant_and_nobody():
  """Of one the residual is 0; who has no weight counts for nothing, whatever it has."""
  rng = np.random.default_rng(3)
  kernel, a, b = (
    jax.numpy.asarray(rng.normal(size=size), jax.numpy.float32)
    for size in ((5, 2, 2), (2, 5, 2), (2, 2, 4))
  )
  product = FACTOR * (a[0] @ b[0]).reshape(5, 2, 2)  # an attention's two heads
  a, b = a.at[1].set(jax.numpy.nan), b.at[1].set(jax.numpy.nan)
  for aggregation, expected in (("fedex", kernel), ("flora", kernel + product)):
    one = merged(aggregation, kernel, a, b, [1.0, 0.0])
    np.testing.assert_allclose(one, expected, atol=1e-5)
    nobody = merged(aggregation, kernel, a, b, [0.0, 0.0])
    np.testing.assert_array_equal(nobody, kernel)


def test_who_was_away_is_sent_what_it_missed():
  """At most the layer as it is; factors of n r columns and rows, if they are less."""
  adapters = {"lora_a": np.zeros((3, 20, 2)), "lora_b": np.zeros((3, 2, 20))}
  number, none = np.int32, np.zeros(3, np.int32)
  missed, counted = jax.numpy.zeros(4, number), []
  for ids in ([0, 1, 2], [0, 1, 4], [3, 4, 4], [0, 1, 2]):
    ids = jax.numpy.asarray(ids, number)
    cohort = Cohort(ids, Shard(none, none, none, none), (ids < 4).astype(np.float32))
    missed, cost = merging._count(
      lora.Merging("fedex", FACTOR), adapters, missed, cohort, round_cost(0, 0, 1, 0)
    )
    counted.append(int(cost.down))
  # 80 floats for each participant of a round. Client 3 missed 240 + 160, which is the
  # layer, and so is less than what client 2 missed: (240 + 240 + 400) / 3 rounded up.
  assert counted == [0, 240, 400, 294]


@pytest.mark.program
@each(
  "options,message",
  [
    (dict(roles=()), "lora=fedex: clients train the layers, too"),
    (dict(roles="lora:kernel"), "kernel must be frozen, and is shared"),
    (dict(roles="lora,personal:bias"), "clients must not have personal parameters"),
    (dict(aggregator="median"), "not with aggregator=median .allowed: fedit, ffa"),
    (dict(private="fixed"), "not with private=fixed"),
    (dict(attack="sign_flip:0.4"), "not with attack=sign_flip"),
    (dict(compress_down="qsgd:4"), "not with compress_down=qsgd"),
    (dict(client_weights="qffl:1"), "not with client_weights=qffl "),
    (
      dict(algorithm="ma_fsvrg", num_models=2),
      "not with num_models=2",
    ),
    (dict(algorithm="ifca", group_init="shared"), "moves no frozen kernels"),
    (dict(algorithm="fedbuff"), "moves no frozen kernels"),
    (dict(algorithm="local"), "moves no frozen kernels"),
  ],
)
def test_what_does_not_keep_the_mean_is_refused(federation, options, message):
  with pytest.raises(fa.OptionError, match=message):
    run(federation, "fedex", **options)
