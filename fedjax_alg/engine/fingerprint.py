"""A hash of what decides a program, found without tracing it.

A program is decided by the functions that are traced, by what they hold (values in
closures, arguments of ``functools.partial``, fields of objects), and by the code that
they call. A function of this library is hashed by its code and by what it holds, an
array by its bytes, an object by its class and its attributes. What they call is the
library as it was imported, and JAX, Flax, optax and NumPy, which their versions name.

All else has no hash, and its program is traced: functions and classes of the user,
and all programs of a process in which code was replaced after the import.
"""

from collections.abc import Iterable, Iterator
import dataclasses
import functools
import hashlib
import itertools
import operator
import os
import pathlib
import platform
import re
import sys
import time
import types
from typing import Any

import jax
import jax.extend
from jax.sharding import Mesh
import numpy as np

_LIBRARY = __name__.partition(".")[0]
_FOLDER = str(pathlib.Path(__file__).parents[1])

#: Packages of which a version names the code; the library imports all of them.
PACKAGES = ("chex", "flax", "jax", "jaxlib", "ml_dtypes", "numpy", "optax")

#: Options of JAX that decide no program, by their beginnings.
_NEUTRAL = (
  "jax_compilation_cache_",
  "jax_enable_compilation_cache",
  "jax_persistent_cache_",
  "jax_log",
)

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


class NoFingerprintError(Exception):
  """A value that no hash can stand for; the message says which."""


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Arguments of a program: of arrays only shape, dtype and place decide it."""

  tree: Any


def _is_of_library(module: str) -> bool:
  """Whether a module of the library has this name, and none of the user's."""
  file = getattr(sys.modules.get(module), "__file__", None) or ""
  return module.partition(".")[0] == _LIBRARY and file.startswith(_FOLDER + os.sep)


class _Walker:
  """Hashes values one after the other; what is met again counts by its place."""

  def __init__(self) -> None:
    self._digest = hashlib.sha256()
    self._of_shapes = False
    #: (whether as an argument, id) -> its place, and the value, which keeps its id
    self._met: dict[tuple[bool, int], tuple[int, object]] = {}

  def hexdigest(self) -> str:
    return self._digest.hexdigest()

  def _write(self, *words: object) -> None:
    for word in words:
      content = word if isinstance(word, bytes) else str(word).encode()
      self._digest.update(b"%d:" % len(content) + content)

  def walk(self, value: Any) -> None:
    """Adds a value.

    Raises:
      NoFingerprintError: no hash can stand for it.
    """
    kind = type(value)
    if kind in _PLAIN:
      self._write(kind.__name__, repr(value))
      return
    met = self._of_shapes, id(value)
    if met in self._met:
      self._write("again", self._met[met][0])
      return
    self._met[met] = len(self._met), value
    if kind is Shapes:
      self._of_shapes = True
      self._walk_all("shapes", (value.tree,))
      self._of_shapes = False
    elif isinstance(value, type):
      self._name(value)
    elif kind is types.FunctionType:
      self._walk_function(value)
    elif kind is functools.partial:
      self._walk_all("partial", (value.func, value.args, value.keywords))
    elif kind is np.ndarray or isinstance(value, (np.generic, jax.Array)):
      if self._of_shapes:
        self._write("argument", value.shape, value.dtype, *_place(value))
      else:
        self._walk_array(value)
    elif kind is jax.ShapeDtypeStruct:
      self._write("shape", value.shape, value.dtype, value.weak_type, value.sharding)
    elif isinstance(value, Mesh):
      self._write("mesh", value.axis_names, value.axis_types, value.devices.shape)
      self._write(*(f"{device.id} {device}" for device in value.devices.flat))
    elif isinstance(value, (tuple, list)):
      self._name(kind)
      self._walk_all("entries", value)
    elif kind in (dict, types.MappingProxyType):
      self._walk_all("items", (part for item in value.items() for part in item))
    else:
      self._name(kind)
      self._walk_all("attributes", _attributes(value))

  def _name(self, kind: Any) -> None:
    """Adds a class of Python or of the library that its name finds."""
    module, name = kind.__module__, kind.__qualname__
    value: Any = sys.modules.get(module)
    for part in name.split("."):
      value = getattr(value, part, None)
    if value is not kind or not (module == "builtins" or _is_of_library(module)):
      raise NoFingerprintError(f"{module}.{name}")
    self._write("name", module, name)

  def _walk_all(self, kind: str, values: Iterable[Any]) -> None:
    values = list(values)
    self._write(kind, len(values))
    for value in values:
      self.walk(value)

  def _walk_function(self, value: types.FunctionType) -> None:
    # Not ``__module__``, which ``functools.wraps`` takes from another function.
    module = value.__globals__.get("__name__", "")
    if not _is_of_library(module) or value.__globals__ is not vars(sys.modules[module]):
      raise NoFingerprintError(f"{module}.{value.__qualname__}")
    self._write("function", module, value.__qualname__)
    self._walk_code(value.__code__)
    self._walk_all("defaults", value.__defaults__ or ())
    self.walk(value.__kwdefaults__ or {})
    self._walk_all("closure", map(_content, value.__closure__ or ()))

  def _walk_code(self, code: types.CodeType) -> None:
    self._write("code", code.co_firstlineno, code.co_names, code.co_freevars)
    self._write(code.co_code)
    for constant in code.co_consts:
      if isinstance(constant, types.CodeType):
        self._walk_code(constant)
      elif isinstance(constant, frozenset):
        self._write(sorted(map(repr, constant)))
      else:
        self._write(repr(constant))

  def _walk_array(self, value: Any) -> None:
    if isinstance(value, jax.core.Tracer):
      raise NoFingerprintError("a traced value")
    if isinstance(value, jax.Array):
      if not value.is_fully_addressable:
        raise NoFingerprintError("an array of other processes")
      self._write("array of JAX", *_place(value))
      if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        self._write("keys", value.dtype)
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.hasobject:
      raise NoFingerprintError("an array of objects")
    # The text of a dtype: ``str`` is the same for all of eight bits.
    self._write("array", type(value).__name__, array.dtype, array.shape)
    self._write(array.tobytes())


