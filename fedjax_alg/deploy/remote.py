"""A client map whose clients are elsewhere, and a round in pieces.

A round asks its clients through ``map_clients`` alone, a fixed number of times,
and code of a client reads nothing but its arguments (``base.MapClients``). So
the server traces the round up to the first question, sends its arguments, and
traces again with the answers, up to the second question, until the round is
through. A client traces the same round up to the same question and finds there
the code that it has to run.

What is sent are the bytes of the leaves, one after the other: both sides know
their shapes from the trace.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import split, trees
from fedjax_alg.base import Array, ClientData, Shard
from fedjax_alg.data import layout
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.keys import RunKeys
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.errors import OptionError
from fedjax_alg.runs.prepare import Prepared


class Call(NamedTuple):
  """A question to clients; ``base.MapClients.update`` has the names."""

  fn: Callable[..., Any]
  write: Callable[..., Any]
  table: Any  #: what clients keep, without their rows; () if nothing
  shared: Any
  shards: Shard
  args: Any

  @property
  def row(self) -> Any:
    """Shapes of what a client keeps."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype),
        self.table, is_leaf=split.is_split)

  @property
  def answer(self) -> Any:
    """Shapes of what one client sends: what is summed, and what is not."""
    shard = self.shards._replace(
        offset=self.shards.offset[0], size=self.shards.size[0])
    return jax.eval_shape(
        self.fn, self.shared, shard, self.row,
        *trees.index(self.args, 0))[1:]


class Asked(Exception):
  """The last call of the map has no answer yet."""


@dataclasses.dataclass(frozen=True)
class Remote(ClientMap):
  """A client map (``base.MapClients``) that is given the answers.

  ``shards.offset`` has to be the clients' ids: rows of data are nowhere here.
  """

  #: (number of the call, call) -> the bytes of its answers [S, n]; None: there
  #: are none yet
  given: Callable[[int, Call], Any] = lambda number, call: None
  calls: list[Call] = dataclasses.field(default_factory=list)
  #: tables that clients keep, as the method makes them, [C, ...]
  tables: list[Any] = dataclasses.field(default_factory=list)

  def update(self, fn, write, table, places, weights, shared, shards, *args):
    """See ``base.MapClients.update``.

    Raises:
      Asked: the call has no answer yet.
      OptionError: clients would read a table or data that the server has.
    """
    del places
    if shards.personal is not None or shards.state is not None or not all(
        map(split.is_split, split.leaves(table))):
      raise OptionError("`algorithm`: its server holds what its clients keep")
    call = Call(fn, write, table, shared, shards, args)
    lines = self.given(len(self.calls), call)
    self.calls.append(call)
    if lines is None:
      raise Asked
    summed, stacked = jax.vmap(
        lambda line: from_bytes(line, call.answer))(lines)
    total = jax.tree.map(
        lambda weight, part: jax.tree.map(lambda leaf: jnp.zeros(
            weight.shape[1:] + leaf.shape[1:], leaf.dtype), part),
        weights, summed)

    def add(total, slot):  # in the order of the slots, as ClientMap does
      return jax.tree.map(trees.add_weighted, slot[0], total, slot[1]), None

    if jax.tree.leaves(summed):
      total, _ = jax.lax.scan(add, total, (weights, summed))
    return table, total, stacked

  def total(self, *args, **kwargs):
    """Refused: see ``base.MapClients.total``."""
    raise OptionError("`algorithm`: its clients send sums in double precision")

  def keep(self, table):
    """Leaves the rows to the clients; see ``base.MapClients.keep``."""
    self.tables.append(table)
    return split.tree_map(
        lambda leaf: leaf, lambda leaf: split.Split(
            leaf[None, :0], (0, leaf.shape[0])), table)


class Inputs(NamedTuple):
  """What a stage reads."""

  numbers: Any  #: the traced hyper-parameters
  keys: RunKeys
  size: Array  #: [C] int32, the clients' examples
  state: Any  #: before the round; None: as before round 1
  arrived: Array  #: [S] bool, whose answers there are
  number: Array  #: [] int32, the round, from 0


