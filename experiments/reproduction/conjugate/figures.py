"""The figures and tables of the conjugate paper (CFSVRG, CLSFSVRG).

``python -m experiments.conjugate`` makes them.
"""

import functools
from typing import Any

from ...cli import presets
from ...cli.config import Layer
from ...drawing import plots
from .. import cost_to_accuracy as targets
from .. import figures, suite, verdicts
from ..figures import Figure, FigureLine, Panel
from ..suite import PRINTED, STATED, TUNED
from . import claims

NAME = "conjugate"
PROPOSED = ("clsfsvrg",)
#: The accuracies of Figs. 7 and 8.
TARGETS = (0.955, 0.96, 0.965)

_MNIST = figures.participation_panels(20, 15, 10, 5)
_RATES = figures.participation_panels(30, 20, 15, 10)
#: The stated settings with the steps of Figs. 4 and 5.
_STEPS: dict[str, tuple[Layer, ...]] = {
  f"-{rate}": (f"{NAME}/stated.flags", {"client_lr": rate})
  for rate in ("0.1", "0.5", "0.8", "1")
}

_ONE_PASS: dict[str, Any] = {"local_steps": 0, "local_epochs": 1, "batch_size": 1}
_L2 = {"features": "hog"}
#: Local work and features, which the paper does not state (R-C1 to R-C4 of
#: docs/papers/readings.md) -> values. The last two are of CLSFSVRG alone, and
#: LoSAC, whose table has a row for each step, makes a fixed number of them.
READINGS: dict[str, dict[str, Any]] = {
  "20 steps of 10": {},
  "one pass": _ONE_PASS,
  "20 steps of 10, l2 blocks": _L2,
  "one pass, l2 blocks": _ONE_PASS | _L2,
}

_lines = figures.methods(NAME, "mnist", PROPOSED, protocols=(TUNED, STATED, PRINTED))
_by_step = figures.methods(
  NAME, "mnist", PROPOSED, others=False, ends=_STEPS, protocols=(TUNED,)
)


def _readings(panel: Panel) -> list[FigureLine]:
  """The stated settings, and all methods at their rate, by each reading."""
  return [
    line._replace(
      label=f"{line.label} ({name})",
      layers=(*line.layers, values),
      method=line.label,
    )
    for line in _lines(panel)
    if line.protocol not in (TUNED, PRINTED)
    for name, values in READINGS.items()
    if ("features" not in values or line.protocol == STATED)
    and not ("local_steps" in values and line.label == "LoSAC")
  ]


def _both_variants(panel: Panel) -> list[FigureLine]:
  """The tuned methods, LoSAC in both of its variants."""
  lines = [line for line in _lines(panel) if line.protocol == TUNED]
  # Its name is not that of an algorithm.
  preset = f"{NAME}/methods/losac_client.flags"
  if presets.exists(preset):
    lines.append(FigureLine(claims.CLIENT, (preset,)))
  return lines


#: Label of a bar without a height.
NOT_REACHED = "not reached in half of the seeds"


def _draw_fig7(
  paths: plots.Paths, outcomes: suite.Outcomes, title: str, x_axis: str
) -> None:
  """Draws the kilobytes until the targets are reached."""

  def kilobytes(floats):
    return None if floats is None else floats * targets.KB

  both, up = "KB, both ways, median over seeds", "KB sent up, median over seeds"
  parts = {
    name: {
      o.cell.label: [
        kilobytes(targets.median(targets.costs_at_target(o, t, column)))
        for t in TARGETS
      ]
      for o in outcomes
    }
    for name, column in ((both, "total_floats"), (up, "floats_up"))
  }
  losac = parts[both].get(claims.LOSAC, [None])[-1]
  plots.bars(
    paths,
    parts,
    _percent(),
    title,
    NOT_REACHED,
    {
      both: [None] * (len(TARGETS) - 1)
      + [None if losac is None else losac * (1.0 - claims.SAVING / 100.0)]
    },
    f"by the paper's saving, from {claims.LOSAC}'s here",
  )


