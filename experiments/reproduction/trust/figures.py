"""Tables of other works: their published numbers beside ours.

- ``niid_bench``: Li, Diao, Chen, He, "Federated Learning on Non-IID Data
  Silos", ICDE 2022; the numbers are those of Flower's reproduction.
- ``fedavg_2nn``: McMahan et al., AISTATS 2017, Table 1: the rounds that FedAvg
  takes to 97 % on MNIST. ``fedavg_2nn_why``: by rate and initial weights.
- ``ifca_rotated``: Ghosh et al., NeurIPS 2020: MNIST in four rotations.
- ``tamuna``: FedAvg of Flower's baseline of TAMUNA (Condat et al. 2023) on MNIST.
- ``muon``: a reproduction of FedMuon (Takezawa et al., ICLR 2026) on Fashion-MNIST.
- ``feddrift``: Jothimurugesan et al., AISTATS 2023: SINE-2 and CIRCLE-2.
- ``pfedme``: Dinh, Tran, Nguyen, NeurIPS 2020: MNIST, the convex setting.
- ``afl``: He et al., CVPR 2025: one result for every partition, in float64.
- ``afl_cifar10``: the same paper's accuracy on CIFAR-10, with your file of weights.
- ``fair``: Li et al., ICLR 2020: three classes of Fashion-MNIST.
- ``client_privacy``: Geyer, Klein, Nabi 2017: clients of MNIST, epsilon 8.
- ``fedexp``: Jhunjhunwala et al., ICLR 2023: the least squares of their notebook.
- ``pfllib``: Zhang et al., JMLR 2025: Fashion-MNIST, clients' last layers.
- ``fedjax``: FedJAX 0.0.17, run in turn on the same clients and rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...drawing import dots
from ...reports import rule
from .. import answers, figures, pages, report, suite, verdicts
from ..figures import Figure, FigureLine, Panel
from . import (
  afl,
  afl_cifar10,
  against_fedjax,
  client_privacy,
  drift,
  fair,
  fedexp,
  overview,
  pfllib,
  two_layers,
)

NAME = "trust"

#: label -> file in presets/trust/methods.
_NIID = {
  "FedAvg": "niid_fedavg",
  "FedProx": "niid_fedprox",
  "SCAFFOLD": "niid_scaffold",
  "FedNova": "niid_fednova",
}
_NOISE = {"FedAvg": "noise_fedavg"}
_ROTATED = {
  "IFCA": "rotated_ifca",
  "FedAvg": "rotated_fedavg",
  "each client alone": "rotated_local",
}
_MUON = {
  "FedMuon": "muon_fedmuon",
  "FedAvg": "muon_fedavg",
  "FedAvg with Muon": "muon_local",
}
#: How many of the 1,000 rounds of ``muon`` run; ``--rounds=1000`` runs all.
MUON_ROUNDS = 200
#: The paper's last round of rotated MNIST.
ROTATED_ROUNDS = 300
#: The rounds of NIID-Bench, 0.8 to 1.5 core-hours for each method.
NIID_ROUNDS = 50
#: The partitions of NIID-Bench.
_DIRICHLET = {"partition": "dirichlet:0.5,even"}
_EVEN_IID = {"partition": "iid:size_sigma=0"}
#: Partition of the panels of the FedAvg paper -> file of its method.
_2NN = {"iid:size_sigma=0": "2nn_iid", "shards:2": "2nn_two_classes"}


def _line(label: str, name: str) -> FigureLine:
  """A line with the preset of this name."""
  return FigureLine(label, (f"{NAME}/methods/{name}.flags",))


def _deal_labels(number: int) -> dict[str, Any]:
  """Returns the values that deal each client so many labels, as NIID-Bench does."""
  return {"partition": f"classes:{number},random,size_sigma=0"}


def _2nn_lines(panel: Panel) -> list[FigureLine]:
  return [_line("FedAvg", _2NN[panel.values["partition"]])]


def _2nn_panels() -> tuple[Panel, ...]:
  kinds: tuple[tuple[str, dict[str, Any]], ...] = (
    ("IID", {"partition": "iid:size_sigma=0", "rounds": 300}),
    ("two classes", {"partition": "shards:2", "rounds": 1000}),
  )
  return figures.make_panels(
    {
      f"{words}, C = {share}": {**values, "participation": share}
      for words, values in kinds
      for share in (0.1, 0.2, 0.5, 1)
    },
    common={"stop_at": "global:accuracy:0.97"},
  )


def _best(protocol: str, rounds: int) -> Callable[..., np.ndarray]:
  """Measures the best round, as the works do, after so many rounds."""

  def measure(outcome):
    accuracy = verdicts.best("accuracy", protocol)(outcome)
    rounds_run = outcome.summary["cost"]["rounds"]
    if rounds_run < rounds:
      raise verdicts.NotRun(
        f"{rounds_run} of {rounds} rounds: best so far {accuracy.mean():.2f}"
      )
    return accuracy

  return measure


def _last(protocol: str, rounds: int) -> Callable[..., np.ndarray]:
  """Measures the last round, which must be number ``rounds``."""

  def measure(outcome):
    accuracy = verdicts.end("accuracy", protocol)(outcome)
    rounds_run = outcome.summary["cost"]["rounds"]
    if rounds_run < rounds:
      raise verdicts.NotRun(
        f"{rounds_run} of {rounds} rounds: {accuracy.mean():.2f} by then"
      )
    return accuracy

  return measure


def _table_of(name: str) -> figures.Section:
  """The table of a figure: every published number, run or not."""

  def section(outcomes: suite.Outcomes) -> list[pages.Block]:
    figure = FIGURES[name]
    titles = {panel.letter: panel.title for panel in figure.panels}
    rounds_run = {
      (o.cell.panel, o.cell.label): o.summary["cost"]["rounds"] for o in outcomes
    }
    answer_of = {
      (a.panel, a.method, a.metric): a
      for a in answers.answer_numbers(NAME, name, outcomes, figure.measures)
      if a.protocol == suite.TUNED
    }
    deviations = overview.published_deviations()
    rows, missing = [], dict[str, None]()
    for claim in report.load_claims(NAME, name):
      rows.append(
        [
          f"{claim.panel}: {titles.get(claim.panel, '')}",
          claim.method,
          claim.metric,
          overview.format_published(name, claim.printed, deviations.get(claim[:4], "")),
        ]
      )
      answer = answer_of.get((claim.panel, claim.method, claim.metric))
      if answer is None:
        missing[claim.panel] = None
        rows[-1] += ["-", "-", rule.words(rule.NOT_TESTABLE, rule.NOT_RUN)]
        continue
      rows[-1] += [
        answer.ours,
        str(rounds_run[claim.panel, claim.method]),
        answer.words,
      ]
    numbers: list[pages.Block] = [
      pages.Table(
        ["panel", "method", "metric", "published", "ours", "rounds run", "verdict"],
        rows,
      )
    ]
    if missing:
      numbers.append(
        f"Not run: `python -m experiments.trust --table={name} "
        f"--panels={','.join(missing)}`."
      )
    return [pages.PublishedNumbers(numbers)]

  return section


#: Each model of pFedMe as its row is called -> the protocol that tests it, the
#: metric of its published number.
_MODELS = {
  "pFedMe, theta": ("local", ""),
  "pFedMe, w_k": ("copy", "personal_accuracy_max"),
  "pFedMe, global": ("global", "global_accuracy_max"),
}


def _pfedme_numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The best rounds of all three models of pFedMe."""
  table = []
  for model, (protocol, metric) in _MODELS.items():
    stated = report.paper_numbers(NAME, "pfedme", metric) if metric else {}
    numbers = figures.measured(verdicts.best("accuracy", protocol), stated)
    table += [dot._replace(row=model) for dot in numbers(outcomes)]
  return table


