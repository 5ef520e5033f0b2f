"""Roles of parameters: shared, personal and frozen ones of one model.

A role says what happens to a leaf of the parameter tree:

- ``shared``: trained by the participants and sent; what every algorithm sees.
- ``personal``: trained by the client and kept there; never sent.
- ``frozen``: never trained and never sent in a round.

``split`` makes of a model one whose ``init``, ``apply`` and parameters are
those of the shared leaves alone. So messages, vectors for grouping,
compression, privacy, attacks, aggregators, moments and the ledger have nothing
of the others. Trees of some of the leaves have None in the place of the
others, which JAX takes for no leaf at all.

The personal leaves of a client are in its ``Shard.personal`` and are trained by
``client.personal``. Frozen leaves are arguments of the compiled programs
(``ClientData.frozen``) and in no checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import fnmatch
import hashlib
from typing import Any

import jax
import numpy as np

from fedjax_alg.base import Array, Key, Model, num_params, Params
from fedjax_alg.errors import did_you_mean, OptionError
from fedjax_alg.models import adapt

ROLES = ("shared", "personal", "frozen")
#: Patterns that stand for the parameters of some layers.
LAST, NORM, LORA = "last", "norm", "lora"
_NORMS = ("*[nN]orm*", "[bB][nN]*", "[lL][nN]", "[lL][nN]_*")
#: When the personal leaves are trained (``client.personal``).
WHEN = ("together", "first", "evaluation")


@dataclasses.dataclass(frozen=True)
class Personal:
  """How the personal leaves of a client are trained."""

  when: str = "together"  #: one of ``WHEN``
  rate: float = 0.0  #: learning rate; 0: that of the method's local steps
  #: mini-batch steps with the personal leaves alone; 0: as many as the method's
  #: local work
  fit: int = 0


@dataclasses.dataclass(frozen=True)
class Roles:
  """The leaves of a model by role, for ``Model.roles``."""

  whole: Model  #: the model of all leaves
  role: Any  #: tree like the parameters, one of ``ROLES`` for each leaf
  frozen: Params  #: the frozen leaves
  personal: Personal = Personal()

  @property
  def has_personal(self) -> bool:
    """Whether a leaf is personal."""
    return "personal" in jax.tree.leaves(self.role)

  @property
  def has_frozen(self) -> bool:
    """Whether a leaf is frozen."""
    return bool(jax.tree.leaves(self.frozen))

  def of(self, role: str, params: Params) -> Params:
    """The leaves of one role, None in the place of the others."""
    return jax.tree.map(
        lambda own, leaf: leaf if own == role else None, self.role, params)

  def join(self, *parts: Params) -> Params:
    """The tree with the leaves of all these trees."""

    def one(role, *leaves):
      del role
      return next((leaf for leaf in leaves if leaf is not None), None)

    return jax.tree.map(one, self.role, *parts)

  def start_personal(self, key: Key) -> Params:
    """The personal leaves that every client starts from."""
    return self.of("personal", self.whole.init(key))

  def _model(self, trained: tuple[str, ...], others: Params) -> Model:
    """The model of the leaves of some roles, the others being given."""
    whole = self.whole

    def init(key: Key) -> Params:
      return jax.tree.map(
          lambda role, leaf: leaf if role in trained else None, self.role,
          whole.init(key))

    def apply(params: Params, x: Array) -> Array:
      return whole.apply(self.join(params, others), x)

    train_apply: Any = None
    if whole.train_apply is not None:
      in_training = whole.train_apply

      def train_apply(params: Params, x: Array, key: Key) -> Array:
        return in_training(self.join(params, others), x, key)

    return whole._replace(
        init=init, apply=apply, train_apply=train_apply, scale_features=None,
        linear=False, caution="")

  def shared_model(self) -> Model:
    """The model of the shared leaves; the personal ones are at their start.

    They are those of seed 0 then. Wherever a client computes, its own take
    their place (``of_client``).
    """
    others = self.frozen
    if self.has_personal:
      start = self.start_personal

      def init(key):
        return self.of("shared", self.whole.init(key))

      def with_start(apply):
        return apply and (lambda params, *args: apply(self.join(
            params, start(jax.random.key(0)), self.frozen), *args))

      whole = self.whole
      return self._model(("shared",), others)._replace(
          init=init, apply=with_start(whole.apply),
          train_apply=with_start(whole.train_apply), roles=self)
    return self._model(("shared",), others)._replace(roles=self)

  def of_client(self, model: Model, personal: Params) -> Model:
    """The model of the shared leaves at a client with its personal ones."""
    bound = self._model(("shared",), self.join(personal, self.frozen))
    return model._replace(
        apply=bound.apply, train_apply=bound.train_apply, roles=None)

  def deployed(self, model: Model) -> Model:
    """The model of the shared and the personal leaves, joined."""
    bound = self._model(("shared", "personal"), self.frozen)
    return bound._replace(
        loss=model.loss, l2=model.l2, l2_of_sum=model.l2_of_sum)

  def together(self, model: Model) -> Model:
    """The model whose parameters are the pair (shared, personal leaves)."""

    def joined(apply):
      return apply and (lambda pair, *args: apply(
          self.join(*pair, self.frozen), *args))

    return model._replace(
        apply=joined(self.whole.apply), roles=None,
        train_apply=joined(self.whole.train_apply))

  def alone(self, model: Model, shared: Params) -> Model:
    """The model of the personal leaves, the shared ones being given."""
    bound = self._model(("personal",), self.join(shared, self.frozen))
    return model._replace(
        apply=bound.apply, train_apply=bound.train_apply, roles=None)

  def with_frozen(self, model: Model, frozen: Params | None) -> Model:
    """The model with these frozen leaves, arguments of a compiled program."""
    if frozen is None:
      return model
    other = dataclasses.replace(self, frozen=frozen)
    return other.shared_model()._replace(
        loss=model.loss, l2=model.l2, l2_of_sum=model.l2_of_sum)

  def floats(self) -> dict[str, int]:
    """The number of floats of each role."""
    shapes = adapt.params_shapes(self.whole.init)
    return {role: num_params(self.of(role, shapes)) for role in ROLES}

  def frozen_sha256(self) -> str:
    """The checksum of the frozen leaves, for the record of a run."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(self.frozen):
      digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def bound(model: Model, frozen: Params | None) -> Model:
  """The model with the frozen leaves that a program has as its arguments."""
  return model if model.roles is None else model.roles.with_frozen(
      model, frozen)


