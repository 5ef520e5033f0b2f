"""What conftest prints at the end of a run of the tests."""

import time

import jax
import numpy as np
import pytest

from tests import program_counts


def test_a_program_counts_once_for_each_shape():
  counts = program_counts.Counts()
  counts.listen()

  @jax.jit
  def halve(x):
    return jax.jit(lambda y: y / 2)(x)

  with counts.of("a"):
    for size in (3, 4, 3):
      halve(np.ones(size, np.float32))
  halve(np.ones(5, np.float32))  # beside the tests
  row = counts.by_folder["a"]
  assert (row["tests"], row["programs"]) == (1, 2)
  assert row["compile"] > 0 and row["trace"] > 0 and row["cpu"] > 0
  assert list(counts.by_folder) == ["a"]


def test_a_function_traced_inside_another_is_not_counted_twice(monkeypatch):
  counts, (trace, lower) = program_counts.Counts(), program_counts.TRACE
  clock = iter([2.0, 5.0, 9.0, 10.0])  # when each of these ends
  monkeypatch.setattr(time, "time", lambda: next(clock))
  with counts.of("a"):
    counts.take(trace, 1.0)  # 1 to 2
    counts.take(trace, 2.0)  # 3 to 5
    counts.take(trace, 9.0)  # 0 to 9, both inside
    counts.take(lower, 1.0)  # 9 to 10
    counts.take("/jax/other", 100.0)
  assert counts.by_folder["a"]["trace"] == pytest.approx(10)
  assert counts.by_folder["a"]["programs"] == 0


def test_workers_add_up_and_the_longest_comes_first():
  counts = program_counts.Counts()
  row = dict(tests=2, cpu=1.5, programs=7, compile=0.25, trace=0.5)
  for worker in ({"a": row}, {"a": row, "bench": row | {"cpu": 4}}):
    counts.add(worker)
  head, *lines = [line.split() for line in counts.lines()]
  assert head[0] == "folder"
  assert lines == [
    ["bench", "2", "4", "7", "0.2", "0.5"],
    ["a", "4", "3.0", "14", "0.5", "1.0"],
    ["all", "6", "7.0", "21", "0.8", "1.5"],
  ]
