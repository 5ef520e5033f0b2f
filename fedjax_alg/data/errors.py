"""The error of this package."""

from fedjax_alg.errors import OptionError


class DataError(OptionError):
  """Data that cannot be used, or options that do not fit the data.

  The message is one line that names what (the parameter where there is one),
  the value found and what is allowed.
  """
