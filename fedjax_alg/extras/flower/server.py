"""The server's side of a run whose clients are elsewhere."""

from collections.abc import Callable, Iterable, Mapping
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import optional, split, tasks, trees
from fedjax_alg.base import BYTES_PER_FLOAT
from fedjax_alg.data import client_names as names_lib
from fedjax_alg.engine import checkpoint, evaluate, sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.messages import to_bytes
from fedjax_alg.extras.flower import remote as remote_lib
from fedjax_alg.extras.flower.client import Question
from fedjax_alg.extras.flower.remote import Inputs, MissingAnswer, Remote, heard
from fedjax_alg.hparams import ordered_values
from fedjax_alg.part import write_parts
from fedjax_alg.records import tables
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.typing import PyTree

#: client -> (its question, the bytes of it)
Questions = Mapping[int, tuple[Question, np.ndarray]]
#: (questions) -> client -> bytes of the answers that came in time
Ask = Callable[[Questions], Mapping[int, np.ndarray]]


class Round(NamedTuple):
  """Record of a round, for the log."""

  round: int  #: from 1
  asked: list[Any]  #: the participants' names; numbers, if the data name nobody
  lost: list[Any]  #: those of them who did not answer in time
  bytes_down: int  #: bytes to each participant that arrived, the mean
  bytes_up: int
  ledger_down: int | None  #: what the simulation counts of these; None: nothing
  ledger_up: int | None
  clients_s: float  #: seconds of waiting for answers
  server_s: float  #: seconds of all else but the checkpoint
  #: None of a method in closed form; NaN if no participant answered
  train_loss: float | None


class _Piece:
  """A stage up to its next question, as a compiled program."""

  def __init__(
    self,
    prepared: Prepared,
    stage: str,
    number: int | None = None,
    forms: remote_lib.Forms | None = None,
  ):
    self._prepared, self._stage, self._number = prepared, stage, number
    self._forms = {} if forms is None else forms  #: of the answers in the stage
    self.heard: tuple[int, ...] = ()  #: of the question
    self.program = jax.jit(self._piece)

  def _piece(self, inputs, answers):
    if self._number is not None:
      inputs = inputs._replace(number=self._number)
    remote = Remote(
      answers_of=lambda number, call: (
        answers[number] if number < len(answers) else None
      ),
      forms=self._forms,
    )
    try:
      return True, remote_lib.stage(self._prepared, self._stage, remote, inputs)
    except MissingAnswer:
      call = remote.calls[-1]
    places = heard(remote.calls)
    self.heard = sum(places, ())
    last, leaves = len(remote.calls) - 1, jax.tree.leaves(call.shared)
    shared = to_bytes([leaf for i, leaf in enumerate(leaves) if places[i] == (last, i)])
    bodies = jax.vmap(lambda _, args: to_bytes(args))(call.shards.offset, call.args)
    return False, (
      shared,
      bodies,
      call.shards.offset,
      call.shards.size > 0,
      remote_lib.no_answers(call),
    )


