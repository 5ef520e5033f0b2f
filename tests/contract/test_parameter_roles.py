"""Every registered algorithm with parameters of every role, or its reason.

Traced, not compiled: what is tested is which leaves the algorithm sees and what
it says that it sends. The numbers are tested in ``tests/client``.
"""

import functools

import jax
import pytest

from fedjax_alg import models, registry
from fedjax_alg.base import num_params
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, loop
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation
from fedjax_alg.errors import OptionError
from fedjax_alg.models import roles
from fedjax_alg.runs import methods
from tests import problems
from tests.contract.test_contract import small_settings

#: Why a method has no personal parameters, as it says itself.
REFUSED = {
    "ditto": "keeps a personal model", "pfedme": "has a personal model",
    "per_fedavg": "adapts all parameters", "fedzo": "losses and no gradients",
    "pfedzo": "has a personal model",
    "fedbuff": "keep nothing", "fedasync": "keep nothing"}
#: Those whose round is not made of two halves.
OWN_ROUND = ("baffle", "central", "local", "fedacnnl", "pfedacnnl", "afl")


@functools.cache
def problem():
  held = problems.softmax_problem()
  return held._replace(model=models.make_model(
      "mlp", (problems.FEATURES,), problems.CLASSES, hidden=(5,)))


def algorithm_of(name, given):
  """The algorithm and its model of the shared parameters."""
  entry, held = registry.get(name), problem()
  model = roles.split(held.model, given)
  hparams = entry.hparams(**small_settings(entry))
  build = methods.Method(name, entry, hparams).resolved().builder(
      model, clients.ClientMap())
  return model, build


def traced_round(name, given):
  """The state before and after a round, and its report, all as shapes."""
  held = problem()
  model, build = algorithm_of(name, given)
  keys = jax.tree.map(lambda key: key[None], run_keys(0))
  data = held.data
  if model.roles.has_frozen:
    data = data._replace(frozen=model.roles.frozen)

  def both(data):
    states = loop.initial_states(build, model, held.spec, data, keys, {})
    return states, loop.make_run_rounds(
        build, Participation(held.spec.cohort_size), 1)(
            states, data, keys, {}, 0, 1)

  before, (after, log) = jax.eval_shape(both, data)
  return model, build({}), before, after, log


@pytest.mark.parametrize("name", list(registry.ALGORITHMS))
def test_personal_parameters_stay_with_the_client_or_are_refused(name):
  given = ["personal:last"]
  if name in REFUSED:
    with pytest.raises(OptionError, match=REFUSED[name]):
      algorithm_of(name, given)[1]({})
    return
  if name in OWN_ROUND:
    entry = registry.get(name)
    assert entry.rounds is not None or (
        algorithm_of(name, given)[1]({}).start_personal is None)
    return
  model, algorithm, before, after, _ = traced_round(name, given)
  assert algorithm.start_personal is not None
  assert jax.tree.structure(before) == jax.tree.structure(after)
  shared = jax.eval_shape(model.init, jax.random.key(0))
  size = num_params(shared)
  assert size < num_params(jax.eval_shape(
      problem().model.init, jax.random.key(0)))
  models_ = jax.eval_shape(algorithm.global_params, jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), after))
  assert num_params(models_) % size == 0
  state = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), after)
  deployed = jax.eval_shape(
      lambda state, data: algorithm.client_params(
          state, jax.numpy.int32(0), layout.shard_of(data, 0),
          jax.random.key(0)), state, problem().data)
  assert num_params(deployed) == num_params(jax.eval_shape(
      problem().model.init, jax.random.key(0)))


@pytest.mark.parametrize("name", [
    name for name, entry in registry.ALGORITHMS.items()
    if entry.rounds is None])
def test_frozen_parameters_are_in_no_state(name):
  """Any algorithm can have them; a round reads them from its arguments."""
  model, _, before, after, _ = traced_round(name, ["frozen:Dense_0"])
  assert jax.tree.structure(before) == jax.tree.structure(after)
  frozen = {leaf.shape for leaf in jax.tree.leaves(model.roles.frozen)}
  assert not [leaf.shape for leaf in jax.tree.leaves(after)
              if leaf.shape[-2:] in frozen]
