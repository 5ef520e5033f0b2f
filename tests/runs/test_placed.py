"""A federation on the devices while its data change."""

import jax
import numpy as np
import pytest

from fedjax_alg import data, memory
from fedjax_alg.data.location import OnDevice, OnDisk, OnHost
from fedjax_alg.data.partition import client_rows
from fedjax_alg.engine import clock, sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.runs import placed
from fedjax_alg.runs.placed import PlacedData


def test_the_rows_go_to_the_host_if_they_would_fill_a_device(monkeypatch):
  fed = data.federate("digits", num_clients=5, data_on="auto:window_mb=9")
  free = memory.Limit(2**20, "the device has")
  monkeypatch.setattr(placed.sharding, "free_memory", lambda: free)
  assert placed.choose_location(fed, None) == OnDevice()  # of a CPU, which is the host
  monkeypatch.setattr(placed.sharding, "platform", lambda mesh: "gpu")
  assert placed.choose_location(fed, None) == OnDevice()
  free = memory.Limit(2**17, "the device has")
  assert placed.choose_location(fed, None) == OnHost(9)
  # A second run of a federation finds the rows where the first has put them.
  monkeypatch.setattr(placed, "_COPIES", {fed: (None, fed.data)})
  assert placed.choose_location(fed, None) == OnDevice()


def test_several_processes_choose_one_place(monkeypatch):
  """A process in windows would wait for one that is not, as they run other programs."""
  fed = data.federate("digits", num_clients=5)
  monkeypatch.setattr(placed.sharding, "spans_processes", lambda mesh: True)
  assert placed.choose_location(fed, None) == OnDevice()
  monkeypatch.setattr(placed.processes, "anyone", lambda flag: True)
  assert placed.choose_location(fed, None) == OnDisk()


@pytest.mark.parametrize("kind", ["swap_all", "swap_part", "increment"])
def test_the_device_holds_what_the_split_says(kind):
  fed = data.federate(
    "digits",
    partition="classes",
    num_clients=20,
    validation_clients=3,
    shift=f"{kind}:2",
    partition_seed=5,
  )
  host = jax.tree.map(np.copy, fed.data)
  moving = PlacedData(fed, None, clock.make_devices(0, 17))
  first_data = moving.data
  before = jax.tree.map(np.array, first_data)
  digits = data.load_digits()
  hashes = set()
  for done in (0, 3, 5, 2, 0):
    moving.move(done)
    split = fed.options.shift.apply(
      fed.partition, digits.y_train, digits.y_test, done // 2, 5
    )
    for on_device, order, offset, size, x, y in (
      (moving.data.train, *split[:3], digits.x_train, digits.y_train),
      (moving.data.test, *split[3:6], digits.x_test, digits.y_test),
    ):
      places = client_rows(np.asarray(on_device.offset), np.asarray(on_device.size))
      rows = order[client_rows(offset, size)]
      np.testing.assert_array_equal(on_device.size, size)
      np.testing.assert_array_equal(np.asarray(on_device.x)[places], x[rows])
      np.testing.assert_array_equal(np.asarray(on_device.y)[places], y[rows])
    histogram = data.label_histogram(split, digits.y_train, 10)
    np.testing.assert_array_equal(moving.label_histogram, histogram)
    np.testing.assert_array_equal(moving.data.class_weight, histogram)
    # The server's own rows stay, and so does all that programs depend on.
    first, total = before.train.validation
    np.testing.assert_array_equal(
      moving.data.train.x[first : first + total], before.train.x[first : first + total]
    )
    for old, new in zip(
      jax.tree.leaves(first_data), jax.tree.leaves(moving.data), strict=True
    ):
      assert (old.shape, old.dtype, old.weak_type) == (
        new.shape,
        new.dtype,
        new.weak_type,
      )
      assert old.sharding.is_equivalent_to(new.sharding, old.ndim)
    hashes.add(histogram.tobytes())
  assert len(hashes) == 3
  for old, unchanged in zip(jax.tree.leaves(before), jax.tree.leaves(first_data)):
    np.testing.assert_array_equal(old, unchanged)
  for old, unchanged in zip(jax.tree.leaves(host), jax.tree.leaves(fed.data)):
    np.testing.assert_array_equal(old, unchanged)


def test_arrays_that_are_there_twice_are_placed_once(monkeypatch):
  """The whole test set is that of the clients: a GPU had it twice."""
  fed = data.federate("digits", num_clients=4)
  assert fed.data.test.x is fed.data.whole_test.x
  placed_trees = []
  replicate = sharding.replicate

  def record(tree, mesh):
    placed_trees.append(tree)
    return replicate(tree, mesh)

  monkeypatch.setattr(sharding, "replicate", record)
  on_device = PlacedData(fed, None, clock.make_devices(0, 4)).data
  sizes = [
    sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    for tree in placed_trees
    if jax.tree.leaves(tree)
  ]
  leaves = {id(leaf): leaf for leaf in jax.tree.leaves(fed.data)}
  assert max(sizes) == sum(leaf.nbytes for leaf in leaves.values())
  assert on_device.test.x.codes is on_device.whole_test.x.codes
  jax.tree.map(np.testing.assert_array_equal, on_device.whole_test, fed.data.whole_test)


def test_examples_that_no_device_can_hold_are_refused(monkeypatch):
  fed = data.federate("digits", num_clients=5)
  leaves = {id(leaf): leaf for leaf in jax.tree.leaves(fed.data)}
  needed = sum(leaf.nbytes for leaf in leaves.values())
  monkeypatch.setattr(sharding, "platform", lambda mesh: "gpu")
  for room in (needed, needed - 1):
    limit = memory.Limit(room, "the device has")
    monkeypatch.setattr(sharding, "memory_limit", lambda limit=limit: limit)
    if room == needed:
      placed._copy(fed.name, fed.data, None)
      continue
    with pytest.raises(
      OptionError, match="^federation: the digits examples on each device needs .* GB"
    ):
      placed._copy(fed.name, fed.data, None)
