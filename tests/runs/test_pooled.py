"""Several partitions, each with a seed of its own, as one result."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedjax_alg as fa
from fedjax_alg.runs import pooled

OPTIONS = dict(
  rounds=2, cohort_size=3, eval_every=1, evaluate=("global", "local"), client_lr=0.1
)


@pytest.fixture(name="feds", scope="module")
def fixture_feds():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(120, 3)).astype(np.float32)
  y = (x[:, 0] + rng.normal(size=120) > 0).astype(int)
  examples = fa.from_arrays(x, y, rng.choice(["a", "b", "c", "d"], 120), task="binary")
  return fa.federate(examples, partitions=3, seed=5, partition="natural:test_share=0.4")


@pytest.fixture(name="result", scope="module")
def fixture_result(feds):
  return fa.run("fedavg", feds, **OPTIONS)


def test_every_partition_is_dealt_and_run_by_itself(feds, result):
  """One partition for all seeds would leave the split out of the interval."""
  assert [fed.options.partition_seed for fed in feds] == [5, 6, 7]
  assert len({fed.hashes["partition"] for fed in feds}) == 3
  assert result.seeds == (0, 1, 2) and len(result.results) == 3
  alone = fa.run("fedavg", feds[1], seeds=(1,), **OPTIONS)
  for protocol in ("global", "local"):
    for name, values in alone.metrics[protocol].items():
      np.testing.assert_array_equal(result.metrics[protocol][name][1], values[0])
  np.testing.assert_array_equal(
    result.clients["local"]["auroc"][1], alone.clients["local"]["auroc"][0]
  )
  np.testing.assert_array_equal(
    result.history["train_loss"][1], alone.history["train_loss"][0]
  )
  x, _ = feds[1].client_test("c")
  np.testing.assert_array_equal(
    result.predict(x, "c", proba=True, seed=1), alone.predict(x, "c", proba=True)
  )


def test_each_client_has_an_interval_over_the_partitions(feds, result):
  """By the definition: Student's t of its scores, of the splits that test it."""
  assert result.client_names.tolist() == list("abcd")
  scores = [part.clients["local"]["auroc"][0, 2] for part in result.results]
  mean, half = result.estimate("auroc", "local", client="c")
  np.testing.assert_allclose(mean, np.mean(scores))
  low, high = stats.t.interval(0.95, 2, np.mean(scores), stats.sem(scores))
  np.testing.assert_allclose((mean - half, mean + half), (low, high))
  assert result.estimate(client="c") == (mean, half)
  for arguments, says in (
    (dict(client="e"), "^client=e: no client of this name"),
    (dict(client=2), "^client=2: no client of this name"),
    (dict(client="c", protocol="global"), "^protocol=global: must be one of local"),
    (dict(client="c", metric="mse"), "^metric=mse: must be one of "),
  ):
    with pytest.raises(fa.OptionError, match=says):
      result.estimate(**arguments)


@pytest.mark.parametrize("rule", ["stop_at", "patience"])
def test_rules_are_refused_before_the_first_round(feds, rule):
  """The partitions ended in different rounds, and all their results were lost."""
  steps: list[Any] = []
  options = OPTIONS | dict(callbacks=steps.append)
  text = {"stop_at": "local:accuracy:0.6", "patience": "local:loss:3"}[rule]
  with pytest.raises(fa.OptionError, match=f"^{rule}={text}: the 3 partitions would"):
    fa.run("fedavg", feds, **options, **{rule: text})
  with pytest.raises(fa.OptionError, match=f"^{rule}={text}: the 3 partitions would"):
    fa.sweep("fedavg", feds, grid={rule: [None, text]}, **options)
  assert not steps


def test_a_frame_has_the_values_of_every_partition(result):
  for table in ("metrics", "rounds", "clients"):
    frame = result.to_frame(table)
    assert list(frame["partition"].unique()) == [0, 1, 2]
    assert list(frame.index) == list(range(len(frame)))
    for number, part in enumerate(result.results):
      of = frame[frame["partition"] == number].reset_index(drop=True)
      expected = part.to_frame(table).assign(partition=number)
      assert of.equals(expected), (table, number)
  long = result.to_frame().set_index(["protocol", "metric", "partition"])
  for protocol, of_protocol in result.metrics.items():
    for metric, values in of_protocol.items():
      for number, curve in enumerate(values):
        frame = long.loc[(protocol, metric, number)]
        np.testing.assert_array_equal(frame["value"], curve)


def test_costs_are_those_of_every_partition(result):
  for column in ("round", "seconds", "total_bytes", "simulated_s"):
    costs = result.costs(column)
    for of_partition, part in zip(costs, result.results, strict=True):
      np.testing.assert_array_equal(of_partition, part.costs(column)[0], column)


