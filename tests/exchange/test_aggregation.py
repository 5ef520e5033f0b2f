"""Aggregators against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import trees
from fedjax_alg.exchange import aggregation

KEY = jax.random.key(0)


def oracle(values, weights):
  """The median over the slots of positive weight; NaN is larger than all."""
  ordered = np.sort(values[weights > 0], axis=0)
  if not len(ordered):
    return np.zeros(values.shape[1:])
  return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def test_the_median_of_the_slots_that_count():
  """Every number of slots, wherever they stand, NaN and huge values behind."""
  rng = np.random.default_rng(0)
  weights = rng.permuted(
      np.tri(9, 8, -1, np.float32) * rng.uniform(1, 9, (9, 8)), axis=1)
  values = rng.normal(size=(9, 8, 3, 2))
  values[weights == 0] = np.where(rng.random() < 0.5, np.nan, 1e30)
  values, weights = values.astype("f4"), weights.astype("f4")
  combine = aggregation.coordinate_median().combine
  found = jax.jit(jax.vmap(lambda tree, w: combine(tree, w, None, KEY)))(
      {"kernel": values, "bias": values[..., 0, 0]}, weights)
  for i in range(9):
    count = int((weights[i] > 0).sum())
    assert count == i
    np.testing.assert_allclose(
        found["kernel"][i], oracle(values[i], weights[i]), rtol=1e-6)
    np.testing.assert_allclose(
        found["bias"][i], oracle(values[i, :, 0, 0], weights[i]), rtol=1e-6)
    if count:
      np.testing.assert_allclose(found["kernel"][i], np.median(
          values[i][weights[i] > 0], axis=0), rtol=1e-6)


def test_a_minority_of_nan_does_not_reach_the_median():
  sent = jnp.array([[1.0], [2.0], [3.0], [jnp.nan], [jnp.inf]])
  combine = aggregation.coordinate_median().combine
  for count, expected in ((3, 2.0), (5, 3.0)):
    weights = (jnp.arange(5) < count).astype(jnp.float32)
    assert combine(sent, weights, None, KEY) == expected
  assert jnp.isnan(combine(sent, jnp.array([1., 0, 0, 1, 0]), None, KEY))[0]


def test_the_mean_is_the_weighted_mean():
  sent = {"w": jnp.array([[1.0], [5.0], [jnp.nan]])}
  mean = aggregation.named("mean")
  weights = jnp.array([3.0, 1.0, 0.0])
  assert mean.is_mean and not aggregation.named("median").is_mean
  assert mean.combine(sent, weights, None, KEY)["w"] == 2.0
  assert trees.slot_mean(weights, sent)["w"] == 2.0


def test_an_unknown_name_gets_the_nearest():
  with pytest.raises(ValueError, match="aggregator=medain: unknown, did you "
                     "mean 'median'. .one of mean, median"):
    aggregation.named("medain")


@pytest.mark.parametrize(
    "name", sorted(aggregation.AGGREGATORS.keys() - {"mean"}))
def test_operations_grow_with_coordinates_and_slots(name):
  """In proportion to the former, at least so to the latter."""
  flops = aggregation.named(
      name, aggregation.Aggregation(aggregator=name)).flops
  assert flops(8, 100) > 8 * 100
  assert flops(8, 200) == 2 * flops(8, 100)
  assert flops(16, 100) >= 2 * flops(8, 100)
