"""The tables of a run: metrics.csv, rounds.csv, timing.csv, groups.csv.

metrics.csv is long: a row is one value of one metric, of a protocol and a seed
after a round. What the rounds cost is in rounds.csv.

Rows are appended at every evaluation, before the checkpoint is written. A
resumed run therefore drops the rows after the last checkpoint and writes them
again. Wall times are in timing.csv only: all other tables, including their
simulated times, have the same bits in every run with the same options.
groups.csv is written for methods that group the clients.
"""

from collections.abc import Iterable, Mapping, Sequence
import copy
import csv
import hashlib
import io
import os
import pathlib
from typing import Any

import jax
import numpy as np

from fedjax_alg import files
from fedjax_alg.base import BYTES_PER_FLOAT, RoundAux, RoundTimes
from fedjax_alg.engine import evaluate
from fedjax_alg.engine.late import LOST
from fedjax_alg.engine.round import PRESENT
from fedjax_alg.errors import OptionError, as_unicode
from fedjax_alg.metrics import groups
from fedjax_alg.metrics.names import is_known, sign
from fedjax_alg.records import scores
from fedjax_alg.records.accounting import Mechanism
from fedjax_alg.tasks import CLASSIFICATION, Counts, Metrics, Task, summarize_counts
from fedjax_alg.typing import AnyArray, Shaped

Row = dict[str, Any]

#: Simulated seconds of a round, averaged over the participants. The three add
#: up to the duration of the round.
SIMULATED = ("computation_s", "communication_s", "idle_s")
#: Cost of the round of a row, per participating client except for
#: ``central_flops``. ``client_flops`` and the columns after it are NaN if the
#: method does not count its work.
ROUND_COST = (
  "floats_down",
  "floats_up",
  "bytes_down",
  "bytes_up",
  "exchanges",
  "example_gradients",
  "central_flops",
  "client_flops",
  *SIMULATED,
)
#: Running totals up to the round of a row, over the whole cohort, and the total
#: duration of these rounds on the simulated machines.
TOTALS = (
  "total_floats",
  "total_bytes",
  "total_bytes_up",
  "total_example_gradients",
  "total_central_flops",
  "simulated_s",
)
METRICS = ("round", "seed", "protocol", "metric", "value")
TIMING = ("round", "seconds")

#: Arrays of ``RoundAux.server`` with more entries are not written, and neither
#: are the sizes of the groups if there are more groups.
MOST_ENTRIES = 64


#: Columns of text; all others have numbers.
_TEXTS = ("protocol", "metric")


def main_metric(names: Iterable[str]) -> str:
  """The main metric of a run, by the names of its metrics in their order."""
  return next(name for name in names if is_known(name))


def _as_bytes(
  rows: Sequence[Row], columns: Sequence[str], header: bool = False
) -> bytes:
  """The rows as they are in a file."""
  text = io.StringIO(newline="")
  writer = csv.DictWriter(text, columns)
  if header:
    writer.writeheader()
  writer.writerows(rows)
  return as_unicode(text.getvalue()).encode()


def write_rows(
  path: pathlib.Path, rows: Sequence[Row], columns: Sequence[str] = METRICS
) -> None:
  """Writes a table atomically.

  Args:
    path: the file.
    rows: rows of the table.
    columns: names of the columns.
  """
  with files.replacing(path) as partial:
    partial.write_bytes(_as_bytes(rows, columns, header=True))


def _append(path: pathlib.Path, rows: bytes) -> None:
  """Appends to a table, which must be there and no link."""

  def open_existing(name: str, flags: int) -> int:
    return os.open(name, (flags | os.O_NOFOLLOW) & ~os.O_CREAT)

  with open(path, "ab", opener=open_existing) as file:
    file.write(rows)


def _value(text: str) -> int | float | str:
  """Converts a cell to a number if possible; otherwise returns its text."""
  for kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      pass
  return text


#: Advice to the user about a table that is not that of the run.
_START_OVER = "start over with `overwrite` or in another folder"


