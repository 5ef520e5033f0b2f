"""Predictions on raw rows are what the protocols measure, encoded and scaled."""

import dataclasses
import warnings

from flax import linen
import jax
import numpy as np
import pytest
from sklearn import metrics as sk

import fedjax_alg as fa
from tests.runs import hospitals

pd = pytest.importorskip("pandas", reason="the package pandas is missing")

OPTIONS = dict(rounds=2, cohort_size=3, eval_every=2, client_lr=0.1)


@pytest.fixture(name="frames", scope="module")
def fixture_frames():
  return hospitals.frame(240, 0), hospitals.frame(90, 1)


def federate(frames, **options):
  train, test = frames
  examples = fa.from_dataframe(
    train, y="ill", client="hospital", test=test, missing=hospitals.MISSING
  )
  return fa.federate(examples, features="standardize", **options)


@pytest.fixture(name="run", scope="module")
def fixture_run(frames):
  fed = federate(frames)
  return fa.run("fedavg", fed, evaluate=("global", "local"), seeds=2, **OPTIONS)


def test_predictions_have_the_accuracy_that_is_measured(run, frames):
  """Whatever happens between a raw row and the model also happens here."""
  _, test = frames
  for seed in (0, 1):
    predicted = run.predict(test, seed=seed)
    assert set(predicted) <= {"no", "yes"}
    accuracy = (predicted == test["ill"]).mean()
    measured = run.metrics["global"]["accuracy"][seed, -1]
    np.testing.assert_allclose(accuracy, measured, rtol=1e-6)
    proba = run.predict(test, proba=True, seed=seed)
    np.testing.assert_allclose(proba.sum(1), 1)
    picked = proba[np.arange(len(test)), (test["ill"] == "yes").to_numpy().astype(int)]
    np.testing.assert_allclose(
      -np.log(picked).mean(), run.metrics["global"]["loss"][seed, -1], rtol=1e-5
    )


def test_a_frame_that_lacks_a_category_has_the_same_predictions(run, frames):
  """Codes of its own would move every category behind the one that is lacking."""
  _, test = frames
  few = test[test["ward"] != "cardiology"].astype({"ward": str, "stage": str})
  few = few.astype({"ward": "category", "stage": "category"})
  assert "cardiology" not in few["ward"].cat.categories
  whole = run.predict(test, proba=True)[(test["ward"] != "cardiology").to_numpy()]
  np.testing.assert_array_equal(run.predict(few, proba=True), whole)
  np.testing.assert_array_equal(run.predict(few.drop(columns="ill"), proba=True), whole)
  with pytest.raises(fa.DataError, match="^x: column 'ward' has 'eye' in row 0"):
    run.predict(few.assign(ward="eye"))


def test_a_folder_predicts_without_the_data(run, frames, tmp_path):
  _, test = frames
  loaded = fa.load_run(run.save(tmp_path / "run"))
  for options in (dict(proba=True), dict(seed=1)):
    np.testing.assert_array_equal(
      loaded.predict(test, **options), run.predict(test, **options)
    )
  with pytest.raises(fa.RunFolderError, match="arrays, give load_run the federation"):
    loaded.predict(test, client=0)
  with_data = fa.load_run(tmp_path / "run", federation=federate(frames))
  np.testing.assert_array_equal(
    with_data.predict(test, "north", proba=True), run.predict(test, "north", proba=True)
  )
  path = tmp_path / "run" / "encoding.json"
  path.write_text(path.read_text("utf-8").replace("surgery", "eye"), "utf-8")
  with pytest.raises(fa.RunFolderError, match="encoding.json is not as the run wrote"):
    fa.load_run(tmp_path / "run").predict(test)


@pytest.mark.parametrize(
  "name, options",
  [
    ("ifca", dict(num_groups=2)),
    ("ditto", {}),
    ("fedem", dict(num_components=2)),
  ],
)
def test_the_models_of_clients_predict_their_rows(frames, name, options):
  """Of groups, personal ones and mixtures: by the client's name."""
  fed = federate(frames)
  result = fa.run(name, fed, evaluate="local", **OPTIONS, **options)
  _, test = frames
  accuracies = result.clients["local"]["accuracy"][0]
  for number, hospital in enumerate(fed.client_names):
    rows = test[test["hospital"] == hospital]
    predicted = result.predict(rows, str(hospital))
    np.testing.assert_allclose(
      (predicted == rows["ill"]).mean(), accuracies[number], rtol=1e-6
    )
  if name == "ifca":
    np.testing.assert_array_equal(
      result.predict(rows, hospital),
      result.predict(rows, model=int(result.membership[0, number])),
    )
    with pytest.raises(fa.OptionError, match="^client: "):
      result.predict(rows)


