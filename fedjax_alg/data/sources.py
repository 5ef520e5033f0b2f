"""The base of all data sets, parts of the option `dataset`.

The file of a data set has its loader and its part, and ``datasets`` lists the parts.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any, ClassVar

from fedjax_alg import files
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part


class DataSet(Part):
  """A data set, and how to find or generate it."""

  #: whether the examples come with clients; None: the data tell, and only they tell
  #: whether the examples are tokens
  HAS_CLIENTS: ClassVar[bool | None] = None
  #: the default number of clients, of data that are generated for them
  CLIENTS: ClassVar[int | None] = None
  INPUTS: ClassVar[int] = 0  #: an example has so many numbers; 0: it is no vector
  CONTENT: ClassVar[str] = ""  #: what an example is made of, if no numbers
  TASK: ClassVar[str | None] = None  #: what is predicted; None: classes
  #: whether they are images of classes without clients, which can be joined (`kinds`)
  IMAGES: ClassVar[bool] = False
  TEXTS: ClassVar[bool] = False  #: whether an example may be characters of a text
  HAS_TEXTS: ClassVar[bool] = False  #: whether ``load_texts`` gives whole texts
  OF_USER: ClassVar[bool] = False  #: whether the user is told of doubtful labels
  #: options of the federation whose values ``load`` takes, in this order
  READS: ClassVar[tuple[str, ...]] = ()

  @property
  def label(self) -> str:
    """Its name, without fields."""
    return self.WORD

  @property
  def prepared_as(self) -> str:
    """The name of what it reads of the folder of prepared data; "": nothing."""
    return ""

  @property
  def is_natural(self) -> bool | None:
    """Whether the data have the clients by default; None: only the data tell."""
    return self.HAS_CLIENTS

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

  def load_texts(self, *args: Any, **kwargs: Any) -> Examples:
    """Loads the examples as texts, x [n] of dtype object; see ``load``."""
    raise NotImplementedError

  def hash_files(self, data_dir: str | None) -> str:
    """What stands for the files of the data in the keys of caches.

    Args:
      data_dir: the folder of prepared data; None: TFDS's.

    Returns:
      The hash of the files, or of their version, of prepared data; "" for no file.
      A file that cannot be read is no error yet: ``load`` says it.
    """
    del data_dir
    return ""

  def check_task(self, task: str | None) -> None:
    """Checks the fields against the option `task`.

    Raises:
      DataError: a field is not read with it.
    """


class UserFiles(DataSet):
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
