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


def fedprox_round(w, clients, ids, batches, rate, mu, decay):
  """litian96/FedProx: ``PerturbedGradientDescent`` and ``aggregate``, by examples."""
  total, mean = sum(len(clients[i][1]) for i in ids), 0.0
  for i in ids:
    (x, y), local = clients[i], w
    for rows in batches[i]:
      slope = gradient(local, x[rows], y[rows], decay)
      local = local - rate * (slope + mu * (local - w))
    mean = mean + len(y) * local
  return mean / total


def fednova_round(w, clients, ids, batches, rate, momentum, mu, decay):
  """JYWa/FedNova: ``FedNova.step`` and ``FedNova.average``, no global momentum.

  With a proximal term and a momentum the two formulas of the normalizing vector are
  both added to, in turn.
  """
  sums, normalizers, lengths = [], [], []
  for i in ids:
    (x, y), local, buffer, total = clients[i], w, 0.0, 0.0
    counter, vector = 0.0, 0.0
    for rows in batches[i]:
      buffer = momentum * buffer + gradient(local, x[rows], y[rows], decay)
      step = buffer + mu * (local - w)
      total = total + rate * step
      local = local - rate * step
      if momentum:
        counter = counter * momentum + 1
        vector += counter
      if rate * mu:
        vector = vector * (1 - rate * mu) + 1
      if not momentum and not rate * mu:
        vector += 1
    sums.append(total)
    normalizers.append(vector)
    lengths.append(len(batches[i]))
  ratio = average_weights(clients, ids)
  effective = ratio @ (lengths if mu else normalizers)
  return w - sum(
    share * effective / vector * total
    for share, vector, total in zip(ratio, normalizers, sums)
  )


def ifca_round(models, clients, steps, rate):
  """jichan3751/ifca: ``get_inference_stats`` and ``train`` of its MNIST program.

  All clients take part, with full batches; means are unweighted.

  Returns:
    The models, and the model of each client.
  """
  choices = [
    int(np.argmin([_cross_entropy(w, x, y) for w in models])) for x, y in clients
  ]
  trained = []
  for choice, (x, y) in zip(choices, clients):
    w = models[choice]
    for _ in range(steps):
      w = w - rate * plain(w, x, y)
    trained.append(w)
  new = list(models)
  for number in set(choices):
    new[number] = np.mean(
      [w for w, choice in zip(trained, choices) if choice == number], axis=0
    )
  return new, choices


def fesem_centers(centers, groups, clients, steps, rate):
  """mingxuts/multi-center-fed-learning: the centers in ``Fedsem_Trainer.begins``.

  All clients take part, with full batches. Their sizes weigh them (its mode is
  ``no_size``), and the center of one client, which does not train, stays.

  Returns:
    The centers, and the trained models {i: W_i}.
  """
  new, trained = list(centers), {}
  for number, w in enumerate(centers):
    members = [i for i, group in enumerate(groups) if group == number]
    if len(members) <= 1:
      continue
    for i in members:
      trained[i] = w
      for _ in range(steps):
        trained[i] = trained[i] - rate * plain(trained[i], *clients[i])
    sizes = [len(clients[i][1]) for i in members]
    new[number] = np.average([trained[i] for i in members], axis=0, weights=sizes)
  return new, trained


def fesem_groups(points, centroids):
  """The same: one iteration of ``KmeanModel``, after those of the first call.

  A client's point is the last kernel of its model.

  Returns:
    The groups, by the centroids before the iteration, and the centroids after it.
  """
  flat = np.array([np.ravel(point) for point in points])
  squares = ((flat[:, None] - np.array(centroids)) ** 2).sum(-1)
  groups = squares.argmin(1)
  return groups, [flat[groups == k].mean(0) for k in range(len(centroids))]


