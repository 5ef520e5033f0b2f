"""The tables of other works: settings, published numbers, runs, FedJAX."""

import functools
import importlib.util
import types

import numpy as np
import pytest

from experiments import publish, trust as command
from experiments.cli import config
from experiments.papers.trust import afl, against_fedjax, figures as trust
from experiments.reports import figures, report, rule

PAPER = trust.PAPER


@functools.cache
def cells(name):
  return figures.cells(
      PAPER, trust.FIGURES[name], figures.Request(None, (), "here"))


def test_settings_of_niid_bench():
  found = {(c.panel, c.label): c.config for c in cells("niid_bench")}
  assert len(found) == 12
  assert all(run.values["rounds"] == trust.NIID_PLAYED[panel] <= 50
             for (panel, _), run in found.items())
  assert config.parse(["--flagfile=trust/niid_bench.flags",
                       "--algorithm=fedavg"]).values["rounds"] == 50
  assert {(p, run.values["dataset"]) for (p, _), run in found.items()} == {
      ("a", "mnist"), ("b", "fashion_mnist"), ("c", "cifar10")}
  for (_, label), run in found.items():
    h, v = run.hparams, run.values
    assert (h["client_lr"], h["client_momentum"], h["local_epochs"],
            h["batch_size"]) == (0.01, 0.9, 10, 64)
    assert h.get("client_optimizer", "momentum") == "momentum"
    assert (v["num_clients"], v["participation"], v["num_seeds"]) == (10, 1, 1)
    assert (v["dirichlet_alpha"], v["dirichlet_even"], v["l2"]) == (
        0.5, True, 0)
    assert run.algorithm == label.lower()


def test_settings_of_the_fedavg_paper():
  shares = []
  for cell in cells("fedavg_2nn"):
    v, h = cell.config.values, cell.config.hparams
    assert v["partition"] == ("iid" if cell.panel < "e" else "shards")
    assert (v["num_clients"], v["hidden"], v["model"]) == (
        100, (200, 200), "mlp")
    assert (h["local_epochs"], h["batch_size"]) == (1, 10)
    assert v["stop_at"] == "global:accuracy:0.97" and v["eval_every"] == 1
    assert v["size_sigma" if cell.panel < "e" else "classes_per_client"] == (
        0 if cell.panel < "e" else 2)
    shares.append(v["participation"])
  assert shares == [0.1, 0.2, 0.5, 1] * 2


def test_settings_of_pfedme():
  cell, = cells("pfedme")
  h, v = cell.config.hparams, cell.config.values
  assert (h["local_steps"], h["batch_size"], h["inner_steps"], h["client_lr"],
          h["personal_lr"], h["lam"], h["server_lr"]) == (
              20, 20, 5, 0.005, 0.1, 15, 1)
  assert (v["num_clients"], v["cohort_size"], v["rounds"]) == (20, 5, 800)
  assert set(v["eval_protocols"]) == {"global", "local", "copy"}


@pytest.mark.parametrize("name", trust.FIGURES)
def test_every_published_number_has_a_run_and_a_measure(name):
  runs = {(c.panel, c.label) for c in cells(name)}
  claims = report.load_claims("trust", name)
  assert {(c.panel, c.method) for c in claims} == runs
  assert {c.metric for c in claims} == set(trust.FIGURES[name].measures)


def played(tmp_path, capsys, *words):
  status = command.main([*words, f"--out_dir={tmp_path}"])
  said = capsys.readouterr()
  return status, said.out, said.err


#: lines of the quick tables that are played here; the others are alike
@pytest.mark.program
@pytest.mark.parametrize("name, more", [
    ("niid_bench", ("--lines=FedNova",)), ("fedavg_2nn", ("--panels=e",)),
    ("pfedme", ())])
def test_a_quick_table(tmp_path, capsys, name, more):
  asked = (f"--table={name}", "--scale=quick", *more)
  status, _, err = played(tmp_path, capsys, *asked, "--noprogress")
  assert status == 0, err
  text = (tmp_path / name / f"{name}.md").read_text("utf-8")
  claims = report.load_claims("trust", name)
  assert text.count("\n| a: ") + text.count("\n| e: ") >= 1
  assert sum(text.count(f"\n| {p}: ") for p in "abcdefgh") == len(claims)
  assert text.count("| - | - | not run |") == len(claims) - {
      "niid_bench": 1, "fedavg_2nn": 1, "pfedme": 2}[name]
  assert "--dataset=digits" in text
  assert ("3 of " in text) == (name != "fedavg_2nn")
  # What is finished is shown without being played.
  again, _, err = played(
      tmp_path, capsys, *asked, "--noprogress", "--finished")
  shown = (tmp_path / name / f"{name}.md").read_text("utf-8")
  assert again == 0 and not err, err
  assert shown.split("<details>")[0] == text.split("<details>")[0]


