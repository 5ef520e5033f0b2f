"""Which method when: what the tables of our studies say, and nothing else.

The studies of docs/results have tables (JSON) with paired gains, their intervals and
Holm's p values. From these follow the page choosing.md, the first table of methods.md
and a line on the page of every method. A test compares them with the csv beside the
pages. It does without Sphinx.
"""

from collections.abc import Iterable, Sequence
import csv
import dataclasses
import functools
import io
import pathlib
from typing import NamedTuple

from experiments.reports import markdown
from experiments.reproduction import pages
from experiments.reproduction.beyond import (
  accelerations,
  differences,
  family,
  kinds_map,
)
from fedjax_alg import registry
from fedjax_alg.metrics import Number
from fedjax_alg.metrics.differences import Differences
from fedjax_alg.runs.advise import PanelMethod

DOCS = pathlib.Path(__file__).resolve().parents[1]
RESULTS = DOCS / "results"
#: p value, after Holm's correction, up to which a gain is clear.
CLEAR = 0.05
BASE = "FedAvg"
#: The data sets of the map and the board, in the order of all cells.
DATA = tuple(kinds_map.DATA.values())
#: Methods that a row recommends, at most.
_MOST = 4

#: Title of a panel of the map -> data set, how clients differ.
_MAP_PLACES = {
  panel.title: (kinds_map.DATA[data], kinds_map.KINDS[kind].title)
  for panel, (data, kind) in zip(kinds_map.PANELS, kinds_map.PLACES)
}
#: Title of a panel of the study of acceleration -> data set with its model, clients.
_ACCELERATION_PLACES = {
  panel.title: (accelerations.DATA[data].title, accelerations.describe_share(share))
  for panel, (data, share) in zip(accelerations.PANELS, accelerations.PLACES)
}

#: A cell of a table of a study.
Cell = str | int | Number


class Gain(NamedTuple):
  """A method's points above FedAvg in one place of a study."""

  place: str  #: data set, and in the study of acceleration the model and the clients
  situation: str  #: how clients differ, or which share takes part
  label: str
  #: with its interval and Holm's p value for the place
  points: Number
  megabytes: Cell
  work: Cell  #: gradients: a multiple of FedAvg's, or thousands up to the target
  rounds: Cell = ""  #: up to the target

  @property
  def is_clear(self) -> bool:
    """Whether the paired test tells the gain from none."""
    return self.points.p <= CLEAR

  @property
  def words(self) -> str:
    """The gain with its interval; bold if it is clear."""
    return self._write(self.points.ci95)

  @property
  def short_words(self) -> str:
    """The gain alone; bold if it is clear."""
    return self._write(None)

  def _write(self, ci95: float | None) -> str:
    text = dataclasses.replace(self.points, ci95=ci95, form=".1f", p=None).write()
    return f"**{text}**" if self.is_clear else text


def read_table(study: str, *head: str) -> list[list[Cell]]:
  """The rows of the table of a study whose first columns have the names ``head``."""
  path = RESULTS / f"{study}{pages.SUFFIX}"
  for block in pages.read(path).blocks:
    if isinstance(block, pages.Table) and tuple(block.head[: len(head)]) == head:
      return [list(row) for row in block.rows]
  raise ValueError(f"{path.name}: no table with the columns {head}")


def _is_tested(cell: Cell) -> bool:
  """Whether a cell is a number with a p value."""
  return isinstance(cell, Number) and cell.p is not None


@functools.cache
def map_gains() -> list[Gain]:
  """Every gain of the map; situations are the titles of its kinds."""
  return [
    Gain(*_MAP_PLACES[row[0]], row[1], row[3], row[7], row[8])
    for row in read_table("beyond_map", "clients differ by", "method", "accuracy")
    if _is_tested(row[3])
  ]


@functools.cache
def board_gains() -> list[Gain]:
  """Every gain of the board, all of clients of two classes."""
  return [
    Gain(row[0], "two classes", row[1], row[4], row[6], "")
    for row in read_table("beyond_board", "data", "method", "accuracy")
    if _is_tested(row[4])
  ]


