"""Splits of the library ``datasets``: what their columns become.

Every test runs with a stand-in of the library, and with the library where it is
installed.
"""

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import memory
from fedjax_alg.data import hugging_face
from tests.data import stand_in
from tests.each import each

N = 12
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 6, 5, 3)).astype(np.uint8)
NUMBERS = RNG.normal(size=(N, 2)).astype(np.float32)
LABELS = np.arange(N) % 3


@pytest.fixture(scope="module", params=["stand_in", "datasets"], name="hub")
def fixture_hub(request):
  pytest.importorskip("PIL", reason="the package PIL is missing")
  if request.param == "stand_in":
    return stand_in
  library = pytest.importorskip("datasets", reason="the package datasets is missing")
  library.disable_progress_bars()
  return library


def table(hub, names="abc", **columns):
  """A split of rows v [2] with the labels 0, 1, 2 and further columns.

  A column is (values, feature).
  """
  columns = {
    "v": (NUMBERS.tolist(), hub.List(hub.Value("float32"))),
    "label": (LABELS, hub.ClassLabel(names=list(names))),
    **columns,
  }
  return hub.Dataset.from_dict(
    {name: values for name, (values, _) in columns.items()},
    features=hub.Features({name: kind for name, (_, kind) in columns.items()}),
  )


def images(hub, pictures):
  return table(hub, image=(pictures, hub.Image()))


def pil(mode=None, arrays=IMAGES):
  from PIL import Image

  pictures = [Image.fromarray(array) for array in arrays]
  return [picture.convert(mode) for picture in pictures] if mode else pictures


def test_a_transform_is_applied_once_to_every_row(hub):
  """Dropped, the stored columns would be read; its own would be missing."""
  seen = []

  def double(batch):
    seen.extend(batch["label"])
    return {
      "twice": [2 * np.asarray(row, np.float32) for row in batch["v"]],
      "label": batch["label"],
    }

  examples = fa.from_hf(table(hub, "abcd").with_transform(double), x="twice", y="label")
  np.testing.assert_array_equal(examples.x_train, 2 * NUMBERS)
  np.testing.assert_array_equal(examples.y_train, LABELS)
  assert examples.num_classes == 4 and len(seen) == N


def test_a_transform_may_give_channels_first(hub):
  def tensors(batch):
    return {
      "image": np.moveaxis(
        np.stack([np.asarray(image) for image in batch["image"]]), -1, 1
      ),
      "label": batch["label"],
    }

  examples = fa.from_hf(
    images(hub, pil()).with_transform(tensors),
    x="image",
    y="label",
    channels_first=True,
  )
  np.testing.assert_array_equal(examples.x_train, IMAGES)
  examples = fa.from_hf(images(hub, pil()), x="image", y="label", channels_first=True)
  np.testing.assert_array_equal(examples.x_train, IMAGES)


def test_palette_images_have_their_colors(hub):
  """Its numbers are no intensities; of targets they are classes."""
  colors = pil("P")
  expected = np.stack([np.asarray(image.convert("RGB")) for image in colors])
  classes = np.stack([np.asarray(image) for image in colors])
  dataset = images(hub, colors)
  examples = fa.from_hf(dataset, x="image", y="label")
  assert examples.x_train.dtype == np.uint8
  np.testing.assert_array_equal(examples.x_train, expected)
  examples = fa.from_hf(dataset, x="v", y="image", task="dense:255")
  np.testing.assert_array_equal(examples.y_train, classes)


def test_images_of_16_bits_lie_in_the_range_of_bytes(hub):
  deep = IMAGES[..., 0].astype(np.uint16) * 257  # 255 -> 65,535
  examples = fa.from_hf(images(hub, pil(arrays=deep)), x="image", y="label")
  np.testing.assert_allclose(
    examples.x_train, IMAGES[..., 0] / np.float32(255), rtol=1e-6
  )


def test_integers_have_the_dtype_in_which_they_are_stored(hub):
  """As int64 bytes would be ids of tokens, which no image model reads."""
  dataset = table(
    hub,
    bytes=(IMAGES[:, 0, 0].tolist(), hub.List(hub.Value("uint8"))),
    ids=(IMAGES[:, 0, 0].tolist(), hub.List(hub.Value("int64"))),
  )
  for name, dtype in (("bytes", np.uint8), ("ids", np.int32)):
    x = fa.from_hf(dataset, x=name, y="label").x_train
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, IMAGES[:, 0, 0])


def test_all_classes_count_that_a_class_label_names(hub):
  ten = table(hub, "abcdefghij")
  assert fa.from_hf(ten, x="v", y="label").num_classes == 10
  assert fa.from_hf(ten, x="v", y="label", num_classes=11).num_classes == 11
  assert fa.from_hf(ten, x="v", y="label", task="regression").num_classes == 1


