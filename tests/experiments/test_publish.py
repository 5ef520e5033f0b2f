"""The documentation page of a paper's figures."""

import csv
import dataclasses
import itertools
import math
import pathlib
import re
import shutil

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
import pytest

from experiments import publish
from experiments.drawing import dots
from experiments.reproduction import answers, pages
from fedjax_alg.runs import styles
from tests.each import each


def draw(path):
  """A picture as a figure command writes it."""
  about = PngInfo()
  about.add_text("Software", "Matplotlib version3.9")
  Image.new("RGB", (20, 10)).save(path, pnginfo=about, dpi=(130, 130))


def page_of(name, command="x"):
  """What a figure command stores; Fig. 2 shows the runs of Fig. 1."""
  return pages.FigurePage(
    f"Title of {name}",
    [pages.Heading("Claims"), pages.Table(["a"], [[1]])],
    pages.Provenance(command, {"jax": "0.10"}, "a machine"),
    runs_of="Fig1" * (name == "fig2"),
  )


def note(docs, section, text):
  """Writes a text of a user."""
  (docs / f"diversified_{section}.notes.md").write_text(text)


@pytest.fixture(name="source")
def _source(tmp_path):
  for name in ("fig1", "fig10", "fig2"):
    folder = tmp_path / "out" / name
    folder.mkdir(parents=True)
    page = page_of(name)
    (folder / f"{name}.json").write_text(pages.to_json(page))
    draw(folder / f"{name}.png")
  noise = np.random.default_rng(0).integers(0, 256, (280, 320, 3), np.uint8)
  Image.fromarray(noise).save(tmp_path / "out" / "fig1" / "fig1_stated.png")
  return tmp_path / "out"


@pytest.fixture(name="docs")
def _docs(tmp_path):
  """An empty folder of pages."""
  (tmp_path / "docs").mkdir()
  return tmp_path / "docs"


def publish_to(folder, source):
  assert publish.main(words_of(folder, source)) == 0
  return folder


def words_of(folder, source):
  return ["--paper=diversified", f"--from={source}", f"--to={folder}"]


def bytes_of(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def both(folder):
  """The first page and that of Figs. 8 to 10."""
  return "".join(
    (folder / f"diversified{end}.md").read_text() for end in ("", "_settings")
  )


def test_page(docs, source):
  note(docs, "intro", "Read me.\n")
  note(docs, "fig10", "A word on it.\n")
  draw(docs / "diversified_gone.png")
  (docs / "diversified_fig1.json").write_text(
    pages.to_json(
      dataclasses.replace(page_of("fig1"), pictures=["diversified_gone.png"])
    )
  )
  (docs / "diversified_of_mine.png").write_bytes(b"nobody published it")
  (docs / "conjugate_fig2.png").write_bytes(b"another paper's")
  folder = publish_to(docs, source)
  page = both(folder)
  order = [
    "# Results: the diversified paper",
    "Read me.",
    "## Title of fig1",
    "![Title of fig1](diversified_fig1.png)",
    "![Title of fig1](diversified_fig1_stated.png)",
    "### Claims",
    "## Title of fig10",
    "A word on it.",
    "![Title of fig10]",
  ]
  places = [page.index(part) for part in order]
  assert places == sorted(places)
  assert (
    "<summary>Title of fig2: the runs of Fig1</summary>"
    in (folder / "diversified_metrics.md").read_text()
  )
  assert {p.name for p in folder.glob("*.png")} == {
    "diversified_fig1.png",
    "diversified_fig1_stated.png",
    "diversified_fig10.png",
    "conjugate_fig2.png",
    "diversified_of_mine.png",
  }
  assert (source / "fig1" / "fig1_stated.png").stat().st_size > 200_000
  assert all(p.stat().st_size < 200_000 for p in folder.glob("*.png"))
  before = bytes_of(folder)
  publish_to(docs, source)  # in their place
  assert bytes_of(folder) == before


@pytest.mark.parametrize(
  "name",
  [
    "diversified.md",
    "diversified_settings.md",
    "diversified.answers.csv",
    "diversified_fig1.png",
    "diversified_fig1_stated.png",
  ],
)
def test_what_nobody_published_is_not_replaced(docs, source, refused, name):
  (docs / name).write_text("mine")
  assert refused(publish, words_of(docs, source)) == (
    f"--to={docs}: {docs / name} is not from an earlier call, and nothing "
    "else is replaced; remove it or write to another place\n"
  )
  assert [path.name for path in docs.iterdir()] == [name]
  assert (docs / name).read_text() == "mine"


def test_a_small_picture_keeps_the_colours_of_its_lines(tmp_path):
  """Noise needs more than all colours, and must not take those of lines."""
  pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
  colours = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in styles.COLOURS]
  for place, colour in enumerate(colours):
    pixels[40 * place : 40 * place + 20] = colour
  Image.fromarray(pixels).save(tmp_path / "x.png")
  (tmp_path / "small.png").write_bytes(publish._small_png(tmp_path / "x.png"))
  small = Image.open(tmp_path / "small.png")
  assert (tmp_path / "small.png").stat().st_size < publish.MOST_BYTES
  scale = small.height / 400
  assert (
    small.mode == "P"
    and [
      list(small.convert("RGB").getpixel((9, int((40 * place + 10) * scale))))
      for place in range(len(colours))
    ]
    == colours
  )


