"""The figures and tables of the analytic paper (FedACnnL, pFedACnnL).

``python -m experiments.analytic`` makes them. Times are seconds on the
simulated machines (``fedjax_alg.engine.clock``), unless a column says that they
are seconds on this machine.
"""

from collections.abc import Callable, Iterator, Mapping
import functools
import math
from typing import Any

import numpy as np

from fedjax_alg import metrics, registry
from fedjax_alg.records import tables as records

from ...drawing import dots
from ...reports import markdown
from .. import cost_to_accuracy as targets
from .. import figures, pages, report, suite
from ..figures import Figure, FigureLine, Panel
from . import claims

NAME = claims.NAME

#: (panel, method) -> rounds that are run at full scale, if they are fewer
#: than the paper states. All rounds of a method take the same simulated time,
#: so the time of the rounds that are not run is known.
ROUNDS_RUN = {("b", "fedzo"): 100, ("b", "baffle"): 100}
#: Methods of Figs. 4 and 5 that are run with one seed, for their cost.
ONE_SEED = ("fedzo", "baffle")

#: (panel, method) -> the same of Table 2, whose baselines have 1,000 rounds.
#: pFedZO draws 20 directions of all parameters for every step.
TABLE2_ROUNDS_RUN = {("a", "pfedzo"): 10, ("b", "pfedzo"): 10, ("c", "pfedzo"): 100}

#: The same of Fig. 6, where a pass over all data takes minutes on two cores.
#: FedAvg's file has 100 rounds; a round alone is 5 passes.
CIFAR10_ROUNDS_RUN = {"fedavg": 5, "local": 1}

#: method -> the largest number of rounds that --scale=quick runs.
QUICK_ROUNDS = {
  "fedavg": 20,
  "fedzo": 2,
  "baffle": 1,
  "fedacnnl": 20,
  "pfedme": 20,
  "pfedzo": 4,
  "local": 5,
}
#: The network of --scale=quick on CIFAR-10, whose shared layers take 5 rounds.
#: It is evaluated after these and at the end.
QUICK_MODEL = {"model": "stack:avg2,conv5-16,avg2,conv3-32,avg2,conv3-64,avg2,dense64"}


def _panel(
  letter: str, title: str, data: str, variant: str = "", **values: Any
) -> Panel:
  """A panel of a data set, or of a variant of it with another model or features."""
  preset = f"{data}_{variant}" if variant else data
  return Panel(letter, title, values, preset, of={"data": data, "variant": variant})


_MNIST = _panel("a", "MNIST", "mnist")
_SYNTHETIC = _panel("b", "Synthetic(0.5, 0.5)", "synthetic")
#: The settings of Table 2.
_SETTINGS = (
  _MNIST._replace(title="MNIST-DNN"),
  _SYNTHETIC._replace(title="Synthetic-DNN"),
  _panel("c", "MNIST-LR", "mnist", "lr"),
  _panel("d", "Synthetic-LR", "synthetic", "lr"),
)


def _presets(panel: Panel, name: str) -> tuple[str, ...]:
  """The presets of a method for the panel's data set and model."""
  folders = dict.fromkeys(
    ("methods", f"methods_{panel.of['data']}", f"methods_{panel.data}")
  )
  found = [figures.method_presets(NAME, folder).get(name) for folder in folders]
  return tuple(filter(None, found))


def _variant_line(panel: Panel, label: str, **values: Any) -> FigureLine:
  """FedACnnL, pFedACnnL or a variant that lacks a part."""
  name = "fedacnnl" if label in (claims.ACNNL, claims.WA) else "pfedacnnl"
  lacks = {
    claims.WA: {"adaptive_batch": "none"},
    claims.WC: {"clustering": "none"},
    claims.WP: {"personal_ridge": "none"},
  }.get(label, {})
  return FigureLine(label, (*_presets(panel, name), lacks, values))


def _baseline(panel: Panel, name: str, of_rounds: int = 0, **values: Any) -> FigureLine:
  return FigureLine(
    registry.get(name).label, (*_presets(panel, name), values), of_rounds=of_rounds
  )


