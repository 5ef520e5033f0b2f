"""Small runs that the tests of this room share."""

import functools

import numpy as np
import pytest

from experiments import run as command
from experiments.cli import writer
import fedjax_alg as fa
from tests import shared_programs

CLIENTS = ("--dataset=digits", "--partition=classes", "--num_clients=20")
#: algorithm -> what a run of it takes, beside its federation. IFCA's are on all
#: devices, see ``shared_programs.on_devices``.
SMALL = {
  "ifca": dict(cohort_size=6, rounds=3, num_groups=2),
  "losac": dict(cohort_size=4, rounds=3, local_steps=3),
}


@pytest.fixture(autouse=True, scope="module")
def _share_programs(share_programs, one_device):
  """Equal programs are compiled once, for one device."""
  del share_programs, one_device


@pytest.fixture(name="fed", scope="session")
def _fed():
  """Digits of 20 clients with two classes each."""
  return fa.federate("digits", partition="classes", num_clients=20, seed=0)


@pytest.fixture(name="by_api", scope="session")
def _by_api(fed):
  """algorithm of ``SMALL`` -> its run by the library."""

  @functools.cache
  def run(name):
    with shared_programs.on_devices(None if name == "ifca" else 1):
      return fa.run(name, fed, seeds=2, eval_every=2, **SMALL[name])

  return run


@pytest.fixture(name="by_command", scope="session")
def _by_command(tmp_path_factory):
  """algorithm of ``SMALL`` -> the folder of its run by the command line."""
  root = tmp_path_factory.mktemp("commands")

  @functools.cache
  def run_command(name):
    words = [f"--{key}={value}" for key, value in SMALL[name].items()]
    with (
      pytest.MonkeyPatch.context() as patch,
      shared_programs.on_devices(None if name == "ifca" else 1),
    ):
      for picture in ("histogram", "run_curves"):
        patch.setattr(writer.plots, picture, lambda *_: None)
      assert (
        command.main(
          [
            f"--algorithm={name}",
            *CLIENTS,
            "--num_seeds=2",
            "--eval_every=2",
            "--noprogress",
            f"--out_dir={root / name}",
            *words,
          ]
        )
        == 0
      )
    return root / name

  return run_command


def make_arrays(seed=0, tested=5):
  """Arrays of six clients a to f; the last ones have no test example.

  Args:
    seed: of the numbers.
    tested: clients with test examples.
  """
  rng = np.random.default_rng(seed)
  names = np.repeat(list("fbdace"), [9, 14, 10, 8, 12, 7])
  x = rng.normal(size=(60, 5)).astype(np.float32)
  y = (x[:, :3].argmax(1) + (names == "a")) % 3
  test = np.repeat(sorted("abcdef")[:tested], 4)
  x_test = rng.normal(size=(4 * tested, 5)).astype(np.float32)
  return dict(
    x=x,
    y=y,
    client_ids=names,
    x_test=x_test,
    y_test=x_test[:, :3].argmax(1),
    test_client_ids=test,
  )


@pytest.fixture(name="own_fed", scope="session")
def _own_fed():
  """Six clients of arrays; the last has no test example."""
  return fa.federate(fa.from_arrays(**make_arrays()), partition="natural")


def accuracy(params, x, y):
  """Share of right answers of softmax regression, in NumPy."""
  layer = params["params"]
  x = np.asarray(x, np.float64).reshape(len(x), -1)
  outputs = x @ np.asarray(layer["kernel"], np.float64).T + layer["bias"]
  return float((outputs.argmax(1) == y).mean())
