"""Shapes in annotations are checked while tests run."""

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from fedjax_alg.central import feature_statistics
from fedjax_alg.client import objective
from fedjax_alg.exchange import robust
from fedjax_alg.grouping import lloyd, nearest_centre
from fedjax_alg.least_squares import solve
from tests import shapes

ROWS, MASK, RIDGE = jnp.ones((6, 3)), jnp.ones(6, bool), jnp.float32(1)

#: package -> a call with a wrong shape
WRONG = {
  "fedjax_alg.central": lambda: feature_statistics.scale_aggregate(
    None, "none", None, jnp.ones(1), {}
  ),
  "fedjax_alg.client": lambda: objective.masked_sum(jnp.ones(5), MASK),
  "fedjax_alg.exchange.robust": lambda: robust.krum({"w": ROWS}, jnp.ones((6, 1)), 0.1),
  "fedjax_alg.grouping": lambda: lloyd(ROWS, MASK[:5], ROWS[:2]),
  "fedjax_alg.least_squares": lambda: solve.by_rows(ROWS, ROWS[:1], RIDGE, ROWS[:3]),
}


@pytest.mark.parametrize("package", shapes.PACKAGES)
def test_every_package_is_checked(package):
  """Without it a hook that is off would be noticed by nobody."""
  with pytest.raises(jaxtyping.TypeCheckError, match=f"the parameters of {package}"):
    jax.eval_shape(WRONG[package])


def test_results_are_checked_as_well():
  @jaxtyping.jaxtyped(typechecker=shapes.check)
  def transpose(
    rows: jaxtyping.Float[jax.Array, "n d"],
  ) -> jaxtyping.Float[jax.Array, "n d"]:
    return rows.T

  transpose(ROWS[:3])
  with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
    transpose(ROWS)


def test_a_dtype_is_checked_too():
  with pytest.raises(jaxtyping.TypeCheckError, match="'vector'"):
    nearest_centre(jnp.ones(3, jnp.int32), ROWS)


def test_what_has_no_shape_is_not_checked():
  @jaxtyping.jaxtyped(typechecker=shapes.check)
  def first(name: str, share: jaxtyping.Float[jax.Array, ""] | float) -> list[str]:
    return name  # type: ignore[return-value]

  assert first(1, 1) == 1  # a whole number is a share, too
  with pytest.raises(jaxtyping.TypeCheckError, match="'share'"):
    first("", jnp.ones(1))


@pytest.mark.usefixtures("unchecked_shapes")
def test_users_meet_the_checks_of_the_functions_themselves():
  with pytest.raises(AssertionError, match="mask: one entry for each row"):
    WRONG["fedjax_alg.grouping"]()
