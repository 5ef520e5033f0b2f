"""The figures and tables of the FedGroup paper (FedGroup, FedGrouProx).

``python -m experiments.fedgroup`` makes them. A panel whose data set is not
prepared is left out, and the table says so.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
import pathlib
from typing import Any, NamedTuple

from fedjax_alg import files
from fedjax_alg.data import DataError
from fedjax_alg.data.npz_source import load_npz
from fedjax_alg.data.synthetic import client_sizes

from ...cli import config as config_lib
from ...cli.config import Layer, UsageError
from ...drawing import dots, plots
from .. import figures, partitions, report, suite
from ..chosen import Choice
from ..figures import Draw, Figure, FigureLine, Panel, Request
from . import claims, pretraining, tables

NAME = "fedgroup"
#: alpha: FedGroup pre-trains alpha m clients.
ALPHA = 20


class _DataAndModel(NamedTuple):
  """A data set with its model: a row of Table 3."""

  letter: str
  title: str
  data: str  #: preset
  groups: int  #: m
  eval_every: int = 1
  mu: float = 1
  values: Mapping[str, Any] = {}  #: of further flags
  chosen: tuple[Choice, ...] = ()  #: what ``Panel.chosen`` says of the data

  def panel(self, letter: str = "", **values: Any) -> Panel:
    """The pair as a panel of a figure."""
    return Panel(
      letter or self.letter,
      self.title,
      {**self.values, **values},
      self.data,
      self.eval_every,
      chosen=self.chosen,
    )


PAIRS = {
  pair.title: pair
  for pair in (
    _DataAndModel("a", "MNIST-MCLR", "mnist_mclr", 3),
    _DataAndModel("b", "MNIST-MLP", "mnist_mlp", 3),
    _DataAndModel("c", "FEMNIST-MCLR", "femnist_mclr", 5),
    _DataAndModel("d", "FEMNIST-MLP", "femnist_mlp", 5),
    # The partition of seed 0 has half the paper's examples.
    _DataAndModel(
      "e",
      "Synthetic(1,1)-MCLR",
      "synthetic_mclr",
      5,
      chosen=(Choice("stand-in", "sizes"),),
    ),
    _DataAndModel("f", "Sent140-LSTM", "sent140_lstm", 5, eval_every=10, mu=0.01),
    _DataAndModel(
      "g",
      "FEMNIST-MCLR, published generator",
      "femnist_mclr",
      5,
      values={"dataset.leaky": True},
    ),
  )
}

_MNIST, _FEMNIST, _SYNTHETIC, _SENT140 = (
  PAIRS[title]
  for title in ("MNIST-MCLR", "FEMNIST-MCLR", "Synthetic(1,1)-MCLR", "Sent140-LSTM")
)

#: label -> file in presets/fedgroup/methods.
METHODS = {
  "FedAvg": "fedavg",
  "FedProx": "fedprox",
  "IFCA": "ifca",
  "FeSEM": "fesem",
  "FG-RCC-EDC": "fg_rcc_edc",
  "FG-RAC-EDC": "fg_rac_edc",
  "FG-EDC": "fg_edc",
  "FGP-EDC": "fgp_edc",
  "FG-MADC": "fg_madc",
  "FGP-MADC": "fgp_madc",
  "CFL": "cfl",
  "FL+HC": "flhc",
  claims.PRETRAINED: "fedavg_pretrained",
}

#: The clients of Sentiment140 (Table 2).
_SENT140_CLIENTS = 772


def _preset(label: str) -> str:
  """The name of a method's preset."""
  return f"{NAME}/methods/{METHODS[label]}.flags"


@functools.cache
def _hyper_parameters(label: str) -> frozenset[str]:
  """The names of the hyper-parameters that a method reads."""
  return frozenset(config_lib.build_config(_preset(label)).hparams)


def _layers(
  pair: _DataAndModel, label: str, further: Mapping[str, Any] | None = None
) -> tuple[Layer, ...]:
  """The settings of a method on a pair; m and mu are given if it reads them."""
  groups = pair.groups
  values: dict[str, Any] = dict(num_groups=groups, max_groups=groups, mu=pair.mu)
  if label == claims.PRETRAINED:
    values = {"centers": f"kmeans:{pair.groups * ALPHA}"}
  reads = _hyper_parameters(label)
  return (
    _preset(label),
    {name: value for name, value in values.items() if name in reads},
    further or {},
  )


