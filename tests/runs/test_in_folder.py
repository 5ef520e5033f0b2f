"""Runs that stop when a callback asks, and go on in a folder, with the same bits."""

import json
import re
import shutil

from flax import linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import run as command
import fedjax_alg as fa
from fedjax_alg.algorithms import fedavg as fedavg_lib
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.runs.in_folder import run_in_folder
from fedjax_alg.runs.plan import from_keywords

OPTIONS = dict(
  rounds=6, cohort_size=3, eval_every=2, evaluate=("global",), client_lr=0.3, seeds=2
)


@pytest.fixture(scope="module")
def clients():
  return fa.federate("digits", num_clients=8, partition="iid")


@pytest.fixture(scope="module")
def whole(clients):
  return fa.run("scaffold", clients, **OPTIONS)


class Interrupted(Exception):
  pass


def interrupt(step):
  if step.round == 4:
    raise Interrupted


@pytest.fixture(scope="module")
def interrupted(clients, tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs") / "run"
  with pytest.raises(Interrupted):
    fa.run("scaffold", clients, out_dir=folder, callbacks=interrupt, **OPTIONS)
  return folder


def test_an_interrupted_run_goes_on_with_its_bits(clients, whole, interrupted):
  rounds = []
  result = fa.run(
    "scaffold",
    clients,
    out_dir=interrupted,
    resume=True,
    callbacks=lambda step: rounds.append(step.round),
    **OPTIONS,
  )
  assert rounds == [4, 6]  # round 4 was not saved when the callback failed
  assert result.state_hash() == whole.state_hash()
  for name, values in whole.metrics["global"].items():
    np.testing.assert_array_equal(result.metrics["global"][name], values)
  assert result.history["train_loss"].shape == (2, 6)
  loaded = fa.load_run(interrupted)
  np.testing.assert_array_equal(loaded.rounds, [2, 4, 6])
  again = fa.run("scaffold", clients, out_dir=interrupted, resume=True, **OPTIONS)
  assert again.state_hash() == whole.state_hash()  # read, not run
  longer = OPTIONS | {"rounds": 8}
  grown = fa.run("scaffold", clients, out_dir=interrupted, resume=True, **longer)
  np.testing.assert_array_equal(grown.rounds, [2, 4, 6, 8])


@pytest.mark.parametrize(
  "changes,message",
  [
    (dict(resume=False), "holds a run (resume=True goes on with it"),
    (dict(client_lr=0.1), "has client_lr=0.3, not 0.1"),
    (dict(seeds=3), r"has seeds=[0, 1], not [0, 1, 2]"),
    (dict(cohort_size=4), "has cohort_size=3, not 4"),
    (dict(rounds=1), "more than rounds=1"),
  ],
)
def test_another_run_is_refused(clients, interrupted, changes, message):
  options = dict(out_dir=interrupted, resume=True) | OPTIONS | changes
  with pytest.raises(fa.RunFolderError) as error:
    fa.run("scaffold", clients, **options)
  assert message in str(error.value)


class Net(nn.Module):
  """A linear model with an activation behind it, of the same shapes for each."""

  act: object = nn.tanh

  @nn.compact
  def __call__(self, x):
    return self.act(nn.Dense(10)(x.reshape(len(x), -1)))


def fedavg(scale):
  """A builder of one's own, of the same shapes for each scale."""

  def build(model, hparams: FedAvgHParams, *, map_clients):
    method = fedavg_lib.fedavg(model, hparams, map_clients=map_clients)

    def run_round(state, cohort, key):
      state, aux = method.round(state, cohort, key)
      return state, aux._replace(
        server={"train_loss": scale * aux.server["train_loss"]}
      )

    return method._replace(round=run_round)

  return build


def clients_from(first):
  return lambda data, cohort_size, key, number: jnp.arange(cohort_size) + first


def test_the_objects_of_a_run_are_part_of_it(clients, tmp_path):
  """One table of two experiments: their shapes and options are the same."""

  def go(scale=1.0, **objects):
    objects = dict(model=Net(), sampler=clients_from(0)) | objects
    return fa.run(
      fedavg(scale),
      clients,
      **objects,
      **OPTIONS | dict(seeds=1, callbacks=interrupt),
      out_dir=tmp_path / "run",
      resume=True,
    )

  def refused(name, **objects):
    with pytest.raises(fa.RunFolderError, match=f"run: {name} computes something else"):
      go(**objects)

  with pytest.raises(Interrupted):
    go()
  for _ in ("while it is interrupted", "when it is finished"):
    refused("model", model=Net(nn.relu))
    refused("sampler", sampler=clients_from(1))
    refused("algorithm", scale=2.0)
    result = fa.run(
      fedavg(1.0),
      clients,
      model=Net(),
      sampler=clients_from(0),
      out_dir=tmp_path / "run",
      resume=True,
      **OPTIONS | dict(seeds=1),
    )
  np.testing.assert_array_equal(result.rounds, [2, 4, 6])


@pytest.mark.parametrize(
  "name, text",
  [("partition.json", None), ("partition.json", "{"), ("config.json", "{")],
)
def test_damaged_files_of_an_unfinished_run_are_named(
  clients, interrupted, tmp_path, name, text
):
  folder = tmp_path / "run"
  shutil.copytree(interrupted, folder)
  (folder / "summary.json").unlink(missing_ok=True)
  (folder / name).unlink() if text is None else (folder / name).write_text(text)
  with pytest.raises(fa.RunFolderError, match=rf"run: .*{name}") as error:
    fa.run("scaffold", clients, out_dir=folder, resume=True, **OPTIONS | {"rounds": 8})
  assert "\n" not in str(error.value)


def test_where_no_folder_can_be(clients, tmp_path):
  (tmp_path / "file").touch()
  for name in ("file", "file/run", "file/run/inside"):
    with pytest.raises(fa.RunFolderError, match=name):
      fa.run("scaffold", clients, out_dir=tmp_path / name, **OPTIONS)


def test_other_data_are_refused(interrupted):
  other = fa.federate("digits", num_clients=8, partition="iid", partition_seed=1)
  with pytest.raises(fa.RunFolderError, match="partition_seed=0, not 1"):
    fa.run("scaffold", other, out_dir=interrupted, resume=True, **OPTIONS)


def test_what_is_no_run_is_left_alone(clients, tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises(fa.RunFolderError, match="files of something else"):
    fa.run("fedavg", clients, out_dir=tmp_path, resume=True, **OPTIONS)
  assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
  with pytest.raises(fa.OptionError, match="resume=True: needs out_dir"):
    fa.run("fedavg", clients, resume=True, **OPTIONS)
  plan = from_keywords(
    "fedavg", clients, evaluate=(lambda params, x, y, mask: {"n": mask.sum()},)
  )
  with pytest.raises(fa.OptionError, match="in no table"):
    run_in_folder(plan, tmp_path / "new")


def test_a_callback_ends_a_run_with_its_result(clients, whole):
  result = fa.run(
    "scaffold",
    clients,
    callbacks=lambda step: fa.STOP if step.round == 4 else None,
    **OPTIONS,
  )
  np.testing.assert_array_equal(result.rounds, [2, 4])
  np.testing.assert_array_equal(
    result.metrics["global"]["accuracy"], whole.metrics["global"]["accuracy"][:, :2]
  )
  assert result.summary()["stopped"] == "callback"


CALLBACK = """
import fedjax_alg as fa

def stop(step):
  if step.round == 4:
    return fa.STOP

def fail(step):
  if step.round == 4:
    raise SystemExit

number = 3
"""

WORDS = [
  "--algorithm=fedavg",
  "--dataset=digits",
  "--num_clients=8",
  "--partition=iid",
  "--rounds=6",
  "--eval_every=2",
  "--eval_protocols=global",
  "--noprogress",
]


def test_each_door_says_which_one_began_a_run_and_how_it_goes_on(
  clients, interrupted, tmp_path, monkeypatch, capsys
):
  assert command.main([*WORDS, f"--out_dir={interrupted}", "--resume"]) == 2
  line = capsys.readouterr().err
  assert "Python began this run" in line and "resume=True" in line
  assert line.count("\n") == 1 and "damaged" not in line

  monkeypatch.chdir(tmp_path)
  (tmp_path / "mine.py").write_text(CALLBACK)
  # A callback that ends the process leaves a run to be gone on with, not status 0.
  assert command.main([*WORDS, "--callback=mine.py:fail", "--out_dir=run"]) == 1
  assert "SystemExit" in capsys.readouterr().err
  with pytest.raises(fa.RunFolderError, match="the command line began") as error:
    fa.run("fedavg", clients, out_dir="run", resume=True, **OPTIONS)
  words = re.findall(r"--\S+", str(error.value))
  (tmp_path / "mine.py").write_text(CALLBACK.replace("raise SystemExit", "pass"))
  assert command.main(words) == 0


def test_the_command_line_has_a_callback(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mine.py").write_text(CALLBACK)
  assert command.main([*WORDS, "--callback=mine.py:stop", "--out_dir=run"]) == 0
  assert "ended after round 4 of 6 by --callback" in capsys.readouterr().out
  summary = json.loads((tmp_path / "run" / "summary.json").read_text())
  assert summary["cost"]["rounds"] == 4 and summary["stopped"] == "callback"
  assert command.main([*WORDS, "--out_dir=run", "--resume"]) == 0
  assert "finished, nothing to do" in capsys.readouterr().err
  assert command.main([*WORDS, "--callback=mine.py:number", "--out_dir=other"]) == 2
  assert "--callback=mine.py:number: an int, must be" in capsys.readouterr().err
