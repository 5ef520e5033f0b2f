"""How Sphinx makes the pages: ./launch.sh docs."""

import dataclasses
import os
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "_extensions")]

import fedjax_alg  # noqa: E402  pylint: disable=wrong-import-position

project = "fedjax_alg"
author = copyright = "The fedjax_alg authors"
version = release = fedjax_alg.__version__

extensions = [
  "myst_nb",  # the pages are Markdown and notebooks
  "navigation",  # the tree beside a page, in a fraction of the time
  "registry_pages",  # what the registry and the options know
  "search_words",  # what people type into the search
  "sphinx.ext.apidoc",  # a page for every module,
  "sphinx.ext.autodoc",  # of docstrings and `#:` comments
  "sphinx.ext.autosummary",  # and for every public name
  "sphinx.ext.intersphinx",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
  "sphinx_copybutton",
  "sphinx_design",
  "sphinx-mathjax-offline",  # equations without a network
]
exclude_patterns = [
  "_build",
  "_css",
  "_extensions",
  "_inventories",
  "results/*.notes.md",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
apidoc_modules = [
  {
    "path": "../fedjax_alg",
    "destination": "_modules_of",
    "separate_modules": True,
    "module_first": True,
    "automodule_options": {"members"},
  }
]
autodoc_default_options = {"members": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
maximum_signature_line_length = 1
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# A name that the package gives and the name in its module are one thing.
# Links out of this folder are to files of the repository.
suppress_warnings = ["ref.python", "myst.xref_missing"]
nb_execution_mode = "cache"  # again where a cell has changed
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_merge_streams = True
copybutton_exclude = ".linenos, .gp, .go"
# Links to JAX, flax, optax and NumPy, without asking their sites.
intersphinx_mapping = {
  name: (address, str(DOCS / "_inventories" / f"{name}.inv"))
  for name, address in (
    ("jax", "https://docs.jax.dev/en/latest/"),
    ("flax", "https://flax.readthedocs.io/en/latest/"),
    ("optax", "https://optax.readthedocs.io/en/latest/"),
    ("numpy", "https://numpy.org/doc/stable/"),
  )
}
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["_css"]
html_css_files = ["tables.css"]
html_favicon = "_css/favicon.svg"
html_search_scorer = str(DOCS / "_css" / "scorer.js")
# The address of the repository makes "edit this page"; none is invented here.
repository = os.environ.get("FEDJAX_ALG_REPOSITORY", "")
html_theme_options = (
  {
    "source_repository": repository,
    "source_branch": "main",
    "source_directory": "docs/",
  }
  if repository
  else {}
)
html_title = f"fedjax_alg {release}"


_SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes|Examples):$")
_ITEM = re.compile(r"(-|\d+\.) ")


def _escape(line: str) -> str:
  """Plain text as reStructuredText; `name` becomes ``name``."""
  line = re.sub(r"``[^`]+``|`([^`]+)`", lambda m: f"``{m[1]}``" if m[1] else m[0], line)
  parts = re.split(r"(``[^`]+``)", line)
  for i in range(0, len(parts), 2):  # between the literals
    text = re.sub(r"([\\*|`]|_(?!\w))", r"\\\1", parts[i])
    # A literal ends at the end of a word; a backslash and a space make one.
    if i and re.match(r"[\w=({^]", text):
      text = "\\ " + text
    if i < len(parts) - 1 and re.search(r"[\w=)}|]$", text):
      text += "\\ "
    parts[i] = text
  return "".join(parts)


def _whole_literals(lines: list[str]) -> list[str]:
  """The lines, a literal that goes on in the next line whole in its first."""
  out: list[str] = []
  for line in lines:
    if out and not out[-1].lstrip().startswith(">>>"):
      opened = re.sub(r"``[^`]+``|`[^`]+`", "", out[-1])
      mark = re.search(r"`+", opened)
      end = line.find(mark[0]) if mark and line.strip() else -1
      if mark and end >= 0:
        end += len(mark[0])
        tail = re.match(r"\S*", line[end:])
        end += tail.end() if tail else 0
        out[-1] += f" {line[:end].strip()}"
        indent = re.match(r" *", line)
        line = (indent[0] if indent else "") + line[end:].strip()
        if not line.strip():
          continue
    out.append(line)
  return out


def _plain(app, kind, name, obj, options, lines):
  """Docstrings are plain text with Google sections, not reStructuredText.

  An indented block is shown as it stands (equations, commands), a line that
  begins with a hyphen or a number is an item of a list.
  """
  del app, name, options
  if lines and lines[0].startswith("Alias for field number"):
    lines.clear()  # a field of a NamedTuple without a comment
  out, section, item, block, example = [], False, False, False, False
  for line in _whole_literals(lines):
    example = line.lstrip().startswith(">>>") or (example and line.strip())
    if example:
      out.append(line)
      continue
    indented = line.startswith(" ")
    section = section or bool(_SECTION.match(line))
    if section:
      if block:
        out.append("")
        block = False
      head = re.match(r"\s+\*+\w+:", line)  # napoleon escapes *args itself
      keep = head[0] if head else ""
      out.append(keep + _escape(line[len(keep) :]))
    elif not line.strip():
      out.append("")
      item = item and not block
    elif indented and not item:
      if not block:
        out += ["", "::", ""]
      block = True
      out.append(line)
    else:
      starts = bool(_ITEM.match(line))
      if block or (starts and not item):
        out.append("")
      block, item = False, starts or (item and indented)
      out.append(_escape(line))
  if kind == "class" and dataclasses.is_dataclass(obj):
    helps = [
      field for field in dataclasses.fields(obj) if field.metadata.get("help")
    ]  # made by hparams.hyper
    out += [
      "",
      *(
        _escape(f"- `{field.name}`: {field.metadata['help']} (default {field.default})")
        for field in helps
      ),
    ]
  lines[:] = out


def _short_types(app, kind, name, obj, options, signature, returns):
  """``Float[Array, "S d"]`` in the place of the path of JAX's class."""
  del app, kind, name, obj, options
  return tuple(
    text and text.replace("jaxlib._jax.Array", "Array") for text in (signature, returns)
  )


def setup(app):
  app.connect("autodoc-process-signature", _short_types)
  app.connect("autodoc-process-docstring", _plain, priority=100)
