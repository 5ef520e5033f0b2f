"""Loaders: what they give, and one clear line for every bad input."""

import json
import os
import pathlib

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import memory
from fedjax_alg.data import characters, features, tfds_source
from fedjax_alg.data.client_files import write_clients
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.leaf import leaf_clients, load_leaf
from tests import tfds_records
from tests.data.reading import refuses

_ROOT = pathlib.Path(__file__).resolve().parents[2]
TFDS_DIR = pathlib.Path(
  os.environ.get("FEDJAX_ALG_DATA_DIR", _ROOT.parent / "shared" / "data" / "tfds")
)


def leaf(users, /, **change):
  content = {
    "users": list(users),
    "num_samples": [len(y) for _, y in users.values()],
    "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
  }
  return json.dumps(content | change)


USERS = {"bo": ([[1.0, 2.0]] * 20, [1.0] * 20), "al": ([[3.0, 4.0]], [2.0])}


def test_leaf_file_holds_out_a_tenth(tmp_path):
  path = tmp_path / "all.json"
  path.write_text(leaf(USERS))
  got = load_leaf(path)
  np.testing.assert_array_equal(got.client_train, [0] * 18 + [1])
  np.testing.assert_array_equal(got.client_test, [0, 0])
  np.testing.assert_array_equal(load_leaf(path).y_test, got.y_test)
  np.testing.assert_array_equal(got.x_train[-1], [3, 4])
  assert got.y_train.dtype == np.int32 and got.y_train[-1] == 2
  assert got.x_train.dtype == np.float32 and got.num_classes == 3


@pytest.mark.parametrize("of_folder", [False, True])
def test_leaf_numbers_that_float32_merges_are_refused(tmp_path, of_folder):
  """Times in seconds since 1970, of which every 128th is left."""
  x = [[1.7e9 + second, 0.5] for second in range(20)]
  users = leaf({"bo": (x, [0, 1] * 10)})
  path = tmp_path / "leaf"
  for split in ("train", "test") if of_folder else ():
    (path / split).mkdir(parents=True)
    (path / split / "a.json").write_text(users)
  if not of_folder:
    path.write_text(users)
  refuses(lambda: load_leaf(path), "in column 0", "float32 tells")
  refuses(lambda: write_clients(tmp_path / "new", leaf_clients(path)), "float32 tells")


def test_leaf_folder_joins_files(tmp_path):
  for split in ("train", "test"):
    (tmp_path / split).mkdir()
  (tmp_path / "train" / "a.json").write_text(leaf({"bo": USERS["bo"]}))
  (tmp_path / "train" / "b.json").write_text(leaf({"al": USERS["al"]}))
  (tmp_path / "test" / "a.json").write_text(leaf({"al": USERS["al"]}))
  got = load_leaf(tmp_path)
  np.testing.assert_array_equal(got.client_train, [0] * 20 + [1])
  np.testing.assert_array_equal(got.client_test, [1])
  (tmp_path / "test" / "b.json").write_text(leaf({"cy": USERS["al"]}))
  by_user = load_leaf(tmp_path)  # LEAF's split by user
  assert by_user.client_names.tolist() == ["bo", "al", "cy"]
  np.testing.assert_array_equal(by_user.client_test, [1, 2])
  (tmp_path / "test" / "b.json").write_text(leaf({"al": USERS["al"]}))
  refuses(lambda: load_leaf(tmp_path), "user 'al' appears twice")


