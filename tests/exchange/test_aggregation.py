"""Aggregators by name; their formulas are in test_robust.py."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_alg.exchange import aggregation

KEY = jax.random.key(0)


def test_a_minority_of_nan_does_not_reach_the_median():
  updates = jnp.array([[1.0], [2.0], [3.0], [jnp.nan], [jnp.inf]])
  combine = aggregation.coordinate_median().combine
  for count, expected in ((3, 2.0), (5, 3.0)):
    weights = (jnp.arange(5) < count).astype(jnp.float32)
    assert combine(updates, weights, None, KEY) == expected
  assert jnp.isnan(combine(updates, jnp.array([1.0, 0, 0, 1, 0]), None, KEY))[0]


def test_an_unknown_name_gets_the_nearest():
  with pytest.raises(
    ValueError,
    match="aggregator=medain: unknown, did you mean 'median'. .one of mean, median",
  ):
    aggregation.make_aggregator("medain")


@pytest.mark.parametrize("name", sorted(aggregation.AGGREGATORS.keys() - {"mean"}))
def test_operations_grow_with_coordinates_and_slots(name):
  """In proportion to the former, at least so to the latter."""
  flops = aggregation.make_aggregator(
    name, aggregation.AggregatorOptions(aggregator=name)
  ).flops
  assert flops(8, 100) > 8 * 100
  assert flops(8, 200) == 2 * flops(8, 100)
  assert flops(16, 100) >= 2 * flops(8, 100)