def first_state(
    prepared: Prepared, remote: Remote, inputs: Inputs) -> tuple[Any, Any]:
  """The algorithm, and its state before ``setup``."""
  model = prepared.model
  algorithm = prepared.method.builder(model, remote)(inputs.numbers)
  return algorithm, algorithm.init(
      model.init(inputs.keys.model), prepared.spec,
      jax.random.split(inputs.keys.start)[0])


def data_of(prepared: Prepared, size: Array) -> ClientData:
  """The clients' data without rows: an offset is the client's id."""
  return prepared.placed.data.train._replace(
      offset=jnp.arange(size.shape[0], dtype=jnp.int32), size=size)


def stage(
    prepared: Prepared, name: str, remote: Remote, inputs: Inputs
) -> tuple[Any, Any]:
  """Plays a stage as far as there are answers.

  Args:
    prepared: the run, whose data have no rows.
    name: "setup", the state before round 1, or "round".
    remote: the client map.
    inputs: what it reads.

  Returns:
    The new state, and the round's report.

  Raises:
    Asked: an answer is missing; ``remote.calls`` ends with its question.
  """
  data = data_of(prepared, inputs.size)
  algorithm, state = first_state(prepared, remote, inputs)
  if name == "setup":
    return algorithm.setup(
        state, layout.present(data, 0),
        jax.random.split(inputs.keys.start)[1]), ()
  if inputs.state is not None:
    state = inputs.state
  slots, sampler, _ = prepared.participation
  number = inputs.number
  asked = sample_cohort(
      data, slots, jax.random.fold_in(inputs.keys.cohort, number), number,
      sampler)
  cohort = layout.take_cohort(
      data, jnp.where(inputs.arrived, asked.ids, inputs.size.shape[0]), number
  )._replace(expected=asked.expected)
  new, aux = algorithm.round(
      state, cohort, jax.random.fold_in(inputs.keys.work, number))
  if algorithm.idle is not None:
    new = trees.where(
        cohort.present.any(), new, algorithm.idle(state, cohort))
  return new, aux._replace(client={}, work=None)


def to_bytes(tree: Any) -> Array:
  """The leaves of a tree one after the other, [n] uint8."""
  parts = [jnp.zeros(0, jnp.uint8)]
  for leaf in jax.tree.leaves(tree):
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    if leaf.dtype == jnp.bool_:
      leaf = leaf.astype(jnp.uint8)
    parts.append(jax.lax.bitcast_convert_type(leaf, jnp.uint8).ravel())
  return jnp.concatenate(parts)


def from_bytes(line: Array, like: Any) -> Any:
  """The inverse of ``to_bytes``.

  Args:
    line: [n] uint8.
    like: the tree, arrays or shapes.
  """
  leaves, structure = jax.tree.flatten(like)
  found, first = [], 0
  for leaf in leaves:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    shape, dtype = leaf.shape, leaf.dtype
    if is_key:
      data = jax.eval_shape(jax.random.key_data, leaf)
      shape, dtype = data.shape, data.dtype
    width = 1 if dtype == jnp.bool_ else np.dtype(dtype).itemsize
    last = first + width * math.prod(shape)
    part = line[first:last].reshape(*shape, *([width] if width > 1 else []))
    part = part.astype(jnp.bool_) if dtype == jnp.bool_ else (
        jax.lax.bitcast_convert_type(part, dtype))
    found.append(jax.random.wrap_key_data(part) if is_key else part)
    first = last
  return jax.tree.unflatten(structure, found)


def no_answers(call: Call) -> Array:
  """Answers of zeros, [S, n] uint8."""
  size = jax.eval_shape(lambda: to_bytes(jax.tree.map(
      lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), call.answer))).size
  return jnp.zeros((call.shards.size.shape[0], size), jnp.uint8)


def heard(calls: Sequence[Call]) -> list[tuple[int, int]]:
  """Which shared leaves of the last call its clients have from earlier ones.

  Args:
    calls: those of the round so far.

  Returns:
    For each shared leaf the call and the leaf; the last call itself for a leaf
    that comes first there.
  """
  known: dict[int, tuple[int, int]] = {}
  found = []
  for j, call in enumerate(calls):
    if call.shards.offset is not calls[-1].shards.offset:
      continue  # to other clients
    found = [known.setdefault(id(leaf), (j, i)) for i, leaf in enumerate(
        jax.tree.leaves(call.shared))]
  return found
