"""Who is of which kind; data that bring their kinds."""

import json

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_alg as fa
from fedjax_alg import memory
from fedjax_alg.data.kind_dealing import share_out
from fedjax_alg.data.partition_file import write_partition_file
from fedjax_alg.data.process_rows import Process, set_process
from tests import problems
from tests.data.reading import refuses
from tests.each import each

RNG = np.random.default_rng(1)
X = RNG.random((80, 3, 3)).astype(np.float32)
Y = np.arange(80) % 4
CLIENT = np.arange(80) % 8
KIND = np.array(["red", "blue"])[CLIENT % 2]


def examples(kind=KIND, client=CLIENT, **more):
  return fa.from_arrays(
    X[:64],
    Y[:64],
    None if client is None else client[:64],
    kind_ids=kind[:64],
    x_test=X[64:],
    y_test=Y[64:],
    test_client_ids=None if client is None else client[64:],
    **more,
  )


@pytest.mark.parametrize(
  "number, clients, shares, sizes",
  [
    (4, 40, None, [10] * 4),
    (4, 42, None, [11, 11, 10, 10]),
    (3, 40, (2, 1, 1), [20, 10, 10]),
    (2, 10, (1000, 1), [9, 1]),
    (2, 2, (1, 5), [1, 1]),
  ],
)
def test_clients_are_shared_out_to_kinds(number, clients, shares, sizes):
  assert share_out(number, clients, shares).tolist() == sizes


def test_the_seed_decides_who_is_of_which_kind():
  options = {"kinds": "rotate:0,90,shares=2:1", "num_clients": 30}
  by_seed = [
    fa.federate("digits", seed=seed, **options).kinds.of_client for seed in (0, 0, 1)
  ]
  np.testing.assert_array_equal(by_seed[0], by_seed[1])
  assert (by_seed[0] != by_seed[2]).any()
  assert np.bincount(by_seed[2]).tolist() == [20, 10]


def test_validation_clients_have_kinds_too():
  all_ = fa.federate("digits", kinds="rotate:0,90", num_clients=20)
  some = fa.federate(
    "digits", kinds="rotate:0,90", num_clients=20, validation_clients=5
  )
  out = some.partition.held_out.clients
  np.testing.assert_array_equal(
    some.kinds.of_client, np.delete(all_.kinds.of_client, out)
  )
  server = np.asarray(some.data.train.x)[some.data.train.validation[0] :]
  theirs = np.concatenate([all_.client(client)[0] for client in out])
  np.testing.assert_array_equal(server[: len(theirs)], theirs)


def test_data_bring_their_kinds():
  federation = fa.federate(examples())
  assert federation.kinds.names == ("blue", "red")
  assert federation.kinds.of_client.tolist() == [1, 0] * 4
  assert federation.kinds.same_labels
  plain = fa.from_arrays(
    X[:64],
    Y[:64],
    CLIENT[:64],
    x_test=X[64:],
    y_test=Y[64:],
    test_client_ids=CLIENT[64:],
  )
  assert fa.federate(plain).hashes == federation.hashes
  # The test rows of each kind, and nothing else.
  tests = federation.data.kinds
  whole = np.asarray(federation.data.whole_test.x)
  for kind in range(2):
    first, size = tests.offset[kind], tests.size[kind]
    rows = {row.tobytes() for row in whole[first : first + size]}
    assert rows == {
      row.tobytes() for row in X[64:][KIND[64:] == federation.kinds.names[kind]]
    }


def test_permuting_the_names_of_kinds_only_renames_them():
  renamed = np.where(KIND == "red", "a", "z")
  first, second = (fa.federate(examples(kind)) for kind in (KIND, renamed))
  np.testing.assert_array_equal(first.kinds.of_client, 1 - second.kinds.of_client)
  assert first.hashes == second.hashes
  # The same function for the same clients.
  turned = fa.federate(examples(KIND), kinds="rotate:0,90")
  swapped = fa.federate(examples(renamed), kinds="rotate:90,0")
  assert turned.hashes == swapped.hashes != first.hashes
  assert turned.kinds.names == ("0", "90") and swapped.kinds.names == ("90", "0")


