"""Stacks of layers: run, parsed, seen by least squares, counted."""

import subprocess
import sys

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.base import num_params
from fedjax_alg.models import layers
from fedjax_alg.models.layers import AvgPool, Conv, Dense, Flatten, MaxPool
from tests import problems
from tests.each import each
from tests.reference import analytic as oracle


class PlainCNN(nn.Module):
  """What ``models.CNN`` computes, written out."""

  @nn.compact
  def __call__(self, x):
    x = x[..., None] if x.ndim == 3 else x
    for width in (16, 32):
      x = nn.relu(nn.Conv(width, (3, 3))(x))
      x = nn.max_pool(x, (2, 2), strides=(2, 2))
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(nn.Dense(64)(x))
    return nn.Dense(3)(x)


def some_params(model, dtype="float32"):
  """Normal numbers in the shapes of the model's parameters."""
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), dtype),
    jax.eval_shape(model.init, jax.random.key(0)),
  )


@pytest.mark.program
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3)])
def test_a_stack_is_the_module_written_out_bit_for_bit(shape):
  stack = layers.StackModule(3, models.CNN().hidden_layers)
  plain = PlainCNN()
  assert stack.layers == layers.parse_layers(models.DEFAULT_LAYERS)
  x = np.random.default_rng(1).normal(size=(4, *shape)).astype(np.float32)
  params = jax.jit(stack.init)(jax.random.key(0), x)
  problems.assert_equal(params, jax.jit(plain.init)(jax.random.key(0), x))
  problems.assert_equal(
    *(jax.jit(module.apply)(params, x) for module in (stack, plain))
  )


#: words, shape of an example: kernels even and odd, images with and without an
#: axis of channels, sizes that pools do not divide, flatten said and not said
STACKS = [
  (("conv3-4", "avg2", "conv2-3", "max2", "dense5", "dense4"), (9, 7)),
  (("max2", "conv5-2", "flatten"), (10, 11, 3)),
  (("conv1-3",), (3, 3)),
  (("avg3",), (7, 6)),
  (("dense6",), (4, 2)),
  ((), (5,)),
]


#: The oracle's words for the layers.
KINDS = {
  Conv: "conv",
  AvgPool: "avg",
  MaxPool: "max",
  Dense: "dense",
  Flatten: "flatten",
}


@pytest.mark.program
@pytest.mark.parametrize("words, shape", STACKS)
def test_views_and_model_are_what_numpy_makes_of_it(words, shape):
  layers = []
  for layer in (*models.parse_layers(words), Dense(3)):
    layers += [{"kind": "flatten"}] * isinstance(layer, Dense)
    layers.append({"kind": KINDS[type(layer)]} | vars(layer))
  kernels = [layer.get("kernel") for layer in layers if oracle.has_weights(layer)]
  with jax.enable_x64(True):
    model = models.Stack(words).build(shape, 3)
    params = some_params(model, "float64")
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(4, *shape)))

    @problems.quick_jit
    def observe(params, x):
      rows = []
      for view in model.layers:
        inputs, (weights, bias) = view.inputs(params, x), view.get(params)
        unfolded = view.unfold(inputs)
        rows.append(
          (inputs, unfolded, weights, bias, unfolded @ weights + bias[None, None])
        )
      return rows, model.apply(params, x)

    rows, logits, params, x = jax.tree.map(np.asarray, (*observe(params, x), params, x))
  images, parameters = x[..., None] if x.ndim == 3 else x, []
  for view, kernel, (inputs, unfolded, weights, bias, products) in zip(
    model.layers, kernels, rows, strict=True
  ):
    value = oracle.forward(layers, parameters, images)
    np.testing.assert_allclose(inputs, value, 1e-12, 1e-12)
    assert inputs.shape == (4, *view.input_shape)
    assert view.grid == (value.shape[1:3] if kernel else (1, 1))
    inner = params["params"][view.name]
    parameters.append((np.reshape(inner["kernel"], (-1, view.width)), inner["bias"]))
    value = oracle.unfold(value, kernel)
    np.testing.assert_allclose(unfolded, value, 1e-12, 1e-12)
    assert unfolded.shape == (4, view.positions, view.fan_in)
    assert weights.shape == (view.fan_in, view.width)
    np.testing.assert_allclose(
      products, value @ parameters[-1][0] + parameters[-1][1], 1e-12, 1e-12
    )
    assert {leaf.dtype for leaf in (inputs, unfolded, weights, bias)} == {x.dtype}
  assert logits.dtype == x.dtype
  np.testing.assert_allclose(
    logits, oracle.forward(layers, parameters, images), 1e-12, 1e-12
  )


def test_only_models_made_of_such_layers_have_views():
  lstm = models.LSTM().build((4,), 2, tokens=9)
  assert lstm.layers is None
  assert models.from_flax(nn.Dense(3), (4,)).layers is None
  assert len(models.MLP((2,)).build((4,), 3).layers) == 2
  assert len(models.Softmax().build((4,), 3).layers) == 1


def test_words_and_layers():
  words = ("conv5-64", "avg2", "max3", "flatten", "dense1024", "dense7")
  parsed = models.parse_layers(words)
  assert parsed == (
    Conv(5, 64),
    AvgPool(2),
    MaxPool(3),
    Flatten(),
    Dense(1024),
    Dense(7),
  )
  assert tuple(map(str, parsed)) == words
  assert models.parse_layers([]) == ()
  # Layers of one size are not alike.
  assert len({AvgPool(2), MaxPool(2), Dense(2)}) == 3


