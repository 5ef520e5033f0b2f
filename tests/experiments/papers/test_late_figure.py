"""The study of late clients: its settings, its table, its sentences."""

import pathlib

import numpy as np

from experiments.papers.beyond import late
from experiments.reports import suite, verdicts
from tests.experiments import shown


def outcome(label, accuracies, second):
  """Seeds [N, E] that are evaluated every ``second`` simulated seconds."""
  cell = shown.cell("beyond", "late", "b", label)
  rows = [{"round": 5 * (e + 1), "seed": seed, "protocol": "global",
           "accuracy": value, "simulated_s": second * (e + 1),
           "total_bytes": 1e6 * (e + 1)}
          for seed, curve in enumerate(accuracies)
          for e, value in enumerate(curve)]
  last = [curve[-1] for curve in accuracies]
  return suite.Outcome(cell, pathlib.Path(), rows, {
      "cost": {"rounds": 5 * len(accuracies[0])},
      "mean_last_10": {"global": {"accuracy": {"values": last}}}})


def test_costs_and_verdicts():
  curves = np.array([[0.5, 0.81, 0.86], [0.7, 0.79, 0.82], [0.8, 0.8, 0.84]])
  found = [outcome("FedAvg", curves - 0.02 * np.arange(1, 4)[:, None], 120.0),
           outcome("FedProx", curves + 0.02, 60.0),
           outcome("FedBuff", curves, 30.0)]
  table = [line.split(" | ") for line in late.FIGURE.table(
      found).splitlines() if line.startswith("| 50 % stragglers")]
  assert [row[1] for row in table] == ["FedAvg", "FedProx", "FedBuff"]
  # 80 % after 2, 3 and 1 evaluations; 85 % in one seed of three.
  assert table[2][3:9] == ["1.0", "2.0", "10.0", "never", "never", "never |"]
  assert table[1][2].startswith("86.00 +- ")
  said = {claim.text: verdicts.judge(claim, found)
          for claim in late.FIGURE.statements}
  keeps = [v for text, v in said.items() if text.startswith("With 50 % strag")]
  assert [verdict for _, verdict in keeps] == [
      "holds", "holds", "not run"]
  # FedProx is above FedAvg by 8, 6 and 4 points: 6 +- 5.
  assert keeps[0][0].startswith("b: +6.00")
  # FedAvg has not got there in 360 seconds, FedBuff in 60, 90 and 30.
  saved = 100 * (1 - np.array([60, 90, 30]) / 360)
  assert keeps[1][0].startswith(f"+{saved.mean():.1f} +- ")
