"""A federation's data on the devices, kept up to date while the data change."""

from typing import Any
import weakref

import jax
from jax.sharding import Mesh
import numpy as np

from fedjax_alg import memory
from fedjax_alg.base import ClientData, Devices
from fedjax_alg.data import federation as federation_lib
from fedjax_alg.data import store
from fedjax_alg.data.federation import EvaluationData, Federation
from fedjax_alg.engine import sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.typing import PyTree

#: federation -> (mesh, data on that mesh). Runs of one federation share the
#: copy on the devices.
_COPIES: weakref.WeakKeyDictionary[Federation, tuple[Any, Any]] = (
  weakref.WeakKeyDictionary()
)


def _place(federation: Federation, mesh: Mesh | None) -> EvaluationData:
  cached = _COPIES.get(federation)
  if cached is None or cached[0] != mesh:
    data = federation.data
    if federation.rows is not None:
      data = _place_rows(federation, mesh)
    cached = (mesh, _copy(federation.name, data, mesh))
    _COPIES[federation] = cached
  result: EvaluationData = cached[1]
  return result


def _copy(name: str, data: EvaluationData, mesh: Mesh | None) -> EvaluationData:
  """The data on the devices, an array that is there twice once.

  Raises:
    OptionError: they do not fit.
  """
  leaves, structure = jax.tree.flatten(data)
  arrays = {id(leaf): leaf for leaf in leaves}
  if not sharding.is_described(mesh) and sharding.platform(mesh) != "cpu":
    memory.refuse(
      f"`federation`: the {name} examples on each device",
      sum(leaf.nbytes for leaf in arrays.values()),
      "allowed: fewer examples, or fewer numbers in each",
      sharding.memory_limit,
    )
  copies = sharding.replicate(arrays, mesh)
  result: EvaluationData = jax.tree.unflatten(
    structure, [copies[id(leaf)] for leaf in leaves]
  )
  return result


def _place_rows(federation: Federation, mesh: Mesh | None) -> EvaluationData:
  """Places the training rows that this process holds, in blocks."""
  data, rows = federation.data, federation.rows
  assert rows is not None
  if not sharding.spans_processes(mesh) or (
    mesh is None or len(rows.cuts) != mesh.devices.shape[0] + 1
  ):
    raise OptionError(
      f"`federation`: made for {len(rows.cuts) - 1} processes, there are "
      f"{jax.process_count()}"
    )
  train: Any = data.train
  return data._replace(
    train=train._replace(
      **{
        name: store.map_rows(
          getattr(train, name), lambda a: sharding.place_blocks(a, mesh)
        )
        for name in ("x", "y")
      },
      offset=rows.place_in_blocks(train.offset),
      blocks=(),
    )
  )


class PlacedData:
  """The data that the programs of a run read, including their changes.

  Event e of a shift, or step e of a schedule of kinds, comes after
  e * changes_every rounds have been run and evaluated. The arrays keep their
  shapes and their sharding, so the compiled programs need not change.
  """

  def __init__(
    self,
    federation: Federation,
    mesh: Mesh | None,
    devices: Devices,
    availability: np.ndarray | None = None,
    frozen: PyTree = None,
    start: PyTree = None,
    reads_kinds: bool = False,
  ):
    """Places a federation's data on the devices.

    Args:
      federation: the clients with their data.
      mesh: the devices; None for a single device.
      devices: the clients' simulated machines.
      availability: [C] float32, see ``ClientData``.
      frozen: the frozen parameters of the model on the devices; None if it has none.
      start: the others that the run starts from; see ``ClientData``.
      reads_kinds: whether the method reads the clients' kinds.
    """
    self._federation, self._mesh = federation, mesh
    shared = _place(federation, mesh)
    # The simulated machines and the availability belong to the run, so the
    # copy that the runs of a federation share does not contain them.
    self._original = shared._replace(
      train=shared.train._replace(
        devices=sharding.replicate(jax.tree.map(np.asarray, devices), mesh),
        availability=sharding.replicate(availability, mesh),
        frozen=frozen,
        start=sharding.replicate(start, mesh),
      )
    )
    self._event = -1
    #: [C, L] training examples by class in ``data``
    self.label_histogram = federation.label_histogram
    kinds = federation.kinds
    #: [C] the kinds of the clients in ``data``; None if they have none
    self.kinds = None if kinds is None else kinds.of_client
    self._reads_kinds = reads_kinds
    self._original = self._with_kinds(self._original)
    self.data = self._original  #: the data that the programs read
    self.move(0)

  def rounds_left(self, done: int) -> int | None:
    """Counts the rounds before the data change.

    Args:
      done: rounds run so far.

    Returns:
      The number of rounds; None if the data stay from now on.
    """
    every, steps = self._federation.options.changes_every, self._federation.steps
    if every is None or steps is not None and done // every >= len(steps.schedule) - 1:
      return None
    return every - done % every

  def move(self, done: int) -> None:
    """Sets ``data`` to the data of the round after ``done`` rounds.

    Args:
      done: rounds run so far.
    """
    every, steps = self._federation.options.changes_every, self._federation.steps
    if every is None:
      return
    event = done // every
    if steps is not None:
      event = min(event, len(steps.schedule) - 1)
    if event == self._event:
      return
    self.data = self._original  # frees the arrays of the previous event
    if steps is None:
      self._move_to_event(event)
    else:
      self._move_to_step(event)
    self._event = event

  def _move_to_event(self, event: int) -> None:
    """Sets ``data`` to those after an event of a shift."""
    current = federation_lib.after_events(self._federation, event)
    original = self._original
    self.data = original._replace(
      train=self._reorder(original.train, current.train_order, *current.train),
      test=self._reorder(original.test, current.test_order, *current.test),
      class_weight=sharding.replicate(
        current.label_histogram.astype(np.float32), self._mesh
      ),
    )
    self.label_histogram = current.label_histogram

  def _move_to_step(self, number: int) -> None:
    """Sets ``data`` to those at a step of a schedule of kinds."""
    step, original = federation_lib.at_step(self._federation, number), self._original
    self.data = original._replace(
      train=self._reorder(original.train, None, *step.train),
      **sharding.replicate(
        {
          "test": step.test,
          "whole_test": step.whole_test,
          "kinds": step.kind_tests,
          "class_weight": step.label_histogram.astype(np.float32),
        },
        self._mesh,
      ),
    )
    self.label_histogram, self.kinds = step.label_histogram, step.kinds
    self.data = self._with_kinds(self.data)

  def _with_kinds(self, data: EvaluationData) -> EvaluationData:
    """The data with the clients' kinds, for a method that reads them."""
    if not self._reads_kinds:
      return data
    kinds = sharding.replicate(self.kinds, self._mesh)
    return data._replace(train=data.train._replace(kinds=kinds))

  def _reorder(
    self,
    data: ClientData,
    order: np.ndarray | None,
    offset: np.ndarray,
    size: np.ndarray,
  ) -> ClientData:
    """Returns ``data`` with the clients' rows in a new order."""
    if order is not None:
      data = data._replace(
        **{
          name: store.map_rows(
            getattr(data, name),
            lambda rows: sharding.permute_rows(rows, order, self._mesh),
          )
          for name in ("x", "y")
        }
      )
    return data._replace(
      offset=sharding.replicate(offset, self._mesh),
      size=sharding.replicate(size, self._mesh),
    )
