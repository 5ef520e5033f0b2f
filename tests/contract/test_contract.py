"""What every registered algorithm promises (fedjax_alg.base).

A new algorithm is tested here as soon as it is registered, and one of another
package with `--algorithm=package.module:ENTRY`. It only has to state what a
round costs in `Entry.ledger`.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import math
import os
import pathlib
from typing import Any, NamedTuple

import chex
import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import base, own, registry
from fedjax_alg import hparams as hparams_lib
from fedjax_alg.algorithms.scaffnew import ScaffnewHParams
from fedjax_alg.base import Shard
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import layout
from fedjax_alg.engine import checkpoint, clients, loop, sharding
from fedjax_alg.engine.keys import client_keys, run_keys
from fedjax_alg.engine.round import Participation, sample_and_run, sample_cohort
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import stacking
from fedjax_alg.rounds.expected import Expected, Played
from fedjax_alg.runs import methods, prepare
from tests import problems

SEEDS, MAX_ROUNDS, PADDING = (0, 1), 60, 2
#: The numbers that a program is given, in parts of those it is built from.
CHANGE = 0.95

#: Given to every algorithm that has the field.
SMALL = dict(
  local_steps=4,
  batch_size=5,
  num_models=3,
  threshold=1,
  num_components=3,
  num_groups=3,
  max_groups=3,
  pretrain_scale=4,
  pretrain_steps=3,
  cluster_after=1,
  split_after=1,
  eps1=1e3,
  eps2=0.0,
  gamma_max=0.0,
  directions=3,
  smoothing=0.1,
  steps_per_round=3,
  inner_steps=2,
  lam=2.0,
  remove_ridge=False,
)
#: The fields that say how many models the server keeps.
MODELS = ("num_models", "num_components", "num_groups", "max_groups")


def small_settings(entry):
  """Settings of a short test; all else stays at its default."""
  return usable(entry.hparams, SMALL) | dict(entry.test_hparams)


def small_method(name, **overrides):
  """A method with ``small_settings``, resolved."""
  entry = registry.get(name)
  return methods.Method(
    name, entry, *entry.parts(**small_settings(entry) | overrides)
  ).resolved()


def usable(kind, settings):
  """Those settings that hyper-parameters of this type can have.

  A field of one's own may mean something else by the same name.
  """
  fields = {field.name: field for field in dataclasses.fields(kind)}
  usable_settings = {}
  for name, value in settings.items():
    if name in fields and type(value) is type(fields[name].default):
      with contextlib.suppress(OptionError):
        if "help" in fields[name].metadata:
          hparams_lib.validate(
            dataclasses.make_dataclass("One", [(name, object, fields[name])])(value)
          )
        usable_settings[name] = value
  return usable_settings


def draws(bench):
  """Whether a round draws mini-batches, or anything else, at random.

  None: nothing says so of an algorithm of one's own.
  """
  if issubclass(bench.entry.hparams, (LocalWork, ScaffnewHParams)):
    return True
  return None if bench.is_own else not bench.entry.all_clients


def shapes_of_a_round(name, model, data, spec, **overrides):
  """The algorithm, and its state after a round, which is as at its start.

  Raises:
    OptionError: the method does not go with the model, as a run would say.
  """
  entry, keys = registry.get(name), run_keys(0)
  method = small_method(name, **overrides)
  build = method.builder(model, clients.ClientMap())
  algorithm = build({})
  prepare.check_roles(algorithm, method, model)
  seeds = jax.tree.map(lambda key: key[None], keys)
  size = spec.num_clients if entry.all_clients else spec.cohort_size

  def both(data):
    state = jax.tree.map(
      lambda leaf: leaf[0],
      loop.initial_states(
        build, model, spec._replace(cohort_size=size), data, seeds, {}
      ),
    )
    after, _ = sample_and_run(
      algorithm, data, Participation(size), keys, jnp.int32(0), state
    )
    return state, after

  before, after = jax.eval_shape(both, data)
  chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
  return algorithm, after


def trace_once(fn):
  """``fn``, which fails when it is traced again: one trace, one program."""

  def once(*args):
    return fn(*args)

  # Two functions wrapped on the same line are one to chex.
  once.__name__ = f"once_{next(_NUMBERS)}"
  return chex.assert_max_traces(once, n=1)


_NUMBERS = itertools.count()


class Slots(NamedTuple):
  """How a cohort is changed before a round; inputs of the program of a run."""

  order: Any  #: [S] int, the slot that comes to each place
  present: Any  #: [S] bool, false for those that become padding slots
  offset: Any = 0  #: [] int, the offset of padding slots

  @jax.jit
  def change(self, cohort):
    """The cohort with its slots in this order, some of them without client."""
    present = jnp.asarray(self.present)
    shards = cohort.shards._replace(
      offset=jnp.where(present, cohort.shards.offset, self.offset),
      size=jnp.where(present, cohort.shards.size, 0),
    )
    ids = jnp.where(present, cohort.ids, cohort.everyone.size.shape[0])
    weight = jnp.where(present, cohort.weight, 0)
    ids, offset, size, weight = (
      leaf[jnp.asarray(self.order)]
      for leaf in (ids, shards.offset, shards.size, weight)
    )
    return cohort._replace(
      ids=ids, shards=shards._replace(offset=offset, size=size), weight=weight
    )


class Bench:
  """One algorithm with its program of a run, shared by its tests.

  The program takes every number that it may take as an argument, and is built
  from other numbers, so that none of these can be used by mistake.
  ``algorithm`` has them as constants.
  """

  def __init__(self, name, problem):
    self.name, self.problem = name, problem
    self.is_own = own.is_own(name)
    self.entry = entry = registry.get(name)
    method = small_method(name)
    self.traced = method.builder(problem.model, clients.ClientMap())
    self.method = method.with_values(
      {
        name: CHANGE * value
        for name, value in method.values().items()
        if isinstance(value, float)
      }
    )
    self.hparams = self.method.hparams
    self.numbers = self.method.numbers([self.method], len(SEEDS))
    size = problem.spec.num_clients if entry.all_clients else (problem.spec.cohort_size)
    self.spec = problem.spec._replace(cohort_size=size)
    self.algorithm = self.build(clients.ClientMap())
    self.keys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(run_keys, SEEDS))
    #: Types of a round's state, new state and report; set when it is traced.
    self.types = None
    self.run_rounds = problems.quick_jit(
      trace_once(
        loop.make_run_rounds(
          self.with_slots, Participation(size), MAX_ROUNDS
        ).__wrapped__
      ),
      donate_argnums=0,
    )
    #: All slots of a cohort, and the last of them without clients.
    self.whole = Slots(np.arange(size), np.ones(size, bool))
    self.fewer = self.whole._replace(present=np.arange(size) < size - PADDING)

  @functools.cached_property
  def initial(self):
    """States of all seeds before their first round."""
    return problems.quick_jit(
      functools.partial(loop.initial_states, self.traced, self.problem.model, self.spec)
    )(self.problem.data, self.keys, self.numbers)

  def build(self, map_clients):
    """The algorithm with its numbers as constants."""
    return self.method.build(self.problem.model, map_clients)

  def with_slots(self, numbers):
    """The algorithm with rounds on a changed cohort."""
    slots, algorithm = numbers["slots"], self.traced(numbers["traced"])

    def round_(state, cohort, key):
      new, aux = algorithm.round(state, slots.change(cohort), key)
      self.types = jax.tree.map(jax.typeof, (state, new, aux))
      return new, aux

    return algorithm._replace(round=round_)

  def inputs(self, states, start, count, slots=None, data=None, keys=None):
    """Arguments of ``run_rounds``, for which ``states`` is copied."""
    states, numbers = jax.device_put(
      (
        jax.tree.map(np.array, states),
        {
          "slots": jax.tree.map(
            lambda leaf: np.stack([leaf] * len(SEEDS)), slots or self.whole
          ),
          "traced": self.numbers,
        },
      )
    )
    return (
      states,
      data or self.problem.data,
      keys or self.keys,
      numbers,
      jnp.int32(start),
      jnp.int32(count),
    )

  def run(self, states, start, count, **changes):
    """The states after rounds start.. and the log."""
    return self.run_rounds(*self.inputs(states, start, count, **changes))

  def round(self, age, slots=None, **changes):
    """State and report of seed 0 of the round after ``age`` rounds."""
    states, log = self.run(self.states(age), age, 1, slots=slots, **changes)
    return problems.row(states, 0), problems.row(log.aux, (0, 0))

  @functools.cache
  def states(self, age):
    """States of all seeds after ``age`` rounds."""
    return self.run(self.initial, 0, age)[0] if age else self.initial

  @functools.cache
  def state(self, age):
    """The state of seed 0 after ``age`` rounds."""
    return problems.row(self.states(age), 0)

  @functools.cached_property
  def size(self):
    """P, the number of parameters."""
    return base.num_params(self.model_shapes)

  @functools.cached_property
  def model_shapes(self):
    """The model's parameters, as shapes."""
    return jax.eval_shape(self.problem.model.init, jax.random.key(0))

  @functools.cached_property
  def deployed_shapes(self):
    """What a client deploys, as shapes."""
    model = self.algorithm.client_model(self.problem.model)
    return jax.eval_shape(model.init, jax.random.key(0))

  @functools.cached_property
  def models(self):
    """K, the number of global models; 1 where there is none."""
    if self.algorithm.global_params is None:
      return 1
    return jax.tree.leaves(jax.eval_shape(self.algorithm.global_params, self.state(0)))[
      0
    ].shape[0]

  def facts_of_round(self, age):
    """The round after ``age`` rounds, for ledgers."""
    cohort, _ = self.round_inputs(age)
    models, ids = self.models, tuple(np.asarray(cohort.ids).tolist())
    if age < getattr(self.hparams, "threshold", 0):
      models = 1

    def read_by(clients, steps, batches=1):
      work = (
        self.hparams
        if not steps
        else LocalWork(local_steps=steps, batch_size=self.hparams.batch_size)
      )
      return read_by_steps(work, [problems.SIZES[i] for i in clients], batches)

    return Played(
      self.size,
      models,
      sum(problems.SIZES[i] for i in ids),
      lambda batches: read_by(ids, 0, batches),
      self.hparams,
      problems.FEATURES,
      problems.CLASSES,
      age,
      ids,
      self.spec.num_clients,
      self.state(age),
      read_by,
    )

  def cost_by_entry(self, age):
    """The cost of the round after ``age`` rounds, as the entry states it."""
    assert self.entry.ledger, (
      f"{self.name}: give its registry.Entry a ledger, which states what a "
      "round costs: expected.vectors(1, 1) for a model down and a model up, "
      "or a function that gets a rounds.expected.Played ("
      f"{', '.join(Played._fields)}) and returns a rounds.expected.Expected "
      f"({', '.join(Expected._fields)})"
    )
    return self.entry.ledger(self.facts_of_round(age))

  def round_inputs(self, number):
    """The cohort and the key that round ``number`` of seed 0 has in a run."""
    keys = run_keys(SEEDS[0])
    cohort = sample_cohort(
      self.problem.data, self.spec.cohort_size, jax.random.fold_in(keys.cohort, number)
    )
    return cohort, jax.random.fold_in(keys.work, number)

  @functools.cached_property
  def deploy_all(self):
    """(state, key) -> params of all clients and a newcomer, their losses."""
    # Least squares; a head of class means minimises nothing.
    loss = squared_error if self.entry.rounds and self.name not in OF_MEANS else None
    count = self.spec.num_clients
    ids = np.arange(count + 1, dtype=np.int32)  # id C is the newcomer
    holder = ids % count  # whose data are those of client 0
    offset, size = (
      np.asarray(leaf)[holder]
      for leaf in (self.problem.data.offset, self.problem.data.size)
    )
    shards = Shard(self.problem.data.x, self.problem.data.y, offset, size)
    measured = self.algorithm.client_model(self.problem.model)

    @problems.quick_jit
    def deploy(state, key, numbers, shards):
      return jax.vmap(
        functools.partial(self.traced(numbers).client_params, state),
        in_axes=(0, OF_CLIENTS, 0),
      )(ids, shards, client_keys(key, ids))

    def deploy_and_measure(state, key):
      params = deploy(state, key, problems.row(self.numbers, 0), shards)
      return params, losses_of(measured, loss)(params, shards)

    return deploy_and_measure


