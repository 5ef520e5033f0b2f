"""A grid in few programs: the numbers of the separate runs."""

import dataclasses
import warnings

import chex
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.runs import queue
from fedjax_alg.runs import sweep as sweep_lib
from fedjax_alg.runs.options import RunOptions
from tests import made_runs
from tests.each import each

NUMBERS = dict(cohort_size=4, rounds=2, seeds=2, eval_every=1)
SHORT = dict(cohort_size=4, rounds=4, evaluate="global")


@pytest.fixture(name="compiled")
def _record_compilations(monkeypatch):
  """Numbers of settings of each program that a sweep compiles."""
  sizes = []
  real = queue.Programs

  def programs(prepared, notice):
    sizes.append(len(prepared.settings))
    return real(prepared, notice)

  monkeypatch.setattr(queue, "Programs", programs)
  return sizes


@pytest.fixture(name="rates", scope="module")
def _rates(fed):
  """FedAvg of three rates, one of which diverges."""
  return fa.sweep(
    "fedavg", fed, grid={"client_lr": np.array([0.1, 1e30, 1.0])}, **NUMBERS
  )


def test_rates_share_a_program(rates, fed):
  assert rates.num_programs == 1 and rates.seeds == (0, 1)
  assert rates.settings == [{"client_lr": value} for value in (0.1, 1e30, 1.0)]
  np.testing.assert_array_equal(rates.rounds, [1, 2])
  chex.assert_shape(rates.metrics["global"]["accuracy"], (3, 2, 2))
  for i in (0, 2):
    single = fa.run("fedavg", fed, client_lr=rates.settings[i]["client_lr"], **NUMBERS)
    assert rates.results[i].state_hash() == single.state_hash()
    chex.assert_trees_all_equal(rates.results[i].metrics, single.metrics)
    chex.assert_trees_all_equal(
      rates.results[i].client_params(17, 1), single.client_params(17, 1)
    )
    np.testing.assert_array_equal(
      rates.metrics["local"]["loss"][i], single.metrics["local"]["loss"]
    )


def test_a_number_of_a_part_shares_a_program(fed):
  """Without it every share of hostile clients would be compiled."""
  grid = {"aggregator.tolerated": [0.1, 0.4]}
  swept = fa.sweep("fedavg", fed, grid=grid, aggregator="trimmed_mean", **NUMBERS)
  assert swept.num_programs == 1
  hashes = [result.state_hash() for result in swept.results]
  assert hashes[0] != hashes[1]
  single = fa.run("fedavg", fed, aggregator=fa.TrimmedMean(0.4), **NUMBERS)
  assert single.state_hash() == hashes[1]


def test_a_setting_that_diverges_leaves_the_others_alone(rates):
  assert rates.results[1] is None
  assert np.isnan(rates.metrics["global"]["accuracy"][1]).all()
  assert np.isfinite(rates.metrics["global"]["accuracy"][[0, 2]]).all()
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert rates.best("global").number in (0, 2)
  assert "3 settings x 2 seed(s) in 1 program(s)" in repr(rates)


def test_the_best_on_test_data_has_a_warning(rates):
  with pytest.warns(UserWarning, match="chosen by global, on test data"):
    best = rates.best("global", "accuracy")
  values = rates.metrics["global"]["accuracy"][:, :, -1].mean(1)
  assert best.number == np.nanargmax(values)
  assert best.mean == pytest.approx(np.nanmax(values))
  assert best.result is rates.results[best.number]
  assert best.setting == rates.settings[best.number] and best.ci95 > 0
  with (
    pytest.warns(UserWarning, match="test data"),
    pytest.warns(UserWarning, match="client_lr=0.1 is the least of"),
  ):
    least = rates.best(metric="loss", last=None)
  losses = rates.metrics["global"]["loss"].mean((1, 2))
  assert least.number == np.nanargmin(losses)
  assert least.mean == pytest.approx(np.nanmin(losses))


