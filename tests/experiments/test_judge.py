"""The commands ``judge`` and ``card``: verdicts on claims, a page of a run."""

import csv
import json

import numpy as np
import pytest

import fedjax_alg as fa
from experiments import card, judge
from fedjax_alg.metrics import confidence_95
from tests import made_runs


SLOW = [[0.5, 0.6, 0.7], [0.4, 0.6, 0.72], [0.5, 0.65, 0.69]]
FAST = [[0.6, 0.7, 0.81], [0.7, 0.7, 0.82], [0.5, 0.75, 0.79]]


@pytest.fixture(name="folders")
def _folders(tmp_path):
  for name, curves in (("slow", SLOW), ("fast", FAST)):
    made_runs.write(tmp_path / "runs" / name, curves, every=1)
  return tmp_path / "runs"


def judged(root, claims, out):
  path = root / "claims.csv"
  path.write_text("method,protocol,metric,value,rule\n" + "\n".join(claims))
  assert judge.main([
      str(path), f"Slow={root / 'slow'}", f"Fast={root / 'fast'}",
      f"--out={out}"]) == 0
  with open(out / "judge.csv", encoding="utf-8") as file:
    return [(row["ours"], row["verdict"]) for row in csv.DictReader(file)]


def test_verdicts_are_those_of_the_numbers(folders, tmp_path):
  """Against the intervals computed here from the metrics of the runs."""
  slow, fast = (100 * np.array(curves)[:, -1] for curves in (SLOW, FAST))
  mean, ci95 = confidence_95(fast)
  gap, gap_ci95 = confidence_95(fast - slow)
  assert gap > gap_ci95  # the runs can be told apart
  found = judged(folders, [
      f"Fast,global,accuracy,{mean - ci95 - 2:.3f},final",
      f"Fast,global,accuracy,{mean + ci95 + 2:.3f},final",
      "Fast - Slow,global,accuracy,>0,final",
      "Fast - Slow,global,accuracy,<0,final",
      f"Fast - Slow,global,accuracy,>{gap:.3f},final",
      f"Fast - Slow,global,accuracy,{gap - gap_ci95 - 1:.3f},final",
      "Third,global,accuracy,1,final",
  ], tmp_path)
  assert found[0] == (f"{mean:.2f} +- {ci95:.2f}",
                      f"exceeds by {ci95 + 2:.1f}")
  assert found[1][1] == f"short by {ci95 + 2:.1f}"
  assert found[2] == (f"+{gap:.2f} +- {gap_ci95:.2f}", "holds")
  assert [words for _, words in found[3:6]] == [
      "fails", "too close to call", f"exceeds by {gap_ci95 + 1:.1f}"]
  assert found[6] == ("-", "not run: Third")
  page = (tmp_path / "judge.md").read_text()
  assert "| holds | 1 |" in page and "| exceeds | 2 |" in page


def test_what_is_spent(folders, tmp_path):
  """Rounds to a value: sooner, later and never."""
  found = judged(folders, [
      "Slow,global,round_to_accuracy_60%,30,",
      "Slow,global,total_floats_to_accuracy_60%,2000,",
      "Slow,global,round_to_accuracy_99.9%,>6,",
      "Slow,global,round_to_accuracy_60%,>6,",
      "Slow,global,round_to_accuracy_99.9%,5,",
  ], tmp_path)
  assert found[:2] == [("2.00 +- 0.00", "sooner by 28 rounds"),
                       ("2000.00 +- 0.00", "reaches")]
  assert [words for _, words in found[2:]] == [
      "reaches", "gets there", "later"]


@pytest.mark.parametrize("line, says", [
    ("Slow,global,accurary,1,final", "line 2: metric=accurary: must be one of"),
    ("Slow,global,accuracy,many,final", "line 2: value=many: must be a number"),
    ("Slow,global,accuracy,1,last", "line 2: rule=last: must be one of final"),
    ("Slow - Fast,global,round_to_accuracy_9%,1,", "claim the two numbers"),
    ("Slow,localy,accuracy,1,final", "protocol"),
    ("Nobody,global,accuracy,1,final", "no claim is about these runs"),
])
def test_bad_claims(folders, tmp_path, refused, line, says):
  path = tmp_path / "claims.csv"
  path.write_text(f"method,protocol,metric,value,rule\n{line}\n")
  assert says in refused(judge, [
      str(path), f"Slow={folders / 'slow'}", f"Fast={folders / 'fast'}",
      f"--out={tmp_path}"])
  assert not (tmp_path / "judge.md").exists()


def test_no_claims(folders, tmp_path, refused):
  path = tmp_path / "claims.csv"
  path.write_text("method,value\nSlow,1\n")
  for word, says in ((path, "lacks the column protocol"),
                     (tmp_path / "none.csv", "no file of claims")):
    assert says in refused(judge, [str(word), str(folders / "slow")])


def test_card_and_crate(tmp_path, refused):
  """The page has the numbers of the run; the crate every file's hash."""
  rocrate = pytest.importorskip("rocrate.rocrate")
  folder = tmp_path / "run"
  fed = fa.federate("digits", num_clients=12, partition="iid",
                    validation_clients=2)
  fa.run("fedavg", fed, cohort_size=4, rounds=2, seeds=2, eval_every=1,
         evaluate=("global", "validation")).save(folder)  # as in test_sweep.py
  assert card.main([str(folder), "--crate"]) == 0
  result = fa.load_run(folder)  # other files do not harm the run
  text = (folder / "card.md").read_text()
  mean, ci95 = confidence_95(
      100 * result.metrics["global"]["accuracy"][:, -1])
  assert f"| global | accuracy, % | {mean:.2f} +- {ci95:.2f} |" in text
  assert text.startswith("# FedAvg on digits") and result.state_hash() in text
  crate = rocrate.ROCrate(str(folder))
  named = {entity.id: entity for entity in crate.get_entities()}
  for name, digest in result.summary()["files"].items():
    assert named[name]["sha256"] == digest
  assert named["#data"]["sha256"] == result.summary()["hashes"]["data"]
  raw = json.loads((folder / card.CRATE).read_text())
  assert {e["@id"] for e in raw["@graph"]} >= {"./", "card.md", "#run"}
  refused(card, [str(folder / "none")])
