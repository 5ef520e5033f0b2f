"""Do several models defend against hostile clients?

MA-FSVRG, GA-FSVRG, IFCA and FedGroup keep several models, which hostile clients
might be kept to one of. Beside them are FedAvg and FSVRG with one. A share of
the clients attacks, and the server takes the mean or the geometric median.

What counts are the honest clients: the accuracy, on their own test data, of
what they deploy after the last round. Hostile clients are not counted. They
measure a method's groups and their own models like others; what they hold is
not read.
"""

import collections
from collections.abc import Callable
import functools
import itertools
from typing import Any

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.exchange import attacks
from fedjax_alg.exchange.attacks import hostile_clients
from fedjax_alg.records import tables as records

from ...drawing import dots
from ...reports import markdown, rule
from .. import figures, pages, partitions, suite, verdicts

NAME = "beyond"

#: label -> file in presets/beyond/hostile.
METHODS = {
  "FedAvg": "fedavg",
  "FSVRG": "fsvrg",
  "MA-FSVRG": "ma_fsvrg",
  "GA-FSVRG": "ga_fsvrg",
  "IFCA": "ifca",
  "FG-EDC": "fedgroup",
}
#: The methods with several models.
SEVERAL = ("MA-FSVRG", "GA-FSVRG", "IFCA", "FG-EDC")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
#: Name of an attack -> it: on data, on updates, and one that looks honest.
ATTACKS: dict[str, Callable[[float], attacks.Choice]] = {
  "flipped labels": attacks.LabelFlip,
  "flipped signs, 4 times": functools.partial(attacks.SignFlip, scale=4.0),
  "little is enough": attacks.LittleIsEnough,
}
DEFENCES: dict[str, dict[str, Any]] = {
  "mean": {},
  "geometric median": {"aggregator": "geometric_median"},
}
#: Whether attackers do less harm than to FedAvg with the mean, in words.
_VERDICTS = {rule.ABOVE: "defends", rule.BELOW: "loses more", rule.SAME: "the same"}


def _lines(panel: figures.Panel) -> list[figures.FigureLine]:
  """Every method with every share; without attackers runs are shared."""
  attack, defence = panel.of["attack"], panel.of["defense"]
  return [
    figures.FigureLine(
      f"{method} {100 * share:g} %",
      (
        f"{NAME}/hostile/{file}.flags",
        DEFENCES[defence],
        {"attack": ATTACKS[attack](share)} if share else {},
      ),
      method=method,
      of={"attackers": share},
    )
    for method, file in METHODS.items()
    for share in SHARES
  ]


@partitions.per_partition
def _honest(outcome: suite.Outcome) -> np.ndarray:
  """Accuracy in percent on the honest clients' own test data, [seeds]."""
  rows = [
    row
    for row in records.read_rows(outcome.folder / "clients.csv", None)
    if row["protocol"] == "local"
  ]
  hostile = np.zeros(1 + max(int(row["client"]) for row in rows), bool)
  if outcome.cell.of["attackers"]:
    attack = outcome.cell.config.hparams["attack"]
    hostile = np.asarray(hostile_clients(len(hostile), attack.share, attack.seed))
  accuracies = []
  for seed in dict.fromkeys(row["seed"] for row in rows):
    honest_rows = [
      row
      for row in rows
      if row["seed"] == seed
      and row["test_examples"]
      and not hostile[int(row["client"])]
    ]
    accuracies.append(
      100
      * np.average(
        [row["accuracy"] for row in honest_rows],
        weights=np.array([row["test_examples"] for row in honest_rows], float),
      )
    )
  return np.array(accuracies)


def _by_share(outcomes: suite.Outcomes) -> dict[str, dict[float, np.ndarray]]:
  """method -> share -> honest clients' accuracy, of one panel."""
  by_method: dict[str, dict[float, np.ndarray]] = {}
  for o in outcomes:
    by_method.setdefault(o.cell.method, {})[o.cell.of["attackers"]] = _honest(o)
  return by_method


def _table(outcomes: suite.Outcomes) -> list[pages.Block]:
  rows = []
  shares = sorted({o.cell.of["attackers"] for o in outcomes})
  for runs in suite.by_panel(outcomes):
    for method, by_share in _by_share(runs).items():
      rows.append(
        [
          runs[0].cell.panel_title,
          method,
          *(
            markdown.format_values(by_share[s]) if s in by_share else "-"
            for s in shares
          ),
        ]
      )
  return [
    "Accuracy of the models that honest clients deploy after the last round, "
    "on their test data, in percent, by the share of hostile clients.",
    pages.Table(
      ["attack; defense", "method", *(f"{100 * s:g} %" for s in shares)], rows
    ),
  ]


def _points_lost(by_share: dict[float, np.ndarray], share: float) -> np.ndarray:
  """Points lost to the attackers, run by run."""
  lost: np.ndarray = by_share[0.0] - by_share[share]
  return lost


