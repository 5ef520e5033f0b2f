"""CFSVRG and CLSFSVRG: conjugate central acceleration of FSVRG.

Reference: Zhao, Cai, Lu, "Accelerating Federated Learning for Edge
Intelligence using Conjugated Central Acceleration with Inexact Global Line
Search", Algorithm 1 and Procedure 1.

A round r is lines 3-16 for one cohort: anchor gradient g(w^{r-1}) (6), (23),
conjugate direction (24)-(25), step (30), local training (14)-(19) from the
moved model, aggregation (20)-(22). What the paper leaves open or prints
wrongly, and what is done instead, is listed in docs/papers/conjugate.md.
"""

import dataclasses
from typing import Any

from fedjax_alg.algorithms.fsvrg import FSVRGHParams, svrg_update
from fedjax_alg.base import Algorithm, MapClients, Model
from fedjax_alg.central import steps
from fedjax_alg.central.conjugate_gradient import BETA_RULES
from fedjax_alg.central.line_search import TESTS
from fedjax_alg.hparams import hyper, validate
from fedjax_alg.rounds.two_halves import ComposedState, compose


@dataclasses.dataclass(frozen=True)
class Conjugate:
  """Hyper-parameters of the conjugate directions."""

  beta_rule: str = hyper(
      "fr", "beta_r: fr = Fletcher-Reeves (the paper), pr+ = Polak-Ribiere "
      "plus, hs = Hestenes-Stiefel, dy = Dai-Yuan", choices=BETA_RULES,
      source="(24)",
      when=("server", ("conjugate_gradient", "cg_line_search")))


@dataclasses.dataclass(frozen=True)
class LineSearch:
  """Hyper-parameters of the line search on the validation loss."""

  gamma: float = hyper(
      0.8, "dampening factor of the line search", above=0.0, below=1.0,
      source="(29); value not stated", when=("server", ("cg_line_search",)))
  initial_step: float = hyper(
      1.0, "eta tried first in every round", above=0.0,
      source="section IV-C", when=("server", ("cg_line_search",)))
  line_search_test: str = hyper(
      "half_gradient", "when eta passes: half_gradient = decrease above "
      "(eta/2) g.g, armijo, decrease = any, printed = (29) as printed",
      choices=TESTS, source="(29)", when=("server", ("cg_line_search",)))
  max_tries: int = hyper(
      40, "steps tested in one round; if none passes the model stays",
      minimum=1, source="not in the paper",
      when=("server", ("cg_line_search",)))


@dataclasses.dataclass(frozen=True)
class Aggregate:
  """The step along the clients' mean update beside an acceleration."""

  aggregate_lr: float = hyper(
      1.0, "alpha_g, step along the clients' mean update", above=0.0,
      source="conjugate (22)", when=(
          "server", ("adaptive", "conjugate_gradient", "cg_line_search")))


@dataclasses.dataclass(frozen=True)
class CFSVRGHParams(Conjugate, Aggregate, FSVRGHParams):
  """Hyper-parameters of CFSVRG."""

  client_lr: float = hyper(
      0.3, "alpha_l; client i steps by alpha_l / n_i", above=0.0,
      source="Procedure 1, line 2; .3 in Figs. 2-3")
  server_lr: float = hyper(
      0.02, "eta, constant step along the conjugate direction", above=0.0,
      source="(30); not stated")


@dataclasses.dataclass(frozen=True)
class CLSFSVRGHParams(LineSearch, Conjugate, Aggregate, FSVRGHParams):
  """Hyper-parameters of CLSFSVRG."""

  client_lr: float = hyper(
      0.3, "alpha_l; client i steps by alpha_l / n_i", above=0.0,
      source="Procedure 1, line 2; .3 in Figs. 2-3")


def cfsvrg_server(hparams: Any) -> steps.ServerStep:
  """A constant step along conjugate directions.

  Args:
    hparams: with the fields of ``Conjugate`` and ``Aggregate``, and
      ``server_lr``, which is eta.
  """
  return steps.conjugate(
      hparams.server_lr, hparams.beta_rule, hparams.aggregate_lr)


def clsfsvrg_server(hparams: Any) -> steps.ServerStep:
  """A searched step along conjugate directions.

  Args:
    hparams: with the fields of ``LineSearch``, ``Conjugate``, ``Aggregate``.
  """
  return steps.conjugate_line_search(
      hparams.beta_rule, hparams.aggregate_lr, gamma=hparams.gamma,
      test=hparams.line_search_test, initial_step=hparams.initial_step,
      max_tries=hparams.max_tries)


def cfsvrg(
    model: Model, hparams: CFSVRGHParams, *, map_clients: MapClients
) -> Algorithm[ComposedState]:
  """CFSVRG: conjugate directions with a constant step.

  Arguments and errors as of every builder (``registry.Entry``).
  """
  validate(hparams)
  return compose(model, svrg_update(model, hparams), cfsvrg_server(hparams),
                 map_clients=map_clients)


def clsfsvrg(
    model: Model, hparams: CLSFSVRGHParams, *, map_clients: MapClients
) -> Algorithm[ComposedState]:
  """CLSFSVRG: conjugate directions, step by line search on validation data.

  Arguments and errors as of every builder (``registry.Entry``); the first round
  raises ValueError where the cohort has no validation data.
  """
  validate(hparams)
  return compose(model, svrg_update(model, hparams), clsfsvrg_server(hparams),
                 map_clients=map_clients)
