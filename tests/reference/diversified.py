"""NumPy oracle of FedAvg, FedProx, FSVRG, MA-FSVRG and GA-FSVRG.

Written from the paper, blind to any other implementation: float64, plain loops
over clients, steps and models, no tricks. Equation numbers are those of

  L. Zhao, L. Cai, W.-S. Lu, "Tailored Federated Learning With Adaptive Central
  Acceleration on Diversified Global Models", IEEE TNNLS, 2024.

FedAvg is McMahan et al. 2017, FedProx is Li et al. 2020 and FSVRG is Algorithm
4 of Konecny et al. 2016 (arXiv:1610.02527).

The model is softmax regression. A model, a gradient and a moment are all dicts
{"kernel": [D, L], "bias": [L]}. The objective of client i is

  f_i(w) = mean cross-entropy + (l2 / 2) (||kernel||^2 + ||bias||^2).

Axes: C clients, S participants, K global models, D features, L classes, P = D L
+ L parameters.

Arguments shared by the round functions:
  clients: list of all C clients, each a pair (x [n_i, D], y [n_i] of int).
  cohort: ids of the S participants in increasing order; slot s of every result
    belongs to client cohort[s]. The default is all clients.
  batches: batches[i][k] holds the row indices of the mini-batch of client i (an
    id, not a slot; a list over clients or a dict) in its local step k. The
    steps may differ in number and size.
No randomness is drawn here.

Where the paper cannot be run as printed, the docstring of the function says
which reading it follows.
"""

from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
  """First and second moment of one global model, (62) and (63)."""
  m: dict
  v: dict


class AverageRound(NamedTuple):
  """One round of FedAvg or FedProx."""
  weights: np.ndarray  # [S], n_i / n^r.
  trained: list  # S models.
  model: dict


class FsvrgRound(NamedTuple):
  """One round of FSVRG without central acceleration."""
  anchor: dict  # (16).
  trained: list  # S models, (24).
  displacement: dict  # sum_i (n_i / n^r) (w_i - w).
  scaling: dict  # A.
  model: dict


class Projection(NamedTuple):
  """Centred points and their top K - 1 coordinates, (26)-(38), (45)-(51)."""
  mean: np.ndarray  # [P], the unweighted mean of the participants.
  basis: np.ndarray  # U, [P, K - 1]; a zero column where the rank is exceeded.
  singular_values: np.ndarray  # [K - 1].
  points: np.ndarray  # [S, K - 1].


class GroupedRound(NamedTuple):
  """One round of MA-FSVRG or GA-FSVRG, warm-up rounds included."""
  anchors: list  # K gradients, (17).
  losses: np.ndarray  # [S, K], f_i(w_k).
  preferences: np.ndarray  # [S], (18).
  feature_scaling: list  # S vectors [D], (21).
  trained: list  # S models, (24).
  trained_gradients: list  # S gradients at the trained models (GA, else None).
  projection: Projection
  start_centres: np.ndarray  # [K, K - 1], (39), (53), or farthest first.
  centres: np.ndarray  # [K, K - 1], after Lloyd's iterations.
  assignments: np.ndarray  # [S], (40) or (54).
  w_star: list  # K models, (43) or (58).
  scaling: dict  # A_r, (59).
  w_r: list  # K models, (60).
  central_gradients: list  # K gradients, (61); None without acceleration.
  moments: list  # K Moments, (62) and (63).
  models: list  # K models, (64).


# Arithmetic on models.


def as_model(w):
  """A float64 copy of a model."""
  return {"kernel": np.array(w["kernel"], np.float64),
          "bias": np.array(w["bias"], np.float64)}


def zeros_like(w):
  """A model of zeros."""
  return {"kernel": np.zeros_like(np.asarray(w["kernel"], np.float64)),
          "bias": np.zeros_like(np.asarray(w["bias"], np.float64))}


