"""The client's side of a run whose server is elsewhere."""

from collections.abc import Mapping, Sequence
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import trees
from fedjax_alg.data import layout
from fedjax_alg.data.federation import Federation
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.messages import from_bytes, to_bytes
from fedjax_alg.extras.flower import remote as remote_lib
from fedjax_alg.extras.flower.remote import Inputs, MissingAnswer, Remote
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.typing import PyTree

#: State of a client between two messages: arrays by name.
Memory = dict[str, np.ndarray]


class Question(NamedTuple):
  """Header of a question, which the server sends beside its bytes."""

  stage: str  #: "setup", "round" or "forget", see ``remote.stage``
  call: int  #: its number in the stage
  round: int  #: from 1; 0: before round 1
  client: int  #: the client's id
  counted: int  #: the last round in which its answer counted; 0: none
  #: ``remote.heard``, one number after the other
  heard: Sequence[int] = ()


class Client:
  """One client: its rows, and the code that the method has for it."""

  def __init__(self, code: "Code", client: int, x: Any, y: Any):
    """Takes the client's rows.

    Args:
      code: the code, which clients of one run can share.
      client: its id.
      x: [n, ...] examples, as the model reads them: float32, or int32 tokens.
      y: [n] labels, whole numbers from 0 on.

    Raises:
      OptionError: the rows are not like those of the run.
    """
    shape = code.prepared.federation.example_shape
    x, y = np.asarray(x[:]), np.asarray(y[:])
    if x.shape[1:] != shape or len(y) != len(x) or not len(y):
      raise OptionError(
        f"`shard`({client}): {len(x)} examples of shape "
        f"{x.shape[1:]} and {len(y)} labels, must be as many "
        f"of shape {shape}, and at least one"
      )
    self._check_values(code.prepared.federation, client, x, y)
    self.client, self.size, self._code = client, len(y), code
    rows = np.arange(len(y))
    self._shard = layout.shard_of(
      layout.client_data(x, y, rows, rows[:1], np.array([len(y)])), 0
    )

  @staticmethod
  def _check_values(federation: Federation, client: int, x: Any, y: Any) -> None:
    """Refuses examples and labels that the model would train on without a word."""
    dtype: Any = federation.example_dtype
    classes = federation.num_classes
    is_whole = y.ndim == 1 and y.dtype.kind in "iub"
    if not is_whole or not 0 <= int(y.min()) <= int(y.max()) < classes:
      raise OptionError(
        f"`shard`({client}): labels of shape {y.shape} and type {y.dtype}"
        + (f", from {y.min()} to {y.max()}" if is_whole else "")
        + f", must be whole numbers in [0, {classes})"
      )
    if x.dtype.kind != np.dtype(dtype).kind or not np.isfinite(x).all():
      raise OptionError(
        f"`shard`({client}): examples of type {x.dtype}, must be {dtype}, all finite"
      )
    tokens = federation.num_tokens
    if x.dtype.kind == "i" and not 0 <= int(x.min()) <= int(x.max()) < tokens:
      raise OptionError(
        f"`shard`({client}): tokens from {x.min()} to {x.max()}, must lie in "
        f"[0, {tokens})"
      )

  def answer(
    self, question: Question, body: np.ndarray, memory: Memory
  ) -> tuple[np.ndarray, Memory, bool]:
    """Answers a question.

    Args:
      question: the question.
      body: [n] uint8, its bytes.
      memory: what the client keeps; the first time {}.

    Returns:
      The bytes of the answer, what the client keeps now, and whether it has
      lost what it kept in the last round in which its answer counted.
    """
    before, lost = _row(question, memory)
    earlier = [
      memory.get(f"heard{j}", np.zeros(0, np.uint8)) for j in range(question.call)
    ]
    answer, row, shared = jax.device_get(
      self._code(question, self._shard, body, earlier, before)
    )
    if row is not None:
      number = np.array(question.round)
      memory = {"round": number, "after": row} | (
        {} if before is None else {"before": before}
      )
    return (
      answer,
      memory | {f"heard{j}": line for j, line in enumerate([*earlier, shared])},
      lost and row is not None,
    )


