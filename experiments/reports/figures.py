"""The parts that the figure commands of all papers share.

A ``Paper`` describes its figures. Its command plays the runs that a figure
needs, or finds those that exist, and writes the picture (PNG, PDF), its points
(CSV) and a table of the paper's numbers beside ours (Markdown).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import pathlib
import shlex
from typing import Any, NamedTuple

from absl import flags as absl_flags

from fedjax_alg.records import summary as results
from fedjax_alg import files, metrics, registry
from fedjax_alg.files import expanded
from fedjax_alg.runs.compare import compare
from fedjax_alg.runs.result import load_run
from ..cli import config as config_lib
from ..cli import guard
from ..cli import part as part_lib
from ..cli import flag_words, program
from . import answers, chosen, comparison, page, partitions, plots, report
from . import styles, suite, verdicts

#: The settings of a paper's own methods, each with a file <setting>.flags. In
#: tables ``styles.STATED`` follows the name of a method in the second setting.
SETTINGS = ("headline", "stated")

#: Flags of --scale=quick, which shrink a figure to minutes on two cores.
QUICK = ("--rounds=30", "--num_seeds=1")

#: Data sets that are read from --data_dir.
PREPARED = ("mnist", "fashion_mnist", "cifar10", "femnist", "sent140")

#: Makes a Markdown section from the outcomes of a figure; "" for none.
Section = Callable[[Sequence[suite.Outcome]], str]

#: (label, flags) of each line of a panel.
Lines = list[tuple[str, tuple[str, ...]]]


class Panel(NamedTuple):
  """One panel of a figure, and how it differs from the others."""

  letter: str
  title: str
  flags: tuple[str, ...]
  data: str = ""  #: preset of its data, if it is not that of the figure
  eval_every: int = 0  #: --eval_every, if it is not that of the figure
  #: half of the run's rounds -> further flags
  halfway: Callable[[int], tuple[str, ...]] | None = None
  #: how what ``flags`` say was chosen, as in a flag file; "": stated
  chosen: str = ""


class Figure(NamedTuple):
  """One figure: what it varies, and which metric it shows."""

  title: str
  metric: str
  data: str  #: preset of the data, <paper>/<data>.flags
  panels: tuple[Panel, ...]
  baselines: bool = True  #: whether it also shows methods of other papers
  fixed: tuple[str, ...] = ()  #: flags of the paper's own methods in it
  held: tuple[str, ...] = ()  #: flags that hold clients out for validation
  #: (end of the label, flags) of each line of a method of the paper
  lines: tuple[tuple[str, tuple[str, ...]], ...] = (("", ()),)
  protocol: str = "global"  #: the protocol that is shown
  protocols: str = "global"  #: the protocols that are evaluated
  eval_every: int = 2
  settings: tuple[str, ...] = SETTINGS  #: settings of the paper's own methods
  sections: tuple[Section, ...] = ()
  statements: tuple[verdicts.Statement, ...] = ()
  #: the lines of a panel; None: all methods with a flag file
  lines_of: Callable[[Panel], Lines] | None = None
  #: (panel, label) -> flag files of which that line has flags without naming
  #: them, so that what they declare of their choice is found
  sources: Callable[[Panel, str], tuple[str, ...]] = lambda panel, label: ()
  #: letters of the panels of --scale=quick; (): the first and the last
  quick: tuple[str, ...] = ()
  #: --num_seeds at full scale, of lines that do not say it themselves
  num_seeds: int = 3
  #: --partitions at full scale, if the user does not say it
  partitions: int = 1
  shrunk: tuple[str, ...] = ()  #: further flags of --scale=quick
  #: the table; None: the mean of the last rounds beside the paper's number
  table: Section | None = None
  #: whether the table lists what the paper has, so that it needs no run
  of_claims: bool = False
  #: metric of the claims file -> what is measured; {}: the mean of the last
  #: rounds of the figure's own metric
  measures: answers.Measures = {}
  #: answers to numbers that the paper states for another figure or table
  further: Callable[[Sequence[suite.Outcome]], list[answers.Answer]] = (
      lambda outcomes: [])
  #: (paths, outcomes, x axis): draws the picture; None: draw curves
  draw: Callable[[list[pathlib.Path], list[suite.Outcome], str], None] | (
      None) = None


class Request(NamedTuple):
  """What the user asks for, the same for every figure."""

  root: pathlib.Path  #: folder of the results, --out_dir
  #: flags of every run; they come last and so override the presets
  common: tuple[str, ...]
  command_line: str  #: the command, as shown below the tables
  quick: bool = False  #: whether --scale is quick
  panels: tuple[str, ...] | None = None  #: letters of the panels; None: all
  lines: tuple[str, ...] | None = None  #: labels of the lines; None: all
  x_axis: str = "rounds"
  files: Mapping[str, str] = {}  #: the flags of ``Paper.files`` that are given
  data_dir: str | None = None  #: --data_dir of runs that read prepared data
  html: bool = False  #: whether every figure gets a page, too
  part: part_lib.Part | None = None  #: play this part of the runs alone
  #: number of partitions that every run is played on; None: as the figure says
  partitions: int | None = None
  finished: bool = False  #: play nothing, show the runs that are finished


class Table(NamedTuple):
  """A table of a paper, or a figure without curves."""

  title: str
  make: Callable[[Request], Any]
  plays: bool = False  #: whether it reads runs, as figures do


class Paper(NamedTuple):
  """A paper's figures and tables."""

  name: str  #: name of its command, and of the folder of its presets and claims
  proposed: tuple[str, ...]  #: algorithms that have the files of ``SETTINGS``
  figures: Mapping[str, Figure]
  tables: Mapping[str, Table]
  note: str  #: sentences below every table
  own: tuple[str, ...]  #: beginnings of the names of the paper's own methods
  quick: tuple[str, ...] = QUICK  #: flags of --scale=quick
  seeds: str = "3 seeds"  #: number of seeds of --scale=full, in words
  #: name of a flag of its command whose value is a file -> help
  files: Mapping[str, str] = {}
  #: (figure, request) -> the figure as it can be made on this machine, and
  #: sentences about what it lacks
  fit: Callable[[Figure, Request], tuple[Figure, list[str]]] = (
      lambda figure, request: (figure, []))
  flag: str = "figure"  #: the flag that names what is to be made
  #: a figure, as the claims name it -> the figure whose runs it shows
  same_runs: Mapping[str, str] = {}
  #: figure or table -> the end of the name of its page, if it is not the first
  pages: Mapping[str, str] = {}
  #: figures on a test set with equally many examples of each class
  balanced: tuple[str, ...] = ()
  #: of which works its figures are, for --help and for the published page
  subject: str = ""

  @property
  def works(self) -> str:
    """What the figures are of, in words."""
    return self.subject or f"the {self.name} paper"

  def like(self, name: str) -> str | None:
    """The figure whose runs a figure shows; None if they are its own."""
    return {figure.lower(): other
            for figure, other in self.same_runs.items()}.get(name)

  def main(self, argv: Sequence[str] | None = None) -> int:
    """Runs the paper's command; returns the exit status."""
    return guard.guarded(
        functools.partial(command, self), argv, guard.AGAIN)


