"""Several models of one kind, the components of a mixture.

A mixture predicts the mean of its components' predictions by their weights
(Marfoq et al., NeurIPS 2021): of their probabilities where a task has classes, of
their outputs in regression.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks, trees
from fedjax_alg.base import Array, Key, Model, Params
from fedjax_alg.client import objective
from fedjax_alg.errors import OptionError
from fedjax_alg.tasks import guards
from fedjax_alg.typing import PyTree

#: The least probability of which a logarithm is taken.
TINY = float(np.finfo(np.float32).tiny)


def over_components(
  model: Model, fn: Callable[[Params], PyTree], components: Params
) -> Any:
  """``objective.over_models``, where a single model is not vectorized."""
  if jax.tree.leaves(components)[0].shape[0] == 1:
    return trees.repeat(fn(trees.index(components, 0)), 1)
  return objective.over_models(model, fn, components)


def outputs(
  model: Model,
  components: Params,
  x: PyTree,
  mask: Array | None = None,
  key: Key | None = None,
) -> Any:
  """The outputs of K models [K, ...], leaves [K, B, ...]; see ``logits``."""
  return over_components(
    model, lambda params: objective.logits(model, params, x, key, mask), components
  )


def log_weights(weights: Array) -> Array:
  """Logarithms of weights that may be 0."""
  return jnp.log(jnp.maximum(weights, TINY))


def _softmax(outputs: Array, weights: Array) -> Array:
  weights = log_weights(weights).reshape(-1, *(1,) * (outputs.ndim - 1))
  return jax.nn.logsumexp(weights + jax.nn.log_softmax(outputs, axis=-1), axis=0)


def _sigmoid(outputs: Array, weights: Array) -> Array:
  weights = log_weights(weights).reshape(-1, *(1,) * (outputs.ndim - 1))
  yes, no = (
    jax.nn.logsumexp(weights + jax.nn.log_sigmoid(signed), axis=0)
    for signed in (outputs, -outputs)
  )
  return yes - no


def _mean(outputs: Array, weights: Array) -> Array:
  return jnp.tensordot(weights, outputs, axes=1, precision=trees.HIGHEST)


#: Task -> (outputs [K, B, ...], weights [K]) -> outputs of the mixture [B, ...].
MIXED: Mapping[str, Callable[[Array, Array], Array]] = {
  "classification": _softmax,
  "binary": _softmax,
  "dense": _softmax,
  "tokens": _softmax,
  "multi_label": _sigmoid,
  "regression": _mean,
}


def mixture(model: Model, k: int) -> Model:
  """The model of a mixture of K models.

  Its parameters are a dictionary: the ``components`` [K, ...], and their
  ``weights`` [K], which are at least 0 and add up to 1.

  Args:
    model: the model of a component.
    k: K.

  Raises:
    OptionError: nothing says how predictions of the model's task are mixed.
  """
  task = tasks.of(model)
  mix = MIXED.get(task.name) if guards.is_library(task.loss) else None
  if mix is None:
    raise OptionError(
      f"`task`={task.name}: nothing says how predictions of several models are "
      f"mixed (allowed: the library's {', '.join(MIXED)})"
    )

  def observe(params, x, mask=None, key=None):
    every = outputs(model, params["components"], x, mask, key)
    return mix(every, params["weights"]), None

  return model._replace(
    init=lambda key: {
      "components": jax.vmap(model.init)(jax.random.split(key, k)),
      "weights": jnp.full(k, 1.0 / k, jnp.float32),
    },
    apply=lambda params, x: observe(params, x)[0],
    observe=None if model.observe is None else observe,
    train_apply=None,
    scale_features=None,
    linear=False,
    layers=None,
    flops=k * model.flops,
  )
