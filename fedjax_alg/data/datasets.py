"""The data sets, which are parts: ``synthetic:0.5,1`` is ``Synthetic(0.5, 1)``.

A plain name is a part without fields, or names a data set of TFDS.
"""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Any, ClassVar

from fedjax_alg import files
from fedjax_alg.data import tfds_source
from fedjax_alg.data.boundaries import BOUNDARIES, make_points
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.femnist import KINDS, load_femnist
from fedjax_alg.data.idx import idx_files, load_idx
from fedjax_alg.data.leaf import leaf_files, load_leaf
from fedjax_alg.data.sent140 import load_sent140
from fedjax_alg.data.shakespeare import load_shakespeare, play_files
from fedjax_alg.data.sources import load_diabetes, load_digits, load_npz
from fedjax_alg.data.synthetic import synthetic
from fedjax_alg.data.tfds_source import load_tfds
from fedjax_alg.errors import did_you_mean
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part, forms

_MOST = 1e6  # of a deviation


class DataSet(Part):
  """A data set, and how to find or generate it."""

  #: whether the examples come with clients; None: the data tell
  HAS_CLIENTS: ClassVar[bool | None] = None
  #: the default number of clients, of data that are generated for them
  CLIENTS: ClassVar[int | None] = None
  INPUTS: ClassVar[int] = 0  #: an example has so many numbers; 0: it is no vector
  CONTENT: ClassVar[str] = ""  #: what an example is made of, if no numbers
  TASK: ClassVar[str | None] = None  #: what is predicted; None: classes
  #: options of the federation whose values ``load`` takes, in this order
  READS: ClassVar[tuple[str, ...]] = ()
  #: its name for ``experiments.prepare``; "" if nothing is prepared
  PREPARED_AS: ClassVar[str] = ""

  @property
  def label(self) -> str:
    """Its name, without fields."""
    return self.WORD

  @property
  def prepared_as(self) -> str:
    """The name of what it reads of the folder of prepared data; "": nothing."""
    return self.PREPARED_AS

  @property
  def image_shape(self) -> tuple[int, ...] | None:
    """The shape of an image, if it is known before the data are loaded."""
    return None

  def load(self, *args: Any, **kwargs: Any) -> Examples:
    """Loads or generates the examples.

    Args:
      *args: the values of the options ``READS``.
      **kwargs: none.

    Raises:
      DataError: the data are missing or unusable.
    """
    raise NotImplementedError

  def hash_files(self, data_dir: str | None) -> str:
    """What stands for the files of the data in the keys of caches.

    Args:
      data_dir: the folder of prepared data; None: TFDS's.

    Returns:
      The hash of the files, or of their version, of prepared data; "" for no file.
      A file that cannot be read is no error yet: ``load`` says it.
    """
    if self.prepared_as:
      return tfds_source.prepared_version(self.prepared_as, data_dir)
    return ""


class Digits(DataSet):
  """Handwritten digits, 1,797 images of 8 x 8 pixels (scikit-learn)."""

  WORD, EXAMPLE = "digits", "digits"
  HAS_CLIENTS = False

  @property
  def image_shape(self) -> tuple[int, ...]:
    """8 x 8."""
    return (8, 8)

  def load(self) -> Examples:
    """Loads the digits."""
    return load_digits()


class Diabetes(DataSet):
  """Ten numbers of 442 patients, and how their disease progressed (scikit-learn)."""

  WORD, EXAMPLE = "diabetes", "diabetes"
  HAS_CLIENTS, INPUTS, TASK = False, 10, "regression"

  def load(self) -> Examples:
    """Loads the patients."""
    return load_diabetes()


class Synthetic(DataSet):
  """Synthetic(alpha, beta) of FedProx, generated for each client."""

  WORD, EXAMPLE = "synthetic", "synthetic:0.5,0.5"
  HAS_CLIENTS, CLIENTS, INPUTS = True, 30, 60
  READS = ("num_clients", "partition_seed")

  alpha: float = hyper(
    1.0, "how much the clients' models differ", minimum=0, maximum=_MOST
  )
  beta: float = hyper(
    1.0, "how much the clients' inputs differ", minimum=0, maximum=_MOST
  )
  iid: bool = hyper(
    False, "whether all clients share one model and one input distribution"
  )

  def load(self, num_clients: int, seed: int) -> Examples:
    """Generates the clients (``synthetic.synthetic``)."""
    return synthetic(self.alpha, self.beta, num_clients, seed, self.iid)


