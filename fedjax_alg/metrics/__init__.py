"""Names of metrics, confidence intervals, groups against kinds of clients."""

from fedjax_alg.metrics.intervals import confidence_95, half_width_95, quantile_95
from fedjax_alg.metrics.names import (
  METRICS,
  Metric,
  digits,
  factor,
  is_cost,
  is_known,
  metric,
  metric_names,
  sign,
)

__all__ = [
  "METRICS",
  "Metric",
  "confidence_95",
  "digits",
  "factor",
  "half_width_95",
  "is_cost",
  "is_known",
  "metric",
  "metric_names",
  "quantile_95",
  "sign",
]
