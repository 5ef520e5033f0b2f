"""Loads what users have written themselves: ``FILE.py:NAME``, ``MODULE:NAME``.

An algorithm, a model or a sampler outside this package is named by the file or
the module that holds it, a colon, and its name there. A file is loaded again
when its content has changed; a module is imported once in a process, as Python
does.
"""

import ast
from collections.abc import Mapping
import functools
import hashlib
import importlib
import importlib.util
import os
import pathlib
import sys
import traceback
from types import ModuleType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_alg import files
from fedjax_alg.errors import FAILURES, OptionError, did_you_mean, reason
from fedjax_alg.files import expand_path

#: The two forms, for messages.
FORMS = "path/to/file.py:NAME or package.module:NAME"


class Source(NamedTuple):
  """The file that defines something of the user's own."""

  file: str  #: absolute path; empty for a module without a file
  #: of the content of the file when it was loaded, and of the files in its
  #: folder that it imports
  sha256: str


def check_real(dtype: Any) -> None:
  """Checks the dtype of what a user's function gives, also while it is traced.

  Args:
    dtype: of NumPy or JAX.

  Raises:
    ValueError: it is not that of real numbers; the text goes on after "gives".
      NumPy would read numbers from texts, and drop the imaginary part of others.
  """
  if not any(
    jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)
  ):
    raise ValueError(f"{dtype} values, must be real numbers")


def real_array(values: object) -> np.ndarray:
  """What a user's function gives, as an array of finite real numbers.

  Args:
    values: an array of NumPy or JAX, or what NumPy makes one of.

  Raises:
    ValueError: they are others; the text goes on after "gives".
  """
  try:
    array = np.asarray(values)
  except ValueError:
    raise ValueError("lists of different lengths, must be an array") from None
  check_real(array.dtype)
  if jnp.issubdtype(array.dtype, jnp.floating):
    if not np.isfinite(array).all():
      raise ValueError("NaN or infinite values, must be finite")
  return array


def is_own(text: object) -> bool:
  """Whether a value names something of the user's own."""
  return isinstance(text, str) and ":" in text


def refuse_nameless(text: object, parameter: str) -> None:
  """Refuses a file without the name of what it holds.

  Args:
    text: the value of an option.
    parameter: the name of the option, for messages.

  Raises:
    OptionError: the value is ``path/to/file.py``.
  """
  if not isinstance(text, str) or not text.endswith(".py"):
    return
  names: list[str] = []
  try:
    nodes = ast.parse(files.read_bytes(expand_path(text), files.LARGEST_TEXT)).body
  except (OSError, SyntaxError, ValueError):
    nodes = []
  for node in nodes:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
      names.append(node.name)
    elif isinstance(node, ast.Assign):
      names += [target.id for target in node.targets if isinstance(target, ast.Name)]
  names = [name for name in names if not name.startswith("_")]
  has = f" (it has {', '.join(names)})" if names else ""
  raise OptionError(
    f"`{parameter}`={text}: a file needs the name in it: {text}:NAME{has}"
  )


def load(text: str, parameter: str) -> tuple[Any, Source]:
  """Loads an object by the file or the module that holds it.

  The current folder and the folder of the file can be imported from, after all
  that is installed.

  Args:
    text: ``path/to/file.py:NAME`` or ``package.module:NAME``. NAME may have
      dots.
    parameter: the name of the option, for messages.

  Returns:
    The object and its source.

  Raises:
    OptionError: there is no such file, module or name, or loading it fails.
  """
  label = f"`{parameter}`={text}"
  place, _, name = text.rpartition(":")
  if not place or not all(part.isidentifier() for part in name.split(".")):
    raise OptionError(f"{label}: must be {FORMS}")
  _importable(os.getcwd())
  if place.endswith(".py"):
    path = _real(place)
    if not path.is_file():
      raise OptionError(f"{label}: there is no file {path}")
    module, source = _of_file(path, _sha256(path), label)
  elif all(part.isidentifier() for part in place.split(".")):
    module, source = _of_module(place, label)
  else:
    raise OptionError(f"{label}: must be {FORMS}")
  value: Any = module
  for part in name.split("."):
    try:
      value = getattr(value, part)
    except AttributeError:
      public = [member for member in vars(module) if not member.startswith("_")]
      raise OptionError(
        f"{label}: {place} has no {name}{did_you_mean(name, public)}"
      ) from None
    except FAILURES as error:  # whatever the user's code raises
      raise OptionError(f"{label}: {_failure(error, '')}") from error
  return value, source


def source_of(file: str) -> Source:
  """Makes the source of a file of any kind.

  Args:
    file: its path.

  Returns:
    The source; its hash is empty if the file cannot be read.
  """
  path = _real(file)
  return Source(str(path), _sha256(path))


def sources(**texts: Any) -> dict[str, Source]:
  """Finds the sources of the options that name something of the user's own.

  Args:
    **texts: name of an option -> its value.

  Returns:
    name -> source, without the options that name nothing of the user's own.

  Raises:
    OptionError: see ``load``.
  """
  return {name: load(text, name)[1] for name, text in texts.items() if is_own(text)}


