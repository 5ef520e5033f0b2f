"""What a run leaves in its folder beside its tables: the summary."""

import hashlib
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
from typing import Any

import jax
import numpy as np

import fedjax_alg
from fedjax_alg.data.federation import Federation
from fedjax_alg.records.tables import Records, ROUND_COST, Row, SIMULATED
from fedjax_alg.records.tables import TOTALS
from fedjax_alg import metrics


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file whole or not at all."""
  partial = path.with_name(path.name + ".partial")
  partial.write_text(text, encoding="utf-8")
  os.replace(partial, path)


def as_json(value: Any) -> Any:
  """A value as it is read from JSON again: lists, None for NaN."""
  if isinstance(value, dict):
    return {k: as_json(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [as_json(v) for v in value]
  if isinstance(value, float) and not np.isfinite(value):
    return None
  return value


def write_json(path: pathlib.Path, facts: Any) -> None:
  """Writes JSON whole or not at all; NaN becomes null."""
  write_text(path, json.dumps(as_json(facts), indent=1) + "\n")


def by_seed(rows: list[Row], protocol: str, metric: str) -> np.ndarray:
  """[seeds, evaluated rounds] of one metric, in order of seed and round."""
  chosen = [r for r in rows if r["protocol"] == protocol]
  seeds = sorted({r["seed"] for r in chosen})
  return np.array([
      [r[metric] for r in sorted(
          (r for r in chosen if r["seed"] == seed), key=lambda r: r["round"])]
      for seed in seeds])


def factor(metric: str) -> float:
  """What a table multiplies a metric by: shares become percent."""
  return 1.0 if metric == "loss" else 100.0


def protocols(rows: list[Row]) -> list[str]:
  """The protocols of the rows, in order of appearance."""
  return list(dict.fromkeys(r["protocol"] for r in rows))


def spread(values: Any) -> dict[str, Any]:
  """Mean, half-width of the 95 % interval over seeds, and the values."""
  mean, ci95 = metrics.confidence_95(values)
  return {"mean": mean, "ci95": ci95, "values": [float(v) for v in values]}


def _aggregate(rows: list[Row], reduce: Any) -> dict[str, Any]:
  """protocol -> metric -> spread of ``reduce`` over a seed's curve."""
  return {protocol: {
      metric: spread([reduce(metric, curve)
                      for curve in by_seed(rows, protocol, metric)])
      for metric in metrics.METRICS} for protocol in protocols(rows)}


def rounds_to(rows: list[Row], targets: tuple[float, ...]) -> dict[str, Any]:
  """For each target, per seed the first evaluated round at or above it.

  Of the first protocol's accuracy; null where a seed never gets there, and
  the mean is over the seeds that do.
  """
  protocol = protocols(rows)[0]
  accuracy = by_seed(rows, protocol, "accuracy")
  numbers = sorted({r["round"] for r in rows})
  out = {}
  for target in targets:
    firsts = [next((n for n, value in zip(numbers, curve) if value >= target),
                   None) for curve in accuracy]
    reached = [n for n in firsts if n is not None]
    out[f"{target:.2f}" if round(target, 2) == target else f"{target:g}"] = {
        "values": firsts, "reached": len(reached),
        "mean": float(np.mean(reached)) if reached else None}
  return out


def summarise(rows: list[Row], targets: tuple[float, ...]) -> dict[str, Any]:
  """final, best, mean_last_10 and rounds_to of summary.json.

  ``best`` is each metric's best evaluated round (least for the loss), chosen
  on test data, as the papers do; ``mean_last_10`` averages the evaluations of
  the last ten rounds.
  """
  numbers = sorted({r["round"] for r in rows})
  late = np.array([n > numbers[-1] - 10 for n in numbers])

  def best(metric, curve):
    counted = curve[~np.isnan(curve)]  # nobody may have been at first
    curve = counted if counted.size else curve
    return curve.min() if metric == "loss" else curve.max()

  return {
      "final": _aggregate(rows, lambda _, curve: curve[-1]),
      "best": _aggregate(rows, best),
      "mean_last_10": _aggregate(rows, lambda _, curve: curve[late].mean()),
      "rounds_to": rounds_to(rows, targets)}


