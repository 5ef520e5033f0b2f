"""Studies of hostile clients and of fewer bytes."""

import numpy as np
import pytest

from experiments import beyond as command
from experiments.papers.beyond import bytes as fewer_bytes, hostile
from experiments.reports import figures, suite
from fedjax_alg.exchange.attacks import hostile_clients
from tests.experiments import shown

PAPER = command.PAPER


def test_only_honest_clients_count(tmp_path):
  cell = shown.cell("beyond", "hostile", "a", "FedAvg 40 %")
  bad = np.asarray(hostile_clients(10, 0.4, 0))
  assert bad.sum() == 4
  rows = [dict(seed=seed, protocol="local", client=i, train_examples=9,
               test_examples=1 + i, accuracy=0.0 if bad[i] else 0.5 + 0.1 * (
                   i % 2), loss=0.1) for seed in (0, 1) for i in range(10)]
  lines = [",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)]
  (tmp_path / "clients.csv").write_text("\n".join(lines))
  found = hostile.honest(suite.Outcome(cell, tmp_path, rows, {}))
  tested = np.arange(1, 11)[~bad]
  expected = (tested * (50 + 10 * (np.arange(10)[~bad] % 2))).sum()
  np.testing.assert_allclose(found, [expected / tested.sum()] * 2)


def test_a_method_defends_if_it_loses_less(monkeypatch):
  left = {("FedAvg", "mean"): 50, ("IFCA", "mean"): 80,
          ("FSVRG", "mean"): 40, ("FedAvg", "geometric median"): 50.1}

  def honest(outcome):
    method, share = hostile._attackers(outcome)
    end = left[method, outcome.cell.panel_title.split("; ")[1]]
    return np.array([90.0, 95.0]) + (end - 90 if share else 0)

  monkeypatch.setattr(hostile, "honest", honest)
  text = hostile.answer([
      suite.Outcome(c, None, [], {}) for c in shown.cells("beyond", "hostile")
      if c.panel in "ad" and c.label in (
          "FedAvg 0 %", "FedAvg 40 %", "IFCA 0 %", "IFCA 40 %", "FSVRG 0 %",
          "FSVRG 40 %") and (c.panel == "a" or "FedAvg" in c.label)])
  words = [[word.strip() for word in line.split("|")[2:-1]]
           for line in text.splitlines() if line.startswith("| flipped")]
  assert words == [
      ["mean", "FedAvg", "40.00 +- 0.00"],
      ["mean", "FSVRG", "50.00 +- 0.00; -10.00 +- 0.00, loses more"],
      ["mean", "IFCA", "10.00 +- 0.00; +30.00 +- 0.00, defends"],
      ["geometric median", "FedAvg",
       "39.90 +- 0.00; +0.10 +- 0.00, the same"]]
  assert "IFCA with the mean: defends 1" in text


def test_bytes_to_a_target_are_those_sent_until_then():
  first = shown.cell("beyond", "bytes", "a", "top 5 %")
  rows = [dict(round=n, seed=seed, protocol="global", total_bytes=1000 * n,
               accuracy=0.96 if n >= 4 + 2 * seed else 0.5)
          for seed in (0, 1) for n in (2, 4, 6)]

  class Outcome(suite.Outcome):
    def rounds(self):
      return [dict(round=n, seed=seed, bytes_up=10 * n) for seed in (0, 1)
              for n in range(1, 7)]

  outcome = Outcome(first, None, rows, dict(cost=dict(clients_per_round=3)))
  np.testing.assert_array_equal(
      fewer_bytes._to_target(outcome, False), [4000, 6000])
  np.testing.assert_array_equal(
      fewer_bytes._to_target(outcome, True), [3 * 100, 3 * 210])
  one = np.array([10.0, 11.0])
  assert fewer_bytes._shown_times(one, 4 * one)[1] == "fewer bytes"
  assert fewer_bytes._shown_times(one, one) == ("1.0 +- 0.0", "as many bytes")
  assert fewer_bytes._shown_times(one * np.nan, one)[1] == "does not get there"


def test_a_folder_of_fashion_mnist_takes_the_place_of_prepared_data():
  request = figures.Request(None, (), "here", files={"fashion_mnist": "/f"})
  there, lacking = figures.with_data(PAPER, figures.only(
      "bytes", PAPER.figures["bytes"], "def"), request)
  assert not there.panels and "--fashion_mnist=PATH" in lacking[0]


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("name, panel, lines, words", [
    ("hostile", "b", "FedAvg 0 %,FedAvg 40 %", "## Do several models"),
    ("bytes", "a", "whole,signs", "whole does not get there")])
def test_the_figures_are_made(
    name, panel, lines, words, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(hostile, "honest", lambda outcome: np.array([90.0]))
  assert not command.main([
      f"--figure={name}", "--scale=quick", f"--lines={lines}",
      f"--panels={panel}", "--rounds=4", f"--out_dir={tmp_path}"])
  assert words in capsys.readouterr().out
  assert (tmp_path / name / f"{name}.pdf").stat().st_size > 5000
