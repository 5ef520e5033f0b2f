"""Reads a file of the clients' availability."""

import io

import numpy as np

from fedjax_alg.data import npz
from fedjax_alg.errors import OptionError
from fedjax_alg.files import expand_path, read_text


def read_availability(file: str) -> np.ndarray:
  """Reads the clients' probabilities to be available.

  Args:
    file: a text file of one number a line, or .npy.

  Returns:
    [C] float64 in [0, 1].

  Raises:
    OptionError: it cannot be read, or holds something else.
  """
  label = f"`sampling`=availability_file:{file}"
  path = expand_path(file, "sampling")
  if not path.is_file():
    raise OptionError(f"{label}: no such file")
  binary, text = path.suffix == ".npy", ""
  try:
    if binary:
      numbers = np.asarray(npz.read_npz(path))
    else:
      text = read_text(path)
      numbers = np.loadtxt(io.StringIO(text), ndmin=1)
  except OSError as error:
    raise OptionError(f"{label}: {error.strerror}") from error
  except ValueError as error:  # also of a text in another encoding
    raise OptionError(f"{label}: cannot be read as numbers") from error
  if numbers.dtype.kind not in "iuf":
    raise OptionError(f"{label}: is {numbers.dtype}, not numbers")
  numbers = numbers.astype(np.float64)
  must = "must be one number in [0, 1] for each client"
  if numbers.ndim != 1:
    raise OptionError(f"{label}: {must}, has the shape {list(numbers.shape)}")
  wrong = np.flatnonzero(~((numbers >= 0) & (numbers <= 1)))
  if len(wrong):
    where = f"entry {wrong[0]}" if binary else (f"line {_line_of(text, int(wrong[0]))}")
    raise OptionError(f"{label}: {where} is {numbers[wrong[0]]:g}; {must}")
  return numbers


def _line_of(text: str, number: int) -> int:
  """The line, from 1, of a number that ``np.loadtxt`` has read.

  Args:
    text: numbers in one row or in one column.
    number: index of the number.

  Returns:
    The line; lines of comments and empty ones count.
  """
  lines = enumerate(text.splitlines(), 1)
  full = [at for at, line in lines if line.split("#")[0].strip()]
  return full[0] if len(full) == 1 else full[number]
