"""Checkpoints: what is written is read, damage is found."""

import hashlib
import json
from typing import NamedTuple

from flax import serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg.engine import checkpoint
from tests import problems


class State(NamedTuple):
  params: dict
  round: jax.Array


def state_of(number):
  rng = np.random.default_rng(number)
  return State({"kernel": jnp.asarray(rng.normal(size=(20, 3)), jnp.float32),
                "bias": jnp.array([np.nan, -0.0, np.inf], jnp.float32)},
               jnp.int32(number))


LIKE = jax.eval_shape(lambda: state_of(0))


def test_a_state_comes_back_bit_for_bit(tmp_path):
  header = {"flags": "abc", "best": 0.1}
  path = checkpoint.save(tmp_path / "new", state_of(7), 7, header)
  state, facts, warnings = checkpoint.load_latest(tmp_path / "new", LIKE)
  problems.assert_equal(state, state_of(7))
  assert isinstance(state, State)
  assert checkpoint.state_hash(state) == checkpoint.state_hash(state_of(7))
  assert facts == {**header, "format": checkpoint.FORMAT, "round": 7}
  assert not warnings and path.name == "round_00000007.ckpt"


def test_the_last_two_are_kept_and_nothing_else(tmp_path):
  for number in (8, 9, 10, 100):
    checkpoint.save(tmp_path, state_of(number), number, {})
  assert sorted(path.name for path in tmp_path.iterdir()) == [
      "round_00000010.ckpt", "round_00000100.ckpt"]
  assert checkpoint.load_latest(tmp_path, LIKE)[1]["round"] == 100


def flip(raw, where):
  raw = bytearray(raw)
  raw[where] ^= 1
  return bytes(raw)


DAMAGE = {
    "a bit of the payload": lambda raw: flip(raw, -20),
    "a bit of the header": lambda raw: flip(raw, raw.index(b"round") + 10),
    "a bit of the checksum": lambda raw: flip(raw, raw.index(b"sha256") + 12),
    "truncated": lambda raw: raw[:len(raw) // 2],
    "empty": lambda raw: b"",
    "no header": lambda raw: raw[raw.index(b"\n") + 1:],
    "something else": lambda raw: b"[1, 2]\n" + raw,
    "binary": lambda raw: b"\xff\xfe\n" + raw,
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
  checkpoint.save(tmp_path, state_of(1), 1, {})
  path = checkpoint.save(tmp_path, state_of(2), 2, {})
  path.write_bytes(DAMAGE[damage](path.read_bytes()))
  state, facts, warnings = checkpoint.load_latest(tmp_path, LIKE)
  assert facts["round"] == 1
  problems.assert_equal(state, state_of(1))
  assert warnings == [
      f"checkpoint {path} is damaged; using the one before it"]


def test_every_flipped_byte_is_found(tmp_path):
  path = checkpoint.save(tmp_path, state_of(2), 2, {})
  raw = path.read_bytes()
  for where in range(0, len(raw), 7):
    path.write_bytes(flip(raw, where))
    with pytest.raises(checkpoint.CheckpointError):
      checkpoint.load_latest(tmp_path, LIKE)


def test_without_a_whole_checkpoint_there_is_an_error(tmp_path):
  with pytest.raises(checkpoint.CheckpointError, match="no checkpoint in"):
    checkpoint.load_latest(tmp_path, LIKE)
  checkpoint.save(tmp_path, state_of(1), 1, {}).write_bytes(b"")
  with pytest.raises(
      checkpoint.CheckpointError, match="no whole checkpoint in .* is damaged"):
    checkpoint.load_latest(tmp_path, LIKE)


OTHERS = {
    "shape": State({"kernel": jnp.zeros((20, 4)), "bias": jnp.zeros(3)},
                   jnp.int32(0)),
    "dtype": State({"kernel": jnp.zeros((20, 3)), "bias": jnp.zeros(3)},
                   jnp.float32(0)),
    "names": State({"kernels": jnp.zeros((20, 3)), "bias": jnp.zeros(3)},
                   jnp.int32(0)),
    "more": State({"kernel": jnp.zeros((20, 3)), "bias": jnp.zeros(3),
                   "more": jnp.zeros(1)}, jnp.int32(0)),
    "fewer": State({"kernel": jnp.zeros((20, 3))}, jnp.int32(0)),
    "tuple": (jnp.zeros(3), jnp.int32(0)),
}


@pytest.mark.parametrize("other", list(OTHERS))
def test_a_state_of_another_structure_is_refused(tmp_path, other):
  checkpoint.save(tmp_path, state_of(1), 1, {})
  with pytest.raises(
      checkpoint.CheckpointError, match="of another algorithm, model or data"):
    checkpoint.load_latest(tmp_path, OTHERS[other])


def test_another_format_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint, "FORMAT", 99)
  checkpoint.save(tmp_path, state_of(1), 1, {})
  monkeypatch.undo()
  with pytest.raises(checkpoint.CheckpointError, match="has format 99, this"):
    checkpoint.load_latest(tmp_path, LIKE)


def test_the_hash_sees_values_shapes_and_dtypes():
  arrays = [np.zeros(4, np.float32), np.zeros((2, 2), np.float32),
            np.zeros(4, np.int32), np.array([0, 0, 0, -0.0], np.float32)]
  assert len({checkpoint.state_hash(a) for a in arrays}) == 4


def stranger(folder, facts, payload):
  """A file whose checksum is right, whatever it holds."""
  text = json.dumps({"format": checkpoint.FORMAT, "round": 6} | facts)
  digest = hashlib.sha256(text.encode() + payload).hexdigest()
  (folder / "round_00000006.ckpt").write_bytes(json.dumps(
      {"sha256": digest, "facts": text}).encode() + b"\n" + payload)


ONE = {"w": np.zeros(2, np.float32)}


@pytest.mark.parametrize("facts, tree", [
    ({"round": "6"}, ONE), ({"round": 6.0}, ONE), ({"round": -1}, ONE),
    ({}, {"w": "text"}), ({}, {"w": 3}), ({}, {"w": [1, 2]}), ({}, 3),
    ({}, {"w": np.zeros(2, np.float64)}),
])
def test_whole_files_of_strangers_are_refused(tmp_path, facts, tree):
  stranger(tmp_path, facts, serialization.msgpack_serialize(tree))
  with pytest.raises(checkpoint.CheckpointError) as caught:
    checkpoint.load_latest(tmp_path, ONE)
  assert "before it" not in str(caught.value)


def test_an_unknown_dtype_is_refused(tmp_path):
  payload = serialization.msgpack_serialize(ONE)
  assert b"float32" in payload
  stranger(tmp_path, {}, payload.replace(b"float32", b"os.exec"))
  with pytest.raises(checkpoint.CheckpointError, match="another algorithm"):
    checkpoint.load_latest(tmp_path, ONE)


def test_headers_and_files_of_others(tmp_path):
  (tmp_path / "round_best.ckpt").write_text("mine")
  for number in (1, 2, 3):
    checkpoint.save(tmp_path, {"w": np.zeros(2)}, number, {"n": number})
  assert [facts["n"] for facts in checkpoint.headers(tmp_path)] == [3, 2]
  newest = checkpoint.paths(tmp_path)[0]
  newest.write_bytes(newest.read_bytes()[:-1])
  assert [facts["n"] for facts in checkpoint.headers(tmp_path)] == [2]
  assert (tmp_path / "round_best.ckpt").read_text() == "mine"
