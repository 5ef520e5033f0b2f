"""Writes what editors and type checkers know of ``import fedjax_alg as fa``.

In ``fedjax_alg/__init__.pyi`` the functions that take any option of a run have them
all as keywords, and every method has the class of its configurations. All of it is
made of the source, the options and the registry. mypy, pyright and jedi (the
completion of IPython) read the stub in the place of ``__init__.py``.

A function that takes the name of a method has the hyper-parameters of all methods,
with their types. Overloads for each name would refuse no more: names that are
computed need a signature for any text, and that one takes every call. The class of a
method has its hyper-parameters alone.
"""

import ast
import dataclasses
import functools
import inspect
import pathlib
import types
import typing

import fedjax_alg
from fedjax_alg.data.federation import federate
from fedjax_alg.data.options import DataOptions
from fedjax_alg.part import parts_of
from fedjax_alg.runs import methods, plan
from fedjax_alg.runs.options import PYTHON_NAMES, RunOptions

SOURCE = pathlib.Path(fedjax_alg.__file__)
STUB = SOURCE.with_suffix(".pyi")

#: Functions that take the options of a run -> those that they refuse.
RUNS = {
  "run": (),
  "run_all": (),
  "steps": (),
  "dry_run": (),
  "sweep": (),
  "hypergradient": ("evaluate", "stop_at", "patience"),
  "tune_by_gradient": ("evaluate", "stop_at", "patience"),
  "audit": (),
}
#: Options that take more than their field holds.
_WIDER = {
  "roles": "str | Sequence[str] | Mapping[str, str | Sequence[str]]",
  "without": "object",
}
#: What a run takes as its algorithm.
_ALGORITHM = "str | MethodConfig | Entry | Algorithm | Callable[..., Algorithm]"
_HEAD = '''"""{doc}
"""
# Written by docs/make_pages.py from the options and the registry.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import os
from typing import Any, ClassVar, overload

from fedjax_alg import models as models
from fedjax_alg import registry as registry
from fedjax_alg import testing as testing
from fedjax_alg._version import __version__ as __version__
from fedjax_alg.data.arrays import Examples
from fedjax_alg.data.federation import Federations
from fedjax_alg.engine import samplers
from fedjax_alg.registry import Entry
from fedjax_alg.runs import api
from fedjax_alg.runs.api import Callback
from fedjax_alg.hparams import HParams
'''


def package_stub():
  """Makes the text of ``fedjax_alg/__init__.pyi``."""
  imports, names = _imports()
  parts = {part.__name__: part for kind in _kinds() for part in parts_of(kind)}
  imports += [
    f"from {part.__module__} import {name}"
    for name, part in parts.items()
    if name not in names
  ]
  return "\n".join(
    [
      _HEAD.format(doc=inspect.getdoc(fedjax_alg)),
      *sorted(imports),
      f"\n__all__ = {_lines(map(repr, fedjax_alg.__all__), '[]')}\n",
      *(f"{alias} = {words}" for words, alias in _aliases().items()),
      f"_Algorithm = {_ALGORITHM}\n",
      *_federate(),
      *map(_run, RUNS),
      *map(_class, methods.config_names()),
    ]
  )


def _lines(items, brackets):
  """A list of Python with a line for each entry."""
  inside = "".join(f"  {item},\n" for item in items)
  return f"{brackets[0]}\n{inside}{brackets[1]}"


def _imports():
  """The imports of public names that the stub does not define, and these names."""
  lines, names = [], set()
  for node in ast.walk(ast.parse(SOURCE.read_text("utf-8"))):
    for alias in node.names if isinstance(node, ast.ImportFrom) else ():
      name = alias.asname or alias.name
      if name in fedjax_alg.__all__ and name not in (*RUNS, "federate"):
        names.add(name)
        lines.append(f"from {node.module} import {alias.name} as {name}")
  return lines, names


def _fields():
  """Yields (field, its type) of all options, those of methods again for each."""
  for kind in (
    DataOptions,
    RunOptions,
    *map(methods.config_class, methods.config_names()),
  ):
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
      yield field, hints[field.name]


def _kinds():
  return [kind for _, kind in _fields()]