def _time_lines(panel: Panel) -> list[FigureLine]:
  """The lines of Figs. 4 and 5.

  FedACnnL does not change after its last layer.
  """
  stated = claims.STATED_ROUNDS[panel.letter]
  return [
    *(
      _variant_line(panel, label, rounds=stated) for label in (claims.ACNNL, claims.WA)
    ),
    *(
      _baseline(
        panel,
        name,
        stated,
        rounds=ROUNDS_RUN.get((panel.letter, name), stated),
        **({"num_seeds": 1} if name in ONE_SEED else {}),
      )
      for name in ("fedavg", "fedzo", "baffle")
    ),
  ]


def _cifar10_lines(panel: Panel) -> list[FigureLine]:
  """The lines of Fig. 6.

  Methods without personal layers do not change after their shared layers. The
  proposed methods of panel a, which the paper's claims are about, have the
  figure's seeds, all other lines one but the first of panel b, FedACnnL again.
  -WA, whose weights are FedACnnL's, stands in panel a alone.
  """
  one_seed = {"num_seeds": 1}
  if panel.letter == "b":
    first = _variant_line(panel, claims.ACNNL, rounds=10)
    unfiltered = FigureLine(
      "... not high-passed",
      (
        *_presets(panel, "fedacnnl"),
        {"code": "position:centred", "rounds": 10},
        one_seed,
      ),
    )
    return [
      first._replace(label="codes of positions"),
      unfiltered,
      *(
        unfiltered._replace(label=label, layers=(*unfiltered.layers, {"code": code}))
        for label, code in (
          ("codes of classes", "class:centred"),
          ("random filters", "random_filters"),
        )
      ),
    ]
  all_methods = panel.letter == "a"
  seeds = {} if all_methods else one_seed
  lines = [
    _variant_line(panel, label, rounds=10, **seeds)
    for label in (
      claims.ACNNL,
      *[claims.WA] * all_methods,
      claims.PERSONAL,
      claims.WC,
      claims.WP,
    )
  ]
  if all_methods:
    lines += [
      _baseline(panel, name, claims.CIFAR10_ROUNDS, rounds=number, **one_seed)
      for name, number in CIFAR10_ROUNDS_RUN.items()
    ]
  return lines


def _table2_lines(panel: Panel) -> list[FigureLine]:
  lines = [
    _variant_line(panel, label)
    for label in (claims.ACNNL, claims.WC, claims.WP, claims.PERSONAL)
  ]
  for name in ("pfedme", "pfedzo", "local"):
    fewer = TABLE2_ROUNDS_RUN.get((panel.letter, name))
    lengths = {"of_rounds": claims.ROUNDS, "rounds": fewer} if fewer else {}
    lines.append(_baseline(panel, name, **lengths))
  if panel.of["variant"] == "lr":  # pixels always 0 need the ridges
    lines.append(_baseline(panel, "afl", remove_ridge=False))
  return lines


def _dirichlet_lines(panel: Panel) -> list[FigureLine]:
  return [
    *(
      _variant_line(panel, label)
      for label in (claims.ACNNL, claims.WC, claims.WP, claims.PERSONAL)
    ),
    _baseline(panel, "local"),
  ]


#: Whitened filters have such small outputs that an absolute ridge would
#: outweigh them.
_RANDOM = {
  "code": "random_filters",
  "normalize": True,
  "ridge": 0.1,
  "ridge_unit": "relative",
}


