"""Who holds what once a data set is dealt to clients."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.base import NEVER
from fedjax_alg.data import (
  DataError,
  Examples,
  features,
  federation,
  layout,
  load_digits,
  make_partition,
  partition_file,
)
from fedjax_alg.data.arrays import from_arrays
from fedjax_alg.data.hold_out import hold_out
from fedjax_alg.data.options import DataOptions
from fedjax_alg.errors import OptionError
from fedjax_alg.runs.plan import federation_of
from tests.data import reading
from tests.data.reading import rows_of


def make_examples(n_train=90, n_test=30, classes=3, clients=None):
  """Row i of the pooled data has the features (i, -i) and label i % L."""
  i = np.arange(n_train + n_test)
  x = np.stack([i, -i], 1).astype(np.float32)
  y = (i % classes).astype(np.int32)
  return Examples(
    x[:n_train],
    y[:n_train],
    x[n_train:],
    y[n_train:],
    classes,
    clients,
    None,
    "numbered",
  )


def deal(examples, partition, kind="none"):
  x_train, x_test = features.make_features(kind)(examples.x_train, examples.x_test)
  return federation.deal(examples._replace(x_train=x_train, x_test=x_test), partition)


def whole_test(fed):
  """x and y of the whole test set."""
  data = fed.data.whole_test
  pieces = [rows_of(data, piece) for piece in range(len(data.size))]
  return tuple(map(np.concatenate, zip(*pieces)))


def whole_is_local(fed):
  """Whether the local test splits are the whole test set, stored once."""
  return fed.data.whole_test.x is fed.data.test.x


@pytest.mark.parametrize("kind", ["iid", "classes", "powerlaw", "natural"])
def test_dealing_gives_each_client_its_rows(kind):
  examples = make_examples(clients=np.repeat(np.arange(3), 30))
  partition = make_partition(kind, examples, 3, 0)
  fed = deal(examples, partition)
  for split in ("train", "test"):
    for client in range(3):
      rows = np.array(reading.rows(partition, split, client))
      if split == "test" and not partition.pooled:
        rows = rows + 90  # numbering of the pooled data
      x, y = rows_of(getattr(fed.data, split), client)
      np.testing.assert_array_equal(x, np.stack([rows, -rows], 1))
      np.testing.assert_array_equal(y, rows % 3)
      if split == "train":
        np.testing.assert_array_equal(
          fed.label_histogram[client], np.bincount(y, minlength=3)
        )
  tested = set(whole_test(fed)[0][:, 0].tolist())
  if kind == "powerlaw":  # trains on official test rows
    assert tested == set(partition.test_order.tolist())
    assert not tested & set(partition.train_order.tolist())
  else:
    assert tested == set(range(90, 120))


def test_dealing_without_an_official_test_set():
  examples = make_examples(n_test=0, clients=np.repeat(np.arange(3), 30))
  natural = make_partition("natural", examples, None, 0)
  fed = deal(examples, natural)
  assert whole_test(fed)[0].shape == (9, 2)
  iid = make_partition("iid", examples, 3, 0)
  with pytest.raises(DataError, match="has no test examples"):
    deal(examples, iid)


def test_hash_is_of_the_data_not_of_the_split():
  digits = load_digits()
  reversed_digits = digits._replace(y_train=digits.y_train[::-1])
  first, second, reversed_labels, scaled = (
    deal(data, make_partition("iid", data, 9, seed), kind)
    for data, seed, kind in (
      (digits, 0, "flatten"),
      (digits, 1, "flatten"),
      (reversed_digits, 0, "flatten"),
      (digits, 0, "standardize"),
    )
  )
  assert first.hashes["data"] == second.hashes["data"]
  assert first.hashes["partition"] != second.hashes["partition"]
  assert len({fed.hashes["data"] for fed in (first, reversed_labels, scaled)}) == 3
  assert scaled.example_shape == (8, 8, 1)


@pytest.mark.parametrize(
  "kind, out",
  [
    ("iid", 0),
    ("iid", 3),
    ("natural", 0),
    ("natural", 2),
    ("powerlaw", 0),
    ("powerlaw", 2),
  ],
)
def test_the_scale_is_that_of_training_rows_of_clients_that_take_part(kind, out):
  """Neither local test rows nor validation clients change what others hold."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(240, 3)).astype(np.float32) * [1, 50, 0]
  y, client_ids = np.arange(240) % 3, np.arange(180) % 6
  client_options = {} if kind == "natural" else {"num_clients": 6}

  def federate(x, **options):
    arguments = (
      {"validation_clients": out, "partition": kind} | client_options | options
    )
    return federation.federate(
      from_arrays(
        x[:180],
        y[:180],
        client_ids if kind == "natural" else None,
        x_test=x[180:],
        y_test=y[180:],
      ),
      **arguments,
    )

  plain, fed = federate(x), federate(x, features="standardize")
  used = plain.partition.train_order
  assert fed.partition.train_order.tolist() == used.tolist()
  mean, std = x[used].mean(0), x[used].std(0)
  np.testing.assert_allclose(fed.scaler.mean, mean, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
    fed.scaler.factor, [1 / (std[0] + 0.001), 1 / (std[1] + 0.001), 0], rtol=1e-4
  )
  trained = np.asarray(fed.data.train.x)[: len(used)]
  np.testing.assert_allclose(
    trained, (x[used] - mean) / (std + 0.001), rtol=1e-3, atol=1e-4
  )
  tested = fed.partition.test_order
  np.testing.assert_array_equal(
    np.asarray(fed.data.test.x)[: len(tested)],
    fed.scaler.apply(np.asarray(plain.data.test.x)[: len(tested)]),
  )
  changed_x = x.copy()
  changed_x[np.setdiff1d(np.arange(240), used)] *= 9
  rescaled = np.asarray(federate(changed_x, features="standardize").data.train.x)
  np.testing.assert_array_equal(rescaled[: len(used)], trained)


