"""Downloads data sets and prepares them for the runs.

  python -m experiments.prepare mnist cifar10

You can name any data set of TFDS, such as kmnist or emnist/letters. Runs can read
those with labeled images of one size. You need this command once, on a machine with
internet access. It needs TensorFlow, which `pip install 'fedjax_alg[prepare]'`
installs (in the repository `./launch.sh prepare` does). The runs need neither. To
let them find the data, give the same --data_dir.

For data that are larger than the memory, write their clients to a folder. It needs
the memory of one client if a function of yours gives them, one after the other
(`fa.write_clients` says what it gives):

  python -m experiments.prepare --clients=tweets mine.py:clients
  python -m experiments.prepare --clients=folder leaf:data/femnist
  python -m experiments.run --dataset=clients:tweets --data_on=disk

If it is interrupted, the same command goes on.
"""

from collections.abc import Iterable, Iterator, Sequence
import sys
import time
from typing import Any

from absl.flags import FlagValues

from fedjax_alg import data, own
from fedjax_alg.data import datasets, federation
from fedjax_alg.data import options as data_options
from fedjax_alg.errors import FAILURES, describe_error

from .cli.command import Command, string
from .cli.config import UsageError


def _run(values: FlagValues, names: list[str], argv: Sequence[str]) -> None:
  """Prepares the named data sets."""
  del argv
  if values.clients is not None:
    _write_clients(values.clients, names)
    return
  preparable = ", ".join(data.PREPARABLE)
  if not names:
    raise UsageError(f"which data set? ({preparable}, or another of TFDS)")
  for name in names:
    if not data.is_tfds(name):
      raise UsageError(
        f"{name}: unknown data set (of {preparable}, or any other of TFDS)"
      )
  for name in names:
    data.prepare_tfds(name, values.data_dir)
    content = datasets.prepared(name).describe_prepared(values.data_dir)
    print(f"{name}: {content} ready")


def _write_clients(folder: str, names: Sequence[str]) -> None:
  """Writes the clients of one source to a folder."""
  if len(names) != 1:
    raise UsageError(
      f"--clients={folder}: give one source of clients, such as mine.py:clients, "
      "npz:mine.npz or leaf:folder"
    )
  (name,) = names
  clients = _clients_of(name)
  began = time.monotonic()

  def show(number: int, nbytes: int) -> None:
    seconds = max(time.monotonic() - began, 1e-3)
    megabytes = nbytes / 2**20
    print(
      f"{folder}: {number:,} clients, {megabytes:,.0f} MB, "
      f"{megabytes / seconds:,.0f} MB/s",
      file=sys.stderr,
    )

  data.write_clients(folder, clients, progress=show)
  print(f"{folder}: ready for --dataset=clients:{folder} --data_on=disk")


def _clients_of(name: str) -> Iterable[Any]:
  """The clients of a function, or of a data set by its text."""
  place, _, _ = name.partition(":")
  own.refuse_nameless(name, "clients")
  if place.endswith(".py"):
    function, _ = own.load(name, "clients")
    return _clients_of_function(name, function)
  options = data_options.DataOptions(dataset=datasets.data_set(name))
  return data.iterate_clients(federation.load_examples(options.filled()))


def _clients_of_function(name: str, function: Any) -> Iterator[Any]:
  """The clients that code of the user's gives.

  Raises:
    UsageError: it gives none, or fails.
  """
  try:
    clients = function() if callable(function) else function
    if not isinstance(clients, Iterable):
      raise UsageError(f"--clients: {name} must give clients, one after the other")
    yield from clients
  except FAILURES as error:
    if isinstance(error, UsageError):
      raise
    raise UsageError(f"--clients: {name} raises {describe_error(error)}") from error


main = Command(
  "prepare",
  f"{__doc__}\nData sets: {', '.join(data.PREPARABLE)}, and all others of TFDS.",
  (
    string(
      "data_dir",
      None,
      "folder to prepare them in (default $TFDS_DATA_DIR or ~/tensorflow_datasets)",
    ),
    string(
      "clients",
      None,
      "new folder to write the clients of one source to, for --data_on=disk",
    ),
  ),
  _run,
  positions=tuple(data.PREPARABLE),
)

if __name__ == "__main__":
  sys.exit(main())
