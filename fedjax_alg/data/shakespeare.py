"""Plays as texts: next-character prediction, every role a client."""

from collections.abc import Iterator, Sequence
import io
import os
import pathlib
import re
import warnings

import numpy as np

from fedjax_alg import files
from fedjax_alg.data import characters
from fedjax_alg.data.arrays import make_examples
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.examples import Examples
from fedjax_alg.data.sources import UserFiles
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import hyper
from fedjax_alg.tasks.tokens import TOKENS

_TRAIN_SHARE = 0.8
# A speaker is the first line of a paragraph: "Ham." or "SECOND LORD", digits
# and several names included ("1 Clown.", "Ros. and Guil.").
_SPEAKER = re.compile(r"([A-Z0-9][^\[\]\n]{0,39})\.|([A-Z][A-Z'\- ]{1,39})")
_DIRECTION = re.compile(r"\[[^\[\]]*\]", re.DOTALL)


def _speeches(text: str) -> Iterator[tuple[str, str]]:
  """Finds the speeches of a play.

  Paragraphs are separated by empty lines. The first line of a speech is its
  speaker alone, ending in a full stop or in capitals. A paragraph after a
  stage direction in brackets continues the speech before it.

  Args:
    text: the play, in the layout of Project Gutenberg.

  Yields:
    The speaker and a speech, or a part of one; spaces and line ends in it are
    single spaces.
  """
  speaker, interrupted = None, False
  for paragraph in re.split(r"\n\s*\n", text):
    first, _, speech = paragraph.strip().partition("\n")
    match = _SPEAKER.fullmatch(first.strip())
    if _DIRECTION.fullmatch(paragraph.strip()):
      interrupted = True
      continue
    if match and speech:
      speaker = (match[1] or match[2]).strip()
      yield speaker, " ".join(speech.split())
    elif (
      interrupted
      and speaker is not None
      and not first.isupper()
      and (not re.match(r"(?i)(act|scene)\b", first))
    ):
      yield speaker, " ".join(paragraph.split())
    else:
      speaker = None
    interrupted = False


def roles(text: str) -> dict[str, str]:
  """Collects what every role of a play says.

  Args:
    text: the play.

  Returns:
    Speaker -> all speeches, in their order, separated by spaces. Only
    speakers with at least two speeches are roles; a headline or a line that
    looks like a speaker occurs once.
  """
  speeches_of: dict[str, list[str]] = {}
  for speaker, speech in _speeches(text):
    speeches_of.setdefault(speaker, []).append(speech)
  return {
    speaker: " ".join(texts) for speaker, texts in speeches_of.items() if len(texts) > 1
  }


def load_shakespeare(
  path: str | os.PathLike, length: int = 80, stride: int = 1, task: str | None = None
) -> Examples:
  """Makes windows of characters from a folder of plays.

  The task is that of McMahan et al. 2017 and LEAF (Caldas et al. 2018): from
  80 characters of a role predict the next one. A role with w windows trains on
  the first int(.8 w) of them (at least one) and tests on those that start
  behind the last character of these. Roles without a window are left out;
  short ones have no test windows. The authors' edition is another one, so the
  numbers of roles and characters differ.

  With the task "tokens" the next character is predicted at each place of a
  window. The same text is for training and for testing, in windows that do not
  overlap; the last one of a part may be padded.

  Args:
    path: a folder of texts ``*.txt``, or one text.
    length: T, number of characters that the model reads.
    stride: distance between the first characters of neighboring windows.
      Memory is divided by it; not read with the task "tokens".
    task: None or "tokens".

  Returns:
    x int8 [n, T] (int32 with the task "tokens") of token ids, the classes of the next
    characters (the ids at each place, y [n, T]), and the roles as clients, named
    "<text>: <speaker>".

  Raises:
    DataError: a file cannot be read, or there is no role with a window.
  """
  path = expand_path(path, "dataset")
  plays = play_files(path)
  if not plays:
    raise DataError(
      f"`dataset`={path}: no *.txt in it, one text for each play is needed"
    )
  names, texts, without = [], [], []
  for file in plays:
    role_texts = roles(_read(file))
    names += [f"{file.stem}: {speaker}" for speaker in role_texts]
    texts += [characters.encode_text(speech) for speech in role_texts.values()]
    if not role_texts:
      without.append(file.name)
  long = [number for number, text in enumerate(texts) if len(text) > length]
  if not long:
    raise DataError(
      f"`dataset`={path}: no role with more than length={length}"
      f" characters in {len(plays)} text(s); a speaker must stand alone on "
      "the first line of a speech, ending in a full stop"
    )
  if without:
    warnings.warn(f"no roles found in {', '.join(without)}", stacklevel=2)
  names, texts = [names[i] for i in long], [texts[i] for i in long]
  if task == "tokens":
    return _sequences(names, texts, length)
  return _windows(names, texts, length, stride)


