"""MA-FSVRG and GA-FSVRG: K accelerated global models for diverse clients.

Reference: Zhao, Cai, Lu, "Tailored Federated Learning With Adaptive Central
Acceleration on Diversified Global Models", IEEE TNNLS 2024. Its Procedure 1 is
the local training, Procedure 2 the grouping by model, Procedure 3 the grouping
by gradient, and Procedure 4 the acceleration. The paper writes C for the number
of models; here it is K.

Rounds 1 to T train one model. Round T+1 splits it into K models, which start
with copies of its moments. For rounds 1 to T the paper gives only the anchor
gradient (16). Here they are rounds with K = 1 (errata D-25): all participants
form one group, whose mean is unweighted as in (41) and (55), and the
acceleration follows. The round number r of the acceleration counts these rounds
too. docs/papers/diversified.md lists what else the paper leaves open or prints
wrongly, and what is done here instead.
"""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_alg import grouping, trees
from fedjax_alg.algorithms.common import averaging, group_count
from fedjax_alg.algorithms.conjugate import Aggregate
from fedjax_alg.algorithms.fsvrg import FSVRGHParams, svrg_update
from fedjax_alg.base import Algorithm, Array, MapClients, Model, Params, builder
from fedjax_alg.central import steps
from fedjax_alg.central.adaptive import RULES
from fedjax_alg.client import objective
from fedjax_alg.exchange import Exchange
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds.k_models import ModelGrouping, Stage
from fedjax_alg.rounds.two_halves import ComposedState


class KModelsHParams(HParams):
  """Hyper-parameters of K global models."""

  num_models: int = hyper(
    4,
    "K, number of global models that the server keeps",
    minimum=1,
    source="the diversified paper's C",
  )
  threshold: int = hyper(
    4,
    "T, number of rounds with one model before the grouping starts",
    minimum=0,
    source="diversified, section IV-A",
    traced=True,
  )
  split: str = hyper(
    "farthest",
    "how round T+1 makes the K equal copies differ: farthest = the centers start at "
    "participants that are far apart (farthest-first), copies = the centers start "
    "equal, and the groups separate one by one",
    choices=("farthest", "copies"),
    source="diversified (39), (53)",
  )
  centre_projection: bool = hyper(
    True,
    "whether the participants' mean is subtracted from the group centers before they "
    "are projected; false: as printed",
    source="diversified (39), (53)",
  )
  group_count: str = group_count("num_models")
  anchors: str = hyper(
    "all",
    "the participants over which the gradient at a model is averaged: all = all "
    "participants, preferring = participants that prefer the model (0 if there are "
    "none)",
    choices=("all", "preferring"),
    source="diversified (17), (61)",
  )

  @property
  def own_anchors(self) -> bool:
    """Whether a model has the gradients of the clients that prefer it."""
    return self.anchors == "preferring" and self.num_models > 1


class AdamOptions(HParams):
  """Hyper-parameters of the adaptive acceleration."""

  beta1: float = hyper(
    0.9,
    "decay of the first moment of the server's gradient",
    minimum=0.0,
    below=1.0,
    source="diversified (62)",
  )
  beta2: float = hyper(
    0.999,
    "decay of the second moment of the server's gradient",
    minimum=0.0,
    below=1.0,
    source="diversified (63)",
  )
  eps: float = hyper(
    1e-8,
    "small number against division by zero, added to the second moment inside the root",
    above=0.0,
    source="diversified (64)",
  )
  central_rule: str = hyper(
    "corrected",
    "formula of the step: corrected = Adam with correction of the second moment "
    "only, printed = (64) as printed, with steps (1-beta1)/sqrt(1-beta2) times as "
    "long",
    choices=RULES,
    source="diversified (64)",
  )


class AdaptiveServer(Aggregate, AdamOptions, steps.ServerRule):
  """The adaptive acceleration of MA-FSVRG along the anchor gradient."""

  WORD, EXAMPLE = "adaptive", "adaptive:0.9,0.999"

  @property
  def usual_rate(self) -> float:
    return 0.02

  def build(self, server_lr: float) -> steps.ServerStep:
    """Makes ``steps.adaptive_step``."""
    return steps.adaptive_step(
      server_lr, self.beta1, self.beta2, self.eps, self.central_rule
    )._replace(aggregate_lr=self.aggregate_lr)


class DiversifiedHParams(AdamOptions, KModelsHParams, FSVRGHParams):
  """Hyper-parameters of MA-FSVRG and GA-FSVRG."""

  accelerate: bool = hyper(
    True,
    "whether the server takes the step of the adaptive acceleration",
    source="Procedure 4",
  )
  server_lr: float = hyper(
    0.02,
    "alpha_g^0, learning rate of the acceleration, one step per round",
    above=0.0,
    source="(64)",
  )


