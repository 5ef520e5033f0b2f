"""NumPy oracle of FedDrift's grouping, written before any other implementation.

E. Jothimurugesan et al., "Federated Learning under Distributed Concept Drift",
AISTATS 2023, with what its public code makes of it. Its rounds are FedAvg inside
every group, as in ``clustered.group_round``. float64, plain loops.

A model is anything that ``loss(model, rows)`` takes; models are mixed by
``mix(models, weights)``. Clients are numbered from 0 and are all there.
"""

import numpy as np


def cluster_losses(models, clusters, loss):
  """L[i, j]: loss of model i on the data of cluster j, over all its examples."""
  table = np.full((len(models), len(models)), np.nan)
  for i, model in models.items():
    for j in models:
      total = sum(len(rows) for rows in clusters[j])
      table[i, j] = sum(len(rows) * loss(model, rows) for rows in clusters[j]) / total
  return table


def merge_order(losses, threshold):
  """Complete-linkage clustering of the models: sets of indices, sorted.

  The distance of i and j is max(L_ij - L_ii, L_ji - L_jj, 0). The two nearest sets
  are merged while the largest distance of their members is at most the threshold.
  """
  sets = [[i] for i in range(len(losses))]

  def distance(i, j):
    return max(losses[i, j] - losses[i, i], losses[j, i] - losses[j, j], 0.0)

  def linkage(a, b):
    return max(distance(i, j) for i in a for j in b)

  while len(sets) > 1:
    pairs = [
      (linkage(sets[a], sets[b]), a, b)
      for a in range(len(sets))
      for b in range(a + 1, len(sets))
    ]
    least, a, b = min(pairs)
    if least > threshold:
      break
    sets[a] = sorted(sets[a] + sets.pop(b))
  return sets


class Server:
  """The groups of all clients from step to step."""

  def __init__(self, start, number, loss, mix, delta, delta2=None, wait=1, eager=False):
    self.number, self.loss, self.mix = number, loss, mix
    self.delta, self.delta2 = delta, delta if delta2 is None else delta2
    self.wait, self.eager = wait, eager
    self.models = {0: start}  # slot -> model, of those that exist
    self.history = []  # step -> (group of each client, rows of each client)
    self.least = None  # each client's least loss when it was last asked
    self.until = {}  # isolated client -> step at which its model joins the others
    self.last_use = {0: -1}

  def slots(self, busy):
    """Slots that a new model may take: empty ones, then the longest unused."""
    empty = [m for m in range(self.number) if m not in self.models]
    unused = sorted(
      (m for m in self.models if m not in busy), key=lambda m: (self.last_use[m], m)
    )
    return empty + unused

  def begin_step(self, rows):
    """Groups the clients by their rows of a new step, [C] group numbers."""
    step, clients = len(self.history), len(rows)
    self.until = {c: t for c, t in self.until.items() if t > step}
    isolated = {c: self.history[-1][0][c] for c in self.until}
    active = sorted(set(self.models) - set(isolated.values()))
    losses = {
      c: {m: self.loss(self.models[m], rows[c]) for m in active} for c in range(clients)
    }
    best = {c: min(active, key=lambda m, c=c: losses[c][m]) for c in range(clients)}
    group = {c: isolated.get(c, best[c]) for c in range(clients)}
    drifted = [
      c
      for c in range(clients)
      if c not in isolated
      and self.least is not None
      and losses[c][best[c]] > self.least[c] + self.delta
    ]
    slots = self.slots(set(group.values()))
    if self.eager:
      slots = slots[:1] * clients
    opened = {}
    for c, slot in zip(drifted, slots):
      if slot not in opened:
        opened[slot] = self.models[best[c]]
        for old, _ in self.history:
          for i in range(clients):
            if old[i] == slot:
              old[i] = -1
      group[c] = slot
      if not self.eager:
        self.until[c] = step + self.wait
    self.models |= opened
    self.least = [
      self.least[c] if c in isolated else losses[c][best[c]] for c in range(clients)
    ]
    self.history.append(([group[c] for c in range(clients)], rows))
    if not self.eager:
      self.merge([m for m in active if m not in opened])
    for m in self.history[-1][0]:
      self.last_use[m] = step
    return np.array(self.history[-1][0])

  def merge(self, active):
    """Merges models that do about as well on each other's data."""
    clusters = {
      m: [
        rows[c]
        for group, rows in self.history
        for c in range(len(rows))
        if group[c] == m
      ]
      for m in active
    }
    numbered = {i: self.models[m] for i, m in enumerate(active)}
    losses = cluster_losses(
      numbered, {i: clusters[m] for i, m in enumerate(active)}, self.loss
    )
    for indices in merge_order(losses, self.delta2):
      base, *others = [active[i] for i in indices]
      if not others:
        continue
      weights = [sum(map(len, clusters[m])) for m in (base, *others)]
      self.models[base] = self.mix([self.models[m] for m in (base, *others)], weights)
      self.last_use[base] = max(self.last_use[m] for m in (base, *others))
      for m in others:
        del self.models[m]
      for group, _ in self.history:
        group[:] = [base if m in others else m for m in group]
