"""A federation: a data set dealt to clients, with everything a run reads.

Everything is NumPy here. A run places it on its devices, once.
"""

import dataclasses
import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg.base import Array, ClientData
from fedjax_alg.data import shift as shift_lib
from fedjax_alg.data import sources
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.features import make_features
from fedjax_alg.data.femnist import load_femnist
from fedjax_alg.data.hold_out import hold_out
from fedjax_alg.data.layout import client_data
from fedjax_alg.data.newcomers import with_newcomers
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.options import field_values
from fedjax_alg.data.partition import label_histogram
from fedjax_alg.data.partition import make_partition
from fedjax_alg.data.partition import Partition
from fedjax_alg.data.partition import partition_hash
from fedjax_alg.data.sent140 import load_sent140
from fedjax_alg.data.sent140 import SPECIAL
from fedjax_alg.data.synthetic import synthetic
from fedjax_alg.errors import did_you_mean

#: Rows of one piece of the whole test set, or of the validation rows; pieces
#: are shared out like clients.
PIECE = 500


class Pieces(NamedTuple):
  """Rows in V pieces, which a client map shares out like clients."""

  offset: Array  #: [V] int32, first row of each piece
  size: Array  #: [V] int32


class EvaluationData(NamedTuple):
  """The arrays that the programs of a run read, on the host or placed."""

  train: ClientData  #: [C] clients' training data: support, preference
  test: ClientData  #: [C] clients' own test splits
  whole_test: ClientData  #: the test set in pieces, each like a client
  class_weight: Array  #: [C, L] float32, training examples by class
  #: the server's rows of ``train.x``; None where it holds none
  validation: Pieces | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Federation:
  """Clients with their data; ``federate`` makes one."""

  data: EvaluationData  #: NumPy arrays
  partition: Partition  #: who holds which rows of the data set
  num_classes: int  #: L
  name: str  #: of the data set
  label_histogram: np.ndarray  #: [C, L] int64, training examples by class
  #: "data": sha256 of features and labels before they were dealt, "partition":
  #: of the split
  hashes: dict[str, str]
  options: DataOptions  #: that made it

  @property
  def num_clients(self) -> int:
    """C, the clients that can take part."""
    return len(self.data.train.size)

  @property
  def example_shape(self) -> tuple[int, ...]:
    """Shape of one example as the model sees it."""
    return tuple(self.data.train.x.shape[1:])

  @property
  def num_tokens(self) -> int:
    """Word ids lie in [0, num_tokens), where examples are words."""
    return self.options.vocabulary + SPECIAL

  def client(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The training examples x [n, ...] and labels y [n] of one client."""
    return self._rows(self.data.train, number)

  def client_test(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The test examples and labels of one client."""
    return self._rows(self.data.test, number)

  def _rows(self, data: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
    if not 0 <= number < self.num_clients:
      raise DataError(f"`client`={number}: must lie in [0, "
                      f"{self.num_clients})")
    first, size = int(data.offset[number]), int(data.size[number])
    return data.x[first:first + size], data.y[first:first + size]

  def __repr__(self) -> str:
    train = self.data.train
    return (f"<Federation {self.name}: {self.num_clients} clients "
            f"({self.partition.name}), {int(train.size.sum())} training "
            f"examples of shape {self.example_shape}, {self.num_classes} "
            "classes>")


def federate(
    source: str | Examples = "digits", *, seed: int | None = None,
    **options: Any) -> Federation:
  """Deals a data set to clients.

  Args:
    source: a name of ``data.options.DATASETS``, or your own examples
      (``from_arrays``).
    seed: of the partition and of the choice of held-out clients and
      newcomers; 0 if not given. The same as ``partition_seed``.
    **options: fields of ``DataOptions``: ``partition``, ``num_clients``,
      ``classes_per_client``, ``features``, ``validation_clients``, ... An
      option that this federation would not read is an error.

  Returns:
    The federation, in NumPy.

  Raises:
    DataError, OptionError: data that are not there or not usable, an unknown
      option, one out of range, or options that do not fit together; one line.
  """
  fields = {field.name: field for field in dataclasses.fields(DataOptions)}
  for name in options:
    if name not in fields or name == "dataset":
      raise DataError(f"`{name}`: no option of a federation"
                      f"{did_you_mean(name, fields)}")
  if seed is not None:
    if options.get("partition_seed", seed) != seed:
      raise DataError("`seed` and `partition_seed`: give one of them")
    options["partition_seed"] = seed
  if not isinstance(source, (str, Examples)):
    raise DataError(f"`source`: a {type(source).__name__}, must be the name of "
                    "a data set or from_arrays(...)")
  dataset = source if isinstance(source, str) else None
  examples = None if isinstance(source, str) else source
  made = DataOptions(dataset=dataset, **options).filled()
  refuse_unread(made, options)
  return from_options(made, examples)


def refuse_unread(options: Any, given: Any, others: Any = None) -> None:
  """Refuses an option that was given and would not be read.

  Args:
    options: a dataclass of ``hyper`` fields, filled.
    given: names of the options that were given.
    others: name -> value of options that ``when`` may name beside those.

  Raises:
    DataError: one line that names the option and when it is read.
  """
  values = dict(others or {}) | field_values(options)
  for field in dataclasses.fields(options):
    when = field.metadata["when"]
    if field.name not in given or when is None:
      continue
    other, allowed = when
    if values.get(other) is not None and values[other] not in allowed:
      raise DataError(
          f"`{field.name}`: not read with `{other}`={values[other]} (only with "
          f"{' or '.join(map(str, allowed))})")


@functools.lru_cache(maxsize=2)
def _named(dataset: str, source: tuple[Any, ...]) -> Examples:
  if dataset == "digits":
    return sources.load_digits()
  if dataset == "synthetic":
    return synthetic(*source)
  if dataset == "npz":
    return sources.load_npz(source[0])
  if dataset == "leaf":
    return sources.load_leaf(source[0])
  if dataset == "femnist":
    return load_femnist(*source)
  if dataset == "sent140":
    return load_sent140(*source)
  return sources.load_tfds(dataset, source[0])


def load_examples(options: DataOptions) -> Examples:
  """The data set that filled options name, before features.

  Raises:
    DataError: it is not there or not usable; one line.
  """
  o = options
  source: tuple[Any, ...] = (o.data_dir,)
  assert o.dataset is not None
  if o.dataset == "synthetic":
    source = (o.synthetic_alpha, o.synthetic_beta, o.num_clients,
              o.partition_seed, o.synthetic_iid)
  elif o.dataset in ("npz", "leaf"):
    source = (o.data_path,)
  elif o.dataset == "femnist":
    source = (o.femnist, o.num_clients, o.partition_seed, o.data_dir,
              o.data_path)
  elif o.dataset == "sent140":
    source = (o.min_client_size, o.vocabulary, o.sequence_length,
              o.partition_seed, o.data_dir)
  return _named(o.dataset, source)


def _with_features(options: DataOptions, examples: Examples) -> Examples:
  chosen = {}
  if options.features == "hog":
    chosen = {name: getattr(options, f"hog_{name}")
              for name in ("block", "stride", "bins", "norm", "scale")}
  x_train, x_test = make_features(options.features, **chosen)(
      examples.x_train, examples.x_test)
  return examples._replace(x_train=x_train, x_test=x_test)


@functools.lru_cache(maxsize=1)
def _named_with_features(options: DataOptions) -> Examples:
  return _with_features(options, load_examples(options))


def _of_data_set(options: DataOptions) -> DataOptions:
  """The options without those that only decide how the data are dealt.

  A figure's next run then finds the features of the last one. A data set
  that is made for its clients depends on their number and seed.
  """
  if options.dataset in ("synthetic", "femnist", "sent140"):
    return options
  default = DataOptions()
  dealt = ("partition", "num_clients", "classes_per_client",
           "min_classes_per_client", "dirichlet_alpha", "min_client_size",
           "size_sigma", "local_test_fraction", "partition_seed",
           "validation_clients", "newcomers_at", "shift", "shift_every",
           "shift_share")
  return dataclasses.replace(options, **field_values(default, dealt))


def from_options(
    options: DataOptions, examples: Examples | None = None) -> Federation:
  """The federation of filled options.

  Args:
    options: ``DataOptions.filled``.
    examples: the data set; None loads the one that the options name.

  Raises:
    DataError: see ``federate``.
  """
  held = (_with_features(options, examples) if examples is not None
          else _named_with_features(_of_data_set(options)))
  kind, count = options.partition, options.num_clients
  if kind is None:
    kind = "natural" if held.client_train is not None else "iid"
  if count is None and kind != "natural":
    count = 100
  if options.dataset in ("synthetic", "femnist"):
    count = None  # its generator made the clients
  fewest = options.min_client_size
  if options.dataset == "sent140":
    fewest = None  # counts tweets for training and testing, seen to already
  assert options.partition_seed is not None
  partition = make_partition(
      kind, held, count, options.partition_seed,
      classes_per_client=options.classes_per_client,
      min_classes_per_client=options.min_classes_per_client,
      dirichlet_alpha=options.dirichlet_alpha, min_client_size=fewest,
      size_sigma=options.size_sigma,
      local_test_fraction=options.local_test_fraction)
  partition = hold_out(
      partition, options.validation_clients, options.partition_seed)
  joins = None
  if options.newcomers_at:
    joins = with_newcomers(
        partition, options.newcomers_at, options.partition_seed)
  return deal(held, partition, joins, options)


def deal(
    examples: Examples, partition: Partition, joins: np.ndarray | None = None,
    options: DataOptions = DataOptions(dataset=None)) -> Federation:
  """Deals the rows of a data set to clients by a partition.

  The whole test set is the official one, unless the partition trains on rows
  of it (``powerlaw``) or there is none: then it is the union of the local test
  splits. Of clients held out, the server gets the training rows; their local
  test rows are in no such union, and where the data set itself names the
  client of each test row (``natural``) not in the official test set either.

  Args:
    examples: the data set that ``partition`` was made of, with features.
    partition: who holds which rows.
    joins: [C] int32, when clients take part, see ``with_newcomers``; None:
      all are there from the start.
    options: to remember.

  Returns:
    The federation.

  Raises:
    DataError: there are no test examples at all.
  """
  x_train, y_train = examples.x_train, examples.y_train
  x_test, y_test = examples.x_test, examples.y_test
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
    if partition.pooled or num_test != len(y_test):
      order = np.arange(len(y_test))
      whole = client_data(
          x_test, y_test, order, order[:1], np.array([len(order)]))
    else:
      whole = test  # its rows are the official ones, in another order
    total = len(y_test)
  elif num_test:
    whole, total = test, num_test
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
  class_weight: Any = histogram.astype(np.float32)
  data = EvaluationData(
      train, test, whole._replace(**_pieces(0, total)._asdict()),
      class_weight,
      None if train.validation is None else _pieces(*train.validation.tolist()))
  hashes = {"data": digest, "partition": partition_hash(partition)}
  return Federation(data, partition, examples.num_classes, examples.name,
                    histogram, hashes, options)


def _pieces(first: int, total: int) -> Pieces:
  offset = np.arange(0, total, PIECE, dtype=np.int32)
  found: Any = (np.asarray(first + offset, np.int32),
                np.minimum(PIECE, total - offset).astype(np.int32))
  return Pieces(*found)


def _hash(*arrays: np.ndarray) -> str:
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
  return digest.hexdigest()


class Shifted(NamedTuple):
  """What clients hold after some events of a shift."""

  train_order: np.ndarray | None  #: places of ``train.x``; None: as before
  test_order: np.ndarray | None
  train: tuple[np.ndarray, np.ndarray]  #: offset and size, [C] int32
  test: tuple[np.ndarray, np.ndarray]
  label_histogram: np.ndarray  #: [C, L] int64


def after_events(federation: Federation, event: int) -> Shifted:
  """Who holds which places of the federation's arrays after ``event`` events.

  A function of the federation alone, so a resumed run goes on with the same
  data. Arrays keep their shapes.
  """
  options, partition = federation.options, federation.partition
  places = partition._replace(
      train_order=np.arange(len(partition.train_order)),
      test_order=np.arange(len(partition.test_order)))
  y_train, y_test = (
      np.asarray(held.y)[:len(order)] for held, order in (
          (federation.data.train, partition.train_order),
          (federation.data.test, partition.test_order)))
  assert options.partition_seed is not None
  held = shift_lib.shifted(
      places, y_train, y_test, options.shift, event, options.shift_share,
      options.partition_seed)

  def moved(order: np.ndarray, data: ClientData) -> np.ndarray | None:
    if (order == np.arange(len(order))).all():
      return None
    behind = np.arange(len(order), data.x.shape[0])  # the server's, padding
    return np.concatenate([order, behind]).astype(np.int32)

  return Shifted(
      moved(held.train_order, federation.data.train),
      moved(held.test_order, federation.data.test),
      (held.train_offset.astype(np.int32), held.train_size.astype(np.int32)),
      (held.test_offset.astype(np.int32), held.test_size.astype(np.int32)),
      label_histogram(held, y_train, federation.num_classes))
