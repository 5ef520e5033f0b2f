"""The figures and tables of the analytic paper (FedACnnL, pFedACnnL).

``python -m experiments.analytic`` makes them. Times are seconds on the
simulated machines (``fedjax_alg.engine.clock``), unless a column says that they
are seconds on this machine.
"""

from collections.abc import Callable, Mapping, Sequence
import itertools
import math
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import registry
from fedjax_alg.records import tables as records
from ...cli import config as config_lib
from ...cli import flag_words
from ...reports import figures, plots, report, suite
from ...reports import cost_to_accuracy as targets
from ...reports.figures import Figure, Line, Panel
from ...reports.report import shown, table
from . import claims

NAME = claims.NAME

#: (panel, method) -> rounds that are played at full scale, if they are fewer
#: than the paper states. All rounds of a method take the same simulated time,
#: so the time of the rounds that are not played is known.
PLAYED = {("b", "fedzo"): 100, ("b", "baffle"): 100}
#: Methods of Figs. 4 and 5 that are played with one seed, for their cost.
ONE_SEED = ("fedzo", "baffle")

#: (panel, method) -> the same of Table 2, whose baselines have 1,000 rounds.
#: pFedZO draws 20 directions of all parameters for every step.
TABLE2_PLAYED = {("a", "pfedzo"): 10, ("b", "pfedzo"): 10, ("c", "pfedzo"): 100}

#: The same of Fig. 6, where a pass over all data takes minutes on two cores.
#: FedAvg's file has 100 rounds; a round alone is 5 passes.
CIFAR10_PLAYED = {"fedavg": 5, "local": 1}

#: method -> the largest number of rounds that --scale=quick plays.
QUICK_ROUNDS = {"fedavg": 20, "fedzo": 2, "baffle": 1, "fedacnnl": 20,
                "pfedme": 20, "pfedzo": 4, "local": 5}
#: The network of --scale=quick on CIFAR-10, whose shared layers take 5 rounds.
#: It is evaluated after these and at the end.
QUICK_LAYERS = ("--layers=avg2,conv5-16,avg2,conv3-32,avg2,conv3-64,avg2,"
                "dense64",)

_MNIST = Panel("a", "MNIST", (), "mnist")
_SYNTHETIC = Panel("b", "Synthetic(0.5, 0.5)", (), "synthetic")
#: The settings of Table 2.
_SETTINGS = (
    _MNIST._replace(title="MNIST-DNN"),
    _SYNTHETIC._replace(title="Synthetic-DNN"),
    Panel("c", "MNIST-LR", (), "mnist_lr"),
    Panel("d", "Synthetic-LR", (), "synthetic_lr"))


def method(panel: Panel, name: str, *more: str) -> tuple[str, ...]:
  """The flags of a method: its files for the panel's data set and model."""
  folders = dict.fromkeys(("methods", f"methods_{panel.data.split('_')[0]}",
                           f"methods_{panel.data}"))
  files = [figures.method_files(NAME, folder).get(name, ())
           for folder in folders]
  return (*itertools.chain(*files), *more)


def _words(panel: Panel, name: str, *without: str) -> tuple[str, ...]:
  """The flags in a method's files, but for some."""
  return flag_words.without(
      config_lib.expand_flagfiles(method(panel, name)), *without)


def proposed(panel: Panel, label: str, *more: str) -> Line:
  """FedACnnL, pFedACnnL or a variant that lacks a part."""
  name = "fedacnnl" if label in (claims.ACNNL, claims.WA) else "pfedacnnl"
  lacks = {claims.WA: ("--noadaptive_batch",),
           claims.WC: ("--noclustering",),
           claims.WP: ("--nopersonalize",)}.get(label, ())
  unread = {claims.WC: "num_groups", claims.WP: "personal_ridge"}.get(label)
  if unread is None:
    return Line(label, method(panel, name, *lacks, *more))
  return Line(label, (*_words(panel, name, unread), *lacks, *more),
              sources=method(panel, name))


