"""How much clients differ: intraclass correlations by their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_alg.metrics.differences import (
  ClientExamples,
  client_differences,
  intraclass_correlation,
)

pytestmark = pytest.mark.fast

SIZES = [3, 7, 2, 5]


@pytest.fixture(name="rng")
def fixture_rng():
  return np.random.default_rng(0)


def by_f_test(values, groups):
  """ICC(1) of one column from SciPy's F: (F - 1) / (F - 1 + n0)."""
  parts = [values[groups == g] for g in np.unique(groups)]
  f = stats.f_oneway(*parts).statistic
  sizes = np.array([len(part) for part in parts])
  n0 = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
  return (f - 1) / (f - 1 + n0)


def test_a_column_is_that_of_scipys_f_test(rng):
  """With unequal groups in any order; the F test has the same sums of squares."""
  groups = rng.permutation(np.repeat(np.arange(4), SIZES))
  values = rng.normal(size=len(groups)) + groups
  assert intraclass_correlation(values[:, None], groups) == pytest.approx(
    by_f_test(values, groups)
  )


def test_columns_and_strata_add_their_sums_of_squares(rng):
  """By loops over strata, groups and columns."""
  groups, strata = rng.integers(0, 3, 40), rng.integers(0, 2, 40)
  values = rng.normal(size=(40, 2)) * [1.0, 3.0] + groups[:, None]
  between = within = freedom = n0 = 0.0
  for stratum in range(2):
    rows = strata == stratum
    mean = values[rows].mean(0)
    sizes = np.array([(rows & (groups == g)).sum() for g in range(3)])
    assert (sizes > 1).all()
    for g in range(3):
      part = values[rows & (groups == g)]
      between += (len(part) * (part.mean(0) - mean) ** 2).sum()
      within += ((part - part.mean(0)) ** 2).sum()
    freedom += 2
    n0 += sizes.sum() - (sizes**2).sum() / sizes.sum()
  msb, msw, n0 = between / freedom, within / (40 - 6), n0 / freedom
  expected = (msb - msw) / (msb + (n0 - 1) * msw)
  actual = intraclass_correlation(values, groups, strata)
  assert actual == pytest.approx(expected)
  # Shifting a stratum as a of_all, or scaling all, changes nothing.
  shifted = 7 * (values + 100.0 * strata[:, None])
  assert intraclass_correlation(shifted, groups, strata) == pytest.approx(expected)


def test_equal_rows_of_a_group_are_one_and_random_groups_zero_on_average(rng):
  groups = np.repeat(np.arange(5), 4)
  assert intraclass_correlation(groups[:, None] * 1.0, groups) == pytest.approx(1.0)
  deals = [intraclass_correlation(rng.normal(size=(20, 3)), groups) for _ in range(300)]
  assert abs(np.mean(deals)) < 3 * np.std(deals) / np.sqrt(300)
  assert np.isnan(intraclass_correlation(np.zeros((4, 1)), np.zeros(4, int)))


def clients_of(x, y, owner, step=None):
  return [
    ClientExamples(
      x[owner == c], y[owner == c], None if step is None else step[owner == c]
    )
    for c in range(owner.max() + 1)
  ]


def test_gradients_are_those_of_softmax_regression_at_zero(rng):
  """By JAX's derivative of the loss of each example, and their correlation."""
  owner = np.repeat(np.arange(6), 10)
  y = (owner + rng.integers(0, 2, 60)) % 3
  x = rng.normal(size=(60, 4)) + 2 * np.eye(3, 4)[y]

  def loss(w, x, y):
    return -jax.nn.log_softmax(x @ w)[y]

  gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(
    jnp.zeros((4, 3)), jnp.asarray(x), jnp.asarray(y)
  )
  expected = intraclass_correlation(np.asarray(gradients).reshape(60, -1), owner)
  measured = client_differences(clients_of(x, y, owner), 3)
  assert expected > 0.1 and measured.gradients == pytest.approx(expected, rel=1e-4)


@pytest.mark.program
def test_each_difference_shows_in_its_measures(rng):
  """And where clients are dealt at random nothing differs, nearly always."""
  n, size = 40, 30
  owner = np.repeat(np.arange(n), size)
  y = np.tile(np.arange(3), n * size // 3)
  centers = rng.normal(size=(3, 8)) * 2
  x = centers[y] + rng.normal(size=(len(y), 8))

  def measures(x=x, y=y, owner=owner, step=None):
    return client_differences(clients_of(x, y, owner, step), 3)._asdict()

  def differ(measured):
    return {name for name, value in measured.items() if value > 0.02}

  assert not differ(measures())
  few = (owner % 3)[:, None] == 0  # a third of the clients
  assert differ(measures(x=x + 3.0 * few)) >= {"features", "meaning"}
  swapped = np.where(few[:, 0], (y + 1) % 3, y)
  measured = differ(measures(y=swapped))
  assert "meaning" in measured and not measured & {"labels", "features", "lengths"}
  noisy = x + rng.normal(size=x.shape) * owner[:, None] / 10
  measured = differ(measures(x=noisy))
  assert "scatter" in measured and not measured & {"labels", "features", "meaning"}
  of_two = np.where(y == 2, owner % 2, y)
  assert "labels" in differ(measures(x=centers[of_two] + x - centers[y], y=of_two))
  step = np.tile(np.arange(size) // 15, n)
  assert not differ(measures(step=step))
  turned = np.where(step == 1, (y + 1) % 3, y)
  measured = differ(measures(y=turned, step=step))
  assert "time" in measured and not measured & {"labels", "features"}


def test_mixtures_are_the_spread_of_entropies(rng):
  """Half of the clients have one class, half have two alike: 0 and log 2."""
  owner = np.repeat(np.arange(20), 10)
  y = np.where(owner % 2 == 0, 0, np.arange(200) % 2)
  measured = client_differences(clients_of(rng.normal(size=(200, 2)), y, owner), 2)
  share = y.mean()
  of_all = -(share * np.log(share) + (1 - share) * np.log(1 - share))
  assert measured.mixtures == pytest.approx(np.std([0, np.log(2)]) / of_all)


def test_few_rows_of_many_numbers_are_read(rng, monkeypatch):
  """Evenly spaced, so that a client of sorted examples stays as it is."""
  monkeypatch.setattr("fedjax_alg.metrics.differences._MOST", 40)
  owner = np.repeat(np.arange(2), 100)
  x = np.stack([np.arange(200.0), owner]).T
  measured = client_differences(clients_of(x, owner, owner), 2)
  assert measured.labels == pytest.approx(1.0)


@pytest.mark.parametrize("sizes", [[], [5], [5, 0], [1, 1]])
def test_too_few_clients_or_examples_are_refused(sizes):
  clients = [ClientExamples(np.ones((n, 2)), np.zeros(n, int)) for n in sizes]
  with pytest.raises(ValueError, match="fewer than two clients"):
    client_differences(clients, 2)
