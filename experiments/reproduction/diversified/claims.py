"""Claims of the diversified paper without a number, and their checks."""

from .. import verdicts
from ..verdicts import (
  Measurement,
  above,
  both,
  change,
  for_paper,
  grows,
  higher,
  higher_than_all,
  late,
  mean_over,
  peak,
  pick,
  votes,
  wobble,
)

NAME = "diversified"
_MA, _GA = "MA-FSVRG", "GA-FSVRG"
#: Measures: the mean of the last ten rounds, the deviation over the last 30,
#: and the means of the first 30 and of the first 10.
_LATE, _WOBBLE = late("accuracy"), wobble()
_EARLY, _FIRST = mean_over(1, 30), mean_over(1, 10)
#: The deviation after round 30 of 100.
_WOBBLE_AFTER_30 = wobble(rounds=70)


def _gradients(outcome):
  """A participant's number of per-example gradients in the last round.

  All methods have the same participants, so differences do not vary.
  """
  return outcome.summary["cost"]["last_round"]["example_gradients"]


def comparison_claims(artifact: str, metric: str) -> tuple[verdicts.Statement, ...]:
  """The claims of one of Figs. 1 to 7."""
  return for_paper(
    NAME,
    artifact,
    {
      "GA-FSVRG above MA-FSVRG at every rate (mean of the last ten rounds)": higher(
        _GA, _MA, late(metric)
      ),
      "MA-FSVRG steadier than GA-FSVRG (deviation over the last 30 rounds)": higher(
        _GA, _MA, wobble(metric)
      ),
      "both above every other method at every rate": higher_than_all(
        (_MA, _GA), late(metric)
      ),
      "a round of MA-FSVRG costs a client less than one of GA-FSVRG "
      "(per-example gradients)": higher(_GA, _MA, _gradients, digits=0, exact=True),
    },
  )


def _grows_more(a, b, measure, of=lambda values: values):
  """From the first to the last panel, a's measure changes more than b's."""
  return lambda outcomes: above(
    of(change(outcomes, a, measure)), of(change(outcomes, b, measure))
  )


def _best_in_first(outcomes):
  """GA ends higher in the first panel than in every other one."""
  first, *others = verdicts.panels_of(outcomes)
  if not others:
    raise verdicts.NotRun("a single panel")
  return verdicts.every(
    (
      f"{first} - {p}",
      above(_LATE(pick(outcomes, first, _GA)), _LATE(pick(outcomes, p, _GA))),
    )
    for p in others
  )


def _around_98(panel, first, last):
  """GA is above 97.5 % in some rounds."""

  def check(outcomes):
    mean = mean_over(first, last)(pick(outcomes, panel, _GA))
    rounds = f"from {first} on" if last == float("inf") else f"{first} to {last}"
    words = f"mean of rounds {rounds}: {mean.mean():.2f} %"
    measurement = Measurement(words, mean=mean.mean(), unit="%")
    return above(mean, 97.5)._replace(measurements=(measurement,))

  return check


def _below_98(outcomes):
  """No run of GA with beta1 = 0.9 has 98 % in the first 20 rounds."""
  peaks = peak(1, 20)(pick(outcomes, "d", _GA))
  words = f"highest of rounds 1 to 20: {peaks.min():.2f} to {peaks.max():.2f} %"
  return votes(peaks < 98.0, Measurement(words, values=(tuple(peaks.tolist()),)))


FIG8 = for_paper(
  NAME,
  "Fig8",
  {
    "a larger T gives less variance, MA and GA (deviation over the last 30 "
    "rounds)": both(grows(_MA, _WOBBLE, -1), grows(_GA, _WOBBLE, -1)),
    "... especially with MA": _grows_more(_GA, _MA, _WOBBLE),
    "GA above MA in accuracy": higher(_GA, _MA, _LATE),
    "MA steadier than GA": higher(_GA, _MA, _WOBBLE),
    "MA converges faster with a larger T (mean of the first 30 rounds)": grows(
      _MA, _EARLY
    ),
    "GA is slightly slower early on with a larger T (first 10 rounds)": grows(
      _GA, _FIRST, -1
    ),
    "GA settles at a higher level with T = 8": grows(_GA, _LATE),
  },
)

FIG9 = for_paper(
  NAME,
  "Fig9",
  {
    "GA improves with K": grows(_GA, _LATE),
    "the variance of GA grows with K": grows(_GA, _WOBBLE),
    "MA smoother than GA": higher(_GA, _MA, _WOBBLE),
    "MA does not reach the level of GA": higher(_GA, _MA, _LATE),
    "the gap between GA and MA grows with K": _grows_more(_GA, _MA, _LATE),
    "both converge faster with K (mean of the first 30 rounds)": both(
      grows(_MA, _EARLY), grows(_GA, _EARLY)
    ),
    "after 30 rounds K matters less to MA than to GA": _grows_more(
      _GA, _MA, mean_over(31, float("inf")), abs
    ),
  },
)

FIG10 = for_paper(
  NAME,
  "Fig10",
  {
    "MA improves with beta1": grows(_MA, _LATE),
    "a smaller beta1 is faster at first, MA and GA (first 10 rounds)": both(
      grows(_MA, _FIRST, -1), grows(_GA, _FIRST, -1)
    ),
    "a larger beta1 gives more variance after 30 rounds, MA and GA": both(
      grows(_MA, _WOBBLE_AFTER_30), grows(_GA, _WOBBLE_AFTER_30)
    ),
    "... more for MA than for GA": _grows_more(_MA, _GA, _WOBBLE_AFTER_30),
    "GA is best at beta1 = 0 (mean of the last ten rounds)": _best_in_first,
    "GA above MA at beta1 = 0": higher(_GA, _MA, _LATE, "a"),
    "at beta1 = 0 GA settles around 98 % during the first 10 rounds (rounds "
    "11 to 20 above 97.5 %)": _around_98("a", 11, 20),
    "at beta1 = 0.9 GA stays below 98 % during the first 20 rounds (the highest of "
    "each run)": _below_98,
    "... and reaches the same level after them (mean from round 21 on)": _around_98(
      "d", 21, float("inf")
    ),
  },
)
