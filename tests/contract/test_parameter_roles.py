"""Every registered algorithm with roles of parameters and running statistics.

Traced, not compiled: what is tested is which leaves the algorithm sees and what
it says that it sends, or the reason that it gives. The numbers are tested in
``tests/client``.
"""

import functools

from flax import linen as nn
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
from fedjax_alg.runs import methods, options, prepare
from tests import problems
from tests.contract.test_contract import marks, small_settings

#: Why a method has no personal parameters, as it says itself.
REFUSED = {
    "ditto": "keeps a personal model", "pfedme": "has a personal model",
    "apfl": "keeps a personal model",
    "per_fedavg": "adapts all parameters", "fedzo": "losses and no gradients",
    "pfedzo": "has a personal model",
    "fedbuff": "keep nothing", "fedasync": "keep nothing",
    **dict.fromkeys(("baffle", "central", "local"), "keep no personal")}
#: Why a method has no running statistics but those of the batch.
WITHOUT_STATE = {
    **{name: why for name, why in REFUSED.items() if name != "local"},
    "baffle": "keeps no running", "central": "keeps no running"}
CLOSED = [name for name, entry in registry.ALGORITHMS.items() if entry.rounds]
OPEN = [pytest.param(name, marks=marks(name)) for name in registry.ALGORITHMS
        if name not in CLOSED]


class Normed(nn.Module):
  """A perceptron with BatchNorm."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.BatchNorm(not train)(nn.Dense(5)(x))
    return nn.Dense(problems.CLASSES)(nn.relu(x))


#: Floats of its first layer, of all its parameters and of its statistics.
FIRST = 5 * (problems.FEATURES + 1)
PARAMETERS, STATISTICS = FIRST + 10 + 6 * problems.CLASSES, 10


@functools.cache
def problem():
  return problems.softmax_problem()


def normed():
  return models.from_flax(Normed(), (problems.FEATURES,))


def traced_round(name, given, model_state, **more):
  """The algorithm, its state after a round and what it sends, as shapes.

  Raises:
    OptionError: the method refuses the roles, as a run would.
  """
  entry, held = registry.get(name), problem()
  model = roles.split(normed(), given, model_state=model_state)
  method = methods.Method(
      name, entry, entry.hparams(**small_settings(entry) | more)).resolved()
  build = method.builder(model, clients.ClientMap())
  prepare.check_roles(build({}), method, model)
  data = held.data
  if model.roles.has_frozen:
    data = data._replace(frozen=model.roles.frozen)
  keys = run_keys(0)
  seeds = jax.tree.map(lambda key: key[None], keys)
  algorithm = build({})

  def both(data):
    state = jax.tree.map(lambda leaf: leaf[0], loop.initial_states(
        build, model, held.spec, data, seeds, {}))
    after, _ = play_round(
        algorithm, data, Participation(held.spec.cohort_size), keys,
        jnp.int32(0), state)
    return state, after

  before, after = jax.eval_shape(both, data)
  assert jax.tree.structure(before) == jax.tree.structure(after)
  assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(before)] == [
      (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)]
  return model, algorithm, after


def deployed(algorithm, state):
  """The number of floats that a client deploys."""
  return num_params(jax.eval_shape(
      lambda state, data: algorithm.client_params(
          state, jnp.int32(0), layout.shard_of(data, 0),
          jax.random.key(0)), state, problem().data))


def refused(name, why, *args):
  with pytest.raises(OptionError, match=why) as caught:
    traced_round(name, *args)
  assert "\n" not in str(caught.value)
  return str(caught.value)


@pytest.mark.parametrize("name", OPEN)
def test_what_is_a_clients_own_stays_there_or_is_refused(name):
  """A personal layer, and statistics that each client keeps."""
  given = ["personal:Dense_1"], "local"
  if name in REFUSED:
    refused(name, REFUSED[name], *given)
    return
  if name == "clsfsvrg":
    refused(name, "measures losses at the server", *given)
    return
  model, algorithm, state = traced_round(name, *given)
  assert algorithm.start_personal is not None
  shared = FIRST + 10
  assert num_params(jax.eval_shape(model.init, jax.random.key(0))) == shared
  models_ = jax.eval_shape(algorithm.global_params, state)
  assert num_params(models_) % shared == 0
  assert deployed(algorithm, state) == PARAMETERS + STATISTICS


@pytest.mark.parametrize("name", OPEN)
def test_frozen_parameters_are_in_no_state_and_statistics_are(name):
  """A round reads frozen ones from its arguments; the server keeps the rest."""
  given, model_state, kept = ["frozen:Dense_0"], "global", STATISTICS
  if name in WITHOUT_STATE:
    assert "(allowed: batch)" in refused(
        name, WITHOUT_STATE[name], given, model_state)
    model_state, kept = "batch", 0
  model, algorithm, state = traced_round(name, given, model_state)
  assert num_params(model.roles.frozen) == FIRST
  assert not [path for path, _ in jax.tree_util.tree_leaves_with_path(state)
              if "Dense_0" in jax.tree_util.keystr(path)]
  shared = PARAMETERS - FIRST
  assert num_params(jax.eval_shape(model.init, jax.random.key(0))) == shared
  assert deployed(algorithm, state) == shared + kept
  if algorithm.global_params is not None:
    models_ = jax.eval_shape(algorithm.global_params, state)
    assert num_params(models_) % (shared + kept) == 0


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "ifca"])
def test_clients_keep_what_they_have_not_sent_beside(name):
  """Rows of the method, of its layer and statistics, and of a compressor."""
  _, algorithm, state = traced_round(
      name, ["personal:Dense_1"], "local", compress_up="topk:0.1")
  assert deployed(algorithm, state) == PARAMETERS + STATISTICS


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form_fits_every_layer(name):
  for given in (("personal:Dense_1",), ()):
    with pytest.raises(OptionError, match="fits every layer"):
      prepare.split_by_role(
          methods.method_of(name), normed(), options.RunOptions(roles=given))
