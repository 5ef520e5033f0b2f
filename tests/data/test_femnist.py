"""FedProx' letters: who holds what, the published leak, and its repair."""

import numpy as np
import pytest

from fedjax_alg.data import femnist as femnist_lib
from tests import tfds_records
from tests.data.reading import refuses
from tests.each import each

CLIENTS = 200


def pool(per_letter):
  """Images that say their own number, letters mixed."""
  number = np.arange(10 * per_letter)
  x = np.zeros((len(number), 28, 28), np.uint8)
  x[:, 0, 0], x[:, 0, 1] = number // 256, number % 256
  return x, np.random.default_rng(0).permutation(number % 10)


def numbers(x):
  return x[:, 0, 0, 0].astype(int) * 256 + x[:, 0, 1, 0]


def sizes(clients, minlength=CLIENTS):
  return np.bincount(clients, minlength=minlength)


@pytest.fixture(name="letters", scope="module")
def fixture_letters():
  return pool(4000)


def deal(letters, kind, seed=0, clients=CLIENTS):
  return femnist_lib.femnist(*letters, kind=kind, num_clients=clients, seed=seed)


@pytest.mark.parametrize("kind", femnist_lib.KINDS)
def test_who_holds_what(letters, kind):
  got = deal(letters, kind)
  assert got.num_classes == 26 and got.x_train.shape[1:] == (28, 28, 1)
  assert got.x_train.dtype == np.uint8 and got.y_train.dtype == np.int32
  for x, y in ((got.x_train, got.y_train), (got.x_test, got.y_test)):
    np.testing.assert_array_equal(y, letters[1][numbers(x)])
  histogram = np.zeros((CLIENTS, 10), int)
  np.add.at(histogram, (got.client_train, got.y_train), 1)
  np.add.at(histogram, (got.client_test, got.y_test), 1)
  for client, row in enumerate(histogram):
    mine = (client + np.arange(3)) % 10
    assert row[mine].min() == row[mine].max() >= 2
    assert row.sum() == row[mine].sum()
  total = histogram.sum(axis=1)
  np.testing.assert_array_equal(sizes(got.client_train), 9 * total // 10)
  # A client trains and tests on all its letters: it was shuffled.
  large = total.argmax()
  assert len(np.unique(got.y_test[got.client_test == large])) == 3
  # The law of the sizes, 3 max(int(n / 3), 2) with log(n - 5) ~ N(4, 1).
  log = np.log(total - 5 + 1.5)
  assert abs(log.mean() - 4) < 0.25 and abs(log.std() - 1) < 0.15


def test_the_published_form_tests_on_training_images(letters):
  distinct, leaked = [], []
  for seed in range(5):
    got = deal(letters, "leaky", seed)
    train, test = numbers(got.x_train), numbers(got.x_test)
    distinct.append(len(np.unique(np.r_[train, test])) / (len(train) + len(test)))
    leaked.append(np.isin(test, train).mean())
    # Segments start at the same image: the one that most clients hold.
    for letter in range(10):
      mine = train[got.y_train == letter]
      assert np.unique(mine, return_counts=True)[1].max() > 45
  assert np.median(distinct) < 0.12 and min(leaked) > 0.94
  assert np.median(leaked) > 0.97


def test_the_fixed_form_uses_no_image_twice(letters):
  fixed, leaky = deal(letters, "fixed"), deal(letters, "leaky")
  both = np.r_[numbers(fixed.x_train), numbers(fixed.x_test)]
  assert len(np.unique(both)) == len(both)
  # The pool is large enough: the same sizes, the same labels.
  np.testing.assert_array_equal(fixed.client_train, leaky.client_train)
  assert fixed.name == "femnist" and leaky.name == "femnist, leaky"


def test_a_small_pool_scales_all_sizes_by_one_factor():
  small, large = (deal(pool(n), "fixed") for n in (500, 4000))
  both = np.r_[numbers(small.x_train), numbers(small.x_test)]
  assert len(np.unique(both)) == len(both)
  before, after = (sizes(e.client_train) + sizes(e.client_test) for e in (large, small))
  # Before, n lies in [before, before + 3), after the factor's n likewise: one
  # factor must do for all whom the minimum does not bind.
  free = after > 6
  least = (after / (before + 3))[free].max()
  most = ((after + 3) / before)[free].min()
  assert 0.2 < least < most < 0.3 and free.sum() > 100
  assert after.min() == 6
  # No larger factor fits: one letter is all but used up.
  used = np.bincount(np.r_[small.y_train, small.y_test])
  assert 490 <= used.max() <= 500


def test_a_pool_that_is_exhausted_leaves_no_client_empty():
  got = deal(pool(60), "leaky")
  assert sizes(got.client_train).min() >= 2 and sizes(got.client_test).min() > 0
  refuses(lambda: deal(pool(20), "fixed"), "letter 0 has 20 of the 120 needed")


LABELS = np.array([10, 14, 18, 24, 30, 36, 40, 44, 50, 56])  # A E ... o u


def test_a_stand_in(tmp_path):
  x, y = pool(30)
  path = tmp_path / "vowels.npz"
  np.savez(path, x=x, y=LABELS[y].astype(np.uint8))
  got = femnist_lib.load_femnist("leaky", 9, 3, path=path)
  want = femnist_lib.femnist(x, y, "leaky", 9, 3)
  assert got.name == "vowels (in place of EMNIST), leaky"
  np.testing.assert_array_equal(got.x_train, want.x_train)
  np.testing.assert_array_equal(got.y_test, want.y_test)


@each(
  "change, says",
  [
    ({"x": None}, "missing x (it has y)"),
    ({"y": None}, "missing y (it has x)"),
    ({"y": np.arange(20) % 9}, "y has 9 different labels, 10 are needed"),
    ({"y": np.arange(20) / 2}, "y is float64"),
    ({"y": np.arange(19) % 10}, "integers of shape (20,) are needed"),
    ({"x": np.zeros((20, 28, 28))}, "x is float64"),
    ({"x": np.zeros((20, 8, 8), np.uint8)}, "of shape (20, 8, 8)"),
  ],
)
def test_bad_stand_in(tmp_path, change, says):
  arrays = {"x": np.zeros((20, 28, 28), np.uint8), "y": np.arange(20) % 10}
  path = tmp_path / "bad.npz"
  np.savez(
    path,
    **{name: value for name, value in (arrays | change).items() if value is not None},
  )
  refuses(
    lambda: femnist_lib.load_femnist("fixed", 9, 3, path=path),
    says,
    f"dataset={path}",
  )


def emnist(root, labels):
  """A prepared emnist/byclass of random images."""
  images = np.random.default_rng(0).integers(
    0, 256, (len(labels), 28, 28), dtype=np.uint8
  )
  tfds_records.write(
    root / "emnist" / "byclass" / "3.1.0",
    "emnist",
    {"image": tfds_records.IMAGE, "label": tfds_records.LABEL},
    (
      {"image": tfds_records.png(image), "label": int(label)}
      for image, label in zip(images, labels)
    ),
  )
  return images


def test_emnist(tmp_path, monkeypatch):
  monkeypatch.setattr(femnist_lib, "_POOL", 4)
  labels = np.random.default_rng(1).permutation(np.repeat(np.arange(62), 5))
  images = emnist(tmp_path, labels)
  x, y = femnist_lib.emnist_letters(tmp_path)
  rows = np.flatnonzero((labels >= 36) & (labels <= 45))
  rows = np.sort(
    np.concatenate([rows[labels[rows] == letter][:4] for letter in range(36, 46)])
  )
  np.testing.assert_array_equal(y, labels[rows] - 36)
  np.testing.assert_array_equal(x[..., 0], images[rows].transpose(0, 2, 1))
  assert x.dtype == np.uint8
  # The next time from the cache.
  monkeypatch.setattr(femnist_lib, "_decode", None)
  np.testing.assert_array_equal(femnist_lib.emnist_letters(tmp_path)[0], x)
  # Most papers mean LEAF's data by this name.
  with pytest.warns(UserWarning, match="dataset=femnist: ten letters.*dataset=leaf"):
    got = femnist_lib.load_femnist("fixed", 2, 0, data_dir=tmp_path)
  assert got.name == "femnist" and got.client_train.max() == 1


def test_emnist_that_is_none(tmp_path):

  def load():
    femnist_lib.load_femnist("fixed", 5, 0, data_dir=tmp_path)

  refuses(load, f"fedjax-alg prepare emnist data_dir={tmp_path}")
  emnist(tmp_path, np.arange(40))
  refuses(load, "has no letter e: not emnist/byclass")