def _ablation_lines(panel: Panel) -> list[FigureLine]:
  full = _variant_line(panel, claims.PERSONAL if panel.letter == "a" else claims.ACNNL)

  def but(label: str, **values: Any) -> FigureLine:
    return full._replace(label=label, layers=(*full.layers, values))

  if panel.letter == "b":
    return [
      *(but(f"codes: {code}", code=code) for code in ("position", "class")),
      but("random filters", **_RANDOM),
    ]
  return [
    full,
    _variant_line(panel, claims.WC),
    _variant_line(panel, claims.WP),
    but("random filters", **_RANDOM),
    but("label counts of length 1 by l2", clustering="kmeans:2,norm=l2"),
    but("no bias", bias="none"),
    but("bias of centered data", bias="centred"),
    *(
      but(f"{word} = {value}", **{flag: value})
      for word, flag, values in (
        ("gamma", "ridge", ("1", "10", "1000")),
        ("lambda", "personal_ridge", ("1", "10", "100", "1000")),
      )
      for value in values
    ),
    *(
      but(f"groups = {number}", clustering=f"kmeans:{number}") for number in (3, 5, 10)
    ),
  ]


#: Ways to partition the data for AFL -> values.
_DEALT = {
  "1 client": {"partition": "iid", "num_clients": 1},
  "10 clients, iid": {"partition": "iid", "num_clients": 10},
  "100 clients, iid": {"partition": "iid", "num_clients": 100},
  "10 clients, Dirichlet(0.1)": {"partition": "dirichlet:0.1", "num_clients": 10},
  "100 clients, Dirichlet(0.1)": {"partition": "dirichlet:0.1", "num_clients": 100},
}


def _afl_lines(panel: Panel) -> list[FigureLine]:
  return [
    FigureLine(
      partition + ", ridges kept" * with_ridges,
      (*_presets(panel, "afl"), dealt, {"remove_ridge": False} if with_ridges else {}),
      of={"dealt": partition, "ridges_kept": with_ridges},
    )
    for partition, dealt in _DEALT.items()
    for with_ridges in (False, True)
  ]


# Tables and pictures.


def _rounds(outcome: suite.Outcome) -> tuple[int, int]:
  """How many rounds were run, and the number that a time is for."""
  run = outcome.summary["cost"]["rounds"]
  if claims.is_closed_form(outcome):
    run = int(np.count_nonzero(outcome.frames.of_rounds("computation_s")[0]))
    return run, run
  return run, round(run * claims.rounds_factor(outcome))


def _rounds_in_words(outcome: suite.Outcome) -> str:
  run, rounds = _rounds(outcome)
  return f"{rounds} ({run} run)" if run != rounds else str(rounds)


def _wall(outcome: suite.Outcome) -> float:
  """This machine's seconds for a seed, scaled to the stated rounds."""
  return claims.rounds_factor(outcome) * float(outcome.frames.end("seconds")[-1])


#: Heading of a column of times that nothing else can be compared with.
_WALL_HEADING = "s on this machine (not to be mixed with the others)"
#: Activity on which a client spends time -> column of rounds.csv.
_PARTS = dict(
  zip(
    ("computation", "idle", "communication"), (records.SIMULATED[i] for i in (0, 2, 1))
  )
)
#: The same with the whole time -> measure.
_TIMES = {part: claims.seconds_of(column) for part, column in _PARTS.items()} | {
  "sum": claims.TOTAL
}


#: (panel, method) -> percent that the paper's FedACnnL saves.
_Savings = Mapping[tuple[str, str], float]


def _saved(savings: _Savings, panel: str, baseline: str) -> float | None:
  """Percent that the paper's FedACnnL saves against a method; None: not said."""
  return savings.get((panel, f"{claims.ACNNL} vs {baseline}"))


