"""Checkpoints: what is written is read, damage is found."""

import hashlib
import json
from typing import NamedTuple

from flax import serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import files, split
from fedjax_alg.engine import checkpoint, sharding
from tests import problems
from tests.each import each


class State(NamedTuple):
  params: dict
  round: jax.Array


def state_of(number):
  rng = np.random.default_rng(number)
  return State(
    {
      "kernel": jnp.asarray(rng.normal(size=(20, 3)), jnp.float32),
      "bias": jnp.array([np.nan, -0.0, np.inf], jnp.float32),
    },
    jnp.int32(number),
  )


TEMPLATE = jax.eval_shape(lambda: state_of(0))


class Newer(NamedTuple):
  params: dict
  extra: tuple
  round: jax.Array


def test_a_state_comes_back_bit_for_bit(tmp_path):
  header = {"flags": "abc", "best": 0.1}
  path = checkpoint.save(tmp_path / "new", state_of(7), 7, header)
  state, facts, warnings = checkpoint.load_latest(tmp_path / "new", TEMPLATE)
  problems.assert_equal(state, state_of(7))
  assert isinstance(state, State)
  assert checkpoint.state_hash(state) == checkpoint.state_hash(state_of(7))
  assert facts == {**header, "format": checkpoint.FORMAT, "round": 7}
  assert not warnings and path.name == "round_00000007.ckpt"
  # A version whose state has another part, which this run has not.
  newer, _, _ = checkpoint.load_latest(
    tmp_path / "new", Newer(TEMPLATE.params, (), TEMPLATE.round)
  )
  assert isinstance(newer, Newer) and newer.round == 7
  problems.assert_equal(newer.params, state.params)


def test_the_last_two_are_kept_and_nothing_else(tmp_path):
  for number in (8, 9, 10, 100):
    checkpoint.save(tmp_path, state_of(number), number, {})
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    "round_00000010.ckpt",
    "round_00000100.ckpt",
  ]
  assert checkpoint.load_latest(tmp_path, TEMPLATE)[1]["round"] == 100


class TableState(NamedTuple):
  params: dict
  clients: dict  #: [C, ...]


def table_state(number, clients=7):
  """States of two seeds with a table of clients."""
  rng = np.random.default_rng(number)
  return TableState(
    {"w": rng.normal(size=(2, 3)).astype(np.float32)},
    {
      "w": rng.normal(size=(2, clients, 3)).astype(np.float32),
      "met": rng.random((2, clients)) < 0.5,
    },
  )


def in_processes(state, cuts):
  """The states as processes with these clients hold them."""
  return place(
    state._replace(
      clients=jax.tree.map(lambda leaf: split.Split(leaf, cuts), state.clients)
    ),
    cuts,
  )


def place(state, cuts):
  mesh = sharding.process_mesh(jax.devices("cpu")[: len(cuts) - 1], len(cuts) - 1)
  return sharding.place_states(
    state, sharding.of_states(state, mesh, sharding.replicated(mesh))
  )


def restore(folder, cuts):
  """The states that processes with these clients read, and their header."""
  template = table_state(0)
  if cuts:
    template = jax.eval_shape(lambda: in_processes(template, cuts))
  state, facts, warnings = checkpoint.load_latest(folder, template)
  if cuts:
    state = sharding.to_host(place(state, cuts))
  return state, facts, warnings


TWO, THREE = (0, 3, 7), (0, 5, 5, 7)


@pytest.mark.parametrize(
  "before, after", [(TWO, None), (None, TWO), (TWO, THREE), (THREE, TWO), (TWO, TWO)]
)
def test_other_processes_read_what_some_have_kept(tmp_path, before, after):
  state = table_state(3)
  stored = in_processes(state, before) if before else state
  assert checkpoint.state_hash(stored) == checkpoint.state_hash(state)
  checkpoint.save(tmp_path, stored, 3, {"flags": "abc"})
  actual, facts, warnings = restore(tmp_path, after)
  problems.assert_equal(actual, state)
  assert facts["flags"] == "abc" and not warnings
  assert facts["format"] == (checkpoint.IN_PARTS if before else checkpoint.FORMAT)


