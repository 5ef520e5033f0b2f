"""Studies beyond the papers; ``python -m experiments.beyond`` makes them."""

from .. import figures
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
  natural,
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
    **({"backbone": backbone.FIGURE} if backbone.FIGURE.panels else {}),
    **({"board": board.FIGURE} if board.FIGURE.panels else {}),
    **({"map": kinds_map.FIGURE} if kinds_map.FIGURE.panels else {}),
    **({"natural": natural.FIGURE} if natural.FIGURE.panels else {}),
    **({"bridge": bridge.FIGURE} if bridge.FIGURE.panels else {}),
    "groups": group_numbers.FIGURE,
    **({"acceleration": accelerations.FIGURE} if accelerations.FIGURE.panels else {}),
  },
  {"gradient": gradient.TABLE, differences.NAME: differences.TABLE},
  "Settings are chosen on validation clients.",
  ("",),
  subject="studies beyond the papers",
  files={"fashion_mnist": figures.FASHION_MNIST},
  optional=("fashion_mnist",),
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
    "natural": "natural",
    "bridge": "bridge",
    "groups": "groups",
    "acceleration": "acceleration",
  },
)
