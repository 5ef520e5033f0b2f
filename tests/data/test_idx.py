"""IDX folders: what is read back, and one line for every bad file."""

import gzip
import struct

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import idx
from tests.data.reading import refuses
from tests.each import each

RNG = np.random.default_rng(0)
NAMES = {
  "x_train": "train-images-idx3-ubyte",
  "y_train": "train-labels-idx1-ubyte",
  "x_test": "t10k-images-idx3-ubyte",
  "y_test": "t10k-labels-idx1-ubyte",
}


def encode(array):
  """As LeCun's page defines the format: zeros, dtype, axes, lengths, data."""
  return (
    struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
  )


def arrays(shape=(5, 4)):
  return {
    "x_train": RNG.integers(0, 256, (9, *shape), np.uint8),
    "y_train": np.arange(9, dtype=np.uint8) % 3,
    "x_test": RNG.integers(0, 256, (4, *shape), np.uint8),
    "y_test": np.array([0, 6, 1, 0], np.uint8),
  }


def write(folder, content, change=None):
  for name, array in content.items():
    (folder / NAMES[name]).write_bytes(encode(array))
  for name, data in (change or {}).items():
    (folder / name).write_bytes(data)


@pytest.mark.filterwarnings("ignore:.*no training example")
@pytest.mark.parametrize(
  "packed, shape", [(False, (5, 4)), (True, (5, 4)), (False, (3, 2, 3))]
)
def test_what_is_written_is_read(tmp_path, packed, shape):
  """Also of images with channels."""
  content = arrays(shape)
  write(tmp_path, content)
  if len(shape) == 3:
    for path in tmp_path.glob("*idx3*"):
      path.rename(str(path).replace("idx3", "idx4"))
  if packed:
    for name in NAMES.values():
      plain = tmp_path / name
      (tmp_path / f"{name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
      plain.unlink()
  got = idx.load_idx(tmp_path)
  for split in ("train", "test"):
    x, y = getattr(got, f"x_{split}"), getattr(got, f"y_{split}")
    np.testing.assert_array_equal(
      x.squeeze(-1) if len(shape) == 2 else x, content[f"x_{split}"]
    )
    np.testing.assert_array_equal(y, content[f"y_{split}"])
    assert x.dtype == np.uint8 and y.dtype == np.int32
  assert got.num_classes == 7 and got.name == tmp_path.name
  fed = fa.federate(f"idx:{tmp_path}", num_clients=3, partition="iid:min_size=1")
  assert fed.example_shape == (*shape, 1)[:3]
  assert np.asarray(fed.data.train.x).max() <= 1


GOOD = encode(np.zeros((9, 5, 4), np.uint8))


@each(
  "name, data, says",
  [
    ("train-images-idx3-ubyte", b"", "starts with nothing, not an IDX file"),
    ("train-images-idx3-ubyte", b"\x89PNG\r\n", "starts with 89504e47, not"),
    ("train-images-idx3-ubyte", b"\0\0\x0d" + GOOD[3:], "starts with 00000d03"),
    ("train-images-idx3-ubyte", GOOD[:9], "or truncated in its header"),
    ("train-images-idx3-ubyte", GOOD[:-1], "179 bytes where its shape (9, 5, "),
    ("train-images-idx3-ubyte", GOOD + b"\0", "181 bytes where its shape"),
    ("train-images-idx3-ubyte", encode(np.zeros((9, 5), np.uint8)), "2 axes"),
    (
      "train-labels-idx1-ubyte",
      encode(np.zeros(8, np.uint8)),
      "labels of shape (8,), train-images-idx3-ubyte has 9 images",
    ),
    (
      "t10k-images-idx3-ubyte",
      encode(np.zeros((4, 5, 5), np.uint8)),
      "shape (5, 4, 1), test images of (5, 5, 1)",
    ),
  ],
)
def test_bad_files_are_named(tmp_path, name, data, says):
  write(tmp_path, arrays(), {name: data})
  refuses(
    lambda: idx.load_idx(tmp_path),
    says,
    f"dataset={tmp_path}",
    "" if "test images" in says else name,
  )


@pytest.mark.parametrize("damage", ("cut", "not gzip", "flip"))
def test_damaged_gzip(tmp_path, damage):
  write(tmp_path, arrays())
  packed = gzip.compress((tmp_path / NAMES["x_test"]).read_bytes())
  data = {
    "cut": packed[:40],
    "not gzip": b"no zip",
    "flip": packed[:30] + bytes([packed[30] ^ 255]) + packed[31:],
  }
  path = tmp_path / (NAMES["x_test"] + ".gz")
  path.write_bytes(data[damage])
  refuses(lambda: idx.read_idx(path), f"{path}: damaged, not gzip")


def test_missing_files(tmp_path):
  refuses(
    lambda: idx.load_idx(tmp_path / "no"), "/no: no such folder; one with train-im"
  )
  write(tmp_path, arrays())
  (tmp_path / NAMES["y_test"]).unlink()
  refuses(lambda: idx.load_idx(tmp_path), "no t10k-labels-idx?-ubyte")
