"""The tables of other works: settings, published numbers, runs, FedJAX."""

import importlib.util
import operator
import re

import numpy as np
import pytest
from sklearn import model_selection

from experiments import publish
from experiments import trust as command
from experiments.reports import rule
from experiments.reproduction import answers, figures, pages, report, suite, verdicts
from experiments.reproduction.trust import (
  afl_cifar10,
  against_fedjax,
  client_privacy,
  drift,
  fair,
  fedexp,
  overview,
  pfllib,
  two_layers,
)
from experiments.reproduction.trust import figures as trust
import fedjax_alg as fa
from tests import made_runs
from tests.each import each
from tests.experiments import shown
from tests.extras.backbones.test_residual_network import compute, random_residual
from tests.extras.backbones.test_weights import save

PAPER = trust.PAPER


#: Figures with published numbers; those of FedDrift could not be opened.
NUMBERED = [name for name in trust.FIGURES if name != "feddrift"]


@each("name", NUMBERED)
def test_every_published_number_has_a_run_and_a_measure(name):
  runs = {(c.panel, c.label) for c in shown.cells("trust", name)}
  claims = report.load_claims("trust", name)
  assert {(c.panel, c.method) for c in claims} == runs
  assert {c.metric for c in claims} == set(trust.FIGURES[name].measures)


def run_command(tmp_path, capsys, *words):
  status = command.main([*words, f"--out_dir={tmp_path}"])
  streams = capsys.readouterr()
  return status, streams.out, streams.err


#: lines of the quick tables that are run here; the others are alike
@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
  "name, flags",
  [
    ("niid_bench", ("--lines=FedNova",)),
    ("fedavg_2nn", ("--panels=e",)),
    ("pfedme", ()),
    ("ifca_rotated", ("--panels=a", "--lines=IFCA")),
    ("tamuna", ()),
    ("muon", ("--lines=FedMuon",)),
    ("niid_noise", ()),
  ],
)
def test_a_quick_table(tmp_path, capsys, name, flags):
  words = (f"--table={name}", "--scale=quick", *flags)
  status, _, err = run_command(tmp_path, capsys, *words, "--noprogress")
  assert status == 0, err
  text = (tmp_path / name / f"{name}.md").read_text("utf-8")
  claims = report.load_claims("trust", name)
  assert text.count("\n| a: ") + text.count("\n| e: ") >= 1
  assert sum(text.count(f"\n| {p}: ") for p in "abcdefghi") == len(claims)
  assert text.count("| - | - | not testable: not run |") == len(claims) - {
    "fedavg_2nn": 1,
    "pfedme": 2,
  }.get(name, 1)
  assert "--dataset=digits" in text
  assert ("3 of " in text) == (name != "fedavg_2nn")
  # What is finished is shown without being run.
  second_status, _, err = run_command(
    tmp_path, capsys, *words, "--noprogress", "--finished"
  )
  page = (tmp_path / name / f"{name}.md").read_text("utf-8")
  assert second_status == 0 and not err, err
  assert page.split("<details>")[0] == text.split("<details>")[0]


@pytest.mark.parametrize(
  "panel, label, best", [("a", "pFedMe, w_k", 0.9459), ("b", "pFedMe, global", 0.9288)]
)
def test_the_picture_of_pfedme_has_all_three_models(panel, label, best):
  """And the best round of the published curve of the panel's own settings."""
  ends = {"local": 0.7, "copy": 0.8, "global": 0.6}
  (cell,) = (c for c in shown.cells("trust", "pfedme") if c.panel == panel)
  frames = made_runs.frames_of(
    [
      {"round": 800, "seed": 0, "protocol": name, "accuracy": end}
      for name, end in ends.items()
    ]
  )
  outcome = suite.Outcome(cell, None, frames, {"cost": {"rounds": 800}})
  (picture,) = trust.FIGURES["pfedme"].dots
  table = {dot.row: dot for dot in picture.numbers([outcome])}
  assert {row: dot.mean for row, dot in table.items()} == {
    "pFedMe, theta": pytest.approx(70),
    "pFedMe, w_k": pytest.approx(80),
    "pFedMe, global": pytest.approx(60),
  }
  marked = {row: dot.published for row, dot in table.items() if dot.published > 0}
  assert marked == {label: pytest.approx(100 * best)}


