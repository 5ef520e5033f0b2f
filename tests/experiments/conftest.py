"""What the tests of the commands share."""

import pytest

from experiments.reproduction import suite
from tests import made_runs


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs, one_device):
  """Equal programs are compiled once, for one device."""
  del share_programs, one_device


@pytest.fixture(autouse=True)
def fixture_without_pictures(no_pictures):
  """Runs draw theirs only for fixtures of a whole module."""
  del no_pictures


@pytest.fixture(name="refused")
def fixture_refused(capsys):
  """Gives the one line with which a command ends, after "error: "."""

  def line(command, words, status=2):
    capsys.readouterr()
    assert command.main(words) == status
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1, message
    return message.removeprefix("error: ")

  return line


@pytest.fixture(name="made_up")
def fixture_made_up(monkeypatch):
  """The runs of figures are made up, in no time."""
  monkeypatch.setattr(
    suite.sweeps,
    "run_all",
    lambda configs, **_: [made_runs.finish(config) for config in configs],
  )
