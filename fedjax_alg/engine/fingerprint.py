"""A hash of what decides a program, found without tracing it.

A program is decided by the functions that are traced, what they hold (values in
closures, arguments of ``functools.partial``, fields of objects), and the library's
code. All of that is walked and hashed: a value by its content, an array by its bytes,
a function by its code and by what it holds, and a class by its name. A name is
enough only for code of known packages, whose files or versions are hashed as well.
Anything else, such as a function of the user's own, has no hash.
"""

from collections.abc import Iterable
import contextlib
import dataclasses
import enum
import functools
import hashlib
import os
import pathlib
import platform
import sys
import time
import types
from typing import Any

import jax
import jax.extend
from jax.sharding import Mesh
import numpy as np

_LIBRARY = __name__.partition(".")[0]
_FOLDER = pathlib.Path(__file__).parents[1]

#: Packages whose code a version names.
PACKAGES = ("chex", "flax", "jax", "jaxlib", "ml_dtypes", "numpy", "optax", "scipy")

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


def _is_known(module: str | None) -> bool:
  """Whether the code of a module is named by a version, or by the library's hash."""
  root = (module or "").partition(".")[0]
  return (
    root == _LIBRARY
    or root in PACKAGES
    or (root in sys.stdlib_module_names and root != "__main__")
  )


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Arguments of a program: of arrays only shape, dtype and place decide it."""

  tree: Any


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
      text = str(word).encode()
      self._digest.update(b"%d:" % len(text) + text)

  def walk(self, value: Any) -> None:
    """Adds a value.

    Raises:
      NoFingerprintError: no hash can stand for it.
    """
    if type(value) in _PLAIN:
      self._write(type(value).__name__, repr(value))
      return
    met = self._of_shapes, id(value)
    if met in self._met:
      self._write("again", self._met[met][0])
      return
    self._met[met] = len(self._met), value
    if isinstance(value, Shapes):
      self._of_shapes = True
      self._each("shapes", (value.tree,))
      self._of_shapes = False
    elif isinstance(value, type):
      self._name(value)
    elif not self._walk_code(value) and not self._walk_data(value):
      self._walk_object(value)

  def _name(self, kind: Any) -> None:
    if not _is_known(kind.__module__) or "<locals>" in kind.__qualname__:
      raise NoFingerprintError(f"{kind.__module__}.{kind.__qualname__}")
    self._write("name", kind.__module__, kind.__qualname__)

  def _each(self, kind: str, values: Iterable[Any]) -> None:
    values = list(values)
    self._write(kind, len(values))
    for value in values:
      self.walk(value)

  def _walk_code(self, value: Any) -> bool:
    if isinstance(value, types.FunctionType):
      if not _is_known(value.__module__):
        raise NoFingerprintError(f"{value.__module__}.{value.__qualname__}")
      self._write("function", value.__module__, value.__qualname__)
      self._walk_text(value.__code__)
      self._each("defaults", value.__defaults__ or ())
      self.walk(value.__kwdefaults__ or {})
      cells = value.__closure__ or ()
      self._each("closure", map(_content, cells))
      # An attribute, such as __wrapped__, is not called unless a cell holds it.
    elif isinstance(value, types.MethodType):
      self._each("method", (value.__func__, value.__self__))
    elif isinstance(value, functools.partial):
      self._each("partial", (value.func, value.args, value.keywords))
    elif isinstance(value, (types.BuiltinFunctionType, np.ufunc)):
      module = getattr(value, "__module__", None)
      if module is None or not _is_known(module):
        module = type(getattr(value, "__self__", None)).__module__
      self._write("builtin", module, getattr(value, "__qualname__", value.__name__))
      self.walk(getattr(value, "__self__", None))
    elif isinstance(value, functools._lru_cache_wrapper):
      self._each("cached", (value.__wrapped__,))
    elif isinstance(value, types.ModuleType):
      if not _is_known(value.__name__):
        raise NoFingerprintError(value.__name__)
      self._write("module", value.__name__)
    else:
      return False
    return True

  def _walk_text(self, code: types.CodeType) -> None:
    self._write("code", code.co_firstlineno, code.co_names, code.co_freevars)
    self._digest.update(code.co_code)
    for constant in code.co_consts:
      if isinstance(constant, types.CodeType):
        self._walk_text(constant)
      elif isinstance(constant, frozenset):
        self._write(sorted(map(repr, constant)))
      else:
        self._write(repr(constant))

  def _walk_data(self, value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
      if self._of_shapes:
        self._write("argument", value.shape, value.dtype, *_place(value))
      else:
        self._walk_array(value)
    elif isinstance(value, jax.ShapeDtypeStruct):
      self._write("shape", value.shape, value.dtype, value.weak_type, value.sharding)
    elif isinstance(value, (tuple, list)):
      self._name(type(value))
      self._each("entries", value)
    elif isinstance(value, (dict, types.MappingProxyType)):
      self._name(type(value))
      self._each("items", (part for item in value.items() for part in item))
    elif isinstance(value, (set, frozenset)):
      self._name(type(value))
      if not all(type(entry) in _PLAIN for entry in value):
        raise NoFingerprintError("a set of objects")
      self._write(sorted(map(repr, value)))
    elif isinstance(value, enum.Enum):
      self._name(type(value))
      self._write(value.name)
    elif isinstance(value, np.dtype):
      self._write("dtype", value.str, value.name)
    elif isinstance(value, Mesh):
      self._write("mesh", value.axis_names, value.axis_types, value.devices.shape)
      self._write(*(f"{device.id} {device}" for device in value.devices.flat))
    else:
      return False
    return True

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
    self._write("array", type(value).__name__, array.dtype.str, array.shape)
    self._digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

  def _walk_object(self, value: Any) -> None:
    """Adds an object of a class of a known package by its attributes."""
    kind = type(value)
    self._name(kind)
    if dataclasses.is_dataclass(value):
      self._each(
        "fields",
        (
          part
          for field in dataclasses.fields(value)
          for part in (field.name, getattr(value, field.name, None))
        ),
      )
      return
    # What a class in C holds makes an object larger.
    if (
      kind.__basicsize__ > _Plain.__basicsize__
      or not hasattr(value, "__dict__")
      or any(vars(base).get("__slots__") for base in kind.__mro__)
    ):
      raise NoFingerprintError(f"an object of {kind.__module__}.{kind.__qualname__}")
    self.walk(dict(vars(value)))


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
  """A class whose objects hold a dictionary and nothing else."""


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
    fedjax_alg.engine.fingerprint.NoFingerprintError: __main__.<lambda>
  """
  walker = _Walker()
  walker.walk(values)
  return walker.hexdigest()


