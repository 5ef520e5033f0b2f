"""Tensors of files that ``torch.save`` has written, without torch and without code.

Such a file is a pickle, and to load a pickle is to call what it names. Here only the
few names are known that rebuild a tensor from its numbers; a file that asks for
anything else is refused. Both layouts are read: the zip of torch since 1.6, and the
older one of pickles with the numbers after them.
"""

from collections import OrderedDict
from collections.abc import Mapping
import io
import math
import os
from typing import Any, BinaryIO, NamedTuple
import zipfile

import jax.numpy as jnp
import numpy as np

from fedjax_alg import files
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.pickles import HostileError, KnownUnpickler

#: Name -> array.
Arrays = dict[str, np.ndarray]

#: Names of storages in ``torch`` -> the type of their numbers.
_STORAGES: dict[str, Any] = {
  "DoubleStorage": np.float64,
  "FloatStorage": np.float32,
  "HalfStorage": np.float16,
  "BFloat16Storage": jnp.bfloat16,
  "LongStorage": np.int64,
  "IntStorage": np.int32,
  "ShortStorage": np.int16,
  "CharStorage": np.int8,
  "ByteStorage": np.uint8,
  "BoolStorage": np.bool_,
}
#: The first number of the older layout, and its version.
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


class _Storage(NamedTuple):
  """Numbers that tensors share, by their place in the file."""

  dtype: np.dtype
  key: str
  size: int


class _Tensor(NamedTuple):
  """A view of a storage; ``strides`` are in numbers."""

  storage: _Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


def _rebuild_tensor(
  storage: Any, offset: Any, shape: Any, strides: Any, *_: Any
) -> Any:
  return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
  return tensor


_KNOWN: dict[tuple[str, str], Any] = {
  ("collections", "OrderedDict"): OrderedDict,
  ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
  ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
  ("torch", "Size"): tuple,
} | {("torch", name): np.dtype(dtype) for name, dtype in _STORAGES.items()}


class _Unpickler(KnownUnpickler):
  """Reads pickles that name nothing but tensors."""

  def __init__(self, file: BinaryIO):
    super().__init__(file, _KNOWN)

  def persistent_load(self, pid: Any) -> Any:
    kind, dtype, key, _, size, *_ = pid
    if kind != "storage" or not isinstance(dtype, np.dtype):
      raise ValueError("a reference to no storage")
    return _Storage(dtype, str(key), int(size))


def _view(tensor: Any, content: memoryview | bytes) -> np.ndarray:
  """The array of a tensor, of its storage's bytes."""
  storage, offset, shape, strides = tensor
  numbers = np.frombuffer(content, storage.dtype, storage.size)
  counts = (*shape, *strides, offset)
  if not all(isinstance(count, int) and count >= 0 for count in counts):
    raise ValueError("a tensor without a shape")
  last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
  if math.prod(shape) and last >= storage.size:
    raise ValueError("a tensor reaches past its storage")
  steps = [step * storage.dtype.itemsize for step in strides]
  view = np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps)
  return np.array(view)


def _tensors(tree: Any) -> dict[str, _Tensor]:
  """The tensors of a state_dict, or of the one that a checkpoint holds."""
  for name in ("state_dict", "model_state_dict", "model"):
    if isinstance(tree, Mapping) and isinstance(tree.get(name), Mapping):
      tree = tree[name]
  if not isinstance(tree, Mapping):
    raise ValueError("no state_dict")
  return {str(name): of for name, of in tree.items() if isinstance(of, _Tensor)}


def _read_zip(file: BinaryIO) -> Arrays:
  with zipfile.ZipFile(file) as archive:
    members = {info.filename: info for info in archive.infolist()}
    (pickled,) = (name for name in members if name.endswith("/data.pkl"))
    folder = pickled.removesuffix("data.pkl")
    if archive.read(members.get(folder + "byteorder", pickled))[:3] == b"big":
      raise ValueError("numbers of another byte order")
    tree = _Unpickler(io.BytesIO(archive.read(pickled))).load()
    arrays = {}
    for name, tensor in _tensors(tree).items():
      info = members[f"{folder}data/{tensor.storage.key}"]
      if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError("compressed numbers")
      arrays[name] = _view(tensor, archive.read(info))
  return arrays


def _read_pickles(file: BinaryIO) -> Arrays:
  magic, version, _ = (_Unpickler(file).load() for _ in range(3))
  if (magic, version) != (_MAGIC, _VERSION):
    raise ValueError("not of torch")
  tensors = _tensors(_Unpickler(file).load())
  keys = _Unpickler(file).load()
  sizes = {
    tensor.storage.key: tensor.storage.size * tensor.storage.dtype.itemsize
    for tensor in tensors.values()
  }
  items = {t.storage.key: t.storage.dtype.itemsize for t in tensors.values()}
  contents = {}
  for key in keys:
    number = int.from_bytes(file.read(8), "little")
    if number * items[key] < sizes[key]:
      raise ValueError("a storage is too short")
    contents[key] = file.read(number * items[key])
  return {name: _view(of, contents[of.storage.key]) for name, of in tensors.items()}


def read_torch(path: str | os.PathLike, label: str = "") -> Arrays:
  """Reads the tensors of a state_dict.

  Args:
    path: a file of ``torch.save``.
    label: how messages name it; "": by its path.

  Returns:
    Name -> array, with torch's names, shapes and types.

  Raises:
    OptionError: it cannot be read, is damaged, holds no state_dict, or is a pickle
      that asks for more than tensors, which is then not run.
  """
  label = label or f"`path`={path}"
  try:
    with files.open_regular(path) as file:
      read = _read_zip if zipfile.is_zipfile(file) else _read_pickles
      file.seek(0)
      arrays = read(file)
  except OSError as error:
    raise OptionError(f"{label}: cannot be read ({reason(error)})") from error
  except HostileError as error:
    raise OptionError(
      f"{label}: a pickle that would call {error}, which no state_dict needs "
      "(nothing of it was run)"
    ) from None
  except Exception as error:  # pickles and zips have errors of all kinds
    raise OptionError(
      f"{label}: damaged, or no state_dict that torch.save has written"
    ) from error
  if not arrays:
    raise OptionError(f"{label}: holds no tensors")
  return arrays
