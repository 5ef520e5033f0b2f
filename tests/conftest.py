"""How JAX is started for the tests, and the small problems they share."""

import datetime
import gc
import os
import re
import shutil
import sys
import tempfile
import types

import hypothesis
import jax
from jax.experimental.compilation_cache import compilation_cache
import jaxtyping
import pytest

from fedjax_alg.engine import sharding, stored
from tests import compilers, problems, program_counts, shared_programs

#: Folders whose tests compile whole rounds or runs, as files marked
#: ``program`` do.
PROGRAMS = ("algorithms", "contract", "docs", "experiments", "runs", "testing")

#: Marks that put a test into ``--fast`` or leave it out.
SPEEDS = ("fast", "program")

#: Folders whose programs several processes compile. Elsewhere the time to write
#: them to files is more than what reading them saves.
SHARED = ("docs", "experiments", "runs")

#: Folders in which most files have runs of the same programs.
TOGETHER = ("tests/runs", "tests/experiments")

#: Files and folders whose tests take longest.
LONGEST = (
  "tests/experiments/*/*.py",
  "tests/experiments/*.py",
  "tests/runs/*.py",
  "tests/docs/*.py",
  "tests/algorithms/*.py",
)

#: Compiled programs are forgotten above so many pieces of memory. Linux ends a
#: process that has 65,530, and a program of the newest jaxlib takes several.
MOST_MAPS = 20_000

#: Compiled programs of this process, and in the end those of its workers.
COUNTS = program_counts.Counts()

compilers.start()
# JAX_PLATFORMS=cuda,cpu runs all tests on a GPU. Its products of matrices are
# those of the CPU, to rounding, only if none is in TF32 (bfloat16 on a TPU).
if "JAX_PLATFORMS" not in os.environ:
  jax.config.update("jax_platforms", "cpu")
elif os.environ["JAX_PLATFORMS"] != "cpu":
  jax.config.update("jax_default_matmul_precision", "highest")
# A session compiles a program once: its workers (in SHARED), and the commands
# that tests start, share a folder. Workers find it in their environment.
_PREFIX, _CACHE = "fedjax_alg_tests_", None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  _CACHE = tempfile.mkdtemp(prefix=_PREFIX)
  os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
  jax.config.update("jax_compilation_cache_dir", _CACHE)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
# One that is given stays from session to session, and is for all tests.
_MADE_HERE = _PREFIX in os.environ["JAX_COMPILATION_CACHE_DIR"]
# Tests replace functions and count what is traced; those of stored programs set it.
stored.IS_USED = False
jax.config.update("jax_num_cpu_devices", 4)
# Nobody reads where in the tests an operation was traced.
jax.config.update("jax_traceback_in_locations_limit", 0)
jax.devices()  # from now on no run can change their number
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The same examples on every machine; the first call of each compiles.
hypothesis.settings.register_profile(
  "fedjax_alg", deadline=None, derandomize=True, database=None, max_examples=40
)
hypothesis.settings.register_profile(
  "fast", hypothesis.settings.get_profile("fedjax_alg"), max_examples=10
)
hypothesis.settings.load_profile("fedjax_alg")


def pytest_addoption(parser):
  parser.addoption(
    "--fast",
    action="store_true",
    help="every room in under a minute: the first case of every test that "
    "compiles no whole round, and those marked `fast`",
  )
  parser.addoption(
    "--algorithm",
    metavar="NAME",
    help="the tests in tests/contract of this algorithm of the registry alone "
    "(fedjax-alg check tests your own)",
  )
  parser.addoption(
    "--tenth",
    metavar="SEED",
    default="none",
    help="compiles the programs of a tenth of the test files as users' runs do; "
    "`day` takes the date as the seed that chooses them",
  )


def pytest_configure(config):
  """Fewer examples with ``--fast``."""
  if config.getoption("--fast"):
    hypothesis.settings.load_profile("fast")
    config.option.tenth = "none"
  if config.option.tenth == "day":
    config.option.tenth = datetime.date.today().isoformat()
  COUNTS.listen()


