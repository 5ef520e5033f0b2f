"""Parameters in files that other programs read: safetensors, npz, orbax.

A file has one array for each leaf, named by its place in the model's tree:
"params/Dense_0/kernel". So ``flax.traverse_util.unflatten_dict(arrays,
sep="/")`` is the tree of a flax module.
"""

from collections.abc import Callable, Mapping
import functools
import hashlib
import importlib
import os
import pathlib
from typing import Any
import zipfile

from flax import serialization, traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import files, own
from fedjax_alg.base import Params
from fedjax_alg.data import npz
from fedjax_alg.errors import a_type, check_one_of, OptionError, reason
from fedjax_alg.records import folder as run_files

#: Name of an array -> the array.
Arrays = dict[str, np.ndarray]

FINAL = "final.msgpack"


def named(params: Params, said: str = "the parameters") -> Arrays:
  """The leaves of a tree by their names.

  Args:
    params: the tree.
    said: what it is, for messages.

  Raises:
    OptionError: there is no leaf, or one is no array of finite floats.
  """
  found: Arrays = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
      raise OptionError(f"{said}: {name} is {a_type(leaf)}, must be an array")
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      raise OptionError(f"{said}: {name} is {leaf.dtype}, must be floats")
    found[name] = np.asarray(leaf).astype(np.float32, copy=False)
    if not np.isfinite(found[name]).all():
      raise OptionError(f"{said}: {name} has NaN or infinite numbers")
  if not found:
    raise OptionError(f"{said}: has no arrays")
  return found


def sha256(arrays: Mapping[str, np.ndarray]) -> str:
  """The checksum of names, shapes and numbers."""
  digest = hashlib.sha256()
  for name, array in sorted(arrays.items()):
    digest.update(f"{name}{array.shape}{array.dtype}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()


def _library(name: str, said: str) -> Any:
  """A module of the package safetensors.

  Raises:
    OptionError: it is missing.
  """
  try:
    return importlib.import_module(name)
  except ImportError:
    raise OptionError(f"{said}: the package safetensors is missing (pip "
                      "install safetensors, or fedjax_alg[export])") from None


# Writing.


def _write_safetensors(path: pathlib.Path, arrays: Arrays) -> None:
  library = _library("safetensors.numpy", "`format`=safetensors")
  with files.replacing(path) as partial:
    library.save_file(
        {name: np.ascontiguousarray(a) for name, a in arrays.items()}, partial)


def _write_npz(path: pathlib.Path, arrays: Arrays) -> None:
  with files.replacing(path) as partial, open(partial, "wb") as file:
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_orbax(path: pathlib.Path, arrays: Arrays) -> None:
  if path.is_dir() and not (path / _ORBAX).is_file() and any(path.iterdir()):
    raise OptionError(f"`path`={path}: holds files of something else")
  library = importlib.import_module("orbax.checkpoint")
  with library.StandardCheckpointer() as checkpointer:
    checkpointer.save(
        path.absolute(), traverse_util.unflatten_dict(arrays, sep="/"),
        force=True)


#: A file that every folder of orbax has.
_ORBAX = "_METADATA"
FORMATS: dict[str, Callable[[pathlib.Path, Arrays], None]] = {
    "safetensors": _write_safetensors, "npz": _write_npz, "orbax": _write_orbax}


def write(path: pathlib.Path, params: Params, kind: str) -> None:
  """Writes the parameters of one model.

  Args:
    path: the file, or with orbax the folder; what is there is replaced.
    params: the tree, of which every leaf that is None is left out.
    kind: one of ``FORMATS``.

  Raises:
    OptionError: an unknown format, a package that is missing, or a path that
      cannot be written.
  """
  check_one_of(f"`format`={kind}", kind, FORMATS)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    FORMATS[kind](path, named(params))
  except OSError as error:
    raise OptionError(
        f"`path`={path}: cannot be written ({reason(error)})") from error


# Reading.


def read(place: str | os.PathLike) -> Arrays:
  """Reads parameters: a file of ``write``, or the folder of a finished run.

  Of a run it is the global model of the first seed. What was read last is
  kept, as long as the files do not change.

  Args:
    place: the file or the folder.

  Returns:
    name -> array, float32.

  Raises:
    OptionError: it is none of these or damaged, or the run has no global model
      or several.
  """
  return _found(place)[0]


def source(place: str | os.PathLike) -> own.Source:
  """Where parameters are read from, and their checksum.

  Raises:
    OptionError: see ``read``.
  """
  _, digest, path = _found(place)
  return own.Source(path, digest)


def _found(place: str | os.PathLike) -> tuple[Arrays, str, str]:
  """The arrays, their checksum and the real path."""
  path = files.expanded(place, "init_from")
  said = f"`init_from`={place}"
  if not path.exists():
    raise OptionError(f"{said}: no such file or folder")
  path = pathlib.Path(os.path.realpath(path))
  arrays, digest = _read(path, files.contents(_inside(path)), said)
  return arrays, digest, str(path)


def _inside(path: pathlib.Path) -> list[pathlib.Path]:
  """The files that ``_read`` reads of a place."""
  if not path.is_dir():
    return [path]
  if (path / FINAL).is_file():
    return [path / FINAL, path / "summary.json"]
  return sorted(one for one in path.rglob("*") if one.is_file()) if (
      path / _ORBAX).is_file() else []


@functools.lru_cache(maxsize=1)
def _read(
    path: pathlib.Path, inside: str, said: str
) -> tuple[Arrays, str]:
  del inside  # the key alone: what the files hold
  try:
    if (path / FINAL).is_file():
      tree = _of_run(path, said)
    elif (path / _ORBAX).is_file():
      library = importlib.import_module("orbax.checkpoint")
      with library.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(path)
    elif path.is_dir():
      raise OptionError(f"{said}: neither the folder of a finished run nor one "
                        "of orbax")
    elif zipfile.is_zipfile(path):
      tree = npz.read(path)
    else:
      library = _library("safetensors.numpy", f"{said}: is no .npz, and to read"
                         " safetensors")
      tree = library.load(files.read_bytes(path))
  except OptionError:
    raise
  except Exception as error:  # each format has errors of its own
    raise OptionError(f"{said}: damaged, or neither safetensors, npz, orbax "
                      "nor a run") from error
  arrays = named(tree, said)
  return arrays, sha256(arrays)


def _of_run(folder: pathlib.Path, said: str) -> Params:
  """The global model of the first seed of a run."""
  summary = files.read_json(folder / "summary.json")
  if run_files.changed(folder, summary, [FINAL]):
    raise OptionError(f"{said}: {FINAL} is not as the run wrote it")
  models = serialization.msgpack_restore(
      files.read_bytes(folder / FINAL))["global_params"]
  leaves = jax.tree.leaves(models)
  if not leaves:
    raise OptionError(f"{said}: the run has no global model; export one of its "
                      "clients'")
  if leaves[0].shape[1] > 1:
    raise OptionError(f"{said}: the run has {leaves[0].shape[1]} global "
                      "models; export one of them")
  return jax.tree.map(lambda leaf: leaf[0, 0], models)
