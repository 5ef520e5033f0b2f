"""Tweets: words, clients, vocabulary; what is refused."""

import numpy as np
import pytest

from experiments import prepare as experiments_prepare
import fedjax_alg as fa
from fedjax_alg import data
from fedjax_alg.data import sent140 as tweets_lib
from tests import tfds_records
from tests.data.reading import refuses
from tests.each import each

FEATURES = {
  "user": tfds_records.TEXT,
  "text": tfds_records.TEXT,
  "query": tfds_records.TEXT,
  "date": tfds_records.TEXT,
  "polarity": tfds_records.INT32,
}


@each(
  "text, words",
  [
    ("I don't LIKE it!!! :(", "i don't like it"),
    ("@Bob_1 see http://t.co/a?b=c, or www.x.org/y ok", "<name> see <url> or <url> ok"),
    ("salt &amp; pepper &quot;now&quot; &lt;3", "salt pepper now 3"),
    ("caf\u00e9 can\u2019t 'quoted' rock'n'roll", "caf\u00e9 can't quoted rock'n'roll"),
    ("#snow_day 7pm...home", "snow day 7pm home"),
    (" :-) ?! ", ""),
  ],
)
def test_words(text, words):
  assert tweets_lib.tokenize(text) == words.split()


def records(seed=0, most=40):
  """Six users, of more and more tweets, in mixed order; one is silent."""
  rng = np.random.default_rng(seed)
  rows = []
  for user, count in (
    ("cy", 1),
    ("al", 9),
    ("di", 20),
    ("bo", 21),
    ("ed", most),
    ("", 30),
  ):
    for _ in range(count):
      number = rng.geometric(0.1, rng.integers(0, 9))
      rows.append(
        {
          "user": user.encode(),
          "polarity": int(rng.choice([0, 2, 4])),
          "text": " ".join(f"w{n}" for n in number).encode(),
          "date": b"",
          "query": b"",
        }
      )
  return [rows[i] for i in rng.permutation(len(rows))]


