"""What a run costs, told before it is run: bytes, memory, parameters, seconds.

Nothing of the run is compiled. The bytes are those that the method bills in rounds
of which everything but the bill is left out, one after the other. No client learns
anything in them. The seconds come from local steps of the model on this machine.
"""

from collections.abc import Callable
import dataclasses
import functools
import itertools
import operator
import time
from typing import Any, NamedTuple, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval
import jax.numpy as jnp
import numpy as np

from fedjax_alg import split
from fedjax_alg.base import RoundAux, Shard, Work
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd
from fedjax_alg.data import layout
from fedjax_alg.data.features import Features, FeatureWork, PlannedFeatures
from fedjax_alg.data.federation import Federation, Federations, load_examples
from fedjax_alg.engine import loop, sharding
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.late import LOST
from fedjax_alg.engine.round import PRESENT, sample_and_run
from fedjax_alg.hparams import ordered_values
from fedjax_alg.runs import plan as plan_lib
from fedjax_alg.runs import pooled
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import state_shapes
from fedjax_alg.typing import PyTree

#: Rounds whose bills are read together, and the seconds that reading may take.
_BILLED, _PATIENCE_S = 16, 1.0
#: Examples of a larger mini-batch, steps of a timed client, how often it trains.
_LARGE, _STEPS, _REPEATS = 64, 8, 5
#: A step of so many seconds is long against what every step takes.
_LONG_STEP_S = 2e-3
#: A gradient is so many forward passes.
_PASSES = 3


@dataclasses.dataclass(frozen=True)
class DryRun:
  """The costs of a run that is not run; ``print`` shows them in lines."""

  parameters: int  #: P, of one model
  rounds: int
  seeds: int  #: of several partitions, their number
  #: bytes to and from one client in a round, the mean over rounds
  bytes_down: float
  bytes_up: float
  total_bytes: float  #: of all clients in all rounds of one seed
  data_mb: float  #: the examples on the devices, in MiB
  state_mb: float  #: the states of all seeds between rounds, in MiB
  #: estimated, of the rounds and evaluations of all seeds, without compiling;
  #: None on accelerators, and for methods without a count of their work
  seconds: float | None
  facts: dict[str, Any]  #: name -> value of all that is known, in order

  def __str__(self) -> str:
    """Lists the facts, one a line."""
    return "\n".join(f"{name:18} {value}" for name, value in self.facts.items())


def dry_run(
  algorithm: object,
  federation: Federation | Federations,
  *,
  callbacks: object = (),
  out_dir: object = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  keep_best: object = None,
  **options: Any,
) -> DryRun:
  """Tells what a run would cost, without running or compiling it.

  The other arguments of ``run`` are checked in the same way.

  Args:
    algorithm: see ``run``.
    federation: see ``run``.
    callbacks: neither called nor checked.
    out_dir: neither written to nor checked.
    overwrite: neither read nor checked.
    allow_other_devices: neither read nor checked.
    keep_best: neither read nor checked.
    **options: the other arguments of ``run``.

  Returns:
    The costs. The bytes are exact unless a round's depend on what was learned. The
    seconds are an estimate, from a few timed local steps: it may be wrong by a
    factor of three, and leaves out the server's arithmetic.

  Raises:
    OptionError, DataError: an argument that cannot be used.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="classes", num_clients=20)
    >>> costs = fa.dry_run("scaffold", fed, cohort_size=5, rounds=20)
    >>> costs.parameters, costs.bytes_down, costs.bytes_up
    (650, 5200.0, 5200.0)
    >>> costs.total_bytes  # 5 clients, 20 rounds
    1040000.0
  """
  del callbacks, out_dir, overwrite, allow_other_devices, keep_best
  if not isinstance(federation, Federations):
    return estimate(plan_lib.from_keywords(algorithm, federation, **options).prepare())
  seeds = pooled.seeds_of(federation, options.pop("seeds", 1))
  plan = plan_lib.from_keywords(algorithm, federation[0], seeds=seeds[:1], **options)
  one = estimate(plan.prepare())
  facts = one.facts | {"seeds": list(seeds), "partitions": len(seeds)}
  seconds = None if one.seconds is None else len(seeds) * one.seconds
  return dataclasses.replace(
    one,
    seeds=len(seeds),
    seconds=seconds,
    facts=facts | {"estimated_s": _in_words(seconds)},
  )