@pytest.mark.parametrize("kinds", ["natural", "rotate:0,90", "permute:2"])
def test_a_client_split_in_two_of_its_kind(kinds):
  split = CLIENT.copy()
  split[(CLIENT == 3) & (np.arange(80) % 16 < 8)] = 8
  federations = [
    fa.federate(examples(client=client), kinds=kinds) for client in (CLIENT, split)
  ]
  per_kind = []
  for federation in federations:
    of_kind = [set(), set()]
    for client, kind in enumerate(federation.kinds.of_client):
      for x, y in zip(*federation.client(client)):
        of_kind[kind].add((x.tobytes(), int(y)))
    per_kind.append(of_kind)
  assert federations[1].num_clients == 9 and federations[1].kinds.number == 2
  assert per_kind[0] == per_kind[1]


def test_noise_of_a_split_client_stays_with_the_row(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(
    "import jax\nimport numpy as np\n"
    "def noisy(x, y, kind, key):\n"
    "  return x + np.asarray(jax.random.normal(key, x.shape)), y\n",
    "utf-8",
  )
  split = CLIENT.copy()
  split[(CLIENT == 3) & (np.arange(80) % 16 < 8)] = 8
  first, second = (
    fa.federate(examples(client=client), kinds=f"{path}:noisy")
    for client in (CLIENT, split)
  )
  one = first.client(3)[0]
  two = np.concatenate([second.client(3)[0], second.client(8)[0]])
  assert {row.tobytes() for row in one} == {row.tobytes() for row in two}


@pytest.mark.parametrize("partition", ["iid:", "classes:", "shards:", "dirichlet:10,"])
def test_rows_are_dealt_within_their_kind(partition):
  data = examples(client=None, test_kind_ids=KIND[64:])
  federation = fa.federate(
    data,
    partition=f"{partition}min_size=2",
    num_clients=6,
    kinds="natural:shares=2:1",
  )
  assert federation.kinds.sizes().tolist() == [4, 2]
  used = []
  for client, kind in enumerate(federation.kinds.of_client):
    place = slice(
      federation.partition.train_offset[client],
      federation.partition.train_offset[client]
      + federation.partition.train_size[client],
    )
    rows = federation.partition.train_order[place]
    assert (KIND[rows] == federation.kinds.names[kind]).all()
    used += rows.tolist()
  assert sorted(used) == list(range(64))


def test_one_kind_of_the_data_is_none():
  one = fa.from_arrays(
    X, Y, kind_ids=np.zeros(80, int), x_test=X[:9], y_test=Y[:9], test_kind_ids=[0] * 9
  )
  none = fa.from_arrays(X, Y, x_test=X[:9], y_test=Y[:9])
  options = {"partition": "classes:min_size=2", "num_clients": 5}
  a, b = (fa.federate(data, **options) for data in (one, none))
  assert a.hashes == b.hashes
  for left, right in zip(
    jax.tree.leaves(a.data._replace(kinds=None)), jax.tree.leaves(b.data), strict=True
  ):
    np.testing.assert_array_equal(left, right)


def test_two_processes_have_the_rows_of_one():
  federations = []
  for process in (Process(0, 2), Process(1, 2), Process()):
    set_process(process)
    federations.append(
      fa.federate("digits", kinds="rotate:0,90", num_clients=8, seed=3)
    )
  *parts, undivided = federations
  for part in parts:
    assert part.hashes == undivided.hashes
    np.testing.assert_array_equal(part.kinds.of_client, undivided.kinds.of_client)
    for a, b in zip(
      jax.tree.leaves((part.data.whole_test, part.data.kinds)),
      jax.tree.leaves((undivided.data.whole_test, undivided.data.kinds)),
      strict=True,
    ):
      np.testing.assert_array_equal(a, b)
  seen = 0
  for client in range(8):
    for part in parts:
      try:
        x, _ = part.client(client)
      except fa.DataError:
        continue
      np.testing.assert_array_equal(x, undivided.client(client)[0])
      seen += 1
  assert seen == 8


def test_a_partition_file_keeps_the_kinds(tmp_path):
  options = {"kinds": "permute:3", "num_clients": 12}
  first = fa.federate("digits", **options)
  path = tmp_path / "partition.npz"
  write_partition_file(path, first.partition, first.labels)
  second = fa.federate("digits", kinds="permute:3", partition=f"file:{path}")
  assert second.hashes == first.hashes
  np.testing.assert_array_equal(second.kinds.of_client, first.kinds.of_client)


def test_npz_frames_and_leaf_bring_kinds(tmp_path):
  arrays = fa.federate(examples())
  path = tmp_path / "mine.npz"
  np.savez(
    path,
    x_train=X[:64],
    y_train=Y[:64],
    client_train=CLIENT[:64],
    kind_train=KIND[:64],
    x_test=X[64:],
    y_test=Y[64:],
    client_test=CLIENT[64:],
  )
  of_file = fa.federate(f"npz:{path}")
  assert of_file.hashes == arrays.hashes and of_file.kinds.names == ("blue", "red")
  np.testing.assert_array_equal(of_file.kinds.of_client, arrays.kinds.of_client)
  frames = []
  for rows in (slice(0, 64), slice(64, 80)):
    flat = pd.DataFrame(X.reshape(80, 9)[rows], columns=[f"x{i}" for i in range(9)])
    frames.append(flat.assign(y=Y[rows], who=CLIENT[rows], colour=KIND[rows]))
  framed = fa.federate(
    fa.from_dataframe(frames[0], y="y", client="who", kind="colour", test=frames[1])
  )
  assert framed.kinds.names == ("blue", "red")
  np.testing.assert_array_equal(framed.kinds.of_client, arrays.kinds.of_client)
  assert framed.example_shape == (9,)
  users = [f"user {i}" for i in range(8)]
  content = {
    "users": users,
    "num_samples": [8] * 8,
    "user_data": {
      user: {"x": X[:64].reshape(64, 9)[CLIENT[:64] == i].tolist(), "y": [0, 1] * 4}
      for i, user in enumerate(users)
    },
    "kind_ids": ["red", "blue"] * 4,
  }
  leaf = tmp_path / "leaf.json"
  leaf.write_text(json.dumps(content), "utf-8")
  of_leaf = fa.federate(f"leaf:{leaf}")
  assert of_leaf.kinds.names == ("blue", "red")
  np.testing.assert_array_equal(of_leaf.kinds.of_client, arrays.kinds.of_client)
  leaf.write_text(json.dumps(content | {"kind_ids": ["red"]}), "utf-8")
  refuses(lambda: fa.federate(f"leaf:{leaf}"), "kind_ids must be a list of 8")


@each(
  "call, says",
  [
    (
      lambda: fa.federate(examples(np.array(["red", "blue"])[np.arange(80) // 40])),
      "client 0 has rows of the kinds blue and red",
    ),
    (lambda: examples(client=None), "test_kind_ids: is missing, test rows without"),
    (lambda: examples(KIND[:70][:, None]), "one whole number or string for each"),
    (lambda: examples(np.array([0.5] * 80)), "kind_ids: is float64"),
    (lambda: examples(test_kind_ids=["red"]), "test_kind_ids: has 1 entries, 16"),
    (
      lambda: fa.from_arrays(X, Y, x_test=X, y_test=Y, test_kind_ids=KIND),
      "test_kind_ids: without kinds of the training rows",
    ),
    (
      lambda: fa.federate(examples(), kinds="rotate:0"),
      "rotate:0: has 1 kinds, arrays brings 2",
    ),
    (lambda: fa.federate(examples(), kinds="noise:1"), "arrays brings kinds"),
    (
      lambda: fa.federate(examples(), kinds="natural:shares=1:2"),
      "shares are not read",
    ),
    (lambda: fa.federate(examples(), shift="swap_all"), "clients of several kinds"),
    (
      lambda: fa.federate(
        examples(client=None, test_kind_ids=KIND[64:]),
        partition="iid",
        num_clients=1,
      ),
      "2 kinds need as many clients, there are 1",
    ),
  ],
)
def test_kinds_that_do_not_fit_are_refused_in_one_line(call, says):
  refuses(call, says)


def test_each_kind_may_have_all_examples():
  """IFCA's rotated MNIST: K copies of the data, each dealt in an order of its own.

  Without it kinds share one copy out, and a model of one kind has a K-th of the
  images that the paper's has.
  """
  plain = fa.federate("digits", num_clients=1, partition="iid:size_sigma=0")
  options = {"num_clients": 6, "partition": "iid:size_sigma=0"}
  fed = fa.federate("digits", **options, kinds="rotate:0,90,data=all")
  assert fed.kinds.sizes().tolist() == [3, 3] and fed.kinds.names == ("0", "90")

  def rows(federation, clients, of, turns=0):
    images = np.concatenate([of(federation, int(c))[0] for c in clients])
    images = np.rot90(images, -turns, axes=(1, 2)).reshape(len(images), -1)
    return images[np.lexsort(images.T)]

  orders = []
  for kind in (0, 1):
    clients = np.flatnonzero(fed.kinds.of_client == kind)
    for of in (fa.Federation.client, fa.Federation.client_test):
      np.testing.assert_array_equal(
        rows(fed, clients, of, kind), rows(plain, [0], of), strict=True
      )
    orders.append(fed.client(int(clients[0]))[1])
  assert (orders[0] != orders[1]).any()
  np.testing.assert_array_equal(fed.data.kinds.size, [359, 359])


def test_one_kind_with_all_examples_is_no_kind():
  one = fa.federate("digits", kinds="rotate:0,data=all", num_clients=7)
  assert one.hashes == fa.federate("digits", num_clients=7).hashes


@pytest.mark.parametrize(
  "source, options, words",
  [
    ("digits", {"kinds": "noise:1,data=all"}, "'data=all' is not of noise"),
    ("digits", {"kinds": "sources:mnist,digits,data=all"}, "data=all"),
    (
      "synthetic",
      {"kinds": "permute:2,data=all"},
      "which says the client of each example",
    ),
    ("digits", {"kinds": "natural:data=all"}, "'data=all' is not of natural"),
    (
      "digits",
      {"kinds": "rotate:0,90,data=all", "concepts": "switch"},
      "concepts and data of kinds: give one",
    ),
  ],
)
def test_a_kind_cannot_have_all_examples(source, options, words):
  refuses(lambda: fa.federate(source, **options), words)


def test_kinds_whose_examples_do_not_fit_are_refused(monkeypatch):
  monkeypatch.setattr(memory, "host", lambda: memory.Limit(2**31, "we have"))
  refuses(
    lambda: fa.federate("digits", kinds="permute:10000,data=all"),
    "kinds=permute:10000,data=all: 10,000 times the examples: needs 4.3",
  )


def test_clients_of_one_kind_have_the_whole_official_test_set():
  """Of several kinds a test example has a client, and those held out have none here."""
  without, single, pair = (
    fa.federate(
      "digits", num_clients=6, partition="classes", validation_clients=2, **kinds
    )
    for kinds in ({}, {"kinds": "rotate:0"}, {"kinds": "rotate:0,90"})
  )
  official = len(fa.data.load_digits().y_test)
  rows = [int(np.sum(fed.data.whole_test.size)) for fed in (without, single, pair)]
  of_clients = int(pair.data.test.size.sum())
  assert rows == [official, official, of_clients] and of_clients < official
  problems.assert_equal(single.data.whole_test, without.data.whole_test)