def test_again_gives_the_same_bytes(docs, source):
  first, second = (bytes_of(publish_to(docs, source)) for _ in range(2))
  assert first == second


DATA = "out/fig2/fig2.json"


@pytest.mark.parametrize(
  "file, content, message",
  [
    (DATA, b"", "{}/out/fig2/fig2.json: not the data of a figure command"),
    (DATA, b"[]", "{}/out/fig2/fig2.json: not the data of a figure command"),
    (DATA, b'{"title": "a", "blocks": [1]}', "run the figure again"),
    ("docs/diversified_fig2.json", b"\xff\xfe", "not the data of a figure command"),
    (
      "out/fig2/fig2.answers.csv",
      b"figure,artifact,panel,method\n",
      "fig2.answers.csv: not the answers of a figure command; run the figure again",
    ),
    (
      "docs/diversified_fig99.notes.md",
      b"x",
      "fig99 is no section (of intro, metrics, ",
    ),
    ("docs/diversified_fig1.notes.md", b"\xff\xfe", "fig1.notes.md: not text in UTF-8"),
  ],
)
def test_what_cannot_be_published_is_one_line(
  tmp_path, docs, source, refused, file, content, message
):
  path = tmp_path / file
  path.write_bytes(content)
  assert message.format(tmp_path) in refused(publish, words_of(docs, source))
  written = [path for path in docs.rglob("*") if path.is_file()]
  assert written == ([path] if file.startswith("docs") else [])


def test_nothing_to_publish(tmp_path, refused):
  assert "holds no table" in refused(publish, words_of(tmp_path / "docs", tmp_path))


