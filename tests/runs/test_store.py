"""Runs in folders go on, to the bits of runs that nobody interrupted.

A run that is not the one in the folder, or not whole, is refused by the name of what
differs. Both doors are here: Python and the command line.
"""

import dataclasses
import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys

from flax import linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import run as command
from experiments import sweep as sweep_command
from experiments.cli import config as config_lib
from experiments.cli import sweeps
from experiments.cli.writer import added_files
import fedjax_alg as fa
from fedjax_alg import files
from fedjax_alg.algorithms import fedavg as fedavg_lib
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.engine import checkpoint
from fedjax_alg.records import folder as run_files
from fedjax_alg.runs import result as result_lib
from fedjax_alg.runs import store
from fedjax_alg.runs.plan import Plan, from_keywords
from fedjax_alg.runs.pooled import PooledResult
from tests.runs import conftest as small

OPTIONS = dict(
  rounds=6, cohort_size=3, eval_every=2, evaluate=("global",), client_lr=0.3, seeds=2
)
#: The same run on the command line.
WORDS = (
  "--algorithm=scaffold",
  "--dataset=digits",
  "--partition=iid",
  "--num_clients=8",
  "--cohort_size=3",
  "--eval_every=2",
  "--eval_protocols=global",
  "--client_lr=0.3",
  "--num_seeds=2",
  "--noprogress",
)
#: Tables whose bytes do not depend on the clock.
TABLES = ("metrics.csv", "rounds.csv")


class Interrupted(Exception):
  pass


def interrupt_at(number):
  """A callback that raises at an evaluation, before it is saved."""

  def interrupt(step):
    if step.round == number:
      raise Interrupted(f"at {number}")

  return interrupt


def refuse_to_run(step):
  pytest.fail(f"round {step.round} was run")


@pytest.fixture(name="clients", scope="module")
def fixture_clients():
  return fa.federate("digits", num_clients=8, partition="iid")


@pytest.fixture(name="play", scope="module")
def fixture_play(clients):
  """SCAFFOLD with ``OPTIONS``, of which some may be changed."""

  def play(**changes):
    options = OPTIONS | {"algorithm": "scaffold", "federation": clients} | changes
    return fa.run(options.pop("algorithm"), options.pop("federation"), **options)

  return play


@pytest.fixture(name="reference", scope="module")
def fixture_reference(play, tmp_path_factory):
  """A run that nobody interrupted, and its folder."""
  folder = tmp_path_factory.mktemp("reference") / "run"
  return play(out_dir=folder), folder


@pytest.fixture(name="stopped", scope="module")
def fixture_stopped(play, tmp_path_factory):
  """The folder of a run that ended after round 4 of 6, saved in round 2."""
  folder = tmp_path_factory.mktemp("stopped") / "run"
  with pytest.raises(Interrupted):
    play(out_dir=folder, callbacks=interrupt_at(4))
  return folder


@pytest.fixture(name="nothing_prepared")
def fixture_nothing_prepared(monkeypatch):
  """Whoever gets as far as to the data has checked too little."""
  monkeypatch.setattr(Plan, "prepare", None)


@pytest.fixture(name="finished")
def fixture_finished(reference, tmp_path):
  """A copy of the whole run, which a test may change."""
  shutil.copytree(reference[1], tmp_path / "finished")
  return tmp_path / "finished"


@pytest.fixture(name="interrupted")
def fixture_interrupted(stopped, tmp_path):
  """A copy of the interrupted run."""
  shutil.copytree(stopped, tmp_path / "interrupted")
  return tmp_path / "interrupted"


def content(folder):
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file()
  }


def final_state(folder):
  return files.read_json(folder / "summary.json")["hashes"]["final_state"]


def assert_same(folder, reference):
  """A folder has the bits of a run that nobody interrupted."""
  result, its_folder = reference
  assert final_state(folder) == result.state_hash()
  for name in TABLES:
    assert (folder / name).read_bytes() == (its_folder / name).read_bytes()
  loaded = fa.load_run(folder)
  np.testing.assert_array_equal(loaded.rounds, result.rounds)
  np.testing.assert_array_equal(
    loaded.global_params()["params"]["kernel"],
    result.global_params()["params"]["kernel"],
  )


def edit(path, **changes):
  """Changes entries of config.json or summary.json, with its hash."""
  path.write_text(json.dumps(run_files.seal(files.read_json(path) | changes)), "utf-8")


# To go on


def test_an_interrupted_run_goes_on_with_its_bits(play, reference, interrupted):
  """And all that is read of it is of the whole run."""
  assert run_files.read_end(interrupted) == "at 4"
  steps = []
  result = play(out_dir=interrupted, callbacks=steps.append)
  # Round 4 was not saved when the callback failed.
  assert [step.round for step in steps] == [4, 6]
  assert result.state_hash() == reference[0].state_hash()
  for name, values in reference[0].metrics["global"].items():
    np.testing.assert_array_equal(result.metrics["global"][name], values)
  assert result.history["train_loss"].shape == (2, 6)
  assert run_files.read_end(interrupted) == ""
  assert_same(interrupted, reference)


def test_a_finished_run_is_read_and_not_run(play, reference, finished):
  before = content(finished)
  result = play(out_dir=finished, callbacks=refuse_to_run)
  assert result.state_hash() == reference[0].state_hash()
  np.testing.assert_array_equal(result.rounds, reference[0].rounds)
  assert content(finished) == before


def test_a_finished_run_grows(play, finished, tmp_path):
  longer = play(rounds=8, out_dir=tmp_path / "longer")
  steps = []
  grown = play(rounds=8, out_dir=finished, callbacks=steps.append)
  assert [step.round for step in steps] == [8]
  np.testing.assert_array_equal(grown.rounds, [2, 4, 6, 8])
  assert_same(finished, (longer, tmp_path / "longer"))


