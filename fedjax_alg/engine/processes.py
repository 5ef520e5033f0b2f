"""Several processes that play one run together.

``distributed`` joins the processes. From then on the mesh spans the devices of
all of them, and a federation holds the training rows of this process's clients
alone (``data.process_rows``). All processes run the same rounds; process 0
writes.

A process that fails tells the others why, and they end with its status. One
that is killed is missed, by its broken connection or after ``MISSED_S``
without a sign of life; the others then end with ``LOST``.
"""

import atexit
from collections.abc import Callable
import ctypes
import dataclasses
import json
import os
import pickle
import re
import signal
import sys
import threading
import time
from typing import Any, NoReturn, TypeVar

import jax
from jax._src import distributed as jax_distributed
from jax.sharding import PartitionSpec
import jax.numpy as jnp
import numpy as np

from fedjax_alg import split
from fedjax_alg.data import process_rows
from fedjax_alg.engine import sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import check_options, hyper

#: Exit status of a process whose run another process has left; a scheduler may
#: queue the job again (EX_TEMPFAIL of sysexits.h).
LOST = 75

#: A process that gives no sign of life for so many seconds is lost.
MISSED_S = 40.0
_BEAT_S, _LOOK_S = 5.0, 0.5
#: How long a process that fails waits until the others know why.
_TOLD_S = 10.0
#: How long a process may wait for the others, which may be compiling.
_WAIT_MS = 24 * 3600 * 1000

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class ProcessOptions:
  """The processes that play a run together."""

  distributed: bool = hyper(
      False, "play the run in several processes that are started with the same "
      "flags, as Slurm, Open MPI or a TPU pod do, which say who they are; or "
      "give `coordinator`")
  coordinator: str | None = hyper(
      None, "HOST:PORT, where process 0 can be reached and has a free port; "
      "with `num_processes` and `process_id` in the place of `distributed`")
  num_processes: int | None = hyper(
      None, "number of processes (`coordinator`)", minimum=1)
  process_id: int | None = hyper(
      None, "number of this process, from 0 (`coordinator`)", minimum=0)

  @property
  def several(self) -> bool:
    """Whether this process is to join others."""
    return self.distributed or self.coordinator is not None

  def check(self) -> None:
    """Checks that the options go together.

    Raises:
      OptionError: they do not.
    """
    for name in ("num_processes", "process_id"):
      value = getattr(self, name)
      if value is not None and self.coordinator is None:
        raise OptionError(
            f"`{name}`={value}: not read without `coordinator` (HOST:PORT)")
      if value is None and self.coordinator is not None:
        raise OptionError(f"`coordinator`={self.coordinator}: needs `{name}`")
    check_options(self)
    if self.coordinator is None:
      return
    host, _, port = self.coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2 ** 16:
      raise OptionError(f"`coordinator`={self.coordinator}: must be HOST:PORT")
    assert self.num_processes is not None and self.process_id is not None
    if self.process_id >= self.num_processes:
      raise OptionError(
          f"`process_id`={self.process_id}: must be less than "
          f"`num_processes`={self.num_processes}")


class _Cluster:
  """What this process knows of the others."""

  def __init__(self, say: Callable[[str], None]):
    # Everyone who needs the service's keys and barriers takes the client from
    # here (Orbax, for one); JAX has no public name for it.
    self.client: Any = jax_distributed.global_state.client
    self.index, self.count = jax.process_index(), jax.process_count()
    self.say = say
    self.turns: dict[str, int] = {}
    self.ending = threading.Lock()
    self.status = LOST  #: with which this process ends, once it is ending


_cluster: _Cluster | None = None


def _client() -> Any:
  assert _cluster is not None
  return _cluster.client


def lead() -> bool:
  """Whether this process writes the files of a run: process 0, or the only."""
  return _cluster is None or _cluster.index == 0


def joined() -> bool:
  """Whether this process has joined others (``join``)."""
  return _cluster is not None


def count() -> int:
  """The number of processes."""
  return 1 if _cluster is None else _cluster.count


