"""Checksums beside what is exported."""

import shutil
import subprocess

import numpy as np
import pytest

from fedjax_alg import files
from fedjax_alg.errors import OptionError
from fedjax_alg.records import checksums, parameters


def write(path, texts):
  """Writes an export: a text, or a folder of texts by their names."""
  with checksums.replacing_with_checksums(path) as partial:
    if isinstance(texts, str):
      partial.write_text(texts)
      return path
    partial.unlink()
    for name, text in texts.items():
      (partial / name).parent.mkdir(parents=True, exist_ok=True)
      (partial / name).write_text(text)
  return path


def read(path):
  """A text, or the texts of a folder by their names."""
  if path.is_file():
    return path.read_text()
  return {
    str(file.relative_to(path)): file.read_text()
    for file in path.rglob("*")
    if file.is_file()
  }


OLD = {"file": "one", "folder": {"a": "one", "b/c": "two"}}
NEW = {"file": "three", "folder": {"a": "three", "d": "four"}}


@pytest.mark.parametrize("kind", OLD)
def test_sha256sum_reads_them(tmp_path, kind):
  if shutil.which("sha256sum") is None:
    pytest.skip("there is no sha256sum")
  path = write(tmp_path / "a b", OLD[kind])
  check = ["sha256sum", "-c", "--strict", "a b.sha256"]
  completed = subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)
  assert completed.stdout.count(b": OK") == len(checksums.digests(path))
  (path if kind == "file" else path / "a").write_text("edited")
  assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode


class Killed(BaseException):
  """Nothing can be cleaned up any more."""


@pytest.mark.parametrize("at", ["first sums", "export", "last sums"])
@pytest.mark.parametrize("kind", OLD)
def test_a_kill_leaves_what_fits(tmp_path, monkeypatch, kind, at):
  """The old export or the new one, which the next one replaces."""
  path = write(tmp_path / "model", OLD[kind])
  write_sums, replace, calls = checksums._write, files.os.replace, []

  def dies_at_sums(*arguments):
    calls.append(arguments)
    if len(calls) == (1 if at == "first sums" else 2):
      raise Killed
    write_sums(*arguments)

  def dies_at_export(source, target):
    if target == path:
      raise Killed
    replace(source, target)

  with monkeypatch.context() as patches:
    patches.setattr(checksums, "_write", dies_at_sums)
    if at == "export":
      patches.setattr(checksums, "_write", write_sums)
      patches.setattr(files.os, "replace", dies_at_export)
    discard = files.discard
    patches.setattr(
      files,
      "discard",
      lambda place: None if place.name.endswith(checksums.PARTIAL) else discard(place),
    )
    with pytest.raises(Killed):
      write(path, NEW[kind])
  if path.exists():  # no folder takes the place of another at once
    assert checksums.is_export(path)
    checksums.verify(path, "path")
    assert read(path) == (NEW if at == "last sums" else OLD)[kind]
  checksums.check_output(path, "path", kind == "folder")
  write(path, OLD[kind])
  assert read(path) == OLD[kind]
  assert {file.name for file in tmp_path.iterdir()} == {"model", "model.sha256"}


@pytest.mark.parametrize(
  "change",
  [
    lambda path: (path / "a").write_text("edited"),
    lambda path: (path / "mine").write_text("mine"),
    lambda path: (path / "mine").symlink_to("a"),
    lambda path: (path / "mine").symlink_to("b"),  # a folder
    lambda path: (path / "gone").symlink_to("nowhere"),
  ],
)
def test_a_folder_with_files_of_others_is_no_export(tmp_path, change):
  path = write(tmp_path / "model", OLD["folder"])
  assert checksums.is_export(path)
  change(path)
  assert not checksums.is_export(path)
  with pytest.raises(OptionError, match="^path: holds files without checksum"):
    checksums.check_output(path, "path", True)
  with pytest.raises((OptionError, OSError)):
    checksums.verify(path, "path")


def test_checksums_of_others_tell_no_export(tmp_path):
  """Files are published with such ones, and nobody wants them replaced."""
  path = tmp_path / "weights"
  path.write_text("of somebody else")
  checksums.place_of(path).write_text(f"{files.sha256(path)}  weights\n")
  checksums.verify(path, "path")  # they are compared all the same
  with pytest.raises(OptionError, match="^path: is no export with its checksu"):
    checksums.check_output(path, "path", False)


@pytest.mark.parametrize("name", ["a\nb.npz", "a\rb.npz", "\udcff.npz"])
def test_a_name_that_sha256sum_writes_otherwise_is_refused(tmp_path, name):
  """The export was there, and no checksums could be read of it."""
  with pytest.raises(OptionError, match="its name must be printable"):
    parameters.write_parameters(tmp_path / name, {"w": np.ones(2)}, "npz")
  assert not list(tmp_path.iterdir())
