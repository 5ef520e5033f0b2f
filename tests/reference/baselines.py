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
No randomness is drawn and no argument is changed; `trained` follows ids.
"""

from typing import NamedTuple

import numpy as np

from . import diversified as oracle


class ScaffoldRound(NamedTuple):
  """One round of SCAFFOLD."""
  trained: list
  model: dict
  c: dict
  table: dict  # Client id -> c_i.


class MimeState(NamedTuple):
  """State of the base optimizer; what it does not have is None."""
  m: dict | None = None
  v: dict | None = None


class MimeRound(NamedTuple):
  """One round of Mime or MimeLite."""
  c: dict  # Mean full gradient at the old w.
  trained: list
  model: dict
  state: MimeState


class LosacRound(NamedTuple):
  """One round of LoSAC."""
  trained: list
  model: dict
  G: dict
  table: dict  # Client id -> q_k (variant C) or list of q_kj (variant T).


class PerFedAvgRound(NamedTuple):
  """One round of Per-FedAvg."""
  trained: list
  model: dict


def average_weights(clients, ids, weights):
  """Cohort weights: "examples", n_i / sum_S n_j, or "uniform", 1 / |S|."""
  if weights == "examples":
    return oracle.cohort_weights(clients, ids)
  if weights == "uniform":
    return np.full(len(ids), 1. / len(ids))
  raise ValueError(f"unknown weights {weights!r}")


def server_step(w, trained, weights, server_lr):
  """w + server_lr sum_i weights_i (w_i - w)."""
  moves = [oracle.add(v, w, -1.) for v in trained]
  return oracle.add(w, oracle.weighted_sum(weights, moves), server_lr)


def copy_table(table):
  """A dict client id -> entry; a list is read as indexed by client id."""
  if isinstance(table, dict):
    return dict(table)
  return dict(enumerate(table))


# SCAFFOLD.


def zero_table(w, clients):
  """c_i = 0 (SCAFFOLD) or q_k = 0 (LoSAC, variant C) for all clients."""
  return {i: oracle.zeros_like(w) for i in range(len(clients))}


def scaffold_round(
    w, c, table, clients, ids, batches, client_lr, server_lr=1., l2=0.,
    option="II"):
  """SCAFFOLD, section 3.1.

    y <- y - client_lr (g_i(y; B) - c_i + c), tau_i steps from w;
    option I: c_i+ = grad f_i(w), all examples, at the server's w;
    option II: c_i+ = c_i - c + (w - y) / (tau_i client_lr);
    w <- w + server_lr (1 / |S|) sum (y - w), uniform;
    c <- c + (1 / N) sum_{i in S} (c_i+ - c_i), without server_lr.

  tau_i = len(batches[i]) is the client's own number of steps. All clients see
  the c of the beginning of the round.
  """
  w, c = oracle.as_model(w), oracle.as_model(c)
  table = copy_table(table)
  trained = []
  change = oracle.zeros_like(w)
  for i in ids:
    x, y = clients[i]
    c_i = oracle.as_model(table[i])
    v = oracle.as_model(w)
    for rows in batches[i]:
      step = oracle.batch_gradient(v, x, y, rows, l2)
      step = oracle.add(oracle.add(step, c_i, -1.), c)
      v = oracle.add(v, step, -client_lr)
    if option == "I":
      new = oracle.gradient(w, x, y, l2)
    elif option == "II":
      rate = 1. / (len(batches[i]) * client_lr)
      new = oracle.add(oracle.add(c_i, c, -1.), oracle.add(w, v, -1.), rate)
    else:
      raise ValueError(f"unknown option {option!r}")
    change = oracle.add(change, oracle.add(new, c_i, -1.))
    table[i] = new
    trained.append(v)
  model = server_step(
      w, trained, average_weights(clients, ids, "uniform"), server_lr)
  return ScaffoldRound(
      trained, model, oracle.add(c, change, 1. / len(clients)), table)


# Mime and MimeLite.


def initial_mime_state(w, base):
  """Zeros: nothing for "sgd", m for "momentum", m and v for "adam"."""
  if base == "sgd":
    return MimeState()
  if base == "momentum":
    return MimeState(oracle.zeros_like(w))
  if base == "adam":
    return MimeState(oracle.zeros_like(w), oracle.zeros_like(w))
  raise ValueError(f"unknown base optimizer {base!r}")


def mime_direction(g, s, base, momentum, b1, eps):
  """U(g, s), the frozen s of the server, no bias correction.

    "sgd": g.
    "momentum": (1 - b) g + b m.
    "adam": ((1 - b1) g + b1 m) / (sqrt(v) + eps), v not refreshed with g.
  """
  if base == "sgd":
    return g
  result = {}
  for name in ("kernel", "bias"):
    if base == "momentum":
      result[name] = (1. - momentum) * g[name] + momentum * s.m[name]
    elif base == "adam":
      top = (1. - b1) * g[name] + b1 * s.m[name]
      result[name] = top / (np.sqrt(s.v[name]) + eps)
    else:
      raise ValueError(f"unknown base optimizer {base!r}")
  return result


def mime_update(c, s, base, momentum, b1, b2):
  """V(c, s): the state after the round.

    "momentum": m+ = (1 - b) c + b m.
    "adam": m+ = (1 - b1) c + b1 m, v+ = b2 v + (1 - b2) c^2.
  """
  if base == "sgd":
    return MimeState()
  rate = momentum if base == "momentum" else b1
  m, v = {}, {}
  for name in ("kernel", "bias"):
    m[name] = (1. - rate) * c[name] + rate * s.m[name]
    if base == "adam":
      v[name] = b2 * s.v[name] + (1. - b2) * c[name] ** 2
  return MimeState(m, v if base == "adam" else None)


def mime_round(
    w, s, clients, ids, batches, client_lr, server_lr=1., l2=0.,
    base="sgd", lite=False, weights="uniform", momentum=.9, b1=.9,
    b2=.99, eps=1e-3):
  """Mime (lite=False) or MimeLite (lite=True), section 3.2, the paper's form.

    c = sum_i weights_i grad f_i(w), all examples of the cohort;
    Mime: g = g_i(y; B) - g_i(w; B) + c; MimeLite: g = g_i(y; B);
    y <- y - client_lr U(g, s), s frozen;
    w <- w + server_lr sum_i weights_i (y_i - w); s <- V(c, s), c at the old w.

  The same weights serve c and the models. `s` is a MimeState, or None for the
  zero state. base="sgd" is MimeSVRG, and FedAvg with lite=True.
  """
  w = oracle.as_model(w)
  if s is None:
    s = initial_mime_state(w, base)
  s = MimeState(*s)
  shares = average_weights(clients, ids, weights)
  c = oracle.weighted_sum(
      shares, [oracle.gradient(w, *clients[i], l2) for i in ids])
  trained = []
  for i in ids:
    x, y = clients[i]
    v = oracle.as_model(w)
    for rows in batches[i]:
      g = oracle.batch_gradient(v, x, y, rows, l2)
      if not lite:
        g = oracle.add(g, oracle.batch_gradient(w, x, y, rows, l2), -1.)
        g = oracle.add(g, c)
      step = mime_direction(g, s, base, momentum, b1, eps)
      v = oracle.add(v, step, -client_lr)
    trained.append(v)
  model = server_step(w, trained, shares, server_lr)
  return MimeRound(
      c, trained, model, mime_update(c, s, base, momentum, b1, b2))


# LoSAC.


def total_examples(clients):
  """n, over all clients."""
  return sum(len(y) for _, y in clients)


def zero_batch_table(w, partition):
  """q_kj = 0 for every batch of the partition (variant T)."""
  return {i: [oracle.zeros_like(w) for _ in rows]
          for i, rows in partition.items()}


def losac_estimate(table, clients, variant, partition=None):
  """The G a table stands for: sum_k (n_k / n) q_k or sum_kj (|B_kj| / n) q_kj.

  Invariant: the G of every round equals it if that of the start does.
  """
  n = total_examples(clients)
  table = copy_table(table)
  parts, models = [], []
  for i, entry in table.items():
    if variant == "C":
      parts.append(len(clients[i][1]) / n)
      models.append(entry)
    else:
      for j, q in enumerate(entry):
        parts.append(len(partition[i][j]) / n)
        models.append(q)
  return oracle.weighted_sum(parts, models)


def losac_round(
    w, G, table, clients, ids, batches, client_lr, server_lr=1., l2=0.,
    variant="C", partition=None, picks=None):
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
  if variant not in ("C", "T"):
    raise ValueError(f"unknown variant {variant!r}")
  w, G = oracle.as_model(w), oracle.as_model(G)
  table = copy_table(table)
  n = total_examples(clients)
  trained = []
  new_G = oracle.as_model(G)
  for i in ids:
    x, y = clients[i]
    v, local_G = oracle.as_model(w), oracle.as_model(G)
    if variant == "C":
      delayed = [oracle.as_model(table[i])]
      visits = [(0, rows, len(y) / n) for rows in batches[i]]
    else:
      delayed = [oracle.as_model(q) for q in table[i]]
      visits = [(int(j), partition[i][j], len(partition[i][j]) / n)
                for j in picks[i]]
    for j, rows, share in visits:
      r = oracle.batch_gradient(v, x, y, rows, l2)
      difference = oracle.add(r, delayed[j], -1.)
      v = oracle.add(v, oracle.add(difference, local_G), -client_lr)
      local_G = oracle.add(local_G, difference, share)
      delayed[j] = r
    trained.append(v)
    table[i] = delayed[0] if variant == "C" else delayed
    new_G = oracle.add(new_G, oracle.add(local_G, G, -1.))
  model = server_step(
      w, trained, average_weights(clients, ids, "uniform"), server_lr)
  return LosacRound(trained, model, new_G, table)


# Per-FedAvg.


def hessian_vector(w, u, x, y, rows, l2):
  """Hessian of the mini-batch objective at w, times u; analytic.

  With the derivative s = x u_kernel + u_bias of the logits, that of the softmax
  p is p (s - <p, s>). The labels do not enter.
  """
  del y
  x = np.asarray(x, np.float64)[np.asarray(rows, int)]
  p = np.exp(oracle.log_probabilities(w, x))
  s = x @ u["kernel"] + u["bias"]
  change = p * (s - np.sum(p * s, axis=1, keepdims=True))
  return {"kernel": x.T @ change / len(x) + l2 * u["kernel"],
          "bias": np.sum(change, axis=0) / len(x) + l2 * u["bias"]}


def adapt(w, x, y, rows, alpha, l2=0.):
  """One SGD step, w - alpha g(w; rows): the model evaluated on a client."""
  w = oracle.as_model(w)
  return oracle.add(w, oracle.batch_gradient(w, x, y, rows, l2), -alpha)


def per_fedavg_round(
    w, clients, ids, batches, alpha, beta, server_lr=1., l2=0., variant="fo",
    weights="uniform"):
  """Per-FedAvg, section 2; batches[i][step] = (D, D', D'').

    v~ = v - alpha g(v; D),  u = g(v~; D'),
    "fo": v <- v - beta u;
    "exact": h = Hessian of D'' at v, times u,
    v <- v - beta (u - alpha h);
    w <- w + server_lr sum_i weights_i (v_i - w).

  h is taken at v, not at v~. All gradients, hence the Hessian too, have the L2
  term. "fo" ignores D''.
  """
  w = oracle.as_model(w)
  trained = []
  for i in ids:
    x, y = clients[i]
    v = oracle.as_model(w)
    for triple in batches[i]:
      u = oracle.batch_gradient(
          adapt(v, x, y, triple[0], alpha, l2), x, y, triple[1], l2)
      if variant == "fo":
        step = u
      elif variant == "exact":
        h = hessian_vector(v, u, x, y, triple[2], l2)
        step = oracle.add(u, h, -alpha)
      else:
        raise ValueError(f"unknown variant {variant!r}")
      v = oracle.add(v, step, -beta)
    trained.append(v)
  shares = average_weights(clients, ids, weights)
  return PerFedAvgRound(trained, server_step(w, trained, shares, server_lr))
