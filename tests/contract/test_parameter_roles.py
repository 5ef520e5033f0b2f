"""Every registered algorithm with parameters of every role, or its reason.

Traced, not compiled: what is tested is which leaves the algorithm sees and what
it says that it sends. The numbers are tested in ``tests/client``.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from fedjax_alg import models, registry
from fedjax_alg.base import num_params
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, loop
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation, play_round
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
      "mlp", (problems.FEATURES,), problems.CLASSES, hidden=(7, 4)))


def algorithm_of(name, given):
  """The algorithm and its model of the shared parameters."""
  entry, held = registry.get(name), problem()
  model = roles.split(held.model, given)
  hparams = entry.hparams(**small_settings(entry))
  build = methods.Method(name, entry, hparams).resolved().builder(
      model, clients.ClientMap())
  return model, build


def traced_round(name, given):
  """The state before and after a round and what client 0 gets, as shapes."""
  held, keys = problem(), run_keys(0)
  seeds = jax.tree.map(lambda key: key[None], keys)
  model, build = algorithm_of(name, given)
  data, algorithm = held.data._replace(frozen=model.roles.frozen), build({})

  def both(data):
    state = jax.tree.map(lambda leaf: leaf[0], loop.initial_states(
        build, model, held.spec, data, seeds, {}))
    after, _ = play_round(
        algorithm, data, Participation(held.spec.cohort_size), keys,
        jnp.int32(0), state)
    return state, after, algorithm.global_params and algorithm.global_params(
        after), algorithm.client_params(
            after, jnp.int32(0), layout.shard_of(data, 0), jax.random.key(0))

  return model, algorithm, *jax.eval_shape(both, data)


@pytest.mark.parametrize("name", [
    name for name, entry in registry.ALGORITHMS.items()
    if entry.rounds is None])
def test_parameters_of_every_role_or_a_reason(name):
  """Frozen ones are in no state, personal ones stay with the client."""
  given = ["frozen:Dense_0", "personal:last"]
  if name in REFUSED:
    with pytest.raises(OptionError, match=REFUSED[name]):
      algorithm_of(name, given[1:])[1]({})
  if name in REFUSED or name in OWN_ROUND:
    given = given[:1]
  model, algorithm, before, after, models_, deployed = traced_round(name, given)
  assert jax.tree.structure(before) == jax.tree.structure(after)
  frozen = {leaf.shape for leaf in jax.tree.leaves(model.roles.frozen)}
  assert not [leaf.shape for leaf in jax.tree.leaves(after)
              if leaf.shape[-2:] in frozen]
  # They are personal of their own accord, or all clients have one model.
  assert (algorithm.start_personal is not None) == (len(given) > 1)
  shared, whole = (num_params(jax.eval_shape(init, jax.random.key(0)))
                   for init in (model.init, problem().model.init))
  # Frozen ones are joined where the model is applied.
  assert num_params(deployed) == whole - num_params(model.roles.frozen)
  assert (shared < num_params(deployed)) == (len(given) > 1)
  if models_ is not None:
    assert num_params(models_) % shared == 0
