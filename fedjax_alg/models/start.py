"""Models that start from given parameters, all of them or a part.

What is given takes the place of what ``Model.init`` draws, leaf by leaf, before
the leaves get their roles (``models.roles``): so frozen, personal and shared
ones may all be given. The programs of a run have them as an argument
(``ClientData.start``) and not as constants.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from fedjax_alg.base import Key, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt, roles


def _by_leaf(arrays: Mapping[str, np.ndarray], label: str) -> dict[str, np.ndarray]:
  """The arrays by the names of leaves, which have no "params/" before them.

  Raises:
    OptionError: two arrays are of one leaf.
  """
  of_leaf: dict[str, np.ndarray] = {}
  for name, array in arrays.items():
    short = name.removeprefix("params/")
    if short in of_leaf:
      raise OptionError(
        f"{label}: has both {short} and params/{short}, which "
        "are one leaf; leave one out"
      )
    of_leaf[short] = array
  return of_leaf


def _of_one_model(
  arrays: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], label: str
) -> dict[str, np.ndarray]:
  """The arrays without the axis of K = 1 models, if they have one.

  Args:
    arrays: name of a leaf -> array.
    shapes: name of a leaf to take -> its shape in the model.
    label: where the arrays are from, for messages.

  Raises:
    OptionError: the axis is that of several models.
  """
  stacked = [name for name in shapes if name in arrays]
  counts = {arrays[name].shape[:1] for name in stacked}
  if len(counts) != 1 or any(
    arrays[name].shape[1:] != shapes[name] or not arrays[name].ndim for name in stacked
  ):
    return arrays
  ((count,),) = counts
  if count != 1:
    raise OptionError(
      f"{label}: has {count} models (an axis of {count} before the shape of "
      "every leaf); take one of them, such as the first by "
      "jax.tree.map(lambda leaf: leaf[0], init), or give the file of "
      "export(path, model=0)"
    )
  return {name: array[0] if name in shapes else array for name, array in arrays.items()}


def matched(
  model: Model, arrays: Mapping[str, np.ndarray], only: Sequence[str], said: str
) -> Params:
  """The leaves of a model that arrays give.

  Args:
    model: the model of all leaves.
    arrays: name of a leaf, with or without "params/" before it -> array. All
      may have an axis of length 1 before theirs, as the global models of a run
      have one of length K.
    only: patterns of the leaves that are given (``roles.matches``); empty: all
      are.
    said: where the arrays are from, for messages.

  Returns:
    A tree like the parameters, None in the place of what is not given.

  Raises:
    OptionError: an array is missing, there twice, of another shape, or of no
      leaf; or the arrays are those of several models. Running statistics that
      are missing are drawn.
  """
  whole = model if model.roles is None else model.roles.whole
  statistics = {} if model.roles is None else model.roles.stateful.names
  shapes = adapt.params_shapes(whole.init)
  names = roles.paths(shapes)
  held = _by_leaf(arrays, said)
  wanted = [True] * len(names)
  if only:
    wanted = [
      any(column)
      for column in zip(
        *(
          roles.leaves_of(
            "init_only", pattern, whole, [statistics.get(name, name) for name in names]
          )
          for pattern in only
        )
      )
    ]

  def shown(names):
    return ", ".join(sorted(names)[:8])

  part = "" if only else " (`init_only` names the part to take)"
  held = _of_one_model(
    held,
    {
      name: leaf.shape
      for name, take, leaf in zip(names, wanted, jax.tree.leaves(shapes))
      if take
    },
    said,
  )
  given = []
  for name, take, leaf in zip(names, wanted, jax.tree.leaves(shapes)):
    take = take and (name in held or name not in statistics)
    if take and name not in held:
      raise OptionError(f"{said}: has no {name}, it has {shown(held)}{part}")
    if take and held[name].shape != leaf.shape:
      raise OptionError(
        f"{said}: {name} is {list(held[name].shape)}, and "
        f"{list(leaf.shape)} in the model{part}"
      )
    given.append(held[name] if take else None)
  more = sorted(set(held) - set(names))
  if more and not only:
    raise OptionError(f"{said}: has {shown(more)}, which the model has not{part}")
  return jax.tree.unflatten(jax.tree.structure(shapes), given)


def starting(model: Model, given: Params) -> Model:
  """The model whose ``init`` gives these leaves, and draws those of None."""

  def init(key: Key) -> Params:
    return jax.tree.map(
      lambda drawn, leaf: drawn if leaf is None else leaf, model.init(key), given
    )

  return model._replace(init=init)


def bound(model: Model, given: Params | None) -> Model:
  """The model with given leaves that a program has as its arguments.

  Args:
    model: the model of a run, with roles or without.
    given: see ``starting``; None: none are given.
  """
  if given is None:
    return model
  if model.roles is None:
    return starting(model, given)
  result: Model = (
    dataclasses.replace(model.roles, whole=starting(model.roles.whole, given))
    .shared_like(model)
    ._replace(caution=model.caution)
  )
  return result


def moving(model: Model, given: Params | None) -> Any:
  """The given leaves but for those that are frozen, which no program draws."""
  if given is None or model.roles is None:
    return given
  return jax.tree.map(
    lambda role, leaf: None if role == "frozen" else leaf, model.roles.role, given
  )
