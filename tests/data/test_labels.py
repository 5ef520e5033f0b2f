"""Names as numbers: the training labels decide, for all others, too."""

import datetime

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from fedjax_alg.data import labels
from fedjax_alg.data.errors import DataError
from tests.each import each

NAMES = st.one_of(
  st.lists(st.text(max_size=3), min_size=1), st.lists(st.booleans(), min_size=1)
)


@pytest.mark.program
@hypothesis.given(NAMES, st.data())
def test_a_name_has_its_code_whatever_stands_beside_it(train, data):
  """Without one encoding a test set of fewer names would be numbered anew."""
  names = labels.learn_names(np.array(train, object), "`y`:")
  assert list(names) == sorted(
    {*train, *((False, True) if isinstance(train[0], bool) else ())}
  )
  some = data.draw(st.lists(st.sampled_from(train)))
  codes = labels.encode_labels(np.array(some, object), names, "`y_test`:")
  assert codes.dtype == np.int32
  assert [names[code] for code in codes] == some


@pytest.mark.parametrize(
  "values", [np.array(["b", "a"]), np.array([b"b", b"a"]), np.array(["b", "a"], object)]
)
def test_texts_of_every_dtype_are_one_kind(values):
  assert labels.learn_names(values, "") == ("a", "b")
  assert labels.encode_labels(values, ("a", "b"), "").tolist() == [1, 0]


@each(
  "values, message",
  [
    (["a", "c"], "^y: has 'c' in row 1, which is none of the 2 names of"),
    ([1, "a"], "^y: has 1 in row 0"),
    (["a", None], "^y: has 1 missing value .*, the first in row 1"),
    ([float("nan"), np.datetime64("NaT", "s")], "^y: has 2 missing values"),
    ([{}, "a"], "^y: holds dict, one label for each row"),
    ([["a"], ["b"]], r"^y: has shape \(2, 1\), one label for each row"),
  ],
)
def test_what_has_no_code_is_refused_with_its_row(values, message):
  with pytest.raises(DataError, match=message):
    labels.encode_labels(np.array(values, object), ("a", "b"), "`y`:")


@pytest.mark.parametrize(
  "values, message",
  [
    (["a", 1], "int and str"),
    ([True, "a"], "bool and str"),
    ([1.5, 2.5], "float"),
    ([10**30, 1], "int"),
    ([datetime.date(2024, 1, 1)], "date"),
  ],
)
def test_labels_are_texts_or_truth_values(values, message):
  """Real numbers as objects would be classes, one for each number."""
  with pytest.raises(DataError, match=f"^y: holds {message}, labels must be"):
    labels.learn_names(np.array(values, object), "`y`:")


@pytest.mark.parametrize(
  "values, dtype",
  [
    ([1, np.int8(2)], np.int64),
    ([1, True], object),
    ([1, 2.0], object),
    ([10**30], object),
    ([], object),
  ],
)
def test_objects_are_whole_numbers_where_all_are(values, dtype):
  numbers = labels.whole_objects(np.array(values, object))
  assert numbers.dtype == dtype and numbers.tolist() == values
