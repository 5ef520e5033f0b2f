"""Predictions of a finished run on new rows.

The rows are raw: they are encoded and scaled as those of the training, and the
predictions have the names of the classes.
"""

from collections.abc import Callable, Mapping
import functools
import pathlib
from typing import Any, NamedTuple

from flax import serialization
import jax
import numpy as np

from fedjax_alg import registry, tasks
from fedjax_alg.base import Model, Params, initial_shapes
from fedjax_alg.client import objective
from fedjax_alg.data import arrays, store
from fedjax_alg.data.features import FEATURES
from fedjax_alg.data.federation import Federation, deal
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.partition import Partition
from fedjax_alg.data.preprocessing import Preprocessing, read_preprocessing
from fedjax_alg.errors import OptionError
from fedjax_alg.least_squares import heads
from fedjax_alg.models import Architecture, parse_model
from fedjax_alg.part import of_type, read_parts
from fedjax_alg.runs import identity
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import as_tuples, features_again
from fedjax_alg.runs.prepare import build_model
from fedjax_alg.typing import Facts, PyTree

#: Rows that are computed at a time. The last block is filled up, so that one
#: program serves any number of rows.
_ROWS = 256


class Predictor(NamedTuple):
  """A model of a run, and how new rows are read by it."""

  preprocessing: Preprocessing
  task: tasks.Task
  #: (parameters, x [B, ...], mask [B]) -> outputs [B, ...], jitted
  apply: Callable[[Params, PyTree, Any], PyTree]

  def predict(self, params: Params, x: Any, proba: bool) -> Any:
    """Predicts the targets of new rows.

    Args:
      params: parameters of the model.
      x: see ``Preprocessing.apply``.
      proba: whether probabilities are asked for.

    Returns:
      See ``RunResult.predict``.

    Raises:
      DataError: see ``Preprocessing.apply``.
      OptionError: the task has no probabilities.
    """
    name = self.task.name
    if proba and name not in _PROBABILITIES:
      raise OptionError(
        f"`proba`: `task`={name} has no probabilities (allowed: "
        f"{', '.join(_PROBABILITIES)})"
      )
    outputs = self.outputs(params, self.preprocessing.apply(x))
    if proba:
      return _PROBABILITIES[name](outputs)
    if name not in _PREDICTIONS:
      return outputs
    predictions = _PREDICTIONS[name](outputs)
    encoding = self.preprocessing.encoding
    if self.task.has_classes and encoding is not None and encoding.classes is not None:
      return _names(encoding.classes)[predictions]
    return predictions

  def outputs(self, params: Params, x: PyTree) -> Any:
    """The outputs of all rows of inputs [n, ...], in blocks of equal shapes."""
    return map_blocks(functools.partial(self.apply, params), x, _ROWS)


def map_blocks(fn: Callable[..., PyTree], x: PyTree, size: int) -> Any:
  """Computes a function of rows, in blocks of equal shapes.

  Args:
    fn: (rows [size, ...], mask [size] bool) -> leaves [size, ...]; zeros are behind
      the last row.
    x: arrays [n, ...].
    size: the number of rows of a block.

  Returns:
    The leaves [n, ...], on the host.
  """
  total = len(store.arrays(x)[0])
  blocks = []
  for start in range(0, max(total, 1), size):
    rows = min(size, total - start)

    def block(array, start=start, rows=rows):
      out = np.zeros((size, *array.shape[1:]), array.dtype)
      out[:rows] = array[start : start + rows]
      return out

    outputs = fn(store.map_arrays(block, x), np.arange(size) < rows)
    blocks.append(jax.tree.map(lambda leaf: np.asarray(leaf[:rows]), outputs))  # noqa: B023
  return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks)


def make_predictor(model: Model, preprocessing: Preprocessing) -> Predictor:
  """Makes the predictor of a model; its program is compiled once.

  Args:
    model: the model of the parameters that it will be given.
    preprocessing: how new rows are read.
  """

  @jax.jit
  def apply(params, x, mask):
    return objective.logits(model, params, x, mask=mask)

  return Predictor(preprocessing, tasks.of(model), apply)


def caution_of_batch(facts: Facts) -> str:
  """Warns of predictions that depend on the other rows; "" if they do not.

  Args:
    facts: the config.json of the run.
  """
  statistics = facts["plan"].get("roles", {}).get("state", 0)
  if facts["run"].get("model_state") != "batch" or not statistics:
    return ""
  return (
    "`model_state`=batch: a prediction depends on the rows that are predicted with it, "
    f"up to {_ROWS}, by whose statistics it is normalized (with global or local it "
    "does not)"
  )


def caution_of_scores(facts: Facts, task: tasks.Task) -> str:
  """Warns of probabilities that are none; "" if they are.

  Args:
    facts: the config.json of the run.
    task: the task of its model.
  """
  entry = registry.ALGORITHMS.get(str(facts["algorithm"]))
  if entry is None:
    return ""
  hparams = vars(entry.hparams()) | dict(facts["hparams"])
  if not heads.gives_scores(entry.rounds is not None, hparams, task):
    return ""
  wanted = " (give `outputs`=log_odds)" if "outputs" in hparams else ""
  return (
    f"`proba`=True: the outputs of {entry.label} are scores, whose softmax has no "
    f"meaning as a probability{wanted}"
  )


