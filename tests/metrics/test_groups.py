"""Groups of clients against what they hold."""

import numpy as np
import pytest
from sklearn import metrics as sk

from fedjax_alg.metrics import groups


def test_kinds_are_sets_of_classes():
  histogram = np.array([[3, 0, 1], [1, 0, 9], [0, 2, 0], [0, 7, 0], [1, 1, 1]])
  kind = groups.kinds(histogram)
  assert kind.shape == (5,)
  assert kind[0] == kind[1] and kind[2] == kind[3]
  assert len({*kind.tolist()}) == 3


def test_sizes_count_who_is_in_a_group():
  sizes = groups.sizes(np.array([2, 0, -1, 2, -1]), 4)
  np.testing.assert_array_equal(sizes, [1, 0, 2, 0])


@pytest.mark.parametrize("seed", range(8))
def test_rand_index_is_that_of_scikit_learn(seed):
  rng = np.random.default_rng(seed)
  kind = rng.integers(4, size=40)
  group = np.where(rng.random(40) < 0.5, kind, rng.integers(-1, 6, size=40))
  inside = group >= 0
  found = groups.agreement(group, kind)
  np.testing.assert_allclose(
      found.ari, sk.adjusted_rand_score(kind[inside], group[inside]),
      rtol=1e-12)
  table = sk.cluster.contingency_matrix(kind[inside], group[inside])
  assert found.purity == table.max(0).sum() / inside.sum()


@pytest.mark.parametrize("group, kind, purity, ari", [
    ([0, 0, 1, 1], [5, 5, 3, 3], 1.0, 1.0),
    ([1, 1, 0, 0, 2], [0, 0, 7, 7, 7], 1.0, 6 / 11),
    ([0, 0, 0, 0], [0, 0, 1, 1], 0.5, 0.0),  # one group says nothing
    ([0, 1, 2, 3], [0, 0, 1, 1], 1.0, 0.0),  # nor does a group for each
    ([2, 2, -1, -1], [0, 0, 1, 1], 1.0, 1.0),  # one kind assigned so far
    ([0, -1, -1, -1], [0, 0, 1, 1], 1.0, 1.0),
    ([-1, -1, -1], [0, 0, 1], np.nan, np.nan),  # nobody
    ([0, 0, 1], [0, 1, 2], np.nan, np.nan),  # each of its own kind
    ([0, 0, 1], [0, 0, 0], np.nan, np.nan),  # all of one
])
def test_cases_by_hand(group, kind, purity, ari):
  assert groups.agreement(np.array(group), np.array(kind)) == pytest.approx(
      (purity, ari), abs=1e-12, nan_ok=True)
