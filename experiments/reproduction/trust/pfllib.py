"""PFLlib's table: personal layers on Fashion-MNIST, 20 clients.

Zhang et al. (JMLR 2025), the public page of their library; settings and data are those
of its code (TsingZ0/PFLlib at d832e76f: dataset/utils/dataset_utils.py,
generate_FashionMNIST.py, system/main.py, system/flcore). The same draws are made here,
so every client has the same images: the 70,000 of both splits are dealt by NumPy's
global generator with seed 1, and a quarter of each client's images is for testing.
Further partitions are dealt with the next seeds, and have other initial weights.

All clients train in every round, for one epoch in batches of 10 at a rate of 0.005.
The initial weights are drawn as PyTorch draws them. A number is the best round's share
of all test images that the clients' models classify correctly. Differences: the code
leaves out the last batch of an epoch if it is not full. It runs 2,000 rounds, and a run
here ends ``PATIENCE`` rounds after its best one.
"""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
from typing import Any, NamedTuple
import warnings

import numpy as np

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.base import initial_shapes
from fedjax_alg.data import Examples
from fedjax_alg.records import tables

from .. import answers, figures, pages, report
from . import images

NAME = "pfllib"
CLIENTS = 20
MODEL = fa.Stack(("valid5-32", "max2", "valid5-64", "max2", "dense512"))
#: The most rounds, those of the code.
ROUNDS = 2000
#: A run ends when so many rounds have had no new best accuracy. Chosen before the first
#: run of a whole curve.
PATIENCE = 8
#: For the digits of scikit-learn.
_QUICK = fa.Stack(("valid3-4", "max2", "dense16"))
#: The last layer stays with its client.
_HEAD = {"roles": {"personal": "Dense_1"}}
#: label -> algorithm and its options.
METHODS: dict[str, tuple[str, Mapping[str, Any]]] = {
  "FedAvg": ("fedavg", {}),
  "FedPer": ("fedper", _HEAD),
  "FedRep": ("fedrep", _HEAD),
}


def deal_two_labels(labels: np.ndarray, rng: np.random.RandomState) -> list[np.ndarray]:
  """Deals two classes to each client, in parts of random size (``pat``).

  Args:
    labels: [n].
    rng: draws the sizes.

  Returns:
    The rows of each client.
  """
  classes_left = np.full(CLIENTS, 2)
  rows: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
  classes = labels.max() + 1
  for label in range(classes):
    owners = np.flatnonzero(classes_left)[: int(np.ceil(2 * CLIENTS / classes))]
    images_of = np.flatnonzero(labels == label)
    even = len(images_of) / len(owners)
    least = min(40, len(labels) / CLIENTS / 2) // 1
    low = max(even / 10, least / classes)
    sizes = rng.randint(int(low), int(even), len(owners) - 1)
    for owner, part in zip(owners, np.split(images_of, np.cumsum(sizes))):
      rows[owner].append(part)
    classes_left[owners] -= 1
  return [np.concatenate(parts) for parts in rows]


def deal_dirichlet(labels: np.ndarray, rng: np.random.RandomState) -> list[np.ndarray]:
  """Deals each class by shares of Dirichlet(0.1) (``dir``).

  A client that has its even share of all images gets no more. The draws are repeated
  until each client has 40 images.

  Args:
    labels: [n].
    rng: shuffles the images of a class, and draws the shares.

  Returns:
    The rows of each client.
  """
  even = len(labels) / CLIENTS
  rows: list[list[int]] = [[]]
  while min(map(len, rows)) < int(min(40, even / 2)):
    rows = [[] for _ in range(CLIENTS)]
    for label in range(labels.max() + 1):
      images_of = np.flatnonzero(labels == label)
      rng.shuffle(images_of)
      shares = rng.dirichlet(np.full(CLIENTS, 0.1)) * [len(r) < even for r in rows]
      ends = (np.cumsum(shares / shares.sum()) * len(images_of)).astype(int)[:-1]
      for of_client, part in zip(rows, np.split(images_of, ends)):
        of_client.extend(part.tolist())
  return [np.array(of_client) for of_client in rows]


class LabelSkew(NamedTuple):
  """A column of the published table."""

  title: str
  deal: Any  #: (labels, rng) -> the rows of each client


PANELS = {
  "a": LabelSkew("two labels", deal_two_labels),
  "b": LabelSkew("Dirichlet 0.1", deal_dirichlet),
}


