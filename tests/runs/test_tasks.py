"""Runs of tasks that are not one class: what comes out, and what is refused."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import datasets
from sklearn import metrics as sk

import fedjax_alg as fa
from fedjax_alg import models, tasks
from fedjax_alg.engine import evaluate
from fedjax_alg.errors import OptionError
from tests.each import each
from tests.runs import hospitals

L2 = 0.1


def ridge(fed, alpha):
  """Weights and bias of least squares with the penalty of both, in float64."""
  x, y = map(np.concatenate, zip(*map(fed.client, range(fed.num_clients))))
  a = np.concatenate([x, np.ones((len(x), 1))], 1).astype(float)
  return np.linalg.solve(a.T @ a + alpha * np.eye(a.shape[1]), a.T @ y)


@pytest.fixture(scope="module", name="swept")
def fixture_swept():
  """One client, all its data in a step: descent on ridge regression."""
  fed = fa.federate("diabetes", num_clients=1)
  return fed, fa.sweep(
    "fedavg",
    fed,
    grid={"client_lr": (0.4, 1e-3)},
    l2=L2,
    batch_size=0,
    local_steps=100,
    rounds=10,
    eval_every=5,
    cohort_size=1,
  )


def test_full_batch_descent_reaches_the_ridge_solution(swept):
  fed, sweep = swept
  rows = int(fed.data.train.size.sum())
  params = sweep.results[0].global_params()["params"]
  weights = np.append(params["kernel"][0], params["bias"])
  np.testing.assert_allclose(weights, ridge(fed, rows * L2)[:, 0], rtol=0, atol=1e-5)


def test_the_least_error_is_the_best(swept):
  """Of a sweep and of a curve, and a target is reached from above."""
  fed, sweep = swept
  with pytest.warns(UserWarning, match="mse is optimistic"):
    best = sweep.best()
  assert best.number == 0
  small, large = (r.metrics["local"]["mse"][0, -1] for r in sweep.results)
  assert small < large and best.mean == pytest.approx(
    sweep.results[0].metrics["global"]["mse"][0, -1]
  )
  summary = sweep.results[1].summary()
  assert (
    summary["best"]["global"]["mse"]["mean"]
    == sweep.results[1].metrics["global"]["mse"].min()
  )
  assert summary["rounds_to"] == {}
  compared = fa.compare(dict(zip("ab", sweep.results)), targets=[0.4])
  assert compared.metric == "mse" and compared.score == "final"
  reached = {line.label: line.reached[0.4][0] for line in compared.lines}
  assert reached["a"]["round"] == 5 and reached["b"] is None
  with pytest.raises(
    OptionError, match="metric=accuracy: unknown in a, whose task is regression"
  ):
    fa.compare(dict(zip("ab", sweep.results)), metric="accuracy")


def test_a_folder_has_the_metrics_of_the_task(swept, tmp_path):
  result = swept[1].results[0]
  result.save(tmp_path / "run")
  with open(tmp_path / "run" / "clients.csv", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert float(rows[0]["mse"]) == result.clients["local"]["mse"][0, 0]
  loaded = fa.load_run(tmp_path / "run")
  for metric in ("mse", "rmse", "mae", "r2", "loss", "client_mse"):
    np.testing.assert_array_equal(
      loaded.metrics["local"][metric], result.metrics["local"][metric]
    )
  assert loaded.metrics["local"]["r2"][0, -1] > 0.4
  np.testing.assert_array_equal(
    loaded.client_params(0)["params"]["kernel"],
    result.client_params(0)["params"]["kernel"],
  )


def pair_task():
  """A number and a label of one example, both from one image and an age."""

  def loss(outputs, y):
    return jnp.square(outputs["size"][:, 0] - y["size"]) + (
      tasks.cross_entropy(outputs["kind"], y["kind"])
    )

  def sums(outputs, y, losses, mask):
    right = outputs["kind"].argmax(1) == y["kind"]
    return {"right": jnp.where(mask, right, False).sum()}

  return fa.Task(
    "pair",
    loss,
    sums,
    lambda s: {"right": s["right"] / s["rows"]},
    {"right": "higher"},
    shares=("right",),
  )


def test_examples_and_targets_are_dictionaries_of_arrays():
  rng = np.random.default_rng(0)
  kind = rng.integers(0, 3, 90).astype(np.uint8)
  image = (60 * np.eye(3)[kind][:, :, None] + rng.integers(0, 50, (90, 3, 2))).astype(
    np.uint8
  )
  age = rng.normal(size=(90, 1))
  examples = fa.from_arrays(
    {"image": image, "age": age},
    {"kind": kind, "size": 2 * age[:, 0]},
    np.arange(90) % 5,
    task=pair_task(),
  )
  fed = fa.federate(examples)
  assert fed.example_shape == {"image": (3, 2), "age": (1,)}
  assert fed.data.train.x["image"].nbytes < 1e4  # one byte each
  x, y = fed.client(0)
  assert set(x) == {"image", "age"} and set(y) == {"kind", "size"}
  assert float(x["image"].max()) <= 1

  def init(key):
    return {"kind": jnp.zeros((6, 3)), "size": jnp.zeros((1, 1))}

  model = models.from_functions(
    init,
    lambda params, x: {  # type: ignore[return-value]
      "kind": x["image"].reshape(-1, 6) @ params["kind"],
      "size": x["age"] @ params["size"],
    },
  )
  result = fa.run(
    "scaffold",
    fed,
    model=model,
    rounds=20,
    eval_every=20,
    cohort_size=3,
    client_lr=0.2,
    evaluate="local",
    l2=0,
  )
  assert result.metrics["local"]["right"][0, -1] > 0.8
  np.testing.assert_allclose(result.global_params()["size"], [[[2.0]]], atol=0.1)
  with pytest.raises(
    OptionError, match="model=softmax: reads one array, the examples have age, image"
  ):
    fa.run("fedavg", fed, cohort_size=3)


@pytest.mark.filterwarnings("ignore:.*classes.*have no training example")
def test_evaluation_holds_nothing_of_the_square_of_the_classes():
  """Also for each client: a vocabulary of 50,000 has sums of its length."""
  size, length, clients = 50_000, 3, 7
  rng = np.random.default_rng(0)
  for task, shape in (("tokens", (length,)), ("classification", ())):
    ids = rng.integers(1, 9, (4 * clients, length))
    y = np.roll(ids, -1, axis=1) if shape else ids[:, 0]
    fed = fa.federate(
      fa.from_arrays(ids, y, np.arange(len(ids)) % clients, num_classes=size, task=task)
    )
    model = models.from_functions(
      lambda key: jnp.zeros((size, 2)),
      lambda params, x, shape=shape: (
        (params[x] if shape else params[x[:, 0]]) @ params.T
      ),
      (length,),
      input_dtype=jnp.int32,
      task=task,
    )
    algorithm = fa.Algorithm(
      None, None, None, lambda state, *_: state, lambda state: state[None]
    )
    counts = jax.eval_shape(
      evaluate.make_evaluate(
        algorithm, model, ("global", "local"), fa.engine.clients.ClientMap()
      ),
      fed.data,
      jax.eval_shape(model.init, jax.random.key(0)),
      jax.random.key(0),
    )
    assert max(leaf.size for leaf in jax.tree.leaves(counts)) <= size
    assert (
      max(leaf.size for leaf in jax.tree.leaves(counts["local"].clients)) == clients
    )


def linear(outputs, **options):
  """A model of one's own, with so many outputs."""
  return models.from_functions(
    lambda key: jnp.zeros((10, outputs)), lambda params, x: x @ params, **options
  )


