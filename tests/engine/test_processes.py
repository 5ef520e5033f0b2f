"""Several processes: who writes, who ends whom, and the same numbers."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import layout
from fedjax_alg.engine import checkpoint, processes
from fedjax_alg.engine.processes import ProcessOptions
from fedjax_alg.records import folder as run_files
from tests import two_processes
from tests.each import each

pytestmark = [
  pytest.mark.program,  # starts Python and JAX twice
  # Two clients have at most six of the ten digits.
  pytest.mark.filterwarnings("ignore:validation_clients=2. they have no"),
]

ROOT = pathlib.Path(__file__).parents[2]


def free_port():
  with socket.socket() as connection:
    connection.bind(("127.0.0.1", 0))
    return connection.getsockname()[1]


def start(*words):
  """A process whose two streams are read together."""
  return subprocess.Popen(
    [sys.executable, *words],
    cwd=ROOT,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu"),
  )


@each(
  "options, pattern",
  [
    (dict(num_processes=2), "num_processes=2: not read without coordinator"),
    (
      dict(distributed=True, process_id=0),
      "process_id=0: not read without coordinator",
    ),
    (dict(coordinator="a:1"), "coordinator=a:1: needs num_processes"),
    (dict(coordinator="a:1", num_processes=2), "coordinator=a:1: needs process_id"),
    (
      dict(coordinator="a", num_processes=2, process_id=0),
      "coordinator=a: must be HOST:PORT",
    ),
    (
      dict(coordinator="a:99999", num_processes=2, process_id=0),
      "coordinator=a:99999: must be HOST:PORT",
    ),
    (
      dict(coordinator="a:1", num_processes=2, process_id=2),
      "process_id=2: must be less than num_processes=2",
    ),
    (
      dict(coordinator="a:1", num_processes=0, process_id=0),
      "num_processes=0: must be at least 1",
    ),
  ],
)
def test_options_that_do_not_go_together(options, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    ProcessOptions(**options).check()


def test_a_process_alone_leads_and_agrees_with_itself():
  assert processes.lead() and processes.count() == 1
  assert processes.agree(lambda: 3) == 3 and processes.gather(4) == [4]
  assert processes.anyone(True) and not processes.anyone(False)
  assert not processes.is_loss(ValueError("Gloo all-reduce failed"))
  processes.meet("alone")
  processes.finish()


def test_errors_of_a_user_are_no_loss(monkeypatch):
  """Else a job with a wrong path is queued again for ever."""
  monkeypatch.setattr(processes, "count", lambda: 2)
  for error in (
    fa.DataError("`dataset`=/data/heartbeat.npz: no such file"),
    ValueError("column peer_id"),
    RuntimeError("UNAVAILABLE: the sensor"),
    OSError("Gloo all-reduce failed"),
  ):
    assert not processes.is_loss(error), error
  for error in (
    jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect"),
    jax.errors.JaxRuntimeError("INTERNAL: the task missed its heartbeat"),
    ValueError("UNKNOWN: Gloo all-reduce failed: connection closed by peer"),
    RuntimeError("Gloo all-reduce failed"),
  ):
    assert processes.is_loss(error), error


def start_two(out, *words):
  """(status, stderr) of each of two processes, when both have ended."""
  port = str(free_port())
  pair = [
    start("-m", "tests.two_processes", port, number, str(out), *words)
    for number in "01"
  ]
  try:
    errors = [process.communicate(timeout=1000)[1] for process in pair]
  finally:  # none is left behind by one that hangs
    for process in pair:
      process.kill()
  return [(process.returncode, text) for process, text in zip(pair, errors)]


def run_by_two(out, *algorithms):
  """(status, stderr, numbers) of each of two processes."""
  two_processes.write(out)
  for name in two_processes.STORED:
    if name in algorithms:
      ends = start_two(out, name, "die")
      assert {status for status, _ in ends} <= {-signal.SIGKILL, processes.LOST}, ends
      assert checkpoint.newest_round(out / name / run_files.CHECKPOINTS) == 2
  ends = start_two(out, *algorithms)
  saved = [out / f"process{number}.npz" for number in range(2)]
  assert all(path.exists() for path in saved), ends
  return [(*end, dict(np.load(path))) for end, path in zip(ends, saved)]


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  return tmp_path_factory.mktemp("pair")


@pytest.fixture(scope="module", name="pair")
def fixture_pair(folder):
  """Of models of groups and a table of clients' variates."""
  return run_by_two(folder, "composed")


