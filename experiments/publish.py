"""Collects a paper's finished figures and tables into one documentation page.

  python -m experiments.publish --paper=diversified --from=out/diversified

First make the figures, for example with python -m experiments.diversified
--figure=all. This command then writes docs/results/diversified.md with every table
that it finds (fig1/fig1.md, table1/table1.md, ...). It copies the pictures
next to the page, and compresses large ones.

  python -m experiments.publish --all

publishes every paper with figures in out/<paper> or with a page,
including the pages of the commands experiments.trust and experiments.beyond. You
also get docs/results/claims.md. It shows how many claims of each of the four papers
are met, and every claim that is not, with the attempts. The answers of the figures
are in docs/results/<paper>.answers.csv. Without --from, an existing page is written
again from its content and its notes.

  python -m experiments.publish --all --redraw

draws the pictures again for which the numbers next to the pages suffice. For the
others you need the folders of their figures (--finished of their commands).

The part of a figure on the page, with answers and pictures, does not change until
you publish that figure again. You can therefore make one figure anew without the
runs of the others. To remove a figure, delete its part of the page and its lines of
the answers.

You can write text for a page into docs/results/diversified.notes.md. A section with
the heading "## fig1" is put below the title of that figure, and "## intro" at the
top of the page. The section "## cifar10" is put at the top of the page
diversified_cifar10.md. The
same input always gives the same files.
"""

from collections.abc import Mapping, Sequence
import csv
import importlib
import io
import itertools
import pathlib
import re
import sys
import tempfile

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
from .reports import markdown
from .reproduction import answers, claims_page, figures, report, tuning

#: The papers whose methods the library is made for.
CLAIMED = ("diversified", "conjugate", "fedgroup", "analytic")

PAPERS: dict[str, figures.Paper] = {
  name: importlib.import_module(f".reproduction.{name}.figures", __package__).PAPER
  for name in (*CLAIMED, "trust", "beyond")
}

#: Lines of a page that no reader sees: here begins the part of a figure, within
#: it the setting, which is made of presets every time, the text of the notes, which
#: is read from their file every time, and what of the figure stands below them; and
#: at the end what validation chose.
_PART = "<!-- {} -->"
_SETTING, _NOTES = "<!-- setting -->", "<!-- notes -->"
_BELOW, _TUNING = "<!-- below -->", "<!-- chosen -->"

#: A picture in the documentation is smaller than this.
MOST_BYTES = 200_000


def _read_notes(path: pathlib.Path) -> dict[str, str]:
  """Reads a file of ``## section`` parts: section -> text; {} without a file.

  Raises:
    UsageError: there is text before the first section.
  """
  if not path.is_file():
    return {}
  parts = re.split(r"^## +(\S+) *$", files.read_text(path), flags=re.M)
  if re.sub(r"^#[^#].*$", "", parts[0], flags=re.M).strip():
    raise UsageError(
      f"{path}: there is text before the first section (## intro, ## fig1, ...)"
    )
  return dict(zip(parts[1::2], map(str.strip, parts[2::2])))


def _is_picture(path: pathlib.Path) -> bool:
  """Recognizes a picture of a figure command, or one with fewer colors.

  Of the latter most colors of lines are among the few.
  """
  if files.picture(path):
    return True
  try:
    image = Image.open(io.BytesIO(files.read_bytes(path)))
  except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
    return False
  values = image.getpalette() if image.mode == "P" else None
  colours = set(zip(*3 * [iter(values or ())]))
  lines = {tuple(bytes.fromhex(colour[1:])) for colour in styles.COLOURS}
  return 2 * len(colours & lines) > len(lines)


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


def _lower(path: pathlib.Path) -> tuple[str, str]:
  """(title, body) of a page, with the headings of the body one level lower.

  Raises:
    UsageError: the page has no title.
  """
  title, _, body = files.read_text(path).partition("\n")
  if not title.startswith("# "):
    raise UsageError(
      f"{path}: has no title, so it is not a table of a figure command; run the "
      "figure again"
    )
  return title.removeprefix("# "), re.sub(r"^#", "##", body, flags=re.M).strip()


