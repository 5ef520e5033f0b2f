"""Features of a pre-trained network as an option of the data."""

import importlib.util

import numpy as np
import pytest

from experiments import run
import fedjax_alg as fa
from fedjax_alg import own
from fedjax_alg.data.features import FEATURES, Backbone, LayerFeatures, OwnFeatures
from fedjax_alg.extras.backbones import efficientnet, features, networks
from fedjax_alg.part import read_part
from tests.extras.backbones.test_efficientnet import random_tensors

pytestmark = pytest.mark.program

SMALL = Backbone(size=32, layer="block2")


@pytest.fixture(scope="module")
def tensors():
  return random_tensors()


@pytest.fixture
def weights(tensors, monkeypatch, tmp_path):
  """Random weights, and a folder of its own for what is stored."""
  monkeypatch.setattr(networks, "read_weights", lambda *_: (tensors, {}))
  monkeypatch.setattr(features, "CACHE", str(tmp_path / "stored"))
  monkeypatch.setattr(features, "_CHUNK", 300)
  return tmp_path / "stored"


def images(n, *shape):
  return np.random.default_rng(3).integers(0, 256, (n, *shape), np.uint8)


def test_a_federation_of_features_is_trained_and_predicts_raw_images(weights):
  x, y = images(60, 8, 8), np.arange(60) % 3
  federation = fa.federate(
    fa.from_arrays(x, y, np.arange(60) % 4, x_test=x[:9], y_test=y[:9]), features=SMALL
  )
  assert federation.data.train.x.shape[1:] == (24,)
  result = fa.run("afl", federation)
  expected = result.metrics["global"]["accuracy"][0, -1]
  assert (result.predict(x[:9]) == y[:9]).mean() == pytest.approx(expected)


@pytest.mark.parametrize("backbone", [SMALL, Backbone(size=0, layer="block2")])
def test_each_client_computes_its_features_once(weights, backbone, tmp_path):
  """They are in the costs of a run, of its folder and of its summary."""
  x, y = images(40, 64), np.arange(40) % 3  # flat pixels of 8 x 8
  federation = fa.federate(
    fa.from_arrays(x, y, np.arange(40) % 4, x_test=x[:9], y_test=y[:9]),
    features=backbone,
  )
  side = backbone.size or 8
  of_all = (
    efficientnet.count_flops(side, side, "block2") * federation.data.train.size.sum()
  )
  result = fa.run("fedncm", federation)
  folder = result.save(tmp_path / "run")
  for of in (result, fa.load_run(folder)):
    np.testing.assert_array_equal(
      of.costs("feature_flops"), [[of_all] * len(of.rounds)]
    )
  raw = fa.federate(fa.from_arrays(x, y, np.arange(40) % 4), features="none")
  assert raw.feature_flops == 0.0


def test_an_image_has_the_same_features_single_and_in_any_form(weights):
  x = images(40, 8, 8, 1)
  together = features.compute_features(SMALL, x)
  for form in (x[5:6], x[5:6, :, :, 0], x[5:6].reshape(1, 64)):
    single = features.compute_features(SMALL, form)[0]
    np.testing.assert_allclose(single, together[5], rtol=1e-5)
  numbers = (x[5:6] / 255).astype(np.float32)  # as an image of [0, 1]
  np.testing.assert_allclose(
    features.compute_features(SMALL, numbers)[0], together[5], rtol=1e-5
  )
  assert np.abs(
    features.compute_features(Backbone(size=16, layer="block2"), x) - together
  ).max()


def test_the_default_side_is_the_same_features():
  """Else a run that states it would be another run, and compute its features again."""
  for network, side in (("efficientnet_lite0", 128), ("resnet18", 224)):
    assert Backbone(network, size=side) == Backbone(network)
    assert "size" not in str(Backbone(network, size=side))
  assert Backbone(size=224) != Backbone()


