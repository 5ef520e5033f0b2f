"""Metrics of every task against scikit-learn, of all examples and clients."""

import functools

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest
from sklearn import metrics as sk

from fedjax_alg import metrics, tasks
from fedjax_alg.tasks.classification import CLASSIFICATION
from fedjax_alg.tasks.counts import sum_over_clients
from fedjax_alg.tasks.dense import dense
from fedjax_alg.tasks.multi_label import MULTI_LABEL
from fedjax_alg.tasks.regression import REGRESSION
from fedjax_alg.tasks.tokens import TOKENS

EXAMPLES, CLASSES = 40, 5
RNG = np.random.default_rng(0)
#: Labels of examples, the last of which nobody has and is never predicted.
LABELS = (RNG.random((60, 5)) < [0.7, 0.4, 0.2, 0.1, 0.0]).astype(np.int32)
OF_LABELS = (2 * LABELS - 1 + 1.5 * RNG.normal(size=LABELS.shape)).astype(np.float32)
OF_LABELS[:, 4] = -5


@functools.partial(jax.jit, static_argnums=(0, 4))
def _count_batch(task, outputs, y, mask, matrix):
  extra = (matrix,) if task is CLASSIFICATION else ()
  return task.of_batch(outputs, y, task.loss(outputs, y), mask, *extra)


def count(task, outputs, y, mask, matrix=False):
  return _count_batch(task, outputs, y, np.asarray(mask), matrix)


def summarise(task, sums):
  return tasks.summarize_counts(task, tasks.Counts(sums))


def shares(logits):
  """Softmax in double precision."""
  p = np.exp(logits.astype(np.float64))
  return p / p.sum(-1, keepdims=True)


def draw(seed, classes=CLASSES, examples=EXAMPLES):
  """Logits and labels; the last class never occurs with ``classes`` < 5."""
  rng = np.random.default_rng(seed)
  y = rng.integers(classes, size=examples).astype(np.int32)
  logits = rng.normal(size=(examples, CLASSES)).astype(np.float32)
  logits[np.arange(examples), y] += 1
  logits[:, classes:] = -30
  return logits, y


@given(st.integers(0, 10**6), st.integers(2, CLASSES))
def test_classes(seed, classes):
  logits, y = draw(seed, classes)
  sums = count(CLASSIFICATION, logits, y, np.ones(EXAMPLES, bool), True)
  result = summarise(CLASSIFICATION, sums)
  predicted = logits.argmax(1)
  assert tuple(result) == metrics.METRICS
  without = summarise(
    CLASSIFICATION, {name: leaf for name, leaf in sums.items() if name != "confusion"}
  )
  for name in result:  # the matrix changes no bit
    np.testing.assert_array_equal(result[name], without[name], err_msg=name)
  np.testing.assert_allclose(
    result["accuracy"], sk.accuracy_score(y, predicted), rtol=1e-6
  )
  for average in ("macro", "micro"):
    expected = sk.precision_recall_fscore_support(
      y, predicted, average=average, zero_division=0
    )[:3]
    for name, value in zip(("precision", "recall", "f1"), expected):
      np.testing.assert_allclose(
        result[f"{average}_{name}"], value, rtol=1e-6, err_msg=name
      )
  np.testing.assert_allclose(
    result["loss"], sk.log_loss(y, shares(logits), labels=range(CLASSES)), rtol=1e-5
  )


def test_a_class_only_predicted_counts_as_scikit_learn_does():
  logits = np.eye(3, dtype=np.float32)[[0, 2, 1, 0]]  # 2 is predicted only
  y = np.array([0, 0, 1, 1], np.int32)
  result = summarise(CLASSIFICATION, count(CLASSIFICATION, logits, y, np.ones(4, bool)))
  expected = sk.precision_recall_fscore_support(
    y, logits.argmax(1), average="macro", zero_division=0
  )[:3]
  np.testing.assert_allclose(
    [result[f"macro_{name}"] for name in ("precision", "recall", "f1")], expected
  )


