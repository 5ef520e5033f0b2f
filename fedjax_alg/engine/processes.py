"""Several processes that execute one run together.

``distributed`` joins the processes. From then on the mesh spans the devices of
all of them, and a federation holds the training rows of this process's clients
alone (``data.process_rows``). All processes run the same rounds; process 0
writes. What the host does is shared by ``jax.experimental.multihost_utils``.

An error in ``agree`` or ``together`` is raised in all processes. A process that
fails elsewhere, or is killed, is missed by the others where they next exchange
anything, or by JAX's heartbeats; docs/distributed.md.
"""

import atexit
from collections.abc import Callable, Iterator
import contextlib
import os
import pickle
import re
import sys
import time
from typing import Any, NoReturn, TypeVar

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from fedjax_alg import optional
from fedjax_alg.data import process_rows
from fedjax_alg.engine import sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import HParams, check_options, hyper

#: Exit status of a process whose run another process has left; a scheduler may
#: queue the job again (EX_TEMPFAIL of sysexits.h).
LOST = 75

#: A process that gives JAX's service no sign of life for so many seconds is
#: lost.
MISSED_S = 40
#: Seconds that process 0, which has that service, outlives an error: the others may
#: be about to say the same.
_LAST_S = 2.0

#: What JAX's errors say of a process that has gone, and those that come as Python's.
_LOSS = re.compile(r"Gloo|gloo|NCCL|coordination|heartbeat|peer|UNAVAILABLE")
_GLOO = re.compile(r"([A-Z_]+: )?[Gg]loo ")

_Result = TypeVar("_Result")


class ProcessOptions(HParams):
  """The processes that execute a run together."""

  distributed: bool = hyper(
    False,
    "execute the run in several processes, started with the same "
    "flags, as Slurm, Open MPI or a TPU pod do, which say who they are; or "
    "give `coordinator`",
  )
  coordinator: str | None = hyper(
    None,
    "HOST:PORT, where process 0 can be reached and has a free port; "
    "with `num_processes` and `process_id` in the place of `distributed`",
  )
  num_processes: int | None = hyper(
    None, "number of processes (`coordinator`)", minimum=1
  )
  process_id: int | None = hyper(
    None, "number of this process, from 0 (`coordinator`)", minimum=0
  )

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
          f"`{name}`={value}: not read without `coordinator` (HOST:PORT)"
        )
      if value is None and self.coordinator is not None:
        raise OptionError(f"`coordinator`={self.coordinator}: needs `{name}`")
    check_options(self)
    if self.coordinator is None:
      return
    host, _, port = self.coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
      raise OptionError(f"`coordinator`={self.coordinator}: must be HOST:PORT")
    assert self.num_processes is not None and self.process_id is not None
    if self.process_id >= self.num_processes:
      raise OptionError(
        f"`process_id`={self.process_id}: must be less than "
        f"`num_processes`={self.num_processes}"
      )


def lead() -> bool:
  """Whether this process writes the files of a run: process 0, or the only."""
  return process_rows.current_process().number == 0


def count() -> int:
  """The number of processes."""
  return process_rows.current_process().processes


def has_joined() -> bool:
  """Whether this process has joined others (``join``)."""
  return jax.distributed.is_initialized()


def distributed(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  host_devices: int = 0,
) -> None:
  """Joins the processes that execute the same runs together.

  Call this function in every process before JAX computes anything and before
  ``federate``. Each process then stores the training examples of about 1/Q of the
  clients of a federation. Then call ``run`` with the same arguments in every process.
  Every process gets the whole result; ``RunResult.save`` only writes in process 0.

  A second call does nothing.

  Args:
    coordinator: HOST:PORT of process 0. With None, Slurm, Open MPI or a TPU pod
      provides it and the next two arguments.
    num_processes: Q, the number of processes.
    process_id: number of this process, from 0.
    host_devices: number of CPU cores that this process uses; 0 means all that it may
      use. All processes must use the same number.

  Raises:
    OptionError: arguments that exclude each other, JAX has already started, or the
      other processes were not found.
  """
  if count() > 1:
    return
  join(
    ProcessOptions(coordinator is None, coordinator, num_processes, process_id),
    host_devices,
  )
  atexit.register(finish)
  sys.excepthook = _on_error


