"""Metrics of two classes against scikit-learn, on all scores at once."""

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest
from scipy import special
from sklearn import metrics as sk

import fedjax_alg as fa
from fedjax_alg import tasks
from fedjax_alg.records import clients as clients_lib
from fedjax_alg.tasks.binary import BINARY, CALIBRATION_BINS

ROWS = 300


@jax.jit
def _count(logits, y, mask):
  return BINARY.of_batch(logits, y, BINARY.loss(logits, y), mask)


def count(logits, y, mask=None):
  mask = np.ones(len(y), bool) if mask is None else mask
  return jax.tree.map(np.asarray, _count(logits, y, mask))


def on_host(logits, y, size=None, client=None, **leaves):
  """Counts on the host of rows in turns (``ExampleScores``), by default in one."""
  size = np.array([len(y)]) if size is None else size
  scores = {
    name: np.asarray(leaf).reshape(len(size), -1)
    for name, leaf in BINARY.scores(logits, y).items()
  }
  counts = tasks.Counts(examples=tasks.ExampleScores(scores, size, client), **leaves)
  return tasks.counts_on_host(BINARY, {"local": counts})["local"]


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
  st.sampled_from([1e-6, 1e-3, 0.05, 1.0, 30.0, 1e5]),
  st.sampled_from([0.0, -2.0, 5.0, 98.0, 1e5]),
  st.sampled_from([0.02, 0.2, 0.7]),
  st.sampled_from([None, 1, 0, -2]),
)
def test_metrics_are_those_of_scikit_learn(seed, spread, shift, share, decimals):
  """Of margins of every size, with ties. Bins of the margin, or p, would fail."""
  logits, y = draw(seed, spread, shift, share)
  if decimals is not None:
    logits = np.round(logits, decimals)
  result = tasks.summarize_counts(BINARY, on_host(logits, y, sums=count(logits, y)))
  scores = margins(logits)
  for name, expected in (
    ("auroc", sk.roc_auc_score(y, scores)),
    ("auprc", sk.average_precision_score(y, scores)),
  ):
    np.testing.assert_allclose(result[name], expected, atol=1e-9, err_msg=name)
  scores = scores.astype(np.float64)
  p, predicted = special.expit(scores), scores > 0
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
    # A p on the border of two bins may fall into the other one in float32.
    atol = 2 / ROWS if name == "ece" and decimals is not None else 2e-5
    np.testing.assert_allclose(
      result[name], expected, rtol=2e-4, atol=atol, err_msg=name
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_group_is_ranked_by_itself(dtype):
  """Groups in any order, of mixed scales; one empty, and ties across groups."""
  rng = np.random.default_rng(0)
  group = rng.choice([0, 1, 2, 4, 300], ROWS)
  margin = (10.0 ** (group % 5)) * rng.integers(-3, 3, ROWS).astype(dtype)
  positive = rng.random(ROWS) < 0.3
  ranks = BINARY.ranks({"margin": margin, "positive": positive}, group, 301)
  for number in range(301):
    y, scores = positive[group == number], margin[group == number]
    wins = sk.roc_auc_score(y, scores) * y.sum() * (~y).sum() if len(y) else 0
    np.testing.assert_allclose(ranks["pairs_won"][number], wins, rtol=1e-12)
    precision = sk.average_precision_score(y, scores) * y.sum() if len(y) else 0
    np.testing.assert_allclose(ranks["precision_sum"][number], precision, rtol=1e-12)


def test_scores_that_are_no_numbers_have_no_rank():
  """A model that diverged is no good one: NaN would sort behind all numbers."""
  margin = np.array([0.0, np.nan, 2, 1, -np.inf, np.inf])
  scores = {"margin": margin, "positive": np.array([0, 1, 1, 0, 0, 1], bool)}
  ranks = BINARY.ranks(scores, np.array([0, 0, 1, 1, 1, 1]), 2)
  assert np.isnan(ranks["pairs_won"][0]) and np.isnan(ranks["precision_sum"][0])
  assert ranks["pairs_won"][1] == 4 and ranks["precision_sum"][1] == 2


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
  """Pooled ranks are of all scores together; no positives, no rank."""
  parts = [draw(seed) for seed in range(3)] + [draw(3)]
  parts[3][1][:] = 0
  sums = [count(*part) for part in parts]
  stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *sums)
  every = tuple(map(np.concatenate, zip(*parts)))
  counts = on_host(
    *every,
    size=np.full(4, ROWS),
    client=np.arange(4),
    sums={name: leaf.sum(0) for name, leaf in stacked.items()},
    clients=stacked,
  )
  of_clients = tasks.per_client_metrics(BINARY, counts.clients, 1)
  result = tasks.summarize_counts(BINARY, counts)
  together = tasks.summarize_counts(BINARY, on_host(*every, sums=count(*every)))
  for name in ("auroc", "auprc", "f1", "brier", "ece", "balanced_accuracy"):
    alone = [
      tasks.summarize_counts(BINARY, on_host(*part, sums=of))[name]
      for part, of in zip(parts, sums)
    ]
    np.testing.assert_allclose(of_clients[name], alone, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(result[name], together[name], rtol=1e-5, err_msg=name)
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
  clients_lib.save_clients(tmp_path, final, (0,))
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
