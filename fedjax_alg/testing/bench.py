"""A method on a small problem: what the clauses of the contract measure.

Clients are unlike in their number of examples and in their models. The program
of a run takes every number that it may take as an argument, as those of
``fa.run`` do, and also how the cohort of a round is changed (``Slots``).
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import base, models, optional
from fedjax_alg import hparams as hparams_lib
from fedjax_alg.base import Algorithm, ClientData, FedSpec, Model, Shard, initial_shapes
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, compiling, loop, sharding
from fedjax_alg.engine.keys import client_keys, run_keys
from fedjax_alg.engine.round import Participation, sample_cohort
from fedjax_alg.errors import OptionError
from fedjax_alg.part import of_type, parts_of
from fedjax_alg.registry import Entry
from fedjax_alg.rounds.expected import Played
from fedjax_alg.runs import methods, own_algorithm
from fedjax_alg.typing import PyTree

#: Examples of each client: 64 fill one block of a full pass, 90 take two.
SIZES = (3, 90, 7, 12, 45, 5, 20, 9, 64, 4, 15, 30)
VALIDATION = 70  #: examples of the server
FEATURES, CLASSES = 12, 4
L2 = 0.01
#: Seeds of a run, its most rounds, and the slots without clients of ``fewer``.
SEEDS, MAX_ROUNDS, PADDING = (0, 1), 60, 2
#: The numbers that a program is given, in parts of those it is built from, so
#: that none of the latter can be used by mistake.
CHANGE = 0.95

#: Values of a short run, for methods that have the field.
SMALL: Mapping[str, Any] = dict(
  local_steps=4,
  batch_size=5,
  num_models=3,
  threshold=1,
  num_components=3,
  num_groups=3,
  max_groups=3,
  centers="kmeans:4",
  first_group="trained:3",
  pretrain_steps=3,
  cluster_after=1,
  split_after=1,
  thresholds="fixed:1000,0",
  gamma_max=0.0,
  directions=3,
  smoothing=0.1,
  steps_per_round=3,
  inner_steps=2,
  lam=2.0,
  remove_ridge=False,
)


class SmallProblem(NamedTuple):
  """A federated data set with a model for it."""

  model: Model
  data: ClientData
  clients: list[tuple[np.ndarray, np.ndarray]]  #: (x, y) of each client
  spec: FedSpec  #: its cohort is 8 of the 12, or all of a small problem
  validation: Any = None  #: (x, y) of the server


def lay_out_clients(
  clients: Sequence[tuple[np.ndarray, np.ndarray]], validation: Any = None
) -> ClientData:
  """Lays the clients' arrays out back to back, then the server's (x, y)."""
  validation_pairs = [] if validation is None else [validation]
  x = np.concatenate([x for x, _ in [*clients, *validation_pairs]])
  y = np.concatenate([y for _, y in [*clients, *validation_pairs]])
  size = np.array([len(y) for _, y in clients])
  rows = np.arange(len(y))
  data: ClientData = jax.tree.map(
    jax.device_put,  # jnp.asarray compiles a program for each shape
    layout.client_data(
      x,
      y,
      rows[: size.sum()],
      np.cumsum(size) - size,
      size,
      rows[size.sum() :] if validation_pairs else None,
    ),
  )
  return data


def make_clients(
  sizes: Sequence[int] = SIZES, seed: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Makes three kinds of clients whose models differ, on sparse features.

  Feature 8 is held by every other client, 9 by every third one, 10 by client
  1 alone in few examples, 11 by nobody.
  """
  rng = np.random.default_rng(seed)
  shared = rng.normal(size=(FEATURES, CLASSES))
  kinds = 2.5 * rng.normal(size=(3, FEATURES, CLASSES))
  clients = []
  for i, size in enumerate(sizes):
    x = rng.normal(size=(size, FEATURES))
    x *= rng.random((size, FEATURES)) < 0.7
    x[:, 8] *= i % 2 == 0
    x[:, 9] *= i % 3 == 0
    x[:, 10] *= (i == 1) & (rng.random(size) < 0.2)
    x[:, 11] = 0
    x = x.astype(np.float32)
    y = np.argmax(x @ (shared + kinds[i % 3]), axis=1).astype(np.int32)
    clients.append((x, y))
  return clients


