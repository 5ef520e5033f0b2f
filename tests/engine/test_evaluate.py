"""The evaluation protocols on a case worked out with NumPy."""

from collections.abc import Callable
import dataclasses
import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sk

import fedjax_alg as fa
from fedjax_alg import tasks
from fedjax_alg.base import NEVER, Algorithm, no_setup
from fedjax_alg.data import layout
from fedjax_alg.data.federation import EvaluationData, KindTests, Pieces
from fedjax_alg.engine import clients, evaluate, sharding
from tests import problems

pytestmark = pytest.mark.program

C, K, L = 12, 3, problems.CLASSES


#: Clients that come later, and those that a group has been found for.
NEW = np.isin(np.arange(C), (1, 4, 11))
#: Kinds of clients, and the test rows of each among those of all clients.
KIND = np.arange(C) % 3
KIND_OFFSET, KIND_SIZE = np.array([100, 0, 20]), np.array([90, 33, 80])
#: The rows of three validation clients.
HELD_OUT = [52, 28, 3]
GROUP = np.where(np.isin(np.arange(C), (0, 1, 7)), -1, np.arange(C) % K)


class State(NamedTuple):
  models: dict  #: [K, ...]
  group: np.ndarray = GROUP


def model_of(number):
  """``client_params`` of a client i that deploys model i + number mod K."""

  def client_params(state, client_id, shard, key):
    del shard, key
    return jax.tree.map(lambda leaf: leaf[(client_id + number) % K], state.models)

  return client_params


def toy(global_params=lambda state: state.models, **options):
  """Client i deploys model i mod K."""
  return Algorithm(
    lambda *_: None, no_setup, lambda *_: None, model_of(0), global_params, **options
  )


def full():
  """With groups, and model i + 1 mod K as the client's copy."""
  return toy(membership=lambda state: state.group, client_copy=model_of(1))


class Case(NamedTuple):
  data: EvaluationData
  state: State
  tests: list
  pooled: tuple
  validation: tuple
  counts: dict
  run: Callable


@pytest.fixture(scope="module", name="case")
def fixture_case(problem):
  tests = problems.make_clients((4, 70, 1, 9, 64, 6, 5, 8, 2, 3, 11, 65), 9)
  pooled = tuple(map(np.concatenate, zip(*tests)))
  pieces = [
    (pooled[0][i : i + 50], pooled[1][i : i + 50]) for i in range(0, len(pooled[1]), 50)
  ]
  histogram = np.stack([np.bincount(y, minlength=L) for _, y in problem.clients])
  # The server's rows, of a client like the others, stand behind theirs.
  (validation,) = problems.make_clients((83,), 5)
  x, y = map(np.concatenate, zip(*problem.clients, validation))
  num_train = sum(problems.SIZES)
  train = jax.tree.map(
    jnp.asarray,
    layout.client_data(
      x,
      y,
      np.arange(num_train),
      np.asarray(problem.data.offset),
      np.asarray(problem.data.size),
      num_train + np.arange(83),
      np.where(NEW, 3, 0),
    ),
  )
  data = EvaluationData(
    train,
    problems.client_data(tests),
    problems.client_data(pieces),
    histogram.astype(np.float32),
    Pieces(
      *(np.int32([num_train, num_train + 40, num_train + 80]), np.int32([40, 40, 3]))
    ),
    KindTests(*map(np.int32, (KIND, KIND_OFFSET, KIND_SIZE))),
    Pieces(*(num_train + np.int32([0, 52, 80]), np.int32(HELD_OUT))),
  )
  state = State(
    jax.tree.map(
      lambda *leaves: np.stack(leaves),
      *(problems.some_params(problem.model, seed, 1.0) for seed in range(K)),
    )
  )
  run = jax.jit(
    evaluate.make_evaluate(
      full(), problem.model, evaluate.PROTOCOLS, clients.ClientMap()
    )
  )
  return Case(
    data,
    state,
    tests,
    pooled,
    validation,
    jax.device_get(run(data, state, jax.random.key(0))),
    run,
  )


