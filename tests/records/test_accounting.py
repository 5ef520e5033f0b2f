"""Epsilon against formulas, numbers of the accountant, and another accountant."""

import importlib
import math

import numpy as np
import pytest
from scipy import optimize, stats

import fedjax_alg as fa
from fedjax_alg.records import accounting
from fedjax_alg.records.accounting import Mechanism

dp = pytest.importorskip("dp_accounting")


def of_gaussians(z, delta, rounds):
  """Balle and Wang, ICML 2018, Theorem 8: sigma is z / sqrt(rounds)."""
  sigma = z / math.sqrt(rounds)

  def excess(epsilon):
    half, shift = 1 / (2 * sigma), epsilon * sigma
    return (
      stats.norm.cdf(half - shift)
      - math.exp(epsilon) * stats.norm.cdf(-half - shift)
      - delta
    )

  return optimize.brentq(excess, 0.0, 100.0, xtol=1e-12)


@pytest.mark.parametrize("z, rounds", [(4.0, 1), (1.0, 1), (2.0, 17)])
def test_all_clients_give_the_plain_gaussian(z, rounds):
  epsilon = Mechanism(z, 1e-5, 100, "all", 1.0).epsilon(rounds)
  np.testing.assert_allclose(epsilon, of_gaussians(z, 1e-5, rounds), rtol=1e-8)


def of_two_samples(z, q, delta):
  """Epsilon of two rounds of Poisson samples, by integrals over both outcomes.

  A client is removed (outcomes of the mixture against those of the Gaussian) or
  added; epsilon is the larger of both.
  """
  x = np.linspace(-12 * z, 12 * z + 1, 4001)
  without = stats.norm.pdf(x, 0, z)
  mixed = (1 - q) * without + q * stats.norm.pdf(x, 1, z)
  pairs = [np.outer(p, p) * (x[1] - x[0]) ** 2 for p in (mixed, without)]

  def excess(epsilon, p, r):
    return np.maximum(p - math.exp(epsilon) * r, 0).sum() - delta

  return max(
    optimize.brentq(excess, 0.0, 50.0, args=(p, r), xtol=1e-7)
    for p, r in (pairs, pairs[::-1])
  )


@pytest.mark.program
def test_two_samples_by_integrals():
  epsilon = Mechanism(1.1, 1e-5, 1000, "poisson", 0.1).epsilon(2)
  exact = of_two_samples(1.1, 0.1, 1e-5)
  assert exact - 1e-5 < epsilon < exact + 1e-3


@pytest.mark.parametrize(
  "z, q, rounds, delta, tight",
  [
    (1.445, 0.05, 100, 1e-5, 1.775),
    (1.0, 0.1, 20, 1e-5, 3.591),
    (0.8, 0.02, 1000, 1e-6, 7.337),
    (2.0, 0.1, 20, 1e-5, 1.076),
    (4.0, 0.01, 1000, 1e-5, 0.272),
  ],
)
def test_samples_have_the_tight_epsilon(z, q, rounds, delta, tight):
  """What dp-accounting prints with its narrow steps, and below Renyi's bound."""
  epsilon = Mechanism(z, delta, 3000, "poisson", q).epsilon(rounds)
  assert abs(epsilon - tight) < 1e-3 + 5e-4
  event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))
  assert epsilon < dp.rdp.RdpAccountant().compose(event, rounds).get_epsilon(delta)


@pytest.mark.program
def test_the_slots_of_a_sample_are_accounted_for(monkeypatch):
  """Few slots make a round more private for nobody: the bound may only grow."""
  of_many = Mechanism(1.0, 1e-5, 200, "poisson", 0.1)
  all_slots = of_many.epsilon(5)
  monkeypatch.setattr(accounting.samplers, "slots_of_poisson", lambda *_: 20)
  for cached in (accounting._epsilon, accounting._losses_of_a_round):
    monkeypatch.setattr(accounting, cached.__name__, cached.__wrapped__)
  assert of_many.epsilon(5) > all_slots + 0.01


@pytest.mark.program
def test_a_column_of_many_rounds_rounds_them_up():
  private = Mechanism(3.0, 1e-5, 100, "all", 1.0)
  column = [private.epsilon_bound(rounds) for rounds in range(1, 250)]
  exact = [private.epsilon(rounds) for rounds in range(1, 250)]
  assert column[:100] == exact[:100] and column[100:110] == [exact[109]] * 10
  assert all(np.diff(column) >= 0) and all(np.subtract(column, exact) >= 0)


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
    private="fixed:noise=2",
    seeds=2,
    evaluate=("global",),
  )
  expected = Mechanism(2.0, 1e-5, 20, "poisson", 0.3)
  np.testing.assert_allclose(
    result.history["epsilon"], [[expected.epsilon(r) for r in (1, 2, 3)]] * 2
  )
  saved = fa.load_run(result.save(tmp_path / "run"))
  assert saved.facts["hparams"]["private"] == "fixed:noise=2"
  summary = fa.files.read_json(tmp_path / "run" / "summary.json")
  np.testing.assert_allclose(summary["privacy"]["epsilon"], expected.epsilon(3))
  np.testing.assert_array_equal(saved.history["epsilon"], result.history["epsilon"])


def test_without_the_accountant_a_line_says_so(monkeypatch):
  monkeypatch.setattr(accounting, "_accountant", lambda: None)
  mechanism = Mechanism(1.0, 1e-5, 20, "poisson", 0.3)
  assert math.isnan(mechanism.epsilon(3)) and "pip install" in mechanism.caution
  assert mechanism.facts(3)["note"] == accounting.MISSING
  monkeypatch.undo()
  assert not mechanism.caution and "note" not in mechanism.facts(3)
  assert "less than 0.05" in Mechanism(1.0, 0.1, 20, "all", 1.0).caution
  assert importlib.import_module("dp_accounting") is dp
