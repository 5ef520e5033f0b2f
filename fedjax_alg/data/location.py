"""Where the rows of the clients are during a run: the alternatives of `data_on`."""

from typing import ClassVar

from fedjax_alg import memory
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part

#: The part of the memory that is free which rows may take, so that models, states and
#: temporary arrays have room.
_SHARE = 0.5


class Location(Part):
  """A place for the rows of all clients."""

  #: whether programs get windows of some rows; else the devices hold all of them
  HAS_WINDOWS: ClassVar[bool] = True
  #: whether rows are read from files
  IS_FILES: ClassVar[bool] = False
  #: whether another place is chosen
  IS_CHOSEN: ClassVar[bool] = False
  window_mb = 0.0

  @property
  def label(self) -> str:
    """The option as messages name it."""
    return f"`data_on`={self}"


class OnDevice(Location):
  """Every device holds all rows."""

  WORD, EXAMPLE = "device", "device"
  HAS_WINDOWS = False


class OnHost(Location):
  """The host holds all rows; a device gets the rows of the next participants."""

  WORD, EXAMPLE = "host", "host:window_mb=1000"

  window_mb: float = hyper(
    128.0,
    "MB of rows that a device has at once, for several rounds; if one round needs "
    "more, it has so many",
    above=0.0,
  )


class OnDisk(OnHost):
  """The rows stay in a folder of clients; a device gets some, as with host."""

  WORD, EXAMPLE = "disk", "disk:window_mb=1000"
  IS_FILES = True


class Automatic(OnHost):
  """Every device holds all rows if they fit, else they are as with host or disk."""

  WORD, EXAMPLE = "auto", "auto"
  HAS_WINDOWS, IS_CHOSEN = False, True


#: The places of the rows.
LOCATIONS = Automatic | OnDevice | OnHost | OnDisk


def has_room(nbytes: int, free: memory.Limit) -> bool:
  """Whether rows fit with room for models, states and temporary arrays.

  Args:
    nbytes: the memory of the rows.
    free: the memory that is free.

  Examples:
    >>> has_room(1000, memory.Limit(1500, "the device has"))
    False
  """
  return nbytes <= _SHARE * free.nbytes
