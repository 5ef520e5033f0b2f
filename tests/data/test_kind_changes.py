"""What kinds do to examples: rotations, permutations, noise, functions, sources."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from scipy import ndimage

import fedjax_alg as fa
from fedjax_alg.data import kind_changes
from fedjax_alg.data.scikit_learn import load_digits
from tests.data.reading import refuses
from tests.each import each

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 4, 4), np.uint8)
LABELS = np.arange(60) // 6 % 3


def federate(kinds="natural", x=IMAGES, y=LABELS, **options):
  """Six clients of ten examples, natural ones so that rows are known."""
  examples = fa.from_arrays(
    x[:48],
    y[:48],
    np.arange(48) % 6,
    x_test=x[48:],
    y_test=y[48:],
    test_client_ids=np.arange(12) % 6,
    **{name: options.pop(name) for name in ("task",) if name in options},
  )
  return fa.federate(examples, kinds=kinds, **options)


def rows(federation, client, test=False):
  return (federation.client_test if test else federation.client)(client)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(5, 4, 4), (5, 4, 4, 3)])
def test_quarter_turns_are_exact(dtype, shape):
  x = RNG.integers(0, 256, shape).astype(dtype)
  turned = x
  for _ in range(4):
    turned = kind_changes.rotate_images(turned, 90)
  for same in (turned, kind_changes.rotate_images(x, 0)):
    assert same.dtype == dtype
    np.testing.assert_array_equal(same, x)
  quarter = kind_changes.rotate_images(x, 90)
  for i, image in enumerate(x):  # row by row, from the definition
    for row, column in itertools.product(range(4), range(4)):
      np.testing.assert_array_equal(quarter[i, row, column], image[column, 3 - row])
  np.testing.assert_array_equal(
    kind_changes.rotate_images(x, -90), kind_changes.rotate_images(x, 270)
  )
  np.testing.assert_array_equal(
    kind_changes.rotate_images(quarter, 90), kind_changes.rotate_images(x, 180)
  )


def test_other_angles_interpolate():
  x = RNG.random((3, 9, 9)).astype(np.float32)
  by_scipy = np.stack(
    [ndimage.rotate(image, 30, reshape=False, order=1) for image in x]
  )
  np.testing.assert_allclose(kind_changes.rotate_images(x, 30), by_scipy, atol=1e-5)
  # Turning by nearly a quarter is nearly a quarter turn.
  near = kind_changes.rotate_images(x, 90.001)
  inside = slice(None), slice(1, -1), slice(1, -1)
  quarter = kind_changes.rotate_images(x, 90)
  np.testing.assert_allclose(near[inside], quarter[inside], atol=0.01)
  as_bytes = kind_changes.rotate_images((255 * x).astype(np.uint8), 30)
  assert as_bytes.dtype == np.uint8


def test_clients_have_the_images_of_their_kind():
  plain = federate()
  turned = federate("rotate:0,90,180")
  assert turned.kinds.sizes().tolist() == [2, 2, 2]
  assert turned.kinds.names == ("0", "90", "180") and turned.kinds.same_labels
  for client, kind in enumerate(turned.kinds.of_client):
    for test in (False, True):
      x, y = rows(plain, client, test)
      new_x, new_y = rows(turned, client, test)
      np.testing.assert_array_equal(new_x, np.rot90(x, kind, (1, 2)))
      np.testing.assert_array_equal(new_y, y)
  assert turned.data.train.x.codes.dtype == np.uint8  # bytes stay bytes


@pytest.mark.parametrize(
  "kinds", ["rotate:0", "permute:1", "noise:0", "noise_std:0", "sources:digits"]
)
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"partition": "classes", "validation_clients": 3},
    {"partition": "powerlaw", "num_clients": 12},
    {"features": "standardize", "newcomers_at": ((2, 3),)},
  ],
)
def test_a_kind_that_changes_nothing_is_no_kind(kinds, options):
  options = {"num_clients": 20} | options
  plain = fa.federate("digits", **options)
  kind = fa.federate("digits", kinds=kinds, **options)
  assert plain.hashes == kind.hashes and plain.labels == kind.labels
  one_each = kinds.startswith("noise")
  assert kind.kinds.number == (plain.num_clients if one_each else 1)
  if kind.kinds.number == 1:
    for a, b in zip(
      jax.tree.leaves(plain.data),
      jax.tree.leaves(kind.data._replace(kinds=None)),
      strict=True,
    ):
      np.testing.assert_array_equal(a, b)


def test_labels_are_permuted_by_kind():
  plain, permuted = federate(), federate("permute:3")
  assert not permuted.kinds.same_labels
  maps = set()
  for client, kind in enumerate(permuted.kinds.of_client):
    pairs = set()
    for test in (False, True):
      (x, y), (new_x, new_y) = rows(plain, client, test), rows(permuted, client, test)
      np.testing.assert_array_equal(new_x, x)
      pairs |= set(zip(y.tolist(), new_y.tolist()))
    assert len(pairs) == 3 and {b for _, b in pairs} == {0, 1, 2}  # one to one
    assert (kind == 0) == all(a == b for a, b in pairs)
    maps.add((int(kind), tuple(sorted(pairs))))
  assert len(maps) == 3 and len({pairs for _, pairs in maps}) == 3
  # The histogram is of the labels that clients train on.
  for client, counts in enumerate(permuted.label_histogram):
    assert (
      counts.tolist() == np.bincount(rows(permuted, client)[1], minlength=3).tolist()
    )


@pytest.mark.parametrize("classes, number", [(3, 6), (6, 50), (10, 200), (2, 1)])
def test_permutations_differ_and_begin_with_the_identity(classes, number):
  permutations = kind_changes.draw_permutations(number, classes, 0)
  assert permutations[0].tolist() == list(range(classes))
  assert len({tuple(p) for p in permutations.tolist()}) == number
  assert (np.sort(permutations, 1) == np.arange(classes)).all()
  fewer = kind_changes.draw_permutations(1, classes, 0)
  np.testing.assert_array_equal(fewer, permutations[:1])


@pytest.mark.parametrize("word", ["noise", "noise_std"])
def test_noise_has_the_level_of_the_client(word):
  x = RNG.random((12_000, 40)).astype(np.float32)
  y = np.arange(12_000) % 2
  plain, noisy = federate_many("natural", x, y), federate_many(f"{word}:0.5", x, y)
  assert noisy.kinds.of_client.tolist() == [0, 1, 2, 3]
  for client in range(4):
    variance = 0.5 * (client + 1) / 4 if word == "noise" else (0.5 * client / 3) ** 2
    noises = []
    for test in (False, True):
      (a, y_a), (b, y_b) = rows(plain, client, test), rows(noisy, client, test)
      np.testing.assert_array_equal(y_a, y_b)
      noises.append(np.asarray(b, np.float64) - a)
      assert abs(noises[-1].mean()) <= 5 * np.sqrt(variance / a.size)
      # The standard error of a variance of normal numbers.
      error = variance * np.sqrt(2 / a.size)
      assert abs(noises[-1].var() - variance) <= 5 * error + 1e-6
    train, test = (noise.ravel()[:1000] for noise in noises)
    if variance:
      assert abs(np.corrcoef(train, test)[0, 1]) < 0.2


def federate_many(kinds, x, y):
  examples = fa.from_arrays(
    x[:8000],
    y[:8000],
    np.arange(8000) % 4,
    x_test=x[8000:],
    y_test=y[8000:],
    test_client_ids=np.arange(4000) % 4,
  )
  return fa.federate(examples, kinds=kinds)


CODE = """
import jax
import numpy as np

