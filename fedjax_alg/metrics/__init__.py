"""Classification metrics from confusion matrices."""

from fedjax_alg.metrics.confusion import (
    count, Counts, METRICS, OF_CLIENTS, over_clients, summarise)
from fedjax_alg.metrics.intervals import confidence_95, half_width_95

__all__ = ["METRICS", "OF_CLIENTS", "Counts", "confidence_95", "count",
           "half_width_95", "over_clients", "summarise"]
