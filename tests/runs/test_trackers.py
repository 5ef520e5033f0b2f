"""Trackers log what the tables have; their packages are stand-ins here."""

import sys
import types

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import trackers


class Tracker(types.ModuleType):
  """A stand-in for wandb and for mlflow, which notes what it is told."""

  def __init__(self, name):
    super().__init__(name)
    self.run, self.notes = None, []

  def init(self, **settings):
    self.run = settings
    self.notes.append("start")

  start_run = init

  def active_run(self):
    return self.run

  def log(self, metrics, step):
    self.notes.append((step, metrics))

  log_metrics = log

  def finish(self):
    self.run = None
    self.notes.append("end")

  end_run = finish


@pytest.mark.parametrize("name,kind", [("wandb", "WandB"), ("mlflow", "MLflow")])
def test_a_tracker_has_the_means_of_the_tables(name, kind, monkeypatch):
  fed = fa.federate("digits", num_clients=8, partition="iid")
  options = dict(rounds=4, eval_every=2, seeds=2, evaluate=("global", "local"))
  tracker = Tracker(name)
  monkeypatch.setitem(sys.modules, name, tracker)
  callback = getattr(trackers, kind)(project="federated")
  result = fa.run("fedavg", fed, callbacks=callback, **options)
  start, *logged, end = tracker.notes
  assert (start, end) == ("start", "end")
  assert [step for step, _ in logged] == [2, 4]
  for i, (_, metrics) in enumerate(logged):
    for protocol in ("global", "local"):
      expected = result.metrics[protocol]["accuracy"][:, i].mean()
      np.testing.assert_allclose(metrics[f"{protocol}/accuracy"], expected)
  tracker.init()  # the caller's own run goes on
  tracker.notes.clear()
  fa.run("fedavg", fed, callbacks=getattr(trackers, name), **options)
  assert [note[0] for note in tracker.notes] == [2, 4] and tracker.run is not None


@pytest.mark.parametrize("name,kind", [("wandb", "WandB"), ("mlflow", "MLflow")])
def test_a_tracker_ends_its_run_however_that_ends(name, kind, monkeypatch):
  """The next experiment was logged into a run that a callback or NaN had ended."""
  fed = fa.federate("digits", num_clients=8, partition="iid")
  options = dict(rounds=4, eval_every=2, evaluate="global")
  tracker = Tracker(name)
  monkeypatch.setitem(sys.modules, name, tracker)
  callback = getattr(trackers, kind)()

  def take_notes():
    notes = [note if isinstance(note, str) else note[0] for note in tracker.notes]
    tracker.notes.clear()
    return notes

  fa.run("fedavg", fed, callbacks=[callback, lambda step: fa.STOP], **options)
  assert take_notes() == ["start", 2, "end"]
  growth = dict(local_steps=1, client_lr=1.0, l2=1e15)  # of the weights in a round
  with pytest.raises(fa.NonFiniteError, match="in round [34]"):
    fa.run("fedavg", fed, callbacks=callback, **growth, **options)
  assert take_notes() == ["start", 2, "end"]
  for step in fa.steps("fedavg", fed, **options):
    callback(step)
  assert take_notes() == ["start", 2, 4, "end"]


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(fa.OptionError, match="the package wandb is missing"):
    trackers.wandb(None)