def test_products_of_counts_are_not_rounded():
  """A TPU, or a GPU with TF32, would round the losses."""
  logits, y = draw(0)
  mask = np.ones(EXAMPLES, bool)
  text = str(
    jax.make_jaxpr(lambda *rows: _count_batch(CLASSIFICATION, *rows, True))(
      logits, y, mask
    )
  )
  highest = "precision=(Precision.HIGHEST, Precision.HIGHEST)"
  assert text.count("dot_general[") == text.count(highest) == 2


def test_counts_of_halves_add_up_and_nan_rows_of_weight_zero_do_not_count():
  logits, y = draw(1)
  mask = np.arange(EXAMPLES) < 25
  total = count(CLASSIFICATION, logits, y, mask, True)
  halves = jax.tree.map(
    lambda a, b: a + b,
    *(
      count(CLASSIFICATION, logits[part], y[part], mask[part], True)
      for part in (slice(20), slice(20, None))
    ),
  )
  chex.assert_trees_all_close(total, halves, rtol=1e-5)
  assert total["confusion"].sum() == total["rows"].sum() == 25
  logits[25:] = np.nan
  chex.assert_trees_all_equal(total, count(CLASSIFICATION, logits, y, mask, True))


def test_leading_axes_and_nothing_counted():
  full, none = (
    count(CLASSIFICATION, *draw(2), mask=np.full(EXAMPLES, all_of))
    for all_of in (True, False)
  )
  both = summarise(
    CLASSIFICATION, jax.tree.map(lambda a, b: np.stack([a, b])[:, None], full, none)
  )
  single = summarise(CLASSIFICATION, full)
  for name, value in both.items():
    assert value.shape == (2, 1)
    if name in ("client_accuracy", "worst_decile"):  # not of one client
      assert np.isnan(value).all()
      continue
    np.testing.assert_allclose(value[0, 0], single[name])
    assert np.isnan(value[1, 0]), name


@pytest.mark.parametrize(
  "y, rows, columns", [(1, [0, 1, 0], [1, 0, 0]), (2, [0, 0, 1], [1, 0, 0])]
)
def test_rows_are_the_truth_and_ties_go_to_the_lowest_class(y, rows, columns):
  sums = count(
    CLASSIFICATION,
    np.zeros((1, 3), np.float32),
    np.array([y], np.int32),
    np.ones(1, bool),
    True,
  )
  for counts in (sums["rows"], sums["confusion"].sum(1)):
    np.testing.assert_array_equal(counts, rows)
  for counts in (sums["predicted"], sums["confusion"].sum(0)):
    np.testing.assert_array_equal(counts, columns)
  np.testing.assert_allclose(sums["loss"][y], np.log(3), rtol=1e-6)


def each_client(hits, total):
  """Sums of clients one by one, two classes of as many examples, [C, 2]."""
  hits, total = (np.stack([a, a], 1).astype(np.float32) for a in (hits, total))
  return {
    "rows": total,
    "hits": hits,
    "predicted": total,
    "loss": np.ones(hits.shape, np.float32),
  }


def test_clients_count_alike_and_those_without_examples_not():
  """Accuracies .5, 1, 0 and .25 of clients of 2, 6, 0 and 8 examples."""
  by_client = each_client([0.5, 3, 0, 1], [1, 3, 0, 4])
  counts = sum_over_clients(CLASSIFICATION, by_client)
  at = tasks.per_client_metrics(CLASSIFICATION, counts.clients, 1)
  np.testing.assert_array_equal(at["accuracy"], [0.5, 1, np.nan, 0.25])
  np.testing.assert_array_equal(at["test_examples"], [2, 6, 0, 8])
  np.testing.assert_array_equal(at["loss"], [1, 1 / 3, np.nan, 0.25])
  values = tasks.summarize_counts(CLASSIFICATION, counts)
  assert values["client_accuracy"] == pytest.approx(1.75 / 3)
  assert values["worst_decile"] == 0.25
  assert values["accuracy"] == pytest.approx(9 / 16)
  some = tasks.summarize_counts(
    CLASSIFICATION,
    sum_over_clients(CLASSIFICATION, by_client, np.array([True, False, True, False])),
  )
  assert some["client_accuracy"] == some["accuracy"] == 0.5
  np.testing.assert_array_equal(counts.sums["hits"], by_client["hits"].sum(0))


