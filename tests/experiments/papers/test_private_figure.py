"""The study of private clients: its noise, its settings, its table."""

import pathlib

import numpy as np
import pytest

from experiments.papers.beyond import private
from experiments.reports import suite, verdicts
from fedjax_alg.records import accounting
from tests.experiments import shown

PLAYS = {"sampled": ("poisson", 0.05, 100), "once": ("all", 1.0, 1),
         "twice": ("all", 1.0, 2)}


def test_the_noise_is_what_the_accountant_asks_for():
  pytest.importorskip("dp_accounting")
  for released, noises in private.NOISE.items():
    sampling, rate, rounds = PLAYS[released]
    for panel, noise in zip("abcd", noises):
      target = private.EPSILONS[panel]
      found = accounting.Mechanism(
          noise, 1e-5, 3000, sampling, rate).epsilon(rounds)
      assert 0.995 * target < found <= target


def test_every_run_releases_what_its_noise_is_for():
  found = shown.cells("beyond", "private")
  assert len(found) == 4 * 5 + 4
  for cell in found:
    run = cell.config
    assert run.data.num_clients - run.data.validation_clients == 3000
    if cell.panel == "e":
      assert run.hparams["private"] == "none"
      continue
    sampling, rate, rounds = PLAYS[private.METHODS[cell.label][1]]
    assert run.hparams["delta"] == 1e-5
    assert run.run.rounds == rounds
    mechanism = accounting.mechanism(
        run.method.hparams, run.run, 3000,
        None if sampling == "poisson" else rounds)
    assert (mechanism.sampling, mechanism.rate) == (sampling, rate)


def outcome(panel, label, epsilon, accuracies):
  cell = shown.cell("beyond", "private", panel, label)
  return suite.Outcome(cell, pathlib.Path(), [], {
      "privacy": {"epsilon": epsilon, "noise_multiplier": 1.0},
      "cost": {"rounds": 1},
      "final": {"global": {"accuracy": {"values": accuracies}}}})


def test_the_table_interpolates_the_epsilon_of_equal_accuracy():
  found = [outcome("a", "FedAvg", 1.0, [0.90, 0.92]),
           outcome("b", "FedAvg", 2.0, [0.94, 0.96]),
           outcome("a", "AFL", 1.0, [0.92, 0.94]),
           outcome("b", "AFL", 2.0, [0.935, 0.945])]
  text = private.FIGURE.table(found)
  assert "| 1.00 | 91.00 | at most 1.00 |" in text
  assert "| 2.00 | 95.00 | more than 2.00 |" in text
  assert private.needed_epsilon([1, 4], [80, 90], 85) == "2.00"
  said = {claim.text: verdicts.judge(claim, found)
          for claim in private.FIGURE.statements}
  assert said["At epsilon 1 AFL is above FedAvg"][0].startswith("a: +2.00")
  assert np.isinf(private.EPSILONS["e"])
