"""NumPy oracle of q-FedAvg and of agnostic federated learning.

Written from the papers, blind to any other implementation: float64, plain
loops.

  q-FedAvg: Li, Sanjabi, Beirami, Smith, ICLR 2020, Algorithm 2.
  Agnostic FL: Mohri, Sivek, Suresh, ICML 2019, Algorithm 1, with FedAvg's local
  steps in the place of a gradient and clients as domains.

Models, clients, ids and batches are those of diversified.py.
"""

import numpy as np

from . import diversified as oracle


def _trained(w, clients, ids, batches, lr, l2):
  """(models w_k, losses F_k(w)) of the participants."""
  trained, losses = [], []
  for i in ids:
    x, y = clients[i]
    v = oracle.as_model(w)
    for rows in batches[i]:
      v = oracle.add(v, oracle.batch_gradient(v, x, y, rows, l2), -lr)
    trained.append(v)
    losses.append(oracle.loss(w, x, y, l2))
  return trained, losses


def q_fedavg_round(w, clients, ids, batches, lr, q, l2=0.):
  """w - sum Delta_k / sum h_k with L = 1 / lr; p_k = n_k weighs both sums.

    Delta w_k = L (w - w_k),  Delta_k = F_k^q Delta w_k,
    h_k = q F_k^(q - 1) ||Delta w_k||^2 + L F_k^q.
  """
  trained, losses = _trained(w, clients, ids, batches, lr, l2)
  top, bottom, big_l = oracle.zeros_like(w), 0., 1. / lr
  for i, v, loss in zip(ids, trained, losses):
    size = len(clients[i][1])
    delta_w = oracle.add(oracle.zeros_like(w), oracle.add(w, v, -1.), big_l)
    top = oracle.add(top, delta_w, size * loss ** q)
    square = (oracle.to_vector(delta_w) ** 2).sum()
    bottom += size * (q * loss ** (q - 1) * square + big_l * loss ** q)
  return oracle.add(w, top, -1. / bottom)


def simplex(vector):
  """The nearest point of the simplex: max(v - t, 0), t by bisection."""
  low, high = vector.min() - 1., vector.max()
  for _ in range(200):
    middle = (low + high) / 2
    if np.maximum(vector - middle, 0.).sum() > 1.:
      low = middle
    else:
      high = middle
  return np.maximum(vector - (low + high) / 2, 0.)


def agnostic_round(w, lam, clients, ids, batches, lr, rate, l2=0.):
  """The mean of the updates weighted by lambda, and the new lambda [C]."""
  trained, losses = _trained(w, clients, ids, batches, lr, l2)
  weights = np.array([lam[i] for i in ids])
  moves = [oracle.add(v, w, -1.) for v in trained]
  model = oracle.add(w, oracle.weighted_sum(weights / weights.sum(), moves))
  lam = np.array(lam, np.float64)
  for i, loss in zip(ids, losses):
    lam[i] += rate * loss
  return model, simplex(lam)