def test_leaf_file_tests_on_a_random_tenth(tmp_path):
  """A user may be sorted by class: the tail would be one class alone."""
  users = {
    f"u{i}": ([[i, j] for j in range(50)], [j // 10 for j in range(50)])
    for i in range(20)
  }
  path = tmp_path / "sorted.json"
  path.write_text(leaf(users))
  got = load_leaf(path)
  assert np.bincount(got.client_test).tolist() == [5] * 20
  assert np.bincount(got.y_test).min() > 5
  rows = np.concatenate([got.x_train, got.x_test]).tolist()
  assert sorted(rows) == sorted(x for xs, _ in users.values() for x in xs)


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_leaf_windows_for_testing_begin_behind_the_training_text(tmp_path, stride):
  """Windows of one text share characters, so a random tenth would be known."""
  number, length = np.random.default_rng(0).permutation(80**2)[:600], 8
  text = "".join(
    characters.ALPHABET[n % 80] + characters.ALPHABET[n // 80] for n in number
  )
  starts = range(0, len(text) - length, stride)
  path = tmp_path / "play.json"
  path.write_text(
    leaf(
      {
        "ham": (
          [text[i : i + length] for i in starts],
          [text[i + length] for i in starts],
        )
      }
    )
  )
  got = load_leaf(path)
  trains = int(0.9 * len(starts))
  last = (trains - 1) * stride + length  # the last character to be predicted
  want = [i for i in starts if i > last]
  assert len(got.x_train) == trains and len(want) > 5
  np.testing.assert_array_equal(
    got.x_test, [characters.encode_text(text[i : i + length]) for i in want]
  )
  np.testing.assert_array_equal(
    got.y_test,
    characters.classes(characters.encode_text("".join(text[i + length] for i in want))),
  )


def test_leaf_texts_that_are_no_windows_are_split_at_random(tmp_path):
  rng = np.random.default_rng(1)
  texts = ["".join(rng.choice(list("abcdefgh"), 6)) for _ in range(40)]
  path = tmp_path / "words.json"
  path.write_text(leaf({"al": (texts, ["x"] * 40)}))
  got = load_leaf(path)
  assert len(got.x_test) == 4
  assert got.x_test.tolist() != [characters.encode_text(t).tolist() for t in texts[-4:]]


def test_leaf_folder_of_leaf_s_own_shakespeare(tmp_path):
  """Its split counts the test windows before it leaves 79 of them out."""
  for split in ("train", "test"):
    (tmp_path / split).mkdir()
  (tmp_path / "train" / "a.json").write_text(leaf(TEXTS))
  (tmp_path / "test" / "a.json").write_text(leaf(TEXTS, num_samples=[81, 1]))
  with pytest.warns(
    UserWarning,
    match="^/.*a.json: num_samples is wrong for 1 "
    "of 2 users, user 'bo' has 2 examples, not 81; what is",
  ):
    got = load_leaf(tmp_path)
  assert len(got.x_train) == len(got.x_test) == 3


def test_leaf_users_without_rows_of_one_kind(tmp_path):
  for split, users in (("train", USERS), ("test", {"bo": ([], []), "al": USERS["al"]})):
    (tmp_path / split).mkdir()
    (tmp_path / split / "a.json").write_text(leaf(users))
  got = load_leaf(tmp_path)
  np.testing.assert_array_equal(got.client_test, [1])
  assert got.x_test.shape == (1, 2)
  (tmp_path / "train" / "b.json").write_text(leaf({"cy": ([], [])}))
  refuses(lambda: load_leaf(tmp_path), "user 'cy' has no data")


def test_leaf_pixels_as_images(tmp_path):
  """FEMNIST's json has 784 numbers an image."""
  rng = np.random.default_rng(0)
  x = rng.random((20, 49)).tolist()
  path = tmp_path / "femnist.json"
  path.write_text(leaf({"w": (x, [i % 3 for i in range(20)])}))
  flat = fa.federate(f"leaf:{path}")
  fed = fa.federate(f"leaf:{path}", features="images")
  assert fed.example_shape == (7, 7, 1) and flat.example_shape == (49,)
  np.testing.assert_array_equal(
    np.asarray(fed.data.test.x).reshape(-1, 49), flat.data.test.x
  )
  with pytest.raises(
    fa.OptionError,
    match="model=cnn: needs images of .*; features=images makes 7x7 of flat pixels$",
  ):
    fa.run("fedavg", flat, model="cnn", rounds=1, participation=1.0)
  path.write_text(leaf({"w": ([[1.0, 2.0]] * 20, [0] * 20)}))
  refuses(
    lambda: fa.federate(f"leaf:{path}", features="images"),
    "features=images: needs images or their pixels",
    "shape (2,)",
  )


TEXTS = {"bo": (["To b", "o be"], ["e", ","]), "al": (["No @"], ["x"])}


def test_leaf_text(tmp_path):
  path = tmp_path / "text.json"
  path.write_text(leaf(TEXTS))
  got = load_leaf(path)
  np.testing.assert_array_equal(
    got.x_train, [characters.encode_text(x) for x in ("To b", "No @")]
  )
  assert len(got.y_test) == 0  # the other window shares text with the first
  np.testing.assert_array_equal(
    got.y_train, characters.classes(characters.encode_text("ex"))
  )
  assert (got.num_classes, got.num_tokens) == (81, 82)
  assert got.x_train.dtype == got.x_test.dtype == np.int32
  assert got.client_names.tolist() == ["bo", "al"]


@pytest.mark.parametrize(
  "text, says",
  [
    (leaf(USERS | {"cy": TEXTS["bo"]}), "some users have text, others numbers"),
    (leaf({"al": (["To b", "No"], ["x", "y"])}), "x must be texts of one"),
    (leaf({"al": (["To b"], ["xy"])}), "y the character after each"),
    (leaf({"al": (["To b"], [3])}), "x and y must be numbers"),
    (leaf(USERS)[:-20], "or truncated, in line 1, column"),
    ("[]", "not a table in json"),
    ('{"users": ["a"]}', "no key 'user_data'"),
    (leaf({}), "at least one user"),
    (leaf(USERS, num_samples=[1]), "num_samples must be a list of 2"),
    (leaf(USERS, users=["bo", "cy"]), "user 'cy' has no x and y"),
    (leaf(USERS | {"cy": ([], [])}), "user 'cy' has no data"),
    (leaf(USERS | {"cy": ([[1.0, 2.0]], [0, 1])}), "1 x but 2 y"),
    (leaf(USERS | {"cy": ([[1.0]], [0])}), "different shapes [(1,), (2,)]"),
    (leaf(USERS | {"cy": ([[1.0], [1.0, 2.0]], [0, 1])}), "all x of one"),
    (
      leaf(USERS | {"cy": (["text"], [0])}),
      "x and y must be numbers, x are texts ('text'), as in LEAF's Sent140",
    ),
    (
      leaf(USERS | {"cy": ([["1", "Mon", "q", "cy", "so nice"]], [0])}),
      "x are texts ('so nice'), as in LEAF's Sent140; give ids of words",
    ),
    (
      leaf({"cy": (["000001.jpg"], [0])}),
      "x are names of image files ('000001.jpg'), as in LEAF's CelebA; read",
    ),
    (leaf({"cy": (["000001.jpg"], ["0"])}), "as in LEAF's CelebA; read the"),
    (leaf(USERS | {"cy": ([[float("nan"), 1]], [0])}), "NaN or infinite"),
    (leaf(USERS | {"cy": ([[1.0, 1.0]], [0.5])}), "whole number in"),
    (leaf(USERS | {"cy": ([[1.0, 1.0]], [-1])}), "whole number in"),
    (leaf(USERS | {"cy": ([[1.0, 1.0]], [3e9])}), "whole number in"),
    (leaf(USERS | {"cy": ([["1", "2"]], [0])}), "x and y must be numbers"),
    (leaf(USERS | {"cy": ([[1, 2]], ["0"])}), "x and y must be numbers"),
    (leaf(USERS | {"cy": ([[10**400, 1]], [0])}), "x and y must be numbers"),
    pytest.param("[" * 200_000, "not a table in json", id="brackets"),
  ],
)
def test_bad_leaf(tmp_path, text, says):
  path = tmp_path / "bad.json"
  path.write_text(text)
  refuses(lambda: load_leaf(path), says, f"dataset={path}")


def test_leaf_that_is_none(tmp_path):
  refuses(lambda: load_leaf(tmp_path / "no"), "no such file or folder")
  refuses(lambda: load_leaf(tmp_path), "no train/*.json in it")


def test_tfds_not_prepared(tmp_path, monkeypatch):
  refuses(
    lambda: tfds_source.load_tfds("mnist", tmp_path),
    f"fedjax-alg prepare mnist data_dir={tmp_path}",
  )
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "env"))
  refuses(lambda: tfds_source.load_tfds("cifar10"), f"{tmp_path / 'env'}")
  refuses(lambda: tfds_source.load_tfds("imagenot", tmp_path), "not a data set of TFDS")


def test_prepare_needs_tensorflow(monkeypatch, tmp_path):
  monkeypatch.setattr(tfds_source.importlib.util, "find_spec", lambda name: None)
  refuses(
    lambda: tfds_source.prepare_tfds("mnist", tmp_path),
    "pip install 'fedjax_alg[prepare]'",
  )


def test_unreadable_records_are_named(tmp_path):
  directory = tmp_path / "mnist" / "3.0.1"
  directory.mkdir(parents=True)
  (directory / "dataset_info.json").write_text("not json")
  refuses(
    lambda: tfds_source.load_tfds("mnist", tmp_path, tmp_path / "c"),
    f"cannot read {directory}",
  )


SHAPE = (3, 2, 1)
IMAGES = {"image": tfds_records.image_of(*SHAPE), "label": tfds_records.LABEL}


def pictures(count, first=0, shape=SHAPE):
  """Pixel (0, 0) of an image, and its label, are its number."""
  images = np.zeros((count, *shape), np.uint8)
  images[:, 0, 0, 0] = first + np.arange(count)
  return [
    {"image": tfds_records.png(image[..., 0]), "label": int(image.max())}
    for image in images
  ]


@pytest.mark.parametrize(
  "name, place, split",
  [
    ("kmnist", "kmnist/3.0.1", "test"),
    ("tfds:eurosat", "eurosat/rgb/2.0.0", "test"),
    ("emnist/letters", "emnist/letters/3.1.0", "validation"),
    ("tfds:made_here", "made_here/1.10.0", None),
  ],
)
def test_any_images_of_tfds(tmp_path, monkeypatch, name, place, split):
  """The next time from the cache, which lies beside the data."""
  splits = {split: pictures(2, 7)} if split else {}
  tfds_records.write(
    tmp_path / place, name.split(":")[-1].split("/")[0], IMAGES, pictures(5), **splits
  )
  got = tfds_source.load_tfds(name, tmp_path)
  assert got.x_train.shape == (5, *SHAPE) and got.x_train.dtype == np.uint8
  np.testing.assert_array_equal(got.x_train[:, 0, 0, 0], range(5))
  np.testing.assert_array_equal(got.y_train, range(5))
  np.testing.assert_array_equal(got.y_test, [7, 8] if split else [])
  assert got.num_classes == (9 if split else 5)
  assert got.name == name.removeprefix("tfds:")
  (cached,) = (tmp_path / ".fedjax_alg_cache").glob("*.npz")
  assert cached.name == ("-".join(place.split("/")) + ".npz")
  real, decoded = tfds_source._decode, []
  monkeypatch.setattr(
    tfds_source, "_decode", lambda path: decoded.append(path) or real(path)
  )
  reloaded = tfds_source.load_tfds(name, tmp_path)
  np.testing.assert_array_equal(reloaded.x_train, got.x_train)
  assert not decoded
  info = tmp_path / place / "dataset_info.json"
  info.write_text(info.read_text() + " ")  # prepared anew
  tfds_source.load_tfds(name, tmp_path)
  assert decoded == [tmp_path / place]


@pytest.mark.parametrize(
  "features, rows, says",
  [
    (
      {"text": tfds_records.TEXT, "label": tfds_records.LABEL},
      [{"text": b"x", "label": 1}],
      "not labeled images, no feature image (it has label, text)",
    ),
    (
      {"image": IMAGES["image"]},
      [{"image": pictures(1)[0]["image"]}],
      "no feature label (it has image)",
    ),
    (
      {"image": IMAGES["image"], "label": tfds_records.TEXT},
      [{"image": pictures(1)[0]["image"], "label": b"x"}],
      "one class an image",
    ),
    (
      {"image": tfds_records.image_of(-1, -1, 1), "label": IMAGES["label"]},
      pictures(1) + pictures(1, shape=(4, 4, 1)),
      "images of different sizes, (3, 2, 1) and (4, 4, 1); one size is needed",
    ),
    (IMAGES, [pictures(1)[0] | {"label": -1}], "1 images without a label"),
  ],
)
def test_what_is_no_image_classification_is_refused(tmp_path, features, rows, says):
  tfds_records.write(tmp_path / "kmnist" / "1.0.0", "kmnist", features, rows)
  refuses(lambda: tfds_source.load_tfds("kmnist", tmp_path), says)


def test_a_configuration_must_be_named_if_there_are_several(tmp_path):
  for config in ("digits", "letters"):
    tfds_records.write(
      tmp_path / "emnist" / config / "1.0.0", "emnist", IMAGES, pictures(2)
    )
  refuses(
    lambda: tfds_source.load_tfds("tfds:emnist", tmp_path),
    "Prepared are tfds:emnist/digits, tfds:emnist/letters",
  )
  refuses(
    lambda: tfds_source.load_tfds("tfds:../emnist", tmp_path), "not a data set of TFDS"
  )


@pytest.mark.program
@pytest.mark.skipif(
  not (TFDS_DIR / "mnist").is_dir(),
  reason=f"no prepared MNIST in {TFDS_DIR} (set FEDJAX_ALG_DATA_DIR)",
)
def test_mnist_from_tfds(tmp_path):
  mnist = tfds_source.load_tfds("mnist", TFDS_DIR, tmp_path)
  assert mnist.x_train.shape == (60000, 28, 28, 1)
  assert mnist.x_test.shape == (10000, 28, 28, 1)
  assert mnist.x_train.dtype == np.uint8 and mnist.num_classes == 10
  np.testing.assert_array_equal(
    np.bincount(mnist.y_train),
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
  )
  np.testing.assert_allclose(mnist.x_train.mean() / 255, 0.1307, atol=1e-4)
  # The scale of raw and normalised features that the papers' steps assume.
  for norm, want in (("none", 4860), ("l2", 51.3)):
    hog = features.hog(mnist.x_train[::30], norm=norm)
    np.testing.assert_allclose(np.square(hog).sum(axis=1).mean(), want, rtol=0.01)


def test_all_faults_of_users_are_one_error(tmp_path):
  path = tmp_path / "faulty.json"
  users = {"al": ([[1.0]], [0]), "bo": ([[np.nan]], [0]), "cy": ([[1.0]], [0.5])}
  path.write_text(leaf(users))
  with pytest.raises(DataError) as error:
    load_leaf(path)
  assert "2 faults: (1) " in str(error.value)
  assert "user 'bo': x has NaN" in str(error.value)
  assert "user 'cy': y must be one whole number" in str(error.value)
  path.write_text(leaf({"al": users["al"], "bo": ([], []), "cy": ([], [])}))
  with pytest.raises(DataError, match="user 'bo', 'cy' has no data"):
    load_leaf(path)


def test_images_of_tfds_that_do_not_fit_are_refused_at_the_first(tmp_path, monkeypatch):
  tfds_records.write(tmp_path / "kmnist" / "3.0.1", "kmnist", IMAGES, pictures(5))
  size = 5 * int(np.prod(SHAPE))
  monkeypatch.setattr(memory, "host", lambda: memory.Limit(size - 1, "we have"))
  with pytest.raises(DataError, match="split train: 5 images of shape .* needs .* GB"):
    tfds_source.load_tfds("kmnist", tmp_path)