def participation(*percent: int) -> tuple[Panel, ...]:
  """A panel for each share of participants, in percent."""
  return tuple(
      Panel(letter, f"{p} % of the clients", (f"--participation={p/100}",))
      for letter, p in zip("abcd", percent))


def method_files(paper: Paper, folder: str) -> dict[str, tuple[str, ...]]:
  """algorithm -> the --flagfile of its file in a folder of the presets."""
  files = {name: f"{paper.name}/{folder}/{name}.flags"
           for name in registry.ALGORITHMS}
  return {name: (f"--flagfile={file}",) for name, file in files.items()
          if (config_lib.PRESETS / file).is_file()}


def methods(
    paper: Paper, figure: Figure, settings: Sequence[str]
) -> Lines:
  """(label, flags) of every line of a figure.

  A figure shows every registered method that has a file in methods/. The file
  of a method in methods_<data>/ overrides that file for a single data set. The
  paper's own methods come once for each of ``settings``. Where these have
  "stated", other methods come with the paper's one rate, too, if they have a
  file in stated_<data>/.
  """
  general = method_files(paper, "methods")
  special = method_files(paper, f"methods_{figure.data}")
  found = []
  for setting in settings:
    file = f"{paper.name}/{setting}.flags"
    if not (config_lib.PRESETS / file).is_file():
      continue
    headline = setting == "headline"
    for name in paper.proposed:
      if name not in registry.ALGORITHMS:
        continue
      for suffix, line_flags in figure.lines:
        label = registry.get(name).label + suffix
        found.append((label if headline else label + styles.STATED, (
            f"--flagfile={file}", f"--algorithm={name}",
            *(general.get(name, ()) if headline else ()), *figure.fixed,
            *(special.get(name, ()) if headline else ()), *line_flags)))
  if figure.baselines:
    found += [(registry.get(name).label,
               (*general.get(name, ()), *special.get(name, ())))
              for name in registry.ALGORITHMS
              if name not in paper.proposed and (
                  name in general or name in special)]
    if "stated" in settings:
      found += [(registry.get(name).label + styles.ONE_RATE, line)
                for name, line in method_files(
                    paper, f"stated_{figure.data}").items()]
  return found


