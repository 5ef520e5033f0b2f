"""How the kinds of clients change over time, parts of the option `concepts`.

A schedule says of which kind each client is at each step, [T, C]. It is a file,
as the change points of FedDrift (Jothimurugesan et al., AISTATS 2023) are, or
follows from a named pattern.
"""

import dataclasses
import pathlib

import numpy as np

from fedjax_alg import files
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.schedule import Change
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.hparams import hyper

#: Which examples of a client a round trains on.
DATA = ("step", "all")


class Concepts(Change):
  """How the kinds of clients change."""

  OPTION = "concepts"

  @property
  def cumulative(self) -> bool:
    """Whether a client trains on all examples until a step."""
    return False

  @property
  def file(self) -> pathlib.Path | None:
    """The file of the schedule; None: there is none."""
    return None

  def check(self) -> None:
    """Checks what needs no other data than the schedule itself.

    Raises:
      DataError: there is no such file, or it has another content.
    """

  def schedule(self, clients: int, kinds: int | None, label: str) -> np.ndarray:
    """Computes of which kind each client is at each step.

    Args:
      clients: C.
      kinds: K; None: as many as a file names.
      label: what the kinds are of, for messages.

    Returns:
      [T, C] int32 in [0, K).

    Raises:
      DataError: a file that does not fit, or too few steps for a pattern.
    """
    raise NotImplementedError


class NoConcepts(Concepts):
  """The kinds of clients stay as they are."""

  WORD, EXAMPLE = "none", "none"


class _Steps(Concepts, kw_only=True):
  """Kinds that change from step to step."""

  PERIOD = "rounds"

  rounds: int = hyper(
    200,
    "number of rounds of a step; its last round is always evaluated. Rounds after "
    "the last step have its data",
    minimum=1,
    source="Jothimurugesan et al.",
  )
  data: str = hyper(
    "step",
    "examples that a client trains on: step = examples of the current step, all = "
    "examples of all steps so far, which may have other kinds",
    choices=DATA,
  )

  @property
  def cumulative(self) -> bool:
    """Whether a client trains on all examples until a step."""
    return self.data == "all"


class _Pattern(_Steps):
  """A schedule that follows from the numbers of steps, clients and kinds."""

  steps: int = hyper(
    10,
    "number of steps, to which the training examples of each client are shared out",
    minimum=1,
    maximum=10_000,
    source="Jothimurugesan et al.",
  )

  def schedule(self, clients, kinds, label):
    """Computes the kind of each client at each step (``Concepts.schedule``)."""
    if kinds is None:
      raise DataError(
        f"{self.label}: {label} has no number of kinds, which a pattern needs "
        "(or give a file)"
      )
    fewest = self._fewest_steps(kinds)
    if self.steps < fewest:
      raise DataError(
        f"{self.label}: steps={self.steps}: must be at least {fewest} with {kinds} "
        "kinds"
      )
    step, client = np.arange(self.steps)[:, None], np.arange(clients)[None]
    kind = self._kinds_at(step, client, clients, kinds)
    return np.broadcast_to(kind, (self.steps, clients)).astype(np.int32)

  def _fewest_steps(self, kinds: int) -> int:
    """The smallest number of steps for so many kinds."""
    raise NotImplementedError

  def _kinds_at(
    self, step: np.ndarray, client: np.ndarray, clients: int, kinds: int
  ) -> np.ndarray:
    """The kinds at steps [T, 1] of clients [1, C]; any shape that fits [T, C]."""
    raise NotImplementedError


class SwitchedConcepts(_Pattern):
  """All clients turn to the next kind at once, for equally many steps."""

  WORD, EXAMPLE = "switch", "switch:10,rounds=200"

  def _fewest_steps(self, kinds):
    return kinds

  def _kinds_at(self, step, client, clients, kinds):
    return step * kinds // self.steps % kinds


class StaggeredConcepts(_Pattern):
  """One client after the other turns to the next kind.

  All are of the first kind at the first step. First all turn to the second kind, then
  all to the third, ..., and these turns are spread evenly over the steps.
  """

  WORD, EXAMPLE = "staggered", "staggered:10,rounds=200"

  def _fewest_steps(self, kinds):
    return 2

  def _kinds_at(self, step, client, clients, kinds):
    # Change k = 1, 2, ... of each client comes in the k-th part of the steps.
    result = np.zeros((self.steps, clients), np.int64)
    for k in range(1, kinds):
      place = (k - 1) * clients + client
      result += step > (self.steps - 1) * place // ((kinds - 1) * clients)
    return result


class RecurringConcepts(_Pattern):
  """All clients turn to the next kind at once, through all kinds twice."""

  WORD, EXAMPLE = "recurring", "recurring:10,rounds=200"

  def _fewest_steps(self, kinds):
    return 2 * kinds

  def _kinds_at(self, step, client, clients, kinds):
    return step * 2 * kinds // self.steps % kinds


