"""Archives that claim more than they hold."""

import io
import zipfile

import numpy as np
import pytest

from fedjax_alg.data import npz

GOOD = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"])}


def archive(members, method=zipfile.ZIP_DEFLATED):
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", method) as made:
    for name, content in members.items():
      made.writestr(name, content)
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
    read = npz.Archive(file)
    assert set(read.files) == set(GOOD) and "a" in read and "c" not in read
    for name, array in GOOD.items():
      np.testing.assert_array_equal(read[name], array)
      assert read[name].dtype == array.dtype
    with pytest.raises(KeyError):
      read["c"]


def test_an_npy_is_read_or_refused(tmp_path):
  path = tmp_path / "a.npy"
  np.save(path, GOOD["a"])
  np.testing.assert_array_equal(npz.read_npy(path), GOOD["a"])
  raw = path.read_bytes()
  objects = io.BytesIO()
  np.save(objects, np.array([None]), allow_pickle=True)
  for content in (raw[:-1], raw + b"1", header("(1000000000000,)"), b"",
                  header("(((("), objects.getvalue()):
    path.write_bytes(content)
    with pytest.raises(npz.ERRORS):
      npz.read_npy(path)


@pytest.mark.parametrize("content", [
    header("(10737418240, 1)", body=b"\0" * 64),  # 40 GB
    header("(5497558138880,)"), header("(-1, -1)", body=b"\0\0\0\0"),
    header("(1000000000000,)", "|V0"), header("(1000000000000,)", "<U0"),
    header("(((("), header("(2,)", "nonsense"), header("('a',)"),
    header("(3,)", body=b"\0" * 11), b"", b"\x93NUMPY\x07\x00", b"text",
    header("(" * 9000),
])
def test_claims_are_refused_before_anything_is_allocated(content):
  for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
    with pytest.raises(npz.ERRORS):
      archive({"x.npy": content}, method)["x"]


def test_the_list_of_the_archive_may_lie_too():
  claimed = header("(250000000,)")  # 1 GB
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
    made.writestr("x.npy", claimed)
    made.infolist()[0].file_size = len(claimed) + 10 ** 9
  with pytest.raises(ValueError, match="larger than its file"):
    npz.Archive(file)["x"]


def test_objects_are_not_unpickled():
  file = io.BytesIO()
  np.savez(file, x=np.array([{}], object))
  with pytest.raises(npz.ObjectArrayError):
    npz.Archive(file)["x"]


def test_members_that_are_no_arrays_are_not_listed():
  assert archive({"x": b"1", "y.npy": header("(0,)")}).files == ["y"]


def test_what_is_no_zip():
  with pytest.raises(npz.ERRORS):
    npz.Archive(io.BytesIO(b"text"))
