"""Dealing rows to clients: what is read when, and what an interruption leaves."""

import signal
import subprocess
import sys

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import DataError, row_dealing, row_sources
from tests.data.rows_in_any_order import (
  NAMES,
  OWNERS,
  Items,
  N,
  V,
  check,
  in_memory,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Several blocks and buckets."""
  monkeypatch.setattr(row_sources, "_MOST", 37)
  monkeypatch.setattr(row_dealing, "_BUCKET_BYTES", 2000)


def test_rows_that_come_client_by_client_are_not_dealt(tmp_path, monkeypatch):
  order = np.argsort(OWNERS, kind="stable")
  rows = [(V[place], NAMES[place], OWNERS[place]) for place in order]
  monkeypatch.setattr(row_dealing, "_Buckets", None)
  check(tmp_path, fa.StreamedRows(rows, x=0, y=1, client=2), in_memory(x=V))


def test_a_client_is_larger_than_a_bucket(tmp_path):
  owners = [("large", owner)[place % 2] for place, owner in enumerate(OWNERS)]
  rows = [(V[place], NAMES[place], owners[place]) for place in range(N)]
  rows = fa.StreamedRows(rows, x=0, y=1, client=2)
  check(tmp_path, rows, in_memory(x=V, owners=owners))


def broken(reads, after):
  """Rows of which the reading fails once, at the second time."""
  times = [0]

  def begin():
    times[0] += 1
    for place in range(N):
      if times[0] == reads and place == after:
        raise OSError(5, "Input/output error")
      yield V[place], NAMES[place], OWNERS[place]

  return begin


def test_dealing_goes_on(tmp_path, monkeypatch):
  monkeypatch.setattr(row_dealing, "_FLUSH_BYTES", 1000)
  rows = fa.StreamedRows(broken(2, 200), x=0, y=1, client=2)
  with pytest.raises(DataError, match="^dataset: its items .*200.*Input/output"):
    fa.write_clients(tmp_path / "clients0", rows)
  dealt, add = [], row_dealing._Buckets._add
  monkeypatch.setattr(
    row_dealing._Buckets,
    "_add",
    lambda self, rows, *args: dealt.append(len(rows.y)) or add(self, rows, *args),
  )
  check(tmp_path, rows, in_memory(x=V))
  assert 0 < sum(dealt) < 200


def test_other_rows_do_not_go_on(tmp_path, monkeypatch):
  monkeypatch.setattr(row_dealing, "_FLUSH_BYTES", 1000)
  options = dict(x=0, y=1, client=2)
  with pytest.raises(DataError, match="Input/output"):
    fa.write_clients(tmp_path, fa.StreamedRows(broken(2, 200), **options))
  with pytest.raises(DataError, match="begun with other rows"):
    fa.write_clients(tmp_path, fa.StreamedRows(Items(), **options))


@pytest.mark.parametrize("change", ["fewer", "more", "order"])
def test_rows_that_change_between_the_readings_are_refused(tmp_path, change):
  for is_grouped in (False, True):
    order = np.argsort(OWNERS, kind="stable") if is_grouped else np.arange(N)
    times = [0]

    def begin():
      times[0] += 1
      places = list(order)
      if times[0] > 1:
        places = dict(fewer=places[:-1], more=[*places, 0], order=places[::-1])[change]
      return ((V[place], NAMES[place], OWNERS[place]) for place in places)

    if change == "order" and not is_grouped:
      continue  # the same clients
    rows = fa.StreamedRows(begin, x=0, y=1, client=2)
    with pytest.raises(DataError, match="dataset: gives other rows"):
      fa.write_clients(tmp_path / str(is_grouped), rows)


_KILLED = """
import os, sys
import fedjax_alg as fa
from fedjax_alg.data import row_dealing, row_sources
from tests.data.rows_in_any_order import Items

row_sources._MOST, row_dealing._BUCKET_BYTES, row_dealing._FLUSH_BYTES = 37, 2000, 1000
of, name = {
  "counted": (row_dealing.RowDealing, "clients"),
  "dealing": (row_dealing._Buckets, "_flush"),
  "dealt": (row_dealing._Buckets, "clients"),
}[sys.argv[1]]
as_before, calls = getattr(of, name), []

def killed(*args):
  calls.append(1)
  if len(calls) > 2 or name == "clients":
    os.kill(os.getpid(), 9)
  return as_before(*args)

setattr(of, name, killed)
fa.write_clients(sys.argv[2], fa.StreamedRows(Items(), x=0, y=1, client=2))
"""


@pytest.mark.program
@pytest.mark.parametrize("when", ["counted", "dealing", "dealt"])
def test_dealing_goes_on_after_a_kill(tmp_path, monkeypatch, when):
  done = subprocess.run(
    [sys.executable, "-c", _KILLED, when, str(tmp_path / "killed")], check=False
  )
  assert done.returncode == -signal.SIGKILL
  notes = {path.name for path in (tmp_path / "killed" / "dealing").glob("*.json")}
  assert notes == {"counted.json", *(["dealt.json"] if when != "counted" else [])}
  counted = []
  monkeypatch.setattr(row_dealing.RowDealing, "_count", counted.append)
  rows = fa.StreamedRows(Items(), x=0, y=1, client=2)
  folder = fa.write_clients(tmp_path / "killed", rows)
  monkeypatch.undo()
  whole = fa.write_clients(tmp_path / "whole", rows)
  assert not counted
  for path in whole.iterdir():
    assert (folder / path.name).read_bytes() == path.read_bytes()
