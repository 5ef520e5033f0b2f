"""What number stands for a curve."""

import numpy as np
import pytest

from fedjax_alg.errors import OptionError
from fedjax_alg.records import scores
from tests.each import each

ROUNDS = [1, 5, 10, 11, 15, 20]
CURVE = np.array([6.0, 1.0, 2.0, 4.0, 8.0, 3.0])


@pytest.mark.parametrize(
  "name, metric, number",
  [
    ("final", "accuracy", 3.0),
    ("last_10", "accuracy", 5.0),
    ("all", "accuracy", 4.0),
    ("best", "accuracy", 8.0),
    ("best", "loss", 1.0),
  ],
)
def test_scores_count_rounds_and_not_evaluations(name, metric, number):
  assert scores.score(name, CURVE, ROUNDS, metric) == number


def test_a_protocol_may_be_younger_than_the_run():
  for first, name, number in (
    (1, "last_10", 5.0),
    (4, "last_10", 5.5),
    (4, "all", 5.5),
    (5, "final", 3.0),
  ):
    assert scores.score(name, CURVE[first:], ROUNDS, "accuracy") == number


def test_a_curve_without_a_number_has_no_score():
  for name in (*scores.LAST_ROUNDS, "best"):
    assert np.isnan(scores.score(name, np.full(6, np.nan), ROUNDS, "accuracy"))


@pytest.mark.parametrize(
  "last, count", [(1, 1), (5, 1), (6, 2), (10, 3), (20, 6), (None, 6)]
)
def test_the_last_rounds_may_come_in_any_order(last, count):
  assert scores.in_last(ROUNDS, last).tolist() == (
    [False] * (6 - count) + [True] * count
  )
  assert scores.in_last(ROUNDS[::-1], last).tolist() == (
    [True] * count + [False] * (6 - count)
  )


@pytest.mark.parametrize("value", [np.nan, [np.nan, -3.0, np.nan, -np.inf]])
def test_nan_is_never_the_best(value):
  """max and argmax of NumPy and Python may take NaN for the largest."""
  ordered = scores.nan_as_worst(np.array(value))
  assert not np.isnan(ordered).any()
  if ordered.ndim:
    assert ordered.argmax() == 1 and np.argsort(-ordered)[0] == 1


@pytest.mark.parametrize(
  "last, count", [(1, 1), (4, 4), (np.int64(6), 6), (9, 6), (None, 6)]
)
def test_the_last_evaluations_are_counted_from_the_end(last, count):
  np.testing.assert_array_equal(
    CURVE[scores.last_evaluations(last)], CURVE[6 - count :]
  )


@each("last", [0, -1, 1.5, "2", True, float("nan"), [1]])
def test_no_number_of_evaluations_is_one_line_that_names_last(last):
  """Without it -1 takes all but the first evaluation, and 0 all of them."""
  with pytest.raises(OptionError, match="^last="):
    scores.last_evaluations(last)
