"""A client map whose clients are elsewhere, and a round in pieces.

A round asks its clients through ``map_clients`` alone, a fixed number of times,
and code of a client reads nothing but its arguments (``base.MapClients``). So
the server traces the round up to the first question, sends its arguments, and
traces again with the answers, up to the second question, until the round is
through. A client traces the same round up to the same question and finds there
the code that it has to run.

What is sent are bytes (``exchange.messages``) of leaves whose shapes both sides
know from the trace. Where the code of a client makes a message, as of a
compressed update, the client sends that, and the server runs what comes after.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
from jax.extend import core
import jax.numpy as jnp

from fedjax_alg import split, trees
from fedjax_alg.base import Array, ClientData, Shard
from fedjax_alg.data import layout
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.keys import RunKeys
from fedjax_alg.engine.round import or_nothing, sample_cohort
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.messages import Carrier, from_bytes, to_bytes
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.typing import PyTree


@dataclasses.dataclass(frozen=True)
class Call:
  """A question to clients; ``base.MapClients.update`` has the names."""

  fn: Callable[..., Any]
  write: Callable[..., Any]
  table: Any  #: what clients keep, without their rows; () if nothing
  shared: Any
  shards: Shard
  args: Any
  #: of those that ``fn`` runs within, the last one has its messages
  #: (``Remote.carrier``)
  carriers: list[Carrier]
  number: int  #: of the call in its stage
  forms: "Forms"  #: of the answers in its stage

  @property
  def client_shapes(self) -> tuple[Shard, Any]:
    """The client's private values, as shapes: its data and its row of the table."""
    return self.shards._replace(
      offset=self.shards.offset[0], size=self.shards.size[0]
    ), jax.tree.map(
      lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype),
      self.table,
      is_leaf=split.is_split,
    )

  @property
  def answer(self) -> "Answer":
    """Form of one client's answer."""
    if self.number not in self.forms:
      self.forms[self.number] = self._trace_answer()
    return self.forms[self.number]

  def _trace_answer(self) -> "Answer":
    # As shapes: nothing of this is in the program that asks.
    client, *inputs = jax.eval_shape(
      lambda: (self.client_shapes, self.shared, trees.index(self.args, 0))
    )
    messages = jax.eval_shape(
      lambda client, inputs: self.run(None, client, *inputs)[0], client, inputs
    )
    traced, out = jax.make_jaxpr(
      lambda client, *inputs: self.run(inputs[0], client, *inputs[1:])[2],
      return_shape=True,
    )(client, messages, *inputs)
    private = set(traced.jaxpr.invars[: len(jax.tree.leaves(client))])

    def is_private(variable):
      return not isinstance(variable, core.Literal) and variable in private

    for step in traced.jaxpr.eqns:
      if any(map(is_private, step.invars)):
        private.update(step.outvars)
    leaves, structure = jax.tree.flatten(out)
    is_sent = [is_private(variable) for variable in traced.jaxpr.outvars]
    return Answer(
      (messages, list(itertools.compress(leaves, is_sent))), is_sent, structure
    )

  def run(
    self, received: Any, client: tuple[Shard, Any], shared: Any, args: Any
  ) -> tuple[list[Array], Any, Any]:
    """Runs the code of a client.

    Args:
      received: messages that take the place of its own; None: its own.
      client: its data, and what it keeps.
      shared: see ``base.MapClients``.
      args: those of this client.

    Returns:
      Its messages (``exchange.messages``); what it keeps; and the pair of what
      is summed and what is not.
    """
    messages: list[Array] = []

    def carry(parts, numbers):
      messages.append(to_bytes(parts, numbers))
      return (
        parts
        if received is None
        else from_bytes(received[len(messages) - 1], parts, numbers)
      )

    self.carriers.append(carry)
    try:
      memory, *out = self.fn(shared, client[0], client[1], *args)
    finally:
      self.carriers.pop()
    return messages, memory, out

  def decode(self, line: Array, args: object) -> Any:
    """Rebuilds the result of a client's code from the bytes that it has sent."""
    form = self.answer
    messages, leaves = from_bytes(line, form.shapes)
    if not all(form.is_sent):  # the server makes the others of the messages
      computed = jax.tree.leaves(
        self.run(messages, self.client_shapes, self.shared, args)[2]
      )
      arrived = iter(leaves)
      leaves = [
        next(arrived) if is_sent else leaf
        for is_sent, leaf in zip(form.is_sent, computed)
      ]
    return jax.tree.unflatten(form.structure, leaves)


