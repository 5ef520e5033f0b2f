"""Stored arrays, damage and unwritable folders."""

import os
import stat

import numpy as np
import pytest

from fedjax_alg.data import cache


def arrays(seed=0):
  rng = np.random.default_rng(seed)
  return {
    "x": rng.normal(size=(3, 2)).astype(np.float32),
    "y": rng.integers(9, size=3).astype(np.int32),
    "none": np.zeros((0, 4), np.uint8),
  }


def never():
  raise AssertionError("built again")


def same(a, b):
  assert list(a) == list(b)
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], strict=True)


def test_what_is_read_is_what_was_built(tmp_path):
  path = tmp_path / "new" / "folder" / "a.npz"
  same(cache.read_or_build(path, "source", arrays), arrays())
  same(cache.read_or_build(path, "source", never), arrays())


@pytest.mark.parametrize(
  "damage", ["flip", "cut", "gone", "manifest", "manifest gone", "source"]
)
def test_what_is_damaged_is_built_again(tmp_path, damage):
  path, manifest = tmp_path / "a.npz", tmp_path / "a.npz.json"
  cache.read_or_build(path, "one", lambda: arrays(1))
  content = path.read_bytes()
  if damage == "flip":
    where = content.index(arrays(1)["x"].tobytes()) + 5
    path.write_bytes(
      content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]
    )
  elif damage == "cut":
    path.write_bytes(content[: len(content) // 2])
  elif damage == "manifest":
    manifest.write_text("{")
  elif damage != "source":
    (path if damage == "gone" else manifest).unlink()
  source = "two" if damage == "source" else "one"
  same(cache.read_or_build(path, source, arrays), arrays())
  same(cache.read_or_build(path, source, never), arrays())
  assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_written_costs_only_time(tmp_path):
  (tmp_path / "file").write_text("in the way")
  for seed in (0, 1):
    same(
      cache.read_or_build(
        tmp_path / "file" / "a.npz", "one", lambda seed=seed: arrays(seed)
      ),
      arrays(seed),
    )


def test_a_write_that_is_interrupted_leaves_what_was_there(tmp_path, monkeypatch):
  path = tmp_path / "a.npz"
  cache.read_or_build(path, "one", arrays)

  def interrupt(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as context:
    context.setattr(np, "savez", interrupt)
    with pytest.raises(KeyboardInterrupt):
      cache.read_or_build(path, "two", lambda: arrays(1))
  assert sorted(os.listdir(tmp_path)) == ["a.npz", "a.npz.json"]
  same(cache.read_or_build(path, "one", never), arrays())


def test_what_would_run_code_is_never_loaded(tmp_path):
  """A file of pickled objects, with a manifest that fits it."""
  path = tmp_path / "a.npz"
  cache.read_or_build(path, "one", lambda: {"x": np.array([{}], dtype=object)})
  same(cache.read_or_build(path, "one", arrays), arrays())


def mode(path):
  return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
  "umask, folder, of_folder, of_file",
  [
    (0o022, 0o755, 0o755, 0o644),
    (0o077, 0o755, 0o700, 0o600),
    (0o077, 0o2770, 0o2770, 0o660),  # a group's folder is shared
    (0o022, 0o2775, 0o2775, 0o664),
  ],
)
def test_those_who_share_the_folder_share_the_file(
  tmp_path, umask, folder, of_folder, of_file
):
  tmp_path.chmod(folder)
  before = os.umask(umask)
  try:
    path = tmp_path / "cache" / "a.npz"
    cache.read_or_build(path, "one", arrays)
  finally:
    os.umask(before)
  assert mode(path.parent) == of_folder
  assert mode(path) == mode(path.with_name("a.npz.json")) == of_file


@pytest.mark.parametrize(
  "make",
  [
    lambda path: path.write_text("mine"),
    os.mkfifo,
    lambda path: np.savez(path, other=np.zeros(3)),
  ],
)
def test_what_another_program_has_written_is_not_replaced(tmp_path, make):
  """The arrays are built, and not stored."""
  path = tmp_path / "a.npz"
  make(path)
  before = path.lstat(), path.is_file() and path.read_bytes()
  for seed in (0, 1):
    same(cache.read_or_build(path, "s", lambda seed=seed: arrays(seed)), arrays(seed))
  assert (path.lstat(), path.is_file() and path.read_bytes()) == before
  assert list(tmp_path.iterdir()) == [path]
