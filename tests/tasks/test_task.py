"""A task of one's own: what is added to it, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import tasks
from fedjax_alg.errors import OptionError
from fedjax_alg.tasks import Task


def near(outputs, y, losses, mask):
  del losses
  close = jnp.abs(outputs - y).max(1) < 0.5
  return {"near": jnp.where(mask, close, False).sum()}


def own(**more):
  return Task(**{"name": "near", "better": {"near": "higher"}, "sums": near,
                 "loss": lambda outputs, y: jnp.abs(outputs - y).sum(1),
                 "values": lambda sums: {"near": sums["near"] / sums["rows"]},
                 "shares": ("near",)} | more)


def test_the_loss_and_the_rows_are_added_and_nan_rows_ignored():
  task = own()
  outputs, y = jnp.array([[0.0], [2], [jnp.nan]]), jnp.array([[0.25], [0], [1]])
  sums = task.of_batch(
      outputs, y, task.loss(outputs, y), jnp.array([True, True, False]))
  assert task.main == "near" and task.metrics.columns == (
      "near", "loss", "client_near", "worst_decile_near")
  found = tasks.summarise(task, tasks.Counts(sums))
  assert (found["near"], found["loss"]) == (0.5, 1.125)
  nothing = tasks.summarise(task, tasks.Counts(
      {name: np.zeros(2) for name in sums}))
  assert all(np.isnan(values).all() for values in nothing.values())


def test_the_worst_clients_are_those_of_the_largest_error():
  task = own(name="off", better={"off": "lower"}, shares=(),
             values=lambda sums: {"off": sums["near"] / sums["rows"]})
  each = {"near": np.array([1.0, 6, 0]), "rows": np.array([1.0, 2, 0]),
          "loss": np.zeros(3)}
  found = tasks.summarise(task, tasks.over_clients(task, each))
  assert found["client_off"] == 2 and found["worst_decile_off"] == 3
  assert found["off"] == pytest.approx(7 / 3)


def test_what_is_known_of_a_run_is_read_again():
  metrics = own().metrics
  assert tasks.metrics_of(metrics.facts()) == metrics


@pytest.mark.parametrize("more, message", [
    (dict(better={"near": "more"}), "better=near: 'more', must be 'higher' or"),
    (dict(shares=("far",)), "shares=far: not in better .one of near, loss"),
    (dict(better={"mse": "higher"}, shares=()), "better=mse: has another")])
def test_what_does_not_fit_is_refused(more, message):
  with pytest.raises(OptionError, match=message):
    own(**more)


def test_tasks_have_names(tmp_path):
  assert list(tasks.NAMES) == [
      "classification", "multi_label", "regression", "dense", "tokens"]
  assert tasks.named("tokens") is tasks.TOKENS and tasks.named(None) is None
  ignoring = tasks.named("dense:255")
  assert ignoring.size(np.array([[1, 255]])) == 2
  file = tmp_path / "mine.py"
  file.write_text("from fedjax_alg.tasks import REGRESSION as own\nno = 3\n")
  assert tasks.named(f"{file}:own") is tasks.NAMES["regression"]
  for text, said in (
      ("regresion", "unknown, did you mean 'regression'"), (3, "an int, must"),
      ("dense:x", "must be dense:LABEL"), (f"{file}:no", "is an int, must be"),
      (str(file), "a file needs the name in it")):
    with pytest.raises(OptionError, match=said):
      tasks.named(text)
