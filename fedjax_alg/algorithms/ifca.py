"""IFCA: every participant trains the model whose loss on its data is least.

Reference: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered
Federated Learning", NeurIPS 2020, Algorithm 1 (and its public code).

Deviations: by default the groups' means are weighted by n_i, as in all
clustered methods of this library. The public code has uniform weights on MNIST
and CIFAR, and n_i on FEMNIST. ``common_layers`` are the shared representation of
the paper's FEMNIST runs.
"""

from collections.abc import Mapping
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import weighted
from fedjax_alg.algorithms.halves import (
  GroupTraining,
  in_groups,
  refuse_other_updates,
)
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  builder,
  num_params,
)
from fedjax_alg.central.steps import AverageServer
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import local_optimizer, refuse_options
from fedjax_alg.client.sgd import sgd
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.engine.clients import for_one
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds import clustered
from fedjax_alg.rounds.clustered import ClusteredState, Extra, Messages, Rule
from fedjax_alg.rounds.common_layers import mark_common, with_common_layers
from fedjax_alg.typing import PyTree

#: ``group_init``=reject stops after this many draws and takes the best of them.
MOST_DRAWS = 50


class SharedStart(Part):
  """Equal models; ties go to the first."""

  WORD = EXAMPLE = "shared"
  first: ClassVar[str] = "shared"  #: one of ``clustered.STARTS``


class IndependentStart(Part):
  """Models that are drawn at random."""

  WORD = EXAMPLE = "independent"
  first: ClassVar[str] = "independent"


class RejectedStart(Part):
  """Random models, drawn again until every group has a share of the clients."""

  WORD, EXAMPLE = "reject", "reject:0.1"
  first: ClassVar[str] = "independent"
  share: float = hyper(
    0.1,
    "share of the clients that every group must have at least",
    above=0.0,
    maximum=1.0,
    source="public code, 0.35 with two groups",
  )


class SpreadStart(Part):
  """One model after the other, each trained on a client that the others fit badly."""

  WORD = EXAMPLE = "kmeans++"
  first: ClassVar[str] = "shared"


_NO_STEPS = "with `averaging`=gradient clients take no local steps"


class IFCAHParams(GroupTraining):
  """Hyper-parameters of IFCA."""

  num_groups: int = hyper(
    3, "K, number of models that the server keeps", minimum=1, source="Ghosh et al.'s k"
  )
  averaging: str = hyper(
    "model",
    "what a group averages: model = the locally trained models, "
    "gradient = one full gradient of each member, where the sum is divided "
    "by the weight of all participants",
    choices=("model", "gradient"),
    source="Algorithm 1, options I and II",
  )
  group_init: SharedStart | IndependentStart | RejectedStart | SpreadStart = hyper(
    IndependentStart(),
    "how the K models start: shared = equal models (ties go "
    "to the first), independent = K random models, reject = K random models, "
    "drawn again until every group has a share of the clients, kmeans++ = one "
    "after the other, each trained on a client drawn in "
    "proportion to its least loss so far",
    source="public code (reject: its CIFAR runs); HypCluster (kmeans++)",
  )
  common_layers: str = hyper(
    "",
    "layers that the models of all groups have in common, a pattern as of `roles` "
    "such as Dense_0; they move by the mean over all participants, the others "
    "are each group's. Empty: none",
    source="Ghosh et al. section 6.3",
  )

  def unread_with(self, model: Model) -> Mapping[str, str]:
    """Names the options of local steps if there are none; see ``HParams``."""
    if self.averaging != "gradient" or isinstance(self.group_init, SpreadStart):
      return {}
    return dict.fromkeys(LocalWork.__dataclass_fields__, _NO_STEPS)


def _gradient_update(model: Model, client_lr: float) -> ClientUpdate:
  """A local method of one step against the full gradient."""

  def train(received, shard, client_row, key):
    loss, gradient = objective.full_value_and_grad(
      model, received.start, shard, objective.dropout_key(model, key, 0)
    )
    return Trained(trees.add_scaled(received.start, -client_lr, gradient), loss)

  return ClientUpdate(
    train,
    LocalWork(local_steps=1, batch_size=0),
    no_personal_because="sends a gradient and takes no local steps",
  )


def _draw_until_populated(
  model: Model,
  k: int,
  needed: float,
  models: Params,
  everyone: Cohort,
  key: Key,
  map_clients: MapClients,
) -> Params:
  """Draws K models until every group has the share ``needed`` of the clients."""
  present = everyone.present

  def smallest(models):
    losses = map_clients(
      functools.partial(objective.full_losses, model), models, everyone.shards
    )
    choice = jnp.where(present, jnp.argmin(losses, axis=1), k)
    size = trees.members(choice, k).sum(1)
    return size.min().astype(jnp.float32) / jnp.maximum(present.sum(), 1).astype(
      jnp.float32
    )

  def draw(carry):
    tries, best, models = carry
    new = clustered.independent_models(model, jax.random.fold_in(key, tries), k)
    share = smallest(new)
    return (tries + 1, jnp.maximum(share, best), trees.where(share > best, new, models))

  return jax.lax.while_loop(
    lambda carry: (carry[1] < needed) & (carry[0] < MOST_DRAWS),
    draw,
    (jnp.int32(0), smallest(models), models),
  )[2]