def test_the_worst_tenth_is_rounded_up():
  """21 clients with examples: three are the worst tenth."""
  hits = np.random.default_rng(0).permutation(np.arange(30))
  total = np.where(hits < 21, 40, 0)
  values = tasks.summarize_counts(
    CLASSIFICATION,
    sum_over_clients(CLASSIFICATION, each_client(np.where(total > 0, hits, 0), total)),
  )
  assert values["worst_decile"] == pytest.approx((0 + 1 + 2) / 3 / 40)
  assert values["client_accuracy"] == pytest.approx(10 / 40)


def test_nobody_with_examples_among_several_seeds():
  some, nobody = (
    sum_over_clients(CLASSIFICATION, each_client(*arguments))
    for arguments in (([1, 2], [2, 2]), ([0, 0], [0, 0]))
  )
  values = tasks.summarize_counts(
    CLASSIFICATION, jax.tree.map(lambda a, b: np.stack([a, b]), some, nobody)
  )
  np.testing.assert_array_equal(values["client_accuracy"], [0.75, np.nan])
  np.testing.assert_array_equal(values["worst_decile"], [0.5, np.nan])


@pytest.mark.parametrize("ignore", [-1, 255])
def test_a_class_for_each_pixel(ignore):
  task = dense(ignore)
  y = RNG.integers(0, 3, (6, 5, 4))  # the last of four classes never occurs
  y[RNG.random(y.shape) < 0.2] = ignore
  y[1] = ignore
  logits = RNG.normal(size=(*y.shape, 4)).astype(np.float32)
  logits[:5, ..., 0] += 1
  mask = np.arange(6) < 5
  logits[5] = np.nan
  targets = task.targets(y)
  assert targets.dtype == np.int32 and task.size(targets, targets[:0]) == 3
  metrics = summarise(task, count(task, logits, targets, mask))
  valid = (y != ignore) & mask[:, None, None]
  truth, predicted = y[valid], logits[valid].argmax(-1)
  assert metrics["pixel_accuracy"] == pytest.approx(sk.accuracy_score(truth, predicted))
  assert metrics["mean_iou"] == pytest.approx(
    sk.jaccard_score(truth, predicted, average="macro")
  )
  p = shares(logits)
  means = [
    sk.log_loss(y[i][y[i] != ignore], p[i][y[i] != ignore], labels=range(4))
    for i in (0, 2, 3, 4)
  ]
  np.testing.assert_allclose(metrics["loss"], sum(means) / 5, rtol=1e-5)
  assert jax.jit(task.loss)(logits, targets)[1] == 0


def test_several_labels():
  mask = np.arange(60) < 50
  metrics = summarise(
    MULTI_LABEL,
    count(MULTI_LABEL, np.where(mask[:, None], OF_LABELS, np.nan), LABELS, mask),
  )
  truth, logits = LABELS[mask], OF_LABELS[mask].astype(float)
  for average in ("micro", "macro"):
    assert metrics[f"{average}_f1"] == pytest.approx(
      sk.f1_score(truth, logits > 0, average=average, zero_division=0)
    )
  assert metrics["subset_accuracy"] == pytest.approx(
    sk.accuracy_score(truth, logits > 0)
  )
  p = 1 / (1 + np.exp(-logits))
  assert metrics["loss"] == pytest.approx(
    -np.log(np.where(truth, p, 1 - p)).mean(), rel=1e-5
  )


def of_clients(task, *clients):
  """The counts of clients, of which each has its outputs, y and mask."""
  return sum_over_clients(
    task,
    jax.tree.map(
      lambda *leaves: np.stack(leaves), *(count(task, *client) for client in clients)
    ),
  )


