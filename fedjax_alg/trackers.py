"""Callbacks that send the metrics of a run to an experiment tracker.

  fa.run("fedavg", fed, callbacks=trackers.WandB(project="federated"))
  fedjax-alg run --callback=fedjax_alg.trackers:wandb ...

``wandb`` and ``mlflow`` have the tracker's default settings, which its environment
variables change (WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI, ...). The package
of the tracker is imported at the first evaluation; fedjax_alg does not require it.
"""

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from fedjax_alg.errors import OptionError
from fedjax_alg.runs.play import Step


def mean_metrics(step: Step) -> dict[str, float]:
  """Computes the mean of each metric over the seeds of a step.

  Args:
    step: an evaluation; of a sweep, whose rows have several settings, the mean is
      over all of them.

  Returns:
    "protocol/metric" -> mean; without those that are not numbers.
  """
  means = {
    f"{protocol}/{name}": float(np.mean(values))
    for protocol, metrics in step.metrics.items()
    for name, values in metrics.items()
    if np.ndim(values) == 1
  }
  return {name: mean for name, mean in means.items() if np.isfinite(mean)}


def _library(name: str) -> ModuleType:
  try:
    return importlib.import_module(name)
  except ImportError:
    raise OptionError(
      f"`callback`: the package {name} is missing (pip install {name})"
    ) from None


class WandB:
  """Logs every evaluation to Weights & Biases, with the round as the step.

  A run of W&B that is active already is used. Otherwise one is started, and it
  ends with the run.
  """

  def __init__(self, **settings: Any):
    """Makes the callback.

    Args:
      **settings: the arguments of ``wandb.init`` (project, name, mode, ...).
    """
    self._settings, self._started = settings, False

  def __call__(self, step: Step) -> None:
    """Logs the means over the seeds.

    Raises:
      OptionError: the package wandb is missing.
    """
    wandb = _library("wandb")
    if wandb.run is None:
      wandb.init(**self._settings)
      self._started = True
    wandb.log(mean_metrics(step), step=step.round)
    if step.last and self._started:
      wandb.finish()
      self._started = False


class MLflow:
  """Logs every evaluation to MLflow, with the round as the step.

  A run of MLflow that is active already is used. Otherwise one is started, and it
  ends with the run.
  """

  def __init__(self, **settings: Any):
    """Makes the callback.

    Args:
      **settings: the arguments of ``mlflow.start_run`` (run_name, tags, ...).
    """
    self._settings, self._started = settings, False

  def __call__(self, step: Step) -> None:
    """Logs the means over the seeds.

    Raises:
      OptionError: the package mlflow is missing.
    """
    mlflow = _library("mlflow")
    if mlflow.active_run() is None:
      mlflow.start_run(**self._settings)
      self._started = True
    mlflow.log_metrics(mean_metrics(step), step=step.round)
    if step.last and self._started:
      mlflow.end_run()
      self._started = False


#: With the default settings, for ``--callback=fedjax_alg.trackers:wandb``.
wandb = WandB()
#: With the default settings, for ``--callback=fedjax_alg.trackers:mlflow``.
mlflow = MLflow()
