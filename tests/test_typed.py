"""What type checkers and editors know of ``import fedjax_alg as fa``.

The stub is equal to what the registry says (tests/docs/test_docs.py). Here mypy and
jedi read it.
"""

import pathlib
import re
import subprocess
import sys

import jedi
import pytest

from fedjax_alg import registry
from fedjax_alg.part import parts_of

pytestmark = pytest.mark.program

ROOT = pathlib.Path(__file__).resolve().parents[1]

#: Calls, and the errors that mypy reports on their lines.
CALLS = """
import fedjax_alg as fa

fed = fa.federate("digits", num_clients=60)
config = fa.FedProx(mu=1, aggregator=fa.Krum(0.2), compress_up="topk:0.1")
fa.run("fedprox", fed, mu=0.1, model=fa.MLP([30]), roles={"personal": "last"})
fa.run(config, fed, rounds=60, cohort_size=5, map_clients="vmap")
fa.run_all([config, "fedavg"], fed, client_lr=0.1)
fa.sweep(config, fed, grid={"mu": [0.1, 1.0]}, rounds=3)
for name in ["fedavg", "fedprox"]:
  fa.run(name, fed, client_lr=0.1)
rate: float = config.client_lr
fa.run("fedprox", fed, mu="a")  # arg-type
fa.run("fedprox", fed, mue=0.1)  # call-arg
fa.run("fedprox", fed, cohort_sise=5)  # call-arg
fa.run("fedprox", fed, cohort_size="all")  # arg-type
fa.run("fedprox", fed, aggregator=0.2)  # arg-type
fa.dry_run("fedprox", fed, mu="a")  # arg-type
fa.sweep("fedprox", fed, grid={}, mue=0.1)  # call-arg
fa.hypergradient("fedprox", fed, by="mu", mu="a")  # arg-type
fa.federate("digits", num_client=60)  # call-overload
fa.FedProx(mu="a")  # arg-type
fa.FedProx(mue=0.1)  # call-arg
fa.FedAvg(mu=0.1)  # call-arg
fa.FedProx(rounds=60)  # call-arg
fa.Krum(tolerated="x")  # arg-type
config.mu = 1.0  # misc
fa.FedProxy()  # attr-defined
"""

#: A method's client's half whose rows are a ``Row``.
HALF = """
from typing import NamedTuple

import jax

from fedjax_alg import trees
from fedjax_alg.base import Cohort, Key, Params, Shard
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate, Received, Store, Trained

class Row(NamedTuple):
  drift: jax.Array

class Other(NamedTuple):
  drift: jax.Array

class Memory(NamedTuple):
  rows: Row

def train(received: Received, shard: Shard, row: Row, key: Key) -> Trained[Row]:
  return Trained(received.start, row.drift, kept=row)

def of_other(received: Received, shard: Shard, row: Other, key: Key) -> Trained[Other]:
  return Trained(received.start, row.drift, kept=row)

def keeps_other(
  received: Received, shard: Shard, row: Row, key: Key
) -> Trained[Row]:
  return Trained(received.start, row.drift, kept=Other(row.drift))  # arg-type

def rows(memory: Memory) -> Row:
  return memory.rows

def put(memory: Memory, table: Row) -> Memory:
  return Memory(table)

def merge(memory: Row, cohort: Cohort, uploads: Params, anchors: Params) -> Row:
  return memory

Half = ClientUpdate[Memory, Row]
half: Half = ClientUpdate(train, LocalWork(), store=Store(rows, put, trees.set_rows))
half = half._replace(train=of_other)  # arg-type
half = ClientUpdate(of_other, LocalWork(), store=Store(rows, put))  # arg-type
half = ClientUpdate(train, LocalWork(), merge=merge)  # arg-type
"""


def check(text, folder, *modules):
  """Runs mypy on a file: line -> code of the error on it.

  Only the stub is followed, and the modules.
  """
  path = folder / "calls.py"
  path.write_text(text, "utf-8")
  config = "[mypy]\nfollow_imports = skip\n"
  config += f"[mypy-{','.join(sorted(modules))}]\nfollow_imports = silent\n"
  (folder / "mypy.ini").write_text(config, "utf-8")
  words = ["-m", "mypy", f"--config-file={folder / 'mypy.ini'}", "--no-pretty"]
  words += [f"--cache-dir={folder / 'cache'}", str(path)]
  run = subprocess.run(
    [sys.executable, *words], cwd=ROOT, capture_output=True, text=True
  )
  assert run.returncode < 2, run.stdout + run.stderr
  errors = re.findall(r"^(.+?):(\d+): error: .*\[([\w-]+)\]$", run.stdout, re.M)
  assert {pathlib.Path(file).name for file, _, _ in errors} <= {path.name}, run.stdout
  return {int(line): code for _, line, code in errors}


def codes_of(text):
  """line -> the code in its comment."""
  return {
    number: match[1]
    for number, line in enumerate(text.splitlines(), 1)
    if (match := re.search(r"  # ([\w-]+)$", line))
  }


def test_a_type_checker_refuses_the_wrong_calls_alone(tmp_path):
  """Without the stub any keyword would be right."""
  modules = {
    part.__module__
    for entry in registry.ALGORITHMS.values()
    for field in entry.fields.values()
    for part in parts_of(field.type)
  }
  modules |= {"fedjax_alg.part", "fedjax_alg.hparams", "fedjax_alg.runs.methods"}
  assert check(CALLS, tmp_path, *modules) == codes_of(CALLS)


def test_a_client_half_with_rows_of_another_type_is_refused(tmp_path):
  """A wrong row would fail when the round is traced, far from its function."""
  modules = "base", "trees", "typing", "client.update", "client.minibatches"
  codes = check(HALF, tmp_path, *(f"fedjax_alg.{module}" for module in modules))
  assert codes == codes_of(HALF)


@pytest.mark.parametrize(
  ("call", "among", "without"),
  [
    (
      'fa.run("fedprox", fed, ',
      "client_lr mu rounds cohort_size aggregator map_clients",
      "eval_protocols num_clients",
    ),
    ("fa.sweep(fa.FedProx(), fed, ", "grid mu rounds", "keep_best"),
    ('fa.federate("digits", ', "num_clients partition partitions", "dataset"),
    ("fa.FedProx(", "mu client_lr aggregator", "rounds beta1"),
    ("fa.Krum(", "tolerated", "mu"),
  ],
)
def test_an_editor_completes_the_arguments(call, among, without):
  """Of a name it offers the hyper-parameters of all methods, of a class its own."""
  text = f'import fedjax_alg as fa\nfed = fa.federate("digits")\n{call}'
  names = {
    completion.name.removesuffix("=")
    for completion in jedi.Script(text, project=jedi.Project(ROOT)).complete(
      3, len(call)
    )
    if completion.name.endswith("=")
  }
  assert {*among.split()} <= names
  assert not {*without.split()} & names
