"""Ranks over data sets against SciPy and published quantiles."""

import itertools

import matplotlib
import numpy as np
import pytest
from scipy import stats

import fedjax_alg as fa
from fedjax_alg.runs import pictures, ranks
from tests import made_runs

matplotlib.use("Agg")


def test_ranks_and_the_test_are_those_of_scipy():
  """Scores of one decimal, so that there are ties, and a set of ties alone."""
  scores = np.random.default_rng(0).normal(size=(14, 4)).round(1)
  scores[9] = 1.0
  of = ranks.rank_rows(scores)
  np.testing.assert_array_equal(of, stats.rankdata(-scores, axis=1))
  np.testing.assert_allclose(ranks.friedman(of), stats.friedmanchisquare(*scores.T))
  assert np.isnan(ranks.friedman(of[:, :2])).all()


@pytest.mark.parametrize(
  "methods, quantile", [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)]
)
def test_quantiles_are_those_of_the_table(methods, quantile):
  """Table 5 of Demsar, for Nemenyi's test at 0.05."""
  scale = np.sqrt(methods * (methods + 1) / (6 * 7))
  np.testing.assert_allclose(ranks.nemenyi(7, methods) / scale, quantile, atol=1e-3)


def test_bars_join_what_does_not_differ():
  values = np.array([1.0, 1.5, 2.2, 3.9])
  assert pictures._cliques(values, 1.0) == [(0, 1), (1, 2)]
  assert pictures._cliques(values, 0.1) == []
  assert pictures._cliques(values, 9.0) == [(0, 3)]


@pytest.fixture(name="runs")
def fixture_runs(tmp_path):
  """Three methods on two data sets, the last of which has a loser."""
  numbers = itertools.count()

  def load(final, data):
    curve = [[0.1, final], [0.1, final + 0.02]]
    folder = made_runs.write(
      tmp_path / str(next(numbers)), curve, data={"dataset": data}
    )
    return fa.load_run(folder)

  return {
    name: {
      method: load(final, name) for method, final in zip(("A", "B", "C_1"), finals)
    }
    for name, finals in (("digits", (0.5, 0.7, 0.6)), ("mnist", (0.5, 0.5, 0.2)))
  }


def test_methods_are_ranked_over_data_sets(runs):
  ranking = fa.rank(runs)
  np.testing.assert_array_equal(ranking.ranks, [[3, 1, 2], [1.5, 1.5, 3]])
  assert ranking.mean_ranks == {"A": 2.25, "B": 1.25, "C_1": 2.5}
  assert list(ranking.to_frame()["mnist"]) == pytest.approx([0.51, 0.51, 0.21])
  latex = ranking.to_latex()
  assert r"B & \textbf{71.00} $\pm$ 12.71 & \textbf{51.00}" in latex
  assert r"C\_1 & 61.00" in latex and "Friedman" in latex
  assert len(ranking.plot().lines) > 3
  by_loss = fa.rank(runs, metric="loss")
  np.testing.assert_array_equal(by_loss.scores < 1, True)


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda runs: [runs], "results: a list, must be a dictionary"),
    (
      lambda runs: {"digits": runs["digits"]},
      "results: 3 methods on 1 data sets",
    ),
    (lambda runs: runs | {"mnist": {"A": 1}}, "results: mnist has no run of "),
    (
      lambda runs: runs | {"z": runs["mnist"]},
      "results: z and mnist are the same",
    ),
    (
      lambda runs: runs | {"mnist": runs["mnist"] | {"B": runs["digits"]["B"]}},
      "results: mnist: B and A have other data",
    ),
  ],
)
def test_what_has_no_ranks_is_refused(runs, change, message):
  with pytest.raises(fa.OptionError, match=f"^{message}"):
    fa.rank(change(runs))


@pytest.mark.parametrize("last", [[np.nan, 0.9], [np.nan, np.nan]])
def test_a_run_without_a_number_has_no_rank(runs, tmp_path, last):
  """NaN is less than no number, so its run had rank 0.5, before the best one."""
  curves = [[0.5, value] for value in last]
  folder = made_runs.write(tmp_path / "nan", curves, data={"dataset": "mnist"})
  runs["mnist"]["B"] = fa.load_run(folder)
  with pytest.raises(fa.OptionError, match="^results: mnist: B has no accuracy"):
    fa.rank(runs)


def test_methods_and_data_sets_may_be_numbers(runs):
  """Keys that are no texts ended in a ValueError."""
  numbered = dict(enumerate(dict(enumerate(of.values())) for of in runs.values()))
  assert fa.rank(numbered).mean_ranks == {"0": 2.25, "1": 1.25, "2": 2.5}


@pytest.fixture(name="by_partitions", scope="module")
def fixture_by_partitions():
  """Two methods on digits: on two partitions, and on one of other clients."""
  feds = (
    fa.federate("digits", num_clients=5, partitions=2),
    fa.federate("digits", num_clients=7, seed=3),
  )
  return [
    {
      rate: fa.run(
        "fedavg",
        fed,
        rounds=1,
        cohort_size=2,
        evaluate="global",
        client_lr=float(rate),
      )
      for rate in ("0.01", "1.0")
    }
    for fed in feds
  ]


def test_data_on_other_partitions_are_the_same_data(by_partitions):
  """Each number of partitions had a hash of its own, and was another data set."""
  pair, single = by_partitions
  with pytest.raises(fa.OptionError, match="^results: b and a are the same data"):
    fa.rank({"a": pair, "b": single})


def test_methods_on_other_partitions_have_the_same_data(by_partitions, runs):
  """The error said that they had other data."""
  pair, single = by_partitions
  of_digits = {"0.01": pair["0.01"], "1.0": single["1.0"]}
  of_mnist = dict(zip(pair, runs["mnist"].values()))
  ranking = fa.rank({"digits": of_digits, "mnist": of_mnist})
  assert ranking.methods == ("0.01", "1.0")
