"""Tasks: what is predicted of an example, how well, and by which metrics."""

from fedjax_alg.base import Model
from fedjax_alg.tasks.classification import CLASSIFICATION, cross_entropy
from fedjax_alg.tasks.classification import MAX_CLASSES, MAX_MATRIX
from fedjax_alg.tasks.counts import at_clients, Counts, over_clients, summarise
from fedjax_alg.tasks.task import Labels, Metrics, metrics_of, Sums, Task

__all__ = ["CLASSIFICATION", "Counts", "Labels", "MAX_CLASSES", "MAX_MATRIX",
           "Metrics", "Sums", "Task", "at_clients", "cross_entropy",
           "metrics_of", "of", "over_clients", "summarise"]


def of(model: Model) -> Task:
  """The task of a model; one class for each example if it names none."""
  return CLASSIFICATION if model.task is None else model.task