def as_facts(by_option: Mapping[str, Source]) -> dict[str, dict[str, str]]:
  """Makes a dictionary of ``sources`` that can be written as JSON."""
  return {name: dict(source._asdict()) for name, source in by_option.items()}


def _real(path: str) -> pathlib.Path:
  # Path.resolve raises an error for links that form a circle.
  return pathlib.Path(os.path.realpath(expand_path(path)))


def _importable(folder: str) -> None:
  if folder not in sys.path and not ("" in sys.path and folder == os.getcwd()):
    sys.path.append(folder)


def _sha256(path: pathlib.Path) -> str:
  """The hash of a file's content, empty if it cannot be read."""
  try:
    return files.sha256(path)
  except OSError:
    return ""


@functools.lru_cache(maxsize=64)
def _of_file(path: pathlib.Path, digest: str, label: str) -> tuple[ModuleType, Source]:
  # The name has the content in it: a changed file is another module, and the
  # objects of the old one stay what they are.
  name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
  name = f"{name}_{digest[:8]}"
  if name not in sys.modules:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _importable(str(path.parent))
    sys.modules[name] = module  # annotations of dataclasses are looked up here
    try:
      spec.loader.exec_module(module)
    except BaseException as error:  # whatever the user's code raises
      del sys.modules[name]
      if isinstance(error, KeyboardInterrupt):
        raise
      raise OptionError(f"{label}: {_failure(error, str(path))}") from error
  module = sys.modules[name]
  return module, Source(str(path), _with_helpers(module, path, digest, label))


def _list_imports(module: ModuleType) -> list[ModuleType]:
  """The loaded modules that the file of a module imports."""
  names = set()
  assert module.__file__ is not None
  try:
    tree = ast.parse(pathlib.Path(module.__file__).read_bytes())
  except (OSError, SyntaxError, ValueError):  # changed since it was loaded
    return []
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      name = node.module or ""
      if node.level:
        name = "." * node.level + name
        try:
          name = importlib.util.resolve_name(name, module.__package__)
        except ImportError:  # it is in a branch that was not run
          continue
      names |= {name} | {f"{name}.{alias.name}" for alias in node.names}
  return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _with_helpers(
  module: ModuleType, path: pathlib.Path, digest: str, label: str = ""
) -> str:
  """The hash of a file and of what it imports from its own folder.

  Args:
    module: what was loaded of the file.
    path: the file.
    digest: its hash.
    label: how a message starts; empty for a module that Python has found itself, since
      a module of a package may have the name of another one.

  Raises:
    OptionError: it got a module of another folder that has the name of a file
      beside it.
  """
  helpers: dict[pathlib.Path, str] = {}
  pending = _list_imports(module)
  while pending:
    module = pending.pop()
    file = getattr(module, "__file__", None)
    location = pathlib.Path(file or "").resolve()
    sibling = path.parent / f"{module.__name__}.py"
    if "site-packages" in location.parts:  # an environment inside the folder
      continue
    if location.suffix == ".py" and location.is_relative_to(path.parent):
      if location not in helpers and location != path:
        helpers[location] = _sha256(location)
        pending += _list_imports(module)
    elif label and sibling.is_file():
      raise OptionError(
        f"{label}: it imports {module.__name__}, which is {file} in this "
        f"process, not {sibling}; give one of the two another name"
      )
  if not helpers:
    return digest
  text = " ".join([digest, *(helpers[file] for file in sorted(helpers))])
  return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=64)
def _of_module(name: str, label: str) -> tuple[ModuleType, Source]:
  importlib.invalidate_caches()  # a file that was written a moment ago
  try:
    module = importlib.import_module(name)
  except ModuleNotFoundError as error:
    if error.name and (name == error.name or name.startswith(f"{error.name}.")):
      raise OptionError(
        f"{label}: there is no module {error.name}, here or installed"
      ) from (error)
    raise OptionError(f"{label}: {_failure(error, '')}") from error
  except KeyboardInterrupt:
    raise
  except BaseException as error:  # whatever the user's code raises
    raise OptionError(f"{label}: {_failure(error, '')}") from error
  file = getattr(module, "__file__", None)
  if not file:
    return module, Source("", "")
  path = pathlib.Path(file).resolve()
  digest = _sha256(path)
  is_of_library = name.partition(".")[0] == __name__.partition(".")[0]
  if path.suffix == ".py" and not is_of_library:
    digest = _with_helpers(module, path, digest)
  return module, Source(str(path), digest)


def _failure(error: BaseException, file: str) -> str:
  """Says how loading failed, and in which line of the user's code."""
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename != __file__ and "importlib" not in frame.filename
  ]
  inside = [frame for frame in frames if frame.filename == file] or frames
  where = f", {inside[-1].filename} line {inside[-1].lineno}" if inside else ""
  name, text = type(error).__name__, reason(error)
  message = name if text == name else f"{name}: {text}"
  return f"importing it fails ({message}{where})"
