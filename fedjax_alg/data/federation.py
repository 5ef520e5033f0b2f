"""A federation: a data set dealt to clients, with everything a run reads.

All arrays here are NumPy arrays. A run places them on its devices once.
"""

from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import math
from typing import Any, NamedTuple, cast, overload
import warnings

import jax
import numpy as np

from fedjax_alg import files, memory, own, tasks
from fedjax_alg.base import NEVER, Array, ClientData, Shard
from fedjax_alg.data import client_names as names_lib
from fedjax_alg.data import (
  concept_steps,
  kind_changes,
  kind_dealing,
  process_rows,
  store,
)
from fedjax_alg.data import kinds as kinds_lib
from fedjax_alg.data.arrays import make_examples
from fedjax_alg.data.characters import SPECIAL
from fedjax_alg.data.datasets import data_set
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory, doubts
from fedjax_alg.data.features import (
  RawFeatures,
  Scaler,
  check_texts,
  fit_scaler,
  hash_of,
  image_shape,
)
from fedjax_alg.data.hold_out import hold_out, leave_out, put_back
from fedjax_alg.data.label_skew import Iid
from fedjax_alg.data.labels import Encoding
from fedjax_alg.data.layout import (
  PADDING_ROWS,
  client_data,
  num_example_rows,
  num_places,
  row_nbytes,
  server_rows,
)
from fedjax_alg.data.location import has_room
from fedjax_alg.data.newcomers import with_newcomers
from fedjax_alg.data.options import (
  DataOptions,
  PartitionOptions,
)
from fedjax_alg.data.partition import (
  Partition,
  label_histogram,
  partition_hash,
)
from fedjax_alg.data.partition_file import labels_hash
from fedjax_alg.data.preprocessing import Preprocessing
from fedjax_alg.data.published import Natural
from fedjax_alg.data.schedule import DataSchedule
from fedjax_alg.data.shift import SwapPart
from fedjax_alg.data.sources import DataSet
from fedjax_alg.data.store import IMAGE_SCALE, Coded, compact
from fedjax_alg.errors import Faults, OptionError, a_type, did_you_mean
from fedjax_alg.hparams import field_values, plain
from fedjax_alg.part import of_type
from fedjax_alg.typing import DTypes, PyTree, Shapes

#: Rows in one piece of the whole test set or of the validation rows. Pieces
#: are distributed over the devices in the same way as clients.
PIECE = 500

#: A larger file is read again for the next federation: the rows lie in memory
#: once more, in the order of the clients.
_KEPT_BYTES = 2**29

#: The most partitions that ``federate`` makes at once.
MAX_PARTITIONS = 1000


class Pieces(NamedTuple):
  """Rows in V pieces, which a client map treats in the same way as clients."""

  offset: Array  #: [V] int32, first row of each piece
  size: Array  #: [V] int32


class KindTests(NamedTuple):
  """The rows of the whole test set on which the K kinds of clients are tested."""

  client: Array  #: [C] int32, the kind of each client
  offset: Array  #: [K] int32, first row of each kind
  size: Array  #: [K] int32


