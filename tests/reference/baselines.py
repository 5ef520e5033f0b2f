"""NumPy oracle of SCAFFOLD, Mime, MimeLite, LoSAC and Per-FedAvg.

Written from the specification of the baselines (its sections 2 and 3), blind to
any other implementation: float64, plain loops over clients and steps.

  SCAFFOLD: Karimireddy et al. 2020. Mime: Karimireddy et al. 2020,
  arXiv:2008.03606. LoSAC: Chen et al., arXiv:2112.07839, reconstructed from its
  abstract. Per-FedAvg: Fallah et al. 2020.

The model and the local objective are those of diversified.py, whose helpers are
used. Arguments shared by the round functions:
  clients: list of all N clients, each a pair (x [n_i, D], y [n_i] of int).
  ids: the clients of the cohort S, in any order.
  batches: batches[i] holds one array of row indices per local step of client i.
  l2: coefficient of (l2 / 2) ||w||^2, bias included, in every gradient.
  table: a dict client id -> what is kept for it.
No randomness is drawn and no argument is changed.
"""

from types import SimpleNamespace

import numpy as np
from scipy import special

from . import diversified as oracle
from .diversified import average_weights, gradient, local_steps, server_step


def zero_table(w, clients):
  """c_i = 0 (SCAFFOLD) or q_k = 0 (LoSAC, variant C) for all clients."""
  return {i: np.zeros_like(w) for i in range(len(clients))}


def scaffold_round(
  w, c, table, clients, ids, batches, client_lr, server_lr=1.0, l2=0.0, option="II"
):
  """SCAFFOLD, section 3.1.

    y <- y - client_lr (g_i(y; B) - c_i + c), tau_i steps from w;
    option I: c_i+ = grad f_i(w), all examples, at the server's w;
    option II: c_i+ = c_i - c + (w - y) / (tau_i client_lr);
    w <- w + server_lr (1 / |S|) sum (y - w), uniform;
    c <- c + (1 / N) sum_{i in S} (c_i+ - c_i), without server_lr.

  tau_i = len(batches[i]) is the client's own number of steps. All clients see
  the c of the beginning of the round.
  """
  new, trained = dict(table), []
  for i in ids:
    v = local_steps(
      w, clients[i], batches[i], client_lr, l2, lambda g, *_: g - table[i] + c
    )
    trained.append(v)
    new[i] = {
      "I": gradient(w, *clients[i], l2=l2),
      "II": table[i] - c + (w - v) / (len(batches[i]) * client_lr),
    }[option]
  model = server_step(w, trained, average_weights(clients, ids, "uniform"), server_lr)
  change = sum(new[i] - table[i] for i in ids)
  return SimpleNamespace(model=model, c=c + change / len(clients), table=new)


def mime_round(
  w,
  s,
  clients,
  ids,
  batches,
  client_lr,
  server_lr=1.0,
  l2=0.0,
  base="sgd",
  lite=False,
  weights="uniform",
  momentum=0.9,
  b1=0.9,
  b2=0.99,
  eps=1e-3,
):
  """Mime (lite=False) or MimeLite (lite=True), section 3.2, the paper's form.

    c = sum_i weights_i grad f_i(w), all examples of the cohort;
    Mime: g = g_i(y; B) - g_i(w; B) + c; MimeLite: g = g_i(y; B);
    y <- y - client_lr U(g, s), s frozen;
    w <- w + server_lr sum_i weights_i (y_i - w); s <- V(c, s), c at the old w.

  s = (m, v) without bias correction, and what the base does not have is None:

    "sgd": U = g.
    "momentum": U = (1 - b) g + b m; m+ = (1 - b) c + b m.
    "adam": U = ((1 - b1) g + b1 m) / (sqrt(v) + eps), v not refreshed with g;
      m+ = (1 - b1) c + b1 m, v+ = b2 v + (1 - b2) c^2.

  The same weights serve c and the models. The first `s` is None, for zeros.
  base="sgd" is MimeSVRG, and FedAvg with lite=True.
  """
  m, v = (
    s
    or {
      "sgd": (None, None),
      "momentum": (np.zeros_like(w), None),
      "adam": oracle.zero_moments(w),
    }[base]
  )
  rate = momentum if base == "momentum" else b1
  shares = average_weights(clients, ids, weights)
  c = oracle.anchor_gradient(w, clients, ids, l2, weights)

  def direction(g, _, x, y):
    if not lite:
      g = g - gradient(w, x, y, l2) + c
    if base == "sgd":
      return g
    mixed = (1.0 - rate) * g + rate * m
    return mixed if base == "momentum" else mixed / (np.sqrt(v) + eps)

  trained = [
    local_steps(w, clients[i], batches[i], client_lr, l2, direction) for i in ids
  ]
  if base != "sgd":
    m = (1.0 - rate) * c + rate * m
  if base == "adam":
    v = b2 * v + (1.0 - b2) * c**2
  return SimpleNamespace(model=server_step(w, trained, shares, server_lr), state=(m, v))