def distributed(
    coordinator: str | None = None, num_processes: int | None = None,
    process_id: int | None = None, *, host_devices: int = 0) -> None:
  """Joins the processes that play the same runs together.

  Call this function in every process before JAX computes anything and before
  ``federate``: of a federation that is made afterwards this process keeps the
  training rows of about 1/Q of the clients. Then call ``run`` with the same
  arguments in every process. Every process gets the whole result;
  ``RunResult.save`` writes in process 0 alone.

  In a second call nothing happens.

  Args:
    coordinator: HOST:PORT of process 0; None: Slurm, Open MPI or a TPU pod
      says it, and the other two.
    num_processes: Q, the number of processes.
    process_id: number of this process, from 0.
    host_devices: number of CPU cores that this process uses; 0 means all that
      it may use. All processes must use as many.

  Raises:
    OptionError: arguments that do not go together, JAX has already started, or
      the other processes were not found.
  """
  if _cluster is None:
    join(ProcessOptions(
        coordinator is None, coordinator, num_processes, process_id),
         host_devices)
    atexit.register(finish)
    sys.excepthook = _on_error


def join(
    options: ProcessOptions, host_devices: int = 0,
    say: Callable[[str], None] | None = None) -> None:
  """Joins the processes, see ``distributed``.

  Args:
    options: which processes.
    host_devices: see ``distributed``.
    say: prints why another process has ended this one; by default, on stderr.

  Raises:
    OptionError: see ``distributed``.
  """
  global _cluster  # pylint: disable=global-statement
  options.check()
  if _cluster is not None or not options.several:
    return
  sharding.start(host_devices)
  try:
    if not jax.distributed.is_initialized():
      jax.distributed.initialize(
          options.coordinator, options.num_processes, options.process_id)
  except (ValueError, RuntimeError) as error:
    if "must be called before" in str(error):
      raise OptionError("`distributed`: JAX has computed something already; "
                        "join the processes first") from error
    if options.coordinator is None and isinstance(error, ValueError):
      raise OptionError(
          "`distributed`: found no Slurm, Open MPI or TPU pod (give "
          "`coordinator`, `num_processes` and `process_id`)") from error
    raise OptionError(
        f"`coordinator`={options.coordinator}: the {options.num_processes} "
        f"processes did not meet: {str(error).splitlines()[0]}") from error
  _cluster = _Cluster(say or _say)
  process_rows.set_process(
      process_rows.Process(_cluster.index, _cluster.count))
  if _cluster.count == 1:
    return
  _end_with_the_others()
  mesh = sharding.clients_mesh()
  assert mesh is not None
  # Gloo connects at the first collective and waits 30 s for its peers; here
  # nobody has anything long to compile yet.
  meet("start")
  with _WithoutStdout():
    jax.jit(jax.shard_map(
        lambda: jax.lax.psum(jnp.int32(1), mesh.axis_names), mesh=mesh,
        in_specs=(), out_specs=PartitionSpec()))().block_until_ready()


class _WithoutStdout:
  """Drops what Gloo prints when it connects."""

  def __enter__(self) -> None:
    sys.stdout.flush()
    self._kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
      os.dup2(nowhere.fileno(), 1)

  def __exit__(self, *error: Any) -> None:
    os.dup2(self._kept, 1)
    os.close(self._kept)


def _say(text: str) -> None:
  print(f"error: {text}", file=sys.stderr, flush=True)


def _turn(name: str) -> str:
  """A new name for every use of ``name``, the same in all processes."""
  assert _cluster is not None
  _cluster.turns[name] = turn = _cluster.turns.get(name, 0) + 1
  return f"fedjax_alg/{name}/{turn}"


def meet(name: str) -> None:
  """Waits until all processes are here."""
  if count() > 1:
    _client().wait_at_barrier(_turn(f"meet_{name}"), _WAIT_MS)


