"""Parts of pages that are made of the registry, the options and the package.

They stand in the pages as Markdown, between two comments, so that they can be read
without a build. ``python docs/make_pages.py`` writes them, and a test compares:

  generated: method NAME     what the registry knows of a method: its own
                             hyper-parameters, what a round costs, how to run it
  generated: methods FAMILY  a table of the methods of a family, linked
  generated: options         all options of `fa.federate` and `fa.run`, each an anchor
  generated: names           the public names above, what they are, where they are
  generated: classes         the classes of configurations, each with its method
  generated: contents        the pages of the trees of contents of a page, linked
  generated: comparison      the evidence of docs/comparison.csv; in README its cells
  generated: counts, evidence, source, studies, needs, kinds, board, acceleration,
    late, one_round          what stands behind the methods (``evidence``), and which
                             method when (``choosing``)

Sphinx reads the same text with three differences: it reads what stands in a comment
``<!-- sphinx ... -->``, it has its own lists in the place of the last two, and it
links a module to its page instead of its file.
"""

import csv
import dataclasses
import functools
import inspect
import json
import os
import pathlib
import re

import choosing
import evidence
import method_costs
import method_examples
import numpy as np
import pandas as pd

from experiments.cli import presets
import fedjax_alg
from fedjax_alg import registry
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer
from fedjax_alg.data.options import DataOptions
from fedjax_alg.exchange.aggregation import AggregatorOptions
from fedjax_alg.exchange.attacks import Hostility
from fedjax_alg.exchange.compression import Compression
from fedjax_alg.exchange.privacy import Privacy
from fedjax_alg.hparams import describe_range, fields_by_group
from fedjax_alg.part import describe_parts, forms, parts_of, write_parts
from fedjax_alg.runs import methods, styles
from fedjax_alg.runs.options import RunOptions

DOCS = pathlib.Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
CURVES = DOCS / "methods" / "curves.csv"
COMPARISON = DOCS / "comparison.csv"

#: Options that many methods have: (their dataclass, what they are, its page).
#: They are hyper-parameters or options of the exchange.
GROUPS = (
  (LocalWork, "the amount of local work", "options.md#LocalWork"),
  (ClientOptimizer, "the optimizer of the local steps", "optimizers.md"),
  (Compression, "compression", "compression.md"),
  (Privacy, "differential privacy", "private.md"),
  (Hostility, "Byzantine clients", "hostile.md"),
  (AggregatorOptions, "robust aggregators", "hostile.md"),
)


def documented():
  """The registered methods that have a page; a test asks for those of the others."""
  return [
    name for name in registry.ALGORITHMS if (DOCS / "methods" / f"{name}.md").is_file()
  ]


def paper_link(name):
  """A method's paper as Markdown, linked where it has an address."""
  entry = registry.ALGORITHMS[name]
  return f"[{entry.paper}]({entry.display.link})" if entry.display.link else entry.paper


def _cell(text):
  return re.sub(r"(?<!\\)\|", r"\\|", str(text)).replace("\n", " ")


def _default(field):
  value = field.default
  if value is dataclasses.MISSING:
    return "needed"
  if isinstance(value, tuple):
    value = ",".join(map(str, value)) or "none"
  return "" if value in (None, "") else f"`{value}`"


def _allowed(field):
  """The values of an option in words."""
  if parts_of(field.type):
    return "one of " + ", ".join(forms(field.type))
  return describe_range(field)


def _row(field, name=""):
  """A row of a table of options."""
  meta = field.metadata
  text = meta["help"]
  if meta.get("source"):
    text += f" ({meta['source']})"
  if meta.get("when") is not None:
    text += f". Read only with {meta['when']}"
  return (
    f"| {name or f'`{field.name}`'} | {_default(field)} | "
    f"{_cell(_allowed(field))} | {_cell(text)} |"
  )


_HEAD = ["| option | default | allowed | what it is |", "|---|---|---|---|"]


def own_fields(entry):
  """A method's hyper-parameters without those of local work and optimizer."""
  return [
    field
    for group, fields in fields_by_group(entry.hparams).items()
    if group not in ("local", "optimizer")
    for field in fields
  ]


