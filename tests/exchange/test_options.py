"""The options of the exchange, beside a method's hyper-parameters."""

import functools

import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms.fedavg import FedAvgHParams, fedavg
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import (
  Exchange,
  ExchangeOptions,
  NoExchange,
  aggregation,
  exchange_of,
)
from fedjax_alg.exchange.attacks import Hostility, LabelFlip
from fedjax_alg.exchange.compression import Compression
from fedjax_alg.exchange.options import MeanOptions
from fedjax_alg.exchange.privacy import FixedClipping
from fedjax_alg.exchange.weights import UniformWeights
from fedjax_alg.hparams import field_values, hyper
from fedjax_alg.part import write_parts
from fedjax_alg.rounds.two_halves import compose
from fedjax_alg.runs import methods
from tests.each import each

pytestmark = pytest.mark.fast

#: An option of each link -> a value that is not its default.
CHANGES = {
  "aggregator": "median",
  "attack": "sign_flip",
  "compress_up": "topk:0.3",
  "private": "fixed",
}


def links_of(method, model):
  """The links of the round that a method builds."""
  (round_,) = method.build(model, ClientMap()).init.args
  return round_.exchange


def test_only_an_own_weight_is_left_to_the_methods():
  """Their hyper-parameters share no name with the exchange."""
  names = field_values(ExchangeOptions()).keys()
  for name, entry in registry.ALGORITHMS.items():
    assert entry.exchange in (ExchangeOptions, Hostility, MeanOptions, NoExchange), name
    shared = field_values(entry.hparams()).keys() & names
    assert not shared or entry.rounds is not None, name  # moments are private, too


@pytest.mark.parametrize("part", [aggregation.AggregatorOptions, Hostility])
def test_options_of_some_links_leave_the_others_alone(part):
  option = "attack" if part is Hostility else "aggregator"
  links = exchange_of(part(**{option: CHANGES[option]}))
  assert (links.attack is not None) == (part is Hostility)
  assert links.aggregator.is_mean == (part is Hostility)
  assert links.compress_up is links.privacy is None


def test_wrong_options_are_refused_where_links_are_made():
  with pytest.raises(OptionError, match="attack=scaled:3: share=3.0: must be at"):
    exchange_of(ExchangeOptions(attack="scaled:3"))
  with pytest.raises(OptionError, match="aggregator=medain: unknown, did you mean"):
    exchange_of(ExchangeOptions(aggregator="medain"))


def test_a_method_joins_both_kinds_of_options():
  values = dict(client_lr=0.3, private=FixedClipping(2.0))
  plain = methods.method_of("fedavg")
  method = methods.with_keywords(plain, values)
  assert method.hparams == FedAvgHParams(client_lr=0.3)
  assert method.exchange == ExchangeOptions(private=FixedClipping(2.0))
  assert method.options.items() >= values.items()
  assert method.fields == registry.get("fedavg").fields
  assert {"client_lr", "private.clip", "private.noise"} <= set(method.traced_names)
  assert method.numbers([method, method.with_values({"private.clip": 3.0})], 1)[
    "private.clip"
  ].tolist() == [2.0, 3.0]
  assert method.structure() != plain.structure()
  louder = method.with_values({"private.clip": 5.0, "client_lr": 0.1})
  assert louder.structure() == method.structure()


@each(
  "name, weights, links, refused",
  [
    ("scaffold", "examples", {"aggregator": "median"}, True),
    ("scaffold", "examples", {"private": "fixed"}, True),
    ("scaffold", "examples", {"aggregator": "norm_bound:1"}, False),
    ("scaffold", "uniform", {"aggregator": "median"}, False),
    ("fednova", "uniform", {"aggregator": "median"}, False),
    ("feddyn", "examples", {"attack": "label_flip"}, False),
    ("fedexp", "examples", {"attack": "scaled"}, False),
    ("scaffold", "examples", {"aggregator": "krum", "attack": "scaled:0.1"}, False),
    ("scaffold", "examples", {"aggregator": "krum", "attack": "scaled:0.1,2"}, True),
  ],
)
def test_weights_that_nobody_reads_are_refused(problem, name, weights, links, refused):
  """Without it a run could claim weights that a median, for one, does not have."""
  given = {"client_weights": weights, **links}
  method = methods.with_keywords(methods.method_of(name), given)
  if not refused:
    method.build(problem.model, ClientMap())
    return
  with pytest.raises(OptionError, match=f"^client_weights={weights}: "):
    method.build(problem.model, ClientMap())