def _lines(*labels: str) -> Callable[[Panel], list[FigureLine]]:
  """Makes the ``Figure.lines_of`` that has these methods."""

  def lines(panel: Panel) -> list[FigureLine]:
    pair = _pair(panel)
    # On Synthetic all clients are pre-trained, so RAC has none to assign.
    return [
      FigureLine(label, _layers(pair, label))
      for label in labels
      if (label, pair) != ("FG-RAC-EDC", _SYNTHETIC)
    ]

  return lines


def _pair(panel: Panel) -> _DataAndModel:
  return next(p for p in PAIRS.values() if p.data == panel.data)


def _of_fg(panel: Panel, *ends: tuple[str, Mapping[str, Any]]) -> list[FigureLine]:
  """FG-EDC with further values, each with the end of its label."""
  return [
    FigureLine(claims.FG + end, _layers(_pair(panel), claims.FG, values))
    for end, values in ends
  ]


def _eta_g_lines(panel: Panel) -> list[FigureLine]:
  return _of_fg(
    panel,
    *((f", eta_g = {value}", {"eta_g": value}) for value in ("0", "0.1", "1")),
  )


def _reading_lines(panel: Panel) -> list[FigureLine]:
  return _of_fg(
    panel,
    ("", {}),
    (", uniform means", {"client_weights": "uniform"}),
    (", 200 steps of pre-training", {"pretrain_steps": 200}),
    (", newcomers by auxiliary", {"cold_start": "cosine:auxiliary"}),
  )


_BESIDE_NEWCOMERS = _lines(
  "FedAvg", claims.PRETRAINED, "IFCA", "FeSEM", "CFL", "FL+HC", claims.FG
)


def _newcomer_lines(panel: Panel) -> list[FigureLine]:
  return [
    *_BESIDE_NEWCOMERS(panel),
    *_of_fg(
      panel,
      *(
        (f", {direction}", {"cold_start": f"cosine:{direction}"})
        for direction in ("auxiliary", "latest")
      ),
    ),
  ]


def _shift_lines(panel: Panel) -> list[FigureLine]:
  return [
    *_lines("FedAvg", "IFCA", claims.FG)(panel),
    *_of_fg(panel, (", no migration", {"migration": 1})),
  ]


#: Accuracies of single rounds jump: lines are running means of so many rounds.
_WINDOW = 5


def _draws(protocol: str, *below: tuple[str, str]) -> Draw:
  """Makes the ``Figure.draw`` of accuracy and further curves over rounds.

  Args:
    protocol: that of the accuracy.
    *below: (protocol, metric) of the further curves.
  """

  def draw(
    paths: plots.Paths, outcomes: suite.Outcomes, title: str, x_axis: str
  ) -> None:
    plots.plot_panels(
      paths,
      suite.frames_by_panel(outcomes),
      protocol,
      "accuracy",
      title,
      x_axis,
      below=below,
      window=_WINDOW,
    )

  return draw


#: A number of Table 1 -> the title of its panel in the picture.
_OF_TABLE1 = {
  "test_accuracy_max": "accuracy, best of all rounds, %",
  "test_accuracy_median": "accuracy, median over the rounds, %",
  "discrepancy_mean": "discrepancy, mean over the rounds",
}


