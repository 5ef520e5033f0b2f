"""Rounds as public code of the methods plays them, in float64.

Each function says what a repository does at the commit that ``docs/evidence.csv``
names, as it was read there: its order, its weights, its constants, and what the paper
does not have. It is a restatement in NumPy, and no line is copied. Where the code has
a weight decay, a bound on gradients or a small constant, so has the function.

Arguments are those of ``tests.reference.diversified``; its model is one array of which
the last row is the bias, which public code holds as a tensor beside the kernel.
"""

import numpy as np
from sklearn.cluster import AgglomerativeClustering

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


# Layers of clients: a network is a dictionary of tensors, by name.


def _residual(logits, y):
  p = np.exp(logits - logits.max(axis=1, keepdims=True))
  p = p / p.sum(axis=1, keepdims=True)
  return (p - np.eye(logits.shape[1])[y]) / len(y)


def perceptron_gradients(net, x, y):
  """Of the mean cross entropy of ReLU(x V + a) W + b, by name."""
  hidden = np.maximum(x @ net["V"] + net["a"], 0)
  above = _residual(hidden @ net["W"] + net["b"], y)
  below = (above @ net["W"].T) * (hidden > 0)
  return {
    "V": x.T @ below,
    "a": below.sum(axis=0),
    "W": hidden.T @ above,
    "b": above.sum(axis=0),
  }


def _train_tensors(net, x, y, rate, epochs, moves):
  """Full-batch steps; moves(epoch) are the names of the tensors that move."""
  net = dict(net)
  for epoch in range(epochs):
    slopes = perceptron_gradients(net, x, y)
    for name in moves(epoch):
      net[name] = net[name] - rate * slopes[name]
  return net


def fedrep_rounds(net, shared, clients, rounds, rate, epochs, head_epochs=0):
  """lgcollins/FedRep: ``main_fedrep.py`` and ``LocalUpdate`` of ``models/Update.py``.

  It also plays FedPer, without epochs of the head alone. All tensors are averaged by
  the clients' examples, and each client puts its own in the place of those that are
  not ``shared``. Momentum and decay of its optimizer are 0 here.

  Args:
    net: the first network of all.
    shared: names of tensors.
    clients: (x, y) of each; all take part.
    rounds: their number.
    rate: of all steps.
    epochs: of a round, the head's among them.
    head_epochs: those in which the other tensors alone move, before the shared ones.

  Returns:
    The network of each client.
  """
  others = [name for name in net if name not in shared]
  kept = [dict(net) for _ in clients]
  cloud = dict(net)
  for _ in range(rounds):
    total = dict.fromkeys(net, 0.0)
    for number, (x, y) in enumerate(clients):
      local = cloud | {name: kept[number][name] for name in others}

      def moves(epoch):
        if not head_epochs:
          return list(net)
        return others if epoch < head_epochs else shared

      kept[number] = _train_tensors(local, x, y, rate, epochs, moves)
      for name in net:
        total[name] = total[name] + len(y) * kept[number][name]
    cloud = {
      name: value / sum(len(y) for _, y in clients) for name, value in total.items()
    }
  return [cloud | {name: own[name] for name in others} for own in kept]


def lg_fedavg_rounds(net, shared, clients, rounds, rate, epochs):
  """pliang279/LG-FedAvg: ``main_lg.py``; the mean of the last layers is unweighted."""
  locals_ = [dict(net) for _ in clients]
  for _ in range(rounds):
    locals_ = [
      _train_tensors(local, x, y, rate, epochs, lambda epoch: list(net))
      for local, (x, y) in zip(locals_, clients)
    ]
    for name in shared:
      mean = sum(local[name] for local in locals_) / len(locals_)
      for local in locals_:
        local[name] = mean
  return locals_


def fedbabu_rounds(net, body, clients, rounds, rate, epochs):
  """jhoon-oh/FedBABU: ``main_fed.py`` with local_upt_part and aggr_part "body".

  The rate of the head is 0, and the mean is unweighted.

  Returns:
    The network before its fine-tuning.
  """
  net = dict(net)
  for _ in range(rounds):
    trained = [
      _train_tensors(net, x, y, rate, epochs, lambda epoch: body) for x, y in clients
    ]
    net |= {name: sum(t[name] for t in trained) / len(trained) for name in body}
  return net


