"""The rows that clients hold at each step of the option ``concepts``.

A client's training examples are shared out to the T steps, and those of a step are
of the client's kind at it. They lie one step after the other, so that a step is an
offset and a size, and arrays and programs stay when a step ends. The test examples
are the same at all steps, each time as the kind of the step makes them.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg.data import kind_changes, kind_dealing, store
from fedjax_alg.data.client_names import name_at
from fedjax_alg.data.concepts import Concepts
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.kinds import ClientKinds
from fedjax_alg.data.partition import Partition, client_rows, split_fields
from fedjax_alg.data.schedule import DataSchedule, Holdings
from fedjax_alg.typing import PyTree


class _Steps(NamedTuple):
  """Clients whose kinds follow a schedule."""

  kinds: np.ndarray  #: [T, C] int32, the kind of each client
  edges: np.ndarray  #: [T + 1, C] int64, a client's rows before each step
  cumulative: bool  #: whether a client trains on all examples until a step
  #: the test rows of the first step, and the training rows of all steps
  partition: Partition
  place: np.ndarray  #: [K, C] int64, first test row of a client of this kind
  names: tuple[str, ...]  #: of the K kinds
  same_labels: bool  #: see ``ClientKinds``

  def at(self, step: int) -> Holdings:
    """The rows and kinds at a step; ``place`` is in ``DataSchedule.tests``."""
    first = np.zeros_like(self.edges[0]) if self.cumulative else self.edges[step]
    fields: dict[str, Any] = {
      "train_offset": (self.partition.train_offset + first).astype(np.int32),
      "train_size": (self.edges[step + 1] - first).astype(np.int32),
    }
    client = np.arange(self.partition.num_clients)
    rows = client_rows(self.place[self.kinds[step], client], self.partition.test_size)
    return Holdings(
      self.partition._replace(test_order=rows, **fields),
      ClientKinds(self.kinds[step], self.names, self.same_labels),
    )


def share_out_steps(
  change: kind_changes.Kinds,
  examples: Examples,
  partition: Partition,
  schedule: np.ndarray,
  concepts: Concepts,
  seed: int,
  is_image: bool = False,
) -> tuple[Examples, Partition, DataSchedule]:
  """Shares the rows of clients out to steps, and changes them by their kinds.

  Args:
    change: the option `kinds`.
    examples: the data set, before any features.
    partition: the clients; none are held out.
    schedule: [T, C] int32, the kind of each client at each step.
    concepts: the option `concepts`, which has a period.
    seed: seed of all that is random.
    is_image: see ``kind_changes.change_examples``.

  Returns:
    The rows that clients hold at any step, in their order and without features; the
    clients with the training rows of all steps and the test rows of the first; the
    schedule, without ``tests``, the test rows with features.

  Raises:
    DataError: a client has fewer training examples than steps, or the data
      cannot be changed so.
  """
  assert concepts.period is not None
  steps, clients = schedule.shape
  size = partition.train_size.astype(np.int64)
  few = np.flatnonzero((size > 0) & (size < steps))
  if len(few):
    raise DataError(
      f"`concepts`: {steps} steps need as many training examples of each client, "
      f"client {name_at(examples, partition, few[0])} has {size[few[0]]}"
    )
  edges = np.arange(steps + 1)[:, None] * size // steps
  names = tuple(change.names) or tuple(map(str, range(schedule.max() + 1)))
  place, copies, next_row = np.zeros((len(names), clients), np.int64), [], 0
  test_rows = np.split(partition.test_order, np.cumsum(partition.test_size)[:-1])
  for client, rows in enumerate(test_rows):
    for kind in np.unique(schedule[:, client]):
      place[kind, client] = next_row
      copies.append((rows, kind))
      next_row += len(rows)
  order = np.concatenate([rows for rows, _ in copies])
  kinds = np.repeat(
    np.array([kind for _, kind in copies], np.int32), [len(rows) for rows, _ in copies]
  )
  before = _take(examples, partition, order)
  of_row = np.concatenate(
    [np.repeat(schedule[:, c], np.diff(edges[:, c])) for c in range(clients)]
  ).astype(np.int32)
  after = kind_changes.change_rows(
    change, before, (of_row, kinds), len(names), seed, is_image
  )
  of_first_step = kind_dealing.client_kinds(change, schedule[0], before, after)
  of_first: dict[str, Any] = {
    **split_fields("train", np.arange(size.sum()), size),
    **split_fields("test", np.arange(partition.test_size.sum()), partition.test_size),
  }
  dealt = partition._replace(pooled=False, **of_first)
  steps_of_clients = _Steps(
    schedule, edges, concepts.cumulative, dealt, place, names, of_first_step.same_labels
  )
  dealt = dealt._replace(test_order=steps_of_clients.at(0).rows.test_order)
  return (
    after,
    dealt,
    DataSchedule(every=concepts.period, at=steps_of_clients.at, kinds=schedule),
  )


def _take(examples: Examples, partition: Partition, tests: np.ndarray) -> Examples:
  """The rows that clients hold, in their order."""
  x, y = (examples.x_train, examples.x_test), (examples.y_train, examples.y_test)
  train = partition.train_order

  def rows(trees: tuple[PyTree, PyTree], split: int, order: np.ndarray) -> Any:
    parts = trees if partition.pooled else trees[split : split + 1]
    return store.map_arrays(lambda *arrays: store.order_rows(arrays, order), *parts)

  owners = examples.client_train
  if owners is not None:  # with pooled rows that are natural ones, all of x_train
    owners = owners[train] if train.max(initial=-1) < len(owners) else None
  tests_of = examples.client_test
  if tests_of is not None and not partition.pooled:
    tests_of = tests_of[tests]
  return dataclasses.replace(
    examples,
    x_train=rows(x, 0, train),
    y_train=rows(y, 0, train),
    x_test=rows(x, 1, tests),
    y_test=rows(y, 1, tests),
    client_train=owners,
    client_test=tests_of,
  )
