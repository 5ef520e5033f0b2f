"""Plays: who says what, and the windows of characters."""

import os

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import characters, shakespeare
from tests.data.reading import refuses

PLAY = "\n\n".join(
  (
    "THE PLAY\nby Nobody",
    "ACT I.",
    "Scene I. A room.",
    "[Enter Ber and\n Fran.]",
    "Ber.\nWho's  there?\n  Friend.",
    "Fran.\nNay, answer me.",
    "[Exit Ghost.]",
    "He is gone.",
    "[Knock.]",
    "Scene II. Elsewhere\nand colder.",
    "Ber.\nLong live the king!",
    "1 Clown.\nHa.",
    "A line that stays alone.",
    "Ber.\n[Aside] So.",
    "FIRST LORD\nWell.",
    "Farewell.\nsays nobody twice.",
    "FIRST LORD\nIll @ ease.",
    "Fran.\nNo.\n",
  )
)
ROLES = {
  "Ber": "Who's there? Friend. Long live the king! [Aside] So.",
  "Fran": "Nay, answer me. He is gone. No.",
  "FIRST LORD": "Well. Ill @ ease.",
}


@pytest.fixture(name="folder")
def _folder(tmp_path):
  (tmp_path / "play.txt").write_text(PLAY)
  (tmp_path / "ode.txt").write_text("O wind,\nblow.\n\nII\n\nAgain.\n")
  return tmp_path


def load(*args):
  with pytest.warns(UserWarning, match="^no roles found in ode.txt$"):
    return shakespeare.load_shakespeare(*args)


def test_roles():
  assert shakespeare.roles(PLAY) == ROLES
  assert shakespeare.roles("") == {}


@pytest.mark.parametrize("length, stride", [(4, 1), (4, 3), (20, 1), (30, 2)])
def test_windows(folder, length, stride):
  got = load(folder, length, stride)
  train, test, names = [], [], []
  for role, text in ROLES.items():
    total = len(text) - length
    if total < 1:
      continue
    trains = max(1, int(0.8 * total))
    for start in range(0, trains, stride):
      train.append((text[start : start + length], text[start + length], len(names)))
    for start in range(trains + length, total, stride):
      test.append((text[start : start + length], text[start + length], len(names)))
    names.append(f"play: {role}")
  for split, rows in (("train", train), ("test", test)):
    x, y, client = (getattr(got, f"{field}_{split}") for field in ("x", "y", "client"))
    assert x.shape == (len(rows), length)
    for row, (text, after, number) in enumerate(rows):
      np.testing.assert_array_equal(x[row], characters.encode_text(text))
      assert y[row] == characters.encode_text(after)[0] - 1
      assert client[row] == number
  assert got.client_names.tolist() == names and len(train) > 0


def test_clients_keep_their_names(folder):
  with pytest.warns(UserWarning):
    fed = fa.federate(
      f"shakespeare:{folder},4",
      partition="natural:min_size=15",
    )
  assert fed.client_names.tolist() == ["play: Ber", "play: Fran"]
  assert (fed.num_tokens, fed.num_classes) == (82, 81)
  assert fed.data.train.x.dtype == np.int32


def test_refused_in_one_line(folder, tmp_path):
  (tmp_path / "empty").mkdir()
  for path, length, says in (
    (tmp_path / "no.txt", 4, "No such file"),
    (tmp_path / "empty", 4, "no *.txt in it"),
    (folder, 80, "no role with more than length=80 characters in 2"),
  ):
    refuses(lambda: shakespeare.load_shakespeare(path, length), says, f"dataset={path}")


@pytest.mark.parametrize("length", [1, 5, 11])
def test_sequences_are_the_text_of_the_windows(folder, length):
  """Both forms predict the same characters for training and for testing."""
  windows, sequences = load(folder, length), load(folder, length, 1, "tokens")
  assert sequences.num_tokens == sequences.num_classes == characters.NUM_TOKENS
  assert list(sequences.client_names) == list(windows.client_names)
  for split in ("train", "test"):
    x, y, client = (
      getattr(sequences, f"{name}_{split}") for name in ("x", "y", "client")
    )
    assert x.shape == y.shape == (len(client), length)
    of_windows = getattr(windows, f"client_{split}")
    for number in range(len(windows.client_names)):
      ids = y[client == number]
      predicted = ids[ids != 0]
      # The windows alone predict nothing of their first characters.
      rows = np.flatnonzero(of_windows == number)
      if not len(rows):
        continue
      first = getattr(windows, f"x_{split}")[rows[0]]
      last = getattr(windows, f"y_{split}")[rows] + 1
      np.testing.assert_array_equal(predicted, np.concatenate([first[1:], last]))
      np.testing.assert_array_equal(
        x[client == number].ravel()[: len(predicted)],
        np.concatenate([first, last])[:-1],
      )


def test_a_pipe_is_refused(tmp_path):
  """To read it would wait for ever."""
  os.mkfifo(tmp_path / "a.txt")
  refuses(lambda: shakespeare.load_shakespeare(tmp_path), "no regular file")
