"""FedSoft: clients belong to several clusters, in proportions of their own.

Reference: Ruan, Joe-Wong, "FedSoft: Soft Clustered Federated Learning with
Proximal Local Updating", AAAI 2022, and the authors' code. Client k has
importance weights u_ks, the share of its examples that the center c_s of
cluster s serves best, and trains one personal model w_k, pulled to all centers:

  min_w f_k(w) + (lambda / 2) sum_s u_ks ||w - c_s||^2

The pull is lambda (sum_s u_ks) (w - m_k), where m_k is the mean of the centers
by u_k: a client needs no more than m_k and the sum.

Readings: a weight is at least sigma; the code puts sigma in the place of a share
of 0, which is the same where sigma is below 1 / n_k. The code trains on from the
personal model of the client's last round (`local_start`=personal); with
`local_start`=centers it starts at m_k, which with one-hot u is FedProx in the
groups of IFCA, each example having a vote.

Deviations: the code draws participants for each cluster, in proportion to u_ks
n_k, and averages them alike. Here the run's sampler draws one cohort, and the
mean of every cluster is over all of it by u_ks n_k, as the code averages without
selection. Participants estimate u when they take part, once in every
`estimate_every` rounds; the code asks all clients then. A client that has not
trained yet starts at m_k.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.client_updates import in_groups
from fedjax_alg.algorithms.common import product_caution
from fedjax_alg.algorithms.ditto import PersonalModels
from fedjax_alg.base import (
  Algorithm,
  Array,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  builder,
  num_params,
)
from fedjax_alg.client import mixture, objective
from fedjax_alg.client.optimizers import descent, local_optimizer
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, Received, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds import clustered
from fedjax_alg.rounds.clustered import ClusteredState, Extra, GroupWork, Messages, Rule

_SOURCE = "Ruan and Joe-Wong"


class FedSoftHParams(GroupWork):
  """Hyper-parameters of FedSoft."""

  #: the option with the number of models that must start apart
  APART: ClassVar[str] = "num_groups"

  num_groups: int = hyper(
    3, "K, number of clusters", minimum=1, source=f"{_SOURCE}'s S"
  )
  lam: float = hyper(
    0.1,
    "lambda, strength of the pull of the personal model to the centers; keep "
    "`client_lr` x `lam` below 2",
    minimum=0.0,
    source=f"{_SOURCE}; public code on MNIST",
  )
  sigma: float = hyper(
    1e-4,
    "least importance weight of a cluster",
    minimum=0.0,
    maximum=1.0,
    source=f"{_SOURCE}; public code",
  )
  estimate_every: int = hyper(
    1,
    "tau, a client estimates its importance weights once in so many rounds",
    minimum=1,
    source=f"{_SOURCE}; public code",
  )
  local_start: str = hyper(
    "personal",
    "where the local steps start: personal = at the client's own model of its "
    "last round, centers = at the mean of the centers by its importance weights",
    choices=("personal", "centers"),
    source=f"{_SOURCE}; public code",
  )


class Importance(NamedTuple):
  """What the server keeps of the clients; also of the participants, as notes."""

  weights: Array  #: [C, K] float32, u
  period: Array  #: [C] int32, the period of tau rounds they are of; -1: none


class Clock(NamedTuple):
  """The memory of the rule."""

  importance: Importance
  round: Array  #: [] int32, rounds completed


def importance_weights(
  model: Model, sigma: float, centers: Params, shard: Shard
) -> Array:
  """The share of a client's examples that each center serves best, at least sigma.

  Args:
    model: the model.
    sigma: the least weight.
    centers: leaves [K, ...].
    shard: the client's training data.

  Returns:
    [K] float32; of equal losses the first counts. Without examples 1 / K.
  """
  k = jax.tree.leaves(centers)[0].shape[0]

  def votes(x, y, mask):
    outputs = mixture.outputs(model, centers, x, mask)
    best = jnp.argmin(jax.vmap(model.loss, (0, None))(outputs, y), axis=0)
    return (trees.members(best, k) & mask[None]).sum(1, dtype=jnp.int32)

  number: Array = objective.sum_blocks(shard, votes)
  share = number.astype(jnp.float32) / jnp.maximum(shard.size, 1).astype(jnp.float32)
  return jnp.where(shard.size > 0, jnp.maximum(share, sigma), 1.0 / k)


def soft_rule(model: Model, hparams: FedSoftHParams) -> Rule:
  """FedSoft's rule: memberships by the examples' least losses."""
  k, tau = hparams.num_groups, hparams.estimate_every

  def init(params, spec, key):
    start = "independent" if k > 1 else "shared"
    return clustered.initial_models(model, params, key, k, start), Clock(
      Importance(
        jnp.full((spec.num_clients, k), 1.0 / k, jnp.float32),
        jnp.full(spec.num_clients, -1, jnp.int32),
      ),
      jnp.int32(0),
    )

  def assign(models, rounds, row, member, shard, key):
    period = rounds // tau

    def estimate():
      return importance_weights(model, hparams.sigma, models, shard)

    weights = jnp.ones(1)
    if k > 1:
      weights = jax.lax.cond(row.period < period, estimate, lambda: row.weights)
    return jnp.argmax(weights).astype(jnp.int32), Importance(weights, period)

  def extra(before, after, cohort, notes):
    number = cohort.present.sum(dtype=jnp.int32)
    last = _rows(before.memory, cohort.ids).period
    asked = cohort.present & (last < before.round // tau) if k > 1 else 0
    return Extra(
      down=Messages(number, (k - 1) * num_params(before.models) // k),
      up=Messages(jnp.sum(asked, dtype=jnp.int32), k),
      evaluations=k * jnp.asarray(asked, jnp.int32),
    )

  return Rule(
    k,
    init,
    assign,
    shared=lambda memory: memory.round,
    client_rows=_rows,
    before=lambda state, cohort, key: state._replace(
      memory=state.memory._replace(round=state.round)
    ),
    finish=_keep_importance,
    extra=extra,
    memberships=lambda notes: notes.weights,
  )


def _rows(memory: Clock, ids: Array) -> Importance:
  return Importance(
    memory.importance.weights.at[ids].get(mode="clip"),
    memory.importance.period.at[ids].get(mode="fill", fill_value=-1),
  )


def _keep_importance(state: ClusteredState, cohort: Any, result: Any) -> ClusteredState:
  importance = jax.tree.map(
    lambda table, rows: table.at[cohort.ids].set(rows, mode="drop"),
    state.memory.importance,
    result.notes,
  )
  return state._replace(memory=state.memory._replace(importance=importance))


def _update(model: Model, hparams: FedSoftHParams) -> ClientUpdate:
  optimizer = local_optimizer(hparams)

  def init(params, spec):
    clients = spec.num_clients
    return PersonalModels(trees.repeat(params, clients), jnp.zeros(clients, bool))

  def train(received: Received, shard: Shard, row: Any, key: Key) -> Trained:
    start = received.start
    if hparams.local_start == "personal":
      start = trees.where(row.met, row.models, start)
    strength = hparams.lam * received.memberships.sum()

    def pull(gradient, params, _):
      away = trees.subtract(params, received.start)
      return trees.add_scaled(gradient, strength, away)

    steps = descent(hparams.client_lr, optimizer, received.round)
    params, loss, *_ = descend(model, start, shard, hparams, key, steps, pull)
    return Trained(
      params, loss, kept=PersonalModels(params, row.met | (shard.size > 0))
    )

  return ClientUpdate(
    train,
    hparams,
    init=init,
    no_personal_because="keeps a personal model of all parameters",
    store=Store.whole(),
  )


@builder
def fedsoft(
  model: Model,
  hparams: FedSoftHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[Any]:
  """FedSoft: clients belong to several clusters, in proportions of their own.

  Participant k finds for each of its examples the center of least loss,
    u_ks = max(sigma, share of its examples that c_s serves best),
  and takes local steps for its personal model, which it keeps,
    w_k <- w_k - client_lr (g_k(w_k; B) + lam sum_s u_ks (w_k - c_s)).
  The server takes the means of these models, c_s <- sum_k u_ks n_k w_k /
  sum_k u_ks n_k. The centers start as K random models.

  Returns:
    Its ``client_params`` is w_k, and for a client that has not taken part yet
    what local steps from the mean of the centers make of it.
  """
  client = _update(model, hparams)
  rule = soft_rule(model, hparams)
  algorithm = in_groups(model, hparams, rule, map_clients, client, exchange=exchange)

  def client_params(state, client_id, shard, key):
    table = state.clients
    while not isinstance(table, PersonalModels):  # beside what it has not sent
      table = table[1]
    row = trees.rows(table, client_id)
    met = row.met & (client_id < trees.num_rows(table.met))
    shard = shard._replace(size=jnp.where(met, 0, shard.size))
    importance = trees.index(_rows(state.memory, client_id[None]), 0)
    _, note = rule.assign(state.models, state.memory.round, importance, 0, shard, key)
    center = trees.slot_mean(note.weights, state.models)
    received = Received(
      center, center, (), (), state.round, client_id, memberships=note.weights
    )
    new = client.train(received, shard, row._replace(met=met), key).params
    return trees.where(met, row.models, new)

  return algorithm._replace(client_params=client_params)


def caution_pull(hparams: FedSoftHParams, num_params: int) -> str:
  """A warning if the local steps diverge on any data, else ""."""
  return product_caution(hparams, "client_lr", "lam", 2.0, "the local steps diverge")
