"""The core does without its extras, all of them and each."""

import ast
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import optional
from fedjax_alg.engine import clients
from fedjax_alg.errors import OptionError
from fedjax_alg.models import convolution
from fedjax_alg.testing import bench
from tests.test_imports import imports_of, modules_of

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_EXTRAS = "fedjax_alg.extras"
_MODULES = modules_of(_ROOT)


def extra_of(module):
  """The extra that a module is in; "" for a module of the core."""
  return module.removeprefix(f"{_EXTRAS}.").split(".")[0] if _EXTRAS in module else ""


def without_types(module):
  """The text of a module without what it imports for types alone."""
  tree = ast.parse(_MODULES[module].read_text("utf-8"))
  tree.body = [
    node
    for node in tree.body
    if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
  ]
  return ast.unparse(tree)


def test_the_table_has_all_extras():
  folder = _ROOT / "fedjax_alg" / "extras"
  found = {
    path.stem
    for path in folder.iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
  }
  assert {*optional.EXTRAS} == found - {"__init__"}


def test_nothing_imports_an_extra_but_the_extra(tmp_path):
  """Not within a function either: ``optional`` is the only way."""
  assert len(_MODULES) > 300
  for module, path in _MODULES.items():
    if module.startswith("benchmarks") or "extras" not in path.read_text("utf-8"):
      continue
    stripped = tmp_path / path.name
    stripped.write_text(without_types(module), "utf-8")
    for name in imports_of(module, _MODULES | {module: stripped}):
      assert extra_of(name) in ("", extra_of(module)), (module, name)


def test_what_is_loaded_is_there():
  """The literals of all calls, and what they are asked for by name."""
  loaded = {module for module, _ in optional.PUBLIC.values()}
  for module, path in _MODULES.items():
    text = path.read_text("utf-8")
    if module.startswith("benchmarks") or "optional" not in text:
      continue
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "optional.load_extra",
        "optional.find_extra",
      ):
        assert isinstance(node.args[0], ast.Constant) or module == "fedjax_alg"
        if isinstance(node.args[0], ast.Constant):
          loaded.add(node.args[0].value)
  assert {name.partition(".")[0] for name in loaded} == {*optional.EXTRAS}
  for name in loaded:
    assert f"{_EXTRAS}.{name}" in _MODULES, name


def test_public_names_are_those_that_types_know():
  typed = {
    alias.asname or alias.name: (node.module.removeprefix(f"{_EXTRAS}."), alias.name)
    for node in ast.walk(ast.parse(_MODULES["fedjax_alg"].read_text("utf-8")))
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_EXTRAS)
    for alias in node.names
  }
  assert typed == optional.PUBLIC
  assert {*optional.PUBLIC} <= {*fa.__all__} & {*dir(fa)}
  for name in optional.PUBLIC:
    assert getattr(fa, name) is getattr(fa, name)
  with pytest.raises(AttributeError, match="has no attribute 'forgets'"):
    _ = fa.forgets  # type: ignore[attr-defined]


@pytest.fixture(name="deleted")
def fixture_deleted(monkeypatch):
  """All extras are gone."""
  for name in [name for name in sys.modules if name.startswith(_EXTRAS)]:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setattr(sys, "meta_path", [_Blocks(_EXTRAS), *sys.meta_path])


class _Blocks:
  """A finder that knows that a module is not there."""

  def __init__(self, module):
    self.module = module

  def find_spec(self, name, path=None, target=None):
    del path, target
    if f"{name}.".startswith(f"{self.module}."):
      raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_derivatives_without_the_convolutions_are_those_of_xla(deleted):
  del deleted
  rng = np.random.default_rng(0)
  x, kernel = (
    jnp.asarray(rng.normal(size=shape), jnp.float32)
    for shape in ((3, 6, 5, 2), (3, 3, 2, 4))
  )

  def slope(way):
    return jax.jit(
      jax.grad(lambda x, kernel: jnp.sin(way(x, kernel, "SAME", 1)).sum(), (0, 1))
    )

  text = slope(convolution.convolve).lower(x, kernel).as_text()
  assert text.count("stablehlo.convolution") == 3
  for ours, xlas in zip(
    slope(convolution.convolve)(x, kernel), slope(convolution.by_xla)(x, kernel)
  ):
    np.testing.assert_array_equal(ours, xlas)


def test_a_mode_without_lanes(deleted):
  """What auto chooses is there; who names lanes is refused before a program is."""
  del deleted
  assert clients.default_mode("gpu", 2.2e6, 100, 10) == "vmap"
  assert clients.default_mode("tpu") == "vmap"
  with pytest.raises(OptionError, match="^map_clients=lanes: needs fedjax_alg.extras"):
    clients.ClientMap("lanes")


@pytest.mark.program
def test_a_method_is_checked_without_lanes(deleted):
  """Against the map that trains all clients of a device at once."""
  del deleted
  assert bench.map_of_several().mode == "vmap"
  findings = [*fa.testing.check("fedavg")]
  assert len(findings) == len(fa.testing.cases())
  assert not [finding for finding in findings if finding.sentence]