def pytest_ignore_collect(collection_path, config):
  """With ``--fast``, a file of PROGRAMS is imported only if it may mark a test."""
  if not config.getoption("--fast") or collection_path.suffix != ".py":
    return None
  parts = collection_path.relative_to(config.rootpath).parts
  if parts[:1] != ("tests",) or parts[1] not in PROGRAMS:
    return None
  # ``marks`` are those of another file.
  text = collection_path.read_text("utf-8")
  return None if "mark.fast" in text or "import marks" in text else True


def pytest_report_header(config):
  """The seed that chooses the same files again."""
  return f"files that compile as users' runs do: --tenth={config.option.tenth}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
  """What a test compiles goes to its folder, by the compiler of its file."""
  room, seed = _room(item), item.config.option.tenth
  compilers.switch(seed != "none" and compilers.is_usual(seed, unit(item.nodeid)))
  with COUNTS.of("tests" if room == item.path.name else room):
    return (yield)


def pytest_sessionfinish(session):
  """A worker hands its counts to the process that started it."""
  if hasattr(session.config, "workeroutput"):
    session.config.workeroutput["program_counts"] = dict(COUNTS.by_folder)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
  """A worker that was lost has none."""
  COUNTS.add(getattr(node, "workeroutput", {}).get("program_counts", {}))


def pytest_terminal_summary(terminalreporter):
  """CPU seconds, compiled programs and their times, by folder."""
  if COUNTS.by_folder:
    terminalreporter.section("compiled programs")
    for line in COUNTS.lines():
      terminalreporter.write_line(line)


def pytest_unconfigure():
  """Only the process that made the folder knows it; workers have ended."""
  if _CACHE is not None:
    shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """What shares compiled programs goes to one worker.

  The groups are read from the names of the tests: xdist 3.8 cannot hand its
  marks to the scheduler of pytest 9.2, and says nothing.
  """
  if config.getvalue("dist") != "loadgroup":
    return None
  from xdist.scheduler import LoadScopeScheduling  # pylint: disable=C0415

  class Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid):
      return group(nodeid)

  return Groups(config, log)


def group(nodeid):
  """A file, a folder whose runs share programs, or in the contract a file's
  tests of one algorithm.
  """
  for folder in TOGETHER:
    if nodeid.startswith(f"{folder}/"):
      return folder
  return unit(nodeid)


def unit(nodeid):
  """A file, or in the contract a file's tests of one algorithm."""
  path, _, case = nodeid.partition("::")
  bench = re.search(r"\[(\w+)", case) if "contract" in path else None
  return f"{path}[{bench[1]}]" if bench else path


def pytest_collection_modifyitems(config, items):
  """The tests of ``--fast`` or ``--algorithm``."""
  name = config.getoption("--algorithm")
  if name:
    _select(
      config,
      items,
      lambda item: (
        item.path.parent.name == "contract"
        and name in (_bench(item), _bench(item, "name"))
      ),
    )
  # The longest files first, so that no worker is left with one at the end.
  items.sort(
    key=lambda item: next(
      (place for place, name in enumerate(LONGEST) if item.path.match(name)),
      len(LONGEST),
    )
  )
  if not config.getoption("--fast"):
    return
  seen = set()

  def is_fast(item):
    # The mark of a test goes before that of its file, and both before its folder.
    marks = [mark.name for mark in item.iter_markers() if mark.name in SPEEDS]
    fast = marks[0] == "fast" if marks else _room(item) not in PROGRAMS
    case = (item.path, item.originalname, _bench(item), _bench(item, "promise"))
    take = fast and case not in seen
    seen.add(case)
    return take

  _select(config, items, is_fast)


def pytest_collection_finish(session):
  """Garbage is collected after each file alone.

  Tracing makes many objects that stay, and Python visits all of them again
  and again: a quarter of the CPU time of tests that compile programs.
  """
  del session
  # Files of a test that change within a second are read again.
  sys.dont_write_bytecode = True
  gc.disable()
  _collect()