#: The axis of a shard's leaves along which clients lie.
OF_CLIENTS = Shard(None, None, 0, 0)


@functools.cache
def losses_of(model, loss):
  """(params, shards) of clients -> their losses: one program for all methods."""
  measured = model._replace(loss=loss) if loss else model
  return problems.quick_jit(
    jax.vmap(functools.partial(objective.full_loss, measured), in_axes=(0, OF_CLIENTS))
  )


#: Methods whose head is made of class means.
OF_MEANS = ("fedcof", "fedncm")


def squared_error(logits, y):
  return ((logits - jax.nn.one_hot(y, logits.shape[1])) ** 2).sum(1)


def is_finished(bench, age):
  """Whether a method that ends has nothing more to do."""
  rounds = bench.entry.rounds
  return rounds is not None and age >= rounds(bench.hparams, 1)


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
  return Bench(request.param, problem)


#: Rounds of every kind: first, round T+1 of the diversified methods, later.
AGES = (0, 1, 3)


def test_round_keeps_structure_shapes_dtypes_and_weak_types(bench):
  """With numbers as arguments; a start has the types of one with constants."""
  bench.states(1)
  old, new, aux = bench.types
  constant = jax.eval_shape(
    lambda params, key: bench.algorithm.init(params, bench.spec, key),
    bench.model_shapes,
    jax.random.key(0),
  )
  assert types(old) == types(constant)
  assert jax.tree.structure(new) == jax.tree.structure(bench.initial)
  for name, start, a, b in zip(
    loop.leaf_names(old), *map(jax.tree.leaves, (bench.initial, old, new)), strict=True
  ):
    assert (a.shape, a.dtype) == (b.shape, b.dtype), name
    assert not start.weak_type and not a.weak_type and not b.weak_type, name
  check_report(aux, bench.spec.cohort_size)


