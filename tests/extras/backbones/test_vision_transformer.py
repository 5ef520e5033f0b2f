"""Vision transformers against loops in NumPy, and against torch if it is installed."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import fedjax_alg as fa
from fedjax_alg.extras.backbones import networks, vision_transformer
from tests import problems
from tests.extras.backbones.test_residual_network import (
  check_close,
  images_of_torch,
  state_of_torch,
)

WIDTH, DEPTH, MLP, PATCH, GRID = 128, 2, 96, 4, (3, 2)
SHAPE = (GRID[0] * PATCH, GRID[1] * PATCH)


@functools.cache
def random_transformer(side=3):
  """A state_dict of timm's names, with the scales of DINOv2; ``side``: of its grid."""
  rng, tensors = np.random.default_rng(0), {}

  def add(name, *shape, scale=1.0):
    tensors[name] = (scale * rng.normal(size=shape)).astype(np.float32)

  def add_layer(name, out, inside):
    add(f"{name}.weight", out, inside, scale=inside**-0.5)
    add(f"{name}.bias", out)

  add("cls_token", 1, 1, WIDTH)
  add("pos_embed", 1, 1 + side**2, WIDTH)
  add("patch_embed.proj.weight", WIDTH, 3, PATCH, PATCH, scale=0.2)
  add("patch_embed.proj.bias", WIDTH)
  for number in range(DEPTH):
    at = f"blocks.{number}."
    for norm in ("norm1", "norm2", "ls1", "ls2"):
      add(f"{at}{norm}.{'gamma' if norm[:2] == 'ls' else 'weight'}", WIDTH)
    add(f"{at}norm1.bias", WIDTH)
    add(f"{at}norm2.bias", WIDTH)
    add_layer(f"{at}attn.qkv", 3 * WIDTH, WIDTH)
    add_layer(f"{at}attn.proj", WIDTH, WIDTH)
    add_layer(f"{at}mlp.fc1", MLP, WIDTH)
    add_layer(f"{at}mlp.fc2", WIDTH, MLP)
  add("norm.weight", WIDTH)
  add("norm.bias", WIDTH)
  return tensors


def oracle(tensors, image, positions):
  """The class token after each block, of an image [3, H, W], token by token."""
  t = {name: of.astype(np.float64) for name, of in tensors.items()}

  def normalize(x, name):
    x = x - x.mean(1, keepdims=True)
    x = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
    return x * t[f"{name}.weight"] + t[f"{name}.bias"]

  def layer(x, name):
    return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

  tokens = [t["cls_token"][0, 0]]
  for i in range(GRID[0]):
    for j in range(GRID[1]):
      of_patch = image[:, i * PATCH :, j * PATCH :][:, :PATCH, :PATCH]
      of_patch = np.tensordot(t["patch_embed.proj.weight"], of_patch, 3)
      tokens.append(of_patch + t["patch_embed.proj.bias"])
  x = np.array(tokens) + positions
  result = []
  for number in range(DEPTH):
    at = f"blocks.{number}."
    parts = np.split(layer(normalize(x, f"{at}norm1"), f"{at}attn.qkv"), 3, axis=1)
    out = np.zeros_like(x)
    for start in range(0, WIDTH, 64):
      q, k, v = (part[:, start : start + 64] for part in parts)
      for token in range(len(x)):
        weights = special.softmax(k @ q[token] / 8.0)
        out[token, start : start + 64] = weights @ v
    x = x + t[f"{at}ls1.gamma"] * layer(out, f"{at}attn.proj")
    out = layer(normalize(x, f"{at}norm2"), f"{at}mlp.fc1")
    out = out * 0.5 * (1 + special.erf(out / np.sqrt(2.0)))
    x = x + t[f"{at}ls2.gamma"] * layer(out, f"{at}mlp.fc2")
    result.append(x[0])
  return [*result, normalize(x, "norm")[0]]