def test_a_run_that_grows_past_its_schedule_is_that_of_one_go(play, tmp_path):
  """It kept the evaluation of its former last round, which counted for the results.

  Round 5 is evaluated in the run of 5 rounds for being the last.
  """
  folder = tmp_path / "run"
  longer = play(rounds=8, out_dir=tmp_path / "longer")
  play(rounds=5, out_dir=folder)
  with pytest.raises(Interrupted):
    play(rounds=8, out_dir=folder, callbacks=interrupt_at(6))  # nothing is saved
  shorter = play(rounds=5, out_dir=folder)  # the evaluation is made again
  np.testing.assert_array_equal(shorter.rounds, [2, 4, 5])
  assert_same(folder, (play(rounds=5, out_dir=tmp_path / "short"), tmp_path / "short"))
  grown = play(rounds=8, out_dir=folder)
  np.testing.assert_array_equal(grown.rounds, [2, 4, 6, 8])
  assert_same(folder, (longer, tmp_path / "longer"))
  names = ("final", "best", "mean_last_10", "rounds_to", "stopped")
  first, second = (
    files.read_json(of / "summary.json") for of in (folder, tmp_path / "longer")
  )
  assert [first[name] for name in names] == [second[name] for name in names]


@pytest.mark.filterwarnings("ignore:stop_at=global")  # reads test data
def test_a_rule_counts_the_evaluations_of_one_go(play, tmp_path):
  """A run that patience had ended in its last round, off the schedule, was finished.

  With more rounds that evaluation is none.
  """
  options = dict(stop_at="global:accuracy:0.01", eval_every=4)
  folder = tmp_path / "run"
  assert play(rounds=3, out_dir=folder, **options).stopped.startswith("stop_at")
  grown = play(rounds=8, out_dir=folder, **options)
  np.testing.assert_array_equal(grown.rounds, [4])
  assert grown.stopped.startswith("stop_at")
  play(rounds=8, out_dir=folder, callbacks=refuse_to_run, **options)


def test_what_does_not_decide_the_numbers_may_change(play, reference, interrupted):
  result = play(out_dir=interrupted, targets=(0.2, 0.3))
  assert result.state_hash() == reference[0].state_hash()
  assert result.summary()["rounds_to"].keys() == {"0.20", "0.30"}


def test_a_run_that_was_saved_goes_on(play, reference, tmp_path):
  """``save`` writes what a run with a folder writes."""
  folder = play(rounds=4).save(tmp_path / "run")
  steps = []
  assert play(out_dir=folder, callbacks=steps.append).rounds.tolist() == [2, 4, 6]
  assert [step.round for step in steps] == [6]
  assert_same(folder, reference)
  copy = fa.load_run(folder).save(tmp_path / "copy")
  play(out_dir=copy, callbacks=refuse_to_run)


def test_a_run_that_was_killed_before_it_was_saved_starts_again(
  play, reference, tmp_path
):
  folder = tmp_path / "run"
  with pytest.raises(Interrupted):
    play(out_dir=folder, callbacks=interrupt_at(2))
  with pytest.warns(UserWarning, match="starts again at round 0"):
    play(out_dir=folder)
  assert_same(folder, reference)


def test_the_checkpoint_before_a_damaged_one_is_used(play, reference, finished):
  """The newest that is whole; without one the run is refused."""
  (finished / "summary.json").unlink()
  newest, older = checkpoint.checkpoint_paths(finished / "checkpoint")
  newest.write_bytes(newest.read_bytes()[:-9])
  steps = []
  with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
    play(out_dir=finished, callbacks=steps.append)
  assert [step.round for step in steps] == [6]
  assert_same(finished, reference)
  (finished / "summary.json").unlink()
  for path in (newest, older):
    path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(fa.RunFolderError, match="checkpoint"):
    play(out_dir=finished)


def test_a_callback_ends_a_run_with_its_result(play, reference, tmp_path):
  """Which is read from its folder, until more rounds are asked for than before."""

  def stop(step):
    return fa.STOP if step.round == 4 else None

  results = [
    play(callbacks=stop, out_dir=folder) for folder in (None, tmp_path / "run")
  ]
  results.append(play(out_dir=tmp_path / "run", callbacks=refuse_to_run))
  for result in results:
    np.testing.assert_array_equal(result.rounds, [2, 4])
    np.testing.assert_array_equal(
      result.metrics["global"]["accuracy"],
      reference[0].metrics["global"]["accuracy"][:, :2],
    )
    assert result.summary()["stopped"] == "callback"
  steps = []
  longer = play(rounds=8, out_dir=tmp_path / "run", callbacks=steps.append)
  assert [step.round for step in steps] == [6, 8]
  assert longer.state_hash() == play(rounds=8).state_hash()
  summary = files.read_json(tmp_path / "run" / "summary.json")
  assert (summary["stopped"], summary["cost"]["rounds"]) == ("rounds", 8)


def test_why_a_run_diverged_is_in_its_folder(play, tmp_path):
  with pytest.raises(fa.NonFiniteError) as error:
    play(client_lr=1e30, out_dir=tmp_path)
  assert run_files.read_end(tmp_path) == f"diverged, {error.value}"
  assert not (tmp_path / "summary.json").exists()