@each(
  "options, pattern",
  [
    (
      dict(model=linear(2)),
      r"gives \[7, 2\] float32 .* the outputs of "
      r"regression, \[7, 1\] float32",
    ),
    (
      dict(model=linear(1, task="tokens")),
      "model: is for the task tokens, the data are for regression",
    ),
    (dict(model="lstm"), "model=lstm: needs words or characters"),
    (dict(evaluate="preferred"), "evaluate=preferred: .*no confusion matrix"),
    (dict(evaluate=fa.confusion), "evaluate=confusion: .*no confusion matrix"),
    (dict(stop_at="global:accuracy:0.5"), "the task regression has no accura"),
    (dict(stop_at="global:mse:0"), "VALUE must be a number above 0"),
    (dict(targets=(float("inf"),)), "targets: has inf, must be finite"),
    (dict(attack="label_flip"), "the task regression has no labels to flip"),
  ],
)
def test_what_does_not_go_with_regression_is_refused(swept, options, pattern):
  with pytest.raises(OptionError, match=pattern):
    fa.run("fedavg", swept[0], cohort_size=1, rounds=1, **options)


@pytest.mark.parametrize(
  "fields, pattern",
  [
    (dict(values=lambda s: {}), "task=near: values gives no near of better"),
    (dict(values=lambda s: {"near": 1.0}), r"a value of shape \[\] for near"),
    (dict(values=lambda s: {"near": s["far"]}), "values of the task near f"),
    (dict(sums=lambda *_: {"near": 1 / 0}), "sums of the task near fails"),
    (dict(loss=lambda outputs, y: outputs), r"loss: gives \[7, 1\] float32"),
  ],
)
def test_a_task_of_ones_own_is_checked_before_compiling(swept, fields, pattern):
  fed = swept[0]
  near = fa.Task(
    **{
      "name": "near",
      "loss": lambda outputs, y: jnp.abs(outputs - y).sum(1),
      "sums": lambda outputs, y, losses, mask: {
        "near": jnp.where(mask, losses < 0.5, False).sum()
      },
      "values": lambda s: {"near": s["near"] / s["rows"]},
      "better": {"near": "higher"},
      "shares": ("near",),
    }
    | fields
  )
  with pytest.raises(OptionError, match=pattern):
    models.as_model(linear(1, task=near), (10,), 1, targets=fed.targets)


