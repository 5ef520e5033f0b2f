"""Tasks: what is predicted of an example, how well, and by which metrics."""

from typing import Protocol

from fedjax_alg import own
from fedjax_alg.errors import OptionError, a_type, check_known
from fedjax_alg.tasks.binary import BINARY
from fedjax_alg.tasks.classification import CLASSIFICATION, MAX_MATRIX, cross_entropy
from fedjax_alg.tasks.counts import (
  Counts,
  ExampleScores,
  counts_on_host,
  per_client_metrics,
  sum_over_clients,
  summarize_counts,
)
from fedjax_alg.tasks.dense import DENSE, dense
from fedjax_alg.tasks.multi_label import MULTI_LABEL
from fedjax_alg.tasks.regression import REGRESSION
from fedjax_alg.tasks.task import Labels, Metrics, Sums, Task, largest, metrics_of
from fedjax_alg.tasks.tokens import PADDING, TOKENS

__all__ = [
  "BINARY",
  "CLASSIFICATION",
  "Counts",
  "DENSE",
  "ExampleScores",
  "Labels",
  "MAX_MATRIX",
  "MULTI_LABEL",
  "Metrics",
  "NAMES",
  "PADDING",
  "REGRESSION",
  "Sums",
  "TOKENS",
  "Task",
  "counts_on_host",
  "cross_entropy",
  "dense",
  "is_own_task",
  "largest",
  "metrics_of",
  "of",
  "per_client_metrics",
  "resolve_task",
  "sum_over_clients",
  "summarize_counts",
]

#: Name -> task.
NAMES: dict[str, Task] = {
  task.name: task
  for task in (
    CLASSIFICATION,
    BINARY,
    MULTI_LABEL,
    REGRESSION,
    DENSE,
    TOKENS,
  )
}


_DENSE = "dense:"


def resolve_task(task: str | Task | None) -> Task | None:
  """The task that an option or an argument names.

  Args:
    task: a name of ``NAMES``, with dense perhaps the label that is ignored
      ("dense:255"); the file or module and the name of a ``Task``
      (``own.load``); a ``Task``; or None.

  Returns:
    The task; None for None.

  Raises:
    OptionError: it is none of these.
  """
  if task is None or isinstance(task, Task):
    return task
  if not isinstance(task, str):
    raise OptionError(f"`task`: {a_type(task)}, must be a name or a Task")
  if task.startswith(_DENSE):
    try:
      ignored = int(task.removeprefix(_DENSE))
    except ValueError:
      raise OptionError(
        f"`task`={task}: must be dense:LABEL, the label of pixels that are ignored"
      ) from None
    return dense(ignored)
  if is_own_task(task):
    loaded, _ = own.load(task, "task")
    if not isinstance(loaded, Task):
      raise OptionError(f"`task`={task}: is {a_type(loaded)}, must be a Task")
    return loaded
  own.refuse_nameless(task, "task")
  check_known("task", task, NAMES, f", or your own, {own.FORMS}")
  return NAMES[task]


class _HasTask(Protocol):
  """A model, examples or a federation."""

  @property
  def task(self) -> Task | None:
    """What is predicted; None: one class for each example."""


def is_own_task(task: object) -> bool:
  """Whether an option names a task of the user's own."""
  return isinstance(task, str) and own.is_own(task) and not task.startswith(_DENSE)


def of(source: _HasTask) -> Task:
  """The task of a model or of data; one class for each example by default."""
  return CLASSIFICATION if source.task is None else source.task
