"""All that happens between clients and server (``links``)."""

from fedjax_alg.exchange.links import Exchange, exchange_of

__all__ = ["Exchange", "exchange_of"]