def _table1_numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The numbers of Table 1; a panel for each, a row for each number of classes."""
  table = []
  for metric, title in _OF_TABLE1.items():
    stated = report.paper_numbers(NAME, "Table1", metric)
    for o in outcomes:
      mean, half, values = figures.of_parts(
        partitions.measure_parts(tables.OF_TABLE1[metric], o)
      )
      published = stated.get((o.cell.panel, o.cell.label), math.nan)
      table.append(
        dots.Dot(title, o.cell.panel_title, mean, half, published, values=values)
      )
  return table


#: The panels of Table 1: the number of classes of a client. "The training set
#: size follows a power law", after FedProx (section 3.1), whose law of sizes is
#: log-normal with sigma 2; pixels and rate are those of the other MNIST runs.
_CLASSES = figures.make_panels(
  {
    "1 class": {"partition": "classes:1,size_sigma=2"},
    "3 classes": {"partition": "classes:3,size_sigma=2"},
    "5 classes": {"partition": "classes:5,size_sigma=2"},
    "10 classes (IID)": {"partition": "iid:size_sigma=2"},
  },
  "mnist_mclr",
)
#: Of sigma 0, 0.5, 1 and 2, with pixels in [0, 1] or standardized, validation
#: clients choose these for FedAvg, with three classes a client.
_EQUAL = tuple(
  panel._replace(
    values={
      "partition": panel.values["partition"].replace("size_sigma=2", "size_sigma=0"),
      "features": "standardize",
    },
    chosen=(Choice("validation", "partition"), Choice("validation", "features")),
  )
  for panel in _CLASSES
)
_CURVES = _lines("FedAvg", "FedProx", "IFCA", "FeSEM", "FG-EDC", "FGP-EDC")


#: The paper's Synthetic has so many examples (Table 2), ours are drawn: of the
#: first partitions those that have about as many are run.
SYNTHETIC_EXAMPLES, _ABOUT, _SEARCHED = 75_349, 1_500, 400


@functools.cache
def _partitions_of_size() -> dict[int, int]:
  """--partition_seed of Synthetic -> examples, of those of the paper's size."""
  sizes = {seed: int(client_sizes(100, seed).sum()) for seed in range(_SEARCHED)}
  return {
    seed: size
    for seed, size in sizes.items()
    if abs(size - SYNTHETIC_EXAMPLES) <= _ABOUT
  }


_BEST = figures.dot_picture(
  figures.measured(
    claims.SCORE, report.paper_numbers(NAME, "Table3", "test_accuracy_max")
  ),
  "accuracy, clients' own data, best of all rounds, %",
  most=100.0,
)
#: What Table 1 shows beside the paper's numbers.
_NUMBERS_OF_TABLE1 = figures.dot_picture(
  _table1_numbers, "", first="", in_a_row=3, digits=2
)


def _local(
  title: str,
  panels: tuple[Panel, ...],
  lines_of: Callable[[Panel], list[FigureLine]],
  **options: Any,
) -> Figure:
  """A figure of the clients' deployed models on their test splits."""
  by_default: dict[str, Any] = {"protocol": "local", "protocols": "local,assigned"}
  options = by_default | options
  return Figure(title, "accuracy", "", panels, lines_of, **options)


def _classes(
  title: str, panels: tuple[Panel, ...] = _CLASSES, **options: Any
) -> Figure:
  """A figure of FedAvg for each number of classes of a client."""
  return Figure(
    title,
    "accuracy",
    "",
    panels,
    _lines("FedAvg"),
    protocols="global,local",
    eval_every=1,
    quick=tuple("abcd"),
    **options,
  )


