"""NumPy oracle of FedAvg, FedProx, FSVRG, MA-FSVRG and GA-FSVRG.

Written from the paper, blind to any other implementation: float64, plain loops
over clients, steps and models, no tricks. Equation numbers are those of

  L. Zhao, L. Cai, W.-S. Lu, "Tailored Federated Learning With Adaptive Central
  Acceleration on Diversified Global Models", IEEE TNNLS, 2024.

FedAvg is McMahan et al. 2017, FedProx is Li et al. 2020 and FSVRG is Algorithm
4 of Konecny et al. 2016 (arXiv:1610.02527).

The model is softmax regression whose bias is a column of ones in x. A model, a
gradient and a moment are all arrays [D + 1, L] of float64, the bias in the last
row. The objective of client i is

  f_i(w) = mean cross-entropy + (l2 / 2) ||w||^2.

Axes: C clients, S participants, K global models, D features, L classes, P = (D
+ 1) L parameters.

Arguments shared by the round functions:
  clients: list of all C clients, each a pair (x [n_i, D], y [n_i] of int).
  cohort, ids: the S participants, slot s of every result belongs to the s-th.
  batches: batches[i][k] holds the row indices of the mini-batch of client i (an
    id, not a slot; a list over clients or a dict) in its local step k. The
    steps may differ in number and size.
No randomness is drawn here, and no argument is changed.

Where the paper cannot be run as printed, the docstring of the function says
which reading it follows.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from scipy import special


class Projection(NamedTuple):
  """Centred points and their top K - 1 coordinates, (26)-(38), (45)-(51)."""

  mean: np.ndarray  # [P], the unweighted mean of the participants.
  basis: np.ndarray  # U, [P, K - 1]; a zero column where the rank is exceeded.
  points: np.ndarray  # [S, K - 1].


# The local objective.


def as_model(kernel, bias):
  """The array of a kernel [D, L] and a bias [L]."""
  return np.vstack([kernel, bias]).astype(np.float64)


def with_ones(x):
  """The examples in float64, and a column of ones for the bias."""
  return np.column_stack([np.asarray(x, np.float64), np.ones(len(x))])


def loss(w, x, y, l2):
  """f_i(w) of (2): mean cross-entropy + (l2 / 2) ||w||^2, bias included."""
  log_p = special.log_softmax(with_ones(x) @ w, axis=1)
  return -np.mean(log_p[np.arange(len(y)), y]) + 0.5 * l2 * np.sum(w**2)


def gradient(w, x, y, l2):
  """Gradient of (2); with the rows of a mini-batch, g_i(w) of (20)."""
  x = with_ones(x)
  residual = special.softmax(x @ w, axis=1) - np.eye(w.shape[1])[y]
  return x.T @ residual / len(y) + l2 * w


def average_weights(clients, ids, weights="examples"):
  """Weights of the participants [S]: n_i / sum n_j as in (16), or 1 / S."""
  kinds = {"examples": [len(clients[i][1]) for i in ids], "uniform": np.ones(len(ids))}
  weights = kinds[str(weights)]
  return np.asarray(weights, np.float64) / np.sum(weights)


def weighted_sum(weights, models):
  """sum_i weights_i models_i."""
  return np.tensordot(weights, np.array(models), axes=1)


def server_step(w, trained, weights, server_lr=1.0):
  """w + server_lr sum_i weights_i (w_i - w)."""
  return w + server_lr * weighted_sum(weights, np.array(trained) - w)


def anchor_gradient(w, clients, cohort, l2, weights="examples"):
  """g(w) = sum_{i in S^r} (n_i / n^r) grad f_i(w): (16), (17), (52), (61).

  (17) prints S^{r-1}; the text and lines 2-7 of Procedure 1 collect from all of
  S^r, for every one of the K models.
  """
  return weighted_sum(
    average_weights(clients, cohort, weights),
    [gradient(w, *clients[i], l2=l2) for i in cohort],
  )


def local_steps(w, client, batches, rate, l2, direction):
  """v <- v - rate direction(g_i(v; B), v, x_B, y_B), from v = w."""
  (x, y), v = client, w
  for rows in batches:
    batch = x[rows], y[rows]
    v = v - rate * direction(gradient(v, *batch, l2), v, *batch)
  return v


# FedAvg and FedProx.


def sgd(w, client, batches, lr, l2=0.0, mu=0.0):
  """v <- v - lr (g_i(v; B) + mu (v - w)), from v = w; no batch leaves w."""
  return local_steps(w, client, batches, lr, l2, lambda g, v, *_: g + mu * (v - w))


def fedprox_round(w, clients, batches, lr, server_lr=1.0, mu=0.0, l2=0.0, cohort=()):
  """FedProx without stragglers, FedAvg with mu = 0.

  Then w <- w + server_lr sum_{i in S} (n_i / n^r) (v_i - w). Where ``w`` is a
  dict of kernel and bias, so is the model after the round.
  """
  start = as_model(w["kernel"], w["bias"]) if isinstance(w, dict) else w
  trained = [sgd(start, clients[i], batches[i], lr, l2, mu) for i in cohort]
  model = server_step(start, trained, average_weights(clients, cohort), server_lr)
  if isinstance(w, dict):
    model = {"kernel": model[:-1], "bias": model[-1]}
  return SimpleNamespace(trained=trained, model=model)


# Scalings.


def feature_counts(x):
  """n_i^j: samples of one client whose feature j is not zero, [D + 1]."""
  return np.count_nonzero(with_ones(x), axis=0)


def total_counts(clients):
  """n^j of (19), [D + 1], and n, over all clients of E (not the cohort)."""
  return (sum(feature_counts(x) for x, _ in clients), sum(len(y) for _, y in clients))


def feature_scaling(x_i, counts_all, n_all):
  """Lambda_i of (21), [D + 1]: n^j n_i / (n n_i^j).

  (21) divides by zero where the client has no sample with feature j: 1 there.
  One entry per input feature, used for all L classes. The bias is a column of
  ones in x, so n_i^j = n_i, n^j = n and its entry is 1.
  """
  counts = feature_counts(x_i)
  return np.where(
    counts > 0, counts_all * len(x_i) / (n_all * np.maximum(counts, 1)), 1.0
  )


def aggregate_scaling(clients, cohort, mode):
  """A_r of (59), [D + 1].

  omega_j is the number of clients of E (not of the cohort) with n_i^j != 0.
    "all": C / omega_j, the rule of the original FSVRG, at least 1.
    "paper": |S^r| / omega_j, as printed, about S / C for a common feature.
    "holders": 1 / omega_j, with the 1 / S of the paper on CLSFSVRG, (22).
    "none": 1.
  A feature held by no client gets 1 in every mode.

  The bias is a column of ones in x, the reading that also makes its entry of
  (21) equal to 1. All C clients hold it (omega = C), so its entry is C / C = 1
  in mode "all" and |S^r| / C in mode "paper": like any other feature held by
  everybody, and so that (60) moves the bias and the kernel by the same
  fraction.
  """
  omega = sum((feature_counts(x) != 0).astype(int) for x, _ in clients)
  numerator = {"all": len(clients), "paper": len(cohort), "holders": 1, "none": omega}[
    mode
  ]
  return np.where(omega > 0, numerator / np.maximum(omega, 1), 1.0)


# Local training, Procedure 1.


def local_training(start, w0, anchor, client, batches, alpha_l, l2, scaling):
  """w_{i,K} of (24): the steps (20), (22), (23) from ``start``.

    d = -(Lambda_i [g_i(w) - g_i(w0)] + anchor),  w <- w + (alpha_l / n_i) d.

  Both g_i use the same mini-batch and include the L2 term, which Lambda_i
  therefore multiplies too. Only the bracket is scaled.
  """

  def direction(g, v, x, y):
    return scaling[:, None] * (g - gradient(w0, x, y, l2)) + anchor

  return local_steps(start, client, batches, alpha_l / len(client[1]), l2, direction)


def cohort_training(
  starts, w0s, anchors, clients, cohort, batches, alpha_l, l2, scale_features
):
  """``local_training`` of every participant, from lists [S]."""
  counts, n = total_counts(clients)
  return [
    local_training(
      start,
      w0,
      anchor,
      clients[i],
      batches[i],
      alpha_l,
      l2,
      feature_scaling(clients[i][0], counts, n)
      if scale_features
      else np.ones(len(counts)),
    )
    for start, w0, anchor, i in zip(starts, w0s, anchors, cohort)
  ]


# FSVRG, Konecny et al.


def fsvrg_round(
  w, clients, batches, alpha_l, l2=0.0, cohort=(), aggregate="all", scale_features=True
):
  """FSVRG: w <- w + A sum_{i in S} (n_i / n^r) (w_i - w), no acceleration.

  Algorithm 4 of Konecny et al. restricted to a cohort: anchor (16) over the
  cohort, local training (20)-(24) with the step alpha_l / n_i, weights n_i /
  n^r, scaling A of mode `aggregate`.
  """
  size = len(cohort)
  trained = cohort_training(
    [w] * size,
    [w] * size,
    [anchor_gradient(w, clients, cohort, l2)] * size,
    clients,
    cohort,
    batches,
    alpha_l,
    l2,
    scale_features,
  )
  scaling = aggregate_scaling(clients, cohort, aggregate)
  return server_step(w, trained, average_weights(clients, cohort), scaling[:, None])


# Grouping, Procedures 2 and 3.


def project(vectors, num_groups, relative_tolerance=1e-6):
  """(26), (29), (37), (38) for models; (45), (48)-(51) for gradients.

  U holds the K - 1 leading left singular vectors of the centred matrix [P, S];
  the paper calls them eigenvectors of W^T W, which has the wrong size. The
  points are U^T W. (45) prints the gradients of all machines at the model of
  machine i; the mean here is that of each machine's gradient at its own model.

  A singular value that is zero or below relative_tolerance times the largest
  gives a zero column of U, hence zero coordinates of points and centres, and so
  does a direction beyond min(P, S). The sign of each column is chosen so that
  the coordinate of largest absolute value among the points is positive; no
  result in the full space depends on it.
  """
  matrix = np.stack(vectors, axis=1)
  mean = matrix.mean(axis=1)
  centred = matrix - mean[:, None]
  left_vectors, values, _ = np.linalg.svd(centred, full_matrices=False)
  basis = np.zeros((len(mean), num_groups - 1))
  for c, value in enumerate(values[: num_groups - 1]):
    if value > relative_tolerance * values[0]:
      coordinates = left_vectors[:, c] @ centred
      basis[:, c] = left_vectors[:, c] * np.sign(
        coordinates[np.argmax(np.abs(coordinates))]
      )
  return Projection(mean, basis, centred.T @ basis)


def project_centre(projection, vector, centre=True):
  """(39), (53): U^T (vector - mean).

  As printed (centre=False) the mean is not subtracted, although U and the
  points belong to centred data, which shifts every centre by U^T mean.
  """
  return projection.basis.T @ (vector - projection.mean * centre)


def lift(projection, coordinates):
  """(43) and the bracket of (57): U coordinates + mean."""
  return projection.basis @ coordinates + projection.mean


def farthest_first(points, origin, num_groups):
  """Centres of the first round with K models, [K, K - 1]: participants.

  The K models are then copies of one, so (39) and (53) give one point K times.
  Instead: centre 0 is the participant's point farthest from that one (origin);
  centre c is the one whose distance to the nearest of the centres 0..c-1 is
  largest. Ties go to the lowest slot.
  """
  points, centres = np.asarray(points, np.float64), []
  for _ in range(num_groups):
    nearest = [
      min(np.sum((point - c) ** 2) for c in centres or [origin]) for point in points
    ]
    centres.append(points[np.argmax(nearest)])
  return np.stack(centres)


def kmeans(points, centres, max_steps=50):
  """Lloyd's iterations (40)-(41), (54)-(55): assignments [S], centres [K, .].

  A tie goes to the lowest group. The mean of a group is not weighted. A group
  without points, 0/0 in (41), keeps its centre. (42) and (56) ask for a sum of
  distances below 1e-4, which never happens: the loop stops when an assignment
  equals the one before, or after max_steps assignments. The centres returned
  are those updated with the assignments returned.
  """
  points = np.asarray(points, np.float64)
  centres, assignments = np.array(centres, np.float64), None
  for _ in range(max_steps):
    current = np.array(
      [np.argmin(np.sum((centres - point) ** 2, axis=1)) for point in points]
    )
    if np.array_equal(current, assignments):
      break
    assignments = current
    for c in np.unique(assignments):
      centres[c] = points[assignments == c].mean(axis=0)
  return assignments, centres


# Central acceleration, Procedure 4.


def zero_moments(w):
  """Line 1 of Procedure 4: m = v = 0."""
  return np.zeros_like(w, np.float64), np.zeros_like(w, np.float64)


def accelerate(
  w_r,
  central_gradient,
  moments,
  r,
  alpha_g=0.02,
  beta1=0.0,
  beta2=0.999,
  eps=1e-8,
  central_rule="corrected",
):
  """(62)-(64) for one model; returns the model and the new moments.

  (62) prints m^r on both sides and the gradient at the model being computed;
  like (63) it is read m^r = beta1 m^{r-1} + (1 - beta1) g(w^r). eps stands
  inside the root. r counts the accelerated rounds so far, this one included,
  the warm-up rounds among them.

    "printed": alpha_g (1 - beta1) sqrt((1 - beta2^r) / (1 - beta2))
               m / sqrt(v + eps), (64). The factor belongs to moments that are
               sums, but (62) and (63) are averages.
    "corrected": alpha_g sqrt(1 - beta2^r) m / sqrt(v + eps).
  """
  rate = (
    alpha_g
    * np.sqrt(1.0 - beta2**r)
    * {"printed": (1.0 - beta1) / np.sqrt(1.0 - beta2), "corrected": 1.0}[central_rule]
  )
  m = beta1 * moments[0] + (1.0 - beta1) * central_gradient
  v = beta2 * moments[1] + (1.0 - beta2) * central_gradient**2
  return w_r - rate * m / np.sqrt(v + eps), (m, v)


# Complete rounds.


def grouped_round(
  method,
  models,
  moments,
  r,
  clients,
  cohort,
  batches,
  alpha_l,
  l2=0.0,
  split=False,
  centre=True,
  aggregate="all",
  scale_features=True,
  step=-1.0,
  acceleration=True,
  **central,
):
  """One round of MA-FSVRG ("ma": Procedures 1, 2, 4) or GA-FSVRG (1, 3, 4).

  models and moments have K entries; r counts accelerated rounds, this one
  included. The preference (18) is the model of least full local loss, the L2
  term included; ties go to the lowest index. In the split round, the first with
  K models, pass copies of the one model and of its moments and split=True: the
  centres are then those of farthest_first, which starts from the projection of
  the first of the models ("ma") or anchors ("ga"), instead of (39). Group k of
  the k-means (`assignments`) and preference k (`preferences`) are different
  sets, both called S_k^r in the paper. (43) gives the mean of the group only
  within the K - 1 directions. An empty group makes no grouping step (w* = w),
  but is accelerated. ``central`` has the options of ``accelerate``.

  "ga" has the full local gradients at the trained models in place of the
  trained models, and the anchor gradients (17) = (52) as first centres.
  (57)-(58) read w* = w + A_r (average gradient), which climbs. Here w* = w +
  step A_r (average gradient) with step = -1; step = 1 is the paper as printed.
  FLAG: (57) multiplies by A_r and (60) does so again, hence w^r = w + step
  A_r^2 (average gradient). That is kept as printed. The trained models are used
  only to measure gradients.

  For the rounds r <= T the paper gives only (16). They are read as a round r >
  T with K = 1: no direction is kept, so the representative is the unweighted
  mean of the participants' trained models, or of their gradients there, and

    "ma": w* = mean_i w_{i,K}
    "ga": w* = w + step A_r mean_i grad f_i(w_{i,K}).
  """
  anchors = [anchor_gradient(w, clients, cohort, l2) for w in models]
  losses = np.array([[loss(w, *clients[i], l2=l2) for w in models] for i in cohort])
  preferences = np.argmin(losses, axis=1)
  starts = [models[k] for k in preferences]
  trained = cohort_training(
    starts,
    starts,
    [anchors[k] for k in preferences],
    clients,
    cohort,
    batches,
    alpha_l,
    l2,
    scale_features,
  )

  objects, places = (
    (trained, models)
    if method == "ma"
    else ([gradient(w, *clients[i], l2=l2) for w, i in zip(trained, cohort)], anchors)
  )
  projection = project([o.ravel() for o in objects], len(models))
  centres = np.stack(
    [project_centre(projection, place.ravel(), centre) for place in places]
  )
  if split:
    centres = farthest_first(projection.points, centres[0], len(models))
  assignments, centres = kmeans(projection.points, centres)

  scaling = aggregate_scaling(clients, cohort, aggregate)[:, None]
  moments, result = list(moments), []
  for k, w in enumerate(models):
    w_star = w
    if np.any(assignments == k):
      lifted = lift(projection, centres[k]).reshape(w.shape)
      w_star = lifted if method == "ma" else w + step * scaling * lifted
    w = w + scaling * (w_star - w)  # (60)
    if acceleration:
      w, moments[k] = accelerate(
        w, anchor_gradient(w, clients, cohort, l2), moments[k], r, **central
      )
    result.append(w)
  return SimpleNamespace(
    losses=losses,
    preferences=preferences,
    assignments=assignments,
    moments=moments,
    models=result,
  )
