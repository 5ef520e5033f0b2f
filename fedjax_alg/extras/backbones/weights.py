"""Weights of another program as the parameters of a model here.

A table of names says which of their modules is which of ours. Kernels are turned as
the layers here have them, from torch's [out, in, height, width] to [height, width,
in, out], and the parts of a normalization get their names, running statistics too.
"""

from collections.abc import Mapping, Sequence
import hashlib
import json
import os
import pathlib
from typing import Any, NamedTuple
import zipfile

from flax import traverse_util
import numpy as np

from fedjax_alg import files, own
from fedjax_alg.base import Model, Params, initial_shapes
from fedjax_alg.data import npz
from fedjax_alg.errors import OptionError, a_type, library_of, reason
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
#: Files of a folder of Hugging Face: its weights whole or in parts, and its options.
_WHOLE, _OF_TORCH = "model.safetensors", "pytorch_model.bin"
_INDICES = (_WHOLE + ".index.json", _OF_TORCH + ".index.json")
OPTIONS_FILES = ("config.json", "preprocessor_config.json")


class Weights(NamedTuple):
  """Weights that were read, and where they came from."""

  params: Params  #: the parameters of the model, for `init`
  matched: dict[str, str]  #: our name of a leaf -> theirs
  left: tuple[str, ...]  #: their names that no leaf has taken
  missing: tuple[str, ...] = ()  #: our leaves that the file does not have
  #: our leaves whose arrays there have another shape, with both shapes
  mismatched: tuple[str, ...] = ()

  def report(self) -> str:
    """Describes every name in a line: matched, missing, of another shape, or left."""
    lines = [f"{ours} <- {theirs}" for ours, theirs in self.matched.items()]
    lines += [f"missing: {name}" for name in self.missing]
    lines += [f"of another shape: {text}" for text in self.mismatched]
    return "\n".join(lines + [f"left: {name}" for name in self.left])


def _list_folder(place: pathlib.Path, label: str) -> list[pathlib.Path]:
  """The files with the weights in a folder of Hugging Face.

  Raises:
    OptionError: it has none, or an index names a file of another folder.
    OSError: it cannot be read.
  """
  for name in (_WHOLE, _OF_TORCH):
    if (place / name).is_file():
      return [place / name]
  for name in _INDICES:
    if (place / name).is_file():
      parts = sorted(set(files.read_json(place / name)["weight_map"].values()))
      if any(pathlib.PurePath(part).name != part for part in parts):
        raise OptionError(f"{label}: {name} names a file of another folder")
      return [place / part for part in parts]
  raise OptionError(
    f"{label}: a folder without weights (allowed: one with {_WHOLE}, {_OF_TORCH} or "
    "an index of one)"
  )


def source_of_weights(path: str | os.PathLike, label: str) -> own.Source:
  """Returns the real path of weights, and a hash of all that is read there.

  Args:
    path: a file, or a folder of Hugging Face.
    label: how messages name it.

  Raises:
    OptionError: it cannot be read.
  """
  place = pathlib.Path(os.path.realpath(files.expand_path(path)))
  try:
    if not place.is_dir():
      return own.Source(str(place), files.sha256(place))
    read = [place / name for name in (*_INDICES, *OPTIONS_FILES)]
    read = [file for file in read if file.is_file()] + _list_folder(place, label)
    hashes = {file.name: files.sha256(file) for file in read}
  except OSError as error:
    raise OptionError(f"{label}: cannot be read ({reason(error)})") from error
  text = json.dumps(hashes, sort_keys=True)
  return own.Source(str(place), hashlib.sha256(text.encode()).hexdigest())


def read_tensors(path: str | os.PathLike, label: str = "") -> Arrays:
  """Reads the arrays of safetensors, NumPy or torch, without running code.

  Args:
    path: the file, or a folder of Hugging Face with model.safetensors or
      pytorch_model.bin, whole or in parts.
    label: how messages name it; "": by its path.

  Returns:
    Name -> array, as the file has them.

  Raises:
    OptionError: it cannot be read, is damaged, or is a pickle that asks for more
      than tensors.
  """
  label, place = label or f"`path`={path}", files.expand_path(path)
  try:
    if place.is_dir():
      tensors: Arrays = {}
      for file in _list_folder(place, label):
        tensors |= read_tensors(file, label)
      return tensors
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


