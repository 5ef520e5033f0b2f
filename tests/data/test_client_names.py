"""A client has one name, by which it is found wherever it is given."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import client_names as names_lib
from tests.each import each

HOSPITALS = names_lib.index_names(np.array(["H01", "H03", "Smith, J", "7"]))


@each(
  "client, position",
  [
    ("H03", 1),
    (np.str_("Smith, J"), 2),
    (7, 3),
    (np.int64(7), 3),
    (jnp.int32(7), 3),
    ("7", 3),
  ],
)
def test_a_name_is_a_text_or_a_whole_number(client, position):
  assert names_lib.position_of("client", client, HOSPITALS, 4) == position


@each("client", [True, np.True_, jnp.bool_(True), 7.0, None, b"H03", ["H03"]])
def test_nothing_else_is_a_name(client):
  """True is not client 1, and 7.0 is not client 7."""
  for names in (HOSPITALS, None):
    with pytest.raises(
      fa.OptionError, match="^client=.*: must be the name of a client"
    ):
      names_lib.position_of("client", client, names, 9)


@each("client", [0, 3, "h03", "H3", "H02", ""])
def test_a_position_or_a_misspelt_name_is_no_name(client):
  with pytest.raises(fa.OptionError, match=f"^who={client}: no client of this name"):
    names_lib.position_of("who", client, HOSPITALS, 4)


def test_a_misspelt_name_is_suggested():
  with pytest.raises(fa.OptionError, match="did you mean 'H03'"):
    names_lib.position_of("client", "h-03", HOSPITALS, 4)


def test_clients_without_names_are_called_by_their_positions():
  names = names_lib.names_of_positions(12)
  assert names.tolist() == [str(i) for i in range(12)]
  for position, name in enumerate(names):
    for client in (position, name):
      assert names_lib.position_of("client", client, None, 12) == position
  for wrong in (12, -1, "03", "+3", "3.0", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 5000):
    with pytest.raises(fa.OptionError, match=r"must be a whole number in \[0, 12\)"):
      names_lib.position_of("client", wrong, None, 12)


def test_one_name_or_several():
  """A text is a list, as that of every option; a name with a comma has quotes."""
  find = lambda clients: names_lib.positions_of("clients", clients, HOSPITALS, 4)
  assert find('"Smith, J"') == find(["Smith, J"]) == [2] and find(7) == [3]
  assert find('7, "Smith, J"') == [3, 2]
  assert find(["H03", 7]) == find(np.array(["H03", "7"])) == [1, 3]
  assert find(x for x in ("7", "H03")) == [3, 1]
  for wrong, says in (
    ([], "^clients: give at least one"),
    (["H03", "H01", "H03"], "^clients=H03,H01,H03: H03 is given twice"),
    ([7, "7"], "^clients=7,7: 7 is given twice"),
    ("Smith, J", "^clients=Smith: no client of this name, did you mean 'Smith, J'"),
    ('"Smith, J', "^clients=.Smith, J: must be names of clients, separated by comm"),
    (["H03", True], "^clients=True: must be the name"),
  ):
    with pytest.raises(fa.OptionError, match=says):
      find(wrong)


def test_many_names_are_not_compared_with_each_other(monkeypatch):
  """Or the clients of ``without`` take seconds from some thousands on."""
  comparisons = []

  class Name(str):
    __hash__ = str.__hash__

    def __eq__(self, text):
      comparisons.append(text)
      return str.__eq__(self, text)

  monkeypatch.setattr(names_lib, "text_of", lambda option, name: Name(name))
  names = names_lib.texts_of("without", [f"client {i}" for i in range(300)])
  assert len(names) == 300 and len(comparisons) < 300


@pytest.mark.parametrize(
  "names", [["3", "17"], ["Smith, J", "H03"], ['the "old", ward', "b"], []]
)
def test_a_line_of_names_is_split_as_it_was_joined(names):
  assert names_lib.split_line("forget", names_lib.join_names(names)) == names


def test_a_quote_that_is_not_closed_is_refused():
  with pytest.raises(fa.OptionError, match="^forget=.*separated by commas"):
    names_lib.split_line("forget", '"Smith, J')


@pytest.mark.parametrize(
  "ids, names",
  [
    ([5, 1, 3] * 10, ["1", "3", "5"]),
    ([5, 1] * 14 + [5, 3], ["1", "3", "5"]),  # one row names a client
    (["b", "a", "10"] * 10, ["10", "a", "b"]),
    ([b"b", b"\xff", b"\xfe"] * 10, ["b", "\\xfe", "\\xff"]),
  ],
)
def test_the_ids_of_the_data_are_the_names(ids, names):
  """Numbers, too: client 3 of 1, 3, 5 is the second one, and there is no client 0."""
  x = np.arange(30.0)[:, None]
  examples = fa.from_arrays(x, np.arange(30) % 2, np.array(ids))
  fed = fa.federate(examples, partition="natural")
  assert fed.client_names.tolist() == names
  of = np.argsort(np.argsort(np.unique(np.array(ids))))
  for position, name in zip(of, names):
    rows = np.concatenate([fed.client(name)[0], fed.client_test(name)[0]])[:, 0]
    expected = np.flatnonzero(
      np.unique(np.array(ids), return_inverse=True)[1] == position
    )
    assert sorted(rows.tolist()) == expected.tolist()
    assert fed.position(name) == position