def _time_table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Fig. 4: how a client spends its seconds, and what FedACnnL saves.

  The last column has the seconds of this machine, which computes all clients.
  They must not be compared with the simulated seconds.
  """
  stated = report.paper_numbers(NAME, "Fig4")
  blocks: list[pages.Block] = [
    "Mean seconds of a client for the whole training on the simulated "
    "machines. All rounds of a method with rounds take the same time. If "
    "fewer were run than the paper states, you see the time of the stated "
    "number of rounds."
  ]
  for runs in suite.by_panel(outcomes):
    panel, rows = runs[0].cell.panel, []
    for o in runs:
      label, saved, published = o.cell.label, "-", "-"
      if label != claims.ACNNL:
        saved = f"{claims.reduction(runs, panel, label).mean():.1f}"
        published = markdown.format_number(_saved(stated, panel, label))
        if panel == "b" and label != claims.WA:
          published = "more than 97"
      seconds = {part: f"{time(o).mean():.4g}" for part, time in _TIMES.items()}
      rows.append(
        [
          label,
          _rounds_in_words(o),
          seconds.pop("sum"),
          *seconds.values(),
          saved,
          published,
          f"{_wall(o):.3g}",
        ]
      )
    idle = claims.reduction(runs, panel, claims.WA, _TIMES["idle"]).mean()
    blocks += [
      pages.Heading(runs[0].cell.place),
      pages.Table(
        [
          "method",
          "rounds",
          "simulated s",
          *_PARTS,
          "FedACnnL needs less by, %",
          "paper",
          _WALL_HEADING,
        ],
        rows,
      ),
      f"Idle time of FedACnnL is {idle:.1f} % less than without "
      "adaptive batches (the paper's number is lost).",
    ]
  return blocks


def _to_accuracy(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: simulated seconds until the global model reaches an accuracy.

  The ratios of the times in Fig. 4 follow from the numbers of rounds that the
  paper states (20 and 600). The ratios of the times to an accuracy do not
  (errata A-18).
  """
  blocks: list[pages.Block] = [
    pages.Heading("Time to an accuracy"),
    "Simulated seconds to a test accuracy of the global model, median "
    "over seeds; - not within the rounds that were run. In brackets "
    f"what {claims.ACNNL} saves at that accuracy, in percent; above it "
    "is what it saves in the rounds that the paper states.",
  ]
  for runs in suite.by_panel(outcomes):
    targets = [float(name) for name in runs[0].summary["rounds_to"]]
    ours = next((o for o in runs if o.cell.label == claims.ACNNL), None)
    blocks.append(
      pages.Table(
        [runs[0].cell.place, *(f"{100 * t:g} %" for t in targets)],
        [
          [
            o.cell.label,
            *(_time_to(o, t, None if ours is o else ours) for t in targets),
          ]
          for o in runs
        ],
      )
    )
  return blocks


def _time_to(outcome: suite.Outcome, target: float, ours: suite.Outcome | None) -> str:
  """The seconds to an accuracy, and what FedACnnL saves of them."""
  spent = targets.costs_at_target(outcome, target, "simulated_s")
  middle = targets.median(spent)
  if middle is None:
    return "-"
  saved = (
    "-"
    if ours is None
    else targets.format_saving(
      targets.costs_at_target(ours, target, "simulated_s"), spent, False
    )
  )
  return f"{middle:.3g}" + (f" ({saved})" if saved != "-" else "")


#: What a client spends its time on in pictures; communication is below 1 % of it.
_SPENT_ON = {
  "sum": "in total",
  "computation": "computing",
  "idle": "waiting for others",
}


def _seconds_of(
  stated: _Savings, panels: str = ""
) -> Callable[[suite.Outcomes], list[dots.Dot]]:
  """Makes the numbers of a picture of how a client spends its seconds.

  Args:
    stated: (panel, method) -> by how many percent FedACnnL's time is less in the
      paper. The published mark of a method is its time by that saving, from
      FedACnnL's here.
    panels: the letters of the panels; "": all.
  """

  def numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
    table = []
    for runs in suite.by_panel(outcomes):
      if panels and runs[0].cell.panel not in panels:
        continue
      totals = [claims.TOTAL(o).mean() for o in runs if o.cell.label == claims.ACNNL]
      for o in runs:
        saved = _saved(stated, o.cell.panel, o.cell.label)
        of_paper = totals[0] / (1.0 - saved / 100.0) if totals and saved else math.nan
        run, rounds = _rounds(o)
        note = f"from {run} of {rounds} rounds" if run != rounds else ""
        for part, words in _SPENT_ON.items():
          table.append(
            dots.Dot(
              o.cell.heading,
              o.cell.label,
              float(_TIMES[part](o).mean()),
              published=of_paper if part == "sum" else math.nan,
              name=words,
              note=note if part == "sum" else "",
            )
          )
    return table

  return numbers


