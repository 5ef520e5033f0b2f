"""An empirical lower bound of epsilon, beside the one that is accounted for.

Many runs are trained with a canary, a client that sends as long an update in a
fixed direction as it can, and as many in which the canary sends nothing. If the
noise hides a client as well as the accountant promises, the released models of
both kinds can hardly be told apart. A test that tells them apart more often than
an (epsilon, delta)-private method allows refutes that epsilon, so the largest
epsilon that is refuted is a lower bound (Jagielski, Ullman, Oprea, "Auditing
Differentially Private Machine Learning", NeurIPS 2020). A lower bound above the
accounted epsilon means that the clip, the noise or the accounting is broken.

``jax_privacy.auditing`` (extra ``audit``) turns the scores into the bound.
"""

from collections.abc import Callable, Iterable
import dataclasses
import importlib
import itertools
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_alg import trees
from fedjax_alg.data.federation import Federation
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import attacks
from fedjax_alg.exchange.privacy import Noised
from fedjax_alg.records import parameters
from fedjax_alg.runs import queue
from fedjax_alg.runs.plan import Plan, from_keywords
from fedjax_alg.runs.play import Step

#: Length of what a canary sends before it is clipped, in clip norms.
_LENGTH = 1e4


class Audit(NamedTuple):
  """What an audit measured."""

  lower_bound: float  #: of epsilon, at least 0; wrong with the chance ``error``
  epsilon: float  #: the accounted one; infinite without noise
  delta: float
  error: float  #: the chance that the lower bound is too large
  scores_in: np.ndarray  #: [N], of the runs with the canary
  scores_out: np.ndarray  #: [N], of the runs without

  @property
  def refutes(self) -> bool:
    """Whether the lower bound is above the accounted epsilon."""
    return self.lower_bound > self.epsilon


def lower_bound(
  scores_in: np.ndarray, scores_out: np.ndarray, delta: float, error: float
) -> float:
  """Bounds epsilon from below by the scores of canaries.

  Thresholds are chosen on one half of the scores and tested on the other, for
  100 random halves, by intervals of Clopper and Pearson.

  Args:
    scores_in: [N], larger where a canary is suspected.
    scores_out: [M].
    delta: delta of the (epsilon, delta) that is tested.
    error: the chance that the bound is too large, between 0 and 0.5.

  Returns:
    The bound, at least 0.

  Raises:
    OptionError: the package jax_privacy is missing.
  """
  try:
    auditing = importlib.import_module("jax_privacy.auditing")
  except ImportError:
    raise OptionError(
      "audit: needs jax_privacy (pip install 'fedjax_alg[audit]')"
    ) from None
  auditor = auditing.CanaryScoreAuditor(scores_in, scores_out)
  return max(
    0.0,
    float(
      auditor.epsilon_clopper_pearson(
        error, delta, threshold_strategy=auditing.MultiSplit(seed=0)
      )
    ),
  )


