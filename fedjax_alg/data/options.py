"""The options of a federation: data set, partition, features, data changes.

``federate`` takes these options as keywords, and the command line makes flags
from them. Two runs with equal options train on the same data.
"""

from collections.abc import Collection
import dataclasses
from typing import Any

from fedjax_alg.data import femnist as femnist_lib
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.features import FEATURES
from fedjax_alg.data.features import HOG_NORMS
from fedjax_alg.data.hold_out import check_hold_out
from fedjax_alg.data.newcomers import check_newcomers
from fedjax_alg.data.partition import PARTITIONS
from fedjax_alg.data.shift import num_pairs
from fedjax_alg.data.shift import SHIFTS
from fedjax_alg.data.shift import SWAPS
from fedjax_alg.hparams import check_options
from fedjax_alg.hparams import hyper
from fedjax_alg.hparams import typed

DATASETS = ("digits", "synthetic", "mnist", "cifar10", "femnist", "sent140",
            "npz", "leaf")

#: Default number of clients of the data sets that are generated per client.
_CLIENTS = {"synthetic": 30, "femnist": 200}
#: Data sets that always come with clients.
_COME_WITH_CLIENTS = ("femnist", "sent140")
_PREPARED = ("mnist", "cifar10", "femnist", "sent140")


@dataclasses.dataclass(frozen=True)
class SourceOptions:
  """The data set, and how to find or generate it."""

  dataset: str | None = hyper(
      "digits", "one of " + ", ".join(DATASETS), choices=DATASETS)
  data_dir: str | None = hyper(
      None, "folder of the prepared TFDS data sets (mnist, cifar10, femnist, "
      "sent140); default $TFDS_DATA_DIR or ~/tensorflow_datasets",
      when=("dataset", _PREPARED))
  data_path: str | None = hyper(
      None, "your file: .npz with x_train, y_train, x_test, y_test[, "
      "client_train, client_test] (npz); or LEAF/FedProx json, a file or a "
      "folder with train/ and test/ (leaf); or .npz with x [n, 28, 28] uint8 "
      "and y with ten labels, used instead of EMNIST (femnist)",
      when=("dataset", ("npz", "leaf", "femnist")))
  synthetic_alpha: float = hyper(
      1.0, "spread of the clients' models (synthetic)", minimum=0,
      when=("dataset", ("synthetic",)))
  synthetic_beta: float = hyper(
      1.0, "spread of the clients' inputs (synthetic)", minimum=0,
      when=("dataset", ("synthetic",)))
  synthetic_iid: bool = hyper(
      False, "one model and one input distribution for all clients "
      "(synthetic)", when=("dataset", ("synthetic",)))
  femnist: str = hyper(
      femnist_lib.KINDS[0], "how letters are dealt, one of "
      + ", ".join(femnist_lib.KINDS) + ": fixed = each image is used once, "
      "leaky = as in the published generator, which gives nearly all clients "
      "the same images for training and for testing (femnist)",
      choices=femnist_lib.KINDS, when=("dataset", ("femnist",)))
  sequence_length: int = hyper(
      25, "words of a tweet that are kept (sent140)", minimum=1,
      when=("dataset", ("sent140",)))


@dataclasses.dataclass(frozen=True)
class PartitionOptions:
  """How the examples are divided among the clients."""

  partition: str | None = hyper(
      None, "one of " + ", ".join(PARTITIONS)
      + "; default natural if the data set names clients, otherwise iid",
      choices=PARTITIONS)
  num_clients: int | None = hyper(
      None, "number of clients C; default 100 (synthetic 30, femnist 200, "
      "natural: all clients of the data set)", minimum=1)
  classes_per_client: int = hyper(
      2, "number of classes that a client holds (classes)", minimum=1,
      when=("partition", ("classes",)))
  min_classes_per_client: int | None = hyper(
      None, "if given, the number of a client's classes is random, from this "
      "number to `classes_per_client` (classes)", minimum=1,
      when=("partition", ("classes",)))
  dirichlet_alpha: float = hyper(
      0.5, "concentration of the distribution of each class over the clients "
      "(dirichlet)", above=0, when=("partition", ("dirichlet",)))
  min_client_size: int | None = hyper(
      None, "minimum number of training examples of a client; default 10, "
      "natural 1; sent140: minimum number of tweets of a user, default 20",
      minimum=1,
      when=("partition", ("iid", "classes", "dirichlet", "natural")))
  size_sigma: float = hyper(
      0.5, "log-normal sigma of the clients' sizes; 0 gives equal sizes (iid, "
      "classes)", minimum=0, when=("partition", ("iid", "classes")))
  local_test_fraction: float = hyper(
      0.1, "share of a client's examples that is held out for testing "
      "(natural)", when=("partition", ("natural",)))
  partition_seed: int | None = hyper(
      None, "seed of the partition, shared by all seeds of a run; default: the "
      "first seed of the run", minimum=0)
  validation_clients: int = hyper(
      0, "number of clients that never take part, chosen at random with "
      "`partition_seed`: the server holds their training examples as "
      "validation data, and their local test examples are not used; C and "
      "`participation` count the other clients only", minimum=0)
  newcomers_at: tuple[tuple[int, int], ...] | None = hyper(
      None, "ROUND:COUNT[,ROUND:COUNT...]: COUNT clients, chosen at random "
      "with `partition_seed`, take part only after ROUND rounds have been "
      "played; adds the protocol newcomers to `eval_protocols`")