def test_every_partition_has_a_folder(tmp_path):
  clients = fa.federate("digits", num_clients=8, partition="iid", partitions=2)
  options = dict(OPTIONS, seeds=1, rounds=2)
  reference = fa.run("scaffold", clients, **options)
  steps = []

  def stop_in_the_second(step):
    steps.append(step)
    if len(steps) == 2:
      raise Interrupted

  with pytest.raises(Interrupted):
    fa.run(
      "scaffold", clients, out_dir=tmp_path, callbacks=stop_in_the_second, **options
    )
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    "partition_0",
    "partition_1",
  ]
  steps.clear()
  with pytest.warns(UserWarning, match="partition_1: starts again"):
    second = fa.run(
      "scaffold", clients, out_dir=tmp_path, callbacks=steps.append, **options
    )
  assert len(steps) == 1  # of the second partition
  assert isinstance(reference, PooledResult) and isinstance(second, PooledResult)
  for result, expected in zip(second.results, reference.results, strict=True):
    assert result.state_hash() == expected.state_hash()


# To refuse


@pytest.mark.parametrize(
  "changes, name, message",
  [
    (dict(client_lr=0.1), "client_lr", "client_lr=0.3, not 0.1"),
    (dict(seeds=3), "seeds", "seeds=[0, 1], not [0, 1, 2]"),
    (dict(seeds=(1, 0)), "seeds", "seeds=[0, 1], not [1, 0]"),
    (dict(cohort_size=4), "cohort_size", "cohort_size=3, not 4"),
    (dict(eval_every=3), "eval_every", "eval_every=2, not 3"),
    (dict(evaluate="local"), "eval_protocols", "['global'], not ['local']"),
    (dict(l2=0.5), "l2", "not 0.5"),
    (dict(compress_up="topk:0.5"), "compress_up", "none, not topk:0.5"),
    (dict(algorithm="fedavg"), "algorithm", "scaffold, not fedavg"),
    (dict(model="mlp"), "model", "softmax, not mlp"),
    (dict(rounds=1), "rounds", "rounds=1: "),
  ],
)
@pytest.mark.parametrize("state", ["stopped", "reference"])
def test_another_run_is_refused(play, request, state, changes, name, message):
  """Before anything is prepared; the folder stays as it is."""
  folder = request.getfixturevalue(state)
  request.getfixturevalue("nothing_prepared")
  folder = folder[1] if state == "reference" else folder
  before = content(folder)
  with pytest.raises(fa.RunFolderError) as error:
    play(out_dir=folder, callbacks=refuse_to_run, **changes)
  # The command line has no flag --seeds, so no backticks make it one.
  named = name if name == "seeds" else f"`{name}`"
  assert f"{named}=" in error.value.text and message in str(error.value)
  assert str(folder) in str(error.value) and "overwrite" in str(error.value)
  assert "\n" not in str(error.value) and "`" not in str(error.value)
  assert content(folder) == before


def test_another_run_replaces_it_if_asked_to(play, finished):
  (finished / "notes.txt").write_text("mine")
  (finished / "groups.csv").write_text("of another algorithm")
  options = dict(client_lr=0.1, rounds=2)
  result = play(out_dir=finished, overwrite=True, **options)
  assert result.state_hash() == play(**options).state_hash() == final_state(finished)
  assert fa.load_run(finished).rounds.tolist() == [2]
  assert (finished / "notes.txt").read_text() == "mine"
  assert not (finished / "groups.csv").exists()


def test_an_error_leaves_the_run_that_would_be_replaced(play, finished):
  before = content(finished)
  with pytest.raises(fa.OptionError, match="num_groups"):
    play(out_dir=finished, overwrite=True, num_groups=2)
  with pytest.raises(fa.OptionError, match="evaluate=assigned"):  # once prepared
    play(out_dir=finished, overwrite=True, evaluate="assigned")
  assert content(finished) == before


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


def test_the_objects_of_a_run_are_part_of_it(play, tmp_path):
  """One table of two experiments: their shapes and options are the same."""

  def go(scale=1.0, **changes):
    objects = dict(model=Net(), sampler=clients_from(0), seeds=1)
    return play(algorithm=fedavg(scale), out_dir=tmp_path / "run", **objects | changes)

  def refuses(name, **changes):
    with pytest.raises(fa.RunFolderError, match=f"run: {name} computes something else"):
      go(callbacks=refuse_to_run, **changes)

  with pytest.raises(Interrupted):
    go(callbacks=interrupt_at(4))
  refuses("model", model="softmax")
  refuses("sampler", sampler=None)
  for _ in ("while it is interrupted", "when it is finished"):
    refuses("model", model=Net(nn.relu))
    refuses("sampler", sampler=clients_from(1))
    refuses("algorithm", scale=2.0)
    result = go()  # all objects are made anew, as in another process
  np.testing.assert_array_equal(result.rounds, [2, 4, 6])


def test_the_arrays_that_a_run_starts_from_are_part_of_it(play, tmp_path):
  start = play(rounds=2).global_params()
  play(init=start, out_dir=tmp_path, rounds=2)
  play(init=start, out_dir=tmp_path, rounds=2, callbacks=refuse_to_run)
  start["params"]["bias"] = start["params"]["bias"] + 1
  with pytest.raises(fa.RunFolderError) as error:
    play(init=start, out_dir=tmp_path, rounds=2)
  assert "`init`: " in error.value.text


@pytest.mark.parametrize(
  "name, text",
  [
    ("partition.json", None),
    ("partition.json", "{"),
    ("partition.json", "{}"),
    ("config.json", "{"),
  ],
)
def test_damaged_files_of_an_unfinished_run_are_named(play, interrupted, name, text):
  path = interrupted / name
  path.unlink() if text is None else path.write_text(text)
  with pytest.raises(fa.RunFolderError, match=rf"interrupted: .*{name}") as error:
    play(out_dir=interrupted)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["metrics", "rounds", "timing"])