def _sentence(name):
  """The first sentence of a method's page."""
  text = (DOCS / "methods" / f"{name}.md").read_text("utf-8")
  paragraph = text.split("\n\n")[1]
  paragraph = re.sub(r"\]\((?!http)([\w/.#]+)\)", "](methods/\\1)", paragraph)
  return re.split(r"(?<=\.) (?=[A-Z])", paragraph.replace("\n", " "))[0].rstrip(":")


def _presets(name):
  return [
    preset for preset in presets.names() if preset.rpartition("/")[2] == f"{name}.flags"
  ]


def method_page(name):
  """The generated part of a method's page, in Markdown."""
  entry = registry.ALGORITHMS[name]
  module = entry.build.__module__.rpartition(".")[2]
  lines = []
  if key := _curve(name):
    _, protocol, model = key
    settings = curves()[key]["settings"].iloc[0] or "defaults"
    lines += [
      "<!-- sphinx",
      "## At a glance",
      "",
      "```{figure} ../_static/methods/" + name + ".svg",
      f":alt: Accuracy of {entry.label} over the rounds",
      "",
      f"{entry.label} on the embedded digits: 60 clients with two of "
      "the ten classes each, 10 of them a round, three seeds, not "
      f"tuned ({model}, {settings}; accuracy by the protocol `{protocol}`). "
      "The bands are 95 % intervals over the seeds.",
      "```",
      "-->",
      "",
    ]
  lines += [
    "Symbols that all pages share are in [one table](../methods.md#symbols).",
    "",
    "## Run it",
    "",
    *method_examples.example(name),
    f"In Python {class_of(name)} is the method with its options as one value "
    "([configurations](../api.md#configurations-of-methods)).",
    "",
  ]
  if entry.options:
    texts = write_parts(entry.options)
    options = ", ".join(f"`{key}={value!r}`" for key, value in texts.items())
    words = "These options have" if entry.rounds else "It is `fedavg` with"
    lines += [f"{words} other defaults: {options}.", ""]
  fields = own_fields(entry)
  if fields:
    lines += ["## Hyper-parameters", "", *_HEAD, *map(_row, fields), ""]
    lines += _alternatives(fields)
  also = [
    f"[{label}]({'../' + page})"
    for cls, label, page in GROUPS
    if issubclass(entry.hparams, cls) or issubclass(entry.exchange, cls)
  ]
  lines += ["It also reads the options of " + ", ".join(also) + "." if also else "", ""]
  lines += [
    "## Cost of a round",
    "",
    method_costs.cost(name),
    "",
    "## Where it is",
    "",
    f"- Paper: {paper_link(name)}.",
    f"- Code: [`fedjax_alg.algorithms.{module}`]"
    f"(../../fedjax_alg/algorithms/{module}.py).",
  ]
  test = ROOT / "tests" / "algorithms" / f"test_{module}.py"
  if test.exists():
    lines.append(f"- Tests against a NumPy loop: `tests/algorithms/{test.name}`.")
  preset_names = _presets(name)
  if preset_names:
    lines.append(
      "- Presets: "
      + ", ".join(f"`--flagfile={file}`" for file in preset_names[:6])
      + (f" and {len(preset_names) - 6} more" if len(preset_names) > 6 else "")
      + "."
    )
  return lines


def class_of(name):
  """Name of the class of a method's configurations, as Markdown."""
  (kind,) = (kind for kind, method in methods.config_names().items() if method == name)
  return f"`fa.{kind}`"


def classes_line():
  """The classes of all methods, linked to the pages of these."""
  links = [f"[{class_of(name)}](methods/{name}.md)" for name in documented()]
  return [", ".join(links) + "."]