def audit_plan(
  plan: Plan,
  canaries: int = 200,
  error: float = 0.05,
  callbacks: Iterable[Callable[[Step], object]] = (),
) -> Audit:
  """Audits the privacy of a planned run; see ``audit``.

  Args:
    plan: the run. Its first seed decides the parameters that all runs start from.
    canaries: N, runs with the canary, and as many without.
    error: the chance that the lower bound is too large.
    callbacks: sinks, or functions that are called with every ``Step``.

  Returns:
    The scores and the bound.

  Raises:
    OptionError: an argument that cannot be used, or a run that has no canary.
  """
  if canaries < 2:
    raise OptionError(f"`canaries`={canaries}: must be at least 2")
  if not 0 < error < 0.5:
    raise OptionError(f"`error`={error:g}: must be more than 0 and less than 0.5")
  values = plan.method.options
  private = values.get("private")
  if not isinstance(private, Noised):
    raise OptionError("`private`=none: only a private run can be audited")
  if "attack" not in values:
    raise OptionError(
      f"`private`={private.WORD}: no client sends an update that could be a "
      "canary's (only fixed, adaptive and ftrl)"
    )
  if values["attack"] != attacks.NoAttack():
    raise OptionError(
      f"`attack`={values['attack']}: the hostile client of an audit is the canary"
    )
  prepared = plan.prepare()
  mechanism, clients = prepared.privacy(), prepared.spec.num_clients
  rounds = prepared.options.rounds
  assert mechanism is not None and rounds is not None
  if prepared.model.roles is not None:
    raise OptionError("`roles`: the canary of an audit sends the whole model")
  start = prepared.model.init(jax.random.key(plan.seeds[0]))
  direction = attacks.canary_direction(start)
  trains = np.asarray(prepared.federation.data.train.size) > 0
  fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(Plan)}
  fields |= {
    "run": dataclasses.replace(plan.run, eval_every=rounds, eval_protocols=("global",)),
    "init": parameters.flatten(start, "`init`"),
    "federation": prepared.federation,
  }

  def scores(length: float, first: int) -> np.ndarray:
    """The scores of N runs with a canary of some length, [N]."""
    canary = attacks.Canary(1 / clients, length, seed=_seed_of_one(trains))
    method = plan.method.with_values({"attack": canary})
    (result,), _ = queue.run_plans(
      [
        Plan(**fields | {"method": method, "seeds": (*range(first, first + canaries),)})
      ],
      callbacks,
    )
    assert result is not None
    return np.array(
      [
        trees.dot(
          trees.subtract(trees.index(result.global_params(seed), 0), start), direction
        )
        for seed in range(canaries)
      ]
    )

  with_canary = scores(_LENGTH * private.clip, 0)
  without = scores(0.0, canaries)
  return Audit(
    lower_bound(with_canary, without, mechanism.delta, error),
    mechanism.epsilon(rounds),
    mechanism.delta,
    error,
    with_canary,
    without,
  )


def _seed_of_one(trains: np.ndarray) -> int:
  """The first seed by which the hostile client is one that trains (``trains`` [C])."""
  for seed in itertools.count():
    hostile = attacks.hostile_clients(len(trains), 1 / len(trains), seed)
    if trains[np.flatnonzero(hostile)[0]]:
      return seed
  raise AssertionError


def audit(
  algorithm: object,
  federation: Federation,
  *,
  canaries: int = 200,
  error: float = 0.05,
  **options: Any,
) -> Audit:
  """Measures a lower bound of the epsilon of a private run.

  Use it to check that the noise hides a client as well as epsilon promises. The run
  is trained ``canaries`` times with a client that sends as long an update as it can
  in a fixed direction, and as often with that client silent. Each run has another
  seed, and all runs share two compiled programs. The score of a run is the distance
  that its last model has moved in that direction.

  Args:
    algorithm: see ``run``.
    federation: see ``run``; one partition only.
    canaries: N. With more of them a larger epsilon can be refuted: N = 200 refutes
      3.1 at most, N = 2,000 up to 5.4.
    error: the chance that the lower bound is too large.
    **options: the other arguments of ``run``, without ``callbacks``, ``out_dir`` with
      what belongs to it, and ``keep_best``, with `private`=fixed, adaptive or ftrl.
      ``evaluate``, ``eval_every`` and arrays given as ``init`` are not used.

  Returns:
    The lower bound, the accounted epsilon, and the scores.

  Raises:
    OptionError, DataError: an argument that cannot be used, or the package
      jax_privacy is missing.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=10, partition="iid")
    >>> audit = fa.audit("fedavg", fed, canaries=50, rounds=2, participation=1.0,
    ...                  private=fa.FixedClipping(noise=2.0))
    >>> audit.lower_bound < audit.epsilon
    True
  """
  return audit_plan(from_keywords(algorithm, federation, **options), canaries, error)
