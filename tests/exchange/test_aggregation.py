"""Aggregators; their formulas are in test_robust.py."""

import jax
import numpy as np
import pytest

from fedjax_alg.exchange import aggregation
from fedjax_alg.part import parts_of

KEY = jax.random.key(0)


def test_a_minority_of_nan_does_not_reach_the_median():
  updates = np.float32([[1], [2], [3], [np.nan], [np.inf]])
  combine = jax.jit(
    lambda weights: aggregation.Median().build().combine(updates, weights, None, KEY)
  )
  for count, expected in ((3, 2.0), (5, 3.0)):
    assert combine(np.float32(np.arange(5) < count)) == expected
  assert np.isnan(combine(np.float32([1, 0, 0, 1, 0])))[0]


@pytest.mark.parametrize("kind", parts_of(aggregation.Choice)[1:])
def test_operations_grow_with_coordinates_and_slots(kind):
  """In proportion to the former, at least so to the latter."""
  flops = kind().build().flops
  assert flops(8, 100) > 8 * 100
  assert flops(8, 200) == 2 * flops(8, 100)
  assert flops(16, 100) >= 2 * flops(8, 100)
