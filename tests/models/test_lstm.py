"""The LSTM: size, what padding does, its equations against NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.client import objective
from fedjax_alg.data import layout
from fedjax_alg.engine import evaluate
from fedjax_alg.models import lstm
from tests import problems
from tests.models.test_layers import some_params
from tests.models.test_models import count

TOKENS, LENGTH = 12, 5


def sentences(*rows):
  """Words padded on the right, [B, T] int32."""
  out = np.zeros((len(rows), LENGTH), np.int32)
  for row, words in zip(out, rows):
    row[: len(words)] = words
  return jnp.asarray(out)


@pytest.mark.program
def test_number_of_parameters():
  assert (
    count(models.LSTM().build((25,), 2))
    == 243_861
    == (4 * (300 + 100 + 1) * 100 + 4 * (100 + 100 + 1) * 100 + 3030 + 31)
  )
  learned = models.LSTM(embedding="learned").build((25,), 2, tokens=502)
  assert count(learned) == 243_861 + 502 * 300
  characters = models.LSTM(embedding="learned").build((80,), 81, tokens=82)
  assert (
    count(characters)
    == 818_145
    == (82 * 8 + 4 * (8 + 256 + 1) * 256 + 4 * (256 + 256 + 1) * 256 + (256 + 1) * 81)
  )
  small = models.LSTM((7,), embedding="frozen", embedding_size=5).build(
    (80,), 81, tokens=82
  )
  assert count(small) == 4 * (5 + 7 + 1) * 7 + (7 + 1) * 81


def sigmoid(z):
  return 1 / (1 + np.exp(-z))


def by_hand(params, vectors, two=True):
  """The logits of one example of n words, [n, D] -> [L]."""
  for name in sorted(name for name in params if name.startswith("lstm")):
    kernel, bias = params[name]["kernel"], params[name]["bias"]
    state = cell = np.zeros(kernel.shape[1] // 4)
    out = []
    for vector in vectors:
      i, j, f, o = np.split(np.r_[vector, state] @ kernel + bias, 4)
      cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j)
      state = sigmoid(o) * np.tanh(cell)
      out.append(state)
    vectors = out
  last = vectors[-1] if vectors else np.zeros(4)
  dense = sorted(name for name in params if name.startswith("Dense"))
  for name in dense:
    last = last @ params[name]["kernel"] + params[name]["bias"]
    if name != dense[-1]:
      last = np.maximum(last, 0)
  return np.r_[0.0, last] if two else last


ROWS = [[3, 1, 4, 1, 5], [3, 1, 4], [3], [0, 3, 0, 4], []]


@pytest.mark.program
@pytest.mark.parametrize(
  "options, rows",
  [
    ({}, ROWS),
    (dict(embedding="learned", widths=(5, 3, 4), hidden=0, num_classes=7), ROWS[:2]),
  ],
)
def test_equations_and_padding(options, rows):
  """Also of more classes and other widths."""
  module = lstm.LSTMModule(
    TOKENS, **dict(embedding="frozen", dim=6, widths=(4, 4), hidden=3) | options
  )
  model = models.from_flax(module, (LENGTH,), input_dtype=jnp.int32)
  params = some_params(model)
  got = problems.quick_jit(model.apply)(params, sentences(*rows))
  inner = jax.tree.map(lambda a: np.asarray(a, np.float64), params["params"])
  table = inner.get(
    "embedding",
    np.asarray(
      jax.jit(lambda ids: lstm.frozen_embedding(ids, 6))(
        np.arange(TOKENS, dtype=np.int32)
      )
    ),
  )
  want = [
    by_hand(inner, [table[word] for word in row if word], not options) for row in rows
  ]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
  assert len(np.unique(np.round(np.asarray(got)[:, 1], 4))) == len(rows)


def test_frozen_vectors():
  words = np.arange(100, dtype=np.int32)
  tokens = jnp.asarray(np.stack([words, words[::-1]]))
  vectors = np.asarray(
    problems.quick_jit(lambda tokens: lstm.frozen_embedding(tokens, 300))(tokens)
  )
  assert vectors.shape == (2, 100, 300) and vectors.dtype == np.float32
  # A word has its vector wherever it stands.
  np.testing.assert_array_equal(vectors[1, ::-1], vectors[0])
  assert abs(vectors[0].mean()) < 0.02 and abs(vectors[0].var() - 1) < 0.02
  # Different words are nearly orthogonal.
  products = vectors[0] @ vectors[0].T / 300
  assert np.abs(products - np.diag(np.diag(products))).max() < 0.35


@pytest.mark.program
def test_next_tokens_of_a_sequence_are_the_windows_of_its_beginnings():
  """At each place the loss, its gradient and the hits of a window before it."""
  rng, classes = np.random.default_rng(0), 9
  text = rng.integers(1, classes, (4, LENGTH + 1))
  per_token, last = (
    models.LSTM((4,), embedding="learned", embedding_size=3).build(
      (LENGTH,), classes, tokens=classes, task=task
    )
    for task in ("tokens", "classification")
  )
  windows = np.stack(
    [
      np.pad(row[:end], (LENGTH - end, 0))
      for row in text
      for end in range(1, LENGTH + 1)
    ]
  )
  shards = [
    layout.shard_of(problems.client_data([(x, y)]), 0)
    for x, y in ((text[:, :-1], text[:, 1:]), (windows, text[:, 1:].reshape(-1)))
  ]
  params = some_params(per_token)
  results = [
    jax.jit(
      lambda params, shard, model=model: (
        objective.full_value_and_grad(model, params, shard),
        evaluate.count_shard(model, params, shard)[0],
      )
    )(params, shard)
    for model, shard in zip((per_token, last), shards)
  ]
  (ours, sums), (theirs, window_sums) = results
  chex.assert_trees_all_close(ours, theirs, rtol=1e-5, atol=1e-6)
  assert sums["tokens"] == window_sums["rows"].sum() == 4 * LENGTH
  assert sums["hits"] == window_sums["hits"].sum()
  np.testing.assert_allclose(sums["nats"], window_sums["loss"].sum(), rtol=1e-5)
