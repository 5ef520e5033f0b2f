"""The server's own computation time: Table I (diversified), Fig. 8 (conjugate).

Table I has the number of models K and the participation. The paper states
neither what it timed nor for how many rounds nor on which data set; the rates
are those of its CIFAR-10 runs. Here the table times everything that the server
computes in a round (two averages of K gradients, projection, k-means, scaling,
acceleration) on vectors of CIFAR-10's size, for 1,000 machines and 100 rounds.
Each call waits for its result, and compiling is not counted.
"""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_alg import models, trees
from fedjax_alg.algorithms import conjugate, diversified
from fedjax_alg.base import FedSpec
from fedjax_alg.central import adaptive, feature_statistics, steps
from fedjax_alg.central.validation import validation_arguments
from fedjax_alg.client import objective
from fedjax_alg.data import layout
from fedjax_alg.engine import sharding
from fedjax_alg.rounds.k_models import Stage

from . import answers, chosen, pages, report, suite, timing

_MACHINES, _FEATURES, _CLASSES, _ROUNDS = 1000, 729, 10, 100
_RATES, _MODELS = (10, 20, 30, 40), (2, 4, 6, 8)

#: The number of timed calls, whose median is taken.
_REPEATS = 20


def _server(k: int, by_gradient: bool) -> Any:
  """The server's part of a round of K models, the model, the acceleration."""
  hparams = diversified.GAHParams(num_models=k)
  model = models.Softmax().build((_FEATURES,), _CLASSES)
  central = adaptive(hparams.server_lr, hparams.beta1, hparams.beta2)
  statistics = feature_statistics.no_statistics(
    FedSpec(_MACHINES, 0, _CLASSES, (_FEATURES,))
  )

  def server(state, moments, vectors, gradients):
    """One round.

    Args:
      state: the models, [K, ...].
      moments: the acceleration's state of each model, [K, ...].
      vectors: the participants' trained models or gradients, [S, ...].
      gradients: the participants' gradients at all models, [S, K, ...].
    """
    slots = jax.tree.leaves(vectors)[0].shape[0]
    weight = jnp.ones(slots)
    scale = jax.vmap(
      functools.partial(
        feature_statistics.scale_aggregate,
        model,
        hparams.aggregate_scaling,
        statistics,
        jnp.float32(slots),
      )
    )
    anchors = trees.slot_mean(weight, gradients)
    means, _ = diversified.group_vectors(
      hparams,
      vectors,
      anchors if by_gradient else state,
      weight > 0,
      Stage(None, jnp.bool_(False)),
    )
    step = scale(means if by_gradient else trees.subtract(means, state))
    state = trees.add_scaled(state, -1.0 if by_gradient else 1.0, step)
    mean_gradient = trees.slot_mean(weight, gradients)
    updates, moments = jax.vmap(central.update)(mean_gradient, moments)
    return optax.apply_updates(state, updates), moments

  return jax.jit(server), model, central


#: algorithm -> its server step, if that is not the plain average.
_STEPS: dict[str, Callable[..., object]] = {
  "cfsvrg": conjugate.cfsvrg_server,
  "clsfsvrg": conjugate.clsfsvrg_server,
}


def central_seconds(cell: suite.Cell) -> float:
  """The seconds that the server computes in one round of a run with one model.

  The server computes the mean of the clients' updates. In the conjugate methods
  it also computes the mean of the clients' gradients, the direction and the
  line search. The line search is timed at the initial model, with the gradient
  on the validation data.
  """
  config = cell.config
  identity = config.identity
  if identity in _TIMED:
    return _TIMED[identity]
  prepared = config.prepare()
  hparams = prepared.method.hparams
  step = _STEPS.get(config.algorithm, lambda hparams: steps.average())(hparams)
  params = prepared.model.init(jax.random.key(0))
  updates = trees.repeat(params, prepared.spec.cohort_size)
  cohort = layout.everyone(prepared.device_data.data.train)

  def server(params, state, updates, gradients, cohort):
    weight = jnp.ones(prepared.spec.cohort_size)
    params = trees.add(params, trees.slot_mean(weight, updates))
    if step.when == "aggregate":
      return params
    gradient = trees.slot_mean(weight, gradients)
    extra: dict[str, object] = {}
    if step.needs_validation:
      extra = validation_arguments(
        prepared.model, cohort.validation, prepared.map_clients
      )
    moves, state = step.transform.update(
      gradient, state, params, grad=gradient, **extra
    )
    return optax.apply_updates(params, moves), state

  gradients = updates
  if step.needs_validation:
    shard = cohort.validation
    _, full_gradient = jax.jit(
      functools.partial(objective.full_value_and_grad, prepared.model)
    )(params, shard)
    gradients = trees.repeat(full_gradient, prepared.spec.cohort_size)
  _, seconds = timing.time_repeats(
    jax.jit(server),
    params,
    step.transform.init(params),
    updates,
    gradients,
    cohort,
    repeats=_REPEATS,
  )
  _TIMED[identity] = float(np.median(seconds))
  return _TIMED[identity]


