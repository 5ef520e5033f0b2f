"""Names, intervals and groups: what numbers say."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError
from fedjax_alg.metrics import groups, intervals, names
from fedjax_alg.metrics.names import Metric


def test_kinds_are_sets_of_classes():
  histogram = np.array([[3, 0, 1], [1, 0, 9], [0, 2, 0], [0, 7, 0], [1, 1, 1]])
  kind = groups.kinds(histogram)
  assert kind.shape == (5,)
  assert kind[0] == kind[1] and kind[2] == kind[3]
  assert len({*kind.tolist()}) == 3


def test_kinds_have_the_numbers_of_their_sorted_sets():
  """With one to several words of classes; the numbers are those of groups.csv."""
  rng = np.random.default_rng(0)
  for classes in (1, 7, 8, 62, 64, 65, 200):
    sets = rng.random((20, classes)) < 0.3
    histogram = sets[rng.integers(0, 20, 300)] * rng.integers(1, 9, (300, 1))
    _, expected = np.unique(histogram > 0, axis=0, return_inverse=True)
    np.testing.assert_array_equal(groups.kinds(histogram), expected.reshape(-1))


def test_sizes_count_who_is_in_a_group():
  sizes = groups.group_sizes(np.array([2, 0, -1, 2, -1]), 4)
  np.testing.assert_array_equal(sizes, [1, 0, 2, 0])


@pytest.mark.parametrize("seed", range(8))
def test_rand_index_is_that_of_scikit_learn(seed):
  rng = np.random.default_rng(seed)
  kind = rng.integers(4, size=40)
  group = np.where(rng.random(40) < 0.5, kind, rng.integers(-1, 6, size=40))
  inside = group >= 0
  agreement = groups.agreement(group, kind)
  np.testing.assert_allclose(
    agreement.ari, sk.adjusted_rand_score(kind[inside], group[inside]), rtol=1e-12
  )
  table = sk.cluster.contingency_matrix(kind[inside], group[inside])
  assert agreement.purity == table.max(0).sum() / inside.sum()


@pytest.mark.parametrize(
  "group, kind, purity, ari",
  [
    ([0, 0, 1, 1], [5, 5, 3, 3], 1.0, 1.0),
    ([1, 1, 0, 0, 2], [0, 0, 7, 7, 7], 1.0, 6 / 11),
    ([0, 0, 0, 0], [0, 0, 1, 1], 0.5, 0.0),  # one group says nothing
    ([0, 1, 2, 3], [0, 0, 1, 1], 1.0, 0.0),  # nor does a group for each
    ([2, 2, -1, -1], [0, 0, 1, 1], 1.0, 1.0),  # one kind assigned so far
    ([0, -1, -1, -1], [0, 0, 1, 1], 1.0, 1.0),
    ([-1, -1, -1], [0, 0, 1], np.nan, np.nan),  # nobody
    ([0, 0, 1], [0, 1, 2], np.nan, np.nan),  # each of its own kind
    ([0, 0, 1], [0, 0, 0], np.nan, np.nan),  # all of one
  ],
)
def test_cases_by_hand(group, kind, purity, ari):
  assert groups.agreement(np.array(group), np.array(kind)) == pytest.approx(
    (purity, ari), abs=1e-12, nan_ok=True
  )


@pytest.mark.parametrize("number", [2, 3, 10])
def test_interval_is_that_of_scipy(number):
  values = np.random.default_rng(number).normal(size=number)
  mean, half = intervals.confidence_95(values)
  low, high = stats.t.interval(
    0.95, number - 1, loc=values.mean(), scale=stats.sem(values)
  )
  np.testing.assert_allclose([mean - half, mean + half], [low, high])
  # The bands of curves are the same numbers.
  curves = np.stack([values, values**2], axis=1)
  np.testing.assert_allclose(
    intervals.half_width_95(curves),
    [intervals.confidence_95(curve)[1] for curve in curves.T],
  )


def test_one_seed_has_no_interval():
  mean, half = intervals.confidence_95([0.25])
  assert mean == 0.25 and np.isnan(half)


def test_the_metrics_of_the_clients_are_those_of_the_main_one():
  assert names.of_clients("accuracy") == metrics.METRICS[-2:]
  for main, factor, sign in (("accuracy", 100, 1), ("mse", 1, -1)):
    for name in (main, *names.of_clients(main)):
      assert names.is_known(name)
      assert (metrics.factor(name), metrics.sign(name)) == (factor, sign)
    assert all(map(names.is_of_clients, names.of_clients(main)))
  assert not names.is_known("client_speed") and not names.is_of_clients("r2")


def test_a_name_has_one_meaning():
  names.define([("speed_of_tests", Metric(share=False))])
  assert metrics.digits("speed_of_tests") == 4
  assert not metrics.is_cost("speed_of_tests") and metrics.is_cost("mse")
  names.define([("speed_of_tests", Metric(share=False))])
  with pytest.raises(OptionError, match="better=accuracy: has another meaning"):
    names.define([("accuracy", Metric(higher=False, share=False))])
