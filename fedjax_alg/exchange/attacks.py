"""Attacks: the false labels and false vectors of hostile clients.

A share of all clients, drawn once from a seed, is hostile in every round. They
hold false labels (``flip_labels``), or send false vectors in the place of their
updates and anchor gradients (``forge_vectors``), or both. They know what the
honest participants of the round send, and which of K models each of them trains.

What clients send besides (SCAFFOLD's variates, the choice of a group, the
updates of FedGroup's pre-training) is what their data give, and so are their
losses.
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks, trees
from fedjax_alg.base import Algorithm, Array, Cohort, Key, Params
from fedjax_alg.data import store
from fedjax_alg.hparams import MAX_SEED, HParams, field_like, hyper, is_zero
from fedjax_alg.part import Part, forms


class Scene(NamedTuple):
  """The participants of a round as hostile ones see them."""

  hostile: Array  #: [S] bool, false for padding slots
  weights: Array  #: [S] float32, in the mean; 0 for padding slots
  groups: Array  #: [S] int32, the model that each one trains, in [0, K)
  num_groups: int  #: K
  keys: Key  #: [S], one key of each participant

  @property
  def honest(self) -> Array:
    """[S] bool, who takes part and is not hostile."""
    return (self.weights > 0) & ~self.hostile

  def total(self, mask: Array, values: Array) -> Array:
    """Sum of the values [S] under the ``mask`` in each slot's group, [S]."""
    masked = jnp.where(mask, values, 0.0)
    return jnp.where(
      trees.members(self.groups, self.num_groups), masked[None], 0.0
    ).sum(1)[self.groups]

  def mean(self, vectors: Params) -> Params:
    """Mean over the honest ones in the group of each slot, [S, ...]."""
    means = trees.group_mean(
      self.honest.astype(jnp.float32), self.groups, self.num_groups, vectors
    )
    return trees.index(means, self.groups)


class Attack(NamedTuple):
  """Behavior of the hostile clients."""

  name: str
  hostile: Callable[[int], Array]  #: C -> [C] bool, who they are
  flips_labels: bool = False  #: whether they train on false labels
  #: whether what they send depends on the participants' weights
  weighs: bool = False
  #: (targets of all) -> false ones (``tasks.Task.flipped``)
  flip: Callable[[Any], Any] | None = tasks.CLASSIFICATION.flipped
  #: (sent [S, ...], ``Scene``) -> what a hostile client in each slot sends,
  #: [S, ...]; None: what it has computed
  forge: Callable[[Params, Scene], Params] | None = None


def hostile_clients(num_clients: int, share: Array | float, seed: int) -> Array:
  """Draws the hostile clients.

  Args:
    num_clients: C.
    share: their share of all clients.
    seed: the seed.

  Returns:
    [C] bool, of which C share, rounded, are true. With a larger share the same
    clients are hostile and others besides.
  """
  place = np.random.default_rng(seed).permutation(num_clients)
  number = jnp.round(jnp.asarray(share, jnp.float32) * num_clients)
  return jnp.asarray(place, jnp.int32) < number.astype(jnp.int32)


def who_is_hostile(attack: Attack, cohort: Cohort) -> Array:
  """Marks the hostile participants, [S] bool; false for padding slots."""
  assert cohort.everyone is not None
  hostile = attack.hostile(cohort.everyone.size.shape[0])
  return cohort.present & hostile.at[cohort.ids].get(mode="fill", fill_value=False)


def trains_on_false_labels(algorithm: Algorithm, attack: Attack) -> Algorithm:
  """The algorithm whose hostile clients train on false labels.

  Args:
    algorithm: the algorithm; what clients deploy stays as it is.
    attack: what the hostile clients do, with ``flip``.
  """
  idle = algorithm.idle
  return algorithm._replace(
    setup=lambda state, everyone, key: algorithm.setup(
      state, flip_labels(attack, everyone), key
    ),
    round=lambda state, cohort, key: algorithm.round(
      state, flip_labels(attack, cohort), key
    ),
    idle=idle and (lambda state, cohort: idle(state, flip_labels(attack, cohort))),
  )


def flip_labels(attack: Attack, cohort: Cohort) -> Cohort:
  """The cohort with the labels that the hostile clients train on.

  A label y becomes L - 1 - y, where L - 1 is the largest label that anybody
  holds (Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous
  Datasets via Bucketing", ICLR 2022, section 6); of several labels of an
  example each is turned around. All of a hostile client's
  gradients and losses in the round are on these labels. The data stay as they
  are, and so do all evaluations.

  Args:
    attack: what the hostile clients do, with ``flip``.
    cohort: the participants.
  """
  everyone, y = cohort.everyone, cohort.shards.y
  assert everyone is not None and attack.flip is not None
  if store.is_on_host(y):  # of a start, which reads no rows
    return cohort
  axes = 1 if everyone.blocks is None else 2
  rows = y.shape[:axes]
  hostile = attack.hostile(everyone.size.shape[0])
  # A row is a hostile client's if more of them have begun than ended before.
  mark = hostile.astype(jnp.int32)
  marks = (
    jnp.zeros(math.prod(rows) + 1, jnp.int32)
    .at[everyone.offset]
    .add(mark)
    .at[everyone.offset + everyone.size]
    .add(-mark)
  )
  inside = (jnp.cumsum(marks, dtype=jnp.int32)[:-1] > 0).reshape(
    *rows, *(1,) * (y.ndim - axes)
  )
  y = jnp.where(inside, attack.flip(y), y)
  return cohort._replace(
    shards=cohort.shards._replace(y=y), everyone=everyone._replace(y=y)
  )


