"""Running statistics of models against NumPy, and against each other.

The oracle is a network x -> V -> BatchNorm -> W with the gradient through the
statistics of the batch, written out in NumPy.
"""

from flax import linen as nn, nnx
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.engine.keys import run_keys

SIZES, WIDTH, CLASSES, ROUNDS, RATE = (6, 9, 14), 5, 3, 3, 0.3
DECAY, EPSILON = 0.8, 1e-5
#: The parameters, in the order in which the oracle has them.
PARAMETERS = ("kernel_in", "scale", "bias", "kernel_out")


class Normed(nn.Module):
  """The network as flax.linen has it."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.Dense(WIDTH, use_bias=False, name="first")(x)
    x = nn.BatchNorm(
        not train, momentum=DECAY, epsilon=EPSILON, name="bn")(x)
    return nn.Dense(CLASSES, use_bias=False, name="last")(x)


class NnxNormed(nnx.Module):
  """The network as flax.nnx has it."""

  def __init__(self, rngs):
    self.first = nnx.Linear(4, WIDTH, use_bias=False, rngs=rngs)
    self.bn = nnx.BatchNorm(
        WIDTH, momentum=DECAY, epsilon=EPSILON, rngs=rngs)
    self.last = nnx.Linear(WIDTH, CLASSES, use_bias=False, rngs=rngs)

  def __call__(self, x):
    return self.last(self.bn(self.first(x)))


def flat(tree):
  """Parameters and statistics of a client's model, for the oracle."""
  layers, moving = tree["params"], tree["batch_stats"]["bn"]
  return [np.asarray(leaf, np.float64) for leaf in (
      layers["first"]["kernel"], layers["bn"]["scale"], layers["bn"]["bias"],
      layers["last"]["kernel"])], [
          np.asarray(moving[name], np.float64) for name in ("mean", "var")]


def federation(sizes=SIZES):
  """Clients with four features of unlike means and all their rows for both."""
  rng = np.random.default_rng(3)
  parts = np.repeat(np.arange(len(sizes)), sizes)
  x = (rng.normal(size=(sum(sizes), 4)) + 0.5 * parts[:, None]).astype(
      np.float32)
  y = rng.integers(CLASSES, size=sum(sizes)).astype(np.int32)
  clients = [(x[parts == i], y[parts == i]) for i in range(len(sizes))]
  examples = fa.from_arrays(
      x, y, parts, x_test=x, y_test=y, test_client_ids=parts)
  return fa.federate(examples, partition="natural"), clients


def play(algorithm, held, **options):
  """A run with all clients and full batches, on one device."""
  return fa.run(algorithm, held, **{**dict(
      model=Normed(), rounds=ROUNDS, eval_every=ROUNDS,
      cohort_size=held.num_clients, evaluate="local", batch_size=0,
      local_steps=2, client_lr=RATE, l2=0.0, host_devices=1), **options})


# The oracle.


def forward(w, x, moving=None):
  """Logits, the statistics, and what the gradient needs."""
  V, gamma, beta, W = w
  h = x @ V
  mean, var = moving or (h.mean(0), h.var(0))
  norm = (h - mean) / np.sqrt(var + EPSILON)
  return (gamma * norm + beta) @ W, (mean, var), norm


def slope(w, x, y, moving=None):
  """Gradient of the mean cross entropy, through the batch's statistics."""
  V, gamma, beta, W = w
  logits, (_, var), norm = forward(w, x, moving)
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  p[np.arange(len(y)), y] -= 1
  p /= len(y)
  back = p @ W.T
  of_norm = back * gamma
  if moving is None:
    of_norm = of_norm - of_norm.mean(0) - norm * (of_norm * norm).mean(0)
  of_h = of_norm / np.sqrt(var + EPSILON)
  return [x.T @ of_h, (back * norm).sum(0), back.sum(0),
          (gamma * norm + beta).T @ p]


def moved(moving, seen):
  return [DECAY * old + (1 - DECAY) * new for old, new in zip(moving, seen)]


def local_sgd(w, moving, batches):
  """A participant's steps: its model and its statistics."""
  for x, y in batches:
    seen = forward(w, x)[1]
    w = [a - RATE * g for a, g in zip(w, slope(w, x, y))]
    moving = moved(moving, seen)
  return w, moving


def mean(of, sizes):
  sizes = np.asarray(sizes, float)
  return [sum(s * leaf for s, leaf in zip(sizes, leaves)) / sizes.sum()
          for leaves in zip(*of)]


def start(held, model):
  """The first parameters of a run of seed 0."""
  del held
  key = run_keys(0).model
  if isinstance(model, nn.Module):
    return flat(model.init(key, jnp.zeros((1, 4)), False))
  made = nnx.to_pure_dict(nnx.state(model(nnx.Rngs(key)), nnx.Param))
  return [np.asarray(leaf, np.float64) for leaf in (
      made["first"]["kernel"], made["bn"]["scale"], made["bn"]["bias"],
      made["last"]["kernel"])], [np.zeros(WIDTH), np.ones(WIDTH)]


def fedavg(held, clients, mode):
  """Shared parameters, and the statistics of every client."""
  w, first = start(held, Normed())
  sizes = [len(y) for _, y in clients]
  every = [first] * len(clients)
  for _ in range(ROUNDS):
    found = [local_sgd(w, moving, [pair] * 2)
             for pair, moving in zip(clients, every)]
    w = mean([own for own, _ in found], sizes)
    every = [moving for _, moving in found]
    if mode == "global":
      every = [mean(every, sizes)] * len(clients)
  return w, every


def check(found, w, moving):
  found_w, found_moving = flat(found)
  for a, b in zip([*found_w, *found_moving], [*w, *moving], strict=True):
    np.testing.assert_allclose(a, b, atol=3e-6)


@pytest.mark.fast
@pytest.mark.parametrize("mode", ["global", "local"])
def test_statistics_are_those_of_numpy(mode):
  held, clients = federation()
  result = play("fedavg", held, model_state=mode)
  w, every = fedavg(held, clients, mode)
  for i, moving in enumerate(every):
    check(result.client_params(i), w, moving)