class _Points(DataSet):
  """Points on both sides of boundaries, generated for each client."""

  HAS_CLIENTS, CLIENTS = True, 10
  READS = ("num_clients", "partition_seed")

  examples: int = hyper(
    1000,
    "number of training examples of a client, of all steps together; for testing it "
    "has a tenth as many, but at least 100",
    minimum=1,
  )
  noise: float = hyper(
    0.0,
    "probability with which a label is the other one, for testing, too",
    minimum=0.0,
    below=1.0,
  )

  def load(self, num_clients: int, seed: int) -> Examples:
    """Generates the clients (``boundaries.make_points``)."""
    return make_points(self.WORD, num_clients, self.examples, self.noise, seed)


class Sine2(_Points):
  """Two numbers, labeled by a sine; the second concept has the other labels."""

  WORD, EXAMPLE = "sine2", "sine2:500,noise=0.1"
  INPUTS = BOUNDARIES["sine2"].inputs


class Circle2(_Points):
  """Two numbers, labeled by one of two circles."""

  WORD, EXAMPLE = "circle2", "circle2:500,noise=0.1"
  INPUTS = BOUNDARIES["circle2"].inputs


class Sea4(_Points):
  """Three numbers, labeled by a sum and one of four thresholds."""

  WORD, EXAMPLE = "sea4", "sea4:500,noise=0.1"
  INPUTS = BOUNDARIES["sea4"].inputs


class Femnist(DataSet):
  """Ten letters of EMNIST, dealt to clients as FedProx and FedGroup do."""

  WORD, EXAMPLE = "femnist", "femnist:leaky"
  HAS_CLIENTS, CLIENTS, PREPARED_AS = True, 200, "emnist"
  READS = ("num_clients", "partition_seed", "data_dir")

  path: str | None = hyper(
    None,
    "an .npz of x [n, 28, 28] uint8 and y with ten labels, used instead of EMNIST",
  )
  leaky: bool = hyper(
    False,
    "whether the letters are distributed as in the published generator, which gives "
    "nearly all clients the same images for training and for testing; else each image "
    "goes to one client",
  )

  @property
  def prepared_as(self) -> str:
    """EMNIST, if no file stands in its place."""
    return "" if self.path else self.PREPARED_AS

  @property
  def image_shape(self) -> tuple[int, ...]:
    """28 x 28 x 1."""
    return (28, 28, 1)

  def load(self, num_clients: int, seed: int, data_dir: str | None) -> Examples:
    """Deals the letters (``femnist.load_femnist``)."""
    return load_femnist(KINDS[self.leaky], num_clients, seed, data_dir, self.path)

  def hash_files(self, data_dir: str | None) -> str:
    """The hash of the file, or EMNIST's version (``DataSet.hash_files``)."""
    if self.path:
      return files.contents_key([files.expand_path(self.path, "dataset")])
    return super().hash_files(data_dir)


class Sent140(DataSet):
  """Tweets with a smiling or a sad face, and their users."""

  WORD, EXAMPLE = "sent140", "sent140:40"
  HAS_CLIENTS, CONTENT, PREPARED_AS = True, "words", "sentiment140"
  READS = ("min_tweets", "vocabulary", "partition_seed", "data_dir")

  length: int = hyper(
    25, "number of words of a tweet that the model reads", minimum=1, maximum=10_000
  )

  def load(
    self, min_tweets: int, vocabulary: int, seed: int, data_dir: str | None
  ) -> Examples:
    """Loads the tweets (``sent140.load_sent140``)."""
    return load_sent140(min_tweets, vocabulary, self.length, seed, data_dir)


