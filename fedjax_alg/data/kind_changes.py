"""What the kinds of clients do to their examples, parts of the option `kinds`."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools
import math
from typing import Any, ClassVar

import jax
import numpy as np

from fedjax_alg import own, tasks
from fedjax_alg.data import store
from fedjax_alg.data.boundaries import label_by_concept
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples, check_memory
from fedjax_alg.data.features import none as as_float32
from fedjax_alg.data.kinds import STREAM
from fedjax_alg.data.npy_rows import ComputedRows
from fedjax_alg.data.partition import Partition
from fedjax_alg.errors import FAILURES, OptionError, describe_error
from fedjax_alg.hparams import OWN_CODE, hyper
from fedjax_alg.part import Part

#: (x [n, ...], y [n, ...], kind, key or what ``Kinds.draws`` makes of it)
#: -> x [n, ...], y [n, ...]
KindFn = Callable[[Any, Any, int, Any], tuple[Any, Any]]
#: How many of the examples a kind has.
KIND_DATA = ("split", "all")
#: The most kinds of a function.
_MOST = 10_000
#: Of rows in files, which are changed at once.
_PART_BYTES = 2**24


class Kinds(Part):
  """How clients differ in kind."""

  CHANGES: ClassVar[bool] = True  #: whether kinds change the examples of a data set
  ONE_EACH: ClassVar[bool] = False  #: whether every client is of another kind
  LABELS_ONLY: ClassVar[bool] = False  #: whether kinds differ in their labels alone
  BY_ROW: ClassVar[bool] = True  #: whether the examples of a kind may come in parts

  @property
  def label(self) -> str:
    """The option as messages name it."""
    return f"`kinds`={self}"

  @property
  def names(self) -> tuple[str, ...]:
    """The K kinds; empty if the data, the shares or the clients say how many."""
    return ()

  @property
  def weights(self) -> tuple[float, ...] | None:
    """The shares of the clients that are of each kind; None: equal ones."""
    return None

  @property
  def all_examples(self) -> bool:
    """Whether each kind has all examples."""
    return False

  def source(self) -> own.Source | None:
    """The file of a function of the user's own; None: it is none."""
    return None

  def with_equal_shares(self) -> Any:
    """The same kinds, each of as many clients."""
    return self

  def count(self) -> int:
    """Counts the kinds that are named, or else the shares.

    Raises:
      DataError: neither says how many kinds there are.
    """
    number = len(self.names) or len(self.weights or ())
    if not number:
      raise DataError(
        f"{self.label}: the number of kinds is missing, give `number` or `shares`"
      )
    return number

  def check_shares(self, number: int, label: str) -> None:
    """Checks that each kind has a share.

    Args:
      number: K.
      label: what the kinds are of, for messages.

    Raises:
      DataError: there are more or fewer shares than kinds.
    """
    if self.weights is not None and len(self.weights) != number:
      raise DataError(
        f"{self.label}: {len(self.weights)} shares, {number} are needed, one for each "
        f"kind of {label}"
      )

  def make_function(
    self, examples: Examples, number: int, seed: int, is_image: bool
  ) -> KindFn:
    """Makes the function of the kinds, for these data.

    Args:
      examples: the data set.
      number: one more than the largest kind.
      seed: of the permutations.
      is_image: see ``change_examples``.

    Raises:
      DataError: the data cannot be changed so.
    """
    raise NotImplementedError

  def draws(self, key: Any) -> Any:
    """Makes what the function draws from, for all examples of a kind."""
    return key


