"""What would broadcast in silence is refused when it is traced."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_alg import grouping

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

S, D, K = 6, 3, 2
POINTS, MASK = jnp.ones((S, D)), jnp.ones(S, bool)
SQUARE = jnp.ones((S, S))
KEY = jax.random.key(0)

#: entry point -> a call with points or a matrix, and a mask
MASKED = {
  "lloyd": (lambda p, m: grouping.lloyd(p, m, POINTS[:K]), POINTS),
  "farthest_first": (lambda p, m: grouping.farthest_first(p, m, POINTS[0], K), POINTS),
  "plus_plus": (lambda p, m: grouping.plus_plus(p, m, KEY, K), POINTS),
  "kmeans": (lambda p, m: grouping.kmeans(p, m, KEY, K), POINTS),
  "project": (lambda p, m: grouping.project(p, m, 2), POINTS),
  "gram": (grouping.gram, POINTS),
  "distances": (lambda p, m: grouping.distances(p, m, "l2"), POINTS),
  "edc_points": (lambda p, m: grouping.edc_points(p, m, 2), SQUARE),
  "madc": (grouping.madc, SQUARE),
  "agglomerate": (
    lambda p, m: grouping.agglomerate(p, m, "average", num_groups=2),
    SQUARE,
  ),
}


def assert_refused(message, function, *args):
  with pytest.raises(AssertionError, match=message):
    jax.eval_shape(function, *args)


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_has_one_boolean_for_each_row(name):
  function, rows = MASKED[name]
  jax.eval_shape(function, rows, MASK)  # as it should be
  for mask in (MASK[:1], MASK[:-1], MASK[:, None]):
    assert_refused("mask: one entry for each row", function, rows, mask)
  assert_refused("bool", function, rows, MASK.astype(jnp.float32))
  assert_refused("must be .[Sn], [dn].", function, rows[0], MASK)


def test_centres_and_vectors_are_as_long_as_the_points():
  for width in (1, D + 1):
    assert_refused(
      "centres: rows as long",
      lambda c: grouping.lloyd(POINTS, MASK, c),
      jnp.ones((K, width)),
    )
    assert_refused(
      "origin: rows as long",
      lambda c: grouping.farthest_first(POINTS, MASK, c, K),
      jnp.ones(width),
    )
    assert_refused(
      "vectors: rows as long",
      lambda v: grouping.project_further(
        grouping.project(POINTS, MASK, 2), v, centre=True
      ),
      jnp.ones((4, width)),
    )
    assert_refused(
      "centres: rows as long",
      lambda v: grouping.nearest_centre(v, POINTS[:K]),
      jnp.ones(width),
    )
    assert_refused(
      "directions: rows as long",
      lambda v: grouping.closest_direction(v, POINTS[:K], MASK[:K]),
      jnp.ones(width),
    )
  assert_refused(
    "mask: one entry",
    lambda m: grouping.closest_direction(POINTS[0], POINTS[:K], m),
    MASK[:1],
  )
  assert_refused("assert_shape", grouping.cosine, SQUARE[:, :1])
