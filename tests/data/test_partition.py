"""Every partitioner: nobody's example is lost, doubled or misplaced."""

import hashlib
import itertools
import re

from hypothesis import assume, given
from hypothesis import strategies as st
import numpy as np
import pytest

from fedjax_alg.data import Examples, allocate, layout, published
from fedjax_alg.data import partition as partition_lib
from fedjax_alg.data.arrays import from_arrays
from fedjax_alg.data.federation import federate
from fedjax_alg.data.partition import label_histogram, partition_hash
from fedjax_alg.data.scikit_learn import load_digits
from fedjax_alg.errors import OptionError
from tests.data.reading import arrays, dealt, refuses, rows
from tests.each import each


def make_examples(y_train, y_test, client_train=None, client_test=None):
  y_train, y_test = (np.asarray(y, np.int32) for y in (y_train, y_test))
  classes = int(max(y_train.max(), y_test.max(initial=0))) + 1
  return Examples(
    x_train=np.zeros((len(y_train), 1), np.float32),
    y_train=y_train,
    x_test=np.zeros((len(y_test), 1), np.float32),
    y_test=y_test,
    num_classes=classes,
    client_train=client_train,
    client_test=client_test,
    name="made",
  )


@st.composite
def data_sets(draw):
  """Uneven classes, 60 to 160 examples each, and a seed."""
  classes = draw(st.integers(2, 6))
  count = draw(st.lists(st.integers(60, 160), min_size=classes, max_size=classes))
  seed = draw(st.integers(0, 2**31))
  rng = np.random.default_rng(seed)
  y = rng.permutation(np.repeat(np.arange(classes), count))
  return make_examples(y, rng.integers(0, classes, 70)), seed


def check_layout(partition):
  """Offsets say where each client's rows are, back to back."""
  for split in ("train", "test"):
    order, offset, size = arrays(partition, split)
    assert order.dtype == np.int64
    assert offset.dtype == size.dtype == np.int32
    np.testing.assert_array_equal(offset, np.concatenate([[0], np.cumsum(size)[:-1]]))
    assert size.sum() == len(order) == len(set(order.tolist()))


def check_complete(partition, examples, num_clients, minimum):
  check_layout(partition)
  assert len(partition.train_size) == num_clients and not partition.pooled
  np.testing.assert_array_equal(
    np.sort(partition.train_order), np.arange(len(examples.y_train))
  )
  assert partition.train_size.min() >= minimum
  # Local test splits follow the labels of their client.
  train = label_histogram(partition, examples.y_train, examples.num_classes)
  test = np.zeros_like(train)
  for client in range(num_clients):
    test[client] = np.bincount(
      examples.y_test[rows(partition, "test", client)], minlength=examples.num_classes
    )
  assert not test[train == 0].any()
  np.testing.assert_array_equal(
    np.sort(partition.test_order), np.arange(len(examples.y_test))
  )
  part = np.bincount(examples.y_test, minlength=examples.num_classes) / (
    train.sum(axis=0)
  )
  served = partition.test_size > 0
  assert (np.abs(test - train * part)[served] < 2).all()


def complete(text, examples, num_clients, seed, minimum=10):
  """The partition, which the seed decides and which leaves nobody out."""
  partition, repeated, other_seed = (
    dealt(text, examples, num_clients, number) for number in (seed, seed, seed + 1)
  )
  check_complete(partition, examples, num_clients, minimum)
  assert partition_hash(partition) == partition_hash(repeated)
  assert partition_hash(partition) != partition_hash(other_seed)
  return partition, label_histogram(partition, examples.y_train, examples.num_classes)


@given(data_sets(), st.integers(1, 8), st.floats(0, 2))
def test_iid(data, num_clients, sigma):
  examples, seed = data
  partition, _ = complete(f"iid:size_sigma={sigma}", examples, num_clients, seed)
  if sigma == 0:
    assert np.ptp(partition.train_size) <= 1


@given(data_sets(), st.integers(6, 12), st.data())
def test_classes(data, num_clients, draw):
  examples, seed = data
  most = draw.draw(st.integers(1, min(3, examples.num_classes)))
  least = draw.draw(st.integers(1, most))
  text = f"classes:{most},min_size=5,fewest={least}"
  _, histogram = complete(text, examples, num_clients, seed, 5)
  number = (histogram > 0).sum(axis=1)
  assert number.min() >= least and number.max() <= most


