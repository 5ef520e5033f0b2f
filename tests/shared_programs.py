"""Runs that differ in what their programs take as inputs share the programs.

The programs of a run are made of what ``key`` lists; seeds, data, clocks,
traced hyper-parameters and the number of rounds are inputs
(tests/runs/test_programs.py). So tests about folders, tables or messages need
not compile the same programs again. Nor does it matter to them on how many
devices: programs for one compile in half the time.
"""

import contextlib
import copy
import dataclasses
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp

from fedjax_alg.base import RoundAux
from fedjax_alg.data import layout
from fedjax_alg.engine import keys as keys_lib
from fedjax_alg.engine import loop, sharding
from fedjax_alg.engine.sampling import OwnSampling
from fedjax_alg.models import OwnModel, class_weights
from fedjax_alg.runs import plan
from fedjax_alg.runs import programs as programs_lib
from fedjax_alg.runs.options import MachineOptions, ModelOptions

#: Who makes programs of a prepared run by this name.
PLACES = (
  "fedjax_alg.runs.queue",
  "fedjax_alg.runs.store",
  "experiments.cli.execute",
  "experiments.cli.sweeps",
)
REAL = programs_lib.Programs
_CACHE = {}
_MESH = sharding.clients_mesh


@contextlib.contextmanager
def on_devices(number):
  """Runs that name no devices use so many of them; None: all."""

  def mesh(devices=None):
    return _MESH(devices or jax.devices()[:number])

  with mock.patch.object(sharding, "clients_mesh", mesh):
    yield


def key(prepared):
  """What the programs of a run are made of; None: they are its own."""
  p, options = prepared, prepared.options
  if p.model_name is None:
    return None
  inputs, structure = jax.tree.flatten((p.device_data.data, p.keys, p.numbers))
  fields = [
    field.name
    for kind in (MachineOptions, ModelOptions)
    for field in dataclasses.fields(kind)
  ]
  # What a file holds may change, its function is another object each time.
  participation = p.participation
  files = {}
  if isinstance(options.sampling, OwnSampling):
    participation = participation._replace(sampler=options.sampling)
    files["sampling"] = options.sampling.source()
  if isinstance(options.model, OwnModel):
    files["model"] = options.model.source()
  if options.class_weights == class_weights.BALANCED:  # a constant of the loss
    files["class_weights"] = tuple(p.federation.label_histogram.sum(0).tolist())
  return (
    p.method.structure()[1:],
    p.method.entry.build,
    p.model_name,
    tuple(files.items()),
    participation,
    p.spec,
    p.map_seeds,
    p.mesh,
    p.protocols,
    tuple(p.measures.items()),
    len(p.settings),
    bool(p.numbers) or tuple(setting.parts for setting in p.settings),
    min(options.eval_every, options.rounds),
    tuple(getattr(options, name) for name in fields),
    structure,
    tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in inputs),
  )


def forget():
  """All programs are compiled again from here on."""
  _CACHE.clear()


def make(prepared, notice=None):
  """The programs of a run; those of an earlier one if they are the same."""
  cache_key = key(prepared)
  if cache_key is None:
    return REAL(prepared)
  if cache_key not in _CACHE:
    programs = _CACHE[cache_key] = REAL(prepared)
    programs.prepared = None  # its data can go
  programs = copy.copy(_CACHE[cache_key])
  programs.prepared, programs.rounds = prepared, prepared.options.rounds
  return programs


def make_together(runs, notice=None):
  """As ``make``, of several runs."""
  return [make(prepared) for prepared in runs]


class Outcome(NamedTuple):
  """What the rounds of a run made, leaves [seeds, ...] in NumPy."""

  deployed: Any  #: what each client deploys [seeds, C, ...]
  models: Any  #: global models [seeds, K, ...]; None: the method has none
  membership: Any  #: [seeds, C]; None: the method has no groups
  aux: RoundAux  #: [seeds, rounds, ...]
  roles: Any  #: of the model's parameters

  def client_params(self, client, seed=0):
    """As ``RunResult.client_params``."""
    params = jax.tree.map(lambda leaf: leaf[seed, client], self.deployed)
    return params if self.roles is None else self.roles.join(params, self.roles.frozen)

  def global_params(self, seed=0):
    """As ``RunResult.global_params``."""
    return jax.tree.map(lambda leaf: leaf[seed], self.models)


def outcome(algorithm, fed, deploys=True, **options):
  """The start, the rounds and what is deployed of ``fa.run``, without evaluation.

  A run compiles its pieces each as a program; here all are one.

  Args:
    algorithm: as of ``fa.run``.
    fed: the federation.
    deploys: whether the clients' models are wanted.
    **options: as of ``fa.run``.

  Returns:
    The ``Outcome``.
  """
  p = plan.from_keywords(algorithm, fed, **options).prepare()
  rounds = p.options.rounds
  p.device_data.move(0)

  @jax.jit
  def program(data, keys, numbers):
    start = loop.initial_states(
      p.build, p.model, p.spec, data, keys, numbers, p.map_seeds
    )
    run_rounds = loop.make_run_rounds(
      p.build, p.participation, rounds, p.map_seeds, p.mesh
    )
    states, log = run_rounds(
      start, data, keys, numbers, jnp.int32(0), jnp.int32(rounds)
    )

    def of_seed(state, key, values):
      method = loop.with_frozen(p.build, data)(values)

      def deploy(client):
        client_key = keys_lib.client_keys(key, client[None])[0]
        return method.client_params(
          state, client, layout.shard_of(data, client), client_key
        )

      clients = jnp.arange(p.spec.num_clients, dtype=jnp.int32)
      return (
        jax.lax.map(deploy, clients) if deploys else None,
        *(fn and fn(state) for fn in (method.global_params, method.membership)),
      )

    return (
      *loop.over_seeds(of_seed, p.map_seeds)(states, keys.evaluation, numbers),
      log.aux,
    )

  deployed, models, membership, aux = jax.device_get(
    program(p.device_data.data.train, p.keys, p.numbers)
  )
  return Outcome(deployed, models, membership, aux, p.model.roles)
