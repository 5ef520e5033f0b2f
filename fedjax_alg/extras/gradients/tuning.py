"""Hyper-parameters by the derivative of the validation loss, not by a grid.

An outer step executes the run with its derivatives (``gradients.hypergradient``) and
moves all hyper-parameters at once: by Gauss and Newton's step inside a trust
region, a box in the logarithms of the hyper-parameters. A step that makes the
loss larger, or not finite, is taken back and the box is made smaller; so is one
where the derivative explodes. The first outer steps run fewer rounds. All of
them are calls of one compiled program.
"""

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data.federation import Federation
from fedjax_alg.errors import OptionError
from fedjax_alg.extras.gradients import hypergradient
from fedjax_alg.extras.gradients.hypergradient import Derivatives
from fedjax_alg.hparams import check_count
from fedjax_alg.part import of_type
from fedjax_alg.records.scores import last_evaluations
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.plan import warn
from fedjax_alg.runs.prepare import check_choice

#: The outer steps of a tuning.
OUTER_STEPS = 4
#: The first outer step runs 1 / 2^HALVINGS of the rounds, the next twice as
#: many, and so on to all of them.
HALVINGS = 2
#: The longest step of a hyper-parameter: a factor of 10.
_LONGEST = math.log(10.0)
#: Gain that a step of a factor of e has to promise, in shares of the loss: a
#: hyper-parameter that hardly matters hardly moves.
_WORTH = 1e-3
#: A derivative by a logarithm of more than so many losses is one of training
#: at the edge of stability, where it grows from round to round: it says that
#: the step is too long, and not where to go.
_EXPLODED = 30.0
#: A step that was taken back is tried again with a box of this share, or of
#: where a cubic through both ends has its minimum.
_SHRINK = (0.1, 0.25, 0.6)


class Coordinate(NamedTuple):
  """Coordinate of a hyper-parameter: its logarithm, or its logit."""

  low: float  #: its smallest value; -inf if there is none
  high: float  #: its largest value; inf if there is none

  def to(self, value: float) -> float:
    """The coordinate of a value; infinite at an end of the range."""
    with np.errstate(divide="ignore"):
      below = np.log(value - self._low) if self._low < value else -np.inf
      above = (
        (np.log(self.high - value) if value < self.high else -np.inf)
        if math.isfinite(self.high)
        else 0.0
      )
    return float(below - above)

  def back(self, place: float) -> float:
    """The value of a coordinate."""
    if not math.isfinite(self.high):
      return self._low + math.exp(place)
    return self._low + (self.high - self._low) / (1.0 + math.exp(-place))

  def slope(self, value: float) -> float:
    """The derivative of the value by the coordinate."""
    up = value - self._low
    if not math.isfinite(self.high):
      return up
    return up * (self.high - value) / (self.high - self._low)

  @property
  def _low(self) -> float:
    return self.low if math.isfinite(self.low) else 0.0


def coordinate(method: Method, name: str) -> Coordinate:
  """Finds in which coordinate a hyper-parameter is moved.

  Args:
    method: the algorithm with its hyper-parameters.
    name: name of the hyper-parameter.

  Returns:
    A logarithm, or with a largest value a logit.

  Raises:
    OptionError: its value is at an end of its range, from where no factor
      leads away.
  """
  field = method.field_of(name)
  assert field is not None
  meta = field.metadata
  ends = [
    next((float(meta[key]) for key in keys if meta[key] is not None), end)
    for keys, end in (
      (("minimum", "above"), -math.inf),
      (("maximum", "below"), math.inf),
    )
  ]
  result, value = Coordinate(*ends), method.resolved().value_of(name)
  if not math.isfinite(result.to(value)):
    raise OptionError(
      f"`{name}`={value:g}: tuned by factors, must start between "
      f"{max(result.low, 0.0):g} and {result.high:g}"
    )
  return result


def check_starts(method: Method, by: str | Sequence[str]) -> tuple[str, ...]:
  """Checks what is tuned and where it starts; returns the names.

  Raises:
    OptionError: a name that there is no derivative by, or a value at an end of
      its range.
  """
  names = hypergradient.check_names(method, by)
  for name in names:
    coordinate(method, name)
  return names


