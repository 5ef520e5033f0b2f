"""A class for each pixel: metrics against scikit-learn, ignored pixels."""

import jax
import numpy as np
import pytest
from sklearn import metrics as sk

from fedjax_alg import tasks
from fedjax_alg.tasks import dense

RNG = np.random.default_rng(0)
CLASSES = 4


@pytest.mark.parametrize("ignore", [-1, 255])
def test_metrics_are_those_of_scikit_learn(ignore):
  task = dense(ignore)
  y = RNG.integers(0, CLASSES - 1, (6, 5, 4))  # the last class never occurs
  y[RNG.random(y.shape) < 0.2] = ignore
  y[1] = ignore
  logits = RNG.normal(size=(*y.shape, CLASSES)).astype(np.float32)
  logits[:5, ..., 0] += 1
  mask = np.arange(6) < 5
  logits[5] = np.nan
  kept = task.targets(y)
  assert kept.dtype == np.int32 and task.size(kept, kept[:0]) == CLASSES - 1
  losses = task.loss(logits, kept)
  found = tasks.summarise(task, tasks.Counts(jax.jit(task.of_batch)(
      logits, kept, losses, mask)))
  counted = (y != ignore) & mask[:, None, None]
  truth, predicted = y[counted], logits[counted].argmax(-1)
  assert found["pixel_accuracy"] == pytest.approx(
      sk.accuracy_score(truth, predicted))
  assert found["mean_iou"] == pytest.approx(
      sk.jaccard_score(truth, predicted, average="macro"))
  p = np.exp(logits.astype(float))
  p /= p.sum(-1, keepdims=True)
  means = [sk.log_loss(y[i][y[i] != ignore], p[i][y[i] != ignore],
                       labels=range(CLASSES)) for i in (0, 2, 3, 4)]
  np.testing.assert_allclose(found["loss"], sum(means) / 5, rtol=1e-5)
  assert losses[1] == 0


def test_examples_are_dealt_by_the_class_of_most_pixels():
  y = np.array([[0, 0, 1], [2, 2, -1], [-1, -1, -1]])
  labels = dense().labels(y, y[:1], 3)
  assert labels.train.tolist() == [0, 2, 3] and labels.number == 4
  np.testing.assert_array_equal(dense().flipped(y), [
      [2, 2, 1], [0, 0, -1], [-1, -1, -1]])


@pytest.mark.parametrize("y, said", [
    (np.zeros(3, int), "has shape .3,., a label for each pixel"),
    (np.zeros((3, 2)), "is float64, integers"),
    (np.full((3, 2), -2), "lies in .-2, -2., whole numbers from 0")])
def test_targets_are_a_label_for_each_pixel(y, said):
  with pytest.raises(ValueError, match=said):
    dense().targets(y)