@dataclasses.dataclass(frozen=True)
class ShiftOptions:
  """How clients' data change while they train."""

  shift: str = hyper(
      "none", "how the clients' data change, one of " + ", ".join(SHIFTS)
      + ": swap_all = random pairs of clients exchange all their data, "
      "swap_part = random pairs exchange all examples of one random class of "
      "each, increment = clients hold 25, 50, 75, 100 % of their training data "
      "after 0, 1, 2, 3 changes", choices=SHIFTS)
  shift_every: int = hyper(
      50, "rounds between two changes; the last round before a change is "
      "always evaluated", minimum=1, when=("shift", SHIFTS[1:]))
  shift_share: float = hyper(
      0.2, "share of the clients that are paired at each change, (0, 1] "
      "(swap_all, swap_part)", above=0, maximum=1, when=("shift", SWAPS))


@dataclasses.dataclass(frozen=True)
class FeatureOptions:
  """The features that the model reads."""

  features: str = hyper(
      "none", "one of " + ", ".join(FEATURES) + "; hog = histograms of "
      "oriented gradients (diversified paper, section V-A), contrast = (x - "
      "mean of x) / sqrt(variance of x + 0.001) for each example x",
      choices=FEATURES)
  hog_block: int = hyper(
      7, "side of a block in pixels (hog)", minimum=1,
      when=("features", ("hog",)))
  hog_stride: int = hyper(
      3, "step between blocks in pixels (hog)", minimum=1,
      when=("features", ("hog",)))
  hog_bins: int = hyper(
      9, "number of angle bins over [0, 2 pi) (hog)", minimum=1,
      when=("features", ("hog",)))
  hog_norm: str = hyper(
      "l2", "norm by which each block is divided, one of "
      + ", ".join(HOG_NORMS) + " (hog)", choices=HOG_NORMS,
      when=("features", ("hog",)))
  hog_scale: float = hyper(
      1.0, "factor that multiplies all features (hog)", above=0,
      when=("features", ("hog",)))


@dataclasses.dataclass(frozen=True)
class VocabularyOptions:
  """The vocabulary that data and model share."""

  vocabulary: int = hyper(
      10_000, "size of the vocabulary: the most frequent words of the training "
      "data (lstm)", minimum=1, when=("model", ("lstm",)))


@dataclasses.dataclass(frozen=True)
class DataOptions(VocabularyOptions, FeatureOptions, ShiftOptions,
                  PartitionOptions, SourceOptions):
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
    return typed(self)._filled()

  def _filled(self) -> "DataOptions":
    check_options(self)
    partition, count = self.partition, self.num_clients
    comes = self.dataset in _COME_WITH_CLIENTS
    if self.dataset in ("npz", "leaf") and not self.data_path:
      raise DataError(f"`data_path`: missing, `dataset`={self.dataset} reads "
                      "your file")
    if partition is None and (comes or self.dataset in ("synthetic", "leaf")):
      partition = "natural"
    elif partition is None and self.dataset not in ("npz", None):
      partition = "iid"
    if (self.dataset in ("digits", "mnist", "cifar10")
        and partition == "natural"):
      raise DataError(f"`partition`=natural: {self.dataset} names no clients "
                      "(use iid, classes, dirichlet or powerlaw)")
    if comes and partition != "natural":
      raise DataError(f"`partition`={partition}: {self.dataset} comes with its "
                      "clients (only natural)")
    size = self.min_client_size
    if self.dataset == "sent140" and size is None:
      size = 20
    if count is None:
      if self.dataset in _CLIENTS:
        count = _CLIENTS[self.dataset]
      elif partition not in ("natural", None):
        count = 100
    if count is not None:
      check_hold_out(self.validation_clients, count)
    if self.data_dir and self.data_path:
      raise DataError("`data_dir` and `data_path`: give one of them")
    if self.features == "hog" and self.dataset == "synthetic":
      raise DataError("`features`=hog: needs images, synthetic has 60 numbers")
    if self.newcomers_at and self.shift != "none":
      raise DataError("`newcomers_at` and `shift`: give one of them")
    seed = 0 if self.partition_seed is None else self.partition_seed
    return dataclasses.replace(
        self, partition=partition, num_clients=count, min_client_size=size,
        partition_seed=seed)

  def check_changes(self, num_clients: int, fewest: int) -> None:
    """Checks newcomers and shift against the number of clients.

    Args:
      num_clients: C.
      fewest: minimum number of clients that must take part from the start.

    Raises:
      DataError: there are too many newcomers, or ``shift_share`` is too small
        for one pair of clients.
    """
    if self.newcomers_at:
      check_newcomers(self.newcomers_at, num_clients, fewest)
    if self.shift in SWAPS:
      num_pairs(self.shift_share, num_clients)


def field_values(
    options: Any, names: Collection[str] | None = None) -> dict[str, Any]:
  """Makes a dictionary of the fields of an options dataclass.

  Args:
    options: an instance of a dataclass.
    names: the fields to include; None includes all.

  Returns:
    name -> value, in the order of the fields.
  """
  return {field.name: getattr(options, field.name)
          for field in dataclasses.fields(options)
          if names is None or field.name in names}
