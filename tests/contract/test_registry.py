"""The table of algorithms and their hyper-parameters."""

import dataclasses

import pytest

from fedjax_alg import hparams, registry
from fedjax_alg.engine import clients

pytestmark = pytest.mark.fast

MAP = clients.make_map_clients()


@pytest.mark.parametrize("wrong, hint", [
    ("fedavgg", ", did you mean 'fedavg'?"), ("fsvgr", "did you mean 'fsvrg'"),
    ("zzz", "algorithm=zzz: unknown (one of fedavg, ")])
def test_an_unknown_algorithm_gets_the_nearest_name(wrong, hint):
  with pytest.raises(ValueError) as error:
    registry.get(wrong)
  assert hint in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_hyper_parameter_gets_the_nearest_name(problem):
  with pytest.raises(ValueError, match="local_step: fedavg does not read it, "
                     "did you mean 'local_steps'"):
    registry.build("fedavg", problem.model, map_clients=MAP, local_step=3)
  with pytest.raises(ValueError, match="mu: fedavg does not read it"):
    registry.build("fedavg", problem.model, map_clients=MAP, mu=0.1)


@pytest.mark.parametrize("name", list(registry.ALGORITHMS))
def test_defaults_are_valid_and_documented(name):
  entry = registry.get(name)
  hparams.validate(entry.hparams())
  assert entry.label and entry.paper
  assert dataclasses.fields(entry.hparams), name
  for field in dataclasses.fields(entry.hparams):
    assert field.metadata["help"], field.name
    assert type(field.default) in (bool, int, float, str), field.name
  with pytest.raises(dataclasses.FrozenInstanceError):
    setattr(entry.hparams(), dataclasses.fields(entry.hparams)[0].name, 1)


@pytest.mark.parametrize("name", [
    name for name, entry in registry.ALGORITHMS.items()
    if hasattr(entry.hparams, "aggregator")])
def test_the_aggregator_reaches_the_round(name, problem):
  for chosen in ("mean", "median"):
    made = registry.build(
        name, problem.model, map_clients=MAP, aggregator=chosen)
    method, = made.round.args  # of compose
    assert method.aggregator.is_mean == (chosen == "mean")


@pytest.mark.parametrize("name", list(registry.ALGORITHMS))
def test_builders_validate(name, problem):
  """The first number with a lower bound is set below it."""
  for field in dataclasses.fields(registry.get(name).hparams):
    bound = field.metadata["minimum"]
    bound = field.metadata["above"] if bound is None else bound
    if bound is None:
      continue
    bad = type(field.default)(bound - 1)
    with pytest.raises(ValueError, match=f"{field.name}={bad}: must be"):
      registry.build(
          name, problem.model, map_clients=MAP, **{field.name: bad})
    return
  pytest.fail(f"{name} has no hyper-parameter with a lower bound")
