"""Frozen deep features: what a layer of a finished run's model reads.

``features=RUN:LAYER`` puts them in the place of the examples of another run, which
then fits heads in closed form on them, or trains any model. They are computed once,
before the data are dealt, and read the rows as the run did: with its features,
its scale and its names of categories.
"""

from collections.abc import Callable

from flax import traverse_util
import jax
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import initial_shapes
from fedjax_alg.data import DataError, features
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.files import expand_path
from fedjax_alg.models.feature_map import features_of_layer
from fedjax_alg.records import parameters
from fedjax_alg.runs.predict import Predictor, as_tree, read_model

#: The layer before which all others are the map.
LAST = "last"


def read_layer(of: features.RunLayer) -> Callable[[np.ndarray], np.ndarray]:
  """Makes the features of a layer, from the folder of its run alone.

  Args:
    of: the folder, and the name of the layer or "last".

  Returns:
    The function x [n, ...], raw examples -> what the layer reads, flat: float32
    [n, D]. With several seeds the model is that of the first.

  Raises:
    OptionError: the folder holds no finished run with one global model, its model
      needs its data, the layer is none of it, or the run is not the one of
      ``of.sha256`` any more.
  """
  label = f"`features`={of.folder}:{of.layer}"
  if of.sha256 and parameters.source_of_layers(of.folder).sha256 != of.sha256:
    raise OptionError(
      f"{label}: this run has changed since its layer was read; restore it"
    )
  arrays = parameters.read_parameters(of.folder, "features")
  folder = expand_path(of.folder, "features")
  facts, _ = parameters.read_run(folder, label)
  try:
    parts = read_model(folder, facts)
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise OptionError(f"{label}: the run cannot be read ({reason(error)})") from error
  if parts is None:
    raise OptionError(
      f"{label}: the model of this run is not known without its data (allowed: a "
      "named model of numbers or images, without roles)"
    )
  model, preprocessing = parts
  shapes = initial_shapes(model.init)
  params = as_tree(shapes, traverse_util.unflatten_dict(arrays, sep="/"))
  try:
    phi = features_of_layer(model, params, "" if of.layer == LAST else of.layer)
  except OptionError as error:
    raise OptionError(f"{label}: {error.text.partition(': ')[2]}") from None
  predictor = Predictor(
    preprocessing, tasks.of(model), jax.jit(lambda params, x, mask: phi.apply(x))
  )

  def apply(x: np.ndarray) -> np.ndarray:
    try:
      inputs = preprocessing.apply(x)
    except DataError as error:
      raise DataError(f"{label}: {error.text.partition(': ')[2]}") from error
    result: np.ndarray = predictor.outputs((), inputs)
    return result

  return apply
