"""Byte pairs, merged one by one here, and means of vectors."""

import importlib.util
import random

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.extras.backbones import wordllama

SPACE = "\u2581"
#: Merges in their order; "a b" comes before "b c" and after "c a".
MERGES = ["c a", "a b", "b c", "ca b", f"{SPACE} a", f"{SPACE} {SPACE}", "ab ab"]
TOKENS = [
  "<unk>",
  *(f"<0x{byte:02X}>" for byte in range(256)),
  *(SPACE, "a", "b", "c"),
  *(pair.replace(" ", "") for pair in MERGES),
]
VOCABULARY = {token: number for number, token in enumerate(TOKENS)}


def merge_by_rule(text):
  """The first pair of the list that the whole text has is merged at its first place."""
  symbols = []
  for character in SPACE + text.replace(" ", SPACE) if text else "":
    if character in VOCABULARY:
      symbols.append(character)
    else:
      symbols += [f"<0x{byte:02X}>" for byte in character.encode()]
  for _ in symbols[1:]:
    for pair in MERGES:
      left, right = pair.split(" ")
      places = [
        i for i in range(len(symbols) - 1) if symbols[i : i + 2] == [left, right]
      ]
      if places:
        symbols[places[0] : places[0] + 2] = [left + right]
        break
  return [VOCABULARY[symbol] for symbol in symbols]


def random_texts(alphabet, count, most=30):
  rng = random.Random(0)
  return [
    "".join(rng.choice(alphabet) for _ in range(rng.randint(0, most)))
    for _ in range(count)
  ]


def test_tokens_are_those_of_the_whole_text():
  """A text that is cut at its spaces has the same; unknown characters are bytes."""
  tokenizer = wordllama.BytePairs.of_vocabulary(VOCABULARY, MERGES)
  for text in ["", " ", "   ", *random_texts(f"aabbcc  {SPACE}\u00e9\U0001f999", 500)]:
    assert tokenizer.encode(text) == merge_by_rule(text), text


def test_a_tokenizer_of_other_rules_is_refused():
  """Its tokens would be others without a word about it."""
  with pytest.raises(ValueError, match="several words"):
    wordllama.BytePairs.of_vocabulary(VOCABULARY | {f"a{SPACE}": 999}, MERGES)
  facts = {
    "model": {"type": "WordPiece"},
    "normalizer": {"normalizers": []},
    "pre_tokenizer": None,
  }
  with pytest.raises(ValueError, match="other rules"):
    wordllama.BytePairs(facts)


def test_the_mean_of_the_vectors_of_a_text():
  vectors = np.random.default_rng(0).normal(size=(len(TOKENS), 3)).astype(np.float32)
  tokenizer = wordllama.BytePairs.of_vocabulary(VOCABULARY, MERGES)
  means = wordllama.TokenVectors(vectors, tokenizer).average(["", "abc"])
  np.testing.assert_array_equal(means[0], 0.0)
  tokens = [VOCABULARY[token] for token in (SPACE, "ab", "c")]
  np.testing.assert_allclose(means[1], vectors[tokens].mean(0), rtol=1e-6)


def test_missing_and_foreign_vectors_are_refused(monkeypatch, tmp_path):
  wordllama.read_token_vectors.cache_clear()
  monkeypatch.setattr(wordllama, "_PACKAGE", "vectors_of_a_test")
  with pytest.raises(fa.OptionError, match=r"features.*fedjax_alg\[wordllama\]"):
    wordllama.read_token_vectors("`features`=backbone")
  (tmp_path / "vectors_of_a_test" / "weights").mkdir(parents=True)
  (tmp_path / "vectors_of_a_test" / "__init__.py").write_text("raise SystemExit")
  (tmp_path / "vectors_of_a_test" / wordllama._VECTORS).write_bytes(b"other")
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(fa.OptionError, match="features.*sha256"):
    wordllama.read_token_vectors("`features`=backbone")


@pytest.mark.skipif(
  importlib.util.find_spec("wordllama") is None, reason="the vectors are missing"
)
def test_the_package_computes_the_same():
  """Its tokens by the package tokenizers, and its means, of many strings."""
  library = pytest.importorskip("tokenizers")
  inference = pytest.importorskip("wordllama.inference")
  wordllama.read_token_vectors.cache_clear()
  vectors = wordllama.read_token_vectors("`features`")
  folder = importlib.util.find_spec("wordllama").submodule_search_locations[0]
  theirs = library.Tokenizer.from_file(f"{folder}/{wordllama._TOKENIZER}")
  alphabet = [chr(c) for c in (*range(32, 127), *range(0xA0, 0x460), 0x1F999, 0x65E5)]
  texts = ["<s>a b</s>", "it's  @you http://t.co", *random_texts(alphabet, 1000)]
  texts += random_texts("the cat is on a mat", 1000, 80)
  encoded = theirs.encode_batch(texts, add_special_tokens=False)
  assert [vectors.tokenizer.encode(text) for text in texts] == [e.ids for e in encoded]
  expected = inference.WordLlamaInference(vectors.vectors, theirs).embed(texts)
  np.testing.assert_allclose(vectors.average(texts), expected, atol=1e-5)