def shifted(x, y, kind, key):
  return np.roll(x, kind, axis=1), (y + kind) % 3

def noisy(x, y, kind, key):
  return x / 255 + np.float32(0.1) * np.asarray(jax.random.normal(key, x.shape)), y

def fewer(x, y, kind, key):
  return x[:-1], y

def fails(x, y, kind, key):
  return {}[kind]

def large(x, y, kind, key):
  return x, y + 9

def imaginary(x, y, kind, key):
  return x + 0.5j, y

def imaginary_labels(x, y, kind, key):
  return x, y + 0j

def spelt(x, y, kind, key):
  return x.astype(str), y

def endless(x, y, kind, key):
  return x * np.float32("nan"), y

def one(x, y, kind, key):
  return x

def whole(x, y, kind, key):
  return (x[:, ::-1].astype(int) if kind else x), y

def beyond(x, y, kind, key):
  return 2 * x.astype(int), y

number = 3
"""


@pytest.fixture(name="file")
def fixture_file(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(CODE, "utf-8")
  return path


def test_a_function_of_your_own(file):
  plain, rolled = federate(), federate(f"{file}:shifted,2")
  assert rolled.kinds.sizes().tolist() == [3, 3] and not rolled.kinds.same_labels
  assert rolled.data.train.x.codes.dtype == np.uint8
  for client, kind in enumerate(rolled.kinds.of_client):
    for test in (False, True):
      (x, y), (new_x, new_y) = rows(plain, client, test), rows(rolled, client, test)
      np.testing.assert_array_equal(new_x, np.roll(x, kind, 1))
      np.testing.assert_array_equal(new_y, (y + kind) % 3)
  shares = federate(f"{file}:shifted,shares=1:1:1")
  assert shares.kinds.sizes().tolist() == [2, 2, 2]


def test_whole_numbers_of_images_stay_bytes(file):
  plain, turned = federate(), federate(f"{file}:whole,2")
  assert turned.data.train.x.codes.dtype == np.uint8
  for client, kind in enumerate(turned.kinds.of_client):
    x, new_x = rows(plain, client)[0], rows(turned, client)[0]
    np.testing.assert_array_equal(new_x, x[:, ::-1] if kind else x)


def test_a_function_is_called_with_one_key_for_each_kind(file):
  federations = [federate(f"{file}:noisy,2") for _ in range(2)]
  assert federations[0].hashes == federations[1].hashes
  assert federate(f"{file}:noisy,2", seed=1).hashes != federations[0].hashes
  noise = rows(federations[0], 0)[0] - rows(federate(), 0)[0]
  assert 0.05 < noise.std() < 0.15


@each(
  "name, says",
  [
    ("shifted", "the number of kinds is missing"),
    ("fewer,2", "of kind 0 returned x of shape"),
    ("fails,2", "of kind 0 failed, KeyError"),
    ("large,2", "returned labels in [9, 11], must lie in [0, 3)"),
    ("endless,2", "returned x of NaN or infinite values"),
    ("imaginary,2", "returned x of complex128 values, must be real numbers"),
    ("imaginary_labels,2", "returned y of complex128 values, must be real numbers"),
    ("spelt,2", "returned x of <U3 values, must be real numbers"),
    ("one,2", "returned ndarray, must return x and y"),
    ("beyond,2", "whole numbers of images must lie in [0, 255]"),
    ("number,2", "no function (x, y, kind, key) -> x, y, but int"),
  ],
)
def test_a_function_that_fails_is_named_in_one_line(file, name, says):
  refuses(lambda: federate(f"{file}:{name}"), f"kinds={file}:{name}", says)


def test_a_function_that_is_not_there(file):
  with pytest.raises(fa.OptionError, match="has no blur"):
    federate(f"{file}:blur,2")


NUMBERS = RNG.random((60, 5)).astype(np.float32)


@each(
  "options, says",
  [
    ({"kinds": "rotate:0,90", "x": NUMBERS}, "rotate:0,90: needs images"),
    (
      {"kinds": "rotate:0,90", "x": IMAGES[:, :3]},
      "a quarter turn needs square images, those of arrays are 3 x 4",
    ),
    (
      {"kinds": "rotate:0,90", "x": IMAGES.astype(np.int32)},
      "needs images, the examples of arrays are whole numbers",
    ),
    (
      {"kinds": "noise:1", "x": IMAGES.astype(np.int32)},
      "needs real numbers, the examples of arrays are whole numbers",
    ),
    (
      {"kinds": "permute:2", "y": NUMBERS[:, :1], "task": "regression"},
      "permute:2: permutes classes, task=regression has none",
    ),
    (
      {"kinds": "permute:3", "y": LABELS % 2},
      "permute:3: 2 classes have 2 permutations",
    ),
    ({"kinds": "rotate:0,1,2,3,4,5,6"}, "7 kinds need as many clients, there are 6"),
    ({"kinds": "noise:1,shares=1:2"}, "is not of noise"),
    ({"kinds": "natural:shares=1:2"}, "shares are not read"),
  ],
)
def test_data_that_do_not_fit_are_refused_in_one_line(options, says):
  refuses(lambda: federate(**options), says)


def test_flat_pixels_are_images_if_they_are_called_so():
  flat = IMAGES.reshape(60, 16)
  turned = federate("rotate:0,90", flat, features="images")
  whole = federate("rotate:0,90", IMAGES, features="images")
  assert turned.hashes["data"] == whole.hashes["data"]
  refuses(lambda: federate("rotate:0,90", flat), "features=images makes images")


def test_features_are_those_of_the_changed_examples():
  digits = load_digits()
  hog = fa.federate(digits, kinds="rotate:90", features="hog:4", num_clients=5)
  turned = dataclasses.replace(
    digits,
    x_train=np.rot90(digits.x_train, 1, (1, 2)),
    x_test=np.rot90(digits.x_test, 1, (1, 2)),
  )
  by_hand = fa.federate(turned, features="hog:4", num_clients=5)
  assert hog.hashes == by_hand.hashes
  scaled = fa.federate(digits, kinds="rotate:90", features="standardize", num_clients=5)
  np.testing.assert_allclose(
    scaled.scaler.mean, turned.x_train.mean(0, dtype=np.float64)
  )


def test_sources_are_brought_to_one_shape():
  small = RNG.integers(0, 256, (20, 2, 3, 1), np.uint8)
  large = RNG.integers(0, 256, (30, 5, 4, 3), np.uint8)
  parts = []
  for name, x, classes in (("small", small, 2), ("large", large, 3)):
    y = np.arange(len(x)) % classes
    parts.append(fa.from_arrays(x, y, x_test=x[:6], y_test=y[:6], name=name))
  change = kind_changes.SourceKinds(("small", "large"))
  examples = kind_changes.join_sources(change, parts)
  assert examples.x_train.shape == (50, 5, 4, 3) and examples.x_train.dtype == np.uint8
  assert examples.num_classes == 3 and examples.name == "small+large"
  np.testing.assert_array_equal(examples.x_train[20:], large)
  for channel in range(3):
    np.testing.assert_array_equal(
      examples.x_train[:20, 1:3, :3, channel], small[..., 0]
    )
  assert examples.x_train[:20].sum() == 3 * small.sum()
  federation = fa.federate(examples, partition="classes:min_size=2", num_clients=6)
  assert federation.kinds.names == ("small", "large")
  for client, kind in enumerate(federation.kinds.of_client):
    x, _ = rows(federation, client)
    grey = (x[..., 0] == x[..., 1]).all()
    assert grey == (kind == 0)
  assert federation.data.kinds.size.tolist() == [6, 6]
  refuses(
    lambda: kind_changes.join_sources(
      change, [parts[0], fa.from_arrays(NUMBERS, LABELS, name="numbers")]
    ),
    "needs images of classes, numbers has none",
  )
