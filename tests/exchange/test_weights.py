"""Weights of the participants in a mean."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.data import layout
from fedjax_alg.exchange.weights import participation
from tests import problems


def test_weights_of_participants_and_padding(problem):
  cohort = layout.take_cohort(problem.data, jnp.array([1, 12, 5], jnp.int32))
  sizes = [problems.SIZES[1], 0, problems.SIZES[5]]
  np.testing.assert_array_equal(participation("examples")(cohort), sizes)
  np.testing.assert_array_equal(participation("uniform")(cohort), [1, 0, 1])


def test_no_other_weights():
  with pytest.raises(ValueError, match="client_weights=equal: must be one of"):
    participation("equal")