def types(tree):
  """Structure, shapes, dtypes and weak types."""
  return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def check_report(aux, slots):
  """Shapes and types of a round's report."""
  for leaf in jax.tree.leaves(aux):
    assert leaf.dtype in (jnp.float32, jnp.int32, jnp.uint32, bool)
    assert not leaf.weak_type
  for name, leaf in aux.client.items():
    assert leaf.shape == (slots,), name
  assert isinstance(aux.cost, base.RoundCost)
  for name in ("down", "up", "exchanges", "example_gradients"):
    leaf = getattr(aux.cost, name)
    assert (leaf.shape, leaf.dtype) == ((), jnp.int32), name
  assert aux.cost.central_flops.dtype == jnp.float32
  assert aux.cost.central_flops.shape == ()


@pytest.mark.parametrize("age", AGES)
def test_work_is_the_participants_own(bench, age):
  """For the clock: counted for participants, nothing for padding slots.

  A gradient is three forward passes, so it agrees with the ledger.
  """
  cohort, _ = bench.round_inputs(age)
  _, aux = bench.round(age)
  _, of_fewer = bench.round(age, bench.fewer)
  if bench.is_own and aux.work is None:
    return  # without a simulated clock, as base.RoundAux allows
  assert isinstance(aux.work, base.Work) and aux.times is None
  for name, leaf in aux.work._asdict().items():
    assert (leaf.shape, leaf.dtype) == (cohort.ids.shape, jnp.float32), name
    assert np.isfinite(leaf).all(), name
    assert ((leaf > 0) == (not is_finished(bench, age))).all(), name
    fewer = getattr(of_fewer.work, name)
    assert (fewer[~bench.fewer.present] == 0).all(), name
    assert ((fewer[bench.fewer.present] > 0) == (not is_finished(bench, age))).all(), (
      name
    )
  gradients = int(aux.cost.example_gradients)
  if gradients and not (expected := bench.cost_by_entry(age)).beside:
    passes = 3 * gradients + expected.evaluations * int(cohort.shards.size.sum())
    np.testing.assert_allclose(
      aux.work.flops.sum(), passes * bench.problem.model.flops, rtol=1e-5
    )


