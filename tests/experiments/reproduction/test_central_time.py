"""Tests of experiments/reproduction/central_time.py."""

import jax
import numpy as np

from experiments.reproduction import central_time, pages


def test_what_is_timed_is_the_servers_round():
  """Vectors around K far points: each model becomes the mean of its own."""
  k, slots = 3, 12
  server, model, central = central_time._server(k, False)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  rng = np.random.default_rng(0)
  state = jax.tree.map(
    lambda leaf: np.float32(rng.normal(size=(k, *leaf.shape))), shapes
  )
  member = np.arange(slots) % k
  vectors = jax.tree.map(
    lambda leaf: (
      3 * leaf[member] + np.float32(0.1 * rng.normal(size=(slots, *leaf.shape[1:])))
    ),
    state,
  )
  nothing = jax.tree.map(
    lambda leaf: np.zeros((slots, k, *leaf.shape), np.float32), shapes
  )
  start = jax.jit(jax.vmap(central.init))(state)
  models, _ = server(state, start, vectors, nothing)
  for got, group_vectors in zip(jax.tree.leaves(models), jax.tree.leaves(vectors)):
    want = np.stack([np.asarray(group_vectors)[member == i].mean(0) for i in range(k)])
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_table_and_answers(monkeypatch):
  monkeypatch.setattr(central_time, "_MACHINES", 40)
  monkeypatch.setattr(central_time, "_FEATURES", 6)
  monkeypatch.setattr(central_time, "_MODELS", (2,))
  monkeypatch.setattr(central_time, "_RATES", (10, 40))
  blocks, records = central_time.table1(True)
  rows = [
    line.split(" | ")
    for line in pages.format_blocks(blocks).splitlines()
    if line.startswith("| MA-FSVRG | 2") or line.startswith("| GA")
  ]
  assert [row[2] for row in rows] == ["10.14 (1.0)", "10.66 (1.0)"]
  assert all(row[3].endswith("(1.0)") for row in rows)
  assert [(a.method, a.metric) for a in records] == [
    ("MA-FSVRG", "central_time_ratio"),
    ("GA-FSVRG", "central_time_ratio"),
  ]
