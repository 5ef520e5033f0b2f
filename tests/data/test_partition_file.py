"""A partition that is written and read is the same one, or is refused."""

import dataclasses
import json

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import Examples, partition_file
from fedjax_alg.data.hold_out import hold_out
from fedjax_alg.data.partition import partition_hash
from tests.data import reading
from tests.data.reading import dealt
from tests.each import each


def examples(seed=0):
  rng = np.random.default_rng(seed)
  return Examples(
    x_train=rng.normal(size=(90, 2)).astype(np.float32),
    y_train=rng.integers(0, 3, 90).astype(np.int32),
    x_test=rng.normal(size=(30, 2)).astype(np.float32),
    y_test=rng.integers(0, 3, 30).astype(np.int32),
    num_classes=3,
    client_train=(np.arange(90) % 6).astype(np.int32),
    client_test=None,
    name="made",
  )


def write_file(path, partition, data):
  partition_file.write_partition_file(path, partition, partition_file.labels_hash(data))
  return path


@pytest.mark.parametrize("num_held_out", (0, 2))
@pytest.mark.parametrize(
  "kind", ("iid", "classes", "shards", "dirichlet", "powerlaw", "natural")
)
def test_what_is_written_is_read(tmp_path, kind, num_held_out):
  data = examples()
  partition = dealt(kind if kind == "powerlaw" else f"{kind}:min_size=2", data, 6, 3)
  path = write_file(tmp_path / "p.npz", hold_out(partition, num_held_out, 1), data)
  got = partition_file.read_partition(path, data)
  assert partition_hash(got) == partition_hash(partition)
  assert (got.name, got.flags, got.pooled) == (kind, partition.flags, partition.pooled)
  for ours, theirs in zip(got[:6], partition[:6]):
    assert ours.dtype == theirs.dtype
  assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_rows_that_lie_together_need_little_room(tmp_path):
  """40,000 rows of 5,000 clients in their order, shuffled at each client."""
  client = np.repeat(np.arange(5000, dtype=np.int32), 8)
  data = Examples(
    x_train=np.zeros((40_000, 1), np.float32),
    y_train=client % 3,
    x_test=np.zeros((5000, 1), np.float32),
    y_test=client[::8] % 3,
    num_classes=3,
    client_train=client,
    client_test=client[::8],
    name="made",
  )
  partition = dealt("natural", data, None, 0)
  path = write_file(tmp_path / "p.npz", partition, data)
  with np.load(path) as stored:
    assert np.abs(stored["train_shift"]).max() == 7
    assert "train_order" not in stored.files
  assert path.stat().st_size < 40_000
  got = partition_file.read_partition(path, data)
  assert partition_hash(got) == partition_hash(partition)
  # In random order nothing is gained, and the arrays are there as they are.
  mixed = np.random.default_rng(0).permutation(40_000)
  data = dataclasses.replace(data, client_train=client[mixed])
  partition = dealt("natural", data, None, 0)
  path = write_file(tmp_path / "p.npz", partition, data)
  with np.load(path) as stored:
    np.testing.assert_array_equal(stored["train_order"], partition.train_order)
  assert partition_hash(partition_file.read_partition(path, data)) == (
    partition_hash(partition)
  )


def test_federations_are_equal(tmp_path):
  options = dict(validation_clients=2, newcomers_at=((2, 3),))
  first = fa.federate("digits", partition="classes", num_clients=20, seed=4, **options)
  partition_file.write_partition_file(tmp_path / "p.npz", first.partition, first.labels)
  reread = fa.federate(
    "digits", partition=f"file:{tmp_path / 'p.npz'}", seed=4, **options
  )
  assert reread.hashes == first.hashes
  assert str(reread.options.partition).startswith("file:")
  np.testing.assert_array_equal(reread.data.train.joins, first.data.train.joins)
  np.testing.assert_array_equal(reread.data.test.x, first.data.test.x)


def test_the_json_of_version_0_2(tmp_path):
  data = examples()
  partition = dealt("powerlaw", data, 3, 0)
  facts = {"name": partition.name, "flags": partition.flags, "pooled": partition.pooled}
  facts |= {
    name: getattr(partition, name).tolist()
    for name in (
      "train_order",
      "train_offset",
      "train_size",
      "test_order",
      "test_offset",
      "test_size",
    )
  }
  path = tmp_path / "partition.json"
  path.write_text(json.dumps(facts))
  got = partition_file.read_partition(path, data)
  assert partition_hash(got) == partition_hash(partition)
  path.write_text(json.dumps(facts | {"validation_clients": [1]}))
  refuses(path, data, "json with held-out clients")


