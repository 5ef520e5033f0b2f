"""NumPy oracle of FedEM and FedSoft, written before any other implementation.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal, "Federated Multi-Task
Learning under a Mixture of Distributions", NeurIPS 2021.
Y. Ruan, C. Joe-Wong, "FedSoft: Soft Clustered Federated Learning with Proximal
Local Updating", AAAI 2022.

float64, plain loops over clients, examples, components and steps. A model is an
array [D + 1, L], as in ``diversified``.
"""

from types import SimpleNamespace

import numpy as np
from scipy import special

from tests.reference.diversified import average_weights, gradient, with_ones


def example_losses(w, x, y):
  """The cross entropy of each example, [n]."""
  log_p = special.log_softmax(with_ones(x) @ w, axis=1)
  return -log_p[np.arange(len(y)), y]


# FedEM.


def responsibilities(components, weights, x, y):
  """The E-step: q [n, M] in proportion to pi_m exp(-loss of component m)."""
  q = np.zeros((len(y), len(components)))
  for i in range(len(y)):
    for m, w in enumerate(components):
      (loss,) = example_losses(w, x[i : i + 1], y[i : i + 1])
      q[i, m] = weights[m] * np.exp(-loss)
    q[i] /= q[i].sum()
  return q


def weighted_gradient(w, x, y, share, l2):
  """Of the mean of the losses times ``share`` [n], and of the regularizer."""
  total = np.zeros_like(w)
  for i in range(len(y)):
    total += share[i] * gradient(w, x[i : i + 1], y[i : i + 1], 0.0)
  return total / len(y) + l2 * w


def fedem_round(
  components, weights, clients, ids, batches, rate, l2=0.0, by="examples"
):
  """A round: the components; ``weights``: client -> pi [M] is changed."""
  trained = []
  for i in ids:
    x, y = clients[i]
    q = responsibilities(components, weights[i], x, y)
    weights[i] = q.mean(0)
    local = [w.copy() for w in components]
    for rows in batches[i]:
      for m, w in enumerate(local):
        local[m] = w - rate * weighted_gradient(w, x[rows], y[rows], q[rows, m], l2)
    trained.append(local)
  share = average_weights(clients, ids, by)
  return [
    sum(p * local[m] for p, local in zip(share, trained))
    for m in range(len(components))
  ]


def mixed_log_probabilities(components, weights, x):
  """The logarithms of sum_m pi_m softmax(x w_m), [n, L]."""
  return np.log(
    sum(
      p * special.softmax(with_ones(x) @ w, axis=1) for p, w in zip(weights, components)
    )
  )


# FedSoft.


def importance(centers, x, y, sigma):
  """u [S]: the share of the examples that each center serves best, or sigma."""
  counts = np.zeros(len(centers))
  for i in range(len(y)):
    losses = [example_losses(c, x[i : i + 1], y[i : i + 1])[0] for c in centers]
    counts[int(np.argmin(losses))] += 1
  return np.maximum(counts / len(y), sigma)


def fedsoft_round(
  centers, u, starts, clients, ids, batches, rate, lam, l2=0.0, by="examples"
):
  """A round of the participants: their personal models and the new centers.

  c_s are the centers, u[i] the importance weights [S] of client i, starts[i]
  where its personal model starts.
  """
  trained = {}
  for i in ids:
    (x, y), w = clients[i], starts[i].copy()
    for rows in batches[i]:
      pull = sum(u[i][s] * (w - c) for s, c in enumerate(centers))
      w = w - rate * (gradient(w, x[rows], y[rows], l2) + lam * pull)
    trained[i] = w
  new = []
  for s, c in enumerate(centers):
    share = np.array([u[i][s] for i in ids]) * average_weights(clients, ids, by)
    if share.sum() == 0:
      new.append(c)
      continue
    new.append(sum(p * trained[i] for p, i in zip(share / share.sum(), ids)))
  return SimpleNamespace(trained=trained, centers=new)
