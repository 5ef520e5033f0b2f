"""The command that compares runs: its files, names, and what it refuses."""

import json
import re

import numpy as np
from PIL import Image
import pytest
from scipy import stats

from experiments import compare
from experiments.reports import comparison
import fedjax_alg as fa
from fedjax_alg.records import folder as run_files
from tests import made_runs
from tests.each import each

FIRST = [[0.5, 0.7, 0.8], [0.4, 0.8, 0.7], [0.6, 0.9, 0.9]]
SECOND = [[0.6, 0.9, 0.9], [0.7, 0.9, 0.75], [0.5, 0.95, 0.94]]


@pytest.fixture(name="root")
def _root(tmp_path, monkeypatch):
  """A folder with two runs, a run of another partition and a sweep."""
  monkeypatch.chdir(tmp_path)
  made_runs.write(tmp_path / "one", FIRST)
  made_runs.write(tmp_path / "two", SECOND, algorithm="scaffold")
  made_runs.write(tmp_path / "other", SECOND, algorithm="ifca", partition="Q")
  for rate in (0.1, 0.3):
    made_runs.write(
      tmp_path / "rates" / f"client_lr={rate}", FIRST, hparams={"client_lr": rate}
    )
  diverged = tmp_path / "rates" / "client_lr=9"
  diverged.mkdir()
  (diverged / "config.json").write_text(json.dumps(run_files.seal({})))
  return tmp_path


def rows_of(path, title):
  """head -> cells of a table in a Markdown page."""
  text = path.read_text("utf-8").split(f"## {title}")[1].split("##")[0]
  head, _, *rows = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text.splitlines()
    if line.startswith("|")
  ]
  return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.usefixtures("whole_pictures")
def test_a_folder_gets_every_file(root, capsys):
  assert compare.main(["one", "two", "--targets=0.85"]) == 0
  folder = root / "out" / "compare"
  assert {path.name for path in folder.iterdir()} == {
    f"compare.{kind}" for kind in ("png", "pdf", "md", "tex", "html")
  }
  with Image.open(folder / "compare.png") as image:
    assert image.width > 600
  assert (folder / "compare.pdf").read_bytes().startswith(b"%PDF")
  first, second = rows_of(folder / "compare.md", "Accuracy, protocol global")
  last = 100 * np.array(FIRST)[:, -1]
  half = stats.t.ppf(0.975, 2) * stats.sem(last)
  assert first["final accuracy, %"] == f"{last.mean():.2f} +- {half:.2f}"
  assert (first["run"], second["run"], first["seeds"]) == ("FedAvg", "SCAFFOLD", "3")
  first, second = rows_of(folder / "compare.md", "Cost to targets")
  assert (first["reached by"], first["rounds"]) == ("1 of 3 seeds", "10")
  assert (second["reached by"], second["floats sent, 10³"]) == ("3 of 3 seeds", "10")
  (pair,) = rows_of(folder / "compare.md", "Difference from FedAvg")
  p = stats.ttest_rel(np.array(SECOND)[:, -1], np.array(FIRST)[:, -1]).pvalue
  assert pair["p"] == pair["p (Holm)"] == f"{p:.4f}"
  printed = capsys.readouterr().out
  assert pair["difference, points"] in printed
  assert f"least p value of Wilcoxon's signed-rank test is {2 / 2**3:g}" in (printed)


def test_only_the_files_that_are_named(root, capsys):
  (root / "paper.tex").write_text("mine")
  assert compare.main(["one", "two", "--out=paper.pdf,new/table.tex"]) == 0
  assert (root / "paper.tex").read_text() == "mine"
  assert {path.name for path in (root / "new").iterdir()} == {"table.tex"}
  assert not (root / "out").exists()
  capsys.readouterr()
  assert compare.main(["one", "two", "--out=paper.pdf,other.md"]) == 0
  assert capsys.readouterr().out.endswith("replaced paper.pdf\nwrote other.md\n")


