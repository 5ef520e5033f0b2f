"""Names are nouns and verbs of the field.

``found``, ``own``, ``given`` say nothing of what they hold, and a reader has to
decode them. What is left of them is in files of old runs or in the interface;
``LEFT`` may only become shorter.
"""

import ast
import collections
import functools
import pathlib

import pytest

pytestmark = pytest.mark.program  # all modules are read


ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("fedjax_alg", "experiments", "benchmarks", "docs", "tests")

#: Words that are no name of a value, of an argument or of a function.
WORDS = frozenset(
  "found own kept held said given made known taken asked left there more one here "
  "whole each other further again alike rest apart beside what who how like played "
  "judged shown drawn chosen sent moved fitted joined weighed shortened equipped "
  "counted alone named lacking wanted placed parted stretch".split()
)
#: Most bindings of such words, and functions that begin with a participle.
MOST_WORDS, MOST_PARTICIPLES = 0.005, 0.03
#: Public names that modules share: commands, and what own algorithms import.
SHARED_NAMES = {"main", "sgd"}
_IRREGULAR = frozenset(
  "made given held kept taken drawn shown sent built found cut known said put chosen "
  "written begun done gone hidden lost met paid seen told understood".split()
)
_NO_PARTICIPLES = frozenset("need seed feed speed exceed embed hundred shared".split())


@functools.cache
def all_names() -> tuple[list[str], list[str]]:
  """Lists the names that are bound in all files, and those of functions."""
  names, functions = [], []
  for folder in FOLDERS:
    for path in sorted((ROOT / folder).rglob("*.py")):
      if "_build" in path.parts:
        continue
      for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if name := bound(node):
          names.append(name)
        if isinstance(node, ast.FunctionDef):
          functions.append(node.name)
  return names, functions


def bound(node: ast.AST) -> str | None:
  """Returns the name that a node binds."""
  if isinstance(node, ast.Name):
    return node.id if isinstance(node.ctx, ast.Store) else None
  if isinstance(node, ast.arg):
    return node.arg
  if isinstance(node, ast.alias):
    return node.asname
  if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
    return node.name
  return None


def is_participle(name: str) -> bool:
  """Tells whether a function is called by what has been done."""
  first = name.lstrip("_").split("_")[0]
  return first in _IRREGULAR or (
    len(first) > 4
    and first.endswith("ed")
    and first not in _NO_PARTICIPLES
    and not first.startswith("fed")
  )


def test_names_are_not_words_that_a_reader_must_decode():
  names, _ = all_names()
  counts = collections.Counter(
    name for name in names if name.strip("_").lower() in WORDS
  )
  assert counts.total() <= MOST_WORDS * len(names), counts.most_common(20)


def test_functions_do_something():
  names = [name for name in all_names()[1] if not name.startswith("test_")]
  participles = [name for name in names if is_participle(name)]
  assert len(participles) <= MOST_PARTICIPLES * len(names), participles


def test_a_public_name_has_one_module():
  """A search for a name finds one definition."""
  modules = collections.defaultdict(list)
  for folder in ("fedjax_alg", "experiments"):
    for path in sorted((ROOT / folder).rglob("*.py")):
      for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
          modules[node.name].append(str(path.relative_to(ROOT)))
  shared = {name: paths for name, paths in modules.items() if len(set(paths)) > 1}
  assert shared.keys() <= SHARED_NAMES, shared
