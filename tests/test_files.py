"""A file is there as a whole or not at all."""

import errno
import hashlib
import os
import pathlib

import pytest

from experiments.cli import presets
from fedjax_alg import files, own
from fedjax_alg.data.concepts import read_schedule
from fedjax_alg.data.partition_file import read_partition
from fedjax_alg.data.scikit_learn import load_digits as digits
from fedjax_alg.engine.availability import read_availability
from fedjax_alg.errors import OptionError, reason
from tests.each import each


def test_a_file_is_replaced_when_it_is_whole(tmp_path):
  path = tmp_path / "table.csv"
  path.write_text("old")
  with files.replacing(path) as partial:
    partial.write_text("new")
    assert path.read_text() == "old" and partial.parent == tmp_path
  assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
  """Excel and Notepad write one, and the first column or flag had it."""
  path = tmp_path / "saved"
  path.write_text('{"a": 1}', encoding="utf-8-sig")
  assert files.read_text(path) == '{"a": 1}'
  assert files.read_json(path) == {"a": 1}


def test_a_text_has_a_largest_size(tmp_path):
  """Of a file without an end as much was read as there is memory."""
  path = tmp_path / "text"
  path.write_text("four")
  assert files.read_text(path, 4) == "four"
  with pytest.raises(OSError, match="larger than 0 MB"):
    files.read_text(path, 3)
  with pytest.raises(OSError, match="larger than"):  # its size is said to be 0
    files.read_text(pathlib.Path("/proc/self/status"), 10)


#: Options that are texts -> how each is read.
TEXTS = {
  "concepts": read_schedule,
  "sampling": read_availability,
  "flagfile": presets.load_preset,
  "partition": lambda path: read_partition(path, digits()),
  "model": lambda path: own.refuse_nameless(path, "model"),
}


@pytest.mark.parametrize("option", TEXTS)
def test_every_option_that_is_a_text_is_a_regular_file_of_a_size(tmp_path, option):
  """``--concepts=/dev/zero`` took 7 GB in 20 seconds."""
  suffix = {"model": "py", "partition": "json"}.get(option, "txt")
  large, zero, pipe = (tmp_path / f"{n}.{suffix}" for n in ("large", "zero", "pipe"))
  large.touch()
  os.truncate(large, files.LARGEST_TEXT + 1)
  zero.symlink_to("/dev/zero")
  os.mkfifo(pipe)
  for path in (large, zero, pipe):
    with pytest.raises(OptionError, match=f"^{option}=") as error:
      TEXTS[option](str(path))
    assert "\n" not in str(error.value)


def test_an_error_leaves_what_was_there(tmp_path):
  path = tmp_path / "table.csv"
  path.write_text("old")
  with pytest.raises(KeyboardInterrupt), files.replacing(path, ".x") as partial:
    assert partial.name == "table.csv.x"
    partial.write_text("ne")
    raise KeyboardInterrupt
  assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("link", ["table.csv", "table.csv.partial"])
def test_links_are_replaced_and_not_followed(tmp_path, link):
  path, target = tmp_path / "table.csv", tmp_path / "other"
  target.write_text("mine")
  (tmp_path / link).symlink_to(target)
  with files.replacing(path, durable=True) as partial:
    partial.write_text("new")
  assert (path.read_text(), target.read_text()) == ("new", "mine")
  assert not path.is_symlink()


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "{", "\0"])
def test_json_that_is_no_dictionary(tmp_path, text):
  (tmp_path / "a.json").write_text(text)
  with pytest.raises(ValueError):
    files.read_json(tmp_path / "a.json")
  with pytest.raises(FileNotFoundError):
    files.read_json(tmp_path / "b.json")


def test_the_hash_of_a_file_is_that_of_its_content(tmp_path):
  (tmp_path / "a").write_bytes(b"abc" * 100_000)
  assert files.sha256(tmp_path / "a") == hashlib.sha256(b"abc" * 100_000).hexdigest()
  with pytest.raises(OSError):
    files.sha256(tmp_path / "b")


