"""Whether a change of the code keeps the bits of runs.

  git switch main && python -m benchmarks.bits before.csv
  git switch mine && python -m benchmarks.bits after.csv --against=before.csv

Every algorithm of the registry runs a few rounds on digits, alone and with each
option that changes what clients and server exchange, who takes part, or how
clients are mapped; where an algorithm has several global models, it has three.
A line of the file is a run: its name, the hash of its final state, and the hash
of its tables of metrics and costs, or the message that refuses it. Bits are
those of one machine and one jaxlib, so both files come from the same ones.
``--presets=FILES`` adds short runs of flag files, as commands.
"""

import argparse
from collections.abc import Iterator, Sequence
import csv
import hashlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import fedjax_alg as fa
from fedjax_alg import registry

PRESETS = pathlib.Path("experiments/presets")

#: name of a variation -> options of the run.
VARIATIONS: dict[str, dict[str, Any]] = {
  "plain": {},
  "vmap": dict(map_clients="vmap"),
  "lanes": dict(map_clients="lanes"),
  **{
    aggregator: dict(aggregator=aggregator)
    for aggregator in (
      "median",
      "multi_krum",
      "geometric_median",
      "centred_clipping",
      "norm_bound",
    )
  },
  **{
    attack: dict(attack=f"{attack}:0.3")
    for attack in ("label_flip", "sign_flip", "scaled")
  },
  "attacked median": dict(attack="inner_product:0.3", aggregator="median"),
  "topk": dict(compress_up="topk:0.3"),
  "qsgd": dict(compress_up="qsgd:4", compress_down="qsgd:4"),
  "powersgd": dict(compress_up="powersgd:2"),
  "attacked topk": dict(
    compress_up="topk:0.3", attack="sign_flip:0.3", aggregator="trimmed_mean"
  ),
  "private": dict(private="fixed:noise=0.5"),
  "private adaptive": dict(private="adaptive:noise=0.5", sampling="poisson"),
  "private topk": dict(private="fixed:noise=0.5", compress_up="topk:0.3"),
  "uniform": dict(client_weights="uniform"),
  "dropout": dict(dropout=0.4),
  "stragglers": dict(stragglers="share:0.5"),
  "kept stragglers": dict(stragglers="kept:0.5"),
  "availability": dict(sampling="availability"),
  "adam": dict(client_optimizer="adam"),
  "early groups": dict(threshold=1),
  "anchors": dict(threshold=1, anchors="preferring"),
}

#: Options of an algorithm in all of its runs.
METHOD_OPTIONS: dict[str, dict[str, Any]] = {
  "ma_fsvrg": dict(num_models=3),
  "ga_fsvrg": dict(num_models=3),
  "fedgroup": dict(num_groups=3, centers="kmeans:3", pretrain_steps=2),
  "fedgrouprox": dict(num_groups=3, centers="kmeans:3", pretrain_steps=2),
  "ifca": dict(num_groups=3),
  "fesem": dict(num_groups=3),
  "cfl": dict(split_after=1, thresholds="fixed:10,0"),
  "flhc": dict(max_groups=3),
  "pacfl": dict(max_groups=3),
  "feddrift": dict(max_groups=3, step_rounds=2, variant="hierarchical:0.05"),
  "fedem": dict(num_components=3),
  "fedsoft": dict(num_groups=3),
  "fedacnnl": dict(model="mlp:8"),
  "pfedacnnl": dict(model="mlp:8"),
}


def cells() -> Iterator[tuple[str, str, dict[str, Any]]]:
  """The runs: (algorithm, variation, options)."""
  for name in registry.ALGORITHMS:
    for variation, options in VARIATIONS.items():
      yield name, variation, METHOD_OPTIONS.get(name, {}) | options
  for client in ("sgd", "svrg", "scaffold", "mime", "losac", "nova"):
    for server in ("adam", "conjugate_gradient"):
      yield "composed", f"{client} {server}", dict(client_update=client, server=server)
  for client in ("sgd", "svrg", "prox"):
    for grouping in ("model", "gradient"):
      yield (
        "composed",
        f"{client} {grouping}",
        dict(client_update=client, grouping=f"{grouping}:3,1"),
      )


