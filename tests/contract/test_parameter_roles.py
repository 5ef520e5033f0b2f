"""Every registered algorithm with roles of parameters or other targets."""

import functools
import re

from flax import linen as nn
import jax.numpy as jnp
import pytest

from fedjax_alg import base, registry
from fedjax_alg.engine import clients
from fedjax_alg.errors import OptionError
from fedjax_alg.runs import methods, options, prepare
from fedjax_alg.testing import roles
from tests.contract.test_contract import marks

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


class NormedTokens(nn.Module):
  """``roles.Normed`` on tokens."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.Embed(roles.TOKENS, roles.INPUTS)(x)
    x = nn.BatchNorm(not train)(nn.Dense(roles.HIDDEN)(x))
    return nn.Dense(roles.TOKENS)(nn.relu(x))


@functools.cache
def problem_of(task):
  """Clients with this task and a model with a layer ``BatchNorm``."""
  if task is None:
    return roles.class_problem()
  problem = roles.target_problem(task)
  size, floats = problem.spec.num_classes, {}
  module, options = roles.Normed(size), dict(task=task)
  if task == "tokens":
    module, floats = NormedTokens(), dict(embedding=roles.TOKENS * roles.INPUTS)
    options |= dict(input_dtype=jnp.int32)
  floats |= dict(
    first=roles.HIDDEN * (roles.INPUTS + 1),
    norm=2 * roles.HIDDEN,
    last=(roles.HIDDEN + 1) * size,
  )
  model = roles.flax_model(module, problem.spec, **options)
  return problem._replace(model=model, floats=floats)


def assert_refused(name, why, specs, problem):
  patterns, state = specs
  line = roles.require_refusal(name, registry.get(name), patterns, state, problem)
  assert re.search(why, line)
  return line


def problem_for(name, task):
  """Of the task, or of classes for a method that refuses it (the last tests here)."""
  return problem_of(None if (name, task) in NOT_OF_TASK else task)


@pytest.mark.parametrize("name", OPEN)
def test_what_is_a_clients_own_stays_there_or_is_refused(name):
  """A personal layer, and statistics that each client keeps; tokens."""
  why, entry = REFUSED.get(name), registry.get(name)
  problem = problem_for(name, "tokens")
  if why is None and entry.needs_validation(entry.hparams()):
    why = "measures losses at the server"
  if why is not None:
    assert_refused(name, why, roles.PERSONAL, problem)
  roles.check_personal_parameters(name, entry, why is not None, problem)


@pytest.mark.parametrize("name", OPEN)
def test_frozen_parameters_are_in_no_state_and_statistics_are(name):
  """A round reads frozen ones from its arguments; the server keeps the rest.

  Targets are numbers.
  """
  why, problem = WITHOUT_STATE.get(name), problem_for(name, "regression")
  if why is not None:
    line = assert_refused(name, why, roles.FROZEN, problem)
    assert "(allowed: batch)" in line
  roles.check_frozen_parameters(name, registry.get(name), why is not None, problem)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "ifca"])
def test_clients_keep_what_they_have_not_sent_beside(name):
  """Rows of the method, of its layer and statistics, and of a compressor."""
  _, algorithm, state = roles.trace_round(
    name, registry.get(name), *roles.PERSONAL, compress_up="topk:0.1"
  )
  problem = roles.class_problem()
  deployed = roles.client_shapes(algorithm, state, problem.data)
  floats = sum(problem.floats.values()) + roles.STATISTICS
  assert base.num_params(deployed) == floats


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form_fits_every_layer(name):
  for specs in (("personal:Dense_1",), ()):
    with pytest.raises(OptionError, match="fits every layer"):
      prepare.split_by_role(
        methods.method_of(name),
        roles.class_problem().model,
        options.RunOptions(roles=specs),
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


@pytest.mark.parametrize("task", ["regression", "tokens"])
@pytest.mark.parametrize("name", CLOSED)
def test_targets_that_are_no_class_are_fitted_or_refused(name, task):
  """The other methods train on them above."""
  if (name, task) not in NOT_OF_TASK:
    roles.check_target_fit(name, registry.get(name), task)
    return
  with pytest.raises(OptionError, match=NOT_OF_TASK[name, task]) as error:
    roles.check_target_fit(name, registry.get(name), task)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("task", ["regression", "tokens"])
def test_labels_cannot_be_flipped_where_there_are_none(task):
  entry = registry.get("fedavg")
  with pytest.raises(OptionError, match=f"attack=label_flip: the task {task}"):
    methods.Method("fedavg", entry, *entry.parts(attack="label_flip")).build(
      roles.target_problem(task).model, clients.ClientMap()
    )