def _arrays_of_state(state: Mapping[Any, Any], label: str) -> Arrays:
  """The arrays of a state_dict in memory, of torch or of NumPy.

  Raises:
    OptionError: an entry is no array of numbers.
  """
  arrays = {}
  for name, value in state.items():
    if library_of(value) == "torch":  # bfloat16 has no array of NumPy
      value = value.detach().cpu().double().numpy()
    try:
      arrays[str(name)] = own.real_array(value)
    except (ValueError, TypeError):
      raise OptionError(
        f"{label}: {name} is {a_type(value)}, must be an array of finite numbers"
      ) from None
  return arrays


def _listed(names: Sequence[str]) -> str:
  return ", ".join(names[:_LISTED]) + ", ..." * (len(names) > _LISTED)


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


def _candidates(leaf: str, bare: str, names: Mapping[str, str]) -> list[str]:
  """The names that a leaf of ours may have there."""
  if leaf in names:
    return [names[leaf]]
  ours, _, part = bare.rpartition("/")
  of_module = names.get(ours, ours.replace("/", "."))
  before = f"{of_module}." if of_module else ""
  return [before + their for their in _PARTS.get(part, (part,))]


def match_tensors(
  tensors: Arrays,
  shapes: Mapping[str, tuple[int, ...]],
  names: Mapping[str, str],
  images: Mapping[str, tuple[int, int, int]] | None = None,
  statistics: Mapping[str, str] | None = None,
) -> Weights:
  """Finds the tensor of each leaf of a model.

  Args:
    tensors: theirs, by name.
    shapes: our leaf -> its shape.
    names: see ``load_weights``.
    images: see ``load_weights``.
    statistics: leaf of a running statistic -> its name without the collection.

  Returns:
    The weights. What is missing or has another shape is listed, not refused.

  Raises:
    OptionError: ``names`` or ``images`` name no module of ours.
  """
  images, statistics = images or {}, statistics or {}
  bare = {leaf: statistics.get(leaf, leaf.removeprefix("params/")) for leaf in shapes}
  modules = {name.rpartition("/")[0] for name in bare.values()} | set(shapes)
  for name in [*names, *images]:
    if name not in modules:
      raise OptionError(
        f"`names`={name}: no module of the model (one of {_listed(sorted(modules))})"
      )
  leaves, matched, missing, mismatched = {}, {}, [], []
  for leaf, shape in shapes.items():
    ours, _, part = bare[leaf].rpartition("/")
    candidates = _candidates(leaf, bare[leaf], names)
    theirs = next((name for name in candidates if name in tensors), None)
    if theirs is None:
      missing.append(f"{leaf} (as {' or '.join(candidates)})")
      continue
    array = tensors[theirs]
    try:
      array = _turn(part, theirs, array, shape, images.get(ours))
    except ValueError:
      mismatched.append(f"{theirs} {array.shape} is no layer on {images}")
      continue
    if array.shape != shape:
      mismatched.append(f"{theirs} is {tensors[theirs].shape}, {leaf} is {shape}")
      continue
    leaves[leaf], matched[leaf] = array.astype(np.float32), theirs
  taken_names = set(matched.values())
  return Weights(
    traverse_util.unflatten_dict(leaves, sep="/"),
    matched,
    tuple(
      name for name in tensors if name not in taken_names and not name.endswith(_UNREAD)
    ),
    tuple(missing),
    tuple(mismatched),
  )


def refuse_faults(weights: Weights, label: str, advice: str) -> None:
  """Refuses weights of which a leaf is missing or has another shape.

  Args:
    weights: of ``match_tensors``.
    label: how messages name them.
    advice: the end of the message.

  Raises:
    OptionError: there is one; the message has the first names of each kind.
  """
  if not weights.missing and not weights.mismatched:
    return
  faults = f"missing: {_listed(weights.missing)}; " * bool(weights.missing)
  others = _listed(weights.mismatched)
  faults += f"of another shape: {others}; " * bool(weights.mismatched)
  left = _listed(weights.left) or "nothing"
  raise OptionError(f"{label}: {faults}not taken: {left} ({advice})")


