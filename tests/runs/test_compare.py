"""Comparing runs: estimates, costs to targets, paired tests, labels."""

import itertools
import json
import re

import matplotlib
import numpy as np
import pytest
from scipy import stats

import fedjax_alg as fa
from fedjax_alg import metrics
from fedjax_alg.data.federation import pair_hash
from fedjax_alg.records import folder as run_files
from fedjax_alg.runs import compare as compare_lib
from fedjax_alg.runs import pictures, styles
from tests import made_runs
from tests.each import each

matplotlib.use("Agg")

SCORES_A = [[0.5, 0.7, 0.8], [0.4, 0.8, 0.7], [0.6, 0.9, 0.9]]
SCORES_B = [[0.6, 0.9, 0.9], [0.7, 0.9, 0.75], [0.5, 0.95, 0.94]]


@pytest.fixture(name="load")
def _load(tmp_path):
  numbers = itertools.count()

  def load(*args, **options):
    return fa.load_run(made_runs.write(tmp_path / str(next(numbers)), *args, **options))

  return load


def test_estimates_and_costs(load):
  comparison = fa.compare(
    {"a": load(SCORES_A), "b": load(SCORES_B)}, targets=(0.85, 0.95)
  )
  a, b = comparison.lines
  assert (comparison.protocol, comparison.baseline) == ("global", "a")
  last = np.array(SCORES_A)[:, -1]
  mean, half = last.mean(), stats.t.ppf(0.975, 2) * stats.sem(last)
  np.testing.assert_allclose(a.scores["final"][:2], (mean, half))
  np.testing.assert_allclose(a.scores["final"].values, last)
  np.testing.assert_allclose(a.scores["best"].values, (0.8, 0.8, 0.9))
  # Rounds 10 and 15 lie in the last ten of 15 rounds.
  np.testing.assert_allclose(
    a.scores["last_10"].values, np.array(SCORES_A)[:, 1:].mean(1)
  )
  assert [at and at["round"] for at in a.reached[0.85]] == [None, None, 10]
  assert [at and at["round"] for at in b.reached[0.85]] == [10, 10, 10]
  assert a.cost_to(0.95, "round") is None
  assert a.cost_to(0.85, "total_floats").mean == 10 * made_runs.FLOATS
  assert b.cost_to(0.95, "simulated_s").values == (10 * made_runs.SECONDS,)
  assert a.costs["total_floats"].values == (15 * made_runs.FLOATS,) * 3
  frame = comparison.to_frame()
  assert list(frame["reached_0.85"]) == [1, 3]
  assert np.isnan(frame["round_to_0.95"][0])


def test_the_loss_reaches_its_targets_from_above(load):
  comparison = fa.compare({"a": load(SCORES_A)}, metric="loss", targets=(0.25,))
  (line,) = comparison.lines
  assert [at and at["round"] for at in line.reached[0.25]] == [15, 10, 10]
  np.testing.assert_allclose(line.scores["best"].values, (0.2, 0.2, 0.1))
  assert fa.compare({"a": load(SCORES_A)}, metric="loss").targets == ()


def test_pairs_are_scipys_paired_test(load):
  runs = {"a": load(SCORES_A), "b": load(SCORES_B), "c": load(np.array(SCORES_A) - 0.1)}
  comparison = fa.compare(runs)
  b, c = comparison.pairs
  last = np.array(SCORES_B)[:, -1], np.array(SCORES_A)[:, -1]
  expected = stats.ttest_rel(*last)
  np.testing.assert_allclose((b.t, b.p), expected)
  interval = expected.confidence_interval(0.95)
  np.testing.assert_allclose(
    (b.difference.mean - b.difference.ci95, b.difference.mean + b.difference.ci95),
    interval,
  )
  # The same difference in all seeds: no test, and none to correct for.
  assert c.difference.mean == pytest.approx(-0.1)
  assert c.difference.ci95 == 0.0
  assert np.isnan([c.t, c.p, c.holm]).all() and b.holm == b.p
  against_b = fa.compare(runs, baseline="b", score="best")
  assert [pair.label for pair in against_b.pairs] == ["a", "c"]
  np.testing.assert_allclose(against_b.pairs[0].difference.values, (-0.1, -0.1, -0.05))


