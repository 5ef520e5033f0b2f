"""The client's half of a method; the server's half is in ``central.steps``."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Int

from fedjax_alg import split, trees
from fedjax_alg.base import (
  Array,
  Cohort,
  FedSpec,
  Key,
  MapClients,
  Params,
  Shard,
  Traffic,
)
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.models.roles import NOTHING_MOVED, ClientLeaves
from fedjax_alg.typing import PyTree

#: What a method keeps between rounds.
Memory = TypeVar("Memory")
#: What one client keeps of it; with an axis [C, ...], the table of all clients.
Row = TypeVar("Row")

_NOTHING: Any = ()
_no_memory: Callable[..., Any] = lambda params, spec: ()
_add_rows: Callable[..., Any] = trees.add_rows


class Received(NamedTuple):
  """The values from which a client's local training starts."""

  start: Params  #: the model that it trains
  reference: Params  #: the model at which the anchor gradient was measured
  anchor: Params  #: mean gradient of the cohort at ``reference``, or ()
  shared: Any  #: ``ClientUpdate.shared`` of the server's memory
  round: Array  #: [] int32, rounds completed before this one
  client_id: Array  #: [] int32
  #: [K] float32, how much the client belongs to each of K models, of which
  #: ``start`` is then the mean by these weights; None: it gets one model
  memberships: Any = None


class Trained(NamedTuple, Generic[Row]):
  """Result of a client's local training."""

  params: Params  #: the trained model itself, not its change
  loss: Array  #: [] float32, the loss to report
  upload: Any = ()  #: what else it sends, for ``ClientUpdate.merge``
  #: [] int32, number of per-example gradients of the local steps; None:
  #: ``gradients_per_step`` for every example that ``work`` reads
  gradients: Any = None
  kept: Row = _NOTHING  #: what it keeps, for ``Store.write``
  #: the personal parameters and running statistics that have moved with its
  #: steps, as ``minibatches.fold_steps`` returns them
  leaves: ClientLeaves = NOTHING_MOVED


class Place(NamedTuple):
  """Getter and setter of a part of the table of all clients' states."""

  get: Callable[[Any], Any]  #: table -> the rows [C, ...]
  put: Callable[[Any, Any], Any]  #: (table, rows) -> table


def _own_rows(memory: PyTree, cohort: Cohort, keys: Key) -> Int[Array, " S"]:
  """The places of a table with one row for each client."""
  return cohort.ids


class Store(NamedTuple, Generic[Memory, Row]):
  """Per-client state: the rows of a table in the memory.

  In a run of several processes a table with one row for each client
  (``_own_rows``) is shared out over them, so it is read and written by
  ``trees.rows``, ``trees.add_rows`` and ``trees.set_rows`` alone.
  """

  get: Callable[[Memory], Row]  #: memory -> the table [C, ...]
  put: Callable[[Memory, Row], Memory]  #: (memory, table) -> memory
  #: (table, places, ``Trained.kept`` of several clients) -> table
  write: Callable[[Row, Array, Row], Row] = _add_rows
  #: (memory, cohort, keys [S] of ``train``) -> each participant's rows, [S] or
  #: [S, N] int32; those out of range are not written
  places: Callable[[Memory, Cohort, Key], Array] = _own_rows

  @classmethod
  def of(cls, field: str, *functions: Any) -> "Store[Any, Any]":
    """The table is a field of the memory."""
    put: Callable[..., Any] = lambda memory, table: memory._replace(**{field: table})
    return Store(lambda memory: getattr(memory, field), put, *functions)

  @classmethod
  def whole(cls) -> "Store[Row, Row]":
    """The table is the memory itself, whose rows are replaced."""
    return Store(lambda memory: memory, lambda memory, table: table, trees.set_rows)

  @property
  def one_row(self) -> bool:
    """Whether the table has one row for each client."""
    return self.places is _own_rows