def _compared(
  name: str, metric: str, measure: verdicts.Measure, rounds: int = 0, **options: Any
) -> Callable[[suite.Outcomes], list[dots.Dot]]:
  """Makes the numbers of a table beside the published ones.

  Args:
    name: the table.
    metric: that of its claims.
    measure: run -> ours; of a run with fewer rounds what it has by then.
    rounds: those of the work; 0: as many as it takes.
    **options: of ``figures.measured``.
  """
  numbers = figures.measured(
    measure, report.paper_numbers(NAME, name, metric), **options
  )

  def compared(outcomes: suite.Outcomes) -> list[dots.Dot]:
    run = [o.summary["cost"]["rounds"] for o in outcomes]
    return [
      dot._replace(note=f"after {n} of {rounds:,} rounds" if n < rounds else "")
      for dot, n in zip(numbers(outcomes), run)
    ]

  return compared


def _figure(
  name: str,
  title: str,
  data: str,
  panels: tuple[Panel, ...],
  lines_of: Callable[[Panel], list[FigureLine]],
  **options: Any,
) -> Figure:
  """A table whose rows are the numbers of a work."""
  return Figure(
    title,
    "accuracy",
    data,
    panels,
    lines_of,
    table=_table_of(name),
    of_claims=True,
    **{"eval_every": 1} | options,
  )


