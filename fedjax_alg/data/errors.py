"""The error for data that cannot be used."""

from fedjax_alg.errors import OptionError


class DataError(OptionError):
  """Data that cannot be used, or options that do not fit the data.

  The message is one line that names the parameter (or the file), the value
  found and the allowed values.
  """
