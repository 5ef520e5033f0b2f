"""Clients stored back to back, without padding."""

from collections.abc import Sequence
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array, ClientData, Cohort, Shard

#: Zero rows after the last client, so that a block of up to this many rows
#: that starts inside a client never runs off the end (a slice that does is
#: moved back by XLA, onto other clients' rows).
PADDING_ROWS = 512

#: Bytes; what XLA's CPU client asks of memory it may share.
ALIGNMENT = 64

_CHUNK = 4096


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """``np.zeros`` at an address that a JAX CPU device can use as it is.

  Other arrays are copied when they are placed on the devices.
  """
  count = math.prod(shape) * np.dtype(dtype).itemsize
  buffer = np.zeros(count + ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % ALIGNMENT
  return buffer[start:start + count].view(dtype).reshape(shape)


def client_data(
    x: np.ndarray | Sequence[np.ndarray],
    y: np.ndarray,
    order: np.ndarray,
    offset: np.ndarray,
    size: np.ndarray,
    validation: np.ndarray | None = None,
    joins: np.ndarray | None = None,
) -> ClientData:
  """Rows in the order of the clients, then PADDING_ROWS zero rows.

  The server's validation rows lie between them, back to back: one set of
  arrays serves clients and server.

  Args:
    x: [n, ...]; int32 (tokens) stays, all else becomes float32. A sequence of
      arrays stands for their concatenation, which is not made.
    y: [n] int labels.
    order: [M] int, row of x at each place.
    offset: [C] int, first place of each client.
    size: [C] int, rows of each client.
    validation: [V] int, rows of x that the server holds; None: it holds none.
    joins: [C] int, rounds played before a client takes part; None: all are
      there from the start.

  Returns:
    NumPy arrays, x and y with M + V + PADDING_ROWS rows.
  """
  held: Any = None
  parts = (x,) if isinstance(x, np.ndarray) else tuple(x)
  chex.assert_shape(
      y, (sum(map(len, parts)),), custom_message="y: one label for each row")
  chex.assert_type(y, int, custom_message="y: labels are whole numbers")
  clients = (offset, size) if joins is None else (offset, size, joins)
  chex.assert_shape(
      clients, (len(size),),
      custom_message="offset, size and joins: one entry for each client")
  if validation is not None:
    held = np.array([len(order), len(validation)], np.int32)
    order = np.concatenate([order, validation])
  dtype = np.int32 if parts[0].dtype == np.int32 else np.float32
  places = len(order) + PADDING_ROWS
  rows = aligned_zeros((places, *parts[0].shape[1:]), dtype)
  for begin in range(0, len(order), _CHUNK):  # temporaries stay small
    chunk = order[begin:begin + _CHUNK]
    target = rows[begin:begin + len(chunk)]
    first = 0
    for part in parts:
      inside = (chunk >= first) & (chunk < first + len(part))
      target[inside] = part[chunk[inside] - first]
      first += len(part)
  classes = aligned_zeros((places,), np.int32)
  classes[:len(order)] = y[order]
  # NumPy stands for JAX arrays until the data are placed.
  arrays: tuple[Any, ...] = (
      rows, classes, np.asarray(offset, np.int32), np.asarray(size, np.int32),
      held, None if joins is None else np.asarray(joins, np.int32))
  return ClientData(*arrays)


def shard_of(data: ClientData, client: Array | int) -> Shard:
  """The shard of one client ([] int32 in [0, C)); jittable."""
  data = jax.tree.map(jnp.asarray, data)
  return Shard(data.x, data.y, data.offset[client], data.size[client])


def everyone(data: ClientData) -> Cohort:
  """All C clients as one cohort, in the order of their ids."""
  ids = jnp.arange(data.size.shape[0], dtype=jnp.int32)
  return take_cohort(data, ids)


def present(data: ClientData, number: Array | int) -> Cohort:
  """Who is there after ``number`` rounds; the others are padding slots."""
  ids = jnp.arange(data.size.shape[0], dtype=jnp.int32)
  if data.joins is not None:
    ids = jnp.where(
        jnp.asarray(data.joins) <= number, ids, data.size.shape[0])
  return take_cohort(data, ids, number)


def take_cohort(
    data: ClientData, ids: Array, number: Array | int | None = None) -> Cohort:
  """The participants ``ids`` as a cohort; jittable, copies no examples.

  Args:
    data: all clients.
    ids: [S] int32 in [0, C]; C marks a padding slot, which gets offset 0,
      size 0 and weight 0.
    number: rounds played so far; None: every client is there.

  Returns:
    The cohort, its weights the numbers of examples, with the server's
    validation rows and the participants' simulated machines where ``data``
    has some (a padding slot has those of client 0).
  """
  data = jax.tree.map(jnp.asarray, data)  # NumPy until it is placed
  num_clients = data.size.shape[0]
  padding = ids >= num_clients
  known = jnp.where(padding, 0, ids)
  offset = jnp.where(padding, 0, data.offset[known])
  size = jnp.where(padding, 0, data.size[known])
  validation = None
  if data.validation is not None:
    validation = Shard(data.x, data.y, data.validation[0], data.validation[1])
  there, newcomers = data.size, None
  if data.joins is not None and number is not None:
    there = jnp.where(data.joins <= number, there, 0)
    newcomers = (data.joins == number) & (data.joins > 0)
  devices = data.devices
  if devices is not None:
    devices = devices._replace(
        flops_per_s=devices.flops_per_s[known],
        bytes_per_s=devices.bytes_per_s[known])
  return Cohort(
      ids, Shard(data.x, data.y, offset, size), size.astype(jnp.float32),
      validation, Shard(data.x, data.y, data.offset, there), devices,
      newcomers)