class MeanRow(NamedTuple):
  """The mean of all clients' rows, which the server keeps for a method."""

  #: cohort -> [C], the weights of the clients that are there, of ``everyone``
  weigh: Callable[[Cohort], Array]
  #: (memory, s [], change) -> memory, whose mean is s times as large, plus the change
  move: Callable[[Any, Array, PyTree], Any]
  #: the table of the store -> the rows of which it is the mean
  rows: Callable[[Any], Any] = lambda table: table


class ClientUpdate(NamedTuple, Generic[Memory, Row]):
  """The client's half of a method.

  ``memory`` is the state kept between rounds. It holds what the server keeps
  for the method, and what the clients keep, in tables with one row for each
  client. A type checker refuses functions of another memory or of other rows, as
  far as they are annotated. With ``store`` and ``client_rows``, annotate the row of
  ``train`` as ``Any``.
  """

  #: (received, shard, the client's row of the memory, key) -> Trained; for one
  #: client
  train: Callable[[Received, Shard, Row, Key], Trained[Row]]
  work: LocalWork  #: how many steps a client takes; read for the costs
  #: (params, spec) -> the memory before ``setup``, made without data
  init: Callable[[Params, FedSpec], Memory] = _no_memory
  #: (memory, params, all clients as one cohort, map_clients) -> memory; called
  #: once, before round 1
  setup: Callable[[Memory, Params, Cohort, MapClients], Memory] = (
    lambda memory, params, everyone, map_clients: memory
  )
  #: (memory, model 0, cohort, map_clients) -> memory; called at the start of
  #: every round, if the data have newcomers (``cohort.newcomers``). None: the
  #: memory stays as it is
  refresh: Callable[[Memory, Params, Cohort, MapClients], Memory] | None = None
  #: memory -> what every participant receives besides the model
  shared: Callable[[Memory], Any] = lambda memory: ()
  #: where participants keep what ``train`` gets as their row, and return as
  #: ``Trained.kept``; None: nothing
  store: Store[Memory, Row] | None = None
  #: where the clients' personal parameters and statistics (``client.personal``)
  #: are in the table of ``store``; None: they keep none
  personal: Place | None = None
  #: (memory, cohort, keys [S] of ``train``) -> rows for ``train`` that are kept
  #: nowhere, [S, ...]; with a store ``train`` gets the pair (kept row, this)
  client_rows: Callable[[Memory, Cohort, Key], Any] = lambda memory, cohort, keys: ()
  #: (memory, cohort) -> [S], the participants' weights in the sum of what they
  #: send besides the model; None: ``merge`` needs what each of them sends
  upload_weights: Callable[[Memory, Cohort], Array] | None = None
  #: (memory, cohort, the sum of the uploads [...] or all of them [S, ...],
  #: anchors [K, ...] or ()) -> memory; it leaves the table of ``store`` alone
  merge: Callable[[Memory, Cohort, Any, Any], Memory] = (
    lambda memory, cohort, uploads, anchors: memory
  )
  #: (memory, cohort, mean update) -> memory; called at the end of a round for
  #: what the server remembers of the mean update itself. None: nothing
  record: Callable[[Memory, Cohort, Params], Memory] | None = None
  #: (memory, cohort, mean update) -> the update that is applied;
  #: ``cohort.present.sum()`` is |S|
  scale: Callable[[Memory, Cohort, Params], Params] = lambda memory, cohort, update: (
    update
  )
  #: the mean of the rows of ``store``, if the server keeps it by adding up changes:
  #: it must hold for the members of each group. None: it keeps none
  mean_row: MeanRow | None = None
  needs_anchor: bool = False  #: whether ``train`` reads the anchor gradient
  #: why the method cannot serve K > 1 models; empty if it can
  one_model: str = ""
  #: why no other aggregator can replace the mean; empty if one can
  mean_only: str = ""
  #: why updates cannot be sent in fewer bytes (``exchange.compression``); empty
  #: if they can
  no_compression_because: str = ""
  #: why a client can have neither personal parameters nor running statistics;
  #: empty if it can
  no_personal_because: str = ""
  #: shard -> the learning rate of a local step, which personal parameters have,
  #: too; None: it has none
  learning_rate: Callable[[Shard], PyTree] | None = None
  #: whether the steps of ``train`` are those of ``work`` for the part that the
  #: shard names (``Shard.part``)
  takes_parts: bool = False
  #: what clients send past the noise of a private mean (``exchange.privacy``);
  #: empty: nothing; None: the fields of this half tell (``leak``)
  unprotected: str | None = None
  # Costs besides those of the model itself and of the anchor gradient:
  extra_down: Traffic = 0  #: what more each participant receives in a round
  extra_up: Traffic = 0  #: what more each participant sends in a round
  #: P -> bytes of the trained model or its change as the participant sends it
  #: (one bit a parameter, a seed); None: 4 P
  upload_bytes: Callable[[int], int] | None = None
  gradients_per_step: int = 1  #: gradients of every example that a step reads
  full_passes: int = 0  #: gradients on all of the client's data
  evaluations: int = 0  #: losses, without gradients, on all of it
  #: n_i [] int32 -> number of forward passes over single examples in the local
  #: steps, [], of a method without gradients; None for a method with gradients
  forward_passes: Callable[[Array], Array] | None = None
  #: (slots, P) -> the server's flops to make the updates of what was sent
  server_flops: Callable[[int, int], float] = lambda slots, size: 0.0

  def needs(self, *names: str) -> list[str]:
    """Lists the non-default ones of these fields, which a round has to serve.

    Args:
      *names: names of fields.
    """
    return [name for name in names if getattr(self, name) != self._field_defaults[name]]

  def train_checked(
    self, received: Received, shard: Shard, client_row: Row, key: Key
  ) -> Trained[Row]:
    """``train``, held to what it has to return.

    Raises:
      OptionError: it returns something else.
    """
    result = self.train(received, shard, client_row, key)
    subject, demand = "`train` of the local method returns", "must return a Trained"
    if not isinstance(result, Trained):
      raise OptionError(f"{subject} {a_type(result)}, {demand}")
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (result.params, received.start)]
    if shapes[0] != shapes[1]:
      raise OptionError(
        f"{subject} parameters {shapes[0]}, {demand} with "
        f"parameters like those of the model, {shapes[1]}"
      )
    if jnp.shape(result.loss) != ():
      raise OptionError(
        f"{subject} a loss {list(jnp.shape(result.loss))}, {demand} "
        "with one number as its loss"
      )
    return result

  @property
  def leak(self) -> str:
    """The leak past the noise of a private mean, in words; empty: none."""
    if self.unprotected is not None:
      return self.unprotected
    for is_leak, why in (
      (
        self.store,
        "clients keep a memory from round to round, but the "
        "accounting takes what they send to follow from their data and the "
        "models",
      ),
      (
        self.upload_weights or self.needs("merge"),
        "clients send more than their updates",
      ),
      (self.needs("setup"), "the server starts from sums over the clients' data"),
      (
        self.needs("client_rows"),
        "what a client sends depends on the data of the others",
      ),
      (self.needs("scale"), "the mean is scaled by what the participants hold"),
    ):
      if is_leak:
        return why
    return ""


