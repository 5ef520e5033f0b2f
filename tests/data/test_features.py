"""Features against plain loops written from the definitions."""

import math
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from fedjax_alg import part
from fedjax_alg.data import DataError, features
from fedjax_alg.data.npy_rows import NpyRows


def hog_by_loops(image, block, stride, bins, norm, scale, eps):
  """One [H, W] image in [0, 1], float64, one pixel at a time."""
  height, width = image.shape
  out = []
  for top in range(0, height - block + 1, stride):
    for left in range(0, width - block + 1, stride):
      cell = [0.0] * bins
      for i in range(top, top + block):
        for j in range(left, left + block):
          dy = image[i + 1, j] - image[i - 1, j] if 0 < i < height - 1 else 0
          dx = image[i, j + 1] - image[i, j - 1] if 0 < j < width - 1 else 0
          angle = math.atan2(dy, dx) % (2 * math.pi)
          cell[int(angle / (2 * math.pi) * bins)] += math.hypot(dx, dy)
      if norm == "l2":
        size = math.sqrt(sum(v * v for v in cell) + eps**2)
      else:
        size = sum(cell) + eps if norm == "l1" else 1
      out += [scale * v / size for v in cell]
  return np.array(out)


@pytest.mark.parametrize("norm", ["l2", "l1", "none"])
@pytest.mark.parametrize(
  "shape, block, stride, bins",
  [((28, 28), 7, 3, 9), ((32, 32), 7, 3, 9), ((8, 8), 3, 2, 4), ((9, 12), 4, 3, 5)],
)
def test_hog_is_the_loop(norm, shape, block, stride, bins):
  rng = np.random.default_rng(0)
  # Few grey levels: flat regions, empty blocks and exact angles all occur.
  images = rng.choice(np.array([0, 0, 0, 17, 255], np.uint8), (3, *shape, 1))
  images[0, : shape[0] // 2] = 0
  got = features.hog(images, block, stride, bins, norm=norm, scale=1.5, eps=1e-3)
  want = np.stack(
    [
      hog_by_loops(image[..., 0] / 255, block, stride, bins, norm, 1.5, 1e-3)
      for image in images
    ]
  )
  assert got.dtype == np.float32
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_hog_sizes_of_the_paper():
  assert features.hog(np.zeros((2, 28, 28, 1), np.uint8)).shape == (2, 576)
  assert features.hog(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 729)
  assert features.hog(np.zeros((0, 28, 28, 1), np.uint8)).shape == (0, 576)


def test_hog_chunks_do_not_mix_images():
  images = np.random.default_rng(1).random((1100, 8, 8)).astype(np.float32)
  all_features = features.hog(images)
  np.testing.assert_allclose(
    all_features[[0, 511, 512, 1099]],
    features.hog(images[[0, 511, 512, 1099]]),
    rtol=1e-6,
    atol=1e-7,
  )


def test_hog_has_the_same_bits_with_any_number_of_blas_threads():
  images = np.random.default_rng(3).integers(0, 256, (600, 28, 28), dtype=np.uint8)
  outputs = []
  for threads in (1, 2):
    with threadpoolctl.threadpool_limits(limits=threads, user_api="blas"):
      outputs.append(features.hog(images))
  np.testing.assert_array_equal(*outputs)


def test_hog_of_colour_is_hog_of_luminance():
  images = np.random.default_rng(2).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
  grey = (images / 255) @ np.array([0.299, 0.587, 0.114])
  np.testing.assert_allclose(
    features.hog(images, norm="none"),
    features.hog(grey.astype(np.float32), norm="none"),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize(
  "options, shape, says",
  [
    ({}, (2, 64), "features=hog needs images"),
    ({}, (2, 8, 8, 2), "features=hog needs images"),
    ({"block": 9}, (2, 8, 8), "features=hog: block=9"),
    (
      {"block": 1, "stride": 1},
      (1, 700, 700),
      r"features=hog: bins=9, stride=1: 490000 blocks .* needs .* GB of memory",
    ),
  ],
)
def test_hog_refuses(options, shape, says):
  with pytest.raises(DataError, match=says):
    features.hog(np.zeros(shape, np.float32), **options)


def test_standardize_uses_only_the_training_set():
  rng = np.random.default_rng(3)
  train = rng.normal(3, 2, (700, 2, 3)).astype(np.float32)
  train[:, 1, 2] = 5  # never changes in training
  test = rng.normal(size=(40, 2, 3)).astype(np.float32)
  got_train, got_test = map(features.fit_scaler(train).apply, (train, test))
  mean, std = train.mean(0, np.float64), train.std(0, np.float64)
  want = (test - mean) / (std + 0.001)
  want[:, 1, 2] = 0
  assert got_train.dtype == got_test.dtype == np.float32
  assert got_train.shape == train.shape
  np.testing.assert_allclose(got_test, want, rtol=1e-4, atol=1e-5)
  live = got_train.reshape(700, 6)[:, :5]
  np.testing.assert_allclose(live.mean(0), 0, atol=1e-4)
  np.testing.assert_allclose(
    live.std(0), std.ravel()[:5] / (std.ravel()[:5] + 0.001), rtol=1e-4
  )
  np.testing.assert_array_equal(got_train[:, 1, 2], 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(1,), (2,), (1, 3), (5, 5, 1), (9000,)])
def test_the_scale_of_rows_in_a_file_has_the_same_bits(tmp_path, shape, dtype):
  """NumPy adds rows one after the other, and a single column in pairs."""
  rng = np.random.default_rng(4)
  for size in (1, 513, 1537):
    x = (100 * rng.random((size, *shape), np.float32)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    rows = NpyRows(tmp_path / "x.npy")
    expected, actual = features.fit_scaler(x), features.fit_scaler(rows)
    for a, b in zip(expected, actual, strict=True):
      assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    assert actual.apply(rows)[:].tobytes() == expected.apply(x).tobytes()


@pytest.mark.parametrize("text", ["contrast", "hog:block=3", "flatten", "images"])
def test_features_of_rows_in_a_file_have_the_same_bits(tmp_path, text, monkeypatch):
  """The last part of a file has as many rows as the last chunk of an array."""
  monkeypatch.setattr(features, "_PART_BYTES", 2**17)
  x = np.random.default_rng(4).random((1300, 6, 6), np.float32)
  np.save(tmp_path / "x.npy", x)
  kind: Any = part.read_part("features", text, features.FEATURES)
  actual = kind.compute(NpyRows(tmp_path / "x.npy"))
  expected = kind.compute(x)
  assert actual.shape == expected.shape
  assert actual[:].tobytes() == expected.tobytes()


def test_standardize_of_bytes_keeps_their_scale():
  train = np.array([[0], [200]], np.uint8)
  got = features.fit_scaler(train).apply(train)
  np.testing.assert_allclose(got, [[-100 / 100.001], [100 / 100.001]])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_contrast_is_the_loop(dtype):
  rng = np.random.default_rng(5)
  images = rng.integers(0, 256, (600, 3, 4, 2)).astype(dtype)
  images[1] = 7  # no contrast
  got = features.contrast(images)
  assert got.dtype == np.float32 and got.shape == images.shape
  for i in (0, 1, 511, 512, 599):
    image = images[i] / 255 if dtype == np.uint8 else images[i]
    want = (image - image.mean(dtype=np.float64)) / math.sqrt(
      image.var(dtype=np.float64) + 0.001
    )
    np.testing.assert_allclose(got[i], want, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(got[1], 0, atol=1e-6)
  assert features.contrast(images[:0]).shape == (0, 3, 4, 2)


def test_none_and_flatten():
  images = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2, 1) * 30
  plain = features.none(images)
  assert plain.dtype == np.float32 and plain.shape == images.shape
  np.testing.assert_allclose(plain, images / 255, rtol=1e-6)
  np.testing.assert_array_equal(features.flatten_examples(images), plain.reshape(2, 4))
  tokens = np.array([[3, 1]], np.int32)
  assert features.none(tokens).dtype == np.int32


def test_features_are_of_each_example():
  images = np.random.default_rng(4).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
  before = images.copy()
  for kind, shape in (
    (features.Flattened(), (64,)),
    (features.Hog(bins=4, norm="l1"), (4,)),
    (features.Contrast(), (8, 8, 1)),
  ):
    train, test = map(kind.compute, (images, images[:1]))
    assert train.shape == (3, *shape) and test.shape == (1, *shape)
    np.testing.assert_array_equal(train[:1], test)
    np.testing.assert_array_equal(images, before)