def join(options: ProcessOptions, host_devices: int = 0) -> None:
  """Joins the processes, see ``distributed``.

  Args:
    options: which processes.
    host_devices: see ``distributed``.

  Raises:
    OptionError: see ``distributed``.
  """
  options.check()
  if not options.several or count() > 1:
    return
  coordinator = options.coordinator
  optional.load_extra(
    "pods", f"`coordinator`={coordinator}" if coordinator else "`distributed`"
  )
  sharding.start(host_devices)
  try:
    if not has_joined():
      jax.distributed.initialize(
        options.coordinator,
        options.num_processes,
        options.process_id,
        heartbeat_timeout_seconds=MISSED_S,
      )
  except (ValueError, RuntimeError) as error:
    if "must be called before" in str(error):
      raise OptionError(
        "`distributed`: JAX has computed something already; join the processes first"
      ) from error
    if options.coordinator is None and isinstance(error, ValueError):
      raise OptionError(
        "`distributed`: found no Slurm, Open MPI or TPU pod (give "
        "`coordinator`, `num_processes` and `process_id`)"
      ) from error
    raise OptionError(
      f"`coordinator`={options.coordinator}: the {options.num_processes} "
      f"processes could not connect to each other: {str(error).splitlines()[0]}"
    ) from error
  process_rows.set_process(
    process_rows.Process(jax.process_index(), jax.process_count())
  )
  if count() > 1:
    _connect()


def _connect() -> None:
  """Makes the first exchanges, of rounds and of ``multihost_utils``.

  Gloo waits 30 s for its peers there, and nobody has anything long to compile
  yet.
  """
  mesh = sharding.clients_mesh()
  assert mesh is not None
  with _without_stdout():
    jax.jit(
      jax.shard_map(
        lambda: jax.lax.psum(jnp.int32(1), mesh.axis_names),
        mesh=mesh,
        in_specs=(),
        out_specs=PartitionSpec(),
      )
    )().block_until_ready()
    meet("start")


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
  """Drops what Gloo prints when it connects."""
  sys.stdout.flush()
  stdout = os.dup(1)
  with open(os.devnull, "wb") as nowhere:
    os.dup2(nowhere.fileno(), 1)
  try:
    yield
  finally:
    os.dup2(stdout, 1)
    os.close(stdout)


def meet(name: str) -> None:
  """Waits until all processes are here."""
  if count() > 1:
    multihost_utils.sync_global_devices(name)


def gather(value: _Result) -> list[_Result]:
  """Gathers one picklable value from every process.

  Args:
    value: what this process has found; picklable.
  """
  if count() == 1:
    return [value]
  raw = np.frombuffer(pickle.dumps(value), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(raw.size))
  rows = multihost_utils.process_allgather(
    np.pad(raw, (0, int(sizes.max()) - raw.size))
  )
  return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes)]


def together(work: Callable[[], _Result]) -> _Result:
  """Runs ``work`` everywhere; an error anywhere is raised everywhere.

  Raises:
    Exception: ``work`` has failed in this process, or else in another one.
  """
  if count() == 1:
    return work()
  failed: Exception | None = None
  try:
    result = work()
  except Exception as error:  # pylint: disable=broad-except
    failed = error
  errors = gather(failed and _picklable(failed))
  if failed is None:
    failed = next(filter(None, errors), None)
  if failed is not None:
    raise failed
  return result


def _picklable(error: Exception) -> Exception:
  """The error, or one with its message that can be sent."""
  try:
    pickle.loads(pickle.dumps(error))
  except Exception:  # pylint: disable=broad-except
    return RuntimeError(f"{type(error).__name__}: {error}")
  return error


def agree(decide: Callable[[], _Result]) -> _Result:
  """Runs ``decide`` in process 0 and sends the result to all.

  Args:
    decide: called in process 0 alone; what it returns must be picklable.

  Raises:
    Exception: ``decide`` has.
  """
  decision: Any = together(lambda: decide() if lead() else None)
  result: _Result = gather(decision)[0]
  return result


def anyone(flag: bool) -> bool:
  """Whether ``flag`` is true in some process, in all processes."""
  return any(gather(flag))


def finish() -> None:
  """Waits for the others at the end of a command that went well."""
  meet("end")


def end(status: int) -> NoReturn:
  """Ends this process at once; JAX would wait for the others, and abort.

  The others are told nothing, see ``is_loss``.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  if lead():
    time.sleep(_LAST_S)
  os._exit(status)


def is_loss(error: BaseException) -> bool:
  """Whether an error says that another process has gone.

  Args:
    error: what JAX has raised.
  """
  if count() == 1:
    return False
  if isinstance(error, jax.errors.JaxRuntimeError):
    return _LOSS.search(str(error)) is not None
  # Some come as errors of Python. Those of users may have the same words.
  return isinstance(error, (ValueError, RuntimeError)) and (
    _GLOO.match(str(error)) is not None
  )


def lose(error: BaseException) -> NoReturn:
  """Ends this process because ``is_loss``, with one line."""
  why = " ".join(str(error).split())[:200]
  print(
    f"error: another process has ended or was lost ({why}); to go on, "
    "start all processes again",
    file=sys.stderr,
  )
  end(LOST)


def _on_error(kind: Any, error: BaseException, trace: Any) -> None:
  """Handles an uncaught error in a script of several processes."""
  if is_loss(error):
    lose(error)
  sys.__excepthook__(kind, error, trace)
  if count() > 1:
    end(1)
