"""Regression: m real numbers for each example."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from fedjax_alg.tasks import task as task_lib
from fedjax_alg.tasks.task import HIGHER, LOWER, Labels, Sums, Task
from fedjax_alg.typing import Array

#: Parts of the range of a target that stand for its labels, with as many
#: training examples in each.
QUANTILES = 10


def squared_error(outputs: Array, y: Array) -> Array:
  """Half the sum over the targets of the squared errors, [B] float32.

  With half, the mean over the examples and (l2/2) ||w||^2 are the objective of
  ridge regression with n l2 as its penalty.
  """
  return 0.5 * jnp.square(outputs - y).sum(-1)


def _sums(
  centre: np.ndarray | float, outputs: Array, y: Array, losses: Array, mask: Array
) -> Sums:
  """Sums [m]; those of the targets are about a center.

  About 0 the variance of targets far from it would be lost in rounding.
  """

  def over_rows(values):
    return jnp.where(mask[:, None], values, jnp.zeros_like(values)).sum(0)

  error, deviation = outputs - y, y - centre
  return {
    "squares": over_rows(jnp.square(error)),
    "absolute": over_rows(jnp.abs(error)),
    "moved": over_rows(deviation),
    "moved_squares": over_rows(jnp.square(deviation)),
  }


def _values(sums: Sums) -> Sums:
  """Errors are means over examples and targets, rmse and r2 the targets' means.

  As in scikit-learn, but r2 of constant targets is no number.
  """
  rows = sums["rows"][..., None]
  mse = sums["squares"] / rows
  values = {"mse": mse.mean(-1), "rmse": (mse**0.5).mean(-1)}
  if "absolute" in sums:  # not of each client
    spread = sums["moved_squares"] - sums["moved"] ** 2 / rows
    # A smaller one is a rounding error: the targets are constant.
    spread = np.where(spread > 1e-6 * sums["moved_squares"], spread, np.nan)
    values["mae"] = (sums["absolute"] / rows).mean(-1)
    values["r2"] = (1.0 - sums["squares"] / spread).mean(-1)
  return values


def _targets(y: np.ndarray) -> np.ndarray:
  task_lib.numbers(y)  # refuses other kinds
  y = task_lib.as_float32(
    task_lib.of_one_number(y, "one number, or the same number of numbers")
  )
  if np.square(y, dtype=np.float64).sum() > np.finfo(np.float32).max:
    raise ValueError(
      f"lies in [{y.min():.3g}, {y.max():.3g}], whose squares "
      "add up to more than float32 holds: give the targets in a "
      "larger unit"
    )
  return y


def _labels(y_train: np.ndarray, y_test: np.ndarray, size: int) -> Labels | None:
  """Labels a single target by the training quantiles between which it lies."""
  if size > 1:
    return None
  edges = np.unique(np.quantile(y_train[:, 0], np.arange(1, QUANTILES) / QUANTILES))
  train, test = (
    np.searchsorted(edges, y[:, 0], side="right").astype(np.int32)
    for y in (y_train, y_test)
  )
  return Labels(train, test, len(edges) + 1)


def _for_data(y_train: np.ndarray) -> Task:
  centre = y_train.mean(0, dtype=np.float64, keepdims=True).astype(np.float32)
  return dataclasses.replace(REGRESSION, sums=lambda *args: _sums(centre, *args))


REGRESSION = Task(
  "regression",
  squared_error,
  lambda *args: _sums(0.0, *args),
  _values,
  {"mse": LOWER, "rmse": LOWER, "mae": LOWER, "r2": HIGHER, "loss": LOWER},
  targets=_targets,
  size=task_lib.num_columns,
  outputs=lambda y, size: (y.shape[0], size),
  labels=_labels,
  pooled=lambda sums: {name: sums[name] for name in ("rows", "loss", "squares")},
  fitted=lambda y, mask, size: jnp.where(mask[:, None], y, jnp.zeros_like(y)),
  for_data=_for_data,
)
