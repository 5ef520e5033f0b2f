"""A run from Python: the numbers of the command line, checked otherwise."""

import itertools
import sys

import chex
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.engine import checkpoint, samplers
from tests.each import each
from tests.runs import conftest as small

FEDAVG = dict(cohort_size=4, rounds=3, eval_every=2)


def correct(params, x, y, mask):
  """A measure of one's own: right answers of softmax regression."""
  layer = params["params"]
  predicted = (
    x.reshape(x.shape[0], -1) @ layer["kernel"].T + layer["bias"][None]
  ).argmax(1)
  return {"correct": ((predicted == y) & mask).sum(), "count": mask.sum()}


def test_shapes(by_api):
  result = by_api("ifca")
  np.testing.assert_array_equal(result.rounds, [2, 3])
  assert result.seeds == (0, 1) and list(result.clients) == ["local"]
  assert set(result.metrics) == {"global", "global_mean", "local", "preferred"}
  for of in result.metrics.values():
    chex.assert_shape(list(of.values()), (2, 2))
    assert ((of["accuracy"] >= 0) & (of["accuracy"] <= 1)).all()
  chex.assert_shape([result.clients["local"]["accuracy"], result.membership], (2, 20))
  assert set(np.unique(result.membership)) <= {-1, 0, 1}
  chex.assert_tree_shape_prefix(result.global_params(0), (2,))
  chex.assert_tree_shape_prefix(result.history, (2, 3))
  assert (result.history["exchanges"] >= 1).all()
  assert by_api("losac").membership is None
  assert "ifca: 3 rounds, 2 seed(s)" in repr(result)


@pytest.mark.parametrize("name", ("ifca", "losac"))
def test_clients_are_those_of_the_metrics(name, fed, by_api):
  result = by_api(name)
  accuracies, of = result.clients["local"]["accuracy"], result.metrics["local"]
  size = np.array([len(fed.client_test(c)[1]) for c in range(20)])
  np.testing.assert_array_equal(
    np.isnan(accuracies), np.broadcast_to(size == 0, accuracies.shape)
  )
  for i in range(2):
    np.testing.assert_allclose(np.nanmean(accuracies[i]), of["client_accuracy"][i, -1])
    tested = size > 0
    np.testing.assert_allclose(
      np.average(accuracies[i][tested], weights=size[tested]), of["accuracy"][i, -1]
    )
  assert np.isnan(result.metrics["global"]["client_accuracy"]).all()


@pytest.mark.parametrize("name", ("ifca", "losac"))
def test_models_give_the_accuracies_that_are_said(name, fed, by_api):
  """In NumPy: the best of K models, their mean, a client's own."""
  result = by_api(name)
  test_set = fed.data.whole_test
  total = int(test_set.size.sum())
  x, y = test_set.x[:total], test_set.y[:total]
  for i in range(2):
    stacked = result.global_params(i)
    accuracies = [
      small.accuracy(jax.tree.map(lambda leaf: leaf[k], stacked), x, y)
      for k in range(2 if name == "ifca" else 1)
    ]
    of = result.metrics
    assert of["global"]["accuracy"][i, -1] == pytest.approx(max(accuracies))
    assert ("global_mean" in of) == (name == "ifca")
    if "global_mean" in of:
      assert of["global_mean"]["accuracy"][i, -1] == pytest.approx(np.mean(accuracies))
  assert result.clients["local"]["accuracy"][1, 17] == pytest.approx(
    small.accuracy(result.client_params(17, seed=1), *fed.client_test(17))
  )


@pytest.fixture(name="measured", scope="module")
def _run_with_measure(fed):
  """A run with a measure of one's own, two callbacks, and seeds by name."""
  seen = [], []
  result = fa.run(
    "fedavg",
    fed,
    seeds=[3, 1],
    evaluate=("global", correct),
    callbacks=(seen[0].append, lambda step: seen[1].append(step.round)),
    **FEDAVG,
  )
  return result, seen