def deployed(model: Model) -> Model:
  """The model of what ``Algorithm.client_params`` returns."""
  return model if model.roles is None else model.roles.deployed(model)


def texts(roles: Any) -> tuple[str, ...]:
  """Roles as a caller gives them, as texts ROLE:PATTERN.

  Args:
    roles: "lora", "ROLE:PATTERN", a sequence of such, or a dictionary from the
      role to a pattern or several.

  Raises:
    OptionError: it is none of these.
  """
  if isinstance(roles, str):
    return tuple(filter(None, roles.split(",")))
  if isinstance(roles, Mapping):
    return tuple(
        f"{role}:{pattern}" for role, patterns in roles.items()
        for pattern in ([patterns] if isinstance(patterns, str) else patterns))
  if isinstance(roles, Iterable):
    found = tuple(roles)
    if all(isinstance(text, str) for text in found):
      return found
  raise OptionError(f"`roles`={roles!r}: must be a dictionary from the role "
                    'to a pattern, for example {"personal": "head"}')


def parse(roles: Sequence[str]) -> list[tuple[str, str]]:
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
          "example personal:head or frozen:encoder/**")
    pairs.append((role, pattern))
  return pairs


def paths(params: Params) -> list[str]:
  """The names of the leaves, such as "Dense_0/kernel", in their order."""
  found = []
  for path, _ in jax.tree_util.tree_leaves_with_path(params):
    parts = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))))
             for k in path]
    found.append("/".join(parts[parts[0] == "params" and len(parts) > 1:]))
  return found


def matches(pattern: str, path: str) -> bool:
  """Whether a pattern names a leaf, or a part of the tree that holds it.

  A star stands for any part of one name, and ** for any names.

  Examples:
    >>> matches("head", "head/kernel"), matches("head", "header/kernel")
    (True, False)
    >>> matches("encoder/**", "encoder/a/b"), matches("*/bias", "a/bias")
    (True, True)
    >>> matches("**/head", "net/head/kernel"), matches("*/bias", "a/b/bias")
    (True, False)
  """
  return _matches(pattern.split("/"), path.split("/"))