def add(a, b, factor=1.):
  """a + factor * b."""
  return {"kernel": a["kernel"] + factor * b["kernel"],
          "bias": a["bias"] + factor * b["bias"]}


def weighted_sum(weights, models):
  """sum_i weights_i models_i."""
  total = zeros_like(models[0])
  for weight, model in zip(weights, models):
    total = add(total, model, weight)
  return total


def uniform_mean(models):
  """(1 / S) sum_i models_i."""
  return weighted_sum([1. / len(models)] * len(models), models)


def scale(scaling, w):
  """Diagonal scaling: row j of the kernel by kernel[j], the bias by bias."""
  return {"kernel": scaling["kernel"][:, None] * w["kernel"],
          "bias": scaling["bias"] * w["bias"]}


def to_vector(w):
  """Kernel, row by row, then bias: [P]."""
  return np.concatenate([w["kernel"].reshape(-1), w["bias"].reshape(-1)])


def to_model(vector, like):
  """Inverse of to_vector."""
  size = like["kernel"].size
  return {"kernel": vector[:size].reshape(like["kernel"].shape),
          "bias": vector[size:].reshape(like["bias"].shape)}


# The local objective.


def log_probabilities(w, x):
  """log softmax(x kernel + bias), [n, L]."""
  logits = np.asarray(x, np.float64) @ w["kernel"] + w["bias"]
  logits = logits - np.max(logits, axis=1, keepdims=True)
  return logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))


def loss(w, x, y, l2):
  """f_i(w) of (2): mean cross-entropy + (l2 / 2) ||w||^2, bias included."""
  log_p = log_probabilities(w, x)
  total = 0.
  for row, label in enumerate(y):
    total -= log_p[row, int(label)]
  penalty = np.sum(w["kernel"] ** 2) + np.sum(w["bias"] ** 2)
  return total / len(y) + 0.5 * l2 * penalty


def gradient(w, x, y, l2):
  """Gradient of (2); with the rows of a mini-batch, g_i(w) of (20)."""
  x = np.asarray(x, np.float64)
  residual = np.exp(log_probabilities(w, x))
  for row, label in enumerate(y):
    residual[row, int(label)] -= 1.
  return {"kernel": x.T @ residual / len(y) + l2 * w["kernel"],
          "bias": np.sum(residual, axis=0) / len(y) + l2 * w["bias"]}


def batch_gradient(w, x, y, rows, l2):
  """Mini-batch gradient: the mean over the rows, plus l2 w."""
  rows = np.asarray(rows, int)
  return gradient(w, np.asarray(x)[rows], np.asarray(y)[rows], l2)


def participants(clients, cohort):
  """Ids of the participants, increasing; all clients if cohort is None."""
  if cohort is None:
    return list(range(len(clients)))
  ids = [int(i) for i in cohort]
  if ids != sorted(set(ids)):
    raise ValueError(f"cohort must increase strictly, got {ids}")
  return ids


def cohort_weights(clients, cohort):
  """n_i / n^r over the participants, [S], as in (16)."""
  sizes = np.array([len(clients[i][1]) for i in cohort], np.float64)
  return sizes / np.sum(sizes)


def anchor_gradient(w, clients, cohort, l2):
  """g(w) = sum_{i in S^r} (n_i / n^r) grad f_i(w): (16), (17), (52), (61).

  (17) prints S^{r-1}; the text and lines 2-7 of Procedure 1 collect from all of
  S^r, for every one of the K models.
  """
  gradients = [gradient(w, *clients[i], l2) for i in cohort]
  return weighted_sum(cohort_weights(clients, cohort), gradients)


# FedAvg and FedProx.