class OuterStep(NamedTuple):
  """One outer step: the run at some values, and where it leads."""

  values: dict[str, float]
  rounds: int  #: rounds of this step's run
  loss: float  #: validation loss, mean over the seeds and last evaluations
  accuracy: float  #: the main metric of the task, likewise
  gradient: dict[str, float]  #: of the loss by the logarithms (or logits)
  kept: bool  #: whether the next step starts here
  #: rounds run up to here, of all seeds; a run with the derivatives by k
  #: hyper-parameters counts as 1 + k
  played: int


class GradientTuning(NamedTuple):
  """The outer steps, and the best of those that ran all rounds."""

  steps: list[OuterStep]
  best: OuterStep
  main: str = "accuracy"  #: name of the main metric

  @property
  def played(self) -> int:
    """Rounds run; see ``OuterStep.played``."""
    return self.steps[-1].played


def trust_region_step(
  gradient: np.ndarray, curvature: np.ndarray, radius: float, worth: float
) -> np.ndarray:
  """The step of least g's + s'(H + worth I)s / 2 in a box.

  Args:
    gradient: g, [k].
    curvature: H, [k, k]; negative eigenvalues count as 0.
    radius: the largest entry of the step.
    worth: more than 0.

  Returns:
    s, [k].
  """
  values, vectors = np.linalg.eigh(curvature)
  root = np.sqrt(np.maximum(values, 0.0) + worth)
  rows = root[:, None] * vectors.T
  from scipy import optimize  # slow to import, and read here alone

  solution = optimize.lsq_linear(
    rows, -(vectors.T @ gradient) / root, bounds=(-radius, radius)
  )
  result: np.ndarray = solution.x
  return result


def _cubic_minimum(f0: float, d0: float, f1: float, d1: float) -> float:
  """Finds where in [0, 1] the cubic with these values and slopes is least."""
  s = 3.0 * (f0 - f1) + d0 + d1
  inside = s * s - d0 * d1
  if inside <= 0.0:
    return 0.5
  return 1.0 - (d1 + math.sqrt(inside) - s) / (d1 - d0 + 2.0 * math.sqrt(inside))


class _Point(NamedTuple):
  """Point from which the outer steps go on."""

  place: np.ndarray  #: [k]
  loss: float
  gradient: np.ndarray  #: by the coordinates
  curvature: np.ndarray


