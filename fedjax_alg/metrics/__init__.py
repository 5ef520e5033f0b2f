"""Classification metrics from confusion matrices."""

from fedjax_alg.metrics.confusion import Counts
from fedjax_alg.metrics.confusion import count
from fedjax_alg.metrics.confusion import METRICS
from fedjax_alg.metrics.confusion import over_clients
from fedjax_alg.metrics.confusion import summarise
from fedjax_alg.metrics.intervals import bands_95
from fedjax_alg.metrics.intervals import confidence_95

__all__ = ["METRICS", "Counts", "bands_95", "confidence_95", "count",
           "over_clients", "summarise"]