def test_all_papers_and_their_claims(tmp_path, docs, source, monkeypatch):
  """The answers of a figure replace those of the same figure alone."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "out" / "diversified").mkdir()
  for figure in ("fig1", "fig10", "fig2"):
    (source / figure).rename(source / "diversified" / figure)

  def answer(figure, panel, ours, verdict):
    return answers.PaperAnswer(
      figure,
      figure.capitalize(),
      panel,
      "MA-FSVRG",
      "test_accuracy",
      "98.2",
      ours,
      verdict,
      "",
      "stated",
      tuning="stated",
    )

  records = docs / "diversified.answers.csv"
  records.write_text(
    answers.answers_csv(
      [answer("fig1", "a", "50.0", "worse"), answer("fig8", "a", "7", "worse")]
    )
  )
  (source / "diversified" / "fig1" / "fig1.answers.csv").write_text(
    answers.answers_csv([answer("fig1", "a", "98.3 +- 0.1", "reached")])
  )
  assert publish.main(["--all", f"--to={docs}"]) == 0
  assert [(a.figure, a.ours) for a in answers.read_answers(records)] == [
    ("fig1", "98.3 +- 0.1"),
    ("fig8", "7"),
  ]
  page = (docs / "claims.md").read_text()
  assert "| diversified, stated | 1 | 0 | 0 | 0 |" in page
  assert "| 98.3 +- 0.1 | reached [1] |" in page
  assert (docs / "diversified.md").is_file()
  assert not (docs / "conjugate.md").exists()


def test_a_figure_stays_until_it_is_published_again(tmp_path, docs, source):
  """Its part and its pictures; its notes are read anew."""
  note(docs, "fig1", "First words.\n")
  note(docs, "fig9", "On the ninth.\n")
  first = both(publish_to(docs, source))
  picture = (docs / "diversified_fig1.png").read_bytes()

  single = tmp_path / "alone"
  single.mkdir()
  (source / "fig10").rename(single / "fig10")
  (single / "fig10" / "fig10.json").write_text(pages.to_json(page_of("fig10", "y")))
  page = both(publish_to(docs, single))
  assert page.count("Made by `x`") == 1 and page.count("Made by `y`") == 1
  assert page.replace("by `y`", "by `x`") == first
  assert (docs / "diversified_fig1.png").read_bytes() == picture

  note(docs, "fig1", "Other words.\n")
  note(docs, "fig10", "On the tenth.\n")
  page = both(publish_to(docs, single))
  assert page.count("words.") == 1 and "Other words." in page
  assert "On the ninth." not in page and "On the tenth." in page

  for path in docs.glob("diversified_fig1[._]*"):
    path.unlink()
  publish_to(docs, single)
  assert "fig1" not in (docs / "diversified.md").read_text().replace("fig10", "")
  assert not (docs / "diversified_fig1.png").exists()


def test_the_committed_pages_have_their_notes(tmp_path, monkeypatch):
  """Published again without any figure they stay as they are."""
  committed = pathlib.Path(__file__).parents[2] / "docs" / "results"
  folder = tmp_path / "results"
  shutil.copytree(committed, folder)
  monkeypatch.chdir(tmp_path)
  assert publish.main(["--all", f"--to={folder}"]) == 0
  expected, written = bytes_of(committed), bytes_of(folder)
  for path, content in expected.items():
    assert written[folder / path.relative_to(committed)] == content, path.name
  assert len(written) == len(expected)


RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results"

#: The first colors of matplotlib's own palette.
DEFAULTS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")


@each("path", sorted(RESULTS.glob("*.png")))
def test_pictures_have_the_colors_of_the_methods(path):
  """Lines of matplotlib's palette cannot be told apart by color-blind readers."""
  pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(np.uint32)
  codes = pixels @ np.array([65536, 256, 1], np.uint32)
  drawn = {
    color
    for color in DEFAULTS
    if np.count_nonzero(codes == int(color[1:], 16)) > 0.0005 * codes.size
  }
  assert not drawn


def test_pictures_of_numbers_are_drawn_again(tmp_path):
  """As they are now, and without any run."""
  for file in RESULTS.glob("conjugate*"):
    shutil.copy(file, tmp_path)
  names = ["conjugate_fig6.png", "conjugate_readings.png"]
  for name in names:
    (tmp_path / name).write_bytes(b"")
  paper = publish.PAPERS["conjugate"]
  publish.publish(paper, tmp_path / "none", tmp_path, rewrite=True, redraw=True)
  for name in names:  # the tests draw small pictures
    new, old = (
      np.asarray(Image.open(folder / name)).shape[1::-1]
      for folder in (tmp_path, RESULTS)
    )
    assert new[0] / new[1] == pytest.approx(old[0] / old[1], rel=0.05), name
  page = "conjugate_cifar10.md"
  assert (tmp_path / page).read_text("utf-8") == (RESULTS / page).read_text("utf-8")


def test_a_table_without_numbers_has_no_picture(tmp_path):
  """Publishing ended with a traceback when it had replaced some files."""
  nothing = dots.Dot("panel", "row", math.nan, math.nan)
  dots.write_dots(tmp_path / f"conjugate_fig6{dots.SUFFIX}", [nothing])
  assert not publish._draw_tables(publish.PAPERS["conjugate"], "fig6", tmp_path)


