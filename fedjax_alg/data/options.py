"""The options of a federation: data set, partition, features, data changes.

``federate`` takes these options as keywords, and the command line makes flags
from them. Two runs with equal options train on the same data.
"""

import dataclasses

from fedjax_alg import own, tasks
from fedjax_alg.data.boundaries import BOUNDARIES
from fedjax_alg.data.characters import ALPHABET
from fedjax_alg.data.client_names import texts_of
from fedjax_alg.data.concepts import Choice as ConceptChanges
from fedjax_alg.data.concepts import NoConcepts
from fedjax_alg.data.datasets import Choice as DataSets
from fedjax_alg.data.datasets import Digits, data_set, names_of
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.features import FEATURES, RawFeatures
from fedjax_alg.data.hold_out import check_hold_out
from fedjax_alg.data.kind_changes import BoundaryKinds, NaturalKinds, SourceKinds
from fedjax_alg.data.kind_changes import Choice as KindChanges
from fedjax_alg.data.label_skew import Classes, Dirichlet, Iid, Shards
from fedjax_alg.data.location import LOCATIONS, Automatic
from fedjax_alg.data.newcomers import check_newcomers
from fedjax_alg.data.own_partition import OwnPartition
from fedjax_alg.data.partition_file import PartitionFile
from fedjax_alg.data.published import Natural, Powerlaw
from fedjax_alg.data.schedule import Change
from fedjax_alg.data.shift import Choice as Shifts
from fedjax_alg.data.shift import NoShift
from fedjax_alg.data.sources import DataSet
from fedjax_alg.data.store import STORES
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import MAX_SEED, HParams, check_options, hyper
from fedjax_alg.part import convert_types, of_type, parts_of

#: The ways to deal examples to clients.
PARTITIONS = (
  Iid | Classes | Shards | Dirichlet | Powerlaw | Natural | PartitionFile | OwnPartition
)

#: The numbers of clients of data sets that are generated for them, for the help.
_OWN_NUMBERS = ", ".join(
  f"{number} for {part.WORD}"
  for part in parts_of(DataSets)
  if (number := getattr(part, "CLIENTS", None))
)


class SourceOptions(HParams):
  """The data set, and how to find or generate it."""

  dataset: DataSets | None = hyper(
    Digits(), "the data set, or any image classification data set of TFDS by its name"
  )
  task: str | None = hyper(
    None,
    "what is predicted, one of " + ", ".join(tasks.NAMES) + ", or your "
    "own, " + own.FORMS + ": multi_label = any of L labels for each example, "
    "regression = real numbers, dense = a class for each pixel "
    "(dense:255 ignores pixels of this label, dense pixels of "
    "-1), tokens = the next token at each place of a sequence; "
    "default regression for diabetes, else classification, "
    "unless your own model names a task",
  )
  data_dir: str | None = hyper(
    None,
    "folder of the data sets that experiments.prepare has prepared; default "
    "$TFDS_DATA_DIR or ~/tensorflow_datasets",
  )


class PartitionOptions(HParams):
  """Options of the clients: which examples they have, of which kind, and until when."""

  partition: PARTITIONS | None = hyper(
    None,
    "how the examples are dealt to the clients; default natural if the data set has "
    "clients, else iid",
  )
  num_clients: int | None = hyper(
    None,
    f"C, number of clients; default 100, but {_OWN_NUMBERS}, and all clients of the "
    "data or the file with `partition`=natural or file",
    minimum=1,
    maximum=10_000_000,
  )
  train_examples: int | None = hyper(
    None,
    "if given, only so many training examples of the data set are dealt to the "
    "clients, drawn at random by `partition_seed`; default all",
    minimum=1,
  )
  partition_seed: int | None = hyper(
    None,
    "seed of the partition, which all seeds of a run share; default "
    "the first seed of the run",
    minimum=0,
    maximum=MAX_SEED,
  )
  validation_clients: int = hyper(
    0,
    "number of clients that are held out for validation, chosen at random "
    "by `partition_seed`. They never take part: the server has their "
    "training examples as validation data, and their test examples are not "
    "used. C and `participation` refer to the other clients",
    minimum=0,
  )
  without: tuple[str, ...] | None = hyper(
    None,
    "names of clients (docs/data.md) whose rows are left out, for training, testing "
    "and validation. All other clients have the same rows as with these clients, "
    "and the same random numbers. A name with a comma is in double quotes",
  )
  newcomers_at: tuple[tuple[int, int], ...] | None = hyper(
    None,
    "ROUND:COUNT[,ROUND:COUNT...]: COUNT clients, chosen at random by "
    "`partition_seed`, join only after ROUND rounds have been run. This "
    "adds the protocol newcomers to `eval_protocols`",
  )
  kinds: KindChanges = hyper(
    NaturalKinds(),
    "how clients differ in kind. Test data go through the kinds, too. With the default "
    "`eval_protocols` other kinds than natural add the protocol kinds",
  )
  concepts: ConceptChanges = hyper(NoConcepts(), "how the kinds of clients change")
  shift: Shifts = hyper(NoShift(), "how the clients' data change")


