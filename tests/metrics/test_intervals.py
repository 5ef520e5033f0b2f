"""How a mean is written with its interval."""

import numpy as np
import pytest

from fedjax_alg import metrics
from tests.each import each

pytestmark = pytest.mark.fast

VALUES = [0.90, 0.92, 0.94]  # half-width 4.3027 * 0.02 / sqrt(3) = 0.04968
NAN = float("nan")


def test_an_estimate_has_the_mean_its_interval_and_the_numbers():
  estimate = metrics.estimate_mean(VALUES)
  assert estimate.values == tuple(VALUES)
  assert estimate.mean == pytest.approx(0.92)
  assert estimate.ci95 == pytest.approx(0.049683, abs=1e-6)
  assert (estimate.mean, estimate.ci95) == metrics.confidence_95(VALUES)


def test_a_missing_number_leaves_no_mean():
  estimate = metrics.estimate_mean([0.5, None])
  assert estimate.values[0] == 0.5 and np.isnan(estimate.values[1])
  assert np.isnan(estimate.mean) and np.isnan(estimate.ci95)


def test_one_number_has_no_interval():
  estimate = metrics.estimate_mean(iter([0.5]))
  assert estimate.mean == 0.5 and np.isnan(estimate.ci95)


@each(
  "values, options, text",
  [
    (VALUES, {}, "0.92 +- 0.05"),
    (VALUES, dict(digits=1, factor=100), "92.0 +- 5.0"),
    (VALUES, dict(digits=0, factor=100), "92 +- 5"),
    (VALUES, dict(sign="+"), "+0.92 +- 0.05"),
    ([-0.5], dict(sign="+"), "-0.50"),
    ([0.5], {}, "0.50"),
    # Without digits the interval has two.
    (VALUES, dict(digits=None), "0.920 +- 0.050"),
    (VALUES, dict(digits=None, factor=100), "92.0 +- 5.0"),
    (VALUES, dict(digits=None, factor=1e4), "9200 +- 497"),
    ([0.123456], dict(digits=None), "0.1235"),
    ([0.5, 0.5], dict(digits=None), "0.5"),
    ([np.inf], dict(digits=None), "inf"),
    ([NAN], {}, "-"),
    (VALUES, dict(p=0.0123), "0.92 +- 0.05 (0.012)"),
    (VALUES, dict(p=NAN), "0.92 +- 0.05"),
    ([NAN], dict(p=0.0123), "-"),
    ([0.5, NAN], dict(digits=None), "-"),
    ([None, 0.5], {}, "-"),
  ],
)
def test_how_a_mean_is_written(values, options, text):
  estimate = metrics.estimate_mean(values)
  for numbers in (estimate, estimate._asdict()):
    assert str(metrics.number_of(numbers, **options)) == text


def test_what_a_summary_lacks_is_null():
  """JSON has no NaN."""
  assert metrics.format_estimate(None) == "-"
  assert metrics.format_estimate({"mean": None, "ci95": None}) == "-"
  assert metrics.format_estimate({"mean": 0.5, "ci95": None}, None, 100) == "50"


def test_a_format_writes_a_number_in_its_way():
  number = metrics.number_of(metrics.estimate_mean(VALUES), 1, 100, "+", 0.04)
  assert (number.mean, number.form, number.sign) == (pytest.approx(92), ".1f", "+")
  assert number.write(" (", "**{}**") == "**+92.0** (5.0 (0.04)"
  assert metrics.Number(1234.5, form=",.0f").write(mean_as="<{}>") == "<1,234>"
  assert metrics.Number(None, p=0.5).write(mean_as="**{}**") == "-"