def test_a_model_may_name_the_task_where_the_data_do_not():
  x = np.random.default_rng(0).normal(size=(40, 10))
  fed = fa.federate(fa.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(40) % 4))
  with pytest.raises(
    OptionError,
    match="for the task regression, whose "
    r"targets are float32 of shape \(1,\) and not int32",
  ):
    fa.run("fedavg", fed, model=linear(1, task="regression"), cohort_size=2)
  near = fa.Task(
    "margin",
    lambda outputs, y: jax.nn.softplus(jnp.where(y > 0, -outputs[:, 0], outputs[:, 0])),
    lambda outputs, y, losses, mask: {
      "right": jnp.where(mask, (outputs[:, 0] > 0) == (y > 0), False).sum()
    },
    lambda s: {"right": s["right"] / s["rows"]},
    {"right": "higher"},
    shares=("right",),
  )
  result = fa.run(
    "fedavg",
    fed,
    model=linear(1, task=near),
    cohort_size=4,
    rounds=20,
    eval_every=20,
    client_lr=0.5,
  )
  assert result.metrics["local"]["right"][0, -1] == 1.0


def test_raw_columns_are_ranked_as_scikit_learn_ranks_them():
  """Margins of -40,000 to 1,000; where they end in one bin, AUROC was .6 for .98."""
  x, y = datasets.load_breast_cancer(return_X_y=True)
  examples = fa.from_arrays(x, y, np.arange(len(y)) % 7, task="binary")
  fed = fa.federate(examples, partition="natural:test_share=0.3")
  result = fa.run(
    "fedavg",
    fed,
    rounds=4,
    cohort_size=3,
    client_lr=0.01,
    evaluate=("global", "local"),
    eval_every=4,
  )
  params = jax.tree.map(lambda leaf: leaf[0], result.global_params())
  model = models.Softmax().build(fed.example_shape, 2)
  test, margins, labels = fed.data.test, [], []
  for offset, size in zip(test.offset, test.size):
    rows = slice(offset, offset + size)
    margins.append(np.diff(model.apply(params, test.x[rows]))[:, 0])
    labels.append(test.y[rows])
  assert max(abs(part).max() for part in margins) > 1000
  for name, score in (
    ("auroc", sk.roc_auc_score),
    ("auprc", sk.average_precision_score),
  ):
    # Rounding of the margins may order a pair the other way round.
    alone = [score(*part) for part in zip(labels, margins)]
    of = result.metrics["local"]
    every = score(np.concatenate(labels), np.concatenate(margins))
    np.testing.assert_allclose(result.metrics["global"][name][0, -1], every, atol=1e-4)
    np.testing.assert_allclose(of[name][0, -1], every, atol=1e-4)
    np.testing.assert_allclose(result.clients["local"][name][0], alone, atol=2e-3)
    np.testing.assert_allclose(of[f"client_{name}"][0, -1], np.mean(alone), atol=1e-3)
    np.testing.assert_allclose(of[f"worst_decile_{name}"][0, -1], min(alone), atol=2e-3)


