"""Clients stored back to back on the device, without padding."""

from collections.abc import Sequence
import hashlib
from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Array, ClientData, Cohort, Shard
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.features import FeaturesFn
from fedjax_alg.data.partition import label_histogram, Partition

#: Zero rows after the last client, so that a block of up to this many rows
#: that starts inside a client never runs off the end (a slice that does is
#: moved back by XLA, onto other clients' rows).
PADDING_ROWS = 512

_CHUNK = 4096


class FederatedData(NamedTuple):
  """What a run needs to know of its data."""

  train: ClientData  #: and the server's validation rows, where it has some
  test: ClientData  #: the local test splits
  global_x: Array  #: [N, ...] the global test set, no padding rows
  global_y: Array  #: [N] int32
  num_classes: int  #: L
  name: str
  hash: str  #: sha256 (hex) of features and labels, before they were dealt
  label_histogram: np.ndarray  #: [C, L] int64, training examples (host)
  #: the global test set has the rows of the local test splits, in some order
  whole_is_local: bool


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
    Device arrays, x and y with M + V + PADDING_ROWS rows.
  """
  held = None
  parts = (x,) if isinstance(x, np.ndarray) else tuple(x)
  chex.assert_shape(
      y, (sum(map(len, parts)),), custom_message="y: one label for each row")
  chex.assert_type(y, int, custom_message="y: labels are whole numbers")
  clients = (offset, size) if joins is None else (offset, size, joins)
  chex.assert_shape(
      clients, (len(size),),
      custom_message="offset, size and joins: one entry for each client")
  if validation is not None:
    held = jnp.asarray([len(order), len(validation)], jnp.int32)
    order = np.concatenate([order, validation])
  dtype = np.int32 if parts[0].dtype == np.int32 else np.float32
  places = len(order) + PADDING_ROWS
  rows = np.zeros((places, *parts[0].shape[1:]), dtype)
  for begin in range(0, len(order), _CHUNK):  # temporaries stay small
    chunk = order[begin:begin + _CHUNK]
    target = rows[begin:begin + len(chunk)]
    first = 0
    for part in parts:
      inside = (chunk >= first) & (chunk < first + len(part))
      target[inside] = part[chunk[inside] - first]
      first += len(part)
  classes = np.zeros(places, np.int32)
  classes[:len(order)] = y[order]
  return ClientData(
      jnp.asarray(rows), jnp.asarray(classes),
      jnp.asarray(offset, jnp.int32), jnp.asarray(size, jnp.int32), held,
      None if joins is None else jnp.asarray(joins, jnp.int32))


def shard_of(data: ClientData, client: Array | int) -> Shard:
  """The shard of one client ([] int32 in [0, C)); jittable."""
  return Shard(data.x, data.y, data.offset[client], data.size[client])


def everyone(data: ClientData) -> Cohort:
  """All C clients as one cohort, in the order of their ids."""
  ids = jnp.arange(data.size.shape[0], dtype=jnp.int32)
  return take_cohort(data, ids)


def present(data: ClientData, number: Array | int) -> Cohort:
  """Who is there after ``number`` rounds; the others are padding slots."""
  ids = jnp.arange(data.size.shape[0], dtype=jnp.int32)
  if data.joins is not None:
    ids = jnp.where(data.joins <= number, ids, data.size.shape[0])
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
  num_clients = data.size.shape[0]
  padding = ids >= num_clients
  known = jnp.where(padding, 0, ids)
  offset = jnp.where(padding, 0, data.offset[known])
  size = jnp.where(padding, 0, data.size[known])
  validation = None
  if data.validation is not None:
    validation = Shard(data.x, data.y, data.validation[0], data.validation[1])
  there = data.size
  if data.joins is not None and number is not None:
    there = jnp.where(data.joins <= number, there, 0)
  devices = data.devices
  if devices is not None:
    devices = devices._replace(
        flops_per_s=devices.flops_per_s[known],
        bytes_per_s=devices.bytes_per_s[known])
  return Cohort(
      ids, Shard(data.x, data.y, offset, size), size.astype(jnp.float32),
      validation, Shard(data.x, data.y, data.offset, there), devices)


def build(
    examples: Examples, partition: Partition, features_fn: FeaturesFn,
    joins: np.ndarray | None = None,
) -> FederatedData:
  """Computes the features, deals them to clients and moves them to the device.

  The global test set is the official one, unless the partition trains on rows
  of it (``powerlaw``) or there is none: then it is the union of the local test
  splits. Of clients held out, the server gets the training rows; their local
  test rows are in no such union, and where the data set itself names the
  client of each test row (``natural``) not in the official test set either.

  On the host the training features exist at most twice, as computed and
  permuted; neither outlives this call.

  Args:
    examples: the data set that ``partition`` was made of.
    partition: who holds which rows.
    features_fn: of (x_train, x_test), see ``features.make_features``.
    joins: when clients take part, see ``newcomers.with_newcomers``.

  Returns:
    The data of a run.

  Raises:
    DataError: there are no test examples at all.
  """
  x_train, x_test = features_fn(examples.x_train, examples.x_test)
  y_train, y_test = examples.y_train, examples.y_test
  digest = _hash(x_train, y_train, x_test, y_test)
  rows: tuple[np.ndarray, ...] = (x_train,)
  test_rows: tuple[np.ndarray, ...] = (x_test,)
  labels, test_labels = y_train, y_test
  if partition.pooled:
    rows = test_rows = x_train, x_test
    labels = test_labels = np.concatenate([y_train, y_test])
  test = client_data(
      test_rows, test_labels, partition.test_order, partition.test_offset,
      partition.test_size)
  held_out = partition.held_out
  validation = None if held_out is None else held_out.train_order
  trained_on = partition.pooled and any(
      (order >= len(y_train)).any()
      for order in (partition.train_order, validation) if order is not None)
  if held_out is not None and partition.name == "natural" and (
      not partition.pooled):
    x_test, y_test = (
        np.delete(a, held_out.test_order, axis=0) for a in (x_test, y_test))
  num_test = len(partition.test_order)
  if len(y_test) and not trained_on:
    global_x, global_y = jnp.asarray(_model_dtype(x_test)), jnp.asarray(y_test)
    whole_is_local = not partition.pooled and num_test == len(y_test)
  elif num_test:
    global_x, global_y = test.x[:num_test], test.y[:num_test]
    whole_is_local = True
  else:
    left = "" if held_out is None else (
        f", or none that `validation_clients`={len(held_out.clients)} leaves")
    raise DataError(
        f"the data set {examples.name} has no test examples (x_test is empty)"
        f" and `partition`={partition.name} holds none out{left}")
  histogram = label_histogram(partition, labels, examples.num_classes)
  train = client_data(
      rows, labels, partition.train_order, partition.train_offset,
      partition.train_size, validation, joins)
  return FederatedData(
      train, test, global_x, global_y, examples.num_classes, examples.name,
      digest, histogram, whole_is_local)


def _model_dtype(x: np.ndarray) -> np.ndarray:
  return x if x.dtype == np.int32 else x.astype(np.float32, copy=False)


def _hash(*arrays: np.ndarray) -> str:
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()
