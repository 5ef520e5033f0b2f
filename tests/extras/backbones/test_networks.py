"""Which weights a network reads, and how images reach it."""

import dataclasses
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.features import NETWORK_NAMES, Backbone
from fedjax_alg.extras.backbones import networks
from tests.extras.backbones.test_efficientnet import random_tensors
from tests.extras.backbones.test_residual_network import random_residual
from tests.extras.backbones.test_weights import save

pytestmark = pytest.mark.program

SHAPE = (40, 56)


def images(n=2):
  shape = (n, *SHAPE, 3)
  return np.random.default_rng(5).uniform(size=shape).astype(np.float32)


def test_every_name_is_a_network():
  of_texts = {name for name in NETWORK_NAMES if Backbone(name).reads_texts}
  assert of_texts == {"wordllama"}
  assert set(networks.NETWORKS) | of_texts == set(NETWORK_NAMES)


def test_missing_and_foreign_weights_are_refused(monkeypatch, tmp_path):
  monkeypatch.setattr(networks, "PACKAGE", "weights_of_a_test")
  with pytest.raises(fa.OptionError, match=r"features.*fedjax_alg\[backbone\]"):
    networks.find_weights("`features`=backbone")
  (tmp_path / "weights_of_a_test" / "models").mkdir(parents=True)
  (tmp_path / "weights_of_a_test" / "__init__.py").write_text("raise SystemExit")
  (tmp_path / "weights_of_a_test" / networks.PACKAGE_FILE).write_bytes(b"other")
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(fa.OptionError, match="features.*sha256"):
    networks.find_weights("`features`=backbone")
  assert "weights_of_a_test" not in sys.modules


@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_images_are_prepared_as_by_torchvision(crop):
  torch, transforms = (
    pytest.importorskip(name) for name in ("torch", "torchvision.transforms.v2")
  )
  x = torch.tensor(images().transpose(0, 3, 1, 2))
  steps = [transforms.Resize((32, 32), antialias=True)]
  if crop < 1:
    steps = [transforms.Resize(36, antialias=True), transforms.CenterCrop(32)]
  preparation = networks.PREPARATIONS["resnet"]
  steps.append(transforms.Normalize(preparation.mean, preparation.deviation))
  expected = transforms.Compose(steps)(x).numpy().transpose(0, 2, 3, 1)
  resized = networks.resize_images(jnp.asarray(images()), 32, crop, "bilinear")
  np.testing.assert_allclose(preparation.scale(resized), expected, atol=1e-5)


def test_the_central_square_of_an_image_is_kept():
  """Pixels outside of it change nothing; without a crop they do."""
  x = images()
  other = x.copy()
  other[:, :, :4] = 0.0  # the crop of 40 x 56 keeps at most the columns 8 to 48

  def resize(x, crop):
    return np.asarray(networks.resize_images(jnp.asarray(x), 30, crop, "bilinear"))

  np.testing.assert_array_equal(resize(x, 0.9), resize(other, 0.9))
  assert resize(x, 1.0).shape == (2, 30, 30, 3)
  assert np.abs(resize(x, 1.0) - resize(other, 1.0)).max() > 0.1
  # A pixel of the middle: an image that is not resized is cut alone.
  square = x[:, :, :40]
  np.testing.assert_allclose(resize(square, 0.75), square[:, 5:35, 5:35], atol=1e-6)


