"""NumPy oracle of FedACnnL, pFedACnnL, AFL, pFedMe; estimates of FedZO, BAFFLE.

Written from the paper and from the specification of the baselines (its sections
7 and 8), blind to any other implementation: float64, plain loops. Equation
numbers are those of

  S. Gu et al., "Analytic personalized federated meta-learning", 2025.

AFL: He et al. 2025, arXiv:2405.16240. FedZO: Fang et al. 2022. BAFFLE: Feng et
al. 2022. pFedMe: Dinh et al. 2020. pFedZO: Chen et al. 2024, reconstructed.

  clients: list of clients, each a pair (x [n_i, ...], y [n_i] of int).
  code: Q of a layer, [L, width] (one code for every position) or
    [L, P, width] (one for each of the P output positions).
  layers: list of dicts with "kind": "conv" ("kernel": k), "dense", "avg" or
    "max" ("size": p, stride p, remainder dropped), "flatten". A conv or dense
    layer also has "code" and the other options of solve_layer. ReLU follows
    every one of them but the last, whose code is the identity if it has none.

The gradient methods train the softmax regression of diversified.py. Directions
are arrays like its models. No randomness is drawn and no argument is changed.
"""

import functools
from typing import NamedTuple

import numpy as np


class Statistics(NamedTuple):
  """What clients send for a layer with input maps X, unfolded to rows [d]."""

  gram: np.ndarray  # [d, d], sum over examples and positions.
  sums: np.ndarray  # [d], likewise.
  class_sums: np.ndarray  # [L, *input_shape], sum of X over each class.
  class_counts: np.ndarray  # [L], examples.


class Solution(NamedTuple):
  """A layer, and what its target was: (Y code - ...) / scale."""

  weight: np.ndarray  # [d, width].
  bias: np.ndarray  # [width].
  scale: np.ndarray  # [width], 1 where columns were not normalized.
  code: np.ndarray | None  # As used, centred if it was; None: random filters.


class AflClient(NamedTuple):
  """What a client of AFL sends, or an aggregate."""

  w: np.ndarray  # [d, L], A^-1 b.
  a: np.ndarray  # [d, d], X'X + gamma I.
  b: np.ndarray  # [d, L], X'Y.


# Layers.


def im2col(x, k):
  """[n, H, W, c] -> [n, H W, k k c], padding "same" with zeros, stride 1.

  Padding (k - 1) // 2 before and k // 2 after. Positions row by row, columns
  (row, column, channel).
  """
  n, height, width, _ = np.shape(x)
  around = ((k - 1) // 2, k // 2)
  padded = np.pad(np.asarray(x, np.float64), ((0, 0), around, around, (0, 0)))
  windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (1, 2))
  return np.moveaxis(windows, 3, -1).reshape(n, height * width, -1)


def unfold(x, kernel=None):
  """[n, *input_shape] -> [n, P, d]; kernel None is a dense layer, P = 1."""
  if kernel is None:
    return np.asarray(x, np.float64)[:, None, :]
  return im2col(x, kernel)


def pool(x, size, reduce):
  """[n, H, W, c] -> [n, H // size, W // size, c]."""
  rows, columns = x.shape[1] // size, x.shape[2] // size
  windows = x[:, : rows * size, : columns * size].reshape(
    len(x), rows, size, columns, size, -1
  )
  return reduce(windows, axis=(2, 4))


def has_weights(layer):
  return layer["kind"] in ("conv", "dense")


def forward(layers, weights, x):
  """Logits [n, L], or the input of the first layer that is not in `weights`.

  weights: per layer with weights a (W, b, ...), as many as are known.
  """
  count = sum(has_weights(layer) for layer in layers)
  x = np.asarray(x, np.float64)
  done = 0
  for layer in layers:
    if has_weights(layer):
      if done == len(weights):
        return x
      shape = x.shape[:-1]
      w, b = weights[done][:2]
      x = (unfold(x, layer.get("kernel")) @ w + b).reshape(shape + (len(b),))
      done += 1
      if done < count:
        x = np.maximum(x, 0.0)
    elif layer["kind"] == "flatten":
      x = x.reshape(len(x), -1)
    else:
      x = pool(x, layer["size"], {"avg": np.mean, "max": np.max}[layer["kind"]])
  return x


