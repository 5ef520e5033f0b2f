"""The head of a model: the one layer that is fitted on features in one round."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax.numpy as jnp

from fedjax_alg import tasks
from fedjax_alg.base import Layer, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.least_squares.closed_form import ClosedFormStep
from fedjax_alg.least_squares.layer_fits import layers_of


def single_round(name: str) -> Callable[[Any, int], int]:
  """Makes ``Entry.rounds`` of a method that fits a head.

  Args:
    name: name of the algorithm, for the message.

  Returns:
    (hparams, number of layers) -> 1; an OptionError of more than one layer.
  """

  def rounds(hparams: object, num_layers: int) -> int:
    del hparams
    if num_layers != 1:
      raise OptionError(
        f"`algorithm`={name}: fits one layer on features, the model "
        f"has {num_layers} (use `model`=softmax)"
      )
    return 1

  return rounds


def head_of(model: Model, name: str, of_classes: bool = False) -> Layer:
  """Returns the only layer of a model.

  Args:
    model: the model.
    name: name of the algorithm, for the message.
    of_classes: whether the method reads one class for each example.

  Raises:
    OptionError: the model is not one dense layer, or its task is another one.
  """
  layers = layers_of(model, name)
  single_round(name)(None, len(layers))
  task = tasks.of(model)
  if of_classes and task.name != tasks.CLASSIFICATION.name:
    raise OptionError(
      f"`algorithm`={name}: reads one class for each example, the task "
      f"{task.name} has none"
    )
  return layers[0]


def unit_columns(layer: Layer, params: Params) -> Params:
  """Divides W_c and b_c of every class by |W_c|; a column of zeros stays.

  Args:
    layer: the layer.
    params: parameters of the model.

  Returns:
    The parameters with the layer's new weights.
  """
  weights, bias = layer.get(params)
  norm = jnp.sqrt(jnp.square(weights).sum(0))
  norm = jnp.where(norm > 0, norm, jnp.ones_like(norm))
  return layer.put(params, weights / norm[None], bias / norm)


def with_unit_columns(step: ClosedFormStep, layer: Layer) -> ClosedFormStep:
  """The step whose head has columns of norm 1 (``unit_columns``)."""

  def solve(total, context):
    params, fit = step.solve(total, context)
    return unit_columns(layer, params), fit

  return dataclasses.replace(step, solve=solve)
