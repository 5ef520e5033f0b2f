"""Points whose labels say on which side of a boundary they are.

The boundary is the concept, and a client of kind k has the k-th one. The data sets
are those of FedDrift (Jothimurugesan et al., AISTATS 2023, and its public code),
which takes them from the literature on concept drift: SINE and CIRCLE (Gama et
al., SBIA 2004), SEA (Street and Kim, KDD 2001).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory
from fedjax_alg.data.kinds import STREAM
from fedjax_alg.data.sources import DataSet
from fedjax_alg.hparams import hyper


class Boundaries(NamedTuple):
  """The boundaries of a data set of points."""

  inputs: int  #: D
  largest: float  #: an input is uniform on [0, largest)
  #: x [n, D] float32 -> [n] bool, the label of each concept
  concepts: tuple[Callable[[np.ndarray], np.ndarray], ...]


def _below_sine(x: np.ndarray) -> np.ndarray:
  below: np.ndarray = x[:, 1] <= np.sin(x[:, 0])
  return below


def _outside(a: float, b: float, radius: float) -> Callable[[np.ndarray], np.ndarray]:
  return lambda x: (x[:, 0] - a) ** 2 + (x[:, 1] - b) ** 2 > radius**2


def _sum_above(threshold: float) -> Callable[[np.ndarray], np.ndarray]:
  return lambda x: x[:, 1] + x[:, 2] > threshold


#: Data set -> its boundaries.
BOUNDARIES = {
  "sine2": Boundaries(2, 1.0, (_below_sine, lambda x: ~_below_sine(x))),
  "circle2": Boundaries(2, 1.0, (_outside(0.2, 0.5, 0.15), _outside(0.6, 0.5, 0.25))),
  "sea4": Boundaries(3, 10.0, tuple(map(_sum_above, (8.0, 9.0, 7.0, 9.5)))),
}


def make_points(
  name: str, num_clients: int, examples: int, label_noise: float, seed: int
) -> Examples:
  """Draws uniform points for each client, labeled by the first concept.

  ``sine2``: two inputs in [0, 1); class 1 where x_2 <= sin(x_1), by the second
    concept class 0 there.
  ``circle2``: two inputs in [0, 1); class 1 outside of the circle with center
    (0.2, 0.5) and radius 0.15; by the second one (0.6, 0.5) and 0.25.
  ``sea4``: three inputs in [0, 10); class 1 where the sum of the last two is above
    8, 9, 7, 9.5.

  Args:
    name: one of ``BOUNDARIES``.
    num_clients: C.
    examples: n, the training examples of a client. It has a tenth as many for
      testing, and 100 if these are more.
    label_noise: the probability with which a label is the other one, in [0, 1).
    seed: seed of all random numbers.

  Returns:
    x float32 [C n, D], two classes, with client ids.

  Raises:
    DataError: more examples than fit into memory.
  """
  boundaries, parts = BOUNDARIES[name], []
  # Not the stream of the partition, which would sort a client's points by it.
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, 2)))
  for number in (examples, max(100, examples // 10)):
    total = num_clients * number
    check_memory(
      f"`dataset`={name}: examples={examples}: {total:,} examples",
      3 * 4.0 * (boundaries.inputs + 2) * total,
    )
    x = rng.random((total, boundaries.inputs), np.float32) * boundaries.largest
    x = x.astype(np.float32)
    y = boundaries.concepts[0](x) ^ (rng.random(total) < label_noise)
    client = np.repeat(np.arange(num_clients, dtype=np.int32), number)
    parts.append((x, y.astype(np.int32), client))
  (x_train, y_train, client_train), (x_test, y_test, client_test) = parts
  return Examples(
    x_train=x_train,
    y_train=y_train,
    x_test=x_test,
    y_test=y_test,
    num_classes=2,
    client_train=client_train,
    client_test=client_test,
    name=name,
  )


def label_by_concept(name: str, x: np.ndarray, y: np.ndarray, kind: int) -> np.ndarray:
  """Computes the labels of a concept; a label with noise stays one.

  Args:
    name: one of ``BOUNDARIES``.
    x: [n, D] float32.
    y: [n] int, the labels by the first concept.
    kind: the concept.

  Returns:
    [n], dtype of y.

  Raises:
    DataError: another data set, or it has no such concept.
  """
  if name not in BOUNDARIES:
    raise DataError(
      f"`kinds`=boundaries: {name} has none (only `dataset`={'|'.join(BOUNDARIES)})"
    )
  concepts = BOUNDARIES[name].concepts
  if kind >= len(concepts):
    raise DataError(f"`kinds`=boundaries: {name} has {len(concepts)} of them")
  labels: np.ndarray = (y ^ concepts[0](x) ^ concepts[kind](x)).astype(y.dtype)
  return labels


class _Points(DataSet):
  """Points on both sides of boundaries, generated for each client."""

  HAS_CLIENTS, CLIENTS = True, 10
  READS = ("num_clients", "partition_seed")

  examples: int = hyper(
    1000,
    "number of training examples of a client, of all steps together; for testing it "
    "has a tenth as many, but at least 100",
    minimum=1,
  )
  noise: float = hyper(
    0.0,
    "probability with which a label is the other one, for testing, too",
    minimum=0.0,
    below=1.0,
  )

  def load(self, num_clients: int, seed: int) -> Examples:
    """Generates the clients (``make_points``)."""
    return make_points(self.WORD, num_clients, self.examples, self.noise, seed)


class Sine2(_Points):
  """Two numbers, labeled by a sine; the second concept has the other labels."""

  WORD, EXAMPLE = "sine2", "sine2:500,noise=0.1"
  INPUTS = BOUNDARIES["sine2"].inputs


class Circle2(_Points):
  """Two numbers, labeled by one of two circles."""

  WORD, EXAMPLE = "circle2", "circle2:500,noise=0.1"
  INPUTS = BOUNDARIES["circle2"].inputs


class Sea4(_Points):
  """Three numbers, labeled by a sum and one of four thresholds."""

  WORD, EXAMPLE = "sea4", "sea4:500,noise=0.1"
  INPUTS = BOUNDARIES["sea4"].inputs
