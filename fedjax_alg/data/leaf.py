"""LEAF and FedProx json files, one entry per user."""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import json
import os
import pathlib
import re
from typing import Any
import warnings

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import characters
from fedjax_alg.data.arrays import make_examples
from fedjax_alg.data.client_files import SizedClients
from fedjax_alg.data.errors import DataError, kinds_are_lost
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.sources import UserFiles
from fedjax_alg.errors import Faults
from fedjax_alg.files import expand_path
from fedjax_alg.tasks.classification import MAX_CLASSES

_SPLITS = ("train", "test")
_TRAIN_SHARE = 0.9
_PAIRS = 100  # neighbors that are looked at for the stride of windows
_IMAGE_FILE = re.compile(r"\S+\.(jpe?g|png|bmp|gif|webp)", re.IGNORECASE)
_Users = dict[str, tuple[np.ndarray, np.ndarray]]
_Kinds = dict[str, str]


def load_leaf(path: str | os.PathLike) -> Examples:
  """Reads ``{"users", "num_samples", "user_data": {u: {"x", "y"}}}`` json.

  The format of LEAF (Caldas et al. 2018) and of the FedProx repository.

  Args:
    path: a folder with ``train/*.json`` and ``test/*.json``, or one json file.
      Of a single file, ``max(1, int(.9 n))`` random ones of the n examples of
      every user are for training and the others are the test set; every run
      tests on the same ones. If they are windows of a running text, the first
      ones are for training, and of the others those that begin behind the
      text of these are for testing, as LEAF splits them.

  Returns:
    The examples, x float32 [n, ...]. If x are strings and y single
    characters, as in LEAF's Shakespeare, x are token ids int32 [n, T] and the
    classes those of ``data.characters``. The clients are numbered in the order
    in which the users appear; those of a split by user that have test data
    alone come last. A list ``kind_ids``, one for each of the users, says the
    kinds of the clients.

  Raises:
    DataError: a file is missing, truncated, not numeric or inconsistent.

  Warns:
    UserWarning: num_samples of a file are not the numbers of its examples.
  """
  path = expand_path(path, "dataset")
  kinds: _Kinds = {}
  if path.is_dir():
    train, test = (_read_folder(path, split, kinds) for split in _SPLITS)
  elif path.is_file():
    train, test = {}, {}
    rng = np.random.default_rng(0)
    for user, (x, y) in _read_file(path, kinds).items():
      train[user], test[user] = ((x[rows], y[rows]) for rows in _split(x, rng))
  else:
    raise DataError(
      f"`dataset`={path}: no such file or folder; a LEAF json file or a"
      " folder with train/*.json and test/*.json is needed"
    )
  ids = {user: i for i, user in enumerate(dict.fromkeys((*train, *test)))}
  empty = [
    user
    for user in ids
    if not any(len(of[user][1]) for of in (train, test) if user in of)
  ]
  if empty:
    listed = ", ".join(map(repr, empty[:20])) + ", ..." * (len(empty) > 20)
    raise DataError(
      f"`dataset`={path}: user {listed} has no data; leave such users out"
    )
  users = [x for x, _ in (*train.values(), *test.values()) if len(x)]
  shapes = {x.shape[1:] for x in users}
  if len({x.dtype.kind for x in users}) != 1:
    raise DataError(f"`dataset`={path}: some users have text, others numbers")
  if len(shapes) != 1:
    raise DataError(
      f"`dataset`={path}: examples of different shapes"
      f" {sorted(shapes)[:3]}, one shape is needed"
    )
  x_train, y_train, client_train = _stack(train, ids, shapes)
  x_test, y_test, client_test = _stack(test, ids, shapes)
  if not len(x_test):
    x_test = x_test.astype(x_train.dtype, copy=False)
  values = {
    "x_train": x_train,
    "y_train": y_train,
    "client_train": client_train,
    "x_test": x_test,
    "y_test": y_test,
    "client_test": client_test,
  }
  if kinds:
    of_user = _kinds_of(path, kinds, list(ids))
    values |= {"kind_train": of_user[client_train], "kind_test": of_user[client_test]}
  are_texts = x_train.dtype == np.int32
  examples = make_examples(
    values,
    lambda array: f"`dataset`={path}: {array}",
    path.stem,
    characters.NUM_CLASSES if are_texts else None,
    client_names=np.array(list(ids)),
    are_numbered=True,
  )
  tokens = characters.NUM_TOKENS if are_texts else None
  return dataclasses.replace(examples, num_tokens=tokens)