def test_a_run_is_traced_once_whatever_remains(bench):
  """``trace_once`` fails at the second trace."""
  states, _ = bench.run(bench.initial, 0, 3)
  bench.run(states, 3, 2)


def test_inputs_stay_and_the_same_inputs_give_the_same_bits(bench):
  inputs = bench.inputs(bench.states(3), 3, 1)
  before = checkpoint.state_hash(jax.tree.map(np.array, inputs[1]))
  first = bench.run_rounds(*inputs)
  second = bench.run_rounds(*bench.inputs(bench.states(3), 3, 1))
  problems.assert_equal(first, second)
  assert checkpoint.state_hash(inputs[1]) == before
  assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(inputs[1:]))


@pytest.mark.parametrize("age", AGES)
def test_slot_order_changes_nothing(bench, age):
  order = np.random.default_rng(age).permutation(bench.spec.cohort_size)
  state, aux = bench.round(age, bench.fewer)
  mixed_state, mixed_aux = bench.round(age, bench.fewer._replace(order=order))
  problems.assert_close(mixed_state, state)
  problems.assert_close(mixed_aux.client, problems.row(aux.client, order))
  problems.assert_close(mixed_aux.server, aux.server)


def nan_behind(data):
  """(data with rows full of NaN, the offset of the first of them)."""
  # No client's last block reaches these rows.
  first = data.x.shape[0] - layout.PADDING_ROWS + objective.BLOCK_ROWS
  return data._replace(x=data.x.at[first:].set(jnp.nan)), first