class EvaluationData(NamedTuple):
  """The arrays that the programs of a run read, on the host or on devices."""

  train: ClientData  #: training data of the C clients
  test: ClientData  #: local test splits of the C clients
  whole_test: ClientData  #: the whole test set in pieces
  class_weight: Array  #: [C, L] int32, ``Federation.label_histogram``
  #: the rows of ``train.x`` that the server holds; None if it holds none
  validation: Pieces | None = None
  #: the test rows of each kind of clients; None if clients have no kinds
  kinds: KindTests | None = None
  #: of the server's rows those of each validation client; None if it holds none
  held_out: Pieces | None = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Federation:
  """Clients with their data, made by ``federate``."""

  data: EvaluationData  #: NumPy arrays
  partition: Partition  #: the rows of the data set that each client holds
  num_classes: int  #: L, the outputs of the task for one example or token
  name: str  #: name of the data set
  #: [C, L] int32, training examples by class; of other tasks by the label that
  #: an example is dealt by (``Examples.labels``), [C, 1] if they have none
  label_histogram: np.ndarray
  #: "data": sha256 of all features and labels; "partition": sha256 of the
  #: partition; with `without` also "all_clients", that of both hashes as they are with
  #: these clients (``pair_hash``)
  hashes: dict[str, str]
  options: DataOptions  #: the options that made this federation
  #: number of token ids of the data; None if ``options.vocabulary`` says it
  tokens: int | None = None
  #: [C] strings, the clients' names in the data; None if the partition is not
  #: of the data's own clients, whose names are their positions (``client_names``)
  names_in_data: np.ndarray | None = None
  labels: str = ""  #: sha256 of all labels, which a partition file names
  #: the training rows in ``data.train.x``, if this process does not hold all
  rows: process_rows.Rows | None = None
  #: what is predicted; None: one class for each example, unless the model names
  #: another task
  task: tasks.Task | None = None
  #: the labels of ``label_histogram`` of the rows for training and for testing,
  #: in the order of the clients; None: y
  dealt_by: tuple[np.ndarray, np.ndarray] | None = None
  #: how ``features=standardize`` has scaled the examples, for new ones
  scaler: Scaler | None = None
  #: the kinds of the clients, if they have any; at the first step, if they change
  kinds: kinds_lib.ClientKinds | None = None
  #: what clients hold from which round on; None if their data stay
  schedule: DataSchedule | None = None
  #: what the data set has learnt of names and columns; None for arrays of numbers
  encoding: Encoding | None = None
  #: strings, the names of the validation clients, if the data name them
  validation_names: np.ndarray | None = None
  #: hash of what outside the data decides the features, such as the run whose layer
  #: they are; "" if nothing does
  body: str = ""
  #: of one example before its features; () if they are not computed
  raw_shape: tuple[int, ...] = ()
  #: of the arrays of an example before their features; None if it is not known
  raw_dtype: DTypes | None = None

  @property
  def num_clients(self) -> int:
    """C, the number of clients, without the validation clients."""
    return len(self.data.train.size)

  @functools.cached_property
  def feature_flops(self) -> float:
    """The operations of the features of all clients' training examples.

    Each client computes them once. 0 if the features do not count theirs
    (``Features.flops``).
    """
    of_one = self.options.features.flops(self.raw_shape) if self.raw_shape else 0.0
    return of_one * int(self.data.train.size.sum())

  @functools.cached_property
  def client_names(self) -> np.ndarray:
    """[C] strings, the name of each client, in the order of all arrays of clients.

    They are those of the data, or else the positions "0", "1", ... Every function and
    command that takes clients takes these names, and numbers where they are numbers.
    """
    names = self.names_in_data
    return names_lib.names_of_positions(self.num_clients) if names is None else names

  def position(self, client: Any, option: str = "client") -> int:
    """Finds the position of a client in arrays of all clients.

    Args:
      client: the name of the client (``client_names``), a text or a whole number.
      option: the argument that it was given as, for messages.

    Raises:
      OptionError: no client has this name.

    Examples:
      >>> fed = federate("digits", num_clients=20)
      >>> fed.position("17"), fed.position(17)
      (17, 17)
    """
    return names_lib.position_of(option, client, self._places, self.num_clients)

  def positions(self, clients: Any, option: str = "clients") -> list[int]:
    """Finds the positions of one client or of several, in the order of their names.

    Args:
      clients: a name (see ``position``), or several; a text is a list as a flag has
        it, with commas between names.
      option: the argument that they were given as, for messages.

    Raises:
      OptionError: no client has one of the names, one is given twice, or none is.
    """
    return names_lib.positions_of(option, clients, self._places, self.num_clients)

  @functools.cached_property
  def _places(self) -> dict[str, int] | None:
    return names_lib.index_names(self.names_in_data)

  @property
  def kinds_of_steps(self) -> np.ndarray | None:
    """[T, C] int32, the kind of each client at each step; None if kinds stay."""
    return None if self.schedule is None else self.schedule.kinds

  @property
  def num_training_clients(self) -> int:
    """The number of clients with training examples; the others are only evaluated."""
    return int((np.asarray(self.data.train.size) > 0).sum())

  def with_absent(self) -> "Federation":
    """Marks clients without training rows, so that they never take part.

    ``federate`` marks them. A federation with sizes that were changed afterwards has
    as many places in a round as there are clients with rows, and would fill one
    of them with a client that has none.

    Returns:
      The same federation if there is nothing to mark, or if the clients' rows
      change (``schedule``).
    """
    train = self.data.train
    old = np.zeros(len(train.size), np.int32) if train.joins is None else train.joins
    joins: Any = np.where(np.asarray(train.size) > 0, old, NEVER).astype(np.int32)
    if self.schedule is not None or (joins == old).all():
      return self
    train = train._replace(joins=joins)
    return dataclasses.replace(self, data=self.data._replace(train=train))

  @property
  def example_shape(self) -> Shapes:
    """The shape of one example for the model; for a dictionary, each shape."""
    shapes: Shapes = store.map_arrays(
      lambda array: tuple(array.shape[1:]), self.data.train.x
    )
    return shapes

  @property
  def example_dtype(self) -> DTypes:
    """The dtype of the examples as the model reads them, likewise."""
    dtypes: DTypes = store.map_arrays(lambda array: array.dtype, self.data.train.x)
    return dtypes

  @property
  def targets(self) -> Any:
    """The shapes and dtypes of the targets of one example."""
    return jax.tree.map(
      lambda y: jax.ShapeDtypeStruct(y.shape[1:], y.dtype), self.data.train.y
    )

  @property
  def preprocessing(self) -> Preprocessing:
    """The steps from raw examples to the model's inputs (``RunResult.predict``)."""
    return Preprocessing(
      self.options,
      self.example_shape,
      self.example_dtype,
      self.encoding,
      self.scaler,
      self.body,
      self.raw_dtype,
      self.tokens,
    )

  @property
  def num_tokens(self) -> int:
    """The number of token ids; a token id lies in [0, num_tokens)."""
    return self.tokens or self.options.vocabulary + SPECIAL

  @property
  def has_classes(self) -> bool:
    """Whether every example has one class."""
    return tasks.of(self).has_classes

  @property
  def test_sizes(self) -> np.ndarray:
    """[L] int64, examples of the whole test set by class."""
    assert self.has_classes
    test = self.data.whole_test
    return self._by_class(np.asarray(test.y[: test.size.sum()]))

  @property
  def validation_sizes(self) -> np.ndarray | None:
    """[L] int64, validation examples by class; None if there are none or no classes."""
    rows = server_rows(self.data.train)
    if rows is None or not self.has_classes:
      return None
    first = int(rows.offset)
    return self._by_class(np.asarray(rows.y[first : first + int(rows.size)]))

  def _by_class(self, y: np.ndarray) -> np.ndarray:
    return np.bincount(y[y >= 0], minlength=self.num_classes)

  def client(self, client: Any) -> tuple[Any, Any]:
    """Returns the training data of one client.

    Args:
      client: the name of the client (``client_names``), a text or a whole number.

    Returns:
      The examples x [n, ...] and the labels y [n] (or targets, of other
      tasks), as arrays or dictionaries of arrays.

    Raises:
      DataError: no client has this name, or another process holds the client's
        examples.
    """
    return self._rows(self.data.train, client, self.rows)

  def client_test(self, client: Any) -> tuple[Any, Any]:
    """Returns the local test data of one client.

    Args:
      client: see ``client``.

    Returns:
      The examples x [n, ...] and the labels y [n]; n may be 0.

    Raises:
      DataError: no client has this name.
    """
    return self._rows(self.data.test, client)

  def _rows(
    self, data: ClientData, client: Any, rows: process_rows.Rows | None = None
  ) -> tuple[PyTree, PyTree]:
    try:
      number = self.position(client)
    except OptionError as error:
      raise DataError(error.text) from None
    first, size = int(data.offset[number]), int(data.size[number])
    if rows is not None:
      if not rows.own.start <= first <= first + size <= rows.own.stop:
        raise DataError(f"`client`={client}: its rows are in another process")
      first -= rows.own.start
    x, y = (
      store.map_arrays(lambda array: array[first : first + size], tree)
      for tree in (data.x, data.y)
    )
    return x, y

  def __repr__(self) -> str:
    train, task = self.data.train, tasks.of(self)
    unit = "classes" if task.has_classes else f"outputs ({task.name})"
    return (
      f"<Federation {self.name}: {self.num_clients} clients "
      f"({self.partition.name}), {int(train.size.sum())} training "
      f"examples of shape {self.example_shape}, {self.num_classes} "
      f"{unit}>"
    )


class Federations(tuple[Federation, ...]):
  """The same data dealt to clients several times, by different seeds."""

  def __repr__(self) -> str:
    return f"<{len(self)} partitions of {self[0]!r}>"


