"""The board of clustered methods."""

import itertools

import numpy as np
import pytest
from scipy import stats

from experiments import beyond as command
from experiments.cli import config
from experiments.papers.beyond import board
from experiments.reports import figures, suite

PAPER = command.PAPER


@pytest.fixture(scope="module", name="cells")
def fixture_cells():
  return figures.cells(PAPER, board.FIGURE._replace(panels=board.PANELS),
                       figures.Request(None, (), "here"))


def test_every_method_is_on_every_data_set(cells):
  assert {(c.panel_title, c.label) for c in cells} == set(
      itertools.product(board.DATA, board.METHODS))
  for cell in cells:
    assert cell.config.run.rounds == 50 and len(cell.config.run.seeds) == 1


def outcome(cell, accuracies, sent=5e6):
  rows = [{"round": 50, "seed": i, "total_bytes": sent}
          for i in range(len(accuracies))]
  late = {name: {"values": list(accuracies), "mean": np.mean(accuracies),
                 "ci95": 0.01} for name in ("accuracy", "worst_decile")}
  return suite.Outcome(cell, None, rows, {"mean_last_10": {"local": late}})


def test_gaps_are_paired_and_corrected(cells):
  """By SciPy's test and Holm's definition, over the methods of a panel."""
  rng = np.random.default_rng(0)
  common = rng.normal(0.9, 0.05, 9)  # a partition is hard for all methods
  own = [c for c in cells if c.panel_title == "digits"]
  found = {c.label: common + 0.01 * i + rng.normal(0, 0.01, 9)
           for i, c in enumerate(own)}
  text = board.table([outcome(c, found[c.label]) for c in own])
  rows = {line.split(" | ")[1]: line.split(" | ")
          for line in text.splitlines() if line.startswith("| digits")}
  assert list(rows)[0] == max(found, key=lambda k: found[k].mean())
  p = {k: stats.ttest_rel(v, found[board.BASE]).pvalue
       for k, v in found.items() if k != board.BASE}
  ordered = sorted(p, key=p.get)
  corrected = {k: min(1.0, max(p[j] * (len(p) - i) for i, j in enumerate(
      ordered[:ordered.index(k) + 1]))) for k in p}
  for label, value in corrected.items():
    assert rows[label][4].endswith(f"({value:.2g})")
  assert rows[board.BASE][4] == "-" and rows[list(rows)[0]][5] == "-"


def test_a_line_plays_its_cell_again(cells):
  cell = next(c for c in cells if (c.panel_title, c.label) == (
      "digits", "IFCA"))
  text = board.replay([outcome(cell, [0.9])])
  line = next(word for word in text.split("`") if word.startswith("fedjax"))
  again = config.parse(line.replace("=P", "=4").split()[2:])
  part = cell.on(9)[4]
  assert again.identity() == part.config.identity()
