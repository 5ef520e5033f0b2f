"""MA-FSVRG and GA-FSVRG: K accelerated global models for unlike clients.

Reference: Zhao, Cai, Lu, "Tailored Federated Learning With Adaptive Central
Acceleration on Diversified Global Models", IEEE TNNLS 2024. Procedure 1 (local
training), 2 (grouping by model), 3 (grouping by gradient), 4 (acceleration).
The paper writes C for the number of models, here K.

Rounds 1 to T train one model; round T+1 splits it into K. What the paper
leaves open or prints wrongly, and what is done instead, is listed in
docs/papers/diversified.md.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import grouping, trees
from fedjax_alg.base import Algorithm, Array, Cohort, FedSpec, Key, MapClients
from fedjax_alg.base import Model, Params, RoundAux, num_params, round_cost
from fedjax_alg.central import adaptive, feature_statistics as features
from fedjax_alg.central.adaptive import RULES, AdaptiveState
from fedjax_alg.client import objective
from fedjax_alg.client.svrg import FSVRGHParams, feature_scaling, svrg
from fedjax_alg.engine.rounds import client_keys
from fedjax_alg.hparams import hyper, validate


@dataclasses.dataclass(frozen=True)
class DiversifiedHParams(FSVRGHParams):
  """Hyper-parameters of MA-FSVRG and GA-FSVRG."""

  num_models: int = hyper(
      4, "K, global models the server keeps", minimum=1,
      source="the paper's C")
  threshold: int = hyper(
      4, "T, rounds with one model before the grouping starts", minimum=0,
      source="section IV-A")
  accelerate: bool = hyper(
      True, "adaptive central acceleration", source="Procedure 4")
  server_lr: float = hyper(
      0.02, "alpha_g^0, step of the acceleration, per round", above=0.0,
      source="(64)")
  beta1: float = hyper(
      0.9, "decay of the anchor gradients' first moment", minimum=0.0,
      below=1.0, source="(62)")
  beta2: float = hyper(
      0.999, "decay of the anchor gradients' second moment", minimum=0.0,
      below=1.0, source="(63)")
  eps: float = hyper(1e-8, "inside the root", above=0.0, source="(64)")
  central_rule: str = hyper(
      "corrected", "corrected = Adam with second-moment correction, printed = "
      "(64) as printed, whose step is (1-beta1)/sqrt(1-beta2) times longer",
      choices=RULES, source="(64)")
  split: str = hyper(
      "farthest", "how round T+1 parts the K copies: farthest = farthest-first "
      "participants as centres, copies = centres stay equal, groups part one "
      "by one", choices=("farthest", "copies"), source="(39), (53)")
  centre_projection: bool = hyper(
      True, "subtract the participants' mean from the projected group "
      "centres; false as printed", source="(39), (53)")


@dataclasses.dataclass(frozen=True)
class GAHParams(DiversifiedHParams):
  """Hyper-parameters of GA-FSVRG."""

  gradient_step: float = hyper(
      1.0, "length of the step along the group's gradient; negative climbs, "
      "as printed", source="(57)-(58)")


class DiversifiedState(NamedTuple):
  """The server of MA-FSVRG and GA-FSVRG."""

  models: Params  #: [K, ...], w_hat_k; equal copies during the warm-up
  moments: AdaptiveState  #: [K, ...]
  round: Array  #: [] int32, rounds completed
  statistics: features.FeatureStatistics


class _Trained(NamedTuple):
  """What Procedure 1 gives, slot by slot."""

  params: Params  #: [S, ...], w_{i,K}
  preference: Array  #: [S] int32, (18)
  loss: Array  #: [S] float32, full loss of the preferred model
  anchors: Params  #: [K, ...], g_k, (17)


def _global_params(state: DiversifiedState) -> Params:
  return state.models


def group_vectors(
    hparams: DiversifiedHParams, vectors: Params, centres: Params,
    present: Array, splitting: Array) -> tuple[Params, grouping.Groups]:
  """k-means on the first K-1 components, lifted back ((25)-(43), (44)-(56)).

  Args:
    hparams: hyper-parameters.
    vectors: [S, ...] what is grouped, trained models or gradients.
    centres: [K, ...] where the groups start.
    present: [S] bool.
    splitting: [] bool, the K centres are equal copies.

  Returns:
    The groups' means in the full space [K, ...], and the groups.
  """
  rows, from_rows = trees.to_matrix(vectors)
  starts, _ = trees.to_matrix(centres)
  k = starts.shape[0]
  projection = grouping.project(rows, present, k - 1)
  start = grouping.place(projection, starts, centre=hparams.centre_projection)
  if hparams.split == "farthest":
    apart = grouping.farthest_first(projection.points, present, start[0], k)
    start = jnp.where(splitting, apart, start)
  groups = grouping.lloyd(projection.points, present, start)
  return from_rows(grouping.lift(projection, groups.centres)), groups


def _diversified(
    model: Model,
    hparams: DiversifiedHParams,
    gradient_step: float | None,
    map_clients: MapClients,
) -> Algorithm[DiversifiedState]:
  """Both methods; grouping by gradients if there is a gradient step."""
  by_gradient = gradient_step is not None
  scales = hparams.local_scaling and model.scale_features is not None
  central = adaptive(hparams.server_lr, hparams.beta1, hparams.beta2,
                     hparams.eps, hparams.central_rule)

  def init(params: Params, spec: FedSpec, key: Key) -> DiversifiedState:
    del key
    models = trees.repeat(params, hparams.num_models)
    return DiversifiedState(
        models, jax.vmap(central.init)(models), jnp.zeros((), jnp.int32),
        features.no_statistics(spec))

  def setup(state, everyone: Cohort, key: Key) -> DiversifiedState:
    del key
    return state._replace(
        statistics=features.gather_statistics(everyone, map_clients))

  def full_passes(models: Params, cohort: Cohort) -> tuple[Array, Params]:
    """Losses [S, K] and gradients [S, K, ...] of every model everywhere."""

    def one_client(models, shard):
      return jax.vmap(lambda params: objective.full_value_and_grad(
          model, params, shard))(models)

    return map_clients(one_client, models, cohort.shards)

  def procedure_1(
      models: Params, statistics: features.FeatureStatistics,
      cohort: Cohort, key: Key) -> _Trained:
    """Preference and variance-reduced local training, (17)-(24)."""
    losses, gradients = full_passes(models, cohort)
    # (17) averages over S^r, not S^{r-1}, whose members never see the models
    # after acceleration; every participant counts for every k (errata D-06).
    anchors = trees.slot_mean(cohort.weight, gradients)
    preference = jnp.argmin(losses, axis=1).astype(jnp.int32)

    def train(shared, shard, preference, key):
      models, anchors, share = shared
      scaling = feature_scaling(shard, share) if scales else None
      return svrg(
          model, trees.index(models, preference),
          trees.index(anchors, preference), shard, hparams,
          hparams.client_lr, scaling, key)

    trained = map_clients(
        train, (models, anchors, statistics.share), cohort.shards, preference,
        client_keys(key, cohort.ids))
    loss = jnp.take_along_axis(losses, preference[:, None], axis=1)[:, 0]
    return _Trained(trained, preference, loss, anchors)

  def regroup(models, trained, statistics, cohort, splitting):
    """w*_k: Procedure 2 by models, Procedure 3 by gradients."""
    present = cohort.weight > 0
    if gradient_step is None:
      return group_vectors(
          hparams, trained.params, models, present, splitting)
    _, gradients = map_clients(
        lambda _, shard, params: objective.full_value_and_grad(
            model, params, shard), (), cohort.shards, trained.params)
    means, groups = group_vectors(
        hparams, gradients, trained.anchors, present, splitting)
    participants = present.sum().astype(jnp.float32)
    update = jax.vmap(lambda tree: features.scale_aggregate(
        model, hparams.aggregate_scaling, statistics, participants, tree)
        )(means)
    # (57)-(58) add a mean gradient to the model, which climbs (errata D-19).
    return trees.add_scaled(models, -gradient_step, update), groups

  def play(models, moments, statistics, splitting, cohort: Cohort, key: Key):
    """One round with the k models given (k = 1 during the warm-up)."""
    k = jax.tree.leaves(models)[0].shape[0]
    present = cohort.weight > 0
    participants = present.sum().astype(jnp.float32)
    trained = procedure_1(models, statistics, cohort, key)
    target, groups = regroup(models, trained, statistics, cohort, splitting)
    # An empty group takes no grouping step (errata D-13).
    target = trees.where_slots(groups.size > 0, target, models)

    # (60): w_k = w_hat_k + A_r (w*_k - w_hat_k)
    step = jax.vmap(lambda tree: features.scale_aggregate(
        model, hparams.aggregate_scaling, statistics, participants, tree)
        )(trees.subtract(target, models))
    models = trees.add(models, step)

    passes = k
    if hparams.accelerate:
      passes += k
      _, gradients = full_passes(models, cohort)
      anchors = trees.slot_mean(cohort.weight, gradients)  # (61)
      updates, moments = jax.vmap(central.update)(anchors, moments)
      models = optax.apply_updates(models, updates)

    size = num_params(models) // k
    exchanges = 2 + (1 if hparams.accelerate else 0)
    read = jax.vmap(hparams.examples_read)(cohort.shards.size).sum()
    slots = cohort.ids.shape[0]
    cost = round_cost(
        # Down: the k models, the preferred anchor, the k models of (60).
        # Up: k gradients and the preference, the trained model or its
        # gradient, k gradients again (errata D-20).
        down=passes * size + size, up=passes * size + size + 1,
        exchanges=exchanges,
        example_gradients=2 * read
        + (passes + (1 if by_gradient else 0)) * cohort.shards.size.sum(),
        # Gram matrix, and two products with [S, P] for the K centres.
        central_flops=2.0 * size * slots * (slots + 2 * k))
    padded = jnp.zeros(hparams.num_models, jnp.int32).at[:k].set(groups.size)
    aux = RoundAux(
        {"loss": trained.loss, "preference": trained.preference,
         "assignment": groups.assignment},
        {"train_loss": trees.slot_mean(cohort.weight, trained.loss),
         "group_size": padded}, cost)
    return models, moments, aux

  def round_(state: DiversifiedState, cohort: Cohort, key: Key):

    def warmup(key):
      first, m = jax.tree.map(
          lambda leaf: leaf[:1], (state.models, state.moments))
      models, moments, aux = play(
          first, m, state.statistics, jnp.bool_(False), cohort, key)
      copies = jax.tree.map(
          lambda leaf: jnp.repeat(leaf, hparams.num_models, axis=0),
          (models, moments))
      return (*copies, aux)

    def grouped(key):
      splitting = state.round == hparams.threshold
      return play(state.models, state.moments, state.statistics, splitting,
                  cohort, key)

    if hparams.num_models == 1:
      models, moments, aux = grouped(key)
    else:
      models, moments, aux = jax.lax.cond(
          state.round < hparams.threshold, warmup, grouped, key)
    return state._replace(
        models=models, moments=moments, round=state.round + 1), aux

  def client_params(state, client_id, shard, key):
    """The global model the client prefers on its own data (18)."""
    del client_id, key
    return trees.index(
        state.models, objective.preferred_model(model, state.models, shard))

  return Algorithm(init, setup, round_, client_params, _global_params)


def ma_fsvrg(
    model: Model, hparams: DiversifiedHParams, *, map_clients: MapClients
) -> Algorithm[DiversifiedState]:
  """MA-FSVRG: participants grouped by their trained models (Procedure 2).

  With one model, no acceleration and equal sizes it is FSVRG (the group mean
  is unweighted, (41)).

  Args:
    model: the model and its objective.
    hparams: hyper-parameters.
    map_clients: how clients are mapped.

  Raises:
    ValueError: a hyper-parameter out of range.
  """
  validate(hparams)
  return _diversified(model, hparams, None, map_clients)


def ga_fsvrg(
    model: Model, hparams: GAHParams, *, map_clients: MapClients
) -> Algorithm[DiversifiedState]:
  """GA-FSVRG: grouped by the gradients at their trained models (Procedure 3).

  Args:
    model: the model and its objective.
    hparams: hyper-parameters.
    map_clients: how clients are mapped.

  Raises:
    ValueError: a hyper-parameter out of range.
  """
  validate(hparams)
  return _diversified(model, hparams, hparams.gradient_step, map_clients)
