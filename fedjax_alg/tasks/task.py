"""Tasks: what is predicted of an example and how well, as one value.

A ``Task`` is pure functions of a model's outputs and of the targets: the loss
of each example, sums over examples, and the metrics that follow from the sums.
Sums add up over blocks of rows, clients and devices; they are computed in JAX,
and the metrics on the host in float64. What does not add up, such as ranks,
follows on the host from numbers that are kept of each example (``Task.scores``).
All methods train by ``Task.loss``, and all tables, rules and comparisons read the
names of ``Task.better``.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.memory import row_chunks
from fedjax_alg.metrics import names
from fedjax_alg.metrics.names import Metric
from fedjax_alg.tasks import guards
from fedjax_alg.typing import AnyArray, Array, Facts, PyTree

#: Name -> sum over rows. "rows" is their number and "loss" the sum of their
#: losses, in parts if the sum is kept in parts.
Sums = dict[str, AnyArray]
HIGHER, LOWER = "higher", "lower"


def numbers(y: np.ndarray, label: str = "whole numbers") -> np.ndarray:
  """Converts targets of any kind: whole numbers to int32, others to float32.

  Args:
    y: [n, ...].
    label: the meaning of whole numbers, for messages.

  Raises:
    ValueError: they are no real numbers, or one is NaN or infinite; the text
      continues after the name of the array.
  """
  if y.dtype.kind not in "fiub":
    raise ValueError(f"is {kind_of(y)}, real numbers are needed")
  if y.dtype.kind != "f":
    bounds = np.iinfo(np.int32)
    if y.size and not bounds.min <= y.min() <= y.max() <= bounds.max:
      raise ValueError(f"lies in [{y.min()}, {y.max()}], {label} must fit into int32")
    return y.astype(np.int32, copy=False)
  return as_float32(y)


def kind_of(values: np.ndarray) -> str:
  """Names an array's kind for messages: its dtype, "text", or Python's types."""
  if values.dtype.kind in "US":
    return "text"
  if values.dtype.kind != "O":
    return str(values.dtype)
  kinds = sorted({type(value).__name__ for value in values.ravel()[:1000]})
  return "text" if kinds == ["str"] else f"object ({', '.join(kinds[:4])})"


def as_float32(values: np.ndarray) -> np.ndarray:
  """Real numbers as float32, if that leaves them finite and apart.

  Float32 has 24 bits: of whole numbers from 1,700,000,000 on it keeps every
  128th. Rounding is refused where it makes different values of a column equal
  and is more than a hundredth of the column's standard deviation.

  Args:
    values: [n, ...] of a real dtype.

  Raises:
    ValueError: a value is NaN or infinite, or a column is refused; the text
      goes on after the name of the array.
  """
  with np.errstate(over="ignore"):  # becomes infinite
    single = values.astype(np.float32, copy=False)
  number, first = 0, np.zeros(0, np.int64)
  for rows in row_chunks(single):
    places = np.argwhere(~np.isfinite(single[rows]))
    if len(places) and not number:
      first = places[0]
      first[0] += rows.start
    number += len(places)
  if number:
    column = f", column {first[1]}" if len(first) == 2 and values.shape[1] > 1 else ""
    raise ValueError(
      f"has {number} NaN or infinite value(s) (as float32), "
      f"the first in row {first[0]}{column}: replace them or leave these rows out"
    )
  if values.dtype.itemsize > 2 and values.dtype != np.float32 and values.size:
    _check_distinct(values.reshape(len(values), -1))
  return single


def _check_distinct(values: np.ndarray) -> None:
  """Refuses a column [n] of [n, d] that float32 rounds away."""
  highest, lowest = values.max(0), values.min(0)
  largest_of = np.maximum(
    np.abs(highest.astype(np.float64)), np.abs(lowest.astype(np.float64))
  )
  # Below, whole numbers are exact, and others may lose what they like.
  for place in np.flatnonzero((largest_of > 2**24) & (highest > lowest)):
    column, low = values[:, place], lowest[place]
    spread = float(highest[place]) - float(low)
    # Differences of whole numbers are exact where they do not wrap around.
    about = (
      (column - low).astype(np.float64)
      if spread < 2**62
      else (column.astype(np.float64) - float(low))
    )
    rounding = float(np.spacing(np.float32(largest_of[place]))) / 2
    if rounding <= about.std() / 100:
      continue
    before = len(np.unique(column))
    after = len(np.unique(column.astype(np.float32)))
    if after < before:
      which = f" in column {place}" if values.shape[1] > 1 else ""
      raise ValueError(
        f"lies in [{low}, {highest[place]}]{which}, and of its {before:,} "
        f"different values float32 tells {after:,} apart: subtract their "
        "mean, or leave out what is a name and no number"
      )


def whole_numbers(y: np.ndarray, least: int, most: int) -> np.ndarray:
  """Whole numbers in a range, as int32.

  Raises:
    ValueError: others; the text goes on after the name of the array.
  """
  if y.dtype.kind == "f":
    as_float32(y)  # refuses NaN
  if y.dtype.kind not in "iu":
    raise ValueError(f"is {kind_of(y)}, integers are needed")
  if y.size and (y.min() < least or y.max() > most):
    raise ValueError(
      f"lies in [{y.min()}, {y.max()}], whole numbers from "
      f"{least} to {most:,} are needed"
    )
  return y.astype(np.int32, copy=False)


def token_ids(x: np.ndarray) -> np.ndarray:
  """Ids of tokens, as they are: whole numbers from 0.

  Raises:
    ValueError: an id is negative, which would count from the end of an
      embedding; the text goes on after the name of the array.
  """
  if x.size and x.min() < 0:
    row, *place = np.argwhere(x < 0)[0].tolist()
    raise ValueError(
      f"has the token id {x[(row, *place)]} in row {row}, place "
      f"{', '.join(map(str, place))}; ids are whole numbers from 0, of which "
      "0 is padding (other numbers must be float32)"
    )
  return x


def of_one_number(y: np.ndarray, label: str) -> np.ndarray:
  """Targets [n] as [n, 1], and others as they are; they have two axes then."""
  if y.ndim == 1:
    y = y[:, None]
  if y.ndim != 2 or not y.shape[1]:
    raise ValueError(f"has shape {y.shape}, {label} are needed for each row")
  return y


def largest(*targets: np.ndarray) -> int:
  """L of labels: the largest one plus one."""
  return 1 + max(int(y.max(initial=0)) for y in targets)


def num_columns(*targets: np.ndarray) -> int:
  """The number of columns of targets [n, L]."""
  return int(targets[0].shape[1])


def _size(*targets: object) -> int:
  """Returns the size of a task that you define: the number of labels or columns."""
  first = [jax.tree.leaves(y)[0] for y in targets]
  if first[0].dtype.kind == "i":
    return largest(*first)
  return num_columns(*first) if first[0].ndim > 1 else 1


class Labels(NamedTuple):
  """One label for each example, by which examples can be dealt to clients."""

  train: np.ndarray  #: [n] int32 in [0, number)
  test: np.ndarray  #: [m] int32
  number: int


def class_labels(y_train: np.ndarray, y_test: np.ndarray, size: int) -> Labels:
  """``Task.labels`` of targets that are one class for each example."""
  return Labels(y_train, y_test, size)


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
  """A prediction task: its targets, loss and metrics.

  B examples have the targets y [B, ...] and the model's outputs [B, ...], which both
  may be pytrees. If you define a task, you only need to give ``name``, ``loss``,
  ``sums``, ``values`` and ``better``.

  The results of your functions are checked when they are called (``guards``).

  Raises:
    OptionError: a field has another type, ``better`` and ``shares`` do not fit
      each other, or a metric has the name of another column of the tables, or
      another meaning in another task.
  """

  name: str
  #: (outputs, y) -> loss of each example [B] float32, which training minimizes
  loss: Callable[[Any, Any], Array]
  #: (outputs, y, losses [B], mask [B] bool) -> sums over the rows of the mask;
  #: other rows may hold NaN. "rows" and "loss" are added if they are missing
  sums: Callable[[Any, Any, Array, Array], Mapping[str, AnyArray]]
  #: (sums) -> metric -> value. The sums, and what ``ranks`` gives, are NumPy arrays
  #: with leading axes, of models or clients, before the axes that ``sums`` gives
  #: them, and the values have these leading axes. "loss" is added if it is
  #: missing. A metric that cannot be had of ``pooled`` sums is left out there
  values: Callable[[Sums], Mapping[str, AnyArray]]
  #: metric -> "higher" or "lower", in the order of the tables. The first is the
  #: main one, by which models and settings are chosen
  better: Mapping[str, str]
  #: the metrics that lie in [0, 1]; tables show them in percent
  shares: tuple[str, ...] = ()
  #: (an array of targets) -> the array that is kept; raises a ValueError whose
  #: text goes on after the array's name
  targets: Callable[[np.ndarray], np.ndarray] = numbers
  #: (training, test targets) -> L, the number of classes, targets or tokens
  size: Callable[..., int] = _size
  #: (shapes of y, L) -> the shape that the outputs must have; None: any
  outputs: Callable[[Any, int], tuple[int, ...]] | None = None
  #: (training, test targets, L) -> ``Labels``; None, or returning None:
  #: examples have no label
  labels: Callable[[Any, Any, int], Labels | None] | None = None
  #: (sums) -> smaller sums that ``main`` and "loss" follow from, which are kept
  #: for each client; they must add up, too
  pooled: Callable[[Sums], Sums] = lambda sums: sums
  #: (outputs, y) -> name -> [B], numbers that are kept of each example beside the
  #: sums, for ``ranks``; None: nothing is kept
  scores: Callable[[Any, Any], Mapping[str, Array]] | None = None
  #: (scores [n], group [n] int, G) -> name -> [G]: what ``values`` reads of each
  #: group of examples beside its sums; computed on the host, with NumPy
  ranks: (
    Callable[[Mapping[str, np.ndarray], np.ndarray, int], Mapping[str, np.ndarray]]
    | None
  ) = None
  #: (outputs, y, mask) -> the confusion matrix [L, L]; None: there is none
  matrix: Callable[[Any, Any, Array], Array] | None = None
  #: (y of all) -> the false targets of hostile clients; None: there are none
  flipped: Callable[[Any], Any] | None = None
  #: (y, mask, L) -> [B, L], the numbers that least squares fits; None: none
  fitted: Callable[[Any, Array, int], Array] | None = None
  #: (training targets) -> the task as it measures on these data
  for_data: Callable[[Any], "Task"] | None = None
  of_tokens: bool = False  #: whether x and y are ids of the same tokens
  #: metrics beside ``main`` that follow from ``pooled`` sums, too: each client has
  #: them, and their mean over the clients and over the worst tenth are columns
  at_clients: tuple[str, ...] = ()
  #: whether ``values`` takes the sums "confusion" and "loss" alone (the protocol
  #: ``preferred``)
  of_matrix: bool = True

  def __post_init__(self):
    _check_types(self)
    for name, check in (
      ("outputs", guards.check_shape),
      ("size", guards.check_size),
      ("targets", guards.check_target_array),
      ("labels", guards.labels_of(Labels)),
      ("pooled", guards.check_pooled),
      ("scores", guards.check_scores),
      ("ranks", guards.check_ranks),
      ("flipped", guards.check_flipped),
      ("fitted", guards.check_fitted),
      ("matrix", guards.check_matrix),
      ("for_data", guards.task_of(Task)),
    ):
      fn = getattr(self, name)
      if fn is not None and not guards.is_library(fn) and not hasattr(fn, "is_guarded"):
        object.__setattr__(self, name, guards.guard(self.name, name, fn, check))
    better = dict(self.better)
    better.setdefault("loss", LOWER)
    object.__setattr__(self, "better", better)
    for name, which in better.items():
      if which not in (HIGHER, LOWER):
        raise OptionError(
          f"`better`={name}: {which!r}, must be {HIGHER!r} or {LOWER!r}"
        )
    for option in ("shares", "at_clients"):
      for name in getattr(self, option):
        if name not in better:
          raise OptionError(
            f"`{option}`={name}: not in `better` (one of {', '.join(better)})"
          )
    for name in better:
      if not isinstance(name, str) or not name.strip():
        raise OptionError(f"`better`={name!r}: must be the name of a metric")
      if name in (*names.OTHER_COLUMNS, *self.metrics.of_clients):
        raise OptionError(
          f"`better`={name}: is another column of the run's tables; take another name"
        )
    names.define(self.metrics.of.items())

  @property
  def main(self) -> str:
    """The main metric."""
    return next(iter(self.better))

  @property
  def has_classes(self) -> bool:
    """Whether the target of an example is one class in [0, L)."""
    return self.labels is class_labels

  @property
  def metrics(self) -> "Metrics":
    """Metrics of the task, for tables and comparisons."""
    return Metrics(
      self.name,
      {
        name: Metric(which == HIGHER, name in self.shares)
        for name, which in self.better.items()
      },
      self.at_clients,
    )

  def of_batch(
    self, outputs: PyTree, y: PyTree, losses: Array, mask: Array, matrix: bool = False
  ) -> Sums:
    """Computes the sums over the examples of a batch.

    Args:
      outputs: outputs of the model.
      y: targets.
      losses: [B] float32, loss of each example.
      mask: [B] bool, the examples that count; the others may hold NaN.
      matrix: whether "confusion" is one of the sums.
    """
    sums = dict(self.sums(outputs, y, losses, mask))
    if "rows" not in sums:
      sums["rows"] = mask.sum().astype(jnp.float32)
    if "loss" not in sums:
      sums["loss"] = jnp.where(mask, losses, jnp.zeros_like(losses)).sum()
    if matrix:
      assert self.matrix is not None
      sums["confusion"] = self.matrix(outputs, y, mask)
    return sums

  def measured(self, sums: Sums) -> Sums:
    """The metrics of sums, NaN if nothing was counted; see ``values``."""
    with np.errstate(all="ignore"):
      values = dict(self.values(sums))
      if "loss" not in values:
        values["loss"] = sums["loss"] / sums["rows"]
    return {name: values[name] for name in self.better if name in values}


def _check_types(task: Task) -> None:
  """Checks the types of a task's fields."""
  if not isinstance(task.name, str) or not task.name:
    raise OptionError(f"a Task is named {task.name!r}, must be a word")
  label = f"`task`={task.name}: its"
  for name in (
    "loss",
    "sums",
    "values",
    "targets",
    "size",
    "pooled",
    "outputs",
    "labels",
    "matrix",
    "flipped",
    "fitted",
    "for_data",
    "scores",
    "ranks",
  ):
    fn, optional = (
      getattr(task, name),
      name
      in (
        *("outputs", "labels", "matrix", "flipped", "fitted", "for_data"),
        *("scores", "ranks"),
      ),
    )
    if not callable(fn) and not (fn is None and optional):
      raise OptionError(f"{label} {name} is {a_type(fn)}, must be a function")
  if (task.scores is None) != (task.ranks is None):
    raise OptionError(
      f"{label} {'ranks' if task.scores is None else 'scores'} is not read without "
      f"{'scores' if task.scores is None else 'ranks'}, give both"
    )
  if not isinstance(task.better, Mapping) or not all(
    isinstance(name, str) for name in task.better
  ):
    raise OptionError(
      f"{label} better is {task.better!r}, must be a dictionary "
      'from metrics to directions, such as {"near": "higher"}'
    )
  if isinstance(task.shares, str):
    raise OptionError(f"{label} shares is {task.shares!r}, must be a list of metrics")
  if isinstance(task.at_clients, str):
    raise OptionError(
      f"{label} at_clients is {task.at_clients!r}, must be a list of metrics"
    )


