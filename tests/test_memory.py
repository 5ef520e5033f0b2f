"""What does not fit into memory is refused before it is made."""

import gc
import mmap
import resource
import weakref

import numpy as np
import pytest

from fedjax_alg import memory
from fedjax_alg.errors import OptionError

PAGE = 4096


def system(folder, groups=(), files=(), status="", swap=0):
  """A folder with the files of /proc and /sys that are read."""
  proc = folder / "proc"
  (proc / "self").mkdir(parents=True)
  (proc / "self/cgroup").write_text("".join(f"{line}\n" for line in groups))
  (proc / "self/status").write_text(f"Name:\tpython\n{status}")
  (proc / "meminfo").write_text(f"MemTotal: 9 kB\nSwapTotal:   {swap} kB\n")
  for name, text in dict(files).items():
    path = folder / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
  return folder


def test_what_others_use_is_not_free(tmp_path):
  """Pages of files can be taken back, so they count as free."""
  files = {
    "a/memory.max": 9 * PAGE,
    "a/memory.current": 6 * PAGE,
    "a/memory.stat": f"anon {PAGE}\ninactive_file {2 * PAGE}",
  }
  root = system(tmp_path, ["0::/a"], files)
  assert memory.host(root).nbytes == 9 * PAGE
  assert memory.free(root).nbytes == 5 * PAGE
  (root / "proc/meminfo").write_text("MemAvailable: 8 kB\n")
  assert memory.free(root).nbytes == 8 * 1024


@pytest.mark.parametrize(
  "groups,files,expected",
  [
    # Version 2: the least of the group and of those above it.
    (["0::/a/b"], {"a/b/memory.max": "max", "a/memory.max": 10 * PAGE}, 10 * PAGE),
    (["0::/a/b"], {"a/b/memory.max": 5 * PAGE, "memory.max": 9 * PAGE}, 5 * PAGE),
    # In a container the folder of the group is missing, the top is its own.
    (["0::/docker/x"], {"memory.max": 7 * PAGE}, 7 * PAGE),
    # Swap space counts, as far as the group may use it.
    (["0::/a"], {"a/memory.max": PAGE, "a/memory.swap.max": 4096}, 2 * PAGE),
    # Version 1, beside groups of other controllers.
    (
      ["4:cpu:/c", "3:memory:/a", "0::/"],
      {"memory/a/memory.limit_in_bytes": 6 * PAGE, "cpu/c/memory.max": 1},
      6 * PAGE + 8 * PAGE,
    ),
    (
      ["3:memory:/a"],
      {
        "memory/a/memory.limit_in_bytes": 6 * PAGE,
        "memory/a/memory.memsw.limit_in_bytes": 7 * PAGE,
      },
      7 * PAGE,
    ),
  ],
)
def test_control_groups_limit_the_memory(tmp_path, groups, files, expected):
  """In a container the memory of the machine is not that of the process."""
  swap = 32 if "memory/a/memory.limit_in_bytes" in files else 0
  if "a/memory.swap.max" in files:
    swap = 1000
  limit = memory.host(system(tmp_path, groups, files, swap=swap))
  assert limit == memory.Limit(expected, "the control group of this process has")


def test_pages_of_the_process_are_no_longer_available(tmp_path):
  """Those of files are: the system takes them back."""
  status = "RssAnon:\t    8 kB\nRssFile:\t 400 kB\nVmSwap:\t 4 kB\n"
  root = system(tmp_path, ["0::/"], {"memory.max": 10 * PAGE}, status)
  assert memory.host(root).nbytes == 7 * PAGE


def test_without_any_limit_the_machine_has_its_memory_and_swap(tmp_path):
  root = system(tmp_path, ["0::/"], {"memory.max": "max"}, swap=4)
  assert memory.host(root) == (memory.physical() + PAGE, "the machine has")
  assert memory.host(tmp_path / "nothing") == (memory.physical(), "the machine has")


def test_the_limit_of_the_shell_counts(monkeypatch):
  before = memory.host().nbytes
  monkeypatch.setattr(
    resource,
    "getrlimit",
    lambda which: (
      (2**60 if which == resource.RLIMIT_AS else resource.RLIM_INFINITY,) * 2
    ),
  )
  assert memory.host().nbytes <= before + 2**28
  monkeypatch.setattr(resource, "getrlimit", lambda which: (1, 1))
  assert memory.host().nbytes == 0 and memory.host().owner.startswith("ulimit -")


def test_refused_is_what_is_larger_than_the_limit():
  def limit():
    return memory.Limit(3 * 2**29, "the box has")

  memory.refuse("`size`=1: it", 3 * 2**29, find_limit=limit)
  with pytest.raises(OptionError) as error:
    memory.refuse("`size`=2: it", 3 * 2**29 + 1, "take less", limit)
  assert str(error.value) == (
    "size=2: it needs 1.5 GB of memory, the box has 1.5 GB (take less)"
  )


def test_garbage_is_no_reason_to_refuse():
  """A federation in a circle of references would be taken for memory in use."""

  class Circle:
    def __init__(self):
      self.circle = self

  circle, alive = Circle(), [1]
  weakref.finalize(circle, alive.clear)
  del circle
  gc.disable()
  try:
    memory.refuse("it", 1, find_limit=lambda: memory.Limit(1 - len(alive), "we have"))
  finally:
    gc.enable()
  assert not alive


def test_memory_that_runs_out_all_the_same_is_one_line():
  with pytest.raises(OptionError, match="^`?it`?: out of memory .no room., .* GB$"):
    with memory.in_one_line("it"):
      raise MemoryError("no room")


def test_pages_of_a_file_are_released_behind_the_reader(tmp_path, monkeypatch):
  """Else a file that is read once counts as memory of the process."""
  monkeypatch.setattr(memory, "_PAGES", 2**20)
  path = tmp_path / "x.npy"
  np.save(path, np.ones((2048, 1024), np.float32))

  def resident(array):
    total = 0
    for rows in memory.row_chunks(array):
      total += int(array[rows].sum())
    with open("/proc/self/smaps", encoding="utf-8") as file:
      lines = file.read().split(str(path))[1].splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("Rss:"))
    return total, int(kilobytes)

  for array in (
    np.load(path, mmap_mode="r"),
    np.asarray(np.load(path, mmap_mode="r")).reshape(2048, 32, 32),
  ):
    assert resident(array) == (2**21, pytest.approx(0, abs=1024))
    del array
  # What is written to a private copy of the file is nowhere else.
  copy = np.load(path, mmap_mode="c")
  copy[0] = 2
  assert resident(copy)[0] == 2**21 + 1024 and copy[0, 0] == 2
  assert isinstance(copy.base, mmap.mmap)


def test_chunks_are_all_rows():
  array = np.zeros((7, 2**17), np.uint8)
  chunks = list(memory.row_chunks(array))
  assert len(chunks) == 4
  assert [row for rows in chunks for row in range(7)[rows]] == list(range(7))
  assert list(memory.row_chunks(array[:0])) == []
