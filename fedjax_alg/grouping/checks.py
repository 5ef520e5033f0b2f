"""Checks of argument shapes, made when a program is traced.

A mask or a center of a wrong length might broadcast to a plausible result.
These checks raise an AssertionError that names the array instead.
"""

import chex

from fedjax_alg.base import Array


def check_masked_rows(rows: Array, mask: Array, name: str = "points") -> None:
  """Checks that ``rows`` is [S, d] and ``mask`` is [S] bool."""
  chex.assert_rank(rows, 2, custom_message=f"{name} must be [S, d]")
  check_mask(mask, rows.shape[0])


def check_masked_square(square: Array, mask: Array, name: str) -> None:
  """Checks that ``square`` is [n, n] and ``mask`` is [n] bool."""
  chex.assert_rank(square, 2, custom_message=f"{name} must be [n, n]")
  n = square.shape[0]
  chex.assert_shape(square, (n, n), custom_message=f"{name} must be [n, n]")
  check_mask(mask, n)


def check_mask(mask: Array, n: int) -> None:
  """Checks that ``mask`` is [n] bool."""
  chex.assert_shape(mask, (n,), custom_message="mask: one entry for each row")
  chex.assert_type(mask, bool)


def check_vectors(array: Array, width: int, name: str) -> None:
  """Checks that ``array`` is [any, width]."""
  chex.assert_shape(
    array,
    (None, width),
    custom_message=f"{name}: rows as long as those they are compared with",
  )
