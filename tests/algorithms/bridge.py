"""Between the library and the NumPy oracle (tests.reference.diversified)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import registry
from fedjax_alg.base import Shard
from fedjax_alg.client import minibatches
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.engine.round import sample_cohort
from tests import problems
from tests.reference import diversified as oracle

#: Unlike cohorts of clients of 3 to 90 examples, who come again or never.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9], [0, 4, 7, 8, 10, 11]]
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
NOBODY = 12  #: the id of a slot without a client


def to_oracle(params):
  """Softmax parameters as the oracle keeps them: kernel [D, L], float64."""
  inner = params["params"]
  return {"kernel": np.asarray(inner["kernel"], np.float64).T,
          "bias": np.asarray(inner["bias"], np.float64)}


def to_library(w):
  """The inverse of ``to_oracle``, float32."""
  return {"params": {"kernel": jnp.asarray(w["kernel"].T, jnp.float32),
                     "bias": jnp.asarray(w["bias"], jnp.float32)}}


def play(problem, name, ids, key, start, **settings):
  """One round of ``name`` from the parameters ``start``.

  Returns:
    Model 0 after it, the round's aux, the cohort.
  """
  final, aux, cohort = chain(problem, name, [ids], [key], start, **settings)
  return model_of(final), aux[0], cohort[0]


def model_of(state):
  """Model 0 of a state."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[0], state.models)


def chain(problem, name, cohorts, keys, start, **settings):
  """Rounds with given cohorts (lists of client ids) and keys.

  Returns:
    The final state, and of every round its aux and its cohort.
  """
  states, log, cohorts = history(
      problem, name, cohorts, keys, start, **settings)
  return states[-1], log, cohorts


def history(problem, name, cohorts, keys, start, **settings):
  """As ``chain``, with the state before the first and after every round.

  Smaller cohorts have padding slots, so that all rounds are one program; what
  is returned has none.
  """
  algorithm = registry.build(
      name, problem.model, map_clients=clients.ClientMap(), **settings)
  numbers = [len(ids) for ids in cohorts]
  padding = [problem.spec.num_clients] * max(numbers)
  cohorts = [cohort_of(problem, [*ids, *padding[len(ids):]])
             for ids in cohorts]

  def begin(params):
    state = algorithm.init(params, problem.spec, keys[0])
    return algorithm.setup(state, layout.everyone(problem.data), keys[0])

  states, log = [problems.quick_jit(begin)(start)], []
  round_ = problems.quick_jit(algorithm.round)
  for cohort, key, number in zip(cohorts, keys, numbers, strict=True):
    state, aux = round_(states[-1], cohort, key)
    states.append(state)
    log.append(aux._replace(
        client=_first(number, aux.client), work=_first(number, aux.work)))
  return states, log, [cohort._replace(
      ids=_first(number, cohort.ids), weight=_first(number, cohort.weight),
      shards=cohort.shards._replace(
          offset=_first(number, cohort.shards.offset),
          size=_first(number, cohort.shards.size)))
                       for cohort, number in zip(cohorts, numbers)]


def cohort_of(problem, ids):
  """The cohort of these clients."""
  return _take_cohort(problem.data, jnp.array(ids, jnp.int32))