def _spread(
  model: Model,
  hparams: IFCAHParams,
  params: Params,
  everyone: Cohort,
  key: Key,
  map_clients: MapClients,
) -> Params:
  """K models, each trained on one client.

  The client is drawn in proportion to its least loss on the models so far.
  """
  k = hparams.num_groups
  present = everyone.present

  def add(j, models):
    losses = map_clients(
      functools.partial(objective.full_losses, model), models, everyone.shards
    )
    losses = jnp.where(jnp.arange(k)[None] < j, losses, jnp.inf).min(1)
    losses = jnp.where(j == 0, 1.0, losses)
    choose, work = jax.random.split(jax.random.fold_in(key, j))
    client = jax.random.categorical(
      choose, jnp.where(present, jnp.log(losses), -jnp.inf)
    )
    shards = everyone.shards
    shard = shards.at(shards.offset[client], shards.size[client])
    new = for_one(
      map_clients,
      lambda params, shard, key, personal: sgd(
        model,
        params,
        shard._replace(personal=personal),
        hparams,
        hparams.client_lr,
        key,
        optimizer=local_optimizer(hparams),
      )[0],
      params,
      shard,
      work,
      trees.index(shards.personal, client),
    )
    return jax.tree.map(lambda leaves, leaf: leaves.at[j].set(leaf), models, new)

  return jax.lax.fori_loop(jnp.int32(0), k, add, trees.repeat(params, k))


def _least_loss_rule(
  model: Model, hparams: IFCAHParams, map_clients: MapClients
) -> Rule:
  """IFCA's rule: the model of least loss, chosen anew in every round."""
  k, start = hparams.num_groups, hparams.group_init

  def init(params, spec, key):
    return clustered.initial_models(model, params, key, k, start.first), ()

  def setup(state: ClusteredState, everyone: Cohort, key: Key) -> ClusteredState:
    if isinstance(start, RejectedStart):
      return state._replace(
        models=_draw_until_populated(
          model, k, start.share, state.models, everyone, key, map_clients
        )
      )
    if isinstance(start, SpreadStart):
      return state._replace(
        models=_spread(
          model, hparams, trees.index(state.models, 0), everyone, key, map_clients
        )
      )
    return state

  def assign(
    models: Params,
    shared: PyTree,
    client_row: PyTree,
    member: Array,
    shard: Shard,
    key: Key,
  ) -> tuple[Array, tuple]:
    if k == 1:
      return jnp.int32(0), ()
    return objective.preferred_model(model, models, shard), ()

  def extra(before, after, cohort, notes):
    size = num_params(before.models) // k
    number = cohort.present.sum(dtype=jnp.int32)
    return Extra(
      down=Messages(number, (k - 1) * size),
      up=Messages(number, 1),  # the choice
      evaluations=k if k > 1 else 0,
    )

  return Rule(
    k,
    init,
    assign,
    setup=setup,
    reads_everyone=isinstance(start, RejectedStart | SpreadStart),
    extra=extra,
    whole_divisor=hparams.averaging == "gradient",
    reads_updates=False,
  )


@builder
def ifca(
  model: Model,
  hparams: IFCAHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """IFCA: every participant trains the model whose loss on its data is least.

  In every round participant i chooses the model k(i) = argmin_k f_i(w_k) anew.
    model averaging:     w_k <- sum_{k(i) = k} (n_i / n_k) v_i, where v_i is
                         trained from w_k by SGD;
    gradient averaging:  w_k <- w_k - client_lr (1 / n^r)
                                sum_{k(i) = k} n_i grad f_i(w_k).
  A model that no participant chooses stays as it is, but for `common_layers`.
  With one group and model averaging, IFCA is FedAvg.
  """
  client = None
  if hparams.averaging == "gradient":
    refuse_options(hparams, f"not read, {_NO_STEPS}")
    refuse_other_updates(hparams, _NO_STEPS)
    client = _gradient_update(model, hparams.client_lr)
  rule = _least_loss_rule(model, hparams, map_clients)
  if hparams.common_layers and hparams.num_groups > 1:
    if not isinstance(hparams.server, AverageServer):
      raise OptionError(
        f"`server`={hparams.server}: with `common_layers` the layers that all groups "
        "have move by a mean, and a step differs between groups (allowed: average)"
      )
    is_common = mark_common(model, hparams.common_layers)
    rule = with_common_layers(rule, is_common, weighted(exchange, hparams).weigh)
  return in_groups(
    model,
    hparams,
    rule,
    map_clients,
    client,
    exchange=exchange,
  )
