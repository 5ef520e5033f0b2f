"""A federation's data on the devices, kept up to date while the data change."""

import functools
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
from fedjax_alg.data.location import Location, OnDevice, OnDisk, OnHost, has_room
from fedjax_alg.engine import processes, sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.typing import PyTree

#: federation -> (mesh, data on that mesh). Runs of one federation share the
#: copy on the devices.
_COPIES: weakref.WeakKeyDictionary[Federation, tuple[Any, Any]] = (
  weakref.WeakKeyDictionary()
)


def choose_location(federation: Federation, mesh: Mesh | None) -> Location:
  """Chooses where the rows of a federation are: the meaning of `data_on`=auto.

  Args:
    federation: the clients with their data.
    mesh: the devices.

  Returns:
    The choice. It is that of `data_on` unless that is auto. Several processes choose
    what the one with the least memory needs; all must call this.
  """
  location = federation.options.data_on
  if not location.IS_CHOSEN:
    return location
  data = federation.data
  is_needed = processes.anyone if sharding.spans_processes(mesh) else bool
  if is_needed(store.is_in_files((data.train.x, data.test.x))):
    return OnDisk(location.window_mb)
  if sharding.is_described(mesh) or sharding.platform(mesh) == "cpu":
    return OnDevice()
  cached = _COPIES.get(federation)
  is_there = cached is not None and cached[0] == mesh
  nbytes = sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(data)}.values())
  if is_needed(not is_there and not has_room(nbytes, sharding.free_memory())):
    return OnHost(location.window_mb)
  return OnDevice()


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


def check_processes(federation: Federation, mesh: Mesh | None) -> None:
  """Checks that a federation has a block of rows for each process.

  Args:
    federation: the clients with their data.
    mesh: the devices.

  Raises:
    OptionError: it was made for another number of processes.
  """
  rows = federation.rows
  if rows is None:
    return
  if not sharding.spans_processes(mesh) or (
    mesh is None or rows.processes != mesh.devices.shape[0]
  ):
    raise OptionError(
      f"`federation`: made for {rows.processes} processes, there are "
      f"{jax.process_count()}"
    )


def place_rows(tree: PyTree, mesh: Mesh | None, blocks: bool) -> Any:
  """Places examples and targets.

  Args:
    tree: arrays of rows on the host, perhaps ``Coded``.
    mesh: the devices.
    blocks: whether they are those of this process alone.

  Returns:
    The tree on the devices, rows [M, ...]; in blocks [Q, M, ...].
  """
  if blocks:
    assert mesh is not None
    tree = store.map_rows(tree, functools.partial(sharding.place_blocks, mesh=mesh))
  return sharding.replicate(tree, mesh)


def _place_rows(federation: Federation, mesh: Mesh | None) -> EvaluationData:
  """Places the training rows that this process holds, in blocks."""
  check_processes(federation, mesh)
  data, rows = federation.data, federation.rows
  assert rows is not None
  train: Any = data.train
  x, y = place_rows((train.x, train.y), mesh, True)
  return data._replace(
    train=train._replace(x=x, y=y, offset=rows.place_in_blocks(train.offset), blocks=())
  )


class PlacedData:
  """The data that the programs of a run read, including their changes.

  A step of the federation's schedule comes after the rounds before it have been run
  and evaluated. The arrays keep their shapes and their sharding, so the compiled
  programs need not change.
  """

  location: Location = OnDevice()  #: where the rows are
  #: the participants of the rounds that a call can run, at most
  most_clients = 2**31

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
    self._arrays: dict[str, Any] = {
      "devices": sharding.replicate(jax.tree.map(np.asarray, devices), mesh),
      "availability": sharding.replicate(availability, mesh),
      "frozen": frozen,
      "start": sharding.replicate(start, mesh),
    }
    self._reads_kinds, self._step = reads_kinds, -1
    #: [C, L] training examples by class in ``data``
    self.label_histogram = federation.label_histogram
    kinds = federation.kinds
    #: [C] the kinds of the clients in ``data``; None if they have none
    self.kinds = None if kinds is None else kinds.of_client
    #: id of an array of the federation -> its copy, for arrays that stay
    self._copies: dict[int, Any] = {}
    #: the data that the programs read
    self.data = self._original = self._of_run(self._share())
    self.move(0)

  def _share(self) -> EvaluationData:
    """The copy on the devices, which runs of one federation share."""
    shared = _place(self._federation, self._mesh)
    if self._federation.schedule is not None:
      pairs = zip(*map(jax.tree.leaves, (self._federation.data, shared)), strict=True)
      self._copies = {id(leaf): copy for leaf, copy in pairs}
    return shared

  @property
  def facts(self) -> dict[str, Any]:
    """What was chosen for the data, for config.json."""
    return {"data_on": str(self.location)}

  def rounds_at_hand(self, done: int) -> int | None:
    """Counts the rounds after ``done`` for which the rows are on the devices.

    Args:
      done: rounds run so far.

    Returns:
      The number of rounds; None: all rows are there.
    """
    return None

  def read_ahead(self) -> None:
    """Starts to read the rows of later rounds, in another thread."""

  def train_with(self, clients: np.ndarray) -> ClientData:
    """The training data with at least the rows of some clients.

    Args:
      clients: [n] int, the positions of the clients.

    Raises:
      OptionError: their rows do not fit on a device.
    """
    result: ClientData = self.data.train
    return result

  def state_of(self, states: PyTree, seed: int, client: int) -> Any:
    """The state of a seed for a program, with at least what one client keeps.

    Args:
      states: leaves [N, ...].
      seed: the place of the seed.
      client: the position of the client.
    """
    return jax.tree.map(lambda leaf: leaf[seed], states)

  def train_without_rows(self) -> ClientData:
    """The training data for what depends on their sizes only, as costs do."""
    result: ClientData = self.data.train
    return result

  def rounds_left(self, done: int) -> int | None:
    """Counts the rounds before the data change.

    Args:
      done: rounds run so far.

    Returns:
      The number of rounds; None if the data stay from now on.
    """
    schedule = self._federation.schedule
    return None if schedule is None else schedule.rounds_left(done)

  def move(self, done: int) -> None:
    """Sets ``data`` to the data of the round after ``done`` rounds.

    Args:
      done: rounds run so far; below 0 as 0.
    """
    schedule = self._federation.schedule
    if schedule is None or schedule.step_of(done) == self._step:
      return
    self._step = schedule.step_of(done)
    step = federation_lib.at_step(self._federation, self._step)
    self.label_histogram = step.label_histogram
    self.kinds = None if step.kinds is None else step.kinds.of_client
    self._change(step.data)

  def _change(self, now: EvaluationData) -> None:
    """Sets ``data`` to the data of a step, which are on the host."""
    self.data = self._original  # frees the arrays of the step before
    leaves, structure = jax.tree.flatten(now)
    new = {id(leaf): leaf for leaf in leaves if id(leaf) not in self._copies}
    copies = self._copies | sharding.replicate(new, self._mesh)
    self.data = self._of_run(
      jax.tree.unflatten(structure, [copies[id(leaf)] for leaf in leaves])
    )

  def _of_run(self, data: EvaluationData) -> EvaluationData:
    """The data with what belongs to the run, not to the federation.

    The copy that the runs of a federation share does not contain it.
    """
    train = data.train._replace(**self._arrays)
    if self._reads_kinds:
      train = train._replace(kinds=sharding.replicate(self.kinds, self._mesh))
    return data._replace(train=train)