def _baseline(panel: Panel, name: str, *more: str) -> Line:
  return Line(registry.get(name).label, method(panel, name, *more))


def _time_lines(panel: Panel) -> list[Line]:
  """The lines of Figs. 4 and 5.

  FedACnnL does not change after its last layer.
  """
  stated = claims.STATED_ROUNDS[panel.letter]
  return [*(proposed(panel, label, f"--rounds={stated}")
            for label in (claims.ACNNL, claims.WA)),
          *(_baseline(
              panel, name,
              f"--rounds={PLAYED.get((panel.letter, name), stated)}",
              *["--num_seeds=1"] * (name in ONE_SEED))
            for name in ("fedavg", "fedzo", "baffle"))]


def _cifar10_lines(panel: Panel) -> list[Line]:
  """The lines of Fig. 6.

  Methods without personal layers do not change after their shared layers. The
  proposed methods of panel a, which the paper's claims are about, have the
  figure's seeds, all other lines one but the first of panel b, FedACnnL again.
  -WA, whose weights are FedACnnL's, stands in panel a alone.
  """
  rounds, one = "--rounds=10", "--num_seeds=1"
  if panel.letter == "b":
    first = proposed(panel, claims.ACNNL, rounds)
    other = Line("... not high-passed", (*_words(
        panel, "fedacnnl", "code_high_passed"), rounds, one),
                 sources=method(panel, "fedacnnl"))
    return [first._replace(label="codes of positions"), other, *(
        other._replace(label=label, flags=(*other.flags, f"--code={code}"))
        for label, code in (("codes of classes", "class"),
                            ("random filters", "random_filters")))]
  all_methods = panel.letter == "a"
  seeds = () if all_methods else (one,)
  lines = [proposed(panel, label, rounds, *seeds) for label in (
      claims.ACNNL, *[claims.WA] * all_methods, claims.PERSONAL,
      claims.WC, claims.WP)]
  if all_methods:
    lines += [_baseline(panel, name, f"--rounds={played}", one)
              for name, played in CIFAR10_PLAYED.items()]
  return lines


def _table2_lines(panel: Panel) -> list[Line]:
  lines = [proposed(panel, label) for label in (
      claims.ACNNL, claims.WC, claims.WP, claims.PERSONAL)]
  for name in ("pfedme", "pfedzo", "local"):
    fewer = TABLE2_PLAYED.get((panel.letter, name))
    lines.append(_baseline(
        panel, name, *[f"--rounds={fewer}"] * (fewer is not None)))
  if panel.data.endswith("_lr"):  # pixels always 0 need the ridges
    lines.append(_baseline(panel, "afl", "--noremove_ridge"))
  return lines


def _dirichlet_lines(panel: Panel) -> list[Line]:
  return [*(proposed(panel, label) for label in (
      claims.ACNNL, claims.WC, claims.WP, claims.PERSONAL)),
          _baseline(panel, "local")]


#: Whitened filters have such small outputs that an absolute ridge would
#: outweigh them.
_RANDOM = ("--code=random_filters", "--normalize", "--ridge=0.1",
           "--ridge_unit=relative")


def _ablation_lines(panel: Panel) -> list[Line]:
  own = proposed(
      panel, claims.PERSONAL if panel.letter == "a" else claims.ACNNL)

  def but(label: str, *more: str) -> Line:
    return own._replace(label=label, flags=(*own.flags, *more))

  if panel.letter == "b":
    return [*(but(f"codes: {code}", f"--code={code}")
              for code in ("position", "class")),
            but("random filters", *_RANDOM)]
  return [
      own, proposed(panel, claims.WC), proposed(panel, claims.WP),
      but("random filters", *_RANDOM),
      but("label counts of length 1 by l2", "--label_norm=l2"),
      *(but(f"{word} = {value}", f"--{flag}={value}")
        for word, flag, values in (
            ("bias", "bias", ("none", "centred")),
            ("gamma", "ridge", ("1", "10", "1000")),
            ("lambda", "personal_ridge", ("1", "10", "100", "1000")),
            ("groups", "num_groups", ("3", "5", "10")))
        for value in values)]


