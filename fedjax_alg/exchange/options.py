"""The options of the exchange, beside the hyper-parameters of a method."""

import dataclasses

from fedjax_alg.exchange.aggregation import AggregatorOptions
from fedjax_alg.exchange.attacks import Hostility
from fedjax_alg.exchange.compression import Compression
from fedjax_alg.exchange.privacy import Privacy
from fedjax_alg.hparams import HParams


class ExchangeOptions(AggregatorOptions, Hostility, Compression, Privacy):
  """Options of all links between clients and server (``links.Exchange``)."""


class MeanOptions(Hostility, Compression):
  """Options of the links of a server that reads the mean and every update."""


class NoExchange(HParams):
  """The options of a method with no such links: none."""


def whole(options: object) -> ExchangeOptions:
  """Makes the options of all links of those of some.

  Args:
    options: an ``ExchangeOptions``, or any dataclass that inherits some of its
      bases; fields of the others have their defaults.
  """
  if type(options) is ExchangeOptions:
    return options
  return ExchangeOptions(
    **{
      field.name: getattr(options, field.name)
      for part in (AggregatorOptions, Hostility, Compression, Privacy)
      if isinstance(options, part)
      for field in dataclasses.fields(part)
    }
  )
