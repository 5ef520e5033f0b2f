"""features=RUN:LAYER: what a layer of a finished run reads, as examples."""

import shutil

import jax
import numpy as np
import pytest

from experiments import run as run_command
import fedjax_alg as fa
from fedjax_alg.data import features
from fedjax_alg.extras.flower import setting
from fedjax_alg.runs.plan import from_keywords


@pytest.fixture(scope="module")
def body(tmp_path_factory):
  """The folder of a network that was trained on the digits for a round."""
  fed = fa.federate("digits", features="standardize", num_clients=4)
  folder = tmp_path_factory.mktemp("body") / "run"
  fa.run("fedavg", fed, model="mlp:12", rounds=1, participation=1, out_dir=folder)
  return folder


@pytest.fixture
def copy(body, tmp_path):
  """Its copy, which a test may change."""
  shutil.copytree(body, tmp_path / "body")
  return tmp_path / "body"


def deep(folder, layer="last"):
  return fa.federate("digits", features=f"{folder}:{layer}", num_clients=4)


def test_features_are_what_the_layer_reads(body):
  """Without it heads would be fitted to other numbers than the body computes.

  The oracle is NumPy on the stored parameters and the stored scale.
  """
  params = jax.tree.map(lambda a: a[0], fa.load_run(body).global_params())["params"]
  x = np.random.default_rng(0).uniform(size=(300, 8, 8, 1)).astype(np.float32)
  with np.load(body / "scaler.npz") as scale:
    z = ((x - scale["mean"]) * scale["factor"]).reshape(len(x), -1)
  first = params["Dense_0"]
  hidden = np.maximum(z @ first["kernel"] + first["bias"], 0)
  for layer, expected in (("last", hidden), ("Dense_1", hidden), ("Dense_0", z)):
    read = features.LayerFeatures(f"{body}:{layer}")
    np.testing.assert_allclose(read.compute(x), expected, atol=2e-5)
  assert read.compute(x[:0]).shape == (0, 64)


def test_heads_in_closed_form_and_ordinary_methods_read_them(body, tmp_path):
  fed = deep(body)
  assert fed.example_shape == (12,)
  head = fa.run("afl", fed, client_ridge=1.0, remove_ridge=False, evaluate="global")
  fa.run("fedavg", fed, rounds=1, participation=1, out_dir=tmp_path / "run")
  again = fa.load_run(tmp_path / "run")
  raw = np.random.default_rng(0).uniform(size=(5, 8, 8, 1)).astype(np.float32)
  assert again.predict(raw).shape == (5,)  # raw rows, through the body
  again.client_params(0)  # makes the data again
  plan = from_keywords("fedavg", fed, participation=1, rounds=1)
  with pytest.raises(fa.OptionError, match="features=.*an app"):
    setting.facts_of(plan.prepare())
  assert head.metrics["global"]["accuracy"][0, -1] > 0.3


def test_the_identity_of_a_run_has_the_content_of_its_body(copy, tmp_path, capsys):
  """A resumed run would else go on with the features of another body."""
  words = [
    "--algorithm=fedavg",
    "--num_clients=4",
    "--participation=1",
    f"--features={copy}:last",
    f"--out_dir={tmp_path / 'run'}",
    "--noprogress",
  ]
  assert run_command.main([*words, "--rounds=1"]) == 0
  assert run_command.main([*words, "--rounds=2"]) == 0
  fed = fa.federate("digits", features="standardize", num_clients=4)
  fa.run(
    "fedavg",
    fed,
    model="mlp:12",
    rounds=2,
    participation=1,
    out_dir=tmp_path / "other",
  )
  shutil.rmtree(copy)
  shutil.copytree(tmp_path / "other", copy)
  capsys.readouterr()
  assert run_command.main([*words, "--rounds=3"]) != 0
  error = capsys.readouterr().err
  assert "--features: " in error and "has changed since" in error
  with pytest.raises(fa.RunFolderError, match="has changed"):
    fa.load_run(tmp_path / "run").client_params(0)


def head(folder, where):
  """A softmax regression on the last layer of a run, read from its folder."""
  result = fa.run("fedavg", deep(folder), rounds=1, participation=1, evaluate="global")
  return result, fa.load_run(result.save(where))


RAW = np.random.default_rng(0).uniform(size=(5, 8, 8, 1)).astype(np.float32)


def test_who_reads_a_layer_keeps_the_hash_of_its_run(copy, tmp_path):
  """Accuracy would else fall from .95 to .15 without a word."""
  results = head(copy, tmp_path / "run")
  before = [result.predict(RAW) for result in results]
  np.testing.assert_array_equal(*before)
  shutil.move(copy, tmp_path / "before")
  fed = fa.federate("digits", features="standardize", num_clients=4)
  options = dict(model="mlp:12", rounds=1, participation=1, seeds=[1])
  fa.run("fedavg", fed, **options).save(copy)
  for words in ("has changed", "no such file or folder"):
    for result in results:  # in memory and loaded
      with pytest.raises(fa.OptionError, match=f"features=.*{words}"):
        result.predict(RAW)
    shutil.rmtree(copy, ignore_errors=True)
  shutil.move(tmp_path / "before", copy)
  for result, expected in zip(results, before):
    np.testing.assert_array_equal(result.predict(RAW), expected)


@pytest.mark.parametrize("name", ["scaler.npz", "config.json", "partition.npz"])
@pytest.mark.parametrize("text", [None, b"{}"])
def test_a_run_with_a_damaged_file_has_no_layers(copy, name, text):
  """Each file is listed in summary.json, so a missing one is damage, too."""
  (copy / name).unlink() if text is None else (copy / name).write_bytes(text)
  with pytest.raises(fa.OptionError, match=f"features=.*{name}") as error:
    deep(copy)
  assert "\n" not in str(error.value)


def test_two_runs_that_name_each_other_end(copy, tmp_path):
  """Each would else ask the other for its layer, without end."""
  first = tmp_path / "first"
  head(copy, first)
  head(first, copy)
  with pytest.raises(fa.OptionError, match="this run has changed"):
    deep(copy)
  for folder in (first, copy):
    with pytest.raises(fa.OptionError, match="this run has changed"):
      fa.load_run(folder).predict(RAW)


@pytest.mark.parametrize(
  "features, words",
  [
    ("hogs", "features=hogs: unknown, did you mean 'hog'"),
    ("BODY:", "name a layer of the run, or last"),
    ("BODY:Dense_7", "no layer of the model (it has Dense_0, Dense_1)"),
    ("/nowhere:last", "no such file or folder"),
  ],
)
def test_what_does_not_fit_is_refused_in_one_line(body, features, words):
  value = features.replace("BODY", str(body))
  with pytest.raises(fa.OptionError) as error:
    fa.run("afl", fa.federate("digits", features=value, num_clients=4))
  assert words in str(error.value) and "\n" not in str(error.value)


def test_other_examples_than_those_of_the_body_are_refused(body):
  with pytest.raises(fa.DataError, match=r"shape \(10,\), the model reads \(8, 8, 1\)"):
    fa.federate("diabetes", features=f"{body}:last", num_clients=4)