# Least squares.


def statistics(x, y, num_classes, kernel=None):
  """(6) for one client; x [n, *input_shape] is the input of the layer."""
  x, y = np.asarray(x, np.float64), np.asarray(y, int)
  patches = unfold(x, kernel)
  patches = patches.reshape(-1, patches.shape[-1])
  class_sums = np.stack([x[y == c].sum(axis=0) for c in range(num_classes)])
  counts = np.bincount(y, minlength=num_classes).astype(np.float64)
  return Statistics(patches.T @ patches, patches.sum(axis=0), class_sums, counts)


def total(parts):
  """(4): the sum over clients."""
  return Statistics(*(sum(values) for values in zip(*parts)))


def high_pass(maps):
  """4 q - up - down - left - right, edges replicated: [n, H, W, ...]."""
  around = [(0, 0), (1, 1), (1, 1)] + [(0, 0)] * (maps.ndim - 3)
  edged = np.pad(maps, around, mode="edge")
  return (
    4.0 * maps
    - edged[:, :-2, 1:-1]
    - edged[:, 2:, 1:-1]
    - (edged[:, 1:-1, :-2] + edged[:, 1:-1, 2:])
  )


def centre_code(code, class_counts):
  """q <- q - sum_c (n_c / N) q_c: the mean target of every position is 0."""
  shares = np.asarray(class_counts, np.float64) / np.sum(class_counts)
  return code - np.tensordot(shares, code, axes=1)


def cross_term(stats, code, kernel=None, laplacian=False):
  """X'T [d, width] and the sum of T over its rows [width], T = Y Q.

  sum_{c, p} M_{c, p} Q_{c, p}, M_{c, p} patch p of the sum of class c. With
  `laplacian` the class sums are high-passed before they are unfolded. That
  stands for a high-passed Q, so the sum over positions is 0.
  """
  maps = high_pass(stats.class_sums) if laplacian else stats.class_sums
  patches = unfold(maps, kernel)
  code = np.asarray(code, np.float64)
  q = np.broadcast_to(
    code if code.ndim == 3 else code[:, None], (*patches.shape[:2], code.shape[-1])
  )
  sums = np.tensordot(stats.class_counts, q, axes=1).sum(axis=0)
  return np.einsum("cpd,cpw->dw", patches, q), sums * (not laplacian)


def num_rows(stats, kernel=None):
  """Examples times positions."""
  return np.sum(stats.class_counts) * unfold(stats.class_sums, kernel).shape[1]


def centred_gram(stats, n):
  """Gc = G - n m m', m the mean row."""
  return stats.gram - np.outer(stats.sums, stats.sums) / n


def normal_matrix(stats, n, bias):
  """The Gram that is used: [d, d], or [d + 1, d + 1] with a ones column."""
  if bias == "ones":
    return np.block(
      [[stats.gram, stats.sums[:, None]], [stats.sums[None, :], np.full((1, 1), n)]]
    )
  return {"none": stats.gram, "centred": centred_gram(stats, n)}[bias]


def right_side(stats, n, bias, cross, sums):
  """The X'T that belongs to normal_matrix."""
  if bias == "ones":
    return np.vstack([cross, sums])
  if bias == "centred":
    return cross - np.outer(stats.sums, sums) / n
  return cross


def split_bias(stats, n, bias, w, sums):
  """(W, b) of a solution; centred: b = tbar - m'W."""
  if bias == "ones":
    return w[:-1], w[-1]
  if bias == "centred":
    return w, (sums - stats.sums @ w) / n
  return w, np.zeros(w.shape[1])


