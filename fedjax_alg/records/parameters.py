"""Parameters in files that other programs read: safetensors, npz, orbax.

A file has one array for each leaf, named by its place in the model's tree:
"params/Dense_0/kernel". So ``flax.traverse_util.unflatten_dict(arrays,
sep="/")`` is the tree of a linen module. docs/models.md has the lines for
``flax.nnx``.
"""

from collections.abc import Callable, Mapping
import errno
import functools
import hashlib
import importlib
import json
import os
import pathlib
from types import ModuleType
import zipfile

from flax import serialization, traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import files, own
from fedjax_alg.base import Params
from fedjax_alg.data import npz, preprocessing
from fedjax_alg.errors import (
  OptionError,
  RunFolderError,
  a_type,
  check_one_of,
  library_of,
  reason,
)
from fedjax_alg.records import checksums
from fedjax_alg.records import folder as run_files
from fedjax_alg.typing import Facts

#: Name of an array -> the array.
Arrays = dict[str, np.ndarray]

FINAL = "final.msgpack"


#: What to do with the parameters of another library.
_CONVERT = (
  "read it with fa.load_weights, or give float arrays of NumPy under the names of the "
  "model's leaves and in their shapes (weights of torch are often transposed)"
)


class ForeignError(OptionError):
  """Parameters of another library, which have other names and layouts.

  Who knows the model says which names are needed (``runs.plan``).
  """


def flatten(params: Params, label: str = "the parameters") -> Arrays:
  """The leaves of a tree by their names.

  Args:
    params: the tree.
    label: what it is, for messages.

  Raises:
    ForeignError: it is of another library, such as torch.
    OptionError: there is no leaf, or one is no array of finite floats.
  """
  arrays: Arrays = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    which = f"{name} is" if name else "is"
    library = library_of(leaf)
    if library:
      raise ForeignError(f"{label}: {which} {a_type(leaf)} of {library}: {_CONVERT}")
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
      raise OptionError(
        f"{label}: {which} {a_type(leaf)}, must be an array"
        + " or a tree of arrays" * (not name)
      )
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      raise OptionError(f"{label}: {name} is {leaf.dtype}, must be floats")
    arrays[name] = np.asarray(leaf).astype(np.float32, copy=False)
    if not np.isfinite(arrays[name]).all():
      raise OptionError(f"{label}: {name} has NaN or infinite numbers")
  if not arrays:
    raise OptionError(f"{label}: has no arrays")
  return arrays


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
  """The checksum of names, shapes and numbers."""
  digest = hashlib.sha256()
  for name, array in sorted(arrays.items()):
    digest.update(f"{name}{array.shape}{array.dtype}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()


def _library(name: str, label: str) -> ModuleType:
  """A module of the package safetensors.

  Raises:
    OptionError: it is missing.
  """
  try:
    return importlib.import_module(name)
  except ImportError:
    raise OptionError(
      f"{label}: the package safetensors is missing (pip "
      "install safetensors, or fedjax_alg[export])"
    ) from None


# Writing.


def _write_safetensors(path: pathlib.Path, arrays: Arrays) -> None:
  library = _library("safetensors.numpy", "`format`=safetensors")
  library.save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, path)


def _write_npz(path: pathlib.Path, arrays: Arrays) -> None:
  with open(path, "wb") as file:
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_orbax(path: pathlib.Path, arrays: Arrays) -> None:
  library = importlib.import_module("orbax.checkpoint")
  path.unlink()  # it makes a folder
  with library.StandardCheckpointer() as checkpointer:
    checkpointer.save(path.absolute(), traverse_util.unflatten_dict(arrays, sep="/"))


#: A file that every folder of orbax has.
_ORBAX = "_METADATA"
FORMATS: dict[str, Callable[[pathlib.Path, Arrays], None]] = {
  "safetensors": _write_safetensors,
  "npz": _write_npz,
  "orbax": _write_orbax,
}


def write_parameters(path: pathlib.Path, params: Params, kind: str) -> None:
  """Writes the parameters of one model, and their checksums beside them.

  Args:
    path: the file, or with orbax the folder; an earlier export there, which
      its checksums tell, is replaced.
    params: the tree, of which every leaf that is None is left out.
    kind: one of ``FORMATS``.

  Raises:
    OptionError: an unknown format, a package that is missing, or a path that
      holds something else or cannot be written.
  """
  check_one_of(f"`format`={kind}", kind, FORMATS)
  arrays = flatten(params)
  try:
    checksums.check_output(path, f"`path`={path}", kind == "orbax")
    path.parent.mkdir(parents=True, exist_ok=True)
    with checksums.replacing_with_checksums(path) as partial:
      FORMATS[kind](partial, arrays)
  except OSError as error:
    raise OptionError(f"`path`={path}: cannot be written ({reason(error)})") from error


