"""The tables of the clients at the end of a run: clients.csv, assignment.csv.

clients.csv has one row for each seed, protocol and client, where a protocol is
measured at the clients (``evaluate.PER_CLIENT``). assignment.csv has the group
of every client, for methods that group the clients.
"""

from collections.abc import Iterable, Mapping, Sequence
import csv
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import files

#: Columns of clients.csv. ``name`` is there only if the data set names its
#: clients. A client that the protocol did not count (it has no test examples,
#: has no group yet, ...) has 0 test examples, and its accuracy and loss are
#: NaN.
COLUMNS = ("seed", "protocol", "client", "name", "train_examples",
           "test_examples", "accuracy", "loss")
#: Columns of assignment.csv; the group is -1 for a client without one.
ASSIGNMENT = ("seed", "client", "group")


def columns(names: Iterable[str] | None) -> tuple[str, ...]:
  """Lists the columns of clients.csv.

  Args:
    names: the names of the clients; None if they have none.

  Returns:
    Names of the columns.
  """
  return tuple(c for c in COLUMNS if c != "name" or names is not None)


def client_rows(
    clients: Mapping[str, Mapping[str, np.ndarray]],
    train_examples: np.ndarray, seeds: Sequence[int],
    names: Iterable[str] | None) -> Iterable[tuple[Any, ...]]:
  """Makes the rows of clients.csv, by seed, protocol and client.

  Args:
    clients: protocol -> "accuracy", "loss" and "test_examples" -> [N, C].
    train_examples: [C] int, the clients' training examples.
    seeds: the N seeds.
    names: the names of the C clients; None if they have none.

  Yields:
    Rows in the order of ``columns``.
  """
  # Whole columns at a time: there may be millions of rows.
  held = np.asarray(train_examples).tolist()
  ids: list[Any] = [range(len(held))]
  if names is not None:
    ids.append(names)
  for i, seed in enumerate(seeds):
    for protocol, of in clients.items():
      measured = [of[name][i].tolist()
                  for name in ("test_examples", "accuracy", "loss")]
      for row in zip(*ids, held, *measured, strict=True):
        yield (seed, protocol, *row)


def write(
    folder: pathlib.Path, final: Mapping[str, Any], seeds: Sequence[int],
    names: Iterable[str] | None) -> None:
  """Writes clients.csv and assignment.csv; a table without rows is removed.

  Args:
    folder: folder of the run.
    final: "clients" and "train_examples" (see ``client_rows``) and
      "membership", [N, C] int or None.
    seeds: the N seeds.
    names: the names of the C clients; None if they have none.
  """
  clients, membership = final["clients"], final["membership"]
  # A run of an older version, read and saved again, counted no losses.
  complete = clients and all("loss" in of for of in clients.values())
  _write(folder / "clients.csv", columns(names), client_rows(
      clients, final["train_examples"], seeds, names) if complete else None)
  _write(folder / "assignment.csv", ASSIGNMENT, None if membership is None else
         ((seed, client, group) for seed, own in zip(seeds, membership)
          for client, group in enumerate(own.tolist())))


def _write(
    path: pathlib.Path, head: Sequence[str],
    rows: Iterable[tuple[Any, ...]] | None) -> None:
  if rows is None:
    path.unlink(missing_ok=True)
    return
  with files.replacing(path) as partial, open(
      partial, "w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(head)
    writer.writerows(rows)
