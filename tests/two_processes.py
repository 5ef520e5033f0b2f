"""What each of two processes does in test_processes: a script of the library.

python -m tests.two_processes PORT PROCESS OUT ALGORITHM...

python -m tests.two_processes PORT PROCESS OUT ALGORITHM die

With "die", they kill themselves in a run in a folder. The first form goes on with it.
"""

import os
import re
import signal
import sys

import jax
import numpy as np

import fedjax_alg as fa
from fedjax_alg.engine import checkpoint, processes, sharding

#: The clients that are written to a folder.
DEALT = dict(partition="classes:3", num_clients=14, seed=1)
#: The options with which the folder is opened.
DATA = dict(validation_clients=2, seed=1)
#: algorithm -> what it is given: sums alone, vectors, groups, tables of
#: clients, a line search on the server's rows, float64, clients of two kinds.
RUNS = {
  "fedavg": {},
  "scaffold": {},
  "clsfsvrg": {},
  "ditto": {},
  "losac": dict(variant="client:full"),
  "local": {},
  "ga_fsvrg": dict(num_models=2, threshold=1),
  "fedgroup": dict(num_groups=2, centers="kmeans:3", pretrain_steps=2),
  "composed": dict(client_update="scaffold", grouping="model:2,1"),
  "fedacnnl": dict(model="mlp:8"),
  "ifca": dict(num_groups=2),
}
#: algorithm -> the kinds of its clients.
KINDS = {"ifca": "rotate:0,90"}
#: Those without a global model, or whose models are evaluated as others'.
LOCAL = ("local", "fedgroup")


#: Where rows are, besides the devices; so little that a window has one round, or two.
PLACES = {"host": "host:window_mb=0.01", "disk": "disk:window_mb=0.01"}
#: Those of an algorithm, by default files. Kinds change the rows of files.
PLACES_OF = {"composed": ("host", "disk"), "ifca": ("host",)}
#: Where they are in a run that is killed, and in the one that goes on.
STORED = {"composed": ("disk", "disk"), "fedavg": ("host", "host")}
STORED |= {"scaffold": ("disk", "device")}


def write(out):
  """Writes the folder of clients."""
  federation = fa.federate("digits", **DEALT)

  def rows(of_client):
    x, y = of_client
    return np.rint(255 * x).astype(np.uint8), y

  fa.write_clients(
    f"{out}/clients",
    (
      (name, *rows(federation.client(name)), *rows(federation.client_test(name)))
      for name in map(str, federation.client_names)
    ),
  )


def federate(out, name="", place="device"):
  """The clients of an algorithm; by default those of all without kinds."""
  kinds = KINDS.get(name, "natural")
  data_on = PLACES.get(place, place)
  return fa.federate(f"clients:{out}/clients", **DATA, kinds=kinds, data_on=data_on)


def die(step):
  """Ends the process as a kill does, behind the checkpoint of round 2."""
  if step.round == 3:
    os.kill(os.getpid(), signal.SIGKILL)


def play(name, federation, folder=None, **changes):
  """A short run: its numbers, final state among them; bytes of that here."""
  length = {} if name == "fedacnnl" else dict(rounds=3, cohort_size=6, local_steps=3)
  evaluate = ("local",) if name in LOCAL else ("global", "local", "validation")
  if name in KINDS:
    evaluate = ("kinds", "local")
  options = {"eval_every": 2, **length, **RUNS[name], "evaluate": evaluate}
  result = fa.run(name, federation, **options | changes, out_dir=folder)
  states = result._live.states
  numbers = {
    f"{name}/{i}": leaf
    for i, leaf in enumerate(jax.tree.leaves(sharding.to_host(states)))
  }
  numbers[f"{name}/same hash"] = np.array(
    result.state_hash() == checkpoint.state_hash(sharding.to_host(states))
  )
  numbers |= {
    f"{name}/{protocol}": of["accuracy"] for protocol, of in result.metrics.items()
  }
  deployed = [result.client_params(client) for client in (0, 11)]
  numbers |= {
    f"{name}/client {i}": leaf for i, leaf in enumerate(jax.tree.leaves(deployed))
  }
  return numbers, sum(
    leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(states)
  )


def main(port, process, out, *algorithms):
  try:
    fa.distributed()
    alone = ""
  except fa.OptionError as error:
    alone = str(error)
  fa.distributed(f"127.0.0.1:{port}", 2, int(process), host_devices=1)
  if algorithms[-1] == "die":
    name = algorithms[0]
    federation = federate(out, name, STORED[name][0])
    play(name, federation, f"{out}/{name}", callbacks=(die,))
  federation = federate(out)
  outputs = {
    "alone": np.array(alone),
    "rows": np.array(
      [federation.data.train.x.shape[0], federation.data.train.size.sum()]
    ),
  }
  for name in algorithms:
    numbers, own_bytes = play(name, federate(out, name))
    total_bytes = sum(
      leaf.nbytes
      for leaf_name, leaf in numbers.items()
      if re.fullmatch(rf"{name}/\d+", leaf_name)
    )
    outputs |= {**numbers, f"{name} held": np.array([own_bytes, total_bytes])}
    for place in PLACES_OF.get(name, ("disk",)):
      windowed, _ = play(name, federate(out, name, place))
      outputs |= {f"{place}/{key}": leaf for key, leaf in windowed.items()}
    if name in STORED:
      stored = federate(out, name, STORED[name][1])
      numbers, _ = play(name, stored, f"{out}/{name}")
      outputs |= {f"stored/{key}": leaf for key, leaf in numbers.items()}
  outputs["errors"] = np.array([*errors(int(process))])
  np.savez(f"{out}/process{process}.npz", **outputs)
  processes.meet("saved")
  if process == "1":
    raise OSError("no way on")
  processes.meet("never")


def errors(process):
  """What each process catches when one of them fails."""

  class Local(Exception):
    """No other process has it."""

  for failing, error in (
    (1, OSError("this disk is full")),
    (0, Local("cannot be sent")),
  ):

    def work(failing=failing, error=error):
      if process == failing:
        raise error

    try:
      processes.together(work)
    except Exception as caught:
      yield str(caught).removeprefix("Local: ")  # as it is sent


if __name__ == "__main__":
  main(*sys.argv[1:])
