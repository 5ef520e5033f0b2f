"""Figures and tables of the diversified paper (MA-FSVRG, GA-FSVRG).

  python -m experiments.diversified --figure=fig1 --data_dir=...

draws the panels (PNG, PDF), writes their points (CSV) and a table of the
paper's numbers beside ours (Markdown). Runs that are finished are reused.
"""

from collections.abc import Sequence
import pathlib
import sys
from typing import Any, NamedTuple

from absl import flags as absl_flags

from experiments import central_time
from experiments import config as config_lib
from experiments import plots, report, results, run, suite
from fedjax_alg import registry

PAPER = "diversified"
SETTINGS = ("headline", "stated")

#: Shrinks a figure to minutes on two cores.
QUICK = ("--rounds=30", "--num_seeds=1", "--eval_every=5")
FULL = ("--num_seeds=3", "--eval_every=2")


#: What each run evaluates. On MNIST the figures' protocol alone, which is
#: cheap; on CIFAR-10, where the paper's numbers are out of a global model's
#: reach, also what the clients get on their own classes.
PROTOCOLS = {"mnist": "global", "cifar10": "global,local,preferred"}


class Figure(NamedTuple):
  """One figure: what it varies and which metric it shows."""

  title: str
  metric: str
  data: str  #: preset of the data
  panels: tuple[tuple[str, str, tuple[str, ...]], ...]  #: letter, title, flags
  baselines: bool  #: with the other methods, or MA and GA alone
  fixed: tuple[str, ...] = ()  #: flags of MA and GA in this figure


def _participation(*percent: int) -> tuple[Any, ...]:
  return tuple((letter, f"{p} % of the machines", (f"--participation={p/100}",))
               for letter, p in zip("abcd", percent))


def _varied(flag: str, name: str, *values: Any) -> tuple[Any, ...]:
  return tuple((letter, f"{name} = {v}", (f"--{flag}={v}",
                                          "--participation=0.1"))
               for letter, v in zip("abcd", values))


_MNIST = _participation(20, 15, 10, 5)
_CIFAR = _participation(40, 30, 20, 10)
_CIFAR_FIXED = ("--num_models=3", "--beta1=0.9", "--client_lr=0.08")

# Not the paper's: what each reading of it changes, one at a time.
_READINGS = tuple(
    (letter, title, (*own, "--participation=0.1")) for letter, title, own in (
        ("a", "headline", ()),
        ("b", "(64) corrected", ("--central_rule=corrected",)),
        ("c", "(64) corrected, beta1 = 0",
         ("--central_rule=corrected", "--beta1=0")),
        ("d", "A_r as printed", ("--aggregate_scaling=paper",)),
        ("e", "A_r = 1", ("--aggregate_scaling=none",)),
        ("f", "centres not centred", ("--nocentre_projection",)),
        ("g", "K copies, no split", ("--split=copies",)),
        ("h", "Lambda_i = 1", ("--nolocal_scaling",)),
        ("i", "no acceleration", ("--noaccelerate",)),
        ("j", "L2 = 0.01", ("--l2=0.01",))))

FIGURES: dict[str, Figure] = {
    "fig1": Figure("Fig. 1: test accuracy, MNIST", "accuracy", "mnist",
                   _MNIST, True),
    "fig2": Figure("Fig. 2: macro-averaged precision, MNIST",
                   "macro_precision", "mnist", _MNIST, True),
    "fig3": Figure("Fig. 3: micro-averaged recall, MNIST", "micro_recall",
                   "mnist", _MNIST, True),
    "fig4": Figure("Fig. 4: micro-averaged F1, MNIST", "micro_f1", "mnist",
                   _MNIST, True),
    "fig5": Figure("Fig. 5: macro-averaged recall, CIFAR-10", "macro_recall",
                   "cifar10", _CIFAR, True, _CIFAR_FIXED),
    "fig6": Figure("Fig. 6: macro-averaged F1, CIFAR-10", "macro_f1",
                   "cifar10", _CIFAR, True, _CIFAR_FIXED),
    "fig7": Figure("Fig. 7: micro-averaged precision, CIFAR-10",
                   "micro_precision", "cifar10", _CIFAR, True, _CIFAR_FIXED),
    "fig8": Figure("Fig. 8: rounds before the grouping", "accuracy", "mnist",
                   _varied("threshold", "T", 2, 4, 6, 8), False),
    "fig9": Figure("Fig. 9: number of global models", "accuracy", "mnist",
                   _varied("num_models", "K", 2, 4, 6, 8), False),
    "fig10": Figure("Fig. 10: first-moment decay", "accuracy", "mnist",
                    _varied("beta1", "beta1", 0.0, 0.5, 0.8, 0.9), False),
    "readings": Figure("Readings, 10 % of the machines", "accuracy", "mnist",
                       _READINGS, False),
}


def methods(
    figure: Figure, settings: Sequence[str]
) -> list[tuple[str, tuple[str, ...]]]:
  """label -> flags of every method of a figure that exists by now.

  MA and GA come once for each of ``settings``. A baseline joins by being
  registered and having presets/diversified/methods/<algorithm>.flags.
  """
  found = []
  for setting in settings:
    for name in ("ma_fsvrg", "ga_fsvrg"):
      label = registry.get(name).label
      if setting != "headline":
        label += f" ({setting})"
      found.append((label, (
          f"--flagfile={PAPER}/{setting}.flags", f"--algorithm={name}",
          *figure.fixed)))
  if figure.baselines:
    folder = config_lib.PRESETS / PAPER / "methods"
    for path in sorted(folder.glob("*.flags")):
      if path.stem in registry.ALGORITHMS:
        found.append((registry.get(path.stem).label, (
            f"--flagfile={PAPER}/methods/{path.name}",)))
  return found


