"""Generated tokens against a loop in NumPy, and what cannot be generated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.data import characters
from fedjax_alg.errors import OptionError
from tests.each import each

V, T = 7, 5


@pytest.fixture(scope="module")
def chain():
  """The next token's logits are a row of a table, chosen by the last two tokens."""
  table = np.random.default_rng(0).normal(size=(V, V, V)).astype(np.float32) * 3

  def apply(params, x):
    before = jnp.pad(x, ((0, 0), (1, 0)))[:, :-1]
    return params[before, x]

  model = models.from_functions(lambda key: jnp.asarray(table), apply)
  return model, table


def by_hand(table, prompt, length, choose):
  ids, window = list(prompt), list(prompt)[-T:]
  for _ in range(length):
    before = window[-2] if len(window) > 1 else 0
    logits = table[before, window[-1]].copy()
    logits[0] = -np.inf
    ids.append(choose(logits))
    window = (window + [ids[-1]])[-T:]
  return ids


@pytest.mark.parametrize("prompt", [[3], [1, 2, 4], [6, 5, 4, 3, 2, 1, 2, 3]])
def test_greedy_is_the_loop(chain, prompt):
  model, table = chain
  ids = models.generate(model, jnp.asarray(table), prompt, 9, window=T)
  assert ids.tolist() == by_hand(table, prompt, 9, lambda logits: int(logits.argmax()))
  one = models.generate(
    model, jnp.asarray(table), prompt, 9, window=T, temperature=2.0, top_k=1, seed=3
  )
  np.testing.assert_array_equal(one, ids)


@pytest.mark.program
def test_draws_have_the_softmax_at_the_temperature(chain):
  model, table = chain
  params = jnp.asarray(table)
  first = [
    models.generate(
      model, params, [2, 3], 1, window=T, temperature=1.5, top_k=3, seed=seed
    )[-1]
    for seed in range(400)
  ]
  logits = table[2, 3] / 1.5
  logits[0] = -np.inf
  logits[np.argsort(logits)[:-3]] = -np.inf
  expected = np.exp(logits) / np.exp(logits).sum()
  shares = np.bincount(first, minlength=V) / 400
  np.testing.assert_allclose(shares, expected, atol=4 * 0.025)
  assert not shares[expected == 0].any()


@each(
  "change,message",
  [
    (dict(prompt=[]), "prompt"),
    (dict(prompt=[7]), "has id 7, the model has 0 to 6"),
    (dict(prompt=[0.5]), "prompt: float64"),
    (dict(length=-1), "length=-1: must be at least 0"),
    (dict(top_k=0), "top_k=0: must be at least 1"),
    (dict(temperature=-1.0), "temperature=-1.0: must be at least 0"),
    (dict(length="3"), "length='3': must be a whole number"),
    (dict(window=2.5), "window=2.5: must be a whole number"),
    (dict(seed=-1), "seed=-1: must be at least 0"),
    (dict(temperature="hot"), "temperature='hot': must be a number"),
    # It was silently not read.
    (dict(top_k=3), "top_k=3: not read with temperature=0"),
    (dict(model=3), "model: an int, must be a Model"),
  ],
)
def test_what_cannot_be_generated_is_refused(chain, change, message):
  model, table = chain
  arguments = dict(model=model, prompt=[1], length=2, window=T) | change
  with pytest.raises(OptionError, match=f"^{message}|{message}$"):
    models.generate(params=jnp.asarray(table), **arguments)


@pytest.mark.parametrize(
  "shape, message",
  [
    ((2, V, V, V), "params: those of 2 models .* give one"),
    ((V, V), "params: not those of model"),
  ],
)
def test_parameters_of_several_models_are_refused(chain, shape, message):
  """Those of all seeds of a run gave other tokens, or an error of JAX."""
  model, _ = chain
  with pytest.raises(OptionError, match=f"^{message}"):
    models.generate(model, jnp.zeros(shape), [1], 2, window=T)


def test_a_model_of_one_class_generates_nothing():
  model = models.Softmax().build((T,), 3)
  params = model.init(jax.random.key(0))
  with pytest.raises(OptionError, match="task=tokens"):
    models.generate(model, params, [1], 2, window=T)


def test_characters_go_to_ids_and_back():
  text = "To be, or not to be: that is the question?\n"
  assert characters.decode_text(characters.encode_text(text)) == text
  assert characters.decode_text(characters.encode_text("a\u00e9b")) == "a\ufffdb"
  assert characters.decode_text([0, 2, 0]) == characters.ALPHABET[0]
  with pytest.raises(ValueError, match="0 to 81"):
    characters.decode_text([82])
