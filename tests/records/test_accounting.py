"""Epsilon against formulas, numbers of the accountant, and another accountant."""

import importlib
import math

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.records import accounting
from fedjax_alg.records.accounting import Mechanism

dp = pytest.importorskip("dp_accounting")


def plain(z, rounds, delta, orders):
  """By Mironov 2017: alpha / (2 z^2); to (epsilon, delta) by Canonne et al."""
  orders = np.asarray(orders)
  return float(
    np.min(
      rounds * orders / (2 * z * z)
      + np.log1p(-1 / orders)
      - np.log(delta * orders) / (orders - 1)
    )
  )


@pytest.mark.parametrize("z, rounds", [(4.0, 1), (1.0, 1), (2.0, 17)])
def test_all_clients_give_the_plain_gaussian(z, rounds):
  epsilon = Mechanism(z, 1e-5, 100, "all", 1.0).epsilon(rounds)
  orders = dp.rdp.RdpAccountant()._orders
  np.testing.assert_allclose(epsilon, plain(z, rounds, 1e-5, orders), rtol=1e-6)


def test_a_sum_over_integer_orders_gives_the_sampled_gaussian():
  """Mironov, Talwar, Zhang 2019, (3) of section 3.3, in NumPy."""
  z, q, rounds, delta = 1.1, 0.04, 200, 1e-5

  def divergence(alpha):
    terms = [
      math.log(math.comb(alpha, k))
      + (alpha - k) * math.log(1 - q)
      + k * math.log(q)
      + (k * k - k) / (2 * z * z)
      for k in range(alpha + 1)
    ]
    return np.logaddexp.reduce(terms) / (alpha - 1)

  bound = min(
    rounds * divergence(a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
    for a in range(2, 64)
  )
  epsilon = Mechanism(z, delta, 1000, "poisson", q).epsilon(rounds)
  assert 0.98 * bound < epsilon <= bound + 1e-9  # it has orders between these


def test_the_tutorials_example():
  """TF-Privacy's tutorial: q = 0.417 %, z = 1.3, 3600 steps: 1.18, order 17.

  Its conversion was still rdp + log(1 / delta) / (alpha - 1).
  """
  q, steps, delta = 250 / 60_000, 3600, 1e-5
  orders, divergences = map(np.array, accounting._of_a_round(1.3, "poisson", 60_000, q))
  bounds = steps * divergences + math.log(1 / delta) / (orders - 1)
  assert f"{bounds.min():.2f}" == "1.18" and orders[bounds.argmin()] == 17
  # The accountants by their public interface: RDP, and the tighter PLD.
  event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(1.3))
  rdp, pld = dp.rdp.RdpAccountant(), dp.pld.PLDAccountant()
  epsilon = Mechanism(1.3, delta, 60_000, "poisson", q).epsilon(steps)
  np.testing.assert_allclose(
    epsilon, rdp.compose(event, steps).get_epsilon(delta), rtol=1e-9
  )
  exact = pld.compose(event, steps).get_epsilon(delta)
  assert exact < epsilon < min(1.18, 1.2 * exact)


@pytest.mark.program
def test_a_replaced_client_counts_twice():
  fixed = Mechanism(2.0, 1e-5, 1000, "fixed", 0.05)
  accountant = dp.rdp.RdpAccountant(
    neighboring_relation=dp.NeighboringRelation.REPLACE_ONE
  )
  accountant.compose(
    dp.SampledWithoutReplacementDpEvent(1000, 50, dp.GaussianDpEvent(1.0)), 10
  )
  np.testing.assert_allclose(fixed.epsilon(10), accountant.get_epsilon(1e-5), rtol=1e-9)
  assert fixed.epsilon(10) > Mechanism(2.0, 1e-5, 1000, "poisson", 0.05).epsilon(10)


def test_layers_are_releases_and_later_rounds_are_none():
  of_layers = Mechanism(3.0, 1e-5, 10, "all", 1.0, 2)
  assert of_layers.epsilon(1) < of_layers.epsilon(2) == of_layers.epsilon(9)
  np.testing.assert_allclose(
    of_layers.epsilon(2),
    Mechanism(3.0 / 2**0.5, 1e-5, 10, "all", 1.0).epsilon(1),
    rtol=1e-9,
  )
  assert Mechanism(0.0, 1e-5, 10, "all", 1.0).epsilon(1) == math.inf


@pytest.mark.program
def test_the_tables_and_the_summary_have_it(tmp_path):
  fed = fa.federate("digits", num_clients=20, partition="iid")
  result = fa.run(
    "fedavg",
    fed,
    rounds=3,
    participation=0.3,
    eval_every=2,
    sampling="poisson",
    private="fixed",
    noise_multiplier=2.0,
    seeds=2,
    evaluate=("global",),
  )
  expected = Mechanism(2.0, 1e-5, 20, "poisson", 0.3)
  np.testing.assert_allclose(
    result.history["epsilon"], [[expected.epsilon(r) for r in (1, 2, 3)]] * 2
  )
  saved = fa.load_run(result.save(tmp_path / "run"))
  assert saved.facts["hparams"]["private"] == "fixed"
  summary = fa.files.read_json(tmp_path / "run" / "summary.json")
  np.testing.assert_allclose(summary["privacy"]["epsilon"], expected.epsilon(3))
  np.testing.assert_array_equal(saved.history["epsilon"], result.history["epsilon"])


def test_without_the_accountant_a_line_says_so(monkeypatch):
  monkeypatch.setattr(accounting, "_accountant", lambda: None)
  accounting._of_a_round.cache_clear()
  mechanism = Mechanism(1.0, 1e-5, 20, "poisson", 0.3)
  assert math.isnan(mechanism.epsilon(3)) and "pip install" in mechanism.caution
  assert mechanism.facts(3)["note"] == accounting.MISSING
  monkeypatch.undo()
  accounting._of_a_round.cache_clear()
  assert not mechanism.caution and "note" not in mechanism.facts(3)
  assert "less than 0.05" in Mechanism(1.0, 0.1, 20, "all", 1.0).caution
  assert importlib.import_module("dp_accounting") is dp