class Server:
  """The server of a run: its state, and its rounds."""

  def __init__(
    self,
    prepared: Prepared,
    sizes: np.ndarray,
    ask: Ask,
    folder: pathlib.Path | None = None,
    app: str = "",
  ):
    """Makes the server of a run before round 1.

    Args:
      prepared: the run without data (``setting.of_facts``).
      sizes: [C], the clients' examples.
      ask: sends questions and waits for the answers.
      folder: where checkpoints are; None: nowhere.
      app: names the app in its checkpoints, as the hash of its config does.
    """
    self.prepared, self._ask, self._folder = prepared, ask, folder
    self._app = app
    self.sizes = np.array(sizes, np.int32)  #: 0 for who has not joined yet
    self._numbers, self._keys = trees.index((prepared.numbers, prepared.keys), 0)
    #: (stage, question, round or None) -> its program, which servers of one
    #: run can share
    self.pieces: dict[tuple[str, int, int | None], _Piece] = {}
    self._forms: dict[tuple[str, int | None], remote_lib.Forms] = {}
    self.counted = np.zeros(len(sizes), np.int32)  #: ``Question.counted`` [C]
    self.round = 0  #: rounds run
    self.state: Any = None  #: the state after them
    self.last: Round | None = None  #: the record of the last of them
    slots, sampler, _ = prepared.participation
    self._draw = jax.jit(
      lambda sizes, keys, number: sampler(
        remote_lib.data_of(prepared, sizes),
        slots,
        jax.random.fold_in(keys.cohort, number),
        number,
      )
    )
    self._evaluate = jax.jit(
      evaluate.make_evaluate(
        prepared.algorithm, prepared.model, prepared.protocols, prepared.map_clients
      )
    )

  def start(self) -> None:
    """Computes the state before round 1, or reads the newest checkpoint.

    Raises:
      CheckpointError: a checkpoint is of another app, or of a version of the library
        that did not say of which.
    """
    everybody = np.ones(self.prepared.spec.cohort_size, bool)
    folder = self._folder
    if folder is not None:
      checkpoint.tidy(folder)
    if folder is not None and checkpoint.newest_round(folder) is not None:
      template = jax.eval_shape(
        lambda inputs: remote_lib.first_state(self.prepared, Remote(), inputs)[1],
        self._inputs(everybody),
      )
      (blocks, last_counted), header, _ = checkpoint.load_latest(
        folder, (_blocks(template), self.counted)
      )
      if header.get("app") != self._app:
        raise checkpoint.CheckpointError(
          f"{folder}: has checkpoints of another app, or of an earlier version of the "
          "library; remove the folder to start over"
        )
      self.counted, self.round = np.array(last_counted), header["round"]
      self.last = Round(**header["last"])
      self.state = self._place(
        split.tree_map(
          lambda leaf, block: leaf.with_block(block),
          lambda leaf, array: array,
          template,
          blocks,
        )
      )
      return
    traffic = _Traffic()
    while self.state is None:
      try:
        state, _ = self._run_stage("setup", everybody, traffic)
        self.state = self._place(state)
      except _Lost as lost:
        self.sizes[lost.args[0]] = 0

  def _place(self, state: Any) -> Any:
    """Puts a state where rounds leave theirs, so that all are one program."""
    return sharding.replicate(state, self.prepared.mesh)

  def _save(self) -> None:
    """Writes the checkpoint of this round."""
    if self._folder is not None:
      assert self.last is not None
      checkpoint.save(
        self._folder,
        (_blocks(self.state), self.counted),
        self.round,
        {"app": self._app, "last": self.last._asdict()},
      )

  def remove_earlier(self) -> None:
    """Removes all checkpoints but the newest."""
    if self._folder is not None:
      for path in checkpoint.checkpoint_paths(self._folder)[1:]:
        path.unlink()

  def play(self) -> Round:
    """Runs a round, without those who do not answer in time."""
    began, traffic = time.monotonic(), _Traffic()
    ids = jax.device_get(self._draw(self.sizes, self._keys, jnp.int32(self.round)))
    present = ids < len(self.sizes)
    arrived = present & (self.sizes[np.minimum(ids, len(self.sizes) - 1)] > 0)
    while True:
      try:
        state, aux = self._run_stage("round", arrived, traffic)
        break
      except _Lost as lost:
        arrived &= ~np.isin(ids, lost.args[0])
    self.state, self.round = state, self.round + 1
    self.counted[ids[arrived]] = self.round
    cost, participants, answered = aux.cost, ids[present], ids[arrived]
    self.last = Round(
      self.round,
      self._names_of(participants),
      self._names_of(np.setdiff1d(participants, answered)),
      *traffic.means(answered),
      _bytes(cost.down, cost.bytes_down),
      _bytes(cost.up, cost.bytes_up),
      traffic.seconds,
      time.monotonic() - began - traffic.seconds,
      float(aux.server["train_loss"]) if "train_loss" in aux.server else None,
    )
    self._save()
    return self.last

  def forget(self, clients: int | str | Iterable[int | str]) -> Round:
    """Computes the model as if some clients had never taken part.

    They are asked for their sums once more, which the server subtracts; nobody
    else is asked (``unlearning.revision.forget``). Earlier checkpoints, which hold
    these clients' sums, are removed.

    Args:
      clients: their names.

    Raises:
      OptionError: see ``unlearning.revision.forget``; of a network only the sums of the
        last step can be changed, as later ones would have to be played again; or
        a client is not connected or does not answer.
      NonFiniteError: see ``unlearning.revision.forget``.
    """
    revision = optional.load_extra("unlearning.revision", "forget")
    began, traffic, p = time.monotonic(), _Traffic(), self.prepared
    method = p.settings[0]
    facts = {
      "algorithm": method.name,
      "hparams": write_parts(ordered_values(*method.parts)),
    }
    revision.refuse_others(facts)
    ids, names = p.federation.positions(clients), p.federation.client_names
    solved = revision.solved_steps(self.state)
    inside = np.asarray(jax.device_get([step.clients for step in self.state.sums]))
    inside = inside[:solved]
    revision.check_clients(facts, np.any(inside, axis=0), names, ids, revision.FORGET)
    revision.check_rest(inside, names, ids)
    first = revision.first_step(method.hparams, inside[:, None], ids, revision.FORGET)
    if first + 1 < solved:
      raise OptionError(revision.why_refit(first, solved, names[ids], revision.FORGET))
    try:
      # A stage asks nobody without examples, and would subtract nothing.
      if absent := [client for client in ids if not self.sizes[client]]:
        raise _Lost(absent)
      leaving = np.isin(np.arange(p.spec.num_clients), ids)
      state, _ = self._run_stage("forget", leaving, traffic, first)
    except _Lost as lost:
      raise OptionError(
        f"`clients`={names_lib.join_names(names[sorted(lost.args[0])])}: no answer, so "
        "nothing is forgotten"
      ) from None
    revision.check_finite(state, method, "those who are left")
    self.state = state
    self._save()
    self.remove_earlier()  # only now, so that there is one at any moment
    return Round(
      self.round,
      self._names_of(np.array(ids)),
      [],
      *traffic.means(np.array(ids)),
      None,
      None,
      traffic.seconds,
      time.monotonic() - began - traffic.seconds,
      None,
    )

  def _names_of(self, ids: np.ndarray) -> list[Any]:
    """The names of clients, as ``Round`` has them."""
    names = self.prepared.federation.names_in_data
    listed: list[Any] = (ids if names is None else names[ids]).tolist()
    return listed

  def evaluate(self) -> dict[str, float]:
    """The metrics of the global models on the server's test examples."""
    p = self.prepared
    task = tasks.of(p.model)
    counts = tasks.counts_on_host(
      task, self._evaluate(p.device_data.data, self.state, self._keys.evaluation)
    )
    counts = jax.tree.map(lambda leaf: leaf[None], counts)
    metrics = tables.metric_values(counts, task)["global"]
    return {
      name: float(value[0]) for name, value in metrics.items() if not np.isnan(value[0])
    }

  def global_params(self) -> Any:
    """The K global models, leaves [K, ...]."""
    models = self.prepared.algorithm.global_params
    assert models is not None
    return jax.device_get(models(self.state))

  def _inputs(self, arrived: np.ndarray) -> Inputs:
    return Inputs(
      self._numbers,
      self._keys,
      jnp.asarray(self.sizes),
      self.state,
      jnp.asarray(arrived),
      jnp.int32(self.round),
    )

  def _run_stage(
    self, stage: str, arrived: np.ndarray, traffic: "_Traffic", step: int | None = None
  ) -> tuple[Any, Any]:
    """Runs a stage; what has been answered before is not asked again.

    Args:
      stage: see ``remote.stage``.
      arrived: see ``Inputs``.
      traffic: what has been asked and answered.
      step: the round, from 0, that the stage belongs to; None: the next one.

    Raises:
      _Lost: a participant did not answer.
    """
    answers: list[np.ndarray] = []
    number = remote_lib.static_round(self.prepared, self.round)
    last = self.round + (stage == "round")
    if step is not None:
      number, last = step, step + 1
    while True:
      piece = self.pieces.setdefault(
        (stage, len(answers), number),
        _Piece(
          self.prepared, stage, number, self._forms.setdefault((stage, number), {})
        ),
      )
      done, outcome = piece.program(self._inputs(arrived), answers)
      if done:
        return outcome[0], jax.device_get(outcome[1])
      answers.append(
        self._answers(
          stage, len(answers), last, piece, jax.device_get(outcome), traffic
        )
      )

  def _answers(
    self,
    stage: str,
    call: int,
    number: int,
    piece: _Piece,
    question: Any,
    traffic: "_Traffic",
  ) -> np.ndarray:
    """The answers to a question of a round, [S, n] uint8; 0 of empty slots."""
    shared, bodies, ids, is_present, lines = question
    questions = {}
    for slot in np.flatnonzero(is_present):
      client = int(ids[slot])
      questions[client] = (
        Question(
          stage,
          call,
          number,
          client,
          int(self.counted[client]),
          piece.heard,
        ),
        np.concatenate([shared, bodies[slot]]),
      )
    answers = traffic.ask(self._ask, questions)
    if lost := questions.keys() - answers.keys():
      raise _Lost(list(lost))
    return np.stack(
      [  # of an empty slot zeros
        answers.get(int(client), line) for client, line in zip(ids, lines)
      ]
    )