class FeatureOptions(HParams):
  """What the model reads of the examples."""

  features: FEATURES = hyper(
    RawFeatures(), "features that are computed from the examples"
  )
  store: str = hyper(
    "auto",
    "how the examples are kept in memory, one of "
    + ", ".join(STORES)
    + ": uint8 = one byte a value, a quarter of float32, "
    "scaled when a mini-batch is read; refused where this would not be the "
    "same numbers. auto = uint8 for images and others that are multiples "
    "of 1, 1/255 or 1/2^k, else float32",
    choices=STORES,
  )
  data_on: LOCATIONS = hyper(
    Automatic(),
    "where the rows of the clients are during a run. It changes no number (with "
    "`map_clients`=vmap last bits). auto = device if they take at most half of the "
    "memory that is free, else host, or disk for a folder of clients that is too large "
    "for the host",
  )
  vocabulary: int = hyper(
    10_000,
    "number of words that the model knows, the most frequent ones of "
    "the training data (`model`=lstm)",
    minimum=1,
  )


class DataOptions(FeatureOptions, PartitionOptions, SourceOptions):
  """All options of a federation. Equal options make equal federations."""

  def filled(self) -> "DataOptions":
    """Fills in the defaults that depend on other options.

    For ``npz`` and for the caller's own examples, the partition and the
    defaults that depend on it stay None until the data are loaded, because
    only the data tell whether they name clients.

    Returns:
      The options with these defaults filled in.

    Raises:
      OptionError: a value has a wrong type or is out of range, or options do
        not fit together.
    """
    options = self
    if self.without is not None:
      names = texts_of("without", self.without)
      options = dataclasses.replace(self, without=names)
    options = convert_types(options)
    check_options(options)
    return options._of_sources()._of_boundaries()._fill()

  def _of_sources(self) -> "DataOptions":
    """The options with the first of several data sets as the data set."""
    change = self.kinds
    if not isinstance(change, SourceKinds):
      return self
    for name in change.names:
      try:
        is_image = data_set(name).IMAGES
      except OptionError:
        is_image = False
      if not is_image:
        raise DataError(
          f"{change.label}: {name} is no data set of images without clients "
          f"({', '.join(names_of(IMAGES=True))})"
        )
    first = data_set(change.names[0])
    if self.dataset not in (SourceOptions.dataset, first):
      own_data = "your own examples" if self.dataset is None else self.dataset
      raise DataError(
        f"{change.label}: names the data sets of the run, not with {own_data} "
        f"(`dataset`={first}, the first, may be given)"
      )
    return dataclasses.replace(self, dataset=first)

  def _of_boundaries(self) -> "DataOptions":
    """The options with the kinds that a data set of points has over time."""
    points = BOUNDARIES.get(self.dataset.WORD) if self.dataset else None
    if points is None or self.concepts.period is None:
      return self
    if not isinstance(self.kinds, NaturalKinds):
      return self
    kinds = BoundaryKinds(len(points.concepts), shares=self.kinds.shares)
    return dataclasses.replace(self, kinds=kinds)

  def _check_concepts(self) -> None:
    """Checks what the option `concepts` goes with."""
    if self.concepts.period is None:
      return
    self.concepts.check()
    label, change = f"`concepts`={self.concepts}", self.kinds
    if isinstance(change, NaturalKinds):
      raise DataError(f"{label}: needs `kinds`")
    if change.ONE_EACH or not change.CHANGES:
      raise DataError(
        f"{label}: not with {change.label}, whose clients cannot turn to another kind"
      )
    for name, value in (
      ("shift", self.shift.period is not None),
      ("shares", change.weights is not None),
      ("data", change.all_examples),
      ("validation_clients", self.validation_clients > 0),
    ):
      if value:
        place = f"`{name}`" if hasattr(self, name) else f"`{name}` of `kinds`"
        raise DataError(f"`concepts` and {place}: give one of them")

  def _fill(self) -> "DataOptions":
    tasks.resolve_task(self.task)
    partition, count = self._filled_partition(), self.num_clients
    self._check_content()
    if count is None and self._generated:
      assert self.dataset is not None
      count = self.dataset.CLIENTS
    elif count is None and partition is not None and not partition.HAS_CLIENTS:
      count = 100
    if count is not None:
      check_hold_out(self.validation_clients, count)
    return dataclasses.replace(
      self,
      partition=partition,
      num_clients=count,
      partition_seed=0 if self.partition_seed is None else self.partition_seed,
    )

  def _filled_partition(self) -> PARTITIONS | None:
    """The partition; None if only the data tell whether they have clients.

    Raises:
      DataError: it is none of this data set.
    """
    partition = self.partition
    has_clients = None if self.dataset is None else self.dataset.HAS_CLIENTS
    by_default = None if self.dataset is None else self.dataset.is_natural
    if partition is None and by_default is not None:
      partition = Natural() if by_default else Iid()
    is_natural = isinstance(partition, Natural)
    is_file = isinstance(partition, PartitionFile)
    if is_file and self.num_clients is not None and not self._generated:
      raise DataError(
        f"`num_clients`={self.num_clients}: not read with `partition`=file, which has "
        "its clients"
      )
    if has_clients is False and is_natural:
      raise DataError(
        f"`partition`={partition}: {_name(self.dataset)} has no client ids (use iid, "
        "classes, shards, dirichlet, powerlaw or file)"
      )
    if has_clients and not (is_natural or is_file):
      raise DataError(
        f"`partition`={partition}: {_name(self.dataset)} comes with its clients (only "
        "natural)"
      )
    if self.train_examples is not None and (is_natural or is_file):
      raise DataError(
        f"`train_examples`={self.train_examples}: not read with "
        f"`partition`={partition}, which deals the rows of its clients"
      )
    return partition

  def _check_content(self) -> None:
    """Checks what the examples are, and how they change, for ``_fill``."""
    dataset = self.dataset
    if dataset is not None and dataset.CONTENT == "characters":
      if self.vocabulary != FeatureOptions.vocabulary:
        raise DataError(
          f"`vocabulary`={self.vocabulary}: not read with `dataset`={dataset.label}, "
          f"which has {len(ALPHABET)} characters"
        )
    if dataset is not None:
      dataset.check_task(self.task)
    if self.data_dir and dataset is not None and not dataset.prepared_as:
      raise DataError(
        f"`data_dir`={self.data_dir}: not read with `dataset`={dataset} (only with "
        "data sets that experiments.prepare prepares)"
      )
    if self.features.WORD == "hog" and dataset is not None and dataset.INPUTS:
      raise DataError(
        f"`features`={self.features}: needs images, {dataset.label} has "
        f"{dataset.INPUTS} numbers"
      )
    if self.newcomers_at and self.shift.period is not None:
      raise DataError("`newcomers_at` and `shift`: give one of them")
    if self.without is not None and self.change is not None:
      raise DataError(
        f"`without` and `{self.change.OPTION}`: give one of them, since the rows of "
        "all clients are dealt anew during the run"
      )
    if self.shift.SWAPS and not isinstance(self.kinds, NaturalKinds):
      raise DataError(
        f"`shift`={self.shift}: not with `kinds`, clients would have examples of "
        "several kinds (allowed: none, increment)"
      )
    self._check_concepts()

  @property
  def _generated(self) -> bool:
    """Whether the data are generated for their clients."""
    return self.dataset is not None and self.dataset.CLIENTS is not None

  @property
  def min_size(self) -> int | None:
    """The smallest number of examples of a client, if `partition` says it."""
    size: int | None = getattr(self.partition, "min_size", None)
    return size

  @property
  def change(self) -> Change | None:
    """The option by which the clients' data change during a run; None: they stay."""
    changes = (self.concepts, self.shift)
    return next((part for part in changes if part.period is not None), None)

  @property
  def data_task(self) -> tasks.Task | None:
    """The task of the data; None if they name none."""
    dataset = of_type("dataset", self.dataset, DataSets | None)
    return tasks.resolve_task(self.task or (None if dataset is None else dataset.TASK))

  def check_changes(self, num_clients: int, fewest: int) -> None:
    """Checks newcomers and shift against the number of clients.

    Args:
      num_clients: C.
      fewest: minimum number of clients that must take part from the start.

    Raises:
      DataError: there are too many newcomers, or ``share`` of ``shift`` is too
        small for one pair of clients.
    """
    if self.newcomers_at:
      check_newcomers(self.newcomers_at, num_clients, fewest)
    self.shift.check(num_clients)


def _name(dataset: DataSet | None) -> str:
  """A data set as messages name it."""
  return "your data" if dataset is None else dataset.label
