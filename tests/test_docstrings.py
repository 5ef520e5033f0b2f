"""The arguments that a docstring lists are those of its signature."""

import ast
import pathlib
import re

import pytest

from tests.each import each

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = ("fedjax_alg", "experiments", "benchmarks", "docs", "tests")
_FILES = sorted(
  path.relative_to(_ROOT).as_posix()
  for folder in _FOLDERS
  for path in (_ROOT / folder).rglob("*.py")
  if "_build" not in path.parts and "Args:" in path.read_text("utf-8")
)

#: A builder's own arguments are the same for every method (``registry.Entry``).
_BUILDER = {"model", "hparams", "map_clients", "exchange"}
#: Oracles say of their arguments what is not in the paper.
_PARTLY = {"tests/reference/analytic.py:solve_layer"}


def _arg_names(docstring: str) -> list[str]:
  """The names in the section Args, without their stars."""
  _, head, section = docstring.partition("\nArgs:\n")
  block = re.split(r"\n(?=\S)", section)[0] if head else ""
  return [
    name.strip(" *")
    for line in block.split("\n")
    if (match := re.match(r"  ((?:\*{0,2}\w+(?:, )?)+):", line))
    for name in match[1].split(",")
  ]


def _parameters(node: ast.AST) -> set[str]:
  """What a function takes, or a class when it is made."""
  if isinstance(node, ast.ClassDef):
    constructors = [
      statement
      for statement in node.body
      if isinstance(statement, ast.FunctionDef)
      and statement.name in ("__init__", "__new__")
    ]
    return {
      statement.target.id
      for statement in node.body
      if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }.union(*map(_parameters, constructors))
  assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
  of = node.args
  return {
    argument.arg
    for argument in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg)
    if argument
  } - {"self", "cls"}


def _wrong(text: str, name: str) -> list[str]:
  """What does not fit in the docstrings of a file."""
  out = []
  for node in ast.walk(ast.parse(text)):
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
      continue
    described, takes = _arg_names(ast.get_docstring(node) or ""), _parameters(node)
    if not described:
      continue
    missing = takes.difference(described)
    if missing == _BUILDER or f"{name}:{node.name}" in _PARTLY:
      missing = set()
    out += [
      f"{name}:{node.lineno} {node.name}: {word} {', '.join(names)}"
      for word, names in (
        ("takes no", [argument for argument in described if argument not in takes]),
        ("does not describe", sorted(missing)),
      )
      if names
    ]
  return out


@pytest.mark.fast
@each("name", _FILES)
def test_a_docstring_describes_the_arguments_that_there_are(name):
  """A name that does not exist, or one without a word, misleads its reader."""
  assert not _wrong((_ROOT / name).read_text("utf-8"), name)


@pytest.mark.fast
def test_a_wrong_name_is_noticed():
  text = '''
def add(rounds, *more, last=0):
  """Adds.

  Args:
    rounds: the rounds.
    run: {}
      two lines.
    *more, last: the others.

  Returns:
    sum: of all.
  """
'''
  assert _wrong(text, "a") == ["a:2 add: takes no run"]
  assert _wrong(text.replace("    run: {}\n      two lines.\n", ""), "a") == []
  assert _wrong(text.replace("*more, last:", "*more:"), "a") == [
    "a:2 add: takes no run",
    "a:2 add: does not describe last",
  ]