def fsvrg_round(w, clients, ids, batches, rate):
  """kir-7/federated-learning: ``groundwork/fedsvrg.py``.

  The anchor is the plain mean of the clients' gradients, and no feature has a factor.
  """
  anchor = np.mean([plain(w, *clients[i]) for i in ids], axis=0)
  trained = []
  for i in ids:
    (x, y), v = clients[i], np.array(w)
    for rows in batches[i]:
      change = plain(v, x[rows], y[rows]) - plain(w, x[rows], y[rows])
      v = v - rate / len(y) * (change + anchor)
    trained.append(v)
  return weighted_sum(average_weights(clients, ids), trained)


def scaffold_round(w, c, variates, clients, ids, batches, rate, server_rate, decay):
  """woodenchild95/FL-Simulator: ``server/SCAFFOLD.py`` and ``client/scaffold.py``.

  The control variates are those of option II, with equal numbers of steps.
  """
  variates, changes, difference = dict(variates), [], 0.0
  for i in ids:
    correction = c - variates[i]
    local = descend(
      w,
      clients[i],
      batches[i],
      rate,
      lambda v, x, y, correction=correction: plain(v, x, y) + correction,
      decay,
    )
    new = variates[i] - c - (local - w) / len(batches[i]) / rate
    difference = difference + new - variates[i]
    variates[i] = new
    changes.append(local - w)
  c = c + difference / len(variates)
  return w + server_rate * np.mean(changes, axis=0), c, variates


def fedadam_step(w, m, v, delta, rate, momentum, beta, tau):
  """geehokim/FedACG: ``ServerAdam.aggregate``, whose v begins at tau^2."""
  m = momentum * m + (1 - momentum) * delta
  v = beta * v + (1 - beta) * delta * delta
  return w + rate * m / (v**0.5 + tau), m, v


def flower_adam_step(w, m, v, delta, rate, beta1, beta2, tau, server_round):
  """adap/flower: ``FedAdam.aggregate_fit``, whose v begins at 0.

  Its rate has Adam's correction for the start, of the next round.
  """
  m = beta1 * m + (1 - beta1) * delta
  v = beta2 * v + (1 - beta2) * delta * delta
  norm = np.sqrt(1 - beta2 ** (server_round + 1)) / (1 - beta1 ** (server_round + 1))
  return w + rate * norm * m / (np.sqrt(v) + tau), m, v


def flower_adagrad_step(w, v, delta, rate, tau):
  """adap/flower: ``FedAdagrad.aggregate_fit``, whose v begins at 0."""
  v = v + delta * delta
  return w + rate * delta / (np.sqrt(v) + tau), v


def fedexp_round(w, clients, ids, batches, rate, epsilon, decay):
  """Divyansh03/FedExP: the loop over rounds of ``main.py`` for ``fedexp``.

  epsilon is multiplied by the number of participants. The program lets it and the
  rate shrink from round to round, which is left to the caller.

  Returns:
    The model, and the server's rate.
  """
  norms, mean, total = 0.0, np.zeros_like(w), 0.0
  for i in ids:
    size = len(clients[i][1])
    change = descend(w, clients[i], batches[i], rate, plain, decay) - w
    norms, mean = norms + size * np.sum(change**2), mean + size * change
    total += size
  mean = mean / total
  far = 0.5 * (norms / total) / (np.sum(mean**2) + len(ids) * epsilon)
  server_rate = max(1.0, far)
  return w + server_rate * mean, server_rate


