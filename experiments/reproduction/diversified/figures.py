"""The figures and tables of the diversified paper (MA-FSVRG, GA-FSVRG).

``python -m experiments.diversified`` makes them.
"""

from typing import Any

from .. import central_time, figures, report, verdicts
from ..figures import Figure, Panel
from ..suite import PRINTED, STATED, TUNED
from . import claims, own_classes, readings

NAME = "diversified"
PROPOSED = ("ma_fsvrg", "ga_fsvrg")
_TENTH = {"participation": 0.1}


def _panels_of(flag: str, name: str, *values: object) -> tuple[Panel, ...]:
  return figures.make_panels(
    {f"{name} = {v}": {flag: v} for v in values}, common=_TENTH
  )


_MNIST = figures.participation_panels(20, 15, 10, 5)
_CIFAR = figures.participation_panels(40, 30, 20, 10)
_CIFAR_FIXED = {"num_models": 3, "beta1": 0.9, "client_lr": 0.08}
#: On CIFAR-10 no global model reaches the paper's numbers, so the accuracy of
#: the clients on their own classes is evaluated too.
_CIFAR_PROTOCOLS = "global,local,preferred,validation"

#: data -> values that hold clients out, by which settings are tuned and one of
#: the K models is chosen; the others are as many as the paper has.
HELD = {
  "mnist": {"num_clients": 440, "validation_clients": 40},
  "cifar10": {"num_clients": 1100, "validation_clients": 100},
}

# A figure of this project: the paper can be read in several ways, and each
# panel changes one reading of the stated settings.
_READINGS = figures.make_panels(
  {
    "as stated": {},
    "(64) as printed": {"central_rule": "printed"},
    "L2 on the mean loss": {"l2_of": "mean"},
    "(64) as printed, L2 on the mean loss": {
      "central_rule": "printed",
      "l2_of": "mean",
    },
    "one pass in single examples": {
      "local_steps": 0,
      "local_epochs": 1,
      "batch_size": 1,
    },
    "A_r as printed": {"aggregate_scaling": "paper"},
    "A_r = 1": {"aggregate_scaling": "none"},
    "projections not centered": {"centre_projection": False},
    "K copies, no split": {"split": "copies"},
    "Lambda_i = 1": {"local_scaling": False},
    "no acceleration": {"accelerate": False},
  },
  common=_TENTH,
)


#: The lines of Figs. 5 to 7.
_OF_CIFAR = figures.methods(NAME, "cifar10", PROPOSED, fixed=_CIFAR_FIXED)


#: The bound that the pictures of CIFAR-10 show, of the accuracy in percent, which is
#: the macro recall and the micro precision there; see ``readings``.
_POOLED = 52.4


def _picture_of_cifar(number: int, metric: str) -> figures.DotPicture:
  """A picture of the last rounds of Fig. 5, 6 or 7, beside the paper's numbers."""
  has_bound = metric != "macro_f1"
  return figures.dot_picture(
    figures.measured(
      verdicts.late(metric),
      report.paper_numbers(NAME, f"Fig{number}", f"test_{metric}"),
    ),
    f"{metric.replace('_', ' ')}, mean of the last ten rounds, %",
    most=100.0,
    reference=_POOLED if has_bound else None,
    reference_label="softmax regression, all data in one place" * has_bound,
    panels=2,
  )


def _picture_of_settings() -> figures.DotPicture:
  """A picture with a panel for each method and a row for each panel of a figure."""
  return figures.dot_picture(
    figures.measured(verdicts.late("accuracy"), by_method=True),
    "accuracy, mean of the last ten rounds, %",
    most=100.0,
    first="",
  )


def _comparison(number: int, title: str, metric: str, data: str) -> Figure:
  """Makes one of Figs. 1 to 7, which compare MA and GA with other methods."""
  cifar = data == "cifar10"
  return Figure(
    f"Fig. {number}: {title}",
    metric,
    data,
    _CIFAR if cifar else _MNIST,
    _OF_CIFAR
    if cifar
    else figures.methods(NAME, data, PROPOSED, protocols=(TUNED, STATED, PRINTED)),
    HELD[data],
    protocols=_CIFAR_PROTOCOLS if cifar else "global,validation",
    sections=(report.deployment_section, own_classes.class_ranks_section)
    if number == 5
    else (report.deployment_section,),
    statements=claims.comparison_claims(f"Fig{number}", metric),
    dots=(_picture_of_cifar(number, metric),) if cifar else (),
    replicated=() if cifar else ("ga_fsvrg", "mime_svrg"),
  )


