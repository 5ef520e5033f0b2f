"""What every registered algorithm promises (fedjax_alg.base).

The clauses are those of ``testing.clauses``, which ``fedjax-alg check`` holds a
user's own method to. A new algorithm is tested here as soon as it is registered.
It only has to state what a round costs in `Entry.ledger`.
"""

import functools
import inspect
import itertools
import os
import pathlib

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import pytest

from fedjax_alg import base, registry
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.testing import bench as bench_lib
from fedjax_alg.testing import clauses
from tests import problems

#: The fields that say how many models the server keeps.
MODELS = ("num_models", "num_components", "num_groups", "max_groups")


# A method that is another one with other options (``Entry.options``) is tested
# by that one, and by test_parameter_roles.
#: These stand for all in ``--fast``; clustered rounds by IFCA's oracle.
FAST = ("fedavg", "afl")
#: Traced, and compiled with ``-m slow``: every function of the library under
#: which an equation of their rounds is made is one of a compiled method's, as
#: ``test_what_is_only_traced_has_no_part_of_its_own`` holds.
TRACED = (
  "fedprox",
  "fedyogi",
  "fedadam",
  "fsvrg",
  "ma_fsvrg",
  "cfsvrg",
  "mime_lite",
  "mime_svrg",
  "fedgroup",
  "fedacnnl",
  "pfedme",
  "fedbuff",
)
#: Compiled in other client maps, too; the others are traced in them, and
#: compiled with ``-m slow``. Together these use all that rounds have of a map.
MAPPED = (
  "ga_fsvrg",
  "clsfsvrg",
  "losac",
  "fedgrouprox",
  "fesem",
  "flhc",
  "fedsoft",
  "pacfl",
  "feddrift",
  "pfedacnnl",
  "fedncm",
  "baffle",
  "fedasync",
  "fedexp",
)
#: Who carries what clients send, keep and add up to the server.
CARRIERS = ("rounds/", "engine/", "exchange/", "split.py", "trees.py")


def marks(name):
  if name in TRACED:
    return [pytest.mark.slow]
  return [pytest.mark.fast] if name in FAST else []


#: The algorithms of which a round is here.
NAMES = [name for name, entry in registry.ALGORITHMS.items() if not entry.options]


def benches(names=(*NAMES,)):
  """The algorithms; those that are none of ``names`` are slow."""
  return [
    pytest.param(name, marks=marks(name) if name in names else [pytest.mark.slow])
    for name in NAMES
  ]


@pytest.fixture(scope="module", name="bench", params=benches())
def fixture_bench(request, problem):
  return bench_lib.Bench(request.param, problem, registry.get(request.param))


@pytest.mark.parametrize("promise", clauses.cases(clauses.COMPILED), ids=str)
def test_a_clause_holds(bench, promise):
  promise.clause.check(bench, promise.age)


def test_the_library_leaves_out_nothing_that_is_optional(bench):
  """A user's own method may have no clock and no global model."""
  assert bench.round(0)[1].work is not None
  if bench.algorithm.global_params is None:
    assert bench.name == "local"
  else:
    h = bench.hparams
    places = (h, getattr(h, "grouping", None), getattr(h, "clustering", None))
    assert bench.models == max(getattr(p, name, 1) for p in places for name in MODELS)


def test_a_key_of_a_round_changes_what_draws_alone(bench):
  """The clause knows of a user's own method only that mini-batches are drawn."""
  keys = bench.keys._replace(work=jax.random.split(jax.random.key(99), 2))
  changed = problems.differ(bench.state(1), bench.round(0, keys=keys)[0])
  assert changed == (bench.entry.rounds is None and bench.name != "central")


@pytest.mark.parametrize(
  "bench", benches([name for name in NAMES if name in MAPPED]), indirect=True
)
def test_client_maps_agree_and_padding_slots_change_nothing(bench, mesh):
  if bench.name == "losac":  # all modes: tests/engine/test_clients.py, test_lanes.py
    clauses.check_map(bench, clients.ClientMap("vmap", mesh=mesh))
  clauses.MAPS.check(bench, 0)


# Methods of which nothing is compiled but the costs.

LIBRARY = f"{pathlib.Path(base.__file__).parent}{os.sep}"