def test_a_client_may_be_held_out_of_some_partitions():
  """Its interval is of the others; positions would be those of other clients."""
  rng = np.random.default_rng(1)
  x, owner = rng.normal(size=(120, 3)), rng.choice(list("abcd"), 120)
  examples = fa.from_arrays(x, rng.integers(0, 2, 120), owner)
  feds = fa.federate(examples, partitions=4, seed=1, validation_clients=1)
  names = [fed.client_names.tolist() for fed in feds]
  client = next(
    name for name in "abcd" if len({of.index(name) for of in names if name in of}) == 2
  )
  pooled: Any = fa.run("fedavg", feds, **OPTIONS)
  scores = [
    part.clients["local"]["accuracy"][0, of.index(client)]
    for part, of in zip(pooled.results, names)
    if client in of
  ]
  assert 1 < len(scores)
  mean, half = pooled.estimate("accuracy", "local", client=client)
  np.testing.assert_allclose(mean, np.mean(scores))
  np.testing.assert_allclose(
    half,
    stats.t.ppf(0.975, len(scores) - 1) * np.std(scores, ddof=1) / len(scores) ** 0.5,
  )
  with pytest.raises(fa.OptionError, match="^client_names: the partitions have diff"):
    pooled.client_names  # noqa: B018
  with pytest.raises(fa.OptionError, match="^client=z: no client of this name"):
    pooled.estimate(client="z")
  made_up = fa.federate("digits", partitions=2, num_clients=4)
  with pytest.raises(fa.OptionError, match="^client=0: the data do not name"):
    fa.run("fedavg", made_up, **OPTIONS).estimate(client=0)


def test_pooled_results_are_compared_partition_by_partition(feds, result, tmp_path):
  other = fa.run("fedavg", feds, **OPTIONS | dict(client_lr=0.3))
  comparison = fa.compare({"low": result, "high": other})
  (pair,) = comparison.pairs
  assert len(pair.difference.values) == 3 and not comparison.unpaired
  for run, reason in (
    (
      fa.run("fedavg", fa.federate("digits", partitions=2, num_clients=4), **OPTIONS),
      "the data differ",
    ),
    (
      pooled.PooledResult(result.results[:2]),
      "the number of partitions differs (2, not 3)",
    ),
    (pooled.PooledResult(result.results[::-1]), "the partition differs"),
  ):
    comparison = fa.compare({"a": result, "b": run}, metric="accuracy")
    assert comparison.unpaired == {"b": reason}
  # The seeds of the partitions may be others: they were paired by these.
  moved = fa.run("fedavg", feds, seeds=(2, 0, 7), **OPTIONS | dict(client_lr=0.3))
  (pair,) = fa.compare({"low": result, "moved": moved}, metric="auroc").pairs
  final = [run.metrics["global"]["auroc"][:, -1] for run in (moved, result)]
  np.testing.assert_array_equal(pair.difference.values, final[0] - final[1])
  folder = result.save(tmp_path / "three")
  again = fa.load_run(folder / "partition_2")
  np.testing.assert_array_equal(
    again.metrics["global"]["auroc"][0], result.metrics["global"]["auroc"][2]
  )
  # Without the data, the folder says how the clients are called.
  assert again.client_names.tolist() == list("abcd")
  assert again.estimate(client="c")[0] == result.clients["local"]["auroc"][2, 2]
  rows = (folder / "partition_2" / "clients.csv").read_text("utf-8").splitlines()
  assert [row.split(",")[2] for row in rows] == ["client", *"abcd"]


def test_a_sweep_chooses_over_partitions(feds, result):
  shared = {name: value for name, value in OPTIONS.items() if name != "client_lr"}
  swept = fa.sweep("fedavg", feds, grid={"client_lr": (0.1, 0.3)}, **shared)
  assert swept.seeds == (0, 1, 2)
  np.testing.assert_array_equal(
    swept.metrics["global"]["auroc"][0], result.metrics["global"]["auroc"]
  )
  with pytest.warns(UserWarning, match="chosen by local, on test data"):
    best = swept.best("local")
  assert np.isfinite(best.ci95) and best.result.seeds == (0, 1, 2)


@pytest.mark.parametrize(
  "fn, message",
  [
    (lambda feds: fa.run("fedavg", feds, seeds=2), "seeds=2: each of the 3 partitions"),
    (lambda feds: fa.run("fedavg", feds, seeds=(1, 1, 2), **OPTIONS), "seeds="),
    (lambda feds: fa.federate("digits", partitions=1), "partitions=1: must be 2 to"),
    (lambda feds: fa.federate("digits", partitions=2.5), "partitions=2.5"),
  ],
)
def test_other_numbers_are_refused(feds, fn, message):
  with pytest.raises(fa.OptionError, match=f"^{message}"):
    fn(feds)


def test_an_export_is_of_one_partition(result, tmp_path):
  """It silently was the first one's."""
  path = tmp_path / "model.npz"
  with pytest.raises(fa.OptionError, match="^seed: give which of the 3 partitions"):
    result.export(path, "npz")
  assert not path.exists()
  result.export(path, "npz", seed=2)
  layer = result.results[2].global_params()["params"]
  with np.load(path) as arrays:
    np.testing.assert_array_equal(arrays["params/bias"], layer["bias"][0])
