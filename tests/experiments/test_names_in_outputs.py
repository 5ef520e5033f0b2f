"""Names with any characters, in every file and picture that has names.

Each file is read back by a reader of its format: what a name means there would be
another text, another number of cells, a tag, or an error.
"""

import csv
import html
from html.parser import HTMLParser
import io
import json
import os
import pathlib
import re
import types

import markdown_it  # comes with flax
import matplotlib
from matplotlib import cbook
from matplotlib import pyplot as plt
import numpy as np
import pytest

from experiments import card, compare, judge
from experiments.drawing import plots
from experiments.reports import comparison as comparison_lib
from experiments.reports import page, sweeps
import fedjax_alg as fa
from fedjax_alg import metrics
from fedjax_alg.errors import as_unicode, one_line
from fedjax_alg.records import clients, tables
from fedjax_alg.runs import texts
from tests import made_runs
from tests.fuzzing import NAMES

matplotlib.use("Agg")

pytestmark = pytest.mark.filterwarnings(
  "ignore:Glyph",  # no font has them all
  "ignore:constrained_layout",  # so many names leave no room for curves
)

#: As a reader sees them in one line.
SHOWN = [one_line(name) for name in NAMES]


@pytest.fixture(name="compared", scope="module")
def fixture_compared(tmp_path_factory):
  """A comparison of runs of these names."""
  root = tmp_path_factory.mktemp("runs")
  result = fa.load_run(made_runs.write(root / "a", [[0.5, 0.6]]))
  return fa.compare(dict.fromkeys(NAMES, result), targets=(0.55,))


def read_latex(cell):
  """The text of a cell, of which every sign of LaTeX must be a known one."""
  words = {
    "backslash": "\\",
    "asciitilde": "~",
    "asciicircum": "^",
    "less": "<",
    "greater": ">",
    "bar": "|",
    "asciigrave": "`",
  }
  powers = {"3": "\u00b3", "6": "\u2076", "9": "\u2079"}
  out, place = "", 0
  token = re.compile(
    r"\\text(\w+)\{\}|\\([&%$#_{}])|\{([\[*]?)\}|\$\^\{(\d)\}\$|"
    r"([^\\&%$#_{}~^<>|`[*])"
  )
  while place < len(cell):
    match = token.match(cell, place)
    assert match, (cell, cell[place:])
    word, escaped, grouped, power, plain = match.groups()
    out += (
      words[word]
      if word
      else powers[power]
      if power
      else escaped or grouped or plain or ""
    )
    place = match.end()
  for pair in ("--", "''", ",,", "!'", "?'"):  # of which LaTeX makes one sign
    assert pair not in cell
  return out


def latex_rows(text):
  """The cells of every table: [tables][rows][cells]."""
  written = []
  for table in re.findall(
    r"\\begin\{tabular\}\{(l+r*)\}(.*?)\\end\{tabular\}", text, re.S
  ):
    columns, body = table
    lines = [line.strip() for line in body.strip().split("\n")]
    lines = [line for line in lines if not re.fullmatch(r"\\\w+rule", line)]
    assert all(line.endswith(r" \\") for line in lines)
    written.append(
      [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in lines]
    )
    assert {len(row) for row in written[-1]} == {len(columns)}
  return written


def markdown_rows(text):
  """The cells of every table as a reader of Markdown sees them."""
  written, cells = [], []
  for token in markdown_it.MarkdownIt("commonmark").enable("table").parse(text):
    if token.type == "table_open":
      written.append([])
    elif token.type == "tr_open":
      cells = []
      written[-1].append(cells)
    elif token.type == "inline":
      kinds = {child.type for child in token.children}
      assert kinds <= {
        "text",
        "code_inline",
        "softbreak",
        "strong_open",
        "strong_close",
      }
      cells.append("".join(child.content for child in token.children))
    elif token.type == "table_close":
      cells = []
    assert token.type not in ("html_block", "fence", "code_block"), token.content
  for rows in written:
    assert len({len(row) for row in rows}) == 1
  return written


