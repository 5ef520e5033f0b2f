"""Counts compiled programs and the time that they take, by folder of tests.

Eager operations compile a program for each shape, too. Programs that are read
from the folder of compiled ones count, as they are traced and loaded.
"""

import collections
import contextlib
import threading
import time

import jax

try:
  import resource
except ImportError:  # Windows
  resource = None

COMPILE = "/jax/core/compile/backend_compile_duration"
TRACE = (
  "/jax/core/compile/jaxpr_trace_duration",
  "/jax/core/compile/jaxpr_to_mlir_module_duration",
)
#: What is summed over the tests of a folder, and over workers.
COLUMNS = ("tests", "cpu", "programs", "compile", "trace")
_HEADS = ("tests", "CPU s", "programs", "compile s", "trace s")


class Counts:
  """Sums by folder; those of the test that runs go to its folder.

  Attributes:
    by_folder: COLUMNS -> sum, for each folder.
  """

  def __init__(self):
    self.by_folder = collections.defaultdict(lambda: dict.fromkeys(COLUMNS, 0))
    self._folder = None
    self._traced = threading.local()
    self._lock = threading.Lock()

  def listen(self):
    """Hears of all programs that JAX traces and compiles from here on."""
    jax.monitoring.register_event_duration_secs_listener(self.take)

  def take(self, event, seconds, **_):
    """Counts an event of JAX, which is told when it ends."""
    folder = self._folder
    if folder is None or (event != COMPILE and event not in TRACE):
      return
    if event in TRACE:
      seconds = self._without_inner(seconds)
    with self._lock:
      row = self.by_folder[folder]
      row["programs"] += event == COMPILE
      row["compile" if event == COMPILE else "trace"] += seconds

  def _without_inner(self, seconds):
    """The time less that of functions traced inside, which have ended before."""
    ended = self._traced.__dict__.setdefault("ended", [])
    start, rest = time.time() - seconds, seconds
    while ended and ended[-1][0] >= start:
      rest -= ended.pop()[1]
    ended.append((start, seconds))
    return max(rest, 0)

  @contextlib.contextmanager
  def of(self, folder):
    """Counts a test of this folder, with the processes that it waits for."""
    self._folder, start = folder, _cpu()
    try:
      yield
    finally:
      row = self.by_folder[folder]
      row["tests"] += 1
      row["cpu"] += _cpu() - start
      self._folder = None
      self._traced.__dict__.clear()

  def add(self, by_folder):
    """Adds the counts of another process."""
    for folder, other in by_folder.items():
      row = self.by_folder[folder]
      for name in COLUMNS:
        row[name] += other[name]

  def lines(self):
    """A table, the folder with the most CPU seconds first, then the sum."""
    rows = sorted(self.by_folder.items(), key=lambda pair: -pair[1]["cpu"])
    total = {name: sum(row[name] for _, row in rows) for name in COLUMNS}
    width = max(map(len, ("folder", *self.by_folder)))
    yield " ".join([f"{'folder':<{width}}", *(f"{head:>9}" for head in _HEADS)])
    for folder, row in [*rows, ("all", total)]:
      cells = (
        f"{row[name]:9d}" if isinstance(row[name], int) else f"{row[name]:9.1f}"
        for name in COLUMNS
      )
      yield " ".join([f"{folder:<{width}}", *cells])


def _cpu():
  """CPU seconds of this process and of those that it has waited for."""
  if resource is None:
    return time.process_time()
  kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  usages = [resource.getrusage(kind) for kind in kinds]
  return sum(usage.ru_utime + usage.ru_stime for usage in usages)