class GradientGroups(HParams):
  """What groups by gradient do with their gradients."""

  gradient_step: float = hyper(
    1.0,
    "length of the step against the group's mean gradient; a negative "
    "length climbs, as the paper prints it",
    source="(57)-(58)",
  )
  group_mean: str = hyper(
    "gradients",
    "what moves a model: gradients = a step against the mean "
    "gradient of its group, models = it becomes the mean of the group's "
    "trained models",
    choices=("gradients", "models"),
    source="(57)-(58)",
  )


class GAHParams(GradientGroups, DiversifiedHParams):
  """Hyper-parameters of GA-FSVRG."""


class OneModel(Part):
  """One global model for everybody."""

  WORD, EXAMPLE = "none", "none"
  #: whether participants are grouped by their gradients
  BY_GRADIENT: ClassVar[bool] = False
  num_models: ClassVar[int] = 1

  @property
  def own_anchors(self) -> bool:
    """Whether a model has the gradients of the clients that prefer it."""
    return False

  def build(self, model: Model, map_clients: MapClients) -> ModelGrouping | None:
    """Makes the grouping; None: there is one model."""
    return None


class GroupsByModel(KModelsHParams, Part):
  """K global models; participants are grouped by their trained models (MA)."""

  WORD, EXAMPLE, BY_GRADIENT = "model", "model:3", False

  def build(self, model: Model, map_clients: MapClients) -> ModelGrouping | None:
    """Makes the grouping; None: there is one model."""
    return by_model(self) if self.num_models > 1 else None


class GroupsByGradient(GradientGroups, KModelsHParams, Part):
  """K global models; participants are grouped by their gradients at them (GA)."""

  WORD, EXAMPLE, BY_GRADIENT = "gradient", "gradient:3", True

  def build(self, model: Model, map_clients: MapClients) -> ModelGrouping | None:
    """Makes the grouping; None: there is one model."""
    if self.num_models == 1:
      return None
    return by_gradient(model, self, self.gradient_step, map_clients, self.group_mean)


def group_vectors(
  options: KModelsHParams,
  vectors: Params,
  centres: Params,
  present: Array,
  stage: Stage,
) -> tuple[Params, grouping.Groups]:
  """Groups vectors by k-means on their first K-1 principal components.

  These are (25)-(43) for models and (44)-(56) for gradients.

  Args:
    options: how the groups are made.
    vectors: [S, ...], the trained models or the gradients to group.
    centres: [K, ...], the centers at which k-means starts.
    present: [S] bool, false on padding slots.
    stage: whether all vectors are one group, the first; and whether the K
      centers are equal copies, so that K of the vectors are the start instead
      (errata D-08).

  Returns:
    The groups' means in the full space [K, ...], and the groups.
  """
  rows, from_rows = trees.to_matrix(vectors)
  starts, _ = trees.to_matrix(centres)
  k = starts.shape[0]
  projection = grouping.project(rows, present, k - 1)
  start = grouping.project_further(projection, starts, centre=options.centre_projection)
  if options.split == "farthest":
    farthest = grouping.farthest_first(projection.points, present, start[0], k)
    start = jnp.where(stage.splitting, farthest, start)
  points = projection.points
  if stage.warm_up is not None:  # all at their mean; ties are the first's
    points, start = jax.tree.map(
      lambda at: jnp.where(stage.warm_up, 0.0, at), (points, start)
    )
  if options.group_count == "silhouette":
    rounding = grouping.rounding(rows, present, "l2")
    groups = grouping.lloyd_by_silhouette(points, present, start, rounding)
  else:
    groups = grouping.lloyd(points, present, start)
  return from_rows(grouping.lift(projection, groups.centres)), groups


def by_model(options: KModelsHParams) -> ModelGrouping:
  """Groups the trained models; w*_k is the mean of group k (Procedure 2).

  Of the directions outside of the K - 1 components, it is the mean of all (43).
  """

  def regroup(models, vectors, anchors, cohort, stage, scale):
    return group_vectors(options, vectors, models, cohort.present, stage)

  return ModelGrouping(
    options.num_models,
    options.threshold,
    regroup,
    flops=_flops(options),
    own_anchors=options.own_anchors,
  )


