"""The promises of every algorithm (``fedjax_alg.base``), as a list of clauses.

The tests in ``tests/contract`` hold the library's methods to these clauses, and
``fedjax-alg check`` a user's own. A clause that does not hold is one sentence,
which names the fields.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
import tempfile
from typing import Any, NamedTuple, cast

import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np

from fedjax_alg import base, registry
from fedjax_alg import hparams as hparams_lib
from fedjax_alg.data import layout
from fedjax_alg.engine import checkpoint, clients, loop, sharding
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation, sample_cohort
from fedjax_alg.errors import FAILURES, OptionError, describe_error
from fedjax_alg.exchange import stacking
from fedjax_alg.rounds.expected import Expected, Played
from fedjax_alg.runs import contract_roles, methods, own_algorithm
from fedjax_alg.runs.bench import (
  MAX_ROUNDS,
  PADDING,
  SEEDS,
  SIZES,
  Bench,
  Slots,
  Violation,
  nan_behind,
  quick_compiler_options,
  row,
  softmax_problem,
)

#: Rounds of every kind: first, round T + 1 of the diversified methods, later.
AGES = (0, 1, 3)
#: The most fields that a sentence names.
_MOST_FIELDS = 4
#: The clients' mean loss after ``MAX_ROUNDS``, in parts of the first one.
_LEARNED = 0.85

Check = Callable[[Bench, int], None]


class Promise(NamedTuple):
  """A promise, and how it is tested."""

  name: str
  check: Check  #: raises a ``Violation``; takes the rounds before the one it tests
  ages: tuple[int, ...] = (0,)


class Case(NamedTuple):
  """A clause at a round."""

  clause: Promise
  age: int

  def __str__(self) -> str:
    """Names the clause, and the round of one that is tested at several."""
    if len(self.clause.ages) == 1:
      return self.clause.name
    return f"{self.clause.name}, round {self.age + 1}"

  def violation(self, bench: Bench) -> str:
    """Tests the clause; returns the sentence of a violation, or ""."""
    try:
      self.clause.check(bench, self.age)
    except Violation as error:
      return f"{self}: {error}"
    except OptionError as error:
      return f"{self}: {error.text}"
    except FAILURES as error:  # whatever the user's code raises
      return f"{self}: the method raises {describe_error(error)}"
    return ""


# Comparisons.


def _parts(whole: str, tree: Any) -> list[str]:
  return [f"{whole}.{name}" if name else whole for name in loop.leaf_names(tree)]


def _structure_of(tree: Any) -> Any:
  return jax.tree.structure(tree)


def _list(fields: list[str]) -> str:
  more = len(fields) - _MOST_FIELDS
  return ", ".join(fields[:_MOST_FIELDS]) + (f" and {more} more" if more > 0 else "")


def list_differences(
  whole: str, actual: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0
) -> list[str]:
  """Compares two trees.

  Args:
    whole: how the tree is named.
    actual: the tree, of arrays.
    expected: the tree that it has to be.
    rtol: relative difference of entries that are equal.
    atol: absolute difference of entries that are equal. NaN equals NaN.

  Returns:
    The fields that differ, with the largest difference of their entries.
  """
  if _structure_of(actual) != _structure_of(expected):
    return [f"the structure of {whole}"]
  fields = []
  for name, a, b in zip(
    _parts(whole, actual), *map(jax.tree.leaves, (actual, expected)), strict=True
  ):
    a, b = np.asarray(a), np.asarray(b)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
      fields.append(f"{name} ({a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)})")
      continue
    if rtol or atol:
      equal = np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    else:
      equal = np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if not equal:
      with np.errstate(all="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
      fields.append(f"{name} (by {'NaN' if np.isnan(gap) else f'up to {gap:.2g}'})")
  return fields


_close = functools.partial(list_differences, rtol=1e-5, atol=1e-6)


def _refuse(fields: list[str], before: str, after: str = "") -> None:
  """Raises a ``Violation`` that names the fields, if there are any."""
  if fields:
    raise Violation(f"{before}{_list(fields)}{after}")


def types(tree: Any) -> Any:
  """Gives structure, shapes, dtypes and weak types."""
  return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def refuse_other_types(whole: str, actual: Any, expected: Any) -> None:
  """Refuses a tree with another structure, or other types of leaves.

  Args:
    whole: how the tree is named.
    actual: the tree, of types (``jax.typeof``).
    expected: the tree that it has to be like.

  Raises:
    Violation: they differ.
  """
  if _structure_of(actual) != _structure_of(expected):
    raise Violation(f"the structure of {whole} is not that of a start")
  fields = []
  for name, a, b in zip(
    _parts(whole, actual), *map(jax.tree.leaves, (actual, expected)), strict=True
  ):
    if (a.shape, a.dtype) != (b.shape, b.dtype):
      fields.append(f"{name} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}")
    elif a.weak_type or b.weak_type:
      fields.append(f"{name} has a weak type")
  _refuse(
    fields,
    "",
    "; give every array its dtype, for example jnp.float32(1) in the place of 1.0",
  )


def check_report(aux: base.RoundAux, slots: int) -> None:
  """Checks shapes and types of a round's report.

  Args:
    aux: the report, of arrays or their types.
    slots: S.

  Raises:
    Violation: a field has another shape or type.
  """
  fields = []
  dtypes = (jnp.float32, jnp.int32, jnp.uint32, bool)
  for name, leaf in zip(_parts("report", aux), jax.tree.leaves(aux), strict=True):
    if leaf.dtype not in dtypes:
      fields.append(f"{name} is {leaf.dtype}")
    elif leaf.weak_type:
      fields.append(f"{name} has a weak type")
  fields += [
    f"report.client/{name} is {list(leaf.shape)}, not [{slots}]"
    for name, leaf in aux.client.items()
    if leaf.shape != (slots,)
  ]
  if not isinstance(aux.cost, base.RoundCost):
    raise Violation("report.cost is no RoundCost (base.round_cost makes one)")
  for name in ("down", "up", "exchanges", "example_gradients", "central_flops"):
    leaf = getattr(aux.cost, name)
    dtype = jnp.float32 if name == "central_flops" else jnp.int32
    if (leaf.shape, leaf.dtype) != ((), dtype):
      fields.append(f"report.cost/{name} is {leaf.dtype}{list(leaf.shape)}")
  _refuse(fields, "")


# The clauses.


def _structure(bench: Bench, age: int) -> None:
  """With numbers as arguments; a start has the types of one with constants."""
  del age
  if bench.is_own:
    own_algorithm.check_algorithm(
      f"`algorithm`={bench.name}",
      bench.algorithm,
      bench.problem.model,
      bench.spec,
      Participation(bench.spec.cohort_size),
      bench.problem.data,
    )
  bench.states(1)
  old, new, aux = bench.types
  constant = jax.eval_shape(
    lambda params, key: bench.algorithm.init(params, bench.spec, key),
    bench.model_shapes,
    jax.random.key(0),
  )
  refuse_other_types("state", old, constant)
  refuse_other_types("state", new, old)
  one_seed_of_start = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape[1:], leaf.dtype, weak_type=leaf.weak_type
    ),
    bench.initial,
  )
  refuse_other_types("state", new, one_seed_of_start)
  check_report(aux, bench.spec.cohort_size)


def _work(bench: Bench, age: int) -> None:
  """For the clock: counted for participants, nothing for padding slots.

  A gradient is three forward passes, so it agrees with the ledger.
  """
  cohort, _ = bench.round_inputs(age)
  _, aux = bench.round(age)
  _, of_fewer = bench.round(age, bench.fewer)
  if bench.is_own and aux.work is None:
    return  # without a simulated clock, as base.RoundAux allows
  if not isinstance(aux.work, base.Work) or aux.times is not None:
    raise Violation("report.work is no Work, or report.times is set")
  works = not bench.is_finished(age)
  for name, leaf in aux.work._asdict().items():
    if (leaf.shape, leaf.dtype) != (cohort.ids.shape, jnp.float32):
      raise Violation(
        f"work.{name} is {leaf.dtype}{list(leaf.shape)}, one for each slot"
      )
    fewer = getattr(of_fewer.work, name)
    if not np.isfinite(leaf).all():
      raise Violation(f"work.{name} is not finite")
    if not ((leaf > 0) == works).all():
      raise Violation(
        f"work.{name} is {leaf.tolist()}, must be positive for participants"
      )
    if (fewer[~bench.fewer.present] != 0).any():
      raise Violation(f"work.{name} of an empty slot is not 0")
    if not ((fewer[bench.fewer.present] > 0) == works).all():
      raise Violation(f"work.{name} of participants is 0 beside empty slots")
  gradients = int(aux.cost.example_gradients)
  if gradients and not (expected := cost_by_entry(bench, age)).beside:
    passes = 3 * gradients + expected.evaluations * int(cohort.shards.size.sum())
    flops = passes * bench.problem.model.flops
    if not np.isclose(aux.work.flops.sum(), flops, rtol=1e-5):
      raise Violation(
        f"work.flops adds up to {aux.work.flops.sum():g}, must be {flops:g}: three "
        f"forward passes for each of {gradients} gradients"
      )


def _one_trace(bench: Bench, age: int) -> None:
  """``trace_once`` fails at the second trace."""
  del age
  states, _ = bench.run(bench.initial, 0, 3)
  bench.run(states, 3, 2)


def _inputs(bench: Bench, age: int) -> None:
  del age
  inputs = bench.inputs(bench.states(3), 3, 1)
  before = checkpoint.state_hash(jax.tree.map(np.array, inputs[1]))
  first = bench.run_rounds(*inputs)
  second = bench.run_rounds(*bench.inputs(bench.states(3), 3, 1))
  _refuse(
    list_differences("state", first[0], second[0])
    + list_differences("report", first[1].aux, second[1].aux),
    "the same inputs give other bits of ",
  )
  if checkpoint.state_hash(inputs[1]) != before or any(
    leaf.is_deleted() for leaf in jax.tree.leaves(inputs[1:])
  ):
    raise Violation("a round changes its inputs")


def _order(bench: Bench, age: int) -> None:
  order = np.random.default_rng(age).permutation(bench.spec.cohort_size)
  state, aux = bench.round(age, bench.fewer)
  mixed_state, mixed_aux = bench.round(age, bench.fewer._replace(order=order))
  _refuse(
    _close("state", mixed_state, state)
    + _close("report.client", mixed_aux.client, row(aux.client, order))
    + _close("report.server", mixed_aux.server, aux.server),
    "the order of the slots changes ",
    "; take keys from client_keys(key, cohort.ids) and means from trees.slot_mean",
  )


def _padding(bench: Bench, age: int) -> None:
  expected, aux = bench.round(age, bench.fewer)
  data, first = nan_behind(bench.problem.data)
  poisoned, bad_aux = bench.round(age, bench.fewer._replace(offset=first), data=data)
  _refuse(
    list_differences("state", poisoned, expected)
    + list_differences("report.server", bad_aux.server, aux.server),
    "examples behind an empty slot change ",
    "; select slots with jnp.where or trees.slot_mean, 0 times NaN is NaN",
  )


@contextlib.contextmanager
def sums_alone() -> Iterator[None]:
  """Has rounds keep sums over clients alone where a method needs no more."""
  before = stacking.STACKED_BYTES
  stacking.STACKED_BYTES = 0
  try:
    yield
  finally:
    stacking.STACKED_BYTES = before


def devices_mesh() -> Any:
  """Makes a mesh of up to four CPU devices; None for one."""
  return sharding.clients_mesh(jax.devices("cpu")[:4])


def _maps(bench: Bench, age: int) -> None:
  """On cohorts with padding slots that point at NaN; lanes are vmap inside.

  Two lanes on each device, which keep sums alone where a method needs no more,
  against one client after the other on one device, which keeps all. Here numbers
  are constants, those of the run arguments of its program.
  """
  del age
  mesh = devices_mesh()
  with sums_alone():
    check_map(bench, clients.ClientMap("lanes", lanes=2, mesh=mesh), mesh)


def check_map(bench: Bench, map_clients: clients.ClientMap, mesh: Any = None) -> None:
  """Compares rounds with this map and PADDING slots more with those of a run.

  Those of whole cohorts have no padding slot in the run. Where slots of the
  cohort become some, the run has them as well, one client after the other.

  Args:
    bench: the method.
    map_clients: the map.
    mesh: its devices; None for one.

  Raises:
    Violation: they differ.
  """
  round_, real = None, slice(0, bench.spec.cohort_size)
  padding = layout.take_cohort(
    bench.problem.data, jnp.full(PADDING, bench.spec.num_clients, jnp.int32)
  )
  data, first = nan_behind(bench.problem.data)
  for age, slots in itertools.product(AGES, (bench.whole, bench.fewer)):
    expected, aux = bench.round(age, slots)
    cohort, key = bench.round_inputs(age)
    ids = jnp.concatenate([cohort.ids, padding.ids])
    cohort = Slots(
      np.arange(ids.size), np.append(slots.present, [False] * PADDING), first
    ).change(layout.take_cohort(data, ids))
    inputs: Any = (bench.state(age), cohort, key)
    if mesh is not None:
      inputs = sharding.replicate(inputs, mesh)
    if round_ is None:
      round_ = (
        jax.jit(bench.build(map_clients).round)
        .lower(*inputs)
        .compile(quick_compiler_options())
      )
    state, other_aux = round_(*inputs)
    # Sums alone do not give the mean distance from the mean.
    shared = other_aux.server.keys() & aux.server.keys()
    fields = [
      f"report.server/{name}" for name in aux.server.keys() - shared - {"discrepancy"}
    ]
    servers = (
      {name: server[name] for name in shared}
      for server in (other_aux.server, aux.server)
    )
    # The server's arithmetic may be counted by slots.
    costs = (cost._replace(central_flops=0) for cost in (other_aux.cost, aux.cost))
    works = (
      other_aux.work,
      aux.work
      and jax.tree.map(
        lambda leaf: np.append(leaf, np.zeros_like(leaf, shape=PADDING)), aux.work
      ),
    )
    _refuse(
      fields
      + _close("state", state, expected)
      + _close("report.client", row(other_aux.client, real), aux.client)
      + _close("report.server", *servers)
      + list_differences("report.cost", *costs)
      + list_differences("report.work", *works),
      f"the client map {map_clients.mode} with {PADDING} more empty slots changes ",
      f" of round {age + 1}; take means over slots from trees.slot_mean, and give "
      "what all clients share as the second argument of map_clients",
    )


def _resume(bench: Bench, age: int) -> None:
  del age
  whole, log = bench.run(bench.initial, 0, 6)
  half, first_log = bench.run(bench.initial, 0, 3)
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    checkpoint.save(folder, half, 3, {})
    shapes = jax.eval_shape(lambda s: s, bench.initial)
    restored, header, warnings = checkpoint.load_latest(folder, shapes)
  if header["round"] != 3 or warnings:
    raise Violation(f"a checkpoint of its state is not read again ({warnings})")
  _refuse(list_differences("state", restored, half), "a checkpoint changes ")
  resumed, second_log = bench.run(jax.device_put(restored), 3, 3)
  logs = jax.tree.map(
    lambda a, b: np.concatenate([np.asarray(a)[:, :3], np.asarray(b)[:, :3]], 1),
    first_log,
    second_log,
  )
  _refuse(
    list_differences("state", resumed, whole)
    + list_differences(
      "report", logs.aux, jax.tree.map(lambda leaf: np.asarray(leaf)[:, :6], log.aux)
    ),
    "three rounds, a checkpoint and three rounds are not six rounds in ",
    "; all that a round needs from the one before has to be in its state",
  )
  # Nor does where the restored arrays lie ask for another program.
  if bench.run_rounds._cache_size() != 1:
    raise Violation("a restored state needs another program")


def _seeds(bench: Bench, age: int) -> None:
  del age

  def differ(a: Any, b: Any) -> bool:
    return bool(list_differences("state", a, b))

  other_keys = bench.keys._replace(work=jax.random.split(jax.random.key(99), 2))
  changed = differ(bench.state(1), bench.round(0, keys=other_keys)[0])
  if bench.draws is not None and changed != bench.draws:
    raise Violation(
      "another key of a round changes nothing of the state, although mini-batches are "
      "drawn; take keys from the key of the round"
      if bench.draws
      else "another key of a round changes the state, although nothing is drawn"
    )
  if bench.draws is not False:
    states = bench.states(3)
    if not differ(row(states, 0), row(states, 1)):
      raise Violation("two seeds give the same state after three rounds")
    if not differ(bench.state(0), bench.state(1)):
      raise Violation("a round changes nothing of the state")


def _finite(bench: Bench, age: int) -> None:
  del age
  states, log = bench.run(bench.initial, 0, 6)
  fields = [
    name
    for name, leaf in zip(_parts("state", states), jax.tree.leaves(states))
    if not np.isfinite(leaf).all()
  ]
  rounds = jax.tree.map(np.asarray, log.finite)
  fields += [
    f"state.{name} in a round before the sixth"
    for name, rows in rounds.items()
    if not rows[:, :6].all() and f"state.{name}" not in fields
  ]
  fields += [
    name
    for name, leaf in zip(_parts("report", log.aux), jax.tree.leaves(log.aux))
    if not np.isfinite(np.asarray(leaf)[:, :6]).all()
  ]
  _refuse(fields, "NaN or infinite within six rounds: ")
  assert not any(rows[:, 6:].any() for rows in rounds.values())


def _client_models(bench: Bench, age: int) -> None:
  del age
  params, losses = bench.deploy_all(bench.state(3), jax.random.key(5))
  refuse_other_models(
    "client_params", params, bench.spec.num_clients + 1, bench.deployed_shapes
  )
  fields = [
    name
    for name, leaf in zip(
      _parts("client_params", params), jax.tree.leaves(params), strict=True
    )
    if leaf.weak_type or not np.isfinite(leaf).all()
  ]
  if not np.isfinite(losses).all():
    fields.append("the loss of its models")
  _refuse(fields, "not finite, or of a weak type: ")


def refuse_other_models(name: str, params: Any, count: int, shapes: Any) -> None:
  """Refuses what is not ``count`` models of these shapes along a first axis.

  Args:
    name: the function that returned them.
    params: the models, leaves [count, ...].
    count: their number.
    shapes: the model's parameters, as shapes.

  Raises:
    Violation: something differs.
  """
  if _structure_of(params) != _structure_of(shapes):
    raise Violation(f"{name} does not return parameters of the model")
  _refuse(
    [
      f"{field} is {leaf.dtype}{list(leaf.shape)}, not {[count, *must.shape]}"
      for field, leaf, must in zip(
        _parts(name, params), *map(jax.tree.leaves, (params, shapes)), strict=True
      )
      if (leaf.shape, leaf.dtype) != ((count, *must.shape), must.dtype)
    ],
    "",
  )


def _global_models(bench: Bench, age: int) -> None:
  del age
  algorithm = bench.algorithm
  if algorithm.membership is not None:
    member = algorithm.membership(bench.state(3))
    if (member.shape, member.dtype) != ((bench.spec.num_clients,), jnp.int32):
      raise Violation(
        f"membership is {member.dtype}{list(member.shape)}, must be "
        f"int32[{bench.spec.num_clients}]"
      )
    if (np.asarray(member) < -1).any() or not (np.asarray(member) >= 0).any():
      raise Violation(
        f"membership is {np.asarray(member).tolist()} after three rounds, must be -1 "
        "or a group"
      )
  if algorithm.global_params is not None:
    shapes = jax.eval_shape(algorithm.global_params, bench.state(3))
    refuse_other_models("global_params", shapes, bench.models, bench.model_shapes)


def cost_by_entry(bench: Bench, age: int) -> Expected:
  """Gives the cost of the round after ``age`` rounds, as the entry states it.

  Raises:
    Violation: the entry states none.
  """
  if not bench.entry.ledger:
    raise Violation(
      "give its registry.Entry a ledger, which states what a round costs: "
      "expected.vectors(1, 1) for a model down and a model up, or a function that "
      f"gets a rounds.expected.Played ({', '.join(Played._fields)}) and returns a "
      f"rounds.expected.Expected ({', '.join(Expected._fields)})"
    )
  return bench.entry.ledger(bench.facts_of_round(age))


def _ledger(bench: Bench, age: int) -> None:
  check_costs(bench, age, bench.round(age)[1].cost)


def check_costs(bench: Bench, age: int, cost: base.RoundCost) -> None:
  """Compares the cost of the round after ``age`` rounds with the entry's ledger.

  Args:
    bench: the method.
    age: rounds before it.
    cost: its cost.

  Raises:
    Violation: they differ.
  """
  expected = cost_by_entry(bench, age)
  if bench.entry.rounds and age:  # the layer has been sent
    expected = Expected(0, 0, 0, 0)
  names = ("down", "up", "exchanges", "gradients")
  billed = dict(zip(names, map(int, cost[:4])))
  stated = {name: math.ceil(getattr(expected, name)) for name in names}
  if billed != stated:
    wrong = [name for name in names if billed[name] != stated[name]]
    raise Violation(
      "the RoundCost of its round bills "
      + ", ".join(f"{name}={billed[name]}" for name in wrong)
      + ", the ledger of its Entry states "
      + ", ".join(f"{name}={stated[name]}" for name in wrong)
      + " of a Played with "
      + ", ".join(
        f"{name}={value}"
        for name, value in bench.facts_of_round(age)._asdict().items()
        if isinstance(value, (int, tuple)) and name != "state"
      )
    )
  for name, nbytes, floats in zip(
    ("bytes_down", "bytes_up"), (cost.bytes_down, cost.bytes_up), expected
  ):
    if nbytes is None:
      if floats != int(floats):
        raise Violation(f"cost.{name} is None, the ledger states {4 * floats} bytes")
    elif (nbytes.dtype, int(nbytes)) != (jnp.uint32, 4 * floats):
      raise Violation(
        f"cost.{name} is {nbytes.dtype} {int(nbytes)}, must be uint32 {4 * floats:g}"
      )
  if not cost.central_flops >= 0:
    raise Violation(f"cost.central_flops is {cost.central_flops}")


def _learning(bench: Bench, age: int) -> None:
  """A convex problem: the clients' own losses fall."""
  del age
  key = jax.random.key(5)
  before = bench.deploy_all(bench.state(0), key)[1]
  after = bench.deploy_all(bench.state(MAX_ROUNDS), key)[1]
  weight = np.array([*SIZES, 0]) / sum(SIZES)
  if not weight @ after < _LEARNED * (weight @ before):
    raise Violation(
      f"the clients' mean loss is {weight @ before:.3g} before and "
      f"{weight @ after:.3g} after {MAX_ROUNDS} rounds, must fall below "
      f"{100 * _LEARNED:.0f} %; "
      "test_hparams of the Entry sets hyper-parameters of this check"
    )


