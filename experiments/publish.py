"""Collects a paper's finished figures and tables into one documentation page.

  python -m experiments.publish --paper=diversified --from=out/diversified

First make the figures, for example with python -m experiments.diversified
--figure=all. This command then writes docs/results/diversified.md with every figure
and table that it finds (fig1/fig1.json, ...). It copies the pictures next to the
page, and compresses large ones.

  python -m experiments.publish --all

publishes every paper with figures in out/<paper> or with a page, and the page of all
claims. Without --from, an existing page is written again from the data of its
figures and its notes.

Claims of all papers
--------------------
With --all you also get docs/results/claims.md, and the pages of the commands
experiments.trust and experiments.beyond. The page of claims shows how many claims of
each of the four papers are met, and every claim that is not, with the attempts. The
answers of the figures are in docs/results/<paper>.answers.csv.

Redraw
------
This command draws the pictures of numbers again, from the tables
<paper>_<figure>.dots.csv:

  python -m experiments.publish --all --redraw

Only pictures of curves need the folders of their figures (--finished of their
commands).

Files of a page
---------------
The command copies what it needs of each figure to docs/results/<paper>_<figure>.json,
and writes the pages from these files and the templates in
experiments/reproduction/templates. You can therefore make one figure anew without the
runs of the others. To remove a figure, delete its files <paper>_<figure>.* and its
lines of the answers.

If a figure has no tables in its text, you can also make some panels or lines anew.
With --keep_rows, the published numbers of all others stay. The page says how the new
ones were made.

You can write text for a page into files next to it: diversified_fig1.notes.md is put
below the title of that figure, and diversified_intro.notes.md at the top of the page.
The file diversified_cifar10.notes.md is put at the top of the page
diversified_cifar10.md. The same input always gives the same files.
"""

from collections.abc import Callable, Iterable, Sequence
import csv
import dataclasses
import importlib
import io
import itertools
import pathlib
import sys
import tempfile
from typing import Any, TypeVar

from absl.flags import FlagValues
from PIL import Image

from fedjax_alg import files
from fedjax_alg.files import expand_path
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables as records
from fedjax_alg.runs import styles

from .cli import config as config_lib
from .cli.command import Command, boolean, enum, string
from .cli.config import UsageError
from .drawing import dots
from .reproduction import answers, claims_page, figures, pages, tuning

#: The papers whose methods the library is made for.
CLAIMED = ("diversified", "conjugate", "fedgroup", "analytic")

PAPERS: dict[str, figures.Paper] = {
  name: importlib.import_module(f".reproduction.{name}.figures", __package__).PAPER
  for name in (*CLAIMED, "trust", "beyond")
}

#: The end of the name of a text that people write for a page.
_NOTES = ".notes.md"

#: A picture in the documentation is smaller than this.
MOST_BYTES = 200_000


def _read_notes(paper: figures.Paper, target: pathlib.Path) -> dict[str, str]:
  """The texts that people write for the pages of a paper: section -> Markdown.

  Raises:
    UsageError: a file is of no section.
  """
  sections = ["intro", *paper.pages.values(), *paper.figures, *paper.tables]
  notes = {}
  for path in sorted(target.glob(f"{paper.name}_*{_NOTES}")):
    name = path.name.removeprefix(f"{paper.name}_").removesuffix(_NOTES)
    if name not in sections:
      raise UsageError(
        f"{path}: {name} is no section (of {', '.join(dict.fromkeys(sections))})"
      )
    notes[name] = files.read_text(path).strip()
  return notes


def _small_png(path: pathlib.Path) -> bytes:
  """The bytes of a picture, with fewer colors and pixels where too many."""
  raw = path.read_bytes()
  image = Image.open(path).convert("RGB")
  width = image.width
  while len(raw) >= MOST_BYTES:
    small = image.resize((width, round(image.height * width / image.width)))
    buffer = io.BytesIO()
    _few_colours(small).save(buffer, "PNG", optimize=True)
    raw, width = buffer.getvalue(), round(0.85 * width)
  return raw


def _few_colours(image: Image.Image, most: int = 64) -> Image.Image:
  """The picture with few colors, those of the lines among them.

  Without these, one method would have different colors in two pictures.
  """
  lines = [int(colour[i : i + 2], 16) for colour in styles.COLOURS for i in (1, 3, 5)]
  common = (
    image.quantize(most - len(styles.COLOURS), dither=Image.Dither.NONE).getpalette()
    or []
  )
  palette = Image.new("P", (1, 1))
  palette.putpalette(lines + common[: 3 * most - len(lines)])
  return image.quantize(palette=palette, dither=Image.Dither.NONE)