#: Functions of a client's half that read its memory, and that return it changed.
_READERS = ("shared", "client_rows", "scale")
_CHANGERS = ("setup", "refresh", "merge", "record")


class ExtendedMemory(NamedTuple):
  """The memory of a client's half with something beside it."""

  own: PyTree  #: the memory of the method itself
  extra: Any  #: what the method does not know of


def extend_memory(
  client: ClientUpdate, extra: Callable[[Params, FedSpec], PyTree]
) -> ClientUpdate:
  """The client's half with something else in its memory.

  Args:
    client: the client's half.
    extra: (params, spec) -> what is kept beside its memory.

  Returns:
    The client's half, which reads and changes its own memory alone.
  """

  def reads(fn: Any) -> Any:
    return lambda memory, *args: fn(memory.own, *args)

  def changes(fn: Any) -> Any:
    return lambda memory, *args: memory._replace(own=fn(memory.own, *args))

  store = client.store
  if store:
    store = Store(
      reads(store.get),
      changes(store.put),
      store.write,
      _own_rows if store.one_row else reads(store.places),
    )
  weights, mean_row = client.upload_weights, client.mean_row
  if mean_row:
    mean_row = mean_row._replace(move=changes(mean_row.move))
  parts = {name: reads(getattr(client, name)) for name in client.needs(*_READERS)}
  parts |= {name: changes(getattr(client, name)) for name in client.needs(*_CHANGERS)}
  return client._replace(
    init=lambda params, spec: ExtendedMemory(
      client.init(params, spec), extra(params, spec)
    ),
    store=store,
    upload_weights=reads(weights) if weights else None,
    mean_row=mean_row,
    unprotected=client.leak,
    **parts,
  )


