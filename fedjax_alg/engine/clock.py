"""The simulated clock: what a round would take on the clients' own machines.

Every client has a machine of its own speed and a link of its own bandwidth; a
batch takes a fixed time on any of them. Nothing here changes a model, and no
time is measured: these are numbers of operations and floats over speeds.
Setting: the analytic paper's experiments, machines of one to four cores.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Devices, RoundCost, RoundTimes, Work
from fedjax_alg.errors import OptionError

BYTES_PER_FLOAT = 4.0


class Times(NamedTuple):
  """One round on the machines of its participants; 0 on padding slots."""

  computation: Array  #: [S] float32, seconds
  communication: Array  #: [S] float32, seconds
  idle: Array  #: [S] float32, seconds, waiting for others and for the server
  arrival: Array  #: [S] float32, computation + communication
  duration: Array  #: [] float32, of the round; arrival + idle of anyone


def check_machines(
    cores: tuple[int, int], core_gflops: float,
    bandwidth_gbps: tuple[float, float], batch_ms: float,
    server_gflops: float) -> None:
  """Refuses machines that cannot be.

  Raises:
    ValueError: one line that names the flag.
  """
  ranges: dict[str, tuple[float, float]] = {
      "device_cores": cores, "bandwidth_gbps": bandwidth_gbps}
  for name, (low, high) in ranges.items():
    if not 0 < low <= high < math.inf:
      raise OptionError(f"`{name}`={low:g},{high:g}: must be the least and the "
                       "most, more than 0 and in this order")
  for name, value in (("core_gflops", core_gflops), ("batch_ms", batch_ms),
                      ("server_gflops", server_gflops)):
    if not 0 < value < math.inf:
      raise OptionError(f"`{name}`={value:g}: must be more than 0")


def make_devices(
    seed: int, num_clients: int, *, cores: tuple[int, int] = (1, 4),
    core_gflops: float = 10.0,
    bandwidth_gbps: tuple[float, float] = (100.0, 100.0),
    batch_ms: float = 1.0, server_gflops: float = 1000.0) -> Devices:
  """The machines of C clients; client i's is a function of seed and i alone.

  Args:
    seed: of the draws.
    num_clients: C.
    cores: least and most cores; a whole number of them, uniform.
    core_gflops: 10^9 multiplications and additions a second of one core.
    bandwidth_gbps: least and most 10^9 bits a second of the link to the
      server; log-uniform.
    batch_ms: milliseconds that a batch takes whatever its size.
    server_gflops: of the server.

  Raises:
    ValueError: see ``check_machines``.
  """
  check_machines(cores, core_gflops, bandwidth_gbps, batch_ms, server_gflops)
  slow, fast = bandwidth_gbps

  def one(client):
    first, second = jax.random.split(
        jax.random.fold_in(jax.random.key(seed), client))
    held = jax.random.randint(first, (), cores[0], cores[1] + 1)
    gbps = slow * (fast / slow) ** jax.random.uniform(second)
    return held.astype(jnp.float32) * (core_gflops * 1e9), gbps * (1e9 / 8)

  flops, link = jax.vmap(one)(jnp.arange(num_clients, dtype=jnp.int32))
  return Devices(flops, link, jnp.float32(batch_ms / 1e3),
                 jnp.float32(server_gflops * 1e9))


def round_times(
    devices: Devices, weight: Array, work: Work, down: Array, up: Array,
    central_flops: Array) -> Times:
  """What each participant waits, computes and sends in one round.

  The server waits for the slowest and computes then, everybody waits for it.
  A round of several exchanges is one barrier: who is slow in one of them is
  slow in all.

  Args:
    devices: of the slots, [S].
    weight: [S] float32, 0 on padding slots, which never count.
    work: of the slots, [S].
    down: [] int32, floats that each participant receives.
    up: [] int32, floats that each participant sends.
    central_flops: [] float32, the server's arithmetic.
  """
  present = weight > 0

  def held(seconds):
    return jnp.where(present, seconds, 0.0)

  computation = held(
      work.flops / devices.flops_per_s + work.batches * devices.batch_s)
  floats = down.astype(jnp.float32) + up.astype(jnp.float32)
  communication = held(BYTES_PER_FLOAT * floats / devices.bytes_per_s)
  arrival = computation + communication
  duration = arrival.max() + central_flops / devices.server_flops_per_s
  return Times(computation, communication, held(duration - arrival), arrival,
               duration)


def mean_times(
    devices: Devices, weight: Array, work: Work, cost: RoundCost
) -> RoundTimes:
  """``round_times`` and the work, means over the participants."""
  times = round_times(
      devices, weight, work, cost.down, cost.up, cost.central_flops)
  return RoundTimes(*trees.slot_mean((weight > 0).astype(jnp.float32), (
      work.flops, times.computation, times.communication, times.idle)))


def adapted_batch(
    batch: Array, round_seconds: Array, first_minimum: Array,
    largest: Array | int) -> Array:
  """The adaptive batch size, (7) of the analytic paper.

  B_k <- min(B_k t_k / min_j t_j, B_k^max), rounded and at least 1, where the
  minimum is of the first round: who takes longer reads larger batches. B_k is
  the current size (the paper's index allows the first as well, which would
  swing between two sizes for ever; errata A-10). It enters the simulated clock
  alone: the sums (6) do not depend on it (errata A-20).

  Args:
    batch: [C] or [S], int32 or float32, B_k.
    round_seconds: same shape as batch, float32, t_k of the last round.
    first_minimum: [] float32, min_j t_j of the first round.
    largest: B_k^max, same shape as batch or one for all.

  Returns:
    int32, same shape as batch.
  """
  size = batch.astype(jnp.float32) * (round_seconds / first_minimum)
  return jnp.clip(jnp.round(size), 1.0, jnp.asarray(
      largest, jnp.float32)).astype(jnp.int32)