@overload
def federate(
  source: str | DataSet | Examples = "digits",
  *,
  seed: int | None = None,
  partitions: int,
  **options: Any,
) -> Federations: ...


@overload
def federate(
  source: str | DataSet | Examples = "digits",
  *,
  seed: int | None = None,
  **options: Any,
) -> Federation: ...


def federate(
  source: str | DataSet | Examples = "digits",
  *,
  seed: int | None = None,
  partitions: int | None = None,
  **options: Any,
) -> Federation | Federations:
  """Distributes a data set over clients.

  Args:
    source: a data set, ``fa.Synthetic(0.5, 0.5)``, or its text as on the command line,
      ``"synthetic:0.5,0.5"`` (``data.datasets``), or your own examples
      (``from_arrays``).
    seed: seed of the partition and of the choice of validation clients and
      newcomers; 0 if not given. It is another name of ``partition_seed``.
    partitions: N, the number of partitions of the data, with the seeds seed, ...,
      seed + N - 1. ``run`` and ``sweep`` run each of them with another seed and pool
      the results, so that your interval covers the partition, too.
    **options: fields of ``DataOptions``: ``partition``, ``num_clients``,
      ``features``, ``validation_clients``, ... It is an error to give an option that
      would not be read. A partition is an object, ``fa.Dirichlet(0.1)``, or its text
      as on the command line, ``"dirichlet:0.1"``.

  Returns:
    The federation, in NumPy arrays; with ``partitions`` all of them.

  Raises:
    DataError, OptionError: the data are missing or unusable, or an option is
      unknown, out of range or does not fit the others; the message is one
      line.

  Examples:
    >>> fed = federate("digits", partition="classes:2", num_clients=60,
    ...                validation_clients=10, seed=0)
    >>> fed.num_clients, fed.num_classes, fed.example_shape
    (50, 10, (8, 8, 1))
    >>> x, y = fed.client(0)
    >>> len(np.unique(y))
    2
    >>> federate("digits", partition="clases")
    Traceback (most recent call last):
    fedjax_alg.errors.OptionError: partition=clases: unknown, did you mean ...
  """
  if seed is not None and type(plain(seed)) is not int:
    raise OptionError(
      f"`seed`={seed!r}: must be a whole number; for several partitions of the data "
      "give `partitions`=N, with the seeds seed to seed + N - 1"
    )
  if partitions is not None:
    number = of_type("partitions", partitions, int)
    if not 2 <= number <= MAX_PARTITIONS:
      raise DataError(f"`partitions`={number}: must be 2 to {MAX_PARTITIONS}")
    first = options.pop("partition_seed", None) if seed is None else seed
    start = 0 if first is None else of_type("seed", first, int)
    return Federations(
      federate(source, seed=start + part, **options) for part in range(number)
    )
  fields = {field.name: field for field in dataclasses.fields(DataOptions)}
  faults = Faults()
  for name in options:
    if name not in fields or name == "dataset":
      hint = (
        did_you_mean(name, fields)
        if name != "dataset"
        else (", it is the first argument: federate('digits', ...)")
      )
      faults.add(DataError(f"`{name}`: no option of a federation{hint}"))
  faults.raise_any(DataError)
  if seed is not None:
    if options.get("partition_seed", seed) != seed:
      raise DataError("`seed` and `partition_seed`: give one of them")
    options["partition_seed"] = seed
  if not isinstance(source, (str, DataSet, Examples)):
    raise DataError(
      f"`source`: {a_type(source)}, must be the name of a data set or from_arrays(...)"
    )
  dataset: Any = None if isinstance(source, Examples) else source
  examples = source if isinstance(source, Examples) else None
  try:
    filled = DataOptions(dataset=dataset, **options).filled()
  except OptionError as error:
    if seed is None:
      raise
    raise type(error)(error.text.replace("`partition_seed`", "`seed`")) from None
  return from_options(filled, examples)


def data_key(options: DataOptions) -> str:
  """Computes what stands for the files of the data in the keys of caches.

  Args:
    options: filled options (``DataOptions.filled``).

  Returns:
    Hashes of the files and of the task's own file; of data prepared by TFDS
    that of their version. A file that cannot be read is no error yet: the
    loader says it.
  """
  change = options.kinds
  if isinstance(change, kind_changes.SourceKinds):
    return " ".join(map(data_key, _options_of_sources(options, change)))
  keys = []
  if options.dataset is not None:
    keys.append(options.dataset.hash_files(options.data_dir))
  if tasks.is_own_task(options.task):
    keys.append(own.load(str(options.task), "task")[1].sha256)
  kinds_by = change.source()
  if kinds_by is not None:
    keys.append(kinds_by.sha256)
  keys.append(hash_of(options.features))
  if options.concepts.file is not None:
    keys.append(files.contents_key([options.concepts.file]))
  return " ".join(keys)


def _options_of_sources(
  options: DataOptions, change: kind_changes.SourceKinds
) -> list[DataOptions]:
  """The options of each of the data sets that stand in the place of one."""
  natural = kind_changes.NaturalKinds()
  return [
    dataclasses.replace(options, dataset=data_set(name), kinds=natural)
    for name in change.names
  ]


@functools.lru_cache(maxsize=2)
def _load_cached(
  inside: str, dataset: DataSet, is_text: bool, *values: object
) -> Examples:
  del inside  # the key alone: what the files hold
  return dataset.load_texts(*values) if is_text else dataset.load(*values)


def load_examples(options: DataOptions) -> Examples:
  """Loads the data set that the options name, without computing features.

  Args:
    options: filled options (``DataOptions.filled``).

  Returns:
    The examples.

  Raises:
    DataError: the data set is missing or unusable.
  """
  return _load(options, data_key(options))


def _load(options: DataOptions, inside: str) -> Examples:
  change = options.kinds
  if isinstance(change, kind_changes.SourceKinds):
    return kind_changes.join_sources(
      change, [_load(source, inside) for source in _options_of_sources(options, change)]
    )
  dataset = options.dataset
  assert dataset is not None
  values = (getattr(options, name) for name in dataset.READS)
  is_text = dataset.HAS_TEXTS and options.features.reads_texts
  examples = _load_cached(inside, dataset, is_text, *values)
  examples = _with_task(examples, options.task)
  if not change.all_examples:
    return examples
  assert options.partition_seed is not None
  return kind_changes.repeat_for_kinds(change, examples, options.partition_seed)


