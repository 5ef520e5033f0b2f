"""Pictures: what their lines, bands, columns and ticks show."""

import pathlib

from matplotlib import pyplot as plt
import numpy as np
import pytest

from experiments.drawing import plots
from experiments.reports import sweeps
from fedjax_alg.data.kinds import ClientKinds
from fedjax_alg.records import tables as records
from fedjax_alg.runs import pictures, styles
from tests import made_runs

NUMBERS = np.array([[0.2, 0.5, 0.6], [0.3, 0.45, 0.8], [0.1, 0.52, 0.9]])


def rows(values, metric="accuracy", protocol="global"):
  """Rows of [seeds, rounds] for ``made_runs.frames_of``."""
  return [
    {"round": n + 1, "seed": s, "protocol": protocol, metric: value}
    for s, of_seed in enumerate(values)
    for n, value in enumerate(of_seed)
  ]


def run(values):
  return made_runs.frames_of(rows(values))


def curve(values):
  return pictures.Curve(np.arange(1, values.shape[1] + 1), values)


def test_partitions_of_a_run_count_once_each():
  """As in tables, each with the mean of its seeds, which may be the same seeds."""
  table = [
    row | {"partition": part}
    for part in range(3)
    for row in rows(0.2 * part + 0.5 * NUMBERS)
  ]
  drawn = plots.curve_of(made_runs.frames_of(table), "global", "accuracy")
  assert drawn.of_partitions
  np.testing.assert_allclose(
    drawn.values, [0.2 * part + 0.5 * NUMBERS.mean(0) for part in range(3)]
  )


@pytest.fixture(name="axis")
def _axis():
  figure, axis = plt.subplots()
  yield axis
  plt.close(figure)


@pytest.fixture(name="draw_figure")
def _draw_figure(monkeypatch):
  """Calls a function of plots and gives the figure that it would save."""
  seen = []
  monkeypatch.setattr(plots, "save_figure", lambda figure, *_: seen.append(figure))

  def draw(function, *args, **options):
    function([], *args, **options)
    return seen[-1]

  yield draw
  for figure in seen:
    plt.close(figure)


def test_protocols_with_the_same_values_are_all_seen(draw_figure):
  lines = (
    draw_figure(
      plots.run_curves,
      {
        protocol: {"accuracy": NUMBERS, "loss": np.ones_like(NUMBERS)}
        for protocol in ("global", "local", "train")
      },
      np.array([1, 2, 3]),
      "a run",
    )
    .axes[0]
    .get_lines()
  )
  assert len({line.get_marker() for line in lines}) == 3
  widths = [line.get_linewidth() for line in lines]
  assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3


def words_of(figure):
  """The entries of a figure's legend."""
  return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]


def marks_of(axis):
  """(colour, x, y) of the paper's numbers in data units of y."""
  return [
    (line.get_markeredgecolor(), line.get_xdata()[0], line.get_ydata()[0])
    for line in axis.lines
    if line.get_label() in (plots.PAPER, plots.PAPER_BESIDE)
  ]


def test_the_papers_numbers_are_marked_where_they_are(draw_figure):
  """At their round, or beside the panel; two of the same side by side."""
  table = [row | {"total_floats": row["round"]} for row in rows(NUMBERS)]
  runs = dict.fromkeys(("MA-FSVRG", "GA-FSVRG"), made_runs.frames_of(table))
  marks = [
    plots.Mark("MA-FSVRG", 0.7, 2),
    plots.Mark("MA-FSVRG", 0.3),
    plots.Mark("GA-FSVRG", 0.3),
    plots.Mark("GA-FSVRG", 0.99, 4),
  ]  # three rounds were run
  figure = draw_figure(
    plots.plot_panels,
    {"(a) x": runs},
    "global",
    "accuracy",
    "t",
    marks={"(a) x": marks},
  )
  (axis,) = figure.axes
  blue, red = (styles.METHODS[label].colour for label in runs)
  (first, second, third) = marks_of(axis)
  assert first == (blue, 2, 0.7) and second[0] == blue and third[0] == red
  assert second[2] == third[2] == 0.3 and 1 < second[1] < third[1] < 1.1
  low, high = axis.get_ylim()
  assert low < 0.3 and high > 0.7  # although the lines end at 0.6 and more
  assert axis.get_title() == "(a) x"
  assert words_of(figure) == [plots.BAND, plots.PAPER, plots.PAPER_BESIDE]
  # The names stand beside the ends and those marks, apart, in their colors.
  names = {text.get_text(): text for text in axis.texts}
  assert {name: text.get_color() for name, text in names.items()} == {
    label: styles.METHODS[label].colour for label in runs
  }
  heights = [text.get_position()[1] for text in names.values()]
  assert abs(heights[0] - heights[1]) > 0.02
  assert all(text.get_position()[0] > third[1] for text in names.values())
  over = draw_figure(
    plots.plot_panels,
    {"(a) x": runs},
    "global",
    "accuracy",
    "t",
    "floats",
    {"(a) x": marks},
  )
  assert len(marks_of(over.axes[0])) == 2  # those of no round


