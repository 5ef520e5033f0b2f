"""Roles of parameters: shared, personal and frozen ones, and state.

A role says what happens to a leaf of the tree that a model has:

- ``shared``: trained by the participants and sent; what every algorithm sees.
- ``personal``: trained by the client and kept there; never sent.
- ``frozen``: never trained and never sent in a round.
- ``state``: running statistics (``models.statistics``), which change without a
  gradient in every local step.

``split`` makes of a model one whose ``init``, ``apply`` and parameters are
those of the shared leaves alone. So messages, vectors for grouping,
compression, privacy, attacks, aggregators, moments and the ledger have nothing
of the others. Trees of some of the leaves have None in the place of the
others, which JAX takes for no leaf at all.

The personal leaves of a client are in its ``Shard.personal`` and are trained by
``client.personal``. Frozen leaves are arguments of the compiled programs
(``ClientData.frozen``) and in no checkpoint. Statistics are in ``Shard.state``:

- ``global``: the server's, the mean of the participants' by examples; sent with
  the model and with the update.
- ``local``: those of the client, kept from round to round; never sent.
- ``batch``: none are kept. A layer normalizes by the statistics of the batch
  that it sees, in evaluation too (of each block of rows).

With the first two, local steps take the statistics of their mini-batch, and
all passes that train nothing (anchor gradients, losses that are compared,
evaluation) the running ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
import dataclasses
import fnmatch
import hashlib
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_alg.base import Array, Key, Model, Params, Shard, num_params
from fedjax_alg.errors import OptionError, did_you_mean
from fedjax_alg.hparams import hyper
from fedjax_alg.models import adapt
from fedjax_alg.models.statistics import Stateful
from fedjax_alg.part import Part, words_of
from fedjax_alg.typing import PyTree

#: The roles of parameters.
ROLES = ("shared", "personal", "frozen")
STATE = "state"
#: Owners of the running statistics of a model.
MODEL_STATES = ("global", "local", "batch")
#: Patterns that stand for the parameters of some layers.
LAST, NORM, LORA = "last", "norm", "lora"
#: The type that ``LORA`` stands for, that of adapters in flax.nnx.
LORA_TYPE = "LoRAParam"
_NORMS = ("*[nN]orm*", "[bB][nN]*", "[lL][nN]", "[lL][nN]_*")


class PersonalTraining(Part):
  """How the personal leaves of a client are trained (``client.personal``)."""

  rate: float = hyper(
    0.0,
    "learning rate of the personal parameters; 0: the rate of the method's local steps "
    "in this round, and that of round 1 when a client deploys the model",
    minimum=0.0,
  )
  steps: int = hyper(
    0,
    "mini-batch steps with the personal parameters only, before those with the shared "
    "ones (first) or when a client deploys the model (evaluation, and newcomers; "
    "statistics of `model_state`=local change, too); 0: as many as the method's local "
    "steps, and none for newcomers",
    minimum=0,
  )


class PersonalTogether(PersonalTraining):
  """With the shared parameters (FedPer: Arivazhagan et al., arXiv:1912.00818)."""

  WORD, EXAMPLE = "together", "together:0.05"


class PersonalFirst(PersonalTraining):
  """Before the shared parameters in every round (FedRep: Collins et al., ICML 2021)."""

  WORD, EXAMPLE = "first", "first:rate=0.05,steps=5"


class PersonalAtEvaluation(PersonalTraining):
  """Only when a client deploys the model (FedBABU: Oh et al., ICLR 2022)."""

  WORD, EXAMPLE = "evaluation", "evaluation:steps=20"


#: When clients train their personal parameters.
PERSONAL = PersonalTogether | PersonalFirst | PersonalAtEvaluation


class ClientLeaves(NamedTuple):
  """The leaves of a client beside the shared ones."""

  personal: Params  #: its personal leaves
  state: Params  #: running statistics


#: The leaves that have moved with local steps where there are none.
NOTHING_MOVED = ClientLeaves((), ())


@dataclasses.dataclass(frozen=True)
class Roles:
  """The leaves of a model by role, for ``Model.roles``."""

  whole: Model  #: the model of all leaves
  role: PyTree  #: tree like the parameters, the role of each leaf
  frozen: Params  #: the frozen leaves
  personal: PersonalTraining = PersonalTogether()
  stateful: Stateful | None = None  #: None: a model without statistics
  model_state: str = "global"  #: one of ``MODEL_STATES``
  #: the statistics with which layers are called that nobody keeps (``batch``)
  unkept: Params = None
  #: how the server moves frozen kernels (``adapters.Merging``); None: they stay
  merging: Any = None

  @property
  def has_personal(self) -> bool:
    """Whether a leaf is personal."""
    return "personal" in jax.tree.leaves(self.role)

  @property
  def has_frozen(self) -> bool:
    """Whether a leaf is frozen."""
    return bool(jax.tree.leaves(self.frozen))

  @property
  def if_frozen(self) -> Params | None:
    """The frozen leaves; None if there are none."""
    return self.frozen if self.has_frozen else None

  @property
  def has_state(self) -> bool:
    """Whether somebody keeps running statistics."""
    return self.model_state != "batch" and STATE in jax.tree.leaves(self.role)

  @property
  def sends_state(self) -> bool:
    """Whether the server keeps them, so that they are sent."""
    return self.has_state and self.model_state == "global"

  @property
  def keeps(self) -> bool:
    """Whether every client keeps leaves of its own."""
    return self.has_personal or (self.has_state and not self.sends_state)

  def of(self, role: str, params: Params) -> Params:
    """The leaves of one role, None in the place of the others."""
    return jax.tree.map(
      lambda leaf_role, leaf: leaf if leaf_role == role else None, self.role, params
    )

  def join(self, *parts: Params) -> Params:
    """The tree with the leaves of all these trees; None is no tree.

    Where several have a leaf, it is that of the first.
    """

    def first_leaf(role, *leaves):
      return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(
      first_leaf, self.role, *(part for part in parts if part is not None)
    )

  def start(self, key: Key) -> ClientLeaves:
    """The personal leaves and the statistics that every client starts from."""
    values = self.whole.init(key)
    return ClientLeaves(self.of("personal", values), self.of(STATE, values))

  def _bind(self, model: Model, join: Callable[[Params], Params]) -> Model:
    """``model`` that computes with what ``join`` makes of its parameters."""
    full_model, stateful, in_training = (
      self.whole,
      self.stateful,
      self.whole.train_apply,
    )

    def apply(params: Params, x: Array) -> Array:
      return full_model.apply(join(params), x)

    def train_apply(params: Params, x: Array, key: Key) -> Array:
      assert in_training is not None
      return in_training(join(params), x, key)

    if stateful is None:
      return model._replace(
        apply=apply, train_apply=in_training and train_apply, observe=None
      )
    observes, fixed = (
      stateful.observe,
      frozenset(
        name
        for name, role in zip(leaf_paths(self.role), jax.tree.leaves(self.role))
        if role == "frozen" and name in stateful.names
      ),
    )

    def observe(params, x, mask, key):
      if key is None and self.model_state != "batch":
        return apply(params, x), None
      logits, new = observes(join(params), x, mask, key, fixed)
      return logits, self.of(STATE, new)

    return model._replace(
      apply=lambda params, x: observe(params, x, None, None)[0],
      train_apply=lambda params, x, key: observe(params, x, None, key)[0],
      observe=observe,
    )

  def shared_model(self) -> Model:
    """The model of the shared leaves; others are at their start.

    They are those of seed 0 then. Wherever a client computes, its own take
    their place (``of_client``).
    """

    def join(params):
      client_leaves = (
        self.start(jax.random.key(0)) if (self.has_personal or self.has_state) else ()
      )
      return self.join(params, *client_leaves, self.frozen, self.unkept)

    model = self.whole._replace(
      init=lambda key: self.of("shared", self.whole.init(key)),
      scale_features=None,
      linear=False,
      caution="",
    )
    return self._bind(model, join)._replace(roles=self)

  def shared_like(self, model: Model) -> Model:
    """``shared_model`` with the loss, l2 and task of a model."""
    return _with_objective(self.shared_model(), model)

  def of_client(self, model: Model, shard: Shard) -> Model:
    """The model of the shared leaves at a client with its own ones."""

    lacks = (self.has_personal and shard.personal is None) or (
      self.has_state and shard.state is None
    )

    def join(params):
      # If several trees have a leaf, the first counts.
      start = self.start(jax.random.key(0)) if lacks else ()
      return self.join(
        params, shard.personal, shard.state, self.frozen, self.unkept, *start
      )

    return self._bind(model, join)._replace(roles=None)

  def deployed(self, model: Model) -> Model:
    """The model of all leaves that clients or the server keep, joined."""
    joined_roles = {"shared", "personal"} | ({STATE} if self.has_state else set())

    def init(key: Key) -> Params:
      return jax.tree.map(
        lambda role, leaf: leaf if role in joined_roles else None,
        self.role,
        self.whole.init(key),
      )

    return self._bind(
      model._replace(init=init),
      lambda params: self.join(params, self.frozen, self.unkept),
    )._replace(roles=None)

  def together(
    self, model: Model, personal: Params = None, with_state: bool = False
  ) -> Model:
    """The model whose parameters are the pair (shared, personal leaves).

    Args:
      model: the model of the shared leaves.
      personal: personal leaves that are none of the parameters.
      with_state: whether the parameters are the pair of that and the
        statistics.
    """

    def join(params):
      pair, state = params if with_state else (params, None)
      return self.join(*pair, personal, state, self.frozen, self.unkept)

    return self._bind(model, join)._replace(roles=None)

  def personal_model(self, model: Model, shared: Params) -> Model:
    """The model of the personal leaves, the shared ones being given."""
    others = {"personal": "shared", "shared": "frozen"}
    return dataclasses.replace(
      self,
      role=jax.tree.map(lambda role: others.get(role, role), self.role),
      frozen=self.join(self.frozen, shared),
    ).shared_like(model)

  def with_frozen(self, model: Model, frozen: Params | None) -> Model:
    """The model with these frozen leaves, arguments of a compiled program."""
    if frozen is None:
      return model
    return dataclasses.replace(self, frozen=frozen).shared_like(model)

  def with_model_state(self, model_state: str) -> "Roles":
    """The same with other statistics, one of ``MODEL_STATES``."""
    unkept = None
    if self.stateful is not None and model_state == "batch":
      unkept = self.values(STATE)
    return dataclasses.replace(self, model_state=model_state, unkept=unkept)

  def values(self, role: str) -> Params:
    """The leaves of a role that ``init`` makes for seed 0, as NumPy arrays."""
    # In a thread of its own nothing is traced, also where the caller is: under
    # ensure_compile_time_eval all that is not the key becomes a constant.
    with futures.ThreadPoolExecutor(1) as pool:
      params = pool.submit(lambda: self.whole.init(jax.random.key(0))).result()
    return jax.tree.map(np.asarray, self.of(role, params))

  def floats(self) -> dict[str, int]:
    """The number of floats of each role."""
    shapes = adapt.params_shapes(self.whole.init)
    roles = ROLES if self.stateful is None else (*ROLES, STATE)
    return {role: num_params(self.of(role, shapes)) for role in roles}

  def frozen_sha256(self) -> str:
    """The checksum of the frozen leaves, for the record of a run."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(self.frozen):
      digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def _with_objective(model: Model, source: Model) -> Model:
  return model._replace(
    loss=source.loss, l2=source.l2, l2_of_sum=source.l2_of_sum, task=source.task
  )