def solve_layer(
  stats,
  code=None,
  ridge=1.0,
  kernel=None,
  relative=False,
  bias="none",
  normalize=False,
  centre=False,
  laplacian=False,
  filters=None,
):
  """(5): W = (G + ridge I)^-1 X'T, from the summed statistics.

  Args:
    relative: ridge times trace(G) / len(G), of the Gram that is used.
    bias: "none"; "ones", a column of ones, penalized like the others;
      "centred", b = tbar - m'W, not penalized.
    normalize: divides column j of W and its bias by s_j =
      sqrt(w_j' Gc w_j / n), Gc the centred Gram whatever the bias; s_j = 1
      where that is 0.
    centre: centre_code with the classes of `stats`.
    laplacian: cross_term.
    filters: R, [d, width] ([d + 1, width] with a ones column). Then W = L^-T R,
      G + ridge I = L L', and there is no code; a centred b is -m'W.
  """
  n = num_rows(stats, kernel)
  matrix = normal_matrix(stats, n, bias)
  size = len(matrix)
  matrix = matrix + np.eye(size) * (
    ridge * np.trace(matrix) / size if relative else ridge
  )
  if filters is None:
    code = np.asarray(code, np.float64)
    if centre:
      code = centre_code(code, stats.class_counts)
    cross, sums = cross_term(stats, code, kernel, laplacian)
    w = np.linalg.solve(matrix, right_side(stats, n, bias, cross, sums))
  else:
    w = np.linalg.solve(np.linalg.cholesky(matrix).T, filters)
    code, sums = None, np.zeros(w.shape[1])
  w, b = split_bias(stats, n, bias, w, sums)
  variance = np.diag(w.T @ centred_gram(stats, n) @ w) / n
  scale = np.sqrt(np.where((variance > 0.0) & normalize, variance, 1.0))
  return Solution(w / scale, b / scale, scale, code)


def options(layer, num_classes):
  """Arguments of solve_layer for a layer of the list."""
  settings = {name: v for name, v in layer.items() if name != "kind"}
  if "filters" not in settings:
    settings.setdefault("code", np.eye(num_classes))
  return settings


def fedacnnl(clients, layers, num_classes):
  """FedACnnL, one round per layer: a list of Solution (W, b, ...)."""
  weights = []
  for layer in filter(has_weights, layers):
    stats = total(
      [
        statistics(forward(layers, weights, x), y, num_classes, layer.get("kernel"))
        for x, y in clients
      ]
    )
    weights.append(solve_layer(stats, **options(layer, num_classes)))
  return weights


# pFedACnnL.


def encoded_label_vectors(clients, code, num_classes):
  """(9): histogram / its l1 norm, times Q; code None: no Q. [N, columns]."""
  rows = np.array([np.bincount(y, minlength=num_classes) / len(y) for _, y in clients])
  return rows if code is None else rows @ code


def personal_layer(stats, meta, lam, kernel=None, bias="none", laplacian=False):
  """(13): (X'X + lam I)^-1 (X'T + lam W_meta) from one client's statistics.

  T = Y code / scale of the meta layer. "ones": the bias is a row of W and of
  W_meta. "centred": X and T less the client's own means, b = tbar - m'W. A
  layer of random filters has no target: (W, b) of the meta model.
  """
  if meta.code is None:
    return meta.weight, meta.bias
  n = num_rows(stats, kernel)
  cross, sums = cross_term(stats, meta.code / meta.scale, kernel, laplacian)
  w_meta = meta.weight
  if bias == "ones":
    w_meta = np.vstack([w_meta, meta.bias])
  matrix = normal_matrix(stats, n, bias)
  w = np.linalg.solve(
    matrix + lam * np.eye(len(matrix)),
    right_side(stats, n, bias, cross, sums) + lam * w_meta,
  )
  return split_bias(stats, n, bias, w, sums)


def personalize(client, layers, meta, lam, num_classes):
  """(12)-(13) layer by layer: X is made by the personalized layers before."""
  x, y = client
  weights = []
  for layer, solution in zip(filter(has_weights, layers), meta, strict=True):
    kernel = layer.get("kernel")
    stats = statistics(forward(layers, weights, x), y, num_classes, kernel)
    weights.append(
      personal_layer(
        stats,
        solution,
        lam,
        kernel,
        layer.get("bias", "none"),
        layer.get("laplacian", False),
      )
    )
  return weights