def fedbn_rounds(net, moving, clients, rounds, rate, steps, momentum=0.1, small=1e-5):
  """med-air/FedBN: ``train`` and ``communication`` of ``federated/fed_digits.py``.

  A network x V -> batch normalization -> W. Tensors with "bn" in their name and the
  running statistics are never averaged; others are, each client alike. PyTorch's
  running variance is that of a sample, and its momentum the weight of the new one.

  Returns:
    The networks and the statistics (mean, variance) of the clients.
  """
  nets, stats = [dict(net) for _ in clients], [moving for _ in clients]
  for _ in range(rounds):
    for number, (x, y) in enumerate(clients):
      net = nets[number]
      for _ in range(steps):
        h = x @ net["V"]
        spread = np.sqrt(h.var(axis=0) + small)
        normal = (h - h.mean(axis=0)) / spread
        above = _residual((net["bn.scale"] * normal + net["bn.bias"]) @ net["W"], y)
        back = above @ net["W"].T
        inner = back * net["bn.scale"]
        inner = inner - inner.mean(axis=0) - normal * (inner * normal).mean(axis=0)
        slopes = {
          "V": x.T @ (inner / spread),
          "bn.scale": (back * normal).sum(axis=0),
          "bn.bias": back.sum(axis=0),
          "W": (net["bn.scale"] * normal + net["bn.bias"]).T @ above,
        }
        seen = h.mean(axis=0), h.var(axis=0, ddof=1)
        stats[number] = tuple(
          (1 - momentum) * old + momentum * new for old, new in zip(stats[number], seen)
        )
        net = {name: net[name] - rate * slopes[name] for name in net}
      nets[number] = net
    for name in net:
      if "bn" not in name:
        mean = sum(own[name] for own in nets) / len(nets)
        nets = [own | {name: mean} for own in nets]
  return nets, stats


# Dual variables, statistics of the server, personal models.


def fedadmm_client(theta, dual, client, batches, rate, rho, decay):
  """YonghaiGong/FedADMM: ``LocalUpdate.update_weights``.

  Returns:
    The dual variable and what is sent, which counts from the received model.
  """
  local = np.array(theta)
  x, y = client
  for rows in batches:
    slope = gradient(local, x[rows], y[rows], decay)
    local = local - rate * (slope + dual + rho * (local - theta))
  new = dual + rho * (local - theta)
  return new, (local - theta) + (new - dual) / rho


def mime_round(
  w, trace, clients, ids, batches, rate, beta, server_rate, decay, lite=False
):
  """google/fedjax: ``mime.py`` and ``mime_lite.py`` with ``optimizers.sgd``.

  The momentum of its optimizer is a sum: trace <- g + beta trace, w <- w - rate trace.
  Clients read the server's trace and do not change it.

  Returns:
    The model and the trace.
  """
  sizes = np.array([len(clients[i][1]) for i in ids], float)
  full = sum(n * gradient(w, *clients[i], decay) for n, i in zip(sizes, ids))
  full = full / sizes.sum()
  changes = []
  for i in ids:
    (x, y), local = clients[i], w
    for rows in batches[i]:
      slope = gradient(local, x[rows], y[rows], decay)
      if not lite:
        slope = slope - gradient(w, x[rows], y[rows], decay) + full
      local = local - rate * (slope + beta * trace)
    changes.append(w - local)
  mean = sum(n * change for n, change in zip(sizes, changes)) / sizes.sum()
  return w - server_rate * mean, full + beta * trace


def ditto_round(w, own, clients, ids, steps, rate, lam, decay):
  """litian96/ditto: ``flearn/trainers_MTL/ditto.py``, without a choice of lambda.

  Each batch moves the personal model first, and then the copy of the global one; one
  rate serves both. Changes are averaged alike.

  Args:
    own: {i: personal model}, at first those of all are the initial model.
    steps: full-batch steps of a round.

  Returns:
    The global model and the personal ones.
  """
  own, changes = dict(own), []
  for i in ids:
    copy = w
    for _ in range(steps):
      slope = gradient(own[i], *clients[i], decay)
      own[i] = own[i] - rate * (slope + lam * (own[i] - w))
      copy = copy - rate * gradient(copy, *clients[i], decay)
    changes.append(copy - w)
  return w + np.mean(changes, axis=0), own


