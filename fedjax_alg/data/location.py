"""Where the rows of the clients are during a run: the alternatives of `data_on`."""

from typing import ClassVar

from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part


class Location(Part):
  """A place for the rows of all clients."""

  #: whether programs get windows of some rows; else the devices hold all of them
  HAS_WINDOWS: ClassVar[bool] = True
  #: whether rows are read from files
  IS_FILES: ClassVar[bool] = False
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


#: The places of the rows.
LOCATIONS = OnDevice | OnHost | OnDisk
