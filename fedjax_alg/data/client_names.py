"""The name of a client, which is the same wherever one is given or shown.

The name is that of the data: a text, or a number where the data number their
clients. Clients that a partition has made have no names; a client's name is then
its position, 0, 1, 2, ... Names are texts in tables and files. A number that is
given stands for its text, so 3 and "3" are the same client.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
import csv
import operator
from typing import Any

import numpy as np

from fedjax_alg.data.examples import Examples
from fedjax_alg.data.partition import HeldOut, Partition
from fedjax_alg.errors import OptionError, did_you_mean

#: So many names are listed in a message.
_LISTED = 20

#: Of more clients a misspelt name is not searched for a similar one.
_SEARCHED = 1000


def text_of(option: str, client: Any) -> str:
  """The text of a name that a caller gives.

  Args:
    option: the argument, for messages.
    client: a text, or a whole number of Python, NumPy or JAX.

  Raises:
    OptionError: it is something else, for example a truth value.
  """
  if isinstance(client, str):
    return str(client)
  is_truth_value = isinstance(client, (bool, np.bool_)) or (
    getattr(client, "dtype", np.int64) == np.bool_
  )
  try:
    number = None if is_truth_value else operator.index(client)
  except TypeError:
    number = None
  if number is None:
    raise OptionError(
      f"`{option}`={client!r}: must be the name of a client, a text or a whole number"
    )
  return str(number)


def texts_of(option: str, clients: Any) -> tuple[str, ...]:
  """The texts of one name or of several.

  Args:
    option: the argument, for messages.
    clients: a number, names (see ``text_of``), or a text as a flag of the command
      line has it (``split_line``).

  Raises:
    OptionError: there is none, one is no name, or is given twice.
  """
  if isinstance(clients, str):
    several: list[Any] = list(split_line(option, clients))
  elif isinstance(clients, Iterable) and getattr(clients, "ndim", None) != 0:
    several = list(clients)
  else:
    several = [clients]
  names = tuple(text_of(option, client) for client in several)
  if not names:
    raise OptionError(f"`{option}`: give at least one client")
  for name, count in Counter(names).items():
    if count > 1:
      raise OptionError(f"`{option}`={join_names(names)}: {name} is given twice")
  return names


def split_line(option: str, line: str) -> list[str]:
  """Splits a line of names at its commas, as a flag of the command line is.

  Args:
    option: the option, for messages.
    line: names separated by commas. A name with a comma is in double quotes.

  Raises:
    OptionError: a quote is not closed.
  """
  try:
    rows = list(csv.reader([line], skipinitialspace=True, strict=True))
  except csv.Error:
    raise OptionError(
      f"`{option}`={line}: must be names of clients, separated by commas; a name with "
      'a comma is in double quotes, "Smith, J"'
    ) from None
  return [name.strip() for name in rows[0]] if rows else []


def join_names(names: Iterable[object]) -> str:
  """Joins names so that ``split_line`` splits them again."""
  return ",".join(
    '"' + name.replace('"', '""') + '"' if "," in name or '"' in name else name
    for name in map(str, names)
  )


def names_of_positions(count: int) -> np.ndarray:
  """The names of C clients that the data do not name, [C] texts."""
  return np.arange(count).astype(f"U{len(str(max(count - 1, 0)))}")


def names_of_all(examples: Examples, partition: Partition) -> np.ndarray | None:
  """Reads the names of all clients, if the partition is of the data's own clients.

  Args:
    examples: the data set.
    partition: the partition. Validation clients and those that `without` names are
      among all, each at its place before it was taken out (``Partition.places``).

  Returns:
    [C + number of validation clients] strings; None if the data do not name them.
  """
  if partition.name != "natural" or examples.client_train is None:
    return None
  parts: list[tuple[Partition | HeldOut, np.ndarray]] = [(partition, partition.places)]
  for out in (partition.held_out, partition.left_out):
    if out is not None:
      parts.append((out, out.clients))
  numbers = np.zeros(1 + max(places.max(initial=0) for _, places in parts), np.int64)
  for part, places in parts:
    # A client with training rows has none of the official test rows among them.
    for clients, order, size, training in (
      (examples.client_train, part.train_order, part.train_size, None),
      (examples.client_test, part.test_order, part.test_size, part.train_size),
    ):
      some = size > 0 if training is None else (size > 0) & (training == 0)
      if clients is not None and some.any():
        first = np.cumsum(size) - size
        numbers[places[some]] = clients[order[first[some]]]
  if examples.client_names is None:
    return numbers.astype(str)
  names: np.ndarray = examples.client_names[numbers]
  return names


def name_at(examples: Examples, partition: Partition, position: int) -> str:
  """The name of the client at a position of a partition, for a message."""
  names = names_of_all(examples, partition)
  return str(position if names is None else names[partition.places[position]])


def index_names(names: np.ndarray | None) -> dict[str, int] | None:
  """The position of each of these names; None for None."""
  return None if names is None else dict(zip(names.tolist(), range(len(names))))


def position_of(
  option: str, client: Any, places: Mapping[str, int] | None, count: int
) -> int:
  """Finds a client by its name.

  Args:
    option: the argument, for messages.
    client: the name, see ``text_of``.
    places: the positions of the names (``index_names``); None: the positions are
      the names.
    count: C.

  Returns:
    The place of the client in arrays of all clients, in [0, C).

  Raises:
    OptionError: no client has this name.
  """
  name = text_of(option, client)
  if places is not None:
    if name in places:
      return places[name]
    hint = did_you_mean(name, places) if len(places) <= _SEARCHED else ""
    raise OptionError(
      f"`{option}`={name}: no client of this name{hint} (one of {list_some(places)})"
    )
  # No other text of a number is a name: neither 03 nor +3.
  if name.isdecimal() and len(name) < 20 and str(int(name)) == name:
    if int(name) < count:
      return int(name)
  raise OptionError(
    f"`{option}`={name}: must be a whole number in [0, {count}), the clients (the data "
    "give them no names)"
  )


def positions_of(
  option: str, clients: Any, places: Mapping[str, int] | None, count: int
) -> list[int]:
  """Finds one client or several by their names.

  Args:
    option: the argument, for messages.
    clients: see ``texts_of``.
    places: see ``position_of``.
    count: C.

  Raises:
    OptionError: see ``texts_of`` and ``position_of``.
  """
  return [
    position_of(option, name, places, count) for name in texts_of(option, clients)
  ]


def list_some(names: Collection[str]) -> str:
  """Lists the first names, for a message."""
  first = list(names)[:_LISTED]
  return ", ".join(first) + ", ..." * (len(names) > len(first))