@pytest.mark.parametrize("state", ["interrupted", "finished"])
def test_tables_that_were_edited_or_removed_are_refused(play, request, state, name):
  """All kinds of edits are in tests/records/test_tables.py."""
  folder = request.getfixturevalue(state)
  request.getfixturevalue("nothing_prepared")
  path = folder / f"{name}.csv"
  lines = path.read_bytes().splitlines(keepends=True)
  digit = b"1" if not lines[1].startswith(b"1") else b"2"
  path.write_bytes(b"".join([lines[0], digit + lines[1][1:], *lines[2:]]))
  with pytest.raises(fa.RunFolderError, match=f"{name}.csv: edited or cut"):
    play(out_dir=folder)
  path.unlink()
  with pytest.raises(fa.RunFolderError, match=f"{name}.csv: is missing"):
    play(out_dir=folder)


@pytest.mark.parametrize("state", ["interrupted", "finished"])
def test_a_config_that_was_edited_is_refused_until_it_is_restored(
  play, reference, request, state
):
  folder = request.getfixturevalue(state)
  path = folder / "config.json"
  before = path.read_text("utf-8")
  assert '"client_lr": 0.3' in before
  path.write_text(before.replace('"client_lr": 0.3', '"client_lr": 0.1'), "utf-8")
  for rate in (0.1, 0.3):
    with pytest.raises(fa.RunFolderError, match="config.json is not as the run"):
      play(out_dir=folder, client_lr=rate)
  path.write_text(before, "utf-8")
  play(out_dir=folder)
  assert_same(folder, reference)


def test_a_config_of_another_run_does_not_make_the_states_its_own(
  play, interrupted, tmp_path
):
  """Its hash is right, and so are all shapes; the checkpoint knows whose it is."""
  play(client_lr=0.1, rounds=2, out_dir=tmp_path / "other")
  shutil.copy(tmp_path / "other" / "config.json", interrupted)
  with pytest.raises(fa.RunFolderError, match="config.json"):
    play(client_lr=0.1, out_dir=interrupted)


@pytest.mark.parametrize(
  "name", ["final.msgpack", "summary.json", "partition.npz", "partition.json"]
)
@pytest.mark.parametrize("text", [None, b"\x93\x01"])
def test_a_finished_run_is_made_whole_from_its_states(
  play, reference, finished, name, text
):
  """No round is run again."""
  path = finished / name
  path.unlink() if text is None else path.write_bytes(text)
  result = play(out_dir=finished, callbacks=refuse_to_run)
  assert result.state_hash() == reference[0].state_hash()
  assert_same(finished, reference)
  assert (finished / "final.msgpack").read_bytes() == (
    reference[1] / "final.msgpack"
  ).read_bytes()


def test_a_finished_run_needs_no_states_unless_it_goes_on(play, finished):
  shutil.rmtree(finished / "checkpoint")
  play(out_dir=finished, callbacks=refuse_to_run)
  for damage in (
    lambda: play(out_dir=finished, rounds=8),
    lambda: (finished / "final.msgpack").unlink() or play(out_dir=finished),
    lambda: (finished / "summary.json").unlink() or play(out_dir=finished),
  ):
    with pytest.raises(fa.RunFolderError, match="checkpoint: is gone") as error:
      damage()
    assert "`overwrite`" in error.value.text


