"""Algorithms, models and samplers in files of the user's own."""

import sys

import pytest

from fedjax_alg import own
from fedjax_alg.errors import OptionError
from tests.each import each

pytestmark = pytest.mark.fast


@pytest.fixture(name="folder")
def fixture_folder(tmp_path, monkeypatch):
  """The current folder, empty; what is imported from it is forgotten."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", sys.path[:])
  before = set(sys.modules)
  yield tmp_path
  for name in set(sys.modules) - before:
    if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
      del sys.modules[name]


def write(folder, name, text):
  path = folder / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, encoding="utf-8")
  return path


def test_a_file_and_a_module_of_the_current_folder(folder):
  path = write(
    folder, "deep/mine_a.py", "import mine_b\nclass A:\n  value = mine_b.B + 1\n"
  )
  write(folder, "deep/mine_b.py", "B = 2\n")
  write(folder, "mine_pack/mod.py", "C = 5\n")
  for text in ("deep/mine_a.py:A.value", f"{path}:A.value"):
    value, source = own.load(text, "algorithm")
    assert value == 3 and source.file == str(path)
  assert own.load("mine_pack.mod:C", "model")[0] == 5
  assert own.is_own("deep/mine_a.py:A") and not own.is_own("fedavg")
  assert (
    own.load("deep/mine_a.py:A", "model")[0] is own.load(f"{path}:A", "algorithm")[0]
  )


def test_a_file_without_the_name_in_it(folder):
  write(folder, "mine_n.py", "import os\nA = 1\n_B = 2\ndef f(): pass\n")
  own.refuse_nameless("mine_n.py:A", "model")
  own.refuse_nameless("mlp", "model")
  with pytest.raises(
    OptionError,
    match=(
      "^model=mine_n.py: a file needs the name in it: mine_n.py:NAME "
      r"\(it has A, f\)$"
    ),
  ):
    own.refuse_nameless("mine_n.py", "model")


def test_what_a_file_imports_from_its_folder_counts(folder):
  write(folder, "one/mine_e.py", "import numpy\nfrom mine_h import H\n")
  write(folder, "one/mine_h.py", "import mine_i\nH = mine_i.I\n")
  write(folder, "one/mine_i.py", "I = 1\n")
  path = write(folder, "two/mine_e.py", "from mine_h import H\nimport mine_h\n")
  write(folder, "two/mine_h.py", "H = 2\n")
  _, first = own.load("one/mine_e.py:numpy", "model")
  with pytest.raises(
    OptionError,
    match=(
      f"^model={path}:H: it imports mine_h, which is .*one/mine_h.py in this "
      "process, not .*two/mine_h.py; give one"
    ),
  ):
    own.load(f"{path}:H", "model")
  write(folder, "one/mine_i.py", "I = 3\n")
  for name in [name for name in sys.modules if name.startswith("mine_")]:
    del sys.modules[name]
  own._of_file.cache_clear()  # as in another process
  assert own.load("one/mine_e.py:H", "model")[0] == 3
  assert own.load("one/mine_e.py:numpy", "model")[1].sha256 != first.sha256


def test_what_a_module_imports_from_its_folder_counts(folder):
  write(folder, "mine_p/one.py", "import json\nfrom .two import T\n")
  write(folder, "mine_p/two.py", "from . import three\nT = three.T\n")
  write(folder, "mine_p/three.py", "T = 1\n")
  write(folder, "mine_p/json.py", "T = 1\n")  # another one than that of Python
  write(folder, "mine_p/alone.py", "import json\nT = 1\n")

  def load(name):
    for module in [module for module in sys.modules if module.startswith("mine_p")]:
      del sys.modules[module]
    own._of_module.cache_clear()  # as in another process
    return own.load(f"mine_p.{name}:T", "model")

  _, first = load("one")
  assert load("alone")[1] == own.source_of("mine_p/alone.py")
  write(folder, "mine_p/three.py", "T = 23\n")
  value, second = load("one")
  assert value == 23 and second.file == first.file and second.sha256 != first.sha256


def test_a_file_that_changes_is_loaded_again(folder):
  path = write(folder, "mine_c.py", "C = 1\n")
  first, old = own.load("mine_c.py:C", "model")
  path.write_text("C = 2\n", encoding="utf-8")
  second, new = own.load("mine_c.py:C", "model")
  assert (first, second) == (1, 2)
  assert old.file == new.file and old.sha256 != new.sha256


def test_the_sources_of_what_is_named(folder):
  path = write(folder, "mine_d.py", "D = 1\n")
  sources = own.sources(algorithm="fedavg", model="mine_d.py:D", sampling=None)
  assert own.as_facts(sources) == {
    "model": {"file": str(path), "sha256": own.source_of("mine_d.py").sha256}
  }
  assert len(sources["model"].sha256) == 64
  assert own.source_of("nowhere.py").sha256 == ""


@each(
  "text, pattern",
  [
    ("nowhere.py:A", "there is no file .*nowhere.py"),
    ("mine_nowhere.mod:A", "there is no module mine_nowhere, here or"),
    ("mine_e.py:Ent", "mine_e.py has no Ent, did you mean 'ENTRY'"),
    ("mine_e.py:ENTRY.x", "mine_e.py has no ENTRY.x"),
    ("mine_e.py:", "must be path/to/file.py:NAME or package.module:NAME"),
    (":A", "must be path/to/file.py:NAME"),
    ("mine_e.txt/x:A", "must be path/to/file.py:NAME"),
    ("mine_e.py:a b", "must be path/to/file.py:NAME"),
    (
      "mine_f.py:A",
      r"importing it fails \(NameError: name 'gone' is not "
      r"defined, .*mine_f.py line 3\)",
    ),
    ("mine_f:A", r"importing it fails \(NameError: .*mine_f.py line 3\)"),
    ("mine_g.py:A", r"importing it fails \(SyntaxError"),
    ("mine_h.py:A", r"importing it fails \(SystemExit: 3"),
    (
      "mine_i.py:A",
      r"importing it fails \(ModuleNotFoundError: No module "
      "named 'mine_missing'",
    ),
    ("mine_j.py:A", r"importing it fails \(E: x, .*mine_j.py line 3\)"),
    ("mine_k.py:A", r"importing it fails \(RuntimeError: A, .*line 2\)"),
    ("mine_l.py:A", r"importing it fails \(RecursionError"),
    ("mine_o.py:A", r"importing it fails \(SystemExit: 0, .*line 3\)"),
    ("mine_m.py:A", "there is no file .*mine_m.py"),
  ],
)
def test_refused_in_one_line(folder, text, pattern):
  write(folder, "mine_e.py", "ENTRY = 1\n")
  write(folder, "mine_f.py", "A = 1\n\nB = gone\n")
  write(folder, "mine_g.py", "A = (\n")
  write(folder, "mine_h.py", "raise SystemExit(3)\n")
  write(folder, "mine_i.py", "import mine_missing\n")
  write(folder, "mine_j.py", "class E(BaseException):\n  pass\nraise E('x')\n")
  write(folder, "mine_k.py", "def __getattr__(name):\n  raise RuntimeError(name)\n")
  write(folder, "mine_l.py", "def f():\n  f()\nf()\n")
  write(folder, "mine_o.py", "import sys\ndef __getattr__(name):\n  sys.exit(0)\n")
  if not (folder / "mine_m.py").is_symlink():
    (folder / "mine_m.py").symlink_to("mine_m.py")  # a circle
  with pytest.raises(OptionError, match=f"^algorithm={text}: {pattern}") as error:
    own.load(text, "algorithm")
  assert "\n" not in str(error.value)
