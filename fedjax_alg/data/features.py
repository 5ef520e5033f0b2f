"""Features, computed once on the host before the data are dealt to clients."""

from collections.abc import Callable
import dataclasses
import functools
import math
import os
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import threadpoolctl

from fedjax_alg import files, optional, own
from fedjax_alg.data import store
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import check_memory
from fedjax_alg.data.npy_rows import ComputedRows
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import OWN_CODE, hyper
from fedjax_alg.part import Part

#: Names of pre-trained networks (``extras.backbones.networks``).
NETWORK_NAMES = (
  *("efficientnet_lite0", "resnet18", "resnet50", "vit", "dino"),
  "wordllama",
)

#: Fields of ``Backbone`` that a network of texts does not read.
_OF_IMAGES = ("weights", "size", "crop", "scale", "layer")

_NORMS = ("l2", "l1", "none")
_CHUNK = 512  # images at a time: bounds memory and keeps a chunk in cache
_PART_BYTES = 2**24  # of rows in a file, of which features are computed at once
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


class RunLayer(NamedTuple):
  """A layer of the model of a finished run."""

  folder: str  #: of the run
  layer: str  #: its name in the model; "last": the last one
  #: of all that decides what the layer reads (``layer_hash``); "": not known yet
  sha256: str = ""


#: Makes the function x [n, ...] -> what a layer reads [n, D]; raises OptionError
#: and DataError, also if the run is not the one of ``RunLayer.sha256`` any more.
#: ``runs.api`` sets it, as data cannot read runs.
layer_reader: Callable[[RunLayer], Callable[[np.ndarray], np.ndarray]] | None = None
#: Returns the real path of a run, and a hash of what its layers read; likewise.
layer_source: Callable[[str], own.Source] | None = None


class FeatureWork(NamedTuple):
  """What the features of some examples still take."""

  examples: int
  missing: int  #: how many of the examples have no features that are stored
  seconds: float  #: of the missing ones, estimated from a few
  width: int  #: D, the number of features; 0 if none is missing

  def __str__(self) -> str:
    """Says it in a line."""
    stored = self.examples - self.missing
    return (
      f"{self.seconds:.3g} for {self.missing:,} of {self.examples:,} examples"
      f"{f', {stored:,} are stored' * (stored > 0)}"
    )

  def __add__(self, other: Any) -> "FeatureWork":
    """The work of two sets of examples."""
    return FeatureWork(
      self.examples + other.examples,
      self.missing + other.missing,
      self.seconds + other.seconds,
      max(self.width, other.width),
    )


class Features(Part):
  """What a model reads of the examples."""

  #: whether they are the values of the examples, perhaps in another shape
  SHAPED: ClassVar[bool] = False
  #: whether they are a vector of each example
  VECTORS: ClassVar[bool] = False

  @property
  def reads_texts(self) -> bool:
    """Whether the examples may be texts."""
    return False

  def source(self, sha256: str = "") -> own.Source | None:
    """What outside the data decides them; None: nothing does.

    Args:
      sha256: its hash when it was read first, which is then not computed again; "":
        the hash is computed now.

    Returns:
      The real path of a run, of weights or of code, and the hash.

    Raises:
      OptionError: it cannot be read.
    """
    return None

  def at_path(self, path: str) -> Self:
    """Returns the same features, of a source at another path."""
    return self

  def refuse_change(self, sha256: str) -> None:
    """Refuses a source that has changed since it was read first.

    Args:
      sha256: its hash at that time; "": not known, so it is not checked.

    Raises:
      OptionError: it is another one now, or cannot be read.
    """
    source = self.source() if sha256 else None
    if source is not None and source.sha256 != sha256:
      raise OptionError(
        f"`features`={self}: {source.file} has changed since it was read; restore it"
      )

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Computes the features.

    Args:
      x: [n, ...], the examples, any real dtype; images are uint8, or float in [0, 1].
        With ``reads_texts`` also [n] texts, of dtype object. Or rows in files.
      sha256: of the source, ``hash_of`` when it was read first; "": it is read now.

    Returns:
      The features [n, ...], float32; ids stay int32. Those of rows in files are in
      files, too.

    Raises:
      DataError: they cannot be computed of such examples, or the disk is full.
      OptionError: the source cannot be read, or has changed.
    """
    raise NotImplementedError

  def flops(self, shape: tuple[int, ...]) -> float:
    """Counts the multiplications and additions of one example.

    Args:
      shape: of the example [...].

    Returns:
      The operations; 0 where they are not counted.
    """
    del shape
    return 0.0

  def remaining_work(self, x: np.ndarray) -> FeatureWork | None:
    """Estimates what the features take that are not stored yet, without storing any.

    Args:
      x: [n, ...], the examples.

    Returns:
      The work; None of features that are computed in no time that counts.

    Raises:
      DataError, OptionError: see ``compute``.
    """
    del x
    return None


class RawFeatures(Features):
  """The examples as they are; images as numbers in [0, 1]."""

  WORD, EXAMPLE = "none", "none"
  SHAPED: ClassVar[bool] = True

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Converts images to numbers (``Features.compute``)."""
    return none(x)


