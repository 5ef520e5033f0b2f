"""Rows of files, read when they are wanted."""

import os
import sys
import tempfile

import numpy as np
import pytest

from fedjax_alg.data import DataError
from fedjax_alg.data.npy_rows import ComputedRows, NpyRows, OrderedRows
from tests import problems

_VALUES = np.arange(60, dtype=np.float32).reshape(20, 3)


@pytest.fixture
def path(tmp_path):
  np.save(tmp_path / "x.npy", _VALUES)
  return tmp_path / "x.npy"


def test_rows_are_those_of_the_array(path):
  rows = NpyRows(path)
  assert (rows.shape, rows.dtype, len(rows)) == ((20, 3), np.float32, 20)
  np.testing.assert_array_equal(rows[4:9], _VALUES[4:9])
  np.testing.assert_array_equal(rows[:], _VALUES)
  assert rows[7:7].shape == (0, 3)
  np.testing.assert_array_equal(rows.reshape(20, 3, 1)[2:4], _VALUES[2:4, :, None])


@pytest.mark.parametrize("order", [[3, 1, 2], [19, 0, 10, 11], list(range(20)), []])
def test_an_order_is_kept_and_zeros_follow(path, order):
  rows = OrderedRows([NpyRows(path)], np.array(order, int), 25, np.float32)
  expected = np.zeros((25, 3), np.float32)
  expected[: len(order)] = _VALUES[order]
  np.testing.assert_array_equal(rows[0:25], expected)
  np.testing.assert_array_equal(rows[1:3], expected[1:3])


def test_rows_of_an_order_are_read_by_their_numbers_and_in_another_shape(path):
  order = np.array([19, 0, 10, 11])
  rows = OrderedRows([NpyRows(path)], order, 4, np.float32).reshape(4, 1, 3)
  np.testing.assert_array_equal(rows[np.array([2, 0])], _VALUES[order][[2, 0]][:, None])


@pytest.mark.parametrize("numbers", [[0, 1, 2], [3, 4, 7, 19], []])
def test_computed_rows_are_read_as_they_were_written(numbers):
  rows, expected = ComputedRows((20, 3), np.float32), np.zeros((20, 3), np.float32)
  rows.write(np.array(numbers, int), _VALUES[numbers].astype(np.float64))
  expected[numbers] = _VALUES[numbers]
  np.testing.assert_array_equal(rows[:], expected)
  rows.write(np.arange(20), _VALUES)  # also after some were read
  np.testing.assert_array_equal(rows.reshape(20, 3, 1)[5:9], _VALUES[5:9, :, None])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_a_full_disk_names_the_folder_of_the_computed_rows(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  rows = ComputedRows((20, 3), np.float32)
  with problems.small_files(100):
    for write in (
      lambda: rows.write(np.arange(20), _VALUES),
      lambda: ComputedRows((20, 3), np.float32),
    ):
      with pytest.raises(DataError, match=f"^{tmp_path}: .*TMPDIR"):
        write()
  with pytest.raises(DataError, match=f"^{tmp_path}: .*TMPDIR"):
    ComputedRows((2**50, 3), np.float32)


def test_several_arrays_count_as_one(path):
  rows = OrderedRows(
    [NpyRows(path), _VALUES[:0], _VALUES + 100], np.array([21, 3, 39, 0]), 4, np.float32
  )
  both = np.concatenate([_VALUES, _VALUES + 100])
  np.testing.assert_array_equal(rows[0:4], both[[21, 3, 39, 0]])


def test_rows_far_apart_are_not_read_with_those_between_them(path, monkeypatch):
  read, rows = [], NpyRows(path)
  get = NpyRows.__getitem__
  monkeypatch.setattr(
    NpyRows, "__getitem__", lambda self, rows: read.append(rows) or get(self, rows)
  )
  OrderedRows([rows], np.array([0, 19, 1, 18]), 4, np.float32)[0:4]
  assert sum(part.stop - part.start for part in read) == 4


@pytest.mark.parametrize("damage", ["cut", "text", "gone", "fortran"])
def test_a_damaged_file_is_one_line(path, damage):
  if damage == "cut":
    os.truncate(path, path.stat().st_size - 1)
  elif damage == "text":
    path.write_text("no array")
  elif damage == "fortran":
    np.save(path, np.asfortranarray(_VALUES))
  else:
    path.unlink()
  with pytest.raises(DataError, match="x.npy: ") as error:
    NpyRows(path)
  assert "\n" not in str(error.value)


def test_a_file_that_is_cut_short_while_it_is_read_does_not_end_the_process(path):
  rows = NpyRows(path)
  os.truncate(path, path.stat().st_size - 30)
  with pytest.raises(DataError, match="x.npy: .*cut short"):
    rows[15:20]


def test_a_file_that_is_written_while_it_is_read_is_refused(path):
  rows = NpyRows(path)
  with open(path, "r+b") as file:
    file.seek(-4, os.SEEK_END)
    file.write(b"abcd")
  os.utime(path, ns=(1, 1))  # clocks of files are coarse
  with pytest.raises(DataError, match="x.npy: has changed"):
    rows[0:2]