class Metrics(NamedTuple):
  """The metrics of a task, as its tables have them."""

  task: str  #: name of the task
  of: dict[str, Metric]  #: in the order of the tables, without the clients'
  at_clients: tuple[str, ...] = ()  #: see ``Task``

  @property
  def main(self) -> str:
    """The main metric."""
    return next(iter(self.of))

  @property
  def of_clients(self) -> tuple[str, ...]:
    """The columns of metrics.csv that are of the clients."""
    return tuple(
      column
      for name in dict.fromkeys((self.main, *self.at_clients))
      for column in names.of_clients(name)
    )

  @property
  def columns(self) -> tuple[str, ...]:
    """The columns of metrics.csv."""
    return (*self.of, *self.of_clients)

  def facts(self) -> dict[str, object]:
    """Returns the entries of config.json."""
    return {
      "name": self.task,
      "metrics": {name: list(meant) for name, meant in self.of.items()},
      **({"at_clients": list(self.at_clients)} if self.at_clients else {}),
    }


def metrics_of(facts: Facts) -> Metrics:
  """The metrics of a run that was read from a folder.

  Args:
    facts: what ``Metrics.facts`` has returned.

  Raises:
    ValueError: it has no metric.
  """
  of = {
    str(name): Metric(*map(bool, meant)) for name, meant in facts["metrics"].items()
  }
  if not of:
    raise ValueError("metrics")
  names.define(of.items())
  at_clients = tuple(map(str, facts.get("at_clients", ())))
  if not set(at_clients) <= set(of):
    raise ValueError("at_clients")
  return Metrics(str(facts["name"]), of, at_clients)


def ratio(a: AnyArray, b: AnyArray) -> AnyArray:
  """a / b in float64, 0 where b is not positive."""
  a = np.asarray(a, np.float64)
  return np.divide(a, b, out=np.zeros_like(a), where=np.asarray(b) > 0)


def if_any(number: AnyArray) -> AnyArray:
  """1 where a number is positive, else NaN."""
  result: AnyArray = np.where(np.asarray(number) > 0, 1.0, np.nan)
  return result
