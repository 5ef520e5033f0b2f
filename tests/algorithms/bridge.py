"""Between the library and the NumPy oracle (tests.reference.diversified)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
KEYS = [jax.random.key(seed) for seed in range(3, 8)]
#: A start of so many operations is not compiled as a whole.
FEW = 12
NOBODY = 12  #: the id of a slot without a client


def to_oracle(params):
  """Softmax parameters as the oracle keeps them, the bias in the last row."""
  inner = params["params"]
  return oracle.as_model(np.asarray(inner["kernel"]).T, inner["bias"])


def to_library(w):
  """The inverse of ``to_oracle``, float32."""
  w = jnp.asarray(w, jnp.float32)
  return {"params": {"kernel": w[:-1].T, "bias": w[-1]}}


def build(problem, name, **settings):
  """The algorithm for the problem's model, its clients one by one."""
  return registry.build(
    name, problem.model, map_clients=clients.ClientMap(), **settings
  )


def assert_refused(problem, name, pattern, **settings):
  """It is not built, and in one line that begins so it is said why not."""
  with pytest.raises(ValueError, match=f"^{pattern}") as error:
    build(problem, name, **settings)
  assert "\n" not in str(error.value)


def method_of(algorithm):
  """The method of an algorithm, which is bound to its ``init``.

  Its rounds may be wrapped, and its ``init`` by one that has it first.
  """
  init = algorithm.init
  while True:
    assert isinstance(init, functools.partial)
    if not isinstance(init.args[0], functools.partial):
      return init.args[0]
    init = init.args[0]


def cohort_of(problem, ids):
  """The cohort of these clients."""
  return take_cohort(problem.data, np.array(ids, np.int32))


def model_of(state, k=0):
  """Model ``k`` of a state."""
  return problems.row(state.models, k)


def init(problem, algorithm, key=KEYS[0], params=None):
  """The first state, from ``some_params`` if no others are given."""
  if params is None:
    params = problems.some_params(problem.model)
  return algorithm.init(params, problem.spec, key)


def one_round(problem, algorithm, ids, key=KEYS[0], state=None):
  """The first state or that given, the one after a round, the report."""
  if state is None:
    state = init(problem, algorithm)
  return state, *problems.quick_jit(algorithm.round)(
    state, cohort_of(problem, ids), key
  )


def play(problem, name, ids, key, start, **settings):
  """One round of ``name`` from the parameters ``start``.

  Returns:
    Model 0 after it, the round's aux, the cohort.
  """
  states, log = history(problem, name, [ids], [key], start, **settings)
  return model_of(states[-1]), log[0], cohort_of(problem, ids)


def history(problem, name, cohorts, keys, start, **settings):
  """States and reports of rounds with given cohorts (ids) and keys.

  The first state is that before the first round. Smaller cohorts have padding
  slots, so that all rounds are one program; the reports have none.
  """
  most = max(map(len, cohorts))
  states, log = _run(
    problem,
    name,
    [cohort_of(problem, [*ids, *[NOBODY] * (most - len(ids))]) for ids in cohorts],
    keys,
    everyone(problem.data),
    start,
    **settings,
  )
  return states, [
    aux._replace(
      **jax.tree.map(
        lambda leaf: np.asarray(leaf)[: len(ids)],
        dict(client=aux.client, work=aux.work),
      )
    )
    for ids, aux in zip(cohorts, log)
  ]


def _run(problem, name, cohorts, keys, everyone, start, **settings):
  algorithm = build(problem, name, **settings)

  def begin(params):
    state = algorithm.init(params, problem.spec, keys[0])
    return algorithm.setup(state, everyone, keys[0])

  # A few operations, each compiled once for all tests, or one program.
  if len(jax.make_jaxpr(begin)(start).eqns) > FEW:
    begin = problems.quick_jit(begin)
  states, log = [begin(start)], []
  round_ = problems.quick_jit(algorithm.round)
  for cohort, key in zip(cohorts, keys, strict=True):
    state, aux = round_(states[-1], cohort, key)
    states.append(state)
    log.append(aux)
  return states, log


class Round(NamedTuple):
  """What a round of the library had and made."""

  ids: list  #: the participants
  key: Any
  before: Any  #: state
  state: Any
  aux: Any
  batches: dict  #: client id -> rows of each local step
  num_joined: int = 12  #: so many clients, the first ones, have come so far


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
  hparams, _ = registry.get(name).parts(**settings)
  cohorts = cohorts or COHORTS
  padded = [[*ids, *[NOBODY] * (slots - len(ids))] for ids in cohorts]
  states, log = history(
    problem,
    name,
    padded,
    KEYS[: len(cohorts)],
    problems.some_params(problem.model),
    **settings,
  )
  sizes = np.asarray(problem.data.size)
  return hparams, [
    _round(problem, hparams, [i for i in ids if sizes[i]], *record)
    for ids, *record in zip(cohorts, KEYS, states, states[1:], log)
  ]