def _place(value: Any) -> tuple[Any, ...]:
  """Whether the type of an array is weak, and where it is."""
  if isinstance(value, jax.Array):
    return getattr(value, "weak_type", False), value.sharding, value.committed
  return ()


def _content(cell: types.CellType) -> Any:
  try:
    return cell.cell_contents
  except ValueError:  # not filled yet
    return None


class _Plain:
  """A class of which objects hold a dictionary and nothing else."""


def _attributes(value: Any) -> Iterator[Any]:
  """The names and values of what an object holds, in turn.

  Raises:
    NoFingerprintError: it holds more, in slots or in C.
  """
  kind = type(value)
  if kind.__basicsize__ > _Plain.__basicsize__ or not hasattr(value, "__dict__"):
    raise NoFingerprintError(f"an object of {kind.__module__}.{kind.__qualname__}")
  names = vars(value)
  if dataclasses.is_dataclass(value):  # Flax numbers its modules, for one
    names = [field.name for field in dataclasses.fields(value)]
  for name in names:
    yield name
    yield getattr(value, name, None)


def hash_values(*values: Any) -> str:
  """Hashes values.

  Args:
    *values: what decides a program, beside the library and the machine.

  Returns:
    A sha256, equal for equal values, also in another process.

  Raises:
    NoFingerprintError: no hash can stand for one of them.

  Examples:
    >>> hash_values(1, {"a": np.ones(2)}) == hash_values(1, {"a": np.ones(2)})
    True
    >>> hash_values(lambda: 1)
    Traceback (most recent call last):
    fedjax_alg.engine.fingerprint.NoFingerprintError: ...<lambda>
  """
  walker = _Walker()
  walker.walk(values)
  return walker.hexdigest()


#: A module or class -> its names and values when it was imported.
_IMPORTED: dict[Any, dict[str, Any]] = {}
#: Each dictionary and list among these values, and what was in it.
_CONTAINERS: list[tuple[Any, Any]] = []
#: The library's files when it had been imported; see ``_state_of_files``.
_FILES: list[tuple[Any, ...]] = []


def remember_imports() -> None:
  """Keeps what the modules that are new here hold, so that changes are noticed.

  Of the library that is everything, of the public modules of ``PACKAGES`` what can be
  called.
  """
  if not _FILES and os.path.isdir(_FOLDER):  # and no archive
    _FILES.extend(_state_of_files())
  for name, module in list(sys.modules.items()):
    root = name.partition(".")[0]
    if module in _IMPORTED or not isinstance(module, types.ModuleType):
      continue
    if root in PACKAGES and "._" not in name:
      values = dict(vars(module))
      _IMPORTED[module] = {name: of for name, of in values.items() if callable(of)}
    elif root == _LIBRARY:
      _remember(module)
      for kind in _IMPORTED[module].values():
        if isinstance(kind, type) and kind.__module__ == name:
          _remember(kind)


def _remember(holder: Any) -> None:
  _IMPORTED[holder] = values = dict(vars(holder))
  for name, value in values.items():
    if type(value) in (dict, list) and not name.startswith("__"):
      _CONTAINERS.append((value, value.copy()))


