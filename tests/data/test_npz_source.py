"""An .npz of a user: what it gives, and one clear line for every bad one."""

import numpy as np
import pytest

from fedjax_alg import memory
from fedjax_alg.data import npz_source
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.leaf import load_leaf
from fedjax_alg.data.npz_source import load_npz
from tests.data.reading import refuses
from tests.data.test_sources import leaf


def good_npz():
  return {
    "x_train": np.arange(12.0).reshape(4, 3),
    "y_train": [0, 1, 2, 1],
    "x_test": np.zeros((2, 3)),
    "y_test": [3, 0],
  }


def save(path, arrays):
  np.savez(path, **arrays)
  return path


def test_npz_with_names_of_clients(tmp_path):
  ids = {"client_train": ["bo", "al", "bo", "cy"], "client_test": ["cy", "al"]}
  got = npz_source.load_npz(save(tmp_path / "named.npz", good_npz() | ids))
  assert got.client_names.tolist() == ["al", "bo", "cy"]
  assert got.name == "named" and got.num_classes == 4
  for which, names in ids.items():
    assert got.client_names[getattr(got, which)].tolist() == names
    assert getattr(got, which).dtype == np.int32
  mixed = good_npz() | ids | {"client_test": [0, 1]}
  refuses(
    lambda: npz_source.load_npz(save(tmp_path / "bad.npz", mixed)),
    "client_train is text, integers are needed",
  )


@pytest.mark.parametrize(
  "change, says",
  [
    ({"x_test": None}, "missing x_test (it has x_train, y_test, y_train)"),
    ({"y_train": None, "y_test": None}, "missing y_train, y_test"),
    ({"x_train": np.array([{}] * 4, object)}, "objects are never loaded"),
    ({"x_test": np.zeros((2, 5))}, "x_test of (5,)"),
    (
      {"x_train": np.arange(12).reshape(4, 3) + 2**31},
      "x_train lies in [2147483648, 2147483659], token ids must fit",
    ),
    ({"client_test": [0, 1]}, "client_test without client_train"),
  ],
)
def test_bad_npz(tmp_path, change, says):
  arrays = {
    name: value for name, value in (good_npz() | change).items() if value is not None
  }
  path = save(tmp_path / "bad.npz", arrays)
  refuses(lambda: npz_source.load_npz(path), says, f"dataset={path}")


def test_npz_that_is_none(tmp_path):
  refuses(lambda: npz_source.load_npz(tmp_path / "absent.npz"), "no such file")
  (tmp_path / "text.npz").write_bytes(b"hello")
  refuses(lambda: npz_source.load_npz(tmp_path / "text.npz"), "not an .npz, or damaged")
  path = tmp_path / "one.npy"
  np.save(path, np.zeros(3))
  refuses(lambda: npz_source.load_npz(path), "one .npy array")


@pytest.mark.parametrize(
  "which, says",
  [
    ("y_train", "y_test has 3 in row 0, which is none of the 3 names"),
    ("y_test", "y_test is text, integers are needed"),
  ],
)
def test_labels_of_two_kinds_are_refused(tmp_path, which, says):
  """Two arrays or files would number their names apart."""
  arrays = good_npz()
  arrays[which] = np.array(arrays[which]).astype(str)
  refuses(lambda: npz_source.load_npz(save(tmp_path / "a.npz", arrays)), says)
  path = tmp_path / "a.json"
  path.write_text(leaf({"bo": ([[1.0]], ["a"]), "al": ([[2.0]], ["b"])}))
  refuses(lambda: load_leaf(path), "x and y must be numbers")


def test_all_faults_of_an_npz_are_one_error(tmp_path):
  path = tmp_path / "faulty.npz"
  x = np.ones((6, 2))
  x[1, 1] = np.inf
  np.savez(
    path, x_train=x, y_train=np.arange(6) + 0.5, x_test=x[:2, :1], y_test=[-1, 0]
  )
  with pytest.raises(DataError) as error:
    load_npz(path)
  assert all(
    f"({place}) dataset={path}: {name} " in str(error.value)
    for place, name in enumerate(("x_train", "y_train", "y_test"), 1)
  )


def test_an_npz_that_does_not_fit_is_refused_before_it_is_read(tmp_path, monkeypatch):
  """Its compressed size says nothing of its arrays."""
  path = tmp_path / "large.npz"
  zeros = np.zeros((1000, 100), np.float32)
  np.savez_compressed(
    path, x_train=zeros, y_train=zeros[:, 0], x_test=zeros[:0], y_test=zeros[:0, 0]
  )
  size = 4 * zeros.size
  for room, other in ((size - 1, False), (2 * size, True)):
    monkeypatch.setattr(memory, "host", lambda room=room: memory.Limit(room, "we have"))
    if other:
      with pytest.raises(DataError, match="y_train is float32"):
        load_npz(path)
      continue
    with pytest.raises(DataError, match=r"dataset=.*large.npz: .* needs 0.00\d+ GB"):
      load_npz(path)
