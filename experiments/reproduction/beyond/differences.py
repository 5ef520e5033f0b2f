"""How the clients of the map's panels differ, and when a panel is near others.

``fa.advise`` measures how clients differ and names the nearest panel of the map. Here
are its measures on five partitions of every panel, and of clients that differ in
nothing. Each partition is held out and named by the others, and each data set by the
other two. Clients of kinds that the map does not have must be near nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import csv
import pathlib
from typing import Any, NamedTuple

import numpy as np

import fedjax_alg as fa
from fedjax_alg import files
from fedjax_alg.data import DataError
from fedjax_alg.data.federation import load_examples
from fedjax_alg.metrics.differences import Differences
from fedjax_alg.runs import advise
from fedjax_alg.runs.plan import federation_of

from ...cli import config as config_lib
from .. import figures, pages
from . import kinds_map

NAME = "differences"
PARTITIONS = 5

#: Clients that the map does not have -> their options on digits.
FOREIGN: dict[str, dict[str, Any]] = {
  "Dirichlet 0.5": {"partition": "dirichlet:0.5,min_size=4"},
  "Dirichlet 1": {"partition": "dirichlet:1,min_size=4"},
  "two classes and rotated images": {
    "partition": "classes:2,min_size=4,size_sigma=0",
    "kinds": "rotate:0,90,180,270",
  },
  "noise and permuted labels": {
    "kinds": "permute:4",
    "partition": "classes:2,min_size=4",
  },
}
#: Clients that differ in their sizes alone.
SIZES = {"sizes, log-normal": {"partition": "iid:min_size=4,size_sigma=1"}}


class Sample(NamedTuple):
  """The measures of sample partition of a panel."""

  data: str  #: title of the data set
  difference: str  #: title of the kind, or ``advise.NOTHING``
  partition: int
  measures: Differences


def _source(request: figures.Request, data: str) -> dict[str, Any]:
  """Where the images of a data set are read."""
  if data == "digits":
    return {}
  if data == "fashion" and request.files.get("fashion_mnist"):
    return dict(figures.FASHION_MNIST.values(request.files["fashion_mnist"]))
  return {"data_dir": request.data_dir} if request.data_dir else {}


def _federation(
  request: figures.Request, data: str, kind: str, seed: int
) -> fa.Federation:
  """A partition of a panel; ``kind`` "" for clients that differ in nothing.

  Raises:
    DataError: the data are not there.
  """
  if kind == "sources":
    return _two_sources(request, seed)
  layers: list[Any] = [f"beyond/{kinds_map.preset_of(data, kind)}.flags"]
  if not kind:
    layers = [f"beyond/map_{data}.flags", {"partition": "iid:size_sigma=0"}]
  config = config_lib.build_config(
    {"algorithm": "fedavg"}, *layers, _source(request, data), {"partition_seed": seed}
  )
  return federation_of(config.data)


def _two_sources(request: figures.Request, seed: int) -> fa.Federation:
  """Clients of MNIST and of Fashion-MNIST, also if TFDS has not prepared both."""
  rng = np.random.default_rng(seed)
  x, y, kinds = [], [], []
  for number, data in enumerate(("mnist", "fashion")):
    dataset = {"mnist": "mnist", "fashion": "fashion_mnist"}[data]
    examples = load_examples(
      config_lib.build_config(
        {"algorithm": "fedavg", "dataset": dataset}, _source(request, data)
      ).data
    )
    rows = rng.permutation(len(examples.y_train))[:3000]
    x.append(np.asarray(examples.x_train[rows]))
    y.append(np.asarray(examples.y_train)[rows])
    kinds.append(np.full(len(rows), number))
  arrays = np.concatenate(x), np.concatenate(y), np.concatenate(kinds)
  return fa.federate(
    fa.from_arrays(
      *arrays[:2],
      kind_ids=arrays[2],
      x_test=arrays[0],
      y_test=arrays[1],
      test_kind_ids=arrays[2],
    ),
    partition="iid:size_sigma=0",
    num_clients=40,
    seed=seed,
  )


def _panels(request: figures.Request) -> Iterator[tuple[str, str]]:
  """(data, kind) of every panel; the last of each data set differs in nothing."""
  for data in ["digits"] if request.quick else kinds_map.DATA:
    for kind, difference in kinds_map.KINDS.items():
      if data in difference.data:
        yield data, kind
    yield data, ""


def _measure(request: figures.Request) -> list[Sample]:
  """The measures of all panels.

  Raises:
    DataError: the data of a panel are not there.
  """
  measured = []
  for data, kind in _panels(request):
    title = kinds_map.KINDS[kind].title if kind else advise.NOTHING
    for seed in range(2 if request.quick else PARTITIONS):
      measures = advise.measure(_federation(request, data, kind, seed))
      measured.append(Sample(kinds_map.DATA[data], title, seed, measures))
    print(f"{kinds_map.DATA[data]}, {title}", flush=True)
  return measured


def _panel_of(sample: Sample) -> tuple[str, str]:
  """The panel of a partition; those that differ in nothing have one for all data."""
  return (
    advise.ANY if sample.difference == advise.NOTHING else sample.data,
    sample.difference,
  )


def average_panels(measured: Sequence[Sample]) -> list[advise.MapPanel]:
  """The panels with the means over their partitions."""
  by_panel: dict[tuple[str, str], list[Differences]] = {}
  for sample in measured:
    by_panel.setdefault(_panel_of(sample), []).append(sample.measures)
  return [
    advise.MapPanel(*panel, Differences(*np.mean(of, axis=0).tolist()))
    for panel, of in by_panel.items()
  ]


class NamedSample(NamedTuple):
  """A partition named by panels that it has no part in."""

  sample: Sample
  panel: advise.MapPanel  #: the nearest
  distance: float
  right: float  #: distance to the nearest panel of the same difference
  wrong: float  #: distance to the nearest panel of another difference


def name_held_out(
  measured: Sequence[Sample], is_held_out: Callable[[Sample, Sample], bool]
) -> list[NamedSample]:
  """Names every partition by the others.

  Args:
    measured: all partitions.
    is_held_out: (the partition, another) -> whether the other is left out, too.

  Returns:
    An entry for each partition whose difference is among the others.
  """
  result = []
  for sample in measured:
    panels = average_panels([s for s in measured if not is_held_out(sample, s)])
    of_same = [p for p in panels if p.difference == sample.difference]
    of_others = [p for p in panels if p.difference != sample.difference]
    if of_same and of_others:
      result.append(
        NamedSample(
          sample,
          *advise.nearest(sample.measures, panels),
          advise.nearest(sample.measures, of_same)[1],
          advise.nearest(sample.measures, of_others)[1],
        )
      )
  return result


def name_partitions(measured: Sequence[Sample]) -> list[NamedSample]:
  """Every partition named by all others."""
  return name_held_out(measured, lambda a, b: a is b)


def name_data_sets(measured: Sequence[Sample]) -> list[NamedSample]:
  """Every partition named by the panels of the other data sets."""
  return name_held_out(measured, lambda a, b: a.data == b.data)


def _describe_held_out(measured: Sequence[Sample]) -> list[str]:
  """How often the right panel is named, and how far it is."""
  parts, others = name_partitions(measured), name_data_sets(measured)
  same = sum(h.panel.difference == h.sample.difference for h in parts)
  right = sum((h.panel.data, h.panel.difference) == _panel_of(h.sample) for h in parts)
  lines = [
    f"**Each partition, named by all others**: the right difference in {same} of "
    f"{len(parts)} cases, and the right data set in {right}. The distance is at most "
    f"{max(h.distance for h in parts):.2f}."
  ]
  if others:
    same = sum(h.panel.difference == h.sample.difference for h in others)
    lines.append(
      f"**Each data set, named by the others**: the right difference in {same} of "
      f"{len(others)} cases. The largest distance to a panel of the same difference is "
      f"{max(h.right for h in others):.2f}, so {advise.NEAR:g} is the largest distance "
      "that counts as near."
    )
  return lines


def _table(panels: Sequence[advise.MapPanel]) -> pages.Table:
  return pages.Table(
    ["data", "clients differ by", *Differences._fields],
    [
      [panel.data, panel.difference, *(f"{value:.3f}" for value in panel.measures)]
      for panel in panels
    ],
  )


def _foreign_table(panels: Sequence[advise.MapPanel]) -> pages.Table:
  """Clients of digits that the map does not have, and synthetic ones."""
  federations: Mapping[str, fa.Federation] = {
    f"digits, {title}": fa.federate("digits", num_clients=40, **options)
    for title, options in {**FOREIGN, **SIZES}.items()
  } | {"synthetic(1, 1)": fa.federate("synthetic", num_clients=40)}
  rows = []
  for title, federation in federations.items():
    panel, distance = advise.nearest(advise.measure(federation), panels)
    rows.append(
      [
        title,
        f"{panel.data}, {panel.difference}",
        f"{distance:.2f}",
        "near" if distance <= advise.NEAR else "none is near",
      ]
    )
  return pages.Table(["clients", "nearest panel", "distance", "answer"], rows)


def write_samples(path: pathlib.Path, measured: Sequence[Sample]) -> None:
  """Writes a row for each partition, which the page and ``fa.advise`` are made of."""
  with files.replacing(path) as partial, open(partial, "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["data", "difference", "partition", *Differences._fields])
    for sample in measured:
      writer.writerow([*sample[:3], *(f"{value:.6f}" for value in sample.measures)])


def read_samples(path: pathlib.Path) -> list[Sample]:
  """Reads what ``write_samples`` has written."""
  with open(path, newline="", encoding="utf-8") as file:
    return [
      Sample(
        row["data"],
        row["difference"],
        int(row["partition"]),
        Differences(*(float(row[name]) for name in Differences._fields)),
      )
      for row in csv.DictReader(file)
    ]


def _make(
  request: figures.Request, folder: pathlib.Path
) -> tuple[list[pages.Block], Sequence[Any]]:
  """Measures all panels; the text of the page."""
  try:
    measured = _measure(request)
  except DataError as error:
    return [f"Not run. {error}"], []
  write_samples(folder / f"{NAME}_numbers.csv", measured)
  panels = average_panels(measured)
  return [
    *_describe_held_out(measured),
    f"Clients that the map does not have; at most {advise.NEAR:g} is near.",
    _foreign_table(panels),
    "The means over the partitions.",
    _table(panels),
  ], []


TABLE = figures.FigureTable(
  "How clients differ: the measures of the map's panels", _make
)