def test_one_seed_has_no_interval_and_no_test(load):
  comparison = fa.compare({"a": load(SCORES_A[:1]), "b": load(SCORES_B[:1])})
  assert np.isnan(comparison.lines[0].scores["final"].ci95)
  (pair,) = comparison.pairs
  assert pair.difference.mean == pytest.approx(0.1)
  assert np.isnan([pair.difference.ci95, pair.p, pair.holm]).all()


def test_holm_is_the_step_down_method():
  """Rejects, from the smallest p value on, until one is too large."""
  p = np.array([0.04, np.nan, 0.001, 0.03, 0.012, 0.2])
  corrected = compare_lib.holm(p)
  for level in (0.003, 0.01, 0.045, 0.05, 0.1, 0.25):
    rejected, order = set(), np.argsort(p)[:5]
    for k, test in enumerate(order):
      if p[test] > level / (5 - k):
        break
      rejected.add(int(test))
    assert {i for i, q in enumerate(corrected) if q <= level} == rejected
  assert np.isnan(corrected[1]) and max(compare_lib.holm([0.9, 0.8])) == 1.0
  # None is smaller than one of a smaller p.
  np.testing.assert_allclose(
    compare_lib.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02]
  )


@pytest.mark.parametrize(
  "changed,reason",
  [
    (dict(data={"dataset": "mnist"}), "the data differ"),
    (dict(partition="Q"), "the partition differs"),
    (dict(data={"shift": "increment"}), "--shift differs"),
    (dict(data={"newcomers_at": ((5, 2),)}), "--newcomers_at differs"),
    (dict(seeds=(0, 1, 5)), r"the seeds differ \(0,1,5, not 0,1,2\)"),
  ],
)
def test_other_data_or_seeds_are_not_paired(load, changed, reason):
  comparison = fa.compare(
    {"a": load(SCORES_A), "b": load(SCORES_B), "c": load(SCORES_B, **changed)}
  )
  assert [pair.label for pair in comparison.pairs] == ["b"]
  assert len(comparison.lines) == 3
  assert re.match(reason, comparison.unpaired["c"])


@pytest.mark.parametrize(
  "baseline, pairs",
  [
    (None, [("a2", "a"), ("a3", "a"), ("b", "b2"), ("b3", "b2")]),
    ("a3", [("a", "a3"), ("a2", "a3"), ("b2", "b"), ("b3", "b")]),
  ],
)
def test_every_data_set_has_its_own_baseline(load, baseline, pairs):
  """Only the first data set was tested; the p values are corrected together."""
  other_data = dict(data={"dataset": "mnist"})
  runs = {
    "a": load(SCORES_A),
    "a2": load(SCORES_B, algorithm="scaffold"),
    "b": load(SCORES_B, algorithm="scaffold", **other_data),
    "b2": load(SCORES_A, **other_data),
    "a3": load(SCORES_B, algorithm="fedprox"),
    "b3": load(SCORES_B, algorithm="fednova", **other_data),
    "alone": load(SCORES_A, partition="Q"),
  }
  comparison = fa.compare(runs, baseline=baseline)
  assert [(pair.label, pair.baseline) for pair in comparison.pairs] == pairs
  main, second = (pairs[0][1], pairs[2][1])
  assert comparison.baselines == (main, second)
  assert comparison.unpaired == {
    second: "the data differ",
    "alone": "the partition differs",
  }
  subset = fa.compare({name: runs[name] for name in ("b2", "b", "b3")}, baseline=second)
  for pair, same in zip(comparison.pairs[2:], subset.pairs, strict=True):
    assert pair.difference == same.difference and (pair.p == same.p or np.isnan(pair.p))
  np.testing.assert_array_equal(
    [pair.holm for pair in comparison.pairs],
    compare_lib.holm([pair.p for pair in comparison.pairs]),
  )
  frame = comparison.to_frame()
  assert dict(zip(frame["run"], frame["baseline"])) == {
    **dict(pairs),
    main: "",
    second: "",
    "alone": "",
  }


