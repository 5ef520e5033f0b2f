"""The types that all packages of the library share.

The axis letters are the same in the whole library: ``C`` clients, ``S`` cohort
slots, ``M`` rows of the data set, ``B`` mini-batch, ``K`` groups or global
models (the diversified paper writes ``C`` for them), ``P`` parameters, ``D``
input features, ``L`` classes.

An algorithm is a ``NamedTuple`` of pure functions. A builder returns it and
closes over the hyper-parameters, as in optax. Code for one client is written
without a client axis; the engine maps it over the cohort.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
import re
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp

from fedjax_alg import split
from fedjax_alg.hparams import validate
from fedjax_alg.typing import Numeric, PyTree, Tree

Array = jax.Array
#: A typed key (``jax.random.key``). A function consumes its argument ``key``.
Key = jax.Array
#: A pytree of float32 arrays. ``[K, ...]`` means that every leaf has axis K.
Params = Any
State = TypeVar("State")
#: Code for one client, or that writes what it keeps.
Fn = Callable[..., Any]
#: What the code for one client returns.
Result = TypeVar("Result")
#: The part of it that is added up over clients.
Summed = TypeVar("Summed")
#: (table, places, written) -> table
Write = Callable[[Any, Array, PyTree], Any]
#: Traffic of a participant besides the model: a number of vectors
#: of P floats, which may be a fraction, or a function P -> bytes.
Traffic = float | Callable[[int], int]


class Devices(NamedTuple):
  """The speeds of the simulated machines (``engine.clock``)."""

  flops_per_s: Array  #: [C] or [S] float32, operations per second of a client
  bytes_per_s: Array  #: [C] or [S] float32, bandwidth to the server
  batch_s: Array  #: [] float32, fixed seconds per batch of any size
  server_flops_per_s: Array  #: [] float32, operations per second of the server


#: Of ``ClientData.joins``: the client is evaluated and never takes part.
NEVER = 2**31 - 1


class ClientData(NamedTuple):
  """The data of all C clients, one after the other, without padding between clients.

  A row is one example, and the rows of one client are contiguous. After the last
  client follow the server's rows, if any, and then at least
  ``data.layout.PADDING_ROWS`` zero rows (``data.layout.num_places``), so that a block
  that starts inside a client never extends past the end of the array.
  """

  #: [M, ...] float32 (or int32 tokens), perhaps as ``data.store.Coded``, or a
  #: dictionary of such arrays
  x: Any
  #: [M] int32 class labels; of other tasks [M, ...] targets, perhaps a tree
  y: Any
  offset: Array  #: [C] int32, first row of the client
  size: Array  #: [C] int32, number of examples of the client (n_i)
  #: [2] int32, first row and number of the rows that the server holds as
  #: validation data; None if it holds none. If the clients' rows are in blocks
  #: (see ``Shard``), a ``Shard`` of these rows alone.
  validation: Any = None
  #: [C] int32, rounds run before a client can take part (newcomers), ``NEVER``
  #: for one without training rows; None if all can take part from the start
  joins: Array | None = None
  #: the clients' simulated machines, [C]; None if no time is simulated
  devices: Devices | None = None
  #: [C] float32, the probability with which a client is available in a round;
  #: None if nothing is known of it
  availability: Array | None = None
  #: [C] int32, the clients' kinds; None unless the method reads them
  kinds: Array | None = None
  #: the frozen parameters of the model (``Model.roles``); None if it has none
  frozen: Params | None = None
  blocks: PyTree = None  #: see ``Shard``
  #: the other parameters that a run starts from where these are given
  #: (``models.start``), None in the place of those that are drawn; None: all
  #: are drawn
  start: Params | None = None
  #: the pair of x and y of all clients as ``data.host_rows.HostRows``, if those above
  #: only hold the rows of the participants in the next rounds; else None
  host: Any = None


class Shard(NamedTuple):
  """The data of one client, as a range of rows in the arrays of all clients.

  The client holds the rows ``offset <= row < offset + size``. ``x`` and ``y``
  are the arrays of all clients and never have a client axis. If ``offset`` and
  ``size`` have a leading axis, the shard stands for several clients.

  In a run of several processes the arrays outside of ``map_clients`` are in blocks, x
  [Q, M, ...] and y [Q, M, ...]. Each process holds one block, and ``blocks`` is true.
  An offset is then q * M + the row in block q. Code of a client sees the block of its
  process, with offsets in it.
  """

  x: Any  #: [M, ...], arrays or ``data.store.Coded``; see ``data.store.gather_rows``
  y: Any  #: [M] int32, or as in ``ClientData``
  offset: Array  #: [] int32
  size: Array  #: [] int32
  #: [] float32 in (0, 1], the part of the local work that the client does, for
  #: ``ClientUpdate.train`` alone; None: all of it
  part: Any = None
  #: the client's own personal parameters (``Model.roles``), [S, ...] of several
  #: clients; None: those that the model starts from
  personal: Any = None
  #: [] float32, the learning rate with which they move in local steps; None:
  #: they do not move
  rate: Any = None
  #: running statistics with which the client computes (``Model.roles``),
  #: [S, ...] of several clients; of K models [K, ...], [S, K, ...]; None: those
  #: that the model starts from
  state: Any = None
  blocks: Any = None  #: () if the arrays are in blocks of processes, else None
  #: for how many local steps the rows are drawn at once, an int; None: many.
  #: They are the same rows. Few in a lane, as who is done waits for the others, and
  #: with `sequential`, as many clients take few
  steps_per_draw: int | None = None
  #: [C] int32, the kinds of all clients (``Cohort.everyone``); None unless the
  #: method reads them
  kind: Any = None

  def at(self, offset: Array, size: Array) -> "Shard":
    """Returns a shard with other rows of the same arrays."""
    return Shard(self.x, self.y, offset, size, blocks=self.blocks)


class Draw(NamedTuple):
  """How the participants of a round were drawn."""

  expected: Any  #: how many the sampler gives on average; None: not known
  #: [S] int32, those who were asked and have received models, of whom some were lost
  #: since; C marks a padding slot; None: the participants
  asked: Array | None = None


class Cohort(NamedTuple):
  """The S participants of one round, including padding.

  If fewer than S clients take part, the other places (slots) are padding: they have
  no examples and do not change the result of a round.
  """

  ids: Array  #: [S] int32 in [0, C); C marks a padding slot
  #: offset [S] and size [S], size 0 for padding slots; x and y of all clients
  shards: Shard
  weight: Array  #: [S] float32, n_i, 0 for padding slots
  #: the server's validation examples; None if it holds none
  validation: Shard | None = None
  #: all clients, offset [C] and size [C], for a round that reads them all; the
  #: size of a client that has not joined yet is 0
  everyone: Shard | None = None
  #: [C] bool, the clients that join in this round; None if the data have no
  #: newcomers
  newcomers: Array | None = None
  #: all clients' simulated machines, [C]; None if no time is simulated
  machines: Devices | None = None
  #: [S] float32 in (0, 1], the part of the local work that each participant
  #: does; None: everybody does all of it
  part: Array | None = None
  #: how the participants were drawn; None if no sampler drew them
  draw: Draw | None = None

  @property
  def present(self) -> Array:
    """[S] bool, false for padding slots and clients that have not joined."""
    return self.weight > 0

  @property
  def devices(self) -> Devices | None:
    """The participants' machines, [S]; a padding slot has client 0's machine."""
    machines = self.machines
    if machines is None:
      return None
    clients = jnp.where(self.ids >= machines.flops_per_s.shape[0], 0, self.ids)
    return machines._replace(
      flops_per_s=machines.flops_per_s[clients],
      bytes_per_s=machines.bytes_per_s[clients],
    )


class FedSpec(NamedTuple):
  """Static sizes from which an algorithm allocates its state."""

  num_clients: int  #: C
  cohort_size: int  #: S
  num_classes: int  #: L, the outputs of the task for one example or token
  #: shape of one example; of several arrays the number of all their values, [1]
  input_shape: tuple[int, ...]
  #: at least the training examples of all clients; the same on partitions of the data
  #: that differ by a few rows or in who is held out, so that they have one program
  max_examples: int = 0


class Layer(NamedTuple):
  """A layer with weights, written for least squares as unfold(X) W + b.

  X is the output of the preceding layers for an example. For a convolution,
  the unfolded matrix has one row for every output position (row by row) and
  one column for every weight of a kernel (row, column, channel). For a dense
  layer it has one row.
  """

  name: str  #: name of the layer's parameters
  input_shape: tuple[int, ...]  #: shape of X for one example
  grid: tuple[int, int]  #: output positions, rows and columns; (1, 1) if dense
  fan_in: int  #: d, rows of W
  width: int  #: columns of W: units or channels
  #: (params, x [B, ...]) -> X [B, *input_shape], the preceding layers
  inputs: Callable[[Params, Array], Array]
  #: X [B, *input_shape] -> [B, positions, d]; linear
  unfold: Callable[[Array], Array]
  #: params -> (W [d, width], b [width])
  get: Callable[[Params], tuple[Array, Array]]
  #: (params, W, b) -> params with W and b in this layer
  put: Callable[[Params, Array, Array], Params]
  #: k of a convolution with k x k weights a channel, stride 1 and as many rows
  #: and columns of zeros around the image as keep its size; 0: another layer
  kernel: int = 0
  #: whether its output is added to what came before (``models.residual``)
  residual: bool = False

  @property
  def positions(self) -> int:
    """The number of rows of the unfolded matrix of one example."""
    return self.grid[0] * self.grid[1]


class Model(NamedTuple):
  """A model with its training objective, for any algorithm.

  ``models.from_flax``, ``from_nnx`` and ``from_functions`` make a model from a
  module or from pure functions.
  """

  init: Callable[[Key], Params]
  #: (params, x [B, ...]) -> logits [B, L] float32
  apply: Callable[[Params, Array], Array]
  #: (logits [B, L], y [B]) -> unregularized loss of each example [B]
  loss: Callable[[Array, Array], Array]
  #: coefficient of (l2/2) ||w||^2, bias included, added to the mean loss; an
  #: array [] inside of one client's objective (``l2_of_sum``)
  l2: float | Array
  #: (params-shaped tree, scale [D]) -> tree. Multiplies every entry that
  #: belongs to input feature j by scale[j] and leaves the others unchanged.
  #: None if no parameter belongs to a single feature (deep networks).
  scale_features: Callable[[Params, Array], Params] | None
  #: whether apply(a w + b v, x) = a apply(w, x) + b apply(v, x)
  linear: bool = False
  #: number of multiplications and additions of ``apply`` for one example
  flops: float = 0.0
  #: the layers with weights, first to last; the last one has no activation.
  #: None if the model has layers with weights that are neither dense nor
  #: convolutions.
  layers: tuple[Layer, ...] | None = None
  #: (params, x [B, ...], key) -> logits [B, L] float32 in local training, if
  #: training draws random numbers (dropout); None if training uses ``apply``
  train_apply: Callable[[Params, Array, Key], Array] | None = None
  #: what a run of this model warns of, in one line; empty: nothing
  caution: str = ""
  #: whether the l2 term is added to the sum of a client's losses: to their mean
  #: then l2 / n_i, of each client its own
  l2_of_sum: bool = False
  #: which parameters are shared, personal and frozen, and who keeps running
  #: statistics (``models.roles.Roles``); ``init`` and ``apply`` are then those
  #: of the shared ones. None: all are shared
  roles: Any = None
  #: name of a parameter ("a/lora_a") -> the type of its flax.nnx variable;
  #: None: not known
  kinds: Mapping[str, str] | None = None
  #: (params, x [B, ...], mask [B] bool, key or None) -> (logits [B, L], running
  #: statistics after this batch): takes the place of ``apply`` and, with a key,
  #: of ``train_apply`` where it is known which rows count. None: a model
  #: without statistics of its batches
  observe: Callable[[Params, Array, Array | None, Key | None], Any] | None = None
  #: what is predicted and how well (``tasks.Task``); None: what the data say,
  #: or one class for each example
  task: Any = None
  #: shape of one example, as in ``FedSpec``; (): not known. A builder of an
  #: algorithm gets the model of a run, of which this and the next are known
  input_shape: tuple[int, ...] = ()
  #: L, the outputs of the task for one example or token; 0: not known
  num_classes: int = 0


class RoundCost(NamedTuple):
  """The cost of one round.

  Communication is counted in floats of 4 bytes, part of a float as one. Bytes are
  only given if they are not 4 for each float, so that they do not overflow for any
  model with an int32 number of parameters.
  """

  down: Array  #: [] int32, floats sent to each participating client
  up: Array  #: [] int32, floats sent by each participating client
  exchanges: Array  #: [] int32, server-client-server round trips
  example_gradients: Array  #: [] int32, per-example gradients, whole cohort
  central_flops: Array  #: [] float32, server arithmetic except the averages
  #: [] uint32, bytes sent to each participating client; None: 4 ``down``
  bytes_down: Array | None = None
  #: [] uint32, bytes sent by each participating client; None: 4 ``up``
  bytes_up: Array | None = None


class Work(NamedTuple):
  """The computation of each participant in a round, for the simulated clock."""

  flops: Array  #: [S] float32, multiplications and additions
  #: [S] float32, mini-batches passed through the model, with or without
  #: gradients
  batches: Array


class RoundTimes(NamedTuple):
  """The simulated times of a round, averaged over its participants.

  The three times add up to the duration of the round (``engine.clock``).
  """

  flops: Array  #: [] float32, operations on a participant's machine
  computation: Array  #: [] float32, seconds
  communication: Array  #: [] float32, seconds
  #: [] float32, seconds of waiting for other clients and for the server
  idle: Array


class RoundAux(NamedTuple):
  """The report of a round, returned together with the new state."""

  client: dict[str, Array]  #: one entry per slot, each [S]
  server: dict[str, Array]  #: scalars or small arrays
  cost: RoundCost
  #: None if the algorithm does not count its work; the round then has no
  #: simulated time
  work: Work | None = None
  #: simulated times of ``work``, set by the engine where the algorithm does not
  times: RoundTimes | None = None


class MapClients:
  """A map of client code over the slots of a cohort (engine.clients).

  ``update`` and ``total`` are those of a map; the others follow from them.
  """

  #: how messages of clients on other machines travel
  #: (``exchange.messages.Carrier``); None: in a simulation, which makes none
  carrier: Any = None

  def __call__(self, fn: Fn, shared: Any, shards: Shard, *args: Any) -> Any:
    """Stacks ``fn(shared, shard, *arg_of_slot)`` over slots.

    Args:
      fn: code for one client. It must not close over arrays of the round,
        which live on the server's mesh, because ``fn`` may run on one of many
        devices. Pass everything that all clients receive as ``shared``.
      shared: pytree of arrays, the same for every client.
      shards: offset and size [S]; x and y of all clients.
      *args: pytrees whose leaves have a leading axis [S].

    Returns:
      The pytree that ``fn`` returns, each leaf with a leading axis [S].
    """

    def stacked_alone(shared, shard, rows, *args):
      return (), (), fn(shared, shard, *args)

    places = jnp.zeros_like(shards.size)
    return self.update(
      stacked_alone, split.set_rows, (), places, (), shared, shards, *args
    )[2]

  def with_tests(
    self, fn: Fn, shared: Any, shards: Shard, tests: Shard, *args: Any
  ) -> Any:
    """``__call__`` of code that reads another shard of each slot, too.

    Args:
      fn: as in ``__call__``, but called (shared, shard, test, *arg_of_slot).
      shared: see ``__call__``.
      shards: see ``__call__``.
      tests: the other shards, offset and size [S].
      *args: see ``__call__``.

    Returns:
      The pytree that ``fn`` returns, each leaf with a leading axis [S].
    """

    def with_test(shared, shard, offset, size, *args):
      shared, x, y = shared
      return fn(shared, shard, Shard(x, y, offset, size), *args)

    return self(
      with_test, (shared, tests.x, tests.y), shards, tests.offset, tests.size, *args
    )

  def reduce(
    self,
    fn: Callable[..., tuple[Summed, Result]],
    weights: PyTree,
    shared: Any,
    shards: Shard,
    *args: Any,
  ) -> tuple[Summed, Result]:
    """Sums a part of what ``fn`` returns over slots, and stacks the rest.

    Every device adds up the part of its own clients, one client
    after the other, and the devices' sums are added: memory does not grow with
    S. The sum of S terms is rounded by the order in which it is taken, so it
    depends on the map mode and on the number of devices; with the same devices
    it has the same bits.

    Args:
      fn: as in ``__call__``, but returns (summed, stacked).
      weights: [S] float32, or [S, K] for K sums; or a tree of such weights,
        one for each part of ``summed``. A slot of weight 0 is left out of the
        sum, even if it holds NaN.
      shared: see ``__call__``.
      shards: see ``__call__``.
      *args: see ``__call__``.

    Returns:
      The sum over slots s of weights[s] * summed[s], each leaf without a slot
      axis, or [K, ...]; and ``stacked`` with a leading axis [S].
    """

    def keeps_nothing(shared, shard, rows, *args):
      return rows, *fn(shared, shard, *args)

    sums: tuple[Summed, Result] = self.update(
      keeps_nothing,
      split.set_rows,
      (),
      jnp.zeros_like(shards.size),
      weights,
      shared,
      shards,
      *args,
    )[1:]
    return sums

  def update(
    self,
    fn: Callable[..., tuple[PyTree, Summed, Result]],
    write: Write,
    table: Tree,
    places: Array,
    weights: PyTree,
    shared: PyTree,
    shards: Shard,
    *args: PyTree,
  ) -> tuple[Tree, Summed, Result]:
    """``reduce`` in which every client also changes its rows of a table.

    The table [C, ...] is changed in place, one client of every
    device after the other, so that no more than their rows are held beside it.
    Every device has the whole table and writes the rows of all; if the table is
    shared out over processes (``keep``), the rows of its process's clients.

    Args:
      fn: as in ``reduce``, but called (shared, shard, rows, *arg_of_slot), and
        returns (written, summed, stacked).
      write: (table, places, written) -> table, for several slots at once
        (``trees.set_rows``, ``trees.add_rows``).
      table: leaves [C, ...].
      places: [S] or [S, N] int32, the rows of each slot, which no other slot
        has. What is out of range is read as an arbitrary row, and not written.
      weights: see ``reduce``.
      shared: see ``__call__``.
      shards: see ``__call__``.
      *args: see ``__call__``.

    Returns:
      The new table, and what ``reduce`` returns.
    """
    raise NotImplementedError

  def change(
    self,
    fn: Callable[..., tuple[PyTree, Result]],
    write: Write,
    table: Tree,
    places: Array,
    shared: PyTree,
    shards: Shard,
    *args: PyTree,
  ) -> tuple[Tree, Result]:
    """``__call__`` in which every client also changes its rows of a table.

    Args:
      fn: as in ``update``, but returns (written, stacked).
      write: see ``update``.
      table: see ``update``.
      places: see ``update``.
      shared: see ``__call__``.
      shards: see ``__call__``.
      *args: see ``__call__``.

    Returns:
      The new table, and ``stacked`` with a leading axis [S].
    """
    if not split.within(table):
      written, stacked = self(fn, shared, shards, split.rows(table, places), *args)
      new_table: Tree = write(table, places, written)
      return new_table, stacked

    def adds_nothing(*args):
      written, stacked = fn(*args)
      return written, (), stacked

    table, _, stacked = self.update(
      adds_nothing, write, table, places, (), shared, shards, *args
    )
    return table, stacked

  def keep(self, table: Tree) -> Tree:
    """Shares a table of all clients out over the processes of the run.

    Args:
      table: leaves [C, ...], row i of client i; or what this has returned.

    Returns:
      The table, of which each process holds the rows of its own clients
      (``split.Split``); ``table`` itself in a run of one process.
    """
    return table

  def total(
    self,
    fn: Callable[..., Tree],
    zero: Callable[[], Tree],
    shared: PyTree,
    shards: Shard,
    *args: PyTree,
    psum: Callable[[Tree, str], Tree] = jax.lax.psum,
  ) -> Tree:
    """Sums over slots without storing a result for each slot.

    Use this for results that are too large to stack (Gram matrices). Every
    device runs its clients sequentially.

    Args:
      fn: (total, shared, shard, *arg_of_slot) -> total plus the contribution
        of this client. The contribution must not depend on ``total``, and it
        must be zero for a slot without examples.
      zero: makes a total of zero; called on every device.
      shared: see ``__call__``.
      shards: see ``__call__``.
      *args: see ``__call__``.
      psum: (total of a device, mesh axis) -> the sum over the devices.

    Returns:
      The total over all slots.
    """
    raise NotImplementedError


class Algorithm(NamedTuple, Generic[State]):
  """One federated algorithm: pure functions (jittable, scannable)."""

  #: (params, spec, key) -> initial state; reads no data
  init: Callable[[Params, FedSpec, Key], State]
  #: (state, cohort of all clients, key) -> state; initialization from data
  setup: Callable[[State, Cohort, Key], State]
  #: (state, cohort, key) -> (state, aux); the state keeps its structure
  round: Callable[[State, Cohort, Key], tuple[State, RoundAux]]
  #: (state, client id, training shard of the client, key) -> params that the
  #: client would deploy. A client unknown to the state has id C, and its shard
  #: holds its support data.
  client_params: Callable[[State, Array, Shard, Key], Params]
  #: (state) -> the K global models [K, ...]; None without a global model
  global_params: Callable[[State], Params] | None
  #: (state) -> [C] int32, the group that each client was last assigned to, -1
  #: for a client that was never assigned; None without groups
  membership: Callable[[State], Array] | None = None
  #: same arguments as ``client_params``; the client's copy of the global model
  #: (pFedMe's w_k, besides theta_k); None for methods without such a copy
  client_copy: Callable[[State, Array, Shard, Key], Params] | None = None
  #: (state, cohort without participants) -> state after a round in which nobody
  #: takes part: models stay, the round counts, and clients may join. None: such
  #: a round is run like any other, as nobody may learn that it was one
  idle: Callable[[State, Cohort], State] | None = lambda state, cohort: state
  #: (state, ``models.roles.ClientLeaves``) -> the state in which every client starts
  #: from these personal parameters and running statistics; None for a method
  #: whose clients keep none. ``client_params`` then returns them with the
  #: shared parameters, joined
  start_personal: Callable[[State, Params], State] | None = None
  #: whether a round reads ``Cohort.part``
  takes_parts: bool = False
  #: whether it keeps running statistics of the model (``Model.roles``), the
  #: server's or the clients'; ``client_params`` and, if they are the server's,
  #: ``global_params`` then have them, too
  keeps_state: bool = False
  #: (model) -> the model of what ``client_params`` returns, where clients deploy
  #: something else than parameters of ``model``: a mixture of several
  client_model: Callable[[Model], Model] = lambda model: model
  #: (state, cohort, step, sign) -> the state with the sums of these clients added
  #: to those of a step (sign 1) or subtracted (sign -1), and that step solved
  #: again; None for a method whose state does not have the sums
  revise: Callable[[State, Cohort, int, int], State] | None = None
  #: (L) -> what is added up over the clients in each step, a tree for each; None:
  #: nothing but what the state has. Its size is known before anything is compiled
  sums: Callable[[int], Sequence[Any]] | None = None
  #: names in ``RoundAux.server`` of what does not depend on participants, such as a
  #: number that the state holds: of a round without any it is reported, too
  reports_state: tuple[str, ...] = ()


def no_setup(state: State, everyone: Cohort, key: Key) -> State:
  """The ``setup`` of an algorithm that needs no initialization from data."""
  return state


def shared_client_params(
  global_params: Callable[[Any], Params],
) -> Callable[[Any, Array, Shard, Key], Params]:
  """Makes ``client_params`` for a method whose clients deploy global model 0.

  Args:
    global_params: (state) -> global models [K, ...].

  Returns:
    The function ``client_params``.
  """

  def client_params(state, client_id, shard, key):
    return jax.tree.map(lambda leaf: leaf[0], global_params(state))

  return client_params


#: Sections of the docstrings of all builders of algorithms.
_BUILDER = {
  "Args": """
  model: the model and its objective.
  hparams: the hyper-parameters; every field has a documented default.
  map_clients: how one client's code is mapped over the participants
    (``engine.clients.ClientMap``).
