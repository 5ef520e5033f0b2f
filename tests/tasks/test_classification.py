"""Classification: metrics against scikit-learn, with and without a matrix."""

import functools

import chex
from hypothesis import given, strategies as st
import jax
import numpy as np
import pytest
from sklearn import metrics as sk

from fedjax_alg import metrics, tasks
from fedjax_alg.tasks import CLASSIFICATION, cross_entropy

EXAMPLES, CLASSES = 40, 5


@functools.partial(jax.jit, static_argnames="matrix")
def count(logits, y, mask, matrix=False):
  return CLASSIFICATION.of_batch(
      logits, y, cross_entropy(logits, y), mask, matrix)


def summarise(sums):
  return tasks.summarise(CLASSIFICATION, tasks.Counts(sums))


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
  sums = count(logits, y, np.ones(EXAMPLES, bool), matrix=True)
  result = summarise(sums)
  predicted = logits.argmax(1)
  assert tuple(result) == metrics.METRICS
  without = summarise(
      {name: leaf for name, leaf in sums.items() if name != "confusion"})
  for name in result:  # the matrix changes no bit
    np.testing.assert_array_equal(result[name], without[name], err_msg=name)
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
  result = summarise(count(logits, y, np.ones(4, bool)))
  for name, function in (("precision", sk.precision_score),
                         ("recall", sk.recall_score), ("f1", sk.f1_score)):
    np.testing.assert_allclose(
        result[f"macro_{name}"],
        function(y, logits.argmax(1), average="macro", zero_division=0))


def test_counts_of_halves_add_up():
  logits, y = draw(0)
  ones = np.ones(20, bool)
  whole = count(logits, y, np.ones(40, bool))
  halves = jax.tree.map(
      lambda a, b: a + b, count(logits[:20], y[:20], ones),
      count(logits[20:], y[20:], ones))
  for name in ("rows", "hits", "predicted"):
    np.testing.assert_array_equal(whole[name], halves[name])
  np.testing.assert_allclose(whole["loss"], halves["loss"], rtol=1e-5)
  assert whole["rows"].sum() == 40


def test_rows_of_weight_zero_do_not_count_even_with_nan():
  logits, y = draw(1)
  mask = np.arange(EXAMPLES) < 25
  clean = count(logits, y, mask, True)
  logits[25:] = np.nan
  chex.assert_trees_all_equal(clean, count(logits, y, mask, True))
  assert clean["confusion"].sum() == clean["rows"].sum() == 25


def test_leading_axes_and_nothing_counted():
  logits, y = draw(2)
  one = count(logits, y, np.ones(EXAMPLES, bool))
  none = count(logits, y, np.zeros(EXAMPLES, bool))
  both = summarise(jax.tree.map(
      lambda a, b: np.stack([a, b])[:, None], one, none))
  single = summarise(one)
  for name, value in both.items():
    assert value.shape == (2, 1)
    if name in ("client_accuracy", "worst_decile"):  # not of one client
      assert np.isnan(value).all()
      continue
    np.testing.assert_allclose(value[0, 0], single[name])
    assert np.isnan(value[1, 0]), name


@pytest.mark.parametrize("y, rows, columns", [
    (1, [0, 1, 0], [1, 0, 0]), (2, [0, 0, 1], [1, 0, 0])])
def test_rows_are_the_truth_and_ties_go_to_the_lowest_class(y, rows, columns):
  sums = count(np.zeros((1, 3), np.float32), np.array([y], np.int32),
               np.ones(1, bool), matrix=True)
  for found in (sums["rows"], sums["confusion"].sum(1)):
    np.testing.assert_array_equal(found, rows)
  for found in (sums["predicted"], sums["confusion"].sum(0)):
    np.testing.assert_array_equal(found, columns)
  np.testing.assert_allclose(sums["loss"][y], np.log(3), rtol=1e-6)
