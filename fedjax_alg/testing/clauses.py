"""The promises of every algorithm (``fedjax_alg.base``), as a list of clauses.

``fedjax-alg check`` holds a user's own method to these clauses, and the tests in
``tests/contract`` the library's. A clause that does not hold is one sentence,
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

from fedjax_alg import base
from fedjax_alg import hparams as hparams_lib
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import layout
from fedjax_alg.engine import checkpoint, clients, loop, sharding
from fedjax_alg.errors import FAILURES, OptionError, describe_error
from fedjax_alg.exchange import stacking
from fedjax_alg.rounds.expected import Expected, Played
from fedjax_alg.runs import methods, own_algorithm
from fedjax_alg.testing import roles
from fedjax_alg.testing.bench import (
  MAX_ROUNDS,
  PADDING,
  SIZES,
  Bench,
  Slots,
  Violation,
  check_shapes,
  map_of_several,
  nan_behind,
  quick_jit,
  row,
  softmax_problem,
)

#: Rounds of every kind: first, round T + 1 of the diversified methods, later.
AGES = (0, 1, 3)
#: The most fields that a sentence names.
_MOST_FIELDS = 4
#: The clients' mean loss (or share of mistakes) after ``MAX_ROUNDS``, in parts of the
#: first one.
_LEARNED = 0.85

Check = Callable[[Bench, int], None]


class Promise(NamedTuple):
  """A promise of every algorithm, and how it is tested."""

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


def _not_finite(whole: str, tree: Any) -> list[str]:
  """The fields that have NaN or an infinite number."""
  return [
    name
    for name, leaf in zip(_parts(whole, tree), jax.tree.leaves(tree), strict=True)
    if not np.isfinite(leaf).all()
  ]


def _refuse(fields: list[str], before: str, after: str = "") -> None:
  """Raises a ``Violation`` that names the fields, if there are any."""
  if fields:
    raise Violation(f"{before}{_list(fields)}{after}")


# The clauses.


def _structure(bench: Bench, age: int) -> None:
  """With numbers as constants, and as arguments of the program of a run."""
  del age
  given = bench.method, bench.problem, clients.ClientMap()
  constant, traced = (
    check_shapes(*given, {}),
    check_shapes(*given, row(bench.numbers, 0)),
  )
  own_algorithm.ShapeCheck(f"`algorithm`={bench.name}", bench.problem.model).same(
    "setup", traced, constant, "what it does where its numbers are constants"
  )


def _work(bench: Bench, age: int) -> None:
  """For the clock: counted for participants, nothing for padding slots.

  A gradient is three forward passes, so it agrees with the ledger.
  """
  cohort, _ = bench.round_inputs(age)
  _, aux = bench.round(age)
  _, of_fewer = bench.round(age, bench.fewer)
  if aux.work is None:
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
    if (fewer != leaf)[bench.fewer.present].any():
      raise Violation(f"work.{name} of a client depends on who else takes part")
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
    if (aux.work.batches * bench.problem.model.flops > aux.work.flops).any():
      raise Violation("work.batches is above the examples that work.flops pays for")


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


def _rows(bench: Bench, age: int) -> None:
  """Blocks that start inside a client go on into rows of the next one.

  Clients who do not take part hold the rows of one who does, as a round may read
  all clients. Their own rows are then nobody's.
  """
  data = bench.problem.data
  ids = np.asarray(bench.round_inputs(age)[0].ids)[bench.fewer.present]
  offset, size = np.array(data.offset), np.array(data.size)
  absent = np.setdiff1d(np.arange(size.size), ids)
  rows = np.concatenate([offset[i] + np.arange(size[i]) for i in absent])
  offset[absent], size[absent] = offset[ids[0]], size[ids[0]]
  data = data._replace(offset=jnp.asarray(offset), size=jnp.asarray(size))
  negated = data._replace(x=data.x.at[rows].multiply(-3.0))
  expected, of_expected = bench.round(age, bench.fewer, data=data)
  changed, of_changed = bench.round(age, bench.fewer, data=negated)
  _refuse(
    list_differences("state", changed, expected)
    + list_differences("report.server", of_changed.server, of_expected.server),
    "examples of no client change ",
    "; a client has the rows offset .. offset + size - 1, mask those behind them",
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


def _maps(bench: Bench, age: int) -> None:
  """On cohorts with padding slots that point at NaN, on several devices.

  The map keeps sums alone where a method needs no more; it is compared with one
  client after the other on one device, which keeps all. Here numbers are
  constants, those of the run arguments of its program.
  """
  del age
  with sums_alone():
    check_map(bench, map_of_several())


def check_map(bench: Bench, map_clients: clients.ClientMap) -> None:
  """Compares rounds with this map and PADDING slots more with those of a run.

  Those of whole cohorts have no padding slot in the run. Where slots of the
  cohort become some, the run has them as well, one client after the other.

  Args:
    bench: the method.
    map_clients: the map.

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
    if map_clients.mesh is not None:
      inputs = sharding.replicate(inputs, map_clients.mesh)
    if round_ is None:
      round_ = quick_jit(bench.build(map_clients).round).lower(*inputs).compile()
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
  clients_draw = issubclass(bench.entry.hparams, LocalWork)
  if clients_draw and not changed:
    raise Violation(
      "another key of a round changes nothing of the state, although mini-batches are "
      "drawn; take keys from the key of the round"
    )
  if clients_draw and _draw_alike(bench, other_keys):
    raise Violation(
      "clients with the same examples draw the same; take keys from client_keys(key, "
      "cohort.ids)"
    )
  states, draws = bench.states(3), changed or not bench.entry.all_clients
  if draws and not differ(row(states, 0), row(states, 1)):
    raise Violation("two seeds give the same state after three rounds")
  if not differ(bench.state(0), bench.state(1)):
    raise Violation("a round changes nothing of the state")