def _with_task(examples: Examples, task: str | None) -> Examples:
  """The examples with the targets of another task.

  Args:
    examples: the data set.
    task: an option `task`; None: the data set's own.

  Raises:
    DataError: the targets are not those of the task.
  """
  new_task = tasks.resolve_task(task)
  if (
    new_task is None
    or examples.task is not None
    and (examples.task.name == new_task.name)
  ):
    return examples
  arrays = {
    name: getattr(examples, name) for name in ("x_train", "y_train", "x_test", "y_test")
  }
  converted = make_examples(
    arrays,
    lambda name: f"`dataset`={examples.name}: {name}",
    examples.name,
    task=new_task,
  )
  return dataclasses.replace(
    examples,
    y_train=converted.y_train,
    y_test=converted.y_test,
    num_classes=converted.num_classes,
    task=converted.task,
  )


def _with_features(options: DataOptions, examples: Examples) -> Examples:
  examples = _load_rows(options, examples)
  raw_dtype = store.map_arrays(lambda array: array.dtype, examples.x_train)
  examples = dataclasses.replace(examples, raw_dtype=raw_dtype)
  if isinstance(examples.x_train, dict):
    return _store_each(options, examples)
  arrays: Any = examples.x_train, examples.x_test
  features, shape = options.features, arrays[0].shape[1:]
  check_texts(features, arrays[0])
  kind, raw_shape = features.WORD, shape
  if kind == "standardize":  # its scale depends on the partition
    return examples
  if features.SHAPED and arrays[0].dtype == np.uint8:
    # The result of features.none on images, stored as the images.
    if kind == "flatten":
      shape = (math.prod(shape),)
    elif kind == "images":
      shape = image_shape(arrays[0])
    arrays = tuple(
      Coded(images.reshape(len(images), *shape), IMAGE_SCALE) for images in arrays
    )
  else:
    x_train = features.compute(arrays[0])
    # Only features that were computed tell how many there are of an example.
    x_test = features.compute(arrays[1]) if len(arrays[1]) else x_train[:0]
    arrays = compact((x_train, x_test), options.store)
  return dataclasses.replace(
    examples, x_train=arrays[0], x_test=arrays[1], raw_shape=raw_shape
  )


def _load_rows(options: DataOptions, examples: Examples) -> Examples:
  """The examples in memory, unless they are to stay in their files.

  Raises:
    DataError: they are in no files, or do not fit into memory.
  """
  location, arrays = options.data_on, (examples.x_train, examples.x_test)
  needed, why = _needs_memory(options)
  if _changes_examples(options):
    examples = dataclasses.replace(examples, checksums=None)
  if location.IS_FILES:
    if not store.is_in_files(arrays):
      raise DataError(
        f"{location.label}: {examples.name} is in memory (allowed: auto, device, host; "
        "write_clients makes files, and open_clients opens them)"
      )
    if needed:
      raise DataError(f"{needed}: not with {location.label}: {why}")
    return examples
  if not store.is_in_files(arrays):
    return examples
  nbytes = sum(array.nbytes for array in arrays)
  # They are there twice while they are put into the order of the clients.
  if location.IS_CHOSEN and not needed and not has_room(2 * nbytes, memory.free()):
    return examples
  check_memory(
    f"{_label(options, examples)}: {examples.rows[0]:,} examples",
    nbytes,
    f"`data_on`=disk leaves them in their files{', without ' * bool(needed)}{needed}",
  )
  x_train, x_test = (array[:] for array in arrays)
  return dataclasses.replace(examples, x_train=x_train, x_test=x_test)


def _changes_examples(options: DataOptions) -> bool:
  """Whether the examples of a run may be others than those of its files."""
  is_same = options.features.WORD == "none" and options.store == "auto"
  return options.kinds.CHANGES or not is_same


def _needs_memory(options: DataOptions) -> tuple[str, str]:
  """The option that needs all examples in memory, with its value, and why; or ""."""
  kinds = options.kinds
  if kinds.CHANGES and not kinds.BY_ROW:
    return kinds.label, "your function gets all examples of a kind at once"
  if options.store != "auto":
    return f"`store`={options.store}", "it says what bytes the memory has"
  return "", ""


def _store_each(options: DataOptions, examples: Examples) -> Examples:
  """The examples of a dictionary of arrays, each kept as if it were alone."""
  if options.features.WORD != "none":
    raise DataError(
      f"`features`={options.features}: needs one array, the "
      f"examples are {', '.join(examples.x_train)}"
    )

  def transform(*pair):
    part = _with_features(
      options, dataclasses.replace(examples, x_train=pair[0], x_test=pair[1])
    )
    return part.x_train, part.x_test

  pairs = store.map_arrays(transform, examples.x_train, examples.x_test)
  x_train, x_test = (
    jax.tree.map(
      lambda pair, i=i: pair[i], pairs, is_leaf=lambda pair: isinstance(pair, tuple)
    )
    for i in (0, 1)
  )
  return dataclasses.replace(examples, x_train=x_train, x_test=x_test)


def _standardize(
  options: DataOptions, examples: Examples, partition: Partition
) -> tuple[Examples, Scaler]:
  """The examples scaled as the training rows of the partition's clients.

  Rows that clients keep for testing do not count, nor those of validation
  clients and of clients that do not take part. Newcomers do.
  """
  x_train, x_test = examples.x_train, examples.x_test
  parts = [x_train, x_test] if partition.pooled and len(x_test) else [x_train]
  # In the order of the data, so that the sums do not depend on the partition
  # where its clients train on all rows.
  rows = np.sort(partition.train_order)
  if not store.is_in_files(parts):
    pool = np.concatenate(parts) if len(parts) > 1 else x_train
    scaler = fit_scaler(pool if len(rows) == len(pool) else pool[rows])
  else:
    scaler = fit_scaler(store.order_rows(parts, rows))
  arrays: Any = compact((scaler.apply(x_train), scaler.apply(x_test)), options.store)
  return dataclasses.replace(examples, x_train=arrays[0], x_test=arrays[1]), scaler


@functools.lru_cache(maxsize=1)
def _load_with_features(options: DataOptions, inside: str) -> Examples:
  return _with_features(options, _load(options, inside))


def _of_data_set(options: DataOptions) -> DataOptions:
  """Resets the options that only decide how the data are dealt to clients.

  Federations that differ in these options alone then share cached features.
  A data set that is generated for its clients also depends on the number of
  clients and on the seed, so its options are kept.
  """
  if options.dataset is not None and "partition_seed" in options.dataset.READS:
    return options
  clients = PartitionOptions(kinds=options.kinds.with_equal_shares())
  return dataclasses.replace(options, **field_values(clients))


