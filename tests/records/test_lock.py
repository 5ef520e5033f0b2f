"""The lock of a folder: one process at a time, and none after its death."""

import errno
import fcntl
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

import fedjax_alg as fa
from fedjax_alg.records import lock

#: Another process with the lock of a folder, until it is killed.
HOLDER = """
import fcntl, os, sys
file = open(sys.argv[1] + "/run.lock", "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), "there", sep="\\n", file=file, flush=True)
print("held", flush=True)
sys.stdin.read()
"""

#: When a process took a lock.
SINCE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def test_another_process_and_its_death(tmp_path):
  """Without ``remove_stale_lock`` a finished run of a sweep keeps an empty run.lock."""
  lock.remove_stale_lock(tmp_path)
  with subprocess.Popen(
    [sys.executable, "-c", HOLDER, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as process:
    assert process.stdout.readline() == b"held\n"
    lock.remove_stale_lock(tmp_path)
    assert f"there, process {process.pid}, since" in lock.living_holder(tmp_path)
    for _ in range(2):  # who is refused leaves the file as it is
      with pytest.raises(lock.HeldError) as error:
        with lock.hold(tmp_path):
          pass
      assert re.fullmatch(
        f"{tmp_path}: is being run by there, process {process.pid}, since {SINCE}",
        str(error.value),
      )
    process.kill()
  stale = (tmp_path / lock.NAME).read_bytes()  # is stale
  assert lock.living_holder(tmp_path) == ""
  with lock.hold(tmp_path):
    pass
  assert not list(tmp_path.iterdir())
  (tmp_path / lock.NAME).write_bytes(stale)
  lock.remove_stale_lock(tmp_path)
  assert not list(tmp_path.iterdir())


def no_kernel_locks(*args):
  raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("kernel", [True, False])
def test_who_holds_it_and_what_is_left(tmp_path, monkeypatch, kernel):
  if not kernel:
    monkeypatch.setattr(fcntl, "flock", no_kernel_locks)
  folder = tmp_path / "new" / "run"
  assert issubclass(fa.HeldError, fa.RunFolderError)  # what ``run`` promises
  for remains in ([], ["config.json"]):
    with lock.hold(folder), lock.hold(tmp_path / "new" / "." / "run"):
      assert (folder / lock.NAME).read_text("utf-8").split()[:2] == [
        str(os.getpid()),
        socket.gethostname(),
      ]
      with open(folder / lock.NAME, "rb") as file:  # as another process would
        if kernel:
          with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      for name in remains:
        (folder / name).touch()
    assert [path.name for path in tmp_path.rglob("*.*")] == remains
    assert folder.exists() == bool(remains)


def test_a_look_at_the_lock_does_not_stop_a_run(tmp_path):
  """``status`` asks for the lock; a run that starts then is held by nobody."""
  path = tmp_path / lock.NAME
  path.touch()
  with open(path, "rb") as file:
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    look = threading.Timer(0.05, fcntl.flock, (file.fileno(), fcntl.LOCK_UN))
    look.start()
    with lock.hold(tmp_path):
      look.join()


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_stale_files_where_the_kernel_has_no_locks(tmp_path, monkeypatch):
  monkeypatch.setattr(fcntl, "flock", no_kernel_locks)
  with subprocess.Popen([sys.executable, "-c", ""]) as gone:
    pass
  path = tmp_path / lock.NAME
  path.write_text(f"{gone.pid}\n{socket.gethostname()}\n", encoding="utf-8")
  assert lock.living_holder(tmp_path) == ""
  with lock.hold(tmp_path):
    assert path.read_text("utf-8").startswith(f"{os.getpid()}\n")
    assert str(os.getpid()) in lock.living_holder(tmp_path)
  path.write_text(f"{gone.pid}\nelsewhere\n", encoding="utf-8")
  assert "elsewhere" in lock.living_holder(tmp_path)
  with pytest.raises(lock.HeldError) as error:
    with lock.hold(tmp_path):
      pass
  assert f"run by elsewhere, process {gone.pid}, since" in str(error.value)
  assert str(error.value).endswith(f"(if that process has died, remove {path})")


TABLE = """\
/dev/sda1 / ext4 rw 0 0
results {bucket} fuse.gcsfuse rw,nosuid,user_id=0 0 0
remote:results {other} fuse.rclone rw 0 0
mountpoint-s3 {old} fuse rw 0 0
/dev/sdb1 {bucket}/disk ext4 rw 0 0
server:/home {nfs} nfs4 rw 0 0
user@host: {ssh} fuse.sshfs rw 0 0
tmpfs {hidden} tmpfs rw 0 0
results {hidden} fuse.s3fs rw 0 0
short
"""


def test_buckets_are_refused(tmp_path, monkeypatch):
  """Hosts do not share locks there, and a rename is a copy: two could run one."""
  places = {
    name: tmp_path / name for name in ("other", "old", "nfs", "ssh", "hidden")
  } | {"bucket": tmp_path / "my bucket"}
  mounts = tmp_path / "mounts"
  mounts.write_text(
    TABLE.format(**{n: str(p).replace(" ", r"\040") for n, p in places.items()}),
    "utf-8",
  )
  monkeypatch.setattr(lock, "MOUNTS", mounts)
  for name, program in (
    ("bucket", "gcsfuse"),
    ("other", "rclone"),
    ("old", "mountpoint-s3"),
    ("hidden", "s3fs"),
  ):
    folder = places[name] / "runs" / "first"
    with pytest.raises(fa.RunFolderError, match=f"first: .*{program}"):
      with lock.hold(folder):
        pass
    assert not places[name].exists()
    (tmp_path / "link").symlink_to(places[name])
    with pytest.raises(fa.RunFolderError, match=program):
      with lock.hold(tmp_path / "link" / "run"):
        pass
    (tmp_path / "link").unlink()
  for folder in (
    places["nfs"],
    places["ssh"],
    places["bucket"] / "disk" / "run",
    tmp_path / "my bucket 2",
  ):
    with lock.hold(folder):
      pass
  mounts.unlink()  # as on other systems
  with lock.hold(places["bucket"]):
    pass


def test_a_process_that_ends_at_once_releases_its_locks(tmp_path):
  with lock.hold(tmp_path / "run"):
    lock.release_all()
    assert not list(tmp_path.iterdir())


def test_the_error_of_several():
  first, second = (lock.HeldError(name, "h, process 1, since now") for name in "ab")
  assert str(lock.StillHeld([first])) == (
    "a: is being run by h, process 1, since now; when that has ended, "
    "give the same command again"
  )
  assert "since now (1 more by others); when" in str(lock.StillHeld([first, second]))