#: Identity of a run -> its ``central_seconds``, which are timed once.
_TIMED: dict[str, float] = {}


def _seconds(k: int, slots: int, by_gradient: bool, repeats: int) -> float:
  """The seconds of all rounds of one cell of Table I."""
  server, model, central = _server(k, by_gradient)
  keys = jax.random.split(jax.random.key(0), 4)
  shapes = jax.eval_shape(model.init, keys[0])

  def draw(key, *lead):
    # Like trained models, the vectors lie around K separate points.
    return jax.tree.map(
      lambda leaf: jax.random.normal(key, (*lead, *leaf.shape)), shapes
    )

  @jax.jit  # eager, each operation would be a program
  def draw_inputs():
    state = draw(keys[0], k)
    member = jnp.arange(slots) % k
    vectors = trees.add(
      jax.tree.map(lambda leaf: 3.0 * leaf[member], state), draw(keys[1], slots)
    )
    return state, jax.vmap(central.init)(state), vectors, draw(keys[2], slots, k)

  _, seconds = timing.time_repeats(server, *draw_inputs(), repeats=repeats)
  return _ROUNDS * float(np.median(seconds))


def table1(quick: bool) -> tuple[list[pages.Block], list[answers.PaperAnswer]]:
  """Table I: times every cell.

  Args:
    quick: whether fewer calls are timed.

  Returns:
    The paper's numbers and ours, and the answers to its claims.
  """
  sharding.start()
  paper, ours = _paper_seconds(), {}
  for label, by_gradient in (("MA-FSVRG", False), ("GA-FSVRG", True)):
    for k in _MODELS:
      for rate in _RATES:
        ours[label, k, rate] = _seconds(
          k, _MACHINES * rate // 100, by_gradient, 5 if quick else _REPEATS
        )
  rows = [
    [
      label,
      k,
      *(
        f"{times[label, k, rate]:.2f} "
        f"({times[label, k, rate] / times[label, 2, 10]:.1f})"
        for rate in _RATES
        for times in (paper, ours)
      ),
    ]
    for label, k in dict.fromkeys((label, k) for label, k, _ in ours)
  ]
  ratios = {
    m: [ours[m, k, 40] / ours[m, k, 10] for k in _MODELS]
    for m in ("MA-FSVRG", "GA-FSVRG")
  }
  blocks: list[pages.Block] = [
    f"Seconds for {_ROUNDS} rounds; in brackets relative to K = 2 at 10 %. "
    "You can only compare the ratios, because the paper has other hardware "
    "and does not give the data or the number of rounds.",
    pages.Table(
      [
        "method",
        "K",
        *(f"{rate} % {whose}" for rate in _RATES for whose in ("paper", "ours")),
      ],
      rows,
    ),
    "10 % to 40 % participation: paper 4 times, ours "
    f"{np.mean(list(ratios.values())):.1f} times on average.",
  ]
  return blocks, [
    answers.of_claim(
      "table1",
      claim,
      report.answer_number(ratios[claim.method], claim),
      # K and the rates are the paper's.
    )._replace(settings=chosen.STATED, tuning=chosen.STATED)
    for claim in report.load_claims("diversified", "Table1")
    if claim.metric == "central_time_ratio"
  ]


def _paper_seconds() -> dict[tuple[str, int, int], float]:
  """(method, K, participation in percent) -> seconds in the paper."""
  paper_seconds = {}
  for row in report.read_claims("diversified"):
    if row["artifact"] == "Table1" and row["unit"] == "s":
      key = row["method"], int(row["models"]), int(row["participation"])
      paper_seconds[key] = float(row["value"])
  return paper_seconds