# Reading.


def read_parameters(place: str | os.PathLike, option: str = "init_from") -> Arrays:
  """Reads parameters: a file of ``write_parameters``, or the folder of a finished run.

  Of a run it is the global model of the first seed. What was read last is
  kept, as long as the content of the files stays the same.

  Args:
    place: the file or the folder.
    option: the option that names it, for messages.

  Returns:
    name -> array, float32.

  Raises:
    OptionError: it is none of these or damaged, its checksums are others, or
      the run has no global model or several.
  """
  return _content(place, option)[0]


def source(place: str | os.PathLike, option: str = "init_from") -> own.Source:
  """Returns the path that parameters are read from, and their checksum.

  Args:
    place: see ``read_parameters``.
    option: the option that names it, for messages.

  Raises:
    OptionError: see ``read_parameters``.
  """
  _, digest, path = _content(place, option)
  return own.Source(path, digest)


def source_of_layers(folder: str | os.PathLike, option: str = "features") -> own.Source:
  """Returns the path of a finished run, and a hash of what its layers read.

  It is of all that decides what the model makes of raw examples: its parameters,
  its options, the scale and the names that its data have taught it, and of a run on
  another run's layer also that one.

  Args:
    folder: the folder of the run.
    option: the option that names it, for messages.

  Raises:
    OptionError: see ``read_parameters``; or it is no folder of a run.
  """
  _, digest, path = _content(folder, option)
  facts, summary = read_run(pathlib.Path(path), f"`{option}`={folder}")
  listed, plan = summary.get("files", {}), facts.get("plan", {})
  parts = [
    digest,
    [listed.get(name) for name in (preprocessing.SCALER, preprocessing.ENCODING)],
    [facts.get(name) for name in ("model", "data", "run")],
    [plan.get(name) for name in ("example_shape", "classes", "task", "store")],
    {name: of["sha256"] for name, of in facts.get("sources", {}).items()},
  ]
  text = json.dumps(parts, sort_keys=True)
  return own.Source(path, hashlib.sha256(text.encode()).hexdigest())


def read_run(folder: pathlib.Path, label: str) -> tuple[Facts, Facts]:
  """Reads config.json and summary.json of a finished run that an option names.

  Args:
    folder: the folder of the run.
    label: how messages name it.

  Raises:
    OptionError: see ``folder.read_finished``.
  """
  try:
    return run_files.read_finished(folder)
  except RunFolderError as error:
    raise OptionError(f"{label}: {str(error).removeprefix(f'{folder}: ')}") from error


def _content(
  place: str | os.PathLike, option: str = "init_from"
) -> tuple[Arrays, str, str]:
  """The arrays, their checksum and the real path."""
  path = files.expand_path(place, option)
  label = f"`{option}`={place}"
  try:
    if not path.exists():
      raise OptionError(f"{label}: no such file or folder")
    path = pathlib.Path(os.path.realpath(path))
    arrays, digest = _read(path, _stamp(path, label), label)
  except OSError as error:
    raise OptionError(f"{label}: cannot be read ({reason(error)})") from error
  return arrays, digest, str(path)


def _stamp(path: pathlib.Path, label: str) -> tuple[object, ...]:
  """Computes a stamp that changes with the content; of an orbax folder, too.

  Raises:
    OSError: a file cannot be read, or is no regular one.
    OptionError: it is neither a run nor of orbax, or its checksums are others.
  """
  if path.is_dir():
    if os.path.lexists(path / FINAL):
      read_run(path, label)  # whole, every time
      return tuple(files.sha256(path / name) for name in (FINAL, "summary.json"))
    if not (path / _ORBAX).is_file():
      raise OptionError(
        f"{label}: neither the folder of a finished run nor that of orbax"
      )
  return tuple(sorted(checksums.verify(path, label).items()))