class Code:
  """Code of the clients of a run, compiled once for each kind of question."""

  def __init__(self, prepared: Prepared):
    """Makes the code of a run (``setting.of_facts``)."""
    self.prepared = prepared
    #: (stage, round or None) -> forms of its answers
    self._forms: dict[tuple[str, int | None], remote_lib.Forms] = {}
    self._program = jax.jit(
      self._answer, static_argnames=("stage", "call", "heard", "number")
    )

  def __call__(self, question: Question, *args: PyTree) -> PyTree:
    """The bytes of the answer, of the new row, and of what was shared."""
    numbers, keys = trees.index((self.prepared.numbers, self.prepared.keys), 0)
    return self._program(
      numbers,
      keys,
      np.int32(question.client),
      *args,
      stage=question.stage,
      call=question.call,
      heard=tuple(question.heard),
      number=remote_lib.static_round(self.prepared, question.round - 1),
    )

  def _answer(
    self,
    numbers,
    keys,
    client,
    shard,
    body,
    earlier,
    before,
    *,
    stage,
    call,
    heard,
    number,
  ):
    spec = self.prepared.spec
    inputs = Inputs(
      numbers,
      keys,
      jnp.ones(spec.num_clients, jnp.int32),
      None,
      jnp.ones(spec.num_clients if stage == "forget" else spec.cohort_size, bool),
      jnp.int32(0) if number is None else number,
    )
    remote = Remote(
      answers_of=lambda at, question: (
        None if at == call else (remote_lib.no_answers(question))
      ),
      forms=self._forms.setdefault((stage, number), {}),
    )
    try:
      remote_lib.stage(self.prepared, stage, remote, inputs)
      raise OptionError(f"`call`={call}: the stage {stage} has fewer calls")
    except MissingAnswer:
      last_call = remote.calls[-1]
    shared, args = self._read(body, earlier, remote.calls, heard)
    row: PyTree = last_call.client_shapes[1]
    if jax.tree.leaves(row):
      (table,) = remote.tables
      row = trees.index(table, client) if before is None else (from_bytes(before, row))
    messages, written, out = last_call.run(None, (shard, row), shared, args)
    leaves = list(itertools.compress(jax.tree.leaves(out), last_call.answer.is_sent))
    new = None
    if jax.tree.leaves(row):
      pair = jax.tree.map(lambda leaf: leaf[None], (row, written))
      new = to_bytes(
        trees.index(last_call.write(pair[0], jnp.zeros(1, jnp.int32), pair[1]), 0)
      )
    return to_bytes((messages, leaves)), new, to_bytes(shared)

  def _read(self, body, earlier, calls, heard):
    """Reads the parts of a question for all clients and for this one."""
    leaves, structure = jax.tree.flatten(calls[-1].shared)
    places = list(zip(heard[::2], heard[1::2]))
    new = {i: leaf for i, leaf in enumerate(leaves) if places[i] == (len(calls) - 1, i)}
    size = jax.eval_shape(to_bytes, new).size
    heard_in = {call for call, _ in places}  # others may not have been asked of it
    by_call = [
      jax.tree.leaves(from_bytes(line, call.shared)) if j in heard_in else []
      for j, (line, call) in enumerate(zip(earlier, calls))
    ]
    by_call.append(from_bytes(body[:size], new))
    return jax.tree.unflatten(structure, [by_call[j][i] for j, i in places]), (
      from_bytes(body[size:], trees.index(calls[-1].args, 0))
    )


def _row(question: Question, memory: Mapping[str, np.ndarray]) -> tuple[PyTree, bool]:
  """Finds the row before this round (None: the first), and whether it is lost."""
  if not question.counted or "round" not in memory:  # or of another run
    return None, question.counted > 0
  last = int(memory["round"])
  if last < question.counted:  # as of a backup; what came before it is older still
    return None, True
  return memory.get("after" if last == question.counted else "before"), False