def _draw_alike(bench: Bench, keys: Any) -> bool:
  """Whether clients with the same examples do to models what fewer of them do.

  Tables of clients are left out: who takes part has another row.
  """
  data = bench.problem.data
  largest = int(np.argmax(data.size))
  offset, size = (
    jnp.full_like(leaf, leaf[largest]) for leaf in (data.offset, data.size)
  )
  same = data._replace(offset=offset, size=size)

  def shared(**changes: Any) -> Any:
    return [
      leaf
      for age in (0, 1)
      for leaf, is_table in zip(
        jax.tree.leaves(bench.round(age, data=same, **changes)[0]), bench.tables
      )
      if not is_table
    ]

  models = shared()
  drawn = list_differences("", shared(keys=keys), models)
  return bool(drawn) and not _close("", shared(slots=bench.fewer), models)


def _finite(bench: Bench, age: int) -> None:
  del age
  states, log = bench.run(bench.initial, 0, 6)
  fields = _not_finite("state", states)
  rounds = jax.tree.map(np.asarray, log.finite)
  fields += [
    f"state.{name} in a round before the sixth"
    for name, rows in rounds.items()
    if not rows[:, :6].all() and f"state.{name}" not in fields
  ]
  fields += _not_finite("report", jax.tree.map(lambda leaf: leaf[:, :6], log.aux))
  _refuse(fields, "NaN or infinite within six rounds: ")
  assert not any(rows[:, 6:].any() for rows in rounds.values())


def _client_models(bench: Bench, age: int) -> None:
  """Of all clients and a newcomer."""
  del age
  state, key = bench.state(3), jax.random.key(5)
  params, losses = bench.deploy_all(state, key)
  fields = _not_finite("client_params", params)
  if not np.isfinite(losses).all():
    fields.append("the loss of its models")
  if bench.algorithm.client_copy is not None:
    fields += _not_finite("client_copy", bench.client_models("client_copy")(state, key))
  _refuse(fields, "not finite: ")


def _newcomers(bench: Bench, age: int) -> None:
  """A newcomer has id C: JAX would clamp it to the last client's row."""
  del age
  state, key = bench.state(3), jax.random.key(5)
  count = bench.spec.num_clients

  def swap(leaf: Any) -> Any:
    order = np.arange(leaf.shape[0])  # a table may have rows of nobody in the end
    order[[0, count - 1]] = order[[count - 1, 0]]
    return leaf[order]

  leaves, structure = jax.tree.flatten(state)
  swapped = [
    swap(leaf) if is_table else leaf
    for leaf, is_table in zip(leaves, bench.tables, strict=True)
  ]
  models = [
    row(bench.deploy_all(state, key)[0], count)
    for state in (state, jax.tree.unflatten(structure, swapped))
  ]
  _refuse(
    _close("client_params", *models),
    "what the last client keeps changes ",
    f" of a client that the state does not know, whose id is C = {count}",
  )


def _idle(bench: Bench, age: int) -> None:
  """Models stay in a round without participants; counters may go on."""
  del age

  def is_counter(leaf: Any) -> bool:
    return leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)

  algorithm, state, key = bench.algorithm, bench.state(3), jax.random.key(5)
  if algorithm.idle is None:
    return
  count, slots = bench.spec.num_clients, bench.spec.cohort_size
  nobody = layout.take_cohort(bench.problem.data, jnp.full(slots, count, jnp.int32))
  after = jax.tree.map(
    lambda new, old: old if is_counter(old) else new,
    quick_jit(algorithm.idle)(state, nobody),
    state,
  )
  fields = list_differences(
    "client_params", bench.deploy_all(after, key)[0], bench.deploy_all(state, key)[0]
  )
  if algorithm.global_params is not None:
    models = quick_jit(algorithm.global_params)
    fields += list_differences("global_params", models(after), models(state))
  _refuse(fields, "idle, a round without participants, changes ")


