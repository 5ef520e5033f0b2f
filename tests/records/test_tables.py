"""The tables of a run, without a run."""

import json

import jax
import numpy as np
import pytest

from fedjax_alg import files, tasks
from fedjax_alg.base import RoundAux, RoundCost, RoundTimes
from fedjax_alg.errors import OptionError
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables as records
from fedjax_alg.tasks import Counts

pytestmark = pytest.mark.fast

SEEDS, COHORT = [3, 4], 4


def aux(rounds, **server):
  """A log of some rounds, two seeds."""
  ones = np.ones((2, rounds), np.int32)
  cost = RoundCost(10 * ones, 5 * ones, 2 * ones, 6 * ones, ones.astype(np.float32))
  return RoundAux({}, server, cost)


def make_timed_log(rounds):
  """A log of the clock: 2, 1 and .5 seconds a round, seed 4 twice as slow."""
  slow = np.array([[1], [2]]) * np.ones((2, rounds), np.float32)
  return aux(rounds)._replace(times=RoundTimes(1e6 * slow, 2 * slow, slow, slow / 2))


def start_records(folder, *server, log=None, **options):
  """Tables in a folder, empty or of the first rounds."""
  run = records.Records(folder, SEEDS, COHORT, server, **options)
  run.write()
  if log is not None:
    run.add_rounds(log, 0, log.cost.down.shape[1], 1.0)
  return run


def evaluate(run, counts):
  """What an evaluation adds, and the costs of its round: a row for each protocol."""
  before = len(run.rows)
  run.add_metrics(records.metric_values(counts))
  costs = {row["seed"]: row for row in run.tables["rounds"][-len(SEEDS) :]}
  rows = {}
  for row in run.rows[before:]:
    key = row["seed"], row["protocol"]
    wide = rows.setdefault(key, costs[row["seed"]] | {"protocol": row["protocol"]})
    wide[row["metric"]] = row["value"]
  return list(rows.values())


def test_server_names_are_sorted_and_small():
  server = {
    "train_loss": np.zeros((2, 5)),
    "beta": np.zeros((2, 5)),
    "size": np.zeros((2, 5, 11)),
    "all": np.zeros((2, 5, 65)),
    "gram": np.zeros((2, 5, 2, 2)),
  }
  assert records.server_names(server) == (
    "beta",
    "gram_0",
    "gram_1",
    "gram_2",
    "gram_3",
    *(f"size_{i}" for i in range(11)),
    "train_loss",
  )


def test_round_rows():
  log = aux(
    3,
    accepted=np.array([[True, False, True]] * 2),
    loss=np.arange(6, dtype=np.float32).reshape(2, 3),
  )
  rows = records.round_rows(log, 7, 2, SEEDS, COHORT)
  assert [(r["round"], r["seed"], r["loss"], r["accepted"]) for r in rows] == [
    (8, 3, 0.0, 1),
    (8, 4, 3.0, 1),
    (9, 3, 1.0, 0),
    (9, 4, 4.0, 0),
  ]
  assert rows[0]["example_gradients"] == 1.5 and rows[0]["exchanges"] == 2
  assert all(
    np.isnan(row[name]) for row in rows for name in ("client_flops", *records.SIMULATED)
  )


def test_simulated_seconds_add_up(tmp_path):
  original = start_records(tmp_path, log=make_timed_log(2))
  original.add_metrics(records.metric_values({"global": counts(4)}))
  reread = records.Records(tmp_path, SEEDS, COHORT, ())
  reread.read(2, original.marks())
  for run in (original, reread):
    run.add_rounds(make_timed_log(1), 2, 1, 1.0)
    rows = evaluate(run, {"global": counts(4)})
    assert [row["simulated_s"] for row in rows] == [10.5, 21]
    assert [row["client_flops"] for row in rows] == [1e6, 2e6]
    assert [rows[0][name] for name in records.SIMULATED] == [2, 1, 0.5]
    cost = results.cost(run.tables["rounds"], COHORT)
    assert [cost[name]["values"] for name in records.SIMULATED] == [
      [6, 12],
      [3, 6],
      [1.5, 3],
    ]
    assert cost["simulated_s"]["mean"] == 15.75
    assert cost["last_round"]["idle_s"] == 0.75


def test_a_method_that_counts_no_work_has_no_time(tmp_path):
  run = start_records(tmp_path, log=aux(1))
  cost = results.cost(run.tables["rounds"], COHORT)
  for name in (*records.SIMULATED, "simulated_s"):
    assert np.isnan(cost[name]["mean"])
  assert cost["total_floats"]["mean"] == COHORT * 15
  results.write_json(tmp_path / "cost.json", cost)
  assert json.loads((tmp_path / "cost.json").read_text())["simulated_s"] == {
    "mean": None,
    "ci95": None,
    "values": [None, None],
  }