def _read_parts(page: pathlib.Path) -> dict[str, str]:
  """The parts of a page without their notes: figure -> text."""
  if not page.is_file():
    return {}
  parts = re.split(r"^<!-- (\w+) -->$", files.read_text(page), flags=re.M)
  texts: dict[str, str] = {}
  figure = ""
  for name, text in zip(parts[1::2], map(str.strip, parts[2::2])):
    mark = _PART.format(name)
    if mark == _BELOW:
      texts[figure] += f"\n\n{text}"
    elif mark not in (_SETTING, _NOTES, _TUNING):
      figure, texts[name] = name, text
  return texts


def _with_notes(part: str, setting: str, notes: str) -> str:
  """A figure's part with setting and notes below the title, or above one without."""
  if not setting and not notes:
    return part
  title, _, body = part.partition("\n\n")
  if not title.startswith("## "):
    title, body = "", part
  return "\n\n".join(
    filter(
      None,
      [
        title,
        *([_SETTING, setting] if setting else []),
        *([_NOTES, notes] if notes else []),
        _BELOW,
        body,
      ],
    )
  )


def _setting_of(paper: figures.Paper, name: str, target: pathlib.Path) -> str:
  """What all runs of a figure have; "" of a table, or if it does not say it."""
  figure = paper.figures.get(name)
  return figure.setting(target) if figure and figure.setting else ""


def _figure_part(
  paper: figures.Paper,
  title: str,
  body: str,
  folder: pathlib.Path,
  target: pathlib.Path,
) -> str:
  """A figure's part of the page; its pictures are copied beside the page."""
  numbers = folder / f"{folder.name}_numbers.csv"
  if numbers.is_file():
    copy = f"{paper.name}_{folder.name}.csv"
    results.write_text(target / copy, files.read_text(numbers))
    body += (
      f"\n\nEvery number, how its settings were chosen, and its flags: "
      f"[{copy}]({copy})."
    )
  source_figure = paper.source_of(folder.name)
  if source_figure is not None:  # its pictures and sentences are those of another
    return markdown.collapse(
      f"{title}: the runs of {source_figure}", report.without_others(body)
    )
  parts = [f"## {title}"]
  for picture in sorted(
    folder.glob("*.png"), key=lambda path: (len(path.stem), path.stem)
  ):
    copy = f"{paper.name}_{picture.name}"
    with files.replacing(target / copy) as partial:
      partial.write_bytes(_small_png(picture))
    parts.append(f"![{title}]({copy})")
  return "\n\n".join([*parts, body])


def _tuning(
  paper: figures.Paper, source: pathlib.Path, target: pathlib.Path, end: str
) -> str:
  """Section: what validation chose, from the tables of ``experiments.tune``.

  They are copied beside the page, where they are found again. Those of data
  with a page of their own stand on that one, those of board_mnist on that of
  board.
  """
  parts, protocol = [], None
  for path in sorted((source.parent / "tune").glob(f"{paper.name}_*/tune.csv")):
    results.write_text(target / f"{path.parent.name}_tuning.csv", files.read_text(path))
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
    parts.append(
      f"{data}, [every setting]({path.name}):\n\n"
      + markdown.table(
        [
          "method",
          "settings tried",
          "chosen",
          "its validation accuracy",
          "with the stated setting",
        ],
        table,
      )
    )
  if protocol is None:
    return ""
  by = (
    "clients that are held out, with at least 100 examples of every class"
    if protocol.by == "validation"
    else "a sixth of the clients' training examples"
  )
  seeds = {1: "one seed", 3: "three seeds"}[protocol.seeds]
  return "\n\n".join(
    [
      _TUNING,
      "## Chosen how",
      "With `experiments.tune --paper`: every method tries the same number of "
      "settings, drawn from all its ranges together, the stated one first. Scores "
      f"are means over three partitions of {seeds} on {by}.",
      *parts,
    ]
  )