def hash_library() -> str:
  """Hashes the library's files, and plain values in its modules and classes.

  Raises:
    NoFingerprintError: a file is newer than this process, which may have read what
      was there before; or a function of the library was replaced.
  """
  return hash_values(_of_files(), _plain_values())


@functools.cache
def _of_files() -> str:
  digest = hashlib.sha256()
  started = _started()
  for path in sorted(_FOLDER.rglob("*.py")):
    if path.stat().st_mtime > started - _CLOCK_S:
      raise NoFingerprintError(f"{path} is newer than this process")
    content = path.read_bytes()
    digest.update(f"{path.relative_to(_FOLDER)} {len(content)} ".encode() + content)
  return digest.hexdigest()


#: How well the start of a process is known, in seconds.
_CLOCK_S = 2.0


def _started() -> float:
  """The time at which this process began, in seconds since 1970."""
  text = pathlib.Path("/proc/self/stat").read_text()
  ticks = int(text.rpartition(")")[2].split()[19])
  age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
  return time.time() - age


def _plain_values() -> list[str]:
  """Lists plain values of the library's modules and classes.

  Raises:
    NoFingerprintError: a function was put into one of them from elsewhere.
  """
  lines = []
  for name in _MODULES:
    values = dict(vars(sys.modules[name]))
    for kind in list(values.values()):
      if isinstance(kind, type) and kind.__module__ == name:
        values |= {f"{kind.__qualname__}.{key}": of for key, of in vars(kind).items()}
    for key, value in values.items():
      if isinstance(value, types.FunctionType) and not _is_known(value.__module__):
        raise NoFingerprintError(f"{name}.{key} was replaced")
      if type(value) in _NUMBERS and not key.rpartition(".")[2].startswith("__"):
        lines.append(f"{name}.{key}={value!r}")
  return lines


_NUMBERS = (bool, int, float, str)
#: The library's modules that are there once this one is, in each process the same.
_MODULES = sorted(name for name in sys.modules if name.partition(".")[0] == _LIBRARY)


def _of_processor() -> str:
  """Model and features of the processor."""
  lines = []
  with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
    for line in file:
      if not line.strip():
        break
      if line.startswith(("model", "flags", "Features", "CPU", "cpu family")):
        lines.append(line)
  return "".join(lines)


def hash_machine() -> str:
  """Hashes versions, processor, devices, and options of JAX and its compiler.

  Raises:
    NoFingerprintError: there are several processes.
  """
  if jax.process_count() > 1:
    raise NoFingerprintError("several processes")
  modules = [sys.modules[name] for name in PACKAGES if name in sys.modules]
  lines = [
    *(f"{module.__name__} {getattr(module, '__version__', '')}" for module in modules),
    sys.version,
    platform.machine(),
    _of_processor(),
    *(f"{device.id} {device.device_kind}" for device in jax.devices()),
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