def yogi_step(w, m, v, gradient_, rate, beta1, beta2, epsilon, step):
  """google-research/federated: ``Yogi._resource_apply_dense``, sign activation.

  Its rate has Adam's correction for the start, which Yogi's paper does not have.

  ``gradient_``: minus the mean update. ``step``: 1 in the first round.
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

  ``last``: the last step of the server; None before there is one.

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


def _train_tensors(net, x, y, rate, epochs, select):
  """Full-batch steps; select(epoch) are the names of the tensors that move."""
  net = dict(net)
  for epoch in range(epochs):
    slopes = perceptron_gradients(net, x, y)
    for name in select(epoch):
      net[name] = net[name] - rate * slopes[name]
  return net


def fedrep_rounds(net, shared, clients, rounds, rate, epochs, head_epochs=0):
  """lgcollins/FedRep: ``main_fedrep.py`` and ``LocalUpdate`` of ``models/Update.py``.

  It also plays FedPer, without epochs of the head alone. All tensors are averaged by
  the clients' examples, and each client puts its network in the place of those that are
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
  private = [name for name in net if name not in shared]
  networks = [dict(net) for _ in clients]
  cloud = dict(net)
  for _ in range(rounds):
    total = dict.fromkeys(net, 0.0)
    for number, (x, y) in enumerate(clients):
      local = cloud | {name: networks[number][name] for name in private}

      def select(epoch):
        if not head_epochs:
          return list(net)
        return private if epoch < head_epochs else shared

      networks[number] = _train_tensors(local, x, y, rate, epochs, select)
      for name in net:
        total[name] = total[name] + len(y) * networks[number][name]
    cloud = {
      name: value / sum(len(y) for _, y in clients) for name, value in total.items()
    }
  return [cloud | {name: network[name] for name in private} for network in networks]


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
        batch = h.mean(axis=0), h.var(axis=0, ddof=1)
        stats[number] = tuple(
          (1 - momentum) * previous + momentum * new
          for previous, new in zip(stats[number], batch)
        )
        net = {name: net[name] - rate * slopes[name] for name in net}
      nets[number] = net
    for name in net:
      if "bn" not in name:
        mean = sum(net[name] for net in nets) / len(nets)
        nets = [net | {name: mean} for net in nets]
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
  full = sum(n * gradient(w, *clients[i], l2=decay) for n, i in zip(sizes, ids))
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


def ditto_round(w, personal, clients, ids, steps, rate, lam, decay):
  """litian96/ditto: ``flearn/trainers_MTL/ditto.py``, without a choice of lambda.

  Each batch moves the personal model first, and then the copy of the global one; one
  rate serves both. Changes are averaged alike.

  ``personal``: {i: personal model}, at first those of all are the initial model.
  ``steps``: full-batch steps of a round.

  Returns:
    The global model and the personal ones.
  """
  personal, changes = dict(personal), []
  for i in ids:
    copy = w
    for _ in range(steps):
      slope = gradient(personal[i], *clients[i], l2=decay)
      personal[i] = personal[i] - rate * (slope + lam * (personal[i] - w))
      copy = copy - rate * gradient(copy, *clients[i], l2=decay)
    changes.append(copy - w)
  return w + np.mean(changes, axis=0), personal


