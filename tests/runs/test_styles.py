"""Colours and dashes: what readers can tell apart, in colour and in grey."""

import itertools

from matplotlib import colors
import numpy as np
import pytest

from experiments import publish
from experiments.reproduction.analytic import figures as analytic
from experiments.reproduction.fedgroup import figures as fedgroup
from fedjax_alg import registry
from fedjax_alg.runs import styles

pytestmark = pytest.mark.fast

#: Linear RGB as seen without red, green or blue cones (Machado et al., 2009,
#: severity 1).
_SEEN = {
  "all cones": np.eye(3),
  "no red": [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  "no green": [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
  ],
  "no blue": [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.303900],
  ],
}


def lab(colour, seen="all cones"):
  """CIE L*a*b* of a colour (sRGB, white point D65)."""
  rgb = np.array(colors.to_rgb(colour))
  linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
  linear = np.clip(_SEEN[seen] @ linear, 0, 1)
  x, y, z = (
    np.array(
      [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    @ linear
    / [0.9505, 1.0, 1.089]
  )
  f = [
    v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in (x, y, z)
  ]
  return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", _SEEN)
def test_everybody_can_tell_the_colours_apart(seen):
  """A just noticeable difference is 2.3."""
  for first, second in itertools.combinations(styles.COLOURS, 2):
    assert np.linalg.norm(lab(first, seen) - lab(second, seen)) > 15, (first, second)


def test_the_colours_stay_apart_in_grey_and_on_white():
  grey = sorted(lab(colour)[0] for colour in styles.COLOURS)
  assert np.diff(grey).min() > 4 and grey[-1] < 75
  assert lab("white")[0] == pytest.approx(100, abs=0.01)


def test_every_method_has_a_style_of_its_own():
  entries = [
    entry for entry in registry.ALGORITHMS.values() if any(entry.display.style)
  ]
  for colour, dash in (entry.display.style for entry in entries):
    assert colour in styles.COLOURS and dash in styles._DASHES
  labels = [entry.label for entry in entries]
  assert len(labels) > 60 and None not in map(styles._exactly, labels)
  style_of = styles.line_styles([*styles.METHODS, *labels])
  assert len({styles._exactly(label) for label in labels}) == len(labels)
  assert len(set(styles.METHODS.values())) == len(styles.METHODS)
  # Of one colour or one dash pattern, no two methods have both.
  assert {label: style_of[label] for label in styles.METHODS} == styles.METHODS
  for pair in ("colour marker", "dash marker"):
    looks = {
      tuple(getattr(style, name) for name in pair.split())
      for style in styles.METHODS.values()
    }
    assert len(looks) == len(styles.METHODS), pair


@pytest.mark.program
def test_a_method_looks_the_same_in_every_figure():
  """All labels of all figures of all papers."""
  seen = {}
  for paper in publish.PAPERS.values():
    for figure in paper.figures.values():
      labels = [
        line.label
        for panel in figure.panels
        for line in figure.lines_of(panel)
        if line.protocol == "tuned"
      ]
      looks = styles.line_styles(labels)
      assert len(set(looks.values())) == len(looks)
      for label, style in looks.items():
        if label in styles.METHODS:
          seen.setdefault(label, set()).add(style)
  assert all(len(variants) == 1 for variants in seen.values())
  assert {*analytic.claims.COLUMNS, *fedgroup.METHODS} & set(seen) > {
    "FG-EDC",
    "pFedACnnL",
    "AFL",
    "CFL",
  }


def test_variants_of_a_method():
  looks = styles.line_styles(["FG-EDC, x", "FG-EDC, y", "FedAvg", "mine"])
  assert looks["FG-EDC, x"] == styles.METHODS["FG-EDC"]
  assert looks["FedAvg"] == styles.METHODS["FedAvg"]
  assert len(set(looks.values())) == 4
  assert (
    styles.line_styles(["FG-EDC, x", "FG-EDC"])["FG-EDC"] == (styles.METHODS["FG-EDC"])
  )
  assert (
    styles.line_styles(["MA-FSVRG (stated)"])["MA-FSVRG (stated)"]
    == (styles.METHODS["MA-FSVRG"])
  )
  both = styles.line_styles(["FedGroup", "FG-EDC"])  # two names of one method
  assert both["FedGroup"] != both["FG-EDC"]
  assert styles.method_style("mine") is None


def test_runs_of_a_method_have_its_color():
  """One method of four rates had four colors, and its registered name a fifth."""
  rates = [f"FedAvg client_lr={rate}" for rate in (0.01, 0.03, 0.1, 0.3)]
  looks = styles.line_styles([*rates, "FedAvgM", "fedavg", "mine"])
  assert looks["fedavg"] == styles.METHODS["FedAvg"]
  assert looks["FedAvgM"] == styles.METHODS["FedAvgM"]
  assert len(set(looks.values())) == len(looks)
  colour = styles.METHODS["FedAvg"].colour
  assert {looks[label].colour for label in rates} == {colour} != {looks["mine"].colour}
  # A color has eight dash patterns; further runs get what is left.
  many = styles.line_styles(f"FedAvg client_lr={rate}" for rate in range(20))
  assert len(set(many.values())) == 20
  assert [look.colour for look in many.values()].count(colour) >= 8
  assert styles.method_style("FedAvgX client_lr=1") is None
  # `local` is the name of a method and of a protocol.
  assert styles.line_styles(["local"])["local"] == styles.METHODS["each client alone"]
  protocols = styles.line_styles(["global", "local"], are_protocols=True)
  assert protocols == dict(zip(("global", "local"), styles.line_styles("ab").values()))
