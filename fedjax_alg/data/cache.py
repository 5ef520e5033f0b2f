"""A cache on disk for decoded arrays, with a checksum."""

from collections.abc import Callable
import errno
import json
import pathlib
import secrets
import stat
from typing import cast

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import npz

_FORMAT = 1


def _is_manifest(path: pathlib.Path) -> bool:
  """Recognizes a manifest."""
  try:
    return files.json_with("format", "source", "sha256")(path)
  except OSError:
    return False


Arrays = dict[str, np.ndarray]


def read_or_build(
  path: pathlib.Path, source: str, build: Callable[[], Arrays]
) -> Arrays:
  """Reads arrays from the cache, or builds and stores them.

  A cached file is used only if its manifest (``<path>.json``) names the same
  source and the sha256 of the file. After an interrupted write, a disk error
  or a change of the source data, the arrays are therefore built again. Both
  files are written atomically, so readers never see an incomplete file. Their
  permissions are those that the umask gives; in a folder that its group may
  write to, the group may also read and replace them.

  Args:
    path: path of the ``.npz``.
    source: identifies the data that the arrays are made from.
    build: makes the arrays.

  Returns:
    Name -> array. If the folder cannot be written, or another program's file
    is at the path, the arrays are returned but not stored.
  """
  arrays = _read(path, source)
  if arrays is None:
    arrays = build()
    try:
      _write(path, source, arrays)
    except OSError:
      pass
  return arrays


def _manifest_path(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(path.name + ".json")


def _read(path: pathlib.Path, source: str) -> Arrays | None:
  try:
    manifest = json.loads(_manifest_path(path).read_text("utf-8"))
    expected = {"format": _FORMAT, "source": source, "sha256": files.sha256(path)}
    if manifest != expected:
      return None
    return cast(Arrays, npz.read_npz(path))
  except (OSError, ValueError):  # json's errors are ValueErrors too
    return None


def _write(path: pathlib.Path, source: str, arrays: Arrays) -> None:
  """Writes both files.

  Raises:
    OSError: they cannot be written, or something else is at the path.
  """

  def ours(place: pathlib.Path) -> bool:
    if _is_manifest(_manifest_path(place)):
      return True
    try:  # without a manifest, or with a damaged one
      return set(npz.read_npz(place, ())) == set(arrays)
    except (ValueError, AttributeError):
      return False

  if files.obstacle(path, ours):
    raise OSError(errno.EEXIST, "something else", str(path))
  _make_folder(path.parent)
  save: Callable = np.savez  # its stub takes no array by a variable name
  digest = _replace(path, lambda file: save(file, **arrays))
  manifest = {"format": _FORMAT, "source": source, "sha256": digest}
  text = json.dumps(manifest, indent=1, sort_keys=True).encode()
  _replace(_manifest_path(path), lambda file: file.write(text))


def _make_folder(path: pathlib.Path) -> None:
  if path.is_dir():
    return
  _make_folder(path.parent)
  path.mkdir(exist_ok=True)
  _share_with_group(path)


def _share_with_group(path: pathlib.Path) -> None:
  """Lets the group of a shared folder do with ``path`` what it may do there."""
  folder = path.parent.stat().st_mode
  if folder & stat.S_IWGRP:
    mode = path.stat().st_mode
    bits = folder & (stat.S_IRWXG | stat.S_ISGID)
    if not stat.S_ISDIR(mode):
      bits &= stat.S_IRGRP | stat.S_IWGRP
    path.chmod(stat.S_IMODE(mode | bits))


def _replace(path: pathlib.Path, write: Callable) -> str:
  """Writes a file atomically and returns the sha256 of its content."""
  # Not tempfile, whose files only their owner may read.
  suffix = f".{secrets.token_hex(8)}"  # others may write it at the same time
  with files.replacing(path, suffix) as temporary:
    with open(temporary, "wb") as file:
      write(file)
    _share_with_group(temporary)
    return files.sha256(temporary)
