"""Parameters in files of other programs, and runs that start from them."""

import importlib.util
import os

from flax import linen as nn, traverse_util
import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.records import parameters
from fedjax_alg.runs import plan, programs
from tests import problems

HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None
FORMATS = [pytest.param(name, marks=pytest.mark.skipif(
    name == "safetensors" and not HAS_SAFETENSORS,
    reason="the package safetensors is missing"))
           for name in parameters.FORMATS]


class Net(nn.Module):
  """A model of a user."""

  classes: int = 10

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Dense(6, name="encoder")(x.reshape(x.shape[0], -1)))
    return nn.Dense(self.classes, name="head")(x)


OPTIONS = dict(cohort_size=4, rounds=2, eval_every=2, evaluate=("local",),
               client_lr=0.5)


@pytest.fixture(scope="module", name="fed")
def fixture_fed():
  return fa.federate("digits", partition="classes", num_clients=8, seed=0)


@pytest.fixture(scope="module", name="trained")
def fixture_trained(fed, tmp_path_factory):
  """A run with private heads, saved, and its global model without them."""
  with problems.quick_compilation():
    result = fa.run("fedavg", fed, model=Net(), roles={"personal": "head"},
                    **OPTIONS)
  return result, result.save(tmp_path_factory.mktemp("start") / "run")


def loaded(path, kind):
  """The arrays of a file as flax alone reads them."""
  if kind == "orbax":
    import orbax.checkpoint as ocp
    with ocp.StandardCheckpointer() as reader:
      return reader.restore(path)
  if kind == "npz":
    flat = dict(np.load(path))
  else:
    from safetensors import numpy as safetensors
    flat = safetensors.load_file(path)
  return traverse_util.unflatten_dict(flat, sep="/")


@pytest.mark.program
@pytest.mark.parametrize("kind", FORMATS)
def test_flax_alone_reads_what_is_exported(trained, tmp_path, kind):
  result, _ = trained
  path = result.export(tmp_path / "model", kind, client=3)
  x = np.random.default_rng(0).random((5, 8, 8)).astype(np.float32)
  params = result.client_params(3)
  np.testing.assert_array_equal(
      Net().apply(loaded(path, kind), x), Net().apply(params, x))
  # And it is read again.
  problems.assert_equal(parameters.read(path), parameters.named(params))
  digest = parameters.source(path).sha256
  assert digest == parameters.sha256(parameters.named(params))
  result.export(path, kind, client=4)  # in its place
  assert parameters.source(path).sha256 != digest


def test_a_file_that_was_written_again_is_read_again(tmp_path):
  """Also where size and time of writing are the same."""
  path, read = tmp_path / "a.npz", []
  for value in (1.0, 2.0):
    np.savez(path, **{"params/w": np.full(3, value, np.float32)})
    os.utime(path, (1, 1))
    read.append((path.stat().st_size, float(
        parameters.read(path)["params/w"][0])))
  assert read[0][0] == read[1][0] and [one[1] for one in read] == [1.0, 2.0]


@pytest.mark.program
def test_a_run_starts_from_a_part_of_another(fed, trained, tmp_path):
  """A frozen encoder of a run's folder, and a head of other classes."""
  result, folder = trained
  x, _ = fed.client(0)
  number = np.arange(len(x))
  few = fa.federate(fa.from_arrays(x, number % 3, number % 4),
                    partition="natural")
  with problems.quick_compilation():
    made = fa.run("fedavg", few, model=Net(3), init=folder, init_only="encoder",
                  roles={"frozen": "encoder"}, **OPTIONS)
    tree = made.client_params(0)
    encoder = result.global_params()["params"]["encoder"]
    np.testing.assert_array_equal(
        tree["params"]["encoder"]["kernel"], encoder["kernel"][0])
    assert made.facts["sources"]["init_from"]["sha256"] == (
        parameters.source(folder).sha256)
    saved = made.save(tmp_path / "made")
    # Given as a tree it is the same run, which needs it to be read again.
    given = jax.tree.map(lambda leaf: leaf[0], result.global_params())
    same = fa.run("fedavg", few, model=Net(3), init=given, init_only="encoder",
                  roles={"frozen": "encoder"}, **OPTIONS)
    assert same.state_hash() == made.state_hash()
    other = same.save(tmp_path / "same")
    again = dict(federation=few, model=Net(3))
    np.testing.assert_equal(fa.load_run(saved, **again).client_params(0), tree)
    np.testing.assert_equal(
        fa.load_run(other, init=given, **again).client_params(0), tree)
    for folder_, init, said in (
        (other, None, "give load_run its init"),
        (other, tree, "is not what the run started from")):
      with pytest.raises(fa.RunFolderError, match=said):
        fa.load_run(folder_, init=init, **again).client_params(0)


