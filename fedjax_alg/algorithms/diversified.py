"""MA-FSVRG and GA-FSVRG: K accelerated global models for unlike clients.

Reference: Zhao, Cai, Lu, "Tailored Federated Learning With Adaptive Central
Acceleration on Diversified Global Models", IEEE TNNLS 2024. Procedure 1 (local
training), 2 (grouping by model), 3 (grouping by gradient), 4 (acceleration).
The paper writes C for the number of models, here K.

Rounds 1 to T train one model; round T+1 splits it into K, and the model's
moments with it. Of rounds 1 to T the paper has the anchor gradient (16) alone;
here they are rounds with K = 1 (errata D-25): one group of all participants,
whose mean is unweighted as in (41) and (55), then the acceleration, whose round
number r counts them. What else the paper leaves open or prints wrongly, and
what is done instead, is listed in docs/papers/diversified.md.
"""

import dataclasses

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, trees
from fedjax_alg.algorithms.fsvrg import FSVRGHParams, svrg_update
from fedjax_alg.base import Algorithm, Array, MapClients, Model, Params
from fedjax_alg.central import steps
from fedjax_alg.central.adaptive import RULES
from fedjax_alg.client import objective
from fedjax_alg.hparams import hyper, MANY, validate
from fedjax_alg.rounds.two_halves import ComposedState, ModelGrouping, compose


@dataclasses.dataclass(frozen=True)
class KModels:
  """Hyper-parameters of K global models."""

  num_models: int = hyper(
      4, "K, global models the server keeps", minimum=1,
      source="the diversified paper's C")
  threshold: int = hyper(
      4, "T, rounds with one model before the grouping starts", minimum=0,
      source="diversified, section IV-A", when=("num_models", MANY),
      traced=True)
  split: str = hyper(
      "farthest", "how round T+1 parts the K copies: farthest = farthest-first "
      "participants as centres, copies = centres stay equal, groups part one "
      "by one", choices=("farthest", "copies"),
      source="diversified (39), (53)", when=("num_models", MANY))
  centre_projection: bool = hyper(
      True, "subtract the participants' mean from the projected group "
      "centres; false as printed", source="diversified (39), (53)",
      when=("num_models", MANY))


@dataclasses.dataclass(frozen=True)
class AdamOptions:
  """Hyper-parameters of the adaptive acceleration."""

  beta1: float = hyper(
      0.9, "decay of the first moment of the gradient that the server follows",
      minimum=0.0, below=1.0, source="diversified (62)",
      when=("server", ("adam", "adaptive")))
  beta2: float = hyper(
      0.999, "decay of the second moment of that gradient",
      minimum=0.0, below=1.0,
      source="diversified (63)", when=("server", ("adam", "adaptive")))
  eps: float = hyper(
      1e-8, "added to the second moment inside the root (adaptive) or to the "
      "root (adam), against division by zero", above=0.0,
      source="diversified (64)", when=("server", ("adam", "adaptive")))
  central_rule: str = hyper(
      "corrected", "corrected = Adam with second-moment correction, printed = "
      "(64) as printed, whose step is (1-beta1)/sqrt(1-beta2) times longer",
      choices=RULES, source="diversified (64)",
      when=("server", ("adaptive",)))


@dataclasses.dataclass(frozen=True)
class DiversifiedHParams(AdamOptions, KModels, FSVRGHParams):
  """Hyper-parameters of MA-FSVRG and GA-FSVRG."""

  accelerate: bool = hyper(
      True, "whether the server takes the steps of the adaptive acceleration",
      source="Procedure 4")
  server_lr: float = hyper(
      0.02, "alpha_g^0, step of the acceleration, per round", above=0.0,
      source="(64)")


@dataclasses.dataclass(frozen=True)
class GAHParams(DiversifiedHParams):
  """Hyper-parameters of GA-FSVRG."""

  gradient_step: float = hyper(
      1.0, "length of the step against the group's mean gradient; a negative "
      "one climbs, as printed in the paper", source="(57)-(58)")


def group_vectors(
    options: KModels, vectors: Params, centres: Params,
    present: Array, splitting: Array) -> tuple[Params, grouping.Groups]:
  """k-means on the first K-1 components, lifted back ((25)-(43), (44)-(56)).

  Args:
    options: how the groups are made.
    vectors: [S, ...] what is grouped, trained models or gradients.
    centres: [K, ...] where the groups start.
    present: [S] bool.
    splitting: [] bool, the K centres are equal copies (errata D-08): K of the
      vectors are the start instead.

  Returns:
    The groups' means in the full space [K, ...], and the groups.
  """
  rows, from_rows = trees.to_matrix(vectors)
  starts, _ = trees.to_matrix(centres)
  k = starts.shape[0]
  projection = grouping.project(rows, present, k - 1)
  start = grouping.place(projection, starts, centre=options.centre_projection)
  if options.split == "farthest":
    apart = grouping.farthest_first(projection.points, present, start[0], k)
    start = jnp.where(splitting, apart, start)
  groups = grouping.lloyd(projection.points, present, start)
  return from_rows(grouping.lift(projection, groups.centres)), groups


