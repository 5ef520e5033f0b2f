"""FedAvg here and in the libraries that others maintain, side by side.

  python -m benchmarks.peers --data_dir=~/tensorflow_datasets

Each library runs in an environment of its own, which the command makes in
--envs with the versions of ``PEERS``; one that cannot be installed, or that
fails, is named with the reason. All get the same rows, the same parameters to
start from, and the same mini-batches in the same order, those that this library
draws with seed 0; all clients take part in every round. Three workloads:

- softmax regression on MNIST, 100 clients of power-law sizes, one epoch of
  batches of 10, learning rate 0.03;
- the CNN (two 3x3 convolutions of 16 and 32 channels, a hidden layer of 64
  units) on 10,000 images of CIFAR-10 over 100 clients by Dirichlet(0.5), one
  epoch of batches of 20, learning rate 0.05;
- LoRA: adapters of rank 8 for queries and values of the small transformer, whose
  other parameters are trained before and frozen, on tokens drawn by a seed
  (``benchmarks.adapters``), 40 clients, one epoch of batches of 16, learning rate
  1. FedJAX has no adapters. The others have those of PEFT, as in pfl-research's
  and Flower's examples of language models.

First every library runs one round: its parameters are compared with ours, and
what it computes has to be the same (``peer_sides.Work``: the parameters that are
trained and all of them, the examples read, the loss at the start). Then the
libraries run in turn, --repeats times: seconds from the start of the process to
the end of the first round, the median of the later rounds (with a barrier) in
seconds and in CPU seconds, the peak memory of the process (of Flower's processes
together), and the accuracy after the last round on the whole test set. Our first
start of a workload finds no compiled program, the later ones those of the first.
`taskset -c 1 python -m benchmarks.peers` gives every library one core.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import adapters, peer_sides, workloads
from fedjax_alg import data, models
from fedjax_alg.client import minibatches
from fedjax_alg.engine import sharding
from fedjax_alg.engine.keys import client_keys, run_keys
from fedjax_alg.models import roles
from fedjax_alg.records import parameters

SIDE = pathlib.Path(__file__).with_name("peer_sides.py")
TORCH = ("torch==2.13.0",)
PEFT = "peft==0.21.2"
#: Where PyTorch without CUDA is found.
INDEX = "https://download.pytorch.org/whl/cpu"
ENOUGH = 1e-5  #: difference of the parameters after a round, at most
CLIENTS, SEED, BLOCK = 100, 0, 1000


class Peer(NamedTuple):
  """A library and what pip installs for it."""

  title: str
  packages: tuple[str, ...]
  before: tuple[str, ...] = ()  #: installed first, from ``INDEX``, too
  python: str = "python3.11"


PEERS = {
  "fedjax": Peer("FedJAX", ("fedjax==0.0.17", "jax==0.10.2")),
  "pfl": Peer("pfl-research", ("pfl[pytorch]==0.6.0", PEFT), TORCH),
  "flower": Peer("Flower (Ray)", ("flwr[simulation]==1.42.0", PEFT), TORCH),
  "fluke": Peer(
    "fluke", ("fluke-fl==0.8.1",), (*TORCH, "torchvision==0.28.0"), "python3.12"
  ),
  "blazefl": Peer(
    "BlazeFL", ("blazefl[contrib,reproducibility]==2.0.3",), TORCH, "python3.12"
  ),
  "pfllib": Peer("PFLlib", ("pfllib",)),
  "flbench": Peer("FL-bench", ("fl-bench",)),
}
OURS = "fedjax_alg"


class Workload(NamedTuple):
  """A training workload."""

  title: str
  model: str
  rounds: int
  epochs: int
  batch: int
  rate: float
  #: the libraries that can do it; none: all
  peers: tuple[str, ...] = ()


WORKLOADS = {
  "softmax": Workload("Softmax regression", "softmax", 5, 1, 10, 0.03),
  "cnn": Workload("CNN", "cnn", 4, 1, 20, 0.05),
  "lora": Workload("LoRA", "lora", 6, 1, 16, 1.0, ("pfl", "flower")),
}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Parses the flags."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  workloads.add_flags(parser)
  parser.add_argument(
    "--envs",
    default="~/.cache/fedjax_alg/peers",
    help="folder of the libraries' environments",
  )
  parser.add_argument(
    "--peers", default=",".join(PEERS), help="libraries to compare with, of %(default)s"
  )
  parser.add_argument(
    "--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS
  )
  parser.add_argument(
    "--repeats", type=int, default=2, help="timed runs of each library"
  )
  parser.add_argument(
    "--threads",
    type=int,
    default=1,
    help="of PyTorch; Flower and BlazeFL train as many "
    "clients at once as there are cores",
  )
  parser.add_argument(
    "--limit", type=int, default=300, help="seconds that one run may take"
  )
  parser.add_argument("--out", help="a file for all that was measured (JSON)")
  args = parser.parse_args(argv)
  args.peers = args.peers.split(",")
  for name in args.peers:
    if name not in PEERS:
      parser.error(f"--peers={name}: not one of {', '.join(PEERS)}")
  if min(args.repeats, args.limit, args.threads) < 1:
    parser.error("--repeats, --limit and --threads must be at least 1")
  return args


def last_line(text: str) -> str:
  """The last line that says something, without the word ERROR."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1].removeprefix("ERROR: ") if lines else "no message"