def fedprox_round(
    w, clients, batches, lr, server_lr=1., mu=0., l2=0., cohort=None):
  """FedProx without stragglers, FedAvg with mu = 0.

  v <- v - lr (g_i(v) + mu (v - w)).

  Then w <- w + server_lr sum_{i in S} (n_i / n^r) (v_i - w).
  """
  w = as_model(w)
  cohort = participants(clients, cohort)
  trained = []
  for i in cohort:
    x, y = clients[i]
    v = as_model(w)
    for rows in batches[i]:
      direction = batch_gradient(v, x, y, rows, l2)
      direction = add(direction, add(v, w, -1.), mu)
      v = add(v, direction, -lr)
    trained.append(v)
  weights = cohort_weights(clients, cohort)
  displacement = weighted_sum(weights, [add(v, w, -1.) for v in trained])
  return AverageRound(weights, trained, add(w, displacement, server_lr))


# Scalings.


def feature_counts(x):
  """n_i^j: samples of one client whose feature j is not zero, [D] of int."""
  return np.sum(np.asarray(x) != 0, axis=0)


def total_counts(clients):
  """n^j of (19), [D], and n, over all clients of E (not the cohort)."""
  counts = np.zeros(np.asarray(clients[0][0]).shape[1], int)
  n_all = 0
  for x, y in clients:
    counts = counts + feature_counts(x)
    n_all += len(y)
  return counts, n_all


def feature_scaling(x_i, counts_all, n_all):
  """Lambda_i of (21), [D]: n^j n_i / (n n_i^j).

  (21) divides by zero where the client has no sample with feature j: 1 there.
  One entry per input feature, used for all L classes. The bias is a column of
  ones in x, so n_i^j = n_i, n^j = n and its entry is exactly 1; it is not in
  the vector.
  """
  n_i = len(x_i)
  counts = feature_counts(x_i)
  result = np.ones(len(counts))
  for j, count in enumerate(counts):
    if count > 0:
      result[j] = float(counts_all[j]) * n_i / (float(n_all) * count)
  return result


def aggregate_scaling(clients, cohort, mode):
  """A_r of (59), {"kernel": [D], "bias": scalar}.

  omega_j is the number of clients of E (not of the cohort) with n_i^j != 0.
    "all": C / omega_j, the rule of the original FSVRG, at least 1.
    "paper": |S^r| / omega_j, as printed, about S / C for a common feature.
    "none": 1.
  A feature held by no client gets 1 in every mode.

  The bias is a column of ones in x, the reading that also makes its entry of
  (21) equal to 1. All C clients hold it (omega = C), so its entry is C / C = 1
  in mode "all" and |S^r| / C in mode "paper": like any other feature held by
  everybody, and so that (60) moves the bias and the kernel by the same
  fraction.
  """
  cohort = participants(clients, cohort)
  holders = np.zeros(np.asarray(clients[0][0]).shape[1], int)
  bias_holders = 0
  for x, y in clients:
    holders = holders + (feature_counts(x) != 0)
    bias_holders += int(len(y) > 0)
  if mode == "all":
    numerator = float(len(clients))
  elif mode == "paper":
    numerator = float(len(cohort))
  elif mode == "none":
    return {"kernel": np.ones(len(holders)), "bias": 1.}
  else:
    raise ValueError(f"unknown mode {mode!r}")
  kernel = np.ones(len(holders))
  for j, omega in enumerate(holders):
    if omega > 0:
      kernel[j] = numerator / omega
  return {"kernel": kernel, "bias": numerator / bias_holders}


# Local training, Procedure 1.


def local_training(w0, anchor, x, y, batches_i, alpha_l, l2, scaling=None):
  """w_{i,K} of (24): the steps (20), (22), (23).

    d = -(Lambda_i [g_i(w) - g_i(w0)] + anchor),  w <- w + (alpha_l / n_i) d.

  Both g_i use the same mini-batch and include the L2 term, which Lambda_i
  therefore multiplies too. Only the bracket is scaled. scaling is Lambda_i as a
  vector [D]; None stands for ones.
  """
  w0 = as_model(w0)
  if scaling is None:
    scaling = np.ones(w0["kernel"].shape[0])
  lambda_i = {"kernel": np.asarray(scaling, np.float64), "bias": 1.}
  rate = alpha_l / len(y)
  w = as_model(w0)
  for rows in batches_i:
    bracket = add(batch_gradient(w, x, y, rows, l2),
                  batch_gradient(w0, x, y, rows, l2), -1.)
    minus_direction = add(scale(lambda_i, bracket), anchor)
    w = add(w, minus_direction, -rate)
  return w


