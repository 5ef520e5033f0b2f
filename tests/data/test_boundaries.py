"""Points with labels by boundaries: SINE, CIRCLE, SEA."""

import math

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.boundaries import BOUNDARIES, label_by_concept, make_points
from tests.data.reading import refuses


def label(name, x, kind):
  """The label of one point, from the definitions of FedDrift's public code."""
  if name == "sine2":
    below = x[1] <= math.sin(x[0])
    return int(below if kind == 0 else not below)
  if name == "circle2":
    a, b, radius = [(0.2, 0.5, 0.15), (0.6, 0.5, 0.25)][kind]
    return int((x[0] - a) ** 2 + (x[1] - b) ** 2 - radius**2 > 0)
  return int(x[1] + x[2] > (8, 9, 7, 9.5)[kind])


@pytest.mark.parametrize("name", BOUNDARIES)
def test_labels_are_those_of_the_concepts(name):
  points = make_points(name, 3, 400, 0.0, 0)
  assert points.x_train.shape == (1200, 3 if name == "sea4" else 2)
  assert points.x_train.dtype == np.float32 and len(points.x_test) == 300
  largest = 10 if name == "sea4" else 1
  assert points.x_train.min() >= 0 and largest * 0.97 < points.x_train.max() <= largest
  assert np.bincount(points.client_train).tolist() == [400] * 3
  for kind in range(len(BOUNDARIES[name].concepts)):
    y = label_by_concept(name, points.x_train, points.y_train, kind)
    assert y.dtype == np.int32
    assert y.tolist() == [label(name, x, kind) for x in points.x_train.astype(float)]


def test_noise_stays_with_a_point_in_all_concepts():
  clean, noisy = (make_points("sea4", 5, 2000, noise, 1) for noise in (0.0, 0.1))
  np.testing.assert_array_equal(clean.x_train, noisy.x_train)
  wrong = clean.y_train != noisy.y_train
  assert 0.09 < wrong.mean() < 0.11
  for kind in range(4):
    labels = [
      label_by_concept("sea4", p.x_train, p.y_train, kind) for p in (clean, noisy)
    ]
    np.testing.assert_array_equal(labels[0] != labels[1], wrong)


def test_every_seed_and_client_has_points_of_its_own():
  first, second = (make_points("sine2", 2, 50, 0.0, seed) for seed in (0, 1))
  assert len(np.unique(np.concatenate([first.x_train, second.x_train]), axis=0)) == 200


def test_every_step_has_points_of_the_whole_square():
  federation = fa.federate("sine2:4000", concepts="switch")
  x = np.stack([federation.client(client)[0] for client in range(10)])
  means = x.reshape(10, 10, 400, 2).mean(2)  # of each client and step
  assert np.abs(means - 0.5).max() < 5 / (12 * 400) ** 0.5


def test_what_has_no_boundaries_is_refused():
  refuses(lambda: fa.federate("digits", kinds="boundaries:2"), "digits has none")
  refuses(lambda: fa.federate("sine2", kinds="boundaries:3"), "sine2 has 2 of them")
  refuses(lambda: fa.federate("sine2", partition="iid"), "sine2 comes with its clients")


def test_clients_of_two_boundaries():
  federation = fa.federate("circle2:40", kinds="boundaries:2")
  assert (
    federation.kinds.sizes().tolist() == [5, 5] and not federation.kinds.same_labels
  )
  for client, kind in enumerate(federation.kinds.of_client):
    x, y = federation.client(client)
    assert y.tolist() == [label("circle2", point, kind) for point in x.astype(float)]