def _setting_of(paper: figures.Paper, name: str, target: pathlib.Path) -> str:
  """What all runs of a figure have; "" of a table, or if it does not say it."""
  figure = paper.figures.get(name)
  return figure.setting(target) if figure and figure.setting else ""


def _read_published(
  paper: figures.Paper, target: pathlib.Path
) -> dict[str, pages.FigurePage]:
  """The figures that earlier calls have published, in the order of the paper."""
  paths = {
    name: target / f"{paper.name}_{name}{pages.SUFFIX}"
    for name in (*paper.figures, *paper.tables)
  }
  return {name: pages.read(path) for name, path in paths.items() if path.is_file()}


def _copy_picture(picture: pathlib.Path, path: pathlib.Path) -> None:
  """Writes a small copy of a picture."""
  with files.replacing(path) as partial:
    partial.write_bytes(_small_png(picture))


def _draw_tables(paper: figures.Paper, name: str, target: pathlib.Path) -> list[str]:
  """Draws the pictures of a figure from the tables of their numbers.

  Args:
    paper: the paper.
    name: of the figure.
    target: folder of the tables and the pictures.

  Returns:
    The names of the pictures; those that have no number are left out.
  """
  figure, names = paper.figures[name], []
  with tempfile.TemporaryDirectory() as folder:
    for picture in figure.dots:
      table = target / f"{paper.name}_{name}{picture.end}{dots.SUFFIX}"
      if not table.is_file():
        continue
      try:
        pictures = figures.draw_table(figure, picture, table, pathlib.Path(folder))
      except dots.NothingToDraw as error:
        print(f"no figure: {error}", file=sys.stderr)
        continue
      for (path,) in pictures:
        _copy_picture(path, target / path.name)
        names.append(path.name)
  return names


_Row = TypeVar("_Row")


def _replace_rows(
  old: Iterable[_Row], new: Iterable[_Row], key: Callable[[_Row], object]
) -> list[_Row]:
  """Rows with new ones in the place of those of the same key, and others at the end."""
  of_key: dict[object, list[_Row]] = {}
  for row in new:
    of_key.setdefault(key(row), []).append(row)
  left, rows = dict(of_key), []
  for row in old:
    rows += left.pop(key(row), []) if key(row) in of_key else [row]
  return [*rows, *itertools.chain(*left.values())]