@given(data_sets(), st.integers(1, 8), st.floats(0.3, 10))
def test_dirichlet(data, num_clients, alpha):
  examples, seed = data
  complete(f"dirichlet:{alpha},min_size=3", examples, num_clients, seed, 3)


@given(data_sets(), st.integers(1, 5))
def test_dirichlet_even(data, num_clients):
  """Who has n / C examples gets none of the classes that follow."""
  examples, seed = data
  text = "dirichlet:even,min_size=1"
  partition, histogram = complete(text, examples, num_clients, seed, 1)
  before = np.cumsum(histogram, axis=1) - histogram
  assert not histogram[before >= len(examples.y_train) / num_clients].any()
  assert partition.flags["partition"] == text  # partition.json says the rule


@given(data_sets(), st.integers(0, 20), st.integers(1, 3))
def test_random_classes(data, more, k):
  """Client i holds class i modulo L; all clients of a class have an equal share."""
  examples, seed = data
  num_clients, k = examples.num_classes + more, min(k, examples.num_classes)
  fewest = np.bincount(examples.y_train, minlength=examples.num_classes).min()
  assume(fewest >= num_clients)
  _, histogram = complete(
    f"classes:{k},random,min_size=1,size_sigma=0", examples, num_clients, seed, 1
  )
  holds = histogram > 0
  assert (holds.sum(axis=1) == k).all()
  clients = np.arange(num_clients)
  assert holds[clients, clients % examples.num_classes].all()
  for counts in histogram.T:
    counts = counts[counts > 0]
    assert counts.max() - counts.min() <= 1


@given(data_sets(), st.integers(1, 6), st.integers(1, 3))
def test_shards(data, num_clients, k):
  """Sorted by class and cut, every client's rows are k of the pieces."""
  examples, seed = data
  _, histogram = complete(f"shards:{k}", examples, num_clients, seed)
  pieces = np.array_split(np.sort(examples.y_train), num_clients * k)
  counts = sorted(
    tuple(np.bincount(piece, minlength=examples.num_classes)) for piece in pieces
  )
  if k == 1:
    assert sorted(map(tuple, histogram)) == counts
  sums = {tuple(np.sum(some, axis=0)) for some in itertools.combinations(counts, k)}
  assert set(map(tuple, histogram)) <= sums


def mnist_like():
  """60,000 + 10,000 labels with MNIST's sizes, no images."""
  rng = np.random.default_rng(0)
  return make_examples(
    rng.permutation(np.repeat(np.arange(10), 6000)),
    rng.permutation(np.repeat(np.arange(10), 1000)),
  )


def test_machines_of_the_diversified_paper():
  examples = mnist_like()
  for seed in range(3):
    partition = dealt("classes:2,fewest=1,size_sigma=0.55", examples, 400, seed)
    # The study that set the default saw sizes of 19 to 516.
    assert 10 <= partition.train_size.min() <= 40
    assert 400 <= partition.train_size.max() <= 900
    assert partition.test_size.min() >= 1
    num_labels = (label_histogram(partition, examples.y_train) > 0).sum(axis=1)
    assert 150 < (num_labels == 1).sum() < 250 and num_labels.max() == 2
    log_std = np.log(partition.train_size).std()
    assert 0.45 < log_std < 0.65


def test_dirichlet_alpha_sets_the_skew():
  examples = mnist_like()
  top = {}
  for alpha in (0.1, 0.5, 100.0):
    partition = dealt(f"dirichlet:{alpha},min_size=1", examples, 50, 0)
    histogram = label_histogram(partition, examples.y_train)
    top[alpha] = (histogram.max(axis=1) / histogram.sum(axis=1)).mean()
    # Per class over clients: the shares of one class vary by (C - 1) /
    # (C alpha + 1) about their mean 1 / C.
    share = histogram / histogram.sum(axis=0)
    want = (50 - 1) / (50 * alpha + 1)
    np.testing.assert_allclose((share * 50).var(), want, rtol=0.35)
  assert top[0.1] > top[0.5] + 0.1 > top[100.0] + 0.2