def summarise(counts):
  return tasks.summarize_counts(tasks.CLASSIFICATION, counts)


def assert_sums(sums, confusion):
  """They follow from a confusion matrix."""
  for name, expected in (
    ("rows", confusion.sum(1)),
    ("predicted", confusion.sum(0)),
    ("hits", np.diagonal(confusion)),
  ):
    np.testing.assert_array_equal(sums[name], expected, err_msg=name)


def all_there(data):
  return data._replace(train=data.train._replace(joins=None))


@functools.cache
def _outputs(model):
  """(params, x, y) -> logits, losses."""

  @jax.jit
  def outputs(params, x, y):
    logits = model.apply(params, x)
    return logits, model.loss(logits, y)

  return outputs


def outputs(problem, case, k, x, y):
  """Logits and losses of model k."""
  params = jax.tree.map(lambda leaf: leaf[k], case.state.models)
  count = len(y)
  padding = -count % 512  # one program for all lengths
  x, y = np.pad(x, ((0, padding), (0, 0))), np.pad(y, (0, padding))
  logits, losses = _outputs(problem.model)(params, x, y)
  return np.asarray(logits)[:count], np.asarray(losses, np.float64)[:count]


def outcome(problem, case, k, x, y):
  """Predictions and losses of model k."""
  logits, losses = outputs(problem, case, k, x, y)
  return logits.argmax(1), losses


@pytest.mark.parametrize("protocol", evaluate.PER_MODEL)
def test_every_global_model_on_all_rows_of_a_kind(problem, case, protocol):
  sums = jax.tree.map(np.asarray, case.counts[protocol].sums)
  assert {name: leaf.shape for name, leaf in sums.items()} == {
    **dict.fromkeys(("rows", "hits", "predicted", "loss"), (K, L)),
    **({"confusion": (K, L, L)} if protocol == "global" else {}),
  }
  x, y = {
    "global": case.pooled,
    "validation": case.validation,
    "train": tuple(map(np.concatenate, zip(*problem.clients))),
  }[protocol]
  assert sums["rows"][0].sum() == len(y)
  for k in range(K):
    predicted, losses = outcome(problem, case, k, x, y)
    confusion = sk.confusion_matrix(y, predicted, labels=range(L))
    assert_sums({name: leaf[k] for name, leaf in sums.items()}, confusion)
    if "confusion" in sums:  # needed for the protocol preferred
      np.testing.assert_array_equal(sums["confusion"][k], confusion)
    np.testing.assert_allclose(
      sums["loss"][k], np.bincount(y, weights=losses, minlength=L), rtol=1e-5
    )
  values = summarise(case.counts[protocol])  # these do not tell clients apart
  assert np.isnan(values["client_accuracy"]).all()


@pytest.mark.parametrize(
  "protocol, selected",
  [("local", ~NEW), ("newcomers", NEW), ("assigned", GROUP >= 0), ("copy", ~NEW)],
)
def test_the_sum_of_the_own_tests_of_some_clients(problem, case, protocol, selected):
  confusion, loss, accuracy = np.zeros((L, L)), np.zeros(L), []
  for i in np.flatnonzero(selected):
    x, y = case.tests[i]
    predicted, losses = outcome(problem, case, (i + (protocol == "copy")) % K, x, y)
    np.add.at(confusion, (y, predicted), 1)
    np.add.at(loss, y, losses)
    accuracy.append(np.mean(predicted == y))
  counts = case.counts[protocol]
  assert_sums(counts.sums, confusion)
  np.testing.assert_allclose(counts.sums["loss"], loss, rtol=1e-5)
  np.testing.assert_array_equal(
    counts.clients["rows"][:, 0],
    [len(y) * weight for (_, y), weight in zip(case.tests, selected)],
  )
  values = summarise(counts)
  np.testing.assert_allclose(values["client_accuracy"], np.mean(accuracy))
  # A tenth of twelve clients at most, rounded up.
  np.testing.assert_allclose(values["worst_decile"], min(accuracy))
  assert values["accuracy"] != pytest.approx(values["client_accuracy"])


