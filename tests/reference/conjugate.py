"""NumPy oracle of CFSVRG and CLSFSVRG: conjugate central acceleration of FSVRG.

Written from the paper, blind to any other implementation: float64, plain loops.
Equation, line and procedure numbers are those of the paper that introduces
CLSFSVRG (Algorithm 1, Procedure 1, (6), (14)-(30)).

The model, the local objective and the arguments `clients` and `batches` are
those of diversified.py, whose helpers are used. `ids` are the clients of the
cohort, in any order. No randomness is drawn here.

The cohort is drawn once per round and serves lines 3-5 and lines 17-18 of the
round before: g, beta and d of a round are computed at its beginning, from the
g and d which the round before left in memory.
"""

from typing import NamedTuple

import numpy as np

from . import diversified as oracle

ARMIJO = 1e-4


class Direction(NamedTuple):
  """One conjugate direction, flat."""
  d: np.ndarray  # [P]
  beta: float  # As computed, before a restart; 0 without a previous direction.
  restarted: bool  # Whether <g, -g + beta d_prev> >= 0 replaced d by -g.


class LineSearch(NamedTuple):
  """Result of the back-tracking."""
  eta: float  # 0 if no step was accepted.
  tries: int  # Evaluations of f(w + eta d), the accepted one included.
  before: float  # f(w)
  after: float  # f(w + eta d); f(w) if eta = 0.


class Memory(NamedTuple):
  """What the server keeps between rounds, flat."""
  g: np.ndarray  # [P]
  d: np.ndarray  # [P]


class ConjugateRound(NamedTuple):
  """One round of CFSVRG or CLSFSVRG."""
  anchor: dict  # g(w), (6) and (23).
  beta: float  # (24) or another rule, before a restart.
  restarted: bool
  direction: dict  # d, (25).
  eta: float
  search: LineSearch | None  # None with a fixed eta.
  w_hat: dict  # (30)
  trained: list  # Models of the cohort in the order of ids, (19).
  displacement: dict  # sum_i (n_i / n^r) (w_i - w_hat).
  scaling: dict  # {"kernel": [D], "bias": scalar}
  model: dict  # (22)
  memory: Memory


def as_vector(value):
  """A flat float64 vector from a model or a vector."""
  if isinstance(value, dict):
    return oracle.to_vector(oracle.as_model(value))
  return np.array(value, np.float64)


def beta(rule, g, g_prev, d_prev):
  """The factor of d_prev in (25), on flat vectors.

    "fr": <g, g> / <g_prev, g_prev>, Fletcher-Reeves: (24).
    "pr+": max(0, <g, y> / <g_prev, g_prev>), y = g - g_prev.
    "hs": <g, y> / <d_prev, y>, of either sign.
    "dy": <g, g> / <d_prev, y>, of either sign.

  A zero denominator gives 0. No cap (C-18). (92) and (102) print g^{r+1} where
  (24) has g^r; (24) is followed.
  """
  y = g - g_prev
  if rule == "fr":
    top, bottom = g @ g, g_prev @ g_prev
  elif rule == "pr+":
    top, bottom = max(0., g @ y), g_prev @ g_prev
  elif rule == "hs":
    top, bottom = g @ y, d_prev @ y
  elif rule == "dy":
    top, bottom = g @ g, d_prev @ y
  else:
    raise ValueError(f"unknown rule {rule!r}")
  if bottom == 0.:
    return 0.
  return float(top / bottom)


def direction(rule, g, g_prev=None, d_prev=None):
  """(25): d = -g + beta d_prev; d_0 = -g as in the text (C-10).

  Not in the paper: if <g, d> >= 0, d is no descent direction and d = -g.
  """
  if g_prev is None or d_prev is None:
    return Direction(-g, 0., False)
  factor = beta(rule, g, g_prev, d_prev)
  d = -g + factor * d_prev
  if g @ d >= 0.:
    return Direction(-g, factor, True)
  return Direction(d, factor, False)


def accepts(test, eta, decrease, gg, gd):
  """Whether a step is taken; decrease = f(w) - f(w + eta d).

    "half_gradient": decrease > (eta / 2) <g, g>, the negation of the loop
      condition of line 8 with rho of the current eta (C-11, C-12).
    "armijo": decrease >= 1e-4 eta (-<g, d>).
    "decrease": decrease > 0.
    "printed": (eta / 2) <g, g> >= decrease, (29) as a stopping rule.
  """
  if test == "half_gradient":
    return decrease > 0.5 * eta * gg
  if test == "armijo":
    return decrease >= ARMIJO * eta * -gd
  if test == "decrease":
    return decrease > 0.
  if test == "printed":
    return 0.5 * eta * gg >= decrease
  raise ValueError(f"unknown test {test!r}")


def line_search(
    value, w_vec, d_vec, g_vec, start=1., gamma=.5, test="half_gradient",
    max_tries=40):
  """Lines 6-11, (29): the first eta of start, start gamma, ... that passes.

  `value` is f_v on flat vectors. rho follows eta (line 6 computes it once, and
  the loop then never ends). The text first multiplies by gamma; Algorithm 1
  tries eta itself first and is followed. After max_tries evaluations of
  f(w + eta d) without success eta = 0 (C-13 (a); the paper has no limit).
  """
  before = value(w_vec)
  gg, gd = g_vec @ g_vec, g_vec @ d_vec
  eta = float(start)
  for tries in range(1, max_tries + 1):
    after = value(w_vec + eta * d_vec)
    if accepts(test, eta, before - after, gg, gd):
      return LineSearch(eta, tries, before, after)
    eta *= gamma
  return LineSearch(0., max_tries, before, before)


