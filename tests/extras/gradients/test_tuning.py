"""Outer steps on functions whose minimum is known, and on a run."""

import itertools
import math
import types

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.extras.gradients import tuning
from fedjax_alg.extras.gradients.hypergradient import Hypergradient
from fedjax_alg.extras.gradients.tuning import Coordinate
from fedjax_alg.runs import methods


@pytest.mark.parametrize(
  "low, high, value",
  [(0.0, math.inf, 0.3), (-math.inf, math.inf, 2.0), (0.0, 1.0, 0.9), (1.0, 3.0, 1.25)],
)
def test_coordinates_and_their_slopes(low, high, value):
  coordinate, step = Coordinate(low, high), 1e-5
  place = coordinate.to(value)
  assert coordinate.back(place) == pytest.approx(value)
  assert coordinate.slope(value) == pytest.approx(
    (coordinate.back(place + step) - coordinate.back(place - step)) / (2 * step),
    rel=1e-6,
  )
  for far in (-30.0, 30.0):
    assert low <= coordinate.back(far) <= high


def test_a_start_at_an_end_is_refused():
  assert tuning.check_starts(methods.method_of("fedadam"), ("beta1", "client_lr")) == (
    "beta1",
    "client_lr",
  )
  method = methods.with_keywords(methods.method_of("fedadam"), {"beta1": 0.0})
  with pytest.raises(
    fa.OptionError, match="beta1=0: tuned by factors, must start between 0 and 1"
  ):
    tuning.check_starts(method, "beta1")


def test_the_trusted_step_is_the_best_of_the_box():
  rng = np.random.default_rng(0)
  for radius in (0.1, 1.0, 10.0):
    root = rng.normal(size=(1, 2))  # of rank 1: flat in one direction
    gradient, curvature = rng.normal(size=2), root.T @ root
    step = tuning.trust_region_step(gradient, curvature, radius, 0.01)

    def value(s, gradient=gradient, curvature=curvature):
      return gradient @ s + s @ (curvature + 0.01 * np.eye(2)) @ s / 2

    assert np.abs(step).max() <= radius * (1 + 1e-9)
    grid = np.linspace(-radius, radius, 41)
    assert all(
      value(step) <= value(np.array(s)) + 1e-9 for s in itertools.product(grid, grid)
    )


@pytest.mark.parametrize(
  "f0, d0, f1, d1",
  [(1.0, -1.0, 2.0, 5.0), (0.0, -3.0, 0.5, 1.0), (2.0, -0.1, 2.5, 40.0)],
)
def test_the_minimum_of_a_cubic(f0, d0, f1, d1):
  t = np.linspace(0, 1, 100_001)
  cubic = (
    f0 * (1 + 2 * t) * (1 - t) ** 2
    + d0 * t * (1 - t) ** 2
    + f1 * t**2 * (3 - 2 * t)
    + d1 * t**2 * (t - 1)
  )
  assert tuning._cubic_minimum(f0, d0, f1, d1) == pytest.approx(
    t[cubic.argmin()], abs=1e-4
  )


class StubDerivatives:
  """Derivatives of a function of the logarithms in place of a run's."""

  def __init__(self, fn, start, seeds=1):
    method = methods.with_keywords(methods.method_of("fedavg"), start)
    self.fn, self.by, self.seen = fn, tuple(start), []
    self.prepared = types.SimpleNamespace(
      method=method,
      rows=seeds,
      options=types.SimpleNamespace(rounds=30),
      model=types.SimpleNamespace(task=None),
      federation=types.SimpleNamespace(
        validation_sizes=np.full(2, 9), test_sizes=np.full(2, 9)
      ),
    )

  def at(self, values, rounds, last):
    self.seen.append(rounds)
    at = np.log([values[name] for name in self.by])
    step = 1e-4 * np.eye(len(at))

    def fn(at):
      return self.fn(at, rounds)

    slope = np.array([(fn(at + offset) - fn(at - offset)) / 2e-4 for offset in step])
    # That of a square of a residual, as Gauss and Newton have it.
    root = slope / np.sqrt(2 * fn(at))
    point = np.exp(at)
    return Hypergradient(
      fn(at),
      dict(zip(self.by, slope / point)),
      dict(values),
      np.array([rounds]),
      np.full((1, 1), fn(at)),
      {},
      np.zeros((1, 1)),
      np.outer(root, root) / np.outer(point, point),
      None,
    )


