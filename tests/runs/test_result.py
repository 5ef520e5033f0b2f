"""A run's folder: what is saved is read again, and what cannot be is refused.
"""

import json
import os
import shutil

import chex
from flax import serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import files, models, registry
from fedjax_alg.algorithms import fedavg as fedavg_lib
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.records import clients as tables_of_clients
from fedjax_alg.records import summary
from tests.runs import conftest as small

pytestmark = pytest.mark.program
NUMBERS = dict(cohort_size=4, rounds=2, eval_every=1, evaluate="local")


def assert_same_run(loaded, result):
  """What is read from a folder against the run in memory."""
  assert loaded.seeds == result.seeds
  np.testing.assert_array_equal(loaded.rounds, result.rounds)
  chex.assert_trees_all_equal(loaded.metrics, result.metrics)  # NaN equals NaN
  chex.assert_trees_all_equal(loaded.clients, result.clients)
  assert (loaded.membership is None) == (result.membership is None)
  if result.membership is not None:
    np.testing.assert_array_equal(loaded.membership, result.membership)
  assert set(loaded.history) == set(result.history)
  for name, values in result.history.items():
    np.testing.assert_array_equal(loaded.history[name], values, err_msg=name)
  for seed in range(len(result.seeds)):
    chex.assert_trees_all_equal(
        loaded.global_params(seed), result.global_params(seed))
    chex.assert_trees_all_equal(
        loaded.client_params(17, seed), result.client_params(17, seed))
  assert loaded.state_hash() == result.state_hash()
  for name in ("final", "best", "cost", "hashes", "rounds_to"):
    assert loaded.summary()[name] == result.summary()[name], name


def test_a_folder_of_the_library(by_api, tmp_path):
  result = by_api("fedgroup")
  folder = result.save(tmp_path / "run")
  loaded = fa.load_run(folder)
  assert_same_run(loaded, result)
  assert loaded.summary()["groups"] == result.summary()["groups"]
  # What was loaded can be saved, with all that it says.
  again = fa.load_run(loaded.save(tmp_path / "again"))
  assert_same_run(again, result)
  assert again.summary() == loaded.summary()
  assert again.facts == loaded.facts


def test_a_run_in_memory_is_compared_with_its_folder(by_api, by_command):
  found = fa.compare({
      "memory": by_api("fedgroup"),
      "folder": fa.load_run(by_command("fedgroup").folder)})
  (pair,) = found.pairs
  assert pair.difference.values == (0.0, 0.0) and not found.unpaired
  memory, folder = found.rows()
  for name in ("final", "best_ci95", "total_floats", "simulated_s"):
    assert memory[name] == folder[name]


def test_a_folder_of_the_command_line(by_api, by_command, tmp_path):
  folder, result = by_command("fedgroup").folder, by_api("fedgroup")
  assert_same_run(fa.load_run(folder), result)
  result.save(tmp_path)
  for name in ("clients.csv", "assignment.csv"):
    assert (tmp_path / name).read_text() == (folder / name).read_text()
  groups = np.loadtxt(folder / "assignment.csv", int, delimiter=",",
                      skiprows=1)[:, 2]
  np.testing.assert_array_equal(groups.reshape(2, 20), result.membership)
  assert jax.tree.leaves(fa.load_run(folder).global_params(1))[0].shape[0] == 2


def test_a_run_of_very_many_clients(by_api, tmp_path, monkeypatch):
  monkeypatch.setattr(tables_of_clients, "MOST_IN_TEXT", 10)
  monkeypatch.setattr(summary, "MOST_IN_TEXT", 10)
  result = by_api("fedgroup")
  loaded = fa.load_run(result.save(tmp_path / "run"))
  chex.assert_trees_all_equal(loaded.clients, result.clients)
  np.testing.assert_array_equal(loaded.membership, result.membership)
  chex.assert_trees_all_equal(loaded.global_params(1), result.global_params(1))
  names = {path.name for path in (tmp_path / "run").iterdir()}
  assert "clients.npz" in names
  assert not names & {"clients.csv", "assignment.csv"}
  facts = json.loads((tmp_path / "run" / "partition.json").read_text())
  assert facts["clients"] == 20 and "train_size" not in facts
  # What a run of fewer clients leaves of it.
  monkeypatch.undo()
  result.save(tmp_path / "run")
  assert not (tmp_path / "run" / "clients.npz").exists()