def methods_table(family):
  """A table of the methods of a family."""
  lines = [
    "| method | what it does | floats down / up | exchanges |",
    "|---|---|---|---|",
  ]
  for name in documented():
    entry = registry.ALGORITHMS[name]
    if entry.display.family != family:
      continue
    counted = method_costs.count(name)
    traffic = (
      f"{counted.down} / {counted.up} | {counted.exchanges}"
      if counted and counted.exchanges
      else "head / class means | 1"
      if name in method_costs.OF_MEANS
      else ("sums / layer | 1" if entry.rounds else "- | 0")
    )
    lines.append(
      f"| [{entry.label}](methods/{name}.md) `{name}` | "
      f"{_cell(_sentence(name))} | {traffic} |"
    )
  return lines


def _sections(cls):
  """(dataclass, its own fields) of the parts of a dataclass of options."""
  seen = set()
  for part in reversed(cls.__mro__):
    fields = (
      [field for field in dataclasses.fields(part) if field.name not in seen]
      if dataclasses.is_dataclass(part)
      else []
    )
    seen |= {field.name for field in fields}
    if fields:
      yield part, fields


def options_page():
  """All options, with an anchor for each."""
  lines = []
  for title, cls in (
    ("Data: `fa.federate`", DataOptions),
    ("A run: `fa.run`", RunOptions),
  ):
    lines += [f"## {title}", ""]
    for part, fields in _sections(cls):
      lines += _options(part, fields)
  lines += ["## Options that many methods have", ""]
  for part, _, _ in GROUPS:
    lines += _options(part, dataclasses.fields(part))
  return lines


def _options(part, fields):
  doc = (part.__doc__ or "").strip().splitlines()[0].rstrip(".")
  doc = re.sub(r" \(``.*?``\)", "", doc)
  rows = [
    _row(field, f'<span id="{field.name}"></span>`{field.name}`')
    for field in fields
    if field.metadata.get("help")
  ]
  return [
    f'<span id="{part.__name__}"></span>',
    "",
    f"### {doc}",
    "",
    *_HEAD,
    *rows,
    "",
    *_alternatives(fields),
  ]


def _alternatives(fields):
  """Tables of the parts that options can be, each choice with fields once."""
  lines, shown = [], []
  for field in fields:
    parts = parts_of(field.type)
    if parts in shown or not any(map(dataclasses.fields, parts)):
      continue
    shown.append(parts)
    lines += [f"Alternatives of `{field.name}`, with their fields:", "", *_HEAD]
    for form, about, inner in describe_parts(field.type):
      lines.append(f"| **`{form}`** |  |  | {_cell(about)} |")
      lines += map(_row, inner)
    lines.append("")
  return lines


@functools.cache
def curves():
  """(name, protocol, model) -> the rows of a method in docs/methods/curves.csv."""
  rows = pd.read_csv(CURVES, keep_default_na=False)
  return dict(iter(rows.groupby(["method", "protocol", "model"])))


def _curve(name):
  """The key of a method in ``curves``; None: it has none.

  Of FedAvg, which all are drawn beside, it is the usual one.
  """
  if name == "fedavg":
    return "fedavg", "global", "softmax"
  return next((key for key in curves() if key[0] == name), None)