def test_latex_is_well_formed(root):
  assert (
    compare.main(
      ["A_1 & 50%=one", "B#{2}~^\\<=two", "other", "--targets=0.85", "--out=table.tex"]
    )
    == 0
  )
  text = (root / "table.tex").read_text("utf-8")
  assert r"A\_1 \& 50\% & 3 & 15 &" in text
  assert (
    r"B\#\{2\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
    r"\textless{} &"
  ) in text
  assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 4
  assert re.findall(r"\\label\{tab:(\w+)\}", text) == [
    "scores",
    "targets",
    "costs",
    "differences",
  ]
  assert max(map(len, re.findall(r"\\caption\{(.*)\}", text))) < 60
  lines = [line for line in text.splitlines() if not line.startswith("%")]
  for line in lines:
    assert line.isascii() and not re.search(
      r"(?<!\\)[#%~^]", (re.sub(r"\$[^$]*\$", "", line))
    )
  for table in "\n".join(lines).split(r"\begin{tabular}")[1:]:
    columns = re.match(r"\{(l+r*)\}", table)[1]
    for row in re.findall(r"(.*) \\\\", table):
      assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1
    assert [
      table.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")
    ] == [1, 1, 1]
  assert text.count("{") - text.count(r"\{") == (text.count("}") - text.count(r"\}"))


def test_targets_that_nobody_reaches_are_one_sentence(root, capsys):
  assert (
    compare.main(["one", "two", "--targets=0.97,0.98,0.99", "--out=t.md,t.tex,t.html"])
    == 0
  )
  words = "No run reached 97, 98 or 99 {}% (--targets)."
  assert words.format("") in capsys.readouterr().out.replace("\n", " ")
  text = {
    kind: (root / f"t.{kind}").read_text("utf-8") for kind in ("md", "tex", "html")
  }
  assert words.format("") in text["md"] and words.format("") in text["html"]
  assert words.format("\\").replace("--", "-{}-") in text["tex"]
  assert "reached by" not in text["md"] + text["tex"]


def test_cells_of_a_column_have_the_same_decimals():
  def estimate(mean, half=np.nan):
    return fa.runs.compare.Estimate(mean, half, (mean, mean))

  def written(*column):
    return list(map(str, comparison._significant(column, 1.0)))

  assert written(estimate(12.3456, 0.5), None, estimate(1.0), estimate(0.5, 0.0)) == [
    "12.35 +- 0.50",
    "-",
    "1.00",
    "0.50",
  ]
  assert written(estimate(20.0), estimate(3.0)) == ["20", "3"]


def test_every_format_writes_a_number_in_its_way(root):
  """A name that looks like a number stays as it is."""
  name = "1.5 +- 0.5"
  words = [f"{name}=two", "one", "--targets=0.85", "--out=t.md,t.tex,t.html"]
  assert compare.main(words) == 0
  text = {
    kind: (root / f"t.{kind}").read_text("utf-8") for kind in ("md", "tex", "html")
  }
  gap = 100 * (np.array(FIRST) - SECOND)[:, -1]
  mean, half = f"{-gap.mean():.2f}", f"{stats.t.ppf(0.975, 2) * stats.sem(gap):.2f}"
  assert gap.mean() < 0
  assert f"| -{mean} +- {half} |" in text["md"]
  assert rf"& $-{mean}$ $\pm$ {half} &" in text["tex"]
  assert f"<td>-{mean} \N{PLUS-MINUS SIGN} {half}</td>" in text["html"]
  assert (
    f"\n    {name} & 3 & 15 &" in text["tex"] and f"<td>{name}</td>" in text["html"]
  )
  assert "floats sent, 10$^{3}$" in text["tex"]


def test_runs_of_other_data_are_drawn_and_not_paired(root, capsys):
  assert compare.main(["one", "other", "two", "--out=t.md"]) == 0
  assert (
    "IFCA is not compared seed by seed with FedAvg: the partition differs"
  ) in capsys.readouterr().err
  assert "Not paired: IFCA, the partition differs." in (root / "t.md").read_text(
    "utf-8"
  )
  assert len(rows_of(root / "t.md", "Accuracy, protocol global")) == 3
  assert [row["run"] for row in rows_of(root / "t.md", "Difference from FedAvg")] == [
    "SCAFFOLD"
  ]