def beginning(bench):
  """(numbers, data, keys) -> of one seed, the state after the set-up, the report of
  a round with empty slots, and what is made of the state after it.
  """
  build = bench.method.builder(bench.problem.model, clients.ClientMap())

  def run(numbers, data, keys):
    algorithm, shard = build(numbers), layout.shard_of(data, 0)
    start = algorithm.init(bench.problem.model.init(keys.model), bench.spec, keys.start)
    before = algorithm.setup(start, layout.everyone(data), keys.start)
    cohort, key = bench.round_inputs(0)
    padding = (0, bench_lib.PADDING)
    ids = jnp.pad(cohort.ids, padding, constant_values=bench.spec.num_clients)
    after, aux = algorithm.round(before, layout.take_cohort(data, ids), key)
    return (
      before,
      aux,
      algorithm.client_params(after, jnp.int32(0), shard, keys.evaluation),
      algorithm.global_params and algorithm.global_params(after),
      algorithm.membership and algorithm.membership(after),
    )

  numbers = problems.row(bench.numbers, 0)
  return run, (numbers, bench.problem.data, run_keys(bench_lib.SEEDS[0]))


@pytest.fixture(scope="module", name="traces")
def fixture_traces(problem):
  """Name -> (bench, jaxpr of its ``beginning``); kept."""

  @functools.cache
  def trace(name):
    bench = bench_lib.Bench(name, problem, registry.get(name))
    run, arguments = beginning(bench)
    return bench, jax.make_jaxpr(run)(*arguments).jaxpr

  return trace


def stacks(jaxpr):
  """For each equation the (file, function) of the library above it, innermost
  first.
  """
  for eqn in jaxpr.eqns:
    if eqn.source_info.traceback is not None:
      yield tuple(
        (
          frame.file_name.removeprefix(LIBRARY).replace(os.sep, "/"),
          frame.function_name,
        )
        for frame in eqn.source_info.traceback.frames
        if frame.file_name.startswith(LIBRARY)
      )
    # One that is jitted was traced once, perhaps under another method.
    if eqn.primitive.name not in ("pjit", "jit"):
      for sub in jex_core.jaxprs_in_params(eqn.params):
        yield from stacks(sub)


def parts(jaxpr):
  """The functions of the library that have made a part of it."""
  return set(itertools.chain.from_iterable(stacks(jaxpr)))


def carriers(jaxpr):
  """Those that bring something from clients to the server, or call the map."""
  calls = {
    caller
    for stack in set(stacks(jaxpr))
    for callee, caller in itertools.pairwise(stack)
    if callee[1] == "MapClients.__call__" or callee[0] == "engine/clients.py"
  }
  return calls | {part for part in parts(jaxpr) if part[0].startswith(CARRIERS)}


def test_what_is_only_traced_has_no_part_of_its_own(traces):
  """Every local half, server step, grouping and kind of round is compiled.

  And in other client maps all that brings something to the server.
  """
  assert {*TRACED, *MAPPED} <= {*NAMES} and not {*TRACED} & {*MAPPED}
  jaxprs = {name: traces(name)[1] for name in NAMES}
  builders = {inspect.unwrap(registry.get(name).build).__qualname__ for name in NAMES}
  for find, compiled, where in (
    (parts, {*NAMES} - {*TRACED}, "take it from TRACED"),
    (carriers, {*MAPPED}, "add it, or another that has them, to MAPPED"),
  ):
    parts_of = {
      name: {part for part in find(jaxpr) if part[1] not in builders}
      for name, jaxpr in jaxprs.items()
    }
    everywhere = set().union(*(parts_of[name] for name in compiled))
    assert everywhere
    alone = {
      name: sorted(parts_of[name] - everywhere)
      for name in NAMES
      if not parts_of[name] <= everywhere
    }
    assert not alone, f"no compiled method has these; {where}: {alone}"


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_round_keeps_types_calls_nobody_and_bills_its_ledger(name, traces):
  """As the tests above ask of compiled ones; costs alone are compiled."""
  bench, jaxpr = traces(name)
  clauses.STRUCTURE.check(bench, 0)
  assert not clauses.callbacks_in(jaxpr)
  run, arguments = beginning(bench)

  def bill(*arguments):
    before, aux, *_ = run(*arguments)
    return aux.cost, jax.tree.map(lambda leaf: leaf[None], before)

  cost, bench.initial = problems.quick_jit(bill)(*arguments)
  clauses.check_costs(bench, 0, cost)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*MAPPED, *TRACED)])
def test_a_client_map_gives_the_types_of_another(name, traces):
  """Also where sums alone are kept; what clients share is an argument."""
  clauses.MAP_TYPES.check(traces(name)[0], 0)