def cohort_scalings(clients, cohort, scale_features):
  """Lambda_i of every participant: S vectors [D]; ones if not scaled."""
  counts_all, n_all = total_counts(clients)
  if not scale_features:
    return [np.ones(len(counts_all)) for _ in cohort]
  return [feature_scaling(clients[i][0], counts_all, n_all) for i in cohort]


# FSVRG, Konecny et al.


def fsvrg_round(
    w, clients, batches, alpha_l, l2=0., cohort=None, aggregate="all",
    scale_features=True):
  """FSVRG: w <- w + A sum_{i in S} (n_i / n^r) (w_i - w), no acceleration.

  Algorithm 4 of Konecny et al. restricted to a cohort: anchor (16) over the
  cohort, local training (20)-(24) with the step alpha_l / n_i, weights n_i /
  n^r, scaling A of mode `aggregate`.
  """
  w = as_model(w)
  cohort = participants(clients, cohort)
  anchor = anchor_gradient(w, clients, cohort, l2)
  lambdas = cohort_scalings(clients, cohort, scale_features)
  trained = []
  for slot, i in enumerate(cohort):
    trained.append(local_training(
        w, anchor, *clients[i], batches[i], alpha_l, l2, lambdas[slot]))
  weights = cohort_weights(clients, cohort)
  displacement = weighted_sum(weights, [add(v, w, -1.) for v in trained])
  scaling = aggregate_scaling(clients, cohort, aggregate)
  model = add(w, scale(scaling, displacement))
  return FsvrgRound(anchor, trained, displacement, scaling, model)


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
  mean = np.mean(matrix, axis=1)
  centred = matrix - mean[:, None]
  left, values, _ = np.linalg.svd(centred, full_matrices=False)
  basis = np.zeros((matrix.shape[0], num_groups - 1))
  singular_values = np.zeros(num_groups - 1)
  for c in range(min(num_groups - 1, len(values))):
    singular_values[c] = values[c]
    if values[c] == 0. or values[c] < relative_tolerance * values[0]:
      continue
    column = left[:, c]
    coordinates = column @ centred
    if coordinates[np.argmax(np.abs(coordinates))] < 0:
      column = -column
    basis[:, c] = column
  points = np.zeros((len(vectors), num_groups - 1))
  for s in range(len(vectors)):
    points[s] = basis.T @ centred[:, s]
  return Projection(mean, basis, singular_values, points)


def project_centre(projection, vector, centre=True):
  """(39), (53): U^T (vector - mean).

  As printed (centre=False) the mean is not subtracted, although U and the
  points belong to centred data, which shifts every centre by U^T mean.
  """
  if centre:
    return projection.basis.T @ (vector - projection.mean)
  return projection.basis.T @ vector


def lift(projection, coordinates):
  """(43) and the bracket of (57): U coordinates + mean."""
  return projection.basis @ coordinates + projection.mean


def squared_distance(a, b):
  """||a - b||^2."""
  return float(np.sum((np.asarray(a) - np.asarray(b)) ** 2))


def farthest_first(points, origin, num_groups):
  """Centres of the first round with K models, [K, K - 1]: participants.

  The K models are then copies of one, so (39) and (53) give one point K times.
  Instead: centre 0 is the participant's point farthest from that one (origin);
  centre c is the one whose distance to the nearest of the centres 0..c-1 is
  largest. Ties go to the lowest slot.
  """
  points = np.asarray(points, np.float64)
  centres = []
  while len(centres) < num_groups:
    best, best_distance = 0, -1.
    for s, point in enumerate(points):
      nearest = min(squared_distance(point, c) for c in centres or [origin])
      if nearest > best_distance:
        best, best_distance = s, nearest
    centres.append(np.array(points[best]))
  return np.stack(centres)


