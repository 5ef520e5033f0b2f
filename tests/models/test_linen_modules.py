"""Models from flax.linen modules: modes, and what is refused."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from tests.each import each


class Dropped(nn.Module):
  """Dropout of a collection, switched off in evaluation or not at all."""

  collection: str = "dropout"
  always: bool = False

  @nn.compact
  def __call__(self, x, deterministic):
    x = nn.Dropout(0.5, rng_collection=self.collection)(
      x, deterministic=deterministic and not self.always
    )
    return nn.Dense(2)(x)


class Training(nn.Module):
  """The same with the other name of the mode."""

  @nn.compact
  def __call__(self, x, training=True):
    return nn.Dense(2)(nn.Dropout(0.5)(x, deterministic=not training))


@pytest.mark.program
@pytest.mark.parametrize("module", [Dropped(), Training()])
def test_dropout_in_training_alone(module):
  model = models.from_flax(module, (30,))
  params = jax.jit(model.init)(jax.random.key(0))
  x = np.random.default_rng(1).normal(size=(50, 30)).astype(np.float32)
  apply, train_apply = map(jax.jit, (model.apply, model.train_apply))
  dense = params["params"]["Dense_0"]
  np.testing.assert_allclose(
    apply(params, x), x @ np.asarray(dense["kernel"]), rtol=1e-4, atol=1e-5
  )
  first, same, different = (
    np.asarray(train_apply(params, x, jax.random.key(seed))) for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first, same)
  assert (first != different).all()
  # On average it is what evaluation gives: 400 masks, error 0.05 of the spread.
  draws = np.asarray(
    jax.vmap(lambda key: model.train_apply(params, x, key))(
      jax.random.split(jax.random.key(3), 400)
    )
  )
  np.testing.assert_allclose(
    draws.mean(0), apply(params, x), atol=0.25 * draws.std(0).max()
  )
  assert models.from_flax(nn.Dense(3), (4,)).train_apply is None


@each(
  "module, pattern",
  [
    (
      Dropped(collection="noise"),
      "Dropped draws random numbers in training, only dropout has a key: .*noise",
    ),
    (
      Dropped(always=True),
      "Dropped draws random numbers in evaluation .*train=False or deterministic=True",
    ),
    (
      nn.Sequential([nn.Dense(2), nn.Dropout(0.5)]),
      r"Sequential on examples of shape \[4\] float32 fails .*deterministic",
    ),
    (
      nn.Dense(3, param_dtype=jnp.bfloat16),
      "Dense .*has bfloat16 parameters .*must be float32",
    ),
    (nn.Dense(3, dtype=jnp.bfloat16), r"gives \[7, 3\] bfloat16 .*float32"),
    (nn.Conv(3, (2, 2)), r"logits \[7, classes\] float32"),
  ],
)
def test_what_from_flax_refuses_is_one_line(module, pattern):
  shape = (4, 4, 1) if isinstance(module, nn.Conv) else (4,)
  with pytest.raises(ValueError, match=pattern) as error:
    models.from_flax(module, shape)
  assert "\n" not in str(error.value) and str(error.value).startswith("model: ")
