"""The tables of a run, without a run."""

import numpy as np
import pytest

from experiments import config, records
from fedjax_alg import metrics
from fedjax_alg.base import RoundAux, RoundCost

SEEDS, COHORT = [3, 4], 4


def aux(rounds, **server):
  """A log of some rounds, two seeds."""
  ones = np.ones((2, rounds), np.int32)
  cost = RoundCost(10 * ones, 5 * ones, 2 * ones, 6 * ones,
                   ones.astype(np.float32))
  return RoundAux({}, server, cost)


def test_server_names_are_sorted_and_small():
  server = {"train_loss": np.zeros((2, 5)), "beta": np.zeros((2, 5)),
            "size": np.zeros((2, 5, 11)), "all": np.zeros((2, 5, 65)),
            "gram": np.zeros((2, 5, 2, 2))}
  assert records.server_names(server) == (
      "beta", "gram_0", "gram_1", "gram_2", "gram_3",
      *(f"size_{i}" for i in range(11)), "train_loss")


def test_round_rows():
  log = aux(3, accepted=np.array([[True, False, True]] * 2),
            loss=np.arange(6, dtype=np.float32).reshape(2, 3))
  rows = records.round_rows(log, 7, 2, SEEDS, COHORT)
  assert [(r["round"], r["seed"], r["loss"], r["accepted"]) for r in rows] == [
      (8, 3, 0.0, 1), (8, 4, 3.0, 1), (9, 3, 1.0, 0), (9, 4, 4.0, 0)]
  assert rows[0]["example_gradients"] == 1.5 and rows[0]["exchanges"] == 2


def counts(*hits):
  """[2 seeds, K models] of ten examples of two classes."""
  confusion = np.zeros((2, len(hits), 2, 2))
  confusion[..., 0, 0] = hits
  confusion[..., 0, 1] = 10 - np.array(hits)
  return metrics.Counts(confusion, np.ones((2, len(hits), 2)))


def test_best_of_k_for_every_protocol_of_models(tmp_path):
  made = records.Records(tmp_path, SEEDS, COHORT, ())
  made.write()
  made.add_rounds(aux(2), 0, 2, 1.0)
  single = metrics.Counts(*(leaf[:, 0] for leaf in counts(5)))
  rows = made.add_metrics({"global": counts(3, 9), "train": counts(6, 2),
                           "local": single})
  found = {r["protocol"]: r["accuracy"] for r in rows if r["seed"] == 3}
  assert found == {"global": 0.9, "global_mean": pytest.approx(0.6),
                   "train": 0.6, "train_mean": pytest.approx(0.4),
                   "local": 0.5}
  one = made.add_metrics({"validation": counts(4)})
  assert [r["protocol"] for r in one] == ["validation"] * 2
  assert rows[0]["total_floats"] == 2 * COHORT * 15
  assert rows[0]["total_example_gradients"] == 12


def test_read_gives_back_what_was_written(tmp_path):
  made = records.Records(tmp_path, SEEDS, COHORT, ("loss",))
  made.write()
  loss = np.array([[0.1, np.nan], [1e-9, 3.0]], np.float32)
  made.add_rounds(aux(2, loss=loss), 0, 2, 1.0)
  made.add_metrics({"global": counts(4)})
  made.add_rounds(aux(2, loss=loss), 2, 2, 3.0)
  again = records.Records(tmp_path, SEEDS, COHORT, ("loss",))
  again.read(2)
  again.write()
  again.add_rounds(aux(2, loss=loss), 2, 2, 3.0)
  assert str(again.tables) == str(made.tables)
  assert again.seconds_per_round() == pytest.approx(0.5)
  text = (tmp_path / "rounds.csv").read_text().splitlines()
  assert text[1] == "1,3,10,5,2,1.5,1.0,0.10000000149011612"
  with pytest.raises(config.UsageError, match="rounds.csv"):
    records.Records(tmp_path, SEEDS, COHORT, ("loss",)).read(5)