def agree(decide: Callable[[], _Result]) -> _Result:
  """What process 0 decides, in all processes.

  Args:
    decide: called in process 0 alone; what it returns must be picklable. If it
      raises an error, the others wait until they are told to end.

  Returns:
    What ``decide`` returned.
  """
  if count() == 1:
    return decide()
  key = _turn("agree")
  if lead():
    found = decide()
    _client().key_value_set_bytes(key, pickle.dumps(found))
  else:
    found = pickle.loads(_client().blocking_key_value_get_bytes(key, _WAIT_MS))
  return found


def gather(found: _Result) -> list[_Result]:
  """What all processes have found, in process 0.

  Args:
    found: what this process has found; picklable.

  Returns:
    In process 0, what each has found; elsewhere nothing.
  """
  if count() == 1:
    return [found]
  assert _cluster is not None
  key = _turn("gather")
  if not lead():
    _client().key_value_set_bytes(
        f"{key}/{_cluster.index}", pickle.dumps(found))
    return []
  return [found, *(
      pickle.loads(_client().blocking_key_value_get_bytes(
          f"{key}/{other}", _WAIT_MS)) for other in range(1, count()))]


def anyone(flag: bool) -> bool:
  """Whether ``flag`` is true in some process, in all processes."""
  if count() == 1:
    return flag
  assert _cluster is not None
  name = _turn("anyone")
  if flag:
    _client().key_value_set(f"{name}/{_cluster.index}", "1")
  _client().wait_at_barrier(f"{name}/all", _WAIT_MS)
  return bool(_client().key_value_dir_get(f"{name}/"))


def on_host(tree: Any) -> Any:
  """A tree of arrays that one process alone can compute with.

  Args:
    tree: arrays that every process holds whole; ``split.Split`` stay on the
      devices.

  Returns:
    NumPy arrays; with one process, ``tree``.
  """
  return tree if count() == 1 else jax.tree.map(
      lambda leaf: leaf if split.is_split(leaf) else np.asarray(leaf), tree,
      is_leaf=split.is_split)


# How a process ends the others.

_FAILED, _ALIVE, _TOLD = (
    f"fedjax_alg/{what}/" for what in ("failed", "alive", "told"))
_finished = threading.Event()


def finish() -> None:
  """Waits for the others at the end of a command that went well."""
  if count() > 1:
    meet("end")
    _finished.set()


def fail(status: int, text: str) -> NoReturn:
  """Ends this process, and the others with the same status.

  Args:
    status: the exit status.
    text: why, one line; the others print it.
  """
  assert _cluster is not None
  if _stderr is not None:
    _stderr.aborts.set()  # JAX's complaints when the others go
  if _cluster.ending.acquire(blocking=False):
    _cluster.status = status
    try:
      _client().key_value_set(f"{_FAILED}{_cluster.index}", json.dumps(
          [_cluster.index, status, text]))
      _wait_until_told()
    except Exception:  # pylint: disable=broad-except
      pass  # process 0 has gone, or another one has failed before
  else:
    time.sleep(_TOLD_S)  # the watch is ending this process
  _exit(status)


def _on_error(kind: Any, error: BaseException, trace: Any) -> None:
  """What a script of several processes does with an error of its own."""
  if is_loss(error):
    lose(error)
  sys.__excepthook__(kind, error, trace)
  if count() > 1:
    fail(1, f"{kind.__name__}: {' '.join(str(error).split())}")


def _wait_until_told() -> None:
  """Gives the others time to read why; process 0 keeps what they read."""
  assert _cluster is not None
  end = time.monotonic() + _TOLD_S
  while time.monotonic() < end:
    if len(_client().key_value_dir_get(_TOLD)) >= _cluster.count - 1:
      return
    time.sleep(_LOOK_S / 5)


def is_loss(error: BaseException) -> bool:
  """Whether an error says that another process has gone.

  Args:
    error: what JAX has raised.
  """
  return count() > 1 and isinstance(error, (ValueError, RuntimeError)) and (
      re.search(r"Gloo|gloo|NCCL|coordination|heartbeat|peer|UNAVAILABLE",
                str(error)) is not None)


def lose(error: BaseException) -> NoReturn:
  """Ends this process because ``is_loss``, as the others end.

  The other one may have said why; the watch then ends this process first.
  """
  time.sleep(4 * _LOOK_S)
  _lost("another process", " ".join(str(error).split())[:200])


