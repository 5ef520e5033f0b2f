"""Correlated noise: its covariance, what one client can move, what is refused."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.special

import fedjax_alg as fa
from fedjax_alg.base import Draw
from fedjax_alg.exchange import correlated
from fedjax_alg.exchange.privacy import CorrelatedNoise, FixedClipping
from tests.algorithms import bridge

pytest.importorskip("jax_privacy")


def factor(bands, rounds):
  """C of the papers, [rounds, rounds]: binom(2k, k) / 4^k in so many bands."""
  k, column = np.arange(bands), np.zeros(max(rounds, bands))
  column[:bands] = scipy.special.binom(2 * k, k) / 4.0**k
  column /= np.linalg.norm(column)
  return scipy.linalg.toeplitz(column[:rounds], np.zeros(rounds))


@pytest.mark.parametrize("bands, buffers", [(4, 0), (1, 3)])
def test_the_sum_of_noises_has_the_covariance_of_the_factorization(
  problem, bands, buffers
):
  """Noise that only looks random enough would spend more than epsilon says."""
  rounds, size, norm, z, expected = 9, 40_000, 0.5, 1.3, 4.0
  matrix = factor(bands, rounds)
  if buffers:
    column = correlated.first_column(1, buffers, rounds)
    optimal = factor(rounds, rounds)[:, 0]
    np.testing.assert_allclose(column, optimal / optimal[0], rtol=0.25)
    matrix = scipy.linalg.toeplitz(column, np.zeros(rounds))
  kind = {"buffers": buffers} if buffers else {"bands": bands}
  rule = CorrelatedNoise(norm, z, **kind).build(1)
  cohort = bridge.cohort_of(problem, [0, 3])._replace(draw=Draw(expected))
  kept = rule.keeps(jnp.zeros(size))
  combine = jax.jit(
    lambda key, kept: rule.combine(jnp.zeros((2, size)), None, cohort, key, kept)
  )
  sums, total = [], 0.0
  for number in range(rounds):
    noise, kept = combine(jax.random.key(number), kept)
    total = total + np.asarray(noise, float) / (norm * z / expected)
    sums.append(total)
  actual = np.cov(sums)
  weights = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix)
  covariance = weights @ weights.T
  variance = np.diag(covariance)
  error = np.sqrt((np.outer(variance, variance) + covariance**2) / size)
  assert (abs(actual - covariance) < 5 * error).all()
  assert variance[-1] < 0.6 * rounds * np.sum(matrix[:, 0] ** 2)


@pytest.mark.parametrize("bands, buffers", [(1, 0), (3, 0), (6, 0), (1, 2)])
def test_no_pattern_of_participations_moves_more_than_the_sensitivity(bands, buffers):
  rounds = 9
  column = correlated.first_column(bands, buffers, rounds)
  matrix = scipy.linalg.toeplitz(column, np.zeros(rounds))
  patterns = np.array(list(itertools.product([0, 1], repeat=rounds)))
  moves = np.linalg.norm(patterns @ matrix.T, axis=1)
  for separation in (1, 2, 4):
    allowed = [
      all(b - a >= separation for a, b in itertools.pairwise(np.flatnonzero(row)))
      for row in patterns
    ]
    actual = correlated.sensitivity(column, separation)
    assert actual == pytest.approx(moves[allowed].max())


@pytest.mark.program
def test_one_band_is_independent_noise_to_the_bit(problem):
  cohort = bridge.cohort_of(problem, [0, 3, 5])._replace(draw=Draw(3.0))
  rows = {"a": np.random.default_rng(0).normal(size=(3, 7, 2)).astype(np.float32)}
  means = []
  for part in (FixedClipping(0.7, 1.1), CorrelatedNoise(0.7, 1.1, bands=1)):
    rule = part.build(1)
    assert rule.keeps is None
    means.append(rule.combine(rows, None, cohort, jax.random.key(0)))
  np.testing.assert_array_equal(means[0]["a"], means[1]["a"])


OPTIONS = dict(
  cohort_size=4,
  sampling="cyclic",
  private="ftrl:bands=3",
  local_steps=1,
  seeds=(3,),
)


@pytest.mark.program
def test_epsilon_is_that_of_turns_and_a_run_goes_on_to_the_bit(tmp_path):
  """What the server keeps of earlier noise is in the checkpoint."""
  accounting = pytest.importorskip("dp_accounting")
  fed = fa.federate("digits", num_clients=12, partition="iid")
  run = dict(OPTIONS, private=CorrelatedNoise(noise=4.0, bands=3))
  whole = fa.run("fedavg", fed, rounds=4, eval_every=2, **run)
  folder = tmp_path / "run"
  fa.run("fedavg", fed, rounds=2, eval_every=2, out_dir=folder, **run)
  resumed = fa.run("fedavg", fed, rounds=4, eval_every=2, out_dir=folder, **run)
  jax.tree.map(
    np.testing.assert_array_equal, whole.global_params(), resumed.global_params()
  )
  # Three turns, so the fourth round is a second participation. By three bands of
  # norm 1 the two are orthogonal.
  for rounds, times in ((1, 1), (3, 1), (4, 2)):
    column = factor(3, rounds)[:, 0]
    moved = (
      np.linalg.norm(column) if rounds < 4 else (1 + factor(3, 4)[0, 0] ** 2) ** 0.5
    )
    assert moved <= times**0.5
    assert whole.history["epsilon"][0, rounds - 1] == pytest.approx(
      accounting.get_epsilon_gaussian(4.0 / moved, 1e-5)
    )


def test_refusals(problem, monkeypatch):
  fed = fa.federate("digits", num_clients=12, partition="iid")
  for options, why in (
    (dict(sampling="poisson"), "^private=ftrl: needs sampling=cyclic, not poisson"),
    ({"private.at": "clients"}, "private=ftrl:bands=3: has no field at"),
    ({"private.buffers": 2}, "bands=3: buffers=2"),
  ):
    with pytest.raises(ValueError, match=why):
      fa.run("fedavg", fed, rounds=1, **OPTIONS | options)
  with pytest.raises(ValueError, match=r"not of one length \(give adaptive\)"):
    bridge.build(
      problem, "fsvrg", private="ftrl", local_scaling=False, aggregate_scaling="none"
    )
  monkeypatch.setitem(sys.modules, "jax_privacy.matrix_factorization.toeplitz", None)
  with pytest.raises(ValueError, match=r"pip install 'fedjax_alg\[private\]'"):
    correlated.inverse(2, 0)
