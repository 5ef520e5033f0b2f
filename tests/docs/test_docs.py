"""The code on the documentation's pages runs."""

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedjax_alg import registry

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(name="clean_registry")
def _clean_registry():
  before = dict(registry.ALGORITHMS)
  yield
  registry.ALGORITHMS.clear()
  registry.ALGORITHMS.update(before)


def test_worked_example_runs(tmp_path, clean_registry):
  del clean_registry
  text = (ROOT / "docs" / "add_an_algorithm.md").read_text("utf-8")
  blocks = re.findall(r"```python\n(.*?)```", text, re.S)
  assert len(blocks) >= 5
  names = {"out_dir": tmp_path / "run", "__name__": "worked_example"}
  for block in blocks:
    exec(compile(block, "add_an_algorithm.md", "exec"), names)
  assert (tmp_path / "run" / "summary.json").is_file()


def test_the_models_of_the_page_are_models():
  text = (ROOT / "docs" / "models.md").read_text("utf-8")
  blocks = re.findall(r"```python\n(.*?)```", text, re.S)
  assert len(blocks) == 5
  names = {"__name__": "models_page"}
  for block in blocks:
    exec(compile(block, "models.md", "exec"), names)
  logits = names["mine"].apply(names["init"](jax.random.key(0)), names["x"])
  y = jnp.arange(5, dtype=jnp.int32)
  expected = [sum(max(0.0, 1 + row[k] - row[label]) for k in range(10)
                  if k != label) for row, label in zip(np.asarray(logits), y)]
  np.testing.assert_allclose(names["hinge"](logits, y), expected, rtol=1e-5)


@pytest.mark.fast
def test_pages_name_files_that_exist():
  """Every path in backticks or links of README and docs is there."""
  missing = []
  for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md",
               *(ROOT / "docs").rglob("*.md")]:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
      if not (page.parent / link).exists():
        missing.append(f"{page.name}: {link}")
    for path in re.findall(
        r"`((?:fedjax_alg|experiments|tests|benchmarks|docs)/[\w/.]+)`", text):
      if "." in path.rsplit("/", 1)[-1] and not (ROOT / path).exists():
        missing.append(f"{page.name}: {path}")
  assert not missing


def test_errata_that_are_cited_are_there():
  """Every id has one entry, on the page of its paper."""
  entries = []
  for letter, paper in (("D", "diversified"), ("C", "conjugate"),
                        ("F", "fedgroup"), ("A", "analytic")):
    page = (ROOT / "docs" / "papers" / f"{paper}.md").read_text("utf-8")
    entries += re.findall(rf"^\| ({letter}-\d\d) \|", page, re.M)
  assert len(entries) == len(set(entries))
  cited = {}
  for folder in ("fedjax_alg", "experiments", "benchmarks", "tests", "docs"):
    for path in (ROOT / folder).rglob("*"):
      if path.suffix in (".py", ".md", ".csv", ".flags"):
        for name in re.findall(r"\b[ACDF]-\d\d\b", path.read_text("utf-8")):
          cited.setdefault(name, path.relative_to(ROOT))
  assert len(cited) > 30
  assert not {k: str(v) for k, v in cited.items() if k not in entries}


def test_readme_example_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  text = (ROOT / "README.md").read_text("utf-8")
  (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
  names = {"__name__": "readme"}
  exec(compile(block, "README.md", "exec"), names)
  result, best = names["result"], names["grid"].best()
  assert result.metrics["global"]["accuracy"][:, -1].mean() > 0.7
  assert result.clients["local"]["accuracy"].shape == (2, 50)
  assert best.setting["client_lr"] in (0.03, 0.1, 0.3)
  assert (tmp_path / "out" / "first" / "summary.json").is_file()


def test_the_notebook_runs_and_fedgroup_finds_the_kinds():
  path = ROOT / "docs" / "notebooks" / "fedgroup_on_digits.ipynb"
  cells = json.loads(path.read_text("utf-8"))["cells"]
  names = {"__name__": "notebook"}
  for cell in cells:
    if cell["cell_type"] == "code":
      assert not cell["outputs"]  # they would be of another version
      exec(compile("".join(cell["source"]), path.name, "exec"), names)
  table, runs = names["table"], names["runs"]
  assert ((table > 0).sum(0) == 1).all() and ((table > 0).sum(1) == 1).all()
  worst = {name: result.clients["local"]["accuracy"].min()
           for name, result in runs.items()}
  assert worst["FedGroup"] > 0.7 > worst["FedAvg"]
  assert len(names["figure"].axes) == 2
  plt.close(names["figure"])