def test_a_folder_that_another_process_holds_is_refused(play, reference, interrupted):
  """And left as it is; when that process has ended the run goes on."""
  holder = (
    "import sys\n"
    "from fedjax_alg.records import lock\n"
    "import pathlib\n"
    "with lock.hold(pathlib.Path(sys.argv[1])):\n"
    "  print('held', flush=True)\n"
    "  sys.stdin.read()\n"
  )
  with subprocess.Popen(
    [sys.executable, "-c", holder, str(interrupted)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as process:
    assert process.stdout.readline() == b"held\n"
    before = content(interrupted)
    for overwrite in (False, True):
      with pytest.raises(fa.HeldError, match=f"interrupted: .*process {process.pid}"):
        play(out_dir=interrupted, overwrite=overwrite)
    assert content(interrupted) == before
    process.communicate()
  play(out_dir=interrupted)
  assert_same(interrupted, reference)


def test_other_devices_are_refused_unless_they_are_allowed(
  play, reference, interrupted, monkeypatch
):
  """From then on the folder says which rounds were run where."""
  config = interrupted / "config.json"
  machine = files.read_json(config)["machine"]
  edit(config, machine=machine | {"jax": "0.1", "fedjax_alg": "0.2"})
  with pytest.raises(fa.RunFolderError, match=f"jax 0.1, here {machine['jax']}") as err:
    play(out_dir=interrupted)
  assert f"fedjax_alg 0.2, here {machine['fedjax_alg']}" in err.value.text
  assert "`allow_other_devices`" in err.value.text
  play(out_dir=interrupted, allow_other_devices=True)
  assert_same(interrupted, reference)
  for name in ("config.json", "summary.json"):
    facts = files.read_json(interrupted / name)
    assert facts["resumed_on"] == [{"round": 2, **machine}]
  assert files.read_json(config)["machine"]["jax"] == "0.1"
  with (
    monkeypatch.context() as patch
  ):  # a finished run is read anywhere, as by commands
    patch.setattr(result_lib, "machine", lambda _: machine | {"kind": "tpu"})
    play(out_dir=interrupted)
  play(out_dir=interrupted, rounds=8)  # here again
  assert len(files.read_json(config)["resumed_on"]) == 1


def test_windows_of_clients_that_are_computed_at_once_are_another_machine():
  """A window has fewer of them, so the last bits may differ."""

  def machine(**options):
    fed = fa.federate("digits", num_clients=20, **options)
    of_map = {
      mode: result_lib.machine(
        from_keywords(
          "fedavg", fed, cohort_size=5, rounds=1, map_clients=mode
        ).prepare()
      )
      for mode in ("vmap", "sequential")
    }
    return of_map["vmap"], of_map["sequential"]

  (vmap, sequential), (in_windows, same) = machine(), machine(data_on="host")
  assert store._differences(vmap, in_windows) == ["rows"]
  assert store._differences(in_windows, vmap | {"round": 2}) == ["rows"]
  assert sequential == same


def test_where_no_folder_can_be(play, tmp_path):
  (tmp_path / "file").touch()
  for name in ("file", "file/run", "file/run/inside"):
    with pytest.raises(fa.RunFolderError, match=name) as error:
      play(out_dir=tmp_path / name)
    assert "`out_dir`=" in error.value.text


def test_nothing_is_written_through_a_link(play, interrupted, tmp_path):
  shutil.move(interrupted / "checkpoint", tmp_path / "elsewhere")
  (interrupted / "checkpoint").symlink_to(tmp_path / "elsewhere")
  before = content(tmp_path / "elsewhere")
  for overwrite in (False, True):
    with pytest.raises(fa.RunFolderError, match="out_dir=.*checkpoint is a link"):
      play(out_dir=interrupted, overwrite=overwrite)
  assert content(tmp_path / "elsewhere") == before


@pytest.mark.parametrize("state", ["stopped", "reference"])
def test_other_clients_are_refused(play, request, state):
  folder = request.getfixturevalue(state)
  folder = folder[1] if state == "reference" else folder
  others = fa.federate("digits", num_clients=8, partition="iid", partition_seed=1)
  with pytest.raises(fa.RunFolderError, match="partition_seed=0, not 1"):
    play(federation=others, out_dir=folder)


def test_other_rows_are_refused(own_fed, tmp_path):
  """Of arrays no option says which they are."""

  def run(fed, **changes):
    options = dict(OPTIONS, evaluate="local", seeds=1) | changes
    return fa.run("scaffold", fed, out_dir=tmp_path / "run", **options)

  changed = fa.federate(
    fa.from_arrays(**small.make_arrays(seed=1)), partition="natural"
  )
  same = fa.federate(fa.from_arrays(**small.make_arrays()), partition="natural")
  with pytest.raises(Interrupted):
    run(own_fed, callbacks=interrupt_at(4))
  for _ in ("while it is interrupted", "when it is finished"):
    with pytest.raises(fa.RunFolderError, match="data changed"):
      run(changed, callbacks=refuse_to_run)
    result = run(same)
  assert result.state_hash() == final_state(tmp_path / "run")


def test_what_is_no_run_is_left_alone(play, clients, tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  for overwrite in (False, True):
    with pytest.raises(fa.RunFolderError, match="files of something else"):
      play(out_dir=tmp_path, overwrite=overwrite)
  assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
  plan = from_keywords(
    "fedavg", clients, evaluate=(lambda params, x, y, mask: {"n": mask.sum()},)
  )
  with pytest.raises(fa.OptionError, match="^evaluate=.*in no table"):
    store.run_stored([plan], [tmp_path / "new"])
  assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["overwrite", "allow_other_devices"])
def test_what_belongs_to_a_folder_needs_one(play, sweep, name):
  for of_folder in (play, sweep):
    with pytest.raises(fa.OptionError, match=f"^{name}=True: needs out_dir"):
      of_folder(rounds=2, **{name: True})


# Two doors


def play_command(folder, *words):
  return command.main([*WORDS, f"--out_dir={folder}", *words])


@pytest.mark.usefixtures("no_pictures")
def test_the_command_line_goes_on_with_what_python_began(
  play, reference, interrupted, capsys
):
  assert play_command(interrupted, "--rounds=6") == 0
  assert "goes on after round 2" in capsys.readouterr().err
  assert_same(interrupted, reference)
  play(out_dir=interrupted, callbacks=refuse_to_run)  # and reads it
  assert play_command(interrupted, "--rounds=6") == 0
  assert "finished, nothing to do" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_python_goes_on_with_what_the_command_line_began(play, reference, tmp_path):
  folder = tmp_path / "run"
  assert play_command(folder, "--rounds=4") == 0
  steps = []
  play(rounds=4, out_dir=folder, callbacks=refuse_to_run)
  assert {path.name for path in folder.iterdir()} >= {*added_files()}
  play(out_dir=folder, callbacks=steps.append)
  assert [step.round for step in steps] == [6]
  assert_same(folder, reference)
  # They would be those of four rounds.
  assert {path.name for path in folder.iterdir()} & {*added_files()} == {
    "partition.png"
  }


@pytest.mark.usefixtures("no_pictures")
def test_what_python_has_finished_is_no_rounds_for_the_command_line(
  finished, reference, capsys, monkeypatch
):
  """It adds its files: flags and pictures."""
  state = (finished / "checkpoint" / "round_00000006.ckpt").read_bytes()
  monkeypatch.setattr(checkpoint, "save", None)
  assert play_command(finished, "--rounds=6") == 0, capsys.readouterr().err
  assert (finished / "checkpoint" / "round_00000006.ckpt").read_bytes() == state
  for name in (run_files.FLAGS, *run_files.PICTURES):
    assert (finished / name).stat().st_size
  assert_same(finished, reference)


def test_the_command_line_refuses_another_run_by_its_flag(stopped, capsys):
  for words, flag in (
    (("--client_lr=0.1", "--rounds=6"), "--client_lr=0.3, not 0.1"),
    (("--rounds=1",), "--rounds=1"),
    (("--num_seeds=3", "--rounds=6"), "seeds=[0, 1], not [0, 1, 2]"),
  ):
    before = content(stopped)
    assert play_command(stopped, *words) == 2
    line = capsys.readouterr().err
    assert flag in line and "--overwrite" in line and line.count("\n") == 1, line
    assert content(stopped) == before


def write_data(path, scale):
  """Three classes in an npz file, whose examples depend on ``scale``."""
  y = np.arange(120) % 3
  x = np.float32(scale) * np.eye(3, dtype=np.float32)[y]
  np.savez(path, x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])


@pytest.mark.usefixtures("no_pictures")
def test_a_finished_run_is_not_that_of_a_data_file_that_has_changed(tmp_path, capsys):
  """The command said that there was nothing to do, and showed the old numbers.

  Of a sweep it ranked settings on both versions of the file.
  """
  path, folder, root = tmp_path / "data.npz", tmp_path / "run", tmp_path / "sweep"
  words = [*WORDS, f"--dataset=npz:{path}", "--rounds=2"]
  grid = [word for word in words if "client_lr" not in word] + [f"--out_dir={root}"]
  write_data(path, 1.0)
  assert command.main([*words, f"--out_dir={folder}"]) == 0
  assert sweep_command.main([*grid, "--sweep=client_lr=0.1"]) == 0
  write_data(path, 2.0)
  capsys.readouterr()
  before = content(folder)
  for main, call in (
    (command.main, [*words, f"--out_dir={folder}"]),
    (sweep_command.main, [*grid, "--sweep=client_lr=0.1"]),  # all are finished
    (sweep_command.main, [*grid, "--sweep=client_lr=0.1,0.2"]),
  ):
    assert main(call) == 2
    assert "its data changed" in capsys.readouterr().err
  assert content(folder) == before and not (root / "client_lr=0.2").exists()
  assert sweep_command.main([*grid, "--sweep=client_lr=0.2"]) == 0
  capsys.readouterr()
  assert sweep_command.main([*grid, "--sweep=client_lr=0.1,0.2"]) == 2
  assert "its data differs" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_the_command_line_has_no_sampler_of_a_callers_own(play, tmp_path, capsys):
  """All flags are the same: that the run is finished does not make it this one."""
  assert play_command(tmp_path, "--rounds=2") == 0
  play(sampler=clients_from(0), rounds=2).save(tmp_path)
  assert play_command(tmp_path, "--rounds=2") == 2
  assert "sampler computes something else" in capsys.readouterr().err


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


@pytest.mark.usefixtures("no_pictures")
def test_a_callback_that_ends_the_process_leaves_a_run_to_go_on_with(
  play, reference, tmp_path, monkeypatch, capsys
):
  """With another status than 0."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mine.py").write_text(CALLBACK)
  assert play_command("run", "--rounds=6", "--callback=mine.py:fail") == 1
  assert "SystemExit" in capsys.readouterr().err
  play(out_dir="run")
  assert_same(tmp_path / "run", reference)


@pytest.mark.usefixtures("no_pictures")
def test_the_command_line_has_a_callback(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mine.py").write_text(CALLBACK)
  assert play_command("run", "--rounds=6", "--callback=mine.py:stop") == 0
  assert "ended after round 4 of 6 by --callback" in capsys.readouterr().out
  summary = files.read_json(tmp_path / "run" / "summary.json")
  assert summary["cost"]["rounds"] == 4 and summary["stopped"] == "callback"
  assert play_command("run", "--rounds=6") == 0
  assert "finished, nothing to do" in capsys.readouterr().err
  assert play_command("other", "--callback=mine.py:number") == 2
  assert "--callback=mine.py:number: an int, must be" in capsys.readouterr().err


# Sweeps


GRID = {"client_lr": [0.1, 0.3]}


@pytest.fixture(name="sweep", scope="module")
def fixture_sweep(clients):
  """A sweep of SCAFFOLD with ``OPTIONS``, of which some may be changed."""

  def sweep(algorithm="scaffold", grid=None, **changes):
    options = {k: v for k, v in OPTIONS.items() if k != "client_lr"} | changes
    return fa.sweep(algorithm, clients, grid=grid or GRID, **options)

  return sweep


@pytest.fixture(name="rates", scope="module")
def fixture_rates(sweep):
  """The sweep in memory."""
  return sweep()


def assert_same_sweeps(first, second):
  assert first.settings == second.settings
  for a, b in zip(first.results, second.results, strict=True):
    assert a.state_hash() == b.state_hash()
    np.testing.assert_array_equal(
      a.metrics["global"]["accuracy"], b.metrics["global"]["accuracy"]
    )


def test_a_sweep_is_computed_once(sweep, rates, play, tmp_path):
  """A folder for each setting, which is one of ``run``."""
  first = sweep(out_dir=tmp_path)
  assert first.num_programs == 1
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    "client_lr=0.1",
    "client_lr=0.3",
  ]
  assert_same_sweeps(first, rates)
  before = content(tmp_path)
  assert_same_sweeps(sweep(out_dir=tmp_path, callbacks=refuse_to_run), rates)
  single = play(out_dir=tmp_path / "client_lr=0.3", callbacks=refuse_to_run)
  assert single.state_hash() == rates.results[1].state_hash()
  assert content(tmp_path) == before


@pytest.mark.usefixtures("no_pictures")
def test_both_doors_have_the_folders_of_a_sweep(sweep, rates, tmp_path, capsys):
  """What the command line began is computed by Python, and read by both."""
  words = [word for word in WORDS if "client_lr" not in word]
  words += ["--sweep=client_lr=0.1,0.3", f"--out_dir={tmp_path}"]
  assert sweep_command.main([*words, "--rounds=4"]) == 0, capsys.readouterr().err
  steps = []
  assert_same_sweeps(sweep(out_dir=tmp_path, callbacks=steps.append), rates)
  assert [step.round for step in steps] == [6]
  assert sweep_command.main([*words, "--rounds=6"]) == 0, capsys.readouterr().err
  assert_same_sweeps(sweep(out_dir=tmp_path, callbacks=refuse_to_run), rates)


def test_settings_that_differ_by_a_slash_have_folders_of_their_own(
  clients, tmp_path, monkeypatch
):
  """With `overwrite` both had the number of the second, as they shared a folder."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a").mkdir()
  paths = ["a/b.npz", "a_b.npz"]
  run = functools.partial(fa.run, "fedavg", clients, rounds=1)
  starts = [run(client_lr=rate) for rate in (0.1, 1.0)]
  for path, start in zip(paths, starts):
    start.export(path, format="npz")
  rates = fa.sweep(
    "fedavg", clients, grid={"init": paths}, rounds=1, out_dir="out", overwrite=True
  )
  names = [
    config.out_dir
    for config in sweeps.configs(
      [{"algorithm": "fedavg"}], {"init_from": paths}, pathlib.Path("out")
    )
  ]
  for path, name, result in zip(paths, names, rates.results):
    folder = pathlib.Path(name.replace("init_from", "init"))
    assert fa.load_run(folder).state_hash() == result.state_hash()
    assert result.state_hash() == run(init=path).state_hash()


