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
from fedjax_alg.runs.sinks import Sink


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


class _Tracker(Sink):
  """Logs every evaluation, with the round as the step.

  A run of the tracker that is active already is used. Otherwise one is started,
  and it ends with the run, also where a callback or an error ends that.
  """

  package: str  #: the name of the tracker's package

  def __init__(self, **settings: Any):
    """Makes the callback.

    Args:
      **settings: the arguments with which the tracker starts a run.
    """
    self._settings, self._started = settings, False

  def __call__(self, step: Step) -> None:
    """Logs the means over the seeds.

    Raises:
      OptionError: the package of the tracker is missing.
    """
    library = _library(self.package)
    if not self._is_active(library):
      self._start(library)
      self._started = True
    self._log(library, mean_metrics(step), step.round)
    if step.last:  # a loop over ``fa.steps`` does not close it
      self.close()

  def close(self) -> None:
    """Ends the tracker's run, if it was started here."""
    if self._started:
      self._started = False
      self._end(_library(self.package))

  def _is_active(self, library: Any) -> bool:
    raise NotImplementedError

  def _start(self, library: Any) -> None:
    raise NotImplementedError

  def _log(self, library: Any, means: dict[str, float], number: int) -> None:
    raise NotImplementedError

  def _end(self, library: Any) -> None:
    raise NotImplementedError


class WandB(_Tracker):
  """Logs to Weights & Biases; settings are those of ``wandb.init``."""

  package = "wandb"

  def _is_active(self, library: Any) -> bool:
    return library.run is not None

  def _start(self, library: Any) -> None:
    library.init(**self._settings)

  def _log(self, library: Any, means: dict[str, float], number: int) -> None:
    library.log(means, step=number)

  def _end(self, library: Any) -> None:
    library.finish()


class MLflow(_Tracker):
  """Logs to MLflow; settings are those of ``mlflow.start_run``."""

  package = "mlflow"

  def _is_active(self, library: Any) -> bool:
    return library.active_run() is not None

  def _start(self, library: Any) -> None:
    library.start_run(**self._settings)

  def _log(self, library: Any, means: dict[str, float], number: int) -> None:
    library.log_metrics(means, step=number)

  def _end(self, library: Any) -> None:
    library.end_run()


#: With the default settings, for ``--callback=fedjax_alg.trackers:wandb``.
wandb = WandB()
#: With the default settings, for ``--callback=fedjax_alg.trackers:mlflow``.
mlflow = MLflow()
