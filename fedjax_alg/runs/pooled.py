"""A run on several partitions of the same data, as one result.

All seeds of a run share one partition, so an interval over them leaves out how
the rows were dealt and which were held out. Here every partition has one seed,
so an interval over the seeds covers both.
"""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import os
import pathlib
from typing import Any

import jax
import numpy as np

from fedjax_alg.base import Params
from fedjax_alg.data import client_names as names_lib
from fedjax_alg.data.federation import Federations
from fedjax_alg.errors import OptionError, RunFolderError, a_type
from fedjax_alg.hparams import plain
from fedjax_alg.records.tables import Records
from fedjax_alg.runs.result import RunResult


def seeds_of(federations: Federations, seeds: Any) -> tuple[int, ...]:
  """The seed of each partition.

  Args:
    federations: the P partitions.
    seeds: see ``run``: 1 or P, for 0, 1, ..., P - 1; or P seeds.

  Raises:
    OptionError: another number of seeds.
  """
  number, given_seeds = len(federations), plain(seeds)
  if isinstance(given_seeds, int) and given_seeds in (1, number):
    return tuple(range(number))
  if isinstance(given_seeds, (list, tuple)) and len(given_seeds) == number:
    return tuple(given_seeds)
  value = given_seeds if isinstance(given_seeds, int) else a_type(seeds)
  raise OptionError(
    f"`seeds`={value}: each of the {number} partitions has one seed, give none or "
    f"{number}"
  )


def refuse_rules(federations: Federations, options: Mapping[str, object]) -> None:
  """Refuses rules by which partitions would end in rounds of their own.

  Args:
    federations: the partitions.
    options: name -> value of the options of a run.

  Raises:
    OptionError: there are several partitions and a rule.
  """
  for name in ("stop_at", "patience"):
    rule = options.get(name)
    if rule is not None and len(federations) > 1:
      raise OptionError(
        f"`{name}`={rule}: the {len(federations)} partitions would end in different "
        f"rounds, without a common curve (allowed: None, or one partition)"
      )


def over_partitions(
  run: Callable[..., RunResult], federations: Federations, seeds: Any
) -> "PooledResult":
  """Runs every partition with its seed and pools the results.

  Args:
    run: (federation, seeds, name of its folder) -> result.
    federations: the partitions.
    seeds: see ``seeds_of``.

  Returns:
    The pooled result.
  """
  return PooledResult(
    [
      run(federation, (seed,), f"partition_{number}")
      for number, (federation, seed) in enumerate(
        zip(federations, seeds_of(federations, seeds))
      )
    ]
  )


