"""Distances of label distributions."""

import itertools

import numpy as np
import pytest
from scipy import linalg
from scipy.spatial import distance

from fedjax_alg.metrics import distances

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("seed", range(5))
def test_jensen_shannon_is_that_of_scipy(seed):
  p, q = np.random.default_rng(seed).dirichlet(np.full(6, 0.3), size=2)
  np.testing.assert_allclose(
    distances.jensen_shannon(p, q), distance.jensenshannon(p, q, base=2), atol=1e-12
  )


def test_hellinger_is_the_distance_of_roots():
  p, q = RNG.dirichlet(np.ones(6), size=(2, 7))
  expected = [
    np.linalg.norm(np.sqrt(a) - np.sqrt(b)) / np.sqrt(2) for a, b in zip(p, q)
  ]
  np.testing.assert_allclose(distances.hellinger(p, q), expected)


@pytest.mark.parametrize("fn", [distances.jensen_shannon, distances.hellinger])
def test_equal_ones_have_none_and_disjoint_ones_one(fn):
  p, q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.2, 0.8])
  assert fn(p, p) == 0
  np.testing.assert_allclose(fn(p, q), 1)
  assert fn(p, q) == fn(q, p)


def test_the_summary_is_of_pairs_and_of_all():
  counts = RNG.integers(0, 9, (6, 4))
  counts[4] = 0  # has no examples
  kinds = np.array([0, 1, 0, 1, 1, 0])
  result = distances.label_distances(counts, kinds)
  members = [0, 1, 2, 3, 5]
  shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
  all_ = counts.sum(0) / counts.sum()
  for name, fn in (
    ("jensen_shannon", lambda p, q: distance.jensenshannon(p, q, base=2)),
    ("hellinger", distances.hellinger),
  ):
    pairs = list(itertools.combinations(members, 2))
    values = {pair: fn(shares[pair[0]], shares[pair[1]]) for pair in pairs}
    same = [v for (a, b), v in values.items() if kinds[a] == kinds[b]]
    other = [v for (a, b), v in values.items() if kinds[a] != kinds[b]]
    to_all = [fn(shares[i], all_) for i in members]
    expected = {
      "to_all_mean": np.mean(to_all),
      "to_all_max": max(to_all),
      "pairs_mean": np.mean(list(values.values())),
      "pairs_max": max(values.values()),
      "same_kind_mean": np.mean(same),
      "other_kind_mean": np.mean(other),
    }
    assert result[name] == pytest.approx(expected, abs=1e-6)


def test_where_there_is_nothing_to_compare():
  assert not distances.label_distances(np.ones((5, 1), int))
  assert not distances.label_distances(np.zeros((5, 3), int))
  alone = distances.label_distances(np.array([[1, 2, 3]]))
  assert alone["hellinger"] == {"to_all_mean": 0, "to_all_max": 0}


def test_very_many_clients_are_compared_with_all_alone(monkeypatch):
  monkeypatch.setattr(distances, "_MOST", 10)
  result = distances.label_distances(np.eye(4, dtype=int))
  assert result["hellinger"].keys() == {"to_all_mean", "to_all_max"}


@pytest.mark.parametrize("rows", [5, 40])
def test_angles_are_the_least_principal_ones_of_scipy(rows):
  """Of three leading singular vectors, where a spectrum has more than three."""
  rng = np.random.default_rng(rows)
  examples = [
    rng.normal(size=(rows, 3, 4)) * np.geomspace(1, 0.01, 12).reshape(3, 4)
    for _ in range(5)
  ]
  kinds = np.array([0, 1, 0, 1, 2])
  bases = [np.linalg.svd(x.reshape(rows, 12))[2][:3].T for x in examples]
  angle = {
    (a, b): np.degrees(linalg.subspace_angles(bases[a], bases[b]).min())
    for a, b in itertools.combinations(range(5), 2)
  }
  result = distances.subspace_angles(examples, kinds)
  mean = lambda *pairs: np.mean([angle[pair] for pair in pairs])
  assert result["pairs_mean"] == pytest.approx(mean(*angle), abs=2e-3)
  assert result["same_kind_mean"] == pytest.approx(mean((0, 2), (1, 3)), abs=2e-3)
  table = result["kinds"]
  assert table[0][2] == table[2][0] == pytest.approx(mean((0, 4), (2, 4)), abs=2e-3)
  assert table[2][2] is None and table[1][1] == pytest.approx(angle[1, 3], abs=2e-3)


def test_angles_do_not_depend_on_scale_and_coordinates():
  examples = [RNG.normal(size=(9, 6)) + 1 for _ in range(3)]
  kinds = np.array([0, 0, 1])
  turn = np.linalg.qr(RNG.normal(size=(6, 6)))[0]
  before = distances.subspace_angles(examples, kinds)
  after = distances.subspace_angles([7 * x @ turn for x in examples], kinds)
  assert before["other_kind_mean"] == pytest.approx(after["other_kind_mean"], abs=2e-3)


def test_equal_and_orthogonal_examples_have_angles_of_0_and_90_degrees():
  """And fewer examples than singular vectors are no error."""
  x, y = np.eye(8)[:2], np.eye(8)[4:5]
  result = distances.subspace_angles([x, x, y], np.array([0, 0, 1]))
  assert result["same_kind_mean"] == 0 and result["other_kind_mean"] == 90
