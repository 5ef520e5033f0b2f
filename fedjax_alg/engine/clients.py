"""The map of one client's code over a cohort.

An algorithm calls ``map_clients(fn, shared, shards, *args)``, or its ``reduce``
where the sum over the clients is enough (``update`` if they keep something
besides), whichever of these modes runs it:

- ``sequential``: one client after the other. Best on a CPU, because the loop
  of a client then has only as many steps as this client needs.
- ``vmap``: all clients at once; every loop runs as long as that of the largest
  client. For small models on a GPU.
- ``lanes``: n clients at once, and who has finished makes room for the next
  (``extras.lanes``). For accelerators, where clients differ in size.
- ``python``: one client after the other in a loop of Python, for debugging. A
  round that is not jitted computes with numbers then, and an error names the
  client.

With a mesh with the axis ``clients``, every device takes a share of the slots
with about the same number of examples. On a CPU the devices are its cores
(``sharding.use_host_cores``). If the mesh also has the axis ``processes``, a
slot is computed in the process that holds its rows (``extras.pods``).
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from fedjax_alg import optional, trees
from fedjax_alg.base import Array, Fn, MapClients, Shard
from fedjax_alg.client import minibatches
from fedjax_alg.engine.dealing import AXIS, PROCESSES, balance, by_device
from fedjax_alg.errors import check_one_of
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part
from fedjax_alg.typing import PyTree

#: Modes that a run may choose; ``python`` is for algorithms that are built by hand.
MODES = ("sequential", "vmap", "lanes")

#: A row that no table has: reads of it are arbitrary, writes are dropped.
NO_ROW = jnp.iinfo(jnp.int32).max

_REPLICATED, _SLOTS = PartitionSpec(), PartitionSpec(AXIS)
_OVER_SLOTS = Shard(_REPLICATED, _REPLICATED, _SLOTS, _SLOTS)  # type: ignore[arg-type]


#: Operations of a forward pass, from which ``default_mode`` chooses on a GPU:
#: of one example of every participant, and of one client's batch. Timed on an
#: H200 (docs/speed.md).
SMALL_COHORT, LARGE_BATCH = 1e7, 2e9


def default_mode(
  platform: str, flops: float = 0.0, slots: int = 1, batch_size: float = 1
) -> str:
  """Chooses the mode that suits devices and model, for ``map_clients``=auto.

  A step on a GPU waits for its kernels to start as long as they have little to
  do, so all clients of a small model step at once, although the small ones
  wait for the largest. A batch that fills the device by itself gains nothing
  from others beside it, and convolutions with a kernel for each client lose.

  Args:
    platform: from ``sharding.platform``.
    flops: operations of the model's forward pass for one example
      (``Model.flops``); 0: not known.
    slots: participants of all rows (seeds, settings) that step together.
    batch_size: examples of a local step.

  Returns:
    One of ``MODES``; ``vmap`` in the place of ``lanes`` without that extra.

  Examples:
    >>> default_mode("gpu", flops=15_680, slots=100, batch_size=10)
    'vmap'
    >>> default_mode("gpu", flops=2.2e6, slots=100, batch_size=10)
    'lanes'
    >>> default_mode("gpu", flops=1.1e9, slots=10, batch_size=50)
    'sequential'
  """
  if platform == "cpu":
    return "sequential"
  # Only the steps of a TPU were counted, none was timed.
  if platform == "gpu" and flops:
    if flops * slots <= SMALL_COHORT:
      return "vmap"
    if flops * batch_size >= LARGE_BATCH:
      return "sequential"
  return "vmap" if optional.find_extra("lanes") is None else "lanes"


class _Mapping(Part):
  """How the clients of a round are computed."""

  #: lanes on each device; 0: as many as ``lanes.default_lanes`` gives
  number = 0

  def mode(self, platform: str, flops: float, slots: int, batch_size: float) -> str:
    """One of ``MODES``; see ``default_mode`` for the arguments."""
    return self.WORD


class AutomaticMap(_Mapping):
  """sequential on a CPU, by the model's size on a GPU, lanes on a TPU."""

  WORD, EXAMPLE = "auto", "auto"

  def mode(self, platform: str, flops: float, slots: int, batch_size: float) -> str:
    """Chooses the mode (``default_mode``)."""
    return default_mode(platform, flops, slots, batch_size)


