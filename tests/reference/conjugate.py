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

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from . import diversified as oracle


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
  top, bottom = {
    "fr": (g @ g, g_prev @ g_prev),
    "pr+": (max(0.0, g @ y), g_prev @ g_prev),
    "hs": (g @ y, d_prev @ y),
    "dy": (g @ g, d_prev @ y),
  }[rule]
  return float(top / bottom) if bottom else 0.0


def direction(rule, g, g_prev=None, d_prev=None):
  """(25): d = -g + beta d_prev; d_0 = -g as in the text (C-10).

  Not in the paper: if <g, d> >= 0, d is no descent direction and d = -g.
  """
  if g_prev is None:
    return Direction(-g, 0.0, False)
  factor = beta(rule, g, g_prev, d_prev)
  d = -g + factor * d_prev
  climbs = g @ d >= 0.0
  return Direction(-g if climbs else d, factor, climbs)


def accepts(test, eta, decrease, gg, gd):
  """Whether a step is taken; decrease = f(w) - f(w + eta d).

  "half_gradient": decrease > (eta / 2) <g, g>, the negation of the loop
    condition of line 8 with rho of the current eta (C-11, C-12).
  "armijo": decrease >= 1e-4 eta (-<g, d>).
  "decrease": decrease > 0.
  "printed": (eta / 2) <g, g> >= decrease, (29) as a stopping rule.
  """
  return {
    "half_gradient": decrease > 0.5 * eta * gg,
    "armijo": decrease >= 1e-4 * eta * -gd,
    "decrease": decrease > 0.0,
    "printed": 0.5 * eta * gg >= decrease,
  }[test]


def line_search(
  value, w_vec, d_vec, g_vec, start=1.0, gamma=0.5, test="half_gradient", max_tries=40
):
  """Lines 6-11, (29): the first eta of start, start gamma, ... that passes.

  `value` is f_v on flat vectors. rho follows eta (line 6 computes it once, and
  the loop then never ends). The text first multiplies by gamma; Algorithm 1
  tries eta itself first and is followed. After max_tries evaluations of
  f(w + eta d) without success eta = 0 (C-13 (a); the paper has no limit).
  """
  before, eta = value(w_vec), float(start)
  gg, gd = g_vec @ g_vec, g_vec @ d_vec
  for tries in range(1, max_tries + 1):
    after = value(w_vec + eta * d_vec)
    if accepts(test, eta, before - after, gg, gd):
      return LineSearch(eta, tries, before, after)
    eta *= gamma
  return LineSearch(0.0, max_tries, before, before)


def clsfsvrg_round(
  w,
  memory,
  clients,
  ids,
  batches,
  client_lr,
  l2=0.0,
  validation=None,
  rule="fr",
  fixed_eta=None,
  server_lr=1.0,
  aggregate="all",
  scale_features=True,
  **search,
):
  """One round of CLSFSVRG, or of CFSVRG if fixed_eta is given.

    1. g = sum_{i in S} (n_i / n^r) grad f_i(w), (6), lines 4-5.
    2. d by direction() from memory: () in round 1, else (g_prev, d_prev).
    3. eta: fixed_eta, or line_search, with the options ``search``, on f_v(w) =
       mean cross-entropy over validation (x, y) + (l2 / 2) ||w||^2, from eta =
       start in every round.
    4. w_hat = w + eta d, (30).
    5. Every client trains from w_hat, Procedure 1, with Lambda_i of (16): n^j
       and n over all clients, 1 where n_i^j = 0 and for the bias. The
       reference point of the correction is w, where the anchor was measured:
       (7), (17) and line 4, against w_hat in (15) (C-04 (a)). Steps are 1..K
       (C-05).
    6. w = w_hat + server_lr A sum_i (n_i / n^r) (w_i - w_hat), (22) with A of
       mode `aggregate`; line 16 prints eta where (22) has alpha_g (C-08).

  The memory left is (g, d) also when eta = 0 (C-13 (a)); after a restart its d
  is -g.
  """
  anchor = oracle.anchor_gradient(w, clients, ids, l2)
  g = anchor.ravel()
  step = direction(rule, g, *memory)
  searched = (
    None
    if fixed_eta is not None
    else line_search(
      lambda v: oracle.loss(v.reshape(w.shape), *validation, l2=l2),
      w.ravel(),
      step.d,
      g,
      **search,
    )
  )
  eta = searched.eta if searched else fixed_eta
  w_hat, size = w + eta * step.d.reshape(w.shape), len(ids)
  trained = oracle.cohort_training(
    [w_hat] * size,
    [w] * size,
    [anchor] * size,
    clients,
    ids,
    batches,
    client_lr,
    l2,
    scale_features,
  )
  scaling = oracle.aggregate_scaling(clients, ids, aggregate)
  return SimpleNamespace(
    beta=step.beta,
    restarted=step.restarted,
    search=searched,
    trained=trained,
    memory=(g, step.d),
    model=oracle.server_step(
      w_hat, trained, oracle.average_weights(clients, ids), server_lr * scaling[:, None]
    ),
  )