def with_rows(
  client: ClientUpdate,
  extra: Callable[[Params, FedSpec], object],
  train: Callable[..., tuple[Trained, object]],
  *,
  message: str,
  unprotected: str | None = None,
) -> ClientUpdate:
  """The client's half whose clients keep one more row each.

  Args:
    client: the client's half.
    extra: (params, spec) -> the table of these rows, [C, ...].
    train: (train_method, received, shard, row, key) -> (Trained, new row), where
      ``train_method(shard)`` is what the client's half itself trains.
    message: why it cannot keep them (``OptionError``).
    unprotected: see ``ClientUpdate``.

  Returns:
    The client's half; its table is the pair of these rows and of its own, and
    these are beside its memory.

  Raises:
    OptionError: its own table has no row for each client.
  """
  method_store = client.store
  if method_store and not method_store.one_row:
    raise OptionError(message)
  needs_rows = client.client_rows is not (ClientUpdate._field_defaults["client_rows"])

  def train_with_row(received, shard, client_row, key):
    rows, method_row = client_row if needs_rows else (client_row, ())
    row, own_row = rows
    if not method_store:
      own_row = method_row
    elif jax.tree.leaves(method_row):
      own_row = own_row, method_row
    trained, row = train(
      lambda shard: client.train_checked(received, shard, own_row, key),
      received,
      shard,
      row,
      key,
    )
    return trained._replace(kept=(row, trained.kept))

  both = extend_memory(client, extra)

  def write(table, places, new_rows):
    return (
      trees.set_rows(table[0], places, new_rows[0]),
      method_store.write(table[1], places, new_rows[1]) if method_store else (),
    )

  store = Store(
    lambda memory: (memory.extra, both.store.get(memory) if both.store else ()),
    lambda memory, table: (
      both.store.put(memory, table[1]) if both.store else memory
    )._replace(extra=table[0]),
    write,
  )
  personal = client.personal
  if personal:
    inner = personal
    personal = Place(
      lambda table: inner.get(table[1]),
      lambda table, rows: (table[0], inner.put(table[1], rows)),
    )
  mean_row = both.mean_row
  if mean_row:
    rows_of = mean_row.rows
    mean_row = mean_row._replace(rows=lambda table: rows_of(table[1]))
  return both._replace(
    train=train_with_row,
    store=store,
    personal=personal,
    mean_row=mean_row,
    unprotected=unprotected,
  )


def fetch_rows(table: Any, cohort: Cohort, map_clients: MapClients) -> Any:
  """Reads the participants' rows of a table, [S, ...]."""
  if not split.within(table):
    return trees.rows(table, cohort.ids)
  # Through the client map: a process has only its own clients' rows.
  return map_clients.change(
    lambda shared, shard, row: (row, row),
    lambda table, places, rows: table,
    table,
    cohort.ids,
    (),
    cohort.shards,
  )[1]


def own_memory(memory: PyTree) -> Any:
  """The memory of the method itself."""
  while isinstance(memory, ExtendedMemory):
    memory = memory.own
  return memory