def pytest_runtest_teardown(item, nextitem):
  """What is left of a file stays: no later collection visits it.

  A slow test may compile as much as a file: LLVM ends without more pieces of memory.
  """
  is_last = nextitem is None or group(nextitem.nodeid) != group(item.nodeid)
  if is_last or item.get_closest_marker("slow"):
    _collect()


def _collect():
  if _maps() > MOST_MAPS:
    gc.unfreeze()
    shared_programs.forget()
    jax.clear_caches()
  gc.collect()
  gc.freeze()


def _maps():
  """Pieces of memory of this process; 0 where the system does not say."""
  try:
    with open("/proc/self/maps", "rb") as pieces:
      return sum(1 for _ in pieces)
  except OSError:
    return 0


def pytest_runtest_setup(item):
  """Tests marked ``gpu`` need an accelerator that is JAX's default."""
  shared = _room(item) in SHARED or not _MADE_HERE
  if shared != getattr(jax.config, "jax_enable_compilation_cache"):
    jax.config.update("jax_enable_compilation_cache", shared)
    compilation_cache.reset_cache()
  if item.get_closest_marker("gpu") and jax.default_backend() == "cpu":
    pytest.skip("no accelerator is JAX's default (JAX_PLATFORMS=cuda,cpu)")


def _select(config, items, is_wanted):
  """Keeps the wanted items."""
  selected, deselected = [], []
  for item in items:
    (selected if is_wanted(item) else deselected).append(item)
  config.hook.pytest_deselected(items=deselected)
  items[:] = selected


def _room(item):
  """The folder in tests/ that has the test, or its file."""
  return item.path.relative_to(item.config.rootpath / "tests").parts[0]


def _bench(item, parameter="bench"):
  """The algorithm of a test of the contract, or its clause (``promise``)."""
  return (
    str(item.callspec.params.get(parameter, "")) if hasattr(item, "callspec") else ""
  )


@pytest.fixture(scope="module", name="one_device")
def fixture_one_device():
  """Runs use one device: their programs compile in half the time.

  Those of tests that ask for ``all_devices`` use all four.
  """
  with shared_programs.on_devices(1):
    yield


@pytest.fixture(name="all_devices")
def fixture_all_devices():
  """Undoes ``one_device`` for a test."""
  with shared_programs.on_devices(None):
    yield


@pytest.fixture(scope="session", name="mesh")
def fixture_mesh():
  """Four CPU devices with one axis ``clients``."""
  return sharding.clients_mesh(jax.devices("cpu")[:4])


@pytest.fixture(name="no_pictures")
def fixture_no_pictures(monkeypatch):
  """Pictures of runs are a word each; test_run.py has some drawn."""
  monkeypatch.setattr(
    "experiments.cli.writer.plots",
    types.SimpleNamespace(
      histogram=lambda path, *_: path.write_text("drawn"),
      run_curves=lambda paths, *_: [path.write_text("drawn") for path in paths],
    ),
  )


@pytest.fixture(name="unchecked_shapes")
def fixture_unchecked_shapes(monkeypatch):
  """Functions are called as users call them: see shapes.py."""
  monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="module", name="share_programs")
def fixture_share_programs():
  """Programs that are the same are compiled once, see shared_programs.py."""
  with pytest.MonkeyPatch.context() as patch:
    for place in shared_programs.PLACES:
      patch.setattr(f"{place}.Programs", shared_programs.make)
    patch.setattr(
      "experiments.cli.sweeps.compile_together", shared_programs.make_together
    )
    yield


@pytest.fixture(scope="session", name="problem")
def fixture_problem():
  """12 unlike clients, softmax regression."""
  return problems.softmax_problem()


@pytest.fixture(scope="session", name="image_problem")
def fixture_image_problem():
  """5 clients of 6 x 6 images."""
  return problems.image_problem()
