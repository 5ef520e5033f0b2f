"""The hashes of a caller's own objects: what they compute, and nothing else.

Without them a run goes on with another model under the first one's curve.
"""

import subprocess
import sys

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.algorithms import fedavg as fedavg_lib
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.runs import identity
from fedjax_alg.runs.plan import from_keywords


class Net(nn.Module):
  """A perceptron; every field changes what it computes."""

  act: object = nn.relu
  width: int = 4
  start: object = nn.initializers.lecun_normal()
  dropout: float = 0.0

  @nn.compact
  def __call__(self, x, train: bool = False):
    x = nn.Dense(self.width, kernel_init=self.start)(x.reshape(len(x), -1))
    x = nn.Dropout(self.dropout, deterministic=not train)(self.act(x))
    return nn.Dense(3)(x)


class NnxNet(nnx.Module):
  """The same of flax.nnx, whose arrays are in the object."""

  def __init__(self, rngs):
    self.first, self.last = nnx.Linear(5, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

  def __call__(self, x):
    return self.last(nnx.relu(self.first(x)))


def shifted(shift):
  """An activation that closes over an array."""
  return lambda x: nn.relu(x) + shift[None]


def rounded(slope):
  """An activation with a derivative of its own."""

  @jax.custom_vjp
  def act(x):
    return jnp.round(x)

  act.defvjp(lambda x: (act(x), None), lambda _, g: (slope * g,))
  return act


def first_clients(offset):
  def choose(data, cohort_size, key, number):
    return jnp.arange(cohort_size) + offset

  return choose


def averaging(scale):
  """FedAvg whose report is scaled."""

  def build(model, hparams: FedAvgHParams, *, map_clients):
    method = fedavg_lib.fedavg(model, hparams, map_clients=map_clients)

    def run_round(state, cohort, key):
      state, aux = method.round(state, cohort, key)
      return state, aux._replace(
        server={"train_loss": scale * aux.server["train_loss"]}
      )

    return method._replace(round=run_round)

  return build


def distances(scale, unit=1.0):
  """A task of one's own."""
  return fa.Task(
    name="distances",
    loss=lambda outputs, y: scale * jnp.square(outputs - y).sum(-1),
    sums=lambda outputs, y, losses, mask: {
      "distance": jnp.where(mask, jnp.abs(outputs - y).sum(-1), 0.0).sum()
    },
    values=lambda sums: {"distance": unit * sums["distance"] / sums["rows"]},
    better={"distance": "lower"},
  )


def numbers_for(task):
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(2, 40, 3)).astype(np.float32)
  examples = fa.from_arrays(x, y, x_test=x, y_test=y, task=task)
  return fa.federate(examples, num_clients=4, partition="iid:min_size=1")


def hashes(federation, algorithm="fedavg", **options):
  options = dict(cohort_size=2, rounds=2, evaluate=("global",)) | options
  return identity.hash_objects(
    from_keywords(algorithm, federation, **options).prepare()
  )


#: Each line has arguments that differ, and the hash that tells them apart. Both
#: arguments are made twice, as in two processes.
DIFFERENT = {
  "activation": ("model", lambda i: dict(model=Net((nn.relu, nn.tanh)[i]))),
  "width": ("model", lambda i: dict(model=Net(width=4 + i))),
  "initial values": (
    "model",
    lambda i: dict(model=Net(start=nn.initializers.constant(1.0 + i))),
  ),
  "dropout": ("model", lambda i: dict(model=Net(dropout=0.5 + i / 4))),
  "closed-over array": (
    "model",
    lambda i: dict(model=Net(shifted(np.arange(4.0) + i))),
  ),
  "derivative": ("model", lambda i: dict(model=Net(rounded(1.0 + i)))),
  "arrays of an nnx object": ("model", lambda i: dict(model=NnxNet(nnx.Rngs(i)))),
  "sampler": ("sampler", lambda i: dict(sampler=first_clients(i))),
  "round": ("round", lambda i: dict(algorithm=averaging(1.0 + i))),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_only_what_computes_something_else_is_another(own_fed, case):
  name, options = DIFFERENT[case]
  first, second, changed = (hashes(own_fed, **options(i)) for i in (0, 0, 1))
  assert first == second and len(first[name]) == 64
  assert {key for key in first if first[key] != changed[key]} == {name}
  line = identity.find_other({identity.OBJECTS: first}, changed)
  argument = "algorithm" if name == "round" else name
  assert line.startswith(f"{argument} computes something else")
  assert not identity.find_other({identity.OBJECTS: first}, second)


def test_a_task_of_ones_own_counts_with_its_metrics():
  first, second, loss, unit = (
    hashes(numbers_for(distances(*numbers)))
    for numbers in ((1.0,), (1.0,), (2.0,), (1.0, 2.0))
  )
  assert first == second and len({of["task"] for of in (first, loss, unit)}) == 3


def test_what_has_a_name_has_no_hash(own_fed):
  """Its name is in config.json, and costs nothing to compare."""
  assert hashes(own_fed, "ifca", num_groups=2) == {}
  missing = identity.find_other({}, hashes(own_fed, model=Net()))
  assert missing.startswith("model computes something else")


def test_what_is_returned_and_with_which_numbers():
  """Names of functions and variables are none of it."""

  def difference(a, b):
    return a - b

  def another_name(left, right):
    c = left
    return c - right

  traces = [
    jax.make_jaxpr(fn)(1.0, 2.0)
    for fn in (
      difference,
      another_name,
      jax.jit(difference),
      lambda a, b: b - a,
      lambda a, b: (a - b, a),
      lambda a, b: a - b + 1.0,
      lambda a, b: a - b + 2.0,
    )
  ]
  sums = [identity.hash_traces([trace]) for trace in traces]
  assert sums[0] == sums[1] and len(set(sums)) == 6
  assert sums[2] == identity.hash_traces(
    [jax.make_jaxpr(jax.jit(another_name))(1.0, 2.0)]
  )


PROCESS = """
import sys
import fedjax_alg as fa
from tests.runs import test_identity as t
from tests.runs.conftest import make_arrays
from tests.shared_programs import on_devices
fed = fa.federate(fa.from_arrays(**make_arrays()), partition="natural")
with on_devices(1):
  for case in ("closed-over array", "round"):
    print(sorted(t.hashes(fed, **t.DIFFERENT[case][1](0)).items()))
"""


def test_the_same_in_every_process(own_fed):
  """Addresses and the order of sets are others there."""
  here = [
    str(sorted(hashes(own_fed, **DIFFERENT[case][1](0)).items()))
    for case in ("closed-over array", "round")
  ]
  there = subprocess.run(
    [sys.executable, "-c", PROCESS],
    check=True,
    capture_output=True,
    text=True,
  )
  assert there.stdout.splitlines() == here