class TurnedConcepts(_Steps):
  """Each client turns to its next kind at steps that you give.

  After the last kind comes the first.
  """

  WORD, EXAMPLE = "turns", "turns:2,1-5,3,steps=8"

  turns: tuple[str, ...] = hyper(
    dataclasses.MISSING,
    "the steps of each client, from 0, with - between them: 2,1-5, = the first turns "
    "at step 2, the second at steps 1 and 5, the third never",
  )
  _: dataclasses.KW_ONLY
  steps: int = hyper(
    10,
    "number of steps, to which the training examples of each client are shared out",
    minimum=1,
    maximum=10_000,
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    last = max((step for client in self._numbers() for step in client), default=0)
    if last >= self.steps:
      raise OptionError(
        f"{self.WORD}: steps={self.steps}: must be at least {last + 1} with a turn at "
        f"step {last}"
      )

  def _numbers(self) -> list[list[int]]:
    """The steps at which each client turns to its next kind.

    Raises:
      OptionError: they are no rising numbers.
    """
    numbers = []
    for client, text in enumerate(self.turns):
      label = f"{self.WORD}: client {client} has {text}"
      entries = text.split("-") if text else []
      if not all(entry.isdecimal() and len(entry) < 6 for entry in entries):
        raise OptionError(
          f"{label}, must be steps with - between them, such as 1-5, or nothing"
        )
      steps = [int(entry) for entry in entries]
      if any(b <= a for a, b in zip([0, *steps], steps)):
        raise OptionError(f"{label}, its steps must rise, from 1 on")
      numbers.append(steps)
    return numbers

  def schedule(self, clients, kinds, label):
    """Computes the kind of each client at each step (``Concepts.schedule``)."""
    if kinds is None:
      raise DataError(
        f"{self.label}: {label} has no number of kinds, which turns need (or give "
        "a file)"
      )
    if len(self.turns) != clients:
      raise DataError(
        f"{self.label}: has {len(self.turns)} entries, {clients} are needed, one for "
        "each client (`num_clients`)"
      )
    schedule = np.zeros((self.steps, clients), np.int32)
    for client, at in enumerate(self._numbers()):
      for step in at:
        schedule[step:, client] += 1
    return schedule % kinds


class ConceptFile(_Steps):
  """A file with a line for each step and in it the kind of each client, from 0."""

  WORD, EXAMPLE = "file", "file:changes.cp,rounds=200"

  path: str = hyper(dataclasses.MISSING, "the file, whole numbers with spaces between")

  @property
  def file(self) -> pathlib.Path:
    """The file of the schedule."""
    return files.expand_path(self.path, "concepts")

  def check(self):
    """Reads the file (``Concepts.check``)."""
    read_schedule(self.path)

  def schedule(self, clients, kinds, label):
    """Reads the kind of each client at each step (``Concepts.schedule``)."""
    schedule = read_schedule(self.path)
    if schedule.shape[1] != clients:
      raise DataError(
        f"{self.label}: has {schedule.shape[1]} columns, {clients} are needed, one "
        "for each client (`num_clients`)"
      )
    if kinds is not None and schedule.max() >= kinds:
      raise DataError(
        f"{self.label}: names kind {schedule.max()}, {label} has {kinds}, numbered "
        "from 0"
      )
    return schedule


#: How the kinds of clients may change.
Choice = (
  NoConcepts
  | SwitchedConcepts
  | StaggeredConcepts
  | RecurringConcepts
  | TurnedConcepts
  | ConceptFile
)


def read_schedule(path: str) -> np.ndarray:
  """Reads a schedule: a line for each step, in it a kind for each client.

  Args:
    path: a text file of whole numbers from 0 with spaces between them, such as
      the change points of FedDrift's public code (`A.cp`).

  Returns:
    [T, C] int32.

  Raises:
    DataError: there is no such file, or it has another content.
  """
  name = f"`concepts`=file:{path}"
  try:
    text = files.read_text(files.expand_path(path, "concepts"))
  except (OSError, OptionError) as error:
    raise DataError(f"{name}: no file of numbers ({reason(error)})") from None
  rows = [line.split() for line in text.splitlines() if line.strip()]
  if not rows:
    raise DataError(f"{name}: the file is empty")
  for number, row in enumerate(rows, 1):
    wrong = next((entry for entry in row if not entry.isdecimal()), None)
    if wrong is not None or max(map(len, row)) > 4:
      raise DataError(
        f"{name}: line {number} has {wrong or max(row, key=len)}, must be kinds, "
        "whole numbers in [0, 9999]"
      )
    if len(row) != len(rows[0]):
      raise DataError(
        f"{name}: line {number} has {len(row)} numbers, the first has {len(rows[0])}"
      )
  return np.array(rows, np.int32)
