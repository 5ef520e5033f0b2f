"""The commands ``judge`` and ``card``: verdicts on claims, a page of a run."""

import csv
import json
import shlex

import numpy as np
import pytest

from experiments import card, judge
from experiments.cli import config as config_lib
import fedjax_alg as fa
from fedjax_alg.metrics import confidence_95
from fedjax_alg.metrics.names import METRICS, is_known, is_of_clients
from fedjax_alg.records import summary
from fedjax_alg.runs import result
from tests import made_runs

SLOW = [[0.5, 0.6, 0.7], [0.4, 0.6, 0.72], [0.5, 0.65, 0.69]]
FAST = [[0.6, 0.7, 0.81], [0.7, 0.7, 0.82], [0.5, 0.75, 0.79]]


@pytest.fixture(name="folders")
def _folders(tmp_path):
  for name, curves in (("slow", SLOW), ("fast", FAST)):
    made_runs.write(tmp_path / "runs" / name, curves, every=1)
  return tmp_path / "runs"


def judge_claims(root, claims, out):
  path = root / "claims.csv"
  path.write_text("method,protocol,metric,value,rule\n" + "\n".join(claims))
  assert (
    judge.main(
      [str(path), f"Slow={root / 'slow'}", f"Fast={root / 'fast'}", f"--out={out}"]
    )
    == 0
  )
  with open(out / "judge.csv", encoding="utf-8") as file:
    return [(row["ours"], row["verdict"]) for row in csv.DictReader(file)]


def test_verdicts_are_those_of_the_numbers(folders, tmp_path):
  """Against the intervals computed here from the metrics of the runs.

  A claimed number is one draw: the intervals of the means, which leave out the
  numbers of the first, second and sixth claim, would be too short.
  """
  slow, fast = (100 * np.array(curves)[:, -1] for curves in (SLOW, FAST))
  mean, ci95 = confidence_95(fast)
  gap, gap_ci95 = confidence_95(fast - slow)
  assert gap > gap_ci95  # the runs can be told apart
  draw, gap_draw = np.sqrt(len(fast) + 1) * np.array([ci95, gap_ci95])
  rows = judge_claims(
    folders,
    [
      f"Fast,global,accuracy,{mean - draw - 2:.3f},final",
      f"Fast,global,accuracy,{mean + draw + 2:.3f},final",
      "Fast - Slow,global,accuracy,>0,final",
      "Fast - Slow,global,accuracy,<0,final",
      f"Fast - Slow,global,accuracy,>{gap:.3f},final",
      f"Fast - Slow,global,accuracy,{gap - gap_draw - 1:.3f},final",
      "Third,global,accuracy,50,final",
    ],
    tmp_path,
  )
  assert rows[0] == (f"{mean:.2f} +- {ci95:.2f}", f"better by {draw + 2:.1f}")
  assert rows[1][1] == f"worse by {draw + 2:.1f}"
  assert rows[2] == (f"+{gap:.2f} +- {gap_ci95:.2f}", "reached")
  assert [words for _, words in rows[3:6]] == [
    "worse",
    "undecided",
    f"better by {gap_draw + 1:.1f}",
  ]
  assert rows[6] == ("-", "not testable: not run, Third")
  page = (tmp_path / "judge.md").read_text()
  assert "| reached | 1 |" in page and "| better | 2 |" in page
  # The interval that decides stands there, and not beside a bound.
  assert page.count(f"{rows[0][0]} (draw {draw:.3g}) |") == 2
  assert page.count(" (draw ") == 3


def test_what_is_spent(folders, tmp_path):
  """Rounds to a value: better, worse, and undecided where three rounds end first."""
  rows = judge_claims(
    folders,
    [
      "Slow,global,round_to_accuracy_60%,30,",
      "Slow,global,total_floats_to_accuracy_60%,2000,",
      "Slow,global,round_to_accuracy_99.9%,3,",
      "Slow,global,round_to_accuracy_99.9%,5,",
      "Slow,global,total_floats_to_accuracy_99.9%,5000,",
    ],
    tmp_path,
  )
  assert rows[:2] == [
    ("2.00 +- 0.00", "better by 28 rounds"),
    ("2000.00 +- 0.00", "reached"),
  ]
  assert [words for _, words in rows[2:]] == [
    "worse: never in these rounds",
    "undecided: 3 of 5 rounds",
    "undecided: 3000 of 5000",
  ]


