"""A federation whose clients train and are tested on all their rows."""

import numpy as np

import fedjax_alg as fa
from tests import shared_programs

SIZES, CLASSES, ROUNDS = (6, 9, 14), 3, 3


def federation(sizes=SIZES, shift=0.0):
  """It, with four features of unlike means, and its clients (x, y)."""
  rng = np.random.default_rng(3)
  parts = np.repeat(np.arange(len(sizes)), sizes)
  x = (rng.normal(size=(sum(sizes), 4)) + shift * parts[:, None]).astype(np.float32)
  y = rng.integers(CLASSES, size=sum(sizes)).astype(np.int32)
  clients = [(x[parts == i], y[parts == i]) for i in range(len(sizes))]
  examples = fa.from_arrays(x, y, parts, x_test=x, y_test=y, test_client_ids=parts)
  return fa.federate(examples, partition="natural"), clients


def play(algorithm, fed, run=shared_programs.outcome, **options):
  """All clients and full batches; a whole run with ``fa.run``."""
  return run(
    algorithm,
    fed,
    **{
      **dict(
        rounds=ROUNDS,
        eval_every=ROUNDS,
        evaluate="local",
        cohort_size=fed.num_clients,
        batch_size=0,
        local_steps=2,
        client_lr=0.3,
      ),
      **options,
    },
  )


def residual(logits, y):
  """The gradient of the mean cross entropy by the logits, float64."""
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  return (p - np.eye(CLASSES)[y]) / len(y)


def mean(of, clients):
  """The mean of lists of arrays, by the clients' examples."""
  sizes = [len(y) for _, y in clients]
  return [np.average(leaves, axis=0, weights=sizes) for leaves in zip(*of)]
