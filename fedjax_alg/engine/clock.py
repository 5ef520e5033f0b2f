"""The simulated clock: the time of a round on the clients' simulated machines.

Each client has a machine with a speed and a link with a bandwidth. A batch
takes a fixed time on every machine. No time is measured: the clock divides
numbers of operations and floats by speeds. It does not change the training.
The setting follows the experiments of the analytic paper, whose machines have
one to four cores.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import trees
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  Array,
  Devices,
  Key,
  RoundCost,
  RoundTimes,
  Work,
)
from fedjax_alg.engine import draws
from fedjax_alg.errors import OptionError
from fedjax_alg.typing import AnyArray

#: Between these, all times of a round are finite float32 numbers.
_LEAST, _MOST = 1e-9, 1e9


class Times(NamedTuple):
  """The times of one round for each participant; 0 for padding slots."""

  computation: Array  #: [S] float32, seconds
  communication: Array  #: [S] float32, seconds
  #: [S] float32, seconds of waiting for other clients and for the server
  idle: Array
  arrival: Array  #: [S] float32, seconds, computation + communication
  #: [] float32, seconds; arrival + idle is the same for every participant
  duration: Array


def check_machines(
  cores: tuple[int, int],
  core_gflops: float,
  bandwidth_gbps: tuple[float, float],
  batch_ms: float,
  server_gflops: float,
) -> None:
  """Checks the options of the simulated machines; see ``make_devices``.

  Args:
    cores: minimum and maximum number of cores.
    core_gflops: speed of a core.
    bandwidth_gbps: minimum and maximum bandwidth.
    batch_ms: fixed time of a batch.
    server_gflops: speed of the server.

  Raises:
    OptionError: a value is too small or too large, or a range is reversed.
  """
  ranges: dict[str, tuple[float, float]] = {
    "device_cores": cores,
    "bandwidth_gbps": bandwidth_gbps,
  }
  for name, (low, high) in ranges.items():
    if not _LEAST <= low <= high <= _MOST:
      raise OptionError(
        f"`{name}`={low:g},{high:g}: must be the least and the "
        "most, in this order and between "
        f"{_LEAST:g} and {_MOST:g}"
      )
  for name, value in (
    ("core_gflops", core_gflops),
    ("batch_ms", batch_ms),
    ("server_gflops", server_gflops),
  ):
    if not _LEAST <= value <= _MOST:
      raise OptionError(
        f"`{name}`={value:g}: must be at least {_LEAST:g} and at most {_MOST:g}"
      )


def make_devices(
  seed: int,
  num_clients: int,
  *,
  cores: tuple[int, int] = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: tuple[float, float] = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
) -> Devices:
  """Draws the simulated machines of C clients.

  The machine of client i depends only on ``seed`` and i.

  Args:
    seed: seed of the random draws.
    num_clients: C.
    cores: minimum and maximum number of cores; whole numbers, uniform.
    core_gflops: speed of a core in 10^9 multiplications and additions per
      second.
    bandwidth_gbps: minimum and maximum bandwidth to the server in 10^9 bits
      per second; log-uniform.
    batch_ms: fixed time of a batch in milliseconds, the same for all sizes.
    server_gflops: speed of the server in 10^9 operations per second.

  Returns:
    The machines, [C].

  Raises:
    OptionError: see ``check_machines``.
  """
  check_machines(cores, core_gflops, bandwidth_gbps, batch_ms, server_gflops)
  slow, fast = bandwidth_gbps
  flops_per_s, bytes_per_s = _compute_machines(
    *_draw_machines(seed, num_clients, cores[0], cores[1]),
    core_gflops * 1e9,
    slow,
    fast / slow,
    1e9 / 8,
  )
  return Devices(
    flops_per_s,
    bytes_per_s,
    jnp.float32(batch_ms / 1e3),
    jnp.float32(server_gflops * 1e9),
  )


#: NumPy draws the machines of up to so many clients.
_MOST_ON_HOST = 2**16


def _draw_machines(
  seed: int, num_clients: int, fewest: int, most: int
) -> tuple[AnyArray, AnyArray]:
  """Draws cores [C] int32 and, for the bandwidth, numbers of [0, 1) [C] float32."""
  if num_clients > _MOST_ON_HOST or not draws.is_default():
    drawn: tuple[Array, Array] = _draw_in_program(
      jax.random.key(seed), num_clients, fewest, most
    )
    return drawn
  with jax.ensure_compile_time_eval():
    key = np.asarray(jax.random.key_data(jax.random.key(seed)))
  keys = draws.fold_in(key, np.arange(num_clients, dtype=np.uint32))
  keys = draws.split_keys(keys, (2,))
  return draws.draw_integers(keys[:, 0], fewest, most + 1), draws.draw_uniform(
    keys[:, 1]
  )


# One small program, not one for every operation. All numbers are arguments, so
# that a process compiles it once for each C.
@functools.partial(jax.jit, static_argnums=1)
def _draw_in_program(
  key: Key, num_clients: int, fewest: int, most: int
) -> tuple[Array, Array]:
  def draw(client):
    first, second = jax.random.split(jax.random.fold_in(key, client))
    return (jax.random.randint(first, (), fewest, most + 1), jax.random.uniform(second))

  drawn: tuple[Array, Array] = jax.vmap(draw)(jnp.arange(num_clients, dtype=jnp.int32))
  return drawn


@jax.jit
def _compute_machines(
  cores: Array, share: Array, core_flops: float, slow: float, ratio: float, gbps: float
) -> tuple[Array, Array]:
  """``flops_per_s`` and ``bytes_per_s`` of C machines, [C] float32."""
  return cores.astype(jnp.float32) * core_flops, slow * ratio**share * gbps


def round_times(
  devices: Devices,
  weight: Array,
  work: Work,
  num_bytes: Array,
  central_flops: Array,
  round_end_s: Array | None = None,
) -> Times:
  """Computes the simulated times of one round.

  The server waits for the slowest participant and then computes; all
  participants wait for the server. A round with several exchanges is treated
  as one barrier, because the same client is the slowest in every exchange.

  Args:
    devices: machines of the slots, [S].
    weight: [S] float32, 0 for padding slots, which are ignored.
    work: work of the slots, [S].
    num_bytes: [] float32, bytes that each participant receives and sends.
    central_flops: [] float32, operations of the server.
    round_end_s: [] float32, how long the server waits at least; None: not
      longer than for the slowest participant.

  Returns:
    The times.
  """
  present = weight > 0

  def zero_padding(seconds):
    return jnp.where(present, seconds, 0.0)

  computation = zero_padding(
    work.flops / devices.flops_per_s + work.batches * devices.batch_s
  )
  communication = zero_padding(num_bytes / devices.bytes_per_s)
  arrival = computation + communication
  last = arrival.max()
  if round_end_s is not None:
    last = jnp.maximum(last, round_end_s)
  duration = last + central_flops / devices.server_flops_per_s
  return Times(
    computation, communication, zero_padding(duration - arrival), arrival, duration
  )


def bytes_sent(cost: RoundCost) -> Array:
  """The bytes to and from each participant in a round, [] float32."""

  def to_bytes(floats: Array, counted_bytes: Array | None) -> Array:
    if counted_bytes is not None:
      return counted_bytes.astype(jnp.float32)
    return BYTES_PER_FLOAT * floats.astype(jnp.float32)

  return to_bytes(cost.down, cost.bytes_down) + to_bytes(cost.up, cost.bytes_up)


def mean_times(
  devices: Devices,
  weight: Array,
  work: Work,
  cost: RoundCost,
  round_end_s: Array | None = None,
) -> RoundTimes:
  """Averages ``round_times`` and the operations over the participants.

  Args:
    devices: machines of the slots, [S].
    weight: [S] float32, 0 for padding slots.
    work: work of the slots, [S].
    cost: cost of the round.
    round_end_s: see ``round_times``.

  Returns:
    The means.
  """
  times = round_times(
    devices, weight, work, bytes_sent(cost), cost.central_flops, round_end_s
  )
  return RoundTimes(
    *trees.slot_mean(
      (weight > 0).astype(jnp.float32),
      (work.flops, times.computation, times.communication, times.idle),
    )
  )


def adapt_batch_size(
  batch: Array, round_seconds: Array, first_minimum: Array, largest: Array | int
) -> Array:
  """Computes the adaptive batch size, (7) of the analytic paper.

  B_k <- min(B_k t_k / min_j t_j, B_k^max), rounded and at least 1. The minimum
  is taken in the first round. Slower clients get larger batches. B_k is the
  current size; the paper's index could also mean the first size, with which
  the batch size would alternate between two values (errata A-10). The batch
  size affects the simulated clock only: the sums (6) do not depend on it
  (errata A-20).

  Args:
    batch: [C] or [S], int32 or float32, B_k.
    round_seconds: same shape as ``batch``, float32, t_k of the last round.
    first_minimum: [] float32, min_j t_j of the first round.
    largest: B_k^max, a scalar or an array of the shape of ``batch``.

  Returns:
    int32, same shape as ``batch``.
  """
  size = batch.astype(jnp.float32) * (round_seconds / first_minimum)
  return jnp.clip(jnp.round(size), 1.0, jnp.asarray(largest, jnp.float32)).astype(
    jnp.int32
  )