@pytest.mark.parametrize("name", ["fedasync", "feddyn"])
def test_a_method_of_some_links_refuses_the_others(name):
  entry = registry.get(name)
  assert entry.exchange is Hostility
  method = methods.with_keywords(methods.method_of(name), {"attack": "label_flip"})
  assert method.exchange == Hostility(LabelFlip())
  for option in ("aggregator", "compress_up", "private"):
    with pytest.raises(OptionError, match=f"^{option}: {name} does not read it"):
      methods.with_keywords(method, {option: CHANGES[option]})


class Mine(LocalWork):
  client_lr: float = hyper(0.1, "learning rate", above=0.0)


def linked(model, hparams: Mine, *, map_clients, exchange=Exchange()):
  """A method of the user's own that leaves its links to the run."""
  return compose(
    model,
    sgd_update(model, hparams, hparams.client_lr),
    steps.average(),
    map_clients=map_clients,
    exchange=exchange,
  )


def unlinked(model, hparams: Mine, *, map_clients):
  return linked(model, hparams, map_clients=map_clients)


@pytest.mark.parametrize("option", CHANGES)
def test_a_builder_with_the_argument_has_all_links(option, problem):
  method = methods.with_keywords(methods.method_of(linked), {option: CHANGES[option]})
  links = links_of(method, problem.model)
  assert {
    "aggregator": not links.aggregator.is_mean,
    "attack": links.attack is not None,
    "compress_up": links.compress_up is not None,
    "private": links.privacy is not None,
  }[option]
  with pytest.raises(OptionError, match=f"^{option}: unlinked .*argument exchange"):
    methods.with_keywords(methods.method_of(unlinked), {option: CHANGES[option]})


def test_links_that_are_bound_are_the_callers(problem):
  """An aggregator of one's own for a method of the registry."""
  mine = Exchange(aggregator=aggregation.Median().build())
  bound = functools.partial(fedavg, exchange=mine)
  method = methods.method_of(bound, FedAvgHParams())
  assert links_of(method, problem.model).aggregator.name == "median"
  assert "aggregator" not in method.fields


def test_wrong_links_of_an_entry_are_refused():
  entry = registry.Entry(Mine, linked, "mine", "", links=Mine)
  with pytest.raises(OptionError, match="links of its entry is .*Mine"):
    methods.method_of(entry)


# Hyper-parameters that inherit the options, as they did until version 0.3.


class Inherited(Compression, Hostility, Mine):
  client_weights: str = hyper("uniform", "weights", choices=("examples", "uniform"))


def inheriting(model, hparams: Inherited, *, map_clients):
  return linked(model, hparams, map_clients=map_clients, exchange=exchange_of(hparams))


def test_inherited_options_are_hyper_parameters(problem):
  method = methods.with_keywords(
    methods.method_of(inheriting), {"compress_up": "qsgd:4", "attack": "sign_flip"}
  )
  assert method.exchange == NoExchange()
  links = links_of(method, problem.model)
  assert links.compress_up.name == "qsgd:4" and links.attack.name == "sign_flip"
  assert links.weights is UniformWeights().build() and links.aggregator.is_mean
  with pytest.raises(OptionError, match="aggregator: "):
    methods.with_keywords(method, {"aggregator": "median"})


def test_options_are_in_one_place():
  def both(model, hparams: Inherited, *, map_clients, exchange=Exchange()):
    del model, hparams, map_clients, exchange

  with pytest.raises(OptionError, match="both: attack, compress_down, .* must not be"):
    methods.method_of(both)


def test_what_a_run_has_saved_may_name_more_options():
  """A builder of the user's own may have had them by FedAvg's hyper-parameters."""
  saved = field_values(FedAvgHParams(client_lr=0.7), ExchangeOptions())

  def mine(model, hparams: FedAvgHParams, *, map_clients):
    return fedavg(model, hparams, map_clients=map_clients)

  method = methods.restore(methods.method_of(mine), write_parts(saved))
  assert method.hparams == FedAvgHParams(client_lr=0.7)
  with pytest.raises(OptionError, match="mine: the run has aggregator=median"):
    methods.restore(methods.method_of(mine), saved | {"aggregator": "median"})
  method = methods.restore(
    methods.method_of("fedavg"), saved | {"aggregator": "median"}
  )
  assert method.exchange == ExchangeOptions(aggregator=aggregation.Median())
