"""A run's folder: what is saved is read again, and what cannot be is refused."""

import fcntl
import functools
import json
import os
import shutil

import chex
from flax import serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_alg as fa
from fedjax_alg import files, models, registry
from fedjax_alg.algorithms import fedavg as fedavg_lib
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.hparams import fill_defaults
from fedjax_alg.part import write_parts
from fedjax_alg.records import clients as tables_of_clients
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock, summary
from tests.each import each
from tests.runs import conftest as small
from tests.runs import released

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
    chex.assert_trees_all_equal(loaded.global_params(seed), result.global_params(seed))
    chex.assert_trees_all_equal(
      loaded.client_params(17, seed), result.client_params(17, seed)
    )
  assert loaded.state_hash() == result.state_hash()
  for name in ("final", "best", "cost", "hashes", "rounds_to"):
    assert loaded.summary()[name] == result.summary()[name], name


def test_a_folder_of_the_library(by_api, tmp_path):
  result = by_api("ifca")
  folder = result.save(tmp_path / "run")
  loaded = fa.load_run(folder)
  assert_same_run(loaded, result)
  assert loaded.summary()["groups"] == result.summary()["groups"]
  # What was loaded can be saved, with all that it says.
  reloaded = fa.load_run(loaded.save(tmp_path / "again"))
  assert_same_run(reloaded, result)
  assert reloaded.summary() == loaded.summary()
  assert reloaded.facts == loaded.facts


@pytest.mark.parametrize("name", small.SMALL)
def test_a_folder_of_the_command_line(name, by_api, by_command, tmp_path):
  """Bit for bit, methods with a data-dependent start among them."""
  folder, result = by_command(name), by_api(name)
  loaded = fa.load_run(folder)
  assert_same_run(loaded, result)
  hparams, exchange = registry.get(name).parts(**loaded.facts["hparams"])
  options = {**vars(fill_defaults(hparams)), **vars(exchange)}
  assert result.facts["hparams"] == write_parts(options)
  result.save(tmp_path)
  assert (tmp_path / "clients.csv").read_text() == (folder / "clients.csv").read_text()
  if name != "ifca":
    return
  assert (tmp_path / "assignment.csv").read_text() == (
    folder / "assignment.csv"
  ).read_text()
  groups = np.loadtxt(folder / "assignment.csv", int, delimiter=",", skiprows=1)[:, 2]
  np.testing.assert_array_equal(groups.reshape(2, 20), result.membership)
  assert jax.tree.leaves(loaded.global_params(1))[0].shape[0] == 2


def test_a_run_of_very_many_clients(by_api, tmp_path, monkeypatch):
  monkeypatch.setattr(tables_of_clients, "MOST_IN_TEXT", 10)
  monkeypatch.setattr(summary, "MOST_IN_TEXT", 10)
  result = by_api("ifca")
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
  """One with groups by one without: none of its files is taken for the other's."""
  by_api("ifca").save(tmp_path)
  for name in (run_files.FLAGS, *run_files.PICTURES, "end.txt"):
    (tmp_path / name).write_text("of the run before")
  by_api("losac").save(tmp_path)
  loaded = fa.load_run(tmp_path)
  assert loaded.membership is None and loaded.state_hash() == (
    by_api("losac").state_hash()
  )
  names = {path.name for path in tmp_path.iterdir()}
  assert not names & {"groups.csv", run_files.FLAGS, *run_files.PICTURES, "end.txt"}
  assert len(list((tmp_path / "checkpoint").iterdir())) == 1


def test_what_another_process_runs_is_not_replaced(by_api, tmp_path):
  by_api("losac").save(tmp_path)
  before = {path.name for path in tmp_path.rglob("*")} | {lock.NAME}
  with open(tmp_path / lock.NAME, "w", encoding="utf-8") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.raises(fa.HeldError):
      by_api("losac").save(tmp_path)
  assert {path.name for path in tmp_path.rglob("*")} == before


