"""The one error of this package that is the user's to mend."""


class DataError(ValueError):
  """Bad data, or options that do not fit the data.

  The message is one line that names what (the flag where there is one), the
  value found and what is allowed; the command line prints it and nothing else.
  """