def estimate_features(plan: plan_lib.Plan) -> FeatureWork | None:
  """Estimates what the features of a run take that are not stored yet.

  Args:
    plan: the run.

  Returns:
    The work; None of features that take no time that counts, and of examples that
    kinds of clients change.

  Raises:
    DataError, OptionError: the data or the weights cannot be read.
  """
  data = plan.data
  if plan.federation is not None or data.dataset is None or data.kinds.CHANGES:
    return None
  if type(data.features).remaining_work is Features.remaining_work:
    return None  # without reading the data
  examples = load_examples(data)
  arrays = examples.x_train, examples.x_test
  parts = [work for x in arrays if (work := data.features.remaining_work(x))]
  return functools.reduce(operator.add, parts)


_AnyPlan = TypeVar("_AnyPlan", bound=plan_lib.Plan)


def without_features(plan: _AnyPlan, work: FeatureWork | None) -> _AnyPlan:
  """Replaces features that are not stored yet by numbers, so that none is computed.

  Args:
    plan: the run.
    work: ``estimate_features`` of it.

  Returns:
    The same run, to be prepared for ``estimate`` only.
  """
  if work is None or not work.missing:
    return plan
  features: Any = PlannedFeatures(work.width, texts=plan.data.features.reads_texts)
  planned = dataclasses.replace(plan.data, features=features)
  return dataclasses.replace(plan, data=planned)


