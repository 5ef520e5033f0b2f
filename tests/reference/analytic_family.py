"""NumPy oracles of the closed-form family, written before any other implementation.

- Fed3R: Fani et al., "Accelerating Heterogeneous Federated Learning with
  Closed-form Classifiers", ICML 2024 (arXiv:2406.01116).
- FedNCM, FedCOF: Goswami et al., "Covariances for Free", NeurIPS 2025
  (arXiv:2412.14326); FedNCM is the method of Legate et al., NeurIPS 2023.
- Dual stream: Fan et al., "APFL: Analytic Personalized Federated Learning via
  Dual-Stream Least Squares" (arXiv:2508.10732).
- DeepAFL: Tang et al., ICLR 2026 (arXiv:2603.00579).
- SAFLe: Bacellar et al., "Single-Round Scalable Analytic Federated Learning"
  (arXiv:2512.03336).

A client is (x [n, d], y [n]). float64, plain loops. W is [d, L].
"""

import numpy as np


def one_hot(y, num_classes):
  return np.eye(num_classes)[np.asarray(y, int)]


def ridge(x, t, strength):
  """(X'X + strength I)^-1 X'T, T [n, r]."""
  return np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ t)


def log_odds(x, y, num_classes, strength):
  """Probabilities [n, L] by linear discriminant analysis of centred ridge scores.

  The covariance of the scores within the classes, plus f / n of that of all, where f
  is the effective number of features.
  """
  n, x = len(x), x - x.mean(0)
  values = np.linalg.eigvalsh(x.T @ x)
  share = min((values / (values + strength)).sum() / n, 1.0)
  targets = one_hot(y, num_classes)
  scores = x @ ridge(x, targets - targets.mean(0), strength)
  means = np.stack([scores[y == c].mean(0) for c in range(num_classes)])
  residual = scores - means[y]
  covariance = (residual.T @ residual + share * scores.T @ scores) / n
  inverse = np.linalg.pinv(covariance, rcond=1e-6)
  density = np.empty((n, num_classes))
  for c in range(num_classes):
    distance = np.einsum("ni,ij,nj->n", scores - means[c], inverse, scores - means[c])
    density[:, c] = np.mean(y == c) * np.exp(-distance / 2)
  return density / density.sum(1, keepdims=True)


# Feature maps.


def fourier(x, omega, b):
  """sqrt(2/D) cos(x Omega + b): k(x, z) = exp(-gamma |x - z|^2) on average.

  Omega [d, D] has the variance 2 gamma, b is uniform on [0, 2 pi].
  """
  return np.sqrt(2.0 / omega.shape[1]) * np.cos(x @ omega + b)


def relu(x, omega):
  """sqrt(2/D) max(x Omega, 0), Omega standard normal."""
  return np.sqrt(2.0 / omega.shape[1]) * np.maximum(x @ omega, 0.0)


def rbf_kernel(x, z, gamma):
  return np.exp(-gamma * ((x[:, None] - z[None]) ** 2).sum(-1))


def arc_cosine_kernel(x, z):
  """|x| |z| (sin a + (pi - a) cos a) / pi, a the angle: that of ``relu``."""
  norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(z, axis=1)[None]
  cosine = np.clip(x @ z.T / norms, -1.0, 1.0)
  angle = np.arccos(cosine)
  return norms * (np.sin(angle) + (np.pi - angle) * cosine) / np.pi


def buckets(x, thresholds, order, group_size):
  """SAFLe's features: one of 2^group_size ones for every group of bits.

  Every feature becomes one bit for each threshold, x_j > t_l, in the order of
  the features; the bits are shuffled by ``order`` and cut into groups. The last
  group may be smaller. The bits of a group are a binary number, its first bit
  the highest; the feature vector has a one at that number of each group.
  """
  bits = (x[:, :, None] > np.asarray(thresholds)).reshape(len(x), -1)[:, order]
  columns = []
  for start in range(0, bits.shape[1], group_size):
    group = bits[:, start : start + group_size]
    code = np.zeros(len(x), int)
    for column in group.T:
      code = 2 * code + column
    columns.append(np.eye(2 ** group.shape[1])[code])
  return np.concatenate(columns, 1)


# Fed3R.


def fed3r(clients, num_classes, lam, features, bias="ones", normalize=True):
  """(W, b): ridge of the sums over clients, columns divided by |W_c|.

  ``bias`` "ones": a column of ones, penalized; "none".
  """
  a, b = 0.0, 0.0
  for x, y in clients:
    z = features(x)
    if bias == "ones":
      z = np.hstack([z, np.ones((len(z), 1))])
    a, b = a + z.T @ z, b + z.T @ one_hot(y, num_classes)
  w = np.linalg.solve(a + lam * np.eye(len(a)), b)
  w, offset = (w[:-1], w[-1]) if bias == "ones" else (w, np.zeros(num_classes))
  if normalize:
    norm = np.linalg.norm(w, axis=0)
    norm = np.where(norm == 0, 1e-6, norm)
    w, offset = w / norm, offset / norm
  return w, offset


# FedNCM and FedCOF.