def test_the_scale_of_all_training_rows_has_the_bits_of_earlier_versions():
  digits = load_digits()
  for seed in (0, 1):
    fed = federation.federate(
      "digits", features="standardize", num_clients=9, seed=seed
    )
    want, test = features.standardize(digits.x_train, digits.x_test)
    order = fed.partition.train_order
    np.testing.assert_array_equal(fed.data.train.x[: len(order)], want[order])
    np.testing.assert_array_equal(
      fed.data.test.x[: len(test)], test[fed.partition.test_order]
    )


KINDS = ["iid", "classes", "shards", "dirichlet", "powerlaw", "natural", "named"]


@pytest.mark.parametrize("kind", KINDS)
def test_dealing_gives_the_server_the_rows_of_clients_held_out(kind):
  """And nothing is tested that one of these owned."""
  # ``named``: natural, and the test rows name their clients too.
  client_test = np.arange(60) % 6 if kind == "named" else None
  examples = make_examples(180, 60, clients=np.arange(180) % 6)._replace(
    client_test=client_test
  )
  before = make_partition("natural" if kind == "named" else kind, examples, 6, 1)
  after = hold_out(before, 2, 1)
  everyone, fed = deal(examples, before), deal(examples, after)
  held_clients = after.held_out.clients.tolist()
  stay = [client for client in range(6) if client not in held_clients]
  assert len(held_clients) == 2
  first, total = np.asarray(fed.data.train.validation).tolist()
  assert first == int(fed.data.train.size.sum())  # right behind the last client
  assert total == int(before.train_size[held_clients].sum())
  end = first + total
  want = [rows_of(everyone.data.train, client) for client in held_clients]
  for ours, parts in zip((fed.data.train.x, fed.data.train.y), zip(*want)):
    np.testing.assert_array_equal(ours[first:end], np.concatenate(parts))
    assert ours.shape[0] == end + layout.PADDING_ROWS
    assert not np.asarray(ours[end:]).any()
  np.testing.assert_array_equal(fed.label_histogram, everyone.label_histogram[stay])
  assert fed.hashes["data"] == everyone.hashes["data"]

  def tests(built, clients):
    return set().union(
      *(rows_of(built.data.test, c)[0][:, 0].tolist() for c in clients)
    )

  theirs, official = tests(everyone, held_clients), set(range(180, 240))
  x, y = whole_test(fed)
  tested = set(x[:, 0].tolist())
  np.testing.assert_array_equal(y, x[:, 0] % 3)
  assert theirs and len(tested) == len(y)
  assert not theirs & tests(fed, range(4))
  assert not {*np.concatenate([x for x, _ in want])[:, 0].tolist()} & (tested | theirs)
  if kind == "powerlaw":  # trains on official test rows
    assert tested == tests(fed, range(4)) and whole_is_local(fed)
    return
  if kind == "named":  # test rows that name their client are that client's
    assert tested == tests(fed, range(4)) and whole_is_local(fed)
  else:
    assert tested == official and not whole_is_local(fed)
    assert whole_is_local(everyone) == (kind != "natural")


