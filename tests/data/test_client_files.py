"""Clients in a folder."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import DataError, client_files, kind_changes, row_dealing, store
from fedjax_alg.data.client_files import open_clients, write_clients
from tests import problems

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def make_clients(number=30, dtype=np.uint8, tests=False):
  rng = np.random.default_rng(0)
  for client in range(number):
    size = int(rng.integers(3, 15))
    x = rng.integers(0, 256, (size, 4, 4, 1)).astype(dtype)
    y = rng.integers(0, 3, size)
    yield (f"c{client:02}", x, y, *((x[:2] // 2, y[:2]) if tests else ()))


def in_memory(clients):
  clients = list(clients)
  columns = list(zip(*clients))
  ids = lambda place: np.repeat(columns[0], [len(y) for y in columns[place]])
  tests = {}
  if len(columns) == 5:
    x_test, y_test = (np.concatenate(columns[place]) for place in (3, 4))
    tests = dict(x_test=x_test, y_test=y_test, test_client_ids=ids(4))
  return fa.from_arrays(
    np.concatenate(columns[1]), np.concatenate(columns[2]), ids(2), **tests
  )


@pytest.mark.program
@pytest.mark.parametrize("tests", [False, True])
def test_a_run_from_files_has_the_numbers_of_one_in_memory(tmp_path, tests):
  folder = write_clients(tmp_path / "clients", make_clients(tests=tests))
  runs = []
  for examples, data_on in (
    (in_memory(make_clients(tests=tests)), "device"),
    (open_clients(folder, check=True), "disk:window_mb=0.002"),
    (open_clients(folder), "device"),
  ):
    fed = fa.federate(
      examples, data_on=data_on, validation_clients=3, partition="natural"
    )
    options = dict(rounds=4, cohort_size=5, eval_every=2)
    options["evaluate"] = ("global", "local", "train", "validation")
    runs.append((fed, fa.run("fedavg", fed, **options)))
  (fed, expected), *others = runs
  for other, result in others:
    assert other.hashes["partition"] == fed.hashes["partition"]
    np.testing.assert_array_equal(other.client_names, fed.client_names)
    for a, b in zip(other.client("c05"), fed.client("c05")):
      np.testing.assert_array_equal(a, b)
    assert result.state_hash() == expected.state_hash()
    for protocol, metrics in expected.metrics.items():
      for name, values in metrics.items():
        np.testing.assert_array_equal(values, result.metrics[protocol][name])


def test_numpy_reads_the_files(tmp_path):
  clients = list(make_clients())
  folder = write_clients(tmp_path, iter(clients))
  x = np.load(folder / "x.npy", mmap_mode="r")
  np.testing.assert_array_equal(x, np.concatenate([x for _, x, _ in clients]))
  facts = json.loads((folder / "clients.json").read_text())
  assert facts["clients"] == [name for name, _, _ in clients]
  assert sum(facts["train"]) == len(x)


@pytest.mark.program
def test_writing_goes_on_after_a_kill(tmp_path):
  code = f"""
  import itertools, os, signal, sys
  sys.path.insert(0, {os.path.dirname(__file__)!r})
  from fedjax_alg.data import client_files
  from test_client_files import make_clients
  client_files._FLUSH_BYTES = 500
  def clients():
    for number, client in enumerate(make_clients()):
      if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
      yield client
  client_files.write_clients({str(tmp_path / "killed")!r}, clients())
  """
  done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
  assert done.returncode == -signal.SIGKILL
  with pytest.raises(DataError, match="not finished"):
    open_clients(tmp_path / "killed")
  journal = (tmp_path / "killed" / "journal.txt").read_text().splitlines()
  assert 5 < len(journal) <= 20
  written, write = [], client_files._Column.write
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      client_files._Column,
      "write",
      lambda self, values: written.append(self.path.name) or write(self, values),
    )
    folder = write_clients(tmp_path / "killed", make_clients())
  assert written.count("x.npy") == 30 - len(journal)
  complete = write_clients(tmp_path / "whole", make_clients())
  for name in ("x.npy", "y.npy", "x_test.npy", "y_test.npy", "clients.json"):
    assert (folder / name).read_bytes() == (complete / name).read_bytes(), name
  assert sorted(os.listdir(folder)) == sorted(os.listdir(complete))


def test_what_is_written_needs_the_memory_of_one_client(tmp_path):
  alive = []

  class Rows(np.ndarray):
    def __del__(self):
      alive.remove(id(self))

  def clients():
    for client in range(5):
      x = np.ones((3, 2), np.float32).view(Rows)
      alive.append(id(x))
      assert len(alive) <= 2
      yield client, x, np.zeros(3, int)
      del x

  write_clients(tmp_path, clients())


def two(x=None, y=None, name="b"):
  good = np.ones((3, 2), np.float32), np.zeros(3, int)
  return [
    ("a", *good),
    (name, good[0] if x is None else x, good[1] if y is None else y),
  ]


@pytest.mark.parametrize(
  ("clients", "why"),
  [
    ([], "none"),
    ([("a", 1)], "must give"),
    (two(name="a"), "client a comes twice"),
    (two(name=1.5), "client 1.5"),
    ([two()[0], two()[1] + two()[0][1:]], "client b has 5 entries, must have 3"),
    ([two()[0] + two()[0][1:], two()[1]], "client b has 3 entries, must have 5"),
    (two(x=np.ones((3, 3), np.float32)), "client b"),
    (two(x=np.ones((3, 2), np.uint8)), "client b"),
    (two(x=np.full((3, 2), np.nan)), "client b.*NaN"),
    (two(x=np.array([["a", "b"]] * 3)), "x of client b"),
    (two(y=np.zeros(4, int)), "client b has 3 rows of x and 4"),
    (two(y=np.full(3, 2**40)), "client b.*int32"),
  ],
)
def test_a_wrong_client_is_named(tmp_path, clients, why):
  with pytest.raises(DataError, match=f"clients: .*{why}"):
    write_clients(tmp_path, iter(clients))


def test_what_gives_no_clients_is_named(tmp_path):
  with pytest.raises(DataError, match="^clients: .*int"):
    write_clients(tmp_path, 3)
  with pytest.raises(DataError, match="has no clients"):
    write_clients(tmp_path, fa.from_arrays(np.ones((3, 2)), np.arange(3)))


def test_other_clients_do_not_go_on_in_a_folder(tmp_path):
  def broken():
    yield from two()
    raise RuntimeError("the disk of the source")

  with pytest.raises(RuntimeError):
    write_clients(tmp_path, broken())
  for clients, why in (
    (two(name="c"), "client b"),
    (two(x=np.ones((4, 2), np.float32), y=np.zeros(4, int)), "client b has 4 rows"),
    ([("a", np.ones((3, 2), np.uint8), np.zeros(3, int))], "other rows"),
  ):
    with pytest.raises(DataError, match=why):
      write_clients(tmp_path, iter(clients))
  write_clients(tmp_path, iter(two()))
  with pytest.raises(DataError, match="has clients already"):
    write_clients(tmp_path, iter(two()))


def test_a_folder_with_other_files_stays_as_it_is(tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises(DataError, match="notes.txt"):
    write_clients(tmp_path, iter(two()))
  assert os.listdir(tmp_path) == ["notes.txt"]
  with pytest.raises(DataError, match="clients.json"):
    open_clients(tmp_path)


def test_one_call_at_a_time_writes_to_a_folder(tmp_path):
  pytest.importorskip("fcntl", reason="this system has no such locks")

  def clients():
    yield two()[0]
    with pytest.raises(DataError, match=f"^{tmp_path}: is being written by another"):
      write_clients(tmp_path, iter(two()))
    yield two()[1]

  write_clients(tmp_path, clients())
  assert open_clients(tmp_path, check=True).x_train[:].min() == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.parametrize("limit", [0, 100, 400, 700, 3000])
@pytest.mark.parametrize("is_dealt", [False, True])
def test_a_full_disk_is_one_line_and_nothing_is_lost(
  tmp_path, monkeypatch, limit, is_dealt
):
  monkeypatch.setattr(client_files, "_FLUSH_BYTES", 0)
  monkeypatch.setattr(row_dealing, "_FLUSH_BYTES", 0)
  monkeypatch.setattr(row_dealing, "_BUCKET_BYTES", 1000)

  def clients():
    rows = [
      (name, *row)
      for name, x, y in make_clients()
      for row in zip(x, y.tolist(), strict=True)
    ]
    mixed = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    dealt = fa.StreamedRows(mixed, x=1, y=2, client=0)
    return dealt if is_dealt else make_clients()

  complete = write_clients(tmp_path / "whole", clients())
  before = b""
  for _ in range(2):
    with problems.small_files(limit), pytest.raises(DataError) as error:
      write_clients(tmp_path / "full", clients())
    assert "cannot be written" in str(error.value) and "\n" not in str(error.value)
    journal = tmp_path / "full" / "journal.txt"
    notes = journal.read_bytes() if journal.exists() else b""
    assert notes.startswith(before)
    before = notes[: notes.rfind(b"\n") + 1]
  folder = write_clients(tmp_path / "full", clients())
  names = sorted(path.name for path in complete.iterdir())
  assert sorted(path.name for path in folder.iterdir()) == names
  for name in names:
    assert (folder / name).read_bytes() == (complete / name).read_bytes(), name


def test_an_error_of_the_source_is_none_of_the_folder(tmp_path):
  def clients():
    yield from two()
    raise FileNotFoundError(2, "No such file or directory", "photo.jpg")

  with pytest.raises(FileNotFoundError, match="photo"):
    write_clients(tmp_path, clients())


@pytest.mark.parametrize("damage", ["cut", "gone", "json", "count", "byte"])
def test_damage_is_one_line(tmp_path, damage):
  folder = write_clients(tmp_path, make_clients())
  facts = json.loads((folder / "clients.json").read_text())
  if damage == "cut":
    os.truncate(folder / "x.npy", 1000)
  elif damage == "gone":
    (folder / "y.npy").unlink()
  elif damage == "json":
    (folder / "clients.json").write_text('{"format": 1')
  elif damage == "count":
    facts["train"][3] += 1
    (folder / "clients.json").write_text(json.dumps(facts))
  else:
    with open(folder / "x.npy", "r+b") as file:
      file.seek(-1, os.SEEK_END)
      file.write(b"\x00" if file.read() != b"\x00" else b"\x01")
  with pytest.raises(DataError) as error:
    open_clients(folder, check=True)
  assert "\n" not in str(error.value)


def test_what_needs_all_rows_in_memory_is_refused(tmp_path):
  folder = write_clients(tmp_path, make_clients())
  script = tmp_path / "mine.py"
  script.write_text("def change(x, y, kind, key): return x, y")
  for name, value in (("kinds", f"{script}:change,2"), ("store", "float32")):
    with pytest.raises(DataError, match=f"^{name}=.*data_on=disk"):
      fa.federate(open_clients(folder), data_on="disk", **{name: value})


@pytest.mark.parametrize(
  "options",
  [
    dict(features="standardize", validation_clients=3),
    dict(features="standardize", partition="powerlaw", num_clients=5),
    dict(features="hog:block=2", kinds="rotate:0,30"),
    dict(features="contrast", train_examples=100),
    dict(kinds="noise:0.1"),
    dict(kinds="noise:0"),  # bytes stay bytes
    dict(kinds="permute:2", features="flatten", train_examples=100),
  ],
)
def test_examples_that_are_changed_in_passes_have_the_same_bits(
  tmp_path, options, monkeypatch
):
  """Also if those of a kind are read in several parts."""
  monkeypatch.setattr(kind_changes, "_PART_BYTES", 256)
  folder = write_clients(tmp_path / "clients", make_clients(tests=True))
  first, second = (
    fa.federate(f"clients:{folder}", data_on=data_on, **options)
    for data_on in ("device", "disk")
  )
  assert first.hashes == second.hashes
  assert store.is_in_files((second.data.train.x, second.data.test.x))
  for client in first.client_names[:5]:
    for name in ("client", "client_test"):
      for a, b in zip(*(getattr(fed, name)(client) for fed in (first, second))):
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())


@pytest.mark.parametrize("data_on", ["device", "disk"])
def test_a_function_gives_the_features_of_a_folder_without_tests(tmp_path, data_on):
  """How many there are is not known from no examples."""
  script = tmp_path / "mine.py"
  script.write_text("def halve(x): return x.reshape(len(x), -1)[:, ::2]")
  folder = write_clients(tmp_path / "clients", make_clients())
  fed = fa.federate(f"clients:{folder}", data_on=data_on, features=f"{script}:halve")
  x, _ = fed.client("c01")
  raw = np.load(folder / "x.npy")[:, :, ::2].reshape(-1, 8) * np.float32(1 / 255)
  assert {row.tobytes() for row in x} <= {row.tobytes() for row in raw}


def test_rows_in_memory_are_in_no_file():
  with pytest.raises(DataError, match="^data_on=disk: .*write_clients"):
    fa.federate("digits", data_on="disk")


def test_clients_of_a_data_set_are_written_again(tmp_path):
  examples = in_memory(make_clients(tests=True))
  folder = write_clients(tmp_path / "first", examples)
  folder = write_clients(tmp_path / "second", open_clients(folder))  # of files, too
  reopened = open_clients(folder)
  assert list(reopened.client_names) == list(examples.client_names)
  np.testing.assert_array_equal(reopened.x_train[:], examples.x_train)
  np.testing.assert_array_equal(reopened.y_test, examples.y_test)
  np.testing.assert_array_equal(reopened.client_test, examples.client_test)


def test_a_folder_keeps_the_numbers_of_classes_and_tokens(tmp_path):
  """The last ones may have no example."""
  x, y, owners = np.arange(24).reshape(12, 2), np.arange(12) % 3, np.arange(12) % 4
  examples = fa.from_arrays(x, y, owners, num_classes=7)
  examples = dataclasses.replace(examples, num_tokens=50)
  folder = write_clients(tmp_path / "clients", examples)
  again = open_clients(write_clients(tmp_path / "again", open_clients(folder)))
  assert (again.num_classes, again.num_tokens) == (7, 50)
  tokens = fa.from_arrays(x, x, owners, num_classes=40, task="tokens")
  folder = write_clients(tmp_path / "tokens", tokens)
  opened = open_clients(folder, task="tokens")
  assert (opened.num_classes, opened.num_tokens) == (40, 40)
  facts = json.loads((folder / "clients.json").read_text())
  del facts["num_tokens"]  # as an earlier version wrote it
  (folder / "clients.json").write_text(json.dumps(facts))
  assert open_clients(folder, task="tokens").num_tokens == 24


def test_kinds_are_refused(tmp_path):
  x, y, owners = np.ones((12, 2)), np.arange(12) % 3, np.arange(12) % 4
  examples = fa.from_arrays(x, y, owners, kind_ids=owners % 2)
  with pytest.raises(DataError, match="^arrays: has kinds of clients"):
    write_clients(tmp_path / "clients", examples)
  arrays = dict(x_train=x, y_train=y, client_train=owners, kind_train=owners % 2)
  np.savez(tmp_path / "mine.npz", **arrays)
  with pytest.raises(DataError, match="mine.npz: has kinds of clients"):
    fa.StreamedRows(f"npz:{tmp_path / 'mine.npz'}")


@pytest.mark.parametrize("data_on", ["device", "disk"])
def test_files_that_were_restored_are_opened_again(tmp_path, data_on):
  """The data of a folder are known by its clients.json, which stays."""
  folder = write_clients(tmp_path / "clients", make_clients())
  content = (folder / "x.npy").read_bytes()

  def read():
    return fa.federate(f"clients:{folder}", data_on=data_on).client("c03")[0]

  expected = read()
  os.truncate(folder / "x.npy", 1000)
  with pytest.raises(DataError, match="cut short"):
    read()
  (folder / "x.npy").write_bytes(content)
  np.testing.assert_array_equal(read(), expected)


def test_some_examples_of_a_folder(tmp_path):
  folder = write_clients(tmp_path / "clients", make_clients(tests=True))
  options = dict(train_examples=100, partition="dirichlet:0.5", num_clients=5)
  first, second = (
    fa.federate(f"clients:{folder}", data_on=data_on, **options)
    for data_on in ("device", "disk")
  )
  assert first.hashes == second.hashes
  for client in range(5):
    for a, b in zip(first.client(client), second.client(client), strict=True):
      np.testing.assert_array_equal(a, b)


def test_the_option_dataset_names_a_folder(tmp_path):
  folder = write_clients(tmp_path, make_clients())
  fed = fa.federate(f"clients:{folder}", data_on="disk")
  assert (fed.num_clients, fed.partition.name) == (30, "natural")
  assert fed.example_shape == (4, 4, 1)


def make_large(folder, clients, rows, row_nbytes):
  """A folder of clients whose examples, all zero, take no place on the disk."""
  folder.mkdir()
  names = client_files._COLUMNS
  for name in names:
    column = client_files._Column(folder / f"{name}.npy")
    shape = (row_nbytes,) if name[0] == "x" else ()
    dtype = np.uint8 if name[0] == "x" else np.int32
    column.open(np.zeros((0, *shape), dtype), 0)
    if name == "y":
      column.write(np.arange(clients * rows, dtype=np.int32) % 4)
    elif name == "x":
      column.rows = clients * rows
      column.file.truncate(client_files._HEADER + clients * rows * row_nbytes)
    column.finish()
  facts = dict(
    format=1,
    columns={name: dict(sha256="", largest=3) for name in names},
    clients=list(map(str, range(clients))),
    train=[rows] * clients,
    test=[0] * clients,
  )
  (folder / "clients.json").write_text(json.dumps(facts))


_LIMITED = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import fedjax_alg as fa
from fedjax_alg.engine import row_file

small, large, megabytes, name, cohort, rounds = sys.argv[1:]

def run(folder, data_on="auto:window_mb=4"):
  fed = fa.federate(fa.open_clients(folder), data_on=data_on)
  return fa.run(name, fed, rounds=int(rounds), cohort_size=int(cohort),
                eval_every=int(rounds) // 2, host_devices=1, evaluate="local",
                batch_size=50)

run(small, "disk:window_mb=4")  # what compiling needs is not counted
held = next(int(line.split()[1]) for line in open("/proc/self/status")
            if line.startswith("VmData"))
most = held * 1024 + int(megabytes) * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
try:
  run(large, "device")
except fa.OptionError as error:
  print(error)
result = run(large)
tables = row_file.tables_of(result._state().states)
print(result.facts["plan"]["data_on"], result.metrics["local"]["accuracy"][0, -1],
      *[len(rows.written) * rows.form.nbytes for rows in tables[0].versions]
      if tables else [0])
"""


@pytest.mark.program
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.parametrize(
  ("name", "rows", "cohort", "rounds"),
  # SCAFFOLD keeps 64 KB a client, 335 MB, of which it writes 108 MB.
  [
    ("fedavg", 100, 10, 6),
    pytest.param("scaffold", 100, 40, 50, marks=pytest.mark.slow),
  ],
)
def test_a_run_trains_on_twenty_times_what_memory_allows(
  tmp_path, name, rows, cohort, rounds
):
  limit, row_nbytes = 100, 4096
  clients = 20 * limit * 2**20 // (rows * row_nbytes)
  make_large(tmp_path / "small", cohort + 2, rows, row_nbytes)
  make_large(tmp_path / "large", clients, rows, row_nbytes)
  done = subprocess.run(
    [
      *(sys.executable, "-c", _LIMITED),
      *map(str, (tmp_path / "small", tmp_path / "large", limit, name, cohort, rounds)),
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  refusal, trained = done.stdout.splitlines()
  assert "ulimit -d leaves" in refusal and "data_on=disk" in refusal
  place, accuracy, written = trained.split()
  assert place == "disk:4"
  assert 0.2 < float(accuracy) < 0.3
  assert (int(written) > limit * 2**20) == (name == "scaffold")