@each(
  "train, test",
  [("label", "label"), ("label", "text"), ("text", "label"), ("text", "text")],
)
def test_classes_have_the_numbers_of_the_training_rows(hub, train, test):
  """The test split names its classes in another order, and lacks one."""

  def split(names, rows, kind):
    texts = np.array(list("abc"))[LABELS[rows]]
    return table(
      hub,
      y=(texts.tolist(), hub.Value("string"))
      if kind == "text"
      else ([names.index(text) for text in texts], hub.ClassLabel(names=names)),
      v=(NUMBERS[rows].tolist(), hub.List(hub.Value("float32"))),
      label=(LABELS[rows], hub.Value("int64")),
    )

  rows = np.flatnonzero(LABELS != 1)
  examples = fa.from_hf(
    split(list("abc"), np.arange(N), train),
    x="v",
    y="y",
    test=split(list("ca"), rows, test),
  )
  np.testing.assert_array_equal(examples.y_train, LABELS)
  np.testing.assert_array_equal(examples.y_test, LABELS[rows])


@pytest.mark.parametrize(
  "kind, error",
  [
    ("label", "^test: 'label' has the class 'z', dataset has a, b, c$"),
    (
      "text",
      "^y_test: has 'z' in row 2, which is none of the 3 names of the "
      "training examples .a, b, c.: leave",
    ),
  ],
)
def test_a_class_of_test_rows_alone_is_refused(hub, kind, error):
  def split(names):
    texts = [names[label] for label in LABELS]
    return (
      table(hub, names)
      if kind == "label"
      else table(hub, label=(texts, hub.Value("string")))
    )

  with pytest.raises(fa.DataError, match=error):
    fa.from_hf(split("abc"), test=split("abz"), x="v", y="label")


def raising(batch):
  del batch
  raise RuntimeError("boom")