def kmeans(points, centres, max_steps=50):
  """Lloyd's iterations (40)-(41), (54)-(55): assignments [S], centres [K, .].

  A tie goes to the lowest group. The mean of a group is not weighted. A group
  without points, 0/0 in (41), keeps its centre. (42) and (56) ask for a sum of
  distances below 1e-4, which never happens: the loop stops when an assignment
  equals the one before, or after max_steps assignments. The centres returned
  are those updated with the assignments returned.
  """
  if max_steps < 1:
    raise ValueError(f"max_steps must be positive, got {max_steps}")
  points = np.asarray(points, np.float64)
  centres = np.array(centres, np.float64)
  assignments = None
  for _ in range(max_steps):
    current = np.zeros(len(points), int)
    for s, point in enumerate(points):
      distances = [squared_distance(point, c) for c in centres]
      current[s] = int(np.argmin(distances))
    if assignments is not None and np.array_equal(current, assignments):
      break
    assignments = current
    for c in range(len(centres)):
      members = [points[s] for s in range(len(points)) if assignments[s] == c]
      if members:
        centres[c] = sum(members) / len(members)
  return assignments, centres


# Central acceleration, Procedure 4.


def zero_moments(w):
  """Line 1 of Procedure 4: m = v = 0."""
  return Moments(zeros_like(w), zeros_like(w))


def accelerate(
    w_r, central_gradient, moments, r, alpha_g=.02, beta1=0., beta2=.999,
    eps=1e-8, central_rule="corrected"):
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
  if central_rule == "printed":
    rate = alpha_g * (1. - beta1) * np.sqrt(
        (1. - beta2 ** r) / (1. - beta2))
  elif central_rule == "corrected":
    rate = alpha_g * np.sqrt(1. - beta2 ** r)
  else:
    raise ValueError(f"unknown central_rule {central_rule!r}")
  m, v, model = {}, {}, {}
  for name in ("kernel", "bias"):
    g = central_gradient[name]
    m[name] = beta1 * moments.m[name] + (1. - beta1) * g
    v[name] = beta2 * moments.v[name] + (1. - beta2) * g ** 2
    model[name] = w_r[name] - rate * m[name] / np.sqrt(v[name] + eps)
  return model, Moments(m, v)


def central_step(
    models, w_star, moments, r, clients, cohort, scaling, l2, acceleration,
    alpha_g, beta1, beta2, eps, central_rule):
  """Procedure 4, lines 4-8, for all K models: (60)-(64).

  Without acceleration the models are those of (60), the moments stay and no
  gradient (61) is taken.
  """
  w_r, gradients, new_moments, new_models = [], [], [], []
  for k, w in enumerate(models):
    moved = add(w, scale(scaling, add(w_star[k], w, -1.)))  # (60)
    w_r.append(moved)
    if not acceleration:
      gradients.append(None)
      new_moments.append(moments[k])
      new_models.append(moved)
      continue
    g = anchor_gradient(moved, clients, cohort, l2)  # (61)
    model, new = accelerate(
        moved, g, moments[k], r, alpha_g, beta1, beta2, eps, central_rule)
    gradients.append(g)
    new_moments.append(new)
    new_models.append(model)
  return w_r, gradients, new_moments, new_models


# Complete rounds.


def procedure_1(models, clients, cohort, batches, alpha_l, l2, scale_features):
  """Procedure 1: (17)-(24) for K models.

  Returns anchors, losses [S, K], preferences [S], the Lambda_i and the trained
  models. The preference (18) is the model of least full local loss, the L2 term
  included; ties go to the lowest index.
  """
  anchors = [anchor_gradient(w, clients, cohort, l2) for w in models]
  lambdas = cohort_scalings(clients, cohort, scale_features)
  losses = np.zeros((len(cohort), len(models)))
  preferences = np.zeros(len(cohort), int)
  trained = []
  for slot, i in enumerate(cohort):
    x, y = clients[i]
    for k, w in enumerate(models):
      losses[slot, k] = loss(w, x, y, l2)
    k = int(np.argmin(losses[slot]))
    preferences[slot] = k
    trained.append(local_training(
        models[k], anchors[k], x, y, batches[i], alpha_l, l2, lambdas[slot]))
  return anchors, losses, preferences, lambdas, trained


