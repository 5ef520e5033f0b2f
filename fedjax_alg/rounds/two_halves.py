"""Any local method with any server step, for one or K global models.

A method has two halves: a ``client.update.ClientUpdate`` (how a client trains,
what it keeps and what it sends) and a ``central.steps.ServerStep``. ``compose``
makes an ``Algorithm`` of them, whose rounds are those of ``one_model``, or of
``k_models`` where K models share the participants.

A round has these steps; those that neither half needs are left out:

  1. the cohort measures the anchor gradient at the model, and a "before" step
     moves it;
  2. every participant trains, with K models from the one that it prefers;
  3. the mean update, or the means of K groups, are computed, and an "aggregate"
     step applies them; for an "after" step the cohort measures the anchor
     gradient again, at the new model;
  4. whatever else the clients sent is merged into the state kept between
     rounds.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import jax

from fedjax_alg import optional, trees
from fedjax_alg.base import (
  Algorithm,
  MapClients,
  Model,
  Params,
  initial_shapes,
  shared_client_params,
)
from fedjax_alg.central.steps import WHEN, ServerStep
from fedjax_alg.client.personal import Places, with_client_leaves, with_states
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.exchange.links import Exchange, fit, wrap
from fedjax_alg.exchange.privacy import CLIP_NORM
from fedjax_alg.models.roles import state_size
from fedjax_alg.rounds import k_models, one_model
from fedjax_alg.rounds.k_models import KModels, ModelGrouping
from fedjax_alg.rounds.loss_weights import sends_loss, weighs_by_losses
from fedjax_alg.rounds.one_model import ComposedState, TwoHalves
from fedjax_alg.typing import PyTree

__all__ = ["ComposedState", "ModelGrouping", "compose"]


def compose(
  model: Model,
  client: ClientUpdate,
  server: ServerStep,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
  grouping: ModelGrouping | None = None,
) -> Algorithm[ComposedState]:
  """Makes an algorithm of its two halves.

  Args:
    model: the model and its objective.
    client: the client's half.
    server: the server's half.
    map_clients: how one client's code is mapped over the participants.
    exchange: what happens to what clients and server send each other.
    grouping: how K models share the participants; None for one model.

  Raises:
    OptionError: ``client`` has one global model and ``grouping`` several, or see
      ``join_halves``.
  """
  method = pair_halves(model, client, server, map_clients, exchange)
  refused: dict[str, str] = {}
  if grouping:
    fields: Any = vars(method) | {"num_models": grouping.num_models}
    method = KModels(**fields, grouping=grouping)
    refused = k_models.forbidden_links(method)
  method = join_halves(method, refused)
  merges = model.roles is not None and model.roles.merging is not None
  if merges:
    merging = optional.load_extra("lora.merging", "`lora`")
    method = merging.hands_over(method)
  client, exchange = method.client, method.exchange
  run_round: Any = one_model.run_round
  models_of = lambda state: deployed_models(server, state.models, state.server)
  models: Any = lambda state: with_states(model, models_of(state), state.states)
  client_params: Any = shared_client_params(models)
  if method.moves_on_anchor:
    run_round = one_model.run_anchored_round
  if isinstance(method, KModels):
    run_round = k_models.run_k_models
    if method.num_models > 1:
      client_params = functools.partial(k_models.deploy_preferred, model, models_of)
  algorithm: Algorithm[Any] = Algorithm(
    functools.partial(one_model.init, method),
    functools.partial(one_model.setup, method),
    functools.partial(run_round, method),
    client_params,
    models,
    idle=None if exchange.privacy else one_model.idle,
    takes_parts=client.takes_parts,
    reports_state=(CLIP_NORM,),
  )
  if exchange.by_loss:
    algorithm = weighs_by_losses(algorithm, method, run_round, exchange.by_loss)
  if client.refresh:
    algorithm = one_model.admits_newcomers(algorithm, method)
  several = isinstance(method, KModels)
  if model.roles is not None:
    if model.roles.has_state and not several:
      algorithm = one_model.keeps_statistics(algorithm)
    algorithm = with_client_leaves(
      algorithm,
      client,
      model,
      map_clients,
      Places(
        lambda state: state.memory,
        lambda state, memory: state._replace(memory=memory),
        lambda state: state.states if several else trees.index(state.states, 0),
        method.num_models if several else None,
      ),
    )
  if merges:
    algorithm = merging.moves_kernels(algorithm, method)
  return wrap(exchange, algorithm)


def deployed_models(server: ServerStep, models: Params, states: PyTree) -> Params:
  """The K models that are deployed, [K, ...].

  Args:
    server: the server's half.
    models: [K, ...].
    states: [K, ...], the states of its step.
  """
  if server.deployed is None:
    return models
  return jax.vmap(server.deployed)(states, models)


def pair_halves(
  model: Model,
  client: ClientUpdate,
  server: ServerStep,
  map_clients: MapClients,
  exchange: Exchange,
) -> TwoHalves:
  """Puts two halves side by side, as they are given; see ``compose``."""
  return TwoHalves(
    model,
    client,
    server,
    map_clients,
    exchange,
    initial_shapes(model.init),
    state_size(model),
    one_model.mean_update,
  )


def join_halves(
  method: TwoHalves, refused: Mapping[str, str] | None = None
) -> TwoHalves:
  """Checks that two halves and the links between them fit, and joins them.

  Args:
    method: the halves and the links as they are given.
    refused: see ``links.fit``.

  Raises:
    OptionError: the server step is none, or a link does not fit (``links.fit``).
  """
  server, exchange = method.server, method.exchange
  check_server(server)
  refused = dict(refused or {})
  if server.needs_mean_square:
    refused |= {
      "private": "the server reads the norm of every update without noise "
      "(allowed: none)"
    }
    if not exchange.aggregator.is_mean:
      raise OptionError(
        f"`aggregator`={exchange.aggregator.name}: the server's step compares the mean "
        "update with each of them (allowed: mean)"
      )
  exchange, client = fit(
    exchange,
    method.client,
    method.model,
    num_models=method.num_models,
    released=len(method.purposes),
    refused=refused,
    carrier=method.map_clients.carrier,
  )
  if exchange.by_loss:
    client = sends_loss(client)
  return dataclasses.replace(method, client=client, exchange=exchange)


def check_server(server: ServerStep) -> None:
  """Refuses what is no server step.

  Raises:
    OptionError: it is none.
  """
  if server.when not in WHEN:
    raise OptionError(
      f"`server`: its step is taken {server.when!r}, must be one of {', '.join(WHEN)}"
    )
  if not hasattr(server.transform, "update"):
    raise OptionError(
      f"`server`: its transform is "
      f"{a_type(server.transform)}, must be an optax "
      "transformation"
    )
