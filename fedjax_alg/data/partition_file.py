"""Partitions in files: every run writes one, and another run may read it."""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any, ClassVar, cast

import numpy as np

from fedjax_alg import files, own
from fedjax_alg.data import allocate, npz, store
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.hold_out import put_back
from fedjax_alg.data.partition import Partition, Partitioner
from fedjax_alg.errors import a_type
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import hyper

_FORMAT = 1
_ARRAYS = ("train_order", "train_size", "test_order", "test_size")
_SHIFTS = {"train_order": "train_shift", "test_order": "test_shift"}


def labels_hash(examples: Examples) -> str:
  """Computes the sha256 (hex) of all labels, training labels first."""
  labels = store.arrays((examples.y_train, examples.y_test))
  digest = hashlib.sha256(f"{labels[0].shape}".encode())
  for array in labels:
    digest.update(
      np.ascontiguousarray(array, "<f4" if array.dtype.kind == "f" else "<i4").tobytes()
    )
  return digest.hexdigest()


def write_partition_file(path: pathlib.Path, partition: Partition, labels: str) -> None:
  """Writes a partition atomically, as ``.npz``.

  The file has ``train_order`` and ``test_order``, the rows of all clients back
  to back, ``train_size`` and ``test_size``, the numbers of rows of each client,
  and ``about``, a JSON text with the name of the partition, its options, the
  hash of the labels, and whether the rows are of the pooled data. Validation
  clients are in it as all other clients; which they are is drawn again.
  Where every client's rows lie together in the data, the file has
  ``train_shift`` = ``train_order`` - 0, 1, 2, ... instead, which are small
  numbers, and is compressed; likewise ``test_shift``.

  Args:
    path: the file.
    partition: the partition.
    labels: ``labels_hash`` of the data that it was made from.
  """
  full = put_back(partition)
  about = {
    "format": _FORMAT,
    "name": full.name,
    "pooled": full.pooled,
    "labels": labels,
    "flags": full.flags,
  }
  arrays: dict[str, Any] = {}
  for name in _ARRAYS:
    array = getattr(full, name)
    # Rows in random order can hardly be compressed.
    shift = array - np.arange(len(array)) if name in _SHIFTS else array[:0]
    if np.abs(shift).max(initial=0) < 2**15 <= len(shift):
      name, array = _SHIFTS[name], shift.astype(np.int16)
    else:
      array = _narrow(array)
    arrays[name] = array
  save = np.savez if arrays.keys() == set(_ARRAYS) else np.savez_compressed
  with files.replacing(path) as partial, open(partial, "wb") as file:
    save(file, about=np.array(json.dumps(about)), **arrays)


def _narrow(array: np.ndarray) -> np.ndarray:
  """int32 where the values fit, which halves the file."""
  return array.astype(np.int32 if array.max(initial=0) < 2**31 else np.int64)


class PartitionFile(Partitioner):
  """A partition.npz that a run of the same data wrote, or one of yours.

  Clients that are held out or join later are drawn again, by the seed.
  """

  WORD, EXAMPLE = "file", "file:out/first/partition.npz"
  HAS_CLIENTS: ClassVar[bool] = True

  path: str = hyper(dataclasses.MISSING, "the file (docs/data.md says its arrays)")

  def deal(self, examples: Examples, num_clients: int | None, seed: int) -> Partition:
    """Reads the partition (``Partitioner.deal``); only the examples count."""
    return read_partition(self.path, examples)

  def source(self) -> own.Source:
    """The file."""
    return own.source_of(self.path)