def test_a_missing_library_is_not_a_missing_extra(monkeypatch):
  def fail(name):
    raise ModuleNotFoundError(f"for {name}", name="flwr")

  monkeypatch.setattr(importlib, "import_module", fail)
  with pytest.raises(ModuleNotFoundError, match="for fedjax_alg.extras.flower"):
    optional.load_extra("flower.flower", "export")


#: Imports all of the core, makes a run, and asks for every extra.
_WITHOUT = """
import contextlib, importlib, io, json, sys
# An editable installation would find the extras of the repository.
sys.meta_path[:] = [
  of for of in sys.meta_path if "__editable__" not in getattr(of, "__module__", "")
]
for name in json.loads(sys.argv[1]):
  try:
    importlib.import_module(name)
  except ModuleNotFoundError as error:  # a library that need not be there
    assert error.name.split(".")[0] not in ("fedjax_alg", "experiments"), (name, error)
import fedjax_alg as fa
import experiments.__main__
fed = fa.federate("digits", partition="classes", num_clients=10)
small = dict(cohort_size=4, rounds=2, seeds=1)
answers = {"run": fa.run("fedavg", fed, **small).state_hash()}
def lines(name, call):
  try:
    call()
  except fa.OptionError as error:
    answers[name] = str(error)
for name in json.loads(sys.argv[2]):
  lines(name, lambda: getattr(fa, name))
lines("generate", lambda: fa.models.generate)
lines("lora", lambda: fa.run("fedavg", fed, model="mlp", lora="fedit:2", **small))
lines("backbones", lambda: fa.federate("digits", features="backbone"))
lines("lanes", lambda: fa.run("fedavg", fed, map_clients="lanes", **small))
lines("pods", lambda: fa.distributed("localhost:1234", 2, 0))
words = "--algorithm=fedavg --dataset=digits --num_clients=10 --rounds=2".split()
for name, more in (
  ("export", ["--to=flower", "--out=app", *words]),
  ("audit", [*words, "--private=fixed"]),
  ("tune", [*words, "--tune_by_gradient=client_lr", "--validation_clients=2"]),
):
  stream = io.StringIO()
  with contextlib.redirect_stderr(stream):
    assert experiments.__main__.main([name, *more])
  answers[f"fedjax-alg {name}"] = stream.getvalue()
print(json.dumps(answers))
"""


@pytest.mark.program
def test_a_core_whose_extras_are_deleted(tmp_path):
  for folder in ("fedjax_alg", "experiments"):
    shutil.copytree(
      _ROOT / folder,
      tmp_path / folder,
      ignore=shutil.ignore_patterns("extras", "__pycache__"),
    )
  core = [
    name
    for name in _MODULES
    if not extra_of(name) and name.split(".")[0] in ("fedjax_alg", "experiments")
    if not name.startswith("experiments.reproduction") and "__main__" not in name
  ]
  done = subprocess.run(
    [sys.executable, "-c", _WITHOUT, json.dumps(core), json.dumps([*optional.PUBLIC])],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    check=False,
  )
  assert not done.returncode, done.stderr
  answers = json.loads(done.stdout.splitlines()[-1])
  fed = fa.federate("digits", partition="classes", num_clients=10)
  whole = fa.run("fedavg", fed, cohort_size=4, rounds=2, seeds=1)
  assert answers.pop("run") == whole.state_hash()
  needs = {
    **{
      name: (f"fa.{name}", of.split(".")[0])
      for name, (of, _) in optional.PUBLIC.items()
    },
    "generate": ("fa.models.generate", "generation"),
    "lora": ("lora=fedit:2", "lora"),
    "backbones": ("features=backbone", "backbones"),
    "lanes": ("map_clients=lanes", "lanes"),
    "pods": ("coordinator=localhost:1234", "pods"),
    "fedjax-alg export": ("error: export", "flower"),
    "fedjax-alg audit": ("error: audit", "audit"),
    "fedjax-alg tune": ("error: --tune_by_gradient", "gradients"),
  }
  assert {name: text.strip() for name, text in answers.items()} == {
    name: f"{wanted}: needs {_EXTRAS}.{extra}, which is not installed"
    for name, (wanted, extra) in needs.items()
  }


#: Imports all modules of the extras but one, for each.
_WITHOUT_ONE = """
import importlib, json, sys
class Blocks:
  def find_spec(self, name, path=None, target=None):
    if f"{name}.".startswith(f"fedjax_alg.extras.{blocked}."):
      raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import fedjax_alg
assert "fedjax_alg.extras" not in sys.modules
sys.meta_path.insert(0, Blocks())
extras = json.loads(sys.argv[1])
for blocked, wanted in extras.items():
  for name in [name for name in sys.modules if name.startswith("fedjax_alg.extras")]:
    del sys.modules[name]
  for extra, modules in extras.items():
    found = [fedjax_alg.optional.find_extra(module) is not None for module in modules]
    assert found == [extra != blocked] * len(modules), (blocked, extra, found)
"""


@pytest.mark.program
def test_an_extra_does_without_each_other():
  extras = {extra: [] for extra in optional.EXTRAS}
  for name in _MODULES:
    if name != _EXTRAS and extra_of(name):
      extras[extra_of(name)].append(name.removeprefix(f"{_EXTRAS}."))
  subprocess.run(
    [sys.executable, "-c", _WITHOUT_ONE, json.dumps(extras)],
    cwd=_ROOT,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
    check=True,
  )