def _label(options: DataOptions, examples: Examples | None) -> str:
  """The data as a message names them."""
  if options.dataset is None and examples is not None:
    return f"`source`={examples.name}"
  return f"`dataset`={options.dataset}"


def from_options(options: DataOptions, examples: Examples | None = None) -> Federation:
  """Makes the federation that the options describe.

  Args:
    options: filled options (``DataOptions.filled``).
    examples: the data set; None loads the data set that the options name.

  Returns:
    The federation.

  Raises:
    DataError: see ``federate``.
  """
  with memory.in_one_line(_label(options, examples), DataError):
    return _make(options, examples, None)


def from_options_cached(options: DataOptions) -> Federation:
  """``from_options``, kept until other options or other files are asked for.

  Args:
    options: filled options (``DataOptions.filled``).

  Returns:
    The same object as last time, if the options are equal and the files that
    they name hold the same.

  Raises:
    DataError: see ``federate``.
  """
  source = None if options.partition is None else options.partition.source()
  with memory.in_one_line(_label(options, None), DataError):
    return _make_cached(options, data_key(options), source)


@functools.lru_cache(maxsize=1)
def _make_cached(
  options: DataOptions, inside: str, partition: own.Source | None
) -> Federation:
  del partition  # read again by _make
  return _make(options, None, inside)


def _make(
  options: DataOptions, examples: Examples | None, inside: str | None
) -> Federation:
  """``from_options``; ``inside`` are ``data_key`` if they are known."""
  change = options.kinds
  body = hash_of(options.features)  # before it is read
  # Features are computed of what a kind makes of the examples.
  changes = change.CHANGES
  if examples is None:
    load = _load if changes else _load_with_features
    examples = load(
      options if changes else _of_data_set(options),
      data_key(options) if inside is None else inside,
    )
  else:
    examples = _with_task(examples, options.task)
    if not changes:
      examples = _with_features(options, examples)
  if changes:  # else they were loaded for their features
    check_texts(RawFeatures(), examples.x_train)  # kinds change numbers
    examples = _load_rows(options, examples)
  if options.train_examples is not None:
    examples = _sample_training(options, examples)
  task = tasks.of(examples)
  if isinstance(options.shift, SwapPart) and not task.has_classes:
    raise DataError(
      f"`shift`={options.shift}: exchanges the examples of a class, "
      f"`task`={task.name} has none"
    )
  if options.dataset is None or options.dataset.OF_USER:
    for text in doubts(examples):
      warnings.warn(text, stacklevel=4)
  partition, kinds = _partition(options, examples)
  client_kinds, labels = None, labels_hash(examples)
  schedule, dealt = None, partition
  if options.concepts.period is not None:
    examples, dealt, schedule = _share_out_steps(options, change, examples, partition)
    client_kinds = schedule.at(0).kinds
  elif kinds is not None:
    examples, client_kinds = _of_kinds(options, change, examples, partition, kinds)
  joins = None
  if options.newcomers_at or not partition.train_size.all():
    assert options.partition_seed is not None
    joins = with_newcomers(
      partition, options.newcomers_at or (), options.partition_seed
    )
  everybody = {}
  if options.without is not None:
    everybody = {"all_clients": _hash_of_all(options, examples, partition)}
    names = names_lib.names_of_all(examples, partition)
    dealt = partition = _leave_out(partition, names, options.without)
    joins = np.zeros(partition.num_clients, np.int32) if joins is None else joins
    joins = np.where(partition.train_size > 0, joins, NEVER).astype(np.int32)
  scaler = None
  if options.features.WORD == "standardize":
    examples, scaler = _standardize(options, examples, dealt)
  federation = dataclasses.replace(
    deal(examples, dealt, joins, options, client_kinds),
    scaler=scaler,
    labels=labels,
    body=body,
  )
  federation = dataclasses.replace(federation, hashes=federation.hashes | everybody)
  if schedule is not None:
    tests = examples.x_test, examples.y_test
    federation = dataclasses.replace(
      federation,
      schedule=dataclasses.replace(schedule, tests=tests),
      partition=partition,
      hashes=federation.hashes | {"partition": partition_hash(partition)},
    )
  elif options.shift.period is not None:
    federation = dataclasses.replace(federation, schedule=_shift(federation))
  large = (
    options.dataset is not None
    and options.dataset.OF_USER
    and options.features.SHAPED
    and sum(array.nbytes for array in store.arrays(examples.x_train)) > _KEPT_BYTES
  )
  if large or federation.rows is not None:
    _load_cached.cache_clear()
    _load_with_features.cache_clear()
  return federation


def _of_kinds(
  options: DataOptions,
  change: kind_changes.Kinds,
  examples: Examples,
  partition: Partition,
  kinds: np.ndarray,
) -> tuple[Examples, kinds_lib.ClientKinds]:
  """The examples as their clients' kinds have them, with features.

  Args:
    options: filled options.
    change: the option `kinds`.
    examples: the data set; without features, if kinds change the examples.
    partition: the rows of each client.
    kinds: [C] int32, the kinds of all clients, also of those held out.

  Raises:
    DataError: they do not go together with ``shift``.
  """
  seed, before = options.partition_seed, examples
  assert seed is not None
  if change.CHANGES:
    everyone, is_image = put_back(partition), options.features.WORD == "images"
    examples = _with_features(
      options,
      kind_changes.change_examples(change, before, everyone, kinds, seed, is_image),
    )
  if partition.held_out is not None:
    kinds = np.delete(kinds, partition.held_out.clients)
  if options.shift.SWAPS:
    raise DataError(
      f"`shift`={options.shift}: {examples.name} has clients of several kinds, "
      "they would have examples of others (allowed: none, increment)"
    )
  return examples, kind_dealing.client_kinds(change, kinds, before, examples)