def compute(tensors, x, layer="head", options=()):
  network, params = vision_transformer.load_vision_transformer(
    tensors, dict(options), layer, x.shape[1:3], "`features`"
  )
  return np.asarray(problems.quick_jit(network.apply)(params, jnp.asarray(x)))


def as_hugging_face(tensors):
  """The same tensors under the names of Hugging Face, each written out."""
  names = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
  }
  result = {
    "dinov2.embeddings.cls_token": tensors["cls_token"],
    "dinov2.embeddings.mask_token": np.ones((1, WIDTH), np.float32),
    "dinov2.embeddings.position_embeddings": tensors["pos_embed"],
    "dinov2.layernorm.weight": tensors["norm.weight"],
    "dinov2.layernorm.bias": tensors["norm.bias"],
  }
  for part in ("weight", "bias"):
    theirs = f"dinov2.embeddings.patch_embeddings.projection.{part}"
    result[theirs] = tensors[f"patch_embed.proj.{part}"]
  for number in range(DEPTH):
    ours, theirs = f"blocks.{number}.", f"dinov2.encoder.layer.{number}."
    for i in (1, 2):
      result[f"{theirs}layer_scale{i}.lambda1"] = tensors[f"{ours}ls{i}.gamma"]
    for part in ("weight", "bias"):
      for name, other in names.items():
        result[f"{theirs}{other}.{part}"] = tensors[f"{ours}{name}.{part}"]
      three = np.split(tensors[f"{ours}attn.qkv.{part}"], 3)
      for name, tensor in zip(("query", "key", "value"), three):
        result[f"{theirs}attention.attention.{name}.{part}"] = tensor
  return result


@pytest.mark.program
@pytest.mark.parametrize("is_timm", [True, False])
def test_layers_of_transformers_are_numpys(is_timm):
  """A grid of 3 x 2 patches, of positions of 3 x 3: each library has its own way."""
  tensors = random_transformer()
  rng = np.random.default_rng(1)
  image = rng.normal(size=(3, *SHAPE)).astype(np.float32)
  square = tensors["pos_embed"][0, 1:].reshape(3, 3, WIDTH)
  # From 3 to 2 the centers are at 0.25 and 1.75; the cubics' values by hand, without
  # antialiasing for a = -0.75 at distances 1.25, 0.25, 0.75, 1.75 from four points.
  cubic = {0.25: 0.87890625, 0.75: 0.26171875, 1.25: -0.10546875, 1.75: -0.03515625}
  line = np.zeros((2, 3))
  for row, center in enumerate((0.25, 1.75)):
    for place in range(-2, 6):
      line[row, np.clip(place, 0, 2)] += cubic.get(abs(center - place), 0.0)
  if is_timm:  # the cubic for a = -0.5, 1.5 times as wide, on the points that are there
    distances = np.abs(np.array([[0.25], [1.75]]) - np.arange(3)) / 1.5
    near = 1.5 * distances**3 - 2.5 * distances**2 + 1
    far = -0.5 * distances**3 + 2.5 * distances**2 - 4 * distances + 2
    line = np.where(distances <= 1, near, np.where(distances < 2, far, 0.0))
    line /= line.sum(1, keepdims=True)
  grid = np.einsum("jb,abc->ajc", line, square).reshape(6, WIDTH)
  positions = np.concatenate([tensors["pos_embed"][0, :1], grid])
  expected = oracle(tensors, image, positions)
  given_tensors = tensors if is_timm else as_hugging_face(tensors)
  for layer, of_layer in zip(("block0", "block1", "head"), expected):
    outputs = compute(given_tensors, image.transpose(1, 2, 0)[None], layer)[0]
    check_close(outputs, of_layer)