def _dot_tables(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(folder.glob(f"*{dots.SUFFIX}"))


def _read_rows(path: pathlib.Path) -> "csv.DictReader[str]":
  return csv.DictReader(io.StringIO(files.read_text(path)))


def _check_rows(
  paper: figures.Paper,
  folder: pathlib.Path,
  target: pathlib.Path,
  figure: pages.FigurePage,
) -> None:
  """Refuses a figure that ``_update_figure`` cannot put rows into.

  Raises:
    UsageError: it has tables in its text, or another version's columns.
  """
  label = f"--keep_rows: {folder.name} of {paper.name}"
  table = folder / f"{folder.name}_numbers.csv"
  dot_tables = [target / f"{paper.name}_{t.name}" for t in _dot_tables(folder)]
  if (
    figure.blocks
    or not figure.numbers
    or not all(path.is_file() for path in (table, *dot_tables))
  ):
    raise UsageError(f"{label} has tables that are not made of rows; make all of it")
  if _read_rows(target / figure.numbers).fieldnames != _read_rows(table).fieldnames:
    raise UsageError(f"{label} was published with other columns; make all of it")


def _update_figure(
  paper: figures.Paper,
  folder: pathlib.Path,
  target: pathlib.Path,
  figure: pages.FigurePage,
) -> pages.FigurePage:
  """Puts the numbers of a figure in the place of published ones, and draws it again.

  Args:
    paper: the paper.
    folder: of the figure, made of some panels and lines.
    target: folder of the page.
    figure: as it is published.
  """
  path = target / figure.numbers
  old, new = _read_rows(path), _read_rows(folder / f"{folder.name}_numbers.csv")
  added = list(new)
  stream = io.StringIO()
  writer = csv.DictWriter(stream, old.fieldnames or (), lineterminator="\n")
  writer.writeheader()
  writer.writerows(_replace_rows(old, added, lambda row: (row["panel"], row["method"])))
  results.write_text(path, stream.getvalue())
  for table in _dot_tables(folder):
    published_table = target / f"{paper.name}_{table.name}"
    joined_dots = _replace_rows(
      dots.read_dots(published_table),
      dots.read_dots(table),
      lambda dot: (dot.panel, dot.row, dot.name),
    )
    dots.write_dots(published_table, joined_dots)
  provenance = pages.read(folder / f"{folder.name}{pages.SUFFIX}").provenance
  assert provenance is not None
  names = dict.fromkeys(f"{row['panel']}: {row['method']}" for row in added)
  provenance = dataclasses.replace(provenance, lines=())
  figure = dataclasses.replace(
    figure.replace_rows(pages.Rerun(list(names), provenance)),
    pictures=_draw_tables(paper, folder.name, target),
  )
  name = f"{paper.name}_{folder.name}"
  results.write_text(target / f"{name}{pages.SUFFIX}", pages.to_json(figure))
  return figure


def _publish_figure(
  paper: figures.Paper, folder: pathlib.Path, target: pathlib.Path
) -> pages.FigurePage:
  """Copies a figure beside the page: its pictures, its numbers, and its data."""
  name = f"{paper.name}_{folder.name}"
  figure = pages.read(folder / f"{folder.name}{pages.SUFFIX}")
  table = folder / f"{folder.name}_numbers.csv"
  if table.is_file():
    text = files.read_text(table)
    head = next(csv.reader(text.splitlines()), [])
    figure = dataclasses.replace(
      figure, numbers=f"{name}.csv", has_flags="flags" in head
    )
    results.write_text(target / figure.numbers, text)
  tables = _dot_tables(folder)
  for path in tables:
    results.write_text(target / f"{paper.name}_{path.name}", files.read_text(path))
  if tables:
    figure = dataclasses.replace(
      figure, pictures=_draw_tables(paper, folder.name, target)
    )
  elif not figure.runs_of:  # else the pictures are those of the other figure
    pictures = sorted(
      folder.glob("*.png"), key=lambda path: (len(path.stem), path.stem)
    )
    figure = dataclasses.replace(
      figure, pictures=[f"{paper.name}_{picture.name}" for picture in pictures]
    )
    for picture in pictures:
      _copy_picture(picture, target / f"{paper.name}_{picture.name}")
  results.write_text(target / f"{name}{pages.SUFFIX}", pages.to_json(figure))
  return figure


def _copy_choices(
  paper: figures.Paper, source: pathlib.Path, target: pathlib.Path
) -> None:
  """Copies the tables of ``experiments.tune`` beside the page."""
  for path in sorted((source / "tune").glob(f"{paper.name}_*/tune.csv")):
    results.write_text(target / f"{path.parent.name}_tuning.csv", files.read_text(path))


def _choices(
  paper: figures.Paper, target: pathlib.Path, end: str
) -> list[dict[str, Any]]:
  """What validation chose, from the tables of ``experiments.tune``.

  Those of data with a page of their own stand on that one, those of board_mnist on
  that of board.
  """
  choices = []
  for path in sorted(target.glob(f"{paper.name}_*_tuning.csv")):
    data = path.stem.removeprefix(f"{paper.name}_").removesuffix("_tuning")
    if end != next(
      (page for page in (data, data.partition("_")[0]) if page in paper.pages.values()),
      "",
    ):
      continue
    protocol = tuning.PROTOCOLS[paper.name, data]
    table = []
    for method, method_rows in tuning.group_by_method(
      records.read_rows(path, None)
    ).items():
      best = next(row for row in method_rows if row["chosen"])
      table.append(
        [
          method,
          len(method_rows),
          f"`{best['setting']}`",
          f"{best['validation']:.2f}",
          *(f"{row['validation']:.2f}" for row in method_rows if row["stated"]),
        ]
      )
    choices.append(
      {
        "data": data,
        "file": path.name,
        "by": protocol.by,
        "seeds": protocol.seeds,
        "table": pages.Table(
          [
            "method",
            "settings tried",
            "chosen",
            "its validation accuracy",
            "with the stated setting",
          ],
          table,
        ),
      }
    )
  return choices


def publish(
  paper: figures.Paper,
  source: pathlib.Path,
  target: pathlib.Path,
  *,
  rewrite: bool = False,
  redraw: bool = False,
  keep_rows: bool = False,
) -> pathlib.Path:
  """Writes a paper's page and its pictures; returns the page.

  Args:
    paper: the paper.
    source: folder that its figures were written to (their --out_dir).
    target: folder of the page.
    rewrite: whether a page is written again, with its notes, for which there is
      no new figure.
    redraw: whether the pictures of published numbers are drawn again.
    keep_rows: whether the published numbers stay that the new figures do not have.

  Raises:
    UsageError: there is no table, a note on a table that does not exist, or a file
      that no figure command of this version has written.
  """
  order = [*paper.figures, *paper.tables]
  names = [
    name for name in order if (source / name / f"{name}{pages.SUFFIX}").is_file()
  ]
  published = _read_published(paper, target)
  if not names and not (rewrite and published):
    raise UsageError(
      f"--from={source}: holds no table of {paper.name} (make them with "
      f"python -m experiments.{paper.name} --{paper.flag}=all)"
    )
  # Nothing is written where one of them is refused.
  notes = _read_notes(paper, target)
  for name in names:
    pages.read(source / name / f"{name}{pages.SUFFIX}")
    if keep_rows and name in published:
      _check_rows(paper, source / name, target, published[name])
  all_pages = {
    end: target / f"{paper.name}{end and '_'}{end}.md"
    for end in ("", *dict.fromkeys(paper.pages.values()))
  }
  _check_outputs(
    paper,
    [source / name for name in names],
    target,
    list(all_pages.values()),
    published.values(),
  )
  all_answers = _merge_answers(paper, source, target, keep_rows)
  target.mkdir(parents=True, exist_ok=True)
  earlier = {picture for figure in published.values() for picture in figure.pictures}
  for name in names:
    published[name] = (
      _update_figure(paper, source / name, target, published[name])
      if keep_rows and name in published
      else _publish_figure(paper, source / name, target)
    )
  if redraw:
    _redraw(paper, published, target)
  _copy_choices(paper, source, target)
  ends = dict.fromkeys(
    paper.pages[name] for name in order if name in published and name in paper.pages
  )
  for end in ("", *ends):
    parts = [
      {
        "figure": published[name],
        "setting": _setting_of(paper, name, target),
        "notes": notes.get(name, ""),
        "sentences": answers.sentences_table(
          a for a in all_answers if a.figure == name
        ),
      }
      for name in order
      if name in published and paper.pages.get(name, "") == end
    ]
    text = pages.render(
      "paper",
      works=paper.works,
      paper=paper.name,
      page=end,
      # A page of one figure begins with the words of the figure.
      words="" if end in order else notes.get(end or "intro", ""),
      more_pages=[] if end else list(ends),
      overview=[] if end or paper.overview is None else paper.overview(all_answers),
      parts=parts,
      hidden=["numbers"] if paper.overview else [],
      choices=_choices(paper, target, end),
    )
    results.write_text(all_pages[end], text)
  listed = {picture for figure in published.values() for picture in figure.pictures}
  for old in sorted(target.glob(f"{paper.name}_*.png")):
    if old.name in earlier - listed:
      print(f"removed {old}: no longer shown", file=sys.stderr)
      old.unlink()
  if all_answers:
    results.write_text(
      target / f"{paper.name}.answers.csv", answers.answers_csv(all_answers)
    )
  return all_pages[""]


def _check_outputs(
  paper: figures.Paper,
  sources: Sequence[pathlib.Path],
  target: pathlib.Path,
  paper_pages: Sequence[pathlib.Path],
  published: Iterable[pages.FigurePage],
) -> None:
  """Refuses to replace what no earlier call has published.

  Args:
    paper: the paper.
    sources: the folders of its new figures.
    target: folder of the pages.
    paper_pages: the pages of the paper.
    published: the figures of earlier calls.

  Raises:
    OptionError: see ``files.check_outputs``.
  """
  outputs = dict.fromkeys(paper_pages, files.text_with("# Results: "))
  outputs[target / f"{paper.name}.answers.csv"] = answers.IS_TABLE
  earlier = {
    name for figure in published for name in (*figure.pictures, figure.numbers)
  }

  def is_published(path: pathlib.Path) -> bool:
    return path.name in earlier

  for folder in sources:
    name = f"{paper.name}_{folder.name}"
    outputs[target / f"{name}{pages.SUFFIX}"] = pages.IS_FIGURE
    outputs[target / f"{name}.csv"] = is_published
    for table in folder.glob(f"*{dots.SUFFIX}"):
      outputs[target / f"{paper.name}_{table.name}"] = dots.IS_TABLE
    for picture in folder.glob("*.png"):
      outputs[target / f"{paper.name}_{picture.name}"] = is_published
  for path in (sources[0].parent if sources else target).glob(
    f"tune/{paper.name}_*/tune.csv"
  ):
    outputs[target / f"{path.parent.name}_tuning.csv"] = tuning.IS_TABLE
  files.check_outputs(f"`to`={target}", outputs)


def _merge_answers(
  paper: figures.Paper, source: pathlib.Path, target: pathlib.Path, keep_rows: bool
) -> list[answers.PaperAnswer]:
  """The answers of the figures, new ones in place of earlier ones."""
  new = {
    name: answers.read_answers(path)
    for name in (*paper.figures, *paper.tables)
    if (path := source / name / f"{name}.answers.csv").is_file()
  }
  answers_file = target / f"{paper.name}.answers.csv"
  old, added = answers.read_answers(answers_file), [*itertools.chain(*new.values())]
  if keep_rows:
    rows = _replace_rows(old, added, lambda a: (a.figure, a.panel, a.method))
  else:
    rows = [*(a for a in old if a.figure not in new), *added]
  order = [*paper.figures, *paper.tables]
  return sorted(
    answers.without_untestable(paper.name, rows), key=lambda a: order.index(a.figure)
  )


def _redraw(
  paper: figures.Paper, published: dict[str, pages.FigurePage], target: pathlib.Path
) -> None:
  """Draws the pictures again that a table of numbers is there for.

  Args:
    paper: the paper.
    published: its figures, whose titles and pictures are brought up to date.
    target: folder of its pages.
  """
  for name in paper.figures:
    if name in published and (pictures := _draw_tables(paper, name, target)):
      published[name] = dataclasses.replace(
        published[name], title=paper.figures[name].title, pictures=pictures
      )
      path = target / f"{paper.name}_{name}{pages.SUFFIX}"
      results.write_text(path, pages.to_json(published[name]))


def _publish_all(target: pathlib.Path, redraw: bool) -> list[pathlib.Path]:
  """Publishes the papers with figures in out/ or a page; returns the pages.

  The last page is that of the claims.

  Args:
    target: folder of the pages.
    redraw: see ``publish``.
  """
  paper_pages = [
    publish(paper, source, target, rewrite=True, redraw=redraw)
    for name, paper in PAPERS.items()
    if (source := expand_path(f"out/{name}")).is_dir()
    or (target / f"{name}.md").is_file()
  ]
  target.mkdir(parents=True, exist_ok=True)
  page = target / "claims.md"
  files.check_outputs(
    f"`to`={target}", {page: files.text_with("# Claims of the papers")}
  )
  results.write_text(
    page,
    claims_page.claims_text(
      {
        name: claims_page.claim_rows(
          name,
          PAPERS[name].own,
          answers.read_answers(target / f"{name}.answers.csv"),
          PAPERS[name].same_runs,
          PAPERS[name].balanced,
        )
        for name in CLAIMED
      }
    ),
  )
  return [*paper_pages, page]


_FLAGS = (
  enum("paper", None, list(PAPERS), "the paper"),
  boolean(
    "all",
    False,
    "publish every paper with figures in out/<paper> or "
    "a page, and the page of all claims",
  ),
  boolean(
    "redraw",
    False,
    "draw the pictures again from the tables of their numbers (*.dots.csv)",
  ),
  boolean(
    "keep_rows",
    False,
    "keep the published numbers of panels and lines that the figures in --from were "
    "not made of",
  ),
  string(
    "from",
    None,
    "folder that the figures were written to (--out_dir "
    "of their command); default out/<paper>",
  ),
  string(
    "to",
    "docs/results",
    "folder to write the page and its pictures to; it has the notes, too",
  ),
)


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Writes the page."""
  del argv
  config_lib.refuse_words(words)
  if values.all:
    for flag in ("paper", "from", "keep_rows"):
      if values[flag].present:
        raise UsageError(
          f"--{flag}: not read with --all, which takes out/<paper> of each"
        )
    print(*_publish_all(expand_path(values.to), values.redraw), sep="\n")
    return
  if values.paper is None:
    raise UsageError(f"--paper: missing (one of {', '.join(PAPERS)}; or --all)")
  source = pathlib.Path(values["from"].value or f"out/{values.paper}")
  print(
    publish(
      PAPERS[values.paper],
      expand_path(source),
      expand_path(values.to),
      rewrite=not values["from"].present,
      redraw=values.redraw,
      keep_rows=values.keep_rows,
    )
  )


main = Command("publish", __doc__, _FLAGS, _run)

if __name__ == "__main__":
  sys.exit(main())
