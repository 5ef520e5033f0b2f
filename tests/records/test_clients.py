"""clients.csv and assignment.csv, read by another reader than ours."""

import csv
import json
import math
from typing import Any

import chex
import numpy as np
import pytest

from fedjax_alg.records import clients

pytestmark = pytest.mark.fast

FINAL: dict[str, Any] = {
  "clients": {
    "local": {
      "test_examples": np.array([[4, 0, 3], [4, 0, 3]]),
      "accuracy": np.array([[0.25, np.nan, 1.0], [0.5, np.nan, 0]]),
      "loss": np.array([[1.5, np.nan, 0.1], [1 / 3, np.nan, 9.0]]),
    },
    "assigned": {
      "test_examples": np.array([[4, 0, 0], [0, 0, 3]]),
      "accuracy": np.array([[1.0, np.nan, np.nan], [np.nan, np.nan, 0]]),
      "loss": np.array([[2.0, np.nan, np.nan], [np.nan, np.nan, 4.0]]),
    },
  },
  "train_examples": np.array([30, 8, 12]),
  "membership": np.array([[0, -1, 2], [1, 1, 0]], np.int32),
}


def read(path):
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def _assignment(folder):
  return read(folder / "assignment.csv")


@pytest.mark.parametrize("names", [None, ("ann", "b, c", "007")])
def test_a_row_for_each_seed_protocol_and_client(tmp_path, names):
  called = {} if names is None else {"client_names": json.dumps(names)}
  clients.save_clients(tmp_path, FINAL | called, (3, 5))
  rows = read(tmp_path / "clients.csv")
  assert tuple(rows[0]) == clients.list_columns()
  order = list("012") if names is None else list(names)
  assert [(row["seed"], row["protocol"], row["client"]) for row in rows] == [
    (seed, protocol, client)
    for seed in "35"
    for protocol in ("local", "assigned")
    for client in order
  ]
  assert [(row["client"], int(row["group"])) for row in _assignment(tmp_path)] == [
    pair for groups in FINAL["membership"].tolist() for pair in zip(order, groups)
  ]
  for row in rows:
    client, seed = order.index(row["client"]), (3, 5).index(int(row["seed"]))
    assert int(row["train_examples"]) == FINAL["train_examples"][client]
    for name, values in FINAL["clients"][row["protocol"]].items():
      np.testing.assert_array_equal(float(row[name]), values[seed, client])
    assert (row["test_examples"] == "0") == math.isnan(float(row["loss"]))


@pytest.mark.parametrize("main", ["accuracy", "mse"])
def test_very_many_clients_are_arrays(tmp_path, monkeypatch, main):
  """All numbers return bit for bit, from sums that need little room."""
  rng = np.random.default_rng(0)
  rows = rng.integers(0, 9, (2, 500))
  total = np.where(rows > 0, rows, np.nan)
  losses = (rng.exponential(size=rows.shape) * rows).astype(np.float32)
  final = FINAL | {
    "clients": {
      "local": {
        main: rng.integers(0, rows + 1) / total
        if main == "accuracy"
        else rng.exponential(size=rows.shape) + 0 * total,
        "loss": losses / total,
        "test_examples": rows,
      }
    },
    "train_examples": rng.integers(1, 300, 500),
    "membership": rng.integers(-1, 4, (2, 500)).astype(np.int32),
  }
  clients.save_clients(tmp_path, final, (3, 5))
  assert clients.read_many(tmp_path) == {}
  monkeypatch.setattr(clients, "MOST_IN_TEXT", 499)
  names = [f"client {i}" for i in range(500)]
  final["client_names"] = json.dumps(names)
  clients.save_clients(tmp_path, final, (3, 5))
  assert [path.name for path in tmp_path.iterdir()] == ["clients.npz"]
  arrays = clients.read_many(tmp_path)
  assert arrays.keys() == {"clients", "train_examples", "membership", "client_names"}
  chex.assert_trees_all_equal(arrays, {name: final[name] for name in arrays})
  with np.load(tmp_path / "clients.npz") as stored:
    assert stored["client"].tolist() == names and stored["seed"].tolist() == [3, 5]
    if main == "accuracy":
      assert stored["local_hits"].dtype == np.uint8
    assert stored["group"].dtype == np.int8
  (tmp_path / "clients.npz").write_bytes(b"PK\x03\x04 damaged")
  with pytest.raises(ValueError):
    clients.read_many(tmp_path)
  with open(tmp_path / "clients.npz", "wb") as file:
    np.save(file, np.zeros(3))  # no .npz
  with pytest.raises(ValueError, match="one array"):
    clients.read_many(tmp_path)


def test_tables_of_the_run_before_do_not_stay(tmp_path):
  """Nothing is measured at clients now, and there are no groups."""
  clients.save_clients(tmp_path, FINAL, (3, 5))
  assert len(list(tmp_path.iterdir())) == 2
  nothing = FINAL | {"clients": {}, "membership": None}
  clients.save_clients(tmp_path, nothing, (3, 5))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("most", [1, 3])
def test_kinds_of_clients_are_a_column(tmp_path, monkeypatch, most):
  monkeypatch.setattr(clients, "MOST_IN_TEXT", most)
  kinds = np.array([1, 0, 1], np.int32)
  clients.save_clients(tmp_path, FINAL | {"kinds": kinds}, (3, 5))
  many = clients.read_many(tmp_path)
  if most == 1:
    np.testing.assert_array_equal(many["kinds"], kinds)
  else:
    assert not many
    rows = read(tmp_path / "clients.csv")
    assert [int(row["kind"]) for row in rows] == 4 * [1, 0, 1]
    assert tuple(rows[0]) == clients.list_columns(kinds=True)