#: Ways to partition the data for AFL -> flags.
_DEALT = {
    "1 client": ("--partition=iid", "--num_clients=1"),
    "10 clients, iid": ("--partition=iid", "--num_clients=10"),
    "100 clients, iid": ("--partition=iid", "--num_clients=100"),
    "10 clients, Dirichlet(0.1)": (
        "--partition=dirichlet", "--dirichlet_alpha=0.1", "--num_clients=10"),
    "100 clients, Dirichlet(0.1)": (
        "--partition=dirichlet", "--dirichlet_alpha=0.1", "--num_clients=100"),
}
_KEPT = ", ridges kept"


def _afl_lines(panel: Panel) -> list[Line]:
  return [Line(how + tail, (*method(panel, "afl"), *dealt, *more))
          for how, dealt in _DEALT.items()
          for tail, more in (("", ()), (_KEPT, ("--noremove_ridge",)))]


# Tables and pictures.


def _heading(runs: Sequence[suite.Outcome]) -> str:
  return f"{runs[0].cell.panel}: {runs[0].cell.panel_title}"


def _rounds(outcome: suite.Outcome) -> str:
  """The number of rounds that a time is for, and how many were played."""
  played = outcome.summary["cost"]["rounds"]
  stretch = claims.stretch(outcome)
  if claims.closed_form(outcome):
    return str(np.count_nonzero([
        row["computation_s"] for row in outcome.rounds()
        if row["seed"] == outcome.rows[0]["seed"]]))
  stated = round(played * stretch)
  return str(stated) + (f" ({played} played)" if stated != played else "")


def _wall(outcome: suite.Outcome) -> float:
  """This machine's seconds for a seed, scaled to the stated rounds."""
  return claims.stretch(outcome) * outcome.rows[-1]["seconds"]


def time_table(outcomes: Sequence[suite.Outcome]) -> str:
  """Fig. 4: how a client spends its seconds, and what FedACnnL saves.

  The last column has the seconds of this machine, which computes all clients.
  They must not be compared with the simulated seconds.
  """
  stated = {(c.panel, c.method): c.value
            for c in report.load_claims(NAME, "Fig4")}
  lines = [
      "Mean seconds of a client for the whole training on the simulated "
      "machines. All rounds of a method with rounds take the same time: where "
      "fewer were played than the paper states, the time is that of the "
      "stated ones.", ""]
  for runs in suite.by_panel(outcomes):
    panel = runs[0].cell.panel
    rows = []
    for o in runs:
      label = o.cell.label
      saved, said = "-", "-"
      if label != claims.ACNNL:
        saved = f"{claims.reduction(runs, panel, label).mean():.1f}"
        value = stated.get((panel, f"{claims.ACNNL} vs {label}"))
        said = "-" if value is None else f"{value:g}"
        if panel == "b" and label != claims.WA:
          said = "more than 97"
      rows.append([
          label, _rounds(o), f"{claims.TOTAL(o).mean():.4g}", *(
              f"{claims.simulated(name)(o).mean():.4g}"
              for name in _PARTS.values()), saved, said, f"{_wall(o):.3g}"])
    idle = claims.reduction(
        runs, panel, claims.WA, claims.simulated("idle_s")).mean()
    lines += [f"## {_heading(runs)}", "", table([
        "method", "rounds", "simulated s", "computation", "idle",
        "communication", "FedACnnL needs less by, %", "paper",
        "s on this machine (not to be mixed with the others)"], rows), "",
              f"Idle time of FedACnnL is {idle:.1f} % "
              "less than without adaptive batches (the paper's number is "
              "lost).", ""]
  return "\n".join(lines)


#: What a client spends its time on -> column of rounds.csv.
_PARTS = dict(zip(("computation", "idle", "communication"),
                  (records.SIMULATED[i] for i in (0, 2, 1))))