def _round(problem, hparams, ids, key, before, state, aux, num_joined=12):
  is_local = isinstance(hparams, minibatches.LocalWork)
  return Round(
    ids,
    key,
    before,
    state,
    aux,
    by_client(problem, ids, key, hparams) if is_local else {},
    num_joined,
  )


#: Rounds run before each client comes.
JOINS = np.repeat([0, 1, 3], [5, 4, 3])


def with_newcomers(problem, name, size=4, **settings):
  """As ``rounds``, five of ``size`` random clients of those there."""
  data = problem.data._replace(joins=jnp.asarray(JOINS, jnp.int32))
  hparams, _ = registry.get(name).parts(**settings)
  cohorts = [draw_cohort(data, size, key, n) for n, key in enumerate(KEYS)]
  states, log = _run(
    problem,
    name,
    cohorts,
    KEYS,
    layout.present(data, 0),
    problems.some_params(problem.model),
    **settings,
  )
  return hparams, [
    _round(
      problem,
      hparams,
      np.asarray(cohort.ids).tolist(),
      *record,
      num_joined=int((JOINS <= n).sum()),
    )
    for n, (cohort, *record) in enumerate(zip(cohorts, KEYS, states, states[1:], log))
  ]


def deployer(problem, name, **settings):
  """(state, client, key, holder) -> what it deploys, and its copy if any.

  The client has the data of ``holder``, if not its own; ``NOBODY`` has none.
  """
  algorithm = build(problem, name, **settings)
  program = problems.quick_jit(
    lambda *args: [
      fn(*args)
      for fn in (algorithm.client_params, algorithm.client_copy)
      if fn is not None
    ]
  )

  def deploy(state, client, key=KEYS[0], holder=None):
    holder = client if holder is None else holder
    shard = Shard(problem.data.x, problem.data.y, jnp.int32(0), jnp.int32(0))
    if holder != NOBODY:
      shard = layout.shard_of(problem.data, holder)
    return program(state, jnp.int32(client), shard, key)

  return deploy


def start(problem):
  """The model before the first of ``rounds``, for the oracle."""
  return to_oracle(problems.some_params(problem.model))


def entry(table, i):
  """Row i of a table of models, for the oracle."""
  return to_oracle(problems.row(table, i))


def assert_vectors_close(mine, theirs, atol=1e-5):
  """Two models of the oracle agree."""
  np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


def counts(aux):
  """Floats down and up, exchanges, examples' gradients of a round."""
  return [int(count) for count in aux.cost[:4]]


def read(batches_):
  """Examples that the local steps of all clients read."""
  return sum(len(rows) for steps in batches_.values() for rows in steps)


def examples(problem, ids):
  """Examples that the clients hold."""
  return sum(len(problem.clients[i][1]) for i in ids)


def losses(problem, w, ids):
  """The clients' objectives at a model of the oracle."""
  return [oracle.loss(w, *problem.clients[i], l2=problems.L2) for i in ids]


def without_examples(problem, client):
  """The problem in which a client has none."""
  data = problem.data
  return problem._replace(data=data._replace(size=data.size.at[client].set(0)))


def batches(problem, cohort, key, work):
  """``by_client`` of a cohort."""
  return by_client(problem, np.asarray(cohort.ids).tolist(), key, work)


def by_client(problem, ids, key, work):
  """client id -> rows of each local step, drawn as the library draws them."""
  return {i: client_batches(problem, i, jax.random.fold_in(key, i), work) for i in ids}


def client_batches(problem, i, key, work):
  """Rows of each local step of client ``i``, ``key`` its own."""
  size = len(problem.clients[i][1])
  steps = int(work.num_steps(jnp.int32(size)))
  if not work.batch_size:
    return [np.arange(size)] * steps
  numbers = np.arange(-(-steps // STEPS) * STEPS, dtype=np.int32)
  every_rows, masks = jax.device_get(
    _rows_of_steps(key, np.int32(size), numbers, work.batch_size)
  )
  return [rows[mask] for rows, mask in zip(every_rows[:steps], masks)]


#: Numbers of steps are rounded up to its multiples, for fewer programs.
STEPS = 16


@functools.partial(problems.quick_jit, static_argnums=3)
def _rows_of_steps(key, size, steps, batch_size):
  """Rows of these local steps [n, B] of a client alone, and which count."""
  shard, bits = Shard((), (), jnp.int32(0), size), minibatches.shuffle_bits(key)
  return jax.vmap(lambda k: minibatches.batch_rows(shard, bits, k, batch_size))(steps)


take_cohort = jax.jit(layout.take_cohort)
everyone = jax.jit(layout.everyone)
draw_cohort = jax.jit(sample_cohort, static_argnums=1)


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
  largest = np.abs(expected - start).max()
  assert largest > 1e-3, "the round did nothing that could be compared"
  np.testing.assert_allclose(to_oracle(params), expected, rtol=0, atol=rtol * largest)