def _parts_of_work(bench: Bench, age: int) -> None:
  """All of the work is what it is without ``Cohort.part``, a part is less."""
  del age
  if not bench.algorithm.takes_parts:
    return
  cohort, key = bench.round_inputs(0)

  @quick_jit
  def state_after(state: Any, part: Any) -> Any:
    parts = jnp.full(cohort.ids.shape, part, jnp.float32)
    return bench.algorithm.round(state, cohort._replace(part=parts), key)[0]

  full, half = (state_after(bench.state(0), part) for part in (1.0, 0.5))
  _refuse(
    _close("state", full, bench.round(0)[0]),
    "cohort.part of 1, which is all of the work, changes ",
  )
  if not list_differences("state", half, full):
    raise Violation(
      "takes_parts is set, and cohort.part of 0.5 changes nothing of the state; train "
      "with shard.part, or leave it unset, so that late clients are refused"
    )


def _global_models(bench: Bench, age: int) -> None:
  del age
  algorithm, state = bench.algorithm, bench.state(3)
  if algorithm.global_params is not None:
    models = quick_jit(algorithm.global_params)(state)
    _refuse(_not_finite("global_params", models), "not finite: ")
  if algorithm.membership is not None:
    member = np.asarray(quick_jit(algorithm.membership)(state))
    groups = bench.models if algorithm.global_params is not None else np.inf
    if not ((member >= -1) & (member < groups)).all() or not (member >= 0).any():
      raise Violation(
        f"membership is {member.tolist()} after three rounds, must be -1 or a group "
        f"below K = {groups}"
      )


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
  """A convex problem: the clients' own losses fall, or their mistakes."""
  del age
  key = jax.random.key(5)
  before = bench.deploy_all(bench.state(0), key)[1]
  after = bench.deploy_all(bench.state(MAX_ROUNDS), key)[1]
  weight = np.array([*SIZES, 0]) / sum(SIZES)
  if not weight @ after < _LEARNED * (weight @ before):
    measure = "share of mistakes" if bench.entry.rounds else "mean loss"
    raise Violation(
      f"the clients' {measure} is {weight @ before:.3g} before and "
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


def _map_types(bench: Bench, age: int) -> None:
  """Also where sums alone are kept; what clients share is an argument."""
  del age
  with sums_alone():
    check_shapes(bench.method, bench.problem, map_of_several(), row(bench.numbers, 0))


def _defaults(bench: Bench, age: int) -> None:
  """Defaults are in their ranges."""
  del age
  for part in bench.entry.parts():
    hparams_lib.validate(part)


def _ranges(bench: Bench, age: int) -> None:
  """The first number with a lower bound is refused below it."""
  del age
  for field in dataclasses.fields(bench.entry.hparams):
    for bound in map(field.metadata.get, ("minimum", "above")):
      if bound is not None:
        value = type(cast(Any, field.default))(bound - 1)
        _require_refusal(bench, field.name, value)
        return


def _require_refusal(bench: Bench, name: str, value: Any) -> None:
  method = methods.Method(bench.name, bench.entry, *bench.entry.parts())
  try:
    methods.with_keywords(method, {name: value}).build(
      bench.problem.model, clients.ClientMap()
    )
  except OptionError as error:
    if f"{name}={value}: must be" in str(error).replace("`", ""):
      return
    raise
  raise Violation(f"{name}={value} is not refused")


#: Without it the others have no meaning.
STRUCTURE = Promise("structure", _structure)
MAPS = Promise("client maps", _maps)
MAP_TYPES = Promise("types in client maps", _map_types)
#: Clauses on the method's program, which the tests hold compiled methods to.
COMPILED = (
  STRUCTURE,
  Promise("work", _work, AGES),
  Promise("one program", _one_trace),
  Promise("inputs", _inputs),
  Promise("order of slots", _order, AGES),
  Promise("empty slots", _padding, AGES),
  Promise("rows of clients", _rows, AGES),
  Promise("resume", _resume),
  Promise("seeds", _seeds),
  Promise("finite", _finite),
  Promise("client models", _client_models),
  Promise("newcomers", _newcomers),
  Promise("idle rounds", _idle),
  Promise("global models", _global_models),
  Promise("ledger", _ledger, AGES),
  Promise("learning", _learning),
  Promise("on the device", _on_the_device),
)
#: All clauses.
CLAUSES = (
  *COMPILED,
  MAPS,
  MAP_TYPES,
  Promise("parts of the work", _parts_of_work),
  *(Promise(*pair) for pair in roles.CHECKS),
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
    algorithm: a ``registry.Entry``, or what ``fa.run`` takes. The options of a
      configuration such as ``fa.FedProx(mu=0.1)`` are part of what is checked.

  Yields:
    A ``Finding`` for each case. A method that breaks the first clause has one
    alone.

  Raises:
    OptionError: there is no such method, or its builder refuses the settings.

  Examples:
    >>> first = next(check("fedavg"))
    >>> str(first.case), first.sentence
    ('structure', '')
  """
  method = methods.method_of(algorithm)
  settings = {name: method.options[name] for name in method.explicit}
  entry = method.entry
  if settings:
    entry = entry._replace(test_hparams={**entry.test_hparams, **settings})
  bench = Bench(method.name, softmax_problem(), entry)
  for case in cases():
    finding = Finding(case, case.violation(bench))
    yield finding
    if finding.sentence and case.clause is STRUCTURE:
      return