def read_rows(path: pathlib.Path, columns: Sequence[str] | None = METRICS) -> list[Row]:
  """Reads a table.

  An incomplete last line, which an interrupted run may leave, is dropped. It
  belongs to a round after the last checkpoint.

  Args:
    path: the file.
    columns: the columns that the table must have; None accepts any.

  Returns:
    The rows, with numbers converted.

  Raises:
    OptionError: the file is missing, has other columns, or a number of a run
      is none.
  """
  return _parse(path, _read(path), columns)


def _read(path: pathlib.Path) -> bytes:
  try:
    return files.read_bytes(path)
  except FileNotFoundError:
    raise OptionError(f"{path}: is missing; {_START_OVER}") from None


def _parse(path: pathlib.Path, raw: bytes, columns: Sequence[str] | None) -> list[Row]:
  try:
    reader = csv.DictReader(io.StringIO(raw.decode(), newline=""))
    header = tuple(reader.fieldnames or ())
    every = [
      row for row in reader if None not in row.values() and ("" not in row.values())
    ]
  except (UnicodeDecodeError, csv.Error):
    raise OptionError(f"{path}: damaged, no table; {_START_OVER}") from None
  if columns is not None and header != tuple(columns):
    raise OptionError(
      f"{path}: damaged or of another version, its columns are not "
      f"those of a run; {_START_OVER}"
    )
  texts = _TEXTS if header[:1] == ("round",) else ()
  rows = [
    {name: text if name in texts else _value(text) for name, text in row.items()}
    for row in every
  ]
  for row in rows if texts else ():
    for name, value in row.items():
      if isinstance(value, str) and name not in texts:
        raise OptionError(
          f"{path}: damaged, a {name} that is no number "
          f"({value!r}); restore it, or {_START_OVER}"
        )
  return rows


def _until(
  path: pathlib.Path,
  columns: Sequence[str] | None,
  done: int,
  mark: Mapping[str, Any],
) -> list[Row]:
  """The rows of a table up to a checkpoint.

  Args:
    path: the file.
    columns: see ``read_rows``.
    done: rounds run before the checkpoint.
    mark: what ``Records.marks`` said of the table then.

  Raises:
    OptionError: the table is not as it was at the checkpoint.
  """
  raw = b"".join(_read(path).splitlines(keepends=True)[: 1 + mark["rows"]])
  if hashlib.sha256(raw).hexdigest() != mark["sha256"]:
    raise OptionError(
      f"{path}: edited or cut, it is not as it was at the "
      f"checkpoint of round {done}; restore it, or {_START_OVER}"
    )
  rows = _parse(path, raw, columns)
  if any("round" not in row for row in rows[:1]):
    raise OptionError(
      f"{path}: damaged, has no column round; restore it, or {_START_OVER}"
    )
  return [row for row in rows if row["round"] <= done]


def _read_until(
  folder: pathlib.Path,
  columns: Mapping[str, Sequence[str] | None],
  seeds: Sequence[int],
  done: int,
  marks: Mapping[str, Mapping[str, object]],
) -> dict[str, list[Row]]:
  """Reads the tables of a run up to a checkpoint.

  Args:
    folder: the folder of the run.
    columns: name of a table -> its columns, see ``read_rows``.
    seeds: seeds of the run.
    done: rounds run before the checkpoint.
    marks: ``Records.marks`` at the checkpoint, which tell whether the tables
      are as they were.

  Returns:
    Name of a table -> its rows up to the round.

  Raises:
    OptionError: a table is missing, damaged, edited, or lacks rounds.
  """
  tables = {
    name: _until(folder / f"{name}.csv", of, done, marks[name])
    for name, of in columns.items()
  }
  if len(tables["rounds"]) != done * len(seeds):
    raise OptionError(
      f"{folder / 'rounds.csv'}: damaged, has "
      f"{len(tables['rounds'])} rows of {done} rounds of "
      f"{len(seeds)} seeds; restore it, or {_START_OVER}"
    )
  return tables