def descend_hparams(
  derivatives: Derivatives,
  *,
  outer_steps: int = OUTER_STEPS,
  halvings: int = HALVINGS,
  last: int | None = 1,
  report: Callable[[OuterStep], None] = lambda step: None,
) -> GradientTuning:
  """Moves the hyper-parameters of a run by their derivatives.

  Args:
    derivatives: the compiled program; its run's values are the first.
    outer_steps: number of outer steps, more than ``halvings``.
    halvings: see ``HALVINGS``.
    last: see ``hypergradient``.
    report: called after every step.

  Returns:
    The steps.

  Raises:
    OptionError: no step that ran all rounds has a finite loss, or a
      hyper-parameter starts at an end of its range.
  """
  p, by = derivatives.prepared, derivatives.by
  total = p.options.rounds
  assert total is not None
  axes = [coordinate(p.method, name) for name in by]
  start = p.method.values()
  place = np.array([axis.to(start[name]) for name, axis in zip(by, axes)])
  best: _Point | None = None
  radius, rounds_run, steps = _LONGEST, 0, list[OuterStep]()
  for number in range(outer_steps):
    values = {name: axis.back(at) for name, axis, at in zip(by, axes, place)}
    if number == 0:  # as it was given
      values = {name: start[name] for name in by}
    rounds = -(-total // 2 ** max(halvings - number, 0))
    got = derivatives.at(values, rounds, last)
    slopes = np.array([axis.slope(values[name]) for name, axis in zip(by, axes)])
    new = _Point(
      place,
      got.loss,
      slopes * list(got.gradient.values()),
      slopes[:, None] * got.curvature * slopes,
    )
    rounds_run += rounds * p.rows * (1 + len(by))
    usable = (
      got.finite
      and bool(np.isfinite(got.curvature).all())
      and (float(np.abs(new.gradient).max()) <= _EXPLODED * abs(got.loss))
    )
    accepted = usable and (best is None or got.loss < best.loss)
    steps.append(
      OuterStep(
        values,
        rounds,
        got.loss,
        float(got.accuracies[:, last_evaluations(last)].mean()),
        dict(zip(by, new.gradient.tolist())),
        accepted,
        rounds_run,
      )
    )
    report(steps[-1])
    if accepted:
      best, radius = new, min(2.0 * radius, _LONGEST)
    elif best is None:
      # Nothing is known yet but that it does not train: shorter steps do.
      place = place - _LONGEST
      continue
    else:
      radius = _smaller(best, new, usable, got.loss < best.loss)
    place = best.place + trust_region_step(
      best.gradient, best.curvature, radius, _WORTH * abs(best.loss)
    )
    place = np.where(
      [
        hypergradient.in_range(p.method, {name: axis.back(at)})
        for name, axis, at in zip(by, axes, place)
      ],
      place,
      best.place,
    )
  complete = [
    step for step in steps if step.rounds == total and math.isfinite(step.loss)
  ]
  if not complete:
    raise OptionError(
      "`outer_steps`: no step with all rounds has a finite "
      "loss; start from smaller values"
    )
  return GradientTuning(
    steps, min(complete, key=lambda step: step.loss), tasks.of(p.model).main
  )


def _smaller(best: _Point, new: _Point, usable: bool, less: bool) -> float:
  """The radius after a step that is taken back.

  Args:
    best: the point before it.
    new: the point after it.
    usable: whether the derivative there is.
    less: whether the loss there is smaller all the same.
  """
  step = new.place - best.place
  share = _SHRINK[2 if less else 1]
  if usable:
    share = min(
      max(
        _cubic_minimum(
          best.loss, float(best.gradient @ step), new.loss, float(new.gradient @ step)
        ),
        _SHRINK[0],
      ),
      _SHRINK[2],
    )
  return max(share * float(np.abs(step).max()), 1e-3)


def check_steps(outer_steps: object, halvings: Any) -> None:
  """Checks the numbers of outer steps.

  Raises:
    OptionError: there is no step that runs all rounds.
  """
  for name, value in (("outer_steps", outer_steps), ("halvings", halvings)):
    of_type(name, value, int)
    check_count(name, value)
  if halvings < 0:
    raise OptionError(f"`halvings`={halvings}: must be at least 0")
  if outer_steps <= halvings:
    raise OptionError(
      f"`outer_steps`={outer_steps}: must be at least {halvings + 1}, the "
      f"first that runs all rounds after `halvings`={halvings}"
    )


def tune_by_gradient(
  algorithm: object,
  federation: Federation,
  *,
  by: str | Sequence[str],
  outer_steps: int = OUTER_STEPS,
  halvings: int = HALVINGS,
  last: int | None = 1,
  **options: object,
) -> GradientTuning:
  """Tunes hyper-parameters along the derivative of the validation loss.

  Use it instead of a grid. It makes a few outer steps from the given values, and each
  step is a run with its derivatives; see docs/hypergradient.md.

  Args:
    algorithm: see ``run``.
    federation: see ``run``; one partition, which holds validation clients out.
    by: names of the hyper-parameters to tune, see ``hypergradient``. Each starts at
      its value in ``options``, ``hparams`` or at its default, and changes by factors
      (in its logit if it has a largest value).
    outer_steps: number of outer steps.
    halvings: the first outer step runs 1 / 2^halvings of the rounds, the next
      twice as many, and so on to all of them.
    last: number of final evaluations, the mean loss of which is minimized; None: all.
    **options: see ``hypergradient``; all outer steps have the same seeds.

  Returns:
    The outer steps and the best of those that ran all rounds.

  Raises:
    OptionError, DataError: an argument that cannot be used; the message is one
      line.
  """
  check_steps(outer_steps, halvings)
  last_evaluations(last)  # before it compiles
  plan = hypergradient.validation_plan(algorithm, federation, **options)
  names = check_starts(plan.method, by)
  prepared = hypergradient.prepare_run(plan, names)
  warn(prepared, set(), hypergradient.caution_decisions(prepared.method))
  check_choice(prepared.federation)  # before it compiles
  return descend_hparams(
    Derivatives(prepared, names), outer_steps=outer_steps, halvings=halvings, last=last
  )