def forge_vectors(
  attack: Attack,
  vectors: Params,
  weights: Array,
  groups: Array,
  num_groups: int,
  cohort: Cohort,
  keys: Key,
) -> Params:
  """Replaces the vectors of hostile participants by forged ones.

  Args:
    attack: what the hostile clients do; it has a ``forge``.
    vectors: leaves [S, ...], what honest participants would send, as changes
      of the models that they train.
    weights: [S] float32, their weights in the mean, 0 for padding slots.
    groups: [S] int32, the model that each one trains.
    num_groups: K.
    cohort: the participants.
    keys: [S], one for each participant; consumed.

  Returns:
    Leaves [S, ...].
  """
  assert attack.forge is not None
  scene = Scene(who_is_hostile(attack, cohort), weights, groups, num_groups, keys)
  return trees.where_slots(scene.hostile, attack.forge(vectors, scene), vectors)


def supporters(number: Array, hostile: Array) -> Array:
  """z_max, by which hostile ones still look like the majority; at least 0.

  Source: Baruch et al., NeurIPS 2019, (2) and Algorithm 3: the largest z with
  Phi(z) < (n - m - s) / (n - m), s = floor(n / 2 + 1) - m. It is less than 0
  where even the mean of the honest ones would be passed by a majority; and of
  a majority of hostile ones nothing is needed, for which z is Phi^-1(0.999).

  Args:
    number: n, participants, float32 of any shape.
    hostile: m, hostile ones among them.
  """
  needed = jnp.floor(number / 2.0 + 1.0) - hostile
  honest = jnp.maximum(number - hostile, 1.0)
  share = jnp.clip((honest - needed) / honest, 0.5, 0.999)
  return jax.scipy.special.ndtri(share)


def canary_direction(vector: Params) -> Params:
  """Draws the direction of a canary's updates: a fixed unit vector.

  Source: Andrew et al., "One-shot Empirical Privacy Estimation for Federated
  Learning", ICLR 2024, section 3: updates of canaries are random directions.

  Args:
    vector: gives the shapes and dtypes.
  """
  direction = trees.normal(jax.random.key(0), vector)
  return trees.scale(jax.lax.rsqrt(trees.squared_norm(direction)), direction)


class NoAttack(Part):
  """All clients are honest."""

  WORD, EXAMPLE = "none", "none"

  def build(self) -> Attack | None:
    """Makes the attack; None: there is none."""
    return None


class _Hostile(Part):
  """An attack by a share of the clients, drawn from a seed."""

  #: whether hostile clients train on false labels
  FLIPS: ClassVar[bool] = False

  share: float = hyper(
    0.2, "share of all clients that are hostile", minimum=0.0, maximum=1.0
  )
  _: dataclasses.KW_ONLY
  seed: int = hyper(
    0,
    "seed of the choice of the hostile clients, which all seeds of a run share",
    minimum=0,
    maximum=MAX_SEED,
  )

  def build(self) -> Attack:
    """Makes the attack."""
    return Attack(
      self.WORD,
      lambda num_clients: hostile_clients(num_clients, self.share, self.seed),
      self.FLIPS,
    )


class LabelFlip(_Hostile):
  """Hostile clients train on the labels L - 1 - y."""

  WORD, EXAMPLE, FLIPS = "label_flip", "label_flip:0.3", True


class _Forgery(_Hostile):
  """An attack of clients that send false vectors."""

  def forge(self, vectors: Params, scene: Scene) -> Params:
    """What a hostile client in each slot sends, [S, ...].

    Args:
      vectors: leaves [S, ...], what honest participants would send.
      scene: the participants of the round.
    """
    raise NotImplementedError

  def build(self) -> Attack:
    """Makes the attack."""
    return super().build()._replace(forge=self.forge)


class SignFlip(_Forgery):
  """The update with the other sign, ``scale`` times as long; 0: as long.

  Source: Li, Xu, Chen, Giannakis, Ling, "RSA: Byzantine-Robust Stochastic
  Aggregation Methods", AAAI 2019, section 5 (with -4).
  """

  WORD, EXAMPLE = "sign_flip", "sign_flip:0.3,4"

  scale: float = hyper(
    0.0, "factor of the update; 0 stands for 1", minimum=0.0, neutral=0.0
  )

  def forge(self, vectors: Params, scene: Scene) -> Params:
    return trees.scale(-1.0 if is_zero(self.scale) else -self.scale, vectors)


