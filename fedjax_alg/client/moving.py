"""What moves with the local steps of a client beside the shared parameters.

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
  """What moves at the client whose code is being traced."""

  personal: Params  #: its personal parameters; None: they do not move
  rate: Any  #: [] float32, their learning rate
  state: Params  #: running statistics; None: there are none

  def stepped(self, personal: Params, gradient: Params) -> Params:
    """The personal parameters after a step."""
    return jax.tree.map(
      lambda leaf, slope: leaf - self.rate * slope, personal, gradient
    )


_here: contextvars.ContextVar[Moving | None] = contextvars.ContextVar(
  "moving", default=None
)


def here() -> Moving | None:
  """What moves with the steps traced here; None: nothing."""
  return _here.get()


@contextlib.contextmanager
def moving(personal: Params, rate: Any, state: Params = None) -> Iterator[Moving]:
  """Where local steps move more than the shared parameters.

  Args:
    personal: personal parameters; None: they do not move.
    rate: their learning rate.
    state: running statistics; None: there are none.

  Yields:
    What holds them as they are in the end.
  """
  held = Moving(personal, rate, state)
  token = _here.set(held)
  try:
    yield held
  finally:
    _here.reset(token)