@functools.cache
def acceleration_gains() -> list[Gain]:
  """Every gain after 100 rounds in the study of central acceleration."""
  return [
    Gain(*_ACCELERATION_PLACES[row[0]], row[1], row[6], row[10], row[9], row[8])
    for row in read_table("beyond_acceleration", "data and clients", "method", "year")
    if _is_tested(row[6])
  ]


@functools.cache
def _base_megabytes() -> dict[tuple[str, str], float]:
  """(place, situation) of the map -> FedAvg's MB."""
  return {
    _MAP_PLACES[row[0]]: row[7].mean
    for row in read_table("beyond_map", "clients differ by", "method", "accuracy")
    if row[1] == BASE
  }


def _of(gains: Sequence[Gain], situation: str, label: str) -> list[Gain]:
  """A method's gains in a situation, in the order of the data sets."""
  gain_at = {g.place: g for g in gains if (g.situation, g.label) == (situation, label)}
  return [gain_at[place] for place in DATA if place in gain_at]


def _labels(gains: Sequence[Gain], situation: str) -> list[str]:
  return list(dict.fromkeys(g.label for g in gains if g.situation == situation))


def _mean(gains: Sequence[Gain]) -> float:
  return sum(g.points.mean for g in gains) / len(gains)


def recommended(situation: str) -> list[str]:
  """The methods of the map that gain clearly on all its data sets, best first."""
  return _always_clear(situation, 1)


def harmful(situation: str) -> list[str]:
  """The methods of the map that lose clearly on all its data sets, worst first."""
  return _always_clear(situation, -1)


def _always_clear(situation: str, sign: int) -> list[str]:
  gains_of = {
    label: _of(map_gains(), situation, label)
    for label in _labels(map_gains(), situation)
  }
  return sorted(
    (
      label
      for label, gains in gains_of.items()
      if all(gain.is_clear and sign * gain.points.mean > 0 for gain in gains)
    ),
    key=lambda label: -sign * _mean(gains_of[label]),
  )


@functools.cache
def names() -> dict[str, str]:
  """label -> name in the registry."""
  return {entry.label: name for name, entry in registry.ALGORITHMS.items()}


def link(label: str, folder: str = "methods/") -> str:
  """A method as a link to its page."""
  return f"[{label}]({folder}{names()[label]}.md)"


def _join(gains: Sequence[Gain]) -> str:
  return " / ".join(gain.words for gain in gains) or "-"


def _megabytes(gains: Sequence[Gain]) -> str:
  """MB as multiples of FedAvg's, a range over the data sets."""
  base = _base_megabytes()
  return _range(g.megabytes.mean / base[g.place, g.situation] for g in gains)


def _range(values: Iterable[float]) -> str:
  numbers = list(values)
  low, high = f"{min(numbers):.1f}", f"{max(numbers):.1f}"
  return low if low == high else f"{low} to {high}"


# choosing.md


def kinds_table() -> str:
  """What the map says of every way in which clients differ."""
  rows = []
  for situation in (kind.title for kind in kinds_map.KINDS.values()):
    best, losing = recommended(situation), harmful(situation)
    lose = ", ".join(link(label) for label in losing) or "none"
    for number, label in enumerate(best[:_MOST] or [BASE]):
      gains = _of(map_gains(), situation, label)
      rows.append(
        [
          situation if not number else "",
          link(label),
          _join(gains) if gains else "nothing gains clearly on all data sets",
          _megabytes(gains) if gains else "1.0",
          _range(g.work.mean for g in gains) if gains else "1.0",
          lose if not number else "",
        ]
      )
  return markdown.table(
    [
      "clients differ by",
      "use",
      f"points above {BASE} on {', '.join(DATA)}",
      "bytes",
      "gradients",
      "these lose on all",
    ],
    rows,
  )