def test_shares_have_a_linear_axis_that_ends_where_the_lines_do(draw_figure):
  near = {"x": run([[0.5, 0.9, 0.99]]), "z": run([[0.5, 0.9, 0.95]])}
  (axis,) = draw_figure(plots.plot_panels, {"p": near}, "global", "accuracy", "t").axes
  low, high = axis.get_ylim()
  assert axis.get_yscale() == "linear" and 0.99 < high <= 1.0
  assert 0.85 < low < 0.95  # the first round is not there
  # Lines of one level have an axis of two points below, in percent as in tables.
  close = {"x": run([[0.5, 0.981]]), "z": run([[0.5, 0.98]])}
  (axis,) = draw_figure(plots.plot_panels, {"p": close}, "global", "accuracy", "t").axes
  assert axis.get_ylim()[0] == pytest.approx(0.96, abs=2e-3)
  assert axis.get_ylabel() == "accuracy, %"
  assert axis.yaxis.get_major_formatter()(0.98, 0) == "98"
  # Numbers of the paper far above the lines are shown, too.
  far = draw_figure(
    plots.plot_panels,
    {"p": {"x": run([[0.1, 0.2, 0.3]])}},
    "global",
    "accuracy",
    "t",
    marks={"p": [plots.Mark("x", 0.99)]},
  )
  assert far.axes[0].get_ylim()[1] > 0.99


def test_a_bound_is_a_line_on_the_axis(draw_figure):
  """The bound of 52 % explains a picture whose lines end below it."""
  table = [row | {"loss": 1.0} for row in rows([[0.1, 0.4]])]
  runs = {"FedAvg": made_runs.frames_of(table)}
  bound = plots.Reference(0.52, "all data: 52 %")
  figure = draw_figure(
    plots.plot_panels,
    {"p": runs},
    "global",
    "accuracy",
    "t",
    below=(("global", "loss"),),
    references=[bound],
  )
  shares, losses = figure.axes
  assert shares.get_ylim()[1] > 0.52
  (line,) = [part for part in shares.lines if part.get_label() == bound.label]
  assert set(line.get_ydata()) == {0.52}
  assert bound.label not in [part.get_label() for part in losses.lines]
  assert bound.label in words_of(figure)


def test_bars_of_very_different_heights_have_a_log_axis(draw_figure):
  parts = {
    "s": {"FedAvg": [0.1, None], "FedProx": [50.0, 2.0]},
    "t": {"FedAvg": [1.0, 0.0], "FedProx": [5.0, 2.0]},
  }
  figure = draw_figure(
    plots.bars,
    parts,
    ["one", "two"],
    "t",
    "not reached",
    {"s": [None, 4.0]},
    "the paper",
  )
  far, near = figure.axes
  assert (far.get_yscale(), near.get_yscale()) == ("log", "linear")
  assert far.get_ylim()[0] < 0.1
  # What is missing has no bar, but a cross that the legend explains.
  np.testing.assert_array_equal(
    [bar.get_height() for bar in far.patches], [0.1, np.nan, 50, 2]
  )
  cross = next(line for line in far.lines if line.get_marker() == "x")
  assert cross.get_xdata()[0] == pytest.approx(0.8)
  # A height of nothing is a number.
  assert [text.get_text() for text in near.texts] == ["0"]
  assert not [line for line in near.lines if line.get_marker() == "x"]
  dashed = next(line for line in far.lines if line.get_linestyle() == "--")
  assert set(dashed.get_ydata()) == {4.0}
  low, high = dashed.get_xdata()
  assert low < 0.8 < 1.2 < high
  hatches = {bar.get_hatch() for bar in near.patches}
  assert len(hatches) == 2  # apart in grey
  assert words_of(figure) == ["FedAvg", "FedProx", "not reached", "the paper"]