def primitives(jaxpr: Any) -> Iterator[str]:
  """Names all primitives of a jaxpr and of those inside it."""
  for eqn in jaxpr.eqns:
    yield eqn.primitive.name
    for sub in jex_core.jaxprs_in_params(eqn.params):
      yield from primitives(sub)


def callbacks_in(jaxpr: Any) -> list[str]:
  """Names the primitives that call the host."""
  return sorted(
    name for name in {*primitives(jaxpr)} if "callback" in name or "print" in name
  )


def _on_the_device(bench: Bench, age: int) -> None:
  """Nothing leaves the device during a run."""
  del age
  args = bench.inputs(bench.initial, 0, 2)
  jaxpr = bench.run_rounds.trace(*args).jaxpr.jaxpr
  assert "while" in {*primitives(jaxpr)}
  _refuse(
    callbacks_in(jaxpr),
    "a round calls the host with ",
    " (jax.debug.print, pure_callback)",
  )
  with jax.transfer_guard("disallow"):
    states, _ = bench.run_rounds(*args)
  _refuse(list_differences("state", states, bench.states(2)), "another run changes ")


class Beginning(NamedTuple):
  """A start, the set-up, a round and what is made of the state after it."""

  start: Any
  before: Any
  after: Any
  aux: Any
  params: Any  #: of a client
  models: Any
  membership: Any


