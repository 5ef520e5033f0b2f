"""What a run leaves beside its tables."""

import json
import shutil
import subprocess

import jax
import numpy as np
import optax
import pytest

from fedjax_alg import metrics
from fedjax_alg.data import federate
from fedjax_alg.metrics import groups
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables


def test_the_partition_is_two_files(tmp_path):
  """Of all clients, the validation clients in their old places."""
  plain = federate("digits", num_clients=20)
  fed = federate("digits", num_clients=20, validation_clients=5)
  results.write_partition(tmp_path, fed)
  facts = json.loads((tmp_path / "partition.json").read_text("utf-8"))
  assert facts == json.loads(json.dumps(results.partition_facts(fed)))
  assert facts["hash"] == fed.hashes["partition"]
  assert facts["flags"]["validation_clients"] == 5
  assert facts["flags"]["num_clients"] == 20
  assert len(facts["validation_clients"]) == len(facts["validation_size"]) == 5
  without = results.partition_facts(plain)
  both = facts["train_size"] + facts["validation_size"]
  assert sorted(both) == sorted(without["train_size"])
  assert sum(map(sum, facts["label_histogram"])) == sum(facts["train_size"])
  assert not any(
    name.startswith("validation") for name in (*without, *without["flags"])
  )
  assert facts["hash"] != without["hash"]
  with np.load(tmp_path / "partition.npz") as stored:
    for name in ("train_order", "train_size", "test_order", "test_size"):
      np.testing.assert_array_equal(stored[name], getattr(plain.partition, name))


@pytest.mark.parametrize(
  "histogram, membership, is_undefined",
  [
    (np.ones((4, 3)), [0, 0, 1, 1], True),  # all hold all classes
    (np.eye(4), [0, 0, 1, 1], True),  # each holds another
    (np.eye(4)[[0, 0, 1, 1]], [0, 0, 1, 1], False),
    (np.ones((4, 3)), [-1, -1, -1, -1], False),
  ],
)  # nobody has a group yet
def test_no_agreement_has_a_reason(histogram, membership, is_undefined):
  """purity and ari were NaN without a word."""
  rows = tables.group_rows(np.array([membership]), histogram, 1, [0], 2)
  summary = results.groups(rows, 2)
  assert summary.get("agreement") == (groups.UNDEFINED if is_undefined else None)
  assert (
    np.isnan(summary["purity"]["mean"])
    == np.isnan(rows[0]["ari"])
    == (is_undefined or max(membership) < 0)
  )


def test_best_is_of_the_rounds_in_which_somebody_was_counted():
  rounds, curve = np.array([1, 2, 3]), np.array([[np.nan, 0.25, 0.5]])

  def summarize(last):
    of = dict.fromkeys(metrics.METRICS, curve[:, :last])
    return results.summarize_curves({"assigned": of}, rounds, (0.4,), "accuracy")

  summary = summarize(3)
  assert summary["best"]["assigned"]["accuracy"]["mean"] == 0.5
  assert summary["best"]["assigned"]["loss"]["mean"] == 0.25
  assert summary["rounds_to"]["0.40"]["values"] == [3]
  empty = summarize(1)
  assert np.isnan(empty["best"]["assigned"]["accuracy"]["mean"])
  assert empty["rounds_to"]["0.40"]["values"] == [None]


@pytest.mark.parametrize(
  "values, text",
  [
    ([0.25], "25.0"),
    ([0.25, 0.25], "25.0 +- 0.0"),
    ([np.nan], "-"),
    ([np.nan, 0.5], "-"),
  ],
)
def test_one_seed_has_no_interval(values, text):
  summary = json.loads(json.dumps(results.as_json(results.spread(values))))
  assert (summary["ci95"] is None) == (len(values) == 1 or bool(np.isnan(values).any()))
  assert metrics.format_estimate(summary, 1, 100) == text


def test_versions_say_what_made_the_numbers():
  versions = results.versions()
  assert versions["jax"] == jax.__version__
  assert versions["optax"] == optax.__version__
  assert {"jaxlib", "flax", "chex", "numpy", "scipy", "python", "fedjax_alg"} <= set(
    versions
  )


@pytest.mark.skipif(shutil.which("git") is None, reason="git is missing")
def test_the_commit_of_another_repository_is_not_ours(monkeypatch, tmp_path):
  """An installed copy in the folder of somebody's own project."""

  def git(*words):
    subprocess.run(
      ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c", *words],
      check=True,
      capture_output=True,
    )

  (tmp_path / "summary.py").write_text("")
  (tmp_path / "thesis.tex").write_text("")
  git("init")
  git("add", "thesis.tex")
  git("commit", "-m", "years")
  monkeypatch.setattr(results, "__file__", str(tmp_path / "summary.py"))
  commit = results._commit.__wrapped__
  assert commit() is None
  git("add", ".")
  git("commit", "-m", "more")
  clean = commit()
  assert len(clean) == 40
  (tmp_path / "thesis.tex").write_text("words")
  assert commit() == clean + "-dirty"
