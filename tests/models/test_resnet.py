"""ResNet-18 against its definition."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.base import num_params
from fedjax_alg.errors import OptionError
from tests import problems


def group_norm(x, params):
  """Of two groups of channels, over the places and channels of each."""
  batch, *_, channels = x.shape
  grouped = x.reshape(batch, -1, 2, channels // 2)
  mean = grouped.mean((1, 3), keepdims=True)
  spread = ((grouped - mean) ** 2).mean((1, 3), keepdims=True)
  x = ((grouped - mean) / jnp.sqrt(spread + 1e-6)).reshape(x.shape)
  return x * params["scale"] + params["bias"]


def conv(x, kernel, stride=1):
  pad = kernel.shape[0] // 2
  return lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    [(pad, pad)] * 2,
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def logits(params, x):
  """He et al., section 4.2, with four stages of two blocks."""
  x = jax.nn.relu(
    group_norm(conv(x, params["Conv_0"]["kernel"]), params["GroupNorm_0"])
  )
  for number in range(8):
    block = params[f"Block_{number}"]
    stride = 2 if number in (2, 4, 6) else 1
    y = jax.nn.relu(
      group_norm(conv(x, block["Conv_0"]["kernel"], stride), block["GroupNorm_0"])
    )
    y = group_norm(conv(y, block["Conv_1"]["kernel"]), block["GroupNorm_1"])
    if stride == 2:
      x = group_norm(conv(x, block["Conv_2"]["kernel"], 2), block["GroupNorm_2"])
    x = jax.nn.relu(x + y)
  return x.mean((1, 2)) @ params["last"]["kernel"] + params["last"]["bias"]


@pytest.mark.program
def test_it_is_its_definition():
  shape = 12, 9
  model = models.ResNet18(width=2).build(shape, 5)
  params = problems.some_params(model)
  x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
  with jax.numpy_rank_promotion("allow"):
    expected = problems.quick_jit(logits)(params["params"], x[..., None])
  np.testing.assert_allclose(
    problems.quick_jit(model.apply)(params, x), expected, atol=1e-4
  )


@pytest.mark.program
def test_its_size():
  model = models.ResNet18().build((32, 32, 3), 10)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  assert num_params(shapes) == 11_173_962
  assert 1.1e9 < model.flops < 1.12e9


@pytest.mark.program
def test_what_is_refused():
  with pytest.raises(OptionError, match="resnet18: needs images of at least 8"):
    models.ResNet18().build((7, 32, 3), 10)
  model = models.ResNet18("batch", width=2).build((8, 8), 10)
  assert model.roles.has_state  # see ``models.statistics``