@each(
  "words, pattern",
  [
    ("conf3-4", "layers=conf3-4: unknown, must be convK-C, validK-C"),
    ("conv3", "layers=conv3: unknown"),
    ("conv3-", "layers=conv3-: unkn"),
    ("conv3-4-5", "unknown"),
    ("avg", "unknown"),
    ("avg2-2", "unknown"),
    ("dense", "unknown"),
    ("dense-3", "unknown"),
    ("flatten2", "unknown"),
    ("dense1.5", "unknown"),
    ("", "unknown"),
    ("Dense3", "unknown"),
    ("conv0-4", "layers=conv0-4: sizes must be at least 1"),
    ("conv3-0", "at least 1"),
    ("max0", "at least 1"),
    ("dense0", "at least"),
    ("dense8,conv3-4", "layers=conv3-4: needs images, .* after dense8"),
    ("flatten,avg2", "layers=avg2: needs images, but comes after flatten"),
    ("conv3-4,dense8,dense4,max2", "layers=max2: .* after dense8"),
  ],
)
def test_words_that_are_refused(words, pattern):
  with pytest.raises(ValueError, match=pattern):
    models.parse_layers(words.split(","))


LENET = ("valid5-6", "max2", "valid5-16", "max2", "dense120", "dense84")


@pytest.mark.parametrize("shape, number", [((28, 28), 44_426), ((32, 32, 3), 62_006)])
def test_lenet_has_its_parameters(shape, number):
  model = models.Stack(LENET).build(shape, 10)
  assert num_params(jax.eval_shape(model.init, jax.random.key(0))) == number
  assert model.layers is None
  assert tuple(map(str, models.parse_layers(LENET))) == LENET


def test_a_convolution_without_padding():
  model = models.Stack(("valid3-4",)).build((5, 6, 2), 3)
  params = some_params(model)
  inner = jax.tree.map(np.asarray, params["params"])
  x = np.random.default_rng(0).normal(size=(2, 5, 6, 2)).astype(np.float32)
  padded = oracle.im2col(x, 3) @ inner["Conv_0"]["kernel"].reshape(-1, 4)
  padded = np.maximum(padded + inner["Conv_0"]["bias"], 0).reshape(2, 5, 6, 4)
  hidden = padded[:, 1:-1, 1:-1].reshape(2, -1)
  last = inner["Dense_0"]
  np.testing.assert_allclose(
    model.apply(params, x), hidden @ last["kernel"] + last["bias"], rtol=1e-4, atol=1e-5
  )


def test_the_first_layers_alone_refuse_what_is_no_image():
  with pytest.raises(ValueError, match="needs images"):
    models.from_flax(layers.StackModule(3, (Dense(2), Conv(1, 1))), (4, 4))


@pytest.mark.parametrize(
  "model, shape, expected",
  [
    (models.Softmax(), (28, 28), 2 * 784 * 10),
    (models.MLP((5, 4)), (9,), 2 * (9 * 5 + 5 * 4 + 4 * 10)),
    # Every output pixel of a convolution counts k k c products a channel.
    (
      models.CNN(),
      (28, 28),
      2 * (28 * 28 * 9 * 16 + 14 * 14 * 9 * 16 * 32 + 7 * 7 * 32 * 64 + 640),
    ),
    (
      models.Stack(("conv4-5", "avg2")),
      (6, 8, 3),
      2 * (6 * 8 * 16 * 3 * 5 + 3 * 4 * 5 * 10),
    ),
  ],
)
def test_flops_of_one_example(model, shape, expected):
  model = model.build(shape, 10)
  assert model.flops == expected
  assert model.flops == 2 * sum(
    view.positions * view.fan_in * view.width for view in model.layers
  )


def test_flops_of_an_lstm_grow_with_the_words():
  first, second, third = (models.LSTM().build((words,), 2).flops for words in (1, 2, 3))
  # Two layers that read 300 and 100 numbers, with a state of 100 each.
  assert second - first == third - second == 2 * 400 * (300 + 100 + 100 + 100)
  assert first - (second - first) == 2 * (100 * 30 + 30)


def test_flops_follow_what_is_inside():
  square = jax.ShapeDtypeStruct((3, 3), jnp.float32)
  product = 2 * 27

  def scan(x):
    return jax.lax.scan(lambda c, _: (c @ x, c), x, None, length=5)

  def branches(x):
    return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

  def loop(x):
    return jax.lax.while_loop(lambda c: (c @ x)[0, 0] > 0, lambda c: c @ x, x)

  @jax.custom_jvp
  def custom(x):
    return x @ x

  custom.defjvp(lambda primals, tangents: (custom(*primals), tangents[0]))
  for fn, products in (
    (lambda x: x + x, 0),
    (jax.jit(lambda x: x @ x), 1),
    (scan, 5),
    (branches, 2),
    (loop, 2),
    (custom, 1),
    (jax.checkpoint(custom), 1),
    (lambda x: jax.vmap(lambda row: x @ row)(x), 1),
    (jax.grad(lambda x: (x @ x).sum()), 3),
  ):
    assert models.forward_flops(fn, square) == products * product


@pytest.mark.program
def test_no_device_is_started():
  code = (
    "from fedjax_alg import models\n"
    "from jax._src import xla_bridge\n"
    "for name in 'softmax mlp cnn stack residual lstm resnet18'.split():\n"
    "  shape = (5,) if name == 'lstm' else (8, 8)\n"
    "  assert models.parse_model(name).build(shape, 2).flops > 0\n"
    "assert not xla_bridge.backends_are_initialized()\n"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