def test_the_key_of_files_is_their_content(tmp_path):
  first, second = tmp_path / "a", tmp_path / "b"
  first.write_bytes(b"1")
  keys = [files.contents_key([first]), files.contents_key([first, second])]
  for content, time in ((b"2", 5), (b"1", 7)):
    first.write_bytes(content)
    os.utime(first, (time, time))
    keys.append(files.contents_key([first]))
  second.write_bytes(b"")
  keys.append(files.contents_key([first, second]))
  assert keys[0] == keys[3] and len(set(keys)) == 4


def test_an_error_of_the_disk_names_the_file(tmp_path):
  path = tmp_path / "table.csv"
  with pytest.raises(OSError) as caught, files.replacing(path):
    raise OSError(errno.ENOSPC, "No space left on device")
  assert reason(caught.value) == f"{path}: No space left on device"


def test_the_home_of_an_unknown_user(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert files.expand_path("~/a") == tmp_path / "a"
  with pytest.raises(OptionError, match="^data_dir=~nosuchuser/a: there is no"):
    files.expand_path("~nosuchuser/a", "data_dir")


@pytest.mark.parametrize("path", ["a\0b", "b" * 256, "ü" * 128, "c/" * 2049])
def test_what_no_file_can_be_called(path):
  with pytest.raises(OptionError, match="^data_dir=.*: no path; its names"):
    files.expand_path(path, "data_dir")
  assert len(files.expand_path("d" * 255).name) == 255


@pytest.mark.parametrize(
  "make", [os.mkfifo, lambda path: path.mkdir(), lambda path: os.mknod(path, 0o140600)]
)  # a socket
def test_what_is_no_file_is_not_replaced(tmp_path, make):
  path = tmp_path / "table.csv"
  make(path)
  before = path.stat()
  with pytest.raises(OSError), files.replacing(path) as partial:
    partial.write_text("new")
  assert path.stat() == before and list(tmp_path.iterdir()) == [path]
  make(tmp_path / "a.partial")  # and neither is what has the other name
  with pytest.raises(OSError), files.replacing(tmp_path / "a"):
    pass
  assert (tmp_path / "a.partial").exists()
  with pytest.raises(OptionError, match=r"^`?out`?=x: .*table.csv is a "):
    files.check_outputs("`out`=x", {path: lambda path: True})


def test_a_folder_takes_the_place_of_a_folder(tmp_path):
  path = tmp_path / "model"
  (path / "old").mkdir(parents=True)
  with files.replacing(path, ".x") as partial:
    partial.unlink()
    (partial / "new").mkdir(parents=True)
    assert (path / "old").is_dir()
  assert [entry.name for entry in path.iterdir()] == ["new"]
  assert list(tmp_path.iterdir()) == [path]


IS_TABLE = files.table_with("a", "b")


@each(
  "recognizer, content, is_earlier",
  [
    (IS_TABLE, b"b,c,a\n1,2,3\n", True),
    (IS_TABLE, b"a,b\r\n", True),
    (IS_TABLE, b"a,c\n1,b\n", False),
    (IS_TABLE, b"\xff\xfe", False),
    (files.json_with("a", "b"), b'{"b": 1, "a": {}, "c": 2}', True),
    (files.json_with("a"), b'{"b": {"a": 1}}', False),
    (files.json_with("a"), b'["a"]', False),
    (files.json_with("a"), b"[" * 100_000, False),
    (files.text_with("# ", "by x"), b"# Title\nby x", True),
    (files.text_with("# ", "by x"), b"by x # Title", False),
    (files.text_with("# ", "by x"), b"# Title", False),
    (files.text_with("# "), b"", True),  # nothing is lost
    (files.picture, b"\x89PNG\r\n of a camera", False),
    (files.picture, b"%PDF-1.4 /CreationDate", False),
  ],
)
def test_earlier_outputs_are_told_by_their_content(
  tmp_path, recognizer, content, is_earlier
):
  path = tmp_path / "file"
  path.write_bytes(content)
  if is_earlier:
    files.check_outputs("`out`=x", {path: recognizer})
  else:
    with pytest.raises(OptionError, match="file is not from an earlier call"):
      files.check_outputs("`out`=x", {path: recognizer})
  assert path.read_bytes() == content
  other_path = tmp_path / "other"
  other_path.write_text("x")
  assert (
    not files.obstacle(other_path, files.with_sibling("file", recognizer))
    or not is_earlier
    or not content
  )
  assert files.obstacle(other_path, files.with_sibling("none", recognizer))