def _grouped_round(
    method, models, moments, r, clients, cohort, batches, alpha_l, l2, split,
    centre, max_steps, aggregate, scale_features, step, scale_displacement,
    acceleration, alpha_g, beta1, beta2, eps, central_rule):
  """Procedures 1, 2 (method "ma") or 3 (method "ga"), and 4."""
  models = [as_model(w) for w in models]
  moments = [Moments(as_model(m), as_model(v)) for m, v in moments]
  num_groups = len(models)
  cohort = participants(clients, cohort)
  anchors, losses, preferences, lambdas, trained = procedure_1(
      models, clients, cohort, batches, alpha_l, l2, scale_features)

  if method == "ma":
    trained_gradients = None
    objects, starts = trained, models
  else:
    trained_gradients = [
        gradient(trained[slot], *clients[i], l2)
        for slot, i in enumerate(cohort)]
    objects, starts = trained_gradients, anchors
  projection = project([to_vector(o) for o in objects], num_groups)
  start_centres = [
      project_centre(projection, to_vector(s), centre) for s in starts]
  if split:
    start_centres = farthest_first(
        projection.points, start_centres[0], num_groups)
  start_centres = np.stack(start_centres)
  assignments, centres = kmeans(projection.points, start_centres, max_steps)

  scaling = aggregate_scaling(clients, cohort, aggregate)
  w_star = []
  for k, w in enumerate(models):
    if not np.any(assignments == k):
      w_star.append(as_model(w))  # An empty group makes no grouping step.
      continue
    lifted = to_model(lift(projection, centres[k]), w)
    if method == "ma":
      w_star.append(lifted)  # (43)
    else:
      displacement = scale(scaling, lifted) if scale_displacement else lifted
      w_star.append(add(w, displacement, step))  # (57), (58)

  w_r, central_gradients, new_moments, new_models = central_step(
      models, w_star, moments, r, clients, cohort, scaling, l2, acceleration,
      alpha_g, beta1, beta2, eps, central_rule)
  return GroupedRound(
      anchors, losses, preferences, lambdas, trained, trained_gradients,
      projection, start_centres, centres, assignments, w_star, scaling, w_r,
      central_gradients, new_moments, new_models)


def ma_round(
    models, moments, r, clients, cohort, batches, alpha_l, l2=0., split=False,
    centre=True, max_steps=50, aggregate="all", scale_features=True,
    acceleration=True, alpha_g=.02, beta1=0., beta2=.999, eps=1e-8,
    central_rule="corrected"):
  """One round r > T of MA-FSVRG: Procedures 1, 2 and 4, (17)-(43), (59)-(64).

  models and moments have K entries; r counts accelerated rounds, this one
  included. In the split round, the first with K models, pass copies of the one
  model and of its moments and split=True: the centres are then those of
  farthest_first, which starts from the projection of models[0], instead of
  (39). Group k of
  the k-means (`assignments`) and preference k (`preferences`) are different
  sets, both called S_k^r in the paper. (43) gives the mean of the group only
  within the K - 1 directions. An empty group makes no grouping step (w* = w),
  but is accelerated.
  """
  return _grouped_round(
      "ma", models, moments, r, clients, cohort, batches, alpha_l, l2, split,
      centre, max_steps, aggregate, scale_features, None, None, acceleration,
      alpha_g, beta1, beta2, eps, central_rule)