class SequentialMap(_Mapping):
  """One client after the other."""

  WORD, EXAMPLE = "sequential", "sequential"


class VectorizedMap(_Mapping):
  """All clients at once."""

  WORD, EXAMPLE = "vmap", "vmap"


class LanesMap(_Mapping):
  """Some clients at once; a finished client makes room for the next."""

  WORD, EXAMPLE = "lanes", "lanes:8"

  number: int = hyper(
    0,
    "lanes (clients that train at the same time) on each device, for each seed and "
    "hyper-parameter combination that are computed at once; 0: the largest power of "
    "two whose square is at most the number of the device's participants, so 4 for "
    "20 and 8 for 100",
    minimum=0,
  )


#: How the clients of a round are computed.
CLIENT_MAPS = AutomaticMap | SequentialMap | VectorizedMap | LanesMap


class Update(NamedTuple):
  """What a round computes of its clients: the arguments of ``MapClients.update``."""

  fn: Fn
  write: Fn
  table: Any
  weights: Any
  shared: Any
  shards: Shard
  slots: tuple[Any, Any, Any, Any]  #: places, offset, size and args, leaves [S, ...]

  def run_slot(
    self,
    table: Any,
    place: Any,
    offset: Any,
    size: Any,
    args: Any,
    steps_per_draw: int | None = None,
  ) -> tuple[Any, Any, Any]:
    """What ``fn`` returns of one client, whose rows are read from a table."""
    rows = trees.rows(table, place) if jax.tree.leaves(table) else table
    shard = Shard(
      self.shards.x, self.shards.y, offset, size, steps_per_draw=steps_per_draw
    )
    outputs: tuple[Any, Any, Any] = self.fn(self.shared, shard, rows, *args)
    return outputs

  def write_rows(self, rows: Any) -> Any:
    """The table with the rows of all slots."""
    if not jax.tree.leaves(self.table):
      return self.table
    return self.write(self.table, self.slots[0], rows)


