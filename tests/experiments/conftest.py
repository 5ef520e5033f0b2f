"""What the tests of the commands share."""

import io
import pathlib

from matplotlib import pyplot as plt
import pytest

from experiments.cli import writer
from experiments.drawing import plots
from experiments.reproduction import suite
from fedjax_alg import files
from tests import made_runs


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs, one_device):
  """Equal programs are compiled once, for one device."""
  del share_programs, one_device


@pytest.fixture(autouse=True)
def fixture_without_pictures(no_pictures):
  """Runs draw theirs only for fixtures of a whole module."""
  del no_pictures


@pytest.fixture(name="whole_pictures")
def fixture_whole_pictures():
  """Figures are drawn as users see them."""


@pytest.fixture(autouse=True)
def fixture_small_pictures(request, monkeypatch):
  """Figures are drawn once, coarsely and without a layout: a fifth of the work.

  What cannot be drawn fails all the same. Tests that ask for ``whole_pictures``
  see those of users.
  """
  if "whole_pictures" not in request.fixturenames:
    monkeypatch.setattr(plots, "save_figure", _save_small)


#: What tells a PDF of Matplotlib.
_PDF = b"%PDF (Matplotlib pdf backend"


def _save_small(figure, *paths):
  """As ``plots.save_figure``; ``files.picture`` takes the files for its."""
  picture = io.BytesIO()
  figure.savefig(picture, dpi=20, format="png", pil_kwargs={"dpi": (130, 130)})
  for path in paths:
    with files.replacing(path) as partial:
      partial.write_bytes(_PDF if path.suffix == ".pdf" else picture.getvalue())
  plt.close(figure)


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
  """The runs of figures are made up, in no time, with all files of a command."""

  def make_up(configs, **_):
    for config in configs:
      folder = pathlib.Path(config.out_dir)
      folder.mkdir(parents=True, exist_ok=True)
      for name in ("partition.json", "partition.npz", *writer.added_files()):
        (folder / name).write_text("made up", "utf-8")
      made_runs.finish(config)

  monkeypatch.setattr(suite.sweeps, "run_configs", make_up)