class PooledResult(RunResult):
  """The runs of several partitions, one seed each, as one result.

  ``metrics``, ``clients`` and all else with an axis N of the seeds have an entry
  for each partition, so intervals over them cover the partition. Clients of two
  partitions are the same only where the data name them (`partition`=natural).

  Attributes:
    results: the result of each partition.
  """

  def __init__(self, results: Sequence[RunResult]):
    """Pools results.

    Args:
      results: runs of the same options, each of one seed that no other has.

    Raises:
      OptionError: they were evaluated in different rounds, or seeds are equal.
    """
    self.results = tuple(results)
    first = self.results[0]
    for result in self.results[1:]:
      if not np.array_equal(result.rounds, first.rounds):
        raise OptionError(
          "`partitions`: the runs were evaluated in different rounds "
          f"(up to {first.rounds[-1]} and {result.rounds[-1]}), so they have no common "
          "curve; no `callbacks` may end one of them before the others"
        )
    seeds = [seed for result in self.results for seed in result.seeds]
    if len(set(seeds)) < len(seeds):
      raise OptionError(f"`seeds`={seeds}: each partition needs a seed of its own")
    records = Records(
      None,
      seeds,
      first.facts["plan"]["cohort_size"],
      (),
      metrics=first.records.metrics,
      feature_flops=first.records.feature_flops,
    )
    records.columns = first.records.columns
    for name in records.columns:
      if name == "timing":
        records.tables[name] = first.records.tables[name]
        continue
      rows = [row for result in self.results for row in result.records.tables[name]]
      records.tables[name] = sorted(rows, key=lambda row: row["round"])
    records.stopped = first.records.stopped
    finals = [result._final for result in self.results]
    final: dict[str, Any] = {
      name: _stack([final[name] for final in finals])
      for name in ("clients", "membership", "measures", "global_params")
      if name in finals[0]
    }
    facts = first.facts | {
      "seeds": seeds,
      "partitions": [result.facts["data"]["partition_seed"] for result in self.results],
    }
    super().__init__(records, final, facts)

  def _part(self, seed: int) -> RunResult:
    """The run that has a seed."""
    return self.results[self._seed_index(seed)]

  @property
  def client_names(self) -> np.ndarray:
    """The names of the clients, if they are the same in all partitions.

    Raises:
      OptionError: they are not, for example because other clients are held out for
        validation; ``results`` has those of each partition.
    """
    first, *others = (result.client_names for result in self.results)
    if not all(np.array_equal(first, names) for names in others):
      raise OptionError(
        "`client_names`: the partitions have different clients; read those of "
        "`results`, one for each partition"
      )
    return first

  def position(self, client: Any, option: str = "client") -> int:
    names = self.client_names
    return names_lib.position_of(
      option, client, names_lib.index_names(names), len(names)
    )

  def _of_client(self, client: Any, protocol: str, metric: str) -> np.ndarray:
    if any(result._names_in_data is None for result in self.results):
      raise OptionError(
        f"`client`={client}: the data do not name their clients, so each partition "
        "has other ones (allowed: the clients of one of `results`)"
      )
    values = []
    for result in self.results:
      try:
        values.append(result._of_client(client, protocol, metric))
      except OptionError as error:  # perhaps a validation client of this partition
        unknown = error
    if not values:
      raise unknown
    return np.concatenate(values)

  def costs(self, column: str) -> np.ndarray:
    # Each partition has its own seconds; ``records`` has those of the first one.
    return np.concatenate([result.costs(column) for result in self.results])

  def to_frame(self, table: str = "metrics") -> Any:
    from fedjax_alg.records import frames  # pandas: half a second

    return frames.number_partitions(result.to_frame(table) for result in self.results)

  def client_params(self, client: int | str, seed: int = 0) -> Params:
    return self._part(seed).client_params(client)

  def predict(
    self,
    x: Any,
    client: int | str | None = None,
    proba: bool = False,
    *,
    model: int | None = None,
    seed: int = 0,
    best: bool = False,
  ) -> Any:
    return self._part(seed).predict(x, client, proba, model=model, best=best)

  def export(
    self,
    path: str | os.PathLike,
    format: str = "safetensors",
    *,
    client: int | str | None = None,
    model: int | None = None,
    seed: int | None = None,
  ) -> pathlib.Path:
    """Writes a model of one of the partitions, see ``RunResult.export``.

    Args:
      path: see ``RunResult.export``.
      format: see ``RunResult.export``.
      client: see ``RunResult.export``.
      model: see ``RunResult.export``.
      seed: index of the partition, whose seed has the same index in ``seeds``; it is
        needed.

    Returns:
      The path.

    Raises:
      OptionError: see ``RunResult.export``, or there is no ``seed``.
      RunFolderError: see ``RunResult.client_params``.
    """
    if seed is None:
      raise OptionError(
        f"`seed`: give which of the {len(self.results)} partitions, from 0, as each "
        "has a model of its own"
      )
    return self._part(seed).export(path, format, client=client, model=model)

  def state_hash(self) -> str:
    return _join([result.state_hash() for result in self.results])

  def summary(self) -> dict[str, Any]:
    """The hashes, those of all partitions together; see ``results`` for more."""
    hashes = [result.summary()["hashes"] for result in self.results]
    return {
      "stopped": self.stopped,
      "hashes": {name: _join([of[name] for of in hashes]) for name in hashes[0]},
    }

  def save(self, folder: str | os.PathLike) -> pathlib.Path:
    """Writes each run into a folder of its own, ``partition_0`` and so on.

    Args:
      folder: where to write; made if it does not exist.

    Returns:
      The folder.

    Raises:
      RunFolderError: see ``RunResult.save``.
    """
    path = pathlib.Path(folder)
    for number, result in enumerate(self.results):
      result.save(path / f"partition_{number}")
    return path

  @property
  def prepared(self) -> Any:
    raise RunFolderError(
      "a pooled result is of several runs; `results` has each of them"
    )

  def _state(self) -> Any:
    return self.prepared


def _stack(parts: Sequence[Any]) -> Any:
  """Trees with the seeds first, one after the other; None where they differ."""
  if parts[0] is None:
    return None
  shapes = [jax.tree.map(np.shape, part) for part in parts]
  if any(shape != shapes[0] for shape in shapes):
    return None
  return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _join(hashes: Sequence[str]) -> str:
  return hashlib.sha256(" ".join(hashes).encode()).hexdigest()