def test_a_run_in_the_folder_is_replaced(by_api, tmp_path):
  """One with groups by one without: none of its files is taken for the other's.
  """
  by_api("fedgroup").save(tmp_path)
  by_api("losac").save(tmp_path)
  loaded = fa.load_run(tmp_path)
  assert loaded.membership is None and loaded.state_hash() == (
      by_api("losac").state_hash())
  assert not (tmp_path / "groups.csv").exists()
  assert len(list((tmp_path / "checkpoint").iterdir())) == 1


def test_something_else_is_not_replaced(by_api, tmp_path):
  (tmp_path / "thesis.tex").write_text("years")
  with pytest.raises(fa.RunFolderError, match="something else"):
    by_api("losac").save(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.fixture(name="saved", scope="module")
def _saved(own_fed, tmp_path_factory):
  """A run of arrays."""
  result = fa.run("per_fedavg", own_fed, **(NUMBERS | dict(cohort_size=2)))
  return result, result.save(tmp_path_factory.mktemp("saved") / "run")


def test_arrays_have_to_be_given(saved, own_fed):
  result, folder = saved
  loaded = fa.load_run(folder)
  chex.assert_trees_all_equal(loaded.global_params(), result.global_params())
  with pytest.raises(fa.RunFolderError, match="arrays, .* the federation"):
    loaded.client_params(3)
  other = fa.federate(fa.from_arrays(**small.make_arrays(seed=1)),
                      partition="natural")
  with pytest.raises(fa.RunFolderError, match="trained on other data"):
    fa.load_run(folder, federation=other).client_params(3)
  chex.assert_trees_all_equal(
      fa.load_run(folder, federation=own_fed).client_params(3),
      result.client_params(3))


def edited(file):
  file.write_bytes(file.read_bytes().replace(b"0.", b"1.", 1))


def piped(file):
  file.unlink()
  os.mkfifo(file)


def endless(file):
  file.unlink()
  file.symlink_to("/dev/zero")


def read_facts(folder):
  return json.loads((folder / "config.json").read_text("utf-8"))


def summarised(folder, **parts):
  """Changes parts of summary.json."""
  file = folder / "summary.json"
  file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | parts))


def rewritten(folder, **parts):
  """Changes parts of final.msgpack, with its hash in summary.json."""
  file = folder / "final.msgpack"
  final = serialization.msgpack_restore(file.read_bytes())
  file.write_bytes(serialization.msgpack_serialize(final | parts))
  known = json.loads((folder / "summary.json").read_text("utf-8"))["files"]
  summarised(folder, files=known | {file.name: files.sha256(file)})