def _draw_fig8(
  paths: plots.Paths, outcomes: suite.Outcomes, title: str, x_axis: str
) -> None:
  """Draws the seconds of server and clients until the targets are reached."""
  plots.bars(
    paths,
    {
      name: {
        o.cell.label: [targets.median(targets.seconds(o, t)[i]) for t in TARGETS]
        for o in outcomes
      }
      for i, name in enumerate(
        ("(a) server, s, median over seeds", "(b) clients, s, median over seeds")
      )
    },
    _percent(),
    title,
    NOT_REACHED,
  )


def _percent() -> list[str]:
  return [f"{100 * target:g} %" for target in TARGETS]


def _picture_of_late_accuracy() -> figures.DotPicture:
  return figures.dot_picture(
    figures.measured(verdicts.late("accuracy")),
    "accuracy, mean of the last ten rounds, %",
    most=100.0,
  )


_TO_98 = {"rounds_to_98%": verdicts.rounds_until(0.98)}
_AT_98 = (plots.Reference(0.98, "98 %, the target"),)
_figure = functools.partial(Figure, protocols="global,train", eval_every=1)
_REPLICATED = ("clsfsvrg", "mime_svrg")

FIGURES: dict[str, Figure] = {
  "fig2": _figure(
    "Fig. 2: test accuracy, MNIST",
    "accuracy",
    "mnist",
    _MNIST,
    _lines,
    statements=claims.FIG2,
    replicated=_REPLICATED,
    measures=_TO_98,
    references=_AT_98,
    sections=(
      targets.rounds_table(NAME, "Fig2", 0.98),
      targets.accuracy_at(NAME, "Fig2"),
    ),
  ),
  "fig3": _figure(
    "Fig. 3: training loss, MNIST",
    "loss",
    "mnist",
    _MNIST,
    _lines,
    protocol="train",
    statements=claims.FIG3,
    replicated=_REPLICATED,
  ),
  "fig4": _figure(
    "Fig. 4: test accuracy by local step, MNIST",
    "accuracy",
    "mnist",
    _RATES,
    _by_step,
    statements=claims.FIG4,
    measures=_TO_98,
    references=_AT_98,
    sections=(targets.rounds_table(NAME, "Fig4", 0.98),),
  ),
  "fig5": _figure(
    "Fig. 5: training loss by local step, MNIST",
    "loss",
    "mnist",
    _RATES,
    _by_step,
    protocol="train",
    statements=claims.FIG5,
  ),
  "readings": _figure(
    "Fig. 2 by local work and features, at the paper's rate",
    "accuracy",
    "mnist",
    _MNIST,
    _readings,
    partitions=3,
    dots=(_picture_of_late_accuracy(),),
    sections=(targets.rounds_table(NAME, "Fig2", 0.98),),
  ),
  "fig6": Figure(
    "Fig. 6: test accuracy, CIFAR-10",
    "accuracy",
    "cifar10",
    _MNIST,
    figures.methods(NAME, "cifar10", PROPOSED),
    dots=(_picture_of_late_accuracy(),),
    statements=claims.FIG6,
  ),
  "fig7": _figure(
    "Fig. 7: communication to reach an accuracy, MNIST, 5 %",
    "accuracy",
    "mnist",
    _MNIST[3:],
    _both_variants,
    draw=_draw_fig7,
    table=lambda outcomes: [
      *targets.communication_section(
        outcomes, TARGETS, claims.CLS, claims.LOSAC, claims.SAVING
      ),
      "The paper counts 2.25 KB (576 floats) a vector, one class "
      "of ten; a vector of ours has all ten and the bias.",
    ],
    statements=claims.fig7(TARGETS[-1]),
  ),
  "fig8": _figure(
    "Fig. 8: computation to reach an accuracy, MNIST, 5 %",
    "accuracy",
    "mnist",
    _MNIST[3:],
    _both_variants,
    draw=_draw_fig8,
    table=lambda outcomes: [
      targets.seconds_table(outcomes, TARGETS),
      "Clients: the steady seconds of a round, all participants one "
      "after the other on this machine, without the server's.",
    ],
    statements=claims.fig8(TARGETS),
  ),
}

PAPER = figures.Paper(
  NAME,
  FIGURES,
  {},
  "`(stated)` rows use the paper's stated settings.",
  ("CFSVRG", "CLSFSVRG"),
  pages={
    "fig3": "loss",
    "fig5": "loss",
    "fig6": "cifar10",
    "readings": "readings",
    "fig7": "communication",
    "fig8": "times",
  },
)
