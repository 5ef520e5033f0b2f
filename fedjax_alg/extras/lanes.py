"""Lanes: V clients step together, and who has finished makes room for the next.

The code of one client is traced once, and parted at its loops whose number of
steps depends on the client: those of ``client.minibatches.fold_steps`` and
``client.objective.fold_blocks``. For each loop all clients pass through V
lanes, the largest first. A lane takes a client, which is the code before the
loop, and steps with the other lanes. When clients have finished, their results
are written, or added to the running sum, which is the code after the loop, and
their lanes take the next clients. So ``vmap`` pays for the largest client V
times at most, not S times.

Several loops one after the other (a pass over the data before the local steps,
two models of a client) each have all clients pass, so that every loop is packed
by itself; what a loop leaves is kept for each client, what is computed without
a loop is computed anew where it is needed. A loop inside another loop, or in a
``lax.cond``, runs as under ``vmap``, to the longest of the lanes. Code without
such a loop runs for all clients at once.

Under ``jax.vmap`` (seeds and settings of a sweep) the clients of all rows are
one pool: a lane takes clients of any row. Each row by itself would wait for the
longest row in every loop.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import functools
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.core import primitives
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Shard
from fedjax_alg.typing import PyTree

#: For how many local steps the lanes draw rows at once. A lane takes the next
#: client after a whole number of such stretches.
STEPS_PER_DRAW = 8

# Kinds of operands of the client's code, by what they depend on.
_SHARED, _BY_ROW, _BY_SLOT = "shared", "by row", "by slot"

Var = jex_core.Var
Atom = jex_core.Var | jex_core.Literal


def default_lanes(slots: int, rows: int = 1) -> int:
  """V for a cohort: the largest power of two whose square is at most S.

  Clients of heavy-tailed sizes then hardly take longer than the largest of
  them does alone, and few lanes wait for it. Several rows (seeds, settings)
  share half as many for each: their largest client is larger than one row's.

  Args:
    slots: S, of one row and one device.
    rows: R, how many rows share the lanes.

  Examples:
    >>> [default_lanes(slots) for slots in (1, 3, 4, 20, 63, 64, 100, 1000)]
    [1, 1, 2, 4, 4, 8, 8, 16]
    >>> default_lanes(20, rows=3), default_lanes(100, rows=160)
    (6, 640)
  """
  lanes = 1
  while (2 * lanes) ** 2 <= slots:
    lanes *= 2
  return lanes if rows == 1 else (rows * lanes + 1) // 2


def map_slots(
  fn: Callable[..., PyTree],
  shared: PyTree,
  shards: Shard,
  args: PyTree,
  weights: PyTree = None,
  lanes: int = 0,
) -> Any:
  """Maps the code of one client over slots, in lanes.

  Args:
    fn: see ``base.MapClients``.
    shared: see ``base.MapClients``.
    shards: see ``base.MapClients``.
    args: tuple of the arguments with a leading axis [S].
    weights: None to stack all that ``fn`` returns; else as in ``reduce``.
    lanes: V; 0: ``default_lanes``.

  Returns:
    What ``fn`` returns, leaves [S, ...]; with weights the pair (sum, stacked).
  """
  common, by_slot = (shared, shards.x, shards.y), (shards.offset, shards.size, args)

  def run_client(common, slot):
    (shared, x, y), (offset, size, args) = common, slot
    shard = Shard(x, y, offset, size, steps_per_draw=STEPS_PER_DRAW)
    return fn(shared, shard, *args)

  client, out = jax.make_jaxpr(run_client, return_shape=True)(
    common, jax.eval_shape(lambda tree: trees.index(tree, 0), by_slot)
  )
  leaves, tree = jax.tree.flatten(out)
  kinds = [_SHARED] * (len(client.consts) + len(jax.tree.leaves(common)))
  kinds += [_BY_SLOT] * len(jax.tree.leaves(by_slot))
  leaf_weights: list[Array] = []  # of the summed leaves
  if weights is not None:
    leaf_weights = jax.tree.leaves(
      jax.tree.map(
        lambda weight, part: jax.tree.map(lambda _: weight, part), weights, out[0]
      )
    )
  totals, stacked = _pool(
    client.jaxpr,
    kinds,
    1,
    lanes,
    shards.size,
    leaf_weights,
    [*client.consts, *jax.tree.leaves((common, by_slot))],
  )
  assert len(leaves) == len(totals) + len(stacked)
  return jax.tree.unflatten(tree, [total[0] for total in totals] + stacked)


def _pool(
  jaxpr: jex_core.Jaxpr,
  kinds: Sequence[str],
  rows: int,
  lanes: int,
  size: Array,
  weights: list[Array],
  operands: Sequence[Array],
) -> tuple[list[Array], list[Array]]:
  """The clients of all rows in one pool, under any number of ``jax.vmap``.

  Args:
    jaxpr: the code of one client; its operands are its constants and inputs.
    kinds: how each operand depends on the client.
    rows: R; the N slots are those of the first row, of the second, ...
    lanes: V, lanes for each row; 0: ``default_lanes``.
    size: [N] int32, examples of each slot.
    weights: [N] or [N, K] float32 of each output that is summed; these are the
      first ones.
    operands: [...] if shared, [R, ...] if by row, [N, ...] if by slot.

  Returns:
    The sums, [R, ...] or [R, K, ...], and the other outputs, [N, ...].
  """

  @jax.custom_batching.custom_vmap
  def call(size, weights, operands):
    return _run_rows(jaxpr, kinds, rows, lanes, size, weights, operands)

  @call.def_vmap
  def call_rows(count, batched, size, weights, operands):
    def flatten_rows(leaf, batched):
      """[count, n, ...] or [n, ...] -> [count * n, ...]."""
      if not batched:
        leaf = jnp.broadcast_to(leaf[None], (count, *leaf.shape))
      return leaf.reshape((-1, *leaf.shape[2:]))

    size, weights = jax.tree.map(flatten_rows, (size, weights), tuple(batched[:2]))
    new_kinds, new_operands = [], []
    for kind, leaf, is_batched in zip(kinds, operands, batched[2], strict=True):
      if kind == _SHARED and is_batched:
        kind = _BY_ROW
        leaf = jnp.repeat(leaf, rows, axis=0)
      elif kind != _SHARED:
        leaf = flatten_rows(leaf, is_batched)
      new_kinds.append(kind)
      new_operands.append(leaf)
    out = _pool(jaxpr, new_kinds, count * rows, lanes, size, weights, new_operands)
    out = jax.tree.map(lambda leaf: leaf.reshape((count, -1, *leaf.shape[1:])), out)
    return out, jax.tree.map(lambda _: True, out)

  result: tuple[list[Array], list[Array]] = call(size, weights, list(operands))
  return result


def _run_rows(
  jaxpr: jex_core.Jaxpr,
  kinds: Sequence[str],
  rows: int,
  lanes: int,
  size: Array,
  weights: list[Array],
  operands: Sequence[Array],
) -> tuple[list[Array], list[Array]]:
  """``_pool`` where nothing is vectorized from outside."""
  slots = size.shape[0]
  code = _Code(jaxpr, kinds, operands, slots // rows)
  order = jnp.argsort(-size, stable=True).astype(jnp.int32)
  if code.loops:
    lanes = lanes * rows or default_lanes(slots // rows, rows)
  else:  # nobody waits for anybody
    lanes = slots
  queue = _Queue(order, min(lanes, slots))
  passes: list[Any] = code.loops or [None]
  for loop in passes[:-1]:
    outputs = [var for var in loop.outvars if var in code.needed]
    _, out = _pass(code, loop, queue, outputs)
    code.stored.update(zip(outputs, out, strict=True))
  return _pass(code, passes[-1], queue, jaxpr.outvars, weights, rows, effects=True)


class _Code:
  """The code of one client, parted at its loops.

  Attributes:
    loops: the equations of the loops whose number of steps depends on the
      client.
    needed: the variables that are read for the results.
    stored: variable -> [N, ...], what earlier loops left.
  """

  def __init__(
    self,
    jaxpr: jex_core.Jaxpr,
    kinds: Sequence[str],
    operands: Sequence[Array],
    per_row: int,
  ):
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    self._jaxpr, self._per_row = jaxpr, per_row
    # Otherwise float64 parts of the code would become float32 when vectorized.
    self._double = _has_double(jaxpr)
    self._inputs = {
      var: (kind, operand)
      for var, kind, operand in zip(inputs, kinds, operands, strict=True)
      if kind != _SHARED
    }
    self._common = {
      var: operand
      for var, kind, operand in zip(inputs, kinds, operands, strict=True)
      if kind == _SHARED
    }
    self.stored: dict[Var, Array] = {}
    #: variables of which each client has its own value; in a fixed order, as
    #: all sets here, so that the program is the same in every process
    self._own = dict.fromkeys(self._inputs)
    _spread(jaxpr.eqns, self._own)
    same, self._straight, loops = [], [], []
    for eqn in jaxpr.eqns:
      if not eqn.effects and not any(var in self._own for var in eqn.outvars):
        same.append(eqn)
      elif eqn.primitive is primitives.while_p and _own_carry(eqn, self._own)[1]:
        loops.append(eqn)
      else:
        self._straight.append(eqn)
    self.needed = _dependencies(jaxpr.eqns, jaxpr.outvars, effects=True)
    self.loops = [
      loop for loop in loops if any(var in self.needed for var in loop.outvars)
    ]
    shared_vars = [var for eqn in same for var in eqn.outvars if var in self.needed]
    self._common.update(
      zip(
        shared_vars,
        self._compute(same, shared_vars, self._common.__getitem__),
        strict=True,
      )
    )

  def _compute(
    self,
    eqns: Sequence[Any],
    outputs: Sequence[Atom],
    value: Callable[[Var], Array],
    effects: bool = False,
  ) -> list[Array]:
    """The values of ``outputs`` by those of the equations that they need."""
    needed = _dependencies(eqns, outputs, effects)
    used_eqns = [
      eqn
      for eqn in eqns
      if (effects and eqn.effects) or any(var in needed for var in eqn.outvars)
    ]
    computed = {var for eqn in used_eqns for var in eqn.outvars}
    inputs = [var for var in needed if var not in computed]
    every: set[Any] = set().union(*(eqn.effects for eqn in used_eqns))
    part = self._jaxpr.replace(
      constvars=[], invars=inputs, outvars=list(outputs), eqns=used_eqns, effects=every
    )
    return self._evaluate(jex_core.ClosedJaxpr(part, ()), *map(value, inputs))

  def _evaluate(self, part: jex_core.ClosedJaxpr, *operands: Array) -> list[Array]:
    """Evaluates a part of the code."""
    with jax.enable_x64(True) if self._double else contextlib.nullcontext():
      result: list[Array] = jex_core.jaxpr_as_fun(part)(*operands)
      return result

  def _value(self, slot: Array, loop_results: dict[Var, Array], var: Var) -> Array:
    """Returns the value of a variable for the client in ``slot``."""
    for values in (loop_results, self._common):
      if var in values:
        return values[var]
    if var in self.stored:
      return self.stored[var][slot]
    kind, operand = self._inputs[var]
    return operand[slot if kind == _BY_SLOT else slot // self._per_row]

  def start_client(self, loop: Any, slot: Array) -> tuple[Array, ...]:
    """Computes a lane's values of a client: its own constants, then the carry."""
    for_cond, for_body, carry = _parts(loop, loop.invars)
    constants = [
      atom for atom in _variables([*for_cond, *for_body]) if atom in self._own
    ]
    return tuple(
      self._compute(
        self._straight, [*constants, *carry], functools.partial(self._value, slot, {})
      )
    )

  def compute_outputs(
    self,
    loop: Any,
    outputs: Sequence[Atom],
    effects: bool,
    slot: Array,
    operands: Sequence[Array],
  ) -> list[Array]:
    """The values of ``outputs`` when the client has left the loop."""
    loop_results: dict[Var, Array] = {}
    if loop is not None:
      loop_results = dict(
        zip(loop.outvars, operands[len(operands) - len(loop.outvars) :])
      )
    return self._compute(
      self._straight,
      outputs,
      functools.partial(self._value, slot, loop_results),
      effects,
    )

  def is_running(self, loop: Any, operands: Sequence[Array]) -> Array:
    """Whether the client takes a further step, [] bool."""
    for_cond, _, carry = self._all_operands(loop, operands)
    return self._evaluate(loop.params["cond_jaxpr"], *for_cond, *carry)[0]

  def step(self, loop: Any, operands: Sequence[Array]) -> tuple[Array, ...]:
    """One step of the client."""
    _, for_body, carry = self._all_operands(loop, operands)
    after = self._evaluate(loop.params["body_jaxpr"], *for_body, *carry)
    return (*operands[: len(operands) - len(carry)], *after)

  def _all_operands(self, loop: Any, operands: Sequence[Array]) -> tuple[Any, Any, Any]:
    """The constants of the condition and of the body, and the carry."""
    remaining = iter(operands)

    def read(atoms):
      return [
        next(remaining)
        if isinstance(atom, Var) and atom in self._own
        else self._compute([], [atom], self._common.__getitem__)[0]
        for atom in atoms
      ]

    for_cond, for_body, _ = _parts(loop, loop.invars)
    return read(for_cond), read(for_body), list(remaining)


