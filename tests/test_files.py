"""A file is there as a whole or not at all."""

import errno
import hashlib

import pytest

from fedjax_alg import files
from fedjax_alg.errors import OptionError, reason


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
  path, other = tmp_path / "table.csv", tmp_path / "other"
  other.write_text("mine")
  (tmp_path / link).symlink_to(other)
  with files.replacing(path, durable=True) as partial:
    partial.write_text("new")
  assert (path.read_text(), other.read_text()) == ("new", "mine")
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
  assert files.sha256(tmp_path / "a") == hashlib.sha256(
      b"abc" * 100_000).hexdigest()
  with pytest.raises(OSError):
    files.sha256(tmp_path / "b")


def test_an_error_of_the_disk_names_the_file(tmp_path):
  path = tmp_path / "table.csv"
  with pytest.raises(OSError) as caught, files.replacing(path):
    raise OSError(errno.ENOSPC, "No space left on device")
  assert reason(caught.value) == f"{path}: No space left on device"


def test_the_home_of_an_unknown_user(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert files.expanded("~/a") == tmp_path / "a"
  with pytest.raises(OptionError, match="^data_dir=~nosuchuser/a: there is no"):
    files.expanded("~nosuchuser/a", "data_dir")


@pytest.mark.parametrize("path", ["a\0b", "b" * 256, "ü" * 128, "c/" * 2049])
def test_what_no_file_can_be_called(path):
  with pytest.raises(OptionError, match="^data_dir=.*: no path; its names"):
    files.expanded(path, "data_dir")
  assert len(files.expanded("d" * 255).name) == 255
