"""Files of arrays: what is read, and one kind of error for all damage."""

import io

import numpy as np
import pytest

from fedjax_alg.data import npz
from tests.each import each

GOOD = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"])}


def content(save, *args, **arrays):
  file = io.BytesIO()
  save(file, *args, **arrays)
  return file.getvalue()


@pytest.mark.parametrize("save", (np.savez, np.savez_compressed))
def test_it_reads_what_numpy_writes(tmp_path, save):
  path = tmp_path / "a.npz"
  save(path, **GOOD)
  arrays = npz.read_npz(path)
  assert set(arrays) == set(GOOD) == set(npz.read_npz(path, ["a"]))
  for name, array in GOOD.items():
    np.testing.assert_array_equal(arrays[name], array, strict=True)
  path.write_bytes(content(np.save, GOOD["a"]))
  np.testing.assert_array_equal(npz.read_npz(path), GOOD["a"], strict=True)


def test_objects_that_nobody_asks_for_do_no_harm(tmp_path):
  path = tmp_path / "a.npz"
  np.savez(path, **GOOD, objects=np.array([{}], object))
  assert npz.read_npz(path, ["a"])["objects"] is None


INTACT = content(np.savez, x=np.ones((4, 3)))
ARRAY = content(np.save, np.ones(5))


@each(
  "raw",
  [
    b"",
    b"text",
    b"PK\x03\x04 and no more",
    INTACT[:-9],
    INTACT.replace(np.ones(2).tobytes(), np.zeros(2).tobytes(), 1),  # checksum
    INTACT.replace(b"(4, 3)", b"(4, 9)"),
    INTACT.replace(b"(4, 3)", b"((((((", 1),
    content(np.savez, x=np.array([{}], object)),
    content(np.save, np.array([None])),
    ARRAY[:-1],
    ARRAY.replace(b"(5,), }" + b" " * 11, b"(5" + b"0" * 11 + b",), }"),
  ],
)
def test_damage_and_objects_are_one_error(tmp_path, raw):
  path = tmp_path / "a.npz"
  path.write_bytes(raw)
  with pytest.raises(ValueError, match=f"^{path}: damaged$"):
    npz.read_npz(path)


def test_what_is_no_regular_file(tmp_path):
  for path in (tmp_path, tmp_path / "none.npz", "/dev/zero"):
    with pytest.raises(OSError):
      npz.read_npz(path)
