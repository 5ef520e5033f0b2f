"""Sums of all clients, and the main metric at each of them."""

import jax
import numpy as np
import pytest

from fedjax_alg import tasks
from fedjax_alg.tasks import CLASSIFICATION, over_clients


def summarise(counts):
  return tasks.summarise(CLASSIFICATION, counts)


def each_client(hits, total):
  """Sums of clients one by one, two classes of as many examples, [C, 2]."""
  hits, total = (np.stack([a, a], 1).astype(np.float32) for a in (hits, total))
  return {"rows": total, "hits": hits, "predicted": total,
          "loss": np.ones(hits.shape, np.float32)}


def test_clients_count_alike_and_those_without_examples_not():
  """Accuracies .5, 1, 0 and .25 of clients of 2, 6, 0 and 8 examples."""
  each = each_client([.5, 3, 0, 1], [1, 3, 0, 4])
  counts = over_clients(CLASSIFICATION, each)
  at = tasks.at_clients(CLASSIFICATION, counts.clients, 1)
  np.testing.assert_array_equal(at["accuracy"], [.5, 1, np.nan, .25])
  np.testing.assert_array_equal(at["test_examples"], [2, 6, 0, 8])
  np.testing.assert_array_equal(at["loss"], [1, 1 / 3, np.nan, .25])
  values = summarise(counts)
  assert values["client_accuracy"] == pytest.approx(1.75 / 3)
  assert values["worst_decile"] == 0.25
  assert values["accuracy"] == pytest.approx(9 / 16)
  some = summarise(over_clients(
      CLASSIFICATION, each, np.array([True, False, True, False])))
  assert some["client_accuracy"] == some["accuracy"] == 0.5
  np.testing.assert_array_equal(counts.sums["hits"], each["hits"].sum(0))


def test_the_worst_tenth_is_rounded_up():
  """21 clients with examples: three are the worst tenth."""
  hits = np.random.default_rng(0).permutation(np.arange(30))
  total = np.where(hits < 21, 40, 0)
  values = summarise(over_clients(CLASSIFICATION, each_client(
      np.where(total > 0, hits, 0), total)))
  assert values["worst_decile"] == pytest.approx((0 + 1 + 2) / 3 / 40)
  assert values["client_accuracy"] == pytest.approx(10 / 40)


def test_nobody_with_examples_among_several_seeds():
  some = over_clients(CLASSIFICATION, each_client([1, 2], [2, 2]))
  nobody = over_clients(CLASSIFICATION, each_client([0, 0], [0, 0]))
  values = summarise(
      jax.tree.map(lambda a, b: np.stack([a, b]), some, nobody))
  np.testing.assert_array_equal(values["client_accuracy"], [0.75, np.nan])
  np.testing.assert_array_equal(values["worst_decile"], [0.5, np.nan])
