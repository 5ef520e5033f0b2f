"""Compiled programs in files, found by a key that is known without tracing.

JAX's own cache is asked after a program was traced and lowered, which is most of a
second start. Here a *list* is found by a hash of what decides the programs of a run
(``fingerprint``): it has what tracing says of them, and the names of the files with
their executables. These are found by the text of a program, so that several lists
share them, and a program that is new to no compiler is not compiled again after the
library has changed.

The folder is ``programs`` in that of JAX's cache. A file that is damaged, of another
key or of another user is not read, and is written anew.
"""

from collections.abc import Iterator, Mapping
import contextlib
import functools
import hashlib
import os
import pathlib
import pickle
import re
import sys
import tempfile
import threading
from typing import Any, NamedTuple

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh
import numpy as np

from fedjax_alg.engine import fingerprint, sharding

#: The most bytes in the folder; the files that were not used for longest go first.
MOST_BYTES = 2**29

#: Whether programs have keys at all.
IS_USED = True

_HEAD = b"fedjax_alg programs 1\n"
_JAX_CACHE = "jax_enable_compilation_cache"


class Stored(NamedTuple):
  """Programs of a run, and what is known of them."""

  programs: dict[str, jax.stages.Compiled]
  facts: Any  #: what can be pickled


def has_keys() -> bool:
  """Whether a run may have the programs of another, in this process or from files.

  Only Linux says in files when a process began and what processor there is.
  """
  return IS_USED and sys.platform == "linux"


def folder() -> pathlib.Path | None:
  """The folder of the files; None where no programs are stored.

  That is without JAX's cache on a local disk, and without keys.
  """
  place = getattr(jax.config, "jax_compilation_cache_dir")
  if not has_keys() or not place:
    return None
  if not (_OFF.count or getattr(jax.config, _JAX_CACHE)):
    return None
  return None if "://" in str(place) else pathlib.Path(place) / "programs"


def can_store(mesh: Mesh | None) -> bool:
  """Whether the programs of some devices are stored, those of the CPU."""
  return sharding.platform(mesh) == "cpu" and folder() is not None


class _Off:
  """How many programs are being compiled without JAX's cache."""

  def __init__(self) -> None:
    self.count = 0
    self._lock = threading.Lock()

  @contextlib.contextmanager
  def during(self) -> Iterator[None]:
    """Switches JAX's cache off.

    An executable that was read from it cannot be written again: what jaxlib 0.10
    makes of that lacks functions.
    """
    self._add(1)
    try:
      yield
    finally:
      self._add(-1)

  def _add(self, number: int) -> None:
    with self._lock:
      before, self.count = self.count, self.count + number
      if not before or not self.count:
        jax.config.update(_JAX_CACHE, not self.count)
        compilation_cache.reset_cache()


_OFF = _Off()


def _read(name: str) -> Any:
  """The content of a file.

  Raises:
    OSError: there is none.
    ValueError: it is another one, or another user could write it.
  """
  place = folder()
  if place is None:
    raise FileNotFoundError(name)
  path = place / name
  with path.open("rb") as file:
    status = os.fstat(file.fileno())
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
      # To unpickle is to run what its author wrote.
      raise ValueError(f"{path} may be another user's")
    content = file.read()
  body = content[len(_head(name, b"")) :]
  if not content.startswith(_head(name, body)):
    raise ValueError(f"{path} is damaged")
  with contextlib.suppress(OSError):  # a read-only disk
    os.utime(path)
  return pickle.loads(body)


def _head(name: str, body: bytes) -> bytes:
  return _HEAD + f"{name} {hashlib.sha256(body).hexdigest()}\n".encode()


def _write(name: str, content: Any) -> None:
  """Writes a file, at once: a reader sees all of it or nothing."""
  place = folder()
  if place is None:
    return
  body = pickle.dumps(content)
  place.mkdir(parents=True, exist_ok=True)
  handle, temporary = tempfile.mkstemp(dir=place)
  try:
    with os.fdopen(handle, "wb") as file:
      file.write(_head(name, body) + body)
    os.replace(temporary, place / name)
  except BaseException:
    os.unlink(temporary)
    raise
  _remove_oldest(place)


#: Calls in programs that a runtime knows by itself.
_CALLS = frozenset(("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"))
_LAPACK = "lapack_"