def test_two_rows_of_panels_with_the_papers_numbers(draw_figure):
  wide = [
    row | {"discrepancy": 2 * of} for row, of in zip(rows(NUMBERS), NUMBERS.ravel())
  ]
  table = {"FedAvg": made_runs.frames_of(wide)}
  figure = draw_figure(
    plots.plot_panels,
    {"(a) x": table, "(b) y": table},
    "global",
    "accuracy",
    "t",
    marks={
      "(a) x": [
        plots.Mark("FedAvg", 0.879),
        plots.Mark("FedAvg", 0.767, metric="discrepancy"),
      ]
    },
    below=(("rounds", "discrepancy"),),
  )
  above, right, below, _ = figure.axes
  assert [axis.get_title() for axis in figure.axes] == ["(a) x", "(b) y", "", ""]
  np.testing.assert_allclose(below.lines[0].get_ydata(), 2 * NUMBERS.mean(0))
  assert [[y for *_, y in marks_of(axis)] for axis in (above, below, right)] == [
    [0.879],
    [0.767],
    [],
  ]  # the paper has none there


@pytest.mark.parametrize("names", [None, ("Ann", "Bob", "Cy")])
def test_bars_stand_above_their_clients(axis, names):
  plots._client_bars(axis, np.array([[1, 1], [5, 2], [0, 4]]), names)
  assert [tick.get_text() for tick in axis.get_xticklabels()] == (
    ["1", "2", "0"] if names is None else ["Bob", "Cy", "Ann"]
  )


@pytest.mark.parametrize("clients", [6, 90])
def test_clients_of_one_kind_are_side_by_side(draw_figure, clients):
  of_client = np.arange(clients) % 3
  kinds = ClientKinds(of_client, ("red", "green", "blue"), True)
  histogram = np.arange(1, 2 * clients + 1).reshape(clients, 2)
  axis = draw_figure(plots.histogram, histogram, "title", None, kinds).axes[0]
  texts = {text.get_text(): text.get_position()[0] for text in axis.texts}
  middle = np.arange(3) * clients / 3 + clients / 6 - 0.5 * (clients == 6)
  np.testing.assert_allclose([texts[name] for name in kinds.names], middle)
  lines = [line.get_xdata()[0] for line in axis.lines]
  np.testing.assert_allclose(lines, middle[:2] + clients / 6)
  if clients == 6:
    labels = [int(tick.get_text()) for tick in axis.get_xticklabels()]
    assert labels == [3, 0, 4, 1, 5, 2]  # the largest of each kind first


@pytest.mark.parametrize("lines", range(5, 10))
def test_a_legend_is_not_wider_than_its_picture(lines):
  figure, (axis, _) = plt.subplots(1, 2, figsize=(9.2, 3.4))
  runs = {f"METHOD-{i}": curve(NUMBERS[:1]) for i in range(lines)}
  pictures.draw_curves(axis, runs, "accuracy")
  plots.legend(figure)
  (legend,) = figure.legends
  figure.set_layout_engine("constrained")
  figure.canvas.draw()
  assert legend.get_window_extent().width < figure.bbox.width
  plt.close(figure)


def test_a_long_name_is_wrapped(axis):
  pictures.draw_curves(axis, {"word " * 30: curve(NUMBERS)}, "accuracy")
  plots.legend(axis.figure)
  (legend,) = axis.figure.legends
  assert (
    max(
      len(line) for text in legend.get_texts() for line in text.get_text().split("\n")
    )
    <= 48
  )