def test_a_picture_says_how_many_rounds_were_run():
  """The published numbers of FedMuon's reproduction are those of round 1,000."""
  cell = shown.cells("trust", "muon")[0]
  rows = [{"round": 200, "seed": 0, "protocol": "global", "accuracy": 0.84}]
  run = suite.Outcome(cell, None, made_runs.frames_of(rows), {"cost": {"rounds": 200}})
  (picture,) = trust.FIGURES["muon"].dots
  (dot,) = picture.numbers([run])
  assert dot.mean == pytest.approx(84) and dot.published == 89.5
  assert dot.note == "after 200 of 1,000 rounds"


def test_every_published_number_is_that_of_its_source():
  """Two versions of a file, and two runs' settings, stood side by side."""
  claims, sources = report.read_claims("trust"), report.read_claims("trust", "sources")
  key = operator.itemgetter("artifact", "panel", "method", "metric")
  assert [key(row) for row in sources] == [key(row) for row in claims]
  for source, claim in zip(sources, claims):
    ends = [float(number) for number in source["printed"].split(" to ")]
    share = claim["unit"] == "%" and max(ends) < 1
    digits = len(claim["value"].partition(".")[2])
    number = sum(ends) / len(ends) * (100 if share else 1)
    if "e" not in claim["value"]:
      number = round(number, digits)
    assert number == float(claim["value"]), source
    deviation = re.match(r"\+- ([\d.]+); ", claim["note"])
    assert source["deviation"] == (deviation[1] if deviation else ""), source
    note, file = claim["note"], source["file"]
    if source["repository"]:
      assert re.fullmatch("[0-9a-f]{40}", source["commit"])
      assert f" at {source['commit'][:8]}, {file}" in note, source
    else:
      assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", file) and not source["commit"]
      assert re.match(r"Table \d", source["place"])[0] in note, source
    assert ("not read" in note) == (source["read"] == "no"), source
    assert source["read"] in (
      "yes",
      "no",
      "from a picture",
      "quoted there",
      "by running it",
    )


def test_a_curve_of_pfedme_is_that_of_its_settings():
  panels = {cell.panel: cell.config.hparams for cell in shown.cells("trust", "pfedme")}
  for row in report.read_claims("trust"):
    if row["artifact"] == "pfedme":
      steps, rate = re.search(  # 20b_<steps>_<inner steps>_<personal rate>
        r"20b_(\d+)_5_([\d.]+)_avg", row["note"]
      ).groups()
      assert f"{steps} local steps, personal rate {rate}" in row["setting"]
      hparams = panels[row["panel"]]
      assert (hparams["local_steps"], hparams["personal_lr"]) == (
        int(steps),
        float(rate),
      )


def test_the_page_has_a_row_for_each_finished_run_alone():
  """A part of a run stood beside a published number, as if it could be compared."""
  (claim,) = (c for c in report.load_claims("trust", "niid_bench") if c.value == 98.89)
  finished = answers.of_claim(
    "niid_bench", claim, report.NumberAnswer("98.80 +- 0.05", "reached", ""), "50"
  )
  part = finished._replace(reason=rule.NOT_RUN, method="FedNova", rounds="8")
  head, _, *rows = (
    pages.format_blocks(overview.table_of_finished([finished, part]))
    .split("\n\n")[0]
    .splitlines()
  )
  assert head.count("|") == rows[0].count("|") == 7 and len(rows) == 1
  assert "FedAvg, best test accuracy | 98.89 +- 0.07 | 98.80 +- 0.05 | 50 |" in rows[0]
  assert rows[0].endswith("| reached | `--table=niid_bench --panels=a` |")
  assert "`niid_bench` (35)" in pages.format_blocks(
    overview.table_of_finished([finished, part])
  )


def test_a_table_without_runs_has_every_number(tmp_path, capsys):
  status, out, _ = run_command(
    tmp_path, capsys, "--table=pfedme", "--finished", "--scale=quick"
  )
  assert status == 0 and not list(tmp_path.glob("runs/*")) and "| 94.59 |" in out
  assert out.count("not run") == 2
  assert "`python -m experiments.trust --table=pfedme --panels=a,b`" in out
  page = publish.publish(PAPER, tmp_path, tmp_path / "docs")
  text = page.read_text("utf-8")
  assert text.startswith("# Results: other works\n\nCells of these tables have no run ")
  assert "`pfedme` (2)" in text and "94.59" not in text