""",
  "Returns": """
  The algorithm, as the pure functions of ``base.Algorithm``.
""",
  "Raises": """
  OptionError: a hyper-parameter is out of range.
""",
}
#: The section ``Args`` of a builder whose method has the links of an exchange.
_EXCHANGE = """  exchange: the links between clients and server (``exchange.Exchange``).
"""
_Builder = TypeVar("_Builder", bound=Callable[..., Any])


def builder(fn: _Builder) -> _Builder:
  """Completes a function that makes an algorithm, and its docstring.

  Hyper-parameters are checked before it is called (``hparams.validate``). What
  the docstring says itself of arguments, result and errors comes after what
  holds of all builders.
  """

  @functools.wraps(fn)
  def build(model, hparams, **kwargs):
    validate(hparams)
    return fn(model, hparams, **kwargs)

  text, *sections = re.split(
    r"\n\n(?=(?:Args|Returns|Raises):\n)", inspect.cleandoc(fn.__doc__ or "")
  )
  additions = dict(section.split(":\n", 1) for section in sections)
  if "exchange" in inspect.signature(fn).parameters:
    additions["Args"] = _EXCHANGE + additions.get("Args", "")
  for name, common in _BUILDER.items():
    text += f"\n\n{name}:{common}{additions.get(name, '')}".rstrip()
  build.__doc__ = text
  return cast(_Builder, build)


#: Parameters are float32.
BYTES_PER_FLOAT = 4
#: Bytes of a key of JAX's generator, from which a receiver draws the same
#: numbers as the sender.
SEED_BYTES = 8


def initial_shapes(init: Callable[[Key], Params]) -> Params:
  """Finds the shapes and dtypes of what ``init`` makes, without computing it.

  JAX is not started, so that processes can still join. It keeps what it traced, so
  that a model's ``init`` is traced once.

  Args:
    init: key -> parameters, such as ``model.init``.
  """
  shapes: Params = jax.eval_shape(init, jax.eval_shape(jax.random.key, 0))
  return shapes


def num_params(params: Params) -> int:
  """P, the number of floats in ``params``."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def round_cost(
  down: Numeric,
  up: Numeric,
  exchanges: Numeric,
  example_gradients: Numeric,
  central_flops: Numeric = 0.0,
  bytes_down: Numeric | None = None,
  bytes_up: Numeric | None = None,
) -> RoundCost:
  """Makes a ``RoundCost`` with the dtypes that its fields document."""
  return RoundCost(
    jnp.asarray(down, jnp.int32),
    jnp.asarray(up, jnp.int32),
    jnp.asarray(exchanges, jnp.int32),
    jnp.asarray(example_gradients, jnp.int32),
    jnp.asarray(central_flops, jnp.float32),
    None if bytes_down is None else jnp.asarray(bytes_down, jnp.uint32),
    None if bytes_up is None else jnp.asarray(bytes_up, jnp.uint32),
  )
