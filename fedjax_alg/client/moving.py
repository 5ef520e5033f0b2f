"""Values that move with a client's local steps beside the shared parameters.

Personal parameters take a step of their own, and running statistics are moved
by the forward pass (``models.roles``). ``client.minibatches.fold_steps`` reads
here whether there are some. They are no argument of the local methods, so that
none of these has to know of them.
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
  """Values that move at the client whose code is being traced."""

  personal: Params  #: its personal parameters; None: they do not move
  rate: Any  #: [] float32, their learning rate
  state: Params  #: running statistics; None: there are none

  def take_step(self, personal: Params, gradient: Params) -> Params:
    """The personal parameters after a step."""
    return jax.tree.map(
      lambda leaf, slope: leaf - self.rate * slope, personal, gradient
    )


_current: contextvars.ContextVar[Moving | None] = contextvars.ContextVar(
  "moving", default=None
)


def current() -> Moving | None:
  """Returns the values that move with the steps traced here; None: none."""
  return _current.get()


@contextlib.contextmanager
def moving(personal: Params, rate: Any, state: Params = None) -> Iterator[Moving]:
  """Makes local steps in its block move more than the shared parameters.

  Args:
    personal: personal parameters; None: they do not move.
    rate: their learning rate.
    state: running statistics; None: there are none.

  Yields:
    The ``Moving``, with their final values after the block.
  """
  moving_leaves = Moving(personal, rate, state)
  token = _current.set(moving_leaves)
  try:
    yield moving_leaves
  finally:
    _current.reset(token)
