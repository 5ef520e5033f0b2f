"""Makes a data set from arrays in memory, with the checks of data files."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, MAX_CLASSES
from fedjax_alg.errors import a_type
from fedjax_alg.hparams import of_type

#: Name of an array in a data file -> the argument of ``from_arrays``.
_ARGUMENTS = {"x_train": "x", "y_train": "y", "client_train": "client_ids",
              "x_test": "x_test", "y_test": "y_test",
              "client_test": "test_client_ids"}


#: The largest number of a client.
_MAX_ID = 2 ** 31 - 2


def from_arrays(
    x: Any, y: Any, client_ids: Any = None, *, x_test: Any = None,
    y_test: Any = None, test_client_ids: Any = None,
    num_classes: int | None = None, name: str = "arrays") -> Examples:
  """Makes a data set from your own arrays, for ``federate``.

  Args:
    x: [n, ...] training examples. uint8 arrays are images and arrays of
      signed integers are token ids, which become int32; every other real
      dtype is converted to float32.
    y: [n] labels, whole numbers from 0.
    client_ids: [n] the client of each training example, as numbers or
      strings; needed for ``partition="natural"``. Clients are numbered in the
      sorted order of their ids, and keep them as ``client_names``.
    x_test: [m, ...] test examples with the shape and dtype of ``x``. Without
      test examples the partition must hold out a local test split, as
      ``natural`` does.
    y_test: [m] labels of the test examples.
    test_client_ids: [m] the client of each test example.
    num_classes: L; by default the largest label plus one.
    name: name of the data set in tables and plots.

  Returns:
    The examples.

  Raises:
    DataError: an array has a wrong shape, length or dtype, a value is NaN or
      infinite, a label is out of range, or a client has test examples only;
      the message is one line that names the argument.

  Examples:
    >>> x = np.random.default_rng(0).random((40, 5))
    >>> y = np.arange(40) % 2
    >>> examples = from_arrays(x, y, client_ids=["anna", "bert"] * 20)
    >>> import fedjax_alg as fa
    >>> fa.federate(examples, partition="natural").num_clients
    2
  """
  if num_classes is not None:
    num_classes = of_type("num_classes", num_classes, int)
  if (x_test is None) != (y_test is None):
    raise DataError("`x_test` and `y_test`: give both or none")
  if test_client_ids is not None and x_test is None:
    raise DataError("`test_client_ids`: needs `x_test` and `y_test`")
  arrays = {"x_train": _array("x", x), "y_train": _array("y", y)}
  if x_test is None:
    arrays["x_test"] = arrays["x_train"][:0]
    arrays["y_test"] = np.zeros(0, np.int32)
  else:
    arrays |= {"x_test": _array("x_test", x_test),
               "y_test": _array("y_test", y_test)}
  numbered, names = _numbered(client_ids, test_client_ids)
  return checked(arrays | numbered, lambda which: f"`{_ARGUMENTS[which]}`:",
                 name, num_classes, names)


def _array(argument: str, values: Any) -> np.ndarray:
  try:
    array = np.asarray(values)
  except ValueError:
    raise DataError(f"`{argument}`: its rows have different shapes") from None
  if not array.ndim and array.dtype != object:
    raise DataError(f"`{argument}`: {a_type(values)}, must be an "
                    "array with one entry for each example")
  return array


def _numbered(
    train: Any, test: Any) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
  """Numbers the client ids from 0 in their sorted order."""
  if train is None:
    return {} if test is None else {
        "client_test": _array("test_client_ids", test)}, None
  train = _array("client_ids", train)
  if train.ndim != 1 or train.dtype.kind not in "iuUSO":
    raise DataError(f"`client_ids`: {train.dtype} of shape {train.shape}, one "
                    "whole number or string for each example is needed")
  try:
    return numbered(
        {"client_train": train} | ({} if test is None else {
            "client_test": _array("test_client_ids", test)}),
        lambda which: f"`{_ARGUMENTS[which]}`:")
  except TypeError:
    raise DataError("`client_ids`: ids of different kinds, which cannot be "
                    "sorted") from None


def numbered(
    ids: dict[str, np.ndarray], what: Callable[[str], str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Numbers client ids from 0 in their sorted order.

  Args:
    ids: client_train [n], numbers or strings, and perhaps client_test.
    what: see ``checked``.

  Returns:
    The numbers int32 under the same names, and the ids as strings, [C].

  Raises:
    DataError: a client has test examples only.
  """
  names, numbers = np.unique(ids["client_train"], return_inverse=True)
  clients = {"client_train": numbers.astype(np.int32)}
  if "client_test" in ids:
    test = ids["client_test"]
    number_of = {name: number for number, name in enumerate(names.tolist())}
    for name in test.ravel().tolist():
      if name not in number_of:
        raise DataError(f"{what('client_test')} client {name} has no training "
                        "example")
    clients["client_test"] = np.array(
        [number_of[name] for name in test.ravel().tolist()],
        np.int32).reshape(test.shape)
  text = [name.decode("utf-8", "replace") if isinstance(name, bytes)
          else str(name) for name in names.tolist()]
  return clients, np.array(text, str)


