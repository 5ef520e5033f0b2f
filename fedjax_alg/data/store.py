"""Examples kept as one byte a value, on the host and on the devices.

An image is read as bytes and trained on as float32, four times as much. Where
a number of a few bytes says exactly which float32 each byte stands for, the
bytes are kept, and the rows of a mini-batch or a block become float32 when
they are read (``gather_rows``). The values are the same bit for bit.

A model could read plain bytes and scale them in its first operation. But XLA fuses
one product with the sum after it: compiled with ``x - mean``, a quarter of the
results have other last bits on a CPU (measured, JAX 0.10). Both products of a code
(``_scale``) have the same bits there. And float32 images, such as the digits, would
take four times as much memory.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any, TypeGuard

import jax
import numpy as np
import numpy.typing as npt

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.data.npy_rows import NpyRows, OrderedRows
from fedjax_alg.memory import row_chunks
from fedjax_alg.typing import AnyArray, PyTree

STORES = ("auto", "float32", "uint8")


def _scale(step: float) -> np.ndarray:
  """``Coded.values`` of codes that stand for multiples of ``step``.

  The first number has 16 bits, so its product with a code is exact, and the
  sum of both products is ``code * step`` rounded once. A division would not
  do: XLA multiplies by the reciprocal.
  """
  fraction, exponent = math.frexp(step)
  first = math.ldexp(round(fraction * 2**16), exponent - 16)
  return np.array([first, step - first], np.float32)


#: Scale of the values that ``features.none`` makes of images.
IMAGE_SCALE = _scale(float(np.float32(1 / 255)))
#: The scales that are tried.
_SCALES = (
  IMAGE_SCALE,
  *(_scale(1 / parts) for parts in (255, *(2**k for k in range(9)))),
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Coded:
  """An array of examples of which each value is kept as one byte.

  It has the shape and the dtype of the array it stands for, and indexing it
  gives values of that array. The leaves are NumPy arrays on the host and JAX
  arrays in a run.
  """

  codes: Any  #: [M, ...] uint8
  #: what the codes stand for: [2] float32 = code * first + code * second;
  #: [256] float32 = the value of each code; None = the code as int32
  values: Any

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the array it stands for."""
    result: tuple[int, ...] = self.codes.shape
    return result

  @property
  def ndim(self) -> int:
    """The number of axes."""
    result: int = self.codes.ndim
    return result

  @property
  def dtype(self) -> np.dtype:
    """The dtype of the array it stands for, float32 or int32."""
    return np.dtype(np.int32 if self.values is None else np.float32)

  @property
  def nbytes(self) -> int:
    """The memory that it takes."""
    result: int = self.codes.nbytes
    return result

  def __len__(self) -> int:
    result: int = self.codes.shape[0]
    return result

  def __getitem__(self, rows: object) -> AnyArray:
    return self.decode(self.codes[rows])

  def __array__(
    self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
  ) -> np.ndarray:
    if copy is False:
      raise ValueError("values of bytes are always a copy")
    values = None if self.values is None else np.asarray(self.values)
    decoded = np.asarray(Coded(np.asarray(self.codes), values)[...])
    result: np.ndarray = decoded if dtype is None else decoded.astype(dtype)
    return result

  def decode(self, codes: AnyArray) -> AnyArray:
    """The values [...] of some codes [...]."""
    if self.values is None:
      return codes.astype(np.int32)
    if self.values.shape == (2,):
      numbers = codes.astype(np.float32)
      scaled: AnyArray = numbers * self.values[0] + numbers * self.values[1]
      return scaled
    looked_up: AnyArray = self.values[codes]
    return looked_up


def _is_array(x: object) -> bool:
  return isinstance(x, (Coded, HostRows))


def map_arrays(fn: Callable[..., object], *trees: PyTree) -> Any:
  """``jax.tree.map`` over arrays of examples, of which some are ``Coded``."""
  return jax.tree.map(fn, *trees, is_leaf=_is_array)


def arrays(tree: PyTree) -> list[Any]:
  """The arrays of examples or targets, in the order of JAX's leaves."""
  return jax.tree.leaves(tree, is_leaf=_is_array)


def is_on_host(tree: PyTree) -> bool:
  """Whether a program has no values of some examples or targets."""
  return any(
    isinstance(getattr(array, "codes", array), HostRows) for array in arrays(tree)
  )


def is_in_files(tree: PyTree) -> bool:
  """Whether some rows are read from files, or are on the host alone."""
  return any(
    isinstance(getattr(array, "codes", array), (HostRows, NpyRows))
    for array in arrays(tree)
  )


def order_rows(parts: Sequence[Any], order: np.ndarray) -> Any:
  """Some rows of arrays.

  Args:
    parts: arrays [n, ...], whose rows are counted as those of one.
    order: [M] int, the rows.

  Returns:
    [M, ...], a copy; rows in files stay there, and are read in this order.
  """
  if any(map(is_in_files, parts)):
    return HostRows(OrderedRows(parts, order, len(order), parts[0].dtype))
  return (parts[0] if len(parts) == 1 else np.concatenate(parts))[order]