def test_a_folder_states_how_its_images_are_scaled(tmp_path):
  pytest.importorskip("safetensors.numpy")
  save(tmp_path / "model.safetensors", random_residual("resnet18"), "safetensors")
  backbone = Backbone("resnet18", weights=str(tmp_path), layer="stem", size=0)

  def prepare(**options):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(options))
    loaded = networks.load_network(backbone, SHAPE, "`features`")
    return np.asarray(loaded.prepare(jnp.asarray(images())))

  imagenet = networks.PREPARATIONS["resnet"]
  np.testing.assert_allclose(prepare(), imagenet.scale(images()), atol=1e-6)
  halves = prepare(image_mean=[0.5] * 3, image_std=[0.5] * 3)
  np.testing.assert_allclose(halves, 2 * images() - 1, atol=1e-6)
  of_timm = {"mean": [0.25] * 3, "std": [0.5] * 3}  # in its config.json
  quarters = prepare(pretrained_cfg=of_timm)
  np.testing.assert_allclose(quarters, 2 * images() - 0.5, atol=1e-6)
  with pytest.raises(fa.OptionError, match="features.*image_mean"):
    prepare(image_mean=[0.5, 0.5])
  backbone = dataclasses.replace(backbone, scale="none")  # the user has the last word
  np.testing.assert_array_equal(prepare(**of_timm), images())


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0"])
def test_images_are_scaled_as_the_user_says(name, tmp_path):
  """As AFL's code does: the weights are ImageNet's, the scale is not."""
  tensors = {
    "resnet18": random_residual,
    "efficientnet_lite0": lambda _: random_tensors(),
  }
  path = save(tmp_path / "w.npz", tensors[name](name), "npz")
  prepared = {}
  for scale in ("published", *networks.SCALES):
    backbone = Backbone(name, weights=str(path), size=0, scale=scale)
    loaded = networks.load_network(backbone, SHAPE, "`features`")
    prepared[scale] = np.asarray(loaded.prepare(jnp.asarray(images())))
  np.testing.assert_allclose(prepared["halves"], 2 * images() - 1, atol=1e-6)
  np.testing.assert_array_equal(prepared["none"], images())
  is_imagenets = np.allclose(prepared["published"], prepared["imagenet"])
  assert is_imagenets == (name == "resnet18")


@pytest.mark.parametrize(
  "backbone, pattern",
  [
    (Backbone("resnet18"), "features.*weights is missing"),
    (Backbone("resnet18", weights="none.pth"), "features.*none.pth.*cannot be read"),
    (Backbone("resnet18", weights="w.npz", layer="block8"), "features.*layer=block8"),
    (Backbone("resnet50", weights="w.npz"), "features.*resnet50"),
    (Backbone("resnet18", weights="w.npz", size=0, crop=0.5), "features.*crop=0.5"),
  ],
)
def test_what_is_no_network_with_its_weights_is_refused(
  backbone, pattern, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  save(tmp_path / "w.npz", random_residual("resnet18"), "npz")
  with pytest.raises(fa.OptionError, match=pattern) as error:
    networks.load_network(backbone, SHAPE, f"`features`={backbone}")
  assert "\n" not in str(error.value)


def test_features_of_a_file_go_into_a_run_and_its_predictions(tmp_path, monkeypatch):
  """A file with other numbers is refused afterwards."""
  monkeypatch.setattr("fedjax_alg.extras.backbones.features.CACHE", str(tmp_path))
  path = save(tmp_path / "w.npz", random_residual("resnet18"), "npz")
  backbone = Backbone("resnet18", weights=str(path), size=32, layer="block1")
  x, y = (255 * images(60)).astype(np.uint8), np.arange(60) % 3
  source = fa.from_arrays(x, y, np.arange(60) % 4, x_test=x[:9], y_test=y[:9])
  federation = fa.federate(source, features=backbone)
  assert federation.data.train.x.shape[1:] == (64,)
  result = fa.run("afl", federation)
  expected = result.metrics["global"]["accuracy"][0, -1]
  assert (result.predict(x[:9]) == y[:9]).mean() == pytest.approx(expected)
  save(path, {name: of + 1 for name, of in random_residual("resnet18").items()}, "npz")
  with pytest.raises(fa.OptionError, match="features.*w.npz has changed"):
    result.predict(x[:9])


@pytest.mark.parametrize("name, published", [("resnet18", 1.814), ("resnet50", 4.089)])
def test_operations_are_those_that_others_count(name, published, tmp_path):
  """Billions of products at 224 pixels in torchvision; its head has 0.002 of them."""
  path = save(tmp_path / "w.npz", random_residual(name), "npz")
  backbone = Backbone(name, weights=str(path))
  flops = networks.count_operations(backbone, (32, 32, 3), f"`features`={backbone}")
  assert flops / 2e9 == pytest.approx(published, abs=0.0025)
