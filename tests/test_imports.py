"""No module imports, through others, itself.

An import within a function, or for annotations alone, closes a circle as well: who
reads one of the modules has to read the other first, and neither can be moved.
"""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ("fedjax_alg", "experiments", "benchmarks")


def modules_of(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """Module or package -> its file."""
  modules = {}
  for package in _PACKAGES:
    for path in sorted((root / package).rglob("*.py")):
      parts = path.relative_to(root).with_suffix("").parts
      modules[".".join(parts[:-1] if path.stem == "__init__" else parts)] = path
  return modules


def imports_of(module: str, modules: dict[str, pathlib.Path]) -> set[str]:
  """The modules of ours that a module names in any import statement."""
  path, imported = modules[module], set()
  package = module.split(".")
  if path.stem != "__init__":
    package.pop()
  for node in ast.walk(ast.parse(path.read_text("utf-8"))):
    if isinstance(node, ast.Import):
      imported.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) - node.level + 1] if node.level else []
      source = ".".join([*base, *filter(None, [node.module])])
      for alias in node.names:
        name = f"{source}.{alias.name}"
        imported.add(name if name in modules else source)
  return {name for name in imported if name in modules and name != module}


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
  """A path from a module back to itself for each one that has a circle."""

  def path_back(start: str) -> list[str] | None:
    waiting, visited = [[start]], set()
    while waiting:
      path = waiting.pop(0)
      for name in sorted(imports[path[-1]]):
        if name == start:
          return [*path, start]
        if name not in visited:
          visited.add(name)
          waiting.append([*path, name])
    return None

  return [path for start in imports if (path := path_back(start))]


@pytest.mark.program
def test_no_import_closes_a_circle():
  modules = modules_of(_ROOT)
  imports = {module: imports_of(module, modules) for module in modules}
  assert "fedjax_alg.base" in imports["fedjax_alg.engine.round"]
  paths = [" -> ".join(path) for path in circles(imports)]
  assert not paths, paths


def test_circles_are_noticed_wherever_the_import_stands(tmp_path):
  """Without it a reader of these modules might follow no import."""
  sources = {
    "__init__": "from fedjax_alg.a import x",
    "a": "import fedjax_alg.b as b\nx = 1",
    "b": "def f():\n  from fedjax_alg import c",
    "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from .a import x",
    "d": "from . import a",
  }
  (tmp_path / "fedjax_alg").mkdir()
  for name, text in sources.items():
    (tmp_path / "fedjax_alg" / f"{name}.py").write_text(text, "utf-8")
  modules = modules_of(tmp_path)
  imports = {module: imports_of(module, modules) for module in modules}
  assert sorted(circles(imports)) == [
    [f"fedjax_alg.{name}" for name in path] for path in ("abca", "bcab", "cabc")
  ]


#: pandas takes half a second to import, which is more than a small run needs.
_WITHOUT_PANDAS = """
import sys
import fedjax_alg as fa

def check(what):
  assert "pandas" not in sys.modules, what

check("import")
fed = fa.federate("digits", num_clients=10)
check("federate")
fa.run("fedncm", fed)
check("in memory")
fa.run("fedncm", fed, out_dir=sys.argv[1])
check("in a folder")
fa.load_run(sys.argv[1])
check("loaded")
from experiments import run
words = ["--algorithm=fedncm", "--dataset=digits", "--num_clients=10", "--noprogress"]
assert run.main([*words, f"--out_dir={sys.argv[1]}_command"]) == 0
check("on the command line")
"""


@pytest.mark.program
def test_a_run_does_without_pandas(tmp_path):
  folder = str(tmp_path / "run")
  run = subprocess.run(
    [sys.executable, "-c", _WITHOUT_PANDAS, folder], capture_output=True, text=True
  )
  assert run.returncode == 0, run.stderr
  for name in ("run", "run_command"):
    assert (tmp_path / name / "metrics.csv").exists()


def test_imports_go_downwards_as_the_page_on_architecture_says():
  """Who reads a module needs none that the page names after it."""
  page = (_ROOT / "docs" / "architecture.md").read_text("utf-8")
  _, _, part = page.partition("Imports only go downwards, in this order:\n\n")
  rank: dict[str, int] = {}
  for line in part.partition("\n\n")[0].splitlines():
    for names in line.partition(". ")[2].split("then "):
      rank |= dict.fromkeys(re.findall(r"\w+", names.replace(" and ", " ")), len(rank))
  modules, upwards, unnamed = modules_of(_ROOT), [], set()

  def place(module):
    top, *inner = module.split(".")
    return top if top != "fedjax_alg" else (inner or [""])[0]

  for module in modules:
    mine = place(module)
    if mine in ("", "_version", "extras", "benchmarks"):
      continue
    if mine not in rank:
      unnamed.add(mine)
      continue
    for name in imports_of(module, modules):
      its = place(name)
      if rank.get(its, -1) > rank[mine] or (its == "extras" and mine != "experiments"):
        upwards.append(f"{module} imports {name}")
  assert not unnamed and not upwards