def _calls(text: str) -> set[str]:
  """The functions outside of a program that it calls, except for ``_CALLS``."""
  return set(re.findall(r"custom_call[ (]*@\"?([\w.]+)", text)) - _CALLS


def _num_arguments(text: str) -> int:
  """The number of arguments of a program."""
  main = re.search(r"func\.func public @main\((.*)", text)
  return len(re.findall(r"%arg\d+: ", main[1])) if main else -1


@functools.cache
def _start_lapack() -> None:
  """Has JAX look for LAPACK, as it does when it lowers the first call of it.

  A program that was read would call what is not there, and end the process.
  """
  factor = functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False)
  jax.jit(factor).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


class _File(NamedTuple):
  """Where the executable of a program is; others may have it, too."""

  name: str
  in_tree: Any
  out_tree: Any


def _load(file: _File, devices: list[jax.Device]) -> jax.stages.Compiled:
  calls_lapack, content = _read(file.name)
  if calls_lapack:
    _start_lapack()
  loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
    content,
    file.in_tree,
    file.out_tree,
    devices[0].client,
    execution_devices=devices,
  )
  return loaded


def devices_of(mesh: Mesh | None) -> list[jax.Device]:
  """The devices of a program; without a mesh JAX's first one."""
  return jax.devices()[:1] if mesh is None else list(mesh.devices.flat)


def load_programs(key: str, mesh: Mesh | None) -> Stored | None:
  """Reads the programs of a run.

  Args:
    key: see ``save_programs``.
    mesh: the devices that they were compiled for; None: JAX's first one.

  Returns:
    The programs; None if there are none, or none that can be used.
  """
  try:
    files, facts = _read(f"{key}.list")
    programs = {
      name: _load(_File(*file), devices_of(mesh)) for name, file in files.items()
    }
  except Exception:  # of a missing or damaged file, or of another runtime
    return None
  return Stored(programs, facts)


def compile_program(
  lowered: jax.stages.Lowered, options: Any, mesh: Mesh | None
) -> tuple[jax.stages.Compiled, _File | None]:
  """Compiles a program, or reads it if it was compiled before.

  Args:
    lowered: the program, with its unused arguments (``keep_unused``). Without them
      its text does not say which ones are left, so it is not stored.
    options: of the compiler.
    mesh: see ``load_programs``.

  Returns:
    The program, and its file; None if it is not stored.
  """
  text = lowered.as_text()
  calls = _calls(text)
  avals = jax.tree.leaves(lowered.in_avals), jax.tree.leaves(lowered.out_info)
  if _num_arguments(text) != len(avals[0]) or not all(
    call.startswith(_LAPACK) for call in calls
  ):
    return lowered.compile(options), None
  devices = devices_of(mesh)
  words = (text, options, avals, devices, fingerprint.hash_machine())
  digest = hashlib.sha256("\n".join(map(str, words)).encode()).hexdigest()
  in_tree = jax.tree.structure(lowered.args_info)
  file = _File(f"{digest}.program", in_tree, lowered.out_tree)
  with contextlib.suppress(Exception):  # of a missing or damaged file
    return _load(file, devices), file
  with _OFF.during():
    compiled = lowered.compile(options)
  try:
    content, *_ = serialize_executable.serialize(compiled)
    _write(file.name, (bool(calls), content))
  except Exception:  # a full disk, say, or a runtime that cannot
    return compiled, None
  return compiled, file


def save_programs(key: str, files: Mapping[str, _File | None], facts: Any) -> None:
  """Stores what programs a run has.

  Args:
    key: a hash of all that decides them.
    files: name of a program -> its file. If there are none, or one has none,
      nothing is stored.
    facts: what can be pickled.
  """
  if not files or None in files.values():
    return
  with contextlib.suppress(Exception):
    _write(
      f"{key}.list", ({name: tuple(of) for name, of in files.items() if of}, facts)
    )


def _remove_oldest(place: pathlib.Path) -> None:
  """Removes files until the rest has at most ``MOST_BYTES``."""
  files = []
  for path in place.iterdir():
    with contextlib.suppress(OSError):
      files.append((path.stat(), path))
  total = 0
  for status, path in sorted(files, key=lambda file: -file[0].st_mtime):
    total += status.st_size
    if total > MOST_BYTES:
      with contextlib.suppress(OSError):
        path.unlink()