def test_two_classes_are_measured_at_each_hospital(tmp_path):
  """AUROC, calibration and a confusion matrix of what each client deploys."""
  pd = pytest.importorskip("pandas", reason="the package pandas is missing")
  frames = hospitals.frame(240, 0), hospitals.frame(200, 1)
  examples = fa.from_dataframe(
    frames[0],
    y="ill",
    client="hospital",
    test=frames[1],
    missing=hospitals.MISSING,
    task="binary",
  )

  def positives(params, x, y, mask):
    del params, x
    return {"number": (mask & (y == 1)).sum()}

  result = fa.run(
    "ditto",
    fa.federate(examples, features="standardize"),
    rounds=2,
    cohort_size=3,
    eval_every=2,
    client_lr=0.1,
    class_weights="balanced",
    evaluate=("local", fa.at_clients(fa.confusion), fa.at_clients(positives)),
  )
  matrix = result.metrics["local_confusion"]["matrix"][0, -1]
  table = pd.read_csv(result.save(tmp_path / "run") / "clients.csv")
  assert list(table)[-7:] == [
    *("loss", "auprc", "f1", "balanced_accuracy", "accuracy", "brier", "ece")
  ]
  aurocs = []
  for number, hospital in enumerate(["east", "north", "south", "west"]):
    rows = frames[1][frames[1]["hospital"] == hospital]
    p = result.predict(rows, hospital, proba=True)[:, 1]
    y = (rows["ill"] == "yes").to_numpy()
    aurocs.append(sk.roc_auc_score(y, p))
    row = table.iloc[number]
    np.testing.assert_allclose(row["auroc"], aurocs[-1], atol=1e-9)
    np.testing.assert_allclose(row["brier"], sk.brier_score_loss(y, p), rtol=1e-4)
    np.testing.assert_array_equal(matrix[number], sk.confusion_matrix(y, p > 0.5))
    assert result.metrics["local_positives"]["number"][0, -1, number] == y.sum()
  of = result.metrics["local"]
  np.testing.assert_allclose(of["client_auroc"][0, -1], np.mean(aurocs), atol=1e-9)
  np.testing.assert_allclose(of["worst_decile_auroc"][0, -1], min(aurocs), atol=1e-9)
  loaded = fa.load_run(tmp_path / "run")
  assert loaded.records.metrics == result.records.metrics
  np.testing.assert_array_equal(
    loaded.clients["local"]["ece"], result.clients["local"]["ece"]
  )
