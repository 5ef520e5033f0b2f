"""How JAX is started for the tests, and the small problems they share."""

import os

import hypothesis
import jax
import pytest

from fedjax_alg.engine import sharding
from tests import problems

# Before JAX starts. A run on an accelerator sets JAX_PLATFORMS itself.
if "JAX_PLATFORMS" not in os.environ:
  jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The same examples on every machine; the first call of each compiles.
hypothesis.settings.register_profile(
    "fedjax_alg", deadline=None, derandomize=True, database=None,
    max_examples=40)
hypothesis.settings.load_profile("fedjax_alg")


@pytest.fixture(scope="session", name="mesh")
def fixture_mesh():
  """Four CPU devices with one axis ``clients``."""
  return sharding.clients_mesh(jax.devices("cpu")[:4])


@pytest.fixture(scope="session", name="problem")
def fixture_problem():
  """12 unlike clients, softmax regression."""
  return problems.softmax_problem()


@pytest.fixture(scope="session", name="image_problem")
def fixture_image_problem():
  """5 clients of 6 x 6 images."""
  return problems.image_problem()
