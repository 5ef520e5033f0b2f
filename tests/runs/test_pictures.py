"""What the lines, bands and ticks of curves show."""

import matplotlib
import numpy as np
import pytest
from scipy import stats

from fedjax_alg import metrics
from fedjax_alg.runs import pictures

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after the backend)

NUMBERS = np.array([[0.2, 0.5, 0.6], [0.3, 0.45, 0.8], [0.1, 0.52, 0.9]])


def curve(values, of_partitions=False):
  """A curve over rounds of [seeds, rounds]."""
  return pictures.Curve(np.arange(1, values.shape[1] + 1), values, of_partitions)


def labels_of(axis):
  pictures.decorate(axis, "accuracy", "title")
  return [text.get_text() for text in axis.get_legend().get_texts()]


@pytest.fixture(name="axis")
def _axis():
  figure, axis = plt.subplots()
  yield axis
  plt.close(figure)


def edges(axis):
  """Lower and upper edge of the only band, by x."""
  (band,) = axis.collections
  bounds = {}
  for x, y in band.get_paths()[0].vertices:
    bounds.setdefault(x, set()).add(float(y))
  return np.array([[min(bounds[x]), max(bounds[x])] for x in sorted(bounds)]).T


def test_a_band_is_the_interval_that_tables_report(axis):
  pictures.draw_curves(axis, {"A": curve(NUMBERS)}, "accuracy")
  low, high = stats.t.interval(
    0.95, 2, loc=NUMBERS.mean(0), scale=stats.sem(NUMBERS, axis=0)
  )
  np.testing.assert_allclose(edges(axis), np.clip([low, high], 0, 1))
  assert high.max() > 1 > low.max()  # so that the share is cut off
  assert labels_of(axis) == ["A", pictures.BAND]
  assert "95 % CI" in pictures.BAND


def test_a_band_of_several_partitions_is_over_their_means(axis):
  means = np.array([0.2 * part + 0.5 * NUMBERS.mean(0) for part in range(3)])
  pictures.draw_curves(axis, {"A": curve(means, of_partitions=True)}, "accuracy")
  np.testing.assert_allclose(axis.lines[0].get_ydata(), means.mean(0))
  np.testing.assert_allclose(
    edges(axis),
    np.clip(
      stats.t.interval(0.95, 2, loc=means.mean(0), scale=stats.sem(means, axis=0)), 0, 1
    ),
  )
  assert labels_of(axis) == ["A", pictures.BAND_OF_PARTITIONS]


@pytest.mark.parametrize(
  "points, lines", [(100, 7), (300, 13), (13, 13), (20, 1), (4, 9), (1, 3)]
)
def test_equal_lines_have_their_markers_at_other_rounds(axis, points, lines):
  runs = {str(i): curve(np.full((1, points), 0.5)) for i in range(lines)}
  pictures.draw_curves(axis, runs, "accuracy")
  marked = [set(line.get_markevery()) for line in axis.lines]
  assert all(places and max(places) < points for places in marked)
  if points >= lines:
    assert sum(map(len, marked)) == len(set().union(*marked))
  assert max(map(len, marked)) <= 10
  # The more of a line is drawn, the lower it lies.
  solid = [line.get_zorder() for line in axis.lines if line.get_linestyle() == "-"]
  assert max(solid) == min(line.get_zorder() for line in axis.lines)


def test_few_rounds_have_no_half_rounds_between_them(axis):
  pictures.draw_curves(axis, {"A": curve(NUMBERS[:, :3])}, "accuracy")
  axis.figure.set_size_inches(6, 3)
  np.testing.assert_array_equal(
    [x for x in axis.get_xticks() if 1 <= x <= 3], [1, 2, 3]
  )


def test_one_evaluation_has_a_bar(axis):
  """A band of one point has no area, and its legend said that there was one."""
  runs = {"A": curve(NUMBERS[:, :1]), "B": curve(NUMBERS[:, 1:2] + 0.1)}
  pictures.draw_curves(axis, runs, "accuracy")
  for bar, values in zip(axis.collections, (NUMBERS[:, 0], NUMBERS[:, 1] + 0.1)):
    ends = stats.t.interval(0.95, 2, loc=values.mean(), scale=stats.sem(values))
    np.testing.assert_allclose(bar.get_segments()[0][:, 1], np.clip(ends, 0, 1))
  assert len(axis.collections) == 2
  assert labels_of(axis) == ["A", "B", pictures.BAND]


def test_one_seed_has_no_band(axis):
  pictures.draw_curves(axis, {"A": curve(NUMBERS[:1])}, "accuracy")
  assert not axis.collections and labels_of(axis) == ["A"]


@pytest.mark.parametrize("lines", [pictures.MOST_BANDS, pictures.MOST_BANDS + 1])
def test_bands_of_many_lines_would_hide_each_other(axis, lines):
  runs = {f"A{i}": curve(NUMBERS) for i in range(lines)}
  runs["one seed"] = curve(NUMBERS[:1])
  pictures.draw_curves(axis, runs, "accuracy")
  assert len(axis.collections) == lines
  if lines > pictures.MOST_BANDS:  # bars at the ends, beside each other
    ends = [bar.get_segments()[0] for bar in axis.collections]
    assert {x for segment in ends for x, _ in segment} == {NUMBERS.shape[1]}
    starts = [
      bar.get_transform().transform(segment[0])[0]
      for bar, segment in zip(axis.collections, ends)
    ]
    assert np.all(np.diff(starts) > 2)


