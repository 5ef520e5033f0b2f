"""What the figure commands of all papers share: flags, runs, files, help.

A paper is a table of figures (``Paper``); its command does the rest: it makes
the runs a figure needs, finds those that are there, and writes the panels
(PNG, PDF), their points (CSV) and the paper's numbers beside ours (Markdown).
"""

from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

from absl import flags as absl_flags

from experiments.cli import config as config_lib
from experiments.cli import flags as run_flags
from experiments.reports import plots, report, suite, verdicts
from fedjax_alg.records import summary as results
from fedjax_alg import registry

#: Flag files of a paper's own methods, and what the tables call them.
SETTINGS = ("headline", "stated")

#: Shrinks a figure to minutes on two cores.
QUICK = ("--rounds=30", "--num_seeds=1")
FULL = ("--num_seeds=3",)

#: Section of a table beside the paper's numbers; "" where there is none.
Section = Callable[[Sequence[suite.Outcome]], str]

#: (label, flags) of each line of a panel.
Lines = list[tuple[str, tuple[str, ...]]]


class Panel(NamedTuple):
  """One panel: what sets it apart."""

  letter: str
  title: str
  flags: tuple[str, ...]
  data: str = ""  #: preset of its data, where it is not the figure's
  eval_every: int = 0  #: where it is not the figure's


class Figure(NamedTuple):
  """One figure: what it varies and which metric it shows."""

  title: str
  metric: str
  data: str  #: preset of the data, <paper>/<data>.flags
  panels: tuple[Panel, ...]
  baselines: bool = True  #: with the other methods, or the paper's own alone
  fixed: tuple[str, ...] = ()  #: flags of the own methods in this figure
  #: lines of each own method: behind its label, its flags
  lines: tuple[tuple[str, tuple[str, ...]], ...] = (("", ()),)
  protocol: str = "global"  #: which is shown
  protocols: str = "global"  #: which are evaluated
  eval_every: int = 2
  settings: tuple[str, ...] = SETTINGS  #: of the own methods
  sections: tuple[Section, ...] = ()
  statements: tuple[verdicts.Statement, ...] = ()
  #: the lines of a panel, where they are not all methods with a file
  lines_of: Callable[[Panel], Lines] | None = None
  quick: tuple[str, ...] = ()  #: panels of --scale=quick; first and last
  #: the table, where it is not the mean of the last rounds beside the paper's
  table: Section | None = None
  #: (paths, outcomes, x axis): the picture, where it is not the curves
  draw: Callable[[list[pathlib.Path], list[suite.Outcome], str], None] | (
      None) = None


class Request(NamedTuple):
  """What the command line asks of every figure."""

  root: pathlib.Path
  common: tuple[str, ...]  #: flags of every run, the last word
  said: str  #: the command
  quick: bool = False
  panels: tuple[str, ...] | None = None
  lines: tuple[str, ...] | None = None  #: labels
  x_axis: str = "rounds"
  files: Mapping[str, str] = {}  #: of ``Paper.files``, those given


class Table(NamedTuple):
  """What a paper shows that has no curves."""

  title: str
  make: Callable[[Request], Any]


class Paper(NamedTuple):
  """A paper's figures."""

  name: str  #: of its presets and claims
  own: tuple[str, ...]  #: algorithms whose flags are <setting>.flags
  figures: Mapping[str, Figure]
  tables: Mapping[str, Table]
  note: str  #: below every table
  quick: tuple[str, ...] = QUICK  #: flags of --scale=quick
  seeds: str = "3 seeds"  #: of --scale=full, in words
  files: Mapping[str, str] = {}  #: flags of its command that name a file, help
  #: (figure, request) -> the figure as it can be made here, and what to say
  #: of what it then lacks
  fit: Callable[[Figure, Request], tuple[Figure, list[str]]] = (
      lambda figure, request: (figure, []))


def participation(*percent: int) -> tuple[Panel, ...]:
  """A panel for each participation rate."""
  return tuple(
      Panel(letter, f"{p} % of the clients", (f"--participation={p/100}",))
      for letter, p in zip("abcd", percent))


def method_files(paper: Paper, folder: str) -> dict[str, tuple[str, ...]]:
  """algorithm -> --flagfile of <folder>/<algorithm>.flags, if registered."""
  files = {name: f"{paper.name}/{folder}/{name}.flags"
           for name in registry.ALGORITHMS}
  return {name: (f"--flagfile={file}",) for name, file in files.items()
          if (config_lib.PRESETS / file).is_file()}


