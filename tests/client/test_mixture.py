"""Mixtures of predictions, and several models as one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import fedjax_alg as fa
from fedjax_alg import models, tasks
from fedjax_alg.client import mixture
from fedjax_alg.errors import OptionError
from tests import problems

WEIGHTS = jnp.array([0.7, 0.3, 0.0])
EVERY = np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32) * 3


def parts():
  """The weights and the outputs of those that have some."""
  return zip(np.asarray(WEIGHTS, np.float64)[:2], EVERY.astype(np.float64))


@pytest.mark.parametrize(
  "task, expected",
  [
    (
      "classification",
      lambda: np.log(sum(p * special.softmax(z, 1) for p, z in parts())),
    ),
    (
      "multi_label",
      lambda: special.logit(sum(p * special.expit(z) for p, z in parts())),
    ),
    ("regression", lambda: sum(p * z for p, z in parts())),
  ],
)
def test_predictions_are_mixed_by_task(task, expected):
  np.testing.assert_allclose(
    mixture.MIXED[task](EVERY, WEIGHTS), expected(), rtol=1e-5, atol=1e-5
  )


@pytest.mark.program
def test_a_mixture_of_equal_components_is_their_model():
  """Whatever its weights; convolutions, one model after the other."""
  model = models.CNN().build((8, 8, 1), 3)
  params, x = model.init(jax.random.key(0)), jnp.ones((2, 8, 8, 1)) * 0.3
  both = mixture.mixture(model, 2)
  equal = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
  outputs = both.apply({"components": equal, "weights": jnp.array([0.2, 0.8])}, x)
  np.testing.assert_allclose(
    outputs, jax.nn.log_softmax(model.apply(params, x)), rtol=1e-5, atol=1e-6
  )
  assert both.flops == 2 * model.flops
  shapes = jax.eval_shape(both.init, jax.random.key(0))
  assert jax.tree.structure(shapes["components"]) == jax.tree.structure(params)


def test_no_predictions_are_mixed_where_nothing_says_how():
  task = tasks.Task(
    "classification",
    lambda outputs, y: (outputs[:, 0] - y) ** 2,
    lambda outputs, y, losses, mask: {},
    lambda sums: {"mixture_error": sums["loss"]},
    {"mixture_error": "lower"},
  )
  model = problems.softmax_problem().model._replace(task=task)
  with pytest.raises(OptionError, match="^task=classification: nothing says how"):
    mixture.mixture(model, 2)


@pytest.mark.program
def test_a_run_deploys_mixtures_and_refuses_one_start_for_all(tmp_path):
  federation = fa.federate("digits", partition="classes", num_clients=8, seed=0)
  options = dict(rounds=2, cohort_size=4, evaluate=("global", "local"))
  result = fa.run("fedem", federation, num_components=2, **options)
  assert {len(leaf) for leaf in jax.tree.leaves(result.global_params())} == {2}
  params = result.client_params(3)
  assert np.isclose(params["weights"].sum(), 1.0)
  path = result.export(tmp_path / "client.npz", "npz", client=3)
  with np.load(path) as arrays:
    assert "weights" in arrays.files
    assert any(name.startswith("components/") for name in arrays.files)
  start = jax.tree.map(lambda leaf: leaf[0], result.global_params())
  with pytest.raises(fa.OptionError, match="^num_components=2: the models would all"):
    fa.run("fedem", federation, num_components=2, init=start, **options)
