"""The score without a client is that of the run that has forgotten it."""

import numpy as np
import pytest

import experiments.contributions
import fedjax_alg as fa

pytestmark = pytest.mark.program
CLIENTS = 5
OPTIONS = dict(evaluate=("global",), store_sums=True)


@pytest.fixture(scope="module", name="fit")
def fixture_fit():
  federation = fa.federate("digits", num_clients=CLIENTS, partition="classes")
  return fa.run("fedacnnl", federation, seeds=2, **OPTIONS)


def test_each_score_is_that_of_the_run_without_the_client(fit):
  share = fa.contributions(fit)
  without = fa.forget(fit, 3).metrics["global"]["accuracy"]
  np.testing.assert_array_equal(share.without[:, 3], without[:, 1])
  np.testing.assert_array_equal(share.total, without[:, 0])
  np.testing.assert_array_equal(share.values, share.total[:, None] - share.without)
  assert share.values.shape == (2, CLIENTS)
  assert np.ptp(share.values) > 0


def test_a_smaller_loss_is_better(fit):
  share = fa.contributions(fit, metric="loss")
  np.testing.assert_array_equal(share.values, share.without - share.total[:, None])


def test_who_has_been_forgotten_contributes_nothing(fit):
  """And is not in the table; another measure than the task's is refused."""
  share = fa.contributions(fa.forget(fit, [0, 3]))
  assert share.clients == ("1", "2", "4")
  with pytest.raises(fa.OptionError, match="^metric=size: must be one of accuracy"):
    fa.contributions(fit, metric="size")


def test_a_network_is_refused():
  federation = fa.federate("digits", num_clients=CLIENTS, partition="classes")
  result = fa.run("fedacnnl", federation, model="mlp:4", **OPTIONS)
  with pytest.raises(fa.OptionError, match="^model: has 2 layers, and those after"):
    fa.contributions(result)


def test_iterative_methods_are_trained_again_without_each_client():
  """As on data that never had the client, with one program for all of them."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(90, 4)).astype(np.float32), rng.integers(0, 3, 90)
  owner = np.repeat([1, 2, 3], 30)  # no names of positions

  def federate(rows):
    examples = fa.from_arrays(x[rows], y[rows], owner[rows], x_test=x, y_test=y)
    return fa.federate(examples, partition="natural")

  options = dict(
    participation=1,
    rounds=3,
    evaluate=("global",),
    client_lr=0.5,
    class_weights="balanced",  # by the classes of those who are there
  )
  result = fa.run("fedavg", federate(owner < 4), **options)
  with pytest.raises(fa.OptionError, match="^algorithm=fedavg: not in closed form"):
    fa.contributions(result)
  share = fa.contributions(result, metric="loss", retrain=True)
  last = fa.run("fedavg", federate(owner < 3), **options).metrics["global"]["loss"]
  np.testing.assert_allclose(share.without[:, 2], last[:, -1], rtol=1e-6)
  assert share.without.shape == (1, 3) and np.ptp(share.without) > 0
  assert share.clients == ("1", "2", "3")


def test_scales_of_all_clients_are_those_of_no_run_without_one():
  federation = fa.federate("digits", num_clients=4, features="standardize")
  options = dict(cohort_size=2, rounds=1, evaluate=("global",))
  result = fa.run("fedavg", federation, **options)
  with pytest.raises(fa.OptionError, match="^retrain: features=standardize has scaled"):
    fa.contributions(result, retrain=True)


def test_there_is_no_model_without_the_only_client():
  """Its contribution is no 0: that would be the score of its own model."""
  x = np.random.default_rng(1).normal(size=(20, 4))
  examples = fa.from_arrays(
    x, np.arange(20) % 2, client_ids=["south"] * 20, x_test=x, y_test=np.arange(20) % 2
  )
  fit_ = fa.run("fedacnnl", fa.federate(examples), **OPTIONS)
  for retrain in (False, True):
    with pytest.raises(fa.OptionError, match="^clients: south holds all training"):
      fa.contributions(fit_, retrain=retrain)


def test_scores_of_equations_without_a_solution_are_none():
  """Of NaN the first class would be predicted, as if the client mattered so much."""
  x = np.random.default_rng(1).normal(size=(30, 4))
  owner, y = np.repeat(list("abc"), 10), np.arange(30) % 2
  x[owner != "c", 3] = 0  # c alone has this feature
  fed = fa.federate(fa.from_arrays(x, y, client_ids=owner, x_test=x, y_test=y))
  fit_ = fa.run("fedacnnl", fed, ridge="0", **OPTIONS)
  with pytest.raises(fa.NonFiniteError, match="without c have no solution.*singular"):
    fa.contributions(fit_)


def test_the_command_writes_a_table_and_a_picture(fit, tmp_path, capsys):
  folder = fit.save(tmp_path / "run")
  words = [str(folder), f"--out={tmp_path / 'out'}"]
  for _ in range(2):  # what an earlier call has written is replaced
    assert experiments.contributions.main(words) == 0
  text = capsys.readouterr().out
  assert f"{CLIENTS} clients, accuracy with all" in text and "most: client" in text
  names = {path.name for path in (tmp_path / "out").iterdir()}
  assert names == {f"contributions.{kind}" for kind in ("csv", "png", "pdf")}
  rows = (tmp_path / "out" / "contributions.csv").read_text().splitlines()
  assert len(rows) == 1 + 2 * CLIENTS
  assert experiments.contributions.main([str(folder)]) != 0
  assert (
    capsys.readouterr()
    .err.strip()
    .endswith("--out: give the folder of the table and the picture")
  )


def test_the_command_makes_runs_of_other_methods_again(tmp_path, capsys):
  """It says what is lacking where it is not asked to."""
  federation = fa.federate("digits", num_clients=3)
  result = fa.run("fedavg", federation, participation=1, rounds=1, evaluate="global")
  words = [str(result.save(tmp_path / "run")), f"--out={tmp_path / 'out'}"]
  assert experiments.contributions.main(words) != 0
  assert "not in closed form" in capsys.readouterr().err
  assert experiments.contributions.main([*words, "--retrain"]) == 0
  assert "3 clients, accuracy with all" in capsys.readouterr().out


def test_a_client_without_a_number_is_last():
  """NaN in the means left the clients in no order, the first of them "most"."""
  values = np.array([[0.1, np.nan, 0.3, -0.2]])
  share = fa.Contributions("accuracy", (0,), tuple("abcd"), np.zeros(1), -values)
  names, heights = experiments.contributions.bars_of(share)
  assert names == ["c", "a", "d", "b"] and np.isnan(heights[-1])
