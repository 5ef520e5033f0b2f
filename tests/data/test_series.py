"""Series as windows."""

import numpy as np
import pytest

import fedjax_alg as fa

SERIES = [np.arange(14.0).reshape(7, 2), np.zeros((2, 2)), -np.ones((4, 2))]


@pytest.mark.parametrize("length, step", [(3, None), (3, 1), (3, 5), (4, 2), (1, 1)])
def test_windows_are_slices_of_their_series(length, step):
  """Without it windows could reach over the end of a series into the next one."""
  cut = fa.window(SERIES, length, step)
  by_hand = [
    (place, first)
    for place, series in enumerate(SERIES)
    for first in range(0, len(series) - length + 1, step or length)
  ]
  assert list(zip(cut.series.tolist(), cut.first.tolist())) == by_hand
  for x, (place, first) in zip(cut.x, by_hand, strict=True):
    np.testing.assert_array_equal(x, SERIES[place][first : first + length])


def test_windows_are_examples_of_the_clients_of_their_series():
  """The labels and clients of the series, by ``series``, are those of the windows."""
  labels, people = np.array([0, 1, 1]), np.array(["a", "b", "b"])
  cut = fa.window(SERIES, length=2)
  data = fa.from_arrays(cut.x, labels[cut.series], people[cut.series])
  federation = fa.federate(data, partition="natural:test_share=0.5")
  assert federation.client_names.tolist() == ["a", "b"]
  assert federation.partition.train_size.tolist() == [2, 2]


@pytest.mark.parametrize(
  "options, name",
  [
    ({"length": 0}, "length"),
    ({"length": 2.5}, "length"),
    ({"length": 8}, "length"),
    ({"length": 2, "step": 0}, "step"),
    ({"length": 2, "series": []}, "length"),
    ({"length": 2, "series": [*SERIES, np.zeros((4, 3))]}, r"series\[3\]"),
    ({"length": 2, "series": [*SERIES, np.zeros((4, 2), int)]}, r"series\[3\]"),
    ({"length": 2, "series": [["a", "b"]]}, r"series\[0\]"),
    ({"length": 2, "series": [1.0]}, r"series\[0\]"),
    ({"length": 2, "series": [[[1.0], [1.0, 2.0]]]}, r"series\[0\]"),
    ({"length": 2, "series": 3}, "series"),
  ],
)
def test_what_cannot_be_cut_is_refused_in_one_line(options, name):
  with pytest.raises(fa.OptionError, match=f"^{name}") as error:
    fa.window(**{"series": SERIES, **options})
  assert "\n" not in str(error.value)