def methods(
    paper: Paper, figure: Figure, settings: Sequence[str]
) -> Lines:
  """(label, flags) of every line of a figure that can be run by now.

  A method joins by being registered and having a file in methods/; what
  methods_<data>/ says for one data set alone wins over it. The paper's own
  methods come once for each of ``settings``.
  """
  general = method_files(paper, "methods")
  special = method_files(paper, f"methods_{figure.data}")
  found = []
  for setting in settings:
    file = f"{paper.name}/{setting}.flags"
    if not (config_lib.PRESETS / file).is_file():
      continue
    headline = setting == "headline"
    for name in paper.own:
      if name not in registry.ALGORITHMS:
        continue
      for suffix, own in figure.lines:
        label = registry.get(name).label + suffix
        found.append((label if headline else f"{label} ({setting})", (
            f"--flagfile={file}", f"--algorithm={name}",
            *(general.get(name, ()) if headline else ()), *figure.fixed,
            *(special.get(name, ()) if headline else ()), *own)))
  if figure.baselines:
    found += [(registry.get(name).label,
               (*general.get(name, ()), *special.get(name, ())))
              for name in registry.ALGORITHMS
              if name not in paper.own and (name in general or name in special)]
  return found


def cells(
    paper: Paper, figure: Figure, common: Sequence[str],
    settings: Sequence[str] = SETTINGS) -> list[suite.Cell]:
  """Every run of a figure.

  Args:
    paper: whose figure.
    figure: of its figures.
    common: flags of every run, the last word.
    settings: of ``SETTINGS``, for the paper's own methods.

  Raises:
    UsageError: there is no method yet.
  """
  out = []
  lines: Lines = []
  if figure.lines_of is None:
    lines = methods(
        paper, figure, [s for s in settings if s in figure.settings])
    if not lines:
      raise config_lib.UsageError(
          f"{figure.title}: no method can be run, none of those with a file in "
          f"presets/{paper.name}/ is registered")
  for panel in figure.panels:
    for label, own in (
        figure.lines_of(panel) if figure.lines_of else lines):
      words = config_lib.expand_flagfiles(own)
      # What adapts the model is looked at after that, too.
      name = [w for w in words if w.startswith("--algorithm=")][-1]
      protocols = figure.protocols.split(",")
      if registry.get(name.split("=")[1]).adapts and "local" not in protocols:
        protocols.append("local")
      # The data last among the presets, so that a method's file, made for
      # MNIST, serves CIFAR-10 too; a stated L2 stays.
      l2 = [w for w in words if w.startswith("--l2")]
      out.append(suite.Cell(panel.letter, panel.title, label, _as_read((
          *own, f"--flagfile={paper.name}/{panel.data or figure.data}.flags",
          *l2[-1:], *panel.flags, f"--eval_protocols={','.join(protocols)}",
          f"--eval_every={panel.eval_every or figure.eval_every}", *common))))
  return out


def last_word(words: Sequence[str], name: str) -> str | None:
  """The value of --name that wins, flagfiles looked into."""
  found = [w.split("=", 1)[1] for w in config_lib.expand_flagfiles(words)
           if w.startswith(f"--{name}=")]
  return found[-1] if found else None


def _as_read(words: tuple[str, ...]) -> tuple[str, ...]:
  """Without --data_dir where the run's data set is not in it."""
  readers = run_flags.CONDITIONS["data_dir"][1]
  if last_word(words, "dataset") in readers and (
      last_word(words, "data_path") is None):
    return words
  return tuple(w for w in words if not w.startswith("--data_dir="))