def test_a_run_without_a_number_there_is_not_judged(tmp_path):
  """NaN at the end was "undecided: one run", of three runs."""
  made_runs.write(tmp_path / "slow", [[0.5, np.nan]] * 3, every=1)
  made_runs.write(tmp_path / "fast", FAST, every=1)
  rows = judge_claims(
    tmp_path,
    [
      "Slow,global,accuracy,70,final",
      "Slow,global,accuracy,>70,final",
      "Slow - Fast,global,accuracy,>0,final",
      "Slow,global,accuracy,50,best",
    ],
    tmp_path,
  )
  assert rows[:3] == [("-", "not testable: no number there")] * 3
  assert rows[3][1] == "reached"


def test_the_data_set_of_a_run_decides_the_tie(tmp_path):
  """0.4 points are a difference on digits and none on CIFAR-10, also by TFDS's name.

  ``tfds:cifar10`` was a data set "tfds", with the tie of digits.
  """
  curves = [[0.5, 0.7040], [0.5, 0.7041], [0.5, 0.7039]]
  made_runs.write(tmp_path / "slow", curves, every=1)
  made_runs.write(tmp_path / "fast", curves, every=1, data={"dataset": "tfds:cifar10"})
  rows = judge_claims(
    tmp_path,
    ["Slow,global,accuracy,70,final", "Fast,global,accuracy,70,final"],
    tmp_path,
  )
  assert [words for _, words in rows] == ["better by 0.4", "reached"]


#: A claim's metric, value and rule -> the verdict: the last accuracies of SLOW
#: are 70.3 +- 3.8, its losses 0.30 +- 0.04, and 60 % are there in round 2.
BOUNDS = {
  ("accuracy", ">50", "final"): "reached",
  ("accuracy", ">90", "final"): "worse",
  ("accuracy", "<90%", "final"): "reached",
  ("accuracy", "<50", "final"): "worse",
  ("accuracy", ">70", "final"): "undecided",
  ("loss", "<0.5", "final"): "reached",
  ("loss", ">5e-1", "final"): "worse",
  ("round_to_accuracy_60%", ">1", ""): "reached",
  ("round_to_accuracy_60%", "<1", ""): "worse",
  ("round_to_accuracy_60%", ">6", ""): "worse",
  ("round_to_accuracy_60%", "<6", ""): "reached",
  ("round_to_accuracy_99.9%", ">3", ""): "reached",
  ("round_to_accuracy_99.9%", "<3", ""): "worse",
  ("round_to_accuracy_99.9%", ">6", ""): "undecided: 3 of 6 rounds",
  # One of three gets there, in round 3.
  ("round_to_accuracy_71%", ">3", ""): "undecided",
  ("round_to_accuracy_71%", ">2", ""): "reached",
  ("round_to_accuracy_71%", "<2", ""): "worse",
}


def test_bounds_are_compared_with_their_number(folders, tmp_path):
  """ ">50" of a run of 26.9 % was "gets there", and "<90" "short by 19.7".

  A seed that never gets there made ">2" undecided, whatever the others needed.
  """
  rows = judge_claims(
    folders, [f"Slow,global,{','.join(claim)}" for claim in BOUNDS], tmp_path
  )
  assert [words for _, words in rows] == list(BOUNDS.values())


def test_one_seed_decides_no_bound(tmp_path):
  for name in ("slow", "fast"):
    made_runs.write(tmp_path / name, SLOW[:1], every=1)
  rows = judge_claims(
    tmp_path,
    [
      "Slow,global,accuracy,>50,final",
      "Slow,global,round_to_accuracy_60%,>1,",
      "Slow,global,round_to_accuracy_99%,>2,",
    ],
    tmp_path,
  )
  assert {words for _, words in rows} == {"undecided"}


