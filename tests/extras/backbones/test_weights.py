"""Weights of another program against its forward pass in NumPy."""

import json

from flax import linen as nn
import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.extras.backbones import weights
from tests.extras.backbones.test_efficientnet import convolve
from tests.extras.backbones.test_torch_files import state_of, torch, write_zip
from tests.records.test_parameters import in_safetensors

SIDE, CLASSES = 6, 3
NAMES = {
  "Conv_0": "body.conv",
  "GroupNorm_0": "body.norm",
  "BatchNorm_0": "body.running",
  "Dense_0": "fc",
}
IMAGES = {"Dense_0": (4, SIDE, SIDE)}
__all__ = ["torch"]  # a fixture


class Twin(nn.Module):
  """The same network here: channels last."""

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Conv(4, (3, 3))(x)
    x = nn.relu(nn.GroupNorm(2, epsilon=1e-5)(x))
    x = nn.BatchNorm(use_running_average=not train)(x)
    return nn.Dense(CLASSES)(x.reshape(len(x), -1))


@pytest.fixture(scope="module")
def model():
  return fa.models.from_flax(Twin(), (SIDE, SIDE, 2))


def tensors():
  rng = np.random.default_rng(0)
  shapes = {
    "body.conv.weight": (4, 2, 3, 3),
    "body.conv.bias": (4,),
    "body.norm.weight": (4,),
    "body.norm.bias": (4,),
    "body.running.weight": (4,),
    "body.running.bias": (4,),
    "body.running.running_mean": (4,),
    "body.running.running_var": (4,),
    "fc.weight": (CLASSES, 4 * SIDE * SIDE),
    "fc.bias": (CLASSES,),
  }
  arrays = {
    name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()
  }
  arrays["body.running.running_var"] **= 2
  return arrays | {"body.running.num_batches_tracked": np.int64(3)}


def forward(t, image):
  """The network of torch, of an image [channels, height, width]."""
  x = convolve(image, t["body.conv.weight"], 1) + t["body.conv.bias"][:, None, None]
  groups = x.reshape(2, -1)
  groups = groups - groups.mean(1, keepdims=True)
  groups /= np.sqrt((groups**2).mean(1, keepdims=True) + 1e-5)
  x = groups.reshape(x.shape) * t["body.norm.weight"][:, None, None]
  x = np.maximum(x + t["body.norm.bias"][:, None, None], 0.0)
  gamma, beta, mean, variance = (
    t[f"body.running.{part}"][:, None, None]
    for part in ("weight", "bias", "running_mean", "running_var")
  )
  x = gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta
  return t["fc.weight"] @ x.reshape(-1) + t["fc.bias"]


def save(path, arrays, kind):
  if kind == "npz":
    np.savez(path, **arrays)
  else:
    pytest.importorskip("safetensors").numpy.save_file(
      {name: np.ascontiguousarray(array) for name, array in arrays.items()}, path
    )
  return path


def images(n):
  return np.random.default_rng(1).normal(size=(n, SIDE, SIDE, 2)).astype(np.float32)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "folder", "state_dict"])
def test_the_twin_computes_what_the_network_did(model, tmp_path, kind):
  """Kernels in another order of axes or pixels, or other statistics, change outputs."""
  if kind in ("safetensors", "folder"):
    pytest.importorskip("safetensors.numpy")
  arrays = path = tensors()
  if kind == "folder":
    save(tmp_path / "model.safetensors", arrays, "safetensors")
    path = tmp_path
  elif kind != "state_dict":
    path = save(tmp_path / f"net.{kind}", arrays, kind)
  loaded = fa.load_weights(path, model, NAMES, IMAGES)
  assert loaded.left == () and len(loaded.matched) == 10
  assert loaded.matched["params/GroupNorm_0/scale"] == "body.norm.weight"
  x = images(5)
  outputs = np.asarray(model.roles.whole.apply(loaded.params, x))
  expected = [forward(arrays, image.transpose(2, 0, 1)) for image in x]
  np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.program
def test_running_statistics_start_from_the_file(model):
  """A run whose rates are tiny evaluates the network as it was, not at mean 0."""
  arrays, x = tensors(), images(40)
  logits = np.array([forward(arrays, image.transpose(2, 0, 1)) for image in x])
  arrays["fc.bias"] = arrays["fc.bias"] - logits.mean(0)  # all classes occur
  y = (logits - logits.mean(0)).argmax(1)
  federation = fa.federate(
    fa.from_arrays(x, y, np.arange(40) % 3, num_classes=CLASSES), num_clients=3
  )
  result = fa.run(
    "fedavg",
    federation,
    model=model,
    init=fa.load_weights(arrays, model, NAMES, IMAGES).params,
    rounds=1,
    cohort_size=2,
    client_lr=1e-9,
    roles={"frozen": ["Conv_0", "GroupNorm_0", "BatchNorm_0"]},
    evaluate="local",
  )
  assert result.metrics["local"]["accuracy"][0, 0] == 1.0


def test_a_part_is_read_and_the_rest_reported(model):
  """A head of other classes stays as the seed draws it."""
  arrays = tensors()
  del arrays["fc.bias"]
  arrays["fc.weight"] = arrays["fc.weight"][:2]
  loaded = fa.load_weights(arrays | {"old": np.ones(3)}, model, NAMES, partial=True)
  assert "Dense_0" not in loaded.params["params"] and len(loaded.matched) == 8
  report = loaded.report()
  for text in (
    "params/Conv_0/kernel <- body.conv.weight",
    "missing: params/Dense_0/bias",
    "shape: fc.weight is (2, 144), params/Dense_0/kernel is (144, 3)",
    "left: old",
  ):
    assert text in report
  with pytest.raises(fa.OptionError, match="path.*fc.bias is a list"):
    fa.load_weights(arrays | {"fc.bias": ["a"]}, model, NAMES)