class Flattened(Features):
  """Each example as a vector."""

  WORD, EXAMPLE = "flatten", "flatten"
  SHAPED: ClassVar[bool] = True
  VECTORS: ClassVar[bool] = True

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Flattens each example (``Features.compute``)."""
    return flatten_examples(x)


class Images(Features):
  """Flat pixels of square images as H x H, for models of convolutions."""

  WORD, EXAMPLE = "images", "images"
  SHAPED: ClassVar[bool] = True

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Makes images [n, H, W, c] (``Features.compute``)."""
    return none(x).reshape(len(x), *image_shape(x))


class Standardize(Features):
  """Each input minus its mean, divided by its deviation + 0.001.

  Both are of the training examples of the clients that take part (``fit_scaler``), so
  the federation computes them.
  """

  WORD, EXAMPLE = "standardize", "standardize"


class Contrast(Features):
  """Each example minus its mean, divided by sqrt(its variance + 0.001)."""

  WORD, EXAMPLE = "contrast", "contrast"

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Normalizes the contrast of each example (``Features.compute``)."""
    return compute_in_passes(contrast, x)


class Hog(Features):
  """Histograms of oriented gradients, as in the diversified paper, section V-A.

  Examples:
    >>> Hog().compute(np.zeros((2, 28, 28, 1), np.uint8)).shape
    (2, 576)
  """

  WORD, EXAMPLE = "hog", "hog:norm=none"
  VECTORS: ClassVar[bool] = True

  block: int = hyper(7, "side of a block, in pixels", minimum=1)
  stride: int = hyper(3, "distance between neighboring blocks, in pixels", minimum=1)
  _: dataclasses.KW_ONLY
  bins: int = hyper(9, "number of bins of the angles [0, 2 pi)", minimum=1, maximum=360)
  norm: str = hyper("l2", "norm by which each block is divided", choices=_NORMS)
  scale: float = hyper(1.0, "factor of all features", above=0)

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Computes the histograms (``hog``)."""
    return compute_in_passes(functools.partial(hog, **dataclasses.asdict(self)), x)


