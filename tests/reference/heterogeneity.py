"""NumPy oracle of FedNova, FedDyn and Ditto.

Written from the papers, blind to any other implementation: float64, plain loops
over clients and steps.

  FedNova: Wang et al. 2020, arXiv:2007.07481, sections 3 and 4.
  FedDyn: Acar et al. 2021, arXiv:2111.04263, Algorithm 1.
  Ditto: Li et al. 2021, arXiv:2012.04221, Algorithm 1.

The model and the local objective are those of diversified.py, whose helpers are
used. The shared arguments of the round functions are those of baselines.py.
"""

from typing import NamedTuple

import numpy as np

from . import diversified as oracle
from .baselines import average_weights, copy_table, server_step


class NovaRound(NamedTuple):
  """One round of FedNova."""
  trained: list
  accumulation: list  # The vectors a_i.
  tau_eff: float
  model: dict


class DynRound(NamedTuple):
  """One round of FedDyn."""
  trained: list
  model: dict
  h: dict
  table: dict  # Client id -> its linear term, an estimate of grad f_k.


class DittoRound(NamedTuple):
  """One round of Ditto."""
  trained: list
  model: dict
  personal: dict  # Client id -> v_k, of all clients that have taken part.


# FedNova.


def accumulation(steps, momentum=0., shrink=0.):
  """a_i, by which the local gradients add up: v - w = -eta G_i a_i.

  shrink is eta mu. Found by running the local steps on unit vectors in the
  place of the gradients.
  """
  buffer, moved = np.zeros(steps), np.zeros(steps)
  for k in range(steps):
    buffer = momentum * buffer + np.eye(steps)[k]
    moved = moved + buffer - shrink * moved
  return moved


def nova_round(
    w, clients, ids, batches, client_lr, server_lr=1., l2=0., mu=0.,
    momentum=0., effective="normaliser", weights="examples"):
  """FedNova: x <- x - server_lr tau_eff sum_i p_i eta d_i.

    local: m <- momentum m + g(v; B),  v <- v - eta (m + mu (v - w));
    d_i = G_i a_i / ||a_i||_1, where G_i has the local gradients as columns;
    tau_eff = sum_i p_i ||a_i||_1 ("normaliser") or sum_i p_i tau_i ("steps").
  """
  w = oracle.as_model(w)
  shares = average_weights(clients, ids, weights)
  trained, vectors, directions = [], [], []
  for i in ids:
    x, y = clients[i]
    v, m, gradients = w, oracle.zeros_like(w), []
    for rows in batches[i]:
      gradients.append(oracle.batch_gradient(v, x, y, rows, l2))
      m = oracle.add(gradients[-1], m, momentum)
      pull = oracle.add(v, w, -1.)
      v = oracle.add(v, oracle.add(m, pull, mu), -client_lr)
    a = accumulation(len(gradients), momentum, client_lr * mu)
    trained.append(v)
    vectors.append(a)
    directions.append(oracle.weighted_sum(a / np.abs(a).sum(), gradients))
  lengths = [np.abs(a).sum() if effective == "normaliser" else len(a)
             for a in vectors]
  tau_eff = float(shares @ lengths)
  model = oracle.add(w, oracle.weighted_sum(shares, directions),
                     -server_lr * tau_eff * client_lr)
  return NovaRound(trained, vectors, tau_eff, model)


# FedDyn.


def dyn_round(
    w, h, table, clients, ids, batches, client_lr, alpha, l2=0.,
    weights="uniform"):
  """FedDyn, Algorithm 1, with SGD on the dynamically regularised objective.

    theta <- theta - client_lr (g(theta; B) - G_k + alpha (theta - w));
    G_k <- G_k - alpha (theta_k - w),  others keep theirs;
    h <- h - alpha (1/m) sum_{k in P} (theta_k - w),  m counts all clients;
    w <- (1/|P|) sum_{k in P} theta_k - h / alpha.

  weights="examples": (1/m) and (1/|P|) are replaced by n_k over the examples of
  all clients, and of the participants.
  """
  w, h = oracle.as_model(w), oracle.as_model(h)
  table = copy_table(table)
  everyone = average_weights(clients, range(len(clients)), weights)
  trained = []
  for k in ids:
    x, y = clients[k]
    theta = w
    for rows in batches[k]:
      g = oracle.batch_gradient(theta, x, y, rows, l2)
      g = oracle.add(g, table[k], -1.)
      g = oracle.add(g, oracle.add(theta, w, -1.), alpha)
      theta = oracle.add(theta, g, -client_lr)
    move = oracle.add(theta, w, -1.)
    table[k] = oracle.add(table[k], move, -alpha)
    h = oracle.add(h, move, -alpha * everyone[k])
    trained.append(theta)
  mean = oracle.weighted_sum(average_weights(clients, ids, weights), trained)
  return DynRound(trained, oracle.add(mean, h, -1. / alpha), h, table)


# Ditto.


def ditto_round(
    w, personal, clients, ids, batches, personal_batches, client_lr,
    personal_lr, lam, server_lr=1., l2=0., weights="examples"):
  """Ditto, Algorithm 1, whose global solver is FedAvg.

    w_k <- w_k - client_lr g(w_k; B), from w;
    v_k <- v_k - personal_lr (g(v_k; B') + lam (v_k - w)), from the old v_k, or
    from w if `personal` has none;
    w <- w + server_lr sum_k weights_k (w_k - w).
  """
  w, personal = oracle.as_model(w), copy_table(personal)
  trained = []
  for k in ids:
    x, y = clients[k]
    v = w
    for rows in batches[k]:
      v = oracle.add(v, oracle.batch_gradient(v, x, y, rows, l2), -client_lr)
    trained.append(v)
    v = personal.get(k, w)
    for rows in personal_batches[k]:
      g = oracle.batch_gradient(v, x, y, rows, l2)
      g = oracle.add(g, oracle.add(v, w, -1.), lam)
      v = oracle.add(v, g, -personal_lr)
    personal[k] = v
  shares = average_weights(clients, ids, weights)
  return DittoRound(
      trained, server_step(w, trained, shares, server_lr), personal)