class Answer(NamedTuple):
  """Form of the values that one client sends.

  Its messages, and of what its code returns all leaves that the server cannot
  make of these and of what it has sent to the client.
  """

  shapes: Any
  is_sent: list[bool]  #: which leaves of what the code returns are sent
  structure: PyTree  #: of all


#: Number of a call in its stage -> form of its answers. Shapes decide it, so a
#: run has one for each stage, and whoever traces a call again finds it there.
Forms = dict[int, Answer]


class MissingAnswer(Exception):
  """The last call of the map has no answer yet."""


@dataclasses.dataclass(frozen=True)
class Remote(ClientMap):
  """A client map (``base.MapClients``) that is given the answers.

  ``shards.offset`` has to be the clients' ids: rows of data are nowhere here.
  """

  #: (number of the call, call) -> the bytes of its answers [S, n]; None: there
  #: are none yet
  answers_of: Callable[[int, Call], Any] = lambda number, call: None
  calls: list[Call] = dataclasses.field(default_factory=list)
  #: tables that clients keep, as the method makes them, [C, ...]
  tables: list[Any] = dataclasses.field(default_factory=list)
  carriers: list[Carrier] = dataclasses.field(default_factory=list)
  forms: Forms = dataclasses.field(default_factory=dict)  #: of the answers

  @property
  def carrier(self) -> Carrier:
    """Carries the messages of the client whose code is run (``Call.run``)."""
    return lambda parts, numbers: self.carriers[-1](parts, numbers)

  def update(self, fn, write, table, places, weights, shared, shards, *args):
    """See ``base.MapClients.update``.

    Raises:
      MissingAnswer: the call has no answer yet.
      OptionError: clients would read a table or data that the server has.
    """
    if (
      shards.personal is not None
      or shards.state is not None
      or not all(map(split.is_split, split.leaves(table)))
    ):
      raise OptionError("`algorithm`: its server holds what its clients keep")
    call = self._call(fn, write, table, shared, shards, args)
    lines = self._answers(call)
    _, total, stacked = super().update(
      lambda shared, shard, rows, *answer: (rows, *call.decode(*answer)),
      write,
      (),
      places,
      weights,
      (),
      shards,
      lines,
      args,
    )
    return table, total, stacked

  def total(self, fn, zero, shared, shards, *args, psum=jax.lax.psum):
    """See ``base.MapClients.total``; each client has a sum of its own.

    ``fn`` has to carry all of it (``exchange.messages.carry``).
    """

    def run_on_client(total, shared, shard, rows, *args):
      return rows, fn(total(), shared, shard, *args), ()

    call = self._call(
      functools.partial(run_on_client, zero), lambda *rows: (), (), shared, shards, args
    )
    lines = self._answers(call)
    assert not any(call.answer.is_sent)

    def add(total, shared, shard, line, args):
      messages, _ = from_bytes(line, call.answer.shapes)
      return dataclasses.replace(
        call, fn=functools.partial(run_on_client, lambda: total)
      ).run(messages, call.client_shapes, shared, args)[2][0]

    return super().total(add, zero, shared, shards, lines, args, psum=psum)

  def _call(
    self,
    fn: Callable[..., Any],
    write: Callable[..., Any],
    table: Any,
    shared: Any,
    shards: Shard,
    args: Any,
  ) -> Call:
    """The next call."""
    return Call(
      fn,
      write,
      table,
      shared,
      shards,
      args,
      self.carriers,
      len(self.calls),
      self.forms,
    )

  def _answers(self, call: Call) -> Array:
    """The bytes of the answers to the next call."""
    lines: Array | None = self.answers_of(len(self.calls), call)
    self.calls.append(call)
    if lines is None:
      raise MissingAnswer
    return lines

  def keep(self, table):
    """Leaves the rows to the clients; see ``base.MapClients.keep``."""
    self.tables.append(table)
    return split.tree_map(
      lambda leaf: leaf,
      lambda leaf: split.Split(leaf[None, :0], (0, leaf.shape[0])),
      table,
    )