def to_accuracy(outcomes: Sequence[suite.Outcome]) -> str:
  """Section: simulated seconds until the global model reaches an accuracy.

  The ratios of the times in Fig. 4 follow from the numbers of rounds that the
  paper states (20 and 600). The ratios of the times to an accuracy do not
  (errata A-18).
  """
  lines = ["## Time to an accuracy", "",
           "Simulated seconds to a test accuracy of the global model, median "
           "over seeds; - not within the rounds that were played. In brackets "
           f"what {claims.ACNNL} saves at that accuracy, in percent; above it "
           "is what it saves in the rounds that the paper states."]
  for runs in suite.by_panel(outcomes):
    wanted = [float(name) for name in runs[0].summary["rounds_to"]]
    ours = next((o for o in runs if o.cell.label == claims.ACNNL), None)
    lines += ["", table(
        [_heading(runs), *(f"{100 * t:g} %" for t in wanted)],
        ([o.cell.label, *(_time_to(o, t, None if ours is o else ours)
                          for t in wanted)] for o in runs))]
  return "\n".join(lines)


def _time_to(
    outcome: suite.Outcome, target: float, ours: suite.Outcome | None) -> str:
  """The seconds to an accuracy, and what FedACnnL saves of them."""
  spent = targets.spent(outcome, target, "simulated_s")
  middle = targets.median(spent)
  if middle is None:
    return "-"
  saved = "-" if ours is None else targets.shown_saving(
      targets.spent(ours, target, "simulated_s"), spent, False)
  return f"{middle:.3g}" + (f" ({saved})" if saved != "-" else "")


def _time_bars(
    paths: list[pathlib.Path], outcomes: list[suite.Outcome], title: str,
    stated: dict[tuple[str, str], float]) -> None:
  """Draws how a client spends its seconds, for each panel.

  ``stated`` says for (panel, method) by how many percent FedACnnL's time is
  less in the paper. At the mark of a method its time would be so much more than
  FedACnnL's here.
  """
  parts, marks = {}, {}
  labels = list(dict.fromkeys(o.cell.label for o in outcomes))
  for runs in suite.by_panel(outcomes):
    found = {o.cell.label: o for o in runs}
    name = f"{runs[0].cell.heading}: simulated s"
    measures = {part: claims.simulated(column)
                for part, column in _PARTS.items()} | {"together": claims.TOTAL}
    parts[name] = {
        part: [float(seconds(found[label]).mean())
               if label in found else None for label in labels]
        for part, seconds in measures.items()}
    ours = found.get(claims.ACNNL)
    marks[name] = [
        None if ours is None or saved is None else
        float(claims.TOTAL(ours).mean()) / (1.0 - saved / 100.0)
        for saved in (stated.get((runs[0].cell.panel, label))
                      for label in labels)]
  plots.bars(paths, parts, labels, title, "not run", marks,
             f"by the paper's saving, from {claims.ACNNL}'s here")


def _stated_reductions() -> dict[tuple[str, str], float]:
  """(panel, method) -> percent that the paper's FedACnnL saves against it."""
  return {(c.panel, c.method.removeprefix(f"{claims.ACNNL} vs ")): c.value
          for c in report.load_claims(NAME, "Fig4")}


def _draw_fig4(
    paths: list[pathlib.Path], outcomes: list[suite.Outcome], x_axis: str
) -> None:
  del x_axis  # bars
  _time_bars(paths, outcomes, FIGURES["fig4"].title, _stated_reductions())


def _draw_fig6(
    paths: list[pathlib.Path], outcomes: list[suite.Outcome], x_axis: str
) -> None:
  """Draws the ends, and the bars of time in a picture of their own.

  A method in closed form is evaluated once or twice, which makes no curve.
  """
  stated = {(panel, c.method): c.value
            for c in report.load_claims(NAME, "Fig6")
            if c.metric == "test_accuracy" for panel in "acd"}
  _draws_ends("fig6", stated)(paths, outcomes, x_axis)
  first = [o for o in outcomes if o.cell.panel == outcomes[0].cell.panel]
  _time_bars([p.with_stem(f"{p.stem}_time") for p in paths], first,
             "Fig. 6: training time of a client, CIFAR-10", {})