def _hostile_section(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: what is lost with several models and what FedAvg loses."""
  rows: list[list[str]] = []
  counts = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
  panels = {
    (runs[0].cell.of["attack"], runs[0].cell.of["defense"]): _by_share(runs)
    for runs in suite.by_panel(outcomes)
  }
  shares = sorted({o.cell.of["attackers"] for o in outcomes} - {0.0})
  for (attack, defence), by_method in panels.items():
    base = panels.get((attack, "mean"), {}).get("FedAvg", {})
    for method, by_share in by_method.items():
      cells = {}
      for share in shares:
        if not {0.0, share} <= set(by_share) & set(base):
          continue
        lost = _points_lost(by_share, share)
        cells[share] = markdown.format_values(lost)
        if (method, defence) != ("FedAvg", "mean"):
          saved = metrics.estimate_mean(_points_lost(base, share) - lost)
          place = rule.place_gap(saved.mean, saved.ci95, rule.TIE)
          verdict = _VERDICTS.get(place, place)
          cells[share] += f"; {metrics.format_estimate(saved, sign='+')}, {verdict}"
          counts[f"{method} with the {defence}"][verdict] += 1
      if cells:
        rows.append(
          [attack, defence, method, *(cells.get(share, "-") for share in shares)]
        )
  if not rows:
    return []
  blocks: list[pages.Block] = [
    pages.Heading("Do several models defend?"),
    "Points that the honest clients lose to each share of attackers, and the paired "
    "difference to what FedAvg with the mean loses. A method or a defense *defends* if "
    "it loses less by more than the tie and the interval.",
    pages.Table(
      ["attack", "defense", "method", *(f"{100 * share:g} %" for share in shares)], rows
    ),
  ]
  if counts:
    tallies = (
      f"{name}: " + ", ".join(f"{verdict} {n}" for verdict, n in tally.items())
      for name, tally in counts.items()
    )
    blocks.append(
      f"Of all attacks and shares run, number of verdicts: {'; '.join(tallies)}."
    )
  return blocks


def _numbers(outcomes: suite.Outcomes) -> list[dots.Dot]:
  """The honest clients' accuracy of every method, by the share of hostile clients.

  The panels of an attack stand beside each other.
  """
  order, table = list(ATTACKS), []
  for runs in sorted(
    suite.by_panel(outcomes), key=lambda runs: order.index(runs[0].cell.of["attack"])
  ):
    for method, by_share in _by_share(runs).items():
      for share, numbers in sorted(by_share.items()):
        mean, half, values = figures.of_parts([numbers])
        table.append(
          dots.Dot(
            runs[0].cell.heading,
            method,
            mean,
            half,
            name=f"{100 * share:g} % hostile",
            values=values,
          )
        )
  return table


def _defence_statement(defence: str) -> verdicts.Statement:
  """Whether several models lose less than one wherever it is attacked."""

  def check(outcomes):
    parts = []
    for runs in suite.by_panel(outcomes):
      if runs[0].cell.of["defense"] != defence:
        continue
      by_method = _by_share(runs)
      worst = max(share for by_share in by_method.values() for share in by_share)
      if not worst or not {0.0, worst} <= set(by_method.get("FedAvg", {})):
        continue
      for method in SEVERAL:
        if {0.0, worst} <= set(by_method.get(method, {})):
          parts.append(
            (
              f"{runs[0].cell.panel} {method}",
              verdicts.above(
                _points_lost(by_method["FedAvg"], worst),
                _points_lost(by_method[method], worst),
              ),
            )
          )
    if not parts:
      raise verdicts.NotRun("no panel with attackers")
    return verdicts.every(parts)

  return verdicts.Statement(
    NAME,
    "hostile",
    f"With the {defence}, every method with several models "
    "loses less to the largest share of attackers than FedAvg",
    check,
  )


FIGURE = figures.Figure(
  "Hostile clients on MNIST: the honest clients' accuracy",
  "accuracy",
  "hostile",
  tuple(
    figures.Panel(
      letter, f"{attack}; {defence}", {}, of={"attack": attack, "defense": defence}
    )
    for letter, (defence, attack) in zip("abcdef", itertools.product(DEFENCES, ATTACKS))
  ),
  _lines,
  protocol="local",
  protocols="local",
  eval_every=30,
  table=_table,
  sections=(_hostile_section,),
  dots=(
    figures.dot_picture(
      _numbers,
      "accuracy on the honest clients' own test data, %",
      most=100.0,
      first="",
      steps=True,
      same_axis=True,
      panels=2,
    ),
  ),
  quick=("b", "e"),
  statements=tuple(map(_defence_statement, DEFENCES)),
  shrunk={
    "dataset": "digits",
    "features": "none",
    "num_clients": 100,
    "validation_clients": 10,
  },
)
