"""Examples as bytes: the same values, or no bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import DataError, store
from tests.each import each

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (40, 5), np.uint8)
BYTES[0] = 0, 1, 2, 254, 255
FLOATS = BYTES.astype(np.float32)
TWO_ROUNDS = {"rounds": 2, "cohort_size": 2}
NORMAL = RNG.normal(size=(40, 5)).astype(np.float32)


@each(
  "x",
  [
    FLOATS,
    FLOATS / 255,
    FLOATS * np.float32(1 / 255),
    FLOATS / 16,
    FLOATS[:, :4] // 100,
    np.zeros((3, 2), np.float32),
    BYTES.astype(np.int32),
  ],
)
def test_exact_values_become_bytes(x):
  train, test = store.compact((x, x[:1]), "auto")
  assert train.nbytes == x.size and len(test) == 1
  assert (train.shape, train.ndim, train.dtype) == (x.shape, x.ndim, x.dtype)
  assert np.asarray(train).tobytes() == x.tobytes()
  np.testing.assert_array_equal(train[1:3], x[1:3])
  on_device = jax.tree.map(jnp.asarray, train)
  rows = jax.jit(lambda data: store.gather_rows(data, lambda rows: rows[::-1]))(
    on_device
  )
  assert np.asarray(rows).tobytes() == x[::-1].tobytes()
  assert np.asarray(on_device).tobytes() == x.tobytes()


@each(
  "x",
  [
    NORMAL,
    FLOATS + 1,
    -FLOATS,
    -0.0 * FLOATS,
    FLOATS / 3,
    FLOATS * 1e36,
    BYTES.astype(np.int32) - 1,
  ],
)
def test_other_values_stay(x):
  assert store.compact((x, x[:1]), "auto")[0] is x
  # The last test row decides as much as the first training row.
  good = np.zeros_like(x)
  assert store.compact((good, x), "auto")[1] is x


def test_any_256_values_become_bytes_if_asked():
  values = np.append(NORMAL.ravel(), np.float32([0.0, -0.0]))
  x = values[RNG.integers(0, len(values), (300, 7))]
  x[0, :2] = 0.0, -0.0
  train, test = store.compact((x, x[:0]), "uint8")
  assert train.values.shape == (256,) and test.shape == (0, 7)
  assert np.asarray(train).tobytes() == x.tobytes()
  read = jax.jit(lambda data: store.gather_rows(data, lambda rows: rows[1:9]))(
    jax.tree.map(jnp.asarray, train)
  )
  assert np.asarray(read).tobytes() == x[1:9].tobytes()


def test_bytes_are_refused_where_they_are_not_exact():
  many = RNG.normal(size=(60, 5)).astype(np.float32)
  with pytest.raises(DataError, match="store=uint8: .* 256 different"):
    store.compact((many, many), "uint8")
  with pytest.raises(DataError, match=r"store=uint8: token ids .* 255"):
    store.compact((np.full((3, 2), 256, np.int32),) * 2, "uint8")
  with pytest.raises(fa.OptionError, match="store=int8"):
    fa.federate("digits", store="int8")


def test_scales_are_rounded_once():
  """However the machine rounds: with or without fused multiplication."""
  codes = np.arange(256)
  for step in (1 / 255, float(np.float32(1 / 255)), 1 / 16, 1.0):
    values = store._scale(step).astype(np.float64)
    exact = (codes * values[0] + codes * values[1]).astype(np.float32)
    ours = store.Coded(codes.astype(np.uint8), store._scale(step))[...]
    np.testing.assert_array_equal(ours, exact)
    np.testing.assert_array_equal(ours, (codes * step).astype(np.float32))


def test_all_rows_in_chunks():
  array = np.arange(3 * 2**17).reshape(3, 2**17)
  rows = [array[chunk] for chunk in store.row_chunks(array)]
  assert [len(part) for part in rows] == [2, 1]
  np.testing.assert_array_equal(np.concatenate(rows), array)
  assert list(store.row_chunks(array[:0])) == []


def federations(**options):
  return [fa.federate(**options, store=kind) for kind in ("auto", "float32")]


@pytest.mark.parametrize("features", ["none", "flatten"])
@pytest.mark.parametrize("source", ["digits", "images"])
def test_a_federation_is_the_same_in_bytes(source, features):
  """Rows, hashes and the whole test set, of images and of their float32."""
  if source == "images":
    images = RNG.integers(0, 256, (60, 4, 4, 1), np.uint8)
    source = fa.from_arrays(
      images, np.arange(60) % 3, x_test=images[:12], y_test=np.arange(12) % 3
    )
  coded, floats = federations(
    source=source,
    features=features,
    num_clients=5,
    validation_clients=1,
    partition="powerlaw" if source == "digits" else "iid",
  )
  assert isinstance(coded.data.train.x, store.Coded)
  assert floats.data.train.x.dtype == coded.data.train.x.dtype == np.float32
  assert 4 * coded.data.train.x.nbytes == floats.data.train.x.nbytes
  assert coded.hashes == floats.hashes
  assert coded.example_shape == floats.example_shape
  for name in ("train", "test", "whole_test"):
    np.testing.assert_array_equal(
      *(np.asarray(getattr(fed.data, name).x) for fed in (coded, floats))
    )
  np.testing.assert_array_equal(coded.client(2)[0], floats.client(2)[0])


@pytest.mark.program
@pytest.mark.parametrize(
  "algorithm,options,data",
  [
    ("fsvrg", TWO_ROUNDS, {"shift": "swap_part:1,1"}),
    pytest.param("fedacnnl", {}, {}, marks=pytest.mark.slow),
  ],
)
def test_a_run_has_the_same_bits(algorithm, options, data):
  """Mini-batches, full passes and moved rows; sums of least squares."""
  runs = [
    fa.run(algorithm, fed, eval_every=1, evaluate="global", **options)
    for fed in federations(source="digits", partition="classes", num_clients=6, **data)
  ]
  assert [run.facts["plan"]["store"] for run in runs] == ["uint8", "float32"]
  assert runs[0].state_hash() == runs[1].state_hash()