def test_the_picture_of_pfedme_has_all_three_models(monkeypatch):
  drawn = []
  monkeypatch.setattr(trust.plots, "panels", lambda *words: drawn.extend(words))
  ends = {"local": 0.7, "copy": 0.8, "global": 0.6}
  outcome = types.SimpleNamespace(cell=cells("pfedme")[0], rows=[
      {"protocol": name, "accuracy": end} for name, end in ends.items()])
  trust.FIGURES["pfedme"].draw([], [outcome], "rounds")
  (title, lines), = drawn[1].items()
  assert {label: [row["accuracy"] for row in rows]
          for label, rows in lines.items()} == {
              "pFedMe, theta": [0.7], "pFedMe, w_k": [0.8],
              "pFedMe, global": [0.6]}
  assert {row[drawn[2] or "protocol"] for rows in lines.values()
          for row in rows} == {""}
  assert {mark.label: mark.value for mark in drawn[-1][title]} == {
      "pFedMe, w_k": pytest.approx(0.9454),
      "pFedMe, global": pytest.approx(0.9286)}


def test_a_table_without_runs_has_every_number(tmp_path, capsys):
  status, out, _ = played(
      tmp_path, capsys, "--table=pfedme", "--finished", "--scale=quick")
  assert status == 0 and not list(tmp_path.glob("runs/*"))
  assert out.count("not run") == 2
  assert "`python -m experiments.trust --table=pfedme --panels=a`" in out
  page = publish.publish(PAPER, tmp_path, tmp_path / "docs")
  text = page.read_text("utf-8")
  assert text.startswith("# Results: other works\n") and "94.54" in text


def test_a_page_does_not_say_where_the_users_data_are(
    tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(figures, "_why_lacking",
                      lambda flags: f"nothing at {tmp_path}/tfds")
  status, _, _ = played(tmp_path, capsys, "--table=niid_bench", "--finished",
                        f"--data_dir={tmp_path}/tfds")
  page = (tmp_path / "niid_bench" / "niid_bench.md").read_text("utf-8")
  assert status == 0 and "not run. nothing at tfds" in page
  assert str(tmp_path) not in page
  here = figures.Request(None, (), "here", data_dir=".")
  assert figures._without_places("Nothing in ./a.", here) == "Nothing in ./a."


@pytest.mark.parametrize("words, says", [
    ((), "--table: missing (one of niid_bench, "),
    (("--table=nobody",), "--table"),
    (("--table=afl", "--rounds=3"), "--rounds=3: not read by afl"),
    (("--table=afl", "--panels=a"), "--panels: not read by afl"),
    (("--table=afl", "--finished"), "--finished: not read by afl"),
    (("--table=pfedme", "--finished", "--part=1/2"), "--part and --finished"),
    (("--table=pfedme", "--lines=FedSGD", "--scale=quick"),
     "--lines=FedSGD: no such line (one of pFedMe)"),
    (("--table=niid_bench", "--fashion_mnist=/nowhere", "--panels=b"),
     "/nowhere"),
])
def test_bad_input_is_one_line(tmp_path, capsys, words, says):
  status, _, err = played(tmp_path, capsys, *words)
  assert status == 2 and says in err and err.count("\n") == 1, err


@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_afl_has_the_joint_weights_in_every_partition(ridge):
  """Of 200 clients each has 10 examples of 64 features."""
  found = afl.deviations(2000, 64, (2, 20, 200), ridge)
  assert all(0 < deviation < 1e-10 for deviation in found)


def test_the_table_of_afl(tmp_path, capsys):
  status, out, _ = played(tmp_path, capsys, "--table=afl", "--scale=quick")
  assert status == 0 and out.count(f"| {rule.NO_NUMBER} |") == 4
  worst = [float(line.split("|")[4]) for line in out.splitlines()
           if rule.NO_NUMBER in line]
  assert max(worst) < 1e-9


def test_without_fedjax(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(
      importlib.util, "find_spec", lambda name, package=None: None)
  status, _, err = played(tmp_path, capsys, "--table=fedjax")
  assert status != 0 and err.count("\n") == 1
  assert "pip install 'fedjax_alg[bench]'" in err


@pytest.mark.program
@pytest.mark.parametrize("name", against_fedjax.ALGORITHMS)
def test_fedjax_on_the_same_rows(name):
  """Other rows, and any other reading of the method, are far from it."""
  if importlib.util.find_spec("fedjax") is None:
    pytest.skip("FedJAX is not installed (extra bench)")
  one = against_fedjax.task(against_fedjax.QUICK)
  found, groups = against_fedjax.ours(one, name, 0)
  other, others = against_fedjax.theirs(
      one, name, found[0], 0, against_fedjax.same_batches(one, 0))
  np.testing.assert_array_equal(groups, others)
  for a, b in zip(found[1:], other[1:]):
    assert against_fedjax.distance(a, b) < against_fedjax.ROUNDING
  assert against_fedjax.distance(found[1], found[0]) > 1e-3