def test_another_text_has_another_folder():
  texts = ["a/b", "a_b", "a%2Fb", "a%252Fb", "a%/b", "a%%2Fb", "a%25/b", "a%b"]
  names = [store.folder_name(text) for text in texts]
  assert len({*names}) == len(texts) and not any("/" in name for name in names)
  for text in ("a_b", "a%b", "lr=0.1,mu=0"):  # as those of older sweeps
    assert store.folder_name(text) == text


def test_settings_that_print_alike_do_not_share_a_folder(sweep, tmp_path):
  def scaled(number):
    class Scaled(nn.Module):
      @nn.compact
      def __call__(self, x):
        return number * nn.Dense(10)(x)

    return Scaled()

  with pytest.raises(fa.OptionError, match="^grid: 2 settings would share"):
    sweep(grid={"model": [scaled(1.0), scaled(2.0)]}, out_dir=tmp_path)


def test_an_interrupted_sweep_goes_on(sweep, rates, tmp_path):
  with pytest.raises(Interrupted):
    sweep(out_dir=tmp_path, callbacks=interrupt_at(4))
  steps = []
  assert_same_sweeps(sweep(out_dir=tmp_path, callbacks=steps.append), rates)
  assert [step.round for step in steps] == [4, 6]


def test_a_sweep_that_grows_is_that_of_one_go(sweep, rates, tmp_path):
  """Without the evaluations of its former last round."""
  sweep(rounds=5, out_dir=tmp_path)
  with pytest.raises(Interrupted):
    sweep(out_dir=tmp_path, callbacks=interrupt_at(6))
  steps = []
  assert_same_sweeps(sweep(out_dir=tmp_path, callbacks=steps.append), rates)
  assert [step.round for step in steps] == [6]