def per_fedavg_round(w, clients, ids, batches, adapt_rate, rate, decay):
  """CharlieDinh/pFedMe: ``UserPerAvg.train`` and ``aggregate_parameters``.

  A step on one batch, the gradient there on another, and a step from where it began.
  The mean is weighted by examples.

  ``batches``: {i: for each step its two batches}.
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


def pfedme_round(w, clients, ids, batches, inner, rate, personal_rate, lam, mu, beta):
  """CharlieDinh/pFedMe: ``UserpFedMe.train``, persionalized_aggregate_parameters.

  ``mu`` times the personal model is added to its gradient, 0.001 there. The mean is
  weighted by examples.
  """
  total, mean = sum(len(clients[i][1]) for i in ids), 0.0
  for i in ids:
    (x, y), local, theta = clients[i], w, w
    for rows in batches[i]:
      for _ in range(inner):
        slope = plain(theta, x[rows], y[rows]) + lam * (theta - local) + mu * theta
        theta = theta - personal_rate * slope
      local = local - lam * rate * (local - theta)
    mean = mean + len(y) / total * local
  return (1 - beta) * w + beta * mean


def apfl_round(
  w, personal, clients, ids, batches, rate, alpha, decay, moves_first=True
):
  """MLOPTPSU/FedTorch: ``comms/trainings/federated/apfl.py``, a fixed alpha.

  The copy of the global model moves before its outputs are mixed with those of the
  personal model. For a linear model this is a mixture of the models.

  ``personal``: {i: personal model}. ``moves_first``: as the code does; False: the
  mixture is of the copy before its step.

  Returns:
    The mean of the copies, and the personal models.
  """
  personal, copies = dict(personal), []
  for i in ids:
    (x, y), copy = clients[i], w
    for rows in batches[i]:
      stepped = copy - rate * gradient(copy, x[rows], y[rows], decay)
      mixed = alpha * personal[i] + (1 - alpha) * (stepped if moves_first else copy)
      personal[i] = personal[i] - rate * alpha * gradient(
        mixed, x[rows], y[rows], decay
      )
      copy = stepped
    copies.append(copy)
  return np.mean(copies, axis=0), personal


def cfl_round(models, groups, clients, steps, rate, decay, low, high, may_split):
  """felisat/clustered-federated-learning: the loop of its notebook, fl_devices.py.

  All clients take part. A group of more than two is parts by complete linkage of
  minus the cosines. Decay of the rate and momentum are left out here.

  ``models``: the model of each client. ``groups``: lists of clients. ``may_split``:
  whether the round is late enough.

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
  parts = []
  for group in groups:
    mean_norm = np.linalg.norm(flat[group].mean(axis=0))
    splits = mean_norm < low and lengths[group].max() > high
    if splits and len(group) > 2 and may_split:
      clustering = AgglomerativeClustering(
        n_clusters=2, metric="precomputed", linkage="complete"
      ).fit(-cosines[np.ix_(group, group)])
      parts += [
        [i for i, label in zip(group, clustering.labels_) if label == half]
        for half in (0, 1)
      ]
    else:
      parts.append(group)
  models = list(models)
  for group in parts:
    mean = sum(changes[i] for i in group) / len(group)
    for i in group:
      models[i] = models[i] + mean
  return models, parts


def flhc_round(models, clients, steps, rate, decay, number, groups):
  """alexkyllo/inflorescence: ``FLHC.aggregate_fit``, all clients with full batches.

  In the round of the clustering the clusters of the trained weights are averaged at
  once, by examples.

  ``models``: the model that each client receives. ``number``: k_clusters in the round
  of the clustering; 0 in others. ``groups``: lists of clients.

  Returns:
    The models and the groups.
  """
  trained = []
  for w, (x, y) in zip(models, clients):
    for _ in range(steps):
      w = w - rate * gradient(w, x, y, decay)
    trained.append(w)
  if number:
    labels = AgglomerativeClustering(
      n_clusters=number, metric="euclidean", linkage="complete"
    ).fit_predict(np.array([w.ravel() for w in trained]))
    groups = [[int(i) for i in np.flatnonzero(labels == g)] for g in set(labels)]
  models = list(models)
  for group in groups:
    share = average_weights(clients, group)
    mean = weighted_sum(share, [trained[i] for i in group])
    for i in group:
      models[i] = mean
  return models, groups


class EagerDriftServer:
  """microsoft/FedDrift: ``SoftClusterState.cluster_mmacc2``, FedDrift-Eager.

  Which unused model is taken first is a matter of numbers; none is taken twice here.
  """

  def __init__(self, clients, delta):
    """Starts with one model for all clients and the bound of a fall of accuracy."""
    self.assignments, self._delta = [[0] * clients], delta
    self._accuracy, self._next = None, 1

  def begin(self, accuracy):
    """The first step: accuracies of model 0 [C]."""
    self._accuracy = list(accuracy)

  def cluster(self, accuracy):
    """A further step, of accuracies [models, C]; the model that each client takes.

    Returns:
      The models of the clients, and {opened model: the model it is a copy of}.
    """
    in_use = sorted({m for step in self.assignments for m in step})
    rows = np.asarray(accuracy)[in_use]
    best = [in_use[m] for m in rows.argmax(axis=0)]
    groups, opened, free = list(best), {}, None
    for client, model in enumerate(best):
      newest = accuracy[model][client]
      if self._accuracy[client] - newest > self._delta:
        if free is None:
          free, self._next = self._next, self._next + 1
          opened[free] = model
        groups[client] = free
      self._accuracy[client] = newest
    self.assignments.append(groups)
    return groups, opened


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