def test_a_page_does_not_say_where_the_users_data_are(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(
    figures, "_why_lacking", lambda data: f"nothing at {tmp_path}/tfds"
  )
  status, _, err = run_command(
    tmp_path, capsys, "--table=niid_bench", "--finished", f"--data_dir={tmp_path}/tfds"
  )
  page = (tmp_path / "niid_bench" / "niid_bench.md").read_text("utf-8")
  assert status == 0 and f"not run. nothing at {tmp_path}/tfds." in err
  assert "not run, needs cifar10 (`fedjax-alg prepare cifar10`, --data_dir)." in page
  assert "tfds" not in page and str(tmp_path) not in page
  request = figures.Request(None, (), "here", data_dir=".")
  assert figures._without_places("Nothing in ./a.", request) == "Nothing in ./a."


def test_the_table_of_afl(tmp_path, capsys):
  """The joint weights in every partition; 3 examples each of 48 features."""
  status, out, _ = run_command(tmp_path, capsys, "--table=afl", "--scale=quick")
  assert status == 0 and out.count(f"| {rule.NO_NUMBER} |") == 4
  worst = [
    float(line.split("|")[4]) for line in out.splitlines() if rule.NO_NUMBER in line
  ]
  assert 0 < max(worst) < 1e-10


def test_each_class_is_a_client_with_pixels_standardized_over_all_classes():
  """Statistics of the three classes alone would give another problem."""
  rng = np.random.default_rng(0)
  x, y = rng.integers(0, 256, (60, 2, 2, 1)), np.arange(60) % 6
  digits = fa.from_arrays(x, y, x_test=x[:12], y_test=y[:12])
  selected = fair.select_classes(digits, {"a": 1, "b": 2, "c": 5})
  flat = x.reshape(60, 4).astype(np.float32)
  rows = np.isin(y, (1, 2, 5))
  expected = ((flat - flat.mean(0)) / (flat.std(0) + 0.001))[rows]
  np.testing.assert_allclose(selected.x_train, expected, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(selected.y_train, np.tile([0, 1, 2], 10))
  np.testing.assert_array_equal(selected.client_train, selected.y_train)
  np.testing.assert_array_equal(selected.client_test, selected.y_test)


def test_the_fairness_table(tmp_path, capsys):
  status, out, _ = run_command(tmp_path, capsys, "--table=fair", "--scale=quick")
  assert status == 0
  for label in fair.METHODS:
    assert len(re.findall(rf"\n\| {label} (\| [\d.]+ ){{4}}\|", out)) == 1


@pytest.mark.parametrize("num_clients", [100, 300])
def test_clients_have_two_shards_of_sorted_labels(num_clients):
  """A shard is of one tenth of the images, in the order of their labels."""
  rng = np.random.default_rng(1)
  labels = rng.permutation(np.repeat(np.arange(10), rng.integers(300, 700, 10)))
  tenths = np.empty(len(labels), int)
  for tenth, rows in enumerate(np.array_split(np.argsort(labels, kind="stable"), 10)):
    tenths[rows] = tenth
  rows, clients = client_privacy.deal_shards(labels, num_clients, rng)
  copies, size = num_clients // 100, len(labels) // 200
  np.testing.assert_array_equal(np.bincount(clients), np.full(num_clients, 2 * size))
  assert np.bincount(rows).max() <= copies
  dealt = tenths[rows].reshape(num_clients, 2, size)
  # Few shards are at a border, since a tenth is not a multiple of their size.
  pure = (dealt == dealt[:, :, :1]).all(axis=2)
  assert pure.mean() > 0.9
  # The two are not neighbors in that order, as for one client in ten they would be.
  assert (dealt[:, 0, 0] != dealt[:, 1, 0]).mean() > 0.8


def test_the_table_of_private_clients(tmp_path, capsys):
  status, out, _ = run_command(
    tmp_path, capsys, "--table=client_privacy", "--scale=quick"
  )
  assert status == 0
  assert len(re.findall(r"\n\| 100 \| 50 \| 2 \|.*\| [\d.]+ \|", out)) == 1


def test_images_are_dealt_as_by_pfllib():
  """Four clients share two classes, in parts of random size; a quarter is for tests."""
  labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 400))
  first = np.random.RandomState(1).randint(10, 100, 3)
  rows = pfllib.deal_two_labels(labels, np.random.RandomState(1))
  of_zero = [int((labels[r] == 0).sum()) for r in rows[:4]]
  assert of_zero == [*first, 400 - first.sum()]
  assert [set(labels[r]) for r in rows] == [
    {2 * (i // 4), 2 * (i // 4) + 1} for i in range(20)
  ]
  np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(4000))
  images = fa.from_arrays(
    np.arange(4000, dtype=np.float32).reshape(-1, 1, 1),
    labels,
    x_test=np.zeros((0, 1, 1), np.float32),
    y_test=labels[:0],
  )
  federation = pfllib.make_federation(images, pfllib.deal_two_labels)
  rng = np.random.RandomState(1)
  dealt = pfllib.deal_two_labels(labels, rng)
  train, _ = model_selection.train_test_split(
    dealt[0], train_size=0.75, shuffle=True, random_state=rng
  )
  pixels = federation.client(0)[0].reshape(-1)
  np.testing.assert_allclose(np.sort(pixels), np.sort(2 * train / 3999 - 1), atol=1e-6)


def test_dirichlet_shares_of_pfllib_end_at_the_even_share():
  """A client that has its even share of all images before a class gets none of it."""
  labels = np.repeat(np.arange(10), 2000)
  rows = pfllib.deal_dirichlet(labels, np.random.RandomState(1))
  np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(20_000))
  sizes = np.array([len(r) for r in rows])
  assert sizes.min() >= 40 and sizes.max() < 1000 + 2000
  for r in rows:
    counts = np.bincount(labels[r], minlength=10)
    full = np.cumsum(counts)[:-1] >= 1000
    assert not counts[1:][full].any()


