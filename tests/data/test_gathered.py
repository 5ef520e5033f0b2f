"""Data sets of other libraries give what ``from_arrays`` gives."""

import numpy as np
import pytest

import fedjax_alg as fa

RNG = np.random.default_rng(0)
N = 24
IMAGES = RNG.integers(0, 255, (N, 6, 5, 3)).astype(np.uint8)
LABELS = np.arange(N) % 3
NAMES = np.array(["anna", "bert", "carla", "dora"])[np.arange(N) // 6]
NUMBERS = RNG.normal(size=(N, 2)).astype(np.float32)


def assert_same(examples, **arrays):
  """The examples are those of these arrays."""
  expected = fa.from_arrays(**arrays)
  for name, actual in vars(examples).items():
    if name not in ("name", "encoding"):
      np.testing.assert_equal(actual, getattr(expected, name), err_msg=name)


@pytest.fixture(scope="module", name="hf")
def fixture_hf():
  datasets = pytest.importorskip("datasets", reason="the package datasets is missing")
  from PIL import Image

  return datasets.Dataset.from_dict(
    {
      "image": [Image.fromarray(image) for image in IMAGES],
      "label": LABELS,
      "who": NAMES,
      "a": NUMBERS[:, 0],
      "b": NUMBERS[:, 1],
      "ragged": [[1] * (1 + i % 2) for i in range(N)],
    },
    features=datasets.Features(
      {
        "image": datasets.Image(),
        "who": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["x", "y", "z"]),
        "a": datasets.Value("float32"),
        "b": datasets.Value("float64"),
        "ragged": datasets.Sequence(datasets.Value("int32")),
      }
    ),
  )


def test_images_of_hugging_face(hf):
  assert_same(
    fa.from_hf(hf, x="image", y="label", client="who"),
    x=IMAGES,
    y=LABELS,
    client_ids=NAMES,
  )
  assert_same(
    fa.from_hf(hf, x=["b", "a"], y="label", test=hf, num_classes=4),
    x=NUMBERS[:, ::-1],
    y=LABELS,
    x_test=NUMBERS[:, ::-1],
    y_test=LABELS,
    num_classes=4,
  )


@pytest.mark.parametrize(
  "options, pattern",
  [
    (dict(x="img", y="label"), "dataset: has no column 'img' .it has image, "),
    (dict(x="ragged", y="label"), "rows of 'ragged' have different shapes"),
    (dict(x=["who"], y="label"), "x: column 'who' is <U5, numbers are need"),
  ],
)
def test_what_is_wrong_with_hugging_face_is_one_line(hf, options, pattern):
  with pytest.raises(fa.DataError, match=pattern):
    fa.from_hf(hf, **options)


def test_another_object_is_no_data_set():
  for make, pattern in (
    (lambda: fa.from_hf({"train": 1}, x="a", y="b"), "give one split"),
    (lambda: fa.from_torch(3), "must have __len__ and __getitem__"),
  ):
    with pytest.raises(fa.DataError, match=pattern):
      make()


class Items:
  """As torch's data sets are, without torch."""

  def __init__(self, *columns, names=None):
    self.columns, self.names = columns, names

  def __len__(self):
    return len(self.columns[0])

  def __getitem__(self, i):
    row = [column[i] for column in self.columns]
    return dict(zip(self.names, row)) if self.names else tuple(row)


def test_items():
  images = NUMBERS[:, :, None, None] * np.ones((1, 1, 4, 5), np.float32)
  items = Items(images, LABELS, NAMES)
  assert_same(
    fa.from_torch(items, client=2, test=items, channels_first=True),
    x=np.moveaxis(images, 1, -1),
    y=LABELS,
    client_ids=NAMES,
    x_test=np.moveaxis(images, 1, -1),
    y_test=LABELS,
    test_client_ids=NAMES,
  )
  named_items = Items(NUMBERS, LABELS, names=("pixels", "target"))
  assert_same(
    fa.from_torch(named_items, x="pixels", y="target", client=NAMES),
    x=NUMBERS,
    y=LABELS,
    client_ids=NAMES,
  )
  for options, pattern in (
    (dict(x="image"), "its items have no 'image'"),
    (dict(x=0), "the items' 0 have different shapes"),
  ):
    with pytest.raises(fa.DataError, match=pattern):
      fa.from_torch(Items([np.zeros(1), np.zeros(2)], [0, 1]), **options)


def test_tensors():
  torch = pytest.importorskip("torch", reason="the package torch is missing")
  data = torch.utils.data.TensorDataset(torch.tensor(NUMBERS), torch.tensor(LABELS))
  assert_same(fa.from_torch(data), x=NUMBERS, y=LABELS)
