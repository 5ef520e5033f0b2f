"""Tables in a file of rows, and the checkpoints that share it."""

import contextlib
import os

import jax
import numpy as np
import pytest

from fedjax_alg.engine import checkpoint, row_file
from fedjax_alg.engine.row_file import RowFile, RowForm, RowTable, RowVersion
from fedjax_alg.errors import RunFolderError
from tests import problems

CLIENTS, SEEDS = 7, 2
FORM = RowForm((((SEEDS, 3), np.dtype(np.float32)), ((SEEDS,), np.dtype(bool))))


def new_states(path, value=0.0):
  """States of two seeds: two tables in a file, and a model."""
  first = FORM.join([np.full((1, SEEDS, 3), value), np.zeros((1, SEEDS))])[0]
  rows = RowVersion.new(
    RowFile.new(path, FORM.nbytes, in_memory=True), FORM, first, CLIENTS
  )
  seeds = [(rows, seed) for seed in range(SEEDS)]
  return {"a": RowTable(seeds, 0), "b": RowTable(seeds, 1), "model": np.zeros(2)}


def arrays(states):
  return jax.tree.map(np.array, states)


def change(states, number):
  """The states after a round, in which some clients take part."""
  rng = np.random.default_rng(number)
  ids = np.sort(rng.choice(CLIENTS, 3, replace=False))
  blocks = rng.random((SEEDS, 4, 3), np.float32), rng.random((SEEDS, 4)) < 0.5
  row_file.write_blocks(row_file.tables_of(states), blocks, ids)
  return {**states, "model": states["model"] + number}


def expected(number):
  """The arrays after some rounds."""
  states = new_states(None)
  for done in range(number):
    states = change(states, done)
  return arrays(states)


def run(folder, rounds, every=2):
  """Goes on from the newest checkpoint, to the last round."""
  if checkpoint.checkpoint_paths(folder):
    saved, facts, _ = checkpoint.load_latest(folder, new_states(None))
    states, done = row_file.copy_versions(saved, is_live=True), facts["round"]
  else:
    states, done = new_states(folder / checkpoint.ROWS), 0
  while done < rounds:
    states, done = change(states, done), done + 1
    if done % every == 0:
      checkpoint.save(folder, states, done, {})
  return states


def restored(folder):
  """The arrays and the round of the newest checkpoint that is whole."""
  states, facts, _ = checkpoint.load_latest(folder, new_states(None))
  return arrays(states), facts["round"]


def test_versions_stay_and_take_no_more_slots_than_they_need():
  states, copies = new_states(None), []
  rows = states["a"].versions[0]
  for number in range(40):
    states = change(states, number)
    if number % 3 == 0:
      copies = [*copies, (number + 1, row_file.copy_versions(states))][-2:]
  for number, copy in [*copies, (40, states)]:
    problems.assert_equal(arrays(copy), expected(number))
    assert checkpoint.state_hash(copy) == checkpoint.state_hash(expected(number))
  # Of each version all rows, and those of a version that has just gone.
  assert rows.slots.max() < 4 * CLIENTS


def test_rows_of_seeds_and_clients_are_read():
  states = change(new_states(None), 1)
  expect = arrays(states)
  ids = np.array([4, 0, 6])
  np.testing.assert_array_equal(states["a"].read(ids), expect["a"][:, ids])
  np.testing.assert_array_equal(states["a"][1:], expect["a"][1:])
  np.testing.assert_array_equal(states["a"][0], expect["a"][0])
  np.testing.assert_array_equal(
    row_file.join_seeds([states["b"][1:], states["b"][:1]]), expect["b"][::-1]
  )
  (block,) = row_file.read_blocks([states["a"]], ids, 5)
  np.testing.assert_array_equal(block[:, 3:], np.zeros((SEEDS, 2, 3)))


def test_states_in_another_file_are_copied(tmp_path):
  """As of a run without a folder, of one seed of it, and of a file that is gone."""
  states = change(new_states(None, value=3.0), 1)
  for place, part in enumerate((states, jax.tree.map(lambda leaf: leaf[1:], states))):
    folder = tmp_path / str(place)
    for _ in range(2):
      checkpoint.save(folder, part, 1, {})
      loaded = checkpoint.load_latest(folder, part)[0]
      problems.assert_equal(arrays(loaded), arrays(part))
      checkpoint.clear(folder)
      assert not list(folder.iterdir())
      part = loaded  # its file has no name any more


def test_only_rows_that_have_changed_are_written(tmp_path, monkeypatch):
  states, written, pwrite = new_states(tmp_path / checkpoint.ROWS), [], os.pwrite
  checkpoint.save(tmp_path, states, 0, {})
  monkeypatch.setattr(
    os, "pwrite", lambda *args: written.append(pwrite(*args)) or written[-1]
  )
  states = change(states, 0)
  checkpoint.save(tmp_path, states, 1, {})
  assert sum(written) == 3 * FORM.nbytes
  checkpoint.save(tmp_path, states, 2, {})
  assert sum(written) == 3 * FORM.nbytes


