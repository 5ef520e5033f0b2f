"""FeSEM: a client belongs to the nearest of K models in parameter space.

Reference: Xie et al., "Multi-Center Federated Learning", arXiv:2005.01026. The
method minimizes sum_k min_j ||W_k - C_j||^2 over the centers C_j, where W_k is
client k's last local model. In a round

  E: client k belongs to the center j = argmin_j ||W_k - C_j||;
  U: the client trains from C_j, which gives the new W_k;
  M: C_j becomes the mean of the new W_k of its participants.

Deviations: the distance is over all parameters; the public code takes the last
dense kernel alone. By default means are weighted by n_i, as in all clustered
methods of this library; the paper's are uniform. The paper does not say to
which center a client belongs that has not trained yet; ``first_group`` offers
three ways to choose. Such a client deploys a center that has clients, if any has:
one of nobody is still the random model that it began as.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, trees
from fedjax_alg.algorithms.halves import GroupTraining, in_groups
from fedjax_alg.algorithms.ifca import IndependentStart, SharedStart
from fedjax_alg.base import (
  Algorithm,
  Array,
  MapClients,
  Model,
  Params,
  builder,
  num_params,
)
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds import clustered
from fedjax_alg.rounds.clustered import ClusteredState, Extra, Messages, Rule


class TrainedModel(Part):
  """The center nearest to the client's model after some steps from the initial one."""

  WORD, EXAMPLE = "trained", "trained:50"
  steps: int = hyper(
    50,
    "mini-batch steps that a client trains before its first center is chosen",
    minimum=0,
  )


class InitialModel(Part):
  """The center nearest to the initial model, the same for all clients."""

  WORD = EXAMPLE = "initial"
  steps: ClassVar[int] = 0


class RandomCenter(Part):
  """A center drawn at random."""

  WORD = EXAMPLE = "random"
  steps: ClassVar[int] = 0


class FeSEMHParams(GroupTraining):
  """Hyper-parameters of FeSEM."""

  num_groups: int = hyper(3, "K, number of centers C_j", minimum=1, source="Xie et al.")
  group_init: SharedStart | IndependentStart = hyper(
    IndependentStart(),
    "how the K centers start: independent = K random models, shared = K equal models; "
    "ties go to the first, which moves away from the others",
  )
  first_group: TrainedModel | InitialModel | RandomCenter = hyper(
    TrainedModel(),
    "center of a client that has not trained yet: trained = the center nearest to "
    "the client's model after some steps from the initial model, initial "
    "= the center nearest to the initial model (the same for all clients), random = "
    "a center drawn at random",
    source="FlexCFL's code (initial); public code (random)",
  )


class Locals(NamedTuple):
  """State of the server of FeSEM between rounds."""

  start: Params  #: the initial model
  last: Array  #: [C, P], W_k
  trained: Array  #: [C] bool, whether the client has trained


def _nearest_rule(model: Model, hparams: FeSEMHParams) -> Rule:
  """FeSEM's rule: the center nearest to the client's last local model."""
  k = hparams.num_groups
  pretrain_steps = hparams.first_group.steps
  before_all = hparams.with_steps(pretrain_steps)

  def init(params, spec, key):
    models = clustered.initial_models(model, params, key, k, hparams.group_init.first)
    return models, Locals(
      params,
      jnp.zeros((spec.num_clients, num_params(params))),
      jnp.zeros(spec.num_clients, bool),
    )

  def client_rows(memory: Locals, ids: Array) -> tuple[Array, Array]:
    return (
      memory.last.at[ids].get(mode="clip"),
      memory.trained.at[ids].get(mode="fill", fill_value=False),
    )

  def first(centres, start, shard, key):
    if isinstance(hparams.first_group, RandomCenter):
      return jax.random.randint(key, (), 0, k, jnp.int32)
    params = start
    if pretrain_steps:
      params = clustered.pretrain_model(model, hparams, start, shard, key, before_all)
    return grouping.nearest_centre(clustered.flat(params), centres)

  def assign(models, start, client_row, member, shard, key):
    last, trained = client_row
    if k == 1:
      return jnp.int32(0), trained
    centres, _ = trees.to_matrix(models)
    return jax.lax.cond(
      trained,
      lambda: grouping.nearest_centre(last, centres),
      lambda: first(centres, start, shard, key),
    ), trained

  def extra(before, after, cohort, trained):
    size = num_params(before.models) // k
    present = cohort.present
    flops = 3.0 * k * size * present.sum().astype(jnp.float32)
    if k == 1 or not pretrain_steps:
      return Extra(flops=flops)
    new = present & ~trained
    number = new.sum(dtype=jnp.int32)
    own_gradients = jnp.where(
      new, jax.vmap(before_all.examples_read)(cohort.shards.size), 0
    )
    return Extra(
      down=Messages(number, size),
      up=Messages(number, size),
      exchanges=new.any().astype(jnp.int32),
      example_gradients=own_gradients.sum(),
      flops=flops,
      own_gradients=own_gradients,
      own_batches=jnp.where(new, pretrain_steps, 0),
    )

  return Rule(
    k,
    init,
    assign,
    shared=lambda memory: memory.start,
    client_rows=client_rows,
    extra=extra,
    joinable=lambda state: trees.members(state.member, k).any(1),
    finish=lambda state, cohort, result: clustered.with_last(
      state, cohort, result.trained
    ),
  )


@builder
def fesem(
  model: Model,
  hparams: FeSEMHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ClusteredState]:
  """FeSEM: a client belongs to the nearest of K models, the centers C_j.

  Participant i belongs to the center j(i) = argmin_j ||W_i - C_j||, where W_i
  is its last trained model. It trains from C_j(i), which gives its new W_i. The
  server then moves every center to the mean over its participants,
    C_j <- sum_{j(i) = j} (n_i / n_j) W_i.
  With one center, FeSEM is FedAvg.
  """
  return in_groups(
    model, hparams, _nearest_rule(model, hparams), map_clients, exchange=exchange
  )