class _Queue:
  """The order in which clients take the lanes."""

  def __init__(self, order: Array, lanes: int):
    self.slots, self.lanes = order.shape[0], lanes
    # Behind the last client stands nobody.
    self._order = jnp.concatenate([order, jnp.full(lanes, self.slots, jnp.int32)])

  def first(self) -> Array:
    """The first clients of the lanes, [V]."""
    return self._order[: self.lanes]

  def next_clients(self, num_started: Array, slot: Array, done: Array) -> Array:
    """The clients of the lanes when those of ``done`` take the next ones."""
    place = num_started + jnp.cumsum(done, dtype=jnp.int32) - 1
    place = jnp.clip(place, 0, self._order.shape[0] - 1)
    return jnp.where(done, self._order[place], slot)


def _pass(
  code: _Code,
  loop: object,
  queue: _Queue,
  outputs: Sequence[Atom],
  weights: Sequence[Array] = (),
  rows: int = 1,
  effects: bool = False,
) -> tuple[list[Array], list[Array]]:
  """Passes all clients through the lanes of one loop.

  Args:
    code: the code of one client.
    loop: the equation of the loop; None: clients are done as they come.
    queue: the clients.
    outputs: what is computed of each client after the loop.
    weights: of those of ``outputs`` that are summed, see ``_pool``.
    rows: see ``_pool``.
    effects: whether equations with effects are run.

  Returns:
    See ``_pool``.
  """
  slots = queue.slots
  compute_outputs = jax.vmap(
    functools.partial(code.compute_outputs, loop, outputs, effects)
  )

  def load(slot):
    if loop is None:
      return ()
    return jax.vmap(functools.partial(code.start_client, loop))(
      jnp.minimum(slot, slots - 1)
    )

  def is_running(slot, operands):
    if loop is None:
      return jnp.zeros(slot.shape, bool)
    return (slot < slots) & jax.vmap(functools.partial(code.is_running, loop))(operands)

  def step(slot, operands):
    after = jax.vmap(functools.partial(code.step, loop))(operands)
    return trees.where_slots(is_running(slot, operands), after, operands)

  def collect(slot, done, operands, totals, stacked):
    """Sums and stores the results of the lanes that are done."""
    client_slot = jnp.minimum(slot, slots - 1)
    out = compute_outputs(client_slot, operands)
    row = client_slot // (slots // rows)
    totals = [
      total
      + _sum(
        jnp.where(
          done.reshape((-1,) + (1,) * (weight.ndim - 1)), weight[client_slot], 0.0
        ),
        row,
        rows,
        new,
      )
      for total, weight, new in zip(totals, weights, out)
    ]
    target = jnp.where(done, slot, slots)  # where nothing is written
    stacked = [
      leaf.at[target].set(new, mode="drop")
      for leaf, new in zip(stacked, out[len(weights) :], strict=True)
    ]
    return totals, stacked

  def advance(state):
    """Steps until a client is done, and then the next ones come."""
    slot, num_started, operands, totals, stacked = state
    waiting = num_started < slots

    def all_step(operands):
      alive = is_running(slot, operands)
      # Behind the last client the lanes wait for each other.
      return jnp.where(waiting, alive.all(), alive.any())

    if loop is not None:
      operands = jax.lax.while_loop(all_step, functools.partial(step, slot), operands)
    done = (slot < slots) & ~is_running(slot, operands)
    totals, stacked = collect(slot, done, operands, totals, stacked)
    slot = queue.next_clients(num_started, slot, done)
    num_started = num_started + done.sum(dtype=jnp.int32)
    operands = trees.where_slots(done, load(slot), operands)
    return slot, num_started, operands, totals, stacked

  slot = queue.first()
  operands = load(slot)
  shapes = jax.eval_shape(compute_outputs, slot, operands)
  totals = [
    jnp.zeros((rows, *weight.shape[1:], *leaf.shape[1:]), leaf.dtype)
    for weight, leaf in zip(weights, shapes)
  ]
  stacked = [
    jax.lax.full((slots, *leaf.shape[1:]), 0, leaf.dtype)
    for leaf in shapes[len(weights) :]
  ]
  state = slot, jnp.int32(queue.lanes), operands, totals, stacked
  return jax.lax.while_loop(lambda state: (state[0] < slots).any(), advance, state)[-2:]


