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
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.hparams import with_values
from fedjax_alg.rounds import clustered
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


def jit_programs(algorithm, hparams) -> Programs:
  """The programs of an algorithm."""

  def begin(params, everyone, key):
    state = algorithm.init(params, problem().spec, key)
    return algorithm.setup(state, everyone, key)

  return Programs(
    algorithm,
    hparams,
    problems.quick_jit(begin),
    problems.quick_jit(algorithm.round),
    problems.quick_jit(algorithm.client_params),
  )


@functools.cache
def programs(name, **settings) -> Programs:
  """The programs of a registered algorithm, WORK where nothing else is said."""
  settings = WORK | settings
  return jit_programs(
    bridge.build(problem(), name, **settings), registry.get(name).parts(**settings)[0]
  )


def by_arguments(hparams, rule, **numbers):
  """Hyper-parameters by name -> programs that have these as arguments.

  One compilation serves all.

  Args:
    hparams: of the method, whose clients train by SGD.
    rule: (model, hyper-parameters) -> the rule of the method.
    **numbers: the arguments, where nothing else is said.
  """
  model = problem().model

  def build(values):
    h = with_values(hparams, values)
    return clustered.compose_clustered(
      model,
      sgd_update(model, h, h.client_lr),
      rule(model, h),
      map_clients=clients.ClientMap(),
    )

  base = jit_programs(build(numbers), None)
  round_ = problems.quick_jit(lambda values, *inputs: build(values).round(*inputs))

  def programs_of(**values):
    values = {
      name: jnp.array(
        (numbers | values)[name], jnp.int32 if isinstance(number, int) else jnp.float32
      )
      for name, number in numbers.items()
    }
    return base._replace(round=lambda *inputs: round_(values, *inputs))

  return programs_of


def begin(run, data, params=None, key=START, present=None):
  """The state before round 1; ``present``: who is there, None: everyone."""
  if params is None:
    params = problems.some_params(problem().model)
  ids = [i if present is None or i in present else NOBODY for i in EVERYONE]
  return run.begin(params, cohort_of(data, ids), key)


def cohort_of(data, ids):
  """The cohort of these clients in SLOTS slots."""
  padded = [*ids, *[NOBODY] * (SLOTS - len(ids))]
  return bridge.take_cohort(data, np.array(padded, np.int32))


def play(run, data, state, cohorts=None, keys=None):
  """Rounds from a state: the states, one more than rounds, and the reports."""
  states, log = [state], []
  for ids, key in zip(cohorts or COHORTS, keys or KEYS):
    state, aux = run.round(states[-1], cohort_of(data, ids), key)
    states.append(state)
    log.append(aux)
  return states, log


def rounds(run, problem_, state, cohorts=None):
  """``bridge.Round`` of ``play``."""
  states, log = play(run, problem_.data, state, cohorts)
  return [
    bridge.Round(ids, key, *record, batches=batches(problem_, ids, key))
    for ids, key, *record in zip(cohorts or COHORTS, KEYS, states, states[1:], log)
  ]


def models_of(state):
  """The K models of a state, for the oracle."""
  return [
    bridge.entry(state.models, k) for k in range(len(jax.tree.leaves(state.models)[0]))
  ]


def stack_models(models):
  """K models of the oracle as the library keeps them."""
  return jax.tree.map(
    lambda *leaves: jnp.stack(leaves), *map(bridge.to_library, models)
  )


def rows(matrix):
  """Rows [n, P] of the library, whose kernels are [L, D], for the oracle."""
  # The library's leaves are in the order of their names: bias, kernel.
  bias, kernel = np.split(np.asarray(matrix, np.float64), [problems.CLASSES], axis=1)
  kernel = kernel.reshape(-1, problems.CLASSES, problems.FEATURES)
  return np.concatenate([kernel.swapaxes(1, 2), bias[:, None]], axis=1)


def batches(problem_, ids, key, steps=None):
  """client id -> rows of its local steps, of WORK or so many steps."""
  work = LocalWork(
    local_steps=steps or WORK["local_steps"], batch_size=WORK["batch_size"]
  )
  return bridge.by_client(problem_, ids, key, work)


def rule_key(key, number=0):
  """The keys that rules draw from, which no client's training draws from."""
  return jax.random.fold_in(key, NOBODY + 1 + number)


def assert_models_close(before, state, expected, rtol=2e-4):
  """The K models moved as the oracle's; who did not move kept every bit."""
  num_moved = 0
  for k, (old, new) in enumerate(zip(before, expected)):
    params = bridge.model_of(state, k)
    if np.array_equal(old, new):
      bridge.assert_vectors_close(bridge.to_oracle(params), new, 2e-6)
    else:
      bridge.assert_step_close(old, params, new, rtol)
      num_moved += 1
  assert num_moved


def assert_round(r, before, expected, k, groups=None, models=None):
  """A round made of the models ``before`` what the oracle made of them.

  What it reports is of the groups after it; padding slots are in none.

  Args:
    r: the ``bridge.Round``.
    before: K models.
    expected: the oracle's ``trained``, ``groups`` and ``models``.
    k: number of groups in the report.
    groups: the participants' groups, if not ``expected.groups``.
    models: the models after the round, if not ``expected.models``.
  """
  groups = np.asarray(expected.groups if groups is None else groups)
  models = expected.models if models is None else models
  assert_models_close(before, r.state, models)
  np.testing.assert_array_equal(r.aux.client["group"][: len(r.ids)], groups)
  np.testing.assert_array_equal(
    r.aux.server["participants"], np.bincount(groups, minlength=k)
  )
  member = np.asarray(r.state.member)
  np.testing.assert_array_equal(
    r.aux.server["members"], np.bincount(member[member >= 0], minlength=k)
  )
  np.testing.assert_allclose(
    r.aux.server["discrepancy"],
    oracle.discrepancy(expected.trained, groups, models),
    rtol=1e-3,
  )


def assert_deploys(run, state, expected):
  """Clients deploy the models of these numbers: client id -> number."""
  models, key = models_of(state), jax.random.key(0)
  for i, number in expected.items():
    w = run.deploy(state, jnp.int32(i), layout.shard_of(problem().data, i), key)
    assert same(w, models) == number


def same(w, models):
  """The number of the model that ``w`` is, bit for bit."""
  equal = (np.array(models) == bridge.to_oracle(w)).all((1, 2))
  assert equal.sum() == 1
  return int(np.argmax(equal))


def assign_newcomer(run, state, holder, key=None):
  """The number of the model that a newcomer with these data deploys.

  Args:
    run: the programs.
    state: the state.
    holder: the client whose data are the newcomer's.
    key: by default of the number ``holder``.
  """
  w = run.deploy(
    state,
    jnp.int32(NOBODY),
    layout.shard_of(problem().data, holder),
    jax.random.key(holder) if key is None else key,
  )
  return same(w, models_of(state))


def zeros():
  """The initial model, softmax regression's own."""
  return problem().model.init(jax.random.key(0))
