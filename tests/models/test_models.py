"""Models: sizes, objectives, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_alg import models
from fedjax_alg.base import num_params
from fedjax_alg.errors import OptionError
from tests.each import each


def count(model):
  return num_params(jax.eval_shape(model.init, jax.random.key(0)))


@pytest.mark.program
@each(
  "model, shape, classes, expected",
  [
    ("softmax", (784,), 10, 7850),
    ("softmax", (28, 28, 1), 10, 7850),
    ("mlp", (784,), 10, 101770),
    ("mlp:64,32", (784,), 10, 784 * 64 + 64 + 64 * 32 + 32 + 330),
    ("mlp:hidden=", (784,), 10, 7850),
    # 3x3 filters 1 -> 16 -> 32, 7 x 7 x 32 -> 64 -> 10.
    ("cnn", (28, 28), 10, 160 + 4640 + 1568 * 64 + 64 + 650),
    ("stack:conv5-4,avg4,dense6", (28, 28), 10, 104 + 196 * 6 + 6 + 70),
    ("cnn", (32, 32, 3), 10, 448 + 4640 + 2048 * 64 + 64 + 650),
    # Table 2 of the FedGroup paper.
    ("softmax", (60,), 10, 610),
    ("softmax", (784,), 26, 20_410),
    ("mlp:512", (784,), 26, 415_258),
  ],
)
def test_number_of_parameters(model, shape, classes, expected):
  assert count(models.parse_model(model).build(shape, classes)) == expected


@pytest.mark.parametrize("name", ["softmax", "mlp:5", "cnn"])
def test_logits_and_loss(name):
  model = models.parse_model(name).build((6, 6), 3)
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
  model = models.Softmax().build((4,), 3)
  loss = jax.jit(model.loss)(np.float32([[1e4, 0.0, 0.0]]), np.int32([1]))
  np.testing.assert_allclose(loss, [1e4])


@each(
  "model, shape, classes, pattern",
  [
    ("resnet", (4,), 2, "model=resnet: unknown, .*one of softmax"),
    ("cnn", (784,), 10, "model=cnn: needs images .* 784"),
    ("cnn", (3, 3), 10, "model=cnn: needs images .* 3x3"),
    ("cnn", (2, 28, 1), 10, "model=cnn: needs images .* 2x28x1"),
    ("cnn", (), 10, "model=cnn: needs images .* scalar"),
    ("lstm", (25, 1), 2, "model=lstm: needs sequences"),
    ("lstm", (), 2, "model=lstm: needs sequences"),
    ("lstm", (25,), 1, "model=lstm: needs sequences"),
    ("stack:valid5-4", (4, 8), 3, "valid5-4: kernel 5 is larger than its 4"),
    ("stack:conv9-4", (8, 8), 3, "conv9-4: kernel 9 is larger than its 8x8"),
    ("stack:avg2,conv5-4", (8, 12, 3), 3, "conv5-4: .* than its 4x6 input"),
    ("stack:max9", (9, 8), 3, "max9: leaves nothing of its 9x8 input"),
    ("stack:avg4,avg2,avg2", (8, 9), 3, "avg2: leaves nothing of its 1x1"),
    ("stack:conv3-4", (64,), 3, r"conv3-4: needs images, .* shape \(64,\)"),
    ("stack:max2", (), 3, "layers=max2: needs images"),
    ("stack:avg2", (2, 2, 2, 2), 3, "needs images"),
  ],
)
def test_examples_that_do_not_fit_a_model(model, shape, classes, pattern):
  with pytest.raises(ValueError, match=pattern):
    models.parse_model(model).build(shape, classes)


@each(
  "text, pattern",
  [
    ("mlp:0", "^model=mlp:0: hidden=0: must be at least 1"),
    ("mlp:8,x", "hidden=8,x: must be a list of numbers"),
    ("mlp:" + ",".join(["2"] * 101), "hidden has 101 layers, must be at most 100"),
    ("mlp:" + 10 * "9", "hidden=9999999999: must be at most"),
    ("stack:" + ",".join(["dense2"] * 101), "layers has 101 layers"),
    ("stack:conv3-2,maxx", "layers=maxx: unknown, must be convK-C"),
    ("lstm:widths=", "widths=: empty"),
    ("lstm:4,-1", "widths=-1: must be at least 1"),
    ("lstm:embedding=glove", "embedding=glove: must be one of frozen, learned"),
    ("resnet18:layer", "norm=layer: must be one of group, batch"),
    ("resnet18:width=1", "width=1: must be at least 2"),
    ("transformer:heads=3", "heads=3: must divide d_model=128"),
    ("residual:blocks=0", "blocks=0: must be at least 1"),
    ("mpl:3", r"^model=mpl:3: unknown.*one of softmax, mlp"),
    ("nets.py:Gone", "^model=nets.py:Gone: there is no file"),
    ("nets.py", "a file needs the name in it: nets.py:NAME"),
  ],
)
def test_a_text_is_refused_by_its_field(text, pattern):
  """Without it a mistyped size is a traceback from the middle of flax."""
  with pytest.raises(OptionError, match=pattern):
    models.parse_model(text)


def test_a_model_says_which_layers_are_fitted():
  """Without it methods in closed form run for another number of rounds."""
  for text, layers, convolutions in (
    ("softmax", 1, 0),
    ("mlp:8,8", 3, 0),
    ("cnn", 4, 2),
    ("stack:conv3-2,max2,flatten,dense4", 3, 1),
    ("residual:blocks=5", 6, 0),
  ):
    model = models.parse_model(text)
    assert (model.num_layers, model.num_convolutions) == (layers, convolutions)
  assert {"lstm", "transformer"} == set(models.OF_TOKENS)
  assert set(models.LAYERED) == {"softmax", "mlp", "cnn", "stack", "residual"}
