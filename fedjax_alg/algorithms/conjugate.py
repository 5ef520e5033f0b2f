"""CFSVRG and CLSFSVRG: conjugate central acceleration of FSVRG.

Reference: Zhao, Cai, Lu, "Accelerating Federated Learning for Edge
Intelligence using Conjugated Central Acceleration with Inexact Global Line
Search", Algorithm 1 and Procedure 1.

Round r is lines 3-16 of Algorithm 1 for one cohort: the anchor gradient
g(w^{r-1}) by (6) and (23), the conjugate direction by (24)-(25), the server's
step by (30), local training from the moved model by (14)-(19), and the
aggregation by (20)-(22). docs/papers/conjugate.md lists what the paper leaves
open or prints wrongly, and what is done here instead.
"""

from typing import Any

from fedjax_alg.algorithms.common import averaging
from fedjax_alg.algorithms.fsvrg import FSVRGHParams, svrg_update
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.central import steps
from fedjax_alg.central.conjugate_gradient import BETA_RULES
from fedjax_alg.central.line_search import TESTS
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.rounds.two_halves import ComposedState


class Conjugate(HParams):
  """Hyper-parameters of the conjugate directions."""

  beta_rule: str = hyper(
    "fr",
    "formula of beta_r: fr = Fletcher-Reeves (the paper), pr+ = "
    "Polak-Ribiere plus, hs = Hestenes-Stiefel, dy = Dai-Yuan",
    choices=BETA_RULES,
    source="(24)",
  )


class LineSearch(HParams):
  """Hyper-parameters of the line search on the validation loss."""

  gamma: float = hyper(
    0.8,
    "factor by which the line search shrinks eta after a failed test",
    above=0.0,
    below=1.0,
    source="(29); value not stated",
  )
  initial_step: float = hyper(
    1.0,
    "eta that the line search tests first in every round",
    above=0.0,
    source="section IV-C",
  )
  line_search_test: str = hyper(
    "half_gradient",
    "which eta the line search accepts: half_gradient = the "
    "loss falls by more than (eta/2) g.g, armijo = Armijo's test, decrease = "
    "the loss falls, printed = (29) as printed",
    choices=TESTS,
    source="(29)",
  )
  max_tries: int = hyper(
    40,
    "largest number of values of eta tested in one round; if none "
    "passes, the server does not move the model",
    minimum=1,
    source="not in the paper",
  )


class Aggregate(HParams):
  """The factor of the mean update in methods that also accelerate."""

  aggregate_lr: float = hyper(
    1.0,
    "alpha_g, factor of the participants' mean update",
    above=0.0,
    source="conjugate (22)",
    neutral=1.0,
  )


class _ConjugateHParams(Conjugate, Aggregate, FSVRGHParams):
  client_lr: float = hyper(
    0.3,
    "alpha_l; the learning rate of client i is alpha_l / n_i",
    above=0.0,
    source="Procedure 1, line 2; .3 in Figs. 2-3",
  )


class CFSVRGHParams(_ConjugateHParams):
  """Hyper-parameters of CFSVRG."""

  server_lr: float = hyper(
    0.02,
    "eta, constant step along the conjugate direction",
    above=0.0,
    source="(30); not stated",
  )


class CLSFSVRGHParams(LineSearch, _ConjugateHParams):
  """Hyper-parameters of CLSFSVRG."""


def cfsvrg_server(hparams: Any, server_lr: float) -> steps.ServerStep:
  """A constant step along conjugate directions.

  Args:
    hparams: has the fields of ``Conjugate`` and ``Aggregate``.
    server_lr: eta.
  """
  return steps.conjugate(server_lr, hparams.beta_rule, hparams.aggregate_lr)


def clsfsvrg_server(hparams: Any) -> steps.ServerStep:
  """A step along conjugate directions whose length a line search finds.

  Args:
    hparams: has the fields of ``LineSearch``, ``Conjugate`` and ``Aggregate``.
  """
  return steps.conjugate_line_search(
    hparams.beta_rule,
    hparams.aggregate_lr,
    gamma=hparams.gamma,
    test=hparams.line_search_test,
    initial_step=hparams.initial_step,
    max_tries=hparams.max_tries,
  )


class ConjugateServer(Aggregate, Conjugate, steps.ServerRule):
  """A constant step along conjugate directions, as in CFSVRG."""

  WORD, EXAMPLE = "conjugate_gradient", "conjugate_gradient:beta_rule=pr+"

  @property
  def usual_rate(self) -> float:
    return 0.02

  def build(self, server_lr: float) -> steps.ServerStep:
    """Makes ``steps.conjugate``."""
    return cfsvrg_server(self, server_lr)


class LineSearchServer(Aggregate, Conjugate, LineSearch, steps.ServerRule):
  """A step along conjugate directions that a line search finds, as in CLSFSVRG."""

  WORD, EXAMPLE = "cg_line_search", "cg_line_search:gamma=0.5"

  @property
  def usual_rate(self) -> None:
    return None

  def build(self, server_lr: float) -> steps.ServerStep:
    """Makes ``steps.conjugate_line_search``."""
    return clsfsvrg_server(self)


@builder
def cfsvrg(
  model: Model,
  hparams: CFSVRGHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """CFSVRG: the server follows conjugate directions with a constant step.

  The participants first measure the anchor gradient g at the global model w.
  Then the server moves the model along the conjugate direction d,
    d <- -g + beta_r d,    w_hat = w + server_lr d,
  where `beta_rule` says how beta_r is computed. The participants take FSVRG's
  local steps from w_hat, and the server adds their mean update,
    w <- w_hat + aggregate_lr A sum_i (n_i/n^r) (w_i - w_hat).
  """
  return averaging(
    model,
    svrg_update(model, hparams),
    hparams,
    map_clients,
    cfsvrg_server(hparams, hparams.server_lr),
    exchange=exchange,
  )


@builder
def clsfsvrg(
  model: Model,
  hparams: CLSFSVRGHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """CLSFSVRG: CFSVRG whose server step is found by a line search.

  The method is that of ``cfsvrg`` with w_hat = w + eta d. The step eta is the
  first of initial_step, gamma initial_step, gamma^2 initial_step, ... that
  passes `line_search_test` on f_v, the loss on the server's validation
  examples. If none of the first `max_tries` passes, eta is 0.

  Raises:
    OptionError: the first round finds no validation data.
  """
  return averaging(
    model,
    svrg_update(model, hparams),
    hparams,
    map_clients,
    clsfsvrg_server(hparams),
    exchange=exchange,
  )