@pytest.mark.parametrize(
  "options",
  [
    {},
    {"num_clients": 4},
    {"min_client_size": 16},
    {"validation_clients": 3},
    {"num_clients": 6, "validation_clients": 2},
  ],
)
@pytest.mark.parametrize("with_test_ids", [True, False])
def test_the_whole_test_set_has_the_rows_of_the_federation_s_clients(
  options, with_test_ids
):
  """Where test rows name their client; else it is the official test set."""
  client_ids = np.repeat(np.arange(12), np.arange(10, 22))
  of_test = np.arange(60) % 12
  fed = federation.federate(
    from_arrays(
      np.ones((len(client_ids), 1)),
      np.arange(len(client_ids)) % 2,
      client_ids,
      x_test=of_test[:, None].astype(float),
      y_test=np.arange(60) % 2,
      test_client_ids=of_test if with_test_ids else None,
    ),
    partition="natural",
    **options,
  )
  tested = set(whole_test(fed)[0][:, 0].astype(int).tolist())
  assert tested == (
    set(map(int, fed.client_names)) if with_test_ids else set(range(12))
  )
  size = int(np.asarray(fed.data.whole_test.size).sum())
  assert size == (5 * fed.num_clients if with_test_ids else 60)


def test_dealing_without_tests_among_those_who_stay():
  clients = np.array([0] * 10 + [1])
  examples = make_examples(11, 0, clients=clients)
  natural = make_partition("natural", examples, None, 0)
  partition = next(
    p
    for p in (hold_out(natural, 1, s) for s in range(50))
    if p.held_out.clients[0] == 0
  )
  with pytest.raises(DataError, match="validation_clients=1 leaves"):
    deal(examples, partition)


def test_as_many_held_out_rows_as_official_ones_are_not_the_same_rows():
  examples = make_examples(90, 9, clients=np.repeat(np.arange(3), 30))
  fed = deal(examples, make_partition("natural", examples, None, 0))
  assert int(fed.data.test.size.sum()) == len(whole_test(fed)[1]) == 9
  assert not whole_is_local(fed)


def test_validation_pieces_are_the_servers_rows():
  fed = federation.federate("digits", num_clients=20, validation_clients=19)
  data = fed.data
  first, total = np.asarray(data.train.validation).tolist()
  offset, size = map(np.asarray, data.validation)
  assert len(size) > 1 and size.max() <= 500 and size.sum() == total
  assert offset[0] == first
  np.testing.assert_array_equal(offset[1:], offset[:-1] + size[:-1])
  digits = load_digits()
  np.testing.assert_array_equal(
    data.train.y[first : first + total],
    digits.y_train[fed.partition.held_out.train_order],
  )
  train = jax.tree.map(jnp.asarray, data.train)
  cohort = layout.everyone(train)
  assert int(cohort.validation.size) == total
  assert cohort.validation.x.codes is train.x.codes  # no copy


#: Clients 0 to 4 train; 5, 6 and 7 have test rows alone.
TRAIN_IDS, TEST_IDS = np.repeat(np.arange(5), 12), np.arange(32) % 8
TESTERS = r"3 of \d clients \((f|5), (g|6), (h|7)\) have test examples only"


def _test_clients(names=False, **options):
  """A federation of these clients, test row i has the feature i."""
  ids = TRAIN_IDS, TEST_IDS
  if names:
    ids = tuple(np.array(list("abcdefgh"))[indices] for indices in ids)
  with pytest.warns(UserWarning, match=TESTERS):
    return federation.federate(
      from_arrays(
        np.ones((60, 1)),
        np.arange(60) % 2,
        ids[0],
        x_test=np.arange(32.0)[:, None],
        y_test=np.arange(32) % 2,
        test_client_ids=ids[1],
      ),
      partition="natural",
      **options,
    )


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"num_clients": 3},
    {"validation_clients": 2},
    {"min_client_size": 12},
    {"newcomers_at": ((2, 2),)},
  ],
)
def test_clients_with_test_rows_alone_are_evaluated_and_never_join(names, options):
  fed = _test_clients(names, **options)
  trains = np.asarray(fed.data.train.size) > 0
  num_training = options.get("num_clients", 5) - options.get("validation_clients", 0)
  assert fed.num_training_clients == trains.sum() == num_training
  assert fed.client_names[~trains].tolist() == list("fgh" if names else "567")
  joins = fed.data.train.joins
  assert (joins[~trains] == NEVER).all()
  assert sorted(set(joins[trains].tolist())) == (
    [0, 2] if "newcomers_at" in options else [0]
  )
  for client in np.flatnonzero(~trains):
    name = fed.client_names[client]
    number = "abcdefgh".index(name) if names else int(name)
    assert sorted(fed.client_test(client)[0][:, 0].tolist()) == (
      np.flatnonzero(TEST_IDS == number).tolist()
    )
  if fed.partition.held_out is not None:
    assert fed.partition.held_out.train_size.all()
  assert int(np.asarray(fed.data.whole_test.size).sum()) == 4 * (num_training + 3)


