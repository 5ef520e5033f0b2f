"""Compares FedAvg of this library and of FedJAX 0.0.17 on one machine.

  pip install -e .[bench]
  python -m benchmarks.vs_fedjax --data_dir=~/tensorflow_datasets

The task is softmax regression, or the CNN (``--model=cnn``), with SGD on MNIST
over 1,000 clients (power law of FedProx), with 20 clients per round, 20 epochs
of batches of 10, learning rate 0.03 and no regularizer. Both libraries train
the same clients in the same rounds with the same number of local steps, epochs
* ceil(n_i / batch) for client i, on the devices that JAX takes by default. Each
library runs in a separate process with its best configuration, and waits while
the other one is measured:

- This library uses one device per core, and each trains its clients one after
  the other; on an accelerator the clients are mapped as ``--map_clients=auto``
  does. All rounds of a measurement are one program.
- FedJAX uses ``fed_avg`` with its default ``jit`` backend on one device, its
  SGD, a ``fedjax.Model`` of plain JAX functions (weights [784, 10], which is
  the faster layout for it; the CNN is this library's module), batches of NumPy
  arrays from memory, and asynchronous dispatch. Its ``pmap`` backend calls
  functions that JAX has removed. By default FedJAX takes ceil(epochs * n_i /
  batch) steps of full batches; here it is set to the number of steps above.
  ``jax.tree_map``, which FedJAX needs, is restored.

Process start, data loading, compilation (for FedJAX, its first client) and one
warm-up measurement are not timed. The accuracies on all clients' test data
after the last round show that both libraries have learnt equally well.
"""

import argparse
from collections.abc import Callable
import importlib.util
import json
import subprocess
import sys
from typing import Any

from benchmarks import timing, workloads
from benchmarks.fedavg_sides import MODELS, SIDES


def parse(argv: list[str] | None = None) -> argparse.Namespace:
  """Parses the flags; --side is for the worker processes only."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  workloads.add_flags(parser)
  parser.add_argument("--model", default="softmax", choices=MODELS)
  parser.add_argument(
    "--rounds",
    type=workloads.whole_number,
    default=30,
    help="rounds of one measurement",
  )
  parser.add_argument(
    "--repeats", type=workloads.whole_number, default=10, help="pairs of measurements"
  )
  parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
  return parser.parse_args(argv)


class Worker:
  """A process that measures one side on request."""

  def __init__(self, side: str, argv: list[str]):
    command = [sys.executable, "-m", "benchmarks.vs_fedjax", *argv]
    self._process = subprocess.Popen(
      [*command, f"--side={side}"],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.ready = self._answer()

  def _answer(self) -> dict[str, Any]:
    """Reads the next line of JSON and skips all other output."""
    assert self._process.stdout is not None
    for line in self._process.stdout:
      if line.startswith("{"):
        result: dict[str, Any] = json.loads(line)
        return result
    raise SystemExit("vs_fedjax: a worker died, its message is above")

  def measure(self, start: int) -> dict[str, Any]:
    """Measures the rounds from ``start`` on."""
    assert self._process.stdin is not None
    print(start, file=self._process.stdin, flush=True)
    return self._answer()

  def close(self) -> None:
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait()


def serve(args: argparse.Namespace) -> None:
  """Runs a worker: prepares, and then measures once per line of stdin."""
  measure, facts = SIDES[args.side](args)
  print(json.dumps(facts), flush=True)
  for line in sys.stdin:
    print(json.dumps(measure(int(line))), flush=True)


def compare(args: argparse.Namespace, argv: list[str]) -> None:
  """Measures the two sides alternately and prints the table."""
  workers = {side: Worker(side, argv) for side in SIDES}
  answers: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}

  def measure_of(side: str) -> Callable[[int], float]:
    def measure(repeat: int) -> float:
      answers[side].append(workers[side].measure(repeat * args.rounds))
      answer = answers[side][-1]
      microseconds: float = 1e6 * answer["seconds"] / answer["steps"]
      return microseconds

    return measure

  times = timing.in_turn({side: measure_of(side) for side in SIDES}, args.repeats + 1)
  for worker in workers.values():
    worker.close()
  work = [[answer["steps"] for answer in answers[side]] for side in SIDES]
  if work[0] != work[1]:
    raise SystemExit("vs_fedjax: the two sides did not do the same work")
  facts = {key: value for w in workers.values() for key, value in w.ready.items()}
  print(
    f"{facts['data']}; {args.model}; {facts['devices']}, "
    f"clients {facts['clients']}, JAX {facts['jax']}; "
    f"{sum(work[0]) / len(work[0]) / args.rounds:.0f} local steps a round "
    f"(FedJAX's own count: {facts['own_steps']:.0%} of them)"
  )
  print(f"{'microseconds per local step':28}    least     median   greatest")
  for side, values in times.items():
    print(
      f"{side:28}{timing.spread(values[1:]).text()}   compile "
      f"{workers[side].ready['compile']:.1f} s, accuracy "
      f"{answers[side][-1]['accuracy']:.3f}"
    )
  a, b = (times[side][1:] for side in SIDES)
  ratios = [theirs / ours for ours, theirs in zip(a, b)]
  print(f"{'FedJAX / fedjax_alg':28}{timing.spread(ratios).text()}")


def main() -> None:
  """Compares the two sides, or runs the worker of one of them."""
  args = parse()
  if args.side:
    serve(args)
    return
  if importlib.util.find_spec("fedjax") is None:
    sys.exit("vs_fedjax: FedJAX is not installed: pip install -e .[bench]")
  compare(args, sys.argv[1:])


if __name__ == "__main__":
  main()