def _sum(weights: Array, row: Array, rows: int, leaf: Array) -> Array:
  """Weighted sums over lanes for each row, [R, ...] or [R, K, ...].

  What is not finite stays in the sums to which its lane belongs.

  Args:
    weights: [V] or [V, K] float32. A lane of weight 0 is ignored.
    row: [V] int32, the row of each lane's client.
    rows: R.
    leaf: [V, ...].
  """
  if rows == 1 and weights.ndim == 1:
    result: Array = trees.slot_sum(weights, leaf)[None]
    return result
  mine = trees.members(row, rows).T.reshape((-1, rows) + (1,) * (weights.ndim - 1))
  share = jnp.where(mine, weights[:, None], 0.0)
  flat = share.reshape(share.shape[0], -1)
  finite = jnp.isfinite(leaf)
  total = jnp.tensordot(
    flat,
    jnp.where(finite, leaf, jnp.zeros_like(leaf)),
    axes=(0, 0),
    precision=trees.HIGHEST,
  )
  lost = (
    jnp.tensordot(
      (flat > 0).astype(leaf.dtype), (~finite).astype(leaf.dtype), axes=(0, 0)
    )
    > 0
  )
  return jnp.where(lost, jnp.full_like(total, jnp.nan), total).reshape(
    share.shape[1:] + leaf.shape[1:]
  )


