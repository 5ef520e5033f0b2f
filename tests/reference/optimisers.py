"""Optimisers of clients and servers as loops over arrays, in float64.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2; Hsu et
al., arXiv:1909.06335; Kingma and Ba (Adam); Loshchilov and Hutter (AdamW); Defazio
et al., NeurIPS 2024 (schedule-free).
"""

import numpy as np

from tests.reference import diversified as oracle


def fedopt(rule, deltas, eta, b1=0.9, b2=0.99, tau=1e-3):
  """The moves x_{t+1} - x_t of Algorithm 2 for mean updates Delta_t."""
  m, v, moves = 0.0, np.full(np.shape(deltas[0]), tau**2), []
  for delta in np.asarray(deltas, np.float64):
    m = b1 * m + (1.0 - b1) * delta
    v = {
      "adagrad": v + delta**2,
      "yogi": v - (1.0 - b2) * delta**2 * np.sign(v - delta**2),
      "adam": b2 * v + (1.0 - b2) * delta**2,
    }[rule]
    moves.append(eta * m / (np.sqrt(v) + tau))
  return moves


def fedavgm(deltas, eta, beta=0.9):
  """The last move of v <- beta v + Delta, x <- x + eta v."""
  return eta * sum(beta**age * delta for age, delta in enumerate(deltas[::-1]))


def direction(
  kind, gradients, weights, decay=0.0, momentum=0.9, b1=0.9, b2=0.999, eps=1e-8
):
  """The last direction after these gradients, each at one of ``weights``."""
  m, v, d = 0.0, 0.0, None
  for t, (g, w) in enumerate(zip(gradients, weights, strict=True), 1):
    d = g = g if kind == "adamw" else g + decay * w
    if kind in ("momentum", "nesterov"):
      m = momentum * m + g
      d = g + momentum * m if kind == "nesterov" else m
    elif kind in ("adam", "adamw"):
      m = b1 * m + (1.0 - b1) * g
      v = b2 * v + (1.0 - b2) * g**2
      d = m / (1.0 - b1**t) / (np.sqrt(v / (1.0 - b2**t)) + eps)
      if kind == "adamw":
        d = d + decay * w
    elif kind == "rmsprop":
      v = b2 * v + (1.0 - b2) * g**2
      d = g / (np.sqrt(v) + eps)
    elif kind == "adagrad":
      v = v + g**2
      d = g / np.sqrt(v + eps)
    else:
      assert kind == "sgd"
  return d


def local_training(
  w, client, batches, rate, l2=0.0, mu=0.0, shift=0.0, kind="sgd", clip=0.0, **options
):
  """v <- v - rate(k) d, d from clip(g_i(v; B) + mu (v - w) + shift).

  Args:
    w: the model received.
    client: the client's examples and labels.
    batches: rows of each step.
    rate: k -> learning rate of step k.
    l2: of the objective.
    mu: of FedProx.
    shift: SCAFFOLD's c - c_i.
    kind: the optimizer.
    clip: largest norm of a gradient; 0: none.
    **options: of ``direction``.

  Returns:
    The trained model, and the mean g_i(v; B) over the steps.
  """
  raw, seen, places = [], [], []

  def step(g, v, *_):
    raw.append(g)
    g = g + mu * (v - w) + shift
    seen.append(g * min(1.0, clip / np.linalg.norm(g)) if clip else g)
    places.append(v)
    return rate(len(raw) - 1) * direction(kind, seen, places, **options)

  trained = oracle.local_steps(w, client, batches, 1.0, l2, step)
  return trained, np.mean(raw, axis=0)


def schedule_free(w, client, batches, rate, l2=0.0, beta=0.9):
  """x and y after schedule-free SGD, (2) to (4) of Defazio et al.

  Gradients are taken at y, between z and x; x, the mean of all z, is the model.
  """
  examples, labels = client
  z = x = y = w
  for t, rows in enumerate(batches, 1):
    y = (1 - beta) * z + beta * x
    z = z - rate * oracle.gradient(y, examples[rows], labels[rows], l2)
    x = (1 - 1 / t) * x + z / t
  return x, (1 - beta) * z + beta * x
