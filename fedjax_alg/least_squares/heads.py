"""The head of a model: the one layer that is fitted on features in one round."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Bool

from fedjax_alg import tasks
from fedjax_alg.base import Array, Layer, Model, Params
from fedjax_alg.errors import OptionError
from fedjax_alg.least_squares.closed_form import ABSENT, ClosedFormStep
from fedjax_alg.least_squares.layer_fits import gives_log_odds, layers_of


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
  if of_classes and not task.has_classes:
    raise OptionError(
      f"`algorithm`={name}: reads one class for each example, the task "
      f"{task.name} has none"
    )
  return layers[0]


def gives_scores(
  closed_form: bool, hparams: Mapping[str, object], task: tasks.Task
) -> bool:
  """Whether a method's outputs are scores, whose softmax is no probability.

  Args:
    closed_form: whether the method fits layers in closed form.
    hparams: its hyper-parameters.
    task: the task of the model.
  """
  outputs = str(hparams.get("outputs", "scores"))
  if str(hparams.get("private", "none")) != "none":
    outputs = "scores" if outputs == "auto" else outputs
  return closed_form and not gives_log_odds(outputs, task)


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


def without_absent(layer: Layer, params: Params, absent: Bool[Array, " L"]) -> Params:
  """Makes the head never predict some classes.

  Their scores would be 0 everywhere, which is the largest where those of all
  others are negative.

  Args:
    layer: the head.
    params: parameters of the model.
    absent: [L], the classes without examples.
  """
  weights, bias = layer.get(params)
  return layer.put(
    params,
    jnp.where(absent[None], jnp.zeros_like(weights), weights),
    jnp.where(absent, jnp.full_like(bias, ABSENT), bias),
  )


def absent_classes(layer: Layer, params: Params) -> Bool[Array, " L"]:
  """The classes that the head never predicts."""
  return layer.get(params)[1] <= ABSENT / 2


def with_unit_columns(step: ClosedFormStep, layer: Layer) -> ClosedFormStep:
  """The step whose head has columns of norm 1 (``unit_columns``)."""

  def solve(total, context):
    params, fit = step.solve(total, context)
    return unit_columns(layer, params), fit

  return dataclasses.replace(step, solve=solve)