def values_each(x: PyTree) -> int:
  """Counts the numbers in an example."""
  return sum(math.prod(array.shape[1:]) for array in arrays(x))


def gather_rows(x: PyTree, rows: Callable[..., Any]) -> Any:
  """Some rows of the examples as the model reads them.

  Args:
    x: [M, ...] examples, a tree of arrays or ``Coded``.
    rows: function of the array that is kept -> its rows.

  Returns:
    The rows, float32 or int32.
  """
  return jax.tree.map(
    lambda array: (
      array.decode(rows(array.codes)) if isinstance(array, Coded) else rows(array)
    ),
    x,
    is_leaf=_is_array,
  )


def map_rows(x: PyTree, fn: Callable[..., object]) -> Any:
  """``fn`` of the arrays that are kept; what was bytes stays bytes.

  Args:
    x: [M, ...] examples, a tree of arrays or ``Coded``.
    fn: changes the rows of an array, not its values.

  Returns:
    The changed examples.
  """
  return map_arrays(
    lambda array: (
      Coded(fn(array.codes), array.values) if isinstance(array, Coded) else fn(array)
    ),
    x,
  )


def compact(
  arrays: tuple[np.ndarray, ...] | tuple[Coded, ...], store: str
) -> tuple[np.ndarray, ...] | tuple[Coded, ...]:
  """Makes bytes of the arrays of a data set, where these are exact.

  Args:
    arrays: the examples for training and for testing, float32 or integers;
      arrays that are ``Coded`` or in files are not changed.
    store: one of ``STORES``. With "auto" float32 values become bytes if they
      are multiples of 1, of 1/255 or of 1/2^k (k up to 8) of at most 255, as
      images are, and token ids if they are all below 256. With "uint8" float32
      values may also be any 256 values; they are then looked up in a table,
      which is slower on a CPU.

  Returns:
    The arrays, all as ``Coded`` or all as they were.

  Raises:
    DataError: "uint8" would not be exact.
  """
  if store == "float32" or is_in_files(arrays) or not _all_plain(arrays):
    return arrays
  if arrays[0].dtype.kind == "i":
    if all(0 <= a.min(initial=0) and a.max(initial=0) < 256 for a in arrays):
      return tuple(Coded(a.astype(np.uint8), None) for a in arrays)
    if store == "uint8":
      raise DataError(
        "`store`=uint8: token ids must lie in [0, 255] (allowed: auto, float32)"
      )
    return arrays
  for values in _SCALES:
    coded = _encode_exactly(arrays, values, _by_scale)
    if coded is not None:
      return coded
  if store == "uint8":
    coded = _encode_exactly(arrays, _table(arrays), _by_table)
    assert coded is not None
    return coded
  return arrays


def _all_plain(
  arrays: tuple[np.ndarray, ...] | tuple[Coded, ...],
) -> TypeGuard[tuple[np.ndarray, ...]]:
  return not all(isinstance(array, Coded) for array in arrays)


def _encode_exactly(
  arrays: tuple[np.ndarray, ...],
  values: np.ndarray,
  encode: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[Coded, ...] | None:
  """The arrays in codes for ``values``; None if they are not exact."""
  results = []
  for array in arrays:
    coded = Coded(np.empty(array.shape, np.uint8), values)
    for rows in row_chunks(array):
      coded.codes[rows] = encode(array[rows], values)
      if (coded[rows].view(np.uint32) != _bits(array[rows])).any():
        return None
    results.append(coded)
  return tuple(results)


def _bits(array: np.ndarray) -> np.ndarray:
  """Views float32 as its bits, which tell -0.0 from 0.0."""
  return np.ascontiguousarray(array).view(np.uint32)


def _by_scale(x: np.ndarray, values: np.ndarray) -> np.ndarray:
  with np.errstate(over="ignore"):  # infinite is as little a byte
    codes = np.rint(x / (values[0] + values[1]))
  result: np.ndarray = np.clip(codes, 0, 255).astype(np.uint8)
  return result


def _by_table(x: np.ndarray, values: np.ndarray) -> np.ndarray:
  # Sorted by bits, because -0.0 and 0.0 are equal as numbers.
  return np.searchsorted(values.view(np.uint32), _bits(x)).astype(np.uint8)


def _table(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
  """The values of float32 arrays as [256] float32, sorted by their bits."""
  bits = np.zeros(0, np.uint32)
  for array in arrays:
    for rows in row_chunks(array):
      bits = np.union1d(bits, _bits(array[rows]))
      if len(bits) > 256:
        raise DataError(
          "`store`=uint8: the examples have more than 256 different values, "
          "more than one byte can hold (allowed: auto, float32)"
        )
  return np.append(bits, np.full(256 - len(bits), bits[-1])).view(np.float32)