def counts(*hits):
  """[2 seeds, K models] of ten examples of two classes."""
  correct = np.zeros((2, len(hits), 2))
  correct[..., 0] = hits
  return Counts(
    {
      "rows": correct * 0 + [10, 0],
      "hits": correct,
      "predicted": np.stack([correct[..., 0], 10 - correct[..., 0]], -1),
      "loss": np.ones(correct.shape),
    }
  )


def test_best_of_k_for_every_protocol_of_models(tmp_path):
  run = start_records(tmp_path, log=aux(2))
  single = jax.tree.map(lambda leaf: leaf[:, 0], counts(5))
  rows = evaluate(run, {"global": counts(3, 9), "train": counts(6, 2), "local": single})
  accuracies = {r["protocol"]: r["accuracy"] for r in rows if r["seed"] == 3}
  assert accuracies == {
    "global": 0.9,
    "global_mean": pytest.approx(0.6),
    "train": 0.6,
    "train_mean": pytest.approx(0.4),
    "local": 0.5,
  }
  # The best on validation data is the worst on test data.
  both = evaluate(run, {"global": counts(3, 9), "validation": counts(6, 2)})
  accuracies = {r["protocol"]: r["accuracy"] for r in both if r["seed"] == 3}
  assert accuracies["global_chosen"] == 0.3 and accuracies["global"] == 0.9
  single_rows = evaluate(run, {"validation": counts(4)})
  assert [r["protocol"] for r in single_rows] == ["validation"] * 2
  assert rows[0]["total_floats"] == 2 * COHORT * 15
  assert rows[0]["total_example_gradients"] == 12


def test_read_gives_back_what_was_written(tmp_path):
  original = start_records(tmp_path, "loss")
  loss = np.array([[0.1, np.nan], [1e-9, 3.0]], np.float32)
  original.add_rounds(aux(2, loss=loss), 0, 2, 1.0)
  original.add_metrics(records.metric_values({"global": counts(4)}))
  marks = original.marks()
  original.add_rounds(aux(2, loss=loss), 2, 2, 3.0)
  reread = records.Records(tmp_path, SEEDS, COHORT, ("loss",))
  reread.read(2, marks)
  reread.write()
  reread.add_rounds(aux(2, loss=loss), 2, 2, 3.0)
  assert str(reread.tables) == str(original.tables)
  assert reread.seconds_per_round() == pytest.approx(0.5)
  text = (tmp_path / "rounds.csv").read_text().splitlines()
  assert text[1] == (
    "1,3,10,5,40,20,2,1.5,1.0,nan,nan,nan,nan,60,240,80,6,1.0,nan,0.10000000149011612"
  )
  with pytest.raises(OptionError, match="rounds.csv"):
    records.Records(tmp_path, SEEDS, COHORT, ("loss",)).read(5, original.marks())


def test_bytes_are_those_that_are_given_or_four_a_float(tmp_path):
  """More than int32 and float32 hold: 4 x (2^31 - 1) down, 2^32 - 1 up."""
  log = aux(2)
  most = np.full((2, 2), 2**31 - 1, np.int32)
  log = log._replace(
    cost=log.cost._replace(
      down=most, up=most, bytes_up=np.full((2, 2), 2**32 - 1, np.uint32)
    )
  )
  run = start_records(tmp_path, log=log)
  row = evaluate(run, {"global": counts(4)})[0]
  assert (row["bytes_down"], row["bytes_up"]) == (2**33 - 4, 2**32 - 1)
  assert row["total_bytes"] == 2 * COHORT * (3 * 2**32 - 5)
  reread = records.read_rows(tmp_path / "rounds.csv", None)
  assert reread[-2]["total_bytes"] == row["total_bytes"]
  assert reread[-2]["total_bytes_up"] == 2 * COHORT * (2**32 - 1)


def test_a_client_that_sends_nothing_has_received(tmp_path):
  """Of COHORT clients 2 and then all are lost; 40 bytes down, 20 up."""
  lost = np.array([[2, COHORT], [2, COHORT]], np.int32)
  log = aux(2)
  log = log._replace(server={"cohort_present": COHORT - lost, "cohort_lost": lost})
  run = start_records(tmp_path, "cohort_lost", "cohort_present", log=log)
  row = evaluate(run, {"global": counts(4)})[0]
  assert row["total_bytes"] == 2 * COHORT * 40 + (COHORT - 2) * 20
  assert row["total_bytes_up"] == (COHORT - 2) * 20
  assert 4 * row["total_floats"] == row["total_bytes"]


