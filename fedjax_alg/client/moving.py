"""Personal parameters that move with the local steps of a client.

``client.minibatches.fold_steps`` reads here whether they do. They are no
argument of the local methods, so that none of these has to know of them.
"""

from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses
from typing import Any

import jax

from fedjax_alg.base import Params


@dataclasses.dataclass
class Moving:
  """The personal parameters of the client whose code is being traced."""

  leaves: Params
  rate: Any  #: [] float32, their learning rate

  def stepped(self, leaves: Params, gradient: Params) -> Params:
    """The parameters after a step."""
    return jax.tree.map(
        lambda leaf, slope: leaf - self.rate * slope, leaves, gradient)


_here: contextvars.ContextVar[Moving | None] = contextvars.ContextVar(
    "moving", default=None)


def here() -> Moving | None:
  """The personal parameters that move with the steps traced here, or None."""
  return _here.get()


@contextlib.contextmanager
def moving(leaves: Params, rate: Any) -> Iterator[Moving]:
  """Where local steps move personal parameters, too.

  Args:
    leaves: the parameters.
    rate: their learning rate.

  Yields:
    What holds the moved parameters in the end.
  """
  held = Moving(leaves, rate)
  token = _here.set(held)
  try:
    yield held
  finally:
    _here.reset(token)
