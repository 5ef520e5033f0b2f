"""What a run costs, told before it is run: bytes, memory, parameters, seconds.

Nothing of the run is compiled. The bytes are those that the method bills in rounds
of which everything but the bill is left out. The seconds come from local steps of
the model on this machine.
"""

import dataclasses
import functools
import operator
import time
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import split
from fedjax_alg.base import Work
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd
from fedjax_alg.data import layout
from fedjax_alg.data.features import Features, FeatureWork, PlannedFeatures
from fedjax_alg.data.federation import Federation, Federations, load_examples
from fedjax_alg.engine import loop, sharding
from fedjax_alg.engine.late import LOST
from fedjax_alg.engine.round import PRESENT, sample_and_run
from fedjax_alg.hparams import ordered_values
from fedjax_alg.runs import plan as plan_lib
from fedjax_alg.runs import pooled
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import state_shapes

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


def _bill(p: Prepared) -> tuple[Any, Any, Any, Work | None]:
  """Reads what rounds cost.

  The program is a round without all that the bill does not depend on, which JAX
  leaves out before it compiles. A state counts its rounds in a leaf ``round``.

  Args:
    p: the run.

  Returns:
    The participants [n], those that are lost [n], the ``RoundCost``, leaves [n], and
    the work of all rounds, summed over the participants. If that would take long, of
    n rounds over the whole run.
  """
  assert p.options.rounds is not None
  indices = np.arange(p.options.rounds, dtype=np.int32)

  @jax.jit
  def read(data: Any, keys: Any, numbers: Any, indices: Any) -> Any:
    keys = jax.tree.map(lambda leaf: leaf[:1], keys)
    numbers = jax.tree.map(lambda leaf: leaf[:1], numbers)
    states = loop.initial_states(p.build, p.model, p.spec, data, keys, numbers)
    start, keys, numbers = jax.tree.map(lambda leaf: leaf[0], (states, keys, numbers))
    algorithm = loop.with_frozen(p.build, data)(numbers)
    names = loop.leaf_names(start)

    def bill(index: Any) -> Any:
      leaves = [
        index if name.split("/")[-1] == "round" and leaf.shape == () else leaf
        for name, leaf in zip(names, jax.tree.leaves(start), strict=True)
      ]
      state = jax.tree.unflatten(jax.tree.structure(start), leaves)
      _, aux = sample_and_run(algorithm, data, p.participation, keys, index, state)
      work = aux.work and jax.tree.map(jnp.sum, aux.work)
      present = aux.server.get(PRESENT, p.spec.cohort_size)
      return present, aux.server.get(LOST, 0), aux.cost, work

    return jax.lax.map(bill, indices)

  data, parts, deadline = p.device_data.train_without_rows(), [], None
  count = -(-len(indices) // _BILLED)
  for chunk in (indices[first::count] for first in range(count)):
    part = read(data, p.keys, p.numbers, np.resize(chunk, _BILLED))
    parts.append(jax.tree.map(lambda leaf: leaf[: len(chunk)], jax.device_get(part)))
    deadline = deadline or time.monotonic() + _PATIENCE_S  # compiling is not reading
    if time.monotonic() > deadline:
      break
  present, lost, cost, work = jax.tree.map(
    lambda *leaves: np.concatenate(leaves), *parts
  )
  return present, lost, cost, work


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