def board_table() -> str:
  """What the board says of two classes a client, with a tenth of 300 clients."""
  labels = sorted(
    _labels(board_gains(), "two classes"),
    key=lambda label: -_mean(_of(board_gains(), "two classes", label)),
  )
  return markdown.table(
    [
      "method",
      *(f"{data}: board" for data in DATA),
      *(f"{data}: map" for data in DATA),
    ],
    [
      [
        link(label),
        *(
          gain.words
          for gains in (board_gains(), map_gains())
          for gain in _of(gains, "two classes", label)
        ),
      ]
      for label in labels
    ],
  )


def _places(gains: Sequence[Gain]) -> list[tuple[str, str]]:
  return list(dict.fromkeys((g.place, g.situation) for g in gains))


def acceleration_table() -> str:
  """The best methods for one global model, by data and share of the clients."""
  gains, rows = acceleration_gains(), []
  for place, situation in _places(gains):
    in_place = [g for g in gains if (g.place, g.situation) == (place, situation)]
    best = sorted(
      (g for g in in_place if g.is_clear and g.points.mean > 0),
      key=lambda g: -g.points.mean,
    )
    for number, gain in enumerate(best[:3]):
      rows.append(
        [
          f"{place}, {situation}" if not number else "",
          link(gain.label),
          gain.words,
          gain.rounds,
          gain.megabytes,
          gain.work,
        ]
      )
    if not best:
      rows.append([f"{place}, {situation}", "none is clearly better", *["-"] * 4])
  return markdown.table(
    [
      "data and clients",
      "use",
      f"points above {BASE} after 100 rounds",
      "rounds to the target",
      "MB to it",
      "thousand gradients to it",
    ],
    rows,
  )


class _Fit(NamedTuple):
  """A row of the study of the analytic family."""

  data: str
  label: str
  accuracy: float  #: of the server's model
  rounds: int
  megabytes: float
  simulated: Cell
  measured: Cell


@functools.cache
def fits() -> list[_Fit]:
  """Every cell of the study of the analytic family, without its bound."""
  return [
    _Fit(
      row[0],
      row[1],
      row[3].mean,
      row[6],
      sum(cell.mean for cell in row[7:9]),
      row[9],
      row[10],
    )
    for row in read_table("beyond_family", "data", "method", "deployed")
    if row[1] != family.BOUND
  ]


def one_round_table() -> str:
  """What one round in closed form costs and reaches, and 200 rounds of SGD."""
  rows = []
  for data in dict.fromkeys(fit.data for fit in fits()):
    in_place = [fit for fit in fits() if fit.data == data]
    closed = [fit for fit in in_place if fit.label not in family.ITERATIVE]
    picks = {
      "fewest bytes": min(closed, key=lambda fit: fit.megabytes),
      "one round": max((f for f in closed if f.rounds == 1), key=lambda f: f.accuracy),
      "two to five rounds": max(
        (f for f in closed if f.rounds > 1), key=lambda f: f.accuracy, default=None
      ),
      "200 rounds": max(
        (f for f in in_place if f.label in family.ITERATIVE), key=lambda f: f.accuracy
      ),
    }
    for number, (why, fit) in enumerate(picks.items()):
      if fit is not None:
        rows.append(
          [
            data if not number else "",
            why,
            link(fit.label),
            f"{fit.accuracy:.2f}",
            f"{fit.megabytes:,.3g}",
            fit.simulated,
            fit.measured,
          ]
        )
  return markdown.table(
    [
      "data",
      "best of",
      "method",
      "the server's model",
      "MB",
      "simulated s",
      "measured s",
    ],
    rows,
  )


def late_table() -> str:
  """Simulated minutes until 80 %, by the share of stragglers."""
  rows = read_table("beyond_late", "stragglers", "method")
  minutes = {(row[0], row[1]): row[3] for row in rows}
  shares = list(dict.fromkeys(row[0] for row in rows))
  return markdown.table(
    ["method", *(f"minutes to 80 %, {share}" for share in shares)],
    [
      [link(label), *(minutes[share, label] for share in shares)]
      for label in dict.fromkeys(row[1] for row in rows)
    ],
  )


# The tables of fa.advise.