@pytest.mark.parametrize("name", ["round", "seed", "protocol", "metric", "value"])
def test_a_table_of_other_columns_is_refused(tmp_path, name):
  run = start_records(tmp_path, log=aux(1))
  evaluate(run, {"global": counts(4)})
  path = run.path("metrics")
  assert len(records.read_rows(path)) == 2 * len(tasks.CLASSIFICATION.metrics.columns)
  path.write_text(path.read_text().replace(name, "other", 1))
  with pytest.raises(OptionError, match="metrics.csv: .* of another version"):
    records.read_rows(path)


def test_a_table_has_the_metrics_of_the_task(tmp_path):
  """It is read without knowing which, and its first metric is the main one."""
  metrics = tasks.REGRESSION.metrics
  original = records.Records(tmp_path, SEEDS, COHORT, (), metrics=metrics)
  original.write()
  original.add_rounds(aux(1), 0, 1, 1.0)
  original.add_metrics(
    {"global": {name: np.array([0.25, 0.5]) for name in metrics.columns}}
  )
  curves = records.curves(records.read_rows(original.path("metrics")))
  assert records.main_metric(curves["global"]) == "mse"
  np.testing.assert_array_equal(curves["global"]["mse"], [[0.25], [0.5]])
  summary = results.summarize_curves(curves, original.evaluated, (0.3,), "mse")
  assert summary["rounds_to"]["0.30"]["values"] == [1, None]


def test_groups_are_a_table_of_their_own(tmp_path):
  """Two kinds of clients; seed 4 has put nobody into a group yet."""
  histogram = np.array([[5, 0], [9, 0], [1, 3], [2, 2]])
  membership = np.array([[0, 0, 2, -1], [-1] * 4])
  original, marks = start_records(tmp_path, num_groups=3), []
  for start in (0, 2):
    original.add_rounds(aux(2), start, 2, 1.0)
    original.add_metrics(records.metric_values({"global": counts(4)}))
    original.add_groups(membership, histogram)
    marks.append(original.marks())
  first, second = original.tables["groups"][:2]
  assert list(first.values()) == [2, 3, 3, 2, 2, 0, 1, 1.0, 1.0]
  assert str(list(second.values())) == "[2, 4, 0, 0, 0, 0, 0, nan, nan]"
  reread = records.Records(tmp_path, SEEDS, COHORT, (), 3)
  reread.read(4, marks[1])
  assert str(reread.tables) == str(original.tables)
  reread.read(2, marks[0])
  assert len(reread.tables["groups"]) == 2
  summary = results.groups(original.tables["groups"], 3)
  assert summary["sizes"] == [[2, 0, 1], [0, 0, 0]]
  assert summary["empty_groups"]["values"] == [1, 3]
  assert summary["assigned"]["mean"] == 1.5 and np.isnan(summary["ari"]["mean"])
  assert "groups" not in records.Records(tmp_path, SEEDS, COHORT, ()).tables
  assert records.group_columns(65) == (
    "round",
    "seed",
    "assigned",
    "used",
    "purity",
    "ari",
  )
  rows = records.group_rows(np.arange(70)[None], np.eye(70, dtype=int), 1, [0], 70)
  assert rows[0]["used"] == 70 and "size_0" not in rows[0]


@pytest.fixture(name="run")
def _run(tmp_path):
  """Tables of three rounds, evaluated after 2 and 3."""
  run = start_records(tmp_path, num_groups=2)
  for start, count in ((0, 2), (2, 1)):
    run.add_rounds(aux(count), start, count, 1.0)
    run.add_metrics(records.metric_values({"global": counts(4)}))
    run.add_groups(np.zeros((2, 3), int), np.eye(3, dtype=int))
  return run


def test_marks_are_those_of_the_files(run):
  marks = run.marks()
  assert {name: mark["rows"] for name, mark in marks.items()} == {
    "metrics": 4 * len(tasks.CLASSIFICATION.metrics.columns),
    "rounds": 6,
    "timing": 2,
    "groups": 4,
  }
  for name, mark in marks.items():
    assert mark["sha256"] == files.sha256(run.path(name))
  reread = records.Records(run.folder, SEEDS, COHORT, (), num_groups=2)
  for name in marks:  # rows after the checkpoint
    with open(run.path(name), "ab") as file:
      file.write(b"4,3,glob")
  reread.read(3, marks)
  assert reread.marks() == marks
  reread.write()
  assert {name: files.sha256(reread.path(name)) for name in marks} == {
    name: mark["sha256"] for name, mark in marks.items()
  }


