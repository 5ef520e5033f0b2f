"""The pages that name other libraries: what they say of this one is true."""

import ast
import inspect
import pathlib
import re

import pytest

from experiments.cli import flags
import fedjax_alg as fa
from fedjax_alg import errors, models, registry, trackers

pytestmark = pytest.mark.fast

ROOT = pathlib.Path(__file__).parents[2]
CHECKED = (ROOT / "docs" / "checked.md").read_text("utf-8")
COMING = (ROOT / "docs" / "coming_from.md").read_text("utf-8")


def rows(text):
  """The cells of every row of the tables of a page, without heads."""
  for line in text.splitlines():
    if line.startswith("| ") and not line.startswith(("| method |", "| topic |")):
      yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_mistake_has_a_thread_and_a_test_that_is_there():
  threads = 0
  for *_, mistake, _, test in rows(CHECKED):
    path, _, name = test.strip("`").partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test
    links = re.findall(r"\[([^]]*)\]\((?!glossary)(\S+?)\)", mistake)
    for label, link in links:
      thread = re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/\w+/(\d+)", link)
      assert thread is None or label.endswith(f" {thread[1]}"), link
      assert thread or "/blob/" in link, link
    threads += bool(links)
  assert threads >= 25


def test_fedbn_needs_a_normalization_layer():
  fed = fa.federate("digits", partition="classes", num_clients=10)
  with pytest.raises(fa.OptionError, match="personal:norm: matches no parameter"):
    fa.run("fedbn", fed, model="mlp", rounds=1, cohort_size=2)


#: Keywords of functions that are no options of a run or a federation.
KEYWORDS = {
  *inspect.signature(fa.run).parameters,
  *inspect.signature(fa.federate).parameters,
  *inspect.signature(fa.from_hf).parameters,
}


def test_the_names_beside_those_of_other_libraries_are_there():
  known = {*flags.known_flags(), *flags.hyper_fields()}
  assert len(list(rows(COMING))) > 55
  for theirs, ours in rows(COMING):
    flags_here = re.findall(r"--(\w+)", ours)
    assert known.issuperset(flags_here), ours
    # A part has fields: --partition=natural:test_share=0.25.
    for name in re.findall(r"\b(\w+)=", re.sub(r"--\w+=(\w+:\w+=)?", "", ours)):
      assert name in known | KEYWORDS, (name, ours)
    for module, name in re.findall(
      r"\b(fa|models|trackers|result)\.(?!md\b)(\w+)", ours
    ):
      place = {"fa": fa, "models": models, "trackers": trackers, "result": fa.RunResult}
      assert hasattr(place[module], name), ours
    for name in re.findall(r'fa\.run\("(\w+)"|--algorithm=(\w+)', ours):
      assert "".join(name) in registry.ALGORITHMS, ours
    # A flag of theirs that is typed here leads to ours.
    flags_there = re.findall(r"--(\w+)", theirs)
    if len(flags_there) == len(flags_here) == 1 and "new_clients" not in theirs:
      assert errors.closest(flags_there[0], sorted(known)) == flags_here[0], theirs