def test_what_has_no_clients_without_training_rows():
  examples = from_arrays(
    np.ones((60, 1)),
    np.arange(60) % 2,
    TRAIN_IDS,
    x_test=np.ones((32, 1)),
    y_test=np.arange(32) % 2,
    test_client_ids=TEST_IDS,
  )
  for options, says in (
    ({"shift": "swap_all"}, "shift=swap_all: clients would exchange data"),
    ({"validation_clients": 5}, "leaves none of the 5 clients to train"),
  ):
    reading.refuses(
      lambda options=options: federation.federate(
        examples, partition="natural", **options
      ),
      says,
    )


def test_files_with_clients_without_training_rows(tmp_path):
  """npz, LEAF's split by user, and a partition file say the same."""
  x, y = np.ones((60, 1), np.float32), np.arange(60) % 2
  x_test, y_test = np.arange(32, dtype=np.float32)[:, None], np.arange(32) % 2
  np.savez(
    tmp_path / "a.npz",
    x_train=x,
    y_train=y,
    client_train=TRAIN_IDS,
    x_test=x_test,
    y_test=y_test,
    client_test=TEST_IDS,
  )
  for split, ids, rows, labels in (
    ("train", TRAIN_IDS, x, y),
    ("test", TEST_IDS, x_test, y_test),
  ):
    users = {
      str(i): {"x": rows[ids == i].tolist(), "y": labels[ids == i].tolist()}
      for i in set(ids)
    }
    (tmp_path / split).mkdir()
    (tmp_path / split / "a.json").write_text(
      json.dumps({"users": list(users), "user_data": users})
    )
  want = _test_clients()
  partition_file.write_partition_file(tmp_path / "p.npz", want.partition, want.labels)
  for options in (
    {"dataset": "npz", "data_path": str(tmp_path / "a.npz")},
    {"dataset": "leaf", "data_path": str(tmp_path)},
    {
      "dataset": "npz",
      "data_path": str(tmp_path / "a.npz"),
      "partition_file": str(tmp_path / "p.npz"),
    },
  ):
    with pytest.warns(UserWarning, match=TESTERS):
      fed = federation.from_options(DataOptions(**options).filled())
    assert fed.client_names.tolist() == want.client_names.tolist()
    np.testing.assert_array_equal(fed.data.train.joins, want.data.train.joins)
    np.testing.assert_array_equal(fed.data.train.size, want.data.train.size)
    for client in range(8):
      assert sorted(fed.client_test(client)[0][:, 0].tolist()) == sorted(
        want.client_test(client)[0][:, 0].tolist()
      )


def _write_npz(path, k):
  rows = np.arange(40)
  np.savez(
    path,
    x_train=np.ones((40, 2), np.float32),
    y_train=rows % k,
    x_test=np.ones((40, 2), np.float32),
    y_test=rows % k,
  )


def _write_leaf(path, k):
  rows = {"x": [[1.0, 2.0]] * 20, "y": [i % k for i in range(20)]}
  path.parent.mkdir(exist_ok=True)
  path.write_text(json.dumps({"users": ["a"], "user_data": {"a": rows}}))


def _write_idx(path, k):
  labels = bytes([0, 0, 8, 1, 0, 0, 0, 9, *(i % k for i in range(9))])
  images = bytes([0, 0, 8, 3, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, *range(9)])
  for split in ("train", "t10k"):
    path.with_name(f"{split}-labels-idx1-ubyte").write_bytes(labels)
    path.with_name(f"{split}-images-idx3-ubyte").write_bytes(images)


def _write_letters(path, k):
  x = np.zeros((300, 28, 28), np.uint8)
  x[:, 0, 0] = k
  np.savez(path, x=x, y=np.arange(300) % 10)


def _write_play(path, k):
  path.write_text("\n\n".join(["HAM.\n" + "toe ben"[k : k + 2] * 300] * 3))


def _write_task(path, k):
  path.write_text(
    "import dataclasses\nfrom fedjax_alg.tasks import NAMES\n"
    "OWN = dataclasses.replace("
    f"NAMES['regression'], name='own{k}', for_data=None)\n"
  )


def _write_partition(path, k):
  rows = np.arange(40)
  np.savez(
    path,
    train_order=np.roll(rows, k),
    train_size=[20, 20],
    test_order=rows,
    test_size=[20, 20],
  )