def softmax_problem() -> SmallProblem:
  """Makes 12 clients, 12 features, 4 classes, and softmax regression with L2.

  The server holds VALIDATION examples of a thirteenth client.
  """
  *clients, server = make_clients((*SIZES, VALIDATION))
  model = models.Softmax().build((FEATURES,), CLASSES, l2=L2)
  return SmallProblem(
    model,
    lay_out_clients(clients, server),
    clients,
    FedSpec(len(clients), 8, CLASSES, (FEATURES,), sum(SIZES)),
    server,
  )


def row(tree: PyTree, i: Any) -> Any:
  """Reads row ``i`` of every leaf, in NumPy: JAX would compile it for each shape."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[i], tree)


def quick_jit(fn: Callable[..., Any], **options: Any) -> Any:
  """Jits a function whose programs compile in a third of the time."""
  compiler_options: Any = compiling.quick_options("cpu") or {}
  return jax.jit(fn, compiler_options=compiler_options, **options)


def usable(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
  """Selects those settings that hyper-parameters of this type can have.

  A field of a user's own method may mean something else by the same name.
  """
  fields = {field.name: field for field in dataclasses.fields(kind)}
  usable_settings = {}
  for name, value in settings.items():
    if name not in fields:
      continue
    with contextlib.suppress(OptionError):
      if parts_of(fields[name].type):
        usable_settings[name] = of_type(name, value, fields[name].type)
      elif type(value) is type(fields[name].default):
        if "help" in fields[name].metadata:
          hparams_lib.check_value(fields[name], value)
        usable_settings[name] = value
  return usable_settings


def small_method(name: str, entry: Entry, **overrides: Any) -> methods.Method:
  """Makes a method with the settings of a short run, resolved.

  Args:
    name: its name.
    entry: its entry.
    **overrides: settings that it has in any case.
  """
  settings = usable(entry.hparams, SMALL) | dict(entry.test_hparams) | overrides
  return methods.Method(name, entry, *entry.parts(**settings)).resolved()


def cohort_spec(entry: Entry, spec: FedSpec) -> FedSpec:
  """Gives the sizes of a problem whose cohort is as large as the method needs."""
  return spec._replace(cohort_size=spec.num_clients) if entry.all_clients else spec


def check_shapes(
  method: methods.Method,
  problem: SmallProblem,
  map_clients: base.MapClients,
  numbers: Any,
) -> Any:
  """Holds the functions of a method's algorithm to the contract, by shapes.

  Args:
    method: the method.
    problem: the clients and the model.
    map_clients: the client map.
    numbers: numbers of the method that are arguments of a program; the others are
      constants.

  Returns:
    The state, as shapes.

  Raises:
    OptionError: a function breaks the contract.
  """
  build = method.builder(problem.model, map_clients)
  call = own_algorithm.ShapeCheck(
    f"`algorithm`={method.name}", problem.model, strict=True
  )
  spec = cohort_spec(method.entry, problem.spec)
  participation = Participation(spec.cohort_size)
  states: list[Any] = []

  def check(numbers: Any) -> None:
    states.append(
      own_algorithm.check_algorithm(
        call, build(numbers), spec, participation, problem.data
      )
    )

  jax.eval_shape(check, numbers)
  return states[0]


class Violation(Exception):
  """A clause of the contract does not hold; the message is one sentence."""


def map_of_several() -> clients.ClientMap:
  """Makes a map that trains several clients at once, on up to four devices.

  They are lanes; without this extra, all clients of a device at once.
  """
  mesh = sharding.clients_mesh(jax.devices("cpu")[:4])
  if optional.find_extra("lanes") is None:
    return clients.ClientMap("vmap", mesh=mesh)
  return clients.ClientMap("lanes", lanes=2, mesh=mesh)


def trace_once(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Wraps a function, which fails when it is traced again.

  One trace is one program.
  """
  traces: list[int] = []

  def once(*args: Any) -> Any:
    if traces:
      raise Violation("is traced, and would be compiled, a second time")
    result = fn(*args)
    traces.append(1)
    return result

  return once


