"""NumPy oracle of FedNova, FedDyn, Ditto and APFL.

Written from the papers, blind to any other implementation: float64, plain loops
over clients and steps.

  FedNova: Wang et al. 2020, arXiv:2007.07481, sections 3 and 4.
  FedDyn: Acar et al. 2021, arXiv:2111.04263, Algorithm 1.
  Ditto: Li et al. 2021, arXiv:2012.04221, Algorithm 1.
  APFL: Deng et al. 2020, arXiv:2003.13461, Algorithm 1.

The model and the local objective are those of diversified.py, whose helpers are
used. The shared arguments of the round functions are those of baselines.py.
"""

from types import SimpleNamespace

import numpy as np

from .diversified import (
  average_weights,
  gradient,
  local_steps,
  server_step,
  sgd,
  weighted_sum,
)

# FedNova.


def accumulation(steps, momentum=0.0, shrink=0.0):
  """a_i, by which the local gradients add up: v - w = -eta G_i a_i.

  shrink is eta mu. Found by running the local steps on unit vectors in the
  place of the gradients.
  """
  buffer, coefficients = np.zeros(steps), np.zeros(steps)
  for k in range(steps):
    buffer = momentum * buffer + np.eye(steps)[k]
    coefficients = coefficients + buffer - shrink * coefficients
  return coefficients


def nova_round(
  w,
  clients,
  ids,
  batches,
  client_lr,
  server_lr=1.0,
  l2=0.0,
  mu=0.0,
  momentum=0.0,
  effective="normaliser",
  weights="examples",
):
  """FedNova: x <- x - server_lr tau_eff sum_i p_i eta d_i.

  local: m <- momentum m + g(v; B),  v <- v - eta (m + mu (v - w));
  d_i = G_i a_i / ||a_i||_1, where G_i has the local gradients as columns;
  tau_eff = sum_i p_i ||a_i||_1 ("normaliser") or sum_i p_i tau_i ("steps").
  """
  shares = average_weights(clients, ids, weights)
  lengths, directions = [], []
  for i in ids:
    gradients, buffers = [], [0.0]

    def direction(g, v, *_):
      gradients.append(g)
      buffers.append(momentum * buffers[-1] + g)
      return buffers[-1] + mu * (v - w)

    local_steps(w, clients[i], batches[i], client_lr, l2, direction)
    a = accumulation(len(gradients), momentum, client_lr * mu)
    directions.append(weighted_sum(a / np.abs(a).sum(), gradients))
    lengths.append(np.abs(a).sum() if effective == "normaliser" else len(a))
  return w - server_lr * (shares @ lengths) * client_lr * weighted_sum(
    shares, directions
  )


# FedDyn.


def dyn_round(
  w, h, table, clients, ids, batches, client_lr, alpha, l2=0.0, weights="uniform"
):
  """FedDyn, Algorithm 1, with SGD on the dynamically regularized objective.

    theta <- theta - client_lr (g(theta; B) - G_k + alpha (theta - w));
    G_k <- G_k - alpha (theta_k - w),  others keep theirs;
    h <- h - alpha (1/m) sum_{k in P} (theta_k - w),  m counts all clients;
    w <- (1/|P|) sum_{k in P} theta_k - h / alpha.

  weights="examples": (1/m) and (1/|P|) are replaced by n_k over the examples of
  all clients, and of the participants.
  """
  table, trained = dict(table), []
  everyone = average_weights(clients, range(len(clients)), weights)
  for k in ids:
    theta = local_steps(
      w,
      clients[k],
      batches[k],
      client_lr,
      l2,
      lambda g, v, *_: g - table[k] + alpha * (v - w),
    )
    table[k] = table[k] - alpha * (theta - w)
    h = h - alpha * everyone[k] * (theta - w)
    trained.append(theta)
  mean = weighted_sum(average_weights(clients, ids, weights), trained)
  return SimpleNamespace(model=mean - h / alpha, h=h, table=table)


# Personal models.


def ditto_round(
  w,
  personal,
  clients,
  ids,
  batches,
  personal_batches,
  client_lr,
  personal_lr,
  lam,
  server_lr=1.0,
  l2=0.0,
  weights="examples",
):
  """Ditto, Algorithm 1, whose global solver is FedAvg.

  w_k <- w_k - client_lr g(w_k; B), from w;
  v_k <- v_k - personal_lr (g(v_k; B') + lam (v_k - w)), from the old v_k, or
  from w if `personal` has none;
  w <- w + server_lr sum_k weights_k (w_k - w).
  """
  trained = [sgd(w, clients[k], batches[k], client_lr, l2) for k in ids]
  personal = dict(personal) | {
    k: local_steps(
      personal.get(k, w),
      clients[k],
      personal_batches[k],
      personal_lr,
      l2,
      lambda g, v, *_: g + lam * (v - w),
    )
    for k in ids
  }
  shares = average_weights(clients, ids, weights)
  return SimpleNamespace(
    trained=trained, model=server_step(w, trained, shares, server_lr), personal=personal
  )


def apfl_round(
  w, mixtures, clients, ids, batches, rate, adaptive, server_lr=1.0, l2=0.0
):
  """APFL, Algorithm 1: the model; ``mixtures``: client -> (v, alpha) is changed."""
  trained = []
  for i in ids:
    (x, y), local, (v, alpha) = clients[i], w, mixtures[i]
    for step, rows in enumerate(batches[i]):
      batch = x[rows], y[rows], l2
      of_mixed = gradient(alpha * v + (1 - alpha) * local, *batch)
      slope = np.sum((v - local) * of_mixed)
      local = local - rate * gradient(local, *batch)
      v = v - rate * alpha * of_mixed
      if adaptive and step == 0:
        alpha = np.clip(alpha - rate * slope, 0.0, 1.0)
    mixtures[i] = v, alpha
    trained.append(local)
  return server_step(w, trained, average_weights(clients, ids, "uniform"), server_lr)