def _ends(
    outcomes: Sequence[suite.Outcome], stated: dict[str, float],
    named: str, *, times: bool = False) -> str:
  """Tables of the accuracies after the last round, one for each panel.

  Args:
    outcomes: the runs.
    stated: label -> the paper's number in percent.
    named: heading of the first column.
    times: whether the simulated seconds and those of this machine are added.
  """
  lines = []
  for runs in suite.by_panel(outcomes):
    head = [named, *bool(stated) * ["paper"], "clients' own test data, %",
            "mean of the clients", "worst tenth of them", "global model"]
    if times:
      head += ["simulated s", "of these idle",
               "s on this machine (not to be mixed with the others)"]
    rows = []
    for o in runs:
      said = stated.get(o.cell.label)
      final = o.summary["final"]
      words = [o.cell.label,
               *bool(stated) * ["-" if said is None else f"{said:.2f}"],
               *(shown(final["local"][name]["values"], factor=100)
                 for name in ("accuracy", "client_accuracy", "worst_decile")),
               # Each client alone has no global model.
               shown(final["global"]["accuracy"]["values"], factor=100)
               if "global" in final else "-"]
      if times:
        words += [f"{claims.TOTAL(o).mean():.4g}",
                  f"{claims.simulated('idle_s')(o).mean():.4g}",
                  f"{_wall(o):.3g}"]
      rows.append(words)
    lines += [f"## {_heading(runs)}", "", table(head, rows), ""]
  return "\n".join(lines)


def fig6_table(outcomes: Sequence[suite.Outcome]) -> str:
  """Fig. 6: every method's last accuracy, the paper's number, and the time."""
  stated = {c.method: c.value for c in report.load_claims(NAME, "Fig6")
            if c.metric == "test_accuracy"}
  text = _ends(outcomes, stated, "method", times=True)
  played = {o.cell.label: o.summary["cost"]["rounds"] for o in outcomes}
  names = [registry.get(name).label for name in CIFAR10_PLAYED]
  short = [f"{name} {played[name]}" for name in names if name in played]
  if short:
    text += ("\nRounds that were played of methods by SGD, whose end they are "
             f"not: {', '.join(short)}.")
  missing = [name for name in names if name not in played]
  if missing:
    text += f"\nNot run, hours on two cores: {', '.join(missing)}."
  return text


def _mean_sd(values: Any) -> str:
  """Mean +- standard deviation over seeds, as in the paper.

  With one seed there is no deviation.
  """
  mean, sd = _mean_and_sd(values)
  return f"{mean:.2f}" + ("" if math.isnan(sd) else f" +- {sd:.2f}")


def _mean_and_sd(values: Any) -> tuple[float, float]:
  """Mean and standard deviation over seeds; NaN for that of one seed."""
  return float(np.mean(values)), (
      float(np.std(values, ddof=1)) if len(values) > 1 else math.nan)


def _stated_table2() -> dict[tuple[str, str], float]:
  """(panel, method) -> the accuracy that the paper states in Table 2."""
  return {(c.panel, c.method): c.value
          for c in report.load_claims(NAME, "Table2")
          if c.metric == "test_accuracy_mean"}


