"""Archives that are damaged, or claim more than they hold."""

import io
import zipfile

import numpy as np
import pytest

from fedjax_alg.data import npz

GOOD = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"])}


def archive(members, method=zipfile.ZIP_DEFLATED):
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", method) as zipped:
    for name, content in members.items():
      zipped.writestr(name, content)
  return npz.Archive(file)


def header(shape, descr="<f4", body=b""):
  text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
  text = text.ljust(117) + "\n"
  return (b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
          + text.encode() + body)


def test_it_reads_what_numpy_writes():
  for save in (np.savez, np.savez_compressed):
    file = io.BytesIO()
    save(file, **GOOD)
    arrays = npz.Archive(file)
    assert set(arrays.files) == set(GOOD)
    with pytest.raises(KeyError):
      arrays["c"]
    for name, array in GOOD.items():
      np.testing.assert_array_equal(arrays[name], array)
      assert arrays[name].dtype == array.dtype


@pytest.mark.parametrize("content", [
    header("(10737418240, 1)", body=b"\0" * 64),  # 40 GB
    header("(5497558138880,)"), header("(-1, -1)", body=b"\0\0\0\0"),
    header("(((("), header("(2,)", "nonsense"), header("('a',)"),
    header("(3,)", body=b"\0" * 11), b"", b"\x93NUMPY\x07\x00", b"text",
    header("(" * 9000),
])
def test_a_damaged_array_raises_what_is_caught(content):
  for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
    with pytest.raises(npz.ERRORS):
      archive({"x.npy": content}, method)["x"]


def test_objects_are_not_unpickled():
  file = io.BytesIO()
  np.savez(file, x=np.array([{}], object))
  with pytest.raises(npz.ERRORS):
    npz.Archive(file)["x"]


def test_members_that_are_no_arrays_are_not_listed():
  assert archive({"x": b"1", "y.npy": header("(0,)")}).files == ["y"]


def test_what_is_no_zip():
  with pytest.raises(npz.ERRORS):
    npz.Archive(io.BytesIO(b"text"))
