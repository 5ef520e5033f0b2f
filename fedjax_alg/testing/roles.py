"""Clauses on roles of parameters and on targets, by shapes alone.

A method can have personal, frozen and running parameters, and targets that are no
class, or it refuses them in one line. Here a user's own method says itself which;
the tests say it for each of the library's.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import types
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import models
from fedjax_alg.base import (
  Algorithm,
  ClientData,
  FedSpec,
  Model,
  initial_shapes,
  num_params,
)
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, loop
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation, sample_and_run
from fedjax_alg.errors import OptionError, describe_error
from fedjax_alg.models import adapt, roles
from fedjax_alg.registry import Entry
from fedjax_alg.runs import methods, prepare
from fedjax_alg.testing.bench import (
  CLASSES,
  FEATURES,
  Bench,
  Violation,
  cohort_spec,
  small_method,
  softmax_problem,
)

HIDDEN, INPUTS, TARGETS, LENGTH, TOKENS = 6, 5, 2, 4, 11
STATISTICS = 2 * HIDDEN
SIZES = (4, 9, 7, 3, 8, 5) * 2
#: (patterns of roles, model_state) of the two clauses on roles.
PERSONAL: tuple[list[str], str] = (["personal:Dense_1"], "local")
FROZEN: tuple[list[str], str] = (["frozen:Dense_0"], "global")
WITHOUT: tuple[list[str], str] = ([], "batch")


class Normed(nn.Module):
  """A perceptron with BatchNorm."""

  outputs: int = CLASSES

  @nn.compact
  def __call__(self, x: Any, train: bool) -> Any:
    """Gives the logits."""
    x = nn.BatchNorm(not train)(nn.Dense(HIDDEN)(x))
    return nn.Dense(self.outputs)(nn.relu(x))


class RoleProblem(NamedTuple):
  """Some clients with a model whose leaves can have roles."""

  data: ClientData
  spec: FedSpec
  model: Model
  #: floats of its layers: "first" is ``Dense_0``, "last" is ``Dense_1``
  floats: Mapping[str, int] = types.MappingProxyType({})


@functools.cache
def class_problem() -> RoleProblem:
  """Makes a problem of classes, with ``Normed``."""
  softmax = softmax_problem()
  return RoleProblem(
    softmax.data,
    softmax.spec,
    flax_model(Normed(), softmax.spec),
    dict(first=HIDDEN * (FEATURES + 1), norm=2 * HIDDEN, last=(HIDDEN + 1) * CLASSES),
  )


def flax_model(module: nn.Module, spec: FedSpec, **options: Any) -> Model:
  """Makes a model of a module, whose start is traced once for all methods."""
  model = models.from_flax(module, spec.input_shape, **options)
  whole = model.roles.whole._replace(init=jax.jit(model.roles.whole.init))
  return model._replace(roles=dataclasses.replace(model.roles, whole=whole))


@functools.cache
def target_problem(task: str) -> RoleProblem:
  """Makes a problem of targets that are no class.

  Args:
    task: `regression` or `tokens`.

  Returns:
    The problem. Its model has one layer, which least squares can fit to numbers.
  """
  rng, rows = np.random.default_rng(0), sum(SIZES) + 6
  x: Any
  y: Any
  if task == "regression":
    x, y = rng.normal(size=(rows, INPUTS)), rng.normal(size=(rows, TARGETS))
    shape, size = (INPUTS,), TARGETS
    model = models.Softmax().build(shape, size, task=task)
  else:
    x, y = (rng.integers(0, TOKENS, (rows, LENGTH)) for _ in range(2))
    shape, size = (LENGTH,), TOKENS
    model = models.from_functions(
      lambda key: jax.random.normal(key, (TOKENS, TOKENS)),
      lambda params, x: params[x],
      shape,
      task=task,
      input_dtype=jnp.int32,
    )
  ends = np.cumsum(SIZES)
  data = layout.client_data(
    x, y, np.arange(ends[-1]), ends - SIZES, np.array(SIZES), ends[-1] + np.arange(6)
  )
  return RoleProblem(
    jax.tree.map(jnp.asarray, data),
    FedSpec(len(SIZES), 4, size, shape, int(ends[-1])),
    model,
  )


def shapes_of_a_round(
  name: str, entry: Entry, problem: RoleProblem, **overrides: Any
) -> tuple[Algorithm, Any]:
  """Traces a start and a round.

  Args:
    name: the method.
    entry: its entry.
    problem: the clients and the model.
    **overrides: hyper-parameters.

  Returns:
    The algorithm, and its state after a round, which is as at its start.

  Raises:
    OptionError: the method does not go with the model, as a run would say.
    Violation: the state after the round has other shapes, or the method raises
      another error.
  """
  try:
    algorithm, before, after = _trace(name, entry, problem, overrides)
  except OptionError:
    raise
  except Exception as error:  # whatever the user's code raises
    absent = adapt.absent_parts(problem.model, error)
    raise Violation(f"the method raises {describe_error(error)}{absent}") from error
  if _types(before) != _types(after):
    raise Violation("the state after a round has other shapes than before")
  return algorithm, after


def _trace(
  name: str, entry: Entry, problem: RoleProblem, overrides: dict[str, Any]
) -> tuple[Algorithm, Any, Any]:
  """The algorithm, and the shapes of its state before and after a round."""
  keys = run_keys(0)
  method = small_method(name, entry, **overrides)
  build = method.builder(problem.model, clients.ClientMap())
  algorithm = build({})
  prepare.check_roles(algorithm, method, problem.model)
  seeds = jax.tree.map(lambda key: key[None], keys)
  spec = cohort_spec(entry, problem.spec)
  participation = Participation(spec.cohort_size)

  def both(data: Any) -> Any:
    states = loop.initial_states(build, problem.model, spec, data, seeds, {})
    state = jax.tree.map(lambda leaf: leaf[0], states)
    after, _, _ = sample_and_run(
      algorithm, data, participation, keys, jnp.int32(0), state
    )
    return state, after

  return algorithm, *jax.eval_shape(both, problem.data)


def _types(state: Any) -> Any:
  return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)


def trace_round(
  name: str,
  entry: Entry,
  specs: Sequence[str],
  model_state: str,
  problem: RoleProblem | None = None,
  **overrides: Any,
) -> tuple[Model, Algorithm, Any]:
  """Traces a round with a model whose parameters have roles.

  Args:
    name: the method.
    entry: its entry.
    specs: patterns of roles.
    model_state: `model_state` of a run.
    problem: the clients and the model; None: of classes.
    **overrides: hyper-parameters.

  Returns:
    The model, the algorithm, and its state after the round, as shapes.

  Raises:
    OptionError: the method refuses the roles, as a run would.
  """
  problem = problem or class_problem()
  model = roles.split(problem.model, specs, model_state=model_state)
  data = problem.data
  if model.roles.has_frozen:
    data = data._replace(frozen=model.roles.frozen)
  problem = problem._replace(model=model, data=data)
  return model, *shapes_of_a_round(name, entry, problem, **overrides)


def client_shapes(algorithm: Algorithm, state: Any, data: ClientData) -> Any:
  """Gives the parameters that a client deploys, as shapes."""
  return jax.eval_shape(
    lambda state, data, key: algorithm.client_params(
      state, jnp.int32(0), layout.shard_of(data, 0), key
    ),
    state,
    data,
    jax.random.key(0),
  )


def _floats_of_client(algorithm: Algorithm, model: Model, floats: int) -> int:
  """The floats of what a client deploys, which is a model of so many floats."""
  mixed = algorithm.client_model(model)
  if mixed is model:
    return floats
  deployed = num_params(initial_shapes(mixed.init))
  components = initial_shapes(mixed.init)["weights"].size
  _require("the floats of a mixture", deployed, components * (floats + 1))
  return deployed


def _require(what: str, actual: object, expected: object) -> None:
  if actual != expected:
    raise Violation(f"{what}: {actual}, must be {expected}")


def refusal(name: str, entry: Entry, specs: Sequence[str], model_state: str) -> str:
  """Says how a method refuses roles; "" if it has them.

  Args:
    name: the method.
    entry: its entry.
    specs: patterns of roles.
    model_state: `model_state` of a run.

  Returns:
    A part of the message.
  """
  model = roles.split(class_problem().model, specs, model_state=model_state)
  try:
    algorithm = methods.Method(name, entry, *entry.parts()).build(
      model, clients.ClientMap()
    )
  except OptionError as error:
    return str(error)
  lacks = (model.roles.has_personal and algorithm.start_personal is None) or (
    model.roles.has_state and not algorithm.keeps_state
  )
  return f"{name} keep" if lacks else ""


def require_refusal(
  name: str,
  entry: Entry,
  specs: Sequence[str],
  model_state: str,
  problem: RoleProblem | None = None,
) -> str:
  """Requires that a method refuses roles in one line.

  Args:
    name: the method.
    entry: its entry.
    specs: patterns of roles.
    model_state: `model_state` of a run.
    problem: the clients and the model; None: of classes.

  Returns:
    The line.

  Raises:
    Violation: it does not.
  """
  try:
    trace_round(name, entry, specs, model_state, problem)
  except OptionError as error:
    _require("lines of the refusal", str(error).count("\n") + 1, 1)
    return str(error)
  raise Violation(f"roles={','.join(specs)} with model_state={model_state} is accepted")


def check_personal_parameters(
  name: str, entry: Entry, refuses: bool, problem: RoleProblem | None = None
) -> None:
  """Tests a personal layer, and statistics that each client keeps.

  Args:
    name: the method.
    entry: its entry.
    refuses: whether it refuses them; it is then tested without.
    problem: the clients and the model; None: of classes.

  Raises:
    Violation: they are sent, or not deployed.
  """
  problem = problem or class_problem()
  specs, total = PERSONAL, sum(problem.floats.values())
  shared, deployed = total - problem.floats["last"], total + STATISTICS
  if refuses:
    specs, shared, deployed = WITHOUT, total, total
  model, algorithm, state = trace_round(name, entry, *specs, problem)
  if not refuses and algorithm.start_personal is None:
    raise Violation("its Algorithm has no start_personal")
  _check_floats(algorithm, model, state, problem.data, shared, deployed)


def _check_floats(
  algorithm: Algorithm,
  model: Model,
  state: Any,
  data: ClientData,
  shared: int,
  deployed: int,
  statistics: int = 0,
) -> None:
  actual = num_params(initial_shapes(model.init))
  _require("the floats of what is shared", actual, shared)
  if algorithm.global_params is not None:
    global_models = jax.eval_shape(algorithm.global_params, state)
    if num_params(global_models) % (shared + statistics):
      raise Violation(
        f"global_params returns {num_params(global_models)} floats, must return K "
        f"models of {shared + statistics}"
      )
  _require(
    "the floats of client_params",
    num_params(client_shapes(algorithm, state, data)),
    _floats_of_client(algorithm, model, deployed),
  )


def check_frozen_parameters(
  name: str, entry: Entry, refuses: bool, problem: RoleProblem | None = None
) -> None:
  """Tests frozen parameters, which are in no state, and statistics, which are.

  A round reads frozen ones from its arguments; the server keeps the rest.

  Args:
    name: the method.
    entry: its entry.
    refuses: whether it refuses running statistics; those of a batch remain.
    problem: the clients and the model; None: of classes.

  Raises:
    Violation: frozen parameters are in the state, or statistics are not.
  """
  problem = problem or class_problem()
  (specs, model_state), statistics = FROZEN, STATISTICS
  if refuses:
    model_state, statistics = "batch", 0
  model, algorithm, state = trace_round(name, entry, specs, model_state, problem)
  floats = problem.floats
  _require("frozen floats", num_params(model.roles.frozen), floats["first"])
  for path, _ in jax.tree_util.tree_leaves_with_path(state):
    if "Dense_0" in jax.tree_util.keystr(path):
      raise Violation(f"the frozen {jax.tree_util.keystr(path)} is in its state")
  shared = sum(floats.values()) - floats["first"]
  _check_floats(
    algorithm, model, state, problem.data, shared, shared + statistics, statistics
  )


def check_target_fit(name: str, entry: Entry, task: str) -> None:
  """Tests targets that are no class, which a method of one layer fits.

  Args:
    name: the method.
    entry: its entry.
    task: `regression` or `tokens`.

  Raises:
    OptionError: the method refuses them.
    Violation: a client deploys another model.
  """
  problem = target_problem(task)
  algorithm, state = shapes_of_a_round(name, entry, problem)
  deployed = algorithm.client_model(problem.model)
  shapes = initial_shapes(deployed.init)
  _require(
    "the shapes of client_params",
    jax.tree.map(
      lambda leaf: leaf.shape, client_shapes(algorithm, state, problem.data)
    ),
    jax.tree.map(lambda leaf: leaf.shape, shapes),
  )


# Of a user's own method, which says itself what it refuses.


def _personal(bench: Bench, age: int) -> None:
  del age
  _check_own(bench, check_personal_parameters, PERSONAL)


def _frozen(bench: Bench, age: int) -> None:
  del age
  _check_own(bench, check_frozen_parameters, FROZEN)


def _check_own(
  bench: Bench, check: Callable[..., object], roles_of: tuple[list[str], str]
) -> None:
  words = refusal(bench.name, bench.entry, *roles_of)
  if words:
    line = require_refusal(bench.name, bench.entry, *roles_of)
    if words not in line:
      raise Violation(f"a run refuses it otherwise than its builder: {line}")
    if refusal(bench.name, bench.entry, *WITHOUT):
      return  # the model, with or without roles
  check(bench.name, bench.entry, bool(words))


def _targets(task: str, bench: Bench, age: int) -> None:
  del age
  try:
    check_target_fit(bench.name, bench.entry, task)
  except OptionError as error:  # it says so itself
    _require("lines of the refusal", str(error).count("\n") + 1, 1)


#: (name, what tests it) of the clauses.
CHECKS = (
  ("personal parameters", _personal),
  ("frozen parameters", _frozen),
  ("targets that are numbers", functools.partial(_targets, "regression")),
  ("targets that are tokens", functools.partial(_targets, "tokens")),
)
