"""The parts that the figure commands of all papers share.

A ``Paper`` describes its figures. Its command makes the runs that a figure
needs, or finds those that exist, and writes the picture (PNG, PDF), its points
(CSV) and a table of the paper's numbers beside ours (Markdown). The data of that
page (JSON) are what ``publish`` reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import functools
import itertools
import math
import pathlib
import shlex
import string as string_lib
import sys
from typing import Any, NamedTuple, Protocol

from absl.flags import FlagValues
import numpy as np

from fedjax_alg import files, metrics, registry
from fedjax_alg.data import DataError
from fedjax_alg.data.federation import data_key, load_examples
from fedjax_alg.data.options import DataOptions, data_set
from fedjax_alg.files import expand_path
from fedjax_alg.records import lock
from fedjax_alg.records import summary as results
from fedjax_alg.runs.result import load_run

from ..cli import config as config_lib
from ..cli import flag_words, guard, presets, program
from ..cli import part as part_lib
from ..cli.command import Command, Flags, boolean, enum, integer, listed, string
from ..cli.config import Layer, UsageError
from ..drawing import dots, plots
from ..reports import page
from . import answers, chosen, durations, pages, partitions, report, suite, verdicts
from .chosen import Choice
from .pages import Block
from .suite import ONE_RATE, PRINTED, STATED, TUNED

#: Values of --scale=quick, which shrink a figure to minutes on two cores.
QUICK = {"rounds": 30, "num_seeds": 1}


#: Makes a section of a page from the outcomes of a figure; [] for none.
Section = Callable[[suite.Outcomes], list[Block]]

#: Draws a picture into files, with a title; the last argument is --x_axis.
Draw = Callable[[plots.Paths, suite.Outcomes, str, str], None]


class DotPicture(NamedTuple):
  """A picture that is drawn from a table of numbers alone, by ``publish`` too."""

  numbers: Callable[[suite.Outcomes], list[dots.Dot]]  #: runs -> its table
  #: (files, numbers, title) -> the files of each picture
  draw: Callable[[plots.Paths, Sequence[dots.Dot], str], list[plots.Paths]]
  end: str = ""  #: of its name, after that of the figure
  title: str = ""  #: "": that of the figure


def dot_picture(
  numbers: Callable[[suite.Outcomes], list[dots.Dot]],
  x_label: str,
  end: str = "",
  title: str = "",
  **look: Any,
) -> DotPicture:
  """A picture of dots; ``look`` are the other fields of ``dots.Look``."""
  return DotPicture(
    numbers,
    functools.partial(dots.draw_dots, look=dots.Look(x_label, **look)),
    end,
    title,
  )


class FigureLine(NamedTuple):
  """A line of a panel: a method in one setting."""

  label: str
  layers: tuple[Layer, ...]  #: its settings; a later layer overrides an earlier one
  protocol: str = TUNED  #: how its settings were found, see ``suite``
  #: presets of which it has values without naming them, so that what they
  #: declare of their choice is found
  sources: tuple[str, ...] = ()
  most_partitions: int = 0  #: see ``suite.Cell``
  of_rounds: int = 0  #: see ``suite.Cell``
  method: str = ""  #: its method, where the label says more than that
  of: Mapping[str, Any] = {}  #: what the label says beside the method, as values


class Panel(NamedTuple):
  """One panel of a figure, and how it differs from the others."""

  letter: str
  title: str
  values: Mapping[str, Any]  #: flag -> value
  data: str = ""  #: preset of its data, if it is not that of the figure
  eval_every: int = 0  #: --eval_every, if it is not that of the figure
  protocols: str = ""  #: --eval_protocols, if they are not those of the figure
  #: half of the run's rounds -> further values
  halfway: Callable[[int], Mapping[str, Any]] = lambda half: {}
  #: how what ``values`` say was chosen; (): stated
  chosen: tuple[Choice, ...] = ()
  metric: str = ""  #: if it is not that of the figure
  of: Mapping[str, Any] = {}  #: what the title says, as values
  #: presets that a search writes (``tune --paper``): there is no panel before
  tuned: tuple[str, ...] = ()

  @property
  def is_tuned(self) -> bool:
    """Whether the search has written all that the panel needs."""
    return all(map(presets.exists, self.tuned))


#: The number of runs of a method that depends on rounding.
REPLICAS = 3


class Figure(NamedTuple):
  """One figure: what it varies, and which metric it shows."""

  title: str
  metric: str
  data: str  #: preset of the data, <paper>/<data>.flags
  panels: tuple[Panel, ...]
  lines_of: Callable[[Panel], Sequence[FigureLine]]  #: the lines of a panel
  held: Mapping[str, Any] = {}  #: values that hold clients out for validation
  protocol: str = "global"  #: the protocol that is shown
  protocols: str = "global"  #: the protocols that are evaluated
  eval_every: int = 2
  sections: tuple[Section, ...] = ()
  statements: tuple[verdicts.Statement, ...] = ()
  #: letters of the panels of --scale=quick; (): the first and the last
  quick: tuple[str, ...] = ()
  #: --num_seeds at full scale, of lines that do not say it themselves
  num_seeds: int = 3
  #: --partitions at full scale, if the user does not say it; or the seeds of
  #: the partitions, of which --partitions says how many are run
  partitions: suite.Partitions = 1
  shrunk: Mapping[str, Any] = {}  #: further values of --scale=quick
  #: the table; None: the mean of the last rounds beside the paper's number
  table: Section | None = None
  #: whether the table lists what the paper has, so that it needs no run
  of_claims: bool = False
  #: metric of the claims file -> what is measured; {}: the mean of the last
  #: rounds of the figure's own metric
  measures: answers.Measures = {}
  #: answers to numbers that the paper states for another figure or table
  extra_answers: Callable[[suite.Outcomes], list[answers.PaperAnswer]] = (
    lambda outcomes: []
  )
  draw: Draw | None = None  #: draws the picture; None: draw curves
  dots: tuple["DotPicture", ...] = ()  #: pictures in the place of curves
  references: tuple[plots.Reference, ...] = ()  #: lines across the panels
  #: algorithms whose verdicts have differed between machines: each of their runs
  #: is made ``REPLICAS`` times, apart from rounding (V-13 of the readings)
  replicated: tuple[str, ...] = ()
  #: whether each run is drawn in its folder, too; for hundreds of short runs
  #: that takes as long as the runs
  pictures: bool = True
  #: folder of the published tables -> what all runs have, the first lines of its part
  #: of the page; None: nothing is said
  setting: Callable[[pathlib.Path], str] | None = None


class Request(NamedTuple):
  """The user's request, the same for every figure."""

  root: pathlib.Path  #: folder of the results, --out_dir
  #: settings of every run; they come last and so override all others
  common: tuple[Layer, ...]
  command_line: str  #: the command, as shown below the tables
  quick: bool = False  #: whether --scale is quick
  panels: tuple[str, ...] | None = None  #: letters of the panels; None: all
  lines: tuple[str, ...] | None = None  #: names of the lines; None: all
  x_axis: str = "rounds"
  files: Mapping[str, str] = {}  #: the flags of ``Paper.files`` that are given
  data_dir: str | None = None  #: --data_dir of runs that read prepared data
  html: bool = False  #: whether every figure gets a page, too
  #: number of partitions that every run is made on; None: as the figure says
  partitions: int | None = None
  finished: bool = False  #: run nothing, show the runs that are finished
  #: of which methods settings are chosen before: ``MISSING``, ``ALL`` or of none
  tune: str | None = None


