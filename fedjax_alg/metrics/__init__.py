"""Names of metrics, confidence intervals, groups against kinds of clients."""

from fedjax_alg.metrics.intervals import (
  Estimate,
  Number,
  confidence_95,
  estimate_mean,
  format_estimate,
  half_width_95,
  number_of,
  quantile_95,
)
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
  "Estimate",
  "Metric",
  "Number",
  "confidence_95",
  "digits",
  "estimate_mean",
  "factor",
  "format_estimate",
  "half_width_95",
  "is_cost",
  "is_known",
  "metric",
  "metric_names",
  "number_of",
  "quantile_95",
  "sign",
]