def estimate(prepared: Prepared) -> DryRun:
  """Tells what a prepared run would cost.

  Args:
    prepared: the run.

  Returns:
    The costs.
  """
  p, options = prepared, prepared.options
  assert options.rounds is not None
  shapes = state_shapes(p)
  data_mb = sum(leaf.nbytes for leaf in jax.tree.leaves(p.device_data.data)) / 2**20
  state_mb = split.nbytes(shapes) / 2**20
  present, lost, cost, work = _bill(p)
  down, up = (
    4.0 * floats if nbytes is None else nbytes.astype(float)
    for floats, nbytes in ((cost.down, cost.bytes_down), (cost.up, cost.bytes_up))
  )
  evaluations = -(-options.rounds // options.eval_every)
  seconds = _seconds(p, options.rounds, evaluations, work)
  total = options.rounds * float(np.mean(present * (down + up) + lost * down))
  down, up = (float(np.mean(nbytes)) for nbytes in (down, up))
  parts, data = p.method.parts, p.federation.options
  facts = {
    "algorithm": p.method.name,
    **ordered_values(*parts),
    "dataset": None if data.dataset is None else str(data.dataset),
    "partition": p.federation.partition.name,
    **p.plan,
    "rounds": options.rounds,
    "seeds": list(p.seeds),
    "evaluations": evaluations,
    "protocols": list(p.protocols),
    "shift": str(data.shift),
    "bytes_down": f"{down:,.0f} to a client in a round",
    "bytes_up": f"{up:,.0f} from a client in a round",
    "total_bytes": f"{total:,.0f} of all clients in all rounds of a seed",
    "data_mb": round(data_mb, 1),
    "state_mb": round(state_mb, 2),
    "estimated_s": _in_words(seconds),
  }
  privacy = p.privacy()
  if privacy is not None:
    facts["privacy"] = privacy.facts(options.rounds)
  return DryRun(
    p.plan["parameters"],
    options.rounds,
    len(p.seeds),
    down,
    up,
    total,
    data_mb,
    state_mb,
    seconds,
    facts,
  )


def _in_words(seconds: float | None) -> str:
  if seconds is None:
    return "unknown"
  return f"{seconds:.3g} without compiling, from timed local steps"


class _Unasked(ClientMap):
  """A client map that leaves out what clients compute of their examples.

  In its place are ones, zeros of whole numbers, and True. What follows from anything
  else stays, for example whether a client has taken part before.
  """

  def update(self, fn, write, table, places, weights, shared, shards, *args):
    """See ``base.MapClients.update``."""
    unasked = _without_examples(fn)
    return super().update(unasked, write, table, places, weights, shared, shards, *args)

  def total(self, fn, zero, shared, shards, *args, psum=jax.lax.psum):
    """See ``base.MapClients.total``; every client adds nothing."""
    del fn, shared, shards, args, psum
    return zero()


def _without_examples(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Code of a client without the results that depend on its examples."""

  def unasked(shared: Any, shard: Shard, *args: Any) -> Any:
    inputs, form = jax.tree.flatten((shared, shard, args))
    is_array = [isinstance(leaf, jax.Array) for leaf in inputs]  # others are constants
    leaves = list(itertools.compress(inputs, is_array))

    def of_arrays(*arrays: Any) -> Any:
      new = iter(arrays)
      both = [next(new) if of else leaf for of, leaf in zip(is_array, inputs)]
      shared, shard, args = jax.tree.unflatten(form, both)
      return fn(shared, shard, *args)

    closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*leaves)
    examples = {id(leaf) for leaf in jax.tree.leaves((shard.x, shard.y))}
    is_example = np.array([id(leaf) in examples for leaf in leaves])
    outputs = [leaf.aval for leaf in closed.jaxpr.outvars]
    depends = [
      bool((is_example & partial_eval.dce_jaxpr(closed.jaxpr, single_output)[1]).any())
      for single_output in np.eye(len(outputs), dtype=bool).tolist()
    ]
    program, reads = partial_eval.dce_jaxpr(closed.jaxpr, np.invert(depends).tolist())
    compute = jaxpr_as_fun(ClosedJaxpr(program, closed.consts))
    results = iter(compute(*itertools.compress(leaves, reads)))
    return jax.tree.unflatten(
      jax.tree.structure(shapes),
      [
        _stand_in(output) if of_examples else next(results)
        for output, of_examples in zip(outputs, depends, strict=True)
      ],
    )

  return unasked


def _stand_in(output: Any) -> Any:
  """What stands for a result of a client."""
  is_whole = jnp.issubdtype(output.dtype, jnp.integer)
  return (jnp.zeros if is_whole else jnp.ones)(output.shape, output.dtype)


class _Reading(NamedTuple):
  """A program that reads reports of rounds one after the other."""

  #: (arguments, carried leaves, [n] int32 rounds) -> carried leaves, reports [n]
  read: Callable[..., Any]
  carried: np.ndarray  #: [L] bool, the leaves of the state on which reports depend
  is_learned: bool  #: whether they depend on what clients learn of their examples


def _trace_reading(
  p: Prepared, build: Any, arguments: Any, state: PyTree, report: Callable[..., Any]
) -> _Reading:
  """Traces rounds without all that a part of their reports does not depend on.

  A state counts its rounds in a leaf ``round``, which need not be carried.

  Args:
    p: the run.
    build: makes the algorithm.
    arguments: the clients' data, keys [1] and numbers [1].
    state: shapes of a state.
    report: ``RoundAux`` -> the part of it.
  """
  names, form = loop.leaf_names(state), jax.tree.structure(state)
  shapes = jax.tree.leaves(state)
  counts = [
    name.split("/")[-1] == "round" and leaf.shape == ()
    for name, leaf in zip(names, shapes, strict=True)
  ]

  def one_round(arguments: Any, index: Any, leaves: Any) -> Any:
    data, *of_seeds = arguments
    keys, numbers = jax.tree.map(lambda leaf: leaf[0], of_seeds)
    algorithm = loop.with_frozen(build, data)(numbers)
    before = [index if count else leaf for count, leaf in zip(counts, leaves)]
    new, aux, _ = sample_and_run(
      algorithm,
      data,
      p.participation,
      keys,
      index,
      jax.tree.unflatten(form, before),
    )
    return jax.tree.map(jnp.asarray, report(aux)), jax.tree.leaves(new)

  index = jax.ShapeDtypeStruct((), jnp.int32)
  traced = jax.jit(one_round).trace(arguments, index, shapes)
  report_form: Any = jax.tree.structure(traced.out_info[0])
  closed, number = traced.jaxpr, report_form.num_leaves
  carried, before = np.zeros(len(shapes), bool), None
  while before is None or (carried != before).any():
    before = carried
    program, reads = partial_eval.dce_jaxpr(
      closed.jaxpr, [True] * number + carried.tolist()
    )
    carried = carried | np.array(reads[len(reads) - len(shapes) :])
  compute = jaxpr_as_fun(ClosedJaxpr(program, closed.consts))

  @jax.jit
  def read(arguments: Any, leaves: Any, indices: Any) -> Any:
    def step(leaves: Any, index: Any) -> Any:
      all_leaves = [None] * len(shapes)
      for place, leaf in zip(np.flatnonzero(carried), leaves, strict=True):
        all_leaves[place] = leaf
      inputs = [*jax.tree.leaves(arguments), index, *all_leaves]
      results = compute(*itertools.compress(inputs, reads))
      return results[number:], jax.tree.unflatten(report_form, results[:number])

    return jax.lax.scan(step, leaves, indices)

  data = arguments[0]
  examples = {id(leaf) for leaf in jax.tree.leaves((data.x, data.y))}
  is_example = [id(leaf) in examples for leaf in jax.tree.leaves(arguments)]
  return _Reading(read, carried, any(itertools.compress(is_example, reads)))


def _bill(p: Prepared) -> tuple[Any, Any, Any, Work | None]:
  """Reads what rounds cost.

  Args:
    p: the run.

  Returns:
    The participants [R], those that are lost [R], the ``RoundCost`` of messages, leaves
    [R], and the work of all rounds, summed over the participants. If reading would take
    long, rounds have the bill of one that was read.
  """
  assert p.options.rounds is not None
  of_seed = jax.tree.map(lambda leaf: leaf[:1], (p.keys, p.numbers))
  arguments = p.device_data.train_without_rows(), *of_seed

  def start(data: Any, keys: Any, numbers: Any) -> PyTree:
    states = loop.initial_states(p.build, p.model, p.spec, data, keys, numbers)
    return jax.tree.map(lambda leaf: leaf[0], states)

  state = jax.eval_shape(start, *arguments)
  trace = functools.partial(_trace_reading, p)

  def messages_of(aux: RoundAux) -> Any:
    present = aux.server.get(PRESENT, p.spec.cohort_size)
    # Without computation, which may depend on what was learned.
    no_count: Any = None
    cost = aux.cost._replace(example_gradients=no_count, central_flops=no_count)
    return present, aux.server.get(LOST, 0), cost

  def work_of(aux: RoundAux) -> Any:
    return aux.work and jax.tree.map(jnp.sum, aux.work)

  def read(reading: _Reading, moves: bool = True) -> Any:
    @jax.jit
    def first_leaves(*arguments: Any) -> Any:
      leaves = jax.tree.leaves(start(*arguments))
      return list(itertools.compress(leaves, reading.carried))

    leaves = first_leaves(*arguments) if reading.carried.any() else []
    assert p.options.rounds is not None
    return _read_rounds(reading, arguments, leaves, p.options.rounds, moves)

  both = trace(p.build, arguments, state, lambda aux: (messages_of(aux), work_of(aux)))
  if not (both.carried.any() and both.is_learned):
    (present, lost, cost), work = read(both)
    return present, lost, cost, work
  clients: Any = p.map_clients
  unasked = _Unasked(mesh=clients.mesh, cuts=clients.cuts)
  build = p.method.builder(p.model, unasked)
  reading = trace(build, arguments, state, messages_of)
  # A method of the user's own may ask its clients in another way.
  present, lost, cost = read(reading, moves=not reading.is_learned)
  # Every round as if it was the first one.
  work = read(trace(p.build, arguments, state, work_of), moves=False)
  return present, lost, cost, work


def _read_rounds(
  reading: _Reading, arguments: Any, leaves: list[Any], rounds: int, moves: bool
) -> Any:
  """Reads the reports of all rounds; if that would take long, of some of them.

  Args:
    reading: the program.
    arguments: its arguments.
    leaves: the carried leaves at the start.
    rounds: R.
    moves: whether these leaves are carried on; otherwise they stay at the start.

  Returns:
    The reports, leaves [R]. Where one was not read, it is the last one before that was.
  """
  parts, read_rounds, deadline = list[Any](), list[np.ndarray](), None
  waiting = np.arange(rounds, dtype=np.int32)

  def read(indices: np.ndarray) -> Any:
    nonlocal deadline
    new, part = reading.read(arguments, leaves, np.resize(indices, _BILLED))
    parts.append(jax.tree.map(lambda leaf: leaf[: len(indices)], jax.device_get(part)))
    read_rounds.append(indices)
    deadline = deadline or time.monotonic() + _PATIENCE_S  # compiling is not reading
    return new

  if moves and leaves:
    while len(waiting) and (deadline is None or time.monotonic() < deadline):
      leaves = read(waiting[:_BILLED])
      waiting = waiting[_BILLED:]
  count = -(-len(waiting) // _BILLED)
  for chunk in (waiting[first::count] for first in range(count)):
    read(chunk)
    if deadline is not None and time.monotonic() > deadline:
      break
  order = np.concatenate(read_rounds)
  sorting = np.argsort(order)
  places = sorting[np.searchsorted(order[sorting], np.arange(rounds), "right") - 1]
  return jax.tree.map(lambda *leaves: np.concatenate(leaves)[places], *parts)


def _seconds(
  p: Prepared, rounds: int, evaluations: int, work: Work | None
) -> float | None:
  """Estimates the time of all rounds and evaluations.

  A step takes the time of its examples, and what every step takes. Evaluations are
  forward passes.
  """
  if work is None or sharding.platform(p.mesh) != "cpu" or not p.model.flops:
    return None
  complete = max(1, round(float(np.mean(p.federation.data.train.size))))
  batch = min(getattr(p.method.hparams, "batch_size", 0) or complete, complete)
  large, step = max(_LARGE, 2 * batch), _time_step(p, batch)
  if step > _LONG_STEP_S:
    example = step / batch
  else:
    example = max(0.0, (_time_step(p, large) - step) / (large - batch))
  overhead = max(0.0, step - batch * example)
  gradients = float(np.mean(work.flops)) / (_PASSES * p.model.flops)
  tests = sum(_examples(p, protocol) for protocol in p.protocols)
  seed = rounds * (float(np.mean(work.batches)) * overhead + gradients * example)
  seed += evaluations * tests * example / _PASSES
  devices = 1 if p.mesh is None else p.mesh.devices.size
  return len(p.seeds) * seed / min(devices, p.spec.cohort_size)


def _examples(p: Prepared, protocol: str) -> int:
  """The examples of one evaluation."""
  data = p.federation.data
  if protocol == "train":
    return int(data.train.size.sum())
  if protocol == "validation":
    return 0 if data.validation is None else int(data.validation.size.sum())
  return int(data.whole_test.size.sum())


def _time_step(p: Prepared, batch: int) -> float:
  """Times the local steps of the median client.

  Args:
    p: the run.
    batch: examples of a step.

  Returns:
    Seconds of a step, in the fastest of some trials.
  """
  work = LocalWork(local_steps=_STEPS, batch_size=batch)
  sizes = np.asarray(p.federation.data.train.size)
  client = np.argsort(sizes)[len(sizes) // 2].astype(np.int32)
  train = p.device_data.train_with(np.array([client]))

  @jax.jit
  def train_client(data: Any, key: Any) -> Any:
    shard = layout.shard_of(data, jnp.asarray(client))
    return sgd(p.model, p.model.init(key), shard, work, jnp.float32(1e-3), key)[1]

  key, seconds = jax.random.key(0), list[float]()
  train_client(train, key).block_until_ready()
  while len(seconds) < _REPEATS and sum(seconds) < _PATIENCE_S / 2:
    began = time.perf_counter()
    train_client(train, key).block_until_ready()
    seconds.append(time.perf_counter() - began)
  return min(seconds) / _STEPS
