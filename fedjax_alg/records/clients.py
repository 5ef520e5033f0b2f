"""The tables of the clients at the end of a run: clients.csv, assignment.csv.

clients.csv has one row for each seed, protocol and client, where a protocol is
measured at the clients (``evaluate.PER_CLIENT``). assignment.csv has the group
of every client, for methods that group the clients. With more than
``MOST_IN_TEXT`` clients both are clients.npz instead.
"""

from collections.abc import Iterable, Mapping, Sequence
import csv
import json
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import npz
from fedjax_alg.errors import as_unicode
from fedjax_alg.typing import Facts

#: Columns of clients.csv; of another task its main metric takes the place of
#: ``accuracy``, and further metrics of clients follow (``Task.at_clients``).
#: ``client`` is the name of the client (``data.client_names``), and ``kind`` is there
#: only if clients have kinds (the numbers of partition.json). A client that the
#: protocol did not count (it has no test examples, has no group yet, ...) has 0 test
#: examples, and its accuracy and loss are NaN.
COLUMNS = (
  "seed",
  "protocol",
  "client",
  "kind",
  "train_examples",
  "test_examples",
  "accuracy",
  "loss",
)
#: With more clients, files for people have no entry for each client.
MOST_IN_TEXT = 100_000

#: Columns of assignment.csv; the group is -1 for a client without one.
ASSIGNMENT = ("seed", "client", "group")
_NPZ = "clients.npz"


def list_columns(
  main: str = "accuracy",
  kinds: bool = False,
  others: Iterable[str] = (),
) -> tuple[str, ...]:
  """Lists the columns of clients.csv.

  Args:
    main: the main metric of the task.
    kinds: whether the clients have kinds.
    others: further metrics of the clients.

  Returns:
    Names of the columns.
  """
  columns = (main if c == "accuracy" else c for c in COLUMNS if kinds or c != "kind")
  return (*columns, *others)


def _main_of(clients: Mapping[str, Mapping[str, np.ndarray]]) -> str:
  """The main metric of the task, of what is measured at the clients."""
  return next(
    (
      name
      for of in clients.values()
      for name in of
      if name not in ("loss", "test_examples")
    ),
    "accuracy",
  )