def test_the_table_of_pfllib(tmp_path, capsys):
  """Two partitions; a run that has not ended says how far it is."""
  words = ("--table=pfllib", "--scale=quick", "--panels=a", "--lines=FedPer,FedRep")
  words = (*words, "--partitions=2")
  status, out, err = run_command(tmp_path, capsys, *words)
  assert status == 0, err
  assert (
    len(
      re.findall(r"\n\| a: two labels \| Fed\w+ \| 99.\d+ \| [\d.+ -]+ \| 2, 2 \|", out)
    )
    == 2
  )
  folder = tmp_path / "pfllib" / "a_fedrep"
  (folder / "summary.json").unlink()
  status, out, _ = run_command(tmp_path, capsys, *words, "--finished")
  assert status == 0 and out.count(" so far | 2 |") == 1
  assert len(pfllib.read_accuracy(folder)) == 2


@pytest.fixture(name="weights")
def weights_of_a_user(tmp_path, monkeypatch):
  """A file with the names of torchvision's ResNet-18, and random values."""
  monkeypatch.setattr("fedjax_alg.extras.backbones.features.CACHE", str(tmp_path))
  return save(tmp_path / "resnet18.npz", random_residual("resnet18"), "npz")


def test_afl_on_resnet_18_is_least_squares_on_the_authors_features(weights):
  """ImageNet's scale, a ridge that stays, or an intercept are other models."""
  features = afl_cifar10.make_features(str(weights))
  assert str(features) == f"backbone:resnet18,weights={weights},scale=halves"
  assert features.default_size == 224
  features = afl_cifar10.make_features(str(weights), quick=True)
  rng = np.random.default_rng(0)
  images = rng.uniform(size=(60, 32, 32, 3)).astype(np.float32)
  y = rng.integers(0, 3, 60)
  examples = fa.from_arrays(images[:40], y[:40], x_test=images[40:], y_test=y[40:])
  result = afl_cifar10.run_afl(examples, features, clients=2)
  tensors = random_residual("resnet18")
  x = compute("resnet18", tensors, 2 * images - 1, "block1").astype(np.float64)
  solution = np.linalg.lstsq(x[:40], np.eye(3)[y[:40]])[0]
  np.testing.assert_array_equal(
    result.predict(images[40:]), (x[40:] @ solution).argmax(1)
  )
  assert result.rounds[-1] == 1


def test_the_table_of_afl_needs_the_users_weights(tmp_path, capsys, weights):
  words = ("--table=afl_cifar10", "--scale=quick")
  status, out, _ = run_command(tmp_path, capsys, *words)
  assert status == 0 and "not run, needs" in out and "--weights=FILE" in out
  status, out, err = run_command(tmp_path, capsys, *words, f"--weights={weights}")
  assert status == 0, err
  assert len(re.findall(r"\n\| AFL \| 80.75 \(quoted\) \| [\d.]+ \|", out)) == 1
  page = (tmp_path / "afl_cifar10" / "afl_cifar10.md").read_text("utf-8")
  assert "10 clients" in page and str(weights) not in page
  status, out, err = run_command(tmp_path, capsys, *words, f"--weights={tmp_path}/none")
  assert status != 0 and err.count("\n") == 1 and f"weights={tmp_path}/none" in err


