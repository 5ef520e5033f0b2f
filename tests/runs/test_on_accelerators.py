"""A run on the default accelerator, beside the same run on the CPU."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_alg.data import federate
from fedjax_alg.engine import checkpoint, sharding
from fedjax_alg.runs import methods
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.prepare import prepare
from fedjax_alg.runs.programs import Programs
from tests import problems

pytestmark = pytest.mark.gpu

OPTIONS = RunOptions(rounds=2, eval_every=2, cohort_size=4, num_seeds=2,
                     eval_protocols=("global",))
STEPS = {"local_steps": 5, "batch_size": 8}

#: name -> algorithm, hyper-parameters, options of the run
CASES = {
    "softmax": ("fedavg", STEPS, {}),
    "ga_fsvrg": ("ga_fsvrg", {**STEPS, "threshold": 0, "num_models": 2}, {}),
    "cnn": ("fedavg", STEPS, {"model": "cnn", "rounds": 1}),
    "closed_form": ("fedacnnl", {}, {"model": "mlp", "hidden": (16,)}),
}


@pytest.fixture(scope="module", name="fed")
def fixture_fed():
  return federate("digits", partition="classes", num_clients=12)


def programs_of(fed, case, mesh=None):
  name, hparams, options = CASES[case]
  method = methods.method_of(name)
  method = method._replace(hparams=dataclasses.replace(
      method.hparams, **hparams))
  if method.entry.all_clients:
    options = {**options, "cohort_size": fed.num_clients}
  return Programs(prepare(
      method, fed, dataclasses.replace(OPTIONS, **options), mesh=mesh))


def played(programs, states=None, start=0, count=None):
  states = programs.initial() if states is None else states
  return programs.play(states, start, count or programs.rounds)[0]


@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_that_on_the_cpu(fed, case):
  """To float32's rounding: the CPU's is held to oracles elsewhere."""
  cpu = sharding.clients_mesh(jax.devices("cpu"))
  found = []
  for mesh in (None, cpu):
    programs = programs_of(fed, case, mesh)
    states = played(programs)
    loss = programs.evaluate(states)[0]["global"].loss_sum
    found.append(jax.device_get((states, loss)))
  for leaf, want in zip(*map(jax.tree.leaves, found), strict=True):
    scale = np.abs(want).max(initial=0) if want.dtype == np.float32 else 0
    np.testing.assert_allclose(leaf, want, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("case", ["softmax", "ga_fsvrg"])
def test_a_checkpoint_goes_on_with_the_same_bits(fed, case, tmp_path):
  programs = programs_of(fed, case)
  whole = jax.device_get(played(programs))
  halfway = jax.device_get(played(programs, count=1))
  checkpoint.save(tmp_path, halfway, 1, {})
  saved, _, _ = checkpoint.load_latest(tmp_path, programs.shapes)
  resumed = jax.device_get(played(programs, programs.place(saved), 1, 1))
  problems.assert_equal(resumed, whole)
  assert problems.differ(halfway, whole)