@functools.cache
def _aliases():
  """Types that have parts -> their aliases, each called as its first option."""
  aliases = {}
  for field, kind in _fields():
    words = _words(field, kind)
    if parts_of(kind) and words not in aliases:
      alias = "_" + field.name.title().replace("_", "")
      while alias in aliases.values():
        alias += "_"
      aliases[words] = alias
  return aliases


def _words(field, kind):
  """The type of the values that an option takes."""
  if field.name in _WIDER:
    return _WIDER[field.name]
  words = ["str"] if parts_of(kind) else []
  for option in typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,):
    items = typing.get_args(option)
    if items:  # a tuple, which is made of any list and of a text
      item = items[0] if typing.get_args(items[0]) else items[0].__name__
      words += [f"Sequence[{item}]", "str"]
    else:
      words.append("None" if option is types.NoneType else option.__name__)
  if field.metadata["numbers"]:
    words += ["float", "Sequence[float]"]
  return " | ".join(sorted(dict.fromkeys(words), key=["str", "None"].__contains__))


def _type(field, kind):
  """The same, as an alias if it has one."""
  words = _words(field, kind)
  return _aliases().get(words, words)


def _options(kind):
  """Name -> "type = default" of the fields of options."""
  hints = typing.get_type_hints(kind)
  return {
    field.name: f"{_type(field, hints[field.name])} = {field.default!r}"
    for field in dataclasses.fields(kind)
  }


def _of_methods():
  """Name -> "type = ..." of the options of all methods; types of one name add up."""
  kinds = {}
  for name in methods.config_names():
    kind = methods.config_class(name)
    for field in dataclasses.fields(kind):
      words = kinds.setdefault(field.name, [])
      words += [word for word in [_type(field, field.type)] if word not in words]
  return {name: f"{' | '.join(words)} = ..." for name, words in kinds.items()}


def _signature(function):
  """The arguments of a function with a place, those by name alone, and its result.

  Both are name -> "type = default". ``**options`` is left out.
  """
  source = inspect.getsource(inspect.unwrap(function))
  node = ast.parse(source).body[0]
  places = {a.arg: ast.unparse(a.annotation) for a in node.args.args}
  if "algorithm" in places:
    places["algorithm"] = "_Algorithm"
  names = {}
  for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults):
    text = ast.unparse(argument.annotation)
    if default is not None:
      value = ast.unparse(default) if isinstance(default, ast.Constant) else "..."
      text = f"{text} = {value}"
    names[argument.arg] = text
  return places, names, ast.unparse(node.returns)


def _function(name, places, names, result):
  """The declaration of a function."""
  arguments = [f"{key}: {text}" for key, text in places.items()]
  arguments += ["*", *(f"{key}: {text}" for key, text in names.items())]
  return f"def {name}{_lines(arguments, '()')} -> {result}: ...\n"


def _federate():
  """Both forms of ``federate``."""
  seed = {"seed": _signature(federate)[1]["seed"]}
  options = {k: v for k, v in _options(DataOptions).items() if k != "dataset"}
  for names, result in (
    ({"partitions": "int"} | seed, "Federations"),
    (seed, "Federation"),
  ):
    places = {"source": "str | DataSet | Examples = ..."}
    yield "@overload\n" + _function("federate", places, names | options, result)


def _run(name):
  """A function that takes the options of a run."""
  places, names, result = _signature(getattr(fedjax_alg, name))
  refused = RUNS[name]
  for others in (
    _signature(plan.from_keywords)[1],
    {k: v for k, v in _options(RunOptions).items() if k not in PYTHON_NAMES},
    _of_methods(),
  ):
    names |= {k: v for k, v in others.items() if k not in {*names, *refused}}
  return _function(name, places, names, result)


def _class(name):
  """The class of the configurations of a method."""
  kind = methods.config_class(name)
  doc = (kind.__doc__ or "").partition("\n")[0]
  lines = [
    "@dataclasses.dataclass(frozen=True, kw_only=True)",
    f"class {name}(MethodConfig):",
    f'  """{doc}"""',
    "",
    "  METHOD: ClassVar[str]",
  ]
  lines += [f"  {key}: {text}" for key, text in _options(kind).items()]
  return "\n".join(lines) + "\n"