def test_encoded_tweets_are_the_tweets():
  rows = records()
  got = tweets_lib.encode_tweets(iter(rows))
  usable = [row for row in rows if row["user"] and row["polarity"] != 2]
  names = sorted({row["user"] for row in usable})
  assert [names[u] for u in got["user"]] == [row["user"] for row in usable]
  assert got["label"].tolist() == [row["polarity"] // 4 for row in usable]
  words = sorted({w for row in usable for w in row["text"].decode().split()})
  texts = np.split(got["word"], np.cumsum(got["length"])[:-1])
  assert [" ".join(words[i] for i in text) for text in texts] == [
    row["text"].decode() for row in usable
  ]
  assert all(array.dtype == np.int32 for array in got.values())


def test_a_client_has_the_tweets_of_a_user_and_frequent_words_come_first():
  """Every user says its name alone, as often as nobody else in a tweet."""
  rows = [
    {"user": user, "polarity": 4 * (n % 2), "text": f"{user} " * times}
    for times, (user, count) in enumerate(
      (("al", 9), ("bo", 21), ("cy", 40), ("di", 20)), 1
    )
    for n in range(count)
  ]
  rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
  got = tweets_lib.sent140(tweets_lib.encode_tweets(rows), 20, 10**6, 25, seed=4)
  assert got.num_classes == 2 and got.name == "sent140"
  assert got.x_train.shape[1] == 25 and got.x_train.dtype == np.int32
  for client, (times, word, train, test) in enumerate(
    ((2, 4, 18, 3), (3, 2, 36, 4), (4, 3, 18, 2))
  ):
    words = [word] * times + [0] * (25 - times)
    for split, count in (("train", train), ("test", test)):
      mine = getattr(got, f"client_{split}") == client
      assert getattr(got, f"x_{split}")[mine].tolist() == [words] * count
    labels = np.append(
      got.y_train[got.client_train == client], got.y_test[got.client_test == client]
    )
    assert labels.sum() == (train + test) // 2


def test_test_tweets_add_no_word():
  # One user; every tweet is a word of its own: those of the test are unknown.
  rows = [
    {"user": "al", "polarity": 4 * (n % 2), "text": f"word{n:03}"} for n in range(50)
  ]
  got = tweets_lib.sent140(tweets_lib.encode_tweets(rows), 20, 100, 3, seed=0)
  assert (got.x_test == np.array([1, 0, 0])).all() and len(got.x_test) == 5
  # Ties in the order of the alphabet.
  np.testing.assert_array_equal(np.sort(got.x_train[:, 0]), np.arange(2, 47))
  assert not got.x_train[:, 1:].any()


def test_only_the_most_frequent_words_are_known_and_tweets_are_cut():
  rows = [
    {"user": "al", "polarity": 4, "text": text}
    for text in ["b b b c c a"] * 10 + ["c b a x y z"] * 10
  ]
  got = tweets_lib.sent140(tweets_lib.encode_tweets(rows), 20, 2, 4, seed=0)
  for row in np.r_[got.x_train, got.x_test].tolist():
    assert row in ([2, 2, 2, 3], [3, 2, 1, 1])  # b is more frequent than c
  got = tweets_lib.sent140(tweets_lib.encode_tweets(rows), 20, 3, 7, seed=0)
  for row in np.r_[got.x_train, got.x_test].tolist():
    assert row in ([2, 2, 2, 3, 3, 4, 0], [3, 2, 4, 1, 1, 1, 0])


def test_the_seed_decides_what_is_tested():
  tweets = tweets_lib.encode_tweets(records(most=200))
  first, repeated, different = (
    tweets_lib.sent140(tweets, 10, 50, 8, seed) for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first.x_train, repeated.x_train)
  assert not np.array_equal(first.x_train, different.x_train)


def test_no_words_and_users_of_one_tweet():
  rows = [{"user": user, "polarity": 0, "text": "!"} for user in "aab"]
  got = tweets_lib.sent140(tweets_lib.encode_tweets(rows), 1, 5, 3)
  assert got.x_train.tolist() == got.x_test.tolist() == [[0, 0, 0]]


def test_refuses():
  good = {"user": "al", "polarity": 0, "text": "x"}
  tweets = tweets_lib.encode_tweets([good] * 7)
  refuses(lambda: tweets_lib.sent140(tweets, 8), "min_size=8: no user", "the most is 7")
  refuses(lambda: tweets_lib.sent140(tweets_lib.encode_tweets([])), "the most is 0")
  refuses(
    lambda: tweets_lib.encode_tweets([good | {"polarity": 3}]), "polarity 3, allowed: 0"
  )
  for name in good:
    rows = [{key: good[key] for key in good if key != name}]
    refuses(lambda: tweets_lib.encode_tweets(rows), f"records without {name};")


def prepare(root, rows, features=None):
  tfds_records.write(
    root / "sentiment140" / "1.0.0",
    "sentiment140",
    FEATURES if features is None else features,
    rows,
  )


def test_from_tfds(tmp_path, monkeypatch):
  rows = records()
  refuses(
    lambda: tweets_lib.load_sent140(data_dir=tmp_path),
    "fedjax-alg prepare sentiment140 data_dir=",
  )
  prepare(tmp_path, rows)
  got = tweets_lib.load_sent140(5, 30, 6, 2, tmp_path)
  want = tweets_lib.sent140(tweets_lib.encode_tweets(rows), 5, 30, 6, 2)
  monkeypatch.setattr(tweets_lib, "encode_tweets", None)  # then from the cache
  for examples in (got, tweets_lib.load_sent140(5, 30, 6, 2, tmp_path)):
    for a, b in zip(vars(examples).values(), vars(want).values(), strict=True):
      np.testing.assert_array_equal(a, b)


def test_prepare_says_what_is_ready(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(data, "prepare_tfds", lambda name, data_dir: None)
  prepare(
    tmp_path,
    [{"user": b"al", "polarity": 0, "text": b"x"}] * 23,
    {name: FEATURES[name] for name in ("user", "polarity", "text")},
  )
  experiments_prepare.main(["sentiment140", f"--data_dir={tmp_path}"])
  assert capsys.readouterr().out == (
    "sentiment140: 23 tweets of users with at least 20 ready\n"
  )


def test_tfds_records_without_user(tmp_path):
  features = {name: FEATURES[name] for name in ("polarity", "text")}
  prepare(tmp_path, [{"polarity": 0, "text": b"x"}], features)
  refuses(lambda: tweets_lib.load_sent140(data_dir=tmp_path), "records without user")
  assert not (tmp_path / ".fedjax_alg_cache").exists()


def test_whole_tweets_have_the_clients_of_the_words(tmp_path):
  """With features of texts; entities are decoded, and emoticons stay."""
  rows = [row | {"text": row["text"] + b" &lt;3 caf\xc3\xa9 :)"} for row in records()]
  folder = tmp_path / "sentiment140" / "1.0.0"
  tfds_records.write(folder, "sentiment140", FEATURES, rows)
  dataset, options = tweets_lib.Sent140(), (20, 10_000, 3, str(tmp_path))
  words, texts = dataset.load(*options), dataset.load_texts(*options)
  for name in ("y_train", "y_test", "client_train", "client_test"):
    np.testing.assert_array_equal(getattr(texts, name), getattr(words, name))
  usable = [row for row in rows if row["user"] and row["polarity"] != 2]
  expected = [row["text"].decode().replace("&lt;", "<") for row in usable]
  assert set(texts.x_train) <= set(expected) and len(texts.x_test)
  lengths = [len(tweets_lib.tokenize(text)) for text in texts.x_train]
  assert lengths == (words.x_train > 0).sum(1).tolist()
  path = tmp_path / "mine.py"
  path.write_text("embed = lambda texts: [[len(text), 1.0] for text in texts]\n")
  federation = data.federate(
    "sent140",
    partition="natural:min_size=20",
    data_dir=str(tmp_path),
    features=f"{path}:embed",
  )
  assert federation.data.train.x.shape[1:] == (2,)
  with pytest.raises(fa.OptionError, match="sent140: length=30"):
    tweets_lib.Sent140(30).load_texts(*options)
