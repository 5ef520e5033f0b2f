"""The data sets of scikit-learn."""

import numpy as np

from fedjax_alg.data import scikit_learn


def test_digits():
  digits = scikit_learn.load_digits()
  assert digits.x_train.shape[1:] == (8, 8, 1)
  assert digits.x_train.dtype == np.float32
  assert digits.y_train.dtype == np.int32
  assert len(digits.y_train) + len(digits.y_test) == 1797
  assert digits.x_train.min() == 0 and digits.x_train.max() == 1
  per_class = np.bincount(digits.y_test) / np.bincount(
    np.concatenate([digits.y_train, digits.y_test])
  )
  np.testing.assert_allclose(per_class, 0.2, atol=0.003)
  train = {image.tobytes() for image in digits.x_train}
  assert not any(image.tobytes() in train for image in digits.x_test)
  np.testing.assert_array_equal(scikit_learn.load_digits().y_test, digits.y_test)


def test_digits_are_those_of_scikit_learn(monkeypatch):
  """Also where a later version keeps its file elsewhere."""
  by_file = scikit_learn.load_digits()
  monkeypatch.setattr(scikit_learn.importlib.util, "find_spec", lambda name: None)
  by_import = scikit_learn.load_digits()
  for name in ("x_train", "y_train", "x_test", "y_test"):
    np.testing.assert_array_equal(getattr(by_file, name), getattr(by_import, name))