@pytest.mark.parametrize("setting", client_privacy.SETTINGS.values())
def test_the_noise_of_the_table_spends_epsilon_8(setting):
  """By a call of the accountant that no code of the library makes."""
  dp_accounting = pytest.importorskip("dp_accounting")
  pld = pytest.importorskip("dp_accounting.pld")
  accountant = pld.PLDAccountant()
  event = dp_accounting.PoissonSampledDpEvent(
    setting.participants / setting.num_clients,
    dp_accounting.GaussianDpEvent(setting.noise_multiplier),
  )
  accountant.compose(event, setting.rounds)
  assert accountant.get_epsilon(setting.delta) == pytest.approx(8, abs=0.02)


def test_a_table_without_its_data_names_no_folder_of_the_user(tmp_path, capsys):
  """Pages are published, so the terminal alone says where the data were looked for."""
  data = tmp_path / "prepared_here"
  data.mkdir()
  status, out, err = run_command(tmp_path, capsys, "--table=fair", f"--data_dir={data}")
  assert status == 0 and f"no prepared fashion_mnist in data_dir={data}" in err
  page = (tmp_path / "fair" / "fair.md").read_text("utf-8")
  assert "The table is not run, needs fashion_mnist" in page and page.strip() in out
  assert "prepared_here" not in page


def test_a_number_of_the_last_round_is_marked_beside_its_curve():
  """Without the mark the axis ends above the number that a run is compared with."""
  outcome = suite.Outcome(shown.cell("trust", "tamuna", "a", "FedAvg"), None, [], {})
  (marks,) = report.marks("trust", "tamuna", [outcome], "accuracy").values()
  assert [(m.label, m.value, m.round) for m in marks] == [("FedAvg", 0.83, None)]


def test_the_table_of_fedexp(tmp_path, capsys):
  status, out, _ = run_command(tmp_path, capsys, "--table=fedexp", "--scale=quick")
  assert status == 0 and out.count(f"| {rule.NO_NUMBER} |") == len(fedexp.METHODS)
  losses = {
    line.split("|")[1].strip(): float(line.split("|")[4])
    for line in out.splitlines()
    if rule.NO_NUMBER in line
  }
  x, y = fedexp.make_problem(5, 60)
  w = np.zeros(60)
  for _ in range(3):
    trained = []
    for x_i, y_i in zip(x, y):
      v = w
      for _ in range(20):
        v = v - 0.1 * x_i.T @ (x_i @ v - y_i)
      trained.append(v)
    w = w + 10 * (np.mean(trained, axis=0) - w)
  expected = np.sum((x @ w - y) ** 2) / 5
  assert losses["FedAvg"] == pytest.approx(expected, rel=1e-5)
  assert losses["FedProx"] != losses["FedAvg"]


def test_ten_rounds_of_fedexps_notebook():
  """The authors' own data, draw by draw, and their own number."""
  (claim,) = (
    c
    for c in report.load_claims("trust", "fedexp")
    if (c.method, c.metric) == ("FedExP", "loss_10")
  )
  loss = fedexp.loss_after("FedExP", *fedexp.make_problem(20, 1000), 10)
  assert loss == pytest.approx(claim.value, rel=1e-5)