def read_predictor(
  folder: pathlib.Path, facts: Facts, model: Any
) -> tuple[Predictor, Params] | None:
  """Makes the predictor of a run's global models from its folder alone.

  Args:
    folder: the folder of the run.
    facts: its config.json.
    model: the caller's own model, if the run used one; see ``load_run``.

  Returns:
    The predictor, and the shapes of the parameters in the model's own tree;
    None: the data are needed (see ``read_model``).

  Raises:
    OptionError, DataError, OSError, ValueError, LookupError, TypeError: see
      ``read_model``.
  """
  parts = read_model(folder, facts, model)
  if parts is None:
    return None
  built, preprocessing = parts
  shapes = initial_shapes(built.init)
  return make_predictor(built, preprocessing), shapes


def read_model(
  folder: pathlib.Path, facts: Facts, model: Any = None
) -> tuple[Model, Preprocessing] | None:
  """Makes the model of a run, and how it reads new rows, from its folder alone.

  The data of the run are not read, so they may be gone.

  Args:
    folder: the folder of the run.
    facts: its config.json.
    model: the caller's own model, if the run used one; see ``load_run``.

  Returns:
    The model and the preprocessing; None: the data are needed (a model with
    roles or of tokens, or a task without a name).

  Raises:
    OptionError, DataError: the model cannot be made again.
    OSError, ValueError, LookupError, TypeError: a file is damaged.
  """
  plan, shape = facts["plan"], facts["plan"]["example_shape"]
  name = plan.get("task", {}).get("name", tasks.CLASSIFICATION.name)
  model = facts["model"] if model is None else model
  if isinstance(model, str) and "model" not in facts.get("sources", {}):
    model = parse_model(model)
  is_named = isinstance(model, Architecture)
  if (
    model is None
    or "roles" in plan
    or not isinstance(shape, list)
    or name not in _TARGETS
    or isinstance(model, str)
    or (is_named and model.OF_TOKENS)
    or (not is_named and plan["store"] != "float32")  # ids are bytes, too
  ):
    return None
  run = as_tuples(facts["run"])
  run["model"] = model if is_named else RunOptions.model
  run = read_parts(run, RunOptions.__dataclass_fields__)
  built = build_model(
    model, _placeholder(tuple(shape), plan["classes"], name), RunOptions(**run)
  )
  if not is_named:
    identity.refuse_other_model(folder, facts, built)
  features, body = features_again(facts)
  preprocessing = read_preprocessing(
    folder,
    DataOptions(features=of_type("features", features, FEATURES)),
    tuple(shape),
    np.dtype(np.float32),
    body,
    np.dtype(plan["raw_dtype"]) if "raw_dtype" in plan else None,
  )
  return built, preprocessing


def as_tree(shapes: Params, params: Params) -> Params:
  """Parameters as a file has them, in the model's own tree."""
  result: Params = serialization.from_state_dict(
    shapes, serialization.to_state_dict(params)
  )
  return result


def _placeholder(shape: tuple[int, ...], size: int, name: str) -> Federation:
  """One client with an example of zeros."""
  x, y = np.zeros((1, *shape), np.float32), _TARGETS[name](size)
  task = None if name == tasks.CLASSIFICATION.name else tasks.NAMES[name]
  examples = arrays.from_arrays(x, y, x_test=x, y_test=y, num_classes=size, task=task)
  zero, row = np.zeros(1, np.int32), np.ones(1, np.int32)
  return deal(
    examples, Partition(zero, zero, row, zero[:0], zero, zero, False, "none", {})
  )


#: Task -> targets of one example.
_TARGETS: Mapping[str, Callable[[int], np.ndarray]] = {
  "classification": lambda size: np.zeros(1, np.int32),
  "binary": lambda size: np.zeros(1, np.int32),
  "multi_label": lambda size: np.zeros((1, size), np.int32),
  "regression": lambda size: np.zeros((1, size), np.float32),
}


def _softmax(outputs: np.ndarray) -> np.ndarray:
  """Probabilities of the last axis, float64."""
  moved = outputs.astype(np.float64) - outputs.max(-1, keepdims=True)
  powers = np.exp(moved)
  result: np.ndarray = powers / powers.sum(-1, keepdims=True)
  return result


def _sigmoid(outputs: np.ndarray) -> np.ndarray:
  """Probabilities of a logit each, float64."""
  result: np.ndarray = np.exp(-np.logaddexp(0.0, -outputs.astype(np.float64)))
  return result


def _one_number(outputs: np.ndarray) -> np.ndarray:
  """Outputs [n, 1] as [n], and others as they are."""
  return outputs[:, 0] if outputs.shape[1:] == (1,) else outputs


def _argmax(outputs: np.ndarray) -> np.ndarray:
  """The class of the largest output, the lowest for ties."""
  result: np.ndarray = outputs.argmax(-1)
  return result


#: Task -> (outputs) -> what is predicted.
_PREDICTIONS: Mapping[str, Callable[[Any], np.ndarray]] = {
  "classification": _argmax,
  "binary": _argmax,
  "dense": _argmax,
  "tokens": _argmax,
  "multi_label": lambda outputs: (outputs > 0).astype(np.int32),
  "regression": _one_number,
}
#: Task -> (outputs) -> probabilities.
_PROBABILITIES: Mapping[str, Callable[[Any], np.ndarray]] = {
  "classification": _softmax,
  "binary": _softmax,
  "dense": _softmax,
  "tokens": _softmax,
  "multi_label": _sigmoid,
}


def _names(classes: tuple[Any, ...]) -> np.ndarray:
  """The names of classes as an array of texts, numbers or objects."""
  array = np.array([*classes, None], object)[:-1]
  for kind in (str, bool, int):
    if all(type(name) is kind for name in classes):
      return array.astype(kind)
  return array
