"""Weights of another program as the parameters of a model here.

A table of names says which of their modules is which of ours. Kernels are turned as
the layers here have them, from torch's [out, in, height, width] to [height, width,
in, out], and the parts of a normalization get their names.
"""

from collections.abc import Mapping
import os
import pathlib
from typing import NamedTuple
import zipfile

from flax import traverse_util
import jax
import numpy as np

from fedjax_alg.base import Model, Params
from fedjax_alg.data import npz
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.extras.backbones.torch_files import Arrays, read_torch
from fedjax_alg.records import parameters

#: Last part of our name of a leaf -> last parts that theirs may have.
_PARTS = {
  "kernel": ("weight", "kernel"),
  "embedding": ("weight", "embedding"),
  "scale": ("weight", "scale"),
  "bias": ("bias",),
  "mean": ("running_mean", "mean"),
  "var": ("running_var", "var"),
}
#: Number of axes of a kernel of torch -> their order here.
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}
#: What torch keeps besides, and no model here reads.
_UNREAD = "num_batches_tracked"
_LISTED = 6  #: names that a message lists


class Weights(NamedTuple):
  """Weights that were read, and where they came from."""

  params: Params  #: the parameters of the model, for `init`
  matched: dict[str, str]  #: our name of a leaf -> theirs
  left: tuple[str, ...]  #: their names that no leaf has taken


def read_tensors(path: str | os.PathLike, label: str = "") -> Arrays:
  """Reads the arrays of a file of safetensors, NumPy or torch, without running code.

  Args:
    path: the file.
    label: how messages name it; "": by its path.

  Returns:
    Name -> array, as the file has them.

  Raises:
    OptionError: it cannot be read, is damaged, or is a pickle that asks for more
      than tensors.
  """
  label, place = label or f"`path`={path}", pathlib.Path(path)
  try:
    if parameters.is_pickle(place) or parameters.has_pickle(place):
      return read_torch(place, label)
    if zipfile.is_zipfile(place):
      return dict(npz.read_npz(place))
    return parameters.read_safetensors(place, label)
  except OptionError:
    raise
  except OSError as error:
    raise OptionError(f"{label}: cannot be read ({reason(error)})") from error
  except Exception as error:  # each format has errors of its own
    raise OptionError(
      f"{label}: damaged, or neither safetensors, npz nor of torch.save"
    ) from error


def _listed(names: list[str]) -> str:
  return ", ".join(names[:_LISTED]) + ", ..." * (len(names) > _LISTED)


def _split(leaf: str) -> tuple[str, str]:
  """The module of a leaf, and the last part of its name."""
  module, _, part = leaf.removeprefix("params/").rpartition("/")
  return module, part


def _turn(
  part: str,
  theirs: str,
  array: np.ndarray,
  shape: tuple[int, ...],
  image: tuple[int, ...] | None,
) -> np.ndarray:
  """An array with the axes as our leaf of that shape has them."""
  if part != "kernel" or not theirs.endswith("weight") or array.ndim not in _AXES:
    return array
  if image:  # flat images are [channels, height, width] there, channels last here
    array = array.reshape(len(array), *image).transpose(0, 2, 3, 1)
    array = array.reshape(len(array), -1)
  turned = array.transpose(_AXES[array.ndim])
  # A named softmax regression has its kernel as torch does, [classes, inputs].
  return array if turned.shape != shape == array.shape else turned


def load_weights(
  path: str | os.PathLike,
  model: Model,
  names: Mapping[str, str] | None = None,
  images: Mapping[str, tuple[int, int, int]] | None = None,
) -> Weights:
  """Reads the weights of another program for a model.

  Args:
    path: a file of safetensors, ``.npz``, or of ``torch.save`` with a state_dict,
      which is read without torch and without running the pickle that it is.
    model: the model, such as ``fa.models.from_flax`` makes.
    names: name of a module of ours -> theirs, such as {"Dense_0": "fc1"}; or of a
      whole leaf, {"params/w": "weights"}. Modules that are not named have the same
      name in both.
    images: module of ours -> (channels, height, width) of the images that their
      flatten layer has before it, for a dense layer after convolutions. Without it
      their pixels would be in another order.

  Returns:
    The parameters for ``init``, what was matched, and what was left.

  Raises:
    OptionError: the file cannot be read; or a leaf is missing in it, or has another
      shape, which the message lists.

  Examples:
    >>> import fedjax_alg as fa, pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "net.npz"
    >>> np.savez(file, **{"fc.weight": np.ones((10, 64)), "fc.bias": np.zeros(10)})
    >>> model = fa.models.Softmax().build((64,), 10)
    >>> weights = load_weights(file, model, {"": "fc"})
    >>> weights.params["params"]["kernel"].shape, weights.left
    ((10, 64), ())
  """
  label, names = f"`path`={path}", dict(names or {})
  tensors = {
    name: array
    for name, array in read_tensors(path, label).items()
    if not name.endswith(_UNREAD)
  }
  shapes = traverse_util.flatten_dict(
    jax.eval_shape(model.init, jax.random.key(0)), sep="/"
  )
  leaves, matched, missing, others = {}, {}, [], []
  modules = {_split(leaf)[0] for leaf in shapes} | set(shapes)
  for name in [*names, *(images or {})]:
    if name not in modules:
      raise OptionError(
        f"`names`={name}: no module of the model (one of {_listed(sorted(modules))})"
      )
  for leaf, shape in shapes.items():
    ours, part = _split(leaf)
    of_module = names.get(ours, ours.replace("/", "."))
    candidates = (
      [names[leaf]]
      if leaf in names
      else [
        f"{of_module}.{their}" if of_module else their
        for their in _PARTS.get(part, (part,))
      ]
    )
    theirs = next((name for name in candidates if name in tensors), None)
    if theirs is None:
      missing.append(f"{leaf} (as {' or '.join(candidates)})")
      continue
    array = tensors[theirs]
    try:
      array = _turn(part, theirs, array, shape.shape, (images or {}).get(ours))
    except ValueError:
      others.append(f"{theirs} {array.shape} is no layer on {images}")
      continue
    if array.shape != shape.shape:
      others.append(f"{theirs} is {array.shape}, {leaf} is {shape.shape}")
      continue
    leaves[leaf], matched[leaf] = array.astype(np.float32), theirs
  left = tuple(name for name in tensors if name not in matched.values())
  if missing or others:
    faults = f"missing: {_listed(missing)}; " * bool(missing)
    faults += f"of another shape: {_listed(others)}; " * bool(others)
    raise OptionError(
      f"{label}: {faults}not taken: {_listed(list(left)) or 'nothing'} (name them in "
      "`names`)"
    )
  return Weights(traverse_util.unflatten_dict(leaves, sep="/"), matched, left)