@pytest.mark.parametrize(
  "line, says",
  [
    ("Slow,global,accurary,1,final", "line 2: metric=accurary: must be one of"),
    ("Slow,global,,1,final", "line 2: metric=: must be one of"),
    ("Slow,global,accuracy,many,final", "line 2: value=many: must be a number"),
    ("Slow,global,accuracy,1.2.3,final", "value=1.2.3: must be a number"),
    ("Slow,global,accuracy,...,final", "value=...: must be a number"),
    ("Slow,global,accuracy,>=5,final", "value=>=5: must be a number"),
    ("Slow,global,accuracy,1e999,final", "value=1e999: must be finite"),
    ("Slow,global,loss,>1e999,final", "value=>1e999: must be finite"),
    ("Slow,global,accuracy,5000,final", "must lie in [0, 100] %"),
    ("Slow,global,accuracy,-5,final", "must lie in [0, 100] %"),
    ("Slow - Fast,global,accuracy,>101,final", "must lie in [-100, 100] %"),
    ("Slow,global,accuracy,0.7,final", "in percent, must be 70, or 0.7% if"),
    ("Slow,global,loss,0.7%,final", "loss is not a share, must be given without %"),
    ("Slow,global,accuracy,70,last", "line 2: rule=last: must be one of final"),
    ("Slow,global,round_to_accuracy_60%,2,last", "rule=last: must be empty"),
    ("Slow,global,round_to_accuracy_60%,-2,", "must be a number above 0"),
    ("Slow,global,round_to_accuracy_60%,1e999,", "must be a number above 0"),
    ("Slow,global,round_to_accuracy_1.2.3%,2,", "metric=round_to_accuracy_1."),
    ("Slow,global,round_to_accuracy_0.9,2,", "must be 90, or 0.9% if"),
    ("Slow,global,round_to_accuracy_150%,2,", "must lie in [0, 100] %"),
    ("Slow,global,client_loss,1,final", "Slow: metric=client_loss: unknown in"),
    ("Slow - Fast,global,round_to_accuracy_9%,1,", "claim the two numbers"),
    ("Slow - Slow,global,accuracy,>0,final", "line 2: method=Slow - Slow"),
    (",global,accuracy,70,final", "line 2: method=: must be the name"),
    ("Slow,localy,accuracy,70,final", "Slow: protocol=localy"),
    ("Slow,global,accuracy", "line 2: has 3 cells, must have 5"),
    ("Slow", "line 2: has 1 cells, must have 5"),
    ("Slow,global,accuracy,70,final,more", "line 2: has 6 cells, must have 5"),
    ('Slow,global,accuracy,"70,final', "no file of claims (unexpected end"),
    ("Nobody,global,accuracy,70,final", "no claim is about these runs"),
  ],
)
def test_bad_claims(folders, tmp_path, refused, line, says):
  path = tmp_path / "claims.csv"
  path.write_text(f"method,protocol,metric,value,rule\n{line}\n")
  assert says in refused(
    judge,
    [
      str(path),
      f"Slow={folders / 'slow'}",
      f"Fast={folders / 'fast'}",
      f"--out={tmp_path}",
    ],
  )
  assert not (tmp_path / "judge.md").exists()


@pytest.mark.parametrize(
  "change",
  [
    lambda text: "\ufeff" + text,  # as Excel saves UTF-8
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace(",", ", "),
    lambda text: text.replace("\n", "\n\n"),
    lambda text: text.replace("Slow", '"Slow"'),
  ],
)
def test_a_file_of_claims_as_other_programs_write_it(folders, tmp_path, change):
  path = tmp_path / "claims.csv"
  text = (
    "method,protocol,metric,value,rule\nSlow,global,accuracy,>50,final\n"
    "Slow,global,round_to_accuracy_60%,2,\n"
  )
  path.write_bytes(change(text).encode("utf-8"))
  assert judge.main([str(path), f"Slow={folders / 'slow'}", f"--out={tmp_path}"]) == 0
  with open(tmp_path / "judge.csv", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0]) == [
    "method",
    "protocol",
    "metric",
    "value",
    "rule",
    "ours",
    "verdict",
  ]
  assert [row["verdict"] for row in rows] == ["reached", "reached"]


