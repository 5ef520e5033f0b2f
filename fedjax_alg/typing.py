"""Types that annotations of all packages share.

They are for mypy and for readers; nothing is checked by them at run time.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
import numpy.typing as npt

Array = jax.Array

#: An array on the host or on a device, for code that computes with either.
AnyArray: TypeAlias = jax.Array | np.ndarray

#: A number of Python, NumPy or JAX, which may be traced.
Numeric: TypeAlias = jax.Array | np.ndarray | float

#: A pytree whose structure belongs to the method, the model or the user. Code
#: may hand it on and map over its leaves; mypy refuses to look into it.
PyTree: TypeAlias = object

#: A pytree that a function returns with the structure it was given.
Tree = TypeVar("Tree")

#: What a JSON file of a run holds, or a part of it: name -> number, text, list or
#: facts again. Whoever reads a fact knows its type.
Facts: TypeAlias = Mapping[str, Any]

#: The shape of an array, or of each array of a dictionary.
Shapes: TypeAlias = tuple[int, ...] | Mapping[str, "Shapes"]

#: The dtype of an array, or of each array of a dictionary.
DTypes: TypeAlias = type[Any] | np.dtype | str | Mapping[str, "DTypes"]


#: What NumPy converts to an array, or a dictionary of such.
ArraysLike: TypeAlias = npt.ArrayLike | Mapping[str, "ArraysLike"]


class Shaped(Protocol):
  """An array, or what describes one, such as ``jax.ShapeDtypeStruct``."""

  @property
  def shape(self) -> tuple[int, ...]:
    """The length of each axis."""

  @property
  def dtype(self) -> np.dtype:
    """The type of the entries."""