def _others_of(clients: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
  """The metrics of the clients beside the main one and the loss."""
  names = dict.fromkeys(name for of in clients.values() for name in of)
  first = (_main_of(clients), "loss", "test_examples")
  return [name for name in names if name not in first]


def _client_rows(
  clients: Mapping[str, Mapping[str, np.ndarray]],
  train_examples: np.ndarray,
  seeds: Sequence[int],
  names: Iterable[str] | None,
  kinds: np.ndarray | None = None,
) -> Iterable[tuple[object, ...]]:
  """Makes the rows of clients.csv, by seed, protocol and client.

  Args:
    clients: protocol -> the main metric of the task, "loss" and
      "test_examples" -> [N, C].
    train_examples: [C] int, the clients' training examples.
    seeds: the N seeds.
    names: the names of the C clients; None: their positions.
    kinds: [C] int, the kinds of the clients; None if they have none.

  Yields:
    Rows in the order of ``list_columns``.
  """
  # Whole columns at a time: there may be millions of rows.
  sizes, main = np.asarray(train_examples).tolist(), _main_of(clients)
  metrics = ("test_examples", main, "loss", *_others_of(clients))
  ids: list[Iterable[int | str]] = [
    range(len(sizes)) if names is None else [as_unicode(str(name)) for name in names]
  ]
  if kinds is not None:
    ids.append(np.asarray(kinds).tolist())
  for i, seed in enumerate(seeds):
    for protocol, of in clients.items():
      measured = [of[name][i].tolist() for name in metrics]
      for row in zip(*ids, sizes, *measured, strict=True):
        yield (seed, protocol, *row)


def _sums(of: Mapping[str, np.ndarray], main: str) -> dict[str, np.ndarray]:
  """Computes a protocol's arrays for clients.npz, in small dtypes if possible."""
  total = of["test_examples"]

  def sums(name: str) -> np.ndarray:
    return np.where(total > 0, of[name] * total, 0.0)

  return {
    "test_examples": _narrow(total),
    "loss_sum": sums("loss").astype(np.float32),
    **(
      {"hits": _narrow(np.rint(sums(main)).astype(np.int64))}
      if main == "accuracy"
      else {main: of[main]}
    ),
    **{name: of[name] for name in _others_of({"": of})},
  }


def _of_sums(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The inverse of ``_sums``, bit for bit."""
  total = np.asarray(stored["test_examples"], np.float64)

  def mean(sums):
    return np.divide(
      sums, total, out=np.full(total.shape, np.nan), where=total > 0, dtype=np.float64
    )

  main, *others = (name for name in stored if name not in ("test_examples", "loss_sum"))
  return {
    **({"accuracy": mean(stored[main])} if main == "hits" else {main: stored[main]}),
    "loss": mean(stored["loss_sum"]),
    **{name: stored[name] for name in others},
    "test_examples": total.astype(np.int64),
  }


def are_many(final: Facts) -> bool:
  """Whether the clients of ``save_clients`` are written as clients.npz."""
  sizes = final.get("train_examples")
  return sizes is not None and len(sizes) > MOST_IN_TEXT


def save_clients(folder: pathlib.Path, final: Facts, seeds: Sequence[int]) -> None:
  """Writes clients.csv and assignment.csv, or clients.npz.

  A table without rows is removed.

  Args:
    folder: folder of the run.
    final: "clients" and "train_examples" (see ``_client_rows``) and
      "membership", [N, C] int or None; perhaps "kinds", see ``_client_rows``, and
      "client_names", a JSON list of the names of the C clients.
    seeds: the N seeds.
  """
  clients, membership = final["clients"], final["membership"]
  kinds, names = final.get("kinds"), json.loads(final.get("client_names", "null"))
  (folder / _NPZ).unlink(missing_ok=True)
  if are_many(final):
    _write_npz(folder / _NPZ, final, seeds, names)
    clients, membership = {}, None
  _write(
    folder / "clients.csv",
    list_columns(_main_of(clients), kinds is not None, _others_of(clients)),
    _client_rows(clients, final["train_examples"], seeds, names, kinds)
    if clients
    else None,
  )
  _write(
    folder / "assignment.csv",
    ASSIGNMENT,
    None
    if membership is None
    else (
      (seed, client, group)
      for seed, groups in zip(seeds, membership.tolist())
      for client, group in zip(range(len(groups)) if names is None else names, groups)
    ),
  )


def _narrow(array: np.ndarray) -> np.ndarray:
  """Whole numbers in the smallest type that has them all."""
  low, high = int(array.min(initial=0)), int(array.max(initial=0))
  return array.astype(np.min_scalar_type(min(low, -1 - high) if low < 0 else high))


def _write_npz(
  path: pathlib.Path,
  final: Facts,
  seeds: Sequence[int],
  names: Iterable[str] | None,
) -> None:
  """Writes clients.npz; the sums in it give the measures bit for bit."""
  arrays: dict[str, Any] = {
    "seed": np.asarray(seeds),
    "train_examples": _narrow(final["train_examples"]),
  }
  if names is not None:
    arrays["client"] = np.asarray(names)
  if final.get("kinds") is not None:
    arrays["kind"] = _narrow(np.asarray(final["kinds"]))
  if final["membership"] is not None:
    arrays["group"] = _narrow(final["membership"])
  for protocol, of in final["clients"].items():
    arrays |= {
      f"{protocol}_{name}": array
      for name, array in _sums(of, _main_of(final["clients"])).items()
    }
  with files.replacing(path) as partial, open(partial, "wb") as file:
    np.savez_compressed(file, **arrays)


def read_many(folder: pathlib.Path) -> dict[str, Any]:
  """Reads clients.npz.

  Args:
    folder: folder of the run.

  Returns:
    "clients", "membership", "train_examples" and, if clients have any, "kinds" and
    "client_names" as ``save_clients`` takes them; empty if the folder has no such
    file.

  Raises:
    ValueError, KeyError, OSError: the file is damaged.
  """
  path = folder / _NPZ
  if not path.is_file():
    return {}
  end = "_test_examples"
  stored = npz.read_npz(path)
  if isinstance(stored, np.ndarray):
    raise ValueError(f"{path}: one array, not those of clients")
  protocols = [name.removesuffix(end) for name in stored if name.endswith(end)]
  group = stored.get("group")
  return {
    "clients": {
      protocol: _of_sums(
        {
          name.removeprefix(f"{protocol}_"): array
          for name, array in stored.items()
          if name.startswith(f"{protocol}_")
        }
      )
      for protocol in protocols
    },
    "membership": None if group is None else group.astype(np.int32),
    "train_examples": stored["train_examples"].astype(np.int64),
    **({"kinds": stored["kind"].astype(np.int32)} if "kind" in stored else {}),
    **(
      {"client_names": json.dumps(stored["client"].tolist())}
      if "client" in stored
      else {}
    ),
  }


def _write(
  path: pathlib.Path, head: Sequence[str], rows: Iterable[tuple[object, ...]] | None
) -> None:
  if rows is None:
    path.unlink(missing_ok=True)
    return
  with (
    files.replacing(path) as partial,
    open(partial, "w", newline="", encoding="utf-8") as file,
  ):
    writer = csv.writer(file)
    writer.writerow(head)
    writer.writerows(rows)