def test_what_clients_deploy_on_all_test_rows_of_their_kind(problem, case):
  counts = case.counts["kinds"]
  assert counts.clients is None and counts.sums["rows"].shape == (3, L)
  for kind in range(3):
    rows = slice(KIND_OFFSET[kind], KIND_OFFSET[kind] + KIND_SIZE[kind])
    x, y = (array[rows] for array in case.pooled)
    confusion, loss = np.zeros((L, L)), np.zeros(L)
    for i in np.flatnonzero((kind == KIND) & ~NEW):  # those of local
      predicted, losses = outcome(problem, case, i % K, x, y)
      np.add.at(confusion, (y, predicted), 1)
      np.add.at(loss, y, losses)
    assert_sums({name: leaf[kind] for name, leaf in counts.sums.items()}, confusion)
    np.testing.assert_allclose(counts.sums["loss"][kind], loss, rtol=1e-5)


def test_whom_a_run_leaves_out_is_of_no_kind(problem, case):
  """A client without rows (``without``) has no model that tells of its kind."""
  out = int(np.flatnonzero((KIND == 0) & ~NEW)[0])
  joins = np.zeros(C, np.int32)
  joins[out] = NEVER
  size = np.asarray(case.data.test.size).copy()
  size[out] = 0
  data = case.data._replace(
    train=case.data.train._replace(joins=joins),
    test=case.data.test._replace(size=jnp.asarray(size)),
  )
  counts = jax.device_get(case.run(data, case.state, jax.random.key(0))["kinds"])
  left = ((KIND == 0) & ~NEW).sum() - 1
  assert counts.sums["rows"][0].sum() == left * KIND_SIZE[0]


