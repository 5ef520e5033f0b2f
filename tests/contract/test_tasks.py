"""Every registered algorithm with targets that are no class, or its reason.

Traced, not compiled: what is tested is that nothing reads y as a class. The
numbers are tested in ``tests/tasks`` and ``tests/runs/test_tasks``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models, registry
from fedjax_alg.base import FedSpec
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.errors import OptionError
from fedjax_alg.models import adapt
from fedjax_alg.runs import methods
from tests.contract.test_contract import marks, small_settings

SIZES = (4, 9, 7, 3, 8, 5) * 2
FEATURES, TARGETS, LENGTH, TOKENS = 5, 2, 6, 11
#: Why a method does not go with a task, as it says itself.
REFUSED = {
    ("pfedacnnl", "regression"): "groups clients by their classes",
    **{(name, "tokens"): "least squares fits classes, labels and numbers"
       for name in ("fedacnnl", "pfedacnnl", "afl")}}


@functools.cache
def problem(task):
  """The model, the data of some clients with validation rows, and the spec."""
  rng, rows = np.random.default_rng(0), sum(SIZES) + 6
  if task == "regression":
    x, y = rng.normal(size=(rows, FEATURES)), rng.normal(size=(rows, TARGETS))
    shape, size = (FEATURES,), TARGETS
    model = models.make_model("softmax", shape, size, task=task)
  else:
    x, y = (rng.integers(0, TOKENS, (rows, LENGTH)) for _ in range(2))
    shape, size = (LENGTH,), TOKENS
    model = models.from_functions(
        lambda key: jax.random.normal(key, (TOKENS, TOKENS)),
        lambda params, x: params[x], task=task)
    model = adapt.with_flops(model, shape, jnp.int32)
  ends = np.cumsum(SIZES)
  data = layout.client_data(
      x, y, np.arange(ends[-1]), ends - SIZES, np.array(SIZES),
      ends[-1] + np.arange(6))
  return model, jax.tree.map(jnp.asarray, data), FedSpec(
      len(SIZES), 4, size, shape, int(ends[-1]))


def traced(name, task):
  """A start, a round and what a client deploys, as shapes."""
  model, data, spec = problem(task)
  entry = registry.get(name)
  algorithm = methods.Method(
      name, entry, entry.hparams(**small_settings(entry))).resolved().built(
          model, clients.ClientMap())

  def played(data, key):
    everyone = layout.everyone(data)
    before = algorithm.setup(
        algorithm.init(model.init(key), spec, key), everyone, key)
    cohort = everyone if entry.all_clients else layout.take_cohort(
        data, jnp.array([0, 2, 3, 5]), jnp.int32(0))._replace(
            machines=everyone.devices)
    after, aux = algorithm.round(before, cohort, key)
    return before, after, aux, algorithm.client_params(
        after, jnp.int32(1), layout.shard_of(data, 1), key)

  return jax.eval_shape(played, data, jax.random.key(0))


@pytest.mark.parametrize("task", ["regression", "tokens"])
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=marks(name)) for name in registry.ALGORITHMS])
def test_targets_that_are_no_class_are_trained_on_or_refused(name, task):
  if (name, task) in REFUSED:
    with pytest.raises(OptionError, match=REFUSED[name, task]) as error:
      traced(name, task)
    assert "\n" not in str(error.value)
    return
  before, after, _, deployed = traced(name, task)
  assert jax.tree.structure(before) == jax.tree.structure(after)
  model = problem(task)[0]
  assert jax.tree.map(lambda leaf: leaf.shape, deployed) == jax.tree.map(
      lambda leaf: leaf.shape, jax.eval_shape(model.init, jax.random.key(0)))


@pytest.mark.parametrize("task", ["regression", "tokens"])
def test_labels_cannot_be_flipped_where_there_are_none(task):
  entry = registry.get("fedavg")
  with pytest.raises(OptionError, match=f"attack=label_flip: the task {task}"):
    methods.Method("fedavg", entry, entry.hparams(attack="label_flip")).built(
        problem(task)[0], clients.ClientMap())
