"""Why FedAvg's 2NN is faster here than published: rates and initial weights.

McMahan et al. (AISTATS 2017, Table 1) need 87 rounds to 97 % on IID clients of MNIST,
and 664 with two classes for a client (C = 0.1, E = 1, B = 10). They state neither the
learning rates, which are the best of a grid, nor the initial weights. Here are the
rounds at four rates, and with four ways to draw the weights.
"""

from collections.abc import Mapping, Sequence
import csv
import pathlib
from typing import Any, NamedTuple
import warnings

import numpy as np

import fedjax_alg as fa
from fedjax_alg import files

from .. import answers, figures, pages
from . import images

NAME = "fedavg_2nn_why"
TARGET = 0.97
HIDDEN = (200, 200)
RATES = (0.03, 0.05, 0.1, 0.3)
#: Rates of the draws that are not the library's.
_FEW_RATES = (0.05, 0.3)
_BIASES = 0.1


def _uniform(rng: np.random.Generator, limit: float, shape: tuple[int, ...]) -> Any:
  return rng.uniform(-limit, limit, shape)


def _pytorch(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Any, Any]:
  limit = inputs**-0.5
  return _uniform(rng, limit, (inputs, outputs)), _uniform(rng, limit, (outputs,))


def _glorot(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Any, Any]:
  limit = (6 / (inputs + outputs)) ** 0.5
  return _uniform(rng, limit, (inputs, outputs)), np.zeros(outputs)


def _truncated(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Any, Any]:
  weights = rng.normal(size=(inputs, outputs))
  while (far := np.abs(weights) > 2).any():
    weights[far] = rng.normal(size=far.sum())
  return 0.1 * weights, np.full(outputs, _BIASES)


#: How initial weights are drawn -> the draw; None: as the library does.
DRAWS = {
  "LeCun's normal, no biases (here)": None,
  "PyTorch's uniform": _pytorch,
  "Glorot's uniform, no biases": _glorot,
  "normal 0.1 truncated, biases 0.1": _truncated,
}


class PublishedCase(NamedTuple):
  """Clients of the published table."""

  title: str
  published: int  #: rounds to 97 %
  options: Mapping[str, Any]  #: of the federation
  rounds: int  #: the most that are run
  seeds: int
  draws: Sequence[str] = tuple(DRAWS)


CASES = (
  PublishedCase("IID", 87, {"partition": "iid:size_sigma=0"}, 200, 3),
  PublishedCase(
    "two classes",
    664,
    {"partition": "shards:2"},
    900,
    1,
    tuple(DRAWS)[:1],
  ),
)


def draw_weights(name: str, inputs: int, outputs: int, seed: int) -> Any:
  """The initial parameters of the 2NN; None for the library's own."""
  draw = DRAWS[name]
  if draw is None:
    return None
  rng, sizes = np.random.default_rng(seed), (inputs, *HIDDEN, outputs)
  layers = [draw(rng, *pair) for pair in zip(sizes, sizes[1:])]
  return {
    "params": {
      f"Dense_{number}": {
        "kernel": np.asarray(kernel, np.float32),
        "bias": np.asarray(bias, np.float32),
      }
      for number, (kernel, bias) in enumerate(layers)
    }
  }


def count_rounds(
  federation: fa.Federation, draw: str, rate: float, rounds: int, seed: int
) -> float:
  """The first round whose test accuracy is at least the target; inf: none is."""
  inputs = federation.client(0)[0].shape[1]
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "stop_at")  # test data decide here, as published
    result = fa.run(
      "fedavg",
      federation,
      model=fa.MLP(HIDDEN),
      l2=0.0,
      rounds=rounds,
      participation=0.1,
      client_lr=rate,
      batch_size=10,
      local_epochs=1,
      seeds=[seed],
      evaluate=("global",),
      eval_every=1,
      stop_at=f"global:accuracy:{TARGET}",
      init=draw_weights(draw, inputs, federation.num_classes, seed),
    )
  accuracy = result.metrics["global"]["accuracy"][0]
  reached = result.rounds[accuracy >= TARGET]
  return float(reached[0]) if len(reached) else float("inf")


def make_table(
  request: figures.Request, folder: pathlib.Path
) -> tuple[list[pages.Block], list[answers.PaperAnswer]]:
  """The table of rounds; quick: twenty clients of digits, a few rounds."""
  loaded = images.load_images(request, "mnist")
  if isinstance(loaded, str):
    return [loaded], []
  lines, numbers = [], []
  for case in CASES:
    most = 2 if request.quick else case.rounds
    federation = fa.federate(
      loaded,
      num_clients=20 if request.quick else 100,
      features="flatten",
      **case.options,
    )
    for draw in case.draws:
      rates = RATES if DRAWS[draw] is None else _FEW_RATES
      cells = dict.fromkeys(RATES, "-")
      for rate in rates:
        rounds = [
          count_rounds(
            federation, draw, rate, 2 if request.quick else case.rounds, seed
          )
          for seed in range(1 if request.quick else case.seeds)
        ]
        print(f"{case.title}, {draw}, {rate:g}: {rounds}", flush=True)
        numbers.append([case.title, draw, rate, *rounds])
        cells[rate] = ", ".join(
          f"{number:g}" if np.isfinite(number) else f">{most}" for number in rounds
        )
      lines.append([case.title, case.published, draw, *cells.values()])
  path = folder / f"{NAME}_numbers.csv"
  with files.replacing(path) as partial, open(partial, "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["clients", "weights", "client_lr", "seed_0", "seed_1", "seed_2"])
    writer.writerows(numbers)
  return [
    "Rounds to 97 % by learning rate and initial weights, C = 0.1, one number for each "
    "seed.",
    pages.Table(
      ["clients", "published", "initial weights", *(f"rate {r:g}" for r in RATES)],
      lines,
    ),
  ], []
