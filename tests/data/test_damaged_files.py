"""Damaged data files: read, or refused in one line."""

import io
import json

from hypothesis import HealthCheck, given, settings
import numpy as np
import pytest

from fedjax_alg.data import DataError, federate, npz_source
from fedjax_alg.data.idx import load_idx
from fedjax_alg.data.leaf import load_leaf
from fedjax_alg.engine.sampling import AvailabilityFile
from fedjax_alg.errors import OptionError
from fedjax_alg.runs.options import RunOptions
from tests import fuzzing
from tests.data.test_idx import encode

FUZZED = settings(
  max_examples=40,
  suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)).astype(np.float32), RNG.integers(0, 4, 40)


def archive():
  file = io.BytesIO()
  np.savez(
    file,
    x_train=X,
    y_train=Y,
    x_test=X,
    y_test=Y,
    client_train=np.arange(40) % 5,
    client_test=np.arange(40) % 5,
  )
  return file.getvalue()


def leaf():
  users = {name: {"x": X[:9].tolist(), "y": Y[:9].tolist()} for name in "ab"}
  return json.dumps(
    {"users": list(users), "num_samples": [9, 9], "user_data": users}
  ).encode()


def read_idx(path):
  images = RNG.integers(0, 255, (40, 4, 4), np.uint8)
  for name, array in (
    ("train-labels-idx1", Y),
    ("t10k-images-idx3", images),
    ("t10k-labels-idx1", Y),
  ):
    (path.parent / f"{name}-ubyte").write_bytes(encode(array.astype(np.uint8)))
  return load_idx(path.parent)


def availability(path):
  return RunOptions(sampling=AvailabilityFile(str(path))).checked()


KINDS = {
  "a.npz": (archive, npz_source.load_npz),
  "a.json": (leaf, load_leaf),
  "train-images-idx3-ubyte": (
    lambda: encode(RNG.integers(0, 255, (40, 4, 4), np.uint8)),
    read_idx,
  ),
  "a.txt": (lambda: b"0.1\n# one\n0.5\n1\n", availability),
}


@pytest.mark.filterwarnings("ignore")  # files of text without a number
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_read_or_refused(tmp_path, name):
  make, load = KINDS[name]
  path, raw = tmp_path / name, make()
  path.write_bytes(raw)
  load(path)

  @FUZZED
  @given(fuzzing.damage(raw))
  def check(content):
    path.write_bytes(content)
    try:
      load(path)
    except OptionError as error:
      message = str(error).replace(str(path.parent), "")
      assert message.isprintable() and not fuzzing.RAW.search(message), message
      assert "dataset=" in message or "sampling=availability_file:" in message

  check()


@pytest.mark.filterwarnings("ignore:.*no training example")
def test_classes_at_every_client_are_counted_before_they_are_made(tmp_path):
  path = tmp_path / "a.npz"
  labels = np.zeros(60_000, np.int64)
  labels[0] = 99_999
  x = np.zeros((60_000, 1), np.float32)
  np.savez(path, x_train=x, y_train=labels, x_test=x[:1], y_test=labels[:1])
  with pytest.raises(
    DataError,
    match=(
      "^num_clients=60000: counting 100,000 classes at each client: needs 44.7 "
      "GB of memory, the machine has"
    ),
  ):
    federate(
      f"npz:{path}",
      num_clients=60_000,
      partition="iid:min_size=1,size_sigma=0.0",
    )


def test_a_damaged_npy_has_no_numbers(tmp_path):
  path = tmp_path / "a.npy"
  path.write_bytes(b"\x93NUMPY and no more")
  with pytest.raises(OptionError, match="a.npy: cannot be read as numbers$"):
    availability(path)