def powerlaw_by_the_book(data, rng):
  """utils/generate of the FedProx MNIST data, with its lists and names."""
  users = 1000
  x = [[] for _ in range(users)]
  idx = np.zeros(10, dtype=np.int64)
  for user in range(users):
    for j in range(2):
      l = (user + j) % 10
      x[user] += data[l][idx[l] : idx[l] + 5]
      idx[l] += 5
  props = rng.lognormal(0, 2.0, (10, 100, 2))
  props = (
    np.array([[[len(v) - 1000]] for v in data])
    * props
    / np.sum(props, (1, 2), keepdims=True)
  )
  for user in range(users):
    for j in range(2):
      l = (user + j) % 10
      num_samples = int(props[l, user // 10, j])
      if idx[l] + num_samples < len(data[l]):
        x[user] += data[l][idx[l] : idx[l] + num_samples]
        idx[l] += num_samples
  return x


@pytest.mark.parametrize("seed", [0, 5])
def test_powerlaw_is_the_published_generator(seed):
  examples = mnist_like()
  y = np.concatenate([examples.y_train, examples.y_test])
  data = [np.flatnonzero(y == l).tolist() for l in range(10)]
  want = powerlaw_by_the_book(data, np.random.default_rng(seed))
  partition = dealt("powerlaw", examples, 1000, seed)
  check_layout(partition)
  assert partition.pooled
  for user, expected in enumerate(want):
    train, test = (rows(partition, split, user) for split in ("train", "test"))
    assert len(train) == int(0.9 * len(expected))
    assert sorted([*train, *test]) == sorted(expected)


def test_powerlaw_leaves_a_class_that_would_be_used_up():
  class OneTakesAll:  # every share but the first is 0
    def lognormal(self, mean, sigma, shape):
      del mean, sigma
      share = np.zeros(shape)
      share[:, 0, 0] = 1
      return share

    shuffle = staticmethod(lambda rows: None)

  examples = make_examples(np.arange(60) % 2, [])
  sizes = published._powerlaw(examples, 2, OneTakesAll())[2]
  np.testing.assert_array_equal(sizes, [9, 9])  # strictly less, as published


@pytest.mark.parametrize("classes, clients", [(10, 7), (3, 10), (2, 5)])
def test_powerlaw_of_other_sizes(classes, clients):
  y = np.random.default_rng(0).integers(0, classes, 900)
  examples = make_examples(y[:700], y[700:])
  partition = dealt("powerlaw", examples, clients, 0)
  check_layout(partition)
  assert (partition.train_size + partition.test_size).min() >= 10
  has_label = label_histogram(partition, y, classes) > 0
  for user in range(clients):
    want = {user % classes, (user + 1) % classes}
    assert set(np.flatnonzero(has_label[user])) == want
  assert not set(partition.train_order) & set(partition.test_order)
  other_seed = dealt("powerlaw", examples, clients, 1)
  assert partition_hash(partition) != partition_hash(other_seed)


def test_natural_keeps_the_given_clients():
  rng = np.random.default_rng(0)
  client_train = rng.choice([3, 7, 40], 100)
  client_test = rng.choice([3, 7, 9, 40, 99], 30)  # 9 and 99 never train
  examples = make_examples(
    rng.integers(0, 4, 100), rng.integers(0, 4, 30), client_train, client_test
  )
  partition = dealt("natural", examples, None, 0)
  check_layout(partition)
  assert not partition.pooled and partition.flags["num_clients"] == 5
  assert (partition.train_size > 0).tolist() == [True, True, False, True, False]
  for split, client in (("train", client_train), ("test", client_test)):
    for index, name in enumerate((3, 7, 9, 40, 99)):
      assert sorted(rows(partition, split, index)) == (
        np.flatnonzero(client == name).tolist()
      )


def test_natural_holds_out_where_test_rows_name_nobody():
  client = np.repeat([0, 1, 2, 3], [1, 2, 25, 40])
  examples = make_examples(np.zeros(68), np.zeros(5), client)
  partition = dealt("natural", examples, None, 0)
  check_layout(partition)
  assert partition.pooled
  np.testing.assert_array_equal(partition.test_size, [0, 1, 2, 4])
  np.testing.assert_array_equal(partition.train_size, [1, 1, 23, 36])
  both = np.concatenate([partition.train_order, partition.test_order])
  assert sorted(both) == list(range(68))
  np.testing.assert_array_equal(
    client[partition.test_order], np.repeat([1, 2, 3], [1, 2, 4])
  )


def test_natural_can_take_fewer_clients():
  client = np.repeat(np.arange(10), np.arange(1, 11))
  examples = make_examples(np.zeros(55), [], client)
  selections = set()
  for seed in range(5):
    partition = dealt("natural:min_size=3", examples, 4, seed)
    members = np.unique(
      client[np.concatenate([partition.train_order, partition.test_order])]
    )
    assert len(members) == 4 and members.min() >= 2
    selections.add(tuple(members))
  assert len(selections) > 1


@each(
  "text, clients, says",
  [
    ("iid", None, "needs num_clients"),
    ("iid", 101, "num_clients=101: more clients than the 100"),
    ("iid", 20, "num_clients=20, partition=iid: min_size=10 examples each are 200"),
    ("iid:size_sigma=0.1,size_alpha=1", 5, "size_sigma and size_alpha: give one"),
    ("classes:5", 5, "per_client=5"),
    ("classes:0", 5, "per_client=0"),
    ("classes:fewest=3", 5, "fewest=3"),
    ("classes:1", 3, "at most 3 of the 4 classes"),
    ("dirichlet:0.01", 10, "dirichlet:0.01 with num_clients=10"),
    ("powerlaw", 60, "num_clients=60: partition=powerlaw"),
    ("shards:3", 9, "leave a client with 9 of the 1"),
    ("natural", None, "has no client ids"),
  ],
)
def test_bad_options_are_named_in_one_line(text, clients, says):
  examples = make_examples(np.arange(100) % 4, np.arange(20) % 4)
  refuses(lambda: dealt(text, examples, clients, 0), says)


def test_data_that_have_too_few_for_the_clients():
  examples = make_examples([0] * 100 + [1] * 2, [], np.arange(102) % 2)
  refuses(
    lambda: dealt("classes:2", examples, 5, 0),
    "no split found",
  )
  refuses(
    lambda: dealt("natural", examples, 3, 0),
    "num_clients=3: the data set has 2",
  )
  many_classes = make_examples(np.arange(400) % 20, [])
  refuses(
    lambda: dealt("classes:random", many_classes, 10, 0),
    "left a class without a client in 100 draws",
  )


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.data())
def test_spread_stays_within_bounds(weights, draw):
  n = len(weights)
  low = np.array(draw.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
  room = np.array(draw.draw(st.lists(st.integers(0, 50), min_size=n, max_size=n)))
  high = low + room
  total = draw.draw(st.integers(int(low.sum()), int(high.sum())))
  weights = np.array(weights)
  got = allocate.allocate(weights, total, low, high)
  assert got.sum() == total
  assert (got >= low).all() and (got <= high).all()
  # Between two shares that are free to move, the weights decide.
  free = (got > low) & (got < high)
  if free.any():
    ratio = got[free] / weights[free]
    slack = 1 / weights[free]
    assert (ratio - slack).max() <= (ratio + slack).min() * (1 + 1e-9)


def test_test_examples_of_a_class_nobody_trains_on_stay_out():
  examples = make_examples([0] * 30 + [1] * 30, [0, 1, 2, 2, 0, 1])
  partition = dealt("iid", examples, 2, 0)
  check_layout(partition)
  assert sorted(partition.test_order) == [0, 1, 4, 5]


@pytest.mark.parametrize("ties", (False, True))
def test_rows_of_a_client_are_ordered_by_their_random_numbers(ties):
  """As two keys would sort them, also where one number holds too few bits."""

  class StubGenerator:
    def random(self, size):
      tie = np.random.default_rng(1).random(size)
      # Differences that 63 bits cannot show beside the client.
      return 0.5 + tie * 2.0**-50 if ties else tie

  owner = np.random.default_rng(0).integers(-1, 3000, 20_000)
  used = np.flatnonzero(owner >= 0)
  order, _, size = allocate.pack(owner, 3000, StubGenerator())
  np.testing.assert_array_equal(
    order, used[np.lexsort((StubGenerator().random(len(used)), owner[used]))]
  )
  np.testing.assert_array_equal(size, np.bincount(owner[used]))


def test_an_empty_client_gets_an_example_of_who_has_most_to_spare():
  """As searching all clients again for every example would find it."""

  def spread_by_search(train, test):
    for client in np.flatnonzero(test.sum(1) == 0):
      for label in np.argsort(-train[client], kind="stable"):
        spare = np.where(test.sum(1) > 1, test[:, label], 0)
        if train[client, label] and spare.max():
          test[spare.argmax(), label] -= 1
          test[client, label] += 1
          break
    return test

  num_moved = 0
  for seed in range(30):
    rng = np.random.default_rng(seed)
    train = rng.integers(0, 6, (40, 4)) * (rng.random((40, 4)) < 0.6)
    train[::7] *= 5
    available = rng.integers(5, 25, 4)
    actual = allocate.spread_test(train, available, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    first = np.stack(
      [
        allocate.largest_remainder(column.astype(float), int(count), rng)
        for column, count in zip(train.T, available)
      ],
      1,
    )
    np.testing.assert_array_equal(actual, spread_by_search(train, first.copy()))
    num_moved += np.abs(actual - first).sum() // 2
  assert num_moved > 100


@pytest.mark.parametrize("kind", ["iid", "classes"])
def test_sizes_are_shares_of_a_dirichlet_distribution(kind):
  digits = load_digits()
  plain, skewed, even = (
    dealt(text, digits, 20, 3)
    for text in (kind, f"{kind}:size_alpha=0.3", f"{kind}:size_alpha=1e5")
  )
  for partition in (skewed, even):
    assert sorted(partition.train_order) == list(range(len(digits.y_train)))
    assert partition.train_size.min() >= 10
  assert skewed.train_size.std() > plain.train_size.std() > even.train_size.std()
  if kind == "iid":  # the first draw of the partition's stream, by hand
    shares = np.random.default_rng(3).dirichlet(np.full(20, 0.3))
    low, high = 0.0, 1e9
    for _ in range(200):  # raised to the minimum, the others in proportion
      middle = (low + high) / 2
      total = np.maximum(middle * shares, 10).sum()
      low, high = (middle, high) if total < len(digits.y_train) else (low, middle)
    expected = np.maximum(high * shares, 10)
    assert np.abs(skewed.train_size - expected).max() <= 1
    assert np.abs(even.train_size - len(digits.y_train) / 20).max() <= 2


def test_a_stratified_split_keeps_the_shares_of_classes():
  """Two classes: as many rows as the share says, rounded; else within one."""
  rng = np.random.default_rng(0)
  for labels, shares in ((2, [0.9, 0.1]), (4, [0.6, 0.25, 0.1, 0.05])):
    y = rng.choice(labels, 2000, p=shares)
    examples = from_arrays(np.ones((2000, 1)), y, rng.integers(0, 20, 2000))
    partition = dealt("natural:test_share=0.3,stratified", examples, None, 3)
    for client in range(20):
      offset, size = partition.test_offset[client], partition.test_size[client]
      rows = partition.test_order[offset : offset + size]
      of_client = y[examples.client_train == client]
      expected = np.bincount(of_client, minlength=labels) * size / len(of_client)
      held = np.bincount(y[rows], minlength=labels)
      assert (np.abs(held - expected) <= (0.5 if labels == 2 else 1) + 1e-9).all()
    everyone = np.sort(np.concatenate([partition.train_order, partition.test_order]))
    np.testing.assert_array_equal(everyone, np.arange(2000))
    other = dealt("natural:test_share=0.3,stratified", examples, None, 4)
    assert (other.test_order != partition.test_order).any()


OWN_FILE = """
import numpy as np

def by_thirds(labels, num_clients, rng):
  '''The last third of the rows, sorted by label.'''
  rows = np.arange(len(labels))[-(len(labels) // 3):]
  order = rows[np.argsort(labels[rows], kind="stable")]
  return np.array_split(order, num_clients)

def few(labels, num_clients, rng):
  return [[0], [1]]

def twice(labels, num_clients, rng):
  return [[0, 5], [5], *([i] for i in range(10, 8 + num_clients))]

def outside(labels, num_clients, rng):
  return [[i] for i in range(1, num_clients)] + [[len(labels)]]

def empty(labels, num_clients, rng):
  return [[i] for i in range(1, num_clients)] + [[]]

def reals(labels, num_clients, rng):
  return [[i / 2] for i in range(num_clients)]

def fails(labels, num_clients, rng):
  return labels[len(labels)]

NUMBER = 3
"""


@pytest.fixture(name="own_file")
def fixture_own_file(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(OWN_FILE, "utf-8")
  return path


def test_a_function_says_the_rows_of_each_client(own_file):
  """Rows that it leaves out are nobody's; test rows follow the training rows."""
  examples, name = load_digits(), f"{own_file}:by_thirds"
  partition = dealt(name, examples, 7, 0)
  count = len(examples.y_train)
  last = np.arange(count)[-(count // 3) :]
  pieces = np.array_split(last[np.argsort(examples.y_train[last], kind="stable")], 7)
  for client, expected in enumerate(pieces):
    place, size = partition.train_offset[client], partition.train_size[client]
    mine = partition.train_order[place : place + size]
    assert sorted(mine.tolist()) == sorted(expected.tolist())
    place, size = partition.test_offset[client], partition.test_size[client]
    tested = examples.y_test[partition.test_order[place : place + size]]
    assert {*tested.tolist()} <= {*examples.y_train[expected].tolist()}
  # partition.json has these, so that a changed file is noticed.
  assert partition.name == partition.flags["partition"] == name
  digest = hashlib.sha256(OWN_FILE.encode()).hexdigest()
  assert partition.flags["sha256"] == digest


@each(
  "name, says",
  [
    ("few", "gives the rows of 2 clients, must give those of `num_clients`=12"),
    ("twice", "row 5 occurs 2 times (client 0 and client 1)"),
    ("outside", "client 11 has row 1438, the training rows are 0 to 1,437"),
    ("empty", "client 11 has no row"),
    ("reals", "client 0 has rows of float64[1], must be a list of whole numbers"),
    ("fails", "failed, IndexError: index 1438 is out of bounds"),
    ("NUMBER", "is an int; must be a function (labels, num_clients, rng) ->"),
    ("other", "mine.py has no other"),
  ],
)
def test_a_function_that_gives_something_else_is_told_so(own_file, name, says):
  with pytest.raises(OptionError) as error:
    federate("digits", partition=f"{own_file}:{name}", num_clients=12)
  message = str(error.value)
  assert message.startswith(f"partition={own_file}:{name}: ") and "\n" not in message
  assert says.replace("`", "") in message


def test_a_function_needs_its_name_and_clients_that_are_not_the_datas(own_file):
  for data, text, says in (
    ("digits", str(own_file), "a file needs the name in it"),
    ("synthetic", f"{own_file}:few", "comes with its clients (only natural)"),
  ):
    with pytest.raises(OptionError, match=re.escape(says)):
      federate(data, partition=text)


def test_rows_sorted_by_client_are_packed_and_counted_in_parts(monkeypatch):
  monkeypatch.setattr(allocate, "_PART", 50)
  monkeypatch.setattr(partition_lib, "_ROWS", 50)
  rng = np.random.default_rng(0)
  owner = np.repeat(np.arange(40), rng.integers(0, 30, 40))
  order, offset, size = allocate.pack(owner, 40, np.random.default_rng(1))
  tie = np.random.default_rng(1).random(len(owner))
  np.testing.assert_array_equal(order, np.lexsort((tie, owner)))
  labels = rng.integers(0, 5, len(owner))
  none = np.zeros(0, np.int64), np.zeros(40, np.int32), np.zeros(40, np.int32)
  counts = partition_lib.label_histogram(
    partition_lib.Partition(order, offset, size, *none, False, "natural", {}), labels
  )
  expected = [np.bincount(labels[owner == client], minlength=5) for client in range(40)]
  np.testing.assert_array_equal(counts, expected)
  assert counts.dtype == np.int32 and counts.ctypes.data % layout.ALIGNMENT == 0