#: Values of --tune: methods whose settings no search has chosen yet, and all.
MISSING, ALL = "missing", "all"


class Search(Protocol):
  """The search for the settings of the methods on a data set."""

  def preset_names(self) -> Mapping[str, str]:
    """algorithm -> the preset that its choice is put into."""
    ...

  def run_group(self, name: str) -> durations.RunGroup:
    """The runs that choose the settings of a method."""
    ...


class Tuner(NamedTuple):
  """What chooses the settings of the methods of a paper's panels."""

  #: (paper, data preset, folder of all searches, where the data are, settings of all
  #: runs) -> the search
  find: Callable[[str, str, pathlib.Path, Sequence[Layer], Sequence[Layer]], Search]
  #: (search, algorithms, number of settings or None, whether presets are written)
  tune: Callable[[Any, Sequence[str], int | None, bool], None]


class FigureTable(NamedTuple):
  """A table or picture of a paper that is not made of figures' runs."""

  title: str
  #: (request, its folder) -> what its page shows, and what it answers
  make: Callable[
    [Request, pathlib.Path], tuple[list[Block], Sequence[answers.PaperAnswer]]
  ]
  of_runs: bool = False  #: whether it reads flags of runs
  #: whether it stores runs, which --panels, --lines and --finished choose
  stores_runs: bool = False


class OwnFile(NamedTuple):
  """A file of the user's, in place of a data set that is not prepared or of weights."""

  dataset: str  #: "": none, a table reads the file
  help: str
  #: path -> those of the runs
  values: Callable[[str], Mapping[str, Any]] = lambda path: {}
  stand_in: bool = True  #: whether it holds other data than the paper's


FASHION_MNIST = OwnFile(
  "fashion_mnist",
  "folder of Fashion-MNIST's four IDX files, where TFDS has not prepared it",
  lambda path: {"dataset": f"idx:{path}"},
  stand_in=False,
)


class Paper(NamedTuple):
  """A paper's figures and tables."""

  name: str  #: name of its command, and of the folder of its presets and claims
  figures: Mapping[str, Figure]
  tables: Mapping[str, FigureTable]
  note: str  #: sentences below every table
  own: tuple[str, ...]  #: beginnings of the names of the paper's own methods
  quick: Mapping[str, Any] = QUICK  #: values of --scale=quick
  #: algorithm -> the most rounds of --scale=quick, where it has them
  quick_rounds: Mapping[str, int] = {}
  seeds: str = "3 seeds"  #: number of seeds of --scale=full, in words
  #: name of a flag of its command whose value is a file -> what it is for
  files: Mapping[str, OwnFile] = {}
  #: data sets that may be lacking: their panels are then left out
  optional: tuple[str, ...] = ()
  flag: str = "figure"  #: the flag that names what is to be made
  #: a figure, as the claims name it -> the figure whose runs it shows
  same_runs: Mapping[str, str] = {}
  #: figure or table -> the end of the name of its page, if it is not the first
  pages: Mapping[str, str] = {}
  #: figures on a test set with equally many examples of each class
  balanced: tuple[str, ...] = ()
  #: of which works its figures are, for --help and for the published page
  subject: str = ""
  #: answers -> the one table of its page, which stands for those of its figures
  overview: Callable[[Sequence[answers.PaperAnswer]], list[Block]] | None = None
  #: what chooses the settings of panels that have ``Panel.tuned``; None: there are none
  tuner: Tuner | None = None

  @property
  def works(self) -> str:
    """The work that the figures are of, in words."""
    return self.subject or f"the {self.name} paper"

  def source_of(self, name: str) -> str | None:
    """The figure whose runs a figure shows; None if they are its own."""
    return {figure.lower(): source for figure, source in self.same_runs.items()}.get(
      name
    )

  @property
  def main(self) -> Command:
    """The paper's command."""
    return _command(self)


def make_panels(
  of: Mapping[str, Mapping[str, Any]],
  data: str = "",
  common: Mapping[str, Any] | None = None,
) -> tuple[Panel, ...]:
  """Panels with the letters from a on: title -> values, beside ``common`` ones."""
  return tuple(
    Panel(letter, title, {**values, **(common or {})}, data)
    for letter, (title, values) in zip(string_lib.ascii_lowercase, of.items())
  )


def participation_panels(*percent: int) -> tuple[Panel, ...]:
  """A panel for each share of participants, in percent."""
  return make_panels(
    {f"{p} % of the clients": {"participation": p / 100} for p in percent}
  )


def of_files(
  folder: str, files_of: Mapping[str, str]
) -> Callable[[Panel], list[FigureLine]]:
  """Makes the ``Figure.lines_of`` of label -> preset in a folder."""
  return lambda panel: [
    FigureLine(label, (f"{folder}/{name}.flags",)) for label, name in files_of.items()
  ]


