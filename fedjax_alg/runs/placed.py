"""A federation on the devices, while its data change."""

from typing import Any
import weakref

import jax
from jax.sharding import Mesh
import numpy as np

from fedjax_alg.base import ClientData, Devices
from fedjax_alg.data import federation as federation_lib
from fedjax_alg.data.federation import EvaluationData, Federation
from fedjax_alg.engine import sharding

#: federation -> (mesh, its data there): runs of one federation share a copy.
_PLACED: weakref.WeakKeyDictionary[Federation, tuple[Any, Any]] = (
    weakref.WeakKeyDictionary())


def _place(federation: Federation, mesh: Mesh | None) -> EvaluationData:
  known = _PLACED.get(federation)
  if known is None or known[0] != mesh:
    known = (mesh, sharding.replicate(federation.data, mesh))
    _PLACED[federation] = known
  return known[1]


class PlacedData:
  """What the programs of a run read, after the events of a shift.

  Event e happens when e * shift_every rounds have been played and evaluated.
  Arrays keep their shapes and places, so the compiled programs go on.
  """

  def __init__(
      self, federation: Federation, mesh: Mesh | None, devices: Devices):
    """Places a federation.

    Args:
      federation: the clients with their data.
      mesh: the devices; None for one.
      devices: the clients' simulated machines.
    """
    self._federation, self._mesh = federation, mesh
    placed = _place(federation, mesh)
    # Not kept with the federation: other machines are other runs.
    self._original = placed._replace(train=placed.train._replace(
        devices=sharding.replicate(
            jax.tree.map(np.asarray, devices), mesh)))
    self._event = -1
    self.data = self._original  #: what the programs read
    self.label_histogram = federation.label_histogram  #: [C, L], of ``data``
    self.move(0)

  def rounds_left(self, done: int) -> int | None:
    """Rounds after ``done`` to the next event; None where there is none."""
    options = self._federation.options
    if options.shift == "none":
      return None
    return options.shift_every - done % options.shift_every

  def move(self, done: int) -> None:
    """Makes ``data`` what the round after ``done`` rounds trains on."""
    options = self._federation.options
    if options.shift == "none":
      return
    event = done // options.shift_every
    if event == self._event:
      return
    held = federation_lib.after_events(self._federation, event)
    original = self._original
    self.data = original  # lets go of what the last event made
    self.data = original._replace(
        train=self._laid_out(original.train, held.train_order, *held.train),
        test=self._laid_out(original.test, held.test_order, *held.test),
        class_weight=sharding.replicate(
            held.label_histogram.astype(np.float32), self._mesh))
    self.label_histogram = held.label_histogram
    self._event = event

  def _laid_out(
      self, held: ClientData, order: np.ndarray | None, offset: np.ndarray,
      size: np.ndarray) -> ClientData:
    """``held`` with the rows of its clients in a new order."""
    if order is not None:
      held = held._replace(
          x=sharding.take_rows(held.x, order, self._mesh),
          y=sharding.take_rows(held.y, order, self._mesh))
    return held._replace(offset=sharding.replicate(offset, self._mesh),
                         size=sharding.replicate(size, self._mesh))