@pytest.mark.parametrize(
  "options, pattern",
  [
    (dict(protocol="validation"), "^protocol=validation: "),
    (dict(metric="speed"), "^metric=speed: not a metric of global .*accuracy"),
    (dict(protocol="global", metric="worst_decile"), "no setting has a number"),
    (dict(last=-1), "^last=-1: .*at least 1"),
    (dict(last=1.5), "^last=1.5: "),
  ],
)
@pytest.mark.filterwarnings("ignore:the best ")
def test_the_best_of_what_is_not_there(rates, options, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    rates.best(**options)


def test_validation_chooses_by_default_unless_a_class_is_missing(recwarn):
  fed = fa.federate("digits", num_clients=12, validation_clients=3)
  sweep = fa.sweep(
    "fedavg",
    fed,
    grid={"client_lr": [1e-4, 0.5]},
    cohort_size=4,
    rounds=1,
    evaluate=("global", "validation"),
  )
  best = sweep.best()
  assert best.setting == {"client_lr": 0.5} and np.isnan(best.ci95)
  assert best.mean == sweep.metrics["validation"]["accuracy"][1, 0, -1]
  assert not [w for w in recwarn if "test data" in str(w.message)]
  few = fa.federate(
    "digits",
    num_clients=30,
    partition="classes:2",
    validation_clients=2,
  )
  missing = np.flatnonzero(few.validation_sizes == 0)
  assert len(missing) and (few.test_sizes > 0).all()
  sweep = sweep_lib.Sweep(sweep.settings, sweep.results, 1, few)
  with pytest.raises(
    fa.OptionError,
    match=(
      "^validation_clients=2: they have no example of the classes "
      f"{', '.join(map(str, missing))}, which the test set has; a choice"
    ),
  ):
    sweep.best()
  with pytest.warns(UserWarning, match="test data"):
    assert sweep.best("global").number == 1
  with (
    pytest.warns(UserWarning, match="no example"),
    pytest.raises(fa.OptionError, match="^validation_clients=2"),
  ):
    fa.tune_by_gradient("fedavg", few, by="client_lr", cohort_size=4, rounds=1)


def test_what_decides_structure_parts_the_grid(fed, compiled):
  """Evaluated equally often, but not in the same rounds: no common curve."""
  seen = []
  sweep = fa.sweep(
    "fedavg",
    fed,
    **SHORT,
    grid={"eval_every": [2, 3], "client_lr": [0.1, 0.2]},
    callbacks=lambda step: seen.append(
      (step.round, step.metrics["global"]["loss"].shape)
    ),
  )
  assert compiled == [2, 2]
  assert seen == [(2, (2,)), (4, (2,)), (3, (2,)), (4, (2,))]
  assert [list(result.rounds) for result in sweep.results] == [
    [2, 4],
    [2, 4],
    [3, 4],
    [3, 4],
  ]
  assert sweep.metrics == {}
  with pytest.warns(UserWarning, match="test data"):
    best = sweep.best()  # the same in the end, of equals the first
  assert best.setting == {"eval_every": 2, "client_lr": 0.2}


def test_each_warning_of_every_setting_is_given_once(fed, monkeypatch):
  monkeypatch.setattr(queue, "Programs", lambda prepared, notice: prepared)
  monkeypatch.setattr(
    queue,
    "run_queue",
    lambda programs, sinks, **_: setattr(
      sinks[0], "results", [None] * len(programs.settings)
    ),
  )
  with (
    warnings.catch_warnings(record=True) as caught,
    pytest.raises(fa.OptionError, match="every setting diverged"),
  ):
    warnings.simplefilter("always")
    fa.sweep(
      "ditto",
      fed,
      personal_lr=0.1,
      patience="local:loss:3",
      grid={"lam": [0.5, 30.0, 40.0], "stop_at": [None, "local:accuracy:0.9"]},
      **NUMBERS,
    )
  messages = [str(warning.message).split(":")[0] for warning in caught]
  assert sorted(messages) == [
    "patience=local",
    "personal_lr=0.1 with lam=30",
    "personal_lr=0.1 with lam=40",
    "stop_at=local",
  ]
  assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.fast
@each(
  "grid, pattern",
  [
    ({}, "^grid: empty"),
    ([("client_lr", [1])], "^grid: a list, must be a dictionary"),
    ({"client_lr": []}, "^grid: client_lr has no values"),
    ({"client_lr": [0.1, 0.2, 0.1]}, "^grid: client_lr has a value twice"),
    ({"targets": [[3], (3,)]}, "^grid: targets has a value twice"),
    (
      {"roles": ["personal:bias", {"personal": "bias"}]},
      "^grid: roles=personal:bias and roles={'personal': 'bias'} are the same "
      "run; give one of them",
    ),
    ({"client_lr": [1, True]}, "^grid: client_lr has a value twice"),
    ({"client_lrr": [0.1]}, "^client_lrr: .*did you mean 'client_lr'"),
    ({"client_lr": [0.1, -1.0]}, "^client_lr=-1.0: must be more than 0"),
    ({"client_lr": ["a"]}, "^client_lr='a': "),
    ({"seeds": [1, 2]}, "^grid: seeds cannot be varied"),
    ({"evaluate": ["global"]}, "^grid: evaluate cannot be varied"),
    ({"seed": [1, 2]}, "^seed: .* seeds$"),
    ({"l2": [0.1, 0.2]}, "^grid: l2 is given outside the grid"),
    ({"rounds": [1, 2]}, "^grid: rounds is given outside the grid"),
    ({"federation": [1, 2]}, "^federation: "),
    ({"cohort_size": [4, 40]}, "^cohort_size=40: more than the 20"),
  ],
)
def test_a_grid_is_refused_before_anything_runs(fed, compiled, grid, pattern):
  with pytest.raises(fa.OptionError, match=pattern) as error:
    fa.sweep("fedavg", fed, grid=grid, rounds=1, l2=0.1)
  assert "\n" not in str(error.value) and not compiled


@pytest.mark.fast
@pytest.mark.parametrize(
  "grid, best, expected",
  [
    ({"client_lr": [0.1, 0.3, 1.0]}, (0.3,), []),
    (
      {"client_lr": [1.0, 0.1, 0.3]},
      (1.0,),
      ["the best client_lr=1.0 is the largest of those tried (0.1 to 1)"],
    ),
    (
      {"client_lr": ["1e-1", "0.3", "1"]},
      ("1e-1",),
      ["the best client_lr=1e-1 is the least of those tried (0.1 to 1)"],
    ),
    ({"client_lr": [0.1, 1.0]}, (1.0,), []),  # there is no inside
    ({"participation": [0.1, 0.5, 1.0]}, (1.0,), []),  # no more is allowed
    ({"participation": [0.1, 0.2, 0.5]}, (0.5,), ["the best participation=0."]),
    ({"l2": [0.0, 0.5, 0.9]}, (0.0,), []),  # no less is allowed
    ({"unknown": [0, 5, 9]}, (0,), ["the best unknown=0 is the least of"]),
    ({"targets": [(1,), (2,), (3,)], "partition": ["a", "b", "c"]}, ((3,), "a"), []),
    (
      {"a": [1, 2, 3], "b": [1, 2, 3]},
      (3, 1),
      ["the best a=3 is the largest", "the best b=1 is the least"],
    ),
  ],
)
def test_the_edge_of_a_grid(grid, best, expected):
  fields = {field.name: field for field in dataclasses.fields(RunOptions)}
  fields |= registry.get("fedavg").fields
  actual = sweep_lib.edges(
    sweep_lib.combinations(grid), dict(zip(grid, best, strict=True)), fields
  )
  assert [
    text[: len(start)] for text, start in zip(actual, expected, strict=True)
  ] == expected


def test_an_optimum_at_the_edge_is_said(rates):
  """Of three rates, of which the best is by hand the first or the last."""
  grid = [{"client_lr": value} for value in (1.0, 0.5, 0.1)]
  results = [rates.results[2], None, rates.results[0]]
  sweep = sweep_lib.Sweep(grid, results, 1, None)
  with pytest.warns(UserWarning) as warned:
    best = sweep.best("global")
  assert [str(warning.message) for warning in warned][1:] == [
    f"the best client_lr={best.setting['client_lr']} is the "
    f"{'largest' if best.number == 0 else 'least'} of those tried (0.1 to "
    "1), a better one may lie beyond"
  ]
  assert {warning.filename for warning in warned} == {__file__}


@pytest.mark.fast
def test_combinations_take_arrays_and_single_values():
  assert sweep_lib.combinations(
    {"a": np.arange(2), "b": "x", "c": 3, "d": (v for v in ([1], [2]))}
  ) == [{"a": a, "b": "x", "c": 3, "d": d} for a in (0, 1) for d in ((1,), (2,))]


@pytest.mark.filterwarnings("ignore:the best ")
def test_settings_of_different_protocols_have_some_in_common(tmp_path):
  """Two models have a mean that one has not, and local training has no global one."""
  results = [
    fa.load_run(made_runs.write(tmp_path / name, [[accuracy]], protocols=protocols))
    for name, accuracy, protocols in (
      ("ifca", 0.5, ("global", "global_mean", "local")),
      ("local", 0.75, ("local",)),
    )
  ]
  swept = sweep_lib.Sweep([{"a": 1}, {"a": 2}], results, 2, federation=None)
  assert [*swept.metrics] == ["local"]
  assert swept.metrics["local"]["accuracy"].tolist() == [[[0.5]], [[0.75]]]
  best = swept.best()
  assert (best.number, best.mean) == (1, 0.75)
  with pytest.raises(fa.OptionError, match="^protocol=global: "):
    swept.best("global")