def environment(peer: Peer, folder: pathlib.Path) -> tuple[str, str]:
  """Makes the environment of a library, or finds it.

  Returns:
    Its Python, or "" and the reason why there is none.
  """
  python, marker = folder / "bin" / "python", folder / "installed.txt"
  words = " ".join(peer.before + peer.packages)
  if marker.exists() and marker.read_text("utf-8") == words:
    return str(python), ""
  interpreter = shutil.which(peer.python) or (
    sys.executable if peer.python == "python3.11" else None
  )
  # That of pyenv may be a name alone.
  if (
    interpreter is None
    or subprocess.run([interpreter, "--version"], capture_output=True).returncode
  ):
    return "", f"there is no {peer.python} (PATH has to have one)"
  print(f"installing {peer.title} into {folder}", flush=True)
  install = [
    str(python),
    "-m",
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
  ]
  steps = [[interpreter, "-m", "venv", "--clear", str(folder)]]
  if peer.before:
    steps.append([*install, "--extra-index-url", INDEX, *peer.before])
  steps.append([*install, *peer.before, *peer.packages])
  for step in steps:
    done = subprocess.run(step, text=True, capture_output=True)
    if done.returncode:
      return "", last_line(done.stderr)
  marker.write_text(words, "utf-8")
  return str(python), ""


def federation(args: argparse.Namespace, model: str) -> data.Federation:
  """Deals the data of a workload."""
  if model == "lora":
    return adapters.federation()
  if model == "softmax":
    return workloads.powerlaw(args, clients=CLIENTS)
  examples = workloads.images(args, "cifar10")
  examples = dataclasses.replace(
    examples, x_train=examples.x_train[:10_000], y_train=examples.y_train[:10_000]
  )
  return workloads.dealt(
    examples,
    data.Dirichlet(0.5).deal(examples, CLIENTS, seed=0),
    "none",
  )


def orders(partition: data.Partition, rounds: int, epochs: int) -> np.ndarray:
  """The rows of every client in every pass, [rounds * epochs, N] int32."""
  size, first = partition.train_size, partition.train_offset
  most = int(size.max())

  @jax.jit
  def of_round(number: Any) -> Any:
    key = jax.random.fold_in(run_keys(SEED).work, number)

    def of_client(key, n):
      bits = minibatches.shuffle_bits(key)
      return jax.vmap(
        lambda epoch: minibatches.shuffle(
          bits, epoch, jnp.arange(most, dtype=jnp.int32) % n, n
        )
      )(jnp.arange(epochs, dtype=jnp.int32))

    return jax.vmap(of_client, out_axes=1)(
      client_keys(key, jnp.arange(len(size), dtype=jnp.int32)),
      jnp.asarray(size, jnp.int32),
    )

  passes = np.concatenate([of_round(number) for number in range(rounds)])
  result: np.ndarray = partition.train_order[
    np.concatenate(
      [passes[:, client, :n] + first[client] for client, n in enumerate(size)], 1
    )
  ].astype(np.int32)
  return result


def describe_work(work: dict[str, Any]) -> str:
  """What a side computes, in words."""
  return (
    f"{work['trained']:,.0f} of {work['total']:,.0f} parameters trained, "
    f"{work['examples']:,.0f} examples read, loss {work['loss']:.4f} at the start"
  )


def difference_of_work(work: dict[str, Any], ours: dict[str, Any]) -> str:
  """Why what a side computes is not what ours does; "" where it is."""
  counts = ("trained", "total", "examples")
  same = all(work[name] == ours[name] for name in counts)
  if same and abs(work["loss"] - ours["loss"]) <= ENOUGH * max(1, ours["loss"]):
    return ""
  return (
    f"computes something else: {describe_work(work)}, in place of {describe_work(ours)}"
  )