def _first(number, tree):
  """The first rows of every leaf."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[:number], tree)


class Round(NamedTuple):
  """What a round of the library had and made."""

  ids: list  #: the participants
  key: Any
  before: Any  #: state
  state: Any
  aux: Any
  batches: dict  #: client id -> rows of each local step
  there: int = 12  #: so many clients, the first ones, have come so far


def rounds(problem, name, cohorts=None, slots=0, **settings):
  """Rounds from ``start``, with what an oracle needs for the same.

  Args:
    problem: the problem.
    name: the algorithm.
    cohorts: ids of each round; by default ``COHORTS``. Clients without
      examples are none of ``Round.ids``.
    slots: size of the cohorts with empty slots behind; 0: as many as needed.
    **settings: hyper-parameters.

  Returns:
    The hyper-parameters, and the rounds.
  """
  hparams = registry.get(name).hparams(**settings)
  cohorts = cohorts or COHORTS
  padded = [[*ids, *[NOBODY] * (slots - len(ids))] for ids in cohorts]
  states, log, _ = history(
      problem, name, padded, KEYS[:len(cohorts)],
      problems.some_params(problem.model), **settings)
  held = [*np.asarray(problem.data.size), 0]
  return hparams, [
      _round(problem, hparams, [i for i in ids if held[i]], *rest)
      for ids, *rest in zip(cohorts, KEYS, states, states[1:], log)]


def _round(problem, hparams, ids, key, before, state, aux, there=12):
  own = isinstance(hparams, minibatches.LocalWork)
  return Round(ids, key, before, state, aux, {
      i: client_batches(problem, i, jax.random.fold_in(key, i), hparams)
      for i in ids} if own else {}, there)


#: Rounds run before each client comes.
JOINS = np.repeat([0, 1, 3], [5, 4, 3])


def with_newcomers(problem, name, **settings):
  """As ``rounds``, five of 4 random clients of those there."""
  data = problem.data._replace(joins=jnp.asarray(JOINS, jnp.int32))
  keys = [jax.random.key(seed) for seed in range(5)]
  hparams = registry.get(name).hparams(**settings)
  algorithm = registry.build(
      name, problem.model, map_clients=clients.ClientMap(), **settings)

  def begin(params):
    state = algorithm.init(params, problem.spec, keys[0])
    return algorithm.setup(state, layout.present(data, 0), keys[0])

  states = [problems.quick_jit(begin)(problems.some_params(problem.model))]
  round_, played = problems.quick_jit(algorithm.round), []
  for number, key in enumerate(keys):
    cohort = sample_cohort(data, 4, key, number)
    state, aux = round_(states[-1], cohort, key)
    played.append(_round(
        problem, hparams, np.asarray(cohort.ids).tolist(), key, states[-1],
        state, aux, int((JOINS <= number).sum())))
    states.append(state)
  return hparams, played


def start(problem):
  """The model before the first of ``rounds``, for the oracle."""
  return to_oracle(problems.some_params(problem.model))


def entry(table, i):
  """Row i of a table of models, for the oracle."""
  return to_oracle(problems.row(table, i))


def assert_vectors_close(mine, theirs, atol=1e-5):
  """Two models of the oracle agree."""
  np.testing.assert_allclose(
      oracle.to_vector(mine), oracle.to_vector(theirs), rtol=0, atol=atol)


def read(batches_):
  """Examples that the local steps of all clients read."""
  return sum(len(rows) for steps in batches_.values() for rows in steps)


def without_examples(problem, client):
  """The problem in which a client has none."""
  data = problem.data
  return problem._replace(
      data=data._replace(size=data.size.at[client].set(0)))


def batches(problem, cohort, key, work):
  """client id -> rows of each local step, drawn as the library draws them."""
  return {i: client_batches(problem, i, jax.random.fold_in(key, i), work)
          for i in np.asarray(cohort.ids).tolist()}


def client_batches(problem, i, key, work):
  """Rows of each local step of client ``i``, ``key`` its own."""
  size = len(problem.clients[i][1])
  steps = int(work.num_steps(jnp.int32(size)))
  if not work.batch_size:
    return [np.arange(size)] * steps
  shard = Shard(problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(size))
  bits = minibatches.shuffle_bits(key)
  result = []
  for k in range(steps):
    rows, mask = _batch_rows(shard, bits, jnp.int32(k), work.batch_size)
    result.append(np.asarray(rows)[np.asarray(mask)])
  return result


_batch_rows = jax.jit(minibatches.batch_rows, static_argnums=3)
_take_cohort = jax.jit(layout.take_cohort)


def assert_step_close(start, params, expected, rtol=1e-4):
  """The displacements of two models from ``start`` agree, and are not 0.

  Args:
    start: a model of the oracle.
    params: a model of the library.
    expected: a model of the oracle.
    rtol: tolerated difference, in parts of the largest entry of the expected
      displacement. The library computes in float32, where a parameter of
      order 1 has an error of 1e-7.
  """
  mine = oracle.to_vector(oracle.add(to_oracle(params), start, -1.0))
  theirs = oracle.to_vector(oracle.add(expected, start, -1.0))
  largest = np.abs(theirs).max()
  assert largest > 1e-3, "the round did nothing that could be compared"
  np.testing.assert_allclose(mine, theirs, rtol=0, atol=rtol * largest)