def test_outer_steps_find_a_minimum_and_count_rounds():
  """Two rates matter by their product alone: the start's ratio is kept."""
  derivatives = StubDerivatives(
    lambda at, rounds: (at.sum() - 1.0) ** 2 / 2 + 1e-3 + 1.0 / rounds,
    dict(client_lr=0.01, server_lr=0.5),
    seeds=3,
  )
  reported = []
  descent = tuning.descend_hparams(derivatives, outer_steps=7, report=reported.append)
  assert derivatives.seen == [8, 15, 30, 30, 30, 30, 30]
  assert descent.played == 3 * 3 * (8 + 15 + 5 * 30) and reported == descent.steps
  assert descent.best.rounds == 30 and descent.best.loss == min(
    step.loss for step in descent.steps[2:]
  )
  assert math.log(
    descent.best.values["client_lr"] * descent.best.values["server_lr"]
  ) == pytest.approx(1.0, abs=0.1)
  steps = [
    math.log10(after.values["client_lr"] / before.values["client_lr"])
    for before, after in zip(descent.steps, descent.steps[1:])
  ]
  assert max(map(abs, steps)) <= 1.0 + 1e-9  # never more than a factor of 10


def test_what_diverges_or_explodes_is_taken_back():
  def fn(at, rounds):
    del rounds
    if at[0] > 0.0:  # training diverges from a rate of 1 on
      return math.nan
    return (at[0] - 1.0) ** 2 / 2 + (
      0.05 * math.sin(1e6 * at[0]) if at[0] > -1.0 else 0.0
    )

  descent = tuning.descend_hparams(
    StubDerivatives(fn, dict(client_lr=0.2)), outer_steps=5, halvings=0
  )
  first, second, third, *_ = descent.steps
  assert first.kept and not second.kept and math.isnan(second.loss)
  assert 0.2 < third.values["client_lr"] < second.values["client_lr"]
  assert all(
    not step.kept for step in descent.steps if step.values["client_lr"] > math.exp(-1.0)
  )
  assert math.isfinite(descent.best.loss)

  diverging = StubDerivatives(lambda at, rounds: math.nan, dict(client_lr=0.2))
  with pytest.raises(fa.OptionError, match="start from smaller values"):
    tuning.descend_hparams(diverging, outer_steps=3)
  assert len(diverging.seen) == 3


@pytest.mark.parametrize(
  "options, pattern",
  [
    (dict(outer_steps=2), "outer_steps=2: must be at least 3"),
    (dict(halvings=-1), "halvings=-1: must be at least 0"),
    (dict(outer_steps="4"), "outer_steps='4': must be a whole number"),
    (
      dict(client_optimizer="momentum:0", by="client_optimizer.momentum"),
      "client_optimizer.momentum: at 0 it is not in",
    ),
  ],
)
def test_refusals(options, pattern):
  fed = fa.federate("digits", partition="classes", num_clients=20, validation_clients=4)
  with pytest.raises(fa.OptionError, match=pattern):
    fa.tune_by_gradient("fedavg", fed, **{"by": "client_lr"} | options)


@pytest.mark.slow
def test_a_rate_that_is_far_too_small_grows(monkeypatch):
  fed = fa.federate("digits", partition="iid", num_clients=20, validation_clients=4)
  calls = []
  real = tuning.Derivatives
  monkeypatch.setattr(
    tuning, "Derivatives", lambda *args: (calls.append(args), real(*args))[1]
  )
  descent = fa.tune_by_gradient(
    "fedavg",
    fed,
    by="client_lr",
    client_lr=1e-3,
    rounds=4,
    cohort_size=8,
    outer_steps=4,
    halvings=1,
  )
  assert len(calls) == 1  # one program for all outer steps
  assert [step.rounds for step in descent.steps] == [2, 4, 4, 4]
  assert descent.best.values["client_lr"] > 0.1
  assert descent.best.loss < 0.9 * descent.steps[0].loss
