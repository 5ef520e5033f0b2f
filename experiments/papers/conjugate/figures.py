"""The figures and tables of the conjugate paper (CFSVRG, CLSFSVRG).

``python -m experiments.conjugate`` makes them.
"""

from ...cli import config as config_lib
from ...reports import answers, central_time
from ...reports import figures, plots, report, styles, suite
from ...reports import cost_to_accuracy as targets, verdicts
from ...reports.figures import Figure, Panel, Request, Table
from . import claims

NAME = "conjugate"
#: The accuracies of Figs. 7 and 8.
TARGETS = (0.955, 0.96, 0.965)

#: LoSAC's client variant, whose name is not that of an algorithm.
_CLIENT_FILE = f"{NAME}/methods/losac_client.flags"

_MNIST = figures.participation(20, 15, 10, 5)
_RATES = figures.participation(30, 20, 15, 10)
#: The stated settings with the steps of Figs. 4 and 5.
_STEPS = tuple(
    (f"-{rate}", (f"--flagfile={NAME}/stated.flags", f"--client_lr={rate}"))
    for rate in ("0.1", "0.5", "0.8", "1"))

_ONE_PASS = ("--local_steps=0", "--local_epochs=1", "--batch_size=1")
_L2 = ("--hog_norm=l2",)
#: Local work and features, which the paper does not state (R-C1 to R-C4 of
#: docs/papers/readings.md) -> flags. The last two are of CLSFSVRG alone, and
#: LoSAC, whose table has a row for each step, makes a fixed number of them.
READINGS = {"20 steps of 10": (), "one pass": _ONE_PASS,
            "20 steps of 10, l2 blocks": _L2,
            "one pass, l2 blocks": (*_ONE_PASS, *_L2)}


def _readings(panel: Panel) -> figures.Lines:
  """The stated settings, and all methods at their rate, by each reading."""
  del panel
  base = figures.methods(PAPER, FIGURES["fig2"], figures.SETTINGS[1:])
  return [(f"{styles.without_protocol(label)} ({name})"
           f"{label.removeprefix(styles.without_protocol(label))}",
           (*words, *more))
          for label, words in base if styles.protocol_of(label) != "tuned"
          for name, more in READINGS.items()
          if (_L2[0] not in more or label.endswith(styles.STATED))
          and not (_ONE_PASS[0] in more and label.startswith("LoSAC"))]


_TO_98 = {"rounds_to_98%": lambda outcome, outcomes: verdicts.rounds_to(
    0.98)(outcome)}

FIGURES: dict[str, Figure] = {
    "fig2": Figure(
        "Fig. 2: test accuracy, MNIST", "accuracy", "mnist", _MNIST,
        protocols="global,train", eval_every=1, statements=claims.FIG2,
        sections=(targets.rounds_table(NAME, "Fig2", 0.98),
                  targets.accuracy_at(NAME, "Fig2")), measures=_TO_98),
    "fig3": Figure(
        "Fig. 3: training loss, MNIST", "loss", "mnist", _MNIST,
        protocol="train", protocols="global,train", eval_every=1,
        statements=claims.FIG3),
    "fig4": Figure(
        "Fig. 4: test accuracy by local step, MNIST", "accuracy", "mnist",
        _RATES, baselines=False, lines=_STEPS, protocols="global,train",
        eval_every=1, settings=figures.SETTINGS[:1], statements=claims.FIG4,
        sections=(targets.rounds_table(NAME, "Fig4", 0.98),),
        measures=_TO_98),
    "fig5": Figure(
        "Fig. 5: training loss by local step, MNIST", "loss", "mnist", _RATES,
        baselines=False, lines=_STEPS, protocol="train",
        protocols="global,train", eval_every=1,
        settings=figures.SETTINGS[:1], statements=claims.FIG5),
    "readings": Figure(
        "Fig. 2 by local work and features, at the paper's rate", "accuracy",
        "mnist", _MNIST, protocols="global,train", eval_every=1, partitions=3,
        lines_of=_readings, draw=figures.as_dots(
            verdicts.late("accuracy"), "accuracy, mean of the last ten, %",
            "Fig. 2 by local work and features, at the paper's rate"),
        sections=(targets.rounds_table(NAME, "Fig2", 0.98),)),
    "fig6": Figure(
        "Fig. 6: test accuracy, CIFAR-10", "accuracy", "cifar10", _MNIST,
        statements=claims.FIG6),
}


