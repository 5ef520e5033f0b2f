"""The meaning of metrics by name: which way is better, and the unit.

A name has one meaning in all tasks, so tables, plots, comparisons and rules
that end a run need nothing but the name of a column of metrics.csv.
"""

from collections.abc import Iterable
from typing import NamedTuple

from fedjax_alg.errors import OptionError


class Metric(NamedTuple):
  """The meaning of a metric: which way is better, and the unit."""

  higher: bool = True  #: whether more is better
  #: whether it lies in [0, 1], of which tables show percent
  share: bool = True


#: The metrics of classification, in the order of metrics.csv.
METRICS = (
  "accuracy",
  "loss",
  "macro_precision",
  "macro_recall",
  "macro_f1",
  "micro_precision",
  "micro_recall",
  "micro_f1",
  "client_accuracy",
  "worst_decile",
)
#: Columns of tables that are no metrics: of metrics.csv, rounds.csv, timing.csv,
#: clients.csv and clients.npz. No metric has one of these names.
OTHER_COLUMNS = (
  "round",
  "seed",
  "protocol",
  "metric",
  "value",
  "floats_down",
  "floats_up",
  "bytes_down",
  "bytes_up",
  "exchanges",
  "example_gradients",
  "central_flops",
  "client_flops",
  "computation_s",
  "communication_s",
  "idle_s",
  "total_floats",
  "total_bytes",
  "total_bytes_up",
  "total_example_gradients",
  "total_central_flops",
  "simulated_s",
  "seconds",
  "partition",
  "client",
  "name",
  "train_examples",
  "test_examples",
  "loss_sum",
  "hits",
)
#: The main metric at the clients: the mean over the clients, each counting
#: alike, and over the worst tenth of them.
_CLIENT, _WORST = "client_", "worst_decile"

_registry: dict[str, Metric] = {
  **dict.fromkeys(
    (*METRICS, "subset_accuracy", "pixel_accuracy", "mean_iou", "token_accuracy"),
    Metric(),
  ),
  **dict.fromkeys(
    ("loss", "mse", "rmse", "mae", "perplexity"), Metric(higher=False, share=False)
  ),
  "r2": Metric(share=False),
}


def of_clients(main: str) -> tuple[str, str]:
  """The names of a task's main metric at the clients.

  Examples:
    >>> of_clients("accuracy"), of_clients("mse")
    (('client_accuracy', 'worst_decile'), ('client_mse', 'worst_decile_mse'))
  """
  return _CLIENT + main, _WORST + ("" if main == "accuracy" else f"_{main}")


def is_of_clients(name: str) -> bool:
  """Whether a metric exists only where clients are counted one by one."""
  return name.startswith((_CLIENT, _WORST))


def _of_all(name: str) -> str:
  """The metric of which this one is that of the clients."""
  if is_of_clients(name) and name not in _registry:
    return name.removeprefix(_WORST + "_").removeprefix(_CLIENT)
  return name


def metric(name: str) -> Metric:
  """Returns the meaning of a metric; by default a share, more of it is better."""
  return _registry.get(_of_all(name), Metric())


def is_known(name: str) -> bool:
  """Whether a task has a metric of this name."""
  return _of_all(name) in _registry


def metric_names() -> tuple[str, ...]:
  """The names of all metrics, but for those of the clients of other tasks."""
  return tuple(_registry)


def define(metrics: Iterable[tuple[str, Metric]]) -> None:
  """Makes the metrics of a task known.

  Args:
    metrics: pairs of a name and its metric.

  Raises:
    OptionError: the name has another meaning already.
  """
  for name, meant in metrics:
    existing = _registry.setdefault(name, meant)
    if existing != meant:
      direction = "higher" if existing.higher else "lower"
      raise OptionError(
        f"`better`={name}: has another meaning already ({direction} is better, "
        f"{'a share' if existing.share else 'no share'}); take another name"
      )


def sign(name: str) -> float:
  """1 if more of a metric is better, else -1."""
  return 1.0 if metric(name).higher else -1.0


def factor(name: str) -> float:
  """The factor that converts a metric to the unit of a table.

  Returns:
    100 for a share, which a table shows in percent; 1 for other numbers.
  """
  return 100.0 if metric(name).share else 1.0


def digits(name: str) -> int:
  """The decimals with which a table shows a metric in its unit."""
  return 2 if metric(name).share else 4


def is_cost(name: str) -> bool:
  """Whether a metric is shown on a logarithmic axis: a loss, an error."""
  meant = metric(name)
  return not meant.share and not meant.higher