def class_messages(x, y, num_classes):
  """What a client sends: the mean [L, d] and the number [L] of each class."""
  means, counts = np.zeros((num_classes, x.shape[1])), np.zeros(num_classes)
  for c in range(num_classes):
    rows = x[np.asarray(y) == c]
    counts[c] = len(rows)
    if len(rows):
      means[c] = rows.mean(0)
  return means, counts


def fedncm(clients, num_classes):
  """The means of all clients by class [L, d]; 0 of a class that nobody has."""
  sums, numbers = 0.0, 0.0
  for x, y in clients:
    means, counts = class_messages(x, y, num_classes)
    sums, numbers = sums + means * counts[:, None], numbers + counts
  return sums / np.maximum(numbers, 1)[:, None]


def unit_rows(means):
  norm = np.linalg.norm(means, axis=1, keepdims=True)
  return means / np.where(norm == 0, 1.0, norm)


def class_covariances(clients, num_classes):
  """(covariances [L, d, d], means [L, d], counts [L]) from class means alone.

    Sigma_c = sum_i n_ic (mu_ic - mu_c)(mu_ic - mu_c)' / (M_c - 1)
  over the M_c clients that hold class c; divided by 1 for one client.
  """
  messages = [class_messages(x, y, num_classes) for x, y in clients]
  means = fedncm(clients, num_classes)
  counts = sum(n for _, n in messages)
  covariances = np.zeros((num_classes, means.shape[1], means.shape[1]))
  for c in range(num_classes):
    holders = [(mu[c], n[c]) for mu, n in messages if n[c]]
    for mu, n in holders:
      covariances[c] += n * np.outer(mu - means[c], mu - means[c])
    covariances[c] /= max(len(holders) - 1, 1)
  return covariances, means, counts


def fedcof(clients, num_classes, gamma, normalize=True):
  """W [d, L] from class means: the Gram matrix without what is between classes.

  G = sum_c (N_c - 1)(Sigma_c + gamma I) + N mu mu',
  W_c = G^-1 N_c mu_c, divided by |W_c|.
  """
  covariances, means, counts = class_covariances(clients, num_classes)
  d = means.shape[1]
  mu = (counts[:, None] * means).sum(0) / counts.sum()
  gram = counts.sum() * np.outer(mu, mu)
  for c in range(num_classes):
    if counts[c]:
      gram += (counts[c] - 1) * (covariances[c] + gamma * np.eye(d))
  w = np.linalg.solve(gram, (counts[:, None] * means).T)
  if normalize:
    norm = np.linalg.norm(w, axis=0)
    w = w / np.where(norm == 0, 1.0, norm)
  return w


# Dual stream.


def dual_stream(clients, num_classes, gamma, mu, weight, refine):
  """W of all clients, and [P_i] of each on the residuals that W leaves it.

    W = (sum_i X_i'X_i + gamma I)^-1 sum_i X_i'Y_i,
    P_i = (Phi_i'Phi_i + mu I)^-1 Phi_i'(Y_i - X_i W);
  client i predicts x W + weight refine(x) P_i.
  """
  d = clients[0][0].shape[1]
  a = sum(x.T @ x for x, _ in clients) + gamma * np.eye(d)
  w = np.linalg.solve(a, sum(x.T @ one_hot(y, num_classes) for x, y in clients))
  refined = [ridge(refine(x), one_hot(y, num_classes) - x @ w, mu) for x, y in clients]
  return w, refined, lambda x, i: x @ w + weight * refine(x) @ refined[i]


# DeepAFL.


def sandwiched(gram, target, w, lam):
  """Delta that minimizes |R - F Delta W|^2 + lam |Delta|^2.

  Args:
    gram: F'F [f, f].
    target: F'R W' [f, D].
    w: W [D, L].
    lam: lambda.

  F'F Delta W W' + lam Delta = F'R W', solved by one system of f D unknowns.
  """
  f, d = target.shape
  system = np.kron(gram, w @ w.T) + lam * np.eye(f * d)
  return np.linalg.solve(system, target.ravel()).reshape(f, d)


def deepafl(clients, num_classes, blocks, gamma, lam):
  """[W_0, Delta_0, W_1, ..., W_T]; ``blocks`` are T functions Phi -> F_t.

  Phi_0 = X; Phi_(t+1) = Phi_t + F_t(Phi_t) Delta_t.
  """
  phis = [np.asarray(x, float) for x, _ in clients]
  labels = [one_hot(y, num_classes) for _, y in clients]

  def head():
    gram = sum(phi.T @ phi for phi in phis)
    cross = sum(phi.T @ y for phi, y in zip(phis, labels))
    return np.linalg.solve(gram + gamma * np.eye(len(gram)), cross)

  fitted = [head()]
  for block in blocks:
    w = fitted[-1]
    hidden = [block(phi) for phi in phis]
    gram = sum(f.T @ f for f in hidden)
    target = sum(f.T @ (y - phi @ w) @ w.T for f, phi, y in zip(hidden, phis, labels))
    delta = sandwiched(gram, target, w, lam)
    phis = [phi + f @ delta for phi, f in zip(phis, hidden)]
    fitted += [delta, head()]
  return fitted
