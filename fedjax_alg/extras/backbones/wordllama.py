"""Texts as means of the vectors of their tokens, from the package wordllama.

The package (MIT) has 32,000 vectors of 256 numbers, which were trained from the token
embeddings of Llama 2, and its tokenizer: byte pairs, merged in the order of a list
(Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", ACL
2016). Both are read from their files; nothing of the package is imported.
"""

from collections.abc import Iterable, Mapping
import functools
import re
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import files
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.extras.backbones.weights import read_tensors

_PACKAGE = "wordllama"
_VECTORS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_SHA256 = {
  _VECTORS: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
  _TOKENIZER: "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
}
_SPACE = "\u2581"  #: what stands for a space in tokens
_CACHED_WORDS = 2**18  #: words of which the tokens are kept
#: What is read of a tokenizer; with others its tokens would be others.
_NORMALIZERS = [
  {"type": "Prepend", "prepend": _SPACE},
  {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
]


class BytePairs:
  """A tokenizer of byte pairs, as Llama 2 has it.

  Args:
    facts: the content of a tokenizer.json of Hugging Face: byte pairs with bytes for
      unknown characters, spaces as U+2581, and no other rule.

  Raises:
    ValueError: it has other rules.

  Examples:
    >>> words = "<unk> <0xC3> <0xA9> \u2581 a aa".split()
    >>> vocabulary = {word: number for number, word in enumerate(words)}
    >>> tokenizer = BytePairs.of_vocabulary(vocabulary, ["a a"])
    >>> tokenizer.encode("aaa a\u00e9")
    [3, 5, 4, 3, 4, 1, 2]
  """

  def __init__(self, facts: Mapping[str, Any]):
    model, normalizer = facts["model"], facts["normalizer"]
    if (
      model["type"] != "BPE"
      or not model["byte_fallback"]
      or model.get("ignore_merges")
      or normalizer["normalizers"] != _NORMALIZERS
      or facts["pre_tokenizer"] is not None
    ):
      raise ValueError("has other rules than byte pairs with bytes")
    self._vocabulary: dict[str, int] = model["vocab"]
    pairs = (
      pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]
    )
    self._ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
    self._unknown = self._vocabulary[model["unk_token"]]
    special = [re.escape(token["content"]) for token in facts["added_tokens"]]
    self._special = re.compile(f"({'|'.join(special)})") if special else None
    # No token has a space after another character, so a text can be cut there: what
    # stands on one side is never merged with the other.
    if any(re.search(f"[^{_SPACE}]{_SPACE}", token) for token in self._vocabulary):
      raise ValueError("has tokens of several words")
    self._encode_word = functools.lru_cache(_CACHED_WORDS)(self._merge)

  @classmethod
  def of_vocabulary(
    cls, vocabulary: Mapping[str, int], merges: Iterable[str]
  ) -> "BytePairs":
    """Makes a tokenizer without special tokens.

    Args:
      vocabulary: token -> id; "<unk>" is the unknown one.
      merges: pairs with a space between, the first merged first.
    """
    model = {
      "type": "BPE",
      "byte_fallback": True,
      "vocab": dict(vocabulary),
      "merges": list(merges),
      "unk_token": "<unk>",
    }
    normalizer = {"normalizers": _NORMALIZERS}
    return cls(
      {
        "model": model,
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "added_tokens": [],
      }
    )

  def encode(self, text: str) -> list[int]:
    """Returns the ids of a text's tokens, without those of its begin and end."""
    # A lone surrogate is no character; Hugging Face cannot be given one.
    text = text.encode("utf-8", "replace").decode()
    ids: list[int] = []
    parts = self._special.split(text) if self._special else [text]
    for number, part in enumerate(parts):
      if number % 2:
        ids.append(self._vocabulary[part])
      elif part:
        spaced = _SPACE + part.replace(" ", _SPACE)
        for word in re.findall(f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+", spaced):
          ids += self._encode_word(word)
    return ids

  def _merge(self, word: str) -> tuple[int, ...]:
    """The tokens of a word: the pair that is first in the list is merged first."""
    symbols: list[str] = []
    for character in word:
      of_bytes = [f"<0x{byte:02X}>" for byte in character.encode()]
      if character in self._vocabulary:
        symbols.append(character)
      elif all(symbol in self._vocabulary for symbol in of_bytes):
        symbols += of_bytes
      elif symbols[-1:] != [""]:  # unknown ones together are one token
        symbols.append("")
    worst = len(self._ranks)
    while len(symbols) > 1:
      ranks = [
        self._ranks.get(pair, worst) for pair in zip(symbols, symbols[1:], strict=False)
      ]
      best = min(ranks)
      if best == worst:
        break
      place = ranks.index(best)
      symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    return tuple(self._vocabulary.get(symbol, self._unknown) for symbol in symbols)


class TokenVectors(NamedTuple):
  """Vectors of tokens, and the tokenizer."""

  vectors: np.ndarray  #: [V, D] float32
  tokenizer: BytePairs

  def average(self, texts: Iterable[str]) -> np.ndarray:
    """Computes the mean of the vectors of each text's tokens.

    Args:
      texts: n texts.

    Returns:
      [n, D] float32; 0 for a text without tokens.
    """
    ids = [self.tokenizer.encode(text) for text in texts]
    result = np.zeros((len(ids), self.vectors.shape[1]), np.float32)
    for row, tokens in enumerate(ids):
      if tokens:
        result[row] = self.vectors[tokens].mean(0, dtype=np.float64)
    return result


def sha256_of_files() -> str:
  """A hash of the files that are read, of the only version that is."""
  return " ".join(_SHA256.values())


@functools.cache
def read_token_vectors(label: str) -> TokenVectors:
  """Reads vectors and tokenizer from the files of the package.

  Args:
    label: the option, for messages.

  Raises:
    OptionError: the package is missing, or has other files.
  """
  vectors_file, tokenizer_file = files.find_in_package(
    _PACKAGE, _SHA256, label, "pip install 'fedjax_alg[wordllama]'"
  )
  try:
    tokenizer = BytePairs(files.read_json(tokenizer_file))
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise OptionError(f"{label}: {_TOKENIZER} {reason(error)}") from error
  (vectors,) = read_tensors(vectors_file, label).values()
  return TokenVectors(vectors.astype(np.float32), tokenizer)