def test_settings_go_on_from_rounds_of_their_own(sweep, rates, play, tmp_path):
  """One is finished, one interrupted; a third has not been begun."""
  play(out_dir=tmp_path / "client_lr=0.3")
  play(out_dir=tmp_path / "client_lr=0.1", client_lr=0.1, rounds=4)
  steps = []
  grid = {"client_lr": [0.1, 0.2, 0.3]}
  result = sweep(grid=grid, out_dir=tmp_path, callbacks=steps.append)
  assert sorted(step.round for step in steps) == [2, 4, 6, 6]
  for number, of_rates in ((0, 0), (2, 1)):
    assert result.results[number].state_hash() == rates.results[of_rates].state_hash()
  assert result.results[1].state_hash() == play(client_lr=0.2).state_hash()


def test_a_setting_with_a_damaged_checkpoint_goes_on_from_the_one_before(
  sweep, rates, tmp_path
):
  """Alone: the others go on from theirs."""
  with pytest.raises(Interrupted):
    sweep(out_dir=tmp_path, callbacks=interrupt_at(6))
  newest = max((tmp_path / "client_lr=0.3" / "checkpoint").iterdir())
  newest.write_bytes(b"x")
  steps = []
  with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
    result = sweep(out_dir=tmp_path, callbacks=steps.append)
  assert_same_sweeps(result, rates)
  assert sorted(step.round for step in steps) == [4, 6, 6]


def test_a_setting_that_diverged_is_not_one_of_the_results(sweep, rates, tmp_path):
  """Its folder says so, and the others are read."""
  grid = {"client_lr": [0.1, 1e30, 0.3]}
  first = sweep(grid=grid, out_dir=tmp_path)
  assert run_files.read_end(tmp_path / "client_lr=1e+30") == "diverged in round 1"
  with pytest.warns(UserWarning, match=re.escape("1e+30: starts again at round 0")):
    second = sweep(grid=grid, out_dir=tmp_path)
  for result in (first, second):
    assert result.results[1] is None
    for number, of_rates in ((0, 0), (2, 1)):
      assert result.results[number].state_hash() == rates.results[of_rates].state_hash()


