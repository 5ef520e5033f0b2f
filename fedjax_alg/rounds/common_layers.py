"""Layers that the models of all groups have in common, around any rule.

Source: Ghosh et al. 2020, section 6.3: IFCA shares the first layers of its K
models on FEMNIST, and keeps the last layer for each group. Where n_k of n
participants' examples are in group k, whose update of a common layer is d_k,
  v <- v + sum_k (n_k / n) d_k,
the mean over all participants.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, Model, Params, num_params
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt, roles
from fedjax_alg.rounds.clustered import ClusteredState, Extra, Rule, TrainingResult
from fedjax_alg.typing import PyTree


def mark_common(model: Model, pattern: str) -> PyTree:
  """Marks the leaves that all groups have in common.

  Args:
    model: the model that is sent.
    pattern: as of roles, for example Dense_0.

  Returns:
    A tree like the parameters, whose leaves are bools.

  Raises:
    OptionError: no leaf or every leaf is meant.
  """
  shapes = adapt.params_shapes(model.init)
  is_common = roles.leaves_of("common_layers", pattern, model, roles.leaf_paths(shapes))
  if all(is_common):
    raise OptionError(
      f"`common_layers`={pattern}: leaves no layer to the groups, whose models "
      "would be equal"
    )
  return jax.tree.unflatten(jax.tree.structure(shapes), is_common)


def with_common_layers(
  rule: Rule, is_common: PyTree, weigh: Callable[[Cohort], Array]
) -> Rule:
  """Makes a rule whose models have some layers in common.

  Args:
    rule: the rule; every participant receives all K models.
    is_common: ``mark_common``.
    weigh: cohort -> the participants' weights [S], 0 of padding slots.

  Returns:
    The rule. Groups send and receive common layers once, which ``extra`` says.
  """
  k = rule.num_groups

  def unite(models: Params) -> Params:
    """The models with the common layers of the first."""
    return jax.tree.map(
      lambda common, leaf: jnp.broadcast_to(leaf[:1], leaf.shape) if common else leaf,
      is_common,
      models,
    )

  def init(params, spec, key):
    models, memory = rule.init(params, spec, key)
    return unite(models), memory

  def setup(state, everyone, key):
    state = rule.setup(state, everyone, key)
    return state._replace(models=unite(state.models))

  def finish(
    state: ClusteredState, cohort: Cohort, result: TrainingResult
  ) -> ClusteredState:
    state = rule.finish(state, cohort, result)
    weights = weigh(cohort)
    of_group = jnp.where(trees.members(result.groups, k), weights[None], 0.0).sum(1)
    share = of_group / jnp.maximum(of_group.sum(), 1e-30)
    if rule.whole_divisor:  # a group's move is a part of the whole already
      share = jnp.ones_like(share)
    moves = trees.slot_sum(share, trees.subtract(state.models, result.before))
    models = jax.tree.map(
      lambda common, old, new, move: old + move[None] if common else new,
      is_common,
      result.before,
      state.models,
      moves,
    )
    return state._replace(models=models)

  def extra(
    before: ClusteredState, after: ClusteredState, cohort: Cohort, notes: PyTree
  ) -> Extra:
    other = rule.extra(before, after, cohort, notes)
    common = sum(
      num_params(leaf) // k
      for is_one, leaf in zip(
        jax.tree.leaves(is_common), jax.tree.leaves(before.models)
      )
      if is_one
    )
    # Of K models that come down K - 1 are beside the one that is trained.
    down = other.down._replace(floats=other.down.floats - (k - 1) * common)
    return other._replace(down=down)

  return rule._replace(init=init, setup=setup, finish=finish, extra=extra)