@dataclasses.dataclass(frozen=True)
class ClientMap(MapClients):
  """A client map (``base.MapClients``).

  Its results do not depend on these fields, except for rounding.
  """

  mode: str = "sequential"  #: one of ``MODES``, or "python"
  #: lanes on each device with mode "lanes"; 0: by the number of slots of the
  #: device (``lanes.default_lanes``)
  lanes: int = 0
  #: devices with the axis ``clients``, perhaps after an axis ``processes``;
  #: None: one device
  mesh: Mesh | None = None
  #: the first client of each process, and C (``split.Split``); None: every
  #: process holds what clients keep whole
  cuts: tuple[int, ...] | None = None

  def __post_init__(self) -> None:
    if self.mode != "python":
      check_one_of(f"`map_clients`={self.mode}", self.mode, MODES)
    if self.mode == "lanes":
      _lanes()

  @property
  def processes(self) -> bool:
    """Whether the devices are those of several processes."""
    return self.mesh is not None and PROCESSES in self.mesh.axis_names

  @property
  def devices(self) -> int:
    """The number of devices."""
    return 1 if self.mesh is None else self.mesh.devices.size

  @property
  def _mesh(self) -> Mesh:
    assert self.mesh is not None
    return self.mesh

  def update(
    self,
    fn: Fn,
    write: Fn,
    table: PyTree,
    places: Array,
    weights: PyTree,
    shared: PyTree,
    shards: Shard,
    *args: PyTree,
  ) -> tuple[Any, Any, Any]:
    """See ``base.MapClients.update``; all but ``total`` are cases of it."""
    if shards.personal is not None or shards.state is not None:
      fn, shards, args = _own_as_argument(fn, shards, args)
    slots, mesh = (places, shards.offset, shards.size, args), self.mesh
    update = Update(fn, write, table, weights, shared, shards, slots)
    if mesh is not None and PROCESSES in mesh.axis_names:
      result: tuple[Any, Any, Any] = _pods().compute_update(self.mode, mesh, update)
      return result
    if mesh is not None and mesh.size > 1:
      return _update_on_devices(self, update)
    return _MODES[self.mode](self, update)

  def total(
    self,
    fn: Fn,
    zero: Callable[[], PyTree],
    shared: PyTree,
    shards: Shard,
    *args: PyTree,
    psum: Callable[[Any, Any], object] = jax.lax.psum,
  ) -> Any:
    """See ``base.MapClients.total``."""
    if self.processes:
      return _pods().total(self._mesh, fn, zero, shared, shards, args, psum)
    if self.devices == 1:
      return _total(fn, zero, shared, shards, args)
    order, dealt, _ = _deal(self, shards)

    def on_device(shared, dealt, args):
      return psum(_total(fn, zero, shared, dealt, args), AXIS)

    return jax.shard_map(
      on_device,
      mesh=self.mesh,
      in_specs=(_REPLICATED, _OVER_SLOTS, _SLOTS),
      out_specs=_REPLICATED,
      check_vma=False,
    )(shared, dealt, _of_slots(order, shards, args))

  def order_of_total(
    self, size: np.ndarray, owner: np.ndarray | None = None
  ) -> np.ndarray:
    """Finds which slots each device adds up in ``total``, one after the other.

    Args:
      size: [S] int32, the examples of each slot.
      owner: [S] int, the process that has them; None: all have all.

    Returns:
      [devices, n] int32, slots; S for none.
    """
    if self.devices == 1:
      return np.arange(len(size), dtype=np.int32)[None]
    if self.processes:
      of_devices: np.ndarray = _pods().order_of_total(self._mesh, size, owner)
      return of_devices
    whole = NamedSharding(self._mesh, _REPLICATED)
    order = np.asarray(_deal_sizes(self.devices, whole, jnp.asarray(size))[0])
    slots: np.ndarray = np.minimum(order, len(size)).reshape(self.devices, -1)
    return slots

  def add_to(
    self, before: PyTree, fn: Fn, shared: PyTree, shards: Shard, *args: PyTree
  ) -> Any:
    """Adds up some slots of ``total``, in the order of ``order_of_total``.

    Args:
      before: the sums of each device so far, [devices, ...].
      fn: see ``base.MapClients.total``.
      shared: see ``base.MapClients``.
      shards: offset and size [devices * n], first the n slots of the first device.
      *args: leaves [devices * n, ...].

    Returns:
      The sums of each device, [devices, ...].
    """

    def on_device(before, shared, shards, args):
      before = jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, (0,)), before)
      sums = _total(fn, lambda: before, shared, shards, args)
      return jax.tree.map(lambda leaf: jax.lax.expand_dims(leaf, (0,)), sums)

    if self.devices == 1:
      return on_device(before, shared, shards, args)
    if self.processes:
      return _pods().add_to(self._mesh, before, fn, shared, shards, args)
    return jax.shard_map(
      on_device,
      mesh=self.mesh,
      in_specs=(_SLOTS, _REPLICATED, _OVER_SLOTS, _SLOTS),
      out_specs=_SLOTS,
      check_vma=False,
    )(before, shared, shards, args)

  def sum_devices(
    self, sums: PyTree, psum: Callable[[Any, Any], object] = jax.lax.psum
  ) -> Any:
    """Adds up what ``add_to`` returns, [devices, ...]; see ``total`` for ``psum``."""

    if self.processes:
      return _pods().sum_devices(self._mesh, sums, psum)

    def on_device(sums):
      sums = jax.tree.map(lambda leaf: jax.lax.squeeze(leaf, (0,)), sums)
      return sums if self.devices == 1 else psum(sums, AXIS)

    if self.devices == 1:
      return on_device(sums)
    return jax.shard_map(
      on_device,
      mesh=self.mesh,
      in_specs=_SLOTS,
      out_specs=_REPLICATED,
      check_vma=False,
    )(sums)

  def keep(self, table: object) -> Any:
    """See ``base.MapClients.keep``."""
    return table if self.cuts is None else _pods().keep(self._mesh, self.cuts, table)


def for_one(
  map_clients: MapClients, fn: Fn, shared: PyTree, shard: Shard, *args: PyTree
) -> PyTree:
  """Computes ``fn(shared, shard, *args)`` of one client, outside of a map.

  Args:
    map_clients: the client map of the run.
    fn: code for one client, see ``base.MapClients``.
    shared: see ``base.MapClients``.
    shard: the client's rows, perhaps in blocks (``base.Shard``).
    *args: pytrees.

  Returns:
    What ``fn`` returns, on every device.
  """
  if shard.blocks is None:
    return fn(shared, shard, *args)
  shards = shard._replace(offset=shard.offset[None], size=shard.size[None])
  args = jax.tree.map(lambda leaf: leaf[None], args)
  return trees.index(map_clients(fn, shared, shards, *args), 0)