@pytest.mark.parametrize("age", AGES)
def test_nan_behind_a_padding_slot_changes_nothing(bench, age):
  expected, aux = bench.round(age, bench.fewer)
  data, first = nan_behind(bench.problem.data)
  poisoned, bad_aux = bench.round(age, bench.fewer._replace(offset=first), data=data)
  problems.assert_equal(poisoned, expected)
  problems.assert_equal(bad_aux.server, aux.server)


@pytest.mark.parametrize(
  "bench",
  benches([name for name in NAMES if name in MAPPED or own.is_own(name)]),
  indirect=True,
)
def test_client_maps_agree_and_padding_slots_change_nothing(bench, mesh, monkeypatch):
  """On cohorts with padding slots that point at NaN; lanes are vmap inside.

  Two lanes on each of four devices, which keep sums alone where a method needs
  no more, against one client after the other on one device, which keeps all.
  Here numbers are constants, those of the run arguments of its program.
  """
  if bench.name == "losac":  # all modes: tests/engine/test_clients.py, test_lanes.py
    check_map(bench, clients.ClientMap("vmap", mesh=mesh), mesh)
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  check_map(bench, clients.ClientMap("lanes", lanes=2, mesh=mesh), mesh)


def check_map(bench, map_clients, mesh=None):
  """Rounds with this map and PADDING slots more are those of a run.

  Those of whole cohorts have no padding slot in the run. Where slots of the
  cohort become some, the run has them as well, one client after the other.
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
    inputs = (bench.state(age), cohort, key)
    if mesh is not None:
      inputs = sharding.replicate(inputs, mesh)
    if round_ is None:
      round_ = (
        jax.jit(bench.build(map_clients).round)
        .lower(*inputs)
        .compile(problems.quick_options())
      )
    state, other_aux = round_(*inputs)
    problems.assert_close(state, expected)
    problems.assert_close(problems.row(other_aux.client, real), aux.client)
    # Sums alone do not give the mean distance from the mean.
    shared = other_aux.server.keys() & aux.server.keys()
    assert aux.server.keys() - shared <= {"discrepancy"}
    problems.assert_close(
      *(
        {name: server[name] for name in shared}
        for server in (other_aux.server, aux.server)
      )
    )
    # The server's arithmetic may be counted by slots.
    problems.assert_equal(
      *(cost._replace(central_flops=0) for cost in (other_aux.cost, aux.cost))
    )
    assert (other_aux.work is None) == (aux.work is None)
    for work, expected in zip(other_aux.work or (), aux.work or (), strict=True):
      np.testing.assert_array_equal(work, np.append(expected, np.zeros(PADDING)))


def test_resumed_run_is_the_same_bit_for_bit(bench, tmp_path):
  uninterrupted, log = bench.run(bench.initial, 0, 6)
  half, first_log = bench.run(bench.initial, 0, 3)
  checkpoint.save(tmp_path, half, 3, {})
  shapes = jax.eval_shape(lambda s: s, bench.initial)
  restored, header, warnings = checkpoint.load_latest(tmp_path, shapes)
  assert header["round"] == 3 and not warnings
  problems.assert_equal(restored, half)
  resumed, second_log = bench.run(jax.device_put(restored), 3, 3)
  problems.assert_equal(resumed, uninterrupted)
  problems.assert_equal(
    jax.tree.map(
      lambda a, b: np.concatenate([np.asarray(a)[:, :3], np.asarray(b)[:, :3]], 1),
      first_log,
      second_log,
    ),
    jax.tree.map(lambda leaf: np.asarray(leaf)[:, :6], log),
  )
  # Nor does where the restored arrays lie ask for another program.
  assert bench.run_rounds._cache_size() == 1


def test_only_the_seed_changes_a_run(bench):
  other_keys = bench.keys._replace(work=jax.random.split(jax.random.key(99), 2))
  assert problems.differ(bench.state(1), bench.round(0, keys=other_keys)[0]) == draws(
    bench
  ) or (draws(bench) is None)
  if draws(bench) is not False:
    states = bench.states(3)
    assert problems.differ(problems.row(states, 0), problems.row(states, 1))
    assert problems.differ(bench.state(0), bench.state(1))


def test_all_that_a_run_makes_is_finite(bench):
  states, log = bench.run(bench.initial, 0, 6)
  for name, leaf in zip(loop.leaf_names(states), jax.tree.leaves(states)):
    assert np.isfinite(leaf).all(), name
  for name, rows in jax.tree.map(np.asarray, log.finite).items():
    assert rows[:, :6].all() and not rows[:, 6:].any(), name
  chex.assert_tree_all_finite(log.aux)


def test_client_params_have_the_models_structure(bench):
  params, losses = bench.deploy_all(bench.state(3), jax.random.key(5))
  assert_stacked(params, bench.spec.num_clients + 1, bench.deployed_shapes)
  for leaf in jax.tree.leaves(params):
    assert not leaf.weak_type
  chex.assert_tree_all_finite((params, losses))


def assert_stacked(params, count, shapes):
  """``count`` models of these shapes along a first axis."""
  chex.assert_trees_all_equal_shapes_and_dtypes(
    params,
    jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), shapes
    ),
  )


def test_global_params_have_a_leading_axis(bench):
  if bench.algorithm.global_params is None:
    assert bench.name == "local" or bench.is_own
    return
  if bench.algorithm.membership is not None:
    member = bench.algorithm.membership(bench.state(3))
    assert (member.shape, member.dtype) == ((bench.spec.num_clients,), jnp.int32)
    assert (np.asarray(member) >= -1).all() and (np.asarray(member) >= 0).any()
  models = jax.eval_shape(bench.algorithm.global_params, bench.state(3))
  if not bench.is_own:
    assert bench.models == max(getattr(bench.hparams, name, 1) for name in MODELS)
  assert_stacked(models, bench.models, bench.model_shapes)


def read_by_steps(work, sizes, batches_per_step):
  """Examples the local steps read, counted batch by batch."""
  if not isinstance(work, LocalWork):
    return 0
  total = 0
  for size in sizes:
    batch = work.batch_size or size
    per_epoch = [min(batch, size - start) for start in range(0, size, batch)]
    steps = work.local_steps or work.local_epochs * len(per_epoch)
    total += sum(per_epoch[k % len(per_epoch)] for k in range(steps * batches_per_step))
  return total


@pytest.mark.parametrize("age", AGES)
def test_ledger(bench, age):
  check_costs(bench, age, bench.round(age)[1].cost)


def check_costs(bench, age, cost):
  """The cost of the round after ``age`` rounds is that of the entry's ledger."""
  expected = bench.cost_by_entry(age)
  if bench.entry.rounds and age:  # the layer has been sent
    expected = Expected(0, 0, 0, 0)
  names = ("down", "up", "exchanges", "gradients")
  billed = dict(zip(names, map(int, cost[:4])))
  stated = {name: math.ceil(getattr(expected, name)) for name in names}
  assert billed == stated, (
    f"{bench.name}: the RoundCost of its round bills {billed}, the ledger of "
    f"its Entry states {stated} of a Played with "
    + ", ".join(
      f"{name}={value}"
      for name, value in bench.facts_of_round(age)._asdict().items()
      if isinstance(value, (int, tuple)) and name != "state"
    )
  )
  for nbytes, floats in zip((cost.bytes_down, cost.bytes_up), expected):
    if nbytes is None:
      assert floats == int(floats)
    else:
      assert (nbytes.dtype, int(nbytes)) == (jnp.uint32, 4 * floats)
  assert cost.central_flops >= 0


