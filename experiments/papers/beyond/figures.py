"""Studies beyond the papers; ``python -m experiments.beyond`` makes them."""

from ...reports import figures
from . import bytes as fewer_bytes
from . import board, gradient, hostile, late, private

PAPER = figures.Paper(
    "beyond", (),
    {"hostile": hostile.FIGURE, "bytes": fewer_bytes.FIGURE,
     "late": late.FIGURE, "private": private.FIGURE,
     "board": board.FIGURE},
    {"gradient": gradient.FIGURE},
    "Settings are chosen on validation clients.", ("",),
    subject="studies beyond the papers", files=fewer_bytes.FILES,
    fit=fewer_bytes.fit, pages={
        "hostile": "hostile", "bytes": "bytes", "late": "late",
        "private": "private", "gradient": "gradient", "board": "board"})
