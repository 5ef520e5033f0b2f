"""Studies of hostile clients and of fewer bytes."""

import functools

import numpy as np
import pytest

from experiments import beyond as command
from experiments.papers.beyond import bytes as fewer_bytes, hostile
from experiments.reports import figures, suite
from fedjax_alg.exchange.attacks import hostile_clients
from fedjax_alg.records import tables as records

PAPER = command.PAPER


@functools.cache
def cells(name):
  return figures.cells(
      PAPER, PAPER.figures[name], figures.Request(None, (), "here"))


@pytest.mark.slow
def test_every_method_meets_every_attack_and_defence():
  runs = {(c.panel, c.label): c.config for c in cells("hostile")}
  assert len(runs) == 6 * len(hostile.METHODS) * len(hostile.SHARES)
  for (panel, label), run in runs.items():
    method, share = hostile._split(label)
    assert method in hostile.METHODS
    assert run.hparams["aggregator"] == (
        "mean" if panel < "d" else "geometric_median")
    if share:
      assert run.hparams["attackers"] == share
      assert run.hparams["attack"] == (
          "label_flip", "sign_flip", "little_is_enough")["abc".index(
              panel) if panel < "d" else "def".index(panel)]
    else:  # nobody attacks: one run for all attacks
      assert run.hparams["attack"] == "none"
      assert run.identity() == runs["a" if panel < "d" else "d",
                                    label].identity()
    assert (run.hparams["local_steps"], run.values["rounds"]) == (20, 60)
    assert run.values["participation"] == 0.1


def test_only_honest_clients_count(tmp_path):
  cell = next(c for c in cells("hostile") if c.label == "FedAvg 40 %")
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
    method, share = hostile._split(outcome.cell.label)
    end = left[method, outcome.cell.panel_title.split("; ")[1]]
    return np.array([90.0, 95.0]) + (end - 90 if share else 0)

  monkeypatch.setattr(hostile, "honest", honest)
  text = hostile.answer([
      suite.Outcome(c, None, [], {}) for c in cells("hostile")
      if c.panel in "ad" and c.label in (
          "FedAvg 0 %", "FedAvg 40 %", "IFCA 0 %", "IFCA 40 %", "FSVRG 0 %",
          "FSVRG 40 %") and (c.panel == "a" or "FedAvg" in c.label)])
  words = [[word.strip() for word in line.split("|")[3:-1]]
           for line in text.splitlines() if "| 40 % |" in line]
  assert words == [
      ["mean", "FedAvg", "40.00 +- 0.00", "-", "-"],
      ["mean", "FSVRG", "50.00 +- 0.00", "-10.00 +- 0.00", "loses more"],
      ["mean", "IFCA", "10.00 +- 0.00", "+30.00 +- 0.00", "defends"],
      ["geometric median", "FedAvg", "39.90 +- 0.00", "+0.10 +- 0.00",
       "the same"]]
  assert "IFCA with the mean: defends 1" in text


def test_bytes_to_a_target_are_those_sent_until_then():
  first = next(c for c in cells("bytes") if c.label == "top 5 %")
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


def test_every_compressor_meets_every_method_and_data_set():
  runs = {(c.panel_title, c.label): c.config for c in cells("bytes")}
  assert len(runs) == 2 * 3 * 6
  assert {run.hparams["compress_up"] for run in runs.values()} == {
      "none", "topk:0.05", "randk:0.05", "qsgd:4", "sign", "powersgd:1"}
  request = figures.Request(None, (), "here", files={"fashion_mnist": "/f"})
  there, lacking = figures.with_data(PAPER, figures.only(
      "bytes", PAPER.figures["bytes"], "def"), request)
  assert not there.panels and "--fashion_mnist=PATH" in lacking[0]


@pytest.mark.program
@pytest.mark.parametrize("name, lines", [
    ("hostile", "FedAvg 0 %,FedAvg 40 %"),
    pytest.param("bytes", "whole,signs", marks=pytest.mark.slow)])
def test_the_figures_are_made(name, lines, tmp_path, capsys):
  panel = "b" if name == "hostile" else "a"
  assert not command.main([
      f"--figure={name}", "--scale=quick", f"--lines={lines}",
      f"--panels={panel}", "--num_clients=24", "--validation_clients=2",
      "--participation=0.2", "--rounds=4", "--local_steps=4", "--noprogress",
      f"--out_dir={tmp_path}"])
  said = capsys.readouterr().out
  assert ("## Do several models" if name == "hostile" else
          "whole does not get there") in said
  assert (tmp_path / name / f"{name}.pdf").stat().st_size > 5000
  assert records.read_rows(next((tmp_path / "runs").glob("*/metrics.csv")))