def test_it_learns(bench):
  """A convex problem: the clients' own losses fall."""
  before = bench.deploy_all(bench.state(0), jax.random.key(5))[1]
  after = bench.deploy_all(bench.state(MAX_ROUNDS), jax.random.key(5))[1]
  weight = np.array([*problems.SIZES, 0]) / sum(problems.SIZES)
  assert weight @ after < 0.85 * (weight @ before)


def primitives(jaxpr):
  """Names of all primitives of a jaxpr and of those inside it."""
  for eqn in jaxpr.eqns:
    yield eqn.primitive.name
    for sub in jex_core.jaxprs_in_params(eqn.params):
      yield from primitives(sub)


def has_callback(names):
  return any("callback" in name or "print" in name for name in names)


def test_nothing_leaves_the_device_during_a_run(bench):
  args = bench.inputs(bench.initial, 0, 2)
  names = set(primitives(bench.run_rounds.trace(*args).jaxpr.jaxpr))
  assert "while" in names and not has_callback(names)
  with jax.transfer_guard("disallow"):
    states, _ = bench.run_rounds(*args)
  problems.assert_equal(states, bench.states(2))


# Methods of which nothing is compiled but the costs.

ONE_BY_ONE = clients.ClientMap()
LIBRARY = f"{pathlib.Path(base.__file__).parent}{os.sep}"