@pytest.mark.program
def test_what_a_run_starts_from_is_no_constant_of_its_programs(fed):
  """A large model would be compiled into them, and kept in the cache."""
  model = models.as_model("mlp", (8, 8), 10, hidden=(300,))
  init = jax.device_get(model.init(jax.random.key(3)))
  prepared = plan.from_keywords(
      "fedavg", fed, model="mlp", hidden=(300,), init=init, **OPTIONS).prepare()
  text = programs._start(prepared).lower(
      *programs._start_arguments(prepared)).as_text()
  assert len(text) < 4 * 64 * 300
  state = jax.jit(programs._start(prepared))(
      *programs._start_arguments(prepared))
  problems.assert_equal(
      jax.tree.map(lambda leaf: np.asarray(leaf[0, 0]), state.models), init)


def test_what_cannot_be_exported(trained):
  result, _ = trained
  for arguments, said in (
      (dict(), "client: clients have parameters of their own"),
      (dict(client=99), "client=99: must be"),
      (dict(client=0, format="onnx"), "format=onnx: must be one of safetens")):
    with pytest.raises(fa.OptionError, match=said):
      result.export("model", **arguments)


@pytest.mark.parametrize("tree, said", [
    ({"a": 1}, "init: a is an int"), ({}, "init: has no arrays"),
    ({"a": {"b": np.arange(3)}}, "init: a/b is int64, must be floats"),
    ({"a": [np.array([np.nan], np.float32)]}, "init: a/0 has NaN")])
def test_what_are_no_parameters(fed, tree, said):
  with pytest.raises(fa.OptionError, match=said):
    fa.run("fedavg", fed, init=tree)


def test_what_is_no_file_of_parameters(fed, tmp_path):
  (tmp_path / "text").write_text("hello")
  for path, said in ((tmp_path / "none", "no such file"),
                     (tmp_path, "neither the folder of a finished run nor")):
    with pytest.raises(fa.OptionError, match=f"init={path}: {said}"):
      fa.run("fedavg", fed, init=path)
  with pytest.raises(fa.OptionError, match="text: (damaged|is no .npz)"):
    fa.run("fedavg", fed, init=tmp_path / "text")


def test_a_missing_package_is_named(monkeypatch, tmp_path):
  monkeypatch.setattr(parameters.importlib, "import_module", _missing)
  with pytest.raises(fa.OptionError, match=r"pip install safetensors, or fed"):
    parameters.write(
        tmp_path / "a", {"a": np.zeros(1, np.float32)}, "safetensors")


def _missing(name):
  raise ImportError(name)


@pytest.mark.parametrize("name, more, said", [
    ("afl", {}, "init: afl fits every layer in closed form"),
    ("fesem", {}, "group_init=independent: .* would all start from init")])
def test_methods_that_start_otherwise(fed, name, more, said):
  with pytest.raises(fa.OptionError, match=said):
    fa.run(name, fed, init={"a": np.zeros(1, np.float32)}, **more)
  with pytest.raises(fa.OptionError, match="init_only=a: not read without ini"):
    fa.run("fedavg", fed, init_only="a")
