"""Rounds as public code of the methods plays them, in float64.

Each function says what a repository does at the commit that ``docs/evidence.csv``
names, as it was read there: its order, its weights, its constants, and what the paper
does not have. It is a restatement in NumPy, and no line is copied. Where the code has
a weight decay, a bound on gradients or a small constant, so has the function.

Arguments are those of ``tests.reference.diversified``; its model is one array of which
the last row is the bias, which public code holds as a tensor beside the kernel.
"""

import numpy as np

from tests.reference.diversified import average_weights, gradient, weighted_sum

#: The bound on the norm of gradients that several repositories share.
MOST = 10.0


def clip(step, most=MOST):
  """PyTorch's bound on the norm of a gradient."""
  return step * min(1.0, most / (np.linalg.norm(step) + 1e-6))


def descend(w, client, batches, rate, step, decay=0.0):
  """PyTorch's SGD with its decay, after ``clip``; step(v, x_B, y_B)."""
  (x, y), v = client, np.array(w)
  for rows in batches:
    v = v - rate * (clip(step(v, x[rows], y[rows])) + decay * v)
  return v


def plain(v, x, y):
  """The gradient of the mean cross entropy, as ``loss.backward`` has it."""
  return gradient(v, x, y, 0.0)


def mean_update(w, clients, ids, batches, rate, decay, weights="uniform"):
  """The mean of the changes that SGD makes to the model at the clients."""
  share = average_weights(clients, ids, weights)
  trained = [descend(w, clients[i], batches[i], rate, plain, decay) for i in ids]
  return weighted_sum(share, trained) - w


# One model.


def feddyn_round(cloud, drifts, clients, ids, batches, rate, alpha, decay):
  """alpemreacar/FedDyn: ``train_feddyn_mdl`` and ``train_FedDyn``.

  alpha is divided by the size of a client over the mean size. The penalty is half a
  decay of all weights and half a linear term, which alone is inside the bound.

  Returns:
    The cloud model and the drifts {i: sum of the changes of client i}.
  """
  drifts, trained = dict(drifts), []
  mean_size = np.mean([len(y) for _, y in clients])
  for i in ids:
    strength = alpha / (len(clients[i][1]) / mean_size)
    pull = strength * (drifts[i] - cloud)
    local = descend(
      cloud,
      clients[i],
      batches[i],
      rate,
      lambda v, x, y, pull=pull: plain(v, x, y) + pull,
      strength + decay,
    )
    drifts[i] = drifts[i] + local - cloud
    trained.append(local)
  return np.mean(trained, axis=0) + np.mean(list(drifts.values()), axis=0), drifts


def fedadam_step(w, m, v, delta, rate, momentum, beta, tau):
  """geehokim/FedACG: ``ServerAdam.aggregate``, whose v begins at tau^2."""
  m = momentum * m + (1 - momentum) * delta
  v = beta * v + (1 - beta) * delta * delta
  return w + rate * m / (v**0.5 + tau), m, v


def yogi_step(w, m, v, gradient_, rate, beta1, beta2, epsilon, step):
  """google-research/federated: ``Yogi._resource_apply_dense``, sign activation.

  Its rate has Adam's correction for the start, which Yogi's paper does not have.

  Args:
    gradient_: minus the mean update.
    step: 1 in the first round.
  """
  m = beta1 * m + (1 - beta1) * gradient_
  square = gradient_ * gradient_
  v = v + (1 - beta2) * np.sign(square - v) * square
  corrected = rate * np.sqrt(1 - beta2**step) / (1 - beta1**step)
  return w - corrected * m / (np.sqrt(v) + epsilon), m, v


def fedavgm_step(w, vector, aggregate, rate, momentum, server_round):
  """adap/flower: ``FedAvgM.aggregate_fit``; the first vector is the first gradient."""
  pseudo = w - aggregate
  if server_round > 1:
    pseudo = momentum * vector + pseudo
  return w - rate * pseudo, pseudo


def fedacg_round(w, momentum, clients, ids, batches, rate, factor, weight, decay):
  """geehokim/FedACG: the model is sent ahead; ``weight`` has no factor of a half."""
  ahead = w + factor * momentum
  trained = [
    descend(
      ahead,
      clients[i],
      batches[i],
      rate,
      lambda v, x, y: plain(v, x, y) + weight * 2 * (v - ahead),
      decay,
    )
    for i in ids
  ]
  change = sum(v - ahead for v in trained) / len(ids)
  return sum(trained) / len(ids), factor * momentum + change


def fedcm_round(
  w, averaged, clients, ids, batches, rate, alpha, server_rate, steps, decay
):
  """woodenchild95/FL-Simulator: ``server/FedCM.py`` and ``client/fedcm.py``.

  The momentum is minus the last mean update over rate and steps; decay is not weighed
  by alpha.

  Returns:
    The model and the mean update.
  """
  momentum = -averaged / steps / rate
  trained = [
    descend(
      w,
      clients[i],
      batches[i],
      rate,
      lambda v, x, y: alpha * plain(v, x, y) + (1 - alpha) * momentum,
      decay,
    )
    for i in ids
  ]
  averaged = np.mean([v - w for v in trained], axis=0)
  return w + server_rate * averaged, averaged


def fedsam_round(w, clients, ids, batches, rate, rho):
  """woodenchild95/FL-Simulator: ``client/fedsam.py`` and ``optimizer/ESAM.py``."""

  def step(v, x, y):
    first = plain(v, x, y)
    return plain(v + first * (rho / (np.linalg.norm(first) + 1e-7)), x, y)

  trained = [descend(w, clients[i], batches[i], rate, step) for i in ids]
  return w + np.mean([v - w for v in trained], axis=0)


def fedlesam_round(w, last, clients, ids, batches, rate, rho):
  """MediaBrain-SJTU/FedLESAM: ``server/FedLESAM.py`` and ``optimizer/LESAM.py``.

  The last step of the server is the same for all clients. Its length is the sum of the
  norms of the tensors, here of kernel and bias, and not the norm of all.

  Args:
    last: the last step of the server; None before there is one.

  Returns:
    The model and the step of the server.
  """
  ascent = 0.0
  if last is not None:
    length = np.linalg.norm(last[:-1]) + np.linalg.norm(last[-1])
    ascent = -last * (rho / (length + 1e-7))
  trained = [
    descend(w, clients[i], batches[i], rate, lambda v, x, y: plain(v + ascent, x, y))
    for i in ids
  ]
  update = np.mean([v - w for v in trained], axis=0)
  return w + update, update