def test_margins_that_are_no_shares_tie_within_five_percent(folders, tmp_path):
  """0.3 points were taken for a loss, too, of which that is the whole."""
  slow, fast = (1 - np.array(curves)[:, -1] for curves in (SLOW, FAST))
  assert (fast - slow).mean() < -0.09
  rows = judge_claims(
    folders,
    ["Fast - Slow,global,loss,0.2,final", "Fast - Slow,global,loss,<0,final"],
    tmp_path,
  )
  assert [words.split(" ")[0] for _, words in rows] == ["better", "reached"]


def test_claims_about_metrics_of_an_own_task(folders, tmp_path):
  """They are known once a run's folder is read, so that comes first."""
  path = folders / "slow" / "config.json"
  facts = json.loads(path.read_text())
  facts["plan"]["task"] = {
    "name": "mine",
    "metrics": {
      name.replace("macro_recall", "hinge_of_judge"): [True, True]
      for name in METRICS
      if not is_of_clients(name)
    }
    | {"loss": [False, False]},
  }
  summary.write_sealed(path, facts)
  table = folders / "slow" / "metrics.csv"
  table.write_text(table.read_text().replace("macro_recall", "hinge_of_judge"))
  result.write_summary(
    folders / "slow", json.loads((folders / "slow" / "summary.json").read_text())
  )
  assert not is_known("hinge_of_judge")
  assert (
    judge_claims(folders, ["Slow,global,hinge_of_judge,>50,final"], tmp_path)[0][1]
    == "reached"
  )


def test_no_claims(folders, tmp_path, refused):
  path = tmp_path / "claims.csv"
  path.write_text("method,value\nSlow,1\n")
  files = {
    "semicolons": "method;protocol\n",
    "twice": "method,method,protocol,metric,value,rule\n",
    "empty": "",
    "head": "method,protocol,metric,value,rule\n",
  }
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  for word, says in (
    (path, "lacks the column protocol"),
    (tmp_path / "semicolons", "are separated by commas"),
    (tmp_path / "twice", "has the column method twice"),
    (tmp_path / "empty", "lacks the column method"),
    (tmp_path / "head", "no claim, must have a line"),
    (tmp_path / "none.csv", "no file of claims"),
  ):
    assert says in refused(judge, [str(word), str(folders / "slow")])


def test_card_and_crate(tmp_path, refused):
  """The page has the numbers of the run; the crate every file's hash."""
  rocrate = pytest.importorskip("rocrate.rocrate")
  folder = tmp_path / "run"
  fed = fa.federate("digits", num_clients=12, validation_clients=2)
  fa.run(
    "fedavg",
    fed,
    cohort_size=4,
    rounds=2,
    seeds=2,
    eval_every=1,
    evaluate=("global", "validation"),
  ).save(folder)  # as in test_sweep.py
  assert card.main([str(folder), "--crate"]) == 0
  result = fa.load_run(folder)  # other files do not harm the run
  text = (folder / "card.md").read_text()
  mean, ci95 = confidence_95(100 * result.metrics["global"]["accuracy"][:, -1])
  assert f"| global | accuracy, % | {mean:.2f} +- {ci95:.2f} |" in text
  assert "(partition `iid`, seed 0)" in text  # which was not given
  assert text.startswith("# FedAvg on digits") and result.state_hash() in text
  crate = rocrate.ROCrate(str(folder))
  entities = {entity.id: entity for entity in crate.get_entities()}
  for name, digest in result.summary()["files"].items():
    assert entities[name]["sha256"] == digest
  assert entities["#data"]["sha256"] == result.summary()["hashes"]["data"]
  raw = json.loads((folder / card.CRATE).read_text())
  assert {e["@id"] for e in raw["@graph"]} >= {"./", "card.md", "#run"}
  refused(card, [str(folder / "none")])
  # A line that a flag file has in quotes is a word of the command.
  path = "--partition=file:of the user .npz "
  lines = config_lib.parse_config(["--algorithm=fedavg", path]).flag_lines()
  (folder / "flags.txt").write_text("\n".join(lines))
  assert card.main([str(folder)]) == 0
  command = (folder / "card.md").read_text().partition("```bash\n")[2]
  words = shlex.split(command.partition("\n```")[0])
  assert words == ["fedjax-alg", "run", "--algorithm=fedavg", path]
