"""Runs that differ in what their programs take as inputs share the programs.

The programs of a run are made of what ``key`` lists; seeds, data, clocks,
traced hyper-parameters and the number of rounds are inputs
(tests/runs/test_programs.py). So tests about folders, tables or messages need
not compile the same programs again.
"""

import copy
import dataclasses

import jax

from fedjax_alg import own
from fedjax_alg.runs import programs as programs_lib
from fedjax_alg.runs.options import MachineOptions, ModelOptions

#: Who makes programs of a prepared run by this name.
PLACES = ("fedjax_alg.runs.queue", "experiments.cli.execute", "experiments.cli.sweeps")
REAL = programs_lib.Programs
_CACHE = {}


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
  if own.is_own(options.sampling):
    participation = participation._replace(sampler=options.sampling)
  files = own.sources(model=p.model_name, sampling=options.sampling)
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


def make(prepared):
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


def make_together(runs):
  """As ``make``, of several runs."""
  return [make(prepared) for prepared in runs]
