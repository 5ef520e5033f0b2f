"""Checkpoints: the whole state with a checksum, written atomically.

A checkpoint is one file. It holds a JSON header line (checksum, format, round
and the caller's entries) and the state as flax msgpack. The last two
checkpoints are kept. If the newer one is damaged, which its checksum detects,
the older one is used.

Tables that are shared out over processes (``split.Split``) are in files beside
it, its parts, of which every process writes its own. Process 0 writes the
checkpoint when they are all on the disk, with the checksum of each; without it
they count for nothing. Any number of processes can read it.

Tables with rows in a file (``row_file.RowTable``) are in one file beside the
checkpoints, which all of them share. A checkpoint has the place and the checksum of
each client's row. Rows that have not changed are not written again.
"""

from collections.abc import Iterator, Sequence
import contextlib
import hashlib
import json
import os
import pathlib
import re
from typing import Any

from flax import serialization
import jax
import numpy as np

from fedjax_alg import files, split
from fedjax_alg.engine import processes, row_file, sharding
from fedjax_alg.engine.row_file import RowFile, RowForm, RowTable, RowVersion
from fedjax_alg.typing import PyTree

FORMAT = 1
#: The format of a checkpoint with parts.
IN_PARTS = 2
#: The format of a checkpoint with rows in ``ROWS``.
IN_ROWS = 3
KEEP = 2
#: The file of the rows of tables.
ROWS = "clients.rows"

_PART = re.compile(r"round_(\d+)\.rows_\d+_of_\d+(\.partial)?")
_PARTIAL = re.compile(r"round_\d+\.(ckpt|rows_\d+_of_\d+)\.partial")
#: First bytes of the file of a checkpoint.
_BEGIN = b'{"sha256": "'


class CheckpointError(ValueError):
  """A checkpoint that cannot be used; the message is one line."""


def state_hash(state: PyTree) -> str:
  """Computes the sha256 of the bytes, shapes and dtypes of all leaves.

  It does not tell how tables are shared out over processes; if they are, all
  processes must call this.
  """
  digest = hashlib.sha256()
  for leaf in split.leaves(state):
    if split.is_split(leaf):
      arrays = sharding.all_rows(leaf)
    elif row_file.is_row_table(leaf):
      arrays = leaf.pieces()
    else:
      leaf = np.asarray(leaf)
      arrays = iter([leaf])
    digest.update(f"{leaf.dtype}{_shape(leaf)}".encode())
    for array in arrays:
      digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()


