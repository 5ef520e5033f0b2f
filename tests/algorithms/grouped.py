"""Clustered methods in the tests: compiled once.

All programs take cohorts of SLOTS slots, those beyond the ids given are
padding.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import base, registry
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import clustered as oracle

SLOTS = NOBODY = 12
WORK = dict(local_steps=5, batch_size=6, client_lr=0.2)
LR = WORK["client_lr"]
#: Clients that come again; client 10 never does.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9], [0, 4, 7, 8, 11], [2, 5, 8]]
EVERYONE = list(range(SLOTS))
KEYS = [jax.random.key(seed) for seed in range(3, 9)]
START = jax.random.key(17)


class Programs(NamedTuple):
  """One algorithm, its functions jitted."""

  algorithm: base.Algorithm
  hparams: Any
  begin: Any  #: (params, everyone, key) -> state after init and setup
  round: Any  #: (state, cohort, key) -> (state, aux)
  deploy: Any  #: (state, client id, shard, key) -> params


@functools.cache
def problem():
  """The problem of all comparisons."""
  return problems.softmax_problem()


def jitted(algorithm, hparams) -> Programs:
  """The programs of an algorithm."""

  def begin(params, everyone, key):
    state = algorithm.init(params, problem().spec, key)
    return algorithm.setup(state, everyone, key)

  return Programs(
      algorithm, hparams, problems.quick_jit(begin),
      problems.quick_jit(algorithm.round),
      problems.quick_jit(algorithm.client_params))


@functools.cache
def programs(name, **settings) -> Programs:
  """The programs of a registered algorithm, WORK where nothing else is said."""
  settings = WORK | settings
  return jitted(
      registry.build(name, problem().model,
                     map_clients=clients.ClientMap(), **settings),
      registry.get(name).hparams(**settings))


class Play(NamedTuple):
  """Rounds, and what they began with."""

  states: list[Any]  #: one more than rounds
  log: list[Any]


def begin(run, data, params=None, key=START, there=None):
  """The state before round 1; ``there``: who is, None: everyone."""
  if params is None:
    params = problems.some_params(problem().model)
  ids = [i if there is None or i in there else NOBODY for i in EVERYONE]
  return run.begin(params, cohort_of(data, ids), key)


def cohort_of(data, ids):
  """The cohort of these clients in SLOTS slots."""
  padded = [*ids, *[NOBODY] * (SLOTS - len(ids))]
  return layout.take_cohort(data, jnp.array(padded, jnp.int32))


def play(run, data, state, cohorts=None, keys=None) -> Play:
  """Rounds from a state."""
  states, log = [state], []
  for ids, key in zip(cohorts or COHORTS, keys or KEYS):
    state, aux = run.round(states[-1], cohort_of(data, ids), key)
    states.append(state)
    log.append(aux)
  return Play(states, log)


def rounds(run, problem_, state, cohorts=None):
  """``bridge.Round`` of ``play``."""
  played = play(run, problem_.data, state, cohorts)
  return [
      bridge.Round(ids, key, *rest, batches(problem_, ids, key))
      for ids, key, *rest in zip(
          cohorts or COHORTS, KEYS, played.states, played.states[1:],
          played.log)]


def models_of(state):
  """The K models of a state, for the oracle."""
  return [bridge.to_oracle(jax.tree.map(lambda leaf: leaf[k], state.models))
          for k in range(len(jax.tree.leaves(state.models)[0]))]


def stacked(models):
  """K models of the oracle as the library keeps them."""
  return jax.tree.map(
      lambda *leaves: jnp.stack(leaves), *map(bridge.to_library, models))


def vectors(models):
  """[K, P] float64."""
  return np.array([oracle.vector(w) for w in models])


def rows(matrix):
  """Rows [n, P] of the library, whose kernels are [L, D], as of ``vectors``."""
  size = problems.CLASSES * problems.FEATURES
  matrix = np.asarray(matrix, np.float64)
  # The library's leaves are in the order of their names: bias, kernel.
  bias, kernel = np.split(matrix, [matrix.shape[1] - size], axis=1)
  return np.array([
      oracle.vector({"kernel": k.reshape(problems.CLASSES, -1).T, "bias": b})
      for k, b in zip(kernel, bias)])


def batches(problem_, ids, key, steps=None):
  """client id -> rows of its local steps, of WORK or so many steps."""
  work = LocalWork(local_steps=steps or WORK["local_steps"],
                   batch_size=WORK["batch_size"])
  return {i: bridge.client_batches(
      problem_, i, jax.random.fold_in(key, i), work) for i in ids}


def rule_key(key, number=0):
  """The keys that rules draw from, which no client's training draws from."""
  return jax.random.fold_in(key, NOBODY + 1 + number)


def assert_models_close(before, state, expected, rtol=2e-4):
  """The K models moved as the oracle's; who did not move kept every bit."""
  now = models_of(state)
  assert len(now) >= len(expected)
  moved = 0
  for k, (old, new) in enumerate(zip(before, expected)):
    params = jax.tree.map(lambda leaf, k=k: leaf[k], state.models)
    if new is old or np.array_equal(oracle.vector(old), oracle.vector(new)):
      np.testing.assert_allclose(
          oracle.vector(now[k]), oracle.vector(new), rtol=0, atol=2e-6)
    else:
      bridge.assert_step_close(old, params, new, rtol)
      moved += 1
  assert moved


def assert_round(r, before, found, k, groups=None, models=None):
  """A round made of the models ``before`` what the oracle found.

  What it reports is of the groups after it; padding slots are in none.

  Args:
    r: the ``bridge.Round``.
    before: K models.
    found: with ``trained``, ``groups`` and ``models``.
    k: number of groups in the report.
    groups: the participants' groups, if not ``found.groups``.
    models: the models after the round, if not ``found.models``.
  """
  groups = np.asarray(found.groups if groups is None else groups)
  models = found.models if models is None else models
  assert_models_close(before, r.state, models)
  np.testing.assert_array_equal(r.aux.client["group"][:len(r.ids)], groups)
  np.testing.assert_array_equal(
      r.aux.server["participants"], np.bincount(groups, minlength=k))
  member = np.asarray(r.state.member)
  np.testing.assert_array_equal(
      r.aux.server["members"], np.bincount(member[member >= 0], minlength=k))
  np.testing.assert_allclose(
      r.aux.server["discrepancy"],
      oracle.discrepancy(found.trained, groups, models), rtol=1e-3)


def assert_deploys(run, state, expected):
  """Clients deploy the models of these numbers: client id -> number."""
  models, key = models_of(state), jax.random.key(0)
  for i, number in expected.items():
    w = run.deploy(state, jnp.int32(i), layout.shard_of(problem().data, i), key)
    assert same(bridge.to_oracle(w), models) == number


def same(w, models):
  """The number of the model that ``w`` is, bit for bit."""
  equal = (vectors(models) == oracle.vector(w)).all(1)
  assert equal.sum() == 1
  return int(np.argmax(equal))


def zeros():
  """The initial model, softmax regression's own."""
  return problem().model.init(jax.random.key(0))
