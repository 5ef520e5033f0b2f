"""Makes summary.json and partition.json, which summarize a run."""

from collections.abc import Iterable, Mapping
import functools
import hashlib
from importlib import metadata
import json
import pathlib
import platform
import resource
import subprocess
import sys
from typing import Any

import jax
import numpy as np

from fedjax_alg import files, metrics
from fedjax_alg._version import __version__
from fedjax_alg.base import NEVER
from fedjax_alg.data import partition_file, preprocessing
from fedjax_alg.data.federation import Federation
from fedjax_alg.errors import as_unicode
from fedjax_alg.metrics.distances import label_distances, subspace_angles
from fedjax_alg.metrics.groups import UNDEFINED
from fedjax_alg.records import folder as folder_lib
from fedjax_alg.records import scores, tables
from fedjax_alg.records.clients import MOST_IN_TEXT
from fedjax_alg.records.tables import ROUND_COST, SIMULATED, TOTALS, Records, Row


def write_text(path: pathlib.Path, text: str, durable: bool = False) -> None:
  """Writes a text file atomically.

  Args:
    path: the file.
    text: its content.
    durable: see ``files.replacing``.
  """
  with files.replacing(path, durable=durable) as partial:
    partial.write_text(as_unicode(text), encoding="utf-8")


def as_json(value: object) -> Any:
  """A value as it is read from JSON again: lists, None for NaN."""
  if isinstance(value, dict):
    return {k: as_json(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [as_json(v) for v in value]
  if isinstance(value, float) and not np.isfinite(value):
    return None
  return value


def write_json(path: pathlib.Path, facts: object) -> None:
  """Writes a JSON file atomically and durably; NaN, infinities become null.

  Args:
    path: the file.
    facts: its content.
  """
  write_text(path, json.dumps(as_json(facts), indent=1) + "\n", durable=True)


def write_sealed(path: pathlib.Path, facts: Mapping[str, object]) -> None:
  """Writes config.json or summary.json with its hash (``folder.seal``)."""
  write_json(path, folder_lib.seal(as_json(facts)))


def spread(values: Iterable[float | None]) -> dict[str, Any]:
  """``metrics.estimate_mean`` as an entry of JSON: "mean", "ci95" and "values"."""
  of = metrics.estimate_mean(values)
  return {"mean": of.mean, "ci95": of.ci95, "values": list(of.values)}


def rounds_to(
  curves: np.ndarray, rounds: np.ndarray, targets: tuple[float, ...], metric: str
) -> dict[str, Any]:
  """Finds the first evaluated round that reaches each target.

  Args:
    curves: [N, E'] of the metric.
    rounds: [E] int, the evaluated rounds.
    targets: values of the metric.
    metric: its name.

  Returns:
    target -> "values" (the round of each seed, None for a seed that does not
    reach the target), "reached" (the number of seeds that do) and "mean" (the
    mean round of these seeds).
  """
  out = {}
  for target in targets:
    firsts = [
      int(at) if np.isfinite(at) else None
      for at in tables.first_reaching(curves, rounds, metric, target)
    ]
    reached = [n for n in firsts if n is not None]
    out[f"{target:.2f}" if round(target, 2) == target else f"{target:g}"] = {
      "values": firsts,
      "reached": len(reached),
      "mean": float(np.mean(reached)) if reached else None,
    }
  return out


def summarize_curves(
  curves: Mapping[str, Mapping[str, np.ndarray]],
  rounds: np.ndarray,
  targets: tuple[float, ...],
  main: str,
) -> dict[str, object]:
  """Makes final, best, mean_last_10 and rounds_to of summary.json.

  The first three are scores (``scores.score``); the round of ``best`` is chosen
  on test data, as in the papers. The targets are those of the first protocol.

  Args:
    curves: protocol -> metric -> [N, E'], see ``tables.curves``.
    rounds: [E] int, the evaluated rounds.
    targets: values of the main metric for rounds_to.
    main: the main metric of the run's task.

  Returns:
    The four entries.
  """

  def spreads(name):
    return {
      protocol: {
        metric: spread([scores.score(name, curve, rounds, metric) for curve in of])
        for metric, of in of_protocol.items()
      }
      for protocol, of_protocol in curves.items()
    }

  first = next(iter(curves.values()))
  return {
    "final": spreads("final"),
    "best": spreads("best"),
    "mean_last_10": spreads("last_10"),
    "rounds_to": rounds_to(first[main], rounds, targets, main),
  }


def groups(rows: list[Row], num_groups: int) -> dict[str, object]:
  """Makes groups of summary.json from the last round in groups.csv.

  Args:
    rows: rows of groups.csv.
    num_groups: K.

  Returns:
    Spreads over seeds of assigned, purity, ari and empty_groups, and the
    sizes of the groups; ``agreement``, why purity and ari are NaN though
    clients have groups, if they are.
  """
  last = [r for r in rows if r["round"] == rows[-1]["round"]]
  return {
    **{name: spread([r[name] for r in last]) for name in ("assigned", "purity", "ari")},
    "empty_groups": spread([num_groups - r["used"] for r in last]),
    "sizes": [
      [size for name, size in r.items() if name.startswith("size_")] for r in last
    ],
    **(
      {"agreement": UNDEFINED}
      if any(r["assigned"] and np.isnan(r["purity"]) for r in last)
      else {}
    ),
  }


def cost(
  rounds: list[Row], cohort: int, feature_flops: float = 0.0
) -> dict[str, object]:
  """Makes cost of summary.json.

  Args:
    rounds: rows of rounds.csv.
    cohort: S.
    feature_flops: operations of all clients' features, before the first round.

  Returns:
    Spreads over seeds of the totals after the last round, and of the simulated
    times of a mean participant, summed over all rounds; ``last_round``, the
    cost of the last round, averaged over seeds; ``clients_per_round``;
    ``rounds``; and ``feature_flops``, where they are counted.
  """
  number = rounds[-1]["round"]
  last = [row for row in rounds if row["round"] == number]
  return {
    **{name: spread([row[name] for row in last]) for name in TOTALS},
    **{
      # Every round has a row of each seed, in their order.
      name: spread(
        [sum(row[name] for row in rounds[i :: len(last)]) for i in range(len(last))]
      )
      for name in SIMULATED
    },
    "last_round": {
      name: float(np.mean([row[name] for row in last])) for name in ROUND_COST
    },
    "clients_per_round": cohort,
    "rounds": number,
    **({"feature_flops": feature_flops} if feature_flops else {}),
  }


def summary(
  records: Records,
  *,
  targets: tuple[float, ...],
  compile_s: float,
  hashes: dict[str, str],
  identity: str | None,
) -> dict[str, object]:
  """Makes the content of summary.json of a finished run.

  Args:
    records: tables of the run.
    targets: values of the main metric for rounds_to.
    compile_s: compile time in seconds.
    hashes: sha256 of the data, the partition and the final state.
    identity: hash of the command line's flags; None for a run from Python.

  Returns:
    A dictionary that can be written as JSON.
  """
  steady = records.seconds_per_round()
  extra = {}
  if records.num_groups is not None:
    extra["groups"] = groups(records.tables["groups"], records.num_groups)
  if records.privacy:
    extra["privacy"] = records.privacy.facts(records.tables["rounds"][-1]["round"])
  measured = {}
  if records.rows:  # empty if only the caller's own measures were evaluated
    rounds = records.tables["rounds"]
    measured = summarize_curves(
      tables.curves(records.rows), records.evaluated, targets, records.metrics.main
    ) | {"cost": cost(rounds, records.cohort, records.feature_flops)}
  return {
    **measured,
    **extra,
    "stopped": records.stopped,
    "timing": {
      "compile_s": compile_s,
      "steady_s_per_round": steady,
      "seconds_per_round_all_seeds": steady * len(records.seeds),
    },
    "peak_memory_mb": peak_memory_mb(),
    "versions": versions(),
    "device": device(),
    "hashes": hashes,
    "identity": identity,
  }


#: Clients between which angles are measured, at most.
_MOST_SUBSPACES = 100


def _subspace_angles(federation: Federation) -> dict[str, object]:
  """The angles between clients of kinds whose examples differ; {}: there are none.

  They are of the first clients of each kind, ``_MOST_SUBSPACES`` in all.
  """
  kinds, train = federation.kinds, federation.data.train
  if (
    kinds is None
    or not 1 < kinds.number <= _MOST_SUBSPACES
    or federation.options.kinds.LABELS_ONLY
    or federation.kinds_of_steps is not None
    or federation.rows is not None
    or isinstance(train.x, dict)
    or train.x.dtype.kind != "f"
  ):
    return {}
  each = _MOST_SUBSPACES // kinds.number
  members = [
    client
    for kind in range(kinds.number)
    for client in np.flatnonzero((kinds.of_client == kind) & (train.size > 0))[:each]
  ]
  if len(members) < 2:
    return {}
  return subspace_angles(
    [federation.client(federation.client_names[client])[0] for client in members],
    kinds.of_client[members],
  )


def partition_facts(federation: Federation) -> dict[str, object]:
  """Makes the content of partition.json.

  Args:
    federation: the clients.

  Returns:
    The partition with its options, the hashes, the numbers of rows of each
    client, their names (if the data name them), their kinds (those of the first
    step, and the schedule, if they change), the label histogram, the distances of
    the clients' label distributions and, of kinds whose examples differ, the angles
    between the clients' subspaces; of very many clients without the lists of all
    clients. The rows are in partition.npz.
  """
  partition, histogram = federation.partition, federation.label_histogram
  held_out = partition.held_out
  extra: dict[str, object] = {}
  if held_out is not None:
    names = federation.validation_names
    extra = {
      "validation_clients": (held_out.clients if names is None else names).tolist(),
      "validation_size": held_out.train_size.tolist(),
    }
  joins = federation.data.train.joins
  if joins is not None:
    extra["joins"] = [
      None if after == NEVER else after for after in np.asarray(joins).tolist()
    ]
  kinds = federation.kinds
  few = partition.num_clients <= MOST_IN_TEXT
  if kinds is not None:
    extra["kinds"] = {
      "option": str(federation.options.kinds),
      "names": list(kinds.names),
      "clients": kinds.sizes().tolist(),
      "same_labels": kinds.same_labels,
      **({"of_client": kinds.of_client.tolist()} if few else {}),
    }
  of_steps = federation.kinds_of_steps
  if of_steps is not None:
    extra["concepts"] = {
      "option": str(federation.options.concepts),
      "steps": len(of_steps),
      **({"schedule": of_steps.tolist()} if few else {}),
    }
  stay = None if kinds is None or of_steps is not None else kinds.of_client
  distances = label_distances(histogram, stay)
  if distances:
    extra["label_distances"] = distances
  angles = _subspace_angles(federation)
  if angles:
    extra["subspace_angles"] = angles
  if few and federation.names_in_data is not None:
    extra["names"] = federation.names_in_data.tolist()
  if few:
    extra |= {
      "train_size": partition.train_size.tolist(),
      "test_size": partition.test_size.tolist(),
      "label_histogram": histogram.tolist(),
    }
  return {
    "name": partition.name,
    "flags": partition.flags,
    "hash": federation.hashes["partition"],
    "data_hash": federation.hashes["data"],
    "pooled": partition.pooled,
    "clients": partition.num_clients,
    **extra,
    "label_histogram_hash": _hash_of_counts(histogram),
  }


def _hash_of_counts(histogram: np.ndarray) -> str:
  """The sha256 of counts [C, L] as int64, some clients at a time."""
  digest = hashlib.sha256()
  for begin in range(0, len(histogram), 2**16):
    digest.update(histogram[begin : begin + 2**16].astype(np.int64).tobytes())
  return digest.hexdigest()


def write_partition(folder: pathlib.Path, federation: Federation) -> None:
  """Writes partition.json, for people, and partition.npz, to be used again.

  With ``features=standardize`` also scaler.npz: ``mean`` and ``factor`` of each
  input, float64. If kinds follow a schedule, also concepts.cp, the schedule. If
  the data have names, also encoding.json (``data.preprocessing``).

  Args:
    folder: folder of the run.
    federation: the clients.
  """
  # Not write_json: one number a line takes seconds for 100,000 clients.
  write_text(folder / "partition.json", json.dumps(partition_facts(federation)) + "\n")
  partition_file.write_partition_file(
    folder / "partition.npz", federation.partition, federation.labels
  )
  of_steps = federation.kinds_of_steps
  if of_steps is None:
    (folder / "concepts.cp").unlink(missing_ok=True)
  else:
    text = "".join(" ".join(map(str, row)) + "\n" for row in of_steps.tolist())
    write_text(folder / "concepts.cp", text)
  preprocessing.write_encoding(folder, federation.encoding)
  if federation.scaler is None:
    (folder / "scaler.npz").unlink(missing_ok=True)
    return
  with files.replacing(folder / "scaler.npz") as partial:
    with open(partial, "wb") as file:
      np.savez(file, mean=federation.scaler.mean, factor=federation.scaler.factor)


def peak_memory_mb() -> float:
  """The peak memory of this process plus that of the accelerator, in MB."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  mb = peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
  if jax.default_backend() != "cpu":
    stats = jax.devices()[0].memory_stats() or {}
    mb += stats.get("peak_bytes_in_use", 0) / 2**20
  return round(mb, 1)


#: Packages whose versions decide the numbers of a run.
_PACKAGES = ("jax", "jaxlib", "optax", "flax", "chex", "numpy", "scipy")


@functools.cache
def _commit() -> str | None:
  """The git commit of this package, with "-dirty" after uncommitted changes.

  None if git does not know the package: an installed copy may lie in a folder
  of somebody else's repository.
  """
  file = pathlib.Path(__file__)

  def git(*words: str) -> str:
    return subprocess.run(
      ["git", "--no-optional-locks", "-C", str(file.parent), *words],
      capture_output=True,
      text=True,
      check=True,
      timeout=10,
    ).stdout.strip()

  try:
    git("ls-files", "--error-unmatch", file.name)
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
  except (OSError, subprocess.SubprocessError):
    return None


@functools.cache
def _package_versions() -> dict[str, str]:
  """The versions of ``_PACKAGES``, which are read from files."""
  return {name: metadata.version(name) for name in _PACKAGES}


def versions() -> dict[str, str]:
  """The versions of this package, of ``_PACKAGES`` and Python, and the commit."""
  commit = _commit()
  return {
    "fedjax_alg": __version__,
    **_package_versions(),
    "python": platform.python_version(),
    **({} if commit is None else {"commit": commit}),
  }


def device() -> str:
  """Describes the devices in words."""
  first = jax.devices()[0]
  return f"{jax.device_count()} x {first.device_kind} ({first.platform})"