#: A file of one's own: no name, no hash, clients 0 and 1.
MINIMAL = {
  "train_order": [5, 7, 80],
  "train_size": [1, 2],
  "test_order": [4],
  "test_size": [0, 1],
}


def write_minimal(path, **change):
  np.savez(
    path,
    **{name: value for name, value in (MINIMAL | change).items() if value is not None},
  )
  return path


def refuses(path, data, *says):
  reading.refuses(
    lambda: partition_file.read_partition(path, data), f"partition=file:{path}: ", *says
  )


def test_a_file_of_ones_own(tmp_path):
  data = examples()
  got = partition_file.read_partition(write_minimal(tmp_path / "own.npz"), data)
  assert (got.name, got.pooled) == ("file", False)
  assert got.train_order[1:].tolist() == [7, 80]
  assert got.test_offset.tolist() == [0, 0]
  fed = fa.federate(data, partition=f"file:{tmp_path / 'own.npz'}")
  np.testing.assert_array_equal(fed.client(1)[0], data.x_train[[7, 80]])
  np.testing.assert_array_equal(fed.client_test(1)[1], data.y_test[[4]])


ABOUT = np.array(json.dumps({"pooled": True}))


@each(
  "change, says",
  [
    (dict(train_order=None), "has no train_order"),
    (dict(train_order=[5.0, 7, 80]), "train_order is float64"),
    (dict(train_order=[[5, 7, 80]]), "train_order is int64 of shape (1, 3)"),
    (dict(train_order=[5, 7]), "add up to the 2 rows of train_order"),
    (dict(train_size=[4, -1]), "train_size must be at least 0"),
    (dict(train_size=[0, 3]), "client 0 has no row"),
    (dict(test_size=[2, -1]), "test_size must be at least 0"),
    (dict(train_size=[], train_order=[]), "train_size must be at least 0"),
    (
      dict(train_size=[0, 0], train_order=[], test_order=[4, 5], test_size=[1, 1]),
      "no client has a training row",
    ),
    (dict(train_size=[*4 * [2**62], 2, 1]), "train_size must be at least 0"),
    (
      dict(train_size=np.array([2**63, 2**63, 3], np.uint64)),
      "add up to the 3 rows of train_order",
    ),  # the sums overflow to 3
    (dict(train_shift=np.zeros(3, int)), "has train_order and train_shift"),
    (dict(train_order=[5, 7, 90]), "lies in [5, 90], the data have 90 rows"),
    (dict(train_order=[5, -1, 8]), "lies in [-1, 8]"),
    (dict(train_order=[5, 7, 7]), "train_order has row 7 2 times"),
    (dict(test_size=[0, 0, 1]), "2 clients with training rows, 3 with test"),
    (dict(test_order=[5], about=ABOUT), "row 5 is for training and for test"),
    (dict(about=np.array("{")), "not a partition, or damaged"),
    (dict(about=np.array("[]")), "of another format"),
    (dict(about=np.array('{"format": 2}')), "of another format"),
    (dict(about=np.array([{}], object)), "not a partition, or damaged"),
    (
      dict(about=np.array('{"flags": 3}')),
      "flags of its about is an int, must be a dict",
    ),
    (dict(about=np.array('{"pooled": "x"}')), "pooled of its about is a str"),
    (dict(about=np.array('{"name": []}')), "name of its about is a list"),
  ],
)
def test_inconsistent_files(tmp_path, change, says):
  refuses(write_minimal(tmp_path / "own.npz", **change), examples(), says)


def test_other_data_and_no_file(tmp_path):
  data = examples()
  path = write_file(tmp_path / "p.npz", dealt("iid:min_size=2", data, 3, 0), data)
  refuses(
    path,
    examples(1),
    "was made for other labels than those of made (90 training and 30 test rows)",
  )
  # The features may be others.
  partition_file.read_partition(
    path, dataclasses.replace(data, x_train=data.x_train + 1)
  )
  refuses(tmp_path / "none.npz", data, "No such file")
  content = path.read_bytes()
  for damaged in (b"", b"no npz", content[:-50], content[:200]):
    path.write_bytes(damaged)
    refuses(path, data, "not a partition, or damaged")
