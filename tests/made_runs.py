"""Folders of runs that nobody run: their numbers are given."""

import json
import pathlib
import re

from flax import serialization
import numpy as np

from experiments.reproduction import suite
from fedjax_alg import metrics
from fedjax_alg.data.options import DataOptions
from fedjax_alg.hparams import field_values
from fedjax_alg.part import write_parts
from fedjax_alg.records import frames, summary, tables
from fedjax_alg.runs import result
from fedjax_alg.runs.options import RunOptions

#: Floats that a run sends in a round, simulated seconds that it takes.
FLOATS, SECONDS = 1000, 0.5


def write(
  folder,
  accuracy,
  *,
  algorithm="fedavg",
  loss=None,
  every=5,
  rounds=None,
  protocols=("global",),
  hparams=None,
  data=None,
  seeds=None,
  partition="P",
  clients=None,
  membership=None,
  floats=FLOATS,
  sent_bytes=None,
  run=None,
  cohort_size=2,
  stopped="rounds",
  identity=None,
):
  """Writes the folder of a finished run.

  Args:
    folder: where to.
    accuracy: [N, E], also that of every other metric but the loss.
    algorithm: its name.
    loss: [N, E]; by default 1 - accuracy.
    every: rounds between two evaluations.
    rounds: the E evaluated rounds; by default those that ``every`` makes.
    protocols: the protocols, which all have the same numbers.
    hparams: hyper-parameters.
    data: options of the data that are not the defaults.
    seeds: the N seeds; by default 0, 1, ...
    partition: the hash of the partition.
    clients: [N, C], accuracies of the clients for protocol local.
    membership: [N, C], groups of the clients.
    floats: floats that are sent in a round.
    sent_bytes: bytes that are sent in a round; by default 4 * ``floats``.
    run: options of the run that are not the defaults.
    cohort_size: S.
    stopped: why it ended.
    identity: its identity.

  Returns:
    The folder.
  """
  accuracy = np.asarray(accuracy, float)
  loss = 1 - accuracy if loss is None else np.asarray(loss, float)
  seeds = list(range(len(accuracy))) if seeds is None else list(seeds)
  rounds = np.array(rounds or every * np.arange(1, accuracy.shape[1] + 1))
  values = {name: loss if name == "loss" else accuracy for name in metrics.METRICS}
  rows = [
    dict(round=number, seed=seed, protocol=protocol, metric=name, value=of[i, e])
    for e, number in enumerate(rounds.tolist())
    for i, seed in enumerate(seeds)
    for protocol in protocols
    for name, of in values.items()
  ]
  folder.mkdir(parents=True, exist_ok=True)
  tables.write_rows(folder / "metrics.csv", rows)
  round_rows = [
    {
      "round": r,
      "seed": seed,
      **dict.fromkeys((*tables.ROUND_COST, "discrepancy", "train_loss"), 1.0),
      **dict.fromkeys(tables.TOTALS, 0.0),
      "total_floats": r * floats,
      "total_bytes": r * (sent_bytes or 4 * floats),
      "total_bytes_up": r * cohort_size,
      "simulated_s": r * SECONDS,
    }
    for r in range(1, rounds[-1] + 1)
    for seed in seeds
  ]
  tables.write_rows(folder / "rounds.csv", round_rows, list(round_rows[0]))
  timing = [{"round": r, "seconds": 0.1 * r} for r in rounds.tolist()]
  tables.write_rows(folder / "timing.csv", timing, tables.TIMING)
  if membership is not None:
    number = int(np.max(membership)) + 1
    group_rows = tables.group_rows(
      np.asarray(membership),
      np.eye(len(membership[0]), dtype=int),
      int(rounds[-1]),
      seeds,
      number,
    )
    tables.write_rows(folder / "groups.csv", group_rows, tables.group_columns(number))
  options = DataOptions(**(data or {}))
  facts = {
    "identity": identity,
    "algorithm": algorithm,
    "hparams": hparams or {},
    "data": write_parts(field_values(options)),
    "run": field_values(RunOptions(rounds=int(rounds[-1]), **(run or {}))),
    "model": "softmax",
    "seeds": seeds,
    "protocols": list(protocols),
    "plan": {
      "cohort_size": cohort_size,
      "clients": next(
        len(of[0])
        for of in (membership, clients, [[0] * cohort_size])
        if of is not None
      ),
    },
  }
  for part in ("hparams", "data", "run"):
    facts[part] = write_parts(facts[part])
  summary.write_sealed(folder / "config.json", facts)
  final = {
    "clients": {}
    if clients is None
    else {"local": {"accuracy": np.asarray(clients, float)}},
    "membership": None if membership is None else np.asarray(membership),
    "global_params": None,
  }
  (folder / "final.msgpack").write_bytes(serialization.msgpack_serialize(final))
  result.write_summary(
    folder,
    summary.as_json(
      {
        **summary.summarize_curves(tables.curves(rows), rounds, (0.9,), "accuracy"),
        "stopped": stopped,
        "cost": summary.cost(round_rows, cohort_size),
        "timing": {"steady_s_per_round": 0.1},
        "hashes": {
          "data": str(options.dataset),
          "partition": partition,
          "final_state": "S",
        },
        "versions": {"python": "3"},
        "device": "none",
        "identity": identity,
      }
    ),
  )
  return folder


