"""Grids go on where their best value lies at an edge."""

import math

import pytest

from experiments.cli import grid

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("tried,best,more", [
    ((0.1, 0.3, 1.0), 1.0, 3.3), ((0.1, 0.3, 1.0), 0.1, 0.033),
    ((0.1, 0.3, 1.0), 0.3, None), ((1, 5, 20), 20, 80), ((2, 3, 5), 2, 1),
    ((1, 2), 1, None), ((1.0, 10.0), 1.0, 0.1), ((1.0, 10.0), 10.0, 100.0),
    ((0.0, 0.5), 0.0, None), ((0.3,), 0.3, None)])
def test_beyond(tried, best, more):
  assert grid.beyond(tried, best) == more


def test_a_grid_is_widened_until_the_best_lies_inside():
  played = []

  def play(values):
    played.append(values)
    return [-abs(math.log10(v) - 1.0) for v in values]  # best at 10

  found = grid.search((0.01, 0.1), play)
  assert played == [[0.01, 0.1], [1.0], [10.0], [100.0]]
  assert max(found, key=found.get) == 10.0
  assert len(grid.search((1e-5, 1e-4), play)) == 2 + grid.MOST_WIDENINGS
  assert list(grid.search((0.01, 0.1), play, lambda v: v < 5)) == [
      0.01, 0.1, 1.0]
  assert list(grid.search((0.01, 0.1), play, most=0)) == [0.01, 0.1]


def test_what_failed_is_no_best_and_words_have_no_edge():
  found = grid.search((1.0, 2.0), lambda values: [
      math.nan if v >= 2 else v for v in values])
  assert list(found)[:2] == [0.06, 0.12] or 2.0 in found
  assert grid.search(("a", "b"), lambda values: [0.0, 1.0]) == {
      "a": 0.0, "b": 1.0}
