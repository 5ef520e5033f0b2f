"""The code on the documentation's pages runs."""

import pathlib
import re

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


def test_readme_example_runs():
  text = (ROOT / "README.md").read_text("utf-8")
  (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
  names = {"__name__": "readme"}
  exec(compile(block, "README.md", "exec"), names)
  assert float(names["aux"].server["train_loss"]) < 2.0
