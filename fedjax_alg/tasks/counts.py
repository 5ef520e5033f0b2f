"""Counts of an evaluation: the sums of a task, and those of each client."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.metrics import names
from fedjax_alg.tasks.task import Sums, Task
from fedjax_alg.typing import Array


class ExampleScores(NamedTuple):
  """What is kept of each example (``Task.scores``), in T turns of W places.

  The leading axes of ``size`` are those of the sums; the first of them are those
  of the scores, so that some sums can share the scores of their turns.
  """

  scores: Sums  #: leaves [..., T, W]
  size: Array  #: [..., T] int32, the places that count, the first of each turn
  client: Array | None = None  #: [..., T] int32, whose examples; None: nobody's


class Counts(NamedTuple):
  """Sums over the examples that a protocol counts."""

  sums: Sums  #: of all of them
  #: leaves [C, ...], ``Task.pooled`` sums of each client; None if the clients
  #: are not counted one by one
  clients: Sums | None = None
  #: None if the task keeps nothing, and on the host (``counts_on_host``)
  examples: ExampleScores | None = None


def sum_over_clients(
  task: Task,
  per_client: Sums,
  mask: Array | None = None,
  kind: Array | None = None,
  num_kinds: int = 0,
) -> Counts:
  """Adds the sums of clients and keeps those of each client.

  Args:
    task: the task.
    per_client: sums of each client, leaves [C, ...].
    mask: [C] bool, the clients to count; None means all.
    kind: [C] int32, the kind of each client; None adds up all clients.
    num_kinds: K.

  Returns:
    The counts; with ``kind`` those of each kind, leaves [K, ...], in the place
    of those of each client.
  """
  if mask is not None:
    per_client = jax.tree.map(
      lambda leaf: jnp.where(
        mask.reshape(mask.shape + (1,) * (leaf.ndim - 1)),
        leaf,
        jnp.zeros_like(leaf),
      ),
      per_client,
    )
  if kind is not None:
    return Counts(
      {
        name: jax.ops.segment_sum(leaf, kind, num_kinds)
        for name, leaf in per_client.items()
      }
    )
  return Counts(
    {name: leaf.sum(0) for name, leaf in per_client.items()}, task.pooled(per_client)
  )


def counts_on_host(task: Task, counts: Mapping[str, Counts]) -> dict[str, Counts]:
  """Fetches counts, and adds to the sums what follows from each example.

  Args:
    task: the task.
    counts: protocol -> counts on the devices, with any leading axes.

  Returns:
    The counts as NumPy arrays, without the examples (``Task.ranks``).
  """
  return {
    protocol: _ranked(task, of) for protocol, of in jax.device_get(counts).items()
  }


def _ranked(task: Task, counts: Counts) -> Counts:
  """The counts with ``Task.ranks`` in the place of the examples."""
  sums, clients, examples = counts
  if examples is None:
    return counts
  assert task.ranks is not None
  scores, size, client = examples
  leading = size.shape[:-1]
  width = next(iter(scores.values())).shape[-1]
  together: list[Mapping[str, np.ndarray]] = []
  by_client: list[Mapping[str, np.ndarray]] = []
  for place in np.ndindex(*leading):
    valid = np.arange(width) < size[place][:, None]
    few = {
      name: np.asarray(leaf)[place[: leaf.ndim - 2]][valid]
      for name, leaf in scores.items()
    }
    everyone = np.zeros(valid.sum(), np.int64)
    together.append(task.ranks(few, everyone, 1))
    if client is not None and clients is not None:
      group = np.repeat(client[place], valid.sum(-1))
      by_client.append(task.ranks(few, group, len(clients["rows"][place])))

  def stack(parts: list[Mapping[str, np.ndarray]], *last: int) -> Sums:
    return {
      name: np.stack([part[name] for part in parts]).reshape((*leading, *last))
      for name in parts[0]
    }

  if clients is not None:
    clients = clients | stack(by_client, -1)
  return Counts(sums | stack(together), clients)


def _on_host(sums: Sums) -> Sums:
  return {name: np.asarray(leaf, np.float64) for name, leaf in sums.items()}


def per_client_metrics(
  task: Task, clients: Sums, leading: int
) -> dict[str, np.ndarray]:
  """The measures of each client.

  Args:
    task: the task.
    clients: ``Counts.clients``, with further axes in front.
    leading: number of axes up to that of the clients.

  Returns:
    The main metric, "loss" and those of ``Task.at_clients``, float64, NaN for a
    client that was not counted, and "test_examples", int64.
  """
  sums = _on_host(clients)
  rows = np.asarray(sums["rows"])
  rows = rows.reshape(*rows.shape[:leading], -1).sum(-1)
  values = task.measured(sums)
  return {
    **{
      name: np.where(rows > 0, values[name], np.nan)
      for name in dict.fromkeys((task.main, "loss", *task.at_clients))
    },
    "test_examples": rows.astype(np.int64),
  }


def _client_averages(
  task: Task, counts: Counts, template: np.ndarray
) -> dict[str, np.ndarray]:
  """The mean of the clients' metrics, and over the worst tenth of them.

  All clients have the same weight, and those without a number none. A tenth is
  rounded up. NaN if the clients are not counted one by one.
  """
  nothing = np.full(template.shape, np.nan)
  if counts.clients is None:
    return dict.fromkeys(task.metrics.of_clients, nothing)
  of_each = per_client_metrics(task, counts.clients, template.ndim + 1)
  return {
    column: value
    for name in dict.fromkeys((task.main, *task.at_clients))
    for column, value in zip(
      names.of_clients(name), _means(of_each[name], names.sign(name), nothing)
    )
  }


def _means(
  values: np.ndarray, sign: float, nothing: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The means of values [..., C] over the clients and over the worst tenth."""
  # The worst first, and clients without a number at the end.
  ordered = np.sort(sign * values, axis=-1)
  tested = (~np.isnan(ordered)).sum(-1)

  def mean(number):
    worst = np.arange(ordered.shape[-1]) < number[..., None]
    return sign * np.divide(
      np.where(worst, ordered, 0.0).sum(-1),
      number,
      out=nothing.copy(),
      where=number > 0,
    )

  return mean(tested), mean(-(-tested // 10))


def summarize_counts(task: Task, counts: Counts) -> dict[str, np.ndarray]:
  """The metrics of a task, and its main metric over the clients.

  Args:
    task: the task.
    counts: sums with any number of leading axes, which those of the clients
      have before their axis, too.

  Returns:
    Metric -> float64 with these axes; NaN if no example was counted.
  """
  values = {
    name: np.asarray(value, np.float64)
    for name, value in task.measured(_on_host(counts.sums)).items()
  }
  return values | _client_averages(task, counts, values["loss"])