def test_the_first_layer_has_the_patches_alone():
  tensors = random_transformer()
  x = np.random.default_rng(2).normal(size=(1, 12, 12, 3)).astype(np.float32)
  outputs = compute(tensors, x, "stem")[0]
  of_means = np.tensordot(
    tensors["patch_embed.proj.weight"],
    x[0].reshape(3, PATCH, 3, PATCH, 3).mean((0, 2)).transpose(2, 0, 1),
    3,
  )
  positions = tensors["pos_embed"][0, 1:].mean(0)
  check_close(outputs, of_means + tensors["patch_embed.proj.bias"] + positions)


def test_other_weights_are_no_transformer():
  tensors, x = random_transformer(), np.zeros((1, *SHAPE, 3), np.float32)
  without_norm = {name: of for name, of in tensors.items() if name != "norm.bias"}
  for changed, shape, layer, options, pattern in (
    ({"cls_token": np.ones((1, 1, 64))}, x.shape, "head", {}, "vision transformer"),
    (without_norm, x.shape, "head", {}, "missing: .*norm.bias"),
    (tensors | {"reg_token": np.ones((1, 4, WIDTH))}, x.shape, "head", {}, "reg_token"),
    (tensors, (1, 10, 8, 3), "head", {}, "10 x 8 pixels.*size"),
    (tensors, x.shape, "block2", {}, "layer=block2"),
    (tensors, x.shape, "head", {"num_attention_heads": 4}, "num_attention_heads=4"),
    (tensors | {"pos_embed": np.ones((1, 4, WIDTH))}, x.shape, "head", {}, "3 pos"),
  ):
    with pytest.raises(fa.OptionError, match=f"features.*{pattern}") as error:
      compute(changed, np.zeros(shape, np.float32), layer, options)
    assert "\n" not in str(error.value)


def randomize(torch, network):
  """No tensor that is only zeros or ones; norms that differ by channel."""
  torch.manual_seed(0)
  for tensor in network.parameters():
    torch.nn.init.normal_(tensor, 0.0, 0.3 if tensor.ndim < 2 else 0.04)
  return network.eval()


@pytest.mark.parametrize(
  "name, options, shape",
  [
    ("vit_small_patch16_224", {}, (224, 224)),
    ("vit_small_patch16_224", {"dynamic_img_size": True}, (96, 160)),
    ("vit_small_patch14_dinov2", {"dynamic_img_size": True}, (98, 126)),
    ("vit_base_patch16_224", {"img_size": 64, "depth": 3}, (64, 64)),
  ],
)
def test_timm_computes_the_same_transformer(name, options, shape):
  torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
  network = randomize(torch, timm.create_model(name, **options))
  x, of_torch = images_of_torch(torch, max(shape))
  x, of_torch = x[:, : shape[0], : shape[1]], of_torch[:, :, : shape[0], : shape[1]]
  with torch.no_grad():
    expected = network.forward_features(of_torch)[:, 0].numpy()
  check_close(compute(state_of_torch(network), x), expected)


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
@pytest.mark.parametrize("way", ["folder", "memory"])
def test_hugging_face_computes_the_same_transformer(kind, way, tmp_path):
  """From the folder that it saves, whose names are not those that it has in memory."""
  torch, library = (pytest.importorskip(n) for n in ("torch", "transformers"))
  config = getattr(library, f"{kind}Config")(
    hidden_size=384,
    num_attention_heads=6,
    intermediate_size=1536,
    num_hidden_layers=4,
    patch_size=14,
    image_size=112,
  )
  network = randomize(torch, getattr(library, f"{kind}ForImageClassification")(config))
  network.save_pretrained(tmp_path)
  tensors, options = networks.read_weights(str(tmp_path), "", "`features`")
  if way == "memory":
    tensors = state_of_torch(network)
  x, of_torch = images_of_torch(torch, 98)
  interpolated = {"interpolate_pos_encoding": True} if kind == "ViT" else {}
  with torch.no_grad():
    body = network.vit if kind == "ViT" else network.dinov2
    expected = body(of_torch, **interpolated).last_hidden_state[:, 0].numpy()
  check_close(compute(tensors, x, options=options), expected)
