"""The data of a run while --shift changes them.

Event e happens when e * --shift_every rounds have been played and evaluated.
What is held after it is a function of the flags alone, so a resumed run goes
on with the same data; arrays keep their shapes and places, so the compiled
programs go on too.
"""

import jax
import numpy as np

from experiments.cli import config as config_lib
from experiments import setting as setting_lib
from fedjax_alg import data
from fedjax_alg.base import ClientData
from fedjax_alg.engine import sharding


class Drift:
  """The data on the devices after the events of a run."""

  def __init__(self, config: config_lib.Config, setting: setting_lib.Setting):
    self._config, self._setting = config, setting
    partition = setting.partition
    # Places in the arrays on the device stand for rows of the data set.
    self._places = partition._replace(
        train_order=np.arange(len(partition.train_order)),
        test_order=np.arange(len(partition.test_order)))
    self._y_train, self._y_test = (
        np.asarray(held.y)[:len(order)] for held, order in (
            (setting.data.train, partition.train_order),
            (setting.data.test, partition.test_order)))
    self._event = 0
    self.data = setting.data  #: what the programs read
    self.label_histogram = setting.label_histogram  #: [C, L], of ``data``
    if config.shift != "none":
      self._move(0)

  def rounds_left(self, done: int) -> int:
    """Rounds after ``done`` to the next event; where none is, all there are."""
    if self._config.shift == "none":
      return self._config.rounds
    every = self._config.shift_every
    return every - done % every

  def move(self, done: int) -> None:
    """Makes ``data`` what the round after ``done`` rounds trains on."""
    if self._config.shift == "none":
      return
    event = done // self._config.shift_every
    if event != self._event:
      self._move(event)

  def _move(self, event: int) -> None:
    config, original = self._config, self._setting.data
    held = data.shifted(
        self._places, self._y_train, self._y_test, config.shift, event,
        config.shift_share, config.partition_seed)
    histogram = data.label_histogram(
        held, self._y_train, self._setting.spec.num_classes)
    self.data = original  # lets go of what the last event made
    self.data = original._replace(
        train=self._laid_out(original.train, held.train_order,
                             held.train_offset, held.train_size),
        test=self._laid_out(original.test, held.test_order, held.test_offset,
                            held.test_size),
        class_weight=self._placed(histogram.astype(np.float32)))
    self.label_histogram = histogram
    self._event = event

  def _placed(self, array: np.ndarray) -> jax.Array:
    return sharding.replicate(array, self._setting.mesh)

  def _laid_out(
      self, held: ClientData, order: np.ndarray, offset: np.ndarray,
      size: np.ndarray) -> ClientData:
    """``held`` with the rows of its clients in a new order."""
    if (order != np.arange(len(order))).any():
      behind = np.arange(len(order), held.x.shape[0])  # the server's, padding
      order = np.concatenate([order, behind]).astype(np.int32)
      held = held._replace(
          x=sharding.take_rows(held.x, order, self._setting.mesh),
          y=sharding.take_rows(held.y, order, self._setting.mesh))
    return held._replace(
        offset=self._placed(offset.astype(np.int32)),
        size=self._placed(size.astype(np.int32)))
