"""Computing in bfloat16, with parameters and all sums in float32.

A model's parameters and examples are converted where they enter ``apply``, and
its outputs where they leave it. So the products and activations of a pass and
of its derivatives are in bfloat16, and everything else is in float32 as ever:
parameters and their steps, losses, sums over rows and clients, what is sent.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy.typing as npt

from fedjax_alg.base import Model
from fedjax_alg.models import roles
from fedjax_alg.typing import PyTree

#: In what a model may be computed.
DTYPES = ("float32", "bfloat16")


def _as(dtype: npt.DTypeLike, tree: PyTree) -> PyTree:
  """The tree with its floating-point leaves in another dtype."""
  return jax.tree.map(
    lambda leaf: (
      leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    ),
    tree,
  )


def in_bfloat16(model: Model) -> Model:
  """The model that computes in bfloat16, but for its running statistics.

  Its logits are no longer linear in the parameters, because both are rounded.
  Numbers of float32 that a module makes itself are taken as they are, and what
  they meet is computed in float32.

  Args:
    model: any model; its layers (``Model.layers``) compute as before.
  """

  state_names = () if model.roles is None else model.roles.stateful.names

  def lower(params):
    return jax.tree.map(
      lambda name, leaf: leaf if name in state_names else _as(jnp.bfloat16, leaf),
      jax.tree.unflatten(jax.tree.structure(params), roles.leaf_paths(params)),
      params,
    )

  def convert(apply: Callable[..., object] | None) -> Any:

    def low(params, x, *args):
      assert apply is not None
      with jax.numpy_dtype_promotion("standard"):
        return _as(jnp.float32, apply(lower(params), _as(jnp.bfloat16, x), *args))

    return apply and low

  return roles.map_passes(
    model,
    lambda full_model: full_model._replace(
      apply=convert(full_model.apply),
      linear=False,
      train_apply=convert(full_model.train_apply),
      observe=convert(full_model.observe),
    ),
  )