# Local steps of other kinds.


def proxskip_rounds(w, clients, lengths, rate, proba, decay):
  """Glebzok/ProxSkip: ``ProxSkip.step`` and ``Worker.run_prox_skip``.

  A client learns its h when the next round begins, from the mean and its ends model.

  ``lengths``: local steps of each round, the same for all clients.

  Returns:
    The model after each round.
  """
  h, ends, models = [0.0 * w for _ in clients], None, []
  for length in lengths:
    if ends is not None:
      h = [variate + proba / rate * (w - v) for variate, v in zip(h, ends)]
    ends = []
    for variate, client in zip(h, clients):
      local = w
      for _ in range(length):
        local = local - rate * (gradient(local, *client, l2=decay) - variate)
      ends.append(local)
    w = np.mean(ends, axis=0)
    models.append(w)
  return models


def _oracle_step(matrix, steps):
  """HiraNayak/FedMuon: ``newton_schulz_lmo``, on the smaller side of a matrix."""
  tall = matrix.shape[0] > matrix.shape[1]
  x = matrix / (np.linalg.norm(matrix) + 1e-12)
  x = x.T if tall else x
  for _ in range(steps):
    square = x @ x.T
    x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
  return -(x.T if tall else x)


def fedmuon_round(
  w, c, variates, momenta, clients, ids, batches, rate, alpha, steps, decay
):
  """HiraNayak/FedMuon: ``fed_muon.run``; who does not come counts as unchanged.

  ``c``: control variate of the server. ``variates``: {i: control variate}. ``momenta``:
  {i: momentum at the end of its last round}.

  Returns:
    The model, c, variates and momenta.
  """
  number, model = len(variates), (len(variates) - len(ids)) / len(variates) * w
  ends = {}
  for i in ids:
    (x, y), local, m = clients[i], w, momenta[i]
    for rows in batches[i]:
      slope = gradient(local, x[rows], y[rows], decay)
      m = (1 - alpha) * m + alpha * slope
      corrected = m - variates[i] + c
      bias = corrected[-1] / np.linalg.norm(corrected[-1])
      local = local + rate * np.vstack([_oracle_step(corrected[:-1], steps), -bias])
    ends[i] = m
    model = model + local / number
  c = c + sum(ends[i] - variates[i] for i in ids) / number
  return model, c, variates | ends, momenta | ends


def stein_gradient(w, x, y, directions, sigma, most=0.3, is_central=False):
  """FengHZ/BAFFLE: ``SteinIdentity._stein_estimation`` and its bound of entries."""
  first, total = _cross_entropy(w, x, y), 0.0
  for direction in directions:
    delta = sigma * direction
    ahead = _cross_entropy(w + delta, x, y)
    if is_central:
      change = (ahead - _cross_entropy(w - delta, x, y)) / (2 * sigma)
    else:
      change = (ahead - first) / sigma
    total = total + change * (delta / sigma)
  estimate = total / len(directions)
  return estimate * min(1.0, most / (np.abs(estimate).max() + 1e-6))


def sphere_gradient(w, x, y, directions, mu):
  """noobyzy/FedZO: ``ObjectiveFunc.GradEst``; directions of length 1."""
  first, estimate = _cross_entropy(w, x, y), 0.0
  factor = w.size / (mu * len(directions))
  for direction in directions:
    change = _cross_entropy(w + mu * direction, x, y) - first
    estimate = estimate + factor * change * direction
  return estimate


def _cross_entropy(w, x, y):
  return _losses(w, x, y).mean()


def _losses(w, x, y):
  logits = np.column_stack([x, np.ones(len(x))]) @ w
  logits = logits - logits.max(axis=1, keepdims=True)
  return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]


# Mixtures and groups.


