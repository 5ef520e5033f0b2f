"""What a run has learnt of its rows is read again from its folder."""

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import preprocessing
from fedjax_alg.data.labels import Encoding

ENCODINGS = [
  Encoding(("no", "yes")),
  Encoding((False, True), None, ["age", 3, ("a", 1)], (), {"age": 2.5}),
  Encoding(
    None,
    {"ward": ("b", "a"), "y": (7, 3), "s": (1.5, "x")},
    {"one": ["ward", "s"], "two": "window"},
    ("s",),
    {"ward": "a"},
  ),
  Encoding(columns="window"),
]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoding_is_read_as_it_was_written(encoding, tmp_path):
  preprocessing.write_encoding(tmp_path, encoding)
  assert preprocessing.read_encoding(tmp_path) == encoding
  preprocessing.write_encoding(tmp_path, None)
  assert preprocessing.read_encoding(tmp_path) is None
  assert not any(tmp_path.iterdir())


def test_intervals_are_found_again_by_their_texts(tmp_path):
  """JSON has no intervals, and ages come in them."""
  pd = pytest.importorskip("pandas", reason="the package pandas is missing")
  frame = pd.DataFrame({"age": pd.cut([1, 9, 6], [0, 5, 10]), "y": [0, 1, 1]})
  examples = fa.from_dataframe(frame.assign(age=frame["age"].cat.as_unordered()), y="y")
  preprocessing.write_encoding(tmp_path, examples.encoding)
  again = preprocessing.read_encoding(tmp_path)
  assert again.categories == {"age": ("(0, 5]", "(5, 10]")}
  for encoding in (examples.encoding, again):
    features = preprocessing.frames.encode_features(encoding, frame[["age"]])
    np.testing.assert_array_equal(features, [[1, 0], [0, 1], [0, 1]])


@pytest.mark.parametrize(
  "features", ["none", "flatten", "standardize", "contrast", "hog"]
)
def test_raw_rows_become_the_rows_of_the_federation(features):
  fed = fa.federate("digits", num_clients=4, features=features)
  raw = fa.federate("digits", num_clients=4).data.whole_test
  total = int(raw.size.sum())
  expected = np.asarray(fed.data.whole_test.x[:total])
  computed = fed.preprocessing.apply(np.asarray(raw.x[:total]))
  np.testing.assert_allclose(computed, expected, rtol=1e-6, atol=1e-6)
  assert computed.dtype == np.float32


def test_each_array_of_a_dictionary_keeps_its_meaning():
  """Whole numbers are ids where the model reads ids, and else numbers.

  Fractions and images had been read as ids, too.
  """
  ids, age = np.arange(40).reshape(20, 2), np.arange(20.0)[:, None]
  rows = {"ids": ids, "age": age}, np.arange(20) % 2
  examples = fa.from_arrays(*rows, x_test=rows[0], y_test=rows[1])
  fed = fa.federate(examples, num_clients=2)
  x = fed.preprocessing.apply({"ids": ids, "age": age.astype(int)})
  assert {name: part.dtype for name, part in x.items()} == fed.example_dtype
  assert fed.example_dtype == {"ids": np.int32, "age": np.float32}
  np.testing.assert_array_equal(x["ids"], ids)
  for dtype in (np.float32, np.uint8):
    with pytest.raises(fa.DataError, match="^x: is float32, the model reads ids"):
      fed.preprocessing.apply({"ids": ids.astype(dtype), "age": age})
