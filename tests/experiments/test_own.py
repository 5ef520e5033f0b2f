"""Files outside the repository, run by the command line and from Python."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from experiments import run
from experiments.cli import config, sweeps
import fedjax_alg as fa
from fedjax_alg import files
from fedjax_alg.runs import methods
from tests import problems
from tests.each import each

ROOT = pathlib.Path(__file__).parents[2]

MINE = '''
"""A momentum server, an nnx model and a sampler of somebody's own."""
import dataclasses
import math

from flax import nnx
import jax
import jax.numpy as jnp

import mine_sizes
from fedjax_alg import registry
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.hparams import hyper, validate
from fedjax_alg.rounds.two_halves import compose


class Heavy(LocalWork):
  client_lr: float = hyper(0.1, "rate of the clients", above=0.0)
  friction: float = hyper(0.5, "one minus the momentum", minimum=0, maximum=1)
  mu: int = hyper(3, "a name of the registry with another type", minimum=0)
  shape: tuple[int, ...] = (1, 2)


def heavy(model, hparams: Heavy, *, map_clients):
  validate(hparams)
  return compose(
      model, sgd_update(model, hparams, hparams.client_lr),
      steps.sgd(1.0, 1.0 - hparams.friction), map_clients=map_clients)


def asks(model, hparams: Heavy, *, map_clients):
  if hparams.friction > 0.9:
    raise ValueError("too heavy")
  return heavy(model, hparams, map_clients=map_clients)


ENTRY = registry.Entry(Heavy, heavy, "Heavy ball", "a student, 2026")


class Net(nnx.Module):

  def __init__(self, input_shape, num_classes, rngs):
    self.hidden = nnx.Linear(
        math.prod(input_shape), mine_sizes.HIDDEN, rngs=rngs)
    self.out = nnx.Linear(mine_sizes.HIDDEN, num_classes, rngs=rngs)

  def __call__(self, x):
    return self.out(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))


def three_largest(data, cohort_size, key, number):
  ids = jnp.argsort(data.size, descending=True)[:cohort_size]
  return jnp.where(jnp.arange(cohort_size) < 3, ids, data.size.shape[0])


@dataclasses.dataclass(frozen=True)
class Clash:
  rounds: int = 3


def clash(model, hparams: Clash, *, map_clients):
  pass


def unannotated(model, hparams, *, map_clients):
  pass


def two(data, k):
  pass


def boom(data, cohort_size, key, number):
  raise ValueError("oh no")


def short(data, cohort_size, key, number):
  return jnp.arange(cohort_size - 1)


def in_turn(labels, num_clients, rng):
  return [range(client, len(labels), num_clients) for client in range(num_clients)]