def frames_of(rows):
  """The tables of runs.

  Args:
    rows: round, seed, perhaps protocol and partition; metrics, and columns of the
      rounds, the same for all protocols.
  """
  parts = {}
  for row in rows:
    parts.setdefault(row.get("partition", 0), []).append(row)
  keys = ("round", "seed", "protocol", "partition")
  made = []
  for of in parts.values():
    long = [
      {name: row[name] for name in keys[:3]} | {"metric": name, "value": value}
      for row in of
      if "protocol" in row
      for name, value in row.items()
      if name not in keys and metrics.is_known(name)
    ]
    rounds = {
      (row["round"], row["seed"]): {
        name: value
        for name, value in row.items()
        if name not in keys[2:] and not metrics.is_known(name)
      }
      for row in of
    }
    timing = [
      {"round": row["round"], "seconds": row.pop("seconds", 0.5)}
      for row in rounds.values()
    ]
    made.append(frames.make_frames(long, list(rounds.values()), timing))
  return frames.concatenate(made)


def outcome(
  cell,
  curves,
  columns=lambda number, value, protocol: {},
  protocols=("global",),
  targets=(0.98,),
  folder=None,
  of_round=None,
  **cost,
):
  """The outcome of a cell of a figure, without a folder of a run.

  Args:
    cell: the ``suite.Cell``.
    curves: [N, E], the accuracy of each seed in each round.
    columns: (round, accuracy, protocol) -> metrics, and columns of rounds.csv and
      timing.csv; the others are 0.5.
    protocols: the protocols.
    targets: of the summary.
    folder: a folder, if the run has one.
    of_round: accuracy -> further columns of rounds.csv.
    **cost: entries of the summary's cost.
  """
  curves = np.atleast_2d(np.asarray(curves, float))
  names = (*metrics.METRICS, *tables.ROUND_COST, *tables.TOTALS)
  rows = [
    {"round": i + 1, "seed": seed, "protocol": protocol}
    | dict.fromkeys(names, 0.5)
    | {"accuracy": value}
    | columns(i + 1, value, protocol)
    | (of_round(value) if of_round else {})
    for (i, seed), value in np.ndenumerate(curves.T)
    for protocol in protocols
  ]
  made = frames_of(rows)
  rounds = made.evaluated
  return suite.Outcome(
    cell,
    folder or pathlib.Path("nowhere"),
    made,
    {
      "rounds_to": summary.rounds_to(curves, rounds, targets, "accuracy"),
      "cost": {"rounds": curves.shape[1], **cost},
    },
  )


def finish(config):
  """Writes the folder of a ``Config`` whose rounds become better and better."""
  run = config.run
  rounds = [*range(run.eval_every, run.rounds, run.eval_every), run.rounds]
  write(
    pathlib.Path(config.out_dir),
    [[0.5 + 0.4 * number / run.rounds for number in rounds]] * len(run.seeds),
    rounds=rounds,
    protocols=run.eval_protocols,
    seeds=run.seeds,
    algorithm=config.algorithm,
    hparams=config.hparams,
    identity=config.identity,
    data=write_parts(field_values(config.data)),
  )


def read_traces(path):
  """The traces of every figure in a page of ``experiments.reports.page``."""
  text = path.read_text("utf-8")
  return [
    json.JSONDecoder().raw_decode(text, place.end())[0]
    for place in re.finditer(r'Plotly\.newPlot\(\s*"[^"]+",\s*', text)
  ]
