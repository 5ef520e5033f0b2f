"""Who holds what once a data set is dealt to clients."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import memory
from fedjax_alg.base import NEVER
from fedjax_alg.data import (
  DataError,
  Examples,
  features,
  federation,
  layout,
  load_digits,
  partition_file,
)
from fedjax_alg.data.arrays import from_arrays
from fedjax_alg.data.hold_out import hold_out
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.store import Coded
from fedjax_alg.errors import OptionError
from fedjax_alg.part import of_type
from fedjax_alg.runs.plan import federation_of
from tests.data import reading
from tests.data.reading import dealt, rows_of
from tests.each import each


def make_examples(n_train=90, n_test=30, classes=3, clients=None):
  """Row i of the pooled data has the features (i, -i) and label i % L."""
  i = np.arange(n_train + n_test)
  x = np.stack([i, -i], 1).astype(np.float32)
  y = (i % classes).astype(np.int32)
  return Examples(
    x_train=x[:n_train],
    y_train=y[:n_train],
    x_test=x[n_train:],
    y_test=y[n_train:],
    num_classes=classes,
    client_train=clients,
    client_test=None,
    name="numbered",
  )


def deal(examples, partition, kind="none"):
  x_train, x_test = map(
    of_type("features", kind, features.FEATURES).compute,
    (examples.x_train, examples.x_test),
  )
  return federation.deal(
    dataclasses.replace(examples, x_train=x_train, x_test=x_test), partition
  )


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
  partition = dealt(kind, examples, 3, 0)
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
  natural = dealt("natural", examples, None, 0)
  fed = deal(examples, natural)
  assert whole_test(fed)[0].shape == (9, 2)
  iid = dealt("iid", examples, 3, 0)
  with pytest.raises(DataError, match="has no test examples"):
    deal(examples, iid)


def test_hash_is_of_the_data_not_of_the_split():
  digits = load_digits()
  reversed_digits = dataclasses.replace(digits, y_train=digits.y_train[::-1])
  first, second, reversed_labels, scaled = (
    deal(data, dealt("iid", data, 9, seed), kind)
    for data, seed, kind in (
      (digits, 0, "flatten"),
      (digits, 1, "flatten"),
      (reversed_digits, 0, "flatten"),
      (digits, 0, "contrast"),
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


def test_where_clients_have_all_training_rows_the_scale_is_that_of_the_data():
  digits = load_digits()
  for seed in (0, 1):
    fed = federation.federate(
      "digits", features="standardize", num_clients=9, seed=seed
    )
    scale = features.fit_scaler(digits.x_train).apply
    want, test = map(scale, (digits.x_train, digits.x_test))
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
  examples = dataclasses.replace(
    make_examples(180, 60, clients=np.arange(180) % 6), client_test=client_test
  )
  before = dealt("natural" if kind == "named" else kind, examples, 6, 1)
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
    assert ours.shape[0] == layout.num_places(end)
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
    {"partition": "natural:min_size=16"},
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
    **{"partition": "natural", **options},
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
  natural = dealt("natural", examples, None, 0)
  partition = next(
    p
    for p in (hold_out(natural, 1, s) for s in range(50))
    if p.held_out.clients[0] == 0
  )
  with pytest.raises(DataError, match="validation_clients=1 leaves"):
    deal(examples, partition)


def test_as_many_held_out_rows_as_official_ones_are_not_the_same_rows():
  examples = make_examples(90, 9, clients=np.repeat(np.arange(3), 30))
  fed = deal(examples, dealt("natural", examples, None, 0))
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
      **{"partition": "natural", **options},
    )


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"num_clients": 3},
    {"validation_clients": 2},
    {"partition": "natural:min_size=12"},
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
  for name in fed.client_names[~trains]:
    number = "abcdefgh".index(name) if names else int(name)
    assert sorted(fed.client_test(name)[0][:, 0].tolist()) == (
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
    {"dataset": f"npz:{tmp_path / 'a.npz'}"},
    {"dataset": f"leaf:{tmp_path}"},
    {
      "dataset": f"npz:{tmp_path / 'a.npz'}",
      "partition": f"file:{tmp_path / 'p.npz'}",
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
      {"dataset": "idx", "num_clients": 1, "partition": "iid:min_size=1"},
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
      "dataset": f"npz:{tmp_path / 'a.npz'}",
      "partition": f"file:{path}",
    }
  else:
    folder = options["dataset"] == "idx" or "/" in file
    place = tmp_path if folder else path
    options = options | {"dataset": f"{options['dataset']}:{place}"}
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
      federation.federate(f"npz:{tmp_path / 'a.npz'}", partition="natural").hashes
    )
    assert federation._load_with_features.cache_info().currsize == num_cached
  assert hashes[0] == hashes[1]


def test_some_of_the_training_examples():
  """Without it a subset could repeat rows, change the test set, or lose its nesting."""
  source, options = (
    make_examples(),
    {"num_clients": 3, "partition": "iid:size_sigma=0.0", "seed": 2},
  )

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


def _hospitals(**options):
  rng = np.random.default_rng(3)
  x, y = rng.normal(size=(160, 5)), rng.integers(0, 3, 160)
  options = {"partition": "natural"} | options
  ids = {"client_ids": [f"H{i:02}" for i in rng.permutation(160) % 8]}
  if options["partition"].startswith("dirichlet"):
    ids = {"x_test": x[:40], "y_test": y[:40]}
  return federation.federate(from_arrays(x, y, **ids), **options)


@pytest.mark.parametrize(
  "options",
  [
    {},
    {"validation_clients": 2},
    {"newcomers_at": ((3, 2),)},
    {"kinds": "permute:3", "seed": 4},
    {"kinds": "noise:0.5", "validation_clients": 2},
    {"partition": "dirichlet:min_size=1", "num_clients": 8},
  ],
)
def test_others_are_bit_identical_without_a_client(options):
  """Else a run before and a run after are not paired: other rows, other patients."""
  before = _hospitals(**options)
  name = before.client_names[3]
  after = _hospitals(without=name, **options)
  assert after.client_names.tolist() == before.client_names.tolist()
  for client in before.client_names:
    for old, new in (
      (before.client(client), after.client(client)),
      (before.client_test(client), after.client_test(client)),
    ):
      if client == name:
        assert [len(part) for part in new] == [0, 0]
      else:
        for a, b in zip(old, new):
          np.testing.assert_array_equal(a, b)
  stay = np.arange(8 - options.get("validation_clients", 0)) != 3
  joins = before.data.train.joins
  joins = np.zeros(len(stay), np.int32) if joins is None else joins
  np.testing.assert_array_equal(after.data.train.joins[stay], joins[stay])
  assert after.data.train.joins[3] == NEVER
  assert not after.label_histogram[3].any()
  np.testing.assert_array_equal(
    after.label_histogram[stay], before.label_histogram[stay]
  )
  if before.kinds is not None:
    np.testing.assert_array_equal(after.kinds.of_client, before.kinds.of_client)
  if options.get("validation_clients"):
    assert after.validation_names.tolist() == before.validation_names.tolist()
    np.testing.assert_array_equal(
      after.partition.held_out.train_order, before.partition.held_out.train_order
    )
  if before.options.partition == "natural":  # the whole test set is that of the clients
    tests = before.data.test.size
    assert after.data.whole_test.size.sum() == tests.sum() - tests[3]
  assert after.hashes["partition"] != before.hashes["partition"]
  assert after.hashes["data"] == before.hashes["data"]
  assert after.options.without == (name,)


@pytest.mark.parametrize("features", ["none", "standardize"])
def test_federations_with_and_without_a_client_are_a_pair(features):
  """Though the scale of the others is their own; another seed is no pair."""
  everybody, less, least = (
    _hospitals(features=features, **options)
    for options in ({}, {"without": "H03"}, {"without": ["H03", "H05"]})
  )
  assert (
    len({federation.pair_hash(fed.hashes) for fed in (everybody, less, least)}) == 1
  )
  assert everybody.hashes.keys() == {"data", "partition"}
  assert federation.pair_hash(
    _hospitals(seed=1, features=features, without="H03").hashes
  ) != (federation.pair_hash(less.hashes))
  if features == "standardize":
    x, _ = less.client("H00")
    rows = np.concatenate([less.client(name)[0] for name in less.client_names])
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-6)
    assert np.abs(x - everybody.client("H00")[0]).max() > 0


def test_a_validation_client_leaves_too():
  before = _hospitals(validation_clients=3)
  name = before.validation_names[1]
  after = _hospitals(validation_clients=3, without=[name])
  assert after.client_names.tolist() == before.client_names.tolist()
  for client in before.client_names:
    np.testing.assert_array_equal(before.client(client)[0], after.client(client)[0])
  sizes = before.partition.held_out.train_size
  assert after.partition.held_out.train_size.tolist() == [sizes[0], 0, sizes[2]]
  assert after.data.held_out.size.tolist() == [sizes[0], 0, sizes[2]]
  assert int(after.data.train.validation[1]) == sizes[0] + sizes[2]


def test_a_file_has_all_clients_and_can_be_used_again(tmp_path):
  """As for validation clients: who leaves is said by the option."""
  fed = _hospitals(without=["H02"])
  path = tmp_path / "partition.npz"
  partition_file.write_partition_file(path, fed.partition, fed.labels)
  everybody = _hospitals(partition=f"file:{path}")
  np.testing.assert_array_equal(everybody.client("H05")[0], fed.client("H05")[0])
  assert len(everybody.client("H02")[0])
  less = _hospitals(partition=f"file:{path}", without="H02")
  assert less.hashes == fed.hashes


@each(
  "options, says",
  [
    ({"without": "H8"}, "without=H8: "),
    ({"without": 3}, "without=3: "),
    ({"without": True}, "without=True: "),
    ({"without": []}, "without: "),
    ({"without": ["H01", "H01"]}, "without=H01,H01: H01"),
    ({"without": [f"H{i:02}" for i in range(8)]}, "leaves no client with training"),
    ({"without": "H01", "shift": "increment"}, "without and shift: give one"),
    (
      {"without": "8", "partition": "iid", "num_clients": 8},
      "without=8: ",
    ),
  ],
)
def test_who_cannot_be_left_out(options, says):
  with pytest.raises(OptionError, match=says):
    _hospitals(**options)


def memmap(tmp_path, dtype, shape):
  """Rows on disk, of which no multiple of 1 / 2^k makes bytes."""
  rows = np.random.default_rng(0).integers(1, 256, shape, np.uint8)
  path = tmp_path / "rows.npy"
  np.save(path, rows if dtype == np.uint8 else rows / dtype(3))
  return np.load(path, mmap_mode="r")


@pytest.mark.program
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_rows_on_disk_are_copied_once(tmp_path, dtype):
  """To the order of the clients, whose rows are followed by zeros."""
  n = 4096
  x = memmap(tmp_path, dtype, (n, 8192))
  clients, y = np.repeat(np.arange(4), n // 4), np.arange(n) % 2
  padding = layout.PADDING_ROWS * (x.nbytes // n)
  tracemalloc.start()
  try:
    examples = from_arrays(x, y, clients)
    read = tracemalloc.get_traced_memory()[1]
    fed = federation.federate(examples, partition="natural:test_share=0.25")
    peak = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert np.shares_memory(examples.x_train, x)
  assert read < 0.05 * x.nbytes
  assert peak < 1.2 * x.nbytes + 2 * padding
  rows = fed.partition.train_order
  stored = fed.data.train.x
  stored = stored.codes if isinstance(stored, Coded) else stored
  np.testing.assert_array_equal(stored[: len(rows)], x[rows])
  # The clients' rows for testing are all there are, and lie there once.
  tests = [
    data.x.codes if isinstance(data.x, Coded) else data.x
    for data in (fed.data.test, fed.data.whole_test)
  ]
  assert tests[0] is tests[1] and not np.shares_memory(tests[0], stored)


LIMITED = """
import resource, sys
import numpy as np
import fedjax_alg as fa
from fedjax_alg.data import federation