FIGURES: dict[str, Figure] = {
  "niid_bench": _figure(
    "niid_bench",
    "NIID-Bench: best round, 10 clients, test accuracy",
    "niid_bench",
    tuple(
      Panel(letter, title, {"dataset": data} | values)
      for letter, title, data, values in (
        ("a", "MNIST, Dirichlet 0.5", "mnist", _DIRICHLET),
        ("b", "Fashion-MNIST, Dirichlet 0.5", "fashion_mnist", _DIRICHLET),
        (
          "c",
          "CIFAR-10, Dirichlet 0.5",
          "cifar10",
          _DIRICHLET | {"augment": "crop,flip"},
        ),
        ("d", "MNIST, two labels", "mnist", _deal_labels(2)),
        ("e", "Fashion-MNIST, two labels", "fashion_mnist", _deal_labels(2)),
        ("f", "MNIST, IID", "mnist", _EVEN_IID),
        ("g", "Fashion-MNIST, IID", "fashion_mnist", _EVEN_IID),
        ("h", "MNIST, three labels", "mnist", _deal_labels(3)),
        ("i", "Fashion-MNIST, three labels", "fashion_mnist", _deal_labels(3)),
      )
    ),
    figures.of_files(f"{NAME}/methods", _NIID),
    quick=("a",),
    num_seeds=1,
    measures={"test_accuracy_max": _best("global", NIID_ROUNDS)},
    dots=(
      figures.dot_picture(
        _compared(
          "niid_bench", "test_accuracy_max", verdicts.best("accuracy"), NIID_ROUNDS
        ),
        f"test accuracy, best of {NIID_ROUNDS} rounds, %",
        published="Flower's reproduction of NIID-Bench",
        first="",
        digits=2,
      ),
    ),
    shrunk={"model": "stack:valid3-4,max2,dense16", "local_epochs": 1},
  ),
  "niid_noise": _figure(
    "niid_noise",
    "NIID-Bench: clients with noise on their images, last of 50 rounds, test accuracy",
    "niid_noise",
    (Panel("a", "Fashion-MNIST, IID, noise 0.1", {}),),
    figures.of_files(f"{NAME}/methods", _NOISE),
    num_seeds=1,
    measures={"test_accuracy_end": _last("global", 50)},
    dots=(
      figures.dot_picture(
        _compared("niid_noise", "test_accuracy_end", verdicts.end("accuracy"), 50),
        "test accuracy, last of 50 rounds, %",
        published="NIID-Bench, as FedLab quotes it",
      ),
    ),
    shrunk={"model": "stack:valid3-4,max2,dense16", "local_epochs": 1},
  ),
  "fedavg_2nn": _figure(
    "fedavg_2nn",
    "FedAvg's 2NN: rounds to 97 % on MNIST, E = 1, B = 10",
    "2nn",
    _2nn_panels(),
    _2nn_lines,
    quick=("a", "e"),
    measures={"rounds_to_97%": verdicts.rounds_until(0.97)},
    dots=(
      figures.dot_picture(
        _compared(
          "fedavg_2nn", "rounds_to_97%", verdicts.rounds_until(0.97), by_method=True
        ),
        "rounds to 97 % on MNIST (log scale)",
        published="FedAvg's paper, Table 1",
        x_scale="log",
        first="",
        digits=0,
      ),
    ),
    shrunk={"num_clients": 20, "model": "mlp:16,16"},
  ),
  "ifca_rotated": _figure(
    "ifca_rotated",
    "IFCA: MNIST in four rotations, last of 300 rounds, test accuracy of what "
    "clients deploy",
    "rotated",
    tuple(
      Panel(letter, f"{m:,} clients of {n} images", {"num_clients": m})
      for letter, m, n in (("a", 4800, 50), ("b", 2400, 100), ("c", 1200, 200))
    ),
    figures.of_files(f"{NAME}/methods", _ROTATED),
    protocol="local",
    protocols="local",
    eval_every=10,
    num_seeds=1,
    measures={"test_accuracy_end": _last("local", ROTATED_ROUNDS)},
    shrunk={"num_clients": 40, "model": "mlp:16"},
  ),
  "feddrift": drift.FIGURE,
  "tamuna": _figure(
    "tamuna",
    "FedAvg of Flower's TAMUNA baseline: MNIST, 10 of 1,000 clients, round 35",
    "tamuna",
    (Panel("a", "MNIST, 1,000 clients of 60 images", {}),),
    lambda panel: [_line("FedAvg", "tamuna_fedavg")],
    eval_every=5,
    measures={"test_accuracy_end": _last("global", 35)},
    dots=(
      figures.dot_picture(
        _compared("tamuna", "test_accuracy_end", verdicts.end("accuracy"), 35),
        "test accuracy, round 35, %",
        published="read from the picture of Flower's baseline",
      ),
    ),
    shrunk={"num_clients": 20, "model": "stack:valid3-4,max2,dense16"},
  ),
  "muon": _figure(
    "muon",
    "A reproduction of FedMuon: Fashion-MNIST, 16 clients by Dirichlet(0.1)",
    "muon",
    (
      Panel(
        "a",
        "Fashion-MNIST, Dirichlet 0.1",
        {"partition": "dirichlet:0.1,even", "rounds": MUON_ROUNDS},
      ),
    ),
    figures.of_files(f"{NAME}/methods", _MUON),
    eval_every=20,
    num_seeds=1,
    measures={"test_accuracy_end": _last("global", 1000)},
    dots=(
      figures.dot_picture(
        _compared("muon", "test_accuracy_end", verdicts.end("accuracy"), 1000),
        "test accuracy, %",
        published="the report, round 1,000",
        first="",
      ),
    ),
    shrunk={"model": "stack:valid3-4,max2,dense16"},
  ),
  "pfedme": _figure(
    "pfedme",
    "pFedMe: best round, MNIST, softmax regression, 20 clients "
    "of 2 classes, test accuracy",
    "pfedme",
    (
      Panel("a", "MNIST, 20 local steps, personal rate 0.1", {}),
      Panel(
        "b",
        "MNIST, 10 local steps, personal rate 0.09",
        {"local_steps": 10, "personal_lr": 0.09},
      ),
    ),
    lambda panel: [_line("pFedMe", "pfedme")],
    protocols="global,local,copy",
    dots=(
      figures.dot_picture(
        _pfedme_numbers,
        "test accuracy, best of 800 rounds, %",
        published="pFedMe's paper",
        first="",
        digits=2,
      ),
    ),
    measures={
      "personal_accuracy_max": _best("copy", 800),
      "global_accuracy_max": _best("global", 800),
    },
  ),
}


