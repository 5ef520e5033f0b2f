"""An asynchronous server as a heap of events, from FedBuff's Algorithm 1."""

import heapq
import itertools


class Server:
  """Time is the caller's numbers; ``run`` goes on to the next full buffer."""

  def __init__(self, places):
    self.heap, self.free, self.running = [], set(range(places)), {}
    self.now, self.version = 0, 0

  def start(self, waiting, version):
    """Starts whoever is idle, in order, in the free places."""
    for place in sorted(self.free):
      client = next((c for c in waiting if c not in self.busy), None)
      if client is None:
        return
      self.busy.add(client)
      self.free.discard(place)
      self.running[place] = client, version
      heapq.heappush(self.heap, (self.now + waiting[client], place))

  def run(self, waiting, size):
    """(client, version at its start, place) in order of arrival; the time.

    Args:
      waiting: client -> how long it takes, in the order in which they start.
      size: that of the buffer.
    """
    began, buffer = self.now, []
    self.busy = {client for client, _ in self.running.values()}
    while True:
      self.start(waiting, self.version)
      if len(buffer) == size or not self.heap:
        break
      instant = self.heap[0][0]
      # All that arrives at one instant is received before anybody starts.
      while self.heap and self.heap[0][0] == instant and len(buffer) < size:
        _, place = heapq.heappop(self.heap)
        client, version = self.running.pop(place)
        self.free.add(place)
        buffer.append((client, version, place))
      self.now = instant
      if len(buffer) == size:
        break
    self.version += 1
    return buffer, self.now - began


def trajectory(server, rounds, model, train, factor, weigh=lambda client: 1):
  """The models of FedBuff, in NumPy.

  Args:
    server: a ``Server``.
    rounds: (waiting, size) of every buffer.
    model: the first model.
    train: (client, model) -> trained model.
    factor: staleness -> factor.
    weigh: client -> its weight in the mean.

  Returns:
    The model after every buffer, and the staleness of its clients.
  """
  models, ages = [model], []
  for waiting, size in rounds:
    buffer, _ = server.run(waiting, size)
    total = sum(weigh(client) for client, *_ in buffer)
    now = len(models) - 1
    ages.append([now - version for _, version, _ in buffer])
    models.append(
      models[-1]
      + sum(
        weigh(client)
        / total
        * factor(age)
        * (train(client, models[version]) - models[version])
        for age, (client, version, _) in zip(ages[-1], buffer)
      )
    )
  return list(itertools.islice(models, 1, None)), ages