def map_passes(model: Model, change: Callable[[Model], Model]) -> Model:
  """The model whose passes ``change`` has changed, of all its leaves.

  Args:
    model: the model, with statistics or without, before ``split``.
    change: gets the model of all leaves, whose ``observe``, if there are
      statistics, is that of ``Stateful``.
  """
  roles = model.roles
  if roles is None:
    return change(model)
  full_model = change(roles.whole._replace(observe=roles.stateful.observe))
  stateful = roles.stateful._replace(observe=full_model.observe)
  result: Model = (
    dataclasses.replace(
      roles, whole=full_model._replace(observe=None), stateful=stateful
    )
    .shared_like(model)
    ._replace(caution=model.caution)
  )
  return result


def bind_frozen(model: Model, frozen: Params | None) -> Model:
  """The model with the frozen leaves that a program has as its arguments."""
  return model if model.roles is None else model.roles.with_frozen(model, frozen)


def state_size(model: Model) -> int:
  """The number of floats of the statistics that are sent with a model."""
  roles = model.roles
  return roles.floats()[STATE] if roles and roles.sends_state else 0


def deployed(model: Model) -> Model:
  """The model of what ``Algorithm.client_params`` returns."""
  return model if model.roles is None else model.roles.deployed(model)


def texts(roles: object) -> tuple[str, ...]:
  """Roles as a caller gives them, as texts ROLE:PATTERN.

  Args:
    roles: "lora", "ROLE:PATTERN", several with commas, a sequence of such, or a
      dictionary from the role to a pattern or several.

  Raises:
    OptionError: it is none of these, or a word or pattern is empty.
  """
  if isinstance(roles, Mapping):
    entries = [
      f"{role}:{pattern}"
      for role, patterns in roles.items()
      for pattern in _words(roles, patterns, f"{role}: no pattern")
    ]
  else:
    entries = _words(roles, roles)
  return tuple(entries)