def _own_as_argument(fn: Fn, shards: Shard, args: Any) -> tuple[Fn, Shard, Any]:
  """Has what a shard holds of its own travel as an argument of every slot."""

  def with_own(shared, shard, rows, client_leaves, *args):
    personal, state = client_leaves
    return fn(shared, shard._replace(personal=personal, state=state), rows, *args)

  return (
    with_own,
    shards._replace(personal=None, state=None),
    ((shards.personal, shards.state), *args),
  )


def _total(
  fn: Fn, zero: Callable[[], PyTree], shared: PyTree, shards: Shard, args: PyTree
) -> PyTree:
  """``ClientMap.total`` on one device."""

  def add(total, slot):
    offset, size, args = slot
    shard = Shard(shards.x, shards.y, offset, size)
    return fn(total, shared, shard, *args), None

  return jax.lax.scan(add, zero(), (shards.offset, shards.size, args))[0]


def _one_after_the_other(client_map: ClientMap, update: Update) -> tuple[Any, Any, Any]:
  """``ClientMap.update`` on one device with mode "sequential"."""
  table, weights, slots = update.table, update.weights, update.slots
  keeps = bool(jax.tree.leaves(table))
  run_slot = functools.partial(update.run_slot, steps_per_draw=minibatches.FEW_STEPS)

  def write_one(table, place, written):
    if not keeps:
      return table
    rows = jax.tree.map(lambda leaf: leaf[None], (place, written))
    return update.write(table, *rows)

  def add(carry, slot):
    table, last, total = carry
    weight, slot = slot
    # Written now, before anything of this step reads the table: a reading
    # that no data puts before the writing would make XLA copy the table.
    table = write_one(table, *last)
    written, summed, stacked = run_slot(table, *slot)
    total = jax.tree.map(trees.add_weighted, weight, total, summed)
    return (table, (slot[0], written), total), stacked

  if not keeps and not jax.tree.leaves(weights):  # nothing to carry
    run_alone = lambda _, slot: (None, run_slot(table, *slot)[2])
    return table, weights, jax.lax.scan(run_alone, None, slots)[1]
  written, summed, _ = jax.eval_shape(
    lambda *slot: run_slot(table, *slot), *trees.index(slots, 0)
  )
  total = jax.tree.map(
    lambda weight, part: jax.tree.map(
      lambda leaf: jnp.zeros(weight.shape[1:] + leaf.shape, leaf.dtype), part
    ),
    weights,
    summed,
  )
  nothing = jnp.full_like(slots[0][0], NO_ROW), jax.tree.map(jnp.zeros_like, written)
  (table, last, total), stacked = jax.lax.scan(
    add, (table, nothing, total), (weights, slots)
  )
  return write_one(table, *last), total, stacked


def _at_once(client_map: ClientMap, update: Update) -> tuple[Any, Any, Any]:
  """``ClientMap.update`` on one device with mode "vmap"."""
  written, summed, stacked = jax.vmap(
    lambda *slot: update.run_slot(update.table, *slot)
  )(*update.slots)
  summed = jax.tree.map(trees.slot_sum, update.weights, summed)
  return update.write_rows(written), summed, stacked


def _pods() -> Any:
  """The map of several processes, an extra."""
  return optional.load_extra("pods", "`distributed`")


def _lanes() -> Any:
  """The module of the mode "lanes", an extra."""
  return optional.load_extra("lanes", "`map_clients`=lanes")


def _in_lanes(client_map: ClientMap, update: Update) -> tuple[Any, Any, Any]:
  """``ClientMap.update`` on one device with mode "lanes"."""

  def in_lane(shared, shard, rows, *args):
    written, summed, stacked = update.fn(shared, shard, rows, *args)
    return summed, (written, stacked)

  places, _, _, args = update.slots
  summed, (written, stacked) = _lanes().map_slots(
    in_lane,
    update.shared,
    update.shards,
    (trees.rows(update.table, places), *args),
    update.weights,
    client_map.lanes,
  )
  return update.write_rows(written), summed, stacked