def _sample_training(options: DataOptions, examples: Examples) -> Examples:
  """The data set with ``train_examples`` of its training examples, in their order.

  Raises:
    DataError: the data set has fewer.
  """
  count, total = options.train_examples, examples.rows[0]
  assert count is not None and options.partition_seed is not None
  if count > total:
    raise DataError(
      f"`train_examples`={count}: {examples.name} has {total} training examples"
    )
  rng = np.random.default_rng(
    np.random.SeedSequence(options.partition_seed, spawn_key=(5,))
  )
  rows = np.sort(rng.permutation(total)[:count])

  checksums = examples.checksums
  if checksums is not None:
    of_rows = hashlib.sha256(checksums[0].encode() + rows.astype(np.int64).tobytes())
    checksums = of_rows.hexdigest(), checksums[1]
  return dataclasses.replace(
    examples,
    checksums=checksums,
    x_train=store.map_rows(examples.x_train, lambda x: store.order_rows([x], rows)),
    y_train=store.map_arrays(lambda array: array[rows], examples.y_train),
    client_train=None if examples.client_train is None else examples.client_train[rows],
    kind_train=None if examples.kind_train is None else examples.kind_train[rows],
  )


def _share_out_steps(
  options: DataOptions,
  change: kind_changes.Kinds,
  examples: Examples,
  partition: Partition,
) -> tuple[Examples, Partition, DataSchedule]:
  """The rows of clients whose kinds change, with features, and who holds which.

  Raises:
    DataError: the schedule does not fit the data.
  """
  assert options.partition_seed is not None
  if examples.kind_train is not None:
    raise DataError(
      f"`concepts`={options.concepts}: {examples.name} brings the kinds of its "
      "clients, which stay"
    )
  kinds = options.concepts.schedule(
    partition.num_clients, len(change.names) or None, change.label
  )
  rows, dealt, schedule = concept_steps.share_out_steps(
    change,
    examples,
    partition,
    kinds,
    options.concepts,
    options.partition_seed,
    options.features.WORD == "images",
  )
  return _with_features(options, rows), dealt, schedule


def _shift(federation: Federation) -> DataSchedule | None:
  """The schedule of the option ``shift``."""
  options, partition, data = federation.options, federation.partition, federation.data
  y_train, y_test = federation.dealt_by or (
    np.asarray(data.train.y)[: len(partition.train_order)],
    np.asarray(data.test.y)[: len(partition.test_order)],
  )
  assert options.partition_seed is not None
  return options.shift.schedule(partition, y_train, y_test, options.partition_seed)


def _partition(
  options: DataOptions, examples: Examples
) -> tuple[Partition, np.ndarray | None]:
  """The partition that the options describe, without validation clients.

  Returns:
    The partition; and the kinds of all clients, [C] int32 before any were held
    out, or None.
  """
  partitioner, count = options.partition, options.num_clients
  if partitioner is None:
    partitioner = Natural() if examples.client_train is not None else Iid()
  has_clients = partitioner.HAS_CLIENTS
  if count is None and not has_clients:
    count = 100
  if options.dataset is not None and options.dataset.CLIENTS is not None:
    count = None  # the generator of the data set has made the clients
  seed = options.partition_seed
  assert seed is not None
  if has_clients and examples.kind_train is not None:
    if options.kinds.weights is not None:
      raise DataError(
        f"{options.kinds.label}: `shares` are not read, the data say the kind of each "
        "of their clients"
      )
  if isinstance(partitioner, Natural) and (
    options.dataset is not None and "min_size" in options.dataset.READS
  ):  # the loader has applied it
    partitioner = dataclasses.replace(partitioner, min_size=None)
  if examples.kind_train is None or has_clients:
    partition = partitioner.deal(examples, count, seed)
  else:
    assert count is not None
    partition = kind_dealing.deal_by_kind(
      examples, partitioner, count, options.kinds, seed
    )
  kinds = None
  if options.concepts.period is None:
    kinds = kind_dealing.deal_kinds(options.kinds, examples, partition, seed)
  partition = hold_out(partition, options.validation_clients, seed)
  _note_test_clients(options, examples, partition)
  return partition, kinds


def _note_test_clients(
  options: DataOptions, examples: Examples, partition: Partition
) -> None:
  """Says that clients never take part, which a wrong name of one may cause.

  Raises:
    DataError: clients would exchange their data with them.
  """
  never = np.flatnonzero(partition.train_size == 0)
  if not len(never):
    return
  if options.shift.period is not None:
    raise DataError(
      f"`shift`={options.shift}: clients would exchange data with clients "
      "that have no training examples and never take part"
    )
  names = names_lib.names_of_all(examples, partition)
  names = None if names is None else names[partition.places]
  listed = ", ".join(map(str, (never if names is None else names[never])[:3]))
  warnings.warn(
    f"{examples.name}: {len(never)} of {partition.num_clients} clients "
    f"({listed}{', ...' * (len(never) > 3)}) have test examples only; they "
    "are evaluated and never take part",
    stacklevel=6,
  )