TABLES = {
  "afl": figures.FigureTable(
    "AFL: the weights in every partition and the joint ones, float64",
    lambda request, folder: afl.deviation_table(request.quick),
  ),
  afl_cifar10.NAME: figures.FigureTable(
    "AFL: CIFAR-10, 100 clients by Dirichlet(0.1), features of ResNet-18",
    afl_cifar10.accuracy_table,
  ),
  "fedexp": figures.FigureTable(
    "FedExP's notebook: least squares of clients that can all be right",
    lambda request, folder: fedexp.loss_table(request.quick),
  ),
  two_layers.NAME: figures.FigureTable(
    "FedAvg's 2NN: rounds to 97 % by rate and initial weights", two_layers.make_table
  ),
  "fair": figures.FigureTable(
    "Agnostic learning and q-FFL: three clients of one class of Fashion-MNIST each",
    lambda request, folder: fair.fairness_table(request),
  ),
  "client_privacy": figures.FigureTable(
    "Client-level differential privacy on MNIST, epsilon 8",
    lambda request, folder: client_privacy.privacy_table(request),
  ),
  pfllib.NAME: figures.FigureTable(
    "PFLlib: 20 clients of Fashion-MNIST, clients' last layers",
    pfllib.personal_table,
    stores_runs=True,
  ),
  "fedjax": figures.FigureTable(
    "FedJAX 0.0.17 on the same clients",
    lambda request, folder: (against_fedjax.fedjax_table(request.quick), []),
  ),
}

PAPER = figures.Paper(
  NAME,
  FIGURES,
  TABLES,
  "A best round is chosen on test data, here as in the works.",
  ("",),
  quick={"dataset": "digits", "num_seeds": 1, "rounds": 3},
  files={"fashion_mnist": figures.FASHION_MNIST, "weights": afl_cifar10.WEIGHTS},
  optional=("mnist", "fashion_mnist", "cifar10"),
  seeds="niid_bench, niid_noise, ifca_rotated and "
  "muon 1 seed, feddrift 1 seed on each of 5 partitions, the others 3 seeds",
  flag="table",
  subject="other works",
  overview=overview.table_of_finished,
)
