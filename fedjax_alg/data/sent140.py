"""Sentiment140: tweets as sequences of word ids, with one client per user."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import html
import os
import re

import numpy as np

from fedjax_alg.data import cache, tfds_source
from fedjax_alg.data.characters import PADDING, SPECIAL, UNKNOWN
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.tfds_source import PreparedDataSet
from fedjax_alg.hparams import hyper

_MIN_TWEETS = 20  # of a user

_URL, _NAME = "<url>", "<name>"
# Links, @names, and words or numbers with apostrophes inside. All other
# characters are separators: punctuation, emoticons (from which the labels were
# made) and the # of a hashtag.
_TOKEN = re.compile(
  r"(?P<url>(?:https?://|www\.)\S+)|(?P<name>@\w+)|[^\W_]+(?:'[^\W_]+)*"
)
_POLARITY = {0: 0, 4: 1, 2: -1}  # negative, positive, neutral (left out)


def tokenize(text: str) -> list[str]:
  """Splits a tweet into words in lower case.

  HTML entities are decoded first. Every link becomes ``<url>`` and every @name
  ``<name>``; "don't" is one word.

  Args:
    text: the tweet.

  Returns:
    The words.
  """
  text = html.unescape(text).lower().replace("\u2019", "'")
  return [
    _URL if match["url"] else _NAME if match["name"] else match[0]
    for match in _TOKEN.finditer(text)
  ]


def encode_tweets(records: Iterable[Mapping[str, bytes]]) -> cache.Arrays:
  """Encodes tweets as numbers; leaves out neutral tweets and those of no user.

  Args:
    records: each with user and text (bytes, UTF-8, or str) and polarity 0
      (negative), 4 (positive) or 2 (neutral).

  Returns:
    ``user`` [n] int32, ``label`` [n] int32 (1 is positive) and ``length`` [n]
    int32 of each tweet, and ``word`` int32, the concatenated words of all
    tweets. Users and words are numbered in alphabetical order.

  Raises:
    DataError: a record lacks an entry or has another polarity.
  """
  users: dict[str, int] = {}
  words: dict[str, int] = {}
  user, label, length = [], [], []
  word: list[int] = []
  for name, polarity, text in _usable_tweets(records):
    tokens = tokenize(text)
    user.append(users.setdefault(name, len(users)))
    label.append(polarity)
    length.append(len(tokens))
    word.extend(words.setdefault(token, len(words)) for token in tokens)
  return {
    "user": _alphabetical(users)[np.array(user, np.int32)],
    "label": np.array(label, np.int32),
    "length": np.array(length, np.int32),
    "word": _alphabetical(words)[np.array(word, np.int32)],
  }


def encode_texts(records: Iterable[Mapping[str, bytes]]) -> cache.Arrays:
  """Keeps the texts of the tweets of ``encode_tweets``, in the same order.

  Args:
    records: see ``encode_tweets``.

  Returns:
    ``size`` [n] int32, the bytes of each text, and ``text`` uint8, the texts one
    after the other in UTF-8, with HTML entities decoded.

  Raises:
    DataError: see ``encode_tweets``.
  """
  texts = [html.unescape(text).encode() for _, _, text in _usable_tweets(records)]
  return {
    "size": np.array([len(text) for text in texts], np.int32),
    "text": np.frombuffer(b"".join(texts), np.uint8),
  }


def _usable_tweets(
  records: Iterable[Mapping[str, bytes]],
) -> Iterator[tuple[str, int, str]]:
  """User, label and text of the tweets that are neither neutral nor of no user."""
  for record in records:
    missing = [name for name in ("user", "polarity", "text") if name not in record]
    if missing:
      raise DataError(
        f"`dataset`=sent140: records without {' and '.join(missing)}; TFDS's"
        " sentiment140 has user, polarity and text"
      )
    polarity = int(record["polarity"])
    if polarity not in _POLARITY:
      raise DataError(
        f"`dataset`=sent140: a tweet of polarity {polarity}, allowed: 0"
        " (negative), 2 (neutral), 4 (positive)"
      )
    name = _text(record["user"])
    if _POLARITY[polarity] >= 0 and name:
      yield name, _POLARITY[polarity], _text(record["text"])


def _text(value: bytes | str) -> str:
  return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _alphabetical(numbers: dict[str, int]) -> np.ndarray:
  """Maps numbers to their ranks in the order of the names, [n] int32."""
  place = np.empty(len(numbers), np.int32)
  place[[numbers[name] for name in sorted(numbers)]] = np.arange(len(numbers))
  return place


def sent140(
  tweets: cache.Arrays,
  min_tweets: int = _MIN_TWEETS,
  vocabulary: int = 10_000,
  sequence_length: int = 25,
  seed: int = 0,
) -> Examples:
  """Makes clients, a vocabulary and sequences from encoded tweets.

  Each user with enough tweets is a client. The n tweets of a client are
  shuffled, and int(.9 n) of them are for training. The vocabulary consists of
  the most frequent words of all training tweets; words are counted in whole
  tweets, before these are cut, and ties go to the first word in the alphabet.
  The 772 users of the papers are a sample that is not published. LEAF (Caldas
  et al. 2018) samples users of the same tweets.

  Args:
    tweets: the result of ``encode_tweets``.
    min_tweets: minimum number of tweets of a client, training and test
      together. A user with a single tweet is always left out.
    vocabulary: V, the number of words.
    sequence_length: T. Longer tweets are cut, and shorter ones are padded on
      the right.
    seed: seed of the shuffles.

  Returns:
    The examples with client ids. x int32 [n, T] lies in [0, V + 2): 0 is
    padding, 1 is any word outside the vocabulary, and the other ids are the
    words in the order of their frequency. There are 2 classes; 1 is positive.

  Raises:
    DataError: no user has enough tweets.
  """
  user, length = tweets["user"], tweets["length"]
  rows, client, trains = _deal_tweets(user, min_tweets, seed)
  starts = np.cumsum(length) - length
  in_training = np.zeros(len(user), bool)
  in_training[rows[trains]] = True
  words = tweets["word"]
  count = np.bincount(
    words[np.repeat(in_training, length)], minlength=int(words.max(initial=0)) + 1
  )
  frequent = np.argsort(-count, kind="stable")[:vocabulary]
  frequent = frequent[count[frequent] > 0]
  number = np.full(len(count), UNKNOWN, np.int32)
  number[frequent] = SPECIAL + np.arange(len(frequent), dtype=np.int32)
  place = np.arange(sequence_length)
  inside = place < length[rows][:, None]
  x = np.full(inside.shape, PADDING, np.int32)
  x[inside] = number[words[(starts[rows][:, None] + place)[inside]]]
  return _examples(x, tweets["label"][rows], client, trains)


def sent140_texts(
  tweets: cache.Arrays,
  texts: cache.Arrays,
  min_tweets: int = _MIN_TWEETS,
  seed: int = 0,
) -> Examples:
  """Makes the clients of ``sent140``, with whole tweets as texts.

  Args:
    tweets: the result of ``encode_tweets``.
    texts: the result of ``encode_texts``, of the same records.
    min_tweets: see ``sent140``.
    seed: see ``sent140``.

  Returns:
    The examples of ``sent140`` in the same order; x [n] are texts, of dtype object.

  Raises:
    DataError: no user has enough tweets.
  """
  rows, client, trains = _deal_tweets(tweets["user"], min_tweets, seed)
  ends = np.cumsum(texts["size"], dtype=np.int64)
  content = texts["text"].tobytes()
  x = np.empty(len(rows), object)
  x[:] = [
    content[end - size : end].decode()
    for end, size in zip(ends[rows].tolist(), texts["size"][rows].tolist())
  ]
  return _examples(x, tweets["label"][rows], client, trains)


def _deal_tweets(
  user: np.ndarray, min_tweets: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The rows of users with enough tweets, their clients, and which are to train.

  Raises:
    DataError: no user has enough tweets.
  """
  tally = np.bincount(user, minlength=1)
  enough = tally >= max(min_tweets, 2)
  if not enough.any():
    raise DataError(
      f"`partition`=natural:min_size={min_tweets}: no user of sent140 has so many"
      f" tweets (at least 2), the most is {tally.max()}"
    )
  rng = np.random.default_rng(seed)
  rows = rng.permutation(len(user))
  rows = rows[enough[user[rows]]]
  rows = rows[np.argsort(user[rows], kind="stable")]
  size = tally[enough]
  client = np.repeat(np.arange(len(size), dtype=np.int32), size)
  rank = np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
  return rows, client, rank < np.repeat((0.9 * size).astype(np.int64), size)