@pytest.mark.parametrize("name", ["metrics", "rounds", "timing", "groups"])
def test_other_tables_are_refused(run, name):
  """A row less, one twice, another number, text for it, half a line, nothing."""
  marks, path = run.marks(), run.path(name)
  lines = path.read_bytes().splitlines(keepends=True)
  records.check_tables(run.folder, SEEDS, 3, marks)
  for rows in (
    [*lines[:1], *lines[2:]],
    [*lines[:2], *lines[1:]],
    [*lines[:-1], lines[-1].replace(b"3", b"7", 1)],
    [*lines[:-1], lines[-1].replace(b"3", b"x", 1)],
    [*lines[:-1], lines[-1][:-2]],
    lines[:1],
    [],
    [b"\xff\0\n"],
  ):
    path.write_bytes(b"".join(rows))
    with pytest.raises(OptionError, match="csv: edited or cut") as caught:
      records.check_tables(run.folder, SEEDS, 3, marks)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "old, new, pattern",
  [
    (b"1,3,", b"x,3,", "a round that is no number"),
    (b"1,3,", b"1,many,", "a seed that is no number .'many'."),
    (b"round", b"rounds", "has no column round"),
    (b"1,3,", b"9,3,", "has 5 rows of 3 rounds of 2 seeds"),
    (b"round", b"\xff", "no table"),
  ],
)
def test_tables_have_all_rounds_whatever_their_marks_say(run, old, new, pattern):
  """The marks are those of the bytes that were changed."""
  path = run.path("rounds")
  path.write_bytes(path.read_bytes().replace(old, new, 1))
  marks = run.marks()
  marks["rounds"]["sha256"] = files.sha256(path)
  assert run.written_marks(run.folder) == marks
  with pytest.raises(OptionError, match=f"rounds.csv: damaged, {pattern}"):
    records.check_tables(run.folder, SEEDS, 3, marks)


def test_nothing_is_appended_through_a_link(run, tmp_path):
  target = tmp_path / "other.csv"
  run.path("rounds").rename(target)
  before = target.read_bytes()
  run.path("rounds").symlink_to(target)
  with pytest.raises(OSError):
    run.add_rounds(aux(1), 3, 1, 1.0)
  assert target.read_bytes() == before
  run.path("rounds").unlink()
  with pytest.raises(FileNotFoundError):
    run.add_rounds(aux(1), 3, 1, 1.0)


def test_a_curve_may_begin_later_than_the_run():
  """It belongs to the last evaluations; a loss is reached from above."""
  rows = [
    {"round": n, "seed": s, "protocol": p, "metric": "loss", "value": 1.0 / (n + s)}
    for n in (2, 4, 6)
    for s in (0, 7)
    for p in ("global", "late")[: n - 2 or 1]
  ]
  curves = records.curves(rows)
  np.testing.assert_array_equal(
    curves["late"]["loss"], [[1 / 4, 1 / 6], [1 / 11, 1 / 13]]
  )
  rounds = np.array([2, 4, 6])
  for protocol, expected in (("global", [6, 2]), ("late", [6, 4])):
    np.testing.assert_array_equal(
      records.first_reaching(curves[protocol]["loss"], rounds, "loss", 0.2), expected
    )
  never = records.first_reaching(curves["late"]["loss"], rounds, "loss", 0.01)
  assert np.isinf(never).all()


def test_a_model_without_a_number_is_not_the_best_of_k():
  """argmax takes NaN for the largest; a loss is best where it is least."""
  values = {
    "mse": np.array([[np.nan, 0.3, 0.2], [np.nan, np.nan, np.nan]]),
    "loss": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
  }
  best = records._pick_best(values, values, "mse")
  np.testing.assert_array_equal(best["mse"], [0.2, np.nan])
  np.testing.assert_array_equal(best["loss"], [3.0, 4.0])


def test_the_worst_kind_has_the_largest_error_and_the_least_accuracy():
  values = {name: np.array([[1.0, 5.0, 2.0]]) for name in ("mse", "loss", "accuracy")}
  worst = records._mean_and_worst(values, "mse")["kinds_worst"]
  assert worst["mse"].tolist() == [5.0]
  worst = records._mean_and_worst(values, "accuracy")["kinds_worst"]
  assert worst["accuracy"].tolist() == [1.0]
