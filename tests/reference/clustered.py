"""NumPy oracle of FedGroup, FedGrouProx, IFCA, FeSEM, CFL and FL+HC.

Written from the paper and from the specification of the baselines (its sections
4 and 6), blind to any other implementation: float64, plain loops over clients
and steps. Algorithm and equation numbers are those of

  M. Duan et al., "FedGroup: Efficient Clustered Federated Learning via
  Decomposed Data-Driven Measure", 2020.

IFCA: Ghosh et al. 2020. FeSEM: Xie et al. 2020, arXiv:2005.01026. CFL: Sattler
et al. 2020. FL+HC: Briggs et al. 2020. "Code" means the code of the authors.

The model is softmax regression, the local objective that of diversified.py,
whose helpers are used: {"kernel": [D, L], "bias": [L]} and l2 on the bias too.
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

from typing import NamedTuple

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial import distance

from . import baselines
from . import diversified as oracle


class GroupRound(NamedTuple):
  """One round of FedAvg inside every group; also that of IFCA."""
  groups: np.ndarray  # [S], the group of each participant.
  trained: list  # S models.
  models: list  # m models.


class ColdStart(NamedTuple):
  """Algorithm 3, lines 15-18."""
  models: list  # m models.
  directions: list  # m updates.
  auxiliary: dict  # Uniform mean of the m models.


class FedGroupState(NamedTuple):
  """State of FedGroup between rounds."""
  w0: dict
  models: list
  directions: list  # Those of the cold start, never changed.
  latest: list  # Latest update of each group.
  auxiliary: dict
  membership: dict  # Client id -> group; a client that is not in it is cold.


class FedGroupRound(NamedTuple):
  """One round of FedGroup."""
  groups: np.ndarray
  trained: list
  intra: list  # Group models before inter-group aggregation.
  discrepancy: float  # (4), to the newest model of the group.
  received_discrepancy: float  # (4), to the model the client started from.
  state: FedGroupState


class FesemRound(NamedTuple):
  """One round of FeSEM."""
  groups: np.ndarray
  trained: list
  models: list  # The centres.
  local: dict  # Client id -> its last local model.


class CflState(NamedTuple):
  """State of CFL between rounds."""
  models: list
  membership: dict  # Client id -> cluster, all clients.
  updates: dict  # Client id -> its last update, once it has taken part.


class Split(NamedTuple):
  """One cluster in two."""
  kept: list  # Ids that keep the number.
  moved: list  # Ids of the new cluster.
  cross: float  # Largest cosine between the halves.


class CflRound(NamedTuple):
  """One round of CFL."""
  groups: np.ndarray  # The cluster of each participant before the round.
  trained: list
  mean_norms: dict  # Cluster -> norm of the mean update, where it was tested.
  max_norms: dict  # Cluster -> largest norm of an update, likewise.
  splits: dict  # Cluster -> Split.
  state: CflState


class FlhcClusters(NamedTuple):
  """The clustering round of FL+HC."""
  updates: list  # N updates.
  distances: np.ndarray  # [N, N].
  labels: np.ndarray  # [N].


# Local training and averages.


def local_sgd(w, x, y, batches, lr, l2=0., mu=0.):
  """ClientUpdate of Algorithm 1 with the proximal term of (3).

  v <- v - lr (g(v; B) + mu (v - w)), from v = w; no batch leaves w.
  """
  w = oracle.as_model(w)
  v = oracle.as_model(w)
  for rows in batches:
    step = oracle.batch_gradient(v, x, y, rows, l2)
    v = oracle.add(v, oracle.add(step, oracle.add(v, w, -1.), mu), -lr)
  return v


def group_round(
    models, groups, clients, ids, batches, lr, l2=0., mu=0.,
    weights="examples"):
  """IntraGroupUpdate for every group: Algorithm 2, lines 5-8 and 12-16.

  groups[s] is the group of ids[s]. The weights run over the participants of the
  group (F-01); the proximal centre is the group's model (F-25). A group without
  participants keeps its model. It is also a later round of FL+HC.
  """
  models = [oracle.as_model(w) for w in models]
  groups = np.array([int(g) for g in groups], int)
  trained = [local_sgd(models[g], *clients[i], batches[i], lr, l2, mu)
             for g, i in zip(groups, ids, strict=True)]
  result = []
  for j, w in enumerate(models):
    slots = np.flatnonzero(groups == j)
    if not len(slots):
      result.append(w)
      continue
    shares = baselines.average_weights(
        clients, [ids[s] for s in slots], weights)
    result.append(oracle.weighted_sum(shares, [trained[s] for s in slots]))
  return GroupRound(groups, trained, result)


def discrepancy(trained, groups, models):
  """(4): mean over S of ||w_i - models[group of i]||."""
  return float(np.mean([
      np.linalg.norm(vector(oracle.add(w, models[g], -1.)))
      for w, g in zip(trained, groups, strict=True)]))


# Similarities and groupings.


def vector(update):
  """[P], from a model or a vector."""
  if isinstance(update, dict):
    return oracle.to_vector(oracle.as_model(update))
  return np.asarray(update, np.float64).reshape(-1)


def cosine(a, b):
  """(5); 0 where a vector is zero."""
  a, b = vector(a), vector(b)
  norms = np.linalg.norm(a) * np.linalg.norm(b)
  return float(a @ b / norms) if norms > 0. else 0.


def cosine_matrix(updates):
  """(6), [n, n]."""
  return np.array([[cosine(a, b) for b in updates] for a in updates])


def edc_embedding(updates, m):
  """(8): cosines to the m leading left singular vectors of dW^T, [n, m].

  The signs of the columns are arbitrary. The decomposition is not centred, as
  printed. A direction that does not exist, or whose singular value is 0, is
  orthogonal to all updates: 0.
  """
  rows = np.array([vector(u) for u in updates])
  basis, singular_values, _ = np.linalg.svd(rows.T, full_matrices=False)
  result = np.zeros((len(rows), m))
  for j in range(min(m, len(singular_values))):
    if singular_values[j] > 1e-12 * singular_values[0]:
      for i, row in enumerate(rows):
        result[i, j] = cosine(row, basis[:, j])
  return result


def madc(updates):
  """(7): mean over z, neither i nor j, of |S(i, z) - S(j, z)|, [n, n]."""
  n = len(updates)
  if n < 3:
    raise ValueError(f"MADC needs 3 updates, got {n}")
  similarity = cosine_matrix(updates)
  result = np.zeros((n, n))
  for i in range(n):
    for j in range(n):
      if i == j:
        continue
      for z in range(n):
        if z not in (i, j):
          result[i, j] += abs(similarity[i, z] - similarity[j, z]) / (n - 2)
  return result


def number_labels(labels):
  """Groups numbered by their first member."""
  numbers = {}
  for label in labels:
    numbers.setdefault(int(label), len(numbers))
  return np.array([numbers[int(label)] for label in labels], int)


def _tree(distances, linkage):
  """Merges as scipy lists them, from a square matrix."""
  distances = np.array(distances, np.float64)
  np.fill_diagonal(distances, 0.)
  condensed = distance.squareform(distances, checks=False)
  return hierarchy.linkage(condensed, linkage)


def cut_at_count(distances, linkage, count):
  """Agglomerative clustering into `count` groups; labels [n].

  With linkage="complete" and madc(), the grouping of Algorithm 3, line 10.
  """
  if len(distances) == 1:
    return np.zeros(1, int)
  tree = _tree(distances, linkage)
  cut = hierarchy.cut_tree(tree, n_clusters=min(count, len(distances)))
  return number_labels(cut[:, 0])


def cut_at_distance(distances, linkage, threshold):
  """Agglomerative clustering that merges up to the threshold; labels [n].

  A merge at exactly the threshold is made.
  """
  if len(distances) == 1:
    return np.zeros(1, int)
  return number_labels(hierarchy.fcluster(
      _tree(distances, linkage), threshold, criterion="distance"))


def assign_by_cosine(update, directions):
  """(9): argmin_j (1 - cos(direction_j, update)) / 2."""
  return int(np.argmin([(1. - cosine(u, update)) / 2. for u in directions]))


# FedGroup and FedGrouProx.


def fedgroup_cold_start(w0, updates, labels, m):
  """Algorithm 3, lines 15-18, for a given grouping of the pool.

    direction_g = uniform mean of the updates of the members,
    model_g = w0 + direction_g.

  Line 16 calls the first the model (F-07). A group without members has model w0
  and direction 0.
  """
  w0 = oracle.as_model(w0)
  labels = np.asarray(labels, int)
  directions = []
  for j in range(m):
    members = [updates[s] for s in np.flatnonzero(labels == j)]
    directions.append(
        oracle.uniform_mean(members) if members else oracle.zeros_like(w0))
  models = [oracle.add(w0, u) for u in directions]
  return ColdStart(models, directions, oracle.uniform_mean(models))


def pretrain(start, clients, ids, batches, lr, l2=0.):
  """Updates of the clients from `start`, no proximal term (F-25)."""
  return [
      oracle.add(local_sgd(start, *clients[i], batches[i], lr, l2), start, -1.)
      for i in ids]


def fedgroup_start(w0, clients, pool, labels, m, batches, lr, l2=0.):
  """State after Algorithm 3, for a given grouping of the pool (F-02).

  `batches` are those of the pre-training. RCC is a pool of m clients with
  labels 0..m-1 (F-22).
  """
  w0 = oracle.as_model(w0)
  updates = pretrain(w0, clients, pool, batches, lr, l2)
  cold = fedgroup_cold_start(w0, updates, labels, m)
  membership = {int(i): int(g) for i, g in zip(pool, labels, strict=True)}
  return FedGroupState(
      w0, cold.models, cold.directions, list(cold.directions), cold.auxiliary,
      membership)


def assign_cold_client(
    state, client, batches, lr, l2=0., reading="frozen"):
  """Client cold start (9) of one (x, y), in the readings of F-12.

    "frozen": pre-trained from w0, against the directions of the cold start;
    "auxiliary": from the auxiliary w, against model_g - w;
    "printed": from the auxiliary w, against the latest update of the group.
  """
  if reading == "frozen":
    start, directions = state.w0, state.directions
  elif reading == "auxiliary":
    start = state.auxiliary
    directions = [oracle.add(w, start, -1.) for w in state.models]
  elif reading == "printed":
    start, directions = state.auxiliary, state.latest
  else:
    raise ValueError(f"unknown reading {reading!r}")
  update = pretrain(start, [client], [0], [batches], lr, l2)[0]
  return assign_by_cosine(update, directions)


def inter_group(models, eta_g, form="printed"):
  """InterGroupAggregation, simultaneous over the groups (F-03, F-04).

    "printed": w_j + eta_g sum_{l != j} (w_l - w_j) / ||w_l - w_j||, line 19;
    "code": (w_j + eta_g sum w_l / ||w_l||) / (1 + eta_g sum 1 / ||w_l||).

  A term whose norm is 0 is left out.
  """
  if form not in ("printed", "code"):
    raise ValueError(f"unknown form {form!r}")
  models = [oracle.as_model(w) for w in models]
  result = []
  for j, w_j in enumerate(models):
    total, divisor = oracle.as_model(w_j), 1.
    for l, w_l in enumerate(models):
      if l == j:
        continue
      term = oracle.add(w_l, w_j, -1.) if form == "printed" else w_l
      norm = np.linalg.norm(vector(term))
      if norm > 0.:
        total = oracle.add(total, term, eta_g / norm)
        divisor += eta_g / norm
    if form == "code":
      total = oracle.weighted_sum([1. / divisor], [total])
    result.append(total)
  return result


def fedgroup_round(
    state, clients, ids, batches, lr, l2=0., mu=0., eta_g=0.,
    form="printed", weights="examples", reading="frozen", cold_batches=None,
    cold_lr=None):
  """One round of Algorithm 2, after the cold start of its new clients.

  A cold participant is assigned first, with cold_batches[i] and cold_lr (lr if
  None), then trains from its group's model like the others (F-11). Then lines
  5-11; the auxiliary model is the uniform mean of all m models, empty groups
  included (F-13). The latest update of a group is model after minus model
  before the round, inter-group step included; a group that trained nobody
  keeps its previous one (F-13). RAC: put the cold clients in the membership.
  """
  membership = dict(state.membership)
  for i in ids:
    if int(i) not in membership:
      membership[int(i)] = assign_cold_client(
          state, clients[i], cold_batches[i],
          lr if cold_lr is None else cold_lr, l2, reading)
  intra = group_round(
      state.models, [membership[int(i)] for i in ids], clients, ids, batches,
      lr, l2, mu, weights)
  models = inter_group(intra.models, eta_g, form)
  latest = [
      oracle.add(models[j], state.models[j], -1.)
      if j in intra.groups else state.latest[j] for j in range(len(models))]
  return FedGroupRound(
      intra.groups, intra.trained, intra.models,
      discrepancy(intra.trained, intra.groups, models),
      discrepancy(intra.trained, intra.groups, state.models),
      state._replace(
          models=models, latest=latest, membership=membership,
          auxiliary=oracle.uniform_mean(models)))


# IFCA.


def ifca_choice(models, x, y, l2=0.):
  """argmin_j f(models[j]): loss of all training examples, L2 term included."""
  return int(np.argmin([oracle.loss(oracle.as_model(w), x, y, l2)
                        for w in models]))


def ifca_round(
    models, clients, ids, batches, lr, l2=0., average="models",
    weights="uniform"):
  """IFCA, section 4.1.

    "models": w_j <- mean of the models trained from w_j;
    "gradients": w_j <- w_j - lr sum_{k: j_k = j} share_k grad f_k(w_j), all
    examples, with share_k = 1 / m or n_k / sum_S n over all m participants,
    not those of the cluster. `batches` is not used, `trained` is empty.

  A model nobody chose stays.
  """
  models = [oracle.as_model(w) for w in models]
  choices = [ifca_choice(models, *clients[i], l2) for i in ids]
  if average == "models":
    return group_round(
        models, choices, clients, ids, batches, lr, l2, weights=weights)
  if average != "gradients":
    raise ValueError(f"unknown average {average!r}")
  result = [oracle.as_model(w) for w in models]
  shares = baselines.average_weights(clients, ids, weights)
  for share, j, i in zip(shares, choices, ids, strict=True):
    g = oracle.gradient(models[j], *clients[i], l2)
    result[j] = oracle.add(result[j], g, -lr * share)
  return GroupRound(np.array(choices, int), [], result)


# FeSEM.


def nearest_centre(w, centres):
  """argmin_j ||w - C_j||_2 over all parameters."""
  return int(np.argmin([np.linalg.norm(vector(w) - vector(c))
                        for c in centres]))


def fesem_round(
    centres, local, clients, ids, batches, lr, l2=0., weights="uniform",
    first=None):
  """FeSEM, section 4.2.

  E: the centre nearest to the stored last local model of the participant. Then
  local training from that centre. M: each centre is the mean of the new local
  models of its participants of this round, or stays. The table follows.

  local: client id -> model (a list is read as indexed by id). A client that is
  not in it takes the centre first[i].
  """
  local = {i: oracle.as_model(w)
           for i, w in baselines.copy_table(local).items()}
  groups = [nearest_centre(local[i], centres) if i in local else first[i]
            for i in ids]
  result = group_round(
      centres, groups, clients, ids, batches, lr, l2, weights=weights)
  local.update(zip(ids, result.trained, strict=True))
  return FesemRound(result.groups, result.trained, result.models, local)


# CFL.


def bipartition(updates, linkage="complete"):
  """Labels 0 and 1 by agglomerative clustering of -cosine; 0 has the first.

  "complete" is the code's, "single" minimises the largest cosine between the
  halves, as the paper does. 1 - cosine has the same tree.
  """
  return cut_at_count(1. - cosine_matrix(updates), linkage, 2)


def cross_similarity(updates, labels):
  """Largest cosine between the two halves."""
  return max(cosine(a, b)
             for a, s in zip(updates, labels, strict=True) if s == 0
             for b, t in zip(updates, labels, strict=True) if t == 1)


def cfl_round(
    state, clients, ids, batches, lr, eps1, eps2, l2=0.,
    linkage="complete", gamma_max=None, weights="uniform", splitting=True,
    min_size=3, missing="wait"):
  """CFL, section 4.3.

  Every participant trains from the model of its cluster and its update is
  stored. A cluster of min_size members or more splits where, of the last
  updates of all its members,

    ||mean|| < eps1, max ||.|| > eps2 and, unless gamma_max is None,
    gamma_max < sqrt((1 - largest cosine between the halves) / 2).

  The half with the lowest id keeps the number, the other gets the next free
  one; clusters are visited in the order of their numbers, new ones not in the
  round they arise in. Then each cluster, halves included, moves by the mean of
  the updates of its participants of this round, so that without a split the
  round is FedAvg whatever the participation; with none it stays.

  `weights` serves both means ("uniform" is the code's, "examples" the paper's).
  splitting=False stands for the code's rounds up to the 20th. Before all
  members have taken part the cluster is not tested (missing="wait"), or those
  that have not count as zero updates (missing="zero").
  """
  if missing not in ("wait", "zero"):
    raise ValueError(f"unknown missing {missing!r}")
  membership, updates = dict(state.membership), dict(state.updates)
  before = [membership[int(i)] for i in ids]
  trained = []
  for i, j in zip(ids, before, strict=True):
    w = oracle.as_model(state.models[j])
    trained.append(local_sgd(w, *clients[i], batches[i], lr, l2))
    updates[int(i)] = oracle.add(trained[-1], w, -1.)
  models = [oracle.as_model(w) for w in state.models]
  mean_norms, max_norms, splits = {}, {}, {}
  for j in range(len(state.models)):
    members = sorted(i for i, c in membership.items() if c == j)
    if not members or missing == "wait" and not set(members) <= set(updates):
      continue
    last = [updates.get(i, oracle.zeros_like(models[j])) for i in members]
    shares = baselines.average_weights(clients, members, weights)
    mean_norms[j] = np.linalg.norm(vector(oracle.weighted_sum(shares, last)))
    max_norms[j] = max(np.linalg.norm(vector(u)) for u in last)
    if not (splitting and len(members) >= min_size
            and mean_norms[j] < eps1 and max_norms[j] > eps2):
      continue
    labels = bipartition(last, linkage)
    cross = cross_similarity(last, labels)
    # Rounding may leave a cosine a little above 1.
    angle = np.sqrt(max(1. - cross, 0.) / 2.)
    if gamma_max is not None and not gamma_max < angle:
      continue
    halves = [[i for i, s in zip(members, labels, strict=True) if s == half]
              for half in (0, 1)]
    splits[j] = Split(halves[0], halves[1], cross)
    membership.update({i: len(models) for i in halves[1]})
    models.append(models[j])
  result = []
  for j, w in enumerate(models):
    present = [int(i) for i in ids if membership[int(i)] == j]
    if present:
      shares = baselines.average_weights(clients, present, weights)
      w = oracle.add(
          w, oracle.weighted_sum(shares, [updates[i] for i in present]))
    result.append(w)
  return CflRound(
      np.array(before, int), trained, mean_norms, max_norms, splits,
      CflState(result, membership, updates))


# FL+HC.


def update_distances(updates, metric):
  """"l1", "l2" or "cosine" (1 - cos) distances of updates, [n, n]."""
  rows = [vector(u) for u in updates]
  rules = {
      "l1": lambda a, b: np.sum(np.abs(a - b)),
      "l2": lambda a, b: np.sqrt(np.sum((a - b) ** 2)),
      "cosine": lambda a, b: 1. - cosine(a, b)}
  result = np.array([[rules[metric](a, b) for b in rows] for a in rows])
  np.fill_diagonal(result, 0.)
  return result


def flhc_cluster(
    w, clients, batches, lr, threshold, l2=0., metric="l1",
    linkage="complete"):
  """The clustering round of FL+HC, section 4.4.

  All clients train from w; their updates, not their models, are clustered.
  "ward" is defined for "l2" only. A merge at exactly the threshold is made.
  The clusters go on from w, each for itself: group_round with labels.
  """
  if linkage == "ward" and metric != "l2":
    raise ValueError(f"ward linkage needs metric 'l2', got {metric!r}")
  updates = pretrain(
      oracle.as_model(w), clients, range(len(clients)), batches, lr, l2)
  distances = update_distances(updates, metric)
  return FlhcClusters(
      updates, distances, cut_at_distance(distances, linkage, threshold))


# Data shift and scores.


def label_histogram(y, num_classes):
  """Share of every label, [L]; zeros without examples."""
  counts = np.zeros(num_classes)
  for label in y:
    counts[int(label)] += 1.
  return counts / max(len(y), 1)


def total_variation(p, q):
  """(1 / 2) sum_l |p_l - q_l| of two histograms, each normalised first.

  In place of the Wasserstein distance of the code, which takes the counts for
  samples and so does not see a permutation of the labels (section 6.4).
  """
  p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
  p = p / np.sum(p) if np.sum(p) > 0. else p
  q = q / np.sum(q) if np.sum(q) > 0. else q
  return float(np.sum(np.abs(p - q)) / 2.)