def _variables(atoms: Iterable[Atom]) -> list[Var]:
  return [atom for atom in atoms if isinstance(atom, Var)]


def _dependencies(
  eqns: Sequence[Any], outputs: Iterable[Atom], effects: bool = False
) -> dict[Var, None]:
  """The variables that equations read or make for ``outputs``."""
  needed = dict.fromkeys(_variables(outputs))
  for eqn in reversed(eqns):
    if (effects and eqn.effects) or any(var in needed for var in eqn.outvars):
      needed.update(dict.fromkeys(_variables(eqn.invars)))
  return needed


def _spread(eqns: Sequence[Any], client_vars: dict[Var, None]) -> None:
  """Adds to ``client_vars`` the variables that are computed of them."""
  for eqn in eqns:
    if eqn.primitive is primitives.while_p:
      carry, _ = _own_carry(eqn, client_vars)
      client_vars.update(
        dict.fromkeys(var for var, is_own in zip(eqn.outvars, carry) if is_own)
      )
    elif any(var in client_vars for var in _variables(eqn.invars)):
      client_vars.update(dict.fromkeys(eqn.outvars))


def _own_carry(loop: Any, client_vars: dict[Var, None]) -> tuple[list[bool], bool]:
  """Finds which parts of the carry, and whether its end, depend on the client."""
  is_own = [isinstance(atom, Var) and atom in client_vars for atom in loop.invars]
  for_cond, for_body, carry = _parts(loop, is_own)

  def inside(closed, flags):
    inner_vars = dict.fromkeys(
      var for var, flag in zip(closed.jaxpr.invars, flags) if flag
    )
    _spread(closed.jaxpr.eqns, inner_vars)
    return [isinstance(var, Var) and var in inner_vars for var in closed.jaxpr.outvars]

  while True:
    after = [
      a or b
      for a, b in zip(carry, inside(loop.params["body_jaxpr"], [*for_body, *carry]))
    ]
    if after == carry:
      break
    carry = after
  (ends,) = inside(loop.params["cond_jaxpr"], [*for_cond, *carry])
  return [ends or flag for flag in carry], ends


def _parts(loop: Any, atoms: Sequence[object]) -> tuple[Any, Any, Any]:
  """Splits atoms into those of the condition, of the body, and of the carry."""
  first = loop.params["cond_nconsts"]
  second = first + loop.params["body_nconsts"]
  return atoms[:first], atoms[first:second], atoms[second:]


def _has_double(jaxpr: jex_core.Jaxpr) -> bool:
  """Whether code, or code that it calls, computes in float64."""
  for eqn in jaxpr.eqns:
    avals: list[Any] = [var.aval for var in eqn.outvars]
    if any(aval.dtype == jnp.float64 for aval in avals):
      return True
    called = [
      getattr(leaf, "jaxpr", leaf)
      for leaf in jax.tree.leaves(
        list(eqn.params.values()),
        is_leaf=lambda leaf: isinstance(leaf, jex_core.ClosedJaxpr),
      )
    ]
    if any(_has_double(part) for part in called if isinstance(part, jex_core.Jaxpr)):
      return True
  return False
