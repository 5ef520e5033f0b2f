"""Every module of the library has tests where one looks for them."""

import ast
import pathlib

import pytest

_TESTS = pathlib.Path(__file__).resolve().parent
_ROOT = _TESTS.parent

#: Modules that are tested through what they make up.
THROUGH_OTHERS = {
    "algorithms/common", "central/aggregation", "client/compression",
    "data/examples", "data/label_skew", "deploy/remote", "models/flops",
    "rounds/layerwise", "rounds/one_model"}

MODULES = {
    path.relative_to(_ROOT / "fedjax_alg").with_suffix("").as_posix(): path
    for path in sorted((_ROOT / "fedjax_alg").rglob("*.py"))
    if not path.stem.startswith("_")}


def _imported():
  """Names of what the tests import, parts of modules among them."""
  for path in _TESTS.rglob("test_*.py"):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
      if isinstance(node, ast.ImportFrom):
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


IMPORTED = set(_imported())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_tests(module):
  """A file of the same name, or a test that imports it."""
  room, _, name = module.rpartition("/")
  found = (_TESTS / room / f"test_{name}.py").is_file() or (
      f"fedjax_alg.{module}".replace("/", ".") in IMPORTED)
  assert found != (module in THROUGH_OTHERS), (
      f"write tests/{room}/test_{name}.py, or keep THROUGH_OTHERS true")


def test_what_is_tested_through_others_is_there():
  assert THROUGH_OTHERS <= set(MODULES)
