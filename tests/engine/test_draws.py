"""NumPy draws the keys and words of jax.random."""

import jax
import numpy as np

from fedjax_alg.engine import draws
from fedjax_alg.engine.keys import keys_of_rows, run_keys
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
