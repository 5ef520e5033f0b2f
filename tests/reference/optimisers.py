"""Optimisers of clients and servers as loops over vectors, in float64.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2; Hsu et
al., arXiv:1909.06335; Kingma and Ba (Adam); Loshchilov and Hutter (AdamW).
"""

import numpy as np

from tests.reference import diversified as oracle


def fedopt(rule, deltas, eta, b1=.9, b2=.99, tau=1e-3):
  """The moves x_{t+1} - x_t of Algorithm 2 for mean updates Delta_t."""
  m, v, moves = 0., np.full(len(deltas[0]), tau ** 2), []
  for delta in np.asarray(deltas, np.float64):
    m = b1 * m + (1. - b1) * delta
    if rule == "adagrad":
      v = v + delta ** 2
    elif rule == "yogi":
      v = v - (1. - b2) * delta ** 2 * np.sign(v - delta ** 2)
    elif rule == "adam":
      v = b2 * v + (1. - b2) * delta ** 2
    else:
      raise ValueError(rule)
    moves.append(eta * m / (np.sqrt(v) + tau))
  return moves


def fedavgm(deltas, eta, beta=.9):
  """v <- beta v + Delta, x <- x + eta v."""
  v, moves = 0., []
  for delta in deltas:
    v = beta * v + delta
    moves.append(eta * v)
  return moves


def direction(kind, gradients, weights, decay=0., momentum=.9, b1=.9, b2=.999,
              eps=1e-8):
  """The last direction after these gradients, each at one of ``weights``."""
  m, v, d = 0., 0., None
  for t, (g, w) in enumerate(zip(gradients, weights, strict=True), 1):
    if kind != "adamw":
      g = g + decay * w
    if kind in ("momentum", "nesterov"):
      m = momentum * m + g
      d = g + momentum * m if kind == "nesterov" else m
    elif kind in ("adam", "adamw"):
      m = b1 * m + (1. - b1) * g
      v = b2 * v + (1. - b2) * g ** 2
      d = m / (1. - b1 ** t) / (np.sqrt(v / (1. - b2 ** t)) + eps)
      if kind == "adamw":
        d = d + decay * w
    elif kind == "rmsprop":
      v = b2 * v + (1. - b2) * g ** 2
      d = g / (np.sqrt(v) + eps)
    elif kind == "adagrad":
      v = v + g ** 2
      d = g / np.sqrt(v + eps)
    else:
      assert kind == "sgd"
      d = g
  return d


def local_training(
    w, x, y, batches, rate, l2=0., mu=0., shift=0., kind="sgd", clip=0.,
    **options):
  """v <- v - rate(k) d, d from clip(g_i(v; B) + mu (v - w) + shift).

  Args:
    w: the model received.
    x: the client's examples.
    y: their labels.
    batches: rows of each step.
    rate: k -> learning rate of step k.
    l2: of the objective.
    mu: of FedProx.
    shift: SCAFFOLD's c - c_i, a vector.
    kind: the optimiser.
    clip: largest norm of a gradient; 0: none.
    **options: of ``direction``.

  Returns:
    The trained model, and the mean g_i(v; B) over the steps as a vector.
  """
  start = oracle.to_vector(w)
  v, raw, seen, places = start, [], [], []
  for k, rows in enumerate(batches):
    g = oracle.to_vector(oracle.batch_gradient(
        oracle.to_model(v, w), x, y, rows, l2))
    raw.append(g)
    g = g + mu * (v - start) + shift
    if clip:
      g = g * min(1., clip / np.linalg.norm(g))
    seen.append(g)
    places.append(v)
    v = v - rate(k) * direction(kind, seen, places, **options)
  return oracle.to_model(v, w), np.mean(raw, axis=0)