def _words(roles: object, part: object, none: str = "") -> list[str]:
  """The words of roles, or of the patterns of one role.

  Args:
    roles: all that was given, for messages.
    part: a text with commas, or several texts.
    none: why there must be one; "" if there may be none.
  """
  listed: list[Any] = (
    words_of(part)
    if isinstance(part, str)
    else (
      list(part)
      if isinstance(part, Iterable) and not isinstance(part, (Mapping, bytes))
      else [None]
    )
  )
  if not all(isinstance(text, str) for text in listed):
    raise OptionError(
      f"`roles`={roles!r}: must be a dictionary from the role "
      'to a pattern, for example {"personal": "head"}'
    )
  if "" in listed or none and not listed:
    raise OptionError(
      f"`roles`={roles!r}: {none or 'has an empty word'}; must "
      "be ROLE:PATTERN[,ROLE:PATTERN...], for example "
      "personal:head"
    )
  return listed


def parse_roles(roles: Sequence[str]) -> list[tuple[str, str]]:
  """The pairs (role, pattern) of texts ROLE:PATTERN.

  Raises:
    OptionError: an unknown role, or no pattern.
  """
  pairs = []
  for text in roles:
    role, _, pattern = text.partition(":")
    if role == LORA:
      pairs.append(("shared", LORA))
      if pattern:
        pairs.append(("shared", pattern))
      continue
    if role not in ROLES or not pattern:
      raise OptionError(
        f"`roles`={text}: must be ROLE:PATTERN with a role of "
        f"{', '.join(ROLES)}, or {LORA}{did_you_mean(role, ROLES)}, for "
        "example personal:head or frozen:encoder/**"
      )
    pairs.append((role, pattern))
  return pairs


