"""Data of figures, and the templates of their pages."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.cli.config import UsageError
from experiments.reproduction import pages
from fedjax_alg import metrics


def rerun(*cells, commit="abc", device="a gpu"):
  provenance = pages.Provenance("another", {"jax": "2", "commit": commit}, device)
  return pages.Rerun(list(cells), provenance)


GAIN = metrics.Number(1.25, 0.5, ".1f", "+", 0.04)
PAGE = pages.FigurePage(
  "Fig. 1",
  [
    "Two paragraphs.\n\nOf words.",
    pages.Table(["method", "rounds"], [["A | B", np.int64(3)], ["C", 0.5]]),
    pages.Table(["gain"], [[GAIN], [metrics.Number(None)]]),
    pages.Heading("More"),
    pages.Details("Unfold", ["- a\n- b", pages.Table(["x"], [["1"]])]),
    pages.PublishedNumbers([pages.Table(["y"], [["2"]]), "Not run."]),
    pages.Others(["C", "D"], pages.Table(["z"], [["3"]])),
  ],
  pages.Provenance(
    "the command", {"jax": "1"}, "a cpu", "Notes.", [["A", "tuned", "--a=1"]]
  ),
  ["One seed."],
  reruns=[rerun("a: A", "b: A"), rerun("a: C", device="a cpu"), rerun("b: C")],
)


def test_what_is_stored_is_read_again(tmp_path):
  path = tmp_path / "fig1.json"
  path.write_text(pages.to_json(PAGE), "utf-8")
  page = pages.read(path)
  assert pages.to_json(page) == path.read_text("utf-8")
  assert pages.IS_FIGURE(path)
  assert [type(block) for block in page.blocks] == [type(b) for b in PAGE.blocks]
  # A row of a table is a line, so that a change of a number is one, too.
  assert '["C", 0.5]' in [
    line.strip(" ,") for line in path.read_text("utf-8").splitlines()
  ]
  for write in (pages.render("figure", figure=p, sentences=None) for p in (page, PAGE)):
    assert "| A | B | 3 |\n| C | 0.5 |" in write
    assert "| +1.2 +- 0.5 (0.04) |\n| - |" in write


def test_the_numbers_of_a_cell_are_stored(tmp_path):
  """So that nobody takes them out of its text."""
  path = tmp_path / "fig1.json"
  path.write_text(pages.to_json(PAGE), "utf-8")
  assert pages.read(path).blocks[2].rows == [[GAIN], [metrics.Number(None)]]
  (line,) = [line for line in path.read_text("utf-8").splitlines() if "ci95" in line]
  cell = {"mean": 1.25, "ci95": 0.5, "form": ".1f", "sign": "+", "p": 0.04}
  assert json.loads(line.strip(" ,")) == [cell]


@pytest.mark.parametrize(
  "content",
  ["", "[]", "{}", '{"title": "a", "blocks": [{}]}', '{"title": "a", "blocks": 3}'],
)
def test_other_data_are_refused_in_one_line(tmp_path, content):
  path = tmp_path / "fig1.json"
  path.write_text(content)
  with pytest.raises(UsageError, match=r"fig1\.json: not the data of a figure command"):
    pages.read(path)


def test_the_page_of_a_figure():
  """Headings are a level below the title; what the paper says is above remarks."""
  text = pages.render("figure", figure=PAGE, sentences=pages.Table(["said"], [["so"]]))
  order = [
    "# Fig. 1\n\nTwo paragraphs.\n\nOf words.\n\n| method | rounds |",
    "## More\n\n<details><summary>Unfold</summary>\n\n- a\n- b\n\n| x |",
    "| 1 |\n\n</details>\n\n## Published numbers and ours\n\n| y |",
    "| 2 |\n\nNot run.\n\n<details><summary>Other methods: C, D</summary>\n\n| z |",
    "| 3 |\n\n</details>\n\n## What is said in words\n\n| said |",
    "| so |\n\nOne seed.\n\n<details><summary>How this was made</summary>",
    "`the command`; jax 1; a cpu. Notes.\n\n- A (tuned): `--a=1`\n\n",
    "Made later, with jax 2; a gpu.\n\n| rows | command | commit |",
    "| b: C | `another` | abc |\n\nMade later, with jax 2; a cpu.\n\n",
    "| a: C | `another` | abc |\n\n</details>\n",
  ]
  places = [text.index(part) for part in order]
  assert places == sorted(places) and "\n\n\n" not in text


def test_the_page_of_a_paper_hides_what_its_overview_has():
  """And of a figure that shows the runs of another one, its other methods."""
  figures = [PAGE, pages.FigurePage("Fig. 2", PAGE.blocks, runs_of="Fig1")]
  text = pages.render(
    "paper",
    works="a paper",
    paper="p",
    page="end",
    words="Read me.",
    more_pages=["one", "two"],
    overview=[pages.Table(["all"], [["4"]])],
    parts=[
      {"figure": figure, "setting": "", "notes": "", "sentences": None}
      for figure in figures
    ],
    hidden=["numbers"],
    choices=[],
  )
  assert text.startswith(
    "# Results: a paper, end\n\nRead me.\n\n"
    "More pages: [one](p_one.md), [two](p_two.md).\n\n| all |"
  )
  assert "Published numbers" not in text and "Not run." not in text
  assert text.count("### More") == 2 and text.count("Other methods: C, D") == 1
  assert "<summary>Fig. 2: the runs of Fig1</summary>" in text


def test_rows_made_later_share_what_they_have_in_common():
  """A page said software and machine once more for every row.

  Rows that are made a third time are no longer those of the second.
  """
  page = PAGE.replace_rows(rerun("b: A", "a: C", commit="new"))
  text = pages.render("figure", figure=page, sentences=None)
  assert text.count("jax 2") == 1 and text.count("Made later") == 1
  rows = [line for line in text.splitlines() if line.startswith(("| a: ", "| b: "))]
  assert [row.split(" | ")[::2] for row in rows] == [
    ["| a: A", "abc |"],
    ["| b: C", "abc |"],
    ["| b: A, a: C", "new |"],
  ]
  page = dataclasses.replace(page, provenance=page.reruns[0].provenance)  # no notes
  assert "| a: A |" in pages.render("figure", figure=page, sentences=None)


def test_a_name_that_a_template_does_not_get_is_an_error():
  with pytest.raises(pages.jinja2.UndefinedError):
    pages.render("figure", figure=PAGE)
