"""The data of the benchmarks: MNIST, or synthetic data of the same shape."""

import argparse
import dataclasses
from typing import Any

import numpy as np

from fedjax_alg import data
from fedjax_alg.data.features import FEATURES
from fedjax_alg.part import of_type


def whole_number(text: str, least: int = 1) -> int:
  """The type of a flag that is a whole number from 1, or from ``least``."""
  number = int(text)
  if number < least:
    raise argparse.ArgumentTypeError(f"{text}: must be at least {least}")
  return number


def wholes(text: str) -> list[int]:
  """The same of several, separated by commas."""
  return list(map(whole_number, text.split(",")))


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags --data_dir and --cache_dir."""
  parser.add_argument(
    "--data_dir",
    default=None,
    help="TFDS folder with MNIST (python -m experiments.prepare); without "
    "MNIST a synthetic stand-in of its shape is used",
  )
  parser.add_argument(
    "--cache_dir",
    default=None,
    help="where decoded images are kept (default: in --data_dir)",
  )


def images(args: argparse.Namespace, name: str = "mnist") -> data.Examples:
  """Loads images from ``--data_dir``, or makes synthetic ones without it."""
  try:
    return data.load_tfds(name, args.data_dir, args.cache_dir)
  except data.DataError:
    return stand_in()


def stand_in(seed: int = 0) -> data.Examples:
  """Makes 60,000 + 10,000 grey images of 28 x 28 pixels in 10 classes.

  Every class has a fixed coarse pattern; an image is this pattern plus noise.
  """
  rng = np.random.default_rng(seed)
  coarse = rng.random((10, 7, 7), np.float32)
  patterns = np.kron(coarse, np.ones((1, 4, 4), np.float32))

  def split(n):
    y = rng.integers(0, 10, n, dtype=np.int32)
    noise = rng.random((n, 28, 28), np.float32)
    x = 255 * np.clip(patterns[y] * 0.6 + noise * 0.4, 0, 1)
    return x.astype(np.uint8)[..., None], y

  x_train, y_train = split(60_000)
  x_test, y_test = split(10_000)
  return data.Examples(
    x_train=x_train,
    y_train=y_train,
    x_test=x_test,
    y_test=y_test,
    num_classes=10,
    client_train=None,
    client_test=None,
    name="synthetic stand-in for MNIST",
  )


def write_npz(
  path: str, features: int, deviation: float, rows: dict[str, int], clients: int = 0
) -> None:
  """Writes Gaussian examples of ten classes as an npz.

  Args:
    path: the file.
    features: of an example.
    deviation: the deviation of the centres of the classes.
    rows: train and test -> how many examples.
    clients: how many clients have equally many of them; 0: they have no owners.
  """
  rng = np.random.default_rng(0)
  centres = deviation * rng.standard_normal((10, features), np.float32)
  arrays: dict[str, Any] = {}
  for part, number in rows.items():
    y = rng.integers(0, len(centres), number, dtype=np.int32)
    x = rng.standard_normal((number, features), np.float32)
    x += centres[y]
    arrays |= {f"x_{part}": x, f"y_{part}": y}
    if clients:
      arrays[f"client_{part}"] = np.repeat(
        np.arange(clients, dtype=np.int32), number // clients
      )
  np.savez(path, **arrays)


def dealt(
  examples: data.Examples, partition: data.Partition, features: str
) -> data.Federation:
  """Deals examples with features as a partition says."""
  compute = of_type("features", features, FEATURES).compute
  x_train, x_test = map(compute, (examples.x_train, examples.x_test))
  return data.deal(
    dataclasses.replace(examples, x_train=x_train, x_test=x_test), partition
  )


def powerlaw(
  args: argparse.Namespace, features: str = "flatten", clients: int = 1000
) -> data.Federation:
  """Deals MNIST to clients with FedProx's power law; 784 pixels."""
  examples = images(args)
  partition = data.Powerlaw().deal(examples, clients, seed=0)
  return dealt(examples, partition, features)


def one_or_two_classes(args: argparse.Namespace) -> data.Federation:
  """Deals MNIST-HoG to 400 clients of 1 or 2 classes; 576 features."""
  examples = images(args)
  partition = data.Classes(2, fewest=1, size_sigma=0.55).deal(examples, 400, seed=0)
  return dealt(examples, partition, "hog")
