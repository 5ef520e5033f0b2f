"""Characters as numbers, against LEAF's lookup."""

import string

import numpy as np

from fedjax_alg.data import characters


def test_alphabet():
  letters = characters.ALPHABET
  assert len(letters) == len(set(letters)) == 80 and list(letters) == sorted(letters)
  assert set(string.ascii_letters + string.digits) < set(letters)
  assert (characters.NUM_TOKENS, characters.NUM_CLASSES) == (82, 81)


def test_encoding_is_a_lookup():
  text = characters.ALPHABET + "@é~\x7f\U0001f600\0" + "Ham. to be?"
  got = characters.encode_text(text)
  # str.find gives -1 for unknown characters, as in LEAF: token 1.
  assert got.tolist() == [characters.ALPHABET.find(c) + 2 for c in text]
  assert got.dtype == np.int8
  assert characters.classes(got).tolist() == [
    characters.ALPHABET.find(c) + 1 for c in text
  ]
