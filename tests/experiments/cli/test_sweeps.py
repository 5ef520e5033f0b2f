"""The grid of a command: how it is read, and which settings share a program.
"""

import pathlib

import pytest

from experiments.cli import config as config_lib
from experiments.cli import sweeps
from fedjax_alg.runs.plan import by_program

ROOT = pathlib.Path("somewhere")
WORDS = ("--algorithm=fedprox", "--dataset=digits", "--rounds=3")


def test_a_grid_is_read_as_it_is_written():
  assert sweeps.read_grid(
      ["client_lr=0.01,0.1,1", "hidden=8,8;16", "mu=0"]) == {
          "client_lr": ["0.01", "0.1", "1"], "hidden": ["8,8", "16"],
          "mu": ["0"]}


@pytest.mark.parametrize("words, said", [
    (["client_lr"], "--sweep=client_lr: must be NAME=VALUE,VALUE"),
    (["client_lr="], "--sweep=client_lr=: must be NAME"),
    (["=1,2"], "--sweep==1,2: must be NAME"),
    (["mu=0,1", "mu=2"], "--sweep=mu: given twice"),
    (["mu=0,1,0"], "--sweep=mu=0,1,0: has a value twice"),
])
def test_what_is_no_grid(words, said):
  with pytest.raises(config_lib.UsageError, match=f"^{said}"):
    sweeps.read_grid(words)


@pytest.mark.parametrize("word", ["--mu=0.3", "-mu", "--mu"])
def test_a_flag_beside_a_grid_of_its_values(word):
  sweeps.refuse_given(["--must=1", "mu", "--flagfile=x"], {"mu": ["0", "1"]})
  with pytest.raises(config_lib.UsageError, match="^--mu.*: never run, .* "
                     "--sweep=mu=0,1; give one of the two"):
    sweeps.refuse_given([*WORDS, word, "0.3"], {"mu": ["0", "1"]})


def test_a_setting_is_a_run_of_its_own():
  found = sweeps.configs(
      WORDS, {"client_lr": ["0.1", "1"], "local_steps": ["2", "3"]}, ROOT)
  assert [c.out_dir for c in found] == [
      str(ROOT / f"client_lr={rate},local_steps={steps}")
      for rate in ("0.1", "1") for steps in (2, 3)]
  alone = config_lib.parse([*WORDS, "--client_lr=1", "--local_steps=2",
                            f"--out_dir={found[2].out_dir}"])
  assert found[2] == alone and found[2].identity() == alone.identity()
  assert by_program(found) == [[0, 2], [1, 3]]


def test_values_that_are_zero_or_strings_part_the_grid():
  found = sweeps.configs(WORDS, {"mu": ["0", "0.1", "1"]}, ROOT)
  assert [len(part) for part in by_program(found)] == [1, 2]
  found = sweeps.configs(WORDS, {"partition": ["iid", "classes"]}, ROOT)
  assert [len(part) for part in by_program(found)] == [1, 1]


@pytest.mark.parametrize("words, grid, said", [
    ((), {"seed": ["0", "1"]}, "--sweep=seed: cannot be varied"),
    ((), {"resume": ["true"]}, "--sweep=resume: cannot be varied"),
    ((), {"out_dir": ["a"]}, "--sweep=out_dir: cannot be varied"),
    ((), {"rounds": ["2"]}, "--sweep=rounds: cannot be varied"),
    ((), {"client_lr": ["-1"]}, "--client_lr=-1.0: must be more than 0"),
    ((), {"nothing": ["1"]}, "--nothing: unknown flag"),
    ((), {"local_steps": ["x"]}, "--local_steps=x: must be a whole number"),
    (("--dry_run",), {"mu": ["0"]}, "--dry_run: not of a sweep"),
])
def test_refused_with_the_flag(words, grid, said):
  with pytest.raises(config_lib.UsageError) as error:
    sweeps.configs([*WORDS, *words], grid, ROOT)
  assert said in str(error.value) and "\n" not in str(error.value)


def test_every_setting_is_checked_for_warnings(tmp_path, monkeypatch, capsys):
  class Compiled(Exception):
    pass

  def stops(prepared):
    raise Compiled

  monkeypatch.setattr(sweeps, "compile_together", stops)
  with pytest.raises(Compiled):
    sweeps.play_all(sweeps.configs(
        ["--algorithm=ditto", "--dataset=digits", "--personal_lr=0.1"],
        {"lam": ["0.5", "30"]}, tmp_path))
  assert capsys.readouterr().err.startswith(
      "warning: --personal_lr=0.1 with --lam=30: ")
