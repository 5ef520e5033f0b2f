"""Checkpoints: the whole state with a checksum, written atomically.

A checkpoint is one file. It holds a JSON header line (checksum, format, round
and the caller's entries) and the state as flax msgpack. The last two
checkpoints are kept. If the newer one is damaged, which its checksum detects,
the older one is used.
"""

from collections.abc import Iterator
import contextlib
import hashlib
import json
import pathlib
from typing import Any

from flax import serialization
import jax
import numpy as np

from fedjax_alg import files

FORMAT = 1
KEEP = 2


class CheckpointError(ValueError):
  """A checkpoint that cannot be used; the message is one line."""


def state_hash(state: Any) -> str:
  """Computes the sha256 of the bytes, shapes and dtypes of all leaves."""
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(state):
    array = np.asarray(leaf)
    digest.update(f"{array.dtype}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()


def paths(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints of a folder, newest first."""
  return sorted((path for path in folder.glob("round_*.ckpt")
                 if path.stem.removeprefix("round_").isdecimal()), reverse=True)


def newest_round(folder: pathlib.Path) -> int | None:
  """The round that names the newest checkpoint; None without a checkpoint."""
  return next((int(path.stem.removeprefix("round_"))
               for path in paths(folder)), None)


def save(
    folder: pathlib.Path, state: Any, round_number: int,
    header: dict[str, Any]) -> pathlib.Path:
  """Writes the checkpoint of a round and removes all but the last two.

  Args:
    folder: where to write; made if it does not exist.
    state: pytree of arrays.
    round_number: rounds played.
    header: entries for the header, which ``load_latest`` returns.

  Returns:
    The path of the checkpoint.
  """
  folder.mkdir(parents=True, exist_ok=True)
  payload = serialization.to_bytes(jax.device_get(state))
  facts = dict(header, format=FORMAT, round=round_number)
  text = json.dumps(facts, sort_keys=True)
  digest = hashlib.sha256(text.encode() + payload).hexdigest()
  path = folder / f"round_{round_number:08d}.ckpt"
  with files.replacing(path, durable=True) as partial, open(
      partial, "wb") as file:
    file.write(json.dumps({"sha256": digest, "facts": text}).encode() + b"\n")
    file.write(payload)
  for old in paths(folder)[KEEP:]:
    old.unlink()
  return path


def read(path: pathlib.Path) -> tuple[dict[str, Any], bytes]:
  """Reads one checkpoint file.

  Args:
    path: the file.

  Returns:
    The header, and the state as bytes.

  Raises:
    CheckpointError: the file is unreadable, truncated or altered.
  """
  try:
    raw = path.read_bytes()
    line, payload = raw.split(b"\n", 1)
    outer = json.loads(line)
    text = outer["facts"]
    if hashlib.sha256(text.encode() + payload).hexdigest() != outer["sha256"]:
      raise ValueError("checksum")
    facts = json.loads(text)
    if facts["format"] != FORMAT:
      raise CheckpointError(
          f"checkpoint {path} has format {facts['format']}, this version "
          f"reads {FORMAT}")
    if type(facts["round"]) is not int or facts["round"] < 0:
      raise ValueError("round")
  except CheckpointError:
    raise
  except (OSError, ValueError, KeyError, TypeError, AttributeError,
          RecursionError) as error:
    raise CheckpointError(f"checkpoint {path} is damaged") from error
  return facts, payload


def headers(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
  """The headers of the checkpoints that are not damaged, newest first."""
  for path in paths(folder):
    with contextlib.suppress(CheckpointError):
      yield read(path)[0]


def _leaf_paths(tree: Any) -> list[str]:
  return [jax.tree_util.keystr(path)
          for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def load_latest(
    folder: pathlib.Path, like: Any
) -> tuple[Any, dict[str, Any], list[str]]:
  """Reads the newest checkpoint that is not damaged.

  Args:
    folder: the folder given to ``save``.
    like: a state, or its shapes, with the structure to restore.

  Returns:
    The state as NumPy arrays, the header, and one warning per damaged file.

  Raises:
    CheckpointError: the folder has no undamaged checkpoint, or the state has
      another structure.
  """
  damaged = []
  for path in paths(folder):
    try:
      facts, payload = read(path)
    except CheckpointError as error:
      damaged.append(str(error))
      continue
    target = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), like)
    try:
      saved = serialization.msgpack_restore(payload)
      # Flax silently drops entries that the target does not have.
      if _leaf_paths(saved) != _leaf_paths(serialization.to_state_dict(target)):
        raise ValueError("structure")
      state = serialization.from_state_dict(target, saved)
      shapes = [(a.shape, a.dtype) for a in jax.tree.leaves(target)]
      if shapes != [(a.shape, a.dtype) for a in jax.tree.leaves(state)]:
        raise ValueError("shapes")
    except Exception as error:  # pylint: disable=broad-except
      # The checksum is right, so nobody but its maker knows what is in it.
      raise CheckpointError(
          f"checkpoint {path} is of another algorithm, model or data"
      ) from error
    return state, facts, [
        f"{what}; using the one before it" for what in damaged]
  if damaged:
    raise CheckpointError(f"no whole checkpoint in {folder}: {damaged[0]}")
  raise CheckpointError(f"no checkpoint in {folder}")
