"""The picture of a sweep: its ticks, its intervals, and lines that agree."""

import pathlib

import numpy as np
import pytest

from experiments.reports import plots, sweeps


def settings(values, accuracy):
  """Settings with the same accuracies [seeds] at every value of two names."""
  return [sweeps.Setting(
      {"client_lr": value, "mu": mu}, pathlib.Path(), [
          {"round": 1, "seed": seed, "protocol": "validation",
           "accuracy": share} for seed, share in enumerate(accuracy)])
          for value in values for mu in ("0", "1")]


@pytest.fixture(name="draw")
def _draw(monkeypatch):
  seen = []
  monkeypatch.setattr(plots, "save", lambda figure, *_: seen.append(figure))

  def draw(*args):
    sweeps.draw(pathlib.Path(), sweeps.Sweep(
        settings(*args), "validation", "accuracy", "final"), "title")
    return seen[-1].axes[0]

  yield draw
  for figure in seen:
    plots.plt.close(figure)


@pytest.mark.parametrize("values,scale", [
    (("0.01", "0.1", "0.3"), "log"), (("1", "2", "4"), "linear"),
    (("0", "0.001", "1"), "linear"), (("adam", "sgd"), "linear")])
def test_ticks_are_the_swept_values(draw, values, scale):
  axis = draw(values, (0.5, 0.6))
  assert axis.get_xscale() == scale
  assert [tick.get_text() for tick in axis.get_xticklabels()] == list(values)
  places = np.array(axis.get_xticks())
  assert np.diff(axis.transData.transform(
      np.c_[places, places])[:, 0]).min() > 40  # pixels


def test_intervals_end_where_shares_do(draw):
  axis = draw(("1", "2"), (0.1, 0.99))
  ends = np.array([bar.get_segments() for bar in axis.collections])[..., 1]
  np.testing.assert_allclose((ends.min(), ends.max()), (0, 100), atol=1e-9)
  low, high = axis.get_ylim()
  assert -2 < low <= 0 and 100 <= high < 102


def test_lines_with_the_same_values_stand_side_by_side(draw):
  one, two = (bars.lines[0] for bars in draw(("1", "2"), (0.5, 0.6)).containers)
  np.testing.assert_array_equal(one.get_ydata(), two.get_ydata())
  assert (one.get_xdata() < two.get_xdata()).all()
  assert one.get_marker() != two.get_marker()
  assert one.get_linestyle() != two.get_linestyle()
