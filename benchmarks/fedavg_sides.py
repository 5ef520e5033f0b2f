"""The two sides of ``vs_fedjax``: this library and FedJAX.

A side is a function of the flags that returns (measure, facts). ``measure``
plays ``args.rounds`` rounds from a given round on. ``facts`` is printed once.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import timing, workloads
from fedjax_alg import base, data, models
from fedjax_alg.engine import clients, loop, sharding
from fedjax_alg.engine import cohorts as cohorts_lib
from fedjax_alg.runs import methods

COHORT, EPOCHS, BATCH, LEARNING_RATE, SEED = 20, 20, 10, 0.03, 0

Measure = Callable[[int], dict[str, Any]]


def steps_of(size: Any) -> Any:
  """The number of local steps of clients with ``size`` examples."""
  return EPOCHS * -(-size // BATCH)


def cohorts(
    fed: data.Federation, start: int, count: int) -> list[np.ndarray]:
  """Draws the clients of ``count`` rounds, the same for both sides."""
  key = cohorts_lib.run_keys(SEED).cohort
  return [np.asarray(cohorts_lib.sample_cohort(
      fed.data.train, COHORT, jax.random.fold_in(key, start + r)).ids)
      for r in range(count)]


def answer(
    fed: data.Federation, ids: list[np.ndarray], seconds: float,
    kernel: Any, bias: Any) -> dict[str, Any]:
  """Makes the result of a measurement from kernel [784, 10] and bias [10]."""
  size = np.asarray(fed.data.train.size)
  whole = fed.data.whole_test
  total = int(whole.size.sum())
  logits = whole.x[:total] @ np.asarray(kernel) + np.asarray(bias)
  right = logits.argmax(1) == whole.y[:total]
  return {"seconds": seconds, "accuracy": float(right.mean()),
          "steps": sum(int(steps_of(size[chosen]).sum()) for chosen in ids)}


def ours(args: argparse.Namespace) -> tuple[Measure, dict[str, Any]]:
  """Prepares this library, with one device per core."""
  sharding.use_host_cores()
  fed = workloads.powerlaw(args)
  mesh = sharding.clients_mesh()
  model = models.make_model("softmax", fed.example_shape, fed.num_classes)
  method = methods.with_keywords(methods.method_of("fedavg"), {
      "client_lr": LEARNING_RATE, "local_epochs": EPOCHS, "batch_size": BATCH})
  build = method.builder(
      model, clients.make_map_clients("sequential", mesh=mesh))
  numbers = sharding.replicate(method.numbers([method.hparams], 1), mesh)
  train = sharding.replicate(fed.data.train, mesh)
  keys = sharding.replicate(
      jax.tree.map(lambda key: key[None], cohorts_lib.run_keys(SEED)), mesh)
  spec = base.FedSpec(fed.num_clients, COHORT, fed.num_classes,
                      fed.example_shape)
  state = sharding.replicate(
      loop.initial_states(build, model, spec, train, keys, numbers), mesh)
  count = jnp.int32(args.rounds)
  play, seconds = timing.compiled(
      loop.make_run_rounds(build, COHORT, args.rounds, mesh=mesh),
      state, train, keys, numbers, jnp.int32(0), count)

  def measure(start: int) -> dict[str, Any]:
    nonlocal state
    (state, _), taken = timing.timed(
        play, state, train, keys, numbers, jnp.int32(start), count)
    kernel, bias = (state.models["params"][k][0, 0] for k in ("kernel", "bias"))
    ids = cohorts(fed, start, args.rounds)
    return answer(fed, ids, taken, kernel.T, bias)

  return measure, {"data": fed.name, "compile": seconds,
                   "cores": sharding.available_cores(), "jax": jax.__version__}


def fedjax(args: argparse.Namespace) -> tuple[Measure, dict[str, Any]]:
  """Prepares FedJAX, on one device."""
  if not hasattr(jax, "tree_map"):
    setattr(jax, "tree_map", jax.tree.map)
  import fedjax as fj  # pylint: disable=g-import-not-at-top
  from fedjax.algorithms import fed_avg  # pylint: disable=g-import-not-at-top

  class Client(fj.ClientDataset):
    """A client that takes EPOCHS * ceil(n / BATCH) local steps."""

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
      steps = steps_of(len(self))
      return super().shuffle_repeat_batch(
          hparams.replace(num_epochs=None, num_steps=steps), **kwargs)

  fed = workloads.powerlaw(args)
  x, y, offset, size = (np.asarray(leaf) for leaf in fed.data.train[:4])
  held = [Client({"x": x[o:o + n], "y": y[o:o + n]})
          for o, n in zip(offset, size)]

  def logits(params, batch, rng=None):
    del rng
    return batch["x"] @ params["w"] + params["b"]

  def init(rng):
    del rng
    return {"w": jnp.zeros((x.shape[1], fed.num_classes)),
            "b": jnp.zeros(fed.num_classes)}

  model = fj.Model(
      init, logits, logits, lambda batch, out:
      fj.metrics.unreduced_cross_entropy_loss(batch["y"], out), {})
  algorithm = fed_avg.federated_averaging(
      fj.model_grad(model), fj.optimizers.sgd(LEARNING_RATE),
      fj.optimizers.sgd(1.0), fj.ShuffleRepeatBatchHParams(
          batch_size=BATCH, num_epochs=EPOCHS, drop_remainder=False))
  state = algorithm.init(model.init(None))

  def play(state, ids, keys):
    for chosen, round_keys in zip(ids, keys):
      state, _ = algorithm.apply(state, [
          (int(i), held[i], key) for i, key in zip(chosen, round_keys)])
    return state.params, state

  def measure(start: int) -> dict[str, Any]:
    nonlocal state
    ids = cohorts(fed, start, args.rounds)
    keys = [list(jax.random.split(jax.random.PRNGKey(start + r), COHORT))
            for r in range(args.rounds)]
    (params, state), taken = timing.timed(play, state, ids, keys)
    return answer(fed, ids, taken, params["w"], params["b"])

  smallest = [np.array([int(size.argmin())])]
  _, seconds = timing.timed(
      play, algorithm.init(model.init(None)), smallest,
      [[jax.random.PRNGKey(0)]])
  own = float((-(-EPOCHS * size // BATCH)).sum() / steps_of(size).sum())
  return measure, {"compile": seconds, "own_steps": own}


SIDES = {"fedjax_alg": ours, "fedjax": fedjax}
