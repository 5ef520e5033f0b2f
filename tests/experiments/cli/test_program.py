import re
import sys

import pytest

from experiments import __main__ as commands
from experiments.cli import program
from tests.test_packaging import ROOT

HELP = """Compares (python -m experiments.sweep), see experiments.run.
Then fedjax-alg prepare mnist; the folder out/experiments.run is kept, and
experiments.cli and fedjax-alg itself are no commands."""


@pytest.mark.parametrize(
  "argv0,form",
  [
    ("/usr/bin/fedjax-alg", "fedjax-alg {}"),
    ("C:/Scripts/fedjax-alg.exe", "fedjax-alg {}"),
    ("/src/experiments/__main__.py", "python -m experiments {}"),
    ("/src/experiments/run.py", "python -m experiments.{}"),
  ],
)
def test_commands_are_named_as_they_were_started(monkeypatch, argv0, form):
  monkeypatch.delenv("FEDJAX_ALG_PROGRAM", raising=False)
  monkeypatch.setattr(sys, "argv", [argv0, "run"])
  assert program.name("tune") == form.format("tune")
  sweep, run, prepare = map(form.format, ("sweep", "run", "prepare"))
  assert program.as_typed(HELP) == (
    f"Compares ({sweep}), see {run}.\n"
    f"Then {prepare} mnist; the folder out/experiments.run is kept, and\n"
    "experiments.cli and fedjax-alg itself are no commands."
  )


def test_the_launcher_says_its_own_name(monkeypatch):
  monkeypatch.setenv("FEDJAX_ALG_PROGRAM", "./launch.sh")
  assert program.name("run") == "./launch.sh run"
  assert program.name() == "./launch.sh"


def test_help_lists_every_command(monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["/usr/bin/fedjax-alg"])
  assert commands.main([]) == 0
  output = capsys.readouterr().out
  assert output.startswith("usage: fedjax-alg COMMAND [flags]\n")
  for path in (ROOT / "experiments").glob("[a-z]*.py"):
    assert re.search(rf"^  .*\b{path.stem}\b", output, re.M)


def test_a_command_is_run_with_the_words_after_it(monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["/usr/bin/fedjax-alg"])
  assert commands.main(["publish", "--paper=nope"]) == 2
  assert "nope" in capsys.readouterr().err
  assert commands.main(["sweep", "--help"]) == 0
  assert "fedjax-alg sweep --algorithm=fedavg" in capsys.readouterr().out
  assert commands.main(["fly"]) == 2
  message = capsys.readouterr().err
  assert message.startswith("error: COMMAND=fly: must be one of ")
  assert "diversified" in message
  for word, meant in (("sweeep", "sweep"), ("train", "run")):
    assert commands.main([word]) == 2
    assert capsys.readouterr().err.endswith(f"did you mean '{meant}'?\n")