def by_model(options: KModels) -> ModelGrouping:
  """Groups of trained models; w*_k is a group's mean (Procedure 2)."""

  def regroup(models, vectors, anchors, cohort, splitting, scale):
    del anchors, scale
    return group_vectors(
        options, vectors, models, cohort.present, splitting)

  return ModelGrouping(options.num_models, options.threshold, regroup,
                       flops=_grouping_flops)


def by_gradient(
    model: Model, options: KModels, gradient_step: float,
    map_clients: MapClients) -> ModelGrouping:
  """Groups of the gradients at the trained models (Procedure 3).

  w*_k = w_hat_k - gradient_step A_r (mean gradient of the group). The trained
  models themselves go no further (errata D-17).
  """

  def gradients(trained, cohort):
    return map_clients(
        lambda _, shard, params: objective.full_value_and_grad(
            model, params, shard)[1], (), cohort.shards, trained)

  def regroup(models, vectors, anchors, cohort, splitting, scale):
    means, groups = group_vectors(
        options, vectors, anchors, cohort.present, splitting)
    # (57)-(58) add a mean gradient to the model, which climbs (errata D-19).
    return trees.add_scaled(
        models, -gradient_step, jax.vmap(scale)(means)), groups

  return ModelGrouping(
      options.num_models, options.threshold, regroup, vectors=gradients,
      full_passes=1, flops=_grouping_flops)


def _grouping_flops(slots: int, size: int, k: int) -> float:
  """Gram matrix, and two products with [S, P] for the K centres."""
  return 2.0 * size * slots * (slots + 2 * k)


def _server(hparams: DiversifiedHParams) -> steps.ServerStep:
  if not hparams.accelerate:
    return steps.average()
  return steps.adaptive_step(
      hparams.server_lr, hparams.beta1, hparams.beta2, hparams.eps,
      hparams.central_rule)


def ma_fsvrg(
    model: Model, hparams: DiversifiedHParams, *, map_clients: MapClients
) -> Algorithm[ComposedState]:
  """MA-FSVRG: K models, participants grouped by their trained models.

  Rounds 1 to T (`threshold`) train one model with FSVRG's steps; in round T+1
  it becomes K models w_k. From then on, in every round:
    1. every participant trains the model k of least loss on its own data;
    2. the trained models are put into K groups by k-means on their first K-1
       principal components, and w*_k is the mean of a group (Procedure 2);
    3. w_k <- w_k + A (w*_k - w_k); an empty group keeps its model;
    4. with `accelerate`, the participants measure the gradient of f at w_k,
       and the server takes a step of Adam along it (Procedure 4,
       ``central.adaptive``).
  With one model, no acceleration and clients of equal size it is FSVRG (the
  mean of a group is unweighted, (41)).

  Args:
    model: the model and its objective.
    hparams: the hyper-parameters; every field has a documented default.
    map_clients: how one client's code is mapped over the participants
      (``engine.clients.make_map_clients``).

  Returns:
    The algorithm, as the pure functions of ``base.Algorithm``.

  Raises:
    ValueError: a hyper-parameter is out of range.
  """
  validate(hparams)
  return compose(model, svrg_update(model, hparams), _server(hparams),
                 map_clients=map_clients, grouping=by_model(hparams))


def ga_fsvrg(
    model: Model, hparams: GAHParams, *, map_clients: MapClients
) -> Algorithm[ComposedState]:
  """GA-FSVRG: K models, participants grouped by gradients.

  As ``ma_fsvrg``, but what is grouped are the participants' gradients at their
  trained models (Procedure 3), and
    w*_k = w_k - gradient_step A (mean gradient of group k).

  Args:
    model: the model and its objective.
    hparams: the hyper-parameters; every field has a documented default.
    map_clients: how one client's code is mapped over the participants
      (``engine.clients.make_map_clients``).

  Returns:
    The algorithm, as the pure functions of ``base.Algorithm``.

  Raises:
    ValueError: a hyper-parameter is out of range.
  """
  validate(hparams)
  groups = by_gradient(model, hparams, hparams.gradient_step, map_clients)
  return compose(model, svrg_update(model, hparams), _server(hparams),
                 map_clients=map_clients, grouping=groups)