def test_arrays_are_rows_too(fed):
  """uint8 images as they are, of a run on digits."""
  result = fa.run("fedavg", fed, evaluate="global", **OPTIONS | dict(cohort_size=4))
  test = fed.data.whole_test
  raw = np.asarray(test.x[: int(test.size.sum())])
  y = np.asarray(test.y[: len(raw)])
  assert (result.predict(raw) == y).mean() == pytest.approx(
    result.metrics["global"]["accuracy"][0, -1]
  )
  assert result.predict(raw[:0]).shape == (0,)
  with pytest.raises(fa.DataError, match=r"^x: has examples of shape \(3,\)"):
    result.predict(np.zeros((2, 3)))
  with pytest.raises(fa.DataError, match="^x: a DataFrame"):
    result.predict(pd.DataFrame({"a": [1]}))


def test_whole_numbers_are_images_only_as_bytes(tmp_path):
  """Integers of 0 to 255 were not scaled, so predictions were of other images."""
  x = np.arange(40 * 4).reshape(40, 4).astype(np.uint8)
  examples = fa.from_arrays(x, np.arange(40) % 2, np.arange(40) % 4)
  result = fa.run("fedavg", fa.federate(examples), evaluate="global", **OPTIONS)
  loaded = fa.load_run(result.save(tmp_path / "run"))
  for run in (result, loaded):
    np.testing.assert_allclose(
      run.predict(x / 255, proba=True), run.predict(x, proba=True), rtol=1e-5
    )
    for dtype in (int, np.uint16):
      with pytest.raises(fa.DataError, match="^x: is .*whole numbers must be uint8"):
        run.predict(x.astype(dtype))


def test_ids_of_no_token_are_refused():
  """A row of the table for another token, or NaN, stood for them."""
  x = np.arange(160).reshape(40, 4) % 12
  examples = fa.from_arrays(x[:, :-1], x[:, 1:], np.arange(40) % 4, task="tokens")
  options = OPTIONS | dict(model="lstm")
  result = fa.run("fedavg", fa.federate(examples), evaluate="global", **options)
  assert result.predict(x[:2, :-1]).shape == (2, 3)
  for ids in (np.full((2, 3), 12), np.full((2, 3), -1)):
    with pytest.raises(fa.DataError, match="^x: .*token id"):
      result.predict(ids)