class LayerFeatures(Features):
  """What a layer reads in the model of a finished run; LAYER is its name, or last.

  The model does not change.
  """

  WORD, EXAMPLE = "RUN:LAYER", "out/first:last"
  VECTORS: ClassVar[bool] = True

  text: str = hyper(dataclasses.MISSING, "the folder of the run, and the layer")

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.run_layer.layer:
      raise OptionError(f"features={self}: name a layer of the run, or last")

  @property
  def run_layer(self) -> RunLayer:
    """The folder and the name of the layer."""
    folder, _, layer = self.text.rpartition(":")
    return RunLayer(folder, layer)

  def source(self, sha256: str = "") -> own.Source:
    """The folder of the run (``Features.source``)."""
    folder = self.run_layer.folder
    if sha256:
      return own.Source(os.path.realpath(files.expand_path(folder)), sha256)
    assert layer_source is not None
    return layer_source(folder)

  def at_path(self, path: str) -> Self:
    """Returns the features of the run at another path."""
    return type(self)(f"{path}:{self.run_layer.layer}")

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Reads the run, and computes what the layer reads (``Features.compute``)."""
    assert layer_reader is not None
    return compute_in_passes(layer_reader(self.run_layer._replace(sha256=sha256)), x)


class Backbone(Features):
  """Features of images or texts by a pre-trained network, computed once and stored.

  The network does not change. The weights of EfficientNet-Lite0, which was trained on
  ImageNet, and of wordllama, which reads texts, come in packages. For all others you
  bring a file, see docs/models.md.

  Examples:
    >>> str(Backbone(size=96))
    'backbone:size=96'
    >>> str(Backbone("resnet18", weights="resnet18.pth", crop=0.875))
    'backbone:resnet18,weights=resnet18.pth,crop=0.875'
  """

  WORD, EXAMPLE = "backbone", "backbone:size=96"
  VECTORS: ClassVar[bool] = True

  network: str = hyper("efficientnet_lite0", "the network", choices=NETWORK_NAMES)
  _: dataclasses.KW_ONLY
  weights: str = hyper(
    "",
    "file of its weights (safetensors, .npz or torch.save), or a folder of Hugging "
    "Face; none is needed with efficientnet_lite0 and wordllama",
  )
  size: int | None = hyper(
    None,
    "side in pixels to which images are resized; 0: their own; none: 128 with "
    "efficientnet_lite0, else 224. Networks were trained on 224, and the time grows "
    "with the square",
    minimum=0,
    maximum=1024,
  )
  crop: float = hyper(
    1.0,
    "share of the side that is kept, in the center of an image whose shorter side has "
    "become size / crop; 1: the whole image becomes a square",
    above=0,
    maximum=1.0,
  )
  scale: str = hyper(
    "published",
    "how values in [0, 1] become those that the network reads, (x - mean) / deviation; "
    "published: as the network or its folder states; imagenet: ImageNet's; halves: "
    "0.5 and 0.5; none: as they are",
    choices=("published", "imagenet", "halves", "none"),
  )
  layer: str = hyper(
    "head",
    "what is read: stem, block0, block1, ..., or head, the last; the means over all "
    "pixels",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if "," in self.weights or self.weights.strip() != self.weights:
      raise OptionError(
        f"`features`=backbone: weights={self.weights!r}: has a comma, or spaces around "
        "it, which its text cannot have (rename it)"
      )
    for name in _OF_IMAGES if self.reads_texts else ():
      value = getattr(self, name)
      if value != type(self).__dataclass_fields__[name].default:
        raise OptionError(
          f"`features`=backbone: {name}={value}: not read with wordllama"
        )
    if self.size == self.default_size:  # the same features are the same run
      object.__setattr__(self, "size", None)

  @property
  def default_size(self) -> int:
    """Side of the images in pixels if ``size`` is None, which it is for this side."""
    return 128 if self.network == "efficientnet_lite0" else 224

  @property
  def reads_texts(self) -> bool:
    """Whether the network reads texts, not images."""
    return self.network == "wordllama"

  def source(self, sha256: str = "") -> own.Source | None:
    """The file or the folder of the weights (``Features.source``)."""
    if not self.weights:
      return None
    if sha256:
      return own.Source(os.path.realpath(files.expand_path(self.weights)), sha256)
    label = f"`features`={self}"
    extra = optional.load_extra("backbones.weights", label)
    result: own.Source = extra.source_of_weights(self.weights, label)
    return result

  def at_path(self, path: str) -> Self:
    """Returns the features by the weights at another path."""
    return dataclasses.replace(self, weights=path)

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Computes the features, or reads them from the cache (``Features.compute``)."""
    self.refuse_change(sha256)
    extra = optional.load_extra("backbones.features", f"`features`={self}")
    return extra.compute_features(self, x)

  def flops(self, shape: tuple[int, ...]) -> float:
    """Counts the products of the network's convolutions (``Features.flops``)."""
    extra = optional.load_extra("backbones.features", f"`features`={self}")
    result: float = extra.count_feature_flops(self, shape)
    return result

  def remaining_work(self, x: np.ndarray) -> FeatureWork:
    """Times the network on a few examples (``Features.remaining_work``)."""
    extra = optional.load_extra("backbones.features", f"`features`={self}")
    result: FeatureWork = extra.estimate_work(self, x)
    return result

  def build_model(self, input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Makes a model of the network with a new last layer, to be trained.

    Its parameters are ``body`` with the pre-trained values, and ``last``. Give this
    function as the model of a run on images.

    Args:
      input_shape: shape of an image, [H, W] or [H, W, 1 or 3].
      num_classes: L.

    Returns:
      The ``base.Model``.

    Raises:
      OptionError: the examples are no images, or the weights are missing.

    Examples:
      >>> tune = Backbone(size=64, layer="block5").build_model
      >>> options = dict(model=tune, roles="frozen:body")  # of fa.run
    """
    extra = optional.load_extra("backbones.tuned", f"`model`={self}")
    return extra.make_tuned_model(self, input_shape, num_classes)


class OwnFeatures(Features):
  """Your function (examples [n, ...]) -> features [n, D], such as a network of torch.

  It gets images as float32 in [0, 1], or a list of texts, at most 64 at a time, and
  returns an array of NumPy or a tensor of torch. What it returns for an example must
  not depend on the other examples. The results are stored, by a hash of the file.
  """

  WORD, EXAMPLE = OWN_CODE, "my_features.py:embed"
  VECTORS: ClassVar[bool] = True

  function: str = hyper(
    dataclasses.MISSING, "the name of the function, path/to/file.py:NAME"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    own.refuse_nameless(self.function, "features")

  @property
  def reads_texts(self) -> bool:
    """Whether the examples may be texts; the function says it."""
    return True

  def source(self, sha256: str = "") -> own.Source:
    """The file that defines the function (``Features.source``)."""
    if sha256:
      file = self.function.rpartition(":")[0]
      return own.Source(os.path.realpath(files.expand_path(file)), sha256)
    return own.load(self.function, "features")[1]

  def at_path(self, path: str) -> Self:
    """Returns the features by the function in another file."""
    return type(self)(f"{path}:{self.function.rpartition(':')[2]}")

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Calls the function, or reads the cache (``Features.compute``)."""
    self.refuse_change(sha256)
    extra = optional.load_extra("backbones.features", f"`features`={self}")
    return extra.compute_own_features(self, x)

  def remaining_work(self, x: np.ndarray) -> FeatureWork:
    """Times the function on a few examples (``Features.remaining_work``)."""
    extra = optional.load_extra("backbones.features", f"`features`={self}")
    result: FeatureWork = extra.estimate_own_work(self, x)
    return result


class PlannedFeatures(Features):
  """Random numbers in the place of features that are not computed (``dry_run``)."""

  WORD, EXAMPLE = "planned", "planned:1280"
  VECTORS: ClassVar[bool] = True

  width: int = hyper(dataclasses.MISSING, "number of features", minimum=1)
  texts: bool = hyper(False, "whether the examples may be texts")

  @property
  def reads_texts(self) -> bool:
    """Whether the examples may be texts."""
    return self.texts

  def compute(self, x: Any, sha256: str = "") -> Any:
    """Draws the numbers (``Features.compute``)."""
    rng = np.random.default_rng(0)
    return compute_in_passes(lambda x: rng.random((len(x), self.width), np.float32), x)


#: The features of the examples.
FEATURES = (
  RawFeatures
  | Flattened
  | Images
  | Standardize
  | Contrast
  | Hog
  | Backbone
  | OwnFeatures
  | LayerFeatures
)


def hash_of(features: Features) -> str:
  """The hash of what outside the data decides features; "" if nothing does.

  Raises:
    OptionError: it cannot be read.
  """
  source = features.source()
  return "" if source is None else source.sha256


def compute_in_passes(function: Callable[[np.ndarray], np.ndarray], x: Any) -> Any:
  """Computes a function of each row.

  Args:
    function: x [n, ...] -> values [n, ...]. Of the rows from a multiple of 512 on, it
      must compute the same bits if it gets them alone.
    x: [n, ...], an array or rows in files.

  Returns:
    The values; those of rows in files as ``ComputedRows``.

  Raises:
    DataError: the disk is full, or a file cannot be read.
  """
  if not store.is_in_files(x):
    return function(x)
  step = _CHUNK * max(1, _PART_BYTES // (4 * _CHUNK * max(1, math.prod(x.shape[1:]))))
  parts = (
    function(x[start : start + step]) for start in range(0, max(1, len(x)), step)
  )
  return ComputedRows.of_parts(parts, len(x))


def _empty_float32(x: np.ndarray, kind: str) -> np.ndarray:
  """Room for features of the shape of the examples.

  Raises:
    DataError: they do not fit into memory.
  """
  check_memory(
    f"`features`={kind}: {len(x):,} examples of shape {x.shape[1:]} as float32",
    4.0 * math.prod(x.shape),
  )
  return np.empty(x.shape, np.float32)


def are_texts(x: object) -> bool:
  """Whether examples are texts, [n] of dtype object."""
  return isinstance(x, np.ndarray) and x.dtype == object


def check_texts(features: Features, x: object) -> None:
  """Refuses texts with features that do not read them.

  Raises:
    DataError: the examples are texts.
  """
  if are_texts(x) and not features.reads_texts:
    raise DataError(
      f"`features`={features}: needs numbers, the examples are texts (allowed: "
      "backbone:wordllama, FILE.py:NAME; or give the ids of their tokens)"
    )


def none(x: np.ndarray) -> np.ndarray:
  """Converts uint8 images to float32 in [0, 1]; keeps shapes and tokens."""
  if x.dtype == np.uint8:
    result: np.ndarray = np.multiply(x, np.float32(1 / 255), dtype=np.float32)
    return result
  if x.dtype.kind == "i" or x.dtype == np.float32:
    return x  # perhaps rows in files
  return x.astype(np.float32)


def flatten_examples(x: np.ndarray) -> np.ndarray:
  """Applies ``none`` and flattens each example to a vector, [n, D]."""
  return none(x).reshape(len(x), math.prod(x.shape[1:]))


def image_shape(x: np.ndarray) -> tuple[int, int, int]:
  """The shape [H, W, c] of examples that are images or their flat pixels.

  Args:
    x: [n, H, W, c], [n, H, W], or [n, D] of square gray images, D = H W.

  Returns:
    H, W and c.

  Raises:
    DataError: they are neither.
  """
  shape = x.shape[1:]
  if x.dtype.kind != "i" or x.ndim > 2:
    if len(shape) in (2, 3):
      return (*shape, 1)[:3]
    side = math.isqrt(shape[0]) if len(shape) == 1 else 0
    if len(shape) == 1 and side**2 == shape[0]:
      return side, side, 1
  raise DataError(
    "`features`=images: needs images or their pixels, H x H numbers an "
    f"example, the data are {x.dtype} of shape {shape}"
  )


class Scaler(NamedTuple):
  """Mean and factor by which ``standardize`` scales each input.

  It is not scikit-learn's ``StandardScaler``, which divides by the deviation alone:
  95 % of the values of the digits would have other bits, some differ by 14.
  """

  mean: np.ndarray  #: [...] float64, the shape of an example
  #: [...] float64, 1 / (std + 0.001); 0 for an input that is constant in the
  #: rows of ``fit_scaler``, since dividing by 0.001 would make its rare other
  #: values very large
  factor: np.ndarray

  def apply(self, x: Any) -> Any:
    """Computes (x - mean) * factor.

    Args:
      x: [n, ...], any real dtype, an array or rows in files.

    Returns:
      float32 [n, ...], likewise.

    Raises:
      DataError: they do not fit into memory, or the disk is full.
    """
    return compute_in_passes(self._scale, x)

  def _scale(self, x: np.ndarray) -> np.ndarray:
    out = _empty_float32(x, "standardize")
    for start in range(0, len(x), _CHUNK):
      rows = slice(start, start + _CHUNK)
      out[rows] = (x[rows] - self.mean) * self.factor
    return out


def fit_scaler(x: Any) -> Scaler:
  """Computes mean and standard deviation of each input.

  uint8 images keep their scale 0..255, as in the FedProx generator. (That one
  takes the mean over training and test images, which leaks information about
  the test set.)

  Args:
    x: [n, ...] rows for training, any real dtype, n >= 1. Rows in files are read
      twice.

  Returns:
    The scaler.
  """
  mean = _mean(x)
  variance, least, most = np.zeros_like(mean), x[:1][0], x[:1][0]
  for start in range(0, len(x), _CHUNK):  # avoids a float64 copy of all
    rows = x[start : start + _CHUNK]
    variance += np.square(rows - mean).sum(axis=0)
    least, most = (
      np.minimum(least, rows.min(axis=0)),
      np.maximum(most, rows.max(axis=0)),
    )
  changes = most > least
  return Scaler(mean, np.where(changes, 1 / (np.sqrt(variance / len(x)) + 0.001), 0.0))


def _mean(x: Any) -> np.ndarray:
  """The mean of rows, of which NumPy adds one after the other.

  Rows in files have the same bits as an array of them: the sum so far is the first of
  the next rows. A single column is summed in pairs, so it is read as one.
  """
  if isinstance(x, np.ndarray) or math.prod(x.shape[1:]) == 1:
    result: np.ndarray = x[:].mean(axis=0, dtype=np.float64)
    return result
  total = x[:_CHUNK].sum(axis=0, dtype=np.float64)
  for start in range(_CHUNK, len(x), _CHUNK):
    rows = x[start : start + _CHUNK].astype(np.float64)
    total = np.concatenate([total[None], rows]).sum(axis=0)
  mean: np.ndarray = total / len(x)
  return mean


def contrast(x: np.ndarray) -> np.ndarray:
  """Computes (x - mean) / sqrt(variance + 0.001) of each example.

  This is global contrast normalization: mean and variance are taken over all
  values of one example. uint8 images are scaled to [0, 1] first. An example
  without contrast becomes 0, up to rounding.

  Args:
    x: [n, ...], any real dtype.

  Returns:
    float32 of the same shape.
  """
  out = _empty_float32(x, "contrast")
  for start in range(0, len(x), _CHUNK):
    rows = slice(start, start + _CHUNK)
    values = flatten_examples(x[rows]).astype(np.float32, copy=False)
    values = values - values.mean(axis=1, keepdims=True)
    variance = np.einsum("nd,nd->n", values, values) / values.shape[1]
    values /= np.sqrt(variance + np.float32(1e-3))[:, None]
    out[rows] = values.reshape(-1, *x.shape[1:])
  return out


def hog(
  images: np.ndarray,
  block: int = 7,
  stride: int = 3,
  bins: int = 9,
  norm: str = "l2",
  scale: float = 1.0,
  eps: float = 1e-6,
) -> np.ndarray:
  """Computes histograms of oriented gradients (Dalal and Triggs 2005).

  By default these are 576 features on MNIST, as in the diversified paper,
  section V-A: blocks of 7 x 7 pixels every 3 pixels (64 on MNIST, 81 on
  CIFAR-10). The magnitude of each pixel's gradient is added to one of 9 bins
  over [0, 2 pi), which is chosen by the angle (hard assignment).

  The gradient is the central difference x[i+1] - x[i-1], *not* halved, and 0
  in the first and last row (vertical) or column (horizontal). The paper does
  not state this. Of the usual operators only this one gives the published
  scale of raw features on MNIST (mean squared norm about 4,860; halved
  differences give 1,220). The paper does not state a block normalization
  either. Normalized features have a mean squared norm of about 51, which is
  the mean number of blocks that are not empty.

  Args:
    images: [n, H, W], [n, H, W, 1] or [n, H, W, 3] (converted to luminance),
      uint8 (divided by 255) or float in [0, 1].
    block: side of a block in pixels.
    stride: step between blocks in pixels. Rows and columns after the last
      whole block are not covered.
    bins: number of orientations.
    norm: normalization of the ``bins`` values h of one block: ``l2`` gives
      h / sqrt(|h|_2^2 + eps^2), ``l1`` gives h / (|h|_1 + eps), and ``none``
      keeps the magnitudes. An empty block stays 0.
    scale: factor that multiplies all features.
    eps: small number in the divisors, in units of magnitude.

  Returns:
    float32 [n, blocks * bins], blocks row by row; the bins of a block are
    contiguous.

  Raises:
    DataError: the data are not images, a block is larger than the image, or
      the features do not fit into memory.
  """
  if images.ndim not in (3, 4) or images.ndim == 4 and (images.shape[3] not in (1, 3)):
    raise DataError(
      f"`features`=hog needs images [n, H, W, 1 or 3], the data has shape"
      f" {images.shape}"
    )
  height, width = images.shape[1:3]
  if block > min(height, width):
    raise DataError(
      f"`features`=hog: block={block} must fit in {height} x {width} pixels"
    )
  blocks = math.prod((side - block) // stride + 1 for side in (height, width))
  pixels = height * width
  check_memory(
    f"`features`=hog: bins={bins}, stride={stride}: {blocks} blocks of each of "
    f"{len(images):,} images",
    4.0
    * (
      len(images) * blocks * bins
      + pixels * blocks
      + 2 * min(len(images), _CHUNK) * bins * pixels
    ),
  )
  # The block sums are a product with a 0/1 matrix [H * W, blocks].
  membership = np.kron(
    _windows(height, block, stride), _windows(width, block, stride)
  ).T
  out = np.empty((len(images), blocks, bins), np.float32)
  # The number of BLAS threads decides the order of the additions, and with
  # it the last bits of the sums. Use one thread, whatever the machine has.
  with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
    for start in range(0, len(images), _CHUNK):
      grey = _grey(images[start : start + _CHUNK])
      votes = _votes(grey, bins).reshape(-1, pixels)
      sums = (votes @ membership).reshape(len(grey), bins, blocks)
      out[start : start + _CHUNK] = sums.transpose(0, 2, 1)
  if norm == "l2":
    squares = np.einsum("nkb,nkb->nk", out, out)
    out /= np.sqrt(squares + np.float32(eps) ** 2)[..., None]
  elif norm == "l1":
    out /= (out.sum(axis=2) + np.float32(eps))[..., None]
  if scale != 1:
    out *= np.float32(scale)
  return out.reshape(len(images), blocks * bins)


def _windows(length: int, block: int, stride: int) -> np.ndarray:
  """[windows, length] float32, 1 where the pixel belongs to the window."""
  first = np.arange(0, length - block + 1, stride)[:, None]
  pixel = np.arange(length)[None]
  return ((pixel >= first) & (pixel < first + block)).astype(np.float32)


def _grey(images: np.ndarray) -> np.ndarray:
  """[n, H, W] float32, uint8 scaled to [0, 1]."""
  images = none(images).astype(np.float32, copy=False)
  if images.ndim == 3:
    return images
  return images[..., 0] if images.shape[3] == 1 else images @ _LUMINANCE


def _votes(grey: np.ndarray, bins: int) -> np.ndarray:
  """[n, bins, H, W], each pixel's magnitude at the bin of its angle."""
  dx, dy = np.zeros_like(grey), np.zeros_like(grey)
  np.subtract(grey[:, :, 2:], grey[:, :, :-2], out=dx[:, :, 1:-1])
  np.subtract(grey[:, 2:], grey[:, :-2], out=dy[:, 1:-1])
  angle = np.arctan2(dy, dx) * np.float32(bins / (2 * np.pi))
  plane = np.floor(angle).astype(np.int8 if bins < 128 else np.int32)
  # arctan2 lies in [-pi, pi]; negative planes belong to angles above pi.
  plane = np.where(plane < 0, plane + bins, plane).astype(np.intp)
  votes = np.zeros((len(grey), bins, *grey.shape[1:]), np.float32)
  np.put_along_axis(votes, plane[:, None], np.hypot(dx, dy)[:, None], axis=1)
  return votes
