"""Choices of columns, of clients and of classes."""

import pytest

import fedjax_alg as fa
from fedjax_alg.data import DataError
from tests.data.rows_in_any_order import (
  NAMES,
  OWNERS,
  Items,
  N,
  V,
  X,
  check,
  in_memory,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_test_rows_have_the_classes_of_training_rows(tmp_path):
  class Few(Items):
    def __len__(self):
      return 40

    def __getitem__(self, place):
      return X[place], ("dog", "cat")[place % 2], OWNERS[place]

  tests = X[:40], [("dog", "cat")[place % 2] for place in range(40)], OWNERS[:40]
  expected = in_memory(x_test=tests[0], y_test=tests[1], test_client_ids=tests[2])
  check(tmp_path, fa.StreamedRows(Items(), x=0, y=1, client=2, test=Few()), expected)


@pytest.mark.parametrize(
  ("options", "why"),
  [
    (dict(y=1), "client: missing"),
    (dict(client=2), "y: missing"),
    (dict(y=1, client=2), "x: missing"),
    (dict(x=0, y=1, client=7), "dataset: its items have no 7"),
    (dict(x=1, y=1, client=2), "x: column 1 is .*numbers"),
    (dict(x=0, y=1, client=0), "dataset: 0 is float32"),
    (dict(x=0, y=1, client=2, classes=["ant", "cat"]), "dataset: 1 has 'dog'"),
    (dict(x=0, y=1, client=2, classes=["ant", "cat", "ant"]), "classes=.*once"),
    (dict(x=0, y=[1], client=2), "y: a list"),
  ],
)
def test_a_wrong_choice_is_one_line(tmp_path, options, why):
  rows = [(V[place], NAMES[place], OWNERS[place]) for place in range(N)]
  with pytest.raises(DataError, match=f"^{why}") as error:
    fa.write_clients(tmp_path, fa.StreamedRows(rows, **options))
  assert "\n" not in str(error.value)