def cells(
    figure: Figure, common: Sequence[str],
    settings: Sequence[str] = SETTINGS) -> list[suite.Cell]:
  """Every run of a figure.

  Args:
    figure: of ``FIGURES``.
    common: flags of every run, the last word.
    settings: of ``SETTINGS``, for MA and GA.
  """
  out = []
  for letter, title, varied in figure.panels:
    for label, own in methods(figure, settings):
      # The data last among the presets, so that a method's file, made for
      # MNIST, serves CIFAR-10 too; a stated L2 stays.
      l2 = [w for w in config_lib.expand_flagfiles(own) if w.startswith("--l2")]
      out.append(suite.Cell(letter, title, label, (
          *own, f"--flagfile={PAPER}/{figure.data}.flags", *l2[-1:], *varied,
          f"--eval_protocols={PROTOCOLS[figure.data]}", *common)))
  return out


def make_figure(
    name: str, figure: Figure, panels: Sequence[str] | None,
    root: pathlib.Path, common: Sequence[str], said: str,
    settings: Sequence[str] = SETTINGS) -> str:
  """Runs what a figure needs and writes it; returns the Markdown table."""
  if panels:
    kept = tuple(p for p in figure.panels if p[0] in panels)
    if not kept:
      raise config_lib.UsageError(
          f"--panels={','.join(panels)}: {name} has "
          f"{', '.join(p[0] for p in figure.panels)}")
    figure = figure._replace(panels=kept)
  outcomes = suite.run_cells(cells(figure, common, settings), root)
  folder = root / name
  folder.mkdir(parents=True, exist_ok=True)
  rows = report.compare(
      outcomes, report.load_claims(PAPER, name), "global", figure.metric)
  notes = report.provenance(outcomes, said) + (
      " K models: the best of the K on the test set, as in the paper's "
      "figures; `global_mean` in each run's metrics.csv is their mean. "
      "`(stated)` rows use the paper's stated settings.")
  text = report.markdown(figure.title, rows, notes)
  results.write_text(folder / f"{name}.md", text)
  report.points_csv(folder / f"{name}.csv", outcomes, "global", figure.metric)
  # The stated settings reach half the accuracy: in a picture of their own, or
  # everything else would be one line.
  for suffix, with_stated in (("", False), ("_stated", True)):
    chosen = [o for o in outcomes
              if o.cell.label.endswith("(stated)") == with_stated]
    if chosen:
      plots.panels(
          [folder / f"{name}{suffix}.png", folder / f"{name}{suffix}.pdf"],
          suite.by_panel(chosen), "global", figure.metric, figure.title)
  print(text)
  print(f"figure: {folder / name}.png", flush=True)
  return text


def _flag_values() -> absl_flags.FlagValues:
  values = absl_flags.FlagValues()
  choices = [*FIGURES, "table1", "all"]
  absl_flags.DEFINE_enum(
      "figure", None, choices, "what to make; all = everything",
      flag_values=values)
  absl_flags.DEFINE_enum(
      "scale", "full", ["full", "quick"],
      "full: 3 seeds, 100 rounds, the headline and the stated settings; "
      "quick: 1 seed, 30 rounds, the headline alone",
      flag_values=values)
  absl_flags.DEFINE_string(
      "data_dir", None, "folder of the prepared TFDS data sets",
      flag_values=values)
  absl_flags.DEFINE_string(
      "out_dir", f"out/{PAPER}", "where runs, figures and tables go",
      flag_values=values)
  absl_flags.DEFINE_list(
      "panels", None, "only these panels, e.g. a,c", flag_values=values)
  return values


def usage() -> str:
  """The help."""
  lines = ["usage: python -m experiments.diversified --figure=NAME [flags]", ""]
  values = _flag_values()
  for name in ("figure", "scale", "data_dir", "out_dir", "panels"):
    flag = values[name]
    lines.append(f"  --{name}: {flag.help} (default {flag.value})")
  lines += ["", "Figures:"]
  lines += [f"  {name:6} {figure.title}" for name, figure in FIGURES.items()]
  lines += ["  table1 Table I: central computation time",
            "", "Any further --flag=value goes to every run "
            "(python -m experiments.run --help)."]
  return "\n".join(lines)


def command(argv: Sequence[str]) -> None:
  """Parses the flags and makes the figures."""
  if config_lib.asks_help(argv):
    raise config_lib.HelpRequested(usage())
  values = _flag_values()
  own = [w for w in argv if w.lstrip("-").split("=")[0] in values]
  extra = [w for w in argv if w not in own]
  try:
    rest = values(["diversified", *own])
  except absl_flags.Error as error:
    raise config_lib.UsageError(str(error)) from error
  if len(rest) > 1 or values.figure is None:
    raise config_lib.UsageError(
        f"--figure: missing (one of {', '.join([*FIGURES, 'table1', 'all'])})")
  common = [*(QUICK if values.scale == "quick" else FULL), *extra]
  if values.data_dir:
    common.append(f"--data_dir={values.data_dir}")
  root = pathlib.Path(values.out_dir).expanduser()
  said = "python -m experiments.diversified " + " ".join(
      w for w in argv if not w.startswith(("--data_dir", "--out_dir")))
  settings = SETTINGS[:1] if values.scale == "quick" else SETTINGS
  names = [*FIGURES, "table1"] if values.figure == "all" else [values.figure]
  for name in names:
    if name == "table1":
      central_time.make_table(root, values.scale == "quick", said)
      continue
    make_figure(
        name, FIGURES[name], values.panels, root, common, said,
        SETTINGS[:1] if name == "readings" else settings)


def main(argv: Sequence[str] | None = None) -> int:
  """The command; returns the exit status."""
  return run.guarded(command, argv)


if __name__ == "__main__":
  sys.exit(main())
