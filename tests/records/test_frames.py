"""Frames of runs: curves, costs and targets, of several partitions too."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from fedjax_alg.records import frames, tables
from tests import made_runs

pytestmark = pytest.mark.fast

#: [partitions, seeds, evaluations]; the second partition has the same seeds.
ACCURACY = np.array(
  [[[0.2, 0.5, 0.6], [0.3, np.nan, 0.8]], [[0.9, 0.1, 0.7], [0.4, 0.45, 0.5]]]
)


@pytest.fixture(name="run")
def _run():
  """Evaluations after rounds 2, 4, 6; seed 7 comes before seed 3."""
  rows = [
    {
      "partition": part,
      "round": n,
      "seed": seed,
      "total_bytes": 100.0 * n + 10 * place + part,
      **(
        {"protocol": protocol, "accuracy": value, "loss": 1 - value}
        if n % 2 == 0
        else {}
      ),
    }
    for part in range(2)
    for n in range(1, 7)
    for place, seed in enumerate((7, 3))
    for protocol in ("global", "late")[: 1 + (n > 2)]
    for value in [ACCURACY[part, place, (n - 1) // 2]]
  ]
  return made_runs.frames_of(rows)


def test_curves_have_the_order_of_partitions_and_seeds(run):
  flat = ACCURACY.reshape(4, 3)
  np.testing.assert_array_equal(run.curves("global", "accuracy"), flat)
  np.testing.assert_array_equal(run.curves("global", "loss", last=4), 1 - flat[:, :2])
  np.testing.assert_array_equal(run.curves("late", "accuracy"), flat[:, 1:])
  assert (run.num_partitions, run.seeds) == (2, [7, 3])
  assert run.protocols == ["global", "late"] and run.names == ["accuracy", "loss"]
  assert list(run.evaluated) == [2, 4, 6] and list(run.rounds_of("late")) == [4, 6]
  assert run.curves("global", "mse").shape == (0, 0)


def test_an_interval_is_over_the_means_of_partitions(run):
  values = run.curves("global", "accuracy")[:, 0]
  np.testing.assert_allclose(run.per_partition(values), [0.25, 0.65])
  one = made_runs.frames_of([{"round": 1, "seed": s} for s in range(3)])
  np.testing.assert_array_equal(one.per_partition(np.arange(3.0)), [0, 1, 2])


def test_scores_of_partitions_have_an_interval(run):
  """The last evaluation of each partition; "late" has the same."""
  last = ACCURACY[:, :, -1].mean(1)
  np.testing.assert_allclose(run.scores("final", "late", "accuracy"), last)
  np.testing.assert_allclose(
    run.scores("best", "global", "loss"), 1 - np.nanmax(ACCURACY, 2).mean(1)
  )
  estimate = run.estimate("final", "global", "accuracy")
  assert estimate.mean == pytest.approx(0.65) and list(estimate.values) == list(last)
  assert run.estimate("final", "global", "mse") is None
  with pytest.raises(KeyError, match="global: acuracy"):  # a typo is no empty result
    run.scores("final", "global", "acuracy")


def test_what_one_partition_alone_measures_has_no_score():
  """Its two seeds are not two partitions."""
  rows = [
    {"partition": part, "round": 1, "seed": seed, "protocol": name, "accuracy": 0.5}
    for part in range(2)
    for seed in range(2)
    for name in ("global", "preferred")[: 2 - part]
  ]
  run = made_runs.frames_of(rows)
  assert list(run.scores("final", "global", "accuracy")) == [0.5, 0.5]
  with pytest.raises(KeyError, match="preferred"):
    run.scores("final", "preferred", "accuracy")
  assert run.estimate("final", "preferred", "accuracy") is None


def test_a_round_that_is_there_twice_is_refused(run):
  twice = dataclasses.replace(run, metrics=pd.concat([run.metrics, run.metrics[:1]]))
  with pytest.raises(ValueError, match="twice"):
    twice.curves("global", "accuracy")


def test_targets_are_reached_from_below_or_above_and_never_by_nan(run):
  inf = np.inf
  np.testing.assert_array_equal(run.reached("global", "accuracy", 0.5), [4, 6, 2, 6])
  np.testing.assert_array_equal(run.reached("global", "loss", 0.5), [4, 6, 2, 6])
  np.testing.assert_array_equal(run.reached("late", "accuracy", 0.55), [6, 6, 6, inf])


def test_costs_of_rounds(run):
  every = [[100 * n + 10 * s + p for n in range(1, 7)] for p in (0, 1) for s in (0, 1)]
  np.testing.assert_array_equal(run.of_rounds("total_bytes"), every)
  at = run.of_rounds("total_bytes", run.evaluated, last=4)
  np.testing.assert_array_equal(at, np.array(every)[:, [1, 3]])
  np.testing.assert_array_equal(run.end("total_bytes"), [600, 610, 601, 611])
  np.testing.assert_array_equal(run.of_rounds("round")[2], range(1, 7))


def test_points_stand_beside_their_costs(run):
  points = run.points("late", ["round", "seed", "total_bytes"])
  assert list(points.columns) == [
    *("partition", "seed", "round", "accuracy", "loss", "total_bytes")
  ]
  assert list(points["round"]) == [4] * 4 + [6] * 4
  row = points[(points["partition"] == 1) & (points["seed"] == 3)].iloc[-1]
  assert (row["accuracy"], row["total_bytes"]) == (0.5, 611)


def test_protocols_get_other_names(run):
  alone = run.of_protocol("late", new_name="x")
  assert alone.protocols == ["x"] and alone.rounds is run.rounds
  swapped = run.rename_protocols({"global": "late", "late": "global"})
  np.testing.assert_array_equal(
    swapped.curves("late", "accuracy"), run.curves("global", "accuracy")
  )


def test_frames_are_read_from_a_folder_and_joined(tmp_path):
  places = [made_runs.write(tmp_path / str(i), of) for i, of in enumerate(ACCURACY)]
  both = frames.concatenate(list(map(frames.read_frames, places)))
  np.testing.assert_array_equal(
    both.curves("global", "accuracy"), ACCURACY.reshape(4, 3)
  )
  assert both.num_partitions == 2
  assert set(both.rounds) >= {*tables.ROUND_COST, *tables.TOTALS, "seconds"}
  seconds = both.of_rounds("seconds", both.evaluated)
  np.testing.assert_allclose(seconds, np.tile(0.1 * both.evaluated, (4, 1)))