@pytest.mark.usefixtures("whole_pictures")
def test_curves_as_a_picture_and_as_pdf(tmp_path):
  curves = {"global": {"accuracy": NUMBERS, "loss": np.ones_like(NUMBERS)}}
  for name in ("one", "two"):
    paths = [tmp_path / f"{name}.png", tmp_path / f"{name}.pdf"]
    plots.run_curves(paths, curves, np.array([1, 2, 3]), "a run")
  for name, head in (("one.png", b"\x89PNG"), ("one.pdf", b"%PDF")):
    assert (tmp_path / name).read_bytes().startswith(head)
  assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_a_column_is_the_mean_of_clients_of_one_class(axis, monkeypatch):
  """1,000 clients, one without examples, and 30 columns."""
  monkeypatch.setattr(plots, "_COLUMNS", 30)
  rng = np.random.default_rng(0)
  counts = np.zeros((1000, 5), int)
  counts[np.arange(999), rng.integers(0, 5, 999)] = 20
  counts[:999] += rng.integers(0, 10, (999, 5))
  plots._client_map(axis.figure, axis, counts)
  columns = np.asarray(axis.images[0].get_array()).T
  assert columns.shape == (30, 5)
  np.testing.assert_allclose(columns.sum(1), 1)
  main = columns.argmax(1)
  assert (np.diff(main) >= 0).all() and set(main) == set(range(5))
  shares = counts[:999] / counts[:999].sum(1, keepdims=True)
  np.testing.assert_allclose(columns.mean(0), shares.mean(0), atol=0.01)


@pytest.mark.parametrize("clients, panels", [(60, 1), (61, 3)])
def test_few_clients_have_bars_and_many_a_map(draw_figure, clients, panels):
  axes = draw_figure(plots.histogram, np.full((clients, 3), 4), "title").axes
  assert len(axes) == panels  # map, colours, sizes
  if panels == 3:
    assert sum(patch.get_height() for patch in axes[1].patches) == clients


@pytest.mark.parametrize(
  "name, x", [("rounds", [1, 2]), ("floats", [110, 210]), ("seconds", [0.5, 1.0])]
)
def test_a_point_lies_at_the_mean_of_its_seeds(axis, name, x):
  table = [
    {
      "round": n,
      "seed": s,
      "protocol": "global",
      "accuracy": 0.1 * n,
      "total_floats": 100 * n + 10 * s,
      "seconds": 0.5 * n,
    }
    for n in (1, 2)
    for s in (0, 2)
  ]
  point = plots.curve_of(made_runs.frames_of(table), "global", "accuracy", name)
  assert list(point.x) == x and point.values.shape == (2, 2)
  assert {column for column, _ in plots.X_AXES.values()} <= {
    *records.TOTALS,
    *records.TIMING,
  }


def test_words_at_one_place_are_written_apart(axis):
  """Four words at one corner: none on another, on a point or outside."""
  figure = axis.figure
  figure.set_size_inches(5.0, 4.0)
  points = np.concatenate([np.full((9, 2), 0.99), [[0.0, 0.0]]])
  axis.scatter(*points.T, label="all")
  axis.legend(loc="lower right")
  figure.canvas.draw()
  plots._write_apart(
    axis,
    points,
    {word: np.array([0.99, 0.99]) for word in ("0 1", "2 3", "4 5", "6 7 8")},
  )
  boxes = [plots.Text.get_window_extent(text) for text in axis.texts]
  assert len(boxes) == 4
  frame = axis.get_window_extent()
  spots = axis.transData.transform(points)
  for number, box in enumerate(boxes):
    assert not any(box.overlaps(neighbour) for neighbour in boxes[:number])
    assert not box.count_contains(spots)
    assert frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)


def evaluated(accuracy):
  """Seeds, rounds and curves of one evaluation with an accuracy for each seed."""
  curves = {"validation": {"accuracy": np.reshape(accuracy, (-1, 1))}}
  return tuple(range(len(accuracy))), np.array([1]), curves


def settings(values, accuracy):
  """Settings with the same accuracies [seeds] at every value of two names."""
  return [
    sweeps.Setting(
      {"client_lr": value, "mu": mu},
      pathlib.Path(),
      *evaluated(accuracy),
    )
    for value in values
    for mu in ("0", "1")
  ]


@pytest.fixture(name="draw")
def _draw(draw_figure):
  return lambda *args: draw_figure(
    sweeps.draw_sweep,
    sweeps.SweepTable(settings(*args), "validation", "accuracy", "final"),
    "title",
  ).axes[0]


