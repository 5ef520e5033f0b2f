"""Next tokens: padding does not count, and means are over tokens."""

import jax
import numpy as np
import pytest

from fedjax_alg import tasks
from fedjax_alg.tasks import TOKENS


def test_metrics_are_over_tokens_and_the_loss_over_sequences():
  rng = np.random.default_rng(0)
  y = rng.integers(1, 7, (5, 6), dtype=np.int32)
  y[0, 4:] = y[1, :] = 0  # short, and nothing but padding
  logits = rng.normal(size=(5, 6, 7)).astype(np.float32)
  mask = np.arange(5) < 4
  logits[4] = np.nan
  losses = TOKENS.loss(logits, y)
  found = tasks.summarise(TOKENS, tasks.Counts(jax.jit(TOKENS.of_batch)(
      logits, y, losses, mask)))
  p = np.exp(logits.astype(float))
  p /= p.sum(-1, keepdims=True)
  nats = -np.log(np.take_along_axis(p, y[..., None], -1))[..., 0]
  counted = (y != 0) & mask[:, None]
  assert found["token_accuracy"] == pytest.approx(
      (logits.argmax(-1) == y)[counted].mean())
  assert found["perplexity"] == pytest.approx(
      np.exp(nats[counted].mean()), rel=1e-5)
  by_row = [nats[i][y[i] != 0].mean() if (y[i] != 0).any() else 0.0
            for i in range(4)]
  assert found["loss"] == pytest.approx(np.mean(by_row), rel=1e-5)


def test_targets_are_ids_at_each_place():
  with pytest.raises(ValueError, match=r"has shape \(3,\), \[n, T\] ids"):
    TOKENS.targets(np.zeros(3, int))
  assert TOKENS.labels is None and TOKENS.size(np.array([[3, 8]])) == 9
