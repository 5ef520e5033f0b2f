"""The table of algorithms and their hyper-parameters."""

import dataclasses
import re

import pytest

from fedjax_alg import hparams, registry
from fedjax_alg.algorithms import composed
from fedjax_alg.engine import clients
from fedjax_alg.errors import OptionError
from fedjax_alg.part import forms, parts_of
from tests.algorithms import bridge
from tests.each import each

pytestmark = pytest.mark.fast

MAP = clients.ClientMap()


@each(
  "name, message",
  [
    ("fedavgg", ", did you mean 'fedavg'?"),
    ("fsvgr", "did you mean 'fsvrg'"),
    ("zzz", "algorithm=zzz: unknown (one of fedavg, "),
    ("PFedAvg", "unknown, did you mean 'per_fedavg'? ("),
    ("FL+HC", "unknown, did you mean 'flhc'? ("),
    ("MimeLite", "unknown, did you mean 'mime_lite'? ("),
    ("scaffold_adam", "it is client_update=scaffold with server=adam ("),
    ("prox-adam", "it is client_update=prox with server=adam ("),
    ("FedProx + Adam", "it is client_update=prox with server=adam ("),
    ("svrg_cg", "it is client_update=svrg with server=conjugate_gradient ("),
    ("losacadaptive", "it is client_update=losac with server=adaptive ("),
    ("mime_adam", "it is algorithm=mime with base=adam (the paper's"),
    ("FedSGD", "it is algorithm=fedavg with local_steps=1 and batch_size=0 ("),
    *((name, "is not here (") for name in registry._NOT_HERE[-1:]),
    ("q-FedAvg", "is algorithm=fedavg with client_weights=qffl:Q ("),
    (
      "Agnostic FL",
      "is algorithm=fedavg with client_weights=agnostic "
      "(algorithm=afl is analytic FL) (",
    ),
    ("resnet", "unknown (one of"),
    ("my.module", "or your own, path/to/file"),
  ],
)
def test_a_name_that_is_no_name_here_is_said_to_be_what_it_is(name, message):
  with pytest.raises(ValueError) as error:
    registry.get(name)
  assert message in str(error.value) and "\n" not in str(error.value)


def test_names_of_papers_are_not_sent_to_other_methods():
  """A method that is not here is never taken for one that is."""
  for name in (
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fednova",
    "feddyn",
    "ditto",
    "fedopt",
    *registry._NOT_HERE,
  ):
    if name in registry.ALGORITHMS:
      continue
    with pytest.raises(ValueError) as error:
      registry.get(name)
    assert "did you mean" not in str(error.value)


def test_halves_that_a_message_names_are_there():
  assert {*registry._CLIENTS.values()} <= {*forms(composed.CLIENT_UPDATES)}
  assert {*registry._SERVERS.values()} <= {*forms(composed.SERVERS)}
  assert not set(registry._SETTINGS) & set(registry.ALGORITHMS)


def test_an_unknown_hyper_parameter_gets_the_nearest_name(problem):
  with pytest.raises(
    ValueError, match="local_step: fedavg does not read it, did you mean 'local_steps'"
  ):
    registry.build("fedavg", problem.model, map_clients=MAP, local_step=3)
  with pytest.raises(ValueError, match="mu: fedavg does not read it"):
    registry.build("fedavg", problem.model, map_clients=MAP, mu=0.1)


@each("name", list(registry.ALGORITHMS))
def test_defaults_are_valid_and_documented(name):
  entry = registry.get(name)
  for part in entry.parts():
    hparams.validate(part)
  assert entry.label and entry.paper
  assert dataclasses.fields(entry.hparams), name
  for field in entry.fields.values():
    assert field.metadata["help"], field.name
    is_choice = parts_of(field.type)
    assert is_choice or type(field.default) in (bool, int, float, str), field.name
  with pytest.raises(dataclasses.FrozenInstanceError):
    setattr(entry.hparams(), dataclasses.fields(entry.hparams)[0].name, 1)


@each(
  "name, field",
  [
    (name, field)
    for name, entry in registry.ALGORITHMS.items()
    for field in ("aggregator", "attack")
    if field in entry.fields
  ],
)
def test_the_aggregator_and_the_attack_reach_the_round(name, field, problem):
  plain, changed = (
    bridge.method_of(
      registry.build(name, problem.model, map_clients=MAP, **{field: value})
    )
    for value in dict(aggregator=("mean", "median"), attack=("none", "label_flip"))[
      field
    ]
  )
  if field == "aggregator":
    assert plain.exchange.aggregator.is_mean
    assert not changed.exchange.aggregator.is_mean
  else:
    assert plain.exchange.attack is None
    assert changed.exchange.attack is not None


@each("name", list(registry.ALGORITHMS))
def test_builders_validate(name, problem):
  """The builder itself; a user's own may leave it to the run (``testing``)."""
  entry = registry.get(name)
  bounded = {
    field.name: (field, bound)
    for field in dataclasses.fields(entry.hparams)
    for bound in map(field.metadata.get, ("minimum", "above"))
    if bound is not None
  }
  assert bounded or name in ("fed3r", "fedncm", "safle")  # parts check themselves
  for field, bound in [*bounded.values()][:1]:
    value = type(field.default)(bound - 1)
    with pytest.raises(OptionError) as error:
      entry.make(problem.model, *entry.parts(**{field.name: value}), MAP)
    assert f"{field.name}={value}: must be" in str(error.value).replace("`", "")


@each(
  "name, settings, message",
  [
    ("ditto", dict(lam=20.0), "`personal_lr`=0.1 with `lam`=20: "),
    ("pfedme", dict(lam=20.0, personal_lr=0.1), "`personal_lr`=0.1 with `lam`=20: "),
    ("pfedzo", dict(lam=20.0), "`lam`=20"),
    ("pfedzo", dict(smoothing=1e-6), "`smoothing`=1e-06"),
    ("fedzo", dict(smoothing=1e-5), "`smoothing`=1e-05"),
    ("baffle", dict(smoothing=1e-6), "`smoothing`=1e-06"),
    ("fednova", dict(mu=20.0), "`mu`=20 with `client_lr`=0.1: "),
    ("fednova", dict(mu=9.0), ""),
  ],
)
def test_it_warns_of_what_diverges_or_float32_cannot_see(name, settings, message):
  entry = registry.get(name)
  assert not entry.caution(entry.hparams(), 7850)
  caution = entry.caution(entry.hparams(**settings), 7850)
  assert message in caution if message else not caution


def fields_of_parts(option):
  """The fields of the parts that an option chooses from, and of theirs."""
  for part in parts_of(option.type):
    for field in dataclasses.fields(part):
      yield field
      yield from fields_of_parts(field)


def test_momenta_and_decays_are_below_one():
  """A momentum of 1 or more grows without end, so no method may take it."""
  fields = {
    (name, field.name): field.metadata
    for name, entry in registry.ALGORITHMS.items()
    for option in entry.fields.values()
    for field in (option, *fields_of_parts(option))
    if re.search(r"momentum$|_?beta[12]$", field.name)
  }
  assert len({field for _, field in fields}) >= 6
  for field, metadata in fields.items():
    assert (metadata["minimum"], metadata["below"]) == (0.0, 1.0), field