def test_a_dry_run_computes_no_features(weights, tmp_path, capsys):
  """Else the hours of a study would be told after an hour; all else is as with them."""
  x, y = images(700, 8, 8), np.arange(700) % 3
  path = tmp_path / "images.npz"
  np.savez(path, x_train=x[:600], y_train=y[:600], x_test=x[600:], y_test=y[600:])
  words = [
    *("--algorithm=fedavg", f"--dataset=npz:{path}", f"--features={SMALL}"),
    *("--num_clients=6", "--rounds=2", "--dry_run", "--noprogress"),
  ]

  def told():
    assert run.main(words) == 0
    lines = (line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    return {name: rest for name, *rest in lines}

  before = told()
  assert not weights.exists()
  (text,) = before["features_s"]
  assert text.endswith(" for 700 of 700 examples") and float(text.split()[0]) > 0
  features.compute_features(SMALL, x[:300])
  assert told()["features_s"][0].endswith("for 400 of 700 examples, 300 are stored")
  features.compute_features(SMALL, x[300:600])
  for name in ("parameters", "total_bytes", "data_mb"):
    assert told()[name] == before[name]


def test_features_of_images_in_files_are_those_in_memory(weights, tmp_path, capsys):
  """Chunk by chunk into a file; a dry run estimates them likewise."""
  x, y = images(700, 8, 8, 1), np.arange(700) % 3
  parts = zip(range(7), np.split(x, 7), np.split(y, 7))
  folder = fa.write_clients(tmp_path / "clients", parts)
  words = [
    *("--algorithm=fedavg", f"--dataset=clients:{folder}", f"--features={SMALL}"),
    *("--data_on=disk", "--rounds=2", "--cohort_size=2", "--dry_run", "--noprogress"),
  ]
  assert run.main(words) == 0
  assert " for 700 of 700 examples" in capsys.readouterr().out
  assert not weights.exists()
  rows = features.compute_features(SMALL, fa.open_clients(folder).x_train)
  assert any(weights.iterdir())
  for stored in weights.iterdir():
    stored.unlink()
  assert rows[:].tobytes() == features.compute_features(SMALL, x).tobytes()


def test_an_interrupted_computation_goes_on(weights, monkeypatch):
  """Of 700 images, in files of 300, the first 300 are not computed again."""
  x, computed, in_batches = images(700, 4, 4), [], features.map_blocks

  def stop(program, chunk, rows):
    computed.append(len(chunk))
    if len(computed) == 2:
      raise KeyboardInterrupt
    return in_batches(program, chunk, rows)

  monkeypatch.setattr(features, "map_blocks", stop)
  with pytest.raises(KeyboardInterrupt):
    features.compute_features(SMALL, x)
  first = features.compute_features(SMALL, x)
  assert computed == [300, 300, 300, 100]
  np.testing.assert_array_equal(features.compute_features(SMALL, x), first)
  assert len(computed) == 4  # nothing: all is stored
  stored = min(weights.glob("*.npz"))
  stored.write_bytes(stored.read_bytes()[:-100])  # a damaged file is made again
  np.testing.assert_array_equal(features.compute_features(SMALL, x), first)
  assert len(computed) == 5


@pytest.mark.parametrize(
  "network, x",
  [
    (SMALL, images(3, 8, 8, 2)),
    (SMALL, images(3, 7)),
    (Backbone(layer="block16"), images(3, 8, 8)),
  ],
)
def test_what_is_no_image_or_layer_is_refused(weights, network, x):
  with pytest.raises(ValueError, match="features"):
    features.compute_features(network, x)


CODE = """
import numpy as np

calls = []


def embed(x):
  calls.append(len(x))
  return x.reshape(len(x), -1)[:, :5] * 2.0


def centered(x):
  return embed(x) - embed(x).mean(0)


def lengths(texts):
  return [[len(text), text.count("a")] for text in texts]


flat, broken, scalar = (lambda x: x.sum((1, 2))), (lambda x: 1 / 0), 3.0
ragged = lambda x: [[1.0] * (n + 1) for n in range(len(x))]
infinite = lambda x: np.full((len(x), 2), np.inf)
"""


@pytest.fixture
def own_file(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(CODE)
  return path


def test_a_users_function_is_called_for_new_examples_only(weights, own_file):
  """In batches, of images in [0, 1]; a changed file is called again."""
  x, y = images(300, 4, 4), np.arange(300) % 3
  source = fa.from_arrays(x, y, np.arange(300) % 4, x_test=x[:9], y_test=y[:9])
  text = f"{own_file}:embed"
  federation = fa.federate(source, features=text)
  assert federation.data.train.x.shape[1:] == (5,)
  calls = own.load(text, "features")[0].__globals__["calls"]
  assert max(calls) == 64 and 300 < sum(calls) < 320
  before = len(calls)
  result = fa.run("afl", fa.federate(source, features=text))
  assert len(calls) <= before + 2  # the few test rows are not stored
  expected = result.metrics["global"]["accuracy"][0, -1]
  assert (result.predict(x[:9]) == y[:9]).mean() == pytest.approx(expected)
  rows = features.compute_own_features(OwnFeatures(text), x[:3])
  np.testing.assert_allclose(rows, x[:3].reshape(3, 16)[:, :5] / 127.5, rtol=1e-6)
  own_file.write_text(CODE.replace("2.0", "3.0"))
  with pytest.raises(fa.OptionError, match="features=.*mine.py has changed"):
    result.predict(x[:9])


@pytest.mark.parametrize(
  "name, pattern",
  [
    ("centered", "an example alone"),
    ("flat", "shape"),
    ("broken", "ZeroDivisionError.*line"),
    ("scalar", "function"),
    ("ragged", "lists of different lengths"),
    ("infinite", "infinite"),
    ("none", "has no none"),
  ],
)
def test_a_function_that_makes_no_features_is_refused(weights, own_file, name, pattern):
  with pytest.raises(
    fa.OptionError, match=f"features=.*mine.py:{name}.*{pattern}"
  ) as e:
    features.compute_own_features(OwnFeatures(f"{own_file}:{name}"), images(70, 4, 4))
  assert "\n" not in str(e.value)


def test_a_function_is_named_beside_layers_of_runs():
  """Both have a colon; a file without a name of what it holds is refused."""
  assert isinstance(read_part("features", "out/run:last", FEATURES), LayerFeatures)
  assert isinstance(read_part("features", "net.py:embed", FEATURES), OwnFeatures)
  with pytest.raises(fa.OptionError, match="features=net.py"):
    read_part("features", "net.py", FEATURES)


def test_a_network_of_torch_is_a_function_of_features(weights, tmp_path):
  """In training mode its dropout is noticed."""
  torch = pytest.importorskip("torch")
  path = tmp_path / "net.py"
  path.write_text(
    "import torch\n"
    "torch.manual_seed(0)\n"
    "net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8),"
    " torch.nn.Dropout(0.5))\n"
    "embed = lambda x: net(torch.tensor(x))\n"
  )
  x = images(20, 4, 4)
  with pytest.raises(fa.OptionError, match=r"features=.*eval\(\)"):
    features.compute_own_features(OwnFeatures(f"{path}:embed"), x)
  path.write_text(path.read_text() + "net.eval()\n")
  embed = own.load(f"{path}:embed", "features")[0]
  with torch.no_grad():
    expected = embed(features.none(x)).numpy()
  rows = features.compute_own_features(OwnFeatures(f"{path}:embed"), x)
  np.testing.assert_allclose(rows, expected, rtol=1e-5)


def test_texts_are_read_by_features_of_texts_only(weights, own_file):
  texts = [f"{'a' * (n % 7)} tweet {n}" for n in range(40)]
  y = np.arange(40) % 7 > 3
  source = fa.from_arrays(texts, y, np.arange(40) % 4, x_test=texts[:9], y_test=y[:9])
  text = f"{own_file}:lengths"
  federation = fa.federate(source, features=text)
  assert federation.data.train.x.shape[1:] == (2,)
  result = fa.run("afl", federation)
  assert (result.predict(texts[:9]) == y[:9]).mean() == pytest.approx(
    result.metrics["global"]["accuracy"][0, -1]
  )
  for option in ("none", "standardize", "hog", "backbone"):
    with pytest.raises(fa.OptionError, match=f"features={option}.*texts"):
      fa.federate(source, features=option)
  with pytest.raises(fa.OptionError, match="features=backbone:wordllama.*texts"):
    fa.federate("digits", num_clients=3, features="backbone:wordllama")
  with pytest.raises(fa.OptionError, match="size=64"):
    Backbone("wordllama", size=64)
  with pytest.raises(fa.OptionError, match="`?x`?: row 1 is no text"):
    fa.from_arrays(np.array([b"a", b"\xff"]), [0, 1])


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec(networks.PACKAGE) is None, reason="the weights are missing"
)
def test_the_real_weights_tell_pictures_apart(monkeypatch, tmp_path):
  """A flower and a palace of scikit-learn, by the network's own last layer."""
  from sklearn.datasets import load_sample_image

  from fedjax_alg.extras.backbones.torch_files import read_torch

  monkeypatch.setattr(features, "CACHE", str(tmp_path))
  tensors = read_torch(networks.find_weights("`features`"))
  for name, classes in (("china.jpg", {663, 698, 832}), ("flower.jpg", {985, 986})):
    phi = features.compute_features(Backbone(size=224), load_sample_image(name)[None])[
      0
    ]
    scores = tensors["_fc.weight"] @ phi + tensors["_fc.bias"]
    assert set(np.argsort(-scores)[:5]) & classes, name