@pytest.mark.parametrize("damage, said", [
    (shutil.rmtree, "holds no finished run"),
    (lambda f: (f / "summary.json").unlink(), r"no finished run \(no summary"),
    (lambda f: (f / "config.json").write_text("{"), "config.json: damaged"),
    (lambda f: (f / "config.json").write_text("[]"), "config.json: damaged"),
    (lambda f: (f / "config.json").write_text("{}"), "run: damaged"),
    (lambda f: (f / "config.json").write_text("[" * 100_000),
     "config.json: damaged"),
    (lambda f: (f / "config.json").write_text('{"seeds": [0], "plan": 1}'),
     "run: damaged"),
    (lambda f: (f / "final.msgpack").unlink(), "final.msgpack is missing"),
    (lambda f: (f / "final.msgpack").write_bytes(b"\x93\x01"),
     "run: final.msgpack is not as the run wrote it"),
    (lambda f: (f / "metrics.csv").unlink(), "run: damaged"),
    (lambda f: (f / "rounds.csv").write_text(""), "rounds.csv is not as"),
    (lambda f: edited(f / "clients.csv"), "clients.csv is not as the run"),
    (lambda f: edited(f / "metrics.csv"), "metrics.csv is not as the run"),
    # What would wait for ever, or never end.
    (lambda f: piped(f / "metrics.csv"), "run: damaged"),
    (lambda f: piped(f / "config.json"), "config.json: damaged"),
    (lambda f: endless(f / "final.msgpack"), "run: damaged"),
    (lambda f: (f / "config.json").write_text(json.dumps(
        read_facts(f) | {"seeds": "01"})), "run: damaged"),
    (lambda f: (f / "config.json").write_text(json.dumps(
        read_facts(f) | {"seeds": []})), "run: damaged"),
    (lambda f: (f / "config.json").write_text(json.dumps(
        read_facts(f) | {"run": 3})), "run: damaged"),
    (lambda f: summarised(f, hashes=3), "run: damaged"),
    (lambda f: summarised(f, hashes={}), "run: damaged"),
    (lambda f: summarised(f, files=[]), "run: damaged"),
    *((lambda f, part=part: rewritten(f, **part), "run: damaged")
      for part in (
          dict(clients=3), dict(clients={"local": {"accuracy": "x"}}),
          dict(clients={"local": {"accuracy": np.zeros(1)}}),
          dict(global_params=3), dict(global_params={"w": np.zeros((3, 2))}),
          dict(membership="x"))),
])
def test_a_damaged_folder_is_refused(saved, tmp_path, damage, said):
  folder = tmp_path / "run"
  shutil.copytree(saved[1], folder)
  damage(folder)
  with pytest.raises(fa.RunFolderError, match=said) as error:
    fa.load_run(folder)
  assert "\n" not in str(error.value)


def test_states_that_are_gone_are_missed_when_they_are_needed(
    saved, own_fed, tmp_path):
  folder = tmp_path / "run"
  shutil.copytree(saved[1], folder)
  (state,) = (folder / "checkpoint").iterdir()
  state.write_bytes(state.read_bytes()[:-9])
  loaded = fa.load_run(folder, federation=own_fed)
  assert loaded.rounds.tolist() == [1, 2]
  with pytest.raises(fa.RunFolderError, match="damaged"):
    loaded.client_params(0)
  state.unlink()
  with pytest.raises(fa.RunFolderError, match="no checkpoint in"):
    loaded.client_params(0)


def test_a_config_that_is_of_something_else(saved, own_fed, tmp_path):
  folder = tmp_path / "run"
  shutil.copytree(saved[1], folder)
  facts = json.loads((folder / "config.json").read_text("utf-8"))
  for key, value in (("run", {"nosuch": 1}), ("run", {"rounds": []}),
                     ("hparams", {"nosuch": 1})):
    (folder / "config.json").write_text(
        json.dumps(facts | {key: value}), "utf-8")
    loaded = fa.load_run(folder, federation=own_fed)
    with pytest.raises(fa.RunFolderError, match="run: cannot be prepared"):
      loaded.client_params(0)


def test_clients_hold_what_they_held_last(tmp_path):
  """Data that change while clients train: a loaded run adapts to the last."""
  fed = fa.federate("digits", partition="classes", num_clients=20,
                    shift="swap_all", shift_every=1, shift_share=1.0)
  result = fa.run("per_fedavg", fed, **NUMBERS)
  loaded = fa.load_run(result.save(tmp_path))
  for client in (3, 17):
    chex.assert_trees_all_equal(
        loaded.client_params(client), result.client_params(client))
  # All clients have other data than at the start, so this can fail.
  moved = result._live.prepared.placed.label_histogram
  assert not np.array_equal(moved, fed.label_histogram)