def _bytes(floats: Any, nbytes: Any) -> int:
  return int(BYTES_PER_FLOAT * floats if nbytes is None else nbytes)


def _blocks(state: PyTree) -> PyTree:
  """The state with what there is of the clients' tables: no row."""
  return split.tree_map(lambda leaf: leaf.block, lambda leaf: leaf, state)


class _Lost(Exception):
  """Clients that did not answer, a list."""


class _Traffic:
  """Questions that a round has sent, and the answers so far."""

  def __init__(self):
    #: (client, number of the call) -> bytes of the question, and its answer
    self._known: dict[tuple[int, int], tuple[bytes, np.ndarray]] = {}
    self.seconds = 0.0  #: of waiting

  def _answers(self, questions: Questions) -> dict[int, np.ndarray]:
    answers = {}
    for client, (question, body) in questions.items():
      known_body, answer = self._known.get((client, question.call), (None, body))
      if known_body == body.tobytes():
        answers[client] = answer
    return answers

  def ask(self, ask: Ask, questions: Questions) -> dict[int, np.ndarray]:
    """The answers of those who give one."""
    answers, began = self._answers(questions), time.monotonic()
    new = {client: questions[client] for client in questions.keys() - answers}
    for client, answer in (ask(new) if new else {}).items():
      question, body = new[client]
      self._known[client, question.call] = body.tobytes(), answer
    self.seconds += time.monotonic() - began
    return self._answers(questions)

  def means(self, clients: np.ndarray) -> tuple[int, int]:
    """Bytes down and up of one of the clients, the means of these."""
    sizes = [
      (len(body), len(answer))
      for (client, _), (body, answer) in self._known.items()
      if client in clients
    ]
    down, up = np.sum([*sizes, (0, 0)], axis=0) / max(len(clients), 1)
    return int(down), int(up)