def deal(
  examples: Examples,
  partition: Partition,
  joins: np.ndarray | None = None,
  options: DataOptions = DataOptions(dataset=None),
  kinds: kinds_lib.ClientKinds | None = None,
) -> Federation:
  """Deals the rows of a data set to clients as a partition says.

  The whole test set is the official test set of the data. It is the union of
  the clients' local test splits instead if the partition trains on rows of the
  official test set (``powerlaw``), the data have no official test set, or they
  name the client of each test row (``natural``). The union has no rows of
  validation clients and of clients that were left out. It is so, too, if
  clients are of several kinds: then a test example is of the kind of its client.

  The server gets the training rows of the validation clients.

  Args:
    examples: the data set that ``partition`` was made from, with features.
    partition: the rows that each client holds.
    joins: [C] int32, rounds run before each client joins, see
      ``with_newcomers``; None if all clients take part from the start.
    options: the options to store in the federation.
    kinds: the kinds of the C clients; None if they have none.

  Returns:
    The federation.

  Raises:
    DataError: there are no test examples at all.
  """
  x_train, y_train = examples.x_train, examples.y_train
  x_test, y_test = examples.x_test, examples.y_test
  keep_bytes = options.store != "float32"
  several = kinds is not None and kinds.number > 1
  _check_memory(examples, partition, options, several)
  digest = _hash(examples)
  rows: tuple[PyTree, ...] = (x_train,)
  test_rows: tuple[PyTree, ...] = (x_test,)
  labels: tuple[PyTree, ...] = (y_train,)
  test_labels: tuple[PyTree, ...] = (y_test,)
  labels_to_deal = examples.labels()
  row_labels, test_row_labels = labels_to_deal.train, labels_to_deal.test
  if partition.pooled:
    rows, labels = (x_train, x_test), (y_train, y_test)
    test_rows, test_labels = rows, labels
    row_labels = test_row_labels = np.concatenate(
      [labels_to_deal.train, labels_to_deal.test]
    )
  validation, unused = None, 0
  if partition.held_out is not None:
    validation = partition.held_out.train_order
    unused = len(partition.held_out.test_order)
  # As many rows whoever is held out, so that all partitions have one program.
  test = client_data(
    test_rows,
    test_labels,
    partition.test_order,
    partition.test_offset,
    partition.test_size,
    keep_bytes=keep_bytes,
    places=num_places(len(partition.test_order) + unused),
  )
  histogram = label_histogram(partition, row_labels, labels_to_deal.number)
  rows_here, first = None, len(partition.train_order)
  if process_rows.current_process().processes > 1:
    rows_here, first = (
      process_rows.cut(
        process_rows.current_process(),
        partition.train_offset,
        partition.train_size,
        PADDING_ROWS,
      ),
      0,
    )
    train = _own_rows(rows, labels, partition, rows_here, validation, joins, keep_bytes)
  else:
    train = client_data(
      rows,
      labels,
      partition.train_order,
      partition.train_offset,
      partition.train_size,
      validation,
      joins,
      keep_bytes,
    )
  whole_test = (
    _test_by_kind(examples.name, partition, test, kinds.of_client, keep_bytes)
    if kinds is not None and several
    else _whole_test(examples, partition, test, keep_bytes)
  )
  data = EvaluationData(
    train,
    test,
    whole_test,
    cast(Any, histogram),
    None if validation is None else _pieces(first, len(validation)),
    None if kinds is None else _kind_tests(kinds, partition, whole_test),
    None
    if partition.held_out is None
    else _consecutive(first, partition.held_out.train_size),
  )
  hashes = {"data": digest, "partition": partition_hash(partition)}
  names = names_lib.names_of_all(examples, partition)
  return Federation(
    data=data,
    partition=partition,
    num_classes=examples.num_classes,
    name=examples.name,
    label_histogram=histogram,
    hashes=hashes,
    options=options,
    tokens=examples.num_tokens,
    names_in_data=None if names is None else names[partition.places],
    labels=labels_hash(examples),
    rows=rows_here,
    task=examples.task,
    dealt_by=None
    if tasks.of(examples).has_classes
    else (row_labels[partition.train_order], test_row_labels[partition.test_order]),
    kinds=kinds,
    encoding=examples.encoding,
    raw_shape=examples.raw_shape,
    raw_dtype=examples.raw_dtype,
    validation_names=None
    if names is None or partition.held_out is None
    else names[partition.held_out.clients],
  )