def test_a_measure_of_ones_own(measured, fed):
  result, _ = measured
  assert result.protocols == ["global"]
  sums = result.metrics["correct"]
  chex.assert_shape([sums["correct"], sums["count"]], (2, 2, 1))
  assert (sums["count"] == fed.data.whole_test.size.sum()).all()
  np.testing.assert_allclose(
    (sums["correct"] / sums["count"])[..., 0],
    result.metrics["global"]["accuracy"],
    rtol=1e-6,
  )


def test_seeds_are_a_number_or_their_list(measured, fed):
  """A seed has the same bits in any company; its place counts, not its value."""
  result, _ = measured
  assert result.seeds == (3, 1)
  two = fa.run("fedavg", fed, seeds=np.int64(2), evaluate=("global", correct), **FEDAVG)
  assert two.seeds == (0, 1)
  np.testing.assert_array_equal(
    two.metrics["global"]["accuracy"][1], result.metrics["global"]["accuracy"][1]
  )
  chex.assert_trees_all_equal(two.global_params(1), result.global_params(1))


def test_steps_and_callbacks_are_the_run(measured, fed):
  result, (seen, rounds) = measured
  assert rounds == [2, 3]
  hashes, collected, results = [], [], []
  for step in fa.steps(
    "fedavg", fed, seeds=[3, 1], evaluate=("global", correct), **FEDAVG
  ):
    hashes.append(checkpoint.state_hash(step.states))  # until the next step
    collected.append(step)
    results.append(step.result())
  assert hashes[0] != hashes[1] == result.state_hash()
  # The results so far are those of runs that end there, also after the next step.
  assert [so_far.state_hash() for so_far in results] == hashes
  assert [so_far.rounds.tolist() for so_far in results] == [[2], [2, 3]]
  assert [so_far.records.stopped for so_far in results] == ["callback", "rounds"]
  for so_far in results:
    evaluations = len(so_far.rounds)
    chex.assert_trees_all_equal(
      so_far.metrics, jax.tree.map(lambda leaf: leaf[:, :evaluations], result.metrics)
    )
  for steps in (seen, collected):
    assert [(step.round, step.count) for step in steps] == [(2, 2), (3, 1)]
    for i, step in enumerate(steps):
      chex.assert_trees_all_equal(
        step.metrics,
        {
          name: {metric: values[:, i] for metric, values in of.items()}
          for name, of in result.metrics.items()
        },
      )
      np.testing.assert_array_equal(
        step.aux.cost.down,
        result.history["floats_down"][:, step.round - step.count : step.round],
      )


def test_steps_are_checked_when_they_are_asked_for(fed):
  with pytest.raises(fa.OptionError, match="^cohort_size=21: more than the 20"):
    fa.steps("fedavg", fed, cohort_size=21)


def test_measures_and_a_seed_alone(measured, fed, tmp_path, capsys):
  """Without any protocol there are rounds, sums, models and a folder."""
  result = fa.run(
    "fedavg",
    fed,
    evaluate=correct,
    seeds=[1],
    callbacks=fa.progress_bar("mine"),
    **FEDAVG,
  )
  both, _ = measured  # of the seeds 3 and 1
  chex.assert_trees_all_close(result.global_params(), both.global_params(1), rtol=1e-5)
  assert list(result.metrics) == ["correct"] and result.clients == {}
  np.testing.assert_array_equal(result.rounds, [2, 3])
  lines = capsys.readouterr().err.splitlines()
  assert "mine: compiled in" in lines[0] and "round 2/3" in lines[1]
  assert lines[2:] == [lines[2]] and "round 3/3" in lines[2]
  loaded = fa.load_run(result.save(tmp_path / "run"))
  np.testing.assert_array_equal(loaded.rounds, result.rounds)
  chex.assert_trees_all_equal(loaded.metrics, result.metrics)