FIGURES: dict[str, Figure] = {
  "table1": _classes(
    "Table 1: FedAvg by the classes of a client, MNIST-MCLR",
    dots=(_NUMBERS_OF_TABLE1,),
    table=tables.heterogeneity,
    statements=claims.TABLE1,
    measures=tables.OF_TABLE1,
  ),
  "table1_equal": _classes(
    "Table 1 with equal sizes, which validation clients prefer",
    _EQUAL,
    dots=(_NUMBERS_OF_TABLE1,),
    table=tables.heterogeneity,
  ),
  "fig1": _classes(
    "Fig. 1: accuracy and discrepancy of FedAvg by the classes of a client",
    draw=_draws("global", ("rounds", "discrepancy")),
    statements=claims.FIG1,
  ),
  "table3": _local(
    "Table 3: FedGroup among other methods",
    tuple(pair.panel() for pair in PAIRS.values()),
    _lines(*METHODS),
    dots=(_BEST,),
    table=tables.gains,
    quick=tuple("ace"),
    sections=(tables.survives,),
    statements=claims.TABLE3 + claims.SURVIVES,
    measures=tables.OF_TABLE3,
  ),
  "synthetic": _local(
    "Table 3, Synthetic(1,1), on the partitions of the paper's size",
    (_SYNTHETIC.panel()._replace(chosen=(), eval_every=2),),
    _lines(*METHODS),
    partitions=tuple(_partitions_of_size()),
    table=tables.by_partition,
    sections=(tables.survives,),
    extra_answers=tables.of_table3("synthetic"),
  ),
  "table3_mnist": _local(
    "Table 3, MNIST-MCLR, on nine partitions, one seed each",
    (_MNIST.panel(),),
    _lines(*claims.COLUMNS),
    dots=(_BEST,),
    num_seeds=1,
    partitions=9,
    table=tables.gains,
    statements=claims.TABLE3_MNIST,
    extra_answers=tables.of_table3("table3_mnist"),
  ),
  "table3_femnist": _local(
    "Table 3, FEMNIST-MLP and the published generator, one seed each",
    tuple(pair.panel() for pair in PAIRS.values() if pair.letter in "dg"),
    _lines(*claims.COLUMNS),
    num_seeds=1,
    table=tables.gains,
    dots=(_BEST,),
    quick=("d",),
    statements=claims.TABLE3_FEMNIST,
    extra_answers=tables.of_table3("table3_femnist"),
  ),
  "fig3": _local(
    "Fig. 3: accuracy and discrepancy",
    (_MNIST.panel("a"), _FEMNIST.panel("b")),
    _CURVES,
    draw=_draws("local", ("rounds", "discrepancy")),
    statements=claims.FIG3,
  ),
  "fig4": _local(
    "Fig. 4: accuracy",
    (_SYNTHETIC.panel("a"), _SENT140.panel("b")),
    _CURVES,
    statements=claims.FIG4,
  ),
  "eta_g": _local(
    "Inter-group aggregation (5.2)",
    (
      _MNIST.panel("a"),
      _FEMNIST.panel("b"),
      _SYNTHETIC.panel("c"),
      _SENT140.panel("d"),
    ),
    _eta_g_lines,
    quick=tuple("abc"),
    statements=claims.ETA_G,
  ),
  "readings": _local(
    "FedGroup by the reading of what the paper leaves open, MNIST-MCLR",
    (_MNIST.panel("a"),),
    _reading_lines,
    num_seeds=1,
    partitions=9,
    table=tables.gains,
  ),
  "newcomers": _local(
    "100 newcomers after half of the rounds, MNIST-MCLR",
    (
      _MNIST.panel("a", rounds=200)._replace(
        eval_every=5, halfway=lambda r: {"newcomers_at": f"{r}:100"}
      ),
    ),
    _newcomer_lines,
    protocol="newcomers",
    protocols="local",
    table=tables.newcomers,
    statements=claims.NEWCOMERS,
  ),
  "shift": _local(
    "A fifth of the clients exchange their data after half of the rounds, MNIST-MCLR",
    (
      _MNIST.panel("a", rounds=100, shift="swap_all")._replace(
        halfway=lambda r: {"shift": f"swap_all:{r}"}
      ),
    ),
    _shift_lines,
    protocols="local",
    table=tables.shifts,
  ),
}


def _clients(path: str) -> int:
  """The number of clients of a file of texts, at most that of the paper.

  Raises:
    UsageError: it has no clients.
  """
  return _clients_of(path, files.contents_key([files.expand_path(path)]))


@functools.cache
def _clients_of(path: str, inside: str) -> int:
  """The same of a file that holds what ``inside`` stands for."""
  del inside
  try:
    client_ids = load_npz(path).client_train
  except DataError as error:
    raise UsageError(f"--sent140_path={path}: {error}") from error
  if client_ids is None:
    raise UsageError(f"--sent140_path={path}: has no client_train and client_test")
  return min(len(set(client_ids.tolist())), _SENT140_CLIENTS)


def _letters(path: str) -> dict[str, Any]:
  return {"dataset.path": path}


def _texts(path: str) -> dict[str, Any]:
  return {
    "dataset": f"npz:{path}",
    "partition": "natural",
    "num_clients": _clients(path),
  }