def groups(rows: list[Row], num_groups: int) -> dict[str, Any]:
  """groups of summary.json, from the last rows of groups.csv.

  Args:
    rows: groups.csv.
    num_groups: K.
  """
  last = sorted((r for r in rows if r["round"] == rows[-1]["round"]),
                key=lambda r: r["seed"])
  return {
      **{name: spread([r[name] for r in last])
         for name in ("assigned", "purity", "ari")},
      "empty_groups": spread([num_groups - r["used"] for r in last]),
      "sizes": [[size for name, size in r.items() if name.startswith("size_")]
                for r in last]}


def cost(
    rows: list[Row], cohort: int, rounds: list[Row]) -> dict[str, Any]:
  """cost of summary.json.

  Args:
    rows: metrics.csv.
    cohort: S.
    rounds: rounds.csv.

  Returns:
    The totals, each a spread over seeds: those of the last row, and of the
    simulated times a participant's mean in all rounds; ``last_round``, the
    mean over seeds of one round's share; clients_per_round; rounds.
  """
  final = rows[-1]
  last = [r for r in rows if r["round"] == final["round"]
          and r["protocol"] == final["protocol"]]
  return {
      **{name: spread([r[name] for r in last]) for name in TOTALS},
      **{name: spread([sum(r[name] for r in rounds if r["seed"] == end["seed"])
                       for end in last]) for name in SIMULATED},
      "last_round": {name: float(np.mean([r[name] for r in last]))
                     for name in ROUND_COST},
      "clients_per_round": cohort, "rounds": final["round"]}


def summary(
    records: Records, *, targets: tuple[float, ...], compile_s: float,
    hashes: dict[str, str], identity: str | None) -> dict[str, Any]:
  """summary.json of a finished run.

  Args:
    records: its tables.
    targets: accuracies for rounds_to.
    compile_s: seconds that compiling took.
    hashes: of data, partition and final state.
    identity: of the command line's flags; None: it had none.
  """
  steady = records.seconds_per_round()
  more = {}
  if records.num_groups is not None:
    more["groups"] = groups(records.tables["groups"], records.num_groups)
  measured = {}
  if records.rows:  # none where only measures of the caller's own were taken
    measured = summarise(records.rows, targets) | {"cost": cost(
        records.rows, records.cohort, records.tables["rounds"])}
  return {
      **measured,
      **more,
      "timing": {"compile_s": compile_s, "steady_s_per_round": steady,
                 "seconds_per_round_all_seeds": steady * len(records.seeds)},
      "peak_memory_mb": peak_memory_mb(), "versions": versions(),
      "device": device(), "hashes": hashes, "identity": identity}


def partition_facts(federation: Federation) -> dict[str, Any]:
  """partition.json: the split itself, its flags, hash and sizes."""
  partition, histogram = federation.partition, federation.label_histogram
  held = partition.held_out
  more: dict[str, Any] = {}
  if held is not None:
    more = {"validation_clients": held.clients.tolist(),
            "validation_order": held.train_order.tolist(),
            "validation_size": held.train_size.tolist(),
            "validation_test_order": held.test_order.tolist()}
  joins = federation.data.train.joins
  if joins is not None:
    more["joins"] = np.asarray(joins).tolist()
  return {
      "name": partition.name, "flags": partition.flags,
      "hash": federation.hashes["partition"], "pooled": partition.pooled,
      **{f"{split}_{what}": getattr(partition, f"{split}_{what}").tolist()
         for split in ("train", "test")
         for what in ("order", "offset", "size")}, **more,
      "label_histogram": histogram.tolist(),
      "label_histogram_hash": hashlib.sha256(histogram.tobytes()).hexdigest()}


def peak_memory_mb() -> float:
  """Largest resident memory of this process so far, plus the accelerator's."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  mb = peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
  if jax.default_backend() != "cpu":
    stats = jax.devices()[0].memory_stats() or {}
    mb += stats.get("peak_bytes_in_use", 0) / 2 ** 20
  return round(mb, 1)


def versions() -> dict[str, str]:
  """What produced a result."""
  found = {"fedjax_alg": fedjax_alg.__version__, "jax": jax.__version__,
           "numpy": np.__version__, "python": platform.python_version()}
  root = pathlib.Path(__file__).parent
  try:
    commit = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True,
        text=True, check=True, timeout=10).stdout.strip()
    found["commit"] = commit
  except (OSError, subprocess.SubprocessError):
    pass
  return found


def device() -> str:
  """The devices in words."""
  first = jax.devices()[0]
  return f"{jax.device_count()} x {first.device_kind} ({first.platform})"