_picture_of_times = functools.partial(
  figures.dot_picture,
  x_label="simulated seconds of a client (log scale)",
  published="by the paper's saving",
  x_scale="log",
  first="low",
)

#: Draws the accuracies of ``_ends``.
_picture_of_ends = functools.partial(
  figures.dot_picture,
  figures.measured(claims.end("local")),
  "accuracy, clients' own data, %",
  most=100.0,
)


def _stated_fig6() -> dict[tuple[str, str], float]:
  """(panel, method) -> the paper's accuracy, the same in three panels."""
  numbers = report.paper_numbers(NAME, "Fig6", "test_accuracy")
  return {
    (panel, method): value for (_, method), value in numbers.items() for panel in "acd"
  }


def _ends(
  outcomes: suite.Outcomes,
  heading: str,
  stated: Mapping[str, float] | None = None,
  *,
  times: bool = False,
) -> list[pages.Block]:
  """Tables of the accuracies after the last round, one for each panel.

  Args:
    outcomes: the runs.
    heading: that of the first column.
    stated: label -> the paper's number in percent.
    times: whether the simulated seconds and those of this machine are added.
  """
  blocks: list[pages.Block] = []
  head = [
    heading,
    *bool(stated) * ["paper"],
    "clients' own test data, %",
    "mean of the clients",
    "worst tenth of them",
    "global model",
    *times * ["simulated s", "of these idle", _WALL_HEADING],
  ]
  for runs in suite.by_panel(outcomes):
    rows = []
    for o in runs:
      published = (stated or {}).get(o.cell.label)
      rows.append(
        [
          o.cell.label,
          *bool(stated) * [markdown.format_number(published, ".2f")],
          *(
            markdown.format_values(o.frames.scores("final", "local", name), factor=100)
            for name in ("accuracy", "client_accuracy", "worst_decile")
          ),
          # Each client alone has no global model.
          markdown.format_values(
            o.frames.scores("final", "global", "accuracy"), factor=100
          )
          if "global" in o.frames.protocols
          else "-",
        ]
      )
      if times:
        rows[-1] += [
          f"{claims.TOTAL(o).mean():.4g}",
          f"{_TIMES['idle'](o).mean():.4g}",
          f"{_wall(o):.3g}",
        ]
    blocks += [pages.Heading(runs[0].cell.place), pages.Table(head, rows)]
  return blocks


def _fig6_table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Fig. 6: every method's last accuracy, the paper's number, and the time."""
  blocks = _ends(
    outcomes,
    "method",
    {
      method: value
      for (_, method), value in report.paper_numbers(
        NAME, "Fig6", "test_accuracy"
      ).items()
    },
    times=True,
  )
  rounds_of = {o.cell.label: o.summary["cost"]["rounds"] for o in outcomes}
  names = [registry.get(name).label for name in CIFAR10_ROUNDS_RUN]
  short = [f"{name} {rounds_of[name]}" for name in names if name in rounds_of]
  if short:
    blocks.append(
      "Methods with SGD were stopped early, after these rounds: "
      + ", ".join(short)
      + "."
    )
  missing = [name for name in names if name not in rounds_of]
  if missing:
    blocks.append(f"Not run, hours on two cores: {', '.join(missing)}.")
  return blocks


def _mean_and_sd(values: Any) -> tuple[float, float]:
  """Mean and standard deviation over seeds; NaN for that of one seed."""
  return float(np.mean(values)), (
    float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
  )


def _columns(
  runs: suite.Outcomes,
) -> Iterator[tuple[str, tuple[float, float] | None, float | None]]:
  """Every column of Table 2 in a panel: ours with its deviation, the paper's.

  The paper has one pFedMe; its number stands beside theta.
  """
  stated = report.paper_numbers(NAME, "Table2", "test_accuracy_mean")
  by_label = {o.cell.label: o for o in runs}
  for column, (label, protocol) in claims.COLUMNS.items():
    yield (
      column,
      (
        _mean_and_sd(claims.accuracy_of_paper(protocol)(by_label[label]))
        if label in by_label
        else None
      ),
      (stated.get((runs[0].cell.panel, label)) if protocol == "local" else None),
    )


def _paper_table2(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Table 2 in the paper's form."""
  rows = []
  columns = [
    column
    for column, (label, _) in claims.COLUMNS.items()
    if label in {o.cell.label for o in outcomes}
  ]
  for runs in suite.by_panel(outcomes):
    rows.append([runs[0].cell.place])
    for column, ours, published in _columns(runs):
      if column in columns:
        rows[-1].append(
          "-"
          if ours is None
          else metrics.format_estimate({"mean": ours[0], "ci95": ours[1]})
          + (f" ({published:.2f})" if published else "")
        )
  return [
    "Accuracy on the clients' own test data, all examples counted "
    "alike, in percent: mean +- standard deviation over seeds, in "
    "brackets the paper's. Closed forms at their end; of the others "
    "the best evaluated round, chosen on test data as in the paper. "
    "`pFedMe, theta` is the personal model, `w_k` the client's copy of "
    "the global one, which the authors' code evaluates, `global` the "
    "server's.",
    pages.Table(["data and model", *columns], rows),
  ]