class Cells(HTMLParser):
  """The text of every cell of a row, and the tags of a page."""

  def __init__(self):
    super().__init__()
    self.rows, self.tags, self._open = [], set(), False

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    if tag == "tr":
      self.rows.append([])
    self._open = tag in ("td", "th")
    if self._open:
      self.rows[-1].append("")

  def handle_endtag(self, tag):
    self._open = self._open and tag not in ("td", "th")

  def handle_data(self, data):
    if self._open:
      self.rows[-1][-1] += data


def squeezed(cells):
  """Texts as a reader of HTML or Markdown sees their spaces."""
  return [" ".join(cell.split()) for cell in cells]


def of_csv(compared, root):
  with open(compared.save(root / "t.csv"), newline="", encoding="utf-8") as file:
    return [row["run"] for row in csv.DictReader(file)], list(map(as_unicode, NAMES))


def of_to_latex(compared, root):
  text = compared.save(root / "t.tex", ["accuracy", "loss"]).read_text("utf-8")
  (rows,) = latex_rows(text)
  return [read_latex(row[0]) for row in rows[1:]], SHOWN


def of_tables_for_a_paper(compared, root):
  del root
  scores, targets, costs, differences = latex_rows(
    comparison_lib.latex(compared, f"compare {SHOWN[1]}")
  )
  for rows in (targets, costs):
    assert [read_latex(row[0]) for row in rows[1:]] == SHOWN
  assert [read_latex(row[0]) for row in differences[1:]] == SHOWN[1:]
  return [read_latex(row[0]) for row in scores[1:]], SHOWN


def of_a_ranking(compared, root):
  """Methods, and data sets at the heads of columns."""
  del root
  runs = dict.fromkeys(NAMES, compared.lines[0].result)
  ranking = fa.runs.ranks.Ranking(
    {name: compared for name in list(runs)[:5]},
    tuple(compared.results),
    np.zeros((5, len(NAMES))),
    np.ones((5, len(NAMES))),
    (np.nan, np.nan),
    1.0,
  )
  (rows,) = latex_rows(ranking.to_latex())
  assert [read_latex(cell) for cell in rows[0][1:-1]] == SHOWN[:5]
  axis = ranking.plot()
  axis.figure.canvas.draw()
  assert not any(cbook.is_math_text(text.get_text()) for text in axis.texts)
  plt.close(axis.figure)
  return [read_latex(row[0]) for row in rows[1:]], SHOWN


def of_a_markdown_page(compared, root):
  del root
  text = comparison_lib.comparison_page(SHOWN[7], compared, f"compare {SHOWN[7]}")
  scores, *others, differences = markdown_rows(text)
  assert len(others) == 2
  assert [row[0] for row in differences[1:]] == squeezed(SHOWN[1:])
  return [row[0] for row in scores[1:]], squeezed(SHOWN)


def of_an_html_page(compared, root):
  pytest.importorskip("plotly")
  some = dict(list(compared.results.items())[1::3])  # Plotly takes its time
  path = root / "p.html"
  page.write_page(
    path,
    NAMES[12],
    {"": some},
    comparison_lib.all_tables(fa.compare(some)),
    metric="accuracy",
    protocol="global",
    command_line=NAMES[13],
  )
  reader = Cells()
  reader.feed(path.read_text("utf-8"))
  assert reader.tags.isdisjoint({"img", "b", "em", "a"})
  expected = [one_line(name) for name in some]
  names = [
    html.unescape(trace["name"]) for trace in made_runs.read_traces(path)[0][1::2]
  ]
  assert names == expected
  return squeezed(row[0] for row in reader.rows[1 : 1 + len(some)]), squeezed(expected)


def of_a_terminal(compared, root):
  del root
  lines = comparison_lib.plain_text(compared).split("\n")
  assert all(line.isprintable() for line in lines)
  # The first column is as wide as the longest name.
  width = max(map(len, SHOWN))
  rows = lines[2 : 2 + len(NAMES)]
  return [line[2 : 2 + width].rstrip() for line in rows], SHOWN