def fedem_round(components, weights, clients, steps, rate, decay):
  """omarfoq/FedEM: ``MixtureClient.step`` and ``CentralizedAggregator.mix``.

  All clients take part, with full batches.

  ``weights``: pi of each client [M].

  Returns:
    The components and the weights.
  """
  shares = np.array([len(y) for _, y in clients], float)
  shares = shares / shares.sum()
  new, totals = [], [0.0 * w for w in components]
  for pi, share, (x, y) in zip(weights, shares, clients):
    scores = np.log(pi)[:, None] - np.array([_losses(w, x, y) for w in components])
    scores = np.exp(scores - scores.max(axis=0))
    samples = scores / scores.sum(axis=0)
    new.append(samples.mean(axis=1))
    ones = np.column_stack([x, np.ones(len(x))])
    for m, w in enumerate(components):
      for _ in range(steps):
        above = _residual(ones @ w, y) * samples[m][:, None]
        w = w - rate * (ones.T @ above + decay * w)
      totals[m] = totals[m] + share * w
  return totals, new


def fedsoft_round(centers, locals_, clients, steps, rate, weight, smoother, decay):
  """ycruan/FedSoft: ``Server._run_fedsoft`` without selection, ``Client`` with SGD.

  ``centers``: S models. ``locals_``: the model of each client, from its last round.
  ``weight``: reg_weight. ``smoother``: count_smoother, in the place of a share of 0.

  Returns:
    The centers, the clients' models and their importance weights [C, S].
  """
  importance, trained = [], []
  for local, (x, y) in zip(locals_, clients):
    best = np.array([_losses(c, x, y) for c in centers]).argmin(axis=0)
    counts = np.array([(best == s).sum() for s in range(len(centers))], float)
    u = np.where(counts == 0, smoother, counts / len(y))
    for _ in range(steps):
      pull = sum(weight * u[s] * (local - c) for s, c in enumerate(centers))
      local = local - rate * (gradient(local, x, y, decay) + pull)
    importance.append(u)
    trained.append(local)
  shares = np.array(importance) * np.array([[len(y)] for _, y in clients])
  shares = shares / shares.sum(axis=0)
  centers = [
    sum(shares[k, s] * local for k, local in enumerate(trained))
    for s in range(len(centers))
  ]
  return centers, trained, np.array(importance)


def pacfl_vectors(x, y, count):
  """MMorafah/PACFL: ``main_pacfl.py``: left singular vectors of every class.

  LAPACK's signs decide there; here the largest entry of a vector is positive.
  """
  parts = []
  for label in np.unique(y):
    u = np.linalg.svd(x[y == label].T, full_matrices=False)[0][:, :count]
    parts.append(u * np.sign(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])]))
  return np.hstack(parts)


def pacfl_groups(vectors, threshold, linkage):
  """MMorafah/PACFL: ``calculating_adjacency`` and ``hierarchical_clustering``.

  Its "average" is the mean of two rows, whatever the sizes of the groups.
  """
  angles = np.array(
    [
      [np.degrees(np.arccos(np.clip(a.T @ b, -1, 1)).min()) for b in vectors]
      for a in vectors
    ]
  )
  groups = [[i] for i in range(len(vectors))]
  join = {"maximum": np.maximum, "average": lambda a, b: (a + b) / 2}[linkage]
  while len(groups) > 1:
    apart = angles + np.diag(np.full(len(groups), np.inf))
    i, j = np.unravel_index(apart.argmin(), apart.shape)
    if apart[i, j] > threshold:
      break
    row = join(angles[i], angles[j])
    angles[i], angles[:, i] = row, row
    angles = np.delete(np.delete(angles, j, axis=0), j, axis=1)
    groups[i] = groups[i] + groups.pop(j)
  return groups


# Closed form.


def afl_weights(clients, num_classes, ridge):
  """ZHUANGHP/Analytic-federated-learning: local_update, aggregation and cleaning."""
  total, gram = None, None
  for x, y in clients:
    c = x.T @ x + ridge * np.eye(x.shape[1])
    r = np.linalg.inv(c)
    w = r @ (x.T @ np.eye(num_classes)[y])
    if total is None:
      total, gram = w, c
      continue
    unit, both, inverse = np.eye(len(c)), np.linalg.inv(gram + c), np.linalg.inv(gram)
    first = unit - inverse @ c + inverse @ c @ both @ c
    second = unit - r @ gram + r @ gram @ both @ gram
    total, gram = first @ total + second @ w, gram + c
  added = len(clients) * ridge
  origin = np.linalg.inv(gram - added * np.eye(len(gram)))
  return total + added * origin @ total