def test_a_run_without_a_client_is_paired_and_says_so(load, tmp_path):
  """All other clients have the same rows; of another partition they have not."""
  both = {"all": load(SCORES_A)}
  hashes = both["all"].summary()["hashes"]
  for name, partition in (("less", hashes["partition"]), ("other", "Q")):
    folder = made_runs.write(
      tmp_path / name, SCORES_B, partition="R", data={"without": ("Smith, J", "b")}
    )
    summary = json.loads((folder / "summary.json").read_text())
    summary["hashes"]["all_clients"] = pair_hash(hashes | {"partition": partition})
    (folder / "summary.json").write_text(json.dumps(run_files.seal(summary)))
    both[name] = fa.load_run(folder)
  comparison = fa.compare(both)
  (pair,) = comparison.pairs
  assert pair.label == "less"
  assert pair.notes == ('less is without the clients "Smith, J",b',)
  assert comparison.unpaired == {"other": "the partition differs"}


def test_seeds_in_another_order_are_paired_by_seed(load):
  swapped = load(SCORES_B[::-1], seeds=(2, 1, 0))
  np.testing.assert_array_equal(
    swapped.summary()["final"]["global"]["accuracy"]["values"],
    swapped.metrics["global"]["accuracy"][:, -1],
  )
  for second in (swapped, load(SCORES_B)):
    (pair,) = fa.compare({"a": load(SCORES_A), "b": second}).pairs
    np.testing.assert_allclose(
      pair.difference.values, np.subtract(SCORES_B, SCORES_A)[:, -1]
    )


def test_a_pair_says_what_it_has_not_in_common(load):
  comparison = fa.compare(
    {
      "a": load(SCORES_A),
      "same": load(SCORES_B, run={"l2": 0.1}),
      "size": load(SCORES_B, run={"sampling": "size"}),
      "more": load(SCORES_B, cohort_size=3, stopped="patience train:loss:2"),
    }
  )
  assert [pair.notes for pair in comparison.pairs] == [
    (),
    ("participants are drawn differently (sampling)",),
    (
      "participants are drawn differently (cohort_size)",
      "more ended early by patience train:loss:2",
    ),
  ]


def test_labels_are_what_differs(load):
  runs = [
    load(SCORES_A, hparams={"client_lr": 0.1, "local_steps": 5}),
    load(SCORES_A, hparams={"client_lr": 0.3, "local_steps": 5}),
    load(SCORES_A, algorithm="scaffold", hparams={"client_lr": 1.0}),
    load(SCORES_A, algorithm="my_own"),
  ]
  assert list(fa.compare(runs).results) == [
    "FedAvg client_lr=0.1",
    "FedAvg client_lr=0.3",
    "SCAFFOLD",
    "my_own",
  ]
  assert compare_lib.labels(runs[:1] * 2) == ["FedAvg (1)", "FedAvg (2)"]


def test_labels_are_short_and_name_what_is_read(load):
  runs = [
    load(
      SCORES_A,
      hparams={
        "client_lr": 0.1,
        "client_optimizer": f"momentum:{momentum}",
      },
      run={"eval_every": every, "stop_at": stop},
    )
    for momentum, every, stop in ((0.9, 5, None), (0.5, 1, "global:accuracy:0.9"))
  ]
  assert compare_lib.labels(runs) == ["FedAvg (1)", "FedAvg (2)"]
  assert compare_lib.labels(runs, ["a", "b"]) == ["a", "b"]
  runs = [
    load(SCORES_A, hparams={"client_optimizer": name}) for name in ("sgd", "momentum")
  ]
  assert compare_lib.labels(runs, ["a", "b"]) == ["a", "b"]


def test_default_protocol_is_one_that_all_have(load):
  both, local = ("local", "global"), ("train", "local")
  runs = {"a": load(SCORES_A, protocols=both), "b": load(SCORES_A, protocols=local)}
  assert fa.compare(runs).protocol == "local"
  assert fa.compare({"a": runs["a"]}).protocol == "global"
  with pytest.raises(fa.OptionError, match="none in common"):
    fa.compare(runs | {"c": load(SCORES_A)})