x = np.load(sys.argv[1], mmap_mode="r")
clients = np.repeat(np.arange(4), len(x) // 4)
examples = fa.from_arrays(x, np.arange(len(x)) % 2, clients)
with open("/proc/self/status") as file:
  size = next(int(line.split()[1]) for line in file if line.startswith("VmSize"))

def limit(room):
  resource.setrlimit(resource.RLIMIT_AS, (1024 * size + int(room), -1))

def never(*arrays):
  raise AssertionError("the data were read")

before, federation._hash = federation._hash, never
limit(0.9 * x.nbytes)
try:
  fa.federate(examples)
except fa.DataError as error:
  print(error)
federation._hash = before
limit(1.3 * x.nbytes + 2**26)
print(fa.federate(examples).num_clients)
"""


@pytest.mark.program
def test_what_does_not_fit_is_refused_before_the_data_are_read(tmp_path):
  """It was a MemoryError after minutes; and what fits is not refused."""
  x = memmap(tmp_path, np.uint8, (2**15, 4096))
  result = subprocess.run(
    [sys.executable, "-W", "ignore", "-c", LIMITED, x.filename],
    capture_output=True,
    text=True,
    check=True,
    env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
  )
  refusal, clients = result.stdout.splitlines()
  assert re.fullmatch(
    r"source=arrays: 32,768 examples of 4,100 bytes in the order of the clients: needs "
    r"0.125 GB of memory, ulimit -v leaves 0.1\d* GB \(allowed: fewer .*\)",
    refusal,
  )
  assert clients == "4"


@pytest.mark.parametrize(
  "options", [{}, {"validation_clients": 2}, {"store": "float32"}]
)
@pytest.mark.parametrize("with_test", [True, False])
def test_the_bytes_that_are_refused_are_those_that_are_made(
  monkeypatch, options, with_test
):
  """But for the zeros behind the rows; less would be no refusal, more a false one."""
  x = np.random.default_rng(0).integers(0, 256, (60, 3), np.uint8)
  tests = {"x_test": x[:20], "y_test": np.arange(20) % 2} if with_test else {}
  examples = from_arrays(x, np.arange(60) % 2, np.arange(60) % 6, **tests)
  fed = federation.federate(examples, **options)
  arrays = {
    id(leaf): (data, leaf)
    for data in (fed.data.train, fed.data.test, fed.data.whole_test)
    for leaf in jax.tree.leaves((data.x, data.y))
    if leaf.shape[0] >= layout.PADDING_ROWS  # not the scale of bytes
  }
  made = sum(
    int(data.size.sum() + (0 if data.validation is None else data.validation[1]))
    * leaf[0].nbytes
    for data, leaf in arrays.values()
  )
  limit_host(monkeypatch, made)
  federation.federate(examples, **options)
  limit_host(monkeypatch, made - 1)
  with pytest.raises(DataError, match="^source=arrays: .* needs .* GB of memory, we"):
    federation.federate(examples, **options)


def limit_host(monkeypatch, nbytes):
  monkeypatch.setattr(memory, "host", lambda: memory.Limit(nbytes, "we have"))


def test_features_that_do_not_fit_are_refused(monkeypatch):
  x = np.zeros((60, 3), np.uint8)
  examples = from_arrays(x, np.arange(60) % 2, np.arange(60) % 6)
  limit_host(monkeypatch, 4 * x.size - 1)
  for kind in ("contrast", "standardize"):
    with pytest.raises(
      DataError, match=f"^features={kind}: 60 examples .* needs .* GB"
    ):
      federation.federate(examples, features=kind)
  with pytest.raises(DataError, match="^x: 180 numbers as float32 .* needs .* GB"):
    from_arrays(x.astype(np.float64), np.arange(60) % 2)


def test_memory_that_runs_out_is_one_line(monkeypatch):
  def run_out(*arrays):
    raise MemoryError("no room")

  monkeypatch.setattr(federation, "_hash", run_out)
  with pytest.raises(
    DataError, match="^dataset=digits: out of memory .no room., .* GB"
  ):
    federation.federate("digits")


def test_several_seeds_of_a_partition_are_partitions():
  """Which argument serves was not said."""
  with pytest.raises(OptionError, match=r"^seed=\[0, 1, 2\]: .*give partitions=N"):
    federation.federate("digits", seed=[0, 1, 2])
