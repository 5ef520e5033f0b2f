"""Pairs of float32 against float64."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedjax_alg import models
from fedjax_alg.algorithms.fedacnnl import FedACnnLHParams, fedacnnl
from fedjax_alg.base import Shard
from fedjax_alg.data import layout
from fedjax_alg.engine import sharding
from fedjax_alg.engine.clients import AXIS, ClientMap
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.errors import OptionError
from fedjax_alg.least_squares import moments, pairs, solve
from tests import problems


def split(x):
  hi = np.asarray(x, np.float32)
  return pairs.Pair(jnp.asarray(hi), jnp.asarray(x - hi, jnp.float32))


def exact(x):
  return np.asarray(x.hi, np.float64) + np.asarray(x.lo, np.float64)


def test_arithmetic():
  rng = np.random.default_rng(0)
  a, b = (
    split(rng.normal(size=500) * 10.0 ** rng.integers(-9, 9, 500)) for _ in range(2)
  )
  x, y = exact(a), exact(b)
  plus, minus, times, over, total = jax.jit(
    lambda a, b: (a + b, a - b, a * b, a / b, pairs.sum_over(a, 0))
  )(a, b)
  for actual, expected, size in (
    (plus, x + y, abs(x) + abs(y)),
    (minus, x - y, abs(x) + abs(y)),
    (times, x * y, abs(x * y)),
    (over, x / y, abs(x / y)),
    (total, x.sum(), abs(x).sum()),
  ):
    assert (np.abs(exact(actual) - expected) <= pairs.EPS * size).all()


@pytest.mark.parametrize("kinds", ("pp", "pf", "ff"))
def test_products_of_matrices(kinds):
  """Of several blocks; a row of zeros."""
  rng = np.random.default_rng(1)
  a, b = rng.normal(size=(5, 150)), rng.normal(size=(150, 3))
  a[2] = 0
  a, b = (
    split(x) if kind == "p" else jnp.asarray(x, jnp.float32)
    for kind, x in zip(kinds, (a, b))
  )
  actual = exact(problems.quick_jit(pairs.matmul)(a, b))
  a, b = (exact(pairs.pair(x)) for x in (a, b))
  bound = 150 * np.abs(a).max(1)[:, None] * np.abs(b).max(0)
  relative = 2.0**-36 if kinds == "ff" else pairs.EPS
  assert (np.abs(actual - a @ b) <= relative * bound).all()


def test_the_sum_over_devices_keeps_the_second_half():
  mesh = sharding.clients_mesh()
  devices = mesh.devices.size if mesh is not None else 1
  if devices == 1:
    pytest.skip("one device")
  x = split(np.random.default_rng(2).normal(size=(devices, 9)))
  spec = PartitionSpec(AXIS)
  actual = jax.jit(
    jax.shard_map(
      lambda x: pairs.over_devices(x[0], AXIS),
      mesh=mesh,
      in_specs=spec,
      out_specs=PartitionSpec(),
      check_vma=False,
    )
  )(x)
  np.testing.assert_allclose(exact(actual), exact(x).sum(0), atol=1e-13)


VIEW = models.layer_views((), 10, (64,))[0]


def weights_of_digits(x, y, ridge):
  """The weights of one dense layer, in pairs and without."""
  shard = Shard(x, y, jnp.int32(0), jnp.int32(1797))

  def fit(zero):
    sums = moments.add_shard(zero, VIEW, {}, shard, jnp.dtype("float32"))
    equations = solve.problem(sums, VIEW, jnp.eye(10)[:, None], "ones")
    return solve.solve(equations.gram, equations.cross, ridge)

  zero = moments.zero_moments(VIEW, 10, jnp.dtype("float32"))
  return fit(moments.in_pairs(zero)), fit(zero)


@pytest.mark.program
def test_weights_on_an_ill_conditioned_matrix():
  """Pixels that are never bright: float32 alone finds no solution."""
  data = load_digits()
  rows = np.hstack([data.data / 16, np.ones((1797, 1))])
  ridge = 1e-5
  gram = rows.T @ rows + ridge * np.eye(65)
  assert np.linalg.cond(gram) > 1e9
  expected = np.linalg.solve(gram, rows.T @ np.eye(10)[data.target])
  padded = np.zeros((1797 + layout.PADDING_ROWS, 64), np.float32)
  padded[:1797] = data.data / 16
  labels = np.zeros(len(padded), np.int32)
  labels[:1797] = data.target
  in_pairs, plain = problems.quick_jit(weights_of_digits)(padded, labels, ridge)
  size = np.linalg.norm(expected)
  assert np.linalg.norm(in_pairs - expected) < 1e-6 * size
  assert not np.linalg.norm(plain - expected) < 1e-2 * size


@pytest.mark.program
def test_filters_the_way_to_another_solution_and_a_singular_matrix():
  rng = np.random.default_rng(3)
  rows = rng.normal(size=(90, 70)) * np.logspace(0, -3, 70)
  a, c, prior = (
    rows.T @ rows,
    rng.normal(size=(70, 2)),
    rng.normal(size=(70, 2)).astype(np.float32),
  )
  both = problems.quick_jit(
    lambda a, c, ridge: (
      solve.solve(a, c, ridge, jnp.asarray(prior)),
      solve.random_filters(a, ridge, jnp.asarray(prior)),
    )
  )
  solution, filters = both(split(a), split(c), jnp.float32(0.25))
  a = a + 0.25 * np.eye(70)
  np.testing.assert_allclose(solution, np.linalg.solve(a, c + 0.25 * prior), rtol=1e-5)
  np.testing.assert_allclose(
    filters, np.linalg.solve(np.linalg.cholesky(a).T, prior), rtol=2e-5
  )
  for nothing in both(split(np.ones((70, 70))), split(c), jnp.float32(0)):
    assert np.isnan(nothing).all()


@pytest.mark.program
@pytest.mark.parametrize("double, has_float64", [("pairs", False), ("float64", True)])
def test_a_program_for_a_tpu_holds_no_float64(problem, double, has_float64):
  shape, classes = problem.data.x.shape[1:], problem.spec.num_classes
  model = models.make_model("stack", shape, classes, layers=("dense4",))
  algorithm = fedacnnl(
    model,
    FedACnnLHParams(bias="centred", normalize=True, double=double),
    map_clients=ClientMap(),
  )
  cohort = sample_cohort(problem.data, 3, jax.random.key(0))
  state = jax.eval_shape(
    lambda: algorithm.init(
      model.init(jax.random.key(0)), problem.spec, jax.random.key(1)
    )
  )
  text = (
    jax.jit(algorithm.round)
    .trace(state, cohort, jax.random.key(2))
    .lower(lowering_platforms=("tpu",))
    .as_text()
  )
  assert ("f64" in text) == has_float64


def test_another_way_to_compute_doubles():
  model = models.make_model("softmax", (6,), 3)
  with pytest.raises(OptionError, match="double=float16"):
    fedacnnl(model, FedACnnLHParams(double="float16"), map_clients=ClientMap())