def _facts(fed):
  task = fed.task.name if fed.task else None
  return fed.num_classes, fed.hashes, fed.labels, task


@pytest.mark.parametrize(
  "write, file, options",
  [
    (_write_npz, "a.npz", {"dataset": "npz", "num_clients": 2}),
    (_write_leaf, "a.json", {"dataset": "leaf"}),
    (_write_leaf, "train/a.json", {"dataset": "leaf"}),
    (
      _write_idx,
      "t10k-labels-idx1-ubyte",
      {"dataset": "idx", "num_clients": 1, "min_client_size": 1},
    ),
    (_write_letters, "a.npz", {"dataset": "femnist", "num_clients": 5}),
    (_write_play, "a.txt", {"dataset": "shakespeare"}),
    (_write_task, "own.py", {"dataset": "digits", "num_clients": 2}),
    (_write_partition, "p.npz", {"dataset": "npz"}),
  ],
)
def test_a_file_that_was_written_again_is_read_again(tmp_path, write, file, options):
  """Also where size and time of writing are the same, in every cache."""
  path = tmp_path / file
  if write is _write_task:
    options = options | {"task": f"{path}:OWN"}
  elif write is _write_partition:
    _write_npz(tmp_path / "a.npz", 2)
    options = options | {
      "data_path": str(tmp_path / "a.npz"),
      "partition_file": str(path),
    }
  else:
    folder = options["dataset"] == "idx" or "/" in file
    options = options | {"data_path": str(tmp_path if folder else path)}
  if "/" in file:
    _write_leaf(tmp_path / "test" / "a.json", 2)
  facts = []
  for k in (2, 5):
    write(path, k)
    for inside in sorted(path.parent.iterdir()):
      os.utime(inside, (1, 1))
    size = path.stat().st_size
    filled = DataOptions(**options).filled()
    first = federation_of(filled)
    assert federation_of(filled) is first, "kept while the files are the same"
    facts += [(size, _facts(first)), (size, _facts(federation.from_options(filled)))]
  assert facts[0] == facts[1] and facts[2] == facts[3]
  assert facts[0][0] == facts[2][0] and facts[0][1] != facts[2][1]


def test_a_large_file_is_not_kept_in_memory(tmp_path, monkeypatch):
  """Its rows are in the federation once more, in the order of the clients."""
  rng = np.random.default_rng(0)
  np.savez(
    tmp_path / "a.npz",
    x_train=rng.random((30, 4)),
    y_train=np.arange(30) % 3,
    client_train=np.arange(30) % 5,
    x_test=rng.random((10, 4)),
    y_test=np.arange(10) % 3,
  )
  hashes = []
  for most, num_cached in ((30 * 4 * 4, 1), (30 * 4 * 4 - 1, 0)):
    monkeypatch.setattr(federation, "_KEPT_BYTES", most)
    hashes.append(
      federation.federate(
        "npz", data_path=str(tmp_path / "a.npz"), partition="natural"
      ).hashes
    )
    assert federation._load_with_features.cache_info().currsize == num_cached
  assert hashes[0] == hashes[1]


def test_some_of_the_training_examples():
  """Without it a subset could repeat rows, change the test set, or lose its nesting."""
  source, options = make_examples(), {"num_clients": 3, "size_sigma": 0.0, "seed": 2}

  def rows(count):
    fed = federation.federate(source, train_examples=count, **options)
    x = np.asarray(fed.data.train.x)[: fed.data.train.size.sum()]
    return fed, sorted(x[:, 0].tolist())

  (whole, every), (fewer, some), (_, few) = rows(None), rows(60), rows(30)
  assert len(set(some)) == 60 and set(few) < set(some) < set(every)
  np.testing.assert_array_equal(
    *(np.sort(whole_test(fed)[0], 0) for fed in (fewer, whole))
  )
  assert rows(90)[0].hashes == whole.hashes  # all of them are what was dealt before
  other = federation.federate(source, train_examples=60, **options | {"seed": 3})
  assert other.hashes["data"] != fewer.hashes["data"]
  with pytest.raises(DataError, match="train_examples=91: numbered has 90"):
    rows(91)
  with pytest.raises(OptionError, match="train_examples"):
    federation.federate(source, train_examples=5, partition="natural")


def test_several_seeds_of_a_partition_are_partitions():
  """Which argument serves was not said."""
  with pytest.raises(OptionError, match=r"^seed=\[0, 1, 2\]: .*give partitions=N"):
    federation.federate("digits", seed=[0, 1, 2])