class RandomUpdates(_Forgery):
  """Normal numbers of mean 0 and standard deviation ``scale``; 0: of 1.

  Source: Blanchard et al., NeurIPS 2017, section 6 (with 200).
  """

  WORD, EXAMPLE = "gaussian", "gaussian:0.3,200"

  scale: float = field_like(
    SignFlip, "scale", help="standard deviation; 0 stands for 1"
  )

  def forge(self, vectors: Params, scene: Scene) -> Params:
    deviation = 1.0 if is_zero(self.scale) else self.scale
    return jax.vmap(
      lambda key, vector: trees.scale(deviation, trees.normal(key, vector))
    )(scene.keys, vectors)


class ModelReplacement(_Forgery):
  """The update on false labels, ``scale`` times as long; 0: it replaces the model.

  Source: Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS
  2020, (3). Hostile clients train on false labels. With the default factor,
  weight of all / weight of the hostile ones, the mean is the mean of hostile
  updates alone plus what the honest ones add.
  """

  WORD, EXAMPLE, FLIPS = "scaled", "scaled:0.1,10", True

  scale: float = field_like(
    SignFlip, "scale", help="factor of the update; 0: weight of all / of hostile ones"
  )

  def build(self) -> Attack:
    return super().build()._replace(weighs=is_zero(self.scale))

  def forge(self, vectors: Params, scene: Scene) -> Params:
    if not is_zero(self.scale):
      return trees.scale(self.scale, vectors)
    everybody = scene.total(scene.weights > 0, scene.weights)
    hostile = scene.total(scene.hostile, scene.weights)
    return trees.scale_slots(everybody / jnp.maximum(hostile, 1e-30), vectors)


class LittleIsEnough(_Forgery):
  """mu - z sigma of the honest updates, with z = ``scale``; 0: z_max.

  Source: Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses
  For Distributed Learning", NeurIPS 2019, Algorithm 3. The paper estimates mean
  and deviation from the hostile clients' own data; here they come from the
  honest participants, which makes the attack stronger.
  """

  WORD, EXAMPLE = "little_is_enough", "little_is_enough:0.3"

  scale: float = field_like(
    SignFlip, "scale", help="z; 0 stands for z_max of the numbers of participants"
  )

  def forge(self, vectors: Params, scene: Scene) -> Params:
    mean = scene.mean(vectors)
    square = scene.mean(
      jax.tree.map(lambda leaf, centre: jnp.square(leaf - centre), vectors, mean)
    )
    steps: Any = jnp.broadcast_to(
      jnp.asarray(self.scale, jnp.float32), scene.weights.shape
    )
    if is_zero(self.scale):
      ones = jnp.ones(scene.weights.shape)
      steps = supporters(
        scene.total(scene.weights > 0, ones), scene.total(scene.hostile, ones)
      )
    return trees.subtract(
      mean, trees.scale_slots(steps, jax.tree.map(trees.root, square))
    )


class InnerProduct(_Forgery):
  """The negative mean of the honest updates, times ``scale``; 0: times 0.5.

  Source: Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD
  by Inner Product Manipulation", UAI 2019, section 3 (epsilon).
  """

  WORD, EXAMPLE = "inner_product", "inner_product:0.3"

  scale: float = field_like(SignFlip, "scale", help="epsilon; 0 stands for 0.5")

  def forge(self, vectors: Params, scene: Scene) -> Params:
    return trees.scale(
      -0.5 if is_zero(self.scale) else -self.scale, scene.mean(vectors)
    )


class Canary(_Forgery):
  """A fixed direction of the length ``scale``; with 0 nothing (zeros).

  ``extras.audit`` looks for this direction in the models that are released.
  """

  WORD, EXAMPLE = "canary", "canary:0.1,1"

  scale: float = field_like(SignFlip, "scale", help="length of the update")

  def forge(self, vectors: Params, scene: Scene) -> Params:
    direction = canary_direction(trees.index(vectors, 0))
    number = scene.weights.shape[0]
    return trees.repeat(trees.scale(self.scale, direction), number)


#: The attacks of a run.
Choice = (
  NoAttack
  | LabelFlip
  | SignFlip
  | RandomUpdates
  | ModelReplacement
  | LittleIsEnough
  | InnerProduct
  | Canary
)


class Hostility(HParams):
  """Options of the attack: which clients are hostile, and what they do."""

  GROUP: ClassVar[str] = "robustness"

  attack: Choice = hyper(
    NoAttack(),
    "what hostile clients do, one of "
    + ", ".join(forms(Choice))
    + " (`help`=attack has their fields); sign_flip:0.3,4 = 30 % of the clients send "
    "four times the negative update. Anchor gradients are forged as updates are",
    source="Karimireddy et al., ICLR 2022 (label_flip); Li et al., AAAI 2019 "
    "(sign_flip); Blanchard et al., NeurIPS 2017 (gaussian); Bagdasaryan et "
    "al., AISTATS 2020 (scaled); Baruch et al., NeurIPS 2019 "
    "(little_is_enough); Xie et al., UAI 2019 (inner_product); Andrew et al., "
    "ICLR 2024 (canary)",
  )