def _at_5(request: Request) -> list[suite.Outcome]:
  """The runs of Fig. 2 with 5 % of the clients, in the headline settings.

  LoSAC comes in both of its variants.
  """
  figure = figures.only("fig2", FIGURES["fig2"], "d")
  lines = figures.methods(PAPER, figure, figures.SETTINGS[:1])
  if (config_lib.PRESETS / _CLIENT_FILE).is_file():
    lines.append((claims.CLIENT, (f"--flagfile={_CLIENT_FILE}",)))
  return figures.outcomes_of(
      PAPER, figure._replace(lines_of=lambda panel: lines), request,
      figures.SETTINGS[:1])


def _percent() -> list[str]:
  return [f"{100 * target:g} %" for target in TARGETS]


def _make_fig7(request: Request) -> None:
  """Makes Fig. 7: the floats sent until the targets are reached."""
  outcomes = _at_5(request)
  text = report.join(FIG7, [
      targets.communication(
          outcomes, TARGETS, claims.CLS, claims.LOSAC, claims.SAVING),
      verdicts.section(claims.fig7(TARGETS[-1]), outcomes),
      report.provenance(
          outcomes, request.command_line, "The paper counts 2.25 KB (576 "
          "floats) a vector, one class of ten; a vector of ours has all ten "
          "and the bias.")])
  folder = figures.write(request, "fig7", text, answers.sentences(
      "fig7", claims.fig7(TARGETS[-1]), outcomes))

  def kilobytes(found):
    return None if found is None else found * targets.KB

  both, up = "KB, both ways, median over seeds", "KB sent up, median over seeds"
  parts = {
      name: {o.cell.label: [kilobytes(targets.median(sent(o, t)))
                            for t in TARGETS] for o in outcomes}
      for name, sent in (
          (both, lambda o, t: targets.spent(o, t, "total_floats")),
          (up, targets.sent_up))}
  other = parts[both].get(claims.LOSAC, [None])[-1]
  plots.bars(
      figures.pictures(folder, "fig7"), parts, _percent(), FIG7, NOT_REACHED,
      {both: [None] * (len(TARGETS) - 1) + [
          None if other is None else other * (1.0 - claims.SAVING / 100.0)]},
      f"by the paper's saving, from {claims.LOSAC}'s here")


def _make_fig8(request: Request) -> None:
  """Makes Fig. 8: the seconds of server and clients until the targets."""
  outcomes = _at_5(request)
  central = {o.cell.label: central_time.central_seconds(o.cell.config)
             for o in outcomes}
  text = report.join(FIG8, [
      targets.seconds_table(outcomes, TARGETS, central),
      verdicts.section(claims.fig8(TARGETS, central), outcomes),
      report.provenance(
          outcomes, request.command_line, "Clients: the steady seconds of a "
          "round, all participants one after the other on this machine, "
          "without the server's.")])
  folder = figures.write(request, "fig8", text, answers.sentences(
      "fig8", claims.fig8(TARGETS, central), outcomes))
  plots.bars(figures.pictures(folder, "fig8"), {
      name: {o.cell.label: [targets.median(targets.seconds(
          o, t, central[o.cell.label])[i]) for t in TARGETS] for o in outcomes}
      for i, name in enumerate((
          "(a) server, s, median over seeds",
          "(b) clients, s, median over seeds"))},
             _percent(), FIG8, NOT_REACHED)


#: What a bar without a height means.
NOT_REACHED = "not reached in half of the seeds"

FIG7 = "Fig. 7: communication to reach an accuracy, MNIST, 5 %"
FIG8 = "Fig. 8: computation to reach an accuracy, MNIST, 5 %"

PAPER = figures.Paper(
    NAME, ("clsfsvrg",), FIGURES,
    {"fig7": Table(FIG7, _make_fig7, plays=True),
     "fig8": Table(FIG8, _make_fig8, plays=True)},
    "`(stated)` rows use the paper's stated settings.",
    ("CFSVRG", "CLSFSVRG"),
    pages={"fig3": "loss", "fig5": "loss", "fig6": "cifar10",
           "readings": "readings", "fig7": "communication",
           "fig8": "times"})