def leaf_paths(params: Params) -> list[str]:
  """The names of the leaves, such as "Dense_0/kernel", in their order."""
  return [
    jax.tree_util.keystr(path, simple=True, separator="/").removeprefix("params/")
    for path, _ in jax.tree_util.tree_leaves_with_path(params)
  ]


def _matches(pattern: str, path: str) -> bool:
  """Whether a pattern names a leaf, or a part of the tree that holds it.

  A star stands for any part of one name, and ** for any names.

  Examples:
    >>> _matches("head", "head/kernel"), _matches("head", "header/kernel")
    (True, False)
    >>> _matches("encoder/**", "encoder/a/b"), _matches("*/bias", "a/bias")
    (True, True)
    >>> _matches("**/head", "net/head/kernel"), _matches("*/bias", "a/b/bias")
    (True, False)
  """
  return _matches_parts(pattern.split("/"), path.split("/"))


def _matches_parts(pattern: list[str], path: list[str]) -> bool:
  if not pattern:
    return True  # the rest of the path is below what is named
  if pattern[0] == "**":
    return any(_matches_parts(pattern[1:], path[i:]) for i in range(len(path) + 1))
  return (
    bool(path)
    and fnmatch.fnmatchcase(path[0], pattern[0])
    and _matches_parts(pattern[1:], path[1:])
  )


def _match_leaves(pattern: str, model: Model, names: list[str]) -> list[bool]:
  """Marks the leaves that a pattern names."""
  kinds = model.kinds or {}
  if pattern == LAST and not any(_matches(LAST, name) for name in names):
    if not model.layers:
      raise OptionError(
        f"`roles`: {LAST} is the last layer of a named model; of this one "
        f"name the leaves ({_format_names(names)})"
      )
    pattern = model.layers[-1].name
    if not any(_matches(pattern, name) for name in names):
      return [True] * len(names)  # a model of one layer
  if pattern == NORM and not any(_matches(NORM, name) for name in names):
    return [
      any(
        fnmatch.fnmatchcase(part, norm) for part in name.split("/") for norm in _NORMS
      )
      for name in names
    ]
  if pattern == LORA:
    pattern = LORA_TYPE
  kind = pattern.rpartition(".")[2]
  if kind in kinds.values():
    return [kinds.get(name) == kind for name in names]
  return [_matches(pattern, name) for name in names]


def _format_names(names: list[str]) -> str:
  return ", ".join(names[:8]) + (
    f", ... ({len(names)} in all)" if len(names) > 8 else ""
  )


