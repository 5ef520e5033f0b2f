"""Metrics against scikit-learn."""

from hypothesis import given, strategies as st
import jax
import numpy as np
import pytest
from sklearn import metrics as sk

from fedjax_alg import metrics
from fedjax_alg.models.models import cross_entropy

EXAMPLES, CLASSES = 40, 5


@jax.jit
def count(logits, y, weight):
  return metrics.count(logits, cross_entropy(logits, y), y, weight)


def draw(seed, classes=CLASSES, examples=EXAMPLES):
  """Logits and labels; the last class never occurs with ``classes`` < 5."""
  rng = np.random.default_rng(seed)
  y = rng.integers(classes, size=examples).astype(np.int32)
  logits = rng.normal(size=(examples, CLASSES)).astype(np.float32)
  logits[np.arange(examples), y] += 1
  logits[:, classes:] = -30
  return logits, y


@given(st.integers(0, 10**6), st.integers(2, CLASSES))
def test_metrics_are_those_of_scikit_learn(seed, classes):
  logits, y = draw(seed, classes)
  result = metrics.summarise(count(logits, y, np.ones(EXAMPLES, np.float32)))
  predicted = logits.argmax(1)
  assert set(result) == set(metrics.METRICS)
  np.testing.assert_allclose(
      result["accuracy"], sk.accuracy_score(y, predicted), rtol=1e-6)
  for average in ("macro", "micro"):
    expected = sk.precision_recall_fscore_support(
        y, predicted, average=average, zero_division=0)[:3]
    for name, value in zip(("precision", "recall", "f1"), expected):
      np.testing.assert_allclose(
          result[f"{average}_{name}"], value, rtol=1e-6, err_msg=name)
  p = np.exp(logits.astype(np.float64))
  p /= p.sum(1, keepdims=True)
  np.testing.assert_allclose(
      result["loss"], sk.log_loss(y, p, labels=range(CLASSES)), rtol=1e-5)


def test_a_class_only_predicted_counts_as_scikit_learn_does():
  logits = np.eye(3, dtype=np.float32)[[0, 2, 1, 0]]  # 2 is predicted only
  y = np.array([0, 0, 1, 1], np.int32)
  result = metrics.summarise(count(logits, y, np.ones(4, np.float32)))
  for name, function in (("precision", sk.precision_score),
                         ("recall", sk.recall_score), ("f1", sk.f1_score)):
    np.testing.assert_allclose(
        result[f"macro_{name}"],
        function(y, logits.argmax(1), average="macro", zero_division=0))


def test_rows_of_weight_zero_do_not_count_even_with_nan():
  logits, y = draw(1)
  weight = (np.arange(EXAMPLES) < 25).astype(np.float32)
  clean = count(logits, y, weight)
  logits[25:] = np.nan
  poisoned = count(logits, y, weight)
  np.testing.assert_array_equal(clean.confusion, poisoned.confusion)
  np.testing.assert_array_equal(clean.loss_sum, poisoned.loss_sum)
  assert clean.confusion.sum() == 25


def test_leading_axes_and_nothing_counted():
  logits, y = draw(2)
  one = count(logits, y, np.ones(EXAMPLES, np.float32))
  none = count(logits, y, np.zeros(EXAMPLES, np.float32))
  of_clients = [metrics.over_clients(each_client([hits, 2], [total, total]))
                for hits, total in ((1, 2), (0, 0))]
  for some, nobody in ((one, none), of_clients):
    both = metrics.summarise(jax.tree.map(
        lambda a, b: np.stack([a, b])[:, None], some, nobody))
    single = metrics.summarise(some)
    for name, value in both.items():
      assert value.shape == (2, 1)
      np.testing.assert_allclose(value[0, 0], single[name])
      assert np.isnan(value[1, 0]), name


def each_client(hits, total):
  """Counts of clients one by one, two classes, leaves [C, ...]."""
  confusion = np.zeros((len(hits), 2, 2), np.float32)
  confusion[:, 0, 0], confusion[:, 0, 1] = hits, np.subtract(total, hits)
  confusion[:, 1] = confusion[:, 0, ::-1]  # as many of the other class
  return metrics.Counts(confusion, np.ones((len(hits), 2), np.float32))


def test_clients_count_alike_and_those_without_examples_not():
  """Accuracies .5, 1, 0 and .25 of clients of 2, 6, 0 and 8 examples."""
  each = each_client([.5, 3, 0, 1], [1, 3, 0, 4])
  counts = metrics.over_clients(each)
  np.testing.assert_array_equal(counts.hits, [1, 6, 0, 2])
  np.testing.assert_array_equal(counts.total, [2, 6, 0, 8])
  np.testing.assert_array_equal(counts.losses, [2, 2, 2, 2])
  values = metrics.summarise(counts)
  assert values["client_accuracy"] == pytest.approx(1.75 / 3)
  assert values["worst_decile"] == 0.25
  assert values["accuracy"] == pytest.approx(9 / 16)
  some = metrics.summarise(metrics.over_clients(
      each, np.array([True, False, True, False])))
  assert some["client_accuracy"] == some["accuracy"] == 0.5
  np.testing.assert_array_equal(counts.confusion, each.confusion.sum(0))


def test_the_worst_tenth_is_rounded_up():
  """21 clients with examples: three are the worst tenth."""
  hits = np.random.default_rng(0).permutation(np.arange(30))
  total = np.where(hits < 21, 40, 0)
  values = metrics.summarise(metrics.over_clients(
      each_client(np.where(total > 0, hits, 0), total)))
  assert values["worst_decile"] == pytest.approx((0 + 1 + 2) / 3 / 40)
  assert values["client_accuracy"] == pytest.approx(10 / 40)


@pytest.mark.parametrize("y, rows, columns", [
    (1, [0, 1, 0], [1, 0, 0]), (2, [0, 0, 1], [1, 0, 0])])
def test_rows_are_the_truth_and_ties_go_to_the_lowest_class(y, rows, columns):
  counts = count(np.zeros((1, 3), np.float32), np.array([y], np.int32),
                 np.ones(1, np.float32))
  np.testing.assert_array_equal(counts.confusion.sum(1), rows)
  np.testing.assert_array_equal(counts.confusion.sum(0), columns)
  np.testing.assert_allclose(counts.loss_sum[y], np.log(3), rtol=1e-6)