def table2(outcomes: Sequence[suite.Outcome]) -> str:
  """Table 2 in the paper's form."""
  stated = _stated_table2()
  by_place = {(o.cell.panel, o.cell.label): o for o in outcomes}
  columns = {column: where for column, where in claims.COLUMNS.items()
             if any(label == where[0] for _, label in by_place)}
  rows = []
  for runs in suite.by_panel(outcomes):
    panel, words = runs[0].cell.panel, []
    for label, protocol in columns.values():
      o = by_place.get((panel, label))
      text = "-" if o is None else _mean_sd(claims.score(protocol)(o))
      said = stated.get((panel, label))
      # The paper has one pFedMe; its number stands beside theta.
      text += f" ({said:.2f})" if said and protocol == "local" else ""
      words.append(text)
    rows.append([_heading(runs), *words])
  lines = ["Accuracy on the clients' own test data, all examples counted "
           "alike, in percent: mean +- standard deviation over seeds, in "
           "brackets the paper's. Closed forms at their end; of the others "
           "the best evaluated round, chosen on test data as in the paper. "
           "`pFedMe, theta` is the personal model, `w_k` the client's copy of "
           "the global one, which the authors' code evaluates, `global` the "
           "server's.", "", table(["data and model", *columns], rows)]
  return "\n".join(lines)


def ablations(outcomes: Sequence[suite.Outcome]) -> str:
  """The accuracy of every setting after the last round."""
  return _ends(outcomes, {}, "setting")


def by_concentration(outcomes: Sequence[suite.Outcome]) -> str:
  """The accuracy of every method after the last round, by concentration."""
  return _ends(outcomes, {}, "method")


def _draws_ends(
    name: str, stated: Mapping[tuple[str, str], float] | None = None) -> Any:
  """Makes the ``Figure.draw`` of the accuracies of ``_ends``, as dots."""

  def draw(
      paths: list[pathlib.Path], outcomes: list[suite.Outcome], x_axis: str
  ) -> None:
    figures.as_dots(
        claims.end("local"), "accuracy, clients' own data, %",
        FIGURES[name].title, stated)(paths, outcomes, x_axis)

  return draw


_draw_ablations = _draws_ends("ablations")
_draw_dirichlet = _draws_ends("dirichlet")


def _draw_table2(
    paths: list[pathlib.Path], outcomes: list[suite.Outcome], x_axis: str
) -> None:
  """Draws dots, because a method in closed form has only one evaluation."""
  del x_axis
  stated = _stated_table2()
  parts: dict[str, dict[str, plots.Dot]] = {}
  for runs in suite.by_panel(outcomes):
    found = {o.cell.label: o for o in runs}
    own = parts[runs[0].cell.heading] = {}
    for column, (label, protocol) in claims.COLUMNS.items():
      said = stated.get((runs[0].cell.panel, label))
      mean, sd = None, math.nan
      if label in found:
        mean, sd = _mean_and_sd(claims.score(protocol)(found[label]))
      own[column] = plots.Dot(mean, sd, said if protocol == "local" else None)
  plots.dots(paths, parts, "accuracy, clients' own data, %",
             FIGURES["table2"].title, "standard deviation over seeds")


def afl_table(outcomes: Sequence[suite.Outcome]) -> str:
  """The accuracy of AFL for each way to partition the data."""
  last = claims.end("global")
  rows = []
  for runs in suite.by_panel(outcomes):
    found = {o.cell.label: f"{last(o).mean():.2f}" for o in runs}
    rows += [[_heading(runs), how, found.get(how, "-"),
              found.get(how + _KEPT, "-")] for how in _DEALT]
  return ("Accuracy of the one global model, in percent. Every client adds "
          "gamma = 1 to its Gram matrix; the server takes the sum of them "
          "off again, or does not.\n\n" + table(
              ["data", "dealt to", "ridges removed", "ridges kept"], rows))


def _draw_afl(
    paths: list[pathlib.Path], outcomes: list[suite.Outcome], x_axis: str
) -> None:
  del x_axis  # dots
  last = claims.end("global")
  plots.dots(paths, {
      runs[0].cell.heading: {
          o.cell.label: plots.Dot(float(last(o).mean()))
          for o in sorted(runs, key=lambda o: o.cell.label.endswith(_KEPT))}
      for runs in suite.by_panel(outcomes)}, "accuracy of the global model, %",
             FIGURES["afl"].title)


