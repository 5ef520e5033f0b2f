"""Parameters in files of other programs, and runs that start from them."""

import importlib.util
import json
import os
import pickle
import zipfile

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import files, models
from fedjax_alg.records import checksums, parameters
from fedjax_alg.runs import plan, programs
from tests import foreign, problems

HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None
FORMATS = [
  pytest.param(
    name,
    marks=pytest.mark.skipif(
      name == "safetensors" and not HAS_SAFETENSORS,
      reason="the package safetensors is missing",
    ),
  )
  for name in parameters.FORMATS
]


class Net(nn.Module):
  """A model of a user."""

  classes: int = 10

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Dense(6, name="encoder")(x.reshape(x.shape[0], -1)))
    return nn.Dense(self.classes, name="head")(x)


OPTIONS = dict(
  cohort_size=4, rounds=2, eval_every=2, evaluate=("local",), client_lr=0.5
)


@pytest.fixture(scope="module", name="fed")
def fixture_fed():
  return fa.federate("digits", partition="classes", num_clients=8, seed=0)


@pytest.fixture(scope="module", name="trained")
def fixture_trained(fed, tmp_path_factory):
  """A run with private heads, saved, and its global model without them."""
  with problems.quick_compilation():
    result = fa.run("fedavg", fed, model=Net(), roles={"personal": "head"}, **OPTIONS)
  return result, result.save(tmp_path_factory.mktemp("start") / "run")


def load_by_flax(path, kind):
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
    Net().apply(load_by_flax(path, kind), x), Net().apply(params, x)
  )
  # And it is read again.
  problems.assert_equal(parameters.read_parameters(path), parameters.flatten(params))
  digest = parameters.source(path).sha256
  assert digest == parameters.hash_arrays(parameters.flatten(params))
  result.export(path, kind, client=4)  # in its place
  assert parameters.source(path).sha256 != digest


@pytest.mark.program
def test_a_run_starts_from_a_part_of_another(fed, trained, tmp_path):
  """A frozen encoder of a run's folder, and a head of other classes."""
  result, folder = trained
  x, _ = fed.client(0)
  number = np.arange(len(x))
  few = fa.federate(fa.from_arrays(x, number % 3, number % 4), partition="natural")
  with problems.quick_compilation():
    run = fa.run(
      "fedavg",
      few,
      model=Net(3),
      init=folder,
      init_only="encoder",
      roles={"frozen": "encoder"},
      **OPTIONS,
    )
    tree = run.client_params(0)
    encoder = result.global_params()["params"]["encoder"]
    np.testing.assert_array_equal(
      tree["params"]["encoder"]["kernel"], encoder["kernel"][0]
    )
    assert run.facts["sources"]["init_from"]["sha256"] == (
      parameters.source(folder).sha256
    )
    saved = run.save(tmp_path / "made")
    # Given as a tree it is the same run, which needs it to be read again.
    source_params = jax.tree.map(lambda leaf: leaf[0], result.global_params())
    same = fa.run(
      "fedavg",
      few,
      model=Net(3),
      init=source_params,
      init_only="encoder",
      roles={"frozen": "encoder"},
      **OPTIONS,
    )
    assert same.state_hash() == run.state_hash()
    same_folder = same.save(tmp_path / "same")
    keywords = dict(federation=few, model=Net(3))
    np.testing.assert_equal(fa.load_run(saved, **keywords).client_params(0), tree)
    np.testing.assert_equal(
      fa.load_run(same_folder, init=source_params, **keywords).client_params(0), tree
    )
    for folder_, init, pattern in (
      (same_folder, None, "give load_run its init"),
      (same_folder, tree, "is not what the run started from"),
    ):
      with pytest.raises(fa.RunFolderError, match=pattern):
        fa.load_run(folder_, init=init, **keywords).client_params(0)


@pytest.mark.program
def test_what_a_run_starts_from_is_no_constant_of_its_programs(fed):
  """A large model would be compiled into them, and kept in the cache."""
  model = models.as_model("mlp:300", (8, 8), 10)
  init = jax.device_get(jax.jit(model.init)(jax.random.key(3)))
  prepared = plan.from_keywords(
    "fedavg", fed, model="mlp:300", init=init, **OPTIONS
  ).prepare()
  start, arguments = programs._start(prepared), programs._start_arguments(prepared)
  assert len(start.lower(*arguments).as_text()) < 4 * 64 * 300
  state = start(*arguments)
  problems.assert_equal(
    jax.tree.map(lambda leaf: np.asarray(leaf[0, 0]), state.models), init
  )