class Beginning(NamedTuple):
  """A start, the set-up, a round and what is made of the state after it."""

  start: Any
  before: Any
  after: Any
  aux: Any
  params: Any  #: of a client
  models: Any
  membership: Any


def begin(bench, map_clients=ONE_BY_ONE):
  """(numbers, data, keys) -> Beginning of one seed, with PADDING empty slots."""

  def run(numbers, data, keys):
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


@pytest.fixture(scope="module", name="traces")
def fixture_traces(problem):
  """Name -> (bench, jaxpr of its ``begin``, types of the results); kept."""

  @functools.cache
  def trace(name):
    bench = Bench(name, problem)
    traced = jax.jit(begin(bench)).trace(*one_seed(bench))
    return (
      bench,
      traced.jaxpr.jaxpr,
      jax.tree.unflatten(jax.tree.structure(traced.out_info), traced.jaxpr.out_avals),
    )

  return trace


def one_seed(bench):
  """Arguments of ``begin``."""
  return problems.row(bench.numbers, 0), bench.problem.data, run_keys(SEEDS[0])


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
  library = [name for name in NAMES if not own.is_own(name)]
  jaxprs = {name: traces(name)[1] for name in library}
  builders = {inspect.unwrap(registry.get(name).build).__qualname__ for name in library}
  for find, compiled, where in (
    (parts, {*library} - {*TRACED}, "take it from TRACED"),
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
      for name in library
      if not parts_of[name] <= everywhere
    }
    assert not alone, f"no compiled method has these; {where}: {alone}"


