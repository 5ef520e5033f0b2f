"""The sides of `benchmarks.large --peers`: each reads cohorts in a process of its own.

FedJAX keeps the examples of each client in a row of SQLite, and pfl-research's
benchmarks in a group of HDF5, whose file they open for every client. This file is run
by the Python of each library, so it imports nothing else at the top.

  python large_sides.py SIDE FOLDER write   writes a copy of the clients in FOLDER
  python large_sides.py SIDE FOLDER         reads a cohort for each line on stdin
"""

from collections.abc import Callable, Iterator
import json
import pathlib
import resource
import sys
import time
from typing import Any
import zlib

import numpy as np

#: A cohort's examples and labels of some clients, one client after the other.
Cohort = Callable[[list[int]], Iterator[tuple[np.ndarray, np.ndarray]]]

FILES = {"fedjax": "clients.sqlite", "pfl": "clients.hdf5", "hdf5": "clients.hdf5"}


def file_of(side: str, folder: pathlib.Path) -> pathlib.Path:
  """The copy that a side reads; of ours the examples in the folder."""
  if side not in FILES:
    return folder / "x.npy"
  return folder.with_name(folder.name + "_peers") / FILES[side]


def clients_of(folder: pathlib.Path) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """The clients of a folder of ``write_clients``, without this library."""
  sizes = json.loads((folder / "clients.json").read_text())["train"]
  x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
  ends = np.cumsum(sizes)
  for number, (size, end) in enumerate(zip(sizes, ends.tolist())):
    yield number, np.array(x[end - size : end]), np.array(y[end - size : end])


def import_fedjax() -> Any:
  """FedJAX, with what it needs of JAX that JAX has removed."""
  import jax

  if not hasattr(jax, "tree_map"):
    setattr(jax, "tree_map", jax.tree.map)
  import fedjax

  return fedjax


def write(side: str, folder: pathlib.Path) -> None:
  """Writes the copy of a peer."""
  path = file_of(side, folder)
  path.parent.mkdir(exist_ok=True)
  if path.exists():
    return
  partial = path.with_suffix(".partial")
  partial.unlink(missing_ok=True)
  if side == "fedjax":
    with import_fedjax().SQLiteFederatedDataBuilder(str(partial)) as builder:
      builder.add_many(
        (str(number).encode(), {"x": x, "y": y}) for number, x, y in clients_of(folder)
      )
  else:
    import h5py

    with h5py.File(partial, "w") as file:
      for number, x, y in clients_of(folder):
        file[f"train/{number}/inputs"], file[f"train/{number}/targets"] = x, y
  partial.rename(path)


def reader(side: str, folder: pathlib.Path) -> Cohort:
  """Opens what a side reads.

  Returns:
    Reads the examples of the numbered clients.
  """
  path = file_of(side, folder)
  if side == "fedjax":
    source = import_fedjax().SQLiteFederatedData.new(str(path))

    def of_sqlite(cohort: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
      names = [str(number).encode() for number in cohort]
      for _, dataset in source.get_clients(names):
        examples = dataset.all_examples()
        yield examples["x"], examples["y"]

    return of_sqlite
  if side in ("pfl", "hdf5"):
    return _of_hdf5(path, stays_open=side == "hdf5")
  from fedjax_alg import data
  from fedjax_alg.data.host_rows import HostRows

  examples = data.open_clients(folder)
  sizes = np.bincount(np.asarray(examples.client_train))
  offsets = np.cumsum(sizes) - sizes
  rows = HostRows(examples.x_train)

  def of_folder(cohort: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    offset, size = offsets[cohort], sizes[cohort]
    x = np.empty((size.sum(), *rows.shape[1:]), rows.dtype)
    rows.read_into(x, offset, size)
    first = 0
    for begin, number in zip(offset, size):
      yield x[first : first + number], examples.y_train[begin : begin + number]
      first += number

  return of_folder


def _of_hdf5(path: pathlib.Path, stays_open: bool) -> Cohort:
  import h5py

  shared_file = h5py.File(path, "r") if stays_open else None

  def of_client(file: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
    group = file[f"train/{number}"]
    return group["inputs"][()], group["targets"][()]

  def of_groups(cohort: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in cohort:
      if shared_file is not None:
        yield of_client(shared_file, number)
        continue
      with h5py.File(path, "r") as file:
        yield of_client(file, number)

  return of_groups


def serve(side: str, folder: pathlib.Path) -> None:
  """Reads a cohort for each line on stdin, and prints what that took."""
  read = reader(side, folder)
  print(json.dumps({"ready": side}), flush=True)
  for line in sys.stdin:
    cohort = json.loads(line)
    began, cpu = time.perf_counter(), time.process_time()
    rows = list(read(cohort))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    crc = 0
    for x, y in rows:
      for array in (x, y.astype(np.int32)):
        crc = zlib.crc32(array.tobytes(), crc)
    nbytes = sum(x.nbytes + y.nbytes for x, y in rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = {"seconds": seconds, "cpu": cpu, "bytes": nbytes, "crc": crc}
    print(json.dumps(facts | {"peak": peak * 1024}), flush=True)


if __name__ == "__main__":
  if sys.argv[3:] == ["write"]:
    write(sys.argv[1], pathlib.Path(sys.argv[2]))
  else:
    serve(sys.argv[1], pathlib.Path(sys.argv[2]))
