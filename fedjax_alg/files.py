"""Files that are written as a whole or not at all, and their hashes.

Whoever writes to a place that a user has named calls ``check_outputs`` first:
what is there is replaced only if its content shows that an earlier run of the
same writer has left it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import errno
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import shutil
import stat
from typing import Any

from fedjax_alg import memory
from fedjax_alg.errors import OptionError, a_type, reason

#: Tells by its content whether a writer has left the file at a path.
Recognizer = Callable[[pathlib.Path], bool]

#: Bytes of a path and of a name in it, on all systems that JAX runs on.
_LONGEST, _LONGEST_NAME = 4096, 255

#: Bytes that are read at once.
_PIECE = 2**20

#: The largest text, in bytes: a schedule of 1,000 rounds for 100,000 clients.
LARGEST_TEXT = 2**28


def expand_path(path: str | os.PathLike, parameter: str = "") -> pathlib.Path:
  """The path with its ~ or ~user replaced by the home directory.

  Args:
    path: a path as users type it.
    parameter: name of the option that has it, for the message.

  Raises:
    OptionError: there is no such user, or no file can have this path.
  """
  label = f"`{parameter}`={path}" if parameter else str(path)
  if not isinstance(path, (str, os.PathLike)):
    raise OptionError(f"{label}: {a_type(path)}, must be a path")
  try:
    result = pathlib.Path(path).expanduser()
  except RuntimeError:
    raise OptionError(f"{label}: there is no such user's home directory") from (None)
  sizes = [
    len(part.encode("utf-8", "surrogatepass")) for part in (str(result), *result.parts)
  ]
  if (
    "\0" in str(result)
    or sizes[0] >= _LONGEST
    or (max(sizes[1:], default=0) > _LONGEST_NAME)
  ):
    raise OptionError(
      f"{label}: no path; its names have at most "
      f"{_LONGEST_NAME} bytes, and none that is zero"
    )
  return result


def open_regular(path: str | os.PathLike) -> io.BufferedReader:
  """Opens a regular file for reading, and nothing that waits or never ends.

  Raises:
    OSError: the file cannot be read, it is a pipe or a device, or it is larger
      than the memory of the machine.
  """
  file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  try:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
      raise OSError(errno.EINVAL, "no regular file", str(path))
    if status.st_size > memory.physical():
      raise OSError(errno.EFBIG, "larger than the memory", str(path))
    return os.fdopen(file, "rb")
  except OSError:
    os.close(file)
    raise


def read_bytes(path: str | os.PathLike, largest: int | None = None) -> bytes:
  """The content of a regular file.

  Args:
    path: the file.
    largest: the most bytes that are read; None: as many as the memory has.

  Raises:
    OSError: see ``open_regular``, or the file has more bytes.
  """
  with open_regular(path) as file:
    if largest is None:
      return file.read()
    # Not by its size alone, which is 0 for files that the kernel makes. A read of
    # ``largest`` bytes would take so much memory.
    content = bytearray()
    while max(len(content), os.fstat(file.fileno()).st_size) <= largest:
      piece = file.read(_PIECE)
      if not piece:
        return bytes(content)
      content += piece
    raise OSError(errno.EFBIG, f"larger than {largest // 2**20} MB", str(path))


def read_text(path: pathlib.Path, largest: int = LARGEST_TEXT) -> str:
  """The text of a regular file in UTF-8, without a byte order mark.

  Args:
    path: the file.
    largest: the most bytes that are read.

  Raises:
    OSError: the file cannot be read, or has more bytes.
    OptionError: it is no such text.
  """
  try:
    return read_bytes(path, largest).decode("utf-8-sig")  # as Excel saves it
  except UnicodeDecodeError:
    raise OptionError(f"{path}: not text in UTF-8") from None


def sha256(path: pathlib.Path) -> str:
  """The sha256 of a file's content, in hexadecimal digits.

  Raises:
    OSError: the file cannot be read.
  """
  with open_regular(path) as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def read_at(file: int, out: memoryview, at: int) -> int:
  """Reads bytes of an open file, without moving in it.

  Args:
    file: the descriptor.
    out: where the bytes are put.
    at: the place of the first one.

  Returns:
    How many there were; fewer than ``out`` takes if the file ends.

  Raises:
    OSError: they cannot be read.
  """
  done = 0
  while done < len(out) and (count := os.preadv(file, [out[done:]], at + done)):
    done += count
  return done


def write_at(file: int, data: memoryview, at: int) -> None:
  """Writes bytes of an open file, without moving in it.

  Args:
    file: the descriptor.
    data: the bytes.
    at: the place of the first one.

  Raises:
    OSError: the disk is full, for example.
  """
  done = 0
  while done < len(data):
    done += os.pwrite(file, data[done:], at + done)


def find_in_package(
  package: str, sha256_of: Mapping[str, str], label: str, advice: str
) -> list[pathlib.Path]:
  """Finds files that a package brings, without importing it.

  Args:
    package: the name by which it is imported.
    sha256_of: name of a file in its folder -> its checksum.
    label: the option, for messages.
    advice: how to install the package.

  Returns:
    The paths, in the order of the names.

  Raises:
    OptionError: the package is missing, or has another file.
  """
  spec = importlib.util.find_spec(package)
  if spec is None or not spec.submodule_search_locations:
    raise OptionError(f"{label}: the package {package} is missing ({advice})")
  folder = pathlib.Path(spec.submodule_search_locations[0])
  for name, expected in sha256_of.items():
    path = folder / name
    if not path.is_file() or sha256(path) != expected:
      raise OptionError(
        f"{label}: {path} is another file than that of the version that is read "
        f"(allowed: one with the sha256 {expected[:12]}...; {advice})"
      )
  return [folder / name for name in sha256_of]


def contents_key(paths: Iterable[pathlib.Path]) -> str:
  """Computes the key of a cache of what was read from files.

  The key has what the files hold. Size and time of writing can be those of
  other content: a file may be written twice within a tick of the clock, or
  be given the time of another.

  Args:
    paths: the files; for one that cannot be read, the reason stands in the
      place of its content.

  Returns:
    sha256 of the paths and of what they hold.
  """
  digest = hashlib.sha256()
  for path in paths:
    try:
      inside = sha256(path)
    except OSError as error:
      inside = str(error.strerror)
    digest.update(f"{path}\0{inside}\0".encode("utf-8", "surrogatepass"))
  return digest.hexdigest()


def read_json(path: pathlib.Path, largest: int | None = None) -> dict[str, Any]:
  """Reads a JSON file that holds a dictionary.

  Args:
    path: the file.
    largest: see ``read_bytes``.

  Raises:
    OSError: the file cannot be read, or has more bytes.
    ValueError: it holds something else.
  """
  try:
    content = json.loads(read_bytes(path, largest).decode("utf-8-sig"))
  except RecursionError:
    raise ValueError(f"{path.name}: nested too deeply") from None
  if not isinstance(content, dict):
    raise ValueError(f"{path.name}: no dictionary")
  return content


def sync(path: pathlib.Path) -> None:
  """Waits until a file, or the names in a folder, would outlast a power cut."""
  file = os.open(path, os.O_RDONLY)
  try:
    os.fsync(file)
  finally:
    os.close(file)


# What may be replaced.


def output_path(path: str | os.PathLike, parameter: str) -> pathlib.Path:
  """The path of something to write, see ``expand_path``.

  Args:
    path: a path as users type it.
    parameter: name of the option that has it, for the message.

  Raises:
    OptionError: it is empty, or no path.
  """
  if isinstance(path, str) and not path:
    raise OptionError(f"`{parameter}`=: empty, give the path to write to")
  return expand_path(path, parameter)


def text_with(begin: str, *parts: str) -> Recognizer:
  """Recognizes a text by its begin, and by words that are in each of its kind."""

  def has(path: pathlib.Path) -> bool:
    text = read_bytes(path).decode("utf-8", "replace")
    return text.startswith(begin) and all(part in text for part in parts)

  return has


def table_with(*columns: str) -> Recognizer:
  """Recognizes a CSV table by columns that its writer puts into each."""
  return lambda path: (
    set(columns)
    <= set(
      read_bytes(path).split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    )
  )


def json_with(*entries: str) -> Recognizer:
  """Recognizes a JSON dictionary by entries that its writer puts into each."""

  def has(path: pathlib.Path) -> bool:
    try:
      return set(entries) <= read_json(path).keys()
    except ValueError:
      return False

  return has


def with_sibling(name: str, recognizer: Recognizer) -> Recognizer:
  """Recognizes a file by another one of the same writer in its folder."""

  def has(path: pathlib.Path) -> bool:
    place = path.with_name(name)
    return place.is_file() and recognizer(place)

  return has


def picture(path: pathlib.Path) -> bool:
  """Recognizes a PNG or PDF as ``drawing.plots`` writes them.

  They are Matplotlib's, with 130 dots per inch (5,118 per meter) or without a
  date.
  """
  content = read_bytes(path)
  if content.startswith(b"%PDF"):
    return b"(Matplotlib pdf backend" in content and (b"/CreationDate" not in content)
  resolution = b"pHYs" + 2 * (5118).to_bytes(4, "big")
  return content.startswith(b"\x89PNG") and (
    b"Software\0Matplotlib" in content[:500] and resolution in content[:500]
  )


def obstacle(
  path: pathlib.Path,
  recognizer: Recognizer,
  otherwise: str = "is not from an earlier call",
) -> str:
  """Says why what is at a path must not be replaced; "" if it may be.

  A free path and an empty file may, and so may a link to nothing.

  Args:
    path: where something is to be written.
    recognizer: tells an earlier output of the same kind.
    otherwise: what to say of another file.

  Raises:
    OSError: what is there cannot be read.
  """
  try:
    status = os.stat(path)
  except (FileNotFoundError, NotADirectoryError):
    return ""
  if stat.S_ISDIR(status.st_mode):
    return "is a folder"
  if not stat.S_ISREG(status.st_mode):
    return "is a device, a pipe or a socket"
  if status.st_size and not recognizer(path):
    return otherwise
  return ""


def check_outputs(place: str, outputs: Mapping[pathlib.Path, Recognizer]) -> None:
  """Refuses to replace anything but earlier outputs of the same kind.

  Args:
    place: how messages name where is written, such as "`out`=FOLDER".
    outputs: a path that will be written -> what tells an earlier output there.

  Raises:
    OptionError: something else is there, or cannot be read.
  """
  for path, recognizer in outputs.items():
    try:
      why = obstacle(path, recognizer)
    except OSError as error:
      raise OptionError(f"{place}: cannot be replaced ({reason(error)})") from (error)
    if why:
      raise OptionError(
        f"{place}: {path} {why}, and nothing else is replaced; "
        "remove it or write to another place"
      )


def discard(path: pathlib.Path) -> None:
  """Removes a file, a link or a folder with all that is in it, if it exists."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(
  path: pathlib.Path, suffix: str = ".partial", durable: bool = False
) -> Iterator[pathlib.Path]:
  """Lets the caller write a file beside ``path``, which then takes its place.

  After an error ``path`` is as it was, and the other file is removed. Neither
  of the two is ever written through a link: links are replaced. A device, a
  pipe, a socket or a folder is not.

  Args:
    path: the file to make or replace; whether it may be replaced is for the
      caller to know (``check_outputs``).
    suffix: what the name of the other file has more.
    durable: whether it is to outlast a power cut from then on.

  Yields:
    The path to write to, an empty file. The caller may put a folder in its
    place, which then replaces a file or a folder at ``path``.

  Raises:
    OSError: something cannot be written or replaced.
  """
  if not path.name:  # "." or "/"
    raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
  partial = path.with_name(path.name + suffix)
  for place in (path, partial):
    if place.exists() and not (place.is_symlink() or place.is_file() or place.is_dir()):
      raise OSError(errno.EINVAL, "a device, a pipe or a socket", str(place))
  if partial.is_dir() and not partial.is_symlink():
    raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(partial))
  try:
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    yield partial
    if durable:
      sync(partial)
    if partial.is_dir():  # which takes the place of an empty folder alone
      discard(path)
    os.replace(partial, path)
    if durable:
      sync(path.parent)
  except BaseException as error:
    if isinstance(error, OSError) and error.filename is None:
      error.filename = str(path)  # a full disk does not say what was written
    discard(partial)
    raise