def test_a_running_mean_lies_above_what_it_is_of(axis):
  values = np.array([[0.0, 1.0, 0.0, 1.0]])
  pictures.draw_curves(axis, {"A": curve(values)}, "accuracy", window=2)
  raw, smooth = axis.lines
  np.testing.assert_allclose(raw.get_ydata(), values[0])
  np.testing.assert_allclose(smooth.get_ydata(), [0, 0.5, 0.5, 0.5])
  assert raw.get_alpha() < 1 and labels_of(axis) == ["A"]


def test_a_band_is_that_of_its_line(axis):
  """Of running means, and the axis of a single line has room for it."""
  values = np.array([[0.5, 0.8, 0.6, 0.8, 0.6], [0.5, 0.6, 0.8, 0.6, 0.8]])
  little = 0.5 + 0.1 * (values - 0.5)
  pictures.draw_curves(axis, {"A": curve(little)}, "accuracy", window=2)
  (band,) = axis.collections
  top = band.get_paths()[0].get_extents().y1
  means = (little[:, 1:] + little[:, :-1]) / 2
  half = metrics.half_width_95(means)
  assert top == pytest.approx((means.mean(0) + half).max()) and top < 0.9
  raw = metrics.half_width_95(little)
  assert top < (little.mean(0) + raw).max() - 0.01
  pictures.fit_shares(axis, [values], [])
  low, high = axis.get_ylim()
  assert low < values.mean(0)[1:].min() - 0.3 and high == 1.0
  pictures.fit_shares(axis, [values], [], window=2)  # the two are equal from round 3
  assert axis.get_ylim()[0] > 0.6


def test_names_at_the_ends_of_lines_do_not_overlap(axis):
  """Those of the same end are moved apart, the others stay where their line ends."""
  ends = {"A": 0.5, "B": 0.5, "C": 0.501, "far": 0.9}
  runs = {name: curve(np.array([[0.1, end]])) for name, end in ends.items()}
  pictures.draw_curves(axis, runs, "accuracy")
  axis.set_ylim(0, 1)
  pictures.label_ends(axis, runs)
  places = {text.get_text(): text.get_position()[1] for text in axis.texts}
  assert set(places) == set(runs) and places["far"] == pytest.approx(0.9)
  boxes = [text.get_window_extent() for text in axis.texts]
  assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
  colors = {line.get_label(): line.get_color() for line in axis.lines}
  assert {text.get_text(): text.get_color() for text in axis.texts} == colors


def test_the_axis_of_shares_leaves_out_the_first_rounds(axis):
  values = np.array([[0.1, 0.5, 0.9, 0.91, 0.92, 0.93, 0.92, 0.93]])
  pictures.draw_curves(axis, {"A": curve(values)}, "accuracy")
  pictures.fit_shares(axis, [values], [])
  low, high = axis.get_ylim()
  assert 0.85 < low < 0.91 and 0.93 < high < 0.95
  pictures.fit_shares(axis, [values], [0.5, 0.99])
  low, high = axis.get_ylim()
  assert low < 0.5 and high > 0.99


def test_a_loss_on_a_log_axis(axis):
  """Zeros are gaps, and a band below zero ends at the axis."""
  values = np.array([[np.nan, 1.0, 0.1, 0.0], [np.nan, 3.0, 0.5, 0.0]])
  pictures.draw_curves(axis, {"A": curve(values)}, "loss")
  pictures.log_axis(axis)
  assert axis.get_yscale() == "log"
  np.testing.assert_array_equal(axis.lines[0].get_ydata(), [np.nan, 2.0, 0.3, np.nan])
  bottom, top = axis.get_ylim()
  assert 0.2 < bottom < 0.3 and 2 < top
  assert edges(axis).min() == pytest.approx(bottom)


def test_a_loss_of_zero_stays_linear(axis):
  pictures.draw_curves(axis, {"A": curve(np.zeros((1, 3)))}, "loss")
  pictures.log_axis(axis)
  assert axis.get_yscale() == "linear"
  assert axis.lines[0].get_ydata().tolist() == [0, 0, 0]


@pytest.mark.parametrize("values", [(0.93, 2.3), (0.2, 2.1), (0.011, 2.0)])
def test_a_log_axis_has_several_labels(axis, values):
  pictures.draw_curves(axis, {"A": curve(np.array([values]))}, "loss")
  pictures.log_axis(axis)
  axis.figure.canvas.draw()
  low, high = axis.get_ylim()
  labels = [
    float(tick.get_text())
    for which in ("major", "minor")
    for tick in axis.get_yticklabels(which=which)
    if tick.get_text() and low <= tick.get_position()[1] <= high
  ]
  assert 4 <= len(set(labels)) <= 9


@pytest.mark.parametrize(
  "ends, scale, unit, second",
  [((4.0, 3.0), "linear", "seconds", 1), ((36000.0, 3600.0), "log", "hours", 3600)],
)
def test_axes_of_costs_are_in_hours_and_logarithmic_where_a_line_is_short(
  axis, ends, scale, unit, second
):
  runs = {
    label: pictures.Curve(end * np.arange(1, 5) / 4, np.full((1, 4), 0.5))
    for label, end in zip(("FedAvg", "FedProx"), ends)
  }
  # A run without the protocol has no line.
  runs["FSVRG"] = pictures.Curve(np.empty(0), np.empty((0, 0)))
  pictures.draw_curves(axis, runs, "accuracy", "simulated_s")
  assert axis.get_xscale() == scale and axis.get_xlabel().startswith(unit)
  assert [line.get_xdata()[-1] for line in axis.lines] == [end / second for end in ends]