def begin(
  bench: Bench, map_clients: clients.ClientMap
) -> Callable[[Any, Any, Any], Beginning]:
  """Makes (numbers, data, keys) -> Beginning of one seed, with empty slots.

  Args:
    bench: the method.
    map_clients: how client code is mapped over the cohort with PADDING slots more.
  """

  def run(numbers: Any, data: Any, keys: Any) -> Beginning:
    algorithm = bench.method.builder(bench.problem.model, map_clients)(numbers)
    start = algorithm.init(bench.problem.model.init(keys.model), bench.spec, keys.start)
    before = algorithm.setup(start, layout.everyone(data), keys.start)
    cohort = sample_cohort(
      data, bench.spec.cohort_size, jax.random.fold_in(keys.cohort, 0)
    )
    ids = jnp.pad(cohort.ids, (0, PADDING), constant_values=bench.spec.num_clients)
    after, aux = algorithm.round(
      before, layout.take_cohort(data, ids), jax.random.fold_in(keys.work, 0)
    )
    shard = layout.shard_of(data, 0)
    return Beginning(
      start,
      before,
      after,
      aux,
      algorithm.client_params(after, jnp.int32(0), shard, keys.evaluation),
      algorithm.global_params and algorithm.global_params(after),
      algorithm.membership and algorithm.membership(after),
    )

  return run


