"""The arguments that a docstring lists are those of its signature."""

import ast
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = ("fedjax_alg", "experiments", "benchmarks", "docs", "tests")
_FILES = sorted(
  path.relative_to(_ROOT).as_posix()
  for folder in _FOLDERS
  for path in (_ROOT / folder).rglob("*.py")
  if "_build" not in path.parts and "Args:" in path.read_text("utf-8")
)

#: A builder's own arguments are the same for every method (``registry.Entry``).
_BUILDER = {"model", "hparams", "map_clients"}
#: Oracles say of their arguments what is not in the paper.
_PARTLY = {"tests/reference/analytic.py:solve_layer"}


def _described(docstring: str) -> list[str]:
  """The names in the section Args, without their stars."""
  _, head, rest = docstring.partition("\nArgs:\n")
  block = re.split(r"\n(?=\S)", rest)[0] if head else ""
  return [
    name.strip(" *")
    for line in block.split("\n")
    if (found := re.match(r"  ((?:\*{0,2}\w+(?:, )?)+):", line))
    for name in found[1].split(",")
  ]


def _parameters(node: ast.AST) -> set[str]:
  """What a function takes, or a class when it is made."""
  if isinstance(node, ast.ClassDef):
    made = [
      one
      for one in node.body
      if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")
    ]
    return {
      one.target.id
      for one in node.body
      if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }.union(*map(_parameters, made))
  assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
  of = node.args
  return {
    one.arg
    for one in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg)
    if one
  } - {"self", "cls"}


def _wrong(text: str, name: str) -> list[str]:
  """What does not fit in the docstrings of a file."""
  out = []
  for node in ast.walk(ast.parse(text)):
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
      continue
    described, takes = _described(ast.get_docstring(node) or ""), _parameters(node)
    if not described:
      continue
    rest = takes.difference(described)
    if rest == _BUILDER or f"{name}:{node.name}" in _PARTLY:
      rest = set()
    out += [
      f"{name}:{node.lineno} {node.name}: {word} {', '.join(names)}"
      for word, names in (
        ("takes no", [one for one in described if one not in takes]),
        ("does not describe", sorted(rest)),
      )
      if names
    ]
  return out


@pytest.mark.fast
@pytest.mark.parametrize("name", _FILES)
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