def pfedacnnl(clients, groups, layers, lam, num_classes):
  """(10)-(13): {group: meta model} and the personal model of every client."""
  meta = {}
  for g in sorted(set(int(g) for g in groups)):
    members = [clients[i] for i in np.flatnonzero(np.asarray(groups) == g)]
    meta[g] = fedacnnl(members, layers, num_classes)
  personal = [
    personalize(client, layers, meta[int(g)], lam, num_classes)
    for client, g in zip(clients, groups, strict=True)
  ]
  return meta, personal


# Time.


def adaptive_batch_size(batch, seconds, first_seconds, largest):
  """(7): clip(round(B t / min_j t_j of the first round), 1, largest), [S]."""
  ratio = np.asarray(seconds, np.float64) / np.min(first_seconds)
  return np.clip(np.rint(batch * ratio), 1, largest).astype(int)


def arrivals(flops, batches, down, up, flops_per_s, batch_s, bytes_per_s):
  """Seconds after which the participants of a round have arrived [S].

  down and up are numbers of float32, of each participant.
  """
  return (
    np.divide(flops, flops_per_s)
    + np.multiply(batches, batch_s)
    + (4.0 * np.divide(np.add(down, up), bytes_per_s))
  )


# AFL.


def afl_client(x, y, num_classes, gamma):
  """A = X'X + gamma I, b = X'Y, W = A^-1 b."""
  x = np.asarray(x, np.float64)
  a = x.T @ x + gamma * np.eye(x.shape[1])
  b = x.T @ np.eye(num_classes)[np.asarray(y, int)]
  return AflClient(np.linalg.solve(a, b), a, b)


def afl_pair(u, v):
  """The absolute aggregation law as printed; W from (W, A) of two.

  P_u = I - A_u^-1 A_v + A_u^-1 A_v (A_u + A_v)^-1 A_v, P_v likewise.
  """

  def share(a, b):
    ratio = np.linalg.solve(a, b)
    return np.eye(len(a)) - ratio + ratio @ np.linalg.solve(a + b, b)

  w = share(u.a, v.a) @ u.w + share(v.a, u.a) @ v.w
  return AflClient(w, u.a + v.a, u.b + v.b)


def afl_pairwise(parts):
  """afl_pair folded over the clients, in order."""
  return functools.reduce(afl_pair, parts)


def afl_direct(parts):
  """W = (sum A)^-1 sum b."""
  a, b = sum(part.a for part in parts), sum(part.b for part in parts)
  return AflClient(np.linalg.solve(a, b), a, b)


# Zeroth order.


def sphere_estimator(loss, w, directions, mu):
  """FedZO: (P / (mu K)) sum_k (F(w + mu v_k) - F(w)) v_k; K of norm 1."""
  return (
    w.size
    / mu
    * np.mean([(loss(w + mu * v) - loss(w)) * v for v in directions], axis=0)
  )


def differences(loss, w, deltas, scheme="forward"):
  """BAFFLE, dL_k [K]: L(w + d) - L(w) or (L(w + d) - L(w - d)) / 2."""
  return np.array(
    [
      {"forward": loss(w + d) - loss(w), "central": (loss(w + d) - loss(w - d)) / 2.0}[
        scheme
      ]
      for d in deltas
    ]
  )


def gaussian_estimator(dl, deltas, sigma):
  """BAFFLE: (1 / (K sigma^2)) sum_k dL_k delta_k, delta ~ N(0, sigma^2 I)."""
  return np.tensordot(dl, deltas, axes=1) / (len(deltas) * sigma**2)


# Personal models by a Moreau envelope.


def envelope_client(w, gradient, num_batches, inner, eta_p, eta, lam):
  """theta and w_k of pFedMe; gradient(theta, r, k) of models.

    K times: theta <- theta - eta_p (g + lam (theta - w_k));
    w_k <- w_k - eta lam (w_k - theta), after every batch r.

  theta starts at w and goes on from batch to batch.
  """
  w_k, theta = w, w
  for r in range(num_batches):
    for k in range(inner):
      theta = theta - eta_p * (gradient(theta, r, k) + lam * (theta - w_k))
    w_k = w_k - eta * lam * (w_k - theta)
  return theta, w_k
