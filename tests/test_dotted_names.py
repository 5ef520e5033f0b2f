"""Names with dots, in docstrings, comments and pages, are names that there are.

A module and what is in it, or a class and its field, is looked up. A variable
(``cohort.everyone``) has no type here, so its attribute has to be that of some class.
"""

import ast
import collections
from collections.abc import Iterator
import functools
import importlib
import io
import pathlib
import re
import tokenize
from typing import Any

import pytest

from tests.each import each

pytestmark = pytest.mark.program  # all modules are read


_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ("fedjax_alg", "experiments", "benchmarks")
_PAGES = sorted(
  path.relative_to(_ROOT).as_posix()
  for path in (*_ROOT.glob("docs/**/*.md"), _ROOT / "README.md")
  if "_build" not in path.parts and "results" not in path.parts
)
#: Names by which other libraries and ours are known.
_ALIASES = {
  "fa": "fedjax_alg",
  "jnp": "jax.numpy",
  "lax": "jax.lax",
  "nnx": "flax.nnx",
  "np": "numpy",
}
#: Libraries that need not be installed, and theirs.
_FOREIGN = frozenset(
  "datasets fed_avg fedjax flwr jax_privacy mlflow pandas rocrate scipy tensorflow "
  "torch trackio wandb "
  # Classes of other libraries, on the page that compares them.
  "Population Strategy ClientState ArrayRecord".split()
)
#: Last parts of names of files, of fields of JSON, and of what stands for a name.
_ENDINGS = frozenset(
  "cff cp csv ckpt flags ipynb json jsonl lock md msgpack npy npz pdf png py sha256 sh "
  "toml txt rows_0_of_2 rows_1_of_2 accountant final_state NAME MODULE".split()
)
#: Attributes of other libraries' values.
_OF_OTHERS = frozenset("astype as_text at bar compile plot sum".split())
#: Names of an installed package, and of an earlier JAX.
_ELSEWHERE = {"fedjax_alg.experiments", "jax.tree_map"}
_CALLED = r"(?:\([^`]*\))?"
_DOTTED = r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)" + _CALLED
_IN_CODE = re.compile(f"``{_DOTTED}``")
_ON_PAGE = re.compile(f"(?<!`)`{_DOTTED}`(?!`)")


@functools.cache
def modules() -> dict[str, pathlib.Path]:
  """Module -> its file."""
  paths = {}
  for package in _PACKAGES:
    for path in sorted((_ROOT / package).rglob("*.py")):
      parts = path.relative_to(_ROOT).with_suffix("").parts
      paths[".".join(parts[:-1] if path.stem == "__init__" else parts)] = path
  return paths


@functools.cache
def load(module: str) -> Any:
  """The module; None if it needs a library that is not installed."""
  try:
    return importlib.import_module(module)
  except ImportError:
    return None


@functools.cache
def tree_of(module: str) -> ast.Module:
  return ast.parse(modules()[module].read_text("utf-8"))


@functools.cache
def modules_by_ending() -> dict[str, list[str]]:
  """Last parts of a module's name -> the modules."""
  endings = collections.defaultdict(list)
  for module in modules():
    parts = module.split(".")
    for first in range(len(parts)):
      endings[".".join(parts[first:])].append(module)
  return endings


@functools.cache
def attributes() -> dict[tuple[str, str], set[str]]:
  """(module, class) -> its fields and methods, and what methods set on self."""
  table = {}
  for module in modules():
    for node in ast.walk(tree_of(module)):
      if isinstance(node, ast.ClassDef):
        table[module, node.name] = {
          getattr(part, "name", "") or getattr(part, "attr", "") or part.target.id
          for part in ast.walk(node)
          if isinstance(part, ast.FunctionDef)
          or (isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name))
          or (
            isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "self"
          )
        }
  return table


@functools.cache
def classes() -> dict[str, list[type]]:
  """Name -> our classes."""
  table = collections.defaultdict(list)
  for module, name in attributes():
    value = getattr(load(module), name, None)
    if isinstance(value, type):
      table[name].append(value)
  return table