def ga_round(
    models, moments, r, clients, cohort, batches, alpha_l, l2=0., split=False,
    centre=True, max_steps=50, aggregate="all", scale_features=True, step=-1.,
    scale_displacement=True, acceleration=True, alpha_g=.02, beta1=0.,
    beta2=.999, eps=1e-8, central_rule="corrected"):
  """One round r > T of GA-FSVRG: Procedures 1, 3 and 4, (44)-(58), (59)-(64).

  As ma_round, with the full local gradients at the trained models in place of
  the trained models, and the anchor gradients (17) = (52) as first centres; in
  the split round farthest_first starts from the projection of anchors[0].

  (57)-(58) read w* = w + A_r (average gradient), which climbs. Here w* = w +
  step A_r (average gradient) with step = -1; step = 1 is the paper as printed.
  FLAG: (57) multiplies by A_r and (60) does so again, hence w^r = w + step
  A_r^2 (average gradient). That is kept as printed; scale_displacement=False
  drops the A_r of (57). The trained models are used only to measure gradients.
  """
  return _grouped_round(
      "ga", models, moments, r, clients, cohort, batches, alpha_l, l2, split,
      centre, max_steps, aggregate, scale_features, step, scale_displacement,
      acceleration, alpha_g, beta1, beta2, eps, central_rule)


def warmup_round(
    method, w, moments, r, clients, cohort, batches, alpha_l, l2=0.,
    aggregate="all", scale_features=True, step=-1., scale_displacement=True,
    acceleration=True, alpha_g=.02, beta1=0., beta2=.999, eps=1e-8,
    central_rule="corrected"):
  """One round r <= T of MA-FSVRG or GA-FSVRG: one model, no grouping.

  The paper gives only (16) for these rounds. Read as a round r > T with K = 1:
  no direction is kept, so the representative is the unweighted mean of the
  participants' trained models ("ma") or of their gradients there ("ga"), and

    "ma": w* = mean_i w_{i,K}
    "ga": w* = w + step A_r mean_i grad f_i(w_{i,K}), step = -1,

  then (60)-(64), A_r twice for "ga" as in ga_round. Written without the
  grouping code, so that the two check each other. The fields of the result have
  K = 1 entries; the fields of the k-means are trivial.
  """
  if method not in ("ma", "ga"):
    raise ValueError(f"unknown method {method!r}")
  w = as_model(w)
  moments = Moments(as_model(moments[0]), as_model(moments[1]))
  cohort = participants(clients, cohort)
  anchor = anchor_gradient(w, clients, cohort, l2)  # (16)
  lambdas = cohort_scalings(clients, cohort, scale_features)
  trained = []
  for slot, i in enumerate(cohort):
    trained.append(local_training(
        w, anchor, *clients[i], batches[i], alpha_l, l2, lambdas[slot]))
  scaling = aggregate_scaling(clients, cohort, aggregate)
  trained_gradients = None
  if method == "ma":
    w_star = uniform_mean(trained)
    mean = to_vector(w_star)
  else:
    trained_gradients = [
        gradient(trained[slot], *clients[i], l2)
        for slot, i in enumerate(cohort)]
    direction = uniform_mean(trained_gradients)
    mean = to_vector(direction)
    if scale_displacement:
      direction = scale(scaling, direction)
    w_star = add(w, direction, step)
  w_r, central_gradients, new_moments, new_models = central_step(
      [w], [w_star], [moments], r, clients, cohort, scaling, l2, acceleration,
      alpha_g, beta1, beta2, eps, central_rule)
  slots = len(cohort)
  losses = np.array([[loss(w, *clients[i], l2)] for i in cohort])
  projection = Projection(
      mean, np.zeros((mean.size, 0)), np.zeros(0), np.zeros((slots, 0)))
  return GroupedRound(
      [anchor], losses, np.zeros(slots, int), lambdas, trained,
      trained_gradients, projection, np.zeros((1, 0)), np.zeros((1, 0)),
      np.zeros(slots, int), [w_star], scaling, w_r, central_gradients,
      new_moments, new_models)
