"""The best validated round: its number, its value and its very parameters."""

import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.runs import best as best_lib
from fedjax_alg.runs import queue

#: With so large a learning rate later rounds are not always better.
OPTIONS = dict(cohort_size=3, client_lr=3.0, seeds=2, eval_every=1)


@pytest.fixture(name="fed", scope="module")
def fixture_fed():
  return fa.federate(
    "digits", partition="dirichlet", num_clients=12, validation_clients=6
  )


def test_parameters_are_those_of_a_run_that_ends_there(fed):
  result = fa.run(
    "fedavg", fed, rounds=6, evaluate="validation", keep_best=True, **OPTIONS
  )
  curves = result.metrics["validation"]["accuracy"]
  best = result.best
  np.testing.assert_array_equal(best.rounds, 1 + curves.argmax(1))
  np.testing.assert_array_equal(best.values, curves.max(1))
  assert (best.rounds < 6).any(), "the last round is the best, so nothing is tested"
  row = int(np.flatnonzero(best.rounds < 6)[0])
  short = fa.run(
    "fedavg", fed, rounds=int(best.rounds[row]), evaluate="validation", **OPTIONS
  )
  jax.tree.map(
    lambda kept, leaf: np.testing.assert_array_equal(kept[row], leaf),
    best.params,
    short.global_params(row),
  )
  assert short.best is None
  x = fed.data.whole_test.x[:50]
  np.testing.assert_array_equal(
    result.predict(x, seed=row, best=True, proba=True),
    short.predict(x, seed=row, proba=True),
  )
  for options, message in (
    (dict(client=0), "best=True: only read without client"),
    (dict(), "best=True: needs a run with keep_best"),
  ):
    with pytest.raises(fa.OptionError, match=message):
      (result if options else short).predict(x, best=True, **options)


@pytest.mark.parametrize(
  "choice, message",
  [
    ("train", "keep_best=train: train is not evaluated: must be one of validation"),
    ("validation:f1", "keep_best=validation:f1: f1 is no metric: must be one of acc"),
    (3, "keep_best=3: must be PROTOCOL or"),
  ],
)
def test_other_choices_are_refused(fed, choice, message):
  with pytest.raises(fa.OptionError, match=f"^{message}"):
    fa.run("fedavg", fed, evaluate="validation", keep_best=choice, **OPTIONS)


@pytest.mark.parametrize(
  "name, options",
  [
    # What is evaluated is only known when the method is built.
    ("fedper", dict(keep_best=True, model="mlp:8", evaluate=("validation", "local"))),
    ("local", dict(keep_best="local", evaluate="local")),
  ],
)
def test_a_method_without_the_models_is_refused_before_the_first_round(
  fed, name, options, monkeypatch
):
  monkeypatch.setattr(queue.play_lib, "run_steps", None)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with pytest.raises(fa.OptionError, match="^keep_best="):
      fa.run(name, fed, rounds=1, cohort_size=3, **options)


def test_test_data_are_warned_of(fed):
  with pytest.warns(UserWarning, match="the best round is chosen by global, on test"):
    result = fa.run(
      "fedavg", fed, rounds=1, evaluate="global", keep_best="global:loss", **OPTIONS
    )
  np.testing.assert_array_equal(
    result.best.values, result.metrics["global"]["loss"][:, 0]
  )


def test_a_round_without_a_number_is_not_the_best():
  """NaN is greater than nothing and smaller than nothing."""
  best = best_lib.KeepBest.__new__(best_lib.KeepBest)
  best.protocol, best.metric, best._best = "validation", "accuracy", {}
  best._global_params = lambda state: state
  for number, value in enumerate((np.nan, 0.3, np.nan, 0.2), 1):
    best(
      types.SimpleNamespace(
        metrics={"validation": {"accuracy": np.array([value])}},
        round=number,
        states=jnp.full((1, 1), float(number)),
      )
    )
  assert best.best().rounds.tolist() == [2]