def test_a_sweep_with_another_option_is_refused(sweep, tmp_path):
  sweep(out_dir=tmp_path, rounds=2)
  with pytest.raises(fa.RunFolderError) as error:
    sweep(out_dir=tmp_path, rounds=2, l2=0.5)
  assert "`l2`=" in error.value.text and "client_lr=0.1" in str(error.value)
  result = sweep(out_dir=tmp_path, rounds=2, l2=0.5, overwrite=True)
  assert_same_sweeps(result, sweep(rounds=2, l2=0.5))


@pytest.mark.parametrize(
  "grid", [[0.1, 0.3, 0.5], [0.05, 0.1, 0.3], [0.3, 0.1], [0.1], [0.3]]
)
def test_a_builder_is_the_same_in_every_grid(sweep, tmp_path, grid):
  """What it computes does not depend on the settings beside it."""
  options = dict(algorithm=fedavg(1.0), rounds=2, seeds=1, out_dir=tmp_path)
  first = sweep(**options)
  second = sweep(**options, grid={"client_lr": grid})
  for rate, result in zip(GRID["client_lr"], first.results, strict=True):
    if rate in grid:
      same = second.results[grid.index(rate)]
      assert same.state_hash() == result.state_hash()


# What a run is


@pytest.fixture(name="plan")
def fixture_plan(clients):
  return from_keywords("scaffold", clients, **OPTIONS)


def test_every_file_of_a_run_has_its_identity(plan, reference):
  result, folder = reference
  facts = plan.facts()
  assert facts["identity"] == plan.identity == result.facts["identity"]
  for name in ("config.json", "summary.json"):
    assert files.read_json(folder / name)["identity"] == plan.identity
  for header in checkpoint.headers(folder / "checkpoint"):
    assert header["identity"] == plan.identity
  saved = files.read_json(folder / "config.json")
  written = json.loads(json.dumps(facts))
  assert {name: saved[name] for name in facts} == written


def test_both_doors_have_one_identity(plan):
  config = config_lib.parse_config([*WORDS, "--rounds=6"])
  assert config.identity == plan.identity
  written = [json.loads(json.dumps(of.facts())) for of in (config, plan)]
  for facts in written:
    for name in ("num_seeds", "seed"):
      facts["run"].pop(name)
  assert written[0] == written[1]


@pytest.mark.parametrize(
  "words, options",
  [
    ((), {}),
    (("--client_lr=1",), dict(client_lr=np.float32(1))),
    (("--participation=0.5",), dict(participation=0.5)),
    (("--model=mlp:12",), dict(model="mlp:12")),
    (("--attack=sign_flip",), dict(attack="sign_flip")),
    (("--seed=3", "--num_seeds=2", "--partition_seed=0"), dict(seeds=range(3, 5))),
    (("--patience=global:accuracy:3",), dict(patience="global:accuracy:3")),
  ],
)
def test_both_doors_have_one_identity_whatever_is_left_out(clients, words, options):
  data = ("--dataset=digits", "--partition=iid", "--num_clients=8")
  config = config_lib.parse_config(["--algorithm=fedavg", *data, *words])
  assert config.identity == from_keywords("fedavg", clients, **options).identity


def change(plan, part, **values):
  return dataclasses.replace(
    plan, **{part: dataclasses.replace(getattr(plan, part), **values)}
  )


def test_what_decides_no_number_is_not_in_the_identity(plan, tmp_path):
  for changed in (
    change(plan, "run", rounds=60),
    change(plan, "run", targets=(0.2,)),
    change(plan, "run", host_devices=3),
    change(plan, "data", data_dir="elsewhere"),
  ):
    assert changed != plan and changed.identity == plan.identity
    assert store.folder_of(tmp_path, changed) == store.folder_of(tmp_path, plan)


def test_what_decides_the_numbers_is_in_the_identity(clients, plan, tmp_path):
  """Each value has another one; the default has that of the one left out."""
  changes = (
    dict(client_lr=0.1),
    dict(l2=0.5),
    dict(cohort_size=4),
    dict(seeds=3),
    dict(seeds=(1, 0)),
    dict(eval_every=3),
    dict(evaluate="local"),
    dict(model="mlp"),
    dict(model="mlp:12"),
    dict(compress_up="topk:0.5"),
    dict(rounding_seed=1),
    dict(init={"w": np.zeros(3)}),
    dict(init={"w": np.ones(3)}),
  )
  plans = [plan, from_keywords("fedavg", clients, **OPTIONS)]
  plans += [
    from_keywords("scaffold", clients, **OPTIONS | options) for options in changes
  ]
  plans += [change(plan, "data", partition_seed=1), change(plan, "data", shift="swap")]
  identities = [of.identity for of in plans]
  assert len({*identities}) == len(plans)
  assert len({store.folder_of(tmp_path, of) for of in plans}) == len(plans)
  left_out = {k: v for k, v in OPTIONS.items() if k != "seeds"}
  default = from_keywords("scaffold", clients, **left_out, seeds=1)
  assert from_keywords("scaffold", clients, **left_out).identity == default.identity


def test_a_file_of_ones_own_is_in_the_identity_by_its_content(clients, tmp_path):
  for name in ("a", "b"):
    (tmp_path / f"{name}.py").write_text(
      "from flax import linen as nn\n"
      "class Net(nn.Module):\n"
      "  @nn.compact\n"
      "  def __call__(self, x):\n"
      "    return nn.Dense(10)(x.reshape(len(x), -1))\n"
    )

  def plan_of(name):
    return from_keywords("fedavg", clients, model=f"{tmp_path / name}.py:Net")

  first = plan_of("a").identity
  assert plan_of("a").identity == first
  (tmp_path / "a.py").write_text((tmp_path / "b.py").read_text() + "\n")
  assert plan_of("a").identity != first