# LoSAC.


def losac_estimate(table, clients, variant, partition=None):
  """The G a table stands for: sum_k (n_k / n) q_k or sum_kj (|B_kj| / n) q_kj.

  Invariant: the G of every round equals it if that of the start does.
  """
  n = sum(len(y) for _, y in clients)
  if variant == "C":
    return sum(len(clients[i][1]) / n * q for i, q in table.items())
  return sum(
    len(rows) / n * q
    for i, entry in table.items()
    for rows, q in zip(partition[i], entry, strict=True)
  )


def losac_round(
  w,
  G,
  table,
  clients,
  ids,
  batches,
  client_lr,
  server_lr=1.0,
  l2=0.0,
  variant="C",
  partition=None,
  picks=None,
):
  """LoSAC, section 3.4, with divisors weighted by examples.

    v <- w, Gl <- G; in each local step, r = g_k(v; B), then in this order
    v <- v - client_lr (r - q + Gl),  Gl <- Gl + share (r - q),  q <- r;
    w <- w + server_lr (1 / |S|) sum (v - w);  G <- G + sum_{k in S} (Gl - G).

  Variant "C": one q_k per client, share n_k / n, B from batches[k], so that
  G = sum_k (n_k / n) q_k estimates sum_k (n_k / n) grad f_k.
  Variant "T": q_kj per batch j of partition[k], share |B_kj| / n, B and q those
  of j = picks[k][step]; batches is not used. G = sum_kj (|B_kj| / n) q_kj.

  n counts all clients. r has the L2 term at v. dG is summed, not averaged.
  """
  n, by_client = sum(len(y) for _, y in clients), variant == "C"
  trained, new_G, table = [], G, dict(table)
  for i in ids:
    x, y = clients[i]
    v, local_G = w, G
    delayed = [table[i]] if by_client else list(table[i])
    visits = (
      [(0, rows, len(y)) for rows in batches[i]]
      if by_client
      else [(j, partition[i][j], len(partition[i][j])) for j in picks[i]]
    )
    for j, rows, size in visits:
      r = gradient(v, x[rows], y[rows], l2)
      v = v - client_lr * (r - delayed[j] + local_G)
      local_G = local_G + size / n * (r - delayed[j])
      delayed[j] = r
    trained.append(v)
    table[i] = delayed[0] if by_client else delayed
    new_G = new_G + (local_G - G)
  model = server_step(w, trained, average_weights(clients, ids, "uniform"), server_lr)
  return SimpleNamespace(model=model, G=new_G, table=table)


# Per-FedAvg.


def hessian_vector(w, u, x, l2):
  """Hessian of the mini-batch objective at w, times u; analytic.

  With the derivative s = x u of the logits, that of the softmax p is p (s - <p,
  s>). The labels do not enter.
  """
  x = oracle.with_ones(x)
  p, s = special.softmax(x @ w, axis=1), x @ u
  change = p * (s - np.sum(p * s, axis=1, keepdims=True))
  return x.T @ change / len(x) + l2 * u


def adapt(w, x, y, rows, alpha, l2=0.0):
  """One SGD step, w - alpha g(w; rows): the model evaluated on a client."""
  return w - alpha * gradient(w, x[rows], y[rows], l2)


def per_fedavg_round(
  w,
  clients,
  ids,
  batches,
  alpha,
  beta,
  server_lr=1.0,
  l2=0.0,
  variant="fo",
  weights="uniform",
):
  """Per-FedAvg, section 2; batches[i][step] = (D, D', D'').

    v~ = v - alpha g(v; D),  u = g(v~; D'),
    "fo": v <- v - beta u;
    "exact": h = Hessian of D'' at v, times u,
    v <- v - beta (u - alpha h);
    w <- w + server_lr sum_i weights_i (v_i - w).

  h is taken at v, not at v~. All gradients, hence the Hessian too, have the L2
  term. "fo" ignores D''.
  """
  trained = []
  for i in ids:
    (x, y), v = clients[i], w
    for first, second, *third in batches[i]:
      u = gradient(adapt(v, x, y, first, alpha, l2), x[second], y[second], l2)
      if variant == "exact":
        u = u - alpha * hessian_vector(v, u, x[third[0]], l2)
      v = v - beta * u
    trained.append(v)
  return server_step(w, trained, average_weights(clients, ids, weights), server_lr)