def test_held_out_clients_choose_by_most_rows_and_are_tested_on_the_others(
  problem, case
):
  """So a number of groups can be chosen without test data.

  A validation client of n rows has the id of a newcomer, C, and deploys a model
  by its first n - n // 5 rows.
  """

  def client_params(state, client_id, shard, key):
    del key
    number = jnp.where(client_id == C, shard.size, 0)
    return jax.tree.map(lambda leaf: leaf[number % K], state.models)

  algorithm = toy()._replace(client_params=client_params)
  run = evaluate.make_evaluate(
    algorithm, problem.model, ("held_out",), clients.ClientMap()
  )
  counts = jax.device_get(
    jax.jit(run)(case.data, case.state, jax.random.key(0))["held_out"]
  )
  assert counts.clients is None
  x, y = case.validation
  confusion, first = np.zeros((L, L)), 0
  for size in HELD_OUT[:2]:  # the third has too few rows
    rows = slice(first + size - size // 5, first + size)
    predicted, _ = outcome(problem, case, (size - size // 5) % K, x[rows], y[rows])
    np.add.at(confusion, (y[rows], predicted), 1)
    first += size
  assert confusion.sum() == 10 + 5
  assert_sums(counts.sums, confusion)


def test_who_never_joins_is_local_and_no_newcomer(case):
  joins = np.array([0, 3, NEVER, 0])
  data = case.data._replace(train=case.data.train._replace(joins=joins))
  for protocol, members in (("local", [0, 2, 3]), ("newcomers", [1])):
    mask = evaluate._client_mask(None, protocol, data, None)
    assert np.flatnonzero(mask).tolist() == members


def test_nobody_assigned_yet_is_not_a_number(case):
  counts = jax.device_get(
    case.run(case.data, case.state._replace(group=np.full(C, -1)), jax.random.key(0))
  )
  values = summarise(counts["assigned"])
  assert all(np.isnan(value) for value in values.values())
  assert (
    summarise(counts["local"])["accuracy"]
    == (summarise(case.counts["local"])["accuracy"])
  )


def test_preferred_weighs_each_class_as_its_clients_hold_it(problem, case):
  x, y = case.pooled
  squares = [
    sum(
      float((np.asarray(leaf[k]) ** 2).sum())
      for leaf in jax.tree.leaves(case.state.models)
    )
    for k in range(K)
  ]
  confusion, loss, groups = np.zeros((L, L)), np.zeros(L), set()
  for own_x, own_y in problem.clients:
    best = int(
      np.argmin(
        [
          outcome(problem, case, k, own_x, own_y)[1].mean()
          + 0.5 * problems.L2 * squares[k]
          for k in range(K)
        ]
      )
    )
    groups.add(best)
    predicted, losses = outcome(problem, case, best, x, y)
    for label in own_y:  # as if each of its examples were a test example
      of_class = y == label
      confusion[label] += np.bincount(predicted[of_class], minlength=L) / of_class.sum()
      loss[label] += losses[of_class].mean()
  assert len(groups) > 1
  counts = case.counts["preferred"]
  np.testing.assert_allclose(counts.sums["confusion"], confusion, rtol=1e-4)
  np.testing.assert_allclose(counts.sums["loss"], loss, rtol=1e-4)
  np.testing.assert_allclose(
    counts.sums["confusion"].sum(), sum(problems.SIZES), rtol=1e-5
  )


def test_pieces_are_shared_out_over_devices(problem, case, mesh):
  protocols = ("validation", "train")
  run = jax.jit(
    evaluate.make_evaluate(
      toy(), problem.model, protocols, clients.ClientMap("vmap", mesh=mesh)
    )
  )
  counts = run(*sharding.replicate((case.data, case.state), mesh), jax.random.key(0))
  assert set(counts) == set(protocols)
  for protocol in protocols:
    for name, leaf in case.counts[protocol].sums.items():
      np.testing.assert_allclose(
        counts[protocol].sums[name], leaf, rtol=(1e-5 if name == "loss" else 0)
      )


def test_clients_in_blocks_are_counted_like_all_at_once(problem, case, monkeypatch):
  # Five blocks of three slots for twelve clients.
  monkeypatch.setattr(evaluate, "_ENTRIES", 5 * L * L // 2)
  of_clients = [p for p in evaluate.PROTOCOLS if p in evaluate.DEPLOYED]
  counts = jax.jit(
    evaluate.make_evaluate(
      full(), problem.model, tuple(of_clients), clients.ClientMap()
    )
  )(case.data, case.state, jax.random.key(0))
  for protocol in of_clients:
    (sums, per_client), (expected_sums, expected_per_client) = (
      counts[protocol][:2],
      case.counts[protocol][:2],
    )
    if protocol in ("kinds", "held_out"):
      assert per_client is expected_per_client is None
    else:
      chex.assert_trees_all_equal(per_client, expected_per_client)
    for name, leaf in expected_sums.items():
      np.testing.assert_allclose(
        sums[name], leaf, rtol=(1e-6 if name == "loss" else 0)
      )  # losses in another order


#: Ranks of class 1 among three classes.
RANKED = dataclasses.replace(
  tasks.CLASSIFICATION,
  name="ranked",
  scores=lambda logits, y: {"margin": logits[:, 1] - logits[:, 0], "positive": y == 1},
  ranks=tasks.BINARY.ranks,
)


def pairs_won(parts, models):
  """By comparing every positive example with every negative one."""
  margin = np.concatenate([logits[:, 1] - logits[:, 0] for logits in models])
  positive = np.concatenate([y for _, y in parts]) == 1
  won = margin[positive][:, None] - margin[~positive]
  return ((won > 0) + (won == 0) / 2).sum()


@pytest.mark.parametrize(
  "mode, devices, few",
  [
    ("sequential", False, ()),
    ("sequential", False, ("_PLACES", "_MEANS", "_ENTRIES")),
    ("vmap", True, ("_PLACES", "_MEANS")),
    ("lanes", False, ("_PLACES", "_MEANS")),
  ],
)
def test_ranks_are_of_all_examples_of_a_protocol(
  problem, case, mesh, monkeypatch, mode, devices, few
):
  """In one turn of each client, and with turns of 64 rows: of 70 rows two."""
  for name in few:
    monkeypatch.setattr(evaluate, name, {"_ENTRIES": 5 * L * L // 2}.get(name, 1))
  protocols = tuple(p for p in evaluate.PROTOCOLS if p != "preferred")
  map_clients = clients.ClientMap(mode, mesh=mesh if devices else None)
  run = evaluate.make_evaluate(
    full(), problem.model._replace(task=RANKED), protocols, map_clients
  )
  inputs = case.data, case.state
  if devices:
    inputs = sharding.replicate(inputs, mesh)
  on_devices = jax.jit(run)(*inputs, jax.random.key(0))
  if few:
    assert on_devices["local"].examples.size.shape == (C + 247 // 64,)
  counts = tasks.counts_on_host(RANKED, on_devices)

  def logits(k, part):
    return outputs(problem, case, k, *part)[0]

  for protocol, expected in case.counts.items():
    if protocol == "preferred":
      continue
    sums, per_client, _ = counts[protocol]
    for name in {"rows", "hits", "predicted", "loss"} & set(expected.sums):
      np.testing.assert_allclose(sums[name], expected.sums[name], rtol=1e-5)
    if expected.clients is not None:
      chex.assert_trees_all_close(
        {name: per_client[name] for name in expected.clients},
        dict(expected.clients),
        rtol=1e-5,
      )
  train = tuple(map(np.concatenate, zip(*problem.clients)))
  for protocol, part in (
    ("global", case.pooled),
    ("validation", case.validation),
    ("train", train),
  ):
    for k in range(K):
      won = counts[protocol].sums["pairs_won"][k]
      assert won == pairs_won([part], [logits(k, part)]), (protocol, k)
  for protocol, selected in (
    ("local", ~NEW),
    ("newcomers", NEW),
    ("assigned", GROUP >= 0),
    ("copy", ~NEW),
  ):
    some = np.flatnonzero(selected)
    models = [logits((i + (protocol == "copy")) % K, case.tests[i]) for i in range(C)]
    assert counts[protocol].sums["pairs_won"] == pairs_won(
      [case.tests[i] for i in some], [models[i] for i in some]
    )
    np.testing.assert_array_equal(
      counts[protocol].clients["pairs_won"],
      [selected[i] * pairs_won([case.tests[i]], [models[i]]) for i in range(C)],
    )
  for kind in range(3):
    rows = slice(KIND_OFFSET[kind], KIND_OFFSET[kind] + KIND_SIZE[kind])
    part = tuple(array[rows] for array in case.pooled)
    some = np.flatnonzero((kind == KIND) & ~NEW)
    assert counts["kinds"].sums["pairs_won"][kind] == pairs_won(
      [part] * len(some), [logits(i % K, part) for i in some]
    )
  x, y = case.validation
  tested = [slice(42, 52), slice(75, 80)]  # the last fifths of 52 and 28 rows
  parts = [(x[rows], y[rows]) for rows in tested]
  assert counts["held_out"].sums["pairs_won"] == pairs_won(
    parts, [logits(C % K, part) for part in parts]
  )


@pytest.mark.parametrize("sizes", [(300,), (0, 999, 1, 0), (64, 65, 63, 0, 808)])
def test_turns_have_every_row_once(problem, monkeypatch, sizes):
  """In the memory that the number of rows decides, however the clients differ."""
  monkeypatch.setattr(evaluate, "_PLACES", 1)
  model, size = problem.model._replace(task=RANKED), np.int32(sizes)
  total, offset = int(size.sum()), np.int32(np.cumsum(size) - size)
  turns = evaluate._turns(model, jnp.asarray(offset), jnp.asarray(size), total)
  assert len(turns.shard) * turns.width <= 5 * total + 64 * len(sizes) + 64 * 5
  assert (turns.size <= turns.width).all()
  read = [
    (client, row)
    for client, first, rows in zip(*map(np.asarray, turns[:3]))
    for row in range(first, first + rows)
  ]
  assert sorted(read) == [
    (client, row)
    for client, (first, rows) in enumerate(zip(offset, sizes))
    for row in range(first, first + rows)
  ]


def test_rows_in_blocks_of_processes_are_those_of_all():
  offset, size = np.array([0]), np.array([32])
  rows = layout.client_data(np.ones((32, 2)), np.zeros(32), np.arange(32), offset, size)
  assert evaluate._num_rows(rows) == 32
  of_two = rows._replace(y=np.stack([rows.y, rows.y]), blocks=())
  assert evaluate._num_rows(of_two) == 64


def test_examples_that_many_clients_share_are_too_many(problem, case, monkeypatch):
  """Each client reads its kind's rows: a place for each would not fit."""
  monkeypatch.setattr(evaluate, "_MOST_PLACES", 12 * 255)
  run = evaluate.make_evaluate(
    full(), problem.model._replace(task=RANKED), ("kinds",), clients.ClientMap()
  )
  with pytest.raises(ValueError, match="^evaluate=kinds: task=ranked needs .*12 x 256"):
    jax.eval_shape(run, case.data, case.state, jax.random.key(0))


@pytest.mark.parametrize(
  "protocol, pattern",
  [
    ("test", "^evaluate=test: must be one of global"),
    ("validation", "the data hold no validation rows"),
    ("newcomers", "every client takes part from the start"),
    ("kinds", "the clients have no kinds"),
    ("held_out", "the data hold no validation rows"),
  ],
)
def test_what_cannot_be_evaluated_is_named(problem, case, protocol, pattern):
  with pytest.raises(ValueError, match=pattern):
    jax.eval_shape(
      evaluate.make_evaluate(toy(), problem.model, (protocol,), clients.ClientMap()),
      all_there(case.data)._replace(validation=None, kinds=None, held_out=None),
      case.state,
      jax.random.key(0),
    )


def test_what_a_method_has_of_the_protocols():
  every = evaluate.PROTOCOLS
  assert evaluate.supported_protocols(full(), every) == every
  assert evaluate.supported_protocols(toy(), every) == tuple(
    p for p in every if p not in ("assigned", "copy")
  )
  assert evaluate.supported_protocols(full(), every, matrix=False) == tuple(
    p for p in every if p != "preferred"
  )
  assert evaluate.supported_protocols(toy(None), every) == (
    "local",
    "newcomers",
    "kinds",
    "held_out",
  )
  assert evaluate.supported_protocols(toy(None), ("global",)) == ()


@pytest.mark.fast
def test_a_confusion_matrix_is_of_classes_and_of_at_most_so_many():
  """``preferred`` has none of a task whose main metric is not one of the matrix."""
  most = tasks.MAX_MATRIX
  for name, sizes in (
    ("classification", (True, False)),
    ("regression", (False, False)),
  ):
    task = tasks.resolve_task(name)
    for size, expected in zip((most, most + 1), sizes):
      assert evaluate.has_matrix(task, size) == expected
      assert evaluate.has_preferred(task, size) == expected
  assert evaluate.has_matrix(tasks.resolve_task("binary"), 2)
  assert not evaluate.has_preferred(tasks.resolve_task("binary"), 2)


def test_a_task_without_classes_is_evaluated_from_rows_on_the_host():
  results = []
  for place in ("device", "host"):
    fed = fa.federate("diabetes", num_clients=5, partition="iid", data_on=place)
    options = dict(rounds=2, cohort_size=2, evaluate=("local", "global", "train"))
    result = fa.run("fedavg", fed, **options)
    metrics = [value for of in result.metrics.values() for value in of.values()]
    results.append((result.state_hash(), *metrics))
  for a, b in zip(*results, strict=True):
    np.testing.assert_array_equal(a, b)
