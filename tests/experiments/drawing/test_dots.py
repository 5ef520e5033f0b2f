"""Pictures of tables of numbers: what their dots, marks, rows and cells show."""

import math

from matplotlib import pyplot as plt
import numpy as np
import pytest

from experiments.drawing import dots, plots
from fedjax_alg.runs import styles


@pytest.fixture(name="draw_axes")
def _draw_axes(monkeypatch):
  """Draws numbers and gives the axes of all pictures."""
  seen = []
  for module in (plots, dots):
    monkeypatch.setattr(module, "save_figure", lambda figure, *_: seen.append(figure))

  def draw(table, function=dots.draw_dots, **options):
    seen.clear()
    if function is dots.draw_dots:
      options = {"look": dots.Look("accuracy, %", **options)}
    function([], table, "title", **options)
    return [axis for figure in seen for axis in figure.axes]

  yield draw
  for figure in seen:
    plt.close(figure)


def rows_of(axis):
  return [tick.get_text() for tick in axis.get_yticklabels()]


def words_of(axis):
  (legend,) = axis.figure.legends
  return [text.get_text() for text in legend.get_texts()]


def points(axis, marker="o"):
  """(x, y) of every marker, with its color."""
  return {
    (line.get_xdata()[0], line.get_ydata()[0]): line.get_color()
    for line in axis.lines
    if len(line.get_xdata()) == 1 and line.get_marker() == marker
  }


def test_a_table_is_read_as_it_was_written(tmp_path):
  table = [
    dots.Dot("(a) MNIST", "FedAvg", 89.5, 0.25, 90.0, "2 groups", (89.25, 89.75)),
    dots.Dot("", "pFedZO", note="10 of 1,000 rounds"),
  ]
  path = tmp_path / f"table2{dots.SUFFIX}"
  dots.write_dots(path, table)
  first, second = dots.read_dots(path)
  assert first == table[0]
  assert second[:2] == ("", "pFedZO") and second.note == table[1].note
  assert all(math.isnan(number) for number in second[2:5])
  assert dots.IS_TABLE(path)


def test_dots_are_the_numbers_and_their_intervals(draw_axes):
  (axis,) = draw_axes(
    [
      dots.Dot("(a) MNIST", "mine", 90.0),
      dots.Dot("(a) MNIST", "pFedMe, w_k", 95.0, 0.5, 96.9),
      dots.Dot("(a) MNIST", "pFedZO", note="10 of 1,000 rounds"),
      dots.Dot("(a) MNIST", "AFL", published=97.0),
    ],
    interval="the interval",
    published="the paper",
  )
  assert axis.get_title() == "(a) MNIST"
  # The best stands above; what was not run is not there.
  assert rows_of(axis) == ["pFedMe, w_k", "mine", "pFedZO"]
  assert points(axis) == {
    (95.0, 0): styles.METHODS["pFedMe"].colour,
    (90.0, 1): styles.COLOURS[0],
  }
  assert [
    list(line.get_xdata())
    for line in axis.lines
    if len(line.get_xdata()) == 2 and line.get_color() != "0.75"
  ] == [[94.5, 95.5]]
  assert list(points(axis, "D")) == [(96.9, 0)]
  texts = {text.get_text(): text.get_position()[1] for text in axis.texts}
  assert texts == {"95.0": 0, "90.0": 1, "10 of 1,000 rounds": 2}
  assert words_of(axis) == ["the interval", "here", "the paper"]


def test_no_interval_reaches_beyond_the_most(draw_axes):
  (axis,) = draw_axes(
    [dots.Dot("a", "FedAvg", 97.0, 10.0), dots.Dot("a", "FedProx", 90.0)], most=100.0
  )
  ends = [
    x for line in axis.lines if len(line.get_xdata()) == 2 for x in line.get_xdata()
  ]
  assert max(ends) == 100.0


def test_what_is_far_from_all_others_is_a_number(draw_axes):
  """It would squeeze them; an interval that goes on has an arrow."""
  table = [dots.Dot("a", f"method {i}", 90.0 + i, 0.1) for i in range(5)]
  table += [dots.Dot("a", "far", 40.0), dots.Dot("a", "rough", 91.5, 60.0)]
  (axis,) = draw_axes(table, most=100.0)
  low, high = axis.get_xlim()
  assert 80 < low < 90 and 94 < high <= 101
  assert "\N{LEFTWARDS ARROW}" in [text.get_text() for text in axis.texts]
  assert "40.0" in [text.get_text() for text in axis.texts]
  assert points(axis, "<")
  # A published number is always shown.
  (axis,) = draw_axes([*table, dots.Dot("a", "claimed", 92.0, published=30.0)])
  assert axis.get_xlim()[0] < 30 and points(axis, "D")


