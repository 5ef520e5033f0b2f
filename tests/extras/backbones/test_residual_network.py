"""ResNets against loops in NumPy, and against torch if it is installed."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.extras.backbones import networks, residual_network
from tests import problems

#: (blocks, convolutions of a block) of each stage, from the paper's table 1.
TABLE = {"resnet18": ((2, 2, 2, 2), 2), "resnet50": ((3, 4, 6, 3), 3)}


@functools.cache
def random_residual(name):
  """A state_dict of torchvision's names and shapes, without the head's."""
  rng, tensors = np.random.default_rng(0), {}

  def add(conv, norm, out, inside, size):
    scale = (2.0 / (inside * size**2)) ** 0.5
    tensors[f"{conv}.weight"] = scale * rng.normal(size=(out, inside, size, size))
    tensors[f"{norm}.weight"] = rng.uniform(0.5, 1.0, out)
    tensors[f"{norm}.bias"] = 0.3 * rng.normal(size=out)
    tensors[f"{norm}.running_mean"] = 0.3 * rng.normal(size=out)
    tensors[f"{norm}.running_var"] = rng.uniform(0.5, 2.0, out)
    tensors[f"{norm}.num_batches_tracked"] = np.array(7.0)

  add("conv1", "bn1", 64, 3, 7)
  blocks, convolutions = TABLE[name]
  inside = 64
  for stage, block in (
    (stage, block) for stage, count in enumerate(blocks) for block in range(count)
  ):
    width, at = 64 * 2**stage, f"layer{stage + 1}.{block}."
    out = width * (4 if convolutions == 3 else 1)
    widths = [inside, *[width] * (convolutions - 1), out]
    for number in range(convolutions):
      size = 1 if convolutions == 3 and number != 1 else 3
      names = f"{at}conv{number + 1}", f"{at}bn{number + 1}"
      add(*names, widths[number + 1], widths[number], size)
    if not block and inside != out:
      add(f"{at}downsample.0", f"{at}downsample.1", out, inside, 1)
    inside = out
  return {name: of.astype(np.float32) for name, of in tensors.items()}


def convolve_padded(x, weights, stride):
  """[c, H, W] with [d, c, k, k], k // 2 zeros around the image."""
  size = weights.shape[2]
  x = np.pad(x, [(0, 0), *[(size // 2, size // 2)] * 2])
  out = [(side - size) // stride + 1 for side in x.shape[1:]]
  result = np.zeros((len(weights), *out))
  for i, j in itertools.product(*map(range, out)):
    window = x[:, i * stride :, j * stride :][:, :size, :size]
    result[:, i, j] = np.tensordot(weights, window, 3)
  return result


def oracle(name, tensors, image):
  """What each layer returns of an image [3, H, W], in float64."""
  tensors = {name: of.astype(np.float64) for name, of in tensors.items()}

  def layer(x, conv, norm, stride):
    gamma, beta, mean, variance = (
      tensors[f"{norm}.{part}"][:, None, None]
      for part in ("weight", "bias", "running_mean", "running_var")
    )
    out = convolve_padded(x, tensors[f"{conv}.weight"], stride)
    return gamma * (out - mean) / np.sqrt(variance + 1e-5) + beta

  x = np.maximum(layer(image, "conv1", "bn1", 2), 0.0)
  padded = np.pad(x, [(0, 0), (1, 1), (1, 1)])  # nothing is below 0
  rows, columns = (range((side - 3) // 2 + 1) for side in padded.shape[1:])
  x = np.array(
    [
      [padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((1, 2)) for j in columns]
      for i in rows
    ]
  ).transpose(2, 0, 1)
  layers = [x]
  blocks, convolutions = TABLE[name]
  for stage, count in enumerate(blocks):
    for block in range(count):
      at, y = f"layer{stage + 1}.{block}.", x
      stride = 2 if stage and not block else 1
      for number in range(convolutions):
        here = stride if number == convolutions - 2 else 1
        y = layer(y, f"{at}conv{number + 1}", f"{at}bn{number + 1}", here)
        y = np.maximum(y, 0.0) if number < convolutions - 1 else y
      if f"{at}downsample.0.weight" in tensors:
        x = layer(x, f"{at}downsample.0", f"{at}downsample.1", stride)
      x = np.maximum(x + y, 0.0)
      layers.append(x)
  return [*layers, x]


def compute(name, tensors, x, layer="head", options=()):
  network, params = residual_network.load_residual_network(
    name, tensors, dict(options), layer, x.shape[1:3], "`features`"
  )
  return np.asarray(problems.quick_jit(network.apply)(params, jnp.asarray(x)))


def check_close(outputs, expected):
  expected = np.asarray(expected)
  assert outputs.shape == expected.shape
  assert np.abs(outputs - expected).max() / np.abs(expected).max() < 1e-4


@pytest.mark.program
@pytest.mark.parametrize(
  "name, layers",
  [("resnet18", ("stem", "block2", "head")), ("resnet50", ("block3", "head"))],
)
def test_layers_of_residual_networks_are_numpys(name, layers):
  """Of a size that no stride divides; a stride at another convolution is seen."""
  image = np.random.default_rng(1).normal(size=(3, 25, 38)).astype(np.float32)
  expected = oracle(name, random_residual(name), image)
  listed = residual_network.list_layers(name)
  assert len(expected) == len(listed)
  for layer in layers:
    x = image.transpose(1, 2, 0)[None]
    outputs = compute(name, random_residual(name), x, layer)[0]
    check_close(outputs, expected[listed.index(layer)].mean((1, 2)))


@pytest.mark.program
def test_other_weights_are_no_residual_network():
  """A tensor too many would be of a network that computes something else."""
  tensors, x = random_residual("resnet18"), np.zeros((1, 32, 32, 3), np.float32)
  for changed, options, pattern in (
    (tensors | {"layer1.0.se.weight": np.ones(3)}, {}, "layer1.0.se.weight"),
    ({"conv1.weight": tensors["conv1.weight"]}, {}, "missing: .*layer1.0.bn1"),
    (random_residual("resnet50"), {}, "of another shape: .*conv1"),
    (tensors, {"hidden_act": "gelu"}, "hidden_act='gelu'"),
  ):
    with pytest.raises(fa.OptionError, match=f"features.*{pattern}"):
      compute("resnet18", changed, x, options=options)


@pytest.mark.program
def test_a_checkpoint_of_a_trainer_has_its_prefix_removed():
  tensors, x = random_residual("resnet18"), np.ones((1, 32, 32, 3), np.float32)
  wrapped = {f"module.net.{name}": of for name, of in tensors.items()}
  wrapped["module.net.fc.weight"] = np.ones((10, 512), np.float32)
  np.testing.assert_array_equal(
    compute("resnet18", wrapped, x), compute("resnet18", tensors, x)
  )


def images_of_torch(torch, side, n=2):
  x = np.random.default_rng(2).normal(size=(n, side, side, 3)).astype(np.float32)
  return x, torch.tensor(x.transpose(0, 3, 1, 2))


def randomize(torch, network):
  """Statistics as after training, and no tensor that is only zeros or ones."""
  torch.manual_seed(0)
  for name, tensor in network.state_dict().items():
    if name.endswith("running_var"):
      torch.nn.init.uniform_(tensor, 0.5, 2.0)
    elif tensor.ndim < 2 and tensor.dtype.is_floating_point:
      torch.nn.init.uniform_(tensor, 0.1, 0.5)
  return network.eval()


def state_of_torch(network):
  return {name: of.numpy() for name, of in network.state_dict().items()}


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("name", list(TABLE))
def test_torch_computes_the_same_residual_network(library, name, tmp_path):
  torch, other = pytest.importorskip("torch"), pytest.importorskip(library)
  if library == "timm":
    network = randomize(torch, other.create_model(name, num_classes=0))
  else:
    network = randomize(torch, getattr(other.models, name)())
    torch.save(network.state_dict(), tmp_path / "net.pth")
    tensors, _ = networks.read_weights(str(tmp_path / "net.pth"), "", "`features`")
    network.fc = torch.nn.Identity()
  if library == "timm":
    tensors = state_of_torch(network)
  x, of_torch = images_of_torch(torch, 70)
  with torch.no_grad():
    check_close(compute(name, tensors, x), network(of_torch).numpy())


@pytest.mark.parametrize("name", list(TABLE))
def test_hugging_face_computes_the_same_residual_network(name, tmp_path):
  """From the folder that it saves."""
  torch, library = (pytest.importorskip(n) for n in ("torch", "transformers"))
  blocks, convolutions = TABLE[name]
  config = library.ResNetConfig(
    depths=list(blocks),
    layer_type="bottleneck" if convolutions == 3 else "basic",
    hidden_sizes=[64 * 2**s * (4 if convolutions == 3 else 1) for s in range(4)],
  )
  network = randomize(torch, library.ResNetForImageClassification(config))
  network.save_pretrained(tmp_path)
  tensors, options = networks.read_weights(str(tmp_path), "", "`features`")
  assert options["model_type"] == "resnet"
  x, of_torch = images_of_torch(torch, 70)
  with torch.no_grad():
    expected = network.resnet(of_torch).pooler_output.numpy()[..., 0, 0]
  check_close(compute(name, tensors, x, options=options), expected)