def check_tables(
  folder: pathlib.Path,
  seeds: Sequence[int],
  done: int,
  marks: Mapping[str, Mapping[str, object]],
) -> None:
  """Checks the tables of a run before it goes on; see ``_read_until``.

  Args:
    folder: the folder of the run.
    seeds: see ``_read_until``.
    done: see ``_read_until``.
    marks: see ``_read_until``.

  Raises:
    OptionError: they are not those of the checkpoint.
  """
  columns: dict[str, tuple[str, ...] | None] = {
    "metrics": METRICS,
    "rounds": None,
    "timing": TIMING,
  }
  if "groups" in marks:
    columns["groups"] = None
  _read_until(folder, columns, seeds, done, marks)


def last_round(folder: pathlib.Path) -> int:
  """The last round that rounds.csv has rows of; 0 without any."""
  try:
    rows = read_rows(folder / "rounds.csv", None)
  except OptionError:
    return 0
  return max(
    (row["round"] for row in rows if isinstance(row.get("round"), int)), default=0
  )


def server_names(server: Mapping[str, Shaped]) -> tuple[str, ...]:
  """Lists the columns of rounds.csv for ``RoundAux.server``, sorted by name.

  Args:
    server: arrays or their shapes, with two leading axes [N, R].

  Returns:
    For a scalar its name; for a small array name_0, name_1, ...
  """
  names = []
  for name, leaf in sorted(server.items()):
    size = int(np.prod(leaf.shape[2:]))
    if len(leaf.shape) == 2:
      names.append(name)
    elif size <= MOST_ENTRIES:
      names += [f"{name}_{i}" for i in range(size)]
  return tuple(names)


def _bytes(floats: np.ndarray, nbytes: np.ndarray | None) -> np.ndarray:
  """The bytes of ``RoundCost``, int64."""
  if nbytes is None:
    return BYTES_PER_FLOAT * np.asarray(floats, np.int64)
  return np.asarray(nbytes, np.int64)


def round_rows(
  aux: RoundAux, start: int, count: int, seeds: Sequence[int], cohort: int
) -> list[Row]:
  """Makes the rows of rounds.csv for some rounds, one per round and seed.

  Args:
    aux: report of the rounds, leaves [N, at least count, ...].
    start: rounds run before them.
    count: number of rounds.
    seeds: the N seeds.
    cohort: S, the number of clients in each round.

  Returns:
    The rows.
  """
  cost, server, times = jax.device_get((aux.cost, aux.server, aux.times))
  if times is None:
    nothing: Any = np.full(cost.down.shape, np.nan)
    times = RoundTimes(nothing, nothing, nothing, nothing)
  participants: AnyArray | int = server.get(PRESENT, cohort)
  columns: dict[str, AnyArray] = {
    "floats_down": cost.down,
    "floats_up": cost.up,
    "bytes_down": _bytes(cost.down, cost.bytes_down),
    "bytes_up": _bytes(cost.up, cost.bytes_up),
    "exchanges": cost.exchanges,
    "example_gradients": np.asarray(cost.example_gradients)
    / np.maximum(participants, 1),
    "central_flops": cost.central_flops,
    "client_flops": times.flops,
    "computation_s": times.computation,
    "communication_s": times.communication,
    "idle_s": times.idle,
  }
  names = set(server_names(server))
  for name, leaf in sorted(server.items()):
    flat = np.asarray(leaf).reshape(*leaf.shape[:2], int(np.prod(leaf.shape[2:])))
    for i in range(flat.shape[2]):
      key = name if leaf.ndim == 2 else f"{name}_{i}"
      if key in names:
        columns[key] = flat[:, :, i]

  def number(value):
    # Whole numbers stay int, so that they are written without a fraction.
    value = value.item()
    return int(value) if isinstance(value, bool) else value

  return [
    {
      "round": start + r + 1,
      "seed": seed,
      **{name: number(values[i, r]) for name, values in columns.items()},
    }
    for r in range(count)
    for i, seed in enumerate(seeds)
  ]