def _figure(
    title: str, panels: tuple[Panel, ...],
    lines_of: Callable[[Panel], list[Line]], num_seeds: int = 1, **more
) -> Figure:
  """A figure whose lines are those of ``lines_of``.

  By default it has one seed at full scale. This is enough for a figure that is
  meant for orientation, takes long, or shows simulated times, which do not
  depend on the seed.
  """
  return Figure(title, "accuracy", "", panels, lines_of,
                num_seeds=num_seeds, **more)


FIGURES: dict[str, Figure] = {
    "fig4": _figure(
        "Fig. 4: training time of a client, MNIST and Synthetic",
        (_MNIST, _SYNTHETIC), _time_lines, num_seeds=3, eval_every=1,
        table=time_table,
        sections=(to_accuracy,), draw=_draw_fig4, statements=claims.FIG4),
    "fig5": _figure(
        "Fig. 5: test accuracy of the global model, MNIST and Synthetic",
        (_MNIST, _SYNTHETIC), _time_lines, num_seeds=3, eval_every=1,
        statements=claims.FIG5),
    "fig6": _figure(
        "Fig. 6: five layers on CIFAR-10",
        (Panel("a", "methods", (), "cifar10"),
         Panel("b", "what FedACnnL's hidden layers are fitted to", (),
               "cifar10"),
         *(Panel(letter, f"methods, Dirichlet({alpha})",
                 (f"--dirichlet_alpha={alpha}",), "cifar10")
           for letter, alpha in (("c", "0.3"), ("d", "1")))), _cifar10_lines,
        num_seeds=3, protocol="local", protocols="local,global", eval_every=5,
        table=fig6_table, draw=_draw_fig6, statements=claims.FIG6,
        measures={"test_accuracy": claims.end_on_cifar10},
        quick=("a",), shrunk=QUICK_LAYERS),
    "table2": _figure(
        "Table 2: personalised accuracy", _SETTINGS, _table2_lines,
        num_seeds=5,  # as the paper
        protocol="local", protocols="local,global,copy", eval_every=10,
        table=table2, draw=_draw_table2,
        statements=claims.TABLE2 + claims.BEYOND,
        measures={"test_accuracy_mean": lambda o, every: claims.SCORE(o)},
        quick=("a", "d")),
    "dirichlet": _figure(
        "Personalised accuracy by the concentration of the classes, MNIST-DNN",
        tuple(Panel(letter, f"Dirichlet({alpha})",
                    (f"--dirichlet_alpha={alpha}",), "mnist")
              for letter, alpha in zip("abc", ("0.1", "0.3", "1"))),
        _dirichlet_lines, num_seeds=3, protocol="local",
        protocols="local,global", eval_every=10, table=by_concentration,
        draw=_draw_dirichlet, statements=claims.DIRICHLET, quick=("a",)),
    "ablations": _figure(
        "What the paper leaves open, MNIST",
        (_MNIST._replace(title="pFedACnnL, two hidden layers"),
         Panel("b", "FedACnnL, two convolutions", (), "mnist_conv")),
        _ablation_lines, protocol="local", protocols="local,global",
        eval_every=10, table=ablations, draw=_draw_ablations, quick=("a",)),
    "afl": _figure(
        "AFL: one layer on HoG features, however they are dealt",
        (Panel("a", "MNIST", (), "mnist_hog"),
         Panel("b", "CIFAR-10", (), "cifar10_hog")), _afl_lines,
        table=afl_table, draw=_draw_afl, statements=claims.AFL_CLAIMS),
}


PAPER = figures.Paper(
    NAME, FIGURES, {},
    "Closed forms take all clients in every round. The seeds share one "
    "partition and one set of simulated machines, so a deviation over seeds "
    "holds neither. A best round is chosen on test data.",
    ("FedACnnL", "pFedACnnL"),
    quick=("--num_seeds=1",), quick_rounds=QUICK_ROUNDS,
    pages={"fig6": "cifar10", "dirichlet": "readings",
           "ablations": "readings", "afl": "afl"},
    seeds="table2 5 seeds, dirichlet 3, fig4 and fig5 3 but for FedZO and "
    "BAFFLE, fig6 3 in panel a but for methods by SGD, the others 1")
