"""What is installed: one package, with every file that it reads."""

import email
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import yaml

import fedjax_alg

ROOT = pathlib.Path(__file__).resolve().parents[1]


#: Parts of experiments/ that serve papers and are in the repository alone.
_OF_PAPERS = {
  "reproduction",
  *(f"{name}.py" for name in "analytic beyond conjugate diversified fedgroup".split()),
  "publish.py",
  "trust.py",
}


def is_installed(path):
  """Papers have their code, commands, claims and presets in the repository."""
  parts = path.relative_to(ROOT).parts
  if parts[0] != "experiments":
    return True
  return parts[1] not in _OF_PAPERS and (parts[1] != "presets" or parts[2] == "demo")


def site_path(path):
  """The place of a file of the repository in site-packages."""
  parts = path.relative_to(ROOT).parts
  return "/".join(("fedjax_alg", *parts) if parts[0] == "experiments" else parts)


def sources(*patterns):
  return [
    path
    for folder in ("fedjax_alg", "experiments")
    for pattern in patterns
    for path in sorted((ROOT / folder).rglob(pattern))
  ]


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory):
  """The sdist of a copy of the repository, and the wheel made from it."""
  root = tmp_path_factory.mktemp("packaging")
  shutil.copytree(
    ROOT,
    root / "copy",
    ignore=shutil.ignore_patterns(
      ".*", "__pycache__", "*.pyc", "*.egg-info", "build", "dist", "out", "_build"
    ),
  )

  def build(folder, kind):
    subprocess.run(
      [
        sys.executable,
        "-c",
        f"from setuptools import build_meta; build_meta.build_{kind}({str(root)!r})",
      ],
      cwd=folder,
      check=True,
      capture_output=True,
    )

  build(root / "copy", "sdist")
  (sdist,) = root.glob("*.tar.gz")
  with tarfile.open(sdist) as tar:
    tar.extractall(root / "sdist", filter="data")
    inside = {name.partition("/")[2] for name in tar.getnames()}
  build(next((root / "sdist").iterdir()), "wheel")
  (wheel,) = root.glob("*.whl")
  return inside, zipfile.ZipFile(wheel)


@pytest.mark.program
def test_the_wheel_is_one_package_with_all_its_files(built):
  _, wheel = built
  names = set(wheel.namelist())
  about = f"fedjax_alg-{fedjax_alg.__version__}.dist-info"
  assert {name.split("/")[0] for name in names} == {"fedjax_alg", about}
  expected = sources(
    "*.py", "*.flags", "*.csv", "*.js", "*.css", "*.txt", "*.pyi", "py.typed"
  )
  assert len(expected) > 400
  assert {site_path(path) for path in expected if is_installed(path)} == {
    name for name in names if not name.startswith(about)
  }
  script = wheel.read(f"{about}/entry_points.txt").decode()
  assert "fedjax-alg = fedjax_alg.experiments.__main__:main" in script


@pytest.mark.program
def test_installed_commands_do_without_the_papers(built, tmp_path):
  """An import of what is left out would be a traceback for whoever installs it."""
  _, wheel = built
  wheel.extractall(tmp_path)

  words = "--algorithm=fedavg --num_clients=3 --cohort_size=2 --rounds=1 --out_dir=out"
  commands = [
    ["run", *words.split()],
    ["tune", "--help"],
    ["tune", "--paper=conjugate"],
    ["diversified", "--figure=fig1"],
  ]
  ended = subprocess.run(
    [sys.executable, "-c", _COMMANDS, json.dumps(commands)],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  )
  assert ended.returncode == 0, ended.stderr
  made, page, tuned, figure = json.loads(ended.stdout)
  assert made["status"] == 0 and "accuracy" in made["out"], made["err"]
  assert "--widen" in page["out"]
  assert tuned["status"] == 2 and "--paper: unknown flag" in tuned["err"]
  assert "repository" in tuned["err"]
  assert figure["status"] == 2 and "COMMAND=diversified" in figure["err"]


#: Runs commands of the wheel in one process, which imports JAX once. An editable
#: install would find what the wheel lacks in the repository.
_COMMANDS = """
import contextlib, io, json, runpy, sys
sys.meta_path = [f for f in sys.meta_path if 'Editable' not in repr(f)]
answers = []
for words in json.loads(sys.argv[1]):
  sys.argv[1:], out, err = words, io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      status = None
      runpy.run_module('fedjax_alg.experiments', run_name='__main__')
    except SystemExit as end:
      status = end.code
  answers.append({"status": status, "out": out.getvalue(), "err": err.getvalue()})
print(json.dumps(answers))
"""


@pytest.mark.program
def test_the_sdist_has_tests_and_documentation(built):
  inside, _ = built
  assert {
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "README.md",
    "launch.sh",
    "requirements.txt",
    "docs/architecture.md",
    "tests/conftest.py",
    "docs/images/readme.png",
    "benchmarks/timing.py",
    "experiments/diversified.py",
    "experiments/reproduction/trust/claims.csv",
  } <= inside
  assert not [name for name in inside if "__pycache__" in name]


@pytest.mark.program
def test_the_page_of_the_package_stands_alone(built):
  """A package index shows no file of the repository."""
  _, wheel = built
  (name,) = [n for n in wheel.namelist() if n.endswith("/METADATA")]
  about = email.message_from_bytes(wheel.read(name))
  assert about["Description-Content-Type"] == "text/markdown"
  page = about.get_payload()
  assert "federated" in page.lower() and len(page) > 2000
  targets = re.findall(r"\]\(([^)]+)\)", page)
  assert not [t for t in targets if not t.startswith(("https://", "#"))]


def test_pictures_and_links_of_the_page_need_an_address(monkeypatch):
  monkeypatch.setattr("setuptools.setup", lambda **arguments: None)
  index_page = runpy.run_path(str(ROOT / "setup.py"))["index_page"]
  text = (
    "![demo](docs/demo.png) [models](docs/models.md) "
    "[JAX](https://jax.dev) [below](#below)"
  )
  assert index_page(text, "https://host/files/") == (
    "![demo](https://host/files/docs/demo.png) "
    "[models](https://host/files/docs/models.md) "
    "[JAX](https://jax.dev) [below](#below)"
  )
  assert index_page(text, "") == (" models [JAX](https://jax.dev) [below](#below)")


def test_the_citation_names_this_version():
  cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
  assert cited["version"] == fedjax_alg.__version__
  assert cited["authors"] == [{"name": "The fedjax_alg authors"}]
  assert len(cited["references"]) == 4
  assert all(paper["title"] and paper["authors"] for paper in cited["references"])
