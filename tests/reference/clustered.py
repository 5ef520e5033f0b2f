"""NumPy oracle of FedGroup, FedGrouProx, IFCA, FeSEM, CFL and FL+HC.

Written from the paper and from the specification of the baselines (its sections
4 and 6), blind to any other implementation: float64, plain loops over clients
and steps. Algorithm and equation numbers are those of

  M. Duan et al., "FedGroup: Efficient Clustered Federated Learning via
  Decomposed Data-Driven Measure", 2020.

IFCA: Ghosh et al. 2020. FeSEM: Xie et al. 2020, arXiv:2005.01026. CFL: Sattler
et al. 2020. FL+HC: Briggs et al. 2020. "Code" means the code of the authors.

The model is softmax regression, the local objective that of diversified.py,
whose helpers are used.
Arguments shared by the round functions:
  clients: list of all N clients, each a pair (x [n_i, D], y [n_i] of int).
  ids: the distinct clients of the cohort S, in any order; `trained` and
    `groups` of every result follow it.
  batches: batches[i] holds one array of row indices per local step of client i
    (an id; a list over clients or a dict).
  l2: coefficient of (l2 / 2) ||w||^2, bias included.
  weights: inside a group, "examples", n_i / sum n_j over the participants of
    the group, or "uniform".
An update is a model w_i - w, or the vector [P] of it. Groups are numbered from
0 and ties go to the lowest number. A cosine with a zero vector is 0. No
randomness is drawn and no argument is changed.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial import distance

from . import diversified as oracle


class GroupRound(NamedTuple):
  """One round of FedAvg inside every group; also that of IFCA."""

  groups: np.ndarray  # [S], the group of each participant.
  trained: list  # S models.
  models: list  # m models.


class FedGroupState(NamedTuple):
  """State of FedGroup between rounds."""

  w0: np.ndarray
  models: list
  directions: list  # Those of the cold start, never changed.
  latest: list  # Latest update of each group.
  auxiliary: np.ndarray
  membership: dict  # Client id -> group; a client that is not in it is cold.


class CflState(NamedTuple):
  """State of CFL between rounds."""

  models: list
  membership: dict  # Client id -> cluster, all clients.
  updates: dict  # Client id -> its last update, once it has taken part.


class Split(NamedTuple):
  """One cluster in two."""

  kept: list  # Ids that keep the number.
  moved: list  # Ids of the new cluster.


# Local training and averages.


def group_round(
  models, groups, clients, ids, batches, lr, l2=0.0, mu=0.0, weights="examples"
):
  """IntraGroupUpdate for every group: Algorithm 2, lines 5-8 and 12-16.

  groups[s] is the group of ids[s]. The weights run over the participants of the
  group (F-01); the proximal centre is the group's model (F-25). A group without
  participants keeps its model. It is also a later round of FL+HC.
  """
  groups, result = np.array(groups, int), list(models)
  trained = [
    oracle.sgd(models[g], clients[i], batches[i], lr, l2, mu)
    for g, i in zip(groups, ids, strict=True)
  ]
  for j in np.unique(groups):
    slots = np.flatnonzero(groups == j)
    shares = oracle.average_weights(clients, [ids[s] for s in slots], weights)
    result[j] = oracle.weighted_sum(shares, [trained[s] for s in slots])
  return GroupRound(groups, trained, result)


def discrepancy(trained, groups, models):
  """(4): mean over S of ||w_i - models[group of i]||."""
  return np.mean(
    [np.linalg.norm(w - models[g]) for w, g in zip(trained, groups, strict=True)]
  )


# Similarities and groupings.


def cosine(a, b):
  """(5); 0 where a vector is zero."""
  a, b = np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)
  norms = np.linalg.norm(a) * np.linalg.norm(b)
  return float(a @ b / norms) if norms > 0.0 else 0.0


def cosine_matrix(updates):
  """(6), [n, n]."""
  return np.array([[cosine(a, b) for b in updates] for a in updates])


def edc_embedding(updates, m):
  """(8): cosines to the m leading left singular vectors of dW^T, [n, m].

  The signs of the columns are arbitrary. The decomposition is not centred, as
  printed. A direction that does not exist, or whose singular value is 0, is
  orthogonal to all updates: 0.
  """
  rows = np.array([np.ravel(u) for u in updates])
  basis, singular_values, _ = np.linalg.svd(rows.T, full_matrices=False)
  result = np.zeros((len(rows), m))
  for j, value in enumerate(singular_values[:m]):
    if value > 1e-12 * singular_values[0]:
      result[:, j] = [cosine(row, basis[:, j]) for row in rows]
  return result


def madc(updates):
  """(7): mean over z, neither i nor j, of |S(i, z) - S(j, z)|, [n, n]."""
  n, similarity = len(updates), cosine_matrix(updates)
  result = np.zeros((n, n))
  for i in range(n):
    for j in range(n):
      others = [z for z in range(n) if z not in (i, j)]
      result[i, j] = np.mean(np.abs(similarity[i, others] - similarity[j, others]))
  return result


def number_labels(labels):
  """Groups numbered by their first member."""
  numbers = {}
  return np.array(
    [numbers.setdefault(int(label), len(numbers)) for label in labels], int
  )


def _tree(distances, linkage):
  """Merges as scipy lists them, from a square matrix."""
  distances = np.array(distances, np.float64)
  np.fill_diagonal(distances, 0.0)
  return hierarchy.linkage(distance.squareform(distances, checks=False), linkage)


def cut_at_count(distances, linkage, count):
  """Agglomerative clustering into `count` groups; labels [n].

  With linkage="complete" and madc(), the grouping of Algorithm 3, line 10.
  """
  cut = hierarchy.cut_tree(
    _tree(distances, linkage), n_clusters=min(count, len(distances))
  )
  return number_labels(cut[:, 0])


def cut_at_distance(distances, linkage, threshold):
  """Agglomerative clustering that merges up to the threshold; labels [n].

  A merge at exactly the threshold is made.
  """
  return number_labels(
    hierarchy.fcluster(_tree(distances, linkage), threshold, criterion="distance")
  )


def assign_by_cosine(update, directions):
  """(9): argmin_j (1 - cos(direction_j, update)) / 2."""
  return int(np.argmin([(1.0 - cosine(u, update)) / 2.0 for u in directions]))


# FedGroup and FedGrouProx.


def fedgroup_cold_start(w0, updates, labels, m):
  """Algorithm 3, lines 15-18, for a given grouping of the pool.

    direction_g = uniform mean of the updates of the members,
    model_g = w0 + direction_g, auxiliary = uniform mean of the m models.

  Line 16 calls the first the model (F-07). A group without members has model w0
  and direction 0.
  """
  labels, updates = np.asarray(labels, int), np.array(updates)
  directions = [
    updates[labels == j].mean(axis=0) if np.any(labels == j) else np.zeros_like(w0)
    for j in range(m)
  ]
  models = [w0 + u for u in directions]
  return SimpleNamespace(
    models=models, directions=directions, auxiliary=np.mean(models, axis=0)
  )


def pretrain(start, clients, ids, batches, lr, l2=0.0):
  """Updates of the clients from `start`, no proximal term (F-25)."""
  return [oracle.sgd(start, clients[i], batches[i], lr, l2) - start for i in ids]


def fedgroup_start(w0, clients, pool, labels, m, batches, lr, l2=0.0):
  """State after Algorithm 3, for a given grouping of the pool (F-02).

  `batches` are those of the pre-training. RCC is a pool of m clients with
  labels 0..m-1 (F-22).
  """
  cold = fedgroup_cold_start(
    w0, pretrain(w0, clients, pool, batches, lr, l2), labels, m
  )
  return FedGroupState(
    w0,
    cold.models,
    cold.directions,
    cold.directions,
    cold.auxiliary,
    {int(i): int(g) for i, g in zip(pool, labels, strict=True)},
  )


def assign_cold_client(state, client, batches, lr, l2=0.0, reading="initial"):
  """Client cold start (9) of one (x, y), in the readings of F-12.

  "initial": pre-trained from w0, against the directions of the cold start;
  "auxiliary": from the auxiliary w, against model_g - w;
  "latest": as printed, from the auxiliary w, against the latest update of
    the group.
  """
  start, directions = {
    "initial": (state.w0, state.directions),
    "auxiliary": (state.auxiliary, np.array(state.models) - state.auxiliary),
    "latest": (state.auxiliary, state.latest),
  }[reading]
  (update,) = pretrain(start, [client], [0], [batches], lr, l2)
  return assign_by_cosine(update, directions)


def inter_group(models, eta_g, form="printed"):
  """InterGroupAggregation, simultaneous over the groups (F-03, F-04).

    "printed": w_j + eta_g sum_{l != j} (w_l - w_j) / ||w_l - w_j||, line 19;
    "code": (w_j + eta_g sum w_l / ||w_l||) / (1 + eta_g sum 1 / ||w_l||).

  A term whose norm is 0 is left out.
  """
  result = []
  for j, w_j in enumerate(models):
    total, divisor = w_j, 1.0
    for l, w_l in enumerate(models):
      term = {"printed": w_l - w_j, "code": w_l}[form]
      norm = np.linalg.norm(term)
      if l != j and norm > 0.0:
        total, divisor = total + eta_g * term / norm, divisor + eta_g / norm
    result.append(total / divisor if form == "code" else total)
  return result


def fedgroup_round(
  state,
  clients,
  ids,
  batches,
  lr,
  l2=0.0,
  mu=0.0,
  eta_g=0.0,
  form="printed",
  weights="examples",
  reading="initial",
  cold_batches=None,
):
  """One round of Algorithm 2, after the cold start of its new clients.

  A cold participant is assigned first, with cold_batches[i], then trains from
  its group's model like the others (F-11). Then lines 5-11; the auxiliary model
  is the uniform mean of all m models, empty groups included (F-13). The latest
  update of a group is model after minus model before the round, inter-group
  step included; a group that trained nobody keeps its previous one (F-13). RAC:
  put the cold clients in the membership.
  """
  membership = dict(state.membership)
  for i in set(ids) - set(membership):
    membership[i] = assign_cold_client(
      state, clients[i], cold_batches[i], lr, l2, reading
    )
  intra = group_round(
    state.models,
    [membership[i] for i in ids],
    clients,
    ids,
    batches,
    lr,
    l2,
    mu,
    weights,
  )
  models = inter_group(intra.models, eta_g, form)
  latest = [
    new - old if j in intra.groups else last
    for j, (new, old, last) in enumerate(zip(models, state.models, state.latest))
  ]
  return intra._replace(models=models), state._replace(
    models=models,
    latest=latest,
    membership=membership,
    auxiliary=np.mean(models, axis=0),
  )


# IFCA.


def ifca_choice(models, x, y, l2=0.0):
  """argmin_j f(models[j]): loss of all training examples, L2 term included."""
  return int(np.argmin([oracle.loss(w, x, y, l2) for w in models]))


def ifca_round(
  models, clients, ids, batches, lr, l2=0.0, average="model", weights="uniform"
):
  """IFCA, section 4.1.

    "model": w_j <- mean of the models trained from w_j;
    "gradient": w_j <- w_j - lr sum_{k: j_k = j} share_k grad f_k(w_j), all
    examples, with share_k = 1 / m or n_k / sum_S n over all m participants,
    not those of the cluster. `batches` is not used, `trained` are the models
    after a whole step of each.

  A model nobody chose stays.
  """
  choices = np.array([ifca_choice(models, *clients[i], l2=l2) for i in ids])
  if average == "model":
    return group_round(models, choices, clients, ids, batches, lr, l2, weights=weights)
  trained = [
    models[j] - lr * oracle.gradient(models[j], *clients[i], l2=l2)
    for j, i in zip(choices, ids)
  ]
  result = list(models)
  for share, j, v in zip(
    oracle.average_weights(clients, ids, weights), choices, trained
  ):
    result[j] = result[j] + share * (v - models[j])
  return GroupRound(choices, trained, result)


# FeSEM.


def nearest_centre(w, centres):
  """argmin_j ||w - C_j||_2 over all parameters."""
  return int(np.argmin([np.linalg.norm(w - c) for c in centres]))


def fesem_round(
  centres, local, clients, ids, batches, lr, l2=0.0, weights="uniform", first=None
):
  """FeSEM, section 4.2.

  E: the centre nearest to the stored last local model of the participant. Then
  local training from that centre. M: each centre is the mean of the new local
  models of its participants of this round, or stays. The table follows.

  local: client id -> model. A client that is not in it takes the centre
  first[i].
  """
  groups = [nearest_centre(local[i], centres) if i in local else first[i] for i in ids]
  result = group_round(centres, groups, clients, ids, batches, lr, l2, weights=weights)
  return result, local | dict(zip(ids, result.trained, strict=True))


# CFL.


def bipartition(updates, linkage="complete"):
  """Labels 0 and 1 by agglomerative clustering of -cosine; 0 has the first.

  "complete" is the code's, "single" minimizes the largest cosine between the
  halves, as the paper does. 1 - cosine has the same tree.
  """
  return cut_at_count(1.0 - cosine_matrix(updates), linkage, 2)


def cross_similarity(updates, labels):
  """Largest cosine between the two halves."""
  return cosine_matrix(updates)[np.ix_(labels == 0, labels == 1)].max()


def cfl_parting(
  last, shares, eps1, eps2, linkage="complete", gamma_max=None, min_size=3
):
  """The two norms that decide, and the halves' labels or None; CFL, 4.3.

  A cluster of min_size members or more splits where, of the last updates of all
  its members,

    ||mean|| < eps1, max ||.|| > eps2 and, unless gamma_max is None,
    gamma_max < sqrt((1 - largest cosine between the halves) / 2).
  """
  mean = np.linalg.norm(oracle.weighted_sum(shares, last))
  largest = max(np.linalg.norm(u) for u in last)
  if not (len(last) >= min_size and mean < eps1 and largest > eps2):
    return mean, largest, None
  labels = bipartition(last, linkage)
  # Rounding may leave a cosine a little above 1.
  angle = np.sqrt(max(1.0 - cross_similarity(last, labels), 0.0) / 2.0)
  splits = gamma_max is None or gamma_max < angle
  return mean, largest, labels if splits else None


def cfl_round(
  state,
  clients,
  ids,
  batches,
  lr,
  l2=0.0,
  weights="uniform",
  splitting=True,
  **criterion,
):
  """CFL, section 4.3.

  Every participant trains from the model of its cluster and its update is
  stored. Clusters split by ``cfl_parting``, whose options are ``criterion``.
  The half with the lowest id keeps the number, the other gets the next free
  one; clusters are visited in the order of their numbers, new ones not in the
  round they arise in. Then each cluster, halves included, moves by the mean of
  the updates of its participants of this round, so that without a split the
  round is FedAvg whatever the participation; with none it stays.

  `weights` serves both means ("uniform" is the code's, "examples" the paper's).
  splitting=False stands for the code's rounds up to the 20th. Members are the
  clients that have taken part.
  """
  membership, models = dict(state.membership), list(state.models)
  before = np.array([membership[i] for i in ids], int)
  trained = [
    oracle.sgd(models[j], clients[i], batches[i], lr, l2) for i, j in zip(ids, before)
  ]
  updates = state.updates | {i: v - models[j] for i, j, v in zip(ids, before, trained)}
  norms, splits = {}, {}
  for j in range(len(state.models)):
    members = sorted(i for i, c in membership.items() if c == j)
    if not members:
      continue
    *norms[j], labels = cfl_parting(
      [updates[i] for i in members],
      oracle.average_weights(clients, members, weights),
      **criterion,
    )
    if not splitting or labels is None:
      continue
    splits[j] = Split(*(np.array(members)[labels == half].tolist() for half in (0, 1)))
    membership.update(dict.fromkeys(splits[j].moved, len(models)))
    models.append(models[j])
  for j, w in enumerate(models):
    present = [i for i in ids if membership[i] == j]
    if present:
      shares = oracle.average_weights(clients, present, weights)
      models[j] = w + oracle.weighted_sum(shares, [updates[i] for i in present])
  return SimpleNamespace(
    groups=before,
    trained=trained,
    norms=norms,
    splits=splits,
    state=CflState(models, membership, updates),
  )


# FL+HC.


def update_distances(updates, metric):
  """ "l1" or "l2" distances of updates, [n, n]."""
  names = {"l1": "cityblock", "l2": "euclidean"}
  return distance.squareform(
    distance.pdist([np.ravel(u) for u in updates], names[metric])
  )


def flhc_cluster(w, clients, batches, lr, l2=0.0, metric="l1"):
  """The updates of the clustering round of FL+HC, their distances; 4.4.

  All clients train from w; their updates, not their models, are clustered.
  "ward" is defined for "l2" only. A merge at exactly the threshold is made
  (``cut_at_distance``). The clusters go on from w, each for itself: group_round
  with labels.
  """
  updates = pretrain(w, clients, range(len(clients)), batches, lr, l2)
  return updates, update_distances(updates, metric)


# Data shift and scores.


def label_histogram(y, num_classes):
  """Share of every label, [L]; zeros without examples."""
  return np.bincount(y, minlength=num_classes) / max(len(y), 1)


def total_variation(p, q):
  """(1 / 2) sum_l |p_l - q_l| of two histograms, each normalized first.

  In place of the Wasserstein distance of the code, which takes the counts for
  samples and so does not see a permutation of the labels (section 6.4).
  """
  return np.abs(p / np.sum(p) - q / np.sum(q)).sum() / 2.0