#: Protocol of a paper's own methods -> the preset of their setting.
_SETTINGS = {TUNED: "headline", STATED: "stated", PRINTED: "printed"}


def method_presets(paper: str, folder: str) -> dict[str, str]:
  """algorithm -> the name of its preset in a folder of a paper."""
  names = {name: f"{paper}/{folder}/{name}.flags" for name in registry.ALGORITHMS}
  return {name: preset for name, preset in names.items() if presets.exists(preset)}


def methods(
  paper: str,
  data: str,
  proposed: Sequence[str] = (),
  *,
  others: bool = True,
  fixed: Mapping[str, Any] | None = None,
  ends: Mapping[str, tuple[Layer, ...]] | None = None,
  protocols: Sequence[str] = (TUNED, STATED),
) -> Callable[[Panel], list[FigureLine]]:
  """Makes the ``Figure.lines_of`` of every registered method with a preset.

  The presets are in methods/; one in methods_<data>/ overrides that for a
  single data set. The paper's own methods come in the setting headline, in that
  which the paper states, and with its equations as printed, each a preset
  <setting>.flags (printed/ has what only one method reads); other methods come
  with the paper's one rate, too, if they have a preset in stated_<data>/.

  Args:
    paper: name of the paper, and of the folder of its presets.
    data: the data set.
    proposed: the paper's own methods.
    others: whether other methods are shown, too.
    fixed: flag -> value, of the paper's own methods.
    ends: end of the label -> further settings, for each line of a method of the
      paper.
    protocols: the settings of the paper's own methods, some of ``TUNED``,
      ``STATED`` and ``PRINTED``.
  """

  def lines(panel: Panel) -> list[FigureLine]:
    del panel
    general = method_presets(paper, "methods")
    special = method_presets(paper, f"methods_{data}")
    as_printed = method_presets(paper, "printed")
    all_lines = []
    for protocol in protocols:
      tuned = protocol == TUNED
      setting = f"{paper}/{_SETTINGS[protocol]}.flags"
      if presets.exists(setting):
        all_lines += [
          FigureLine(
            registry.get(name).label + end,
            (
              setting,
              {"algorithm": name},
              general.get(name, {}) if tuned else {},
              fixed or {},
              special.get(name, {}) if tuned else {},
              as_printed.get(name, {}) if protocol == PRINTED else {},
              *end_layers,
            ),
            protocol,
          )
          for name in proposed
          if name in registry.ALGORITHMS
          for end, end_layers in (ends or {"": ()}).items()
        ]
    if others:
      all_lines += [
        FigureLine(
          registry.get(name).label, (general.get(name, {}), special.get(name, {}))
        )
        for name in registry.ALGORITHMS
        if name not in proposed and (name in general or name in special)
      ]
    if others and STATED in protocols:
      all_lines += [
        FigureLine(registry.get(name).label, (preset,), ONE_RATE)
        for name, preset in method_presets(paper, f"stated_{data}").items()
      ]
    return all_lines

  return lines


#: Of these a line's own values count, and not those of the data preset: the
#: stated settings need them.
_OF_METHODS = ("l2", "l2_of", "features", "concepts")