def one_seed(bench: Bench) -> tuple[Any, Any, Any]:
  """Makes arguments of ``begin``."""
  return row(bench.numbers, 0), bench.problem.data, run_keys(SEEDS[0])


def _map_types(bench: Bench, age: int) -> None:
  """Also where sums alone are kept; what clients share is an argument."""
  del age
  check_map_types(
    bench, jax.eval_shape(begin(bench, clients.ClientMap()), *one_seed(bench))
  )


def check_map_types(bench: Bench, expected: Beginning) -> None:
  """Traces a round in another client map, which gives the types of this one.

  Args:
    bench: the method.
    expected: the types of its ``begin``.

  Raises:
    Violation: it gives others.
  """
  with sums_alone():
    lanes = clients.ClientMap("lanes", lanes=2, mesh=devices_mesh())
    other = jax.eval_shape(begin(bench, lanes), *one_seed(bench))
  refuse_other_types("state", other.after, expected.after)
  check_report(other.aux, bench.spec.cohort_size + PADDING)


def _defaults(bench: Bench, age: int) -> None:
  """Defaults are in their ranges."""
  del age
  for part in bench.entry.parts():
    hparams_lib.validate(part)


def _ranges(bench: Bench, age: int) -> None:
  del age
  check_ranges(bench.name, bench.entry, bench.problem.model, bench.is_own)