class Inputs(NamedTuple):
  """Inputs of a stage."""

  numbers: Any  #: the traced hyper-parameters
  keys: RunKeys
  size: Array  #: [C] int32, the clients' examples
  state: Any  #: before the round; None: as before round 1
  arrived: Array  #: [S] bool, whose answers there are
  #: [] int32, the round, from 0; an int where each has a program of its own
  number: Array | int


def first_state(prepared: Prepared, remote: Remote, inputs: Inputs) -> tuple[Any, Any]:
  """The algorithm, and its state before ``setup``."""
  model = prepared.model
  algorithm = prepared.method.builder(model, remote)(inputs.numbers)
  return algorithm, algorithm.init(
    model.init(inputs.keys.model), prepared.spec, jax.random.split(inputs.keys.start)[0]
  )


def data_of(prepared: Prepared, size: Array) -> ClientData:
  """The clients' data without rows: an offset is the client's id."""
  return prepared.device_data.data.train._replace(
    offset=jnp.arange(size.shape[0], dtype=jnp.int32), size=size
  )


def stage(
  prepared: Prepared, name: str, remote: Remote, inputs: Inputs
) -> tuple[PyTree, PyTree]:
  """Runs a stage as far as there are answers.

  Args:
    prepared: the run, whose data have no rows.
    name: "setup", the state before round 1, "round", or "forget": clients leave
      the sums of the step of that number (``Algorithm.revise``), and
      ``inputs.arrived`` [C] says which.
    remote: the client map.
    inputs: what it reads.

  Returns:
    The new state, and the round's report.

  Raises:
    MissingAnswer: ``remote.calls`` ends with the question without one.
  """
  data = data_of(prepared, inputs.size)
  algorithm, state = first_state(prepared, remote, inputs)
  if name == "setup":
    return algorithm.setup(
      state, layout.present(data, 0), jax.random.split(inputs.keys.start)[1]
    ), ()
  state = state if inputs.state is None else inputs.state
  slots, sampler, _ = prepared.participation
  number = inputs.number
  if name == "forget":
    assert algorithm.revise is not None and isinstance(number, int)
    ids = jnp.arange(inputs.size.shape[0], dtype=jnp.int32)
    leaving = jnp.where(inputs.arrived, ids, ids.shape[0])
    return algorithm.revise(state, layout.take_cohort(data, leaving), number, -1), ()
  if isinstance(number, int):
    state = state._replace(round=number)
  sample = sample_cohort(
    data, slots, jax.random.fold_in(inputs.keys.cohort, number), number, sampler
  )
  cohort = layout.take_cohort(
    data, jnp.where(inputs.arrived, sample.ids, inputs.size.shape[0]), number
  )._replace(draw=sample.draw)
  new, aux = algorithm.round(
    state, cohort, jax.random.fold_in(inputs.keys.work, number)
  )
  some = cohort.present.any()
  if algorithm.idle is not None:
    new = trees.where(some, new, algorithm.idle(state, cohort))
  aux = or_nothing(algorithm, aux, some)
  return new, aux._replace(client={}, work=None)


def static_round(prepared: Prepared, number: int) -> int | None:
  """The round, if its code is that of this round alone (``rounds.closed_form``).

  None: all rounds have the same code.
  """
  return None if prepared.method.entry.rounds is None else number


def no_answers(call: Call) -> Array:
  """Answers of zeros, [S, n] uint8."""
  size = jax.eval_shape(to_bytes, call.answer.shapes).size
  return jnp.zeros((call.shards.size.shape[0], size), jnp.uint8)


def heard(calls: Sequence[Call]) -> list[tuple[int, int]]:
  """Locates the shared leaves of the last call in this or in earlier calls.

  Args:
    calls: those of the round so far.

  Returns:
    For each shared leaf the call and the leaf; the last call itself for a leaf
    that comes first there.
  """
  first_places: dict[int, tuple[int, int]] = {}
  places = []
  for j, call in enumerate(calls):
    if call.shards.offset is not calls[-1].shards.offset:
      continue  # to other clients
    places = [
      first_places.setdefault(id(leaf), (j, i))
      for i, leaf in enumerate(jax.tree.leaves(call.shared))
    ]
  return places
