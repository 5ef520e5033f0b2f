"""NumPy oracle of PACFL's grouping, written before any other implementation.

S. Vahidian et al., "Efficient Distribution Similarity Identification in
Clustered Federated Learning via Principal Angles Between Client Data
Subspaces", AAAI 2023. Its rounds are FedAvg inside every group, as in
``clustered.group_round``. float64, plain loops; angles in degrees.

A client's data are x [n, D], one example a row, so that the left singular
vectors of the paper's D x n matrix are the right ones of x. A subspace is an
array [r, D] of unit vectors.
"""

import numpy as np


def leading_vectors(x, p):
  """The first p singular vectors of the data, as many as the data's rank."""
  _, values, vectors = np.linalg.svd(np.asarray(x, float), full_matrices=False)
  vectors = vectors[:p][values[:p] > 1e-3 * values[0]]
  largest = np.abs(vectors).argmax(1)
  return vectors * np.sign(vectors[np.arange(len(vectors)), largest])[:, None]


def client_vectors(x, y, p, subspace):
  """What a client sends: of all its examples, or of those of every class."""
  if subspace == "all":
    return leading_vectors(x, p)
  return np.concatenate([leading_vectors(x[y == c], p) for c in np.unique(y)])


def angle(u, v, reading):
  """The distance of two subspaces.

  "smallest": the least principal angle; "sum": all of them added;
  "entry" (code): the least arccos of an inner product of two of the vectors.
  """
  if reading == "entry":
    return np.degrees(np.arccos(np.clip(u @ v.T, -1, 1)).min())
  bases = []
  for rows in (u, v):  # vectors of several classes are no orthonormal basis
    _, values, basis = np.linalg.svd(rows, full_matrices=False)
    bases.append(basis[values > 1e-3 * values[0]])
  cosines = np.linalg.svd(bases[0] @ bases[1].T, compute_uv=False)
  angles = np.degrees(np.arccos(np.clip(cosines, -1, 1)))
  return angles.min() if reading == "smallest" else angles.sum()


def proximity(subspaces, reading):
  """The proximity matrix A of the clients."""
  n = len(subspaces)
  matrix = np.zeros((n, n))
  for i in range(n):
    for j in range(i):
      matrix[i, j] = matrix[j, i] = angle(subspaces[i], subspaces[j], reading)
  return matrix


def nearest_group(subspace, subspaces, labels, linkage, reading):
  """The group that a newcomer joins, by the linkage of the clustering."""
  distances = np.array([angle(subspace, other, reading) for other in subspaces])
  whole = {"single": np.min, "complete": np.max, "average": np.mean}[linkage]
  return int(np.argmin([whole(distances[labels == g]) for g in range(max(labels) + 1)]))
