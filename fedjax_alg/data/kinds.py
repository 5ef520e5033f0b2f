"""What the option `kinds` says: clients that differ in kind.

A kind is a number that a client has. What it does is a pure function ``(x, y,
kind, key) -> x, y`` of the examples of all clients of that kind
(``kind_changes``), applied between the partition, which reads the data set as it
is, and the features. Data may also bring their kinds, a number for each row
(``Examples.kind_train``).
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np

from fedjax_alg import own
from fedjax_alg.data.errors import DataError
from fedjax_alg.errors import did_you_mean

#: The forms of `kinds`, as help shows them.
FORMS = (
  "rotate:DEGREES,DEGREES,...",
  "permute:K",
  "noise:VARIANCE",
  "noise_std:DEVIATION",
  "sources:DATASET,DATASET,...",
  "boundaries:K",
  "FILE.py:NAME[:K]",
)
#: The option `kind_data`.
KIND_DATA = ("split", "all")
_WORDS = ("rotate", "permute", "noise", "noise_std", "sources", "boundaries")
#: Words with a number of kinds, and what they are.
_NUMBERED = {"permute": "permutations", "boundaries": "boundaries"}
#: The random stream of the kinds; 1 to 3 are those of ``hold_out``,
#: ``newcomers`` and ``shift``.
STREAM = 4
#: The most kinds of a function.
_MOST = 10_000


class ClientKinds(NamedTuple):
  """The kinds of the clients of a federation."""

  of_client: np.ndarray  #: [C] int32 in [0, K), every kind has a client
  names: tuple[str, ...]  #: of the K kinds
  #: whether the kinds leave the labels alone, so that one model can be right
  #: about the examples of all kinds
  same_labels: bool

  @property
  def number(self) -> int:
    """K, the number of kinds."""
    return len(self.names)

  def sizes(self) -> np.ndarray:
    """[K] int64, the clients of each kind."""
    return np.bincount(self.of_client, minlength=self.number)


class KindChange(NamedTuple):
  """What the option `kinds` says."""

  text: str  #: the value of the option
  #: rotate, permute, noise, noise_std, sources, boundaries or own
  word: str
  #: of the K kinds; empty if every client is of a kind of its own, or if
  #: `kind_shares` says the number
  names: tuple[str, ...]
  numbers: tuple[float, ...] = ()  #: degrees, or the one value of a noise

  @property
  def label(self) -> str:
    """The option as messages name it."""
    return f"`kinds`={self.text}"

  @property
  def one_each(self) -> bool:
    """Whether every client is of a kind of its own."""
    return self.word in ("noise", "noise_std")

  @property
  def labels_only(self) -> bool:
    """Whether kinds differ in their labels alone."""
    return self.word in _NUMBERED

  @property
  def function(self) -> str:
    """What `own.load` reads of a function of the user's own, else ""."""
    return split_own(self.text)[0] if self.word == "own" else ""


def split_own(text: str) -> tuple[str, int | None]:
  """Splits the option `kinds` that names a function of the user's own.

  Args:
    text: FILE.py:NAME or FILE.py:NAME:K.

  Returns:
    FILE.py:NAME; and K, or None if it is missing.
  """
  place, _, last = text.rpartition(":")
  if last.isdecimal() and own.is_own(place):
    return place, int(last)
  return text, None


def parse_kinds(text: str | None) -> KindChange | None:
  """Reads the option `kinds`, and checks what needs no data.

  Args:
    text: one of ``FORMS``; None for clients that do not differ in kind.

  Returns:
    What it says; None for None.

  Raises:
    DataError: it has none of the forms, or a number is out of range.
  """
  if text is None:
    return None
  word, colon, rest = text.partition(":")
  label = f"`kinds`={text}"
  if word not in _WORDS:
    name = split_own(text)[0].rpartition(":")[2]
    if not (own.is_own(text) and all(part.isidentifier() for part in name.split("."))):
      own.refuse_nameless(text, "kinds")
      raise DataError(
        f"{label}: unknown{did_you_mean(word, _WORDS)} (one of {', '.join(FORMS)})"
      )
    number = split_own(text)[1]
    if number is not None and not 1 <= number <= _MOST:
      raise DataError(f"{label}: the number of kinds must lie in [1, {_MOST:,}]")
    return KindChange(text, "own", tuple(map(str, range(number or 0))))
  parts = [part.strip() for part in rest.split(",")]
  if not colon or not all(parts):
    (form,) = (form for form in FORMS if form.startswith(f"{word}:"))
    raise DataError(f"{label}: must be {form}")
  if word == "sources":
    if len(set(parts)) < len(parts):
      raise DataError(f"{label}: names a data set twice")
    return KindChange(text, word, tuple(parts))
  numbers = tuple(_number(label, part) for part in parts)
  if word == "rotate":
    if len({number % 360 for number in numbers}) < len(numbers):
      raise DataError(f"{label}: two angles are the same rotation")
    return KindChange(text, word, tuple(parts), numbers)
  if len(numbers) > 1:
    raise DataError(f"{label}: must be one number, {len(numbers)} are there")
  if word in _NUMBERED:
    if not (numbers[0].is_integer() and 1 <= numbers[0] <= _MOST):
      raise DataError(
        f"{label}: the number of {_NUMBERED[word]} must be a whole number in "
        f"[1, {_MOST:,}]"
      )
    return KindChange(text, word, tuple(map(str, range(int(numbers[0])))))
  if numbers[0] < 0:
    raise DataError(f"{label}: must be at least 0")
  return KindChange(text, word, (), numbers)


def _number(label: str, text: str) -> float:
  try:
    number = float(text)
  except ValueError:
    number = math.nan
  if not math.isfinite(number):
    raise DataError(f"{label}: {text!r} is no number")
  return number


def count_kinds(change: KindChange, shares: Sequence[float] | None) -> int:
  """Counts the kinds that the option `kinds` names, or else the shares.

  Args:
    change: the option `kinds`.
    shares: the option `kind_shares`.

  Raises:
    DataError: neither option says how many kinds there are.
  """
  number = len(change.names) or len(shares or ())
  if not number:
    raise DataError(
      f"{change.label}: the number of kinds is missing; write {change.text}:K, or "
      "give `kind_shares`"
    )
  return number


def check_shares(
  shares: Sequence[float] | None, number: int | None, label: str
) -> None:
  """Checks the option `kind_shares`.

  Args:
    shares: the option; None: equal shares.
    number: the number of kinds; None if it is not known.
    label: what the kinds are of, for messages.

  Raises:
    DataError: a share is not above 0, or there are more or fewer than kinds.
  """
  if shares is None:
    return
  text = f"`kind_shares`={','.join(f'{share:g}' for share in shares)}"
  if not all(0 < share < math.inf for share in shares):
    raise DataError(f"{text}: every share must be a number above 0")
  if number is not None and len(shares) != number:
    raise DataError(
      f"{text}: {len(shares)} shares, {number} are needed, one for each kind of {label}"
    )


def check_kind_data(data: str, change: KindChange | None) -> None:
  """Checks the option `kind_data` against the kinds.

  Args:
    data: one of ``KIND_DATA``.
    change: the option `kinds`.

  Raises:
    DataError: each kind cannot have all examples.
  """
  if data != "all":
    return
  if change is None:
    raise DataError("`kind_data`=all: not read (only with `kinds`)")
  if change.one_each or change.word == "sources":
    why = (
      "makes every client a kind of its own"
      if change.one_each
      else "gives each kind a data set of its own"
    )
    raise DataError(f"`kind_data`=all: not with {change.label}, which {why}")
