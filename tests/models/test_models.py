"""Models: sizes, objectives, what is refused."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_alg import models
from fedjax_alg.base import num_params


def count(model):
  return num_params(jax.eval_shape(model.init, jax.random.key(0)))


@pytest.mark.parametrize(
  "name, shape, options, expected",
  [
    ("softmax", (784,), {}, 7850),
    ("softmax", (28, 28, 1), {}, 7850),
    ("mlp", (784,), {}, 101770),
    ("mlp", (784,), dict(hidden=(64, 32)), 784 * 64 + 64 + 64 * 32 + 32 + 330),
    # 3x3 filters 1 -> 16 -> 32, 7 x 7 x 32 -> 64 -> 10.
    ("cnn", (28, 28), {}, 160 + 4640 + 1568 * 64 + 64 + 650),
    (
      "stack",
      (28, 28),
      dict(layers=("conv5-4", "avg4", "dense6")),
      104 + 196 * 6 + 6 + 70,
    ),
    ("cnn", (32, 32, 3), {}, 448 + 4640 + 2048 * 64 + 64 + 650),
    # Table 2 of the FedGroup paper.
    ("softmax", (60,), {}, 610),
    ("softmax", (784,), {"num_classes": 26}, 20_410),
    ("mlp", (784,), {"hidden": (512,), "num_classes": 26}, 415_258),
  ],
)
def test_number_of_parameters(name, shape, options, expected):
  assert (
    count(models.make_model(name, shape, **({"num_classes": 10} | options))) == expected
  )


@pytest.mark.parametrize("name", ["softmax", "mlp", "cnn"])
def test_logits_and_loss(name):
  model = models.make_model(name, (6, 6), 3, hidden=(5,))
  y = np.arange(7, dtype=np.int32) % 3

  @jax.jit
  def both(first, second):
    x = jax.random.normal(second, (7, 6, 6))
    logits = model.apply(model.init(first), x)
    return (
      logits,
      model.loss(logits, y),
      (optax.softmax_cross_entropy_with_integer_labels(logits, y)),
    )

  logits, loss, expected = both(jax.random.key(1), jax.random.key(2))
  assert (logits.shape, logits.dtype) == ((7, 3), jnp.float32)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  assert (model.scale_features is not None) == (name == "softmax")


@pytest.mark.program
def test_a_large_logit_gives_a_finite_loss():
  model = models.make_model("softmax", (4,), 3)
  loss = jax.jit(model.loss)(np.float32([[1e4, 0.0, 0.0]]), np.int32([1]))
  np.testing.assert_allclose(loss, [1e4])


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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
  "name, shape, classes, layers, pattern",
  [
    ("resnet", (4,), 2, "", "model=resnet: must be one of softmax"),
    ("cnn", (784,), 10, "", "model=cnn: needs images .* 784"),
    ("cnn", (3, 3), 10, "", "model=cnn: needs images .* 3x3"),
    ("cnn", (2, 28, 1), 10, "", "model=cnn: needs images .* 2x28x1"),
    ("cnn", (), 10, "", "model=cnn: needs images .* scalar"),
    ("lstm", (25, 1), 2, "", "model=lstm: needs sequences"),
    ("lstm", (), 2, "", "model=lstm: needs sequences"),
    ("lstm", (25,), 1, "", "model=lstm: needs sequences"),
    ("stack", (4, 8), 3, "valid5-4", "valid5-4: kernel 5 is larger than its 4"),
    ("stack", (8, 8), 3, "conv9-4", "conv9-4: kernel 9 is larger than its 8x8"),
    ("stack", (8, 12, 3), 3, "avg2,conv5-4", "conv5-4: .* than its 4x6 input"),
    ("stack", (9, 8), 3, "max9", "max9: leaves nothing of its 9x8 input"),
    ("stack", (8, 9), 3, "avg4,avg2,avg2", "avg2: leaves nothing of its 1x1"),
    ("stack", (64,), 3, "conv3-4", r"conv3-4: needs images, .* shape \(64,\)"),
    ("stack", (), 3, "max2", "layers=max2: needs images"),
    ("stack", (2, 2, 2, 2), 3, "avg2", "needs images"),
  ],
)
def test_examples_that_do_not_fit_a_model(name, shape, classes, layers, pattern):
  with pytest.raises(ValueError, match=pattern):
    models.make_model(name, shape, classes, layers=layers.split(","))
