"""Every registered algorithm with roles of parameters or other targets."""

import dataclasses
import functools
import re

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models, own, registry
from fedjax_alg.base import FedSpec, num_params
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt, roles
from fedjax_alg.runs import methods, options, prepare
from tests import problems
from tests.contract.test_contract import marks, shapes_of_a_round

#: Why a method has no personal parameters, as it says itself.
REFUSED = {
  "ditto": "keeps a personal model",
  "pfedme": "has a personal model",
  "apfl": "keeps a personal model",
  "fedem": "all parameters are shared",
  "fedsoft": "keeps a personal model",
  "per_fedavg": "adapts all parameters",
  "fedzo": "losses and no gradients",
  "pfedzo": "has a personal model",
  "fedbuff": "keep nothing",
  "fedasync": "keep nothing",
  **dict.fromkeys(("baffle", "central", "local"), "keep no personal"),
}
#: Why a method has no running statistics but those of the batch.
WITHOUT_STATE = {
  **{name: why for name, why in REFUSED.items() if name != "local"},
  "baffle": "keeps no running",
  "central": "keeps no running",
}
CLOSED = [name for name, entry in registry.ALGORITHMS.items() if entry.rounds]
OPEN = [
  pytest.param(name, marks=marks(name))
  for name in registry.ALGORITHMS
  if name not in CLOSED
]


class Normed(nn.Module):
  """A perceptron with BatchNorm, on numbers or on tokens."""

  outputs: int = problems.CLASSES

  @nn.compact
  def __call__(self, x, train):
    if jnp.issubdtype(x.dtype, jnp.integer):
      x = nn.Embed(TOKENS, INPUTS)(x)
    x = nn.BatchNorm(not train)(nn.Dense(HIDDEN)(x))
    return nn.Dense(self.outputs)(nn.relu(x))


HIDDEN, INPUTS, TARGETS, LENGTH, TOKENS = 6, 5, 2, 4, 11
STATISTICS = 2 * HIDDEN
SIZES = (4, 9, 7, 3, 8, 5) * 2
#: task -> floats of the layers of ``Normed``.
FLOATS = {
  None: dict(
    first=HIDDEN * (problems.FEATURES + 1),
    norm=2 * HIDDEN,
    last=(HIDDEN + 1) * problems.CLASSES,
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


@functools.cache
def problem(task):
  """Data and their spec; numbers, classes or tokens of some clients."""
  if task is None:
    softmax = problems.softmax_problem()
    return softmax.data, softmax.spec
  rng, rows = np.random.default_rng(0), sum(SIZES) + 6
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
def norm_model(task=None):
  _, spec = problem(task)
  model = models.from_flax(
    Normed(spec.num_classes),
    spec.input_shape,
    task=task,
    input_dtype=jnp.int32 if task == "tokens" else jnp.float32,
  )
  # Traced once for all methods, each of which asks for it several times.
  whole = model.roles.whole._replace(init=jax.jit(model.roles.whole.init))
  return model._replace(roles=dataclasses.replace(model.roles, whole=whole))


def trace_round(name, specs, model_state, task=None, **overrides):
  """The model, algorithm, and its state after a round, as shapes.

  Raises:
    OptionError: the method refuses the roles, as a run would.
  """
  data, spec = problem(task)
  model = roles.split(norm_model(task), specs, model_state=model_state)
  if model.roles.has_frozen:
    data = data._replace(frozen=model.roles.frozen)
  return model, *shapes_of_a_round(name, model, data, spec, **overrides)


def client_shapes(algorithm, state, data):
  """What a client deploys, as shapes."""
  return jax.eval_shape(
    lambda state, data, key: algorithm.client_params(
      state, jnp.int32(0), layout.shard_of(data, 0), key
    ),
    state,
    data,
    jax.random.key(0),
  )


def floats_deployed(algorithm, state, task=None):
  return num_params(client_shapes(algorithm, state, problem(task)[0]))


def floats_of_client(algorithm, model, floats):
  """The floats of what a client deploys, which is a model of so many floats."""
  mixed = algorithm.client_model(model)
  if mixed is model:
    return floats
  deployed = num_params(jax.eval_shape(mixed.init, jax.random.key(0)))
  components = jax.eval_shape(mixed.init, jax.random.key(0))["weights"].size
  assert deployed == components * (floats + 1)
  return deployed


def assert_refused(name, why, *args):
  with pytest.raises(OptionError, match=why) as caught:
    trace_round(name, *args)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def why_refused(name, reasons, specs, model_state):
  """Why a method cannot have these roles; None: it can.

  Of the library's methods the tables above say so. One of the user's own says
  so itself, by its ``Algorithm`` or as its builder refuses the model.

  Returns:
    A pattern of the message.
  """
  entry = registry.get(name)
  if not own.is_own(name):
    return reasons.get(name)
  model = roles.split(norm_model(), specs, model_state=model_state)
  try:
    algorithm = methods.Method(name, entry, *entry.parts()).build(
      model, clients.ClientMap()
    )
  except OptionError as error:
    return re.escape(str(error))
  lacks = (model.roles.has_personal and algorithm.start_personal is None) or (
    model.roles.has_state and not algorithm.keeps_state
  )
  return re.escape(name) + " keep" if lacks else None


def task_of(name, task):
  """The task, or None for a method that refuses it, see the last tests here."""
  return None if own.is_own(name) or (name, task) in NOT_OF_TASK else task


@pytest.mark.parametrize("name", OPEN)
def test_what_is_a_clients_own_stays_there_or_is_refused(name):
  """A personal layer, and statistics that each client keeps; tokens."""
  specs = ["personal:Dense_1"], "local"
  why, entry = why_refused(name, REFUSED, *specs), registry.get(name)
  if why is None and entry.needs_validation(entry.hparams()):
    why = "measures losses at the server"
  task = task_of(name, "tokens")
  floats = FLOATS[task]
  shared, deployed = sum(floats.values()) - floats["last"], STATISTICS
  if why is not None:
    assert_refused(name, why, *specs, task)
    specs, shared, deployed = ([], "batch"), sum(floats.values()), 0
  model, algorithm, state = trace_round(name, *specs, task)
  if why is None:
    assert algorithm.start_personal is not None
  assert num_params(jax.eval_shape(model.init, jax.random.key(0))) == shared
  if algorithm.global_params is not None:
    models_ = jax.eval_shape(algorithm.global_params, state)
    assert num_params(models_) % shared == 0
  deployed = floats_of_client(algorithm, model, deployed + sum(floats.values()))
  assert floats_deployed(algorithm, state, task) == deployed


@pytest.mark.parametrize("name", OPEN)
def test_frozen_parameters_are_in_no_state_and_statistics_are(name):
  """A round reads frozen ones from its arguments; the server keeps the rest.

  Targets are numbers.
  """
  specs, model_state, num_statistics = ["frozen:Dense_0"], "global", STATISTICS
  why, task = (
    why_refused(name, WITHOUT_STATE, specs, model_state),
    task_of(name, "regression"),
  )
  if why is not None:
    assert "(allowed: batch)" in assert_refused(name, why, specs, model_state, task)
    model_state, num_statistics = "batch", 0
  model, algorithm, state = trace_round(name, specs, model_state, task)
  floats = FLOATS[task]
  assert num_params(model.roles.frozen) == floats["first"]
  assert not [
    path
    for path, _ in jax.tree_util.tree_leaves_with_path(state)
    if "Dense_0" in jax.tree_util.keystr(path)
  ]
  shared = sum(floats.values()) - floats["first"]
  assert num_params(jax.eval_shape(model.init, jax.random.key(0))) == shared
  assert floats_deployed(algorithm, state, task) == floats_of_client(
    algorithm, model, shared + num_statistics
  )
  if algorithm.global_params is not None:
    models_ = jax.eval_shape(algorithm.global_params, state)
    assert num_params(models_) % (shared + num_statistics) == 0


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "ifca"])
def test_clients_keep_what_they_have_not_sent_beside(name):
  """Rows of the method, of its layer and statistics, and of a compressor."""
  _, algorithm, state = trace_round(
    name, ["personal:Dense_1"], "local", compress_up="topk:0.1"
  )
  assert floats_deployed(algorithm, state) == sum(FLOATS[None].values()) + STATISTICS


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form_fits_every_layer(name):
  for specs in (("personal:Dense_1",), ()):
    with pytest.raises(OptionError, match="fits every layer"):
      prepare.split_by_role(
        methods.method_of(name), norm_model(), options.RunOptions(roles=specs)
      )