class _SharedKinds(Kinds, kw_only=True):
  """Kinds of several clients each."""

  shares: str = hyper(
    "",
    "shares of the clients that are of each kind, numbers above 0 with : between "
    "them, such as 2:1:1; empty = equal shares. Which clients they are is drawn by "
    "`partition_seed`",
    numbers=":",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    try:
      weights = self.weights or ()
    except ValueError:
      weights = (0.0,)
    if not all(0 < weight < math.inf for weight in weights):
      raise OptionError(
        f"{self.WORD}: shares={self.shares}: must be numbers above 0 with : between "
        "them"
      )
    if weights and self.names and len(weights) != len(self.names):
      raise OptionError(
        f"{self.WORD}: shares={self.shares}: {len(weights)} shares, "
        f"{len(self.names)} are needed, one for each kind"
      )

  @property
  def weights(self) -> tuple[float, ...] | None:
    """The shares of the clients that are of each kind; None: equal ones."""
    return tuple(map(float, self.shares.split(":"))) if self.shares else None

  def with_equal_shares(self) -> Any:
    """The same kinds, each of as many clients."""
    return dataclasses.replace(self, shares="")


class NaturalKinds(_SharedKinds):
  """The kinds that the data bring, if they do; else clients do not differ in kind."""

  WORD, EXAMPLE = "natural", "natural:shares=2:1"
  CHANGES = False


class _ChangedKinds(_SharedKinds, kw_only=True):
  """Kinds that change the examples of one data set."""

  data: str = hyper(
    "split",
    "examples that a kind has: split = every example belongs to a client of one kind, "
    "all = each kind has all examples, for training and for testing, which are dealt "
    "to its clients; K times as many in all",
    choices=KIND_DATA,
    source="all: IFCA's rotated MNIST",
  )

  @property
  def all_examples(self) -> bool:
    """Whether each kind has all examples."""
    return self.data == "all"


def _check_numbers(label: str, examples: Examples, needs: str) -> None:
  """Refuses examples that are no array of real numbers.

  Raises:
    DataError: they are several arrays, or tokens.
  """
  x = examples.x_train
  if isinstance(x, dict) or x.dtype.kind == "i":
    content = "several arrays" if isinstance(x, dict) else "whole numbers (tokens)"
    raise DataError(
      f"{label}: needs {needs}, the examples of {examples.name} are {content}"
    )


class RotatedKinds(_ChangedKinds):
  """A kind for each angle, with images rotated counterclockwise."""

  WORD, EXAMPLE = "rotate", "rotate:0,90,180,270"

  degrees: tuple[float, ...] = hyper(
    dataclasses.MISSING, "the angles in degrees, one for each kind"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.degrees:
      raise OptionError(f"{self.WORD}: degrees is missing, must be {self.EXAMPLE}")
    if len({angle % 360 for angle in self.degrees}) < len(self.degrees):
      raise OptionError(
        f"{self.WORD}: degrees={self.degrees}: two angles are the same rotation"
      )

  @property
  def names(self) -> tuple[str, ...]:
    """The angles."""
    return tuple(repr(angle).removesuffix(".0") for angle in self.degrees)

  def make_function(self, examples, number, seed, is_image):
    """Makes the function that rotates (``Kinds.make_function``)."""
    _check_numbers(self.label, examples, "images")
    shape: tuple[int, ...] = examples.x_train.shape[1:]
    pixels = shape
    if is_image and len(shape) == 1:
      side = math.isqrt(shape[0])
      pixels = (side, side) if side**2 == shape[0] else shape
    if len(pixels) not in (2, 3):
      hint = "" if is_image else " (`features`=images makes images of flat pixels)"
      raise DataError(
        f"{self.label}: needs images, the examples of {examples.name} have shape "
        f"{shape}{hint}"
      )
    quarter = any(degrees % 180 == 90 for degrees in self.degrees)
    if quarter and pixels[0] != pixels[1]:
      raise DataError(
        f"{self.label}: a quarter turn needs square images, those of "
        f"{examples.name} are {pixels[0]} x {pixels[1]}"
      )

    def rotate(x: Any, y: Any, kind: int, key: Any) -> tuple[Any, Any]:
      del key
      images = x.reshape(len(x), *pixels)
      return rotate_images(images, self.degrees[kind]).reshape(x.shape), y

    return rotate


class _NumberedKinds(_ChangedKinds):
  """So many kinds, which differ in their labels alone."""

  LABELS_ONLY = True

  number: int = hyper(
    dataclasses.MISSING, "K, number of kinds", minimum=1, maximum=_MOST
  )

  @property
  def names(self) -> tuple[str, ...]:
    """The numbers from 0."""
    return tuple(map(str, range(self.number)))


class PermutedLabels(_NumberedKinds):
  """Each kind has a permutation of the labels, the first the identity."""

  WORD, EXAMPLE = "permute", "permute:4"

  def make_function(self, examples, number, seed, is_image):
    """Makes the function that permutes labels (``Kinds.make_function``)."""
    task, classes = tasks.of(examples), examples.num_classes
    if not task.has_classes:
      raise DataError(f"{self.label}: permutes classes, `task`={task.name} has none")
    if classes <= 10 and self.number > math.factorial(classes):
      raise DataError(
        f"{self.label}: {classes} classes have {math.factorial(classes)} permutations"
      )
    permutations = draw_permutations(self.number, classes, seed)

    def permute(x: Any, y: Any, kind: int, key: Any) -> tuple[Any, Any]:
      del key
      return x, permutations[kind][y].astype(y.dtype)

    return permute


class BoundaryKinds(_NumberedKinds):
  """Each kind has another boundary between the classes of sine2, circle2 or sea4."""

  WORD, EXAMPLE = "boundaries", "boundaries:2"

  def make_function(self, examples, number, seed, is_image):
    """Makes the function that labels points (``Kinds.make_function``)."""
    return lambda x, y, kind, key: (x, label_by_concept(examples.name, x, y, kind))


class _Noise(Kinds):
  """Gaussian noise of another level at each client."""

  ONE_EACH = True

  def _levels(self, number: int) -> np.ndarray:
    """[C], the standard deviation at each client."""
    raise NotImplementedError

  def make_function(self, examples, number, seed, is_image):
    """Makes the function that adds noise (``Kinds.make_function``)."""
    _check_numbers(self.label, examples, "real numbers")
    levels = self._levels(number)

    def add_noise(x: Any, y: Any, kind: int, rng: Any) -> tuple[Any, Any]:
      if levels[kind] == 0:
        return x, y
      noise = rng.standard_normal(x.shape, np.float32)
      return as_float32(x) + np.float32(levels[kind]) * noise, y

    return add_noise

  def draws(self, key):
    """A generator, which goes on from one part of the examples to the next."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


class NoisyInputs(_Noise):
  """Gaussian noise of variance V (i + 1) / C at client i, as in NIID-Bench's paper."""

  WORD, EXAMPLE = "noise", "noise:0.1"

  variance: float = hyper(dataclasses.MISSING, "V, the largest variance", minimum=0)

  def _levels(self, number: int) -> np.ndarray:
    levels: np.ndarray = np.sqrt(self.variance * np.arange(1, number + 1) / number)
    return levels


class NoisyInputsByDeviation(_Noise):
  """Gaussian noise of deviation D i / (C - 1) at client i, as in NIID-Bench's code."""

  WORD, EXAMPLE = "noise_std", "noise_std:0.1"

  deviation: float = hyper(
    dataclasses.MISSING, "D, the largest standard deviation", minimum=0
  )

  def _levels(self, number: int) -> np.ndarray:
    levels: np.ndarray = self.deviation * np.arange(number) / max(number - 1, 1)
    return levels


class SourceKinds(_SharedKinds):
  """A data set of images for each kind, instead of `dataset`."""

  WORD, EXAMPLE = "sources", "sources:mnist,fashion_mnist"
  CHANGES = False

  datasets: tuple[str, ...] = hyper(
    dataclasses.MISSING, "names of data sets of images, one for each kind"
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not all(self.datasets) or not self.datasets:
      raise OptionError(f"{self.WORD}: datasets is missing, must be {self.EXAMPLE}")
    if len(set(self.datasets)) < len(self.datasets):
      raise OptionError(f"{self.WORD}: datasets names a data set twice")

  @property
  def names(self) -> tuple[str, ...]:
    """The names of the data sets."""
    return self.datasets


class OwnKinds(_ChangedKinds):
  """Your function (x, y, kind, key) -> x, y, of K kinds.

  It is loaded when this is made.

  Raises:
    OptionError: it cannot be loaded.
    DataError: it is no function.
  """

  WORD, EXAMPLE = OWN_CODE, "my_kinds.py:shift,3"
  BY_ROW = False

  function: str = hyper(dataclasses.MISSING, f"the name of the function, {own.FORMS}")
  number: int | None = hyper(
    None, "K, number of kinds; none = as many as `shares`", minimum=1, maximum=_MOST
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    own.refuse_nameless(self.function, "kinds")
    self._load()

  def _load(self) -> KindFn:
    function, _ = own.load(self.function, "kinds")
    if not callable(function):
      raise DataError(
        f"{self.label}: no function (x, y, kind, key) -> x, y, but "
        f"{type(function).__name__}"
      )
    result: KindFn = function
    return result

  @property
  def names(self) -> tuple[str, ...]:
    """The numbers from 0."""
    return tuple(map(str, range(self.number or 0)))

  def source(self) -> own.Source:
    """The file that defines the function."""
    return own.load(self.function, "kinds")[1]

  def make_function(self, examples, number, seed, is_image):
    """Makes the user's function; its errors are said in one line."""
    function = self._load()

    def call(x: Any, y: Any, kind: int, key: Any) -> tuple[Any, Any]:
      try:
        result: tuple[Any, Any] = function(x, y, kind, key)
      except OptionError:
        raise
      except FAILURES as error:  # whatever the user's code raises
        raise DataError(
          f"{self.label}: of kind {kind} failed, {describe_error(error)}"
        ) from error
      return _checked(f"{self.label}: of kind {kind}", (x, y), result, examples)

    return call


#: How clients may differ in kind.
Choice = (
  NaturalKinds
  | RotatedKinds
  | PermutedLabels
  | NoisyInputs
  | NoisyInputsByDeviation
  | SourceKinds
  | BoundaryKinds
  | OwnKinds
)


def change_examples(
  change: Kinds,
  examples: Examples,
  partition: Partition,
  kinds: np.ndarray,
  seed: int,
  is_image: bool = False,
) -> Examples:
  """Applies to each row what the kind of its client does.

  Args:
    change: the option `kinds`.
    examples: the data set, before any features.
    partition: all clients, before any are held out.
    kinds: [C] int32, the kind of each client.
    seed: seed of all that is random.
    is_image: whether vectors are the pixels of square images.

  Returns:
    The examples. Rows that no client has are as they were.

  Raises:
    DataError: the data cannot be changed so, or a function of the user's own
      fails or returns something else.
  """
  if not change.CHANGES:
    return examples
  n, m = examples.rows
  train, test = (np.full(rows, -1, np.int32) for rows in (n, m))
  if partition.pooled:
    train = test = np.full(n + m, -1, np.int32)
  train[partition.train_order] = np.repeat(kinds, partition.train_size)
  test[partition.test_order] = np.repeat(kinds, partition.test_size)
  if partition.pooled:
    train, test = train[:n], train[n:]
  return change_rows(
    change, examples, (train, test), int(kinds.max()) + 1, seed, is_image
  )


def change_rows(
  change: Kinds,
  examples: Examples,
  kinds_of_rows: tuple[np.ndarray, np.ndarray],
  number: int,
  seed: int,
  is_image: bool = False,
) -> Examples:
  """Applies to each row what its kind does.

  Args:
    change: the option `kinds`, which changes the examples.
    examples: the data set, before any features.
    kinds_of_rows: [n] and [m] int32, the kind of each row for training and for
      testing; -1: the row stays as it is.
    number: one more than the largest kind.
    seed: seed of all that is random.
    is_image: whether vectors are the pixels of square images.

  Returns:
    The examples.

  Raises:
    DataError: see ``change_examples``.
  """
  function = change.make_function(examples, number, seed, is_image)
  key = jax.random.fold_in(jax.random.key(seed), STREAM)

  def draws(kind: int, split: int) -> Any:
    return change.draws(jax.random.fold_in(jax.random.fold_in(key, kind), split))

  x, y = (examples.x_train, examples.x_test), (examples.y_train, examples.y_test)
  apply = _change_in_files if store.is_in_files(x) else _change_in_memory
  rows = [_rows_of_kinds(of_row) for of_row in kinds_of_rows]
  (x_train, y_train), (x_test, y_test) = apply(
    function, draws, x, y, rows, change.LABELS_ONLY
  )
  return dataclasses.replace(
    examples, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test
  )


def _rows_of_kinds(of_row: np.ndarray) -> dict[int, np.ndarray]:
  """The rows of each kind that has any, rising; those of kind -1 come first."""
  order = np.argsort(of_row, kind="stable")
  kinds, first = np.unique(of_row[order], return_index=True)
  return dict(zip(kinds.tolist(), np.split(order, first[1:]))) if len(order) else {}


def _take(tree: Any, rows: np.ndarray) -> Any:
  return store.map_arrays(lambda array: array[rows], tree)


def _change_in_memory(
  function: KindFn,
  draws: Callable[[int, int], Any],
  x: tuple[Any, Any],
  y: tuple[Any, Any],
  rows_of: list[dict[int, np.ndarray]],
  labels_only: bool,
) -> list[tuple[Any, Any]]:
  """x and y of both splits, changed.

  Args:
    function: what the kinds do.
    draws: (kind, split) -> what the function draws from.
    x: the examples for training and for testing.
    y: their targets.
    rows_of: of each split the rows of each kind.
    labels_only: whether x stays.
  """
  results: list[list[Any]] = [[], []]
  for split, parts in enumerate(results):
    for kind, rows in rows_of[split].items():
      if kind >= 0:
        before = _take(x[split], rows), _take(y[split], rows)
        parts.append((rows, function(*before, kind, draws(kind, split))))
  # uint8 becomes float32 everywhere if it does so anywhere.
  bytes_stay = all(
    array.dtype == np.uint8
    for parts in results
    for _, (x_after, _) in parts
    for array in store.arrays(x_after)
  )
  return [
    (
      x[split]
      if labels_only
      else _put(x[split], [(rows, after[0]) for rows, after in parts], bytes_stay),
      _put(y[split], [(rows, after[1]) for rows, after in parts], True),
    )
    for split, parts in enumerate(results)
  ]


def _change_in_files(
  function: KindFn,
  draws: Callable[[int, int], Any],
  x: tuple[Any, Any],
  y: tuple[Any, Any],
  rows_of: list[dict[int, np.ndarray]],
  labels_only: bool,
) -> list[tuple[Any, Any]]:
  """``_change_in_memory`` of rows in files, some of a kind at a time."""
  step = max(1, _PART_BYTES // (4 * max(1, math.prod(x[0].shape[1:]))))

  def parts(split: int, most: int | None) -> Iterator[Any]:
    for kind, rows in rows_of[split].items():
      of_kind = draws(kind, split) if kind >= 0 else None
      for begin in range(0, len(rows[:most]), step):
        part = rows[:most][begin : begin + step]
        after = _take(x[split], part), _take(y[split], part)
        if kind >= 0:
          after = function(*after, kind, of_kind)
        yield part, after

  dtype = x[0].dtype  # one row of each kind tells that of the changed rows
  firsts = (after[0] for split in (0, 1) for _, after in parts(split, 1))
  if dtype == np.uint8 and any(first.dtype != np.uint8 for first in firsts):
    dtype = np.dtype(np.float32)
  results = []
  for split in (0, 1):
    x_after = x[split] if labels_only else ComputedRows(x[split].shape, dtype)
    y_after = store.map_arrays(np.copy, y[split])
    for part, after in parts(split, None):
      if not labels_only:
        x_after.write(part, as_float32(after[0]) if dtype == np.float32 else after[0])
      for array, changed in zip(store.arrays(y_after), store.arrays(after[1])):
        array[part] = changed
    results.append((x_after, y_after))
  return results


def _put(tree: Any, parts: list[tuple[np.ndarray, Any]], bytes_stay: bool) -> Any:
  """The arrays with other rows in their places."""

  def put(array: np.ndarray, *after: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8 and not bytes_stay:
      array, after = as_float32(array), tuple(map(as_float32, after))
    result = array.copy()
    for (rows, _), values in zip(parts, after):
      result[rows] = values
    return result

  return store.map_arrays(put, tree, *(after for _, after in parts))


def _checked(
  label: str, before: Any, after: Any, examples: Examples
) -> tuple[Any, Any]:
  """What the function of a kind returned, as arrays like those it was given."""
  if not isinstance(after, tuple) or len(after) != 2:
    raise DataError(f"{label} returned {type(after).__name__}, must return x and y")
  structure: Any = jax.tree.structure(before)
  if jax.tree.structure(after) != structure:
    raise DataError(f"{label} returned other arrays than x and y")
  trees = []
  for name, old_tree, new_tree in zip("xy", before, after):

    def check(old: np.ndarray, new: Any, name: str = name) -> np.ndarray:
      try:
        new = own.real_array(new)
      except ValueError as error:
        raise DataError(f"{label} returned {name} of {error}") from None
      if new.shape != old.shape:
        raise DataError(
          f"{label} returned {name} of shape {new.shape}, must be {old.shape}"
        )
      are_bytes = old.dtype == np.uint8 and new.dtype.kind in "iu"
      if name == "x" and old.dtype.kind != "i" and not are_bytes:
        result: np.ndarray = new if new.dtype == old.dtype else new.astype(np.float32)
      else:
        result = new.astype(old.dtype)
      if result.dtype.kind == "f" and not np.isfinite(result).all():
        raise DataError(f"{label} returned NaN or infinite {name}")
      if result.dtype.kind != "f" and (result != new).any():
        if are_bytes:
          raise DataError(
            f"{label} returned {name} in [{new.min()}, {new.max()}], whole numbers of "
            "images must lie in [0, 255]"
          )
        raise DataError(f"{label} returned {name} that are no whole numbers")
      return result

    trees.append(store.map_arrays(check, old_tree, new_tree))
  x, y = trees
  if tasks.of(examples).has_classes and not (
    0 <= y.min() <= y.max() < examples.num_classes
  ):
    raise DataError(
      f"{label} returned labels in [{y.min()}, {y.max()}], must lie in "
      f"[0, {examples.num_classes})"
    )
  return x, y


def draw_permutations(number: int, classes: int, seed: int) -> np.ndarray:
  """Draws different permutations of labels, the first the identity.

  Args:
    number: K.
    classes: L, with L! >= K.
    seed: seed of the draw.

  Returns:
    [K, L] int32; fewer kinds have the first of these.
  """
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, 1)))
  if classes <= 6:  # few enough to list, and a draw might not end
    every = list(itertools.permutations(range(classes)))
    others = rng.permutation(len(every) - 1)[: number - 1] + 1
    return np.array([every[0], *(every[i] for i in others)], np.int32)
  permutations = {tuple(range(classes)): None}
  while len(permutations) < number:
    permutations.setdefault(tuple(rng.permutation(classes).tolist()))
  return np.array(list(permutations), np.int32)


def rotate_images(x: np.ndarray, degrees: float) -> np.ndarray:
  """Rotates images counterclockwise, without changing their shape.

  Args:
    x: [n, H, W] or [n, H, W, c], uint8 or float32.
    degrees: the angle. Multiples of 90 move pixels, which is exact, and need
      H = W but for multiples of 180; others interpolate linearly, with zeros
      outside, and round uint8.

  Returns:
    The images, of the same shape and dtype.
  """
  turns, remainder = divmod(degrees % 360, 90)
  if remainder == 0:
    turned: np.ndarray = np.ascontiguousarray(np.rot90(x, int(turns), axes=(1, 2)))
    return turned
  from scipy import ndimage  # slow to import, and read here alone

  rotated: np.ndarray = ndimage.rotate(
    x.astype(np.float32), degrees, axes=(2, 1), reshape=False, order=1
  )
  if x.dtype == np.uint8:
    rotated = np.clip(np.rint(rotated), 0, 255)
  result: np.ndarray = rotated.astype(x.dtype, copy=False)
  return result


def join_sources(change: Kinds, parts: Sequence[Examples]) -> Examples:
  """Makes one data set of several, a kind each, brought to one shape.

  Smaller images get a border of zeros on all sides, and gray images three equal
  channels beside those of colors. Images stay bytes if all of them are. A label
  keeps its number.

  Args:
    change: the option `kinds`.
    parts: the data sets, with images and classes.

  Returns:
    The data set with its rows one source after the other.

  Raises:
    DataError: a data set has no images or no classes.
  """
  for part in parts:
    shape: Any = () if isinstance(part.x_train, dict) else part.x_train.shape[1:]
    if len(shape) != 3 or shape[2] not in (1, 3) or not tasks.of(part).has_classes:
      raise DataError(f"{change.label}: needs images of classes, {part.name} has none")
  arrays: dict[str, Any] = {}
  if len(parts) > 1:
    shapes = np.array([part.x_train.shape[1:] for part in parts])
    are_bytes = all(part.x_train.dtype == np.uint8 for part in parts)

    def fit(x: Any) -> Any:
      x = x if are_bytes else as_float32(x)
      space = shapes.max(0)[:2] - x.shape[1:3]
      around = [(0, 0), *((gap // 2, gap - gap // 2) for gap in space), (0, 0)]
      channels = shapes[:, 2].max() // x.shape[3]
      return np.repeat(np.pad(x, around), channels, axis=3)

    arrays = {
      name: np.concatenate(
        [
          fit(getattr(part, name)) if name.startswith("x") else getattr(part, name)
          for part in parts
        ]
      )
      for name in ("x_train", "y_train", "x_test", "y_test")
    }
  kinds = [
    np.repeat(np.arange(len(parts), dtype=np.int32), [part.rows[i] for part in parts])
    for i in (0, 1)
  ]
  return dataclasses.replace(
    parts[0],
    **arrays,
    num_classes=max(part.num_classes for part in parts),
    name="+".join(part.name for part in parts),
    kind_train=kinds[0],
    kind_test=kinds[1],
    kind_names=tuple(part.name for part in parts),
  )


def repeat_for_kinds(change: Kinds, examples: Examples, seed: int) -> Examples:
  """Makes a data set of which each kind has all examples.

  Source: the rotated MNIST of IFCA (Ghosh et al. 2020), whose clusters have the
  60,000 images each, in an order of their own.

  Args:
    change: the option `kinds`, by which each kind has all examples.
    examples: the data set, without clients and kinds of its own.
    seed: seed of the orders of the second kind and those after it.

  Returns:
    K times the rows, those of one kind after those of another, as they are: what
    a kind does to them comes later.

  Raises:
    DataError: the data have clients or kinds of their own, or the number of kinds
      is not known.
  """
  label = f"{change.label}: data=all: not with {examples.name}, which"
  if examples.client_train is not None:
    raise DataError(f"{label} says the client of each example")
  if examples.kind_train is not None:
    raise DataError(f"{label} says the kind of each example")
  number = change.count()
  arrays = store.arrays((examples.x_train, examples.y_train, examples.x_test))
  check_memory(
    f"{change.label}: {number:,} times the examples",
    float(number) * sum(array.nbytes for array in arrays),
  )
  rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, 2)))
  fields: dict[str, Any] = {}
  for split, rows in zip(("train", "test"), examples.rows):
    order = np.concatenate(
      [np.arange(rows), *(rng.permutation(rows) for _ in range(number - 1))]
    )
    for name in (f"x_{split}", f"y_{split}"):
      fields[name] = store.map_arrays(
        lambda array, order=order: array[order], getattr(examples, name)
      )
    fields[f"kind_{split}"] = np.repeat(np.arange(number, dtype=np.int32), rows)
  return dataclasses.replace(
    examples, **fields, kind_names=change.names or tuple(map(str, range(number)))
  )