NUMBER = 7
'''
SMALL = [
  "--dataset=digits",
  "--num_clients=12",
  "--cohort_size=4",
  "--rounds=2",
  "--eval_every=2",
  "--noprogress",
  "--eval_protocols=global",
]
OWN_PARTS = [
  "--algorithm=parts/mine.py:ENTRY",
  "--model=parts/mine.py:Net",
  "--sampling=parts/mine.py:three_largest",
  "--partition=parts/mine.py:in_turn",
  "--friction=0.25",
]


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
  """The current folder, with the files and a finished run."""
  folder = tmp_path_factory.mktemp("outside")
  (folder / "parts").mkdir()
  (folder / "parts" / "mine.py").write_text(MINE, encoding="utf-8")
  (folder / "parts" / "mine_sizes.py").write_text("HIDDEN = 6\n", "utf-8")
  before, path = os.getcwd(), sys.path[:]
  os.chdir(folder)
  assert run.main([*SMALL, *OWN_PARTS]) == 0
  yield folder
  os.chdir(before)
  sys.path[:] = path


def test_a_run_of_ones_own_files_is_replayed_by_its_flags(folder):
  first = folder / "out" / "ENTRY_digits"
  assert run.main([f"--flagfile={first / 'flags.txt'}", "--out_dir=again"]) == 0
  summaries = [
    files.read_json(path / "summary.json") for path in (first, folder / "again")
  ]
  assert summaries[0]["identity"] == summaries[1]["identity"]
  assert summaries[0]["hashes"] == summaries[1]["hashes"]
  dealt = files.read_json(first / "partition.json")
  assert (
    dealt["name"] == "parts/mine.py:in_turn" and len(dealt["flags"]["sha256"]) == 64
  )
  facts = files.read_json(first / "config.json")
  assert facts["algorithm"] == "parts/mine.py:ENTRY"
  assert facts["hparams"]["friction"] == 0.25
  assert facts["plan"]["parameters"] == 64 * 6 + 6 + 6 * 10 + 10
  assert {source["file"] for source in facts["sources"].values()} == {
    str(folder / "parts" / "mine.py")
  }
  result = fa.load_run(first)
  assert (result.history["cohort_present"] == 3).all()
  floats = result.history["floats_down"] + result.history["floats_up"]
  assert summaries[0]["cost"]["total_floats"]["values"] == [3 * floats.sum()]


def test_python_takes_the_same_strings(folder, monkeypatch):
  """The same bits as the command line, and its run in another folder."""
  place = "parts/mine.py"
  fed = fa.federate("digits", num_clients=12, partition=f"{place}:in_turn")
  result = fa.run(
    f"{place}:heavy",
    fed,
    model=f"{place}:Net",
    cohort_size=4,
    rounds=2,
    evaluate="global",
    eval_every=2,
    friction=0.25,  # type: ignore[call-arg]
    sampling=f"{place}:three_largest",
  )
  saved = folder / "out" / "ENTRY_digits"
  assert (
    result.state_hash()
    == files.read_json(saved / "summary.json")["hashes"]["final_state"]
  )
  monkeypatch.chdir("/")
  problems.assert_equal(fa.load_run(saved).client_params(3), result.client_params(3))


def test_a_run_goes_on_by_the_code_that_began_it(folder, capsys):
  path = folder / "parts" / "mine.py"
  assert run.main([*SMALL, *OWN_PARTS, "--out_dir=grows"]) == 0
  words = [*SMALL, *OWN_PARTS, "--out_dir=grows", "--rounds=4"]
  path.write_text(MINE + "# a remark\n", encoding="utf-8")
  try:
    assert run.main(words) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: --out_dir=grows: ")
    assert message.count("\n") == 1 and f"{path} has changed" in message
    with pytest.raises(fa.RunFolderError, match="mine.py has changed since"):
      fa.load_run("grows").client_params(0)
    fed = fa.federate("digits", num_clients=12, partition=OWN_PARTS[3][12:])
    assert fa.load_run(
      "grows", algorithm=f"{path}:ENTRY", model=f"{path}:Net", federation=fed
    ).client_params(0)
  finally:
    path.write_text(MINE, encoding="utf-8")
  assert run.main(words) == 0
  assert fa.load_run("grows").rounds.tolist() == [2, 4]


def test_a_sweep_over_ones_own_hyper_parameter(folder):
  configs = sweeps.configs(
    config.read_layers([*SMALL, *OWN_PARTS[:-1]]),
    {"friction": ["0.25", "0.75"]},
    folder,
  )
  assert [config.hparams["friction"] for config in configs] == [0.25, 0.75]
  assert (
    configs[0].identity
    == files.read_json(folder / "out" / "ENTRY_digits" / "summary.json")["identity"]
  )


def test_its_hyper_parameters_are_flags(folder):
  del folder
  with pytest.raises(config.HelpRequested) as text:
    run.main.command(["--help", "--algorithm", "parts/mine.py:ENTRY"])
  help_text = str(text.value)
  assert "parts/mine.py:ENTRY: Heavy ball (a student, 2026)" in help_text
  assert re.search(r"--friction=\S+ +one minus the momentum", help_text)
  assert re.search(r"--mu=\S+ +a name of the registry with another\s+type", help_text)
  assert "--shape" not in help_text  # no flag can hold it
  parsed = config.parse_config(
    [
      "--dataset",
      "digits",
      "--algorithm",
      "parts/mine.py:heavy",
      "--mu=4",
      "--friction",
      "1",
    ]
  )
  assert (parsed.hparams["mu"], parsed.hparams["friction"]) == (4, 1.0)
  assert parsed.out_dir == "out/heavy_digits"
  with pytest.raises(ValueError, match="--beta1: .* does not read it"):
    config.parse_config(["--algorithm=parts/mine.py:heavy", "--beta1=0.5"])


@each(
  "words, part",
  [
    ("--algorithm=parts/mine.py:NUMBER", "is an int; must be a registry.Entry"),
    ("--algorithm=parts/mine.py:unannotated", "annotated with a dataclass"),
    ("--algorithm=parts/mine.py:clash", "rounds has the name of a flag of"),
    (
      "--algorithm=parts/mine.py:ENTRY --friction=2",
      "--friction=2.0: must be at least 0 and at most 1",
    ),
    (
      "--algorithm=fedavg --model=parts/mine.py:NUMBER",
      "--model=parts/mine.py:NUMBER: is an int; must be a base.Model",
    ),
    (
      "--algorithm=fedavg --model=parts/mine.py:Net --hidden=3",
      "--hidden: unknown flag",
    ),
    ("--algorithm=afl --model=parts/mine.py:Net", "only a base.Model with lay"),
    (
      "--algorithm=fedavg --sampling=parts/mine.py:NUMBER",
      "--sampling=parts/mine.py:NUMBER: is an int; must be a function",
    ),
    (
      "--algorithm=fedavg --sampling=parts/mine.py:two",
      "--sampling=parts/mine.py:two: takes (data, k), must take (data, "
      "cohort_size, key, round)",
    ),
    (
      "--algorithm=parts/mine.py:asks --friction=0.95",
      "--algorithm=parts/mine.py:asks: its builder raises ValueError: too heavy",
    ),
    ("--algorithm=fedavg --partition=parts/mine.py:NUMBER", "must be a function (lab"),
    ("--algorithm=central --sampling=size", "--sampling: central does not read it"),
  ],
)
def test_refused_in_one_line(folder, words, part):
  del folder
  with pytest.raises(ValueError) as error:
    config.parse_config(words.split())
  assert part in str(error.value) and "\n" not in str(error.value)


def test_a_sampler_that_fails_is_named_as_it_was_given(folder, capsys):
  del folder
  for name, message in (
    ("boom", "raises ValueError: oh no"),
    ("short", "gives [3] int32; must give the ids of the participants, [4] int32"),
  ):
    flag = f"--sampling=parts/mine.py:{name}"
    assert run.main([*SMALL, "--algorithm=fedavg", flag, f"--out_dir={name}"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {flag}: {message}")


CALLBACK = """
import jax, jax.numpy as jnp, numpy as np
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.rounds.two_halves import compose

def called(number):
  if number == 0:
    raise ValueError("called at 0")
  return np.asarray(number, np.float32)

def fails(model, hparams: FedAvgHParams, *, map_clients):
  def train(received, shard, client_row, key):
    loss = jax.pure_callback(
        called, jax.ShapeDtypeStruct((), jnp.float32), received.client_id)
    return Trained(received.start, loss)
  return compose(model, ClientUpdate(train, LocalWork()), steps.average(),
                 map_clients=map_clients)
"""


def test_a_run_whose_host_callback_raises_in_a_process_of_its_own(folder):
  """As the console script, which lacks the current folder among its modules.

  Parsing does not start JAX, or the cores would not become devices any more;
  nor does a module that uses JAX. Without the error's end one device waits for
  the other; test_guard.py has one device.
  """
  (folder / "calls.py").write_text(CALLBACK + "\nSTARTED = jnp.zeros(2) + 1\n")
  code = (
    "import sys; sys.path = [p for p in sys.path if p]\n"
    "from experiments.cli import config\n"
    "for name in ('fedavg', 'losac', 'cfsvrg', 'central'):\n"
    "  config.parse_config(['--algorithm=' + name])\n"
    "from experiments import run\n"
    "raise SystemExit(run.main())"
  )
  ended = subprocess.run(
    [
      sys.executable,
      "-c",
      code,
      *SMALL,
      "--cohort_size=12",
      "--out_dir=calls",
      "--algorithm=calls:fails",
      "--host_devices=2",
    ],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
    env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
  )
  assert ended.returncode == 1
  (message,) = [
    line for line in ended.stderr.splitlines() if not line.startswith("fails: ")
  ]
  assert message == (
    f"error: a host callback raises ValueError: called at 0, {folder}/calls.py line 11"
  )
  assert files.read_json(folder / "calls" / "config.json")["machine"]["devices"] == 2


def test_names_of_the_library_are_found_the_same_way():
  method = methods.method_of("fedjax_alg.algorithms.fedavg:fedavg")
  assert method.name == "fedjax_alg.algorithms.fedavg:fedavg"
  assert method.source.file.endswith("fedavg.py")