def make_federation(examples: Examples, deal: Any, number: int = 0) -> fa.Federation:
  """The clients with their training and test images.

  Args:
    examples: images of any shape; both splits are used.
    deal: see ``LabelSkew``.
    number: of the partition; 0 is that of the published numbers.
  """
  pixels = np.concatenate([examples.x_train, examples.x_test])
  labels = np.concatenate([examples.y_train, examples.y_test])
  x = pixels.astype(np.float32).reshape(*pixels.shape[:3], 1)
  x = 2 * x / x.max() - 1
  rng = np.random.RandomState(1 + number)
  train, test = [], []
  for rows in deal(labels, rng):
    mixed = rows[rng.permutation(len(rows))]
    quarter = len(rows) - int(0.75 * len(rows))
    test.append(mixed[:quarter])
    train.append(mixed[quarter:])

  def select(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    rows = np.concatenate(parts)
    ids = np.repeat(np.arange(len(parts)), list(map(len, parts)))
    return x[rows], labels[rows], ids

  x_test, y_test, client_test = select(test)
  return fa.federate(
    fa.from_arrays(
      *select(train), x_test=x_test, y_test=y_test, test_client_ids=client_test
    ),
    partition="natural",
    features="none",
  )


def draw_as_pytorch(model: Any, seed: int) -> Any:
  """Parameters uniform up to 1 / sqrt(inputs of a unit), weights and biases.

  Args:
    model: the model that has these parameters.
    seed: of the draws.
  """
  rng = np.random.default_rng(seed)
  shapes = initial_shapes(model.init)["params"]
  params = {}
  for name, leaves in shapes.items():
    limit = np.prod(leaves["kernel"].shape[:-1]) ** -0.5
    params[name] = {
      leaf: rng.uniform(-limit, limit, leaves[leaf].shape).astype(np.float32)
      for leaf in leaves
    }
  return {"params": params}


def train_until_flat(
  federation: fa.Federation,
  label: str,
  folder: pathlib.Path,
  model: fa.Stack = MODEL,
  rounds: int = ROUNDS,
  seed: int = 0,
) -> fa.RunResult:
  """Runs a method of ``METHODS``, or reads its finished run.

  Args:
    federation: see ``make_federation``.
    label: the method.
    folder: where the run is stored; an interrupted one continues.
    model: its last layer is ``Dense_1``.
    rounds: the most rounds.
    seed: of the run and of the initial weights.
  """
  name, options = METHODS[label]
  example, _ = federation.client(0)
  shapes = models.as_model(model, example.shape[1:], federation.num_classes, l2=0.0)
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "patience")  # test data decide, as published
    return fa.run(
      name,
      federation,
      model=model,
      l2=0.0,
      rounds=rounds,
      participation=1.0,
      evaluate=("local",),
      eval_every=1,
      patience=f"local:accuracy:{PATIENCE}",
      local_epochs=1,
      batch_size=10,
      client_lr=0.005,
      client_weights="examples",
      init=draw_as_pytorch(shapes, seed),
      seeds=[seed],
      out_dir=folder,
      **options,
    )


def read_accuracy(folder: pathlib.Path) -> np.ndarray:
  """The accuracy of each round of a run that has not ended, in percent."""
  return np.array(
    [
      100 * row["value"]
      for row in tables.read_rows(folder / "metrics.csv")
      if (row["protocol"], row["metric"]) == ("local", "accuracy")
    ]
  )


def _selected(request: figures.Request) -> Iterator[tuple[str, str]]:
  """The panels and methods that the user asks for; quick: without Dirichlet shares."""
  for letter in PANELS:
    for label in METHODS:
      if (
        letter in (request.panels or PANELS)
        and label in (request.lines or METHODS)
        and not (request.quick and letter == "b")
      ):
        yield letter, label


def personal_table(
  request: figures.Request, folder: pathlib.Path
) -> tuple[list[pages.Block], list[answers.PaperAnswer]]:
  """The table and its answers; quick: two rounds with digits, beside no claim."""
  loaded = images.load_images(request, "fashion_mnist")
  if isinstance(loaded, str):
    return [loaded], []
  claims = {(c.panel, c.method): c for c in report.load_claims("trust", NAME)}
  lines: list[list[str]] = []
  table_answers: list[answers.PaperAnswer] = []
  model, most_rounds = (_QUICK, 2) if request.quick else (MODEL, ROUNDS)
  for letter, label in _selected(request):
    claim = claims[letter, label]
    line = [f"{letter}: {PANELS[letter].title}", label, claim.printed]
    best, rounds = list[list[float]](), list[int]()
    for number in range(request.partitions or 1):
      place = folder / f"{letter}_{METHODS[label][0]}{f'_{number}' if number else ''}"
      if request.finished and not (place / "summary.json").is_file():
        if (place / "metrics.csv").is_file():
          so_far = read_accuracy(place)
          lines.append([*line, f"{so_far.max():.2f} so far", str(len(so_far))])
        continue
      federation = make_federation(loaded, PANELS[letter].deal, number)
      result = train_until_flat(federation, label, place, model, most_rounds, number)
      accuracy = 100 * np.asarray(result.metrics["local"]["accuracy"])
      best.append(accuracy.max(axis=1).tolist())
      rounds.append(int(result.rounds[-1]))
    if best:
      parts = best if len(best) > 1 else best[0]
      cell, new_answers = answers.of_accuracies(
        NAME, None if request.quick else claim, parts, max(rounds)
      )
      table_answers += new_answers
      ours = new_answers[0].ours if new_answers else cell
      lines.append([*line, ours, ", ".join(map(str, rounds))])
  return [
    "Best accuracy of the clients' models on the clients' test images in percent, one "
    f"run of each partition. A run ends when {PATIENCE} rounds have had no new best "
    "accuracy.",
    pages.PublishedNumbers(
      [pages.Table(["clients", "method", "published", "ours", "rounds"], lines)]
    ),
  ], table_answers
