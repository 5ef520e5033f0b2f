"""A run without some clients is the run in which they never took part."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import special

import experiments.forget
import fedjax_alg as fa
from fedjax_alg.extras.unlearning import revision
from fedjax_alg.rounds.closed_form import from_bits
from tests import problems
from tests.each import each

pytestmark = pytest.mark.program
CLIENTS, FEATURES, CLASSES = 6, 5, 3
#: The data number their clients from 1, so a position is the name of another one.
NAMES = tuple(range(1, CLIENTS + 1))
OPTIONS = dict(evaluate=("global",), store_sums=True)
NETWORK = OPTIONS | dict(model="mlp:7", code="position:centred", normalize=True)


def examples():
  """Inputs, classes, and the client of each row; no two clients are as large."""
  rng = np.random.default_rng(0)
  owner = np.repeat(NAMES, 4 + 3 * np.arange(CLIENTS))
  y = rng.integers(CLASSES, size=owner.size)
  x = (rng.normal(size=(owner.size, FEATURES)) + y[:, None]).astype(np.float32)
  return x, y, owner


@functools.cache
def federation(clients=NAMES):
  """The clients of these names and their examples, as if there were no others."""
  x, y, owner = examples()
  every = fa.federate(
    fa.from_arrays(x, y, owner, x_test=x[:9], y_test=y[:9]), partition="natural"
  )
  ids, data = [NAMES.index(name) for name in clients], every.data
  return dataclasses.replace(
    every,
    data=data._replace(
      **{
        name: of._replace(offset=of.offset[ids], size=of.size[ids])
        for name, of in (("train", data.train), ("test", data.test))
      },
      class_weight=data.class_weight[ids],
    ),
    label_histogram=every.label_histogram[ids],
    names_in_data=every.names_in_data[ids],
  )


@functools.cache
def fit(clients=NAMES, network=False):
  return fa.run("fedacnnl", federation(clients), **NETWORK if network else OPTIONS)


def totals(result):
  """The sums of all layers in float64, by NumPy alone."""
  return jax.tree.map(
    lambda bits: np.ascontiguousarray(bits).view(np.float64)[..., 0],
    [step.total for step in jax.device_get(result._state().states.sums)],
  )


def assert_same(result, expected):
  """Sums as in float64, models as in float32."""
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
    totals(result),
    totals(expected),
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    result.global_params(),
    expected.global_params(),
  )


@pytest.mark.parametrize("order", ([2, "5"], [5, 2], [["5", np.int64(2)]]))
def test_forgetting_in_any_order_is_never_having_taken_part(order, tmp_path):
  """Solved by NumPy, too, and read from a folder between the steps."""
  result = fit()
  for i, clients in enumerate(order):
    result = fa.load_run(
      fa.forget(result, clients).save(tmp_path / str(i)), **{"federation": federation()}
    )
  assert_same(result, fit((1, 3, 4, 6)))
  shards = [federation().client(client) for client in (1, 3, 4, 6)]
  x, y = map(np.concatenate, zip(*shards))
  x = np.concatenate([x, np.ones((len(x), 1))], 1).astype(np.float64)
  ridge = np.eye(FEATURES + 1)
  weights = np.linalg.solve(x.T @ x + ridge, x.T @ np.eye(CLASSES)[y])
  sums = totals(result)[0]
  gram = np.block(
    [
      [sums.gram[0], sums.total[0][:, None]],
      [sums.total[0], sums.counts.sum(keepdims=True)[0]],
    ]
  )
  right = np.concatenate([sums.classes[0].T, sums.counts])
  ours = np.linalg.solve(gram + ridge, right)
  np.testing.assert_allclose(ours, weights, rtol=1e-9, atol=1e-9)
  kernel = result.global_params()["params"]["kernel"][0]
  np.testing.assert_allclose(kernel, weights[:-1].T, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(
    result.metrics["global"]["accuracy"][:, -1],
    fit((1, 3, 4, 6)).metrics["global"]["accuracy"][:, -1],
  )
  listed = [(of["action"], of["clients"]) for of in result.facts["revisions"]]
  assert listed == [
    ("forget", [str(name) for name in np.ravel(clients)]) for clients in order
  ]
  assert result.facts["revisions"][0]["of_state"] == fit().state_hash()


def test_a_federation_without_them_is_the_same(tmp_path):
  """`without` of a federation is the other way to the run that never had them."""
  x, y, owner = examples()
  data = fa.from_arrays(x, y, owner, x_test=x[:9], y_test=y[:9])
  without = fa.federate(data, partition="natural", without=[2, 5])
  result = fa.run("fedacnnl", without, **OPTIONS)
  assert_same(result, fit((1, 3, 4, 6)))
  folder = result.save(tmp_path / "run")
  assert fa.load_run(folder).facts["data"]["without"] == ["2", "5"]
  loaded = fa.load_run(folder, federation=without)
  with pytest.raises(fa.OptionError, match="^clients=2: "):
    fa.forget(loaded, 2)
  with pytest.raises(fa.RunFolderError, match="trained on other data"):
    fa.load_run(folder, federation=federation()).client_params(3)


def test_who_is_left_out_is_in_no_measure():
  """Neither in its kind nor as a client without data that a method cannot adapt to."""
  x, y, owner = examples()
  kinds = np.where(owner % 2 == 1, "odd", "even")
  data = fa.from_arrays(x, y, owner, kind_ids=kinds)
  fed = fa.federate(data, partition="natural:test_share=0.3", without=[2])
  result = fa.run(
    "ditto", fed, rounds=1, cohort_size=3, evaluate=("local", "kinds", "global")
  )
  counted = result.clients["local"]["test_examples"][0]
  assert counted.tolist() == fed.data.test.size.tolist() and counted[1] == 0
  models = {name: result.client_params(name) for name in NAMES if name != 2}
  losses = {0: [], 1: []}
  for name, params in models.items():
    inner = params["params"]
    for tested in models:
      if tested % 2 == name % 2:
        x_test, y_test = fed.client_test(tested)
        scores = x_test @ inner["kernel"].T + inner["bias"]
        of_class = scores[np.arange(len(y_test)), y_test]
        losses[name % 2] += (special.logsumexp(scores, 1) - of_class).tolist()
  expected = np.mean([*map(np.mean, losses.values())])
  np.testing.assert_allclose(
    result.metrics["kinds"]["loss"][0, -1], expected, rtol=1e-5
  )


def test_the_inverse_gives_the_old_model_back():
  """And clients that are forgotten, added and forgotten again cost no accuracy."""
  again = fa.add(fa.forget(fa.forget(fit(), 3), 6), [3, 6])
  assert_same(again, fit())
  problems.assert_equal(
    again._state().states.sums[0].clients, fit()._state().states.sums[0].clients
  )
  np.testing.assert_allclose(again._state().states.counts, fit()._state().states.counts)


def test_later_layers_are_fitted_again_by_those_who_remain():
  """Asked for it; the ledger has who was asked, and what was sent."""
  with pytest.raises(fa.OptionError) as error:
    fa.forget(fit(network=True), 4)
  assert str(error.value) == (
    "refit: 4 can be forgotten exactly in layer 1 alone; layer 2 reads what it gives "
    "out, so that the other clients are asked again (allowed with refit true)"
  )
  result = fa.forget(fit(network=True), 4, refit=True)
  assert_same(result, fit((1, 2, 3, 5, 6), network=True))
  first, last = result.records.tables["rounds"][2:]
  old = result.records.tables["rounds"][:2]
  assert [row["cohort_present"] for row in (*old, first, last)] == [6, 6, 1, 5]
  assert (first["floats_up"], first["floats_down"]) == (old[0]["floats_up"], 0)
  assert (last["floats_up"], last["floats_down"]) == (
    old[1]["floats_up"],
    old[1]["floats_down"],
  )
  assert_same(fa.add(result, 4, refit=True), fit(network=True))


def test_a_resumed_run_forgets_as_the_whole_one(tmp_path):
  """Its sums of layer 1 come from a checkpoint, those of layer 2 from its data."""
  for rounds in (1, 2):
    options = NETWORK | {"rounds": rounds}
    fa.run("fedacnnl", federation(), out_dir=tmp_path / "run", **options)
  loaded = fa.load_run(tmp_path / "run", federation=federation())
  ours, whole = (fa.forget(r, 4, refit=True) for r in (loaded, fit(network=True)))
  problems.assert_equal(ours._state().states.sums, whole._state().states.sums)
  problems.assert_equal(ours.global_params(), whole.global_params())


def test_one_client_sends_what_it_had_sent_and_nobody_else_anything():
  result = fa.forget(fit(), [1, 3])
  before, after = result.records.tables["rounds"]
  # X'X (a triangle), X'Y, the sums of X and of Y; 4 bytes a float.
  up = FEATURES * (FEATURES + 1) // 2 + FEATURES * CLASSES + FEATURES + CLASSES
  assert (after["floats_up"], after["floats_down"]) == (up, 0)
  assert after["cohort_present"] == 2
  assert after["total_bytes"] - before["total_bytes"] == 4 * 2 * up
  assert after["total_bytes_up"] - before["total_bytes_up"] == 4 * 2 * up
  np.testing.assert_array_equal(
    result.costs("total_bytes")[0], [before["total_bytes"], after["total_bytes"]]
  )
  assert before == fit().records.tables["rounds"][0] | {"cohort_present": CLIENTS}


def test_a_client_that_comes_late_is_added():
  """It joined after the round of the sums; it is forgotten, too."""
  late = fa.federate("digits", num_clients=5, partition="iid", newcomers_at=((1, 1),))
  run = functools.partial(fa.run, "fedacnnl", late, evaluate=("global",), rounds=2)
  with pytest.warns(UserWarning, match="has fitted all layers after 1"):
    result = run(store_sums=True)
  (newcomer,) = late.client_names[~result._state().states.sums[0].clients[0]]
  more = fa.add(result, newcomer)
  inside = totals(more)[0].counts.sum()
  assert inside == late.data.train.size.sum() > totals(result)[0].counts.sum()
  assert_same(fa.forget(more, newcomer), result)


@each(
  "change, clients, message",
  [
    (fa.forget, [3, "3"], "clients=3,3: 3"),
    (fa.forget, [0], "clients=0: "),
    (fa.forget, [], "clients: "),
    (fa.forget, "3,9", "clients=9: "),
    (fa.forget, True, "clients=True: "),
    (fa.forget, [1.0], "clients=1.0: "),
    (fa.add, 3, "clients=3: "),
  ],
)
def test_clients_that_cannot_leave_or_come(change, clients, message):
  with pytest.raises(fa.OptionError) as error:
    change(fit(), clients)
  assert str(error.value).startswith(message)


def test_everybody_is_not_forgotten_nor_the_last_one(tmp_path):
  """The model that they have made would stay, and the deletion would be recorded."""
  with pytest.raises(fa.OptionError, match="^clients=1,2,3,4,5,6: hold all training"):
    fa.forget(fit(), NAMES)
  rest = fa.load_run(
    fa.forget(fit(), NAMES[:-1]).save(tmp_path / "rest"), federation=federation()
  )
  with pytest.raises(fa.OptionError, match="^clients=6: hold all training"):
    fa.forget(rest, "6")
  assert len(rest.facts["revisions"]) == 1
  files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
  words = [str(tmp_path / "rest"), "--clients=6", f"--out={tmp_path / 'none'}"]
  assert experiments.forget.main(words) != 0
  assert files == {
    path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
  }


@pytest.mark.parametrize(
  "inside, ids, is_left",
  [
    ([[[1, 1, 0]]], [0], True),
    ([[[1, 1, 0]]], [0, 1], False),
    ([[[1, 1, 0]]], [2, 1], True),
    # Two seeds, whose second lost client 0; two steps likewise.
    ([[[1, 1, 0], [0, 1, 0]]], [1], False),
    ([[[1, 1, 0]], [[0, 1, 0]]], [1], False),
    # Nobody took part: there is nothing to forget of the start.
    ([[[1, 1, 0]], [[0, 0, 0]]], [1], True),
  ],
)
def test_someone_is_left_in_the_total_of_each_step_and_seed(inside, ids, is_left):
  """Later steps of a network, or other seeds, may have lost clients."""
  inside, names = np.array(inside, bool), np.array(list("abc"))
  if is_left:
    revision.check_rest(inside, names, ids)
    return
  with pytest.raises(fa.OptionError, match="^clients=.*: hold all training examples"):
    revision.check_rest(inside, names, ids)


def test_who_is_left_may_have_no_solution():
  """As in a run of these clients alone: four rows do not determine five weights."""
  options = dict(evaluate="global", store_sums=True, ridge="0")
  fit_ = fa.run("fedacnnl", federation(), **options)
  with pytest.raises(fa.NonFiniteError, match="singular"):
    fa.run("fedacnnl", federation((1,)), **options)
  with pytest.raises(fa.NonFiniteError, match="^the equations of those who .*singular"):
    fa.forget(fit_, NAMES[1:])


@pytest.mark.parametrize("result", ["out/first", None, {"a": 1}])
@pytest.mark.parametrize("call", [fa.forget, fa.add, fa.contributions])
def test_what_is_no_run_is_refused(call, result):
  """A folder is not read: that was an AttributeError of ``facts``."""
  arguments = (result,) if call is fa.contributions else (result, [1])
  with pytest.raises(
    fa.OptionError, match="^result: .* must be a run from run or load"
  ):
    call(*arguments)


def test_a_client_leaves_once():
  with pytest.raises(fa.OptionError, match="^clients=3: is forgotten already$"):
    fa.forget(fa.forget(fit(), 3), [1, 3])


@pytest.mark.parametrize(
  "method, options, message",
  [
    ("fedavg", {"rounds": 1}, "algorithm=fedavg: "),
    ("fedacnnl", {}, "store_sums: "),
    (
      "fedacnnl",
      {"private": "moments"},
      "algorithm=fedacnnl: ",
    ),
  ],
)
def test_runs_whose_clients_cannot_be_subtracted(method, options, message):
  result = fa.run(method, federation(), evaluate=("global",), **options)
  with pytest.raises(fa.OptionError, match="^" + message):
    fa.forget(result, 1)


@pytest.mark.parametrize(
  "method, options, message",
  [
    ("fedacnnl", {"private": "moments"}, "store_sums: not with private"),
    (
      "pfedacnnl",
      {"clustering": "kmeans:2"},
      "store_sums: ",
    ),
  ],
)
def test_sums_that_are_not_stored(method, options, message):
  with pytest.raises(fa.OptionError, match="^" + message):
    fa.run(method, federation(), **OPTIONS, **options)


def test_the_bits_of_the_sums_survive():
  """A total is not rounded to the float32 of the run."""
  numbers = np.random.default_rng(1).normal(size=(3, 2))
  bits = numbers.view(np.uint32).reshape(3, 2, 2)
  with jax.enable_x64(True):
    np.testing.assert_array_equal(from_bits(bits), numbers)


def test_the_command_writes_a_run(tmp_path, capsys):
  """Of a named federation; what is there stays as it is."""
  named = fa.federate("digits", num_clients=5, partition="iid")
  folder = fa.run("fedacnnl", named, **OPTIONS).save(tmp_path / "run")
  out = tmp_path / "out"
  words = [str(folder), "--clients=3", f"--out={out}"]
  assert experiments.forget.main(words) == 0
  text = capsys.readouterr().out
  assert "1 client sent 11,176 bytes each; no other client was asked" in text
  result = fa.load_run(out)
  assert result.facts["revisions"][0]["of_run"] == str(folder)
  assert not np.asarray(result._state().states.sums[0].clients)[0, 3]
  for wrong, message in (
    (words, f"--out={out}: exists already; give another folder"),
    ([*words[:2], f"--out={folder}"], f"--out={folder}: is the run itself"),
    ([words[0], "--out=x"], "--clients: give the names of clients"),
    ([words[0], "--clients=a", "--out=x"], "--clients=a: must be a whole number in"),
    ([words[0], "--clients=3,9", "--out=x"], "--clients=9: must be a whole number"),
    ([words[0], "--clients=0,1,2,3,4", "--out=x"], "--clients=0,1,2,3,4: hold all"),
  ):
    assert experiments.forget.main(wrong) != 0
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