def play_files(path: str | os.PathLike) -> list[pathlib.Path]:
  """The texts that ``load_shakespeare`` reads."""
  place = expand_path(path, "dataset")
  return sorted(place.glob("*.txt")) if place.is_dir() else [place]


def _sequences(names: list[str], texts: list[np.ndarray], length: int) -> Examples:
  """Windows [T + 1] of ids that share one character with the next window."""
  windows: dict[str, list[np.ndarray]] = {"train": [], "test": []}
  for text in texts:
    total = len(text) - length
    trains = max(1, int(_TRAIN_SHARE * total)) + length
    # Behind the last character that a window for training has predicted.
    for split, part in (("train", text[:trains]), ("test", text[trains:])):
      number = max(-(-(len(part) - 1) // length), 0)
      padded = np.pad(part, (0, max(1 + number * length - len(part), 0)))
      windows[split].append(
        np.stack([padded[i * length : (i + 1) * length + 1] for i in range(number)])
        if number
        else np.zeros((0, length + 1), text.dtype)
      )
  arrays: dict[str, np.ndarray] = {}
  for split, parts in windows.items():
    ids = np.concatenate(parts)
    arrays |= {
      "x_" + split: ids[:, :-1],
      "y_" + split: ids[:, 1:],
      "client_" + split: np.repeat(np.arange(len(names)), list(map(len, parts))),
    }
  return make_examples(
    arrays,
    lambda name: name,
    "shakespeare",
    characters.NUM_TOKENS,
    TOKENS,
    np.array(names),
    are_numbered=True,
  )


def _windows(
  names: list[str], texts: list[np.ndarray], length: int, stride: int
) -> Examples:
  text = np.concatenate(texts)
  windows = np.lib.stride_tricks.sliding_window_view(text, length)
  starts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
  first = 0
  for text_of_role in texts:
    total = len(text_of_role) - length
    trains = max(1, int(_TRAIN_SHARE * total))
    starts["train"].append(first + np.arange(0, trains, stride))
    starts["test"].append(first + np.arange(trains + length, total, stride))
    first += len(text_of_role)
  arrays = {}
  for split, parts in starts.items():
    rows = np.concatenate(parts)
    arrays["x_" + split] = windows[rows]
    arrays["y_" + split] = characters.classes(text[rows + length])
    arrays["client_" + split] = np.repeat(
      np.arange(len(names), dtype=np.int32), list(map(len, parts))
    )
  return Examples(
    **arrays,
    num_classes=characters.NUM_CLASSES,
    name="shakespeare",
    num_tokens=characters.NUM_TOKENS,
    client_names=np.array(names),
  )


def _read(path: pathlib.Path) -> str:
  try:
    with io.TextIOWrapper(files.open_regular(path), "utf-8-sig", "replace") as file:
      text = file.read()
  except OSError as error:
    raise DataError(f"`dataset`={path}: {error.strerror}") from error
  return text.replace("\u2019", "'")


class Shakespeare(UserFiles):
  """Plays as *.txt in a folder; their roles are the clients."""

  WORD, EXAMPLE = "shakespeare", "shakespeare:plays,stride=10"
  HAS_CLIENTS, CONTENT, TEXTS = True, "characters", True
  READS = ("task",)

  length: int = hyper(
    80, "number of characters that the model reads", minimum=1, maximum=10_000
  )
  stride: int = hyper(
    1,
    "number of characters between the starts of two examples of a role; 1 makes an "
    "example of every character, 80 bytes each, and 10 a tenth of them",
    minimum=1,
  )

  def load(self, task: str | None) -> Examples:
    """Loads the plays (``load_shakespeare``)."""
    return load_shakespeare(self.path, self.length, self.stride, task)

  def _files(self) -> Sequence[pathlib.Path]:
    return play_files(self.path)

  def check_task(self, task: str | None) -> None:
    """Refuses a stride of windows that do not overlap (``DataSet.check_task``)."""
    if task == TOKENS.name and self.stride != Shakespeare.stride:
      raise DataError(
        f"`dataset`={self}: stride={self.stride} is not read with "
        "`task`=tokens, whose examples do not overlap"
      )
