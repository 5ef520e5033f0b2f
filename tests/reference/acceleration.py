"""Server steps and local steps of 2021 to 2026 as loops over arrays, in float64.

Written from the papers: FedExP (Jhunjhunwala et al. 2023, Algorithm 1), FedACG
(Kim et al. 2024, Algorithm 1), FedCM (Xu et al. 2021, Algorithm 2), SCAFFOLD-M
(Cheng et al. 2024), FedSAM (Qu et al. 2022), FedLESAM (Fan et al. 2024), ProxSkip
/ Scaffnew (Mishchenko et al. 2022, Algorithm 2), FedADMM (Gong et al. 2022),
FedMuon (Takezawa et al. 2026, Algorithm 1; Newton-Schulz by Jordan et al. 2024).
Arguments are those of ``tests.reference.diversified``; all means are uniform.
"""

from types import SimpleNamespace

import numpy as np

from tests.reference.diversified import gradient, local_steps


def train(w, clients, ids, batches, rate, l2, direction):
  """The trained models of the participants; direction(i, g, v, x_B, y_B)."""
  return [
    local_steps(
      w, clients[i], batches[i], rate, l2, lambda *args, i=i: direction(i, *args)
    )
    for i in ids
  ]


def fedexp_rate(updates, epsilon):
  """eta_g of the updates of one round."""
  mean = np.mean(updates, axis=0)
  squares = [np.sum(update**2) for update in updates]
  return max(1.0, sum(squares) / (2 * len(updates) * (np.sum(mean**2) + epsilon)))


def fedexp_momentum_step(updates, epsilon, beta, v, q):
  """eta_g, v and q after a round with momentum, as main.py of the authors means it."""
  v = np.mean(updates, axis=0) + beta * v
  q = np.mean([np.sum(update**2) for update in updates]) + beta * 0.5 * q
  return 0.5 * q / (np.sum(v**2) + epsilon), v, q


def fedacg_round(w, m, clients, ids, batches, rate, lam, beta, l2=0.0):
  """w, m after a round: clients start at w + lam m."""
  z = w + lam * m
  trained = train(
    z, clients, ids, batches, rate, l2, lambda i, g, v, *_: g + beta * (v - z)
  )
  m = lam * m + np.mean([v - z for v in trained], axis=0)
  return np.mean(trained, axis=0), m


def momentum_round(
  w, m, clients, ids, batches, rate, alpha, server_lr=1.0, l2=0.0, shifts=None
):
  """FedCM; with shifts {i: c - c_i} SCAFFOLD-M. All take equal numbers of steps.

  Returns:
    The model, m, and the mean of the raw local gradients of each participant.
  """
  raw = {i: [] for i in ids}

  def direction(i, g, v, *_):
    raw[i].append(g)
    return alpha * (g + (shifts[i] if shifts else 0.0)) + (1 - alpha) * m

  trained = train(w, clients, ids, batches, rate, l2, direction)
  mean = np.mean([v - w for v in trained], axis=0)
  (steps,) = {len(batches[i]) for i in ids}
  return SimpleNamespace(
    model=w + server_lr * mean,
    m=-mean / (rate * steps),
    gradients={i: np.mean(raw[i], axis=0) for i in ids},
  )


def perturbed_training(w, clients, ids, batches, rate, rho, l2=0.0, received=None):
  """FedSAM; with received {i: the model that i received last} FedLESAM."""

  def direction(i, g, v, x, y):
    ascent = g if received is None else received[i] - w
    norm = np.linalg.norm(ascent)
    if norm == 0:
      return g
    return gradient(v + rho * ascent / norm, x, y, l2)

  return train(w, clients, ids, batches, rate, l2, direction)


def proxskip_steps(models, h, gradients, gamma, p, coins):
  """Algorithm 2, step by step: models and h_i of all clients after each step."""
  for communicates in coins:
    hats = [v - gamma * (g(v) - h_i) for v, g, h_i in zip(models, gradients, h)]
    models = hats
    if communicates:
      shifted = [hat - gamma / p * h_i for hat, h_i in zip(hats, h)]
      models = [np.mean(shifted, axis=0)] * len(hats)
    h = [h_i + p / gamma * (v - hat) for h_i, v, hat in zip(h, models, hats)]
    yield models, h


def proxskip(x, gradients, gamma, p, coins):
  """Algorithm 2 with the coins of all steps.

  Args:
    x: [P], the start of all clients.
    gradients: for each client v -> its gradient.
    gamma: step size.
    p: probability of a communication.
    coins: a bool for each step, whether it is followed by a communication.

  Returns:
    The mean of the clients' models after each communication.
  """
  starts = [x] * len(gradients), [np.zeros_like(x) for _ in gradients]
  steps = proxskip_steps(*starts, gradients, gamma, p, coins)
  return [models[0] for (models, _), coin in zip(steps, coins) if coin]


def fedadmm_round(w, rows, clients, ids, batches, rate, rho, eta=1.0, l2=0.0):
  """w and rows {i: (w_i, y_i)} after a round; training starts from w.

  ``eta`` is the paper's over |S| / C.
  """
  rows, changes = dict(rows), []
  for i in ids:
    old_w, y = rows[i]
    v = local_steps(
      w, clients[i], batches[i], rate, l2, lambda g, v, *_: g + y + rho * (v - w)
    )
    new_y = y + rho * (v - w)
    changes.append((v + new_y / rho) - (old_w + y / rho))
    rows[i] = v, new_y
  return w + eta * np.sum(changes, axis=0) / len(rows), rows


def newton_schulz(matrix, steps, coefficients=(3.4445, -4.7750, 2.0315)):
  """G^(T): a G + b (G G') G + c (G G')^2 G, T times, from G / ||G||_F.

  It goes to U V' of the SVD U S V'; T = 0 is the direction of G.
  """
  a, b, c = coefficients
  g = matrix / np.linalg.norm(matrix)
  for _ in range(steps):
    square = g @ g.T
    g = a * g + b * square @ g + c * square @ square @ g
  return g


def fedmuon_round(
  w, c, rows, clients, ids, batches, rate, alpha, steps, server_lr=1.0, l2=0.0
):
  """w, c and rows {i: c_i} after a round of N = len(rows) clients.

  A client's momentum goes on from the last round in which it took part, whose
  end is its c_i. The bias, the last row of w, is a vector.
  """
  moments, trained = {}, []
  for i in ids:
    m, (x, y), v = rows[i], clients[i], w
    for batch in batches[i]:
      m = (1 - alpha) * m + alpha * gradient(v, x[batch], y[batch], l2)
      d = m - rows[i] + c
      lmo = np.vstack([newton_schulz(d[:-1], steps), d[-1] / np.linalg.norm(d[-1])])
      v = v - rate * lmo
    moments[i] = m
    trained.append(v)
  c = c + sum(moments[i] - rows[i] for i in ids) / len(rows)
  w = w + server_lr * (np.mean(trained, axis=0) - w)
  return w, c, rows | moments
