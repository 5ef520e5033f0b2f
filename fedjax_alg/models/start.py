"""Models that start from given parameters, all of them or a part.

What is given takes the place of what ``Model.init`` draws, leaf by leaf, before
the leaves get their roles (``models.roles``): so frozen, personal and shared
ones may all be given. The programs of a run have them as an argument
(``ClientData.start``) and not as constants.
"""

from collections.abc import Mapping, Sequence
import dataclasses

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


#: A message lists so many leaves at most.
_LISTED = 8


def describe_leaves(model: Model) -> str:
  """The names and shapes of a model's leaves, for messages."""
  full_model = model if model.roles is None else model.roles.whole
  shapes = adapt.params_shapes(full_model.init)
  texts = [
    f"{name} {list(leaf.shape)}"
    for name, leaf in zip(roles.leaf_paths(shapes), jax.tree.leaves(shapes))
  ]
  return ", ".join(texts[: 2 * _LISTED]) + ", ..." * (len(texts) > 2 * _LISTED)


def match_arrays(
  model: Model, arrays: Mapping[str, np.ndarray], only: Sequence[str], label: str
) -> Params:
  """The leaves of a model that arrays give.

  Args:
    model: the model of all leaves.
    arrays: name of a leaf, with or without "params/" before it -> array. All
      may have an axis of length 1 before theirs, as the global models of a run
      have one of length K.
    only: patterns of the leaves that are given (``roles._matches``); empty: all
      are.
    label: where the arrays are from, for messages.

  Returns:
    A tree like the parameters, None in the place of what is not given.

  Raises:
    OptionError: an array is missing, there twice, of another shape, or of no
      leaf; or the arrays are those of several models. Running statistics and
      adapters that are missing are drawn.
  """
  full_model = model if model.roles is None else model.roles.whole
  statistics = {} if model.roles is None else model.roles.stateful.names
  shapes = adapt.params_shapes(full_model.init)
  names = roles.leaf_paths(shapes)
  by_leaf = _by_leaf(arrays, label)
  selected = [True] * len(names)
  if only:
    selected = [
      any(column)
      for column in zip(
        *(
          roles.leaves_of(
            "init_only",
            pattern,
            full_model,
            [statistics.get(name, name) for name in names],
          )
          for pattern in only
        )
      )
    ]

  def format_names(names):
    listed = [name or "an array without a name" for name in sorted(names)]
    return ", ".join(listed[:_LISTED]) + ", ..." * (len(listed) > _LISTED)

  part = "" if only else " (`init_only` names the part to take)"
  by_leaf = _of_one_model(
    by_leaf,
    {
      name: leaf.shape
      for name, take, leaf in zip(names, selected, jax.tree.leaves(shapes))
      if take
    },
    label,
  )
  leaves, missing, faults = [], [], []
  for name, take, leaf in zip(names, selected, jax.tree.leaves(shapes)):
    drawn = name in statistics or (full_model.kinds or {}).get(name) == roles.LORA_TYPE
    take = take and (name in by_leaf or not drawn)
    if take and name not in by_leaf:
      missing.append(name)
    elif take and by_leaf[name].shape != leaf.shape:
      faults.append(
        f"{name} is {list(by_leaf[name].shape)}, and {list(leaf.shape)} in the model"
      )
    leaves.append(by_leaf[name] if take and name in by_leaf else None)
  if missing:
    faults.append(f"has no {format_names(missing)}, it has {format_names(by_leaf)}")
  unknown = sorted(set(by_leaf) - set(names))
  if unknown and not only and not missing:
    faults.append(f"has {format_names(unknown)}, which the model does not have")
  if faults:
    needed = ""
    if missing and unknown:
      needed = f"; the model has {describe_leaves(full_model)}"
    others = "; ..." * (len(faults) > _LISTED)
    raise OptionError(f"{label}: {'; '.join(faults[:_LISTED])}{others}{needed}{part}")
  return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def starting(model: Model, leaves: Params) -> Model:
  """The model whose ``init`` gives these leaves, and draws those of None."""

  def init(key: Key) -> Params:
    return jax.tree.map(
      lambda initial, leaf: initial if leaf is None else leaf, model.init(key), leaves
    )

  return model._replace(init=init)


def bind_leaves(model: Model, leaves: Params | None) -> Model:
  """The model with given leaves that a program has as its arguments.

  Args:
    model: the model of a run, with roles or without.
    leaves: see ``starting``; None: none are given.
  """
  if leaves is None:
    return model
  if model.roles is None:
    return starting(model, leaves)
  result: Model = (
    dataclasses.replace(model.roles, whole=starting(model.roles.whole, leaves))
    .shared_like(model)
    ._replace(caution=model.caution)
  )
  return result


def trainable(model: Model, leaves: Params | None) -> Params | None:
  """The given leaves but for those that are frozen, which no program draws."""
  if leaves is None or model.roles is None:
    return leaves
  return jax.tree.map(
    lambda role, leaf: None if role == "frozen" else leaf, model.roles.role, leaves
  )