def test_each_client_has_its_micro_f1():
  masks = [np.arange(60) < 20, np.arange(60) >= 45]
  counts = of_clients(MULTI_LABEL, *((OF_LABELS, LABELS, mask) for mask in masks))
  assert max(leaf.size for leaf in counts.clients.values()) == 2
  np.testing.assert_allclose(
    tasks.per_client_metrics(MULTI_LABEL, counts.clients, 1)["micro_f1"],
    [sk.f1_score(LABELS[mask], OF_LABELS[mask] > 0, average="micro") for mask in masks],
  )


@pytest.mark.parametrize("centre", [0.0, 2000.0])
@pytest.mark.parametrize("targets", [1, 3])
def test_numbers(centre, targets):
  """In blocks with rows of NaN; about 0 an r2 of such targets would be lost."""
  rng = np.random.default_rng(targets)
  y = (centre + rng.normal(size=(96, targets))).astype(np.float32)
  outputs = (y + 0.5 * rng.normal(size=y.shape)).astype(np.float32)
  task = REGRESSION.for_data(y)
  mask = np.arange(96) % 32 < 25
  poisoned = np.where(mask[:, None], outputs, np.nan)
  metrics = summarise(
    task,
    jax.tree.map(
      lambda *leaves: sum(leaves),
      *(
        count(task, poisoned[i : i + 32], y[i : i + 32], mask[i : i + 32])
        for i in (0, 32, 64)
      ),
    ),
  )
  truth, predicted = y[mask].astype(float), outputs[mask].astype(float)
  for name, expected in (
    ("mse", sk.mean_squared_error(truth, predicted)),
    ("rmse", sk.root_mean_squared_error(truth, predicted)),
    ("mae", sk.mean_absolute_error(truth, predicted)),
    ("r2", sk.r2_score(truth, predicted)),
    ("loss", 0.5 * np.square(truth - predicted).sum(1).mean()),
  ):
    np.testing.assert_allclose(metrics[name], expected, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("y", [[0.0] * 7, [3.3] * 7, [3.3], [0.0]])
def test_r2_of_constant_targets_is_no_number(y):
  """It was -inf, or above 1 by a spread that is a rounding error."""
  y = np.array(y, np.float32)[:, None]
  sums = count(REGRESSION, y + 1, y, np.ones(len(y), bool))
  metrics = summarise(REGRESSION, sums)
  assert np.isnan(metrics["r2"]) and metrics["mse"] == pytest.approx(1)


def test_each_client_has_its_error():
  y = np.array([[0.0], [1], [2]], np.float32)
  counts = of_clients(
    REGRESSION,
    *(
      (y + off, y, rows)
      for off, rows in ((1, [True, True, False]), (3, [True] * 3), (0, [False] * 3))
    ),
  )
  metrics = tasks.summarize_counts(REGRESSION, counts)
  assert (metrics["client_mse"], metrics["worst_decile_mse"]) == (5, 9)
  np.testing.assert_allclose(metrics["mse"], (2 * 1 + 3 * 9) / 5)
  at = tasks.per_client_metrics(REGRESSION, counts.clients, 1)
  np.testing.assert_array_equal(at["mse"], [1, 9, np.nan])
  np.testing.assert_array_equal(at["test_examples"], [2, 3, 0])


def test_means_are_over_tokens_and_the_loss_over_sequences():
  rng = np.random.default_rng(0)
  y = rng.integers(1, 7, (5, 6), dtype=np.int32)
  y[0, 4:] = y[1, :] = 0  # short, and nothing but padding
  logits = rng.normal(size=(5, 6, 7)).astype(np.float32)
  mask = np.arange(5) < 4
  logits[4] = np.nan
  metrics = summarise(TOKENS, count(TOKENS, logits, y, mask))
  nats = -np.log(np.take_along_axis(shares(logits), y[..., None], -1))[..., 0]
  valid = (y != 0) & mask[:, None]
  assert metrics["token_accuracy"] == pytest.approx(
    (logits.argmax(-1) == y)[valid].mean()
  )
  assert metrics["perplexity"] == pytest.approx(np.exp(nats[valid].mean()), rel=1e-5)
  by_row = [nats[i][y[i] != 0].mean() if (y[i] != 0).any() else 0.0 for i in range(4)]
  assert metrics["loss"] == pytest.approx(np.mean(by_row), rel=1e-5)