@pytest.mark.parametrize("name", [name for name in TRACED if name in NAMES])
def test_a_traced_round_keeps_types_calls_nobody_and_bills_its_ledger(name, traces):
  """As the tests above ask of compiled ones; costs alone are compiled."""
  bench, jaxpr, made = traces(name)
  constant = jax.eval_shape(
    lambda params, key: bench.algorithm.init(params, bench.spec, key),
    bench.model_shapes,
    jax.random.key(0),
  )
  for state in (made.start, made.before, made.after):
    assert types(state) == types(constant)
  assert types(made.params) == types(bench.deployed_shapes)
  check_report(made.aux, bench.spec.cohort_size + PADDING)
  assert not has_callback(set(primitives(jaxpr)))
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
    made = begin(bench)(*inputs)
    return made.aux.cost, jax.tree.map(lambda leaf: leaf[None], made.before)

  cost, bench.initial = problems.quick_jit(bill)(*one_seed(bench))
  check_costs(bench, 0, cost)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*MAPPED, *TRACED)])
def test_a_client_map_gives_the_types_of_another(name, traces, mesh, monkeypatch):
  """Also where sums alone are kept; what clients share is an argument."""
  _, _, made = traces(name)  # as other tests read it, before sums alone are kept
  monkeypatch.setattr(stacking, "STACKED_BYTES", 0)
  lanes = clients.ClientMap("lanes", lanes=2, mesh=mesh)
  bench = Bench(name, traces(name)[0].problem)
  other = jax.eval_shape(begin(bench, lanes), *one_seed(bench))
  assert types(other.after) == types(made.after)
  check_report(other.aux, bench.spec.cohort_size + PADDING)


@pytest.mark.fast
def test_who_states_no_ledger_is_told_what_one_gets(problem, monkeypatch):
  """The message names the fields, so that nobody has to read the tests."""
  entry = registry.get("fedavg")
  monkeypatch.setitem(registry.ALGORITHMS, "mine", entry._replace(ledger=None))
  with pytest.raises(AssertionError) as error:
    Bench("mine", problem).cost_by_entry(0)
  for name in (*Played._fields, *Expected._fields):
    assert name in str(error.value)


@pytest.mark.fast
def test_settings_of_the_tests_are_those_that_a_field_can_have():
  """A field of one's own may mean something else by the name of another."""

  @dataclasses.dataclass(frozen=True)
  class Mine:
    threshold: float = 0.5
    num_models: int = hparams_lib.hyper(2, "pairs", maximum=2)
    num_groups: int = hparams_lib.hyper(2, "groups", minimum=1)

  assert usable(Mine, SMALL) == {"num_groups": SMALL["num_groups"]}
  for entry in registry.ALGORITHMS.values():
    fields = {field.name for field in dataclasses.fields(entry.hparams)}
    assert usable(entry.hparams, SMALL).keys() == fields & SMALL.keys()
