"""What every registered algorithm promises (fedjax_alg.base).

The clauses are those of ``runs.contract``, which ``fedjax-alg check`` holds a
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
from fedjax_alg.engine import clients
from fedjax_alg.runs import bench as bench_lib
from fedjax_alg.runs import contract
from tests import problems

SEEDS, PADDING = bench_lib.SEEDS, bench_lib.PADDING
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
  return bench_lib.Bench(request.param, problem)


@pytest.mark.parametrize("promise", contract.cases(contract.COMPILED), ids=str)
def test_a_clause_holds(bench, promise):
  promise.clause.check(bench, promise.age)


def test_the_library_leaves_out_nothing_that_is_optional(bench):
  """A user's own method may have no clock and no global model."""
  assert bench.round(0)[1].work is not None
  if bench.algorithm.global_params is None:
    assert bench.name == "local"
  else:
    assert bench.models == max(getattr(bench.hparams, name, 1) for name in MODELS)


@pytest.mark.parametrize(
  "bench", benches([name for name in NAMES if name in MAPPED]), indirect=True
)
def test_client_maps_agree_and_padding_slots_change_nothing(bench, mesh):
  if bench.name == "losac":  # all modes: tests/engine/test_clients.py, test_lanes.py
    contract.check_map(bench, clients.ClientMap("vmap", mesh=mesh), mesh)
  contract.MAPS.check(bench, 0)


# Methods of which nothing is compiled but the costs.

LIBRARY = f"{pathlib.Path(base.__file__).parent}{os.sep}"


@pytest.fixture(scope="module", name="traces")
def fixture_traces(problem):
  """Name -> (bench, jaxpr of its ``begin``, types of the results); kept."""

  @functools.cache
  def trace(name):
    bench = bench_lib.Bench(name, problem)
    begin = contract.begin(bench, clients.ClientMap())
    traced = jax.jit(begin).trace(*contract.one_seed(bench))
    return (
      bench,
      traced.jaxpr.jaxpr,
      jax.tree.unflatten(jax.tree.structure(traced.out_info), traced.jaxpr.out_avals),
    )

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
  bench, jaxpr, made = traces(name)
  constant = jax.eval_shape(
    lambda params, key: bench.algorithm.init(params, bench.spec, key),
    bench.model_shapes,
    jax.random.key(0),
  )
  for state in (made.start, made.before, made.after):
    assert contract.types(state) == contract.types(constant)
  assert contract.types(made.params) == contract.types(bench.deployed_shapes)
  contract.check_report(made.aux, bench.spec.cohort_size + PADDING)
  assert not contract.callbacks_in(jaxpr)
  if made.membership is not None:
    assert (made.membership.shape, made.membership.dtype) == (
      (bench.spec.num_clients,),
      jnp.int32,
    )
  for leaf, model in zip(
    jax.tree.leaves(made.models), jax.tree.leaves(bench.model_shapes), strict=True
  ):
    assert leaf.shape[1:] == model.shape and leaf.dtype == model.dtype

  def bill(*inputs):
    made = contract.begin(bench, clients.ClientMap())(*inputs)
    return made.aux.cost, jax.tree.map(lambda leaf: leaf[None], made.before)

  cost, bench.initial = problems.quick_jit(bill)(*contract.one_seed(bench))
  contract.check_costs(bench, 0, cost)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*MAPPED, *TRACED)])
def test_a_client_map_gives_the_types_of_another(name, traces):
  """Also where sums alone are kept; what clients share is an argument."""
  bench, _, made = traces(name)
  contract.check_map_types(bench_lib.Bench(name, bench.problem), made)