def test_a_folder_in_parts_is_read_and_one_without_weights_refused(model, tmp_path):
  pytest.importorskip("safetensors.numpy")
  names = [*tensors()]
  index = {name: f"part{number % 2}.safetensors" for number, name in enumerate(names)}
  for part in set(index.values()):
    of_part = {name: tensors()[name] for name in names if index[name] == part}
    save(tmp_path / part, of_part, "safetensors")
  with pytest.raises(fa.OptionError, match="path.*without weights"):
    fa.load_weights(tmp_path, model, NAMES, IMAGES)
  file = tmp_path / "model.safetensors.index.json"
  file.write_text(json.dumps({"weight_map": index}))
  assert len(fa.load_weights(tmp_path, model, NAMES, IMAGES).matched) == 10
  before = weights.source_of_weights(tmp_path, "`features`").sha256
  (tmp_path / "part1.safetensors").write_bytes(b"")
  assert weights.source_of_weights(tmp_path, "`features`").sha256 != before
  file.write_text(json.dumps({"weight_map": {"w": "../part0.safetensors"}}))
  with pytest.raises(fa.OptionError, match="path.*another folder"):
    fa.load_weights(tmp_path, model, NAMES, IMAGES)


def test_a_network_of_torch_and_its_twin_agree():
  """The same forward pass by torch itself, from its state_dict in memory."""
  torch = pytest.importorskip("torch")
  net = torch.nn.Sequential(
    torch.nn.Conv2d(2, 4, 3, padding=1),
    torch.nn.GroupNorm(2, 4),
    torch.nn.ReLU(),
    torch.nn.BatchNorm2d(4),
    torch.nn.Flatten(),
    torch.nn.Linear(4 * SIDE * SIDE, CLASSES),
  ).eval()
  torch.nn.init.normal_(net[3].running_mean)
  names = {"Conv_0": "0", "GroupNorm_0": "1", "BatchNorm_0": "3", "Dense_0": "5"}
  model = fa.models.from_flax(Twin(), (SIDE, SIDE, 2))
  loaded = fa.load_weights(net.state_dict(), model, names, IMAGES)
  outputs = np.asarray(model.roles.whole.apply(loaded.params, images(5)))
  with torch.no_grad():
    expected = net(torch.tensor(images(5).transpose(0, 3, 1, 2))).numpy()
  np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  "names, images, pattern",
  [
    ({}, None, "missing: .*params/Conv_0/bias"),
    (NAMES | {"Dense_0": "body.conv"}, None, "of another shape: .*Dense_0"),
    (NAMES | {"Dense_1": "fc"}, None, "names=Dense_1"),
    (NAMES, {"Dense_0": (5, 2, 2)}, "of another shape: fc.weight"),
  ],
)
def test_what_does_not_fit_is_listed(model, tmp_path, names, images, pattern):
  path = save(tmp_path / "net.npz", tensors(), "npz")
  with pytest.raises(fa.OptionError, match=pattern):
    fa.load_weights(path, model, names, images)


def test_what_is_left_is_said(model, tmp_path):
  path = save(tmp_path / "net.npz", tensors() | {"old.head": np.ones(3)}, "npz")
  assert fa.load_weights(path, model, NAMES, IMAGES).left == ("old.head",)


@pytest.mark.program
def test_a_run_goes_on_from_a_file_of_torch(torch, tmp_path):
  """Its first evaluation is of what the file has."""
  tensors_of_file = state_of(torch)
  write_zip(tmp_path / "net.pt", *tensors_of_file)
  model = fa.models.from_functions(
    lambda key: {"w": jax.random.normal(key, (2, 3, 4)), "h": jax.numpy.zeros(())},
    lambda params, x: (x @ params["w"].reshape(8, 3))[:, ::2] + params["h"],
    (8,),
  )
  loaded = fa.load_weights(tmp_path / "net.pt", model)
  assert loaded.left == ("row.t", "n")
  x = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
  y = (x @ np.arange(24).reshape(8, 3)).argmax(1)  # 0 or 2
  x, y = x[y != 1], y[y != 1] // 2
  federation = fa.federate(fa.from_arrays(x, y, np.arange(len(x)) % 3), num_clients=3)
  result = fa.run(
    "fedavg",
    federation,
    model=model,
    init=loaded.params,
    rounds=1,
    cohort_size=2,
    client_lr=1e-6,
    evaluate="local",
  )
  assert result.metrics["local"]["accuracy"][0, 0] == 1.0


def test_a_size_that_looks_like_a_pickle_is_a_size(tmp_path):
  """A header of safetensors of 128 bytes begins with a pickle's first byte."""
  pytest.importorskip("safetensors")
  array, path = np.arange(2, dtype=np.float32), tmp_path / "net.safetensors"
  in_safetensors(path, [("w", "F32", array)])
  missing = 128 - int.from_bytes(path.read_bytes()[:8], "little")
  in_safetensors(path, [("w" + "v" * missing, "F32", array)])
  assert path.read_bytes()[:1] == b"\x80"
  np.testing.assert_array_equal(*weights.read_tensors(path).values(), array)


def test_no_weights_are_refused_in_a_line(model, tmp_path):
  path = tmp_path / "net.bin"
  for content in (b"", b"\x80\x02}", b"PK\x03\x04", b"\x10" * 40):
    path.write_bytes(content)
    with pytest.raises(fa.OptionError, match=r"net\.bin") as error:
      fa.load_weights(path, model)
    assert "\n" not in str(error.value)
