"""Which rows clients hold at each step, and as which kind."""

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.federation import at_step
from fedjax_alg.engine import clock
from fedjax_alg.runs.placed import PlacedData
from tests.data.reading import refuses, rows_of

RNG = np.random.default_rng(3)
C, L, T = 5, 3, 4
SCHEDULE = np.array(
  [[0, 0, 0, 0, 0], [0, 1, 1, 2, 0], [0, 1, 0, 2, 2], [0, 0, 1, 1, 2]]
)
SIZES, TESTS = np.array([4, 9, 13, 6, 21]), np.array([3, 5, 0, 2, 7])
X = RNG.integers(0, 256, (SIZES.sum(), 4, 4), np.uint8)
Y = np.arange(len(X)) % L
X_TEST = RNG.integers(0, 256, (TESTS.sum(), 4, 4), np.uint8)
Y_TEST = np.arange(len(X_TEST)) % L


@pytest.fixture(scope="module", name="file")
def fixture_file(tmp_path_factory):
  path = tmp_path_factory.mktemp("concepts") / "some.cp"
  np.savetxt(path, SCHEDULE, fmt="%u")
  return str(path)


def federate(file, kinds="rotate:0,90,180", more="", **options):
  examples = fa.from_arrays(
    X,
    Y,
    np.repeat(np.arange(C), SIZES),
    x_test=X_TEST,
    y_test=Y_TEST,
    test_client_ids=np.repeat(np.arange(C), TESTS),
  )
  concepts = f"file:{file},rounds=2{more}"
  return fa.federate(examples, concepts=concepts, kinds=kinds, **options)


def turned(images, kind):
  return np.rot90(images, kind, axes=(1, 2))


def as_bytes(x):
  return np.rint(255 * x).astype(np.uint8)


@pytest.mark.parametrize("trains_on", ["step", "all"])
def test_the_device_holds_the_rows_of_a_step_as_its_kinds(file, trains_on):
  federation = federate(file, more=f",data={trains_on}")
  partition = federation.partition
  host = jax.tree.map(np.copy, federation.data)
  moving = PlacedData(federation, None, clock.make_devices(0, C))
  before = moving.data
  for done in (0, 1, 2, 5, 7, 40, 3):
    moving.move(done)
    step, data = min(done // 2, T - 1), moving.data
    for client in range(C):
      # From the definition: piece t of T of the client's rows is of step t.
      first, size = partition.train_offset[client], SIZES[client]
      rows = partition.train_order[first : first + size]
      pieces = [rows[t * size // T : (t + 1) * size // T] for t in range(T)]
      steps = range(step + 1) if trains_on == "all" else [step]
      x, y = rows_of(data.train, client)
      expected = [turned(X[pieces[t]], SCHEDULE[t, client]) for t in steps]
      np.testing.assert_array_equal(as_bytes(x), np.concatenate(expected))
      np.testing.assert_array_equal(y, np.concatenate([Y[pieces[t]] for t in steps]))
      first, size = partition.test_offset[client], TESTS[client]
      rows = partition.test_order[first : first + size]
      x, y = rows_of(data.test, client)
      np.testing.assert_array_equal(
        as_bytes(x), turned(X_TEST[rows], SCHEDULE[step, client])
      )
      np.testing.assert_array_equal(y, Y_TEST[rows])
      np.testing.assert_array_equal(
        moving.label_histogram[client],
        np.bincount(rows_of(data.train, client)[1], minlength=L),
      )
    np.testing.assert_array_equal(data.class_weight, moving.label_histogram)
    np.testing.assert_array_equal(moving.kinds, SCHEDULE[step])
    np.testing.assert_array_equal(data.kinds.client, SCHEDULE[step])
    for kind in range(3):
      of_kinds = data.whole_test._replace(
        offset=data.kinds.offset, size=data.kinds.size
      )
      x, _ = rows_of(of_kinds, kind)
      tests = [rows_of(data.test, c)[0] for c in range(C) if SCHEDULE[step, c] == kind]
      np.testing.assert_array_equal(x, np.concatenate([*tests, x[:0]]))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(data), strict=True):
      assert (old.shape, old.dtype, old.weak_type) == (
        new.shape,
        new.dtype,
        new.weak_type,
      )
      assert old.sharding.is_equivalent_to(new.sharding, old.ndim)
  for old, unchanged in zip(jax.tree.leaves(host), jax.tree.leaves(federation.data)):
    np.testing.assert_array_equal(old, unchanged)


def test_the_last_step_stays(file):
  moving = PlacedData(federate(file), None, clock.make_devices(0, C))
  assert [moving.rounds_left(done) for done in (0, 1, 5, 6, 7, 100)] == [
    2,
    1,
    1,
    None,
    None,
    None,
  ]


def test_a_schedule_that_stays_is_kinds_to_the_bit(tmp_path):
  """The same clients, rows and kinds as by ``kinds`` alone, at the only step."""
  kinds = fa.federate("digits", num_clients=6, kinds="rotate:0,90")
  path = tmp_path / "stay.cp"
  np.savetxt(path, kinds.kinds.of_client[None], fmt="%u")
  steps = fa.federate(
    "digits", num_clients=6, kinds="rotate:0,90", concepts=f"file:{path}"
  )
  of_step = at_step(steps, 0).data
  for old, new in zip(
    jax.tree.leaves(kinds.data), jax.tree.leaves(of_step), strict=True
  ):
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
  "options",
  [
    dict(partition="natural:test_share=0.3"),
    dict(partition="dirichlet", num_clients=4, features="standardize"),
    dict(partition="powerlaw", num_clients=3),
  ],
)
def test_any_partition_and_features_go_with_it(options):
  x = np.concatenate([X, X_TEST] * 4).reshape(-1, 16).astype(np.float32)
  y = np.arange(len(x)) % L
  ids = np.arange(len(x)) % 4
  examples = fa.from_arrays(x, y, ids, x_test=x[:90], y_test=y[:90])
  plain, steps = (
    fa.federate(examples, **options, **more)
    for more in ({}, dict(kinds="permute:1", concepts="switch:3"))
  )
  for client in range(plain.num_clients):
    for one, other in zip(plain.client(client), steps.client(client), strict=True):
      np.testing.assert_array_equal(one, other)
    for one, other in zip(plain.client_test(client), steps.client_test(client)):
      np.testing.assert_array_equal(one, other)
  assert plain.hashes["partition"] == steps.hashes["partition"]


def test_what_cannot_be_shared_out_is_refused(file):
  refuses(
    lambda: fa.federate(
      "digits",
      num_clients=2,
      partition="iid:min_size=1,size_sigma=0",
      kinds="permute:2",
      concepts="switch:5",
      train_examples=8,
    ),
    "5 steps need as many training examples of each client, client 0 has 4",
  )
  refuses(lambda: federate(file, kinds="rotate:0,90"), "names kind 2")
  with_kinds = fa.from_arrays(
    X, Y, np.arange(len(X)) % 2, kind_ids=np.arange(len(X)) % 2
  )
  refuses(
    lambda: fa.federate(with_kinds, kinds="permute:2", concepts="switch"),
    "brings the kinds of its clients, which stay",
  )