def curves(rows: Iterable[Row]) -> dict[str, dict[str, np.ndarray]]:
  """Collects the curves of a run.

  Args:
    rows: of metrics.csv, in the order of the file.

  Returns:
    protocol -> metric -> [N, E] float64, the seeds in the order of the run.
  """
  values: dict[str, dict[str, dict[int, list[float]]]] = {}
  for row in rows:
    of_metric = values.setdefault(row["protocol"], {}).setdefault(row["metric"], {})
    of_metric.setdefault(row["seed"], []).append(row["value"])
  return {
    protocol: {
      metric: np.array(list(by_seed.values()), float)
      for metric, by_seed in of_protocol.items()
    }
    for protocol, of_protocol in values.items()
  }


def first_reaching(
  curves: np.ndarray, rounds: np.ndarray, metric: str, target: float
) -> np.ndarray:
  """Finds the first evaluations that reach a target.

  Args:
    curves: [N, E'] the values of each seed.
    rounds: [E] int, the evaluated rounds, of which the last E' count.
    metric: the metric; a target is reached from above where less is better (the
      loss), else from below.
    target: the target.

  Returns:
    [N] float64, the round of each seed; inf for a seed that never reaches it.
  """
  if not curves.size:
    return np.full(len(curves), np.inf)
  reaching = sign(metric) * curves >= sign(metric) * target
  first = np.asarray(rounds, float)[-curves.shape[1] :][reaching.argmax(1)]
  return np.where(reaching.any(1), first, np.inf)


#: Of several kinds of clients: the one whose main metric is worst.
KINDS_WORST = "kinds_worst"
#: With several global models: the one that is best on the validation data.
GLOBAL_CHOSEN = "global_chosen"


def _pick_best(
  values: dict[str, np.ndarray], by: dict[str, np.ndarray], main: str
) -> dict[str, np.ndarray]:
  """Metrics [N, K] of the model whose main metric is best in ``by``, not NaN."""
  best = scores.nan_as_worst(sign(main) * by[main]).argmax(1)
  return {k: v[np.arange(len(best)), best] for k, v in values.items()}


def _best_and_mean(
  name: str, values: dict[str, np.ndarray], main: str
) -> dict[str, dict[str, np.ndarray]]:
  """Reduces metrics [N, K] to those of the best model and the mean."""
  table = {name: _pick_best(values, values, main)}
  if values[main].shape[1] > 1:
    table[f"{name}_mean"] = {k: v.mean(1) for k, v in values.items()}
  return table


def _mean_and_worst(
  values: dict[str, np.ndarray], main: str
) -> dict[str, dict[str, np.ndarray]]:
  """Reduces metrics [N, K] of K kinds of clients to their mean and the worst.

  A kind of which no example was tested does not count.
  """
  tested = ~np.isnan(values[main])
  number = tested.sum(1)
  mean = {
    name: np.divide(
      np.where(tested, of_kind, 0.0).sum(1),
      number,
      out=np.full(len(number), np.nan),
      where=number > 0,
    )
    for name, of_kind in values.items()
  }
  ordered = np.where(tested, sign(main) * values[main], np.inf)
  worst = ordered.argmin(1), np.arange(len(number))
  table = {
    "kinds": mean,
    KINDS_WORST: {name: of_kind[worst[::-1]] for name, of_kind in values.items()},
  }
  if values[main].shape[1] <= MOST_ENTRIES:
    table |= {
      f"kinds_{k}": {name: of_kind[:, k] for name, of_kind in values.items()}
      for k in range(values[main].shape[1])
    }
  return table


def group_columns(num_groups: int) -> tuple[str, ...]:
  """Lists the columns of groups.csv.

  Args:
    num_groups: K.

  Returns:
    Names of the columns; the sizes are left out if K > ``MOST_ENTRIES``.
  """
  sizes = tuple(f"size_{k}" for k in range(num_groups) if num_groups <= MOST_ENTRIES)
  return ("round", "seed", "assigned", "used", *sizes, "purity", "ari")