def test_some_lines_are_published_anew(tmp_path, refused):
  """The numbers of the others stay, and every table has the new ones."""
  docs, folder = tmp_path / "docs", tmp_path / "out" / "niid_bench"
  docs.mkdir()
  folder.mkdir(parents=True)
  for file in RESULTS.glob("trust*"):
    shutil.copy(file, docs)

  def change(old, new, is_line, column, value):
    with open(docs / old, newline="") as file:
      head, *rows = csv.reader(file)
    place = head.index(column)
    lines = [
      [*row[:place], value, *row[place + 1 :]]
      for row in rows
      if is_line(dict(zip(head, row)))
    ]
    with open(folder / new, "w", newline="") as file:
      csv.writer(file).writerows([head, *lines])
    return [
      [*row[:place], value, *row[place + 1 :]] if is_line(dict(zip(head, row))) else row
      for row in rows
    ]

  def is_line(row):
    mine = row.get("figure", "niid_bench") == "niid_bench"
    return mine and row["panel"] == "d" and row["method"] == "FedNova"

  expected = {
    "trust.answers.csv": change(
      "trust.answers.csv", "niid_bench.answers.csv", is_line, "ours", "12.34"
    ),
    "trust_niid_bench.csv": change(
      "trust_niid_bench.csv", "niid_bench_numbers.csv", is_line, "ours", "12.34"
    ),
    "trust_niid_bench.dots.csv": change(
      "trust_niid_bench.dots.csv",
      "niid_bench.dots.csv",
      lambda row: row["panel"].startswith("(d)") and row["row"] == "FedNova",
      "mean",
      "12.34",
    ),
  }
  provenance = pages.Provenance(
    "mine", {"jax": "0.10", "commit": "abc"}, "a machine", "N."
  )
  (folder / "niid_bench.json").write_text(
    pages.to_json(pages.FigurePage("T", [], provenance))
  )
  words = ["--paper=trust", f"--from={folder.parent}", f"--to={docs}", "--keep_rows"]
  for _ in range(2):  # in their place
    assert publish.main(words) == 0
  for name, rows in expected.items():
    with open(docs / name, newline="") as file:
      assert list(csv.reader(file))[1:] == rows, name
  page = (docs / "trust.md").read_text("utf-8")
  assert page.count("FedNova, best test accuracy | 96.65 +- 0.39 | 12.34 |") == 1
  assert page.count("Made later, with jax 0.10; a machine. N.") == 1
  assert (
    page.count("| d: FedNova | `mine` | abc |") == page.count("| d: FedNova |") == 1
  )
  folder.rename(folder.parent / "fair")
  (folder.parent / "fair" / "niid_bench.json").rename(folder.parent / "fair/fair.json")
  assert refused(publish, words).startswith("--keep_rows: fair of trust has tables")


@each("table", sorted(RESULTS.glob("*.csv")))
def test_rows_of_published_tables_have_all_columns(table):
  """A comma without quotes would shift what stands behind it."""
  with open(table, newline="", encoding="utf-8") as file:
    assert len(set(map(len, csv.reader(file)))) == 1


TABLES = sorted(RESULTS.glob(f"*{dots.SUFFIX}"))


@each("table", TABLES)
def test_a_published_picture_has_the_published_numbers(table):
  """Every dot is a number of the figure's page, and every such figure has a table."""
  paper, name = table.name.removesuffix(dots.SUFFIX).split("_", 1)
  (figure,) = [
    figure
    for figure, of in publish.PAPERS[paper].figures.items()
    if name in [figure + picture.end for picture in of.dots]
  ]
  texts = [
    " ".join(itertools.chain(*csv.reader(path.read_text("utf-8").splitlines())))
    for path in (
      *RESULTS.glob(f"{paper}_{figure}.csv"),
      RESULTS / f"{paper}.answers.csv",
    )
  ]
  texts.append((RESULTS / f"{paper}_{figure}.json").read_text("utf-8"))
  numbers = np.array(
    [
      float(number.replace(",", ""))
      for text in texts
      for number in re.findall(r"-?\d+(?:,\d{3})*(?:\.\d+)?", text)
    ]
  )
  for dot in dots.read_dots(table):
    if np.isfinite(dot.mean):
      assert np.abs(numbers - dot.mean).min() <= 0.0051, dot