def test_something_else_is_not_replaced(by_api, tmp_path):
  (tmp_path / "thesis.tex").write_text("years")
  with pytest.raises(fa.RunFolderError, match="something else"):
    by_api("losac").save(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_frames_have_the_arrays_of_a_run(fed, tmp_path):
  """Also those of a run that is read from its folder."""
  result = fa.run("fedavg", fed, **NUMBERS | dict(seeds=[7, 3]))
  for run in (result, fa.load_run(result.save(tmp_path / "run"))):
    long = run.to_frame().set_index(["protocol", "metric", "seed"])
    assert set(long.pop("partition")) == {0}
    assert len(long) == sum(v.size for of in run.metrics.values() for v in of.values())
    for protocol, of_protocol in result.metrics.items():
      for metric, values in of_protocol.items():
        for seed, curve in zip(result.seeds, values, strict=True):
          frame = long.loc[(protocol, metric, seed)]
          np.testing.assert_array_equal(frame["round"], result.rounds)
          np.testing.assert_array_equal(frame["value"], curve)
    rounds = run.to_frame("rounds").set_index("seed")
    assert set(rounds) == {"partition", "round", "seconds", *result.history}
    for seed, place in ((7, 0), (3, 1)):
      for name, values in result.history.items():
        np.testing.assert_array_equal(rounds.loc[seed, name], values[place], name)
    clients = run.to_frame("clients").set_index(["protocol", "metric", "seed"])
    assert len(clients) == sum(v.size for v in result.clients["local"].values())
    for metric, values in result.clients["local"].items():
      for seed, of_clients in zip(result.seeds, values, strict=True):
        frame = clients.loc[("local", metric, seed)]
        np.testing.assert_array_equal(frame["client"], result.client_names)
        np.testing.assert_array_equal(frame["value"], of_clients)


def test_a_run_without_values_of_clients_has_an_empty_frame(fed):
  result = fa.run("fedncm", fed, evaluate="global")
  assert not result.clients
  frame = result.to_frame("clients")
  assert frame.empty and list(frame) == [
    *("partition", "seed", "client", "protocol", "metric", "value")
  ]
  with pytest.raises(fa.OptionError, match="table=timing: .*metrics, rounds"):
    result.to_frame("timing")


def test_costs_and_estimates_are_of_the_evaluations(fed):
  options = NUMBERS | dict(rounds=5, eval_every=2, seeds=2)
  result = fa.run("fedavg", fed, **options)
  assert list(result.rounds) == [2, 4, 5]
  totals = result.history["total_bytes_up"]
  per_round = NUMBERS["cohort_size"] * result.history["bytes_up"]
  np.testing.assert_array_equal(totals, per_round.cumsum(1))
  np.testing.assert_array_equal(
    result.costs("total_bytes_up"), totals[:, result.rounds - 1]
  )
  np.testing.assert_array_equal(result.costs("round"), [[2, 4, 5]] * 2)
  seconds = result.to_frame("rounds").pivot(
    index="seed", columns="round", values="seconds"
  )
  np.testing.assert_array_equal(result.costs("seconds"), seconds[[2, 4, 5]])
  assert seconds[1].isna().all()
  last = result.metrics["local"]["loss"][:, -1]  # of the last round, both seeds
  np.testing.assert_allclose(
    result.estimate("loss"), (last.mean(), 12.7062 * abs(last[0] - last[1]) / 2), 1e-4
  )
  with pytest.raises(fa.OptionError, match="column=bytes_up: .*total_bytes_up"):
    result.costs("bytes_up")
  pooled = fa.run("fedavg", fed, **NUMBERS | dict(rounds=1, evaluate="global"))
  with pytest.raises(
    fa.OptionError, match="^protocol=None: .* at the clients .*=local"
  ):
    pooled.estimate("accuracy", client=3)


@pytest.fixture(name="saved", scope="module")
def _save_run(own_fed, tmp_path_factory):
  """A run of arrays."""
  result = fa.run("per_fedavg", own_fed, **(NUMBERS | dict(cohort_size=2)))
  return result, result.save(tmp_path_factory.mktemp("saved") / "run")


def test_arrays_have_to_be_given(saved, own_fed):
  result, folder = saved
  loaded = fa.load_run(folder)
  chex.assert_trees_all_equal(loaded.global_params(), result.global_params())
  with pytest.raises(fa.RunFolderError, match="arrays, .* the federation"):
    loaded.client_params("d")
  other_data = fa.federate(
    fa.from_arrays(**small.make_arrays(seed=1)), partition="natural"
  )
  with pytest.raises(fa.RunFolderError, match="trained on other data"):
    fa.load_run(folder, federation=other_data).client_params("d")
  chex.assert_trees_all_equal(
    fa.load_run(folder, federation=own_fed).client_params("d"),
    result.client_params("d"),
  )


def test_what_a_client_deploys_is_adapted_to_it(saved, own_fed):
  """The last client has no test example."""
  result, _ = saved
  (accuracies,) = result.clients["local"]["accuracy"]
  np.testing.assert_array_equal(np.isnan(accuracies), [False] * 5 + [True])
  (shared,) = result.global_params()["params"]["kernel"]
  for client, accuracy in zip("abcde", accuracies):
    params = result.client_params(client)
    assert not np.allclose(params["params"]["kernel"], shared)
    assert accuracy == pytest.approx(
      small.accuracy(params, *own_fed.client_test(client))
    )


def edit(file, text=None):
  """Writes a text, or another digit."""
  file.write_bytes(text or file.read_bytes().replace(b"0.", b"1.", 1))


def instead(file, make):
  file.unlink()
  make(file)


def change_json(file, **parts):
  """Changes parts of a file of JSON, with its hashes in it and in summary.json."""
  facts = run_files.seal(files.read_json(file) | parts)
  file.write_text(json.dumps(facts), "utf-8")
  if file.name == "config.json":
    change_json(file.with_name("summary.json"), config=facts["sha256"])


def rewritten(folder, **parts):
  """Changes parts of final.msgpack, with its hash in summary.json."""
  file, about = folder / "final.msgpack", folder / "summary.json"
  final = serialization.msgpack_restore(file.read_bytes())
  file.write_bytes(serialization.msgpack_serialize(final | parts))
  change_json(
    about, files=files.read_json(about)["files"] | {file.name: files.sha256(file)}
  )


@each(
  "pattern, damages",
  [
    ("holds no finished run", [shutil.rmtree]),
    (r"no finished run \(no summary", [lambda f: f / "summary.json"]),
    (
      "config.json: damaged",
      [
        lambda f: edit(f / "config.json", b"{"),
        lambda f: edit(f / "config.json", b"[]"),
        lambda f: instead(f / "config.json", os.mkfifo),
      ],
    ),  # never ends
    ("summary.json: damaged", [lambda f: edit(f / "summary.json", b"[" * 100_000)]),
    ("final.msgpack is missing", [lambda f: f / "final.msgpack"]),
    (
      "run: final.msgpack is not as the run wrote it",
      [lambda f: edit(f / "final.msgpack", b"\x93\x01")],
    ),
    ("rounds.csv is not as", [lambda f: edit(f / "rounds.csv", b"\n")]),
    (
      "run: config.json is not as the run wrote it",
      [lambda f: edit(f / "config.json")],
    ),
    (
      "run: summary.json is not as the run wrote it",
      [lambda f: edit(f / "summary.json")],
    ),
    ("clients.csv is not as the", [lambda f: edit(f / "clients.csv")]),
    ("metrics.csv is missing", [lambda f: f / "metrics.csv"]),
    ("metrics.csv: no regular", [lambda f: instead(f / "metrics.csv", os.mkfifo)]),
    (
      "final.msgpack: no regular",
      [
        lambda f: instead(
          f / "final.msgpack", lambda file: file.symlink_to("/dev/zero")
        )
      ],
    ),
    ("clients.csv is missing", [lambda f: f / "clients.csv"]),
    ("partition.json is missing", [lambda f: f / "partition.json"]),
    ("partition.npz is not as", [lambda f: edit(f / "partition.npz", b"PK")]),
    ("encoding.json is not of this run", [lambda f: edit(f / "encoding.json", b"{}")]),
    (
      "config.json: damaged|config.json is not as",
      [
        lambda f: edit(f / "config.json", b"{}"),
        lambda f: edit(f / "config.json", b'{"seeds": [0], "plan": 1}'),
      ],
    ),
    (
      "run: damaged",
      [
        lambda f: change_json(f / "config.json", seeds="01"),
        lambda f: change_json(f / "config.json", seeds=[]),
        lambda f: change_json(f / "config.json", run=3),
        lambda f: change_json(f / "summary.json", hashes=3),
        lambda f: change_json(f / "summary.json", hashes={}),
        lambda f: change_json(f / "summary.json", files=[]),
        lambda f: rewritten(f, clients=3),
        lambda f: rewritten(f, clients={"local": {"accuracy": "x"}}),
        lambda f: rewritten(f, clients={"local": {"accuracy": np.zeros(1)}}),
        lambda f: rewritten(f, global_params=3),
        lambda f: rewritten(f, global_params={"w": np.zeros((3, 2))}),
        lambda f: rewritten(f, membership="x"),
      ],
    ),
  ],
)
def test_a_damaged_folder_is_refused(saved, tmp_path, pattern, damages):
  """A damage gives the file that is removed, or does it itself."""
  for damage in damages:
    folder = tmp_path / "run"
    shutil.copytree(saved[1], folder, dirs_exist_ok=True)
    removed = damage(folder)
    if removed:
      removed.unlink()
    with pytest.raises(fa.RunFolderError, match=pattern) as error:
      fa.load_run(folder)
    assert "\n" not in str(error.value)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_entries_may_be_in_any_order_but_not_without_their_hash(saved, tmp_path, name):
  folder = tmp_path / "run"
  shutil.copytree(saved[1], folder)
  facts = files.read_json(folder / name)
  (folder / name).write_text(json.dumps(dict(sorted(facts.items()))), "utf-8")
  loaded = fa.load_run(folder)
  assert "sha256" not in loaded.facts | loaded.summary()
  del facts["sha256"]
  (folder / name).write_text(json.dumps(facts), "utf-8")
  with pytest.raises(fa.RunFolderError, match=f"{name} is not as the run wrote it"):
    fa.load_run(folder)


def test_states_that_are_gone_are_missed_when_they_are_needed(saved, own_fed, tmp_path):
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


def test_parts_of_another_run_are_not_believed(saved, own_fed, tmp_path):
  """Each is whole, and a checkpoint is of the same shapes: only hashes tell."""
  folder, source = tmp_path / "run", tmp_path / "source"
  shutil.copytree(saved[1], folder)
  fa.run("per_fedavg", own_fed, **NUMBERS | dict(cohort_size=2, seeds=[5])).save(source)
  for name, copy in (("config.json", shutil.copy), ("checkpoint", shutil.copytree)):
    shutil.move(folder / name, tmp_path / name)
    copy(source / name, folder / name)
    with pytest.raises(fa.RunFolderError, match=name) as error:
      fa.load_run(folder, federation=own_fed).client_params("a")
    assert "restore it" in str(error.value)
    files.discard(folder / name)
    shutil.move(tmp_path / name, folder / name)
  fa.load_run(folder, federation=own_fed).client_params("a")


def test_what_is_loaded_goes_through_the_checks_of_a_run(fed, tmp_path):
  """A round of few expected participants may be loaded."""
  options = dict(rounds=1, evaluate="global", participation=0.01)
  result = fa.run("fedavg", fed, sampling="poisson", **options)
  folder = result.save(tmp_path / "run")
  chex.assert_trees_all_equal(
    fa.load_run(folder).client_params(3), result.client_params(3)
  )


def test_a_config_that_is_of_something_else(saved, own_fed, tmp_path):
  folder = tmp_path / "run"
  shutil.copytree(saved[1], folder)
  before = files.read_json(folder / "config.json")
  gone = "cannot be prepared again, its config.json is damaged or of another"
  for part, why in (
    (dict(run={"nosuch": 1}), gone),
    (dict(run={"rounds": []}), "rounds="),
    (dict(hparams={"nosuch": 1}), gone),
    (dict(hparams={"client_lr": -1.0}), "client_lr=-1.0: must be more than 0"),
  ):
    change_json(folder / "config.json", **before | part)
    loaded = fa.load_run(folder, federation=own_fed)
    with pytest.raises(fa.RunFolderError, match=f"run: {why}") as error:
      loaded.client_params(0)
    assert "\n" not in str(error.value)


def test_clients_hold_what_they_held_last(tmp_path):
  """Data that change while clients train: a loaded run adapts to the last."""
  fed = fa.federate(
    "digits",
    partition="classes",
    num_clients=20,
    shift="swap_all:1,1",
  )
  result = fa.run("per_fedavg", fed, **NUMBERS)
  loaded = fa.load_run(result.save(tmp_path))
  for client in (3, 17):
    chex.assert_trees_all_equal(
      loaded.client_params(client), result.client_params(client)
    )
  # All clients have other data than at the start, so this can fail.
  histogram = result._live.prepared.device_data.label_histogram
  assert not np.array_equal(histogram, fed.label_histogram)


def init(key):
  return [jax.random.normal(key, (5, 3)), jnp.zeros(3)]


def apply(params, x):
  return x @ params[0] + params[1][None]


def fedavg(model, hparams, *, map_clients):
  """An algorithm of one's own with the name of one in the registry."""
  return fedavg_lib.fedavg(model, hparams, map_clients=map_clients)


def test_an_algorithm_and_a_model_of_ones_own_have_to_be_given(own_fed, tmp_path):
  """Parameters keep their structure where the model is given."""
  mine = registry.Entry(FedAvgHParams, fedavg, "fedavg", "")
  model = models.from_functions(init, apply)
  result = fa.run(
    mine, own_fed, model=model, local_steps=2, **(NUMBERS | dict(cohort_size=2))
  )
  assert isinstance(result.global_params(), list)
  folder = result.save(tmp_path / "run")
  loaded = fa.load_run(folder, federation=own_fed, algorithm=mine, model=model)
  chex.assert_trees_all_equal(loaded.global_params(), result.global_params())
  chex.assert_trees_all_equal(loaded.client_params("c"), result.client_params("c"))
  unknown = fa.load_run(folder, federation=own_fed, algorithm=mine)
  np.testing.assert_array_equal(unknown.global_params()["0"], result.global_params()[0])
  with pytest.raises(fa.RunFolderError, match="no name, .* the model"):
    unknown.client_params("c")
  with pytest.raises(fa.RunFolderError, match="your fedavg .* its algorithm"):
    fa.load_run(folder, federation=own_fed, model=model).client_params("c")
  # Of the same shapes, so that nothing else would tell.
  twice = models.from_functions(init, lambda params, x: 2 * apply(params, x))
  loaded = fa.load_run(folder, federation=own_fed, algorithm=mine, model=twice)
  with pytest.raises(fa.RunFolderError, match="run: model computes something else"):
    loaded.client_params("c")
  with pytest.raises(fa.RunFolderError, match="run: model computes something else"):
    fa.load_run(folder, model=twice).predict(own_fed.client_test("a")[0])


def test_a_builder_with_an_optimizer_of_ones_own_is_read_again(fed, tmp_path):
  """``load_run`` takes no hyper-parameters, and a partial has no annotations."""
  mine = functools.partial(fedavg_lib.fedavg, optimizer=optax.sgd(0.1, momentum=0.5))
  result = fa.run(mine, fed, hparams=FedAvgHParams(), **NUMBERS)
  loaded = fa.load_run(result.save(tmp_path / "run"), algorithm=mine)
  chex.assert_trees_all_equal(loaded.client_params(3), result.client_params(3))


def test_a_partition_is_read_from_the_folder_of_the_run(fed, tmp_path):
  """Also with clients held out; data that are gone are named."""
  mine = tmp_path / "first" / "partition.npz"
  mine.parent.mkdir()
  summary.write_partition(mine.parent, fed)
  read = fa.federate("digits", partition=f"file:{mine}", validation_clients=2)
  result = fa.run("fedavg", read, **NUMBERS)
  folder = result.save(tmp_path / "run")
  mine.unlink()
  chex.assert_trees_all_equal(
    fa.load_run(folder).client_params(3), result.client_params(3)
  )
  loaded = fa.load_run(folder)
  (folder / "partition.npz").unlink()
  with pytest.raises(fa.RunFolderError, match="run: partition=file:.*first"):
    loaded.client_params(3)


def test_saving_over_a_run_writes_through_no_link(by_api, tmp_path):
  """And its summary is gone until all files are written."""
  folder = by_api("ifca").save(tmp_path / "run")
  shutil.move(folder / "checkpoint", tmp_path / "other")
  (folder / "checkpoint").symlink_to(tmp_path / "other")
  before = sorted((tmp_path / "other").iterdir())
  with pytest.raises(fa.RunFolderError, match="checkpoint: a link"):
    by_api("ifca").save(folder)
  assert sorted((tmp_path / "other").iterdir()) == before
  (folder / "checkpoint").unlink()
  (folder / "checkpoint").write_text("no folder", "utf-8")
  assert (folder / "summary.json").exists()
  with pytest.raises(fa.RunFolderError, match="cannot be written .*checkpoint"):
    by_api("ifca").save(folder)
  assert not (folder / "summary.json").exists()


@pytest.mark.parametrize(
  "folder",
  sorted(released.FOLDERS.glob("*/*")),
  ids=lambda path: "_".join(path.parts[-2:]),
)
def test_a_finished_run_of_each_release_is_read(folder):
  """Without it, a change of a table or of a name loses runs that users have stored."""
  written = json.loads((folder / "summary.json").read_text("utf-8"))
  assert written["versions"]["fedjax_alg"] == folder.parent.name
  result = fa.load_run(folder)
  assert result.state_hash() == written["hashes"]["final_state"]
  for protocol, of in written["final"].items():
    for metric, number in of.items():
      if metric in result.metrics[protocol]:
        last = result.metrics[protocol][metric][:, -1]
        values = np.array(number["values"], float)  # null is NaN
        np.testing.assert_allclose(last, values, rtol=1e-12)
  first = next(iter(written["final"]))
  table = fa.compare(
    {"A": result, "B": result}, metric="accuracy", protocol=first
  ).to_frame()
  mean = written["final"][first]["accuracy"]["mean"]
  np.testing.assert_allclose(table["final"], mean, rtol=1e-12)
  # Its models predict what they did, on the clients that its options still make.
  fed = fa.federate("digits", **released.DATA)
  assert fed.hashes.items() <= written["hashes"].items()
  for client in fed.client_names:
    x, y = fed.client_test(client)
    for seed, share in enumerate(
      result.clients["local"]["accuracy"][:, fed.position(client)]
    ):
      group = 0
      if result.membership is not None:
        group = int(result.membership[seed, fed.position(client)])
      if group >= 0:  # it had a model by then
        predicted = result.predict(x, model=group, seed=seed)
        assert (predicted == y).mean() == share


def test_there_are_runs_of_every_release():
  """A folder that is lost would leave nothing to read, and no test red."""
  names = {"/".join(path.parts[-2:]) for path in released.FOLDERS.glob("*/*")}
  assert names >= {"0.3.0/fedavg", "0.3.0/ifca"}