def test_a_run_warns_of_its_hyper_parameters(fed):
  with pytest.warns(UserWarning, match="^personal_lr=0.1 with lam=30: "):
    fa.steps("ditto", fed, lam=30.0, personal_lr=0.1, cohort_size=4)


def test_a_sampler_of_ones_own(fed):
  def by_turns(data, cohort_size, key, number):
    del key
    clients = data.size.shape[0]
    return (number * cohort_size + jnp.arange(cohort_size)) % clients

  result = fa.run(
    "fedavg",
    fed,
    sampler=by_turns,
    cohort_size=10,
    rounds=2,
    evaluate="global",
    local_steps=1,
    batch_size=0,
  )
  assert result.facts["plan"]["sampling"] == "your by_turns"
  sizes = fed.data.train.size
  np.testing.assert_allclose(
    result.history["example_gradients"][0],
    [sizes[:10].mean(), sizes[10:].mean()],
    rtol=1e-6,
  )


@each(
  "options, pattern",
  [
    (dict(seeds=0), "^seeds=0: "),
    (dict(seeds=[1, 1]), r"^seeds=\[1, 1\]: "),
    (dict(num_seeds=3), "^num_seeds: .* seeds$"),
    (dict(seed=3), "^seed: .* seeds$"),
    (dict(eval_protocols=("global",)), "^eval_protocols: .* evaluate$"),
    (dict(evaluate=()), "^evaluate: empty"),
    (dict(evaluate=[5]), "^evaluate=5: "),
    (dict(evaluate=(correct, correct)), "^evaluate=correct: .* two"),
    (dict(evaluate="validation"), "^evaluate=validation: needs validation_cl"),
    (dict(evaluate=lambda *_: 3.0), "^evaluate=<lambda>: must return a dictionary"),
    (
      dict(evaluate=lambda params, x, y: {"rows": len(y)}),
      "^evaluate=<lambda>: raises TypeError: .*takes 3 positional arguments",
    ),
    (
      dict(evaluate=lambda params, x, y, mask: {"rows": 1 if mask.any() else 0}),
      "^evaluate=<lambda>: raises TracerBoolConversionError: .*test_api.py line ",
    ),
    (
      dict(evaluate=fa.at_clients(lambda params, x, y, mask: {"rows": params["rows"]})),
      "^evaluate=<lambda>: raises KeyError: 'rows', .*test_api.py line ",
    ),
    (dict(model=3), "^model: "),
    (dict(sampler="size"), "^sampler='size': must be .* sampling='size'"),
    (dict(sampling=samplers.by_size), "^sampling: .* is given as sampler"),
    (dict(sampler=samplers.uniform, sampling="size"), "give one of them"),
    (dict(sampler=samplers.by_availability), "give sampling=availability"),
    (dict(sampler=lambda *_: 0), "^sampler=<lambda>: gives .* must give the"),
    (dict(availability_seed=1), "^availability_seed: .* now a field of sampling"),
    (dict(model="no/file.py:Net"), "^model=no/file.py:Net: there is no file"),
    (dict(hparams=3), "^hparams: int given, fedavg has FedAvgHParams"),
    (dict(seeds=[2**32]), r"^seeds=\[4294967296\]: .* to 4,294,967,295$"),
    (dict(seeds=2**40), "^seeds=1099511627776: "),
    (dict(model=None), "^model=None: must be a name, a Model"),
    (dict(host_devices="x"), "^host_devices='x': "),
    (dict(callbacks=3), "^callbacks=3: an int, must be functions of a Step"),
    (dict(callbacks=[print, "x"]), "^callbacks='x': "),
  ],
)
def test_refused_in_one_line(fed, options, pattern):
  with pytest.raises(fa.OptionError, match=pattern) as error:
    fa.run("fedavg", fed, **{"cohort_size": 4, "rounds": 1, **options})
  assert "\n" not in str(error.value)