def of_leaves(
  model: Model, roles: Sequence[str], stateful: Stateful | None = None
) -> tuple[PyTree, list[str], list[str]]:
  """The role of every leaf.

  Args:
    model: the model of all leaves.
    roles: texts ROLE:PATTERN; of several that match the last one holds. Where
      a pattern is ``shared``, what no pattern names is frozen, else shared.
      Statistics are frozen with the layer that they belong to.
    stateful: which leaves are statistics; None: none is.

  Returns:
    The tree of roles, and the names and roles of the leaves.

  Raises:
    OptionError: a pattern matches nothing, or nothing is shared.
  """
  shapes = adapt.params_shapes(model.init)
  names, pairs = leaf_paths(shapes), parse_roles(roles)
  is_state = [stateful is not None and name in stateful.names for name in names]
  if stateful is not None:
    names = [stateful.names.get(name, name) for name in names]
  text = _format_names(
    [name for name, of_state in zip(names, is_state) if not of_state]
  )
  default = "frozen" if any(role == "shared" for role, _ in pairs) else "shared"
  leaf_roles = [default] * len(names)
  for role, pattern in pairs:
    is_match = _match_leaves(pattern, model, names)
    if not any(match and not of for match, of in zip(is_match, is_state)):
      raise OptionError(
        f"`roles`={role}:{pattern}: matches no parameter of the model (it has {text})"
      )
    leaf_roles = [role if match else old for match, old in zip(is_match, leaf_roles)]
  leaf_roles = [
    STATE if of and role != "frozen" else role for of, role in zip(is_state, leaf_roles)
  ]
  if "shared" not in leaf_roles:
    raise OptionError(
      f"`roles`={','.join(roles)}: leaves nothing shared of "
      f"{text}; a client that shares nothing is `algorithm`=local"
    )
  return jax.tree.unflatten(jax.tree.structure(shapes), leaf_roles), names, leaf_roles


def with_state(full_model: Model, stateful: Stateful) -> Model:
  """The model of the parameters of one that has statistics, too.

  Args:
    full_model: the model of all leaves.
    stateful: its statistics.

  Returns:
    The model of the parameters, all of them shared; the statistics are the
    server's unless ``split`` says otherwise.
  """
  role, _, _ = of_leaves(full_model, (), stateful)
  return (
    Roles(full_model, role, jax.tree.map(lambda _: None, role), stateful=stateful)
    .shared_model()
    ._replace(caution=full_model.caution)
  )


def split(
  model: Model,
  roles: Sequence[str],
  personal: PersonalTraining = PersonalTogether(),
  model_state: str = "global",
) -> Model:
  """Makes the model of the shared leaves.

  Args:
    model: the model of all leaves, or of the parameters of one with statistics.
    roles: texts ROLE:PATTERN; see ``of_leaves``.
    personal: how the personal leaves are trained.
    model_state: who keeps the statistics, one of ``MODEL_STATES``.

  Returns:
    The model, whose ``roles`` hold the others. The frozen leaves are those of
    ``init`` for seed 0, for every seed of a run; a flax.nnx module that is
    given with its values has these.

  Raises:
    OptionError: see ``of_leaves``.
  """
  old_roles = model.roles
  if not roles:
    if old_roles is None or old_roles.stateful is None:
      return model
    if not old_roles.has_personal:
      old_roles = dataclasses.replace(old_roles, personal=personal)
    result: Model = (
      old_roles.with_model_state(model_state)
      .shared_like(model)
      ._replace(caution=model.caution)
    )
    return result
  full_model, stateful = model, None
  if old_roles is not None:
    stateful = old_roles.stateful
    full_model = _with_objective(old_roles.whole, model)
  role, _, leaf_roles = of_leaves(full_model, roles, stateful)
  new_roles = Roles(
    full_model, role, jax.tree.map(lambda _: None, role), personal, stateful
  )
  if "frozen" in leaf_roles:
    new_roles = dataclasses.replace(new_roles, frozen=new_roles.values("frozen"))
  return new_roles.with_model_state(model_state).shared_model()


def leaves_of(option: str, pattern: str, model: Model, names: list[str]) -> list[bool]:
  """Marks the leaves that a pattern names, which must be one at least.

  Args:
    option: the option that has it, for the message.
    pattern: see ``_matches``; or one of the words ``last``, ``norm`` and
      ``lora``, or the type of a flax.nnx variable.
    model: the model of all leaves.
    names: their names.

  Raises:
    OptionError: none.
  """
  is_match = _match_leaves(pattern, model, names)
  if not any(is_match):
    raise OptionError(
      f"`{option}`={pattern}: matches no parameter of the "
      f"model (it has {_format_names(names)})"
    )
  return is_match