class Trial:
  """A workload: its job in a folder, and what the libraries did."""

  def __init__(self, args: argparse.Namespace, work: Workload, folder: pathlib.Path):
    fed = federation(args, work.model)
    shards = fed.data.train
    x, y, offset, size = (
      np.asarray(leaf) for leaf in (shards.x, shards.y, shards.offset, shards.size)
    )
    rows = np.concatenate([np.arange(o, o + n) for o, n in zip(offset, size)])
    self.args, self.work, self.folder = args, work, folder
    if work.model == "lora":
      self.model = roles.split(
        adapters.model(adapters.with_values(adapters.pretrain())), ["lora"]
      )
    else:
      self.model = models.as_model(work.model, fed.example_shape, fed.num_classes)
    self.start = self.model.init(run_keys(SEED).model)
    self.test = fed.data.whole_test
    self.title = (
      f"{work.title}, {fed.name}, {len(size)} clients of "
      f"{size.min()} to {size.max()} examples, {len(rows)} in all"
    )
    x, y = x[rows], y[rows]
    settings = {"heads": adapters.HEADS, "blocks": adapters.BLOCKS}
    self.settings = work._asdict() | settings
    self.held: dict[str, Any] = {
      "x": x,
      "y": y,
      "size": size,
      "order": orders(
        peer_sides.federation(x, y, size).partition, work.rounds, work.epochs
      ),
    }
    self.held |= {
      f"start:{name}": self.transpose(leaf)
      for name, leaf in parameters.flatten(self.start).items()
    }
    if self.model.roles:
      frozen = parameters.flatten(self.model.roles.frozen)
      self.held |= {f"frozen:{name}": leaf for name, leaf in frozen.items()}
    before = {key.replace("start:", "last:"): leaf for key, leaf in self.held.items()}
    self.title += f", {100 * self.accuracy(before):.2f} % right before the first round"

  def transpose(self, leaf: np.ndarray) -> np.ndarray:
    """A kernel of ours as [inputs, outputs], or back."""
    return leaf.T if self.work.model == "softmax" else leaf

  def run(self, name: str, python: str, rounds: int, cache: str) -> Any:
    """Runs a library; a dictionary, or the reason why there is none."""
    job, out = self.folder / f"{rounds}.npz", self.folder / "out.npz"
    if not job.exists():
      np.savez(
        job,
        json=json.dumps(
          self.settings | {"rounds": rounds, "threads": self.args.threads}
        ),
        **self.held,
      )
    out.unlink(missing_ok=True)
    env = {
      key: value
      for key, value in os.environ.items()
      if key not in ("PYTHONPATH", "JAX_PLATFORMS")
    } | {
      "JAX_COMPILATION_CACHE_DIR": str(self.folder / cache),
      "JAX_PLATFORMS": "cpu",
      "FLWR_TELEMETRY_ENABLED": "0",
      "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [python, str(SIDE), name, str(job), str(out)]
    if name == OURS:
      command[1:2] = ["-m", "benchmarks.peer_sides"]
    else:
      command.insert(1, "-I")
      del env["JAX_COMPILATION_CACHE_DIR"]
    began = time.time()
    try:
      done = subprocess.run(
        command, env=env, text=True, capture_output=True, timeout=self.args.limit
      )
    except subprocess.TimeoutExpired:
      return f"took longer than {self.args.limit} s"
    if done.returncode or not out.exists():
      return last_line(done.stderr)
    with np.load(out) as outputs:
      facts = json.loads(str(outputs["json"]))
      arrays = {key: outputs[key] for key in outputs.files if key != "json"}
    return facts | {"cold": facts["first_round"] - began, "arrays": arrays}

  def accuracy(self, arrays: dict[str, np.ndarray]) -> float:
    """The accuracy of the last model on the whole test set."""
    params = jax.tree_util.tree_map_with_path(
      lambda path, leaf: self.transpose(
        arrays["last:" + jax.tree_util.keystr(path, simple=True, separator="/")]
      ),
      self.start,
    )
    apply = jax.jit(self.model.apply)
    x, y = (
      np.asarray(leaf[: int(self.test.size.sum())])
      for leaf in (self.test.x, self.test.y)
    )
    right = [
      np.asarray(apply(params, x[at : at + BLOCK])).argmax(-1) == y[at : at + BLOCK]
      for at in range(0, len(y), BLOCK)
    ]
    return float(np.concatenate(right).mean())

  def measure(self, pythons: dict[str, str]) -> dict[str, Any]:
    """Compares a round of every library with ours, then times all in turn."""
    print(
      f"{self.title}; {sharding.available_cores()} cores, load average "
      f"{os.getloadavg()[0]:.1f}",
      flush=True,
    )
    results: dict[str, Any] = {}
    for name, python in pythons.items():
      outcome = self.run(name, python, 1, "checked")
      if isinstance(outcome, str):
        results[name] = {"reason": outcome}
      else:
        results[name] = {
          "versions": outcome["versions"],
          "work": outcome["work"],
          "cold": [],
          "cold_cpu": [],
          "seconds": [],
          "cpu_seconds": [],
          "peak_mb": 0.0,
          "arrays": outcome["arrays"],
        }
        results[name]["difference"] = max(
          float(np.abs(value - results[OURS]["arrays"][key]).max())
          for key, value in outcome["arrays"].items()
        )
        if reason := difference_of_work(outcome["work"], results[OURS]["work"]):
          results[name] = {"reason": reason}
      text = results[name].get("reason") or (
        f"{results[name]['difference']:.1e} from ours after one round; "
        f"{describe_work(outcome['work'])}"
      )
      print(f"  {name:12}{text}", flush=True)
      if name == OURS and isinstance(outcome, str):
        sys.exit(f"peers: {name}: {outcome}")
    for _ in range(self.args.repeats):
      for name in pythons:
        if "reason" in results[name]:
          continue
        outcome = self.run(name, pythons[name], self.work.rounds, "timed")
        if isinstance(outcome, str):
          results[name] = {"reason": outcome}
          continue
        results[name]["cold"].append(outcome["cold"])
        results[name]["cold_cpu"].append(outcome["first_cpu"])
        results[name]["seconds"] += outcome["seconds"][1:]
        results[name]["cpu_seconds"] += outcome["cpu_seconds"][1:]
        results[name]["peak_mb"] = max(results[name]["peak_mb"], outcome["peak_mb"])
        results[name]["accuracy"] = self.accuracy(outcome["arrays"])
        print(
          f"  {name:12}{outcome['cold']:6.1f} s ({outcome['first_cpu']:.1f} CPU s), "
          f"{1e3 * statistics.median(outcome['seconds'][1:]):8.1f} ms a round, "
          f"{1e3 * statistics.median(outcome['cpu_seconds'][1:]):8.1f} ms of CPU time",
          flush=True,
        )
    for side in results.values():
      side.pop("arrays", None)
    return {"title": self.title, "rounds": self.work.rounds, "sides": results}


def table(results: dict[str, Any]) -> str:
  """The table of a workload, in Markdown, from what was measured."""
  lines = [
    f"{results['title']}, {results['rounds']} rounds of all clients:",
    "",
    "| library | parameters after one round | first start, s (CPU s) | later "
    "starts | a round, ms (least, greatest) | times ours | CPU of a round, ms (times "
    "ours) | peak, MB | accuracy, % |",
    "|" + 9 * "---|",
  ]
  ours, ours_cpu = (
    statistics.median(results["sides"][OURS][key]) for key in ("seconds", "cpu_seconds")
  )
  for name, side in results["sides"].items():
    title = PEERS[name].title if name in PEERS else name
    if "reason" in side:
      lines.append(f"| {title} | not run: {side['reason']} " + "| - " * 7 + "|")
      continue
    versions = " ".join(f"{key} {value}" for key, value in side["versions"].items())
    gap = side["difference"]
    equal = (
      "ours"
      if name == OURS
      else (f"{gap:.0e} from ours" + (", not equal" if gap > ENOUGH else ""))
    )
    starts = [
      f"{wall:.1f} ({cpu:.1f})" for wall, cpu in zip(side["cold"], side["cold_cpu"])
    ]
    seconds = side["seconds"]
    middle, least, most = (
      1e3 * rule(seconds) for rule in (statistics.median, min, max)
    )
    cpu = statistics.median(side["cpu_seconds"])
    lines.append(
      f"| {title} ({versions}) | {equal} | {starts[0]} | "
      f"{', '.join(starts[1:]) or '-'} | {middle:,.0f} ({least:,.0f}, {most:,.0f}) | "
      f"{middle / 1e3 / ours:.2f} | "
      f"{1e3 * cpu:,.0f} ({cpu / ours_cpu:.2f}) | {side['peak_mb']:,.0f} | "
      f"{100 * side['accuracy']:.2f} |"
    )
  return "\n".join(lines)


def main() -> None:
  """Makes the environments, compares, and prints the tables."""
  args = parse()
  envs = pathlib.Path(args.envs).expanduser()
  pythons, missing = {OURS: sys.executable}, {}
  for name in args.peers:
    if not any(name in (WORKLOADS[work].peers or PEERS) for work in args.workloads):
      continue
    python, reason = environment(PEERS[name], envs / name)
    if python:
      pythons[name] = python
    else:
      missing[name] = {"reason": reason}
      print(f"{PEERS[name].title}: cannot be installed: {reason}")
  tables = {}
  for name in args.workloads:
    capable = (OURS, *(WORKLOADS[name].peers or PEERS))
    with tempfile.TemporaryDirectory() as folder:
      trial = Trial(args, WORKLOADS[name], pathlib.Path(folder))
      tables[name] = trial.measure(
        {peer: pythons[peer] for peer in capable if peer in pythons}
      )
    tables[name]["sides"] |= {
      peer: missing[peer] for peer in capable if peer in missing
    }
  if args.out:
    pathlib.Path(args.out).write_text(json.dumps(tables, indent=1), "utf-8")
  print("\n" + "\n\n".join(map(table, tables.values())))


if __name__ == "__main__":
  main()