def check_numbers(folder, pair, algorithms):
  """Both have the same bits, and one process has them up to rounding."""
  first, second = pair[0][2], pair[1][2]
  assert first.keys() == second.keys()
  for name, leaf in first.items():
    np.testing.assert_array_equal(leaf, second[name], err_msg=name)
  for name in algorithms:
    federation = two_processes.federate(folder, name)
    for leaf, values in two_processes.play(name, federation)[0].items():
      np.testing.assert_allclose(
        first[leaf], values, rtol=1e-4, atol=2e-5, err_msg=leaf
      )


def check_same_bits(pair, which, algorithms):
  """The bits of other runs are those of rows on the devices without an end."""
  for _, _, numbers in pair:
    for name in algorithms:
      names = [leaf for leaf in numbers if leaf.startswith(f"{which}/{name}/")]
      assert len(names) > 5
      for leaf in names:
        whole = numbers[leaf.removeprefix(f"{which}/")]
        np.testing.assert_array_equal(numbers[leaf], whole, err_msg=leaf)


def test_two_processes_have_the_numbers_of_one(folder, pair):
  check_numbers(folder, pair, ["composed"])


@pytest.mark.parametrize("place", two_processes.PLACES)
def test_each_of_two_processes_reads_the_rows_of_its_clients(pair, place):
  """A process that read those of the other's clients would have other numbers."""
  check_same_bits(pair, place, ["composed"])


def test_two_processes_that_were_killed_go_on_to_the_bit(pair):
  """Their windows start in the middle of the run, and tables are divided."""
  check_same_bits(pair, "stored", ["composed"])


@pytest.mark.slow
def test_of_other_kinds_of_rounds_too(tmp_path):
  others = [name for name in two_processes.RUNS if name != "composed"]
  both = run_by_two(tmp_path, *others)
  check_numbers(tmp_path, both, others)
  check_same_bits(both, "host", ["ifca"])
  check_same_bits(both, "disk", [name for name in others if name != "ifca"])
  check_same_bits(both, "stored", ["fedavg", "scaffold"])


def test_without_a_scheduler_distributed_says_what_to_give(pair):
  for _, _, numbers in pair:
    assert str(numbers["alone"]) == (
      "distributed: found no Slurm, Open MPI or TPU pod (give "
      "coordinator, num_processes and process_id)"
    )


def test_a_process_holds_its_share_of_the_rows(pair):
  for _, _, numbers in pair:
    places, rows = numbers["rows"]
    assert places - layout.PADDING_ROWS < 0.6 * rows


def test_a_process_holds_what_its_own_clients_keep(pair):
  """c_i of 12 clients; two models, c and the round are everywhere."""
  for _, _, numbers in pair:
    own_bytes, total_bytes = numbers["composed held"]
    size = 4 * 10 * (64 + 1)
    assert total_bytes == (12 + 3) * size + 4
    assert (6 + 3) * size + 4 <= own_bytes <= (7 + 3) * size + 4


def test_an_error_while_all_wait_is_raised_in_all(pair):
  """Of either process; the other one raises the same error, sent by it."""
  for _, _, numbers in pair:
    assert numbers["errors"].tolist() == ["this disk is full", "cannot be sent"]


def test_the_error_of_a_process_ends_the_other_in_one_line(pair):
  (status, stderr, _), (failed, trace, _) = pair
  assert (status, failed) == (processes.LOST, 1)
  assert stderr.splitlines()[-1].startswith(
    "error: another process has ended or was lost ("
  )
  assert trace.splitlines()[-1] == "OSError: no way on" and ("Traceback" in trace)
