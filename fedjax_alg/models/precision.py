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

from fedjax_alg.base import Model

#: In what a model may be computed.
DTYPES = ("float32", "bfloat16")


def _as(dtype: Any, tree: Any) -> Any:
  """The tree with its floating-point leaves in another dtype."""
  return jax.tree.map(
      lambda leaf: leaf.astype(dtype)
      if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)


def in_bfloat16(model: Model) -> Model:
  """The model that computes in bfloat16.

  Its logits are no longer linear in the parameters, because both are rounded.
  Numbers of float32 that a module makes itself are taken as they are, and what
  they meet is computed in float32.

  Args:
    model: any model; its layers (``Model.layers``) compute as before.
  """

  def converted(apply: Callable[..., Any]) -> Any:

    def low(params, x, *key):
      with jax.numpy_dtype_promotion("standard"):
        return _as(jnp.float32, apply(
            _as(jnp.bfloat16, params), _as(jnp.bfloat16, x), *key))

    return low

  return model._replace(
      apply=converted(model.apply), linear=False,
      train_apply=model.train_apply and converted(model.train_apply))