def of_a_picture(compared, root):
  axis = compared.plot()
  axis.figure.canvas.draw()  # what is no formula would be an error
  words = [text.get_text() for text in axis.get_legend().get_texts()]
  assert not any(map(cbook.is_math_text, words))
  plt.close(axis.figure)
  comparison_lib.draw_comparison([root / "c.png"], compared, NAMES[24])
  labels = [word.removeprefix("\u200b").replace(r"\$", "$") for word in words]
  long = {SHOWN.index("x" * 300)}
  assert all(len(labels[place]) < 50 for place in long)
  return [w for i, w in enumerate(labels) if i not in long], [
    w for i, w in enumerate(SHOWN) if i not in long
  ]


def of_judged_claims(compared, root):
  """A name of a run, which a claim also has in a column of its own."""
  made_runs.write(root / "one", [[0.5, 0.6], [0.6, 0.7]])
  names = [name for name in NAMES if name == as_unicode(name) == name.strip()]
  path = root / "claims.csv"
  with open(path, "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows(
      [
        ["where", "method", "protocol", "metric", "value", "rule"],
        ["", "B", "global", "accuracy", "60", "final"],
        *([name, name, "global", "accuracy", "60", "final"] for name in names),
      ]
    )
  assert judge.main([str(path), f"B={root / 'one'}", f"--out={root / 'j'}"]) == 0
  with open(root / "j" / "judge.csv", newline="", encoding="utf-8") as file:
    assert [row["where"] for row in csv.DictReader(file)][1:] == names
  _, rows = markdown_rows((root / "j" / "judge.md").read_text("utf-8"))
  return [row[0] for row in rows[2:]], squeezed(map(one_line, names))


def of_a_sweep(compared, root):
  run = compared.lines[0].result
  of_run = pathlib.Path(), run.seeds, run.rounds, run.metrics
  table = sweeps.SweepTable(
    [sweeps.Setting({"model": as_unicode(n)}, *of_run) for n in NAMES],
    "global",
    "accuracy",
    "final",
  )
  sweeps.draw_sweep(root / "s.png", table, NAMES[24])
  values = table.rows()
  tables.write_rows(root / "s.csv", values, list(values[0]))
  with open(root / "s.csv", newline="", encoding="utf-8") as file:
    assert [row["model"] for row in csv.DictReader(file)] == list(
      map(as_unicode, NAMES)
    )
  (written,) = markdown_rows(table.table().split("\n\n")[0])
  return [row[0] for row in written[1:]], squeezed(SHOWN)


def of_clients(compared, root):
  del compared
  ones = np.ones((1, len(NAMES)))
  final = {
    "clients": {"local": {"accuracy": ones, "loss": ones, "test_examples": ones}},
    "membership": None,
    "train_examples": ones[0],
    "client_names": json.dumps(NAMES),
  }
  for first in range(0, len(NAMES), 20):  # more have no names below their bars
    some = NAMES[first : first + 20]
    plots.histogram(root / "p.png", np.ones((len(some), 2), int), some[0], some)
  heights = {"gain": {some[0]: [1.0] * len(NAMES)}}
  plots.bars([root / "b.png"], heights, NAMES, NAMES[24])
  clients.save_clients(root, final, (0,))
  with open(root / "clients.csv", newline="", encoding="utf-8") as file:
    return [row["client"] for row in csv.DictReader(file)], list(map(as_unicode, NAMES))


