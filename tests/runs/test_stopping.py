"""When a run ends early: against a loop over each seed's curve, and in runs."""

import warnings

import chex
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.runs import stopping
from fedjax_alg.runs.options import RunOptions
from tests.each import each

SEEDS = 3


def ends(curve, rule):
  """The evaluations after which the rule is met by one seed, or infinity."""
  sign = -1 if rule.metric == "loss" else 1
  best, waited = None, 0
  for at, value in enumerate(curve, 1):
    if rule.name == "stop_at":
      if sign * value >= sign * rule.number:
        return at
      continue
    if best is None:
      best = None if np.isnan(value) else value
      continue
    if sign * value > sign * best:
      best, waited = value, 0
    else:
      waited += 1
    if waited == rule.number:
      return at
  return np.inf


def curves(seed):
  """Values of [seeds, 12 evaluations] in steps, so there are equal ones."""
  rng = np.random.default_rng(seed)
  values = np.round(rng.random((SEEDS, 12)) + np.linspace(0, 0.5, 12), 1) / 2
  values[:, : seed % 3] = np.nan
  values[0, 5] = np.nan
  return values


@pytest.mark.fast
@pytest.mark.parametrize(
  "text",
  [
    "stop_at=train:accuracy:0.6",
    "stop_at=train:loss:0.15",
    "patience=train:accuracy:2",
    "patience=train:loss:3",
  ],
)
def test_the_last_seed_decides(text):
  rule = stopping.parse_rule(*text.split("="))
  early = 0
  for number in range(40):
    values = curves(number)
    expected = max(ends(curve, rule) for curve in values)
    early += np.isfinite(expected)
    run = stopping.Stopping([rule])
    rows = []
    for at in range(1, 13):
      now = {"train": {rule.metric: values[:, at - 1]}}
      rows += [
        {
          "round": at,
          "seed": seed,
          "protocol": "train",
          "metric": rule.metric,
          "value": values[seed, at - 1],
        }
        for seed in range(SEEDS)
      ]
      reason = run.add_evaluation(now)
      assert (reason is not None) == (at >= expected)
      # What is resumed decides alike.
      assert stopping.Stopping([rule], rows).reason == reason
    assert reason in (None, text.replace("=", " "))
  assert 5 < early <= 40


@pytest.mark.fast
def test_the_first_rule_to_hold_is_the_reason():
  rules = stopping.rules("train:accuracy:0.9", "train:loss:1")
  run = stopping.Stopping(rules)
  table = {"train": {"accuracy": np.array([0.5]), "loss": np.array([2.0])}}
  assert run.add_evaluation(table) is None
  assert run.add_evaluation(table) == "patience train:loss:1"
  table["train"]["accuracy"] = np.array([0.95])
  assert run.add_evaluation(table) == "patience train:loss:1"


@pytest.mark.fast
@each(
  "word, pattern",
  [
    ("stop_at=train:accuracy", "must be PROTOCOL:METRIC:VALUE"),
    ("patience=train:loss", "must be PROTOCOL:METRIC:EVALUATIONS"),
    ("stop_at=trian:loss:1", "unknown protocol trian, did you mean 'train'"),
    ("stop_at=train:acuracy:1", "unknown metric acuracy, did you mean 'acc"),
    ("stop_at=train:accuracy:90", r"must lie in \(0, 1\], accuracy is a share"),
    ("stop_at=train:loss:nan", "a number above 0"),
    ("stop_at=train:loss:low", "a number above 0"),
    ("patience=train:loss:0", "whole number, at least 1"),
    ("patience=train:loss:1.5", "whole number, at least 1"),
    ("stop_at=train:worst_decile:.5", "train has no worst_decile"),
    ("stop_at=local_mean:loss:1", "unknown protocol local_mean"),
  ],
)
def test_what_cannot_be_read_is_one_line(word, pattern):
  name, text = word.split("=")
  with pytest.raises(fa.OptionError, match=f"^{name}={text}: .*{pattern}"):
    RunOptions(rounds=1, **{name: text}).checked()