def leaf_clients(path: str | os.PathLike) -> Examples | SizedClients:
  """Reads users as ``load_leaf`` does, of a folder with some files in memory at a time.

  Args:
    path: see ``load_leaf``. Of a folder, a file for training and one for testing are
      in memory.

  Returns:
    The clients, for ``write_clients``; they are read when that iterates over them.

  Raises:
    DataError: see ``load_leaf``.
  """
  path = expand_path(path, "dataset")
  return _FolderClients(path) if path.is_dir() else load_leaf(path)


class _FolderClients(SizedClients):
  """(user, x, y, x_test, y_test) of each user of a folder."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def __iter__(self) -> Iterator[tuple[Any, ...]]:
    path, cache, seen = self._path, _Files(), set[str]()
    tests: dict[str, pathlib.Path] = {}
    for file in _parts(path, "test"):
      for user in cache.users("test", file):
        if user in tests:
          raise _appears_twice(file, user)
        tests[user] = file
    for split in _SPLITS:
      if not _parts(path, split):
        _read_folder(path, split, {})  # which says what is missing
      for file in _parts(path, split):
        for user, rows in cache.users(split, file).items():
          if split == "test" and user in seen:
            continue
          if user in seen:
            raise _appears_twice(file, user)
          seen.add(user)
          both = [rows]
          if split == "test":
            both = [(rows[0][:0], rows[1][:0]), rows]
          elif user in tests:
            both = [rows, cache.users("test", tests[user])[user]]
          present = next((part for part in both if len(part[1])), None)
          if present is None:
            raise DataError(
              f"`dataset`={file}: user {user!r} has no data; leave such users out"
            )
          if present[0].dtype == np.int32:
            self.num_classes = characters.NUM_CLASSES
            self.num_tokens = characters.NUM_TOKENS
          empty = present[0][:0], present[1][:0]
          both = [part if len(part[1]) else empty for part in both]
          yield user, *itertools.chain(*both, *[empty] * (2 - len(both)))


class _Files:
  """The users of the file of each split that was read last."""

  def __init__(self) -> None:
    self._files: dict[str, tuple[pathlib.Path, _Users]] = {}

  def users(self, split: str, file: pathlib.Path) -> _Users:
    """The users of a file."""
    if split not in self._files or self._files[split][0] != file:
      kinds: _Kinds = {}
      self._files[split] = file, _read_file(file, kinds)
      if kinds:
        raise kinds_are_lost(f"`dataset`={file}", "kind_ids")
    return self._files[split][1]


def _appears_twice(file: pathlib.Path, user: str) -> DataError:
  return DataError(f"`dataset`={file}: user {user!r} appears twice")


def _kinds_of(path: pathlib.Path, kinds: _Kinds, users: list[str]) -> np.ndarray:
  """[C] strings, the kind of each user."""
  missing = [user for user in users if user not in kinds]
  if missing:
    raise DataError(
      f"`dataset`={path}: user {missing[0]!r} has no kind, others have (kind_ids)"
    )
  return np.array([kinds[user] for user in users])


def leaf_files(path: str | os.PathLike) -> list[pathlib.Path]:
  """The files that ``load_leaf`` reads."""
  place = expand_path(path, "dataset")
  if not place.is_dir():
    return [place]
  return [file for split in _SPLITS for file in _parts(place, split)]


def _parts(path: pathlib.Path, split: str) -> list[pathlib.Path]:
  return sorted((path / split).glob("*.json"))


def _split(x: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """The rows for training and for testing of a user's n examples."""
  trains = max(1, int(_TRAIN_SHARE * len(x)))
  stride = _stride(x) if x.dtype == np.int32 else None
  if stride is not None:  # the character behind a window is text, too
    first = trains + x.shape[1] // stride
    return np.arange(trains), np.arange(first, max(first, len(x)))
  rows = rng.permutation(len(x))
  return np.sort(rows[:trains]), np.sort(rows[trains:])