def of_a_card(compared, root):
  """The values of options, the data set, the model and the method."""
  nobody = {"min": 1, "max": 1, "mean": 1.0}
  facts = {
    "algorithm": NAMES[10],
    "model": NAMES[12],
    "seeds": [0],
    "hparams": {f"option_{i}": name for i, name in enumerate(NAMES)},
    "data": {"partition": NAMES[33], "partition_seed": 0},
    "plan": {
      **dict.fromkeys(
        (
          "cohort_size",
          "clients",
          "parameters",
          "train_examples",
          "validation_examples",
          "test_examples",
          "classes",
        ),
        1,
      ),
      "data": NAMES[16],
      "client_size": nobody,
    },
    "revisions": [{"time": "2026-01-01T", "clients": NAMES, "action": "forget"}],
  }
  summary = compared.lines[0].result.summary()
  result = types.SimpleNamespace(facts=facts, summary=lambda: summary)
  text = card._run_page(result, root)
  every = markdown_rows(re.sub("</?details>(<summary>.*</summary>)?", "", text))
  (options,) = (rows for rows in every if rows[0] == ["option", "value"])
  return [row[1] for row in options[1:]], squeezed(SHOWN)


WRITERS = (
  of_csv,
  of_to_latex,
  of_tables_for_a_paper,
  of_a_ranking,
  of_a_markdown_page,
  of_an_html_page,
  of_a_terminal,
  of_a_picture,
  of_judged_claims,
  of_a_sweep,
  of_clients,
  of_a_card,
)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_a_name_is_read_back_as_it_is(compared, tmp_path, writer):
  """A bar made two cells, [x] an argument, $x$ a formula, _x left the legend."""
  written, expected = writer(compared, tmp_path)
  assert written == expected


def test_names_of_undecodable_bytes_are_written(tmp_path, capfd):
  """compare and judge ended in "not foreseen, UnicodeEncodeError"."""
  place = tmp_path / os.fsdecode(b"p\xff")
  for name, algorithm in ((b"a\xfe", "fedavg"), ("é".encode(), "scaffold")):
    made_runs.write(place / os.fsdecode(name), [[0.5, 0.6]], algorithm=algorithm)
  out = f"--out={place / 'o.md'},{tmp_path / 't.tex'}"
  assert compare.main([str(place), out]) == 0
  assert "p\\udcff" in (place / "o.md").read_text("utf-8").replace("\\\\", "\\")
  printed = capfd.readouterr().out
  assert "wrote" in printed and printed == as_unicode(printed)


def test_a_terminal_without_the_letters_of_a_name(tmp_path, monkeypatch):
  """Letters beyond ASCII ended a command where the locale has none."""
  made_runs.write(tmp_path / "one", [[0.5, 0.6]])
  stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
  monkeypatch.setattr("sys.stdout", stdout)
  words = ["\udcc3\udca9=one", "日本=two"]
  made_runs.write(tmp_path / "two", [[0.5, 0.6]])
  monkeypatch.chdir(tmp_path)
  assert compare.main([*words, "--out=t.md"]) == 0
  assert b"\\xe9" in stdout.buffer.getvalue()
  assert "é" in (tmp_path / "t.md").read_text("utf-8")


def test_two_signs_stay_two_in_latex():
  """ "---" was "-{}--", of which LaTeX makes two dashes."""
  assert texts.latex_text("a---b, '' ,, ?' <<") == (
    "a-{}-{}-b, '{}' ,{}, ?{}' \\textless{}\\textless{}"
  )


def test_a_number_in_latex_has_its_signs():
  """A word that looks like one is a word."""
  number = metrics.Number(-1.25, 0.5, ".1f", p=0.04)
  assert texts.latex_cell(number) == r"$-1.2$ $\pm$ 0.5 (0.04)"
  assert texts.latex_cell(number, True) == r"\textbf{$-1.2$} $\pm$ 0.5 (0.04)"
  assert texts.latex_cell(metrics.Number(2.0)) == "2.00"
  assert texts.latex_cell(metrics.Number(2.0), True) == r"\textbf{2.00}"
  assert texts.latex_cell(metrics.Number(2.0, sign="+")) == "$+2.00$"
  assert texts.latex_cell(metrics.Number(None), True) == "-"
  assert texts.latex_cell("-1.2 +- 0.5") == "-1.2 +- 0.5"
