"""Private moments: the bound holds for every client, noise, definite sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.algorithms import fedacnnl
from fedjax_alg.engine import clients
from fedjax_alg.least_squares import codes, private
from fedjax_alg.least_squares.moments import Moments
from fedjax_alg.least_squares.private import NoisedMoments

D, L, UNIT = 5, 3, 2.0
KEY = jax.random.key(11)
clip = jax.jit(private.clip_moments, static_argnums=0)


def moments_of(rng, rows, size=1.0):
  """The sums of a client by NumPy, and v of it."""
  x = size * rng.normal(size=(rows, D))
  y = np.eye(L)[rng.integers(L, size=rows)]
  sums = Moments(x.T @ x, x.sum(0), y.T @ x, y.sum(0))
  return sums, vector(sums)


def vector(moments):
  """svec(X'X) / R^2 and the others, as the docstring says."""
  gram = np.asarray(moments.gram, float)
  upper = np.triu_indices(D, 1)
  return np.concatenate(
    [
      np.diagonal(gram) / UNIT**2,
      2**0.5 * gram[upper] / UNIT**2,
      np.asarray(moments.total) / UNIT,
      np.asarray(moments.classes).reshape(-1) / UNIT,
      np.asarray(moments.counts),
    ]
  )


@pytest.mark.parametrize("size", [1e-6, 0.1, 1.0, 1e3])
def test_the_bound_holds_for_every_client(size):
  options = NoisedMoments(7.0, unit=UNIT)
  rng = np.random.default_rng(0)
  for rows in (1, 4, 300):
    sums, v = moments_of(rng, rows, size)
    clipped = clip(options, jax.tree.map(np.float32, sums))
    length = np.linalg.norm(vector(clipped))
    assert length <= 7.0 * (1 + 1e-5)
    np.testing.assert_allclose(length, min(np.linalg.norm(v), 7.0), rtol=1e-4)
    factor = np.asarray(clipped.counts).sum() / rows
    np.testing.assert_allclose(
      clipped.gram, factor * sums.gram, rtol=1e-3, atol=1e-5 * size**2
    )
  broken = sums._replace(gram=sums.gram + np.inf)
  for part in jax.tree.leaves(clip(options, jax.tree.map(np.float32, broken))):
    np.testing.assert_array_equal(part, 0)


def test_a_row_counts_two_at_most():
  rng = np.random.default_rng(1)
  for _ in range(20):
    row = rng.normal(size=D)
    row *= UNIT / np.linalg.norm(row)
    y = np.eye(L)[1]
    np.testing.assert_allclose(
      np.linalg.norm(vector(Moments(np.outer(row, row), row, np.outer(y, row), y))), 2.0
    )


@pytest.mark.program
def test_the_noise_is_symmetric_and_has_the_stated_variance():
  options = NoisedMoments(7.0, 1.5, unit=UNIT)
  zeros = Moments(jnp.zeros((D, D)), jnp.zeros(D), jnp.zeros((L, D)), jnp.zeros(L))
  noises = jax.device_get(
    jax.jit(jax.vmap(lambda key: private.noise(options, zeros, key)))(
      jax.random.split(KEY, 500)
    )
  )
  np.testing.assert_array_equal(noises.gram, noises.gram.swapaxes(1, 2))
  vectors = np.stack(
    [vector(jax.tree.map(lambda part, i=i: part[i], noises)) for i in range(500)]
  ) / (1.5 * 7.0)
  low, high = scipy.stats.chi2.ppf([1e-5, 1 - 1e-5], 500)
  sums = (vectors**2).sum(0)
  assert low < sums.min() and sums.max() < high  # of every coordinate
  correlation = np.corrcoef(vectors.T) - np.eye(vectors.shape[1])
  assert abs(correlation).max() < 0.25


def test_the_floor_makes_a_matrix_definite():
  options = NoisedMoments(7.0, 0.5, unit=UNIT)
  rng = np.random.default_rng(2)
  a = rng.normal(size=(D, D)) * 60
  a = (a + a.T) / 2
  floor = 0.5 * 7.0 * UNIT**2 * (2 * D) ** 0.5
  values, vectors = np.linalg.eigh(a)
  assert values.min() < floor < values.max()
  expected = vectors @ np.diag(np.maximum(values, floor)) @ vectors.T
  np.testing.assert_allclose(
    jax.jit(private.definite, static_argnums=0)(options, np.float32(a)),
    expected,
    rtol=1e-4,
    atol=1e-3,
  )
  # It is the radius of the noise's spectrum.
  noise = jax.jit(
    lambda key: private.noise(
      options,
      Moments(*(jnp.zeros(s) for s in ((200, 200), (200,), (1, 200), (1,)))),
      key,
    )
  )(KEY).gram
  radius = abs(np.linalg.eigvalsh(noise)).max()
  assert 0.9 < radius / (0.5 * 7.0 * UNIT**2 * 400**0.5) < 1.1


@pytest.mark.slow
def test_a_wide_bound_without_noise_is_the_run_without_privacy():
  fed = fa.federate("digits", num_clients=12, partition="iid")
  plain, wide = (
    fa.run("fedacnnl", fed, model="mlp:6", evaluate=("global",), **options)
    for options in ({}, dict(private=NoisedMoments(1e9, 0.0)))
  )
  for a, b in zip(*(jax.tree.leaves(run.global_params()) for run in (plain, wide))):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  assert wide.history["epsilon"].tolist() == [[np.inf, np.inf]]


@pytest.mark.program
def test_noised_moments_of_many_rows_still_fit():
  fed = fa.federate("digits", num_clients=12, partition="iid")
  run = fa.run(
    "afl",
    fed,
    evaluate=("global",),
    private="moments:noise=0.05,unit=4",
  )
  assert 0.3 < run.metrics["global"]["accuracy"][0, -1] < 0.95
  ((epsilon,),) = run.history["epsilon"]
  assert 100 < epsilon < np.inf


def test_what_reads_more_than_the_sums_is_refused(image_problem):
  for name, options, why in (
    ("fedacnnl", dict(code="class:centred"), "not with code=class:centred"),
    ("pfedacnnl", {}, "it sends sums over its data, not updates"),
  ):
    with pytest.raises(ValueError, match=why):
      registry.build(
        name,
        image_problem.model,
        private="moments",
        map_clients=clients.ClientMap(),
        **options,
      )


def test_a_text_in_hyper_parameters_is_read(problem):
  """Else a builder that is called directly would train without privacy."""
  with pytest.raises(ValueError, match="not with `?code"):
    fedacnnl.fedacnnl(
      problem.model,
      fedacnnl.FedACnnLHParams(
        private="moments:10,2", code=codes.ClassCode(centred=True)
      ),
      map_clients=clients.ClientMap(),
    )


def test_noise_of_other_sums_is_refused(monkeypatch):
  """It was checked in a function that no run called."""
  noise = private.noise

  def of_one_class(*arguments):
    sample = noise(*arguments)
    return sample._replace(counts=sample.counts[:1])

  monkeypatch.setattr(private, "noise", of_one_class)
  fed = fa.federate("digits", num_clients=2, partition="iid")
  with pytest.raises(AssertionError, match="assert_trees_all_equal_shapes"):
    fa.run("afl", fed, evaluate=("global",), private="moments:noise=0.05,unit=4")