def group_rows(
  membership: np.ndarray,
  label_histogram: np.ndarray,
  number: int,
  seeds: Sequence[int],
  num_groups: int,
  kinds: np.ndarray | None = None,
) -> list[Row]:
  """Makes the rows of groups.csv for one evaluation.

  Args:
    membership: [N, C] int, -1 for a client without a group.
    label_histogram: [C, L] int, training examples that the clients hold now.
    number: rounds run.
    seeds: the N seeds.
    num_groups: K.
    kinds: [C] int, the kinds of the clients; None: clients that hold the same
      classes are of one kind.

  Returns:
    One row per seed.
  """
  if kinds is None:
    kinds = groups.kinds(label_histogram)
  rows = []
  for seed, of_seed in zip(seeds, membership, strict=True):
    sizes = groups.group_sizes(of_seed, num_groups)
    row = {
      "round": number,
      "seed": seed,
      "assigned": int(sizes.sum()),
      "used": int((sizes > 0).sum()),
      **{f"size_{k}": int(size) for k, size in enumerate(sizes)},
      **groups.agreement(of_seed, kinds)._asdict(),
    }
    rows.append({name: row[name] for name in group_columns(num_groups)})
  return rows


def metric_values(
  counts: dict[str, Counts], task: Task = CLASSIFICATION
) -> dict[str, dict[str, np.ndarray]]:
  """Computes the metrics of one evaluation.

  If there are K models, a protocol of ``evaluate.PER_MODEL`` reports the model
  whose main metric is best (the most accurate one), as in the papers' figures,
  and ``<protocol>_mean`` reports the mean over the K models. The best model is
  an optimistic choice: for ``global`` it is chosen on test data. With
  ``validation``, too, ``global_chosen`` reports the model that is best there.
  ``kinds`` reports the mean over the kinds of clients, each counting alike,
  ``kinds_worst`` the worst of them, and ``kinds_0``, ... each of up to
  ``MOST_ENTRIES``.

  Args:
    counts: protocol -> counts, leaves [N, ...].
    task: the task, whose sums they are.

  Returns:
    protocol -> metric -> [N].
  """
  table: dict[str, dict[str, np.ndarray]] = {}
  values = {
    protocol: summarize_counts(task, protocol_counts)
    for protocol, protocol_counts in counts.items()
  }
  for protocol, of_protocol in values.items():
    if protocol == "kinds":
      table |= _mean_and_worst(of_protocol, task.main)
      continue
    table |= (
      _best_and_mean(protocol, of_protocol, task.main)
      if protocol in evaluate.PER_MODEL
      else {protocol: of_protocol}
    )
  if {"global_mean", "validation"} <= set(table):
    table[GLOBAL_CHOSEN] = _pick_best(values["global"], values["validation"], task.main)
  return table