def _check_memory(
  examples: Examples, partition: Partition, options: DataOptions, several: bool
) -> None:
  """Refuses clients whose rows do not fit into memory, before they are read.

  A process of several lays out a part of the training rows alone.

  Args:
    examples: the data set.
    partition: the clients.
    options: the options of the federation.
    several: whether the clients are of several kinds.

  Raises:
    DataError: they do not fit.
  """
  held_out = partition.held_out
  processes = process_rows.current_process().processes
  rows = [-(-len(partition.train_order) // processes), len(partition.test_order)]
  if held_out is not None:
    rows.append(len(held_out.train_order))
  if not several:
    rows.append(_official_rows(examples, partition) or 0)
  in_files = store.is_in_files(examples.x_train)
  x_train = () if in_files else examples.x_train
  each = row_nbytes(x_train, examples.y_train, options.store != "float32")
  check_memory(
    f"{_label(options, examples)}: {sum(rows):,} examples of {each:,} bytes in the "
    "order of the clients",
    float(each) * sum(rows),
    "allowed: fewer examples, or fewer numbers in each",
  )


def _test_by_kind(
  name: str,
  partition: Partition,
  test: ClientData,
  kinds: np.ndarray,
  keep_bytes: bool,
) -> ClientData:
  """The test rows of all clients in pieces, kind by kind.

  Raises:
    DataError: the clients have no test rows.
  """
  total = len(partition.test_order)
  if not total:
    raise DataError(
      f"the data set {name} has no test examples of its clients, and a test example "
      "is of the kind of its client"
    )
  place = np.argsort(np.repeat(kinds, partition.test_size), kind="stable")
  test_data = test
  if (place != np.arange(total)).any():
    test_data = client_data(
      (test.x,),
      (test.y,),
      place,
      np.zeros(1, np.int32),
      np.array([total]),
      keep_bytes=keep_bytes,
      places=num_example_rows(test),
    )
  return test_data._replace(**_pieces(0, total)._asdict())


def _kind_tests(
  kinds: kinds_lib.ClientKinds, partition: Partition, whole_test: ClientData
) -> KindTests:
  """Where the test rows of each kind are in the whole test set."""
  size = np.zeros(kinds.number, np.int32)
  np.add.at(size, kinds.of_client, partition.test_size)
  if kinds.number == 1:
    size[0] = whole_test.size.sum()
  arrays: tuple[Any, ...] = (kinds.of_client, np.cumsum(size) - size, size)
  return KindTests(*(array.astype(np.int32) for array in arrays))


def _whole_test(
  examples: Examples, partition: Partition, test: ClientData, keep_bytes: bool
) -> ClientData:
  """The whole test set in pieces; ``test`` has the local test splits.

  Raises:
    DataError: there are no test examples at all.
  """
  x_test, y_test = examples.x_test, examples.y_test
  held_out, num_test = partition.held_out, len(partition.test_order)
  official = _official_rows(examples, partition)
  of_clients = partition.name == "natural" and not partition.pooled
  if not num_test and (of_clients or not len(store.arrays(y_test)[0])):
    reason = (
      ""
      if held_out is None
      else (f", or none that `validation_clients`={len(held_out.clients)} leaves")
    )
    of_others = len(store.arrays(y_test)[0])
    raise DataError(
      f"the data set {examples.name} has no test examples "
      f"{'of its clients' if of_others else '(x_test is empty)'}"
      f" and `partition`={partition.name} holds none out{reason}"
    )
  test_data, total = test, num_test
  if official is not None:
    total, order = official, np.arange(official)
    test_data = client_data(
      x_test, y_test, order, order[:1], np.array([total]), keep_bytes=keep_bytes
    )
  return test_data._replace(**_pieces(0, total)._asdict())


def _official_rows(examples: Examples, partition: Partition) -> int | None:
  """The rows of a whole test set that is not that of the local test splits.

  Returns:
    The number of the official test rows; None if the local splits have the same
    rows in another order, or the whole test set is their union.
  """
  held_out, num_test = partition.held_out, len(partition.test_order)
  orders = [partition.train_order]
  orders += [
    out.train_order for out in (held_out, partition.left_out) if out is not None
  ]
  if partition.pooled and any((order >= examples.rows[0]).any() for order in orders):
    return None  # trained on
  rows = len(store.arrays(examples.y_test)[0])
  if partition.name == "natural" and not partition.pooled:
    rows = num_test  # the test rows of others are not those of the federation
  return rows if rows and (partition.pooled or num_test != rows) else None


def _own_rows(
  x: PyTree,
  y: PyTree,
  partition: Partition,
  rows: process_rows.Rows,
  validation: np.ndarray | None,
  joins: np.ndarray | None,
  keep_bytes: bool,
) -> ClientData:
  """The rows of this process, with the offsets and sizes of all clients.

  The server's rows are an array of their own, which every process holds.
  """
  server: Any = None
  if validation is not None:
    start = np.array([0])
    validation_data = client_data(
      x, y, validation, start, np.array([len(validation)]), keep_bytes=keep_bytes
    )
    ends: Any = np.zeros((), np.int32), np.asarray(len(validation), np.int32)
    server = Shard(validation_data.x, validation_data.y, *ends)
  return client_data(
    x,
    y,
    partition.train_order[rows.own],
    partition.train_offset,
    partition.train_size,
    None,
    joins,
    keep_bytes,
    rows.places,
  )._replace(validation=server)


def _leave_out(
  partition: Partition, names: np.ndarray | None, clients: tuple[str, ...]
) -> Partition:
  """The partition without the clients that `without` names.

  Args:
    partition: the partition.
    names: the names of all clients, see ``names_of_all``.
    clients: the names of those who leave.

  Raises:
    DataError: no client has one of the names, or none is left.
  """
  places = partition.places
  index = names_lib.index_names(names)
  try:
    positions = names_lib.positions_of("without", clients, index, len(places))
    if names is None:  # a validation client has none, the others their positions
      positions = places[positions].tolist()
    return leave_out(partition, positions, clients)
  except OptionError as error:
    raise DataError(error.text) from None


def _pieces(first: int, total: int) -> Pieces:
  offset: Any = np.arange(0, total, PIECE, dtype=np.int32)
  size: Any = np.minimum(PIECE, total - offset).astype(np.int32)
  return Pieces(first + offset, size)


def _consecutive(first: int, size: np.ndarray) -> Pieces:
  """Pieces of these sizes, one after the other."""
  ends, sizes = first + np.cumsum(size), np.asarray(size, np.int32)
  places: Any = (ends - sizes).astype(np.int32), sizes
  return Pieces(*places)


def pair_hash(hashes: Mapping[str, str]) -> str:
  """What two federations have in common whose clients have the same rows.

  Args:
    hashes: ``Federation.hashes``, with `without` or not.

  Returns:
    A sha256. Clients that `without` names make no difference.
  """
  of_both = f"{hashes.get('data')} {hashes.get('partition')}"
  return hashes.get("all_clients") or hashlib.sha256(of_both.encode()).hexdigest()


def _hash_of_all(options: DataOptions, examples: Examples, partition: Partition) -> str:
  """``pair_hash`` of the federation with all its clients."""
  if options.features.WORD == "standardize":
    examples, _ = _standardize(options, examples, partition)
  return pair_hash({"data": _hash(examples), "partition": partition_hash(partition)})


def _hash(examples: Examples) -> str:
  """sha256 of the values, however they are kept and whether in files or not."""
  of_train, of_test = examples.checksums or ("", "")
  digest = hashlib.sha256()
  for tree, checksum in (
    (examples.x_train, of_train),
    (examples.y_train, ""),
    (examples.x_test, of_test),
    (examples.y_test, ""),
  ):
    for array in store.arrays(tree):
      digest.update(f"{array.dtype} {array.shape}".encode())
      if checksum:
        digest.update(checksum.encode())
        continue
      for rows in memory.row_chunks(array):
        digest.update(np.ascontiguousarray(array[rows]).data)
  return digest.hexdigest()


class StepData(NamedTuple):
  """The data that clients hold at a step of a schedule."""

  #: arrays that stay are the same objects as in the federation
  data: EvaluationData
  label_histogram: np.ndarray  #: [C, L] int32
  kinds: kinds_lib.ClientKinds | None


def at_step(federation: Federation, step: int) -> StepData:
  """Computes what each client holds at a step.

  Args:
    federation: clients with a schedule.
    step: the step, from 0.

  Returns:
    The data, with arrays of the same shapes at all steps.
  """
  schedule, data = federation.schedule, federation.data
  assert schedule is not None
  partition, kinds = schedule.at(step)
  labels = (
    federation.dealt_by[0]
    if federation.dealt_by
    else np.asarray(data.train.y)[: len(partition.train_order)]
  )
  histogram = label_histogram(partition, labels, federation.label_histogram.shape[1])
  keep_bytes = federation.options.store != "float32"
  train = _with_rows(data.train, None, *partition[:3], keep_bytes)
  test = _with_rows(data.test, schedule.tests, *partition[3:6], keep_bytes)
  data = data._replace(train=train, test=test, class_weight=cast(Any, histogram))
  if kinds is None:
    return StepData(data, histogram, federation.kinds)
  # Each test example is of the kind that its client is of.
  whole_test = _test_by_kind(
    federation.name, partition, test, kinds.of_client, keep_bytes
  )
  tests_of_kinds = _kind_tests(kinds, partition, whole_test)
  return StepData(
    data._replace(whole_test=whole_test, kinds=tests_of_kinds), histogram, kinds
  )


def _with_rows(
  data: ClientData,
  rows: tuple[PyTree, PyTree] | None,
  order: np.ndarray,
  offset: np.ndarray,
  size: np.ndarray,
  keep_bytes: bool,
) -> ClientData:
  """The clients with other rows: x and y of ``rows``, or of ``data`` in an order."""
  if rows is None and (order == np.arange(len(order))).all():
    places: Any = offset.astype(np.int32), size.astype(np.int32)
    return data._replace(offset=places[0], size=places[1])
  x, y = (data.x, data.y) if rows is None else rows
  # The server's rows, and the padding, stay behind those of the clients.
  server: Any = data.validation
  behind = None if server is None else np.arange(server[0], server.sum())
  joins: Any = data.joins
  places = num_example_rows(data)
  return client_data((x,), (y,), order, offset, size, behind, joins, keep_bytes, places)