@pytest.mark.parametrize("first", ["high", "low", ""])
def test_rows_are_sorted_and_named_once(draw_axes, first):
  table = [
    dots.Dot(panel, row, number)
    for panel in "ab"
    for row, number in (("x", 2.0), ("y", 3.0), ("z", 1.0))
  ]
  first_axis, second_axis = draw_axes(table, first=first)
  expected = {"high": ["y", "x", "z"], "low": ["z", "x", "y"], "": ["x", "y", "z"]}
  assert rows_of(first_axis) == expected[first]
  assert first_axis.get_ylim() == second_axis.get_ylim() and not rows_of(second_axis)
  for row, number in (("x", 2.0), ("y", 3.0), ("z", 1.0)):
    assert (number, expected[first].index(row)) in points(second_axis)
  are_named = [
    axis.yaxis.get_tick_params()["labelleft"] for axis in (first_axis, second_axis)
  ]
  assert are_named == [True, False]


def test_panels_with_other_rows_are_sorted_for_themselves(draw_axes):
  first_axis, second_axis = draw_axes(
    [
      *(dots.Dot("a", row, number) for row, number in (("x", 2), ("y", 3))),
      *(dots.Dot("b", row, number) for row, number in (("x", 2), ("y", 1), ("z", 4))),
    ]
  )
  assert (rows_of(first_axis), rows_of(second_axis)) == (["y", "x"], ["z", "x", "y"])


def test_several_dots_of_a_row_lie_below_each_other(draw_axes):
  table = [dots.Dot("a", "x", 0.5 + 0.1 * k, 0.3, name=f"K = {k}") for k in range(3)]
  (axis,) = draw_axes([*table, dots.Dot("a", "y", 0.1, name="K = 0")])
  marked = [points(axis, marker) for marker in styles.MARKERS[:3]]
  assert [min(y for _, y in points_of) for points_of in marked] == [
    pytest.approx(y) for y in (-0.8 / 3, 0, 0.8 / 3)
  ]
  assert [set(points_of.values()) for points_of in marked] == [
    {color} for color in styles.COLOURS[:3]
  ]
  assert words_of(axis) == ["K = 0", "K = 1", "K = 2", "95 % CI of the mean"]


def test_panels_may_have_one_range(draw_axes):
  table = [dots.Dot("a", "x", 1.0), dots.Dot("b", "x", 1000.0)]
  for same in (False, True):
    first_axis, second_axis = draw_axes(table, same_axis=same, x_scale="log")
    assert (first_axis.get_xlim() == second_axis.get_xlim()) == same
    assert first_axis.get_xscale() == "log"


def test_many_panels_are_on_several_pictures(tmp_path):
  table = [dots.Dot(panel, "x", 1.0) for panel in "abc"]
  look = dots.Look("x", panels=2)
  pages = dots.draw_dots([tmp_path / "fig.png", tmp_path / "fig.pdf"], table, "t", look)
  names = [[path.name for path in paths] for paths in pages]
  assert names == [["fig.png", "fig.pdf"], ["fig_2.png", "fig_2.pdf"]]
  assert all(path.is_file() for paths in pages for path in paths)


@pytest.mark.parametrize("table", [[], [dots.Dot("a", "x", note="not reached")]])
def test_no_number_is_no_picture(table):
  with pytest.raises(dots.NothingToDraw):
    dots.draw_dots([], table, "t", dots.Look("x"))


def test_gains_are_white_at_none_and_blue_above(draw_axes):
  """A reader who takes orange for better would choose the wrong method."""
  gains = {"none": 0.0, "up": 12.4, "down": -40.0}
  blocks = {"clusters": ["none", "up"], "personal": ["absent", "down"]}
  (axis,) = draw_axes(
    [
      dots.Dot("digits", "FedAvg", 85.2, name="rotate"),
      *(
        dots.Dot(
          "digits", row, gain, name="rotate", note=dots.UNCLEAR if not gain else ""
        )
        for row, gain in gains.items()
      ),
    ],
    dots.draw_gain_map,
    blocks=blocks,
    columns={"rotate": "rotated images", "noise": "noisy images"},
    reference="FedAvg",
    words="note",
  )
  assert rows_of(axis) == ["FedAvg", "up", "none", "down"]  # sorted in their block
  height = dict(zip(rows_of(axis), axis.get_yticks()))
  at = {patch.get_y() + 0.5: patch for patch in axis.patches}
  red, green, blue, _ = at[height["up"]].get_facecolor()
  assert red < green < blue < 1
  assert at[height["none"]].get_facecolor()[:3] == pytest.approx((1, 1, 1), abs=0.01)
  red, green, blue, _ = at[height["down"]].get_facecolor()
  assert red > green > blue
  texts = {text.get_text(): text for text in axis.texts}
  assert set(texts) == {"85 %", "+12", "0", "-40", *blocks}
  assert (texts["0"].get_color(), texts["+12"].get_color()) == ("0.55", "black")
  assert height["none"] < texts["personal"].xy[1] < height["down"]
  assert len(axis.get_xticks()) == 1  # noise was not run
  with pytest.raises(dots.NothingToDraw, match="FedAvg"):
    dots.draw_gain_map([], [], "t", blocks, {}, "FedAvg", "")


def test_single_values_are_ticks(draw_axes):
  (axis,) = draw_axes([dots.Dot("a", "x", 2.0, 1.0, values=(1.0, 2.0, 3.0))])
  (ticks,) = [line for line in axis.lines if len(line.get_xdata()) == 3]
  np.testing.assert_allclose(ticks.get_xdata(), [1, 2, 3])
  assert "single runs" in words_of(axis)