def check_ranges(
  name: str, entry: registry.Entry, model: base.Model, is_own: bool = False
) -> str:
  """Sets the first number with a lower bound below it, which is refused.

  Args:
    name: the method.
    entry: its entry.
    model: a model.
    is_own: whether it is a user's own, which may leave the check to the run.

  Returns:
    The field; "" if no number has a lower bound.

  Raises:
    Violation: it is not refused.
    OptionError: it is, but in other words.
  """
  for field in dataclasses.fields(entry.hparams):
    for bound in map(field.metadata.get, ("minimum", "above")):
      if bound is None:
        continue
      value = type(cast(Any, field.default))(bound - 1)
      try:
        if is_own:
          method = methods.Method(name, entry, *entry.parts())
          methods.with_keywords(method, {field.name: value})
        entry.make(model, *entry.parts(**{field.name: value}), clients.ClientMap())
      except OptionError as error:
        if f"{field.name}={value}: must be" in str(error).replace("`", ""):
          return field.name
        raise
      raise Violation(f"{field.name}={value} is not refused")
  return ""


MAPS = Promise("client maps", _maps)
MAP_TYPES = Promise("types in client maps", _map_types)
#: Clauses on the method's program, which the tests hold compiled methods to.
COMPILED = (
  Promise("structure", _structure),
  Promise("work", _work, AGES),
  Promise("one program", _one_trace),
  Promise("inputs", _inputs),
  Promise("order of slots", _order, AGES),
  Promise("empty slots", _padding, AGES),
  Promise("resume", _resume),
  Promise("seeds", _seeds),
  Promise("finite", _finite),
  Promise("client models", _client_models),
  Promise("global models", _global_models),
  Promise("ledger", _ledger, AGES),
  Promise("learning", _learning),
  Promise("on the device", _on_the_device),
)
#: All clauses. Without the first one the others have no meaning.
CLAUSES = (
  *COMPILED,
  MAPS,
  MAP_TYPES,
  *(Promise(*pair) for pair in contract_roles.CHECKS),
  Promise("defaults", _defaults),
  Promise("ranges", _ranges),
)


def cases(clauses: tuple[Promise, ...] = CLAUSES) -> list[Case]:
  """Lists every clause at every round at which it is tested."""
  return [Case(clause, age) for clause in clauses for age in clause.ages]


class Finding(NamedTuple):
  """A case that was tested."""

  case: Case
  sentence: str  #: of a violation; "" if the clause holds


def check(algorithm: object) -> Iterator[Finding]:
  """Holds a method to all clauses, on a small convex problem.

  Args:
    algorithm: a ``registry.Entry``, or what ``fa.run`` takes.

  Yields:
    An ``Finding`` for each case. A method that breaks the first clause has one
    alone.

  Raises:
    OptionError: there is no such method, or its builder refuses the settings.
  """
  method = methods.method_of(algorithm)
  bench = Bench(method.name, softmax_problem(), method.entry)
  for case in cases():
    finding = Finding(case, case.violation(bench))
    yield finding
    if finding.sentence and case.clause is CLAUSES[0]:
      return
