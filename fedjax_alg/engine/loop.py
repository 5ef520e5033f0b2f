"""The rounds between two evaluations as one compiled program.

The number of rounds of a call is an input of the program and not a constant,
so a run compiles its rounds once, even if the last call runs fewer rounds.
Numeric hyper-parameters are inputs too, so all settings of a grid share one
program. The seeds of one or several settings form one axis of the program. The
state is donated, so it is updated in place.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedjax_alg import split
from fedjax_alg.base import (
  Algorithm,
  Array,
  ClientData,
  FedSpec,
  Model,
  RoundAux,
  State,
)
from fedjax_alg.data import layout
from fedjax_alg.engine import sharding
from fedjax_alg.engine.keys import RunKeys
from fedjax_alg.engine.round import ROWS, Participation, has_rows, sample_and_run
from fedjax_alg.errors import check_one_of
from fedjax_alg.models import start
from fedjax_alg.typing import PyTree

#: Name of a hyper-parameter -> scalar, an input of the program.
Numbers = Mapping[str, Array]
#: Makes the algorithm with the given hyper-parameters, numbers -> Algorithm;
#: for a model with frozen parameters it takes these as ``frozen``.
Build = Callable[..., Algorithm]

#: The name of a round in a compiled program and in profiles of it.
ROUND = "round"

#: Modes of the axis of the seeds: one after the other, or vectorized.
MAP_SEEDS = ("sequential", "vmap")


class RunLog(NamedTuple):
  """The reports of the rounds of one call, leaves [N, max_rounds, ...]."""

  aux: RoundAux
  #: name of a state leaf -> [N, max_rounds] bool; of a large table a round has checked
  #: the rows of its participants, and the last round of the call all rows
  finite: dict[str, Array]


def _name(path: tuple[object, ...]) -> str:
  # Flax wraps parameters in a dictionary {"params": ...}, which is left out.
  parts = [
    str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", k))))
    for k in path
    if k != jax.tree_util.DictKey("params")
  ]
  return "/".join(filter(None, parts))


def leaf_names(tree: PyTree) -> list[str]:
  """Makes a readable name for every leaf, in the order of ``tree.leaves``."""
  return [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def all_finite(state: PyTree) -> dict[str, Array]:
  """Checks every floating-point leaf of a state.

  Args:
    state: pytree of arrays.

  Returns:
    Name of the leaf -> [] bool, whether all its entries are finite.
  """
  leaves = zip(leaf_names(state), jax.tree.leaves(state), strict=True)
  # The sum of a table of all clients takes a third of the time of
  # isfinite().all() and needs no temporary array. A maximum would lose NaN on
  # a CPU. Finite numbers whose sum overflows (3e38) count as diverged, too.
  return {
    name: jnp.isfinite(leaf.sum())
    for name, leaf in leaves
    if jnp.issubdtype(leaf.dtype, jnp.floating)
  }


#: A leaf of at most so many numbers is checked as a whole in every round.
_FEW = 2**16


def _map_large_tables(
  of_table: Callable[[Array], Any],
  plain: Callable[[Any], Any],
  state: PyTree,
  data: ClientData,
  cohort_size: int,
) -> PyTree:
  """Maps functions over the large leaves [C, ...] of a state, and over the others.

  Most clients stay away from a round, so that it need not read these leaves.

  Args:
    of_table: for the large leaves.
    plain: for all others. A table whose rows are in several places is one of them.
    state: the state.
    data: the clients' training data.
    cohort_size: S.
  """
  clients = data.size.shape[0]

  def of_leaf(leaf):
    is_large = (
      isinstance(leaf, jax.Array)
      and leaf.size > _FEW
      and leaf.shape[:1] == (clients,)
      and clients >= 2 * cohort_size
    )
    return (of_table if is_large else plain)(leaf)

  return jax.tree.map(
    of_leaf, state, is_leaf=lambda leaf: split.is_split(leaf) or split.is_held(leaf)
  )


@functools.partial(jax.jit, donate_argnums=0)
def perturb_rounding(states: State, seed: int | Array) -> State:
  """Moves every number of some states by one unit in its last place.

  Runs that go on from there show what their results owe to rounding, which
  differs between machines.

  Args:
    states: pytree of arrays, whose memory is donated. Integers, zeros, numbers
      that are not finite and those at the end of their range stay.
    seed: [] int32, decides for each number whether it moves up or down.

  Returns:
    The states, with the shapes and dtypes that they had.
  """
  leaves, tree = jax.tree.flatten(states)
  keys = jax.random.split(jax.random.key(seed), max(len(leaves), 1))

  def perturb(leaf, key):
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      return leaf
    up = jax.random.bernoulli(key, shape=leaf.shape)
    perturbed = jnp.nextafter(leaf, jnp.where(up, jnp.inf, -jnp.inf).astype(leaf.dtype))
    return jnp.where((leaf == 0) | ~jnp.isfinite(perturbed), leaf, perturbed)

  perturbed = [perturb(*pair) for pair in zip(leaves, keys)]
  result: State = jax.tree.unflatten(tree, perturbed)
  return result


def over_seeds(fn: Callable[..., PyTree], map_seeds: str) -> Callable[..., Any]:
  """Maps a function over the leading axis of its arguments, the seeds.

  Args:
    fn: code for one seed.
    map_seeds: one of ``MAP_SEEDS``. With ``sequential`` the bits of a seed do
      not depend on the other seeds. It is also faster on a CPU, because a
      vectorized loop over the data of one client runs as long as the longest
      of all seeds.

  Returns:
    The mapped function.

  Raises:
    OptionError: unknown ``map_seeds``.
  """
  check_one_of(f"`map_seeds`={map_seeds}", map_seeds, MAP_SEEDS)
  if map_seeds == "vmap":
    return jax.vmap(fn)
  return lambda *args: jax.lax.map(lambda row: fn(*row), args)


def over_seeds_in_place(
  fn: Callable[..., PyTree], map_seeds: str
) -> Callable[..., Any]:
  """``over_seeds`` of a function that updates its first argument.

  ``jax.lax.map`` would make new states in addition to the old ones.

  Args:
    fn: code for one seed, (state, *inputs) -> the new state and a result.
    map_seeds: see ``over_seeds``.

  Returns:
    The mapped function.

  Raises:
    OptionError: unknown ``map_seeds``.
  """
  if map_seeds != "sequential":
    return over_seeds(fn, map_seeds)

  def take(tree, i):
    return jax.tree.map(
      lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, 0, keepdims=False), tree
    )

  def put(tree, i, row):
    return jax.tree.map(
      lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, i, 0), tree, row
    )

  def mapped(states, *inputs):
    of_seed = jax.jit(fn, inline=True)  # traced once; no call is left
    shapes = jax.eval_shape(of_seed, *take((states, *inputs), 0))[1]
    number = jax.tree.leaves((states, inputs))[0].shape[0]
    results = jax.tree.map(
      lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), shapes
    )

    def body(i, carry):
      states, results = carry
      state, result = of_seed(*take((states, *inputs), i))
      return put(states, i, state), put(results, i, result)

    return jax.lax.fori_loop(0, number, body, (states, results))

  return mapped


def constant_build(algorithm: Algorithm) -> Build:
  """Makes a ``Build`` that always returns ``algorithm``."""
  return lambda numbers: algorithm


def with_frozen(build: Build, data: ClientData) -> Build:
  """``build`` for the frozen parameters that a program has as arguments."""
  if data.frozen is None:
    return build
  return functools.partial(build, frozen=data.frozen)


def initial_states(
  build: Build,
  model: Model,
  spec: FedSpec,
  data: ClientData,
  keys: RunKeys,
  numbers: Numbers,
  map_seeds: str = "sequential",
) -> PyTree:
  """Runs ``init`` and ``setup`` of the algorithm for every seed.

  Args:
    build: makes the algorithm (``constant_build`` for an existing one).
    model: gives the initial parameters.
    spec: sizes of the problem.
    data: the clients' training data.
    keys: random keys, each [N].
    numbers: arguments of ``build``, each [N].
    map_seeds: see ``over_seeds``.

  Returns:
    States, leaves [N, ...].
  """

  start_one = functools.partial(initial_state, build, model, spec)
  return over_seeds(lambda keys, numbers: start_one(keys, numbers, data), map_seeds)(
    keys, numbers
  )


def initial_state(
  build: Build,
  model: Model,
  spec: FedSpec,
  keys: RunKeys,
  numbers: Numbers,
  data: ClientData,
) -> Any:
  """The state of one seed; see ``initial_states``."""
  algorithm = with_frozen(build, data)(numbers)
  first, second = jax.random.split(keys.start)
  bound_model = start.bind_leaves(model, data.start)
  state = algorithm.init(bound_model.init(keys.model), spec, first)
  if algorithm.start_personal is not None:
    state = algorithm.start_personal(state, bound_model.roles.start(keys.model))
  return algorithm.setup(state, layout.present(data, 0), second)


def make_run_rounds(
  build: Build,
  participation: Participation,
  max_rounds: int,
  map_seeds: str = "sequential",
  mesh: Mesh | None = None,
  where: PyTree = None,
) -> Any:
  """Makes the jitted program that runs rounds.

  Args:
    build: makes the algorithm (``constant_build`` for an existing one).
    participation: who takes part in a round.
    max_rounds: maximum number of rounds in one call.
    map_seeds: see ``over_seeds``.
    mesh: the devices of ``map_clients``; each of them holds the states.
    where: where the states lie, if not each device holds them whole
      (``sharding.of_states``).

  Returns:
    ``run_rounds(states, data, keys, numbers, start, count)``. It runs the
    rounds ``start`` to ``start + count - 1`` for every seed and donates
    ``states``. It returns the new states and a ``RunLog`` whose entries from
    index ``count`` on are zero.
  """

  def one_seed(data, start, count, state, keys, numbers):
    run_one = functools.partial(
      sample_and_run, with_frozen(build, data)(numbers), data, participation, keys
    )
    cohort_size = participation.cohort_size

    # Traced once for the shapes of the log and the loop; no call is left.
    @functools.partial(jax.jit, inline=True)
    def log_round(number, state):
      state, aux, ids = run_one(number, state)
      of_participants = _map_large_tables(
        lambda leaf: leaf.at[ids].get(mode="clip"),
        lambda leaf: leaf,
        state,
        data,
        cohort_size,
      )
      finite = all_finite(of_participants)
      if data.host is not None:
        finite[ROWS] = has_rows(data, ids)
      return state, RunLog(aux, finite)

    shapes = log_round.eval_shape(start, state)[1]
    log = jax.tree.map(
      lambda leaf: jnp.zeros((max_rounds,) + leaf.shape, leaf.dtype), shapes
    )

    @jax.named_scope(ROUND)
    def body(i, carry):
      state, log = carry
      state, entry = log_round(start + i, state)
      log = jax.tree.map(
        lambda rows, row: jax.lax.dynamic_update_index_in_dim(
          rows, row, i, 0, allow_negative_indices=False
        ),
        log,
        entry,
      )
      return state, log

    state, log = jax.lax.fori_loop(jnp.int32(0), count, body, (state, log))
    # What a method writes to the entries of others is noticed in the last round.
    tables = _map_large_tables(
      lambda leaf: leaf, lambda leaf: None, state, data, cohort_size
    )
    last, finite = jnp.maximum(count - 1, 0), dict(log.finite)
    for name, is_finite in all_finite(tables).items():
      finite[name] = finite[name].at[last].set(finite[name][last] & is_finite)
    return state, log._replace(finite=finite)

  placement = sharding.replicated(mesh)

  @functools.partial(
    jax.jit,
    donate_argnums=0,
    keep_unused=True,
    out_shardings=(placement if where is None else where, placement),
  )
  def run_rounds(
    states: State,
    data: ClientData,
    keys: RunKeys,
    numbers: Numbers,
    start: Array,
    count: Array,
  ) -> tuple[State, RunLog]:
    run_seed = functools.partial(one_seed, data, start, count)
    result: tuple[State, RunLog] = over_seeds_in_place(run_seed, map_seeds)(
      states, keys, numbers
    )
    return result

  return run_rounds