def test_runs_of_every_data_set_have_a_table(root, capsys):
  """Of the second data set no pair was tested, and nothing said so."""
  for name, algorithm, accuracy in (
    ("one_b", "scaffold", FIRST),
    ("two_b", "fedavg", SECOND),
  ):
    made_runs.write(root / name, accuracy, algorithm=algorithm, partition="Z")
  assert compare.main(["A=one", "B=two", "C=one_b", "D=two_b", "--out=t.md,t.tex"]) == 0
  assert (
    "D is not compared seed by seed with A: the partition differs; compared with it: C"
  ) in capsys.readouterr().err
  rows = [rows_of(root / "t.md", f"Difference from {name}") for name in "AD"]
  assert [[row["run"] for row in table] for table in rows] == [["B"], ["C"]]
  text = (root / "t.md").read_text("utf-8")
  assert text.count("Holm's correction for 2 tests") == 2
  assert text.count("Not paired: D, the partition differs.") == 1
  labels = re.findall(r"\\label\{tab:(\w+)\}", (root / "t.tex").read_text())
  assert len(set(labels)) == len(labels) and "differences_2" in labels


@pytest.mark.parametrize(
  "name, change",
  [
    ("metrics.csv", lambda text: text.replace("0.7", "many")),
    (
      "config.json",
      lambda text: text.replace(
        '"cohort_size"', ('"task": {"name": "x", "metrics": {}}, "cohort_size"')
      ),
    ),
  ],
)
def test_a_damaged_run_is_one_line(root, refused, name, change):
  """That names the file; both ended in a traceback."""
  path = root / "one" / name
  before = path.read_text()
  path.write_text(change(before))
  assert path.read_text() != before
  message = refused(compare, ["one", "two", "--out=t.md"])
  assert message.startswith(f"one: {name} is not as the run wrote it")
  assert not (root / "t.md").exists()


def test_notes_of_a_pair_and_bytes_of_their_own(root):
  assert compare.main(["one", "two", "--out=t.md"]) == 0
  assert "bytes" not in (root / "t.md").read_text("utf-8")
  made_runs.write(
    root / "bits", SECOND, algorithm="ifca", sent_bytes=500, cohort_size=3
  )
  assert compare.main(["one", "bits", "--out=t.md"]) == 0
  assert "IFCA: participants are drawn differently (cohort_size)." in (
    root / "t.md"
  ).read_text("utf-8")
  first, bits = rows_of(root / "t.md", "Cost of the whole run")
  assert [row["bytes sent, 10³"] for row in (first, bits)] == ["60.0", "7.5"]


def test_names_and_the_settings_of_a_sweep(root, capsys):
  runs = compare.read_runs(["rates", "Mine=one"])
  assert list(runs) == ["FedAvg client_lr=0.1", "FedAvg client_lr=0.3", "Mine"]
  assert list(compare.read_runs(["S=rates"])) == [
    "S, client_lr=0.1",
    "S, client_lr=0.3",
  ]
  assert "client_lr=9: not finished, or diverged; left out" in (capsys.readouterr().err)
  assert len(compare.read_runs(["one", str(root / "two")])) == 2
  # What differs would be long: the names of the folders, where they differ.
  for name, rate in (("a/x", 0.1), ("b/x", 0.2)):
    made_runs.write(
      root / name, FIRST, hparams={"client_lr": rate, "local_steps": round(20 * rate)}
    )
  assert list(compare.read_runs(["a/x", "b/x", "one"])) == ["a/x", "b/x", "one"]


@each(
  "words,error",
  [
    ([], "no runs: give the folders"),
    (["nowhere"], "nowhere: no such folder"),
    (["rates/client_lr=9"], "client_lr=9: holds no finished run"),
    (["rates/client_lr=7"], "rates/client_lr=7: no such folder"),
    (["A=one", "A=two"], "A=: given twice"),
    (["one", "two", "./one"], "one: given twice"),
    (["one", "--metric=acuracy"], "acuracy"),
    (["one", "--protocol=local"], "--protocol=local: FedAvg was not evaluated"),
    (["one", "--x_axis=hours"], "hours"),
    (["one", "--baseline=B"], "--baseline=B: no such run (one of FedAvg)"),
    (["one", "--targets=0.9,high"], "--targets=0.9,high: must be numbers"),
    (["one", "--targets=90"], "0.9 is 90 %"),
    (["one", "--out=a.svg"], "--out=a.svg: .svg is unknown"),
    (["one", "--out="], "--out: empty"),
    (
      ["one", "--out=one/config.json/y.md"],
      "--out=one/config.json/y.md: cannot be written",
    ),
    (["one", "--rounds=3"], "rounds"),
  ],
)
def test_wrong_use_is_one_line(root, refused, words, error):
  before = sorted(root.iterdir())
  assert error in refused(compare, words)
  assert sorted(root.iterdir()) == before