@pytest.mark.program
def test_what_cannot_be_exported(trained):
  result, _ = trained
  for arguments, pattern in (
    (dict(path=""), "path=: empty, give the path"),
    (dict(client=1, model=5), "model=5: only read without client"),
    (dict(), "client: clients have parameters of their own"),
    (dict(client=99), "client=99: must be"),
    (dict(client=0, format="onnx"), "format=onnx: must be one of safetens"),
  ):
    with pytest.raises(fa.OptionError, match=pattern):
      result.export(**{"path": "model"} | arguments)


@pytest.mark.parametrize(
  "tree, pattern",
  [
    ({"a": 1}, "init: "),
    ({}, "init: "),
    ({"a": {"b": np.arange(3)}}, "init: a/b is int64"),
    ({"a": [np.array([np.nan], np.float32)]}, "init: a/0 has NaN"),
  ],
)
def test_what_are_no_parameters(fed, tree, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    fa.run("fedavg", fed, init=tree)


def test_what_is_no_file_of_parameters(fed, tmp_path):
  (tmp_path / "text").write_text("hello")
  for path, pattern in (
    (tmp_path / "none", "no such file"),
    (tmp_path, "neither the folder of a finished run nor"),
  ):
    with pytest.raises(fa.OptionError, match=f"init={path}: {pattern}"):
      fa.run("fedavg", fed, init=path)
  with pytest.raises(fa.OptionError, match="text: (damaged|is no .npz)"):
    fa.run("fedavg", fed, init=tmp_path / "text")


TREE = {
  "params": {
    "layers": [
      {"w": np.arange(6, dtype=np.float32).reshape(2, 3)},
      {"w": np.ones((), np.float32)},
    ]
  }
}


def export(path, kind, tree=None):
  parameters.write_parameters(path, TREE if tree is None else tree, kind)
  return path


def contents(folder):
  """path -> what is there."""
  return {
    path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
  }


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_replaces_an_export_alone(tmp_path, kind):
  """Told by its checksums: what was edited or is of somebody else stays."""
  path = export(tmp_path / "model", kind)
  export(path, kind, jax.tree.map(lambda leaf: leaf + 1, TREE))
  assert parameters.read_parameters(path)["params/layers/1/w"] == 2  # in its place
  assert {file.name for file in tmp_path.iterdir()} == {"model", "model.sha256"}
  if kind == "orbax":
    (path / "notes").write_text("mine")
  else:
    path.write_bytes(path.read_bytes()[:-1])
  before = contents(tmp_path)
  with pytest.raises(fa.OptionError, match="only an earlier export is replac"):
    export(path, kind)
  assert contents(tmp_path) == before


@pytest.mark.parametrize(
  "make, pattern",
  [
    (lambda path: path.write_text("thesis"), "is no export with its checksums"),
    (
      lambda path: (
        np.savez(f"{path}.npz", w=np.zeros(3)) or os.rename(f"{path}.npz", path)
      ),
      "is no export",
    ),
    (os.mkfifo, "is a device, a pipe or a socket"),
    (lambda path: path.symlink_to("/dev/null"), "is a device, a pipe"),
    (lambda path: path.symlink_to(os.path.abspath(__file__)), "is no export"),
    (
      lambda path: (path.mkdir(), (path / "mine").write_text("mine")),
      "(is a folder|holds files without checksums)",
    ),
  ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_else_is_replaced(tmp_path, kind, make, pattern):
  path = tmp_path / "place"
  make(path)
  before, link = contents(tmp_path), path.is_symlink()
  with pytest.raises(fa.OptionError, match=f"^path={path}: {pattern}") as caught:
    export(path, kind)
  assert contents(tmp_path) == before and path.is_symlink() == link
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_free_or_empty_is_written(tmp_path, kind):
  path = tmp_path / "new" / "model"
  path.parent.mkdir()
  path.touch()
  (path.parent / "model.partial").write_text("mine")
  export(path, kind)
  assert (path.parent / "model.partial").read_text() == "mine"
  path.with_name("other.sha256").write_text("not of an export")
  with pytest.raises(fa.OptionError, match="other.sha256"):
    export(path.with_name("other"), kind)
  export(path.with_name("dots.."), kind)
  for name in (".", "..", "/"):
    with pytest.raises(fa.OptionError, match="^path="):
      export(path.parent / name, kind)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_flipped_bit_is_found(tmp_path, kind):
  """In any file of an export, by init as by export."""
  path = export(tmp_path / "model", kind)
  digest = parameters.source(path).sha256
  for file in (
    [path] if path.is_file() else filter(lambda entry: entry.is_file(), path.rglob("*"))
  ):
    raw = file.read_bytes()
    for where in {0, len(raw) // 2, len(raw) - 1} if raw else ():
      file.write_bytes(raw[:where] + bytes([raw[where] ^ 1]) + raw[where + 1 :])
      with pytest.raises(fa.OptionError, match="model: "):
        parameters.read_parameters(path)
    file.write_bytes(raw)
  assert parameters.source(path).sha256 == digest
  # What sha256sum writes is compared too, where it is there; else nothing is.
  path.with_name("model.sha256").unlink()
  assert parameters.source(path).sha256 == digest
  path.with_name("model.sha256").write_text(f"{'0' * 64}  a/model\n")
  if kind == "orbax":  # not a checksum of ours
    parameters.read_parameters(path)
    return
  with pytest.raises(fa.OptionError, match="is not as it was written"):
    parameters.read_parameters(path)
  path.with_name("model.sha256").write_text(files.sha256(path).upper())
  parameters.read_parameters(path)
  path.with_name("model.sha256").write_text("what is this?")
  with pytest.raises(fa.OptionError, match="model.sha256: has no checksums"):
    parameters.read_parameters(path)


@pytest.mark.parametrize(
  "place, pattern",
  [
    ("fifo", "cannot be read .*fifo: no regular file"),
    ("/dev/zero", "cannot be read .*no regular file"),
    ("/", "neither the folder of a finished run nor"),
    ("pipes", "cannot be read .*pipes/inside: no regular file"),
  ],
)
def test_what_never_ends_is_not_read(tmp_path, monkeypatch, place, pattern):
  """And no folder is walked that is none of ours."""
  os.mkfifo(tmp_path / "fifo")
  (tmp_path / "pipes").mkdir()
  (tmp_path / "pipes" / "_METADATA").write_text("{}")
  os.mkfifo(tmp_path / "pipes" / "inside")
  if place == "/":
    monkeypatch.setattr(checksums.os, "walk", None)
  with pytest.raises(fa.OptionError, match=pattern):
    parameters.read_parameters(tmp_path / place)


def in_safetensors(path, arrays):
  """Writes (name, type, array) as the format says, with any type."""
  header, data = [], b""
  for name, kind, array in arrays:
    end = len(data) + array.nbytes
    header.append(
      f'"{name}": '
      + json.dumps(
        {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), end]}
      )
    )
    data += array.tobytes()
  text = ("{" + ", ".join(header) + "}").encode()
  path.write_bytes(len(text).to_bytes(8, "little") + text + data)
  return path


@pytest.mark.skipif(not HAS_SAFETENSORS, reason="safetensors is missing")
def test_floats_of_every_size(tmp_path):
  numbers = np.array([[1.5, -2.0], [0.25, 0.0]], np.float32)
  kinds = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
  }
  path = in_safetensors(
    tmp_path / "a", [(name, name, numbers.astype(kind)) for name, kind in kinds.items()]
  )
  read = parameters.read_parameters(path)
  assert read.keys() == kinds.keys()
  for array in read.values():
    np.testing.assert_array_equal(array, numbers, strict=True)
  in_safetensors(path, [("a/b", "I32", numbers.astype(np.int32))])
  with pytest.raises(fa.OptionError, match="a/b is int32, must be floats"):
    parameters.read_parameters(path)


@pytest.mark.skipif(not HAS_SAFETENSORS, reason="safetensors is missing")
@pytest.mark.parametrize("size", [0x80, 0x280, 0x580])
def test_a_size_that_looks_like_a_pickle_is_a_size(tmp_path, size):
  """One of 32 headers is so long that its size begins with a pickle's first byte."""
  array, path = np.arange(2, dtype=np.float32), tmp_path / "a"
  in_safetensors(path, [("w", "F32", array)])
  missing = size - int.from_bytes(path.read_bytes()[:8], "little")
  in_safetensors(path, [("w" + "v" * missing, "F32", array)])
  assert path.read_bytes()[:8] == size.to_bytes(8, "little")
  (read,) = parameters.read_parameters(path).values()
  np.testing.assert_array_equal(read, array)


def test_two_arrays_of_one_name_are_refused(fed, tmp_path):
  """One of the two would be taken without a word."""
  kernel = np.zeros((64, 10), np.float32)
  both = {
    "params/kernel": kernel,
    "kernel": kernel + 1,
    "bias": np.zeros(10, np.float32),
  }
  np.savez(tmp_path / "both.npz", **both)
  for init in (tmp_path / "both.npz", both):
    with pytest.raises(fa.OptionError, match="has both kernel and params/kern"):
      fa.run("fedavg", fed, init=init)
  np.savez(tmp_path / "a.npz", w=kernel)
  with (
    zipfile.ZipFile(tmp_path / "a.npz", "a") as file,
    pytest.warns(UserWarning, match="Duplicate"),
  ):
    file.writestr("w.npy", zipfile.ZipFile(tmp_path / "a.npz").read("w.npy"))
  places = [tmp_path / "a.npz"]
  if HAS_SAFETENSORS:
    places.append(
      in_safetensors(tmp_path / "a", [("w", "F32", kernel), ("w", "F32", kernel)])
    )
  for path in places:
    with pytest.raises(fa.OptionError, match="damaged"):
      parameters.read_parameters(path)


def test_a_file_that_was_written_again_is_read_again(tmp_path):
  """Also where its size and the time of writing are the same."""
  path = export(tmp_path / "a", "npz")
  time = path.stat().st_mtime_ns
  assert parameters.read_parameters(path)["params/layers/1/w"] == 1
  export(path, "npz", jax.tree.map(lambda leaf: leaf + 1, TREE))
  os.utime(path, ns=(time, time))
  assert parameters.read_parameters(path)["params/layers/1/w"] == 2


def test_a_missing_package_is_named(monkeypatch, tmp_path):
  monkeypatch.setattr(parameters.importlib, "import_module", _missing)
  with pytest.raises(fa.OptionError, match=r"pip install safetensors, or fed"):
    parameters.write_parameters(
      tmp_path / "a", {"a": np.zeros(1, np.float32)}, "safetensors"
    )


def _missing(name):
  raise ImportError(name)


@pytest.mark.parametrize(
  "name, options, pattern",
  [
    ("afl", {}, "init: "),
    ("fesem", {}, "group_init=independent: .* would all start from init"),
  ],
)
def test_methods_that_start_otherwise(fed, name, options, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    fa.run(name, fed, init={"a": np.zeros(1, np.float32)}, **options)
  with pytest.raises(fa.OptionError, match="init_only=a: "):
    fa.run("fedavg", fed, init_only="a")


NET = foreign.Module()


@pytest.mark.parametrize(
  "init, pattern",
  [
    (NET.state_dict(), "init: 0.bias is a Tensor"),
    (list(NET.state_dict().values()), "init: 0 is a Tensor"),
    (NET, "init: is a Module"),
    (foreign.Tensor(np.ones(3)), "init: is a Tensor"),
  ],
)
def test_parameters_of_torch_are_met_with_the_names_that_are_needed(fed, init, pattern):
  """NumPy's TypeError said nothing of it."""
  with pytest.raises(fa.OptionError, match=f"^{pattern}") as error:
    fa.run("fedavg", fed, init=init, model="mlp:5", cohort_size=2)
  assert "\n" not in str(error.value)
  assert str(error.value).endswith(
    "; the model has Dense_0/bias [5], Dense_0/kernel [64, 5], Dense_1/bias [10], "
    "Dense_1/kernel [5, 10]"
  )


def test_files_of_other_libraries_are_named(fed, tmp_path):
  """A file of torch.save was taken for an .npz with arrays of texts."""
  zips = {"torch.save": "net/data.pkl", "Keras": "model.weights.h5"}
  for place, (library, member) in enumerate(zips.items()):
    with zipfile.ZipFile(tmp_path / str(place), "w") as file:
      file.writestr(member, b"x")
      file.writestr("net/.data/serialization_id", b"1")
    with pytest.raises(fa.OptionError, match=f"init=.*: a file of {library}: .*kernel"):
      fa.run("fedavg", fed, init=tmp_path / str(place), cohort_size=2)
  for name, content, library in (
    ("p.pkl", pickle.dumps({"a": 1}), "pickle .* never loaded"),
    ("k.h5", b"\x89HDF\r\n\x1a\n", "Keras"),
  ):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(fa.OptionError, match=f"{name}: a file of {library}"):
      parameters.read_parameters(tmp_path / name)


@pytest.mark.skipif(not HAS_SAFETENSORS, reason="safetensors is missing")
def test_a_state_dict_with_counters_is_one_of_torch(fed, tmp_path):
  path = in_safetensors(
    tmp_path / "a",
    [
      ("1.num_batches_tracked", "I64", np.array(3)),
      ("0.weight", "F32", np.ones((2, 2), np.float32)),
    ],
  )
  with pytest.raises(fa.OptionError, match="a: a state_dict of torch: .*kernel"):
    fa.run("fedavg", fed, init=path, cohort_size=2)
