"""The loop over evaluations, for one run or for all settings of a sweep."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import RoundAux
from fedjax_alg.engine import loop
from fedjax_alg.errors import OptionError, with_names
from fedjax_alg.records import tables
from fedjax_alg.records.tables import Records
from fedjax_alg.runs.pace import Pace, Pause
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.stopping import Stopping
from fedjax_alg.typing import PyTree


class NonFiniteError(RuntimeError):
  """Training became NaN or infinite; the message is one line.

  As in ``OptionError``, ``text`` has the names of parameters in backticks.
  """

  def __init__(self, text: str):
    super().__init__(with_names(text))
    self.text = text


@dataclasses.dataclass(frozen=True)
class Divergence:
  """The first non-finite state of one row of a program."""

  round: int  #: the first non-finite round, counted from 1
  leaf: str  #: name of the non-finite leaf of the state
  seed: int

  def text(self, why: str = "") -> str:
    """Describes the divergence in one line.

    Args:
      why: a possible cause besides a large step size; may be empty.

    Returns:
      The message.
    """
    return (
      f"training became non-finite in round {self.round}: {self.leaf} "
      f"(seed {self.seed}){': ' + why if why else ''}"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """The state of a run at an evaluation.

  ``N`` is the number of seeds. In a sweep ``N`` is the number of hyper-parameter
  combinations in the program times the number of seeds.
  """

  round: int  #: rounds run so far
  rounds: int  #: rounds of the whole run
  #: states of the algorithm on the devices, leaves [N, ...]. The next step
  #: reuses their memory: copy the states that you want to keep
  #: (``jax.tree.map(np.array, step.states)``). With `data_on` host or disk, tables of
  #: clients are ``engine.row_file.RowTable``, of which ``read`` reads some clients.
  states: Any
  #: protocol -> metric -> [N]; also the caller's own measures, name -> key ->
  #: sums [N, K, ...], or [N, C, ...] with ``at_clients``
  metrics: dict[str, dict[str, np.ndarray]]
  #: the sums of the task that the metrics were computed from
  counts: dict[str, tasks.Counts]
  #: [N, C] group of each client; None if the algorithm does not group clients
  membership: np.ndarray | None
  #: wall time of the rounds since the previous step, all N runs together
  seconds: float
  compile_s: float  #: time that compilation took, in seconds
  #: row -> divergence; always empty in a single run, which stops instead
  diverged: dict[int, Divergence]
  #: log of the rounds since the previous step, may be padded
  log: loop.RunLog
  count: int  #: rounds since the previous step
  #: setting -> why it ended before the last round, "stop_at ...", "patience ..." or
  #: "callback"; a setting that has ended is recorded no further
  stopped: dict[int, str] = dataclasses.field(default_factory=dict)
  last: bool = False  #: whether the run has ended
  seeds: tuple[int, ...] = ()  #: the seeds of one setting
  #: the settings that have not diverged and had not ended before this step
  recorded: tuple[int, ...] = ()
  #: of ``steps``: makes what ``result`` returns
  make_result: Callable[[], Any] | None = dataclasses.field(
    default=None, repr=False, compare=False
  )

  def result(self) -> Any:
    """Makes the ``RunResult`` of the run so far, as if it had ended here.

    Call it before the next step, which reuses the memory of the states.

    Returns:
      The result, which the further run does not change.

    Raises:
      OptionError: the step is none of ``steps``.
    """
    if self.make_result is None:
      raise OptionError("`result`: only a Step of fa.steps has the result so far")
    return self.make_result()

  @property
  def aux(self) -> RoundAux:
    """The reports of the rounds since the previous step, [N, count, ...]."""
    result: RoundAux = jax.tree.map(
      lambda leaf: np.asarray(leaf)[:, : self.count], self.log.aux
    )
    return result


def first_nonfinite(
  log: loop.RunLog, start: int, count: int, seeds: Sequence[int]
) -> dict[int, Divergence]:
  """Finds the rows whose state became NaN or infinite.

  Args:
    log: log of the rounds.
    start: rounds run before them.
    count: number of rounds in the log.
    seeds: seeds of one setting.

  Returns:
    Row of the program -> its first non-finite round.
  """
  divergences: dict[int, Divergence] = {}
  for name, flags in jax.device_get(log.finite).items():
    for row in range(len(flags)):
      bad = np.flatnonzero(~flags[row, :count])
      if bad.size and (
        row not in divergences or (start + int(bad[0]) + 1 < divergences[row].round)
      ):
        divergences[row] = Divergence(
          start + int(bad[0]) + 1, name, seeds[row % len(seeds)]
        )
  return divergences


def new_records(programs: Programs, folders: Sequence[Any]) -> list[Records]:
  """Makes empty tables for every setting of a program.

  Args:
    programs: the compiled programs.
    folders: the folder of each setting; None keeps its tables in memory.

  Returns:
    The tables of each setting.
  """
  p = programs.prepared
  return [
    Records(
      folder,
      p.seeds,
      p.spec.cohort_size,
      tables.server_names(programs.server),
      programs.num_groups,
      p.privacy(setting),
      tasks.of(p.model).metrics,
      p.federation.feature_flops,
    )
    for setting, folder in enumerate(folders)
  ]


def run_steps(
  programs: Programs,
  records: Sequence[Records],
  states: PyTree = None,
  done: int = 0,
  stop: bool = True,
  pace: Pace | None = None,
) -> Iterator[Step]:
  """Executes a run from evaluation to evaluation and records it.

  Args:
    programs: the compiled programs.
    records: tables of each setting.
    states: states to continue from; None starts from the initial states.
    done: rounds run before ``states``.
    stop: whether a non-finite state ends the run. If false, a setting with
      such a state is recorded no further and the other settings continue.
      Settings that stopped early keep the states of that step, and the others
      continue, too.
    pace: shares the rounds between two evaluations out to several calls, and
      saves between them; None: one call. Steps and finished tables are the
      same.

  Yields:
    A ``Step`` at every evaluation. Before them comes one of ``states`` if a setting
    has ended by the rows that ``records`` hold, or if the last round was run without
    its evaluation.

  Raises:
    NonFiniteError: a state became NaN or infinite and ``stop`` is true.
  """
  settings = _Settings(programs, records)
  if settings.stopped:  # and was interrupted before its results were written
    last = len(settings.stopped) == len(records)
    yield dataclasses.replace(
      final_step(programs, states, done), stopped=settings.stopped, last=last
    )
    if last:
      return
  if states is None:
    states = programs.initial()
  elif done == programs.rounds and not settings.are_evaluated(done):
    # It was saved there on its way to more rounds.
    measured = _evaluate_at(programs, states, done)
    step = _without_rounds(programs, states, done, measured)
    recorded = settings.record({}, done, _Calls(step.log, 0, 0.0), measured)
    yield dataclasses.replace(step, stopped=settings.stopped, recorded=recorded)
    return
  diverged: dict[int, Divergence] = {}
  calls: list[_Calls] = []  # since the last evaluation, those in the tables
  new_calls: list[_Calls] = []  # and those that are not
  rounding_seed = programs.prepared.options.rounding_seed
  while done < programs.rounds:
    remaining = programs.rounds_to_evaluation(done)
    count = remaining if pace is None else pace.rounds(remaining)
    is_perturbed = rounding_seed > 0 and done == 0
    if is_perturbed:
      count = 1
    count = programs.rounds_of_call(done, count)
    states, call = _call(programs, states, done, count)
    if is_perturbed:
      states = programs.perturb_rounding(states, rounding_seed)
    new = settings.divergences(call, done)
    if new and stop:
      first = min(new.values(), key=lambda divergence: divergence.round)
      raise NonFiniteError(first.text(programs.prepared.method.entry.nonfinite))
    diverged = new | diverged
    done += count
    evaluating = count == remaining
    # The log of a call that ends before its evaluation is long.
    new_calls.append(call if evaluating else _join([call]))
    if pace is not None:
      pace.record_call(count, call.seconds)
    if not evaluating and (pace is None or not pace.due()):
      continue
    evaluation = _evaluate(programs, states) if evaluating else None
    calls.append(_as_one(new_calls))
    recorded = settings.record(diverged, done, calls[-1], evaluation)
    new_calls = []
    if evaluation is None:
      assert pace is not None
      pace.save(Pause(done, states, diverged))
      continue
    interval, calls = _as_one(calls), []
    last = done == programs.rounds or settings.all_ended(diverged)
    yield Step(
      round=done,
      rounds=programs.rounds,
      states=states,
      metrics=evaluation.metrics,
      counts=evaluation.counts,
      membership=evaluation.membership,
      seconds=interval.seconds,
      compile_s=programs.compile_s,
      diverged=diverged,
      log=interval.log,
      count=interval.rounds,
      stopped=settings.stopped,
      last=last,
      seeds=programs.prepared.seeds,
      recorded=recorded,
    )
    if last:
      return


class _Calls(NamedTuple):
  """Rounds that ran one after the other, in one call or several."""

  log: loop.RunLog
  rounds: int  #: in the log
  seconds: float


def _call(
  programs: Programs, states: PyTree, done: int, count: int
) -> tuple[Any, _Calls]:
  """Runs ``count`` rounds."""
  began = time.monotonic()
  states, log = jax.block_until_ready(programs.run_rounds(states, done, count))
  return states, _Calls(log, count, time.monotonic() - began)


def _join(calls: Sequence[_Calls]) -> _Calls:
  """The calls as one, with a log on the host that is not padded."""
  log = jax.tree.map(
    lambda *leaves: np.concatenate(
      [np.asarray(leaf)[:, : call.rounds] for leaf, call in zip(leaves, calls)], axis=1
    ),
    *[call.log for call in calls],
  )
  return _Calls(
    log, sum(call.rounds for call in calls), sum(call.seconds for call in calls)
  )


def _as_one(calls: Sequence[_Calls]) -> _Calls:
  """The calls as one; a single call stays as it is."""
  return calls[0] if len(calls) == 1 else _join(calls)


class _Evaluation(NamedTuple):
  """Measurements of the states; the fields are those of ``Step``."""

  values: dict[str, dict[str, np.ndarray]]  #: ``Step.metrics`` of the protocols
  metrics: dict[str, dict[str, np.ndarray]]
  counts: dict[str, tasks.Counts]
  membership: np.ndarray | None


def _evaluate(programs: Programs, states: PyTree) -> _Evaluation:
  """Evaluates the states."""
  counts, sums = programs.evaluate(states)
  values = tables.metric_values(counts, tasks.of(programs.prepared.model))
  return _Evaluation(values, {**values, **sums}, counts, programs.membership(states))


class _Settings:
  """The tables of all settings of a program, and which of them have ended."""

  def __init__(self, programs: Programs, records: Sequence[Records]):
    rules = programs.prepared.options.stopping_rules
    self._programs, self._records = programs, records
    self._seeds = programs.prepared.seeds
    self._rules = [Stopping(rules, table.rows) for table in records]
    self.stopped = self._find_stopped()  #: ``Step.stopped``

  def _find_stopped(self) -> dict[int, str]:
    """Finds the settings that have ended early; their tables say so."""
    reasons = {i: rule.reason for i, rule in enumerate(self._rules) if rule.reason}
    for i, reason in reasons.items():
      self._records[i].stopped = reason
    return reasons

  def are_evaluated(self, done: int) -> bool:
    """Whether the tables have an evaluation after ``done`` rounds."""
    return all(done in table.evaluated for table in self._records)

  def divergences(self, call: _Calls, done: int) -> dict[int, Divergence]:
    """The rows that diverged in a call, of settings that go on."""
    rows = first_nonfinite(call.log, done, call.rounds, self._seeds)
    return {
      row: divergence
      for row, divergence in rows.items()
      if row // len(self._seeds) not in self.stopped
    }

  def all_ended(self, diverged: Mapping[int, Divergence]) -> bool:
    """Whether a rule has ended the last setting that did not diverge."""
    ended = self.stopped.keys() | {row // len(self._seeds) for row in diverged}
    return bool(self.stopped) and len(ended) == len(self._records)

  def record(
    self,
    diverged: Mapping[int, Divergence],
    done: int,
    calls: _Calls,
    evaluation: _Evaluation | None,
  ) -> tuple[int, ...]:
    """Adds rounds, and an evaluation after them, to the tables.

    Args:
      diverged: the rows that have diverged.
      done: number of rounds with these.
      calls: the rounds.
      evaluation: None if there is none after these rounds.

    Returns:
      The settings with new rows, those that have neither ended nor diverged.
    """
    num = len(self._seeds)
    ended = self.stopped.keys() | {row // num for row in diverged}
    recorded = tuple(i for i in range(len(self._records)) if i not in ended)
    aux = jax.device_get(calls.log.aux._replace(client={}, work=None))
    for i in recorded:
      table, rows = self._records[i], slice(i * num, (i + 1) * num)
      table.add_rounds(
        jax.tree.map(lambda leaf, rows=rows: leaf[rows], aux),
        done - calls.rounds,
        calls.rounds,
        calls.seconds / len(self._records),
        evaluation is not None,
      )
      if evaluation is None:
        continue
      metrics = {
        protocol: {name: value[rows] for name, value in of.items()}
        for protocol, of in evaluation.values.items()
      }
      table.add_metrics(metrics)
      self._rules[i].add_evaluation(metrics)
      if evaluation.membership is not None:
        table.add_groups(
          evaluation.membership[rows],
          self._programs.label_histogram,
          self._programs.prepared.device_data.kinds,
        )
    if evaluation is not None:
      self.stopped = self._find_stopped()
    return recorded


def final_step(programs: Programs, states: PyTree, done: int) -> Step:
  """Makes the ``Step`` of a run that has no round left to run.

  Args:
    programs: the compiled programs.
    states: states after the last round.
    done: rounds run.

  Returns:
    The step, with an empty log.
  """
  evaluation = _evaluate_at(programs, states, done)
  return _without_rounds(programs, states, done, evaluation)


def _evaluate_at(programs: Programs, states: PyTree, done: int) -> _Evaluation:
  """Evaluates states after ``done`` rounds that no call has just run."""
  programs.prepared.device_data.move(done - 1)
  return _evaluate(programs, states)


def _without_rounds(
  programs: Programs, states: PyTree, done: int, evaluation: _Evaluation
) -> Step:
  """The last ``Step`` of a run whose rounds were run before."""
  return Step(
    round=done,
    rounds=programs.rounds,
    states=states,
    metrics=evaluation.metrics,
    counts=evaluation.counts,
    membership=evaluation.membership,
    seconds=0.0,
    compile_s=programs.compile_s,
    diverged={},
    log=loop.RunLog(programs.empty_aux, {}),
    count=0,
    last=True,
    seeds=programs.prepared.seeds,
  )
