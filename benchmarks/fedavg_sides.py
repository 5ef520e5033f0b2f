"""The two sides of ``vs_fedjax``: this library and FedJAX.

A side is a function of the flags that returns (measure, facts). ``measure``
runs ``args.rounds`` rounds from a given round on. ``facts`` is printed once.
"""

import argparse
from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import rounds, timing, workloads
from experiments.reproduction.trust import against_fedjax
from fedjax_alg import data, models
from fedjax_alg.engine import sharding
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.records import summary

COHORT, EPOCHS, BATCH, LEARNING_RATE, SEED = 20, 20, 10, 0.03, 0
#: model -> features of MNIST
MODELS = {"softmax": "flatten", "cnn": "none"}
#: examples of which the accuracy is computed at once
_BLOCK = 1000

Measure = Callable[[int], dict[str, Any]]


def steps_of(size: Any) -> Any:
  """The number of local steps of clients with ``size`` examples."""
  return EPOCHS * -(-size // BATCH)


def cohorts(fed: data.Federation, start: int, count: int) -> list[np.ndarray]:
  """Draws the clients of ``count`` rounds, the same for both sides."""
  key = run_keys(SEED).cohort
  return [
    np.asarray(
      sample_cohort(fed.data.train, COHORT, jax.random.fold_in(key, start + r)).ids
    )
    for r in range(count)
  ]


def answer(
  fed: data.Federation,
  ids: list[np.ndarray],
  seconds: float,
  logits: Callable[[Any], object],
) -> dict[str, Any]:
  """Makes the result of a measurement; ``logits`` is the model trained."""
  size = np.asarray(fed.data.train.size)
  test_set = fed.data.whole_test
  x, y = (
    np.asarray(leaf[: int(test_set.size.sum())]) for leaf in (test_set.x, test_set.y)
  )
  right = sum(
    int(
      (np.asarray(logits(x[at : at + _BLOCK])).argmax(1) == y[at : at + _BLOCK]).sum()
    )
    for at in range(0, len(y), _BLOCK)
  )
  return {
    "seconds": seconds,
    "accuracy": right / len(y),
    "steps": sum(int(steps_of(size[cohort]).sum()) for cohort in ids),
  }


def ours(args: argparse.Namespace) -> tuple[Measure, dict[str, Any]]:
  """Prepares this library, with one device per core, or on accelerators."""
  sharding.use_host_cores()
  fed = workloads.powerlaw(args, MODELS[args.model])
  run = rounds.Rounds(
    fed,
    "fedavg",
    {"client_lr": LEARNING_RATE, "local_epochs": EPOCHS, "batch_size": BATCH},
    COHORT,
    SEED,
    args.rounds,
    args.model,
  )

  def measure(start: int) -> dict[str, Any]:
    seconds = run.time_rounds(start)
    trained = jax.tree.map(lambda leaf: leaf[0, 0], run.state.models)
    ids = cohorts(fed, start, args.rounds)
    return answer(fed, ids, seconds, functools.partial(apply, trained))

  apply = jax.jit(run.model.apply)
  return measure, {
    "data": fed.name,
    "compile": run.compile_s,
    "clients": run.mode,
    "devices": summary.device(),
    "jax": jax.__version__,
  }


def fedjax(args: argparse.Namespace) -> tuple[Measure, dict[str, Any]]:
  """Prepares FedJAX, on one device."""
  fj = against_fedjax.import_fedjax()
  base: Any = fj.ClientDataset

  class Client(base):
    """A client that takes EPOCHS * ceil(n / BATCH) local steps."""

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
      steps = steps_of(len(self))
      return super().shuffle_repeat_batch(
        hparams.replace(num_epochs=None, num_steps=steps), **kwargs
      )

  fed = workloads.powerlaw(args, MODELS[args.model])
  x, y, offset, size = (np.asarray(leaf) for leaf in fed.data.train[:4])
  datasets = [
    Client({"x": x[o : o + n], "y": y[o : o + n]}) for o, n in zip(offset, size)
  ]

  if args.model == "softmax":  # the layout that is faster for it

    def logits(params, batch, rng=None):
      del rng
      return batch["x"] @ params["w"] + params["b"]

    def init(rng):
      del rng
      return {
        "w": jnp.zeros((x.shape[1], fed.num_classes)),
        "b": jnp.zeros(fed.num_classes),
      }
  else:
    module = models.as_model(args.model, fed.example_shape, fed.num_classes)

    def logits(params, batch, rng=None):
      del rng
      return module.apply(params, batch["x"])

    def init(rng):
      return module.init(rng)

  model = fj.Model(
    init,
    logits,
    logits,
    lambda batch, out: fj.metrics.unreduced_cross_entropy_loss(batch["y"], out),
    {},
  )
  algorithm = fj.algorithms.fed_avg.federated_averaging(
    fj.model_grad(model),
    fj.optimizers.sgd(LEARNING_RATE),
    fj.optimizers.sgd(1.0),
    fj.ShuffleRepeatBatchHParams(
      batch_size=BATCH, num_epochs=EPOCHS, drop_remainder=False
    ),
  )
  first = model.init(run_keys(SEED).model)
  state = algorithm.init(first)

  def run_rounds(state, ids, keys):
    for cohort, round_keys in zip(ids, keys):
      state, _ = algorithm.apply(
        state, [(int(i), datasets[i], key) for i, key in zip(cohort, round_keys)]
      )
    return state.params, state

  def measure(start: int) -> dict[str, Any]:
    nonlocal state
    ids = cohorts(fed, start, args.rounds)
    keys = [
      list(jax.random.split(jax.random.PRNGKey(start + r), COHORT))
      for r in range(args.rounds)
    ]
    (params, state), elapsed = timing.time_call(run_rounds, state, ids, keys)
    return answer(fed, ids, elapsed, lambda rows: apply(params, {"x": rows}))

  apply = jax.jit(logits)
  smallest = [np.array([int(size.argmin())])]
  _, seconds = timing.time_call(
    run_rounds, algorithm.init(first), smallest, [[jax.random.PRNGKey(0)]]
  )
  own_steps = float((-(-EPOCHS * size // BATCH)).sum() / steps_of(size).sum())
  return measure, {"compile": seconds, "own_steps": own_steps}


SIDES = {"fedjax_alg": ours, "fedjax": fedjax}