@pytest.mark.parametrize(
  "values,scale",
  [
    (("0.01", "0.1", "0.3"), "log"),
    (("1", "2", "4"), "linear"),
    (("0", "0.001", "1"), "linear"),
    (("adam", "sgd"), "linear"),
  ],
)
def test_ticks_are_the_swept_values(draw, values, scale):
  axis = draw(values, (0.5, 0.6))
  assert axis.get_xscale() == scale
  assert [tick.get_text() for tick in axis.get_xticklabels()] == list(values)
  places = np.array(axis.get_xticks())
  assert (
    np.diff(axis.transData.transform(np.c_[places, places])[:, 0]).min() > 40
  )  # pixels


def test_intervals_end_where_shares_do(draw):
  axis = draw(("1", "2"), (0.1, 0.99))
  ends = np.array([bar.get_segments() for bar in axis.collections])[..., 1]
  np.testing.assert_allclose((ends.min(), ends.max()), (0, 100), atol=1e-9)
  low, high = axis.get_ylim()
  assert -2 < low <= 0 and 100 <= high < 102


def test_an_interval_of_negative_numbers_is_whole(draw_figure):
  """R2 has no least value; the ends were distances below 0."""
  curves = {"validation": {"r2": np.array([[-0.5], [0.1]])}}
  setting = sweeps.Setting({"client_lr": "1"}, pathlib.Path(), (0, 1), [1], curves)
  axis = draw_figure(
    sweeps.draw_sweep,
    sweeps.SweepTable([setting], "validation", "r2", "final"),
    "title",
  ).axes[0]
  low, high = np.array(axis.collections[0].get_segments())[0, :, 1]
  assert low < -0.5 and (low + high) / 2 == pytest.approx(-0.2)


def test_lines_with_the_same_values_stand_side_by_side(draw):
  first, second = (bars.lines[0] for bars in draw(("1", "2"), (0.5, 0.6)).containers)
  np.testing.assert_array_equal(first.get_ydata(), second.get_ydata())
  assert (first.get_xdata() < second.get_xdata()).all()
  assert first.get_marker() != second.get_marker()
  assert first.get_linestyle() != second.get_linestyle()


def method_settings(grid):
  """Settings of a sweep over methods; name -> value of each."""
  return [
    sweeps.Setting(
      values,
      pathlib.Path(),
      *evaluated([0.5, 0.5 + 1 / 9]),
    )
    for values in grid
  ]


def test_swept_methods_are_lines_in_their_colors(draw_figure):
  """Methods stood on the axis, joined by a line for each rate, in the rates' colors."""
  grid = [
    {"algorithm": name, "client_lr": rate}
    for name in ("fedavg", "scaffold")
    for rate in ("0.1", "0.3")
  ]
  for order in (grid, [dict(reversed(values.items())) for values in grid]):
    axis = draw_figure(
      sweeps.draw_sweep,
      sweeps.SweepTable(method_settings(order), "validation", "accuracy", "final"),
      "title",
    ).axes[0]
    assert axis.get_xlabel() == "client_lr"
    lines = {bars.get_label(): bars.lines[0] for bars in axis.containers}
    assert {label: line.get_color() for label, line in lines.items()} == {
      label: styles.METHODS[label].colour for label in ("FedAvg", "SCAFFOLD")
    }
  several = [values | {"mu": mu} for mu in ("0", "1") for values in grid]
  labels = [sweeps.label_setting(values) for values in several]
  assert labels[1] == "FedAvg, client_lr 0.3, mu 0"


def test_methods_alone_are_points_that_nothing_joins(draw_figure):
  axis = draw_figure(
    sweeps.draw_sweep,
    sweeps.SweepTable(
      method_settings([{"algorithm": name} for name in ("fedavg", "mine", "ifca")]),
      "validation",
      "accuracy",
      "final",
    ),
    "title",
  ).axes[0]
  assert [tick.get_text() for tick in axis.get_xticklabels()] == [
    "FedAvg",
    "mine",
    "IFCA",
  ]
  assert [len(bars.lines[0].get_xdata()) for bars in axis.containers] == [1, 1, 1]