def remove_prefix(tensors: Arrays, *anchors: str) -> Arrays:
  """Removes what a checkpoint has before all names of a network, such as "module.".

  Args:
    tensors: theirs.
    anchors: names that the network has, of each kind of file one.

  Returns:
    The tensors of the network.
  """
  for anchor in anchors:
    for name in tensors:
      if name == anchor or name.endswith(f".{anchor}"):
        prefix = name.removesuffix(anchor)
        return {other.removeprefix(prefix): tensor for other, tensor in tensors.items()}
  return tensors


def refuse_left(weights: Weights, heads: tuple[str, ...], label: str) -> None:
  """Refuses weights with tensors that the network does not have.

  Args:
    weights: what was matched.
    heads: how the names of tensors begin that need not be read.
    label: how messages name them.

  Raises:
    OptionError: they are of another network, whose features would be others.
  """
  others = [name for name in weights.left if not name.startswith(heads)]
  if others:
    raise OptionError(
      f"{label}: has {', '.join(others[:4])}{', ...' * (len(others) > 4)}, which this "
      "network does not have"
    )


def refuse_config(
  options: dict[str, Any], values: dict[str, object], label: str
) -> None:
  """Refuses a config.json of Hugging Face that describes another network.

  Args:
    options: its content.
    values: option -> its value in our networks.
    label: how messages name the weights.

  Raises:
    OptionError: a value is another one.
  """
  for name, value in values.items():
    if name in options and options[name] != value:
      raise OptionError(
        f"{label}: config.json has {name}={options[name]!r} (allowed: {value!r})"
      )


def load_weights(
  path: str | os.PathLike | Mapping[str, Any],
  model: Model,
  names: Mapping[str, str] | None = None,
  images: Mapping[str, tuple[int, int, int]] | None = None,
  partial: bool = False,
) -> Weights:
  """Reads the weights of another program for a model.

  Args:
    path: a file of safetensors, ``.npz``, or of ``torch.save`` with a state_dict,
      which is read without torch and without running the pickle that it is; a folder
      of Hugging Face; or a state_dict itself, of torch or with arrays.
    model: the model, such as ``fa.models.from_flax`` makes. Its running statistics
      are read, too.
    names: name of a module of ours -> theirs, such as {"Dense_0": "fc1"}; or of a
      whole leaf, {"params/w": "weights"}. Modules that are not named have the same
      name in both.
    images: module of ours -> (channels, height, width) of the images that their
      flatten layer has before it, for a dense layer after convolutions. Without it
      their pixels would be in another order.
    partial: whether leaves that are missing, or have another shape, are left out of
      ``params`` and listed. `init_only` then names the part that a run takes.

  Returns:
    The parameters for ``init``, what was matched, and what was left.

  Raises:
    OptionError: the file cannot be read; or a leaf is missing in it, or has another
      shape, which the message lists.

  Examples:
    >>> import fedjax_alg as fa
    >>> state = {"fc.weight": np.ones((10, 64)), "fc.bias": np.zeros(10)}
    >>> model = fa.models.Softmax().build((64,), 10)
    >>> weights = load_weights(state, model, {"": "fc"})
    >>> weights.params["params"]["kernel"].shape, weights.left
    ((10, 64), ())
    >>> print(weights.report())
    params/bias <- fc.bias
    params/kernel <- fc.weight
  """
  if isinstance(path, Mapping):
    label = f"`path`={a_type(path)}"
    tensors = _arrays_of_state(path, label)
  else:
    label = f"`path`={path}"
    tensors = read_tensors(path, label)
  full_model, stateful = model, None
  if model.roles is not None:
    full_model, stateful = model.roles.whole, model.roles.stateful
  shapes = traverse_util.flatten_dict(initial_shapes(full_model.init), sep="/")
  weights = match_tensors(
    tensors,
    {leaf: of.shape for leaf, of in shapes.items()},
    names or {},
    images,
    None if stateful is None else stateful.names,
  )
  if not partial:
    refuse_faults(weights, label, "name them in `names`")
  return weights