def _csv(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
  text = io.StringIO()
  csv.writer(text, lineterminator="\n").writerows([head, *rows])
  return text.getvalue()


def panels_csv() -> str:
  """The measures of the map's panels, means over partitions."""
  measured = differences.read_samples(RESULTS / "beyond_differences.csv")
  return _csv(
    ["data", "difference", *Differences._fields],
    [
      [panel.data, panel.difference, *(f"{value:.6f}" for value in panel.measures)]
      for panel in differences.average_panels(measured)
    ],
  )


def gains_csv() -> str:
  """What every method gains on the map's panels."""
  base = _base_megabytes()
  return _csv(
    ["data", "difference", "algorithm", "label", *PanelMethod._fields[2:]],
    [
      [
        g.place,
        g.situation,
        names()[g.label],
        g.label,
        g.points.mean,
        g.points.ci95,
        g.points.p,
        f"{g.megabytes.mean / base[g.place, g.situation]:.2f}",
        g.work,
      ]
      for g in map_gains()
    ],
  )


# methods.md


class _Need(NamedTuple):
  """A row of the first table of methods.md."""

  words: str
  situations: tuple[str, ...] = ()  #: of the map, whose methods are recommended
  methods: tuple[str, ...] = ()  #: algorithms, if no study decides
  ending: str = ""  #: words after them
  evidence: str = ""  #: where no number is made of the map


_NO_STUDY = "not in our studies"
_NEEDS = (
  _Need("nothing to compare with yet", (), ("fedavg", "central", "local")),
  _Need(
    "clients with few classes each, and each uses the model on its own classes",
    ("two classes", "Dirichlet 0.1"),
  ),
  _Need(
    "clients of a few unknown [kinds](glossary.md): rotated images", ("rotated images",)
  ),
  _Need(
    "clients of a few unknown kinds: labels mean something else", ("permuted labels",)
  ),
  _Need("clients of a few unknown kinds: two sources", ("two sources",)),
  _Need("clients with data that change their meaning (concept drift)", ("drift",)),
  _Need("clients with more or less noise in their examples", ("noisy images",)),
  _Need(
    "clients that differ in their labels, and one model for all",
    evidence="acceleration",
  ),
  _Need(
    "machines of very different speed",
    (),
    ("fedbuff", "fedasync"),
    evidence="late",
  ),
  _Need(
    "good features, and one round",
    (),
    ("afl", "fed3r", "fedncm", "fedcof"),
    "; in a few rounds [FedACnnL](methods/fedacnnl.md), [DeepAFL](methods/deepafl.md)",
    evidence="family",
  ),
  _Need("clients with different numbers of local steps", (), ("fednova", "fedprox")),
  _Need("clients that each mix several kinds of data", (), ("fedem", "fedsoft")),
  _Need(
    "clients with other sensors or contrast (feature shift)", (), ("fedbn", "lg_fedavg")
  ),
  _Need(
    "a pre-trained model to fine-tune",
    (),
    (),
    "[LoRA adapters and frozen parts](personal.md)",
  ),
  _Need("devices that cannot differentiate", (), ("fedacnnl", "fedzo", "baffle")),
)


def needs_table() -> str:
  """The first table of methods.md."""
  return markdown.table(
    ["you have", "try", f"in our studies: points above {BASE} on {', '.join(DATA)}"],
    [[need.words, *_answer(need)] for need in _NEEDS],
  )


def _answer(need: _Need) -> tuple[str, str]:
  """The methods for a need, and what studies say of them."""
  if need.situations:
    best = [
      label
      for label in recommended(need.situations[0])
      if all(label in recommended(situation) for situation in need.situations[1:])
    ]
    if not best:
      return link(BASE), "no method gains clearly on all data sets"
    return ", ".join(map(link, best[:_MOST])), "; ".join(
      f"{best[0]}, {situation}: {_join(_of(map_gains(), situation, best[0]))}"
      for situation in need.situations
    )
  if need.evidence == "acceleration":
    best = _often_best()
    return ", ".join(map(link, best)), (
      "among the three best after 100 rounds in most panels "
      "([choosing](choosing.md#one-model-for-all))"
    )
  tried = ", ".join(link(registry.ALGORITHMS[name].label) for name in need.methods)
  result = {
    "late": "[choosing](choosing.md#machines-of-different-speed)",
    "family": "[choosing](choosing.md#how-many-rounds-can-you-afford)",
  }.get(
    need.evidence, "the base of all comparisons" * (need.methods[:1] == ("fedavg",))
  )
  return tried + need.ending, result or _NO_STUDY


def _often_best() -> list[str]:
  """Methods among the three best in most panels with a part of the clients."""
  gains = [g for g in acceleration_gains() if g.situation != "all clients"]
  counts: dict[str, int] = {}
  for place in _places(gains):
    in_place = sorted(
      (
        g
        for g in gains
        if (g.place, g.situation) == place and g.is_clear and g.points.mean > 0
      ),
      key=lambda g: -g.points.mean,
    )
    for gain in in_place[:3]:
      counts[gain.label] = counts.get(gain.label, 0) + 1
  half = len(_places(gains)) / 2
  return sorted((k for k, n in counts.items() if n > half), key=lambda k: -counts[k])


# The page of a method.


def method_part(name: str) -> str:
  """What our studies say of a method: a sentence, and a table for each study."""
  label = registry.ALGORITHMS[name].label
  tables = [
    table
    for table in (
      _kinds_of(label),
      _accelerations_of(label),
      _fits_of(label),
      _minutes_of(label),
    )
    if table
  ]
  if not tables:
    return (
      "**In our guide** [which method when](../choosing.md) you find no comparison "
      "with it yet, so you should make one."
    )
  return "\n\n".join(
    [
      "**In our guide** you can see this; bold points are clear "
      "([which method when](../choosing.md)).",
      *tables,
    ]
  )


def _kinds_of(label: str) -> str:
  """A method's gains on the map and on the board."""
  studies = [
    (f"[{kind.title}](../results/beyond_map.md)", map_gains(), kind.title)
    for kind in kinds_map.KINDS.values()
  ]
  studies.append(
    ("[two classes, board](../results/beyond_board.md)", board_gains(), "two classes")
  )
  rows = []
  for title, gains, situation in studies:
    points = {gain.place: gain.short_words for gain in _of(gains, situation, label)}
    if points:
      rows.append([title, *(points.get(data, "-") for data in DATA)])
  if not rows:
    return ""
  return markdown.table([f"clients differ by: points above {BASE}", *DATA], rows)


def _accelerations_of(label: str) -> str:
  """A method's gains as one model for all clients."""
  rows = [
    [
      f"[{gain.place}, {gain.situation}](../results/beyond_acceleration.md)",
      gain.short_words,
      gain.rounds,
      gain.megabytes,
    ]
    for gain in acceleration_gains()
    if gain.label == label
  ]
  return (
    rows
    and markdown.table(
      [
        "one model for all",
        f"points above {BASE}",
        "rounds to the target",
        "MB to it",
      ],
      rows,
    )
    or ""
  )


def _fits_of(label: str) -> str:
  """What a method of the analytic family reaches and costs."""
  rows = [
    [
      f"[{fit.data}](../results/beyond_family.md)",
      f"{fit.accuracy:.1f}",
      fit.rounds,
      f"{fit.megabytes:,.3g}",
    ]
    for fit in fits()
    if fit.label == label
  ]
  return (
    rows
    and markdown.table(
      ["the server's model", "accuracy (R² of a table), %", "rounds", "MB"], rows
    )
    or ""
  )


def _minutes_of(label: str) -> str:
  """A method's simulated minutes where machines differ in speed."""
  rows = [
    [f"[{row[0]}](../results/beyond_late.md)", row[3]]
    for row in read_table("beyond_late", "stragglers", "method")
    if row[1] == label
  ]
  return (
    rows
    and markdown.table(
      ["machines of different speed", "simulated minutes to 80 %"], rows
    )
    or ""
  )
