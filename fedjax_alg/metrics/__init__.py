"""Classification metrics from confusion matrices."""

from fedjax_alg.metrics.confusion import Counts
from fedjax_alg.metrics.confusion import count
from fedjax_alg.metrics.confusion import METRICS
from fedjax_alg.metrics.confusion import OF_CLIENTS
from fedjax_alg.metrics.confusion import over_clients
from fedjax_alg.metrics.confusion import summarise
from fedjax_alg.metrics.intervals import confidence_95
from fedjax_alg.metrics.intervals import half_width_95

__all__ = ["METRICS", "OF_CLIENTS", "Counts", "confidence_95", "count",
           "half_width_95", "over_clients", "summarise"]
