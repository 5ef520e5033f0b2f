"""The examples in docstrings are true."""

import doctest
import importlib
import pathlib

import pytest

import fedjax_alg

ROOT = pathlib.Path(fedjax_alg.__file__).parent
MODULES = sorted(
    ".".join(("fedjax_alg", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py") if ">>> " in path.read_text("utf-8"))


def test_there_are_examples():
  assert len(MODULES) >= 8
  assert "fedjax_alg.runs.api" in MODULES


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
  found = doctest.testmod(
      importlib.import_module(name), optionflags=doctest.ELLIPSIS)
  assert found.attempted and not found.failed
