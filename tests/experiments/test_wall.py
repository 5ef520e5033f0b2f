"""What users run does not import what serves the papers."""

import ast
import functools
import pathlib
import subprocess
import sys

from tests.each import each

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_EXPERIMENTS = _ROOT / "experiments"
_WALLED = "experiments.reproduction"
#: Commands that do without the papers.
_COMMANDS = (
  "run",
  "sweep",
  "status",
  "compare",
  "tune",
  "export",
  "audit",
  "advise",
  "card",
  "judge",
  "demo",
  "prepare",
  "check",
  "forget",
  "contributions",
  "completion",
)
#: The others: each serves papers, and may import what it likes.
_OF_PAPERS = (
  "analytic",
  "beyond",
  "conjugate",
  "diversified",
  "fedgroup",
  "publish",
  "trust",
)
#: Doors: (module, module behind the wall) imported where a flag asks for it.
_DOORS = {("experiments.tune", "experiments.reproduction.tune_paper")}  # --paper
_ROOMS = ("drawing", "cli", "reports", "reproduction")


def _modules():
  """Module -> its file, of all modules of the commands."""
  return {
    ".".join(path.relative_to(_ROOT).with_suffix("").parts): path
    for path in _EXPERIMENTS.rglob("*.py")
    if path.stem != "__init__"
  }


@functools.cache
def _import_statements(path):
  return [
    node
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.Import | ast.ImportFrom)
  ]


def _imports(module, path, modules):
  """The modules that one imports anywhere, within functions, too."""
  package = module.split(".")[:-1]
  imported = set()
  for node in _import_statements(path):
    if isinstance(node, ast.Import):
      imported.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) - node.level + 1] if node.level else []
      base = ".".join([*base, *filter(None, [node.module])])
      for alias in node.names:
        name = f"{base}.{alias.name}"
        imported.add(name if name in modules else base)
  return imported


def test_every_command_is_on_one_side():
  commands = {path.stem for path in _EXPERIMENTS.glob("[a-z]*.py")}
  assert commands == {*_COMMANDS, *_OF_PAPERS}


@each("command", _COMMANDS)
def test_no_path_of_imports_leads_from_a_command_to_the_papers(command):
  modules = _modules()
  waiting = [(f"experiments.{command}",)]
  visited = set()
  while waiting:
    path = waiting.pop()
    if path[-1] in visited or path[-1] not in modules:
      continue
    visited.add(path[-1])
    for name in _imports(path[-1], modules[path[-1]], modules):
      if (path[-1], name) not in _DOORS:
        assert not name.startswith(_WALLED), " -> ".join([*path, name])
        waiting.append((*path, name))
  assert f"experiments.{command}" in visited


def test_commands_start_without_the_papers():
  """In a fresh interpreter, whatever imports what by name."""
  program = (
    "import importlib, sys\n"
    f"for name in {_COMMANDS}:\n"
    "  importlib.import_module(f'experiments.{name}')\n"
    f"  walled = [m for m in sys.modules if m.startswith({_WALLED!r})]\n"
    "  assert not walled, (name, walled)\n"
    "assert 'experiments.reports.markdown' in sys.modules\n"
  )
  subprocess.run([sys.executable, "-c", program], check=True, cwd=_ROOT, timeout=120)


def test_only_what_serves_papers_needs_templates():
  """Jinja is no dependency of what is installed."""
  modules = _modules() | {
    str(path): path for path in (_ROOT / "fedjax_alg").rglob("*.py")
  }
  importing = {
    module
    for module, path in modules.items()
    for name in _imports(module, path, modules)
    if name.partition(".")[0] == "jinja2"
  }
  assert importing == {f"{_WALLED}.pages"}


def test_rooms_import_downwards():
  """drawing <- cli <- reports <- reproduction <- the commands."""
  modules = _modules()
  order = {f"experiments.{room}": n for n, room in enumerate(_ROOMS)}
  for module, path in modules.items():
    place = order.get(".".join(module.split(".")[:2]), len(_ROOMS))
    for name in _imports(module, path, modules):
      if name.startswith("experiments."):
        other = order.get(".".join(name.split(".")[:2]), len(_ROOMS))
        assert other <= place, f"{module} -> {name}"