class Records:
  """The tables of one run, in memory and, if a folder is given, on disk."""

  def __init__(
    self,
    folder: pathlib.Path | None,
    seeds: Sequence[int],
    cohort: int,
    server: Sequence[str],
    num_groups: int | None = None,
    privacy: Mechanism | None = None,
    metrics: Metrics = CLASSIFICATION.metrics,
    feature_flops: float = 0.0,
  ):
    """Makes empty tables; nothing is written yet.

    Args:
      folder: folder of the run; None keeps the tables in memory only.
      seeds: seeds of the run.
      cohort: S.
      server: columns for the server's report, see ``server_names``.
      num_groups: K; None if the method does not group clients, which omits
        groups.csv.
      privacy: what every round releases; None if nothing is private, which
        omits the column ``epsilon`` of rounds.csv.
      metrics: those of the run's task.
      feature_flops: operations of all clients' features, before the first round.
    """
    self.metrics = metrics
    self.feature_flops = feature_flops
    self.privacy = privacy
    self.folder, self.seeds, self.cohort = folder, list(seeds), cohort
    self.columns = {
      "metrics": METRICS,
      "rounds": (
        "round",
        "seed",
        *ROUND_COST,
        *TOTALS,
        *server,
        *(("epsilon",) if privacy else ()),
      ),
      "timing": TIMING,
    }
    self.num_groups = num_groups
    if num_groups is not None:
      self.columns["groups"] = group_columns(num_groups)
    self.tables: dict[str, list[Row]] = {name: [] for name in self.columns}
    #: why the run ended: "rounds", "stop_at ..." or "patience ..."
    self.stopped: str = "rounds"
    #: wall time, per seed, of the recorded rounds since the last evaluation
    self.unfinished_s = 0.0
    self._totals = {seed: dict.fromkeys(TOTALS, 0) for seed in self.seeds}
    #: of the files, as far as their rows are known here
    self._hashes = {name: self._hash(name) for name in self.columns}

  @property
  def rows(self) -> list[Row]:
    """The rows of metrics.csv."""
    return self.tables["metrics"]

  @property
  def evaluated(self) -> np.ndarray:
    """[E] int, the rounds that were run before each evaluation."""
    return np.array([row["round"] for row in self.tables["timing"]], int)

  def copy(self) -> "Records":
    """Copies the tables, which the run goes on to fill; without a folder."""
    records = copy.copy(self)
    records.folder = None
    records.tables = {name: list(rows) for name, rows in self.tables.items()}
    return records

  def path(self, name: str) -> pathlib.Path:
    """Returns the path of a table's file.

    Args:
      name: name of the table.

    Returns:
      The path.
    """
    assert self.folder is not None
    return self.folder / f"{name}.csv"

  def read(
    self,
    done: int,
    marks: Mapping[str, Mapping[str, object]],
    unfinished_s: float = 0.0,
  ) -> None:
    """Reads the tables that an interrupted run left, up to round ``done``.

    Args:
      done: rounds run before the checkpoint.
      marks: see ``_read_until``.
      unfinished_s: the attribute of this name at the checkpoint.

    Raises:
      OptionError: a table is missing, damaged, edited or lacks rows.
    """
    assert self.folder is not None
    self.tables = _read_until(self.folder, self.columns, self.seeds, done, marks)
    self.unfinished_s = unfinished_s
    for row in self.tables["rounds"]:
      self._totals[row["seed"]] = {name: row[name] for name in TOTALS}
    self._hashes = {name: self._hash(name) for name in self.columns}

  def _hash(self, name: str) -> "hashlib._Hash":
    """The hash of a table's file, to which those of further rows are added."""
    return hashlib.sha256(_as_bytes(self.tables[name], self.columns[name], header=True))

  def marks(self) -> dict[str, dict[str, object]]:
    """Returns each table's number of rows, and the sha256 of its file so far."""
    return {
      name: {"rows": len(rows), "sha256": self._hashes[name].hexdigest()}
      for name, rows in self.tables.items()
    }

  def written_marks(self, folder: pathlib.Path) -> dict[str, dict[str, object]]:
    """Returns ``marks`` of tables that were written to another folder."""
    return {
      name: {"rows": len(rows), "sha256": files.sha256(folder / f"{name}.csv")}
      for name, rows in self.tables.items()
    }

  def write(self) -> None:
    """Writes all tables atomically."""
    for name, columns in self.columns.items():
      write_rows(self.path(name), self.tables[name], columns)

  def sync(self) -> None:
    """Waits until the tables would outlast a power cut."""
    for name in self.columns:
      files.sync(self.path(name))

  def _append(self, name: str, rows: list[Row]) -> None:
    self.tables[name] += rows
    if self.folder is not None:
      raw = _as_bytes(rows, self.columns[name])
      _append(self.path(name), raw)
      self._hashes[name].update(raw)

  def _add_totals(self, row: Row) -> None:
    """Adds a row of rounds.csv to the totals of its seed, which it gets, too.

    The order of additions, and so the rounding, does not depend on how often
    a run is resumed.
    """
    total = self._totals[row["seed"]]
    cohort, lost = row.get(PRESENT, self.cohort), row.get(LOST, 0)
    for unit in ("floats", "bytes"):
      down, up = row[f"{unit}_down"], row[f"{unit}_up"]
      total[f"total_{unit}"] += cohort * (down + up) + lost * down
    total["total_bytes_up"] += cohort * row["bytes_up"]
    total["total_example_gradients"] += round(cohort * row["example_gradients"])
    total["total_central_flops"] += row["central_flops"]
    total["simulated_s"] += sum(row[name] for name in SIMULATED)
    row |= total

  def add_rounds(
    self, aux: RoundAux, start: int, count: int, seconds: float, evaluated: bool = True
  ) -> None:
    """Records the rounds since the previous call.

    Args:
      aux: report of the rounds, see ``round_rows``.
      start: rounds run before them.
      count: number of rounds.
      seconds: wall time of these rounds, all seeds together.
      evaluated: whether an evaluation follows; timing.csv has a row for each.
    """
    rows = round_rows(aux, start, count, self.seeds, self.cohort)
    for row in rows:
      self._add_totals(row)
    if self.privacy:
      for i in range(0, len(rows), len(self.seeds)):
        epsilon = self.privacy.epsilon_bound(rows[i]["round"])
        for row in rows[i : i + len(self.seeds)]:
          row["epsilon"] = epsilon
    columns = self.columns["rounds"]  # in the order of the file
    self._append("rounds", [{name: row[name] for name in columns} for row in rows])
    self.unfinished_s += seconds / len(self.seeds)
    if not evaluated:
      return
    timing = self.tables["timing"]
    before = timing[-1]["seconds"] if timing else 0.0
    self._append(
      "timing", [{"round": start + count, "seconds": before + self.unfinished_s}]
    )
    self.unfinished_s = 0.0

  def add_metrics(self, table: dict[str, dict[str, np.ndarray]]) -> None:
    """Records the evaluation after the last recorded round.

    Args:
      table: protocol -> metric -> [N], see ``metric_values``.
    """
    number = self.tables["rounds"][-1]["round"]
    columns = [
      (protocol, metric, np.asarray(values, np.float64).tolist())
      for protocol, of_protocol in table.items()
      for metric, values in of_protocol.items()
    ]
    self._append(
      "metrics",
      [
        {
          "round": number,
          "seed": seed,
          "protocol": protocol,
          "metric": metric,
          "value": values[i],
        }
        for i, seed in enumerate(self.seeds)
        for protocol, metric, values in columns
      ],
    )

  def add_groups(
    self,
    membership: np.ndarray,
    label_histogram: np.ndarray,
    kinds: np.ndarray | None = None,
  ) -> None:
    """Records the groups after the last recorded round.

    Args:
      membership: [N, C] int, see ``group_rows``.
      label_histogram: [C, L] int, see ``group_rows``.
      kinds: [C] int, see ``group_rows``.
    """
    assert self.num_groups is not None
    self._append(
      "groups",
      group_rows(
        membership,
        label_histogram,
        self.tables["rounds"][-1]["round"],
        self.seeds,
        self.num_groups,
        kinds,
      ),
    )

  def drop_evaluation(self) -> None:
    """Drops the evaluation after the last recorded round, as if there had been none.

    The files stay as they are, until ``write``.
    """
    timing = self.tables["timing"]
    last = timing.pop()
    self.unfinished_s += last["seconds"] - (timing[-1]["seconds"] if timing else 0.0)
    for name in {"metrics", "groups"} & self.tables.keys():
      self.tables[name] = [
        row for row in self.tables[name] if row["round"] != last["round"]
      ]
    self._hashes = {name: self._hash(name) for name in self.columns}

  def seconds_per_round(self) -> float:
    """The median over evaluations of the seconds per round and seed."""
    rows = [{"round": 0, "seconds": 0.0}, *self.tables["timing"]]
    times = [
      (b["seconds"] - a["seconds"]) / (b["round"] - a["round"])
      for a, b in zip(rows, rows[1:])
    ]
    return float(np.median(times))