def _stride(windows: np.ndarray) -> int | None:
  """The distance of neighboring windows of a text; None if they are none."""
  windows = windows[: _PAIRS + 1]
  length, pairs = windows.shape[1], len(windows) - 1
  for stride in range(1, length):
    equal = windows[:-1, stride:] == windows[1:, : length - stride]
    if 2 * equal.all(1).sum() > pairs:
      return stride
  return None


def _stack(
  users: _Users, ids: dict[str, int], shapes: set
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Concatenates the rows of all users, with the client id of each row."""
  with_rows = {user: data for user, data in users.items() if len(data[1])}
  if not with_rows:
    (shape,) = shapes
    return (
      np.zeros((0, *shape), np.float32),
      np.zeros(0, np.int32),
      np.zeros(0, np.int32),
    )
  client = [np.full(len(y), ids[user], np.int32) for user, (_, y) in with_rows.items()]
  return (
    np.concatenate([x for x, _ in with_rows.values()]),
    np.concatenate([y for _, y in with_rows.values()]),
    np.concatenate(client),
  )


def _read_folder(path: pathlib.Path, split: str, kinds: _Kinds) -> _Users:
  parts = _parts(path, split)
  if not parts:
    raise DataError(
      f"`dataset`={path}: no {split}/*.json in it; a LEAF folder has"
      " train/*.json and test/*.json"
    )
  users: _Users = {}
  for file in parts:
    for user, data in _read_file(file, kinds).items():
      if user in users:
        raise _appears_twice(file, user)
      users[user] = data
  return users


def _read_file(path: pathlib.Path, kinds: _Kinds) -> _Users:
  """The users of a file; adds their kinds to ``kinds``, if it says any."""
  try:
    content = files.read_json(path)
  except OSError as error:
    raise DataError(f"`dataset`={path}: {error.strerror}") from error
  except ValueError as error:
    where = (
      f", in line {error.lineno}, column {error.colno}"
      if isinstance(error, json.JSONDecodeError)
      else ""
    )
    raise DataError(
      f"`dataset`={path}: not a table in json, or truncated{where}"
    ) from error
  for key in ("users", "user_data"):
    if key not in content:
      raise DataError(
        f"`dataset`={path}: no key {key!r}; LEAF json has users,"
        " num_samples and user_data"
      )
  users, data = content["users"], content["user_data"]
  if not isinstance(users, list) or not isinstance(data, dict) or not users:
    raise DataError(
      f"`dataset`={path}: users must be a list with at least one user and"
      " user_data a table of them"
    )
  counts = content.get("num_samples")
  if counts is not None and (not isinstance(counts, list) or len(counts) != len(users)):
    raise DataError(
      f"`dataset`={path}: num_samples must be a list of {len(users)}"
      " numbers, one for each of the users"
    )
  result: _Users = {}
  faults = Faults()
  for user in map(str, users):
    if user in result:
      faults.add(_appears_twice(path, user))
    result[user] = faults.attempt(_read_user, path, user, data.get(user))
  faults.raise_any(DataError)
  _note_counts(path, result, counts)
  _add_kinds(path, content.get("kind_ids"), list(result), kinds)
  return result


def _add_kinds(
  path: pathlib.Path, ids: object, users: list[str], kinds: _Kinds
) -> None:
  """Adds the kinds of users to those of other files."""
  if ids is None:
    return
  if (
    not isinstance(ids, list)
    or len(ids) != len(users)
    or not all(isinstance(kind, (str, int)) for kind in ids)
  ):
    raise DataError(
      f"`dataset`={path}: kind_ids must be a list of {len(users)} whole numbers or "
      "texts, one for each of the users"
    )
  for user, kind in zip(users, map(str, ids)):
    if kinds.setdefault(user, kind) != kind:
      raise DataError(
        f"`dataset`={path}: user {user!r} is of the kinds {kinds[user]} and {kind}"
      )


def _note_counts(
  path: pathlib.Path, users: _Users, counts: Sequence[object] | None
) -> None:
  """Warns of num_samples that are not the numbers of examples.

  LEAF's split of Shakespeare counts before it leaves windows out.
  """
  wrong = [
    (user, len(y), count)
    for (user, (_, y)), count in zip(users.items(), counts or ())
    if len(y) != count
  ]
  if wrong:
    user, size, count = wrong[0]
    warnings.warn(
      f"{path}: num_samples is wrong for {len(wrong)} of {len(users)} users,"
      f" user {user!r} has {size} examples, not {count}; what is there is"
      " read",
      stacklevel=2,
    )


def _read_user(
  path: pathlib.Path, user: str, entry: object
) -> tuple[np.ndarray, np.ndarray]:
  where = f"`dataset`={path}: user {user!r}"
  if not isinstance(entry, dict) or "x" not in entry or "y" not in entry:
    raise DataError(f"{where} has no x and y in user_data")
  if not isinstance(entry["x"], list) or not isinstance(entry["y"], list):
    raise DataError(f"{where}: x and y must be lists, one entry per example")
  if len(entry["x"]) != len(entry["y"]):
    raise DataError(f"{where} has {len(entry['x'])} x but {len(entry['y'])} y")
  if not entry["x"]:
    return np.zeros(0, np.float32), np.zeros(0, np.int32)
  _refuse_texts(where, entry["x"], entry["y"])
  texts = [*entry["x"], *entry["y"]]
  if all(isinstance(text, str) for text in texts):
    return _characters(where, entry["x"], entry["y"])
  try:
    raw, y = np.asarray(entry["x"]), np.asarray(entry["y"])
    kinds = raw.dtype.kind + y.dtype.kind
  except ValueError:  # x of different shapes
    kinds = "O"
  if not set(kinds) <= set("biuf"):  # strings and numbers of 20 digits
    raise DataError(f"{where}: x and y must be numbers, all x of one shape")
  with np.errstate(over="ignore"):  # becomes infinite, refused below
    x, y = raw.astype(np.float32), y.astype(np.float64)
  if not np.isfinite(x).all():
    raise DataError(f"{where}: x has NaN or infinite values")
  if np.abs(x).max(initial=0) > 2**24:  # float32 may not tell them apart, see arrays
    x = raw.astype(np.float64)
  # FedProx's files write labels as 3.0.
  if (
    y.ndim != 1
    or not np.isfinite(y).all()
    or (y != np.floor(y)).any()
    or (y.min() < 0 or y.max() >= MAX_CLASSES)
  ):
    raise DataError(
      f"{where}: y must be one whole number in [0, {MAX_CLASSES:,}) per example"
    )
  return x, y.astype(np.int32)


def _refuse_texts(where: str, x: Sequence[Any], y: Sequence[object]) -> None:
  """Refuses what LEAF keeps of CelebA and of Sent140, and says what to do."""
  first = x[0]
  if isinstance(first, str) and _IMAGE_FILE.fullmatch(first):
    raise DataError(
      f"{where}: x and y must be numbers, x are names of image files"
      f" ({first!r}), as in LEAF's CelebA; read the images into an .npz with"
      " client_train (`dataset`=npz)"
    )
  row = isinstance(first, list) and any(isinstance(v, str) for v in first)
  if row or isinstance(first, str) and not all(isinstance(v, str) for v in y):
    text = str(first[-1] if row else first)[:30]
    raise DataError(
      f"{where}: x and y must be numbers, x are texts ({text!r}), as in"
      " LEAF's Sent140; give ids of words in an .npz with client_train"
      " (`dataset`=npz), or take the tweets of TFDS (`dataset`=sent140)"
    )


def _characters(
  where: str, x: list[str], y: list[str]
) -> tuple[np.ndarray, np.ndarray]:
  """Texts of one length and the character after each, as ids and classes."""
  lengths = {len(text) for text in x}
  if len(lengths) != 1 or lengths == {0} or any(len(label) != 1 for label in y):
    raise DataError(
      f"{where}: x must be texts of one length, y the character after each"
    )
  tokens = characters.encode_text("".join(x)).reshape(len(x), -1)
  return tokens.astype(np.int32), characters.classes(characters.encode_text("".join(y)))


class Leaf(UserFiles):
  """A json file of LEAF or FedProx, or a folder with train/ and test/."""

  WORD, EXAMPLE = "leaf", "leaf:folder"
  TEXTS, OF_USER = True, True

  @property
  def is_natural(self) -> bool:
    """Its users are the clients by default; they may be dealt anew."""
    return True

  def load(self) -> Examples:
    """Loads the users (``load_leaf``)."""
    return load_leaf(self.path)

  def _files(self) -> Sequence[pathlib.Path]:
    return leaf_files(self.path)
