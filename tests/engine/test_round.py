"""One round."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.base import Algorithm, RoundAux, Work, no_setup, round_cost
from fedjax_alg.engine import clock, loop, samplers
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import (
  PRESENT,
  Participation,
  sample_and_run,
  sample_cohort,
)


def test_the_start_and_a_round_see_who_is_there(problem):
  joins = np.where(np.arange(12) % 4 == 1, 3, 0)
  late = problem.data._replace(joins=jnp.asarray(joins, jnp.int32))

  def setup(state, everyone, key):
    del state, key
    return everyone.ids, everyone.weight

  model = problem.model
  algorithm = Algorithm(lambda *_: (), setup, *spy(False)[2:])
  keys = jax.tree.map(lambda leaf: leaf[None], run_keys(0))
  ids, weight = jax.jit(
    lambda late, keys: loop.initial_states(
      loop.constant_build(algorithm), model, problem.spec, late, keys, {}
    )
  )(late, keys)
  absent = joins > 0
  np.testing.assert_array_equal(ids[0], np.where(absent, 12, np.arange(12)))
  np.testing.assert_array_equal(weight[0], np.where(absent, 0, problem.data.size))
  for number in (2, 3):
    cohort = jax.jit(sample_cohort, static_argnums=1)(
      late, 4, jax.random.key(0), number
    )
    np.testing.assert_array_equal(
      cohort.everyone.size, np.where(joins <= number, problem.data.size, 0)
    )


def spy(with_key):
  """An algorithm whose state is what its last round got."""

  def round_(state, cohort, key):
    del state
    out = cohort.ids, jax.random.key_data(key) if with_key else key
    return out, RoundAux({}, {}, round_cost(0, 0, 0, 0))

  return Algorithm(lambda *_: (), no_setup, round_, lambda *_: None, None)


def test_a_round_is_a_function_of_seed_and_number(problem):
  round_ = jax.jit(
    lambda keys, number: sample_and_run(
      spy(True), problem.data, Participation(5), keys, number, None
    )[0]
  )

  def play(seed, number):
    state = round_(run_keys(seed), jnp.int32(number))
    return tuple(map(tuple, jax.tree.map(np.ndarray.tolist, jax.device_get(state))))

  assert play(0, 3) == play(0, 3)
  others = [play(seed, number) for seed in (0, 1) for number in range(4)]
  assert len({ids for ids, _ in others}) == 8
  assert len({key for _, key in others}) == 8


def on_machines(problem):
  return problem.data._replace(
    devices=clock.make_devices(0, 12, bandwidth_gbps=(1e-6, 1e-4))
  )


def test_the_engine_tells_the_time_of_a_round(problem):
  """Means over the participants; one of twelve clients is not there yet."""

  def round_(state, cohort, key):
    del key
    work = Work(1e9 * cohort.weight, cohort.weight / 4)
    return state, RoundAux({}, {}, round_cost(30, 10, 1, 0, 5e9), work)

  algorithm = Algorithm(lambda *_: (), no_setup, round_, lambda *_: None, None)
  joins = np.where(np.arange(12) == 1, 5, 0)
  data = on_machines(problem)._replace(joins=jnp.asarray(joins, jnp.int32))

  def times(data, algorithm=algorithm):
    return jax.jit(
      lambda data: (
        sample_and_run(
          algorithm, data, Participation(12), run_keys(0), jnp.int32(0), ()
        )[1].times
      )
    )(data)

  size = np.delete(np.asarray(problem.data.size, np.float64), 1)
  speed, link = (
    np.delete(np.asarray(leaf, np.float64), 1) for leaf in data.devices[:2]
  )
  computation = 1e9 * size / speed + size / 4 * 1e-3
  communication = 160 / link
  arrival = computation + communication
  actual = times(data)
  np.testing.assert_allclose(
    actual,
    [
      seconds.mean()
      for seconds in (
        1e9 * size,
        computation,
        communication,
        arrival.max() - arrival + 5e-3,
      )
    ],
    rtol=1e-5,
  )
  np.testing.assert_allclose(sum(actual[1:]), arrival.max() + 5e-3, rtol=1e-5)
  assert times(data._replace(devices=None)) is None
  assert (
    times(
      data,
      algorithm._replace(
        round=lambda state, cohort, key: (
          state,
          RoundAux({}, {}, round_cost(0, 0, 0, 0)),
        )
      ),
    )
    is None
  )


def test_a_bijection_where_the_permutation_is_needed(problem):
  """Newcomers; and in a cohort of everybody nothing is drawn."""
  key = jax.random.key(1)
  late = problem.data._replace(
    joins=jnp.asarray(np.where(np.arange(12) % 4 == 1, 9, 0), jnp.int32)
  )
  for data, slots in ((late, 5), (late, 12), (problem.data, 12)):
    np.testing.assert_array_equal(
      *jax.jit(
        lambda data, slots=slots: (
          samplers.by_bijection(data, slots, key, 3),
          samplers.uniform(data, slots, key, 3),
        )
      )(data)
    )
  # As with uniform, everybody who is drawn is there.
  aux = jax.eval_shape(
    lambda: sample_and_run(
      spy(True),
      problem.data,
      Participation(5, samplers.by_bijection),
      run_keys(0),
      jnp.int32(0),
      None,
    )[1]
  )
  assert PRESENT not in aux.server


def test_a_round_without_participants_is_idle(problem):
  """It costs nothing; a measure of nobody is NaN, and what the state holds is not."""

  def round_(state, cohort, key):
    del key
    state = {"sum": state["sum"] + cohort.weight.sum(), "round": state["round"] + 1}
    work = Work(1e9 * cohort.weight, cohort.weight)
    return state, RoundAux(
      {},
      {"loss": jnp.float32(0), "step": jnp.int32(3), "norm": state["sum"]},
      round_cost(30, 10, 1, 0, 5e9),
      work,
    )

  algorithm = Algorithm(
    lambda *_: (),
    no_setup,
    round_,
    lambda *_: None,
    None,
    idle=lambda state, cohort: (
      state | {"round": state["round"] + 1 + cohort.present.sum()}
    ),
    reports_state=("norm",),
  )

  def someone_in_odd_rounds(data, cohort_size, key, number):
    del key
    clients = data.size.shape[0]
    return (
      jnp.full(cohort_size, clients).at[0].set(jnp.where(number % 2 == 1, 4, clients))
    )

  play = jax.jit(
    lambda number, state: sample_and_run(
      algorithm,
      on_machines(problem),
      Participation(3, samplers.with_checks(someone_in_odd_rounds)),
      run_keys(0),
      number,
      state,
    )[:2]
  )
  before = {"sum": jnp.float32(2), "round": jnp.int32(5)}
  state, aux = play(jnp.int32(0), before)
  assert (state["sum"], state["round"]) == (2, 6)
  assert not any(jax.tree.leaves((aux.cost, aux.times)))
  assert np.isnan(aux.server["loss"]) and aux.server["cohort_present"] == 0
  assert (aux.server["norm"], aux.server["step"]) == (2, 0)
  state, aux = play(jnp.int32(1), before)
  assert (state["sum"], state["round"]) == (2 + int(problem.data.size[4]), 6)
  norm = 2 + int(problem.data.size[4])
  assert aux.server == {"loss": 0, "step": 3, "norm": norm, "cohort_present": 1}
  assert aux.cost.down == 30 and aux.times.computation > 0
