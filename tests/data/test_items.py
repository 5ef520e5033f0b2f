"""Items of data sets like torch's: what is read, and what is one line."""

import decimal
import re
import tracemalloc

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import items
from tests.each import each

N = 6
NUMBERS = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
LABELS = np.arange(N) % 3


class Items:
  """As torch's data sets are, without torch."""

  def __init__(self, x=NUMBERS, y=LABELS, length=N, fails=None, **attributes):
    self.x, self.y, self.length, self.fails = x, y, length, fails
    self.__dict__.update(attributes)

  def __len__(self):
    if isinstance(self.length, Exception):
      raise self.length
    return self.length

  def __getitem__(self, row):
    if row == self.fails:
      raise RuntimeError("cannot decode")
    return self.x[row], self.y[row]


class Tensor:
  """As a tensor of torch, which has a gradient and may be in bfloat16."""

  def __init__(self, array, dtype="torch.float32", ready=False):
    self.array, self.dtype, self.ready = array, dtype, ready

  def detach(self):
    return Tensor(self.array, self.dtype, ready=True)

  def cpu(self):
    return self

  def float(self):
    return Tensor(self.array, ready=self.ready)

  def __array__(self, dtype=None, copy=None):
    if not self.ready or self.dtype == "torch.bfloat16":
      raise RuntimeError("Can't call numpy() on this Tensor")
    return np.asarray(self.array, dtype)


class Subset:
  """As torch.utils.data.Subset."""

  def __init__(self, dataset, rows):
    self.dataset, self.rows = dataset, rows

  def __len__(self):
    return len(self.rows)

  def __getitem__(self, row):
    return self.dataset[self.rows[row]]


class Brittle:
  """A value that cannot become an array."""

  def __array__(self, dtype=None, copy=None):
    raise RuntimeError("no memory")


def but_last(values, last):
  return [*values[: N - 1], last]


@each(
  "dataset, options, error",
  [
    (Items(length=0), {}, "^dataset: an Items without items$"),
    (
      Items(length=N + 3),
      {},
      "^dataset: item 6 of 9 .its len. cannot be read, "
      "IndexError: index 6 is out of bounds",
    ),
    (Items(length=-1), {}, "^dataset: its length cannot be read, ValueError: "),
    (
      Items(length=NotImplementedError()),
      {},
      "^dataset: its length cannot be read, NotImplementedError",
    ),
    (
      Items(fails=4),
      {},
      "^dataset: item 4 of 6 .its len. cannot be read, Runti"
      "meError: cannot decode, .*test_items.py line ",
    ),
    (None, {}, "^dataset: a NoneType, must have __len__ and __getitem__$"),
    ({1, 2}, {}, "^dataset: a set, must have __len__ and __getitem__$"),
    (Items(), dict(test=Items(length=0)), "^test: an Items without items$"),
    (Items(), dict(test=Items(fails=0)), "^test: item 0 of 6"),
    (Items(), dict(x=None), "^x: a NoneType, must be the name of a column"),
    (Items(), dict(y=[]), r"^y: \[\], names no column$"),
    (Items(), dict(x=[0, 1, 0], y=1), "^x: names column 0 twice"),
    (Items(), dict(x={"a": [1, 1]}, y=1), "^x: a names column 1 twice"),
    (Items(), dict(y=7), "^dataset: its items have no 7 .item 0 is a tuple.$"),
    (Items(), dict(nam="a"), "^nam: no option of from_torch, did you mean 'name'"),
    (Items(), dict(test=Items(), x_test=NUMBERS), "^x_test: comes from test, "),
    (Items(), dict(x=[0], y=1), r"^x: column 0 has rows of shape .2,., a list"),
    (Items(y=but_last(LABELS, None)), {}, "items' 1: row 5 is missing .None.$"),
    (Items(y=but_last(LABELS, {})), {}, "items' 1: row 5 is a dict, a number"),
    (
      Items(y=but_last(LABELS, "c")),
      {},
      "items' 1 have different kinds, numbers in row 0 and texts in row 5$",
    ),
    (
      Items(x=but_last(NUMBERS, NUMBERS[0, :1])),
      {},
      "items' 0 have different shapes, .2,. in row 0 and .1,. in row 5$",
    ),
    (
      Items(x=but_last(NUMBERS, np.zeros(2, np.uint8))),
      {},
      "items' 0 have different kinds, numbers in row 0 and uint8 in row 5$",
    ),
    (
      Items(x=but_last(NUMBERS, Brittle())),
      {},
      "items' 0: row 5 cannot be read, RuntimeError: no memory",
    ),
    (
      Items(x=but_last(NUMBERS, np.ma.array([1, 2], mask=[0, 1]))),
      {},
      "items' 0: row 5 has masked values$",
    ),
    (
      Items(x=but_last(NUMBERS, [1, [2, 3]])),
      {},
      "items' 0: row 5 cannot be read, ValueError: ",
    ),
    (Items(x=but_last(NUMBERS, [[1], [2, 3]])), {}, "row 5 has parts of diff"),
    (
      Items(x=np.arange(N).astype("datetime64[D]")[:, None]),
      {},
      "^x: column 0 is datetime64.D., numbers are needed$",
    ),
  ],
)
def test_what_cannot_be_read_is_one_line(dataset, options, error):
  """Each was a traceback, or was read as something else."""
  with pytest.raises(fa.DataError, match=error):
    fa.from_torch(dataset, **options)


