"""Times the comparison and clustering of n updates of P parameters.

  python -m benchmarks.similarity --updates=1000 --parameters=415258

The updates are drawn around --groups directions. EDC consists of the Gram
matrix, the points and k-means; MADC of the Gram matrix, the cosines, (7) and
complete linkage; CFL's split in two of the Gram matrix, the cosines and
complete linkage. The updates take 4 n P bytes.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import timing, workloads
from fedjax_alg import grouping
from fedjax_alg.engine import sharding


def parse() -> argparse.Namespace:
  """Parses the flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--updates", type=workloads.whole_number, default=100, help="n")
  parser.add_argument(
    "--parameters", type=workloads.whole_number, default=415258, help="P"
  )
  parser.add_argument("--groups", type=workloads.whole_number, default=5, help="m")
  parser.add_argument(
    "--repeats",
    type=workloads.whole_number,
    default=3,
    help="measurements of each step",
  )
  parser.add_argument(
    "--distances",
    default="",
    help="also these distances of the updates themselves, "
    f"separated by commas, of {', '.join(grouping.METRICS)}",
  )
  args = parser.parse_args()
  args.metrics = [name for name in args.distances.split(",") if name]
  for name in args.metrics:
    if name not in grouping.METRICS:
      parser.error(f"--distances={name}: of {', '.join(grouping.METRICS)}")
  return args


def draw(args: argparse.Namespace) -> jax.Array:
  """Draws updates [n, P]: one direction for each group, plus noise."""

  def rows(key):
    kind, noise = jax.random.split(key)
    kinds = jax.random.normal(kind, (args.groups, args.parameters))
    group = jnp.arange(args.updates) % args.groups
    return kinds[group] + jax.random.normal(noise, (args.updates, args.parameters))

  result: jax.Array = jax.block_until_ready(jax.jit(rows)(jax.random.key(0)))
  return result


def main() -> None:
  """Prints the table."""
  args = parse()
  sharding.use_host_cores()
  groups = args.groups
  mask = jnp.ones(args.updates, bool)
  rows = draw(args)
  print(
    f"{args.updates} updates of {args.parameters} parameters, {groups} "
    f"groups; {jax.devices()[0].device_kind}, JAX {jax.__version__}"
  )
  print(f"{'milliseconds':28}    least     median   greatest  compile s")
  medians = {}

  def step(name: str, fn: Callable[..., object], *inputs: object) -> Any:
    out, seconds, compile_seconds = timing.steady(fn, *inputs, repeats=args.repeats)
    medians[name] = seconds.median
    timing.row(name, seconds, compile_seconds)
    return out

  gram = step("Gram matrix", grouping.gram, rows, mask)
  points = step("EDC points", lambda g: grouping.edc_points(g, mask, groups), gram)
  step(
    "k-means on them",
    lambda e, key: grouping.kmeans(e, mask, key, groups),
    points,
    jax.random.key(1),
  )
  step("EDC distances", grouping.edc, points)
  cosine = step("cosines", grouping.cosine, gram)
  madc = step("MADC", grouping.madc, cosine, mask)
  for linkage in grouping.LINKAGES:
    step(
      f"{linkage} linkage",
      lambda d: grouping.agglomerate(d, mask, linkage, num_groups=groups),
      madc,
    )
  step(
    "CFL's split",
    lambda c: grouping.agglomerate(-c, mask, "complete", num_groups=2),
    cosine,
  )
  for metric in args.metrics:
    step(f"{metric} distances", lambda r: grouping.distances(r, mask, metric), rows)
  for name, names in {
    "EDC in all": ("Gram matrix", "EDC points", "k-means on them"),
    "CFL in all": ("Gram matrix", "cosines", "CFL's split"),
    "MADC in all": ("Gram matrix", "cosines", "MADC", "complete linkage"),
  }.items():
    total = sum(medians[part] for part in names)
    print(f"{name:28}{'':11}{1e3 * total:9.2f}")
  print(f"peak memory of the process: {timing.peak_megabytes():.0f} MB")


if __name__ == "__main__":
  main()