def test_without_fedjax(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
  status, _, err = run_command(tmp_path, capsys, "--table=fedjax")
  assert status != 0 and err.count("\n") == 1
  assert "pip install 'fedjax_alg[bench]'" in err


@pytest.mark.program
@pytest.mark.parametrize("name", against_fedjax.ALGORITHMS)
def test_fedjax_on_the_same_rows(name):
  """Other rows, and any other reading of the method, are far from it."""
  if importlib.util.find_spec("fedjax") is None:
    pytest.skip("FedJAX is not installed (extra bench)")
  problem = against_fedjax._task(against_fedjax.QUICK)
  trajectory, groups = against_fedjax._ours(problem, name, 0)
  fedjax_trajectory, others = against_fedjax._theirs(
    problem, name, trajectory[0], 0, against_fedjax._same_batches(problem, 0)
  )
  np.testing.assert_array_equal(groups, others)
  for a, b in zip(trajectory[1:], fedjax_trajectory[1:]):
    assert against_fedjax._distance(a, b) < against_fedjax.ROUNDING
  assert against_fedjax._distance(trajectory[1], trajectory[0]) > 1e-3


def drift_outcome(cell, accuracy):
  """A finished run with these accuracies at the ends of the steps."""
  rows = [
    {
      "seed": 0,
      "protocol": "local",
      "round": (drift.ROUNDS // drift.STEPS) * (step + 1),
      "accuracy": value,
    }
    for step, value in enumerate(accuracy)
  ]
  start = {"seed": 0, "protocol": "local", "round": 0, "accuracy": 0.5}
  return suite.Outcome(cell, None, made_runs.frames_of([start, *rows]), {})


def test_feddrift_is_measured_at_the_ends_of_its_steps():
  """Without it, the untrained model or one step alone would count."""
  cells = [c for c in shown.cells("trust", "feddrift") if c.panel == "a"]
  best = np.linspace(0.9, 0.99, drift.STEPS)
  runs = [drift_outcome(c, best - 0.1 * (c.label != drift.ORACLE)) for c in cells]
  assert drift.MEAN(runs[0]) == pytest.approx(100 * best.mean() - 10)
  assert drift.WORST(runs[0]) == pytest.approx(80)
  text = pages.format_blocks(drift.FIGURE.table(runs))
  assert f"| a: SINE-2 | FedDrift | {100 * best.mean() - 10:.2f} | -10.00 |" in text
  assert f"| a: SINE-2 | {drift.ORACLE} | {100 * best.mean():.2f} | 0.00 |" in text
  short = drift_outcome(cells[0], best[:3])
  with pytest.raises(verdicts.NotRun, match="600 of 2000 rounds"):
    drift.MEAN(short)
  assert "| FedDrift | 600 of 2000 rounds | - | - |" in pages.format_blocks(
    drift.FIGURE.table([short])
  )


def test_feddrift_has_the_steps_of_its_data():
  """Its preset and its measures say the same numbers."""
  for cell in shown.cells("trust", "feddrift"):
    data, run = cell.config.data, cell.config.run
    assert data.concepts.period * data.concepts.steps == run.rounds == drift.ROUNDS
    assert (data.concepts.steps, run.eval_every) == (drift.STEPS, data.concepts.period)
    assert data.dataset.examples == 100 * data.concepts.steps
    schedule = data.concepts.schedule(data.num_clients, 2, "")
    assert schedule.sum(1).tolist() == [0, 1, 2, 5, 6, 6, 4, 5, 4, 4]


def test_weights_of_the_2nn_are_as_their_names_say():
  """By the limits of each draw; the library's own weights are no argument."""
  draws = {name: two_layers.draw_weights(name, 784, 10, 0) for name in two_layers.DRAWS}
  assert draws.pop(next(iter(two_layers.DRAWS))) is None
  limits = {
    "PyTorch's uniform": (784**-0.5, True),
    "Glorot's uniform, no biases": ((6 / 984) ** 0.5, False),
    "normal 0.1 truncated, biases 0.1": (0.2, True),
  }
  for name, tree in draws.items():
    layers = tree["params"]
    shapes = [layers[f"Dense_{i}"]["kernel"].shape for i in range(3)]
    assert shapes == [(784, 200), (200, 200), (200, 10)]
    first = layers["Dense_0"]
    limit, has_biases = limits[name]
    assert 0.98 * limit < np.abs(first["kernel"]).max() <= limit * (1 + 1e-6)
    assert (first["bias"] != 0).any() == has_biases
  again = two_layers.draw_weights("PyTorch's uniform", 784, 10, 1)
  other = draws["PyTorch's uniform"]
  assert (
    again["params"]["Dense_0"]["kernel"] != other["params"]["Dense_0"]["kernel"]
  ).all()


def test_rounds_of_the_2nn_are_written_with_their_limit(tmp_path, monkeypatch):
  """A rate that does not get to 97 % is no number of rounds."""
  monkeypatch.setattr(
    two_layers,
    "count_rounds",
    lambda federation, draw, rate, rounds, seed: np.inf if rate == 0.03 else 10 + seed,
  )
  request = figures.Request(tmp_path, (), "here", quick=True)
  blocks, no_answers = two_layers.make_table(request, tmp_path)
  assert no_answers == []
  row = next(
    line
    for line in pages.format_blocks(blocks).splitlines()
    if line.startswith("| IID | 87 | LeCun")
  )
  assert row.split(" | ")[3:] == [">2", "10", "10", "10 |"]
  with (tmp_path / "fedavg_2nn_why_numbers.csv").open() as file:
    assert sum(1 for _ in file) == 1 + 4 + 3 * 2 + 4
