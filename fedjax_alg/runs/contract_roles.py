"""Clauses on roles of parameters and on targets, by shapes alone.

A method can have personal, frozen and running parameters, and targets that are no
class, or it refuses them in one line. Here a user's own method says itself which;
the tests say it for each of the library's.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import models
from fedjax_alg.base import Algorithm, ClientData, FedSpec, Model, num_params
from fedjax_alg.data import layout
from fedjax_alg.engine import clients, loop
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation, sample_and_run
from fedjax_alg.errors import OptionError, describe_error
from fedjax_alg.models import adapt, roles
from fedjax_alg.registry import Entry
from fedjax_alg.runs import methods, prepare
from fedjax_alg.runs.bench import (
  CLASSES,
  FEATURES,
  Bench,
  Violation,
  small_method,
  softmax_problem,
)

HIDDEN, INPUTS, TARGETS, LENGTH, TOKENS = 6, 5, 2, 4, 11
STATISTICS = 2 * HIDDEN
SIZES = (4, 9, 7, 3, 8, 5) * 2
#: task -> floats of the layers of ``Normed``.
FLOATS: dict[str | None, dict[str, int]] = {
  None: dict(
    first=HIDDEN * (FEATURES + 1), norm=2 * HIDDEN, last=(HIDDEN + 1) * CLASSES
  ),
  "regression": dict(
    first=HIDDEN * (INPUTS + 1), norm=2 * HIDDEN, last=(HIDDEN + 1) * TARGETS
  ),
  "tokens": dict(
    embedding=TOKENS * INPUTS,
    first=HIDDEN * (INPUTS + 1),
    norm=2 * HIDDEN,
    last=(HIDDEN + 1) * TOKENS,
  ),
}
#: (patterns of roles, model_state) of the two clauses on roles.
PERSONAL: tuple[list[str], str] = (["personal:Dense_1"], "local")
FROZEN: tuple[list[str], str] = (["frozen:Dense_0"], "global")
WITHOUT: tuple[list[str], str] = ([], "batch")


class Normed(nn.Module):
  """A perceptron with BatchNorm, on numbers or on tokens."""

  outputs: int = CLASSES

  @nn.compact
  def __call__(self, x: Any, train: bool) -> Any:
    """Gives the logits."""
    if jnp.issubdtype(x.dtype, jnp.integer):
      x = nn.Embed(TOKENS, INPUTS)(x)
    x = nn.BatchNorm(not train)(nn.Dense(HIDDEN)(x))
    return nn.Dense(self.outputs)(nn.relu(x))


@functools.cache
def role_problem(task: str | None) -> tuple[ClientData, FedSpec]:
  """Makes data and their spec: numbers, classes or tokens of some clients."""
  if task is None:
    softmax = softmax_problem()
    return softmax.data, softmax.spec
  rng, rows = np.random.default_rng(0), sum(SIZES) + 6
  x: Any
  y: Any
  if task == "regression":
    x, y = rng.normal(size=(rows, INPUTS)), rng.normal(size=(rows, TARGETS))
    shape, size = (INPUTS,), TARGETS
  else:
    x, y = (rng.integers(0, TOKENS, (rows, LENGTH)) for _ in range(2))
    shape, size = (LENGTH,), TOKENS
  ends = np.cumsum(SIZES)
  data = layout.client_data(
    x, y, np.arange(ends[-1]), ends - SIZES, np.array(SIZES), ends[-1] + np.arange(6)
  )
  return (
    jax.tree.map(jnp.asarray, data),
    FedSpec(len(SIZES), 4, size, shape, int(ends[-1])),
  )


@functools.cache
def norm_model(task: str | None = None) -> Model:
  """Makes a ``Normed`` for the problem of a task."""
  _, spec = role_problem(task)
  model = models.from_flax(
    Normed(spec.num_classes),
    spec.input_shape,
    task=task,
    input_dtype=jnp.int32 if task == "tokens" else jnp.float32,
  )
  # Traced once for all methods, each of which asks for it several times.
  whole = model.roles.whole._replace(init=jax.jit(model.roles.whole.init))
  return model._replace(roles=dataclasses.replace(model.roles, whole=whole))


@functools.cache
def plain_model(task: str) -> Model:
  """Makes a model of one layer, which least squares can fit to numbers."""
  _, spec = role_problem(task)
  if task == "regression":
    return models.make_model("softmax", spec.input_shape, TARGETS, task=task)
  return models.from_functions(
    lambda key: jax.random.normal(key, (TOKENS, TOKENS)),
    lambda params, x: params[x],
    spec.input_shape,
    task=task,
    input_dtype=jnp.int32,
  )


def shapes_of_a_round(
  name: str,
  entry: Entry,
  model: Model,
  data: ClientData,
  spec: FedSpec,
  **overrides: Any,
) -> tuple[Algorithm, Any]:
  """Traces a start and a round.

  Args:
    name: the method.
    entry: its entry.
    model: the model.
    data: the clients' examples.
    spec: sizes of the problem.
    **overrides: hyper-parameters.

  Returns:
    The algorithm, and its state after a round, which is as at its start.

  Raises:
    OptionError: the method does not go with the model, as a run would say.
    Violation: the state after the round has other shapes, or the method raises
      another error.
  """
  try:
    algorithm, before, after = _trace(name, entry, model, data, spec, overrides)
  except OptionError:
    raise
  except Exception as error:  # whatever the user's code raises
    raise Violation(
      f"the method raises {describe_error(error)}{adapt.absent_parts(model, error)}"
    ) from error
  if _types(before) != _types(after):
    raise Violation("the state after a round has other shapes than before")
  return algorithm, after


def _trace(
  name: str,
  entry: Entry,
  model: Model,
  data: ClientData,
  spec: FedSpec,
  overrides: dict[str, Any],
) -> tuple[Algorithm, Any, Any]:
  """The algorithm, and the shapes of its state before and after a round."""
  keys = run_keys(0)
  method = small_method(name, entry, **overrides)
  build = method.builder(model, clients.ClientMap())
  algorithm = build({})
  prepare.check_roles(algorithm, method, model)
  seeds = jax.tree.map(lambda key: key[None], keys)
  size = spec.num_clients if entry.all_clients else spec.cohort_size

  def both(data: Any) -> Any:
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

  return algorithm, *jax.eval_shape(both, data)


def _types(state: Any) -> Any:
  return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)


def trace_round(
  name: str,
  entry: Entry,
  specs: Sequence[str],
  model_state: str,
  task: str | None = None,
  **overrides: Any,
) -> tuple[Model, Algorithm, Any]:
  """Traces a round with a ``Normed`` whose parameters have roles.

  Args:
    name: the method.
    entry: its entry.
    specs: patterns of roles.
    model_state: `model_state` of a run.
    task: the task; None for classification.
    **overrides: hyper-parameters.

  Returns:
    The model, the algorithm, and its state after the round, as shapes.

  Raises:
    OptionError: the method refuses the roles, as a run would.
  """
  data, spec = role_problem(task)
  model = roles.split(norm_model(task), specs, model_state=model_state)
  if model.roles.has_frozen:
    data = data._replace(frozen=model.roles.frozen)
  return model, *shapes_of_a_round(name, entry, model, data, spec, **overrides)


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


def floats_deployed(algorithm: Algorithm, state: Any, task: str | None = None) -> int:
  """Counts the floats that a client deploys."""
  return num_params(client_shapes(algorithm, state, role_problem(task)[0]))


def _floats_of_client(algorithm: Algorithm, model: Model, floats: int) -> int:
  """The floats of what a client deploys, which is a model of so many floats."""
  mixed = algorithm.client_model(model)
  if mixed is model:
    return floats
  deployed = num_params(jax.eval_shape(mixed.init, jax.random.key(0)))
  components = jax.eval_shape(mixed.init, jax.random.key(0))["weights"].size
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
  model = roles.split(norm_model(), specs, model_state=model_state)
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
  task: str | None = None,
) -> str:
  """Requires that a method refuses roles in one line.

  Args:
    name: the method.
    entry: its entry.
    specs: patterns of roles.
    model_state: `model_state` of a run.
    task: the task; None for classification.

  Returns:
    The line.

  Raises:
    Violation: it does not.
  """
  try:
    trace_round(name, entry, specs, model_state, task)
  except OptionError as error:
    _require("lines of the refusal", str(error).count("\n") + 1, 1)
    return str(error)
  raise Violation(f"roles={','.join(specs)} with model_state={model_state} is accepted")


def check_personal_parameters(
  name: str, entry: Entry, refuses: bool, task: str | None = None
) -> Algorithm:
  """Tests a personal layer, and statistics that each client keeps.

  Args:
    name: the method.
    entry: its entry.
    refuses: whether it refuses them; it is then tested without.
    task: the task; None for classification.

  Returns:
    The algorithm.

  Raises:
    Violation: they are sent, or not deployed.
  """
  specs, floats = PERSONAL, FLOATS[task]
  shared, deployed = sum(floats.values()) - floats["last"], STATISTICS
  if refuses:
    specs, shared, deployed = WITHOUT, sum(floats.values()), 0
  model, algorithm, state = trace_round(name, entry, *specs, task)
  if not refuses and algorithm.start_personal is None:
    raise Violation("its Algorithm has no start_personal")
  _check_floats(algorithm, model, state, task, shared, deployed + sum(floats.values()))
  return algorithm


def _check_floats(
  algorithm: Algorithm,
  model: Model,
  state: Any,
  task: str | None,
  shared: int,
  deployed: int,
  statistics: int = 0,
) -> None:
  actual = num_params(jax.eval_shape(model.init, jax.random.key(0)))
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
    floats_deployed(algorithm, state, task),
    _floats_of_client(algorithm, model, deployed),
  )


def check_frozen_parameters(
  name: str, entry: Entry, refuses: bool, task: str | None = None
) -> None:
  """Tests frozen parameters, which are in no state, and statistics, which are.

  A round reads frozen ones from its arguments; the server keeps the rest.

  Args:
    name: the method.
    entry: its entry.
    refuses: whether it refuses running statistics; those of a batch remain.
    task: the task; None for classification.

  Raises:
    Violation: frozen parameters are in the state, or statistics are not.
  """
  (specs, model_state), statistics = FROZEN, STATISTICS
  if refuses:
    model_state, statistics = "batch", 0
  model, algorithm, state = trace_round(name, entry, specs, model_state, task)
  floats = FLOATS[task]
  _require("frozen floats", num_params(model.roles.frozen), floats["first"])
  for path, _ in jax.tree_util.tree_leaves_with_path(state):
    if "Dense_0" in jax.tree_util.keystr(path):
      raise Violation(f"the frozen {jax.tree_util.keystr(path)} is in its state")
  shared = sum(floats.values()) - floats["first"]
  _check_floats(algorithm, model, state, task, shared, shared + statistics, statistics)


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
  model, (data, spec) = plain_model(task), role_problem(task)
  algorithm, state = shapes_of_a_round(name, entry, model, data, spec)
  shapes = jax.eval_shape(algorithm.client_model(model).init, jax.random.key(0))
  _require(
    "the shapes of client_params",
    jax.tree.map(lambda leaf: leaf.shape, client_shapes(algorithm, state, data)),
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
