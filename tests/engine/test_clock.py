"""The simulated clock against sums on paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.base import Devices, Work, round_cost
from fedjax_alg.engine import clock
from tests import problems
from tests.each import each

#: Three participants and a padding slot: 1, 2 and 4 flops a second.
DEVICES = Devices(
  np.float32([1.0, 2.0, 4.0, 1.0]),
  np.float32([8.0, 4.0, 16.0, 1.0]),
  np.float32(0.5),
  np.float32(10.0),
)
WEIGHT = np.float32([5.0, 1.0, 2.0, 0.0])
WORK = Work(np.float32([3.0, 2.0, 8.0, 0.0]), np.float32([2.0, 4.0, 1.0, 0.0]))
COST = (np.float32(40), np.float32(20))  # bytes, flops


def times_of(devices=DEVICES, weight=WEIGHT, work=WORK, cost=COST):
  return jax.jit(clock.round_times)(devices, weight, work, *cost)


def test_a_round_on_paper():
  times = times_of()
  np.testing.assert_allclose(times.computation, [4, 3, 2.5, 0])
  np.testing.assert_allclose(times.communication, [5, 10, 2.5, 0])
  np.testing.assert_allclose(times.arrival, [9, 13, 5, 0])
  # The slowest arrives after 13 seconds, then the server works for two.
  np.testing.assert_allclose(times.idle, [6, 2, 10, 0])
  assert times.duration == 15
  for leaf in times:
    assert leaf.dtype == jnp.float32


def test_nothing_behind_a_padding_slot_counts():
  bad = np.array([1, 1, 1, np.nan], np.float32)
  times = times_of(
    DEVICES._replace(
      flops_per_s=DEVICES.flops_per_s * bad,
      bytes_per_s=DEVICES.bytes_per_s * np.float32([1, 1, 1, 0]),
    ),
    work=Work(WORK.flops * bad, WORK.batches + np.float32([0, 0, 0, 1e9])),
  )
  problems.assert_equal(times, times_of())


def test_many_floats_do_not_overflow():
  most = round_cost(2**31 - 1, 2**31 - 1, 1, 0)
  times = times_of(cost=(jax.jit(clock.bytes_sent)(most), np.float32(0)))
  np.testing.assert_allclose(
    times.communication[:3], 4 * 2.0**32 / np.array([8, 4, 16]), rtol=1e-6
  )


def test_bytes_take_the_place_of_floats_where_they_are_given():
  cost = round_cost(10, 5, 1, 0)
  assert clock.bytes_sent(cost) == 60
  assert clock.bytes_sent(cost._replace(bytes_up=jnp.uint32(17))) == 57
  assert (
    clock.bytes_sent(round_cost(10, 5, 1, 0, bytes_down=2**32 - 1)) == 2.0**32
  )  # rounded to float32


@pytest.mark.program
def test_devices_are_of_the_seed_and_the_number():
  devices = clock.make_devices(
    3,
    200,
    cores=(2, 5),
    core_gflops=2.5,
    bandwidth_gbps=(0.1, 10.0),
    batch_ms=4.0,
    server_gflops=50.0,
  )
  cores = np.asarray(devices.flops_per_s) / 2.5e9
  np.testing.assert_allclose(cores, np.round(cores))
  # Every number of cores about a quarter of the time.
  counts = np.bincount(np.round(cores).astype(int), minlength=7)
  assert counts[2:6].min() > 25 and counts.sum() == counts[2:6].sum() == 200
  # Log-uniform: as many below 1 Gb/s as above.
  gbps = np.asarray(devices.bytes_per_s) * 8e-9
  assert 0.1 <= gbps.min() < 0.2 and 5 < gbps.max() <= 10
  assert 70 < (gbps < 1).sum() < 130
  assert abs(np.corrcoef(cores, np.log(gbps))[0, 1]) < 0.2
  np.testing.assert_allclose(devices.batch_s, 4e-3)
  np.testing.assert_allclose(devices.server_flops_per_s, 5e10)
  for leaf in devices:
    assert leaf.dtype == jnp.float32 and not leaf.weak_type
  few = clock.make_devices(
    3, 7, cores=(2, 5), core_gflops=2.5, bandwidth_gbps=(0.1, 10.0)
  )
  np.testing.assert_array_equal(few.flops_per_s, devices.flops_per_s[:7])
  np.testing.assert_array_equal(few.bytes_per_s, devices.bytes_per_s[:7])
  other_devices = clock.make_devices(4, 200, cores=(2, 5), core_gflops=2.5)
  assert (np.asarray(other_devices.flops_per_s) != devices.flops_per_s).any()


def test_one_bandwidth_is_exact():
  devices = clock.make_devices(0, 5, bandwidth_gbps=(100.0, 100.0))
  np.testing.assert_array_equal(devices.bytes_per_s, np.full(5, 1.25e10, "f4"))


@each(
  "settings, pattern",
  [
    ({"cores": (0, 4)}, "device_cores=0,4"),
    ({"cores": (4, 1)}, "device_cores=4,1"),
    ({"bandwidth_gbps": (0.0, 1.0)}, "bandwidth_gbps=0,1"),
    ({"bandwidth_gbps": (1.0, np.inf)}, "bandwidth_gbps=1,inf"),
    ({"core_gflops": 0.0}, "core_gflops=0"),
    ({"batch_ms": -1.0}, "batch_ms=-1"),
    ({"server_gflops": np.nan}, "server_gflops=nan"),
  ],
)
def test_machines_that_cannot_be(settings, pattern):
  with pytest.raises(ValueError, match=pattern):
    clock.make_devices(0, 3, **settings)


def test_who_takes_longer_reads_larger_batches():
  """(7): 10 x (1, 2, 3.06, .5, 9) seconds over 1, at most 40."""
  batch = np.full(5, 10, np.int32)
  round_seconds = np.float32([1.0, 2.0, 3.06, 0.5, 9.0])
  adapt = jax.jit(clock.adapt_batch_size)
  new = adapt(batch, round_seconds, np.float32(1), 40)
  np.testing.assert_array_equal(new, [10, 20, 31, 5, 40])
  assert new.dtype == jnp.int32
  actual = adapt(
    batch.astype(np.float32),
    round_seconds,
    np.float32(1),
    np.int32([5, 30, 31, 9, 100]),
  )
  np.testing.assert_array_equal(actual, [5, 20, 31, 5, 90])
  # At least one example, however fast the client is.
  assert adapt(batch, np.full(5, 1e-6, np.float32), np.float32(1), 40)[0] == 1
