"""What the option `concepts` says: kinds of clients that change over time.

A schedule says of which kind each client is at each step, [T, C]. It is a file,
as the change points of FedDrift (Jothimurugesan et al., AISTATS 2023) are, or
follows from a named pattern.
"""

import numpy as np

from fedjax_alg import files
from fedjax_alg.data.errors import DataError
from fedjax_alg.errors import OptionError, did_you_mean, reason

#: The named patterns.
PATTERNS = ("switch", "staggered", "recurring")
#: How the pattern begins that says for each client at which steps it turns.
TURNS = "turns:"
#: Which examples of a client a round trains on.
DATA = ("step", "all")


def is_pattern(text: str | None) -> bool:
  """Whether the option `concepts` is a pattern, and no file."""
  return text is not None and (text in PATTERNS or text.startswith(TURNS))


def check_concepts(text: str) -> None:
  """Checks the option `concepts` as far as no data are needed.

  Args:
    text: the option, a pattern or the path of a file.

  Raises:
    DataError: no pattern and no file.
  """
  if not is_pattern(text):
    read_schedule(text)
  elif text not in PATTERNS:
    _parse_turns(text)


def _parse_turns(text: str) -> list[list[int]]:
  """The steps at which each client turns to its next kind.

  Raises:
    DataError: they are no rising numbers.
  """
  turns = []
  for number, part in enumerate(text.removeprefix(TURNS).split(",")):
    entries = part.split("-") if part else []
    if not all(entry.isdecimal() and len(entry) < 6 for entry in entries):
      raise DataError(
        f"`concepts`={text}: client {number} has {part}, must be steps with - between "
        "them, such as 1-5, or nothing"
      )
    turns.append([int(entry) for entry in entries])
    if any(b <= a for a, b in zip([0, *turns[-1]], turns[-1])):
      raise DataError(
        f"`concepts`={text}: client {number} has {part}, its steps must rise, from 1 on"
      )
  return turns


def _schedule_of_turns(text: str, steps: int, clients: int, kinds: int) -> np.ndarray:
  turns = _parse_turns(text)
  if len(turns) != clients:
    raise DataError(
      f"`concepts`={text}: has {len(turns)} entries, {clients} are needed, one for "
      "each client (`num_clients`)"
    )
  last = max((step for client in turns for step in client), default=0)
  if last >= steps:
    raise DataError(
      f"`concept_steps`={steps}: must be at least {last + 1} with `concepts`={text}"
    )
  schedule = np.zeros((steps, clients), np.int32)
  for client, at in enumerate(turns):
    for step in at:
      schedule[step:, client] += 1
  return schedule % kinds


def make_schedule(
  text: str, steps: int, clients: int, kinds: int | None, label: str
) -> np.ndarray:
  """Computes of which kind each client is at each step.

  ``switch``: all clients are of the first kind, then all of the second, ..., for
    equally many steps.
  ``staggered``: all clients are of the first kind at the first step. Client after
    client turns to the second one, the last at the last step; with more kinds
    then to the third, ...
  ``recurring``: all clients are of the first kind, then of the second, ..., and
    once more.
  ``turns:2,1-5,``: the first client turns to the next kind at step 2, from 0, the
    second at steps 1 and 5, the third never. After the last kind comes the first.

  Args:
    text: the option `concepts`.
    steps: T of a pattern.
    clients: C.
    kinds: K; None: as many as the file names.
    label: what the kinds are of, for messages.

  Returns:
    [T, C] int32 in [0, K).

  Raises:
    DataError: a file that does not fit, or too few steps for a pattern.
  """
  name = f"`concepts`={text}"
  if not is_pattern(text):
    schedule = read_schedule(text)
    if schedule.shape[1] != clients:
      raise DataError(
        f"{name}: has {schedule.shape[1]} columns, {clients} are needed, one for each "
        f"client (`num_clients`)"
      )
    if kinds is not None and schedule.max() >= kinds:
      raise DataError(
        f"{name}: names kind {schedule.max()}, {label} has {kinds}, numbered from 0"
      )
    return schedule
  if kinds is None:
    raise DataError(
      f"{name}: the number of kinds is missing; write {label}:K, or give a file"
    )
  if text not in PATTERNS:
    return _schedule_of_turns(text, steps, clients, kinds)
  fewest = {"switch": kinds, "staggered": 2, "recurring": 2 * kinds}[text]
  if steps < fewest:
    raise DataError(
      f"`concept_steps`={steps}: must be at least {fewest} with {name} and "
      f"{kinds} kinds"
    )
  step, client = np.arange(steps)[:, None], np.arange(clients)[None]
  if text == "staggered":
    # Change k = 1, 2, ... of each client comes in the k-th part of the steps.
    schedule = np.zeros((steps, clients), np.int64)
    for k in range(1, kinds):
      place = (k - 1) * clients + client
      schedule += step > (steps - 1) * place // ((kinds - 1) * clients)
  else:
    parts = kinds if text == "switch" else 2 * kinds
    schedule = np.broadcast_to(step * parts // steps % kinds, (steps, clients))
  return schedule.astype(np.int32)


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
  name = f"`concepts`={path}"
  try:
    text = files.read_text(files.expand_path(path, "concepts"))
  except (OSError, OptionError) as error:
    raise DataError(
      f"{name}: no pattern{did_you_mean(path, PATTERNS)} (one of "
      f"{', '.join(PATTERNS)}, {TURNS}...) and no file of numbers ({reason(error)})"
    ) from None
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
