"""The number of pairs that a paired test needs, against simulated tests."""

import numpy as np
import pytest
from scipy import integrate, stats

import fedjax_alg as fa
from fedjax_alg.runs import power
from tests import made_runs
from tests.each import each


@pytest.mark.parametrize("pairs, effect", [(3, 1.0), (5, 1.0), (10, 0.5), (20, 0.0)])
def test_power_is_the_share_of_simulated_tests_below_the_level(pairs, effect):
  """Not a formula of the same kind: the tests are done."""
  rng = np.random.default_rng(pairs)
  draws = effect + rng.standard_normal((200_000, pairs))
  share = (stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05).mean()
  # Five standard errors of the share.
  error = 5 * np.sqrt(share * (1 - share) / len(draws))
  assert power.power_of_pairs(pairs, effect) == pytest.approx(share, abs=error)


@pytest.mark.parametrize(
  "difference, spread, level", [(0.01, 0.02, 0.8), (0.05, 0.02, 0.8), (0.01, 0.03, 0.9)]
)
def test_one_pair_less_has_not_the_power(difference, spread, level):
  number = fa.sample_size(difference, spread, power=level)
  effect = difference / spread
  assert power.power_of_pairs(number, effect) >= level
  assert number == 2 or power.power_of_pairs(number - 1, effect) < level
  assert fa.sample_size(-difference, spread, power=level) == number


def power_by_integral(pairs, effect, alpha):
  """The power of the test, integrated over the standard deviation of the pairs."""
  freedom, shift = pairs - 1, effect * np.sqrt(pairs)
  limit = stats.t.ppf(1 - alpha / 2, freedom)

  def density(spread):
    passes = stats.norm.sf(limit * spread - shift)
    passes += stats.norm.cdf(-limit * spread - shift)
    root = np.sqrt(freedom)
    return passes * stats.chi.pdf(spread * root, freedom) * root

  width = 12 / np.sqrt(2 * freedom)
  return integrate.quad(density, max(0, 1 - width), 1 + width, limit=200)[0]


@pytest.mark.parametrize("alpha, effect", [(1e-4, 0.3), (2e-4, 0.4), (2.5e-4, 0.3)])
def test_small_levels_need_the_smallest_number_of_pairs(alpha, effect):
  """NaN of the wrong side was no power: 277 pairs in the place of 257, and so on."""
  number = fa.sample_size(effect, 1.0, alpha=alpha)
  assert power_by_integral(number, effect, alpha) >= 0.8
  assert power_by_integral(number - 1, effect, alpha) < 0.8


def test_the_power_is_a_number_at_every_level():
  """SciPy's series of the wrong side ends in NaN for some shifts and small levels."""
  numbers = [
    power.power_of_pairs(int(pairs), effect, alpha)
    for alpha in (0.05, 1e-3, 1e-5, 1e-7)
    for effect in (0.0, 0.01, 0.1, 0.3, 1.0, 5.0, 100.0)
    for pairs in np.geomspace(2, 1e5, 12)
  ]
  assert ((np.array(numbers) >= 0) & (np.array(numbers) <= 1)).all()


def test_many_pairs_are_as_many_as_for_a_normal_statistic():
  """The t distribution is normal then: n = (z_alpha + z_power)^2 / effect^2."""
  z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
  assert fa.sample_size(0.001, 0.1) == pytest.approx(z**2 * 10_000, rel=1e-3)
  assert fa.sample_size(1e9, 1e-9) == 2
  assert fa.sample_size(0.1, 0) == 2


def test_the_spread_of_a_comparison_is_that_of_its_widest_pair(tmp_path):
  scores = {
    "a": [[0.5], [0.6], [0.7]],
    "b": [[0.6], [0.7], [0.85]],
    "c": [[0.6], [0.9], [0.8]],
  }
  comparison = fa.compare(
    {
      name: fa.load_run(made_runs.write(tmp_path / name, of))
      for name, of in scores.items()
    }
  )
  widths = [np.std(np.subtract(scores[name], scores["a"]), ddof=1) for name in "bc"]
  assert widths[0] < widths[1]
  for spread, width in (
    (comparison, widths[1]),
    (comparison.pairs[0], widths[0]),
  ):
    assert fa.sample_size(0.1, spread) == fa.sample_size(0.1, width)


@each(
  "values, name",
  [
    (dict(difference=0, spread=1), "difference"),
    (dict(difference=np.nan, spread=1), "difference"),
    (dict(difference="1", spread=1), "difference"),
    (dict(difference=1, spread=-1), "spread"),
    (dict(difference=1, spread=np.inf), "spread"),
    (dict(difference=1, spread=None), "spread"),
    (dict(difference=1, spread=1, power=1), "power"),
    (dict(difference=1, spread=1, power=0.01), "power"),
    (dict(difference=1, spread=1, alpha=0), "alpha"),
    (dict(difference=1e-9, spread=1), "difference"),
  ],
)
def test_what_cannot_be_is_named(values, name):
  with pytest.raises(fa.OptionError, match=f"^{name}\\b"):
    fa.sample_size(**values)


def test_a_comparison_without_pairs_is_refused(tmp_path):
  one_seed = {
    name: fa.load_run(made_runs.write(tmp_path / name, [[0.5]])) for name in "ab"
  }
  with pytest.raises(fa.OptionError, match="^spread"):
    fa.sample_size(0.1, fa.compare(one_seed))