def read_partition(path: str | os.PathLike, examples: Examples) -> Partition:
  """Reads a partition and checks that it fits the data.

  Args:
    path: a ``partition.npz`` that a run wrote, or one of your own with the four
      arrays of ``write_partition_file`` (without ``about``, ``train_order`` holds
      rows of x_train, ``test_order`` of x_test, and the labels are not
      compared), or a ``partition.json`` of version 0.2.
    examples: the data that it shall divide.

  Returns:
    The partition, without held-out clients.

  Raises:
    DataError: the file is missing, damaged or inconsistent, or was made for
      other data.
  """
  path = expand_path(path, "partition")
  where = f"`partition`=file:{path}"
  arrays, about = _read(path, where)
  pooled = about.get("pooled", False)
  rows = examples.rows
  if about.get("labels") not in (None, labels_hash(examples)):
    raise DataError(
      f"{where}: was made for other labels than those of {examples.name} "
      f"({rows[0]} training and {rows[1]} test rows): another data set, or "
      "its rows in another order"
    )
  if pooled:
    rows = sum(rows), sum(rows)
  for split, count in zip(("train", "test"), rows):
    _check(where, split, arrays, count)
  train, test = arrays["train_order"], arrays["test_order"]
  if len(arrays["train_size"]) != len(arrays["test_size"]):
    raise DataError(
      f"{where}: {len(arrays['train_size'])} clients with "
      f"training rows, {len(arrays['test_size'])} with test rows"
    )
  empty = (arrays["train_size"] == 0) & (arrays["test_size"] == 0)
  if empty.any() or not len(train):
    raise DataError(
      f"{where}: client {empty.argmax()} has no row"
      if len(train)
      else f"{where}: no client has a training row"
    )
  both = np.intersect1d(train, test) if pooled else train[:0]
  if len(both):
    raise DataError(f"{where}: row {both[0]} is for training and for testing")
  sizes = {
    split: arrays[f"{split}_size"].astype(np.int32) for split in ("train", "test")
  }
  return Partition(
    train.astype(np.int64),
    allocate.offsets(sizes["train"]),
    sizes["train"],
    test.astype(np.int64),
    allocate.offsets(sizes["test"]),
    sizes["test"],
    bool(pooled),
    str(about.get("name", "file")),
    dict(about.get("flags", {})),
  )


def _check(where: str, split: str, arrays: dict[str, np.ndarray], count: int) -> None:
  order, size = arrays[f"{split}_order"], arrays[f"{split}_size"]
  for name, array in ((f"{split}_order", order), (f"{split}_size", size)):
    if array.ndim != 1 or len(array) and array.dtype.kind not in "iu":
      raise DataError(
        f"{where}: {name} is {array.dtype} of shape "
        f"{array.shape}, a list of whole numbers is needed"
      )
  # No size is larger than their sum, which could overflow.
  if (
    not len(size)
    or not 0 <= size.min() <= size.max() <= len(order)
    or (size.sum() != len(order))
  ):
    raise DataError(
      f"{where}: {split}_size must be at least 0 for each client and "
      f"add up to the {len(order)} rows of {split}_order"
    )
  if len(order) and not 0 <= order.min() <= order.max() < count:
    raise DataError(
      f"{where}: {split}_order lies in [{order.min()}, {order.max()}], the "
      f"data have {count} rows"
    )
  times = np.bincount(order.astype(np.int64), minlength=1)
  if times.max() > 1:
    raise DataError(
      f"{where}: {split}_order has row {times.argmax()} {times.max()} times"
    )


def _read(
  path: pathlib.Path, where: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  try:
    if path.suffix == ".json":
      about = files.read_json(path, files.LARGEST_TEXT)
      if "validation_clients" in about:
        raise DataError(
          f"{where}: json with held-out clients; let the run write a partition.npz"
        )
      stored = {name: np.array(about[name]) for name in _ARRAYS}
    else:
      stored = cast(dict[str, np.ndarray], npz.read_npz(path))  # or damaged
      about = json.loads(str(stored.get("about", "{}")))
      for name, shifted in _SHIFTS.items():
        if shifted in stored and name in stored:
          raise DataError(f"{where}: has {name} and {shifted}, must have one of them")
        if shifted in stored:
          stored[name] = stored[shifted] + np.arange(len(stored[shifted]))
    arrays = {name: stored[name] for name in _ARRAYS}
  except OSError as error:
    raise DataError(f"{where}: {error.strerror}") from error
  except KeyError as error:
    raise DataError(
      f"{where}: has no {error.args[0]} (needed are {', '.join(_ARRAYS)})"
    ) from error
  except DataError:
    raise
  except (ValueError, TypeError, AttributeError, RecursionError) as error:
    raise DataError(f"{where}: not a partition, or damaged") from error
  if not isinstance(about, dict) or about.get("format", _FORMAT) != _FORMAT:
    raise DataError(f"{where}: of another format")
  for name, kind in (("name", str), ("pooled", bool), ("flags", dict)):
    if not isinstance(about.get(name, kind()), kind):
      raise DataError(
        f"{where}: `{name}` of its about is "
        f"{a_type(about[name])}, must be {a_type(kind())}"
      )
  return arrays, about