class Slots(NamedTuple):
  """How a cohort is changed before a round; inputs of the program of a run."""

  order: Any  #: [S] int, the slot that comes to each place
  present: Any  #: [S] bool, false for those that become padding slots
  offset: Any = 0  #: [] int, the offset of padding slots

  @jax.jit
  def change(self, cohort: Any) -> Any:
    """Gives the cohort with its slots in this order, some without client."""
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
  """One method with its program of a run, shared by all clauses.

  The program is built from other numbers than it is given. ``algorithm`` has
  its numbers as constants.
  """

  def __init__(self, name: str, problem: SmallProblem, entry: Entry):
    """Builds the method.

    Args:
      name: its name in messages.
      problem: the clients and the model.
      entry: its entry.
    """
    self.name, self.problem, self.entry = name, problem, entry
    method = small_method(name, entry)
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
    self.spec = cohort_spec(entry, problem.spec)
    size = self.spec.cohort_size
    self.algorithm = self.build(clients.ClientMap())
    self.keys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(run_keys, SEEDS))
    self.run_rounds = quick_jit(
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
    self._states: dict[int, PyTree] = {}

  @functools.cached_property
  def initial(self) -> Any:
    """States of all seeds before their first round."""
    return quick_jit(
      functools.partial(loop.initial_states, self.traced, self.problem.model, self.spec)
    )(self.problem.data, self.keys, self.numbers)

  def build(self, map_clients: base.MapClients) -> Algorithm:
    """Builds the algorithm with its numbers as constants."""
    return self.method.build(self.problem.model, map_clients)

  def with_slots(self, numbers: Any) -> Algorithm:
    """Builds the algorithm with rounds on a changed cohort."""
    slots, algorithm = numbers["slots"], self.traced(numbers["traced"])

    return algorithm._replace(
      round=lambda state, cohort, key: algorithm.round(state, slots.change(cohort), key)
    )

  def inputs(
    self,
    states: Any,
    start: int,
    count: int,
    slots: Slots | None = None,
    data: ClientData | None = None,
    keys: Any = None,
  ) -> Any:
    """Makes arguments of ``run_rounds``, for which ``states`` is copied."""
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

  def run(self, states: Any, start: int, count: int, **changes: Any) -> Any:
    """Gives the states after rounds start.. and the log."""
    return self.run_rounds(*self.inputs(states, start, count, **changes))

  def round(self, age: int, slots: Slots | None = None, **changes: Any) -> Any:
    """Gives state and report of seed 0 of the round after ``age`` rounds."""
    states, log = self.run(self.states(age), age, 1, slots=slots, **changes)
    return row(states, 0), row(log.aux, (0, 0))

  def states(self, age: int) -> Any:
    """Gives the states of all seeds after ``age`` rounds."""
    if age not in self._states:
      self._states[age] = self.run(self.initial, 0, age)[0] if age else self.initial
    return self._states[age]

  def state(self, age: int) -> Any:
    """Gives the state of seed 0 after ``age`` rounds."""
    return row(self.states(age), 0)

  @functools.cached_property
  def size(self) -> int:
    """P, the number of parameters."""
    return base.num_params(self.model_shapes)

  @functools.cached_property
  def model_shapes(self) -> Any:
    """The model's parameters, as shapes."""
    return initial_shapes(self.problem.model.init)

  @functools.cached_property
  def deployed_shapes(self) -> Any:
    """The parameters that a client deploys, as shapes."""
    model = self.algorithm.client_model(self.problem.model)
    return initial_shapes(model.init)

  @functools.cached_property
  def models(self) -> int:
    """K, the number of global models; 1 where there is none."""
    if self.algorithm.global_params is None:
      return 1
    shapes = jax.eval_shape(self.algorithm.global_params, self.state(0))
    return int(jax.tree.leaves(shapes)[0].shape[0])

  def facts_of_round(self, age: int) -> Played:
    """Describes the round after ``age`` rounds, for ledgers."""
    cohort, _ = self.round_inputs(age)
    num_models, ids = self.models, tuple(np.asarray(cohort.ids).tolist())
    if age < getattr(self.hparams, "threshold", 0):
      num_models = 1

    def read_by(clients: Sequence[int], steps: int, batches: int = 1) -> int:
      work = (
        self.hparams
        if not steps
        else LocalWork(local_steps=steps, batch_size=self.hparams.batch_size)
      )
      return _read_by_steps(work, [SIZES[i] for i in clients], batches)

    return Played(
      self.size,
      num_models,
      sum(SIZES[i] for i in ids),
      lambda batches: read_by(ids, 0, batches),
      self.hparams,
      FEATURES,
      CLASSES,
      age,
      ids,
      self.spec.num_clients,
      self.state(age),
      read_by,
    )

  def round_inputs(self, number: int) -> tuple[Any, Any]:
    """Gives the cohort and the key of round ``number`` of seed 0 in a run."""
    keys = run_keys(SEEDS[0])
    cohort = sample_cohort(
      self.problem.data, self.spec.cohort_size, jax.random.fold_in(keys.cohort, number)
    )
    return cohort, jax.random.fold_in(keys.work, number)

  @functools.cached_property
  def tables(self) -> list[bool]:
    """Of each leaf of the state whether it has a row for each client."""
    key = jax.random.key(0)
    few, more = (
      jax.eval_shape(
        lambda params, spec=spec: self.algorithm.init(params, spec, key),
        self.model_shapes,
      )
      for spec in (self.spec, self.spec._replace(num_clients=self.spec.num_clients + 1))
    )
    return [
      a.shape[:1] != b.shape[:1]
      for a, b in zip(*map(jax.tree.leaves, (few, more)), strict=True)
    ]

  @functools.cached_property
  def _shards(self) -> Shard:
    """The data of all clients and of a newcomer, who has those of client 0."""
    data = self.problem.data
    holder = np.arange(self.spec.num_clients + 1) % self.spec.num_clients
    places: list[Any] = [np.asarray(leaf)[holder] for leaf in (data.offset, data.size)]
    return Shard(data.x, data.y, *places)

  def client_models(self, name: str) -> Callable[[Any, Any], Any]:
    """Makes (state, key) -> params of all clients and a newcomer.

    Args:
      name: ``client_params`` or ``client_copy``.
    """
    ids: Any = np.arange(self.spec.num_clients + 1, dtype=np.int32)  # C: the newcomer

    @quick_jit
    def deploy(state: Any, key: Any, numbers: Any, shards: Any) -> Any:
      return jax.vmap(
        functools.partial(getattr(self.traced(numbers), name), state),
        in_axes=(0, _OF_CLIENTS, 0),
      )(ids, shards, client_keys(key, ids))

    return lambda state, key: deploy(state, key, row(self.numbers, 0), self._shards)

  @functools.cached_property
  def deploy_all(self) -> Any:
    """(state, key) -> params of all clients and a newcomer, their losses."""
    # What is fitted in closed form does not minimize the model's loss.
    loss = _mistakes if self.entry.rounds else None
    measured = self.algorithm.client_model(self.problem.model)
    deploy = self.client_models("client_params")

    def deploy_and_measure(state: Any, key: Any) -> Any:
      params = deploy(state, key)
      return params, _losses_of(measured, loss)(params, self._shards)

    return deploy_and_measure

  def is_finished(self, age: int) -> bool:
    """Whether a method that ends has nothing more to do."""
    rounds = self.entry.rounds
    return rounds is not None and age >= rounds(self.hparams, 1)


#: The axis of a shard's leaves along which clients lie.
_OF_CLIENTS = Shard(*cast(Any, (None, None, 0, 0)))


@functools.cache
def _losses_of(model: Model, loss: Any) -> Any:
  """(params, shards) of clients -> their losses: one program for all methods."""
  measured = model._replace(loss=loss) if loss else model
  return quick_jit(
    jax.vmap(functools.partial(objective.full_loss, measured), in_axes=(0, _OF_CLIENTS))
  )


def _mistakes(logits: Any, y: Any) -> Any:
  return (logits.argmax(1) != y).astype(jnp.float32)


def _read_by_steps(work: Any, sizes: Sequence[int], batches_per_step: int) -> int:
  """Examples that the local steps read, counted batch by batch."""
  if not isinstance(work, LocalWork):
    return 0
  total = 0
  for size in sizes:
    batch = work.batch_size or size
    per_epoch = [min(batch, size - start) for start in range(0, size, batch)]
    steps = work.local_steps or work.local_epochs * len(per_epoch)
    total += sum(per_epoch[k % len(per_epoch)] for k in range(steps * batches_per_step))
  return total


def nan_behind(data: ClientData) -> tuple[ClientData, int]:
  """Gives the data with rows full of NaN, and the offset of the first of them."""
  # No client's last block reaches these rows.
  first = data.x.shape[0] - layout.PADDING_ROWS + objective.BLOCK_ROWS
  return data._replace(x=data.x.at[first:].set(jnp.nan)), first