class _Files(DataSet):
  """A data set in files of the user's."""

  path: str = hyper(dataclasses.MISSING, "its file or folder")

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.path:
      raise DataError(f"`dataset`={self.WORD}: path is missing, it reads your file")
    files.expand_path(self.path)  # refused before any data are read

  def _files(self) -> Sequence[pathlib.Path]:
    """The files that are read."""
    return [files.expand_path(self.path, "dataset")]

  def hash_files(self, data_dir: str | None) -> str:
    """The hash of what the files hold (``DataSet.hash_files``)."""
    del data_dir
    return files.contents_key(self._files())


class Shakespeare(_Files):
  """Plays as *.txt in a folder; their roles are the clients."""

  WORD, EXAMPLE = "shakespeare", "shakespeare:plays,stride=10"
  HAS_CLIENTS, CONTENT = True, "characters"
  READS = ("task",)

  length: int = hyper(
    80, "number of characters that the model reads", minimum=1, maximum=10_000
  )
  stride: int = hyper(
    1,
    "number of characters between the starts of two examples of a role; 1 makes an "
    "example of every character, 80 bytes each, and 10 a tenth of them",
    minimum=1,
  )

  def load(self, task: str | None) -> Examples:
    """Loads the plays (``shakespeare.load_shakespeare``)."""
    return load_shakespeare(self.path, self.length, self.stride, task)

  def _files(self) -> Sequence[pathlib.Path]:
    return play_files(self.path)


class Idx(_Files):
  """A folder of the four IDX files of MNIST or another such data set."""

  WORD, EXAMPLE = "idx", "idx:folder"
  HAS_CLIENTS = False

  def load(self) -> Examples:
    """Loads the images (``idx.load_idx``)."""
    return load_idx(self.path)

  def _files(self) -> Sequence[pathlib.Path]:
    return idx_files(self.path)


class Npz(_Files):
  """An .npz of x_train, y_train, x_test, y_test[, client_train, client_test].

  x_train/NAME, ... are several arrays of an example.
  """

  WORD, EXAMPLE = "npz", "npz:mine.npz"
  READS = ("task",)

  def load(self, task: str | None) -> Examples:
    """Loads the arrays (``sources.load_npz``)."""
    return load_npz(self.path, task)


class Leaf(_Files):
  """A json file of LEAF or FedProx, or a folder with train/ and test/."""

  WORD, EXAMPLE = "leaf", "leaf:folder"

  def load(self) -> Examples:
    """Loads the users (``leaf.load_leaf``)."""
    return load_leaf(self.path)

  def _files(self) -> Sequence[pathlib.Path]:
    return leaf_files(self.path)


class Tfds(DataSet):
  """Any image classification data set of TFDS; the prefix may be left out.

  Raises:
    DataError: TFDS has no data set of this name.
  """

  WORD, EXAMPLE = "tfds:NAME", "tfds:emnist/letters"
  BARE = tfds_source.TFDS_NAMES
  HAS_CLIENTS = False
  READS = ("data_dir",)

  name: str = hyper(dataclasses.MISSING, "its name")

  def __post_init__(self) -> None:
    super().__post_init__()
    # The names of TFDS are looked up last, importing it takes time.
    if self.name == self.WORD or not tfds_source.is_tfds(self.name):
      hint = did_you_mean(self.name, DATASETS)
      raise DataError(
        f"`dataset`={self.name}: unknown{hint} (one of {', '.join(DATASETS)})"
      )

  @property
  def label(self) -> str:
    """The name for TFDS."""
    return self.name

  @property
  def prepared_as(self) -> str:
    """The name for TFDS."""
    return self.name

  @property
  def image_shape(self) -> tuple[int, ...] | None:
    """The shape of an image, of the data sets that are offered by name."""
    return tfds_source.IMAGE_SHAPES.get(self.name)

  def load(self, data_dir: str | os.PathLike | None) -> Examples:
    """Loads the images (``tfds_source.load_tfds``)."""
    return load_tfds(self.name, data_dir)


#: The data sets.
Choice = (
  Digits
  | Diabetes
  | Synthetic
  | Sine2
  | Circle2
  | Sea4
  | Tfds
  | Femnist
  | Sent140
  | Shakespeare
  | Idx
  | Npz
  | Leaf
)
#: How they are written.
DATASETS = tuple(forms(Choice))