def _examples(
  x: np.ndarray, y: np.ndarray, client: np.ndarray, trains: np.ndarray
) -> Examples:
  return Examples(
    x_train=x[trains],
    y_train=y[trains],
    x_test=x[~trains],
    y_test=y[~trains],
    num_classes=2,
    client_train=client[trains],
    client_test=client[~trains],
    name="sent140",
  )


def load_sent140(
  min_tweets: int = _MIN_TWEETS,
  vocabulary: int = 10_000,
  sequence_length: int = 25,
  seed: int = 0,
  data_dir: str | os.PathLike | None = None,
  cache_dir: str | os.PathLike | None = None,
) -> Examples:
  """Makes ``sent140`` from the 1.6 million training tweets of TFDS.

  The tweets are read and encoded once, which takes minutes, and then cached.

  Args:
    min_tweets: see ``sent140``.
    vocabulary: V, see ``sent140``.
    sequence_length: T, see ``sent140``.
    seed: seed of the shuffles.
    data_dir: TFDS's folder; see ``load_tfds``.
    cache_dir: see ``load_tfds``.

  Returns:
    The examples.

  Raises:
    DataError: the data set is not prepared or is damaged, or no user has
      enough tweets.
  """
  tweets = _read_encoded(encode_tweets, data_dir, cache_dir)
  return sent140(tweets, min_tweets, vocabulary, sequence_length, seed)