#: Why a method does not go with a task, as it says itself.
NOT_OF_TASK = {
  ("pfedacnnl", "regression"): "groups clients by their classes",
  ("pacfl", "tokens"): "x holds token ids",
  **{
    (name, "tokens"): "least squares fits classes, labels and numbers"
    for name in (
      "fedacnnl",
      "pfedacnnl",
      "afl",
      "fed3r",
      "fedncm",
      "fedcof",
      "afl_dual",
      "safle",
    )
  },
  ("deepafl", "tokens"): "fits residual blocks and a head, the model has others",
  **{
    (name, "regression"): "reads one class for each example"
    for name in ("fedncm", "fedcof")
  },
}


@functools.cache
def plain_model(task):
  """A model of one layer, which least squares can fit to numbers."""
  _, spec = problem(task)
  if task == "regression":
    return models.make_model("softmax", spec.input_shape, TARGETS, task=task)
  model = models.from_functions(
    lambda key: jax.random.normal(key, (TOKENS, TOKENS)),
    lambda params, x: params[x],
    task=task,
  )
  return adapt.with_flops(model, spec.input_shape, jnp.int32)


@pytest.mark.parametrize("task", ["regression", "tokens"])
@pytest.mark.parametrize(
  "name",
  [name for name in registry.ALGORITHMS if name in CLOSED or own.is_own(name)],
)
def test_targets_that_are_no_class_are_fitted_or_refused(name, task):
  """The other methods train on them above."""
  model, (data, spec) = plain_model(task), problem(task)
  try:
    algorithm, state = shapes_of_a_round(name, model, data, spec)
  except OptionError as error:
    # One of the user's own says so itself.
    assert own.is_own(name) or re.search(NOT_OF_TASK[name, task], str(error))
    assert "\n" not in str(error)
    return
  assert (name, task) not in NOT_OF_TASK
  chex.assert_trees_all_equal_shapes(
    client_shapes(algorithm, state, data),
    jax.eval_shape(algorithm.client_model(model).init, jax.random.key(0)),
  )


@pytest.mark.parametrize("task", ["regression", "tokens"])
def test_labels_cannot_be_flipped_where_there_are_none(task):
  entry = registry.get("fedavg")
  with pytest.raises(OptionError, match=f"attack=label_flip: the task {task}"):
    methods.Method("fedavg", entry, *entry.parts(attack="label_flip")).build(
      plain_model(task), clients.ClientMap()
    )
