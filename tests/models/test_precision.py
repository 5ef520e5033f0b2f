"""Models computed in bfloat16 with parameters and sums in float32."""

from flax import nnx
import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.client import objective
from fedjax_alg.models.precision import in_bfloat16
from tests import problems

X = np.random.default_rng(0).random((6, 8, 8)).astype(np.float32)
Y = np.arange(6, dtype=np.int32) % 3


class Net(nnx.Module):
  """Of a user, with dropout."""

  def __init__(self, rngs):
    self.dense = nnx.Linear(64, 3, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, x):
    return self.dense(self.dropout(x.reshape(x.shape[0], -1)))


def products(jaxpr):
  """The dtypes of the inputs of all products of a trace."""
  dtypes = []
  for equation in jaxpr.eqns:
    if equation.primitive.name in ("dot_general", "conv_general_dilated"):
      dtypes.append({v.aval.dtype for v in equation.invars})
    for inner in core.jaxprs_in_params(equation.params):
      dtypes += products(inner)
  return dtypes


MODELS = {
  "softmax": lambda: (models.Softmax().build((8, 8), 3), X),
  "cnn": lambda: (models.CNN().build((8, 8), 3), X),
  "lstm": lambda: (
    models.LSTM().build((5,), 3, tokens=9),
    np.tile(np.arange(5, dtype=np.int32), (6, 1)),
  ),
  "nnx": lambda: (models.from_nnx(Net, (8, 8)), X),
  "functions": lambda: (
    models.from_functions(
      lambda key: {"w": jax.random.normal(key, (64, 3))},
      # The constant is in float32, which no option changes.
      lambda params, x: x.reshape(-1, 64) @ params["w"] * np.float32(0.5),
      (8, 8),
    ),
    X,
  ),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_products_are_in_bfloat16_and_nothing_else(name):
  model, x = MODELS[name]()
  low = in_bfloat16(model)
  params = problems.some_params(model)
  key = jax.random.key(1) if model.train_apply else None

  def both(model):
    return lambda params: objective.batch_value_and_grad(
      model, params, jnp.asarray(x), Y, jnp.ones(6, bool), key
    )

  jaxpr = jax.make_jaxpr(both(low))(params).jaxpr
  assert len(products(jaxpr)) >= 2
  assert set.union(*products(jaxpr)) == {jnp.dtype(jnp.bfloat16)}
  (loss, gradient), (expected, exact) = problems.quick_jit(
    lambda params: (both(low)(params), both(model)(params))
  )(params)
  assert {leaf.dtype for leaf in (loss, *jax.tree.leaves(gradient))} == {
    jnp.dtype(jnp.float32)
  }
  np.testing.assert_allclose(loss, expected, rtol=0.02)
  gradient, exact = (
    np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    for tree in (gradient, exact)
  )
  distance, size = np.linalg.norm(gradient - exact), np.linalg.norm(exact)
  assert 1e-4 * size < distance < 0.08 * size


@pytest.mark.program
def test_a_run_in_bfloat16_is_near_that_in_float32():
  fed = fa.federate("digits", partition="classes", num_clients=8, seed=0)
  with problems.quick_compilation():
    runs = [
      fa.run(
        "fedavg",
        fed,
        model="mlp:16",
        cohort_size=4,
        rounds=6,
        eval_every=6,
        evaluate="global",
        compute_dtype=dtype,
      )
      for dtype in ("float32", "bfloat16")
    ]
  exact, low = (run.metrics["global"]["loss"][0, -1] for run in runs)
  assert exact != low and abs(exact - low) < 0.03 * exact
  assert {leaf.dtype.name for leaf in jax.tree.leaves(runs[1]._state().states)} <= {
    "float32",
    "int32",
  }


@pytest.mark.parametrize("name", ["afl", "fedacnnl", "pfedacnnl"])
def test_closed_form_is_in_float64(name):
  fed = fa.federate("digits", num_clients=8)
  with pytest.raises(fa.OptionError, match=f"dtype=bfloat16: {name} fits"):
    fa.run(name, fed, compute_dtype="bfloat16")
  with pytest.raises(fa.OptionError, match="bfloat16 with compute_dtype"):
    fa.run("fedavg", fed, precision="bfloat16")