@pytest.mark.fast
def test_test_data_are_warned_of():
  for text, optimistic in (
    ("global:loss:1", True),
    ("train:loss:1", False),
    ("local:loss:1", True),
    ("validation_mean:loss:1", False),
  ):
    caution = stopping.caution_test_data(stopping.rules(None, text))
    assert ("test data" in caution) == optimistic


RUN = dict(cohort_size=2, rounds=8, seeds=2, eval_every=1, evaluate=("train", "local"))
RATES = [0.03, 0.3, 3.0]


@pytest.fixture(name="full_sweep", scope="module")
def _full_sweep(own_fed):
  """Three rates, to the last round."""
  return fa.sweep("fedavg", own_fed, grid={"client_lr": RATES}, **RUN)


@pytest.fixture(name="stopped", scope="module")
def _stop_early(own_fed, full_sweep):
  """The same, ended at a loss that some reach; and that loss."""
  losses = np.stack([r.metrics["train"]["loss"] for r in full_sweep.results])
  # [settings, seeds]: the least loss of each. Two settings reach this one.
  level = float(np.sort(losses.min(2).max(1))[1])
  rule = f"train:loss:{level!r}"
  return (
    fa.sweep("fedavg", own_fed, grid={"client_lr": RATES}, stop_at=rule, **RUN),
    rule,
    level,
  )


def test_settings_of_a_sweep_end_in_their_own_rounds(full_sweep, stopped):
  sweep, rule, level = stopped
  lengths = set()
  for full, result in zip(full_sweep.results, sweep.results):
    reached = (full.metrics["train"]["loss"] <= level).argmax(1) + 1
    never = not (full.metrics["train"]["loss"] <= level).any(1).all()
    rounds = 8 if never else reached.max()
    assert result.rounds.tolist() == list(range(1, rounds + 1))
    assert result.stopped == ("rounds" if never else f"stop_at {rule}")
    assert result.history["floats_up"].shape == (2, rounds)
    chex.assert_trees_all_equal(
      result.metrics,
      {
        protocol: {name: values[:, :rounds] for name, values in of.items()}
        for protocol, of in full.metrics.items()
      },
    )
    lengths.add(rounds)
  assert len(lengths) > 1 and 8 in lengths
  assert sweep.num_programs == 1


def test_a_run_of_its_own_ends_alike(stopped, own_fed, tmp_path):
  sweep, rule, _ = stopped
  index = min(range(3), key=lambda i: len(sweep.results[i].rounds))
  options = dict(RUN, client_lr=RATES[index], stop_at=rule)
  steps = []
  run = fa.run("fedavg", own_fed, callbacks=steps.append, **options)
  in_sweep = sweep.results[index]
  assert run.state_hash() == in_sweep.state_hash()
  assert run.rounds.tolist() == in_sweep.rounds.tolist()
  chex.assert_trees_all_equal(run.clients, in_sweep.clients)
  assert [step.last for step in steps] == [False] * (len(steps) - 1) + [True]
  assert steps[-1].stopped == {0: f"stop_at {rule}"}
  loaded = fa.load_run(run.save(tmp_path / "run"))
  assert loaded.stopped == loaded.summary()["stopped"] == f"stop_at {rule}"
  assert loaded.summary()["cost"]["rounds"] == run.rounds[-1] < 8
  chex.assert_trees_all_equal(
    fa.load_run(tmp_path / "run", federation=own_fed).client_params("b"),
    in_sweep.client_params("b"),
  )


@pytest.mark.parametrize(
  "rule, pattern",
  [
    (
      "validation:loss:1",
      r"validation is not evaluated \(evaluate=train,local"
      r"\); give validation_clients=N and evaluate=train,local,validation",
    ),
    ("global:loss:1", r"global is not evaluated \(evaluate=train,local\)"),
    ("train_mean:loss:1", "one global model"),
  ],
)
def test_what_is_not_evaluated_cannot_end_a_run(own_fed, rule, pattern):
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with pytest.raises(fa.OptionError, match=pattern):
      fa.run("fedavg", own_fed, stop_at=rule, **RUN)


def test_a_run_that_test_data_end_warns(own_fed):
  with pytest.warns(UserWarning, match="local reads test data"):
    fa.steps("fedavg", own_fed, patience="local:loss:1", **RUN)