def _update_on_devices(client_map: ClientMap, update: Update) -> tuple[Any, Any, Any]:
  """``ClientMap.update`` on several devices of one process."""
  shards = update.shards
  slots = shards.size.shape[0]
  order, dealt, back = _deal(client_map, shards)
  places, _, _, args = update.slots
  weights, places, args = _of_slots(order, shards, (update.weights, places, args))

  def if_real(leaf, otherwise):
    real = (order < slots).reshape((-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(real, leaf, otherwise)

  weights = jax.tree.map(lambda leaf: if_real(leaf, 0.0), weights)
  places = if_real(places, NO_ROW)
  gather = functools.partial(jax.lax.all_gather, axis_name=AXIS, tiled=True)

  def write_all(table, places, written):
    return update.write(table, *gather((places, written)))

  def on_device(table, places, weights, shared, dealt, args, back):
    local_slots = places, dealt.offset, dealt.size, args
    of_device = Update(update.fn, write_all, table, weights, shared, dealt, local_slots)
    table, total, stacked = _MODES[client_map.mode](client_map, of_device)
    # Gathered here, so that later computations are not split over the mesh.
    return table, jax.lax.psum(total, AXIS), trees.index(gather(stacked), back)

  result: tuple[Any, Any, Any] = jax.shard_map(
    on_device,
    mesh=client_map.mesh,
    in_specs=(
      _REPLICATED,
      _SLOTS,
      _SLOTS,
      _REPLICATED,
      _OVER_SLOTS,
      _SLOTS,
      _REPLICATED,
    ),
    out_specs=_REPLICATED,
    check_vma=False,
  )(update.table, places, weights, update.shared, dealt, args, back)
  return result


def _deal(client_map: ClientMap, shards: Shard) -> tuple[Array, Shard, Array]:
  """Gives every device as many slots, with about equal work.

  Returns:
    [S'] int32 slot numbers, S' a multiple of the devices; numbers >= S are
    padding. Device d takes S' / devices of them, largest first. The shards in
    this order; a padding slot is the last client without data. And where each
    slot is in this order, [S] uint32.
  """
  whole = NamedSharding(client_map._mesh, _REPLICATED)
  order, size, back = _deal_sizes(client_map.devices, whole, shards.size)
  return (
    order,
    Shard(shards.x, shards.y, _of_slots(order, shards, shards.offset), size),
    back,
  )


# All maps of a round deal the same sizes, and those of other methods as many:
# jitted, so that they are traced and lowered once.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _deal_sizes(
  devices: int, whole: NamedSharding, size: Array
) -> tuple[Array, Array, Array]:
  """``_deal`` of sizes [S] alone: the order, the sizes in it, and the way back."""
  slots = size.shape[0]
  room = -(-slots // devices)
  size = jnp.pad(size, (0, room * devices - slots))
  order = by_device(size, balance(size, devices, room))
  # Else XLA shares the loop out: a collective for every slot.
  order = jax.lax.with_sharding_constraint(order, whole)
  return order, size[order], jnp.argsort(order)[:slots].astype(jnp.uint32)


def _of_slots(order: Array, shards: Shard, args: PyTree) -> Any:
  """Leaves [S', ...] of slots in an order with padding."""
  last = shards.size.shape[0] - 1
  return trees.index(args, jnp.minimum(order, last).astype(jnp.uint32))


def _in_python(client_map: ClientMap, update: Update) -> tuple[Any, Any, Any]:
  """``ClientMap.update`` with mode "python"."""
  outputs = []
  for number in range(update.shards.size.shape[0]):
    slot = trees.index(update.slots, number)
    try:
      outputs.append(update.run_slot(update.table, *slot))
    except Exception as error:
      size = update.shards.size[number]
      error.add_note(f"in slot {number} of the cohort, a client of {size} examples")
      raise
  written, summed, stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
  summed = jax.tree.map(trees.slot_sum, update.weights, summed)
  return update.write_rows(written), summed, stacked


_MODES: dict[str, Callable[..., tuple[Any, Any, Any]]] = {
  "sequential": _one_after_the_other,
  "vmap": _at_once,
  "lanes": _in_lanes,
  "python": _in_python,
}