def _table2_numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The numbers of Table 2; those of runs that are not finished are left open."""
  notes = {(o.cell.panel, o.cell.label): figures.rounds_note(o) for o in outcomes}
  table = []
  for runs in suite.by_panel(outcomes):
    for column, ours, published in _columns(runs):
      note = notes.get((runs[0].cell.panel, column), "")
      mean, deviation = (math.nan, math.nan) if ours is None or note else ours
      table.append(
        dots.Dot(
          runs[0].cell.heading,
          column,
          mean,
          deviation,
          math.nan if published is None else published,
          note=note,
        )
      )
  return table


def _afl_table(outcomes: suite.Outcomes) -> list[pages.Block]:
  """The accuracy of AFL for each way to partition the data."""
  last = claims.end("global")
  rows = []
  for runs in suite.by_panel(outcomes):
    accuracies = {
      (o.cell.of["dealt"], o.cell.of["ridges_kept"]): f"{last(o).mean():.2f}"
      for o in runs
    }
    rows += [
      [
        runs[0].cell.place,
        partition,
        *(
          accuracies.get((partition, with_ridges), "-") for with_ridges in (False, True)
        ),
      ]
      for partition in _DEALT
    ]
  return [
    "Accuracy of the one global model, in percent. Every client adds "
    "gamma = 1 to its Gram matrix; the server takes the sum of them "
    "off again, or does not.",
    pages.Table(["data", "dealt to", "ridges removed", "ridges kept"], rows),
  ]


def _figure(
  title: str,
  panels: tuple[Panel, ...],
  lines_of: Callable[[Panel], list[FigureLine]],
  num_seeds: int = 1,
  **options: Any,
) -> Figure:
  """A figure whose lines are those of ``lines_of``.

  By default it has one seed at full scale. This is enough for a figure that is
  meant for orientation, takes long, or shows simulated times, which do not
  depend on the seed.
  """
  return Figure(title, "accuracy", "", panels, lines_of, num_seeds=num_seeds, **options)


_personal = functools.partial(
  _figure, protocol="local", protocols="local,global", eval_every=10
)

FIGURES: dict[str, Figure] = {
  "fig4": _figure(
    "Fig. 4: training time of a client, MNIST and Synthetic",
    (_MNIST, _SYNTHETIC),
    _time_lines,
    num_seeds=3,
    eval_every=1,
    table=_time_table,
    sections=(_to_accuracy,),
    dots=(_picture_of_times(_seconds_of(report.paper_numbers(NAME, "Fig4"))),),
    statements=claims.FIG4,
  ),
  "fig5": _figure(
    "Fig. 5: test accuracy of the global model, MNIST and Synthetic",
    (_MNIST, _SYNTHETIC),
    _time_lines,
    num_seeds=3,
    eval_every=1,
    statements=claims.FIG5,
  ),
  "fig6": _personal(
    "Fig. 6: five layers on CIFAR-10",
    (
      _panel("a", "methods", "cifar10"),
      _panel("b", "what FedACnnL's hidden layers are fitted to", "cifar10"),
      *(
        _panel(
          letter,
          f"methods, Dirichlet({alpha})",
          "cifar10",
          partition=f"dirichlet:{alpha}",
        )
        for letter, alpha in (("c", "0.3"), ("d", "1"))
      ),
    ),
    _cifar10_lines,
    num_seeds=3,
    eval_every=5,
    table=_fig6_table,
    dots=(
      figures.dot_picture(
        figures.measured(claims.end("local"), _stated_fig6()),
        "accuracy, clients' own data, %",
        most=100.0,
      ),
      _picture_of_times(
        _seconds_of({}, "a"),
        x_label="simulated seconds of a client",
        x_scale="linear",
        end="_time",
        title="Fig. 6: training time of a client, CIFAR-10",
      ),
    ),
    statements=claims.FIG6,
    measures={"test_accuracy": claims.end_on_cifar10},
    quick=("a",),
    shrunk=QUICK_MODEL,
  ),
  "table2": _personal(
    "Table 2: personalized accuracy",
    _SETTINGS,
    _table2_lines,
    num_seeds=5,  # as the paper
    protocols="local,global,copy",
    table=_paper_table2,
    dots=(
      figures.dot_picture(
        _table2_numbers,
        "accuracy, clients' own data, %",
        interval="standard deviation over seeds",
        most=100.0,
      ),
    ),
    statements=claims.TABLE2 + claims.BEYOND,
    measures={"test_accuracy_mean": claims.SCORE},
    quick=("a", "d"),
  ),
  "dirichlet": _personal(
    "Personalized accuracy by the concentration of the classes, MNIST-DNN",
    tuple(
      _panel(letter, f"Dirichlet({alpha})", "mnist", partition=f"dirichlet:{alpha}")
      for letter, alpha in zip("abc", ("0.1", "0.3", "1"))
    ),
    _dirichlet_lines,
    num_seeds=3,
    table=lambda outcomes: _ends(outcomes, "method"),
    dots=(_picture_of_ends(),),
    statements=claims.DIRICHLET,
    quick=("a",),
  ),
  "ablations": _personal(
    "Choices that the paper leaves open, MNIST",
    (
      _MNIST._replace(title="pFedACnnL, two hidden layers"),
      _panel("b", "FedACnnL, two convolutions", "mnist", "conv"),
    ),
    _ablation_lines,
    table=lambda outcomes: _ends(outcomes, "setting"),
    dots=(_picture_of_ends(in_a_row=1, digits=2),),
    quick=("a",),
  ),
  "afl": _figure(
    "AFL: one layer on HoG features, however they are dealt",
    (_panel("a", "MNIST", "mnist", "hog"), _panel("b", "CIFAR-10", "cifar10", "hog")),
    _afl_lines,
    table=_afl_table,
    statements=claims.AFL_CLAIMS,
    dots=(
      figures.dot_picture(
        figures.measured(claims.end("global")),
        "accuracy of the global model, %",
        first="",
        digits=2,
      ),
    ),
  ),
}


PAPER = figures.Paper(
  NAME,
  FIGURES,
  {},
  "Closed forms take all clients in every round. The seeds share one "
  "partition and one set of simulated machines, so a deviation over seeds "
  "holds neither. A best round is chosen on test data.",
  ("FedACnnL", "pFedACnnL"),
  quick={"num_seeds": 1},
  quick_rounds=QUICK_ROUNDS,
  pages={
    "fig6": "cifar10",
    "dirichlet": "readings",
    "ablations": "readings",
    "afl": "afl",
  },
  seeds="table2 5 seeds, dirichlet 3, fig4 and fig5 3 but for FedZO and "
  "BAFFLE, fig6 3 in panel a but for methods by SGD, the others 1",
)