def _lost(who: str, why: str) -> NoReturn:
  assert _cluster is not None
  if not _cluster.ending.acquire(blocking=False):
    time.sleep(2 * _LOOK_S)  # whoever is ending this process says why
    _exit(_cluster.status)
  _cluster.say(f"{who} was lost ({why}); to go on, start all processes again "
               "with --resume")
  _exit(LOST)


def _exit(status: int) -> NoReturn:
  """Ends at once: JAX would wait for the others, and abort."""
  sys.stdout.flush()
  sys.stderr.flush()
  if _stderr is not None:
    _stderr.close()
  os._exit(status)


def _end_with_the_others() -> None:
  """Starts the watch over the other processes."""
  global _stderr  # pylint: disable=global-statement
  if os.name == "posix":
    _stderr = _Stderr()
  threading.Thread(target=_watch, name="processes", daemon=True).start()


def _watch() -> None:
  """Ends this process when another one has failed or is lost."""
  assert _cluster is not None
  me, beat = _cluster, 0
  last: dict[str, tuple[str, float]] = {}
  next_beat = 0.0
  while not _finished.wait(_LOOK_S):
    try:
      found = dict(me.client.key_value_dir_get(_FAILED))
      if found:
        index, status, text = json.loads(next(iter(found.values())))
        if index != me.index and me.ending.acquire(blocking=False):
          me.status = status
          me.client.key_value_set(f"{_TOLD}{me.index}", "1")
          me.say(f"process {index}: {text}")
          _exit(status)
      now = time.monotonic()
      if now < next_beat:
        continue
      next_beat, beat = now + _BEAT_S, beat + 1
      me.client.key_value_set(
          f"{_ALIVE}{me.index}", str(beat), allow_overwrite=True)
      signs = dict(me.client.key_value_dir_get(_ALIVE))
    except Exception as error:  # pylint: disable=broad-except
      if _finished.is_set() or me.index == 0:
        return
      _lost("process 0", str(error).splitlines()[0][:200])
    for name, sign in signs.items():
      if last.get(name, ("", 0.0))[0] != sign:
        last[name] = sign, now
    for name, (_, seen) in last.items():
      if now - seen > MISSED_S:
        _lost(f"process {name.rpartition('/')[2]}",
              f"no sign of life for {MISSED_S:g} s")


#: What JAX's service says before it aborts the process.
_ABORTS = re.compile(
    rb"coordination_service_agent\.cc|preemption_sync_manager\.cc"
    rb"|Terminating process because the JAX distributed service")


class _Stderr:
  """Passes on what C++ writes to stderr, up to what ``_ABORTS`` matches.

  Where process 0 is killed, JAX aborts the others at once, with a stack trace.
  Handlers of Python do not run then, as ``abort`` never returns; one of C does.
  """

  def __init__(self) -> None:
    self.aborts = threading.Event()  #: what follows is of no use
    self._kept = os.dup(2)
    # What Python writes does not pass here, so a terminal stays one.
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    self._read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)
    self._thread = threading.Thread(target=self._pass_on, daemon=True)
    self._thread.start()
    atexit.register(self.close)
    self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._on_abort)
    ctypes.CDLL(None).signal(int(signal.SIGABRT), self._handler)

  def _pass_on(self) -> None:
    while text := os.read(self._read, 2 ** 16):
      if self.aborts.is_set():
        continue
      found = _ABORTS.search(text)
      if found:
        self.aborts.set()
        text = text[:text.rfind(b"\n", 0, found.start()) + 1]
      os.write(self._kept, text)

  def close(self) -> None:
    """Passes on the rest, and drops what follows an abort."""
    if self.aborts.is_set():
      with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    else:
      os.dup2(self._kept, 2)
    self._thread.join(1.0)

  def _on_abort(self, number: int) -> None:
    del number
    self.close()
    if self.aborts.is_set():  # or else C++ has aborted for its own reasons
      _lost("process 0", "JAX's coordination service has gone")


_stderr: _Stderr | None = None
