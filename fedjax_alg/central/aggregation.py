"""The place of aggregators until 0.3; they are in ``exchange.aggregation``."""

from fedjax_alg.exchange.aggregation import Aggregation, Aggregator

__all__ = ["Aggregation", "Aggregator"]