def init(key):
  return [jax.random.normal(key, (5, 3)), jnp.zeros(3)]


def apply(params, x):
  return x @ params[0] + params[1][None]


def test_a_model_of_ones_own(own_fed, tmp_path):
  """Its parameters keep their structure where the model is given."""
  model = models.from_functions(init, apply)
  result = fa.run("fedavg", own_fed, model=model, **(
      NUMBERS | dict(cohort_size=2)))
  assert isinstance(result.global_params(), list)
  folder = result.save(tmp_path)
  loaded = fa.load_run(folder, federation=own_fed, model=model)
  chex.assert_trees_all_equal(loaded.global_params(), result.global_params())
  chex.assert_trees_all_equal(loaded.client_params(2), result.client_params(2))
  unknown = fa.load_run(folder, federation=own_fed)
  np.testing.assert_array_equal(
      unknown.global_params()["0"], result.global_params()[0])
  with pytest.raises(fa.RunFolderError, match="no name, .* the model"):
    unknown.client_params(2)


def fedavg(model, hparams, *, map_clients):
  """An algorithm of one's own with the name of one in the registry."""
  return fedavg_lib.fedavg(model, hparams, map_clients=map_clients)


def test_an_algorithm_of_ones_own_has_to_be_given(own_fed, tmp_path):
  mine = registry.Entry(FedAvgHParams, fedavg, "fedavg", "")
  result = fa.run(mine, own_fed, local_steps=2,
                  **(NUMBERS | dict(cohort_size=2)))
  folder = result.save(tmp_path)
  with pytest.raises(fa.RunFolderError, match="your fedavg .* its algorithm"):
    fa.load_run(folder, federation=own_fed).client_params(2)
  loaded = fa.load_run(folder, federation=own_fed, algorithm=mine)
  chex.assert_trees_all_equal(loaded.client_params(2), result.client_params(2))


def test_a_partition_is_read_from_the_folder_of_the_run(fed, tmp_path):
  """Also with clients held out; data that are gone are named."""
  first = fa.run("fedavg", fed, **NUMBERS).save(tmp_path / "first")
  mine = first / "partition.npz"
  read = fa.federate("digits", partition_file=str(mine), validation_clients=2)
  result = fa.run("fedavg", read, **NUMBERS)
  folder = result.save(tmp_path / "run")
  mine.unlink()
  chex.assert_trees_all_equal(
      fa.load_run(folder).client_params(3), result.client_params(3))
  (folder / "partition.npz").unlink()
  with pytest.raises(fa.RunFolderError, match="run: partition_file=.*first"):
    fa.load_run(folder).client_params(3)


def test_saving_over_a_run_writes_through_no_link(by_api, tmp_path):
  """And its summary is gone until all files are written."""
  folder = by_api("fedgroup").save(tmp_path / "run")
  shutil.move(folder / "checkpoint", tmp_path / "other")
  (folder / "checkpoint").symlink_to(tmp_path / "other")
  before = sorted((tmp_path / "other").iterdir())
  with pytest.raises(fa.RunFolderError, match="checkpoint: a link"):
    by_api("fedgroup").save(folder)
  assert sorted((tmp_path / "other").iterdir()) == before
  (folder / "checkpoint").unlink()
  (folder / "checkpoint").write_text("no folder", "utf-8")
  assert (folder / "summary.json").exists()
  with pytest.raises(fa.RunFolderError, match="cannot be written .*checkpoint"):
    by_api("fedgroup").save(folder)
  assert not (folder / "summary.json").exists()


def test_json_of_very_many_brackets(by_api, tmp_path):
  folder = by_api("fedgroup").save(tmp_path / "run")
  (folder / "summary.json").write_text("[" * 100_000, "utf-8")
  with pytest.raises(fa.RunFolderError, match="summary.json: damaged"):
    fa.load_run(folder)