def _proposal_figure(
  title: str, panels: tuple[Panel, ...], protocols: Any = None, **options: Any
) -> Figure:
  """Makes a figure of MA and GA alone, on MNIST."""
  method_options = {"protocols": protocols} if protocols else {}
  return Figure(
    title,
    "accuracy",
    "mnist",
    panels,
    figures.methods(NAME, "mnist", PROPOSED, others=False, **method_options),
    HELD["mnist"],
    protocols="global,validation",
    **options,
  )


FIGURES: dict[str, Figure] = {
  "fig1": _comparison(1, "test accuracy, MNIST", "accuracy", "mnist"),
  "fig2": _comparison(2, "macro-averaged precision, MNIST", "macro_precision", "mnist"),
  "fig3": _comparison(3, "micro-averaged recall, MNIST", "micro_recall", "mnist"),
  "fig4": _comparison(4, "micro-averaged F1, MNIST", "micro_f1", "mnist"),
  "fig5": _comparison(5, "macro-averaged recall, CIFAR-10", "macro_recall", "cifar10"),
  "fig6": _comparison(6, "macro-averaged F1, CIFAR-10", "macro_f1", "cifar10"),
  "fig7": _comparison(
    7, "micro-averaged precision, CIFAR-10", "micro_precision", "cifar10"
  ),
  "fig8": _proposal_figure(
    "Fig. 8: rounds before the grouping",
    _panels_of("threshold", "T", 2, 4, 6, 8),
    statements=claims.FIG8,
  ),
  "fig9": _proposal_figure(
    "Fig. 9: number of global models",
    _panels_of("num_models", "K", 2, 4, 6, 8),
    statements=claims.FIG9,
  ),
  "fig10": _proposal_figure(
    "Fig. 10: first-moment decay",
    _panels_of("beta1", "beta1", 0.0, 0.5, 0.8, 0.9),
    dots=(_picture_of_settings(),),
    statements=claims.FIG10,
  ),
  "readings": _proposal_figure(
    "Readings, 10 % of the clients",
    _READINGS,
    (STATED,),
    partitions=3,
    dots=(_picture_of_settings(),),
  ),
  "readings_cifar10": Figure(
    "Figs. 5 to 7 by the readings of what the paper leaves open, CIFAR-10",
    "macro_recall",
    "cifar10",
    (_CIFAR[-1], Panel("e", "all data in one place", {})),
    readings.lines_of_readings(_OF_CIFAR),
    HELD["cifar10"],
    protocols=_CIFAR_PROTOCOLS,
    sections=(own_classes.class_ranks_section,),
    dots=(
      figures.dot_picture(
        readings.reading_dots,
        "macro recall, mean of the last ten rounds, %",
        most=100.0,
        in_a_row=1,
      ),
    ),
    table=readings.readings_table,
  ),
}

PAPER = figures.Paper(
  NAME,
  FIGURES,
  {
    "table1": figures.FigureTable(
      "Table I: central computation time",
      lambda request, folder: central_time.table1(request.quick),
    )
  },
  "With K models, only the mean of the K is judged and drawn. You also see "
  "the model that is best on the validation data, and the best of the K on "
  "the test set, as in the paper's figures. No table compares the best of K "
  "with single models. Lines with `(stated)` have the paper's stated settings.",
  ("MA-", "GA-"),
  same_runs={
    "Fig2": "Fig1",
    "Fig3": "Fig1",
    "Fig4": "Fig1",
    "Fig6": "Fig5",
    "Fig7": "Fig5",
  },
  balanced=("Fig5", "Fig6", "Fig7"),
  pages={
    "fig2": "metrics",
    "fig3": "metrics",
    "fig4": "metrics",
    "fig8": "settings",
    "fig9": "settings",
    "fig10": "settings",
    "fig5": "cifar10",
    "fig6": "cifar10",
    "fig7": "cifar10",
    "readings": "readings",
    "readings_cifar10": "readings",
    "table1": "times",
  },
)
