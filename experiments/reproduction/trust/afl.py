"""AFL's invariance: the weights of any partition are those of all the data.

The authors' notebook aggregates the clients' solutions W_k pair by pair, which
needs the inverse of every client's Gram matrix. Here the clients' sums are
added up and solved once (``algorithms.afl``), so a client with fewer examples
than features needs no ridge.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import models, registry
from fedjax_alg.base import FedSpec
from fedjax_alg.data import layout
from fedjax_alg.engine import clients as clients_lib

from ...reports import rule
from .. import answers, pages, report
from . import overview

CLASSES = 10
CLIENTS = (2, 10, 20, 50, 100, 200)


def _make_examples(rows: int, features: int) -> tuple[np.ndarray, np.ndarray]:
  """Gaussian features [rows, features] float32 and random labels [rows]."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(rows, features)).astype(np.float32)
  return x, rng.integers(0, CLASSES, rows).astype(np.int32)


def _joint_weights(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Least squares of all the data by NumPy, [features, L] float64."""
  weights: np.ndarray = np.linalg.lstsq(
    x.astype(np.float64), np.eye(CLASSES)[y], rcond=None
  )[0]
  return weights


def _federated_weights(
  x: np.ndarray, y: np.ndarray, clients: int, ridge: float
) -> np.ndarray:
  """AFL's weights with the clients' ridge removed, [features, L] float64.

  Args:
    x: [n, features] float32.
    y: [n] labels.
    clients: number of clients, which hold equal parts.
    ridge: the ridge of each client.
  """
  features = x.shape[1]
  size = np.array([len(part) for part in np.array_split(y, clients)])
  model = models.Softmax().build((features,), CLASSES)
  algorithm = registry.build(
    "afl",
    model,
    map_clients=clients_lib.ClientMap(),
    client_ridge=ridge,
    remove_ridge=True,
  )
  with jax.enable_x64(True):
    data = jax.tree.map(
      jnp.asarray,
      layout.client_data(x, y, np.arange(len(y)), np.cumsum(size) - size, size),
    )
    params = {
      "params": {
        "kernel": jnp.zeros((CLASSES, features), jnp.float64),
        "bias": jnp.zeros(CLASSES, jnp.float64),
      }
    }
    key, everyone = jax.random.key(0), layout.everyone(data)
    state = algorithm.init(params, FedSpec(clients, clients, CLASSES, (features,)), key)
    state, _ = jax.jit(algorithm.round)(
      algorithm.setup(state, everyone, key), everyone, key
    )
    assert algorithm.global_params is not None
    solution: Any = algorithm.global_params(state)
  kernels: np.ndarray = np.asarray(solution["params"]["kernel"], np.float64)[0].T
  return kernels


def _deviations(
  rows: int, features: int, clients: Sequence[int], ridge: float
) -> list[float]:
  """sum |W - W_joint| for each number of clients."""
  x, y = _make_examples(rows, features)
  joint_weights = _joint_weights(x, y)
  return [
    float(np.abs(_federated_weights(x, y, number, ridge) - joint_weights).sum())
    for number in clients
  ]


def _verdict(gap: float) -> str:
  """The verdict on a deviation, of which less is better."""
  place = rule.place_gap(gap, 0.0)
  return {rule.ABOVE: rule.WORSE, rule.BELOW: rule.BETTER}.get(place, rule.REACHED)


def deviation_table(
  quick: bool,
) -> tuple[list[pages.Block], list[answers.PaperAnswer]]:
  """The Markdown table and its answers; quick: 600 x 48 numbers, beside no claim."""
  rows, features = (600, 48) if quick else (10_000, 512)
  numbers = (2, 200) if quick else CLIENTS
  claims = {(c.panel, c.metric): c for c in report.load_claims("trust", "afl")}
  lines, table_answers = [], []
  for panel, ridge in (("a", 1.0), ("b", 0.0)):
    for number, deviation in zip(numbers, _deviations(rows, features, numbers, ridge)):
      published = None if quick else claims.get((panel, f"deviation_{number}"))
      ours = overview.format_small(deviation, "afl")
      comparison = "-", rule.NO_NUMBER
      if published is not None:
        comparison = (
          overview.format_published("afl", published.printed),
          _verdict(deviation - published.value),
        )
        table_answers.append(
          answers.of_claim(
            "afl",
            published,
            report.NumberAnswer(ours, comparison[1], "", mean=deviation),
            "1",
          )
        )
      lines.append([number, f"{ridge:g}", comparison[0], ours, comparison[1]])
  return [
    f"{rows:,} x {features} Gaussian features, {CLASSES} classes, equal "
    "parts; the sum of all |W - W_joint|, W_joint by NumPy's lstsq. "
    "Below is better.",
    pages.PublishedNumbers(
      [
        pages.Table(
          ["clients", "ridge of a client", "published", "ours", "verdict"], lines
        )
      ]
    ),
  ], table_answers