def test_pages_of_their_own_and_what_was_chosen(tmp_path, docs, source):
  """A table of tuning is copied, and found again without it.

  That of data with a page of their own stands on that page, below its words.
  """
  for name in ("table1", "fig5"):
    (source / "fig10").rename(source / name)
    (source / name / "fig10.json").rename(source / name / f"{name}.json")
    shutil.copytree(source / name, source / "fig10")
    (source / "fig10" / f"{name}.json").rename(source / "fig10" / "fig10.json")
  tuned = source / "tune" / "diversified_mnist"
  tuned.mkdir(parents=True)
  (tuned / "tune.csv").write_text(
    "method,setting,validation,partition_0,stated,chosen\n"
    "FedAvg,--client_lr=0.1,95.5,95.5,1,0\n"
    "FedAvg,--client_lr=1,96.5,96.5,0,1\n"
  )
  shutil.copytree(tuned, tuned.parent / "diversified_cifar10")
  note(docs, "cifar10", "First this.\n")
  for _ in range(2):
    page = (publish_to(docs, source) / "diversified.md").read_text()
    assert (
      "More pages: [metrics](diversified_metrics.md), "
      "[cifar10](diversified_cifar10.md), "
      "[settings](diversified_settings.md), "
      "[times](diversified_times.md)."
    ) in page
    assert "Title of fig10" in (docs / "diversified_times.md").read_text()
    assert page.count("| FedAvg | 2 | `--client_lr=1` | 96.50 | 95.50 |") == 1
    cifar_page = (docs / "diversified_cifar10.md").read_text()
    assert cifar_page.index("First this.") < cifar_page.index("Title of fig10")
    assert "(diversified_cifar10_tuning.csv)" in cifar_page
    assert "(diversified_cifar10_tuning.csv)" not in page
    shutil.rmtree(tuned.parent, ignore_errors=True)
    shutil.rmtree(source / "fig1", ignore_errors=True)  # its part stays


def test_a_setting_stands_above_the_notes():
  text = pages.render(
    "paper",
    works="x",
    paper="beyond",
    page="map",
    words="",
    more_pages=[],
    overview=[],
    parts=[
      {
        "figure": page_of("map"),
        "setting": "**Setting.** 40 clients.",
        "notes": "Our words.",
        "sentences": None,
      }
    ],
    hidden=[],
    choices=[],
  )
  order = ["## Title of map", "**Setting.**", "Our words.", "### Claims", "| 1 |"]
  assert [text.index(part) for part in order] == sorted(map(text.index, order))


@pytest.mark.parametrize("name", ["map", "board"])
def test_the_first_lines_of_a_study_are_its_presets(name):
  """The map once stated neither model, clients nor rates."""
  folder = pathlib.Path(publish.__file__).parent / "presets" / "beyond"
  text = (RESULTS / f"beyond_{name}.md").read_text("utf-8")
  head = publish._setting_of(publish.PAPERS["beyond"], name, RESULTS)
  assert text.partition("\n\n## ")[2].partition("\n\n")[2].startswith(head)
  flags = (
    folder / {"map": "map.flags", "board": "board_mnist.flags"}[name]
  ).read_text()
  (clients,) = re.findall(r"--num_clients=(\d+)", flags)
  (rounds,) = re.findall(r"--rounds=(\d+)", flags)
  (steps,) = re.findall(r"--local_steps=(\d+)", flags)
  assert f"{clients} clients" in head and f"{rounds} rounds of {steps}" in head
  assert {"map": "MLP of 32 hidden", "board": "oftmax regression"}[name] in head
  # As many cells as there are methods in the tables of the search, and edges of them.
  cells = edges = 0
  for path in RESULTS.glob(f"beyond_{name}_*_tuning.csv"):
    with path.open(newline="") as file:
      rows = list(csv.DictReader(file))
    for method in {row["method"] for row in rows}:
      rates = [
        (float(re.search(r"--client_lr=(\S+)", row["setting"])[1]), row["chosen"])
        for row in rows
        if row["method"] == method
      ]
      (best,) = (rate for rate, choice in rates if choice == "1")
      cells, edges = cells + 1, edges + (best in (min(rates)[0], max(rates)[0]))
  assert f"In {edges} of {cells} cells" in head
  for page in ("../choosing.md", "../methods.md", "beyond_bridge.md"):
    assert page in head
