"""Checksums beside what is exported, in the form of ``sha256sum``.

``model.npz.sha256`` has a line for ``model.npz``; of a folder it has one for
every file in it. So ``sha256sum -c model.npz.sha256`` checks a copy. The first
line tells that ``RunResult.export`` has written it, and what it names.
"""

from collections.abc import Iterator, Mapping
import contextlib
import os
import pathlib
import re

from fedjax_alg import files
from fedjax_alg.errors import OptionError

SUFFIX = ".sha256"
#: Suffix of unfinished files, which no other program uses.
PARTIAL = ".fedjax_alg.partial"

_HEAD = "# An export of fedjax_alg, for sha256sum -c"
_LINE = re.compile(r"\\?([0-9a-fA-F]{64})(?: [ *]?(.*))?")

#: (name, sha256) of files, as ``digests`` names them.
Sums = set[tuple[str, str]]


def place_of(path: pathlib.Path) -> pathlib.Path:
  """The file with the checksums of ``path``."""
  return path.with_name(path.name + SUFFIX)


def digests(path: pathlib.Path) -> dict[str, str]:
  """The sha256 of a file, or of every file of a folder.

  Args:
    path: a file or a folder.

  Returns:
    Name -> sha256; the names begin behind ``path`` and are "" for a file.

  Raises:
    OSError: one cannot be read, or is no regular file.
  """
  if not path.is_dir():
    return {"": files.sha256(path)}
  sums = {}
  for folder, folders, names in os.walk(path):
    links = [name for name in folders if os.path.islink(f"{folder}/{name}")]
    for name in (*names, *links):
      place = pathlib.Path(folder) / name
      sums[str(place.relative_to(path))] = files.sha256(place)
  return sums


def _read(path: pathlib.Path) -> tuple[bool, Sums] | None:
  """Whether we wrote the checksums of ``path``, and (name, sha256) of each.

  Returns:
    None without such a file.

  Raises:
    OptionError: it is there and has no checksums.
  """
  place = place_of(path)
  if not os.path.lexists(place):
    return None
  try:
    lines = files.read_text(place).splitlines()
  except OSError:
    lines = []
  sums = [
    _LINE.fullmatch(line.strip())
    for line in lines
    if line.strip() and not line.startswith("#")
  ]
  if not sums or not all(sums):
    raise OptionError(
      f"{place}: has no checksums of {path.name} as sha256sum "
      "writes them; remove it or restore it"
    )
  return _HEAD in lines, {
    ((line[2] or "").partition("/")[2] if path.is_dir() else "", line[1].lower())
    for line in sums
    if line is not None
  }


def is_export(path: pathlib.Path) -> bool:
  """Recognizes an export, a file or a folder, as its checksums name it."""
  read = _read(path)
  if read is None or not read[0]:
    return False
  try:
    sums = digests(path)
  except OSError:
    return False
  return bool(sums) and set(sums.items()) <= read[1]


def verify(path: pathlib.Path, label: str) -> dict[str, str]:
  """Compares a file or folder with the checksums beside it, if there are any.

  A folder is compared only with checksums that an export has written.

  Args:
    path: what is about to be read.
    label: how messages name it.

  Returns:
    Its checksums, see ``digests``.

  Raises:
    OSError: it cannot be read.
    OptionError: it is not as it was written.
  """
  sums, read = digests(path), _read(path)
  if (
    read is not None
    and (read[0] or not path.is_dir())
    and not (set(sums.items()) <= read[1])
  ):
    raise OptionError(
      f"{label}: is not as it was written (its sha256 is not in "
      f"{place_of(path).name}); restore it, or remove that file"
    )
  return sums


def check_output(path: pathlib.Path, label: str, folder: bool) -> None:
  """Refuses to replace anything but an earlier export.

  Args:
    path: where an export is to be written.
    label: how messages name it.
    folder: whether it is to be a folder.

  Raises:
    OSError: what is there cannot be read.
    OptionError: something else is there.
  """
  if path.name in ("", ".."):
    raise OptionError(f"{label}: has no name; give that of an export")
  if not path.name.isprintable():  # sha256sum writes such names in another way
    raise OptionError(f"{label}: its name must be printable text in one line")
  if folder and path.is_dir():
    why = (
      ""
      if not any(path.iterdir()) or is_export(path)
      else (f"holds files without checksums in {place_of(path).name}")
    )
  else:
    why = files.obstacle(
      path, is_export, f"is no export with its checksums in {place_of(path).name}"
    )
  if why:
    raise OptionError(
      f"{label}: {why}, and only an earlier export is replaced; remove it or "
      "write to another place"
    )
  files.check_outputs(label, {place_of(path): files.text_with(_HEAD)})


def _write(path: pathlib.Path, *sums: Mapping[str, str]) -> None:
  with files.replacing(place_of(path), PARTIAL) as partial:
    partial.write_text(
      "\n".join(
        [
          _HEAD,
          *dict.fromkeys(
            f"{digest}  {path.name}{name and '/'}{name}"
            for digests in sums
            for name, digest in digests.items()
          ),
        ]
      )
      + "\n",
      "utf-8",
    )


@contextlib.contextmanager
def replacing_with_checksums(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Lets the caller write an export, whose checksums are written with it.

  A process that is killed in between leaves an export and checksums that fit,
  the old one or the new one; of a folder perhaps none, since no folder takes
  the place of another at once.

  Args:
    path: the file or folder, after ``check_output``.

  Yields:
    See ``files.replacing``.
  """
  before = digests(path) if is_export(path) else {}
  files.discard(path.with_name(path.name + PARTIAL))  # of one that was killed
  with files.replacing(path, PARTIAL) as partial:
    yield partial
    after = digests(partial)
    _write(path, before, after)
  _write(path, after)