class Leaves(nn.Module):
  """A module that ends the process, for some numbers of rows."""

  rows: range

  @nn.compact
  def __call__(self, x):
    if len(x) in self.rows:
      sys.exit(0)
    return nn.Dense(10)(x.reshape(len(x), -1))


def leave(*arguments, **keywords):
  sys.exit(0)


def leaving_builder(model, hparams: FedAvgHParams, *, map_clients):
  sys.exit(0)


def loss_that_leaves(fed):
  arrays = small.make_arrays()
  del arrays["y"], arrays["y_test"], arrays["client_ids"], arrays["test_client_ids"]
  y, y_test = (np.zeros((len(arrays[x]), 1), np.float32) for x in ("x", "x_test"))
  task = fa.Task(
    name="leaving",
    loss=leave,
    sums=lambda outputs, y, losses, mask: {"error": losses.sum()},
    values=lambda sums: {"error": sums["error"]},
    better={"error": "lower"},
  )
  examples = fa.from_arrays(**arrays, y=y, y_test=y_test, task=task)
  federation = fa.federate(examples, num_clients=3, partition="iid:min_size=1")
  return fa.run("fedavg", federation, participation=1)


@pytest.mark.parametrize(
  "call",
  [
    lambda fed: fa.run("fedavg", fed, model=Leaves(range(99))),
    lambda fed: fa.run("fedavg", fed, model=Leaves(range(20, 10**6))),
    lambda fed: fa.run("fedavg", fed, model=lambda input_shape: leave()),
    lambda fed: fa.run("fedavg", fed, sampler=leave),
    lambda fed: fa.run("fedavg", fed, evaluate=leave),
    lambda fed: fa.run(leaving_builder, fed),
    lambda fed: fa.federate("digits", partition=f"{__name__}:leave", num_clients=5),
    lambda fed: fa.federate("digits", kinds=f"{__name__}:leave,2", num_clients=5),
    loss_that_leaves,
  ],
)
def test_no_function_of_ones_own_ends_the_process(fed, call):
  """``sys.exit`` in it would end a notebook, and a command with status 0."""
  with pytest.raises(fa.OptionError, match="SystemExit: 0") as error:
    call(fed)
  assert "test_api.py line" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad])
def test_a_run_is_not_traced(fed, transform):
  """Without it JAX complains of some array of ours."""

  def loss(rate):
    return fa.run(
      "fedavg", fed, cohort_size=4, rounds=1, client_lr=rate, evaluate="global"
    ).metrics["global"]["loss"][0, 0]

  with pytest.raises(fa.OptionError, match="^client_lr: "):
    transform(loss)(jnp.ones(3) if transform is jax.vmap else 1.0)
  with pytest.raises(fa.OptionError, match="^a run cannot be traced by j"):
    jax.jit(lambda x: x + loss(0.1))(1.0)


@pytest.mark.parametrize("value", ["x", 0.5, None, 20, -1])
def test_a_client_is_a_whole_number(fed, measured, value):
  result, _ = measured
  for ask in (result.client_params, fed.client):
    with pytest.raises(
      ValueError, match="^client=.*: must be (a whole number|the name)"
    ):
      ask(value)
  with pytest.raises(fa.OptionError, match="^seed=.*: "):
    result.client_params(0, seed=value)


def test_what_is_needed(fed):
  for value, take in itertools.product((3, None), (fa.load_run, fa.tensorboard)):
    with pytest.raises(fa.OptionError, match="an? (int|NoneType), must be a"):
      take(value)
  for name, data, pattern in (
    ("fedavg", np.zeros((3, 3)), "^federation: a ndarray, make one"),
    ("local", fed, "^evaluate=correct: local has no"),
  ):
    with pytest.raises(fa.OptionError, match=pattern):
      fa.run(name, data, evaluate=("local", correct), rounds=1)