def run(federation: fa.Federation, name: str, options: dict[str, Any]) -> list[str]:
  """A line of the file."""
  entry = registry.get(name)
  defaults: dict[str, Any] = {}
  if entry.rounds is None:
    defaults["rounds"] = 4
  if not entry.all_clients:
    defaults["cohort_size"] = 6
  if "local_steps" in entry.fields:
    defaults["local_steps"] = 3
  try:
    result = fa.run(name, federation, seeds=2, eval_every=2, **{**defaults, **options})
  except (fa.OptionError, fa.DataError) as error:
    return ["refused", " ".join(str(error).split())[:160]]
  except fa.NonFiniteError as error:
    return ["non-finite", " ".join(str(error).split())[:160]]
  times = {"seconds", "wall_s", "round_s"}
  digest = hashlib.sha256(
    json.dumps(
      {
        table: [{k: repr(v) for k, v in row.items() if k not in times} for row in rows]
        for table, rows in result.records.tables.items()
        if table != "timing"
      },
      sort_keys=True,
    ).encode()
  ).hexdigest()
  return [result.state_hash(), digest]


def of_preset(preset: pathlib.Path) -> list[str]:
  """A line of the file: the quick run of a flag file."""
  with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(
      [
        sys.executable,
        "-m",
        "experiments.run",
        f"--flagfile={preset.relative_to(PRESETS)}",
        "--rounds=4",
        "--num_seeds=1",
        "--eval_every=2",
        f"--out_dir={folder}/run",
      ],
      capture_output=True,
      text=True,
      check=False,
    )
    if done.returncode:
      return ["refused", done.stderr.strip().splitlines()[-1][:160]]
    summary = json.loads(pathlib.Path(folder, "run", "summary.json").read_text())
  return [summary["hashes"]["final_state"], summary["files"]["metrics.csv"]]


def main(argv: Sequence[str] | None = None) -> int:
  """Writes the file; the exit status is 1 if it differs from ``--against``."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("file", type=pathlib.Path)
  parser.add_argument(
    "--against", type=pathlib.Path, help="an earlier file, whose lines must be the same"
  )
  parser.add_argument("--only", default="", help="algorithms, with commas")
  parser.add_argument("--host_devices", type=int, default=0)
  parser.add_argument(
    "--presets",
    nargs="*",
    type=pathlib.Path,
    default=(),
    help="flag files, run as a command for four rounds",
  )
  options = parser.parse_args(argv)
  earlier = {}
  if options.against:
    with open(options.against, encoding="utf-8") as file:
      earlier = {(a, b): values for a, b, *values in csv.reader(file)}
  federation = fa.federate(
    "digits",
    partition="classes:4",
    num_clients=20,
    validation_clients=2,
    seed=1,
  )
  selection = set(filter(None, options.only.split(",")))
  different = 0
  with open(options.file, "w", encoding="utf-8") as file:
    lines = itertools.chain(
      (
        (
          name,
          variation,
          run(
            federation, name, dict(variation_options, host_devices=options.host_devices)
          ),
        )
        for name, variation, variation_options in cells()
        if not selection or name in selection
      ),
      (("preset", str(preset), of_preset(preset)) for preset in options.presets),
    )
    for name, variation, line in lines:
      csv.writer(file).writerow([name, variation, *line])
      file.flush()
      if options.against and earlier.get((name, variation)) != line:
        different += 1
        print("differs:", name, variation, earlier.get((name, variation)), line)
  print(f"{different} lines differ" if options.against else options.file)
  return int(bool(different))


if __name__ == "__main__":
  sys.exit(main())
