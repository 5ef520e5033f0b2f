"""Studies beyond the papers: hostile clients, bytes, late, private, board."""

import itertools
import pathlib

import numpy as np
import pytest
from scipy import stats

from experiments import beyond
from experiments.cli import config
from experiments.drawing import dots
from experiments.reports import rule
from experiments.reproduction import figures, pages, suite, tuning, verdicts
from experiments.reproduction.beyond import (
  accelerations,
  backbone,
  board,
  bridge,
  differences,
  family,
  gradient,
  group_numbers,
  hostile,
  kinds_map,
  late,
  natural,
  private,
)
from experiments.reproduction.beyond import bytes as fewer_bytes
from fedjax_alg.data.features import Backbone
from fedjax_alg.exchange.attacks import hostile_clients
from fedjax_alg.hparams import ordered_values
from fedjax_alg.records import accounting
from fedjax_alg.records import folder as run_files
from tests import made_runs
from tests.experiments import shown


def test_only_honest_clients_count(tmp_path):
  cell = shown.cell("beyond", "hostile", "a", "FedAvg 40 %")
  bad = np.asarray(hostile_clients(10, 0.4, 0))
  assert bad.sum() == 4
  rows = [
    dict(
      seed=seed,
      protocol="local",
      client=i,
      train_examples=9,
      test_examples=1 + i,
      accuracy=0.0 if bad[i] else 0.5 + 0.1 * (i % 2),
      loss=0.1,
    )
    for seed in (0, 1)
    for i in range(10)
  ]
  lines = [",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)]
  (tmp_path / "clients.csv").write_text("\n".join(lines))
  actual = hostile._honest(suite.Outcome(cell, tmp_path, None, {}))
  sizes = np.arange(1, 11)[~bad]
  expected = (sizes * (50 + 10 * (np.arange(10)[~bad] % 2))).sum()
  np.testing.assert_allclose(actual, [expected / sizes.sum()] * 2)


@pytest.mark.parametrize(
  "module, name, label",
  [(accelerations, "acceleration", "FedAvgM"), (kinds_map, "map", "CFL")],
)
def test_a_part_of_the_runs_has_no_picture(tmp_path, module, name, label):
  """A job of --lines has nothing to compare with; it once ended with a traceback."""
  cell = next(c for c in shown.cells("beyond", name) if c.label == label)
  runs = [suite.Outcome(cell, None, [], {})]
  (picture,) = module.FIGURE.dots
  with pytest.raises(dots.NothingToDraw, match="no panel has the run"):
    picture.draw([tmp_path / "a.png"], picture.numbers(runs), "")


def test_a_method_defends_if_it_loses_less(monkeypatch):
  ends = {
    ("FedAvg", "mean"): 50,
    ("IFCA", "mean"): 80,
    ("FSVRG", "mean"): 40,
    ("FedAvg", "geometric median"): 50.1,
  }

  def honest(outcome):
    end = ends[outcome.cell.method, outcome.cell.of["defense"]]
    return np.array([90.0, 95.0]) + (end - 90 if outcome.cell.of["attackers"] else 0)

  monkeypatch.setattr(hostile, "_honest", honest)
  text = pages.format_blocks(
    hostile._hostile_section(
      [
        suite.Outcome(c, None, [], {})
        for c in shown.cells("beyond", "hostile")
        if c.panel in "ad"
        and c.label
        in (
          "FedAvg 0 %",
          "FedAvg 40 %",
          "IFCA 0 %",
          "IFCA 40 %",
          "FSVRG 0 %",
          "FSVRG 40 %",
        )
        and (c.panel == "a" or "FedAvg" in c.label)
      ]
    )
  )
  words = [
    [word.strip() for word in line.split("|")[2:-1]]
    for line in text.splitlines()
    if line.startswith("| flipped")
  ]
  assert words == [
    ["mean", "FedAvg", "40.00 +- 0.00"],
    ["mean", "FSVRG", "50.00 +- 0.00; -10.00 +- 0.00, loses more"],
    ["mean", "IFCA", "10.00 +- 0.00; +30.00 +- 0.00, defends"],
    ["geometric median", "FedAvg", "39.90 +- 0.00; +0.10 +- 0.00, the same"],
  ]
  assert "IFCA with the mean: defends 1" in text


def test_bytes_to_a_target_are_those_sent_until_then():
  first = shown.cell("beyond", "bytes", "a", "top 5 %")
  rows = [
    dict(round=n, seed=seed, total_bytes=1000 * n, bytes_up=10 * n)
    | (
      dict(protocol="global", accuracy=0.96 if n >= 4 + 2 * seed else 0.5)
      if n % 2 == 0
      else {}
    )
    for n in range(1, 7)
    for seed in (0, 1)
  ]
  summary = dict(cost=dict(clients_per_round=3))
  outcome = suite.Outcome(first, None, made_runs.frames_of(rows), summary)
  np.testing.assert_array_equal(fewer_bytes._to_target(outcome, False), [4000, 6000])
  np.testing.assert_array_equal(
    fewer_bytes._to_target(outcome, True), [3 * 100, 3 * 210]
  )
  seeds = np.array([10.0, 11.0])
  assert fewer_bytes._compare_bytes(seeds, 4 * seeds)[1] == "fewer bytes"
  assert fewer_bytes._compare_bytes(seeds, seeds) == ("1.0 +- 0.0", "as many bytes")
  assert fewer_bytes._compare_bytes(seeds * np.nan, seeds)[1] == "does not reach it"


def test_a_folder_of_fashion_mnist_takes_the_place_of_prepared_data():
  request = figures.Request(None, (), "here", files={"fashion_mnist": "/f"})
  figure, missing = figures.with_data(
    beyond.PAPER,
    figures._select_panels("bytes", beyond.PAPER.figures["bytes"], "def"),
    request,
  )
  assert not figure.panels and missing[0].flags == ("fashion_mnist",)


@pytest.mark.usefixtures("made_up", "whole_pictures")
@pytest.mark.parametrize(
  "name, panel, lines, words",
  [
    ("hostile", "b", "FedAvg 0 %,FedAvg 40 %", "## Do several models"),
    ("bytes", "a", "whole,signs", "whole does not reach it"),
    ("family", "e", "pooled ridge,AFL,FedAvg", "| digits | FedAvg | "),
  ],
)
def test_the_figures_are_made(name, panel, lines, words, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(hostile, "_honest", lambda outcome: np.array([90.0]))
  assert not beyond.main(
    [
      f"--figure={name}",
      "--scale=quick",
      f"--lines={lines}",
      f"--panels={panel}",
      "--rounds=4",
      f"--out_dir={tmp_path}",
    ]
  )
  assert words in capsys.readouterr().out
  table = dots.read_dots(tmp_path / name / f"{name}{dots.SUFFIX}")
  if words.endswith("does not reach it"):
    assert [dot.note for dot in table] == 2 * [fewer_bytes.NOT_REACHED, ""]
    assert not list((tmp_path / name).glob("*.pdf"))
  else:
    assert (tmp_path / name / f"{name}.pdf").stat().st_size > 5000


@pytest.fixture(scope="module", name="cells")
def fixture_cells():
  return figures.cells(
    beyond.PAPER,
    board.FIGURE,
    figures.Request(None, (), "here"),
  )


def test_every_method_is_on_every_data_set(cells):
  assert {(c.panel_title, c.label) for c in cells} == set(
    itertools.product(board.DATA, board.METHODS)
  )
  for cell in cells:
    assert cell.config.run.rounds == 50 and len(cell.config.run.seeds) == 1


def of_partitions(cell, accuracies, megabytes=5e6):
  rows = [
    {
      "round": 50,
      "seed": 0,
      "partition": i,
      "protocol": "local",
      "accuracy": value,
      "worst_decile": value,
      "total_bytes": megabytes,
    }
    for i, value in enumerate(accuracies)
  ]
  return suite.Outcome(cell, None, made_runs.frames_of(rows), {})


def test_gaps_are_paired_and_corrected(cells):
  """By SciPy's test and Holm's definition, over the methods of a panel."""
  rng = np.random.default_rng(0)
  common = rng.normal(0.9, 0.05, 9)  # a partition is hard for all methods
  digits = [c for c in cells if c.panel_title == "digits"]
  accuracies = {
    c.label: common + 0.01 * i + rng.normal(0, 0.01, 9) for i, c in enumerate(digits)
  }
  text = pages.format_blocks(
    board._board_table([of_partitions(c, accuracies[c.label]) for c in digits])
  )
  rows = {
    line.split(" | ")[1]: line.split(" | ")
    for line in text.splitlines()
    if line.startswith("| digits")
  }
  assert list(rows)[0] == max(accuracies, key=lambda k: accuracies[k].mean())
  p = {
    k: stats.ttest_rel(v, accuracies[board.BASE]).pvalue
    for k, v in accuracies.items()
    if k != board.BASE
  }
  ordered = sorted(p, key=p.get)
  corrected = {
    k: min(
      1.0,
      max(p[j] * (len(p) - i) for i, j in enumerate(ordered[: ordered.index(k) + 1])),
    )
    for k in p
  }
  for label, value in corrected.items():
    assert rows[label][4].endswith(f"({value:.2g})")
  assert rows[board.BASE][4] == "-" and rows[list(rows)[0]][5] == "-"


def test_a_line_plays_its_cell_again(cells):
  cell = next(c for c in cells if (c.panel_title, c.label) == ("digits", "IFCA"))
  text = pages.format_blocks(board.replay([of_partitions(cell, [0.9])]))
  line = next(word for word in text.split("`") if word.startswith("fedjax"))
  replay = config.parse_config(line.replace("=P", "=4").split()[2:])
  part = cell.on(9)[4]
  assert replay.identity == part.config.identity


@pytest.fixture(scope="module", name="map_cells")
def fixture_map_cells():
  """Of all panels, also of those that are not tuned yet."""
  with shown.built_once():
    return figures.cells(
      beyond.PAPER,
      kinds_map.FIGURE,
      figures.Request(None, (), "here"),
    )


def test_kinds_are_evaluated_where_clients_are_of_kinds():
  """A run of clients of no kind refuses the protocol."""
  for panel in kinds_map.PANELS:
    values = config.merge_layers(f"beyond/{panel.data}.flags")
    assert ("kinds" in values) == (panel.protocols == ""), panel.title


def test_every_cell_of_the_map_has_the_same_budget(map_cells):
  """Also that every method takes every kind of difference that it is shown for."""
  titles = {kind.title: kind for kind in kinds_map.KINDS.values()}
  for cell in map_cells:
    run, values = cell.config.run, cell.config.values
    assert (run.rounds, len(run.seeds), values["participation"]) == (40, 1, 1.0)
    hparams = ordered_values(*cell.config.method.resolved().parts)
    assert hparams["local_steps"] == 20 and hparams["batch_size"] == 10
    kind = titles[cell.panel_title.split(", ")[1]]
    groups = kinds_map.METHODS[cell.label].groups
    assert not groups or hparams[groups] == kind.groups
    assert not cell.pictures
  by_panel = {}
  for cell in map_cells:
    by_panel.setdefault(cell.panel_title, set()).add(cell.label)
  assert set(by_panel) == {p.title for p in kinds_map.PANELS} and len(by_panel) == 19
  for title, labels in by_panel.items():
    missing = set(kinds_map.METHODS) - labels
    assert missing == (set() if title.endswith("drift") else {"FedDrift"})


def test_natural_clients_have_the_methods_and_the_budget_of_the_map(map_cells):
  """Else gains of people could not stand beside those of made clients."""
  of_map = {c.label: c.config for c in map_cells if c.panel_title.endswith("classes")}
  cells = all_cells(natural.FIGURE._replace(panels=natural.PANELS))
  budget = ("rounds", "local_steps", "batch_size", "participation", "l2", "model")
  for cell in cells:
    expected, values = (
      {**config.values, **config.hparams}
      for config in (of_map[cell.label], cell.config)
    )
    told = kinds_map.METHODS[cell.label].groups
    for name in (*budget, *filter(None, [told])):
      assert values[name] == expected[name], (cell.label, name)
    assert values["num_clients"] == 10 and str(values["dataset"]).startswith("watch")
  labels = [cell.label for cell in cells]
  assert sorted(labels) == sorted(2 * [*of_map]) and "FedDrift" not in labels


def map_outcome(cell, accuracies, folder=None):
  """A pooled outcome; accuracies [partitions, evaluations]."""
  rows = [
    {
      "round": 40 // len(curve) * (i + 1),
      "seed": 0,
      "partition": part,
      "protocol": "local",
      "accuracy": accuracy,
      "worst_decile": accuracy / 2,
      "total_bytes": 5e6,
      "total_example_gradients": 100.0,
    }
    for part, curve in enumerate(accuracies)
    for i, accuracy in enumerate(curve)
  ]
  parts = tuple(suite.Outcome(cell, folder, None, {}) for _ in accuracies)
  return suite.Outcome(cell, folder, made_runs.frames_of(rows), {}, parts)


def test_gains_of_the_map_are_paired_by_partition(map_cells):
  """By SciPy's test, on the means over the steps of a schedule."""
  rng = np.random.default_rng(0)
  hard = rng.normal(0.7, 0.1, (9, 1))  # a partition is hard for all methods
  cells = {c.label: c for c in map_cells if c.panel_title == "digits, drift"}
  curves = {
    label: hard + gain + rng.normal(0, 0.005, (9, 4))
    for label, gain in (("FedAvg", 0.0), ("IFCA", 0.05), ("FedDrift", 0.1))
  }
  runs = [map_outcome(cells[label], curve) for label, curve in curves.items()]
  gains = kinds_map.panel_gains(runs)
  assert list(gains) == ["IFCA", "FedDrift"]
  p = [
    stats.ttest_rel(curves[label].mean(1), curves["FedAvg"].mean(1)).pvalue
    for label in gains
  ]
  for (spread, corrected), label in zip(gains.values(), gains):
    gap = 100 * (curves[label] - curves["FedAvg"]).mean()
    assert spread.mean == pytest.approx(gap) and spread.ci95 < 1
    assert min(p) <= corrected <= 2 * max(p)
  table = pages.format_blocks(kinds_map._table(runs))
  assert "FedDrift +" in table and "| digits, drift | FedAvg |" in table
  assert kinds_map.panel_gains(runs[1:]) == {}  # nothing to compare with


def test_the_map_shows_no_cell_before_its_last_partition(map_cells, monkeypatch):
  """A mean of eight partitions beside means of nine would not be paired."""
  cells = [c for c in map_cells if c.panel_title == "digits, rotated images"]
  late = next(c for c in cells if c.label == "IFCA").on(9)[8].config.identity
  monkeypatch.setattr(
    suite.store,
    "is_finished",
    lambda config, folder, further: (
      config.identity != late and further == (run_files.FLAGS,)
    ),
  )
  shown_cells = suite.select_finished(cells, pathlib.Path("out"), 9)
  assert {c.label for c in cells} - {c.label for c in shown_cells} == {"IFCA"}
  text = pages.format_blocks(
    kinds_map._describe_panels([map_outcome(c, [[0.9]]) for c in shown_cells])
  )
  (row,) = [line for line in text.splitlines() if "digits, rotated" in line]
  assert row.endswith("| 16 of 17 methods are finished |")
  assert "finished" not in text.split("digits, permuted labels")[1].split("\n")[0]


@pytest.fixture(scope="module", name="acceleration_cells")
def fixture_acceleration_cells():
  """Of all panels, also of those that are not tuned yet."""
  with shown.built_once():
    return figures.cells(
      beyond.PAPER,
      accelerations.FIGURE,
      figures.Request(None, (), "here"),
    )


def test_every_acceleration_has_the_same_budget(acceleration_cells):
  """Else a method would gain by rounds, steps or data that others do not have."""
  data_of, labels_of = {}, {}
  for cell in acceleration_cells:
    run, values = cell.config.run, cell.config.values
    assert (run.rounds, len(run.seeds)) == (100, 1) and not cell.pictures
    for last in (accelerations.EARLY, accelerations.LATE):
      assert last % run.eval_every == 0
    hparams = ordered_values(*cell.config.method.resolved().parts)
    steps = hparams.get("local_steps") or 1 / hparams["communication"]
    assert (steps, hparams["batch_size"]) == (20, 10)
    share = cell.panel_title.split(", ")[-1]
    expected_share = 1.0 if share == "all clients" else float(share.split()[0]) / 100
    if cell.label != "Scaffnew":  # which refuses to be told one
      assert values["participation"] == expected_share
    data_of.setdefault(cell.panel, set()).add(cell.config.data)
    labels_of.setdefault(cell.panel, set()).add(cell.label)
  assert len(data_of) == 12 and {len(data) for data in data_of.values()} == {1}
  for panel, (data, share) in zip(accelerations.PANELS, accelerations.PLACES):
    expected = set(accelerations.METHODS) - {"Scaffnew"}
    if data == "cifar10":  # what two cores allow
      expected = {"FedAvg", "SCAFFOLD", "SCAFFOLD-M"}
    if share == "all":
      expected = {"FedAvg", "SCAFFOLD", "Scaffnew"}
    assert labels_of[panel.letter] == expected


def acceleration_outcome(cell, accuracies):
  """A pooled outcome; accuracies [partitions, (20 rounds, 100 rounds)]."""
  rows = [
    {
      "round": last,
      "seed": 0,
      "partition": part,
      "protocol": "global",
      "accuracy": accuracy,
      "total_bytes": 1e6 * last * (part + 1),
      "total_example_gradients": 1e3 * last,
    }
    for part, curve in enumerate(accuracies)
    for last, accuracy in zip((20, 100), curve)
  ]
  parts = tuple(suite.Outcome(cell, None, None, {}) for _ in accuracies)
  return suite.Outcome(cell, None, made_runs.frames_of(rows), {}, parts)


@pytest.fixture(name="accelerated")
def fixture_accelerated(acceleration_cells):
  """A finished panel: each method is 0.2 points above the one before it."""
  rng = np.random.default_rng(0)
  hard = rng.normal(0.8, 0.05, (9, 1))  # a partition is hard for all methods
  order = list(accelerations.METHODS)
  return {
    c.label: acceleration_outcome(
      c, hard + 0.002 * order.index(c.label) + rng.normal(0, 0.001, (9, 2))
    )
    for c in acceleration_cells
    if c.panel == "a"
  }


def test_eras_are_compared_by_the_choice_of_validation(accelerated, monkeypatch):
  """The best by test data would be FedMuon, a point above the choice."""
  scores = {"fedavgm": 2.0, "fedadam": 1.0, "fedcm": 2.0, "fedacg": 1.0}
  monkeypatch.setattr(
    accelerations, "validation_accuracy", lambda data, name: scores.get(name, 0.0)
  )
  runs = list(accelerated.values())
  best, gain = accelerations.compare_eras(runs)
  assert best[accelerations.EARLIER] == "FedAvgM"
  assert best[accelerations.LATER] == "FedCM"
  accuracy = {
    label: 100 * accelerated[label].frames.curves("global", "accuracy")[:, 1]
    for label in ("FedAvg", "FedAvgM", "FedCM")
  }
  np.testing.assert_allclose(
    gain[accelerations.LATER], accuracy["FedCM"] - accuracy["FedAvg"]
  )
  p = stats.ttest_rel(accuracy["FedCM"], accuracy["FedAvgM"]).pvalue
  (row,) = [
    line
    for line in pages.format_blocks(accelerations._answer(runs)).splitlines()
    if "| digits" in line
  ]
  assert row.endswith(f"({p:.2g}) |")  # one row, so Holm corrects nothing


def test_an_era_without_methods_has_an_empty_cell(acceleration_cells):
  """On CIFAR-10 none of FSVRG's family runs, and the others are still compared."""
  runs = [
    acceleration_outcome(cell, np.tile([0.4, 0.5 + 0.01 * i], (9, 1)))
    for i, cell in enumerate(c for c in acceleration_cells if c.panel == "k")
  ]
  (row,) = [
    line
    for line in pages.format_blocks(accelerations._answer(runs)).splitlines()
    if "| CIFAR-10" in line
  ]
  assert row.split(" | ")[1].startswith("SCAFFOLD ") and " | not run | " in row


def test_gains_of_accelerations_are_paired_and_corrected(accelerated):
  """By SciPy's test: the least p value is multiplied by the number of tests."""
  runs = list(accelerated.values())
  table = pages.format_blocks(accelerations._table(runs))
  accuracy = {
    label: outcome.frames.curves("global", "accuracy")[:, 0]
    for label, outcome in accelerated.items()
  }
  p = {
    label: stats.ttest_rel(values, accuracy["FedAvg"]).pvalue
    for label, values in accuracy.items()
    if label != "FedAvg"
  }
  first = min(p, key=p.get)
  (row,) = [line for line in table.splitlines() if f" | {first} | " in line]
  assert row.split(" | ")[4].endswith(f"({14 * p[first]:.2g})")


@pytest.mark.parametrize(
  "reached, costs",
  [
    ([20, 20, 100], ["20", "20", "60"]),
    ([20, 100, None], ["100", "100", "200"]),
    ([20, None, None], ["not reached"] * 3),
  ],
)
def test_costs_are_those_of_the_median_partition(acceleration_cells, reached, costs):
  """A partition that does not get there is not left out of the median."""
  curves = [
    (0.9 if first == 20 else 0.5, 0.5 if first is None else 0.9) for first in reached
  ]
  outcome = acceleration_outcome(acceleration_cells[0], curves)
  if reached[2] == 100:  # MB of the partitions: 20, 40, 300
    costs[2] = "40"
  assert accelerations.costs_to_target(outcome, 0.85) == costs


def test_a_panel_without_all_methods_is_not_compared(accelerated):
  """Tests of some methods alone would be corrected for too few."""
  runs = [o for label, o in accelerated.items() if label != "FedACG"]
  assert "No panel is finished" in pages.format_blocks(accelerations._table(runs))
  assert accelerations.select_whole(list(accelerated.values())) and not (
    accelerations.select_whole(runs)
  )
  text = pages.format_blocks(accelerations._describe_panels(runs))
  assert "| a | digits, softmax, 20 % of the clients | 14 of 15 methods" in text
  assert "| b | digits, softmax, 10 % of the clients | finished" not in text


def test_every_acceleration_is_tuned_with_as_many_settings(tmp_path, monkeypatch):
  """The choice among more settings would be the better one by luck alone."""
  monkeypatch.setattr(tuning, "_holdout_file", lambda *_: tmp_path / "a.npz")
  for place in accelerations.PLACES:
    study = tuning.Study("beyond", accelerations.data_preset(*place), tmp_path)
    told = accelerations.told_settings(*place)
    assert set(study.preset_names()) == set(told)
    for name in told:
      settings = study.settings(name, tuning.SETTINGS)
      assert len(settings) == tuning.SETTINGS
      assert len({str(setting["client_lr"]) for setting in settings}) > 8
      assert all(told[name].items() <= setting.items() for setting in settings)


def study(scores, rounds):
  """A grid of 1,200 rounds that found 90 %, and three outer steps."""
  steps = [
    dict(
      values={"client_lr": rate},
      rounds=50,
      loss=loss,
      kept=accepted,
      gradient={"client_lr": -0.1},
      scores=step_scores,
      played=at,
    )
    for rate, loss, accepted, step_scores, at in (
      (0.03, 0.5, True, [70.0, 72.0], rounds // 4),
      (1.0, 0.2, False, scores, rounds // 2),
      (9.0, np.nan, False, [], rounds),
    )
  ]
  return {
    "grid": [[600, 80.0], [900, 90.0], [1200, 85.0]],
    "best": 1,
    "grid_scores": [89.9, 90.1],
    "grid_seconds": 9.0,
    "seconds": 3.0,
    "chosen": {"client_lr": 1.0},
    "steps": steps,
  }


def test_the_curve_is_that_of_the_choice_so_far():
  assert gradient._steps_curve(study([90.0, 92.0], 400)) == (
    [100, 200, 400],
    [71.0, 91.0, 91.0],
  )


def test_a_verdict_needs_accuracy_and_few_rounds():
  def of(*args):
    ((*_, place, holds),) = gradient._rows({"fedavg": study(*args)})
    return place, holds

  assert of([90.0, 90.2], 400) == (rule.SAME, "reached")
  assert of([90.0, 90.2], 401) == (rule.SAME, "worse")
  assert of([80.0, 80.2], 400) == (rule.BELOW, "worse")
  assert of([95.0, 95.2], 400) == (rule.ABOVE, "reached")
  assert of([60.0, 99.0], 400) == (rule.UNDECIDED, rule.UNDECIDED)


@pytest.mark.usefixtures("whole_pictures")
def test_the_page_is_drawn_of_finished_studies(tmp_path, monkeypatch, capsys):
  names = []
  monkeypatch.setattr(
    gradient,
    "_study",
    lambda name, request: (names.append(name), study([90.0, 90.2], 400))[1],
  )
  words = ["--figure=gradient", f"--out_dir={tmp_path}"]
  for _ in range(2):
    assert beyond.main(words) == 0
  assert names == list(gradient.METHODS)  # the second time they are read
  page = (tmp_path / "gradient" / "gradient.md").read_text()
  assert page.count("reached") == 3 and "diverged" in page
  assert "400 (0.33)" in page and page in capsys.readouterr().out
  for kind in ("png", "pdf"):
    path = pathlib.Path(tmp_path, "gradient", f"gradient.{kind}")
    assert path.stat().st_size > 5000


def late_outcome(label, accuracies, second):
  """Seeds [N, E] that are evaluated every ``second`` simulated seconds."""
  cell = shown.cell("beyond", "late", "b", label)
  rows = [
    {
      "round": 5 * (e + 1),
      "seed": seed,
      "protocol": "global",
      "accuracy": value,
      "simulated_s": second * (e + 1),
      "total_bytes": 1e6 * (e + 1),
    }
    for seed, curve in enumerate(accuracies)
    for e, value in enumerate(curve)
  ]
  return suite.Outcome(
    cell,
    pathlib.Path(),
    made_runs.frames_of(rows),
    {"cost": {"rounds": 5 * len(accuracies[0])}},
  )


def family_outcome(label, values, cost=lambda round_: 10.0 * round_):
  """A run of the analytic family, with an accuracy for each evaluated round."""
  cell = shown.cell("beyond", "family", "e", label)
  parts = [
    suite.Outcome(
      cell,
      None,
      made_runs.frames_of(
        [
          dict(
            round=round_,
            seed=0,
            protocol=protocol,
            accuracy=value,
            total_bytes=cost(round_),
            simulated_s=1.0 * round_,
          )
          for round_, value in of.items()
          for protocol in ("local", "global")
        ]
      ),
      {},
    )
    for of in values
  ]
  return suite._pool(parts)


def test_rivals_are_read_within_the_budget_of_one_round():
  run = family_outcome("FedAvg", [{5: 0.5, 10: 0.7, 15: 0.9}, {5: 0.3, 10: 0.5, 15: 1}])
  reached = family.at_budget(run, "total_bytes", 140.0)
  np.testing.assert_allclose(reached.scores, [70, 50])
  assert (reached.round, reached.share) == (10, 1.0)
  assert np.isnan(family.at_budget(run, "total_bytes", 49.0).scores).all()
  reached = family.at_budget(run, "simulated_s", 30.0)  # the run ends before
  assert (reached.round, reached.share) == (15, 0.5)
  base = family_outcome("AFL", [{1: 0.8}, {1: 0.8}], lambda round_: 140.0)
  (row,) = [
    line
    for line in pages.format_blocks(family._at_equal_costs([base, run])).splitlines()
    if "| FedAvg |" in line
  ]
  assert [word.strip() for word in row.split("|")[3:-1]] == [
    "80.00",
    "60.00 (round 10)",
    "- (before round 5)",
    "95.00",
  ]


def test_one_partition_that_differs_is_a_difference():
  check = family._is_invariant("AFL")
  same = family_outcome("AFL", [{1: 0.8}] * 3)
  other = family_outcome("AFL", [{1: 0.8}, {1: 0.8}, {1: 0.801}])
  assert check([same]).holds and not check([other]).holds


def test_every_ridge_of_the_family_is_one_in_all():
  """So that a method and its rivals differ in what they sum up alone."""
  for cell in shown.cells("beyond", "family"):
    hparams, clients = cell.config.hparams, cell.config.values["num_clients"]
    if cell.label in (family.BOUND, family.BASE, "AFL dual"):
      assert not hparams["remove_ridge"]
      assert hparams["client_ridge"] * clients == pytest.approx(1)
    elif "ridge" in hparams:
      assert hparams["ridge"] == "1"
    costly = cell.label in family.COSTLY and cell.panel in "abcd"
    assert len(cell.on(9)) == (
      1
      if cell.label == family.BOUND
      else family.FEW
      if costly
      else 3
      if cell.label in family.ITERATIVE
      else 9
    )


def test_costs_and_verdicts():
  curves = np.array([[0.5, 0.81, 0.86], [0.7, 0.79, 0.82], [0.8, 0.8, 0.84]])
  outcomes = [
    late_outcome("FedAvg", curves - 0.02 * np.arange(1, 4)[:, None], 120.0),
    late_outcome("FedProx", curves + 0.02, 60.0),
    late_outcome("FedBuff", curves, 30.0),
  ]
  table = [
    line.split(" | ")
    for line in pages.format_blocks(late.FIGURE.table(outcomes)).splitlines()
    if line.startswith("| 50 % stragglers")
  ]
  assert [row[1] for row in table] == ["FedAvg", "FedProx", "FedBuff"]
  # 80 % after 2, 3 and 1 evaluations; 85 % in one seed of three.
  assert table[2][3:9] == ["1.0", "2.0", "10.0", "never", "never", "never |"]
  assert table[1][2].startswith("84.00 +- ")  # of rounds 10 and 15
  judgements = {
    claim.text: verdicts.judge_statement(claim, outcomes)
    for claim in late.FIGURE.statements
  }
  keeps = [v for text, v in judgements.items() if text.startswith("With 50 % strag")]
  assert [judgment.verdict for judgment in keeps] == [
    "reached",
    "reached",
    "not testable",
  ]
  # FedProx is above FedAvg by 8, 6 and 4 points: 6 +- 5.
  assert keeps[0].measured.startswith("b: +6.00")
  # FedAvg has not got there in 360 seconds, FedBuff in 60, 90 and 30.
  saved = 100 * (1 - np.array([60, 90, 30]) / 360)
  assert keeps[1].measured.startswith(f"+{saved.mean():.1f} +- ")


PLAYS = {
  "sampled": ("poisson", 0.05, 100),
  "once": ("all", 1.0, 1),
  "twice": ("all", 1.0, 2),
}


def test_the_noise_is_what_the_accountant_asks_for():
  pytest.importorskip("dp_accounting")
  for released, noises in private.NOISE.items():
    sampling, rate, rounds = PLAYS[released]
    for panel, noise in zip("abcd", noises):
      target = private.EPSILONS[panel]
      epsilon = accounting.Mechanism(noise, 1e-5, 3000, sampling, rate).epsilon(rounds)
      assert 0.995 * target < epsilon <= target


def test_every_run_releases_what_its_noise_is_for():
  cells = shown.cells("beyond", "private")
  assert len(cells) == 4 * 5 + 4
  for cell in cells:
    run = cell.config
    assert run.data.num_clients - run.data.validation_clients == 3000
    if cell.panel == "e":
      assert str(run.hparams["private"]) == "none"
      continue
    sampling, rate, rounds = PLAYS[private.METHODS[cell.label][1]]
    assert run.hparams["private"].delta == 1e-5
    assert run.run.rounds == rounds
    mechanism = accounting.mechanism(
      run.method.parts, run.run, 3000, None if sampling == "poisson" else rounds
    )
    assert (mechanism.sampling, mechanism.rate) == (sampling, rate)


def private_outcome(panel, label, epsilon, accuracies):
  cell = shown.cell("beyond", "private", panel, label)
  return suite.Outcome(
    cell,
    pathlib.Path(),
    made_runs.frames_of(
      [
        {"round": 1, "seed": seed, "protocol": "global", "accuracy": value}
        for seed, value in enumerate(accuracies)
      ]
    ),
    {
      "privacy": {"epsilon": epsilon, "noise_multiplier": 1.0},
      "cost": {"rounds": 1},
    },
  )


def test_the_table_interpolates_the_epsilon_of_equal_accuracy():
  outcomes = [
    private_outcome("a", "FedAvg", 1.0, [0.90, 0.92]),
    private_outcome("b", "FedAvg", 2.0, [0.94, 0.96]),
    private_outcome("a", "AFL", 1.0, [0.92, 0.94]),
    private_outcome("b", "AFL", 2.0, [0.935, 0.945]),
  ]
  text = pages.format_blocks(private.FIGURE.table(outcomes))
  assert "| 1.00 | 91.00 | at most 1.00 |" in text
  assert "| 2.00 | 95.00 | more than 2.00 |" in text
  assert private._needed_epsilon([1, 4], [80, 90], 85) == "2.00"
  judgements = {
    claim.text: verdicts.judge_statement(claim, outcomes)
    for claim in private.FIGURE.statements
  }
  assert judgements["At epsilon 1 AFL is above FedAvg"].measured.startswith("a: +2.00")
  assert np.isinf(private.EPSILONS["e"])


def all_cells(figure):
  """The cells of a figure, whether its panels are tuned or not."""
  return figures.cells(beyond.PAPER, figure, figures.Request(None, (), "here"))


def test_a_bridge_changes_the_three_factors_alone():
  """And its ends are the map's panel of two classes and the board's three levels."""
  cells = all_cells(bridge.FIGURE)
  assert len(cells) == 2 * 2**3 * len(bridge.METHODS)
  changing = {"model", "participation", "num_clients", "train_examples"}
  for data in bridge.DATA:
    of_map = config.values_of(f"beyond/map_{data}_classes.flags")
    for setup in bridge.SETUPS:
      if setup.data != data:
        continue
      values = config.values_of(f"beyond/{setup.preset}.flags")
      model, share, clients = setup.levels
      assert values["model"].partition(":")[0] == model
      assert int(values["num_clients"]) == int(clients)
      assert float(values["participation"]) == {"10": 0.1, "all": 1.0}[share]
      # As many examples a client as on the map.
      assert int(values["train_examples"]) == 150 * int(clients)
      assert {k: v for k, v in values.items() if k not in changing} == {
        k: v for k, v in of_map.items() if k not in changing
      }
    ends = [s for s in bridge.SETUPS if s.data == data and s.levels[0] == "mlp"]
    assert config.values_of(f"beyond/{ends[-1].preset}.flags") == of_map
  of_board = config.values_of("beyond/board_mnist.flags")
  first = bridge.SETUPS[0].levels
  assert first == (
    of_board["model"],
    str(100 * int(of_board["cohort_size"]) // int(of_board["num_clients"])),
    str(of_board["num_clients"]),
  )


def test_effects_of_a_design_are_those_of_a_linear_model():
  """By least squares on columns of -1/2 and 1/2 and their products."""
  rng = np.random.default_rng(0)
  levels = [list(titles) for titles in bridge.FACTORS.values()]
  cube = {cell: rng.normal(size=9) for cell in itertools.product(*levels)}
  effects = bridge.effects(cube)
  assert len(effects) == 7
  signs = np.array(
    [[2 * of.index(level) - 1 for of, level in zip(levels, cell)] for cell in cube]
  )
  names = list(bridge.FACTORS)
  columns = {
    some: signs[:, [names.index(name) for name in some]].prod(1) / 2 for some in effects
  }
  design = np.stack([np.ones(8), *columns.values()], axis=1)
  coefficients = np.linalg.lstsq(design, np.stack(list(cube.values())), rcond=None)[0]
  for some, expected in zip(columns, coefficients[1:]):
    np.testing.assert_allclose(effects[some], expected)


def bridge_outcome(cell, accuracies):
  parts = tuple(
    suite.Outcome(
      cell,
      None,
      made_runs.frames_of(
        [
          {
            "round": 40,
            "seed": 0,
            "protocol": "local",
            "accuracy": a,
            "total_bytes": 2e6,
          }
        ]
      ),
      {},
    )
    for a in accuracies
  )
  return suite._pool(parts)


def test_a_bridge_shows_gains_and_what_a_factor_changes():
  """FedGroup gains 6 points if all clients take part, and 1 if a tenth does."""
  rng = np.random.default_rng(0)
  outcomes = []
  for cell in all_cells(bridge.FIGURE):
    share = cell.config.values["participation"]
    gain = {"FedAvg": 0.0, "FedGroup": 0.06 if share == 1 else 0.01, "IFCA": 0.02}
    accuracies = 0.8 + gain[cell.label] + rng.normal(0, 0.001, 9)
    outcomes.append(bridge_outcome(cell, accuracies))
  text = pages.format_blocks(bridge._table(outcomes))
  start = "| clients in a round (all, not 10 %) |"
  (row,) = [r for r in text.splitlines() if r.startswith(start)]
  by_column = [float(part.split(" ")[0]) for part in row.split(" | ")[1:]]
  np.testing.assert_allclose(by_column, [5.0, 0.0, 5.0, 0.0], atol=0.2)
  (row,) = [
    r for r in text.splitlines() if r.startswith("| model (MLP, not softmax) |")
  ]
  assert all(abs(float(part.split(" ")[0])) < 0.2 for part in row.split(" | ")[1:])
  # A design with a hole has no effects, and its cells are still there.
  hole = pages.format_blocks(
    bridge._table([o for o in outcomes if o.cell.panel != "c"])
  )
  assert "clients in a round (all" in hole and hole.count("MNIST, FedGroup |") <= 1
  assert bridge._effects_table(outcomes[:3]) == []


def test_the_map_with_the_right_number_of_groups_is_the_map():
  """Only the number changes, and the middle one is the number of kinds."""
  cells = {(c.panel_title, c.label): c for c in all_cells(group_numbers.FIGURE)}
  of_map = {(c.panel_title, c.label): c for c in all_cells(kinds_map.FIGURE)}
  ignored = {"eval_protocols", "eval_every"}
  for (title, label), cell in cells.items():
    name, _, words = label.partition(", ")
    number = int(words.split()[0]) if words else 0
    told = kinds_map.METHODS[name].groups
    expected, values = (
      {**c.config.values, **c.config.hparams} for c in (of_map[title, name], cell)
    )
    if told:
      assert expected[told] == len(cell.config.data.kinds.names)
      expected[told] = number
    changed = {k for k in expected if expected[k] != values.get(k)} - ignored
    assert not changed, (title, label)
  assert len(cells) == 4 * (1 + 5 * 3)


@pytest.mark.program
def test_the_measures_of_digits_are_made(tmp_path):
  """Quick: two partitions of each panel, named by each other."""
  request = figures.Request(tmp_path, (), "here", quick=True)
  blocks, answers = differences.TABLE.make(request, tmp_path)
  text = pages.format_blocks(blocks)
  assert answers == []
  samples = differences.read_samples(tmp_path / "differences_numbers.csv")
  titles = {k.title for k in kinds_map.KINDS.values() if "digits" in k.data}
  assert {s.difference for s in samples} == titles | {"nothing"}
  assert len(samples) == 2 * (len(titles) + 1)
  assert "| digits, two classes and rotated images |" in text
  assert text.count("none is near") >= 4


def backbone_outcome(letter, label, accuracies, work=0.0):
  """A pooled outcome of one round; accuracies of each partition."""
  rows = [
    {
      "round": 1,
      "seed": 0,
      "partition": part,
      "protocol": "global",
      "accuracy": accuracy,
      "total_bytes": 2e6,
      "client_flops": work,
    }
    for part, accuracy in enumerate(accuracies)
  ]
  cell = shown.cell("beyond", "backbone", letter, label)
  parts = tuple(suite.Outcome(cell, None, None, {}) for _ in accuracies)
  cost = {"clients_per_round": 100, "rounds": 1}
  return suite.Outcome(cell, None, made_runs.frames_of(rows), {"cost": cost}, parts)


@pytest.mark.parametrize("other, holds", [(0.8551, True), (0.8556, False)])
def test_afl_is_one_model_however_the_data_are_dealt(other, holds):
  runs = [
    backbone_outcome("a", "AFL", [0.855]),
    backbone_outcome("h", "AFL", [other]),
    backbone_outcome("h", "FedAvg", [0.5]),
  ]
  assert backbone._is_invariant(runs).holds is holds
  with pytest.raises(verdicts.NotRun):
    backbone._is_invariant(runs[:1])


def test_the_price_of_a_method_is_of_all_clients():
  (of_bytes, of_work) = backbone._curves(
    [backbone_outcome("a", "AFL", [0.5, 0.7], 3e7)]
  )
  assert of_bytes.mean == pytest.approx(60.0)
  assert of_bytes.values == pytest.approx((2.0, 60.0))
  assert of_work.values == pytest.approx((100 * 3e7 / 1e9, 60.0))


def test_every_probe_has_the_same_budget_and_all_methods_the_same_features():
  """Else closed form and training would be compared on other features or clients."""
  clients = {}
  for cell in shown.cells("beyond", "backbone"):
    data, deal = cell.config.data, backbone.PLACES[cell.panel][1]
    clients.setdefault(cell.panel, set()).add((str(data.partition), data.num_clients))
    assert data.features == Backbone(size=128) and not cell.pictures
    hparams = ordered_values(*cell.config.method.resolved().parts)
    if cell.label in backbone.PROBES:
      assert (cell.config.run.rounds, cell.config.values["cohort_size"]) == (200, 10)
      assert (hparams["local_steps"], hparams["batch_size"]) == (20, 10)
      assert cell.most_partitions == 0
    if cell.label == backbone.BASE:
      assert hparams["client_ridge"] * deal.clients == pytest.approx(1.0)
  assert set(clients) == set(backbone.PLACES)
  assert all(len(of) == 1 for of in clients.values())