def per_fedavg_round(w, clients, ids, batches, adapt_rate, rate, decay):
  """CharlieDinh/pFedMe: ``UserPerAvg.train`` and ``aggregate_parameters``.

  A step on one batch, the gradient there on another, and a step from where it began.
  The mean is weighted by examples.

  Args:
    batches: {i: for each step its two batches}.
  """
  total, mean = sum(len(clients[i][1]) for i in ids), 0.0
  for i in ids:
    (x, y), local = clients[i], w
    for first, second in batches[i]:
      before = local
      local = local - adapt_rate * gradient(local, x[first], y[first], decay)
      local = before - rate * gradient(local, x[second], y[second], decay)
    mean = mean + len(y) / total * local
  return mean


def apfl_round(w, own, clients, ids, batches, rate, alpha, decay, moves_first=True):
  """MLOPTPSU/FedTorch: ``comms/trainings/federated/apfl.py``, a fixed alpha.

  The copy of the global model moves before its outputs are mixed with those of the
  personal model. For a linear model this is a mixture of the models.

  Args:
    own: {i: personal model}.
    moves_first: as the code does; False: the mixture is of the copy before its step.

  Returns:
    The mean of the copies, and the personal models.
  """
  own, copies = dict(own), []
  for i in ids:
    (x, y), copy = clients[i], w
    for rows in batches[i]:
      moved = copy - rate * gradient(copy, x[rows], y[rows], decay)
      mixed = alpha * own[i] + (1 - alpha) * (moved if moves_first else copy)
      own[i] = own[i] - rate * alpha * gradient(mixed, x[rows], y[rows], decay)
      copy = moved
    copies.append(copy)
  return np.mean(copies, axis=0), own


def cfl_round(models, groups, clients, steps, rate, decay, low, high, may_split):
  """felisat/clustered-federated-learning: the loop of its notebook, fl_devices.py.

  All clients take part. A group of more than two is parted by complete linkage of
  minus the cosines. Decay of the rate and momentum are left out here.

  Args:
    models: the model of each client.
    groups: lists of clients.
    may_split: whether the round is late enough.

  Returns:
    The models and the groups.
  """
  changes = []
  for w, (x, y) in zip(models, clients):
    local = w
    for _ in range(steps):
      local = local - rate * gradient(local, x, y, decay)
    changes.append(local - w)
  flat = np.array([change.ravel() for change in changes])
  lengths = np.linalg.norm(flat, axis=1)
  cosines = flat @ flat.T / (np.outer(lengths, lengths) + 1e-12)
  parted = []
  for group in groups:
    mean_norm = np.linalg.norm(flat[group].mean(axis=0))
    far = mean_norm < low and lengths[group].max() > high
    if far and len(group) > 2 and may_split:
      clustering = AgglomerativeClustering(
        n_clusters=2, metric="precomputed", linkage="complete"
      ).fit(-cosines[np.ix_(group, group)])
      parted += [
        [i for i, label in zip(group, clustering.labels_) if label == half]
        for half in (0, 1)
      ]
    else:
      parted.append(group)
  models = list(models)
  for group in parted:
    mean = sum(changes[i] for i in group) / len(group)
    for i in group:
      models[i] = models[i] + mean
  return models, parted


class BufferedServer:
  """facebookresearch/FLSim: ``FedBuffAggregator`` and its weights of late updates.

  With a buffer of one it moves as ``AsyncAggregator`` with fed_async_aggregation does.
  """

  def __init__(self, model, rate, size, exponent, is_average):
    """Starts.

    Args:
      model: the first model.
      rate: of the SGD that moves it.
      size: of the buffer.
      exponent: of the polynomial weight of staleness, with avg_staleness 0.
      is_average: whether the reduction is WEIGHTED_AVERAGE, its default, and not
        WEIGHTED_SUM.
    """
    self.model, self._rate, self._size = model, rate, size
    self._exponent, self._is_average = exponent, is_average
    self._number, self._sum, self._reported, self._weights = 0, 0.0, 0, 0.0

  @property
  def number(self):
    """How often the model has moved, with which a client starts."""
    return self._number

  def end_training(self, delta, number):
    """A client is done: ``delta`` is the model it had less the one it has."""
    weight = 1 / (1 + self._number - number) ** self._exponent
    self._sum = self._sum + weight * delta
    self._weights += weight
    self._reported += 1
    if self._reported < self._size:
      return
    total = self._sum / self._weights if self._is_average else self._sum
    self.model = self.model - self._rate * total
    self._number += 1
    self._sum, self._reported, self._weights = 0.0, 0, 0.0

  def mix(self, final, number):
    """FedAsync: the gradient is the model less the client's."""
    weight = 1 / (1 + self._number - number) ** self._exponent
    self.model = self.model - self._rate * weight * (self.model - final)
    self._number += 1
