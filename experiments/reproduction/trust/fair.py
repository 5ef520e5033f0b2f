"""Fairness on three classes of Fashion-MNIST: agnostic learning and q-FFL.

Three clients hold one class each: T-shirts, pullovers and shirts (Mohri et al., ICML
2019; Li et al., ICLR 2020). The settings are from the public code of the second
paper (litian96/fair_flearn at 0499a7d6): softmax regression on standardized pixels,
all clients in every round, one gradient step, a rate of 0.1 for the model and for the
weights of agnostic learning, 6,000 rounds. It does not say the batch size and q of
this data set; here they are 200 and 15.

The code's agnostic learning deploys the mean of all models so far and takes losses on
batches. Here it deploys the last model and takes the losses of all the examples.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import fedjax_alg as fa
from fedjax_alg.data import Examples

from .. import answers, figures, pages, report
from . import images

CLASSES = {"T-shirt": 0, "pullover": 2, "shirt": 6}
#: label -> value of --client_weights.
METHODS = {"FedAvg": "uniform", "agnostic": "agnostic:0.1", "q-FFL": "qffl:15"}
ROUNDS, SEEDS = 6000, 3


def select_classes(examples: Examples, classes: Mapping[str, int]) -> Examples:
  """Selects some classes, each of which is one client, with standardized pixels.

  Args:
    examples: images of any shape.
    classes: name -> label.

  Returns:
    The examples, x [n, pixels] float32. The means and deviations of the pixels are
    those of all training examples, of every class, as in the code (the option
    ``features=standardize`` takes those of the selected classes alone).
  """
  labels = list(classes.values())
  flat = np.asarray(examples.x_train, np.float32).reshape(len(examples.y_train), -1)
  mean, deviation = flat.mean(axis=0), flat.std(axis=0)

  def select(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    rows = np.isin(y, labels)
    pixels = np.asarray(x, np.float32)[rows].reshape(rows.sum(), -1)
    y = np.searchsorted(labels, np.asarray(y)[rows]).astype(np.int32)
    return (pixels - mean) / (deviation + 0.001), y

  x, y = select(examples.x_train, examples.y_train)
  x_test, y_test = select(examples.x_test, examples.y_test)
  return fa.from_arrays(
    x, y, client_ids=y, x_test=x_test, y_test=y_test, test_client_ids=y_test
  )


def measure_accuracies(
  examples: Examples, weights: str, rounds: int, seeds: int
) -> np.ndarray:
  """Trains with some weights of the clients.

  Args:
    examples: see ``select_classes``.
    weights: value of ``client_weights``.
    rounds: number of rounds.
    seeds: number of seeds.

  Returns:
    The accuracy of the last model on each client's test examples, [seeds, clients],
    in percent.
  """
  federation = fa.federate(examples, partition="natural", features="none")
  result = fa.run(
    "fedavg",
    federation,
    model="softmax",
    l2=0.0,
    rounds=rounds,
    cohort_size=federation.num_clients,
    seeds=seeds,
    evaluate=("local",),
    eval_every=rounds,
    local_steps=1,
    batch_size=200,
    client_lr=0.1,
    client_weights=weights,
  )
  return 100.0 * np.asarray(result.clients["local"]["accuracy"]).reshape(seeds, -1)


def fairness_table(
  request: figures.Request,
) -> tuple[list[pages.Block], list[answers.PaperAnswer]]:
  """The Markdown table and its answers; quick: three classes of digits, no claim."""
  classes, rounds, seeds = dict(CLASSES), ROUNDS, SEEDS
  if request.quick:
    classes, rounds, seeds = {"0": 0, "1": 1, "8": 8}, 20, 1
  loaded = images.load_images(request, "fashion_mnist")
  if isinstance(loaded, str):
    return [loaded], []
  examples = select_classes(loaded, classes)
  published = {(c.method, c.metric): c for c in report.load_claims("trust", "fair")}
  lines: list[list[str]] = []
  table_answers: list[answers.PaperAnswer] = []
  for label, weights in METHODS.items():
    accuracies = measure_accuracies(examples, weights, rounds, seeds)
    numbers = {"average": accuracies.mean(axis=1)} | dict(zip(classes, accuracies.T))
    lines.append([label])
    for name, values in numbers.items():
      claim = None if request.quick else published.get((label, f"{name}_accuracy"))
      cell, new_answers = answers.of_accuracies("fair", claim, values, rounds)
      lines[-1].append(cell)
      table_answers += new_answers
  return [
    f"Softmax regression, three clients of one class each, {rounds:,} rounds of one "
    f"step; accuracy of the last model on the clients' test examples in percent, "
    f"{seeds} seed{'s' * (seeds > 1)}, in parentheses the published number.",
    pages.PublishedNumbers([pages.Table(["method", "average", *classes], lines)]),
  ], table_answers
