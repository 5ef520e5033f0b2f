"""Runs programs into sinks: the only caller of ``run_steps``.

A sink takes what a program of runs gives: it keeps results in memory, writes
folders, shows a bar. Runs of the library and of the commands go through
``run_queue``, several settings of a program at once; those of ``fa.steps`` alone
through ``compile_steps``, whose caller takes the steps.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from fedjax_alg.engine import row_file
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs.host_tables import copy_rows
from fedjax_alg.runs.plan import Plan, by_program, warn
from fedjax_alg.runs.play import Divergence, Step
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.result import Live, RunResult, make_facts, make_final, rows_of
from fedjax_alg.runs.sinks import STOP, Sink
from fedjax_alg.runs.stopping import BY_CALLBACK
from fedjax_alg.typing import PyTree


class KeepResults(Sink):
  """Keeps the result of every setting.

  Attributes:
    results: a result for each setting; None for one that diverged.
  """

  def start(
    self,
    programs: Programs,
    records: Sequence[Records],
    names: Sequence[str],
    done: int,
  ) -> None:
    self._programs, self._records = programs, records
    self._measured: list[dict[str, Any]] = []
    self.results: list[RunResult | None] = [None] * len(records)

  def __call__(self, step: Step) -> None:
    self._measured.append(
      {name: step.metrics[name] for name in self._programs.prepared.measures}
    )

  def finish(self, setting: int, step: Step) -> None:
    self.results[setting] = self._result(setting, step, self._records[setting])

  def result_so_far(self, step: Step) -> RunResult:
    """Makes the result of a single setting that ends at a step, and may go on."""
    (records,) = (table.copy() for table in self._records)
    if not step.last:
      records.stopped = BY_CALLBACK
    states = jax.tree.map(
      lambda leaf: leaf if row_file.is_row_table(leaf) else leaf.copy(), step.states
    )
    return self._result(0, dataclasses.replace(step, states=states), records)

  def _result(self, setting: int, step: Step, records: Records) -> RunResult:
    p = self._programs.prepared
    rows = rows_of(p, setting)
    states = copy_rows(step.states, rows, views=step.last)
    live = Live(p, states, setting)
    sums = {
      name: jax.tree.map(
        lambda *leaves: np.stack([leaf[rows] for leaf in leaves], axis=1),
        *[measured[name] for measured in self._measured],
      )
      for name in p.measures
    }
    facts = make_facts(p, setting) | {"compile_s": self._programs.compile_s}
    final = make_final(live, step) | {"measures": sums}
    return RunResult(records, final, facts, live)


def divergence(step: Step, setting: int, prepared: Prepared) -> Divergence | None:
  """The earliest divergence among the seeds of a setting, or None."""
  rows = rows_of(prepared, setting)
  return min(
    (at for row, at in step.diverged.items() if rows.start <= row < rows.stop),
    key=lambda at: at.round,
    default=None,
  )


def run_queue(
  programs: Programs,
  sinks: Sequence[Sink],
  *,
  records: Sequence[Records] | None = None,
  names: Sequence[str] = ("",),
  states: PyTree = None,
  done: int = 0,
  stop: bool = True,
  callbacks: Sequence[Callable[[Step], object]] = (),
) -> Step:
  """Runs all settings of a program to their last rounds.

  Args:
    programs: the compiled programs.
    sinks: what takes the runs, in this order. Of a setting that has ended each
      is told at once, before the next step reuses the memory of its states; of
      one that diverged none is.
    records: tables of each setting; None makes empty ones in memory.
    names: a name for each setting.
    states: states to continue from; None starts from the initial states.
    done: rounds before ``states``.
    stop: whether a non-finite state ends the run; see ``play.run_steps``.
    callbacks: called with every step before the sinks. If one returns ``STOP``,
      all settings end there, with their results.

  Returns:
    The last step.

  Raises:
    NonFiniteError: a state became NaN or infinite and ``stop`` is true.
  """
  prepared = programs.prepared
  going = set(range(len(prepared.settings)))
  if records is None:
    records = play_lib.new_records(programs, [None] * len(going))

  def tell(step: Step, *, evaluated: bool = True) -> None:
    ended = {
      setting
      for setting in going
      if (step.last or setting in step.stopped)
      and divergence(step, setting, prepared) is None
    }
    for sink in sinks:
      if evaluated:
        sink(step)
      for setting in sorted(ended):
        sink.finish(setting, step)
    going.difference_update(ended)

  step: Step | None = None
  try:
    for sink in sinks:
      sink.start(programs, records, names, done)
    paces = [sink.pace for sink in sinks if sink.pace is not None]
    for step in play_lib.run_steps(
      programs, records, states, done, stop, paces[0] if paces else None
    ):
      if [call for call in callbacks if call(step) is STOP] and not step.last:
        step = _ended(step, records)
      tell(step)
      if step.last:
        break
    if step is None:  # only the results were missing
      step = play_lib.final_step(programs, states, done)
      tell(step, evaluated=False)
  except BaseException as error:
    for sink in sinks:
      sink.fail(error)
    raise
  finally:
    for sink in sinks:
      sink.close()
  return step


def split_callbacks(
  callbacks: Iterable[Callable[[Step], object]],
) -> tuple[list[Callable[[Step], object]], list[Sink]]:
  """Parts callbacks into functions, which may end a run, and sinks."""
  functions: list[Callable[[Step], object]] = []
  sinks: list[Sink] = []
  for callback in callbacks:
    if isinstance(callback, Sink):
      sinks.append(callback)
    else:
      functions.append(callback)
  return functions, sinks


def notice_of(sinks: Sequence[Sink]) -> Callable[[str], None]:
  """Makes a function that tells sinks what is compiled (``Programs``)."""

  def tell(text: str) -> None:
    for sink in sinks:
      sink.compiling(text)

  return tell


def _ended(step: Step, records: Sequence[Records]) -> Step:
  """The step at which a callback ends the settings that have not ended."""
  ended = [setting for setting in step.recorded if setting not in step.stopped]
  for setting in ended:
    records[setting].stopped = BY_CALLBACK
  stopped = step.stopped | dict.fromkeys(ended, BY_CALLBACK)
  return dataclasses.replace(step, stopped=stopped, last=True)


def run_plans(
  plans: Sequence[Plan],
  callbacks: Iterable[Callable[[Step], object]] = (),
  names: Sequence[str] = ("",),
  stop: bool = True,
) -> tuple[list[RunResult | None], int]:
  """Runs plans of one federation in as few programs as possible, in memory.

  Args:
    plans: the plans.
    callbacks: sinks, or functions that are called with every ``Step``.
    names: a name for each plan.
    stop: whether a non-finite state ends the run; see ``play.run_steps``.

  Returns:
    The result of each plan, None for one that diverged; and the number of
    programs.

  Raises:
    OptionError, DataError: a plan that does not fit its data.
    NonFiniteError: a state became NaN or infinite and ``stop`` is true.
  """
  results: list[RunResult | None] = [None] * len(plans)
  memory, warned = KeepResults(), set[str]()
  functions, sinks = split_callbacks(callbacks)
  groups = by_program(plans)
  for indices in groups:
    prepared = plans[indices[0]].prepare([plans[i].method.values() for i in indices])
    warn(prepared, warned)
    run_queue(
      Programs(prepared, notice_of(sinks)),
      [memory, *sinks],
      names=[names[i] for i in indices],
      stop=stop,
      callbacks=functions,
    )
    for i, result in zip(indices, memory.results):
      results[i] = result
  return results, len(groups)


def compile_steps(prepared: Prepared) -> Iterator[Step]:
  """Compiles a run and yields its steps, each with the result so far."""
  programs = Programs(prepared)
  records, memory = play_lib.new_records(programs, [None]), KeepResults()
  memory.start(programs, records, ("",), 0)
  for step in play_lib.run_steps(programs, records):
    memory(step)
    yield dataclasses.replace(
      step, make_result=functools.partial(memory.result_so_far, step)
    )