def _matches(pattern: list[str], path: list[str]) -> bool:
  if not pattern:
    return True  # the rest of the path is below what is named
  if pattern[0] == "**":
    return any(_matches(pattern[1:], path[i:]) for i in range(len(path) + 1))
  return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(
      pattern[1:], path[1:])


def _named(pattern: str, model: Model, names: list[str]) -> list[bool]:
  """Which leaves a pattern names."""
  kinds = model.kinds or {}
  if pattern == LAST and not any(matches(LAST, name) for name in names):
    if not model.layers:
      raise OptionError(
          f"`roles`: {LAST} is the last layer of a named model; of this one "
          f"name the leaves ({_shown(names)})")
    pattern = model.layers[-1].name
    if not any(matches(pattern, name) for name in names):
      return [True] * len(names)  # a model of one layer
  if pattern == NORM and not any(matches(NORM, name) for name in names):
    return [any(fnmatch.fnmatchcase(part, norm) for part in name.split("/")
                for norm in _NORMS) for name in names]
  if pattern == LORA:
    pattern = "LoRAParam"
  kind = pattern.rpartition(".")[2]
  if kind in kinds.values():
    return [kinds.get(name) == kind for name in names]
  return [matches(pattern, name) for name in names]


def _shown(names: list[str]) -> str:
  return ", ".join(names[:8]) + (
      f", ... ({len(names)} in all)" if len(names) > 8 else "")


def of_leaves(
    model: Model, roles: Sequence[str]) -> tuple[Any, list[str], list[str]]:
  """The role of every leaf.

  Args:
    model: the model.
    roles: texts ROLE:PATTERN; of several that match the last one holds. Where
      a pattern is ``shared``, what no pattern names is frozen, else shared.

  Returns:
    The tree of roles, and the names and roles of the leaves.

  Raises:
    OptionError: a pattern matches nothing, or nothing is shared.
  """
  shapes = adapt.params_shapes(model.init)
  names, pairs = paths(shapes), parse(roles)
  default = "frozen" if any(role == "shared" for role, _ in pairs) else "shared"
  found = [default] * len(names)
  for role, pattern in pairs:
    named = _named(pattern, model, names)
    if not any(named):
      raise OptionError(
          f"`roles`={role}:{pattern}: matches no parameter of the model (it "
          f"has {_shown(names)})")
    found = [role if own else old for own, old in zip(named, found)]
  if "shared" not in found:
    raise OptionError(
        f"`roles`={','.join(roles)}: leaves nothing shared of "
        f"{_shown(names)}; a client that shares nothing is `algorithm`=local")
  return jax.tree.unflatten(jax.tree.structure(shapes), found), names, found


def split(
    model: Model, roles: Sequence[str], personal: Personal = Personal()
) -> Model:
  """Makes the model of the shared leaves.

  Args:
    model: the model of all leaves.
    roles: texts ROLE:PATTERN; see ``of_leaves``.
    personal: how the personal leaves are trained.

  Returns:
    The model, whose ``roles`` hold the others. The frozen leaves are those of
    ``init`` for seed 0, for every seed of a run; a flax.nnx module that is
    given with its values has these.

  Raises:
    OptionError: see ``of_leaves``.
  """
  if not roles:
    return model
  role, _, found = of_leaves(model, roles)
  frozen: Any = jax.tree.map(lambda _: None, role)
  whole = Roles(model, role, frozen, personal)
  if "frozen" in found:
    with jax.ensure_compile_time_eval():
      values = model.init(jax.random.key(0))
    frozen = jax.tree.map(np.asarray, whole.of("frozen", values))
    whole = dataclasses.replace(whole, frozen=frozen)
  return whole.shared_model()


def leaves_of(
    option: str, pattern: str, model: Model, names: list[str]) -> list[bool]:
  """Which leaves a pattern names.

  Args:
    option: the option that has it, for the message.
    pattern: see ``matches``; or one of the words ``last``, ``norm`` and
      ``lora``, or the type of a flax.nnx variable.
    model: the model of all leaves.
    names: their names.

  Raises:
    OptionError: none.
  """
  found = _named(pattern, model, names)
  if not any(found):
    raise OptionError(f"`{option}`={pattern}: matches no parameter of the "
                      f"model (it has {_shown(names)})")
  return found