@pytest.mark.parametrize(
  "row",
  [
    lambda array: Tensor(array),
    lambda array: Tensor(array, "torch.bfloat16"),
    lambda array: array.tolist(),
    lambda array: [Tensor(entry) for entry in array],
    lambda array: [decimal.Decimal(float(entry)) for entry in array],
  ],
)
def test_rows_of_many_types_are_read(row):
  """Tensors with gradients, of bfloat16 or in lists were tracebacks."""
  x = fa.from_torch(Items(x=[row(array) for array in NUMBERS])).x_train
  np.testing.assert_array_equal(x, NUMBERS)


def test_texts_are_the_classes_of_the_training_items():
  """By its own texts the test set would number them from 0."""
  texts = np.array(["a", "b", "c"])[LABELS]
  late = LABELS > 0
  test = Items(NUMBERS[late], texts[late], late.sum())
  examples = fa.from_torch(Items(y=texts), test=test)
  np.testing.assert_array_equal(examples.y_train, LABELS)
  np.testing.assert_array_equal(examples.y_test, LABELS[late])
  with pytest.raises(
    fa.DataError,
    match="^y_test: has 'b' in row 0, which is "
    "none of the 2 names of the training examples .a, c.: leave",
  ):
    fa.from_torch(Items(y=np.where(texts == "b", "a", texts)), test=test)


def classes(names, **attributes):
  return Items(class_to_idx={name: i for i, name in enumerate(names)}, **attributes)


def test_all_classes_count_that_a_data_set_names():
  for dataset in (classes("abcde"), Subset(classes("abcde"), range(5))):
    assert fa.from_torch(dataset).num_classes == 5
  for dataset in (classes("ab"), classes("abcde", target_transform=len)):
    assert fa.from_torch(dataset).num_classes == 3


@each(
  "train, test, error",
  [
    ("abc", "bca", "^test: class 0 is 'b', in dataset it is 'a' .by class_to_"),
    ("abc", "bc", "^test: class 0 is 'b', in dataset it is 'a'"),
    ("abc", "abz", "^test: class 2 is 'z', in dataset it is 'c'"),
    ("abc", "abca", "^test: class 3 is 'a', in dataset it is 'none'"),
    ("abc", "ab", None),
    ("abc", "abcd", None),
    ("abc", "", None),
    ("", "bca", None),
  ],
)
def test_a_class_has_one_number(train, test, error):
  """A folder that lacks a class numbers the others anew, without a word."""
  datasets = [classes(names) if names else Items() for names in (train, test)]
  if error is None:
    assert fa.from_torch(datasets[0], test=datasets[1]).num_classes == 3
    return
  for test_items in (datasets[1], Subset(datasets[1], range(N))):
    with pytest.raises(fa.DataError, match=error):
      fa.from_torch(datasets[0], test=test_items)


def test_images_of_pil_have_their_channels_last():
  pil = pytest.importorskip("PIL.Image", reason="the package PIL is missing")
  arrays = np.random.default_rng(0).integers(0, 256, (N, 4, 5, 3)).astype(np.uint8)
  for x in (
    pil_images := [pil.fromarray(array) for array in arrays],
    np.moveaxis(arrays, -1, 1),
  ):
    examples = fa.from_torch(Items(x=x), channels_first=True)
    np.testing.assert_array_equal(examples.x_train, arrays)
  colors = [image.convert("P") for image in pil_images]
  np.testing.assert_array_equal(
    fa.from_torch(Items(x=colors)).x_train,
    [np.asarray(image.convert("RGB")) for image in colors],
  )


def test_names_are_listed_once():
  assert items.names_in({"a": "x", "b": ["y", "x"]}, None, 3) == ["x", "y", 3]


def test_all_faults_of_items_are_one_error():
  """Of both data sets; a bad field does not hide the others."""
  good = [{"x": [0.5, 1.0], "y": 1, "who": "anna"} for _ in range(4)]
  train = [dict(item) for item in good]
  train[1]["x"], train[3]["y"] = [0.5], None
  test = [{"x": [1.0, 2.0]} for _ in range(3)]
  with pytest.raises(fa.DataError) as error:
    fa.from_torch(train, x="x", y="y", client="who", test=test)
  for place, text in enumerate(
    (
      "dataset: the items' 'x' have different shapes, .2,. in row 0 and .1,. in row 1",
      "dataset: the items' 'y': row 3 is missing",
      "test: its items have no 'y'",
      "test: its items have no 'who'",
    ),
    1,
  ):
    assert re.search(rf"\({place}\) {text}", str(error.value))
  assert fa.from_torch(good, x="x", y="y", client="who").x_train.shape == (4, 2)


def test_rows_become_one_array_without_a_copy_of_all():
  """A list of arrays and their stack were twice the data."""
  rows, n = 2**20, 32

  class Large:
    def __len__(self):
      return n

    def __getitem__(self, place):
      if not 0 <= place < n:
        raise IndexError(place)
      return np.full(rows, place, np.uint8), place % 2

  tracemalloc.start()
  try:
    examples = fa.from_torch(Large())
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert (examples.x_train[:, 0] == np.arange(n)).all()
  assert peak < 1.25 * n * rows


def test_rows_of_several_dtypes_have_the_dtype_that_numpy_gives_them():
  values = [np.uint8([1]), np.int16([-3]), np.float32([0.5]), np.int8([4])]
  stacked = items.stack_rows(values, "`x`: rows", False)
  np.testing.assert_array_equal(stacked, np.stack(values))
  assert stacked.dtype == np.stack(values).dtype


def test_rows_that_do_not_fit_are_refused_at_the_first(monkeypatch):
  seen = []

  class Endless:
    def __len__(self):
      return 10**9

    def __getitem__(self, place):
      seen.append(place)
      return np.zeros(10**6, np.uint8), 0

  with pytest.raises(fa.DataError, match="^dataset: the items' 0: .* needs 931,323 GB"):
    fa.from_torch(Endless(), y=0)
  assert seen == [0]
