"""Features computed once, on the host, before the data is dealt to clients."""

from collections.abc import Callable
import math

import numpy as np

from fedjax_alg.data.errors import DataError

FEATURES = ("none", "flatten", "standardize", "contrast", "hog")
HOG_NORMS = ("l2", "l1", "none")

_CHUNK = 512  # images at a time: bounds memory and keeps a chunk in cache
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601

#: (x_train [n, ...], x_test [m, ...]) -> the features of both
FeaturesFn = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def make_features(kind: str, **hog_options) -> FeaturesFn:
  """The features ``kind`` as a function of (x_train, x_test).

  Args:
    kind: one of ``FEATURES``.
    **hog_options: for ``hog`` only, see there.

  Raises:
    DataError: an unknown kind.
  """
  if kind == "standardize":
    return standardize
  per_split = {"none": none, "flatten": flatten, "contrast": contrast,
               "hog": lambda x: hog(x, **hog_options)}
  if kind not in per_split:
    raise DataError(
        f"`features`={kind}: unknown, allowed: {', '.join(FEATURES)}")
  fn = per_split[kind]
  return lambda x_train, x_test: (fn(x_train), fn(x_test))


def none(x: np.ndarray) -> np.ndarray:
  """The examples as they are: uint8 images float32 in [0, 1], shape kept."""
  if x.dtype == np.uint8:
    return np.multiply(x, np.float32(1 / 255), dtype=np.float32)
  return x if x.dtype == np.int32 else x.astype(np.float32, copy=False)


def flatten(x: np.ndarray) -> np.ndarray:
  """As ``none``, each example one vector: [n, D]."""
  return none(x).reshape(len(x), math.prod(x.shape[1:]))


def standardize(
    x_train: np.ndarray, x_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """(x - mean) / (std + 0.001) per input, moments of the training set.

  uint8 images stay on their scale 0..255, as in the FedProx generator, which
  takes its moments over training and test images together (that leaks; here
  only the training set counts). An input that never changes in training is 0
  everywhere: dividing by 0.001 would blow up its rare test values.

  Args:
    x_train: [n, ...], any real dtype.
    x_test: [m, ...].

  Returns:
    Both float32, shapes kept.
  """
  n = len(x_train)
  mean = x_train.mean(axis=0, dtype=np.float64)
  variance = np.zeros_like(mean)
  for start in range(0, n, _CHUNK):  # never a float64 copy of the whole
    variance += np.square(x_train[start:start + _CHUNK] - mean).sum(axis=0)
  changes = x_train.max(axis=0) > x_train.min(axis=0)
  factor = np.where(changes, 1 / (np.sqrt(variance / n) + 0.001), 0.0)

  def apply(x):
    out = np.empty(x.shape, np.float32)
    for start in range(0, len(x), _CHUNK):
      rows = slice(start, start + _CHUNK)
      out[rows] = (x[rows] - mean) * factor
    return out

  return apply(x_train), apply(x_test)


def contrast(x: np.ndarray) -> np.ndarray:
  """(x - mean) / sqrt(variance + 0.001) of each example (global contrast).

  Mean and variance are over all values of the one example, uint8 images taken
  in [0, 1]; an example without contrast becomes 0, up to rounding.

  Args:
    x: [n, ...], any real dtype.

  Returns:
    float32, shape kept.
  """
  out = np.empty(x.shape, np.float32)
  for start in range(0, len(x), _CHUNK):
    rows = slice(start, start + _CHUNK)
    values = flatten(x[rows]).astype(np.float32, copy=False)
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
  """Histograms of oriented gradients (Dalal and Triggs 2005), as 576 features.

  The diversified paper, section V-A: blocks of 7 x 7 pixels every 3 pixels (64
  on MNIST, 81 on CIFAR-10), the magnitude of each pixel's gradient added to
  the bin of its angle among 9 over [0, 2 pi), hard assignment.

  The gradient is the plain central difference x[i+1] - x[i-1], *not* halved,
  and 0 in the first and last row (vertical) or column (horizontal). Not
  stated in the paper; of the usual operators only this one gives the published
  scale of raw features on MNIST (mean squared norm about 4,860; halved
  differences give 1,220). Block normalisation is not stated either:
  normalised features have a mean squared norm of about 51, one per block that
  is not empty.

  Args:
    images: [n, H, W], [n, H, W, 1] or [n, H, W, 3] (turned to luminance),
      uint8 (divided by 255) or float in [0, 1].
    block: side of a block, pixels.
    stride: step between blocks, pixels. Rows and columns past the last whole
      block are not covered.
    bins: number of orientations.
    norm: of the ``bins`` values h of one block: ``l2`` h / sqrt(|h|_2^2 +
      eps^2), ``l1`` h / (|h|_1 + eps), ``none`` raw magnitudes. An empty block
      stays 0.
    scale: factor on everything.
    eps: guards the division, in units of magnitude.

  Returns:
    float32 [n, blocks * bins]: blocks row by row, the bins of a block together.

  Raises:
    DataError: not images, a block larger than the image, an unknown norm.
  """
  if images.ndim not in (3, 4) or images.ndim == 4 and (
      images.shape[3] not in (1, 3)):
    raise DataError(
        f"`features`=hog needs images [n, H, W, 1 or 3], the data has shape"
        f" {images.shape}")
  height, width = images.shape[1:3]
  if not 1 <= block <= min(height, width) or stride < 1 or bins < 1:
    raise DataError(
        f"`hog_block`={block} `hog_stride`={stride} `hog_bins`={bins}: a block"
        f" must fit in {height} x {width} pixels and all must be >= 1")
  if norm not in HOG_NORMS:
    raise DataError(
        f"`hog_norm`={norm}: unknown, allowed: {', '.join(HOG_NORMS)}")
  # Block sums are one product with a 0/1 matrix [H * W, blocks].
  membership = np.kron(_windows(height, block, stride),
                       _windows(width, block, stride)).T
  blocks = membership.shape[1]
  out = np.empty((len(images), blocks, bins), np.float32)
  for start in range(0, len(images), _CHUNK):
    grey = _grey(images[start:start + _CHUNK])
    votes = _votes(grey, bins).reshape(-1, height * width)
    sums = (votes @ membership).reshape(len(grey), bins, blocks)
    out[start:start + _CHUNK] = sums.transpose(0, 2, 1)
  if norm == "l2":
    squares = np.einsum("nkb,nkb->nk", out, out)
    out /= np.sqrt(squares + np.float32(eps)**2)[..., None]
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
  """[n, bins, H, W]: each pixel's magnitude in the plane of its angle."""
  dx, dy = np.zeros_like(grey), np.zeros_like(grey)
  np.subtract(grey[:, :, 2:], grey[:, :, :-2], out=dx[:, :, 1:-1])
  np.subtract(grey[:, 2:], grey[:, :-2], out=dy[:, 1:-1])
  angle = np.arctan2(dy, dx) * np.float32(bins / (2 * np.pi))
  plane = np.floor(angle).astype(np.int8 if bins < 128 else np.int32)
  # arctan2 is in [-pi, pi]: planes below 0 are those of angles past pi.
  plane = np.where(plane < 0, plane + bins, plane).astype(np.intp)
  votes = np.zeros((len(grey), bins, *grey.shape[1:]), np.float32)
  np.put_along_axis(votes, plane[:, None], np.hypot(dx, dy)[:, None], axis=1)
  return votes