@each(
  "change, options, error",
  [
    (
      lambda hub, rows: hub.DatasetDict(train=rows, test=rows),
      {},
      "^dataset: a DatasetDict of train, test, must be .*give one split",
    ),
    (
      lambda hub, rows: rows.to_iterable_dataset(),
      {},
      "^dataset: an IterableDataset that is read row by row, must be .*streami",
    ),
    (lambda hub, rows: None, {}, "^dataset: a NoneType, must be a datasets.D"),
    (lambda hub, rows: {}, {}, "^dataset: a dict of nothing, must be a data"),
    (lambda hub, rows: rows.select([]), {}, "^dataset: has no rows$"),
    (
      lambda hub, rows: rows.with_transform(raising),
      {},
      "^dataset: its transform of rows 0 to 11 fails, RuntimeError: boom",
    ),
    (
      lambda hub, rows: rows.with_transform(lambda batch: {"v": batch["v"]}),
      {},
      "^dataset: has no column 'label' .it has v.$",
    ),
    (
      lambda hub, rows: rows.with_transform(
        lambda batch: {**batch, "v": batch["v"][1:]}
      ),
      {},
      "^dataset: its transform of rows 0 to 11 gives 11 of 'v', 12 are needed$",
    ),
    (None, dict(x=None), "^x: a NoneType, must be the name of a column"),
    (None, dict(x=[]), r"^x: \[\], names no column$"),
    (None, dict(y=("a", "b")), "^y: a tuple, must be the name of a column"),
    (None, dict(x={"a": []}), r"^x: a is \[\], names no column$"),
    (None, dict(x=["v"]), r"^x: column 'v' has rows of shape .2,., a list"),
    (
      None,
      dict(numclasses=3),
      "^numclasses: no option of from_hf, did you mean 'num_class",
    ),
    (
      None,
      dict(client_ids=LABELS, client="label"),
      "^client_ids: comes from client, give one of them$",
    ),
    (
      None,
      dict(x="ragged"),
      "^dataset: the rows of 'ragged' have different sha"
      "pes, .1,. in row 0 and .2,. in row 1$",
    ),
    (None, dict(x="inner"), "^dataset: the rows of 'inner'.* row 0 is ragged"),
    (None, dict(x=["gappy"]), "^dataset: the rows of 'gappy': row 1 is miss"),
    (None, dict(x="gaps"), "^dataset: the rows of 'gaps': row 1 is missing"),
    (None, dict(y="gappy"), "^dataset: the rows of 'gappy': row 1 is miss"),
    (
      None,
      dict(x=["label", "city"]),
      "^dataset: the rows of 'city': row 1 has no class, a feature needs one$",
    ),
    (None, dict(client="text"), "^dataset: the rows of 'text': row 1 is missi"),
    (None, dict(x=["digits"]), "^x: column 'digits' is <U1, numbers are nee"),
    (
      None,
      dict(x="broken"),
      "^dataset: the rows of 'broken': row 3 cannot be read, UnidentifiedImageError: ",
    ),
    (
      None,
      dict(x="modes"),
      "^dataset: the rows of 'modes' have different kinds"
      ", images of mode L in row 0 and images of mode 1 in row 1$",
    ),
    (
      None,
      dict(x="wide"),
      "^dataset: the rows of 'wide': row 0 is an image of "
      "mode I, 32-bit integers of any range",
    ),
  ],
)
def test_what_cannot_be_read_is_one_line(hub, change, options, error):
  """Each was a traceback, or was read as something else."""
  gray = pil("L")
  rows = table(
    hub,
    ragged=([[1] * (1 + row % 2) for row in range(N)], hub.List(hub.Value("int64"))),
    inner=([[[1, 2], [3]]] * N, hub.List(hub.List(hub.Value("int64")))),
    gappy=([0, None] * (N // 2), hub.Value("int64")),
    city=([0, -1] * (N // 2), hub.ClassLabel(names=["rome"])),
    gaps=([[1.0, 2.0], None] * (N // 2), hub.List(hub.Value("float32"))),
    text=(["a", None] * (N // 2), hub.Value("string")),
    digits=(["1", "2"] * (N // 2), hub.Value("string")),
    broken=(gray[:3] + [{"bytes": b"no", "path": None}] * (N - 3), hub.Image()),
    modes=([gray[0], gray[1].convert("1")] * (N // 2), hub.Image()),
    wide=(pil(arrays=IMAGES[..., 0].astype(np.int32)), hub.Image()),
  )
  with pytest.raises(fa.DataError, match=error):
    fa.from_hf(
      change(hub, table(hub)) if change else rows, **{"x": "v", "y": "label", **options}
    )


def test_the_test_split_is_named(hub):
  rows = table(hub)
  for test, error in (
    (hub.DatasetDict(test=rows), "^test: a DatasetDict of "),
    (rows.select([]), "^test: has no rows$"),
  ):
    with pytest.raises(fa.DataError, match=error):
      fa.from_hf(rows, x="v", y="label", test=test)


def test_columns_that_do_not_fit_are_refused_at_the_first_rows(hub, monkeypatch):
  """With the bytes that they are stored in, not the int64 that the format gives."""
  flat = IMAGES.reshape(N, -1)
  split = table(hub, pixels=(flat.tolist(), hub.List(hub.Value("uint8"))))
  for room in (flat.nbytes, flat.nbytes - 1):
    monkeypatch.setattr(memory, "host", lambda room=room: memory.Limit(room, "we have"))
    if room == flat.nbytes:
      examples = fa.from_hf(split, x="pixels", y="label")
      np.testing.assert_array_equal(examples.x_train, flat)
      continue
    with pytest.raises(fa.DataError, match="^dataset: the rows of 'pixels': 12 of"):
      fa.from_hf(split, x="pixels", y="label")


def test_columns_are_read_in_parts(hub, monkeypatch):
  """Rows of a later part may have another shape, or no value."""
  monkeypatch.setattr(hugging_face, "_CHUNK", 5)
  texts = [f"client {number:0{1 + number}}" for number in range(N)]
  split = table(hub, who=(texts, hub.Value("string")))
  examples = fa.from_hf(split, x="v", y="label", client="who")
  np.testing.assert_array_equal(examples.x_train, NUMBERS)
  assert examples.client_names.tolist() == sorted(texts)
  ragged = [[0.5, 1.0]] * 7 + [[0.5]] + [[0.5, 1.0]] * 4
  split = table(hub, v=(ragged, hub.List(hub.Value("float32"))))
  with pytest.raises(fa.DataError, match="shapes, .2,. in row 0 and .1,. in r"):
    fa.from_hf(split, x="v", y="label")
  missing = [*range(7), None, *range(4)]
  split = table(hub, site=(missing, hub.Value("int32")))
  with pytest.raises(fa.DataError, match="the rows of 'site': row 7 is missing"):
    fa.from_hf(split, x="v", y="label", client="site")


def test_all_faults_of_columns_are_one_error(hub):
  split, test = (table(hub, text=(["a"] * N, hub.Value("string"))) for _ in range(2))
  with pytest.raises(fa.DataError) as error:
    fa.from_hf(split, x=["text"], y="lable", client="who", test=test)
  text = str(error.value)
  for fault in (
    "dataset: has no column 'lable'",
    "dataset: has no column 'who'",
    "x: column 'text' is <U1, numbers are needed",
    "test: has no column 'lable'",
    "test: has no column 'who'",
  ):
    assert text.count(fault) == 1
  with pytest.raises(fa.DataError, match="^x: names column 'v' twice"):
    fa.from_hf(split, x=["v", "v"], y="label")