def test_a_process_writes_its_own_rows(tmp_path):
  for number in (1, 2, 3):
    path = checkpoint.save(tmp_path, in_processes(table_state(number), TWO), number, {})
  assert sorted(entry.name for entry in tmp_path.iterdir()) == [
    f"round_0000000{number}.{end}"
    for number in (2, 3)
    for end in ("ckpt", "rows_0_of_2", "rows_1_of_2")
  ]
  rows = [
    serialization.msgpack_restore(
      path.with_suffix(f".rows_{process}_of_2").read_bytes()
    )
    for process in range(2)
  ]
  for name, leaf in table_state(3).clients.items():
    key = f"['clients']['{name}']"
    np.testing.assert_array_equal(rows[0][key], leaf[:, :3])
    np.testing.assert_array_equal(rows[1][key], leaf[:, 3:])
  # One process goes on alone; the parts go with their checkpoint.
  checkpoint.save(tmp_path, table_state(4), 4, {})
  checkpoint.save(tmp_path, table_state(5), 5, {})
  assert sorted(entry.name for entry in tmp_path.iterdir()) == [
    "round_00000004.ckpt",
    "round_00000005.ckpt",
  ]
  checkpoint.save(tmp_path, in_processes(table_state(6), TWO), 6, {})
  checkpoint.clear(tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("unwritten", ["rows_1_of_2", "ckpt"])
def test_a_crash_between_parts_leaves_the_one_before(tmp_path, monkeypatch, unwritten):
  """What was written of the next one counts for nothing, and is removed."""
  checkpoint.save(tmp_path, in_processes(table_state(1), TWO), 1, {})
  replacing = files.replacing

  def full(path, **options):
    if path.name.endswith(unwritten):
      raise OSError("full")
    return replacing(path, **options)

  monkeypatch.setattr(files, "replacing", full)
  with pytest.raises(OSError, match="full"):
    checkpoint.save(tmp_path, in_processes(table_state(2), TWO), 2, {})
  monkeypatch.undo()
  assert (tmp_path / "round_00000002.rows_0_of_2").exists()
  assert checkpoint.newest_round(tmp_path) == 1
  problems.assert_equal(restore(tmp_path, None)[0], table_state(1))
  checkpoint.save(tmp_path, table_state(3), 3, {})
  assert not list(tmp_path.glob("round_00000002*"))


def test_the_rows_of_other_clients_are_refused(tmp_path):
  checkpoint.save(tmp_path, in_processes(table_state(1, clients=6), (0, 3, 6)), 1, {})
  with pytest.raises(checkpoint.CheckpointError, match="model or data"):
    restore(tmp_path, TWO)
  with pytest.raises(checkpoint.CheckpointError, match="model or data"):
    restore(tmp_path, None)


def flip(raw, where):
  raw = bytearray(raw)
  raw[where] ^= 1
  return bytes(raw)


DAMAGE = {
  "a bit of the payload": lambda raw: flip(raw, -20),
  "truncated": lambda raw: raw[: len(raw) // 2],
  "empty": lambda raw: b"",
  "no header": lambda raw: raw[raw.index(b"\n") + 1 :],
  "something else": lambda raw: b"[1, 2]\n" + raw,
  "binary": lambda raw: b"\xff\xfe\n" + raw,
}


@each(
  "end, damage",
  [
    *(("ckpt", damage) for damage in DAMAGE),
    *(
      ("rows_1_of_2", damage)
      for damage in ("a bit of the payload", "gone", "of another round")
    ),
  ],
)
def test_a_damaged_file_is_a_damaged_checkpoint(tmp_path, end, damage):
  """Of states in parts, which one process reads, or two."""
  paths = [
    checkpoint.save(tmp_path, in_processes(table_state(number), TWO), number, {})
    for number in (1, 2)
  ]
  before, file = (path.with_suffix(f".{end}") for path in paths)
  if damage == "gone":
    file.unlink()
  elif damage == "of another round":
    file.write_bytes(before.read_bytes())
  else:
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
  for cuts in (None, TWO):
    state, facts, warnings = restore(tmp_path, cuts)
    problems.assert_equal(state, table_state(1))
    assert facts["round"] == 1 and warnings == [
      f"checkpoint {paths[1]} is damaged; using the one before it"
    ]
  assert [facts["round"] for facts in checkpoint.headers(tmp_path)] == [1]


def test_every_flipped_byte_is_found(tmp_path):
  path = checkpoint.save(tmp_path, state_of(2), 2, {})
  raw = path.read_bytes()
  for where in range(0, len(raw), 7):
    path.write_bytes(flip(raw, where))
    with pytest.raises(checkpoint.CheckpointError):
      checkpoint.load_latest(tmp_path, TEMPLATE)


def test_without_a_whole_checkpoint_there_is_an_error(tmp_path):
  with pytest.raises(checkpoint.CheckpointError, match="no checkpoint in"):
    checkpoint.load_latest(tmp_path, TEMPLATE)
  checkpoint.save(tmp_path, state_of(1), 1, {}).write_bytes(b"")
  with pytest.raises(
    checkpoint.CheckpointError, match="no complete checkpoint in .* is damaged"
  ):
    checkpoint.load_latest(tmp_path, TEMPLATE)


KERNEL, BIAS = TEMPLATE.params["kernel"], TEMPLATE.params["bias"]
OTHERS = {
  "shape": {"kernel": jnp.zeros((20, 4)), "bias": BIAS},
  "dtype": {"kernel": KERNEL, "bias": jnp.zeros(3, jnp.int32)},
  "names": {"kernels": KERNEL, "bias": BIAS},
  "more": {"kernel": KERNEL, "bias": BIAS, "more": jnp.zeros(1)},
  "fewer": {"kernel": KERNEL},
  "tuple": (KERNEL, BIAS),
}


@each("kind", list(OTHERS))
def test_a_state_of_another_structure_is_refused(tmp_path, kind):
  checkpoint.save(tmp_path, state_of(1), 1, {})
  with pytest.raises(
    checkpoint.CheckpointError, match="of another algorithm, model or data"
  ):
    checkpoint.load_latest(tmp_path, TEMPLATE._replace(params=OTHERS[kind]))


def test_another_format_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint, "FORMAT", 99)
  checkpoint.save(tmp_path, state_of(1), 1, {})
  monkeypatch.undo()
  with pytest.raises(checkpoint.CheckpointError, match="has format 99, this"):
    checkpoint.load_latest(tmp_path, TEMPLATE)


def test_the_hash_sees_values_shapes_and_dtypes():
  arrays = [
    np.zeros(4, np.float32),
    np.zeros((2, 2), np.float32),
    np.zeros(4, np.int32),
    np.array([0, 0, 0, -0.0], np.float32),
  ]
  assert len({checkpoint.state_hash(a) for a in arrays}) == 4


def stranger(folder, facts, payload):
  """A file whose checksum is right, whatever it holds."""
  text = json.dumps({"format": checkpoint.FORMAT, "round": 6} | facts)
  digest = hashlib.sha256(text.encode() + payload).hexdigest()
  (folder / "round_00000006.ckpt").write_bytes(
    json.dumps({"sha256": digest, "facts": text}).encode() + b"\n" + payload
  )


STATE = {"w": np.zeros(2, np.float32)}


@each(
  "facts, tree",
  [
    ({"round": "6"}, STATE),
    ({"round": 6.0}, STATE),
    ({"round": -1}, STATE),
    ({}, {"w": "text"}),
    ({}, {"w": 3}),
    ({}, {"w": [1, 2]}),
    ({}, 3),
    ({}, {"w": np.zeros(2, np.float64)}),
  ],
)
def test_whole_files_of_strangers_are_refused(tmp_path, facts, tree):
  stranger(tmp_path, facts, serialization.msgpack_serialize(tree))
  with pytest.raises(checkpoint.CheckpointError) as caught:
    checkpoint.load_latest(tmp_path, STATE)
  assert "before it" not in str(caught.value)


def test_an_unknown_dtype_is_refused(tmp_path):
  payload = serialization.msgpack_serialize(STATE)
  assert b"float32" in payload
  stranger(tmp_path, {}, payload.replace(b"float32", b"os.exec"))
  with pytest.raises(checkpoint.CheckpointError, match="another algorithm"):
    checkpoint.load_latest(tmp_path, STATE)


def test_headers_and_files_of_others(tmp_path):
  (tmp_path / "round_best.ckpt").write_text("mine")
  for number in (1, 2, 3):
    checkpoint.save(tmp_path, {"w": np.zeros(2)}, number, {"n": number})
  assert [facts["n"] for facts in checkpoint.headers(tmp_path)] == [3, 2]
  newest = checkpoint.checkpoint_paths(tmp_path)[0]
  newest.write_bytes(newest.read_bytes()[:-1])
  assert [facts["n"] for facts in checkpoint.headers(tmp_path)] == [2]
  assert (tmp_path / "round_best.ckpt").read_text() == "mine"


def test_only_what_a_killed_process_has_left_is_removed(tmp_path):
  """A checkpoint that is begun is ours, whatever else has such a name is not."""
  checkpoint.tidy(tmp_path / "none")
  path = checkpoint.save(tmp_path, state_of(1), 1, {})
  raw = path.read_bytes()
  begun = {2: raw[:50], 3: b"", 4: raw[:5], 5: raw}
  for number, content in begun.items():
    (tmp_path / f"round_0000000{number}.ckpt.partial").write_bytes(content)
  (tmp_path / "round_00000002.rows_0_of_2.partial").write_bytes(b"\x81")
  (tmp_path / "mine").write_text("mine")
  others = {
    "round_00000007.ckpt.partial": b"mine",
    "round_best.ckpt.partial": raw[:50],
    "notes.partial": raw[:50],
  }
  for name, content in others.items():
    (tmp_path / name).write_bytes(content)
  (tmp_path / "round_00000008.ckpt.partial").symlink_to("mine")
  checkpoint.tidy(tmp_path)
  assert {entry.name for entry in tmp_path.iterdir()} == {
    path.name,
    "mine",
    "round_00000008.ckpt.partial",
    *others,
  }