def fed3r_weights(clients, num_classes, ridge):
  """Erosinho13/Fed3R: ``fed3r_step``, ``calc_ridge_params`` and ``normalize_W``."""
  size = clients[0][0].shape[1] + 1
  a, b = ridge * np.eye(size), np.zeros((size, num_classes))
  for x, y in clients:
    with_bias = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    a = a + with_bias.T @ with_bias
    b = b + with_bias.T @ np.eye(num_classes)[y]
  solution = np.linalg.solve(a, b)
  norms = np.linalg.norm(solution[:-1], axis=0, keepdims=True)
  norms[norms == 0] = 1e-6
  return solution[:-1] / norms, solution[-1] / norms[0]


def _class_sums(clients, num_classes):
  """Of each client {class: (mean, number)}, and of all the sums and the numbers."""
  messages_of = [
    {c: (x[y == c].mean(0), (y == c).sum()) for c in np.unique(y)} for x, y in clients
  ]
  sums, numbers = np.zeros((num_classes, clients[0][0].shape[1])), np.zeros(num_classes)
  for messages in messages_of:
    for c, (mean, number) in messages.items():
      sums[c] += mean * number
      numbers[c] += number
  return messages_of, sums, numbers


def _normalized(rows):
  return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def fedncm_weights(clients, num_classes):
  """dipamgoswami/FedCOF: ``FedNCMServer``; one row a class."""
  _, sums, numbers = _class_sums(clients, num_classes)
  return _normalized(sums / np.maximum(numbers, 1)[:, None])


def fedcof_weights(clients, num_classes, gamma):
  """dipamgoswami/FedCOF: ``FedCOFServer``; one row a class."""
  messages_of, sums, numbers = _class_sums(clients, num_classes)
  size = sums.shape[1]
  gram = np.zeros((size, size))
  for c in range(num_classes):
    if not numbers[c]:
      continue
    holders = [messages[c] for messages in messages_of if c in messages]
    deviations = np.array(
      [np.sqrt(n) * (mean - sums[c] / numbers[c]) for mean, n in holders]
    )
    spread = deviations.T @ deviations / max(len(holders) - 1, 1)
    gram += (numbers[c] - 1) * (spread + gamma * np.eye(size))
  mean = sums.sum(axis=0) / numbers.sum()
  gram = gram + numbers.sum() * np.outer(mean, mean)
  return _normalized(sums @ np.linalg.pinv(gram))


def deepafl_layers(clients, num_classes, blocks, ridge, block_ridge):
  """tangent-heng/DeepAFL: ``RidgeModule.fit`` and ``SandwichedLayer.sandwiched_LS``.

  ``blocks``: functions of the features, the random layers.

  Returns:
    The heads and the Deltas in turn.
  """
  features = [np.asarray(x, float) for x, _ in clients]
  targets = [np.eye(num_classes)[y] for _, y in clients]

  def fit_head():
    corr_x = sum(x.T @ x for x in features) + ridge * np.eye(features[0].shape[1])
    return np.linalg.inv(corr_x) @ sum(x.T @ t for x, t in zip(features, targets))

  layers = [fit_head()]
  for block in blocks:
    w, hidden = layers[-1], [block(x) for x in features]
    ff = sum(f.T @ f for f in hidden)
    wrf = sum(w @ (t - x @ w).T @ f for x, t, f in zip(features, targets, hidden))
    of_w, u = np.linalg.eigh(w @ w.T)
    of_f, v = np.linalg.eigh(ff)
    inner = u.T @ wrf @ v / (block_ridge + of_w[:, None] * of_f[None, :])
    delta = (u @ inner @ v.T).T
    features = [x + f @ delta for x, f in zip(features, hidden)]
    layers += [delta, fit_head()]
  return layers
