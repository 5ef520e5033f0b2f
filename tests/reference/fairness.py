"""NumPy oracle of q-FedAvg and of agnostic federated learning.

Written from the papers, blind to any other implementation: float64, plain
loops.

  q-FedAvg: Li, Sanjabi, Beirami, Smith, ICLR 2020, Algorithm 2.
  Agnostic FL: Mohri, Sivek, Suresh, ICML 2019, Algorithm 1, with FedAvg's local
  steps in the place of a gradient, clients as domains, and the game of a round among
  its participants.

Models, clients, ids and batches are those of diversified.py.
"""

import numpy as np

from . import diversified as oracle


def q_fedavg_round(w, clients, ids, batches, lr, q, l2=0.0):
  """w - sum Delta_k / sum h_k with L = 1 / lr; p_k = n_k weighs both sums.

  Delta w_k = L (w - w_k),  Delta_k = F_k^q Delta w_k,
  h_k = q F_k^(q - 1) ||Delta w_k||^2 + L F_k^q.
  """
  top, bottom = 0.0, 0.0
  for i in ids:
    loss, size = oracle.loss(w, *clients[i], l2=l2), len(clients[i][1])
    delta_w = (w - oracle.sgd(w, clients[i], batches[i], lr, l2)) / lr
    top = top + size * loss**q * delta_w
    bottom += size * (q * loss ** (q - 1) * np.sum(delta_w**2) + loss**q / lr)
  return w - top / bottom


def simplex(vector):
  """The nearest point of the simplex: max(v - t, 0), t by bisection."""
  low, high = vector.min() - 1.0, vector.max()
  for _ in range(200):
    middle = (low + high) / 2
    if np.maximum(vector - middle, 0.0).sum() > 1.0:
      low = middle
    else:
      high = middle
  return np.maximum(vector - (low + high) / 2, 0.0)


def agnostic_round(w, lam, clients, ids, batches, lr, rate, l2=0.0):
  """The mean of the updates weighted by lambda, and the new lambda [C].

  The participants play among themselves: they keep the sum of their lambda.
  """
  lam, ids = np.array(lam, np.float64), list(ids)
  share = lam[ids].sum()
  weights = lam[ids] / share
  trained = [oracle.sgd(w, clients[i], batches[i], lr, l2) for i in ids]
  losses = [oracle.loss(w, *clients[i], l2=l2) for i in ids]
  lam[ids] = share * simplex(weights + rate * np.array(losses))
  return oracle.server_step(w, trained, weights), lam