def _cell(
  paper: Paper, figure: Figure, panel: Panel, line: FigureLine, request: Request
) -> suite.Cell:
  """The run of one line in one panel.

  Raises:
    UsageError: a flag is wrong, or flags do not go together.
  """
  # The data preset overrides the line, so that a method's preset for MNIST
  # serves CIFAR-10 too, but for ``_OF_METHODS``. What the line's presets include
  # does not count as its own: it is a data preset as well.
  data = f"{paper.name}/{panel.data or figure.data}.flags"
  of_data = config_lib.values_of(data)
  of_line: dict[str, Any] = {}
  for layer in line.layers:
    of_line |= config_lib.values_of(layer, included=False)
  of_method = {
    name: of_line[name]
    for name in _OF_METHODS
    if name in of_line and of_line[name] != of_data.get(name)
  }
  layers = (*line.layers, data, of_method, figure.held, panel.values)
  if request.quick:
    scale = {**paper.quick, **figure.shrunk, **_fewer_rounds(paper, layers)}
  elif any("num_seeds" in layer for layer in line.layers if not isinstance(layer, str)):
    scale = {}
  else:
    scale = {"num_seeds": figure.num_seeds}
  values = config_lib.merge_layers(*layers, scale, *request.common)
  algorithm = values.get("algorithm", "composed")
  # Methods that adapt the model to each client are evaluated on clients, too.
  protocols = (panel.protocols or figure.protocols).split(",")
  if "local" not in protocols and registry.get(algorithm).adapts:
    protocols.append("local")
  config = config_lib.build_config(
    *layers,
    panel.halfway(max(_rounds(values) // 2, 1)),
    {
      "eval_protocols": ",".join(protocols),
      "eval_every": panel.eval_every or figure.eval_every,
    },
    scale,
    *request.common,
    {"data_dir": request.data_dir}
    if request.data_dir
    and "dataset" in values
    and not values.get("dataset.path")
    and data_set(str(values["dataset"])).prepared_as
    else {},
  )
  choices = [
    choice
    for choice in (chosen.of_layers(line.layers) if of_method else ())
    if choice.setting in of_method and choice.origin != STATED
  ]
  return suite.Cell(
    panel.letter,
    panel.title,
    line.label,
    config,
    line.protocol,
    chosen.of_layers(config.layers, (*choices, *panel.chosen), line.sources),
    figure.pictures,
    panel.metric,
    line.most_partitions,
    1 if request.quick or algorithm not in figure.replicated else REPLICAS,
    0 if request.quick else line.of_rounds,
    line.method,
    {**panel.of, **line.of},
  )


def _fewer_rounds(paper: Paper, layers: Sequence[Layer]) -> dict[str, Any]:
  """The rounds of --scale=quick, where a method has more."""
  values = config_lib.merge_layers(*layers)
  most = paper.quick_rounds.get(values.get("algorithm", ""))
  return {"rounds": most} if most and _rounds(values) > most else {}


def _rounds(values: Mapping[str, Any]) -> int:
  """The rounds that values ask for; 0 if they leave them open."""
  return int(values.get("rounds") or 0)


def _each_cell(paper: Paper, figure: Figure, request: Request) -> Iterator[suite.Cell]:
  """Every run of a figure, one after the other.

  At quick scale the lines are the tuned ones, if there are any.

  Args:
    paper: the paper.
    figure: one of its figures.
    request: what the user asks for.

  Raises:
    UsageError: there is no method to run, or a flag is wrong.
  """
  for panel in figure.panels:
    lines = [FigureLine(*line) for line in figure.lines_of(panel)]
    if not lines:
      raise UsageError(
        f"{figure.title}: no method can be run, none of those "
        f"with a file in presets/{paper.name}/ is registered"
      )
    if request.quick:
      lines = [line for line in lines if line.protocol == TUNED] or lines
    for line in lines:
      if (
        request.lines is None
        or suite.method_name(line.label, line.protocol) in request.lines
      ):
        yield _cell(paper, figure, panel, line, request)


def cells(paper: Paper, figure: Figure, request: Request) -> list[suite.Cell]:
  """The runs of ``_each_cell`` as a list.

  Raises:
    UsageError: see there; or ``request.lines`` has an unknown name.
  """
  all_cells = list(_each_cell(paper, figure, request))
  for name in request.lines or ():
    if name not in {cell.name for cell in all_cells}:
      names = dict.fromkeys(
        cell.name for cell in _each_cell(paper, figure, request._replace(lines=None))
      )
      raise UsageError(f"--lines={name}: no such line (one of {', '.join(names)})")
  return all_cells


def _select_panels(name: str, figure: Figure, panels: Sequence[str]) -> Figure:
  """The figure with only some of its panels.

  Raises:
    UsageError: it has none of them.
  """
  selection = tuple(p for p in figure.panels if p.letter in panels)
  if not selection:
    raise UsageError(
      f"--panels={','.join(panels)}: {name} has "
      f"{', '.join(p.letter for p in figure.panels)}"
    )
  return figure._replace(panels=selection)


def _why_lacking(data: DataOptions) -> str:
  """Explains why the data of a run cannot be read; "" if they can."""
  try:
    return _why_unreadable(data, data_key(data))
  except DataError as error:
    return str(error).replace("`", "")


@functools.cache
def _why_unreadable(data: DataOptions, inside: str) -> str:
  """The same of data whose files hold what ``inside`` stands for."""
  del inside
  try:
    load_examples(data)
  except DataError as error:
    return str(error).replace("`", "")
  return ""


class LackingPanel(NamedTuple):
  """A panel that is not run, because something is missing, mostly its data."""

  title: str
  dataset: str  #: "": something else is missing
  why: str  #: the reason, which may name folders of this machine
  flags: tuple[str, ...] = ()  #: those that name a file of the data

  def message(self) -> str:
    """The line for whoever has started the command."""
    why = "; or give ".join([self.why, *(f"--{flag}=PATH" for flag in self.flags)])
    return f"{self.title}: not run. {why}."

  def sentence(self) -> str:
    """The sentence for the page, which says nothing of this machine."""
    files = [f"--{flag}=FILE" for flag in self.flags]
    return f"{self.title}: {' or '.join([what_it_needs(self.dataset), *files])}."


def what_it_needs(dataset: str) -> str:
  """Says on a page why nothing was run, without what is local to a machine."""
  name = data_set(dataset).prepared_as
  return f"not run, needs {dataset} (`fedjax-alg prepare {name}`, --data_dir)"


def _resolve_figure(
  paper: Paper, name: str, request: Request
) -> tuple[Figure, list[str], list[LackingPanel]]:
  """A figure as it is asked for, and as it can be made on this machine.

  Returns:
    The figure; sentences about what it shows; and the panels that it lacks.

  Raises:
    UsageError: it has no such panel.
  """
  figure, notes = paper.figures[name], []
  if request.panels:
    figure = _select_panels(name, figure, request.panels)
  if request.tune is None:
    panels = ",".join(panel.letter for panel in figure.panels)
    figure, panels_left_out = select_tuned(figure)
    if panels_left_out and not figure.panels:
      raise UsageError(
        f"--panels={panels}: the methods are not tuned yet, --tune={MISSING} does it"
      )
    print_lacking(panels_left_out)
  has_many = figure.quick or len(figure.panels) > 2
  if request.quick and has_many and not request.panels:
    letters = figure.quick or (figure.panels[0].letter, figure.panels[-1].letter)
    figure = _select_panels(name, figure, letters)
    which = "" if figure.quick else "the first and the last panel "
    notes.append(
      f"Quick: `{' '.join(config_lib.layer_words([paper.quick, figure.shrunk]))}`, "
      f"{which}({' and '.join(letters)}; --panels gives others)."
    )
  if request.quick and paper.quick_rounds:
    notes.append(
      "Quick: at most so many rounds are run: "
      + ", ".join(
        f"{registry.get(method).label} {most}"
        for method, most in paper.quick_rounds.items()
      )
      + "."
    )
  parts = figure.partitions
  if not isinstance(parts, int) and (request.partitions or 0) > len(parts):
    notes.append(
      f"--partitions={request.partitions}: there are {len(parts)} "
      "partitions that its title names."
    )
  figure, panels_left_out = with_data(paper, figure, request)
  return figure, notes, panels_left_out


def select_tuned(figure: Figure) -> tuple[Figure, list[LackingPanel]]:
  """The figure with the panels whose methods are tuned, and the other panels."""
  panels_left_out = [
    LackingPanel(
      panel.title, "", f"Its methods are not tuned yet, --tune={MISSING} does it"
    )
    for panel in figure.panels
    if not panel.is_tuned
  ]
  panels = tuple(panel for panel in figure.panels if panel.is_tuned)
  return figure._replace(panels=panels), panels_left_out


def with_data(
  paper: Paper, figure: Figure, request: Request
) -> tuple[Figure, list[LackingPanel]]:
  """The figure with the panels whose data are there, or have a stand-in.

  The others are not run.
  """
  panels, panels_left_out = [], []
  for panel in figure.panels:
    panel, lacks = _with_files(paper, figure, panel, request)
    if lacks:
      panels_left_out.append(lacks)
    else:
      panels.append(panel)
  return figure._replace(panels=tuple(panels)), panels_left_out


def print_lacking(panels_left_out: Sequence[LackingPanel]) -> None:
  """Prints why panels are not run."""
  for panel in panels_left_out:
    print(panel.message(), file=sys.stderr, flush=True)


def _with_files(
  paper: Paper, figure: Figure, panel: Panel, request: Request
) -> tuple[Panel, LackingPanel | None]:
  """A panel with the user's file in place of its data, and what it lacks."""

  def cell(panel: Panel) -> suite.Cell:
    return next(
      _each_cell(paper, figure._replace(panels=(panel,)), request._replace(lines=None))
    )

  dataset = cell(panel).data if paper.optional else ""
  if dataset not in paper.optional:
    return panel, None
  of_data = {
    name: user_file
    for name, user_file in paper.files.items()
    if user_file.dataset == dataset
  }
  for name, user_file in of_data.items():
    path = request.files.get(name)
    if path:
      panel = panel._replace(values={**panel.values, **user_file.values(path)})
      if user_file.stand_in:
        panel = panel._replace(
          title=f"{panel.title} (stand-in {pathlib.Path(path).stem})",
          chosen=(Choice("stand-in", "data"),),
        )
  why = _why_lacking(cell(panel).config.data)
  return panel, (
    LackingPanel(panel.title, dataset, why, tuple(of_data)) if why else None
  )


def _partitions(figure: Figure, request: Request) -> suite.Partitions:
  number = request.partitions or (1 if request.quick else None)
  if isinstance(figure.partitions, int):
    return number or figure.partitions
  return figure.partitions[:number]


def _runs_of(paper: Paper, figure: Figure, request: Request) -> list[suite.Cell]:
  """Lists the runs of a figure, a cell for each."""
  parts = _partitions(figure, request)
  return [run for cell in cells(paper, figure, request) for run in cell.runs_on(parts)]


def _outcomes_of(paper: Paper, figure: Figure, request: Request) -> list[suite.Outcome]:
  """Runs or finds the runs of a figure.

  Raises:
    UsageError: see ``cells``.
    RunError: see ``suite.run_cells``.
  """
  all_cells, parts = cells(paper, figure, request), _partitions(figure, request)
  if request.finished:
    all_cells = suite.select_finished(all_cells, request.root, parts)
  return suite.run_cells(all_cells, request.root, parts)


def _write_page_and_answers(
  request: Request,
  name: str,
  figure_page: pages.FigurePage,
  figure_answers: Sequence[answers.PaperAnswer] = (),
) -> str:
  """Writes <name>.json, <name>.md, which is printed, and <name>.answers.csv.

  Returns:
    The page.
  """
  folder = request.root / name
  folder.mkdir(parents=True, exist_ok=True)
  # First: it tells that the other files are those of a figure.
  results.write_text(
    folder / f"{name}.answers.csv", answers.answers_csv(figure_answers)
  )
  results.write_text(folder / f"{name}{pages.SUFFIX}", pages.to_json(figure_page))
  text = pages.render(
    "figure",
    figure=figure_page,
    sentences=None if figure_page.runs_of else answers.sentences_table(figure_answers),
  )
  results.write_text(folder / f"{name}.md", text)
  print(text, flush=True)
  return text


def pictures(folder: pathlib.Path, name: str) -> plots.Paths:
  """The paths of a picture's PNG and PDF; prints the first one."""
  paths = _picture_paths(folder, name)
  print(f"figure: {paths[0]}", flush=True)
  return paths


def _picture_paths(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
  return [folder / f"{name}.{kind}" for kind in ("png", "pdf")]


def _remove_pages(paths: plots.Paths) -> None:
  """Removes a picture of an earlier command, which had other runs."""
  for number in itertools.count(1):
    page = [path for path in plots.number_paths(paths, number) if path.is_file()]
    if not page:
      return
    for path in page:
      path.unlink()


def _without_places(block: Block, request: Request) -> Block:
  """A sentence of a page, in which the user's folders have only their names."""
  if not isinstance(block, str):
    return block
  for place in (request.data_dir, *request.files.values()):
    name = pathlib.Path(place or "").name
    if place and name:  # "." has no name of its own
      block = block.replace(place, name)
  return block


def _check_outputs(request: Request, name: str) -> None:
  """Refuses to replace files that no earlier figure of this name has written.

  Raises:
    OptionError: see ``files.check_outputs``.
  """
  folder = request.root / name
  signature = f"{name}.answers.csv"
  of_figure = files.with_sibling(signature, answers.IS_TABLE)
  outputs = {folder / signature: answers.IS_TABLE}
  outputs |= {
    folder / f"{name}{end}": of_figure
    for end in (".md", pages.SUFFIX, ".csv", "_numbers.csv", ".html")
  }
  outputs |= dict.fromkeys(folder.glob(f"{name}*{dots.SUFFIX}"), dots.IS_TABLE)
  for path in (*folder.glob(f"{name}*.png"), *folder.glob(f"{name}*.pdf")):
    outputs[path] = lambda path: files.picture(path) or of_figure(path)
  files.check_outputs(f"`out_dir`={request.root}", outputs)


def _make_table(paper: Paper, name: str, request: Request) -> None:
  title, make, *_ = paper.tables[name]
  _check_outputs(request, name)
  folder = request.root / name
  folder.mkdir(parents=True, exist_ok=True)
  blocks, figure_answers = make(request, folder)
  _write_page_and_answers(
    request,
    name,
    pages.FigurePage(
      title,
      [_without_places(block, request) for block in blocks],
      report.local_provenance(request.command_line),
    ),
    figure_answers,
  )


_ONE_SEED = "One seed gives no interval and decides nothing that varies with the seed."


def _is_one_seed(outcomes: suite.Outcomes) -> bool:
  return bool(outcomes) and all(
    len(o.frames.seeds) == 1 and o.frames.num_partitions == 1 for o in outcomes
  )


def _make_figure(paper: Paper, name: str, request: Request) -> str:
  """Runs what a figure needs, writes it and returns its Markdown page."""
  figure, notes, panels_left_out = _resolve_figure(paper, name, request)
  if not figure.panels and not request.finished:
    raise UsageError(
      f"{name}: {' '.join(panel.message() for panel in panels_left_out)}"
    )
  print_lacking(panels_left_out)
  _check_outputs(request, name)
  if not request.finished:
    suite.note_planned_runs(_runs_of(paper, figure, request), request.root, name)
  outcomes = _outcomes_of(paper, figure, request)
  if not outcomes and not figure.of_claims:
    raise UsageError(f"--finished: no run of {name} is")
  sentences = answers.answer_sentences(name, figure.statements, outcomes)
  rows = report.compare_with_paper(
    outcomes, report.load_claims(paper.name, name), figure.protocol, figure.metric
  )
  blocks = (
    figure.table(outcomes)
    if figure.table is not None
    else report.figure_numbers(rows, paper.own)
  )
  runs_of = paper.source_of(name)
  if runs_of is None:
    remarks = [panel.sentence() for panel in panels_left_out]
    if sentences and _is_one_seed(outcomes):
      remarks.insert(0, _ONE_SEED)
    figure_page = pages.FigurePage(
      figure.title,
      [*blocks, *itertools.chain(*(section(outcomes) for section in figure.sections))],
      report.made_of(
        outcomes,
        request.command_line,
        " ".join([paper.note, *notes]),
        figure.table is not None,
      ),
      remarks,
    )
  else:  # the sections are those of the figure whose runs it shows
    figure_page = pages.FigurePage(figure.title, blocks, runs_of=runs_of)
  measures = figure.measures or dict.fromkeys(
    (figure.metric, f"test_{figure.metric}"),
    verdicts.late(figure.metric, figure.protocol),
  )
  text = _write_page_and_answers(
    request,
    name,
    figure_page,
    [
      *answers.answer_numbers(paper.name, name, outcomes, measures),
      *sentences,
      *figure.extra_answers(outcomes),
    ],
  )
  folder = request.root / name
  report.numbers_csv(folder / f"{name}_numbers.csv", rows)
  report.points_csv(folder / f"{name}.csv", outcomes, figure.protocol, figure.metric)
  if outcomes:
    _draw_pictures(paper, name, figure, outcomes, request)
  if request.html:
    _write_page(folder / f"{name}.html", figure, outcomes, request)
  return text


@contextlib.contextmanager
def _drawing(paths: plots.Paths) -> Iterator[None]:
  """Says where there is nothing to draw, and removes the picture of other runs."""
  try:
    yield
  except dots.NothingToDraw as error:
    _remove_pages(paths)
    print(f"no figure: {error}", flush=True)


def _draw_pictures(
  paper: Paper,
  name: str,
  figure: Figure,
  outcomes: list[suite.Outcome],
  request: Request,
) -> None:
  """Draws the pictures of a figure that there is something to draw in."""
  folder = request.root / name
  for picture in figure.dots:
    table = folder / f"{name}{picture.end}{dots.SUFFIX}"
    with _drawing(_picture_paths(folder, name + picture.end)):
      dots.write_dots(table, picture.numbers(outcomes))
      for pages_of in draw_table(figure, picture, table, folder, ("png", "pdf")):
        print(f"figure: {pages_of[0]}", flush=True)
  if figure.dots:
    return
  suffix = "" if request.x_axis == "rounds" else f"_vs_{request.x_axis}"
  paths = _picture_paths(folder, name + suffix)
  with _drawing(paths):
    if figure.draw is not None:
      figure.draw(paths, outcomes, figure.title, request.x_axis)
    else:
      _draw(paper, name, figure, outcomes, request, paths)
    print(f"figure: {paths[0]}", flush=True)


def draw_table(
  figure: Figure,
  picture: DotPicture,
  table: pathlib.Path,
  folder: pathlib.Path,
  kinds: Sequence[str] = ("png",),
) -> list[plots.Paths]:
  """Draws a picture from its table of numbers.

  Args:
    figure: the figure, for its title.
    picture: the picture.
    table: the file with its numbers; its name begins that of the picture.
    folder: folder of the picture.
    kinds: the kinds of the files, "png" or "pdf".

  Returns:
    The files of each picture.

  Raises:
    NothingToDraw: there is no number.
  """
  stem = table.name.removesuffix(dots.SUFFIX)
  return picture.draw(
    [folder / f"{stem}.{kind}" for kind in kinds],
    dots.read_dots(table),
    picture.title or figure.title,
  )


#: A picture with more panels cannot be read at the width of a page.
MOST_PANELS = 4
#: Protocol -> what the title of a picture says of its lines.
_PICTURES = {suite.TUNED: "tuned", verdicts.PAPERS_OWN: "the paper's settings"}


def _draw(
  paper: Paper,
  name: str,
  figure: Figure,
  outcomes: list[suite.Outcome],
  request: Request,
  paths: plots.Paths,
) -> None:
  """Draws the curves in pictures of at most ``MOST_PANELS`` panels.

  Those by the paper's settings are pictures of their own, NAME_stated; the
  second picture of many panels is NAME_2.
  """
  protocols = verdicts.by_protocol([o for o in outcomes if not o.is_part])
  for words, runs in protocols.items():
    title, end = figure.title, ""
    if len(protocols) > 1:
      title += f", {_PICTURES[words]}"
      end = "_stated" * (words == verdicts.PAPERS_OWN)
    base_paths = [path.with_stem(path.stem + end) for path in paths]
    panels = list(suite.frames_by_panel(runs).items())
    for page_paths, page_panels in plots.paginate(base_paths, panels, MOST_PANELS):
      plots.plot_panels(
        page_paths,
        dict(page_panels),
        figure.protocol,
        figure.metric,
        title,
        request.x_axis,
        report.marks(paper.name, name, runs, figure.metric),
        references=figure.references,
      )


def of_parts(parts: Sequence[np.ndarray]) -> tuple[float, float, tuple[float, ...]]:
  """The mean of some runs, half its interval, and the numbers that it is of.

  Args:
    parts: the numbers of the seeds of each partition.

  Returns:
    The last are the means of the partitions, and of one partition its seeds; () of a
    single number.
  """
  draws = [part.mean() for part in parts] if len(parts) > 1 else list(parts[0])
  mean, half = metrics.confidence_95(draws)
  return mean, half, tuple(map(float, draws)) if len(draws) > 1 else ()


def rounds_note(outcome: suite.Outcome) -> str:
  """How many rounds of a run are finished, "" if all are."""
  run, planned = outcome.summary["cost"]["rounds"], outcome.cell.of_rounds
  return f"{run} of {planned:,} rounds" if outcome.is_part else ""


def measured(
  measure: verdicts.Measure,
  stated: Mapping[tuple[str, str], float] | None = None,
  by_method: bool = False,
) -> Callable[[suite.Outcomes], list[dots.Dot]]:
  """Makes the numbers of a picture that has a dot for each run.

  Args:
    measure: run -> one number for each seed.
    stated: (panel, method) -> the published number.
    by_method: whether there is a panel for each method, with a row for each panel
      of the figure, and not the other way round.

  Returns:
    The function. A run that lacks rounds has no number, but says how many it has.
  """

  def numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
    table = []
    for o in outcomes:
      place = (o.cell.heading, o.cell.name)
      panel, row = reversed(place) if by_method else place
      note = rounds_note(o)
      mean, half, values = (
        (math.nan, math.nan, ())
        if note
        else of_parts(partitions.measure_parts(measure, o))
      )
      table.append(
        dots.Dot(
          panel,
          row,
          mean,
          half,
          (stated or {}).get((o.cell.panel, o.cell.label), math.nan),
          values=values,
          note=note,
        )
      )
    return table

  return numbers


def _write_page(
  path: pathlib.Path, figure: Figure, outcomes: suite.Outcomes, request: Request
) -> None:
  """Writes a page with the curves, costs, clients and flags of every run.

  Of runs on several partitions it has the first.
  """
  panels = {runs[0].cell.panel_title: runs for runs in suite.by_panel(outcomes)}
  page.write_page(
    path,
    figure.title + ", partition 1" * any(o.parts for o in outcomes),
    {
      title: {o.cell.name: load_run(o.folder) for o in runs}
      for title, runs in panels.items()
    },
    metric=figure.metric,
    panel_metrics={
      title: runs[0].cell.metric or figure.metric for title, runs in panels.items()
    },
    protocol=figure.protocol,
    x_axis=request.x_axis,
    command_line=request.command_line,
  )
  print(f"page: {path}", flush=True)


#: A flag of single runs -> what figure commands do instead.
_NOT_OF_FIGURES = {
  "overwrite": "which reads finished runs again; to run them anew give "
  "another --out_dir or delete their folders in its runs/",
}


#: More runs of every line than anybody waits for: the names of so many are
#: made before the first starts.
_PARTITIONS = 1_000

_TUNE = enum(
  "tune",
  None,
  [MISSING, ALL],
  "first choose the settings of the panels' methods on held-out data, as "
  "experiments.tune --paper does, and write them into the table of presets; missing: "
  "of methods that have none yet, all: of all. Finished runs are reused",
)

#: Title of the section of --help that lists the figures and tables.
_NAMES = "Names of the figures and tables"


def _flags(paper: Paper) -> Flags:
  return (
    enum(
      paper.flag,
      None,
      [*paper.figures, *paper.tables, "all"],
      "the figure or table to make, by its name (--help=names); all: every one",
    ),
    enum(
      "scale",
      "full",
      ["full", "quick"],
      f"full = {paper.seeds}, all rounds and all panels, quick = minutes instead of "
      f"hours; quick has {' '.join(config_lib.layer_words([paper.quick]))} and only "
      "some of the panels",
    ),
    listed("panels", None, "make only these panels, by their letters, e.g. a,c"),
    listed(
      "lines",
      None,
      "show only these methods, by their names in the tables, e.g. FedAvg",
    ),
    enum(
      "x_axis",
      "rounds",
      list(plots.X_AXES),
      "the x axis of the curves; the name of the picture then ends in _vs_<x_axis>",
    ),
    boolean(
      "html",
      False,
      "also write a page with the curves, clients, "
      "costs and flags of every run of a figure, on the first partition of its data; "
      "it needs plotly (pip install 'fedjax_alg[report]')",
    ),
    integer(
      "partitions",
      None,
      "make every run on so many partitions of the data; the intervals are then over "
      "partitions, each with the mean of its seeds (--partitions=9 --num_seeds=1: "
      "nine independent draws of both); default 1, but for figures whose title names "
      "more",
      lower_bound=1,
      upper_bound=_PARTITIONS,
    ),
    *(_TUNE,) * (paper.tuner is not None),
    string("part", None, part_lib.HELP),
    boolean("finished", False, "run nothing: show the runs that are finished"),
    boolean(
      "dry_run",
      False,
      "run nothing: list the runs of figures and the hours that they take, as measured "
      "if some of them are finished, otherwise estimated",
    ),
    string(
      "data_dir",
      None,
      "folder of the data sets that "
      "experiments.prepare made; default as in experiments.run",
    ),
    string(
      "out_dir", f"out/{paper.name}", "folder to write runs, figures and tables to"
    ),
    *(string(name, None, user_file.help) for name, user_file in paper.files.items()),
  )


def _command(paper: Paper) -> Command:
  """The command of a paper."""
  titles = {name: figure.title for name, figure in paper.figures.items()}
  titles |= {name: table.title for name, table in paper.tables.items()}
  names = "\n".join(f"  {name}  {title}" for name, title in titles.items())
  return Command(
    paper.name,
    f"Makes the figures and tables of {paper.works}.\n\n"
    f"  python -m experiments.{paper.name} --{paper.flag}={next(iter(titles))} "
    "--scale=quick\n\n"
    "The command makes the runs that a figure needs. It writes its picture (PNG, PDF), "
    "its points (CSV) and a table of the published numbers, if there are any, next to "
    "ours (Markdown) to the folder NAME in --out_dir. A finished run is reused, an "
    f"interrupted one is continued.\n\n{_NAMES}\n---\n{names}",
    _flags(paper),
    functools.partial(_run, paper),
    "Any other --flag=value is passed on to every run and overrides its settings.",
    guard.REPEAT_HINT,
    passes_on=True,
  )


def _request(
  paper: Paper, values: FlagValues, words: Sequence[str], argv: Sequence[str]
) -> Request:
  """Parses the words of a command.

  Raises:
    UsageError: a flag is wrong, missing or not read.
  """
  for flag in map(flag_words.name_of, words):
    if flag in _NOT_OF_FIGURES:
      raise UsageError(f"--{flag}: not of a figure command, {_NOT_OF_FIGURES[flag]}")
  name = values[paper.flag].value
  if name is None:
    raise UsageError(
      f"--{paper.flag}: missing (one of "
      f"{', '.join([*paper.figures, *paper.tables, 'all'])})"
    )
  unread = {"x_axis", "html", "part", "dry_run"}
  if paper.tuner is not None:
    unread.add("tune")
  if name in paper.tables and not paper.tables[name].stores_runs:
    unread |= {"panels", "lines", "finished"}
  for flag in sorted(unread):
    if name in paper.tables and values[flag].present:
      raise UsageError(f"--{flag}: not read by {name}, a table without such runs")
  if name in paper.tables and not paper.tables[name].of_runs and words:
    raise UsageError(f"{words[0]}: not read by {name}, which has settings of its own")
  one_of = [flag for flag in ("part", "finished", "dry_run") if values[flag].value]
  if len(one_of) > 1:
    raise UsageError(f"--{one_of[0]} and --{one_of[1]}: give one of them")
  tune = values.tune if paper.tuner else None
  if tune and (values.part or values.finished):
    raise UsageError(
      f"--tune={tune}: not with --{one_of[0]}, settings are chosen before the runs"
    )
  if tune and values.scale == "quick":
    raise UsageError(
      f"--tune={tune}: not with --scale=quick, whose few rounds would choose other "
      "settings"
    )
  # Tables do not show the paths of files on this machine.
  places = ("--data_dir", "--out_dir", *(f"--{name}" for name in paper.files))
  command_line = " ".join(
    [
      program.name(paper.name),
      *(shlex.quote(w) for w in argv if not w.startswith(places)),
    ]
  )
  return Request(
    expand_path(values.out_dir),
    config_lib.read_layers(words),
    command_line,
    values.scale == "quick",
    tuple(values.panels) if values.panels else None,
    tuple(values.lines) if values.lines else None,
    values.x_axis,
    {name: str(values[name].value) for name in paper.files if values[name].value},
    values.data_dir,
    values.html,
    values.partitions,
    values.finished,
    tune,
  )


def _searches(
  paper: Paper, figure: Figure, request: Request
) -> Iterator[tuple[Search, list[str]]]:
  """The searches for the settings of a figure's panels, and their algorithms."""
  if paper.tuner is None or request.tune is None:
    return
  for data in dict.fromkeys(panel.data for panel in figure.panels if panel.tuned):
    search = paper.tuner.find(
      paper.name,
      data,
      request.root / "tune",
      _place_of_data(paper, f"{paper.name}/{data}.flags", request),
      request.common,
    )
    names = [
      name
      for name, preset in search.preset_names().items()
      if request.tune == ALL or not presets.exists(preset)
    ]
    if names:
      yield search, names


def _place_of_data(paper: Paper, preset: str, request: Request) -> list[Layer]:
  """The settings that say where the data of a preset are."""
  dataset = str(config_lib.values_of(preset)["dataset"])
  for name, user_file in paper.files.items():
    if user_file.dataset == dataset and request.files.get(name):
      return [user_file.values(request.files[name])]
  if request.data_dir and data_set(dataset).prepared_as:
    return [{"data_dir": request.data_dir}]
  return []


def _tune(paper: Paper, name: str, request: Request) -> None:
  """Chooses the settings of a figure's methods, and writes them into presets."""
  figure, _, panels_left_out = _resolve_figure(paper, name, request)
  print_lacking(panels_left_out)
  for search, names in _searches(paper, figure, request):
    assert paper.tuner is not None
    paper.tuner.tune(search, names, None, True)


def _list_runs(paper: Paper, names: Sequence[str], request: Request) -> None:
  """Prints the runs of figures, and how long they take."""
  folders: set[pathlib.Path] = set()
  all_durations = []
  for name in names:
    figure, *_ = _resolve_figure(paper, name, request)
    figure_cells = cells(paper, figure, request)
    groups = [
      search.run_group(algorithm)
      for search, algorithms in _searches(paper, figure, request)
      for algorithm in algorithms
    ]
    groups += durations.group_runs(
      figure_cells, request.root, _partitions(figure, request)
    )
    for each in durations.durations(groups, folders):
      print(f"{name} {each}", flush=True)
      all_durations.append(each)
  print(durations.total_time(all_durations))


def _run(
  paper: Paper, values: FlagValues, words: list[str], argv: Sequence[str]
) -> None:
  """Makes the figures and tables that are asked for, or runs a part."""
  request = _request(paper, values, words, argv)
  part = part_lib.parse_part(values.part)
  if request.html:
    page.check_plotly("`html`")  # before the first run
  names = [*paper.figures, *paper.tables]
  if values[paper.flag].value != "all":
    names = [str(values[paper.flag].value)]
  if values.dry_run:
    _list_runs(paper, [name for name in names if name in paper.figures], request)
    return
  if part is not None:
    part_cells: list[suite.Cell] = []
    for name in names:
      if name in paper.figures:
        figure, _, _ = _resolve_figure(paper, name, request)
        of_figure = _runs_of(paper, figure, request)
        suite.note_planned_runs(of_figure, request.root, name)
        part_cells += of_figure
    suite.run_part_of_cells(part_cells, request.root, part)
    return
  for name in names:
    if request.tune and name in paper.figures:
      _tune(paper, name, request)
  request = request._replace(tune=None)
  lock_errors: list[lock.StillHeld] = []
  for name in names:
    try:
      if name in paper.tables:
        _make_table(paper, name, request)
      else:
        _make_figure(paper, name, request)
    except lock.StillHeld as error:  # the runs of other figures go on
      lock_errors.append(error)
  if lock_errors:
    raise lock_errors[0]
