"""All that happens between clients and server (``links``)."""

from fedjax_alg.exchange.links import Exchange, exchange_of
from fedjax_alg.exchange.options import ExchangeOptions, NoExchange

__all__ = ["Exchange", "ExchangeOptions", "NoExchange", "exchange_of"]
