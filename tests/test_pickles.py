"""Pickles of arrays, read without calling what they name."""

import io
import os
import pickle

import numpy as np
import pytest

from fedjax_alg.pickles import HostileError, KnownUnpickler, read_npy_objects

TREE = {
  "X": [np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2).T],
  "n": np.array([7, -1], np.int32),
  "names": ["a", "b"],
}


def npy_of(value, protocol=2):
  """A .npy of one object, with the names of NumPy 1 that old files have."""
  head = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    head, {"descr": "|O", "fortran_order": False, "shape": ()}
  )
  array = np.empty((), object)
  array[()] = value
  content = pickle.dumps(array, protocol)
  return head.getvalue() + content.replace(
    b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"
  )


def test_arrays_are_those_that_numpy_reads(tmp_path):
  """Else a transposed array would have its numbers mixed."""
  path = tmp_path / "a.npy"
  np.save(path, np.array(TREE, object), allow_pickle=True)
  for content in (path.read_bytes(), npy_of(TREE)):
    tree = read_npy_objects(io.BytesIO(content))
    assert tree.keys() == TREE.keys() and tree["names"] == ["a", "b"]
    assert tree["n"].dtype == np.int32
    for array, expected in zip([*tree["X"], tree["n"]], [*TREE["X"], TREE["n"]]):
      np.testing.assert_array_equal(array, expected)


class Hostile:
  """A pickle that makes a folder when it is loaded."""

  def __init__(self, path):
    self.path = str(path)

  def __reduce__(self):
    return os.mkdir, (self.path,)


def test_code_is_refused_by_its_name_and_not_run(tmp_path):
  content = npy_of(TREE | {"trap": Hostile(tmp_path / "made")})
  with pytest.raises(HostileError, match="mkdir"):
    read_npy_objects(io.BytesIO(content))
  assert not (tmp_path / "made").exists()
  assert np.load(io.BytesIO(content), allow_pickle=True)  # which NumPy runs
  assert (tmp_path / "made").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_known_but_what_the_reader_names(protocol):
  """A name has other opcodes in later protocols."""
  content = pickle.dumps([os.getcwd], protocol)
  with pytest.raises(HostileError, match="getcwd"):
    KnownUnpickler(io.BytesIO(content), {}).load()
  known = {(os.getcwd.__module__, "getcwd"): "a place"}
  assert KnownUnpickler(io.BytesIO(content), known).load() == ["a place"]


def test_numbers_that_do_not_fill_an_array_are_refused():
  """Else an array would show what lies behind it in memory."""
  content = npy_of([np.zeros(2)])
  longer = content.replace(b"K\x02\x85", b"K\x03\x85")
  assert longer != content
  with pytest.raises(ValueError, match="reshape"):
    read_npy_objects(io.BytesIO(longer))


@pytest.mark.parametrize("dtype", ["M8[s]", "U3", "c16"])
def test_arrays_of_other_than_numbers_are_refused(dtype):
  with pytest.raises(ValueError, match="other than numbers"):
    read_npy_objects(io.BytesIO(npy_of([np.zeros(2, dtype)])))
