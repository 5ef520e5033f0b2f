"""Makes a ``base.Model`` from any model that a caller may give."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import inspect
import sys
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import own, tasks
from fedjax_alg.base import Array, Model
from fedjax_alg.errors import OptionError, a_type, library_of
from fedjax_alg.hparams import OWN_CODE, hyper
from fedjax_alg.models import adapt
from fedjax_alg.models.linen_modules import from_flax
from fedjax_alg.models.models import NAMED_MODELS, Architecture
from fedjax_alg.part import Part, forms, of_type
from fedjax_alg.typing import DTypes, PyTree, Shapes


class OwnModel(Part):
  """Your model, by its file or module and its name there.

  It is loaded when this is made.

  Raises:
    OptionError: it cannot be loaded, or is no model.
  """

  WORD, EXAMPLE = OWN_CODE, "my_models.py:Net"

  name: str = hyper(dataclasses.MISSING, f"the name of the model, {own.FORMS}")

  def __post_init__(self) -> None:
    super().__post_init__()
    own.refuse_nameless(self.name, "model")
    self.load()

  def load(self) -> Any:
    """Loads what ``as_model`` makes a model of."""
    model, _ = own.load(self.name, "model")
    if isinstance(model, (Model, nn.Module)) or _is_nnx(model) or callable(model):
      return model
    raise OptionError(
      f"`model`={self}: is {a_type(model)}; must be a base.Model, a flax.linen module, "
      "a flax.nnx module, or a function or class that makes one"
    )

  def source(self) -> own.Source:
    """The file that defines the model."""
    return own.load(self.name, "model")[1]


#: All models that a text can name.
MODELS = NAMED_MODELS | OwnModel


def as_model(
  model: object,
  input_shape: Shapes,
  num_classes: int,
  *,
  input_dtype: DTypes = jnp.float32,
  task: tasks.Task | None = None,
  targets: PyTree = None,
  tokens: int = 10_002,
  l2: float | None = None,
  l2_of: str | None = None,
  loss: Callable[[Array, Array], Array] | None = None,
) -> Model:
  """Makes the model of a run, checks it and counts its ``flops``.

  Args:
    model: a part of ``MODELS``, such as ``MLP((128, 64))``, or its text; a
      ``base.Model``; a flax.linen module; a flax.nnx module or a function that makes
      one (``from_nnx``); or a function or class with parameters ``input_shape`` or
      ``num_classes``, or both, that makes one of these for the examples and classes
      of the run.
    input_shape: shape of one example, or a dictionary of the shapes of its
      arrays.
    num_classes: L, the outputs of the task for an example or a token.
    input_dtype: dtype of the examples, or a dictionary of dtypes.
    task: what the data have targets for; None: what the model says, or one
      class for each example.
    targets: shapes and dtypes of the targets of one example; None: a class.
    tokens: number of ids of words or characters, for named models that read them.
    l2: coefficient of (l2/2) ||w||^2. None keeps the value of a
      ``base.Model`` and means 0 for all others.
    l2_of: "sum" adds that term to the sum of a client's losses, "mean" to their
      mean. None keeps what a ``base.Model`` says and means "mean" for all
      others.
    loss: (logits [B, L], y [B]) -> loss of each example [B]. None keeps the
      loss of a ``base.Model`` that names one and means that of the task for all
      others.

  Returns:
    The model.

  Raises:
    OptionError: ``model`` is none of these, it does not fit the examples and
      classes, or it names another task.
  """
  result = _build(model, input_shape, num_classes, input_dtype, tokens, task)
  result = _of_task(result, task, targets)
  if l2 is not None:
    result = result._replace(l2=float(l2))
  if l2_of is not None:
    result = result._replace(l2_of_sum=l2_of == "sum")
  if loss is not None:
    result = result._replace(loss=loss)
  return adapt.check_model(result, input_shape, input_dtype, num_classes, targets)


def _of_task(model: Model, task: tasks.Task | None, targets: PyTree) -> Model:
  """The model with the task of the data, or with its own.

  Raises:
    OptionError: the task of the model is not that of the data, or not one for
      their targets.
  """
  model_task = model.task
  if model_task is None:
    # A model that names neither has the default loss.
    default = model.loss is tasks.CLASSIFICATION.loss
    return model._replace(task=task, loss=task.loss if task and default else model.loss)
  if task is None:
    for target in jax.tree.leaves(targets):
      _check_targets(model_task, target)
  if task is None or task is model_task:
    return model
  if task.name != model_task.name:
    raise OptionError(
      f"`model`: is for the task {model_task.name}, the data are for {task.name}"
    )
  return model._replace(
    task=task, loss=task.loss if model.loss is model_task.loss else model.loss
  )


def _check_targets(task: tasks.Task, target: Any) -> None:
  """Checks the shape of targets that were given without a task."""
  prefix = f"`model`: is for the task {task.name}, "
  try:
    example = np.asarray(task.targets(np.zeros((1, *target.shape), target.dtype)))
  except ValueError as error:
    raise OptionError(f"{prefix}y {error}") from None
  if example.shape[1:] != target.shape or example.dtype != target.dtype:
    raise OptionError(
      f"{prefix}whose targets are {example.dtype} of shape {example.shape[1:]} and "
      f"not {target.dtype} of shape {target.shape} (give it with the data, too, "
      f"as `task`={task.name})"
    )


def _build(
  model: Any,
  input_shape: Shapes,
  num_classes: int,
  input_dtype: DTypes,
  tokens: int,
  task: tasks.Task | None,
) -> Model:
  if isinstance(model, str):
    model = parse_model(model)
  if isinstance(model, OwnModel):
    model = model.load()
  _refuse_foreign(model)
  if isinstance(model, Architecture):
    return model.build(input_shape, num_classes, tokens=tokens, task=task)
  if isinstance(model, Model):
    return model
  if isinstance(model, nn.Module):
    return from_flax(model, input_shape, input_dtype=input_dtype, task=task)
  sizes = {
    "input_shape": dict(input_shape)
    if isinstance(input_shape, Mapping)
    else tuple(input_shape),
    "num_classes": num_classes,
  }
  parameters = _parameters(model)
  arguments = {name: sizes[name] for name in sizes if name in parameters}
  if arguments or "rngs" in parameters:
    model, of_rngs = _call_maker(model, arguments)
    if not of_rngs:
      return _build(model, input_shape, num_classes, input_dtype, tokens, task)
  if inspect.isclass(model) and issubclass(model, nn.Module):
    raise OptionError(
      f"`model`: {model.__name__} is a class; give a module, {model.__name__}(...)"
    )
  if _is_nnx(model) or callable(model):
    from fedjax_alg.models.nnx_modules import from_nnx  # slow to import

    return from_nnx(model, input_shape, input_dtype=input_dtype, task=task)
  raise OptionError(
    f"`model`: {a_type(model)} given; must be one of {_NAMED}, a base.Model, a "
    "flax.linen module, or a flax.nnx module or what makes one of nnx.Rngs"
  )


_NAMED = ", ".join(forms(NAMED_MODELS))
#: The endings of files that have parameters, and no model.
_OF_PARAMETERS = tuple(".pt .pth .bin .ckpt .safetensors .npz .h5 .keras .onnx".split())
_MUST = (
  "must be a flax.linen or flax.nnx module, functions (models.from_functions), or one "
  "of " + _NAMED
)


def parse_model(text: str) -> MODELS:
  """Makes the part of a text that names a model.

  Raises:
    OptionError: it names none; of a file of parameters the message says so.
  """
  if text.lower().endswith(_OF_PARAMETERS):
    raise OptionError(
      f"`model`={text}: a file of parameters (given as `init`) is no model, {_MUST}"
    )
  model: MODELS = of_type("model", text, MODELS)
  return model


def _refuse_foreign(model: object) -> None:
  """Refuses models of other libraries.

  A module of torch can be called, and would be taken for a function that makes a
  model.

  Raises:
    OptionError: it is one of these.
  """
  library = library_of(model)
  if library:
    kind = model.__name__ if isinstance(model, type) else type(model).__name__
    raise OptionError(f"`model`: {kind} is of {library}, {_MUST}")


def _is_nnx(model: object) -> bool:
  """Whether it is a module of flax.nnx, which who has one has imported."""
  nnx = sys.modules.get("flax.nnx")
  return nnx is not None and isinstance(model, nnx.Module)


def _parameters(maker: object) -> dict[str, inspect.Parameter]:
  """The parameters of a function or class; none where they cannot be read."""
  if _is_nnx(maker) or not callable(maker):
    return {}
  if isinstance(maker, functools.partial):
    parameters = list(_parameters(maker.func).items())[len(maker.args) :]
    return {
      name: parameter for name, parameter in parameters if name not in maker.keywords
    }
  call: Any = maker
  if inspect.isclass(maker):  # the metaclass of flax.nnx hides the parameters
    call = functools.partial(maker.__init__, None)
  try:
    return dict(inspect.signature(call).parameters)
  except (TypeError, ValueError):  # builtins
    return {}


def _call_maker(maker: Any, arguments: dict[str, Any]) -> tuple[Any, bool]:
  """Gives a maker of models the sizes that it asks for.

  Args:
    maker: a function or class.
    arguments: parameter -> its value.

  Returns:
    The model; or if ``maker`` has further parameters, a function of
    ``nnx.Rngs`` that makes it, and True.

  Raises:
    OptionError: making the model fails.
  """
  parameters = _parameters(maker)
  with_name = functools.wraps(maker, updated=())
  if "rngs" in parameters:
    return with_name(lambda rngs: maker(rngs=rngs, **arguments)), True
  if any(
    parameter.default is parameter.empty
    and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    for name, parameter in parameters.items()
    if name not in arguments
  ):
    return with_name(lambda rngs: maker(rngs, **arguments)), True
  name = getattr(maker, "__name__", type(maker).__name__)
  with adapt.user_code(f"{name}({', '.join(arguments)})"):
    return maker(**arguments), False
