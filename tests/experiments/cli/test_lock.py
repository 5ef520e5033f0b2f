"""The lock of a folder: one process at a time, and none after its death."""

import json
import os
import socket
import subprocess
import sys

import pytest

from experiments.cli import lock

#: Another process with the lock of a folder, until it is killed.
HOLDER = """
import fcntl, json, os, sys, time
file = open(sys.argv[1] + "/run.lock", "w")
fcntl.flock(file, fcntl.LOCK_EX)
json.dump({"host": "there", "pid": os.getpid(), "started": "1",
           "since": "now"}, file)
file.flush()
print("held", flush=True)
time.sleep(600)
"""


def test_another_process_and_its_death(tmp_path):
  with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)],
                        stdout=subprocess.PIPE) as process:
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(lock.HeldError) as error:
      with lock.held(tmp_path):
        pass
    process.kill()
  assert str(error.value) == (f"{tmp_path}: is being played by there, process "
                              f"{process.pid}, since now")
  assert (tmp_path / lock.NAME).exists()  # is stale
  with lock.held(tmp_path):
    pass
  assert not list(tmp_path.iterdir())


def test_what_a_killed_process_has_left_is_removed(tmp_path):
  """Without it a finished run of a sweep keeps an empty run.lock for ever."""
  lock.tidy(tmp_path)
  (tmp_path / lock.NAME).touch()
  lock.tidy(tmp_path)
  assert not list(tmp_path.iterdir())
  with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)],
                        stdout=subprocess.PIPE) as process:
    assert process.stdout.readline() == b"held\n"
    lock.tidy(tmp_path)
    assert (tmp_path / lock.NAME).exists()  # it is played
    process.kill()


@pytest.mark.parametrize("kernel", [True, False])
def test_who_holds_it_and_what_is_left(tmp_path, monkeypatch, kernel):
  monkeypatch.setattr(lock, "_has_locks", lambda folder: kernel)
  folder = tmp_path / "new" / "run"
  take = lock._lock_kernel if kernel else lock._lock_file
  for left in ([], ["config.json"]):
    with lock.held(folder), lock.held(tmp_path / "new" / "." / "run"):
      said = json.loads((folder / lock.NAME).read_text("utf-8"))
      assert (said["host"], said["pid"]) == (socket.gethostname(), os.getpid())
      with pytest.raises(lock.HeldError, match=f"process {os.getpid()}, since"):
        take(folder / lock.NAME, folder)
      for name in left:
        (folder / name).touch()
    assert [path.name for path in tmp_path.rglob("*.*")] == left
    assert folder.exists() == bool(left)


def test_stale_files_where_the_kernel_has_no_locks(tmp_path, monkeypatch):
  monkeypatch.setattr(lock, "_has_locks", lambda folder: False)
  with subprocess.Popen([sys.executable, "-c", ""]) as gone:
    pass
  here = {"host": socket.gethostname(), "pid": gone.pid, "started": "1",
          "since": "then"}
  path = tmp_path / lock.NAME
  # Dead, or its number is another process' by now.
  for stale in (here, here | {"pid": os.getpid()}):
    path.write_text(json.dumps(stale), encoding="utf-8")
    with lock.held(tmp_path):
      assert json.loads(path.read_text("utf-8"))["since"] != "then"
  for kept in (here | {"host": "elsewhere"}, {"pid": "x"}):
    path.write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(lock.HeldError) as error:
      with lock.held(tmp_path):
        pass
    assert str(error.value).endswith(
        f"(if that process has died, remove {path})")


def test_the_error_of_several():
  one, two = (lock.HeldError(name, "h, process 1, since now") for name in "ab")
  assert str(lock.still_held([one])) == (
      "a: is being played by h, process 1, since now; when that has ended, "
      "give the same command again")
  assert "since now (1 more by others); when" in str(
      lock.still_held([one, two]))