@functools.lru_cache(maxsize=1)
def _read(
  path: pathlib.Path, stamp: tuple[object, ...], label: str
) -> tuple[Arrays, str]:
  del stamp
  try:
    if (path / FINAL).is_file():
      tree = _of_run(path, label)
    elif path.is_dir():
      library = importlib.import_module("orbax.checkpoint")
      with library.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(path)
    elif writer := _library_of_file(path):
      raise ForeignError(f"{label}: a file of {writer}: {_CONVERT}")
    elif zipfile.is_zipfile(path):
      tree = npz.read_npz(path)
    else:
      tree = read_safetensors(path, label)
      if any(name.endswith("num_batches_tracked") for name in tree):
        raise ForeignError(f"{label}: a state_dict of torch: {_CONVERT}")
  except OptionError:
    raise
  except Exception as error:  # each format has errors of its own
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
      raise
    raise OptionError(
      f"{label}: damaged, or neither safetensors, npz, orbax nor a run"
    ) from error
  arrays = flatten(tree, label)
  return arrays, hash_arrays(arrays)


def is_pickle(path: pathlib.Path) -> bool:
  """Whether a file is a pickle, as ``torch.save`` once wrote it.

  Args:
    path: a regular file.

  Raises:
    OSError: it cannot be read.
  """
  with files.open_regular(path) as file:
    begin = file.read(8)
  # A file of safetensors begins with a size, which may have the same first bytes.
  is_size = begin[3:] == bytes(5)
  return begin[:1] == b"\x80" and begin[1:2] in b"\x02\x03\x04\x05" and not is_size


def has_pickle(path: pathlib.Path) -> bool:
  """Whether a file is a zip with a pickle, as ``torch.save`` writes it.

  Args:
    path: see ``is_pickle``.

  Raises:
    OSError: it cannot be read.
  """
  return any(name.endswith("/data.pkl") for name in _members(path))


def _members(path: pathlib.Path) -> list[str]:
  """The names of the files in a zip; none of another file."""
  if not zipfile.is_zipfile(path):
    return []
  with zipfile.ZipFile(path) as archive:
    return archive.namelist()


def _library_of_file(path: pathlib.Path) -> str:
  """Which other library has written a file; "": none that is known by its begin."""
  with files.open_regular(path) as file:
    if file.read(4) == b"\x89HDF":
      return "Keras or another library (HDF5)"
  if is_pickle(path):
    return "pickle (torch.save writes such files, too), which is never loaded"
  if has_pickle(path):
    return "torch.save"
  if any(name.endswith(".weights.h5") for name in _members(path)):
    return "Keras"
  return ""


#: The types of safetensors; NumPy has no name for some.
_TYPES: dict[str, type] = {
  "F64": np.float64,
  "F32": np.float32,
  "F16": np.float16,
  "BF16": jnp.bfloat16,
  "F8_E4M3": jnp.float8_e4m3fn,
  "F8_E5M2": jnp.float8_e5m2,
  "I64": np.int64,
  "I32": np.int32,
  "I16": np.int16,
  "I8": np.int8,
  "U8": np.uint8,
  "BOOL": np.bool_,
}


def read_safetensors(path: pathlib.Path, label: str) -> Arrays:
  """Reads a file of safetensors, also of types that NumPy does not have.

  Args:
    path: the file.
    label: how messages name it.

  Raises:
    OptionError: the package is missing.
    Exception: the file is damaged.
  """
  library = _library("safetensors", f"{label}: is no .npz, and to read safetensors")
  content = files.read_bytes(path)
  size, read = int.from_bytes(content[:8], "little"), library.deserialize(content)
  names = json.loads(
    content[8 : 8 + size],
    object_pairs_hook=lambda pairs: [
      name for name, _ in pairs if name != "__metadata__"
    ],
  )
  if len(set(names)) < len(names):
    raise ValueError("two arrays of the same name")
  return {
    name: np.frombuffer(array["data"], _TYPES[array["dtype"]]).reshape(array["shape"])
    for name, array in read
  }


def _of_run(folder: pathlib.Path, label: str) -> Params:
  """The global model of the first seed of a run."""
  models = serialization.msgpack_restore(files.read_bytes(folder / FINAL))[
    "global_params"
  ]
  leaves = jax.tree.leaves(models)
  if not leaves:
    raise OptionError(
      f"{label}: the run has no global model; export one of its clients'"
    )
  if leaves[0].shape[1] > 1:
    raise OptionError(
      f"{label}: the run has {leaves[0].shape[1]} global models; export one of them"
    )
  return jax.tree.map(lambda leaf: leaf[0, 0], models)
