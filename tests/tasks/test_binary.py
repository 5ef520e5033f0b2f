"""Metrics of two classes against scikit-learn, on all scores at once."""

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest
from sklearn import metrics as sk

import fedjax_alg as fa
from fedjax_alg import tasks
from fedjax_alg.records import clients as clients_lib
from fedjax_alg.tasks.binary import BINARY, CALIBRATION_BINS, rank_errors

ROWS = 300


@jax.jit
def _count(logits, y, mask):
  return BINARY.of_batch(logits, y, BINARY.loss(logits, y), mask)


def count(logits, y, mask=None):
  mask = np.ones(len(y), bool) if mask is None else mask
  return jax.tree.map(np.asarray, _count(logits, y, mask))


def draw(seed, spread=1.0, shift=0.0, share=0.2):
  """Logits whose margins are ``shift`` +- ``spread``, and rare positive rows."""
  rng = np.random.default_rng(seed)
  y = (rng.random(ROWS) < share).astype(np.int32)
  y[:2] = 0, 1
  margin = shift + spread * (rng.normal(size=ROWS) + y)
  first = rng.normal(size=ROWS)
  return np.stack([first, first + margin], 1).astype(np.float32), y


def margins(logits):
  return logits[:, 1].astype(np.float32) - logits[:, 0]


@given(
  st.integers(0, 10**6),
  st.sampled_from([1e-3, 0.05, 1.0, 30.0]),
  st.sampled_from([0.0, -2.0, 5.0]),
  st.sampled_from([0.02, 0.2, 0.7]),
)
def test_metrics_are_those_of_scikit_learn(seed, spread, shift, share):
  """Ranks within the bound that the histogram itself states; the rest exactly."""
  logits, y = draw(seed, spread, shift, share)
  sums = count(logits, y)
  result = tasks.summarize_counts(BINARY, tasks.Counts(sums))
  scores = margins(logits).astype(np.float64)
  p = 1 / (1 + np.exp(-scores))
  predicted = scores > 0
  errors = rank_errors(np.asarray(sums["histogram"], np.float64))
  for name, expected, most in zip(
    ("auroc", "auprc"),
    (sk.roc_auc_score(y, scores), sk.average_precision_score(y, scores)),
    errors,
  ):
    assert abs(result[name] - expected) <= most + 1e-9, (name, result[name], expected)
  bins = np.minimum((p * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
  ece = sum(
    abs(p[bins == b].mean() - y[bins == b].mean()) * (bins == b).mean()
    for b in np.unique(bins)
  )
  for name, expected in (
    ("f1", sk.f1_score(y, predicted, zero_division=0)),
    ("balanced_accuracy", sk.balanced_accuracy_score(y, predicted)),
    ("accuracy", sk.accuracy_score(y, predicted)),
    ("brier", sk.brier_score_loss(y, p)),
    ("loss", np.logaddexp(0, np.where(y, -scores, scores)).mean()),
    ("ece", ece),
  ):
    np.testing.assert_allclose(
      result[name], expected, rtol=2e-4, atol=2e-5, err_msg=name
    )


@pytest.mark.parametrize(
  "spread, shift, most", [(1.0, 0.0, 1e-3), (0.05, 0.0, 1e-3), (1.0, -2.0, 2e-3)]
)
def test_the_error_of_the_bins_is_small(spread, shift, most):
  """At the start of a run, too, where margins are small; wider bins fail."""
  logits, y = draw(0, spread, shift)
  auroc, auprc = rank_errors(np.asarray(count(logits, y)["histogram"], np.float64))
  assert auroc < most and auprc < 10 * most


def test_one_bin_is_a_coin():
  """Scores that cannot be told apart rank as ties, within the bound."""
  y = np.array([0, 1, 1, 0], np.int32)
  sums = count(np.zeros((4, 2), np.float32), y)
  result = tasks.summarize_counts(BINARY, tasks.Counts(sums))
  assert result["auroc"] == 0.5 and result["auprc"] == 0.5
  assert rank_errors(sums["histogram"])[0] == 0.5


def test_sums_add_up_and_masked_rows_may_be_nan():
  logits, y = draw(1)
  halves = [count(logits[half], y[half]) for half in (slice(0, 150), slice(150, None))]
  chex.assert_trees_all_close(
    count(logits, y), jax.tree.map(np.add, *halves), rtol=1e-4
  )
  mask = np.arange(ROWS) < 200
  few = count(logits[mask], y[mask])
  logits[~mask], y[~mask] = np.nan, 7
  chex.assert_trees_all_close(count(logits, y, mask), few, rtol=1e-5)


def test_each_client_has_what_its_rows_alone_give():
  """Pooled sums are made before clients are forgotten; no positives, no rank."""
  parts = [draw(seed) for seed in range(3)] + [draw(3)]
  parts[3][1][:] = 0
  sums = [count(*part) for part in parts]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *sums)
  counts = tasks.sum_over_clients(BINARY, jax.tree.map(jax.numpy.asarray, stacked))
  of_clients = tasks.per_client_metrics(BINARY, counts.clients, 1)
  result = tasks.summarize_counts(BINARY, counts)
  for name in ("auroc", "auprc", "f1", "brier", "ece", "balanced_accuracy"):
    alone = [tasks.summarize_counts(BINARY, tasks.Counts(s))[name] for s in sums]
    np.testing.assert_allclose(of_clients[name], alone, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(result[f"client_{name}"], np.nanmean(alone), rtol=1e-5)
    worst = np.nanmax(alone) if name in ("brier", "ece") else np.nanmin(alone)
    np.testing.assert_allclose(result[f"worst_decile_{name}"], worst, rtol=1e-5)
  assert np.isnan(of_clients["auroc"][3]) and of_clients["brier"][3] > 0


def test_many_clients_keep_their_metrics_in_an_archive(tmp_path, monkeypatch):
  monkeypatch.setattr(clients_lib, "MOST_IN_TEXT", 1)
  rng = np.random.default_rng(0)
  of = {name: rng.random((1, 3)) for name in ("auroc", "auprc", "ece")}
  of |= {"loss": np.array([[0.5, 0.25, 2]]), "test_examples": np.array([[4, 2, 8]])}
  final = dict(clients={"local": of}, membership=None, train_examples=np.ones(3))
  clients_lib.write_clients(tmp_path, final, (0,))
  chex.assert_trees_all_equal(clients_lib.read_many(tmp_path)["clients"]["local"], of)


@pytest.mark.parametrize(
  "y, message",
  [
    ([0, 1, 2], r"y: lies in \[0, 2\], 0 .negative. and 1 .positive. are needed"),
    (["a", "b", "c"], r"y: lies in \[0, 2\]"),
    (["a", "a", "a"], "task=binary: needs 2 classes, there are 1"),
  ],
)
def test_other_labels_are_refused(y, message):
  with pytest.raises(fa.DataError, match=f"^{message}"):
    fa.from_arrays(np.ones((3, 2)), np.array(y), task="binary")