def by_gradient(
  model: Model,
  options: KModelsHParams,
  gradient_step: float,
  map_clients: MapClients,
  group_mean: str = "gradients",
) -> ModelGrouping:
  """Groups the gradients at the trained models (Procedure 3).

  w*_k = w_hat_k - gradient_step A_r (mean gradient of group k). The trained
  models themselves are not used any further (errata D-17). With ``group_mean``
  "models" w*_k is the mean of the group's trained models.
  """

  def gradients(trained, cohort):
    return map_clients(
      lambda _, shard, params: objective.full_value_and_grad(model, params, shard)[1],
      (),
      cohort.shards,
      trained,
    )

  def regroup(models, vectors, anchors, cohort, stage, scale):
    means, groups = group_vectors(options, vectors, anchors, cohort.present, stage)
    # (57)-(58) add a mean gradient to the model, which climbs (errata D-19).
    return trees.add_scaled(models, -gradient_step, jax.vmap(scale)(means)), groups

  def and_models(trained, cohort):
    return gradients(trained, cohort), trained

  def means_of_models(models, vectors, anchors, cohort, stage, scale):
    _, groups = group_vectors(options, vectors[0], anchors, cohort.present, stage)
    in_group = trees.members(groups.assignment, options.num_models)
    return jax.vmap(
      lambda member: trees.slot_mean(
        jnp.where(member & cohort.present, 1.0, 0.0), vectors[1]
      )
    )(in_group), groups

  if group_mean == "models":
    return ModelGrouping(
      options.num_models,
      options.threshold,
      means_of_models,
      vectors=and_models,
      of_gradients=True,
      full_passes=1,
      flops=_flops(options),
      own_anchors=options.own_anchors,
      extra_up=1,
      changes=lambda model, vectors, scale: trees.subtract_one(vectors[1], model),
    )
  return ModelGrouping(
    options.num_models,
    options.threshold,
    regroup,
    vectors=gradients,
    own_anchors=options.own_anchors,
    of_gradients=True,
    full_passes=1,
    flops=_flops(options),
    changes=lambda model, vectors, scale: trees.scale(
      -gradient_step, jax.vmap(scale)(vectors)
    ),
  )


def _grouping_flops(slots: int, size: int, k: int) -> float:
  """The server's flops: the Gram matrix, and two products for K centers."""
  return 2.0 * size * slots * (slots + 2 * k)


def _flops(options: KModelsHParams) -> Callable[[int, int, int], float]:
  """The server's flops of a grouping, with those of the silhouettes if asked for."""
  if options.group_count == "fixed":
    return _grouping_flops
  return lambda slots, size, k: (
    _grouping_flops(slots, size, k)
    + grouping.counting_flops(options.group_count, slots, k)
  )


def caution_without_effect(hparams: DiversifiedHParams, num_params: int) -> str:
  """A warning of options that others have switched off, else ""."""
  del num_params
  off = (
    {}
    if hparams.accelerate
    else dict.fromkeys(
      (*AdamOptions.__dataclass_fields__, "server_lr"), "`accelerate`=False"
    )
  )
  if getattr(hparams, "group_mean", "") == "models":
    off["gradient_step"] = "`group_mean`=models"
  fields = hparams.__dataclass_fields__
  options = [name for name in off if getattr(hparams, name) != fields[name].default]
  return "; ".join(f"`{name}`: without effect with {off[name]}" for name in options)


def _server(hparams: DiversifiedHParams) -> steps.ServerStep:
  if not hparams.accelerate:
    return steps.average()
  return steps.adaptive_step(
    hparams.server_lr, hparams.beta1, hparams.beta2, hparams.eps, hparams.central_rule
  )


@builder
def ma_fsvrg(
  model: Model,
  hparams: DiversifiedHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """MA-FSVRG: K models; participants are grouped by their trained models.

  Rounds 1 to T (`threshold`) train one model with FSVRG's steps. In round T+1
  this model becomes K models w_k. From then on, in every round:
    1. every participant trains the model whose loss on its data is least;
    2. the trained models are put into K groups by k-means on their first K-1
       principal components, and w*_k is the mean of group k (Procedure 2);
    3. w_k <- w_k + A (w*_k - w_k); an empty group keeps its model;
    4. with `accelerate`, the participants measure the gradient of f at each
       w_k, and the server takes a step of Adam against it (Procedure 4,
       ``central.adaptive``).
  With one model, no acceleration and clients of equal size, MA-FSVRG is FSVRG.
  (Equal sizes matter because the mean of a group is unweighted, (41).)
  """
  return averaging(
    model,
    svrg_update(model, hparams),
    hparams,
    map_clients,
    _server(hparams),
    by_model(hparams),
    exchange=exchange,
  )


@builder
def ga_fsvrg(
  model: Model,
  hparams: GAHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """GA-FSVRG: K models; participants are grouped by their gradients.

  The method is that of ``ma_fsvrg`` with another grouping: the participants'
  gradients at their trained models are grouped (Procedure 3), and
    w*_k = w_k - gradient_step A (mean gradient of group k).
  """
  groups = by_gradient(
    model, hparams, hparams.gradient_step, map_clients, hparams.group_mean
  )
  return averaging(
    model,
    svrg_update(model, hparams),
    hparams,
    map_clients,
    _server(hparams),
    groups,
    exchange=exchange,
  )