@functools.cache
def members() -> frozenset[str]:
  """The attributes of all classes."""
  return frozenset().union(*attributes().values())


def has_attribute(value: Any, name: str) -> bool:
  if not isinstance(value, type):
    return hasattr(value, name)
  return any(
    name in vars(base)
    or name in getattr(base, "__annotations__", ())
    or name in attributes().get((base.__module__, base.__name__), ())
    for base in value.__mro__
  )


def leads_on(value: Any, names: list[str]) -> bool:
  """Whether a value has these attributes, one of the other."""
  for name in names:
    if value is None or isinstance(value, property | functools.cached_property):
      return True  # its type is not known
    if not has_attribute(value, name):
      return False
    value = getattr(value, name, None)
  return True


@functools.cache
def identifiers() -> frozenset[str]:
  """All variables, arguments, attributes and functions of the code."""
  return frozenset(
    getattr(node, field)
    for module in modules()
    for node in ast.walk(tree_of(module))
    for field in ("id", "attr", "arg", "name")
    if isinstance(getattr(node, field, None), str)
  )


def exists(name: str, module: str = "") -> bool:
  """Whether a dotted name can be looked up.

  Args:
    name: the name.
    module: the module in which it stands; empty on a page.
  """
  parts = name.split(".")
  parts = [*_ALIASES.get(parts[0], parts[0]).split("."), *parts[1:]]
  if name in _ELSEWHERE or parts[0] in _FOREIGN or parts[-1] in _ENDINGS:
    return True
  for number in range(len(parts), 0, -1):
    for ours in modules_by_ending().get(".".join(parts[:number]), ()):
      if load(ours) is None or leads_on(load(ours), parts[number:]):
        return True
  if parts[0] in classes():
    return any(leads_on(kind, parts[1:]) for kind in classes()[parts[0]])
  if parts[0] in ("jax", "flax", "optax", "numpy", "sys"):
    for number in range(len(parts), 0, -1):
      if (library := load(".".join(parts[:number]))) is not None:
        return leads_on(library, parts[number:])
  if module and parts[0] in vars(load(module) or object):
    return leads_on(getattr(load(module), parts[0]), parts[1:])
  # A variable, whose attributes are those of a class of ours.
  return parts[0] in identifiers() and (members() | _OF_OTHERS).issuperset(parts[1:])


def texts(module: str) -> Iterator[tuple[int, str]]:
  """(line, text) of the docstrings and comments of a module."""
  for node in ast.walk(tree_of(module)):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
      yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
  source = modules()[module].read_text("utf-8")
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      yield token.start[0], token.string


@each("module", modules())
def test_names_in_docstrings_and_comments_are_there(module):
  wrong = [
    f"{modules()[module]}:{line}: {name}"
    for line, text in texts(module)
    for name in _IN_CODE.findall(text)
    if not exists(name, module)
  ]
  assert not wrong, wrong


@each("page", _PAGES)
def test_names_with_dots_on_pages_are_there(page):
  text = re.sub(r"```.*?```", "", (_ROOT / page).read_text("utf-8"), flags=re.S)
  wrong = [name for name in _ON_PAGE.findall(text) if not exists(name)]
  assert not wrong, wrong


@each(
  "name, expected",
  [
    ("rounds.clustered.Rule.extra", True),
    ("queue.run_queue", True),
    ("Trained.leaves", True),
    ("Sweep.best", True),
    ("cohort.everyone", True),
    ("jax.numpy.where", True),
    ("Trained.state", False),
    ("Sweep.of_settings", False),
    ("queue.walk_queue", False),
    ("cohort.nobody_at_all", False),
    ("jax.numpy.nowhere", False),
    ("nothing_of_ours.sum", False),
  ],
)
def test_a_wrong_name_is_noticed(name, expected):
  assert exists(name) == expected