@pytest.fixture(scope="module")
def rare():
  """x [4000, 5] and y, of which 7 % are positive, and their federation."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(4000, 5)).astype(np.float32)
  p = 1 / (1 + np.exp(3.4 - x @ np.array([1.2, -0.8, 0.5, 0, 0])))
  y = (rng.random(4000) < p).astype(np.int32)
  examples = fa.from_arrays(x, y, np.arange(4000) % 5, task="binary")
  return x, y, fa.federate(examples, partition="natural:test_share=0.3")


def test_a_rare_class_has_probabilities_in_closed_form(rare):
  """By the scores alone half of the patients would be ill."""
  x, y, fed = rare
  with pytest.warns(UserWarning, match="^task=binary: the outputs of AFL are scores"):
    scores = fa.run("afl", fed, evaluate="global", outputs="scores")
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    odds = fa.run("afl", fed, evaluate="global")
    p = odds.predict(x, proba=True)[:, 1]
  assert (scores.predict(x) == 1).mean() > 0.4 and (p > 0.5).mean() < 0.03
  ece, auroc = (
    [run.metrics["global"][name][0, -1] for run in (scores, odds)]
    for name in ("ece", "auroc")
  )
  assert ece[0] > 0.4 and ece[1] < 0.03 and abs(auroc[1] - auroc[0]) < 0.01
  np.testing.assert_allclose(p.mean(), y.mean(), atol=0.01)
  assert sk.log_loss(y, p) < 0.2


@pytest.mark.parametrize("name", ["fedncm", "fedcof"])
def test_class_means_rank_two_classes(rare, name):
  x, _, fed = rare
  with pytest.warns(UserWarning, match="^task=binary: .* are scores and no log odds"):
    result = fa.run(name, fed, evaluate="global")
  test = fed.data.whole_test
  total = int(test.size.sum())
  inner = jax.tree.map(lambda leaf: leaf[0], result.global_params())["params"]
  margin = test.x[:total] @ (inner["kernel"][1] - inner["kernel"][0])
  expected = sk.roc_auc_score(test.y[:total], margin)
  assert expected > 0.75
  np.testing.assert_allclose(
    result.metrics["global"]["auroc"][0, -1], expected, atol=1e-5
  )
  with pytest.warns(UserWarning, match="^proba=True: the outputs of .* probability$"):
    result.predict(x[:3], proba=True)


def test_scores_are_no_probabilities_without_a_word(fed, tmp_path):
  """Of a run in memory and of one from a folder; what is predicted is silent."""
  result = fa.run("afl", fed, evaluate="global")
  raw = np.asarray(fed.data.whole_test.x[:5])
  for of in (result, fa.load_run(result.save(tmp_path / "run"))):
    with pytest.warns(UserWarning, match="^proba=True: .* .give outputs=log_odds.$"):
      of.predict(raw, proba=True)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    result.predict(raw)
  odds = fa.run("afl", fed, evaluate="global", outputs="log_odds")
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    p = odds.predict(raw, proba=True)
  np.testing.assert_allclose(p.sum(1), 1)
  gains = (run.metrics["global"]["accuracy"][0, -1] for run in (odds, result))
  assert next(gains) >= next(gains)


def test_a_regression_predicts_numbers():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(60, 3)).astype(np.float32)
  train, test = slice(0, 40), slice(40, 60)
  examples = fa.from_arrays(
    x[train],
    2 * x[train, 0],
    np.arange(40) % 4,
    x_test=x[test],
    y_test=2 * x[test, 0],
    task="regression",
  )
  result = fa.run("fedavg", fa.federate(examples), evaluate="global", **OPTIONS)
  predicted = result.predict(x[test].astype(np.float64))
  assert predicted.shape == (20,)
  np.testing.assert_allclose(
    np.square(predicted - 2 * x[test, 0]).mean(),
    result.metrics["global"]["mse"][0, -1],
    rtol=1e-5,
  )
  with pytest.raises(fa.OptionError, match="^proba: task=regression"):
    result.predict(x, proba=True)


def test_a_task_of_ones_own_predicts_outputs():
  """Names of classes were looked up by logits, an IndexError."""
  task = dataclasses.replace(fa.tasks.CLASSIFICATION, name="mine")
  x, y = np.eye(40, 3, dtype=np.float32), np.array(["no", "yes"] * 20)
  fed = fa.federate(fa.from_arrays(x, y, np.arange(40) % 4, task=task))
  assert fed.encoding.classes == ("no", "yes")
  result = fa.run("fedavg", fed, evaluate="global", **OPTIONS)
  outputs = result.predict(x)
  assert outputs.shape == (40, 2) and outputs.dtype == np.float32


class Normed(linen.Module):
  """Without statistics that it keeps, a row among others."""

  @linen.compact
  def __call__(self, x, train):
    return linen.Dense(10)(linen.BatchNorm(not train)(x.reshape(x.shape[0], -1)))


def test_statistics_of_the_batch_are_those_of_what_is_predicted_together(fed):
  """Predictions of single rows are others, which nothing said."""
  options = OPTIONS | dict(rounds=1, eval_every=1, evaluate="global")
  raw = np.asarray(fed.data.whole_test.x[:5])
  result = fa.run("fedavg", fed, model=Normed(), model_state="batch", **options)
  with pytest.warns(UserWarning, match="^model_state=batch: a prediction depends on"):
    together = result.predict(raw, proba=True)
  with pytest.warns(UserWarning, match="^model_state=batch: a prediction depends on"):
    assert (result.predict(raw[:1], proba=True) != together[:1]).any()


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(client="nort"), "client=nort: no client of this name, did you mean 'north'"),
    (dict(client=0), "client=0: "),
    (dict(client=0, model=1), "model=1: "),
    (dict(model=1), "model=1: "),
    (dict(seed=2), "seed=2: "),
  ],
)
def test_choices_that_cannot_be_are_one_line(run, frames, arguments, message):
  with pytest.raises(fa.OptionError, match=f"^{message}") as caught:
    run.predict(frames[1], **arguments)
  assert "\n" not in str(caught.value)
