"""FedGroup's pre-training before round 1: EDC, MADC and the groups.

The pre-trained clients, their updates and their groups are those of a run with
the same flags. No round is run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
import scipy.stats

from fedjax_alg import data, grouping
from fedjax_alg.algorithms import fedgroup
from fedjax_alg.base import initial_shapes, num_params
from fedjax_alg.engine import loop

from ...cli import config as config_lib
from ...drawing import plots
from ...reports import markdown, rule
from .. import answers, chosen, pages, report, suite, verdicts
from . import claims

#: A cloud of points with at least this Pearson correlation counts as a line.
LINEAR = 0.9

#: (panel title, run) of FedGroup on each data set.
Runs = Sequence[suite.Cell]


#: A table, and the answers to the paper's claims that it gives.
TableAndAnswers = tuple[list[pages.Block], list[answers.PaperAnswer]]


class Pool(NamedTuple):
  """The n pre-trained clients."""

  ids: np.ndarray  #: [n]
  edc: np.ndarray  #: [n, n], EDC of each pair
  madc: np.ndarray  #: [n, n], MADC of each pair
  points: np.ndarray  #: [n, m], cosines with the m main directions
  groups: np.ndarray  #: [n], in [0, m)
  labels: np.ndarray  #: [n, L] bool, which classes each client holds


def _pretrain_clients(cell: suite.Cell) -> list[Pool]:
  """The pre-trained clients of each seed of a run."""
  config = cell.config
  prepared = config.prepare()
  hparams = prepared.method.hparams

  def setup(params, everyone, key):
    ids, updates, mask, groups = fedgroup.pretrain_and_group(
      prepared.model, hparams, params, everyone, key, prepared.map_clients
    )
    gram = grouping.gram(updates, mask)
    points = grouping.edc_points(gram, mask, hparams.num_groups)
    return (
      ids,
      mask,
      grouping.edc(points),
      grouping.madc(grouping.cosine(gram), mask),
      points,
      groups,
    )

  # The setup of the run with the same keys, but the result is the pool.
  start = prepared.algorithm._replace(
    init=lambda params, spec, key: params, setup=setup
  )
  every_seed = jax.device_get(
    jax.jit(
      lambda data, keys: loop.initial_states(
        loop.constant_build(start), prepared.model, prepared.spec, data, keys, {}
      )
    )(prepared.device_data.data.train, prepared.keys)
  )
  pools = []
  for ids, present, edc, madc, points, groups in zip(*every_seed):
    square = np.ix_(present, present)
    pools.append(
      Pool(
        ids[present],
        edc[square],
        madc[square],
        points[present],
        groups[present],
        prepared.federation.label_histogram[ids[present]] > 0,
      )
    )
  return pools


class _LineFit(NamedTuple):
  """The relation of EDC and MADC over all pairs of pre-trained clients."""

  madc: np.ndarray  #: [pairs]
  edc: np.ndarray  #: [pairs]
  pearson: float
  spearman: float
  slope: float
  intercept: float


def _mapping(pool: Pool) -> _LineFit:
  """The correlations of EDC and MADC, and the line of least squares."""
  upper = np.triu_indices(len(pool.edc), 1)
  x, y = pool.madc[upper], pool.edc[upper]
  slope, intercept = np.polyfit(x, y, 1)
  return _LineFit(
    x,
    y,
    float(scipy.stats.pearsonr(x, y).statistic),
    float(scipy.stats.spearmanr(x, y).statistic),
    float(slope),
    float(intercept),
  )


def fig5(cells: Runs, paths: plots.Paths, title: str) -> TableAndAnswers:
  """Draws Fig. 5 for the first seed.

  Returns:
    A table with a verdict about all seeds, and the verdict.
  """
  fits_by_pair = {
    cell.panel_title: list(map(_mapping, _pretrain_clients(cell))) for cell in cells
  }
  plots.scatters(
    paths,
    {
      f"{name}\nr = {f.pearson:.2f}": (f.madc, f.edc, (f.slope, f.intercept))
      for name, (f, *_) in fits_by_pair.items()
    },
    ("MADC", "EDC"),
    title,
  )
  names = ("pearson", "spearman", "slope", "intercept")
  table = pages.Table(
    ["data and model", "pairs", *names],
    [
      [
        title,
        len(fits[0].edc),
        *(
          markdown.format_values([getattr(f, name) for f in fits], 3) for name in names
        ),
      ]
      for title, fits in fits_by_pair.items()
    ],
  )

  def linear(outcomes):
    del outcomes
    return verdicts.every(
      (
        title,
        verdicts.votes(
          [f.pearson >= LINEAR for f in fits],
          verdicts.Measurement(
            ", ".join(f"{f.pearson:.3f}" for f in fits),
            values=(tuple(f.pearson for f in fits),),
          ),
        ),
      )
      for title, fits in fits_by_pair.items()
    )

  statements = verdicts.for_paper(
    claims.NAME,
    "Fig5",
    {
      f"EDC is about linear in MADC (Pearson correlation at least {LINEAR}, "
      "each seed)": (linear, rule.NO_MEASURE)
    },
  )
  tuning = chosen.tuning_of_several(cell.tuning for cell in cells)
  figure_answers = [
    answer._replace(tuning=tuning)
    for answer in answers.answer_sentences("fig5", statements, [])
  ]
  return [table], figure_answers


def clusters(cells: Runs, paths: plots.Paths, title: str) -> TableAndAnswers:
  """Draws the groups of the first seed.

  Returns:
    A table of the classes that the clients of each group hold, and no answers.
  """
  pools = {cell.panel_title: _pretrain_clients(cell)[0] for cell in cells}

  def word(labels):
    return " ".join(map(str, np.flatnonzero(labels)))

  plots.plot_groups(
    paths,
    {
      name: (p.points[:, :2], p.groups, [word(l) for l in p.labels])
      for name, p in pools.items()
    },
    ("cosine with direction 1", "cosine with direction 2"),
    title,
  )
  rows = []
  for name, p in pools.items():
    for g in sorted(set(p.groups.tolist())):
      counts = p.labels[p.groups == g].sum(0)
      rows.append(
        [
          name,
          g + 1,
          (p.groups == g).sum(),
          ", ".join(f"{c}: {count}" for c, count in enumerate(counts) if count),
        ]
      )
  return [
    pages.Table(["data and model", "group", "clients", "clients by class"], rows)
  ], []


#: data set that may not be prepared -> shape of an example, number of classes.
_SHAPES = {"femnist": ((28, 28, 1), 26), "sent140": ((25,), 2)}


def _parameters(config: config_lib.Config) -> int:
  """The number of parameters P of a run whose data are not prepared."""
  values, dataset = config.values, config.data.dataset
  assert dataset is not None
  shape, classes = _SHAPES[dataset.label]
  model = values["model"].build(
    shape, classes, tokens=values["vocabulary"] + data.SPECIAL_TOKENS
  )
  return num_params(initial_shapes(model.init))


def size_table(cells: Runs, not_run: Runs) -> TableAndAnswers:
  """Table 2: numbers of clients, samples and parameters, and the paper's.

  Args:
    cells: one run of each data set and model.
    not_run: one run of each data set and model whose data are not prepared.
  """
  of_paper = report.load_claims(claims.NAME, "Table2")
  stated = {(c.panel, c.metric): c.value for c in of_paper}
  rows = []
  for cell in cells:
    plan = cell.config.prepare().plan
    rows.append(
      (
        cell.panel,
        cell.panel_title,
        plan["clients"],
        plan["train_examples"] + plan["test_examples"],
        plan["parameters"],
      )
    )
  rows += [
    (cell.panel, cell.panel_title, "-", "-", _parameters(cell.config))
    for cell in not_run
  ]
  names = ("devices", "samples", "parameters")
  lines = []
  for letter, title, *values in sorted(rows):
    words = [f"{ours:,}" if isinstance(ours, int) else str(ours) for ours in values]
    lines.append(
      [
        title,
        *(
          f"{ours} ({stated[letter, name]:,.0f})" if (letter, name) in stated else ours
          for ours, name in zip(words, names)
        ),
      ]
    )
  counts = {
    (letter, name): count
    for letter, _, *counts in rows
    for name, count in zip(names, counts)
    if count != "-"
  }
  return [
    pages.Table(["data and model", *(f"{name} (paper)" for name in names)], lines)
  ], [
    answers.of_claim(
      "table2", c, report.answer_number([counts[c.panel, c.metric]], c, exact=True)
    )
    for c in of_paper
    if (c.panel, c.metric) in counts
  ]
