"""The run: rounds between two evaluations as one compiled program.

The number of rounds of a call is an argument of the program, not a constant
of it, so a run compiles its rounds once, whatever remains at its end. Numeric
hyper-parameters are arguments too, so all settings of a grid share a program.
Several seeds, of one setting or many, are one axis of it. The state is
donated: it is updated in place.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import jax.numpy as jnp

from fedjax_alg.base import Algorithm, Array, ClientData, FedSpec, Model
from fedjax_alg.base import RoundAux, State
from fedjax_alg.data import layout
from fedjax_alg.engine import cohorts, sharding
from fedjax_alg.errors import OptionError

#: name -> hyper-parameter, a scalar that is an argument of the program.
Numbers = Mapping[str, Array]
#: The algorithm with these hyper-parameters.
Build = Callable[[Numbers], Algorithm]

#: How the seeds' axis is run: one after the other, or vectorised.
MAP_SEEDS = ("sequential", "vmap")


class RunLog(NamedTuple):
  """What the rounds of one call left behind, [N seeds, max_rounds, ...]."""

  aux: RoundAux
  finite: dict[str, Array]  #: name of a state leaf -> [N, max_rounds] bool


def _name(path: tuple[Any, ...]) -> str:
  # Flax wraps parameters in a dictionary {"params": ...}: not worth a word.
  parts = [str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", k))))
           for k in path
           if k != jax.tree_util.DictKey("params")]
  return "/".join(parts)


def leaf_names(tree: Any) -> list[str]:
  """A readable name of every leaf, in the order of ``jax.tree.leaves``."""
  return [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def all_finite(state: Any) -> dict[str, Array]:
  """name -> [] bool for every floating-point leaf of a state."""
  leaves = zip(leaf_names(state), jax.tree.leaves(state), strict=True)
  # One sum reads a client store in a third of the time of isfinite().all(), and
  # without a temporary; a maximum loses NaN on a CPU. Finite numbers whose sum
  # overflows (3e38) have diverged as well.
  return {name: jnp.isfinite(leaf.sum()) for name, leaf in leaves
          if jnp.issubdtype(leaf.dtype, jnp.floating)}


def over_seeds(fn: Callable[..., Any], map_seeds: str) -> Callable[..., Any]:
  """Maps ``fn`` over the leading axis of its arguments, one entry a seed.

  Args:
    fn: code for one seed.
    map_seeds: one of ``MAP_SEEDS``. ``sequential`` gives a seed the same bits
      in any company, and on a CPU it is faster: a vectorised loop over one
      client's data runs to the longest of all seeds.
  """
  if map_seeds not in MAP_SEEDS:
    raise OptionError(
        f"`map_seeds`={map_seeds}: must be one of {', '.join(MAP_SEEDS)}")
  if map_seeds == "vmap":
    return jax.vmap(fn)
  return lambda *args: jax.lax.map(lambda one: fn(*one), args)


def fixed(algorithm: Algorithm) -> Build:
  """Builds an algorithm whose hyper-parameters are constants."""
  return lambda numbers: algorithm


def initial_states(
    build: Build,
    model: Model,
    spec: FedSpec,
    data: ClientData,
    keys: cohorts.RunKeys,
    numbers: Numbers,
    map_seeds: str = "sequential",
) -> Any:
  """init and setup of every seed.

  Args:
    build: makes the algorithm (``fixed`` for one that is made already).
    model: gives the initial parameters.
    spec: sizes.
    data: the clients' training data.
    keys: each [N].
    numbers: of ``build``, each [N].
    map_seeds: see ``over_seeds``.

  Returns:
    States, leaves [N, ...].
  """

  def one_seed(keys, numbers):
    algorithm = build(numbers)
    first, second = jax.random.split(keys.start)
    state = algorithm.init(model.init(keys.model), spec, first)
    return algorithm.setup(state, layout.present(data, 0), second)

  return over_seeds(one_seed, map_seeds)(keys, numbers)


def make_run_rounds(
    build: Build,
    cohort_size: int,
    max_rounds: int,
    map_seeds: str = "sequential",
    mesh: Mesh | None = None,
) -> Any:
  """The jitted program of a run.

  Args:
    build: makes the algorithm (``fixed`` for one that is made already).
    cohort_size: S.
    max_rounds: most rounds of one call.
    map_seeds: see ``over_seeds``.
    mesh: the devices of ``map_clients``; every one holds the states.

  Returns:
    ``run_rounds(states, data, keys, numbers, start, count)``: plays rounds
    ``start`` to ``start + count - 1`` for every seed; ``states`` is donated.
    Returns the states after them and a RunLog whose entries from ``count`` on
    are zero.
  """

  def one_seed(data, start, count, state, keys, numbers):
    play = functools.partial(
        cohorts.play_round, build(numbers), data, cohort_size, keys)

    def logged(number, state):
      state, aux = play(number, state)
      return state, RunLog(aux, all_finite(state))

    shapes = jax.eval_shape(logged, start, state)[1]
    log = jax.tree.map(
        lambda leaf: jnp.zeros((max_rounds,) + leaf.shape, leaf.dtype), shapes)

    def body(i, carry):
      state, log = carry
      state, entry = logged(start + i, state)
      log = jax.tree.map(lambda rows, row: rows.at[i].set(row), log, entry)
      return state, log

    return jax.lax.fori_loop(jnp.int32(0), count, body, (state, log))

  @functools.partial(
      jax.jit, donate_argnums=0, out_shardings=sharding.replicated(mesh))
  def run_rounds(
      states: State, data: ClientData, keys: cohorts.RunKeys,
      numbers: Numbers, start: Array, count: Array) -> tuple[State, RunLog]:
    one = functools.partial(one_seed, data, start, count)
    return over_seeds(one, map_seeds)(states, keys, numbers)

  return run_rounds
