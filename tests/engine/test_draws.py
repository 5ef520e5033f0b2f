"""NumPy draws the keys and words of jax.random."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.engine import draws, loop
from fedjax_alg.engine.keys import keys_of_rows, run_keys
from fedjax_alg.runs import plan, programs
from tests import problems


def _words(keys):
  return np.asarray(jax.random.key_data(keys))


def test_keys_and_words_are_those_of_jax():
  keys = jax.random.split(jax.random.key(7), 6)
  words = _words(keys)
  np.testing.assert_array_equal(
    draws.split_keys(words[0], (4, 3)), _words(jax.random.split(keys[0], (4, 3)))
  )
  for data in (0, 5, 2**32 - 1):
    np.testing.assert_array_equal(
      draws.fold_in(words[1], np.uint32(data)),
      _words(jax.random.fold_in(keys[1], np.uint32(data))),
    )
  # Longer than what is hashed at once, and many keys with a few words each.
  for shape in ((draws._BLOCK + 3,), (), (2, 5), (0,)):
    np.testing.assert_array_equal(
      draws.bits(words.reshape(2, 3, 2), shape),
      np.array([jax.random.bits(key, shape) for key in keys]).reshape(2, 3, *shape),
    )


def test_numbers_are_those_of_jax():
  keys = jax.random.split(jax.random.key(3), 500)
  np.testing.assert_array_equal(
    draws.draw_uniform(_words(keys)), jax.vmap(jax.random.uniform)(keys)
  )
  for low, high in ((1, 5), (0, 7), (-3, 2**30), (4, 5)):
    np.testing.assert_array_equal(
      draws.draw_integers(_words(keys), low, high),
      jax.vmap(lambda key, ends=(low, high): jax.random.randint(key, (), *ends))(keys),
    )


def test_keys_of_a_run_are_those_of_its_seeds():
  keys = keys_of_rows([3, 2**32 - 1], settings=2)
  for row, seed in enumerate((3, 2**32 - 1, 3, 2**32 - 1)):
    expected = run_keys(np.uint32(seed))
    problems.assert_equal(
      jax.tree.map(lambda key, row=row: _words(key[row]), keys),
      jax.tree.map(_words, expected),
    )


def _code(keys, numbers, data):
  """Keys that are derived, batched, looped over and returned, and tables."""
  first, second = jax.random.split(keys["a"])
  models = jax.vmap(lambda key: jax.random.uniform(key, (3,)))(
    jax.random.split(second, 2)
  )

  def step(i, total):  # its key is one of the program
    return total + jax.random.uniform(jax.random.fold_in(first, i), (3,))

  looped = jax.lax.fori_loop(0, numbers["steps"], step, data)
  drawn = jax.random.uniform(jax.random.fold_in(keys["b"], 9), (4,))
  return {
    "models": models,
    "looped": looped,
    "zeros": jnp.zeros((5, 2)),
    "one": jnp.int32(1),
    "table": jnp.broadcast_to(drawn * numbers["scale"], (6, 4)),
    "key": first,
  }


@pytest.mark.parametrize("most", (draws.MOST_WORDS, 0))
@pytest.mark.parametrize("map_seeds", loop.MAP_SEEDS)
def test_code_in_two_parts_gives_the_same_bits(monkeypatch, map_seeds, most):
  monkeypatch.setattr(draws, "MOST_WORDS", most)
  keys = {
    name: jax.random.split(jax.random.key(seed), 2)
    for seed, name in enumerate(("a", "b"))
  }
  numbers = {"steps": jnp.int32([2, 5]), "scale": jnp.float32([1.0, 4.0])}
  data = jnp.arange(3.0)
  over_rows = functools.partial(loop.over_seeds, map_seeds=map_seeds)
  whole = jax.jit(over_rows(lambda keys, numbers: _code(keys, numbers, data)))
  parts = draws.HostDraws(_code, keys, numbers, data)
  assert parts.can_draw
  drawn = parts.draw(keys)
  assert [(leaf.shape, leaf.dtype) for leaf in drawn] == [
    (shape.shape, shape.dtype) for shape in parts.shapes(None)
  ]
  # 2 rows of 6 and 4 words, or the keys that draw them; and the key of the loop.
  assert sorted(leaf[0].size for leaf in drawn) == (
    [2, 2, 4] if not most else [2, 4, 6]
  )
  program = jax.jit(functools.partial(parts.compute, over_rows))
  out = program(drawn, numbers, data)
  expected = whole(keys, numbers)
  expected["key"], out["key"] = _words(expected["key"]), _words(out["key"])
  problems.assert_equal(out, expected)


def test_other_generators_and_own_arrays_stay_in_the_program():
  keys = jax.random.split(jax.random.key(0, impl="rbg"), 2)
  parts = draws.HostDraws(
    lambda key, _, data: jax.random.normal(key, data.shape), keys, (), jnp.zeros(3)
  )
  assert not parts.can_draw
  own = np.arange(3.0, dtype=np.float32)
  parts = draws.HostDraws(
    lambda key, _, data: jax.random.normal(key, (3,)) + jnp.asarray(own) + data,
    jax.random.split(jax.random.key(0), 2),
    (),
    jnp.zeros(3),
  )
  assert not parts.can_draw


@pytest.mark.parametrize("algorithm", ("fedavg", "ifca"))
def test_the_program_of_a_start_hashes_nothing(algorithm):
  prepared = plan.from_keywords(
    algorithm,
    fa.federate("digits", partition="iid", num_clients=4),
    model="mlp",
    rounds=1,
    cohort_size=2,
    seeds=2,
  ).prepare()
  start = programs._start(prepared)
  text = start.program.lower(*programs._start_shapes(prepared, start)).as_text()
  assert "shift_left" not in text and "erf_inv" in text


def test_tables_are_filled_after_the_rows():
  """No row has a table of its own, which would then be copied."""

  def fill(key, _, data):
    return jnp.broadcast_to(jax.random.normal(key, (2,)) + data, (100, 2))

  keys = jax.random.split(jax.random.key(0), 3)
  parts = draws.HostDraws(fill, keys, (), jnp.zeros(()))
  over_rows = functools.partial(loop.over_seeds, map_seeds="sequential")
  jaxpr = jax.make_jaxpr(functools.partial(parts.compute, over_rows))(
    parts.draw(keys), (), jnp.zeros(())
  )
  assert jaxpr.eqns[-1].primitive.name == "broadcast_in_dim"
  assert [var.aval.shape for eqn in jaxpr.eqns[:-1] for var in eqn.outvars] == [(3, 2)]
