"""A method of statistics and a solution alone, that fits no layer."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.client import objective
from fedjax_alg.least_squares.closed_form import (
  AdditiveStatistics,
  ClosedFormStep,
)
from fedjax_alg.rounds.closed_form import make_closed_form

pytestmark = pytest.mark.program
FEATURES, CLASSES, CLIENTS = 5, 3, 6


class ClassSums(NamedTuple):
  """Sums of the inputs of each class, and how many there are."""

  inputs: jax.Array  #: [L, d]
  counts: jax.Array  #: [L]


def add(sums, params, shard):
  del params
  classes = sums.counts.shape[0]

  def add_block(sums, x, y, mask):
    dtype = sums.counts.dtype
    member = jnp.where(mask[:, None], jax.nn.one_hot(y, classes), 0.0).astype(dtype)
    return ClassSums(
      sums.inputs + member.T @ x.astype(dtype), sums.counts + member.sum(0)
    )

  return objective.fold_blocks(shard, add_block, sums, 16)


def put(params, means):
  """The linear model whose largest output is that of the nearest mean."""
  bias = -0.5 * (means * means).sum(1)
  return {
    "params": jax.tree.map(
      lambda old, new: new.astype(old.dtype),
      params["params"],
      {"kernel": means, "bias": bias},
    )
  }


def solve(total, context):
  means = total.inputs / jnp.maximum(total.counts, 1.0)[:, None]
  return put(context.params, means), means


def halve(params, shard, context):
  """A client's part: the group's means beside its own, half each."""
  sums = add(STEP.statistics.zero(CLASSES), params, shard)
  means = sums.inputs / jnp.maximum(sums.counts, 1.0)[:, None]
  group = context.fit.astype(means.dtype)
  return put(params, jnp.where(sums.counts[:, None] > 0, (means + group) / 2, group))


STEP = ClosedFormStep(
  AdditiveStatistics(
    zero=lambda classes: ClassSums(
      jnp.zeros((classes, FEATURES), jnp.float64), jnp.zeros(classes, jnp.float64)
    ),
    add=add,
    number=lambda sums: sums.counts.sum(),
    floats_sent=lambda classes: classes * (FEATURES + 1),
    flops=2.0 * FEATURES,
  ),
  solve,
  empty_fit=lambda classes, dtype: jnp.zeros((classes, FEATURES), dtype),
  floats_down=lambda classes: classes * (FEATURES + 1),
  personal=halve,
)


@dataclasses.dataclass(frozen=True)
class HParams:
  """It has none."""


def nearest_means(model, hparams, *, map_clients):
  """Nearest class means, then with a client's own."""
  del hparams
  return make_closed_form([STEP], map_clients=map_clients)


def test_class_means_are_a_case_of_the_mechanism():
  """The means, what they cost, and a personal part in the round after them."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(90, FEATURES)).astype(np.float32)
  y, owner = np.arange(90) % CLASSES, np.repeat(np.arange(CLIENTS), 15)
  x += y[:, None]
  federation = fa.federate(fa.from_arrays(x, y, owner), partition="natural")
  fit = fa.run(
    nearest_means,
    federation,
    rounds=2,
    cohort_size=CLIENTS,
    eval_every=1,
    evaluate=("local",),
    hparams=HParams(),
  )
  shards = [federation.client(client) for client in range(CLIENTS)]
  x, y = (np.concatenate(part).astype(np.float64) for part in zip(*shards))
  means = np.stack([x[y == label].mean(0) for label in range(CLASSES)])
  kernel = np.asarray(fit.global_params()["params"]["kernel"][0])
  np.testing.assert_allclose(kernel, means, rtol=1e-6)
  cost = fit.history
  for name in ("floats_up", "floats_down"):
    np.testing.assert_array_equal(cost[name][0], [CLASSES * (FEATURES + 1), 0])
  x, y = shards[2]
  own = np.stack([x[y == label].mean(0) for label in range(CLASSES)])
  kernel = fit.client_params(2)["params"]["kernel"]
  np.testing.assert_allclose(kernel, (own + means) / 2, rtol=1e-5)