def _of_pairs(
  titles: Sequence[str],
  make: Callable[
    [pathlib.Path, pretraining.Runs, pretraining.Runs], pretraining.TableAndAnswers
  ],
) -> Callable[[Request, pathlib.Path], pretraining.TableAndAnswers]:
  """Makes the ``FigureTable.make`` of the runs of FG-EDC on some pairs.

  Args:
    titles: the pairs.
    make: takes the folder, the runs whose data are there and the other runs.
  """

  def table(request: Request, folder: pathlib.Path) -> pretraining.TableAndAnswers:
    full = Figure(
      "", "accuracy", "", tuple(PAIRS[t].panel() for t in titles), _lines(claims.FG)
    )
    figure, panels_left_out = figures.with_data(PAPER, full, request)
    figures.print_lacking(panels_left_out)
    letters = {panel.letter for panel in figure.panels}
    blocks, answers = make(
      folder,
      figures.cells(PAPER, figure, request),
      [
        cell
        for cell in figures.cells(PAPER, full, request)
        if cell.panel not in letters
      ],
    )
    return [*blocks, *(panel.sentence() for panel in panels_left_out)], answers

  return table


def _picture_table(
  name: str,
  title: str,
  titles: Sequence[str],
  make: Callable[..., pretraining.TableAndAnswers],
) -> figures.FigureTable:
  """A picture of the pre-trained clients together with a table."""
  return figures.FigureTable(
    title,
    _of_pairs(
      titles,
      lambda folder, cells, not_run: make(cells, figures.pictures(folder, name), title),
    ),
    of_runs=True,
  )


TABLES = {
  "table2": figures.FigureTable(
    "Table 2: data sets and models",
    _of_pairs(
      tuple(PAIRS),
      lambda folder, cells, not_run: pretraining.size_table(cells, not_run),
    ),
    of_runs=True,
  ),
  "fig5": _picture_table(
    "fig5",
    "Fig. 5: EDC against MADC, all pairs of the pre-trained clients",
    (
      "MNIST-MCLR",
      "MNIST-MLP",
      "FEMNIST-MCLR",
      "FEMNIST-MLP",
      "Synthetic(1,1)-MCLR",
      "Sent140-LSTM",
    ),
    pretraining.fig5,
  ),
  "clusters": _picture_table(
    "clusters",
    "The groups of the pre-trained clients by EDC",
    ("MNIST-MCLR", "FEMNIST-MCLR"),
    pretraining.clusters,
  ),
}

PAPER = figures.Paper(
  NAME,
  FIGURES,
  TABLES,
  "`local` tests each client's deployed model on its test split and adds the "
  "counts of all clients. `assigned` does so for the clients that a method has "
  "put into a group by then, as in the paper. A best round is chosen on test data.",
  # Random groups (FG-RCC, FG-RAC) are what the paper compares its own with.
  ("FG-EDC", "FG-MADC", "FGP-"),
  quick={"rounds": 40, "num_seeds": 1},
  pages={
    "table1": "discrepancy",
    "table1_equal": "discrepancy",
    "fig1": "discrepancy",
    "table3_femnist": "letters",
    "eta_g": "readings",
    "readings": "readings",
    "fig3": "convergence",
    "fig4": "convergence",
    "newcomers": "newcomers",
    "shift": "newcomers",
    "table2": "groups",
    "fig5": "groups",
    "clusters": "groups",
  },
  seeds="3 seeds (table3_mnist, table3_femnist and readings 1)",
  optional=("femnist", "sent140"),
  files={
    "femnist_path": figures.OwnFile(
      "femnist",
      "an .npz of letters to use in place of EMNIST, where "
      "that is not prepared: x [n, 28, 28] uint8 and y, ten labels",
      _letters,
    ),
    "sent140_path": figures.OwnFile(
      "sent140",
      "an .npz of texts to use in place of Sentiment140, "
      "where that is not prepared: x_train and x_test [n, 25] int32 word "
      "ids below 10,002, y_train and y_test in 0 and 1, client_train and "
      "client_test",
      _texts,
    ),
  },
)