def checkpoint_paths(folder: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints of a folder, newest first."""
  return sorted(
    (
      path
      for path in folder.glob("round_*.ckpt")
      if path.stem.removeprefix("round_").isdecimal()
    ),
    reverse=True,
  )


def newest_round(folder: pathlib.Path) -> int | None:
  """The round that names the newest checkpoint; None without a checkpoint."""
  return next(
    (int(path.stem.removeprefix("round_")) for path in checkpoint_paths(folder)), None
  )


def save(
  folder: pathlib.Path, state: PyTree, round_number: int, header: dict[str, Any]
) -> pathlib.Path:
  """Writes the checkpoint of a round and removes all but the last two.

  Process 0 writes it; if tables are shared out over processes, all must call
  this and write their rows. Tables with rows in the folder's file are on the disk
  before the checkpoint is; those in another file are copied to this one.

  Args:
    folder: where to write; made if it does not exist.
    state: pytree of arrays, with ``split.Split`` as ``sharding.place_states``
      places them, or ``row_file.RowTable``.
    round_number: rounds run.
    header: entries for the header, which ``load_latest`` returns.

  Returns:
    The path of the checkpoint.
  """
  path = folder / f"round_{round_number:08d}.ckpt"
  facts = dict(header, format=FORMAT, round=round_number)
  if split.within(state):
    parts = processes.gather(processes.together(lambda: _save_parts(path, state)))
    facts |= {"format": IN_PARTS, "parts": sum(parts, [])}
    state = split.tree_map(
      lambda leaf: np.zeros((len(leaf.block), 0, *leaf.block.shape[3:]), leaf.dtype),
      lambda leaf: leaf,
      state,
    )
  tables = row_file.tables_of(state)
  if tables:
    facts |= {"format": IN_ROWS, "tables_in_rows": _names_of_tables(state)}
    state = jax.tree.map(
      lambda leaf: (
        np.zeros((len(leaf), 0, *leaf.shape[2:]), leaf.dtype)
        if row_file.is_row_table(leaf)
        else leaf
      ),
      state,
    )

  def write():
    folder.mkdir(parents=True, exist_ok=True)
    rows = _save_rows(folder / ROWS, tables) if tables else None
    content = serialization.to_state_dict(jax.device_get(state))
    if rows is not None:
      content = {"state": content, "rows": _index_of(rows)}
      facts["rows_nbytes"] = (int(rows.slots.max()) + 1) * rows.form.nbytes
    payload = serialization.msgpack_serialize(content, in_place=True)
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(text.encode() + payload).hexdigest()
    with files.replacing(path, durable=True) as partial, open(partial, "wb") as file:
      file.write(json.dumps({"sha256": digest, "facts": text}).encode() + b"\n")
      file.write(payload)
    for old in checkpoint_paths(folder)[KEEP:]:
      old.unlink()
    _remove_parts(folder, before=round_number)
    if rows is not None:
      stay = {of.name for of in checkpoint_paths(folder)}
      saved = rows.file.saved | {path.name: rows}
      rows.file.saved = {name: of for name, of in saved.items() if name in stay}
      rows.file.collect()
    elif not any(map(_is_in_rows, checkpoint_paths(folder))):
      (folder / ROWS).unlink(missing_ok=True)

  processes.agree(write)
  return path


def _save_rows(path: pathlib.Path, tables: list[RowTable]) -> RowVersion:
  """Has the rows of tables on the disk; returns the version of the checkpoint."""
  versions = tables[0].versions
  if len(versions) == 1 and versions[0].file.is_at(path):
    rows = versions[0].copy()
  else:
    rows = row_file.copy_to(path, tables)
  rows.file.sync()
  return rows


def _index_of(rows: RowVersion) -> dict[str, np.ndarray]:
  """What a checkpoint has of the rows of tables."""
  ids = rows.written
  return {
    "first": rows.first,
    "number": np.array(len(rows.slots)),
    "clients": ids.astype(np.int32),
    "slots": rows.slots[ids],
    "sums": rows.sums[ids],
  }


def _names_of_tables(state: PyTree) -> list[str]:
  """The paths of tables in the state dictionary, in the order of their numbers."""
  leaves = _by_path(serialization.to_state_dict(state))
  tables = {
    leaf.number: name for name, leaf in leaves.items() if row_file.is_row_table(leaf)
  }
  return [tables[number] for number in sorted(tables)]


def _is_in_rows(path: pathlib.Path) -> bool:
  """Whether a checkpoint needs the file of rows; true if it cannot be read."""
  try:
    with files.open_regular(path) as file:
      facts = json.loads(json.loads(file.readline())["facts"])
    return bool(facts["format"] == IN_ROWS)
  except (OSError, ValueError, LookupError, TypeError):
    return True


def _open_rows(folder: pathlib.Path, saved: Any, names: Sequence[str]) -> RowVersion:
  """The version of a checkpoint.

  Args:
    folder: that of the checkpoint.
    saved: the content of the checkpoint.
    names: of the tables, by their numbers.
  """
  index, arrays = saved["rows"], _by_path(saved["state"])
  form = RowForm(
    tuple(
      ((len(arrays[name]), *arrays[name].shape[2:]), arrays[name].dtype)
      for name in names
    )
  )
  slots = np.full(int(index["number"]), -1, np.int32)
  sums = np.zeros(len(slots), np.uint32)
  slots[index["clients"]], sums[index["clients"]] = index["slots"], index["sums"]
  file = RowFile.open(folder / ROWS, form.nbytes)
  return RowVersion(file, form, index["first"], slots, sums)


def _whole_rows(
  folder: pathlib.Path, saved: Any, names: Sequence[str]
) -> RowVersion | None:
  """The version of a checkpoint; None: the file is damaged, or cannot be read."""
  try:
    rows = _open_rows(folder, saved, names)
  except OSError:
    return None
  return rows if rows.are_whole() else None


def _protect(folder: pathlib.Path, file: RowFile) -> None:
  """Has the rows of all checkpoints that can be read stay in their file."""
  for path in checkpoint_paths(folder):
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
      facts, payload = read_checkpoint(path)
      if facts["format"] == IN_ROWS:
        saved = serialization.msgpack_restore(payload)
        rows = _open_rows(folder, saved, facts["tables_in_rows"])
        if rows.file is file:
          file.saved[path.name] = rows
  file.collect()


def _with_row_tables(saved: Any, names: Sequence[str], rows: RowVersion) -> Any:
  """The state of a checkpoint with its tables."""
  tables = {
    name: RowTable([(rows, seed) for seed in range(shape[0])], number)
    for number, (name, (shape, _)) in enumerate(zip(names, rows.form.arrays))
  }
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: tables.get(jax.tree_util.keystr(path), leaf), saved["state"]
  )


def _save_parts(path: pathlib.Path, state: PyTree) -> list[list[Any]]:
  """Writes the rows that this process owns beside a checkpoint.

  Returns:
    Name, sha256 and first client of each file.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  tables = list(filter(split.is_split, split.leaves(state)))
  cuts, entries = tables[0].cuts, []
  for number in sharding.blocks_here(tables[0]):
    rows = split.tree_map(
      lambda leaf, number=number: sharding.rows_of_process(leaf, number),
      lambda leaf: None,
      state,
    )
    payload = serialization.msgpack_serialize(
      _by_path(serialization.to_state_dict(rows))
    )
    part = path.with_name(f"{path.stem}.rows_{number}_of_{len(cuts) - 1}")
    with files.replacing(part, durable=True) as partial:
      partial.write_bytes(payload)
    entries.append([part.name, hashlib.sha256(payload).hexdigest(), cuts[number]])
  return entries


def _remove_parts(folder: pathlib.Path, before: int | None = None) -> None:
  """Removes parts that belong to no checkpoint.

  Args:
    folder: the folder of the checkpoints.
    before: leave those of later rounds, which may be being written.
  """
  checkpoints = {path.stem for path in checkpoint_paths(folder)}
  for path in folder.glob("round_*.rows_*"):
    match = _PART.fullmatch(path.name)
    if (
      match
      and path.stem not in checkpoints
      and (before is None or int(match[1]) < before)
    ):
      path.unlink()


def tidy(folder: pathlib.Path) -> None:
  """Removes what processes that were killed have left of their checkpoints.

  Call this when nobody writes to the folder. Files that no checkpoint begins
  with, and links, are left alone.

  Args:
    folder: the folder of the checkpoints, which may be missing.
  """
  for path in folder.glob("round_*.partial"):
    match = _PARTIAL.fullmatch(path.name)
    if not match or path.is_symlink() or not path.is_file():
      continue
    with files.open_regular(path) as file:
      begin = file.read(len(_BEGIN))
    if match[1] != "ckpt" or _BEGIN.startswith(begin):
      path.unlink()


def clear(folder: pathlib.Path) -> None:
  """Removes all checkpoints of a folder."""
  for path in checkpoint_paths(folder):
    path.unlink()
  (folder / ROWS).unlink(missing_ok=True)
  _remove_parts(folder)
  tidy(folder)


def read_checkpoint(path: pathlib.Path) -> tuple[dict[str, Any], bytes]:
  """Reads one checkpoint file.

  Args:
    path: the file.

  Returns:
    The header, and the state as bytes.

  Raises:
    CheckpointError: the file is unreadable, truncated or altered.
  """
  try:
    raw = files.read_bytes(path)
    line, payload = raw.split(b"\n", 1)
    outer = json.loads(line)
    text = outer["facts"]
    if hashlib.sha256(text.encode() + payload).hexdigest() != outer["sha256"]:
      raise ValueError("checksum")
    facts = json.loads(text)
    if facts["format"] not in (FORMAT, IN_PARTS, IN_ROWS):
      raise CheckpointError(
        f"checkpoint {path} has format {facts['format']}, this version "
        f"reads {FORMAT} to {IN_ROWS}"
      )
    if type(facts["round"]) is not int or facts["round"] < 0:
      raise ValueError("round")
    for name, digest, _ in facts.get("parts", ()):
      if files.sha256(path.with_name(name)) != digest:
        raise ValueError("part")
    if facts["format"] == IN_ROWS:
      if os.stat(path.with_name(ROWS)).st_size < facts["rows_nbytes"]:
        raise ValueError("rows")
  except CheckpointError:
    raise
  except (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
  ) as error:
    raise CheckpointError(f"checkpoint {path} is damaged") from error
  return facts, payload


def headers(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
  """The headers of the checkpoints that are not damaged, newest first."""
  for path in checkpoint_paths(folder):
    with contextlib.suppress(CheckpointError):
      yield read_checkpoint(path)[0]


def _by_path(tree: PyTree) -> dict[str, Any]:
  """The leaves of a tree by their paths in it."""
  return {
    jax.tree_util.keystr(path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=split.is_split)
  }


def _with_rows(
  saved: PyTree, parts: Sequence[Sequence[Any]], folder: pathlib.Path, template: PyTree
) -> PyTree:
  """Puts the rows of tables together.

  Args:
    saved: what a checkpoint has, without the rows in its parts.
    parts: see ``_save_parts``; one is read after the other.
    folder: where they are.
    template: state dictionary of what is wanted: whole tables, or ``split.Split``,
      of which the rows of this process's blocks are filled.

  Returns:
    ``saved`` with tables [N, C, ...].
  """
  templates, arrays, last = _by_path(template), {}, 0
  for name, _, first in parts:
    tables = serialization.msgpack_restore(files.read_bytes(folder / name))
    for key, rows in tables.items():
      last = first + rows.shape[1]
      if key not in arrays:  # np.zeros is lazy: untouched rows cost nothing
        arrays[key] = np.zeros(_shape(templates[key]), rows.dtype)
      if not split.is_split(templates[key]) or any(
        begin < last and first < begin + templates[key].height
        for begin in (
          templates[key].starts[number]
          for number in sharding.blocks_here(templates[key])
        )
      ):
        arrays[key][:, first:last] = rows
  if any(table.shape[1] != last for table in arrays.values()):
    raise ValueError("clients")
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: arrays.get(jax.tree_util.keystr(path), leaf), saved
  )


def _shape(leaf: Any) -> tuple[int, ...]:
  """The shape of states, with whole tables."""
  shape: tuple[int, ...] = leaf.of_states if split.is_split(leaf) else leaf.shape
  return shape


def load_latest(
  folder: pathlib.Path, template: PyTree
) -> tuple[Any, dict[str, Any], list[str]]:
  """Reads the newest checkpoint that is not damaged.

  Args:
    folder: the folder given to ``save``.
    template: a state, or its shapes, with the structure to restore.

  Returns:
    The state as NumPy arrays (of a ``split.Split`` [N, C, ...], with the rows
    of this process's blocks) and ``row_file.RowTable``, the header, and one warning
    per damaged file.

  Raises:
    CheckpointError: the folder has no undamaged checkpoint, or the state has
      another structure.
  """
  damaged = []
  for path in checkpoint_paths(folder):
    try:
      facts, payload = read_checkpoint(path)
    except CheckpointError as error:
      damaged.append(str(error))
      continue
    names = serialization.to_state_dict(template)
    leaves, structure = jax.tree.flatten(template, is_leaf=split.is_split)
    try:
      saved = serialization.msgpack_restore(payload)
      if facts["format"] == IN_ROWS:
        rows = _whole_rows(folder, saved, facts["tables_in_rows"])
        if rows is None:
          damaged.append(f"checkpoint {path} is damaged")
          continue
        _protect(folder, rows.file)
        saved = _with_row_tables(saved, facts["tables_in_rows"], rows)
      # Flax silently drops entries that the target does not have.
      if list(_by_path(saved)) != list(_by_path(names)):
        raise ValueError("structure")
      saved = _with_rows(saved, facts.get("parts", ()), folder, names)
      # Match by path: an empty subtree may have been added since.
      saved_leaves, places = (
        _by_path(saved),
        _by_path(
          serialization.to_state_dict(jax.tree.unflatten(structure, range(len(leaves))))
        ),
      )
      arrays = {place: saved_leaves[name] for name, place in places.items()}
      state = jax.tree.unflatten(structure, [arrays[i] for i in range(len(leaves))])
      shapes = [(_shape(leaf), leaf.dtype) for leaf in leaves]
      if shapes != [(a.shape, a.dtype) for a in jax.tree.leaves(state)]:
        raise ValueError("shapes")
    except Exception as error:  # pylint: disable=broad-except
      # The checksum is right, so nobody but its maker knows what is in it.
      raise CheckpointError(
        f"checkpoint {path} is of another algorithm, model or data"
      ) from error
    return (
      split.tree_map(
        lambda leaf, a: leaf.with_block(a), lambda leaf, a: a, template, state
      ),
      facts,
      [f"{message}; using the one before it" for message in damaged],
    )
  if damaged:
    raise CheckpointError(f"no complete checkpoint in {folder}: {damaged[0]}")
  raise CheckpointError(f"no checkpoint in {folder}")
