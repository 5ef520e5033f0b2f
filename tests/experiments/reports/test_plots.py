"""Pictures: what their lines, bands and columns show."""

from matplotlib import pyplot as plt
import numpy as np
import pytest
from scipy import stats

from experiments.reports import plots

NUMBERS = np.array([[0.2, 0.5, 0.6], [0.3, 0.45, 0.8], [0.1, 0.52, 0.9]])


def rows(values, metric="accuracy", protocol="global"):
  """Rows of metrics.csv of [seeds, rounds]."""
  return [{"round": n + 1, "seed": s, "protocol": protocol, metric: value}
          for s, own in enumerate(values) for n, value in enumerate(own)]


@pytest.fixture(name="axis")
def _axis():
  figure, axis = plt.subplots()
  yield axis
  plt.close(figure)


def edges(axis):
  """Lower and upper edge of the only band, by x."""
  (band,) = axis.collections
  found = {}
  for x, y in band.get_paths()[0].vertices:
    found.setdefault(x, set()).add(float(y))
  return np.array([[min(found[x]), max(found[x])] for x in sorted(found)]).T


def test_a_band_is_the_interval_that_tables_report(axis):
  plots.draw_curves(axis, {"A": rows(NUMBERS)}, "global", "accuracy")
  low, high = stats.t.interval(
      0.95, 2, loc=NUMBERS.mean(0), scale=stats.sem(NUMBERS, axis=0))
  np.testing.assert_allclose(edges(axis), np.clip([low, high], 0, 1))
  assert high.max() > 1 > low.max()  # so that the share is cut off
  assert list(plots._named(axis.figure)) == ["A", plots.BAND]
  assert "95 % CI" in plots.BAND


def test_one_seed_has_no_band(axis):
  plots.draw_curves(axis, {"A": rows(NUMBERS[:1])}, "global", "accuracy")
  assert not axis.collections and list(plots._named(axis.figure)) == ["A"]


def test_a_loss_on_a_log_axis(axis):
  """Zeros are gaps, and a band below zero ends at the axis."""
  values = np.array([[np.nan, 1.0, 0.1, 0.0], [np.nan, 3.0, 0.5, 0.0]])
  plots.draw_curves(axis, {"A": rows(values, "loss")}, "global", "loss")
  plots.log_axis(axis)
  assert axis.get_yscale() == "log"
  np.testing.assert_array_equal(
      axis.lines[0].get_ydata(), [np.nan, 2.0, 0.3, np.nan])
  bottom, top = axis.get_ylim()
  assert 0.2 < bottom < 0.3 and 2 < top
  assert edges(axis).min() == pytest.approx(bottom)


def test_a_loss_of_zero_stays_linear(axis):
  plots.draw_curves(
      axis, {"A": rows(np.zeros((1, 3)), "loss")}, "global", "loss")
  plots.log_axis(axis)
  assert axis.get_yscale() == "linear"
  assert axis.lines[0].get_ydata().tolist() == [0, 0, 0]


@pytest.mark.parametrize("values", [(0.93, 2.3), (0.2, 2.1), (0.011, 2.0)])
def test_a_log_axis_has_several_labels(axis, values):
  plots.draw_curves(axis, {"A": rows([values], "loss")}, "global", "loss")
  plots.log_axis(axis)
  axis.figure.canvas.draw()
  low, high = axis.get_ylim()
  labels = [float(tick.get_text()) for which in ("major", "minor")
            for tick in axis.get_yticklabels(which=which)
            if tick.get_text() and low <= tick.get_position()[1] <= high]
  assert 4 <= len(set(labels)) <= 9


def test_protocols_with_the_same_values_are_all_seen(monkeypatch):
  seen = []
  monkeypatch.setattr(plots, "save", lambda figure, *_: seen.append(figure))
  plots.run_curves([], [row | {"loss": 1.0} for protocol in (
      "global", "local", "train") for row in rows(
          NUMBERS, protocol=protocol)], "a run")
  lines = seen[0].axes[0].get_lines()
  assert len({line.get_linestyle() for line in lines}) == 3
  widths = [line.get_linewidth() for line in lines]
  assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3
  plt.close(seen[0])


@pytest.mark.parametrize("names", [None, ("Ann", "Bob", "Cy")])
def test_bars_stand_above_their_clients(axis, names):
  plots._client_bars(axis, np.array([[1, 1], [5, 2], [0, 4]]), names)
  assert [tick.get_text() for tick in axis.get_xticklabels()] == (
      ["1", "2", "0"] if names is None else ["Bob", "Cy", "Ann"])


def test_a_long_name_is_wrapped(axis):
  plots.draw_curves(axis, {"word " * 30: rows(NUMBERS)}, "global", "accuracy")
  plots.legend(axis.figure)
  (legend,) = axis.figure.legends
  assert max(len(line) for text in legend.get_texts()
             for line in text.get_text().split("\n")) <= 48


def test_curves_as_a_picture_and_as_pdf(tmp_path):
  table = [row | {"loss": 1.0} for row in rows(NUMBERS)]
  for name in ("one", "two"):
    plots.run_curves([tmp_path / f"{name}.png", tmp_path / f"{name}.pdf"],
                     table, "a run")
  for name, head in (("one.png", b"\x89PNG"), ("one.pdf", b"%PDF")):
    assert (tmp_path / name).read_bytes().startswith(head)
  assert (tmp_path / "one.pdf").read_bytes() == (
      tmp_path / "two.pdf").read_bytes()


def test_a_column_is_the_mean_of_clients_of_one_class(monkeypatch):
  """1,000 clients, one without examples, and 30 columns."""
  monkeypatch.setattr(plots, "_COLUMNS", 30)
  rng = np.random.default_rng(0)
  held = np.zeros((1000, 5), int)
  held[np.arange(999), rng.integers(0, 5, 999)] = 20
  held[:999] += rng.integers(0, 10, (999, 5))
  figure, axis = plt.subplots()
  plots._client_map(figure, axis, held)
  columns = np.asarray(axis.images[0].get_array()).T
  assert columns.shape == (30, 5)
  np.testing.assert_allclose(columns.sum(1), 1)
  main = columns.argmax(1)
  assert (np.diff(main) >= 0).all() and set(main) == set(range(5))
  shares = held[:999] / held[:999].sum(1, keepdims=True)
  np.testing.assert_allclose(columns.mean(0), shares.mean(0), atol=0.01)
  plt.close(figure)


@pytest.mark.parametrize("clients, panels", [(60, 1), (61, 3)])
def test_few_clients_have_bars_and_many_a_map(
    monkeypatch, tmp_path, clients, panels):
  seen = []
  monkeypatch.setattr(plots, "save", lambda figure, path: seen.append(figure))
  plots.histogram(tmp_path / "x.png", np.full((clients, 3), 4), "title")
  assert len(seen[0].axes) == panels  # map, colours, sizes
  if panels == 3:
    counts = [patch.get_height() for patch in seen[0].axes[1].patches]
    assert sum(counts) == clients
  plt.close(seen[0])