def _draw(app):
  """Draws the pictures of the methods."""
  import matplotlib

  matplotlib.use("svg")
  from matplotlib import pyplot

  folder = pathlib.Path(app.srcdir) / "_static" / "methods"
  folder.mkdir(parents=True, exist_ok=True)

  def draw(axes, rows, label):
    """Draws a curve with its interval, which ends where accuracies do."""
    style = (styles.method_style(label) or styles.METHODS["MA-FSVRG"]).matplotlib()
    rounds, means, widths = rows["round"], 100 * rows["accuracy"], 100 * rows["ci95"]
    axes.plot(
      rounds,
      means,
      label=label,
      markersize=4,
      markevery=max(1, len(rounds) // 6),
      **style,
    )
    axes.fill_between(
      rounds,
      np.maximum(means - widths, 0),
      np.minimum(means + widths, 100),
      color=style["color"],
      alpha=0.2,
      linewidth=0,
    )

  for name in registry.ALGORITHMS:
    key = _curve(name)
    if key is None:
      continue
    figure, axes = pyplot.subplots(figsize=(4.2, 2.4))
    # Wide enough for all; a layout engine would draw every picture twice.
    figure.subplots_adjust(left=0.13, right=0.98, bottom=0.19, top=0.97)
    if name != "fedavg":
      draw(axes, curves()["fedavg", *key[1:]], registry.ALGORITHMS["fedavg"].label)
    draw(axes, curves()[key], registry.ALGORITHMS[name].label)
    axes.set(xlabel="rounds", ylabel="accuracy, %", ylim=(0, 100))
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def _title(page):
  """The title of a page in the folder of the pages, by its name without a suffix."""
  path = DOCS / f"{page}.ipynb"
  if path.exists():
    text = "".join(json.loads(path.read_text("utf-8"))["cells"][0]["source"])
  else:
    text = (DOCS / f"{page}.md").read_text("utf-8")
  return re.search(r"^# (.*)$", text, re.M)[1]


def _trees(text, folder):
  """(options, pages) of the trees of contents in a page's text."""
  for tree in re.findall(r"```\{toctree\}\n(.*?)```", text, re.S):
    lines = [line for line in tree.splitlines() if line]
    yield (
      dict(re.findall(r"^:(\w+): ?(.*)$", tree, re.M)),
      [os.path.normpath(folder / line) for line in lines if line[0] != ":"],
    )


def contents(page):
  """Lists of links to the pages in the trees of contents of a page, and below."""
  lines = []

  def add(name, depth):
    path = DOCS / f"{name}.md"
    path = path if path.exists() else path.with_suffix(".ipynb")
    if "*" in name or not path.exists():  # many, or made by the build
      return
    target = path.relative_to((DOCS / page).parent).as_posix()
    lines.append(f"{'  ' * depth}- [{_title(name)}]({target})")
    if path.suffix == ".md":
      text = path.read_text("utf-8")
      for _, pages in _trees(text, pathlib.Path(name).parent):
        for below in pages:
          add(below, depth + 1)

  folder = pathlib.Path(page).parent
  for options, pages in _trees((DOCS / f"{page}.md").read_text("utf-8"), folder):
    lines += ["", f"**{options['caption']}**", ""]
    for name in pages:
      add(name, 0)
  return lines[1:]


def _first_sentence(value):
  """The first sentence of a docstring."""
  text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
  return re.split(r"(?<=\.) (?=[A-Z])", text.replace("``", "`"))[0]


def names_table(names):
  """A table of public names, linked to the files that define them."""
  lines = ["| name | what it is |", "|---|---|"]
  for name in names:
    value = getattr(fedjax_alg, name)
    words = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    path = words.__module__.replace(".", "/") + ".py"
    if (ROOT / path).exists():
      link = f"[`fa.{name}`](../{path})"
    else:
      link = f"[`fa.{name}`](../{path.removesuffix('.py')}/__init__.py)"
    lines.append(f"| {link} | {_cell(_first_sentence(words))} |")
  return lines


def comparison_rows():
  """The cells of the comparison with other libraries, with their evidence."""
  with COMPARISON.open(encoding="utf-8", newline="") as file:
    return list(csv.DictReader(file))


def comparison_table():
  """The cells of the comparison: a row a property, a column a library."""
  rows = comparison_rows()
  versions = {row["library"]: row["version"].rpartition(" ")[2] for row in rows[::-1]}
  libraries = list(dict.fromkeys(row["library"] for row in rows))
  cells = {(row["property"], row["library"]): row["cell"] for row in rows}
  return [
    "| | fedjax_alg | "
    + " | ".join(f"{of} {versions[of]}" for of in libraries[1:])
    + " |",
    "|---" * (len(libraries) + 1) + "|",
    *(
      f"| {name} | " + " | ".join(cells.get((name, of), "") for of in libraries) + " |"
      for name in dict.fromkeys(row["property"] for row in rows)
    ),
  ]


def evidence_tables():
  """The evidence of every cell of the comparison, a table a property."""
  lines = []
  for name in dict.fromkeys(row["property"] for row in comparison_rows()):
    lines += ["", f"## {name[0].upper()}{name[1:]}", ""]
    lines += ["| library | cell | version | where | shown by |", "|---" * 5 + "|"]
    for row in comparison_rows():
      if row["property"] == name:
        where = row["where"]
        if row["library"] == "fedjax_alg":
          where = (
            f"[{where.removeprefix('docs/')}]({where.removeprefix('docs/')})"
            if where.startswith("docs/")
            else f"`{where}`"
          )
        lines.append(
          f"| {row['library']} | {row['cell']} | {row['version']} | {_cell(where)} | "
          f"{_cell(row['shown by'])} |"
        )
  return lines[1:]


#: A generated part of a page: what it is, and its text.
GENERATED = re.compile(
  r"<!-- generated: (?P<what>[^\n]+?) -->\n(?P<text>.*?)<!-- end of generated -->\n?",
  re.S,
)
#: What only Sphinx reads.
_FOR_SPHINX = re.compile(r"<!-- sphinx\n(.*?)-->", re.S)
#: The terms of the glossary, each a paragraph, which Sphinx has as definitions.
_GLOSSARY = re.compile(r"<!-- glossary -->\n(.*?)<!-- end of glossary -->\n", re.S)
#: Parts that are made of the published results: name -> their Markdown.
_OF_RESULTS = {
  "counts": evidence.counts_line,
  "evidence": evidence.evidence_table,
  "needs": choosing.needs_table,
  "kinds": choosing.kinds_table,
  "board": choosing.board_table,
  "acceleration": choosing.acceleration_table,
  "late": choosing.late_table,
  "one_round": choosing.one_round_table,
}
#: The same of the method of a page.
_OF_METHOD = {"source": evidence.source_of, "studies": choosing.method_part}
#: Parts in the place of which Sphinx has lists of its own.
_REPLACED = ("names", "contents")


def part_of(what, page, above):
  """Makes a generated part of a page.

  Args:
    what: what its first comment says, for example "methods one".
    page: name of the page, without a suffix.
    above: the text of the page above the part.

  Returns:
    The lines.
  """
  kind, _, argument = what.partition(" ")
  if kind == "method":
    return method_page(argument)
  if kind == "methods":
    return methods_table(argument)
  if kind == "options":
    return options_page()
  if kind == "contents":
    return contents(page)
  if kind == "comparison":
    return comparison_table() if page == "../README" else evidence_tables()
  if kind == "classes":
    return classes_line()
  if kind == "names":
    return names_table(
      re.findall(r"^   (\w+)$", above.rpartition("autosummary")[2], re.M)
    )
  if kind in _OF_RESULTS:
    return _OF_RESULTS[kind]().split("\n")
  if kind in _OF_METHOD:
    return _OF_METHOD[kind](page.rpartition("/")[2]).split("\n")
  raise ValueError(f"{page}: nothing is called {what}")


def with_generated(text, page):
  """Returns the text of a page with its generated parts made again."""

  def make(match):
    lines = "\n".join(part_of(match["what"], page, text[: match.start()])).strip("\n")
    return (
      f"<!-- generated: {match['what']} -->\n\n{lines}\n\n<!-- end of generated -->\n"
    )

  return GENERATED.sub(make, text)


def _glossary(match):
  terms = re.findall(r"^\*\*(.+?)\*\*: (.+)$", match[1], re.M)
  return "\n\n".join(
    ["```{glossary}", *(f"{term}\n  {words}" for term, words in terms), "```\n"]
  ).replace("```{glossary}\n\n", "```{glossary}\n")


def for_sphinx(text):
  """Returns the text of a page as Sphinx has to read it."""
  text = GENERATED.sub(
    lambda match: "" if match["what"].split()[0] in _REPLACED else match["text"], text
  )
  text = _FOR_SPHINX.sub(r"\1", text)
  text = _GLOSSARY.sub(_glossary, text)
  return re.sub(
    r"\[`([\w.]+)`\]\((?:\.\./)+fedjax_alg/[\w/]+\.py\)", r"{py:mod}`\1`", text
  )


def _read(app, page, source):
  del app, page
  source[0] = for_sphinx(source[0])


def setup(app):
  app.connect("source-read", _read)
  app.connect("builder-inited", _draw)
  return {"parallel_read_safe": True}