def _check_imports() -> None:
  """Checks that modules and classes hold what they held when they were imported.

  Raises:
    NoFingerprintError: one does not.
  """
  for holder, values in list(_IMPORTED.items()):  # other threads may add some
    now = vars(holder)
    changed = itertools.compress(
      values, map(operator.is_not, map(now.get, values), values.values())
    )
    added: Iterable[str] = ()
    if isinstance(holder, type) and len(now) > len(values):
      added = (name for name in list(now) if name not in values and name[:2] != "__")
    for name in itertools.chain(changed, added):
      raise NoFingerprintError(f"{holder.__name__}.{name} was replaced")
  for container, values in list(_CONTAINERS):
    if isinstance(values, dict):
      entries, before = map(container.get, values), values.values()
    else:
      entries, before = container[: len(values)], values
    if any(a is not b for a, b in itertools.zip_longest(entries, before)):
      raise NoFingerprintError("a list or dictionary of the library was changed")


def _state_of_files(folder: str = "") -> Iterator[tuple[Any, ...]]:
  """Lists the library's files: path, inode, size, and times of the last change."""
  for entry in os.scandir(folder or _FOLDER):
    if entry.is_dir():
      yield from _state_of_files(entry.path)
    elif entry.name.endswith(".py") and entry.is_file():  # no link to nothing
      state = entry.stat()
      yield entry.path, state.st_ino, state.st_size, state.st_mtime, state.st_ctime


#: How well the start of a process is known, in seconds.
_CLOCK_S = 2.0


@functools.cache
def _hash_files() -> str:
  """Hashes the library's files.

  Raises:
    NoFingerprintError: one is newer than this process, which may have imported what
      was there before.
  """
  digest, newest = hashlib.sha256(), _started() - _CLOCK_S
  for path, *_, changed in sorted(_FILES):
    if changed > newest:
      raise NoFingerprintError(f"{path} is newer than this process")
    content = pathlib.Path(path).read_bytes()
    name = os.path.relpath(path, _FOLDER)
    digest.update(f"{name} {len(content)} ".encode() + content)
  return digest.hexdigest()


def _started() -> float:
  """The time at which this process began, in seconds since 1970."""
  text = pathlib.Path("/proc/self/stat").read_text()
  ticks = int(text.rpartition(")")[2].split()[19])
  age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
  return time.time() - age


def hash_library() -> str:
  """Hashes the library's files, from which this process has imported it.

  Raises:
    NoFingerprintError: a file, or what was imported, was changed since then.
  """
  remember_imports()  # what was imported late, such as an extra
  _check_imports()
  try:
    if not _FILES or sorted(_state_of_files()) != sorted(_FILES):
      raise NoFingerprintError("the library's files were changed")
    return _hash_files()
  except OSError as error:
    raise NoFingerprintError(str(error)) from error


def _of_processor() -> str:
  """Model and features of the processor."""
  first = pathlib.Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
  names = ("model", "flags", "Features", "CPU", "cpu family", "vendor_id")
  return "\n".join(line for line in first.splitlines() if line.startswith(names))


def hash_machine() -> str:
  """Hashes versions, processor, devices, and options of JAX and its compiler.

  Raises:
    NoFingerprintError: there are several processes, or a package is of no release.
  """
  if jax.process_count() > 1:
    raise NoFingerprintError("several processes")
  versions = {name: sys.modules[name].__version__ for name in PACKAGES}
  for name, version in versions.items():
    if not re.fullmatch(r"\d+(\.\d+)*(rc\d+|\.post\d+)?", version):
      raise NoFingerprintError(f"{name} {version} names no release")
  lines = [
    *(f"{name} {version}" for name, version in versions.items()),
    sys.version,
    platform.machine(),
    _of_processor(),
    *(f"{device.id} {device.device_kind}" for device in jax.devices()),
    # The compiler parts loops for so many threads.
    f"{len(os.sched_getaffinity(0))} cores",
    jax.extend.backend.get_backend().platform_version,
    *(f"{key}={os.environ[key]}" for key in sorted(os.environ) if _decides(key)),
    *(
      f"{name}={value}"
      for name, value in sorted(jax.config.values.items())
      if not name.startswith(_NEUTRAL)
    ),
    str(jax.sharding.get_abstract_mesh()),
  ]
  digest = hashlib.sha256("\n".join(lines).encode())
  return digest.hexdigest()


def _decides(variable: str) -> bool:
  return variable.startswith(("XLA_", "TF_", "LIBTPU", "CUDA_", "NVIDIA_", "CUDNN"))