@each(
  "options,words",
  [
    (dict(metric="acuracy"), "did you mean 'accuracy'"),
    (dict(protocol="local"), "a was not evaluated by it .it has global"),
    (dict(score="first"), "must be one of final"),
    (dict(baseline="b"), "no such run .one of a"),
    (dict(targets=(90,)), "0.9 is 90 %"),
    (dict(targets=["x"]), "targets='x': must be a number"),
    (dict(targets=3), "targets=3: must be a list"),
    (dict(metric=3), "metric=3: unknown"),
    (dict(metric=["accuracy", "loss"]), r"^metric=.*table\(.*\) .*have several"),
    (dict(results={"a": [3]}), r"^results: a list, .*partitions=N"),
    (dict(results=[[3], [3]]), r"^results: a list, .*partitions=N"),
    *(
      (dict(results=value), "^results: .*runs")
      for value in (3, None, [3], {"a": 3}, (), {})
    ),
  ],
)
def test_wrong_arguments(load, options, words):
  with pytest.raises(fa.OptionError, match=words):
    fa.compare(**{"results": {"a": load(SCORES_A)}} | options)
  with pytest.raises(fa.OptionError, match="accuracy: "):
    fa.compare({"a": load(np.full((1, 2), np.nan))})


def test_several_metrics_in_one_table(load):
  runs = {"a": load(SCORES_A), "b_2": load(SCORES_B)}
  comparison = fa.compare(runs)
  table = comparison.table(("accuracy", "global:loss"))
  for label, scores in (("a", SCORES_A), ("b_2", SCORES_B)):
    last = np.array(scores)[:, -1]
    np.testing.assert_allclose(table[label]["accuracy"].values, last)
    np.testing.assert_allclose(table[label]["global:loss"].mean, 1 - last.mean())
  latex = comparison.to_latex(("accuracy", "loss"))
  assert r"run & accuracy, \% & loss \\" in latex and r"\toprule" in latex
  half = 100 * metrics.estimate_mean(np.array(SCORES_B)[:, -1]).ci95
  assert rf"b\_2 & \textbf{{86.33}} $\pm$ {half:.2f} & \textbf{{0.1367}}" in latex
  assert "a & 80.00" in latex
  with pytest.raises(fa.OptionError, match="^protocol=local: "):
    comparison.table(("local:accuracy",))


