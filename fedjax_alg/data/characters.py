"""Characters as token ids and as classes, for next-character prediction."""

import numpy as np

PADDING, UNKNOWN = 0, 1
SPECIAL = 2  #: the ids below are no characters, and of texts in words no words

#: The 80 characters of LEAF (Caldas et al. 2018).
ALPHABET = (
  "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
#: Token ids: 0 is padding, 1 any character outside the alphabet.
NUM_TOKENS = SPECIAL + len(ALPHABET)
#: Class k is the token k + 1: padding is never predicted.
NUM_CLASSES = NUM_TOKENS - 1

_ASCII = 128
_TOKEN = np.full(_ASCII, UNKNOWN, np.int8)
_TOKEN[[ord(character) for character in ALPHABET]] = SPECIAL + np.arange(len(ALPHABET))


def encode_text(text: str) -> np.ndarray:
  """Converts a text to token ids.

  Args:
    text: any text of n characters.

  Returns:
    [n] int8 in [1, NUM_TOKENS).
  """
  codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
  # ASCII ends with a control character, which is outside the alphabet.
  result: np.ndarray = _TOKEN[np.minimum(codes, _ASCII - 1)]
  return result


def decode_text(tokens: np.ndarray, alphabet: str = ALPHABET) -> str:
  """Converts token ids to a text, as ``encode_text`` does the other way round.

  Args:
    tokens: [n] integers; padding (0) is left out, and id 1 (a character outside the
      alphabet) becomes U+FFFD.
    alphabet: the characters of the ids from 2 on; ``vocabulary`` of a run's
      config.json.

  Returns:
    The text.

  Raises:
    ValueError: an id outside the alphabet.
  """
  ids = np.asarray(tokens)
  if ids.size and not 0 <= ids.min() <= ids.max() < SPECIAL + len(alphabet):
    raise ValueError(f"ids from 0 to {SPECIAL + len(alphabet) - 1} are needed")
  symbols = ["", "\ufffd", *alphabet]
  return "".join(symbols[number] for number in ids)


def classes(tokens: np.ndarray) -> np.ndarray:
  """Converts token ids to classes, int32."""
  return tokens.astype(np.int32) - 1
