"""Next tokens: sequences of ids and, at each place, the id that comes next."""

import jax.numpy as jnp
import numpy as np

from fedjax_alg.tasks import task as task_lib
from fedjax_alg.tasks.classification import MAX_CLASSES, cross_entropy
from fedjax_alg.tasks.dense import mean_cross_entropy
from fedjax_alg.tasks.task import HIGHER, LOWER, Sums, Task
from fedjax_alg.typing import Array

PADDING = 0  #: the id that marks padding, which is not counted
#: The target that torch and Hugging Face ignore; it becomes padding.
IGNORED = -100


def _sums(logits: Array, y: Array, losses: Array, mask: Array) -> Sums:
  """Numbers of tokens and of correct ones, and the sum of their losses."""
  valid = ((y != PADDING) & mask[:, None]).reshape(-1)
  flat, labels = logits.reshape(-1, logits.shape[-1]), y.reshape(-1)
  nats = cross_entropy(flat, labels)
  hits = valid & (jnp.argmax(flat, 1) == labels)
  return {
    "tokens": valid.sum().astype(jnp.float32),
    "hits": hits.sum().astype(jnp.float32),
    "nats": jnp.where(valid, nats, jnp.zeros_like(nats)).sum(),
  }


def _values(sums: Sums) -> Sums:
  """Means over tokens, not over sequences; the loss is over sequences."""
  tokens = sums["tokens"]
  return {
    "token_accuracy": sums["hits"] / tokens,
    "perplexity": np.exp(sums["nats"] / tokens),
  }


def _targets(y: np.ndarray) -> np.ndarray:
  if y.dtype.kind == "i":
    y = np.where(y == IGNORED, PADDING, y)
  y = task_lib.whole_numbers(y, 0, MAX_CLASSES - 1)
  if y.ndim != 2 or not y.shape[1]:
    raise ValueError(f"has shape {y.shape}, [n, T] ids of tokens are needed")
  if y.size and not y.any():
    raise ValueError(
      f"is padding ({PADDING}) at all places, a token is needed to predict"
    )
  return y


TOKENS = Task(
  "tokens",
  lambda logits, y: mean_cross_entropy(logits, y, y != PADDING),
  _sums,
  _values,
  {"token_accuracy": HIGHER, "perplexity": LOWER, "loss": LOWER},
  shares=("token_accuracy",),
  targets=_targets,
  size=task_lib.largest,
  outputs=lambda y, size: (*y.shape, size),
  of_tokens=True,
)