def aggregate_scaling(clients, ids, mode):
  """A of (21), with the 1 / S of (22) in mode "printed".

  "all" (C / omega), "paper" (|S| / omega) and "none" (1) are those of
  diversified.aggregate_scaling. "printed" is (1 / |S|) |S| / omega = 1 / omega:
  1 / C for the bias, a feature of all clients. omega counts over all clients. A
  feature held by no client gets 1 in every mode.
  """
  if mode != "printed":
    return oracle.aggregate_scaling(clients, sorted(ids), mode)
  kernel = np.ones(np.asarray(clients[0][0]).shape[1])
  for j in range(len(kernel)):
    omega = 0
    for x, _ in clients:
      if np.any(np.asarray(x)[:, j] != 0):
        omega += 1
    if omega > 0:
      kernel[j] = 1. / omega
  return {"kernel": kernel, "bias": 1. / len(clients)}


def local_training(
    w_hat, w, anchor, x, y, batches_i, client_lr, l2, lambda_i):
  """Procedure 1, (17)-(19): the local model after all steps.

    d_k = -(Lambda_i [g_i(w_k; B) - g_i(w; B)] + g),
    w_{k+1} = w_k + (client_lr / n_i) d_k,  w_0 = w_hat.

  The reference point of the correction is w, where the anchor was measured:
  (7), (17) and line 4, against w_hat in (15) (C-04 (a)). Both g_i use the same
  mini-batch and include the L2 term, which Lambda_i [D] therefore multiplies.
  The bias has the entry 1. Steps are 1..K (C-05).
  """
  scaling = {"kernel": lambda_i, "bias": 1.}
  rate = client_lr / len(y)
  v = oracle.as_model(w_hat)
  for rows in batches_i:
    here = oracle.batch_gradient(v, x, y, rows, l2)
    there = oracle.batch_gradient(w, x, y, rows, l2)
    bracket = oracle.scale(scaling, oracle.add(here, there, -1.))
    v = oracle.add(v, oracle.add(bracket, anchor), -rate)
  return v


def clsfsvrg_round(
    w, memory, clients, ids, batches, client_lr, l2=0., validation=None,
    rule="fr", fixed_eta=None, start=1., gamma=.5, test="half_gradient",
    max_tries=40, server_lr=1., aggregate="all", scale_features=True):
  """One round of CLSFSVRG, or of CFSVRG if fixed_eta is given.

    1. g = sum_{i in S} (n_i / n^r) grad f_i(w), (6), lines 4-5.
    2. d by direction() from memory: None in round 1, else (g_prev, d_prev),
       flat or as models.
    3. eta: fixed_eta, or line_search on f_v(w) = mean cross-entropy over
       validation (x, y) + (l2 / 2) ||w||^2, from eta = start in every round.
    4. w_hat = w + eta d, (30).
    5. Every client trains from w_hat, Procedure 1, with Lambda_i of (16): n^j
       and n over all clients, 1 where n_i^j = 0 and for the bias.
    6. w = w_hat + server_lr A sum_i (n_i / n^r) (w_i - w_hat), (22) with A of
       mode `aggregate`; line 16 prints eta where (22) has alpha_g (C-08).

  The memory left is (g, d) also when eta = 0 (C-13 (a)); after a restart its d
  is -g.
  """
  w = oracle.as_model(w)
  ids = [int(i) for i in ids]
  anchor = oracle.anchor_gradient(w, clients, ids, l2)
  g = oracle.to_vector(anchor)
  if memory is None:
    found = direction(rule, g)
  else:
    found = direction(rule, g, as_vector(memory[0]), as_vector(memory[1]))

  if fixed_eta is not None:
    search, eta = None, float(fixed_eta)
  else:
    x_v, y_v = validation

    def value(vector):
      return oracle.loss(oracle.to_model(vector, w), x_v, y_v, l2)

    search = line_search(
        value, oracle.to_vector(w), found.d, g, start, gamma, test, max_tries)
    eta = search.eta
  d = oracle.to_model(found.d, w)
  w_hat = oracle.add(w, d, eta)

  lambdas = oracle.cohort_scalings(clients, ids, scale_features)
  trained = []
  for slot, i in enumerate(ids):
    trained.append(local_training(
        w_hat, w, anchor, *clients[i], batches[i], client_lr, l2,
        lambdas[slot]))
  displacement = oracle.weighted_sum(
      oracle.cohort_weights(clients, ids),
      [oracle.add(v, w_hat, -1.) for v in trained])
  scaling = aggregate_scaling(clients, ids, aggregate)
  model = oracle.add(w_hat, oracle.scale(scaling, displacement), server_lr)
  return ConjugateRound(
      anchor, found.beta, found.restarted, d, eta, search, w_hat, trained,
      displacement, scaling, model, Memory(g, found.d))
