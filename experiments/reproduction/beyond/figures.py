"""Studies beyond the papers; ``python -m experiments.beyond`` makes them."""

from .. import figures, tune_paper
from . import (
  accelerations,
  backbone,
  board,
  bridge,
  differences,
  family,
  gradient,
  group_numbers,
  hostile,
  kinds_map,
  late,
  private,
)
from . import bytes as fewer_bytes

PAPER = figures.Paper(
  "beyond",
  {
    "hostile": hostile.FIGURE,
    "bytes": fewer_bytes.FIGURE,
    "late": late.FIGURE,
    "private": private.FIGURE,
    "family": family.FIGURE,
    "backbone": backbone.FIGURE,
    "board": board.FIGURE,
    "map": kinds_map.FIGURE,
    "bridge": bridge.FIGURE,
    "groups": group_numbers.FIGURE,
    "acceleration": accelerations.FIGURE,
  },
  {"gradient": gradient.TABLE, differences.NAME: differences.TABLE},
  "Settings are chosen on validation clients.",
  ("",),
  subject="studies beyond the papers",
  files={"fashion_mnist": figures.FASHION_MNIST},
  optional=("fashion_mnist",),
  tuner=figures.Tuner(tune_paper.make_study, tune_paper.tune_methods),
  pages={
    "hostile": "hostile",
    "bytes": "bytes",
    "late": "late",
    "private": "private",
    "family": "family",
    "backbone": "backbone",
    "gradient": "gradient",
    "differences": "differences",
    "board": "board",
    "map": "map",
    "bridge": "bridge",
    "groups": "groups",
    "acceleration": "acceleration",
  },
)
