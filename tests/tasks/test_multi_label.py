"""Several labels for each example: metrics against scikit-learn."""

import jax
import numpy as np
import pytest
from sklearn import metrics as sk

from fedjax_alg import tasks
from fedjax_alg.tasks import MULTI_LABEL

RNG = np.random.default_rng(0)
Y = (RNG.random((60, 5)) < [0.7, 0.4, 0.2, 0.1, 0.0]).astype(np.int32)
LOGITS = (2 * Y - 1 + 1.5 * RNG.normal(size=Y.shape)).astype(np.float32)
LOGITS[:, 4] = -5  # a label that nobody has and that is never predicted


def sums(logits, y, mask):
  return jax.jit(MULTI_LABEL.of_batch)(
      logits, y, MULTI_LABEL.loss(logits, y), mask)


def test_metrics_are_those_of_scikit_learn():
  mask = np.arange(60) < 50
  counts = sums(np.where(mask[:, None], LOGITS, np.nan), Y, mask)
  found = tasks.summarise(MULTI_LABEL, tasks.Counts(counts))
  truth, logits = Y[mask], LOGITS[mask].astype(float)
  for average in ("micro", "macro"):
    assert found[f"{average}_f1"] == pytest.approx(sk.f1_score(
        truth, logits > 0, average=average, zero_division=0))
  assert found["subset_accuracy"] == pytest.approx(
      sk.accuracy_score(truth, logits > 0))
  p = 1 / (1 + np.exp(-logits))
  assert found["loss"] == pytest.approx(
      -np.log(np.where(truth, p, 1 - p)).mean(), rel=1e-5)


def test_each_client_has_its_micro_f1():
  masks = [np.arange(60) < 20, np.arange(60) >= 45]
  each = [sums(LOGITS, Y, mask) for mask in masks]
  counts = tasks.over_clients(
      MULTI_LABEL, jax.tree.map(lambda *leaves: np.stack(leaves), *each))
  assert max(leaf.size for leaf in counts.clients.values()) == 2
  expected = [sk.f1_score(Y[mask], LOGITS[mask] > 0, average="micro")
              for mask in masks]
  np.testing.assert_allclose(tasks.at_clients(
      MULTI_LABEL, counts.clients, 1)["micro_f1"], expected)


def test_examples_are_dealt_by_their_most_frequent_label():
  y = np.array([[1, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
  labels = MULTI_LABEL.labels(y, y[3:], 3)
  assert labels.train.tolist() == [1, 1, 1, 2, 3] and labels.number == 4
  assert labels.test.tolist() == [2, 3]


@pytest.mark.parametrize("y, said", [
    (np.array([[0, 2]]), "lies in .0, 2., whole numbers from 0 to 1"),
    (np.array([[0.5, 1]]), "is float64, integers"),
    (np.array([0, 1]), "has shape .2,., a column of 0 and 1 for each label")])
def test_targets_are_columns_of_zeros_and_ones(y, said):
  with pytest.raises(ValueError, match=said):
    MULTI_LABEL.targets(y)
  for kind in (bool, float, np.uint8):
    assert MULTI_LABEL.targets(Y.astype(kind)).dtype == np.int32