def publish(
  paper: figures.Paper,
  source: pathlib.Path,
  target: pathlib.Path,
  *,
  rewrite: bool = False,
) -> pathlib.Path:
  """Writes a paper's page and its pictures; returns the page.

  Args:
    paper: the paper.
    source: folder that its figures were written to (their --out_dir).
    target: folder of the page.
    rewrite: whether a page is written again, with its notes, for which there is
      no new figure.

  Raises:
    UsageError: there is no table, or a note on a table that does not exist.
  """
  order = [*paper.figures, *paper.tables]
  names = [name for name in order if (source / name / f"{name}.md").is_file()]
  pages = {
    end: target / f"{paper.name}{end and '_'}{end}.md"
    for end in ("", *dict.fromkeys(paper.pages.values()))
  }
  figure_parts = {
    name: text for page in pages.values() for name, text in _read_parts(page).items()
  }
  if not names and not (rewrite and figure_parts):
    raise UsageError(
      f"--from={source}: holds no table of {paper.name} (make them with "
      f"python -m experiments.{paper.name} --{paper.flag}=all)"
    )
  file = target / f"{paper.name}.notes.md"
  notes = _read_notes(file)
  # The words at the top of each page; a page of one figure begins with those of
  # the figure.
  tops = {end: end or "intro" for end in pages if end not in order}
  sections = [*tops.values(), *order]
  for name in notes:
    if name not in sections:
      raise UsageError(f"{file}: ## {name} is no section (of {', '.join(sections)})")
  # Nothing is written where one of them is refused.
  figure_texts = {name: _lower(source / name / f"{name}.md") for name in names}
  _check_outputs(paper, [source / name for name in names], target, list(pages.values()))
  target.mkdir(parents=True, exist_ok=True)
  for name in names:
    figure_parts[name] = _figure_part(paper, *figure_texts[name], source / name, target)
  all_answers = _merge_answers(paper, source, target)
  for name, part in figure_parts.items():
    figure_parts[name] = _with_sentences(
      report.without_numbers(part) if paper.overview else part,
      [a for a in all_answers if a.figure == name],
    )
  texts = {}
  for end, page in pages.items():
    of_page = [
      name
      for name in order
      if name in figure_parts and paper.pages.get(name, "") == end
    ]
    if end and not of_page:
      continue
    parts = [
      f"# Results: {paper.works}{end and ', '}{end}",
      *filter(
        None,
        [
          notes.get(tops.get(end, ""), ""),
          "" if end else _others(paper, figure_parts),
          "" if end or paper.overview is None else paper.overview(all_answers),
        ],
      ),
    ]
    for name in of_page:
      parts += [
        _PART.format(name),
        _with_notes(
          figure_parts[name], _setting_of(paper, name, target), notes.get(name, "")
        ),
      ]
    parts += filter(None, [_tuning(paper, source, target, end)])
    texts[page] = "\n\n".join(parts) + "\n"
  for old in sorted(target.glob(f"{paper.name}_*.png")):
    if not any(old.name in text for text in texts.values()) and (
      not files.obstacle(old, _is_picture)
    ):
      print(f"removed {old}: no longer shown", file=sys.stderr)
      old.unlink()
  for page, text in texts.items():
    results.write_text(page, text)
  if all_answers:
    results.write_text(
      target / f"{paper.name}.answers.csv", answers.answers_csv(all_answers)
    )
  return pages[""]


def _check_outputs(
  paper: figures.Paper,
  sources: Sequence[pathlib.Path],
  target: pathlib.Path,
  pages: Sequence[pathlib.Path],
) -> None:
  """Refuses to replace what no earlier call has published.

  Args:
    paper: the paper.
    sources: the folders of its new figures.
    target: folder of the pages.
    pages: the pages of the paper.

  Raises:
    OptionError: see ``files.check_outputs``.
  """
  is_page = files.text_with("# Results: ")
  outputs = {page: is_page for page in pages} | {
    target / f"{paper.name}.answers.csv": answers.IS_TABLE
  }
  earlier = "".join(
    files.read_text(page) for page in pages if page.is_file() and is_page(page)
  )

  def is_on_page(path: pathlib.Path) -> bool:
    return f"]({path.name})" in earlier

  for folder in sources:
    outputs[target / f"{paper.name}_{folder.name}.csv"] = is_on_page
    for picture in folder.glob("*.png"):
      outputs[target / f"{paper.name}_{picture.name}"] = lambda path: (
        is_on_page(path) or _is_picture(path)
      )
  for path in (sources[0].parent.parent if sources else target).glob(
    f"tune/{paper.name}_*/tune.csv"
  ):
    outputs[target / f"{path.parent.name}_tuning.csv"] = tuning.IS_TABLE
  files.check_outputs(f"`to`={target}", outputs)