def only(name: str, figure: Figure, panels: Sequence[str]) -> Figure:
  """The figure with some of its panels.

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
  """Makes or finds the runs of a figure; quick has no stated settings."""
  wanted = SETTINGS[:1] if request.quick else settings
  found = cells(paper, figure, request.common, wanted)
  if request.lines:
    labels = list(dict.fromkeys(cell.label for cell in found))
    for label in request.lines:
      if label not in labels:
        raise config_lib.UsageError(
            f"--lines={label}: no such line (one of {', '.join(labels)})")
    found = [cell for cell in found if cell.label in request.lines]
  return suite.run_cells(found, request.root)


def write(request: Request, name: str, text: str) -> pathlib.Path:
  """Writes and prints <name>.md; returns its folder."""
  folder = request.root / name
  folder.mkdir(parents=True, exist_ok=True)
  results.write_text(folder / f"{name}.md", text)
  print(text, flush=True)
  return folder


def pictures(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
  """The PNG and PDF of a picture."""
  found = [folder / f"{name}.{kind}" for kind in ("png", "pdf")]
  print(f"figure: {found[0]}", flush=True)
  return found


def make_figure(paper: Paper, name: str, request: Request) -> str:
  """Runs what a figure needs and writes it; returns the Markdown table."""
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
        f"Quick: `{' '.join(paper.quick)}`, {which}({' and '.join(letters)}; "
        "--panels gives others).")
  figure, lacking = paper.fit(figure, request)
  if not figure.panels:
    raise config_lib.UsageError(f"{name}: {' '.join(lacking)}")
  outcomes = outcomes_of(paper, figure, request)
  parts = [
      *(section(outcomes) for section in figure.sections),
      verdicts.section(figure.statements, outcomes), "\n\n".join(lacking),
      report.provenance(outcomes, request.said, " ".join(notes))]
  if figure.table is not None:
    text = report.join(figure.title, [figure.table(outcomes), *parts])
  else:
    rows = report.compare(
        outcomes, report.load_claims(paper.name, name), figure.protocol,
        figure.metric)
    text = report.markdown(figure.title, rows, parts)
  folder = write(request, name, text)
  report.points_csv(
      folder / f"{name}.csv", outcomes, figure.protocol, figure.metric)
  # The stated settings can lie far below: in a picture of their own, or
  # everything else would be one line.
  along = "" if request.x_axis == "rounds" else f"_vs_{request.x_axis}"
  for suffix, with_stated in (("", False), ("_stated", True)):
    chosen = [o for o in outcomes
              if o.cell.label.endswith("(stated)") == with_stated]
    if not chosen:
      continue
    paths = pictures(folder, name + suffix + along)
    if figure.draw is not None:
      figure.draw(paths, chosen, request.x_axis)
    else:
      plots.panels(
          paths, suite.by_panel(chosen), figure.protocol, figure.metric,
          figure.title, request.x_axis)
  return text


def _flag_values(paper: Paper) -> absl_flags.FlagValues:
  values = absl_flags.FlagValues()
  absl_flags.DEFINE_enum(
      "figure", None, [*paper.figures, *paper.tables, "all"],
      "what to make; all = everything", flag_values=values)
  absl_flags.DEFINE_enum(
      "scale", "full", ["full", "quick"],
      f"full: {paper.seeds}, all rounds, panels and settings; quick: "
      f"{' '.join(paper.quick)}, the headline settings alone, some panels",
      flag_values=values)
  absl_flags.DEFINE_list(
      "panels", None, "only these panels, e.g. a,c", flag_values=values)
  absl_flags.DEFINE_list(
      "lines", None, "only these lines, by their labels in the tables",
      flag_values=values)
  absl_flags.DEFINE_enum(
      "x_axis", "rounds", list(plots.X_AXES),
      "what the curves stand over; the picture's name then ends in "
      "_vs_<x_axis>", flag_values=values)
  absl_flags.DEFINE_string(
      "data_dir", None, "folder of the prepared TFDS data sets",
      flag_values=values)
  absl_flags.DEFINE_string(
      "out_dir", f"out/{paper.name}", "where runs, figures and tables go",
      flag_values=values)
  for name, text in paper.files.items():
    absl_flags.DEFINE_string(name, None, text, flag_values=values)
  return values


def usage(paper: Paper) -> str:
  """The help."""
  lines = [f"usage: python -m experiments.{paper.name} --figure=NAME [flags]",
           ""]
  values = _flag_values(paper)
  for name in ("figure", "scale", "panels", "lines", "x_axis", "data_dir",
               "out_dir", *paper.files):
    flag = values[name]
    tail = "" if flag.value is None else f" (default {flag.value})"
    lines.append(f"  --{name}: {flag.help}{tail}")
  lines += ["", "Figures and tables:"]
  titles = {name: figure.title for name, figure in paper.figures.items()}
  titles |= {name: table.title for name, table in paper.tables.items()}
  lines += [f"  {name:9} {title}" for name, title in titles.items()]
  lines += ["", "Finished runs are reused, interrupted ones gone on with. Any "
            "further", "--flag=value goes to every run (python -m "
            "experiments.run --help)."]
  return "\n".join(lines)


def command(paper: Paper, argv: Sequence[str]) -> None:
  """Parses the flags and makes the figures."""
  if config_lib.asks_help(argv):
    raise config_lib.HelpRequested(usage(paper))
  values = _flag_values(paper)
  own = [w for w in argv if w.lstrip("-").split("=")[0] in values]
  extra = [w for w in argv if w not in own]
  try:
    rest = values([paper.name, *own])
  except absl_flags.Error as error:
    raise config_lib.UsageError(str(error)) from error
  names = [*paper.figures, *paper.tables]
  if len(rest) > 1 or values.figure is None:
    raise config_lib.UsageError(
        f"--figure: missing (one of {', '.join([*names, 'all'])})")
  for flag in ("panels", "lines", "x_axis"):
    if values.figure in paper.tables and values[flag].present:
      raise config_lib.UsageError(
          f"--{flag}: not read by {values.figure}, which has no curves")
  quick = values.scale == "quick"
  common = [*(paper.quick if quick else FULL), *extra]
  if values.data_dir:
    common.append(f"--data_dir={values.data_dir}")
  request = Request(
      pathlib.Path(values.out_dir).expanduser(), tuple(common),
      " ".join([f"python -m experiments.{paper.name}", *(
          w for w in argv if not w.startswith((
              "--data_dir", "--out_dir", *(f"--{f}" for f in paper.files))))]),
      quick, tuple(values.panels) if values.panels else None,
      tuple(values.lines) if values.lines else None, values.x_axis,
      {name: str(values[name].value) for name in paper.files
       if values[name].value})
  for name in names if values.figure == "all" else [values.figure]:
    if name in paper.tables:
      paper.tables[name].make(request)
    else:
      make_figure(paper, name, request)