def checked(
    arrays: dict[str, np.ndarray], what: Callable[[str], str], name: str,
    num_classes: int | None = None, client_names: np.ndarray | None = None
) -> Examples:
  """Checks arrays and makes the examples.

  Args:
    arrays: x_train, y_train, x_test and y_test; also client_train and
      client_test if the data set names clients.
    what: name of an array -> the name of the array in an error message.
    name: name of the data set.
    num_classes: L; None means the largest label plus one.
    client_names: name of each client, as strings; None if the numbers are the
      names.

  Returns:
    The examples.

  Raises:
    DataError: see ``from_arrays``.
  """
  def bare(array: str) -> str:
    """The name of an array in a message, without the name of the file."""
    return what(array).rstrip(":").split(": ")[-1]

  if "client_test" in arrays and "client_train" not in arrays:
    raise DataError(f"{what('client_test')} without {bare('client_train')}")
  for array in ("x_train", "x_test"):
    arrays[array] = _features(what(array), arrays[array])
  for split in ("train", "test"):
    rows = len(arrays["x_" + split])
    for array in ("y_" + split, "client_" + split):
      if array in arrays:
        arrays[array] = _whole_numbers(
            what(array), arrays[array], rows, bare("x_" + split),
            MAX_CLASSES - 1 if array[0] == "y" else _MAX_ID)
  x_train, x_test = arrays["x_train"], arrays["x_test"]
  if not x_train.size:
    raise DataError(f"{what('x_train')} has no "
                    f"{'features' if len(x_train) else 'rows'}")
  if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
    raise DataError(
        f"{what('x_train')} has examples of shape {x_train.shape[1:]} "
        f"{x_train.dtype} but {bare('x_test')} of {x_test.shape[1:]} "
        f"{x_test.dtype}")
  y_train, y_test = arrays["y_train"], arrays["y_test"]
  largest = int(max(y_train.max(), y_test.max(initial=0)))
  if num_classes is None:
    num_classes = largest + 1
  elif largest >= num_classes:
    raise DataError(f"`num_classes`={num_classes}: a label is {largest}, "
                    f"labels must lie in [0, {num_classes})")
  return Examples(x_train, y_train, x_test, y_test, num_classes,
                  arrays.get("client_train"), arrays.get("client_test"), name,
                  client_names=client_names)


def _features(what: str, x: np.ndarray) -> np.ndarray:
  if x.ndim < 2:
    raise DataError(
        f"{what} has shape {x.shape}, one row per example and at least one "
        "more axis are needed")
  if x.dtype.kind not in "fiub":
    raise DataError(f"{what} is {x.dtype}, real numbers are needed")
  if x.dtype == np.uint8:
    return x
  if x.dtype.kind == "i":
    bounds = np.iinfo(np.int32)
    if x.size and not bounds.min <= x.min() <= x.max() <= bounds.max:
      raise DataError(f"{what} lies in [{x.min()}, {x.max()}], token ids must "
                      "fit into int32 (numbers must be given as float32)")
    return x.astype(np.int32, copy=False)
  with np.errstate(over="ignore"):  # becomes infinite, refused below
    x = x.astype(np.float32, copy=False)
  finite = np.isfinite(x)
  if not finite.all():
    places = np.nonzero(~finite)[0]
    raise DataError(f"{what} has {len(places)} NaN or infinite value(s) (as "
                    f"float32), the first in row {places[0]}")
  return x


def _whole_numbers(
    what: str, values: np.ndarray, rows: int, of: str, most: int
) -> np.ndarray:
  """Checks labels or client ids and converts them to int32."""
  if values.dtype.kind not in "iu":
    raise DataError(f"{what} is {values.dtype}, integers are needed")
  if values.shape != (rows,):
    raise DataError(f"{what} has shape {values.shape}, {(rows,)} is needed "
                    f"(one per row of {of})")
  if rows and (values.min() < 0 or values.max() > most):
    raise DataError(f"{what} lies in [{values.min()}, {values.max()}], whole "
                    f"numbers from 0 to {most:,} are needed")
  return values.astype(np.int32)