def _others(paper: figures.Paper, figure_parts: Mapping[str, str]) -> str:
  """The line that names the other pages of a paper."""
  ends = dict.fromkeys(
    paper.pages[name]
    for name in (*paper.figures, *paper.tables)
    if name in figure_parts and name in paper.pages
  )
  return (
    ends
    and "More pages: "
    + ", ".join(f"[{end}]({paper.name}_{end}.md)" for end in ends)
    + "."
    or ""
  )


def _with_sentences(part: str, figure_answers: Sequence[answers.PaperAnswer]) -> str:
  """A figure's part with the table of sentences that its answers give."""
  section = answers.sentences_section(figure_answers)
  return re.sub(
    rf"^### {answers.SENTENCES}\n\n(?:\|.*(?:\n|\Z))+",
    lambda _: f"#{section}\n",
    part,
    flags=re.M,
  ).rstrip()


def _merge_answers(
  paper: figures.Paper, source: pathlib.Path, target: pathlib.Path
) -> list[answers.PaperAnswer]:
  """The answers of the figures, new ones in place of earlier ones."""
  new = {
    name: answers.read_answers(path)
    for name in (*paper.figures, *paper.tables)
    if (path := source / name / f"{name}.answers.csv").is_file()
  }
  answers_file = target / f"{paper.name}.answers.csv"
  old = [a for a in answers.read_answers(answers_file) if a.figure not in new]
  order = [*paper.figures, *paper.tables]
  return sorted(
    answers.without_untestable(paper.name, [*old, *itertools.chain(*new.values())]),
    key=lambda a: order.index(a.figure),
  )


def redraw(paper: figures.Paper, target: pathlib.Path) -> list[pathlib.Path]:
  """Draws the pictures of a paper again that its stored numbers suffice for.

  Args:
    paper: the paper.
    target: folder of its page, with the tables of numbers.

  Returns:
    The pictures, which are those of figures that are on the page.
  """
  pictures = []
  for name, figure in paper.figures.items():
    numbers = target / f"{paper.name}_{name}.csv"
    picture = target / f"{paper.name}_{name}.png"
    draw = figure.draw
    if not (
      isinstance(draw, figures.Dots)
      and draw.stored
      and numbers.is_file()
      and picture.is_file()
    ):
      continue
    with open(numbers, newline="", encoding="utf-8") as file:
      rows = list(csv.DictReader(file))
    files.check_outputs(f"`to`={target}", {picture: _is_picture})
    with tempfile.TemporaryDirectory() as folder:
      uncompressed = pathlib.Path(folder) / picture.name
      draw.draw_numbers([uncompressed], rows, figure.title)
      with files.replacing(picture) as partial:
        partial.write_bytes(_small_png(uncompressed))
    pictures.append(picture)
  return pictures


def _publish_all(target: pathlib.Path) -> list[pathlib.Path]:
  """Publishes the papers with figures in out/ or a page; returns the pages.

  The last page is that of the claims.
  """
  pages = [
    publish(paper, source, target, rewrite=True)
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
  return [*pages, page]


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
    "with --all: draw the pictures again if the numbers next to the pages suffice",
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
    "folder to write the page and its pictures to; the notes are read from it, too",
  ),
)


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Writes the page."""
  del argv
  config_lib.refuse_words(words)
  if values.all:
    for flag in ("paper", "from"):
      if values[flag].present:
        raise UsageError(
          f"--{flag}: not read with --all, which takes out/<paper> of each"
        )
    print(*_publish_all(expand_path(values.to)), sep="\n")
    if values.redraw:
      for paper in PAPERS.values():
        print(*redraw(paper, expand_path(values.to)), sep="\n")
    return
  if values.redraw:
    raise UsageError("--redraw: only with --all")
  if values.paper is None:
    raise UsageError(f"--paper: missing (one of {', '.join(PAPERS)}; or --all)")
  source = pathlib.Path(values["from"].value or f"out/{values.paper}")
  print(
    publish(
      PAPERS[values.paper],
      expand_path(source),
      expand_path(values.to),
      rewrite=not values["from"].present,
    )
  )


main = Command(__doc__, _FLAGS, _run)

if __name__ == "__main__":
  sys.exit(main())