def _read_encoded(
  encode: Callable[[Iterable[Mapping[str, bytes]]], cache.Arrays],
  data_dir: str | os.PathLike | None,
  cache_dir: str | os.PathLike | None = None,
  part: str = "",
) -> cache.Arrays:
  """The encoded tweets of TFDS, from the cache if they are there."""
  return tfds_source.read_arrays(
    "sentiment140",
    data_dir,
    cache_dir,
    lambda path: encode(tfds_source.records(path, "train")),
    part,
  )


class Sent140(PreparedDataSet):
  """Tweets with a smiling or a sad face, and their users."""

  WORD, EXAMPLE = "sent140", "sent140:40"
  HAS_CLIENTS, CONTENT, PREPARED_AS = True, "words", "sentiment140"
  HAS_TEXTS = True
  READS = ("min_size", "vocabulary", "partition_seed", "data_dir")

  length: int = hyper(
    25, "number of words of a tweet that the model reads", minimum=1, maximum=10_000
  )

  def load(
    self, min_size: int | None, vocabulary: int, seed: int, data_dir: str | None
  ) -> Examples:
    """Loads the tweets of users with enough of them (``load_sent140``)."""
    fewest = min_size or _MIN_TWEETS
    return load_sent140(fewest, vocabulary, self.length, seed, data_dir)

  def load_texts(
    self, min_size: int | None, vocabulary: int, seed: int, data_dir: str | None
  ) -> Examples:
    """Loads the same tweets as texts (``sent140_texts``)."""
    del vocabulary
    if self.length != type(self).length:
      raise DataError(
        f"`dataset`=sent140: length={self.length}: not read with features of texts"
      )
    return sent140_texts(
      _read_encoded(encode_tweets, data_dir),
      _read_encoded(encode_texts, data_dir, part="-texts"),
      min_size or _MIN_TWEETS,
      seed,
    )

  def describe_prepared(self, data_dir: str | None) -> str:
    """Counts the tweets (``PreparedDataSet.describe_prepared``)."""
    number = sum(load_sent140(data_dir=data_dir).rows)
    return f"{number} tweets of users with at least {_MIN_TWEETS}"