class Killed(BaseException):
  """Nothing catches it."""


@contextlib.contextmanager
def killed_at(number, monkeypatch):
  """Ends the process, so to say, in the middle of a system call."""
  count = iter(range(10**6))

  def kill(name, function):
    def call(*args, **options):
      if next(count) == number:
        if name == "pwrite":
          function(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
        raise Killed(name)
      return function(*args, **options)

    return call

  with monkeypatch.context() as patch:
    for name in ("pwrite", "fsync", "replace", "unlink", "open"):
      patch.setattr(os, name, kill(name, getattr(os, name)))
    yield


@pytest.mark.program
def test_a_kill_at_any_moment_loses_no_checkpoint(tmp_path, monkeypatch):
  """Each system call of a run in turn is the last one."""
  rounds, number = 10, 0
  while True:
    folder = tmp_path / str(number)
    folder.mkdir()
    try:
      with killed_at(number, monkeypatch):
        run(folder, rounds)
      break
    except Killed:
      pass
    if checkpoint.checkpoint_paths(folder):
      state, done = restored(folder)
      problems.assert_equal(state, expected(done))
    problems.assert_equal(arrays(run(folder, rounds)), expected(rounds))
    number += 1
  assert number > 60


@pytest.mark.program
def test_a_second_kill_loses_no_checkpoint_either(tmp_path, monkeypatch):
  """Slots of checkpoints that a run has not written itself are not written to."""
  rng = np.random.default_rng(0)
  for case in range(8):
    folder = tmp_path / str(case)
    folder.mkdir()
    for _ in range(6):
      with contextlib.suppress(Killed), killed_at(rng.integers(1, 50), monkeypatch):
        run(folder, 30)
      if checkpoint.checkpoint_paths(folder):
        state, done = restored(folder)
        problems.assert_equal(state, expected(done))
        for path in checkpoint.checkpoint_paths(folder)[:1]:  # the one before, too
          content = path.read_bytes()
          path.write_bytes(content[:-1])
          with contextlib.suppress(checkpoint.CheckpointError):  # the first one
            state, done = restored(folder)
            problems.assert_equal(state, expected(done))
          path.write_bytes(content)
    problems.assert_equal(arrays(run(folder, 30)), expected(30))


@pytest.mark.parametrize(
  "damaged, every", [(checkpoint.ROWS, 1), ("round_00000004.ckpt", 11)]
)
@pytest.mark.parametrize("is_cut", [True, False])
def test_damage_of_every_byte_is_found(tmp_path, damaged, every, is_cut):
  """What is read is the newest checkpoint that is whole, if there is one."""
  run(tmp_path, 4)
  raw, rounds = (tmp_path / damaged).read_bytes(), set()
  for place in range(0, len(raw), every):
    flipped = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
    (tmp_path / damaged).write_bytes(raw[:place] if is_cut else flipped)
    try:
      state, done = restored(tmp_path)
    except checkpoint.CheckpointError:
      rounds.add(None)
      continue
    rounds.add(done)
    problems.assert_equal(state, expected(done))
  assert 2 in rounds
  assert None in rounds or damaged != checkpoint.ROWS or not is_cut


def test_a_row_that_another_process_has_replaced_is_noticed(tmp_path):
  run(tmp_path, 4)
  loaded, _, _ = checkpoint.load_latest(tmp_path, new_states(None))
  rows = loaded["a"].versions[0]
  with open(tmp_path / checkpoint.ROWS, "r+b") as file:
    file.seek(int(rows.slots.max()) * FORM.nbytes)
    file.write(b"1234")
  client = int(rows.slots.argmax())
  with pytest.raises(RunFolderError, match=checkpoint.ROWS):
    loaded["a"].read(np.array([client]))
  os.truncate(tmp_path / checkpoint.ROWS, 5)
  with pytest.raises(RunFolderError, match="cut short"):
    loaded["a"].read(np.array([client]))


def test_a_run_that_goes_on_leaves_what_others_of_the_process_have(tmp_path):
  first = run(tmp_path, 4)
  loaded = checkpoint.load_latest(tmp_path, first)[0]
  before = arrays(first)
  problems.assert_equal(arrays(run(tmp_path, 20)), expected(20))
  problems.assert_equal(arrays(loaded), before)
  problems.assert_equal(arrays(first), before)


def test_the_file_goes_with_the_last_checkpoint_that_needs_it(tmp_path):
  run(tmp_path, 4)
  in_memory = arrays(checkpoint.load_latest(tmp_path, new_states(None))[0])
  for number, stays in ((6, True), (8, False)):
    checkpoint.save(tmp_path, in_memory, number, {})
    assert (tmp_path / checkpoint.ROWS).exists() == stays
