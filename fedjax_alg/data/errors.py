"""The error for data that cannot be used."""

from fedjax_alg.errors import OptionError


class DataError(OptionError):
  """Data that cannot be used, or options that do not fit the data.

  The message is one line that names the parameter (or the file), the value
  found and the allowed values.
  """


def kinds_are_lost(label: str, name: str) -> DataError:
  """The error for data with kinds, which a folder does not keep.

  Args:
    label: how the message starts.
    name: what has the kinds in the source.
  """
  return DataError(
    f"{label}: has kinds of clients ({name}), which a folder of clients does not keep; "
    f"use the data as they are, or leave {name} out"
  )