#: What the data preset leaves as the line has it: of these the stated settings
#: need values of their own.
_KEPT = ("l2", "l2_of", "hog_norm")


def _stated(flags: Sequence[str], data: str) -> list[str]:
  """What a line says of ``_KEPT``, where the data preset differs.

  What its files include does not count: it is a data preset as well.
  """
  own: list[str] = []
  for flag in flags:
    name, _, value = flag.partition("=")
    own += files.read_text(config_lib.flag_file(value)).split() if (
        name == "--flagfile") else [flag]
  common = config_lib.expand_flagfiles([data])
  found = []
  for name in _KEPT:
    said, shared = ([flag for flag in words if flag.startswith(f"--{name}=")][
        -1:] for words in (own, common))
    found += said if said != shared else []
  return found


def _cell(
    paper: Paper, figure: Figure, panel: Panel, label: str,
    line: Sequence[str], request: Request) -> suite.Cell:
  """The run of one line in one panel."""
  # The data preset overrides the flags of the line, so that a method's file for
  # MNIST serves CIFAR-10 too, but for ``_KEPT``.
  data = f"--flagfile={paper.name}/{panel.data or figure.data}.flags"
  kept = _stated(line, data)
  flags = (*line, data, *kept, *figure.held, *panel.flags)
  names = set(map(flag_words.name_of, kept))
  how = [f"{choice.how}, {choice.what}" for choice in chosen.of_flags(line)
         if choice.what in names and choice.how != "stated"]
  scale: tuple[str, ...] = ()
  if request.quick:
    scale = (*paper.quick, *figure.shrunk)
  elif not any(flag.startswith("--num_seeds=") for flag in line):
    scale = (f"--num_seeds={figure.num_seeds}",)
  common = (*scale, *request.common)
  # Some flags depend on what the others say, so these are parsed first.
  run = config_lib.parse((*flags, *common))
  halfway = () if panel.halfway is None else panel.halfway(
      max(run.values["rounds"] // 2, 1))
  protocols = figure.protocols.split(",")
  # Methods that adapt the model to each client are evaluated on clients, too.
  if registry.get(run.algorithm).adapts and "local" not in protocols:
    protocols.append("local")
  data_dir = []
  if (request.data_dir and run.values["dataset"] in PREPARED
      and not run.values["data_path"]):
    data_dir = [f"--data_dir={request.data_dir}"]
  return suite.Cell(panel.letter, panel.title, label, (
      *flags, *halfway, f"--eval_protocols={','.join(protocols)}",
      f"--eval_every={panel.eval_every or figure.eval_every}", *common,
      *data_dir), "\n# chosen: ".join(filter(None, [*how, panel.chosen])),
                    figure.sources(panel, label))


def each_cell(
    paper: Paper, figure: Figure, request: Request,
    settings: Sequence[str] = SETTINGS) -> Iterator[suite.Cell]:
  """Every run of a figure, one after the other.

  Args:
    paper: the paper.
    figure: one of its figures.
    request: what the user asks for.
    settings: the settings of the paper's own methods, some of ``SETTINGS``.

  Raises:
    UsageError: there is no method to run, or a flag is wrong.
  """
  lines: Lines = []
  if figure.lines_of is None:
    lines = methods(
        paper, figure, [s for s in settings if s in figure.settings])
    if not lines:
      raise config_lib.UsageError(
          f"{figure.title}: no method can be run, none of those with a file in "
          f"presets/{paper.name}/ is registered")
  for panel in figure.panels:
    for label, line in figure.lines_of(panel) if figure.lines_of else lines:
      if request.lines is None or label in request.lines:
        yield _cell(paper, figure, panel, label, line, request)


def cells(
    paper: Paper, figure: Figure, request: Request,
    settings: Sequence[str] = SETTINGS) -> list[suite.Cell]:
  """The runs of ``each_cell`` as a list."""
  return list(each_cell(paper, figure, request, settings))


def only(name: str, figure: Figure, panels: Sequence[str]) -> Figure:
  """The figure with only some of its panels.

  Raises:
    UsageError: it has none of them.
  """
  kept = tuple(p for p in figure.panels if p.letter in panels)
  if not kept:
    raise config_lib.UsageError(
        f"--panels={','.join(panels)}: {name} has "
        f"{', '.join(p.letter for p in figure.panels)}")
  return figure._replace(panels=kept)


def outcomes_of(
    paper: Paper, figure: Figure, request: Request,
    settings: Sequence[str] = SETTINGS) -> list[suite.Outcome]:
  """Plays or finds the runs of a figure.

  At quick scale the paper's own methods run in the headline setting alone.

  Raises:
    UsageError: a flag is wrong, or ``request.lines`` has an unknown label.
    Incomplete: see ``suite.run_cells``.
  """
  wanted = figure.settings[:1] if request.quick else settings
  found = cells(paper, figure, request, wanted)
  labels = {cell.label for cell in found}
  for label in request.lines or ():
    if label not in labels:
      known = dict.fromkeys(cell.label for cell in each_cell(
          paper, figure, request._replace(lines=None), wanted))
      raise config_lib.UsageError(
          f"--lines={label}: no such line (one of {', '.join(known)})")
  number = request.partitions or (1 if request.quick else figure.partitions)
  if request.finished:
    found = suite.finished(found, request.root, number)
  return suite.run_on_partitions(found, request.root, number, request.part)


def write(
    request: Request, name: str, text: str,
    found: Sequence[answers.Answer] = ()) -> pathlib.Path:
  """Writes <name>.md, which is printed, and <name>.answers.csv.

  Returns:
    Their folder.
  """
  folder = request.root / name
  folder.mkdir(parents=True, exist_ok=True)
  results.write_text(folder / f"{name}.md", text)
  results.write_text(folder / f"{name}.answers.csv", answers.text(found))
  print(text, flush=True)
  return folder


def pictures(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
  """The paths of a picture's PNG and PDF; prints the first one."""
  found = [folder / f"{name}.{kind}" for kind in ("png", "pdf")]
  print(f"figure: {found[0]}", flush=True)
  return found


def _without_places(text: str, request: Request) -> str:
  """A text of a page, in which the user's folders have only their names."""
  for place in (request.data_dir, *request.files.values()):
    name = pathlib.Path(place or "").name
    if place and name:  # "." has no name of its own
      text = text.replace(place, name)
  return text


def make_figure(paper: Paper, name: str, request: Request) -> str:
  """Plays what a figure needs, writes it and returns its Markdown page."""
  figure = paper.figures[name]
  notes = [paper.note]
  if request.panels:
    figure = only(name, figure, request.panels)
  elif request.quick and (figure.quick or len(figure.panels) > 2):
    letters = figure.quick or (
        figure.panels[0].letter, figure.panels[-1].letter)
    figure = only(name, figure, letters)
    which = "" if figure.quick else "the first and the last panel "
    notes.append(
        f"Quick: `{' '.join([*paper.quick, *figure.shrunk])}`, {which}"
        f"({' and '.join(letters)}; --panels gives others).")
  figure, lacking = paper.fit(figure, request)
  if not figure.panels and not request.finished:
    raise config_lib.UsageError(f"{name}: {' '.join(lacking)}")
  outcomes = outcomes_of(paper, figure, request)
  if not outcomes and not figure.of_claims:
    raise config_lib.UsageError(f"--finished: no run of {name} is")
  parts = [
      *(section(outcomes) for section in figure.sections),
      verdicts.section(figure.statements, outcomes),
      _without_places("\n\n".join(lacking), request),
      report.provenance(outcomes, request.command_line, " ".join(notes),
                        figure.table is not None)]
  rows = report.compare(
      outcomes, report.load_claims(paper.name, name), figure.protocol,
      figure.metric)
  if figure.table is not None:
    text = report.join(figure.title, [figure.table(outcomes), *parts])
  else:
    text = report.markdown(
        figure.title, rows, [] if paper.like(name) else parts, paper.own)
  numbers = request.root / name / f"{name}_numbers.csv"
  numbers.parent.mkdir(parents=True, exist_ok=True)
  report.numbers_csv(numbers, rows, outcomes)
  measures = figure.measures or {
      prefix + figure.metric: _late(figure) for prefix in ("", "test_")}
  folder = write(request, name, text, [
      *answers.numbers(paper.name, name, outcomes, measures),
      *answers.sentences(name, figure.statements, outcomes),
      *figure.further(outcomes)])
  report.points_csv(
      folder / f"{name}.csv", outcomes, figure.protocol, figure.metric)
  suffix = "" if request.x_axis == "rounds" else f"_vs_{request.x_axis}"
  paths = pictures(folder, name + suffix)
  if figure.draw is not None and outcomes:
    figure.draw(paths, outcomes, request.x_axis)
  elif outcomes:
    _draw(paper, name, figure, outcomes, request, paths)
  if request.html:
    _write_page(folder / f"{name}.html", figure, outcomes, request)
  return text


def _draw(
    paper: Paper, name: str, figure: Figure, outcomes: list[suite.Outcome],
    request: Request, paths: list[pathlib.Path]) -> None:
  """Draws the curves, those by the paper's settings beside the tuned ones."""
  protocols = dict(reversed(verdicts.by_protocol(outcomes).items()))
  cells, marks = {}, {}
  for panel in suite.by_panel(outcomes):
    title = suite.heading(panel[0].cell)
    for words, runs in protocols.items():
      which = title if len(protocols) == 1 else f"{title}, {words}"
      cells[which] = suite.rows_by_panel(runs).get(title, {})
      marks[which] = report.marks(
          paper.name, name, runs, figure.metric).get(title, [])
  plots.panels(
      paths, {title: runs for title, runs in cells.items() if runs},
      figure.protocol, figure.metric, figure.title, request.x_axis, marks)


def as_dots(
    measure: verdicts.Measure, x_label: str, title: str,
    stated: Mapping[tuple[str, str], float] | None = None,
    by_method: bool = False
) -> Callable[[list[pathlib.Path], list[suite.Outcome], str], None]:
  """Makes the ``Figure.draw`` of a number of each run, as dots.

  Args:
    measure: run -> one number for each seed.
    x_label: of the numbers.
    title: above all panels.
    stated: (panel, method) -> the paper's number.
    by_method: whether there is a panel for each method, with a row for each
      panel of the figure, and not the other way round.
  """

  def draw(
      paths: list[pathlib.Path], outcomes: list[suite.Outcome], x_axis: str
  ) -> None:
    del x_axis  # dots
    cells: dict[str, dict[str, plots.Dot]] = {}
    for o in outcomes:
      place = suite.heading(o.cell), o.cell.label
      panel, row = reversed(place) if by_method else place
      cells.setdefault(panel, {})[row] = plots.Dot(
          *metrics.confidence_95(
              partitions.means(measure(o), o.parts).tolist()),
          (stated or {}).get((o.cell.panel, o.cell.label)))
    plots.dots(paths, cells, x_label, title, "95 % CI of the mean")

  return draw


def _late(figure: Figure) -> Any:
  """What a figure without a table of its own compares with the paper."""
  measure = verdicts.late(figure.metric, figure.protocol)
  return lambda outcome, outcomes: measure(outcome)


def _write_page(
    path: pathlib.Path, figure: Figure, outcomes: Sequence[suite.Outcome],
    request: Request) -> None:
  """Writes a page with the curves, costs, clients and flags of every run."""
  panels, tables = {}, []
  for own in suite.by_panel(outcomes):
    title = own[0].cell.panel_title
    panels[title] = {o.cell.label: load_run(o.folder) for o in own}
    found = compare(
        panels[title], metric=figure.metric, protocol=figure.protocol)
    tables += [table._replace(title=f"{title}: {table.title}") for table in (
        comparison.scores(found), comparison.costs(found))]
  page.write(
      path, figure.title, panels, tables, metric=figure.metric,
      protocol=figure.protocol, x_axis=request.x_axis,
      command_line=request.command_line)
  print(f"page: {path}", flush=True)


def _flag_values(paper: Paper) -> absl_flags.FlagValues:
  """The flags of a paper's command, in the order of its help."""
  values = absl_flags.FlagValues()
  absl_flags.DEFINE_enum(
      paper.flag, None, [*paper.figures, *paper.tables, "all"],
      "the figure or table to make, by its name below; all: every one",
      flag_values=values)
  absl_flags.DEFINE_enum(
      "scale", "full", ["full", "quick"],
      f"full: {paper.seeds}, all rounds and all panels; quick: minutes instead "
      f"of hours, with {' '.join(paper.quick)} and only some of the panels",
      flag_values=values)
  absl_flags.DEFINE_list(
      "panels", None, "make only these panels, by their letters, e.g. a,c",
      flag_values=values)
  absl_flags.DEFINE_list(
      "lines", None, "show only these methods, by their names in the tables, "
      "e.g. FedAvg", flag_values=values)
  absl_flags.DEFINE_enum(
      "x_axis", "rounds", list(plots.X_AXES),
      "the x axis of the curves; the name of the picture then ends in "
      "_vs_<x_axis>", flag_values=values)
  absl_flags.DEFINE_bool(
      "html", False, "also write a page with the curves, clients, costs and "
      "flags of every run of a figure; it needs plotly (pip install "
      "'fedjax_alg[report]')", flag_values=values)
  absl_flags.DEFINE_integer(
      "partitions", None, "play every run on so many partitions of the data; "
      "the intervals are then those over partitions, each with the mean of its "
      "seeds (--partitions=9 --num_seeds=1: nine independent draws of both); "
      "default 1, but for figures whose title names more",
      lower_bound=1, flag_values=values)
  absl_flags.DEFINE_string("part", None, part_lib.HELP, flag_values=values)
  absl_flags.DEFINE_bool(
      "finished", False, "play nothing: show the runs that are finished",
      flag_values=values)
  absl_flags.DEFINE_string(
      "data_dir", None, "folder of the data sets that experiments.prepare "
      "made; default as in experiments.run", flag_values=values)
  absl_flags.DEFINE_string(
      "out_dir", f"out/{paper.name}",
      "folder to write runs, figures and tables to", flag_values=values)
  for name, text in paper.files.items():
    absl_flags.DEFINE_string(name, None, text, flag_values=values)
  return values


def usage(paper: Paper) -> str:
  """The text of --help of a paper's command."""
  lines = [f"usage: python -m experiments.{paper.name} --{paper.flag}=NAME "
           "[flags]", "",
           f"Makes the figures and tables of {paper.works}. It plays the runs "
           "that a", "figure needs and writes its picture (PNG, PDF), its "
           "points (CSV) and a table of the", "published numbers beside ours "
           "(Markdown) to the folder NAME in --out_dir.", ""]
  lines += flag_words.help_lines(_flag_values(paper), (
      paper.flag, "scale", "panels", "lines", "x_axis", "html", "partitions",
      "part", "finished", "data_dir", "out_dir", *paper.files))
  lines += ["", "Names of the figures and tables:"]
  titles = {name: figure.title for name, figure in paper.figures.items()}
  titles |= {name: table.title for name, table in paper.tables.items()}
  lines += [f"  {name:9} {title}" for name, title in titles.items()]
  lines += ["", "A finished run is reused, an interrupted one is continued. "
            "Any other --flag=value", "is passed on to every run and overrides "
            "its settings;", "python -m experiments.run --help lists these "
            "flags."]
  return "\n".join(lines)


#: A flag of single runs -> what figure commands do instead.
_NOT_OF_FIGURES = {
    "resume": "which goes on with unfinished runs by itself",
    "overwrite": "which reads finished runs again; to play them anew give "
                 "another --out_dir or delete their folders in its runs/",
    "dry_run": "python -m experiments.run has it"}


def _runless(paper: Paper) -> list[str]:
  """The tables of a paper that play no runs."""
  return [name for name, table in paper.tables.items() if not table.plays]


def request_of(paper: Paper, argv: Sequence[str]) -> tuple[str, Request]:
  """What the words of a command ask for: a name or all, and the request.

  Raises:
    UsageError: a flag is wrong, missing or not read.
  """
  values = _flag_values(paper)
  of_command, of_runs = flag_words.parted(argv, list(values))
  rest = config_lib.read_flags(values, of_command)
  for flag in map(flag_words.name_of, of_runs):
    if flag in _NOT_OF_FIGURES:
      raise config_lib.UsageError(
          f"--{flag}: not of a figure command, {_NOT_OF_FIGURES[flag]}")
  names = [*paper.figures, *paper.tables]
  asked = values[paper.flag].value
  if rest or asked is None:
    raise config_lib.UsageError(
        f"--{paper.flag}: missing (one of {', '.join([*names, 'all'])})")
  for flags, unread, lacks in (
      (("panels", "lines", "x_axis", "html"), paper.tables, "curves"),
      (("part", "finished"), _runless(paper), "runs")):
    for flag in flags:
      if asked in unread and values[flag].present:
        raise config_lib.UsageError(
            f"--{flag}: not read by {asked}, which has no {lacks}")
  part = part_lib.parse(values.part)
  if part is not None and values.finished:
    raise config_lib.UsageError("--part and --finished: give one of them")
  # Tables do not show the paths of files on this machine.
  places = ("--data_dir", "--out_dir", *(f"--{name}" for name in paper.files))
  command_line = " ".join([program.name(paper.name), *(
      shlex.quote(w) for w in argv if not w.startswith(places))])
  return asked, Request(
      expanded(values.out_dir), tuple(of_runs), command_line,
      values.scale == "quick",
      tuple(values.panels) if values.panels else None,
      tuple(values.lines) if values.lines else None, values.x_axis,
      {name: str(values[name].value) for name in paper.files
       if values[name].value}, values.data_dir, values.html,
      part, values.partitions, values.finished)


def command(paper: Paper, argv: Sequence[str]) -> None:
  """Parses the flags and makes the figures."""
  if config_lib.asks_help(argv):
    raise config_lib.HelpRequested(usage(paper))
  asked, request = request_of(paper, argv)
  if request.html:
    page.check_plotly("`html`")  # before the first run
  incomplete, part = [], request.part
  for name in [*paper.figures, *paper.tables] if asked == "all" else [asked]:
    if part is not None and name in _runless(paper):
      continue
    try:
      if name in paper.tables:
        paper.tables[name].make(request)
      else:
        make_figure(paper, name, request)
    except suite.Incomplete as found:  # the runs of other figures go on
      incomplete.append(found)
  for figure in incomplete:
    if figure.held:
      raise figure
  if incomplete and part is not None:
    print(part_lib.played(part, *(
        len(set().union(*folders)) for folders in zip(*(
            (figure.own, figure.left, figure.every)
            for figure in incomplete)))))