def test_files_by_their_suffix(load, tmp_path):
  comparison = fa.compare({"a": load(SCORES_A), "b": load(SCORES_B)})
  assert comparison.save(tmp_path / "t.tex").read_text() == comparison.to_latex()
  lines = comparison.save(tmp_path / "t.csv").read_text().splitlines()
  assert ",nan," in lines[1]  # the baseline has no difference
  assert lines[0].startswith("run,seeds,final,final_ci95") and len(lines) == 3
  assert comparison.save(tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
  with pytest.raises(fa.OptionError, match="t.doc: "):
    comparison.save(tmp_path / "t.doc")
  with pytest.raises(fa.OptionError, match="cannot be written"):
    comparison.save(tmp_path / "none" / "t.tex")


def test_pictures_give_a_method_one_look(load):
  """Its color and dashes are those of the papers' figures, too."""
  result = load(SCORES_A)
  axis = fa.compare({"other": load(SCORES_B), "FedAvg": result}).plot()
  lines = {line.get_label(): line for line in axis.lines}
  (curve,) = result.plot().lines
  look = styles.METHODS["FedAvg"].matplotlib()
  for line in (lines["FedAvg"], curve):
    assert (line.get_color(), line.get_marker()) == (look["color"], look["marker"])
    np.testing.assert_allclose(line.get_ydata(), np.mean(SCORES_A, 0))
  assert lines["other"].get_color() != look["color"]
  assert len(axis.collections) == 2  # a band each
  with pytest.raises(fa.OptionError, match="^protocols=local: "):
    result.plot(protocols=("local",))


@pytest.mark.parametrize(
  "x_axis, of_a_round",
  [
    ("rounds", 1),
    ("floats", made_runs.FLOATS),
    ("bytes", 4 * made_runs.FLOATS),
    ("simulated_s", made_runs.SECONDS),
  ],
)
def test_curves_lie_over_what_runs_have_cost(load, x_axis, of_a_round):
  """README's picture over megabytes was drawn by a script."""
  runs = {"a": load(SCORES_A), "b": load(SCORES_B)}
  axis = fa.compare(runs).plot(x_axis=x_axis)
  for line, scores in zip(axis.lines, (SCORES_A, SCORES_B), strict=True):
    np.testing.assert_allclose(line.get_xdata(), of_a_round * np.array([5, 10, 15]))
    np.testing.assert_allclose(line.get_ydata(), np.mean(scores, 0))
  assert axis.get_xlabel() == pictures.X_AXES[x_axis][1]
  with pytest.raises(fa.OptionError, match="^x_axis=epochs"):
    fa.compare(runs).plot(x_axis="epochs")


def test_a_comparison_is_a_line_and_in_a_notebook_a_table(load):
  """Its fields are thousands of characters, and a notebook showed them all."""
  comparison = fa.compare({"a<b": load(SCORES_A), "c": load(SCORES_B)})
  assert len(repr(comparison)) < 120 and "accuracy" in repr(comparison)
  table = comparison._repr_html_()
  assert "<td>a&lt;b</td><td>3</td><td>80 +- 25</td><td></td>" in table
  assert "<td>+6.3 +- 8.0 to a&lt;b</td>" in table
  (pair,) = comparison.pairs
  assert str(comparison) == f"c - a<b: +6.3 +- 8.0 points of accuracy, p = {pair.p:.2g}"
  alone = fa.compare({"a": load(SCORES_A[:1])})
  assert "<td>80</td>" in alone._repr_html_() and "nan" not in alone._repr_html_()
  assert str(alone) == repr(alone)


def test_the_flags_that_differ_are_those_that_are_read(tmp_path):
  """The method first, then its own numbers; of a switched-off part none."""
  shared = dict(client_lr=0.1, local_epochs=1, local_steps=0, server_momentum=0.9)
  runs = [
    fa.load_run(made_runs.write(tmp_path / name, [[0.5]], algorithm=name, **options))
    for name, options in {
      "fedavg": dict(hparams=shared, data=dict(num_clients=10, partition="iid")),
      "fedprox": dict(
        hparams=shared | dict(mu=0.3, client_lr=0.2),
        data=dict(num_clients=20, partition="classes:3"),
        run=dict(eval_every=7),
      ),
    }.items()
  ]
  table = compare_lib.differing_options(runs)
  first, *others = table.items()
  assert first == ("algorithm", ["fedavg", "fedprox"])
  assert others[0] == ("mu", ["", "0.3"])
  assert others[1] == ("client_lr", ["0.1", "0.2"])
  names = [name for name, _ in others]
  assert "local_epochs" not in names
  assert table["num_clients"] == ["10", "20"]
  assert table["partition"] == ["iid", "classes:3"]
  assert names.index("num_clients") < names.index("eval_every")


def test_a_single_evaluation_has_its_interval(load):
  """A band of one point has no area, so three splits had no interval."""
  scores = np.array([[0.5], [0.6], [0.55]])
  runs = {"FedAvg": load(scores), "b": load(scores + 0.1), "c": load(scores[:1])}
  axis = fa.compare(runs).plot()
  bars = [band.get_segments()[0] for band in axis.collections]
  half = stats.t.ppf(0.975, 2) * stats.sem(scores[:, 0])
  np.testing.assert_allclose(bars[0][:, 1], [0.55 - half, 0.55 + half])
  np.testing.assert_allclose(bars[1][:, 1], [0.65 - half, 0.65 + half])
  assert len(bars) == 2  # one seed has none
  axis.figure.canvas.draw()
  places = [
    line.get_transform().transform(line.get_xydata())[0, 0] for line in axis.lines
  ]
  assert np.diff(places).min() > 5 and list(axis.get_xticks()) == [5]


def test_labels_that_are_one_text_are_two_runs(load):
  """The second of them was lost without a word."""
  first, second = load(SCORES_A), load(SCORES_B)
  comparison = fa.compare({1: first, "1": second, "1 (1)": first})
  assert list(comparison.results) == ["1 (2)", "1 (3)", "1 (1)"]
  assert list(comparison.results.values()) == [first, second, first]


def test_a_client_that_learns_alone_has_fewer_steps(load):
  """`local` with a fifth of the clients has a fifth of the others' rounds."""
  rounds, clients, size = 15, 10, 2
  runs = {"a": load(SCORES_A), "alone": load(SCORES_B, floats=0)}
  runs["everybody"] = load(SCORES_B, floats=0, cohort_size=clients)
  for run in runs.values():
    run.facts["plan"]["clients"] = clients
  few, everybody = fa.compare(runs).pairs
  (note,) = few.notes
  assert note.startswith("alone sends nothing")
  assert note.endswith(f"about {rounds * size / clients:g} of {rounds}")
  assert not any("sends nothing" in note for note in everybody.notes)
  (pair,) = fa.compare({"alone": runs["alone"], "too": runs["alone"]}).pairs
  assert not pair.notes  # both learn alone
